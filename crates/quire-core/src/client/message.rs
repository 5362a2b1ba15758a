//! A message as a client has it: a range of the bytes that were received, read when it is asked for.

use std::sync::Arc;

use bytes::Bytes;
use quire_journal::{Bookmark, PublisherId, Timestamp};

use super::lease::Lease;
use crate::wire;

/// One received message. Cloning shares the bytes.
#[derive(Clone, Debug)]
pub struct Message {
    /// The body of the frame (protocol.md, `message`).
    body: Bytes,
    head: Head,
    lease: Option<Arc<Lease>>,
}

#[derive(Clone, Copy, Debug)]
struct Head {
    subscription: u32,
    /// Where the topic begins.
    topic_start: u16,
    topic_size: u16,
    correlation_size: u8,
    bookmark: Option<(u64, u64)>,
    timestamp_ns: u64,
    /// Set when it is handed on: see the methods of the same name.
    instance: u16,
    generation: u16,
}

impl Message {
    /// `body` is the body of the frame that `message` was decoded from.
    pub(super) fn new(body: Bytes, message: &wire::Message<'_>, lease: Option<Arc<Lease>>) -> Self {
        let behind = message.topic.len() + message.correlation_id.len() + message.data.len();
        let head = Head {
            subscription: message.subscription,
            // The fixed parts and the name of a queue, which is a topic: about a thousand bytes at most.
            topic_start: (body.len() - behind) as u16,
            topic_size: message.topic.len() as u16,
            correlation_size: message.correlation_id.len() as u8,
            bookmark: message.bookmark,
            timestamp_ns: message.timestamp_ns,
            instance: 0,
            generation: 0,
        };
        Message { body, head, lease }
    }

    /// The message whose frame has this body, if it is one.
    pub(crate) fn of_body(body: Bytes) -> Option<Self> {
        let message = wire::Message::decode(&body).ok()?;
        Some(Message::new(body.clone(), &message, None))
    }

    /// The client's number of the subscription that it came on.
    pub fn subscription(&self) -> u32 {
        self.head.subscription
    }

    /// The queue that it came from, or else the topic that it was published to. What acknowledges it names this topic and its bookmark
    /// (seed 002). Not checked to be text.
    pub fn topic(&self) -> &[u8] {
        self.lease.as_ref().map_or_else(|| self.source_topic(), |lease| lease.queue().as_bytes())
    }

    /// The topic that it was published to. Not checked to be text.
    pub fn source_topic(&self) -> &[u8] {
        let start = usize::from(self.head.topic_start);
        &self.body[start..start + usize::from(self.head.topic_size)]
    }

    /// As published; empty when there was none.
    pub fn correlation_id(&self) -> &[u8] {
        let start = usize::from(self.head.topic_start) + usize::from(self.head.topic_size);
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

    /// Number of the instance that it came from: see [`super::ClientCore::instances`].
    pub fn instance(&self) -> u16 {
        self.head.instance
    }

    /// How often its subscription had been given a new bookmark when it came, modulo 65,536.
    pub fn generation(&self) -> u16 {
        self.head.generation
    }

    pub(super) fn set_origin(&mut self, instance: u16, generation: u16) {
        self.head.instance = instance;
        self.head.generation = generation;
    }

    /// When the server took it.
    pub fn timestamp(&self) -> Timestamp {
        Timestamp(self.head.timestamp_ns)
    }

    /// How it came from a queue, if it did.
    pub fn lease(&self) -> Option<&Arc<Lease>> {
        self.lease.as_ref()
    }

    fn data_start(&self) -> usize {
        usize::from(self.head.topic_start)
            + usize::from(self.head.topic_size)
            + usize::from(self.head.correlation_size)
    }
}
