//! A broker together with what it may not have itself: a clock, wake-ups, and threads for reads.
//!
//! Both loops that carry a broker use it, the thread of an embedded [`crate::Engine`] and the asyncio server, so that what a turn
//! is stands in one place:
//!
//! 1. [`Host::begin_turn`]: the journal's wake-up, finished reads and upkeep, and due timers go in.
//! 2. [`Host::handle`] for everything that the loop's transports have to say.
//! 3. [`Host::end_turn`]: the journal batch goes to its writer, replays are fed.
//! 4. [`Host::poll_output`] until it gives `None`; reads and upkeep go to threads on the way and are not seen by the loop.
//! 5. Sleep until the waker rings, a transport is ready, or [`Host::sleep`] is over.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use quire_core::broker::{Broker, BrokerConfig, ConnectionId, Event, Input, Output, Stats};
use quire_core::time::Now;
use quire_journal::{Journal, JournalError, Position, Progress, Reader, Recovery, Upkeep};

use crate::clock::Clock;
use crate::error::EngineError;
use crate::reader_pool::ReaderPool;
use crate::upkeep::{Errands, Housekeeper};
use crate::waker::{Wake, Waker};

/// What a loop has to do with its transports after a turn.
#[derive(Debug)]
pub enum Deed {
    /// Write these bytes, behind those of an earlier deed for the connection.
    Send {
        /// To whom.
        connection: ConnectionId,
        /// What.
        bytes: Vec<u8>,
    },
    /// Close the connection once what was sent before has left.
    Close {
        /// Which.
        connection: ConnectionId,
    },
    /// Take no more bytes from it until further notice.
    PauseReading {
        /// From whom.
        connection: ConnectionId,
    },
    /// Take bytes again.
    ResumeReading {
        /// From whom.
        connection: ConnectionId,
    },
    /// Tell the log.
    Log(Event),
}

/// A running broker without its transports.
pub struct Host {
    broker: Broker,
    pool: ReaderPool,
    housekeeper: Option<Housekeeper>,
    errands: Errands,
    waker: Arc<Waker>,
    clock: Clock,
    now: Now,
    connections_made: u64,
    /// What opening the journal found, for the log.
    found: VecDeque<Event>,
}

impl Host {
    /// Opens the journal that `config` names (or one in memory), recovers it, and puts a broker on it.
    ///
    /// `wake` is called on other threads whenever the loop has to take a turn; `on_progress` on this one while a long journal
    /// is read back.
    ///
    /// # Errors
    /// A bad configuration, a journal that is locked or damaged, or no thread to be had.
    pub fn open(
        config: BrokerConfig,
        wake: Wake,
        on_progress: &mut dyn FnMut(Progress),
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
        let (upkeep, upkeep_config) = (journal.upkeep(), config.transaction_log.upkeep);
        let mut broker = Broker::open(config, journal, on_progress)?;
        broker.set_stopwatch(Box::new(move || clock.instant()));
        let housekeeper = Housekeeper::start(upkeep, upkeep_config, &waker)?;
        let errands = Errands::new(&waker);
        let found = recovery.as_ref().map(found).unwrap_or_default();
        let host = Host { broker, pool, housekeeper, errands, waker, clock, now, connections_made: 0, found };
        Ok((host, recovery))
    }

    /// A number for a new connection; tell the broker with [`Input::Connected`].
    pub fn next_connection(&mut self) -> ConnectionId {
        self.connections_made += 1;
        ConnectionId(self.connections_made)
    }

    /// Starts a turn: reads the clock and takes what happened off the loop.
    pub fn begin_turn(&mut self) {
        self.now = self.clock.now();
        if self.waker.answer() {
            self.handle(Input::Flushed);
        }
        if let Some(housekeeper) = &self.housekeeper {
            housekeeper.answer(|| self.broker.keep_from());
        }
        while let Some(done) = self.pool.poll() {
            self.handle(Input::ReadDone(done));
        }
        while let Some(done) = self.errands.poll() {
            self.handle(Input::UpkeepDone(done));
        }
        if self.broker.next_timeout().is_some_and(|deadline| deadline <= self.now.instant) {
            self.handle(Input::Timeout);
        }
    }

    /// Hands the broker something that a transport has to say.
    pub fn handle(&mut self, input: Input<'_>) {
        self.broker.handle(self.now, input);
    }

    /// Ends the inputs of the turn; then poll.
    pub fn end_turn(&mut self) {
        self.broker.finish_turn(self.now);
    }

    /// The next thing to do, until `None`.
    pub fn poll_output(&mut self) -> Option<Deed> {
        if let Some(event) = self.found.pop_front() {
            return Some(Deed::Log(event));
        }
        if let Some(event) = self.housekeeper.as_ref().and_then(Housekeeper::poll_event) {
            return Some(Deed::Log(event));
        }
        loop {
            return Some(match self.broker.poll_output()? {
                Output::Send { connection, bytes } => Deed::Send { connection, bytes },
                Output::Close { connection } => Deed::Close { connection },
                Output::PauseReading { connection } => Deed::PauseReading { connection },
                Output::ResumeReading { connection } => Deed::ResumeReading { connection },
                Output::Log(event) => Deed::Log(event),
                Output::Read(request) => {
                    self.pool.submit(request);
                    continue;
                }
                Output::Upkeep(request) => {
                    self.errands.submit(request);
                    continue;
                }
            });
        }
    }

    /// Gives a sent buffer back, so that the next turn need not allocate.
    pub fn recycle(&mut self, bytes: Vec<u8>) {
        self.broker.recycle(bytes);
    }

    /// How long the loop may sleep when nothing happens; `None` = until something does.
    pub fn sleep(&self) -> Option<Duration> {
        self.broker.next_timeout().map(|deadline| self.clock.until(deadline))
    }

    /// What the broker counts.
    pub fn stats(&self) -> Stats {
        self.broker.stats()
    }

    /// A reader of the journal, for whoever looks at it beside the broker.
    pub fn reader(&self) -> Reader {
        self.broker.journal().reader()
    }

    /// Archives, compresses and removes full journal files, on any thread; when removing, ask [`Host::keep_from`] first.
    pub fn upkeep(&self) -> Upkeep {
        self.broker.journal().upkeep()
    }

    /// The first position of the log that must stay: see [`Broker::keep_from`].
    pub fn keep_from(&self) -> Option<Position> {
        self.broker.keep_from()
    }

    /// Whether everything owed was said after [`Input::Shutdown`].
    pub fn is_drained(&self) -> bool {
        self.broker.is_drained()
    }

    /// Ends a broker whose turn panicked: what it had not handed to the journal is dropped, and the journal is not marked as stopped
    /// cleanly. Nothing of the turn was acknowledged, because acknowledgements leave at its end.
    pub fn abandon(self) {
        drop(self.pool);
        drop(self.housekeeper);
        drop(self.errands);
        self.broker.abandon();
    }

    /// Closes the journal cleanly: everything appended is durable when it returns.
    ///
    /// # Errors
    /// What the journal could not write.
    pub fn close(self) -> Result<(), JournalError> {
        drop(self.pool);
        drop(self.housekeeper);
        drop(self.errands);
        self.broker.close()
    }
}

/// What of a recovery is worth a line in the log.
fn found(recovery: &Recovery) -> VecDeque<Event> {
    let cut = recovery.cut.as_ref();
    let cut =
        cut.map(|cut| Event::TornTailCut { path: cut.path.clone(), offset: cut.offset, size: cut.size });
    cut.into_iter().chain(recovery.sequences_lost.then_some(Event::SequencesLost)).collect()
}
