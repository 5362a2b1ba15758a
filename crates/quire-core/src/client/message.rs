//! A message as a client has it: a range of the bytes that were received, read when it is asked for.

use bytes::Bytes;
use quire_journal::{Bookmark, PublisherId, Timestamp};

use crate::wire;

/// One received message. Cloning shares the bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// The body of the frame (protocol.md, `message`).
    body: Bytes,
    head: Head,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Head {
    subscription: u32,
    topic_size: u16,
    correlation_size: u8,
    bookmark: Option<(u64, u64)>,
    timestamp_ns: u64,
}

/// Bytes of the fixed part of the body.
const FIXED_SIZE: usize = 32;

impl Message {
    /// `body` is the body of the frame that `message` was decoded from.
    pub(super) fn new(body: Bytes, message: &wire::Message<'_>) -> Self {
        let head = Head {
            subscription: message.subscription,
            topic_size: message.topic.len() as u16,
            correlation_size: message.correlation_id.len() as u8,
            bookmark: message.bookmark,
            timestamp_ns: message.timestamp_ns,
        };
        Message { body, head }
    }

    /// The message whose frame has this body, if it is one.
    pub(crate) fn of_body(body: Bytes) -> Option<Self> {
        let message = wire::Message::decode(&body).ok()?;
        Some(Message::new(body.clone(), &message))
    }

    /// The client's number of the subscription that it came on.
    pub fn subscription(&self) -> u32 {
        self.head.subscription
    }

    /// The topic that it was published to; not yet checked to be text.
    pub fn topic(&self) -> &[u8] {
        &self.body[FIXED_SIZE..FIXED_SIZE + usize::from(self.head.topic_size)]
    }

    /// As published; empty when there was none.
    pub fn correlation_id(&self) -> &[u8] {
        let start = FIXED_SIZE + usize::from(self.head.topic_size);
        &self.body[start..start + usize::from(self.head.correlation_size)]
    }

    /// The data.
    pub fn data(&self) -> &[u8] {
        &self.body[self.data_start()..]
    }

    /// The data as shared bytes, without a copy.
    pub fn data_bytes(&self) -> Bytes {
        self.body.slice(self.data_start()..)
    }

    /// The name of the message, when the log records it.
    pub fn bookmark(&self) -> Option<Bookmark> {
        self.head
            .bookmark
            .map(|(publisher, sequence)| Bookmark { publisher: PublisherId(publisher), sequence })
    }

    /// When the server took it.
    pub fn timestamp(&self) -> Timestamp {
        Timestamp(self.head.timestamp_ns)
    }

    fn data_start(&self) -> usize {
        FIXED_SIZE + usize::from(self.head.topic_size) + usize::from(self.head.correlation_size)
    }
}
