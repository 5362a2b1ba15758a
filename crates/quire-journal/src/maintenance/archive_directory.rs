//! The directory to which older segments were last archived (`archive.place`). Every process that
//! opens the journal finds them there.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::disk::Disk;
use crate::error::JournalError;
use crate::format::u32_at;
use crate::sidecar::{self, FoundSidecar, SidecarHead};

const FILE_NAME: &str = "archive.place";
const NAME: &str = "archive";
const VERSION: u32 = 3;

/// For versions 1 and 2, which are older than sidecar files.
const OLDER_MAGIC: [u8; 8] = *b"QUIREARC";
const OLDER_HEAD_SIZE: usize = 12;

/// The content of `archive.place`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Noted {
    /// The archive directory, absolute.
    pub archive: PathBuf,
    /// The journal directory at that time, absolute. Version 1 does not contain it.
    journal: Option<PathBuf>,
}

/// The state of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    Missing,
    Noted(Noted),
    Damaged,
}

impl Found {
    pub fn noted(self) -> Option<Noted> {
        if let Found::Noted(noted) = self { Some(noted) } else { None }
    }
}

impl Noted {
    /// Whether the archive belongs to the journal in `directory`. A journal directory that was
    /// moved or copied since is another directory: a copy must not change the archive of its
    /// original.
    fn is_of(&self, disk: &dyn Disk, directory: &Path) -> Result<bool, JournalError> {
        let Some(journal) = &self.journal else { return Ok(true) };
        is_same(disk, directory, journal)
    }
}

/// The archive directory of the journal: `named`, or else the directory in `archive.place`.
pub(crate) fn resolve(
    disk: &dyn Disk,
    directory: &Path,
    named: Option<&Path>,
) -> Result<Option<PathBuf>, JournalError> {
    match (named, read(disk, directory)?.noted()) {
        (Some(named), _) => Ok(Some(named.to_owned())),
        (None, Some(noted)) if noted.is_of(disk, directory)? => Ok(Some(noted.archive)),
        (None, _) => Ok(None),
    }
}

/// Writes the directory to which segments are archived, or in which they were found, durably.
pub(crate) fn note(disk: &dyn Disk, directory: &Path, archive: &Path) -> Result<(), JournalError> {
    if let Some(known) = read(disk, directory)?.noted()
        && known.journal.is_some()
        && known.is_of(disk, directory)?
        && is_same(disk, archive, &known.archive)?
    {
        return Ok(());
    }
    let noted = Noted { archive: absolute(archive), journal: Some(absolute(directory)) };
    let head = SidecarHead { version: VERSION, ..SidecarHead::default() };
    sidecar::write(disk, directory, FILE_NAME, NAME, head, &[&encode(&noted)])
}

pub(crate) fn read(disk: &dyn Disk, directory: &Path) -> Result<Found, JournalError> {
    let noted = match sidecar::read(disk, directory, FILE_NAME, NAME)? {
        FoundSidecar::Missing => return Ok(Found::Missing),
        FoundSidecar::Damaged => None,
        FoundSidecar::Older(bytes) => decode_older(&bytes),
        FoundSidecar::Whole(head, content) if head.version == VERSION => decode(&content),
        FoundSidecar::Whole(..) => None,
    };
    Ok(noted.map_or(Found::Damaged, Found::Noted))
}

pub(crate) fn file_path(directory: &Path) -> PathBuf {
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

fn encode(noted: &Noted) -> Vec<u8> {
    let journal = noted.journal.as_deref().unwrap_or(Path::new("")).as_os_str().as_bytes();
    let size = (journal.len() as u32).to_le_bytes();
    [&size[..], journal, noted.archive.as_os_str().as_bytes()].concat()
}

fn decode(content: &[u8]) -> Option<Noted> {
    let (size, rest) = content.split_first_chunk::<4>()?;
    let (journal, archive) = rest.split_at_checked(u32::from_le_bytes(*size) as usize)?;
    Some(Noted { archive: path_of(archive), journal: Some(path_of(journal)) })
}

fn decode_older(bytes: &[u8]) -> Option<Noted> {
    let (head, rest) = bytes.split_at_checked(OLDER_HEAD_SIZE)?;
    if head[..OLDER_MAGIC.len()] != OLDER_MAGIC {
        return None;
    }
    match u32_at(head, OLDER_MAGIC.len()) {
        1 => Some(Noted { archive: path_of(rest), journal: None }),
        2 => decode(rest),
        _ => None,
    }
}

fn path_of(bytes: &[u8]) -> PathBuf {
    PathBuf::from(OsStr::from_bytes(bytes))
}

/// The path in a form that does not depend on the directory in which the next process starts.
fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_noted_directory_of_any_version_is_read_and_a_cut_one_is_not() {
        let noted = Noted { archive: "/archive".into(), journal: Some("/data/journal".into()) };
        let content = encode(&noted);
        assert_eq!(decode(&content), Some(noted.clone()));
        // The archive directory follows the first path.
        for end in 0..content.len() - "/archive".len() {
            assert_eq!(decode(&content[..end]), None);
        }
        let older = |version: u32, rest: &[u8]| [&OLDER_MAGIC[..], &version.to_le_bytes(), rest].concat();
        assert_eq!(decode_older(&older(2, &content)), Some(noted));
        let first = Noted { archive: "/archive".into(), journal: None };
        assert_eq!(decode_older(&older(1, b"/archive")), Some(first));
        assert_eq!(decode_older(&older(3, &content)), None);
        assert_eq!(decode_older(b"QUIRECLI\x01\0\0\0/archive"), None);
    }
}
