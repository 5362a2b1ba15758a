//! The slots that a scan or a page reads: all of them, or those that an index returns.
//!
//! Few slots of an index are listed when the scan begins. Many are taken from the index in
//! portions, while the table changes. The scan then has one bit for each slot that it has read. A
//! slot without the bit counts as not yet read, even if the index never returns it: the scan
//! evaluates its row before the row changes, and it does not match.

use crate::index::Walk;
use crate::scan::Source;

/// How queries use the slots that an index returns.
#[derive(Clone, Copy, Debug)]
pub struct IndexLimits {
    /// The most slots that are listed when a scan begins. With more they are taken from the index
    /// in portions.
    pub listed_max: usize,
    /// An index may return one part in this many of the rows. With more, the scan reads all rows in
    /// their order in memory.
    pub walked_part: usize,
    /// Slots that are taken from an index at a time.
    pub portion_len: usize,
    /// With fewer rows a query makes no index.
    pub made_rows_min: usize,
    /// The indexes that queries make take at most one part in this many of the bytes of the rows.
    pub made_size_part: usize,
}

impl Default for IndexLimits {
    fn default() -> Self {
        IndexLimits {
            listed_max: LISTED_MAX,
            walked_part: WALKED_PART,
            portion_len: PORTION,
            made_rows_min: MADE_ROWS_MIN,
            made_size_part: MADE_SIZE_PART,
        }
    }
}

/// Listing and sorting these takes less than half a millisecond.
const LISTED_MAX: usize = 16 * 1024;

/// A row that an index returns costs up to this many times a row of a scan, because the rows before
/// and after it are not read.
const WALKED_PART: usize = 4;

/// A scan of these takes a few milliseconds.
const MADE_ROWS_MIN: usize = 10_000;

/// Indexes that are not configured should change the memory of a server only a little.
const MADE_SIZE_PART: usize = 4;

/// The number of rows that are prefetched together. They fit into the cache of a core.
const PORTION: usize = 256;

/// The slots that a scan reads.
#[derive(Debug)]
pub(crate) enum Slots {
    /// All from `next` to `end`.
    All { next: u32, end: u32 },
    /// These, in ascending order, from the one at `next`.
    Listed { slots: Vec<u32>, next: usize },
    /// Those of an index.
    Walked(Box<Walked>),
}

/// Slots that an index returns in portions.
#[derive(Debug)]
pub(crate) struct Walked {
    walk: Walk,
    /// Slots from here on were added later.
    end: u32,
    /// The slots that were read, one bit each.
    seen: Vec<u64>,
    /// The current portion, in ascending order, from the one at `next`.
    portion: Vec<u32>,
    next: usize,
    portion_len: usize,
}

/// The next slot of a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    Slot(u32),
    /// None this time.
    Nothing,
    /// None is left.
    End,
}

impl Slots {
    pub fn none() -> Self {
        Slots::All { next: 0, end: 0 }
    }

    /// These, in any order.
    pub fn listed(mut slots: Vec<u32>) -> Self {
        slots.sort_unstable();
        slots.dedup();
        Slots::Listed { slots, next: 0 }
    }

    /// Those of an index, of a table whose slots are below `end`.
    pub fn walked(walk: Walk, end: u32, portion_len: usize) -> Self {
        let seen = vec![0; end.div_ceil(u64::BITS) as usize];
        Slots::Walked(Box::new(Walked {
            walk,
            end,
            seen,
            portion: Vec::with_capacity(portion_len),
            next: 0,
            portion_len,
        }))
    }

    /// Bytes of the bits of a walk.
    pub fn size_of_walk(end: u32) -> usize {
        end as usize / 8
    }

    /// Whether these are all slots of a table.
    pub fn are_all(&self) -> bool {
        matches!(self, Slots::All { .. })
    }

    /// Bytes that grow with the table.
    pub fn size(&self) -> usize {
        match self {
            Slots::Walked(walked) => Slots::size_of_walk(walked.end),
            Slots::All { .. } | Slots::Listed { .. } => 0,
        }
    }

    /// Whether the scan has not read a slot.
    pub fn has(&self, slot: u32) -> bool {
        match self {
            Slots::All { next, end } => (*next..*end).contains(&slot),
            Slots::Listed { slots, next } => slots[*next..].binary_search(&slot).is_ok(),
            Slots::Walked(walked) => slot < walked.end && !walked.has_seen(slot),
        }
    }

    /// Whether a page reads a slot later, and so the new data of its row. A walk may not return a
    /// slot whose row changed, so then the page reads it now.
    pub fn defers(&mut self, slot: u32) -> bool {
        if let Slots::Walked(walked) = self {
            walked.see(slot);
            return false;
        }
        self.has(slot)
    }

    pub fn take(&mut self, source: Source<'_>) -> Taken {
        match self {
            Slots::All { next, end } if *next < *end => {
                *next += 1;
                Taken::Slot(*next - 1)
            }
            Slots::All { .. } => Taken::End,
            Slots::Listed { slots, next } => {
                if *next % PORTION == 0 {
                    source.rows.read_ahead(slots[*next..].iter().take(PORTION).copied());
                }
                let slot = slots.get(*next).copied();
                *next += usize::from(slot.is_some());
                slot.map_or(Taken::End, Taken::Slot)
            }
            Slots::Walked(walked) => walked.take(source),
        }
    }
}

impl Walked {
    fn has_seen(&self, slot: u32) -> bool {
        self.seen[slot as usize / BITS] >> (slot as usize % BITS) & 1 == 1
    }

    /// Notes that a slot was read. Returns true for the first read of a slot that was not added
    /// later.
    fn see(&mut self, slot: u32) -> bool {
        let is_new = slot < self.end && !self.has_seen(slot);
        if is_new {
            self.seen[slot as usize / BITS] |= 1 << (slot as usize % BITS);
        }
        is_new
    }

    fn take(&mut self, source: Source<'_>) -> Taken {
        while let Some(slot) = self.portion.get(self.next).copied() {
            self.next += 1;
            if self.see(slot) {
                return Taken::Slot(slot);
            }
        }
        self.next = 0;
        self.portion.clear();
        self.walk.take(source.indexes, self.portion_len, &mut self.portion);
        if self.portion.is_empty() {
            return Taken::End;
        }
        let (end, seen) = (self.end, &self.seen);
        let is_seen = |slot: u32| seen[slot as usize / BITS] >> (slot as usize % BITS) & 1 == 1;
        self.portion.retain(|slot| *slot < end && !is_seen(*slot));
        self.portion.sort_unstable();
        source.rows.read_ahead(self.portion.iter().copied());
        Taken::Nothing
    }
}

const BITS: usize = u64::BITS as usize;
