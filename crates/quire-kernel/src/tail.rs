//! The live tail: hands every record that has become persisted to the consumers of the log, in
//! order.
//!
//! A consumer is a part of the broker that follows the log: queues and bookmark subscriptions, each
//! with its own state. It gets every persisted record once. It reports the first position that it
//! still needs, so that a journal file that it must read again is not removed. To add one,
//! implement [`LogConsumer`] and name it in the macro `consumers` of `broker/mod.rs`.

use quire_journal::{Batch, Cursor, JournalError, Position, Record, TopicFilter};

use super::context::Context;
use super::slice::{PASS, WEIGHT_MAX};
use crate::topic::TopicId;
use quire_types::time::Instant;

/// Bytes of records that are handed to consumers in one turn. With more bytes, connections would
/// wait too long.
const SIZE_MAX: usize = 4 * 1024 * 1024;

/// The result of handing a record to a consumer.
#[derive(Clone, Copy, Debug, Default)]
pub struct Consumed {
    /// The weight of the work, in the units of [`super::slice`].
    pub weight: usize,
    /// The consumer has work after this record, before the next one.
    pub has_reached: bool,
}

/// A part of the broker that follows the log.
pub trait LogConsumer {
    /// Whether it needs records now. Records that no consumer needs are not read.
    fn is_following(&self, cx: &Context) -> bool;

    /// There are records that no consumer has received yet.
    fn on_news(&mut self) {}

    /// The nearest position above [`Log::served`](super::context::Log::served) after which it has
    /// work.
    fn next_stop(&self, _cx: &Context) -> Option<Position> {
        None
    }

    /// Takes the record after [`Log::served`](super::context::Log::served).
    fn on_record(&mut self, cx: &mut Context, topic: TopicId, record: &Record<'_>) -> Consumed;

    /// [`Log::served`](super::context::Log::served) has stopped, or has reached the end of what is
    /// delivered in this turn.
    fn on_reached(&mut self, _cx: &mut Context) {}

    /// The records of this batch were handed to the consumers.
    fn on_batch(&mut self, _batch: &Batch) {}

    /// The records between [`Log::served`](super::context::Log::served) and `limit` cannot be read,
    /// and are skipped.
    fn on_unreadable(&mut self, cx: &mut Context, limit: Position, error: &JournalError);

    /// All persisted records were handed to the consumers. A turn that has no time for more records
    /// ends without this call.
    fn on_end_of_turn(&mut self, _cx: &mut Context) {}

    /// The first position of the log that the consumer needs, also after a crash now; `None` when
    /// it needs no record.
    fn needed_from(&self, cx: &Context) -> Option<Position>;
}

/// Where the tail continues to read.
#[derive(Default)]
pub struct Tail {
    /// `Some` while a service follows the log.
    cursor: Option<Cursor>,
}

impl Tail {
    /// Hands the records that became persistent since the last turn to the consumers, up to the
    /// budget of one turn.
    pub fn advance(&mut self, cx: &mut Context, consumers: &mut [&mut dyn LogConsumer]) {
        let persisted = cx.log.visible();
        if cx.log.served < persisted {
            consumers.iter_mut().for_each(|consumer| consumer.on_news());
        }
        let mut size_left = SIZE_MAX;
        let deadline = cx.clock.slices.deadline(PASS);
        while cx.log.served < persisted {
            if !consumers.iter().any(|consumer| consumer.is_following(cx)) {
                cx.log.served = persisted;
                self.cursor = None;
                break;
            }
            if size_left == 0 {
                cx.clock.wants_turn = true;
                return;
            }
            // It stops where a consumer has work, so that this work is done between the right two
            // messages.
            let stops = consumers.iter().filter_map(|consumer| consumer.next_stop(cx));
            let limit = stops.fold(persisted, Position::min);
            self.advance_to(cx, consumers, limit, &mut size_left, deadline);
            consumers.iter_mut().for_each(|consumer| consumer.on_reached(cx));
        }
        for consumer in consumers {
            consumer.on_reached(cx);
            consumer.on_end_of_turn(cx);
        }
    }

    fn advance_to(
        &mut self,
        cx: &mut Context,
        consumers: &mut [&mut dyn LogConsumer],
        limit: Position,
        size_left: &mut usize,
        deadline: Option<Instant>,
    ) {
        let cursor = self.cursor.take();
        let mut cursor = cursor.unwrap_or_else(|| cx.log.reader.cursor(cx.log.served));
        let mut last_topic: Option<(TopicId, u64, String)> = None;
        let mut weight = 0;
        'pass: while cx.log.served < limit && *size_left > 0 {
            let batch = match cursor.next(limit, &Everything) {
                Ok(Some(batch)) => batch,
                Ok(None) => {
                    cx.log.served = limit;
                    break;
                }
                Err(error) => {
                    consumers.iter_mut().for_each(|consumer| consumer.on_unreadable(cx, limit, &error));
                    cx.log.served = limit;
                    return;
                }
            };
            for record in batch.records() {
                if record.position <= cx.log.served {
                    continue;
                }
                let generation = cx.topics.generation();
                let topic = match &last_topic {
                    Some((topic, known_in, name)) if name == record.topic && *known_in == generation => {
                        *topic
                    }
                    _ => {
                        let topic = cx.topics.intern(record.topic);
                        last_topic = Some((topic, cx.topics.generation(), record.topic.to_owned()));
                        topic
                    }
                };
                let mut has_reached = false;
                for consumer in &mut *consumers {
                    let consumed = consumer.on_record(cx, topic, &record);
                    weight += consumed.weight;
                    has_reached |= consumed.has_reached;
                }
                cx.log.served = record.position;
                if has_reached {
                    consumers.iter_mut().for_each(|consumer| consumer.on_reached(cx));
                }
                if weight >= WEIGHT_MAX {
                    weight = 0;
                    if cx.clock.slices.is_past(deadline) {
                        consumers.iter_mut().for_each(|consumer| consumer.on_batch(&batch));
                        cursor.rest_at(cx.log.served);
                        *size_left = 0;
                        break 'pass;
                    }
                }
            }
            consumers.iter_mut().for_each(|consumer| consumer.on_batch(&batch));
            *size_left = size_left.saturating_sub(batch.size());
            if cx.clock.slices.is_past(deadline) {
                *size_left = 0;
            }
        }
        self.cursor = Some(cursor);
    }
}

/// The tail reads every record.
struct Everything;

impl TopicFilter for Everything {
    fn wants(&self, _: &str) -> bool {
        true
    }
}
