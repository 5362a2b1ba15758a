//! The log lines of the threads of the extension, passed to Python's `logging`.
//!
//! These threads hold locks while they log, and must never wait for the interpreter. A separate thread, which the first record starts,
//! enters the interpreter for them.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use log::{Level, LevelFilter, Log, Metadata, Record};
use parking_lot::Mutex;
use pyo3::prelude::*;

/// Records that may wait for the interpreter. More are dropped; they would repeat the records before them.
const WAITING_MAX: usize = 1024;

/// Makes `logging` the destination of everything that is logged from here on. No thread is started yet.
pub fn install() {
    let logger = Box::new(Logger { sender: Mutex::new(None) });
    // Fails when the module is loaded a second time. The logger of the first one remains.
    if log::set_boxed_logger(logger).is_ok() {
        log::set_max_level(LevelFilter::Info);
    }
}

struct Logger {
    sender: Mutex<Option<SyncSender<Line>>>,
}

struct Line {
    level: Level,
    target: String,
    text: String,
}

impl Log for Logger {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= Level::Info && metadata.target().starts_with("quire")
    }

    fn log(&self, record: &Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        let mut sender = self.sender.lock();
        let sender = sender.get_or_insert_with(|| {
            let (sender, receiver) = sync_channel(WAITING_MAX);
            // Without a thread the receiver is gone, and nothing is logged.
            let _ =
                std::thread::Builder::new().name("quire-logging".into()).spawn(move || hand_on(&receiver));
            sender
        });
        let line = Line {
            level: record.level(),
            target: record.target().to_owned(),
            text: record.args().to_string(),
        };
        // Full: see `WAITING_MAX`.
        let _ = sender.try_send(line);
    }

    fn flush(&self) {}
}

fn hand_on(lines: &Receiver<Line>) {
    for line in lines {
        let handed = Python::try_attach(|py| {
            if let Err(error) = hand_on_line(py, &line) {
                error.write_unraisable(py, None);
            }
        });
        if handed.is_none() {
            return; // The interpreter is gone.
        }
    }
}

fn hand_on_line(py: Python<'_>, line: &Line) -> PyResult<()> {
    let level = match line.level {
        Level::Error => 40,
        Level::Warn => 30,
        Level::Info | Level::Debug | Level::Trace => 20,
    };
    let logger = py.import("logging")?.call_method1("getLogger", (&line.target,))?;
    logger.call_method1("log", (level, "%s", &line.text)).map(|_| ())
}
