//! Wakes the loop of a broker when other threads have an event for it.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

/// Another thread calls it when the loop has to take a turn. It must not block.
pub type Wake = Box<dyn Fn() + Send + Sync>;

/// The events outside of the loop since its last turn, and the function that wakes it for them.
///
/// The function is called at most once per turn, for any number of finished flushes and reads, and
/// only while the loop is between two turns. A system call per event would cost more than the
/// events.
pub struct Waker {
    wake: Wake,
    state: AtomicU8,
    flushed: AtomicBool,
}

/// The loop is in a turn, and checks the state before it sleeps.
const AWAKE: u8 = 0;
/// The loop may sleep.
const ASLEEP: u8 = 1;
/// Something waits for the next turn.
const NOTIFIED: u8 = 2;

impl Waker {
    /// A waker that calls `wake`.
    pub fn new(wake: Wake) -> Self {
        Waker { wake, state: AtomicU8::new(ASLEEP), flushed: AtomicBool::new(false) }
    }

    /// The journal made something durable, or failed.
    pub fn flushed(&self) {
        self.flushed.store(true, Ordering::Release);
        self.notify();
    }

    /// Something waits for the loop.
    pub fn notify(&self) {
        if self.state.swap(NOTIFIED, Ordering::AcqRel) == ASLEEP {
            (self.wake)();
        }
    }

    /// The loop calls it at the start of a turn, before it reads the announced events. Events after
    /// this call wake the loop again. Returns whether the journal flushed.
    pub fn begin_turn(&self) -> bool {
        self.state.swap(AWAKE, Ordering::AcqRel);
        self.flushed.swap(false, Ordering::AcqRel)
    }

    /// Called by the loop at the end of a turn. False: something was announced during the turn, and
    /// the next turn is due at once.
    pub fn may_sleep(&self) -> bool {
        self.state.compare_exchange(AWAKE, ASLEEP, Ordering::AcqRel, Ordering::Acquire) != Err(NOTIFIED)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[test]
    fn the_loop_is_woken_once_between_turns_and_no_flush_is_forgotten() {
        let wake_count = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&wake_count);
        let waker = Waker::new(Box::new(move || {
            counted.fetch_add(1, Ordering::Relaxed);
        }));
        waker.flushed();
        waker.flushed();
        waker.notify();
        assert_eq!(wake_count.load(Ordering::Relaxed), 1);
        assert!(waker.begin_turn());
        assert!(!waker.begin_turn(), "a flush is handed out once");
        waker.flushed();
        assert_eq!(wake_count.load(Ordering::Relaxed), 1, "the loop is awake");
        assert!(!waker.may_sleep(), "what happened during the turn needs another turn");
        assert!(waker.begin_turn());
        assert!(waker.may_sleep());
        waker.notify();
        assert_eq!(wake_count.load(Ordering::Relaxed), 2);
        assert!(!waker.begin_turn(), "a wake-up without a flush is no flush");
    }
}
