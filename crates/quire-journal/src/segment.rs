//! One journal file: mapped, indexed, and read batch by batch.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::RwLock;

use crate::disk::{File, Mapping};
use crate::error::JournalError;
use crate::format::{
    BATCH_HEADER_SIZE, BatchHeader, HeaderError, SEGMENT_HEADER_FIELDS, SEGMENT_HEADER_SIZE, SegmentHeader,
    split_record,
};
use crate::index::{Index, Names, Summary};
use crate::packed::FrameTable;
use crate::record::{Bookmark, Position};
use crate::view::{Reads, View};

pub(crate) struct Segment {
    pub number: u32,
    pub path: PathBuf,
    /// The first position that it may hold.
    pub first: Position,
    /// Size that offsets in it are below, in bytes: that of the file before it was compressed.
    pub size: u64,
    pub mapping: Mapping,
    /// The same bytes, of which the disk reads only what it is asked for ([`Mapping::expect_jumps`]).
    pub sparing: Mapping,
    /// Of a compressed segment.
    pub frames: Option<FrameTable>,
    /// It lies in the archive directory.
    pub is_archived: bool,
    /// Shared with the segment that stands for this one when its file is replaced.
    pub index: Arc<RwLock<Index>>,
    sealed: AtomicBool,
    /// Bookmarks of the first and the last record, once somebody asked for those of the sealed segment.
    ends: OnceLock<(Bookmark, Bookmark)>,
    /// Its header is on stable storage: after any crash the log goes on in it.
    durable: AtomicBool,
}

impl Segment {
    pub fn new(
        path: PathBuf,
        header: &SegmentHeader,
        file: &dyn File,
        index: Index,
        is_archived: bool,
    ) -> Result<Arc<Self>, JournalError> {
        let index = Arc::new(RwLock::new(index));
        Segment::with_index(path, header, file, index, is_archived).map(Arc::new)
    }

    fn with_index(
        path: PathBuf,
        header: &SegmentHeader,
        file: &dyn File,
        index: Arc<RwLock<Index>>,
        is_archived: bool,
    ) -> Result<Self, JournalError> {
        let mapping = file.map().map_err(|error| JournalError::io(&path, "mapping the segment", &error))?;
        let sparing = file.map().map_err(|error| JournalError::io(&path, "mapping the segment", &error))?;
        sparing.expect_jumps();
        let SegmentHeader { number, first, .. } = *header;
        let frames = match header.table {
            0 => None,
            _ => Some(FrameTable::read(&mapping, header).map_err(|reason| {
                let (path, readable_to) = (path.clone(), Position(first.0 - 1));
                JournalError::Corrupt { path, offset: header.table, reason, readable_to }
            })?),
        };
        let size = if frames.is_some() { header.size } else { mapping.size() as u64 };
        let (sealed, durable) = (AtomicBool::new(false), AtomicBool::new(false));
        let ends = OnceLock::new();
        Ok(Segment {
            number,
            path,
            first,
            size,
            mapping,
            sparing,
            frames,
            is_archived,
            index,
            sealed,
            ends,
            durable,
        })
    }

    /// The same sealed segment in another file.
    pub fn at(&self, path: PathBuf, file: &dyn File, is_archived: bool) -> Result<Arc<Self>, JournalError> {
        let mapping = file.map().map_err(|error| JournalError::io(&path, "mapping the segment", &error))?;
        let header = SegmentHeader::decode(mapping.bytes(0, SEGMENT_HEADER_FIELDS).unwrap_or_default());
        let Some(header) = header.ok().filter(|header| header.number == self.number) else {
            return Err(self.corrupt(0, "the copy of the segment is not one", self.first));
        };
        let segment = Segment::with_index(path, &header, file, self.index.clone(), is_archived)?;
        let segment = Segment { ends: self.ends.clone(), ..segment };
        segment.seal();
        Ok(Arc::new(segment))
    }

    /// Its header as it stands in the file.
    pub fn header_fields(&self) -> Result<SegmentHeader, HeaderError> {
        SegmentHeader::decode(self.mapping.bytes(0, SEGMENT_HEADER_FIELDS).unwrap_or_default())
    }

    /// Size of the file, in bytes.
    pub fn file_size(&self) -> u64 {
        self.mapping.size() as u64
    }

    pub fn summary(&self) -> Summary {
        self.index.read().summary
    }

    pub fn is_sealed(&self) -> bool {
        self.sealed.load(Ordering::Acquire)
    }

    /// Nothing is appended any more, and everything in it was synced.
    pub fn seal(&self) {
        self.sealed.store(true, Ordering::Release);
        self.note_durable();
    }

    /// Bookmarks of the first and the last record of a sealed segment; `read` reads them.
    pub fn ends(&self, read: impl FnOnce() -> Option<(Bookmark, Bookmark)>) -> Option<(Bookmark, Bookmark)> {
        self.ends.get().copied().or_else(|| read().map(|ends| *self.ends.get_or_init(|| ends)))
    }

    pub fn is_durable(&self) -> bool {
        self.durable.load(Ordering::Acquire)
    }

    /// It was synced, its header with it.
    pub fn note_durable(&self) {
        self.durable.store(true, Ordering::Release);
    }

    /// The batch header at `offset` of a segment that is not compressed.
    pub fn header(&self, offset: u64) -> Result<BatchHeader, &'static str> {
        let bytes = self.mapping.bytes(offset, BATCH_HEADER_SIZE).ok_or("the file ends here")?;
        BatchHeader::decode(bytes, self.number, offset)
    }

    /// Takes the batches that follow what the index knows into it, until the bytes are no next batch; gives the reason. `each` sees
    /// every one.
    pub fn scan(
        self: &Arc<Self>,
        index: &mut Index,
        names: &Names,
        mut each: impl FnMut(&BatchHeader),
    ) -> &'static str {
        let mut view = match View::of(self, index.summary.end, Reads::Ahead) {
            Ok(view) => view,
            Err(reason) => return reason,
        };
        loop {
            let offset = index.summary.end;
            let (header, body) = match view.move_to(offset).and_then(|()| view.batch(offset)) {
                Ok(batch) => batch,
                Err(reason) => return reason,
            };
            if header.previous != index.summary.checksum {
                return "the batch does not follow the one before it";
            }
            if header.first != index.summary.last.next() {
                return "the batch does not continue the positions";
            }
            if !holds_records(&header, body) {
                return "the batch does not hold the records that it counts";
            }
            let added = index.add(&header, body, names);
            debug_assert!(added, "checked above");
            each(&header);
        }
    }

    /// The offsets of the first and the last byte in the range of the file that are not zero.
    pub fn first_nonzero(&self, from: u64, to: u64) -> Option<(u64, u64)> {
        let bytes = self.mapping.bytes(from, to.checked_sub(from)? as usize)?;
        let first = bytes.iter().position(|byte| *byte != 0)?;
        let last = bytes.iter().rposition(|byte| *byte != 0)?;
        Some((from + first as u64, from + last as u64))
    }

    pub fn corrupt(&self, offset: u64, reason: &'static str, readable_to: Position) -> JournalError {
        JournalError::Corrupt { path: self.path.clone(), offset, reason, readable_to }
    }
}

/// Whether the body is exactly the records that the header counts.
pub(crate) fn holds_records(header: &BatchHeader, mut body: &[u8]) -> bool {
    for i in 0..u64::from(header.count) {
        match split_record(body, Position(header.first.0 + i)) {
            Some((_, rest)) => body = rest,
            None => return false,
        }
    }
    body.is_empty()
}

pub(crate) const SEGMENT_EXTENSION: &str = "journal";
pub(crate) const INDEX_EXTENSION: &str = "index";

/// `quire.<10-digit number>.journal`
pub(crate) fn segment_path(directory: &Path, number: u32) -> PathBuf {
    directory.join(format!("quire.{number:010}.{SEGMENT_EXTENSION}"))
}

/// The name that an older build gave to the segment with this number, by that of another one: `<instance name>.<10-digit number>.journal`.
pub(crate) fn older_path(directory: &Path, other: &Path, number: u32) -> Option<PathBuf> {
    let (instance, _) = other.file_stem()?.to_str()?.rsplit_once('.')?;
    Some(directory.join(format!("{instance}.{number:010}.{SEGMENT_EXTENSION}")))
}

/// The number in such a file name, whatever is in front of it.
pub(crate) fn segment_number(file_name: &str) -> Option<u32> {
    let (_, number) = file_name.strip_suffix(SEGMENT_EXTENSION)?.strip_suffix('.')?.rsplit_once('.')?;
    let number = (number.len() == 10 && number.bytes().all(|byte| byte.is_ascii_digit()))
        .then(|| number.parse().ok())?;
    // The last number is not used, so that there is always a next one.
    number.filter(|number| *number < u32::MAX)
}

pub(crate) fn index_path(segment: &Path) -> PathBuf {
    segment.with_extension(INDEX_EXTENSION)
}

/// An index of an empty segment.
pub(crate) fn empty_index(header: &SegmentHeader) -> Index {
    Index::empty(header.first, SEGMENT_HEADER_SIZE, header.previous)
}
