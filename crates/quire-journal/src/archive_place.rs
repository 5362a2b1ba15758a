//! Where older segments were archived last (`archive.place`), so that every process that opens the journal finds them.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::disk::Disk;
use crate::error::JournalError;
use crate::format::u32_at;
use crate::whole_file;

const FILE_NAME: &str = "archive.place";
const MAGIC: [u8; 8] = *b"QUIREARC";
const VERSION: u32 = 2;
const HEAD_SIZE: usize = 12;

/// What `archive.place` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// The archive directory, absolute.
    pub archive: PathBuf,
    /// The journal directory at that time, absolute; version 1 did not say it.
    journal: Option<PathBuf>,
}

/// How the file was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    Missing,
    Place(Place),
    Damaged,
}

impl Found {
    pub fn place(self) -> Option<Place> {
        if let Found::Place(place) = self { Some(place) } else { None }
    }
}

impl Place {
    /// Whether the archive belongs to the journal in `directory`: a journal directory that was moved or copied since is not the one that
    /// archived there, and a copy must not change the archive of its original.
    fn is_of(&self, disk: &dyn Disk, directory: &Path) -> Result<bool, JournalError> {
        let Some(journal) = &self.journal else { return Ok(true) };
        is_same(disk, directory, journal)
    }
}

/// The archive directory of the journal: the one that is named, else the one in `archive.place`.
pub(crate) fn resolve(
    disk: &dyn Disk,
    directory: &Path,
    named: Option<&Path>,
) -> Result<Option<PathBuf>, JournalError> {
    match (named, read(disk, directory)?.place()) {
        (Some(named), _) => Ok(Some(named.to_owned())),
        (None, Some(place)) if place.is_of(disk, directory)? => Ok(Some(place.archive)),
        (None, _) => Ok(None),
    }
}

/// Notes, durably, the directory that segments go to, or are found in.
pub(crate) fn keep(disk: &dyn Disk, directory: &Path, archive: &Path) -> Result<(), JournalError> {
    if let Some(known) = read(disk, directory)?.place()
        && known.journal.is_some()
        && known.is_of(disk, directory)?
        && is_same(disk, archive, &known.archive)?
    {
        return Ok(());
    }
    let place = Place { archive: absolute(archive), journal: Some(absolute(directory)) };
    whole_file::write(disk, &directory.join(FILE_NAME), encode(&place))
}

pub(crate) fn read(disk: &dyn Disk, directory: &Path) -> Result<Found, JournalError> {
    let path = place_path(directory);
    match disk.read(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Found::Missing),
        Err(error) => Err(JournalError::io(&path, "reading the file", &error)),
        Ok(bytes) => Ok(decode(&bytes).map_or(Found::Damaged, Found::Place)),
    }
}

pub(crate) fn place_path(directory: &Path) -> PathBuf {
    directory.join(FILE_NAME)
}

/// Whether both paths lead to the same directory.
pub(crate) fn is_same(disk: &dyn Disk, one: &Path, other: &Path) -> Result<bool, JournalError> {
    if absolute(one) == absolute(other) {
        return Ok(true);
    }
    let same = disk.is_same_directory(one, other);
    same.map_err(|error| JournalError::io(other, "looking at the directory", &error))
}

fn encode(place: &Place) -> Vec<u8> {
    let journal = place.journal.as_deref().unwrap_or(Path::new("")).as_os_str().as_bytes();
    let (version, size) = (VERSION.to_le_bytes(), (journal.len() as u32).to_le_bytes());
    [&MAGIC[..], &version, &size, journal, place.archive.as_os_str().as_bytes()].concat()
}

fn decode(bytes: &[u8]) -> Option<Place> {
    let (head, rest) = whole_file::checked(bytes)?.split_at_checked(HEAD_SIZE)?;
    if head[..MAGIC.len()] != MAGIC {
        return None;
    }
    let path = |bytes| PathBuf::from(OsStr::from_bytes(bytes));
    match u32_at(head, MAGIC.len()) {
        1 => Some(Place { archive: path(rest), journal: None }),
        VERSION => {
            let (size, rest) = rest.split_first_chunk::<4>()?;
            let (journal, archive) = rest.split_at_checked(u32::from_le_bytes(*size) as usize)?;
            Some(Place { archive: path(archive), journal: Some(path(journal)) })
        }
        _ => None,
    }
}

/// What the path means wherever the next process is started.
fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_of_either_version_is_read_and_a_cut_one_is_not() {
        let place = Place { archive: "/archive".into(), journal: Some("/data/journal".into()) };
        let whole = |mut bytes: Vec<u8>| {
            bytes.extend(crc32c::crc32c(&bytes).to_le_bytes());
            bytes
        };
        let bytes = whole(encode(&place));
        assert_eq!(decode(&bytes), Some(place));
        for end in 0..bytes.len() {
            assert_eq!(decode(&bytes[..end]), None);
        }
        let first_version = whole([&MAGIC[..], &1u32.to_le_bytes(), b"/archive"].concat());
        assert_eq!(decode(&first_version), Some(Place { archive: "/archive".into(), journal: None }));
        let later_version = whole([&MAGIC[..], &3u32.to_le_bytes(), b"/archive"].concat());
        assert_eq!(decode(&later_version), None);
    }
}
