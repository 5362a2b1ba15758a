//! The common parts of both kinds of store file: the header in two copies, and entries that contain
//! their offset (docs/internals/notes.md, "Format of store files").

use std::fs::{File, OpenOptions, TryLockError};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use quire_journal::descriptor::Owned;
use quire_journal::{Disk, RealDisk};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use super::StoreError;

/// Bytes before the first entry.
pub(super) const START: u64 = 4096;

/// Bytes of an entry before its body.
pub(super) const ENTRY_HEAD_SIZE: usize = 32;

/// Every entry begins at a multiple of it.
const ALIGNMENT: usize = 8;

pub(super) const HEADER_SIZE: usize = 512;
/// The version of a kind of file. Version 1 has no run. In version 2, a bookmark store has neither
/// places nor starts, and does not keep the first message of a publisher.
fn version_of(magic: [u8; 4]) -> u16 {
    if magic == super::bookmark::MAGIC { 3 } else { 2 }
}

const NAME_AT: usize = 40;
const RUN_AT: usize = CHECKSUM_AT - 8;
const CHECKSUM_AT: usize = HEADER_SIZE - 8;
const NAME_SIZE_MAX: usize = 255;

/// The first 4,096 bytes of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Header {
    pub magic: [u8; 4],
    pub generation: u64,
    /// Bytes of the ring; 0 = there is none.
    pub capacity: u64,
    /// Offset of the first entry that is kept.
    pub start: u64,
    pub last_sequence: u64,
    /// Of a publish store: its random number; 0 = it has none yet.
    pub run: u64,
    pub name: String,
}

/// A locked file.
pub(super) struct StoreFile {
    pub path: PathBuf,
    file: Owned<File>,
}

/// One whole entry.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct StoreEntry<'a> {
    pub tag: u64,
    pub body: &'a [u8],
}

/// The entries of a file up to the first one that is not whole.
pub(super) struct StoreEntries<'a> {
    pub entries: Vec<StoreEntry<'a>>,
    /// Offset after the last of them.
    pub end: u64,
}

impl StoreFile {
    /// Opens the file and locks it for this client. Creates the file and its directories when they
    /// are missing.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        if let Some(directory) = path.parent().filter(|above| !above.as_os_str().is_empty())
            && !directory.exists()
        {
            RealDisk
                .create_directory(directory)
                .map_err(|source| StoreError::Directory { directory: directory.to_owned(), source })?;
        }
        loop {
            let mut options = OpenOptions::new();
            // Only the user of the client may read the messages in it.
            options.read(true).write(true).create(true).truncate(false).mode(0o600);
            let file = Owned::open(|| options.open(path)).map_err(StoreError::io(path))?;
            match file.try_lock() {
                Ok(()) => (),
                Err(TryLockError::WouldBlock) => return Err(StoreError::Locked { path: path.to_owned() }),
                Err(TryLockError::Error(source)) => {
                    return Err(StoreError::Io { path: path.to_owned(), source });
                }
            }
            // Between opening and locking, its owner may have replaced the file and ended.
            let (ours, there) = (file.metadata(), path.metadata());
            if let (Ok(ours), Ok(there)) = (ours, there)
                && (ours.dev(), ours.ino()) == (there.dev(), there.ino())
            {
                return Ok(StoreFile { path: path.to_owned(), file });
            }
        }
    }

    /// The header and everything after it; no header when the file is new.
    pub fn read(&self, magic: [u8; 4]) -> Result<Option<(Header, Vec<u8>)>, StoreError> {
        let size = self.file.metadata().map_err(StoreError::io(&self.path))?.len();
        if size == 0 {
            return Ok(None);
        }
        let mut head = vec![0; usize::try_from(size.min(START)).unwrap_or_default()];
        self.file.read_exact_at(&mut head, 0).map_err(StoreError::io(&self.path))?;
        let header = self.header(&head, magic)?;
        let limit = if header.capacity == 0 { size } else { size.min(START + header.capacity) };
        let mut rest = vec![0; usize::try_from(limit.saturating_sub(START)).unwrap_or_default()];
        self.file.read_exact_at(&mut rest, START).map_err(StoreError::io(&self.path))?;
        // A header was synced before the first entry was written, so the header was destroyed.
        if header.generation == 0 && rest.iter().any(|byte| *byte != 0) {
            return Err(StoreError::Corrupt { path: self.path.clone(), at: 0 });
        }
        Ok(Some((header, rest)))
    }

    fn header(&self, head: &[u8], magic: [u8; 4]) -> Result<Header, StoreError> {
        let unfit = |what: &str| StoreError::Unfit { path: self.path.clone(), what: what.to_owned() };
        let slots = head.as_chunks::<HEADER_SIZE>().0.iter().take(2);
        let whole = slots.filter_map(|slot| Some((Header::decode(slot)?, slot[4])));
        let newest = whole.max_by_key(|(header, _)| header.generation);
        match newest {
            Some((header, _)) if header.magic != magic => Err(unfit("is another kind of store")),
            Some((_, version)) if u16::from(version) > version_of(magic) => {
                Err(unfit("was written by a newer version of quire"))
            }
            Some((header, _)) => Ok(header),
            // A new file whose first header was cut off by a power cut has no entries.
            None if head.iter().all(|byte| *byte == 0) => Ok(Header { magic, ..Header::default() }),
            None if slots_begin_with(head, magic) => {
                Err(StoreError::Corrupt { path: self.path.clone(), at: 0 })
            }
            None => Err(unfit("is not a store of quire")),
        }
    }

    /// Writes to the slot of the older header. The first header of a file is synced before an entry
    /// can follow it.
    pub fn write_header(&self, header: &Header) -> std::io::Result<()> {
        self.file.write_all_at(&header.encode(), (header.generation % 2) * HEADER_SIZE as u64)?;
        if header.generation == 1 { self.sync() } else { Ok(()) }
    }

    /// Writes at an offset of the log. A write past the end of a ring of `capacity` bytes continues
    /// at its beginning.
    pub fn write(&self, bytes: &[u8], offset: u64, capacity: u64) -> std::io::Result<()> {
        if capacity == 0 {
            return self.file.write_all_at(bytes, START + offset);
        }
        let at = offset % capacity;
        let until_end = usize::try_from(capacity - at).unwrap_or(usize::MAX);
        let (first, second) = bytes.split_at(bytes.len().min(until_end));
        self.file.write_all_at(first, START + at)?;
        if second.is_empty() { Ok(()) } else { self.file.write_all_at(second, START) }
    }

    pub fn truncate(&self, size: u64) -> std::io::Result<()> {
        self.file.set_len(size)
    }

    pub fn sync(&self) -> std::io::Result<()> {
        self.file.sync_data()
    }
}

fn slots_begin_with(head: &[u8], magic: [u8; 4]) -> bool {
    head.starts_with(&magic) || head.get(HEADER_SIZE..).is_some_and(|slot| slot.starts_with(&magic))
}

impl Header {
    fn encode(&self) -> [u8; HEADER_SIZE] {
        let mut bytes = [0; HEADER_SIZE];
        let name = &self.name.as_bytes()[..self.name.len().min(NAME_SIZE_MAX)];
        bytes[0..4].copy_from_slice(&self.magic);
        bytes[4..6].copy_from_slice(&version_of(self.magic).to_le_bytes());
        bytes[6..8].copy_from_slice(&(name.len() as u16).to_le_bytes());
        bytes[8..16].copy_from_slice(&self.generation.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.capacity.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.start.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.last_sequence.to_le_bytes());
        bytes[NAME_AT..NAME_AT + name.len()].copy_from_slice(name);
        bytes[RUN_AT..CHECKSUM_AT].copy_from_slice(&self.run.to_le_bytes());
        let checksum = xxh3_64(&bytes[..CHECKSUM_AT]);
        bytes[CHECKSUM_AT..].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8; HEADER_SIZE]) -> Option<Self> {
        if u64_at(bytes, CHECKSUM_AT)? != xxh3_64(&bytes[..CHECKSUM_AT]) {
            return None;
        }
        let name_size = usize::from(u16::from_le_bytes([bytes[6], bytes[7]]));
        Some(Header {
            magic: [bytes[0], bytes[1], bytes[2], bytes[3]],
            generation: u64_at(bytes, 8)?,
            capacity: u64_at(bytes, 16)?,
            start: u64_at(bytes, 24)?,
            last_sequence: u64_at(bytes, 32)?,
            run: u64_at(bytes, RUN_AT)?,
            name: std::str::from_utf8(bytes.get(NAME_AT..NAME_AT + name_size)?).ok()?.to_owned(),
        })
    }
}

impl<'a> StoreEntries<'a> {
    /// The entries from `start` on in `log`, whose first byte has the offset `start`.
    ///
    /// # Errors
    /// The offset of an entry that is not whole, when a later entry is whole.
    pub fn parse(log: &'a [u8], start: u64) -> Result<Self, u64> {
        let mut entries = Vec::new();
        let mut at = 0;
        while let Some(entry) = StoreEntry::decode(&log[at..], start + at as u64) {
            at += entry_size(entry.body.len());
            entries.push(entry);
            if at >= log.len() {
                break;
            }
        }
        let end = start + at as u64;
        let behind = (at.min(log.len())..log.len()).step_by(ALIGNMENT).skip(1);
        for other in behind {
            if StoreEntry::decode(&log[other..], start + other as u64).is_some() {
                return Err(end);
            }
        }
        Ok(StoreEntries { entries, end })
    }
}

impl<'a> StoreEntry<'a> {
    fn decode(bytes: &'a [u8], offset: u64) -> Option<Self> {
        if u64_at(bytes, 0)? != offset {
            return None;
        }
        let tag = u64_at(bytes, 8)?;
        let size = u64_at(bytes, 16)?;
        let body = bytes.get(ENTRY_HEAD_SIZE..)?.get(..usize::try_from(size).ok()?)?;
        (u64_at(bytes, 24)? == checksum(&bytes[..24], body)).then_some(StoreEntry { tag, body })
    }
}

/// Bytes that an entry with a body of `size` bytes takes.
pub(super) fn entry_size(size: usize) -> usize {
    (ENTRY_HEAD_SIZE + size).next_multiple_of(ALIGNMENT)
}

/// Writes an entry into `out`, which is emptied first.
pub(super) fn encode_entry(out: &mut Vec<u8>, offset: u64, tag: u64, body: &[u8]) {
    out.clear();
    out.extend_from_slice(&offset.to_le_bytes());
    out.extend_from_slice(&tag.to_le_bytes());
    out.extend_from_slice(&(body.len() as u64).to_le_bytes());
    let checksum = checksum(out, body);
    out.extend_from_slice(&checksum.to_le_bytes());
    out.extend_from_slice(body);
    out.resize(entry_size(body.len()), 0);
}

fn checksum(head: &[u8], body: &[u8]) -> u64 {
    let mut hasher = Xxh3::new();
    hasher.update(head);
    hasher.update(body);
    hasher.digest()
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk::<8>().map(|chunk| u64::from_le_bytes(*chunk))
}
