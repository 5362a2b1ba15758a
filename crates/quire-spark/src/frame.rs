//! A frame: options, and the range of a batch read.

use quire_types::Timestamp;
use serde::{Deserialize, Serialize};

use crate::failure::{Failure, Outcome};
use crate::schema::Schema;

/// What `load` returns in Spark: it does not change for the life of the frame.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Frame {}

impl Frame {
    /// Reads the options and decides the range.
    pub fn new(_options: &str, _now: Timestamp) -> Outcome<Self> {
        Err(Failure::internal("not built"))
    }

    /// Reads what was written as JSON.
    pub fn from_json(_text: &str) -> Outcome<Self> {
        Err(Failure::internal("not built"))
    }

    /// The columns without a schema of the user.
    pub fn schema(&self) -> Outcome<Schema> {
        Err(Failure::internal("not built"))
    }
}
