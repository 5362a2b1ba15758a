//! Records that count as duplicates, and are others than those of the log here.
//!
//! Two causes: a publisher without a store used the same sequences on two instances that could not reach each other, or the publisher
//! continued here before its earlier messages arrived. Neither can be undone when the record arrives, so it is reported
//! (docs/replication.md, *The cost of a fault*).

use std::hash::BuildHasher;

use quire_journal::{AllTopics, Bookmark, JournalError, Position, Reader, RecordKind};
use rustc_hash::FxBuildHasher;

use super::SentRecord;

/// Publishers whose duplicates are compared, of one frame. A comparison reads the log for each of them.
const PUBLISHERS_MAX: usize = 16;

/// Of each publisher, the first and the last duplicate of a frame: a record that differs is rarely between two that do not.
#[derive(Clone, Debug, Default)]
pub(super) struct Duplicates(Vec<(Duplicate, Duplicate)>);

#[derive(Clone, Copy, Debug)]
struct Duplicate {
    bookmark: Bookmark,
    hash: u64,
}

impl Duplicates {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn note(&mut self, record: &SentRecord<'_>) {
        let SentRecord { bookmark, kind, topic, data, .. } = *record;
        let new = Duplicate { bookmark, hash: hash_of(kind, topic, data) };
        let is_of_publisher = |(first, _): &(Duplicate, _)| first.bookmark.publisher == bookmark.publisher;
        match self.0.iter().rposition(is_of_publisher) {
            Some(index) => self.0[index].1 = new,
            None if self.0.len() < PUBLISHERS_MAX => self.0.push((new, new)),
            None => (),
        }
    }
}

/// For a delete only the topic counts: its list of keys may have another order.
fn hash_of(kind: RecordKind, topic: &str, data: &[u8]) -> u64 {
    let data = if kind == RecordKind::Delete { &[] } else { data };
    FxBuildHasher.hash_one((kind == RecordKind::Delete, topic, data))
}

/// The duplicates of a frame, to be compared with the log here.
pub(crate) struct Comparison {
    pub(super) reader: Reader,
    pub(super) duplicates: Duplicates,
}

/// A record of a source that was dropped although the log here does not have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Conflict {
    pub(super) bookmark: Bookmark,
    /// The log here has another record with this bookmark; otherwise it has none.
    pub(super) is_other: bool,
}

impl Comparison {
    /// Reads the log. Gives one conflict of each publisher at most. An error of the disk is left to those who need the record.
    pub(crate) fn run(self) -> Vec<Conflict> {
        let of_publisher = |(first, last): &(Duplicate, Duplicate)| {
            [first, last].into_iter().find_map(|duplicate| self.compare(duplicate).ok().flatten())
        };
        self.duplicates.0.iter().filter_map(of_publisher).collect()
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

    /// Whether maintenance can have removed the record: nothing older of its publisher is in a log whose beginning was removed.
    fn was_removed(&self, bookmark: Bookmark) -> Result<bool, JournalError> {
        if self.reader.first() == Position::new(1) {
            return Ok(false);
        }
        let first = self.reader.find_from(Bookmark::new(bookmark.publisher, 1))?;
        Ok(first.is_none_or(|(sequence, _)| sequence > bookmark.sequence))
    }
}
