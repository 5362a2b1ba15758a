//! The names of records: positions in one log, publishers, and bookmarks that hold on every
//! instance.

use std::fmt;
use std::str::FromStr;

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// The number of a record in this log, without gaps. The first record has 1; 0 is before
/// everything. Numbers are never reused, also not after old files are removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position(pub u64);

impl Position {
    /// Before the first record.
    pub const ZERO: Position = Position(0);

    /// The position with this number.
    #[inline]
    pub const fn new(number: u64) -> Self {
        Position(number)
    }

    /// The number.
    #[inline]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The position after this one. No log is long enough to reach the last number.
    #[inline]
    pub const fn next(self) -> Self {
        Position(self.0.saturating_add(1))
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Identity of a publisher: a fixed hash of the client name. The hash is part of the file format
/// and never changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PublisherId(pub u64);

/// Separates names of instances from names of clients, which are hashed without a seed. Part of the
/// file format.
const INSTANCE_SEED: u64 = 0x6578_6973_7469_6e67;

impl PublisherId {
    /// The publisher with this number.
    #[inline]
    pub const fn new(number: u64) -> Self {
        PublisherId(number)
    }

    /// The number.
    #[inline]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// XXH3 of the client name. Never 0, so that no bookmark of a publisher is equal to EPOCH or
    /// NOW.
    pub fn of_client_name(name: &str) -> Self {
        PublisherId(xxh3_64(name.as_bytes()).max(1))
    }

    /// The publisher of records that a part of an instance writes, such as `queues`. It is never
    /// the publisher of a client.
    pub fn of_instance(instance: &str, part: &str) -> Self {
        PublisherId(xxh3_64_with_seed(format!("{part}/{instance}").as_bytes(), INSTANCE_SEED).max(1))
    }

    /// The publisher under which an instance records the messages that a client sent without a
    /// sequence.
    pub fn derived(client: PublisherId, instance: &str) -> Self {
        PublisherId(xxh3_64_with_seed(instance.as_bytes(), client.0).max(1))
    }
}

impl fmt::Display for PublisherId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Identifies one message on every instance that has it: `<publisher>|<sequence>|`, both unsigned
/// decimal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bookmark {
    /// The client that published it.
    pub publisher: PublisherId,
    /// Its number in that publisher's sequence.
    pub sequence: u64,
}

impl Bookmark {
    /// The bookmark with these two parts.
    #[inline]
    pub const fn new(publisher: PublisherId, sequence: u64) -> Self {
        Bookmark { publisher, sequence }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn publisher_ids_are_fixed_forever() {
        assert_eq!(PublisherId::of_client_name("loader-1").0, 8_220_254_375_109_304_108);
        assert_eq!(PublisherId::of_instance("orders-1", "queues").0, 9_279_819_280_624_749_258);
        assert_ne!(
            PublisherId::of_instance("orders-1", "queues"),
            PublisherId::of_client_name("queues/orders-1")
        );
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
