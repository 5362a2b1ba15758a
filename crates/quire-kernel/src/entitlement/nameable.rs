//! The messages of the log that a user may name by their bookmarks.

use std::sync::Arc;

use quire_journal::{Bookmark, JournalError, Position, Reader, TopicFilter};

use super::entry::{Entry, Right};
use super::rights::decide;

/// The most messages of a publisher that a search passes over because the user may not replay them.
const PASSED_MAX: usize = 64;

/// The topics whose messages a user may name. A message of another topic is as if the log did not
/// have it, so that the user does not learn whether it does. The default is every topic.
#[derive(Clone, Debug, Default)]
pub struct Nameable(Option<Arc<[Arc<Entry>]>>);

impl Nameable {
    /// The topics of a user with these entries.
    pub(super) fn within(entries: &Arc<[Arc<Entry>]>) -> Self {
        Nameable(Some(entries.clone()))
    }

    /// Whether messages of the topic may be named.
    pub fn allows(&self, topic: &str) -> bool {
        let Some(entries) = &self.0 else { return true };
        decide(entries, Right::Replay, topic).and_then(|entry| entry.verdict(Right::Replay)) == Some(true)
    }

    /// As [`Reader::find`].
    ///
    /// # Errors
    /// As [`Reader::find`].
    pub fn find(&self, reader: &Reader, bookmark: Bookmark) -> Result<Option<Position>, JournalError> {
        let Some(position) = reader.find(bookmark)? else { return Ok(None) };
        Ok(self.allows_at(reader, position)?.then_some(position))
    }

    /// As [`Reader::find_from`], or as [`Reader::find_first`] when late messages do not count.
    ///
    /// # Errors
    /// As [`Reader::find_from`].
    pub fn find_from(
        &self,
        reader: &Reader,
        bookmark: Bookmark,
        in_order: bool,
    ) -> Result<Option<(u64, Position)>, JournalError> {
        let (mut next, mut passed_count) = (bookmark, 0);
        loop {
            let found = if in_order { reader.find_first(next)? } else { reader.find_from(next)? };
            let Some((sequence, position)) = found else { return Ok(None) };
            // The number does not depend on whether the log has the message itself.
            if passed_count == PASSED_MAX || self.allows_at(reader, position)? {
                return Ok(Some((sequence, position)));
            }
            passed_count += usize::from(sequence > bookmark.sequence);
            let Some(sequence) = sequence.checked_add(1) else { return Ok(None) };
            next = Bookmark { sequence, ..bookmark };
        }
    }

    fn allows_at(&self, reader: &Reader, position: Position) -> Result<bool, JournalError> {
        if self.0.is_none() {
            return Ok(true);
        }
        let mut cursor = reader.cursor(Position::new(position.get() - 1)).sparingly();
        let batch = cursor.next(position, self)?;
        Ok(batch.is_some_and(|batch| {
            batch.records().any(|record| record.position == position && self.allows(record.topic))
        }))
    }
}

impl TopicFilter for Nameable {
    fn wants(&self, topic: &str) -> bool {
        self.allows(topic)
    }
}
