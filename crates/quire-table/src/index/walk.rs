//! The slots that an index returns for a filter, in portions.
//!
//! A walk has no copy of the slots. Each portion begins after the last value of the one before, so
//! that changes of the index between two portions cost nothing. A walk returns every slot whose row
//! does not change from its beginning to its end. It can return a slot twice, and slots that were
//! added later.

use std::ops::RangeInclusive;

use super::Indexes;
use super::sorted_set::SortedSet;

/// The parts of one index that have all rows that match a filter.
#[derive(Clone, Debug)]
pub(crate) struct Walk {
    index: Which,
    /// The remaining parts, the next one last.
    parts: Vec<Part>,
}

/// One index of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Which {
    Hash(usize),
    Ordered(usize),
}

/// The remaining values of one set of an index.
#[derive(Clone, Debug)]
pub(super) enum Part {
    Irregular(RangeInclusive<u32>),
    Hash(RangeInclusive<[u32; 2]>),
    Numbers(RangeInclusive<[u32; 3]>),
    Texts(RangeInclusive<[u32; 3]>),
}

impl Walk {
    /// A walk over the irregular rows of an index, and these parts.
    pub(super) fn new(index: Which, mut parts: Vec<Part>) -> Self {
        parts.push(Part::Irregular(0..=u32::MAX));
        Walk { index, parts }
    }

    /// The number of remaining slots: exact when they are few.
    pub fn count(&self, indexes: &Indexes) -> usize {
        let counts = self.parts.iter().map(|part| match (self.index, part) {
            (index, Part::Irregular(range)) => indexes.irregular(index).count_in(range),
            (Which::Hash(number), Part::Hash(range)) => indexes.hash[number].slots.count_in(range),
            (Which::Ordered(number), Part::Numbers(range)) => indexes.ordered[number].numbers.count_in(range),
            (Which::Ordered(number), Part::Texts(range)) => indexes.ordered[number].texts.count_in(range),
            _ => 0,
        });
        counts.sum()
    }

    /// Adds the next slots to `out`, at most `count_max`. When it adds none, no slots are left.
    pub fn take(&mut self, indexes: &Indexes, count_max: usize, out: &mut Vec<u32>) {
        let end = out.len() + count_max;
        while out.len() < end
            && let Some(part) = self.parts.last_mut()
        {
            let room = end - out.len();
            let has_more = match (self.index, part) {
                (index, Part::Irregular(range)) => take(indexes.irregular(index), range, room, out),
                (Which::Hash(number), Part::Hash(range)) => {
                    take(&indexes.hash[number].slots, range, room, out)
                }
                (Which::Ordered(number), Part::Numbers(range)) => {
                    take(&indexes.ordered[number].numbers, range, room, out)
                }
                (Which::Ordered(number), Part::Texts(range)) => {
                    take(&indexes.ordered[number].texts, range, room, out)
                }
                _ => false,
            };
            if !has_more {
                self.parts.pop();
            }
        }
    }
}

/// A value of an index, which ends with a slot.
trait Slotted: Copy + Ord {
    fn slot(self) -> u32;
    /// The least value after it.
    fn next(self) -> Self;
}

impl Slotted for u32 {
    fn slot(self) -> u32 {
        self
    }

    fn next(self) -> Self {
        // There are fewer than 2^30 slots.
        self + 1
    }
}

impl<const N: usize> Slotted for [u32; N] {
    fn slot(self) -> u32 {
        self[N - 1]
    }

    fn next(mut self) -> Self {
        self[N - 1] += 1;
        self
    }
}

/// Moves the first slots of a range to `out`. Returns whether there may be more.
fn take<T: Slotted>(
    set: &SortedSet<T>,
    range: &mut RangeInclusive<T>,
    room: usize,
    out: &mut Vec<u32>,
) -> bool {
    let (end, mut last) = (out.len() + room, None);
    set.for_each_in(range.clone(), |value| {
        out.push(value.slot());
        last = Some(value);
        out.len() < end
    });
    match last {
        Some(last) if out.len() == end => {
            *range = last.next()..=*range.end();
            true
        }
        _ => false,
    }
}
