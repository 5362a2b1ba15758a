//! The state that the writer and the readers of one journal share.

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use parking_lot::{Condvar, Mutex, RwLock};

use crate::disk::Disk;
use crate::error::JournalError;
use crate::publishers::{ClientsFile, ClientsFound, Publishers, clients_path};
use crate::read::pins::Pins;
use crate::record::Position;
use crate::recover::beginning::Beginning;
use crate::segment::index::Names;
use crate::segment::index_file;
use crate::segment::open_files::{OpenFile, OpenFiles};
use crate::segment::sums::Sums;
use crate::segment::view::Fault;
use crate::segment::{Segment, index_path};
use crate::write::buffer_pool::BufferPool;
use crate::write::syncs::SyncCounters;
use crate::{atomic_file, recover};

pub(crate) struct Log {
    pub directory: PathBuf,
    /// Where archived segments are.
    pub archive: Option<PathBuf>,
    pub disk: Arc<dyn Disk>,
    pub files: Arc<OpenFiles>,
    /// Oldest first; the last one is active.
    pub segments: RwLock<Vec<Arc<Segment>>>,
    pub publishers: RwLock<Publishers>,
    pub names: Names,
    pub pins: Arc<Pins>,
    persisted: AtomicU64,
    pub unpersisted_size: AtomicUsize,
    pub syncs: SyncCounters,
    pub buffers: BufferPool,
    failure: OnceLock<JournalError>,
    /// Why the writer does not write for now.
    stall: Mutex<Option<JournalError>>,
    waiting: Mutex<()>,
    moved: Condvar,
    on_flush: RwLock<Option<Box<dyn Fn() + Send + Sync>>>,
    /// Another process writes this journal, so readers check for new records at the end.
    pub follows: bool,
    pub following: Mutex<()>,
    /// Locked while the small files are written.
    pub writing_sidecars: Mutex<()>,
    /// Locked while a segment is archived, compressed or removed. True when that is not allowed any
    /// more.
    pub maintenance_ended: Mutex<bool>,
    /// Files that no longer belong to the log and still exist, oldest first. They are removed in
    /// this order.
    pub doomed: Mutex<VecDeque<PathBuf>>,
}

impl Log {
    pub fn new(
        directory: PathBuf,
        archive: Option<PathBuf>,
        disk: Arc<dyn Disk>,
        publishers: Publishers,
        follows: bool,
    ) -> Self {
        Log {
            directory,
            archive,
            files: Arc::new(OpenFiles::new(disk.clone(), follows)),
            disk,
            segments: RwLock::default(),
            publishers: RwLock::new(publishers),
            names: Names::default(),
            buffers: BufferPool::default(),
            pins: Arc::default(),
            writing_sidecars: Mutex::default(),
            maintenance_ended: Mutex::new(false),
            doomed: Mutex::default(),
            persisted: AtomicU64::new(0),
            unpersisted_size: AtomicUsize::new(0),
            syncs: SyncCounters::default(),
            failure: OnceLock::new(),
            stall: Mutex::default(),
            waiting: Mutex::default(),
            moved: Condvar::new(),
            on_flush: RwLock::default(),
            follows,
            following: Mutex::default(),
        }
    }

    pub fn persisted(&self) -> Position {
        Position(self.persisted.load(Ordering::Acquire))
    }

    /// Whether the journal takes writes.
    ///
    /// # Errors
    /// Why it does not.
    #[inline]
    pub fn check(&self) -> Result<(), JournalError> {
        if self.failure.get().is_some() { self.refuse() } else { Ok(()) }
    }

    /// Separate from [`Log::check`], so that the check is inlined.
    #[cold]
    #[inline(never)]
    fn refuse(&self) -> Result<(), JournalError> {
        self.failure().map_or(Ok(()), Err)
    }

    pub fn failure(&self) -> Option<JournalError> {
        self.failure.get().cloned()
    }

    /// Why the writer does not write for now, when it will try again.
    pub fn stall(&self) -> Option<JournalError> {
        self.stall.lock().clone()
    }

    pub fn set_on_flush(&self, on_flush: Box<dyn Fn() + Send + Sync>) {
        *self.on_flush.write() = Some(on_flush);
    }

    /// Everything up to `position` is persistent, and `size` bytes fewer wait. Readers may read it,
    /// and waiting threads wake up.
    pub fn advance(&self, position: Position, size: usize) {
        self.advance_then(position, size, Log::wake);
    }

    /// As [`Log::advance`], and does not call the function of `on_flush`.
    pub fn advance_quietly(&self, position: Position, size: usize) {
        self.advance_then(position, size, Log::wake_waiting);
    }

    fn advance_then(&self, position: Position, size: usize, wake: fn(&Log)) {
        self.persisted.store(position.0, Ordering::Release);
        let unpersisted_size = self.unpersisted_size.fetch_sub(size, Ordering::AcqRel) - size;
        wake(self);
        if unpersisted_size == 0 {
            self.buffers.release();
        }
    }

    /// The error after a panic of the writer, or of the callback that it calls.
    pub fn panicked(&self) -> JournalError {
        JournalError::Panicked {
            directory: self.directory.clone(),
            unpersisted_bytes: self.unpersisted_size.load(Ordering::Acquire),
        }
    }

    /// Ends writing. A record that is not persistent now will never be persistent. The first reason
    /// is kept.
    pub fn poison(&self, error: JournalError) {
        let _ = self.failure.set(error);
        self.wake();
    }

    /// Interrupts writing until [`Log::resume`], and wakes the waiting threads. The last reason is
    /// kept.
    pub fn halt(&self, error: JournalError) {
        if self.stall.lock().replace(error).is_none() {
            self.wake();
        }
    }

    /// All waiting records were written.
    pub fn resume(&self) {
        let stall = self.stall.lock().take();
        if stall.is_some() {
            self.wake();
        }
    }

    /// Waits until `position` is persistent.
    pub fn wait(&self, position: Position, deadline: Instant) -> Result<(), JournalError> {
        self.wait_until(deadline, || self.persisted() >= position)
    }

    /// Waits until `done` returns true. It is called after every flush.
    pub fn wait_until(&self, deadline: Instant, done: impl Fn() -> bool) -> Result<(), JournalError> {
        let mut guard = self.waiting.lock();
        loop {
            if done() {
                return Ok(());
            }
            if let Some(failure) = self.failure().or_else(|| self.stall()) {
                return Err(failure);
            }
            if self.moved.wait_until(&mut guard, deadline).timed_out() && !done() {
                return Err(self.failure().unwrap_or(JournalError::TimedOut));
            }
        }
    }

    /// The active segment is full: its publishers join the map over sealed segments.
    pub fn note_sealed(&self, segment: &Segment) {
        self.publishers.write().note_sealed(segment);
        segment.seal();
    }

    /// Writes the index of a sealed segment, and `clients.ack`. Neither file is needed to open the
    /// journal again: an index can be rebuilt, and the segments contain their sequences.
    pub fn write_sealed(&self, segment: &Segment) -> Result<(), JournalError> {
        let _one_at_a_time = self.writing_sidecars.lock();
        let mut its_sums = None;
        let written = self.write_clients(segment.summary().last, &mut |number, sums| {
            if number == segment.number {
                its_sums = Some(sums);
            }
        });
        self.encode_index(segment.number, its_sums.as_ref())?;
        written
    }

    /// Writes the index of a sealed segment with its sums.
    pub fn write_index(&self, number: u32, sums: &Sums) -> Result<(), JournalError> {
        let _one_at_a_time = self.writing_sidecars.lock();
        self.encode_index(number, Some(sums))
    }

    /// Only one thread at a time may call it.
    fn encode_index(&self, number: u32, sums: Option<&Sums>) -> Result<(), JournalError> {
        // It may have been archived or removed in the meantime.
        let Some(segment) = self.segment(number) else { return Ok(()) };
        let index = index_file::encode(&segment.index.read(), sums, segment.number, segment.first);
        atomic_file::write(&*self.disk, &index_path(&segment.path), index)
    }

    /// Writes the knowledge of the sealed segments, and where the log begins.
    pub fn write_sequences(&self) -> Result<(), JournalError> {
        let _one_at_a_time = self.writing_sidecars.lock();
        self.write_clients(Position::ZERO, &mut |_, _| ())
    }

    /// Writes that the log begins with `next`, before the earlier segments are removed. If that
    /// fails, the log still begins with `segment`.
    pub fn write_beginning(&self, next: &Segment, segment: &Segment) -> Result<(), JournalError> {
        let begin = |segment: &Segment| Beginning { number: segment.number, first: segment.first };
        self.publishers.write().beginning = begin(next);
        let written = self.write_sequences();
        if written.is_err() {
            self.publishers.write().beginning = begin(segment);
        }
        written
    }

    /// Writes the end of the log at a clean stop.
    pub fn write_closed(&self, durable: Position) -> Result<(), JournalError> {
        let _one_at_a_time = self.writing_sidecars.lock();
        self.write_clients(durable, &mut |_, _| ())
    }

    /// Everything up to `durable` reached stable storage. Only one thread at a time may call it.
    /// Passes the number and the sums of each segment that it reads to `each`.
    ///
    /// The knowledge at the end of the sealed segments is only in the file. When the file was
    /// removed or damaged meanwhile, it is made again from the log, if the log has its first
    /// record.
    fn write_clients(&self, durable: Position, each: &mut dyn FnMut(u32, Sums)) -> Result<(), JournalError> {
        let mut clients = match ClientsFile::read(&*self.disk, &self.directory)? {
            ClientsFound::Whole(clients) => clients,
            _ if self.before_first() == Position::ZERO => ClientsFile::new(&self.segments.read()),
            _ => {
                let path = clients_path(&self.directory);
                let reason = "it was removed or damaged while the journal was open";
                return Err(JournalError::Corrupt { path, offset: 0, reason, readable_to: self.persisted() });
            }
        };
        let mut sealed = self.segments.read().clone();
        sealed.retain(|segment| segment.is_sealed());
        clients.cover(&sealed, each)?;
        let mut publishers = self.publishers.write();
        publishers.durable = publishers.durable.max(durable);
        (clients.durable, clients.beginning) = (publishers.durable, Some(publishers.beginning));
        drop(publishers);
        clients.write(&*self.disk, &self.directory)
    }

    /// Replaces the segment that has the same number.
    pub fn replace(&self, segment: &Arc<Segment>) {
        let mut segments = self.segments.write();
        let first = segments.first().map_or(0, |first| first.number);
        let at = segment.number.checked_sub(first).map(|at| at as usize);
        if let Some(place) = at.and_then(|at| segments.get_mut(at)) {
            *place = segment.clone();
        }
    }

    /// Takes the segment out of the log, if it is the first and every reader has passed it.
    pub fn forget_first(&self, segment: &Arc<Segment>) -> bool {
        let pins = self.pins.hold();
        let mut segments = self.segments.write();
        let is_first = segments.first().is_some_and(|first| Arc::ptr_eq(first, segment));
        if !is_first || pins.keep(segment.summary().last) {
            return false;
        }
        segments.remove(0);
        self.publishers.write().forget(segment.number);
        self.names.segment_removed();
        true
    }

    /// The position before the first one that can be read.
    pub fn before_first(&self) -> Position {
        self.segments.read().first().map_or(Position::ZERO, |segment| Position(segment.first.0 - 1))
    }

    /// The segment that has, or will have, the position. `None` before the first segment.
    pub fn segment_at(&self, position: Position) -> Option<Arc<Segment>> {
        let segments = self.segments.read();
        let at = segments.partition_point(|segment| segment.first <= position);
        Some(segments[at.checked_sub(1)?].clone())
    }

    /// The segment with this number.
    pub fn segment(&self, number: u32) -> Option<Arc<Segment>> {
        let segments = self.segments.read();
        let first = segments.first()?.number;
        segments.get(number.checked_sub(first)? as usize).cloned()
    }

    /// The segment and, when another process may move it, its open file. If the segment was
    /// archived or compressed since, this is the new file.
    ///
    /// # Errors
    /// [`JournalError::Removed`] when it was removed.
    pub fn reach(&self, segment: Arc<Segment>) -> Result<(Arc<Segment>, Option<OpenFile>), JournalError> {
        if !self.follows {
            return Ok((segment, None));
        }
        match segment.file.open() {
            Ok(file) => Ok((segment, Some(file))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                match recover::find_moved(self, &segment)? {
                    Some((segment, file)) => Ok((segment, Some(file))),
                    None => {
                        let (directory, after) = (self.directory.clone(), Position(segment.first.0 - 1));
                        Err(JournalError::Removed { directory, after })
                    }
                }
            }
            Err(error) => Err(segment.error_of(0, Fault::Closed(error), Position(segment.first.0 - 1))),
        }
    }

    fn wake_waiting(&self) {
        drop(self.waiting.lock());
        self.moved.notify_all();
    }

    fn wake(&self) {
        self.wake_waiting();
        let on_flush = self.on_flush.read();
        let Some(call) = &*on_flush else { return };
        // This is code of the caller. A panic in it must not end the writer while other threads
        // wait.
        if catch_unwind(AssertUnwindSafe(call)).is_err() && self.failure.set(self.panicked()).is_ok() {
            self.wake_waiting();
        }
    }
}
