//! Questions to the log here about the records of a frame that it may have
//! (docs/internals/copies.md, *Decisions*).
//!
//! The journal knows most sequences without a look into the log. For the others, the caller stops
//! within the frame, and the log is asked for all of them together. The answers come with the rest
//! of the frame.

use std::hash::BuildHasher;

use quire_journal::RecordKind;
use quire_types::{Bookmark, Position};
use rustc_hash::{FxBuildHasher, FxHashMap};

/// The record of the log here under a bookmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordHere {
    /// The run of its publisher; 0 = it names none.
    pub run: u64,
    /// The [`hash_of`] its content.
    pub hash: u64,
}

/// The answer of the log here about a bookmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InLog {
    /// It has this record.
    Record(RecordHere),
    /// It has none.
    Nothing,
    /// It has none, and may have had one: files with older records of the publisher were removed.
    Removed,
}

/// The answer about each bookmark.
pub type LookedUp = Vec<(Bookmark, InLog)>;

/// The state of the questions about a frame.
#[derive(Debug, Default)]
pub(super) enum Looking {
    #[default]
    Nothing,
    /// They are asked when the log is on the disk up to this position, because only then it can be
    /// searched.
    Due(Position, Vec<Bookmark>),
    /// They are asked: the number of the question. The answers are about the log up to the
    /// position.
    Running(u64, Position),
}

/// Answers about the records of a frame.
pub(super) type Answers = FxHashMap<Bookmark, InLog>;

/// A hash of the content of a record. For a delete only the topic counts: its list of keys may have
/// another order.
pub fn hash_of(kind: RecordKind, topic: &str, data: &[u8]) -> u64 {
    let data = if kind == RecordKind::Delete { &[] } else { data };
    FxBuildHasher.hash_one((kind == RecordKind::Delete, topic, data))
}
