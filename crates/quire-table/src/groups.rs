//! The groups of a view: they follow each change of the rows of their source (docs/views.md).
//!
//! A change has the row before it and the row after it. The values of the row before are removed
//! from its group, and those of the row after are added to its group. No row is kept, because the
//! same row always gives the same values: an expression sees the time of the row and not the
//! current time.
//!
//! A group is found by the hash of its values, which is also its key. The groups are in many small
//! maps, so that the growth of one map takes little time.

use hashbrown::HashMap;
use hashbrown::hash_map::Entry;
use quire_expression::filter::{Accumulator, Filter, MessageContext, OwnedValue, Projection};
use quire_expression::message_type::{Arena, AssignError, MessageType, Value};
use quire_types::Timestamp;
use rustc_hash::FxBuildHasher;
use smallvec::SmallVec;
use xxhash_rust::xxh3::{xxh3_64, xxh3_128_with_seed};

use crate::aggregation::value_key;
use crate::key::{Key, key_of_hash};
use crate::order::{SortKey, put_value};
use crate::row::{Head, Row};
use crate::scan::effort_max;

/// A map has some thousand groups when a view has a million, so that its growth takes less than a
/// tenth of a millisecond.
const MAPS: usize = 256;

/// The definition of the groups of a view.
#[derive(Clone, Debug)]
pub struct GroupsConfig {
    /// The topic of the source, and the type of its messages.
    pub source: Box<str>,
    /// See `source`.
    pub source_type: MessageType,
    /// Rows of the source that do not match are in no group.
    pub filter: Option<Filter>,
    /// The fields of a record, and the fields that make the groups.
    pub projection: Projection,
    /// Groups with equal values have equal keys in views with the same domain.
    pub key_domain: Box<str>,
}

/// The groups of one view.
#[derive(Debug)]
pub struct Groups {
    config: GroupsConfig,
    /// Of the key domain.
    seed: u64,
    maps: Box<[HashMap<GroupId, Group, FxBuildHasher>]>,
}

/// A group: the hash of its values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId(u128);

/// The state of a group.
#[derive(Debug)]
struct Group {
    /// The values of the fields of `grouping`, as they came first.
    values: Box<[OwnedValue]>,
    aggregates: Box<[Accumulator]>,
    /// The rows of the source that are in the group. A group without rows is removed when its
    /// record is written.
    row_count: u64,
    /// The time of its last change.
    changed: Timestamp,
}

/// The record of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// The record was written. The time is that of the last change of the group.
    Record(Timestamp),
    /// The group has no rows any more, so it has no record.
    Gone,
}

/// A change of a row, as a copy that waits.
#[derive(Debug)]
pub struct RowChange {
    /// The row before the change, and then the row after it.
    bytes: Box<[u8]>,
    old_size: usize,
    /// When it was made.
    pub at: Timestamp,
}

impl GroupId {
    /// The key of the record of the group.
    pub fn key(self) -> Key {
        key_of_hash(self.0)
    }

    fn map(self) -> usize {
        // The maps use the lower bits.
        (self.0 >> 120) as usize % MAPS
    }
}

impl RowChange {
    /// Copies the rows: before the change (`None`: the key is new), and after it (`None`: the row
    /// was removed).
    pub fn new(old: Option<&Row<'_>>, new: Option<&Row<'_>>, at: Timestamp) -> Self {
        let (old_head, new_head) = (old.map(Head::new), new.map(Head::new));
        let parts = |head: &Option<Head>, row: Option<&Row<'_>>| -> usize {
            head.as_ref()
                .zip(row)
                .map_or(0, |(head, row)| head.parts(row).iter().map(|part| part.len()).sum())
        };
        let old_size = parts(&old_head, old);
        let mut bytes = Vec::with_capacity(old_size + parts(&new_head, new));
        for (head, row) in [(&old_head, old), (&new_head, new)] {
            if let (Some(head), Some(row)) = (head, row) {
                head.parts(row).into_iter().for_each(|part| bytes.extend_from_slice(part));
            }
        }
        RowChange { bytes: bytes.into(), old_size, at }
    }

    /// The row before the change.
    pub fn old(&self) -> Option<Row<'_>> {
        (self.old_size > 0).then(|| Row::of(&self.bytes[..self.old_size]))
    }

    /// The row after the change.
    pub fn new_row(&self) -> Option<Row<'_>> {
        (self.old_size < self.bytes.len()).then(|| Row::of(&self.bytes[self.old_size..]))
    }

    /// The bytes of the copy.
    pub fn size(&self) -> usize {
        self.bytes.len()
    }
}

impl Groups {
    /// No rows yet. Without fields in `grouping` there is one group, also without rows.
    pub fn new(config: GroupsConfig) -> Self {
        let seed = xxh3_64(config.key_domain.as_bytes());
        let maps = std::iter::repeat_with(HashMap::default).take(MAPS).collect();
        let mut groups = Groups { config, seed, maps };
        if let Some(id) = groups.only_group() {
            let aggregates = groups.config.projection.kinds().map(Accumulator::retracting).collect();
            let group = Group { values: Box::default(), aggregates, row_count: 0, changed: Timestamp(0) };
            groups.maps[id.map()].insert(id, group);
        }
        groups
    }

    /// The number of groups.
    pub fn len(&self) -> usize {
        self.maps.iter().map(HashMap::len).sum()
    }

    /// Whether there is no group.
    pub fn is_empty(&self) -> bool {
        self.maps.iter().all(HashMap::is_empty)
    }

    /// All groups, in no order.
    pub fn ids(&self) -> impl Iterator<Item = GroupId> {
        self.maps.iter().flat_map(|map| map.keys().copied())
    }

    /// The group of a view without `grouping`.
    fn only_group(&self) -> Option<GroupId> {
        (self.config.projection.grouping_count() == 0).then(|| GroupId(xxh3_128_with_seed(&[], self.seed)))
    }

    /// Takes a change of a row. Returns the groups that it touched, first that of the row before.
    /// The caller then writes their records ([`write`](Self::write)).
    pub fn change(
        &mut self,
        old: Option<&Row<'_>>,
        new: Option<&Row<'_>>,
        at: Timestamp,
        arena: &mut Arena,
    ) -> SmallVec<[GroupId; 2]> {
        let mut touched = SmallVec::new();
        touched.extend(old.and_then(|row| self.contribute(row, false, at, arena)));
        touched.extend(new.and_then(|row| self.contribute(row, true, at, arena)));
        touched.dedup();
        touched
    }

    /// Adds the values of a row to its group, or removes them from it. Returns the group; `None`:
    /// the row is in no group.
    fn contribute(&mut self, row: &Row<'_>, adds: bool, at: Timestamp, arena: &mut Arena) -> Option<GroupId> {
        let Groups { config, seed, maps } = self;
        let message = config.context_of(row);
        if !config.includes(&message, arena) {
            return None;
        }
        let projection = &config.projection;
        arena.reset();
        arena.allow(effort_max(row.data.len()));
        let arena = &*arena;
        let unread: SmallVec<[Value<'_>; 8]>;
        let values = match projection.read(&message, arena) {
            Some(values) => values,
            None => {
                unread =
                    SmallVec::from_elem(Value::Null, projection.grouping_count() + projection.kinds().len());
                &unread
            }
        };
        let (grouping, arguments) = values.split_at(projection.grouping_count());
        let mut key = SortKey::new();
        grouping.iter().for_each(|value| put_value(*value, arena, &mut key));
        let id = GroupId(xxh3_128_with_seed(&key, *seed));
        let map = &mut maps[id.map()];
        let group = if adds {
            let group = match map.entry(id) {
                Entry::Occupied(group) => group.into_mut(),
                Entry::Vacant(place) => place.insert(Group {
                    values: Box::default(),
                    aggregates: projection.kinds().map(Accumulator::retracting).collect(),
                    row_count: 0,
                    changed: at,
                }),
            };
            if group.row_count == 0 {
                group.values = grouping.iter().map(|value| OwnedValue::of(*value)).collect();
            }
            group.row_count += 1;
            group
        } else {
            let group = map.get_mut(&id);
            debug_assert!(group.is_some(), "the row was added before");
            let group = group?;
            group.row_count = group.row_count.saturating_sub(1);
            group
        };
        group.changed = group.changed.max(at);
        for ((kind, aggregate), value) in projection.kinds().zip(&mut group.aggregates).zip(arguments) {
            let key_of = |value: Value<'_>| value_key(value, arena);
            match adds {
                true => {
                    aggregate.add(kind, *value, arena, key_of);
                }
                false => aggregate.remove(kind, *value, key_of),
            }
        }
        Some(id)
    }

    /// Writes the record of a group into `out`, and removes a group without rows.
    ///
    /// # Errors
    /// [`AssignError`]: the record cannot be a message of the type of the view. `out` is empty
    /// then.
    pub fn write(
        &mut self,
        id: GroupId,
        topic: &str,
        arena: &mut Arena,
        out: &mut Vec<u8>,
    ) -> Result<Written, AssignError> {
        out.clear();
        let is_only = self.only_group() == Some(id);
        let map = &mut self.maps[id.map()];
        let Some(group) = map.get(&id) else { return Ok(Written::Gone) };
        if group.row_count == 0 && !is_only {
            map.remove(&id);
            return Ok(Written::Gone);
        }
        let kinds = self.config.projection.kinds();
        let results: SmallVec<[OwnedValue; 4]> =
            group.aggregates.iter().zip(kinds).map(|(each, kind)| each.result(kind)).collect();
        arena.allow(effort_max(0));
        self.config.projection.write(&group.values, &results, topic, group.changed, arena, out)?;
        Ok(Written::Record(group.changed))
    }
}

impl GroupsConfig {
    /// The input of expressions from a row. The time of the evaluation is the time of the row, so
    /// that each evaluation gives the same values.
    fn context_of<'a>(&'a self, row: &Row<'a>) -> MessageContext<'a> {
        MessageContext {
            message_type: self.source_type,
            data: row.data,
            topic: &self.source,
            key: Some(row.key),
            bookmark: None,
            correlation_id: row.correlation_id,
            headers: row.headers,
            timestamp: row.timestamp,
            now: row.timestamp,
        }
    }

    fn includes(&self, message: &MessageContext<'_>, arena: &mut Arena) -> bool {
        let Some(filter) = &self.filter else { return true };
        arena.allow(effort_max(message.data.len()));
        let decided = filter.decide(message, arena);
        if decided.is_none() {
            message.report_costly(arena);
        }
        decided == Some(true)
    }
}
