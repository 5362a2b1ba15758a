//! Rows from received messages, instead of messages in a log on this machine.

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use quire_journal::Record;

use crate::builder::Table;
use crate::plan::Plan;
use crate::scan::{Matcher, ScanError};

/// Collects messages into batches. The caller applies the order and the range of the log that the
/// spec contains.
///
/// Add messages until [`Collector::is_full`], and then take the batch. At the end, take the rest.
pub struct Collector {
    plan: Plan,
    matcher: Matcher,
    table: Table,
}

impl Collector {
    /// An empty batch.
    pub fn new(plan: Plan) -> Self {
        Collector { matcher: Matcher::default(), table: Table::new(&plan.0), plan }
    }

    /// The columns.
    pub fn schema(&self) -> SchemaRef {
        self.plan.schema()
    }

    /// Makes a row of the message, if it is wanted.
    pub fn add(&mut self, message: &Record<'_>) {
        self.matcher.row(&self.plan.0, message, &mut self.table);
    }

    /// Whether the batch has as many rows or bytes as the spec allows.
    pub fn is_full(&self) -> bool {
        self.table.is_full(&self.plan.0)
    }

    /// The rows so far, if there are any. The next ones begin another batch.
    ///
    /// # Errors
    /// [`ScanError::Null`], [`ScanError::Batch`].
    pub fn take(&mut self) -> Result<Option<RecordBatch>, ScanError> {
        if self.table.row_count() == 0 {
            return Ok(None);
        }
        self.table.finish(&self.plan.0).map(Some)
    }
}
