//! One task: a part of a range as batches.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow_array::cast::AsArray;
use arrow_array::{Array, RecordBatch, RecordBatchReader};
use arrow_schema::{ArrowError, DataType, SchemaRef};
use parking_lot::Mutex;
use quire_arrow::{Bounds, Plan, Positions, Scan, ScanError, ScanProgress, ScanSpec, Skipped};
use quire_journal::AllTopics;
use serde::{Deserialize, Serialize};

use crate::failure::{Failure, Outcome};
use crate::frame::{VERSION, check_version};
use crate::journals::{Range, reader_of};
use crate::read::bounds;

/// A part of a read, which can be sent to other processes.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Task {
    version: String,
    range: Range,
    spec: ScanSpec,
    /// The messages that are read, if not all are: the distance of each position from the previous
    /// one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    positions: Option<Vec<u64>>,
    /// The task may end after this number of rows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    rows: Option<u64>,
}

impl Task {
    pub fn new(range: Range, spec: ScanSpec, positions: Option<Vec<u64>>, rows: Option<u64>) -> Self {
        Task { version: VERSION.to_owned(), range, spec, positions, rows }
    }

    pub fn to_json(&self) -> Outcome<String> {
        serde_json::to_string(self).map_err(|error| Failure::internal(error.to_string()))
    }

    fn from_json(text: &str) -> Outcome<Self> {
        check_version(text)?;
        serde_json::from_str(text)
            .map_err(|error| Failure::option(format!("the task cannot be read: {error}")))
    }
}

/// Numbers of a scan: records, rows, batches of the log, their bytes, skipped blocks, bytes of
/// skipped blocks.
pub type Metrics = [i64; 6];

/// The part of a scan that other threads use.
#[derive(Debug)]
pub struct TaskControl {
    progress: Arc<ScanProgress>,
    rows: AtomicU64,
    skipped_blocks: u64,
    skipped_bytes: u64,
}

impl TaskControl {
    /// Ends the scan before its next block.
    pub fn cancel(&self) {
        self.progress.cancel();
    }

    /// The numbers so far.
    pub fn metrics(&self) -> Metrics {
        let number = |number: &AtomicU64| number.load(Ordering::Relaxed) as i64;
        let ScanProgress { records, batches, bytes, .. } = &*self.progress;
        [
            number(records),
            number(&self.rows),
            number(batches),
            number(bytes),
            self.skipped_blocks as i64,
            self.skipped_bytes as i64,
        ]
    }
}

/// A task that is read.
pub struct TaskScan {
    directory: String,
    control: Arc<TaskControl>,
    schema: SchemaRef,
    /// `None` when another reader has it.
    batches: Option<Batches>,
    /// Warnings of `batches`.
    warnings: Arc<Mutex<VecDeque<Skipped>>>,
    /// The batch whose addresses the caller has.
    batch: Option<RecordBatch>,
    /// A batch that did not fit into the room of the caller.
    waiting: Option<RecordBatch>,
}

/// The batches of a task.
struct Batches {
    scan: Scan,
    control: Arc<TaskControl>,
    rows_left: Option<u64>,
    told: usize,
    warnings: Arc<Mutex<VecDeque<Skipped>>>,
}

impl TaskScan {
    /// Opens the journal of a task.
    pub fn open(task: &str) -> Outcome<Self> {
        let Task { range, spec, positions, rows, .. } = Task::from_json(task)?;
        let plan = Plan::new(spec).map_err(|error| Failure::option(error.to_string()))?;
        let reader = reader_of(&range)?;
        let bounds = bounds(range.after, range.limit);
        let (mut skipped_blocks, mut skipped_bytes) = count(&reader, bounds, &AllTopics);
        let (blocks, bytes) = count(&reader, bounds, plan.topics());
        skipped_blocks -= blocks.min(skipped_blocks);
        skipped_bytes -= bytes.min(skipped_bytes);
        let scan = match positions {
            Some(positions) => plan.scan_at(&reader, bounds, Positions::new(positions)),
            None => plan.scan(&reader, bounds),
        }?;
        let (blocks, bytes) = scan.counted_blocks();
        skipped_blocks += blocks;
        skipped_bytes += bytes;
        let control =
            TaskControl { progress: scan.progress(), rows: AtomicU64::new(0), skipped_blocks, skipped_bytes };
        let (control, warnings) = (Arc::new(control), Arc::default());
        Ok(TaskScan {
            directory: range.directory,
            schema: scan.schema(),
            batches: Some(Batches {
                scan,
                control: Arc::clone(&control),
                rows_left: rows,
                told: 0,
                warnings: Arc::clone(&warnings),
            }),
            control,
            warnings,
            batch: None,
            waiting: None,
        })
    }

    /// For other threads.
    pub fn control(&self) -> Arc<TaskControl> {
        self.control.clone()
    }

    /// The columns.
    pub fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }

    /// The next batch, `None` at the end.
    pub fn next_batch(&mut self) -> Outcome<Option<RecordBatch>> {
        let Some(batches) = &mut self.batches else {
            return Err(Failure::option("the scan was given to another reader"));
        };
        batches.next().transpose().map_err(Into::into)
    }

    /// Builds the next batch and writes its numbers (`docs/internals/spark-reader.md`, "Column
    /// numbers"). Returns its rows, 0 at the end.
    pub fn next_columns(&mut self, numbers: &mut [i64]) -> Outcome<i64> {
        self.batch = None;
        let batch = match self.waiting.take() {
            Some(batch) => batch,
            None => match self.next_batch()? {
                Some(batch) => batch,
                None => return Ok(0),
            },
        };
        let mut written = Vec::with_capacity(numbers.len());
        for column in batch.columns() {
            describe(column.as_ref(), &mut written)?;
        }
        if written.len() > numbers.len() {
            self.waiting = Some(batch);
            return Err(Failure::option(format!(
                "the columns have {} numbers, and there is room for {}",
                written.len(),
                numbers.len()
            )));
        }
        numbers[..written.len()].copy_from_slice(&written);
        let rows = batch.num_rows() as i64;
        self.batch = Some(batch);
        Ok(rows)
    }

    /// The ranges that were left out since the last call.
    pub fn skipped(&mut self) -> Vec<Skipped> {
        self.warnings.lock().drain(..).collect()
    }

    /// The warnings since the last call.
    pub fn warnings(&mut self) -> Vec<String> {
        let text = |skipped: Skipped| {
            let Skipped { first, last, reason } = skipped;
            format!("{}: messages {first} to {last} are left out: {reason}", self.directory)
        };
        self.warnings.lock().drain(..).map(text).collect()
    }

    /// The batches that were not read.
    pub fn take_batches(&mut self) -> Outcome<Box<dyn RecordBatchReader + Send>> {
        match self.batches.take() {
            Some(batches) => Ok(Box::new(batches)),
            None => Err(Failure::option("the scan was given to another reader")),
        }
    }
}

impl Iterator for Batches {
    type Item = Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rows_left == Some(0) {
            return None;
        }
        let batch = self.scan.next();
        let skipped = &self.scan.skipped()[self.told..];
        self.told += skipped.len();
        self.warnings.lock().extend(skipped.iter().cloned());
        let mut batch = match batch? {
            Ok(batch) => batch,
            Err(error) => return Some(Err(error.into())),
        };
        if let Some(left) = &mut self.rows_left {
            let rows = (*left).min(batch.num_rows() as u64);
            batch = batch.slice(0, rows as usize);
            *left -= rows;
        }
        self.control.rows.fetch_add(batch.num_rows() as u64, Ordering::Relaxed);
        Some(Ok(batch))
    }
}

impl RecordBatchReader for Batches {
    fn schema(&self) -> SchemaRef {
        self.scan.schema()
    }
}

/// Blocks and bytes in a range that may hold a wanted topic.
fn count(
    reader: &quire_journal::Reader,
    bounds: Bounds,
    topics: &dyn quire_journal::TopicFilter,
) -> (u64, u64) {
    let (mut blocks, mut bytes) = (0, 0);
    reader.for_each_block_range(bounds.after, bounds.limit, topics, |range| {
        blocks += 1;
        bytes += range.size;
        std::ops::ControlFlow::Continue(())
    });
    (blocks, bytes)
}

/// Writes the numbers of a column and of the columns in it.
fn describe(array: &dyn Array, written: &mut Vec<i64>) -> Outcome<()> {
    let data = array.to_data();
    let nulls = data.nulls().filter(|nulls| nulls.null_count() > 0);
    // Builders make arrays that begin at their first bit. A limit only shortens them.
    let is_at_begin = data.offset() == 0 && nulls.is_none_or(|nulls| nulls.offset() == 0);
    if !is_at_begin {
        return Err(Failure::internal("an array that does not begin at its first value"));
    }
    let address = |buffer: Option<&arrow_buffer::Buffer>| buffer.map_or(0, |buffer| buffer.as_ptr() as i64);
    let (mut values, mut bytes) = (address(data.buffers().first()), 0);
    match array.data_type() {
        DataType::Utf8 | DataType::Binary => bytes = address(data.buffers().get(1)),
        DataType::Struct(_) => values = 0,
        _ => (),
    }
    written.extend([
        nulls.map_or(0, |nulls| nulls.validity().as_ptr() as i64),
        nulls.map_or(0, |nulls| nulls.null_count() as i64),
        array.len() as i64,
        values,
        bytes,
    ]);
    match array.data_type() {
        DataType::Struct(_) => {
            array.as_struct().columns().iter().try_for_each(|column| describe(column, written))
        }
        DataType::Map(..) => {
            let map = array.as_map();
            describe(map.keys(), written)?;
            describe(map.values(), written)
        }
        DataType::List(_) => describe(array.as_list::<i32>().values(), written),
        _ => Ok(()),
    }
}

impl From<ScanError> for Failure {
    fn from(error: ScanError) -> Self {
        let text = error.to_string();
        match error {
            ScanError::Journal(error) => error.into(),
            ScanError::Removed { .. } | ScanError::Short { .. } => Failure::new("bookmark_not_found", text),
            ScanError::Null { .. } => Failure::option(text),
            ScanError::Cancelled => Failure::new("cancelled", text),
            ScanError::Batch { .. } => Failure::internal(text),
        }
    }
}

impl From<ArrowError> for Failure {
    fn from(error: ArrowError) -> Self {
        match &error {
            ArrowError::ExternalError(cause) => match cause.downcast_ref::<ScanError>() {
                Some(error) => error.clone().into(),
                None => Failure::internal(error.to_string()),
            },
            _ => Failure::internal(error.to_string()),
        }
    }
}
