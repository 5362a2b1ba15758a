//! What the log holds: records, and the names by which they are found.

use std::fmt;
use std::str::FromStr;

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use crate::timestamp::Timestamp;

/// Number of a record in this log: dense, the first record is 1, 0 is before everything. Never reused, also after old files are removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position(pub u64);

impl Position {
    /// Before the first record.
    pub const ZERO: Position = Position(0);

    /// The position with this number.
    pub const fn new(number: u64) -> Self {
        Position(number)
    }

    /// The number.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The position after this one. A log ends long before the numbers do.
    pub const fn next(self) -> Self {
        Position(self.0.saturating_add(1))
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Identity of a publisher: a fixed hash of the client name (seed 004). The hash is part of the file format and never changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PublisherId(pub u64);

impl PublisherId {
    /// The publisher with this number.
    pub const fn new(number: u64) -> Self {
        PublisherId(number)
    }

    /// The number.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// XXH3 of the client name. Never 0, so that no bookmark of a publisher looks like EPOCH or NOW.
    pub fn of_client_name(name: &str) -> Self {
        PublisherId(xxh3_64(name.as_bytes()).max(1))
    }

    /// The publisher under which an instance records the messages that a client sent without a sequence (seed 004).
    pub fn derived(client: PublisherId, instance: &str) -> Self {
        PublisherId(xxh3_64_with_seed(instance.as_bytes(), client.0).max(1))
    }
}

impl fmt::Display for PublisherId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Names one message on every instance that has it: `<publisher>|<sequence>|`, both unsigned decimal (seed 004).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bookmark {
    /// Who published it.
    pub publisher: PublisherId,
    /// Its number in that publisher's sequence.
    pub sequence: u64,
}

/// The text is not `<publisher>|<sequence>|`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a bookmark of the form <publisher>|<sequence>|")]
pub struct BookmarkError;

impl fmt::Display for Bookmark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}|{}|", self.publisher, self.sequence)
    }
}

impl FromStr for Bookmark {
    type Err = BookmarkError;

    fn from_str(text: &str) -> Result<Self, BookmarkError> {
        let number = |text: &str| match text.as_bytes() {
            [b'0'..=b'9', ..] => text.parse().map_err(|_| BookmarkError),
            _ => Err(BookmarkError),
        };
        let (publisher, sequence) =
            text.strip_suffix('|').and_then(|text| text.split_once('|')).ok_or(BookmarkError)?;
        Ok(Bookmark { publisher: PublisherId(number(publisher)?), sequence: number(sequence)? })
    }
}

/// What a record says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum RecordKind {
    /// A message.
    Publish = 1,
    /// Messages of a queue were acknowledged, cancelled or expired.
    Acknowledge = 2,
    /// Who held messages of a queue. Nothing depends on it.
    Lease = 3,
}

impl RecordKind {
    /// The kind with this number on disk.
    pub const fn from_number(number: u8) -> Option<RecordKind> {
        match number {
            1 => Some(RecordKind::Publish),
            2 => Some(RecordKind::Acknowledge),
            3 => Some(RecordKind::Lease),
            _ => None,
        }
    }
}

/// A record to be appended.
#[derive(Clone, Copy, Debug)]
pub struct NewRecord<'a> {
    /// What it says.
    pub kind: RecordKind,
    /// Code of the message type of `data`.
    pub message_type: u8,
    /// Who published it.
    pub publisher: PublisherId,
    /// Its number in that publisher's sequence: a record that is not above the publisher's highest one is a duplicate. 0 = none was
    /// given: the record's own position, or the number after the highest one if that is larger, so that it is never a duplicate
    /// (reference: queues-and-transaction-log 2.3 P8 to P10).
    pub sequence: u64,
    /// When this instance took it. The log never goes back: an earlier time than that of the record before is raised to it.
    pub timestamp: Timestamp,
    /// Where it was published.
    pub topic: &'a str,
    /// Handed on as it came; at most 255 bytes.
    pub correlation_id: &'a [u8],
    /// Lifetime in seconds, 0 = never expires; `None` = not said.
    pub expiration_s: Option<u32>,
    /// The message.
    pub data: &'a [u8],
}

/// A record that was read, borrowed from the bytes of its batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// Its place in this log.
    pub position: Position,
    /// What it says.
    pub kind: RecordKind,
    /// Code of the message type of `data`.
    pub message_type: u8,
    /// Who published it.
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
    /// The message.
    pub data: &'a [u8],
}

impl Record<'_> {
    /// The name of the record on every instance.
    pub fn bookmark(&self) -> Bookmark {
        Bookmark { publisher: self.publisher, sequence: self.sequence }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn publisher_ids_are_fixed_forever() {
        assert_eq!(PublisherId::of_client_name("loader-1").0, 8_220_254_375_109_304_108);
        assert_ne!(PublisherId::derived(PublisherId(1), "a"), PublisherId::derived(PublisherId(1), "b"));
        assert_ne!(PublisherId::derived(PublisherId(1), "a"), PublisherId::derived(PublisherId(2), "a"));
    }

    #[test]
    fn bookmarks_read_back_and_nothing_else_does() {
        let bookmark = Bookmark { publisher: PublisherId(731), sequence: u64::MAX };
        assert_eq!(bookmark.to_string().parse(), Ok(bookmark));
        for text in [
            "",
            "0",
            "1|2",
            "1|2|3",
            "|2|",
            "1||",
            "-1|2|",
            "+1|2|",
            "1|2||",
            "a|2|",
            "18446744073709551616|1|",
        ] {
            assert_eq!(text.parse::<Bookmark>(), Err(BookmarkError), "{text}");
        }
    }
}
