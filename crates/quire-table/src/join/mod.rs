//! Views with joins: combinations of records of several topics, and their groups
//! (docs/views.md, "Joins").
//!
//! The topics make a tree. The first one is its root. Each record of the first topic is combined
//! with every record of each other topic that has the same key of the join, or with NULL when there
//! is none: left outer joins.
//!
//! The topics themselves may have newer records than the view has seen. So a join keeps its own
//! copy of the values that it reads (`index.rs`). A change of a record removes the combinations
//! that it was in and adds those that it is in now. A record that is the first one with its key, or
//! the last, also removes or adds the combinations with NULL. There can be many combinations, so
//! the work is done in portions ([`Joins::step`]).

mod index;
mod saving;
mod walk;

use std::collections::VecDeque;

use quire_expression::filter::{MessageContext, Projection};
use quire_expression::message_type::{Arena, AssignError, MessageType, Value};
use quire_types::{Headers, Timestamp};
use smallvec::SmallVec;
use xxhash_rust::xxh3::xxh3_128;

use crate::groups::{Effect, GroupId, GroupMaps, Unread, Written};
use crate::order::{SortKey, put_value};
use crate::row::Row;
use crate::saving::Saving;
use crate::scan::effort_max;
use index::{CHILD, Hash, JoinIndex, NONE, PARENT, Record, Side, hash_of};
use walk::{Edge, Ground, Hop, Walk, Walked, edge_above, hops_from, hops_without};

/// The definition of a view with joins.
#[derive(Clone, Debug)]
pub struct JoinConfig {
    /// The topics, the first one first, and the types of their messages.
    pub sources: Vec<(Box<str>, MessageType)>,
    /// The joins. The parent of each is a topic before it.
    pub joins: Vec<JoinKeys>,
    /// The fields of a record, the fields that make the groups, and the keys of the joins.
    pub projection: Projection,
    /// As of [`GroupsConfig`](crate::GroupsConfig).
    pub key_domain: Box<str>,
}

/// A topic that is joined with one before it. The fields are the numbers of keys of the projection,
/// in pairs.
#[derive(Clone, Debug)]
pub struct JoinKeys {
    /// The topic before it, as a place of [`JoinConfig::sources`].
    pub parent: usize,
    /// The topic.
    pub child: usize,
    /// The fields of the parent.
    pub parent_fields: Vec<usize>,
    /// The fields of the child.
    pub child_fields: Vec<usize>,
}

/// The state of a join for one topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceFigures {
    /// The number of records.
    pub record_count: usize,
    /// The bytes of memory.
    pub memory_size: usize,
}

/// The state of a join for the keys of two topics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexFigures {
    /// The number of different keys.
    pub key_count: usize,
    /// The bytes of memory.
    pub memory_size: usize,
}

/// The combinations of one view, and their groups.
#[derive(Debug)]
pub struct Joins {
    config: JoinConfig,
    edges: Box<[Edge]>,
    /// For each topic, its joins: the numbers of edges, and its side.
    joins_of: Box<[Vec<(usize, usize)>]>,
    /// For each topic: the ways from it, and the ways of the combinations without it.
    ways: Box<[[Box<[Hop]>; 2]]>,
    sides: Box<[Side]>,
    indexes: Box<[JoinIndex]>,
    maps: GroupMaps,
    work: Option<Work>,
    touched: VecDeque<GroupId>,
    /// A snapshot of the records of the topics, by topic and place, that is being written.
    saving: Option<Box<Saving<(usize, u32)>>>,
}

/// A change that is being worked off.
#[derive(Debug)]
struct Work {
    source: usize,
    hash: Hash,
    /// The record before the change; [`NONE`]: the key is new.
    place: u32,
    /// The record after it.
    new: Option<NewRecord>,
    at: Timestamp,
    /// What to do before the record is replaced, in the reverse order.
    passes: SmallVec<[Pass; 3]>,
    is_replaced: bool,
    walk: Option<(Pass, Walk)>,
}

#[derive(Debug)]
struct NewRecord {
    values: Box<[u8]>,
    timestamp: Timestamp,
    /// The keys of the joins of the topic; `None`: it has no key.
    keys: SmallVec<[Option<Hash>; 4]>,
}

/// One walk over combinations.
#[derive(Clone, Copy, Debug)]
struct Pass {
    adds: bool,
    /// Over the combinations without the topic; else over those with the record.
    is_without: bool,
    /// Where it begins: a record or an entry.
    begin: u32,
}

impl Joins {
    /// No records yet.
    pub fn new(config: JoinConfig) -> Self {
        let count = config.sources.len();
        let mut joins_of = vec![Vec::new(); count];
        let mut edges = Vec::new();
        for (number, JoinKeys { parent, child, .. }) in config.joins.iter().enumerate() {
            let places = [joins_of[*parent].len(), joins_of[*child].len()];
            edges.push(Edge { sources: [*parent, *child], places });
            joins_of[*parent].push((number, PARENT));
            joins_of[*child].push((number, CHILD));
        }
        let ways = (0..count)
            .map(|source| [hops_from(source, &edges).into(), hops_without(source, &edges).into()])
            .collect();
        Joins {
            maps: GroupMaps::new(&config.projection, &config.key_domain),
            sides: joins_of.iter().map(|joins| Side::new(joins.len())).collect(),
            indexes: edges.iter().map(|_| JoinIndex::new()).collect(),
            edges: edges.into(),
            joins_of: joins_of.into(),
            ways,
            work: None,
            touched: VecDeque::new(),
            saving: None,
            config,
        }
    }

    /// The number of groups.
    pub fn len(&self) -> usize {
        self.maps.len()
    }

    /// Whether there is no group.
    pub fn is_empty(&self) -> bool {
        self.maps.is_empty()
    }

    /// As [`Groups::ids_of_part`](crate::Groups::ids_of_part).
    pub fn ids_of_part(&self, part: usize) -> impl Iterator<Item = GroupId> {
        self.maps.ids_of_part(part)
    }

    /// As [`Groups::has_record`](crate::Groups::has_record).
    pub fn has_record(&self, id: GroupId) -> bool {
        self.maps.has_record(&self.config.projection, id)
    }

    /// What is kept of each topic.
    pub fn source_figures(&self) -> impl Iterator<Item = SourceFigures> {
        let figures =
            |side: &Side| SourceFigures { record_count: side.len(), memory_size: side.memory_size() };
        self.sides.iter().map(figures)
    }

    /// What is kept of the keys of each join, after the places of its topics.
    pub fn index_figures(&self) -> impl Iterator<Item = (usize, usize, IndexFigures)> {
        self.indexes.iter().zip(&self.edges).map(|(index, edge)| {
            let [parent, child] = edge.sources;
            let figures = IndexFigures { key_count: index.len(), memory_size: index.memory_size() };
            (parent, child, figures)
        })
    }

    /// The combinations that are in the groups.
    pub fn combination_count(&self) -> u64 {
        self.maps.row_count()
    }

    /// The bytes of memory of the groups.
    pub fn groups_size(&self) -> usize {
        self.maps.memory_size() + self.touched.capacity() * size_of::<GroupId>()
    }

    /// Begins with a change of a record: the topic, the key, and the record after the change
    /// (`None`: it was removed). The change before must be done. [`step`](Self::step) does the
    /// work.
    pub fn begin(
        &mut self,
        source: usize,
        key: &[u8],
        row: Option<&Row<'_>>,
        at: Timestamp,
        arena: &mut Arena,
    ) {
        debug_assert!(self.work.is_none(), "the change before is done");
        let hash = hash_of(xxh3_128(key));
        let place = self.sides[source].find(hash).unwrap_or(NONE);
        let new = row.map(|row| self.read(source, row, arena));
        if place == NONE && new.is_none() {
            return;
        }
        let passes = self.passes(source, place, new.as_ref());
        let (is_replaced, walk) = (false, None);
        self.work = Some(Work { source, hash, place, new, at, passes, is_replaced, walk });
    }

    /// Works on the change, at most `budget` steps. Returns whether it is done.
    pub fn step(&mut self, budget: &mut u32, arena: &mut Arena) -> bool {
        let Some(mut work) = self.work.take() else { return true };
        loop {
            if let Some((pass, mut walk)) = work.walk.take() {
                if !self.walk(&work, pass, &mut walk, budget, arena) {
                    work.walk = Some((pass, walk));
                    self.work = Some(work);
                    return false;
                }
            } else if let Some(pass) = work.passes.pop() {
                work.walk = Some((pass, self.walk_of(work.source, pass)));
            } else if work.is_replaced {
                return true;
            } else if let Some(begin) = self.replace(&mut work) {
                let pass = Pass { adds: true, is_without: false, begin };
                work.walk = Some((pass, self.walk_of(work.source, pass)));
            }
        }
    }

    /// Whether a change is being worked off.
    pub fn is_working(&self) -> bool {
        self.work.is_some()
    }

    /// The next group that changed and whose record was not written since.
    pub fn pop_touched(&mut self) -> Option<GroupId> {
        self.touched.pop_front()
    }

    /// All groups are written in another way.
    pub fn clear_touched(&mut self) {
        self.touched.clear();
    }

    /// Whether there is such a group.
    pub fn has_touched(&self) -> bool {
        !self.touched.is_empty()
    }

    /// As [`Groups::write`](crate::Groups::write).
    ///
    /// # Errors
    /// As [`Groups::write`](crate::Groups::write).
    pub fn write(
        &mut self,
        id: GroupId,
        topic: &str,
        arena: &mut Arena,
        out: &mut Vec<u8>,
    ) -> Result<Written, AssignError> {
        self.maps.write(&self.config.projection, id, topic, arena, out)
    }

    /// The values of a row, and its keys.
    fn read(&self, source: usize, row: &Row<'_>, arena: &mut Arena) -> NewRecord {
        let JoinConfig { sources, joins, projection, .. } = &self.config;
        let (topic, message_type) = &sources[source];
        let message = MessageContext {
            message_type: *message_type,
            data: row.data,
            topic,
            key: Some(row.key),
            bookmark: None,
            correlation_id: row.correlation_id,
            headers: row.headers,
            timestamp: row.timestamp,
            now: row.timestamp,
        };
        arena.reset();
        let arena = &*arena;
        let mut values = Vec::new();
        let fields: SmallVec<[(usize, Value<'_>); 4]> =
            projection.pack(source, &message, arena, &mut values).collect();
        let keys = self.joins_of[source].iter().map(|(join, side)| {
            let JoinKeys { parent_fields, child_fields, .. } = &joins[*join];
            let numbers = if *side == PARENT { parent_fields } else { child_fields };
            let mut key = SortKey::new();
            for number in numbers {
                let (_, value) = fields.iter().find(|(field, _)| field == number)?;
                put_value(key_value(*value)?, arena, &mut key);
            }
            Some(hash_of(xxh3_128(&key)))
        });
        let keys = keys.collect();
        NewRecord { values: values.into(), timestamp: row.timestamp, keys }
    }

    /// What to do before a record is replaced, in the reverse order.
    fn passes(&self, source: usize, place: u32, new: Option<&NewRecord>) -> SmallVec<[Pass; 3]> {
        let mut passes = SmallVec::new();
        if let Some((number, edge)) = edge_above(source, &self.edges) {
            let (side, index) = (&self.sides[source], &self.indexes[number]);
            let own = edge.places[CHILD];
            let is_only = |entry: u32| {
                let first = index.first(entry, CHILD);
                first == place && side.link(own, place).next == NONE
            };
            let before = if place == NONE { NONE } else { side.link(own, place).entry };
            let after = index.find(new.and_then(|new| new.keys[own]));
            if before != after && after != NONE && index.first(after, CHILD) == NONE {
                passes.push(Pass { adds: false, is_without: true, begin: after });
            }
            if before != after && before != NONE && is_only(before) {
                passes.push(Pass { adds: true, is_without: true, begin: before });
            }
        }
        if place != NONE {
            passes.push(Pass { adds: false, is_without: false, begin: place });
        }
        passes
    }

    fn walk_of(&self, source: usize, pass: Pass) -> Walk {
        match pass.is_without {
            true => Walk::without(pass.begin, self.sides.len()),
            false => Walk::with(source, pass.begin, self.sides.len()),
        }
    }

    /// Adds or removes combinations. Returns whether the walk is done.
    fn walk(
        &mut self,
        work: &Work,
        pass: Pass,
        walk: &mut Walk,
        budget: &mut u32,
        arena: &mut Arena,
    ) -> bool {
        let Joins { config, edges, ways, sides, indexes, maps, touched, .. } = self;
        let hops = &ways[work.source][usize::from(pass.is_without)];
        let ground = Ground { edges, sides, indexes };
        let effect = Effect { adds: pass.adds, at: work.at };
        loop {
            match walk.next(hops, &ground, budget) {
                Walked::Found => {
                    let found = combine(config, sides, maps, &walk.bound, effect, arena);
                    touched.extend(found.filter(|(_, is_first)| *is_first).map(|(id, _)| id));
                }
                Walked::Done => return true,
                Walked::Paused => return false,
            }
        }
    }

    /// Replaces the record, or removes it. Returns the place of the new record.
    fn replace(&mut self, work: &mut Work) -> Option<u32> {
        work.is_replaced = true;
        self.before_change(work.source, work.place);
        let Joins { sides, indexes, joins_of, saving, .. } = self;
        let (records, joins) = (&mut sides[work.source], &joins_of[work.source]);
        let mut place = work.place;
        let new = work.new.take();
        let is_removed = new.is_none();
        let keys = new.as_ref().map(|new| new.keys.clone());
        let keys = keys.unwrap_or_else(|| SmallVec::from_elem(None, joins.len()));
        if let Some(NewRecord { values, timestamp, .. }) = new {
            match place {
                NONE => {
                    place = records.add(Record { hash: work.hash, values, timestamp });
                    if let Some(saving) = saving {
                        saving.before_change((work.source, place), |_| false);
                    }
                }
                place => records.replace(place, values, timestamp),
            }
        }
        for (own, ((join, side), hash)) in joins.iter().zip(&keys).enumerate() {
            let index = &mut indexes[*join];
            if index.hash(records.link(own, place).entry) == *hash {
                continue;
            }
            index.unlink(place, *side, records, own);
            if let Some(hash) = hash {
                index.link(*hash, place, *side, records, own);
            }
        }
        if is_removed {
            records.remove(place);
            return None;
        }
        Some(place)
    }
}

/// The value of a key; `None` for NULL, NaN and objects, which are equal to nothing.
fn key_value(value: Value<'_>) -> Option<Value<'_>> {
    match value.scalar() {
        Value::Null | Value::Compound(_) => None,
        Value::Number(number, _) if number.is_nan() => None,
        value => Some(value),
    }
}

/// Adds the values of a combination to its group, or removes them from it.
fn combine(
    config: &JoinConfig,
    sides: &[Side],
    maps: &mut GroupMaps,
    bound: &[u32],
    effect: Effect,
    arena: &mut Arena,
) -> Option<(GroupId, bool)> {
    let JoinConfig { sources, projection, .. } = config;
    let records = || sides.iter().zip(bound).map(|(side, place)| side.get(*place));
    let size = records().flatten().map(|record| record.values.len()).sum();
    let timestamp = records().flatten().map(|record| record.timestamp).max().unwrap_or_default();
    let (topic, message_type) = &sources[0];
    let message = MessageContext {
        message_type: *message_type,
        data: b"",
        topic,
        key: None,
        bookmark: None,
        correlation_id: b"",
        headers: Headers::NONE,
        timestamp,
        now: timestamp,
    };
    arena.reset();
    arena.allow(effort_max(size));
    let arena = &*arena;
    let read = projection.read_joined(records().map(|record| Some(&*record?.values)), &message, arena);
    let unread = Unread::unless(read.is_some(), projection);
    let id = projection.is_ungrouped().then(|| {
        let hashes = records().flat_map(|record| record.map(|record| record.hash).unwrap_or_default());
        let bytes: SmallVec<[u8; 64]> = hashes.flat_map(u64::to_le_bytes).collect();
        maps.id_of(&bytes)
    });
    maps.apply(projection, read.unwrap_or(&unread), id, effect, arena)
}
