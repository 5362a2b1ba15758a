//! From the log to the engine: the records that enter the queues, and the properties of a message that the engine keeps.

use quire_journal::{Batch, JournalError, Position, Record, RecordKind, Timestamp};

use super::{Definition, QueueService};
use crate::context::Context;
use crate::tail::{Consumed, LogConsumer};
use crate::topic::TopicId;
use quire_expression::message_type::Arena;
use quire_queue::{Entry, Time};
use quire_scan::context_of;

impl LogConsumer for QueueService {
    fn is_following(&self, _: &Context) -> bool {
        self.any()
    }

    /// A persisted message enters the queues over its topic.
    fn on_record(&mut self, cx: &mut Context, topic: TopicId, record: &Record<'_>) -> Consumed {
        let queues = &cx.topics.topic(topic).queues;
        if record.kind != RecordKind::Publish || queues.is_empty() {
            return Consumed::default();
        }
        let now = self.time(cx.now);
        let received = received_at(record, now, cx.now.wall);
        for queue in queues {
            let QueueService { engine, all, arena, fills, .. } = self;
            let definition = &all[queue.get() as usize];
            if let Some(entry) = definition.entry_of(record, received, cx.now.wall, arena)
                && (fills.is_empty() || !fills.holds(*queue, record.position, entry))
            {
                engine.enqueue(*queue, record.position, entry);
            }
        }
        Consumed::default()
    }

    /// Keeps the records that were just written, so that deliveries do not read them from the disk.
    fn on_batch(&mut self, batch: &Batch) {
        if self.any() {
            self.recent.add(batch.clone(), None);
        }
    }

    /// Queues have no replay. A message that they cannot take here enters them at the next start, and no more is taken until then.
    fn on_unreadable(&mut self, cx: &mut Context, _: Position, error: &JournalError) {
        if self.any() {
            cx.fail(error);
        }
    }

    /// Journal files from this position on are kept. In this process the cursor of the service keeps them, in another process
    /// `queues.ack` does.
    fn needed_from(&self, _: &Context) -> Option<Position> {
        let saved = self.saving.saved.iter().flatten().flatten();
        let left_out = self.left_out.absent().iter().map(|point| &point.settled);
        saved.chain(left_out).min().map(|settled| settled.next())
    }
}

impl Definition {
    /// Whether the record is a message of the queue, its filter apart.
    pub fn takes(&self, record: &Record<'_>) -> bool {
        record.kind == RecordKind::Publish
            && record.message_type == self.message_type.code()
            && self.selector.matches(record.topic)
    }

    /// The properties of a message that the engine keeps; `None` when the queue's filter keeps it out.
    pub fn entry_of(
        &self,
        record: &Record<'_>,
        received: Time,
        wall: Timestamp,
        arena: &mut Arena,
    ) -> Option<Entry> {
        let delayed_until = record.not_before().map(|end| {
            // On the clock of the engine, for which it is `now`.
            let now = received.get() + wall.as_ns().saturating_sub(record.received().as_ns());
            Time::new(now.saturating_add(end.as_ns()).saturating_sub(wall.as_ns()))
        });
        let mut entry =
            Entry { received, expiration_s: record.expiration_s, delayed_until, ..Entry::default() };
        if self.filter.is_none() && self.priority.is_none() && self.barrier.is_none() {
            return Some(entry);
        }
        let message = context_of(record, wall)?;
        if self.filter.as_ref().is_some_and(|filter| !filter.matches_with(&message, arena)) {
            return None;
        }
        entry.priority = self.priority.as_ref().and_then(|priority| priority.of(&message, arena));
        entry.barrier = self.barrier.as_ref().is_some_and(|barrier| barrier.matches_with(&message, arena));
        Some(entry)
    }
}

/// When a message was received, on the engine's clock: its age is measured by the wall clock.
pub(super) fn received_at(record: &Record<'_>, now: Time, wall: Timestamp) -> Time {
    let age = wall.as_ns().saturating_sub(record.received().as_ns());
    Time::new(now.get().saturating_sub(age))
}
