//! Bodies of batches that were written, for the next ones: memory that comes anew from the system costs more than encoding into it.

use parking_lot::Mutex;

use crate::format::BATCH_BODY_TARGET;

/// Bodies without bytes in them. There are never more than were in use at once.
#[derive(Debug, Default)]
pub(crate) struct Spares(Mutex<Vec<Vec<u8>>>);

/// Bodies that are kept while something waits to be written: when they are full ones, as much as may wait by default.
const SPARES_MAX: usize = 1024;
/// Bodies that are kept in the end when nothing waits: what a flush of a few MiB needs.
const SPARES_IDLE_MAX: usize = 64;
/// Bodies that one flush gives back to the system: few, since the writer's thread does so, and the next flush may wait for it.
const RELEASED_MAX: usize = 16;
/// Larger ones, in bytes, are not kept.
const CAPACITY_MAX: usize = 2 * BATCH_BODY_TARGET;

impl Spares {
    /// An empty body.
    pub fn take(&self) -> Vec<u8> {
        self.0.lock().pop().unwrap_or_default()
    }

    /// Keeps a body that was written.
    pub fn give(&self, mut body: Vec<u8>) {
        body.clear();
        let mut spares = self.0.lock();
        if spares.len() < SPARES_MAX && body.capacity() <= CAPACITY_MAX {
            spares.push(body);
        }
    }

    /// A flush is done behind which nothing waits: gives some back that only a crowd needed.
    pub fn release(&self) {
        let mut spares = self.0.lock();
        let kept = spares.len().saturating_sub(RELEASED_MAX).max(SPARES_IDLE_MAX).min(spares.len());
        let released = spares.split_off(kept);
        // The producer may ask for one meanwhile.
        drop(spares);
        drop(released);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(spares: &Spares) -> usize {
        spares.0.lock().len()
    }

    #[test]
    fn what_a_crowd_needed_is_used_again_and_given_back_bit_by_bit_when_nothing_waits() {
        let spares = Spares::default();
        (0..SPARES_MAX + 10).for_each(|_| spares.give(vec![7; BATCH_BODY_TARGET]));
        assert_eq!(count(&spares), SPARES_MAX);
        let body = spares.take();
        assert!(body.is_empty() && body.capacity() >= BATCH_BODY_TARGET);
        spares.give(body);
        let mut before = SPARES_MAX;
        while before > SPARES_IDLE_MAX {
            spares.release();
            assert!((before - RELEASED_MAX..before).contains(&count(&spares)));
            before = count(&spares);
        }
        spares.release();
        assert_eq!(count(&spares), SPARES_IDLE_MAX);
    }

    #[test]
    fn a_body_of_one_large_record_is_not_kept() {
        let spares = Spares::default();
        spares.give(vec![7; CAPACITY_MAX + 1]);
        assert_eq!((count(&spares), spares.take().capacity()), (0, 0));
    }
}
