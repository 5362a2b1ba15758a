//! Segments made ready before they are needed.
//!
//! A sync after a small write takes half the time over space that was written before, because the
//! file system has no extents to convert. So a segment is filled with zeros and synced before it
//! gets its name. On a real disk a separate thread keeps a few segments ready. It fills them
//! slowly, so that it uses little of a processor and of the disk. A faster writer takes a segment
//! that is filled in part, and does not wait: its syncs are few and large.
//!
//! The first segments of a journal are small, so that a journal of a few messages takes only some
//! megabytes. The size depends only on the number of the segment, so it does not have to be stored.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::{Receiver, bounded};

use crate::disk::{Disk, File};
use crate::error::JournalError;
use crate::segment::open_files::is_out_of_files;
use crate::segment::{for_each_chunk, segment_path};

/// Bytes that are filled at a time. They are few, because a sync of the writer may have to wait for
/// them.
const FILL_SIZE: usize = 64 * 1024;

/// The pause after each of them. So at most 32 MiB are filled in a second.
pub(crate) const FILL_PAUSE: Duration = Duration::from_micros(1_950);

pub(crate) struct Prepared {
    pub number: u32,
    pub path: PathBuf,
    pub file: Box<dyn File>,
    pub size: u64,
}

/// The settings for new segments.
#[derive(Clone)]
pub(crate) struct SegmentFactory {
    pub disk: Arc<dyn Disk>,
    pub directory: PathBuf,
    /// Size of a segment of a journal that has grown, in bytes.
    pub size: u64,
    /// Size of the first segments, in bytes.
    pub first_size: u64,
    /// The number of segments that are kept ready. In a new journal they are as small as its first
    /// one.
    pub prepared: usize,
    /// Segments with the numbers from here up to `reusable.1` exist already. They were prepared and
    /// never used.
    pub reusable: std::ops::Range<u32>,
    /// The pause between two parts of the filling.
    pub fill_pause: Duration,
}

impl SegmentFactory {
    /// The size of the segment with this number, in bytes. The first segment and the ones that are
    /// prepared with it have `first_size`, each later one is twice as large as the one before, up
    /// to `size`.
    fn size_of(&self, number: u32) -> u64 {
        let doublings =
            (number as usize).saturating_sub(self.prepared).min(self.first_size.leading_zeros() as usize);
        (self.first_size << doublings).min(self.size)
    }

    /// The segment with this number, at least `size` bytes large. It is filled until `hurry` is set
    /// and this thread is woken.
    fn make(&self, number: u32, size: u64, hurry: &AtomicBool) -> Result<Prepared, JournalError> {
        let path = segment_path(&self.directory, number);
        if self.reusable.contains(&number)
            && let Ok(file) = self.disk.open(&path)
            && let Ok(found) = file.size()
            && found >= size
            // A segment that cannot be read is made again.
            && is_blank(&*file, found).unwrap_or(false)
        {
            let size = found;
            return Ok(Prepared { number, path, file, size });
        }
        let temporary = path.with_extension("preparing");
        let filled = self.disk.create(&temporary, size).and_then(|file| {
            let zeros = vec![0; FILL_SIZE];
            let mut offset = 0;
            while offset < size && !hurry.load(Ordering::Relaxed) {
                let end = (offset + FILL_SIZE as u64).min(size);
                file.write_at(&zeros[..(end - offset) as usize], offset)?;
                // A sync of each part would flush the whole disk so often that the syncs of the
                // writer have to wait.
                file.write_soon(offset..end);
                offset = end;
                if offset < size && !hurry.load(Ordering::Relaxed) {
                    std::thread::park_timeout(self.fill_pause);
                }
            }
            file.sync()?;
            self.disk.rename(&temporary, &path)?;
            Ok(file)
        });
        let file = filled.map_err(|error| {
            let free_bytes = self.disk.free_bytes(&self.directory);
            // The unfinished file takes space that others need. If it cannot be removed, the next
            // start removes it.
            let _ = self.disk.remove(&temporary);
            self.no_file(&path, size, free_bytes, &error)
        })?;
        self.disk.sync_directory(&self.directory).map_err(|error| {
            let operation = "syncing the directory of a new segment";
            match is_out_of_files(&error) {
                // It was not even opened.
                true => JournalError::io(&path, operation, &error),
                // A failed sync is not tried again, for any reason. So this error is not a
                // temporary one.
                false => JournalError::Io { path: path.clone(), operation, reason: error.to_string() },
            }
        })?;
        Ok(Prepared { number, path, file, size })
    }

    /// Why there is no new segment.
    fn no_file(&self, path: &Path, size: u64, free: Option<u64>, error: &io::Error) -> JournalError {
        JournalError::io(path, "preparing a segment", error).with_sizes(size, free)
    }
}

/// Whether a segment of `size` bytes that was prepared before has no data: a crash may have left
/// parts of a first flush in it, without its header.
///
/// # Errors
/// Where reading failed, and why.
pub(crate) fn is_blank(file: &dyn File, size: u64) -> Result<bool, (u64, io::Error)> {
    let mut is_blank = true;
    for_each_chunk(file, 0..size, |_, bytes| {
        is_blank = bytes.iter().all(|byte| *byte == 0);
        is_blank
    })?;
    Ok(is_blank)
}

/// The source of the next segment of the writer.
pub(crate) struct SegmentPool {
    factory: SegmentFactory,
    /// The number of the next segment.
    next: u32,
    /// The number of segments to keep ready; 0: each is made when it is needed.
    count: usize,
    preallocator: Option<Preallocator>,
    /// A segment that was taken, and returned because it could not be written.
    returned: Option<Prepared>,
}

/// A thread that fills segments.
struct Preallocator {
    ready: Option<Receiver<Result<Prepared, JournalError>>>,
    hurry: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl SegmentPool {
    /// Makes each segment when it is needed.
    pub fn on_demand(factory: SegmentFactory, next: u32) -> Self {
        SegmentPool { factory, next, count: 0, preallocator: None, returned: None }
    }

    /// Keeps `count` segments ready; a thread fills them.
    pub fn preallocating(factory: SegmentFactory, next: u32, count: usize) -> Result<Self, JournalError> {
        let preallocator = Some(Preallocator::start(&factory, next, count)?);
        Ok(SegmentPool { factory, next, count, preallocator, returned: None })
    }

    /// The next segment, at least `size` bytes large.
    ///
    /// # Errors
    /// Why there is none. The caller may try again.
    pub fn take(&mut self, size: u64) -> Result<Prepared, JournalError> {
        let number = self.next;
        let ready = self.returned.take().or_else(|| {
            let made = self.preallocator.as_mut().and_then(Preallocator::take)?;
            // The thread ended with the segment that it could not make.
            made.inspect_err(|_| self.preallocator = None).ok()
        });
        let prepared = match ready {
            Some(prepared) if prepared.size >= size => prepared,
            // It is too small for one large record, or could not be made before. There may be room
            // now.
            _ => self.factory.make(number, size.max(self.factory.size_of(number)), &AtomicBool::new(true))?,
        };
        self.next = number + 1;
        if self.count > 0 && self.preallocator.is_none() {
            // Without a thread, each segment is made when it is needed. The thread is started with
            // the next one.
            self.preallocator = Preallocator::start(&self.factory, self.next, self.count).ok();
        }
        Ok(prepared)
    }

    /// Returns the last taken segment to the pool. It is the next one again.
    pub fn give_back(&mut self, prepared: Prepared) {
        self.next = prepared.number;
        self.returned = Some(prepared);
    }
}

impl Preallocator {
    fn start(factory: &SegmentFactory, next: u32, count: usize) -> Result<Self, JournalError> {
        // The thread holds one segment while the channel is full.
        let (sender, ready) = bounded(count.saturating_sub(1));
        let hurry = Arc::new(AtomicBool::new(false));
        let (its_factory, its_hurry) = (factory.clone(), hurry.clone());
        let fill = move || {
            for number in next.. {
                let made = its_factory.make(number, its_factory.size_of(number), &its_hurry);
                let failed = made.is_err();
                if sender.send(made).is_err() || failed {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("quire-prepare".into()).spawn(fill);
        let thread =
            thread.map_err(|error| JournalError::io(&factory.directory, "starting a thread", &error))?;
        Ok(Preallocator { ready: Some(ready), hurry, thread: Some(thread) })
    }

    fn take(&mut self) -> Option<Result<Prepared, JournalError>> {
        let ready = self.ready.as_ref()?;
        ready.try_recv().ok().or_else(|| {
            self.end_filling();
            let made = ready.recv().ok();
            // The thread does not do this, because it could then miss that the pool is dropped.
            self.hurry.store(false, Ordering::Relaxed);
            made
        })
    }

    /// The segment that is being filled is complete as it is.
    fn end_filling(&self) {
        self.hurry.store(true, Ordering::Relaxed);
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
        }
    }
}

impl Drop for Preallocator {
    fn drop(&mut self) {
        self.end_filling();
        self.ready = None;
        if let Some(thread) = self.thread.take() {
            // The thread has no result: a segment that it did not make is made when it is needed.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::disk::MemoryDisk;

    #[test]
    fn a_segment_that_is_needed_does_not_wait_for_a_pause_of_the_filling() {
        let fill_pause = Duration::from_secs(60);
        let size = 4 * FILL_SIZE as u64;
        let factory = SegmentFactory {
            disk: Arc::new(MemoryDisk::new(64 << 20)),
            directory: PathBuf::from("journal"),
            size,
            first_size: size,
            prepared: 2,
            reusable: 0..0,
            fill_pause,
        };
        let begun = Instant::now();
        let mut pool = SegmentPool::preallocating(factory, 0, 2).unwrap();
        for number in 0..4 {
            let taken = pool.take(size).unwrap();
            assert_eq!((taken.number, taken.size), (number, size));
        }
        drop(pool);
        assert!(begun.elapsed() < fill_pause, "{:?}", begun.elapsed());
    }
}
