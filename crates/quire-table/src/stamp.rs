//! The order of the changes of a key over all instances, and the deletes that the table remembers.
//!
//! Each change of a key has a [`Stamp`]. The change with the highest stamp decides, in whatever
//! order the changes arrive. So tables of several instances that got the same changes are equal. A
//! delete leaves no row, so the table remembers its stamp. A row whose lifetime ended is remembered
//! in the same way.
//!
//! The changes of one publisher arrive in the order in which it made them, unless they are late.
//! The later one decides, also when its stamp is lower, because the publisher has moved to an
//! instance with a slower clock. It then has the higher one of the two stamps. So the order of
//! changes of different publishers does not depend on the order in which they arrive. A late change
//! is compared with the sequence of the known one, when both are of one publisher
//! ([`Table::known_of`](crate::Table::known_of)).

use std::collections::BTreeMap;
use std::sync::Arc;

use quire_journal::{Position, PublisherId, Timestamp};

/// The order of a change of a key: the later time wins, then the greater name of the instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stamp<'a> {
    /// The time that the instance gave the change.
    pub time: Timestamp,
    /// The instance that took the change from its publisher; empty = this one.
    pub instance: &'a str,
}

/// A change of a key, as the order of changes sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyChange<'a> {
    /// Its stamp.
    pub stamp: Stamp<'a>,
    /// Its publisher.
    pub publisher: PublisherId,
    /// Its sequence; 0 = not known.
    pub sequence: u64,
    /// Later messages of the publisher arrived before it, and it is not known whether one of them
    /// changed the key.
    pub is_late: bool,
}

/// The change that a table knows of a key, when it is of a certain publisher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KnownChange {
    /// The message at this position.
    Row(Position),
    /// A delete with this sequence; 0 = not known.
    Delete {
        /// The sequence.
        sequence: u64,
    },
}

impl KeyChange<'_> {
    /// The publisher as rows have it. Two publishers with equal numbers are taken for one.
    pub(crate) fn publisher_number(&self) -> u32 {
        let id = self.publisher.get();
        (id ^ id >> 32) as u32
    }
}

/// The order of the change that made a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowStamp {
    pub(crate) time: Timestamp,
    /// The number of the instance in the list of the table; 0 = this instance.
    pub(crate) instance: u16,
    /// See [`KeyChange::publisher_number`].
    pub(crate) publisher: u32,
}

/// The parts of the order that a snapshot has in its last block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KnownOrder {
    /// The names of the other instances. The numbers of [`RowStamp`] begin with 1.
    pub(crate) names: Vec<Box<str>>,
    pub(crate) forgotten: Timestamp,
}

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct KeyOrder {
    /// The names of instances. The first one is this instance.
    names: Vec<Box<str>>,
    deleted: BTreeMap<Arc<[u8]>, Deleted>,
    /// The keys of `deleted`, by the number of the delete.
    by_number: BTreeMap<u64, Arc<[u8]>>,
    next_number: u64,
    deleted_max: usize,
    /// The highest time of the deletes that were forgotten.
    forgotten: Timestamp,
    forgotten_count: u64,
}

#[derive(Clone, Copy, Debug)]
struct Deleted {
    stamp: RowStamp,
    /// The sequence of the delete. A snapshot does not have it: 0 = not known.
    sequence: u64,
    number: u64,
}

impl Default for KeyOrder {
    fn default() -> Self {
        KeyOrder {
            names: vec!["".into()],
            deleted: BTreeMap::new(),
            by_number: BTreeMap::new(),
            next_number: 0,
            deleted_max: usize::MAX,
            forgotten: Timestamp(0),
            forgotten_count: 0,
        }
    }
}

impl KeyOrder {
    pub fn set(&mut self, instance: &str, deleted_max: usize) {
        self.names[0] = instance.into();
        self.deleted_max = deleted_max;
    }

    /// A stamp that can be compared with stamps of other instances.
    pub fn whole(&self, stamp: RowStamp) -> Stamp<'_> {
        let instance = self.names.get(usize::from(stamp.instance)).map_or("", |name| name);
        Stamp { time: stamp.time, instance }
    }

    /// The stamp with the name of this instance, when it is of this instance.
    pub fn named<'a>(&'a self, stamp: Stamp<'a>) -> Stamp<'a> {
        if stamp.instance.is_empty() { Stamp { instance: &self.names[0], ..stamp } } else { stamp }
    }

    /// Whether a change replaces the one that the table knows of the key.
    pub fn admits(&self, change: &KeyChange<'_>, known: Option<RowStamp>) -> bool {
        let Some(known) = known else { return true };
        let is_next = known.publisher == change.publisher_number() && !change.is_late;
        is_next || self.whole(known) <= self.named(change.stamp)
    }

    /// The stamp of a change that is admitted, as a row has it. `known` is that of the change
    /// before it. A list of 65,536 names takes no more: later instances then count as the last one
    /// of the list.
    pub fn row_stamp(&mut self, change: &KeyChange<'_>, known: Option<RowStamp>) -> RowStamp {
        let publisher = change.publisher_number();
        if let Some(known) = known
            && self.whole(known) > self.named(change.stamp)
        {
            return RowStamp { publisher, ..known };
        }
        let Stamp { time, instance } = change.stamp;
        let known = match instance {
            "" => Some(0),
            _ => self.names.iter().position(|name| **name == *instance),
        };
        let number = known.unwrap_or_else(|| {
            if self.names.len() <= usize::from(u16::MAX) {
                self.names.push(instance.into());
            }
            self.names.len() - 1
        });
        RowStamp { time, instance: number as u16, publisher }
    }

    /// The stamp of the delete of a key.
    pub fn deleted(&self, key: &[u8]) -> Option<RowStamp> {
        self.deleted.get(key).map(|deleted| deleted.stamp)
    }

    /// The sequence of the delete of a key, when it is of this publisher.
    pub fn deleted_by(&self, key: &[u8], change: &KeyChange<'_>) -> Option<u64> {
        let deleted = self.deleted.get(key)?;
        (deleted.stamp.publisher == change.publisher_number()).then_some(deleted.sequence)
    }

    /// A key that is not remembered may have been deleted at this time or before.
    pub fn forgotten(&self) -> Timestamp {
        self.forgotten
    }

    /// The number of deletes that were forgotten.
    pub fn forgotten_count(&self) -> u64 {
        self.forgotten_count
    }

    /// The number of deletes that are remembered.
    pub fn deleted_count(&self) -> usize {
        self.deleted.len()
    }

    /// The key has a row again.
    pub fn put(&mut self, key: &[u8]) {
        if let Some(deleted) = self.deleted.remove(key) {
            self.by_number.remove(&deleted.number);
        }
    }

    /// The key was deleted. At the limit, the oldest delete is forgotten.
    pub fn delete(&mut self, key: &[u8], stamp: RowStamp, sequence: u64) {
        self.put(key);
        let (key, number): (Arc<[u8]>, _) = (key.into(), self.next_number);
        self.next_number += 1;
        self.deleted.insert(key.clone(), Deleted { stamp, sequence, number });
        self.by_number.insert(number, key);
        while self.deleted.len() > self.deleted_max
            && let Some((_, key)) = self.by_number.pop_first()
        {
            if let Some(forgotten) = self.deleted.remove(&key) {
                self.forgotten = self.forgotten.max(forgotten.stamp.time);
                self.forgotten_count += 1;
            }
        }
    }

    /// The deletes from a number on, each with its number.
    pub fn deletes_from(&self, number: u64) -> impl Iterator<Item = (u64, &[u8], RowStamp)> {
        let found = self.by_number.range(number..);
        found.filter_map(|(number, key)| Some((*number, &**key, self.deleted.get(key)?.stamp)))
    }

    pub fn known(&self) -> KnownOrder {
        KnownOrder { names: self.names[1..].to_vec(), forgotten: self.forgotten }
    }

    /// The rows and deletes of a snapshot have the numbers of these names.
    pub fn restore(&mut self, known: KnownOrder) {
        self.names.truncate(1);
        self.names.extend(known.names);
        self.forgotten = known.forgotten;
    }
}

impl KnownOrder {
    /// Appends it to the bytes of the last block.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.forgotten.as_ns().to_le_bytes());
        for name in &self.names {
            out.push(name.len() as u8);
            out.extend_from_slice(name.as_bytes());
        }
    }

    /// Reads what [`encode`](Self::encode) has written; `None`: the bytes are something else.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let (forgotten, mut rest) = bytes.split_first_chunk()?;
        let mut known =
            KnownOrder { names: Vec::new(), forgotten: Timestamp(u64::from_le_bytes(*forgotten)) };
        while let Some((size, after)) = rest.split_first() {
            let (name, after) = after.split_at_checked(usize::from(*size))?;
            known.names.push(std::str::from_utf8(name).ok()?.into());
            rest = after;
        }
        (known.names.len() <= usize::from(u16::MAX)).then_some(known)
    }
}
