//! The threads that read the journal for replays.
//!
//! A cold replay waits for the disk. The loop serves all connections and must not wait. The broker
//! makes [`ReadRequest`]s, these threads run them, and the loop takes the [`ReadDone`]s when the
//! waker wakes it. A request that panics is a bug in quire. The panic is caught and logged, so that
//! the other replays and the thread continue.
//!
//! The queue needs no separate limit because its users have one. A replay has one outstanding read
//! and one read-ahead, and `max_subscriptions_per_connection` times `max_connections` limits the
//! replays.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use crossbeam_channel::{Receiver, Sender, unbounded};
use quire_broker::{ReadDone, ReadRequest};

use crate::waker::Waker;

/// Number of threads that read. With two, one cold replay does not delay the next. They wait for
/// page faults, not for the processor, so more threads would only compete with the loop on small
/// machines.
const READER_THREADS: usize = 2;

/// Threads that run read requests. Dropping it waits for the queued requests and joins the threads.
pub struct ReaderPool {
    requests: Option<Sender<ReadRequest>>,
    done: Receiver<ReadDone>,
    threads: Vec<JoinHandle<()>>,
}

impl ReaderPool {
    /// Starts the threads. They notify `waker` after each read.
    ///
    /// # Errors
    /// The error of the operating system when it has no thread left.
    pub fn start(waker: &Arc<Waker>) -> io::Result<Self> {
        let (requests, waiting) = unbounded::<ReadRequest>();
        let (finished, done) = unbounded();
        let threads = (0..READER_THREADS)
            .map(|number| {
                let (waiting, finished, waker) = (waiting.clone(), finished.clone(), Arc::clone(waker));
                thread::Builder::new()
                    .name(format!("quire-reader-{number}"))
                    .spawn(move || read(&waiting, &finished, &waker))
            })
            .collect::<io::Result<_>>()?;
        Ok(ReaderPool { requests: Some(requests), done, threads })
    }

    /// Passes a request to the threads.
    pub fn submit(&self, request: ReadRequest) {
        if let Some(requests) = &self.requests {
            // Fails only when every thread has ended, which happens only in `drop`.
            let _ = requests.send(request);
        }
    }

    /// The next finished read, if there is one.
    pub fn poll(&self) -> Option<ReadDone> {
        self.done.try_recv().ok()
    }
}

impl Drop for ReaderPool {
    fn drop(&mut self) {
        self.requests = None;
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn read(waiting: &Receiver<ReadRequest>, finished: &Sender<ReadDone>, waker: &Waker) {
    for request in waiting {
        let ticket = request.ticket();
        let done = caught(|| request.run()).unwrap_or_else(|| ticket.panicked());
        if finished.send(done).is_err() {
            return;
        }
        waker.notify();
    }
}

/// The result of `run`; `None` when it panicked, which the panic hook has logged. The state of the
/// request is not used afterwards.
pub(crate) fn caught<T>(run: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(run)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_that_panics_is_reported_and_the_thread_goes_on() {
        assert_eq!(caught(|| 7), Some(7));
        assert_eq!(caught(|| -> u8 { panic!("as a bug would") }), None);
    }
}
