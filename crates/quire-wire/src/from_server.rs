//! Frames that go from a server to a client (protocol.md section 4).

use super::frame::{
    Body, Decode, Encode, Fields, FromBody, LENGTH_SIZE, RawFrame, WireError, put_field, put_frame,
    put_headers, put_message_key, take_headers, take_message_key,
};
use quire_command::{
    Ack, AckKind, Code, FailureScope, Keys, LeaseEnd, LoggedOn, Message, MessageKind, OofReason, PlaceList,
    Queued, RecordHash, Reply, SubscriptionNumbers,
};
use quire_types::Headers;

const LOGGED_ON: u8 = 64;
const ACK: u8 = 65;
const PERSISTED: u8 = 66;
const PUBLISH_FAILED: u8 = 67;
const MESSAGE: u8 = 68;
const ERROR: u8 = 69;
const HEARTBEAT: u8 = 70;
const SUBSCRIPTION_ENDED: u8 = 71;
const STATS: u8 = 72;
const LEASE_LOST: u8 = 73;
const RESUME_POSITION: u8 = 74;
const JOURNAL_FILE: u8 = 75;
const PLACES: u8 = 76;

const FLAG_BOOKMARK: u8 = 1;
const FLAG_QUEUED: u8 = 2;
const FLAG_QUEUE_NAME: u8 = 4;
const FLAG_HEADERS: u8 = 8;
const FLAG_KEY: u8 = 16;
const FLAG_RECORD: u8 = 32;
const FLAG_OOF: u8 = 64;
const FLAG_DELTA: u8 = 128;

/// The bits of the features in a `logged_on`.
const FEATURE_REASONS: u32 = 1;

/// Bytes of a `message` before its topic.
const HEAD_SIZE: usize = 32;

/// Bytes of the queue fields of a message, before the queue's name.
const QUEUED_SIZE: usize = 24;

impl<'a> Decode<'a> for Reply<'a> {
    fn decode(frame: RawFrame<'a>) -> Result<Self, WireError> {
        match frame.kind {
            MESSAGE => decode_message(frame.body).map(Reply::Message),
            PERSISTED => {
                let mut body = Body::new("persisted", frame.body);
                let sequence = body.u64("sequence")?;
                body.end()?;
                Ok(Reply::Persisted { sequence })
            }
            ACK => Ack::from_body(frame.body).map(Reply::Ack),
            LOGGED_ON => LoggedOn::from_body(frame.body).map(Reply::LoggedOn),
            PUBLISH_FAILED => {
                let mut body = Body::new("publish_failed", frame.body);
                let sequence = body.u64("sequence")?;
                let code = decode_code(&mut body)?;
                let scope = match body.array("scope")? {
                    [0, 0] => FailureScope::One,
                    [1, 0] => FailureScope::AllFromHere,
                    _ => return Err(body.bad("scope")),
                };
                Ok(Reply::PublishFailed { sequence, code, scope, reason: decode_reason(body)? })
            }
            ERROR => {
                let mut body = Body::new("error", frame.body);
                let code = decode_code(&mut body)?;
                body.u16("padding")?;
                Ok(Reply::Error { code, reason: decode_reason(body)? })
            }
            HEARTBEAT => Body::new("heartbeat", frame.body).end().map(|()| Reply::Heartbeat),
            SUBSCRIPTION_ENDED => {
                let mut body = Body::new("subscription_ended", frame.body);
                let subscription = body.u32("subscription")?;
                let code = decode_code(&mut body)?;
                body.u16("padding")?;
                Ok(Reply::SubscriptionEnded { subscription, code, reason: decode_reason(body)? })
            }
            STATS => {
                let (command, json) = decode_answer("stats", frame.body)?;
                Ok(Reply::Stats { command, json })
            }
            LEASE_LOST => {
                let mut body = Body::new("lease_lost", frame.body);
                let subscription = body.u32("subscription")?;
                let reason = match body.array("reason")? {
                    [1, 0, 0, 0] => LeaseEnd::Expired,
                    [2, 0, 0, 0] => LeaseEnd::SettledByAnother,
                    [3, 0, 0, 0] => LeaseEnd::MessageExpired,
                    _ => return Err(body.bad("reason")),
                };
                let (publisher, sequence) = (body.u64("bookmark")?, body.u64("bookmark")?);
                let bad = body.bad("queue");
                let queue = std::str::from_utf8(body.rest()).map_err(|_| bad)?;
                let queue = (!queue.is_empty()).then_some(queue);
                Ok(Reply::LeaseLost { subscription, reason, publisher, sequence, queue })
            }
            RESUME_POSITION => {
                let mut body = Body::new("resume_position", frame.body);
                let (publisher, sequence) = (body.u64("bookmark")?, body.u64("bookmark")?);
                let bad = body.bad("subscriptions");
                let subscriptions = SubscriptionNumbers::from_bytes(body.rest()).ok_or(bad)?;
                Ok(Reply::ResumePosition { publisher, sequence, subscriptions })
            }
            JOURNAL_FILE => {
                let (command, json) = decode_answer("journal_file", frame.body)?;
                Ok(Reply::JournalFile { command, json })
            }
            PLACES => {
                let mut body = Body::new("places", frame.body);
                let size = body.u32("size")?;
                let bad = body.bad("places");
                let places = PlaceList::from_bytes(body.bytes(size as usize, "places")?).ok_or(bad)?;
                let bad = body.bad("subscriptions");
                let subscriptions = SubscriptionNumbers::from_bytes(body.rest()).ok_or(bad)?;
                Ok(Reply::Places { places, subscriptions })
            }
            kind => Err(WireError::UnknownKind { kind }),
        }
    }
}

impl Encode for Reply<'_> {
    fn encode(&self, out: &mut Vec<u8>) {
        match *self {
            Reply::Message(ref message) => message.encode(out),
            Reply::Persisted { sequence } => {
                put_frame(out, PERSISTED, |out| out.extend_from_slice(&sequence.to_le_bytes()));
            }
            Reply::Ack(ref ack) => ack.encode(out),
            Reply::LoggedOn(ref logged_on) => logged_on.encode(out),
            Reply::PublishFailed { sequence, code, scope, reason } => put_frame(out, PUBLISH_FAILED, |out| {
                out.extend_from_slice(&sequence.to_le_bytes());
                out.extend_from_slice(&(code as u16).to_le_bytes());
                out.extend_from_slice(&[scope as u8, 0]);
                out.extend_from_slice(reason.as_bytes());
            }),
            Reply::Error { code, reason } => put_frame(out, ERROR, |out| {
                out.extend_from_slice(&(code as u16).to_le_bytes());
                out.extend_from_slice(&[0; 2]);
                out.extend_from_slice(reason.as_bytes());
            }),
            Reply::Heartbeat => put_frame(out, HEARTBEAT, |_| ()),
            Reply::SubscriptionEnded { subscription, code, reason } => {
                put_frame(out, SUBSCRIPTION_ENDED, |out| {
                    out.extend_from_slice(&subscription.to_le_bytes());
                    out.extend_from_slice(&(code as u16).to_le_bytes());
                    out.extend_from_slice(&[0; 2]);
                    out.extend_from_slice(reason.as_bytes());
                })
            }
            Reply::Stats { command, json } => put_answer(out, STATS, command, json),
            Reply::LeaseLost { subscription, reason, publisher, sequence, queue } => {
                put_frame(out, LEASE_LOST, |out| {
                    out.extend_from_slice(&subscription.to_le_bytes());
                    out.extend_from_slice(&[reason as u8, 0, 0, 0]);
                    out.extend_from_slice(&publisher.to_le_bytes());
                    out.extend_from_slice(&sequence.to_le_bytes());
                    out.extend_from_slice(queue.unwrap_or_default().as_bytes());
                });
            }
            Reply::ResumePosition { publisher, sequence, subscriptions } => {
                put_frame(out, RESUME_POSITION, |out| {
                    out.extend_from_slice(&publisher.to_le_bytes());
                    out.extend_from_slice(&sequence.to_le_bytes());
                    out.extend_from_slice(subscriptions.as_bytes());
                })
            }
            Reply::JournalFile { command, json } => put_answer(out, JOURNAL_FILE, command, json),
            Reply::Places { places, subscriptions } => put_frame(out, PLACES, |out| {
                out.extend_from_slice(&(places.as_bytes().len() as u32).to_le_bytes());
                out.extend_from_slice(places.as_bytes());
                out.extend_from_slice(subscriptions.as_bytes());
            }),
        }
    }
}

/// Appends to `out` the frames that are not messages. The last frame may be cut off.
pub fn copy_others_than_messages(frames: &[u8], out: &mut Vec<u8>) {
    let mut rest = frames;
    while let Some((size, after)) = rest.split_first_chunk::<4>() {
        // The size counts the kind and the body.
        let size = usize::try_from(u32::from_le_bytes(*size)).unwrap_or(usize::MAX);
        let (frame, next) = rest.split_at(rest.len().min(size.saturating_add(4)));
        if after.first() != Some(&MESSAGE) {
            out.extend_from_slice(frame);
        }
        rest = next;
    }
}

/// The messages among whole frames that this instance made.
pub fn messages(frames: &[u8]) -> impl Iterator<Item = Message<'_>> {
    let mut rest = frames;
    std::iter::from_fn(move || {
        loop {
            let (size, after) = rest.split_first_chunk::<LENGTH_SIZE>()?;
            let (frame, next) = after.split_at_checked(usize::try_from(u32::from_le_bytes(*size)).ok()?)?;
            rest = next;
            if let Some((&MESSAGE, body)) = frame.split_first()
                && let Ok(message) = decode_message(body)
            {
                return Some(message);
            }
        }
    })
}

/// Copies the bookmark of the `message` frame in `from` to the frame `to`.
pub fn copy_bookmark(from: &[u8], to: &mut [u8]) {
    to[5] = (to[5] & !FLAG_BOOKMARK) | (from[5] & FLAG_BOOKMARK);
    to[13..29].copy_from_slice(&from[13..29]);
}

impl Encode for Message<'_> {
    fn encode(&self, out: &mut Vec<u8>) {
        put_message_head(self, self.data.len(), out);
        out.extend_from_slice(self.data);
    }
}

/// Appends the frame of a message without the data. The data must directly follow it.
pub fn encode_without_data(message: &Message<'_>, out: &mut Vec<u8>) {
    put_message_head(message, 0, out);
}

/// Appends everything before the data of a message. `data_size` bytes of data follow.
#[inline]
fn put_message_head(message: &Message<'_>, data_size: usize, out: &mut Vec<u8>) {
    debug_assert!(message.kind == MessageKind::Publish || !message.key.is_empty());
    match message.headers.as_bytes().len() | message.key.len() {
        0 => put_head::<false>(message, data_size, out),
        _ => put_head_with_additions(message, data_size, out),
    }
}

/// Separate from [`put_message_head`], so that a message with neither headers nor a key costs one
/// comparison.
#[inline(never)]
fn put_head_with_additions(message: &Message<'_>, data_size: usize, out: &mut Vec<u8>) {
    put_head::<true>(message, data_size, out);
}

#[inline(always)]
fn put_head<const ADDITIONS: bool>(message: &Message<'_>, data_size: usize, out: &mut Vec<u8>) {
    let queued_size = |queued: Queued<'_>| QUEUED_SIZE + queued.queue.map_or(0, |queue| 2 + queue.len());
    // Bytes of the frame after its length.
    let size = 1
        + HEAD_SIZE
        + message.queued.map_or(0, queued_size)
        + if ADDITIONS { additions_size(message) } else { 0 }
        + message.topic.len()
        + message.correlation_id.len()
        + message.data.len();
    let needed = LENGTH_SIZE + size - message.data.len() + data_size;
    if out.capacity() - out.len() < needed {
        out.reserve(needed);
    }
    let (publisher, sequence) = message.bookmark.unwrap_or((0, 0));
    let queued_flags =
        |queued: Queued<'_>| FLAG_QUEUED | if queued.queue.is_some() { FLAG_QUEUE_NAME } else { 0 };
    // The most frequent frame: its fixed part is assembled first and copied once.
    let mut head = [0; LENGTH_SIZE + 1 + HEAD_SIZE];
    put_at(&mut head, 0, (size as u32).to_le_bytes());
    head[4] = MESSAGE;
    head[5] = if message.bookmark.is_some() { FLAG_BOOKMARK } else { 0 }
        | message.queued.map_or(0, queued_flags)
        | if ADDITIONS { addition_flags(message) } else { 0 };
    head[6] = message.correlation_id.len() as u8;
    put_at(&mut head, 7, (message.topic.len() as u16).to_le_bytes());
    put_at(&mut head, 9, message.subscription.to_le_bytes());
    put_at(&mut head, 13, publisher.to_le_bytes());
    put_at(&mut head, 21, sequence.to_le_bytes());
    put_at(&mut head, 29, message.timestamp_ns.to_le_bytes());
    out.extend_from_slice(&head);
    if let Some(queued) = &message.queued {
        put_queued(out, queued);
    }
    if ADDITIONS {
        put_additions(message, out);
    }
    out.extend_from_slice(message.topic);
    // Even a copy of no bytes costs a call.
    if !message.correlation_id.is_empty() {
        out.extend_from_slice(message.correlation_id);
    }
}

/// Puts a number in its place: a store, also in a build that does not inline a copy.
#[inline]
fn put_at<const N: usize>(head: &mut [u8], at: usize, number: [u8; N]) {
    if let Some((place, _)) = head[at..].split_first_chunk_mut() {
        *place = number;
    }
}

/// Bytes of the headers, the key, and the reason or the hash of a message.
fn additions_size(message: &Message<'_>) -> usize {
    let headers = if message.headers.is_empty() { 0 } else { 2 + message.headers.as_bytes().len() };
    let key = if message.key.is_empty() { 0 } else { 1 + message.key.len() };
    let kind = match message.kind {
        MessageKind::Publish | MessageKind::Record | MessageKind::Delete => 0,
        MessageKind::Oof(_) => 1,
        MessageKind::Delta(RecordHash(hash)) => hash.len(),
    };
    headers + key + kind
}

fn addition_flags(message: &Message<'_>) -> u8 {
    let kind = match message.kind {
        MessageKind::Publish => 0,
        MessageKind::Record => FLAG_RECORD,
        MessageKind::Oof(_) => FLAG_OOF,
        MessageKind::Delta(_) => FLAG_DELTA,
        MessageKind::Delete => FLAG_RECORD | FLAG_OOF,
    };
    let headers = if message.headers.is_empty() { 0 } else { FLAG_HEADERS };
    let key = if message.key.is_empty() { 0 } else { FLAG_KEY };
    kind | headers | key
}

fn put_additions(message: &Message<'_>, out: &mut Vec<u8>) {
    if !message.headers.is_empty() {
        put_headers(out, message.headers);
    }
    if !message.key.is_empty() {
        put_message_key(out, message.key);
    }
    match message.kind {
        MessageKind::Publish | MessageKind::Record | MessageKind::Delete => {}
        MessageKind::Oof(reason) => out.push(reason as u8),
        MessageKind::Delta(RecordHash(hash)) => out.extend_from_slice(&hash),
    }
}

/// The body of the frame of a message, as [`decode_message`] reads it.
pub fn message_body(message: &Message<'_>) -> Vec<u8> {
    let mut frame = Vec::new();
    message.encode(&mut frame);
    frame.split_off(LENGTH_SIZE + 1)
}

/// The message whose frame has this body.
///
/// # Errors
/// [`WireError::Malformed`] for other bytes.
pub fn decode_message(body: &[u8]) -> Result<Message<'_>, WireError> {
    match body.first() {
        Some(flags) if flags & ADDITIONS != 0 => decode_with_additions(body),
        _ => decode::<false>(body),
    }
}

/// The flags of parts that few messages have.
const ADDITIONS: u8 = FLAG_HEADERS | FLAG_KEY | FLAG_RECORD | FLAG_OOF | FLAG_DELTA;

/// Separate from [`decode_message`], so that a message with neither headers nor a key costs one
/// comparison.
#[inline(never)]
fn decode_with_additions(body: &[u8]) -> Result<Message<'_>, WireError> {
    decode::<true>(body)
}

#[inline(always)]
fn decode<const HAS_ADDITIONS: bool>(body: &[u8]) -> Result<Message<'_>, WireError> {
    let mut body = Body::new("message", body);
    let [flags, correlation_size] = body.array("head")?;
    let topic_size = body.u16("head")?;
    let subscription = body.u32("head")?;
    let (publisher, sequence) = (body.u64("head")?, body.u64("head")?);
    let timestamp_ns = body.u64("head")?;
    let known = if HAS_ADDITIONS { FLAG_BOOKMARK | ADDITIONS } else { FLAG_BOOKMARK };
    let queued = match flags & !known {
        0 => None,
        FLAG_QUEUED => Some(take_queued(&mut body, false)?),
        flags if flags == FLAG_QUEUED | FLAG_QUEUE_NAME => Some(take_queued(&mut body, true)?),
        _ => return Err(body.bad("flags")),
    };
    let (headers, key, kind) = match HAS_ADDITIONS {
        true => take_additions(&mut body, flags)?,
        false => (Headers::NONE, &[][..], MessageKind::Publish),
    };
    let topic = body.bytes(topic_size.into(), "topic size")?;
    let correlation_id = body.bytes(correlation_size.into(), "correlation size")?;
    let bookmark = (flags & FLAG_BOOKMARK != 0).then_some((publisher, sequence));
    let data = body.rest();
    if kind == MessageKind::Delete && Keys::from_bytes(data).is_none() {
        return Err(WireError::Malformed { frame: "message", field: "keys" });
    }
    Ok(Message {
        subscription,
        bookmark,
        timestamp_ns,
        queued,
        topic,
        correlation_id,
        headers,
        key,
        kind,
        data,
    })
}

fn take_additions<'a>(
    body: &mut Body<'a>,
    flags: u8,
) -> Result<(Headers<'a>, &'a [u8], MessageKind), WireError> {
    let headers = if flags & FLAG_HEADERS != 0 { take_headers(body)? } else { Headers::NONE };
    let key = if flags & FLAG_KEY != 0 { take_message_key(body)? } else { &[] };
    let kind = match flags & (FLAG_KEY | FLAG_RECORD | FLAG_OOF | FLAG_DELTA) {
        0 | FLAG_KEY => MessageKind::Publish,
        flags if flags == FLAG_KEY | FLAG_RECORD => MessageKind::Record,
        flags if flags == FLAG_KEY | FLAG_OOF => MessageKind::Oof(match body.array("reason")? {
            [1] => OofReason::Deleted,
            [2] => OofReason::Expired,
            [3] => OofReason::Match,
            [4] => OofReason::Entitlement,
            _ => return Err(body.bad("reason")),
        }),
        flags if flags == FLAG_KEY | FLAG_RECORD | FLAG_OOF => MessageKind::Delete,
        flags if flags == FLAG_KEY | FLAG_DELTA => MessageKind::Delta(RecordHash(body.array("hash")?)),
        _ => return Err(body.bad("flags")),
    };
    Ok((headers, key, kind))
}

fn put_queued(out: &mut Vec<u8>, queued: &Queued<'_>) {
    let mut head = [0; QUEUED_SIZE];
    put_at(&mut head, 0, queued.lease_ms.to_le_bytes());
    put_at(&mut head, 8, queued.deliveries.to_le_bytes());
    put_at(&mut head, 12, queued.cancels.to_le_bytes());
    put_at(&mut head, 16, queued.position.to_le_bytes());
    out.extend_from_slice(&head);
    if let Some(queue) = queued.queue {
        out.extend_from_slice(&(queue.len() as u16).to_le_bytes());
        out.extend_from_slice(queue);
    }
}

fn take_queued<'a>(body: &mut Body<'a>, is_named: bool) -> Result<Queued<'a>, WireError> {
    let lease_ms = body.u64("queue head")?;
    let (deliveries, cancels) = (body.u32("queue head")?, body.u32("queue head")?);
    let position = body.u64("queue head")?;
    let queue = match is_named {
        true => {
            let size = body.u16("queue size")?;
            Some(body.bytes(size.into(), "queue size")?)
        }
        false => None,
    };
    Ok(Queued { lease_ms, deliveries, cancels, position, queue })
}

impl Encode for Ack<'_> {
    fn encode(&self, out: &mut Vec<u8>) {
        put_frame(out, ACK, |out| {
            out.extend_from_slice(&[self.kind as u8, 0]);
            out.extend_from_slice(&(self.code as u16).to_le_bytes());
            out.extend_from_slice(&self.command.to_le_bytes());
            out.extend_from_slice(&self.subscription.to_le_bytes());
            out.extend_from_slice(&self.detail.to_le_bytes());
            out.extend_from_slice(self.reason.as_bytes());
        });
    }
}

impl<'a> FromBody<'a> for Ack<'a> {
    fn from_body(body: &'a [u8]) -> Result<Self, WireError> {
        let mut body = Body::new("ack", body);
        let kind = match body.array("kind")? {
            [0, 0] => AckKind::Received,
            [1, 0] => AckKind::Processed,
            [2, 0] => AckKind::Completed,
            [3, 0] => AckKind::Persisted,
            _ => return Err(body.bad("kind")),
        };
        let code = decode_code(&mut body)?;
        let command = body.u32("command")?;
        let subscription = body.u32("subscription")?;
        let detail = body.u32("detail")?;
        Ok(Ack { kind, code, command, subscription, detail, reason: decode_reason(body)? })
    }
}

impl Encode for LoggedOn<'_> {
    fn encode(&self, out: &mut Vec<u8>) {
        put_frame(out, LOGGED_ON, |out| {
            put_field(out, 1, &self.version.to_le_bytes());
            put_field(out, 2, &self.publisher.to_le_bytes());
            put_field(out, 3, &self.last_sequence.to_le_bytes());
            put_field(out, 4, &self.message_size_max.to_le_bytes());
            put_field(out, 5, self.instance.as_bytes());
            if self.highest_sequence > self.last_sequence {
                put_field(out, 6, &self.highest_sequence.to_le_bytes());
            }
            if let Some(version) = self.server_version {
                put_field(out, 128, version.as_bytes());
            }
            if self.takes_reasons {
                put_field(out, 129, &FEATURE_REASONS.to_le_bytes());
            }
        });
    }
}

impl<'a> FromBody<'a> for LoggedOn<'a> {
    fn from_body(body: &'a [u8]) -> Result<Self, WireError> {
        let mut fields = Fields::new("logged_on", body);
        let mut logged_on = LoggedOn::default();
        while let Some((tag, value)) = fields.next()? {
            match tag {
                1 => logged_on.version = u16::from_le_bytes(fields.array(value, "version")?),
                2 => logged_on.publisher = u64::from_le_bytes(fields.array(value, "publisher")?),
                3 => logged_on.last_sequence = u64::from_le_bytes(fields.array(value, "last sequence")?),
                4 => logged_on.message_size_max = fields.u32(value, "message size")?,
                5 => logged_on.instance = fields.text(value, "instance")?,
                6 => {
                    logged_on.highest_sequence = u64::from_le_bytes(fields.array(value, "highest sequence")?)
                }
                128 => logged_on.server_version = Some(fields.text(value, "server version")?),
                // A newer server may have features that are unknown to this client.
                129 => logged_on.takes_reasons = fields.u32(value, "features")? & FEATURE_REASONS != 0,
                tag => fields.unknown(tag)?,
            }
        }
        logged_on.highest_sequence = logged_on.highest_sequence.max(logged_on.last_sequence);
        if logged_on.version == 0 { Err(fields.bad("version")) } else { Ok(logged_on) }
    }
}

fn decode_code(body: &mut Body<'_>) -> Result<Code, WireError> {
    let number = body.u16("code")?;
    Code::from_number(number).ok_or_else(|| body.bad("code"))
}

/// The command that is answered, and the answer.
fn decode_answer<'a>(frame: &'static str, body: &'a [u8]) -> Result<(u32, &'a str), WireError> {
    let mut body = Body::new(frame, body);
    Ok((body.u32("command")?, decode_reason(body)?))
}

fn put_answer(out: &mut Vec<u8>, kind: u8, command: u32, json: &str) {
    put_frame(out, kind, |out| {
        out.extend_from_slice(&command.to_le_bytes());
        out.extend_from_slice(json.as_bytes());
    });
}

fn decode_reason(body: Body<'_>) -> Result<&str, WireError> {
    let bad = body.bad("reason");
    std::str::from_utf8(body.rest()).map_err(|_| bad)
}
