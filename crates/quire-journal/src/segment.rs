//! One journal file: mapped, indexed, and read batch by batch.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::RwLock;

use crate::disk::{File, Mapping};
use crate::error::JournalError;
use crate::format::{BATCH_HEADER_SIZE, BatchHeader, SEGMENT_HEADER_SIZE, SegmentHeader, split_record};
use crate::index::{Index, Names, Summary};
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

    /// The instance that its file name carries.
    pub fn instance_name(&self) -> &str {
        let name = self.path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.strip_suffix(".journal").and_then(|name| name.rsplit_once('.')).map_or(name, |(name, _)| name)
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
    pub fn scan(&self, index: &mut Index, names: &Names, mut each: impl FnMut(&BatchHeader)) -> &'static str {
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
            let added = index.add(&header, body, names);
            debug_assert!(added, "checked above");
            each(&header);
        }
    }

    /// The offsets of the first and the last byte in the range that are not zero.
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
