//! Records that count as duplicates. The caller compares some of them with its log, because they
//! may be other records with the same bookmarks (docs/replication.md, *The cost of a fault*).

use std::hash::BuildHasher;

use quire_journal::RecordKind;
use quire_types::Bookmark;
use rustc_hash::FxBuildHasher;

use crate::SentRecord;

/// Publishers whose duplicates are compared, of one frame. A comparison reads the log for each of
/// them.
const PUBLISHERS_MAX: usize = 16;

/// Of each publisher, the first and the last duplicate of a frame: a record that differs is rarely
/// between two that do not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Duplicates(Vec<[Duplicate; 2]>);

/// A record that was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Duplicate {
    /// Its bookmark.
    pub bookmark: Bookmark,
    /// The [`hash_of`] its content.
    pub hash: u64,
}

/// A record of a source that was dropped although the log here does not have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// Its bookmark.
    pub bookmark: Bookmark,
    /// The log here has another record with this bookmark; otherwise it has none.
    pub is_other: bool,
}

impl Duplicates {
    /// The first and the last duplicate of each publisher.
    pub fn of_publishers(&self) -> impl Iterator<Item = &[Duplicate; 2]> {
        self.0.iter()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn note(&mut self, record: &SentRecord<'_>) {
        let SentRecord { bookmark, kind, topic, data, .. } = *record;
        let new = Duplicate { bookmark, hash: hash_of(kind, topic, data) };
        let is_of_publisher = |[first, _]: &[Duplicate; 2]| first.bookmark.publisher == bookmark.publisher;
        match self.0.iter().rposition(is_of_publisher) {
            Some(index) => self.0[index][1] = new,
            None if self.0.len() < PUBLISHERS_MAX => self.0.push([new, new]),
            None => (),
        }
    }
}

/// A hash of the content of a record. For a delete only the topic counts: its list of keys may have
/// another order.
pub fn hash_of(kind: RecordKind, topic: &str, data: &[u8]) -> u64 {
    let data = if kind == RecordKind::Delete { &[] } else { data };
    FxBuildHasher.hash_one((kind == RecordKind::Delete, topic, data))
}
