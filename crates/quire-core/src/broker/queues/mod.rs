//! The queues of a broker: the engine (`crate::queue`) between the journal and the connections (docs/queues.md section 7).
//!
//! The engine decides who gets which message; here its messages come from the log and its deliveries go to sessions. What happens in
//! a turn: persisted records enter ([`Broker::enqueue`], from the shared pass of `edge.rs`); what connections ask for goes to the engine
//! at once (`settle.rs`, `subscribe.rs`); at the end [`Broker::serve_queues`] (`deliver.rs`) sends what can be delivered and
//! [`Broker::log_changes`] (`changes.rs`) logs what happened, and [`Broker::note_leases`] (`lease_log.rs`) who held what. Whatever may
//! wait for the disk is a [`QueueWork`] (`work.rs`) for the reader threads, and whoever needs it waits: a subscription with its deliveries, a connection with its commands, a queue with its questions.

mod changes;
mod dead_letter;
mod deliver;
mod filters;
mod keep;
mod lease_log;
mod lookup;
mod outstanding;
mod point;
mod query;
mod recent;
mod recover;
mod refill;
mod settings;
mod settle;
mod standalone;
mod stats;
mod subscribe;
mod work;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use hashbrown::HashMap;
use quire_journal::{Batch, Journal, Position, PublisherId, Record};
use rustc_hash::FxBuildHasher;

pub(in crate::broker) use settings::Definition;
pub use settings::QueueSettings;
pub use standalone::{Expired, StandaloneError, StandaloneQueue};
pub(crate) use subscribe::QueueCourse;
pub(crate) use work::{QueueFound, QueueWork};

use super::Broker;
use crate::message_type::{Arena, MessageType};
use crate::queue::{self, ChangesWriter, QueueId, Queues, Time};
use crate::session::SessionId;
use crate::subscription::SubscriptionId;
use crate::time::{Instant, Now};
use crate::topic::TopicId;
use dead_letter::DeadLetters;
use filters::Filters;
use keep::Keeping;
use lease_log::LeaseLog;
use outstanding::Outstanding;
use point::Saving;
use query::QueryJob;
use recent::Recent;
use settle::SettleJob;
use work::received_at;

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
    /// Settles that are not done yet, by the session that waits; and queries.
    settling: BTreeMap<SessionId, SettleJob>,
    querying: BTreeMap<SessionId, QueryJob>,
    /// Queues with a target depth, and whether messages are being read for them.
    refilling: BTreeMap<QueueId, bool>,
    dead_letters: DeadLetters,
    saving: Saving,
    keeping: Keeping,
    /// What the reader threads are at, by number.
    under_way: BTreeMap<u64, Purpose>,
    /// What is to be logged for each queue, and the queues of which something is.
    writers: Vec<ChangesWriter>,
    to_log: Vec<QueueId>,
    lease_log: LeaseLog,
    /// The publisher of these records.
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
    /// A query of this session.
    Query(SessionId),
    /// Messages of this queue that become active.
    Refill(QueueId),
    /// The file `queues.ack`.
    Save,
    /// The file with the state of a queue.
    Keep,
}

impl BrokerQueues {
    pub(super) fn new(
        instance: &str,
        definitions: Vec<Definition>,
        journal: &Journal,
    ) -> Result<Self, queue::ConfigError> {
        let mut engine = Queues::new();
        let mut by_name = BTreeMap::new();
        let keeping = Keeping::new(journal, &definitions);
        for definition in &definitions {
            let queue = engine.add_queue_in(definition.config.clone(), &keeping.memory_of(definition))?;
            by_name.insert(definition.name.clone(), queue);
        }
        let has_target =
            |(_, definition): &(usize, &Definition)| definition.config.target_queue_depth.is_some();
        let with_target = definitions.iter().enumerate().filter(has_target);
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
            querying: BTreeMap::new(),
            refilling: with_target.map(|(queue, _)| (QueueId::new(queue as u32), false)).collect(),
            dead_letters: DeadLetters::new(instance, definitions.len()),
            saving: Saving::new(journal.queue_points()),
            keeping,
            under_way: BTreeMap::new(),
            writers: definitions.iter().map(|_| ChangesWriter::default()).collect(),
            to_log: Vec::new(),
            lease_log: LeaseLog::new(definitions.len()),
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

    /// The type of the messages of the queue with this name.
    pub(super) fn message_type(&self, name: &str) -> Option<MessageType> {
        self.find(name).map(|queue| self.definition(queue).message_type)
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
        let due = self.engine.poll_timeout().zip(self.origin);
        let due = due.map(|(due, origin)| Instant::from_ns(due.get().saturating_sub(origin)));
        [due, self.saving.due(), self.keeping.due(), self.lease_log.due()].into_iter().flatten().min()
    }

    /// The session may take something again; whether anything waits for that.
    pub(super) fn may_release(&mut self, id: SessionId) -> bool {
        let is_held = self.held.contains(&id);
        if is_held {
            self.to_release.push(id);
        }
        is_held || self.querying.contains_key(&id)
    }
}

impl Broker {
    /// A persisted message enters the queues over its topic.
    pub(super) fn enqueue(&mut self, topic: TopicId, record: &Record<'_>) {
        let now = self.queues.time(self.now);
        let received = received_at(record, now, self.now.wall);
        for queue in &self.topics.topic(topic).queues {
            let BrokerQueues { engine, all, arena, .. } = &mut self.queues;
            let definition = &all[queue.get() as usize];
            if let Some(entry) = definition.entry_of(record, received, self.now.wall, arena) {
                engine.enqueue(*queue, record.position, entry);
            }
        }
    }
}
