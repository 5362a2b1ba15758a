//! Leases as the journal holds them (docs/journal-format.md): the consumer of each message, the end of each lease, and the times.

use std::collections::HashMap;

use quire_journal::{Position, Timestamp};
use rustc_hash::FxBuildHasher;

use super::event::{LeaseEvent, LeaseEventKind};
use super::id::ConnectionId;
use super::record::{BadChanges, put_distance, put_number, take_distance, take_number};

const TIME: u64 = 0;
const CONSUMER: u64 = 1;

/// Bits of a head that hold the kind.
const KIND_BITS: u32 = 4;

/// The data of one record, as it grows.
#[derive(Debug, Default)]
pub struct LeasesWriter {
    bytes: Vec<u8>,
    /// Not written yet: it may grow.
    run: Option<Run>,
    /// The position after the last run that was written.
    behind: u64,
    time_ns: u64,
    /// The consumers that the record has named, by their numbers in it, and the consumer of the last run.
    consumers: HashMap<ConnectionId, u64, FxBuildHasher>,
    last_consumer: Option<ConnectionId>,
}

#[derive(Clone, Copy, Debug)]
struct Run {
    first: u64,
    count: u64,
    kind: LeaseEventKind,
}

/// The same that happened to every message from `first` to `last`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseRun<'a> {
    /// The first message.
    pub first: Position,
    /// The last message.
    pub last: Position,
    /// The kind of the event.
    pub kind: LeaseEventKind,
    /// The client name of the consumer.
    pub consumer: &'a str,
    /// When, by the clock of the log.
    pub time: Timestamp,
}

impl LeasesWriter {
    /// Adds an event at `time`, or at the time of the last event if that is later. The queue of the event is ignored. `name` returns the
    /// client name of a connection that is new here.
    pub fn push<'a>(&mut self, event: LeaseEvent, time: Timestamp, name: impl FnOnce() -> &'a str) {
        let (position, kind) = (event.position.get(), event.kind);
        let elapsed_ns = time.as_ns().saturating_sub(self.time_ns);
        let is_same = elapsed_ns == 0 && self.last_consumer == Some(event.connection);
        if is_same
            && let Some(run) = &mut self.run
            && run.kind == kind
            && run.first + run.count == position
        {
            run.count += 1;
            return;
        }
        self.end_run();
        if elapsed_ns > 0 {
            put_number(&mut self.bytes, TIME);
            put_number(&mut self.bytes, elapsed_ns);
            self.time_ns += elapsed_ns;
        }
        if self.last_consumer != Some(event.connection) {
            self.put_consumer(event.connection, name);
        }
        self.run = Some(Run { first: position, count: 1, kind });
    }

    /// Bytes so far, the last run apart.
    pub fn size(&self) -> usize {
        self.bytes.len()
    }

    /// Whether nothing was added.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The data; the writer is empty again when it is cleared.
    pub fn finish(&mut self) -> &[u8] {
        self.end_run();
        &self.bytes
    }

    /// Forgets everything but its memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.run = None;
        (self.behind, self.time_ns) = (0, 0);
        self.consumers.clear();
        self.last_consumer = None;
    }

    fn put_consumer<'a>(&mut self, connection: ConnectionId, name: impl FnOnce() -> &'a str) {
        let next = self.consumers.len() as u64;
        let number = *self.consumers.entry(connection).or_insert(next);
        put_number(&mut self.bytes, number << KIND_BITS | CONSUMER);
        if number == next {
            let name = name();
            put_number(&mut self.bytes, name.len() as u64);
            self.bytes.extend_from_slice(name.as_bytes());
        }
        self.last_consumer = Some(connection);
    }

    fn end_run(&mut self) {
        let Some(Run { first, count, kind }) = self.run.take() else { return };
        put_number(&mut self.bytes, (count - 1) << KIND_BITS | u64::from(kind.number()));
        put_distance(&mut self.bytes, self.behind, first);
        self.behind = first + count;
    }
}

impl<'a> LeaseRun<'a> {
    /// The runs in the data of a record, in order. All their positions are below `limit`, the position of the record.
    pub fn read(
        data: &'a [u8],
        limit: Position,
    ) -> impl Iterator<Item = Result<LeaseRun<'a>, BadChanges>> + use<'a> {
        let mut list = List { rest: data, behind: 0, time_ns: 0, consumers: Vec::new(), consumer: None };
        std::iter::from_fn(move || {
            if list.rest.is_empty() {
                return None;
            }
            let next = list.next_run(limit.get());
            if next.is_none() {
                list.rest = &[];
            }
            next.map_or(Some(Err(BadChanges)), |run| run.map(Ok))
        })
    }
}

/// A list that is being read.
struct List<'a> {
    rest: &'a [u8],
    behind: u64,
    time_ns: u64,
    consumers: Vec<&'a str>,
    consumer: Option<&'a str>,
}

impl<'a> List<'a> {
    /// The next run; `Some(None)`: only times and consumers are left, and no run follows them.
    fn next_run(&mut self, limit: u64) -> Option<Option<LeaseRun<'a>>> {
        while !self.rest.is_empty() {
            let head = take_number(&mut self.rest)?;
            let number = head >> KIND_BITS;
            match head & ((1 << KIND_BITS) - 1) {
                TIME if number == 0 => {
                    let elapsed = take_number(&mut self.rest)?;
                    self.time_ns = self.time_ns.checked_add(elapsed)?;
                }
                CONSUMER => self.consumer = Some(self.take_consumer(number)?),
                kind => {
                    let kind = LeaseEventKind::from_number(kind)?;
                    let first = take_distance(&mut self.rest, self.behind)?;
                    let last = first.checked_add(number).filter(|last| *last < limit)?;
                    self.behind = last + 1;
                    let (first, last) = (Position::new(first), Position::new(last));
                    let (consumer, time) = (self.consumer?, Timestamp::from_ns(self.time_ns));
                    return Some(Some(LeaseRun { first, last, kind, consumer, time }));
                }
            }
        }
        Some(None)
    }

    fn take_consumer(&mut self, number: u64) -> Option<&'a str> {
        let number = usize::try_from(number).ok()?;
        if number == self.consumers.len() {
            let size = usize::try_from(take_number(&mut self.rest)?).ok()?;
            let (name, after) = self.rest.split_at_checked(size)?;
            self.rest = after;
            self.consumers.push(std::str::from_utf8(name).ok()?);
        }
        self.consumers.get(number).copied()
    }
}
