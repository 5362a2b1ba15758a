//! A batch read of a frame.

use quire_types::Timestamp;
use serde::Serialize;

use crate::failure::{Failure, Outcome};
use crate::schema::Schema;

/// What is read of a frame.
#[derive(Clone, Debug)]
pub struct Read {}

/// What the scan does with a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Taken {
    /// It ignores it.
    None,
    /// It leaves out some rows that do not meet it.
    Partial,
    /// It leaves out every row that does not meet it.
    Exact,
}

/// The most that a scan reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Statistics {
    /// Bytes of the blocks.
    pub bytes: u64,
    /// Positions.
    pub rows: u64,
}

/// The tasks of a read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Planned {
    /// Texts for `TaskScan::open`.
    pub tasks: Vec<String>,
    /// What a user should know.
    pub warnings: Vec<String>,
}

impl Read {
    /// Reads the description.
    pub fn from_json(_text: &str) -> Outcome<Self> {
        Err(Failure::internal("not built"))
    }

    /// Checks columns and filter.
    pub fn check(&self, _now: Timestamp) -> Outcome<()> {
        Err(Failure::internal("not built"))
    }

    /// What the scan does with each condition.
    pub fn push(&self) -> Outcome<Vec<Taken>> {
        Err(Failure::internal("not built"))
    }

    /// The columns of partial aggregates; `None` when the aggregation is not taken.
    pub fn aggregated(&self) -> Outcome<Option<Schema>> {
        Err(Failure::internal("not built"))
    }

    /// How much is read at most.
    pub fn statistics(&self, _now: Timestamp) -> Outcome<Statistics> {
        Err(Failure::internal("not built"))
    }

    /// Cuts the read into tasks.
    pub fn plan(&self, _now: Timestamp) -> Outcome<Planned> {
        Err(Failure::internal("not built"))
    }
}
