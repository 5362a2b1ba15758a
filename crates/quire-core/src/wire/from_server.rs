//! Frames that go from a server to a client (protocol.md section 4).

use super::code::Code;
use super::frame::{Body, Fields, LENGTH_SIZE, RawFrame, WireError, put_field, put_frame};
use super::from_client::SubscriptionNumbers;

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
const PLACE: u8 = 74;
const JOURNAL_FILE: u8 = 75;

const FLAG_BOOKMARK: u8 = 1;
const FLAG_QUEUED: u8 = 2;
const FLAG_QUEUE_NAME: u8 = 4;

/// Bytes of a `message` before its topic.
const HEAD_SIZE: usize = 32;

/// Bytes of what a message of a queue says besides, before the queue's name.
const QUEUED_SIZE: usize = 24;

/// Anything that a server says.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the variants are named and described in protocol.md
pub enum ServerFrame<'a> {
    LoggedOn(LoggedOn<'a>),
    Ack(Ack<'a>),
    Persisted { sequence: u64 },
    PublishFailed { sequence: u64, code: Code, scope: FailureScope, reason: &'a str },
    Message(Message<'a>),
    Error { code: Code, reason: &'a str },
    Heartbeat,
    SubscriptionEnded { subscription: u32, code: Code, reason: &'a str },
    Stats { command: u32, json: &'a str },
    LeaseLost { subscription: u32, reason: LeaseEnd, publisher: u64, sequence: u64 },
    Place { publisher: u64, sequence: u64, subscriptions: SubscriptionNumbers<'a> },
    JournalFile { command: u32, json: &'a str },
}

/// Why a lease ended without its holder's doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseEnd {
    /// Its period is over; the message went back to the queue.
    Expired = 1,
    /// Another connection settled the message.
    SettledByAnother = 2,
    /// Its period is over and the message left the queue: a limit or its own time was reached.
    MessageExpired = 3,
}

/// What a client learns when it is let in.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct LoggedOn<'a> {
    /// Protocol version of the server.
    pub version: u16,
    /// The publisher id of the client: the hash of its name.
    pub publisher: u64,
    /// The highest sequence of this publisher that is persisted, 0 = none.
    pub last_sequence: u64,
    /// The highest sequence of this publisher that was seen; above `last_sequence` when the journal failed, and what it was writing
    /// may or may not be found by the next start.
    pub highest_sequence: u64,
    /// The largest data of a message, in bytes.
    pub message_size_max: u32,
    /// Name of the instance.
    pub instance: &'a str,
    /// Version of the server, for the log.
    pub server_version: Option<&'a str>,
}

/// How far a command has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // protocol.md section 4
pub enum AckKind {
    Received = 0,
    Processed = 1,
    Completed = 2,
    Persisted = 3,
}

/// The answer to a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ack<'a> {
    /// What is acknowledged.
    pub kind: AckKind,
    /// [`Code::Ok`], or why the command failed.
    pub code: Code,
    /// The command it answers.
    pub command: u32,
    /// The subscription it is about, 0 = none.
    pub subscription: u32,
    /// For [`Code::BadFilter`]: where, from 1. For a subscription to queues: the backlog granted. Else 0.
    pub detail: u32,
    /// For a person.
    pub reason: &'a str,
}

/// How much a failed publish speaks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureScope {
    /// This one publish.
    One = 0,
    /// This one and all after it: the journal takes no more writes.
    AllFromHere = 1,
}

/// One message on its way out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Message<'a> {
    /// The client's number of the subscription it belongs to.
    pub subscription: u32,
    /// Publisher id and sequence, for a message that the log records.
    pub bookmark: Option<(u64, u64)>,
    /// When this server took the message: nanoseconds since 1970 UTC.
    pub timestamp_ns: u64,
    /// How it comes from a queue; `None` when it does not.
    pub queued: Option<Queued<'a>>,
    /// The topic it was published to.
    pub topic: &'a [u8],
    /// As published; empty = none.
    pub correlation_id: &'a [u8],
    /// The message.
    pub data: &'a [u8],
}

/// What a message of a queue says besides itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Queued<'a> {
    /// How long the lease lasts from the sending on, in milliseconds: 0 = there is none (at-most-once, a barrier, the answer to a
    /// query), `u64::MAX` = without end.
    pub lease_ms: u64,
    /// How often the message was delivered, this time included; 0 for a barrier.
    pub deliveries: u32,
    /// How often it was cancelled.
    pub cancels: u32,
    /// Its place in the log of this instance: opaque.
    pub position: u64,
    /// The queue, where the subscription does not say which: its topic is a pattern.
    pub queue: Option<&'a [u8]>,
}

impl<'a> ServerFrame<'a> {
    /// What the frame says.
    ///
    /// # Errors
    /// [`WireError::UnknownKind`] and [`WireError::Malformed`].
    pub fn decode(frame: RawFrame<'a>) -> Result<Self, WireError> {
        match frame.kind {
            MESSAGE => Message::decode(frame.body).map(ServerFrame::Message),
            PERSISTED => {
                let mut body = Body::new("persisted", frame.body);
                let sequence = body.u64("sequence")?;
                body.end()?;
                Ok(ServerFrame::Persisted { sequence })
            }
            ACK => Ack::decode(frame.body).map(ServerFrame::Ack),
            LOGGED_ON => LoggedOn::decode(frame.body).map(ServerFrame::LoggedOn),
            PUBLISH_FAILED => {
                let mut body = Body::new("publish_failed", frame.body);
                let sequence = body.u64("sequence")?;
                let code = decode_code(&mut body)?;
                let scope = match body.array("scope")? {
                    [0, 0] => FailureScope::One,
                    [1, 0] => FailureScope::AllFromHere,
                    _ => return Err(body.bad("scope")),
                };
                Ok(ServerFrame::PublishFailed { sequence, code, scope, reason: decode_reason(body)? })
            }
            ERROR => {
                let mut body = Body::new("error", frame.body);
                let code = decode_code(&mut body)?;
                body.u16("padding")?;
                Ok(ServerFrame::Error { code, reason: decode_reason(body)? })
            }
            HEARTBEAT => Body::new("heartbeat", frame.body).end().map(|()| ServerFrame::Heartbeat),
            SUBSCRIPTION_ENDED => {
                let mut body = Body::new("subscription_ended", frame.body);
                let subscription = body.u32("subscription")?;
                let code = decode_code(&mut body)?;
                body.u16("padding")?;
                Ok(ServerFrame::SubscriptionEnded { subscription, code, reason: decode_reason(body)? })
            }
            STATS => {
                let (command, json) = decode_answer("stats", frame.body)?;
                Ok(ServerFrame::Stats { command, json })
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
                body.end()?;
                Ok(ServerFrame::LeaseLost { subscription, reason, publisher, sequence })
            }
            PLACE => {
                let mut body = Body::new("place", frame.body);
                let (publisher, sequence) = (body.u64("bookmark")?, body.u64("bookmark")?);
                let bad = body.bad("subscriptions");
                let subscriptions = SubscriptionNumbers::from_bytes(body.rest()).ok_or(bad)?;
                Ok(ServerFrame::Place { publisher, sequence, subscriptions })
            }
            JOURNAL_FILE => {
                let (command, json) = decode_answer("journal_file", frame.body)?;
                Ok(ServerFrame::JournalFile { command, json })
            }
            kind => Err(WireError::UnknownKind { kind }),
        }
    }

    /// Appends the frame to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match *self {
            ServerFrame::Message(ref message) => message.encode(out),
            ServerFrame::Persisted { sequence } => {
                put_frame(out, PERSISTED, |out| out.extend_from_slice(&sequence.to_le_bytes()));
            }
            ServerFrame::Ack(ref ack) => ack.encode(out),
            ServerFrame::LoggedOn(ref logged_on) => logged_on.encode(out),
            ServerFrame::PublishFailed { sequence, code, scope, reason } => {
                put_frame(out, PUBLISH_FAILED, |out| {
                    out.extend_from_slice(&sequence.to_le_bytes());
                    out.extend_from_slice(&(code as u16).to_le_bytes());
                    out.extend_from_slice(&[scope as u8, 0]);
                    out.extend_from_slice(reason.as_bytes());
                })
            }
            ServerFrame::Error { code, reason } => put_frame(out, ERROR, |out| {
                out.extend_from_slice(&(code as u16).to_le_bytes());
                out.extend_from_slice(&[0; 2]);
                out.extend_from_slice(reason.as_bytes());
            }),
            ServerFrame::Heartbeat => put_frame(out, HEARTBEAT, |_| ()),
            ServerFrame::SubscriptionEnded { subscription, code, reason } => {
                put_frame(out, SUBSCRIPTION_ENDED, |out| {
                    out.extend_from_slice(&subscription.to_le_bytes());
                    out.extend_from_slice(&(code as u16).to_le_bytes());
                    out.extend_from_slice(&[0; 2]);
                    out.extend_from_slice(reason.as_bytes());
                })
            }
            ServerFrame::Stats { command, json } => put_answer(out, STATS, command, json),
            ServerFrame::LeaseLost { subscription, reason, publisher, sequence } => {
                put_frame(out, LEASE_LOST, |out| {
                    out.extend_from_slice(&subscription.to_le_bytes());
                    out.extend_from_slice(&[reason as u8, 0, 0, 0]);
                    out.extend_from_slice(&publisher.to_le_bytes());
                    out.extend_from_slice(&sequence.to_le_bytes());
                });
            }
            ServerFrame::Place { publisher, sequence, subscriptions } => put_frame(out, PLACE, |out| {
                out.extend_from_slice(&publisher.to_le_bytes());
                out.extend_from_slice(&sequence.to_le_bytes());
                out.extend_from_slice(subscriptions.as_bytes());
            }),
            ServerFrame::JournalFile { command, json } => put_answer(out, JOURNAL_FILE, command, json),
        }
    }
}

/// Gives the `message` frame `to` the bookmark that the one in `from` has.
pub(crate) fn copy_bookmark(from: &[u8], to: &mut [u8]) {
    to[5] = (to[5] & !FLAG_BOOKMARK) | (from[5] & FLAG_BOOKMARK);
    to[13..29].copy_from_slice(&from[13..29]);
}

impl<'a> Message<'a> {
    /// Appends the frame to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let (publisher, sequence) = self.bookmark.unwrap_or((0, 0));
        let size = 1
            + HEAD_SIZE
            + self.queued.map_or(0, Queued::size)
            + self.topic.len()
            + self.correlation_id.len()
            + self.data.len();
        // The frame that is written most: its fixed part is put together first and copied once.
        let mut head = [0; LENGTH_SIZE + 1 + HEAD_SIZE];
        head[0..4].copy_from_slice(&(size as u32).to_le_bytes());
        head[4] = MESSAGE;
        head[5] =
            if self.bookmark.is_some() { FLAG_BOOKMARK } else { 0 } | self.queued.map_or(0, Queued::flags);
        head[6] = self.correlation_id.len() as u8;
        head[7..9].copy_from_slice(&(self.topic.len() as u16).to_le_bytes());
        head[9..13].copy_from_slice(&self.subscription.to_le_bytes());
        head[13..21].copy_from_slice(&publisher.to_le_bytes());
        head[21..29].copy_from_slice(&sequence.to_le_bytes());
        head[29..37].copy_from_slice(&self.timestamp_ns.to_le_bytes());
        out.reserve(LENGTH_SIZE + size);
        out.extend_from_slice(&head);
        if let Some(queued) = &self.queued {
            queued.encode(out);
        }
        out.extend_from_slice(self.topic);
        out.extend_from_slice(self.correlation_id);
        out.extend_from_slice(self.data);
    }

    pub(crate) fn decode(body: &'a [u8]) -> Result<Self, WireError> {
        let mut body = Body::new("message", body);
        let [flags, correlation_size] = body.array("head")?;
        let topic_size = body.u16("head")?;
        let subscription = body.u32("head")?;
        let (publisher, sequence) = (body.u64("head")?, body.u64("head")?);
        let timestamp_ns = body.u64("head")?;
        let queued = match flags & !FLAG_BOOKMARK {
            0 => None,
            FLAG_QUEUED => Some(Queued::decode(&mut body, false)?),
            flags if flags == FLAG_QUEUED | FLAG_QUEUE_NAME => Some(Queued::decode(&mut body, true)?),
            _ => return Err(body.bad("flags")),
        };
        let topic = body.bytes(topic_size.into(), "topic size")?;
        let correlation_id = body.bytes(correlation_size.into(), "correlation size")?;
        let bookmark = (flags & FLAG_BOOKMARK != 0).then_some((publisher, sequence));
        Ok(Message { subscription, bookmark, timestamp_ns, queued, topic, correlation_id, data: body.rest() })
    }
}

impl<'a> Queued<'a> {
    fn flags(self) -> u8 {
        FLAG_QUEUED | if self.queue.is_some() { FLAG_QUEUE_NAME } else { 0 }
    }

    fn size(self) -> usize {
        QUEUED_SIZE + self.queue.map_or(0, |queue| 2 + queue.len())
    }

    fn encode(&self, out: &mut Vec<u8>) {
        let mut head = [0; QUEUED_SIZE];
        head[0..8].copy_from_slice(&self.lease_ms.to_le_bytes());
        head[8..12].copy_from_slice(&self.deliveries.to_le_bytes());
        head[12..16].copy_from_slice(&self.cancels.to_le_bytes());
        head[16..24].copy_from_slice(&self.position.to_le_bytes());
        out.extend_from_slice(&head);
        if let Some(queue) = self.queue {
            out.extend_from_slice(&(queue.len() as u16).to_le_bytes());
            out.extend_from_slice(queue);
        }
    }

    fn decode(body: &mut Body<'a>, is_named: bool) -> Result<Self, WireError> {
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
}

impl<'a> Ack<'a> {
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

    fn decode(body: &'a [u8]) -> Result<Self, WireError> {
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

impl<'a> LoggedOn<'a> {
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
        });
    }

    fn decode(body: &'a [u8]) -> Result<Self, WireError> {
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
