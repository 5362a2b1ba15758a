//! The journal as Arrow batches, for the data source for Spark and for `Journal.read_arrow`.

use std::path::PathBuf;
use std::sync::Arc;

use arrow_array::ffi_stream::FFI_ArrowArrayStream;
use arrow_array::{RecordBatch, RecordBatchReader};
use arrow_schema::{ArrowError, SchemaRef};
use parking_lot::Mutex;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyCapsule};
use quire_arrow::{Bounds, Lifetimes, Plan, Positions, Scan, ScanError, ScanSpec, Skipped, SpecError};
use quire_client::Failure;
use quire_journal::{AllTopics, Bookmark, Position, Reader, Timestamp};

use crate::engine::journal_code;
use crate::errors;
use crate::interpreter;
use crate::journal::to_python;
use crate::journal_reader::JournalReader;

/// A journal directory, opened for reading while another process may write to it. Positions are numbers. Ranges are after `after`, up to
/// `limit`.
#[pyclass(frozen, module = "quire._quire")]
pub struct ArrowReader {
    reader: Reader,
}

#[pymethods]
impl ArrowReader {
    #[new]
    #[pyo3(signature = (directory, archive=None))]
    fn new(py: Python<'_>, directory: PathBuf, archive: Option<PathBuf>) -> PyResult<Self> {
        let opened = interpreter::outside(py, || Reader::open_with_archive(directory, archive.as_deref()));
        opened.map(|reader| ArrowReader { reader }).map_err(|error| to_python(py, &error))
    }

    /// The same journal as another reader has.
    #[staticmethod]
    fn of(reader: &JournalReader) -> Self {
        ArrowReader { reader: reader.reader().clone() }
    }

    /// The first position that can be read.
    #[getter]
    fn first(&self) -> u64 {
        self.reader.first().get()
    }

    /// The last position that was read so far.
    #[getter]
    fn last(&self) -> u64 {
        self.reader.persisted().get()
    }

    /// Looks for new records. Returns the last position.
    fn refresh(&self, py: Python<'_>) -> PyResult<u64> {
        interpreter::outside(py, || self.reader.refresh()).map_err(|error| to_python(py, &error))?;
        Ok(self.last())
    }

    /// The position of the message with this bookmark, if the log has it.
    fn find(&self, py: Python<'_>, bookmark: &str) -> PyResult<Option<u64>> {
        let bookmark: Bookmark = bookmark
            .parse()
            .map_err(|error| errors::new_error(py, "bad_bookmark", &format!("{bookmark:?}: {error}"), 0))?;
        let found =
            interpreter::outside(py, || self.reader.find(bookmark)).map_err(|error| to_python(py, &error))?;
        Ok(found.map(Position::get))
    }

    /// The position of the last record taken at or before the instant.
    fn position_before(&self, py: Python<'_>, timestamp_ns: u64) -> PyResult<u64> {
        let at = Timestamp::from_ns(timestamp_ns);
        let found = interpreter::outside(py, || self.reader.position_before(at))
            .map_err(|error| to_python(py, &error))?;
        Ok(found.get())
    }

    /// Bookmark and time of the record at a position, if it can be read.
    fn identity(&self, py: Python<'_>, position: u64) -> PyResult<Option<(String, u64)>> {
        let Some(before) = position.checked_sub(1).map(Position::new) else { return Ok(None) };
        let read =
            interpreter::outside(py, || self.reader.cursor(before).next(Position::new(position), &AllTopics));
        let batch = read.map_err(|error| to_python(py, &error))?;
        let record = batch.as_ref().and_then(|batch| batch.records().next());
        let record = record.filter(|record| record.position.get() == position);
        Ok(record.map(|record| (record.bookmark().to_string(), record.timestamp.as_ns())))
    }

    /// The part of a range that can contain the records of the spec.
    fn narrow(&self, py: Python<'_>, spec: &str, after: u64, limit: u64) -> PyResult<(u64, u64)> {
        let plan = plan(py, spec)?;
        let narrowed = interpreter::outside(py, || plan.narrow(&self.reader, bounds(after, limit)));
        let Bounds { after, limit } = narrowed.map_err(|error| to_python(py, &error))?;
        Ok((after.get(), limit.get()))
    }

    /// Cuts a range into parts to be read in parallel: after, limit and bytes of each.
    fn split(
        &self,
        py: Python<'_>,
        spec: &str,
        after: u64,
        limit: u64,
        part_size: u64,
        part_count_min: u64,
    ) -> PyResult<Vec<(u64, u64, u64)>> {
        let plan = plan(py, spec)?;
        let parts = interpreter::outside(py, || {
            plan.split(&self.reader, bounds(after, limit), part_size, part_count_min)
        });
        Ok(parts.iter().map(|part| (part.bounds.after.get(), part.bounds.limit.get(), part.size)).collect())
    }

    /// The last position of about `size` bytes of the log after `after`.
    fn limit_by_size(&self, py: Python<'_>, after: u64, limit: u64, size: u64) -> u64 {
        interpreter::outside(py, || Plan::limit_by_size(&self.reader, bounds(after, limit), size)).get()
    }

    /// The newest message of each key of a topic, of those whose lifetime is not over at an instant. `lifetime_ns` is the lifetime of a
    /// message without an expiration. With `expires` false no message has a lifetime.
    #[pyo3(signature = (topic, after, limit, *, at_ns, expires, lifetime_ns))]
    #[expect(clippy::too_many_arguments, reason = "they are named in Python")]
    fn last_values(
        &self,
        py: Python<'_>,
        topic: &str,
        after: u64,
        limit: u64,
        at_ns: u64,
        expires: bool,
        lifetime_ns: Option<u64>,
    ) -> PyResult<LastValues> {
        let lifetimes = match (expires, lifetime_ns) {
            (false, _) => Lifetimes::Unlimited,
            (true, None) => Lifetimes::OfMessages,
            (true, Some(lifetime_ns)) => Lifetimes::AfterNs(lifetime_ns),
        };
        let (bounds, at) = (bounds(after, limit), Timestamp::from_ns(at_ns));
        let found =
            interpreter::outside(py, || quire_arrow::last_values(&self.reader, topic, bounds, lifetimes, at));
        found.map(|found| LastValues { found }).map_err(|error| to_python(py, &error))
    }

    /// Reads a range. With `positions`, only the messages at these positions of [`LastValues::between`].
    #[pyo3(signature = (spec, after, limit, positions=None))]
    fn scan(
        &self,
        py: Python<'_>,
        spec: &str,
        after: u64,
        limit: u64,
        positions: Option<Vec<u8>>,
    ) -> PyResult<ArrowScan> {
        let (plan, bounds) = (plan(py, spec)?, bounds(after, limit));
        let scan = interpreter::outside(py, || match positions {
            Some(positions) => plan.scan_at(&self.reader, bounds, Positions::new(positions)),
            None => plan.scan(&self.reader, bounds),
        });
        let scan = scan.map_err(|error| of_scan(py, &error))?;
        Ok(ArrowScan::of(Box::new(scan)))
    }
}

/// The newest message of each key of a topic, by their positions.
#[pyclass(frozen, module = "quire._quire")]
pub struct LastValues {
    found: quire_arrow::LastValues,
}

#[pymethods]
impl LastValues {
    /// The messages with a key that were read, and those without.
    #[getter]
    fn counts(&self) -> (u64, u64) {
        (self.found.keyed_count, self.found.keyless_count)
    }

    /// The positions in a range, for `ArrowReader.scan`. Empty when there is none.
    fn between<'py>(&self, py: Python<'py>, after: u64, limit: u64) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.found.between(bounds(after, limit)))
    }

    fn __len__(&self) -> usize {
        self.found.positions.len()
    }
}

/// A range of the log, read once through the Arrow C stream interface.
#[pyclass(frozen, module = "quire._quire")]
pub struct ArrowScan {
    batches: Mutex<Option<Box<dyn Batches>>>,
    outcome: Arc<Mutex<Outcome>>,
}

/// Where the batches of a scan come from.
pub trait Batches: Send {
    /// The columns.
    fn schema(&self) -> SchemaRef;

    /// The next batch; none after an error.
    fn next(&mut self) -> Option<Result<RecordBatch, ScanFailure>>;

    /// The ranges that were left out so far because they cannot be read.
    fn skipped(&self) -> &[Skipped] {
        &[]
    }
}

/// Why there are no more batches.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ScanFailure {
    /// The log cannot be read.
    #[error(transparent)]
    Scan(#[from] ScanError),
    /// The server, or the way to it.
    #[error(transparent)]
    Client(#[from] Failure),
}

/// The results that the consumer of the stream cannot see through its interface.
#[derive(Default)]
struct Outcome {
    error: Option<ScanFailure>,
    skipped: Vec<(u64, u64, String)>,
}

#[pymethods]
impl ArrowScan {
    /// The stream. It can be taken once.
    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        // A consumer may ask for another schema, and has to live with the one that there is.
        drop(requested_schema);
        let batches =
            self.batches.lock().take().ok_or_else(|| PyValueError::new_err("the scan was read already"))?;
        let stream = FFI_ArrowArrayStream::new(Box::new(Stream { batches, outcome: self.outcome.clone() }));
        PyCapsule::new_with_value(py, stream, c"arrow_array_stream")
    }

    /// The ranges that were left out so far because they cannot be read: first and last position, and the reason.
    #[getter]
    fn skipped(&self) -> Vec<(u64, u64, String)> {
        self.outcome.lock().skipped.clone()
    }

    /// The exception for the end of the stream, when it was an error.
    #[getter]
    fn error(&self, py: Python<'_>) -> Option<PyErr> {
        self.outcome.lock().error.as_ref().map(|error| match error {
            ScanFailure::Scan(error) => of_scan(py, error),
            ScanFailure::Client(failure) => errors::to_python(py, failure),
        })
    }
}

impl ArrowScan {
    /// A scan that was not read from yet.
    pub fn of(batches: Box<dyn Batches>) -> Self {
        ArrowScan { batches: Mutex::new(Some(batches)), outcome: Arc::default() }
    }
}

impl Batches for Scan {
    fn schema(&self) -> SchemaRef {
        Scan::schema(self)
    }

    fn next(&mut self) -> Option<Result<RecordBatch, ScanFailure>> {
        Iterator::next(self).map(|batch| batch.map_err(ScanFailure::Scan))
    }

    fn skipped(&self) -> &[Skipped] {
        Scan::skipped(self)
    }
}

struct Stream {
    batches: Box<dyn Batches>,
    outcome: Arc<Mutex<Outcome>>,
}

impl Iterator for Stream {
    type Item = Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        let batch = self.batches.next();
        let mut outcome = self.outcome.lock();
        for skipped in &self.batches.skipped()[outcome.skipped.len()..] {
            outcome.skipped.push((skipped.first.get(), skipped.last.get(), skipped.reason.clone()));
        }
        batch.map(|batch| {
            batch.map_err(|error| {
                outcome.error = Some(error.clone());
                ArrowError::ExternalError(Box::new(error))
            })
        })
    }
}

impl RecordBatchReader for Stream {
    fn schema(&self) -> SchemaRef {
        self.batches.schema()
    }
}

/// Checks a spec as a scan would.
#[pyfunction]
pub fn check_scan(py: Python<'_>, spec: &str) -> PyResult<()> {
    plan(py, spec).map(drop)
}

fn bounds(after: u64, limit: u64) -> Bounds {
    Bounds { after: Position::new(after), limit: Position::new(limit) }
}

pub(crate) fn plan(py: Python<'_>, spec: &str) -> PyResult<Plan> {
    ScanSpec::from_json(spec).and_then(Plan::new).map_err(|error| match &error {
        SpecError::Filter(filter) => errors::new_error(
            py,
            "bad_filter",
            &filter.reason,
            u32::try_from(filter.column).unwrap_or(u32::MAX),
        ),
        SpecError::Topic(_) => errors::new_error(py, "bad_topic", &error.to_string(), 0),
        _ => errors::new_error(py, "bad_option", &error.to_string(), 0),
    })
}

fn of_scan(py: Python<'_>, error: &ScanError) -> PyErr {
    let code = match error {
        ScanError::Journal(error) => journal_code(error),
        ScanError::Removed { .. } | ScanError::Short { .. } => "bookmark_not_found",
        ScanError::Null { .. } => "bad_option",
        ScanError::Batch { .. } => "internal",
    };
    errors::new_error(py, code, &error.to_string(), 0)
}
