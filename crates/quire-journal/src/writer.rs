//! The one writer of a journal: from batches to durable bytes.
//!
//! [`Writer`] does the work and can be driven by anyone; [`run`] is the thread that does so on a real disk. Everything that waits is
//! taken at once, written with one positional write and made durable with one sync: group commit, in steps of a few MiB when more
//! waits. The first error ends writing for good (reliability J4).

use std::io::IoSlice;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError};

use crate::disk::File;
use crate::error::JournalError;
use crate::format::{
    ALIGNMENT, BATCH_HEADER_SIZE, BatchHeader, FLAG_CLOSED, SEGMENT_HEADER_SIZE, SEGMENT_RESERVE,
    SegmentHeader, batch_size,
};
use crate::journal::Durability;
use crate::keeper::Keeper;
use crate::log::Log;
use crate::prepare::Supply;
use crate::record::Position;
use crate::segment::{Segment, empty_index};
use crate::timestamp::Timestamp;

/// Records on their way to the disk.
#[derive(Debug, Default)]
pub(crate) struct NewBatch {
    pub body: Vec<u8>,
    pub count: u32,
    pub first: Position,
    pub first_timestamp: Timestamp,
    /// Of the body, taken when nothing more comes: whoever filled it has it in the processor's cache, and the writer thread has enough to do.
    pub checksum: u32,
}

impl NewBatch {
    /// Nothing more comes.
    pub fn close(mut self) -> Self {
        self.checksum = crc32c::crc32c(&self.body);
        self
    }
}

/// A batch that has its place in the segment.
struct Encoded {
    header: BatchHeader,
    header_bytes: [u8; BATCH_HEADER_SIZE],
    body: Vec<u8>,
}

pub(crate) enum Order {
    Write(Vec<NewBatch>),
    Close,
}

pub(crate) struct Writer {
    log: Arc<Log>,
    supply: Supply,
    durability: Durability,
    file: Box<dyn File>,
    segment: Arc<Segment>,
    /// Batches of the next flush, and where they go.
    flushing: Vec<Encoded>,
    flush_offset: u64,
    /// Where the next batch begins, what it follows.
    end: u64,
    checksum: u32,
    last: Position,
    synced: Position,
    dirty: bool,
    keeper: Option<Keeper>,
}

impl Writer {
    /// Goes on behind what `segment` holds; all of it is synced.
    pub fn new(
        log: Arc<Log>,
        supply: Supply,
        durability: Durability,
        file: Box<dyn File>,
        segment: Arc<Segment>,
        keeper: Keeper,
    ) -> Self {
        let summary = segment.summary();
        Writer {
            log,
            supply,
            durability,
            file,
            segment,
            flushing: Vec::new(),
            flush_offset: summary.end,
            end: summary.end,
            checksum: summary.checksum,
            last: summary.last,
            synced: summary.last,
            // The header of a new segment was written and waits for the first sync.
            dirty: true,
            keeper: Some(keeper),
        }
    }

    /// Writes the batches; when it returns they are persistent. A failure poisons the log.
    pub fn write(&mut self, batches: Vec<NewBatch>) {
        if self.log.failure().is_none()
            && let Err(error) = self.try_write(batches)
        {
            self.log.poison(error);
        }
    }

    /// Syncs what [`Durability::Os`] left to the system.
    pub fn sync(&mut self) {
        if self.log.failure().is_none()
            && let Err(error) = self.sync_file()
        {
            self.log.poison(error);
        }
    }

    /// Whether there is something that [`Writer::sync`] would sync.
    pub fn is_dirty(&self) -> bool {
        self.dirty
    }

    /// Marks a clean stop, and keeps the highest sequences.
    pub fn close(&mut self) {
        if self.log.failure().is_none()
            && let Err(error) = self.try_close()
        {
            self.log.poison(error);
        }
    }

    fn try_close(&mut self) -> Result<(), JournalError> {
        self.mark(FLAG_CLOSED)?;
        // The last one to write the small files: whatever the keeper still has to do comes first.
        self.keeper = None;
        self.log.keep_closed(&self.segment.index.read(), self.synced)
    }

    /// Writes a batch without records and syncs it.
    pub fn mark(&mut self, flags: u16) -> Result<(), JournalError> {
        if self.end + BATCH_HEADER_SIZE as u64 > self.segment.size {
            self.roll(SEGMENT_HEADER_SIZE + SEGMENT_RESERVE)?;
        }
        self.encode(NewBatch::default(), flags);
        self.write_batches()?;
        self.sync_file()?;
        self.publish();
        Ok(())
    }

    fn try_write(&mut self, batches: Vec<NewBatch>) -> Result<(), JournalError> {
        for batch in batches {
            if self.end - self.flush_offset >= FLUSH_SIZE_MAX {
                self.flush()?;
            }
            let size = batch_size(batch.body.len()) as u64;
            if self.end + size + SEGMENT_RESERVE > self.segment.size {
                self.flush()?;
                self.roll(SEGMENT_HEADER_SIZE + size + SEGMENT_RESERVE)?;
            }
            self.encode(batch, 0);
        }
        self.flush()
    }

    /// Gives one batch its place behind those that wait for the flush.
    fn encode(&mut self, batch: NewBatch, flags: u16) {
        let mut header = BatchHeader {
            checksum: 0,
            body_checksum: batch.checksum,
            body_size: batch.body.len() as u32,
            count: batch.count,
            flags,
            segment: self.segment.number,
            previous: self.checksum,
            offset: self.end,
            first: self.last.next(),
            first_timestamp: batch.first_timestamp,
            synced: self.synced,
        };
        debug_assert!(batch.count == 0 || batch.first == header.first, "positions are dense");
        let (header_bytes, checksum) = header.encode();
        header.checksum = checksum;
        self.end += header.batch_size() as u64;
        self.checksum = checksum;
        self.last = header.last();
        self.flushing.push(Encoded { header, header_bytes, body: batch.body });
    }

    fn flush(&mut self) -> Result<(), JournalError> {
        if self.flushing.is_empty() {
            return Ok(());
        }
        self.write_batches()?;
        if self.durability == Durability::Fsync {
            self.sync_file()?;
        }
        self.publish();
        Ok(())
    }

    fn write_batches(&mut self) -> Result<(), JournalError> {
        const PADDING: [u8; ALIGNMENT] = [0; ALIGNMENT];
        self.dirty = true;
        let mut parts = Vec::with_capacity(3 * self.flushing.len());
        for Encoded { header, header_bytes, body } in &self.flushing {
            let padding = header.batch_size() - BATCH_HEADER_SIZE - body.len();
            parts.extend([&header_bytes[..], body, &PADDING[..padding]].map(IoSlice::new));
        }
        let written = self.file.write_parts_at(&mut parts, self.flush_offset);
        written.map_err(|error| JournalError::io(&self.segment.path, "writing", &error))
    }

    fn sync_file(&mut self) -> Result<(), JournalError> {
        if self.dirty {
            self.file.sync().map_err(|error| JournalError::io(&self.segment.path, "syncing", &error))?;
            self.dirty = false;
            self.synced = self.last;
            self.segment.note_durable();
        }
        Ok(())
    }

    /// What was written is persistent: readers may have it.
    fn publish(&mut self) {
        let mut index = self.segment.index.write();
        let mut size = 0;
        for Encoded { header, body, .. } in self.flushing.drain(..) {
            let added = index.add(&header, &body, &self.log.names);
            debug_assert!(added, "the journal encoded the records itself");
            size += body.len();
            self.log.spares.give(body);
        }
        drop(index);
        self.flush_offset = self.end;
        self.log.advance(self.last, size);
    }

    /// Seals the segment and begins the next one, at least `size` bytes large.
    fn roll(&mut self, size: u64) -> Result<(), JournalError> {
        self.sync_file()?;
        self.log.note_sealed(&self.segment);
        self.keeper.iter().for_each(|keeper| keeper.sealed(&self.segment));
        let (file, segment) = begin(&self.log, &mut self.supply, size, self.last.next(), self.checksum)?;
        self.file = file;
        self.segment = segment;
        self.dirty = true;
        self.end = SEGMENT_HEADER_SIZE;
        self.flush_offset = self.end;
        Ok(())
    }
}

/// A crowd is written and synced in steps of this many bytes: large enough that a disk is at its full rate, small enough that the bytes are
/// still in the processor's cache when they are indexed, and that nobody waits for the messages of everybody behind. One batch may
/// exceed it.
const FLUSH_SIZE_MAX: u64 = 2 * 1024 * 1024;

/// Begins the next segment: its header goes out with the first flush, which syncs both.
pub(crate) fn begin(
    log: &Log,
    supply: &mut Supply,
    size: u64,
    first: Position,
    previous: u32,
) -> Result<(Box<dyn File>, Arc<Segment>), JournalError> {
    let prepared = supply.take(size)?;
    let header = SegmentHeader { number: prepared.number, first, size: prepared.size, previous, table: 0 };
    let written = prepared.file.write_at(&header.encode(), 0);
    written.map_err(|error| JournalError::io(&prepared.path, "writing", &error))?;
    let segment = Segment::new(prepared.path, &header, &*prepared.file, empty_index(&header), false)?;
    log.segments.write().push(segment.clone());
    Ok((prepared.file, segment))
}

/// The writer thread: takes everything that waits, writes it, and does so again until it is told to close.
pub(crate) fn run(mut writer: Writer, orders: &Receiver<Order>, flush_interval: Duration) {
    let _poisons = PoisonOnPanic(writer.log.clone());
    let mut batches = Vec::new();
    let mut next_sync: Option<Instant> = None;
    loop {
        let order = match next_sync {
            None => orders.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(at) => orders.recv_deadline(at),
        };
        let mut closing = false;
        match order {
            Ok(Order::Write(more)) => batches.extend(more),
            Ok(Order::Close) | Err(RecvTimeoutError::Disconnected) => closing = true,
            Err(RecvTimeoutError::Timeout) => (),
        }
        while !closing && let Ok(order) = orders.try_recv() {
            match order {
                Order::Write(more) => batches.extend(more),
                Order::Close => closing = true,
            }
        }
        // Also when batches come without a pause.
        if next_sync.is_some_and(|at| at <= Instant::now()) {
            writer.sync();
            next_sync = None;
        }
        writer.write(std::mem::take(&mut batches));
        if closing {
            writer.close();
            return;
        }
        next_sync = writer.is_dirty().then(|| next_sync.unwrap_or_else(|| Instant::now() + flush_interval));
    }
}

/// A panic of the writer's thread is told to everybody who waits, and to whoever appends next.
struct PoisonOnPanic(Arc<Log>);

impl Drop for PoisonOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.poison(JournalError::Panicked);
        }
    }
}
