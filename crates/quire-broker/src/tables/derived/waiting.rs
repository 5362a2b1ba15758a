//! The changes that wait for the views of their topics.

use std::collections::VecDeque;

use quire_table::RowChange;
use quire_types::Timestamp;

use super::super::change::Change;
use super::Current;
use super::joined::Records;
use crate::topic::TableId;

/// The changes of all topics with views, oldest first.
#[derive(Default)]
pub(super) struct Waiting {
    /// The topics of the changes, in the order of the changes.
    order: VecDeque<TableId>,
    topics: Vec<Topic>,
    /// The bytes of all changes.
    size: usize,
    /// The number of changes that were ever added.
    added_count: u64,
}

#[derive(Default)]
struct Topic {
    changes: VecDeque<RowChange>,
    /// A view reads the records before changes. Joins have kept what they need of them.
    needs_old: bool,
}

/// The changes of its sources that a view does not have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Lag {
    /// Their number.
    pub count: u64,
    /// The age of the oldest one, in nanoseconds.
    pub behind_ns: u64,
}

impl Lag {
    /// Adds changes, of which the oldest has this time.
    pub fn add(&mut self, oldest: Timestamp, count: u64, now: Timestamp) {
        self.count += count;
        self.behind_ns = self.behind_ns.max(now.as_ns().saturating_sub(oldest.as_ns()));
    }
}

impl Waiting {
    pub fn new(topic_count: usize) -> Self {
        let topics = std::iter::repeat_with(Topic::default).take(topic_count).collect();
        Waiting { topics, ..Waiting::default() }
    }

    /// A view reads a topic.
    pub fn follow(&mut self, source: TableId, records: &Records) {
        // The tables of queues can be added later.
        if self.topics.len() <= source.0 as usize {
            self.topics.resize_with(source.0 as usize + 1, Topic::default);
        }
        self.topics[source.0 as usize].needs_old |= matches!(records, Records::Groups(_));
    }

    pub fn has_changes_of(&self, source: TableId) -> bool {
        self.topics.get(source.0 as usize).is_some_and(|topic| !topic.changes.is_empty())
    }

    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    pub fn size(&self) -> usize {
        self.size
    }

    pub fn add(&mut self, source: TableId, change: &Change<'_>, at: Timestamp) {
        let topic = &mut self.topics[source.0 as usize];
        let needs_old = topic.needs_old || change.new.is_none();
        let copy = RowChange::new(change.old.as_ref().filter(|_| needs_old), change.new, at);
        self.size += copy.size();
        topic.changes.push_back(copy);
        self.order.push_back(source);
        self.added_count += 1;
    }

    /// The number of the newest change. The numbers ascend.
    pub fn newest(&self) -> u64 {
        self.added_count
    }

    pub fn pop(&mut self) -> Option<Current> {
        let source = self.order.pop_front()?;
        let change = self.topics[source.0 as usize].changes.pop_front()?;
        self.size -= change.size();
        let number = self.added_count - self.order.len() as u64;
        Some(Current { source, change, number, view_count: 0 })
    }

    /// The changes of some topics.
    pub fn lag(&self, sources: &[TableId], now: Timestamp) -> Lag {
        let mut lag = Lag::default();
        for source in sources {
            let changes = &self.topics[source.0 as usize].changes;
            if let Some(oldest) = changes.front() {
                lag.add(oldest.at, changes.len() as u64, now);
            }
        }
        lag
    }
}
