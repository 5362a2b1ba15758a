//! The commands of a client for messages of queues (`quire_client`).

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use quire_client::{Begun, CommandId, Failure, Lease, LossCause, LossCount, Message, QuerySpec};
use quire_command::{DefineQueue, LinkAction, Subject};
use quire_journal::Bookmark;
use quire_types::Verdict;
use quire_types::time::Instant;

use super::{Client, Feed, Queue, SharedProgress, Subscribed};

impl Client {
    /// The program is about to get a message. False: it must not see it; see
    /// [`quire_client::ClientCore::begin`].
    pub fn begin(&self, message: &Message) -> bool {
        let Some(lease) = message.lease() else { return true };
        let now = self.shared.now();
        let begun = lease.begin(now);
        if begun == Begun::Aged {
            let mut inner = self.shared.inner.lock();
            if inner.core.renew(lease, now) {
                self.shared.wake(inner);
            }
        }
        begun != Begun::No
    }

    /// See [`quire_client::ClientCore::take_unseen`].
    pub fn take_unseen(&self, number: u32) -> u64 {
        self.shared.inner.lock().core.take_unseen(number)
    }

    /// Gives a verdict on a message; see [`quire_client::ClientCore::settle`].
    ///
    /// # Errors
    /// As there.
    pub fn settle(&self, lease: &Arc<Lease>, verdict: Verdict) -> Result<(), Failure> {
        self.settle_because(lease, verdict, "")
    }

    /// As [`Client::settle`], with a reason; see [`quire_client::ClientCore::settle_because`].
    ///
    /// # Errors
    /// As there.
    pub fn settle_because(&self, lease: &Arc<Lease>, verdict: Verdict, reason: &str) -> Result<(), Failure> {
        let now = self.shared.now();
        let mut inner = self.shared.inner.lock();
        if inner.core.settle_because(lease, verdict, reason, now)? {
            self.shared.send(inner, true);
        }
        Ok(())
    }

    /// Acknowledges several messages, under one lock. Gives the number of those that the client
    /// refused, and the last reason.
    fn acknowledge_all(&self, leases: &[Arc<Lease>]) -> (usize, Option<Failure>) {
        let now = self.shared.now();
        let mut inner = self.shared.inner.lock();
        let (mut is_news, mut refused_count, mut reason) = (false, 0, None);
        for lease in leases {
            match inner.core.settle(lease, Verdict::Acknowledge, now) {
                Ok(is_new) => is_news |= is_new,
                Err(failure) => (refused_count, reason) = (refused_count + 1, Some(failure)),
            }
        }
        if is_news {
            self.shared.send(inner, true);
        }
        (refused_count, reason)
    }

    /// The program asks for the next message of a subscription: it has processed all that it was
    /// handed.
    ///
    /// # Errors
    /// The store could not keep that.
    pub fn processed_all(&self, progress: &SharedProgress) -> Result<(), Failure> {
        let (leases, kept) = progress.processed_all();
        if !leases.is_empty()
            && let (count, Some(failure)) = self.acknowledge_all(&leases)
        {
            // The iteration ends without an error when the program closes the client.
            let messages = if count == 1 { "message" } else { "messages" };
            log::warn!(
                target: "quire.client",
                "{count} {messages} of the subscription {:?} cannot be acknowledged: {failure}",
                progress.sub_id
            );
        }
        kept
    }

    /// The program has processed one message without a verdict. It is acknowledged if the
    /// subscription acknowledges.
    ///
    /// # Errors
    /// As [`Client::settle`], and when the store could not keep that.
    pub fn processed(
        &self,
        progress: &SharedProgress,
        message: &Message,
        ordinal: u64,
    ) -> Result<(), Failure> {
        let verdict = progress.acknowledges().then_some(Verdict::Acknowledge);
        self.settled(progress, message, ordinal, verdict, "")
    }

    /// The program has processed one message, with a verdict for its queue if it came from one, and
    /// the reason of a cancel or an expiry.
    ///
    /// # Errors
    /// As [`Client::settle_because`], and when the store could not keep that.
    pub fn settled(
        &self,
        progress: &SharedProgress,
        message: &Message,
        ordinal: u64,
        verdict: Option<Verdict>,
        reason: &str,
    ) -> Result<(), Failure> {
        if let (Some(lease), Some(verdict)) = (message.lease(), verdict) {
            self.settle_because(lease, verdict, reason)?;
        }
        progress.processed(ordinal)
    }

    /// Asks for longer leases; see [`quire_client::ClientCore::extend`].
    ///
    /// # Errors
    /// As there.
    pub fn extend(&self, leases: &[Arc<Lease>], period: Option<Duration>) -> Result<(), Failure> {
        let mut inner = self.shared.inner.lock();
        if inner.core.extend(leases, period, self.shared.now())? {
            self.shared.wake(inner);
        }
        Ok(())
    }

    /// See [`quire_client::ClientCore::settle_bookmarks`].
    ///
    /// # Errors
    /// As there.
    pub fn settle_bookmarks(
        &self,
        queue: &str,
        verdict: Verdict,
        bookmarks: &[Bookmark],
        reason: &str,
    ) -> Result<CommandId, Failure> {
        self.command(|core| core.settle_bookmarks(queue, verdict, bookmarks, reason))
    }

    /// See [`quire_client::ClientCore::settle_matching`].
    ///
    /// # Errors
    /// As there.
    pub fn settle_matching(
        &self,
        queue: &str,
        verdict: Verdict,
        filter: &str,
        reason: &str,
    ) -> Result<CommandId, Failure> {
        self.command(|core| core.settle_matching(queue, verdict, filter, reason))
    }

    /// Asks for records, or for the messages of a queue that could be delivered. The local queue
    /// ends after the last of them.
    ///
    /// # Errors
    /// See [`quire_client::ClientCore::query`].
    pub fn query(&self, spec: &QuerySpec) -> Result<Subscribed, Failure> {
        let queue = Arc::new(Queue::new(self.shared.room.clone()));
        let instances = self.shared.instances.clone();
        let progress = SharedProgress::new(
            &spec.topic,
            quire_client::SubscriptionProgress::default(),
            None,
            None,
            instances,
        );
        let mut inner = self.shared.inner.lock();
        let (number, command) = inner.core.query(spec)?;
        let feed = Feed::new(&queue, &progress);
        inner.feeds.insert(number, feed);
        self.shared.send(inner, false);
        Ok(Subscribed { number, command, queue, progress })
    }

    /// Asks for the figures of a queue, or of all. Take them with
    /// [`take_json_replies`](Self::take_json_replies) when the command is answered.
    ///
    /// # Errors
    /// See [`quire_client::ClientCore::queue_stats`].
    pub fn queue_stats(&self, queue: Option<&str>) -> Result<CommandId, Failure> {
        self.command(|core| core.queue_stats(queue))
    }

    /// Asks about the server; take the answer with [`take_json_replies`](Self::take_json_replies)
    /// when the command is answered.
    ///
    /// # Errors
    /// See [`quire_client::ClientCore::inspect`].
    pub fn inspect(&self, subject: Subject<'_>) -> Result<CommandId, Failure> {
        self.command(|core| core.inspect(subject))
    }

    /// Has the server create or drop a queue. Take the answer with
    /// [`take_json_replies`](Self::take_json_replies) when the command is answered.
    ///
    /// # Errors
    /// See [`quire_client::ClientCore::define_queue`].
    pub fn define_queue(&self, action: DefineQueue<'_>) -> Result<CommandId, Failure> {
        self.command(|core| core.define_queue(action))
    }

    /// Downgrades, upgrades, pauses or resumes the link of the server to a destination. Take the
    /// answer with [`take_json_replies`](Self::take_json_replies) when the command is answered.
    ///
    /// # Errors
    /// See [`quire_client::ClientCore::replicate`].
    pub fn replicate(&self, destination: &str, action: LinkAction) -> Result<CommandId, Failure> {
        self.command(|core| core.replicate(destination, action))
    }

    /// Messages that were settled, of which it is not known yet that this is durable.
    pub fn unconfirmed_count(&self) -> u64 {
        self.shared.inner.lock().core.unconfirmed_count()
    }

    /// Whether a lease is over, as far as this client knows.
    pub fn is_lost(&self, lease: &Lease) -> bool {
        lease.is_lost(self.shared.now())
    }

    /// An instant of the core on the wall's clock, as that clock stood when the client began.
    pub fn wall_time(&self, at: Instant) -> SystemTime {
        self.shared.started_at + Duration::from_nanos(at.as_ns())
    }
}

/// The log line about lost leases.
pub(super) fn text_of(client: &str, queue: &str, cause: LossCause, count: LossCount) -> String {
    let LossCount { begun, unbegun } = count;
    let leases = if begun + unbegun == 1 { "lease" } else { "leases" };
    let because = match cause {
        LossCause::Expired => "the lease period was over, and the messages are in the queue again",
        LossCause::MessageExpired => "the lease period was over, and the messages have expired",
        LossCause::Settled => "another client settled the messages",
        LossCause::Disconnected => "the connection was lost, and the messages are in the queue again",
        LossCause::Ended => "the server ended the subscription, and the messages are in the queue again",
    };
    format!(
        "client {client:?}: lost {} {leases} of the queue {queue:?} ({begun} of messages that the program had begun): {because}",
        begun + unbegun
    )
}
