//! What waits to be sent on one connection.

use crate::wire::ServerFrame;

/// Bytes of frames, in order. Holds no memory while it is empty.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    bytes: Vec<u8>,
    /// Of these, put there by replays, which keep the pace by themselves and so do not count as backlog.
    replayed_size: usize,
    /// What the connection gets of it, once it was closed.
    closed_size: Option<usize>,
}

impl Outbox {
    /// Appends a frame.
    pub(crate) fn put(&mut self, frame: &ServerFrame<'_>) {
        frame.encode(&mut self.bytes);
    }

    /// Where encoders append frames that count as backlog.
    pub(crate) fn bytes_mut(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Appends frames of a replay.
    pub(crate) fn put_replayed(&mut self, frames: Vec<u8>) {
        self.replayed_size += frames.len();
        if self.bytes.is_empty() {
            self.bytes = frames;
        } else {
            self.bytes.extend_from_slice(&frames);
        }
    }

    /// Marks the last `size` bytes as a replay's.
    pub(crate) fn count_as_replayed(&mut self, size: usize) {
        self.replayed_size += size;
    }

    /// Bytes that wait.
    pub(crate) fn size(&self) -> usize {
        self.bytes.len()
    }

    /// Bytes that wait and count against the limit of the backlog.
    pub(crate) fn backlog_size(&self) -> usize {
        self.bytes.len() - self.replayed_size
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Everything, to be sent.
    pub(crate) fn take(&mut self) -> Vec<u8> {
        self.replayed_size = 0;
        let mut bytes = std::mem::take(&mut self.bytes);
        if let Some(size) = &mut self.closed_size {
            bytes.truncate(std::mem::take(size));
        }
        bytes
    }

    /// What is appended from now on is not sent.
    pub(crate) fn close(&mut self) {
        self.closed_size = Some(self.bytes.len());
    }

    /// Whether there is no buffer yet.
    pub(crate) fn wants_buffer(&self) -> bool {
        self.bytes.capacity() == 0
    }

    /// Goes on with `buffer`, which is empty.
    pub(crate) fn give_buffer(&mut self, buffer: Vec<u8>) {
        debug_assert!(self.bytes.is_empty() && buffer.is_empty());
        self.bytes = buffer;
    }

    /// Drops what waits: the connection will not get it.
    pub(crate) fn clear(&mut self) {
        *self = Outbox::default();
    }
}
