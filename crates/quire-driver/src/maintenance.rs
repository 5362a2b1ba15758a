//! Runs the maintenance jobs of a broker outside of its loop.

use std::sync::Arc;
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, unbounded};
use quire_broker::{MaintenanceDone, MaintenanceJob};

use crate::reader_pool::caught;
use crate::waker::Waker;

/// Runs each job on a separate thread. The cost is small compared with the work on the file, and a
/// server without maintenance has no thread.
pub(crate) struct MaintenanceWorker {
    done: Receiver<MaintenanceDone>,
    finished: Sender<MaintenanceDone>,
    waker: Arc<Waker>,
    /// The thread of the last job; the broker starts one at a time.
    thread: Option<JoinHandle<()>>,
}

impl MaintenanceWorker {
    pub fn new(waker: &Arc<Waker>) -> Self {
        let (finished, done) = unbounded();
        MaintenanceWorker { done, finished, waker: Arc::clone(waker), thread: None }
    }

    /// Runs the job, and notifies the waker when it is done.
    pub fn submit(&mut self, job: MaintenanceJob) {
        self.wait();
        let (finished, waker) = (self.finished.clone(), Arc::clone(&self.waker));
        let run = move || {
            let done = caught(|| job.run());
            let done =
                done.unwrap_or_else(|| MaintenanceDone::failed("it panicked, which is a bug in quire"));
            // The receiver is dropped only when the loop ends.
            let _ = finished.send(done);
            waker.notify();
        };
        match std::thread::Builder::new().name("quire-maintain".into()).spawn(run) {
            Ok(thread) => self.thread = Some(thread),
            Err(error) => {
                // This value owns the receiver.
                let _ = self.finished.send(MaintenanceDone::failed(&format!("no thread for it: {error}")));
                self.waker.notify();
            }
        }
    }

    /// The result of a job that has ended since.
    pub fn poll(&self) -> Option<MaintenanceDone> {
        self.done.try_recv().ok()
    }

    /// Waits for the thread. Before the next job, the thread only has to notify the waker. At the
    /// end, it finishes its file.
    fn wait(&mut self) {
        if let Some(thread) = self.thread.take() {
            // It has sent its result; panics are caught in it.
            let _ = thread.join();
        }
    }
}

impl Drop for MaintenanceWorker {
    fn drop(&mut self) {
        self.wait();
    }
}
