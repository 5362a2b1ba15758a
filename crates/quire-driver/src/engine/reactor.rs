//! The thread of an embedded engine: waits for its socket pairs and its waker, and runs the turns
//! of the broker.

use std::collections::HashMap;
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;
use polling::{Event, Events, PollMode, Poller};
use quire_broker::{Access, ConnectionId, Input, Level, TransportId};
use quire_command::Code;
use quire_journal::descriptor::Owned;

use super::Command;
use super::transport::{HIGH_WATER_BYTES, LOW_WATER_BYTES, Outgoing, Received, Transport};
use crate::error::EngineError;
use crate::host::{Effect, Host};

/// The most bytes that one turn reads from one connection. One system call can read hundreds of
/// messages, and a fast connection does not delay the others.
const READ_BYTES_MAX: usize = 256 * 1024;

/// How long a peer that does not read may delay the close of its connection, and so the stop of the
/// engine.
const CLOSE_GRACE: Duration = Duration::from_secs(2);

pub(super) struct Reactor {
    host: Host,
    poller: Arc<Owned<Poller>>,
    commands: Receiver<Command>,
    transports: HashMap<ConnectionId, Transport>,
    /// Connections that are closing and have output left, with the time at which they are cut.
    lingering: Vec<(ConnectionId, Instant)>,
    /// Connections that have something to write after this turn.
    touched: Vec<ConnectionId>,
    buffer: Vec<u8>,
    stopping: bool,
    /// The reason is stored here when a turn panics.
    failure: Arc<OnceLock<String>>,
    /// The broker got input after its turn ended.
    owes_turn: bool,
}

impl Reactor {
    pub(super) fn new(
        host: Host,
        poller: Arc<Owned<Poller>>,
        commands: Receiver<Command>,
        failure: Arc<OnceLock<String>>,
    ) -> Self {
        Reactor {
            host,
            poller,
            commands,
            transports: HashMap::new(),
            lingering: Vec::new(),
            touched: Vec::new(),
            buffer: vec![0; READ_BYTES_MAX],
            stopping: false,
            failure,
            owes_turn: false,
        }
    }

    /// Runs turns until it gets the request to stop and all pending output was sent. Then it closes
    /// the journal. A turn that panics is the last one: the connections end without further output,
    /// so that clients send unacknowledged publishes again.
    pub(super) fn run(mut self) -> Result<(), EngineError> {
        let mut events = Events::new();
        while !(self.stopping && self.host.is_drained() && self.transports.is_empty()) {
            events.clear();
            if let Err(error) = self.poller.wait(&mut events, self.sleep()) {
                if error.kind() == io::ErrorKind::Interrupted {
                    continue;
                }
                log::error!(target: "quire.engine", "waiting for connections failed, the engine stops: {error}");
                break;
            }
            if let Err(error) = EngineError::catch(|| self.turn(&events)) {
                log::error!(target: "quire.engine", "{error}");
                if let EngineError::Panicked { reason } = &error {
                    // Set once, here.
                    let _ = self.failure.set(reason.clone());
                }
                self.close_transports();
                self.host.abandon();
                return Err(error);
            }
        }
        self.close_transports();
        Ok(self.host.close()?)
    }

    fn close_transports(&mut self) {
        for (_, transport) in self.transports.drain() {
            // Fails only for a stream that is not registered. The stream is closed next in any
            // case.
            let _ = self.poller.delete(transport.stream());
        }
    }

    fn sleep(&self) -> Option<Duration> {
        if self.owes_turn {
            return Some(Duration::ZERO);
        }
        let lingering =
            self.lingering.iter().map(|(_, until)| until.saturating_duration_since(Instant::now()));
        self.host.sleep().into_iter().chain(lingering).min()
    }

    fn turn(&mut self, events: &Events) {
        self.owes_turn = false;
        self.host.begin_turn();
        while let Ok(command) = self.commands.try_recv() {
            self.obey(command);
        }
        for event in events.iter() {
            let connection = ConnectionId(event.key as u64);
            if event.writable {
                self.flush(connection);
            }
            if event.readable {
                self.receive(connection);
            }
        }
        self.host.end_turn();
        while let Some(effect) = self.host.poll_output() {
            self.perform(effect);
        }
        // Written at the end of the turn, so that all output for a connection is sent in one call.
        // The broker may have to react to the bytes that the peer took, in a turn that follows at
        // once.
        for connection in std::mem::take(&mut self.touched) {
            self.flush(connection);
        }
        self.end_lingering();
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Connect(stream) => self.connect(stream),
            Command::Admin(command, answer) => self.host.admin(command, answer),
            Command::Stop => {
                self.stopping = true;
                self.host.handle(Input::Shutdown);
            }
        }
    }

    fn connect(&mut self, stream: Owned<UnixStream>) {
        if self.stopping {
            return;
        }
        let connection = self.host.next_connection();
        if let Err(error) = self.watch(connection, &stream) {
            log::warn!(target: "quire.engine", "a connection was refused: {error}");
            return;
        }
        self.transports.insert(connection, Transport::new(stream));
        self.host.handle(Input::Connected {
            connection,
            peer: "embedded",
            transport: TransportId::default(),
            access: Access::Client,
        });
    }

    #[allow(unsafe_code)]
    fn watch(&self, connection: ConnectionId, stream: &UnixStream) -> io::Result<()> {
        let interest = Event::readable(key(connection));
        // SAFETY: the poller asks that a stream is deleted from it before it is closed. The stream
        // goes into `transports`, and is taken out of there in `forget` and `run` only, which
        // delete it first.
        unsafe { self.poller.add_with_mode(stream, interest, PollMode::Level) }
    }

    fn perform(&mut self, effect: Effect) {
        match effect {
            Effect::Send { connection, bytes } => self.send(connection, Outgoing::Own(bytes)),
            Effect::SendShared { connection, bytes } => self.send(connection, Outgoing::Shared(bytes)),
            Effect::Close { connection } => {
                if let Some(transport) = self.transports.get_mut(&connection) {
                    transport.closing = true;
                    transport.reading = false;
                    self.lingering.push((connection, Instant::now() + CLOSE_GRACE));
                    self.touched.push(connection);
                }
            }
            // `Engine::start` refuses a configuration with destinations.
            Effect::OpenLink { destination, .. } => {
                let reason = "an embedded engine opens no links";
                self.host.handle(Input::LinkNotOpened { destination, reason });
            }
            // Its configuration has no users.
            Effect::Authenticate { connection, .. } => {
                let user = Err((Code::AuthenticationFailed, "an embedded engine has no users"));
                self.host.handle(Input::Authenticated { connection, user, groups: "" });
            }
            Effect::Reload { connection, command } => {
                let result = Err("an embedded engine has no configuration file");
                self.host.handle(Input::Reloaded { connection, command, result });
            }
            Effect::Statistics { connection, command, .. } => {
                let result = Err("an embedded engine collects no statistics");
                self.host.handle(Input::Statistics { connection, command, result });
            }
            Effect::PauseReading { connection } => self.set_reading(connection, false),
            Effect::ResumeReading { connection } => self.set_reading(connection, true),
            // Only a server has actions.
            Effect::Signal(_) => (),
            Effect::Log(event) => log::log!(target: "quire.engine", log_level(event.level()), "{event}"),
        }
    }

    fn send(&mut self, connection: ConnectionId, bytes: Outgoing) {
        if let Some(transport) = self.transports.get_mut(&connection) {
            transport.send(bytes);
            self.touched.push(connection);
        }
    }

    fn set_reading(&mut self, connection: ConnectionId, reading: bool) {
        if let Some(transport) = self.transports.get_mut(&connection)
            && !transport.closing
        {
            transport.reading = reading;
            self.set_interest(connection);
        }
    }

    fn receive(&mut self, connection: ConnectionId) {
        let Some(transport) = self.transports.get_mut(&connection) else { return };
        if !transport.reading {
            return;
        }
        match transport.receive(&mut self.buffer) {
            Received::Bytes(size) => {
                self.host.handle(Input::Received { connection, bytes: &self.buffer[..size] });
            }
            Received::Nothing => (),
            Received::End => self.lose(connection),
        }
    }

    /// Writes the bytes that the peer takes, and notifies the broker when the backlog passes a
    /// water mark.
    fn flush(&mut self, connection: ConnectionId) {
        let Some(transport) = self.transports.get_mut(&connection) else { return };
        let host = &mut self.host;
        if transport.flush(|buffer| host.recycle(buffer)).is_err() {
            return self.lose(connection);
        }
        let waiting = transport.waiting_bytes();
        if transport.closing {
            if waiting == 0 {
                return self.forget(connection);
            }
        } else if transport.writable && waiting > HIGH_WATER_BYTES {
            transport.writable = false;
            self.owes_turn = true;
            host.handle(Input::Writable { connection, writable: false });
        } else if !transport.writable && waiting < LOW_WATER_BYTES {
            transport.writable = true;
            self.owes_turn = true;
            host.handle(Input::Writable { connection, writable: true });
        }
        self.set_interest(connection);
    }

    fn set_interest(&mut self, connection: ConnectionId) {
        let Some(transport) = self.transports.get(&connection) else { return };
        let interest = Event::new(key(connection), transport.reading, transport.waiting_bytes() > 0);
        if self.poller.modify_with_mode(transport.stream(), interest, PollMode::Level).is_err() {
            self.lose(connection);
        }
    }

    /// The peer has closed the connection. The broker is notified, unless the broker has closed it
    /// first.
    fn lose(&mut self, connection: ConnectionId) {
        let closing = self.transports.get(&connection).is_some_and(|transport| transport.closing);
        self.forget(connection);
        if !closing {
            self.owes_turn = true;
            self.host.handle(Input::Disconnected { connection });
        }
    }

    fn forget(&mut self, connection: ConnectionId) {
        if let Some(transport) = self.transports.remove(&connection) {
            // Fails only for a stream that is not registered.
            let _ = self.poller.delete(transport.stream());
        }
        self.lingering.retain(|(lingering, _)| *lingering != connection);
    }

    /// Cuts closed connections whose peers do not take the remaining output.
    fn end_lingering(&mut self) {
        if self.lingering.is_empty() {
            return;
        }
        let now = Instant::now();
        let over: Vec<_> = self
            .lingering
            .iter()
            .filter(|(_, until)| *until <= now)
            .map(|(connection, _)| *connection)
            .collect();
        for connection in over {
            self.forget(connection);
        }
    }
}

fn log_level(level: Level) -> log::Level {
    match level {
        Level::Debug => log::Level::Debug,
        Level::Info => log::Level::Info,
        Level::Warning => log::Level::Warn,
        Level::Error => log::Level::Error,
    }
}

fn key(connection: ConnectionId) -> usize {
    // One engine makes far fewer than 2^64 connections, and descriptors run out long before a
    // 32-bit `usize` does.
    connection.0 as usize
}
