//! A frame: options, and the range of a batch read.

use std::collections::BTreeMap;

use quire_types::Timestamp;
use serde::{Deserialize, Serialize};

use crate::columns;
use crate::failure::{Failure, Outcome};
use crate::journals::{Range, locate};
use crate::options::ReadOptions;
use crate::ranges::span;
use crate::schema::Schema;

/// The version of quire. Frames and tasks are valid only in this version.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The result of `load` in Spark. It does not change for the life of the frame.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Frame {
    version: String,
    /// The options.
    pub options: ReadOptions,
    /// The range of each journal. For a server it is empty, because its range consists of
    /// bookmarks.
    pub ranges: Vec<Range>,
}

impl Frame {
    /// Reads the options and decides the range.
    pub fn new(options: &BTreeMap<String, String>, now: Timestamp) -> Outcome<Self> {
        let options = ReadOptions::new(options)?;
        let range = |directory: &String| span(&locate(directory)?, &options, now);
        let ranges = options.directories.iter().map(range).collect::<Outcome<_>>()?;
        Ok(Frame { version: VERSION.to_owned(), options, ranges })
    }

    /// A frame without a range, for a stream.
    pub fn of_stream(options: &BTreeMap<String, String>) -> Outcome<Self> {
        let options = ReadOptions::new(options)?;
        options.check_stream()?;
        Ok(Frame { version: VERSION.to_owned(), options, ranges: Vec::new() })
    }

    /// Reads what was written as JSON.
    pub fn from_json(text: &str) -> Outcome<Self> {
        check_version(text)?;
        serde_json::from_str(text)
            .map_err(|error| Failure::option(format!("the frame cannot be read: {error}")))
    }

    /// The columns without a schema of the user.
    pub fn schema(&self) -> Outcome<Schema> {
        columns::of_frame(&self.options)
    }
}

/// Refuses the text of another version, which may have another form.
pub(crate) fn check_version(text: &str) -> Outcome<()> {
    #[derive(Deserialize)]
    struct Versioned {
        version: String,
    }
    match serde_json::from_str::<Versioned>(text) {
        Ok(Versioned { version }) if version != VERSION => Err(Failure::option(format!(
            "the read was planned by quire {version}, and this process has quire {VERSION}; install one version on all machines"
        ))),
        _ => Ok(()),
    }
}
