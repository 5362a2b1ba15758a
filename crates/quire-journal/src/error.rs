//! The errors of a journal. The type names the side at fault: the caller, the disk, or quire.

use std::io;
use std::path::{Path, PathBuf};

use crate::record::{Position, PublisherId};
use crate::segment::open_files::is_out_of_files;

/// The limit of open files, as every error names it.
const OPEN_FILES: &str = "the number of open files that the process may have (ulimit -n)";

/// An error of the journal. Cheap to clone: a poisoned journal returns the same error to every
/// caller.
#[derive(Clone, Debug, thiserror::Error)]
pub enum JournalError {
    /// Another process, or another journal of this process, has the directory.
    #[error("{}: another process has this journal open", directory.display())]
    Locked {
        /// The journal directory.
        directory: PathBuf,
    },
    /// The disk is full. The writer of a journal tries again until there is room, unless it was a
    /// sync that failed.
    #[error("{}: no space left while {operation}{}", path.display(), numbers(*needed_bytes, *free_bytes))]
    Full {
        /// The file.
        path: PathBuf,
        /// The operation that failed.
        operation: &'static str,
        /// Bytes of the file, or of the part of it, that had no room, when that is known.
        needed_bytes: Option<u64>,
        /// Free space of the file system at that time, when the system reports it.
        free_bytes: Option<u64>,
    },
    /// The process, or the system, has reached its limit of open files. The writer of a journal
    /// tries again until a file can be opened.
    #[error(
        "{}: too many open files while {operation}; raise {OPEN_FILES}",
        path.display()
    )]
    OutOfFiles {
        /// The file.
        path: PathBuf,
        /// The operation that failed.
        operation: &'static str,
    },
    /// The system refused an operation.
    #[error("{}: {operation} failed: {reason}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The operation that failed.
        operation: &'static str,
        /// The error of the system.
        reason: String,
    },
    /// The disk cannot read written bytes: a bad sector, for instance. They may be readable later,
    /// or on another machine.
    #[error("{} cannot be read at byte {offset}: {reason}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Where in the file reading failed, in bytes.
        offset: u64,
        /// The error of the system.
        reason: String,
    },
    /// Synced bytes differ from the written ones.
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
    /// A file in the middle of the log is missing.
    #[error("{}: journal file {missing:010} is missing; the log has a gap", directory.display())]
    Gap {
        /// The journal directory.
        directory: PathBuf,
        /// The number of the missing file.
        missing: u32,
    },
    /// The oldest files of the log are missing, and were not removed on purpose: they were archived
    /// to a directory that is not available, or lost.
    #[error("{}", missing_files(directory, *first, *last, archive.as_deref()))]
    Missing {
        /// The journal directory.
        directory: PathBuf,
        /// The number of the first missing file; `None` = not known.
        first: Option<u32>,
        /// The number of the last missing file; `None` = all files are missing.
        last: Option<u32>,
        /// The directory to which files of this journal were last archived, if any.
        archive: Option<PathBuf>,
    },
    /// The next records of a cursor were removed on purpose before it reached them.
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
    /// The log ends before a position that was once on stable storage: files, or the end of one,
    /// are missing.
    #[error("{}: the log ends at position {last}, but everything up to {durable} was on stable storage", directory.display())]
    Truncated {
        /// The journal directory.
        directory: PathBuf,
        /// The last position that the log has.
        last: Position,
        /// The last position that the log must have.
        durable: Position,
    },
    /// The file was written in a version of the format that this build does not read.
    #[error("{}: journal format version {version}; this build reads {}", path.display(), crate::format::READABLE_VERSIONS)]
    Version {
        /// The file.
        path: PathBuf,
        /// The version that the file names.
        version: u32,
    },
    /// A record cannot be read: it is damaged, or a later version of the server wrote it, with
    /// parts that this build does not read.
    #[error("the record at position {position} of the journal: {reason}")]
    LaterRecord {
        /// The record.
        position: Position,
        /// Why.
        reason: String,
    },
    /// A value that the journal cannot take.
    #[error("{option}: {reason}")]
    BadOption {
        /// The option or field.
        option: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// The topic of a record is not the name of a topic.
    #[error(transparent)]
    Topic(#[from] quire_types::TopicNameError),
    /// A record was appended without a sequence, and its publisher has used the highest one.
    #[error(
        "sequence: publisher {publisher} has used the last number, {}; append under another publisher",
        u64::MAX
    )]
    SequencesEnd {
        /// The publisher.
        publisher: PublisherId,
    },
    /// More bytes wait to become persistent than [`crate::Options::unpersisted_size_max`] allows.
    /// No record was appended.
    #[error("{limit_bytes} bytes wait to become persistent, which is as much as may wait")]
    Behind {
        /// The limit, in bytes.
        limit_bytes: usize,
    },
    /// The writer, or the callback that it calls, panicked: a bug. No later record is acknowledged.
    #[error(
        "{}: the writer of the journal panicked, which is a bug of quire: it takes no more writes, and {unpersisted_bytes} bytes of \
         records are not persistent; restart, and report this error",
        directory.display()
    )]
    Panicked {
        /// The journal directory.
        directory: PathBuf,
        /// Bytes of records that were appended and are not persistent.
        unpersisted_bytes: usize,
    },
    /// The journal was closed.
    #[error("the journal is closed")]
    Closed,
    /// The wait was longer than allowed.
    #[error("the journal did not become persistent in time")]
    TimedOut,
}

impl JournalError {
    /// Whether the error is about the one record that was to be appended. The journal takes other
    /// records.
    pub fn is_about_record(&self) -> bool {
        matches!(
            self,
            JournalError::BadOption { .. } | JournalError::SequencesEnd { .. } | JournalError::Behind { .. }
        )
    }

    /// The same error. When there was no room, it contains the number of bytes.
    pub(crate) fn with_sizes(self, needed_bytes: u64, free_bytes: Option<u64>) -> Self {
        match self {
            JournalError::Full { path, operation, .. } => {
                JournalError::Full { path, operation, needed_bytes: Some(needed_bytes), free_bytes }
            }
            error => error,
        }
    }

    /// An error of the system, classified by what the user can do about it.
    pub(crate) fn io(path: &Path, operation: &'static str, error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                JournalError::Full { path: path.to_owned(), operation, needed_bytes: None, free_bytes: None }
            }
            _ if is_out_of_files(error) => JournalError::OutOfFiles { path: path.to_owned(), operation },
            _ => {
                let mut reason = error.to_string();
                if let Some(limit) = limit_reached(error) {
                    reason = format!("{reason}; raise {limit}");
                }
                JournalError::Io { path: path.to_owned(), operation, reason }
            }
        }
    }
}

fn missing_files(directory: &Path, first: Option<u32>, last: Option<u32>, archive: Option<&Path>) -> String {
    let directory = directory.display();
    let files = match (first, last) {
        (Some(first), Some(last)) if first == last => format!("journal file {first:010} is missing"),
        (Some(first), Some(last)) => format!("journal files {first:010} to {last:010} are missing"),
        (None, Some(last)) => format!("journal files up to {last:010} are missing"),
        (first, None) => format!("journal file {:010} and all later ones are missing", first.unwrap_or(0)),
    };
    let archive = archive.map_or_else(
        || "If files of this journal were archived, name the archive directory".to_owned(),
        |archive| {
            format!(
                "Files of this journal were archived to {}: mount it, or name the directory where they are now",
                archive.display()
            )
        },
    );
    let end = match last {
        Some(_) => {
            format!(
                "If files were removed by hand, or are lost, continue without their messages: quire journal remove {directory} --missing"
            )
        }
        None => "If the files are lost, begin a new journal in another directory".to_owned(),
    };
    format!(
        "{directory}: {files}. {archive} (journal_archive_directory of a server, archiveDirectory of Spark, archive_directory=, --archive-directory). {end}"
    )
}

/// The limit of the process that was reached, as a text that names how to raise it. `None` when the
/// error has another cause.
pub fn limit_reached(error: &io::Error) -> Option<&'static str> {
    match error.kind() {
        io::ErrorKind::OutOfMemory => Some("the memory that the process may have (ulimit -v)"),
        // The system gives this error for a new thread in both cases.
        io::ErrorKind::WouldBlock => {
            Some("the number of threads (ulimit -u) or the memory (ulimit -v) that the process may have")
        }
        _ if is_out_of_files(error) => Some(OPEN_FILES),
        _ => None,
    }
}

fn numbers(needed_bytes: Option<u64>, free_bytes: Option<u64>) -> String {
    match (needed_bytes, free_bytes) {
        (Some(needed), Some(free)) => format!("; it needs {needed} bytes, {free} are free"),
        (Some(needed), None) => format!("; it needs {needed} bytes"),
        (None, _) => String::new(),
    }
}
