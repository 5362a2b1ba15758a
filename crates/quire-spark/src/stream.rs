//! Micro-batches.

use std::collections::BTreeMap;

use quire_types::Timestamp;
use quire_types::time::{Instant, Now};
use serde::{Deserialize, Serialize};

use crate::failure::{Failure, Outcome};
use crate::read::{Planned, Read};

/// A query over journals that grow.
pub struct Stream {}

/// The end of a batch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offset {}

/// The most that a batch may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    /// Messages.
    Rows(u64),
    /// Bytes of the log.
    Bytes(u64),
    /// Everything if `true`; otherwise the default limit.
    All(bool),
}

/// The question for the next batch.
#[derive(Clone, Debug, Deserialize)]
pub struct Latest {
    /// Where it begins.
    pub start: Offset,
    /// Its limit.
    pub limit: Option<Limit>,
}

/// A batch.
#[derive(Clone, Debug, Deserialize)]
pub struct Batch {
    /// Where it begins.
    pub start: Option<Offset>,
    /// Where it ends.
    pub end: Offset,
}

impl Stream {
    /// A query that begins or goes on.
    pub fn new(_read: Read, _now: Now) -> Outcome<Self> {
        Err(Failure::internal("not built"))
    }

    /// The offset at which the query begins.
    pub fn initial(&mut self, _now: Timestamp) -> Outcome<Offset> {
        Err(Failure::internal("not built"))
    }

    /// The limit of a batch without another one.
    pub fn default_limit(&self) -> Limit {
        Limit::All(false)
    }

    /// Ends the query at the present end of the log.
    pub fn available_now(&mut self) -> Outcome<()> {
        Err(Failure::internal("not built"))
    }

    /// The end of the next batch; `None` when there is none.
    pub fn latest(&mut self, _request: &Latest, _now: Now) -> Outcome<Option<Offset>> {
        Err(Failure::internal("not built"))
    }

    /// The ends of the journals.
    pub fn newest(&mut self, _now: Instant) -> Outcome<BTreeMap<String, u64>> {
        Err(Failure::internal("not built"))
    }

    /// Cuts a batch into tasks.
    pub fn plan(&mut self, _batch: &Batch) -> Outcome<Planned> {
        Err(Failure::internal("not built"))
    }

    /// Takes note that a batch is complete.
    pub fn commit(&mut self, _offset: &Offset) -> Outcome<()> {
        Ok(())
    }
}
