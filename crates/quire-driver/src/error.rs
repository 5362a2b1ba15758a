//! Why an engine does not start, or does not go on.

use std::io;

use quire_core::broker::{ConfigError, OpenError};
use quire_journal::JournalError;

/// What can keep an engine from running.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The configuration is not one that can run. The fault of the caller.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The journal cannot be opened or closed. The disk, or another process that holds it.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The operating system gave no thread, or nothing to wait with.
    #[error("no thread or event queue for the engine: {0}")]
    Thread(#[source] io::Error),
    /// Another client of this process runs the engine on the same journal with another configuration.
    #[error("the engine on {url} already runs in this process with another configuration")]
    ConfigDiffers {
        /// The journal, as a URL.
        url: String,
    },
    /// The engine was stopped.
    #[error("the engine was stopped")]
    Stopped,
}

impl From<OpenError> for EngineError {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::Config(error) => EngineError::Config(error),
            OpenError::Journal(error) => EngineError::Journal(error),
        }
    }
}
