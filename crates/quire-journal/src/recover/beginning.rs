//! The check of the beginning of the log. Its oldest segments may be in an archive directory that
//! is not mounted, or was moved. A log that begins too late is refused, because queues would treat
//! the missing records as settled, and readers would treat them as removed.

use std::io;
use std::path::Path;

use crate::disk::Disk;
use crate::error::JournalError;
use crate::maintenance::archive_directory;
use crate::publishers::ClientsFound;
use crate::record::Position;
use crate::recover::directory::Found;
use crate::segment::segment_number;
use crate::sidecar;

/// The first segment of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Beginning {
    /// Its number.
    pub number: u32,
    /// The first position that it may hold.
    pub first: Position,
}

impl Default for Beginning {
    fn default() -> Self {
        Beginning { number: 0, first: Position(1) }
    }
}

/// The known numbers of files that are missing at the front of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Missing {
    pub first: Option<u32>,
    /// `None`: all files are missing.
    pub last: Option<u32>,
}

/// The facts about a journal after the search for its files.
pub(crate) struct Known<'a> {
    pub disk: &'a dyn Disk,
    pub directory: &'a Path,
    /// The archive directory that the caller named.
    pub named: Option<&'a Path>,
    pub clients: &'a ClientsFound,
}

impl Known<'_> {
    /// The oldest files that are missing from `found`.
    pub fn missing(&self, found: &[Found]) -> Result<Option<Missing>, JournalError> {
        let must_begin = self.clients.beginning();
        let Some(begins) = found.first() else {
            return Ok(must_begin.map(|must| Missing { first: Some(must.number), last: None }));
        };
        if begins.number == 0 {
            return Ok(None);
        }
        if let Some(must) = must_begin {
            let missing = Missing { first: Some(must.number), last: Some(begins.number - 1) };
            return Ok((must.number < begins.number).then_some(missing));
        }
        // An older build did not write where the log begins.
        let is_older_needed = begins.header.is_err()
            || self.noted_elsewhere(begins.number)?
            || begins.header.is_ok_and(|header| {
                // An owner that always needed this position may have begun with a log that began
                // later.
                let mut needs = sidecar::needs(self.disk, self.directory).into_iter();
                needs.any(|needed| Position(1) < needed && needed < header.first)
            });
        Ok(is_older_needed.then_some(Missing { first: None, last: Some(begins.number - 1) }))
    }

    /// Whether `archive.place` names a directory with files older than `number`, or a directory
    /// that does not exist.
    fn noted_elsewhere(&self, number: u32) -> Result<bool, JournalError> {
        let Some(noted) = archive_directory::read(self.disk, self.directory)?.noted() else {
            return Ok(false);
        };
        match self.disk.list(&noted.archive) {
            Ok(names) => Ok(names.iter().filter_map(|name| segment_number(name)).any(|older| older < number)),
            // It was moved, and the caller named the new directory.
            Err(error) if error.kind() == io::ErrorKind::NotFound => match self.named {
                Some(named) => archive_directory::is_same(self.disk, named, &noted.archive),
                None => Ok(true),
            },
            Err(error) => Err(JournalError::io(&noted.archive, "listing the directory", &error)),
        }
    }
}
