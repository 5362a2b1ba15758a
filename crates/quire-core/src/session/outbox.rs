//! What waits to be sent on one connection.

use std::collections::VecDeque;

use crate::wire::ServerFrame;

/// Bytes of a chunk above which the next frame begins another: what waits for a connection that takes nothing grows without being
/// copied, and is freed in parts that the allocator keeps.
const CHUNK_SIZE: usize = 256 * 1024;

/// Bytes of frames, in order. Holds no memory while it is empty.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    full: VecDeque<Chunk>,
    /// Where frames are appended.
    last: Chunk,
    /// Bytes of all chunks, and of these those of replays.
    full_size: usize,
    full_replayed_size: usize,
    /// Once it was closed: bytes that still go out. Those behind them do not.
    closed_size: Option<usize>,
}

#[derive(Debug, Default)]
struct Chunk {
    bytes: Vec<u8>,
    /// Of these, put there by replays, which keep the pace by themselves and so do not count as backlog.
    replayed_size: usize,
}

impl Outbox {
    /// Appends a frame.
    pub(crate) fn put(&mut self, frame: &ServerFrame<'_>) {
        frame.encode(self.bytes_mut());
    }

    /// Where encoders append a frame that counts as backlog. What is there already belongs to earlier frames.
    pub(crate) fn bytes_mut(&mut self) -> &mut Vec<u8> {
        if self.last.bytes.len() >= CHUNK_SIZE {
            self.begin_chunk(Vec::new());
        }
        &mut self.last.bytes
    }

    /// Appends frames of a replay.
    pub(crate) fn put_replayed(&mut self, frames: Vec<u8>) {
        let size = frames.len();
        if self.last.bytes.is_empty() {
            self.last.bytes = frames;
        } else if self.last.bytes.len() + size > CHUNK_SIZE {
            self.begin_chunk(frames);
        } else {
            self.last.bytes.extend_from_slice(&frames);
        }
        self.last.replayed_size += size;
    }

    fn begin_chunk(&mut self, bytes: Vec<u8>) {
        let full = std::mem::replace(&mut self.last, Chunk { bytes, replayed_size: 0 });
        self.full_size += full.bytes.len();
        self.full_replayed_size += full.replayed_size;
        self.full.push_back(full);
    }

    /// Marks the last `size` bytes, which are one frame, as a replay's.
    pub(crate) fn count_as_replayed(&mut self, size: usize) {
        self.last.replayed_size += size;
    }

    /// Bytes that wait.
    pub(crate) fn size(&self) -> usize {
        self.full_size + self.last.bytes.len()
    }

    /// Bytes that wait and count against the limit of the backlog.
    pub(crate) fn backlog_size(&self) -> usize {
        self.size() - self.full_replayed_size - self.last.replayed_size
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.size() == 0
    }

    /// The next bytes to be sent, whole frames; `None` when there are none.
    pub(crate) fn take(&mut self) -> Option<Vec<u8>> {
        let chunk = match self.full.pop_front() {
            Some(full) => {
                self.full_size -= full.bytes.len();
                self.full_replayed_size -= full.replayed_size;
                full
            }
            None => std::mem::take(&mut self.last),
        };
        let mut bytes = chunk.bytes;
        if let Some(size) = &mut self.closed_size {
            bytes.truncate(*size);
            *size -= bytes.len();
        }
        (!bytes.is_empty()).then_some(bytes)
    }

    /// What is appended from now on is not sent.
    pub(crate) fn close(&mut self) {
        self.closed_size = Some(self.size());
    }

    /// Whether there is no buffer yet.
    pub(crate) fn wants_buffer(&self) -> bool {
        self.last.bytes.capacity() == 0
    }

    /// Goes on with `buffer`, which is empty.
    pub(crate) fn give_buffer(&mut self, buffer: Vec<u8>) {
        debug_assert!(self.last.bytes.is_empty() && buffer.is_empty());
        self.last.bytes = buffer;
    }

    /// Drops what waits: the connection will not get it.
    pub(crate) fn clear(&mut self) {
        *self = Outbox::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(outbox: &mut Outbox, size: usize) {
        outbox.bytes_mut().extend(std::iter::repeat_n(7, size));
    }

    #[test]
    fn sizes_follow_what_is_put_and_taken_across_chunks() {
        let mut outbox = Outbox::default();
        put(&mut outbox, CHUNK_SIZE - 1);
        put(&mut outbox, 10);
        put(&mut outbox, 20);
        outbox.count_as_replayed(20);
        outbox.put_replayed(vec![8; CHUNK_SIZE]);
        assert_eq!((outbox.size(), outbox.backlog_size()), (2 * CHUNK_SIZE + 29, CHUNK_SIZE + 9));
        assert_eq!(outbox.take().map(|bytes| bytes.len()), Some(CHUNK_SIZE + 9));
        assert_eq!((outbox.size(), outbox.backlog_size()), (CHUNK_SIZE + 20, 0));
        assert_eq!(outbox.take().map(|bytes| bytes.len()), Some(20));
        assert_eq!(outbox.take().map(|bytes| bytes.len()), Some(CHUNK_SIZE));
        assert_eq!((outbox.take(), outbox.size(), outbox.backlog_size()), (None, 0, 0));
    }

    #[test]
    fn what_is_put_behind_the_close_is_not_sent() {
        let mut outbox = Outbox::default();
        put(&mut outbox, CHUNK_SIZE);
        put(&mut outbox, 5);
        outbox.close();
        put(&mut outbox, CHUNK_SIZE);
        put(&mut outbox, 6);
        assert_eq!(outbox.take().map(|bytes| bytes.len()), Some(CHUNK_SIZE));
        assert_eq!(outbox.take().map(|bytes| bytes.len()), Some(5));
        assert_eq!(outbox.take(), None);
    }
}
