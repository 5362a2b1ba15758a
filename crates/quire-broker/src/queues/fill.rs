//! Queues that are created with the recovery point `epoch`: they read the log from its first record
//! while the server runs.
//!
//! A reader thread reads one portion after the other, for one queue at a time. The messages of a
//! portion enter the queue when it has been read. A message that becomes persistent in the meantime
//! is left out, because the queue has not reached its position: a later portion has it. The last
//! portion ends at the position up to which the tail has served the log. Messages that the tail
//! serves while this portion is read are kept, and enter the queue after it. From then on the queue
//! takes messages from the tail.
//!
//! The settled position of the queue is at most the end of its portions, so no journal file is
//! removed that it has not read. A restart rebuilds the queue from the log, as any other queue.

use std::collections::BTreeMap;
use std::sync::Arc;

use quire_journal::{JournalError, Position, Reader, Timestamp};

use super::enter::received_at;
use super::jobs::LoggingOn;
use super::{Definition, QueueService};
use crate::Event;
use crate::context::Context;
use crate::failure::code_of;
use quire_command::Code;
use quire_expression::message_type::Arena;
use quire_queue::{QueueEntry, QueueId, Time};

/// Bytes of the log in one portion: some thousand messages of common size, which enter the queue in
/// a few milliseconds.
const PORTION_SIZE: usize = 1024 * 1024;

/// Messages that are kept while a portion is read, 4 MB of them. With more, the next portion reads
/// them from the log.
const NEWER_COUNT_MAX: usize = 64 * 1024;

/// The queues that are reading the log.
#[derive(Default)]
pub(super) struct Fills(BTreeMap<QueueId, Fill>);

struct Fill {
    /// The queue has the messages up to here.
    read_to: Position,
    state: FillState,
}

enum FillState {
    /// The definition of the queue is not on stable storage yet.
    Waiting,
    Idle,
    /// A portion is being read.
    UnderWay {
        /// The portion ends here at the latest.
        limit: Position,
        /// The messages after `limit` that became persistent since then; `None`: they are too many.
        newer: Option<Vec<(Position, QueueEntry)>>,
    },
    /// The queue was dropped, and a portion is being read.
    Dropped,
    /// The next record cannot be read.
    Blocked,
}

/// A portion to read.
pub(crate) struct FillJob {
    reader: Reader,
    after: Position,
    limit: Position,
    definition: Arc<Definition>,
    /// Both clocks: the ages of messages are measured by the wall clock.
    now: Time,
    wall: Timestamp,
}

/// A portion that was read.
pub(crate) struct Portion {
    entries: Vec<(Position, QueueEntry)>,
    read_to: Position,
}

impl FillJob {
    pub fn run(self, mut arena: Arena) -> Result<Portion, JournalError> {
        let FillJob { reader, after, limit, definition, now, wall } = self;
        let (mut entries, mut size) = (Vec::new(), 0);
        let wanted = [definition.clone()];
        let mut cursor = reader.cursor(after).sparingly();
        loop {
            cursor.set_read_step(PORTION_SIZE - size);
            let Some(batch) = cursor.next(limit, &LoggingOn(&wanted))? else {
                return Ok(Portion { entries, read_to: limit });
            };
            size += batch.size();
            let is_new = |position: Position| after < position && position <= limit;
            for record in batch.records().filter(|record| is_new(record.position)) {
                let received = received_at(&record, now, wall);
                if definition.takes(&record)
                    && let Some(entry) = definition.entry_of(&record, received, wall, &mut arena)
                {
                    entries.push((record.position, entry));
                }
            }
            if size >= PORTION_SIZE {
                return Ok(Portion { entries, read_to: batch.last().min(limit) });
            }
        }
    }
}

impl Fills {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A queue is to read the log from its first record, when [`start`](Self::start) is called.
    pub fn add(&mut self, queue: QueueId) {
        self.0.insert(queue, Fill { read_to: Position::ZERO, state: FillState::Waiting });
    }

    /// The definition of the queue is on stable storage.
    pub fn start(&mut self, queue: QueueId) {
        if let Some(fill) = self.0.get_mut(&queue) {
            fill.state = FillState::Idle;
        }
    }

    /// The queue was dropped.
    pub fn forget(&mut self, queue: QueueId) {
        let Some(fill) = self.0.get_mut(&queue) else { return };
        match fill.state {
            FillState::UnderWay { .. } => fill.state = FillState::Dropped,
            FillState::Waiting | FillState::Idle | FillState::Dropped | FillState::Blocked => {
                drop(self.0.remove(&queue))
            }
        }
    }

    /// The position up to which the queue has read the log; `None`: it takes messages from the
    /// tail.
    pub fn read_to(&self, queue: QueueId) -> Option<Position> {
        self.0.get(&queue).map(|fill| fill.read_to)
    }

    /// The tail has a message for a queue. Whether the queue does not take it yet.
    pub fn holds(&mut self, queue: QueueId, position: Position, entry: QueueEntry) -> bool {
        let Some(fill) = self.0.get_mut(&queue) else { return false };
        if let FillState::UnderWay { newer, .. } = &mut fill.state {
            match newer {
                Some(all) if all.len() < NEWER_COUNT_MAX => all.push((position, entry)),
                _ => *newer = None,
            }
        }
        true
    }

    fn next(&self) -> Option<(QueueId, Position)> {
        let is_reading = |fill: &Fill| matches!(fill.state, FillState::UnderWay { .. } | FillState::Dropped);
        if self.0.values().any(is_reading) {
            return None;
        }
        let idle = self.0.iter().find(|(_, fill)| matches!(fill.state, FillState::Idle));
        idle.map(|(queue, fill)| (*queue, fill.read_to))
    }
}

impl QueueService {
    /// Has the next portion read, when no other one is being read.
    pub(super) fn fill(&mut self, cx: &mut Context) {
        let Some((queue, after)) = self.fills.next() else { return };
        let limit = cx.log.served;
        let job = FillJob {
            reader: cx.log.reader.clone(),
            after,
            limit,
            definition: self.definition(queue).clone(),
            now: self.moving_time(cx.clock.now),
            wall: cx.clock.now.wall,
        };
        if let Some(fill) = self.fills.0.get_mut(&queue) {
            fill.state = FillState::UnderWay { limit, newer: Some(Vec::new()) };
        }
        cx.begin_job(
            move |arena| job.run(arena),
            move |queues: &mut QueueService, cx, _, found| queues.filled(cx, queue, found),
        );
    }

    /// A portion was read; `None`: not, by a bug of ours.
    fn filled(&mut self, cx: &mut Context, queue: QueueId, found: Option<Result<Portion, JournalError>>) {
        let QueueService { engine, fills, .. } = self;
        let Some(fill) = fills.0.get_mut(&queue) else { return };
        cx.clock.wants_turn = true;
        let FillState::UnderWay { limit, newer } = std::mem::replace(&mut fill.state, FillState::Blocked)
        else {
            fills.0.remove(&queue);
            return;
        };
        let (code, reason) = match found {
            Some(Ok(Portion { entries, read_to })) => {
                for (position, entry) in entries {
                    engine.enqueue(queue, position, entry);
                }
                (fill.read_to, fill.state) = (read_to, FillState::Idle);
                if read_to >= limit
                    && let Some(newer) = newer
                {
                    for (position, entry) in newer {
                        engine.enqueue(queue, position, entry);
                    }
                    fills.0.remove(&queue);
                }
                return self.save_later(cx);
            }
            Some(Err(error)) => (code_of(&error), error.to_string()),
            None => (Code::Internal, "it could not be read".to_owned()),
        };
        // The queue does not change, because the messages after the damage must not overtake the
        // damaged one.
        let position = fill.read_to.get() + 1;
        cx.note(Event::QueueMessageUnreadable { position, code, reason });
    }
}
