//! Why an engine does not start, or does not continue.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

use quire_broker::{ConfigError, OpenError};
use quire_journal::JournalError;

/// The reasons why an engine cannot run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The configuration is not valid. The caller has to change it.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The journal cannot be opened or closed. The disk, or another process that holds it.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The operating system has no thread or no descriptor left.
    #[error("no thread or event queue for the engine: {0}")]
    Thread(#[source] io::Error),
    /// Another client of this process runs the engine on the same journal with another
    /// configuration.
    #[error(
        "the engine on {url} already runs in this process with another configuration; pass the same one, or none to join it"
    )]
    ConfigDiffers {
        /// The journal, as a URL.
        url: String,
    },
    /// The engine was stopped.
    #[error("the engine was stopped")]
    Stopped,
    /// A bug in the engine ended it in the middle of a turn. No message of that turn was
    /// acknowledged.
    #[error(
        "the engine stopped because of an internal error ({reason}); the journal is consistent: start it again, and clients send \
         what was not acknowledged; please report this error"
    )]
    Panicked {
        /// The reason that the engine found.
        reason: String,
    },
}

impl EngineError {
    /// Runs a turn. A turn that panicked has lost the rest of its input, so its broker must not be
    /// used any more: see [`crate::Host::abandon`].
    ///
    /// # Errors
    /// [`EngineError::Panicked`].
    pub fn catch<T>(turn: impl FnOnce() -> T) -> Result<T, EngineError> {
        catch_unwind(AssertUnwindSafe(turn)).map_err(|payload| {
            let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
            let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
            EngineError::Panicked { reason: text.unwrap_or_else(|| "a panic without a message".to_owned()) }
        })
    }
}

impl From<OpenError> for EngineError {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::Config(error) => EngineError::Config(error),
            OpenError::Journal(error) => EngineError::Journal(error),
        }
    }
}
