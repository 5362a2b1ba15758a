//! The limit of received messages that were not taken yet (`receive_size_max`), and the effect on a
//! subscription that exceeds its share.
//!
//! The client continues to read, so that messages that are not taken do not delay acknowledgements.
//! docs/clients.md, "Bounds", describes the effect on each kind of subscription.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use quire_client::{ClientCore, Failure, Message};
use quire_command::{Code, SubscribeOptions};

use super::{Inner, Shared};

/// The received messages of one client. All its queues share the limit.
#[derive(Debug)]
pub(super) struct Room {
    /// Bytes of messages in all queues.
    size: AtomicUsize,
    size_max: usize,
    /// Queues that are not empty.
    holder_count: AtomicUsize,
}

/// How a subscription that has exceeded its share is stopped.
#[derive(Debug)]
pub(super) enum Full {
    /// A replay: the server keeps them back.
    Held,
    /// An ordinary subscription misses the messages that arrive meanwhile. The number counts them.
    Missing(u64),
    /// Messages from queues and changes of records are neither held by the server nor missed.
    /// Instead the socket is not read.
    Unread,
}

impl Room {
    pub fn new(size_max: usize) -> Self {
        Room { size: AtomicUsize::new(0), size_max, holder_count: AtomicUsize::new(0) }
    }

    /// The size of a queue has changed from `before` to `after` bytes.
    pub fn changed(&self, before: usize, after: usize) {
        if after >= before {
            self.size.fetch_add(after - before, Ordering::AcqRel);
        } else {
            self.size.fetch_sub(before - after, Ordering::AcqRel);
        }
        match (before, after) {
            (0, 1..) => self.holder_count.fetch_add(1, Ordering::AcqRel),
            (1.., 0) => self.holder_count.fetch_sub(1, Ordering::AcqRel),
            _ => 0,
        };
    }

    pub fn size(&self) -> usize {
        self.size.load(Ordering::Acquire)
    }

    /// Whether all queues together exceed the limit, and a queue of this size has more than its
    /// share.
    pub fn is_over_share(&self, queue_size: usize) -> bool {
        self.size() > self.size_max && queue_size >= self.share()
    }

    /// Whether a queue that was full may continue: at half of its share, so that it does not stop
    /// and continue with every message.
    pub fn is_under_half(&self, queue_size: usize) -> bool {
        queue_size <= self.share() / 2
    }

    fn share(&self) -> usize {
        self.size_max / self.holder_count.load(Ordering::Acquire).max(1)
    }
}

impl Inner {
    /// Messages have arrived for a subscription.
    pub(super) fn deliver(&mut self, number: u32, messages: Vec<Message>) {
        let Some(feed) = self.feeds.get_mut(&number) else { return };
        feed.received_at = self.received_at;
        if let Some(Full::Missing(count)) = &mut feed.full {
            *count += messages.len() as u64;
            return;
        }
        let is_from_queue = messages.first().is_some_and(|message| message.lease().is_some());
        feed.queue.push(messages);
        if feed.full.is_some() || !feed.queue.is_over_share() {
            return;
        }
        match kind_of(&self.core, number, is_from_queue) {
            Kind::Replay => return self.hold(number),
            Kind::Ordinary => feed.full = Some(Full::Missing(0)),
            Kind::FromQueue => feed.full = Some(Full::Unread),
            Kind::Live => return self.cut_off(number),
        }
        feed.queue.set_full(true);
        self.full.push(number);
    }

    /// Lets subscriptions continue for which there is room again. Returns whether the socket may be
    /// read.
    pub(super) fn make_room(&mut self) -> bool {
        let Inner { core, feeds, full, abandoned, .. } = self;
        let mut continued = Vec::new();
        full.retain(|number| {
            let Some(feed) = feeds.get_mut(number) else { return false };
            if !feed.queue.has_room() {
                return true;
            }
            feed.queue.set_full(false);
            match feed.full.take() {
                Some(Full::Held) => continued.push(*number),
                Some(Full::Missing(count)) if count > 0 => {
                    feed.missed_count += count;
                    log::warn!(
                        target: "quire.client",
                        quire_client = core.name(),
                        quire_sub_id = &*feed.progress.sub_id,
                        quire_missed = count;
                        "the subscription {:?} missed {count} messages: those before them were not taken in time",
                        feed.progress.sub_id
                    );
                }
                _ => (),
            }
            false
        });
        abandoned.extend(core.set_held(&continued, false));
        !full
            .iter()
            .any(|number| matches!(feeds.get(number).map(|feed| &feed.full), Some(Some(Full::Unread))))
    }

    /// Asks the server to hold the messages of a subscription, and of those that share its replay
    /// and its queue: their messages stay in the order of the log. A subscription with a separate
    /// queue is not held for another one, because the program may wait for its messages first. The
    /// answer is not used.
    fn hold(&mut self, number: u32) {
        let Some(queue) = self.feeds.get(&number).map(|feed| feed.queue.clone()) else { return };
        let mut held = self.core.companions(number);
        held.retain(|other| {
            let feed = self.feeds.get_mut(other).filter(|feed| Arc::ptr_eq(&feed.queue, &queue));
            feed.is_some_and(|feed| {
                let is_new = feed.full.is_none();
                feed.full.get_or_insert(Full::Held);
                is_new
            })
        });
        queue.set_full(true);
        self.abandoned.extend(self.core.set_held(&held, true));
        self.full.extend(held);
    }

    /// Whether [`Inner::make_room`] has something to do.
    pub(super) fn has_new_room(&self) -> bool {
        let has_room = |number| self.feeds.get(number).is_none_or(|feed| feed.queue.has_room());
        self.full.iter().any(has_room)
    }

    /// A live subscription cannot be held by the server and cannot have a gap, so it ends.
    fn cut_off(&mut self, number: u32) {
        let Some(feed) = self.feeds.remove(&number) else { return };
        let reason = "its messages were not taken as fast as they came, and a live subscription cannot wait: \
                      subscribe again behind the last message";
        feed.end(number, Some(Failure::new(Code::SlowConsumer, reason)));
        // Fails only when the client is closed, which ends it, too.
        if let Ok(command) = self.core.unsubscribe(number) {
            self.abandoned.insert(command);
        }
    }
}

impl Shared {
    /// Whether the socket is read now. While a flush or a receipt waits, the limit is doubled. When
    /// that limit is reached, too, the flush fails.
    pub(super) fn is_reading(&self, inner: &mut Inner) -> bool {
        if inner.make_room() {
            return true;
        }
        inner.core.handle_unread(self.now());
        if !inner.core.awaits_flush() && !inner.core.awaits_receipt() {
            return false;
        }
        if self.room.size() / 2 < self.room.size_max {
            return true;
        }
        inner.core.stall_flushes(self.room.size());
        false
    }
}

enum Kind {
    Replay,
    Live,
    Ordinary,
    FromQueue,
}

fn kind_of(core: &ClientCore, number: u32, is_from_queue: bool) -> Kind {
    match core.subscription(number) {
        Some(spec) if spec.bookmark.is_some() => {
            if spec.options.has(SubscribeOptions::LIVE) {
                Kind::Live
            } else {
                Kind::Replay
            }
        }
        Some(spec) if !is_from_queue && spec.records.is_none() => Kind::Ordinary,
        _ => Kind::FromQueue,
    }
}
