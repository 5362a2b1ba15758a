//! The states of queues, kept beside the journal so that a restart need not read the log for them (`queue-*.state`; seed 000, reference:
//! queues-and-transaction-log Y1, Y11). What the bytes say is the caller's matter; that they are whole is this file's.

use std::ops::{Deref, Range};
use std::path::PathBuf;
use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_64;

use crate::disk::Mapping;
use crate::error::JournalError;
use crate::format::u32_at;
use crate::log::Log;
use crate::whole_file;

const PREFIX: &str = "queue-";
const SUFFIX: &str = ".state";
const MAGIC: [u8; 8] = *b"QUIREQST";
const VERSION: u32 = 1;
const HEAD_SIZE: usize = 14;

/// The files `queue-*.state` of a journal that is open for writing. May be used on any thread, for each queue by one at a time.
#[derive(Clone)]
pub struct QueueStates {
    log: Arc<Log>,
}

/// What was written for a queue. It is read from the file where it is looked at, and not held in memory: a file that was written is not
/// changed but replaced.
pub struct KeptState {
    mapping: Mapping,
    place: Range<usize>,
}

impl Deref for KeptState {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.mapping.bytes(self.place.start as u64, self.place.len()).unwrap_or_default()
    }
}

impl QueueStates {
    pub(crate) fn new(log: Arc<Log>) -> Self {
        QueueStates { log }
    }

    /// What was written last for a queue; `None` when there is no file, or it is not whole, or another version's.
    pub fn read(&self, queue: &str) -> Option<KeptState> {
        let mapping = self.log.disk.open_read_only(&self.path(queue)).ok()?.map().ok()?;
        let bytes = whole_file::checked(mapping.bytes(0, mapping.size())?)?;
        let place = head_of(queue, bytes)?..bytes.len();
        Some(KeptState { mapping, place })
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

/// The bytes in front of the state, when they are what they should be.
fn head_of(queue: &str, bytes: &[u8]) -> Option<usize> {
    let (head, rest) = bytes.split_at_checked(HEAD_SIZE)?;
    let is_known = head[..8] == MAGIC && u32_at(head, 8) == VERSION;
    let is_its = usize::from(u16::from_le_bytes([head[12], head[13]])) == queue.len()
        && rest.starts_with(queue.as_bytes());
    (is_known && is_its).then_some(HEAD_SIZE + queue.len())
}
