//! The content filters of queue subscriptions, one number for each queue and filter, and the
//! answers to the questions of the engine.

use std::collections::BTreeMap;

use hashbrown::HashMap;
use quire_journal::{Position, Timestamp};
use rustc_hash::FxBuildHasher;
use slab::Slab;

use super::fetch::Recent;
use crate::scan::context_of;
use quire_expression::filter::{Decision, Filter, SubscriptionIndex};
use quire_expression::message_type::Arena;
use quire_queue::{FilterId, Matcher, QueueId};

/// The filters in use.
pub(super) struct Filters {
    filters: Slab<FilterEntry>,
    by_filter: HashMap<(QueueId, Filter), u32, FxBuildHasher>,
    /// All filters of a queue, so that a message is read once for them.
    indexes: BTreeMap<QueueId, SubscriptionIndex<FilterId>>,
    /// Filters that took too much effort, each with the size of the message in bytes. They count as
    /// not matching; their subscriptions are ended.
    costly: Vec<(FilterId, usize)>,
    arena: Arena,
}

/// Effort that the filters of a queue's subscriptions may take for one message: a few milliseconds.
/// The engine cannot continue without the answer, so the filters must be evaluated here.
const QUEUE_EFFORT_MAX: u64 = 4_000_000;

struct FilterEntry {
    queue: QueueId,
    filter: Filter,
    users: u32,
}

impl Filters {
    pub fn new(arena: Arena) -> Self {
        Filters {
            filters: Slab::new(),
            by_filter: HashMap::default(),
            indexes: BTreeMap::new(),
            costly: Vec::new(),
            arena,
        }
    }

    /// The number of a filter of a queue; each call is to be undone by [`Filters::release`].
    pub fn acquire(&mut self, queue: QueueId, filter: &Filter) -> FilterId {
        let key = (queue, filter.clone());
        if let Some(&id) = self.by_filter.get(&key) {
            self.filters[id as usize].users += 1;
            return FilterId::new(id);
        }
        let id = self.filters.insert(FilterEntry { queue, filter: filter.clone(), users: 1 }) as u32;
        self.by_filter.insert(key, id);
        self.indexes.entry(queue).or_default().insert(FilterId::new(id), Some(filter.clone()));
        FilterId::new(id)
    }

    /// The filters that took too much effort since the last call, each with the size of the
    /// message.
    pub fn take_costly(&mut self) -> Vec<(FilterId, usize)> {
        std::mem::take(&mut self.costly)
    }

    /// One user less.
    pub fn release(&mut self, filter: FilterId) {
        let Some(entry) = self.filters.get_mut(filter.get() as usize) else { return };
        entry.users -= 1;
        if entry.users > 0 {
            return;
        }
        let FilterEntry { queue, filter: gone, .. } = self.filters.remove(filter.get() as usize);
        self.by_filter.remove(&(queue, gone));
        if let Some(index) = self.indexes.get_mut(&queue) {
            index.remove(filter);
            if index.is_empty() {
                self.indexes.remove(&queue);
            }
        }
    }
}

/// Answers from the messages that are in memory, and notes those that are not.
pub(super) struct Answers<'a> {
    pub filters: &'a mut Filters,
    pub recent: &'a Recent,
    /// Positions that cannot be read at all: nothing matches them.
    pub unreadable: &'a std::collections::BTreeSet<Position>,
    /// Positions that have to be fetched before the engine can continue.
    pub missing: Vec<Position>,
    pub now: Timestamp,
}

impl Matcher for Answers<'_> {
    fn matches(&mut self, position: Position, filter: FilterId) -> bool {
        let Some(record) = self.recent.get(position) else { return false };
        let Filters { filters: entries, costly, arena, .. } = &mut *self.filters;
        let Some(entry) = entries.get(filter.get() as usize) else { return false };
        let Some(message) = context_of(&record, self.now) else { return false };
        arena.allow(QUEUE_EFFORT_MAX);
        let decided = entry.filter.decide(&message, arena);
        if decided.is_none() {
            costly.push((filter, record.data.len()));
        }
        decided == Some(true)
    }

    fn matching(&mut self, position: Position, filters: &[FilterId], matched: &mut Vec<FilterId>) {
        let Filters { filters: entries, indexes, costly, arena, .. } = &mut *self.filters;
        let queue = filters.first().and_then(|filter| entries.get(filter.get() as usize));
        let Some(index) = queue.and_then(|entry| indexes.get_mut(&entry.queue)) else { return };
        let Some(record) = self.recent.get(position) else { return };
        let Some(message) = context_of(&record, self.now) else { return };
        // A filter that still catches up with older messages is not among those asked about.
        arena.allow(QUEUE_EFFORT_MAX);
        index.for_each_decision(&message, arena, |filter, decision| match decision {
            Decision::Wanted if filters.contains(&filter) => matched.push(filter),
            Decision::Wanted => (),
            Decision::Open => costly.push((filter, record.data.len())),
        });
    }

    fn is_at_hand(&mut self, position: Position) -> bool {
        let is_at_hand = self.recent.has(position) || self.unreadable.contains(&position);
        if !is_at_hand {
            self.missing.push(position);
        }
        is_at_hand
    }
}
