//! Which sealed segment holds which sequences, and the knowledge about publishers next to the
//! journal.
//!
//! The first makes the cost of finding a bookmark independent of the number of segments. The second
//! is the file `clients.ack`: it has the knowledge at the end of the sealed segments, so that it
//! survives their removal, and the beginning and the end of the log. It is not in memory: the
//! journal has the knowledge of all appended records, which is later.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::disk::Disk;
use crate::error::JournalError;
use crate::format::{RUNS_SINCE, u32_at, u64_at};
use crate::knowledge::{Knowledge, Known, Lacking, Ranges};
use crate::record::{Position, PublisherId};
use crate::recover::beginning::Beginning;
use crate::segment::Segment;
use crate::segment::sums::Sums;
use crate::sidecar::{self, FoundSidecar, SidecarHead};

/// The publishers of the sealed segments, and the facts of `clients.ack` that change with them.
#[derive(Debug, Default)]
pub(crate) struct Publishers {
    /// The highest position that is known to be on stable storage.
    pub durable: Position,
    /// Where the log must begin, from now on or after the removal in progress.
    pub beginning: Beginning,
    /// Per publisher and sealed segment that holds it, in order: highest sequence and segment
    /// number. Most publishers are in one segment, which needs no allocation.
    sealed: FxHashMap<PublisherId, SmallVec<[(u64, u32); 1]>>,
    /// The sealed segments with late records, in order.
    with_late: Vec<u32>,
}

impl Publishers {
    pub fn new(durable: Position, beginning: Beginning) -> Self {
        Publishers { durable, beginning, ..Publishers::default() }
    }

    /// The sealed segment that would have this message, unless it was late.
    pub fn segment_of(&self, publisher: PublisherId, sequence: u64) -> Option<u32> {
        let segments = self.sealed.get(&publisher)?;
        segments.get(segments.partition_point(|(last, _)| *last < sequence)).map(|(_, number)| *number)
    }

    /// The sealed segments with late records, in order.
    pub fn with_late(&self) -> &[u32] {
        &self.with_late
    }

    /// A segment was sealed.
    pub fn note_sealed(&mut self, segment: &Segment) {
        let index = segment.index.read();
        for (publisher, marks) in &index.publishers {
            if let Some(mark) = marks.last() {
                self.sealed.entry(*publisher).or_default().push((mark.sequence, segment.number));
            }
        }
        if !index.late.is_empty() {
            self.with_late.push(segment.number);
        }
    }

    /// The oldest segment is removed.
    pub fn forget(&mut self, number: u32) {
        self.sealed.retain(|_, segments| {
            if segments.first().is_some_and(|(_, first)| *first == number) {
                segments.remove(0);
            }
            !segments.is_empty()
        });
        self.with_late.retain(|other| *other != number);
    }
}

const FILE_NAME: &str = "clients.ack";
const NAME: &str = "clients";
const VERSION: u32 = 6;
/// Bytes before the entries.
const HEAD_SIZE: usize = 36;
const ENTRY_SIZE: usize = 40;

/// It has no sequences that were passed over.
const VERSION_5: u32 = 5;

/// It does not say which ranges of holes are exact.
const VERSION_4: u32 = 4;

/// Only the highest sequences.
const VERSION_3: u32 = 3;
const HEAD_SIZE_3: usize = 16;

/// For versions 1 and 2, which are older than sidecar files.
const OLDER_MAGIC: [u8; 8] = *b"QUIRECLI";
/// Bytes before the entries, by version.
const OLDER_HEAD_SIZES: [usize; 2] = [24, 40];

/// The file with the knowledge about publishers.
pub(crate) fn clients_path(directory: &Path) -> PathBuf {
    directory.join(FILE_NAME)
}

/// The content of `clients.ack`.
#[derive(Clone, Debug, Default)]
pub(crate) struct ClientsFile {
    /// A position that was on stable storage when the file was written.
    pub durable: Position,
    /// Where the log begins; `None`: the file has version 1, which does not contain it.
    pub beginning: Option<Beginning>,
    /// The end of a sealed segment: the knowledge is that of the records up to here.
    pub covers: Position,
    /// The records up to here are not part of the sums, because a build without sums wrote them.
    /// `None`: the file has an older version.
    pub counted_after: Option<Position>,
    pub knowledge: Knowledge,
}

/// The state of the file.
#[derive(Clone, Debug)]
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

    /// For a log without a whole file, which begins with `segments`.
    pub fn new(segments: &[Arc<Segment>]) -> Self {
        let clients = ClientsFile::default();
        ClientsFile { counted_after: Some(uncounted(segments)), ..clients }
    }

    /// Makes it a file of the newest version, for a log that begins with `segments`.
    pub fn upgrade(&mut self, segments: &[Arc<Segment>]) {
        self.counted_after.get_or_insert_with(|| uncounted(segments));
    }

    /// Adds the records of the segments after those that it covers. They are sealed and in order.
    /// Returns whether there were such segments. Passes the number and the sums of each segment
    /// that it reads to `each`.
    ///
    /// # Errors
    /// The file of a segment cannot be opened now. Of a damaged segment, the highest sequences in
    /// its index are added, without an error: the readers of the segment report the damage.
    /// Sequences of an unknown run are looked up in the log, so no record is lost by that.
    pub fn cover(
        &mut self,
        segments: &[Arc<Segment>],
        each: &mut dyn FnMut(u32, Sums),
    ) -> Result<bool, JournalError> {
        let before = self.covers;
        for segment in segments {
            let last = segment.summary().last;
            if last > self.covers {
                self.add(segment, each)?;
                self.covers = last;
            }
        }
        Ok(self.covers > before)
    }

    fn add(&mut self, segment: &Arc<Segment>, each: &mut dyn FnMut(u32, Sums)) -> Result<(), JournalError> {
        if segment.version >= RUNS_SINCE {
            let mut sums = Sums::default();
            let read = segment.for_each_step(|position, step| {
                // After a power cut that removed the next segment, this one got more records.
                if position > self.covers {
                    self.knowledge.take(&step, true);
                }
                sums.add(&step);
            });
            match read {
                Ok(()) => {
                    each(segment.number, sums);
                    return Ok(());
                }
                Err(JournalError::Corrupt { .. } | JournalError::Unreadable { .. }) => (),
                Err(error) => return Err(error),
            }
        }
        for (publisher, marks) in &segment.index.read().publishers {
            if let Some(mark) = marks.last() {
                self.knowledge.entry(*publisher).raise(mark.sequence);
            }
        }
        Ok(())
    }

    /// The content of the file.
    fn encode(&self) -> Vec<u8> {
        let mut entries: Vec<&Known> = self.knowledge.iter().collect();
        entries.sort_unstable_by_key(|known| known.publisher);
        let Beginning { number, first } = self.beginning.unwrap_or_default();
        let mut bytes = Vec::with_capacity(HEAD_SIZE + entries.len() * ENTRY_SIZE);
        let put = |bytes: &mut Vec<u8>, value: u64| bytes.extend_from_slice(&value.to_le_bytes());
        put(&mut bytes, first.0);
        bytes.extend_from_slice(&number.to_le_bytes());
        bytes.extend_from_slice(&(entries.len() as u32).to_le_bytes());
        put(&mut bytes, self.covers.0);
        put(&mut bytes, self.counted_after.unwrap_or_default().0);
        let lacking =
            entries.iter().filter_map(|known| known.lacking.as_ref().map(|of| (known.publisher, of)));
        bytes.extend_from_slice(&(lacking.clone().count() as u32).to_le_bytes());
        for Known { publisher, highest, run, run_begin, sum, .. } in &entries {
            [publisher.0, *highest, *run, *run_begin, *sum]
                .into_iter()
                .for_each(|value| put(&mut bytes, value));
        }
        for (publisher, Lacking { holes, passed }) in lacking.map(|(publisher, of)| (publisher, &**of)) {
            put(&mut bytes, publisher.0);
            for count in [holes.list().len(), passed.list().len()] {
                bytes.extend_from_slice(&(count as u32).to_le_bytes());
            }
            put(&mut bytes, holes.wide_through());
            put(&mut bytes, passed.wide_through());
            for (first, last) in holes.list().iter().chain(passed.list()) {
                put(&mut bytes, *first);
                put(&mut bytes, *last);
            }
        }
        bytes
    }

    fn decode(head: SidecarHead, content: &[u8]) -> Option<Self> {
        match head.version {
            VERSION | VERSION_5 | VERSION_4 => ClientsFile::decode_newest(head, content),
            VERSION_3 => {
                let (fields, entries) = content.split_first_chunk::<HEAD_SIZE_3>()?;
                let beginning = Beginning { first: Position(u64_at(fields, 0)), number: u32_at(fields, 8) };
                let knowledge = entries_of(entries, u32_at(fields, 12))?;
                Some(ClientsFile {
                    durable: head.position,
                    beginning: Some(beginning),
                    knowledge,
                    ..ClientsFile::default()
                })
            }
            _ => None,
        }
    }

    fn decode_newest(head: SidecarHead, content: &[u8]) -> Option<Self> {
        let (fields, rest) = content.split_first_chunk::<HEAD_SIZE>()?;
        let (entries, rest) = rest.split_at_checked(u32_at(fields, 12) as usize * ENTRY_SIZE)?;
        let mut knowledge = Knowledge::default();
        for entry in entries.as_chunks::<ENTRY_SIZE>().0 {
            let [publisher, highest, run, run_begin, sum] = [0, 8, 16, 24, 32].map(|at| u64_at(entry, at));
            let known = knowledge.entry(PublisherId(publisher));
            *known = Known { highest, run, run_begin, sum, ..Known::new(known.publisher) };
        }
        decode_lacking(&mut knowledge, (u32_at(fields, 32), head.version), rest)?;
        Some(ClientsFile {
            durable: head.position,
            beginning: Some(Beginning { first: Position(u64_at(fields, 0)), number: u32_at(fields, 8) }),
            covers: Position(u64_at(fields, 16)),
            counted_after: Some(Position(u64_at(fields, 24))),
            knowledge,
        })
    }

    fn decode_older(bytes: &[u8]) -> Option<Self> {
        let version = bytes.get(8..12).map(|version| u32_at(version, 0))?;
        let head_size = *OLDER_HEAD_SIZES.get(version.checked_sub(1)? as usize)?;
        let (head, entries) = bytes.split_at_checked(head_size)?;
        (head[..8] == OLDER_MAGIC).then_some(())?;
        let beginning =
            (version > 1).then(|| Beginning { first: Position(u64_at(head, 24)), number: u32_at(head, 32) });
        let knowledge = entries_of(entries, u32_at(head, 12))?;
        let durable = Position(u64_at(head, 16));
        Some(ClientsFile { durable, beginning, knowledge, ..ClientsFile::default() })
    }
}

/// The records up to here are not in the sums of a log that begins with `segments`: they were
/// removed, or a build without sums wrote them.
fn uncounted(segments: &[Arc<Segment>]) -> Position {
    let removed = segments.first().map_or(Position::ZERO, |first| Position(first.first.0 - 1));
    let older = segments.iter().rfind(|segment| segment.version < RUNS_SINCE);
    older.map_or(removed, |older| older.summary().last)
}

/// The sequences that the log lacks of `count` publishers, which have entries already.
fn decode_lacking(knowledge: &mut Knowledge, (count, version): (u32, u32), mut rest: &[u8]) -> Option<()> {
    for _ in 0..count {
        let publisher = take_u64(&mut rest)?;
        let hole_count = take_u32(&mut rest)?;
        let passed_count = if version > VERSION_5 { take_u32(&mut rest)? } else { 0 };
        let wide_through = if version > VERSION_4 { take_u64(&mut rest)? } else { u64::MAX };
        let passed_wide_through = if version > VERSION_5 { take_u64(&mut rest)? } else { 0 };
        let known = knowledge.find_mut(PublisherId(publisher))?;
        let holes = Ranges::new(take_ranges(&mut rest, hole_count)?, known.highest, wide_through)?;
        let passed = Ranges::new(take_ranges(&mut rest, passed_count)?, known.highest, passed_wide_through)?;
        let lacking = Lacking { holes, passed };
        known.lacking = (!lacking.is_empty()).then(|| Box::new(lacking));
        known.lacking.as_ref()?;
    }
    rest.is_empty().then_some(())
}

fn take_u32(rest: &mut &[u8]) -> Option<u32> {
    let (number, after) = rest.split_first_chunk::<4>()?;
    *rest = after;
    Some(u32::from_le_bytes(*number))
}

fn take_u64(rest: &mut &[u8]) -> Option<u64> {
    let (number, after) = rest.split_first_chunk::<8>()?;
    *rest = after;
    Some(u64::from_le_bytes(*number))
}

fn take_ranges(rest: &mut &[u8], count: u32) -> Option<Vec<(u64, u64)>> {
    let (ranges, after) = rest.split_at_checked(count as usize * 16)?;
    *rest = after;
    Some(ranges.as_chunks::<16>().0.iter().map(|range| (u64_at(range, 0), u64_at(range, 8))).collect())
}

/// The entries of an older version: publisher ids and highest sequences.
fn entries_of(bytes: &[u8], count: u32) -> Option<Knowledge> {
    let (entries, rest) = bytes.as_chunks::<16>();
    (entries.len() == count as usize && rest.is_empty()).then_some(())?;
    let mut knowledge = Knowledge::default();
    for entry in entries {
        knowledge.entry(PublisherId(u64_at(entry, 0))).raise(u64_at(entry, 8));
    }
    Some(knowledge)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn head(version: u32) -> SidecarHead {
        SidecarHead { version, position: Position(9), needs: None }
    }

    fn entries(clients: &ClientsFile) -> Vec<Known> {
        let mut entries: Vec<Known> = clients.knowledge.iter().cloned().collect();
        entries.sort_unstable_by_key(|known| known.publisher);
        entries
    }

    #[test]
    fn the_file_has_the_bytes_of_its_page() {
        let mut clients = ClientsFile {
            beginning: Some(Beginning { number: 3, first: Position(40) }),
            covers: Position(90),
            counted_after: Some(Position(20)),
            ..ClientsFile::default()
        };
        let known = Known { highest: 17, run: 5, run_begin: 4, sum: 6, ..Known::new(PublisherId(2)) };
        clients.knowledge.insert(known);
        let holes = Ranges::new(vec![(2, 3), (7, 9)], 12, 3).unwrap();
        let passed = Ranges::new(vec![(4, 5)], 12, 1).unwrap();
        let lacking = Some(Box::new(Lacking { holes, passed }));
        clients.knowledge.insert(Known { highest: 12, lacking, ..Known::new(PublisherId(1)) });
        let numbers =
            |numbers: &[u64]| numbers.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<_>>();
        let expected = [
            numbers(&[40]),
            [3u32, 2].iter().flat_map(|number| number.to_le_bytes()).collect(),
            numbers(&[90, 20]),
            1u32.to_le_bytes().to_vec(),
            numbers(&[1, 12, 0, 1, 0]),
            numbers(&[2, 17, 5, 4, 6]),
            numbers(&[1]),
            [2u32, 1].iter().flat_map(|number| number.to_le_bytes()).collect(),
            numbers(&[3, 1, 2, 3, 7, 9, 4, 5]),
        ];
        assert_eq!(clients.encode(), expected.concat());
        let read = ClientsFile::decode(head(VERSION), &clients.encode()).unwrap();
        assert_eq!(entries(&read), entries(&clients));
        assert_eq!((read.beginning, read.covers), (clients.beginning, clients.covers));
        assert_eq!((read.counted_after, read.durable), (clients.counted_after, Position(9)));
        for end in 0..clients.encode().len() {
            assert!(ClientsFile::decode(head(VERSION), &clients.encode()[..end]).is_none(), "{end} bytes");
        }
    }

    #[test]
    fn files_of_versions_4_and_5_have_holes_and_nothing_that_was_passed_over() {
        let mut clients = ClientsFile::default();
        let holes = Ranges::new(vec![(2, 3), (7, 9)], 12, 3).unwrap();
        let lacking = Some(Box::new(Lacking { holes, passed: Ranges::default() }));
        clients.knowledge.insert(Known { highest: 12, lacking, ..Known::new(PublisherId(1)) });
        let mut bytes = clients.encode();
        // Publisher, the two counts, and then the two sequences.
        let counts = bytes.len() - 4 * 8 - 2 * 8 - 2 * 4;
        bytes.drain(counts + 16..counts + 24);
        bytes.drain(counts + 4..counts + 8);
        let read = ClientsFile::decode(head(5), &bytes).unwrap();
        assert_eq!(entries(&read), entries(&clients));
        let known = read.knowledge.find(PublisherId(1)).unwrap();
        assert!(known.lacks(8) && known.may_lack(3) && !known.lacks(3));
        // Version 4 does not say which holes are exact.
        bytes.drain(counts + 4..counts + 12);
        let read = ClientsFile::decode(head(4), &bytes).unwrap();
        let known = read.knowledge.find(PublisherId(1)).unwrap();
        assert_eq!(known.holes(), [(2, 3), (7, 9)]);
        assert!(known.may_lack(8) && !known.lacks(8) && known.exact_holes().next().is_none());
    }

    #[test]
    fn a_file_of_version_3_has_the_highest_sequences() {
        let bytes =
            [&40u64.to_le_bytes()[..], &3u32.to_le_bytes(), &1u32.to_le_bytes(), &[7; 8], &[1; 8]].concat();
        let read = ClientsFile::decode(head(3), &bytes).unwrap();
        assert_eq!((read.covers, read.counted_after), (Position::ZERO, None));
        let publisher = PublisherId(u64::from_le_bytes([7; 8]));
        let highest = u64::from_le_bytes([1; 8]);
        assert_eq!(entries(&read), [Known { highest, ..Known::new(publisher) }]);
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_file_or_damaged(
            version in 3u32..7,
            // Small numbers, so that many of them are counts that fit.
            bytes in prop::collection::vec(prop_oneof![8 => Just(0u8), 2 => 0u8..4, 1 => any::<u8>()], 0..200),
        ) {
            if let Some(read) = ClientsFile::decode(head(version), &bytes) {
                let again = ClientsFile::decode(head(VERSION), &read.encode()).unwrap();
                prop_assert_eq!(entries(&again), entries(&read));
                prop_assert_eq!((again.covers, again.beginning), (read.covers, read.beginning));
            }
        }
    }
}
