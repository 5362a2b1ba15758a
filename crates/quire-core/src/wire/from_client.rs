//! Frames that go from a client to a server (protocol.md section 3).

use super::frame::{Body, Fields, RawFrame, WireError, put_field, put_frame};
use super::settle::{Extend, Settle};
use super::upkeep::Upkeep;
use super::{CLIENT_NAME_SIZE_MAX, TOPIC_SIZE_MAX};

/// The first field of a logon, so that a stray peer is told apart at once.
pub const MAGIC: [u8; 4] = *b"QUIR";

const LOGON: u8 = 1;
const PUBLISH: u8 = 2;
const PUBLISH_BATCH: u8 = 3;
const SUBSCRIBE: u8 = 4;
const UNSUBSCRIBE: u8 = 5;
const FLUSH: u8 = 6;
const HEARTBEAT: u8 = 7;
const GOODBYE: u8 = 8;
const PAUSE: u8 = 9;
const RESUME: u8 = 10;
pub(super) const SETTLE: u8 = 11;
pub(super) const EXTEND: u8 = 12;
const QUERY: u8 = 13;
const STATS: u8 = 14;
pub(super) const UPKEEP: u8 = 15;

const FLAG_EXPIRATION: u8 = 1;

/// Anything that a client says.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the variants are named and described in protocol.md
pub enum ClientFrame<'a> {
    Logon(Logon<'a>),
    Publish(Publish<'a>),
    PublishBatch(PublishBatch<'a>),
    Subscribe(Subscribe<'a>),
    Unsubscribe { command: u32, acks: Acks, subscription: u32 },
    Flush { command: u32, acks: Acks },
    Heartbeat,
    Goodbye,
    Pause { command: u32, acks: Acks, subscriptions: SubscriptionNumbers<'a> },
    Resume { command: u32, acks: Acks, subscriptions: SubscriptionNumbers<'a> },
    Settle(Settle<'a>),
    Extend(Extend<'a>),
    Query(Query<'a>),
    Stats { command: u32, queue: Option<&'a str> },
    Upkeep(Upkeep),
}

/// Who a connection belongs to and what it wants of it.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Logon<'a> {
    /// Protocol version of the client.
    pub version: u16,
    /// The publisher's identity, 1 to 255 bytes without control characters (seed 004).
    pub client_name: &'a str,
    /// Identity for the "name in use" rule.
    pub user: Option<&'a str>,
    /// Secret of the user.
    pub password: Option<&'a str>,
    /// Heartbeat interval in milliseconds, 0 = none.
    pub heartbeat_ms: u32,
    /// Shortest time between two persisted acknowledgements in milliseconds, 0 = one per journal flush.
    pub ack_interval_ms: u32,
    /// Version of the client library, for the log.
    pub client_version: Option<&'a str>,
}

/// One message on its way in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Publish<'a> {
    /// Number in this publisher's sequence, 0 = none.
    pub sequence: u64,
    /// Lifetime in seconds, 0 = never expires; `None` = not said.
    pub expiration_s: Option<u32>,
    /// Where it goes; not yet checked to be text.
    pub topic: &'a [u8],
    /// Handed on as it is; empty = none.
    pub correlation_id: &'a [u8],
    /// The message.
    pub data: &'a [u8],
}

/// Several messages for one topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PublishBatch<'a> {
    /// What all have in common; `sequence` is that of the first, `data` is empty.
    pub head: Publish<'a>,
    /// The data of each.
    pub items: BatchItems<'a>,
}

impl<'a> PublishBatch<'a> {
    /// The messages one by one, numbered.
    pub fn messages(mut self) -> impl Iterator<Item = Publish<'a>> {
        std::iter::from_fn(move || self.next_message())
    }

    /// Takes the first message out of the batch.
    pub fn next_message(&mut self) -> Option<Publish<'a>> {
        let data = self.items.next()?;
        let publish = Publish { data, ..self.head };
        // The last sequence of a batch was checked when it was decoded; the one after it is not used.
        self.head.sequence = self.head.sequence.wrapping_add(u64::from(self.head.sequence != 0));
        Some(publish)
    }

    /// Whether all messages were taken out.
    pub fn is_empty(&self) -> bool {
        self.items.0.is_empty()
    }

    /// The batch of items that were part of a batch before, as [`BatchItems::bytes`] gives them.
    pub(crate) fn of_checked(head: Publish<'a>, items: &'a [u8]) -> Self {
        PublishBatch { head, items: BatchItems(items) }
    }
}

/// The data of the messages of a batch; their sizes were checked when the frame was decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchItems<'a>(&'a [u8]);

impl<'a> BatchItems<'a> {
    /// The items that were not taken, each behind its size.
    pub(crate) fn bytes(&self) -> &'a [u8] {
        self.0
    }
}

impl<'a> Iterator for BatchItems<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let (size, rest) = self.0.split_first_chunk::<4>()?;
        let (data, rest) = rest.split_at_checked(u32::from_le_bytes(*size) as usize)?;
        self.0 = rest;
        Some(data)
    }
}

/// Which acknowledgements a command asks for (protocol.md section 3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Acks(pub u8);

impl Acks {
    /// The command arrived.
    pub const RECEIVED: Acks = Acks(1);
    /// The command was accepted or refused.
    pub const PROCESSED: Acks = Acks(2);
    /// The operation is done: replay has caught up.
    pub const COMPLETED: Acks = Acks(4);
    /// What was published before is persisted.
    pub const PERSISTED: Acks = Acks(8);
    /// Every bit that has a meaning.
    pub const ALL: Acks = Acks(15);

    /// Both sets together.
    pub const fn and(self, other: Acks) -> Acks {
        Acks(self.0 | other.0)
    }

    /// Whether all of `other` are asked for.
    pub const fn has(self, other: Acks) -> bool {
        self.0 & other.0 == other.0
    }
}

/// What a subscription is to deliver.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Subscribe<'a> {
    /// Number that the acknowledgements echo, not 0.
    pub command: u32,
    /// The acknowledgements wanted.
    pub acks: Acks,
    /// The client's number for the subscription.
    pub subscription: u32,
    /// Exact, or a pattern.
    pub topic: &'a str,
    /// Content filter.
    pub filter: Option<&'a str>,
    /// Where replay begins; present makes it a bookmark subscription.
    pub bookmark: Option<&'a str>,
    /// See [`SubscribeOptions`].
    pub options: SubscribeOptions,
    /// For queues: the most messages outstanding; `None` = 1, 0 = barriers only (seed 000, 001).
    pub max_backlog: Option<u32>,
    /// The fastest pace (seed 003).
    pub rate: Option<&'a str>,
    /// For a multiple of the original pace: the longest wait for a message, in nanoseconds.
    pub rate_max_gap_ns: Option<u64>,
    /// At most one message per key and so long, in nanoseconds (seed 003).
    pub conflation_ns: Option<u64>,
    /// The fields that are the key, separated by commas.
    pub conflation_key: Option<&'a str>,
    /// The fields to deliver; `None` = whole messages.
    pub select: Option<&'a str>,
}

/// Which messages of a queue to show; nothing changes by it.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Query<'a> {
    /// Number that the acknowledgements echo, not 0.
    pub command: u32,
    /// The acknowledgements wanted.
    pub acks: Acks,
    /// The number that the messages carry.
    pub subscription: u32,
    /// The queue.
    pub topic: &'a str,
    /// Content filter.
    pub filter: Option<&'a str>,
    /// What to sort by; delivery order without it.
    pub order_by: Option<&'a str>,
    /// The most messages wanted.
    pub top_n: Option<u32>,
}

/// The option bits of a subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct SubscribeOptions(pub u32);

impl SubscribeOptions {
    /// Replaces the subscription with the same number, atomically.
    pub const REPLACE: SubscribeOptions = SubscribeOptions(1);
    /// After replay, messages come before they are persisted (seed 003).
    pub const LIVE: SubscribeOptions = SubscribeOptions(2);
    /// After replay, messages come when every synchronous destination has them too (seed 003).
    pub const FULLY_DURABLE: SubscribeOptions = SubscribeOptions(4);
    /// Created without delivering until it is resumed (seed 003).
    pub const PAUSED: SubscribeOptions = SubscribeOptions(8);
    /// None of the bookmarks is in the log: fail.
    pub const NOT_FOUND_FAILS: SubscribeOptions = SubscribeOptions(16);
    /// None of the bookmarks is in the log: begin now.
    pub const NOT_FOUND_NOW: SubscribeOptions = SubscribeOptions(32);
    /// Every bit that has a meaning.
    pub const ALL: SubscribeOptions = SubscribeOptions(63);

    /// Whether all of `other` are set.
    pub const fn has(self, other: SubscribeOptions) -> bool {
        self.0 & other.0 == other.0
    }

    /// Both sets together.
    pub const fn and(self, other: SubscribeOptions) -> SubscribeOptions {
        SubscribeOptions(self.0 | other.0)
    }
}

/// A list of subscription numbers, at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubscriptionNumbers<'a>(&'a [u8]);

impl SubscriptionNumbers<'_> {
    /// The numbers in the order in which they stand.
    pub fn iter(self) -> impl Iterator<Item = u32> {
        self.0.as_chunks::<4>().0.iter().map(|number| u32::from_le_bytes(*number))
    }
}

impl<'a> ClientFrame<'a> {
    /// What the frame says.
    ///
    /// # Errors
    /// [`WireError::UnknownKind`] and [`WireError::Malformed`].
    pub fn decode(frame: RawFrame<'a>) -> Result<Self, WireError> {
        match frame.kind {
            PUBLISH => Publish::decode(frame.body).map(ClientFrame::Publish),
            PUBLISH_BATCH => PublishBatch::decode(frame.body).map(ClientFrame::PublishBatch),
            LOGON => Logon::decode(frame.body).map(ClientFrame::Logon),
            SUBSCRIBE => Subscribe::decode(frame.body).map(ClientFrame::Subscribe),
            UNSUBSCRIBE => {
                let Command { command, acks, subscription, .. } = Command::decode("unsubscribe", frame.body)?;
                let subscription = subscription
                    .ok_or(WireError::Malformed { frame: "unsubscribe", field: "subscription" })?;
                Ok(ClientFrame::Unsubscribe { command, acks, subscription })
            }
            FLUSH => {
                let Command { command, acks, .. } = Command::decode("flush", frame.body)?;
                Ok(ClientFrame::Flush { command, acks })
            }
            HEARTBEAT => empty("heartbeat", frame.body, ClientFrame::Heartbeat),
            GOODBYE => empty("goodbye", frame.body, ClientFrame::Goodbye),
            PAUSE => {
                let (command, acks, subscriptions) =
                    Command::decode("pause", frame.body)?.with_subscriptions("pause")?;
                Ok(ClientFrame::Pause { command, acks, subscriptions })
            }
            RESUME => {
                let (command, acks, subscriptions) =
                    Command::decode("resume", frame.body)?.with_subscriptions("resume")?;
                Ok(ClientFrame::Resume { command, acks, subscriptions })
            }
            SETTLE => Settle::decode(frame.body).map(ClientFrame::Settle),
            EXTEND => Extend::decode(frame.body).map(ClientFrame::Extend),
            QUERY => Query::decode(frame.body).map(ClientFrame::Query),
            STATS => {
                let Command { command, topic: queue, .. } = Command::decode("stats", frame.body)?;
                Ok(ClientFrame::Stats { command, queue })
            }
            UPKEEP => Upkeep::decode(frame.body).map(ClientFrame::Upkeep),
            kind => Err(WireError::UnknownKind { kind }),
        }
    }

    /// Appends the frame to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            ClientFrame::Logon(logon) => logon.encode(out),
            ClientFrame::Publish(publish) => publish.encode(out),
            ClientFrame::PublishBatch(batch) => {
                put_publish_batch(out, &batch.head, |out| {
                    batch.items.for_each(|data| put_batch_item(out, data))
                });
            }
            ClientFrame::Subscribe(subscribe) => subscribe.encode(out),
            ClientFrame::Unsubscribe { command, acks, subscription } => put_frame(out, UNSUBSCRIBE, |out| {
                put_command(out, *command, *acks);
                put_field(out, 3, &subscription.to_le_bytes());
            }),
            ClientFrame::Flush { command, acks } => {
                put_frame(out, FLUSH, |out| put_command(out, *command, *acks))
            }
            ClientFrame::Heartbeat => put_frame(out, HEARTBEAT, |_| ()),
            ClientFrame::Goodbye => put_frame(out, GOODBYE, |_| ()),
            ClientFrame::Pause { command, acks, subscriptions } => put_frame(out, PAUSE, |out| {
                put_command(out, *command, *acks);
                put_field(out, 3, subscriptions.0);
            }),
            ClientFrame::Resume { command, acks, subscriptions } => put_frame(out, RESUME, |out| {
                put_command(out, *command, *acks);
                put_field(out, 3, subscriptions.0);
            }),
            ClientFrame::Settle(settle) => settle.encode(out),
            ClientFrame::Extend(extend) => extend.encode(out),
            ClientFrame::Query(query) => query.encode(out),
            ClientFrame::Stats { command, queue } => put_frame(out, STATS, |out| {
                put_field(out, 1, &command.to_le_bytes());
                if let Some(queue) = queue {
                    put_field(out, 4, queue.as_bytes());
                }
            }),
            ClientFrame::Upkeep(upkeep) => upkeep.encode(out),
        }
    }
}

impl<'a> SubscriptionNumbers<'a> {
    /// From the numbers as bytes, four each.
    pub fn from_bytes(bytes: &'a [u8]) -> Option<Self> {
        (!bytes.is_empty() && bytes.len().is_multiple_of(4)).then_some(SubscriptionNumbers(bytes))
    }

    /// The numbers as bytes, four each.
    pub fn as_bytes(self) -> &'a [u8] {
        self.0
    }
}

impl<'a> Publish<'a> {
    /// Appends the frame to `out`. Topic and correlation id must be within their limits; the client checks them.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put_frame(out, PUBLISH, |out| {
            self.encode_head(out);
            out.extend_from_slice(self.data);
        });
    }

    fn encode_head(&self, out: &mut Vec<u8>) {
        debug_assert!(
            self.topic.len() <= TOPIC_SIZE_MAX && self.correlation_id.len() <= super::CORRELATION_SIZE_MAX
        );
        out.push(if self.expiration_s.is_some() { FLAG_EXPIRATION } else { 0 });
        out.push(self.correlation_id.len() as u8);
        out.extend_from_slice(&(self.topic.len() as u16).to_le_bytes());
        out.extend_from_slice(&self.expiration_s.unwrap_or(0).to_le_bytes());
        out.extend_from_slice(&self.sequence.to_le_bytes());
        out.extend_from_slice(self.topic);
        out.extend_from_slice(self.correlation_id);
    }

    fn decode(body: &'a [u8]) -> Result<Self, WireError> {
        let (head, body) = Publish::decode_head("publish", body)?;
        Ok(Publish { data: body.rest(), ..head })
    }

    fn decode_head(frame: &'static str, body: &'a [u8]) -> Result<(Self, Body<'a>), WireError> {
        let mut body = Body::new(frame, body);
        let [flags, correlation_size] = body.array("head")?;
        let topic_size = body.u16("head")?;
        let expiration_s = body.u32("head")?;
        let sequence = body.u64("head")?;
        if flags & !FLAG_EXPIRATION != 0 {
            return Err(body.bad("flags"));
        }
        let topic = body.bytes(topic_size.into(), "topic size")?;
        let correlation_id = body.bytes(correlation_size.into(), "correlation size")?;
        let expiration_s = (flags & FLAG_EXPIRATION != 0).then_some(expiration_s);
        Ok((Publish { sequence, expiration_s, topic, correlation_id, data: &[] }, body))
    }
}

impl<'a> PublishBatch<'a> {
    fn decode(body: &'a [u8]) -> Result<Self, WireError> {
        let (head, body) = Publish::decode_head("publish_batch", body)?;
        let bad = body.bad("item size");
        let items = BatchItems(body.rest());
        let mut checked = items;
        let count = checked.by_ref().count() as u64;
        if count == 0 || !checked.0.is_empty() {
            return Err(bad);
        }
        if head.sequence != 0 && head.sequence.checked_add(count - 1).is_none() {
            return Err(WireError::Malformed { frame: "publish_batch", field: "sequence" });
        }
        Ok(PublishBatch { head, items })
    }
}

/// Appends a batch frame: `items` calls [`put_batch_item`] for each message, at least once.
pub fn put_publish_batch(out: &mut Vec<u8>, head: &Publish<'_>, items: impl FnOnce(&mut Vec<u8>)) {
    put_frame(out, PUBLISH_BATCH, |out| {
        head.encode_head(out);
        items(out);
    });
}

/// Appends the data of one message of a batch.
pub fn put_batch_item(out: &mut Vec<u8>, data: &[u8]) {
    out.extend_from_slice(&(data.len() as u32).to_le_bytes());
    out.extend_from_slice(data);
}

impl<'a> Logon<'a> {
    fn encode(&self, out: &mut Vec<u8>) {
        put_frame(out, LOGON, |out| {
            put_field(out, 1, &MAGIC);
            put_field(out, 2, &self.version.to_le_bytes());
            put_field(out, 3, self.client_name.as_bytes());
            if let Some(user) = self.user {
                put_field(out, 4, user.as_bytes());
            }
            if let Some(password) = self.password {
                put_field(out, 5, password.as_bytes());
            }
            put_field(out, 6, &self.heartbeat_ms.to_le_bytes());
            put_field(out, 7, &self.ack_interval_ms.to_le_bytes());
            if let Some(version) = self.client_version {
                put_field(out, 128, version.as_bytes());
            }
        });
    }

    fn decode(body: &'a [u8]) -> Result<Self, WireError> {
        let mut fields = Fields::new("logon", body);
        let mut logon = Logon::default();
        let mut magic = None;
        while let Some((tag, value)) = fields.next()? {
            match tag {
                1 => magic = Some(value),
                2 => logon.version = u16::from_le_bytes(fields.array(value, "version")?),
                3 => logon.client_name = fields.text(value, "client name")?,
                4 => logon.user = Some(fields.text(value, "user")?),
                5 => logon.password = Some(fields.text(value, "password")?),
                6 => logon.heartbeat_ms = fields.u32(value, "heartbeat")?,
                7 => logon.ack_interval_ms = fields.u32(value, "ack interval")?,
                128 => logon.client_version = Some(fields.text(value, "client version")?),
                tag => fields.unknown(tag)?,
            }
        }
        if magic != Some(&MAGIC) {
            return Err(fields.bad("magic"));
        }
        if logon.version == 0 {
            return Err(fields.bad("version"));
        }
        let name = logon.client_name;
        if name.is_empty() || name.len() > CLIENT_NAME_SIZE_MAX || name.chars().any(char::is_control) {
            return Err(fields.bad("client name"));
        }
        Ok(logon)
    }
}

impl<'a> Subscribe<'a> {
    fn encode(&self, out: &mut Vec<u8>) {
        put_frame(out, SUBSCRIBE, |out| {
            put_command(out, self.command, self.acks);
            put_field(out, 3, &self.subscription.to_le_bytes());
            put_field(out, 4, self.topic.as_bytes());
            if let Some(filter) = self.filter {
                put_field(out, 5, filter.as_bytes());
            }
            if let Some(bookmark) = self.bookmark {
                put_field(out, 6, bookmark.as_bytes());
            }
            if self.options != SubscribeOptions::default() {
                put_field(out, 7, &self.options.0.to_le_bytes());
            }
            if let Some(max_backlog) = self.max_backlog {
                put_field(out, 8, &max_backlog.to_le_bytes());
            }
            if let Some(rate) = self.rate {
                put_field(out, 9, rate.as_bytes());
            }
            if let Some(gap) = self.rate_max_gap_ns {
                put_field(out, 10, &gap.to_le_bytes());
            }
            if let Some(interval) = self.conflation_ns {
                put_field(out, 11, &interval.to_le_bytes());
            }
            if let Some(key) = self.conflation_key {
                put_field(out, 12, key.as_bytes());
            }
            if let Some(select) = self.select {
                put_field(out, 13, select.as_bytes());
            }
        });
    }

    fn decode(body: &'a [u8]) -> Result<Self, WireError> {
        let mut fields = Fields::new("subscribe", body);
        let mut subscribe = Subscribe::default();
        let (mut subscription, mut topic) = (None, None);
        while let Some((tag, value)) = fields.next()? {
            match tag {
                1 => subscribe.command = fields.u32(value, "command")?,
                2 => subscribe.acks = decode_acks(&fields, value)?,
                3 => subscription = Some(fields.u32(value, "subscription")?),
                4 => topic = Some(fields.text(value, "topic")?),
                5 => subscribe.filter = Some(fields.text(value, "filter")?),
                6 => subscribe.bookmark = Some(fields.text(value, "bookmark")?),
                7 => subscribe.options = SubscribeOptions(fields.u32(value, "options")?),
                8 => subscribe.max_backlog = Some(fields.u32(value, "max_backlog")?),
                9 => subscribe.rate = Some(fields.text(value, "rate")?),
                10 => subscribe.rate_max_gap_ns = Some(fields.u64(value, "rate_max_gap")?),
                11 => subscribe.conflation_ns = Some(fields.u64(value, "conflation")?),
                12 => subscribe.conflation_key = Some(fields.text(value, "conflation_key")?),
                13 => subscribe.select = Some(fields.text(value, "select")?),
                tag => fields.unknown(tag)?,
            }
        }
        if subscribe.command == 0 {
            return Err(fields.bad("command"));
        }
        if !SubscribeOptions::ALL.has(subscribe.options) {
            return Err(fields.bad("options"));
        }
        subscribe.subscription = subscription.ok_or_else(|| fields.bad("subscription"))?;
        subscribe.topic = topic.ok_or_else(|| fields.bad("topic"))?;
        Ok(subscribe)
    }
}

impl<'a> Query<'a> {
    fn encode(&self, out: &mut Vec<u8>) {
        put_frame(out, QUERY, |out| {
            put_command(out, self.command, self.acks);
            put_field(out, 3, &self.subscription.to_le_bytes());
            put_field(out, 4, self.topic.as_bytes());
            if let Some(filter) = self.filter {
                put_field(out, 5, filter.as_bytes());
            }
            if let Some(order_by) = self.order_by {
                put_field(out, 16, order_by.as_bytes());
            }
            if let Some(top_n) = self.top_n {
                put_field(out, 17, &top_n.to_le_bytes());
            }
        });
    }

    fn decode(body: &'a [u8]) -> Result<Self, WireError> {
        let mut fields = Fields::new("query", body);
        let mut query = Query::default();
        let (mut subscription, mut topic) = (None, None);
        while let Some((tag, value)) = fields.next()? {
            match tag {
                1 => query.command = fields.u32(value, "command")?,
                2 => query.acks = decode_acks(&fields, value)?,
                3 => subscription = Some(fields.u32(value, "subscription")?),
                4 => topic = Some(fields.text(value, "topic")?),
                5 => query.filter = Some(fields.text(value, "filter")?),
                16 => query.order_by = Some(fields.text(value, "order_by")?),
                17 => query.top_n = Some(fields.u32(value, "top_n")?),
                tag => fields.unknown(tag)?,
            }
        }
        if query.command == 0 {
            return Err(fields.bad("command"));
        }
        query.subscription = subscription.ok_or_else(|| fields.bad("subscription"))?;
        query.topic = topic.ok_or_else(|| fields.bad("topic"))?;
        Ok(query)
    }
}

/// The fields that the small commands share.
struct Command<'a> {
    command: u32,
    acks: Acks,
    topic: Option<&'a str>,
    subscription: Option<u32>,
    subscriptions: Option<&'a [u8]>,
}

impl<'a> Command<'a> {
    fn decode(frame: &'static str, body: &'a [u8]) -> Result<Self, WireError> {
        let mut fields = Fields::new(frame, body);
        let mut command = Command {
            command: 0,
            acks: Acks::default(),
            topic: None,
            subscription: None,
            subscriptions: None,
        };
        while let Some((tag, value)) = fields.next()? {
            match (tag, frame) {
                (1, _) => command.command = fields.u32(value, "command")?,
                (2, "unsubscribe" | "flush" | "pause" | "resume") => {
                    command.acks = decode_acks(&fields, value)?;
                }
                (4, "stats") => command.topic = Some(fields.text(value, "queue")?),
                (3, "unsubscribe") => command.subscription = Some(fields.u32(value, "subscription")?),
                (3, "pause" | "resume") => command.subscriptions = Some(value),
                (tag, _) => fields.unknown(tag)?,
            }
        }
        if command.command == 0 { Err(fields.bad("command")) } else { Ok(command) }
    }

    fn with_subscriptions(
        self,
        frame: &'static str,
    ) -> Result<(u32, Acks, SubscriptionNumbers<'a>), WireError> {
        let numbers = self.subscriptions.and_then(SubscriptionNumbers::from_bytes);
        Ok((self.command, self.acks, numbers.ok_or(WireError::Malformed { frame, field: "subscriptions" })?))
    }
}

fn decode_acks(fields: &Fields<'_>, value: &[u8]) -> Result<Acks, WireError> {
    let [bits] = fields.array(value, "acks")?;
    if bits > Acks::ALL.0 { Err(fields.bad("acks")) } else { Ok(Acks(bits)) }
}

fn put_command(out: &mut Vec<u8>, command: u32, acks: Acks) {
    put_field(out, 1, &command.to_le_bytes());
    put_field(out, 2, &[acks.0]);
}

fn empty<'a>(frame: &'static str, body: &[u8], value: ClientFrame<'a>) -> Result<ClientFrame<'a>, WireError> {
    Body::new(frame, body).end().map(|()| value)
}
