//! The data that a reader would have to read, from the indexes alone. It divides work over the log
//! into parts before the work begins.

use std::ops::ControlFlow;

use crate::error::JournalError;
use crate::read::cursor::TopicFilter;
use crate::read::reader::Reader;
use crate::record::Position;
use crate::segment::index::Index;

/// Consecutive records that are read as a unit: the part of a block that is within the range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockRange {
    /// The first position in it.
    pub first: Position,
    /// The last position in it.
    pub last: Position,
    /// Its bytes in the segment. The bytes of the whole block when the range begins or ends within
    /// it.
    pub size: u64,
}

/// The knowledge of the index about the records of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockContent<'a> {
    /// Every record is a message.
    pub has_only_messages: bool,
    /// Their topic, when all have the same one.
    pub topic: Option<&'a str>,
}

impl Reader {
    /// Passes all ranges after `after`, up to `limit`, to the callback, with a description of their
    /// records, oldest first. Reads no record, so it does not notice damage.
    ///
    /// # Errors
    /// [`JournalError::Removed`] when another process removed a file of the range.
    pub fn for_each_block_content(
        &self,
        after: Position,
        limit: Position,
        mut each: impl FnMut(BlockRange, BlockContent<'_>),
    ) -> Result<(), JournalError> {
        let log = self.log();
        let limit = limit.min(log.persisted());
        let segments = log.segments.read().clone();
        let begin = segments.partition_point(|segment| segment.first <= after.next()).saturating_sub(1);
        for segment in segments[begin..].iter().take_while(|segment| segment.first <= limit) {
            if segment.summary().last <= after {
                continue;
            }
            let (segment, _) = log.reach(segment.clone())?;
            let index = segment.index.read();
            let topics = index.only_topics();
            let mut with_events = index.with_events.iter().flatten().peekable();
            for (at, topic) in topics.into_iter().enumerate() {
                let has_events = index.with_events.is_none()
                    || with_events.next_if(|block| **block == at as u32).is_some();
                if let Some(range) = index.range_of(at, after, limit) {
                    each(range, BlockContent { has_only_messages: !has_events, topic });
                }
            }
        }
        Ok(())
    }

    /// Passes the ranges after `after`, up to `limit`, that have a wanted topic to `each`, oldest
    /// first, until `each` breaks. Reads no record.
    ///
    /// For the active segment, the topics are known only as far as this reader has followed it.
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
                let Some(range) = index.range_of(block, after, limit) else { continue };
                if each(range).is_break() {
                    return;
                }
            }
        }
    }
}

impl Index {
    /// The part of a block that is after `after`, up to `limit`.
    fn range_of(&self, block: usize, after: Position, limit: Position) -> Option<BlockRange> {
        let (first, offset) = (self.blocks[block].first, self.blocks[block].offset);
        let next = self.blocks.get(block + 1);
        let last = next.map_or(self.summary.last, |next| Position(next.first.0.saturating_sub(1)));
        let end = next.map_or(self.summary.end, |next| next.offset);
        let is_within = last > after && first <= limit;
        is_within.then(|| BlockRange {
            first: first.max(after.next()),
            last: last.min(limit),
            size: end.saturating_sub(offset),
        })
    }

    /// For each block its topic, if it holds only one.
    fn only_topics(&self) -> Vec<Option<&str>> {
        let mut counts = vec![0_u32; self.blocks.len()];
        let mut only = vec![None; self.blocks.len()];
        for (topic, blocks) in &self.topics {
            for block in blocks {
                counts[*block as usize] += 1;
                only[*block as usize] = Some(&**topic);
            }
        }
        counts.iter().zip(only).map(|(count, topic)| topic.filter(|_| *count == 1)).collect()
    }
}
