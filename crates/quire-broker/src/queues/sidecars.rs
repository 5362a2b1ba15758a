//! The files of queues next to the log: the position up to which each is settled (`queues.ack`),
//! and the state of each (`queue-*.state`). The bytes are in docs/journal-format.md.

use quire_journal::{FoundSidecar, JournalError, Position, SidecarHead, SidecarReader, Sidecars};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use super::left_out::LeftOut;
use crate::config::queues::Selection;

const POINTS_FILE: &str = "queues.ack";
const POINTS_NAME: &str = "queues";
const POINTS_VERSION: u32 = 4;
/// Version 3 does not record which messages entered the queues.
const POINTS_VERSION_WITHOUT_SELECTIONS: u32 = 3;
/// Version 2 has the content of version 3. The position in its head is not the end of the log that
/// it covers.
const POINTS_VERSION_WITHOUT_END: u32 = 2;
/// Version 1, which is older than sidecar files, begins with this.
const OLDER_POINTS_HEAD: &[u8] = b"QUIREQUE\x01\0\0\0";
const ENTRY_HEAD_SIZE: usize = 16;
/// Up to version 3.
const OLDER_ENTRY_HEAD_SIZE: usize = 12;

const STATE_PREFIX: &str = "queue-";
const STATE_SUFFIX: &str = ".state";
const STATE_VERSION: u32 = 3;

/// How far one queue is done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct QueuePoint {
    /// The queue; at most 65,535 bytes, as any topic.
    pub queue: String,
    /// The recovery point that it was configured with; at most 65,535 bytes.
    pub recovery_point: String,
    /// Everything up to here is settled: recovery can begin after it. No message that is left out
    /// is before it.
    pub settled: Position,
    /// It was created at run time.
    pub is_created: bool,
    /// The settings that decide which messages enter. `None` when the queue left the configuration,
    /// and in files of earlier versions.
    pub selection: Option<Selection>,
    /// The messages that entered it and do not fit any more.
    pub left_out: LeftOut,
}

/// The further members of an entry: a JSON object.
#[derive(Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
struct Members {
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    created: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    selection: Option<Selection>,
    #[serde(skip_serializing_if = "Option::is_none")]
    left_out: Option<LeftOut>,
}

/// How far all queues are done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct QueuePoints {
    pub points: Vec<QueuePoint>,
    /// The log up to here was known when the file was written: a queue that is missing in it had no
    /// beginning up to here. `None` in files of earlier versions.
    pub covers: Option<Position>,
    /// The first position of the log that a queue needs.
    needs: Option<Position>,
}

impl QueuePoints {
    /// The points of a log that begins at `first`: no earlier record can be needed. They cover the
    /// log up to `covers`.
    pub fn new(points: Vec<QueuePoint>, first: Position, covers: Position) -> Self {
        let needs = points.iter().map(|point| point.settled.next().max(first)).min();
        QueuePoints { points, covers: Some(covers), needs }
    }

    /// Whether a file with `self` can be kept instead of one with `other`.
    pub fn is_as_good_as(&self, other: &QueuePoints) -> bool {
        self.points == other.points && self.needs == other.needs && self.covers.is_some()
    }

    fn encode(&self) -> Result<Vec<u8>, JournalError> {
        let bad = |reason: String| JournalError::BadOption { option: "queue", reason };
        let size = |text: &str| {
            let reason = || format!("{} bytes, the limit is {}", text.len(), u16::MAX);
            u16::try_from(text.len()).map_err(|_| bad(reason()))
        };
        let mut bytes = Vec::new();
        for point in &self.points {
            let members = Members {
                created: point.is_created,
                selection: point.selection.clone(),
                left_out: Some(point.left_out.clone()).filter(|left_out| left_out.count > 0),
            };
            let members = serde_json::to_vec(&members).map_err(|error| bad(error.to_string()))?;
            bytes.extend_from_slice(&size(&point.queue)?.to_le_bytes());
            bytes.extend_from_slice(&size(&point.recovery_point)?.to_le_bytes());
            bytes.extend_from_slice(&(members.len() as u32).to_le_bytes());
            bytes.extend_from_slice(&point.settled.get().to_le_bytes());
            bytes.extend_from_slice(point.queue.as_bytes());
            bytes.extend_from_slice(point.recovery_point.as_bytes());
            bytes.extend_from_slice(&members);
        }
        Ok(bytes)
    }
}

fn decode(mut rest: &[u8]) -> Option<Vec<QueuePoint>> {
    let mut points = Vec::new();
    while !rest.is_empty() {
        let (head, after) = rest.split_first_chunk::<ENTRY_HEAD_SIZE>()?;
        let (sizes, head) = head.split_first_chunk::<4>()?;
        let (size, settled) = head.split_first_chunk::<4>()?;
        let (mut point, after) = decode_point(*sizes, settled, after)?;
        let (members, after) = after.split_at_checked(usize::try_from(u32::from_le_bytes(*size)).ok()?)?;
        let Members { created, selection, left_out } = serde_json::from_slice(members).ok()?;
        (point.is_created, point.selection) = (created, selection);
        point.left_out = left_out.unwrap_or_default();
        points.push(point);
        rest = after;
    }
    Some(points)
}

/// The content of versions up to 3.
fn decode_older(mut rest: &[u8]) -> Option<Vec<QueuePoint>> {
    let mut points = Vec::new();
    while !rest.is_empty() {
        let (head, after) = rest.split_first_chunk::<OLDER_ENTRY_HEAD_SIZE>()?;
        let (sizes, settled) = head.split_first_chunk::<4>()?;
        let (point, after) = decode_point(*sizes, settled, after)?;
        points.push(point);
        rest = after;
    }
    Some(points)
}

/// The name, the recovery point and the position of an entry, and the bytes after them.
fn decode_point<'a>(sizes: [u8; 4], settled: &[u8], rest: &'a [u8]) -> Option<(QueuePoint, &'a [u8])> {
    let [queue, recovery_point] = [[sizes[0], sizes[1]], [sizes[2], sizes[3]]].map(u16::from_le_bytes);
    let (queue, rest) = rest.split_at_checked(queue.into())?;
    let (recovery_point, rest) = rest.split_at_checked(recovery_point.into())?;
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).ok();
    let point = QueuePoint {
        queue: text(queue)?,
        recovery_point: text(recovery_point)?,
        settled: Position::new(u64::from_le_bytes(settled.try_into().ok()?)),
        is_created: false,
        selection: None,
        left_out: LeftOut::default(),
    };
    Some((point, rest))
}

/// The file with the settled positions of all queues. One thread at a time may write it.
#[derive(Clone)]
pub(crate) struct QueuePointsFile(Sidecars);

impl QueuePointsFile {
    pub fn new(files: Sidecars) -> Self {
        QueuePointsFile(files)
    }

    /// The content that was written last; `None` when there is no file, or it is not whole, or of a
    /// later version.
    pub fn read(&self) -> Option<QueuePoints> {
        match self.0.read(POINTS_FILE, POINTS_NAME).ok()? {
            FoundSidecar::Whole(head, content) if head.version == POINTS_VERSION => Some(QueuePoints {
                points: decode(&content)?,
                covers: Some(head.position),
                needs: head.needs,
            }),
            FoundSidecar::Whole(head, content) if head.version == POINTS_VERSION_WITHOUT_SELECTIONS => {
                let points = decode_older(&content)?;
                Some(QueuePoints { points, covers: Some(head.position), needs: head.needs })
            }
            FoundSidecar::Whole(head, content) if head.version == POINTS_VERSION_WITHOUT_END => {
                Some(QueuePoints { points: decode_older(&content)?, covers: None, needs: head.needs })
            }
            // It does not record which part of the log is needed, so the start replaces it.
            FoundSidecar::Older(bytes) => {
                let points = decode_older(bytes.strip_prefix(OLDER_POINTS_HEAD)?)?;
                Some(QueuePoints { points, covers: None, needs: None })
            }
            _ => None,
        }
    }

    /// Removes queues that no longer exist, so that the log is not kept for them. The log ends at
    /// `end`.
    ///
    /// # Errors
    /// What the system refuses.
    pub fn clear(&self, end: Position) -> Result<(), JournalError> {
        match self.read() {
            Some(points) if !points.points.is_empty() => {
                self.write(&QueuePoints { covers: Some(end), ..QueuePoints::default() })
            }
            _ => Ok(()),
        }
    }

    /// Replaces the file: a crash leaves the old one or the new one. Blocks until it is on stable
    /// storage.
    ///
    /// # Errors
    /// What the system refuses; a name or recovery point that is too long.
    pub fn write(&self, points: &QueuePoints) -> Result<(), JournalError> {
        let position = points.covers.unwrap_or_default();
        let head = SidecarHead { version: POINTS_VERSION, position, needs: points.needs };
        self.0.write(POINTS_FILE, POINTS_NAME, head, &[&points.encode()?])
    }
}

/// The files with the states of queues. For each queue one at a time may use it, on any thread.
#[derive(Clone)]
pub(crate) struct QueueStates(Sidecars);

impl QueueStates {
    pub fn new(files: Sidecars) -> Self {
        QueueStates(files)
    }

    /// The state that was written last for a queue, to be read in pieces; `None` when there is no
    /// file, or one of another version, or it cannot be read.
    pub fn read(&self, queue: &str) -> Option<SidecarReader> {
        let (head, reader) = self.0.open(&file_name(queue), queue)?;
        (head.version == STATE_VERSION).then_some(reader)
    }

    /// Replaces the file of a queue, from parts that follow each other. They cover the log up to
    /// `position`. A crash leaves the old file or the new one. Blocks until it is on stable
    /// storage.
    ///
    /// # Errors
    /// What the system refuses; a name of more than 65,535 bytes.
    pub fn write(&self, queue: &str, position: Position, state: &[&[u8]]) -> Result<(), JournalError> {
        // It can be rebuilt from the part of the log that the other file needs.
        let head = SidecarHead { version: STATE_VERSION, position, needs: None };
        self.0.write(&file_name(queue), queue, head, state)
    }

    /// Removes the file of a queue, if there is one.
    ///
    /// # Errors
    /// What the system refuses.
    pub fn remove(&self, queue: &str) -> Result<(), JournalError> {
        let file = file_name(queue);
        if self.0.files()?.contains(&file) { self.0.remove(&file) } else { Ok(()) }
    }

    /// Removes the files of all queues but these.
    ///
    /// # Errors
    /// What the system refuses.
    pub fn retain(&self, queues: &[&str]) -> Result<(), JournalError> {
        let kept: Vec<String> = queues.iter().map(|queue| file_name(queue)).collect();
        let files = self.0.files()?;
        let states =
            files.iter().filter(|file| file.starts_with(STATE_PREFIX) && file.ends_with(STATE_SUFFIX));
        states.filter(|file| !kept.contains(file)).try_for_each(|file| self.0.remove(file))
    }
}

/// Names of queues can be longer than names of files, and can contain characters that names of
/// files must not.
fn file_name(queue: &str) -> String {
    format!("{STATE_PREFIX}{:016x}{STATE_SUFFIX}", xxh3_64(queue.as_bytes()))
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::path::Path;
    use std::sync::Arc;

    use quire_journal::{Disk, Journal, MemoryDisk, Options};

    use super::super::left_out::Earlier;
    use super::*;

    fn point(queue: &str, settled: u64) -> QueuePoint {
        QueuePoint {
            queue: queue.into(),
            recovery_point: "epoch".into(),
            settled: Position::new(settled),
            is_created: false,
            selection: None,
            left_out: LeftOut::default(),
        }
    }

    /// The content of versions up to 3.
    fn encode_older(points: &[QueuePoint]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for point in points {
            bytes.extend((point.queue.len() as u16).to_le_bytes());
            bytes.extend((point.recovery_point.len() as u16).to_le_bytes());
            bytes.extend(point.settled.get().to_le_bytes());
            bytes.extend(point.queue.as_bytes());
            bytes.extend(point.recovery_point.as_bytes());
        }
        bytes
    }

    #[test]
    fn what_entered_a_queue_and_what_is_left_out_come_back() {
        let selection = |filter: &str| Selection {
            message_type: "json".into(),
            underlying_topic: "^orders".into(),
            filter: Some(filter.into()),
        };
        let earlier = vec![Earlier { until: 70, selection: selection("/a = 'ä'") }];
        let points = [
            QueuePoint {
                selection: Some(selection("/b = 1")),
                left_out: LeftOut { count: 3, first: 8, earlier },
                ..point("orders", 7)
            },
            QueuePoint { is_created: true, ..point("jobs", 9) },
        ];
        let points = QueuePoints::new(points.to_vec(), Position::new(1), Position::new(90));
        assert_eq!(decode(&points.encode().unwrap()), Some(points.points));
    }

    #[test]
    fn points_come_back_whole_or_not_at_all() {
        let points = QueuePoints::new(
            vec![point("orders", 7), point("", u64::MAX)],
            Position::new(1),
            Position::new(9),
        );
        assert_eq!(points.needs, Some(Position::new(8)));
        let bytes = points.encode().unwrap();
        assert_eq!(decode(&bytes).as_ref(), Some(&points.points));
        for end in (1..bytes.len()).filter(|end| *end != 29) {
            assert_eq!(decode(&bytes[..end]), None, "{end} bytes");
        }
        assert!(
            QueuePoints::new(vec![point(&"x".repeat(65_536), 1)], Position::new(1), Position::new(9))
                .encode()
                .is_err()
        );
        // A removed record cannot be needed.
        let points = QueuePoints::new(vec![point("orders", 0)], Position::new(100), Position::new(100));
        assert_eq!(points.needs, Some(Position::new(100)));
    }

    #[test]
    fn points_are_read_back_and_the_journal_keeps_what_they_need() {
        let journal = Journal::in_memory(&Options::default()).unwrap();
        let file = QueuePointsFile::new(journal.sidecars());
        assert_eq!(file.read(), None);
        let points = QueuePoints::new(
            vec![point("orders", 12), point("jobs", 20)],
            Position::new(1),
            Position::new(25),
        );
        file.write(&points).unwrap();
        assert_eq!(file.read(), Some(points));
        assert_eq!(journal.sidecars().needs(), Some(Position::new(13)));
        file.clear(Position::new(30)).unwrap();
        let cleared = QueuePoints { covers: Some(Position::new(30)), ..QueuePoints::default() };
        assert_eq!((file.read(), journal.sidecars().needs()), (Some(cleared), None));
    }

    #[test]
    fn a_points_file_of_version_1_is_read_and_differs_from_what_is_written_now() {
        let disk = MemoryDisk::new(1 << 20);
        let options = Options { segment_size: 64 * 1024, ..Options::default() };
        let (journal, _) =
            Journal::driven_by_hand(Arc::new(disk.clone()), Path::new("journal"), &options).unwrap();
        let mut bytes = OLDER_POINTS_HEAD.to_vec();
        bytes.extend(encode_older(&[point("jobs", 7)]));
        // CRC-32C of all of it.
        bytes.extend(0xdc90_60fc_u32.to_le_bytes());
        let file = disk.create(Path::new("journal/queues.ack"), bytes.len() as u64).unwrap();
        file.write_at(&bytes, 0).unwrap();
        let points = QueuePointsFile::new(journal.sidecars()).read().unwrap();
        assert_eq!(points.points, [point("jobs", 7)]);
        // So a start replaces it.
        assert!(!points.is_as_good_as(&QueuePoints::new(
            points.points.clone(),
            Position::new(1),
            Position::new(9)
        )));
        assert_eq!(journal.sidecars().needs(), Some(Position::new(8)));
    }

    #[test]
    fn a_points_file_of_version_2_does_not_say_what_it_covers() {
        let journal = Journal::in_memory(&Options::default()).unwrap();
        let (points, needs) = (
            QueuePoints::new(vec![point("jobs", 7)], Position::new(1), Position::new(9)),
            Some(Position::new(8)),
        );
        let head = SidecarHead { version: 2, position: Position::new(7), needs };
        let content = encode_older(&points.points);
        journal.sidecars().write(POINTS_FILE, POINTS_NAME, head, &[&content]).unwrap();
        let found = QueuePointsFile::new(journal.sidecars()).read().unwrap();
        assert_eq!(found, QueuePoints { covers: None, ..points.clone() });
        assert!(!found.is_as_good_as(&points));
        assert!(points.is_as_good_as(&found));
    }

    #[test]
    fn a_points_file_of_version_3_is_read() {
        let journal = Journal::in_memory(&Options::default()).unwrap();
        let points = QueuePoints::new(vec![point("jobs", 7)], Position::new(1), Position::new(9));
        let head = SidecarHead { version: 3, position: Position::new(9), needs: points.needs };
        journal.sidecars().write(POINTS_FILE, POINTS_NAME, head, &[&encode_older(&points.points)]).unwrap();
        assert_eq!(QueuePointsFile::new(journal.sidecars()).read(), Some(points));
    }

    #[test]
    fn states_are_read_back_and_those_of_other_queues_are_removed() {
        let journal = Journal::in_memory(&Options::default()).unwrap();
        let states = QueueStates::new(journal.sidecars());
        let read = |queue: &str| {
            let mut bytes = Vec::new();
            states.read(queue)?.read_to_end(&mut bytes).ok().map(|_| bytes)
        };
        let long = "a/".repeat(400);
        assert_eq!(read("orders"), None);
        states.write("orders", Position::new(3), &[]).unwrap();
        assert_eq!(read("orders").as_deref(), Some(&b""[..]));
        states.write("orders", Position::new(3), &[b"one, ", b"", b"two"]).unwrap();
        states.write(&long, Position::new(3), &[b"three"]).unwrap();
        assert!(states.write(&"x".repeat(65_536), Position::new(3), &[]).is_err());
        assert_eq!(read("orders").as_deref(), Some(&b"one, two"[..]));
        states.retain(&["orders"]).unwrap();
        assert_eq!((read("orders").is_some(), read(&long)), (true, None));
        assert_eq!(journal.sidecars().needs(), None);
    }
}
