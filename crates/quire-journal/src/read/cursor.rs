//! Moving through the log, batch by batch.

use std::ops::Range;
use std::sync::Arc;

use crate::error::JournalError;
use crate::format::{BATCH_HEADER_SIZE, SEGMENT_HEADER_SIZE, fault_of, skip_record, split_record};
use crate::log::Log;
use crate::read::pins::Pin;
use crate::read::reader::RecordPlace;
use crate::record::{Position, Record};
use crate::recover::{self, Followed};
use crate::segment::index::Wanted;
use crate::segment::view::{READ_STEP, Reads, View};
use crate::segment::{Segment, holds_records};

/// The topics that a cursor reads. It may skip blocks without a wanted topic.
pub trait TopicFilter {
    /// Whether messages of this topic are wanted.
    fn wants(&self, topic: &str) -> bool;
}

/// Every topic.
#[derive(Clone, Copy, Debug, Default)]
pub struct AllTopics;

impl TopicFilter for AllTopics {
    fn wants(&self, _topic: &str) -> bool {
        true
    }
}

/// A position in the log that moves forward.
pub struct Cursor {
    log: Arc<Log>,
    after: Position,
    place: Option<CursorPlace>,
    wanted: Wanted,
    reads: Reads,
    /// Prevents that the segments from `after` on are removed.
    pin: Pin,
}

struct CursorPlace {
    segment: Arc<Segment>,
    view: View,
    /// Where the next batch begins.
    offset: u64,
    /// Where the last returned batch begins.
    given: u64,
    /// In a sealed segment: the blocks that have a wanted topic; `None` = all.
    wanted: Option<Vec<u32>>,
}

impl Cursor {
    pub(crate) fn new(log: Arc<Log>, after: Position) -> Self {
        let pin = log.pins.pin(|| after.max(log.before_first()));
        Cursor { log, after: pin.after(), place: None, wanted: Wanted::default(), reads: Reads::AHEAD, pin }
    }

    /// Reads little more from the disk than it returns. For a reader that runs while other threads
    /// wait for the same disk, or that wants few of many records.
    pub fn sparingly(mut self) -> Self {
        self.reads = Reads::sparingly(READ_STEP);
        self
    }

    /// As [`Cursor::sparingly`], and reads `step` bytes from the disk at a time instead of 256 KiB.
    /// The reason: a sync of another thread waits for the reads that were requested before it.
    pub fn set_read_step(&mut self, step: usize) {
        self.reads = Reads::sparingly(step);
    }

    /// Returns its buffers to the log, and continues after `after`, which is in the batch that it
    /// returned last.
    pub fn rest_at(&mut self, after: Position) {
        if let Some(place) = &mut self.place {
            if after < self.after {
                place.offset = place.given;
            }
            place.view.release();
        }
        self.after = after;
    }

    /// Everything up to here was returned or skipped.
    pub fn after(&self) -> Position {
        self.after
    }

    /// The next records up to `limit`, at most one batch. `None` when the limit, or the last
    /// persistent record, is reached. Blocks of sealed segments without a wanted topic are skipped.
    /// The returned batch may contain other topics.
    ///
    /// `wants` is called once for every topic of the log. For the same name it must always return
    /// the same, or change to false.
    ///
    /// # Errors
    /// [`JournalError::Corrupt`] for damage. [`JournalError::Unreadable`] for bytes that the disk
    /// cannot read. [`JournalError::Removed`] when another process removed the next records; the
    /// cursor stays before them.
    pub fn next(&mut self, limit: Position, wants: &dyn TopicFilter) -> Result<Option<Batch>, JournalError> {
        if self.log.follows && limit > self.log.persisted() && self.after >= self.log.persisted() {
            let followed = recover::follow(&self.log)?;
            if followed == Followed::FilesGone {
                let (directory, after) = (self.log.directory.clone(), self.after);
                return Err(JournalError::Removed { directory, after });
            }
        }
        let limit = limit.min(self.log.persisted());
        while self.after < limit {
            if self.place.is_none() {
                self.place = self.locate(wants)?;
            }
            let Some(place) = &mut self.place else { return Ok(None) };
            if let Some(to) = place.skip(self.after) {
                self.after = to.min(limit);
                if to >= limit {
                    self.place = None;
                    return Ok(None);
                }
            }
            let summary = place.segment.summary();
            if place.offset >= summary.end {
                if self.after < summary.last {
                    // The index is forged: the batches end before the positions that it names.
                    let reason = "the batches end before the last position of the segment";
                    return Err(place.segment.corrupt(summary.end, reason, self.after));
                }
                // The next position is in the next segment. It exists, because the position is
                // below the limit.
                self.place = None;
                continue;
            }
            let (segment, offset) = (place.segment.clone(), place.offset);
            let unreadable = |fault| segment.error_of(offset, fault, self.after);
            place.view.set_reads(self.reads);
            let until = place.read_end(self.reads);
            let (header, body) = place.view.batch(offset, until).map_err(unreadable)?;
            if header.count == 0 || header.last() <= self.after {
                place.offset += header.batch_size() as u64;
                continue;
            }
            if !holds_records(&header, body) {
                return Err(unreadable(fault_of(&header, body).into()));
            }
            let size = body.len();
            let shared = place.view.share(offset + BATCH_HEADER_SIZE as u64, size);
            let Some((bytes, body)) = shared else { return Err(unreadable("the segment ends here".into())) };
            let batch = Batch {
                segment: segment.clone(),
                bytes,
                body,
                offset,
                batch_first: header.first,
                first: self.after.next(),
                last: header.last().min(limit),
            };
            place.given = offset;
            if batch.last == header.last() {
                place.offset += header.batch_size() as u64;
            }
            self.after = batch.last;
            return Ok(Some(batch));
        }
        Ok(None)
    }

    fn locate(&mut self, wants: &dyn TopicFilter) -> Result<Option<CursorPlace>, JournalError> {
        let next = self.after.next();
        // A reader in a segment has passed the earlier segments.
        self.pin.move_to(self.after);
        self.wanted.forget_removed();
        let Some(segment) = self.log.segment_at(next) else { return Ok(None) };
        let (segment, file) = self.log.reach(segment)?;
        let index = segment.index.read();
        let offset = index.blocks.get(index.block_at(next)).map_or(SEGMENT_HEADER_SIZE, |block| block.offset);
        let wanted = match segment.is_sealed() {
            true => index.blocks_with(|topic| self.wanted.wants(topic, |topic| wants.wants(topic))),
            false => None,
        };
        drop(index);
        let view = View::new(&segment, file, self.reads);
        Ok(Some(CursorPlace { segment, view, offset, given: offset, wanted }))
    }
}

impl CursorPlace {
    /// Where to end a read when the next batch is not in memory. A reader that jumps reads the
    /// block.
    fn read_end(&self, reads: Reads) -> u64 {
        if self.view.covers(self.offset) {
            return self.offset;
        }
        let step = if self.view.goes_on_at(self.offset) { reads.step } else { 0 };
        self.segment.index.read().read_end(self.offset, step as u64)
    }

    /// Moves to the next block that has a wanted topic. Returns the position before the block when
    /// it has skipped others.
    fn skip(&mut self, after: Position) -> Option<Position> {
        let wanted = self.wanted.as_ref()?;
        let index = self.segment.index.read();
        let here = index.blocks.partition_point(|block| block.offset <= self.offset).saturating_sub(1) as u32;
        let at = wanted.partition_point(|block| *block < here);
        match wanted.get(at) {
            Some(block) if *block == here => None,
            Some(block) => {
                let block = index.blocks[*block as usize];
                self.offset = block.offset;
                Some(Position(block.first.0 - 1).max(after))
            }
            None => {
                self.offset = index.summary.end;
                Some(index.summary.last.max(after))
            }
        }
    }
}

/// Consecutive records, checked. It holds the bytes that were read together with them: at most some
/// hundred KiB, or only its bytes when these are more.
#[derive(Clone)]
pub struct Batch {
    segment: Arc<Segment>,
    bytes: Arc<Vec<u8>>,
    /// The range of its records in the bytes.
    body: Range<usize>,
    /// Where it begins in the segment.
    offset: u64,
    batch_first: Position,
    first: Position,
    last: Position,
}

impl Batch {
    /// The first position in it.
    pub fn first(&self) -> Position {
        self.first
    }

    /// The last position in it.
    pub fn last(&self) -> Position {
        self.last
    }

    /// The file and the offset of the batch.
    pub fn place(&self) -> RecordPlace {
        RecordPlace { path: self.segment.path.clone(), offset: self.offset }
    }

    /// Bytes that its records take in the log.
    pub fn size(&self) -> usize {
        self.body.len()
    }

    /// The records in order.
    pub fn records(&self) -> Records<'_> {
        Records { body: self.body(), next: self.batch_first, first: self.first, last: self.last }
    }

    /// Where each record begins, for [`Batch::record_at`].
    pub fn offsets(&self) -> Vec<u32> {
        let body = self.body();
        let (mut rest, mut offsets) = (body, Vec::new());
        for position in self.batch_first.0..=self.last.0 {
            // `Cursor::next` checked that the body holds the records.
            let Some(after) = skip_record(rest) else { break };
            if position >= self.first.0 {
                offsets.push((body.len() - rest.len()) as u32);
            }
            rest = after;
        }
        offsets
    }

    /// The record that begins at one of the [`Batch::offsets`], and has this `position`.
    pub fn record_at(&self, offset: u32, position: Position) -> Option<Record<'_>> {
        split_record(self.body().get(offset as usize..)?, position).map(|(record, _)| record)
    }

    fn body(&self) -> &[u8] {
        &self.bytes[self.body.clone()]
    }
}

/// The records of a [`Batch`].
pub struct Records<'a> {
    body: &'a [u8],
    next: Position,
    first: Position,
    last: Position,
}

impl<'a> Iterator for Records<'a> {
    type Item = Record<'a>;

    #[inline]
    fn next(&mut self) -> Option<Record<'a>> {
        while self.next <= self.last {
            // `Cursor::next` checked that the body holds the records.
            let (record, rest) = split_record(self.body, self.next)?;
            self.body = rest;
            self.next = self.next.next();
            if record.position >= self.first {
                return Some(record);
            }
        }
        None
    }
}
