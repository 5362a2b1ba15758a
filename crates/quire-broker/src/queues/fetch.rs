//! Messages of the log in memory: batches that were just written or fetched, and reading the ones
//! that are missing.
//!
//! Queues with a target depth also read here: they hold few messages, and the rest when there is
//! room.

use std::collections::{BTreeMap, VecDeque};

use quire_journal::{Batch, JournalError, Position, Record};

use super::jobs::{FETCH_SIZE_AHEAD, FETCH_SIZE_ALONE, Fetched, Refill, fetch};
use super::{QueueService, Refilling};
use crate::Event;
use crate::context::Context;
use crate::failure::code_of;
use quire_command::Code;
use quire_queue::{QueueEntry, QueueId};

/// Fetches under way at a time. With 1 MiB each they take no more memory than recent messages do.
const FETCHES_MAX: usize = 16;

/// A fetch that begins at most this many records before a message may include it. Another begins
/// only when that one is done.
const FETCH_REACH: u64 = 2048;

/// The most messages of one read: enough to keep consumers busy until the next.
const REFILL_COUNT_MAX: u64 = 64 * 1024;

/// Bytes of memory for batches of the log: twice the data of all possible fetches, and several
/// times the data that leaves a broker in a turn.
const RECENT_SIZE_MAX: usize = 32 * 1024 * 1024;

/// Bytes that a batch takes besides its records: its header, its entry here and its allocations, as
/// the allocator rounds them up. A publish that is written alone is one batch.
const BATCH_OVERHEAD: usize = 384;

/// Batches of the log in memory, each checked when it was read, with the offsets of its records.
#[derive(Default)]
pub(super) struct Recent {
    /// By the first position.
    batches: BTreeMap<u64, RecentBatch>,
    /// In the order in which they came, oldest first.
    order: VecDeque<u64>,
    size: usize,
}

struct RecentBatch {
    batch: Batch,
    offsets: Box<[u32]>,
    /// When a message of this batch is read, the fetch after this position begins: it is the end of
    /// the fetch that brought the batch.
    ahead: Option<Position>,
}

impl RecentBatch {
    fn size(&self) -> usize {
        self.batch.size() + size_of_val(&*self.offsets) + BATCH_OVERHEAD
    }
}

impl Recent {
    /// Adds a batch. The oldest ones make room for it.
    pub fn add(&mut self, batch: Batch, ahead: Option<Position>) {
        let first = batch.first().get();
        let offsets = batch.offsets().into();
        let batch = RecentBatch { batch, offsets, ahead };
        self.size += batch.size();
        match self.batches.insert(first, batch) {
            Some(before) => self.size -= before.size(),
            None => self.order.push_back(first),
        }
        while self.size > RECENT_SIZE_MAX && self.order.len() > 1 {
            let Some(oldest) = self.order.pop_front() else { break };
            if let Some(batch) = self.batches.remove(&oldest) {
                self.size -= batch.size();
            }
        }
    }

    /// The record at a position, if it is in memory.
    pub fn get(&self, position: Position) -> Option<Record<'_>> {
        let (first, recent) = self.batches.range(..=position.get()).next_back()?;
        let offset = recent.offsets.get((position.get() - first) as usize)?;
        recent.batch.record_at(*offset, position)
    }

    /// Whether the record at a position is in memory.
    pub fn has(&self, position: Position) -> bool {
        self.batches
            .range(..=position.get())
            .next_back()
            .is_some_and(|(_, recent)| position <= recent.batch.last())
    }

    /// The position after which to fetch next, when the record at a position is the sign for it. It
    /// is given once.
    pub fn take_ahead(&mut self, position: Position) -> Option<Position> {
        let (_, recent) = self.batches.range_mut(..=position.get()).next_back()?;
        recent.ahead.take()
    }

    /// As [`Recent::get`], with the position after which to fetch next, when the record is the sign
    /// for it. That position is given once.
    pub fn read(&mut self, position: Position) -> Option<(Record<'_>, Option<Position>)> {
        let (first, recent) = self.batches.range_mut(..=position.get()).next_back()?;
        let offset = recent.offsets.get((position.get() - first) as usize)?;
        let record = recent.batch.record_at(*offset, position)?;
        Some((record, recent.ahead.take()))
    }
}

impl QueueService {
    /// Begins a fetch for each of these messages.
    pub(super) fn fetch_missing(&mut self, cx: &mut Context, mut missing: Vec<Position>) {
        missing.sort_unstable();
        missing.dedup();
        for position in missing {
            self.fetch(cx, position, false);
        }
    }

    /// Begins a fetch from a position on, unless a fetch that includes it is in progress, or
    /// [`FETCHES_MAX`] are.
    pub(super) fn fetch(&mut self, cx: &mut Context, from: Position, is_ahead: bool) {
        let comes = |begin: &Position| (begin.get()..begin.get() + FETCH_REACH).contains(&from.get());
        if from > cx.log.served || self.fetching.len() >= FETCHES_MAX || self.fetching.iter().any(comes) {
            return;
        }
        self.fetching.push(from);
        let definitions: Vec<_> = self.live().map(|(_, definition)| definition.clone()).collect();
        let size = if is_ahead { FETCH_SIZE_AHEAD } else { FETCH_SIZE_ALONE };
        let (reader, limit) = (cx.log.reader.clone(), cx.log.served);
        cx.begin_job(
            move |_| fetch(&reader, from, limit, size, &definitions),
            move |queues: &mut QueueService, cx, _, fetched| {
                queues.fetched(cx, from, is_ahead, fetched.unwrap_or_default());
            },
        );
    }

    /// A fetch is done. If it does not contain the message that it was begun for, that message
    /// cannot be read.
    fn fetched(&mut self, cx: &mut Context, from: Position, is_ahead: bool, fetched: Fetched) {
        self.fetching.retain(|begin| *begin != from);
        let Fetched { batches, is_full, error } = fetched;
        let count = batches.len();
        let last = batches.last().map(|batch| batch.last());
        for (index, batch) in batches.into_iter().enumerate() {
            let ahead = last.filter(|_| is_full && index == count / 2);
            self.recent.add(batch, ahead);
        }
        // The data that was read ahead may begin with a message that is not in a queue. Such a
        // message is not fetched.
        if !is_ahead && !self.recent.has(from) {
            let (code, reason) = match error {
                Some(error) => (code_of(&error), error.to_string()),
                None => (Code::Internal, "it is not in the journal".to_owned()),
            };
            let event = Event::QueueMessageUnreadable { position: from.get(), code, reason };
            cx.note(event);
            self.unreadable.insert(from);
        }
        self.engine.retry();
    }

    /// Reads on for every queue below its target that has more.
    pub(super) fn refill(&mut self, cx: &mut Context) {
        let idle = self.refilling.iter().filter(|(_, state)| **state == Refilling::Idle);
        let wanted = |queue: &QueueId| Some((*queue, self.engine.wanted(*queue)?));
        let wanted: Vec<_> = idle.filter_map(|(queue, _)| wanted(queue)).collect();
        for (queue, (after, count)) in wanted {
            let refill = Refill {
                reader: cx.log.reader.clone(),
                after,
                count: count.min(REFILL_COUNT_MAX),
                limit: cx.log.served,
                definition: self.definition(queue).clone(),
                now: self.moving_time(cx.clock.now),
                wall: cx.clock.now.wall,
            };
            self.refilling.insert(queue, Refilling::UnderWay);
            cx.begin_job(
                move |arena| refill.run(arena),
                move |queues: &mut QueueService, cx, _, found| queues.refilled(cx, queue, found),
            );
        }
    }

    /// The next messages of a queue with a target depth were read.
    fn refilled(
        &mut self,
        cx: &mut Context,
        queue: QueueId,
        found: Option<Result<Vec<(Position, QueueEntry)>, JournalError>>,
    ) {
        let error = match found {
            Some(Ok(entries)) if !entries.is_empty() => {
                for (position, entry) in entries {
                    self.engine.enqueue(queue, position, entry);
                }
                self.refilling.insert(queue, Refilling::Idle);
                return;
            }
            Some(Err(error)) => (code_of(&error), error.to_string()),
            _ => (Code::Internal, "it could not be read".to_owned()),
        };
        self.refilling.insert(queue, Refilling::Blocked);
        // The queue does not change, because the messages after the damage must not overtake the
        // damaged one.
        let position = self.engine.wanted(queue).map_or(0, |(after, _)| after.get() + 1);
        let (code, reason) = error;
        cx.note(Event::QueueMessageUnreadable { position, code, reason });
    }
}
