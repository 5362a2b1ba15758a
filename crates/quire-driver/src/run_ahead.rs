//! Another thread that makes the parts of a snapshot while this one puts the parts before them into a table.

use std::panic::resume_unwind;
use std::thread::{self, JoinHandle};

use crossbeam_channel::{Receiver, bounded};

/// Parts that are ready before the thread waits: about a megabyte of a snapshot.
const PARTS_AHEAD: usize = 4;

/// Parts that are made one after the other.
type Parts<T> = Box<dyn Iterator<Item = T> + Send>;

/// The parts of a thread. Dropping it ends the thread.
struct Ahead<T> {
    parts: Option<Receiver<T>>,
    thread: Option<JoinHandle<()>>,
}

/// Returns the same parts, made by another thread. When the system has no thread left, this one makes them.
pub(crate) fn run_ahead<T: Send + 'static>(parts: Parts<T>) -> Parts<T> {
    let (hand_over, work) = bounded::<Parts<T>>(1);
    let (done, made) = bounded(PARTS_AHEAD);
    let run = move || {
        for part in work.into_iter().flatten() {
            // The other side has found damage and needs no more.
            if done.send(part).is_err() {
                return;
            }
        }
    };
    let Ok(thread) = thread::Builder::new().name("quire-snapshot".into()).spawn(run) else { return parts };
    match hand_over.send(parts) {
        Ok(()) => Box::new(Ahead { parts: Some(made), thread: Some(thread) }),
        Err(unsent) => unsent.into_inner(),
    }
}

impl<T> Iterator for Ahead<T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        if let Some(part) = self.parts.as_ref().and_then(|parts| parts.recv().ok()) {
            return Some(part);
        }
        // The thread is at its end. A panic continues on this thread.
        if let Some(Err(panic)) = self.thread.take().map(JoinHandle::join) {
            resume_unwind(panic);
        }
        None
    }
}

impl<T> Drop for Ahead<T> {
    fn drop(&mut self) {
        self.parts = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Arc;

    use super::*;

    #[test]
    fn the_parts_of_the_thread_are_all_parts_in_their_order() {
        let here = thread::current().id();
        let made: Vec<_> = run_ahead(Box::new((0..100).map(|part| (part, thread::current().id())))).collect();
        assert!(made.iter().map(|(part, _)| *part).eq(0..100));
        assert!(made.iter().all(|(_, thread)| *thread != here));
    }

    #[test]
    fn a_reader_that_stops_early_ends_the_thread() {
        let owned = Arc::new(());
        let in_thread = Arc::clone(&owned);
        let mut parts = run_ahead(Box::new((0..).inspect(move |_| {
            let _ = &in_thread;
        })));
        assert_eq!(parts.next(), Some(0));
        drop(parts);
        assert_eq!(Arc::strong_count(&owned), 1);
    }

    #[test]
    fn a_panic_of_the_thread_continues_on_the_thread_that_reads() {
        let mut parts = run_ahead(Box::new((0..3).inspect(|part| assert!(*part < 1, "as a bug would"))));
        assert_eq!(parts.next(), Some(0));
        assert!(catch_unwind(AssertUnwindSafe(|| parts.next())).is_err());
    }
}
