//! The log lines of the threads of the extension, passed to Python's `logging`.
//!
//! These threads hold locks while they log, and must never wait for the interpreter. A separate
//! thread, which the first record starts, enters the interpreter for them.

use std::mem::replace;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use log::kv::{self, Key, Value, VisitSource};
use log::{Level, LevelFilter, Log, Metadata, Record};
use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyDict};

use crate::{fork, interpreter};

/// The most records that wait for the interpreter. More are dropped: they would repeat earlier
/// records.
const WAITING_MAX: usize = 1024;

static LOGGER: Logger = Logger { state: Mutex::new(LoggerState::Idle) };

/// From here on, all log records are passed to `logging`. No thread is started yet.
///
/// At the end of the program, passes the waiting lines on and ends the thread. If a thread enters
/// an interpreter that is ending, Python ends the thread in a way that aborts the process.
pub fn install(py: Python<'_>) -> PyResult<()> {
    // Fails when the module is loaded a second time. The logger of the first one remains.
    if log::set_logger(&LOGGER).is_ok() {
        log::set_max_level(LevelFilter::Info);
    }
    py.import("atexit")?.call_method1("register", (wrap_pyfunction!(finish, py)?,))?;
    Ok(())
}

#[pyfunction]
fn finish(py: Python<'_>) {
    let ended = replace(&mut *LOGGER.state.lock(), LoggerState::Finished);
    if let LoggerState::Started(thread) = ended
        && let Some(thread) = thread.into_value()
    {
        drop(thread.sender);
        // A panic in it was already printed.
        let _ = interpreter::outside(py, || thread.handle.join());
    }
}

struct Logger {
    state: Mutex<LoggerState>,
}

enum LoggerState {
    Idle,
    Started(fork::Handle<Thread>),
    /// The interpreter ends: no line is logged any more.
    Finished,
}

struct Thread {
    sender: SyncSender<Line>,
    handle: JoinHandle<()>,
}

struct Line {
    level: Level,
    target: String,
    text: String,
    fields: Fields,
}

/// The fields of a line, by their names.
#[derive(Default)]
struct Fields(Vec<(String, Field)>);

/// The value of a field, as Python gets it.
#[derive(IntoPyObject)]
enum Field {
    Integer(u64),
    Number(f64),
    Text(String),
}

impl<'kvs> VisitSource<'kvs> for Fields {
    fn visit_pair(&mut self, key: Key<'kvs>, value: Value<'kvs>) -> Result<(), kv::Error> {
        let integer = value.to_u64().map(Field::Integer);
        let field = integer.or_else(|| value.to_f64().map(Field::Number));
        self.0.push((key.to_string(), field.unwrap_or_else(|| Field::Text(value.to_string()))));
        Ok(())
    }
}

impl Log for Logger {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= Level::Info && metadata.target().starts_with("quire")
    }

    fn log(&self, record: &Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        let mut fields = Fields::default();
        // Fails only when the visitor does.
        let _ = record.key_values().visit(&mut fields);
        let line = Line {
            level: record.level(),
            target: record.target().to_owned(),
            text: record.args().to_string(),
            fields,
        };
        self.state.lock().send(line);
    }

    fn flush(&self) {}
}

impl LoggerState {
    fn send(&mut self, line: Line) {
        let runs = match self {
            LoggerState::Finished => return,
            // A child after a fork starts another thread.
            LoggerState::Started(thread) => !thread.is_forked(),
            LoggerState::Idle => false,
        };
        if !runs {
            let (sender, receiver) = sync_channel(WAITING_MAX);
            let started =
                std::thread::Builder::new().name("quire-logging".into()).spawn(move || hand_on(&receiver));
            // Without a thread, no line is logged.
            let Ok(handle) = started else { return };
            *self = LoggerState::Started(fork::Handle::new(Thread { sender, handle }));
        }
        if let LoggerState::Started(thread) = self {
            // Full: see `WAITING_MAX`.
            let _ = thread.value().sender.try_send(line);
        }
    }
}

fn hand_on(lines: &Receiver<Line>) {
    for line in lines {
        let handed = Python::try_attach(|py| {
            if let Err(error) = hand_on_line(py, line) {
                error.write_unraisable(py, None);
            }
        });
        if handed.is_none() {
            return; // The interpreter has ended.
        }
    }
}

fn hand_on_line(py: Python<'_>, line: Line) -> PyResult<()> {
    let level = match line.level {
        Level::Error => 40,
        Level::Warn => 30,
        Level::Info | Level::Debug | Level::Trace => 20,
    };
    let logger = py.import("logging")?.call_method1("getLogger", (&line.target,))?;
    let options = PyDict::new(py);
    options.set_item("extra", line.fields.0.into_py_dict(py)?)?;
    logger.call_method("log", (level, "%s", &line.text), Some(&options)).map(|_| ())
}
