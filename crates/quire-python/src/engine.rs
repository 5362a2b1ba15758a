//! The broker under the asyncio server: one call per turn of the event loop, with everything that arrived in and everything to send out.

use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;
use quire_core::broker::{BrokerConfig, ConnectionId, Input, Level};
use quire_driver::{Deed, EngineError, Host};
use quire_journal::{JournalError, Position, Progress};

use crate::errors;
use crate::interpreter;
use crate::journal_reader::JournalReader;
use crate::upkeep::Upkeep;

/// What an event of a turn is; `python/quire/_server.py` has the same numbers.
const CONNECTED: u8 = 0;
const RECEIVED: u8 = 1;
const WRITABLE: u8 = 2;
const NOT_WRITABLE: u8 = 3;
const DISCONNECTED: u8 = 4;
const SHUTDOWN: u8 = 5;

/// A broker with its journal, without sockets.
#[pyclass(frozen, module = "quire._quire")]
pub struct Engine {
    host: Mutex<Option<Host>>,
    /// The next turn panics.
    is_to_panic: AtomicBool,
    /// Becomes readable when a turn is due.
    bell: UnixStream,
}

/// What the event loop has to do after a turn.
#[pyclass(frozen, get_all, module = "quire._quire")]
pub struct Turn {
    /// Connection and bytes to write, in their order.
    sends: Vec<(u64, Py<PyBytes>)>,
    /// Connections to close once everything is written.
    closes: Vec<u64>,
    /// Connections to read no more from, until they are among `resumes`.
    pauses: Vec<u64>,
    /// Connections to read from again.
    resumes: Vec<u64>,
    /// Level (of `logging`) and text.
    logs: Vec<(u8, String)>,
    /// Seconds after which the next turn is due at the latest; `None` = when something happens.
    sleep: Option<f64>,
    /// After a shutdown: everything owed was said.
    drained: bool,
}

#[pymethods]
impl Engine {
    /// Opens, and recovers, the journal that the configuration names. `on_progress(done_bytes, total_bytes)` is called meanwhile.
    #[new]
    #[pyo3(signature = (config, on_progress=None))]
    fn new(py: Python<'_>, config: &str, on_progress: Option<Py<PyAny>>) -> PyResult<Self> {
        let config = BrokerConfig::from_json(config).map_err(|error| to_python(py, error.into()))?;
        let opened = interpreter::with_progress(py, on_progress, |report| -> Result<Self, EngineError> {
            let (bell, rope) = UnixStream::pair().map_err(EngineError::Thread)?;
            bell.set_nonblocking(true).map_err(EngineError::Thread)?;
            rope.set_nonblocking(true).map_err(EngineError::Thread)?;
            // Fails only when the bell is ringing already for hundreds of turns, which is as good.
            let wake = Box::new(move || drop((&rope).write(&[1])));
            let (host, _) = Host::open(config, wake, &mut |Progress { done_bytes, total_bytes }| {
                report(done_bytes, total_bytes);
            })?;
            Ok(Engine { host: Mutex::new(Some(host)), is_to_panic: AtomicBool::new(false), bell })
        })?;
        opened.map_err(|error| to_python(py, error))
    }

    /// The descriptor that becomes readable when a turn is due.
    fn wake_fd(&self) -> i32 {
        self.bell.as_raw_fd()
    }

    /// Makes the next turn panic: for tests of what follows a bug in the broker.
    fn panic_in_next_turn(&self) {
        self.is_to_panic.store(true, Ordering::Relaxed);
    }

    /// A turn: hands in `(event, connection, bytes)` in the order in which they happened.
    ///
    /// Raises `InternalError` when the broker has a bug that ends the turn early. The engine is then closed for good.
    fn turn(&self, py: Python<'_>, events: Vec<(u8, u64, PyBackedBytes)>) -> PyResult<Turn> {
        let turned = py.detach(|| {
            while matches!((&self.bell).read(&mut [0; 64]), Ok(64)) {}
            let mut slot = self.host.lock();
            let host = slot.as_mut()?;
            let turned = EngineError::catch(|| self.take_turn(host, &events));
            if turned.is_err() {
                slot.take().into_iter().for_each(Host::abandon);
            }
            Some(turned)
        });
        let turned =
            turned.ok_or_else(|| errors::new_error(py, "shutting_down", "the server is closed", 0))?;
        let (deeds, sleep, drained) = turned.map_err(|error| to_python(py, error))?;
        let mut turn = Turn {
            sends: vec![],
            closes: vec![],
            pauses: vec![],
            resumes: vec![],
            logs: vec![],
            sleep,
            drained,
        };
        let mut buffers = Vec::new();
        for deed in deeds {
            match deed {
                Deed::Send { connection, bytes } => {
                    turn.sends.push((connection.0, PyBytes::new(py, &bytes).unbind()));
                    buffers.push(bytes);
                }
                Deed::Close { connection } => turn.closes.push(connection.0),
                Deed::PauseReading { connection } => turn.pauses.push(connection.0),
                Deed::ResumeReading { connection } => turn.resumes.push(connection.0),
                Deed::Log(event) => turn.logs.push((log_level(event.level()), event.to_string())),
            }
        }
        if let Some(host) = self.host.lock().as_mut() {
            buffers.into_iter().for_each(|buffer| host.recycle(buffer));
        }
        Ok(turn)
    }

    /// What the broker counts, as JSON.
    fn stats(&self, py: Python<'_>) -> PyResult<String> {
        let stats = py.detach(|| self.host.lock().as_ref().map(Host::stats));
        let stats = stats.ok_or_else(|| errors::new_error(py, "shutting_down", "the server is closed", 0))?;
        Ok(serde_json::json!({
            "connections": stats.connection_count,
            "subscriptions": stats.subscription_count,
            "replays": stats.replay_count,
            "published": stats.published_count,
            "duplicates": stats.duplicate_count,
            "refused": stats.refused_count,
            "delivered": stats.delivered_count,
            "received_bytes": stats.received_bytes,
            "sent_bytes": stats.sent_bytes,
            "unpersisted_bytes": stats.unpersisted_bytes,
            "appended": stats.appended,
            "persisted": stats.persisted,
            "journal_failed": stats.journal_failed,
            "queues": stats.queues,
            "clients": stats.connections.iter().map(|connection| serde_json::json!({
                "connection": connection.connection.0,
                "peer": connection.peer,
                "client_name": connection.client_name,
                "sequence": connection.sequence,
                "sequence_jumps": connection.sequence_jump_count,
                "subscriptions": connection.subscription_count,
                "backlog_bytes": connection.backlog_bytes,
                "writable": connection.writable,
            })).collect::<Vec<_>>(),
        })
        .to_string())
    }

    /// Read access to the journal while it runs.
    fn journal(&self, py: Python<'_>) -> PyResult<JournalReader> {
        let reader = py.detach(|| self.host.lock().as_ref().map(Host::reader));
        let reader =
            reader.ok_or_else(|| errors::new_error(py, "shutting_down", "the server is closed", 0))?;
        Ok(JournalReader::new(reader))
    }

    /// For archiving, compressing and removing the full files of the journal while it runs.
    fn upkeep(&self, py: Python<'_>) -> PyResult<Upkeep> {
        let upkeep = py.detach(|| self.host.lock().as_ref().map(Host::upkeep));
        let upkeep =
            upkeep.ok_or_else(|| errors::new_error(py, "shutting_down", "the server is closed", 0))?;
        Ok(Upkeep::new(upkeep))
    }

    /// The first position of the log that queues or subscriptions still need; `None` = nobody needs anything.
    fn keep_from(&self, py: Python<'_>) -> PyResult<Option<u64>> {
        let needed = py.detach(|| self.host.lock().as_ref().map(Host::keep_from));
        let needed =
            needed.ok_or_else(|| errors::new_error(py, "shutting_down", "the server is closed", 0))?;
        Ok(needed.map(Position::get))
    }

    /// Closes the journal cleanly. A second call does nothing.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let closed = py.detach(|| self.host.lock().take().map_or(Ok(()), Host::close));
        closed.map_err(|error| to_python(py, error.into()))
    }
}

impl Engine {
    fn take_turn(
        &self,
        host: &mut Host,
        events: &[(u8, u64, PyBackedBytes)],
    ) -> (Vec<Deed>, Option<f64>, bool) {
        host.begin_turn();
        for (event, connection, bytes) in events {
            let connection = ConnectionId(*connection);
            host.handle(match *event {
                CONNECTED => Input::Connected { connection, peer: std::str::from_utf8(bytes).unwrap_or("?") },
                RECEIVED => Input::Received { connection, bytes },
                WRITABLE => Input::Writable { connection, writable: true },
                NOT_WRITABLE => Input::Writable { connection, writable: false },
                DISCONNECTED => Input::Disconnected { connection },
                SHUTDOWN => Input::Shutdown,
                _ => continue,
            });
        }
        assert!(!self.is_to_panic.load(Ordering::Relaxed), "a test asked for a panic");
        host.end_turn();
        let deeds = std::iter::from_fn(|| host.poll_output()).collect();
        (deeds, host.sleep().map(|sleep| sleep.as_secs_f64()), host.is_drained())
    }
}

/// Checks a configuration as an engine would, without starting one.
#[pyfunction]
pub fn check_config(py: Python<'_>, config: &str) -> PyResult<()> {
    BrokerConfig::from_json(config).map(drop).map_err(|error| to_python(py, error.into()))
}

/// The exception for what keeps an engine from running.
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

/// The stable code of an error of the journal.
pub fn journal_code(error: &JournalError) -> &'static str {
    match error {
        JournalError::Locked { .. } => "journal_locked",
        JournalError::Full { .. } => "storage_full",
        JournalError::Corrupt { .. }
        | JournalError::Unreadable { .. }
        | JournalError::Gap { .. }
        | JournalError::Missing { .. }
        | JournalError::Truncated { .. }
        | JournalError::Version { .. } => "journal_corrupt",
        JournalError::BadOption { .. } => "bad_option",
        JournalError::SequencesEnd { .. } => "limit_exceeded",
        _ => "storage_failed",
    }
}

fn log_level(level: Level) -> u8 {
    match level {
        Level::Info => 20,
        Level::Warning => 30,
        Level::Error => 40,
    }
}
