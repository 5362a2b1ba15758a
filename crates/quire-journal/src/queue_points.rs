//! How far every queue is done, kept beside the journal so that its recovery need not begin at the first segment (`queues.ack`; seed
//! 000, reference: queues-and-transaction-log 1.16 Y2 to Y4).

use std::path::Path;
use std::sync::Arc;

use crate::disk::Disk;
use crate::error::JournalError;
use crate::format::{u32_at, u64_at};
use crate::log::Log;
use crate::record::Position;
use crate::whole_file;

const FILE_NAME: &str = "queues.ack";
const MAGIC: [u8; 8] = *b"QUIREQUE";
const VERSION: u32 = 1;
const HEAD_SIZE: usize = 12;
const ENTRY_HEAD_SIZE: usize = 12;

/// How far one queue is done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueuePoint {
    /// The queue; at most 65,535 bytes, as any topic.
    pub queue: String,
    /// The recovery point that it was configured with; at most 65,535 bytes.
    pub recovery_point: String,
    /// Everything up to here is settled: recovery can begin behind it.
    pub settled: Position,
}

/// The file `queues.ack` of a journal that is open for writing. May be used on any thread, by one at a time.
#[derive(Clone)]
pub struct QueuePoints {
    log: Arc<Log>,
}

impl QueuePoints {
    pub(crate) fn new(log: Arc<Log>) -> Self {
        QueuePoints { log }
    }

    /// What was written last; `None` when there is no file, or it is not whole.
    pub fn read(&self) -> Option<Vec<QueuePoint>> {
        read(&*self.log.disk, &self.log.directory)
    }

    /// The first position that a queue still needs, as far as the file knows.
    pub fn needed(&self) -> Option<Position> {
        self.read()?.iter().map(|point| point.settled.next()).min()
    }

    /// Forgets queues that are there no longer, so that the log need not be kept for them.
    ///
    /// # Errors
    /// What the system refuses.
    pub fn clear(&self) -> Result<(), JournalError> {
        match self.read() {
            Some(points) if !points.is_empty() => self.write(&[]),
            _ => Ok(()),
        }
    }

    /// Writes the file anew; a crash leaves the old one or the new one. Blocks until it is on stable storage.
    ///
    /// # Errors
    /// What the system refuses; a name or recovery point that is too long.
    pub fn write(&self, points: &[QueuePoint]) -> Result<(), JournalError> {
        whole_file::write(&*self.log.disk, &self.log.directory.join(FILE_NAME), encode(points)?)
    }
}

fn read(disk: &dyn Disk, directory: &Path) -> Option<Vec<QueuePoint>> {
    let bytes = disk.read(&directory.join(FILE_NAME)).ok()?;
    decode(whole_file::checked(&bytes)?)
}

/// The lowest position up to which a queue has settled everything, of the queues that have settled something; `None` when no queue has.
pub(crate) fn reached(disk: &dyn Disk, directory: &Path) -> Option<Position> {
    // A queue that was never done with anything may have begun with a log that began later.
    read(disk, directory)?.iter().map(|point| point.settled).filter(|settled| *settled > Position::ZERO).min()
}

fn encode(points: &[QueuePoint]) -> Result<Vec<u8>, JournalError> {
    let size = |text: &str| {
        let reason = || format!("{} bytes, the limit is {}", text.len(), u16::MAX);
        u16::try_from(text.len()).map_err(|_| JournalError::BadOption { option: "queue", reason: reason() })
    };
    let mut bytes = Vec::new();
    bytes.extend_from_slice(&MAGIC);
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    for point in points {
        bytes.extend_from_slice(&size(&point.queue)?.to_le_bytes());
        bytes.extend_from_slice(&size(&point.recovery_point)?.to_le_bytes());
        bytes.extend_from_slice(&point.settled.0.to_le_bytes());
        bytes.extend_from_slice(point.queue.as_bytes());
        bytes.extend_from_slice(point.recovery_point.as_bytes());
    }
    Ok(bytes)
}

fn decode(bytes: &[u8]) -> Option<Vec<QueuePoint>> {
    let (head, mut rest) = bytes.split_at_checked(HEAD_SIZE)?;
    if head[..8] != MAGIC || u32_at(head, 8) != VERSION {
        return None;
    }
    let mut points = Vec::new();
    while !rest.is_empty() {
        let (head, after) = rest.split_at_checked(ENTRY_HEAD_SIZE)?;
        let size = |at: usize| usize::from(u16::from_le_bytes([head[at], head[at + 1]]));
        let (queue, after) = after.split_at_checked(size(0))?;
        let (recovery_point, after) = after.split_at_checked(size(2))?;
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).ok();
        points.push(QueuePoint {
            queue: text(queue)?,
            recovery_point: text(recovery_point)?,
            settled: Position(u64_at(head, 4)),
        });
        rest = after;
    }
    Some(points)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_come_back_whole_or_not_at_all() {
        let point = |queue: &str, settled| QueuePoint {
            queue: queue.into(),
            recovery_point: "epoch".into(),
            settled: Position(settled),
        };
        let points = vec![point("orders", 7), point("", u64::MAX)];
        let bytes = encode(&points).unwrap();
        assert_eq!(decode(&bytes), Some(points));
        assert_eq!(decode(&encode(&[]).unwrap()), Some(Vec::new()));
        // Without an entry the list is whole.
        for at in (0..bytes.len()).filter(|at| ![HEAD_SIZE, HEAD_SIZE + 23].contains(at)) {
            assert_eq!(decode(&bytes[..at]), None, "{at} bytes");
        }
        assert!(encode(&[point(&"x".repeat(65_536), 1)]).is_err());
    }
}
