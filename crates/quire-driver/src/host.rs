//! A broker together with the parts that it has to get from outside: a clock, wake-ups, and threads
//! for reads.
//!
//! Both loops that run a broker use it: the thread of an embedded [`crate::Engine`], and the
//! asyncio server. So a turn is defined in one place:
//!
//! 1. [`Host::begin_turn`]: passes on the journal's wake-up, finished reads and maintenance jobs,
//!    and due timers.
//! 2. [`Host::handle`] for all input from the loop's transports.
//! 3. [`Host::end_turn`]: the journal batch is passed to its writer, and replays are fed.
//! 4. [`Host::poll_output`] until it returns `None`. It passes reads and maintenance jobs to
//!    threads, and replies to their callers. The loop does not see these.
//! 5. [`Host::sleep`]: sleep until the waker wakes the loop, a transport is ready, or the time is
//!    over. The waker does not wake the loop before this call.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::Sender;
use quire_broker::{AdminCommand, AdminReply, Broker, BrokerConfig, ConnectionId, Event, Input, Output};
use quire_journal::{Journal, JournalError, Reader, Recovery, RecoveryProgress};
use quire_types::Secret;
use quire_types::time::Now;

use crate::clock::Clock;
use crate::error::EngineError;
use crate::maintenance::MaintenanceWorker;
use crate::reader_pool::ReaderPool;
use crate::run_steps::run_steps;
use crate::waker::{Wake, Waker};

/// An action of the loop on its transports after a turn.
#[derive(Debug)]
pub enum Effect {
    /// Write these bytes, after those of an earlier effect for the connection.
    Send {
        /// The connection.
        connection: ConnectionId,
        /// The bytes to write.
        bytes: Vec<u8>,
    },
    /// Write these bytes, after those of an earlier effect for the connection. Other connections
    /// get the same bytes.
    SendShared {
        /// The connection.
        connection: ConnectionId,
        /// The bytes to write.
        bytes: Arc<[u8]>,
    },
    /// Close the connection when the earlier output was written.
    Close {
        /// Which.
        connection: ConnectionId,
    },
    /// Connect to another instance, and report the result to the broker.
    OpenLink {
        /// The number of the destination.
        destination: u32,
        /// `HOST:PORT`.
        address: String,
    },
    /// Check the password or token of a logon, and report the result to the broker.
    Authenticate {
        /// The connection.
        connection: ConnectionId,
        /// The client name of the logon.
        client_name: String,
        /// The user of the logon.
        user: Option<String>,
        /// The password of the logon.
        password: Option<Secret<String>>,
        /// The token of the logon.
        token: Option<Secret<String>>,
    },
    /// Read the configuration again, and report the result to the broker.
    Reload {
        /// The connection that requests it.
        connection: ConnectionId,
        /// The number of its command.
        command: u32,
    },
    /// Answer a question about the statistics of the process, and report the result to the broker.
    Statistics {
        /// The connection that asks.
        connection: ConnectionId,
        /// The number of its command.
        command: u32,
        /// The question, as JSON.
        question: Vec<u8>,
        /// Whether the answer may have clients: the user may monitor them.
        shows_clients: bool,
    },
    /// Take no more bytes from it until further notice.
    PauseReading {
        /// The connection.
        connection: ConnectionId,
    },
    /// Take bytes again.
    ResumeReading {
        /// The connection.
        connection: ConnectionId,
    },
    /// Pass it to the actions, as JSON.
    Signal(String),
    /// Tell the log.
    Log(Event),
}

/// A running broker without its transports.
pub struct Host {
    broker: Broker,
    pool: ReaderPool,
    maintenance: MaintenanceWorker,
    /// The receivers of the replies to administrative commands, by ticket.
    replies: HashMap<u64, Sender<AdminReply>>,
    last_ticket: u64,
    waker: Arc<Waker>,
    clock: Clock,
    now: Now,
    connections_made: u64,
    /// The findings of opening the journal, for the log.
    found: VecDeque<Event>,
}

impl Host {
    /// Opens the journal that `config` names (or one in memory), recovers it, and puts a broker on
    /// it.
    ///
    /// `wake` is called on other threads whenever the loop has to take a turn; `on_progress` on
    /// this one while a long journal is read back.
    ///
    /// # Errors
    /// A bad configuration, a journal that is locked or damaged, or no thread available.
    pub fn open(
        config: BrokerConfig,
        wake: Wake,
        on_progress: &mut dyn FnMut(RecoveryProgress),
    ) -> Result<(Host, Option<Recovery>), EngineError> {
        let (journal, recovery) = match &config.transaction_log.journal_directory {
            Some(directory) => {
                let (journal, recovery) = Journal::open(directory, &config.journal_options(), on_progress)?;
                (journal, Some(recovery))
            }
            None => (Journal::in_memory(&config.journal_options())?, None),
        };
        let waker = Arc::new(Waker::new(wake));
        let on_flush = Arc::clone(&waker);
        journal.on_flush(Box::new(move || on_flush.flushed()));
        let pool = ReaderPool::start(&waker).map_err(EngineError::Thread)?;
        let clock = Clock::start();
        let now = clock.now();
        let mut broker = Broker::open(config, journal, &run_steps, on_progress)?;
        broker.set_stopwatch(Box::new(move || clock.instant()));
        let found = recovery.as_ref().map(found).unwrap_or_default();
        let host = Host {
            broker,
            pool,
            maintenance: MaintenanceWorker::new(&waker),
            replies: HashMap::new(),
            last_ticket: 0,
            waker,
            clock,
            now,
            connections_made: 0,
            found,
        };
        Ok((host, recovery))
    }

    /// A number for a new connection. Pass it to the broker with [`Input::Connected`].
    pub fn next_connection(&mut self) -> ConnectionId {
        self.connections_made += 1;
        ConnectionId(self.connections_made)
    }

    /// Starts a turn: reads the clock, and takes the events from outside of the loop.
    pub fn begin_turn(&mut self) {
        self.now = self.clock.now();
        if self.waker.begin_turn() {
            self.handle(Input::Flushed);
        }
        while let Some(done) = self.pool.poll() {
            self.handle(Input::ReadDone(done));
        }
        while let Some(done) = self.maintenance.poll() {
            self.handle(Input::MaintenanceDone(done));
        }
        if self.broker.next_timeout().is_some_and(|deadline| deadline <= self.now.instant) {
            self.handle(Input::Timeout);
        }
    }

    /// Passes an event of a transport to the broker.
    pub fn handle(&mut self, input: Input<'_>) {
        self.broker.handle(self.now, input);
    }

    /// Passes an administrative command to the broker. `answer` gets the reply, in this turn or a
    /// later one. When the host is closed before that, `answer` is dropped.
    pub fn admin(&mut self, command: AdminCommand, answer: Sender<AdminReply>) {
        self.last_ticket += 1;
        self.replies.insert(self.last_ticket, answer);
        self.handle(Input::Admin { ticket: self.last_ticket, command });
    }

    /// Ends the inputs of the turn; then poll.
    pub fn end_turn(&mut self) {
        self.broker.finish_turn(self.now);
    }

    /// The next thing to do, until `None`.
    pub fn poll_output(&mut self) -> Option<Effect> {
        if let Some(event) = self.found.pop_front() {
            return Some(Effect::Log(event));
        }
        loop {
            return Some(match self.broker.poll_output()? {
                Output::Send { connection, bytes } => Effect::Send { connection, bytes },
                Output::SendShared { connection, bytes } => Effect::SendShared { connection, bytes },
                Output::Close { connection } => Effect::Close { connection },
                Output::OpenLink { destination, address } => Effect::OpenLink { destination, address },
                Output::Authenticate { connection, client_name, user, password, token } => {
                    Effect::Authenticate { connection, client_name, user, password, token }
                }
                Output::Reload { connection, command } => Effect::Reload { connection, command },
                Output::Statistics { connection, command, question, shows_clients } => {
                    Effect::Statistics { connection, command, question, shows_clients }
                }
                Output::PauseReading { connection } => Effect::PauseReading { connection },
                Output::ResumeReading { connection } => Effect::ResumeReading { connection },
                Output::Signal(text) => Effect::Signal(text),
                Output::Log(event) => Effect::Log(event),
                Output::Read(request) => {
                    self.pool.submit(request);
                    continue;
                }
                Output::Maintenance(job) => {
                    self.maintenance.submit(job);
                    continue;
                }
                Output::AdminReply { ticket, reply } => {
                    if let Some(answer) = self.replies.remove(&ticket) {
                        // The receiver may have been dropped.
                        let _ = answer.send(reply);
                    }
                    continue;
                }
            });
        }
    }

    /// Whether messages about the runs of actions reach anything.
    pub fn hears_actions(&self) -> bool {
        self.broker.hears_actions()
    }

    /// Returns a sent buffer, so that the next turn need not allocate.
    pub fn recycle(&mut self, bytes: Vec<u8>) {
        self.broker.recycle(bytes);
    }

    /// How long the loop may sleep when no event arrives; `None` = without a limit. Call it after
    /// the turn and before the loop sleeps: from then on the waker wakes the loop.
    pub fn sleep(&self) -> Option<Duration> {
        if !self.waker.may_sleep() {
            return Some(Duration::ZERO);
        }
        self.broker.next_timeout().map(|deadline| self.clock.until(deadline))
    }

    /// A reader of the journal, for a caller that reads it while the broker runs.
    pub fn reader(&self) -> Reader {
        self.broker.journal().reader()
    }

    /// Whether all pending output was sent after [`Input::Shutdown`].
    pub fn is_drained(&self) -> bool {
        self.broker.is_drained()
    }

    /// Ends a broker whose turn panicked. Records that it had not passed to the journal are
    /// dropped, and the journal is not marked as stopped cleanly. No record of the turn was
    /// acknowledged, because acknowledgements are sent at its end.
    pub fn abandon(self) {
        drop(self.pool);
        drop(self.maintenance);
        self.broker.abandon();
    }

    /// Closes the journal cleanly: everything appended is durable when it returns.
    ///
    /// # Errors
    /// What the journal could not write.
    pub fn close(self) -> Result<(), JournalError> {
        drop(self.pool);
        drop(self.maintenance);
        self.broker.close()
    }
}

/// The findings of a recovery that need a line in the log.
fn found(recovery: &Recovery) -> VecDeque<Event> {
    let cut = recovery.cut.as_ref();
    let cut =
        cut.map(|cut| Event::TornTailCut { path: cut.path.clone(), offset: cut.offset, size: cut.size });
    cut.into_iter().chain(recovery.sequences_lost.then_some(Event::SequencesLost)).collect()
}
