//! The sums of the records of one segment, by publisher and range of sequences.
//!
//! Two instances compare such sums to find the records that one of them lacks. The ranges begin at
//! the same sequences on both, and the order of the records does not matter. The sums of a sealed
//! segment are in its index file, and not in memory.

use rustc_hash::FxHashMap;

use crate::format::{u32_at, u64_at};
use crate::knowledge::Step;
use crate::record::PublisherId;
use crate::segment::index::Index;
use crate::segment::index_file;

/// The sequences that one sum covers. A message is found among as many.
pub(crate) const RANGE_COUNT: u64 = 1024;

const HEAD_SIZE: usize = 12;
const ENTRY_SIZE: usize = 20;

/// The records of one publisher in one range of sequences.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RangeSum {
    /// The range: the sequences that are this number when they are divided by 1,024.
    pub number: u64,
    /// Records.
    pub count: u32,
    /// The sum of their hashes, modulo 2^64.
    pub sum: u64,
}

/// The sums of a segment: by publisher and number of the range, the records and the sum.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sums(FxHashMap<(PublisherId, u64), (u32, u64)>);

impl Sums {
    pub fn add(&mut self, step: &Step) {
        let range = (step.bookmark.publisher, step.bookmark.sequence / RANGE_COUNT);
        let (count, sum) = self.0.entry(range).or_default();
        *count += 1;
        *sum = sum.wrapping_add(step.hash());
    }

    /// Appends the part of an index file.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut all: Vec<_> = self.0.iter().map(|(range, sum)| (*range, *sum)).collect();
        all.sort_unstable();
        let by_publisher = || all.chunk_by(|((a, _), _), ((b, _), _)| a == b);
        out.extend_from_slice(&(by_publisher().count() as u32).to_le_bytes());
        for ranges in by_publisher() {
            out.extend_from_slice(&ranges[0].0.0.0.to_le_bytes());
            out.extend_from_slice(&(ranges.len() as u32).to_le_bytes());
            for ((_, number), (count, sum)) in ranges {
                out.extend_from_slice(&number.to_le_bytes());
                out.extend_from_slice(&count.to_le_bytes());
                out.extend_from_slice(&sum.to_le_bytes());
            }
        }
    }

    /// Whether an index file has these sums, or none.
    pub fn are_in(&self, file: &[u8], index: &Index, segment: u32) -> bool {
        let Some(part) = index_file::sums(file, index, segment) else { return true };
        let mut own = Vec::new();
        self.encode(&mut own);
        own == part
    }

    /// Passes each range to `each`, in no order.
    pub fn for_each(&self, mut each: impl FnMut(PublisherId, RangeSum)) {
        for ((publisher, number), (count, sum)) in &self.0 {
            each(*publisher, RangeSum { number: *number, count: *count, sum: *sum });
        }
    }
}

/// Passes each range in the part of an index file to `each`. `None` when the bytes are not such a
/// part: then some may have been passed.
pub(crate) fn for_each_in(bytes: &[u8], mut each: impl FnMut(PublisherId, RangeSum)) -> Option<()> {
    let (count, mut rest) = bytes.split_at_checked(4)?;
    for _ in 0..u32_at(count, 0) {
        let (head, after) = rest.split_first_chunk::<HEAD_SIZE>()?;
        let (ranges, after) = after.split_at_checked(u32_at(head, 8) as usize * ENTRY_SIZE)?;
        for range in ranges.as_chunks::<ENTRY_SIZE>().0 {
            let (number, count, sum) = (u64_at(range, 0), u32_at(range, 8), u64_at(range, 12));
            each(PublisherId(u64_at(head, 0)), RangeSum { number, count, sum });
        }
        rest = after;
    }
    rest.is_empty().then_some(())
}
