//! Reading the log: by position, by bookmark, by time, from any thread, while it grows.
//!
//! Readers map the segments read-only. A batch is handed out only after the checksums of its header and body matched; damage is an error
//! that names file and offset, never a silent skip.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::disk::{Disk, RealDisk};
use crate::error::JournalError;
use crate::format::{BATCH_HEADER_SIZE, SEGMENT_HEADER_SIZE, split_record};
use crate::log::Log;
use crate::record::{Bookmark, Position, Record};
use crate::recover;
use crate::segment::{Segment, holds_records};
use crate::timestamp::Timestamp;

/// Read access to a journal. Cloning is cheap.
#[derive(Clone)]
pub struct Reader {
    log: Arc<Log>,
}

/// Where a record lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The file.
    pub path: PathBuf,
    /// Where its batch begins, in bytes.
    pub offset: u64,
}

/// What can be done with a segment, and by whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentState {
    /// It is being written to.
    Active,
    /// It is full.
    Sealed,
}

/// What a segment holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentInfo {
    /// The file.
    pub path: PathBuf,
    /// Its number in the log.
    pub number: u32,
    /// Positions of the first and the last record; `None` when it is empty.
    pub positions: Option<(Position, Position)>,
    /// Bookmarks of both.
    pub bookmarks: Option<(Bookmark, Bookmark)>,
    /// When this instance took both.
    pub timestamps: Option<(Timestamp, Timestamp)>,
    /// Records.
    pub count: u64,
    /// Size of the file, in bytes.
    pub size: u64,
    /// See [`SegmentState`].
    pub state: SegmentState,
}

/// A place at which the bytes are not what was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The file.
    pub path: PathBuf,
    /// Where it begins, in bytes.
    pub offset: u64,
    /// What is wrong.
    pub reason: &'static str,
}

/// Which topics a cursor is for; it may skip what holds no other.
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

impl Reader {
    pub(crate) fn new(log: Arc<Log>) -> Self {
        Reader { log }
    }

    /// Opens a directory without a lock and without changing it: safe beside a running server, whose journal it follows as it grows.
    ///
    /// # Errors
    /// What cannot be read, a gap in the files, damage in a sealed segment whose index is missing.
    pub fn open_read_only(directory: impl AsRef<Path>) -> Result<Self, JournalError> {
        let disk: Arc<dyn Disk> = Arc::new(RealDisk);
        let mut recovered = recover::load(disk, directory.as_ref(), true, &mut |_| ())?;
        recover::load_tail(&mut recovered);
        Ok(Reader { log: Arc::new(recovered.log) })
    }

    /// The first position that can be read, once there is one: files may have been removed before it.
    pub fn first(&self) -> Position {
        self.log.segments.read().first().map_or(Position(1), |segment| segment.first)
    }

    /// The last position that can be read.
    pub fn persisted(&self) -> Position {
        self.log.persisted()
    }

    /// Looks for what a writer in another process added. Cursors do so by themselves when they reach the end.
    ///
    /// # Errors
    /// What cannot be read.
    pub fn refresh(&self) -> Result<(), JournalError> {
        if self.log.follows { recover::follow(&self.log) } else { Ok(()) }
    }

    /// The position of the message that the bookmark names, if the log has it.
    ///
    /// # Errors
    /// Damage where it should be.
    pub fn find(&self, bookmark: Bookmark) -> Result<Option<Position>, JournalError> {
        let Bookmark { publisher, sequence } = bookmark;
        let sealed = self.log.sealed_publishers.read().get(&publisher).and_then(|segments| {
            segments.get(segments.partition_point(|(last, _)| *last < sequence)).map(|(_, number)| *number)
        });
        let segment = match sealed {
            Some(number) => self.log.segment(number),
            None => self.log.segments.read().last().cloned(),
        };
        let Some(segment) = segment else { return Ok(None) };
        let index = segment.index.read();
        let Some(block) = index.block_of(publisher, sequence) else { return Ok(None) };
        let block_end = index.blocks.get(block as usize + 1).map_or(index.summary.end, |next| next.offset);
        let mut offset = index.blocks[block as usize].offset;
        drop(index);
        while offset < block_end {
            let (header, body) =
                segment.batch(offset).map_err(|reason| segment.corrupt(offset, reason, Position::ZERO))?;
            let mut rest = body;
            for i in 0..u64::from(header.count) {
                let Some((record, after)) = split_record(rest, Position(header.first.0 + i)) else { break };
                if record.publisher == publisher && record.sequence == sequence {
                    return Ok(Some(record.position).filter(|position| *position <= self.persisted()));
                }
                rest = after;
            }
            offset += header.batch_size() as u64;
        }
        Ok(None)
    }

    /// The position of the last record taken at or before the instant; that before the first record when there is none.
    ///
    /// # Errors
    /// Damage where it should be.
    pub fn position_before(&self, instant: Timestamp) -> Result<Position, JournalError> {
        let segments = self.log.segments.read().clone();
        let at = segments.partition_point(|segment| {
            let summary = segment.summary();
            summary.count > 0 && summary.first_timestamp <= instant
        });
        let before_first = Position(self.first().0 - 1);
        let Some(segment) = at.checked_sub(1).and_then(|at| segments.get(at)) else {
            return Ok(before_first);
        };
        let index = segment.index.read();
        let block = index.blocks.partition_point(|block| block.first_timestamp <= instant).saturating_sub(1);
        let Some(block) = index.blocks.get(block).copied() else { return Ok(before_first) };
        drop(index);
        let mut cursor = self.cursor(Position(block.first.0 - 1));
        let mut found = Position(block.first.0 - 1);
        while let Some(batch) = cursor.next(self.persisted(), &AllTopics)? {
            for record in batch.records() {
                if record.timestamp > instant {
                    return Ok(found);
                }
                found = record.position;
            }
        }
        Ok(found)
    }

    /// Where the record with this position lies.
    pub fn place(&self, position: Position) -> Option<Place> {
        let mut cursor = self.cursor(Position(position.0.checked_sub(1)?));
        let batch = cursor.next(position, &AllTopics).ok()??;
        Some(Place { path: batch.segment.path.clone(), offset: batch.offset })
    }

    /// A cursor that gives what comes after the position.
    pub fn cursor(&self, after: Position) -> Cursor {
        let after = after.max(Position(self.first().0 - 1));
        Cursor { log: self.log.clone(), after, place: None }
    }

    /// What every segment holds, oldest first.
    pub fn segments(&self) -> Vec<SegmentInfo> {
        let segments = self.log.segments.read().clone();
        segments.iter().map(|segment| self.info(segment)).collect()
    }

    /// Checks every byte that was written; empty when all is sound.
    pub fn verify(&self) -> Vec<Damage> {
        let segments = self.log.segments.read().clone();
        let mut damages = Vec::new();
        let mut previous = None;
        for segment in &segments {
            let summary = segment.summary();
            let mut offset = SEGMENT_HEADER_SIZE;
            let mut damage =
                |offset, reason| damages.push(Damage { path: segment.path.clone(), offset, reason });
            while offset < summary.end {
                let reason = match segment.batch(offset) {
                    Ok((header, _)) if previous.is_some_and(|previous| previous != header.previous) => {
                        "the batch does not follow the one before it"
                    }
                    Ok((header, body)) if holds_records(&header, body) => {
                        previous = Some(header.checksum);
                        offset += header.batch_size() as u64;
                        continue;
                    }
                    Ok(_) => "the batch does not hold the records that it counts",
                    Err(reason) => reason,
                };
                damage(offset, reason);
                // Its length cannot be believed: on with the next batch that the index knows.
                previous = None;
                let index = segment.index.read();
                match index.blocks.get(index.blocks.partition_point(|block| block.offset <= offset)) {
                    Some(block) => offset = block.offset,
                    None => break,
                }
            }
            if offset >= summary.end && previous.is_some() {
                previous = Some(summary.checksum);
            }
        }
        damages
    }

    fn info(&self, segment: &Segment) -> SegmentInfo {
        let summary = segment.summary();
        let positions = (summary.count > 0).then_some((segment.first, summary.last));
        let record = |position: Position| {
            let batch = self.cursor(Position(position.0 - 1)).next(position, &AllTopics).ok()??;
            batch.records().last().map(|record| record.bookmark())
        };
        SegmentInfo {
            path: segment.path.clone(),
            number: segment.number,
            positions,
            bookmarks: positions.and_then(|(first, last)| Some((record(first)?, record(last)?))),
            timestamps: positions.map(|_| (summary.first_timestamp, summary.last_timestamp)),
            count: summary.count,
            size: segment.size,
            state: if segment.is_sealed() { SegmentState::Sealed } else { SegmentState::Active },
        }
    }
}

/// A place in the log that moves forward.
pub struct Cursor {
    log: Arc<Log>,
    after: Position,
    place: Option<CursorPlace>,
}

struct CursorPlace {
    segment: Arc<Segment>,
    /// Where the next batch begins.
    offset: u64,
    /// In a sealed segment: the blocks that hold a wanted topic, `None` = all.
    wanted: Option<Vec<u32>>,
}

impl Cursor {
    /// Everything up to here was given out or skipped.
    pub fn after(&self) -> Position {
        self.after
    }

    /// The next records up to `limit`, at most one batch of them; `None` when the limit, or the end of what is persistent, is reached.
    /// Blocks of sealed segments that hold no wanted topic are skipped; what is given may hold other topics.
    ///
    /// # Errors
    /// [`JournalError::Corrupt`] for damage; the cursor stays before it.
    pub fn next(&mut self, limit: Position, wants: &dyn TopicFilter) -> Result<Option<Batch>, JournalError> {
        if self.log.follows && limit > self.log.persisted() && self.after >= self.log.persisted() {
            recover::follow(&self.log)?;
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
            if place.offset >= place.segment.summary().end {
                // The next position is in the next segment: there is one, since the position is below the limit.
                self.place = None;
                continue;
            }
            let (header, body) = place
                .segment
                .batch(place.offset)
                .map_err(|reason| place.segment.corrupt(place.offset, reason, self.after))?;
            if header.count == 0 || header.last() <= self.after {
                place.offset += header.batch_size() as u64;
                continue;
            }
            if !holds_records(&header, body) {
                return Err(place.segment.corrupt(
                    place.offset,
                    "the batch does not hold the records that it counts",
                    self.after,
                ));
            }
            let batch = Batch {
                segment: place.segment.clone(),
                offset: place.offset,
                size: body.len(),
                batch_first: header.first,
                first: self.after.next(),
                last: header.last().min(limit),
            };
            if batch.last == header.last() {
                place.offset += header.batch_size() as u64;
            }
            self.after = batch.last;
            return Ok(Some(batch));
        }
        Ok(None)
    }

    fn locate(&self, wants: &dyn TopicFilter) -> Result<Option<CursorPlace>, JournalError> {
        let next = self.after.next();
        let Some(segment) = self.log.segment_at(next) else { return Ok(None) };
        let index = segment.index.read();
        let offset = index.blocks.get(index.block_at(next)).map_or(SEGMENT_HEADER_SIZE, |block| block.offset);
        let wanted = if segment.is_sealed() { index.blocks_with(&|topic| wants.wants(topic)) } else { None };
        drop(index);
        Ok(Some(CursorPlace { segment, offset, wanted }))
    }
}

impl CursorPlace {
    /// Moves on to the next block that holds a wanted topic; gives the position before it when that is a skip.
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

/// A run of records, checked, held by the mapping of its segment.
#[derive(Clone)]
pub struct Batch {
    segment: Arc<Segment>,
    offset: u64,
    size: usize,
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

    /// Bytes that its records take in the log.
    pub fn size(&self) -> usize {
        self.size
    }

    /// The records in order.
    pub fn records(&self) -> Records<'_> {
        let body =
            self.segment.mapping.bytes(self.offset + BATCH_HEADER_SIZE as u64, self.size).unwrap_or_default();
        Records { body, next: self.batch_first, first: self.first, last: self.last }
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
