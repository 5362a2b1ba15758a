//! Wakes the loop of a broker when other threads have an event for it.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

/// Called on a foreign thread when the loop has to take a turn. Must not block.
pub type Wake = Box<dyn Fn() + Send + Sync>;

/// The events outside of the loop since its last turn, and the bell that announces them.
///
/// The bell rings at most once per turn, for any number of flushes and reads that end meanwhile, and only while the loop is between two
/// turns. A system call per event would cost more than the events.
pub struct Waker {
    wake: Wake,
    state: AtomicU8,
    flushed: AtomicBool,
}

/// The loop is in a turn, and looks at the state before it sleeps.
const AWAKE: u8 = 0;
/// The loop may sleep.
const ASLEEP: u8 = 1;
/// Something waits for the next turn.
const RUNG: u8 = 2;

impl Waker {
    /// A waker that calls `wake`.
    pub fn new(wake: Wake) -> Self {
        Waker { wake, state: AtomicU8::new(ASLEEP), flushed: AtomicBool::new(false) }
    }

    /// The journal made something durable, or failed.
    pub fn flushed(&self) {
        self.flushed.store(true, Ordering::Release);
        self.ring();
    }

    /// Something waits for the loop.
    pub fn ring(&self) {
        if self.state.swap(RUNG, Ordering::AcqRel) == ASLEEP {
            (self.wake)();
        }
    }

    /// Called by the loop at the start of a turn, before it looks at anything that is announced here: what is announced
    /// after this call is announced again. Gives whether the journal flushed.
    pub fn answer(&self) -> bool {
        self.state.swap(AWAKE, Ordering::AcqRel);
        self.flushed.swap(false, Ordering::AcqRel)
    }

    /// Called by the loop at the end of a turn. False: something was announced during the turn, and the next turn is due at once.
    pub fn may_sleep(&self) -> bool {
        self.state.compare_exchange(AWAKE, ASLEEP, Ordering::AcqRel, Ordering::Acquire) != Err(RUNG)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[test]
    fn the_bell_rings_once_between_turns_and_no_flush_is_forgotten() {
        let rings = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&rings);
        let waker = Waker::new(Box::new(move || {
            counted.fetch_add(1, Ordering::Relaxed);
        }));
        waker.flushed();
        waker.flushed();
        waker.ring();
        assert_eq!(rings.load(Ordering::Relaxed), 1);
        assert!(waker.answer());
        assert!(!waker.answer(), "a flush is handed out once");
        waker.flushed();
        assert_eq!(rings.load(Ordering::Relaxed), 1, "the loop is awake");
        assert!(!waker.may_sleep(), "what happened during the turn needs another turn");
        assert!(waker.answer());
        assert!(waker.may_sleep());
        waker.ring();
        assert_eq!(rings.load(Ordering::Relaxed), 2);
        assert!(!waker.answer(), "a bell without a flush is no flush");
    }
}
