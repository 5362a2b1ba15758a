//! The state of a queue as bytes, so that a restart need not read the log for it
//! (docs/journal-format.md).
//!
//! A snapshot is written in portions, and the queue may change between them. This is safe. The
//! reader of a snapshot feeds the queue the log after the place where the first portion was
//! written. To apply a change of the log twice has the effect of applying it once: a message is
//! identified by its position, a removed message stays removed, and a count of cancels is logged as
//! a total. So a snapshot is good for a restart when every change that it may contain is in the
//! log.

use std::collections::VecDeque;
use std::io::Read;

use super::chunk::{CHUNK, COARSE_NS, Chunk, Marks, has, next, set};
use super::column::shift;
use super::id::QueueId;
use super::messages::Messages;
use super::queues::Queues;
use super::state::QueueState;
use quire_journal::{Array, Memory, Position};

/// Bytes in front of the chunks: the last position and the last time of receipt.
const HEAD_SIZE: usize = 16;

/// Bytes of a snapshot that are contiguous.
const PART_SIZE: usize = 4096;

/// More bytes than any chunk has: eight columns and the times of delays, 256 numbers of 8 bytes
/// each, 256 publishers of 16 bytes, and the bits before them.
const CHUNK_SIZE_MAX: usize = 32 * 1024;

/// Bytes of a snapshot that are read at a time.
const READ_SIZE: usize = 256 * 1024;

/// A snapshot as it grows.
#[derive(Debug)]
pub struct Snapshot {
    /// The number of the next chunk.
    next: u64,
    head: [u8; HEAD_SIZE],
    /// The chunks; every part but the last is full.
    parts: Vec<Array<u8>>,
    /// The memory that holds the parts.
    memory: Memory,
    /// One chunk, kept between uses.
    chunk: Vec<u8>,
}

/// The bytes are not a snapshot of a queue with this configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a snapshot of a queue of this kind")]
pub struct BadSnapshot;

impl Snapshot {
    /// An empty snapshot. It will be in `memory`.
    pub fn new(memory: &Memory) -> Self {
        Snapshot {
            next: 0,
            head: [0; HEAD_SIZE],
            parts: Vec::new(),
            memory: memory.clone(),
            chunk: Vec::new(),
        }
    }

    /// The bytes of one that is whole, in parts that follow each other.
    pub fn parts(&self) -> impl Iterator<Item = &[u8]> {
        std::iter::once(&self.head[..]).chain(self.parts.iter().map(|part| &part[..]))
    }

    /// Appends the chunk.
    fn append(&mut self) {
        let mut rest = &self.chunk[..];
        while !rest.is_empty() {
            if self.parts.last().is_none_or(|part| part.len() == PART_SIZE) {
                self.parts.push(Array::with_capacity(PART_SIZE, &self.memory));
            }
            let Some(part) = self.parts.last_mut() else { break };
            let (now, later) = rest.split_at(rest.len().min(PART_SIZE - part.len()));
            part.extend_from_slice(now);
            rest = later;
        }
        self.chunk.clear();
    }
}

/// The bytes of a source, of which enough are in memory for any chunk.
struct Ahead<R> {
    source: R,
    bytes: Vec<u8>,
    passed: usize,
    is_at_end: bool,
}

impl<R: Read> Ahead<R> {
    fn new(source: R) -> Self {
        Ahead { source, bytes: Vec::new(), passed: 0, is_at_end: false }
    }

    /// The next bytes: at least one chunk, or everything up to the end.
    fn next(&mut self) -> Result<&[u8], BadSnapshot> {
        if !self.is_at_end && self.bytes.len() - self.passed < CHUNK_SIZE_MAX {
            self.bytes.drain(..self.passed);
            self.passed = 0;
            let missing = READ_SIZE - self.bytes.len();
            let read = self.source.by_ref().take(missing as u64).read_to_end(&mut self.bytes);
            self.is_at_end = read.map_err(|_| BadSnapshot)? < missing;
        }
        Ok(&self.bytes[self.passed..])
    }

    fn pass(&mut self, size: usize) {
        self.passed += size;
    }
}

impl Queues {
    /// Adds the next messages of a queue to a snapshot, about `count_max` of them. Returns true
    /// when the snapshot is whole. Leases are not a part of it, but their deliveries count. A queue
    /// with a target depth has no snapshot: it keeps little state, and its place in the log is not
    /// idempotent.
    ///
    /// `ahead_ns`: how far the clock of the next start is ahead of the clock of this engine, as far
    /// as it is known. The times in the snapshot are those of the next start.
    pub fn write_snapshot(
        &self,
        queue: QueueId,
        snapshot: &mut Snapshot,
        count_max: u64,
        ahead_ns: i64,
    ) -> bool {
        let Some(state) = self.queues.get(queue.get() as usize) else { return true };
        let chunks_max = (count_max / CHUNK as u64).max(1);
        for _ in 0..chunks_max {
            let Some((number, chunk)) = state.messages.chunk_from(snapshot.next) else { break };
            self.pack(state, number, chunk, ahead_ns, &mut snapshot.chunk);
            snapshot.append();
            snapshot.next = number + 1;
        }
        let is_whole = state.messages.chunk_from(snapshot.next).is_none();
        if is_whole {
            snapshot.head[..8].copy_from_slice(&state.last_position.to_le_bytes());
        }
        is_whole
    }

    /// Gives an empty queue, which no message has entered yet, the state of a snapshot. Messages
    /// before `first` are left out, because the log no longer has them.
    ///
    /// # Errors
    /// [`BadSnapshot`], also when the source cannot be read to its end; the queue is as it was.
    pub fn read_snapshot(
        &mut self,
        queue: QueueId,
        source: impl Read,
        first: Position,
    ) -> Result<(), BadSnapshot> {
        let state = self.queues.get_mut(queue.get() as usize).ok_or(BadSnapshot)?;
        let mut source = Ahead::new(source);
        let (head, _) = source.next()?.split_first_chunk::<HEAD_SIZE>().ok_or(BadSnapshot)?;
        let head = *head;
        source.pass(HEAD_SIZE);
        let number =
            |at: usize| head[at..at + 8].iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
        let last_position = number(0);
        let is_new = state.last_position == 0 && state.config.target_queue_depth.is_none();
        let mut messages = Messages::new(state.config.priority, state.messages.memory());
        let (mut barriers, mut delays, mut before) = (VecDeque::new(), Vec::new(), 0);
        loop {
            let bytes = source.next()?;
            if bytes.is_empty() {
                break;
            }
            let mut rest = bytes;
            let (mut chunk, marks) =
                Chunk::unpack(&mut rest, state.config.priority, messages.memory()).ok_or(BadSnapshot)?;
            let size = bytes.len() - rest.len();
            source.pass(size);
            let is_last = source.next()?.is_empty();
            let (begin, end) = (chunk.position(0), chunk.position(chunk.entered - 1));
            // Only the last may have room.
            let is_next = begin > before && end <= last_position && (chunk.entered == CHUNK || is_last);
            if !is_next {
                return Err(BadSnapshot);
            }
            before = end;
            let gone = (0..chunk.entered).take_while(|index| chunk.position(*index) < first.get()).count();
            (0..gone).for_each(|index| super::chunk::clear(&mut chunk.present, index));
            let ordinal = messages.next_ordinal();
            let present = chunk.present;
            let of_delayed = marks.delays.iter().filter(|(index, _)| has(&present, *index));
            delays.extend(of_delayed.map(|(index, until)| {
                let expires = chunk.expires.get(*index);
                (ordinal + *index as u64, *until, expires)
            }));
            messages.take_in(chunk, &marks.delayed());
            let marked = &marks.barriers;
            let all = std::iter::successors(next(marked, 0), |index| next(marked, index + 1));
            barriers.extend(all.filter(|index| has(&present, *index)).map(|index| ordinal + index as u64));
        }
        if !is_new || (!barriers.is_empty() && !state.config.barrier) {
            return Err(BadSnapshot);
        }
        state.last_position = last_position;
        state.totals.entered = messages.present();
        state.messages = messages;
        state.barriers = barriers;
        for (ordinal, until, expires) in delays {
            state.delays.insert(ordinal, until, expires, Vec::new());
        }
        let due = state.messages.next_expiry().into_iter().chain(state.delays.next_due()).min();
        self.wake_by(due.unwrap_or(u64::MAX));
        self.line_up(queue.get());
        self.audit(queue.get());
        Ok(())
    }

    fn pack(&self, state: &QueueState, number: u64, chunk: &Chunk, ahead_ns: i64, out: &mut Vec<u8>) {
        let shifted = (ahead_ns != 0).then(|| {
            let mut shifted = chunk.clone();
            shifted.received_ms =
                chunk.received_ms.shifted(chunk.entered, ahead_ns / COARSE_NS.cast_signed());
            shifted.expires = chunk.expires.shifted(chunk.entered, ahead_ns);
            shifted
        });
        let chunk = shifted.as_ref().unwrap_or(chunk);
        let begin = number * CHUNK as u64;
        let from = state.barriers.partition_point(|ordinal| *ordinal < begin);
        let mut marks = Marks::default();
        for ordinal in state.barriers.range(from..).take_while(|ordinal| **ordinal < begin + CHUNK as u64) {
            set(&mut marks.barriers, (ordinal - begin) as usize);
        }
        let ranked = state.config.priority;
        if chunk.waiting == chunk.present {
            return chunk.pack(ranked, &chunk.deliveries, &marks, out);
        }
        // A delivery that is under way counts, because it has no result yet.
        let mut deliveries = chunk.deliveries.clone();
        for index in 0..chunk.entered {
            if !has(&chunk.present, index) || has(&chunk.waiting, index) {
                continue;
            }
            if let Some(slot) = state.leases.find(chunk.position(index)) {
                deliveries.set(chunk.entered, index, self.leases.get(slot).deliveries.into());
            } else if let Some(until) = state.delays.until(begin + index as u64) {
                marks.delays.push((index, shift(until, ahead_ns)));
            }
        }
        chunk.pack(ranked, &deliveries, &marks, out);
    }
}
