//! One task: a part of a range as batches.

use std::sync::Arc;

use arrow_array::RecordBatchReader;

use crate::failure::{Failure, Outcome};

/// Numbers of a scan: records, rows, blocks, bytes of blocks, skipped blocks, bytes of skipped blocks.
pub type Metrics = [i64; 6];

/// What other threads may do with a scan.
#[derive(Debug, Default)]
pub struct TaskControl {}

impl TaskControl {
    /// Ends the scan before its next block.
    pub fn cancel(&self) {}

    /// The numbers so far.
    pub fn metrics(&self) -> Metrics {
        [0; 6]
    }
}

/// A task that is read.
pub struct TaskScan {
    control: Arc<TaskControl>,
}

impl TaskScan {
    /// Opens the journal of a task.
    pub fn open(_task: &str) -> Outcome<Self> {
        Err(Failure::internal("not built"))
    }

    /// For other threads.
    pub fn control(&self) -> Arc<TaskControl> {
        self.control.clone()
    }

    /// Builds the next batch and writes its numbers. Returns its rows, 0 at the end.
    pub fn next_columns(&mut self, _numbers: &mut [i64]) -> Outcome<i64> {
        Err(Failure::internal("not built"))
    }

    /// The warnings since the last call.
    pub fn warnings(&mut self) -> Vec<String> {
        Vec::new()
    }

    /// The batches that were not read.
    pub fn take_batches(&mut self) -> Outcome<Box<dyn RecordBatchReader + Send>> {
        Err(Failure::internal("not built"))
    }
}
