//! Segments made ready before they are needed.
//!
//! A sync after a small write takes half the time over space that was written before (the file system has no extents to convert), so a
//! segment is filled with zeros, synced and only then given its name. On a real disk a thread of its own keeps a few ahead; a writer that
//! runs faster than the filling takes the segment unfilled rather than wait.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, bounded};

use crate::disk::{Disk, File};
use crate::error::JournalError;
use crate::segment::segment_path;

/// Bytes that are filled and synced at a time: little enough that a flush of the writer does not queue up behind it for long.
const FILL_SIZE: usize = 1024 * 1024;

pub(crate) struct Prepared {
    pub number: u32,
    pub path: PathBuf,
    pub file: Box<dyn File>,
    pub size: u64,
}

/// How segments are made.
#[derive(Clone)]
pub(crate) struct Maker {
    pub disk: Arc<dyn Disk>,
    pub directory: PathBuf,
    pub size: u64,
    /// Numbers from here up to `reusable.1` exist already, prepared and never used.
    pub reusable: std::ops::Range<u32>,
}

impl Maker {
    /// The segment with this number, at least `size` bytes large; filled unless `hurry` says otherwise.
    fn make(&self, number: u32, size: u64, hurry: &AtomicBool) -> Result<Prepared, JournalError> {
        let path = segment_path(&self.directory, number);
        if self.reusable.contains(&number)
            && let Ok(file) = self.disk.open(&path)
            && file.size().is_ok_and(|found| found >= size)
            && is_blank(&*file)
        {
            let size = file.size().map_err(|error| JournalError::io(&path, "preparing a segment", &error))?;
            return Ok(Prepared { number, path, file, size });
        }
        let temporary = path.with_extension("preparing");
        let made = self.disk.create(&temporary, size).and_then(|file| {
            let zeros = vec![0; FILL_SIZE];
            let mut offset = 0;
            while offset < size && !hurry.load(Ordering::Relaxed) {
                let end = (offset + FILL_SIZE as u64).min(size);
                file.write_at(&zeros[..(end - offset) as usize], offset)?;
                file.sync()?;
                offset = end;
            }
            file.sync()?;
            self.disk.rename(&temporary, &path)?;
            self.disk.sync_directory(&self.directory)?;
            Ok(file)
        });
        let file = made.map_err(|error| JournalError::io(&path, "preparing a segment", &error))?;
        Ok(Prepared { number, path, file, size })
    }
}

/// Whether a segment that was prepared before holds nothing: a crash may have left parts of a first flush in it, without its header.
pub(crate) fn is_blank(file: &dyn File) -> bool {
    file.map().is_ok_and(|mapping| {
        mapping.bytes(0, mapping.size()).is_some_and(|bytes| bytes.iter().all(|byte| *byte == 0))
    })
}

/// Where the writer gets its next segment.
pub(crate) struct Supply {
    maker: Maker,
    next: u32,
    ahead: Option<Ahead>,
}

struct Ahead {
    ready: Option<Receiver<Result<Prepared, JournalError>>>,
    hurry: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Supply {
    /// Makes each segment when it is asked for.
    pub fn on_demand(maker: Maker, next: u32) -> Self {
        Supply { maker, next, ahead: None }
    }

    /// Keeps `count` segments ready; a thread fills them.
    pub fn ahead(maker: Maker, next: u32, count: usize) -> Result<Self, JournalError> {
        // One is in the hands of the thread while the channel is full.
        let (sender, ready) = bounded(count.saturating_sub(1));
        let hurry = Arc::new(AtomicBool::new(false));
        let (its_maker, its_hurry) = (maker.clone(), hurry.clone());
        let fill = move || {
            for number in next.. {
                let made = its_maker.make(number, its_maker.size, &its_hurry);
                its_hurry.store(false, Ordering::Relaxed);
                let failed = made.is_err();
                if sender.send(made).is_err() || failed {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("quire-prepare".into()).spawn(fill);
        let thread =
            thread.map_err(|error| JournalError::io(&maker.directory, "starting a thread", &error))?;
        Ok(Supply { maker, next, ahead: Some(Ahead { ready: Some(ready), hurry, thread: Some(thread) }) })
    }

    /// The next segment, at least `size` bytes large.
    pub fn take(&mut self, size: u64) -> Result<Prepared, JournalError> {
        let number = self.next;
        let at_once = AtomicBool::new(true);
        let ready = self.ahead.as_mut().and_then(Ahead::take);
        let prepared = match ready {
            Some(Ok(prepared)) if prepared.size >= size => prepared,
            // Too small for one large record, or it could not be made when it was tried: there may be room by now.
            Some(_) | None => self.maker.make(number, size.max(self.maker.size), &at_once)?,
        };
        self.next += 1;
        Ok(prepared)
    }
}

impl Ahead {
    fn take(&mut self) -> Option<Result<Prepared, JournalError>> {
        let ready = self.ready.as_ref()?;
        ready.try_recv().ok().or_else(|| {
            self.hurry.store(true, Ordering::Relaxed);
            ready.recv().ok()
        })
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        self.hurry.store(true, Ordering::Relaxed);
        self.ready = None;
        if let Some(thread) = self.thread.take() {
            // It has nothing to report: what it could not make is made when it is needed.
            let _ = thread.join();
        }
    }
}
