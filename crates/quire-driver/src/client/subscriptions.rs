//! The subscriptions of a client, and how the program takes their messages.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use quire_client::{CommandId, Failure, SubscriptionProgress, SubscriptionSpec};
use quire_journal::Bookmark;

use super::receive_limit::Full;
use super::{Client, Feed, Inner, Queue, SharedProgress, Taken, io};

/// A subscription that the core accepted, and the command whose answer contains the result of the
/// server.
pub struct Subscribed {
    /// The number of the subscription.
    pub number: u32,
    /// Wait for it with [`Client::wait`].
    pub command: CommandId,
    /// Where its messages arrive.
    pub queue: Arc<Queue>,
    /// The progress of the messages of this subscription.
    pub progress: Arc<SharedProgress>,
}

/// The beginning of the log.
const EPOCH: &str = "0";

/// Selects the position that the store has under the name of the subscription; EPOCH when it has
/// none.
pub const MOST_RECENT: &str = "most_recent";

impl Client {
    /// Enters a subscription with the name `sub_id`. Its messages go to `queue`, or to a separate
    /// queue. With `is_kept`, the store keeps the position of a bookmark subscription under this
    /// name. With the bookmark [`MOST_RECENT`] it then continues where the last subscription of
    /// this name was. With `acknowledges`, a message of a queue is acknowledged when it is
    /// processed.
    ///
    /// # Errors
    /// See [`ClientCore::subscribe`] and [`BookmarkStore::keep`].
    pub fn subscribe(
        &self,
        mut spec: SubscriptionSpec,
        sub_id: &str,
        is_kept: bool,
        acknowledges: bool,
        queue: Option<Arc<Queue>>,
    ) -> Result<Subscribed, Failure> {
        let is_handled = queue.is_some();
        let queue = queue.unwrap_or_else(|| Arc::new(Queue::new(self.shared.room.clone())));
        let resumes = spec.bookmark.as_deref() == Some(MOST_RECENT);
        let mut writer = None;
        if is_kept && spec.bookmark.is_some() {
            let (its_writer, resume_position) = self.shared.bookmark_store.keep(sub_id, resumes)?;
            writer = Some(its_writer);
            spec.resume_position = resume_position;
        }
        if resumes {
            spec.bookmark = Some(EPOCH.to_owned());
        }
        let begins = spec.bookmark.is_some() && !resumes;
        let resume_position = spec.resume_position.clone().unwrap_or_default();
        let account = SubscriptionProgress::new(resume_position.ahead, acknowledges);
        let progress =
            SharedProgress::new(sub_id, account, resume_position.last, writer, self.shared.instances.clone());
        let mut inner = self.shared.inner.lock();
        let (number, command) = inner.core.subscribe(spec)?;
        if begins {
            inner.beginnings.insert(command, number);
        }
        let feed = Feed { is_handled, ..Feed::new(&queue, &progress) };
        inner.feeds.insert(number, feed);
        self.shared.wake(inner);
        Ok(Subscribed { number, command, queue, progress })
    }

    /// A queue that several subscriptions may share. It holds their messages in the order in which
    /// they arrived. It ends with the client.
    pub fn shared_queue(&self) -> Arc<Queue> {
        let queue = Arc::new(Queue::new(self.shared.room.clone()));
        let mut inner = self.shared.inner.lock();
        if inner.is_done {
            queue.close();
        }
        inner.shared_queues.retain(|other| other.strong_count() > 0);
        inner.shared_queues.push(Arc::downgrade(&queue));
        drop(inner);
        queue
    }

    /// Changes a subscription.
    ///
    /// # Errors
    /// See [`ClientCore::replace`].
    pub fn replace(&self, number: u32, spec: SubscriptionSpec) -> Result<CommandId, Failure> {
        let begins = spec.bookmark.is_some();
        let mut inner = self.shared.inner.lock();
        let command = inner.core.replace(number, spec)?;
        if begins {
            inner.beginnings.insert(command, number);
        }
        self.shared.wake(inner);
        Ok(command)
    }

    /// Ends a subscription. The messages in its queue can still be taken.
    ///
    /// # Errors
    /// See [`ClientCore::unsubscribe`].
    pub fn unsubscribe(&self, number: u32) -> Result<CommandId, Failure> {
        let mut inner = self.shared.inner.lock();
        let command = inner.core.unsubscribe(number)?;
        // Under the same lock: a full subscription stops the thread from reading, and the thread
        // has to read the answer.
        if let Some(feed) = inner.feeds.remove(&number) {
            feed.queue.end(number, None);
        }
        // Without a connection it is answered already, and the thread may sleep until the next
        // attempt.
        self.shared.dispatch(&mut inner);
        self.shared.wake(inner);
        Ok(command)
    }

    /// The program has dropped a subscription. Returns true when the subscription can end. False:
    /// the program has begun messages of a queue, so the subscription continues, without new
    /// messages.
    pub fn retire(&self, number: u32) -> bool {
        let mut inner = self.shared.inner.lock();
        if !inner.core.has_begun(number) {
            return true;
        }
        // Fails when the client or the subscription has ended.
        if let Ok(command) = inner.core.retire(number) {
            inner.abandoned.insert(command);
            self.shared.dispatch(&mut inner);
        }
        self.shared.wake(inner);
        false
    }

    /// Pauses or resumes bookmark subscriptions.
    ///
    /// # Errors
    /// See [`ClientCore::set_paused`].
    pub fn set_paused(&self, numbers: &[u32], paused: bool) -> Result<CommandId, Failure> {
        self.command(|core| core.set_paused(numbers, paused))
    }

    /// As [`Queue::take`], and the calling thread drives the connection while it waits.
    pub fn take(&self, queue: &Queue, number: u32, count_max: usize, timeout: Duration) -> Taken {
        let deadline = Instant::now() + timeout;
        loop {
            let taken = queue.take(number, count_max, Duration::ZERO);
            if !matches!(taken, Taken::Nothing) || Instant::now() >= deadline {
                return taken;
            }
            if queue.is_over(number) {
                // It may have ended after the check.
                return queue.take(number, count_max, Duration::ZERO);
            }
            let mut has_news = |_: &mut Inner| queue.has_news(number).then_some(());
            let wire = self.shared.take_wire(&mut self.shared.inner.lock());
            let news = wire.and_then(|wire| io::drive(&self.shared, wire, deadline, &mut has_news));
            if news.is_none() {
                let left = deadline.saturating_duration_since(Instant::now());
                return queue.take(number, count_max, left);
            }
        }
    }

    /// Call this after taking messages from a queue, so that subscriptions that wait for room
    /// continue.
    pub fn taken(&self, queue: &Queue) {
        if queue.is_awaited() {
            self.shared.wake(self.shared.inner.lock());
        }
    }

    /// No caller takes the answers to a query any more. The answers in its `queue` are dropped.
    pub fn forget_query(&self, number: u32, queue: &Queue) {
        let mut inner = self.shared.inner.lock();
        inner.core.forget_query(number);
        inner.feeds.remove(&number);
        queue.discard(number);
        self.shared.wake(inner);
    }

    /// The bookmark up to which a bookmark subscription has received its messages, or its last
    /// resume position.
    pub fn resume_position(&self, number: u32) -> Option<Bookmark> {
        self.shared.inner.lock().core.last_received(number)
    }

    /// See [`ClientCore::is_bookmark_missing`].
    pub fn is_bookmark_missing(&self, subscription: u32) -> bool {
        self.shared.inner.lock().core.is_bookmark_missing(subscription)
    }

    /// The most messages of queues that a subscription may have outstanding. 0 when it gets no
    /// messages of queues.
    pub fn granted_backlog(&self, subscription: u32) -> u32 {
        self.shared.inner.lock().core.granted_backlog(subscription)
    }

    /// The number of messages that each subscription missed because earlier ones were not taken in
    /// time. Subscriptions that missed none are left out.
    pub fn missed(&self) -> HashMap<u32, u64> {
        let inner = self.shared.inner.lock();
        let missed = inner.feeds.iter().map(|(number, feed)| (*number, feed.missed()));
        missed.filter(|(_, count)| *count > 0).collect()
    }

    /// When the client last received anything, and when each subscription last did.
    pub fn heard(&self) -> (Option<SystemTime>, HashMap<u32, SystemTime>) {
        let inner = self.shared.inner.lock();
        let heard = inner.feeds.iter().filter_map(|(number, feed)| Some((*number, feed.received_at?)));
        (inner.received_at, heard.collect())
    }
}

impl Feed {
    pub(super) fn new(queue: &Arc<Queue>, progress: &Arc<SharedProgress>) -> Self {
        Feed {
            queue: queue.clone(),
            progress: progress.clone(),
            received_at: None,
            is_handled: false,
            full: None,
            missed_count: 0,
        }
    }

    /// Messages that it missed because there was no room.
    pub(super) fn missed(&self) -> u64 {
        self.missed_count + if let Some(Full::Missing(count)) = self.full { count } else { 0 }
    }

    /// It has ended: the server ended it, or it had no room.
    pub(super) fn end(&self, number: u32, failure: Option<Failure>) {
        if self.is_handled
            && let Some(failure) = &failure
        {
            log::error!(
                target: "quire.client",
                quire_sub_id = &*self.progress.sub_id,
                quire_code = failure.code.name();
                "the subscription {:?} has ended: {failure}",
                self.progress.sub_id
            );
        }
        self.queue.end(number, failure);
    }
}
