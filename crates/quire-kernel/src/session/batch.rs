//! Received messages of a connection that must wait: the rest of a batch when the slice of the
//! connection is over, and a message that another thread prepares.

use quire_command::{Publish, PublishBatch};
use quire_types::{Delay, HeadersBuffer};

/// A publish that owns its parts.
pub struct OwnedPublish {
    sequence: u64,
    expiration_s: Option<u32>,
    delay: Delay,
    topic: Box<[u8]>,
    correlation_id: Box<[u8]>,
    headers: HeadersBuffer,
    key: Box<[u8]>,
    is_delta: bool,
    is_update: bool,
    is_numbered: bool,
    data: Vec<u8>,
}

/// The messages of a batch that a slice could not process.
pub struct RestOfBatch {
    /// Its data is the items.
    head: OwnedPublish,
    /// The bytes of the items that are done.
    done_size: usize,
}

impl OwnedPublish {
    pub fn new(publish: &Publish<'_>) -> Self {
        OwnedPublish {
            sequence: publish.sequence,
            expiration_s: publish.expiration_s,
            delay: publish.delay,
            topic: publish.topic.into(),
            correlation_id: publish.correlation_id.into(),
            headers: publish.headers.into(),
            key: publish.key.into(),
            is_delta: publish.is_delta,
            is_update: publish.is_update,
            is_numbered: publish.is_numbered,
            data: publish.data.to_vec(),
        }
    }

    pub fn as_publish(&self) -> Publish<'_> {
        Publish {
            sequence: self.sequence,
            expiration_s: self.expiration_s,
            delay: self.delay,
            topic: &self.topic,
            correlation_id: &self.correlation_id,
            headers: self.headers.as_headers(),
            key: &self.key,
            is_delta: self.is_delta,
            is_update: self.is_update,
            is_numbered: self.is_numbered,
            data: &self.data,
        }
    }
}

impl RestOfBatch {
    pub fn new(batch: &PublishBatch<'_>) -> Self {
        let head = OwnedPublish::new(&Publish { data: batch.items.bytes(), ..batch.head });
        RestOfBatch { head, done_size: 0 }
    }

    /// Records that `left` bytes of messages are not done, and the sequence of the first of them.
    pub fn keep(&mut self, sequence: u64, left: usize) {
        self.head.sequence = sequence;
        self.done_size = self.head.data.len() - left;
    }

    pub fn batch(&self) -> PublishBatch<'_> {
        let head = Publish { data: b"", ..self.head.as_publish() };
        PublishBatch::of_checked(head, &self.head.data[self.done_size..])
    }

    /// Bytes that it holds.
    pub fn size(&self) -> usize {
        self.head.data.len()
    }
}
