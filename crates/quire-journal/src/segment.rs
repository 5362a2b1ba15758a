//! One journal file: mapped, indexed, and read batch by batch.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::RwLock;

use crate::disk::{Disk, File, Mapping};
use crate::error::JournalError;
use crate::format::{BATCH_HEADER_SIZE, BatchHeader, SEGMENT_HEADER_SIZE, SegmentHeader, split_record};
use crate::index::{Index, Summary};
use crate::record::Position;

pub(crate) struct Segment {
    pub number: u32,
    pub path: PathBuf,
    /// The first position that it may hold.
    pub first: Position,
    /// Size of the file, in bytes.
    pub size: u64,
    pub mapping: Mapping,
    pub index: RwLock<Index>,
    sealed: AtomicBool,
}

impl Segment {
    pub fn new(
        path: PathBuf,
        header: &SegmentHeader,
        file: &dyn File,
        index: Index,
    ) -> Result<Arc<Self>, JournalError> {
        let mapping = file.map().map_err(|error| JournalError::io(&path, "mapping the segment", &error))?;
        let SegmentHeader { number, first, .. } = *header;
        let size = mapping.size() as u64;
        Ok(Arc::new(Segment {
            number,
            path,
            first,
            size,
            mapping,
            index: RwLock::new(index),
            sealed: AtomicBool::new(false),
        }))
    }

    pub fn summary(&self) -> Summary {
        self.index.read().summary
    }

    pub fn is_sealed(&self) -> bool {
        self.sealed.load(Ordering::Acquire)
    }

    /// Nothing is appended any more.
    pub fn seal(&self) {
        self.sealed.store(true, Ordering::Release);
    }

    /// The batch at `offset`, its header and its body checked. Bytes that are not one are the reason why not.
    pub fn batch(&self, offset: u64) -> Result<(BatchHeader, &[u8]), &'static str> {
        let header = self.header(offset)?;
        let body = self.mapping.bytes(offset + BATCH_HEADER_SIZE as u64, header.body_size as usize);
        let body = body.ok_or("the batch reaches beyond the end of the file")?;
        if crc32c::crc32c(body) != header.body_checksum {
            return Err("the checksum of the batch does not match");
        }
        Ok((header, body))
    }

    pub fn header(&self, offset: u64) -> Result<BatchHeader, &'static str> {
        let bytes = self.mapping.bytes(offset, BATCH_HEADER_SIZE).ok_or("the file ends here")?;
        BatchHeader::decode(bytes, self.number, offset)
    }

    /// Takes the batches that follow what the index knows into it, until the bytes are no next batch; gives the reason. `each` sees
    /// every one.
    pub fn scan(&self, index: &mut Index, mut each: impl FnMut(&BatchHeader)) -> &'static str {
        loop {
            let offset = index.summary.end;
            let (header, body) = match self.batch(offset) {
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
            let added = index.add(&header, body);
            debug_assert!(added, "checked above");
            each(&header);
        }
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

/// `<instance name>.<10-digit number>.journal`
pub(crate) fn segment_path(directory: &Path, name: &str, number: u32) -> PathBuf {
    directory.join(format!("{name}.{number:010}.journal"))
}

/// The number in such a file name, whatever the instance is called.
pub(crate) fn segment_number(file_name: &str) -> Option<u32> {
    let (_, number) = file_name.strip_suffix(".journal")?.rsplit_once('.')?;
    let number = (number.len() == 10 && number.bytes().all(|byte| byte.is_ascii_digit()))
        .then(|| number.parse().ok())?;
    // The last number is not used, so that there is always a next one.
    number.filter(|number| *number < u32::MAX)
}

pub(crate) fn index_path(segment: &Path) -> PathBuf {
    segment.with_extension("index")
}

/// An index of an empty segment.
pub(crate) fn empty_index(header: &SegmentHeader) -> Index {
    Index::empty(header.first, SEGMENT_HEADER_SIZE, header.previous)
}

/// Writes a small file so that a crash leaves the old one or the new one, whole.
pub(crate) fn write_whole(
    disk: &dyn Disk,
    directory: &Path,
    path: &Path,
    bytes: &[u8],
) -> Result<(), JournalError> {
    let temporary = path.with_extension("writing");
    let written = disk
        .create(&temporary, bytes.len() as u64)
        .and_then(|file| file.write_at(bytes, 0).and_then(|()| file.sync()))
        .and_then(|()| disk.rename(&temporary, path))
        .and_then(|()| disk.sync_directory(directory));
    written.map_err(|error| JournalError::io(path, "writing the file", &error))
}
