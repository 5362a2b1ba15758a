//! What can go wrong with a journal, and whose fault it is.

use std::io;
use std::path::{Path, PathBuf};

use crate::record::Position;

/// An error of the journal. Cheap to clone: a poisoned journal gives the same one to everybody who asks.
#[derive(Clone, Debug, thiserror::Error)]
pub enum JournalError {
    /// Another process, or another journal of this one, has the directory.
    #[error("{}: another process has this journal open", directory.display())]
    Locked {
        /// The journal directory.
        directory: PathBuf,
    },
    /// The disk is full. After a write: the journal takes no more writes until it is opened again.
    #[error("{}: no space left while {operation}", path.display())]
    Full {
        /// The file.
        path: PathBuf,
        /// What was being done.
        operation: &'static str,
    },
    /// The system refused an operation.
    #[error("{}: {operation} failed: {reason}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What was being done.
        operation: &'static str,
        /// What the system said.
        reason: String,
    },
    /// Bytes that were synced are not what was written.
    #[error("{} is damaged at byte {offset}: {reason}; readable up to position {readable_to}", path.display())]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// Where in the file the damage begins, in bytes.
        offset: u64,
        /// What is wrong.
        reason: &'static str,
        /// The last position before the damage.
        readable_to: Position,
    },
    /// A file in the middle of the log is missing (seed 003).
    #[error("{}: journal file {missing:010} is missing; the log has a gap", directory.display())]
    Gap {
        /// The journal directory.
        directory: PathBuf,
        /// The number of the missing file.
        missing: u32,
    },
    /// The records that a cursor would give next were removed, on purpose, before it came to them.
    #[error(
        "{}: the records after position {after} were removed from the journal before they were read; read on from the first that is left",
        directory.display()
    )]
    Removed {
        /// The journal directory.
        directory: PathBuf,
        /// The last position that the cursor has passed.
        after: Position,
    },
    /// The log ends before what was once on stable storage: files, or the end of one, are missing.
    #[error("{}: the log ends at position {last}, but everything up to {durable} was on stable storage", directory.display())]
    Truncated {
        /// The journal directory.
        directory: PathBuf,
        /// The last position that is there.
        last: Position,
        /// The last position that must be there.
        durable: Position,
    },
    /// The file was written by another version of the format.
    #[error("{}: journal format version {version}; this build reads version {}", path.display(), crate::format::VERSION)]
    Version {
        /// The file.
        path: PathBuf,
        /// The version that the file names.
        version: u32,
    },
    /// A value that the journal cannot take.
    #[error("{option}: {reason}")]
    BadOption {
        /// The option or field.
        option: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// More waits to become persistent than [`crate::Options::unpersisted_size_max`] allows; nothing was appended.
    #[error("{limit_bytes} bytes wait to become persistent, which is as much as may wait")]
    Behind {
        /// The limit, in bytes.
        limit_bytes: usize,
    },
    /// The writer, or the callback that it rings, panicked: a bug. Nothing after it is acknowledged.
    #[error("the journal's writer panicked; it takes no more writes")]
    Panicked,
    /// The journal was closed.
    #[error("the journal is closed")]
    Closed,
    /// The wait was longer than allowed.
    #[error("the journal did not become persistent in time")]
    TimedOut,
}

impl JournalError {
    /// An error of the system, told apart by what a user does about it.
    pub(crate) fn io(path: &Path, operation: &'static str, error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                JournalError::Full { path: path.to_owned(), operation }
            }
            _ => JournalError::Io { path: path.to_owned(), operation, reason: error.to_string() },
        }
    }
}
