//! Any bytes in the files give an error or what was written; never another record, a panic, a hang
//! or growth.
//!
//! First every bit position of every byte in turn, with the checksums as they are: nothing wrong
//! may be read. Then changes with checksums that match them, so that the code after the checksums
//! runs: it may then read anything, but in bounds. `QUIRE_FUZZ_CASES` asks for more of these cases
//! (`make fuzz`). At last the texts that name a place in a journal.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use quire_journal::*;

use crate::support::*;

/// Two segments, an index, `clients.ack`: closed, or as a killed process leaves it.
fn small_journal(closed: bool) -> (Snapshot, u64) {
    let disk = MemoryDisk::new(64 << 20);
    let (mut journal, _) = open_on(&disk).unwrap();
    // The fourth does not fit after the first three.
    let zeros = [0; 60_800];
    let data: [&[u8]; 7] = [b"one", b"two", &[3; 500], &zeros, b"five", b"six", b"seven"];
    for (sequence, data) in (1..).zip(data) {
        journal.append(&record(sequence, ["a", "bb"][sequence as usize % 2], data)).unwrap();
        journal.flush(SOON).unwrap();
    }
    assert_eq!(journal.reader().segments().len(), 2);
    if closed {
        journal.close().unwrap();
    } else {
        std::mem::forget(journal);
    }
    (Snapshot::of(&disk), data.len() as u64)
}

const ARCHIVE: &str = "archive";
const QUEUE: &str = "jobs";

fn open_with_archive(disk: &MemoryDisk) -> Result<(Journal, Recovery), JournalError> {
    let options = Options { archive_directory: Some(PathBuf::from(ARCHIVE)), ..small() };
    Journal::driven_by_hand(Arc::new(disk.clone()), Path::new(MEMORY), &options)
}

/// The other files that a journal can have: a compressed segment in the archive and one next to the
/// others, `archive.place`, `queues.ack`, and the state of a queue.
fn kept_journal() -> Snapshot {
    let disk = MemoryDisk::new(64 << 20);
    let (mut journal, _) = open_with_archive(&disk).unwrap();
    let long: Vec<u8> = (0..60_800u32).map(|n| (n % 97) as u8).collect();
    let (mut path, mut buffer) = (InstancePathBuffer::default(), AttributesBuffer::default());
    path.push(Instance { name: "west-1", group: "west" }).unwrap();
    let headers = HeadersBuffer::new([("trace", HeaderValue::Text("abc"))]).unwrap();
    let data = [b"one", &long[..], b"three", &long, b"five", &long, b"seven"];
    // One is late, and there are holes.
    for (sequence, data) in [1, 2, 3, 5, 6, 4, 9].into_iter().zip(data) {
        let new = NewAttributes {
            key: b"key",
            position: Some(Position::new(sequence)),
            path: path.as_path(),
            headers: headers.as_headers(),
            not_before: Some(Timestamp::from_ns(sequence << 40)),
            received: Some(Timestamp::from_ns(sequence)),
            run: sequence << 50,
            follows: Some(sequence << 20),
            stamp: Some(Timestamp::from_ns(sequence << 30)),
        };
        let attributes = buffer.encode(&new).unwrap();
        journal.append_late(&NewRecord { attributes, ..record(sequence, "topic", data) }).unwrap();
        journal.flush(SOON).unwrap();
    }
    assert_eq!(journal.holes(PublisherId(7)), [(7, 8)]);
    let maintenance = journal.maintenance();
    let end_of = |number: usize| journal.reader().segments()[number].timestamps.unwrap().1;
    assert_eq!(maintenance.compress(Which::Until(end_of(1))).unwrap().len(), 2);
    assert_eq!(maintenance.archive(Which::Until(end_of(0))).unwrap().len(), 1);
    let head = SidecarHead { version: 1, position: Position(7), needs: Some(Position(3)) };
    journal.sidecars().write("queues.ack", "queues", head, &[b"points"]).unwrap();
    journal.sidecars().write("queue.state", QUEUE, SidecarHead { needs: None, ..head }, &[b"state"]).unwrap();
    journal.close().unwrap();
    let mut snapshot = Snapshot::of(&disk);
    for name in disk.list(Path::new(ARCHIVE)).unwrap() {
        let path = Path::new(ARCHIVE).join(name);
        let bytes = disk.read(&path).unwrap();
        snapshot.0.insert(path, bytes);
    }
    let names: Vec<_> = snapshot.0.keys().map(|path| path.to_string_lossy()).collect();
    for part in ["archive/quire", "archive.place", "queues.ack", ".state", "clients.ack", ".index"] {
        assert!(names.iter().any(|name| name.contains(part)), "{part} is not among {names:?}");
    }
    let (journal, _) = open_with_archive(&snapshot.disk()).unwrap();
    assert_eq!(read_all(&journal.reader()).0.len(), 7);
    let files = journal.sidecars();
    assert!(files.needs().is_some() && files.open("queue.state", QUEUE).is_some());
    snapshot
}

/// Every byte, those within long runs of zeros apart, of which some stand for all.
fn telling_bytes(bytes: &[u8]) -> impl Iterator<Item = usize> {
    let is_dull =
        |at: usize| bytes[at.saturating_sub(16)..(at + 16).min(bytes.len())].iter().all(|byte| *byte == 0);
    (0..bytes.len()).filter(move |at| at % 61 == 0 || !is_dull(*at))
}

#[test]
fn a_flipped_bit_anywhere_is_an_error_or_changes_nothing() {
    for closed in [true, false] {
        let (snapshot, count) = small_journal(closed);
        let (whole, _) = read_all(&open_on(&snapshot.disk()).unwrap().0.reader());
        assert_eq!(whole.len() as u64, count);
        // The files of a killed process are known to be synced up to the record before the last.
        let durable = if closed { count } else { count - 1 };
        let (mut refused, mut cut) = (0, 0);
        for (path, bytes) in &snapshot.0 {
            for at in telling_bytes(bytes) {
                let disk = snapshot.disk();
                let flipped = bytes[at] ^ 1 << (at % 8);
                disk.open(path).unwrap().write_at(&[flipped], at as u64).unwrap();
                let place = || format!("byte {at} of {}, closed: {closed}", path.display());
                let Ok((journal, recovery)) = open_on(&disk) else {
                    refused += 1;
                    continue;
                };
                let (found, error) = read_all(&journal.reader());
                // A torn tail is cut when nothing says that it was acknowledged; only a kill can
                // leave one.
                let is_cut = recovery.cut.is_some() && !closed;
                cut += usize::from(is_cut);
                assert!(whole.starts_with(&found), "another record was read: {}", place());
                let is_all = found.len() == whole.len() || is_cut && found.len() as u64 >= durable;
                assert!(is_all || error.is_some(), "records are missing without a word: {}", place());
                assert!(journal.highest_sequence(PublisherId(7)) >= Some(durable), "{}", place());
                // A change that was not refused and that reading does not show is reported by
                // verify, or the file was made again.
                let is_journal = path.extension().is_some_and(|extension| extension == "journal");
                if is_journal && recovery.cut.is_none() && !is_unused(&journal, path) {
                    assert!(!journal.reader().verify().is_empty(), "verify finds nothing: {}", place());
                }
            }
        }
        assert!(refused > 500, "{refused} refused");
        assert_eq!(cut > 0, !closed, "{cut} cut");
    }
}

/// A segment that was prepared ahead holds nothing that could be damaged.
fn is_unused(journal: &Journal, path: &Path) -> bool {
    journal.reader().segments().iter().all(|segment| segment.path != path)
}

/// A change of some bytes of a file, given as fractions, so that it can be shrunk.
#[derive(Clone, Debug)]
struct Change {
    file: prop::sample::Index,
    area: Area,
    at: prop::sample::Index,
    value: u64,
    size: usize,
}

/// What is changed: picked unevenly, since most bytes of a journal are data.
#[derive(Clone, Copy, Debug)]
enum Area {
    SegmentHeader,
    BatchHeader,
    RecordHeader,
    Anywhere,
}

fn change() -> impl Strategy<Value = Change> {
    let area = prop_oneof![
        2 => Just(Area::SegmentHeader),
        4 => Just(Area::BatchHeader),
        4 => Just(Area::RecordHeader),
        2 => Just(Area::Anywhere),
    ];
    let value = prop_oneof![
        any::<u64>(),
        0u64..70,
        (0u32..64).prop_map(|bit| 1 << bit),
        (0u64..70).prop_map(|below| u64::MAX - below),
        Just(1 << 62)
    ];
    let size = prop_oneof![Just(1usize), Just(2), Just(4), Just(8)];
    (any::<prop::sample::Index>(), area, any::<prop::sample::Index>(), value, size)
        .prop_map(|(file, area, at, value, size)| Change { file, area, at, value, size })
}

impl Change {
    fn apply(&self, snapshot: &mut Snapshot) {
        let paths: Vec<PathBuf> = snapshot.0.keys().cloned().collect();
        let path = &paths[self.file.index(paths.len())];
        let Some(bytes) = snapshot.0.get_mut(path).filter(|bytes| bytes.len() > 8) else { return };
        let batches = batches(bytes);
        let is_segment = path.extension().is_some_and(|extension| extension == "journal");
        let area = if is_segment { self.area } else { Area::Anywhere };
        let (start, size) = match area {
            Area::SegmentHeader => (0, 48),
            Area::BatchHeader | Area::RecordHeader if let Some(table) = frame_table(bytes) => {
                (table, (bytes.len() - table - 4).max(1))
            }
            Area::BatchHeader | Area::RecordHeader if batches.is_empty() => (0, 48),
            Area::BatchHeader => (batches[self.at.index(batches.len())], 64),
            // With the topic and the attributes after it.
            Area::RecordHeader => (batches[self.at.index(batches.len())] + 64, 72),
            Area::Anywhere => (0, bytes.len() - 8),
        };
        let at = start + self.value as usize % 7 * 8 % size + self.at.index(size) % 8;
        let at = if matches!(area, Area::Anywhere) { self.at.index(size) } else { at };
        if let Some(target) = bytes.get_mut(at..at + self.size) {
            target.copy_from_slice(&self.value.to_le_bytes()[..self.size]);
        }
        repair(bytes, is_segment);
    }
}

/// Offsets of the batches, as far as they follow each other.
fn batches(bytes: &[u8]) -> Vec<usize> {
    let mut offsets = Vec::new();
    let mut at = 4096;
    while bytes.get(at..at + 4) == Some(b"QBAT") {
        offsets.push(at);
        let size = u32::from_le_bytes(bytes[at + 12..at + 16].try_into().unwrap()) as usize;
        at += (64 + size).next_multiple_of(8);
    }
    offsets
}

/// Where the frame table of a compressed segment begins.
fn frame_table(bytes: &[u8]) -> Option<usize> {
    let at = u64::from_le_bytes(bytes.get(36..44)?.try_into().unwrap());
    usize::try_from(at).ok().filter(|at| (4096..bytes.len() - 4).contains(at))
}

/// Makes every checksum match the current bytes.
fn repair(bytes: &mut [u8], is_segment: bool) {
    let checksum_of_all = |bytes: &mut [u8], start: usize| {
        let end = bytes.len() - 4;
        let checksum = crc32c::crc32c(&bytes[start..end]);
        bytes[end..].copy_from_slice(&checksum.to_le_bytes());
    };
    if !is_segment {
        // The head of a sidecar file has a separate checksum after its name.
        if bytes.starts_with(b"QUIRESID") && bytes.len() > 36 {
            let end = 32 + usize::from(u16::from_le_bytes([bytes[12], bytes[13]]));
            if end + 8 <= bytes.len() {
                let checksum = crc32c::crc32c(&bytes[..end]);
                bytes[end..end + 4].copy_from_slice(&checksum.to_le_bytes());
            }
        }
        return checksum_of_all(bytes, 0);
    }
    if bytes[..48].iter().any(|byte| *byte != 0) {
        repair_segment_header(bytes);
    }
    if let Some(table) = frame_table(bytes) {
        for entry in (table..(bytes.len() - 4).saturating_sub(31)).step_by(32) {
            let offset = u64::from_le_bytes(bytes[entry + 8..entry + 16].try_into().unwrap()) as usize;
            let size = u32::from_le_bytes(bytes[entry + 20..entry + 24].try_into().unwrap()) as usize;
            if let Some(frame) = bytes.get(offset..offset.saturating_add(size)) {
                let checksum = crc32c::crc32c(frame);
                bytes[entry + 24..entry + 28].copy_from_slice(&checksum.to_le_bytes());
            }
        }
        return checksum_of_all(bytes, table);
    }
    for offset in batches(bytes) {
        repair_batch_header(bytes, offset);
    }
}

/// Everything that a program does with a journal that opens.
fn use_all_of_it(disk: &MemoryDisk) {
    let exercise = |reader: &Reader| {
        let (found, _) = read_all(reader);
        assert!(found.len() < 10_000);
        for sequence in [0, 1, 3, u64::MAX] {
            let _found = reader.find(Bookmark { publisher: PublisherId(7), sequence });
        }
        for instant in [0, 1500, 1 << 40, u64::MAX] {
            let _found = reader.position_before(Timestamp(instant));
        }
        for position in [0, 1, 4, 1 << 62, u64::MAX] {
            let _place = place_of(reader, Position(position));
            let mut cursor = reader.cursor(Position(position));
            let _batch = cursor.next(Position(u64::MAX), &AllTopics);
        }
        reader.verify();
        reader.segments();
    };
    let archive = Some(Path::new(ARCHIVE));
    if let Ok(reader) = Reader::open_read_only_on(Arc::new(disk.clone()), Path::new(MEMORY), archive) {
        let _refreshed = reader.refresh();
        exercise(&reader);
    }
    if let Ok((mut journal, _)) = open_with_archive(disk) {
        exercise(&journal.reader());
        let files = journal.sidecars();
        let _needed = files.needs();
        let _read = files.read("queues.ack", "queues");
        let state = files.open("queue.state", QUEUE);
        let _read = state.map(|(_, mut state)| state.read_to_end(&mut Vec::new()));
        for sequence in 0..4 {
            let _appended = journal.append(&record(sequence * 1000, "after", &[1; 30_000]));
            let _late = journal.append_late(&record(sequence * 2, "late", &[1; 3000]));
            let _held = journal.held(Bookmark { publisher: PublisherId(7), sequence: sequence * 2 });
            journal.submit();
            journal.write_waiting();
        }
        exercise(&journal.reader());
        for action in [Action::Compress, Action::Archive, Action::Remove] {
            let _taken = journal.maintenance().take_next(action, Which::All, None);
        }
        exercise(&journal.reader());
        let _closed = journal.close();
    }
}

#[test]
fn whatever_checksums_cover_is_used_without_a_panic() {
    let cases = std::env::var("QUIRE_FUZZ_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(3000);
    let snapshots = [small_journal(true).0, small_journal(false).0, kept_journal()];
    let mut runner = TestRunner::new(Config { cases, max_shrink_iters: 200, ..Config::default() });
    let changes = (0..snapshots.len(), prop::collection::vec(change(), 1..4));
    let outcome = runner.run(&changes, |(which, changes)| {
        let mut snapshot = snapshots[which].clone();
        changes.iter().for_each(|change| change.apply(&mut snapshot));
        use_all_of_it(&snapshot.disk());
        Ok(())
    });
    outcome.unwrap_or_else(|error| panic!("{error}"));
}

proptest! {
    #[test]
    fn any_text_is_a_bookmark_or_a_time_or_refused(text in prop_oneof!["\\PC{0,40}", "[0-9TZ:.,|+-]{0,40}"]) {
        if let Ok(bookmark) = text.parse::<Bookmark>() {
            prop_assert_eq!(bookmark.to_string().parse::<Bookmark>(), Ok(bookmark));
        }
        if let Ok(timestamp) = text.parse::<Timestamp>() {
            let again = timestamp.to_string().parse::<Timestamp>().unwrap();
            // Text has microseconds.
            prop_assert_eq!(again.as_ns() / 1000, timestamp.as_ns() / 1000);
        }
    }
}

/// Found by the changes above: a cursor went round and round.
#[test]
fn an_index_that_ends_before_its_last_position_is_an_error_and_not_an_endless_loop() {
    let directory = tempfile::tempdir().unwrap();
    let (mut journal, _) = open(directory.path());
    append(&mut journal, 1..=150);
    journal.close().unwrap();
    let index = files(directory.path())[0].with_extension("index");
    let mut bytes = std::fs::read(&index).unwrap();
    bytes[32..40].copy_from_slice(&4097u64.to_le_bytes());
    repair(&mut bytes, false);
    std::fs::write(&index, &bytes).unwrap();
    let (journal, recovery) = open(directory.path());
    assert_eq!(recovery.indexes_rebuilt, 0);
    let (found, error) = read_all(&journal.reader());
    assert!(!found.is_empty() && matches!(error, Some(JournalError::Corrupt { .. })), "{error:?}");
}
