//! Where older segments were archived last (`archive.place`), so that a process that was not told of it removes nothing behind them.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::disk::Disk;
use crate::error::JournalError;
use crate::format::u32_at;
use crate::segment::segment_number;
use crate::whole_file;

const FILE_NAME: &str = "archive.place";
const MAGIC: [u8; 8] = *b"QUIREARC";
const VERSION: u32 = 1;
const HEAD_SIZE: usize = 12;

/// Takes note, durably, of the directory that segments go to.
pub(crate) fn keep(disk: &dyn Disk, directory: &Path, archive: &Path) -> Result<(), JournalError> {
    let place = absolute(archive);
    if read(disk, directory)?.is_some_and(|known| known == place) {
        return Ok(());
    }
    let bytes = [&MAGIC[..], &VERSION.to_le_bytes(), place.as_os_str().as_bytes()].concat();
    whole_file::write(disk, &directory.join(FILE_NAME), bytes)
}

/// Refuses to go on when segments older than `first` lie in another directory than `archive`, or in one that cannot be looked into.
pub(crate) fn check_oldest(
    disk: &dyn Disk,
    directory: &Path,
    archive: Option<&Path>,
    first: u32,
) -> Result<(), JournalError> {
    let Some(place) = read(disk, directory)? else { return Ok(()) };
    let failed = |error: io::Error| JournalError::io(&place, "looking at the directory", &error);
    if let Some(archive) = archive
        && (absolute(archive) == place || disk.is_same_directory(archive, &place).map_err(failed)?)
    {
        return Ok(());
    }
    let has_older = match disk.list(&place) {
        Ok(names) => names.iter().filter_map(|name| segment_number(name)).any(|number| number < first),
        // It was moved, and the new place is named; without one, its disk may just not be there.
        Err(error) if error.kind() == io::ErrorKind::NotFound => archive.is_none(),
        Err(error) => return Err(failed(error)),
    };
    if has_older {
        let reason = format!(
            "older files of this journal are archived in {}: name that directory, or there will be a gap between them and the rest",
            place.display()
        );
        return Err(JournalError::BadOption { option: "journal_archive_directory", reason });
    }
    Ok(())
}

/// The directory that segments went to last. A file that is not whole says nothing.
fn read(disk: &dyn Disk, directory: &Path) -> Result<Option<PathBuf>, JournalError> {
    let path = directory.join(FILE_NAME);
    let bytes = match disk.read(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        bytes => bytes.map_err(|error| JournalError::io(&path, "reading the file", &error))?,
    };
    let whole = whole_file::checked(&bytes).and_then(|bytes| bytes.split_at_checked(HEAD_SIZE));
    let of_this_version =
        whole.filter(|(head, _)| head[..MAGIC.len()] == MAGIC && u32_at(head, MAGIC.len()) == VERSION);
    Ok(of_this_version.map(|(_, place)| PathBuf::from(OsStr::from_bytes(place))))
}

/// What the path means wherever the next process is started.
fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}
