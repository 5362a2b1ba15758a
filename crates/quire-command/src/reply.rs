//! The replies of a server.

use crate::code::Code;
use crate::packed::{PlaceList, SubscriptionNumbers};
use quire_types::Headers;

/// A reply of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the variants are named and described in protocol.md
pub enum Reply<'a> {
    LoggedOn(LoggedOn<'a>),
    Ack(Ack<'a>),
    Persisted { sequence: u64 },
    PublishFailed { sequence: u64, code: Code, scope: FailureScope, reason: &'a str },
    Message(Message<'a>),
    Error { code: Code, reason: &'a str },
    Heartbeat,
    SubscriptionEnded { subscription: u32, code: Code, reason: &'a str },
    Stats { command: u32, json: &'a str },
    LeaseLost { subscription: u32, reason: LeaseEnd, publisher: u64, sequence: u64, queue: Option<&'a str> },
    ResumePosition { publisher: u64, sequence: u64, subscriptions: SubscriptionNumbers<'a> },
    JournalFile { command: u32, json: &'a str },
    Places { places: PlaceList<'a>, subscriptions: SubscriptionNumbers<'a> },
}

/// Why a lease ended without a command of its holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseEnd {
    /// Its period is over, and the message is in the queue again.
    Expired = 1,
    /// Another connection settled the message.
    SettledByAnother = 2,
    /// Its period is over, and the message left the queue: it has reached a limit or the end of its
    /// lifetime.
    MessageExpired = 3,
}

/// The answer to an accepted logon.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct LoggedOn<'a> {
    /// Protocol version of the server.
    pub version: u16,
    /// The publisher id of the client: the hash of its name.
    pub publisher: u64,
    /// The highest sequence of this publisher that is persisted, 0 = none.
    pub last_sequence: u64,
    /// The highest sequence of this publisher that was seen. It is above `last_sequence` when the
    /// journal failed. The next start may or may not find the records between the two.
    pub highest_sequence: u64,
    /// The largest data of a message, in bytes.
    pub message_size_max: u32,
    /// Name of the instance.
    pub instance: &'a str,
    /// Version of the server, for the log.
    pub server_version: Option<&'a str>,
    /// Whether the server takes a [`Settle`](crate::Settle) with a reason. An older server ends the
    /// connection.
    pub takes_reasons: bool,
}

/// The progress of a command.
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
    /// For [`Code::BadFilter`]: the column, from 1. For a subscription to queues: the granted
    /// backlog. For a query: the number of matching records. For a delete: the number of removed
    /// records. For an `extend`: the granted period in milliseconds, 0 when it is unlimited.
    /// Else 0.
    pub detail: u32,
    /// For a person.
    pub reason: &'a str,
}

/// The publishes that a failure applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureScope {
    /// This one publish.
    One = 0,
    /// This publish and all later ones: the journal takes no more writes.
    AllFromHere = 1,
}

/// One message to a client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Message<'a> {
    /// The client's number of the subscription it belongs to.
    pub subscription: u32,
    /// Publisher id and sequence, for a message that the log records.
    pub bookmark: Option<(u64, u64)>,
    /// When this server received the message: nanoseconds since 1970 UTC.
    pub timestamp_ns: u64,
    /// Its lease in a queue; `None` when no queue delivers it.
    pub queued: Option<Queued<'a>>,
    /// The topic it was published to.
    pub topic: &'a [u8],
    /// As it was published; empty = none.
    pub correlation_id: &'a [u8],
    /// As published.
    pub headers: Headers<'a>,
    /// The key of the message in its last-value topic; empty = none.
    pub key: &'a [u8],
    /// The meaning of the message for the record with this key.
    pub kind: MessageKind,
    /// The message.
    pub data: &'a [u8],
}

/// The meaning of a message for a record of a last-value topic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MessageKind {
    /// It was published.
    #[default]
    Publish,
    /// It is a record of a query.
    Record,
    /// The record left the view of the subscription.
    Oof(OofReason),
    /// It was published. The data has only the fields that differ from the previous message, and
    /// the key fields.
    Delta(RecordHash),
    /// A delete of the log. The data has the keys of further records that it deleted, as
    /// [`put_key`](crate::put_key) writes them.
    Delete,
}

/// The 128-bit XXH3 of the data of a record, in little-endian order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordHash(pub [u8; 16]);

/// Why a record left the view of a subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OofReason {
    /// It was deleted; the data is the last message.
    Deleted = 1,
    /// Its lifetime ended; the data is the last message.
    Expired = 2,
    /// It was replaced by a message that the filter does not match; the data is the new message.
    Match = 3,
    /// It was replaced by a message that the user may not see; there is no data.
    Entitlement = 4,
}

/// The queue fields of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Queued<'a> {
    /// The period of the lease from the sending on, in milliseconds: 0 = there is none
    /// (at-most-once, a barrier, the answer to a query), `u64::MAX` = without end.
    pub lease_ms: u64,
    /// The number of deliveries of the message, including this one; 0 for a barrier.
    pub deliveries: u32,
    /// The number of its cancels.
    pub cancels: u32,
    /// Its position in the log of this instance: opaque.
    pub position: u64,
    /// The queue, if the topic of the subscription is a pattern.
    pub queue: Option<&'a [u8]>,
}
