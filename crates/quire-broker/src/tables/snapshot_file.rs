//! The files of snapshots: one file for each topic, and one file for all topics of a container
//! (docs/journal-format.md, `table-*.state`).

use std::io::{self, BufReader, Read as _};
use std::sync::Arc;

use parking_lot::Mutex;
use quire_journal::{AllTopics, JournalError, Position, Reader, SidecarHead, Sidecars, Timestamp};
use quire_table::{
    BadSnapshot, KnownHistory, KnownOrder, ORDERED_VERSION, RowReader, SNAPSHOT_VERSION, SnapshotBlocks,
    SnapshotHead, SnapshotOwner, SnapshotPiece, SnapshotReader, TOGETHER_VERSION, snapshot_file,
};

use super::TableState;
use super::derived::Records;

/// The version of the content of the file of a container.
pub(super) const CONTAINER_VERSION: u32 = 2;

/// The same, when its topics keep the order of changes.
pub(super) const ORDERED_CONTAINER_VERSION: u32 = 4;

/// Bytes that a start reads at a time. A step and its part then fit into the cache of a core, and
/// few pages of a table are not full.
const READ_SIZE: usize = 512 * 1024;

/// The rows of one topic in a snapshot.
pub(super) struct Section {
    pub topic: Arc<str>,
    pub owner: SnapshotOwner,
    /// The position up to which the rows include the log.
    pub position: Position,
    /// As of [`SnapshotHead`].
    pub together: u64,
    /// Of a view: the stamp, which does not depend on the log.
    pub stamp: Option<[u8; 24]>,
    /// Its table keeps the order of changes.
    pub is_ordered: bool,
    /// Content version 1 or 3, in which the head has no stamp.
    pub parts: Vec<Vec<u8>>,
}

/// A snapshot that is ready to be written.
pub(crate) struct SnapshotFile {
    pub(super) files: Sidecars,
    pub(super) reader: Reader,
    pub(super) name: String,
    /// The settings that decide which topics belong to the container; `None`: the file has one
    /// topic.
    pub(super) container: Option<String>,
    /// The position at which the snapshot began. A topic without a section has no records up to
    /// this position.
    pub(super) position: Position,
    pub(super) sections: Vec<Section>,
}

impl SnapshotFile {
    /// Writes the file. Waits for the disk.
    pub(crate) fn write(mut self) -> Result<(), JournalError> {
        let mut known = None;
        for section in &mut self.sections {
            let stamp = match known {
                _ if section.stamp.is_some() => section.stamp.unwrap_or_default(),
                Some((position, stamp)) if position == section.position => stamp,
                // The log no longer has the record, so the snapshot cannot be used.
                _ => match stamp_of(&self.reader, section.position) {
                    Some(stamp) => stamp,
                    None => return Ok(()),
                },
            };
            known = Some((section.position, stamp));
            let (position, together) = (section.position, section.together);
            if let Some(first) = section.parts.first_mut() {
                SnapshotHead { position, stamp, together }.replace(&section.owner, first);
            }
        }
        let is_ordered = self.sections.iter().any(|section| section.is_ordered);
        let is_together = self.sections.iter().any(|section| section.together != 0);
        let version = match (self.container.is_some(), is_ordered) {
            (false, _) if is_together => TOGETHER_VERSION,
            (true, true) => ORDERED_CONTAINER_VERSION,
            (true, false) => CONTAINER_VERSION,
            (false, true) => ORDERED_VERSION,
            (false, false) => SNAPSHOT_VERSION,
        };
        let needs = self.position.next().max(match self.position {
            Position::ZERO => self.reader.first(),
            _ => Position::ZERO,
        });
        // A view is computed from the records of its sources, and not from the log.
        let is_view = self.sections.iter().any(|section| section.stamp.is_some());
        let needs = (!is_view).then_some(needs);
        let head = SidecarHead { version, position: self.position, needs };
        let heads = self.heads();
        let mut content: Vec<&[u8]> = Vec::new();
        let (begin, end) = (heads.first(), heads.last());
        content.extend(begin.filter(|_| self.container.is_some()).map(Vec::as_slice));
        for (index, section) in self.sections.iter().enumerate() {
            content.extend(heads.get(index + 1).filter(|_| self.container.is_some()).map(Vec::as_slice));
            content.extend(section.parts.iter().map(Vec::as_slice));
        }
        content.extend(end.filter(|_| self.container.is_some()).map(Vec::as_slice));
        self.files.write(&snapshot_file(&self.name), &self.name, head, &content)
    }

    /// The parts around the sections of a container: the settings, the head of each section, and
    /// the end.
    fn heads(&self) -> Vec<Vec<u8>> {
        let Some(settings) = &self.container else { return Vec::new() };
        let mut begin = (settings.len() as u32).to_le_bytes().to_vec();
        begin.extend_from_slice(settings.as_bytes());
        let section = |section: &Section| {
            let size: usize = section.parts.iter().map(Vec::len).sum();
            section_head(&section.topic, size as u64)
        };
        let sections = self.sections.iter().map(section);
        let end = section_head("", self.sections.len() as u64);
        [begin].into_iter().chain(sections).chain([end]).collect()
    }
}

/// The size of the name, the size of the rows, and the name. At the end, the name is empty, and the
/// number of sections replaces a size.
fn section_head(topic: &str, size: u64) -> Vec<u8> {
    // Names of topics are shorter.
    let mut head = (topic.len() as u16).to_le_bytes().to_vec();
    head.extend_from_slice(&size.to_le_bytes());
    head.extend_from_slice(topic.as_bytes());
    head
}

/// The parts of a snapshot, in their order: pieces of its rows, and the end.
pub type SnapshotParts = Box<dyn Iterator<Item = SnapshotPart>>;

/// The steps that create the parts of a snapshot, in their order. A step reads the file, and
/// returns a function that creates the part. The steps must run in their order. The functions are
/// independent of each other and of the broker, so that other threads can run them.
pub type SnapshotSteps = Box<dyn Iterator<Item = MakePart> + Send>;

/// Creates a part of a snapshot.
pub type MakePart = Box<dyn FnOnce() -> SnapshotPart + Send>;

/// A part of a snapshot, or the reason why there is none: `None` = the snapshot does not belong to
/// this topic, otherwise the damage.
pub struct SnapshotPart(Result<Part, Option<String>>);

enum Part {
    Rows(SnapshotPiece),
    End(SnapshotHead, Option<KnownHistory>, Option<KnownOrder>),
}

/// The steps of the content of a snapshot. After the end, or damage, there are no more.
struct Steps<R> {
    content: R,
    reader: Option<SnapshotReader>,
    row_reader: RowReader,
    /// Memory for bytes, which is reused.
    spare: Arc<Mutex<Vec<Vec<u8>>>>,
}

/// The result of reading.
enum Read {
    Blocks(SnapshotBlocks),
    End(SnapshotHead, Option<KnownHistory>, Option<KnownOrder>),
}

impl<R: io::Read> Steps<R> {
    fn new(content: R, state: &TableState) -> Self {
        Steps {
            content,
            reader: Some(SnapshotReader::new(state.owner())),
            row_reader: state.table.row_reader(),
            spare: Arc::default(),
        }
    }

    fn step(&mut self, mut reader: SnapshotReader) -> Result<Read, Option<String>> {
        let size = read_full(&mut self.content, reader.room(READ_SIZE)).map_err(damaged)?;
        let memory = self.spare.lock().pop().unwrap_or_default();
        let blocks = reader.take(READ_SIZE - size, memory).map_err(reason_of)?;
        if size == 0 {
            let (history, order) = (reader.history(), reader.take_order());
            let head = reader.finish().map_err(reason_of)?;
            return Ok(Read::End(head, history, order));
        }
        self.reader = Some(reader);
        Ok(Read::Blocks(blocks))
    }
}

impl<R: io::Read> Iterator for Steps<R> {
    type Item = MakePart;

    fn next(&mut self) -> Option<MakePart> {
        let reader = self.reader.take()?;
        Some(match self.step(reader) {
            Ok(Read::Blocks(blocks)) => {
                let (mut row_reader, spare) = (self.row_reader.another(), self.spare.clone());
                Box::new(move || {
                    let piece = row_reader.read(&blocks).map_err(reason_of);
                    spare.lock().push(blocks.into_memory());
                    SnapshotPart(piece.map(Part::Rows))
                })
            }
            Ok(Read::End(head, history, order)) => {
                Box::new(move || SnapshotPart(Ok(Part::End(head, history, order))))
            }
            Err(reason) => Box::new(move || SnapshotPart(Err(reason))),
        })
    }
}

/// Reads until the bytes are full, or there is no more. Returns how many bytes it read.
fn read_full(content: &mut impl io::Read, mut bytes: &mut [u8]) -> io::Result<usize> {
    let size = bytes.len();
    while !bytes.is_empty() {
        match content.read(bytes) {
            Ok(0) => break,
            Ok(read) => bytes = &mut bytes[read..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(size - bytes.len())
}

fn reason_of(bad: BadSnapshot) -> Option<String> {
    match bad {
        BadSnapshot::OtherTopic => None,
        bad => Some(bad.to_string()),
    }
}

/// Reads a snapshot of a topic into its table, and that of a view also into its groups. Returns its
/// head. `run_steps` may create the parts on other threads.
///
/// # Errors
/// `None`: it does not belong to this log and this topic. Otherwise the damage.
pub(super) fn load(
    files: &Sidecars,
    log: &Reader,
    file: &str,
    state: &mut TableState,
    records: Option<&mut Records>,
    run_steps: &dyn Fn(SnapshotSteps) -> SnapshotParts,
) -> Result<SnapshotHead, Option<String>> {
    let opened = files.open(file, &state.definition.name);
    let (head, content) = opened.ok_or_else(|| Some("its head is damaged".to_owned()))?;
    if ![SNAPSHOT_VERSION, ORDERED_VERSION, TOGETHER_VERSION].contains(&head.version) {
        return Err(Some(format!("its version {} is not known to this build", head.version)));
    }
    let parts = run_steps(Box::new(Steps::new(content, state)));
    restore(parts, log, state, records)
}

/// Puts the rows of a topic into its table, and the state of a view into its groups.
fn restore(
    parts: impl Iterator<Item = SnapshotPart>,
    log: &Reader,
    state: &mut TableState,
    mut records: Option<&mut Records>,
) -> Result<SnapshotHead, Option<String>> {
    for part in parts {
        match part.0? {
            Part::Rows(piece) => {
                for entries in piece.state() {
                    let restored = records.as_mut().and_then(|records| records.restore(entries));
                    restored.ok_or_else(|| Some("the state of a group is damaged".to_owned()))?;
                }
                state.table.restore(piece);
            }
            Part::End(head, history, order) => {
                order.into_iter().for_each(|order| state.table.restore_order(order));
                return finish(head, history, log, state);
            }
        }
    }
    Err(Some("it has no end".to_owned()))
}

/// All rows are in the table. Returns the head.
fn finish(
    head: SnapshotHead,
    history: Option<KnownHistory>,
    log: &Reader,
    state: &mut TableState,
) -> Result<SnapshotHead, Option<String>> {
    state.table.finish_restore().map_err(|bad| Some(bad.to_string()))?;
    if let Some(config) = state.definition.config.history {
        let kept = history.filter(|known| known.has_all_of(config.granularity_ns));
        // Without the history before the snapshot, it begins with the time of the snapshot, which
        // is in its stamp.
        let mut snapshot_ns = [0; 8];
        snapshot_ns.copy_from_slice(&head.stamp[..8]);
        let snapshot_time = Timestamp(u64::from_le_bytes(snapshot_ns));
        state.table.set_history_begin(kept.map_or(snapshot_time, |known| known.begin));
        state.table.set_exact_after(snapshot_time);
    }
    // A record that was removed from the log cannot be compared. The snapshot of a view belongs to
    // those of its sources.
    let is_removed = head.position < log.first() || state.definition.view.is_some();
    let is_own = is_removed || stamp_of(log, head.position) == Some(head.stamp);
    if is_own { Ok(head) } else { Err(None) }
}

/// The content of the file of a container. Its errors are the same as those of [`load`].
pub(super) struct ContainerReader<R> {
    content: BufReader<R>,
    section_count: u64,
}

impl<R: io::Read> ContainerReader<R> {
    pub fn begin(content: R, settings: &str) -> Result<Self, Option<String>> {
        let mut reader =
            ContainerReader { content: BufReader::with_capacity(READ_SIZE, content), section_count: 0 };
        let size = u32::from_le_bytes(reader.array()?);
        let mut found = Vec::new();
        reader.content.by_ref().take(size.into()).read_to_end(&mut found).map_err(damaged)?;
        if found != settings.as_bytes() {
            return Err(None);
        }
        Ok(reader)
    }

    /// The name of the next topic and the size of its rows; `None` at the end.
    pub fn next_topic(&mut self) -> Result<Option<(Arc<str>, u64)>, Option<String>> {
        let name_size = u16::from_le_bytes(self.array()?);
        let size = u64::from_le_bytes(self.array()?);
        let mut name = vec![0; name_size.into()];
        self.content.read_exact(&mut name).map_err(damaged)?;
        if name.is_empty() {
            let is_at_end = self.content.read(&mut [0]).map_err(damaged)? == 0;
            let is_whole = is_at_end && size == self.section_count;
            return if is_whole { Ok(None) } else { Err(Some("its end is damaged".to_owned())) };
        }
        self.section_count += 1;
        let name = String::from_utf8(name).map_err(|_| Some("the name of a topic is damaged".to_owned()))?;
        Ok(Some((name.into(), size)))
    }

    /// Reads the rows of a topic into its table.
    pub fn read_rows(
        &mut self,
        size: u64,
        log: &Reader,
        state: &mut TableState,
    ) -> Result<Position, Option<String>> {
        let steps = Steps::new(self.content.by_ref().take(size), state);
        restore(steps.map(|make| make()), log, state, None).map(|head| head.position)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Option<String>> {
        let mut bytes = [0; N];
        self.content.read_exact(&mut bytes).map_err(damaged)?;
        Ok(bytes)
    }
}

fn damaged(error: std::io::Error) -> Option<String> {
    Some(error.to_string())
}

/// The time, the publisher and the sequence of the record at a position; `None` when the log does
/// not have it.
fn stamp_of(reader: &Reader, position: Position) -> Option<[u8; 24]> {
    let mut stamp = [0; 24];
    if position > Position::ZERO {
        let mut cursor = reader.cursor(Position::new(position.get() - 1)).sparingly();
        let batch = cursor.next(position, &AllTopics).ok()??;
        let record = batch.records().last().filter(|record| record.position == position)?;
        let numbers = [record.timestamp.as_ns(), record.publisher.get(), record.sequence];
        for (to, number) in stamp.chunks_exact_mut(8).zip(numbers) {
            to.copy_from_slice(&number.to_le_bytes());
        }
    }
    Some(stamp)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Reads names and skips the rows. Returns the topics with the sizes of their rows.
    fn topics(bytes: &[u8], settings: &str) -> Result<Vec<(String, u64)>, Option<String>> {
        let mut reader = ContainerReader::begin(bytes, settings)?;
        let mut topics = Vec::new();
        while let Some((name, size)) = reader.next_topic()? {
            std::io::copy(&mut reader.content.by_ref().take(size), &mut std::io::sink()).map_err(damaged)?;
            topics.push((name.to_string(), size));
        }
        Ok(topics)
    }

    fn content() -> Vec<u8> {
        let mut bytes = 9u32.to_le_bytes().to_vec();
        bytes.extend_from_slice(b"orders/.*");
        for (topic, rows) in [("orders/eu", &b"rows"[..]), ("orders/us", b"")] {
            bytes.extend(section_head(topic, rows.len() as u64));
            bytes.extend_from_slice(rows);
        }
        bytes.extend(section_head("", 2));
        bytes
    }

    #[test]
    fn a_container_has_its_settings_its_topics_and_an_end() {
        let whole = content();
        let expected = vec![("orders/eu".to_owned(), 4), ("orders/us".to_owned(), 0)];
        assert_eq!(topics(&whole, "orders/.*"), Ok(expected));
        assert_eq!(topics(&whole, "other"), Err(None));
        for size in 0..whole.len() {
            assert!(topics(&whole[..size], "orders/.*").is_err(), "{size} bytes");
        }
        let longer = [&whole[..], b"x"].concat();
        assert_eq!(topics(&longer, "orders/.*"), Err(Some("its end is damaged".to_owned())));
    }

    proptest! {
        #[test]
        fn any_bytes_of_a_container_are_read_or_refused(
            at in 0..content().len(),
            byte in any::<u8>(),
            tail in proptest::collection::vec(any::<u8>(), 0..64),
        ) {
            let mut bytes = content();
            bytes[at] = byte;
            let _ = topics(&bytes, "orders/.*");
            bytes.truncate(at);
            bytes.extend(tail);
            let _ = topics(&bytes, "orders/.*");
        }
    }
}
