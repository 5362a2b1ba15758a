//! The broker under the asyncio server: one call per turn of the event loop, with everything that
//! arrived in and everything to send out.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, bounded, select};
use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;
use quire_broker::{
    Access, AdminCommand, AdminReply, BrokerConfig, ConnectionId, Input, Level, LinkIdentity, Maintenance,
    QueueChanges, QueueSettings, TransportId, code_of,
};
use quire_command::{Code, Reply};
use quire_driver::descriptor::wake_up_pair;
use quire_driver::{Effect, EngineError, Host};
use quire_journal::descriptor::Owned;
use quire_journal::{JournalError, RecoveryProgress};
use quire_types::Secret;
use quire_wire::Encode;

use crate::errors;
use crate::fork::Handle;
use crate::interpreter;
use crate::journal_reader::{JournalReader, SegmentFields, fields_of};
use crate::maintenance::{action_of, files_of, link_action};

/// A broker with its journal, without sockets.
#[pyclass(frozen, module = "quire._quire")]
pub struct Engine {
    handle: Handle<EngineState>,
}

struct EngineState {
    running: Mutex<Option<Running>>,
    /// The next turn panics.
    is_to_panic: AtomicBool,
    /// Becomes readable when a turn is due.
    wake_rx: Owned<UnixStream>,
    /// Makes `wake_rx` readable.
    wake_tx: Arc<Owned<UnixStream>>,
    /// Whether messages about actions are wanted, as of the last turn. Each run of an action reads
    /// it, and must not wait for the turn in progress.
    hears_actions: AtomicBool,
    /// Holds a token when a turn is due, for a thread that waits for a reply.
    due: Receiver<()>,
}

struct Running {
    host: Host,
    /// From turns that were taken for administrative commands: the event loop carries them out with
    /// its next turn.
    effects: Vec<Effect>,
}

/// A logon to check: connection, client name, user, password and token.
type GivenLogon = (u64, String, Option<String>, Option<String>, Option<String>);

/// The actions of the event loop after a turn.
#[pyclass(frozen, get_all, module = "quire._quire")]
pub struct Turn {
    /// Connection and bytes to write in their order. A connection may occur more than once.
    sends: Vec<(u64, Vec<Py<PyBytes>>)>,
    /// Connections to close once everything is written.
    closes: Vec<u64>,
    /// Connections to read no more from, until they are among `resumes`.
    pauses: Vec<u64>,
    /// Connections to read from again.
    resumes: Vec<u64>,
    /// Links to open: the number of the destination and its address.
    links: Vec<(u32, String)>,
    /// Logons to check: connection, client name, user, password and token.
    logons: Vec<GivenLogon>,
    /// Connections that want the configuration to be read again, and their commands.
    reloads: Vec<(u64, u32)>,
    /// Connections that ask about the statistics, their commands, the questions, and whether the
    /// answers may have clients.
    questions: Vec<(u64, u32, Py<PyBytes>, bool)>,
    /// Events for the actions, as JSON objects.
    signals: Vec<String>,
    /// Level (of `logging`), id, text, and the fields as a JSON object.
    logs: Vec<(u8, &'static str, String, String)>,
    /// Seconds after which the next turn is due at the latest; `None` = when something happens.
    sleep: Option<f64>,
    /// After a shutdown: all pending output was sent.
    drained: bool,
}

/// The constants are the kinds of events of a turn.
#[pymethods]
impl Engine {
    /// The ids of the lines of the log that come from the core.
    #[classattr]
    const LOG_IDS: &[&str] = quire_broker::Event::IDS;

    #[classattr]
    const CONNECTED: u8 = 0;
    #[classattr]
    const RECEIVED: u8 = 1;
    #[classattr]
    const WRITABLE: u8 = 2;
    #[classattr]
    const NOT_WRITABLE: u8 = 3;
    #[classattr]
    const DISCONNECTED: u8 = 4;
    #[classattr]
    const SHUTDOWN: u8 = 5;
    #[classattr]
    const ADMINISTRATOR_CONNECTED: u8 = 6;
    #[classattr]
    const DENIED_CONNECTED: u8 = 7;
    #[classattr]
    const LINK_OPENED: u8 = 8;
    #[classattr]
    const LINK_NOT_OPENED: u8 = 9;
    #[classattr]
    const LINK_ACCEPTED: u8 = 10;
    #[classattr]
    const AUTHENTICATED: u8 = 11;
    #[classattr]
    const NOT_AUTHENTICATED: u8 = 12;
    /// The logon cannot be checked now.
    #[classattr]
    const NOT_CHECKED: u8 = 16;
    #[classattr]
    const RESET: u8 = 13;
    /// The configuration was read again. Its data are the number of the command in four bytes, and
    /// the keys that have changed, one a line.
    #[classattr]
    const RELOADED: u8 = 14;
    /// The configuration cannot be used. Its data are the number of the command in four bytes, and
    /// the reason.
    #[classattr]
    const NOT_RELOADED: u8 = 15;
    /// The answer to a question about the statistics. Its data are the number of the command in
    /// four bytes, and the answer.
    #[classattr]
    const STATISTICS: u8 = 17;
    /// There is no answer. Its data are the number of the command in four bytes, and the reason.
    #[classattr]
    const NO_STATISTICS: u8 = 18;
    /// An action has run. Its data are the message for the topic of actions.
    #[classattr]
    const ACTION_RAN: u8 = 19;
    /// A client of the server itself connected. Its data are as those of `CONNECTED`.
    #[classattr]
    const INTERNAL_CONNECTED: u8 = 20;

    /// Opens, and recovers, the journal that the configuration names.
    /// `on_progress(done_bytes, total_bytes)` is called meanwhile.
    #[new]
    #[pyo3(signature = (config, on_progress=None))]
    fn new(py: Python<'_>, config: &str, on_progress: Option<Py<PyAny>>) -> PyResult<Self> {
        let config = BrokerConfig::from_json(config).map_err(|error| to_python(py, error.into()))?;
        let opened = interpreter::with_progress(py, on_progress, |report| -> Result<Self, EngineError> {
            let (wake_tx, wake_rx) = wake_up_pair().map_err(EngineError::Thread)?;
            let wake_tx = Arc::new(wake_tx);
            let (is_due, due) = bounded(1);
            let wake_of_host = Arc::clone(&wake_tx);
            let wake = Box::new(move || {
                send_wake(&wake_of_host);
                // When it is full, the waiting thread already has a wake-up.
                let _ = is_due.try_send(());
            });
            let (host, _) = Host::open(config, wake, &mut |RecoveryProgress { done_bytes, total_bytes }| {
                report(done_bytes, total_bytes);
            })?;
            let running = Mutex::new(Some(Running { host, effects: Vec::new() }));
            let (is_to_panic, hears_actions) = (AtomicBool::new(false), AtomicBool::new(false));
            let state = EngineState { running, is_to_panic, wake_rx, wake_tx, hears_actions, due };
            Ok(Engine { handle: Handle::new(state) })
        })?;
        opened.map_err(|error| to_python(py, error))
    }

    /// The descriptor that becomes readable when a turn is due.
    fn wake_fd(&self) -> i32 {
        self.handle.value().wake_rx.as_raw_fd()
    }

    /// Reads the bytes that make the descriptor readable. Call it when the descriptor is readable,
    /// and then take a turn.
    fn drain_wake(&self, py: Python<'_>) -> PyResult<()> {
        let state = self.state(py)?;
        while matches!((&*state.wake_rx).read(&mut [0; 64]), Ok(64)) {}
        Ok(())
    }

    /// Makes the next turn panic: for tests of the behavior after a bug in the broker.
    fn panic_in_next_turn(&self) {
        self.handle.value().is_to_panic.store(true, Ordering::Relaxed);
    }

    /// A turn: hands in `(event, connection, bytes)` in the order in which they happened.
    ///
    /// Raises `InternalError` when the broker has a bug that ends the turn early. The engine is
    /// then closed for good.
    fn turn(&self, py: Python<'_>, events: Vec<(u8, u64, PyBackedBytes)>) -> PyResult<Turn> {
        let state = self.state(py)?;
        let turned = interpreter::outside(py, || {
            let sleep = state.take_turn(|running| {
                events.iter().for_each(|event| hand_in(&mut running.host, event));
                let is_to_panic = state.is_to_panic.load(Ordering::Relaxed);
                assert!(!is_to_panic, "a test asked for a panic");
            })?;
            let mut running = state.running.lock();
            let Running { host, effects } = running.as_mut().ok_or(EngineError::Stopped)?;
            Ok((std::mem::take(effects), sleep.map(|sleep| sleep.as_secs_f64()), host.is_drained()))
        });
        let (effects, sleep, drained) = turned.map_err(|error| to_python(py, error))?;
        let mut turn = Turn {
            sends: vec![],
            closes: vec![],
            pauses: vec![],
            resumes: vec![],
            links: vec![],
            logons: vec![],
            reloads: vec![],
            questions: vec![],
            signals: vec![],
            logs: vec![],
            sleep,
            drained,
        };
        let mut buffers = Vec::new();
        let mut shared = Shared::default();
        for effect in effects {
            match effect {
                Effect::Send { connection, bytes } => {
                    turn.send(connection, PyBytes::new(py, &bytes).unbind());
                    buffers.push(bytes);
                }
                Effect::SendShared { connection, bytes } => turn.send(connection, shared.object(py, bytes)),
                Effect::Close { connection } => turn.closes.push(connection.0),
                Effect::OpenLink { destination, address } => turn.links.push((destination, address)),
                Effect::Authenticate { connection, client_name, user, password, token } => {
                    let text = |secret: Option<Secret<String>>| secret.map(|secret| secret.0);
                    turn.logons.push((connection.0, client_name, user, text(password), text(token)));
                }
                Effect::Reload { connection, command } => turn.reloads.push((connection.0, command)),
                Effect::Statistics { connection, command, question, shows_clients } => {
                    let question = PyBytes::new(py, &question).unbind();
                    turn.questions.push((connection.0, command, question, shows_clients));
                }
                Effect::PauseReading { connection } => turn.pauses.push(connection.0),
                Effect::ResumeReading { connection } => turn.resumes.push(connection.0),
                Effect::Signal(text) => turn.signals.push(text),
                Effect::Log(event) => {
                    let level = log_level(event.level());
                    turn.logs.push((level, event.id(), event.to_string(), event.fields()));
                }
            }
        }
        if let Some(Running { host, .. }) = state.running.lock().as_mut() {
            buffers.into_iter().for_each(|buffer| host.recycle(buffer));
        }
        Ok(turn)
    }

    /// Whether messages about the runs of actions reach the log, a last-value topic or a
    /// subscription.
    fn hears_actions(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.state(py)?.hears_actions.load(Ordering::Relaxed))
    }

    /// All figures, as a JSON object.
    fn stats(&self, py: Python<'_>) -> PyResult<String> {
        match self.admin(py, AdminCommand::Stats)? {
            AdminReply::Stats(stats) => Ok(stats.to_json()),
            reply => Err(unexpected(py, reply)),
        }
    }

    /// The figures of every object, as a JSON object.
    fn figures(&self, py: Python<'_>) -> PyResult<String> {
        let state = self.state(py)?;
        // The text has megabytes when there are many clients.
        let asked = interpreter::outside(py, || match state.admin(AdminCommand::Figures)? {
            AdminReply::Figures(figures) => Ok(Ok(figures.to_json())),
            reply => Ok(Err(reply)),
        });
        asked.map_err(|error| to_python(py, error))?.map_err(|reply| unexpected(py, reply))
    }

    /// The messages of a queue in the hands of subscriptions, up to this number, as a JSON array.
    fn held(&self, py: Python<'_>, queue: String, limit: usize) -> PyResult<String> {
        match self.admin(py, AdminCommand::Held(queue, limit))? {
            // Fails only for maps whose keys are not text.
            AdminReply::Held(held) => Ok(serde_json::to_string(&held).unwrap_or_default()),
            reply => Err(unexpected(py, reply)),
        }
    }

    /// The links to other instances, as a JSON object.
    fn replication(&self, py: Python<'_>) -> PyResult<String> {
        match self.admin(py, AdminCommand::Replication)? {
            AdminReply::Replication(stats) => Ok(stats.to_json()),
            reply => Err(unexpected(py, reply)),
        }
    }

    /// Downgrades, upgrades, pauses or resumes the link to a destination.
    fn replicate(&self, py: Python<'_>, destination: String, action: &str) -> PyResult<()> {
        let action = link_action(action)?;
        match self.admin(py, AdminCommand::Link { destination, action })? {
            AdminReply::Replication(_) => Ok(()),
            reply => Err(unexpected(py, reply)),
        }
    }

    /// Ends a connection, whose client name cannot log on for the time. False: there is none with
    /// the number.
    #[pyo3(signature = (connection, block_ms=0))]
    fn disconnect(&self, py: Python<'_>, connection: u64, block_ms: u64) -> PyResult<bool> {
        match self.admin(py, AdminCommand::Disconnect(connection, Duration::from_millis(block_ms)))? {
            AdminReply::Disconnected { count } => Ok(count > 0),
            reply => Err(unexpected(py, reply)),
        }
    }

    /// Ends the connections of clients of a transport. Returns their number.
    fn disconnect_transport(&self, py: Python<'_>, transport: u16) -> PyResult<u64> {
        match self.admin(py, AdminCommand::DisconnectTransport(TransportId(transport)))? {
            AdminReply::Disconnected { count } => Ok(count),
            reply => Err(unexpected(py, reply)),
        }
    }

    /// Moves records of last-value topics together in memory. Returns the bytes that this frees. To
    /// free all, call it until it returns 0.
    fn compact_records(&self, py: Python<'_>, topic: String) -> PyResult<u64> {
        match self.admin(py, AdminCommand::CompactRecords(topic))? {
            AdminReply::Compacted { freed } => Ok(freed),
            reply => Err(unexpected(py, reply)),
        }
    }

    /// Creates a queue with these settings, as JSON. False: it existed, with the same settings.
    fn create_queue(&self, py: Python<'_>, settings: &str) -> PyResult<bool> {
        let settings = QueueSettings::from_json(settings)
            .map_err(|error| errors::bad_option(py, &error.key, &error.reason))?;
        match self.admin(py, AdminCommand::CreateQueue(Box::new(settings)))? {
            AdminReply::QueueCreated { existed, .. } => Ok(!existed),
            reply => Err(unexpected(py, reply)),
        }
    }

    /// Changes these settings of a queue that was created at run time, as JSON. False: it had them.
    fn alter_queue(&self, py: Python<'_>, queue: String, changes: &str) -> PyResult<bool> {
        let changes = QueueChanges::from_json(changes)
            .map_err(|error| errors::bad_option(py, &error.key, &error.reason))?;
        match self.admin(py, AdminCommand::AlterQueue { queue, changes })? {
            AdminReply::QueueAltered { keys, .. } => Ok(!keys.is_empty()),
            reply => Err(unexpected(py, reply)),
        }
    }

    /// Drops a queue that was created at run time. Returns the number of its messages, and
    /// warnings.
    fn drop_queue(&self, py: Python<'_>, queue: String) -> PyResult<(u64, Vec<String>)> {
        match self.admin(py, AdminCommand::DropQueue(queue))? {
            AdminReply::QueueDropped { message_count, warnings, .. } => Ok((message_count, warnings)),
            reply => Err(unexpected(py, reply)),
        }
    }

    /// Uses the entitlements and the limits of users of another configuration. The connections of
    /// users with other entitlements end with this call.
    ///
    /// `asker` is the connection that asked for it, the number of its command, and the answer. It
    /// gets the answer before its rights change.
    ///
    /// Raises `ConfigError` for the first mistake. Nothing changes then.
    #[pyo3(signature = (config, asker=None))]
    fn entitle(&self, py: Python<'_>, config: &str, asker: Option<(u64, u32, String)>) -> PyResult<()> {
        let state = self.state(py)?;
        let entitled = interpreter::outside(py, || {
            let rules = BrokerConfig::access_rules_of(config)?;
            let turned = state.take_turn(|running| {
                if let Some((connection, command, keys)) = &asker {
                    let (connection, result) = (ConnectionId(*connection), Ok(keys.as_str()));
                    running.host.handle(Input::Reloaded { connection, command: *command, result });
                }
                running.host.handle(Input::Entitle(rules));
            });
            turned.map(drop)
        });
        entitled.map_err(|error| to_python(py, error))?;
        send_wake(&state.wake_tx);
        Ok(())
    }

    /// Archives, compresses or removes one full journal file: the oldest selected one. With
    /// `dry_run` it changes nothing and returns every selected file. Waits for the disk. Returns no
    /// file when none is selected, or when it must stay.
    fn maintain(
        &self,
        py: Python<'_>,
        action: &str,
        age: Option<Duration>,
        size_max: Option<u64>,
        dry_run: bool,
    ) -> PyResult<Vec<SegmentFields>> {
        let (action, files) = (action_of(action)?, files_of(age, size_max)?);
        let maintenance = Maintenance { action, files, dry_run, archive_directory: None };
        match self.admin(py, AdminCommand::Maintain(maintenance))? {
            AdminReply::Files(files) => Ok(files.into_iter().map(fields_of).collect()),
            reply => Err(unexpected(py, reply)),
        }
    }

    /// Read access to the journal while it runs.
    fn journal(&self, py: Python<'_>) -> PyResult<JournalReader> {
        let state = self.state(py)?;
        let reader =
            interpreter::outside(py, || state.running.lock().as_ref().map(|running| running.host.reader()));
        let reader = reader.ok_or_else(|| to_python(py, EngineError::Stopped))?;
        Ok(JournalReader::new(reader))
    }

    /// Closes the journal cleanly. A second call does nothing.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        if self.handle.is_forked() {
            return Ok(());
        }
        let state = self.handle.value();
        let closed = interpreter::outside(py, || {
            let running = state.running.lock().take();
            running.map_or(Ok(()), |running| running.host.close())
        });
        closed.map_err(|error| to_python(py, error.into()))
    }
}

impl Engine {
    /// The state. Raises in a process that is not the one which opened the engine.
    fn state(&self, py: Python<'_>) -> PyResult<&EngineState> {
        self.handle.check_fork(py)?;
        Ok(self.handle.value())
    }

    /// Carries out an administrative command and waits for the reply.
    fn admin(&self, py: Python<'_>, command: AdminCommand) -> PyResult<AdminReply> {
        let state = self.state(py)?;
        interpreter::outside(py, || state.admin(command)).map_err(|error| to_python(py, error))
    }
}

impl EngineState {
    /// Takes a turn with the input of `hand_in`, on any thread. Returns how long the next turn may
    /// wait.
    fn take_turn(&self, hand_in: impl FnOnce(&mut Running)) -> Result<Option<Duration>, EngineError> {
        let mut slot = self.running.lock();
        let running = slot.as_mut().ok_or(EngineError::Stopped)?;
        let turned = EngineError::catch(|| {
            running.host.begin_turn();
            hand_in(running);
            running.host.end_turn();
            self.hears_actions.store(running.host.hears_actions(), Ordering::Relaxed);
            let host = &mut running.host;
            running.effects.extend(std::iter::from_fn(|| host.poll_output()));
            host.sleep()
        });
        if turned.is_err() {
            slot.take().into_iter().for_each(|running| running.host.abandon());
        }
        turned
    }

    /// Carries out an administrative command and waits for the reply.
    ///
    /// The calling thread takes turns itself until the reply is there. It may be the thread of the
    /// event loop, which then takes none.
    fn admin(&self, command: AdminCommand) -> Result<AdminReply, EngineError> {
        let (answer, reply) = bounded(1);
        let mut sleep = self.take_turn(|running| running.host.admin(command, answer))?;
        loop {
            // The loop sends the output of the turn.
            send_wake(&self.wake_tx);
            if let Ok(reply) = reply.try_recv() {
                return Ok(reply);
            }
            if sleep != Some(Duration::ZERO) {
                select! {
                    recv(reply) -> reply => return reply.map_err(|_| EngineError::Stopped),
                    recv(self.due) -> _ => (),
                }
            }
            sleep = self.take_turn(|_| ())?;
        }
    }
}

/// Wakes the event loop. Fails only when the bytes of hundreds of wake-ups are unread, and then the
/// loop wakes up anyway.
fn send_wake(mut wake_tx: &UnixStream) {
    let _ = wake_tx.write(&[1]);
}

fn hand_in(host: &mut Host, (event, connection, bytes): &(u8, u64, PyBackedBytes)) {
    let connection = ConnectionId(*connection);
    let connected = |access| {
        // The place of the transport in two bytes, then the address of the peer.
        let (place, peer) = bytes.split_first_chunk().unwrap_or((&[0; 2], b"?"));
        let transport = TransportId(u16::from_le_bytes(*place));
        Input::Connected { connection, peer: std::str::from_utf8(peer).unwrap_or("?"), transport, access }
    };
    let text = || std::str::from_utf8(bytes).unwrap_or("?");
    host.handle(match *event {
        Engine::LINK_OPENED => return open_link(host, connection, bytes),
        // The number of the event is that of the destination.
        Engine::LINK_NOT_OPENED => Input::LinkNotOpened { destination: connection.0 as u32, reason: text() },
        Engine::LINK_ACCEPTED => {
            let (tls, peer) = bytes.split_first().unwrap_or((&0, b"?"));
            Input::LinkAccepted { connection, peer: std::str::from_utf8(peer).unwrap_or("?"), tls: *tls != 0 }
        }
        Engine::AUTHENTICATED => {
            // The user, then its groups, one a line.
            let (user, groups) = text().split_once('\n').unwrap_or((text(), ""));
            Input::Authenticated { connection, user: Ok(user), groups }
        }
        Engine::NOT_AUTHENTICATED | Engine::NOT_CHECKED => {
            let code = match *event {
                Engine::NOT_AUTHENTICATED => Code::AuthenticationFailed,
                _ => Code::AuthenticationUnavailable,
            };
            Input::Authenticated { connection, user: Err((code, text())), groups: "" }
        }
        Engine::RELOADED | Engine::NOT_RELOADED => {
            let (command, text) = bytes.split_first_chunk().unwrap_or((&[0; 4], b""));
            let text = std::str::from_utf8(text).unwrap_or("?");
            let result = if *event == Engine::RELOADED { Ok(text) } else { Err(text) };
            Input::Reloaded { connection, command: u32::from_le_bytes(*command), result }
        }
        Engine::STATISTICS | Engine::NO_STATISTICS => {
            let (command, text) = bytes.split_first_chunk().unwrap_or((&[0; 4], b""));
            let text = std::str::from_utf8(text).unwrap_or("?");
            let result = if *event == Engine::STATISTICS { Ok(text) } else { Err(text) };
            Input::Statistics { connection, command: u32::from_le_bytes(*command), result }
        }
        Engine::RESET => Input::Reset { connection, reason: text() },
        Engine::CONNECTED => connected(Access::Client),
        Engine::ADMINISTRATOR_CONNECTED => connected(Access::Administrator),
        Engine::DENIED_CONNECTED => connected(Access::Denied),
        Engine::INTERNAL_CONNECTED => connected(Access::Internal),
        Engine::ACTION_RAN => Input::ActionRan(text()),
        Engine::RECEIVED => Input::Received { connection, bytes },
        Engine::WRITABLE => Input::Writable { connection, writable: true },
        Engine::NOT_WRITABLE => Input::Writable { connection, writable: false },
        Engine::DISCONNECTED => Input::Disconnected { connection },
        Engine::SHUTDOWN => Input::Shutdown,
        _ => return,
    });
}

/// Hands in a connection to another instance. The data of its event are the number of the
/// destination in four bytes, 1 if the connection is encrypted or else 0 in one byte, and the JSON
/// of user, password and token.
fn open_link(host: &mut Host, connection: ConnectionId, bytes: &[u8]) {
    let (destination, rest) = bytes.split_first_chunk().unwrap_or((&[0xff; 4], &[]));
    let destination = u32::from_le_bytes(*destination);
    let (tls, identity) = rest.split_first().unwrap_or((&0, &[]));
    let given: [Option<String>; 3] = serde_json::from_slice(identity).unwrap_or_default();
    let [user, password, token] = given.each_ref().map(Option::as_deref);
    let identity = LinkIdentity { user, password: password.map(Secret), token: token.map(Secret) };
    host.handle(Input::LinkOpened { destination, connection, tls: *tls != 0, identity });
}

/// The exception for a command that was refused, or whose reply is that of another one.
fn unexpected(py: Python<'_>, reply: AdminReply) -> PyErr {
    match reply {
        AdminReply::Refused { code, reason } => errors::new_error(py, code.name(), &reason, 0),
        _ => errors::new_error(py, "internal", "the reply is that of another command", 0),
    }
}

impl Turn {
    fn send(&mut self, connection: ConnectionId, bytes: Py<PyBytes>) {
        match self.sends.last_mut() {
            Some((last, parts)) if *last == connection.0 => parts.push(bytes),
            _ => self.sends.push((connection.0, vec![bytes])),
        }
    }
}

/// The objects for bytes that several connections get in one turn, by the place of the bytes.
#[derive(Default)]
struct Shared(HashMap<*const u8, (Arc<[u8]>, Py<PyBytes>)>);

impl Shared {
    fn object(&mut self, py: Python<'_>, bytes: Arc<[u8]>) -> Py<PyBytes> {
        let (_, object) = self.0.entry(bytes.as_ptr()).or_insert_with(|| {
            let object = PyBytes::new(py, &bytes).unbind();
            // Held, so that no other bytes get the place.
            (bytes, object)
        });
        object.clone_ref(py)
    }
}

/// The bytes for a client that connected without TLS to an address that requires it.
#[pyfunction]
pub fn tls_required(py: Python<'_>) -> Py<PyBytes> {
    let reason = "the server takes connections over TLS only at this address: connect with quires://";
    let mut frame = Vec::new();
    Reply::Error { code: Code::TlsRequired, reason }.encode(&mut frame);
    PyBytes::new(py, &frame).unbind()
}

/// Checks a configuration as an engine would, without starting one: key and reason of every
/// mistake, and warnings when there is none.
#[pyfunction]
pub fn check_config(config: &str) -> (Vec<(String, String)>, Vec<String>) {
    let (errors, warnings) = BrokerConfig::diagnose(config);
    (errors.into_iter().map(|error| (error.key, error.reason)).collect(), warnings)
}

/// The decision about a request by the entries of a configuration, and its reasons, as JSON.
#[pyfunction]
pub fn explain_entitlement(
    py: Python<'_>,
    config: &str,
    user: &str,
    groups: Vec<String>,
    right: &str,
    topic: &str,
) -> PyResult<String> {
    BrokerConfig::explain_entitlement(config, user, groups, right, topic)
        .map_err(|error| errors::bad_option(py, &error.key, &error.reason))
}

/// The exception for an error that keeps an engine from running.
pub fn to_python(py: Python<'_>, error: EngineError) -> PyErr {
    if let EngineError::Config(error) = &error {
        return errors::bad_option(py, &error.key, &error.reason);
    }
    if let EngineError::Thread(cause) = &error {
        return errors::refused_by_system(py, &error.to_string(), cause);
    }
    let code = match &error {
        EngineError::ConfigDiffers { .. } => "bad_option",
        EngineError::Journal(error) => journal_code(error),
        EngineError::Stopped => "shutting_down",
        _ => "internal",
    };
    errors::new_error(py, code, &error.to_string(), 0)
}

/// The stable code of an error of the journal. A lock of another process does not concern
/// connections, so it has no code there.
pub fn journal_code(error: &JournalError) -> &'static str {
    match error {
        JournalError::Locked { .. } => "journal_locked",
        error => code_of(error).name(),
    }
}

fn log_level(level: Level) -> u8 {
    match level {
        Level::Debug => 10,
        Level::Info => 20,
        Level::Warning => 30,
        Level::Error => 40,
    }
}
