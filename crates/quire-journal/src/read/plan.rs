//! The data that a reader would have to read, from the indexes alone. It divides work over the log into parts before the work begins.

use std::ops::ControlFlow;

use crate::read::cursor::TopicFilter;
use crate::read::reader::Reader;
use crate::record::Position;

/// A run of records that is read as a unit: the part of a block that is within the range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockRange {
    /// The first position in it.
    pub first: Position,
    /// The last position in it.
    pub last: Position,
    /// Bytes that it takes in its segment; those of the whole block when the range begins or ends within it.
    pub size: u64,
}

impl Reader {
    /// Shows the ranges after `after`, up to `limit`, that hold a wanted topic, oldest first, until `each` breaks. Reads no record.
    ///
    /// A segment that is being written to knows its topics only as far as this reader has followed it.
    pub fn for_each_block_range(
        &self,
        after: Position,
        limit: Position,
        wants: &dyn TopicFilter,
        mut each: impl FnMut(BlockRange) -> ControlFlow<()>,
    ) {
        let limit = limit.min(self.persisted());
        let segments = self.log().segments.read().clone();
        let begin = segments.partition_point(|segment| segment.first <= after.next()).saturating_sub(1);
        for segment in &segments[begin..] {
            if segment.first > limit {
                return;
            }
            let index = segment.index.read();
            let wanted = index.blocks_with(|topic| wants.wants(topic));
            let count = wanted.as_ref().map_or(index.blocks.len(), Vec::len);
            for at in 0..count {
                let block = wanted.as_ref().map_or(at, |wanted| wanted[at] as usize);
                let (first, offset) = (index.blocks[block].first, index.blocks[block].offset);
                let next = index.blocks.get(block + 1);
                let last = next.map_or(index.summary.last, |next| Position(next.first.0.saturating_sub(1)));
                let end = next.map_or(index.summary.end, |next| next.offset);
                if last <= after {
                    continue;
                }
                if first > limit {
                    return;
                }
                let range = BlockRange {
                    first: first.max(after.next()),
                    last: last.min(limit),
                    size: end.saturating_sub(offset),
                };
                if each(range).is_break() {
                    return;
                }
            }
        }
    }
}
