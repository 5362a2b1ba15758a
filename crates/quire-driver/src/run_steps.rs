//! Threads that make the parts of a snapshot, while the calling thread puts earlier parts into a
//! table.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use crossbeam_channel::{Receiver, Sender, bounded};
use parking_lot::Mutex;

/// Parts in progress before the threads wait: some megabytes of a snapshot.
const PARTS_AHEAD: usize = 4;

/// The most threads. They read one after the other, so more of them would wait.
const THREADS_MAX: usize = 4;

/// Steps that follow each other. Each one returns a call that makes a part.
type Steps<T> = Box<dyn Iterator<Item = Box<dyn FnOnce() -> T + Send>> + Send>;

/// The threads take the next step from here, and announce its part here.
struct Source<T> {
    steps: Steps<T>,
    /// In the order of the steps. The part arrives over the channel that is sent here.
    announced: Sender<Receiver<T>>,
}

/// The parts of the threads. Dropping it ends them.
struct Parts<T> {
    announced: Option<Receiver<Receiver<T>>>,
    threads: Vec<JoinHandle<()>>,
}

/// Returns the parts of all steps in their order, made by other threads. When the system has no
/// thread left, this one makes them.
pub(crate) fn run_steps<T: Send + 'static>(steps: Steps<T>) -> Box<dyn Iterator<Item = T>> {
    let (announce, announced) = bounded(PARTS_AHEAD);
    let source = Arc::new(Mutex::new(Some(Source { steps, announced: announce })));
    let count = thread::available_parallelism().map_or(1, |count| count.get().min(THREADS_MAX));
    let threads: Vec<_> = (0..count).map_while(|_| spawn(source.clone())).collect();
    if threads.is_empty()
        && let Some(Source { steps, .. }) = source.lock().take()
    {
        return Box::new(steps.map(|make| make()));
    }
    Box::new(Parts { announced: Some(announced), threads })
}

fn spawn<T: Send + 'static>(source: Arc<Mutex<Option<Source<T>>>>) -> Option<JoinHandle<()>> {
    let run = move || {
        loop {
            let Some((make, part)) = next_step(&mut source.lock()) else { return };
            // The receiver needs no more parts when it has found damage.
            let _ = part.send(make());
        }
    };
    thread::Builder::new().name("quire-snapshot".into()).spawn(run).ok()
}

/// The next step, and the channel for its part. `None` after the last step, and when the receiver
/// needs no more parts.
#[expect(clippy::type_complexity, reason = "a call and a channel")]
fn next_step<T>(source: &mut Option<Source<T>>) -> Option<(Box<dyn FnOnce() -> T + Send>, Sender<T>)> {
    // A source that panics is not used again.
    let mut taken = source.take()?;
    let make = taken.steps.next()?;
    let (part, made) = bounded(1);
    taken.announced.send(made).ok()?;
    *source = Some(taken);
    Some((make, part))
}

impl<T> Iterator for Parts<T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        let announced = self.announced.as_ref().and_then(|announced| announced.recv().ok());
        if let Some(part) = announced.and_then(|made| made.recv().ok()) {
            return Some(part);
        }
        // The threads have ended, or one has panicked. A panic continues on this thread.
        self.announced = None;
        let ended: Vec<_> = self.threads.drain(..).map(JoinHandle::join).collect();
        if let Some(panic) = ended.into_iter().find_map(Result::err) {
            resume_unwind(panic);
        }
        None
    }
}

impl<T> Drop for Parts<T> {
    fn drop(&mut self) {
        self.announced = None;
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    fn steps<T: 'static>(
        numbers: impl Iterator<Item = u32> + Send + 'static,
        make: fn(u32) -> T,
    ) -> Steps<T> {
        Box::new(numbers.map(move |number| Box::new(move || make(number)) as Box<dyn FnOnce() -> T + Send>))
    }

    #[test]
    fn the_parts_of_the_threads_are_all_parts_in_their_order() {
        let here = thread::current().id();
        let made: Vec<_> = run_steps(steps(0..1_000, |step| (step, thread::current().id()))).collect();
        assert!(made.iter().map(|(part, _)| *part).eq(0..1_000));
        assert!(made.iter().all(|(_, thread)| *thread != here));
    }

    #[test]
    fn a_reader_that_stops_early_ends_the_threads() {
        let owned = Arc::new(());
        let in_thread = Arc::clone(&owned);
        let numbers = (0..).inspect(move |_| {
            let _ = &in_thread;
        });
        let mut parts = run_steps(steps(numbers, |step| step));
        assert_eq!(parts.next(), Some(0));
        drop(parts);
        assert_eq!(Arc::strong_count(&owned), 1);
    }

    #[test]
    fn a_panic_of_a_step_or_a_part_continues_on_the_thread_that_reads() {
        let of_step =
            || run_steps(steps((0..3).inspect(|step| assert!(*step < 1, "as a bug would")), |step| step));
        let of_part = || {
            run_steps(steps(0..3, |step| {
                assert!(step < 1, "as a bug would");
                step
            }))
        };
        for mut parts in [of_step(), of_part()] {
            assert_eq!(parts.next(), Some(0));
            assert!(catch_unwind(AssertUnwindSafe(|| parts.next())).is_err());
        }
    }
}
