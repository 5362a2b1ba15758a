//! A message in a client: a range of the received bytes. Its fields are read at each call.

use std::sync::Arc;

use bytes::Bytes;
use quire_types::{Bookmark, Headers, PublisherId, Timestamp};
use xxhash_rust::xxh3::xxh3_128;

use super::lease::Lease;
use quire_command as command;
use quire_wire::{decode_message, message_body};

/// One received message. Cloning shares the bytes.
#[derive(Clone, Debug)]
pub struct Message {
    /// The body of the frame (protocol.md, `message`).
    body: Bytes,
    head: Head,
    lease: Option<Arc<Lease>>,
}

/// Why a message was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// It was published to the topic of a subscription.
    Publish,
    /// It answers a query, or it is a record in the first result of a subscription.
    Query,
    /// It was published. The data has only the fields that differ from the previous message of the
    /// record.
    Delta,
    /// The record with its key has left the view of its subscription.
    Left(command::OofReason),
    /// The log has a delete of the record with its key.
    Delete,
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
    /// Set when it is passed on: see the methods of the same name.
    instance: u16,
    generation: u16,
    cause: Cause,
}

impl Message {
    /// `body` is the body of the frame from which `message` was decoded.
    pub(super) fn new(body: Bytes, message: &command::Message<'_>, lease: Option<Arc<Lease>>) -> Self {
        let behind = message.topic.len() + message.correlation_id.len() + message.data.len();
        let head = Head {
            subscription: message.subscription,
            // The fixed parts, the name of a queue, which is a topic, and the headers: about 34,000
            // bytes at most.
            topic_start: (body.len() - behind) as u16,
            topic_size: message.topic.len() as u16,
            correlation_size: message.correlation_id.len() as u8,
            bookmark: message.bookmark,
            timestamp_ns: message.timestamp_ns,
            instance: 0,
            generation: 0,
            cause: match message.kind {
                command::MessageKind::Publish => Cause::Publish,
                command::MessageKind::Record => Cause::Query,
                command::MessageKind::Delta(_) => Cause::Delta,
                command::MessageKind::Oof(reason) => Cause::Left(reason),
                command::MessageKind::Delete => Cause::Delete,
            },
        };
        Message { body, head, lease }
    }

    /// The message whose frame has this body, if it is a message. A message of a queue must name
    /// the queue.
    pub fn of_body(body: Bytes) -> Option<Self> {
        let message = decode_message(&body).ok()?;
        let lease = match message.queued {
            Some(queued) => {
                let (publisher, sequence) = message.bookmark?;
                let bookmark = Bookmark { publisher: PublisherId(publisher), sequence };
                let queue = std::str::from_utf8(queued.queue?).ok()?;
                Some(Arc::new(Lease::detached(queue, bookmark, &queued)))
            }
            None => None,
        };
        Some(Message::new(body.clone(), &message, lease))
    }

    /// A message that was not received over a connection. A message of a queue must have a bookmark
    /// and name the queue.
    pub fn alone(message: &command::Message<'_>) -> Option<Self> {
        Message::of_body(message_body(message).into())
    }

    /// The same message in a separate buffer. A message otherwise keeps the whole receive buffer in
    /// memory.
    #[must_use]
    pub fn detached(&self) -> Self {
        Message { body: Bytes::copy_from_slice(&self.body), ..self.clone() }
    }

    /// A body from which [`Message::of_body`] makes a copy of this message. The copy does not have
    /// the information that it answers a query of a queue.
    pub fn to_body(&self) -> Vec<u8> {
        let kind = match self.head.cause {
            Cause::Left(reason) => command::MessageKind::Oof(reason),
            Cause::Query if !self.key().is_empty() => command::MessageKind::Record,
            Cause::Delta => self.kind(),
            Cause::Delete => command::MessageKind::Delete,
            Cause::Publish | Cause::Query => command::MessageKind::Publish,
        };
        let message = command::Message {
            subscription: self.head.subscription,
            bookmark: self.head.bookmark,
            timestamp_ns: self.head.timestamp_ns,
            queued: self.lease.as_ref().map(|lease| lease.queued()),
            topic: self.source_topic(),
            correlation_id: self.correlation_id(),
            headers: self.headers(),
            key: self.key(),
            kind,
            data: self.data(),
        };
        message_body(&message)
    }

    /// Adds it to a list. A delete of several records becomes one message for each of them. Only
    /// the last of these messages has the bookmark: the position in the log is reached when all of
    /// them are processed.
    pub(super) fn add_each_deleted(self, messages: &mut Vec<Message>) {
        let whole = match decode_message(&self.body) {
            Ok(whole) if whole.kind == command::MessageKind::Delete => whole,
            _ => return messages.push(self),
        };
        let others = command::Keys::from_bytes(whole.data).into_iter().flat_map(command::Keys::iter);
        let mut keys = std::iter::once(whole.key).chain(others).peekable();
        while let Some(key) = keys.next() {
            let bookmark = whole.bookmark.filter(|_| keys.peek().is_none());
            let one = Message::alone(&command::Message { key, bookmark, data: b"", ..whole });
            messages.extend(one.map(|mut one| {
                one.set_origin(self.head.instance, self.head.generation);
                one
            }));
        }
    }

    /// The client's number of the subscription that received it.
    pub fn subscription(&self) -> u32 {
        self.head.subscription
    }

    /// The queue that delivered it, or else the topic of its publish. An acknowledgement names this
    /// topic and the bookmark. It may not be valid UTF-8.
    pub fn topic(&self) -> &[u8] {
        self.lease.as_ref().map_or_else(|| self.source_topic(), |lease| lease.queue().as_bytes())
    }

    /// The topic that it was published to. It may not be valid UTF-8.
    pub fn source_topic(&self) -> &[u8] {
        let start = usize::from(self.head.topic_start);
        &self.body[start..start + usize::from(self.head.topic_size)]
    }

    /// As it was published; empty when there was none.
    pub fn correlation_id(&self) -> &[u8] {
        let start = usize::from(self.head.topic_start) + usize::from(self.head.topic_size);
        &self.body[start..start + usize::from(self.head.correlation_size)]
    }

    /// As they were published. Each call reads them from the frame, so a message without headers
    /// has no cost.
    pub fn headers(&self) -> Headers<'_> {
        decode_message(&self.body).map_or(Headers::NONE, |message| message.headers)
    }

    /// The key of the message in its last-value topic; empty = none. Read from the frame at each
    /// call, as the headers are.
    pub fn key(&self) -> &[u8] {
        decode_message(&self.body).map_or(&[], |message| message.key)
    }

    /// As the server sent it.
    fn kind(&self) -> command::MessageKind {
        decode_message(&self.body).map_or_else(|_| Default::default(), |message| message.kind)
    }

    /// The hash of the record after this message.
    pub(super) fn record_hash(&self) -> u128 {
        match self.kind() {
            command::MessageKind::Delta(command::RecordHash(hash)) => u128::from_le_bytes(hash),
            _ => xxh3_128(self.data()),
        }
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

    /// The number of the instance that sent it: see [`super::ClientCore::instances`].
    pub fn instance(&self) -> u16 {
        self.head.instance
    }

    /// The number of times that its subscription had got a new bookmark when it arrived, modulo
    /// 65,536.
    pub fn generation(&self) -> u16 {
        self.head.generation
    }

    /// Why it was sent.
    pub fn cause(&self) -> Cause {
        self.head.cause
    }

    /// The same message, sent for another reason.
    pub fn with_cause(mut self, cause: Cause) -> Self {
        self.set_cause(cause);
        self
    }

    /// Replaces the number of the question that it answers by the subscription that it is for.
    pub(super) fn set_subscription(&mut self, number: u32) {
        self.head.subscription = number;
    }

    pub(super) fn set_cause(&mut self, cause: Cause) {
        self.head.cause = cause;
    }

    pub(super) fn set_origin(&mut self, instance: u16, generation: u16) {
        self.head.instance = instance;
        self.head.generation = generation;
    }

    /// When the server received it.
    pub fn timestamp(&self) -> Timestamp {
        Timestamp(self.head.timestamp_ns)
    }

    /// Its lease, if a queue delivered it.
    pub fn lease(&self) -> Option<&Arc<Lease>> {
        self.lease.as_ref()
    }

    fn data_start(&self) -> usize {
        usize::from(self.head.topic_start)
            + usize::from(self.head.topic_size)
            + usize::from(self.head.correlation_size)
    }
}
