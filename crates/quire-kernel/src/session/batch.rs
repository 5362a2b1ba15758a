//! What is left of a batch when the slice of its connection is over.

use quire_command::{Publish, PublishBatch};
use quire_types::{Delay, HeadersBuffer};

/// The messages of a batch that a slice had no time for.
pub struct RestOfBatch {
    sequence: u64,
    expiration_s: Option<u32>,
    delay: Delay,
    topic: Box<[u8]>,
    correlation_id: Box<[u8]>,
    headers: HeadersBuffer,
    key: Box<[u8]>,
    is_delta: bool,
    items: Vec<u8>,
    /// Of the items, done.
    done_size: usize,
}

impl RestOfBatch {
    pub fn new(batch: &PublishBatch<'_>) -> Self {
        RestOfBatch {
            sequence: batch.head.sequence,
            expiration_s: batch.head.expiration_s,
            delay: batch.head.delay,
            topic: batch.head.topic.into(),
            correlation_id: batch.head.correlation_id.into(),
            headers: batch.head.headers.into(),
            key: batch.head.key.into(),
            is_delta: batch.head.is_delta,
            items: batch.items.bytes().to_vec(),
            done_size: 0,
        }
    }

    /// Remembers that `left` bytes of messages are not done, the first with this sequence.
    pub fn keep(&mut self, sequence: u64, left: usize) {
        self.sequence = sequence;
        self.done_size = self.items.len() - left;
    }

    pub fn batch(&self) -> PublishBatch<'_> {
        let head = Publish {
            sequence: self.sequence,
            expiration_s: self.expiration_s,
            delay: self.delay,
            topic: &self.topic,
            correlation_id: &self.correlation_id,
            headers: self.headers.as_headers(),
            key: &self.key,
            is_delta: self.is_delta,
            data: b"",
        };
        PublishBatch::of_checked(head, &self.items[self.done_size..])
    }

    /// Bytes that it holds.
    pub fn size(&self) -> usize {
        self.items.len()
    }
}
