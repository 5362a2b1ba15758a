//! The files in which a client keeps data that must outlive it (docs/stores.md): its unpersisted
//! publishes, and the place up to which it has processed each subscription.
//!
//! Every entry is written with one call before the caller continues, so that it survives the end of
//! the process. Entries are synced only when the file is closed, so a power cut may take the newest
//! ones.

mod bookmark;
mod file;
mod publish;

use std::io;
use std::path::{Path, PathBuf};

pub use bookmark::{BookmarkStore, PositionWriter};
pub use publish::{PublishFile, StoredPublishes};
use quire_client::Failure;
use quire_command::Code;

/// Why a store cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The disk reports an error.
    #[error("{path}: {source}", path = path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The directory of the file is missing and cannot be created.
    #[error("{directory}: creating the directory: {source}", directory = directory.display())]
    Directory {
        /// The directory.
        directory: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// Another process, or another client of this one, has it open.
    #[error("{path} is in use by another client", path = path.display())]
    Locked {
        /// The file.
        path: PathBuf,
    },
    /// Its content differs from the written content.
    #[error("{path} is damaged at byte {at}; move it away to begin anew", path = path.display())]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// Where the first damaged part is.
        at: u64,
    },
    /// The file is not a store of this client. The caller has to name another file.
    #[error("{path} {what}", path = path.display())]
    Unfit {
        /// The file.
        path: PathBuf,
        /// A description of the file.
        what: String,
    },
}

impl StoreError {
    fn io(path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| StoreError::Io { path: path.to_owned(), source }
    }

    /// The stable name of the case (docs/reference/errors.md).
    pub fn code(&self) -> &'static str {
        match self {
            StoreError::Io { source, .. } | StoreError::Directory { source, .. } => {
                failure_code(source).name()
            }
            StoreError::Locked { .. } => "store_locked",
            StoreError::Corrupt { .. } => "store_corrupt",
            StoreError::Unfit { .. } => Code::BadOption.name(),
        }
    }
}

/// The error for the user when a write of `size` bytes to a store fails.
fn failure(path: &Path, size: usize, error: &io::Error) -> Failure {
    Failure::new(failure_code(error), format!("{}: writing {size} bytes: {error}", path.display()))
}

fn failure_code(error: &io::Error) -> Code {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
            Code::StorageFull
        }
        _ => Code::StorageFailed,
    }
}
