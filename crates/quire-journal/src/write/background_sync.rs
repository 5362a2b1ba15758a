//! Syncs a journal file on a separate thread. With
//! [`Durability::Os`](super::journal::Durability::Os), a record waits until the system has it, and
//! does not wait for the disk: one sync can take hundreds of milliseconds.

use std::sync::Arc;
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, bounded};

use crate::disk::File;
use crate::error::JournalError;
use crate::log::Log;
use crate::record::Position;
use crate::segment::Segment;

/// One sync: the file, and the last position that was written to it.
pub(crate) struct Sync {
    pub file: Arc<dyn File>,
    pub segment: Arc<Segment>,
    pub last: Position,
}

/// The thread, and the sync that it runs. There is at most one at a time.
pub(crate) struct BackgroundSync {
    syncs: Option<Sender<Sync>>,
    /// Positions that are durable. A failed sync sends none: the log then has the reason.
    synced: Receiver<Option<Position>>,
    is_running: bool,
    thread: Option<JoinHandle<()>>,
}

impl BackgroundSync {
    pub fn start(log: Arc<Log>) -> Result<Self, JournalError> {
        let (syncs, begun) = bounded::<Sync>(1);
        let (done, synced) = bounded(1);
        let directory = log.directory.clone();
        let run = move || {
            for sync in begun {
                let result = sync_now(&log, &sync);
                if done.send(result).is_err() {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("quire-sync".into()).spawn(run);
        let thread = thread.map_err(|error| JournalError::io(&directory, "starting a thread", &error))?;
        Ok(BackgroundSync { syncs: Some(syncs), synced, is_running: false, thread: Some(thread) })
    }

    /// Whether a sync was begun whose result was not taken.
    pub fn is_running(&self) -> bool {
        self.is_running
    }

    /// Begins a sync. No other one may be running.
    pub fn begin(&mut self, sync: Sync) {
        debug_assert!(!self.is_running, "one sync at a time");
        // The thread receives until the sender is dropped, and the channel has room for one.
        self.is_running = self.syncs.as_ref().is_some_and(|syncs| syncs.send(sync).is_ok());
    }

    /// The position that a finished sync has made durable.
    pub fn finished(&mut self) -> Option<Position> {
        let result = self.synced.try_recv().ok()?;
        self.is_running = false;
        result
    }

    /// As [`BackgroundSync::finished`], and waits for a running sync.
    pub fn wait(&mut self) -> Option<Position> {
        if !std::mem::take(&mut self.is_running) {
            return None;
        }
        self.synced.recv().ok().flatten()
    }
}

fn sync_now(log: &Log, sync: &Sync) -> Option<Position> {
    match log.syncs.measure(|| sync.file.sync()) {
        Ok(()) => {
            sync.segment.note_durable();
            Some(sync.last)
        }
        Err(error) => {
            log.poison(JournalError::io(&sync.segment.path, "syncing", &error));
            None
        }
    }
}

impl Drop for BackgroundSync {
    fn drop(&mut self) {
        self.syncs = None;
        if let Some(thread) = self.thread.take() {
            // It returns no result: the log has the reason of a failed sync.
            let _ = thread.join();
        }
    }
}
