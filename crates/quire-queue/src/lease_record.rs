//! Leases as the journal holds them (docs/journal-format.md): the consumer of each message, the end
//! of each lease, and the times.

use std::collections::HashMap;

use quire_journal::{Position, Timestamp};
use rustc_hash::FxBuildHasher;

use super::event::{LeaseEvent, LeaseEventKind};
use super::id::ConnectionId;
use super::names::{
    BadChanges, NamedRun, Names, NamesReader, NamesWriter, PARTS_MAX, push_name, put_header, take_header,
};
use super::record::{put_distance, put_number, take_distance, take_number};

const TIME: u64 = 0;
const CONSUMER: u64 = 1;
/// The first number of a record: its version. Records of version 1 begin with another entry.
const HEADER: u64 = 15;

/// Bits of a head that hold the kind.
const KIND_BITS: u32 = 4;

/// The data of one record, as it grows.
#[derive(Debug, Default)]
pub struct LeasesWriter {
    bytes: Vec<u8>,
    /// Not written yet: it may grow.
    run: Option<Run>,
    /// The bookmarks of its messages.
    run_names: Vec<NamedRun>,
    /// The position after the last run that was written.
    behind: u64,
    names: NamesWriter,
    time_ns: u64,
    /// The consumers that the record has named, by their numbers in it, and the consumer of the
    /// last run.
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
#[derive(Clone, Debug, PartialEq, Eq)]
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
    /// The bookmarks of the messages. A record of version 1 has none.
    pub names: Names,
}

impl LeasesWriter {
    /// Adds an event at `time`, or at the time of the last event if that is later. The queue of the
    /// event is ignored. `name` returns the client name of a connection that is new here.
    pub fn push<'a>(&mut self, event: LeaseEvent, time: Timestamp, name: impl FnOnce() -> &'a str) {
        let (position, kind) = (event.position.get(), event.kind);
        let elapsed_ns = time.as_ns().saturating_sub(self.time_ns);
        let is_same = elapsed_ns == 0 && self.last_consumer == Some(event.connection);
        if is_same
            && let Some(run) = &mut self.run
            && run.kind == kind
            && run.first + run.count == position
            && self.run_names.len() < PARTS_MAX
        {
            run.count += 1;
            return push_name(&mut self.run_names, event.bookmark);
        }
        if self.bytes.is_empty() {
            put_header(&mut self.bytes, HEADER, KIND_BITS);
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
        push_name(&mut self.run_names, event.bookmark);
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

    /// Drops its contents, and keeps its memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.run = None;
        self.run_names.clear();
        self.names.clear();
        (self.behind, self.time_ns) = (0, 0);
        self.consumers.clear();
        self.last_consumer = None;
    }

    fn put_consumer<'a>(&mut self, connection: ConnectionId, name: impl FnOnce() -> &'a str) {
        let known = self.consumers.get(&connection).copied();
        let number = known.unwrap_or(self.consumers.len() as u64);
        put_number(&mut self.bytes, number << KIND_BITS | CONSUMER);
        if known.is_none() {
            self.consumers.insert(connection, number);
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
        self.names.put(&self.run_names, &mut self.bytes);
        self.run_names.clear();
    }
}

impl<'a> LeaseRun<'a> {
    /// The runs in the data of a record, in order. All their positions are below `limit`, the
    /// position of the record. An error is the last item.
    pub fn read(
        data: &'a [u8],
        limit: Position,
    ) -> impl Iterator<Item = Result<LeaseRun<'a>, BadChanges>> + use<'a> {
        let mut list = LeaseList { rest: data, ..LeaseList::default() };
        let mut is_begun = false;
        std::iter::from_fn(move || {
            if !std::mem::replace(&mut is_begun, true)
                && let Err(error) = list.take_header()
            {
                list.rest = &[];
                return Some(Err(error));
            }
            if list.rest.is_empty() {
                return None;
            }
            let next = list.next_run(limit.get());
            if next.is_none() {
                list.rest = &[];
            }
            next.map_or(Some(Err(BadChanges::NotAList)), |run| run.map(Ok))
        })
    }
}

/// A list that is being read.
#[derive(Default)]
struct LeaseList<'a> {
    rest: &'a [u8],
    behind: u64,
    /// `None` in a record of version 1, which has no bookmarks.
    names: Option<NamesReader>,
    time_ns: u64,
    consumers: Vec<&'a str>,
    consumer: Option<&'a str>,
}

impl<'a> LeaseList<'a> {
    fn take_header(&mut self) -> Result<(), BadChanges> {
        let mut rest = self.rest;
        let first = take_number(&mut rest).unwrap_or(TIME);
        if first & ((1 << KIND_BITS) - 1) == HEADER {
            take_header(first >> KIND_BITS, &mut rest)?;
            (self.rest, self.names) = (rest, Some(NamesReader::default()));
        }
        Ok(())
    }

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
                    let names = match &mut self.names {
                        Some(names) => names.take(last - first + 1, &mut self.rest)?,
                        None => Names::new(),
                    };
                    let (first, last) = (Position::new(first), Position::new(last));
                    let (consumer, time) = (self.consumer?, Timestamp::from_ns(self.time_ns));
                    return Some(Some(LeaseRun { first, last, kind, consumer, time, names }));
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
