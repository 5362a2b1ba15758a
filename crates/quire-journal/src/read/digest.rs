//! Digests of the messages of a log: two instances compare them without sending records
//! (`docs/internals/copies.md`, *Holes*).
//!
//! [`Journal::publisher_digests`] says from memory which publishers differ.
//! The functions here say which of their messages differ: first by ranges of 1,024 sequences, from
//! the index files, then by message, from the blocks that have such a range.
//!
//! [`Journal::publisher_digests`]: crate::Journal::publisher_digests

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::error::JournalError;
use crate::format::split_raw;
use crate::knowledge::record_hash;
use crate::log::Log;
use crate::read::reader::Reader;
use crate::record::{Bookmark, Position, PublisherId};
use crate::segment::index::Index;
use crate::segment::sums::{RANGE_COUNT, RangeSum, Sums, for_each_in};
use crate::segment::view::{READ_STEP, Reads, View};
use crate::segment::{Segment, index_file, index_path};

/// The digest of the messages of one publisher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PublisherDigest {
    /// The publisher.
    pub publisher: PublisherId,
    /// Its highest sequence.
    pub highest: u64,
    /// The sum of the hashes of its records, modulo 2^64. It does not depend on their order.
    /// Records that were removed since count.
    pub sum: u64,
}

impl PublisherDigest {
    /// A hash of all fields.
    pub fn hash(&self) -> u64 {
        record_hash(Bookmark { publisher: self.publisher, sequence: self.highest }, self.sum)
    }
}

/// A publisher, and the number of one of its [ranges](RangeSum).
pub type SequenceRange = (PublisherId, u64);

/// A message of the log: its bookmark and its run.
pub type MessageRun = (Bookmark, u64);

impl Reader {
    /// The sums of the persistent records of some publishers, by ranges of sequences, ascending.
    /// Reads the index files, and the records of the active segment. The index file of an older
    /// build has no sums. Then the segment is read, and the file is written again.
    ///
    /// # Errors
    /// A segment is damaged or cannot be read, or another process removed it.
    pub fn range_sums(
        &self,
        publishers: &BTreeSet<PublisherId>,
    ) -> Result<BTreeMap<PublisherId, Vec<RangeSum>>, JournalError> {
        let log = self.log();
        let mut all: BTreeMap<SequenceRange, (u32, u64)> = BTreeMap::new();
        let segments = log.segments.read().clone();
        for segment in segments {
            for_each_range(&log, segment, |publisher, range| {
                if publishers.contains(&publisher) {
                    let (count, sum) = all.entry((publisher, range.number)).or_default();
                    *count = count.saturating_add(range.count);
                    *sum = sum.wrapping_add(range.sum);
                }
            })?;
        }
        let mut by_publisher: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for ((publisher, number), (count, sum)) in all {
            by_publisher.entry(publisher).or_default().push(RangeSum { number, count, sum });
        }
        Ok(by_publisher)
    }

    /// The persistent messages of these ranges, ascending. Reads the blocks that have some of them.
    ///
    /// # Errors
    /// As [`Reader::range_sums`].
    pub fn messages_in(&self, ranges: &BTreeSet<SequenceRange>) -> Result<Vec<MessageRun>, JournalError> {
        let log = self.log();
        let mut messages = Vec::new();
        let segments = log.segments.read().clone();
        for segment in segments {
            let (segment, file) = log.reach(segment)?;
            let index = segment.index.read();
            let blocks: Vec<_> =
                blocks_with(&index, ranges).into_iter().map(|at| extent(&index, at)).collect();
            drop(index);
            let mut view = View::new(&segment, file, Reads::sparingly(READ_STEP));
            for (mut offset, end) in blocks {
                while offset < end {
                    let read = view.batch(offset, end);
                    let (header, mut body) =
                        read.map_err(|fault| segment.error_of(offset, fault, Position::ZERO))?;
                    while let Some((record, rest)) = split_raw(body) {
                        let step = record.step();
                        if ranges.contains(&range_of(step.bookmark)) {
                            messages.push((step.bookmark, step.run));
                        }
                        body = rest;
                    }
                    offset += header.batch_size() as u64;
                }
            }
        }
        messages.sort_unstable();
        Ok(messages)
    }

    /// The sequence from which on the log has the records of a publisher, as far as files were
    /// removed; 0 when none was. Only late records below it can be there. `u64::MAX` when all its
    /// other records were removed.
    ///
    /// # Errors
    /// As [`Reader::range_sums`].
    pub fn kept_from(&self, publisher: PublisherId) -> Result<u64, JournalError> {
        if self.first() == Position(1) {
            return Ok(0);
        }
        let first = self.locate_in_order(Bookmark { publisher, sequence: 0 })?;
        Ok(first.map_or(u64::MAX, |found| found.sequence))
    }
}

fn range_of(bookmark: Bookmark) -> SequenceRange {
    (bookmark.publisher, bookmark.sequence / RANGE_COUNT)
}

/// Passes the sums of the persistent records of a segment to `each`, in no order.
fn for_each_range(
    log: &Log,
    segment: Arc<Segment>,
    each: impl FnMut(PublisherId, RangeSum),
) -> Result<(), JournalError> {
    let is_sealed = segment.is_sealed();
    let (segment, _) = log.reach(segment)?;
    if is_sealed
        && let Ok(bytes) = log.disk.read(&index_path(&segment.path))
        && let Some(sums) = index_file::sums(&bytes, &segment.index.read(), segment.number)
    {
        // They were checked as a whole.
        let _ = for_each_in(sums, each);
        return Ok(());
    }
    let mut sums = Sums::default();
    segment.for_each_step(|_, step| sums.add(&step))?;
    // The oldest version of an index file has no place for them.
    if is_sealed && !log.follows && segment.index.read().with_events.is_some() {
        // A disk that refuses the file also refuses the writer, which reports it. The next reader
        // reads the segment again.
        let _ = log.write_index(segment.number, &sums);
    }
    sums.for_each(each);
    Ok(())
}

/// The blocks that can have a message of the ranges, in order.
fn blocks_with(index: &Index, ranges: &BTreeSet<SequenceRange>) -> BTreeSet<usize> {
    let mut blocks = BTreeSet::new();
    for (publisher, number) in ranges {
        let first = number.saturating_mul(RANGE_COUNT);
        let last = first.saturating_add(RANGE_COUNT - 1);
        let marks = index.publishers.get(publisher).map_or(&[][..], |marks| marks);
        let begin = marks.partition_point(|mark| mark.sequence < first);
        let end = marks.partition_point(|mark| mark.sequence < last);
        blocks.extend(marks[begin..].iter().take(end + 1 - begin).map(|mark| mark.block as usize));
        let late = index.late.range((*publisher, first)..=(*publisher, last));
        blocks.extend(late.map(|(_, position)| index.block_at(*position)));
    }
    blocks
}

/// Where the block begins in the segment, and where it ends.
fn extent(index: &Index, block: usize) -> (u64, u64) {
    let end = index.blocks.get(block + 1).map_or(index.summary.end, |next| next.offset);
    (index.blocks[block].offset, end)
}
