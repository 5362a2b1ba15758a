//! Small files that are replaced as a whole. The new file is written under a temporary name, synced
//! and renamed, and the directory is synced. A crash leaves the old file or the new one. The last
//! four bytes are the checksum of everything before them.

use std::io::IoSlice;
use std::path::Path;

use crate::disk::Disk;
use crate::error::JournalError;
use crate::format::u32_at;

/// Writes `bytes` and their checksum.
pub(crate) fn write(disk: &dyn Disk, path: &Path, mut bytes: Vec<u8>) -> Result<(), JournalError> {
    bytes.extend_from_slice(&crc32c::crc32c(&bytes).to_le_bytes());
    replace(disk, path, "writing", &bytes)
}

/// Writes the parts, one after the other, and their checksum, without a copy of them.
pub(crate) fn write_parts(disk: &dyn Disk, path: &Path, parts: &[&[u8]]) -> Result<(), JournalError> {
    let checksum = parts.iter().fold(0, |checksum, part| crc32c::crc32c_append(checksum, part)).to_le_bytes();
    let mut all: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
    all.push(IoSlice::new(&checksum));
    replace_by_parts(disk, path, "writing", &mut all)
}

/// Writes `bytes` under another extension, and replaces the file by the result.
pub(crate) fn replace(
    disk: &dyn Disk,
    path: &Path,
    temporary: &str,
    bytes: &[u8],
) -> Result<(), JournalError> {
    replace_by_parts(disk, path, temporary, &mut [IoSlice::new(bytes)])
}

fn replace_by_parts(
    disk: &dyn Disk,
    path: &Path,
    temporary: &str,
    parts: &mut [IoSlice<'_>],
) -> Result<(), JournalError> {
    let temporary = path.with_extension(temporary);
    let size = parts.iter().map(|part| part.len() as u64).sum();
    let written = disk
        .create(&temporary, size)
        .and_then(|file| file.write_parts_at(parts, 0).and_then(|()| file.sync()))
        .and_then(|()| disk.rename(&temporary, path))
        .and_then(|()| disk.sync_directory(path.parent().unwrap_or(Path::new("."))));
    written.map_err(|error| {
        let free = path.parent().and_then(|directory| disk.free_bytes(directory));
        JournalError::io(path, "writing the file", &error).with_sizes(size, free)
    })
}

/// The bytes before the checksum; `None` when it does not match.
pub(crate) fn checked(bytes: &[u8]) -> Option<&[u8]> {
    let (bytes, checksum) = bytes.split_last_chunk::<4>()?;
    (crc32c::crc32c(bytes) == u32_at(checksum, 0)).then_some(bytes)
}
