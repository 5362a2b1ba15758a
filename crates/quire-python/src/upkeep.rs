//! Archiving, compressing and removing journal files, one at a time, so that a signal is seen between two of them.

use std::path::PathBuf;
use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use quire_core::wire::Files;
use quire_driver::Clock;
use quire_journal::{Action, Position, Which};

use crate::journal::to_python;
use crate::journal_reader::{SegmentFields, fields_of};

/// Takes care of the full files of one journal.
#[pyclass(frozen, module = "quire._quire")]
pub struct Upkeep {
    upkeep: quire_journal::Upkeep,
}

impl Upkeep {
    pub fn new(upkeep: quire_journal::Upkeep) -> Self {
        Upkeep { upkeep }
    }
}

#[pymethods]
impl Upkeep {
    /// Takes a stopped journal, and recovers it, until the object is gone.
    #[new]
    #[pyo3(signature = (directory, archive_directory))]
    fn open(py: Python<'_>, directory: PathBuf, archive_directory: Option<PathBuf>) -> PyResult<Self> {
        let opened = py.detach(|| {
            quire_journal::Upkeep::open_stopped(&directory, archive_directory.as_deref(), &mut |_| ())
        });
        opened.map(|(upkeep, _)| Upkeep { upkeep }).map_err(|error| to_python(py, &error))
    }

    /// Gives up the oldest files of a stopped journal that are missing: number of the first, if that is known, and the last of them; `None`
    /// when no file is missing.
    #[staticmethod]
    fn give_up_missing(
        py: Python<'_>,
        directory: PathBuf,
        archive_directory: Option<PathBuf>,
    ) -> PyResult<Option<(Option<u32>, u32)>> {
        let given_up =
            py.detach(|| quire_journal::Upkeep::give_up_missing(directory, archive_directory.as_deref()));
        given_up.map_err(|error| to_python(py, &error))
    }

    /// Where files are archived to; `None` when that is not known.
    #[getter]
    fn archive_directory(&self) -> Option<&std::path::Path> {
        self.upkeep.archive_directory()
    }

    /// Takes the oldest file that is meant, and gives it; `None` when there is none, or it must stay.
    fn take_next(
        &self,
        py: Python<'_>,
        action: &str,
        age: Option<Duration>,
        size_max: Option<u64>,
        keep_from: Option<u64>,
    ) -> PyResult<Option<SegmentFields>> {
        let (action, which) = (action_of(action)?, which_of(age, size_max)?);
        let taken = py.detach(|| self.upkeep.take_next(action, which, keep_from.map(Position::new)));
        taken.map(|segment| segment.map(fields_of)).map_err(|error| to_python(py, &error))
    }

    /// The first position that a queue of a stopped journal still needs.
    fn queues_need(&self, py: Python<'_>) -> Option<u64> {
        py.detach(|| self.upkeep.queues_need()).map(Position::get)
    }

    /// What would be taken now.
    fn plan(
        &self,
        py: Python<'_>,
        action: &str,
        age: Option<Duration>,
        size_max: Option<u64>,
        keep_from: Option<u64>,
    ) -> PyResult<Vec<SegmentFields>> {
        let (action, which) = (action_of(action)?, which_of(age, size_max)?);
        let planned = py.detach(|| self.upkeep.plan(action, which, keep_from.map(Position::new)));
        Ok(planned.into_iter().map(fields_of).collect())
    }
}

/// Those older than an age, or those beyond a size in all.
fn which_of(age: Option<Duration>, size_max: Option<u64>) -> PyResult<Which> {
    Ok(match files_of(age, size_max)? {
        Files::OlderThan(ns) => Which::older_than(Duration::from_nanos(ns), Clock::start().now().wall),
        Files::Beyond(size_max) => Which::Beyond { size_max },
    })
}

/// The same as it is said to a server.
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
