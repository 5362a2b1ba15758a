//! One journal file: indexed, and read batch by batch.

pub(crate) mod compressed;
pub(crate) mod index;
pub(crate) mod index_file;
pub(crate) mod open_files;
pub(crate) mod sums;
pub(crate) mod view;

use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::RwLock;

use crate::disk::File;
use crate::error::JournalError;
use crate::format::{
    BatchHeader, HeaderError, SEGMENT_HEADER_FIELDS, SEGMENT_HEADER_SIZE, SegmentHeader, fault_of, split_raw,
};
use crate::knowledge::Step;
use crate::read::reader::SegmentState;
use crate::record::{Bookmark, Position};
use crate::segment::compressed::FrameTable;
use crate::segment::index::{Index, Names, Summary};
use crate::segment::open_files::{OpenFiles, SegmentFile};
use crate::segment::view::{Fault, READ_STEP, Reads, View};

pub(crate) struct Segment {
    /// The version of its format.
    pub version: u32,
    pub number: u32,
    pub path: PathBuf,
    /// The first position that it may hold.
    pub first: Position,
    /// Offsets in it are below this size, in bytes: the size of the file before it was compressed.
    pub size: u64,
    pub file: Arc<SegmentFile>,
    /// Size of the file, in bytes.
    pub file_size: u64,
    /// The frames of a compressed segment.
    pub frames: Option<FrameTable>,
    /// It is in the archive directory.
    pub is_archived: bool,
    /// Shared with the segment that replaces this one when its file is replaced.
    pub index: Arc<RwLock<Index>>,
    sealed: AtomicBool,
    /// Bookmarks of the first and the last record of the sealed segment, after the first call for
    /// them.
    ends: OnceLock<(Bookmark, Bookmark)>,
    /// Its header is on stable storage: after any crash the log continues in it.
    durable: AtomicBool,
}

impl Segment {
    /// The segment at `path`, whose header is `header`.
    pub fn new(
        files: &Arc<OpenFiles>,
        path: PathBuf,
        header: &SegmentHeader,
        shape: Shape,
        index: Index,
        is_archived: bool,
    ) -> Arc<Self> {
        let index = Arc::new(RwLock::new(index));
        Arc::new(Segment::with_index(files, path, header, shape, index, is_archived))
    }

    fn with_index(
        files: &Arc<OpenFiles>,
        path: PathBuf,
        header: &SegmentHeader,
        Shape { file_size, frames }: Shape,
        index: Arc<RwLock<Index>>,
        is_archived: bool,
    ) -> Self {
        Segment {
            version: header.version,
            number: header.number,
            first: header.first,
            size: if frames.is_some() { header.size } else { file_size },
            file: SegmentFile::new(files, path.clone(), *header),
            path,
            file_size,
            frames,
            is_archived,
            index,
            sealed: AtomicBool::new(false),
            ends: OnceLock::new(),
            durable: AtomicBool::new(false),
        }
    }

    /// The same sealed segment in another file.
    pub fn at(
        &self,
        files: &Arc<OpenFiles>,
        path: PathBuf,
        file: &dyn File,
        is_archived: bool,
    ) -> Result<Arc<Self>, JournalError> {
        let (header, shape) = read_shape(&path, file)?;
        let Some(header) = header.ok().filter(|header| header.number == self.number) else {
            return Err(self.corrupt(0, "the copy of the segment is not one", self.first));
        };
        let segment = Segment::with_index(files, path, &header, shape, self.index.clone(), is_archived);
        let segment = Segment { ends: self.ends.clone(), ..segment };
        segment.seal();
        Ok(Arc::new(segment))
    }

    /// The bytes of its header in the file.
    pub fn header_fields(&self) -> Result<Result<SegmentHeader, HeaderError>, Fault> {
        Ok(read_header(&*self.file.open().map_err(Fault::Closed)?)?)
    }

    pub fn summary(&self) -> Summary {
        self.index.read().summary
    }

    /// Returns its state, when [`Segment::is_sealed`] has returned `is_sealed`.
    pub fn state(&self, is_sealed: bool) -> SegmentState {
        match is_sealed {
            false => SegmentState::Active,
            true if self.frames.is_some() => SegmentState::Compressed,
            true if self.is_archived => SegmentState::Archived,
            true => SegmentState::Sealed,
        }
    }

    pub fn is_sealed(&self) -> bool {
        self.sealed.load(Ordering::Acquire)
    }

    /// No record is appended any more, and all its records were synced.
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

    /// Passes the position of each record, and what the knowledge of publishers needs of it, to
    /// `each`, in order.
    ///
    /// # Errors
    /// The segment is damaged, or its file cannot be opened or read.
    pub fn for_each_step(self: &Arc<Self>, mut each: impl FnMut(Position, Step)) -> Result<(), JournalError> {
        let Summary { end, last, .. } = self.summary();
        let mut view = View::new(self, None, Reads::AHEAD);
        let mut offset = SEGMENT_HEADER_SIZE;
        while offset < end {
            let read = view.batch(offset, offset + READ_STEP as u64);
            let (header, body) = read.map_err(|fault| self.error_of(offset, fault, last))?;
            if !for_each_step(&header, body, &mut each) {
                return Err(self.corrupt(offset, fault_of(&header, body), last));
            }
            offset += header.batch_size() as u64;
        }
        Ok(())
    }

    /// Adds the batches after those in the index to the index, until the bytes are not a next
    /// batch. Returns the reason. Passes every batch to `each`.
    ///
    /// # Errors
    /// The disk cannot read a part of the file, so it is unknown whether there is a next batch. A
    /// next batch with contents that the format does not define.
    pub fn scan(
        self: &Arc<Self>,
        index: &mut Index,
        names: &Names,
        mut each: impl FnMut(&BatchHeader, &[u8]),
    ) -> Result<&'static str, JournalError> {
        let mut view = View::new(self, None, Reads::AHEAD);
        // Mostly no batch was added since the last check, and a header is enough to find that.
        let mut step = 0;
        loop {
            let offset = index.summary.end;
            let (header, body) = match view.batch(offset, offset + step) {
                Ok(batch) => batch,
                Err(Fault::Damage(reason)) => return Ok(reason),
                Err(fault) => return Err(self.error_of(offset, fault, index.summary.last)),
            };
            step = READ_STEP as u64;
            if header.previous != index.summary.checksum {
                return Ok("the batch does not follow the one before it");
            }
            if header.first != index.summary.last.next() {
                return Ok("the batch does not continue the positions");
            }
            // Its checksums match, so that it was not torn.
            if !holds_records(&header, body) {
                return Err(self.corrupt(offset, fault_of(&header, body), index.summary.last));
            }
            let added = index.add(&header, body, names);
            debug_assert!(added, "checked above");
            each(&header, body);
        }
    }

    /// The offsets of the first and the last byte in the range of the file that are not zero.
    ///
    /// # Errors
    /// Where reading failed, and why.
    pub fn first_nonzero(&self, from: u64, to: u64) -> Result<Option<(u64, u64)>, (u64, Fault)> {
        let file = self.file.open().map_err(|error| (from, Fault::Closed(error)))?;
        let (mut first, mut last) = (None, None);
        for_each_chunk(&*file, from..to, |offset, bytes| {
            if let Some(at) = bytes.iter().position(|byte| *byte != 0) {
                first.get_or_insert(offset + at as u64);
            }
            if let Some(at) = bytes.iter().rposition(|byte| *byte != 0) {
                last = Some(offset + at as u64);
            }
            true
        })
        .map_err(|(offset, error)| (offset, error.into()))?;
        Ok(first.zip(last))
    }

    /// The error for bytes at `offset` that cannot be read, with the reason.
    pub fn error_of(&self, offset: u64, fault: Fault, readable_to: Position) -> JournalError {
        error_of(&self.path, offset, fault, readable_to)
    }

    pub fn corrupt(&self, offset: u64, reason: &'static str, readable_to: Position) -> JournalError {
        JournalError::Corrupt { path: self.path.clone(), offset, reason, readable_to }
    }
}

/// The error for bytes at `offset` of the file that cannot be read, with the reason.
pub(crate) fn error_of(path: &Path, offset: u64, fault: Fault, readable_to: Position) -> JournalError {
    let path = path.to_owned();
    match fault {
        Fault::Damage(reason) => JournalError::Corrupt { path, offset, reason, readable_to },
        Fault::Disk(error) => JournalError::Unreadable { path, offset, reason: error.to_string() },
        Fault::Closed(error) => JournalError::io(&path, "opening the segment", &error),
    }
}

/// The properties of the file of a segment, without its header.
#[derive(Debug, Default)]
pub(crate) struct Shape {
    /// In bytes.
    pub file_size: u64,
    /// The frames of a compressed one.
    pub frames: Option<FrameTable>,
}

/// Reads the header of the segment in a file, and its frame table when it is compressed.
pub(crate) fn read_shape(
    path: &Path,
    file: &dyn File,
) -> Result<(Result<SegmentHeader, HeaderError>, Shape), JournalError> {
    let unreadable = |offset, fault| error_of(path, offset, fault, Position::ZERO);
    let file_size = file.size().map_err(|error| JournalError::io(path, "looking at the segment", &error))?;
    let header = read_header(file).map_err(|error| unreadable(0, error.into()))?;
    let frames = match &header {
        Ok(header) if header.table > 0 => {
            let table = FrameTable::read(file, file_size, header);
            Some(table.map_err(|fault| error_of(path, header.table, fault, Position(header.first.0 - 1)))?)
        }
        _ => None,
    };
    Ok((header, Shape { file_size, frames }))
}

/// The bytes of the header of a segment. The file may be too short for one.
pub(crate) fn read_header(file: &dyn File) -> io::Result<Result<SegmentHeader, HeaderError>> {
    let mut bytes = Vec::new();
    match file.read_at(&mut bytes, SEGMENT_HEADER_FIELDS, 0) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(SegmentHeader::decode(&[])),
        read => read.map(|()| SegmentHeader::decode(&bytes)),
    }
}

/// Passes the bytes of a range of a file to `each`, in chunks, until it returns false.
///
/// # Errors
/// Where reading failed, and why.
pub(crate) fn for_each_chunk(
    file: &dyn File,
    range: Range<u64>,
    mut each: impl FnMut(u64, &[u8]) -> bool,
) -> Result<(), (u64, io::Error)> {
    let mut bytes = Vec::new();
    let mut offset = range.start;
    while offset < range.end {
        let size = READ_STEP.min((range.end - offset) as usize);
        bytes.clear();
        file.read_at(&mut bytes, size, offset).map_err(|error| (offset, error))?;
        let end = offset + size as u64;
        file.will_need(end..(end + READ_STEP as u64).min(range.end));
        if !each(offset, &bytes) {
            return Ok(());
        }
        offset = end;
    }
    Ok(())
}

/// Passes the position of each record of a batch, and what the knowledge of publishers needs of it,
/// to `each`. False when the body does not contain the records that its header counts.
pub(crate) fn for_each_step(
    header: &BatchHeader,
    mut body: &[u8],
    mut each: impl FnMut(Position, Step),
) -> bool {
    for number in 0..u64::from(header.count) {
        let Some((record, rest)) = split_raw(body) else { return false };
        each(Position(header.first.0 + number), record.step());
        body = rest;
    }
    true
}

/// Whether the body contains exactly the records that the header counts, the data of each delete is
/// a list of keys, and the flags of the header are defined.
pub(crate) fn holds_records(header: &BatchHeader, mut body: &[u8]) -> bool {
    if !header.has_defined_flags() {
        return false;
    }
    let mut topic: Option<&[u8]> = None;
    for _ in 0..header.count {
        let Some((record, rest)) = split_raw(body) else { return false };
        if !record.has_valid_keys() {
            return false;
        }
        body = rest;
        // Consecutive records mostly have one topic, which was already checked to be text.
        if topic != Some(record.topic) {
            if std::str::from_utf8(record.topic).is_err() {
                return false;
            }
            topic = Some(record.topic);
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

/// The name that an older build gave to the segment with this number, derived from the name of
/// another one: `<instance name>.<10-digit number>.journal`.
pub(crate) fn older_path(directory: &Path, other: &Path, number: u32) -> Option<PathBuf> {
    let (instance, _) = other.file_stem()?.to_str()?.rsplit_once('.')?;
    Some(directory.join(format!("{instance}.{number:010}.{SEGMENT_EXTENSION}")))
}

/// The number in such a file name, with any text before it.
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
