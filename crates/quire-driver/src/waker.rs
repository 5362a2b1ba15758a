//! Wakes the loop of a broker when other threads have an event for it.

use std::sync::atomic::{AtomicBool, Ordering};

/// Called on a foreign thread when the loop has to take a turn. Must not block.
pub type Wake = Box<dyn Fn() + Send + Sync>;

/// The events outside of the loop since its last turn, and the bell that announces them.
///
/// The bell rings at most once per turn, for any number of flushes and reads that end meanwhile. A system call per event would cost more
/// than the events.
pub struct Waker {
    wake: Wake,
    rung: AtomicBool,
    flushed: AtomicBool,
}

impl Waker {
    /// A waker that calls `wake`.
    pub fn new(wake: Wake) -> Self {
        Waker { wake, rung: AtomicBool::new(false), flushed: AtomicBool::new(false) }
    }

    /// The journal made something durable, or failed.
    pub fn flushed(&self) {
        self.flushed.store(true, Ordering::Release);
        self.ring();
    }

    /// Something waits for the loop.
    pub fn ring(&self) {
        if !self.rung.swap(true, Ordering::AcqRel) {
            (self.wake)();
        }
    }

    /// Called by the loop at the start of a turn, before it looks at anything that is announced here: what is announced
    /// after this call rings again. Gives whether the journal flushed.
    pub fn answer(&self) -> bool {
        self.rung.swap(false, Ordering::AcqRel);
        self.flushed.swap(false, Ordering::AcqRel)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[test]
    fn the_bell_rings_once_per_turn_and_no_flush_is_forgotten() {
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
        waker.ring();
        assert_eq!(rings.load(Ordering::Relaxed), 2);
        assert!(!waker.answer(), "a bell without a flush is no flush");
    }
}
