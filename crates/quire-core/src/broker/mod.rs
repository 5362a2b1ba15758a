//! The broker: everything that a server does, as a value that a driver drives.
//!
//! ```text
//!            handle(now, input) ... any number per turn
//! driver --> finish_turn(now)       once per turn
//!            poll_output()          until it gives nothing
//!            next_timeout()         when to come back at the latest
//! ```
//!
//! The broker has no socket, clock, thread or file: bytes come in as [`Input`], what is to be done comes out as [`Output`], time is an
//! argument, and what may block is a [`ReadRequest`](crate::replay::ReadRequest) or an [`UpkeepRequest`] that the driver runs elsewhere. Equal inputs at equal times give equal outputs.
//!
//! What it promises is docs/protocol.md. How it works: a publish is appended to the journal's open batch and goes to ordinary
//! subscriptions at once, straight from the received frame (`publish.rs`). The end of a turn submits the batch. When the journal has
//! persisted it, one pass over the new records serves every bookmark subscription that has caught up (`edge.rs`); those that have not
//! are fed by reads of their own at the pace of their connection (`feed.rs`) and join that pass when they arrive at it. Publishers get one
//! cumulative acknowledgement (`acknowledge.rs`).

mod acknowledge;
mod config;
mod conflate;
mod connection;
mod deferred;
mod edge;
mod ends;
mod feed;
mod io;
mod logon;
mod pause;
mod place;
mod publish;
mod publishers;
mod queues;
mod slice;
mod subscribe;
mod timer;
mod upkeep;

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use hashbrown::HashMap;
use quire_journal::{Cursor, Journal, JournalError, Position, Progress, Reader, Timestamp};
use rustc_hash::FxBuildHasher;
use slotmap::SlotMap;

pub use config::{
    BrokerConfig, ByClients, ConfigError, Durability, Limits, OpenError, RecordedTopic, TransactionLogConfig,
    UpkeepConfig,
};
pub use io::{ConnectionId, ConnectionStats, Event, Input, Level, Output, Stats};
pub use queues::{Expired, QueueSettings, StandaloneError, StandaloneQueue};
pub(crate) use queues::{QueueCourse, QueueFound, QueueWork};
pub(crate) use slice::RestOfBatch;
pub use slice::Stopwatch;
pub(crate) use timer::{Alarm, Alarms, TIMER_COUNT, Timer, Timers};
pub use upkeep::{UpkeepDone, UpkeepRequest};

use crate::filter::{Decision, TURN_EFFORT_MAX};
use crate::message_type::Arena;
use crate::replay::{Replay, ReplayId};
use crate::session::{Phase, Session, SessionId, Stall};
use crate::subscription::{Subscription, SubscriptionId};
use crate::time::{Instant, Now};
use crate::topic::{RecordingRule, TopicTable};
use crate::wire::{Code, ServerFrame};
use acknowledge::Failure;
use deferred::Deferred;
use ends::AwaitedEnds;
use feed::ReadLine;
use place::Places;
use publishers::Publishers;
use queues::{BrokerQueues, Definition};
use slice::{KEPT_SIZE_MAX, Slices};
use subscribe::PendingSubscribe;
use upkeep::Upkeeps;

/// Bytes of buffers kept for the next turn's output: enough for a fan-out to a thousand connections.
const SPARES_SIZE_MAX: usize = 16 * 1024 * 1024;

/// The same as a number: replies to commands are small and need no spare buffer, so every connection ever made would leave one.
const SPARES_COUNT_MAX: usize = 1024;

/// A spare buffer larger than this is given back to the allocator: one huge message must not stay in memory.
const SPARE_SIZE_MAX: usize = 1024 * 1024;

/// Bytes that a connection is sent in one turn, or one chunk more: what waited for one that takes bytes again must not hold up the others.
const SEND_SIZE_MAX: usize = 1024 * 1024;

/// How long a close waits for the disk before it goes on without the places of the queues: a disk that is slower is failing.
const FLUSH_AT_CLOSE_MAX: Duration = Duration::from_secs(60);

/// See the module's documentation for the order of calls.
pub struct Broker {
    config: BrokerConfig,
    journal: Journal,
    reader: Reader,
    topics: TopicTable,
    sessions: SlotMap<SessionId, Session>,
    by_connection: HashMap<ConnectionId, SessionId, FxBuildHasher>,
    /// Bytes of unfinished frames that all sessions keep.
    unfinished_size: usize,
    /// Bytes that wait for connections, replays apart.
    waiting_size: usize,
    places: Places,
    publishers: Publishers,
    queues: BrokerQueues,
    upkeeps: Upkeeps,
    subscriptions: SlotMap<SubscriptionId, Subscription>,
    replays: SlotMap<ReplayId, Replay>,
    /// Replays to look at before the turn ends.
    to_feed: VecDeque<ReplayId>,
    /// Those that must wait for the next turn.
    fed_later: Vec<ReplayId>,
    /// They wait, each with an alarm, for a publish that waits for the disk.
    standing_back: BTreeSet<ReplayId>,
    /// Those of several subscriptions that have caught up: they go on together.
    tails: Vec<ReplayId>,
    read_line: ReadLine,
    /// Subscriptions whose start is being looked for, by session.
    pending: HashMap<SessionId, PendingSubscribe, FxBuildHasher>,
    /// Those among them whose start may become known with the next flush.
    waiting_starts: Vec<SessionId>,
    /// Sessions with flushes that wait.
    flushing: BTreeSet<SessionId>,
    /// Sessions that may have a reason less to wait.
    stalled: Vec<SessionId>,
    /// Number of the last read request.
    read_number: u64,
    /// The shared pass has served everything up to here.
    edge: Position,
    /// Where it reads on, while anyone follows it.
    edge_cursor: Option<Cursor>,
    /// Caught up subscriptions for which something has to be done at a certain position, or was until just now.
    with_goals: BTreeSet<SubscriptionId>,
    awaited_ends: AwaitedEnds,
    /// `live` subscriptions that are not yet in step.
    joining: BTreeSet<SubscriptionId>,
    slices: Slices,
    deferred: Deferred,
    /// Effort that filters may take for one message while everything else waits.
    turn_effort: u64,
    /// Patterns in the filters of all subscriptions.
    pattern_count: usize,
    timers: Timers,
    alarms: Alarms,
    outputs: VecDeque<Output>,
    dirty: Vec<SessionId>,
    /// Closed sessions that still have their subscriptions and their names.
    closed: Vec<SessionId>,
    spares: Vec<Vec<u8>>,
    /// Their capacity in bytes.
    spares_size: usize,
    failure: Option<Failure>,
    /// The last timestamp given to a message.
    stamped: Timestamp,
    /// Publishers are not read from until the journal has caught up.
    is_pushing_back: bool,
    /// There is more to do than one turn should.
    wants_turn: bool,
    shutdown: Shutdown,
    counters: Counters,
    /// Kept between uses: memory for the fields of conflation keys.
    arena: Arena,
    /// Memory for what select lists leave of a message.
    selected: Vec<u8>,
    /// Kept between uses: who gets the message at hand.
    matched: Vec<(SubscriptionId, Decision)>,
    now: Now,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shutdown {
    No,
    /// Waits until the journal has persisted what was taken.
    Flushing,
    /// Everybody was told.
    Done,
}

#[derive(Debug, Default)]
struct Counters {
    published: u64,
    duplicates: u64,
    refused: u64,
    delivered: u64,
    received_bytes: u64,
    sent_bytes: u64,
}

impl Broker {
    /// A broker over an open journal.
    ///
    /// # Errors
    /// As [`Broker::open`].
    pub fn new(config: BrokerConfig, journal: Journal) -> Result<Broker, OpenError> {
        Broker::open(config, journal, &mut |_| ())
    }

    /// As [`Broker::new`]; `on_progress` is called while queues are rebuilt from a long log.
    ///
    /// # Errors
    /// [`OpenError::Config`] for a value out of range, a pattern or a filter that does not compile, or an unknown message type;
    /// [`OpenError::Journal`] for damage in the log.
    pub fn open(
        config: BrokerConfig,
        journal: Journal,
        on_progress: &mut dyn FnMut(Progress),
    ) -> Result<Broker, OpenError> {
        config.check()?;
        let options = config.filter_options();
        let rules = RecordingRule::compile(&config.transaction_log.topics, &options)?;
        let definitions = Definition::compile(&config.queues, &rules, &options)?;
        let routes = definitions.iter().map(Definition::route).collect();
        let reader = journal.reader();
        let edge = journal.persisted();
        let queues = BrokerQueues::new(&config.name, definitions, &journal)
            .map_err(|error| ConfigError::new("queues", error.to_string()))?;
        let mut broker = Broker {
            publishers: Publishers::new(&config.name),
            queues,
            config,
            reader,
            topics: TopicTable::new(rules, routes),
            sessions: SlotMap::with_key(),
            by_connection: HashMap::default(),
            unfinished_size: 0,
            waiting_size: 0,
            upkeeps: Upkeeps::default(),
            subscriptions: SlotMap::with_key(),
            replays: SlotMap::with_key(),
            to_feed: VecDeque::new(),
            fed_later: Vec::new(),
            standing_back: BTreeSet::new(),
            tails: Vec::new(),
            read_line: ReadLine::default(),
            pending: HashMap::default(),
            waiting_starts: Vec::new(),
            flushing: BTreeSet::new(),
            stalled: Vec::new(),
            read_number: 0,
            edge,
            edge_cursor: None,
            with_goals: BTreeSet::new(),
            awaited_ends: AwaitedEnds::default(),
            joining: BTreeSet::new(),
            slices: Slices::new(),
            deferred: Deferred::default(),
            turn_effort: TURN_EFFORT_MAX,
            pattern_count: 0,
            timers: Timers::default(),
            alarms: Alarms::default(),
            outputs: VecDeque::new(),
            dirty: Vec::new(),
            closed: Vec::new(),
            spares: Vec::new(),
            spares_size: 0,
            failure: None,
            stamped: Timestamp::default(),
            places: Places::new(&journal),
            is_pushing_back: false,
            wants_turn: false,
            shutdown: Shutdown::No,
            counters: Counters::default(),
            arena: Arena::default(),
            selected: Vec::new(),
            matched: Vec::new(),
            now: Now { instant: Instant::default(), wall: Timestamp::default() },
            journal,
        };
        broker.recover_queues(on_progress)?;
        Ok(broker)
    }

    /// Takes one input. Any number may follow each other; then [`Broker::finish_turn`] must be called.
    pub fn handle(&mut self, now: Now, input: Input<'_>) {
        self.now = now;
        match input {
            Input::Connected { connection, peer } => self.connect(connection, peer),
            Input::Received { connection, bytes } => {
                if let Some(session) = self.session_of(connection) {
                    self.counters.received_bytes += bytes.len() as u64;
                    self.receive(session, bytes);
                }
            }
            Input::Writable { connection, writable } => {
                if let Some(session) = self.session_of(connection) {
                    self.set_writable(session, writable);
                }
            }
            Input::Disconnected { connection } => {
                if let Some(session) = self.session_of(connection) {
                    self.disconnect(session);
                }
            }
            Input::ReadDone(done) => self.read_done(done),
            Input::UpkeepDone(done) => self.upkeep_done(done),
            // What these stand for is looked at by the end of every turn.
            Input::Flushed | Input::Timeout => (),
            Input::Shutdown => self.begin_shutdown(),
        }
        self.bury_closed();
    }

    /// Ends a turn: hands the journal what was appended, serves what was persisted, acknowledges, feeds replays, and queues
    /// what is to be done. Then poll.
    pub fn finish_turn(&mut self, now: Now) {
        self.now = now;
        self.wants_turn = false;
        let phases = [
            Broker::fire_timers,
            Broker::continue_waiting,
            Broker::submit,
            Broker::notice_failure,
            Broker::pass_edge,
            Broker::tell_places,
            Broker::serve_queues,
            Broker::settle,
            Broker::search_again,
            Broker::resume_stalled,
            Broker::submit,
            Broker::push_back,
            Broker::decide_deferred,
            Broker::feed_replays,
            Broker::continue_shutdown,
            Broker::send,
        ];
        for phase in phases {
            phase(self);
            self.bury_closed();
        }
    }

    /// The next thing to do, until there is none.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// Gives back the buffer of an [`Output::Send`]; saves allocations, is never required.
    pub fn recycle(&mut self, mut buffer: Vec<u8>) {
        let size = buffer.capacity();
        if size > 0
            && size <= SPARE_SIZE_MAX
            && self.spares_size + size <= SPARES_SIZE_MAX
            && self.spares.len() < SPARES_COUNT_MAX
        {
            buffer.clear();
            self.spares_size += size;
            self.spares.push(buffer);
        }
    }

    /// When the next turn is wanted at the latest: an instant that may already have come.
    pub fn next_timeout(&self) -> Option<Instant> {
        if self.wants_turn {
            return Some(self.now.instant);
        }
        let others = [self.alarms.next(), self.places.due(), self.queues.next_timeout()];
        others.into_iter().chain([self.timers.next()]).flatten().min()
    }

    /// Whether a shutdown is finished: nothing is left but to poll the last outputs and to close the journal.
    pub fn is_drained(&self) -> bool {
        self.shutdown == Shutdown::Done && self.sessions.is_empty()
    }

    /// Closes the journal cleanly. Waits for the disk.
    ///
    /// # Errors
    /// What the journal says; what was acknowledged is safe all the same.
    pub fn close(mut self) -> Result<(), JournalError> {
        if self.queues.any() {
            self.log_changes();
            self.log_leases(true);
            self.journal.flush(FLUSH_AT_CLOSE_MAX)?;
            self.save_at_end()?;
            self.keep_at_end()?;
        }
        self.journal.close()
    }

    /// Ends a broker that panicked in the middle of a turn: writes nothing more, marks no clean stop. What was acknowledged is safe.
    pub fn abandon(self) {
        self.journal.abandon();
    }

    /// Sets another effort than [`TURN_EFFORT_MAX`]: with a small one, a simulation sends most messages the long way round.
    pub fn set_turn_effort(&mut self, effort: u64) {
        self.turn_effort = effort;
    }

    /// The journal, to be read, or to be told whom to wake.
    pub fn journal(&self) -> &Journal {
        &self.journal
    }

    /// Of a journal that is driven by hand: writes and syncs what was submitted. Then hand in [`Input::Flushed`].
    pub fn write_journal(&mut self) {
        self.journal.write_waiting();
    }

    /// What is configured.
    pub fn config(&self) -> &BrokerConfig {
        &self.config
    }

    /// A snapshot.
    pub fn stats(&self) -> Stats {
        let publisher = |session: &Session| {
            let publisher = self.publishers.get(session.identity.as_ref()?.publisher)?;
            Some((publisher.highest(), publisher.jump_count()))
        };
        let connection = |session: &Session| ConnectionStats {
            connection: session.connection,
            peer: session.peer.to_string(),
            client_name: session.client_name().unwrap_or_default(),
            sequence: publisher(session).unwrap_or_default().0,
            sequence_jump_count: publisher(session).unwrap_or_default().1,
            subscription_count: session.subscriptions.len(),
            backlog_bytes: session.outbox.size(),
            writable: session.is_writable,
        };
        Stats {
            connection_count: self.sessions.len(),
            publisher_count: self.publishers.count(),
            subscription_count: self.subscriptions.len(),
            replay_count: self.replays.len(),
            published_count: self.counters.published,
            duplicate_count: self.counters.duplicates,
            refused_count: self.counters.refused,
            delivered_count: self.counters.delivered,
            received_bytes: self.counters.received_bytes,
            sent_bytes: self.counters.sent_bytes,
            unpersisted_bytes: self.journal.unpersisted_bytes(),
            appended: self.journal.appended().get(),
            persisted: self.journal.persisted().get(),
            journal_failed: self.failure.is_some(),
            queues: self.queue_stats(),
            connections: self.sessions.iter().map(|(_, session)| connection(session)).collect(),
        }
    }

    /// Hands the open batch to the journal, after noting for every publisher what it was about.
    fn submit(&mut self) {
        self.log_leases(false);
        self.publishers.note();
        self.places.submitted();
        self.journal.submit();
    }

    /// Above the limit of unpersisted bytes publishers are not read from; they go on at half of it.
    fn push_back(&mut self) {
        let unpersisted = self.journal.unpersisted_bytes() as u64;
        let limit = self.config.limits.max_unpersisted;
        let above = if self.is_pushing_back { unpersisted > limit / 2 } else { unpersisted > limit };
        let above = above && self.failure.is_none();
        if above != self.is_pushing_back {
            self.is_pushing_back = above;
            let publishing = self.sessions.iter().filter(|(_, session)| session.has_published);
            let publishing: Vec<_> = publishing.map(|(id, _)| id).collect();
            publishing.into_iter().for_each(|session| self.touch(session));
        }
    }

    /// Queues what every touched session is owed, and keeps what waits of it within its bound.
    fn send(&mut self) {
        self.send_touched();
        while self.waiting_size as u64 > self.config.limits.max_waiting {
            self.end_slowest();
            self.send_touched();
        }
    }

    fn send_touched(&mut self) {
        // A closed session is forgotten below.
        self.bury_closed();
        let mut unsent = Vec::new();
        for id in std::mem::take(&mut self.dirty) {
            let Some(session) = self.sessions.get_mut(id) else { continue };
            if !session.is_dirty {
                continue;
            }
            session.is_dirty = false;
            let connection = session.connection;
            let is_closed = session.phase == Phase::Closed;
            if !session.outbox.is_empty() && (session.is_writable || is_closed) {
                session.sent_at = self.now.instant;
                let mut sent_size = 0;
                while (sent_size < SEND_SIZE_MAX || is_closed)
                    && let Some(bytes) = session.outbox.take()
                {
                    sent_size += bytes.len();
                    self.outputs.push_back(Output::Send { connection, bytes });
                }
                self.counters.sent_bytes += sent_size as u64;
                if !is_closed && !session.outbox.is_empty() {
                    session.is_dirty = true;
                    unsent.push(id);
                }
                self.wants_turn |= !session.replays.is_empty() && session.is_writable;
                self.to_feed.extend(session.replays.iter().copied());
                self.wants_turn |= self.queues.may_release(id);
                if session.is_writable {
                    let overdue = std::mem::take(&mut session.overdue);
                    self.alarms.recall(overdue, self.now.instant);
                }
            }
            let waiting_size = session.outbox.backlog_size() + session.deferred_size;
            self.waiting_size = self.waiting_size - session.waiting_size + waiting_size;
            session.waiting_size = waiting_size;
            if is_closed {
                self.outputs.push_back(Output::Close { connection });
                self.forget_session(id);
                continue;
            }
            let waits_briefly = session.stall == Some(Stall::Waiting) && session.kept.len() < KEPT_SIZE_MAX;
            let pause = (session.stall.is_some() && !waits_briefly)
                || session.phase == Phase::Leaving
                || (self.is_pushing_back && session.has_published);
            if pause != session.is_reading_paused {
                session.is_reading_paused = pause;
                session.heard_at = self.now.instant;
                self.outputs.push_back(if pause {
                    Output::PauseReading { connection }
                } else {
                    Output::ResumeReading { connection }
                });
            }
        }
        // They have had enough of this turn.
        self.wants_turn |= !unsent.is_empty();
        self.dirty.extend(unsent);
    }

    /// Stops taking anything, so that what was taken can be flushed.
    fn begin_shutdown(&mut self) {
        if self.shutdown == Shutdown::No {
            self.shutdown = Shutdown::Flushing;
            self.outputs.push_back(Output::Log(Event::ShuttingDown));
        }
    }

    fn continue_shutdown(&mut self) {
        if self.shutdown == Shutdown::No {
            return;
        }
        let is_flushed = self.journal.persisted() == self.journal.appended() || self.failure.is_some();
        if self.shutdown == Shutdown::Flushing && is_flushed {
            let sessions: Vec<_> = self.sessions.keys().collect();
            for session in sessions {
                self.acknowledge_now(session);
                self.end(session, Code::ShuttingDown, "the server is stopping");
            }
            self.shutdown = Shutdown::Done;
        }
    }

    fn session_of(&self, connection: ConnectionId) -> Option<SessionId> {
        self.by_connection.get(&connection).copied()
    }

    fn session(&mut self, id: SessionId) -> &mut Session {
        &mut self.sessions[id]
    }

    fn subscription(&mut self, id: SubscriptionId) -> &mut Subscription {
        &mut self.subscriptions[id]
    }

    fn replay(&mut self, id: ReplayId) -> &mut Replay {
        &mut self.replays[id]
    }

    /// Gives the session a used buffer for its output, when there is one.
    fn give_buffer(&mut self, id: SessionId) {
        let outbox = &mut self.sessions[id].outbox;
        if outbox.wants_buffer()
            && let Some(buffer) = self.spares.pop()
        {
            self.spares_size -= buffer.capacity();
            outbox.give_buffer(buffer);
        }
    }

    /// Makes the end of the turn look at the session.
    fn touch(&mut self, id: SessionId) {
        let session = &mut self.sessions[id];
        if !session.is_dirty {
            session.is_dirty = true;
            self.dirty.push(id);
        }
    }

    /// Queues a frame for the session; what a connection does not take counts as its backlog.
    fn put(&mut self, id: SessionId, frame: &ServerFrame<'_>) {
        let session = self.session(id);
        if session.phase == Phase::Closed {
            return;
        }
        session.outbox.put(frame);
        let size = session.outbox.backlog_size() as u64;
        self.touch(id);
        if size > self.config.limits.max_client_backlog {
            self.end_slow(id);
        }
    }
}
