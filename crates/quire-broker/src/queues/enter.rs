//! From the log to the engine: the records that enter the queues, and the properties of a message
//! that the engine keeps.

use quire_journal::{Batch, JournalError, Position, Record, RecordKind, Timestamp};

use super::QueueService;
use crate::context::Context;
use crate::tail::{Consumed, LogConsumer};
use crate::topic::TopicId;

use quire_queue::Time;

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
        let now = self.moving_time(cx.clock.now);
        let received = received_at(record, now, cx.clock.now.wall);
        for queue in queues {
            let QueueService { engine, all, arena, fills, .. } = self;
            let definition = &all[queue.get() as usize];
            if let Some(entry) = definition.entry_of(record, received, cx.clock.now.wall, arena)
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

    /// Queues have no replay. A message that they cannot take here enters them at the next start,
    /// and no more is taken until then.
    fn on_unreadable(&mut self, cx: &mut Context, _: Position, error: &JournalError) {
        if self.any() {
            cx.fail(error);
        }
    }

    /// Journal files from this position on are kept. In this process the cursor of the service
    /// keeps them, in another process `queues.ack` does.
    fn needed_from(&self, _: &Context) -> Option<Position> {
        let saved = self.saving.saved.iter().flatten().flatten();
        let left_out = self.left_out.kept().map(|point| &point.settled);
        saved.chain(left_out).min().map(|settled| settled.next())
    }
}

/// When a message was received, on the engine's clock: its age is measured by the wall clock.
pub(super) fn received_at(record: &Record<'_>, now: Time, wall: Timestamp) -> Time {
    let age = wall.as_ns().saturating_sub(record.received().as_ns());
    Time::new(now.get().saturating_sub(age))
}
