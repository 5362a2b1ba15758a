//! Where batches wait for the writer's thread.
//!
//! Its thread sleeps at once when nothing waits. A channel yields a few times before it sleeps, and on a machine with more to do than it
//! has cores, whoever gets the core that was yielded keeps it for milliseconds: a flush began that much later.

use std::time::Instant;

use parking_lot::{Condvar, Mutex};

use crate::writer::NewBatch;

/// One thread takes, others put. What waits is bounded by [`crate::Options::unpersisted_size_max`].
#[derive(Default)]
pub(crate) struct Inbox {
    waiting: Mutex<Waiting>,
    arrived: Condvar,
}

/// What the writer has to do.
#[derive(Default)]
pub(crate) struct Waiting {
    /// In the order of the log.
    pub batches: Vec<NewBatch>,
    /// Nothing comes after them.
    pub is_closing: bool,
}

impl Inbox {
    /// Puts batches behind those that wait.
    pub fn put(&self, batches: Vec<NewBatch>) {
        self.waiting.lock().batches.extend(batches);
        self.arrived.notify_one();
    }

    /// Says that nothing more comes.
    pub fn close(&self) {
        self.waiting.lock().is_closing = true;
        self.arrived.notify_one();
    }

    /// Everything that waits, as soon as something does; nothing when `deadline` comes first.
    pub fn take(&self, deadline: Option<Instant>) -> Waiting {
        let mut waiting = self.waiting.lock();
        while waiting.batches.is_empty() && !waiting.is_closing {
            match deadline {
                None => self.arrived.wait(&mut waiting),
                Some(deadline) if self.arrived.wait_until(&mut waiting, deadline).timed_out() => break,
                Some(_) => (),
            }
        }
        std::mem::take(&mut waiting)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;

    fn batch(count: u32) -> NewBatch {
        NewBatch { count, ..NewBatch::default() }
    }

    fn counts(waiting: &Waiting) -> Vec<u32> {
        waiting.batches.iter().map(|batch| batch.count).collect()
    }

    #[test]
    fn everything_that_waits_is_taken_at_once_and_in_order() {
        let inbox = Inbox::default();
        inbox.put(vec![batch(1), batch(2)]);
        inbox.put(vec![batch(3)]);
        inbox.close();
        let waiting = inbox.take(None);
        assert_eq!((counts(&waiting), waiting.is_closing), (vec![1, 2, 3], true));
    }

    #[test]
    fn a_deadline_ends_the_wait_and_takes_what_came_before_it() {
        let inbox = Inbox::default();
        let waiting = inbox.take(Some(Instant::now() + Duration::from_millis(1)));
        assert_eq!((counts(&waiting), waiting.is_closing), (vec![], false));
        inbox.put(vec![batch(1)]);
        assert_eq!(counts(&inbox.take(Some(Instant::now()))), [1]);
    }

    #[test]
    fn who_sleeps_is_woken_for_each_batch_and_for_the_end() {
        let inbox = Arc::new(Inbox::default());
        let taking = inbox.clone();
        let taker = std::thread::spawn(move || {
            let mut taken = Vec::new();
            loop {
                let waiting = taking.take(None);
                taken.extend(counts(&waiting));
                if waiting.is_closing {
                    return taken;
                }
            }
        });
        let expected: Vec<u32> = (1..=1000).collect();
        for count in &expected {
            inbox.put(vec![batch(*count)]);
        }
        inbox.close();
        assert_eq!(taker.join().expect("the thread takes and returns"), expected);
    }
}
