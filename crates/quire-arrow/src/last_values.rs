//! The newest message of each key of a last-value topic, as the log has them up to a position
//! (`docs/spark.md`, "Last values").
//!
//! [`last_values`] reads the range once. For each key it keeps a hash, a position and two times,
//! not the message. [`Plan::scan_at`](crate::Plan::scan_at) then reads the messages at these
//! positions, in several parts when the caller wants that.

use std::collections::HashMap;
use std::time::Duration;

use quire_journal::{JournalError, Position, Reader, Record, RecordKind, Timestamp, TopicFilter};
use rustc_hash::FxBuildHasher;
use xxhash_rust::xxh3::xxh3_128;

use crate::plan::Bounds;

/// The lifetimes of the records of a topic, from its configuration (`expiration` of
/// `[[sow_topic]]`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lifetimes {
    /// Unlimited. The expiration of a message is ignored.
    Unlimited,
    /// The lifetime of the message; without one unlimited.
    OfMessages,
    /// The lifetime of the message; without one this number of nanoseconds.
    AfterNs(u64),
}

impl Lifetimes {
    /// When the record of a message ends. The last possible time for a record without an end.
    fn end_of(self, record: &Record<'_>) -> Timestamp {
        let lifetime_ns = match (self, record.expiration_s) {
            (Lifetimes::Unlimited, _) | (_, Some(0)) | (Lifetimes::OfMessages, None) => u64::MAX,
            (_, Some(seconds)) => Duration::from_secs(seconds.into()).as_nanos() as u64,
            (Lifetimes::AfterNs(lifetime_ns), None) => lifetime_ns,
        };
        Timestamp(record.received().as_ns().saturating_add(lifetime_ns))
    }
}

/// The newest messages of a topic.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LastValues {
    /// Their positions, in ascending order.
    pub positions: Vec<Position>,
    /// Messages in the range that have a key.
    pub keyed_count: u64,
    /// Messages in the range that have no key: they are not records of the topic.
    pub keyless_count: u64,
}

impl LastValues {
    /// The positions in a range, each as the distance from the previous one, for
    /// [`Positions::new`].
    pub fn between(&self, bounds: Bounds) -> Vec<u64> {
        let first = self.positions.partition_point(|position| *position <= bounds.after);
        let end = self.positions.partition_point(|position| *position <= bounds.limit);
        let mut before = 0;
        let distance = |position: &Position| position.get() - std::mem::replace(&mut before, position.get());
        self.positions[first..end.max(first)].iter().map(distance).collect()
    }
}

/// The newest change of a key.
#[derive(Clone, Copy)]
struct Newest {
    /// The position of the message; zero: the key was deleted.
    position: Position,
    /// When the lifetime of the message ends.
    end: Timestamp,
    /// The stamp: its time, and the number of the instance in [`Changes::names`].
    time: Timestamp,
    instance: u32,
    /// A hash of the publisher.
    publisher: u32,
    /// The sequence of the message or of the delete.
    sequence: u64,
}

/// The newest change of each key, by the stamps of the changes.
#[derive(Default)]
struct Changes {
    newest: HashMap<u128, Newest, FxBuildHasher>,
    /// The instances that took changes from publishers. The first one is that of the log, whose
    /// name the log does not have.
    names: Vec<Box<str>>,
}

impl Changes {
    /// The number of the instance that took a record from its publisher.
    fn instance_of(&mut self, record: &Record<'_>) -> u32 {
        let name = record.origin().instance.map_or("", |instance| instance.name);
        let known = self.names.iter().position(|known| **known == *name);
        known.unwrap_or_else(|| {
            self.names.push(name.into());
            self.names.len() - 1
        }) as u32
    }

    /// A change of a key. It decides when it is the next one of the same publisher, or when its
    /// stamp is not lower. A late one does not replace a later one of its publisher.
    fn put(&mut self, key: &[u8], change: Newest, is_late: bool) {
        let Changes { newest, names } = self;
        let known = newest.entry(xxh3_128(key)).or_insert(change);
        let stamp = |change: &Newest| (change.time, &names[change.instance as usize]);
        let is_own = known.publisher == change.publisher;
        if is_own && is_late && known.sequence > change.sequence {
            return;
        }
        if stamp(known) <= stamp(&change) {
            *known = change;
        } else if is_own {
            let Newest { time, instance, .. } = *known;
            *known = Newest { time, instance, ..change };
        }
    }
}

/// Finds the newest message of each key among the records after `bounds.after`, up to
/// `bounds.limit`. Deleted records and those whose lifetime is over at the instant `at` are left
/// out.
///
/// The keys are compared by 128 bits of a hash, as generated keys are. The log does not say the
/// name of its instance. So of two changes with the same time, one of which came from another
/// instance, that one counts as the newer one.
///
/// # Errors
/// The range cannot be read.
pub fn last_values(
    reader: &Reader,
    topic: &str,
    bounds: Bounds,
    lifetimes: Lifetimes,
    at: Timestamp,
) -> Result<LastValues, JournalError> {
    let mut changes = Changes::default();
    let mut found = LastValues::default();
    let mut cursor = reader.cursor(bounds.after);
    while let Some(batch) = cursor.next(bounds.limit, &OneTopic(topic))? {
        for record in batch.records().filter(|record| record.topic == topic) {
            let (instance, time) = (changes.instance_of(&record), record.stamp());
            let publisher = (record.publisher.get() ^ record.publisher.get() >> 32) as u32;
            let sequence = record.sequence;
            match (record.kind, record.key()) {
                (RecordKind::Publish, Some(key)) => {
                    let end = lifetimes.end_of(&record);
                    let position = record.position;
                    let change = Newest { position, end, time, instance, publisher, sequence };
                    changes.put(key, change, record.is_late);
                    found.keyed_count += 1;
                }
                (RecordKind::Publish, None) => found.keyless_count += 1,
                (RecordKind::Delete, _) => {
                    for key in record.deleted_keys() {
                        let (position, end) = (Position::ZERO, Timestamp::default());
                        let change = Newest { position, end, time, instance, publisher, sequence };
                        changes.put(key, change, record.is_late);
                    }
                }
                (RecordKind::Acknowledge | RecordKind::Lease, _) => (),
            }
        }
    }
    let newest = changes.newest.into_values().filter(|change| change.position > Position::ZERO);
    found.positions = newest.filter(|change| change.end > at).map(|change| change.position).collect();
    found.positions.sort_unstable();
    Ok(found)
}

/// Positions in ascending order, of which a scan makes rows.
#[derive(Clone, Debug)]
pub struct Positions {
    distances: std::vec::IntoIter<u64>,
    next: Option<Position>,
}

impl Positions {
    /// From [`LastValues::between`]. A distance of 0 ends the positions.
    pub fn new(distances: Vec<u64>) -> Self {
        let mut positions = Positions { distances: distances.into_iter(), next: Some(Position::ZERO) };
        positions.advance();
        positions
    }

    /// The first position that was not taken.
    pub(crate) fn next(&self) -> Option<Position> {
        self.next
    }

    /// Whether the position is one of them. Call it in ascending order: smaller ones are skipped.
    pub(crate) fn take(&mut self, position: Position) -> bool {
        while self.next.is_some_and(|next| next < position) {
            self.advance();
        }
        let is_wanted = self.next == Some(position);
        if is_wanted {
            self.advance();
        }
        is_wanted
    }

    fn advance(&mut self) {
        let Some(before) = self.next else { return };
        let distance = self.distances.next().filter(|distance| *distance > 0);
        self.next = distance.and_then(|distance| before.get().checked_add(distance)).map(Position::new);
    }
}

/// Blocks without the topic are not read.
struct OneTopic<'a>(&'a str);

impl TopicFilter for OneTopic<'_> {
    fn wants(&self, topic: &str) -> bool {
        topic == self.0
    }
}
