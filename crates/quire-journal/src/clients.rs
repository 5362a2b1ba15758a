//! The highest sequence of every publisher, kept beside the journal so that it survives the removal of old segments
//! (`clients.ack`; seed 004, reference: queues-and-transaction-log 2.3 P12).

use std::collections::HashMap;
use std::path::Path;

use crate::disk::Disk;
use crate::error::JournalError;
use crate::format::{u32_at, u64_at};
use crate::record::PublisherId;
use crate::segment::write_whole;

const FILE_NAME: &str = "clients.ack";
const MAGIC: [u8; 8] = *b"QUIRECLI";
const VERSION: u32 = 1;

/// Reads the file; empty when it is missing or not whole: the segments that are there correct it.
pub(crate) fn read(disk: &dyn Disk, directory: &Path) -> HashMap<PublisherId, u64> {
    disk.read(&directory.join(FILE_NAME)).ok().and_then(|bytes| decode(&bytes)).unwrap_or_default()
}

pub(crate) fn write(
    disk: &dyn Disk,
    directory: &Path,
    highest: &HashMap<PublisherId, u64>,
) -> Result<(), JournalError> {
    let mut entries: Vec<_> = highest.iter().collect();
    entries.sort_unstable();
    let mut bytes = Vec::with_capacity(16 + entries.len() * 16);
    bytes.extend_from_slice(&MAGIC);
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    bytes.extend_from_slice(&[0; 4]);
    for (publisher, sequence) in entries {
        bytes.extend_from_slice(&publisher.0.to_le_bytes());
        bytes.extend_from_slice(&sequence.to_le_bytes());
    }
    let checksum = crc32c::crc32c(&bytes[16..]);
    bytes[12..16].copy_from_slice(&checksum.to_le_bytes());
    write_whole(disk, directory, &directory.join(FILE_NAME), &bytes)
}

fn decode(bytes: &[u8]) -> Option<HashMap<PublisherId, u64>> {
    let (head, entries) = bytes.split_at_checked(16)?;
    if head[..8] != MAGIC || u32_at(head, 8) != VERSION || crc32c::crc32c(entries) != u32_at(head, 12) {
        return None;
    }
    let (entries, rest) = entries.as_chunks::<16>();
    rest.is_empty()
        .then(|| entries.iter().map(|entry| (PublisherId(u64_at(entry, 0)), u64_at(entry, 8))).collect())
}
