//! The journals that a process reads. It keeps their readers, because opening a journal reads every
//! index, and a process runs many tasks.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use parking_lot::Mutex;
use quire_journal::{AllTopics, JournalError, Position, Reader};
use serde::{Deserialize, Serialize};

use crate::failure::{Failure, Outcome};

/// Readers that a process keeps: each has the indexes of its journal.
const READERS_MAX: usize = 8;

/// The end of a failure about messages that were removed.
pub(crate) const TO_SKIP: &str =
    "to continue without them, give failOnDataLoss=false (a job: skip_lost=True, a command: --skip-lost)";

/// Bookmark and time, in nanoseconds since 1970, of a record.
pub type Identity = (String, u64);

/// A range of one journal: the records after `after`, up to and including `limit`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Range {
    /// The journal directory.
    pub directory: String,
    /// The directory to which older segments of the journal were moved.
    pub archive: Option<String>,
    /// Everything up to here is left out.
    pub after: u64,
    /// The last position.
    pub limit: u64,
    /// The identity of the record at `limit`; `None` when the journal was empty, or begins after
    /// it.
    pub at: Option<Identity>,
    /// The instant at which lifetimes of last values are checked, in nanoseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_ns: Option<u64>,
}

struct Opened {
    /// Processes that were forked do not share the positions of files.
    process: u32,
    directory: String,
    archive: Option<String>,
    /// Device and number of the directory.
    file: (u64, u64),
    reader: Reader,
}

/// The most recently used one is at the end.
static OPENED: Mutex<Vec<Opened>> = Mutex::new(Vec::new());

/// Finds the journal directory, which may be inside of the data directory of a server.
pub fn locate(directory: &str) -> Outcome<String> {
    let path = Path::new(directory);
    for candidate in [path.to_owned(), path.join("journal")] {
        if holds_segments(&candidate).map_err(|error| failed(directory, &error))? {
            return Ok(candidate.to_string_lossy().into_owned());
        }
    }
    let reason = match path.is_dir() {
        true => {
            return Err(Failure::option(format!("path: there is no journal in {}", quoted_path(directory))));
        }
        false => "is no directory on this machine",
    };
    Err(Failure::option(format!("path: {} {reason}", quoted_path(directory))))
}

/// Paths are shown completely.
fn quoted_path(path: &str) -> String {
    format!("'{path}'")
}

fn holds_segments(directory: &Path) -> std::io::Result<bool> {
    use std::io::ErrorKind::{NotADirectory, NotFound};
    let entries = match fs::read_dir(directory) {
        Err(error) if matches!(error.kind(), NotFound | NotADirectory) => return Ok(false),
        entries => entries?,
    };
    for entry in entries {
        let name = entry?.file_name();
        if name.to_string_lossy().contains(".journal") && name != "journal.lock" {
            return Ok(true);
        }
    }
    Ok(false)
}

fn failed(directory: &str, error: &std::io::Error) -> Failure {
    Failure::option(format!("path: {} cannot be read: {error}", quoted_path(directory)))
}

/// The reader of the directory in this process, as far as it has followed the journal.
pub fn reader(directory: &str, archive: Option<&str>) -> Outcome<Reader> {
    let status = fs::metadata(directory).map_err(|error| failed(directory, &error))?;
    let (process, file) = (std::process::id(), (status.dev(), status.ino()));
    let is_it = |opened: &Opened| {
        opened.process == process
            && opened.directory == directory
            && opened.archive.as_deref() == archive
            && opened.file == file
    };
    let mut all = OPENED.lock();
    if let Some(at) = all.iter().position(is_it) {
        let opened = all.remove(at);
        let reader = opened.reader.clone();
        all.push(opened);
        return Ok(reader);
    }
    drop(all);
    // Without the lock, because it takes long for a large journal.
    let reader = Reader::open_with_archive(directory, archive.map(Path::new))?;
    let mut all = OPENED.lock();
    all.retain(|opened| !is_it(opened) && opened.process == process);
    while all.len() >= READERS_MAX {
        all.remove(0);
    }
    let (directory, archive) = (directory.to_owned(), archive.map(Into::into));
    all.push(Opened { process, directory, archive, file, reader: reader.clone() });
    Ok(reader)
}

/// The same, after a search for files that were added, archived or removed since.
pub fn refreshed(directory: &str, archive: Option<&str>) -> Outcome<Reader> {
    let found = reader(directory, archive)?;
    match found.refresh() {
        Ok(()) => Ok(found),
        // Another journal may have replaced it: a new reader reads that, or reports the error.
        Err(_) => {
            forget(directory);
            reader(directory, archive)
        }
    }
}

/// The reader of the journal for which the range was planned.
pub fn reader_of(range: &Range) -> Outcome<Reader> {
    let (directory, archive) = (range.directory.as_str(), range.archive.as_deref());
    let mut found = reader(directory, archive)?;
    if found.persisted().get() < range.limit {
        found = refreshed(directory, archive)?;
    }
    if is_same(&found, range) {
        return Ok(found);
    }
    forget(directory);
    found = reader(directory, archive)?;
    if is_same(&found, range) {
        return Ok(found);
    }
    let (bookmark, time_ns) = range.at.clone().unwrap_or_default();
    Err(Failure::new(
        "bad_bookmark",
        format!(
            "{directory}: position {} does not hold message {bookmark} of {} any more: this is not the journal that the read was planned on",
            range.limit,
            quire_types::Timestamp::from_ns(time_ns)
        ),
    ))
}

/// Opens the directory again at the next request.
fn forget(directory: &str) {
    OPENED.lock().retain(|opened| opened.directory != directory);
}

fn is_same(found: &Reader, range: &Range) -> bool {
    let Some(at) = &range.at else { return true };
    found.persisted().get() >= range.limit
        && identity(found, range.limit).is_none_or(|identity| identity == *at)
}

/// Bookmark and time of the record, if the journal has it and it can be read.
pub fn identity(found: &Reader, position: u64) -> Option<Identity> {
    let before = Position::new(position.checked_sub(1)?);
    let batch = found.cursor(before).next(Position::new(position), &AllTopics).ok()??;
    let record = batch.records().next().filter(|record| record.position.get() == position)?;
    Some((record.bookmark().to_string(), record.timestamp.as_ns()))
}

/// The position after which the range begins now, if files were removed: `after`, or a failure when
/// removed messages may not be left out. Then a warning names them.
pub fn retained(found: &Reader, range: &Range, fails: bool, warnings: &mut Vec<String>) -> Outcome<u64> {
    let begins = found.first().get();
    if range.limit <= range.after || range.after + 1 >= begins {
        return Ok(range.after);
    }
    let last = range.limit.min(begins - 1);
    let Range { directory, after, .. } = range;
    let reason = format!(
        "{directory}: messages {} to {last} were removed from the journal, which begins at {begins}",
        after + 1
    );
    if fails {
        return Err(Failure::new("bad_bookmark", format!("{reason}; {TO_SKIP}")));
    }
    warnings.push(format!("{reason}: they are left out"));
    Ok(last)
}

impl From<JournalError> for Failure {
    fn from(error: JournalError) -> Self {
        let code = match &error {
            JournalError::Locked { .. } => "journal_locked",
            JournalError::Full { .. } => "storage_full",
            JournalError::Removed { .. } => "bookmark_not_found",
            JournalError::Corrupt { .. }
            | JournalError::Unreadable { .. }
            | JournalError::Gap { .. }
            | JournalError::Missing { .. }
            | JournalError::Truncated { .. }
            | JournalError::Version { .. }
            | JournalError::LaterRecord { .. } => "journal_corrupt",
            JournalError::BadOption { .. } => "bad_option",
            JournalError::Topic(_) => "bad_topic",
            JournalError::SequencesEnd { .. } => "limit_exceeded",
            JournalError::Closed => "shutting_down",
            JournalError::Behind { .. } | JournalError::Panicked { .. } => "internal",
            JournalError::Io { .. } | JournalError::OutOfFiles { .. } | JournalError::TimedOut => {
                "storage_failed"
            }
        };
        Failure::new(code, error.to_string())
    }
}
