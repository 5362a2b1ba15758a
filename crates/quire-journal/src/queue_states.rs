//! The states of queues, kept beside the journal so that a restart need not read the log for them (`queue-*.state`; seed 000, reference:
//! queues-and-transaction-log Y1, Y11). What the bytes say is the caller's matter; that they are whole is this file's.

use std::io::{self, Read};
use std::path::PathBuf;
use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_64;

use crate::disk::File;
use crate::error::JournalError;
use crate::format::u32_at;
use crate::log::Log;
use crate::whole_file;

const PREFIX: &str = "queue-";
const SUFFIX: &str = ".state";
const MAGIC: [u8; 8] = *b"QUIREQST";
const VERSION: u32 = 1;
const HEAD_SIZE: usize = 14;
const CHECKSUM_SIZE: u64 = 4;

/// The files `queue-*.state` of a journal that is open for writing. May be used on any thread, for each queue by one at a time.
#[derive(Clone)]
pub struct QueueStates {
    log: Arc<Log>,
}

/// What was written for a queue, read from the file bit by bit: neither a write nor a restart needs memory for the whole of it. The last
/// read says whether all of it was whole.
pub struct KeptState {
    file: Box<dyn File>,
    /// Where the next read begins, and where the checksum stands.
    offset: u64,
    end: u64,
    checksum: u32,
    /// Of what was read so far.
    so_far: u32,
}

impl Read for KeptState {
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
                "the checksum of the state does not match",
            ));
        }
        Ok(size)
    }
}

impl QueueStates {
    pub(crate) fn new(log: Arc<Log>) -> Self {
        QueueStates { log }
    }

    /// What was written last for a queue; `None` when there is no file, or another version's, or it cannot be read.
    pub fn read(&self, queue: &str) -> Option<KeptState> {
        let file = self.log.disk.open_read_only(&self.path(queue)).ok()?;
        let end = file.size().ok()?.checked_sub(CHECKSUM_SIZE)?;
        let mut checksum = Vec::new();
        file.read_at(&mut checksum, CHECKSUM_SIZE as usize, end).ok()?;
        let checksum = u32_at(&checksum, 0);
        let mut state = KeptState { file, offset: 0, end, checksum, so_far: 0 };
        let mut head = vec![0; HEAD_SIZE + queue.len()];
        state.read_exact(&mut head).ok()?;
        is_head_of(queue, &head).then_some(state)
    }

    /// Writes the file of a queue anew, from parts that follow each other; a crash leaves the old one or the new one. Blocks until it is
    /// on stable storage.
    ///
    /// # Errors
    /// What the system refuses; a name of more than 65,535 bytes.
    pub fn write(&self, queue: &str, state: &[&[u8]]) -> Result<(), JournalError> {
        let size = u16::try_from(queue.len()).map_err(|_| JournalError::BadOption {
            option: "queue",
            reason: format!("{} bytes, the limit is {}", queue.len(), u16::MAX),
        })?;
        let mut head = Vec::with_capacity(HEAD_SIZE + queue.len());
        head.extend_from_slice(&MAGIC);
        head.extend_from_slice(&VERSION.to_le_bytes());
        head.extend_from_slice(&size.to_le_bytes());
        head.extend_from_slice(queue.as_bytes());
        let parts: Vec<&[u8]> = [&head[..]].into_iter().chain(state.iter().copied()).collect();
        whole_file::write_parts(&*self.log.disk, &self.path(queue), &parts)
    }

    /// Removes the files of all queues but these.
    ///
    /// # Errors
    /// What the system refuses.
    pub fn retain(&self, queues: &[&str]) -> Result<(), JournalError> {
        let Log { disk, directory, .. } = &*self.log;
        let kept: Vec<PathBuf> = queues.iter().map(|queue| self.path(queue)).collect();
        let names = disk.list(directory);
        let names = names.map_err(|error| JournalError::io(directory, "listing the directory", &error))?;
        for name in names.iter().filter(|name| name.starts_with(PREFIX) && name.ends_with(SUFFIX)) {
            let path = directory.join(name);
            if !kept.contains(&path) {
                let removed = disk.remove(&path);
                removed.map_err(|error| JournalError::io(&path, "removing the state of a queue", &error))?;
            }
        }
        Ok(())
    }

    /// Names of queues can be longer than names of files, and hold what those must not.
    fn path(&self, queue: &str) -> PathBuf {
        self.log.directory.join(format!("{PREFIX}{:016x}{SUFFIX}", xxh3_64(queue.as_bytes())))
    }
}

/// Whether the bytes in front of the state are what they should be.
fn is_head_of(queue: &str, head: &[u8]) -> bool {
    head[..8] == MAGIC
        && u32_at(head, 8) == VERSION
        && usize::from(u16::from_le_bytes([head[12], head[13]])) == queue.len()
        && &head[HEAD_SIZE..] == queue.as_bytes()
}
