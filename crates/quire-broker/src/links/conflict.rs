//! Records that count as duplicates, and are others than those of the log here.
//!
//! Two causes: a publisher without a store used the same sequences on two instances that could not
//! reach each other, or the publisher continued here before its earlier messages arrived. Neither
//! can be undone when the record arrives, so it is reported (docs/replication.md, *The cost of a
//! fault*).

use quire_journal::{AllTopics, Bookmark, JournalError, Position, Reader};
use quire_link::{Conflict, Duplicate, Duplicates, hash_of};

/// The duplicates of a frame, to be compared with the log here.
pub(crate) struct Comparison {
    pub(super) reader: Reader,
    pub(super) duplicates: Duplicates,
}

impl Comparison {
    /// Reads the log. Gives one conflict of each publisher at most. An error of the disk is left to
    /// those who need the record.
    pub(crate) fn run(self) -> Vec<Conflict> {
        let of_publisher = |duplicates: &[Duplicate; 2]| {
            duplicates.iter().find_map(|duplicate| self.compare(duplicate).ok().flatten())
        };
        self.duplicates.of_publishers().filter_map(of_publisher).collect()
    }

    fn compare(&self, duplicate: &Duplicate) -> Result<Option<Conflict>, JournalError> {
        let Duplicate { bookmark, hash } = *duplicate;
        let is_other = match self.reader.find(bookmark)? {
            Some(position) if self.hash_at(position)? == Some(hash) => return Ok(None),
            Some(_) => true,
            None if self.was_removed(bookmark)? => return Ok(None),
            None => false,
        };
        Ok(Some(Conflict { bookmark, is_other }))
    }

    fn hash_at(&self, position: Position) -> Result<Option<u64>, JournalError> {
        let mut cursor = self.reader.cursor(Position::new(position.get() - 1));
        let batch = cursor.next(position, &AllTopics)?;
        let record = batch.as_ref().and_then(|batch| batch.records().next());
        Ok(record.map(|record| hash_of(record.kind, record.topic, record.data)))
    }

    /// Whether maintenance can have removed the record: nothing older of its publisher is in a log
    /// whose beginning was removed.
    fn was_removed(&self, bookmark: Bookmark) -> Result<bool, JournalError> {
        if self.reader.first() == Position::new(1) {
            return Ok(false);
        }
        let first = self.reader.find_from(Bookmark::new(bookmark.publisher, 1))?;
        Ok(first.is_none_or(|(sequence, _)| sequence > bookmark.sequence))
    }
}
