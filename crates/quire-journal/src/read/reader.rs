//! Reading the log: by position, by bookmark, by time, from any thread, while it grows.
//!
//! Readers read the files into their own buffers. A batch is returned only after the checksums of
//! its header and body matched. Damage is an error that names file and offset, never a silent skip.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};

use crate::disk::{Disk, RealDisk};
use crate::error::JournalError;
use crate::format::find_record;
use crate::log::Log;
use crate::read::cursor::{AllTopics, Cursor};
use crate::record::{Bookmark, Position};
use crate::recover::{self, Followed};
use crate::segment::Segment;
use crate::segment::view::{READ_STEP, Reads, View};
use quire_types::Timestamp;

/// Read access to a journal. Cloning is cheap; clones read the same files.
#[derive(Clone)]
pub struct Reader {
    shared: Arc<Shared>,
}

struct Shared {
    /// It is replaced when another process has archived or removed its files. A cursor keeps the
    /// value with which it began, and so the removed files.
    log: RwLock<Arc<Log>>,
    /// The archive directory that was named.
    named_archive: Option<PathBuf>,
    /// Locked while the directory is opened again.
    reopening: Mutex<()>,
}

/// The file and the offset of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordPlace {
    /// The file.
    pub path: PathBuf,
    /// Where its batch begins, in bytes.
    pub offset: u64,
}

/// The state of a segment, which decides the possible actions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentState {
    /// It is the one that is written.
    Active,
    /// It is full.
    Sealed,
    /// It is in the archive directory.
    Archived,
    /// It is compressed, in either directory.
    Compressed,
}

impl SegmentState {
    /// As programs and people read it.
    pub const fn name(self) -> &'static str {
        match self {
            SegmentState::Active => "active",
            SegmentState::Sealed => "sealed",
            SegmentState::Archived => "archived",
            SegmentState::Compressed => "compressed",
        }
    }
}

/// A description of a segment.
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
    /// When this instance received both.
    pub timestamps: Option<(Timestamp, Timestamp)>,
    /// Records.
    pub count: u64,
    /// Size of the file, in bytes.
    pub size: u64,
    /// See [`SegmentState`].
    pub state: SegmentState,
}

/// A message in the log.
pub(crate) struct Located {
    segment: Arc<Segment>,
    position: Position,
    /// The offset of its batch in the segment, in bytes.
    offset: u64,
    pub sequence: u64,
}

impl Reader {
    pub(crate) fn new(log: Arc<Log>) -> Self {
        Reader::with_archive(log, None)
    }

    fn with_archive(log: Arc<Log>, named_archive: Option<PathBuf>) -> Self {
        let (log, reopening) = (RwLock::new(log), Mutex::default());
        Reader { shared: Arc::new(Shared { log, named_archive, reopening }) }
    }

    pub(crate) fn log(&self) -> Arc<Log> {
        self.shared.log.read().clone()
    }

    /// Opens a directory without a lock and without changing it. This is safe while a server runs:
    /// the reader follows its journal as it grows. Finds archived segments in the directory that
    /// `archive.place` names.
    ///
    /// # Errors
    /// As [`Reader::open_with_archive`].
    pub fn open_read_only(directory: impl AsRef<Path>) -> Result<Self, JournalError> {
        Reader::open_with_archive(directory, None)
    }

    /// The same for a journal whose older segments are in the directory `archive`. `archive.place`
    /// is ignored. Both directories are one log.
    ///
    /// # Errors
    /// [`JournalError::Missing`] when the oldest segments are not there. An error for a file that
    /// cannot be read, a gap in the files, or damage in a sealed segment whose index is missing.
    pub fn open_with_archive(
        directory: impl AsRef<Path>,
        archive: Option<&Path>,
    ) -> Result<Self, JournalError> {
        Reader::open_read_only_on(Arc::new(RealDisk), directory.as_ref(), archive)
    }

    /// The same on any disk: for simulation and tests.
    ///
    /// # Errors
    /// As [`Reader::open_with_archive`].
    pub fn open_read_only_on(
        disk: Arc<dyn Disk>,
        directory: &Path,
        archive: Option<&Path>,
    ) -> Result<Self, JournalError> {
        let log = recover::open_to_follow(disk, directory, archive)?;
        Ok(Reader::with_archive(Arc::new(log), archive.map(Path::to_owned)))
    }

    /// The first position that can be read, if there is one. Earlier files may have been removed.
    pub fn first(&self) -> Position {
        self.log().segments.read().first().map_or(Position(1), |segment| segment.first)
    }

    /// The first position of the newest segments that have at most `size_max` bytes together. The
    /// last segment is always one of them.
    pub fn start_of_newest(&self, size_max: u64) -> Position {
        let log = self.log();
        let segments = log.segments.read();
        let mut first = segments.last().map_or(Position(1), |segment| segment.first);
        let mut size = 0;
        for segment in segments.iter().rev() {
            size += segment.file_size;
            if size > size_max {
                break;
            }
            first = segment.first;
        }
        first
    }

    /// The first position of the segment that has, or will have, the position. `None` when that
    /// segment was removed.
    pub fn segment_start(&self, position: Position) -> Option<Position> {
        self.log().segment_at(position).map(|segment| segment.first)
    }

    /// The last position that can be read.
    pub fn persisted(&self) -> Position {
        self.log().persisted()
    }

    /// Waits until the submitted records up to `position` are persistent.
    ///
    /// # Errors
    /// [`JournalError::TimedOut`], or why the journal takes no more writes.
    pub fn wait_persisted(&self, position: Position, timeout: Duration) -> Result<(), JournalError> {
        self.log().wait(position, Instant::now() + timeout)
    }

    /// Searches for files that a writer in another process added, archived or removed. Cursors
    /// search for added files when they reach the end.
    ///
    /// A cursor that was made before still reads the files that it began with.
    ///
    /// # Errors
    /// As [`Reader::open_with_archive`].
    pub fn refresh(&self) -> Result<(), JournalError> {
        let log = self.log();
        if !log.follows || (!recover::has_lost_files(&log)? && recover::follow(&log)? == Followed::ToTheEnd) {
            return Ok(());
        }
        let _one_at_a_time = self.shared.reopening.lock();
        if Arc::ptr_eq(&log, &self.log()) {
            let reopened = recover::reopen_to_follow(&log, self.shared.named_archive.as_deref())?;
            *self.shared.log.write() = Arc::new(reopened);
        }
        Ok(())
    }

    /// The position of the message that the bookmark names, if the log has it.
    ///
    /// # Errors
    /// The file is damaged where the record should be.
    pub fn find(&self, bookmark: Bookmark) -> Result<Option<Position>, JournalError> {
        let found = self.find_from(bookmark)?;
        Ok(found.filter(|(sequence, _)| *sequence == bookmark.sequence).map(|(_, position)| position))
    }

    /// The message that the bookmark names, or the next one of its publisher that the log has: its
    /// sequence and position.
    ///
    /// # Errors
    /// The file is damaged where the record should be.
    pub fn find_from(&self, bookmark: Bookmark) -> Result<Option<(u64, Position)>, JournalError> {
        Ok(self.locate(bookmark)?.map(|found| (found.sequence, found.position)))
    }

    /// The first record, in the order of the log, of the publisher with this sequence or a higher
    /// one: its sequence and position. It is never a late one.
    ///
    /// # Errors
    /// The file is damaged where the record should be.
    pub fn find_first(&self, bookmark: Bookmark) -> Result<Option<(u64, Position)>, JournalError> {
        Ok(self.locate_in_order(bookmark)?.map(|found| (found.sequence, found.position)))
    }

    /// The segment that holds the message that the bookmark names, and the offset of its batch in
    /// bytes, if the log has it.
    ///
    /// # Errors
    /// The file is damaged where the record should be.
    pub fn find_place(&self, bookmark: Bookmark) -> Result<Option<(SegmentInfo, u64)>, JournalError> {
        let found = self.locate(bookmark)?.filter(|found| found.sequence == bookmark.sequence);
        Ok(found.map(|found| (self.info(&found.segment), found.offset)))
    }

    /// The message, or the next one of its publisher.
    fn locate(&self, bookmark: Bookmark) -> Result<Option<Located>, JournalError> {
        let late = self.nearest_late(bookmark);
        if late.is_none_or(|(sequence, _)| sequence > bookmark.sequence) {
            let found = self.locate_in_order(bookmark)?;
            if late.is_none_or(|(sequence, _)| found.as_ref().is_some_and(|found| found.sequence < sequence))
            {
                return Ok(found);
            }
        }
        late.map_or(Ok(None), |(sequence, position)| self.locate_at(position, sequence))
    }

    /// The persisted late record of the bookmark, or the next late one of its publisher: its
    /// sequence and its position. Most logs have none.
    fn nearest_late(&self, bookmark: Bookmark) -> Option<(u64, Position)> {
        let log = self.log();
        let sealed = log.publishers.read().with_late().to_vec();
        let active = log.segments.read().last().cloned();
        let segments = sealed.into_iter().filter_map(|number| log.segment(number)).chain(active);
        let late = segments
            .filter_map(|segment| segment.index.read().late_from(bookmark.publisher, bookmark.sequence));
        late.min()
    }

    /// The record at a position, whose sequence is known.
    fn locate_at(&self, position: Position, sequence: u64) -> Result<Option<Located>, JournalError> {
        let log = self.log();
        let Some(segment) = log.segment_at(position) else { return Ok(None) };
        let (segment, file) = log.reach(segment)?;
        let index = segment.index.read();
        let block = index.block_at(position);
        let block_end = index.blocks.get(block + 1).map_or(index.summary.end, |next| next.offset);
        let Some(mut offset) = index.blocks.get(block).map(|block| block.offset) else { return Ok(None) };
        drop(index);
        let mut view = View::new(&segment, file, Reads::sparingly(READ_STEP));
        while offset < block_end {
            let read = view.batch(offset, block_end);
            let (header, _) = read.map_err(|fault| segment.error_of(offset, fault, Position::ZERO))?;
            if position <= header.last() {
                let found = Located { segment, position, offset, sequence };
                return Ok((position <= self.persisted()).then_some(found));
            }
            offset += header.batch_size() as u64;
        }
        Ok(None)
    }

    /// The first record, in the order of the log, of the publisher with this sequence or a higher
    /// one. It is the nearest one, unless a late record is nearer.
    pub(crate) fn locate_in_order(&self, bookmark: Bookmark) -> Result<Option<Located>, JournalError> {
        let Bookmark { publisher, sequence } = bookmark;
        let log = self.log();
        let sealed = log.publishers.read().segment_of(publisher, sequence);
        let segment = match sealed {
            Some(number) => log.segment(number),
            None => log.segments.read().last().cloned(),
        };
        let Some(segment) = segment else { return Ok(None) };
        let (segment, file) = log.reach(segment)?;
        let index = segment.index.read();
        let Some(block) = index.block_of(publisher, sequence) else { return Ok(None) };
        let block_end = index.blocks.get(block as usize + 1).map_or(index.summary.end, |next| next.offset);
        let mut offset = index.blocks[block as usize].offset;
        drop(index);
        let mut view = View::new(&segment, file, Reads::sparingly(READ_STEP));
        while offset < block_end {
            let read = view.batch(offset, block_end);
            let (header, body) = read.map_err(|fault| segment.error_of(offset, fault, Position::ZERO))?;
            if let Some((at, sequence)) = find_record(body, publisher, sequence) {
                let position = Position(header.first.0 + at);
                let found = Located { segment, position, offset, sequence };
                return Ok((position <= self.persisted()).then_some(found));
            }
            offset += header.batch_size() as u64;
        }
        Ok(None)
    }

    /// The position of the last record that was taken at or before the instant. The position before
    /// the first record when there is none.
    ///
    /// # Errors
    /// The file is damaged where the record should be.
    pub fn position_before(&self, instant: Timestamp) -> Result<Position, JournalError> {
        // A segment that was sealed before it got a record has no time.
        let mut segments = self.log().segments.read().clone();
        segments.retain(|segment| segment.summary().count > 0);
        let at = segments.partition_point(|segment| segment.summary().first_timestamp <= instant);
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

    /// The time of the first record of the block of the position, which is not after the time of
    /// its record. `None` when the log does not have the record. Reads nothing from the disk.
    pub fn time_before(&self, position: Position) -> Option<Timestamp> {
        let segment = self.log().segment_at(position)?;
        let index = segment.index.read();
        index.blocks.get(index.block_at(position)).map(|block| block.first_timestamp)
    }

    /// A cursor over the records after the position.
    pub fn cursor(&self, after: Position) -> Cursor {
        Cursor::new(self.log(), after)
    }

    /// A description of every segment, oldest first.
    pub fn segments(&self) -> Vec<SegmentInfo> {
        let segments = self.log().segments.read().clone();
        segments.iter().map(|segment| self.info(segment)).collect()
    }

    pub(crate) fn info(&self, segment: &Segment) -> SegmentInfo {
        // Read before the contents: if the segment is sealed in between, the contents may be
        // incomplete.
        let is_sealed = segment.is_sealed();
        let summary = segment.summary();
        let positions = (summary.count > 0).then_some((segment.first, summary.last));
        let record = |position: Position| {
            let batch = self.cursor(Position(position.0 - 1)).next(position, &AllTopics).ok()??;
            batch.records().last().map(|record| record.bookmark())
        };
        let bookmarks = positions.and_then(|(first, last)| {
            let read = || Some((record(first)?, record(last)?));
            if is_sealed { segment.ends(read) } else { read() }
        });
        SegmentInfo {
            path: segment.path.clone(),
            number: segment.number,
            positions,
            bookmarks,
            timestamps: positions.map(|_| (summary.first_timestamp, summary.last_timestamp)),
            count: summary.count,
            size: segment.file_size,
            state: segment.state(is_sealed),
        }
    }
}
