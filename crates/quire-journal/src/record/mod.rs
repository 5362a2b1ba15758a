//! The records of the log.

pub(crate) mod attributes;
pub(crate) mod deleted;

use quire_types::Timestamp;
pub use quire_types::{Bookmark, Headers, Position, PublisherId};

use crate::record::attributes::{Attributes, InstancePath, Origin, Source};
use crate::record::deleted::DeletedKeys;

/// The kind of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum RecordKind {
    /// A message.
    Publish = 1,
    /// Messages of a queue were acknowledged, cancelled or expired.
    Acknowledge = 2,
    /// The holders of messages of a queue. No other part depends on it.
    Lease = 3,
    /// Messages of a last-value topic were deleted.
    Delete = 4,
}

impl RecordKind {
    /// The kind with this number on disk.
    pub const fn from_number(number: u8) -> Option<RecordKind> {
        match number {
            1 => Some(RecordKind::Publish),
            2 => Some(RecordKind::Acknowledge),
            3 => Some(RecordKind::Lease),
            4 => Some(RecordKind::Delete),
            _ => None,
        }
    }

    /// As programs and people read it.
    pub const fn name(self) -> &'static str {
        match self {
            RecordKind::Publish => "publish",
            RecordKind::Acknowledge => "acknowledge",
            RecordKind::Lease => "lease",
            RecordKind::Delete => "delete",
        }
    }
}

/// A record to be appended.
#[derive(Clone, Copy, Debug)]
pub struct NewRecord<'a> {
    /// Its kind.
    pub kind: RecordKind,
    /// Code of the message type of `data`.
    pub message_type: u8,
    /// The client that published it.
    pub publisher: PublisherId,
    /// Its number in that publisher's sequence. A record that is not above the publisher's highest
    /// one is a duplicate. 0 = no sequence: the record gets its position as the sequence, or the
    /// number after the highest one if that is larger. So it is never a duplicate.
    pub sequence: u64,
    /// When this instance took it. Times in the log never decrease: a time before that of the
    /// previous record is raised to it.
    pub timestamp: Timestamp,
    /// Where it was published.
    pub topic: &'a str,
    /// Delivered unchanged; at most 255 bytes.
    pub correlation_id: &'a [u8],
    /// Lifetime in seconds, 0 = never expires; `None` = not given.
    pub expiration_s: Option<u32>,
    /// Its key, source, headers, run, and the others. [`Attributes::NONE`] for a message with none
    /// of them.
    pub attributes: Attributes<'a>,
    /// The message; for a delete, the list of its keys
    /// ([`put_deleted_key`](crate::put_deleted_key)).
    pub data: &'a [u8],
}

/// A record that was read, borrowed from the bytes of its batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// Its position in this log.
    pub position: Position,
    /// Its kind.
    pub kind: RecordKind,
    /// Code of the message type of `data`.
    pub message_type: u8,
    /// The client that published it.
    pub publisher: PublisherId,
    /// Its number in that publisher's sequence.
    pub sequence: u64,
    /// When this instance took it.
    pub timestamp: Timestamp,
    /// Where it was published.
    pub topic: &'a str,
    /// As published.
    pub correlation_id: &'a [u8],
    /// As published.
    pub expiration_s: Option<u32>,
    /// It was appended below the highest sequence of its publisher: earlier records of the log can
    /// follow it ([`Journal::append_late`](crate::Journal::append_late)).
    pub is_late: bool,
    /// Its key, source, headers, run, and the others.
    pub attributes: Attributes<'a>,
    /// The message; for a delete, the list of its keys.
    pub data: &'a [u8],
}

impl<'a> Record<'a> {
    /// The bookmark of the record, which is the same on every instance.
    pub fn bookmark(&self) -> Bookmark {
        Bookmark { publisher: self.publisher, sequence: self.sequence }
    }

    /// The key of the message in its last-value topic, if it has one.
    pub fn key(&self) -> Option<&'a [u8]> {
        self.attributes.key()
    }

    /// The headers of the message.
    #[inline]
    pub fn headers(&self) -> Headers<'a> {
        self.attributes.headers()
    }

    /// The time before which queues do not deliver the message; `None` when it was published
    /// without a delay.
    #[inline]
    pub fn not_before(&self) -> Option<Timestamp> {
        self.attributes.not_before()
    }

    /// When this instance took the record, by its clock. It is before the timestamp when the clock
    /// was set back. Lifetimes count from here.
    #[inline]
    pub fn received(&self) -> Timestamp {
        self.attributes.received().unwrap_or(self.timestamp)
    }

    /// The time by which last values are ordered over all instances.
    pub fn stamp(&self) -> Timestamp {
        self.attributes.stamp().unwrap_or(self.timestamp)
    }

    /// The run of the publisher; 0 when it is not known, or when the program gave the sequence.
    pub fn run(&self) -> u64 {
        self.attributes.run()
    }

    /// The sequence that the publisher used before this one; 0 when it used none.
    pub fn follows(&self) -> u64 {
        self.attributes.follows().unwrap_or(self.sequence.saturating_sub(1))
    }

    /// Where the record was published.
    pub fn origin(&self) -> Origin<'a> {
        Origin { bookmark: self.bookmark(), instance: self.path().instances().next() }
    }

    /// The instance that sent the record; `None` when it was published here.
    pub fn source(&self) -> Option<Source<'a>> {
        self.attributes.source()
    }

    /// The instances that the record passed before this one, oldest first. Empty when it was
    /// published here.
    pub fn path(&self) -> InstancePath<'a> {
        self.attributes.path()
    }

    /// The keys that a delete removed; none for a record of another kind.
    pub fn deleted_keys(&self) -> DeletedKeys<'a> {
        DeletedKeys::checked(if self.kind == RecordKind::Delete { self.data } else { &[] })
    }
}
