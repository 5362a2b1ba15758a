//! The queue service: the engine (`quire_queue`) between the log and the connections
//! (docs/internals/queue-engine.md).
//!
//! The engine decides which subscription gets which message. [`QueueService`] gives it messages
//! from the log and sends its deliveries to sessions. It owns the state of all queues. Each call
//! gets the shared state of the broker as a [`Context`]. The run loop calls:
//!
//! - [`new`](QueueService::new), [`recover`](QueueService::recover),
//!   [`close`](QueueService::close): at the start and the end.
//! - The methods of [`LogConsumer`](crate::tail::LogConsumer): for records that became persistent,
//!   in order, and before journal files are removed.
//! - [`join`](QueueService::join), [`attach`](QueueService::attach),
//!   [`release`](QueueService::release), [`leave`](QueueService::leave): when subscriptions begin
//!   and end.
//! - [`settle`](QueueService::settle), [`extend`](QueueService::extend),
//!   [`query`](QueueService::query): for commands of connections.
//! - [`pause_session`](QueueService::pause_session), [`may_resume`](QueueService::may_resume),
//!   [`forget_session`](QueueService::forget_session): when a connection takes no more data, takes
//!   data again, or ends.
//! - [`serve`](QueueService::serve), then [`next_dead_letter`](QueueService::next_dead_letter),
//!   then [`save`](QueueService::save): once per turn.
//! - [`load_sources`](QueueService::load_sources): at the start, and
//!   [`follow_sources`](QueueService::follow_sources), [`next_move`](QueueService::next_move): once
//!   per turn, for the views that read queues.
//! - [`log_changes`](QueueService::log_changes), [`note_leases`](QueueService::note_leases),
//!   [`log_leases`](QueueService::log_leases): before a record that must come after these records
//!   in the log.
//! - [`define`](QueueService::define), [`continue_defining`](QueueService::continue_defining): for
//!   commands that create, alter and drop queues, and once per turn.
//! - [`work_done`](QueueService::work_done), [`next_timeout`](QueueService::next_timeout): for work
//!   on reader threads, and for the time.
//!
//! Work that may wait for the disk is a job for the reader threads. A subscription that needs its
//! result waits with its deliveries, a connection with its commands, a queue with its questions.

mod alter;
mod changes;
mod created;
mod dead_letter;
mod define;
mod deliver;
mod enter;
mod fetch;
mod fill;
mod filters;
mod instance_names;
mod jobs;
mod lease_log;
mod left_out;
mod lifecycle;
mod notices;
mod query;
mod recover;
mod settle;
mod settled_positions;
mod sidecars;
mod snapshots;
mod source;
mod standalone;
mod stats;
mod subscribe;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use hashbrown::HashMap;
use quire_journal::{Bookmark, Journal, JournalError, Position, PublisherId};
use rustc_hash::FxBuildHasher;
use slotmap::SecondaryMap;

use crate::config::queues::{Definition, QueueSettings};
pub(crate) use created::check_size;
pub(crate) use dead_letter::DeadLetter;
use define::Defining;
pub(crate) use define::{Define, FoundQueues};
pub use standalone::{Expired, StandaloneError, StandaloneQueue};
pub(crate) use subscribe::QueueSubscription;
pub(crate) use subscribe::Wanted;

use super::context::Context;
use crate::BrokerConfig;
use crate::session::SessionId;
use crate::subscription::SubscriptionId;
use crate::unreadable::UnreadableLog;
use dead_letter::DeadLetters;
use fetch::Recent;
use fill::Fills;
use filters::Filters;
use lease_log::LeaseLog;
use left_out::AllLeftOut;
use notices::Notices;
use query::QueryJob;
use quire_expression::message_type::{Arena, MessageType};
use quire_queue::{self as queue, ChangesWriter, QueueId, Queues, Time};
use quire_types::time::{Instant, Now};
use settle::Outstanding;
use settle::SettleJob;
use settled_positions::Saving;
use sidecars::QueuePointsFile;
use snapshots::Snapshots;
pub(crate) use source::Moved;
use source::Sources;

/// How long a close waits for the disk before it continues without the places of the queues. A disk
/// that is slower is failing.
const FLUSH_AT_CLOSE_MAX: Duration = Duration::from_secs(60);

/// The part of an instance that writes the records of queues, for their publisher. No instance
/// sends such records to another one.
pub(crate) const QUEUE_PUBLISHER: &str = "queues";

/// Everything about the queues of one broker.
pub(super) struct QueueService {
    engine: Queues,
    /// By the numbers of the queues. The definition of a removed queue is kept until another queue
    /// gets the number.
    all: Vec<Arc<Definition>>,
    /// The numbers of removed queues.
    removed: BTreeSet<QueueId>,
    /// The queues that commands can name.
    by_name: BTreeMap<Arc<str>, QueueId>,
    defining: Defining,
    /// Bookmarks of the messages that subscriptions hold, by the numbers of the queues.
    outstanding: Vec<Outstanding>,
    /// Bookmarks that acknowledgements named and that were searched in the log, until the changes
    /// are logged. Most of these messages are not leased, or were acknowledged before.
    searched: HashMap<(QueueId, Position), Bookmark, FxBuildHasher>,
    filters: Filters,
    recent: Recent,
    /// Positions that damage keeps from being read.
    unreadable: BTreeSet<Position>,
    /// The parts of subscriptions that queues serve, or have served while they still hold messages
    /// of them. Few subscriptions have one.
    served: SecondaryMap<SubscriptionId, Box<QueueSubscription>>,
    /// The broker's numbers of the engine's subscriptions.
    subscriptions: HashMap<queue::SubscriptionId, SubscriptionId, FxBuildHasher>,
    /// Subscriptions with deliveries that wait for the disk or for their connection.
    waiting: BTreeSet<SubscriptionId>,
    /// Sessions whose connection has no room: their subscriptions get no leases.
    paused: BTreeSet<SessionId>,
    /// The paused sessions whose connection may have room again.
    to_resume: Vec<SessionId>,
    /// Settles that are not done yet, by the session that waits for them. The same for queries.
    settling: BTreeMap<SessionId, SettleJob>,
    querying: BTreeMap<SessionId, QueryJob>,
    /// Queues with a target depth.
    refilling: BTreeMap<QueueId, Refilling>,
    /// Queues that read the log from its first record.
    fills: Fills,
    dead_letters: DeadLetters,
    notices: Notices,
    /// Messages that do not fit the configuration any more.
    left_out: AllLeftOut,
    saving: Saving,
    snapshots: Snapshots,
    sources: Sources,
    /// Where the fetches under way begin.
    fetching: Vec<Position>,
    /// The changes to log for each queue, and the queues that have some.
    writers: Vec<ChangesWriter>,
    to_log: Vec<QueueId>,
    lease_log: LeaseLog,
    /// The publisher of these records.
    publisher: PublisherId,
    /// The value of the engine's clock when that of the broker is zero.
    origin: Option<u64>,
    /// When the server began to stop. The engine's clock stops at that time.
    stopped_at: Option<Instant>,
    arena: Arena,
    /// Kept between uses: the part of a message that a subscription wants.
    selected: Vec<u8>,
}

impl QueueService {
    pub(super) fn new(
        config: &BrokerConfig,
        found: FoundQueues,
        journal: &Journal,
        unreadable: &UnreadableLog,
    ) -> Result<Self, queue::ConfigError> {
        let (instance, FoundQueues { definitions, defining, .. }) = (&config.name, found);
        let mut engine = Queues::new();
        let mut by_name = BTreeMap::new();
        let snapshots = Snapshots::new(journal, &definitions);
        for definition in &definitions {
            let queue = engine.add_queue_in(definition.config.clone(), &snapshots.memory_of(definition))?;
            by_name.insert(definition.name.clone(), queue);
        }
        let has_target =
            |(_, definition): &(usize, &Definition)| definition.config.target_queue_depth.is_some();
        let with_target = definitions.iter().enumerate().filter(has_target);
        Ok(QueueService {
            engine,
            removed: BTreeSet::new(),
            by_name,
            defining,
            outstanding: definitions.iter().map(|_| Outstanding::default()).collect(),
            searched: HashMap::default(),
            filters: Filters::new(unreadable.arena()),
            recent: Recent::default(),
            unreadable: BTreeSet::new(),
            served: SecondaryMap::new(),
            subscriptions: HashMap::default(),
            waiting: BTreeSet::new(),
            paused: BTreeSet::new(),
            to_resume: Vec::new(),
            settling: BTreeMap::new(),
            querying: BTreeMap::new(),
            refilling: with_target.map(|(queue, _)| (QueueId::new(queue as u32), Refilling::Idle)).collect(),
            fills: Fills::default(),
            dead_letters: DeadLetters::new(instance, definitions.len()),
            notices: Notices::default(),
            left_out: AllLeftOut::default(),
            saving: Saving::new(QueuePointsFile::new(journal.sidecars())),
            snapshots,
            sources: Sources::default(),
            fetching: Vec::new(),
            writers: definitions.iter().map(|_| ChangesWriter::default()).collect(),
            to_log: Vec::new(),
            lease_log: LeaseLog::new(definitions.len()),
            publisher: PublisherId::of_instance(instance, QUEUE_PUBLISHER),
            origin: None,
            stopped_at: None,
            arena: unreadable.arena(),
            selected: Vec::new(),
            all: definitions.into_iter().map(Arc::new).collect(),
        })
    }

    /// Ends the service: logs the last changes, and waits for the disk to save the places of the
    /// queues.
    ///
    /// # Errors
    /// The error of the journal. Acknowledged messages are safe.
    pub(super) fn close(&mut self, cx: &mut Context) -> Result<(), JournalError> {
        if !cx.has_failed() {
            self.write_uncertain()?;
        }
        if !self.any() {
            return Ok(());
        }
        self.log_changes(cx);
        self.log_leases(cx, true);
        cx.log.journal.flush(FLUSH_AT_CLOSE_MAX)?;
        if cx.has_failed() {
            return Ok(());
        }
        self.save_at_end(cx)?;
        self.write_snapshots_at_end(cx)
    }

    /// Saves how far the queues are, in portions, when it is time to.
    pub(super) fn save(&mut self, cx: &mut Context) {
        // After the last queue was removed, the file still gets this change.
        if !self.all.is_empty() || self.saving.has_work() {
            self.save_points(cx);
            self.write_snapshots(cx);
        }
    }

    /// Whether there are any.
    pub(super) fn any(&self) -> bool {
        self.all.len() > self.removed.len()
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.by_name.len()
    }

    /// The queues that were not removed.
    fn live(&self) -> impl Iterator<Item = (QueueId, &Arc<Definition>)> {
        let all = (0..).map(QueueId::new).zip(&self.all);
        all.filter(|(queue, _)| !self.removed.contains(queue))
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

    /// The engine's clock: the wall clock as it was at the first turn, moved on by the monotonic
    /// clock. So steps of the wall clock have no effect on leases, and the ages of messages
    /// continue over a restart. It stops when the server begins to stop.
    fn time(&mut self, now: Now) -> Time {
        let time = self.moving_time(now);
        self.stopped_at.map_or(time, |at| self.time_or_start(Now { instant: at, ..now }))
    }

    /// The same, and it also moves while the server stops: the time that belongs to `now.wall`.
    fn moving_time(&mut self, now: Now) -> Time {
        let origin = *self.origin.get_or_insert(now.wall.as_ns().saturating_sub(now.instant.as_ns()));
        Time::new(origin.saturating_add(now.instant.as_ns()))
    }

    /// The same for a call that changes no state. Before the first turn the queues have no
    /// messages.
    fn time_or_start(&self, now: Now) -> Time {
        Time::new(self.origin.unwrap_or_default().saturating_add(now.instant.as_ns()))
    }

    /// How far the wall clock is ahead of the engine's clock, because of its steps since the start.
    /// The engine's clock of the next start begins with the wall clock, so times that are kept for
    /// it are put forward by this.
    fn wall_ahead_ns(&self, now: Now) -> i64 {
        now.wall.as_ns().wrapping_sub(self.time_or_start(now).get()).cast_signed()
    }

    /// The server stops. From now on it takes no commands, so it does not see which leases are
    /// renewed and which messages are settled. No message is delivered, and no lease, delay or
    /// message ends any more.
    pub(super) fn stop(&mut self, now: Now) {
        self.stopped_at.get_or_insert(now.instant);
        self.engine.stop();
    }

    /// When the engine wants to be called.
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        let due = self.engine.poll_timeout().zip(self.origin).filter(|_| self.stopped_at.is_none());
        let due = due.map(|(due, origin)| Instant::from_ns(due.get().saturating_sub(origin)));
        let files = [self.saving.due(), self.snapshots.due(), self.lease_log.due()];
        files.into_iter().chain([due, self.notices.due()]).flatten().min()
    }

    /// The session may take something again; whether anything waits for that.
    #[inline]
    pub(super) fn may_resume(&mut self, id: SessionId) -> bool {
        let is_paused = self.paused.contains(&id);
        if is_paused {
            self.to_resume.push(id);
        }
        is_paused || self.querying.contains_key(&id)
    }
}

/// Whether messages are being read for a queue with a target depth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refilling {
    Idle,
    UnderWay,
    /// The next message cannot be read, so no more messages are read.
    Blocked,
}
