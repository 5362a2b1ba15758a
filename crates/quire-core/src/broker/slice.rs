//! The share of a turn that one connection's commands get, and one kind of work gets.
//!
//! A turn must be short, whatever one peer sends: everybody else waits for its end. So the commands of a connection run for one slice
//! at a time; what is left of its bytes waits, and goes on in a later turn, in which all connections that wait so take turns within one
//! common budget. The passes over the log and over replays have budgets of their own, and go on in the next turn too.
//!
//! How long something took is told by the stopwatch that the driver lends ([`Broker::set_stopwatch`]). A broker without one has no budgets.

use std::collections::VecDeque;
use std::time::Duration;

use super::Broker;
use crate::session::{Phase, SessionId, Stall};
use crate::time::Instant;
use crate::wire::{Publish, PublishBatch};

/// The longest that the commands of one connection run before the next one's.
const SLICE: Duration = Duration::from_micros(500);

/// The longest that connections whose slice was over go on in one turn, all together.
const CONTINUATION: Duration = Duration::from_micros(500);

/// The longest that a pass over the log, or over the replays, takes in one turn. A pass ends between two of its steps.
pub(super) const PASS: Duration = Duration::from_millis(1);

/// Bytes of commands kept for a connection whose slice is over, above which it is not read from.
pub(super) const KEPT_SIZE_MAX: usize = 64 * 1024;

/// The clock is read after commands of this weight: reading it costs as much as a tenth of a publish.
pub(super) const WEIGHT_MAX: usize = 32;

/// The weight of a command that does more than append one message.
const HEAVY: usize = WEIGHT_MAX;

/// The weight of finding the subscriptions that are served at once with a publish; each of them adds one.
pub(super) const SERVED: usize = 2;

/// Bytes of data that weigh as much as a small publish.
const WEIGHED_SIZE: usize = 1024;

/// Effort of filters that weighs as much as a small publish.
pub(super) const WEIGHED_EFFORT: usize = 500;

/// What measures time within a turn.
pub type Stopwatch = Box<dyn FnMut() -> Instant + Send>;

/// The budgets of the turn under way.
pub(super) struct Slices {
    stopwatch: Option<Stopwatch>,
    ends_at: Instant,
    weight: usize,
    /// The connections whose slices were over before their bytes were, the one that waits longest first.
    waiting: VecDeque<SessionId>,
}

impl Slices {
    pub(super) fn new() -> Self {
        Slices { stopwatch: None, ends_at: Instant::default(), weight: 0, waiting: VecDeque::new() }
    }

    pub(super) fn set_stopwatch(&mut self, stopwatch: Stopwatch) {
        self.stopwatch = Some(stopwatch);
    }

    /// When something that may take `budget` from now on has to end; `None` = there is no budget.
    pub(super) fn deadline(&mut self, budget: Duration) -> Option<Instant> {
        self.stopwatch.as_mut().map(|stopwatch| stopwatch() + budget)
    }

    /// Whether it has to end.
    pub(super) fn is_past(&mut self, deadline: Option<Instant>) -> bool {
        match (&mut self.stopwatch, deadline) {
            (Some(stopwatch), Some(deadline)) => stopwatch() >= deadline,
            _ => false,
        }
    }

    fn begin(&mut self) {
        self.weight = 0;
        self.ends_at = self.deadline(SLICE).unwrap_or_default();
    }

    /// Whether the slice is over behind a command of this weight.
    fn is_over(&mut self, weight: usize) -> bool {
        self.weight += weight;
        if self.weight < WEIGHT_MAX {
            return false;
        }
        self.weight = 0;
        let ends_at = self.ends_at;
        self.is_past(Some(ends_at))
    }

    /// Adds to the weight of the command under way.
    pub(super) fn weigh(&mut self, weight: usize) {
        self.weight += weight;
    }

    /// Whether any connection waits to go on.
    pub(super) fn any_waits(&self) -> bool {
        !self.waiting.is_empty()
    }
}

/// The messages of a batch that a slice had no time for.
pub(crate) struct RestOfBatch {
    sequence: u64,
    expiration_s: Option<u32>,
    topic: Box<[u8]>,
    correlation_id: Box<[u8]>,
    items: Vec<u8>,
    /// Of the items, done.
    done_size: usize,
}

impl RestOfBatch {
    fn new(batch: &PublishBatch<'_>) -> Self {
        RestOfBatch {
            sequence: batch.head.sequence,
            expiration_s: batch.head.expiration_s,
            topic: batch.head.topic.into(),
            correlation_id: batch.head.correlation_id.into(),
            items: batch.items.bytes().to_vec(),
            done_size: 0,
        }
    }

    fn batch(&self) -> PublishBatch<'_> {
        let head = Publish {
            sequence: self.sequence,
            expiration_s: self.expiration_s,
            topic: &self.topic,
            correlation_id: &self.correlation_id,
            data: b"",
        };
        PublishBatch::of_checked(head, &self.items[self.done_size..])
    }

    /// Bytes that it holds.
    pub(crate) fn size(&self) -> usize {
        self.items.len()
    }
}

impl Broker {
    /// Lends the broker a clock that moves within a turn, so that one connection's work cannot make a turn long. Without one, a turn does all
    /// that it is asked for.
    pub fn set_stopwatch(&mut self, stopwatch: Stopwatch) {
        self.slices.set_stopwatch(stopwatch);
    }

    pub(super) fn begin_slice(&mut self) {
        self.slices.begin();
    }

    /// To be called behind each command but a publish: makes the connection wait for its next slice when this one is over.
    pub(super) fn end_of_command(&mut self, id: SessionId) {
        if self.slices.is_over(HEAVY) {
            self.wait_for_slice(id);
        }
    }

    /// The same behind a publish.
    pub(super) fn end_of_publish(&mut self, id: SessionId, size: usize) {
        if self.slices.is_over(1 + size / WEIGHED_SIZE) {
            self.wait_for_slice(id);
        }
    }

    fn wait_for_slice(&mut self, id: SessionId) {
        // What stalls it already ends later, with a slice of its own.
        if self.session(id).takes_commands() {
            self.stall(id, Stall::Waiting);
            self.slices.waiting.push_back(id);
        }
    }

    /// Publishes the messages of a batch, as many as there is time for; the session keeps the rest.
    pub(super) fn publish_batch(&mut self, id: SessionId, mut batch: PublishBatch<'_>) {
        self.publish_some(id, &mut batch);
        if !batch.is_empty() && self.session(id).phase == Phase::Open {
            self.session(id).batch = Some(Box::new(RestOfBatch::new(&batch)));
        }
    }

    /// Goes on with the batch that an earlier slice left; whether the session may take what comes after it.
    pub(super) fn continue_batch(&mut self, id: SessionId) -> bool {
        let Some(mut rest) = self.session(id).batch.take() else { return true };
        let mut batch = rest.batch();
        self.publish_some(id, &mut batch);
        let (sequence, left) = (batch.head.sequence, batch.items.bytes().len());
        if left > 0 && self.session(id).phase == Phase::Open {
            rest.sequence = sequence;
            rest.done_size = rest.items.len() - left;
            self.session(id).batch = Some(rest);
        }
        self.session(id).takes_commands()
    }

    /// Publishes messages of a batch until it is empty, or the session has to wait or has ended.
    fn publish_some(&mut self, id: SessionId, batch: &mut PublishBatch<'_>) {
        let Some(publisher) = self.begin_publish(id) else { return };
        while self.session(id).takes_commands()
            && let Some(publish) = batch.next_message()
        {
            self.publish(id, publisher, &publish);
            self.end_of_publish(id, publish.data.len());
        }
    }

    /// Goes on with connections that wait for their next slice, each in its turn, as long as the turn has time for them.
    pub(super) fn continue_waiting(&mut self) {
        let deadline = self.slices.deadline(CONTINUATION);
        while let Some(id) = self.slices.waiting.pop_front() {
            if self.sessions.get(id).is_some_and(|session| session.stall == Some(Stall::Waiting)) {
                self.end_stall(id);
                self.bury_closed();
            }
            if self.slices.is_past(deadline) {
                break;
            }
        }
        self.wants_turn |= self.slices.any_waits();
    }
}
