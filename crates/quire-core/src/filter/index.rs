//! The subscriptions of a topic, by their filters: identical filters are evaluated once.

use std::collections::BTreeMap;

use super::{Filter, MessageContext};
use crate::message_type::Fields;

/// Which subscriptions want a message.
#[derive(Debug)]
pub struct SubscriptionIndex<Id> {
    /// Those without a filter.
    all: Vec<Id>,
    /// By the text of the filter.
    filtered: BTreeMap<Box<str>, (Filter, Vec<Id>)>,
    fields: Fields,
}

impl<Id> Default for SubscriptionIndex<Id> {
    fn default() -> Self {
        SubscriptionIndex { all: Vec::new(), filtered: BTreeMap::new(), fields: Fields::default() }
    }
}

impl<Id: Copy + Eq> SubscriptionIndex<Id> {
    /// Adds a subscription; `None` = it wants everything.
    pub fn insert(&mut self, id: Id, filter: Option<Filter>) {
        match filter {
            None => self.all.push(id),
            Some(filter) => {
                let entry = self.filtered.entry(filter.text().into()).or_insert_with(|| (filter, Vec::new()));
                entry.1.push(id);
            }
        }
    }

    /// Removes a subscription, if it is there.
    pub fn remove(&mut self, id: Id) {
        self.all.retain(|known| *known != id);
        self.filtered.retain(|_, (_, ids)| {
            ids.retain(|known| *known != id);
            !ids.is_empty()
        });
    }

    /// Whether nobody is in it.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty() && self.filtered.is_empty()
    }

    /// Calls `each` for every subscription that wants the message, always in the same order.
    pub fn for_each_match(&mut self, message: &MessageContext<'_>, mut each: impl FnMut(Id)) {
        self.all.iter().copied().for_each(&mut each);
        for (filter, ids) in self.filtered.values() {
            if filter.matches_with(message, &mut self.fields) {
                ids.iter().copied().for_each(&mut each);
            }
        }
    }
}
