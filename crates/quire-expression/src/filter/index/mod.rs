//! The subscriptions of a topic by their filters, so that a message is only checked against the
//! filters that can match.
//!
//! [`SubscriptionIndex::for_each_match`] returns exactly the subscriptions whose filter is TRUE for
//! the message, in the order in which they were inserted. Its cost grows with the number of filters
//! that could not be excluded, not with the number of subscriptions. Inserting and removing cost
//! the logarithm of their number. There are no rebuilds.
//!
//! How it works: subscriptions with equal filters share an *entry*, evaluated once (`filter_set`).
//! From its filter an entry gets a *cover*: a few tests of single fields. At least one of them
//! holds whenever the filter is TRUE (`cover`). Tests for equality are hashed, and ranges are in
//! interval trees, per field (`field`, `ranges`). A message is read once for all entries. The
//! entries of the tests that hold for its values are the candidates, which are then evaluated in
//! full. So the tests have to be complete, not exact. Entries without a cover are always
//! candidates.

mod cover;
mod field;
mod filter_set;
mod ranges;

use std::hash::Hash;

use super::{Filter, MessageContext};
use crate::message_type::Arena;
use filter_set::FilterSet;

/// The decision about a subscription and a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// It wants the message.
    Wanted,
    /// The decision would take more effort than was allowed.
    Open,
}

/// Which subscriptions want a message.
#[derive(Debug)]
pub struct SubscriptionIndex<Id>(Kind<Id>);

/// Topics with one subscription are the most frequent, and there is nothing to index.
#[derive(Debug)]
enum Kind<Id> {
    Empty,
    One(Id, Option<Filter>),
    Many(Box<FilterSet<Id>>),
}

impl<Id> Default for SubscriptionIndex<Id> {
    fn default() -> Self {
        SubscriptionIndex(Kind::Empty)
    }
}

impl<Id: Copy + Eq + Hash> SubscriptionIndex<Id> {
    /// Adds a subscription. `None` = it wants every message. A subscription that is in the index
    /// already gets the new filter, and is then the last one.
    pub fn insert(&mut self, id: Id, filter: Option<Filter>) {
        match &mut self.0 {
            Kind::Empty => self.0 = Kind::One(id, filter),
            Kind::One(known, known_filter) if *known == id => *known_filter = filter,
            Kind::One(known, known_filter) => {
                let mut many = Box::new(FilterSet::default());
                many.insert(*known, known_filter.take());
                many.insert(id, filter);
                self.0 = Kind::Many(many);
            }
            Kind::Many(many) => many.insert(id, filter),
        }
    }

    /// Removes a subscription, if the index has it.
    pub fn remove(&mut self, id: Id) {
        let is_last = match &mut self.0 {
            Kind::Empty => false,
            Kind::One(known, _) => *known == id,
            Kind::Many(many) => {
                many.remove(id);
                many.len() == 0
            }
        };
        if is_last {
            self.0 = Kind::Empty;
        }
    }

    /// The number of its subscriptions.
    pub fn len(&self) -> usize {
        match &self.0 {
            Kind::Empty => 0,
            Kind::One(..) => 1,
            Kind::Many(many) => many.len(),
        }
    }

    /// Whether it has no subscriptions.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Calls `each` for every subscription that wants the message, in the order in which they were
    /// inserted. The message is read into `arena`; keep it between calls.
    pub fn for_each_match(
        &mut self,
        message: &MessageContext<'_>,
        arena: &mut Arena,
        mut each: impl FnMut(Id),
    ) {
        arena.allow(u64::MAX);
        self.for_each_decision(message, arena, |id, _| each(id));
    }

    /// As [`SubscriptionIndex::for_each_match`], within the effort that `arena` allows: also calls
    /// `each`, with [`Decision::Open`], for every subscription without a decision.
    pub fn for_each_decision(
        &mut self,
        message: &MessageContext<'_>,
        arena: &mut Arena,
        mut each: impl FnMut(Id, Decision),
    ) {
        match &mut self.0 {
            Kind::Empty => {}
            Kind::One(id, None) => each(*id, Decision::Wanted),
            Kind::One(id, Some(filter)) => match filter.decide(message, arena) {
                Some(true) => each(*id, Decision::Wanted),
                Some(false) => {}
                None => each(*id, Decision::Open),
            },
            Kind::Many(many) => many.for_each_decision(message, arena, each),
        }
    }
}
