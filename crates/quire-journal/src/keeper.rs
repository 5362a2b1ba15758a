//! The small files beside a segment, written behind the writer's back: two more synced files at every roll would show in the latency of
//! whoever's record comes next.

use std::sync::Arc;
use std::thread::JoinHandle;

use crossbeam_channel::{Sender, unbounded};

use crate::error::JournalError;
use crate::log::Log;
use crate::segment::Segment;

/// Writes what belongs beside sealed segments: on a thread of its own, or at once.
pub(crate) struct Keeper {
    log: Arc<Log>,
    thread: Option<(Sender<Arc<Segment>>, JoinHandle<()>)>,
}

impl Keeper {
    /// Writes on the calling thread.
    pub fn at_once(log: Arc<Log>) -> Self {
        Keeper { log, thread: None }
    }

    /// Writes on a thread. What waits for it is a pointer per sealed segment, and each took a segment's worth of writing to come about.
    pub fn on_a_thread(log: Arc<Log>) -> Result<Self, JournalError> {
        let (sender, sealed) = unbounded::<Arc<Segment>>();
        let its_log = log.clone();
        let thread = std::thread::Builder::new().name("quire-keeper".into());
        let thread = thread.spawn(move || sealed.iter().for_each(|segment| keep(&its_log, &segment)));
        let thread = thread.map_err(|error| JournalError::io(&log.directory, "starting a thread", &error))?;
        Ok(Keeper { log, thread: Some((sender, thread)) })
    }

    /// The segment was sealed.
    pub fn sealed(&self, segment: &Arc<Segment>) {
        match &self.thread {
            // It ends only when the sender is gone.
            Some((sender, _)) => drop(sender.send(segment.clone())),
            None => keep(&self.log, segment),
        }
    }
}

fn keep(log: &Log, segment: &Segment) {
    // Nothing that was promised depends on these files: the next start makes an index again, the next seal or stop writes the sequences,
    // and a disk that refuses them will refuse the writer, which says so.
    let _ = log.keep_sealed(segment);
}

impl Drop for Keeper {
    fn drop(&mut self) {
        if let Some((sender, thread)) = self.thread.take() {
            drop(sender);
            // It has nothing to report.
            let _ = thread.join();
        }
    }
}
