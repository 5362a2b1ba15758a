//! Frames that go from a client to a server (protocol.md section 3).

use super::define_queue::{decode_define_queue, encode_define_queue};
use super::frame::{
    Body, Decode, Encode, Fields, FromBody, LENGTH_SIZE, RawFrame, WireError, put_field, put_frame,
    put_headers, put_message_key, split_frame, take_headers, take_message_key,
};
use quire_command::{
    Acks, BatchItems, BegunMessages, CLIENT_NAME_SIZE_MAX, CORRELATION_SIZE_MAX, Command, Extend,
    KEY_SIZE_MAX, LinkAction, Logon, Maintain, Publish, PublishBatch, Query, Settle, SowDelete, Subject,
    Subscribe, SubscriptionNumbers, Unsubscribe, put_batch_item,
};
use quire_types::{Delay, Headers, Secret, TOPIC_SIZE_MAX, Timestamp};

/// The first field of a logon. It identifies a peer of another protocol at once.
pub const MAGIC: [u8; 4] = *b"QUIR";

const LOGON: u8 = 1;
const PUBLISH: u8 = 2;
const PUBLISH_BATCH: u8 = 3;
pub(super) const SUBSCRIBE: u8 = 4;
const UNSUBSCRIBE: u8 = 5;
const FLUSH: u8 = 6;
const HEARTBEAT: u8 = 7;
const GOODBYE: u8 = 8;
const PAUSE: u8 = 9;
const RESUME: u8 = 10;
pub(super) const SETTLE: u8 = 11;
pub(super) const EXTEND: u8 = 12;
pub(super) const QUERY: u8 = 13;
const STATS: u8 = 14;
pub(super) const MAINTAIN: u8 = 15;
const INSPECT: u8 = 16;
pub(super) const DEFINE_QUEUE: u8 = 17;
pub(super) const SOW_DELETE: u8 = 18;
const REPLICATE: u8 = 19;
const RELOAD: u8 = 20;
const DISCONNECT: u8 = 21;
const DEFINE_VIEW: u8 = 22;

const FLAG_EXPIRATION: u8 = 1;
const FLAG_HEADERS: u8 = 2;
const FLAG_DELAY: u8 = 4;
const FLAG_NOT_BEFORE: u8 = 8;
const FLAG_KEY: u8 = 16;
const FLAG_DELTA: u8 = 32;
const FLAG_NUMBERED: u8 = 64;
const FLAG_UPDATE: u8 = 128;
/// The flags that say everything, without a field in the head.
const PLAIN_FLAGS: u8 = FLAG_EXPIRATION | FLAG_DELTA | FLAG_NUMBERED | FLAG_UPDATE;

/// Where the flags of a publish frame are, and its delay if it has one; in bytes from the beginning
/// of the frame.
const PUBLISH_FLAGS_AT: usize = LENGTH_SIZE + 1;
const PUBLISH_DELAY_AT: usize = PUBLISH_FLAGS_AT + 16;

impl<'a> Decode<'a> for Command<'a> {
    #[inline(always)]
    fn decode(frame: RawFrame<'a>) -> Result<Self, WireError> {
        match frame.kind {
            PUBLISH => Publish::from_body(frame.body).map(Command::Publish),
            _ => decode_rare(frame),
        }
    }
}

/// The publish frames at the front of `bytes`, up to another frame or an unfinished one. `bytes` is
/// not changed, and [`Command::decode`] reports a frame with a mistake.
#[inline(always)]
pub fn publishes<'a>(mut bytes: &'a [u8]) -> impl Iterator<Item = Publish<'a>> {
    std::iter::from_fn(move || {
        let (frame, rest) = split_frame(bytes)?;
        bytes = rest;
        Publish::from_body((frame.kind == PUBLISH).then_some(frame.body)?).ok()
    })
}

/// Any command except a publish. It is separate, so that a publish is decoded without a call.
#[inline(never)]
fn decode_rare(frame: RawFrame<'_>) -> Result<Command<'_>, WireError> {
    match frame.kind {
        PUBLISH_BATCH => PublishBatch::from_body(frame.body).map(Command::PublishBatch),
        LOGON => Logon::from_body(frame.body).map(Command::Logon),
        SUBSCRIBE => Subscribe::from_body(frame.body).map(Command::Subscribe),
        UNSUBSCRIBE => {
            let CommandFields { command, acks, subscription, begun, begun_queues, .. } =
                CommandFields::decode("unsubscribe", frame.body)?;
            let subscription =
                subscription.ok_or(WireError::Malformed { frame: "unsubscribe", field: "subscription" })?;
            let bad = WireError::Malformed { frame: "unsubscribe", field: "begun" };
            let begun = match (begun, begun_queues) {
                (None, None) => None,
                (None, Some(_)) => return Err(bad),
                (Some(bookmarks), queues) => Some(BegunMessages::from_bytes(bookmarks, queues).ok_or(bad)?),
            };
            Ok(Command::Unsubscribe(Unsubscribe { command, acks, subscription, begun }))
        }
        FLUSH => {
            let CommandFields { command, acks, .. } = CommandFields::decode("flush", frame.body)?;
            Ok(Command::Flush { command, acks })
        }
        HEARTBEAT => empty("heartbeat", frame.body, Command::Heartbeat),
        GOODBYE => empty("goodbye", frame.body, Command::Goodbye),
        PAUSE => {
            let (command, acks, subscriptions) =
                CommandFields::decode("pause", frame.body)?.with_subscriptions("pause")?;
            Ok(Command::Pause { command, acks, subscriptions })
        }
        RESUME => {
            let (command, acks, subscriptions) =
                CommandFields::decode("resume", frame.body)?.with_subscriptions("resume")?;
            Ok(Command::Resume { command, acks, subscriptions })
        }
        SETTLE => Settle::from_body(frame.body).map(Command::Settle),
        EXTEND => Extend::from_body(frame.body).map(Command::Extend),
        QUERY => Query::from_body(frame.body).map(Command::Query),
        STATS => {
            let CommandFields { command, topic: queue, .. } = CommandFields::decode("stats", frame.body)?;
            Ok(Command::Stats { command, queue })
        }
        MAINTAIN => Maintain::from_body(frame.body).map(Command::Maintain),
        INSPECT => decode_inspect(frame.body),
        DEFINE_QUEUE => decode_define_queue(frame.body),
        SOW_DELETE => SowDelete::from_body(frame.body).map(Command::SowDelete),
        REPLICATE => decode_replicate(frame.body),
        RELOAD => {
            let CommandFields { command, .. } = CommandFields::decode("reload", frame.body)?;
            Ok(Command::Reload { command })
        }
        DISCONNECT => decode_disconnect(frame.body),
        DEFINE_VIEW => decode_define_view(frame.body),
        kind => Err(WireError::UnknownKind { kind }),
    }
}

impl Encode for Command<'_> {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Command::Logon(logon) => logon.encode(out),
            Command::Publish(publish) => publish.encode(out),
            Command::PublishBatch(batch) => {
                put_publish_batch(out, &batch.head, |out| {
                    batch.items.for_each(|data| put_batch_item(out, data))
                });
            }
            Command::Subscribe(subscribe) => subscribe.encode(out),
            Command::Unsubscribe(Unsubscribe { command, acks, subscription, begun }) => {
                put_frame(out, UNSUBSCRIBE, |out| {
                    put_command(out, *command, *acks);
                    put_field(out, 3, &subscription.to_le_bytes());
                    if let Some(begun) = begun {
                        put_field(out, 128, begun.bookmarks());
                        begun.queues().into_iter().for_each(|queues| put_field(out, 129, queues));
                    }
                });
            }
            Command::Flush { command, acks } => {
                put_frame(out, FLUSH, |out| put_command(out, *command, *acks))
            }
            Command::Heartbeat => put_frame(out, HEARTBEAT, |_| ()),
            Command::Goodbye => put_frame(out, GOODBYE, |_| ()),
            Command::Pause { command, acks, subscriptions } => put_frame(out, PAUSE, |out| {
                put_command(out, *command, *acks);
                put_field(out, 3, subscriptions.as_bytes());
            }),
            Command::Resume { command, acks, subscriptions } => put_frame(out, RESUME, |out| {
                put_command(out, *command, *acks);
                put_field(out, 3, subscriptions.as_bytes());
            }),
            Command::Settle(settle) => settle.encode(out),
            Command::Extend(extend) => extend.encode(out),
            Command::Query(query) => query.encode(out),
            Command::Stats { command, queue } => put_frame(out, STATS, |out| {
                put_field(out, 1, &command.to_le_bytes());
                if let Some(queue) = queue {
                    put_field(out, 4, queue.as_bytes());
                }
            }),
            Command::Maintain(maintain) => maintain.encode(out),
            Command::Inspect { command, subject } => encode_inspect(out, *command, subject),
            Command::DefineQueue { command, action } => encode_define_queue(out, *command, action),
            Command::DefineView { command, settings } => put_frame(out, DEFINE_VIEW, |out| {
                put_field(out, 1, &command.to_le_bytes());
                put_field(out, 5, settings.as_bytes());
            }),
            Command::SowDelete(delete) => delete.encode(out),
            Command::Replicate { command, destination, action } => put_frame(out, REPLICATE, |out| {
                put_field(out, 1, &command.to_le_bytes());
                put_field(out, 3, &[number_of(*action)]);
                put_field(out, 4, destination.as_bytes());
            }),
            Command::Reload { command } => {
                put_frame(out, RELOAD, |out| put_field(out, 1, &command.to_le_bytes()));
            }
            Command::Disconnect { command, connection, block_ms } => put_frame(out, DISCONNECT, |out| {
                put_field(out, 1, &command.to_le_bytes());
                put_field(out, 3, &connection.to_le_bytes());
                if *block_ms != 0 {
                    put_field(out, 4, &block_ms.to_le_bytes());
                }
            }),
        }
    }
}

impl Encode for Publish<'_> {
    fn encode(&self, out: &mut Vec<u8>) {
        put_frame(out, PUBLISH, |out| {
            put_publish_head(out, self);
            out.extend_from_slice(self.data);
        });
    }
}

/// Topic and correlation id must be within their limits; the client checks them.
fn put_publish_head(out: &mut Vec<u8>, head: &Publish<'_>) {
    debug_assert!(head.topic.len() <= TOPIC_SIZE_MAX && head.correlation_id.len() <= CORRELATION_SIZE_MAX);
    debug_assert!(head.key.len() <= KEY_SIZE_MAX);
    let expires = if head.expiration_s.is_some() { FLAG_EXPIRATION } else { 0 };
    let headers = if head.headers.is_empty() { 0 } else { FLAG_HEADERS };
    let (delay, delay_ns) = delay_fields(head.delay);
    let key = if head.key.is_empty() { 0 } else { FLAG_KEY };
    let delta = if head.is_delta { FLAG_DELTA } else { 0 };
    let numbered = if head.is_numbered { FLAG_NUMBERED } else { 0 };
    let update = if head.is_update { FLAG_UPDATE } else { 0 };
    out.push(expires | headers | delay | key | delta | numbered | update);
    out.push(head.correlation_id.len() as u8);
    out.extend_from_slice(&(head.topic.len() as u16).to_le_bytes());
    out.extend_from_slice(&head.expiration_s.unwrap_or(0).to_le_bytes());
    out.extend_from_slice(&head.sequence.to_le_bytes());
    if delay != 0 {
        out.extend_from_slice(&delay_ns.to_le_bytes());
    }
    if !head.headers.is_empty() {
        put_headers(out, head.headers);
    }
    if !head.key.is_empty() {
        put_message_key(out, head.key);
    }
    out.extend_from_slice(head.topic);
    out.extend_from_slice(head.correlation_id);
}

/// The flag of a delay, 0 for none, and its field.
fn delay_fields(delay: Delay) -> (u8, u64) {
    match delay {
        Delay::None => (0, 0),
        Delay::For { ns } => (FLAG_DELAY, ns),
        Delay::Until(Timestamp(ns)) => (FLAG_NOT_BEFORE, ns),
    }
}

/// Changes the delay of a publish frame that has one. Its size stays the same.
pub fn replace_delay(frame: &mut [u8], delay: Delay) {
    let (flag, ns) = delay_fields(delay);
    debug_assert!(flag != 0 && frame[PUBLISH_FLAGS_AT] & (FLAG_DELAY | FLAG_NOT_BEFORE) != 0);
    frame[PUBLISH_FLAGS_AT] = frame[PUBLISH_FLAGS_AT] & !(FLAG_DELAY | FLAG_NOT_BEFORE) | flag;
    frame[PUBLISH_DELAY_AT..][..8].copy_from_slice(&ns.to_le_bytes());
}

impl<'a> FromBody<'a> for Publish<'a> {
    // A call would copy the result: 3 % of a publish.
    #[inline(always)]
    fn from_body(body: &'a [u8]) -> Result<Self, WireError> {
        let (head, body) = take_publish_head("publish", body)?;
        Ok(Publish { data: body.rest(), ..head })
    }
}

#[inline]
fn take_publish_head<'a>(frame: &'static str, body: &'a [u8]) -> Result<(Publish<'a>, Body<'a>), WireError> {
    let mut body = Body::new(frame, body);
    let [flags, correlation_size] = body.array("head")?;
    let topic_size = body.u16("head")?;
    let expiration_s = body.u32("head")?;
    let sequence = body.u64("head")?;
    let Additions { delay, headers, key } = match flags & !PLAIN_FLAGS {
        0 => Additions::NONE,
        flags => take_additions(&mut body, flags)?,
    };
    let topic = body.bytes(topic_size.into(), "topic size")?;
    let correlation_id = body.bytes(correlation_size.into(), "correlation size")?;
    let expiration_s = (flags & FLAG_EXPIRATION != 0).then_some(expiration_s);
    let is_delta = flags & FLAG_DELTA != 0;
    let is_numbered = flags & FLAG_NUMBERED != 0;
    let is_update = flags & FLAG_UPDATE != 0;
    let publish = Publish {
        sequence,
        expiration_s,
        delay,
        topic,
        correlation_id,
        headers,
        key,
        is_delta,
        is_update,
        is_numbered,
        data: &[],
    };
    Ok((publish, body))
}

/// The parts that few publishes have.
struct Additions<'a> {
    delay: Delay,
    headers: Headers<'a>,
    key: &'a [u8],
}

impl Additions<'_> {
    const NONE: Self = Additions { delay: Delay::None, headers: Headers::NONE, key: &[] };
}

/// Separate from [`take_publish_head`], so that a message without them costs one comparison.
#[inline(never)]
fn take_additions<'a>(body: &mut Body<'a>, flags: u8) -> Result<Additions<'a>, WireError> {
    let delay = match flags & !(FLAG_HEADERS | FLAG_KEY) {
        0 => Delay::None,
        FLAG_DELAY => Delay::For { ns: body.u64("delay")? },
        FLAG_NOT_BEFORE => Delay::Until(Timestamp(body.u64("delay")?)),
        _ => return Err(body.bad("flags")),
    };
    let headers = if flags & FLAG_HEADERS != 0 { take_headers(body)? } else { Headers::NONE };
    let key = if flags & FLAG_KEY != 0 { take_message_key(body)? } else { &[] };
    Ok(Additions { delay, headers, key })
}

impl<'a> FromBody<'a> for PublishBatch<'a> {
    #[inline(never)]
    fn from_body(body: &'a [u8]) -> Result<Self, WireError> {
        let (head, body) = take_publish_head("publish_batch", body)?;
        let bad = body.bad("item size");
        let (items, count) = BatchItems::from_bytes(body.rest()).ok_or(bad)?;
        if head.sequence != 0 && head.sequence.checked_add(count - 1).is_none() {
            return Err(WireError::Malformed { frame: "publish_batch", field: "sequence" });
        }
        Ok(PublishBatch { head, items })
    }
}

/// Appends a batch frame: `items` calls [`put_batch_item`] for each message, at least once.
pub fn put_publish_batch(out: &mut Vec<u8>, head: &Publish<'_>, items: impl FnOnce(&mut Vec<u8>)) {
    put_frame(out, PUBLISH_BATCH, |out| {
        put_publish_head(out, head);
        items(out);
    });
}

impl Encode for Logon<'_> {
    fn encode(&self, out: &mut Vec<u8>) {
        put_frame(out, LOGON, |out| {
            put_field(out, 1, &MAGIC);
            put_field(out, 2, &self.version.to_le_bytes());
            put_field(out, 3, self.client_name.as_bytes());
            if let Some(user) = self.user {
                put_field(out, 4, user.as_bytes());
            }
            if let Some(password) = self.password {
                put_field(out, 5, password.0.as_bytes());
            }
            if let Some(token) = self.token {
                put_field(out, 8, token.0.as_bytes());
            }
            put_field(out, 6, &self.heartbeat_ms.to_le_bytes());
            put_field(out, 7, &self.ack_interval_ms.to_le_bytes());
            if let Some(version) = self.client_version {
                put_field(out, 128, version.as_bytes());
            }
            if self.incarnation != 0 {
                put_field(out, 129, &self.incarnation.to_le_bytes());
                put_field(out, 130, &self.connection_number.to_le_bytes());
            }
            if self.run != 0 {
                put_field(out, 131, &self.run.to_le_bytes());
                put_field(out, 132, &self.persisted.to_le_bytes());
            }
            if self.observes {
                put_field(out, 133, &[]);
            }
        });
    }
}

impl<'a> FromBody<'a> for Logon<'a> {
    fn from_body(body: &'a [u8]) -> Result<Self, WireError> {
        let mut fields = Fields::new("logon", body);
        let mut logon = Logon::default();
        let mut magic = None;
        while let Some((tag, value)) = fields.next()? {
            match tag {
                1 => magic = Some(value),
                2 => logon.version = u16::from_le_bytes(fields.array(value, "version")?),
                3 => logon.client_name = fields.text(value, "client name")?,
                4 => logon.user = Some(fields.text(value, "user")?),
                5 => logon.password = Some(Secret(fields.text(value, "password")?)),
                6 => logon.heartbeat_ms = fields.u32(value, "heartbeat")?,
                7 => logon.ack_interval_ms = fields.u32(value, "ack interval")?,
                8 => logon.token = Some(Secret(fields.text(value, "token")?)),
                128 => logon.client_version = Some(fields.text(value, "client version")?),
                129 => logon.incarnation = u64::from_le_bytes(fields.array(value, "incarnation")?),
                130 => logon.connection_number = fields.u32(value, "connection number")?,
                131 => logon.run = u64::from_le_bytes(fields.array(value, "run")?),
                132 => logon.persisted = u64::from_le_bytes(fields.array(value, "persisted")?),
                133 => {
                    let [] = fields.array(value, "observes")?;
                    logon.observes = true;
                }
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

fn encode_inspect(out: &mut Vec<u8>, command: u32, subject: &Subject<'_>) {
    put_frame(out, INSPECT, |out| {
        put_field(out, 1, &command.to_le_bytes());
        match subject {
            Subject::Server => put_field(out, 3, &[SERVER]),
            Subject::Clients { after } => {
                put_field(out, 3, &[CLIENTS]);
                put_field(out, 4, &after.to_le_bytes());
            }
            Subject::Topics { after } => {
                put_field(out, 3, &[TOPICS]);
                put_field(out, 5, after.as_bytes());
            }
            Subject::Replication => put_field(out, 3, &[REPLICATION]),
            Subject::Messages { question } => {
                put_field(out, 3, &[MESSAGES]);
                put_field(out, 7, question);
            }
            Subject::Access { question } => {
                put_field(out, 3, &[ACCESS]);
                put_field(out, 7, question);
            }
            Subject::Statistics { question } => {
                put_field(out, 3, &[STATISTICS]);
                put_field(out, 7, question);
            }
            Subject::Subscriptions { after_connection, after_subscription } => {
                put_field(out, 3, &[SUBSCRIPTIONS]);
                put_field(out, 4, &after_connection.to_le_bytes());
                put_field(out, 6, &after_subscription.to_le_bytes());
            }
        }
    });
}

fn decode_replicate(body: &[u8]) -> Result<Command<'_>, WireError> {
    let mut fields = Fields::new("replicate", body);
    let (mut command, mut action, mut destination) = (0, 0, "");
    while let Some((tag, value)) = fields.next()? {
        match tag {
            1 => command = fields.u32(value, "command")?,
            3 => [action] = fields.array(value, "action")?,
            4 => destination = fields.text(value, "destination")?,
            tag => fields.unknown(tag)?,
        }
    }
    let known = LINK_ACTIONS.into_iter().find(|known| number_of(*known) == action);
    match known {
        Some(action) if command != 0 && has_right_name(action, destination) => {
            Ok(Command::Replicate { command, destination, action })
        }
        _ => Err(fields.bad("command, action and destination")),
    }
}

fn decode_disconnect(body: &[u8]) -> Result<Command<'_>, WireError> {
    let mut fields = Fields::new("disconnect", body);
    let (mut command, mut connection, mut block_ms) = (0, None, 0);
    while let Some((tag, value)) = fields.next()? {
        match tag {
            1 => command = fields.u32(value, "command")?,
            3 => connection = Some(fields.u64(value, "connection")?),
            4 => block_ms = fields.u32(value, "block_ms")?,
            tag => fields.unknown(tag)?,
        }
    }
    match connection {
        Some(connection) if command != 0 => Ok(Command::Disconnect { command, connection, block_ms }),
        _ => Err(fields.bad("command and connection")),
    }
}

fn decode_define_view(body: &[u8]) -> Result<Command<'_>, WireError> {
    let mut fields = Fields::new("define_view", body);
    let (mut command, mut settings) = (0, None);
    while let Some((tag, value)) = fields.next()? {
        match tag {
            1 => command = fields.u32(value, "command")?,
            5 => settings = Some(fields.text(value, "settings")?),
            tag => fields.unknown(tag)?,
        }
    }
    match settings {
        Some(settings) if command != 0 => Ok(Command::DefineView { command, settings }),
        _ => Err(fields.bad("command and settings")),
    }
}

fn decode_inspect(body: &[u8]) -> Result<Command<'_>, WireError> {
    let mut fields = Fields::new("inspect", body);
    let (mut command, mut subject, mut connection, mut topic, mut subscription) = (0, 0, None, None, None);
    let mut question = None;
    while let Some((tag, value)) = fields.next()? {
        match tag {
            1 => command = fields.u32(value, "command")?,
            3 => [subject] = fields.array(value, "subject")?,
            4 => connection = Some(fields.u64(value, "after_connection")?),
            5 => topic = Some(fields.text(value, "after_topic")?),
            6 => subscription = Some(fields.u32(value, "after_subscription")?),
            7 => question = Some(value),
            tag => fields.unknown(tag)?,
        }
    }
    if command == 0 {
        return Err(fields.bad("command"));
    }
    let subject = match (subject, connection, topic, subscription, question) {
        (SERVER, None, None, None, None) => Subject::Server,
        (CLIENTS, Some(after), None, None, None) => Subject::Clients { after },
        (TOPICS, None, Some(after), None, None) => Subject::Topics { after },
        (REPLICATION, None, None, None, None) => Subject::Replication,
        (SUBSCRIPTIONS, Some(after_connection), None, Some(after_subscription), None) => {
            Subject::Subscriptions { after_connection, after_subscription }
        }
        (MESSAGES, None, None, None, Some(question)) => Subject::Messages { question },
        (ACCESS, None, None, None, Some(question)) => Subject::Access { question },
        (STATISTICS, None, None, None, Some(question)) => Subject::Statistics { question },
        _ => return Err(fields.bad("subject")),
    };
    Ok(Command::Inspect { command, subject })
}

/// `subject` of an `inspect`.
const SERVER: u8 = 1;
const CLIENTS: u8 = 2;
const TOPICS: u8 = 3;
const REPLICATION: u8 = 4;
const SUBSCRIPTIONS: u8 = 5;
const MESSAGES: u8 = 6;
const ACCESS: u8 = 7;
const STATISTICS: u8 = 8;

const LINK_ACTIONS: [LinkAction; 7] = [
    LinkAction::Downgrade,
    LinkAction::Upgrade,
    LinkAction::Pause,
    LinkAction::Resume,
    LinkAction::Admit,
    LinkAction::Compare,
    LinkAction::Accept,
];

/// `action` of a `replicate`.
fn number_of(action: LinkAction) -> u8 {
    match action {
        LinkAction::Downgrade => 1,
        LinkAction::Upgrade => 2,
        LinkAction::Pause => 3,
        LinkAction::Resume => 4,
        LinkAction::Admit => 5,
        LinkAction::Compare => 6,
        LinkAction::Accept => 7,
    }
}

/// Whether a `replicate` has a name where its action requires one.
fn has_right_name(action: LinkAction, destination: &str) -> bool {
    match action {
        LinkAction::Admit => destination.is_empty(),
        // Without a publisher, the whole gap.
        LinkAction::Accept => true,
        _ => !destination.is_empty(),
    }
}

/// The fields that the small commands share.
struct CommandFields<'a> {
    command: u32,
    acks: Acks,
    topic: Option<&'a str>,
    subscription: Option<u32>,
    subscriptions: Option<&'a [u8]>,
    begun: Option<&'a [u8]>,
    begun_queues: Option<&'a [u8]>,
}

impl<'a> CommandFields<'a> {
    fn decode(frame: &'static str, body: &'a [u8]) -> Result<Self, WireError> {
        let mut fields = Fields::new(frame, body);
        let mut command = CommandFields {
            command: 0,
            acks: Acks::default(),
            topic: None,
            subscription: None,
            subscriptions: None,
            begun: None,
            begun_queues: None,
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
                (128, "unsubscribe") => command.begun = Some(value),
                (129, "unsubscribe") => command.begun_queues = Some(value),
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

pub(super) fn decode_acks(fields: &Fields<'_>, value: &[u8]) -> Result<Acks, WireError> {
    let [bits] = fields.array(value, "acks")?;
    if bits > Acks::ALL.0 { Err(fields.bad("acks")) } else { Ok(Acks(bits)) }
}

pub(super) fn put_command(out: &mut Vec<u8>, command: u32, acks: Acks) {
    put_field(out, 1, &command.to_le_bytes());
    put_field(out, 2, &[acks.0]);
}

fn empty<'a>(frame: &'static str, body: &[u8], value: Command<'a>) -> Result<Command<'a>, WireError> {
    Body::new(frame, body).end().map(|()| value)
}
