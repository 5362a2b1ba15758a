//! The files of a journal: in its directory, and in the archive directory when it has one.

use std::io;
use std::path::{Path, PathBuf};

use crate::disk::{Disk, File};
use crate::error::JournalError;
use crate::format::{HeaderError, SegmentHeader};
use crate::record::Position;
use crate::segment::{
    INDEX_EXTENSION, SEGMENT_EXTENSION, Shape, error_of, index_path, read_shape, segment_number,
};
use crate::write::segment_pool::is_blank;

/// A segment file and the fields of its header.
pub(crate) struct Found {
    pub number: u32,
    pub path: PathBuf,
    pub is_archived: bool,
    pub shape: Shape,
    pub header: Result<SegmentHeader, HeaderError>,
}

/// How often a directory is listed again because a file was missing when it was opened. Each time,
/// a running server has archived or removed a segment, which takes much longer than a listing.
pub(crate) const LIST_COUNT_MAX: u32 = 10;

/// The segment files of a journal.
#[derive(Default)]
pub(crate) struct Files {
    /// By number, without a gap.
    pub segments: Vec<Found>,
    /// Segments that were prepared and never used, with the number of one of `segments`.
    pub spare: Vec<PathBuf>,
}

/// The segments of a journal; refuses a gap between them.
pub(crate) fn find_segments(
    disk: &dyn Disk,
    directory: &Path,
    archive: Option<&Path>,
) -> Result<Files, JournalError> {
    if let Some(archive) = archive {
        check_archive(disk, directory, archive)?;
    }
    for _ in 1..LIST_COUNT_MAX {
        match try_find(disk, directory, archive) {
            Err(Missing::Gone) => (),
            Err(Missing::Error(error)) => return Err(error),
            Ok(found) => return Ok(found),
        }
    }
    let reason = "its files went away as often as it was listed".to_owned();
    Err(JournalError::Io { path: directory.to_owned(), operation: "listing the directory", reason })
}

/// Refuses the journal directory as its archive directory: each segment would be taken for its
/// copy, and removed as the original.
pub(crate) fn check_archive(disk: &dyn Disk, directory: &Path, archive: &Path) -> Result<(), JournalError> {
    let same = disk.is_same_directory(directory, archive);
    if same.map_err(|error| JournalError::io(archive, "looking at the directory", &error))? {
        let reason = format!("{} is the journal directory itself", archive.display());
        return Err(JournalError::BadOption { option: "journal_archive_directory", reason });
    }
    Ok(())
}

/// Why the segments could not be found.
enum Missing {
    /// A file disappeared during the search.
    Gone,
    Error(JournalError),
}

fn try_find(disk: &dyn Disk, directory: &Path, archive: Option<&Path>) -> Result<Files, Missing> {
    // A file that leaves the first directory during the listing is already in the second one.
    let mut listed = list(disk, directory, false).map_err(Missing::Error)?;
    if let Some(archive) = archive {
        listed.extend(list(disk, archive, true).map_err(Missing::Error)?);
    }
    listed.sort_unstable();
    let mut files = Files::default();
    let found = &mut files.segments;
    for (number, is_archived, path) in listed {
        match found.last() {
            // An archiving was not finished. The original counts.
            Some(before) if before.number == number && is_archived && !before.is_archived => continue,
            Some(before) if before.number != number && before.number + 1 != number => {
                let (directory, missing) = (directory.to_owned(), before.number + 1);
                return Err(Missing::Error(JournalError::Gap { directory, missing }));
            }
            _ => (),
        }
        // It is closed again: there may be more segments than open files are allowed.
        let file = open(disk, &path)?;
        let (header, shape) = read_shape(&path, &*file).map_err(Missing::Error)?;
        let segment = Found { number, path, is_archived, shape, header };
        match found.last_mut() {
            Some(before) if before.number == number => {
                let spare = choose(disk, before, segment)?;
                files.spare.push(spare.path);
            }
            _ => found.push(segment),
        }
    }
    match found.last() {
        Some(last) if last.is_archived => {
            let reason = format!("{} is newer than anything in the journal directory", last.path.display());
            Err(Missing::Error(JournalError::BadOption { option: "journal_archive_directory", reason }))
        }
        _ => Ok(files),
    }
}

/// Opens a file that was listed.
fn open(disk: &dyn Disk, path: &Path) -> Result<Box<dyn File>, Missing> {
    disk.open_read_only(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => Missing::Gone,
        _ => Missing::Error(JournalError::io(path, "opening the segment", &error)),
    })
}

/// For two files with the same number, keeps the file of the log in `before`. Returns the other
/// one, which was prepared and never used. Older builds named files after the instance, so that
/// another instance prepared files with the same numbers.
fn choose(disk: &dyn Disk, before: &mut Found, other: Found) -> Result<Found, Missing> {
    let is_unused = |found: &Found| {
        let is_blank = is_blank(&*open(disk, &found.path)?, found.shape.file_size);
        is_blank.map_err(|(offset, error)| {
            Missing::Error(error_of(&found.path, offset, error.into(), Position::ZERO))
        })
    };
    if is_unused(&other)? {
        return Ok(other);
    }
    if is_unused(before)? {
        return Ok(std::mem::replace(before, other));
    }
    let reason = format!(
        "{} and {} are both journal file {:010}, and both hold records: keep the one that belongs to this journal, and move the other one away",
        before.path.display(),
        other.path.display(),
        other.number
    );
    Err(Missing::Error(JournalError::BadOption { option: "journal_directory", reason }))
}

/// Numbers and paths of the segments in one directory. An archive directory that does not exist yet
/// counts as empty.
fn list(
    disk: &dyn Disk,
    directory: &Path,
    is_archive: bool,
) -> Result<Vec<(u32, bool, PathBuf)>, JournalError> {
    let names = match disk.list(directory) {
        Err(error) if is_archive && error.kind() == io::ErrorKind::NotFound => Vec::new(),
        names => names.map_err(|error| JournalError::io(directory, "listing the directory", &error))?,
    };
    let numbered = names.into_iter().filter_map(|name| Some((segment_number(&name)?, name)));
    Ok(numbered.map(|(number, name)| (number, is_archive, directory.join(name))).collect())
}

/// Syncs changes of the directories that an earlier process made and did not sync. Otherwise a
/// crash could undo an older removal after the removal of a newer segment is durable. That would
/// leave a gap.
pub(crate) fn settle(disk: &dyn Disk, directory: &Path, archive: Option<&Path>) -> Result<(), JournalError> {
    for directory in [Some(directory), archive].into_iter().flatten() {
        match disk.sync_directory(directory) {
            // The archive directory does not exist yet.
            Err(error) if error.kind() == io::ErrorKind::NotFound => (),
            synced => synced.map_err(|error| JournalError::io(directory, "syncing the directory", &error))?,
        }
    }
    Ok(())
}

/// Extensions of unfinished files. Without a process that writes them, they are not needed.
const UNFINISHED: [&str; 5] = ["preparing", "writing", "packing", "archiving", "paging"];

/// Removes unfinished files of an earlier process, and indexes without a segment. In the archive
/// directory it removes only those of segments before `active`, the number of the newest one.
pub(crate) fn tidy(
    disk: &dyn Disk,
    directory: &Path,
    archive: Option<&Path>,
    active: u32,
) -> Result<(), JournalError> {
    for (directory, is_archive) in [(Some(directory), false), (archive, true)] {
        let Some(directory) = directory else { continue };
        let names = match disk.list(directory) {
            Err(error) if is_archive && error.kind() == io::ErrorKind::NotFound => continue,
            names => names.map_err(|error| JournalError::io(directory, "listing the directory", &error))?,
        };
        let segments: Vec<PathBuf> = names
            .iter()
            .filter(|name| segment_number(name).is_some())
            .map(|name| index_path(&directory.join(name)))
            .collect();
        for file_name in names {
            let path = directory.join(&file_name);
            let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
            let as_segment = path.with_extension(SEGMENT_EXTENSION);
            let number = as_segment.file_name().and_then(|name| name.to_str()).and_then(segment_number);
            let (is_numbered, is_own) = (number.is_some(), number.is_some_and(|number| number < active));
            let is_unfinished = UNFINISHED.contains(&extension) && (is_numbered || !is_archive);
            let is_orphan = extension == INDEX_EXTENSION && is_numbered && !segments.contains(&path);
            if (is_unfinished || is_orphan) && (is_own || !is_archive) {
                match disk.remove(&path) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => {
                        return Err(JournalError::io(&path, "removing an unfinished file", &error));
                    }
                    _ => (),
                }
            }
        }
    }
    Ok(())
}
