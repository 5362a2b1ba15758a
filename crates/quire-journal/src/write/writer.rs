//! The one writer of a journal: from batches to durable bytes.
//!
//! [`Writer`] does the work, and any thread can drive it. [`run`] is the thread that does so on a
//! real disk. It takes all waiting batches, writes them with one positional write, and makes them
//! durable with one sync: group commit. When many bytes wait, it does so in steps of a few MiB.
//!
//! The thread that appends can write a small batch itself ([`Shared::write_inline`]), while the
//! writer thread has nothing to do and the disk syncs fast. This saves the wake-up of the writer
//! thread, and its wake-up of the thread that appends.
//!
//! A full disk, and a process that has no file descriptor left, interrupt the writer: it keeps its
//! batches and tries again, until there is room. None of them was synced yet, and a second write
//! writes the same bytes. Any other error, and any error of a sync, ends writing permanently.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError};
use parking_lot::Mutex;

use crate::disk::File;
use crate::error::JournalError;
use crate::format::{
    ALIGNMENT, BATCH_HEADER_SIZE, BatchHeader, FLAG_CLOSED, SEGMENT_HEADER_SIZE, SEGMENT_RESERVE,
    SegmentHeader, VERSION, batch_size,
};
use crate::log::Log;
use crate::record::Position;
use crate::segment::{Segment, Shape, empty_index};
use crate::write::background_sync::{BackgroundSync, Sync};
use crate::write::journal::Durability;
use crate::write::segment_pool::SegmentPool;
use crate::write::sidecar_writer::SidecarWriter;
use quire_types::Timestamp;

/// Records that are being written.
#[derive(Debug, Default)]
pub(crate) struct NewBatch {
    pub body: Vec<u8>,
    pub count: u32,
    pub first: Position,
    pub first_timestamp: Timestamp,
    /// Checksum of the body. The producer computes it when the batch is closed, because it has the
    /// body in the processor's cache, and because the writer thread has enough to do.
    pub checksum: u32,
}

impl NewBatch {
    /// No more orders arrive.
    pub fn close(mut self) -> Self {
        self.checksum = crc32c::crc32c(&self.body);
        self
    }
}

/// A batch that has its offset in the segment.
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
    pool: SegmentPool,
    durability: Durability,
    /// Syncs the writes that [`Durability::Os`] left to the system. `None`: the caller of
    /// [`Writer::sync`] waits for the disk.
    background: Option<BackgroundSync>,
    file: Arc<dyn File>,
    segment: Arc<Segment>,
    /// Batches that have no offset yet.
    waiting: VecDeque<NewBatch>,
    /// Batches of the next flush, and their offsets.
    flushing: Vec<Encoded>,
    flush_offset: u64,
    /// Where the next batch begins, and the values that it follows.
    end: u64,
    checksum: u32,
    last: Position,
    /// The last position that was written to the file, and that is durable.
    written: Position,
    synced: Position,
    dirty: bool,
    /// When the next [`Writer::sync`] is due.
    sync_due: Option<Instant>,
    pace: Pace,
    /// Whether [`Log::advance`] calls the function of `on_flush`. It does not while the thread that
    /// appends writes, because that thread does not need it.
    announces: bool,
    sidecar_writer: Option<SidecarWriter>,
}

/// The mean time of the disk for the flush of a small batch. Later flushes have a larger weight.
struct Pace(Duration);

impl Pace {
    /// Adds a flush to the mean.
    fn note(&mut self, took: Duration) {
        self.0 = (7 * self.0 + took.min(PACE_MAX)) / 8;
    }
}

impl Writer {
    /// Continues after the content of `segment`, all of which is synced.
    pub fn new(
        log: Arc<Log>,
        pool: SegmentPool,
        durability: Durability,
        background: Option<BackgroundSync>,
        file: Box<dyn File>,
        segment: Arc<Segment>,
        sidecar_writer: SidecarWriter,
    ) -> Self {
        let summary = segment.summary();
        Writer {
            log,
            pool,
            durability,
            background,
            file: Arc::from(file),
            segment,
            waiting: VecDeque::new(),
            flushing: Vec::new(),
            flush_offset: summary.end,
            end: summary.end,
            checksum: summary.checksum,
            last: summary.last,
            written: summary.last,
            synced: summary.last,
            sync_due: None,
            // The writer thread does the first flushes of a process, which measure its disk.
            pace: Pace(PACE_MAX),
            announces: true,
            // The header of a new segment was written and waits for the first sync.
            dirty: true,
            sidecar_writer: Some(sidecar_writer),
        }
    }

    /// Writes the batches, after those that wait. When it returns, they are persistent, or the log
    /// has the reason why they are not.
    pub fn write(&mut self, batches: Vec<NewBatch>) {
        self.hold(batches);
        if self.log.failure().is_some() {
            self.waiting.clear();
            return;
        }
        match self.try_write() {
            Ok(()) => self.log.resume(),
            Err(Trouble::Passes(error)) => self.log.halt(error),
            Err(Trouble::Lasts(error)) => self.log.poison(error),
        }
    }

    /// Keeps the batches for the next [`Writer::write`].
    fn hold(&mut self, batches: Vec<NewBatch>) {
        self.waiting.extend(batches);
    }

    /// Whether it waits for room.
    fn is_stalled(&self) -> bool {
        self.log.stall().is_some() && self.log.failure().is_none()
    }

    /// Syncs the writes that [`Durability::Os`] left to the system, or begins to. While a sync
    /// runs, it begins none.
    pub fn sync(&mut self) {
        if self.log.failure().is_some() {
            return;
        }
        let Some(background) = &mut self.background else {
            if let Err(error) = self.sync_file() {
                self.log.poison(error);
            }
            return;
        };
        self.synced = self.synced.max(background.finished().unwrap_or_default());
        if self.dirty && !background.is_running() {
            self.dirty = false;
            let (file, segment) = (self.file.clone(), self.segment.clone());
            background.begin(Sync { file, segment, last: self.written });
        }
    }

    /// Marks a clean stop, and keeps the end of the log, after a last attempt to write the
    /// waiting batches.
    pub fn close(&mut self) {
        self.write(Vec::new());
        if self.log.failure().is_none()
            && self.log.stall().is_none()
            && let Err(error) = self.try_close()
        {
            self.log.poison(error);
        }
    }

    fn try_close(&mut self) -> Result<(), JournalError> {
        self.mark(FLAG_CLOSED)?;
        // The small files are written last here, so the sidecar writer finishes its work first.
        self.sidecar_writer = None;
        self.log.write_closed(self.synced)
    }

    /// Writes a batch without records and syncs it.
    pub fn mark(&mut self, flags: u32) -> Result<(), JournalError> {
        if !self.has_room(BATCH_HEADER_SIZE as u64) {
            self.roll(SEGMENT_HEADER_SIZE + SEGMENT_RESERVE).map_err(Trouble::into_error)?;
        }
        self.encode(NewBatch::default(), flags);
        self.write_batches()?;
        self.sync_file()?;
        self.make_visible();
        Ok(())
    }

    fn try_write(&mut self) -> Result<(), Trouble> {
        while let Some(batch) = self.waiting.front() {
            let size = batch_size(batch.body.len()) as u64;
            if self.end - self.flush_offset >= FLUSH_SIZE_MAX {
                self.flush()?;
            }
            if !self.has_room(size + SEGMENT_RESERVE) {
                self.flush()?;
                self.roll(SEGMENT_HEADER_SIZE + size + SEGMENT_RESERVE)?;
            }
            let batch = self.waiting.pop_front().unwrap_or_default();
            self.encode(batch, 0);
        }
        self.flush()
    }

    /// Whether the segment takes `size` more bytes. A segment of an older version takes none,
    /// because this build writes only its own version.
    fn has_room(&self, size: u64) -> bool {
        self.segment.version == VERSION && self.end + size <= self.segment.size
    }

    /// Assigns one batch its offset after those that wait for the flush.
    fn encode(&mut self, batch: NewBatch, flags: u32) {
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

    fn flush(&mut self) -> Result<(), Trouble> {
        if self.flushing.is_empty() {
            return Ok(());
        }
        let is_small = self.end - self.flush_offset <= INLINE_SIZE_MAX;
        let began = Instant::now();
        self.write_batches().map_err(Trouble::before_a_sync)?;
        if self.durability == Durability::Fsync {
            self.sync_file()?;
        }
        if is_small {
            self.pace.note(began.elapsed());
        }
        self.make_visible();
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
        written.map_err(|error| {
            let size = self.end - self.flush_offset;
            let free = self.log.disk.free_bytes(&self.log.directory);
            JournalError::io(&self.segment.path, "writing", &error).with_sizes(size, free)
        })?;
        self.written = self.last;
        Ok(())
    }

    fn sync_file(&mut self) -> Result<(), JournalError> {
        if let Some(background) = &mut self.background {
            // The system reports a failed write to one sync only. So a second sync must not succeed
            // while the first one fails.
            self.synced = self.synced.max(background.wait().unwrap_or_default());
            self.log.check()?;
        }
        if self.dirty {
            let synced = self.log.syncs.measure(|| self.file.sync());
            synced.map_err(|error| JournalError::io(&self.segment.path, "syncing", &error))?;
            self.dirty = false;
            self.synced = self.written;
            self.segment.note_durable();
        }
        Ok(())
    }

    /// The written batches are persistent. Makes them visible to readers.
    fn make_visible(&mut self) {
        let mut index = self.segment.index.write();
        let mut size = 0;
        for Encoded { header, body, .. } in self.flushing.drain(..) {
            let added = index.add(&header, &body, &self.log.names);
            debug_assert!(added, "the journal encoded the records itself");
            size += body.len();
            self.log.syncs.note_written(body.len());
            self.log.buffers.give(body);
        }
        drop(index);
        self.flush_offset = self.end;
        match self.announces {
            true => self.log.advance(self.last, size),
            false => self.log.advance_quietly(self.last, size),
        }
    }

    /// Seals the segment and begins the next one, at least `size` bytes large. The segment does not
    /// change until there is a next one.
    fn roll(&mut self, size: u64) -> Result<(), Trouble> {
        self.sync_file()?;
        let (first, checksum) = (self.last.next(), self.checksum);
        let begun = begin(&self.log, &mut self.pool, size, first, checksum).or_else(|error| {
            match error {
                // Readers open the files again when they need them.
                JournalError::OutOfFiles { .. } => self.log.files.close_down_to(0),
                error => return Err(error),
            }
            begin(&self.log, &mut self.pool, size, first, checksum)
        });
        let (file, segment) = begun.map_err(Trouble::before_a_sync)?;
        self.log.note_sealed(&self.segment);
        self.sidecar_writer.iter().for_each(|writer| writer.sealed(&self.segment));
        self.log.segments.write().push(segment.clone());
        self.file = Arc::from(file);
        self.segment = segment;
        self.dirty = true;
        self.end = SEGMENT_HEADER_SIZE;
        self.flush_offset = self.end;
        Ok(())
    }
}

/// Why no batch was written.
enum Trouble {
    /// The write can be tried again.
    Passes(JournalError),
    /// It must not be tried again: the bytes on the disk are unknown.
    Lasts(JournalError),
}

impl Trouble {
    /// An error of bytes that are synced later. If there was no room, the disk has no wrong bytes.
    fn before_a_sync(error: JournalError) -> Self {
        match error {
            JournalError::Full { .. } | JournalError::OutOfFiles { .. } => Trouble::Passes(error),
            error => Trouble::Lasts(error),
        }
    }

    fn into_error(self) -> JournalError {
        let (Trouble::Passes(error) | Trouble::Lasts(error)) = self;
        error
    }
}

impl From<JournalError> for Trouble {
    fn from(error: JournalError) -> Self {
        Trouble::Lasts(error)
    }
}

/// Many waiting batches are written and synced in steps of this many bytes. The size is enough for
/// the full throughput of a disk. The bytes are still in the processor's cache when they are
/// indexed, and early messages do not wait for all later ones. One batch may exceed it.
const FLUSH_SIZE_MAX: u64 = 2 * 1024 * 1024;

/// Begins the next segment: its header is written with the first flush, which syncs both. The
/// caller adds it to the log.
pub(crate) fn begin(
    log: &Log,
    pool: &mut SegmentPool,
    size: u64,
    first: Position,
    previous: u32,
) -> Result<(Box<dyn File>, Arc<Segment>), JournalError> {
    let prepared = pool.take(size)?;
    let (number, size) = (prepared.number, prepared.size);
    let header = SegmentHeader { version: VERSION, number, first, size, previous, table: 0 };
    if let Err(error) = prepared.file.write_at(&header.encode(), 0) {
        let free = log.disk.free_bytes(&log.directory);
        let error = JournalError::io(&prepared.path, "writing", &error).with_sizes(SEGMENT_HEADER_SIZE, free);
        pool.give_back(prepared);
        return Err(error);
    }
    let shape = Shape { file_size: prepared.size, frames: None };
    let segment = Segment::new(&log.files, prepared.path, &header, shape, empty_index(&header), false);
    Ok((prepared.file, segment))
}

/// How often a writer without room tries again.
const RETRY_INTERVAL: Duration = if cfg!(test) { Duration::from_millis(5) } else { Duration::from_secs(1) };

/// The most bytes that the thread that appends writes itself. A larger batch gains little from a
/// saved wake-up.
const INLINE_SIZE_MAX: u64 = 16 * 1024;

/// The thread that appends writes itself only while a flush takes less than this on average,
/// because it is blocked meanwhile.
const INLINE_PACE_MAX: Duration = Duration::from_millis(1);

/// The longest duration that counts for the mean. After one such flush, about 10 fast ones bring
/// the mean below [`INLINE_PACE_MAX`] again.
const PACE_MAX: Duration = Duration::from_millis(20);

/// The writer. Its thread and the thread that appends share it.
pub(crate) struct Shared {
    writer: Mutex<Writer>,
    /// Orders that were sent, and that the writer thread has not received.
    order_count: AtomicUsize,
    flush_interval: Duration,
}

impl Shared {
    pub fn new(writer: Writer, flush_interval: Duration) -> Self {
        Shared { writer: Mutex::new(writer), order_count: AtomicUsize::new(0), flush_interval }
    }

    /// An order is about to be sent. Only the thread that appends sends orders.
    pub fn ordered(&self) {
        self.order_count.fetch_add(1, Ordering::AcqRel);
    }

    /// Writes the batches on the calling thread, if they are small, the writer thread is idle and
    /// the disk is fast. Otherwise returns them. Does not call the function of `on_flush`. With
    /// `Ok(true)` the writer thread needs an order: a sync is due later, or there is no room.
    pub fn write_inline(&self, batches: Vec<NewBatch>) -> Result<bool, Vec<NewBatch>> {
        let size: u64 = batches.iter().map(|batch| batch_size(batch.body.len()) as u64).sum();
        if size > INLINE_SIZE_MAX || self.order_count.load(Ordering::Acquire) > 0 {
            return Err(batches);
        }
        let Some(mut writer) = self.writer.try_lock() else { return Err(batches) };
        if !writer.waiting.is_empty()
            || writer.log.failure().is_some()
            || writer.pace.0 >= INLINE_PACE_MAX
            || !writer.has_room(size + SEGMENT_RESERVE)
        {
            return Err(batches);
        }
        writer.announces = false;
        writer.write(batches);
        writer.announces = true;
        Ok(writer.set_sync_due(self.flush_interval) || writer.is_stalled())
    }
}

impl Writer {
    /// Whether a sync is due that was not due before the last write.
    fn set_sync_due(&mut self, flush_interval: Duration) -> bool {
        let was_due = self.sync_due.is_some();
        self.sync_due = self.dirty.then(|| self.sync_due.unwrap_or_else(|| Instant::now() + flush_interval));
        !was_due && self.sync_due.is_some()
    }
}

/// The writer thread: takes all waiting orders, writes their batches, and repeats this until it
/// gets the order to close.
pub(crate) fn run(shared: &Shared, orders: &Receiver<Order>) {
    let log = shared.writer.lock().log.clone();
    let _poisons = PoisonOnPanic(log);
    let mut batches = Vec::new();
    let mut next_sync: Option<Instant> = None;
    let mut next_try: Option<Instant> = None;
    loop {
        let order = match next_sync.into_iter().chain(next_try).min() {
            None => orders.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(at) => orders.recv_deadline(at),
        };
        let mut closing = false;
        let mut order_count = 0;
        match order {
            Ok(Order::Write(more)) => {
                order_count += 1;
                batches.extend(more);
            }
            Ok(Order::Close) | Err(RecvTimeoutError::Disconnected) => closing = true,
            Err(RecvTimeoutError::Timeout) => (),
        }
        while !closing && let Ok(order) = orders.try_recv() {
            match order {
                Order::Write(more) => {
                    order_count += 1;
                    batches.extend(more);
                }
                Order::Close => closing = true,
            }
        }
        let is_due = |at: Option<Instant>| at.is_some_and(|at| at <= Instant::now());
        let mut writer = shared.writer.lock();
        shared.order_count.fetch_sub(order_count, Ordering::AcqRel);
        // Also when batches arrive without a pause.
        if is_due(writer.sync_due) {
            writer.sync();
            writer.sync_due = None;
        }
        // While there is no room, not every order causes another attempt.
        if next_try.is_none() || is_due(next_try) || closing {
            writer.write(std::mem::take(&mut batches));
            next_try = writer.is_stalled().then(|| Instant::now() + RETRY_INTERVAL);
        } else {
            writer.hold(std::mem::take(&mut batches));
        }
        if closing {
            writer.close();
            return;
        }
        writer.set_sync_due(shared.flush_interval);
        next_sync = writer.sync_due;
    }
}

/// After a panic of the writer's thread, waiting threads and later appends get the error.
struct PoisonOnPanic(Arc<Log>);

impl Drop for PoisonOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.poison(self.0.panicked());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_a_slow_flush_the_writer_thread_writes_for_a_while() {
        let fast = Duration::from_micros(100);
        let mut pace = Pace(fast);
        pace.note(Duration::from_secs(30));
        let mut flush_count = 0;
        while pace.0 >= INLINE_PACE_MAX {
            pace.note(fast);
            flush_count += 1;
        }
        assert_eq!(flush_count, 8);
    }
}
