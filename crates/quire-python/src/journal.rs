//! A journal that a program appends to without a server.

use std::path::PathBuf;
use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use quire_driver::{Head, SharedJournal};
use quire_expression::message_type::MessageType;
use quire_journal::{Durability, JournalError, Options, Position, PublisherId, RecoveryProgress};

use crate::engine::journal_code;
use crate::errors;
use crate::fork::Handle;
use crate::headers;
use crate::interpreter;
use crate::journal_reader::JournalReader;
use crate::maintenance::JournalMaintenance;

/// A journal that is open for appending. Thread-safe.
#[pyclass(frozen, module = "quire._quire")]
pub struct Journal {
    handle: Handle<SharedJournal>,
}

/// The publisher: a client name, or its id in bookmarks.
#[derive(FromPyObject)]
pub enum Publisher {
    Id(u64),
    Name(String),
}

impl From<Publisher> for PublisherId {
    fn from(publisher: Publisher) -> Self {
        match publisher {
            Publisher::Id(id) => PublisherId::new(id),
            Publisher::Name(name) => PublisherId::of_client_name(&name),
        }
    }
}

#[pymethods]
impl Journal {
    /// Opens, or begins, the journal in a directory. It recovers the journal first and calls
    /// `on_progress(done_bytes, total_bytes)` meanwhile.
    #[new]
    #[pyo3(signature = (directory, *, archive_directory, journal_size, prepared_count, flush_interval, durability, on_progress=None))]
    #[allow(clippy::too_many_arguments)] // keywords on the other side
    fn new(
        py: Python<'_>,
        directory: PathBuf,
        archive_directory: Option<PathBuf>,
        journal_size: u64,
        prepared_count: usize,
        flush_interval: Duration,
        durability: &str,
        on_progress: Option<Py<PyAny>>,
    ) -> PyResult<Self> {
        let options = Options {
            archive_directory,
            segment_size: journal_size,
            prepared_segments: prepared_count,
            flush_interval,
            durability: if durability == "os" { Durability::Os } else { Durability::Fsync },
            ..Options::default()
        };
        let opened = interpreter::with_progress(py, on_progress, |report| {
            SharedJournal::open(&directory, &options, &mut |RecoveryProgress { done_bytes, total_bytes }| {
                report(done_bytes, total_bytes);
            })
        })?;
        let (journal, _) = opened.map_err(|error| to_python(py, &error))?;
        Ok(Journal { handle: Handle::new(journal) })
    }

    /// Appends, and returns one bookmark for each of `data`, `None` for a duplicate. Waits only
    /// when too many bytes wait for the disk.
    #[pyo3(signature = (topic, data, *, publisher, sequence, message_type, correlation_id, expiration_s, headers=None))]
    #[allow(clippy::too_many_arguments)] // keywords on the other side
    fn append(
        &self,
        py: Python<'_>,
        topic: &str,
        data: Vec<PyBackedBytes>,
        publisher: Publisher,
        sequence: Option<u64>,
        message_type: &str,
        correlation_id: Option<&str>,
        expiration_s: Option<u32>,
        headers: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Vec<Option<String>>> {
        self.handle.check_fork(py)?;
        let message_type = message_type_of(py, message_type)?;
        let headers = headers::from_python(py, headers)?;
        let head = Head {
            topic,
            message_type: message_type.code(),
            publisher: publisher.into(),
            correlation_id: correlation_id.unwrap_or_default().as_bytes(),
            headers: headers.as_headers(),
            expiration_s,
        };
        let journal = self.handle.value();
        let mut bookmarks = Vec::with_capacity(data.len());
        loop {
            let appended = interpreter::outside(py, || {
                let rest = data[bookmarks.len()..].iter().map(AsRef::as_ref);
                let after_some = |first: u64| {
                    let publisher = head.publisher;
                    let next = first.checked_add(bookmarks.len() as u64);
                    next.ok_or(JournalError::SequencesEnd { publisher })
                };
                let sequence = sequence.map(after_some).transpose()?;
                journal.append(&head, sequence, rest, &mut bookmarks)
            });
            appended.map_err(|error| to_python(py, &error))?;
            if bookmarks.len() == data.len() {
                break;
            }
            let room = interpreter::wait(py, None, |slice| {
                journal.wait_for_room(slice).map(|is_there| is_there.then_some(())).transpose()
            })?;
            room.transpose().map_err(|error| to_python(py, &error))?;
        }
        Ok(bookmarks.into_iter().map(|bookmark| bookmark.map(|bookmark| bookmark.to_string())).collect())
    }

    /// Waits until everything appended so far is persistent; false after `timeout` seconds.
    #[pyo3(signature = (timeout=None))]
    fn flush(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        self.handle.check_fork(py)?;
        let journal = self.handle.value();
        let position = journal.appended().map_err(|error| to_python(py, &error))?;
        let done = interpreter::wait(py, interpreter::timeout(timeout), |slice| {
            journal.wait_persisted(position, slice).map(|is_persisted| is_persisted.then_some(())).transpose()
        })?;
        done.transpose().map(|done| done.is_some()).map_err(|error| to_python(py, &error))
    }

    /// The position of the last record appended.
    #[getter]
    fn appended(&self, py: Python<'_>) -> PyResult<u64> {
        self.handle.check_fork(py)?;
        let appended = interpreter::outside(py, || self.handle.value().appended());
        appended.map(Position::get).map_err(|error| to_python(py, &error))
    }

    /// The highest sequence of a publisher, 0 = none.
    fn highest_sequence(&self, py: Python<'_>, publisher: Publisher) -> PyResult<u64> {
        self.handle.check_fork(py)?;
        let publisher = publisher.into();
        interpreter::outside(py, || self.handle.value().highest_sequence(publisher))
            .map_err(|error| to_python(py, &error))
    }

    /// Read access.
    fn reader(&self) -> JournalReader {
        JournalReader::new(self.handle.value().reader())
    }

    /// For archiving, compressing and removing its full files.
    fn maintenance(&self, py: Python<'_>) -> PyResult<JournalMaintenance> {
        self.handle.check_fork(py)?;
        let maintenance = interpreter::outside(py, || self.handle.value().maintenance());
        maintenance.map(JournalMaintenance::new).map_err(|error| to_python(py, &error))
    }

    /// Makes everything appended persistent and unlocks the directory. A second call has no effect.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        if self.handle.is_forked() {
            return Ok(());
        }
        interpreter::outside(py, || self.handle.value().close()).map_err(|error| to_python(py, &error))
    }
}

/// The exception for an error of the journal.
pub fn to_python(py: Python<'_>, error: &JournalError) -> PyErr {
    match error {
        JournalError::Closed => PyValueError::new_err("the journal is closed"),
        JournalError::BadOption { option, reason } => errors::bad_option(py, option, reason),
        _ => errors::new_error(py, journal_code(error), &error.to_string(), 0),
    }
}

/// The message type with this name.
pub fn message_type_of(py: Python<'_>, name: &str) -> PyResult<MessageType> {
    MessageType::from_name(name).ok_or_else(|| {
        let known: Vec<_> = MessageType::ALL.iter().map(|known| known.name()).collect();
        let reason = format!("{name:?} is not one of {}", known.join(", "));
        errors::bad_option(py, "message_type", &reason)
    })
}
