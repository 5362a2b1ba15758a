//! Ranges of a log as Arrow batches.

use std::sync::Arc;

use arrow_array::ffi_stream::FFI_ArrowArrayStream;
use arrow_array::{RecordBatch, RecordBatchReader};
use arrow_schema::{ArrowError, DataType, Field, FieldRef, Fields, Schema, SchemaRef};
use parking_lot::Mutex;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;
use quire_arrow::{Bounds, Plan, Scan, ScanError, ScanSpec, Skipped, SpecError};
use quire_client::Failure;
use quire_journal::Position;

use crate::engine::journal_code;
use crate::errors;
use crate::interpreter;
use crate::journal_reader::JournalReader;
use crate::spark;

/// Reads the records after `after`, up to `limit`, that a spec asks for.
#[pyfunction]
pub fn scan_journal(
    py: Python<'_>,
    reader: &JournalReader,
    spec: &str,
    after: u64,
    limit: u64,
) -> PyResult<ArrowScan> {
    let plan = plan(py, spec)?;
    let bounds = Bounds { after: Position::new(after), limit: Position::new(limit) };
    let scan = interpreter::outside(py, || plan.scan(reader.reader(), bounds));
    let scan = scan.map_err(|error| of_scan(py, &error))?;
    Ok(ArrowScan::of(Box::new(scan)))
}

/// A range of the log, read once through the Arrow C stream interface.
#[pyclass(frozen, module = "quire._quire")]
pub struct ArrowScan {
    /// The names of the columns.
    #[pyo3(get)]
    names: Vec<String>,
    batches: Mutex<Option<Box<dyn Batches>>>,
    outcome: Arc<Mutex<Outcome>>,
}

/// The source of the batches of a scan.
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
    /// The server, or the connection to it, failed.
    #[error(transparent)]
    Client(#[from] Failure),
    /// A task of Spark.
    #[error(transparent)]
    Spark(quire_spark::failure::Failure),
}

/// The results that are not part of the interface of the stream.
#[derive(Default)]
struct Outcome {
    error: Option<ScanFailure>,
    skipped: Vec<(u64, u64, String)>,
}

#[pymethods]
impl ArrowScan {
    /// The stream. It can be taken once. The C interface ends a name at its first NUL, so the names
    /// of the stream have U+FFFD there.
    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        // A consumer may ask for another schema. It always gets this one.
        drop(requested_schema);
        let batches =
            self.batches.lock().take().ok_or_else(|| PyValueError::new_err("the scan was read already"))?;
        let stream = FFI_ArrowArrayStream::new(Box::new(Stream { batches, outcome: self.outcome.clone() }));
        PyCapsule::new_with_value(py, stream, c"arrow_array_stream")
    }

    /// The ranges that were left out so far because they cannot be read: first and last position,
    /// and the reason.
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
            ScanFailure::Spark(failure) => spark::raised(py, failure),
        })
    }
}

impl ArrowScan {
    /// A scan that was not read from yet.
    pub fn of(batches: Box<dyn Batches>) -> Self {
        let names = batches.schema().fields().iter().map(|field| field.name().clone()).collect();
        ArrowScan { names, batches: Mutex::new(Some(batches)), outcome: Arc::default() }
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
        let schema = self.batches.schema();
        let fields = without_nul(schema.fields());
        if fields == *schema.fields() { schema } else { Arc::new(Schema::new(fields)) }
    }
}

/// The fields with U+FFFD for each NUL in their names.
fn without_nul(fields: &Fields) -> Fields {
    fields.iter().map(field_without_nul).collect()
}

fn field_without_nul(field: &FieldRef) -> FieldRef {
    let renamed = |data_type| Arc::new(Field::clone(field).with_data_type(data_type));
    let field = match field.data_type() {
        DataType::Struct(members) => renamed(DataType::Struct(without_nul(members))),
        DataType::List(element) => renamed(DataType::List(field_without_nul(element))),
        DataType::Map(entries, is_sorted) => renamed(DataType::Map(field_without_nul(entries), *is_sorted)),
        _ => field.clone(),
    };
    if field.name().contains('\0') {
        return Arc::new(Field::clone(&field).with_name(field.name().replace('\0', "\u{fffd}")));
    }
    field
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
        ScanError::Batch { .. } | ScanError::Cancelled => "internal",
    };
    errors::new_error(py, code, &error.to_string(), 0)
}
