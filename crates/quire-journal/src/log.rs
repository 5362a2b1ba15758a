//! What the writer and the readers of one journal share.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::{Condvar, Mutex, RwLock};

use crate::disk::Disk;
use crate::error::JournalError;
use crate::record::{Position, PublisherId};
use crate::segment::Segment;

pub(crate) struct Log {
    pub directory: PathBuf,
    pub disk: Arc<dyn Disk>,
    /// Oldest first; the last one is active.
    pub segments: RwLock<Vec<Arc<Segment>>>,
    /// Per publisher and sealed segment that holds it, in order: highest sequence and segment number. What keeps finding a bookmark
    /// independent of the number of segments.
    pub sealed_publishers: RwLock<HashMap<PublisherId, Vec<(u64, u32)>>>,
    persisted: AtomicU64,
    pub unpersisted_size: AtomicUsize,
    failure: OnceLock<JournalError>,
    waiting: Mutex<()>,
    moved: Condvar,
    on_flush: RwLock<Option<Box<dyn Fn() + Send + Sync>>>,
    /// Another process writes this journal: look for more at the end.
    pub follows: bool,
    pub following: Mutex<()>,
}

impl Log {
    pub fn new(directory: PathBuf, disk: Arc<dyn Disk>, follows: bool) -> Self {
        Log {
            directory,
            disk,
            segments: RwLock::default(),
            sealed_publishers: RwLock::default(),
            persisted: AtomicU64::new(0),
            unpersisted_size: AtomicUsize::new(0),
            failure: OnceLock::new(),
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

    pub fn failure(&self) -> Option<JournalError> {
        self.failure.get().cloned()
    }

    pub fn set_on_flush(&self, on_flush: Box<dyn Fn() + Send + Sync>) {
        *self.on_flush.write() = Some(on_flush);
    }

    /// Everything up to `position` is persistent, and `size` bytes fewer wait: readers may have it, waiters wake up.
    pub fn advance(&self, position: Position, size: usize) {
        self.persisted.store(position.0, Ordering::Release);
        self.unpersisted_size.fetch_sub(size, Ordering::AcqRel);
        self.wake();
    }

    /// No more writes: nothing that is not persistent now ever will be. The first reason stands.
    pub fn poison(&self, error: JournalError) {
        let _ = self.failure.set(error);
        self.wake();
    }

    /// Waits until `position` is persistent, the journal failed, or `done` says so.
    pub fn wait(&self, position: Position, deadline: std::time::Instant) -> Result<(), JournalError> {
        let mut guard = self.waiting.lock();
        loop {
            if self.persisted() >= position {
                return Ok(());
            }
            if let Some(failure) = self.failure() {
                return Err(failure);
            }
            if self.moved.wait_until(&mut guard, deadline).timed_out() && self.persisted() < position {
                return Err(self.failure().unwrap_or(JournalError::TimedOut));
            }
        }
    }

    /// The active segment is full: its publishers join the map over sealed segments.
    pub fn note_sealed(&self, segment: &Segment) {
        let mut sealed = self.sealed_publishers.write();
        for (publisher, marks) in &segment.index.read().publishers {
            if let Some(mark) = marks.last() {
                sealed.entry(*publisher).or_default().push((mark.sequence, segment.number));
            }
        }
        segment.seal();
    }

    /// The segment that holds, or will hold, the position; `None` before the first.
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

    fn wake(&self) {
        drop(self.waiting.lock());
        self.moved.notify_all();
        if let Some(on_flush) = &*self.on_flush.read() {
            on_flush();
        }
    }
}
