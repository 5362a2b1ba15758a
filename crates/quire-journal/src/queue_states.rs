//! The states of queues, kept beside the journal so that a restart need not read the log for them (`queue-*.state`; seed 000, reference:
//! queues-and-transaction-log Y1, Y11). What the bytes say is the caller's matter; that they are whole is this file's.

use std::path::PathBuf;
use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_64;

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

impl QueueStates {
    pub(crate) fn new(log: Arc<Log>) -> Self {
        QueueStates { log }
    }

    /// What was written last for a queue; `None` when there is no file, or it is not whole, or another version's.
    pub fn read(&self, queue: &str) -> Option<Vec<u8>> {
        let mut bytes = self.log.disk.read(&self.path(queue)).ok()?;
        let size = head_of(queue, whole_file::checked(&bytes)?)?;
        bytes.truncate(bytes.len() - size_of::<u32>());
        bytes.drain(..size);
        Some(bytes)
    }

    /// Writes the file of a queue anew; a crash leaves the old one or the new one. Blocks until it is on stable storage.
    ///
    /// # Errors
    /// What the system refuses; a name of more than 65,535 bytes.
    pub fn write(&self, queue: &str, state: &[u8]) -> Result<(), JournalError> {
        let size = u16::try_from(queue.len()).map_err(|_| JournalError::BadOption {
            option: "queue",
            reason: format!("{} bytes, the limit is {}", queue.len(), u16::MAX),
        })?;
        let mut bytes = Vec::with_capacity(HEAD_SIZE + queue.len() + state.len() + size_of::<u32>());
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&size.to_le_bytes());
        bytes.extend_from_slice(queue.as_bytes());
        bytes.extend_from_slice(state);
        whole_file::write(&*self.log.disk, &self.path(queue), bytes)
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
