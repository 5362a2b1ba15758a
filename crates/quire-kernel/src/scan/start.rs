//! The start of a bookmark subscription.

use std::str::FromStr;

use crate::entitlement::Nameable;
use quire_journal::{Bookmark, JournalError, Position, Reader, Timestamp};

/// The most bookmarks in a list. It is far more than the publishers that one subscriber follows,
/// and limits the search.
pub const BOOKMARKS_MAX: usize = 4096;

/// One place to begin after.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartPoint {
    /// `0`: before everything.
    Epoch,
    /// `0|1|`: after all messages that were taken so far.
    Now,
    /// After this message.
    Bookmark(Bookmark),
    /// After this instant.
    Time(Timestamp),
}

/// One or several points. The oldest of several counts, in the order of this log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Start(Vec<StartPoint>);

/// Why a text is not a bookmark: an error of the caller.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BookmarkError {
    /// The text is neither a bookmark nor a time.
    #[error("{text:?} is not `0`, `0|1|`, `<publisher>|<sequence>|` or `YYYYmmddTHHMMSS[.ffffff][Z]`")]
    NotABookmark {
        /// The text as given.
        text: String,
    },
    /// Brackets without two places between them.
    #[error("{text:?} is not a range like `[A:B]` or `(A:B)` of bookmarks or times")]
    NotARange {
        /// The text as given.
        text: String,
    },
    /// More than [`BOOKMARKS_MAX`].
    #[error("a list of {count} bookmarks, the limit is {BOOKMARKS_MAX}")]
    TooMany {
        /// The number of bookmarks in the list.
        count: usize,
    },
}

impl FromStr for Start {
    type Err = BookmarkError;

    fn from_str(text: &str) -> Result<Self, BookmarkError> {
        let count = text.split(',').count();
        if count > BOOKMARKS_MAX {
            return Err(BookmarkError::TooMany { count });
        }
        text.split(',').map(|point| point.trim().parse()).collect::<Result<_, _>>().map(Start)
    }
}

impl FromStr for StartPoint {
    type Err = BookmarkError;

    fn from_str(text: &str) -> Result<Self, BookmarkError> {
        match text {
            "0" | "0|0|" => return Ok(StartPoint::Epoch),
            "0|1|" => return Ok(StartPoint::Now),
            _ => (),
        }
        if let Ok(bookmark) = text.parse() {
            return Ok(StartPoint::Bookmark(bookmark));
        }
        // The text is from a peer, and becomes part of a reason. A prefix of it is enough.
        let not = || BookmarkError::NotABookmark { text: text.chars().take(64).collect() };
        text.parse().map(StartPoint::Time).map_err(|_| not())
    }
}

impl From<StartPoint> for Start {
    fn from(point: StartPoint) -> Start {
        Start(vec![point])
    }
}

impl Start {
    /// The instant, when the start is a single time. Records that were taken up to this time are
    /// omitted, even when they are recorded later.
    pub fn time(&self) -> Option<Timestamp> {
        match self.0[..] {
            [StartPoint::Time(time)] => Some(time),
            _ => None,
        }
    }

    /// The place of the start, when no search is needed.
    pub fn without_search(&self, now: Position) -> Option<Position> {
        match self.0[..] {
            [StartPoint::Epoch] => Some(Position::default()),
            [StartPoint::Now] => Some(now),
            _ => None,
        }
    }

    /// The place after the oldest of the points in this log, or before it with `is_included`;
    /// `None` when the log contains none of them. When the log lacks a message of the list, the
    /// start is before the next message of the same publisher. In a list, a late message means all
    /// messages of its publisher up to it: the start is before those after it. Only messages that
    /// may be named count. May read from the disk.
    pub fn locate(
        &self,
        reader: &Reader,
        now: Position,
        is_included: bool,
        nameable: &Nameable,
    ) -> Result<Option<Position>, JournalError> {
        let back = u64::from(is_included);
        let is_list = self.0.len() > 1;
        let (mut oldest, mut before): (Option<Position>, Option<Position>) = (None, None);
        for point in &self.0 {
            let found = match *point {
                StartPoint::Epoch => Some(Position::default()),
                StartPoint::Now => Some(now),
                StartPoint::Bookmark(bookmark) => match nameable.find_from(reader, bookmark, is_list)? {
                    Some((sequence, position)) if sequence == bookmark.sequence => {
                        Some(Position(position.0 - back))
                    }
                    Some((_, next)) if is_list && nameable.find(reader, bookmark)?.is_some() => {
                        Some(Position(next.0 - 1))
                    }
                    Some((_, next)) => {
                        let earlier = Position(next.0 - 1);
                        before = Some(before.map_or(earlier, |before| before.min(earlier)));
                        None
                    }
                    None => None,
                },
                StartPoint::Time(Timestamp(ns)) => {
                    Some(reader.position_before(Timestamp(ns.saturating_sub(back)))?)
                }
            };
            oldest = [oldest, found].into_iter().flatten().min();
        }
        Ok(oldest.map(|oldest| before.map_or(oldest, |before| before.min(oldest))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_is_told_from_the_others() {
        let point = |text: &str| text.parse::<StartPoint>();
        assert_eq!(point("0"), Ok(StartPoint::Epoch));
        assert_eq!(point("0|1|"), Ok(StartPoint::Now));
        assert!(matches!(point("17|4|"), Ok(StartPoint::Bookmark(b)) if b.sequence == 4));
        assert!(matches!(point("19700101T000001Z"), Ok(StartPoint::Time(_))));
        for text in ["", "1", "17|4", "17|x|", "-1|1|", "17|4|5|", "yesterday", "2015-01-02T12:35:00Z"] {
            assert!(point(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_list_has_a_limit() {
        let list = |count: usize| vec!["7|1|"; count].join(",").parse::<Start>();
        assert_eq!(list(BOOKMARKS_MAX).unwrap().0.len(), BOOKMARKS_MAX);
        assert_eq!(list(BOOKMARKS_MAX + 1), Err(BookmarkError::TooMany { count: BOOKMARKS_MAX + 1 }));
        assert!("7|1|,,8|1|".parse::<Start>().is_err());
    }
}
