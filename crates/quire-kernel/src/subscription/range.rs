//! A range of the log: the start of a bookmark subscription and, if it has one, its end
//! (docs/replay.md).

use std::str::FromStr;

use quire_journal::{Bookmark, JournalError, Position, Reader, Timestamp};

use crate::entitlement::Nameable;
use crate::replay::Located;
use crate::scan::BookmarkError;
use crate::scan::Start;
use crate::scan::StartPoint;

/// The start and the end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Range {
    pub start: Start,
    /// Whether the range includes the message that the start names.
    pub starts_with: bool,
    pub end: Option<End>,
}

/// The end of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    pub point: StartPoint,
    /// Whether the range includes the message, or the instant, that the end names.
    pub is_included: bool,
}

impl FromStr for Range {
    type Err = BookmarkError;

    /// `[A:B]`, or just a start, which is the same as `(A:]`.
    fn from_str(text: &str) -> Result<Self, BookmarkError> {
        let text = text.trim();
        let Some(rest) = text.strip_prefix(['[', '(']) else {
            return Ok(Range { start: text.parse()?, starts_with: false, end: None });
        };
        // The text is from a peer, and becomes part of a reason. A prefix of it is enough.
        let not = || BookmarkError::NotARange { text: text.chars().take(64).collect() };
        let (inner, is_included) = match (rest.strip_suffix(']'), rest.strip_suffix(')')) {
            (Some(inner), _) => (inner, true),
            (None, Some(inner)) => (inner, false),
            (None, None) => return Err(not()),
        };
        let (start, end) = inner.split_once(':').ok_or_else(not)?;
        let start = if start.trim().is_empty() { "0" } else { start };
        let end = match end.trim() {
            "" => None,
            end => Some(End { point: end.parse()?, is_included }),
        };
        Ok(Range { start: start.parse()?, starts_with: text.starts_with('['), end })
    }
}

impl Range {
    /// All messages from now on.
    pub fn now() -> Range {
        Range { start: StartPoint::Now.into(), starts_with: false, end: None }
    }

    /// All messages.
    pub fn from_start() -> Range {
        Range { start: StartPoint::Epoch.into(), starts_with: false, end: None }
    }

    /// All messages after an instant.
    pub fn after(time: Timestamp) -> Range {
        Range { start: StartPoint::Time(time).into(), starts_with: false, end: None }
    }

    /// The last instant before the range, when the start is a single time. Records that were taken
    /// up to this time are omitted, even when they are recorded later.
    pub fn taken_after(&self) -> Option<Timestamp> {
        let Timestamp(ns) = self.start.time()?;
        Some(Timestamp(ns.saturating_sub(u64::from(self.starts_with))))
    }

    /// The places of both ends. May read from the disk.
    pub fn locate(
        &self,
        reader: &Reader,
        now: Position,
        nameable: &Nameable,
    ) -> Result<Located, JournalError> {
        let until = match &self.end {
            Some(end) => end.locate(reader, now, nameable)?,
            None => None,
        };
        Ok(Located { after: self.start.locate(reader, now, self.starts_with, nameable)?, until })
    }
}

impl End {
    /// The last position of the range, when no search is needed.
    pub fn without_search(&self, now: Position) -> Option<Position> {
        match self.point {
            StartPoint::Epoch => Some(Position::default()),
            StartPoint::Now => Some(now),
            StartPoint::Bookmark(_) | StartPoint::Time(_) => None,
        }
    }

    /// The last position of the range; `None` while the persisted records do not reach it. May read
    /// from the disk.
    pub fn locate(
        &self,
        reader: &Reader,
        now: Position,
        nameable: &Nameable,
    ) -> Result<Option<Position>, JournalError> {
        match self.point {
            StartPoint::Epoch | StartPoint::Now => Ok(self.without_search(now)),
            StartPoint::Bookmark(bookmark) => {
                Ok(nameable.find(reader, bookmark)?.map(|position| self.with(position)))
            }
            StartPoint::Time(_) => {
                // This is read first, because a message that is taken meanwhile may be after the
                // end.
                let persisted = reader.persisted();
                let last = reader.position_before(self.last_instant().unwrap_or_default())?;
                Ok((last < persisted).then_some(last))
            }
        }
    }

    /// The last position of the range, when the message that the end names is at `position`.
    pub fn with(&self, position: Position) -> Position {
        Position(position.0 - u64::from(!self.is_included))
    }

    /// The position of the end, when the last position of the range is `last`.
    pub fn named(&self, last: Position) -> Position {
        Position(last.0 + u64::from(!self.is_included && self.bookmark().is_some()))
    }

    /// The message that the end names.
    pub fn bookmark(&self) -> Option<Bookmark> {
        match self.point {
            StartPoint::Bookmark(bookmark) => Some(bookmark),
            _ => None,
        }
    }

    /// The last instant of the range.
    pub fn last_instant(&self) -> Option<Timestamp> {
        match self.point {
            StartPoint::Time(Timestamp(ns)) => {
                Some(Timestamp(ns.saturating_sub(u64::from(!self.is_included))))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(text: &str) -> Range {
        text.parse().unwrap()
    }

    #[test]
    fn brackets_say_whether_the_ends_belong_to_it() {
        let points = |text: &str| {
            let Range { starts_with, end, .. } = range(text);
            (starts_with, end.map(|end| end.is_included))
        };
        assert_eq!(points("7|1|"), (false, None));
        assert_eq!(points("[7|1|:7|9|]"), (true, Some(true)));
        assert_eq!(points("(7|1|:7|9|)"), (false, Some(false)));
        assert_eq!(points("[7|1|,8|4|:20150102T123500Z)"), (true, Some(false)));
        assert_eq!(points("(0:]"), (false, None));
        assert_eq!(range("[:0|1|]").start, "0".parse().unwrap());
    }

    #[test]
    fn an_excluded_instant_is_one_nanosecond_away() {
        let wanted = |text: &str| {
            let range = range(text);
            (range.taken_after().map(|t| t.0), range.end.and_then(|end| end.last_instant()).map(|t| t.0))
        };
        assert_eq!(wanted("[19700101T000001Z:19700101T000002Z]"), (Some(999_999_999), Some(2_000_000_000)));
        assert_eq!(wanted("(19700101T000001Z:19700101T000002Z)"), (Some(1_000_000_000), Some(1_999_999_999)));
        assert_eq!(wanted("[19700101T000000Z:19700101T000000Z)"), (Some(0), Some(0)));
    }

    #[test]
    fn what_is_no_range_is_refused() {
        for text in ["[", "[]", "[0]", "[0:0", "(0|1|", "[:x]", "[yesterday:]", "[0:0|1|,0]", "]0:0["] {
            assert!(text.parse::<Range>().is_err(), "{text:?}");
        }
    }
}
