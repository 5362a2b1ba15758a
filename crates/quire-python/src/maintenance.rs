//! Archiving, compressing and removing journal files, one at a time, so that a signal is seen
//! between two of them.

use std::path::PathBuf;
use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use quire_command::LinkAction;
use quire_driver::Clock;
use quire_journal::{Action, Which};
use quire_types::Files;

use crate::fork::Handle;
use crate::interpreter;
use crate::journal::to_python;
use crate::journal_reader::{SegmentFields, fields_of};

/// Archives, compresses and removes the full files of a journal that no server runs on.
#[pyclass(frozen, module = "quire._quire")]
pub struct JournalMaintenance {
    handle: Handle<quire_journal::FileMaintenance>,
}

impl JournalMaintenance {
    pub fn new(maintenance: quire_journal::FileMaintenance) -> Self {
        JournalMaintenance { handle: Handle::new(maintenance) }
    }
}

#[pymethods]
impl JournalMaintenance {
    /// Locks a stopped journal until the object is dropped. Recovers it first.
    #[new]
    #[pyo3(signature = (directory, archive_directory))]
    fn open(py: Python<'_>, directory: PathBuf, archive_directory: Option<PathBuf>) -> PyResult<Self> {
        let opened = interpreter::outside(py, || {
            quire_journal::FileMaintenance::open_stopped(
                &directory,
                archive_directory.as_deref(),
                &mut |_| (),
            )
        });
        opened
            .map(|(maintenance, _)| JournalMaintenance::new(maintenance))
            .map_err(|error| to_python(py, &error))
    }

    /// Accepts that the oldest files of a stopped journal are missing. Returns the number of the
    /// first missing file, if it is known, and of the last one. `None` when no file is missing.
    #[staticmethod]
    fn give_up_missing(
        py: Python<'_>,
        directory: PathBuf,
        archive_directory: Option<PathBuf>,
    ) -> PyResult<Option<(Option<u32>, u32)>> {
        let given_up = interpreter::outside(py, || {
            quire_journal::FileMaintenance::give_up_missing(directory, archive_directory.as_deref())
        });
        given_up.map_err(|error| to_python(py, &error))
    }

    /// The directory to which files are archived; `None` when it is unknown.
    #[getter]
    fn archive_directory(&self) -> Option<&std::path::Path> {
        self.handle.value().archive_directory()
    }

    /// Processes the oldest selected file. With `dry_run` it changes no file and returns every
    /// selected file. Files that queues need stay. Returns no file when none is selected, or when
    /// the file must stay.
    fn maintain(
        &self,
        py: Python<'_>,
        action: &str,
        age: Option<Duration>,
        size_max: Option<u64>,
        dry_run: bool,
    ) -> PyResult<Vec<SegmentFields>> {
        self.handle.check_fork(py)?;
        let maintenance = self.handle.value();
        let (action, which) = (action_of(action)?, which_of(age, size_max)?);
        let files = interpreter::outside(py, || {
            if dry_run {
                return Ok(maintenance.plan(action, which, None));
            }
            let taken = maintenance.take_next(action, which, None)?;
            Ok(taken.into_iter().collect())
        });
        let files = files.map_err(|error| to_python(py, &error))?;
        Ok(files.into_iter().map(fields_of).collect())
    }
}

/// Files older than an age, or the oldest files above a total size.
fn which_of(age: Option<Duration>, size_max: Option<u64>) -> PyResult<Which> {
    Ok(match files_of(age, size_max)? {
        Files::OlderThan(ns) => Which::older_than(Duration::from_nanos(ns), Clock::start().now().wall),
        Files::Beyond(size_max) => Which::Beyond { size_max },
    })
}

/// The same selection as in a command to a server.
pub fn files_of(age: Option<Duration>, size_max: Option<u64>) -> PyResult<Files> {
    match (age, size_max) {
        (Some(age), None) => Ok(Files::OlderThan(u64::try_from(age.as_nanos()).unwrap_or(u64::MAX))),
        (None, Some(size_max)) => Ok(Files::Beyond(size_max)),
        _ => Err(PyValueError::new_err("either age or size_max")),
    }
}

/// `"archive"`, `"compress"` or `"remove"`.
pub fn action_of(name: &str) -> PyResult<Action> {
    match name {
        "archive" => Ok(Action::Archive),
        "compress" => Ok(Action::Compress),
        "remove" => Ok(Action::Remove),
        _ => Err(PyValueError::new_err(format!("{name:?} is not 'archive', 'compress' or 'remove'"))),
    }
}

/// `"downgrade"`, `"upgrade"`, `"pause"`, `"resume"`, `"admit"`, `"accept"` or `"compare"`.
pub fn link_action(name: &str) -> PyResult<LinkAction> {
    match name {
        "downgrade" => Ok(LinkAction::Downgrade),
        "upgrade" => Ok(LinkAction::Upgrade),
        "pause" => Ok(LinkAction::Pause),
        "resume" => Ok(LinkAction::Resume),
        "compare" => Ok(LinkAction::Compare),
        "admit" => Ok(LinkAction::Admit),
        "accept" => Ok(LinkAction::Accept),
        _ => Err(PyValueError::new_err(format!(
            "{name:?} is not 'downgrade', 'upgrade', 'pause', 'resume', 'admit', 'accept' or 'compare'"
        ))),
    }
}
