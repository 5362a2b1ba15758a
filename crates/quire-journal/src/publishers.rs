//! The highest sequence of every publisher, and which sealed segment holds which sequences.
//!
//! The first is kept next to the journal as `clients.ack`, so that it survives the removal of old
//! segments. The file also contains the beginning and the end of the log. The second makes the cost
//! of finding a bookmark independent of the number of segments.

use std::path::{Path, PathBuf};

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::disk::Disk;
use crate::error::JournalError;
use crate::format::{u32_at, u64_at};
use crate::record::{Position, PublisherId};
use crate::recover::beginning::Beginning;
use crate::segment::Segment;
use crate::segment::index::Index;
use crate::sidecar::{self, FoundSidecar, SidecarHead};

/// The highest sequence of every publisher.
pub(crate) type Highest = FxHashMap<PublisherId, u64>;

/// The highest sequences of the publishers of the log, without the active segment.
#[derive(Debug, Default)]
pub(crate) struct Publishers {
    /// From `clients.ack` and removed segments. Values of the other segments come first.
    before: Highest,
    /// The highest position that is known to be on stable storage.
    durable: Position,
    /// Where the log must begin, from now on or after the removal in progress.
    pub beginning: Beginning,
    /// Per publisher and sealed segment that holds it, in order: highest sequence and segment
    /// number. Most publishers are in one segment, which needs no allocation.
    sealed: FxHashMap<PublisherId, SmallVec<[(u64, u32); 1]>>,
}

impl Publishers {
    /// Only the content of `clients.ack`.
    pub fn new(clients: ClientsFile) -> Self {
        let ClientsFile { durable, beginning, highest } = clients;
        let beginning = beginning.unwrap_or_default();
        Publishers { before: highest, durable, beginning, sealed: FxHashMap::default() }
    }

    /// The sealed segment that would have this message.
    pub fn segment_of(&self, publisher: PublisherId, sequence: u64) -> Option<u32> {
        let segments = self.sealed.get(&publisher)?;
        segments.get(segments.partition_point(|(last, _)| *last < sequence)).map(|(_, number)| *number)
    }

    /// A segment was sealed.
    pub fn note_sealed(&mut self, segment: &Segment) {
        for (publisher, marks) in &segment.index.read().publishers {
            if let Some(mark) = marks.last() {
                self.sealed.entry(*publisher).or_default().push((mark.sequence, segment.number));
            }
        }
    }

    /// The oldest segment is removed. Its highest sequences are kept.
    pub fn forget(&mut self, number: u32) {
        let before = &mut self.before;
        self.sealed.retain(|publisher, segments| {
            if let Some((sequence, _)) = segments.first().copied().filter(|(_, first)| *first == number) {
                raise(before, *publisher, sequence);
                segments.remove(0);
            }
            !segments.is_empty()
        });
    }

    /// The new content of `clients.ack`, after everything up to `durable` reached stable storage.
    pub fn file(&mut self, active: Option<&Index>, durable: Position) -> ClientsFile {
        self.durable = self.durable.max(durable);
        ClientsFile { durable: self.durable, beginning: Some(self.beginning), highest: self.highest(active) }
    }

    /// The highest sequences, those in `active` included.
    pub fn highest(&self, active: Option<&Index>) -> Highest {
        let mut highest = self.before.clone();
        for (publisher, segments) in &self.sealed {
            segments.last().into_iter().for_each(|(sequence, _)| raise(&mut highest, *publisher, *sequence));
        }
        for (publisher, marks) in active.into_iter().flat_map(|index| &index.publishers) {
            marks.last().into_iter().for_each(|mark| raise(&mut highest, *publisher, mark.sequence));
        }
        highest
    }
}

fn raise(highest: &mut Highest, publisher: PublisherId, sequence: u64) {
    let known = highest.entry(publisher).or_insert(0);
    *known = sequence.max(*known);
}

const FILE_NAME: &str = "clients.ack";
const NAME: &str = "clients";
const VERSION: u32 = 3;
/// Bytes before the entries.
const HEAD_SIZE: usize = 16;

/// For versions 1 and 2, which are older than sidecar files.
const OLDER_MAGIC: [u8; 8] = *b"QUIRECLI";
/// Bytes before the entries, by version.
const OLDER_HEAD_SIZES: [usize; 2] = [24, 40];

/// The file with the highest sequences.
pub(crate) fn clients_path(directory: &Path) -> PathBuf {
    directory.join(FILE_NAME)
}

/// The content of `clients.ack`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClientsFile {
    /// A position that was on stable storage when the file was written.
    pub durable: Position,
    /// Where the log begins; `None`: the file has version 1, which does not contain it.
    pub beginning: Option<Beginning>,
    pub highest: Highest,
}

/// The state of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ClientsFound {
    Whole(ClientsFile),
    Missing,
    Damaged,
}

impl ClientsFound {
    /// Where the log begins, if the file contains it.
    pub fn beginning(&self) -> Option<Beginning> {
        if let ClientsFound::Whole(clients) = self { clients.beginning } else { None }
    }
}

impl ClientsFile {
    pub fn read(disk: &dyn Disk, directory: &Path) -> Result<ClientsFound, JournalError> {
        let found = match sidecar::read(disk, directory, FILE_NAME, NAME)? {
            FoundSidecar::Missing => return Ok(ClientsFound::Missing),
            FoundSidecar::Damaged => None,
            FoundSidecar::Older(bytes) => ClientsFile::decode_older(&bytes),
            FoundSidecar::Whole(head, content) => ClientsFile::decode(head, &content),
        };
        Ok(found.map_or(ClientsFound::Damaged, ClientsFound::Whole))
    }

    pub fn write(&self, disk: &dyn Disk, directory: &Path) -> Result<(), JournalError> {
        // The content of the file names the beginning of the log, and the file needs no part of the
        // log.
        let head = SidecarHead { version: VERSION, position: self.durable, needs: None };
        sidecar::write(disk, directory, FILE_NAME, NAME, head, &[&self.encode()])
    }

    fn encode(&self) -> Vec<u8> {
        let mut entries: Vec<_> = self.highest.iter().collect();
        entries.sort_unstable();
        let Beginning { number, first } = self.beginning.unwrap_or_default();
        let mut bytes = Vec::with_capacity(HEAD_SIZE + entries.len() * 16);
        bytes.extend_from_slice(&first.0.to_le_bytes());
        bytes.extend_from_slice(&number.to_le_bytes());
        bytes.extend_from_slice(&(entries.len() as u32).to_le_bytes());
        for (publisher, sequence) in entries {
            bytes.extend_from_slice(&publisher.0.to_le_bytes());
            bytes.extend_from_slice(&sequence.to_le_bytes());
        }
        bytes
    }

    fn decode(head: SidecarHead, content: &[u8]) -> Option<Self> {
        let (fields, entries) = content.split_first_chunk::<HEAD_SIZE>()?;
        let beginning = Beginning { first: Position(u64_at(fields, 0)), number: u32_at(fields, 8) };
        (head.version == VERSION).then_some(())?;
        let highest = entries_of(entries, u32_at(fields, 12))?;
        Some(ClientsFile { durable: head.position, beginning: Some(beginning), highest })
    }

    fn decode_older(bytes: &[u8]) -> Option<Self> {
        let version = bytes.get(8..12).map(|version| u32_at(version, 0))?;
        let head_size = *OLDER_HEAD_SIZES.get(version.checked_sub(1)? as usize)?;
        let (head, entries) = bytes.split_at_checked(head_size)?;
        (head[..8] == OLDER_MAGIC).then_some(())?;
        let beginning =
            (version > 1).then(|| Beginning { first: Position(u64_at(head, 24)), number: u32_at(head, 32) });
        let highest = entries_of(entries, u32_at(head, 12))?;
        Some(ClientsFile { durable: Position(u64_at(head, 16)), beginning, highest })
    }
}

fn entries_of(bytes: &[u8], count: u32) -> Option<Highest> {
    let (entries, rest) = bytes.as_chunks::<16>();
    (entries.len() == count as usize && rest.is_empty()).then_some(())?;
    Some(entries.iter().map(|entry| (PublisherId(u64_at(entry, 0)), u64_at(entry, 8))).collect())
}
