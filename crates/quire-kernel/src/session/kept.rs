//! Received bytes whose commands wait, and the memory for them.
//!
//! When a publisher is faster than the server, up to a megabyte of its bytes waits in every turn.
//! With memory from the allocator, the system maps and unmaps its pages each time. That took a
//! fifth of the time of the loop. So buffers are reused ([`KeptBuffers`]).

/// The most buffers that are kept for reuse: one megabyte for each of a few publishers that are
/// faster than the server.
const SPARES_MAX: usize = 4;

/// A larger buffer is returned to the allocator. One turn receives a little more than a megabyte
/// from one connection.
const SPARE_SIZE_MAX: usize = 2 * 1024 * 1024;

/// Bytes of commands that wait, the next command first.
#[derive(Debug, Default)]
pub struct KeptBytes {
    bytes: Vec<u8>,
    /// Bytes at the front whose commands were taken.
    taken_size: usize,
}

/// Used buffers of connections whose commands no longer wait.
#[derive(Debug, Default)]
pub struct KeptBuffers {
    spares: Vec<Vec<u8>>,
}

impl KeptBytes {
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[self.taken_size..]
    }

    pub fn size(&self) -> usize {
        self.bytes.len() - self.taken_size
    }

    /// Adds bytes at the end. The first ones get a used buffer.
    pub fn push(&mut self, bytes: &[u8], buffers: &mut KeptBuffers) {
        if self.bytes.capacity() == 0 && !bytes.is_empty() {
            self.bytes = buffers.spares.pop().unwrap_or_default();
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// Removes bytes from the front. It moves the rest only when at least as many bytes were
    /// removed before, because a slice takes a few KiB, and the rest may be megabytes.
    pub fn remove(&mut self, size: usize) {
        self.taken_size += size;
        if self.taken_size >= self.size() {
            self.bytes.drain(..self.taken_size);
            self.taken_size = 0;
        }
    }

    /// Frees memory when most of it is unused, because the connection may wait for a long time.
    pub fn shrink(&mut self) {
        self.bytes.shrink_to(2 * self.bytes.len());
    }
}

impl KeptBuffers {
    /// Takes the buffer of a connection whose commands no longer wait.
    pub fn recycle(&mut self, kept: KeptBytes) {
        let mut buffer = kept.bytes;
        if self.spares.len() < SPARES_MAX && (1..=SPARE_SIZE_MAX).contains(&buffer.capacity()) {
            buffer.clear();
            self.spares.push(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_that_wait_are_rarely_moved_while_they_are_taken_in_small_parts() {
        let bytes: Vec<u8> = (0..1 << 20).map(|n: u32| (n % 251) as u8).collect();
        let (mut kept, mut buffers) = (KeptBytes::default(), KeptBuffers::default());
        kept.push(&bytes[..1 << 19], &mut buffers);
        kept.push(&bytes[1 << 19..], &mut buffers);
        let mut move_count = 0;
        for taken in (0..bytes.len()).step_by(1024) {
            assert!(kept.bytes() == &bytes[taken..]);
            let next = kept.bytes()[1024..].as_ptr();
            kept.remove(1024);
            move_count += usize::from(kept.bytes().as_ptr() != next);
        }
        assert_eq!(kept.size(), 0);
        assert!(move_count < 24, "{move_count} moves");
    }

    #[test]
    fn a_buffer_is_used_by_the_next_connection_that_waits() {
        let mut buffers = KeptBuffers::default();
        let mut kept = KeptBytes::default();
        kept.push(&[1; 1 << 20], &mut buffers);
        let memory = kept.bytes().as_ptr();
        kept.remove(1 << 20);
        buffers.recycle(kept);
        let mut next = KeptBytes::default();
        next.push(&[2; 1000], &mut buffers);
        assert_eq!((next.bytes(), next.bytes().as_ptr()), (&[2; 1000][..], memory));
        next.shrink();
        assert!(next.bytes.capacity() < 4_000, "{}", next.bytes.capacity());
    }

    #[test]
    fn few_buffers_wait_and_none_of_them_is_large() {
        let mut buffers = KeptBuffers::default();
        for size in [0, 3 << 20, 1, 2, 3, 4, 5] {
            let mut kept = KeptBytes::default();
            kept.push(&vec![0; size], &mut KeptBuffers::default());
            buffers.recycle(kept);
        }
        assert!(buffers.spares.iter().all(|spare| (1..1 << 20).contains(&spare.capacity())));
        assert_eq!(buffers.spares.len(), SPARES_MAX);
    }
}
