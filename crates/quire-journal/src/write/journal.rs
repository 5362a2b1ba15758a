//! The handle that appends: positions, sequences, batches, and the channel to the writer.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Sender, unbounded};

use crate::disk::{Disk, MemoryDisk, RealDisk};
use crate::error::JournalError;
use crate::format::{
    BATCH_BODY_TARGET, FLAG_CLOSED, FLAG_OPENED, RECORD_SIZE_MAX, SEGMENT_HEADER_SIZE, SEGMENT_RESERVE,
    mark_late, put_record, record_size,
};
use crate::knowledge::{Knowledge, Known, Step};
use crate::log::Log;
use crate::maintenance::files::FileMaintenance;
use crate::paged::Memory;
use crate::read::digest::PublisherDigest;
use crate::read::reader::{Reader, SegmentState};
use crate::record::deleted::DeletedKeys;
use crate::record::{Bookmark, NewRecord, Position, PublisherId, RecordKind};
use crate::recover::{self, Recovery, RecoveryProgress};
use crate::sidecar::Sidecars;
use crate::write::background_sync::BackgroundSync;
use crate::write::segment_pool::{FILL_PAUSE, SegmentFactory, SegmentPool};
use crate::write::sidecar_writer::SidecarWriter;
use crate::write::syncs::Syncs;
use crate::write::writer::{self, NewBatch, Order, Shared, Writer};
use quire_types::Timestamp;

/// The failures that persisted records survive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// A returned `fdatasync`. The record survives the end of the process, a crash of the system,
    /// and a power cut.
    #[default]
    Fsync,
    /// The system has the bytes. The record survives the end of the process, but not a crash of the
    /// system or a power cut. Synced every `flush_interval`.
    Os,
}

/// The settings of a journal.
#[derive(Clone, Debug)]
pub struct Options {
    /// Size of a segment, in bytes. A record that needs more gets a segment of the size that it
    /// needs.
    pub segment_size: u64,
    /// Size of the first segments of a journal, in bytes. Later ones double up to `segment_size`.
    pub first_segment_size: u64,
    /// Segments that are made ready before they are needed.
    pub prepared_segments: usize,
    /// The longest time that a record may wait for its flush to start or, with [`Durability::Os`],
    /// for its sync. On an idle disk, a flush begins at once.
    pub flush_interval: Duration,
    /// The failures that persisted records survive.
    pub durability: Durability,
    /// Limit of the bytes of records that wait to become persistent. Above it [`Journal::append`]
    /// refuses, so that a producer that is faster than the disk does not fill the memory. One
    /// record may always wait, of any size.
    pub unpersisted_size_max: usize,
    /// The directory to which [`FileMaintenance::archive`] moves segments, and which has the
    /// segments that it moved.
    pub archive_directory: Option<PathBuf>,
    /// For a journal in memory: its bound, in bytes.
    pub memory_size_max: u64,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            segment_size: 64 * 1024 * 1024,
            // Little for a disk, and still two steps of a busy writer.
            first_segment_size: 4 * 1024 * 1024,
            prepared_segments: 2,
            flush_interval: Duration::from_millis(100),
            durability: Durability::Fsync,
            // The bytes that a slow disk writes in a second.
            unpersisted_size_max: 64 * 1024 * 1024,
            archive_directory: None,
            memory_size_max: 1024 * 1024 * 1024,
        }
    }
}

/// The smallest segment, in bytes: room for a few batches of common size.
const SEGMENT_SIZE_MIN: u64 = 64 * 1024;

/// The result of an append.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Appended {
    /// The record has this position.
    Recorded(Position),
    /// A duplicate: the sequence is not above the highest one of this publisher. The record was
    /// dropped.
    Duplicate {
        /// The highest sequence of the publisher.
        highest: u64,
    },
}

/// The knowledge of the journal about a sequence, without a look into the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    /// It is above the highest sequence of its publisher: the log lacks it.
    No,
    /// The log lacks it, and has higher sequences of its publisher: it is in a hole, or was passed
    /// over.
    Missing,
    /// The log has it, of this run.
    OfRun(u64),
    /// The log may have it. [`Reader::find`] knows that when everything up to `after` is
    /// persistent.
    Unknown {
        /// The last record that was appended.
        after: Position,
    },
}

/// The one writer of a journal directory.
///
/// Dropping it closes it without reporting errors. [`Journal::close`] reports them.
pub struct Journal {
    log: Arc<Log>,
    route: Route,
    /// Closed batches and the open one, not submitted yet.
    closed: Vec<NewBatch>,
    open: NewBatch,
    appended: Position,
    last_timestamp: Timestamp,
    knowledge: Knowledge,
    unpersisted_size_max: usize,
    _lock: Option<Box<dyn Send + Sync>>,
}

/// The channel of batches to the writer.
enum Route {
    Thread {
        orders: Sender<Order>,
        writer: Arc<Shared>,
        thread: Option<JoinHandle<()>>,
    },
    /// `waiting` is written at `submit`, or at [`Journal::write_waiting`] when it is driven by
    /// hand.
    Inline {
        writer: Box<Writer>,
        waiting: Vec<NewBatch>,
        by_hand: bool,
    },
    Closed,
}

impl Route {
    /// The channel to the writer. Starts its thread, if it has one.
    fn new(writer: Writer, drive: Drive, flush_interval: Duration) -> io::Result<Self> {
        let by_hand = match drive {
            Drive::Thread => {
                let (orders, inbox) = unbounded();
                let writer = Arc::new(Shared::new(writer, flush_interval));
                let its_writer = writer.clone();
                let thread = std::thread::Builder::new().name("quire-writer".into());
                let thread = thread.spawn(move || writer::run(&its_writer, &inbox))?;
                return Ok(Route::Thread { orders, writer, thread: Some(thread) });
            }
            Drive::AtSubmit => false,
            Drive::ByHand => true,
        };
        Ok(Route::Inline { writer: Box::new(writer), waiting: Vec::new(), by_hand })
    }
}

/// The files of a log: archived ones included, prepared ones not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    /// Their number.
    pub count: usize,
    /// Bytes of the files in each state.
    pub active: u64,
    /// As above.
    pub sealed: u64,
    /// As above.
    pub archived: u64,
    /// As above.
    pub compressed: u64,
    /// The first position of the log.
    pub first: Position,
    /// The last position of the oldest file.
    pub oldest_last: Position,
}

impl Journal {
    /// Opens, or begins, the journal in a directory. Recovers it first, and calls `on_progress`
    /// meanwhile.
    ///
    /// # Errors
    /// [`JournalError::Locked`], [`JournalError::Corrupt`], [`JournalError::Gap`],
    /// [`JournalError::Version`], [`JournalError::BadOption`], and the errors of the system.
    pub fn open(
        directory: impl AsRef<Path>,
        options: &Options,
        on_progress: &mut dyn FnMut(RecoveryProgress),
    ) -> Result<(Self, Recovery), JournalError> {
        Journal::open_on(Arc::new(RealDisk), directory.as_ref(), options, on_progress, Drive::Thread)
    }

    /// A journal in memory, which ends when it is dropped. A submit writes at once, on the calling
    /// thread.
    ///
    /// # Errors
    /// [`JournalError::BadOption`], and [`JournalError::Full`] when the first segment is above the
    /// bound.
    pub fn in_memory(options: &Options) -> Result<Self, JournalError> {
        let disk = Arc::new(MemoryDisk::new(options.memory_size_max));
        Journal::open_on(disk, Path::new("memory"), options, &mut |_| (), Drive::AtSubmit)
            .map(|(journal, _)| journal)
    }

    /// A journal on any disk, whose writer runs only in [`Journal::write_waiting`]: for simulation
    /// and tests.
    ///
    /// # Errors
    /// As [`Journal::open`].
    pub fn driven_by_hand(
        disk: Arc<dyn Disk>,
        directory: &Path,
        options: &Options,
    ) -> Result<(Self, Recovery), JournalError> {
        Journal::open_on(disk, directory, options, &mut |_| (), Drive::ByHand)
    }

    fn open_on(
        disk: Arc<dyn Disk>,
        directory: &Path,
        options: &Options,
        on_progress: &mut dyn FnMut(RecoveryProgress),
        drive: Drive,
    ) -> Result<(Self, Recovery), JournalError> {
        check(options)?;
        let system = |operation, error| JournalError::io(directory, operation, &error);
        disk.create_directory(directory).map_err(|error| system("creating the directory", error))?;
        let lock = disk.lock(directory).map_err(|error| system("locking the directory", error))?;
        let lock = lock.ok_or_else(|| JournalError::Locked { directory: directory.to_owned() })?;
        let (recovered, file) =
            recover::recover(disk.clone(), directory, options.archive_directory.as_deref(), on_progress)?;
        let factory = SegmentFactory {
            disk,
            directory: directory.to_owned(),
            size: options.segment_size,
            first_size: options.first_segment_size,
            prepared: options.prepared_segments,
            reusable: recovered.unused.clone(),
            fill_pause: FILL_PAUSE,
        };
        let next = recovered.unused.start;
        let mut pool = match drive {
            Drive::Thread => SegmentPool::preallocating(factory, next, options.prepared_segments)?,
            Drive::AtSubmit | Drive::ByHand => SegmentPool::on_demand(factory, next),
        };
        let log = Arc::new(recovered.log);
        let (file, segment) = match file.zip(recovered.active) {
            Some(active) => active,
            None => {
                let begun =
                    writer::begin(&log, &mut pool, SEGMENT_HEADER_SIZE + SEGMENT_RESERVE, Position(1), 0)?;
                log.segments.write().push(begun.1.clone());
                begun
            }
        };
        if let Some(clients) = recovered.unwritten {
            clients.write(&*log.disk, &log.directory)?;
        }
        let summary = segment.summary();
        let sidecar_writer = match drive {
            Drive::Thread => SidecarWriter::on_a_thread(log.clone())?,
            Drive::AtSubmit | Drive::ByHand => SidecarWriter::at_once(log.clone()),
        };
        let background = match (&drive, options.durability) {
            (Drive::Thread, Durability::Os) => Some(BackgroundSync::start(log.clone())?),
            _ => None,
        };
        let mut writer =
            Writer::new(log.clone(), pool, options.durability, background, file, segment, sidecar_writer);
        if summary.flags == FLAG_CLOSED {
            writer.mark(FLAG_OPENED)?;
        }
        let last_timestamp = log.segments.read().iter().map(|segment| segment.summary().last_timestamp).max();
        let journal = Journal {
            route: Route::new(writer, drive, options.flush_interval)
                .map_err(|error| system("starting a thread", error))?,
            log,
            closed: Vec::new(),
            open: NewBatch::default(),
            appended: summary.last,
            last_timestamp: last_timestamp.unwrap_or_default(),
            knowledge: recovered.knowledge,
            unpersisted_size_max: options.unpersisted_size_max,
            _lock: Some(lock),
        };
        Ok((journal, recovered.recovery))
    }

    /// Assigns the record its position and adds it to the open batch. No byte is written before
    /// [`Journal::submit`].
    ///
    /// # Errors
    /// [`JournalError::Behind`] when too many bytes wait to become persistent: append again later,
    /// or use [`Journal::append_waiting`]. [`JournalError::BadOption`] for a topic or correlation
    /// id that is too long, a delete whose data does not list keys, or a record above 1 GiB.
    /// [`JournalError::SequencesEnd`] for a record without a sequence after the last one. The
    /// reason why the journal takes no more writes.
    pub fn append(&mut self, record: &NewRecord<'_>) -> Result<Appended, JournalError> {
        self.log.check()?;
        let size = checked_size(record)?;
        let position = self.appended.next();
        let known = self.knowledge.find_mut(record.publisher);
        let highest = known.as_deref().map_or(0, |known| known.highest);
        let sequence = match record.sequence {
            // Above the highest sequence, also after a larger one that a caller assigned: a record
            // without a sequence is never a duplicate.
            0 => {
                let next = highest.checked_add(1);
                let publisher = record.publisher;
                position.0.max(next.ok_or(JournalError::SequencesEnd { publisher })?)
            }
            sequence if sequence <= highest => return Ok(Appended::Duplicate { highest }),
            sequence => sequence,
        };
        check_room(&self.log, size, self.unpersisted_size_max)?;
        let bookmark = Bookmark { publisher: record.publisher, sequence };
        let step = Step::new(bookmark, record.attributes, false);
        match known {
            Some(known) => known.take(&step, true),
            None => self.knowledge.insert(Known::new(record.publisher)).take(&step, true),
        }
        self.put(record, sequence, size);
        Ok(Appended::Recorded(position))
    }

    /// Appends a record that came from another instance, also below the highest sequence of its
    /// publisher. Such a record is *late*: it fills a hole, or belongs to an earlier run. The
    /// caller has found that the log lacks it ([`Journal::held`]). It is a duplicate only when it
    /// is known that the log has its sequence.
    ///
    /// # Errors
    /// As [`Journal::append`].
    pub fn append_late(&mut self, record: &NewRecord<'_>) -> Result<Appended, JournalError> {
        let known = self.knowledge.find_mut(record.publisher);
        let Some(known) = known.filter(|known| (1..=known.highest).contains(&record.sequence)) else {
            return self.append(record);
        };
        self.log.check()?;
        let size = checked_size(record)?;
        if known.has_in_run(record.sequence) {
            return Ok(Appended::Duplicate { highest: known.highest });
        }
        check_room(&self.log, size, self.unpersisted_size_max)?;
        let bookmark = Bookmark { publisher: record.publisher, sequence: record.sequence };
        known.take(&Step::new(bookmark, record.attributes, true), true);
        self.put(record, record.sequence, size);
        mark_late(&mut self.open.body, size);
        Ok(Appended::Recorded(self.appended))
    }

    /// Adds the record to the open batch, with the next position.
    #[inline(always)]
    fn put(&mut self, record: &NewRecord<'_>, sequence: u64, size: usize) {
        let position = self.appended.next();
        self.last_timestamp = self.last_timestamp.max(record.timestamp);
        if !self.open.body.is_empty() && self.open.body.len() + size > BATCH_BODY_TARGET {
            self.closed.push(std::mem::take(&mut self.open).close());
        }
        if self.open.count == 0 {
            self.open.body = self.log.buffers.take();
            self.open.first = position;
            self.open.first_timestamp = self.last_timestamp;
        }
        put_record(&mut self.open.body, record, sequence, self.last_timestamp, size);
        self.open.count += 1;
        self.log.unpersisted_size.fetch_add(size, Ordering::AcqRel);
        self.appended = position;
    }

    /// Appends. When too many bytes wait to become persistent, submits first and waits until half
    /// of them are persistent.
    ///
    /// # Errors
    /// As [`Journal::append`], with [`JournalError::TimedOut`] instead of [`JournalError::Behind`].
    pub fn append_waiting(
        &mut self,
        record: &NewRecord<'_>,
        timeout: Duration,
    ) -> Result<Appended, JournalError> {
        match self.append(record) {
            Err(JournalError::Behind { limit_bytes }) => {
                self.submit();
                self.write_waiting();
                let room = || self.unpersisted_bytes() <= limit_bytes.saturating_sub(record_size(record)) / 2;
                self.log.wait_until(Instant::now() + timeout, room)?;
                self.append(record)
            }
            appended => appended,
        }
    }

    /// Passes the appended records to the writer. A journal in memory that had no room tries again.
    pub fn submit(&mut self) {
        self.submit_to(false);
    }

    /// As [`Journal::submit`], for a caller that has no other work. It writes and syncs the records
    /// on the calling thread, if they are small, the writer is idle and the disk was fast lately.
    /// They are then persistent when it returns, and the function of [`Journal::on_flush`] is not
    /// called.
    pub fn submit_inline(&mut self) {
        self.submit_to(true);
    }

    fn submit_to(&mut self, is_inline: bool) {
        if self.open.count > 0 {
            self.closed.push(std::mem::take(&mut self.open).close());
        }
        let is_stalled =
            matches!(self.route, Route::Inline { by_hand: false, .. }) && self.log.stall().is_some();
        if self.closed.is_empty() && !is_stalled {
            return;
        }
        let batches = std::mem::take(&mut self.closed);
        match &mut self.route {
            Route::Thread { orders, writer, .. } => {
                let left = if is_inline { writer.write_inline(batches) } else { Err(batches) };
                let order = match left {
                    Ok(false) => return,
                    // This tells the thread when the next sync is due.
                    Ok(true) => Vec::new(),
                    Err(batches) => batches,
                };
                writer.ordered();
                // The send succeeds: the thread ends only after an order to close, so it still
                // receives.
                let _ = orders.send(Order::Write(order));
            }
            Route::Inline { writer, by_hand: false, .. } => writer.write(batches),
            Route::Inline { waiting, .. } => waiting.extend(batches),
            Route::Closed => (),
        }
    }

    /// For a journal that is driven by hand: writes and syncs the submitted records.
    pub fn write_waiting(&mut self) {
        if let Route::Inline { writer, waiting, .. } = &mut self.route {
            writer.write(std::mem::take(waiting));
        }
    }

    /// Submits, and waits until everything appended is persistent.
    ///
    /// # Errors
    /// [`JournalError::TimedOut`], or why the journal takes no more writes.
    pub fn flush(&mut self, timeout: Duration) -> Result<(), JournalError> {
        self.submit();
        self.write_waiting();
        self.log.wait(self.appended, Instant::now() + timeout)
    }

    /// The position of the last record appended.
    pub fn appended(&self) -> Position {
        self.appended
    }

    /// The last position that is persistent.
    pub fn persisted(&self) -> Position {
        self.log.persisted()
    }

    /// The time of the last record appended. No later record has an earlier one.
    pub fn last_timestamp(&self) -> Timestamp {
        self.last_timestamp
    }

    /// Bytes of records that are not persistent yet.
    pub fn unpersisted_bytes(&self) -> usize {
        self.log.unpersisted_size.load(Ordering::Acquire)
    }

    /// The reason why the journal takes no more writes until it is opened again, if there is one.
    pub fn failure(&self) -> Option<JournalError> {
        self.log.failure()
    }

    /// Why no record is written for now: the disk is full, or the process has no file descriptor
    /// left. Writing continues when there is room. Until then, appended records are kept, up to the
    /// limit of waiting bytes.
    pub fn stall(&self) -> Option<JournalError> {
        self.log.stall()
    }

    /// The highest appended sequence of the publisher. It survives restarts and the removal of old
    /// segments.
    pub fn highest_sequence(&self, publisher: PublisherId) -> Option<u64> {
        self.knowledge.find(publisher).map(|known| known.highest)
    }

    /// How many publishers the log knows.
    pub fn publisher_count(&self) -> usize {
        self.knowledge.len()
    }

    /// The digests of publishers, in the order in which they came, without the first `after` ones.
    /// Two logs with equal digests have had the same messages.
    pub fn publisher_digests(&self, after: usize) -> impl Iterator<Item = PublisherDigest> {
        self.knowledge.after(after).map(|known| PublisherDigest {
            publisher: known.publisher,
            highest: known.highest,
            sum: known.sum,
        })
    }

    /// The ranges of sequences that records of publishers follow, and in which the log has no
    /// record: publisher, first and last sequence. In the order in which the publishers came,
    /// without the first `after` ones and at most `count_max` of them.
    pub fn exact_holes(
        &self,
        after: usize,
        count_max: usize,
    ) -> impl Iterator<Item = (PublisherId, u64, u64)> {
        self.knowledge
            .after(after)
            .take(count_max)
            .flat_map(|known| known.exact_holes().map(|(first, last)| (known.publisher, first, last)))
    }

    /// As [`Journal::exact_holes`], of one publisher.
    pub fn exact_holes_of(&self, publisher: PublisherId) -> impl Iterator<Item = (u64, u64)> {
        self.knowledge.find(publisher).into_iter().flat_map(Known::exact_holes)
    }

    /// Whether the log has a message, as far as this is known without reading it.
    pub fn held(&self, bookmark: Bookmark) -> Held {
        match self.knowledge.find(bookmark.publisher) {
            Some(known) if known.has_in_run(bookmark.sequence) => Held::OfRun(known.run),
            Some(known) if known.lacks(bookmark.sequence) => Held::Missing,
            Some(known) if bookmark.sequence <= known.highest => Held::Unknown { after: self.appended },
            _ => Held::No,
        }
    }

    /// The run of the record with the highest sequence of the publisher; 0 = unknown.
    pub fn current_run(&self, publisher: PublisherId) -> u64 {
        self.knowledge.find(publisher).map_or(0, |known| known.run)
    }

    /// A sequence of the publisher from here to its highest one is of its current run, unless it is
    /// in a hole or was passed over.
    pub fn run_begin(&self, publisher: PublisherId) -> u64 {
        self.knowledge.find(publisher).map_or(1, |known| known.run_begin)
    }

    /// The ranges of sequences that records of the publisher follow, directly or not, and that the
    /// log lacks: first and last sequence of each, ascending. Above 64 ranges the lowest ones are
    /// merged, so a range can contain sequences that the log has.
    pub fn holes(&self, publisher: PublisherId) -> &[(u64, u64)] {
        self.knowledge.find(publisher).map_or(&[], Known::holes)
    }

    /// The hole, or the range of sequences that were passed over, with this sequence of the
    /// publisher: its first and its last sequence. The log may have messages in a merged one.
    pub fn hole_at(&self, bookmark: Bookmark) -> Option<(u64, u64)> {
        self.knowledge.find(bookmark.publisher)?.lacking_at(bookmark.sequence)
    }

    /// The first sequence of the publisher after `after` that is in a hole or was passed over. The
    /// log may have it when it is in a merged range.
    pub fn first_lacking_after(&self, publisher: PublisherId, after: u64) -> Option<u64> {
        self.knowledge.find(publisher)?.first_lacking_after(after)
    }

    /// Whether the log may lack sequences of the publisher below the highest one.
    pub fn may_lack_any(&self, publisher: PublisherId) -> bool {
        self.knowledge.find(publisher).is_some_and(|known| known.lacking.is_some())
    }

    /// Adds a topic to the log before its first record, if the log has fewer than `count_max`
    /// topics. Returns the log's copy of the name. The topic stays at least until this copy is
    /// dropped. `None` when there are too many topics.
    pub fn admit_topic(&self, name: &Arc<str>, count_max: usize) -> Option<Arc<str>> {
        self.log.names.admit(name, count_max)
    }

    /// Whether the log has messages of the topic. Those of removed files may still count.
    pub fn has_topic(&self, name: &str) -> bool {
        self.log.names.contains(name)
    }

    /// The number of topics in the log.
    pub fn topic_count(&self) -> usize {
        self.log.names.count()
    }

    /// The first `count_max` topics of the log with names after `after`, in order. Visits every
    /// topic.
    pub fn topics_after(&self, after: &str, count_max: usize) -> Vec<Arc<str>> {
        self.log.names.after(after, count_max)
    }

    /// The number of files of the log, and their size in bytes: archived ones included, prepared
    /// ones not.
    pub fn size(&self) -> (usize, u64) {
        let segments = self.log.segments.read();
        (segments.len(), segments.iter().map(|segment| segment.file_size).sum())
    }

    /// The syncs since the journal was opened.
    pub fn syncs(&self) -> Syncs {
        self.log.syncs.read()
    }

    /// The files of the log, by their states.
    pub fn sizes(&self) -> Sizes {
        let segments = self.log.segments.read();
        let mut sizes = Sizes { count: segments.len(), ..Sizes::default() };
        if let Some(oldest) = segments.first() {
            sizes.first = oldest.first;
            sizes.oldest_last = oldest.summary().last;
        }
        for segment in segments.iter() {
            *match segment.state(segment.is_sealed()) {
                SegmentState::Active => &mut sizes.active,
                SegmentState::Sealed => &mut sizes.sealed,
                SegmentState::Archived => &mut sizes.archived,
                SegmentState::Compressed => &mut sizes.compressed,
            } += segment.file_size;
        }
        sizes
    }

    /// Removes topics that no segment has, after segments were removed. Returns false when no
    /// segment was removed since the last call. It calls `release` first, to drop references that
    /// [`Journal::admit_topic`] returned.
    pub fn forget_unused_topics(&self, release: impl FnOnce()) -> bool {
        self.log.names.forget_unused(release)
    }

    /// Calls `wake` once after every flush, and when the journal fails, on the writer's thread. It
    /// must not block.
    pub fn on_flush(&self, wake: Box<dyn Fn() + Send + Sync>) {
        self.log.set_on_flush(wake);
    }

    /// Read access, also while the journal is written.
    pub fn reader(&self) -> Reader {
        Reader::new(self.log.clone())
    }

    /// The sidecar files of the journal.
    pub fn sidecars(&self) -> Sidecars {
        Sidecars::new(self.log.clone())
    }

    /// Memory that the system may write out to a file in the journal directory. Every call makes a
    /// file.
    ///
    /// # Errors
    /// The error of the system.
    pub fn paged_memory(&self) -> io::Result<Memory> {
        let Log { disk, directory, .. } = &*self.log;
        Ok(disk.page_file(directory)?.map_or_else(Memory::heap, Memory::paged))
    }

    /// Archives, compresses and removes sealed segments, also from other threads. It ends with the
    /// journal.
    pub fn maintenance(&self) -> FileMaintenance {
        FileMaintenance::new(self.log.clone())
    }

    /// Makes everything appended persistent and marks a clean stop.
    ///
    /// # Errors
    /// Why not all of it could be made persistent.
    pub fn close(mut self) -> Result<(), JournalError> {
        self.stop();
        self.log.failure().or_else(|| self.log.stall()).map_or(Ok(()), Err)
    }

    /// Ends without writing the open batch and without marking a clean stop, as if the process had
    /// been killed: for a caller that panicked, whose batch may be incomplete. The directory is
    /// then unlocked.
    pub fn abandon(self) {
        self.log.poison(self.log.panicked());
    }

    fn stop(&mut self) {
        self.submit();
        self.write_waiting();
        match std::mem::replace(&mut self.route, Route::Closed) {
            Route::Thread { orders, thread, .. } => {
                // The thread has ended only when it panicked, and the lines below report that.
                let _ = orders.send(Order::Close);
                if thread.is_some_and(|thread| thread.join().is_err()) {
                    self.log.poison(JournalError::Closed);
                }
            }
            Route::Inline { mut writer, .. } => writer.close(),
            Route::Closed => (),
        }
        // A move of a segment that is in progress ends before another process may open the
        // directory.
        *self.log.maintenance_ended.lock() = true;
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        self.stop();
    }
}

enum Drive {
    Thread,
    AtSubmit,
    ByHand,
}

fn check(options: &Options) -> Result<(), JournalError> {
    let bad = |option, reason: String| Err(JournalError::BadOption { option, reason });
    if options.segment_size < SEGMENT_SIZE_MIN {
        return bad(
            "journal_size",
            format!("{} bytes, the smallest is {SEGMENT_SIZE_MIN}", options.segment_size),
        );
    }
    if options.first_segment_size < SEGMENT_SIZE_MIN {
        let reason = format!("{} bytes, the smallest is {SEGMENT_SIZE_MIN}", options.first_segment_size);
        return bad("first_segment_size", reason);
    }
    if options.prepared_segments == 0 {
        return bad("preallocated_journal_files", "0, the smallest is 1".into());
    }
    if !(Duration::from_micros(30)..=Duration::from_millis(100)).contains(&options.flush_interval) {
        return bad("flush_interval", format!("{:?}, it must be 30us to 100ms", options.flush_interval));
    }
    Ok(())
}

/// Refuses a record of `size` bytes while too many bytes wait to become persistent.
#[inline]
fn check_room(log: &Log, size: usize, limit_bytes: usize) -> Result<(), JournalError> {
    let unpersisted_size = log.unpersisted_size.load(Ordering::Acquire);
    if unpersisted_size > 0 && unpersisted_size.saturating_add(size) > limit_bytes {
        return Err(JournalError::Behind { limit_bytes });
    }
    Ok(())
}

/// The size of the record in a batch.
#[inline]
fn checked_size(record: &NewRecord<'_>) -> Result<usize, JournalError> {
    let size = record_size(record);
    let is_accepted = record.topic.len() <= usize::from(u16::MAX)
        && record.correlation_id.len() <= usize::from(u8::MAX)
        && size <= RECORD_SIZE_MAX
        && record.kind != RecordKind::Delete;
    if is_accepted { Ok(size) } else { checked_part(record, size) }
}

/// Separate from [`checked_size`], so that most records are checked without a call.
#[cold]
#[inline(never)]
fn checked_part(record: &NewRecord<'_>, size: usize) -> Result<usize, JournalError> {
    let bad = |option, reason: String| Err(JournalError::BadOption { option, reason });
    let above = |size, limit| format!("{size} bytes, the limit is {limit}");
    if record.topic.len() > usize::from(u16::MAX) {
        return bad("topic", above(record.topic.len(), usize::from(u16::MAX)));
    }
    if record.correlation_id.len() > usize::from(u8::MAX) {
        return bad("correlation_id", above(record.correlation_id.len(), usize::from(u8::MAX)));
    }
    if record.kind == RecordKind::Delete && DeletedKeys::from_bytes(record.data).is_none() {
        return bad("data", "the data of a delete is not a list of keys".into());
    }
    if size > RECORD_SIZE_MAX {
        return bad("data", above(record.data.len(), RECORD_SIZE_MAX));
    }
    Ok(size)
}

const _: () = assert!(SEGMENT_SIZE_MIN > SEGMENT_HEADER_SIZE + SEGMENT_RESERVE);

#[cfg(test)]
mod tests {
    use std::io;
    use std::path::PathBuf;
    use std::sync::atomic::{AtomicBool, AtomicUsize};

    use std::thread::ThreadId;

    use parking_lot::Mutex;

    use super::*;
    use crate::disk::File;
    use crate::record::attributes::Attributes;

    /// Only a hang takes longer, on the slowest machine.
    const SOON: Duration = Duration::from_secs(120);

    /// Counters that the writer's thread and the producer share.
    #[derive(Default)]
    struct Flow {
        submitted: AtomicUsize,
        written: AtomicUsize,
        synced: AtomicUsize,
        is_full: AtomicBool,
        refused: AtomicUsize,
        /// Syncs that have begun after the first write, and whether they end.
        begun: AtomicUsize,
        is_stuck: AtomicBool,
        sync_fails: AtomicBool,
        /// The thread of the last write.
        writer: Mutex<Option<ThreadId>>,
    }

    impl Flow {
        /// Waits for the other thread, or for a sync.
        fn wait(&self, arrived: impl Fn() -> bool) {
            let deadline = Instant::now() + SOON;
            while !arrived() && self.synced.load(Ordering::Acquire) == 0 && Instant::now() < deadline {
                std::thread::yield_now();
            }
        }
    }

    /// A disk in memory. A write to the first segment ends when the next order is waiting. The disk
    /// counts the files that it refuses to make while it is full.
    #[derive(Clone)]
    struct BusyDisk(MemoryDisk, Arc<Flow>);

    struct BusyFile(Box<dyn File>, Arc<Flow>);

    impl Disk for BusyDisk {
        fn open(&self, path: &Path) -> io::Result<Box<dyn File>> {
            self.0.open(path)
        }
        fn open_read_only(&self, path: &Path) -> io::Result<Box<dyn File>> {
            self.0.open_read_only(path)
        }
        fn create(&self, path: &Path, size: u64) -> io::Result<Box<dyn File>> {
            if self.1.is_full.load(Ordering::Acquire) {
                self.1.refused.fetch_add(1, Ordering::AcqRel);
                return Err(io::ErrorKind::StorageFull.into());
            }
            let file = self.0.create(path, size)?;
            let is_first = path.to_string_lossy().contains(".0000000000.");
            Ok(if is_first { Box::new(BusyFile(file, self.1.clone())) } else { file })
        }
        fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
            self.0.read(path)
        }
        fn list(&self, directory: &Path) -> io::Result<Vec<String>> {
            self.0.list(directory)
        }
        fn create_directory(&self, directory: &Path) -> io::Result<()> {
            self.0.create_directory(directory)
        }
        fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
            self.0.rename(from, to)
        }
        fn remove(&self, path: &Path) -> io::Result<()> {
            self.0.remove(path)
        }
        fn sync_directory(&self, directory: &Path) -> io::Result<()> {
            self.0.sync_directory(directory)
        }
        fn lock(&self, directory: &Path) -> io::Result<Option<Box<dyn Send + Sync>>> {
            self.0.lock(directory)
        }
    }

    impl File for BusyFile {
        fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
            self.0.write_at(bytes, offset)
        }
        fn write_parts_at(&self, parts: &mut [io::IoSlice<'_>], offset: u64) -> io::Result<()> {
            self.0.write_parts_at(parts, offset)?;
            *self.1.writer.lock() = Some(std::thread::current().id());
            // The producer counts an order after it has submitted it: only a count above that of
            // the writes is of one that waits.
            let number = self.1.written.fetch_add(1, Ordering::AcqRel) + 1;
            self.1.wait(|| self.1.submitted.load(Ordering::Acquire) > number);
            Ok(())
        }
        fn sync(&self) -> io::Result<()> {
            if self.1.written.load(Ordering::Acquire) > 0 {
                self.1.begun.fetch_add(1, Ordering::AcqRel);
                while self.1.is_stuck.load(Ordering::Acquire) {
                    std::thread::yield_now();
                }
                if self.1.sync_fails.load(Ordering::Acquire) {
                    return Err(io::Error::other("the disk is broken"));
                }
                self.1.synced.fetch_add(1, Ordering::AcqRel);
            }
            self.0.sync()
        }
        fn size(&self) -> io::Result<u64> {
            self.0.size()
        }
        fn read_at(&self, buffer: &mut Vec<u8>, size: usize, offset: u64) -> io::Result<()> {
            self.0.read_at(buffer, size, offset)
        }
    }

    /// A journal on a [`BusyDisk`], and the counters of the disk. No write is waited for.
    fn open_busy(durability: Durability) -> (Journal, Arc<Flow>) {
        let flow = Arc::new(Flow::default());
        flow.submitted.store(usize::MAX, Ordering::Release);
        let disk = Arc::new(BusyDisk(MemoryDisk::new(256 << 20), flow.clone()));
        let options = Options { durability, flush_interval: Duration::from_millis(1), ..Options::default() };
        let directory = PathBuf::from("journal");
        let (journal, _) = Journal::open_on(disk, &directory, &options, &mut |_| (), Drive::Thread).unwrap();
        (journal, flow)
    }

    fn record(sequence: u64, data: &[u8]) -> NewRecord<'_> {
        NewRecord {
            kind: RecordKind::Publish,
            message_type: 1,
            publisher: PublisherId(7),
            sequence,
            timestamp: Timestamp(sequence),
            topic: "orders",
            correlation_id: b"",
            expiration_s: None,
            attributes: Attributes::NONE,
            data,
        }
    }

    fn wait_until(happens: impl Fn() -> bool) {
        let deadline = Instant::now() + SOON;
        while !happens() {
            assert!(Instant::now() < deadline, "it did not happen");
            std::thread::yield_now();
        }
    }

    #[test]
    fn with_durability_os_records_become_persistent_while_a_sync_is_stuck() {
        let (mut journal, flow) = open_busy(Durability::Os);
        flow.is_stuck.store(true, Ordering::Release);
        journal.append(&record(1, b"x")).unwrap();
        journal.flush(SOON).unwrap();
        wait_until(|| flow.begun.load(Ordering::Acquire) == 1);
        for sequence in 2..=100 {
            journal.append(&record(sequence, b"x")).unwrap();
            // Also when the caller writes.
            if sequence % 2 == 0 {
                journal.submit_inline();
            }
            journal.flush(SOON).unwrap();
        }
        assert_eq!(journal.persisted(), Position(100));
        assert_eq!(flow.synced.load(Ordering::Acquire), 0, "the sync is still stuck");
        flow.is_stuck.store(false, Ordering::Release);
        wait_until(|| flow.synced.load(Ordering::Acquire) >= 2);
        journal.close().unwrap();
    }

    #[test]
    fn with_durability_os_a_failed_sync_ends_writing_without_another_record() {
        let (mut journal, flow) = open_busy(Durability::Os);
        let (wake, woken) = crossbeam_channel::unbounded();
        journal.append(&record(1, b"x")).unwrap();
        flow.sync_fails.store(true, Ordering::Release);
        journal.on_flush(Box::new(move || {
            let _ = wake.send(());
        }));
        journal.flush(SOON).unwrap();
        while journal.failure().is_none() {
            woken.recv_timeout(SOON).unwrap();
        }
        let failure = journal.append(&record(2, b"x")).unwrap_err();
        assert!(matches!(failure, JournalError::Io { operation: "syncing", .. }), "{failure}");
        flow.sync_fails.store(false, Ordering::Release);
        assert!(journal.close().is_err());
    }

    #[test]
    fn a_caller_that_is_alone_writes_small_batches_itself_and_leaves_large_ones_to_the_thread() {
        let (mut journal, flow) = open_busy(Durability::Fsync);
        let (wake, woken) = crossbeam_channel::unbounded();
        journal.on_flush(Box::new(move || {
            let _ = wake.send(());
        }));
        let here = Some(std::thread::current().id());
        let mut sequence = 0;
        let deadline = Instant::now() + SOON;
        // The first flushes show the thread that the disk is fast.
        while *flow.writer.lock() != here {
            assert!(Instant::now() < deadline, "after {sequence} records");
            sequence += 1;
            journal.append(&record(sequence, b"x")).unwrap();
            journal.submit_inline();
            journal.flush(SOON).unwrap();
        }
        assert!(sequence > 1, "the pace of the disk is not known at the beginning");
        while woken.try_recv().is_ok() {}
        let synced = flow.synced.load(Ordering::Acquire);
        sequence += 1;
        journal.append(&record(sequence, b"x")).unwrap();
        journal.submit_inline();
        // On a busy machine the disk may have become slow.
        if *flow.writer.lock() == here {
            assert_eq!(journal.persisted(), Position(sequence));
            assert_eq!(flow.synced.load(Ordering::Acquire), synced + 1);
            assert!(woken.try_recv().is_err(), "the caller need not be woken");
        }
        sequence += 1;
        journal.append(&record(sequence, &[0; 20_000])).unwrap();
        journal.submit_inline();
        journal.flush(SOON).unwrap();
        assert_ne!(*flow.writer.lock(), here);
        assert_eq!(journal.reader().verify(), []);
        journal.close().unwrap();
    }

    #[test]
    fn a_sync_that_is_due_is_not_put_off_by_orders_that_come_without_a_pause() {
        let flow = Arc::new(Flow::default());
        let disk = Arc::new(BusyDisk(MemoryDisk::new(256 << 20), flow.clone()));
        let options = Options {
            durability: Durability::Os,
            flush_interval: Duration::from_millis(1),
            ..Options::default()
        };
        let directory = PathBuf::from("journal");
        let (mut journal, _) =
            Journal::open_on(disk, &directory, &options, &mut |_| (), Drive::Thread).unwrap();
        let deadline = Instant::now() + SOON;
        let mut sequence = 0;
        while flow.synced.load(Ordering::Acquire) == 0 {
            assert!(Instant::now() < deadline, "no sync beside {sequence} orders");
            sequence += 1;
            let written = flow.written.load(Ordering::Acquire);
            journal.append(&record(sequence, b"x")).unwrap();
            journal.submit();
            flow.submitted.fetch_add(1, Ordering::AcqRel);
            flow.wait(|| flow.written.load(Ordering::Acquire) > written);
        }
        assert!(sequence > 1, "the first order is not yet due");
        journal.close().unwrap();
    }

    #[test]
    fn the_writer_thread_looks_for_room_at_intervals_and_goes_on_by_itself() {
        let flow = Arc::new(Flow::default());
        // No write is waited for.
        flow.synced.store(1, Ordering::Release);
        let disk = Arc::new(BusyDisk(MemoryDisk::new(256 << 20), flow.clone()));
        let options = Options { segment_size: SEGMENT_SIZE_MIN, prepared_segments: 1, ..Options::default() };
        let directory = PathBuf::from("journal");
        let (mut journal, _) =
            Journal::open_on(disk, &directory, &options, &mut |_| (), Drive::Thread).unwrap();
        let (wake, woken) = crossbeam_channel::unbounded();
        journal.on_flush(Box::new(move || {
            let _ = wake.send(());
        }));
        flow.is_full.store(true, Ordering::Release);
        let mut sequence = 0;
        while journal.stall().is_none() {
            sequence += 1;
            assert!(sequence < 1000, "it is not noticed");
            let data = [sequence as u8; 5000];
            journal.append(&record(sequence, &data)).unwrap();
            journal.submit();
            woken.recv_timeout(SOON).unwrap();
        }
        let error = journal.flush(SOON).expect_err("there is no room");
        assert!(matches!(&error, JournalError::Full { needed_bytes: Some(1..), .. }));
        let said = error.to_string();
        assert!(said.contains(".journal: no space left while preparing a segment; it needs "), "{said}");
        assert!(journal.failure().is_none() && journal.persisted() < journal.appended());
        // The writer tries more than once, and does not wake waiting threads without a reason.
        let refused = flow.refused.load(Ordering::Acquire);
        while flow.refused.load(Ordering::Acquire) < refused + 3 {
            std::thread::yield_now();
        }
        assert!(woken.try_recv().is_err());
        flow.is_full.store(false, Ordering::Release);
        while journal.stall().is_some() {
            woken.recv_timeout(SOON).unwrap();
        }
        journal.flush(SOON).unwrap();
        assert_eq!(journal.persisted(), Position(sequence));
        assert_eq!(journal.reader().verify(), []);
        journal.close().unwrap();
    }
}
