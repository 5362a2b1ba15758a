//! Changes as the journal holds them (docs/journal-format.md): runs of neighboring messages to
//! which the same happened.

use quire_journal::{Bookmark, Position};

use super::event::{Change, ChangeKind, Reasons};
use super::id::{QueueId, Time};
use super::names::{
    BadChanges, NamedRun, Names, NamesReader, NamesWriter, PARTS_MAX, push_name, put_header, take_header,
};

/// The first number of a record: its version. Records of version 1 begin with a change.
const HEADER: u64 = 0;
const ACKNOWLEDGED: u64 = 1;
const CANCELLED: u64 = 2;
const EXPIRED: u64 = 3;
const TAKEN: u64 = 4;
const RELEASED: u64 = 5;
const BEGINS: u64 = 6;
/// One of the changes below. The next number selects it.
const MORE: u64 = 7;

const RETURNED: u64 = 1;
const DELAYED: u64 = 2;

/// Bits of a head that hold the kind.
const KIND_BITS: u32 = 3;

/// The data of one record, as it grows.
#[derive(Debug, Default)]
pub struct ChangesWriter {
    bytes: Vec<u8>,
    /// Not written yet: it may grow.
    run: Option<Run>,
    /// The bookmarks of its messages.
    run_names: Vec<NamedRun>,
    /// The position after the last run that was written.
    behind: u64,
    names: NamesWriter,
}

#[derive(Clone, Copy, Debug)]
struct Run {
    first: u64,
    count: u64,
    kind: ChangeKind,
}

/// One entry of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Logged<'a> {
    /// The same happened to every message from `first` to `last`.
    Changed {
        /// The first message.
        first: Position,
        /// The last message.
        last: Position,
        /// The kind of the change.
        kind: ChangeKind,
        /// The bookmarks of the messages. A record of version 1 has none.
        names: Names,
    },
    /// The queue begins after a position.
    Begins {
        /// Nothing up to here belongs to it.
        after: Position,
        /// The recovery point as it was configured.
        recovery_point: &'a str,
    },
}

impl ChangesWriter {
    /// Adds a change. The position is a shortcut for a reader of this log. `None` as the bookmark:
    /// it is not known, so that the change means nothing to other instances.
    pub fn push(&mut self, position: Position, bookmark: Option<Bookmark>, kind: ChangeKind) {
        let position = position.get();
        if let Some(run) = &mut self.run
            && run.kind == kind
            && run.first + run.count == position
            && self.run_names.len() < PARTS_MAX
        {
            run.count += 1;
            return push_name(&mut self.run_names, bookmark);
        }
        self.end_run();
        self.run = Some(Run { first: position, count: 1, kind });
        push_name(&mut self.run_names, bookmark);
    }

    /// Adds where the queue begins.
    pub fn push_beginning(&mut self, after: Position, recovery_point: &str) {
        self.end_run();
        self.put_head(BEGINS, after.get(), 1);
        put_number(&mut self.bytes, recovery_point.len() as u64);
        self.bytes.extend_from_slice(recovery_point.as_bytes());
    }

    /// Bytes so far, the last run apart.
    pub fn size(&self) -> usize {
        self.bytes.len()
    }

    /// Whether nothing was added.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty() && self.run.is_none()
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
        self.behind = 0;
        self.names.clear();
    }

    fn end_run(&mut self) {
        let Some(Run { first, count, kind }) = self.run.take() else { return };
        match kind {
            ChangeKind::Acknowledged => self.put_head(ACKNOWLEDGED, first, count),
            ChangeKind::Taken => self.put_head(TAKEN, first, count),
            ChangeKind::Released => self.put_head(RELEASED, first, count),
            ChangeKind::Cancelled { cancels } => {
                self.put_head(CANCELLED, first, count);
                put_number(&mut self.bytes, cancels.into());
            }
            ChangeKind::Expired { reasons, deliveries, cancels } => {
                self.put_head(EXPIRED, first, count);
                self.bytes.push(reasons.bits());
                put_number(&mut self.bytes, deliveries.into());
                put_number(&mut self.bytes, cancels.into());
            }
            ChangeKind::Returned { deliveries } => {
                self.put_head(MORE, first, count);
                put_number(&mut self.bytes, RETURNED);
                put_number(&mut self.bytes, deliveries.into());
            }
            ChangeKind::Delayed { until } => {
                self.put_head(MORE, first, count);
                put_number(&mut self.bytes, DELAYED);
                put_number(&mut self.bytes, until.get());
            }
        }
        self.names.put(&self.run_names, &mut self.bytes);
        self.run_names.clear();
    }

    fn put_head(&mut self, kind: u64, first: u64, count: u64) {
        if self.bytes.is_empty() {
            put_header(&mut self.bytes, HEADER, KIND_BITS);
        }
        put_number(&mut self.bytes, (count - 1) << KIND_BITS | kind);
        put_distance(&mut self.bytes, self.behind, first);
        self.behind = first + count;
    }
}

impl<'a> Logged<'a> {
    /// The changes in the data of a record, in order. All their positions are below `limit`, the
    /// position of the record. An error is the last item.
    pub fn read(
        data: &'a [u8],
        limit: Position,
    ) -> impl Iterator<Item = Result<Logged<'a>, BadChanges>> + use<'a> {
        let (mut list, mut is_begun) = (ChangeList { rest: data, behind: 0, names: None }, false);
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
            let next = list.read_one(limit.get()).ok_or(BadChanges::NotAList);
            if next.is_err() {
                list.rest = &[];
            }
            Some(next)
        })
    }

    /// The changes of a run, one by one.
    pub fn changes(self, queue: QueueId) -> impl Iterator<Item = Change> {
        let run = match self {
            Logged::Changed { first, last, kind, names } => Some((first.get()..=last.get(), kind, names)),
            Logged::Begins { .. } => None,
        };
        run.into_iter().flat_map(move |(positions, kind, names)| {
            let mut bookmarks = names.into_iter().flat_map(NamedRun::bookmarks);
            positions.map(move |position| {
                let bookmark = bookmarks.next().flatten();
                Change { queue, position: Position::new(position), bookmark, kind }
            })
        })
    }
}

/// A list that is being read.
struct ChangeList<'a> {
    rest: &'a [u8],
    /// The position after the last run.
    behind: u64,
    /// `None` in a record of version 1, which has no bookmarks.
    names: Option<NamesReader>,
}

impl<'a> ChangeList<'a> {
    fn take_header(&mut self) -> Result<(), BadChanges> {
        let mut rest = self.rest;
        let first = take_number(&mut rest).unwrap_or(ACKNOWLEDGED);
        if first & ((1 << KIND_BITS) - 1) == HEADER {
            take_header(first >> KIND_BITS, &mut rest)?;
            (self.rest, self.names) = (rest, Some(NamesReader::default()));
        }
        Ok(())
    }

    fn read_one(&mut self, limit: u64) -> Option<Logged<'a>> {
        let ChangeList { rest, behind, names } = self;
        let head = take_number(rest)?;
        let first = take_distance(rest, *behind)?;
        let last = first.checked_add(head >> KIND_BITS).filter(|last| *last < limit)?;
        *behind = last + 1;
        let kind = match head & ((1 << KIND_BITS) - 1) {
            ACKNOWLEDGED => ChangeKind::Acknowledged,
            TAKEN => ChangeKind::Taken,
            RELEASED => ChangeKind::Released,
            CANCELLED => ChangeKind::Cancelled { cancels: take_small(rest)? },
            EXPIRED => {
                let (bits, after) = rest.split_first()?;
                *rest = after;
                let reasons = Reasons::from_bits(*bits)?;
                ChangeKind::Expired { reasons, deliveries: take_small(rest)?, cancels: take_small(rest)? }
            }
            MORE => match take_number(rest)? {
                RETURNED => ChangeKind::Returned { deliveries: take_small(rest)? },
                DELAYED => ChangeKind::Delayed { until: Time::new(take_number(rest)?) },
                _ => return None,
            },
            BEGINS if first == last => {
                let size = usize::try_from(take_number(rest)?).ok()?;
                let (text, after) = rest.split_at_checked(size)?;
                *rest = after;
                let recovery_point = std::str::from_utf8(text).ok()?;
                return Some(Logged::Begins { after: Position::new(first), recovery_point });
            }
            _ => return None,
        };
        let names = match names {
            Some(names) => names.take(last - first + 1, rest)?,
            None => Names::new(),
        };
        Some(Logged::Changed { first: Position::new(first), last: Position::new(last), kind, names })
    }
}

pub(super) fn put_distance(bytes: &mut Vec<u8>, from: u64, to: u64) {
    let distance = to.wrapping_sub(from) as i64;
    put_number(bytes, (distance << 1 ^ distance >> 63) as u64);
}

pub(super) fn put_number(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

pub(super) fn take_distance(rest: &mut &[u8], from: u64) -> Option<u64> {
    let zigzag = take_number(rest)?;
    let distance = (zigzag >> 1) as i64 ^ -((zigzag & 1) as i64);
    Some(from.wrapping_add_signed(distance))
}

pub(super) fn take_number(rest: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let (byte, after) = rest.split_first()?;
        *rest = after;
        let bits = u64::from(byte & 0x7f);
        if bits << shift >> shift != bits {
            return None;
        }
        number |= bits << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

fn take_small(rest: &mut &[u8]) -> Option<u32> {
    u32::try_from(take_number(rest)?).ok()
}
