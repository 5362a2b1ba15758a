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
use quire_expression::filter::{
    Accumulator, Filter, MessageContext, OwnedValue, Projection, Stored, put_number,
};
use quire_expression::message_type::{Arena, AssignError, MessageType, Value};
use quire_types::Timestamp;
use rustc_hash::FxBuildHasher;
use smallvec::SmallVec;
use xxhash_rust::xxh3::{xxh3_64, xxh3_128_with_seed};

use crate::aggregation::value_key;
use crate::key::{Key, key_of_hash};
use crate::order::{SortKey, put_value};
use crate::row::{Head, Row};
use crate::saving::Saving;
use crate::scan::effort_max;

/// A map has some thousand groups when a view has a million, so that its growth takes less than a
/// tenth of a millisecond.
const MAPS: usize = 256;

/// The parts of the groups of a view. A million groups have some thousand in each part.
pub const PARTS: usize = MAPS;

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
    maps: GroupMaps,
}

/// The groups of a view by their hashes.
#[derive(Debug)]
pub(crate) struct GroupMaps {
    /// Of the key domain.
    seed: u64,
    maps: Box<[HashMap<GroupId, Group, FxBuildHasher>]>,
    /// The bytes that the groups hold outside of the maps.
    heap_size: usize,
    /// The rows of all groups.
    row_count: u64,
    /// A snapshot that is being written.
    saving: Option<Box<GroupsSaving>>,
}

/// The groups on their way into a snapshot.
#[derive(Debug, Default)]
struct GroupsSaving {
    groups: Saving<GroupId>,
    /// The map that is being written, and the groups of it that were not, the last ones first.
    map: usize,
    left: Vec<GroupId>,
}

/// A group: the hash of its values. The groups of a map follow each other in this order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId(u128);

/// A walk through all groups, one part after the other. To collect a million groups at once would
/// take milliseconds. No group may be added before it ends.
#[derive(Debug, Default)]
pub struct GroupWalk {
    /// The next part.
    part: usize,
    /// The groups of the parts before it that were not visited.
    left: Vec<GroupId>,
}

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
    /// It has changed since its record was written.
    is_touched: bool,
}

/// The effect of a row on its group.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Effect {
    /// The values are added, and not removed.
    pub adds: bool,
    /// The time of the change.
    pub at: Timestamp,
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
#[derive(Clone, Debug)]
pub struct RowChange {
    /// The row before the change, and then the row after it.
    bytes: Box<[u8]>,
    old_size: usize,
    /// When it was made.
    pub at: Timestamp,
}

impl GroupWalk {
    /// The next group; `None`: all were visited. `of_part` has the groups of one of the [`PARTS`]
    /// parts.
    pub fn next(&mut self, of_part: impl Fn(usize) -> Vec<GroupId>) -> Option<GroupId> {
        while self.left.is_empty() && self.part < PARTS {
            self.left = of_part(self.part);
            self.part += 1;
        }
        self.left.pop()
    }

    /// Whether all groups were visited.
    pub fn is_done(&self) -> bool {
        self.part == PARTS && self.left.is_empty()
    }
}

impl GroupId {
    /// The key of the record of the group.
    pub fn key(self) -> Key {
        key_of_hash(self.0)
    }

    /// The group whose record has this key; `None`: it is the key of no group.
    pub fn of_key(key: &[u8]) -> Option<Self> {
        u128::from_str_radix(std::str::from_utf8(key).ok()?, 16).ok().map(GroupId)
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

impl GroupMaps {
    /// No rows yet. Without fields in `grouping` there is one group, also without rows.
    pub fn new(projection: &Projection, key_domain: &str) -> Self {
        let seed = xxh3_64(key_domain.as_bytes());
        let maps = std::iter::repeat_with(HashMap::default).take(MAPS).collect();
        let mut groups = GroupMaps { seed, maps, heap_size: 0, row_count: 0, saving: None };
        if let Some(id) = groups.only_group(projection) {
            let group = Group::new(projection, Timestamp(0));
            groups.heap_size += group.heap_size();
            groups.maps[id.map()].insert(id, group);
        }
        groups
    }

    pub fn len(&self) -> usize {
        self.maps.iter().map(HashMap::len).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.maps.iter().all(HashMap::is_empty)
    }

    /// The groups of one of the [`PARTS`] parts.
    pub fn ids_of_part(&self, part: usize) -> impl Iterator<Item = GroupId> {
        self.maps.get(part).into_iter().flat_map(|map| map.keys().copied())
    }

    /// Whether the group has a record, unless it cannot be written.
    pub fn has_record(&self, projection: &Projection, id: GroupId) -> bool {
        let group = self.maps[id.map()].get(&id);
        group.is_some_and(|group| group.row_count > 0 || self.only_group(projection) == Some(id))
    }

    /// The rows of all groups.
    pub fn row_count(&self) -> u64 {
        self.row_count
    }

    /// The bytes of memory of all groups.
    pub fn memory_size(&self) -> usize {
        let places: usize = self.maps.iter().map(HashMap::capacity).sum();
        places * (size_of::<(GroupId, Group)>() + 1) + self.heap_size
    }

    /// The group of a view without `grouping`.
    fn only_group(&self, projection: &Projection) -> Option<GroupId> {
        let is_one = projection.grouping_count() == 0 && !projection.is_ungrouped();
        is_one.then(|| self.id_of(&[]))
    }

    /// The group whose values are these bytes.
    pub fn id_of(&self, bytes: &[u8]) -> GroupId {
        GroupId(xxh3_128_with_seed(bytes, self.seed))
    }

    /// Adds the values of a row to its group, or removes them from it. `values` has those of the
    /// fields of `grouping`, and those that the aggregates get. `id` is known when it does not
    /// depend on the values. Returns the group, and whether this is its first change since its
    /// record was written; `None`: the row was not added before.
    pub fn apply(
        &mut self,
        projection: &Projection,
        values: &[Value<'_>],
        id: Option<GroupId>,
        effect: Effect,
        arena: &Arena,
    ) -> Option<(GroupId, bool)> {
        let (grouping, arguments) = values.split_at(projection.grouping_count());
        let id = id.unwrap_or_else(|| {
            let mut key = SortKey::new();
            grouping.iter().for_each(|value| put_value(*value, arena, &mut key));
            self.id_of(&key)
        });
        self.before_change(id);
        let GroupMaps { maps, heap_size, row_count, .. } = self;
        let map = &mut maps[id.map()];
        let group = if effect.adds {
            let group = match map.entry(id) {
                Entry::Occupied(group) => group.into_mut(),
                Entry::Vacant(place) => {
                    let group = Group::new(projection, effect.at);
                    *heap_size += group.heap_size();
                    place.insert(group)
                }
            };
            if group.row_count == 0 {
                *heap_size -= group.values_size();
                group.values = grouping.iter().map(|value| OwnedValue::of(*value)).collect();
                *heap_size += group.values_size();
            }
            group.row_count += 1;
            *row_count += 1;
            group
        } else {
            let group = map.get_mut(&id);
            debug_assert!(group.is_some(), "the row was added before");
            let group = group?;
            group.row_count = group.row_count.saturating_sub(1);
            *row_count = row_count.saturating_sub(1);
            group
        };
        group.changed = group.changed.max(effect.at);
        let is_first = !std::mem::replace(&mut group.is_touched, true);
        for ((kind, aggregate), value) in projection.kinds().zip(&mut group.aggregates).zip(arguments) {
            let key_of = |value: Value<'_>| value_key(value, arena);
            *heap_size -= aggregate.heap_size();
            match effect.adds {
                true => {
                    aggregate.add(kind, *value, arena, key_of);
                }
                false => aggregate.remove(kind, *value, key_of),
            }
            *heap_size += aggregate.heap_size();
        }
        Some((id, is_first))
    }

    /// Writes the record of a group into `out`, and removes a group without rows.
    ///
    /// # Errors
    /// As [`Groups::write`].
    pub fn write(
        &mut self,
        projection: &Projection,
        id: GroupId,
        topic: &str,
        arena: &mut Arena,
        out: &mut Vec<u8>,
    ) -> Result<Written, AssignError> {
        out.clear();
        let is_only = self.only_group(projection) == Some(id);
        let Some(group) = self.maps[id.map()].get_mut(&id) else { return Ok(Written::Gone) };
        group.is_touched = false;
        if group.row_count == 0 && !is_only {
            self.heap_size -= group.heap_size();
            self.before_change(id);
            self.maps[id.map()].remove(&id);
            return Ok(Written::Gone);
        }
        let kinds = projection.kinds();
        let results: SmallVec<[OwnedValue; 4]> =
            group.aggregates.iter().zip(kinds).map(|(each, kind)| each.result(kind)).collect();
        arena.allow(effort_max(0));
        projection.write(&group.values, &results, topic, group.changed, arena, out)?;
        Ok(Written::Record(group.changed))
    }
}

/// The groups in snapshots.
impl GroupMaps {
    /// Begins a snapshot of the groups of this call. All their records were written.
    pub fn begin_saving(&mut self) {
        self.saving = Some(Box::default());
    }

    /// Appends the next groups, about `effort` of them, and those that have changed in the
    /// meantime. Returns their number; `None`: there are no more, and the snapshot is done.
    pub fn save(&mut self, effort: usize, out: &mut Vec<u8>) -> Option<u32> {
        let GroupMaps { maps, saving, .. } = self;
        let state = saving.as_mut()?;
        let GroupsSaving { groups, map, left } = &mut **state;
        let mut count = groups.take_copies(out);
        while (count as usize) < effort.max(1) {
            let Some(id) = left.pop() else {
                let Some(next) = maps.get(*map) else { break };
                left.extend(next.keys());
                left.sort_unstable_by(|one, other| other.cmp(one));
                *map += 1;
                continue;
            };
            groups.advance(GroupId(id.0.saturating_add(1)));
            if let Some(group) = maps[id.map()].get(&id).filter(|_| !groups.is_known(id)) {
                group.store(id, out);
                count += 1;
            }
        }
        if count == 0 {
            self.saving = None;
        }
        (count > 0).then_some(count)
    }

    /// The bytes that a snapshot holds.
    pub fn saving_size(&self) -> usize {
        self.saving.as_ref().map_or(0, |saving| saving.groups.size())
    }

    /// Ends a snapshot before it is done.
    pub fn end_saving(&mut self) {
        self.saving = None;
    }

    fn before_change(&mut self, id: GroupId) {
        let Some(saving) = &mut self.saving else { return };
        let group = self.maps[id.map()].get(&id);
        saving.groups.before_change(id, |out| group.inspect(|group| group.store(id, out)).is_some());
    }

    /// Adds a group of a snapshot. `None`: the bytes are not one.
    pub fn restore(&mut self, projection: &Projection, stored: &mut Stored<'_>) -> Option<()> {
        let id = GroupId(u128::from_le_bytes(stored.array()?));
        let group = Group::restore(projection, stored)?;
        self.heap_size += group.heap_size();
        self.row_count += group.row_count;
        if let Some(replaced) = self.maps[id.map()].insert(id, group) {
            self.heap_size -= replaced.heap_size();
            self.row_count -= replaced.row_count;
        }
        Some(())
    }
}

impl Group {
    fn store(&self, id: GroupId, out: &mut Vec<u8>) {
        out.extend_from_slice(&id.0.to_le_bytes());
        out.extend_from_slice(&self.changed.as_ns().to_le_bytes());
        put_number(self.row_count, out);
        put_number(self.values.len() as u64, out);
        self.values.iter().for_each(|value| value.store(out));
        self.aggregates.iter().for_each(|aggregate| aggregate.store(out));
    }

    fn restore(projection: &Projection, stored: &mut Stored<'_>) -> Option<Self> {
        let changed = Timestamp(u64::from_le_bytes(stored.array()?));
        let row_count = stored.number()?;
        let count = stored.number()?;
        let values = (0..count).map(|_| OwnedValue::restore(stored)).collect::<Option<_>>()?;
        let kinds = projection.kinds();
        let aggregates = kinds.map(|kind| Accumulator::restore(kind, stored)).collect::<Option<_>>()?;
        Some(Group { values, aggregates, row_count, changed, is_touched: false })
    }

    fn new(projection: &Projection, at: Timestamp) -> Self {
        let aggregates = projection.kinds().map(Accumulator::retracting).collect();
        Group { values: Box::default(), aggregates, row_count: 0, changed: at, is_touched: false }
    }

    fn values_size(&self) -> usize {
        self.values.iter().map(|value| size_of::<OwnedValue>() + value.size()).sum()
    }

    fn heap_size(&self) -> usize {
        let size_of = |each: &Accumulator| size_of::<Accumulator>() + each.heap_size();
        self.values_size() + self.aggregates.iter().map(size_of).sum::<usize>()
    }
}

impl Groups {
    /// No rows yet. Without fields in `grouping` there is one group, also without rows.
    pub fn new(config: GroupsConfig) -> Self {
        let maps = GroupMaps::new(&config.projection, &config.key_domain);
        Groups { config, maps }
    }

    /// The number of groups.
    pub fn len(&self) -> usize {
        self.maps.len()
    }

    /// Whether there is no group.
    pub fn is_empty(&self) -> bool {
        self.maps.is_empty()
    }

    /// The groups of one of the [`PARTS`] parts, in no order.
    pub fn ids_of_part(&self, part: usize) -> impl Iterator<Item = GroupId> {
        self.maps.ids_of_part(part)
    }

    /// Whether the group has a record, unless it cannot be written.
    pub fn has_record(&self, id: GroupId) -> bool {
        self.maps.has_record(&self.config.projection, id)
    }

    /// The bytes of memory of all groups.
    pub fn memory_size(&self) -> usize {
        self.maps.memory_size()
    }

    /// The rows that are in the groups.
    pub fn row_count(&self) -> u64 {
        self.maps.row_count()
    }

    /// Begins a snapshot of the groups of this call. All their records were written.
    pub fn begin_saving(&mut self) {
        self.maps.begin_saving();
    }

    /// Appends the next entries of the snapshot, about `effort` of them. Returns their number;
    /// `None`: there are no more, and the snapshot is done.
    pub fn save(&mut self, effort: usize, out: &mut Vec<u8>) -> Option<u32> {
        self.maps.save(effort, out)
    }

    /// The bytes that a snapshot holds.
    pub fn saving_size(&self) -> usize {
        self.maps.saving_size()
    }

    /// Ends a snapshot before it is done.
    pub fn end_saving(&mut self) {
        self.maps.end_saving();
    }

    /// Adds entries of a snapshot. `None`: the bytes are not entries.
    pub fn restore(&mut self, entries: &[u8]) -> Option<()> {
        let mut stored = Stored(entries);
        while !stored.is_empty() {
            self.maps.restore(&self.config.projection, &mut stored)?;
        }
        Some(())
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
        let Groups { config, maps } = self;
        let message = config.context_of(row);
        if !config.includes(&message, arena) {
            return None;
        }
        let projection = &config.projection;
        arena.reset();
        arena.allow(effort_max(row.data.len()));
        let arena = &*arena;
        let read = projection.read(&message, arena);
        let unread = Unread::unless(read.is_some(), projection);
        let values = read.unwrap_or(&unread);
        let (id, _) = maps.apply(projection, values, None, Effect { adds, at }, arena)?;
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
        self.maps.write(&self.config.projection, id, topic, arena, out)
    }
}

/// The values of a row that cannot be read: all are NULL.
pub(crate) struct Unread(SmallVec<[Value<'static>; 8]>);

impl Unread {
    /// No values when the row was read.
    pub fn unless(is_read: bool, projection: &Projection) -> Self {
        let count = if is_read { 0 } else { projection.grouping_count() + projection.kinds().len() };
        Unread(SmallVec::from_elem(Value::Null, count))
    }
}

impl std::ops::Deref for Unread {
    type Target = [Value<'static>];

    fn deref(&self) -> &Self::Target {
        &self.0
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
