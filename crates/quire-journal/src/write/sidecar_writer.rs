//! Writes the index of a sealed segment and `clients.ack` on a separate thread. On the writer
//! thread, the time of two synced files would add to the latency of the next record.

use std::sync::Arc;
use std::thread::JoinHandle;

use crossbeam_channel::{Sender, unbounded};

use crate::error::JournalError;
use crate::log::Log;
use crate::segment::Segment;

/// Writes the index and the sidecar file of sealed segments, on a separate thread or at once.
pub(crate) struct SidecarWriter {
    log: Arc<Log>,
    thread: Option<(Sender<Arc<Segment>>, JoinHandle<()>)>,
}

impl SidecarWriter {
    /// Writes on the calling thread.
    pub fn at_once(log: Arc<Log>) -> Self {
        SidecarWriter { log, thread: None }
    }

    /// Writes on a thread. The queue of the thread is small: it has a pointer per sealed segment,
    /// and the journal writes a whole segment before it adds the next one.
    pub fn on_a_thread(log: Arc<Log>) -> Result<Self, JournalError> {
        let (sender, sealed) = unbounded::<Arc<Segment>>();
        let its_log = log.clone();
        let thread = std::thread::Builder::new().name("quire-sidecars".into());
        let thread = thread.spawn(move || sealed.iter().for_each(|segment| write_beside(&its_log, &segment)));
        let thread = thread.map_err(|error| JournalError::io(&log.directory, "starting a thread", &error))?;
        Ok(SidecarWriter { log, thread: Some((sender, thread)) })
    }

    /// The segment was sealed.
    pub fn sealed(&self, segment: &Arc<Segment>) {
        match &self.thread {
            // It ends only when the sender was dropped.
            Some((sender, _)) => drop(sender.send(segment.clone())),
            None => write_beside(&self.log, segment),
        }
    }
}

fn write_beside(log: &Log, segment: &Segment) {
    // Durability does not depend on these files: the next start rebuilds an index, and the next
    // seal or stop writes the sequences. A disk that refuses them also refuses the writer, which
    // reports it.
    let _ = log.write_sealed(segment);
}

impl Drop for SidecarWriter {
    fn drop(&mut self) {
        if let Some((sender, thread)) = self.thread.take() {
            drop(sender);
            // It returns no result.
            let _ = thread.join();
        }
    }
}
