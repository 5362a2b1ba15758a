//! Compressed segments: runs of whole batches as zstd frames, and the table by which one is found
//! (`docs/journal-format.md`).

use std::cell::RefCell;
use std::io;

use zstd::bulk::{Compressor, Decompressor};

use crate::disk::File;
use crate::error::JournalError;
use crate::format::{BATCH_BODY_MAX, SEGMENT_HEADER_SIZE, SegmentHeader, batch_size, u32_at, u64_at};
use crate::record::Position;
use crate::segment::Segment;
use crate::segment::index::Index;
use crate::segment::view::Fault;

/// A frame is closed when it has this many bytes of batches. That is enough to compress well, and
/// finding one record decompresses few others.
const FRAME_SIZE_TARGET: u64 = 256 * 1024;

/// The largest frame that is decompressed: one block, whose last batch may have one record of the
/// largest size.
const FRAME_SIZE_MAX: u64 = FRAME_SIZE_TARGET + batch_size(BATCH_BODY_MAX) as u64;

/// The default of zstd. Higher levels take much time and save little space.
const LEVEL: i32 = 3;

const ENTRY_SIZE: usize = 32;

/// Where the bytes of a compressed segment are.
#[derive(Debug)]
pub(crate) struct FrameTable(Vec<FrameEntry>);

/// One frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameEntry {
    /// In the segment, in bytes.
    pub offset: u64,
    /// Decompressed, in bytes.
    pub size: u32,
    /// In the file, in bytes.
    file_offset: u64,
    file_size: u32,
    /// The checksum of the bytes of the frame in the file.
    checksum: u32,
}

impl FrameEntry {
    fn end(&self) -> u64 {
        self.offset + u64::from(self.size)
    }

    /// The bytes of the frame in the file.
    fn compressed(&self, file: &dyn File) -> io::Result<Vec<u8>> {
        // The table was accepted only when all frames are within the file.
        let mut compressed = Vec::new();
        file.read_at(&mut compressed, self.file_size as usize, self.file_offset)?;
        Ok(compressed)
    }

    /// The bytes that it contains.
    pub fn decompress(&self, file: &dyn File) -> Result<Vec<u8>, Fault> {
        Ok(decompress(&self.compressed(file)?, self.size as usize)?)
    }

    /// Whether the bytes of the frame in the file are those that were written.
    pub fn is_whole(&self, file: &dyn File) -> Result<bool, Fault> {
        Ok(crc32c::crc32c(&self.compressed(file)?) == self.checksum)
    }
}

impl FrameTable {
    /// The table of a compressed segment.
    pub fn read(file: &dyn File, file_size: u64, header: &SegmentHeader) -> Result<Self, Fault> {
        let size = file_size.checked_sub(header.table).ok_or("the frame table is missing")?;
        let mut bytes = Vec::new();
        file.read_at(&mut bytes, size as usize, header.table)?;
        let (entries, checksum) = bytes.split_last_chunk::<4>().ok_or("the frame table is cut short")?;
        if crc32c::crc32c(entries) != u32_at(checksum, 0) {
            return Err(Fault::Damage("the checksum of the frame table does not match"));
        }
        let (entries, rest) = entries.as_chunks::<ENTRY_SIZE>();
        let entry = |entry: &[u8; ENTRY_SIZE]| FrameEntry {
            offset: u64_at(entry, 0),
            file_offset: u64_at(entry, 8),
            size: u32_at(entry, 16),
            file_size: u32_at(entry, 20),
            checksum: u32_at(entry, 24),
        };
        let table = FrameTable(entries.iter().map(entry).collect());
        if rest.is_empty() && table.is_possible(header) {
            Ok(table)
        } else {
            Err(Fault::Damage("the frame table contradicts itself"))
        }
    }

    /// Whether the frames follow each other without a gap, from the segment header to the table.
    fn is_possible(&self, header: &SegmentHeader) -> bool {
        let (mut offset, mut file_offset) = (SEGMENT_HEADER_SIZE, SEGMENT_HEADER_SIZE);
        for entry in &self.0 {
            if entry.offset != offset || entry.file_offset != file_offset {
                return false;
            }
            let size = u64::from(entry.size);
            if size == 0 || size > FRAME_SIZE_MAX || size > header.size.saturating_sub(offset) {
                return false;
            }
            offset += size;
            file_offset += u64::from(entry.file_size);
        }
        file_offset == header.table
    }

    /// The frame that holds the byte at `offset` of the segment.
    pub fn entry_at(&self, offset: u64) -> Option<&FrameEntry> {
        let entry = self.0.get(self.0.partition_point(|entry| entry.end() <= offset))?;
        (entry.offset <= offset).then_some(entry)
    }

    /// Where the last batch ends in the segment, in bytes.
    pub fn end(&self) -> u64 {
        self.0.last().map_or(SEGMENT_HEADER_SIZE, FrameEntry::end)
    }

    /// The frames in order.
    pub fn entries(&self) -> &[FrameEntry] {
        &self.0
    }
}

/// The compressed file of a segment that is not compressed yet. Takes as much memory as the new
/// file is large.
pub(crate) fn compress(segment: &Segment) -> Result<Vec<u8>, JournalError> {
    let failed = |error: io::Error| JournalError::io(&segment.path, "compressing a segment", &error);
    let unreadable = |offset, fault| segment.error_of(offset, fault, Position(segment.first.0 - 1));
    let header = segment.header_fields().map_err(|fault| unreadable(0, fault))?;
    let header = header.map_err(|_| unreadable(0, "the segment header is not what it was".into()))?;
    let original = segment.file.open().map_err(failed)?;
    let mut compressor = Compressor::new(LEVEL).map_err(failed)?;
    let mut file = vec![0; SEGMENT_HEADER_SIZE as usize];
    let mut table = Vec::new();
    let mut bytes = Vec::new();
    for (offset, end) in frames(&segment.index.read()) {
        let size = end - offset;
        bytes.clear();
        original
            .read_at(&mut bytes, size as usize, offset)
            .map_err(|error| unreadable(offset, error.into()))?;
        let compressed = compressor.compress(&bytes).map_err(failed)?;
        // The original is removed when this file exists, so everything is checked.
        if decompress(&compressed, bytes.len()).ok().as_ref() != Some(&bytes) {
            return Err(failed(io::Error::other("a frame did not decompress to what was compressed")));
        }
        table.extend_from_slice(&offset.to_le_bytes());
        table.extend_from_slice(&(file.len() as u64).to_le_bytes());
        for field in [size as u32, compressed.len() as u32, crc32c::crc32c(&compressed), 0] {
            table.extend_from_slice(&field.to_le_bytes());
        }
        file.extend_from_slice(&compressed);
    }
    let header = SegmentHeader { table: file.len() as u64, ..header };
    let fields = header.encode();
    file[..fields.len()].copy_from_slice(&fields);
    let checksum = crc32c::crc32c(&table);
    file.extend_from_slice(&table);
    file.extend_from_slice(&checksum.to_le_bytes());
    Ok(file)
}

/// Where the frames of the segment begin and end: at blocks, so that no batch is cut.
fn frames(index: &Index) -> Vec<(u64, u64)> {
    let mut frames = Vec::new();
    let mut start = SEGMENT_HEADER_SIZE;
    for block in &index.blocks {
        if block.offset - start >= FRAME_SIZE_TARGET {
            frames.push((start, block.offset));
            start = block.offset;
        }
    }
    if index.summary.end > start {
        frames.push((start, index.summary.end));
    }
    frames
}

fn decompress(compressed: &[u8], size: usize) -> Result<Vec<u8>, &'static str> {
    // Its tables are larger than most frames.
    thread_local!(static DECOMPRESSOR: RefCell<Option<Decompressor<'static>>> = const { RefCell::new(None) });
    DECOMPRESSOR.with_borrow_mut(|kept| {
        let made = kept.take().map_or_else(Decompressor::new, Ok);
        let decompressor = kept.insert(made.map_err(|_| "there is no memory to decompress a frame")?);
        match decompressor.decompress(compressed, size) {
            Ok(bytes) if bytes.len() == size => Ok(bytes),
            _ => Err("the frame cannot be decompressed"),
        }
    })
}
