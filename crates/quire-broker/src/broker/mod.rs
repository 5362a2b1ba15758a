//! The broker: all functions of a server, as a value that a driver calls.
//!
//! ```text
//!            handle(now, input) ... any number per turn
//! driver --> finish_turn(now)       once per turn
//!            poll_output()          until it gives nothing
//!            next_timeout()         when to come back at the latest
//! ```
//!
//! The broker has no socket, clock, thread or file. The driver passes bytes as [`Input`], and
//! receives actions as [`Output`]. Time is an argument. Work that may block is a
//! [`ReadRequest`](ReadRequest) or a [`MaintenanceJob`], which the driver runs on another thread.
//! Equal inputs at equal times produce equal outputs.
//!
//! docs/protocol.md is the contract. A publish is appended to the open batch of the journal, and
//! delivered to ordinary subscriptions at once, directly from the received frame (`intake/`). The
//! end of a turn submits the batch. When the journal has persisted it, one pass over the new
//! records serves every bookmark subscription that has caught up (`bookmarks/live.rs`). Replays
//! serve the others at the pace of their connections (`bookmarks/replay.rs`) and join that pass
//! when they reach it. Publishers receive one cumulative acknowledgement
//! (`publishers/acknowledge.rs`).

/// The only list of the consumers of the log. It is a macro, because it borrows only these fields
/// of the broker. The tail does not serve the tables and the links: the intake puts messages into
/// the tables, and a link reads the log at the pace of its destination. They only prevent the
/// removal of journal files.
macro_rules! consumers {
    ($broker:ident) => {
        [&$broker.queues as &dyn LogConsumer, &$broker.bookmarks, &$broker.tables, &$broker.links]
    };
    (mut $broker:ident) => {
        [&mut $broker.queues as &mut dyn LogConsumer, &mut $broker.bookmarks]
    };
}

mod authenticate;
mod dispatch;
mod figures;
mod intake;
mod subscribe;

use crate::unreadable::UnreadableLog;
use crate::{
    Access, BrokerConfig, ConfigError, ConnectionId, ConnectionStats, Event, Input, OpenError, Output, Page,
    QueueFigures, ReadDone, ServerStats, Stats, Stopwatch, Timer, TransportId,
};
use quire_journal::{Journal, JournalError, Position, RecoveryProgress};

use crate::admin::Requester;
use crate::bookmarks::Bookmarks;
use crate::config::Compiled;
use crate::config::queues::Definition;
use crate::config::tables::TableDefinition;
use crate::context::{Context, Shutdown};
use crate::events::{ClientEvent, EventTopic};
use crate::limited::LimitedUsers;
use crate::links::Links;
use crate::maintenance::MaintenanceService;
use crate::publishers::Publishers;
use crate::queues::QueueService;
use crate::send::Sent;
use crate::session::{Phase, Session, SessionId, Stall};
use crate::sessions::ADMINISTRATORS_MAX;
use crate::stream::PublishStream;
use crate::tables::{ReplacedViews, SnapshotParts, SnapshotSteps, TURN_SIZE_MAX, Tables};
use crate::tail::{LogConsumer, Tail};
use crate::topic::TopicTable;
use intake::{InHand, Intake};
use quire_command::Code;
use quire_expression::filter::TURN_EFFORT_MAX;
use quire_types::time::{Instant, Now};
use subscribe::Searches;

/// See the module's documentation for the order of calls.
pub struct Broker {
    cx: Context,
    publishers: Publishers,
    queues: QueueService,
    maintenance: MaintenanceService,
    searches: Searches,
    bookmarks: Bookmarks,
    tail: Tail,
    stream: PublishStream,
    tables: Tables,
    links: Links,
    in_hand: InHand,
}

impl Broker {
    /// A broker over an open journal.
    ///
    /// # Errors
    /// As [`Broker::open`].
    pub fn new(config: BrokerConfig, journal: Journal) -> Result<Broker, OpenError> {
        Broker::open(config, journal, &|steps| Box::new(steps.map(|make| make())), &mut |_| ())
    }

    /// As [`Broker::new`]; `on_progress` is called while queues are rebuilt from a long log.
    /// `run_steps` returns the parts of the steps in their order, and may create them on other
    /// threads.
    ///
    /// # Errors
    /// [`OpenError::Config`] for a value out of range, a pattern or a filter that does not compile,
    /// or an unknown message type; [`OpenError::Journal`] for damage in the log.
    pub fn open(
        config: BrokerConfig,
        journal: Journal,
        run_steps: &dyn Fn(SnapshotSteps) -> SnapshotParts,
        on_progress: &mut dyn FnMut(RecoveryProgress),
    ) -> Result<Broker, OpenError> {
        config.check()?;
        let created = QueueService::created_sources(&config, &journal);
        let (replaced, compiled) = ReplacedViews::load(&config, &created, &journal)?;
        let Compiled { rules, queues: definitions, tables, links, entitlements, user_limits, watches } =
            compiled;
        let mut warnings = config.warnings(&rules, &definitions);
        let found = QueueService::load_created(&config, definitions, &rules, &journal)?;
        warnings.extend(found.replaced.iter().map(|name| {
            format!("queue {name:?}: it was created at run time; from now on the configuration defines it")
        }));
        let created = |name: &str| found.definitions.iter().any(|queue| *queue.name == *name);
        let is_taken = |table: &TableDefinition| !table.is_of_queue && created(&table.name);
        if let Some(index) = tables.iter().position(is_taken) {
            let reason =
                format!("topic {:?}: a queue that was created at run time has the name", tables[index].name);
            let key = match index.checked_sub(config.sow_topics.len()) {
                None => format!("sow_topics[{index}].name"),
                Some(_) if tables[index].view.is_some() => "views.name".to_owned(),
                Some(_) => "conflated_topics.name".to_owned(),
            };
            return Err(ConfigError::new(key, reason).into());
        }
        let routes = found.definitions.iter().map(Definition::route).collect();
        let unreadable = UnreadableLog::default();
        let queues = QueueService::new(&config, found, &journal, &unreadable)
            .map_err(|error| ConfigError::new("queues", error.to_string()))?;
        let topics = TopicTable::new(rules, routes, Tables::routes(&tables), unreadable.arena());
        let efforts = (TURN_EFFORT_MAX, TURN_SIZE_MAX);
        let mut cx = Context::new(config, journal, topics, unreadable, watches, efforts);
        cx.clients.access.entitlements = entitlements;
        cx.clients.limited = LimitedUsers::new(user_limits);
        cx.open_links(&links);
        cx.open_offline().map_err(|error| ConfigError::new("limits.message_disk_path", error.to_string()))?;
        warnings.into_iter().for_each(|text| cx.note(Event::ConfigWarning { text }));
        let mut broker = Broker {
            publishers: Publishers::new(&cx.config.name),
            queues,
            bookmarks: Bookmarks::new(&cx.log.journal),
            tail: Tail::default(),
            maintenance: MaintenanceService::new(&mut cx),
            searches: Searches::default(),
            stream: PublishStream::new(&cx),
            tables: Tables::new(tables, replaced, &cx.log.journal, &cx.messages.unreadable)
                .map_err(|error| ConfigError::new("sow_topics", error.to_string()))?,
            links: Links::new(links, &mut cx),
            in_hand: InHand::default(),
            cx,
        };
        broker.queues.recover(&mut broker.cx, on_progress)?;
        broker.tables.recover(&mut broker.cx, run_steps, on_progress)?;
        broker.intake().load_queues()?;
        broker.tables.compute_all(&mut broker.cx);
        broker.tables.note_unused(&mut broker.cx)?;
        Ok(broker)
    }

    /// Takes one input. Any number may follow each other; then [`Broker::finish_turn`] must be
    /// called.
    pub fn handle(&mut self, now: Now, input: Input<'_>) {
        self.cx.clock.now = now;
        match input {
            Input::Connected { connection, peer, transport, access } => {
                self.connect(connection, peer, transport, access);
            }
            Input::Received { connection, bytes } => {
                self.cx.clients.counters.received_bytes += bytes.len() as u64;
                match self.cx.session_of(connection) {
                    Some(session) => {
                        self.cx.session(session).traffic.received_bytes += bytes.len() as u64;
                        self.receive(session, bytes);
                    }
                    None => self.links.receive(&mut self.cx, connection, bytes),
                }
            }
            Input::Writable { connection, writable } => match self.cx.session_of(connection) {
                Some(session) => self.set_writable(session, writable),
                None => self.links.set_writable(connection, writable),
            },
            Input::Disconnected { connection } => match self.cx.session_of(connection) {
                Some(session) => self.disconnect(session),
                None => self.links.disconnected(&mut self.cx, connection),
            },
            Input::LinkOpened { destination, connection, tls, identity } => {
                self.links.opened(&mut self.cx, destination, (connection, tls), identity);
            }
            Input::LinkNotOpened { destination, reason } => {
                self.links.not_opened(&mut self.cx, destination, reason);
            }
            Input::LinkAccepted { connection, peer, tls } => {
                self.links.accepted(&mut self.cx, (connection, tls), peer);
            }
            Input::Authenticated { connection, user, groups } => self.authenticated(connection, user, groups),
            Input::Entitle(rules) => {
                let authenticates = rules.authenticates_links;
                self.cx.entitle(rules);
                self.links.entitle(&mut self.cx, authenticates);
            }
            Input::Reloaded { connection, command, result } => self.reloaded(connection, command, result),
            Input::Statistics { connection, command, result } => {
                self.statistics(connection, command, result);
            }
            Input::ActionRan(data) => self.cx.tell(EventTopic::Action, data.as_bytes().to_vec()),
            Input::Reset { connection, reason } => match self.cx.session_of(connection) {
                Some(id) => self.cx.reset(id, reason),
                None => self.links.reset(&mut self.cx, connection, reason),
            },
            Input::ReadDone(done) => self.job_done(done),
            Input::MaintenanceDone(done) => {
                let consumers = consumers!(self);
                self.maintenance.done(&mut self.cx, &consumers, done);
            }
            Input::Admin { ticket, command } => self.administer(Requester::Process { ticket }, command),
            // The end of every turn handles the causes of these inputs.
            Input::Flushed | Input::Timeout => (),
            Input::Shutdown => self.begin_shutdown(),
        }
        self.remove_ended();
    }

    /// Finds out whether the log may lack messages, in the first turn, or for a command before it.
    fn begin_links(&mut self) {
        self.cx.clock.started.get_or_insert(self.cx.clock.now.wall);
        self.links.begin(&mut self.cx);
    }

    /// Ends a turn: submits the appended records to the journal, serves the persisted records,
    /// sends acknowledgements, advances replays, and queues outputs. Then poll.
    pub fn finish_turn(&mut self, now: Now) {
        self.cx.clock.now = now;
        self.begin_links();
        self.cx.clock.wants_turn = false;
        if let Some(behind) = self.cx.log.look_at_clock(now) {
            self.cx.note(Event::ClockBehind { behind });
        }
        let phases = [
            Broker::fire_timers,
            Broker::continue_waiting,
            Broker::take_replicated,
            // A removed record and the message about it are in one batch.
            Broker::publish_events,
            Broker::submit_inline,
            Broker::notice_failure,
            // Publishers that wait for a destination are served below.
            Broker::serve_links,
            Broker::advance_tail,
            Broker::notify_progress,
            Broker::serve_queues,
            Broker::remove_records,
            Broker::acknowledge_publishers,
            Broker::retry_searches,
            Broker::resume_sessions,
            Broker::publish_events,
            Broker::submit,
            Broker::serve_views,
            Broker::push_back,
            Broker::decide_filters,
            Broker::serve_tables,
            Broker::serve_replays,
            Broker::continue_shutdown,
            Broker::send,
            Broker::set_timers,
        ];
        for phase in phases {
            phase(self);
            self.remove_ended();
        }
        self.cx.log_unreadable();
    }

    /// The next action; `None` when there is none.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.cx.outputs.pop_front()
    }

    /// Returns the buffer of an [`Output::Send`] to the broker. This saves allocations, and is
    /// never required.
    pub fn recycle(&mut self, buffer: Vec<u8>) {
        self.cx.clients.buffers.recycle(buffer);
    }

    /// The latest time for the next turn, as of the end of the last turn. It may already be in the
    /// past.
    pub fn next_timeout(&self) -> Option<Instant> {
        if self.cx.clock.wants_turn {
            return Some(self.cx.clock.now.instant);
        }
        self.cx.clock.timers.next()
    }

    /// Whether a shutdown is finished. The driver then only polls the last outputs and closes the
    /// journal.
    pub fn is_drained(&self) -> bool {
        self.cx.shutdown == Shutdown::Done && self.cx.clients.sessions.all.is_empty()
    }

    /// Closes the journal cleanly. Waits for the disk.
    ///
    /// # Errors
    /// The error of the journal. Acknowledged messages are safe.
    pub fn close(mut self) -> Result<(), JournalError> {
        self.queues.close(&mut self.cx)?;
        self.tables.close(&mut self.cx)?;
        self.links.save(&self.cx)?;
        self.cx.log.journal.close()
    }

    /// Ends a broker that panicked in the middle of a turn. It writes no more data, and does not
    /// mark a clean stop. Acknowledged messages are safe.
    pub fn abandon(self) {
        self.cx.log.journal.abandon();
    }

    /// Sets a clock that moves within a turn, so that the work of one connection cannot make a turn
    /// long. Without this clock, a turn does all requested work.
    pub fn set_stopwatch(&mut self, stopwatch: Stopwatch) {
        self.cx.clock.slices.set_stopwatch(stopwatch);
    }

    /// Sets another effort than [`TURN_EFFORT_MAX`]. With a small effort, a simulation sends most
    /// messages through the slow path.
    pub fn set_turn_effort(&mut self, effort: u64) {
        self.cx.clock.turn_effort = effort;
    }

    /// Sets another size than 128 KiB for the messages that another thread examines, as
    /// [`Broker::set_turn_effort`].
    pub fn set_turn_size(&mut self, size: usize) {
        self.cx.clock.turn_size = size;
    }

    /// The journal: for readers, and to set the wake-up.
    pub fn journal(&self) -> &Journal {
        &self.cx.log.journal
    }

    /// For a journal without a writer thread: writes and syncs the submitted records. Then hand in
    /// [`Input::Flushed`].
    pub fn write_journal(&mut self) {
        self.cx.log.journal.write_waiting();
    }

    /// The first position of the log that a consumer of it still needs, also after a crash now;
    /// `None` when none of them needs a record.
    pub fn needed_position(&self) -> Option<Position> {
        consumers!(self).iter().filter_map(|consumer| consumer.needed_from(&self.cx)).min()
    }

    /// What is configured.
    pub fn config(&self) -> &BrokerConfig {
        &self.cx.config
    }

    /// Whether a message about a run of an action would reach the log, a last-value topic or a
    /// subscription.
    pub fn hears_actions(&self) -> bool {
        self.cx.wants_event(EventTopic::Action)
    }

    /// The figures of every queue, by name.
    pub fn queue_stats(&self) -> QueueFigures {
        self.queues.stats(&self.cx)
    }

    /// The identity of the server, and its most important figures.
    pub(crate) fn server_stats(&self) -> ServerStats {
        let (journal_file_count, journal_size) = self.cx.log.journal.size();
        ServerStats {
            name: self.cx.config.name.clone(),
            version: env!("CARGO_PKG_VERSION"),
            user: None,
            started: self.cx.clock.started.unwrap_or(self.cx.clock.now.wall),
            now: self.cx.clock.now.wall,
            journal_file_count,
            journal_size,
            topic_count: self.cx.log.journal.topic_count(),
            queue_count: self.queues.count(),
            connection_count: self.cx.clients.sessions.all.len(),
            subscription_count: self.cx.clients.subscriptions.all.len(),
            replay_lag: self.bookmarks.lag_max(&self.cx),
            published_count: self.cx.clients.counters.published,
            delivered_count: self.cx.clients.counters.delivered,
            unreadable_count: self.cx.messages.unreadable.reports().count(),
            persisted: self.cx.log.journal.persisted().get(),
            unpersisted_bytes: self.cx.log.unpersisted_size(),
            journal_failed: self.cx.log.failure.is_some(),
        }
    }

    /// The connections with a number above `after`.
    pub(crate) fn connections_after(&self, after: u64) -> Page<ConnectionStats> {
        let sessions = self.cx.clients.sessions.all.values();
        let mut sessions: Vec<&Session> = sessions.filter(|session| session.connection.0 > after).collect();
        sessions.sort_unstable_by_key(|session| session.connection);
        Page::of(sessions.into_iter().map(|session| self.connection_stats(session)))
    }

    fn connection_stats(&self, session: &Session) -> ConnectionStats {
        let publisher =
            session.identity.as_ref().and_then(|identity| self.publishers.get(identity.publisher));
        ConnectionStats {
            connection: session.connection,
            peer: session.peer.to_string(),
            client_name: session.client_name().unwrap_or_default(),
            client_version: session
                .identity
                .as_ref()
                .and_then(|identity| identity.client_version.as_deref())
                .map(str::to_owned),
            user: session.client_facts().user,
            denied_read_count: session.denied_read_count,
            denied_write_count: session.denied_write_count,
            tls: self.cx.config.transports[session.transport.0 as usize].tls
                && session.access == Access::Client,
            sequence: publisher.map_or(0, |publisher| publisher.highest()),
            sequence_jump_count: publisher.map_or(0, |publisher| publisher.jump_count()),
            subscription_count: session.subscriptions.len(),
            backlog_bytes: session.outbox.size() - session.outbox.stored_size(),
            offlined_bytes: session.outbox.stored_size(),
            offlined: session.outbox.is_away(),
            transport: self.cx.config.transports[session.transport.0 as usize].name.clone(),
            connected: session.traffic.connected,
            messages_in: session.traffic.published_count,
            messages_out: session.outbox.message_count(),
            bytes_in: session.traffic.received_bytes,
            bytes_out: session.traffic.sent_bytes,
            writable: session.is_writable,
        }
    }

    /// A snapshot.
    pub fn stats(&self) -> Stats {
        Stats {
            connection_count: self.cx.clients.sessions.all.len(),
            publisher_count: self.publishers.count(),
            subscription_count: self.cx.clients.subscriptions.all.len(),
            replay_count: self.bookmarks.replay_count(),
            replay_lag: self.bookmarks.lag_max(&self.cx),
            published_count: self.cx.clients.counters.published,
            duplicate_count: self.cx.clients.counters.duplicates,
            refused_count: self.cx.clients.counters.refused,
            delivered_count: self.cx.clients.counters.delivered,
            offlined_count: self.cx.offlined_count(),
            offlined_bytes: self.cx.clients.offline.size(),
            unreadable_count: self.cx.messages.unreadable.reports().count(),
            received_bytes: self.cx.clients.counters.received_bytes,
            sent_bytes: self.cx.clients.counters.sent_bytes,
            unpersisted_bytes: self.cx.log.unpersisted_size(),
            appended: self.cx.log.appended().get(),
            persisted: self.cx.log.journal.persisted().get(),
            journal_failed: self.cx.log.failure.is_some(),
            queues: self.queue_stats(),
            connections: self
                .cx
                .clients
                .sessions
                .all
                .values()
                .map(|session| self.connection_stats(session))
                .collect(),
        }
    }

    /// The path of messages into the log.
    #[inline(always)]
    fn intake(&mut self) -> Intake<'_> {
        let Broker { cx, publishers, queues, tables, stream, bookmarks, links, in_hand, .. } = self;
        Intake { cx, publishers, queues, tables, stream, bookmarks, links, in_hand }
    }

    /// Checks whether the journal has failed since the last turn, or has room again.
    fn notice_failure(&mut self) {
        if self.publishers.notice_journal(&mut self.cx) {
            self.bookmarks.clamp_awaited(&mut self.cx);
        }
    }

    /// Records the messages of other instances.
    fn take_replicated(&mut self) {
        self.intake().take_replicated();
    }

    /// Publishes the messages of the server itself.
    fn publish_events(&mut self) {
        self.intake().publish_events();
    }

    /// Acknowledges newly persisted messages to the publishers.
    fn acknowledge_publishers(&mut self) {
        self.publishers.acknowledge_all(&mut self.cx);
    }

    /// Hands newly persisted records to the consumers of the log.
    fn advance_tail(&mut self) {
        self.tail.advance(&mut self.cx, &mut consumers!(mut self));
    }

    fn notify_progress(&mut self) {
        self.bookmarks.send_resume_positions(&mut self.cx);
    }

    fn retry_searches(&mut self) {
        self.searches.retry(&mut self.cx);
        self.tables.retry_searches(&mut self.cx);
    }

    fn decide_filters(&mut self) {
        self.stream.decide_deferred(&mut self.cx);
    }

    /// Sends the records that queries and subscriptions request.
    fn serve_tables(&mut self) {
        self.tables.serve(&mut self.cx);
        while let Some(id) = self.cx.clients.subscriptions.next_following() {
            self.bookmarks.begin_after_records(&mut self.cx, id);
        }
        if self.tables.any() {
            self.tables.write_snapshots(&mut self.cx);
        }
    }

    /// Removes the records of deletes, and those whose lifetime is over.
    fn remove_records(&mut self) {
        if self.tables.any() {
            self.intake().remove_records();
        }
    }

    /// Changes the views and the conflated topics of the topics that have changed.
    fn serve_views(&mut self) {
        self.intake().serve_views();
    }

    fn serve_replays(&mut self) {
        self.bookmarks.serve_replays(&mut self.cx);
    }

    /// Acknowledges the records of other instances, and sends them new records.
    fn serve_links(&mut self) {
        self.links.advance(&mut self.cx);
    }

    /// Passes the result of a job to the service that waits for it.
    fn job_done(&mut self, done: ReadDone) {
        let Broker { cx, searches, bookmarks, stream, queues, tables, links, in_hand, .. } = self;
        cx.finish_job(done, &mut [searches, bookmarks, stream, queues, tables, links, in_hand]);
        self.continue_found();
        self.intake().take_examined();
    }

    /// Sends the deliveries of queues, logs the changes of messages, and saves the positions of the
    /// queues.
    fn serve_queues(&mut self) {
        self.queues.serve(&mut self.cx);
        self.intake().publish_dead_letters();
        self.queues.continue_defining(&mut self.cx);
        self.queues.save(&mut self.cx);
    }

    /// As [`Broker::submit`]. In addition, the journal may write a small batch on this thread, when
    /// no connection waits for output meanwhile. The records of the batch are then served and
    /// acknowledged in this turn.
    fn submit_inline(&mut self) {
        if self.cx.has_output() {
            return self.submit();
        }
        self.close_batch();
        self.cx.log.journal.submit_inline();
    }

    /// Submits the open batch to the journal.
    fn submit(&mut self) {
        self.close_batch();
        self.cx.log.journal.submit();
    }

    /// Appends the records of leases to the open batch, and queues an acknowledgement of the batch
    /// for every publisher.
    fn close_batch(&mut self) {
        self.queues.log_leases(&mut self.cx, false);
        self.publishers.queue_acks();
        self.bookmarks.submitted();
    }

    /// Above the limit of bytes that are not persisted, or that views have not seen, reading from
    /// publishers is paused. It continues at half of the limit. It is also paused until a snapshot
    /// of views can begin.
    fn push_back(&mut self) {
        let waiting = self.tables.waiting_changes_size() + self.queues.moves_size();
        let unpersisted = (self.cx.log.unpersisted_size() + waiting) as u64;
        let limit = self.cx.config.limits.max_unpersisted;
        let above = if self.cx.clients.sessions.is_pushing_back {
            unpersisted > limit / 2
        } else {
            unpersisted > limit
        };
        let above = (above || self.tables.is_settling()) && self.cx.log.failure.is_none();
        if above != self.cx.clients.sessions.is_pushing_back {
            self.cx.clients.sessions.is_pushing_back = above;
            self.cx.clock.wants_turn |= !above && self.cx.clock.slices.any_waits();
            let publishing = self.cx.clients.sessions.all.iter().filter(|(_, session)| session.has_published);
            let publishing: Vec<_> = publishing.map(|(id, _)| id).collect();
            publishing.into_iter().for_each(|session| self.cx.touch(session));
        }
    }

    /// Queues the pending output of every touched session, and keeps the buffered output within its
    /// limit.
    fn send(&mut self) {
        self.send_touched();
        while self.cx.clients.sessions.all_waiting_size() > 0 && self.cx.end_slow_users() {
            self.send_touched();
        }
        while self.cx.clients.sessions.all_waiting_size() > 0 && self.cx.limit_transports() {
            self.send_touched();
        }
        let limit = self.cx.config.limits.max_waiting;
        loop {
            let (size, writing_size) =
                (self.cx.clients.sessions.all_waiting_size(), self.cx.clients.offline.writing_size());
            // What is written to disk now is still in memory, within the same limit once more.
            if size.saturating_sub(writing_size.min(limit as usize)) as u64 <= limit {
                break;
            }
            if !self.cx.page_out_largest(None) {
                self.cx.end_slowest(None);
            }
            self.send_touched();
        }
        self.cx.serve_offline();
    }

    fn send_touched(&mut self) {
        // A closed session is removed below.
        self.remove_ended();
        let Sent { to, closed } = self.cx.send();
        for id in to {
            let Some(session) = self.cx.clients.sessions.all.get(id) else { continue };
            if !session.replays.is_empty() {
                self.cx.clock.wants_turn |= session.is_writable;
                self.bookmarks.wake(&session.replays);
            }
            self.cx.clock.wants_turn |= self.queues.may_resume(id) || self.tables.may_resume(id);
        }
        closed.into_iter().for_each(|id| self.forget_session(id));
    }

    /// Stops the input, so that accepted messages can be flushed.
    fn begin_shutdown(&mut self) {
        if self.cx.shutdown == Shutdown::No {
            self.cx.shutdown = Shutdown::Flushing;
            self.queues.stop(self.cx.clock.now);
            self.cx.note(Event::ShuttingDown);
        }
    }

    fn continue_shutdown(&mut self) {
        if self.cx.shutdown == Shutdown::No {
            return;
        }
        let is_flushed = self.cx.log.is_settled() || self.cx.log.failure.is_some();
        if self.cx.shutdown == Shutdown::Flushing && is_flushed {
            let sessions: Vec<_> = self.cx.clients.sessions.all.keys().collect();
            for session in sessions {
                self.publishers.acknowledge_now(&mut self.cx, session);
                self.cx.end(session, Code::ShuttingDown, "the server is stopping");
            }
            self.links.close(&mut self.cx);
            self.remove_ended();
            while self.cx.messages.events.any() {
                self.publish_events();
            }
            self.submit();
            self.cx.shutdown = Shutdown::Done;
        }
    }
}

impl Broker {
    pub(super) fn connect(
        &mut self,
        connection: ConnectionId,
        peer: &str,
        transport: TransportId,
        access: Access,
    ) {
        let now = self.cx.clock.now;
        let is_known = (transport.0 as usize) < self.cx.config.transports.len();
        let transport = if is_known { transport } else { TransportId::default() };
        let id = self.cx.clients.sessions.add(Session::new(connection, peer, transport, access, now));
        self.cx.clients.counters.note_connected(transport);
        self.cx.tell_client(id, ClientEvent { event: "connect", ..Default::default() });
        if !is_known {
            self.cx.end(id, Code::Internal, "the server has no such transport");
        } else if self.cx.shutdown != Shutdown::No {
            self.cx.end(id, Code::ShuttingDown, "the server is stopping");
        } else if access == Access::Denied {
            let reason = "only the user that the server runs as, and root, may use this socket";
            self.cx.end(id, Code::NotEntitled, reason);
        } else if access == Access::Client
            && self.cx.clients.sessions.count_of(transport)
                > self.cx.transport_of(id).max_connections as usize
        {
            let reason = "max_connections is reached. On the machine of the server, local:DIRECTORY reaches it as administrator";
            self.cx.clients.counters.note_refused(transport);
            self.cx.end(id, Code::LimitExceeded, reason);
        } else if access == Access::Administrator
            && self.cx.clients.sessions.administrator_count > ADMINISTRATORS_MAX
        {
            let reason = format!("more than {ADMINISTRATORS_MAX} connections of administrators");
            self.cx.end(id, Code::LimitExceeded, &reason);
        } else {
            let deadline = now.instant + self.cx.transport_of(id).logon_timeout();
            self.cx.clock.timers.set(Timer::Logon(id), deadline);
        }
    }

    pub(super) fn set_writable(&mut self, id: SessionId, is_writable: bool) {
        let session = self.cx.session(id);
        session.is_writable = is_writable;
        let replays = session.replays.clone();
        let overdue = if is_writable { std::mem::take(&mut session.overdue) } else { Vec::new() };
        self.cx.touch(id);
        if is_writable {
            self.bookmarks.wake(&replays);
            self.cx.clock.wants_turn |= self.queues.may_resume(id) || self.tables.may_resume(id);
            self.cx.clock.timers.recall(overdue, self.cx.clock.now.instant);
        } else {
            self.queues.pause_session(&mut self.cx, id);
            self.bookmarks.give_back_reads(&mut self.cx, id);
        }
    }

    /// The peer has disconnected.
    pub(super) fn disconnect(&mut self, id: SessionId) {
        let is_inside = self.cx.transport_of(id).is_inside;
        let session = self.cx.session(id);
        let (connection, client_name) = (session.connection, session.client_name());
        let event = Event::Disconnected { connection, client_name, is_inside };
        let phase = session.phase;
        if !matches!(phase, Phase::Closing | Phase::Closed) {
            self.cx.clients.counters.note_end("lost");
            let told = ClientEvent { event: "disconnect", reason: Some("lost"), ..Default::default() };
            self.cx.tell_client(id, told);
        }
        if phase != Phase::Closed {
            self.cx.note(event);
        }
        self.drop_subscriptions(id);
        self.release(id);
        self.forget_session(id);
    }

    /// Removes the subscriptions of closed sessions, and releases their names. Called between two
    /// pieces of work, never within one.
    #[inline]
    pub(super) fn remove_ended(&mut self) {
        if self.cx.clients.subscriptions.has_ended() || !self.cx.clients.sessions.closed.is_empty() {
            self.remove_all_ended();
        }
    }

    fn remove_all_ended(&mut self) {
        while let Some(id) = self.cx.clients.subscriptions.next_ended() {
            self.remove_subscription(id);
        }
        while let Some(id) = self.cx.clients.sessions.closed.pop() {
            if self.cx.clients.sessions.all.contains_key(id) {
                self.drop_subscriptions(id);
                self.release(id);
            }
        }
    }

    /// Releases the name.
    fn release(&mut self, id: SessionId) {
        // The events of the consumer are logged with its name.
        self.queues.note_leases(&mut self.cx);
        if let Some(identity) = self.cx.session(id).identity.take() {
            self.publishers.release(identity.publisher, id, &self.cx.log);
        }
    }

    pub(super) fn forget_session(&mut self, id: SessionId) {
        self.cx.clock.timers.clear_session(id);
        let session = self.cx.session(id);
        let (transport, traffic, sent) = (session.transport, session.traffic, session.outbox.message_count());
        self.cx.clients.counters.note_gone(transport, &traffic, sent);
        self.cx.clients.sessions.remove(id);
        self.bookmarks.forget_session(id);
    }

    /// The client of a logon that waits for its check, or for messages of other instances, tries
    /// again: it did nothing wrong.
    fn end_late_logon(&mut self, id: SessionId) {
        let session = self.cx.session(id);
        let (code, reason) = match session.stall {
            _ if session.phase == Phase::Open => return,
            Some(Stall::LoggingOn) => match self.cx.log.replicated.not_ready.clone() {
                Some(reason) => return self.cx.end(id, Code::NotReady, &reason),
                None => return,
            },
            Some(Stall::Authenticating) => {
                (Code::AuthenticationUnavailable, "the logon was not checked within logon_timeout")
            }
            _ => (Code::LogonRequired, "no logon within logon_timeout"),
        };
        self.cx.end(id, code, reason);
    }

    pub(super) fn fire_timers(&mut self) {
        let now = self.cx.clock.now.instant;
        while let Some(timer) = self.cx.clock.timers.take(now) {
            match timer {
                Timer::Logon(id) => self.end_late_logon(id),
                Timer::Heartbeat(id) => self.cx.beat(id),
                Timer::Silence(id) => self.cx.check_silence(id),
                Timer::Age(id) => self.cx.check_age(id),
                Timer::Acknowledge(id) => self.publishers.acknowledge_now(&mut self.cx, id),
                Timer::Rate(id) => self.cx.resume_commands(id, Stall::Rate),
                Timer::Replay(replay) => self.bookmarks.wake(&[replay]),
                Timer::Conflated(subscription) => self.cx.deliver_due(subscription),
                // Later phases of the turn process these.
                Timer::End | Timer::Progress | Timer::Queues | Timer::Tables | Timer::Links => (),
                Timer::Refusals => self.cx.log_refusals(),
                Timer::SowStats => {
                    self.tables.tell_stats(&mut self.cx);
                    self.cx.time_sow_stats();
                }
                Timer::Maintenance => {
                    let consumers = consumers!(self);
                    self.maintenance.timer_fired(&mut self.cx, &consumers);
                }
            }
        }
    }

    /// The services that check the time in each turn return the time of the next turn that they
    /// need.
    fn set_timers(&mut self) {
        self.cx.clock.timers.set_or_clear(Timer::Progress, self.bookmarks.due(&self.cx));
        self.cx.clock.timers.set_or_clear(Timer::Queues, self.queues.next_timeout());
        self.cx.clock.timers.set_or_clear(Timer::Links, self.links.next_timeout(&self.cx));
        self.cx.clock.timers.set_or_clear(Timer::Tables, self.tables.next_timeout(self.cx.clock.now));
        if !self.cx.clock.timers.is_set(Timer::SowStats) {
            self.cx.time_sow_stats();
        }
        self.cx.clock.wants_turn |= self.cx.messages.events.any();
    }
}
