//! The index for a topic with more than one subscription. Equal filters have one entry. Entries are
//! found by tests of fields.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::Hash;

use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;
use slab::Slab;

use super::cover::{self, Test};
use super::field::{FieldIndex, Finding};
use crate::filter::evaluate::Evaluation;
use crate::filter::parse::path_of;
use crate::filter::{Decision, FILTER_EFFORT, Filter, MessageContext};
use crate::message_type::{Arena, FieldId, FieldPlan, Truth, Value};
use crate::unreadable::contained;

/// The module `index` describes its promises and its structure.
#[derive(Debug)]
pub(super) struct FilterSet<Id> {
    /// The entry of each subscription, and its number in the order of insertion. A subscription
    /// without a filter has no entry.
    places: HashMap<Id, (Option<u32>, u64), FxBuildHasher>,
    unfiltered: BTreeMap<u64, Id>,
    entries: Slab<FilterEntry<Id>>,
    by_filter: HashMap<Filter, u32, FxBuildHasher>,
    /// The fields of all entries.
    plan: FieldPlan,
    fields: BTreeMap<FieldId, FieldIndex>,
    /// The entries without a cover.
    uncovered: BTreeSet<u32>,
    inserted_count: u64,
    /// Counts messages. It distinguishes an entry that was found twice for one message from one
    /// that was found for an earlier message.
    generation: u64,
    candidates: Vec<u32>,
    matches: Vec<(u64, Id)>,
    open: Vec<(u64, Id)>,
}

/// The subscriptions with one filter.
#[derive(Debug)]
struct FilterEntry<Id> {
    filter: Filter,
    /// The fields of the filter in the common plan.
    fields: Box<[FieldId]>,
    cover: Option<Box<[Test]>>,
    members: Members<Id>,
    /// The generation in which it last became a candidate.
    seen: u64,
    /// The finding that makes it TRUE without evaluation.
    decided_by: Option<Finding>,
}

/// Most filters belong to one subscription, and a map would be large for one.
#[derive(Debug)]
enum Members<Id> {
    None,
    One(u64, Id),
    Many(BTreeMap<u64, Id>),
}

impl<Id: Copy> Members<Id> {
    fn insert(&mut self, order: u64, id: Id) {
        match self {
            Members::None => *self = Members::One(order, id),
            Members::One(known_order, known) => {
                *self = Members::Many(BTreeMap::from([(*known_order, *known), (order, id)]));
            }
            Members::Many(members) => {
                members.insert(order, id);
            }
        }
    }

    /// Adds all of them to `matches`.
    fn give(&self, matches: &mut Vec<(u64, Id)>) {
        match self {
            Members::None => {}
            Members::One(order, id) => matches.push((*order, *id)),
            Members::Many(members) => matches.extend(members.iter().map(|(order, id)| (*order, *id))),
        }
    }

    /// Removes one. Returns whether it was the last.
    fn remove(&mut self, order: u64) -> bool {
        match self {
            Members::None => true,
            Members::One(known, _) => *known == order,
            Members::Many(members) => {
                members.remove(&order);
                members.is_empty()
            }
        }
    }
}

impl<Id> Default for FilterSet<Id> {
    fn default() -> Self {
        FilterSet {
            places: HashMap::default(),
            unfiltered: BTreeMap::new(),
            entries: Slab::new(),
            by_filter: HashMap::default(),
            plan: FieldPlan::default(),
            fields: BTreeMap::new(),
            uncovered: BTreeSet::new(),
            inserted_count: 0,
            generation: 0,
            candidates: Vec::new(),
            matches: Vec::new(),
            open: Vec::new(),
        }
    }
}

impl<Id: Copy + Eq + Hash> FilterSet<Id> {
    pub fn insert(&mut self, id: Id, filter: Option<Filter>) {
        self.remove(id);
        self.inserted_count += 1;
        let order = self.inserted_count;
        let entry = filter.map(|filter| self.entry(filter));
        match entry {
            None => {
                self.unfiltered.insert(order, id);
            }
            Some(entry) => self.entries[entry as usize].members.insert(order, id),
        }
        self.places.insert(id, (entry, order));
    }

    pub fn remove(&mut self, id: Id) {
        match self.places.remove(&id) {
            None => {}
            Some((None, order)) => {
                self.unfiltered.remove(&order);
            }
            Some((Some(entry), order)) => {
                let was_last = self.entries[entry as usize].members.remove(order);
                if was_last {
                    self.forget(entry);
                }
            }
        }
    }

    pub fn len(&self) -> usize {
        self.places.len()
    }

    pub fn for_each_decision(
        &mut self,
        message: &MessageContext<'_>,
        arena: &mut Arena,
        mut each: impl FnMut(Id, Decision),
    ) {
        if self.entries.is_empty() {
            return self.unfiltered.values().for_each(|id| each(*id, Decision::Wanted));
        }
        self.matches.clear();
        self.open.clear();
        self.matches.extend(self.unfiltered.iter().map(|(order, id)| (*order, *id)));
        let together = contained(|| self.match_entries(message, arena));
        // After a panic, it is unknown which filter has caused it.
        let matched_count = together.unwrap_or_else(|_| self.match_one_by_one(message, arena));
        let sources = usize::from(!self.unfiltered.is_empty()) + matched_count;
        if sources > 1 {
            self.matches.sort_unstable_by_key(|(order, _)| *order);
        }
        self.matches.iter().for_each(|(_, id)| each(*id, Decision::Wanted));
        self.open.iter().for_each(|(_, id)| each(*id, Decision::Open));
    }

    /// Adds the members of all entries that match, and of those for which no effort was left.
    /// Returns the number of matches.
    fn match_entries(&mut self, message: &MessageContext<'_>, arena: &mut Arena) -> usize {
        self.generation += 1;
        arena.reset();
        let arena = &*arena;
        if !self.plan.is_empty() && !arena.spend(message.data.len() as u64) {
            // A message that was not read excludes no entry.
            self.entries.iter().for_each(|(_, entry)| entry.members.give(&mut self.open));
            return 0;
        }
        self.candidates.clear();
        self.candidates.extend(&self.uncovered);
        let values = if self.plan.is_empty() {
            Ok(&[][..])
        } else {
            message.message_type.read_bare(message.data, &self.plan, arena)
        };
        if let Err(reason) = values {
            message.report(arena, reason);
        }
        let mut matched_count = 0;
        for (field, index) in values.iter().flat_map(|_| &self.fields) {
            // The loop is entered only when there are values.
            let value = values.map_or(Value::Null, |values| values[field.index()]);
            index.for_each_candidate(value, |number, finding| {
                let entry = &mut self.entries[number as usize];
                if entry.seen == self.generation {
                    return;
                }
                entry.seen = self.generation;
                if entry.decided_by == Some(finding) {
                    matched_count += 1;
                    entry.members.give(&mut self.matches);
                } else {
                    self.candidates.push(number);
                }
            });
        }
        for entry in &self.candidates {
            let FilterEntry { filter, fields, members, .. } = &self.entries[*entry as usize];
            let values = match values {
                Ok(values) => values,
                Err(_) if fields.is_empty() => &[],
                Err(_) => continue,
            };
            let evaluation = Evaluation { values, fields, message, arena };
            let matches =
                arena.spend(FILTER_EFFORT) && evaluation.truth(&filter.parsed().root) == Truth::True;
            if arena.effort_left() == 0 {
                members.give(&mut self.open);
            } else if matches {
                matched_count += 1;
                members.give(&mut self.matches);
            }
        }
        matched_count
    }

    /// As [`FilterSet::match_entries`], with as many readings of the message as there are filters.
    #[cold]
    fn match_one_by_one(&mut self, message: &MessageContext<'_>, arena: &mut Arena) -> usize {
        self.matches.truncate(self.unfiltered.len());
        self.open.clear();
        let mut matched_count = 0;
        for (_, FilterEntry { filter, members, .. }) in &self.entries {
            match filter.decide(message, arena) {
                Some(true) => {
                    matched_count += 1;
                    members.give(&mut self.matches);
                }
                Some(false) => {}
                None => members.give(&mut self.open),
            }
        }
        matched_count
    }

    /// The entry for `filter`, made if there is none.
    fn entry(&mut self, filter: Filter) -> u32 {
        if let Some(entry) = self.by_filter.get(&filter) {
            return *entry;
        }
        let fields: Box<[FieldId]> =
            filter.parsed().names.iter().map(|name| self.plan.add(&path_of(name))).collect();
        let root = &filter.parsed().root;
        let (cover, decided_by) = match cover::only_range(root) {
            Some(test) => (Some([test].into()), Some(Finding::Within)),
            None => {
                let finding = cover::is_only_equality(root).then_some(Finding::Equal);
                (self.best_cover(&filter, &fields), finding)
            }
        };
        let entry = self.entries.vacant_key() as u32;
        self.by_filter.insert(filter.clone(), entry);
        self.entries.insert(FilterEntry {
            filter,
            fields,
            cover,
            members: Members::None,
            seen: 0,
            decided_by,
        });
        let FilterEntry { fields, cover, .. } = &self.entries[entry as usize];
        match cover {
            None => {
                self.uncovered.insert(entry);
            }
            Some(tests) => {
                for test in &**tests {
                    let field = fields[test.field as usize];
                    self.fields.entry(field).or_default().insert(entry, &test.wanted);
                }
            }
        }
        entry
    }

    /// The cover that should have the fewest false candidates in the current index.
    fn best_cover(&self, filter: &Filter, fields: &[FieldId]) -> Option<Box<[Test]>> {
        let cost = |tests: &Vec<Test>| -> usize {
            let cost_of = |test: &Test| match self.fields.get(&fields[test.field as usize]) {
                Some(index) => index.cost(&test.wanted),
                None => FieldIndex::default().cost(&test.wanted),
            };
            tests.iter().map(cost_of).sum()
        };
        cover::covers(&filter.parsed().root).into_iter().min_by_key(cost).map(Vec::into_boxed_slice)
    }

    fn forget(&mut self, entry: u32) {
        let FilterEntry { filter, fields, cover, .. } = self.entries.remove(entry as usize);
        self.by_filter.remove(&filter);
        match cover {
            None => {
                self.uncovered.remove(&entry);
            }
            Some(tests) => {
                for test in &tests {
                    let field = fields[test.field as usize];
                    if let Some(index) = self.fields.get_mut(&field) {
                        index.remove(entry, &test.wanted);
                        if index.is_empty() {
                            self.fields.remove(&field);
                        }
                    }
                }
            }
        }
        fields.iter().for_each(|field| self.plan.release(*field));
    }
}
