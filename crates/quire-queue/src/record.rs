//! Changes as the journal holds them (docs/journal-format.md): runs of neighbouring messages to which the same happened.

use quire_journal::Position;

use super::event::{Change, ChangeKind, Reasons};
use super::id::{QueueId, Time};

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
    /// The position after the last run that was written.
    behind: u64,
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
    },
    /// The queue begins after a position.
    Begins {
        /// Nothing up to here belongs to it.
        after: Position,
        /// The recovery point as it was configured.
        recovery_point: &'a str,
    },
}

/// A [`ChangesWriter`] or a [`LeasesWriter`](super::LeasesWriter) could not have written the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a list of changes or leases of a queue")]
pub struct BadChanges;

impl ChangesWriter {
    /// Adds a change. The queue of the change is ignored.
    pub fn push(&mut self, position: Position, kind: ChangeKind) {
        let position = position.get();
        if let Some(run) = &mut self.run
            && run.kind == kind
            && run.first + run.count == position
        {
            run.count += 1;
            return;
        }
        self.end_run();
        self.run = Some(Run { first: position, count: 1, kind });
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

    /// Forgets everything but its memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.run = None;
        self.behind = 0;
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
    }

    fn put_head(&mut self, kind: u64, first: u64, count: u64) {
        put_number(&mut self.bytes, (count - 1) << KIND_BITS | kind);
        put_distance(&mut self.bytes, self.behind, first);
        self.behind = first + count;
    }
}

impl<'a> Logged<'a> {
    /// The changes in the data of a record, in order. All their positions are below `limit`, the position of the record.
    pub fn read(data: &'a [u8], limit: Position) -> impl Iterator<Item = Result<Logged<'a>, BadChanges>> {
        let (mut rest, mut behind) = (data, 0);
        std::iter::from_fn(move || {
            if rest.is_empty() {
                return None;
            }
            let next = read_one(&mut rest, &mut behind, limit.get()).ok_or(BadChanges);
            if next.is_err() {
                rest = &[];
            }
            Some(next)
        })
    }

    /// The changes of a run, one by one.
    pub fn changes(self, queue: QueueId) -> impl Iterator<Item = Change> {
        let run = match self {
            Logged::Changed { first, last, kind } => Some((first.get()..=last.get(), kind)),
            Logged::Begins { .. } => None,
        };
        run.into_iter().flat_map(move |(positions, kind)| {
            positions.map(move |position| Change { queue, position: Position::new(position), kind })
        })
    }
}

fn read_one<'a>(rest: &mut &'a [u8], behind: &mut u64, limit: u64) -> Option<Logged<'a>> {
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
    Some(Logged::Changed { first: Position::new(first), last: Position::new(last), kind })
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
