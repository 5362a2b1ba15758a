//! Sidecar files: data of a part of quire in the directory of the log (`docs/journal-format.md`,
//! *Sidecar files*).
//!
//! A sidecar file has a name, a version, the position up to which it covers the log, and the first
//! position of the log that its owner still needs. The journal checks these. Only the owner can
//! read the content.

use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

use crate::atomic_file;
use crate::disk::{Disk, File};
use crate::error::JournalError;
use crate::format::{u32_at, u64_at};
use crate::log::Log;
use crate::read::verify::Damage;
use crate::record::Position;

const MAGIC: [u8; 8] = *b"QUIRESID";
/// Bytes before the name.
const HEAD_SIZE: usize = 32;
const CHECKSUM_SIZE: usize = 4;

/// The extensions of sidecar files.
const EXTENSIONS: [&str; 3] = ["ack", "state", "place"];

/// Bytes that are read at a time to check a file.
const READ_SIZE: usize = 256 * 1024;

/// The head of a sidecar file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SidecarHead {
    /// The version of the content.
    pub version: u32,
    /// The content covers the log up to here.
    pub position: Position,
    /// The first position of the log that the owner needs; `None` = it needs no part of the log.
    pub needs: Option<Position>,
}

/// The state of a sidecar file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FoundSidecar {
    /// The file does not exist.
    Missing,
    /// A checksum does not match, or the file contains another name.
    Damaged,
    /// Its head and its content.
    Whole(SidecarHead, Vec<u8>),
    /// A build without sidecar files wrote it. Its content, without its checksum, which matches.
    Older(Vec<u8>),
}

/// The sidecar files of a journal that is open for writing. Any thread may use it; one at a time
/// writes a file.
#[derive(Clone)]
pub struct Sidecars {
    log: Arc<Log>,
}

impl Sidecars {
    pub(crate) fn new(log: Arc<Log>) -> Self {
        Sidecars { log }
    }

    /// Reads a file whole. `file` is its file name, `name` the name in it.
    ///
    /// # Errors
    /// The error of the system, unless the file does not exist.
    pub fn read(&self, file: &str, name: &str) -> Result<FoundSidecar, JournalError> {
        read(&*self.log.disk, &self.log.directory, file, name)
    }

    /// Opens a file whose content is read in pieces. `None` when there is no file, when its head is
    /// not whole or names another owner, when it is older than sidecar files, or when it cannot be
    /// read. The read of the last piece reports whether the file was whole.
    pub fn open(&self, file: &str, name: &str) -> Option<(SidecarHead, SidecarReader)> {
        let opened = self.log.disk.open_read_only(&self.log.directory.join(file)).ok()?;
        let (head, found, _) = read_head(&*opened).ok()??;
        let reader = SidecarReader::new(opened, HEAD_SIZE + name.len() + CHECKSUM_SIZE).ok()?;
        (found == name).then_some((head, reader))
    }

    /// Replaces a file, with its content from parts that follow each other: a crash leaves the old
    /// file or the new one. Returns when it is on stable storage.
    ///
    /// # Errors
    /// The error of the system. A name of more than 65,535 bytes. A file name that does not end in
    /// `.ack`, `.state` or `.place`.
    pub fn write(
        &self,
        file: &str,
        name: &str,
        head: SidecarHead,
        content: &[&[u8]],
    ) -> Result<(), JournalError> {
        write(&*self.log.disk, &self.log.directory, file, name, head, content)
    }

    /// A number that no other directory has, also one that is a copy of this; 0: not known.
    pub fn directory_id(&self) -> u64 {
        self.log.disk.directory_id(&self.log.directory)
    }

    /// The names of all files.
    ///
    /// # Errors
    /// The error of the system.
    pub fn files(&self) -> Result<Vec<String>, JournalError> {
        list(&*self.log.disk, &self.log.directory)
    }

    /// Removes a file.
    ///
    /// # Errors
    /// The error of the system.
    pub fn remove(&self, file: &str) -> Result<(), JournalError> {
        let path = self.log.directory.join(file);
        let removed = self.log.disk.remove(&path);
        removed.map_err(|error| JournalError::io(&path, "removing a sidecar file", &error))
    }

    /// The first position of the log that the owner of any file needs, as far as the files can be
    /// read.
    pub fn needs(&self) -> Option<Position> {
        needs(&*self.log.disk, &self.log.directory).into_iter().min()
    }
}

/// Reads the content of a sidecar file in pieces, so that a reader does not need memory for the
/// whole content. The read that reaches the end fails when the checksum does not match.
pub struct SidecarReader {
    file: Box<dyn File>,
    /// Where the next read begins, and the offset of the checksum.
    offset: u64,
    end: u64,
    checksum: u32,
    /// The checksum of the bytes that were read so far.
    so_far: u32,
}

impl SidecarReader {
    /// Reads from `begin` on. First reads the bytes before it for the checksum.
    fn new(file: Box<dyn File>, begin: usize) -> io::Result<Self> {
        let end = file.size()?.checked_sub(CHECKSUM_SIZE as u64).ok_or(io::ErrorKind::UnexpectedEof)?;
        let mut checksum = Vec::new();
        file.read_at(&mut checksum, CHECKSUM_SIZE, end)?;
        let checksum = u32_at(&checksum, 0);
        let mut reader = SidecarReader { file, offset: 0, end, checksum, so_far: 0 };
        reader.read_exact(&mut vec![0; begin])?;
        Ok(reader)
    }
}

impl Read for SidecarReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let size = buffer.len().min(usize::try_from(self.end - self.offset).unwrap_or(usize::MAX));
        let mut bytes = Vec::new();
        self.file.read_at(&mut bytes, size, self.offset)?;
        buffer[..size].copy_from_slice(&bytes);
        self.so_far = crc32c::crc32c_append(self.so_far, &bytes);
        self.offset += size as u64;
        if self.offset == self.end && self.so_far != self.checksum {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the checksum of the sidecar file does not match",
            ));
        }
        Ok(size)
    }
}

pub(crate) fn read(
    disk: &dyn Disk,
    directory: &Path,
    file: &str,
    name: &str,
) -> Result<FoundSidecar, JournalError> {
    let path = directory.join(file);
    match disk.read(&path) {
        Ok(bytes) => Ok(decode(bytes, name)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(FoundSidecar::Missing),
        Err(error) => Err(JournalError::io(&path, "reading the file", &error)),
    }
}

pub(crate) fn write(
    disk: &dyn Disk,
    directory: &Path,
    file: &str,
    name: &str,
    head: SidecarHead,
    content: &[&[u8]],
) -> Result<(), JournalError> {
    let bad = |reason| JournalError::BadOption { option: "sidecar", reason };
    if !is_sidecar(file) {
        return Err(bad(format!(
            "{file:?} does not end in {}",
            EXTENSIONS.map(|end| format!(".{end}")).join(" or ")
        )));
    }
    let head = encode_head(name, head)
        .ok_or_else(|| bad(format!("a name of {} bytes, the limit is {}", name.len(), u16::MAX)))?;
    let parts: Vec<&[u8]> = [&head[..]].into_iter().chain(content.iter().copied()).collect();
    atomic_file::write_parts(disk, &directory.join(file), &parts)
}

/// Whether a file with this name is one.
fn is_sidecar(file: &str) -> bool {
    file.rsplit_once('.').is_some_and(|(_, extension)| EXTENSIONS.contains(&extension))
}

/// The names of the sidecar files of a journal.
fn list(disk: &dyn Disk, directory: &Path) -> Result<Vec<String>, JournalError> {
    let names = disk.list(directory);
    let names = names.map_err(|error| JournalError::io(directory, "listing the directory", &error))?;
    Ok(names.into_iter().filter(|name| is_sidecar(name)).collect())
}

/// The positions from which the log is needed, by the readable files.
pub(crate) fn needs(disk: &dyn Disk, directory: &Path) -> Vec<Position> {
    let files = list(disk, directory).unwrap_or_default();
    files.iter().flat_map(|file| needs_of(disk, &directory.join(file))).collect()
}

fn needs_of(disk: &dyn Disk, path: &Path) -> Vec<Position> {
    match disk.open_read_only(path).and_then(|file| read_head(&*file)) {
        Ok(Some((head, ..))) => head.needs.into_iter().collect(),
        // Older than sidecar files.
        Ok(None) => disk.read(path).ok().and_then(|bytes| older_needs(&bytes)).unwrap_or_default(),
        Err(_) => Vec::new(),
    }
}

/// The positions up to which the log is not needed, from `queues.ack` of version 1. For each queue
/// it has the sizes of two texts, the position, and the texts.
fn older_needs(bytes: &[u8]) -> Option<Vec<Position>> {
    let mut rest = atomic_file::checked(bytes)?.strip_prefix(b"QUIREQUE\x01\0\0\0")?;
    let mut needs = Vec::new();
    while !rest.is_empty() {
        let (head, texts) = rest.split_first_chunk::<12>()?;
        let size = |at: usize| usize::from(u16::from_le_bytes([head[at], head[at + 1]]));
        rest = texts.get(size(0) + size(2)..)?;
        needs.push(Position(u64_at(head, 4)).next());
    }
    Some(needs)
}

/// The damage of the sidecar files of a journal whose log begins at `first`.
pub(crate) fn check(disk: &dyn Disk, directory: &Path, first: Position) -> Vec<Damage> {
    let damage = |path, reason: String| Damage { path, offset: 0, reason: reason.into() };
    let files = match list(disk, directory) {
        Ok(files) => files,
        Err(error) => return vec![damage(directory.to_owned(), error.to_string())],
    };
    let checked = files.iter().filter_map(|file| {
        let path = directory.join(file);
        let needs = match check_one(disk, &path) {
            Ok(()) => needs_of(disk, &path).into_iter().filter(|needs| *needs > Position(1)).min(),
            // It was removed in the meantime.
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                return Some(damage(path, "the checksum of the file does not match".into()));
            }
            Err(error) => return Some(damage(path, format!("the file cannot be read: {error}"))),
        };
        let needs = needs.filter(|needs| *needs < first)?;
        let reason = format!("it needs the log from position {needs} on, but the log begins at {first}");
        Some(damage(path, reason))
    });
    checked.collect()
}

/// Reads all of a file.
fn check_one(disk: &dyn Disk, path: &Path) -> io::Result<()> {
    let reader = SidecarReader::new(disk.open_read_only(path)?, 0);
    // Too short for a checksum.
    let mut reader = reader.map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => io::ErrorKind::InvalidData.into(),
        _ => error,
    })?;
    let mut bytes = vec![0; READ_SIZE];
    while reader.read(&mut bytes)? > 0 {}
    // The other checksum finds a damaged head. An older file has no head.
    Ok(())
}

fn encode_head(name: &str, head: SidecarHead) -> Option<Vec<u8>> {
    let size = u16::try_from(name.len()).ok()?;
    let mut bytes = Vec::with_capacity(HEAD_SIZE + name.len() + CHECKSUM_SIZE);
    bytes.extend_from_slice(&MAGIC);
    bytes.extend_from_slice(&head.version.to_le_bytes());
    bytes.extend_from_slice(&size.to_le_bytes());
    bytes.extend_from_slice(&[0; 2]);
    bytes.extend_from_slice(&head.position.0.to_le_bytes());
    bytes.extend_from_slice(&head.needs.unwrap_or(Position::ZERO).0.to_le_bytes());
    bytes.extend_from_slice(name.as_bytes());
    bytes.extend_from_slice(&crc32c::crc32c(&bytes).to_le_bytes());
    Some(bytes)
}

/// The head of a file, the name in it, and its size; `None` when the file is older than sidecar
/// files.
///
/// # Errors
/// [`io::ErrorKind::InvalidData`] when its checksum does not match. Otherwise the error of the
/// disk.
fn read_head(file: &dyn File) -> io::Result<Option<(SidecarHead, String, usize)>> {
    let mut bytes = Vec::new();
    file.read_at(&mut bytes, HEAD_SIZE.min(usize::try_from(file.size()?).unwrap_or(HEAD_SIZE)), 0)?;
    if !bytes.starts_with(&MAGIC) {
        return Ok(None);
    }
    if bytes.len() == HEAD_SIZE {
        let rest = usize::from(u16::from_le_bytes([bytes[12], bytes[13]])) + CHECKSUM_SIZE;
        file.read_at(&mut bytes, rest, HEAD_SIZE as u64)?;
    }
    split_head(&bytes).map(Some).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// The head at the front of a file, the name in it, and its size.
fn split_head(bytes: &[u8]) -> Option<(SidecarHead, String, usize)> {
    let head = bytes.first_chunk::<HEAD_SIZE>()?;
    let size = HEAD_SIZE + usize::from(u16::from_le_bytes([head[12], head[13]])) + CHECKSUM_SIZE;
    let name = &atomic_file::checked(bytes.get(..size)?)?[HEAD_SIZE..];
    let needs = Position(u64_at(head, 24));
    let found = SidecarHead {
        version: u32_at(head, 8),
        position: Position(u64_at(head, 16)),
        needs: (needs > Position::ZERO).then_some(needs),
    };
    (head[..8] == MAGIC && head[14..16] == [0; 2]).then_some((
        found,
        String::from_utf8(name.to_vec()).ok()?,
        size,
    ))
}

fn decode(mut bytes: Vec<u8>, name: &str) -> FoundSidecar {
    let Some(whole) = atomic_file::checked(&bytes) else { return FoundSidecar::Damaged };
    let end = whole.len();
    if !whole.starts_with(&MAGIC) {
        bytes.truncate(end);
        return FoundSidecar::Older(bytes);
    }
    match split_head(whole) {
        Some((head, found, size)) if found == name => {
            bytes.truncate(end);
            FoundSidecar::Whole(head, bytes.split_off(size))
        }
        _ => FoundSidecar::Damaged,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str, head: SidecarHead, content: &[u8]) -> Vec<u8> {
        let mut bytes = [&encode_head(name, head).unwrap(), content].concat();
        bytes.extend(crc32c::crc32c(&bytes).to_le_bytes());
        bytes
    }

    #[test]
    fn a_sidecar_file_has_the_bytes_of_its_page_and_is_read_whole_or_not_at_all() {
        let head = SidecarHead { version: 3, position: Position(258), needs: Some(Position(7)) };
        let bytes = file("größe", head, b"content");
        let expected =
            [&b"QUIRESID\x03\0\0\0\x07\0\0\0\x02\x01\0\0\0\0\0\0\x07\0\0\0\0\0\0\0"[..], "größe".as_bytes()]
                .concat();
        assert_eq!(bytes[..39], expected);
        assert_eq!(bytes[39..43], crc32c::crc32c(&expected).to_le_bytes());
        assert_eq!(&bytes[43..50], b"content");
        assert_eq!(decode(bytes.clone(), "größe"), FoundSidecar::Whole(head, b"content".to_vec()));
        assert_eq!(decode(bytes.clone(), "other"), FoundSidecar::Damaged);
        for end in 0..bytes.len() {
            assert_eq!(decode(bytes[..end].to_vec(), "größe"), FoundSidecar::Damaged, "{end} bytes");
        }
        // Bytes that must be zero.
        let mut reserved = expected;
        reserved[15] = 1;
        reserved.extend(crc32c::crc32c(&reserved).to_le_bytes());
        reserved.extend(crc32c::crc32c(&reserved).to_le_bytes());
        assert_eq!(decode(reserved, "größe"), FoundSidecar::Damaged);
        assert!(encode_head(&"x".repeat(65_536), head).is_none());
    }

    #[test]
    fn the_positions_of_an_older_file_of_queues_are_what_it_needs() {
        let mut bytes = b"QUIREQUE\x01\0\0\0".to_vec();
        for (queue, settled) in [("jobs", 700u64), ("", u64::MAX), ("new", 0)] {
            bytes.extend((queue.len() as u16).to_le_bytes());
            bytes.extend(5u16.to_le_bytes());
            bytes.extend(settled.to_le_bytes());
            bytes.extend(queue.as_bytes());
            bytes.extend(b"epoch");
        }
        let whole = |bytes: &[u8]| [bytes, &crc32c::crc32c(bytes).to_le_bytes()].concat();
        assert_eq!(older_needs(&whole(&bytes)), Some(vec![Position(701), Position(u64::MAX), Position(1)]));
        assert_eq!(older_needs(&whole(&bytes[..bytes.len() - 1])), None);
        assert_eq!(older_needs(&whole(b"QUIREQUE\x02\0\0\0")), None);
        assert_eq!(older_needs(&bytes), None);
        assert_eq!(decode(whole(&bytes), "queues"), FoundSidecar::Older(bytes));
    }
}
