//! The queues of a broker: the engine (`crate::queue`) between the journal and the connections (docs/queues.md section 7).
//!
//! The engine decides who gets which message; here its messages come from the log and its deliveries go to sessions. What happens in
//! a turn: persisted records enter ([`Broker::enqueue`], from the shared pass of `edge.rs`); what connections ask for goes to the engine
//! at once (`settle.rs`, `subscribe.rs`); at the end [`Broker::serve_queues`] (`deliver.rs`) sends what can be delivered and
//! [`Broker::log_changes`] (`changes.rs`) logs what happened. Whatever may wait for the disk is a [`QueueWork`] (`work.rs`) for the reader
//! threads, and whoever needs it waits: a subscription with its deliveries, a connection with its commands, a queue with its questions.

mod changes;
mod deliver;
mod filters;
mod outstanding;
mod recent;
mod recover;
mod settings;
mod settle;
mod stats;
mod subscribe;
mod work;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use hashbrown::HashMap;
use quire_journal::{Batch, Position, PublisherId, Record, Timestamp};
use rustc_hash::FxBuildHasher;

pub(in crate::broker) use settings::Definition;
pub use settings::QueueSettings;
pub(crate) use subscribe::QueueCourse;
pub(crate) use work::{QueueFound, QueueWork};

use super::Broker;
use crate::message_type::Arena;
use crate::queue::{self, ChangesWriter, Entry, QueueId, Queues, Time};
use crate::replay::context_of;
use crate::session::SessionId;
use crate::subscription::SubscriptionId;
use crate::time::{Instant, Now};
use crate::topic::TopicId;
use filters::Filters;
use outstanding::Outstanding;
use recent::Recent;
use settle::SettleJob;

/// Everything about the queues of one broker.
pub(super) struct BrokerQueues {
    engine: Queues,
    /// By the numbers of the queues.
    all: Vec<Arc<Definition>>,
    by_name: BTreeMap<Arc<str>, QueueId>,
    /// Bookmarks of what is out, by the numbers of the queues.
    outstanding: Vec<Outstanding>,
    filters: Filters,
    recent: Recent,
    /// Positions that damage keeps from being read.
    unreadable: BTreeSet<Position>,
    /// The broker's numbers of the engine's subscriptions.
    subscriptions: HashMap<queue::SubscriptionId, SubscriptionId, FxBuildHasher>,
    /// Subscriptions with deliveries that wait for the disk or for their connection.
    waiting: BTreeSet<SubscriptionId>,
    /// Sessions that get nothing at present because they take nothing.
    held: BTreeSet<SessionId>,
    /// Those among them that may take something again.
    to_release: Vec<SessionId>,
    /// Settles that are not done yet, by the session that waits.
    settling: BTreeMap<SessionId, SettleJob>,
    /// What the reader threads are at, by number.
    under_way: BTreeMap<u64, Purpose>,
    /// What is to be logged for each queue, and the queues of which something is.
    writers: Vec<ChangesWriter>,
    to_log: Vec<QueueId>,
    /// The publisher of the records of changes.
    publisher: PublisherId,
    /// What the engine's clock shows when that of the broker shows zero.
    origin: Option<u64>,
    arena: Arena,
}

/// What a piece of work for the reader threads is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    /// Messages from this position on; because somebody needs it, or will soon.
    Fetch { from: Position, is_ahead: bool },
    /// A settle of this session.
    Settle(SessionId),
}

impl BrokerQueues {
    pub(super) fn new(instance: &str, definitions: Vec<Definition>) -> Result<Self, queue::ConfigError> {
        let mut engine = Queues::new();
        let mut by_name = BTreeMap::new();
        for definition in &definitions {
            let queue = engine.add_queue(definition.config.clone())?;
            by_name.insert(definition.name.clone(), queue);
        }
        Ok(BrokerQueues {
            engine,
            by_name,
            outstanding: definitions.iter().map(|_| Outstanding::default()).collect(),
            filters: Filters::default(),
            recent: Recent::default(),
            unreadable: BTreeSet::new(),
            subscriptions: HashMap::default(),
            waiting: BTreeSet::new(),
            held: BTreeSet::new(),
            to_release: Vec::new(),
            settling: BTreeMap::new(),
            under_way: BTreeMap::new(),
            writers: definitions.iter().map(|_| ChangesWriter::default()).collect(),
            to_log: Vec::new(),
            publisher: PublisherId::derived(PublisherId::new(0), instance),
            origin: None,
            arena: Arena::default(),
            all: definitions.into_iter().map(Arc::new).collect(),
        })
    }

    /// What was just written is at hand for those who get it.
    pub(super) fn keep(&mut self, batch: Batch) {
        self.recent.add(batch, None);
    }

    /// Whether there are any.
    pub(super) fn any(&self) -> bool {
        !self.all.is_empty()
    }

    /// The queue with this name.
    pub(super) fn find(&self, name: &str) -> Option<QueueId> {
        self.by_name.get(name).copied()
    }

    fn definition(&self, queue: QueueId) -> &Arc<Definition> {
        &self.all[queue.get() as usize]
    }

    /// The engine's clock: the wall clock as it was at the first turn, moved on by the clock that never goes back. So leases do not
    /// feel steps of the wall clock, and the ages of messages go on over a restart.
    fn time(&mut self, now: Now) -> Time {
        let origin = *self.origin.get_or_insert(now.wall.as_ns().saturating_sub(now.instant.as_ns()));
        Time::new(origin.saturating_add(now.instant.as_ns()))
    }

    /// The same for a look that changes nothing; before the first turn there is nothing to be seen.
    fn time_or_start(&self, now: Now) -> Time {
        Time::new(self.origin.unwrap_or_default().saturating_add(now.instant.as_ns()))
    }

    /// When the engine wants to be called.
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        let due = self.engine.poll_timeout()?.get();
        Some(Instant::from_ns(due.saturating_sub(self.origin?)))
    }

    /// The session may take something again; whether anything waits for that.
    pub(super) fn may_release(&mut self, id: SessionId) -> bool {
        let is_held = self.held.contains(&id);
        if is_held {
            self.to_release.push(id);
        }
        is_held
    }

    /// What the engine keeps of a message; `None` when the queue's filter keeps it out.
    fn entry_of(
        &mut self,
        queue: QueueId,
        record: &Record<'_>,
        received: Time,
        wall: Timestamp,
    ) -> Option<Entry> {
        let definition = &self.all[queue.get() as usize];
        let mut entry = Entry { received, expiration_s: record.expiration_s, ..Entry::default() };
        if definition.filter.is_none() && definition.priority.is_none() && definition.barrier.is_none() {
            return Some(entry);
        }
        let message = context_of(record, wall)?;
        if definition.filter.as_ref().is_some_and(|filter| !filter.matches_with(&message, &mut self.arena)) {
            return None;
        }
        entry.priority =
            definition.priority.as_ref().and_then(|priority| priority.of(&message, &mut self.arena));
        let barrier = definition.barrier.as_ref();
        entry.barrier = barrier.is_some_and(|barrier| barrier.matches_with(&message, &mut self.arena));
        Some(entry)
    }
}

impl Broker {
    /// A persisted message enters the queues over its topic.
    pub(super) fn enqueue(&mut self, topic: TopicId, record: &Record<'_>) {
        let now = self.queues.time(self.now);
        let age = self.now.wall.as_ns().saturating_sub(record.timestamp.as_ns());
        let received = Time::new(now.get().saturating_sub(age));
        for queue in &self.topics.topic(topic).queues {
            if let Some(entry) = self.queues.entry_of(*queue, record, received, self.now.wall) {
                self.queues.engine.enqueue(*queue, record.position, entry);
            }
        }
    }
}
