//! Small files that are written whole: under a temporary name, synced, renamed, the directory synced. A crash leaves the old one or the
//! new one. The last four bytes are the checksum of everything before them.

use std::path::Path;

use crate::disk::Disk;
use crate::error::JournalError;
use crate::format::u32_at;

/// Writes `bytes` and their checksum.
pub(crate) fn write(disk: &dyn Disk, path: &Path, mut bytes: Vec<u8>) -> Result<(), JournalError> {
    bytes.extend_from_slice(&crc32c::crc32c(&bytes).to_le_bytes());
    replace(disk, path, "writing", &bytes)
}

/// Writes `bytes` under another extension, and makes them the file.
pub(crate) fn replace(
    disk: &dyn Disk,
    path: &Path,
    temporary: &str,
    bytes: &[u8],
) -> Result<(), JournalError> {
    let temporary = path.with_extension(temporary);
    let written = disk
        .create(&temporary, bytes.len() as u64)
        .and_then(|file| file.write_at(bytes, 0).and_then(|()| file.sync()))
        .and_then(|()| disk.rename(&temporary, path))
        .and_then(|()| disk.sync_directory(path.parent().unwrap_or(Path::new("."))));
    written.map_err(|error| JournalError::io(path, "writing the file", &error))
}

/// The bytes before the checksum; `None` when it does not match.
pub(crate) fn checked(bytes: &[u8]) -> Option<&[u8]> {
    let (bytes, checksum) = bytes.split_last_chunk::<4>()?;
    (crc32c::crc32c(bytes) == u32_at(checksum, 0)).then_some(bytes)
}
