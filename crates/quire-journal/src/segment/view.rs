//! The uncompressed bytes of a segment, for its readers.
//!
//! A [`View`] reads a chunk of the file, or decompresses a frame, into its own buffer, and returns
//! batches of it. A [`Batch`] shares that buffer. When no batch is left, the buffer is reused.
//!
//! [`Batch`]: crate::read::cursor::Batch

use std::cell::Cell;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use crate::disk::File;
use crate::format::{BATCH_HEADER_SIZE, BatchHeader};
use crate::segment::Segment;
use crate::segment::open_files::OpenFile;

/// Bytes that are read at a time by default. The cost of a call is small for this size, and the
/// processor's cache holds the bytes while they are processed.
pub(crate) const READ_STEP: usize = 256 * 1024;

/// The read-ahead of a reader that uses the disk alone, in bytes: enough to keep the disk busy.
const READ_AHEAD: usize = 2 * 1024 * 1024;

/// The number of bytes of one read, and of the read-ahead for a reader that continues where the
/// last batch ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reads {
    /// Bytes of one read; a larger batch is read whole.
    pub step: usize,
    /// Bytes after this read that are requested from the disk ahead.
    ahead: usize,
}

impl Reads {
    /// For a reader of the whole log: the highest throughput.
    pub const AHEAD: Reads = Reads { step: READ_STEP, ahead: READ_AHEAD };

    /// For a reader that jumps, or must not delay other users of the disk: reads little more than
    /// it needs.
    pub const fn sparingly(step: usize) -> Self {
        Reads { step, ahead: step }
    }
}

/// Why there is no batch.
#[derive(Debug)]
pub(crate) enum Fault {
    /// The bytes are not a batch.
    Damage(&'static str),
    /// The bytes cannot be read.
    Disk(io::Error),
    /// The file cannot be opened.
    Closed(io::Error),
}

impl From<&'static str> for Fault {
    fn from(reason: &'static str) -> Self {
        Fault::Damage(reason)
    }
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => Fault::Damage("the file ends here"),
            _ => Fault::Disk(error),
        }
    }
}

/// An offset in a segment at which batches are read.
pub(crate) struct View {
    segment: Arc<Segment>,
    reads: Reads,
    /// Where the last batch ended.
    next: u64,
    /// Everything from `next` up to here was requested from the disk.
    asked_to: u64,
    file: Option<OpenFile>,
    part: Part,
}

thread_local! {
    /// The last freed buffer of this thread. New memory from the system would take about as long as
    /// reading into it.
    static SPARE: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Buffers above this size, in bytes, are not kept.
const SPARE_SIZE_MAX: usize = 2 * READ_STEP;

/// A buffer for `size` bytes: `own`, the spare one, or a new one. A holder of a batch keeps its
/// whole buffer alive. So the buffer is not much larger than its content.
fn buffer_for(size: usize, own: Vec<u8>) -> Vec<u8> {
    let fits = |bytes: &Vec<u8>| (size..=2 * size).contains(&bytes.capacity());
    if fits(&own) {
        return own;
    }
    let other = SPARE.take();
    if fits(&other) {
        spare(own);
        return other;
    }
    spare(if own.capacity() > other.capacity() { own } else { other });
    Vec::new()
}

/// Keeps a buffer for the next use on this thread.
fn spare(bytes: Vec<u8>) {
    if bytes.capacity() <= SPARE_SIZE_MAX {
        SPARE.set(bytes);
    }
}

/// A chunk of a segment in memory.
#[derive(Default)]
struct Part {
    /// Where it begins in the segment.
    start: u64,
    bytes: Arc<Vec<u8>>,
}

impl Part {
    /// The range in `bytes` of `size` bytes from `offset` of the segment.
    fn range(&self, offset: u64, size: usize) -> Option<Range<usize>> {
        let start = usize::try_from(offset.checked_sub(self.start)?).ok()?;
        let end = start.checked_add(size)?;
        (end <= self.bytes.len()).then_some(start..end)
    }

    /// Reads the file again, into the buffer, or into a new one while a batch shares the old one.
    fn read(&mut self, file: &dyn File, range: Range<u64>) -> io::Result<()> {
        let size = (range.end - range.start) as usize;
        let mut bytes =
            buffer_for(size, Arc::get_mut(&mut self.bytes).map(std::mem::take).unwrap_or_default());
        bytes.clear();
        let read = file.read_at(&mut bytes, size, range.start);
        if read.is_err() {
            bytes.clear();
        }
        *self = Part { start: range.start, bytes: Arc::new(bytes) };
        read
    }
}

impl View {
    /// Makes the view of a segment, with its `file` if that is open.
    pub fn new(segment: &Arc<Segment>, file: Option<OpenFile>, reads: Reads) -> Self {
        View { segment: segment.clone(), reads, next: 0, asked_to: 0, file, part: Part::default() }
    }

    /// Changes how it reads from now on.
    pub fn set_reads(&mut self, reads: Reads) {
        self.reads = reads;
    }

    /// Whether the part in memory contains the byte at `offset`.
    pub fn covers(&self, offset: u64) -> bool {
        self.part.range(offset, 1).is_some()
    }

    /// Whether the last batch ended there.
    pub fn goes_on_at(&self, offset: u64) -> bool {
        self.next == offset
    }

    /// Frees its memory and its file. It can continue to read.
    pub fn release(&mut self) {
        self.file = None;
        let Part { bytes, .. } = std::mem::take(&mut self.part);
        Arc::into_inner(bytes).into_iter().for_each(spare);
    }

    /// The bytes in memory, and the range in them of the bytes from `offset` of the segment; `None`
    /// when not all of them are in memory.
    pub fn share(&self, offset: u64, size: usize) -> Option<(Arc<Vec<u8>>, Range<usize>)> {
        Some((self.part.bytes.clone(), self.part.range(offset, size)?))
    }

    /// The batch at `offset`, with its header and its body checked. The read ends at `until`, where
    /// a batch ends, or later when this batch ends later.
    pub fn batch(&mut self, offset: u64, until: u64) -> Result<(BatchHeader, &[u8]), Fault> {
        let head = self.fill(offset, BATCH_HEADER_SIZE, until)?.ok_or("the segment ends here")?;
        let header = BatchHeader::decode(&self.part.bytes[head], self.segment.number, offset)?;
        let size = BATCH_HEADER_SIZE + header.body_size as usize;
        let whole = self.fill(offset, size, until.max(offset + header.batch_size() as u64))?;
        let whole = whole.ok_or("the batch reaches beyond the end of the segment")?;
        let body = &self.part.bytes[whole][BATCH_HEADER_SIZE..];
        if crc32c::crc32c(body) != header.body_checksum {
            return Err(Fault::Damage("the checksum of the batch does not match"));
        }
        self.next = offset + header.batch_size() as u64;
        Ok((header, body))
    }

    /// Whether the bytes from one offset to another are zero, as far as they are in the segment.
    pub fn is_zero(&mut self, from: u64, to: u64) -> Result<bool, Fault> {
        let range = self.fill(from, to.saturating_sub(from) as usize, to)?;
        Ok(range.is_none_or(|range| self.part.bytes[range].iter().all(|byte| *byte == 0)))
    }

    /// The range in the part of `size` bytes from `offset` of the segment. When the part does not
    /// have them, it is read again, up to `until`. `None` when the segment has no such bytes.
    fn fill(&mut self, offset: u64, size: usize, until: u64) -> Result<Option<Range<usize>>, Fault> {
        if let Some(range) = self.part.range(offset, size) {
            return Ok(Some(range));
        }
        let file = self.file()?;
        if let Some(frames) = &self.segment.frames {
            let Some(entry) = frames.entry_at(offset) else { return Ok(None) };
            if entry.offset != self.part.start || self.part.bytes.is_empty() {
                self.part = Part { start: entry.offset, bytes: Arc::new(entry.decompress(&*file)?) };
            }
            return Ok(self.part.range(offset, size));
        }
        let end = self.segment.size;
        let Some(least) = offset.checked_add(size as u64).filter(|least| *least <= end) else {
            return Ok(None);
        };
        let until = until.clamp(least, end);
        self.part.read(&*file, offset..until)?;
        if self.next == offset {
            self.ask_ahead(&*file, until);
        } else {
            self.asked_to = until;
        }
        Ok(self.part.range(offset, size))
    }

    /// Everything up to `read_to` was read. Requests the next bytes from the disk.
    fn ask_ahead(&mut self, file: &dyn File, read_to: u64) {
        let from = self.asked_to.max(read_to);
        let to = read_to.saturating_add(self.reads.ahead as u64).min(self.segment.size);
        if from < to {
            file.will_need(from..to);
        }
        self.asked_to = to.max(from);
    }

    fn file(&mut self) -> Result<OpenFile, Fault> {
        if let Some(file) = &self.file {
            return Ok(file.clone());
        }
        let file = self.segment.file.open().map_err(Fault::Closed)?;
        Ok(self.file.insert(file).clone())
    }
}
