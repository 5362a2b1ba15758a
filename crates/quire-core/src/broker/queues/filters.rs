//! The content filters of queue subscriptions, one number for each queue and filter, and the answers to what the engine asks.

use std::collections::BTreeMap;

use hashbrown::HashMap;
use quire_journal::{Position, Timestamp};
use rustc_hash::FxBuildHasher;
use slab::Slab;

use super::recent::Recent;
use crate::filter::{Filter, SubscriptionIndex};
use crate::message_type::Arena;
use crate::queue::{FilterId, Matcher, QueueId};
use crate::replay::context_of;

/// The filters in use.
#[derive(Default)]
pub(super) struct Filters {
    filters: Slab<Entry>,
    by_filter: HashMap<(QueueId, Filter), u32, FxBuildHasher>,
    /// All filters of a queue, so that a message is read once for them.
    indexes: BTreeMap<QueueId, SubscriptionIndex<FilterId>>,
    arena: Arena,
}

struct Entry {
    queue: QueueId,
    filter: Filter,
    users: u32,
}

impl Filters {
    /// The number of a filter of a queue; each call is to be undone by [`Filters::release`].
    pub fn acquire(&mut self, queue: QueueId, filter: &Filter) -> FilterId {
        let key = (queue, filter.clone());
        if let Some(&id) = self.by_filter.get(&key) {
            self.filters[id as usize].users += 1;
            return FilterId::new(id);
        }
        let id = self.filters.insert(Entry { queue, filter: filter.clone(), users: 1 }) as u32;
        self.by_filter.insert(key, id);
        self.indexes.entry(queue).or_default().insert(FilterId::new(id), Some(filter.clone()));
        FilterId::new(id)
    }

    /// One user less.
    pub fn release(&mut self, filter: FilterId) {
        let Some(entry) = self.filters.get_mut(filter.get() as usize) else { return };
        entry.users -= 1;
        if entry.users > 0 {
            return;
        }
        let Entry { queue, filter: gone, .. } = self.filters.remove(filter.get() as usize);
        self.by_filter.remove(&(queue, gone));
        if let Some(index) = self.indexes.get_mut(&queue) {
            index.remove(filter);
            if index.is_empty() {
                self.indexes.remove(&queue);
            }
        }
    }
}

/// Answers from what is at hand, and notes what is not.
pub(super) struct Answers<'a> {
    pub filters: &'a mut Filters,
    pub recent: &'a Recent,
    /// Positions that cannot be read at all: nothing matches them.
    pub unreadable: &'a std::collections::BTreeSet<Position>,
    /// What has to be fetched before the engine can go on.
    pub missing: Vec<Position>,
    pub now: Timestamp,
}

impl Matcher for Answers<'_> {
    fn matches(&mut self, position: Position, filter: FilterId) -> bool {
        let Some(record) = self.recent.get(position) else { return false };
        let Filters { filters: entries, arena, .. } = &mut *self.filters;
        let Some(entry) = entries.get(filter.get() as usize) else { return false };
        context_of(&record, self.now).is_some_and(|message| entry.filter.matches_with(&message, arena))
    }

    fn matching(&mut self, position: Position, filters: &[FilterId], matched: &mut Vec<FilterId>) {
        let Filters { filters: entries, indexes, arena, .. } = &mut *self.filters;
        let queue = filters.first().and_then(|filter| entries.get(filter.get() as usize));
        let Some(index) = queue.and_then(|entry| indexes.get_mut(&entry.queue)) else { return };
        let Some(record) = self.recent.get(position) else { return };
        let Some(message) = context_of(&record, self.now) else { return };
        // A filter that still works through what was there before is not among those asked about.
        index.for_each_match(&message, arena, |filter| {
            if filters.contains(&filter) {
                matched.push(filter);
            }
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
