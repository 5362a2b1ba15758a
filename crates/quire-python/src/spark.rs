//! The reads of Spark, for the data source in Python. It uses the texts of
//! `docs/internals/spark-reader.md`.

use std::collections::BTreeMap;

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use parking_lot::Mutex;
use pyo3::prelude::*;
use quire_arrow::Skipped;
use quire_spark::failure::{Failure, Outcome};
use quire_spark::frame::Frame;
use quire_spark::journals::{self, Identity, Range};
use quire_spark::options::{ReadOptions, WriteOptions};
use quire_spark::read::{Planned, Read};
use quire_spark::stream::{Limit, Stream};
use quire_spark::task::TaskScan;
use quire_spark::{clock, columns};
use serde::Serialize;
use serde_json::Value;

use crate::arrow::{ArrowScan, Batches, ScanFailure};
use crate::errors;
use crate::interpreter;

/// Texts of tasks, and warnings.
type Tasks = (Vec<String>, Vec<String>);

type Options = BTreeMap<String, String>;

/// The options of a read as JSON.
#[pyfunction]
pub fn spark_read_options(py: Python<'_>, options: Options) -> PyResult<String> {
    ReadOptions::new(&options).and_then(|options| json(&options)).map_err(|failure| raised(py, &failure))
}

/// The options of a write as JSON.
#[pyfunction]
pub fn spark_write_options(py: Python<'_>, options: Options) -> PyResult<String> {
    WriteOptions::new(&options).and_then(|options| json(&options)).map_err(|failure| raised(py, &failure))
}

/// The names of the columns that an option defines.
#[pyfunction]
pub fn spark_columns(py: Python<'_>, option: &str, definitions: &str) -> PyResult<Vec<String>> {
    let defined = columns::defined_by(option, definitions).map_err(|failure| raised(py, &failure))?;
    Ok(defined.into_iter().map(|column| column.name).collect())
}

/// A frame. With `is_stream` it has no range.
#[pyfunction]
#[pyo3(signature = (options, *, is_stream=false))]
pub fn spark_frame(py: Python<'_>, options: Options, is_stream: bool) -> PyResult<String> {
    outside(py, || {
        let frame = match is_stream {
            true => Frame::of_stream(&options)?,
            false => Frame::new(&options, clock::now().wall)?,
        };
        json(&frame)
    })
}

/// The schema of a frame, as Spark writes it.
#[pyfunction]
pub fn spark_schema(py: Python<'_>, frame: &str) -> PyResult<String> {
    outside(py, || Ok(Frame::from_json(frame)?.schema()?.to_json()))
}

/// Opens a task.
#[pyfunction]
pub fn spark_scan(py: Python<'_>, task: &str) -> PyResult<ArrowScan> {
    let scan = outside(py, || TaskScan::open(task))?;
    Ok(ArrowScan::of(Box::new(TaskBatches { scan, skipped: Vec::new() })))
}

/// A read of a frame.
#[pyclass(frozen, module = "quire._quire")]
pub struct SparkRead {
    read: Read,
}

#[pymethods]
impl SparkRead {
    #[new]
    fn new(py: Python<'_>, read: &str) -> PyResult<Self> {
        outside(py, || Ok(SparkRead { read: Read::from_json(read)? }))
    }

    /// The scan, for ranges of a server. Raises for mistakes in the columns and the filter.
    fn spec(&self, py: Python<'_>) -> PyResult<String> {
        outside(py, || self.read.spec(clock::now().wall))
    }

    /// The topics that the conditions leave, when they name some.
    fn topics(&self, py: Python<'_>) -> PyResult<Option<Vec<String>>> {
        outside(py, || self.read.topics())
    }

    /// The tasks of the frame, and warnings.
    fn plan(&self, py: Python<'_>) -> PyResult<Tasks> {
        outside(py, || Ok(tasks(self.read.plan(clock::now().wall)?)))
    }

    /// The tasks of a part of the frame: the records after `after`, up to `limit`.
    fn plan_part(&self, py: Python<'_>, directory: &str, after: u64, limit: u64) -> PyResult<Tasks> {
        outside(py, || {
            let archive = self.read.frame.options.archive.clone();
            let range =
                Range { directory: directory.to_owned(), archive, after, limit, at: None, at_ns: None };
            Ok(tasks(self.read.plan_ranges(&[range], clock::now().wall)?))
        })
    }
}

/// A streaming query. Offsets are JSON.
#[pyclass(frozen, module = "quire._quire")]
pub struct SparkStream {
    stream: Mutex<Stream>,
}

#[pymethods]
impl SparkStream {
    #[new]
    fn new(py: Python<'_>, read: &str) -> PyResult<Self> {
        outside(py, || {
            Ok(SparkStream { stream: Mutex::new(Stream::new(Read::from_json(read)?, clock::now())?) })
        })
    }

    fn initial(&self, py: Python<'_>) -> PyResult<String> {
        outside(py, || self.stream.lock().initial(clock::now().wall)?.to_json())
    }

    /// The number of messages of a batch without another limit.
    fn limit(&self) -> u64 {
        match self.stream.lock().default_limit() {
            Limit::Rows(rows) => rows,
            Limit::Bytes(_) | Limit::All(_) => u64::MAX,
        }
    }

    fn available_now(&self, py: Python<'_>) -> PyResult<()> {
        outside(py, || self.stream.lock().available_now())
    }

    /// The end of the next batch; `None` when there is none.
    fn latest(&self, py: Python<'_>, request: &str) -> PyResult<Option<String>> {
        outside(py, || {
            let offset = self.stream.lock().latest(&parse(request)?, clock::now())?;
            offset.map(|offset| offset.to_json()).transpose()
        })
    }

    /// The ends of the journals, as an offset.
    fn newest(&self, py: Python<'_>) -> PyResult<String> {
        outside(py, || self.stream.lock().newest(clock::now().instant)?.to_json())
    }

    fn plan(&self, py: Python<'_>, batch: &str) -> PyResult<Tasks> {
        outside(py, || Ok(tasks(self.stream.lock().plan(&parse(batch)?, clock::now().wall)?)))
    }
}

/// A journal directory, for jobs.
#[pyclass(frozen, module = "quire._quire")]
pub struct SparkJournal {
    #[pyo3(get)]
    directory: String,
    archive: Option<String>,
}

#[pymethods]
impl SparkJournal {
    /// Finds the journal directory.
    #[new]
    #[pyo3(signature = (directory, archive=None))]
    fn new(py: Python<'_>, directory: &str, archive: Option<String>) -> PyResult<Self> {
        outside(py, || Ok(SparkJournal { directory: journals::locate(directory)?, archive }))
    }

    /// The first and the last position.
    fn bounds(&self, py: Python<'_>) -> PyResult<(u64, u64)> {
        outside(py, || {
            let found = journals::refreshed(&self.directory, self.archive.as_deref())?;
            Ok((found.first().get(), found.persisted().get()))
        })
    }

    /// Bookmark and time of the record at a position, if it can be read.
    fn identity(&self, py: Python<'_>, position: u64) -> PyResult<Option<Identity>> {
        outside(py, || {
            Ok(journals::identity(&journals::reader(&self.directory, self.archive.as_deref())?, position))
        })
    }

    /// Raises when the record at this position is another one: it is another journal.
    fn check(&self, py: Python<'_>, position: u64, at: Option<Identity>) -> PyResult<()> {
        outside(py, || journals::reader_of(&self.range(position, position, at)).map(drop))
    }

    /// The position after which the range begins now, and warnings, if files were removed. With
    /// `fails`, removed messages are an error.
    fn retained(&self, py: Python<'_>, after: u64, limit: u64, fails: bool) -> PyResult<(u64, Vec<String>)> {
        outside(py, || {
            let found = journals::reader(&self.directory, self.archive.as_deref())?;
            let mut warnings = Vec::new();
            let after = journals::retained(&found, &self.range(after, limit, None), fails, &mut warnings)?;
            Ok((after, warnings))
        })
    }
}

impl SparkJournal {
    fn range(&self, after: u64, limit: u64, at: Option<Identity>) -> Range {
        let (directory, archive) = (self.directory.clone(), self.archive.clone());
        Range { directory, archive, after, limit, at, at_ns: None }
    }
}

/// The batches of a task.
struct TaskBatches {
    scan: TaskScan,
    skipped: Vec<Skipped>,
}

impl Batches for TaskBatches {
    fn schema(&self) -> SchemaRef {
        self.scan.schema()
    }

    fn next(&mut self) -> Option<Result<RecordBatch, ScanFailure>> {
        let batch = self.scan.next_batch().transpose();
        self.skipped.extend(self.scan.skipped());
        batch.map(|batch| batch.map_err(ScanFailure::Spark))
    }

    fn skipped(&self) -> &[Skipped] {
        &self.skipped
    }
}

/// The exception for a failure.
pub fn raised(py: Python<'_>, failure: &Failure) -> PyErr {
    let column = u32::try_from(failure.column).unwrap_or(u32::MAX);
    errors::from_code(py, &failure.code, &failure.text, column, failure.key)
}

fn outside<T: Send>(py: Python<'_>, run: impl FnOnce() -> Outcome<T> + Send) -> PyResult<T> {
    interpreter::outside(py, run).map_err(|failure| raised(py, &failure))
}

fn tasks(planned: Planned) -> Tasks {
    (planned.tasks, planned.warnings)
}

fn json(value: &impl Serialize) -> Outcome<String> {
    serde_json::to_string(value).map_err(|error| Failure::internal(error.to_string()))
}

fn parse<T: for<'de> serde::Deserialize<'de>>(text: &str) -> Outcome<T> {
    let value: Value = serde_json::from_str(text).map_err(|error| Failure::option(error.to_string()))?;
    serde_json::from_value(value).map_err(|error| Failure::option(format!("{text} cannot be read: {error}")))
}
