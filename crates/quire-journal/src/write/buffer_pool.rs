//! Bodies of written batches, to be reused: new memory from the system costs more time than
//! encoding into it.

use parking_lot::Mutex;

use crate::format::BATCH_BODY_TARGET;

/// Empty bodies. There are never more than were in use at once.
#[derive(Debug, Default)]
pub(crate) struct BufferPool(Mutex<Vec<Vec<u8>>>);

/// The most bodies that are kept while records wait to be written. That many full bodies hold the
/// default limit of waiting bytes.
const BUFFERS_MAX: usize = 1024;
/// The most bodies that are kept on an idle journal. A flush of a few MiB needs this many.
const IDLE_BUFFERS_MAX: usize = 64;
/// The most bodies that one flush frees: few, because the writer's thread does it, and the next
/// flush may wait for it.
const RELEASED_MAX: usize = 16;
/// Bodies above this size, in bytes, are not kept.
const CAPACITY_MAX: usize = 2 * BATCH_BODY_TARGET;

impl BufferPool {
    /// An empty body.
    pub fn take(&self) -> Vec<u8> {
        self.0.lock().pop().unwrap_or_default()
    }

    /// Keeps a body that was written.
    pub fn give(&self, mut body: Vec<u8>) {
        body.clear();
        let mut buffers = self.0.lock();
        if buffers.len() < BUFFERS_MAX && body.capacity() <= CAPACITY_MAX {
            buffers.push(body);
        }
    }

    /// Call after a flush when no record waits. Frees some buffers that only a burst needed.
    pub fn release(&self) {
        let mut buffers = self.0.lock();
        let kept = buffers.len().saturating_sub(RELEASED_MAX).max(IDLE_BUFFERS_MAX).min(buffers.len());
        let released = buffers.split_off(kept);
        // The producer may ask for one meanwhile.
        drop(buffers);
        drop(released);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(buffers: &BufferPool) -> usize {
        buffers.0.lock().len()
    }

    #[test]
    fn what_a_crowd_needed_is_used_again_and_given_back_bit_by_bit_when_nothing_waits() {
        let buffers = BufferPool::default();
        (0..BUFFERS_MAX + 10).for_each(|_| buffers.give(vec![7; BATCH_BODY_TARGET]));
        assert_eq!(count(&buffers), BUFFERS_MAX);
        let body = buffers.take();
        assert!(body.is_empty() && body.capacity() >= BATCH_BODY_TARGET);
        buffers.give(body);
        let mut before = BUFFERS_MAX;
        while before > IDLE_BUFFERS_MAX {
            buffers.release();
            assert!((before - RELEASED_MAX..before).contains(&count(&buffers)));
            before = count(&buffers);
        }
        buffers.release();
        assert_eq!(count(&buffers), IDLE_BUFFERS_MAX);
    }

    #[test]
    fn a_body_of_one_large_record_is_not_kept() {
        let buffers = BufferPool::default();
        buffers.give(vec![7; CAPACITY_MAX + 1]);
        assert_eq!((count(&buffers), buffers.take().capacity()), (0, 0));
    }
}
