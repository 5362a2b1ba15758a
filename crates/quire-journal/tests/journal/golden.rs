//! Journals that earlier builds wrote stay readable: directories in `tests/golden`, with every
//! state that a segment can have.
//!
//! - `journal-v1`: files carry the name of an instance, `golden`, and `clients.ack` is of version 1
//! - `journal-v1-clients-v2`: all files are named alike, and `clients.ack` says where the log
//!   begins
//! - `journal-v1-queues`: as before, with `queues.ack` and the state of a queue
//! - `journal-v2`: of format version 2, with keys, paths and deletes, and with sidecar files
//! - `journal-v3`: of format version 3, with headers
//! - `journal-v4`: of format version 4, with delays
//! - `journal-v5`: of format version 5, with times by the clock
//! - `journal-v6`: of format version 6, with runs and with what records follow
//! - `journal-v7`: of format version 7, with late records
//! - `journal-v8`: of format version 8, with stamps
//!
//! The newest directory was made by `QUIRE_MAKE_GOLDEN=1 cargo test -p quire-journal golden`. No
//! directory is made again for the same version of the format: a change after which this fails
//! needs another version (`docs/journal-format.md`).

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use quire_journal::*;

use crate::support::*;

const RECORDS: u64 = 950;

/// And the version of their segments.
const DIRECTORIES: [(&str, u8); 10] = [
    ("journal-v1", 1),
    ("journal-v1-clients-v2", 1),
    ("journal-v1-queues", 1),
    ("journal-v2", 2),
    ("journal-v3", 3),
    ("journal-v4", 4),
    ("journal-v5", 5),
    ("journal-v6", 6),
    ("journal-v7", 7),
    ("journal-v8", NEWEST),
];

/// The version that this build writes.
const NEWEST: u8 = 8;

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden").join(name)
}

fn options(directory: &Path) -> Options {
    Options { archive_directory: Some(directory.join("archive")), ..small() }
}

/// The data that the record with this sequence borrows.
struct Expected {
    topic: &'static str,
    attributes: AttributesBuffer,
    data: Vec<u8>,
}

fn expected(version: u8, sequence: u64) -> Expected {
    let topic = ["orders", "trades/eu", "größe"][sequence as usize % 3];
    let data = format!("{{\"n\": {sequence}, \"pad\": \"{}\"}}", "pad".repeat(sequence as usize % 150));
    let mut expected = Expected { topic, attributes: AttributesBuffer::default(), data: data.into_bytes() };
    if version == 1 {
        return expected;
    }
    let key = if sequence.is_multiple_of(3) { format!("key-{sequence}") } else { String::new() };
    let mut path = InstancePathBuffer::default();
    if sequence.is_multiple_of(4) {
        path.push(Instance { name: "west-1", group: "west" }).unwrap();
        path.push(Instance { name: "hub", group: "hub" }).unwrap();
    }
    let position = (!sequence.is_multiple_of(8)).then_some(Position::new(sequence + 1000));
    let (text, bytes) = (format!("trace-{sequence}"), sequence.to_le_bytes());
    let headers = [("trace", HeaderValue::Text(&text)), ("größe", HeaderValue::Bytes(&bytes))];
    let headers = match sequence % 20 {
        0 | 3.. => HeadersBuffer::default(),
        number => HeadersBuffer::new(headers.into_iter().take(number as usize)).unwrap(),
    };
    let not_before = (sequence % 20 == 2 || sequence.is_multiple_of(6))
        .then(|| Timestamp::from_ns(1_800_000_000_000_000_000 + sequence));
    let received =
        sequence.is_multiple_of(7).then(|| Timestamp::from_ns(1_600_000_000_000_000_000 + sequence));
    let new = NewAttributes { key: key.as_bytes(), position, path: path.as_path(), ..Default::default() };
    let new = match version {
        2 => new,
        3 => NewAttributes { headers: headers.as_headers(), ..new },
        4 => NewAttributes { headers: headers.as_headers(), not_before, ..new },
        5 => NewAttributes { headers: headers.as_headers(), not_before, received, ..new },
        _ => {
            let run = if sequence.is_multiple_of(9) { 0 } else { sequence << 32 };
            let follows = sequence.is_multiple_of(11).then_some(sequence / 2);
            let stamp = (version > 7 && sequence.is_multiple_of(13))
                .then(|| Timestamp::from_ns(1_900_000_000_000_000_000 + sequence));
            NewAttributes { headers: headers.as_headers(), not_before, received, run, follows, stamp, ..new }
        }
    };
    expected.attributes.encode(&new).unwrap();
    if is_delete(version, sequence) {
        expected.data.clear();
        (1..sequence % 5 + 2)
            .for_each(|number| put_deleted_key(&mut expected.data, format!("key-{number}").as_bytes()));
    }
    expected
}

/// The sequences in the order of the log. Since version 7, one of ten is late.
fn order(version: u8) -> Vec<u64> {
    let tens = (0..RECORDS / 10).map(|ten| ten * 10);
    match version {
        ..7 => (1..=RECORDS).collect(),
        _ => tens.flat_map(|ten| [1, 2, 3, 4, 6, 7, 8, 9, 10, 5].map(|number| ten + number)).collect(),
    }
}

fn is_late(version: u8, sequence: u64) -> bool {
    version >= 7 && sequence % 10 == 5
}

fn is_delete(version: u8, sequence: u64) -> bool {
    version > 1 && sequence % 25 == 7
}

fn new_record(version: u8, sequence: u64, expected: &Expected) -> NewRecord<'_> {
    NewRecord {
        kind: match sequence {
            _ if is_delete(version, sequence) => RecordKind::Delete,
            _ if sequence.is_multiple_of(50) => RecordKind::Acknowledge,
            _ => RecordKind::Publish,
        },
        message_type: (sequence % 7) as u8,
        publisher: PublisherId::of_client_name(["loader-1", "loader-2"][sequence as usize % 2]),
        sequence,
        timestamp: Timestamp::from_ns(1_700_000_000_000_000_000 + sequence * 1_000_003),
        topic: expected.topic,
        correlation_id: if sequence.is_multiple_of(5) { b"correlated" } else { b"" },
        expiration_s: (sequence.is_multiple_of(4)).then_some(sequence as u32),
        attributes: expected.attributes.attributes(),
        data: &expected.data,
    }
}

fn make(directory: &Path) {
    let (mut journal, _) =
        Journal::open(directory.join("journal"), &options(directory), &mut |_| ()).unwrap();
    for tens in order(NEWEST).chunks(10) {
        for sequence in tens {
            journal.append_late(&new_record(NEWEST, *sequence, &expected(NEWEST, *sequence))).unwrap();
        }
        journal.flush(SOON).unwrap();
    }
    let maintenance = journal.maintenance();
    let end_of = |number: usize| Which::Until(journal.reader().segments()[number].timestamps.unwrap().1);
    maintenance.compress(end_of(0)).unwrap();
    maintenance.archive(end_of(1)).unwrap();
    maintenance.compress(end_of(1)).unwrap();
    maintenance.archive(end_of(2)).unwrap();
    let head = SidecarHead { version: 2, position: Position::new(700), needs: Some(Position::new(651)) };
    journal.sidecars().write("queues.ack", "queues", head, &[b"points"]).unwrap();
    let head = SidecarHead { needs: None, ..head };
    journal.sidecars().write("queue-2517f0d9d880480f.state", "jobs", head, &[b"state of ", b"jobs"]).unwrap();
    journal.close().unwrap();
    // It names a directory of the machine.
    fs::remove_file(directory.join("journal/archive.place")).unwrap();
    // The files that every start makes.
    fs::remove_file(directory.join("journal/journal.lock")).unwrap();
    let prepared = files(&directory.join("journal")).split_off(2);
    prepared.iter().for_each(|path| fs::remove_file(path).unwrap());
}

fn check(reader: &Reader, version: u8) {
    let mut cursor = reader.cursor(Position::ZERO);
    let mut position = Position::ZERO;
    let mut latest = Timestamp::default();
    let mut order = order(version).into_iter();
    while let Some(batch) = cursor.next(reader.persisted(), &AllTopics).unwrap() {
        for found in batch.records() {
            position = Position::new(position.get() + 1);
            let sequence = order.next().expect("no more than were written");
            let held = expected(version, sequence);
            let NewRecord {
                kind,
                message_type,
                publisher,
                timestamp,
                topic,
                correlation_id,
                expiration_s,
                attributes,
                data,
                ..
            } = new_record(version, sequence, &held);
            // A late record has the time of the one before it.
            latest = latest.max(timestamp);
            let expected = Record {
                position,
                kind,
                message_type,
                publisher,
                sequence,
                timestamp: latest,
                topic,
                correlation_id,
                expiration_s,
                is_late: is_late(version, sequence),
                attributes,
                data,
            };
            assert_eq!(found, expected);
            assert_eq!(reader.find(found.bookmark()).unwrap(), Some(position));
        }
    }
    assert_eq!(position, Position::new(RECORDS));
    assert_eq!(reader.verify(), []);
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let target = to.join(path.file_name().unwrap());
        if path.is_dir() {
            copy(&path, &target);
        } else {
            fs::copy(&path, &target).unwrap();
        }
    }
}

#[test]
fn golden_journals_are_read_and_written_on() {
    if std::env::var_os("QUIRE_MAKE_GOLDEN").is_some() {
        let newest = golden(DIRECTORIES[DIRECTORIES.len() - 1].0);
        assert!(!newest.exists(), "a golden directory is made once");
        make(&newest);
    }
    DIRECTORIES.iter().for_each(|(name, version)| is_read_and_written_on(&golden(name), *version));
}

fn is_read_and_written_on(golden: &Path, version: u8) {
    let reader = Reader::open_with_archive(golden.join("journal"), Some(&golden.join("archive"))).unwrap();
    let states: Vec<SegmentState> = reader.segments().iter().map(|segment| segment.state).collect();
    use SegmentState::{Active, Archived, Compressed, Sealed};
    assert_eq!(states, [Compressed, Compressed, Archived, Sealed, Active]);
    check(&reader, version);
    assert!(reader.segments().iter().all(|segment| fs::read(&segment.path).unwrap()[8] == version));

    let directory = tempfile::tempdir().unwrap();
    copy(golden, directory.path());
    let open = || Journal::open(directory.path().join("journal"), &options(directory.path()), &mut |_| ());
    let (mut journal, recovery) = open().unwrap();
    assert!(recovery.was_clean && !recovery.sequences_lost);
    assert_eq!((recovery.records, recovery.indexes_rebuilt, recovery.cut), (RECORDS, 0, None));
    check(&journal.reader(), version);
    let held = expected(NEWEST, RECORDS);
    let last = new_record(NEWEST, RECORDS, &held);
    assert_eq!(journal.append(&last).unwrap(), Appended::Duplicate { highest: RECORDS });
    let elsewhere = Reader::open_read_only(directory.path().join("journal")).unwrap();
    // As many as take another file.
    for sequence in RECORDS + 1..=2 * RECORDS {
        let held = expected(NEWEST, sequence);
        let next = new_record(NEWEST, sequence, &held);
        assert_eq!(journal.append(&next).unwrap(), Appended::Recorded(Position::new(sequence)));
    }
    journal.flush(SOON).unwrap();
    let newest = journal.reader().segments().pop().unwrap();
    assert_eq!(fs::read(&newest.path).unwrap()[8], NEWEST);
    assert!(newest.number > 4 && newest.path.file_name().unwrap().to_str().unwrap().starts_with("quire."));
    elsewhere.refresh().unwrap();
    assert_eq!(elsewhere.persisted(), Position::new(2 * RECORDS));
    journal.close().unwrap();
    let (journal, recovery) = open().unwrap();
    assert_eq!((recovery.records, journal.reader().verify()), (2 * RECORDS, vec![]));
    drop(journal);
    // It now contains the beginning, which it did not before: a missing file at the front is an
    // error.
    fs::remove_file(&files(&directory.path().join("archive"))[0]).unwrap();
    let error = open().err().unwrap();
    assert!(matches!(error, JournalError::Missing { first: Some(0), last: Some(0), .. }), "{error}");
}

#[test]
fn an_index_of_version_1_does_not_say_which_blocks_hold_only_messages() {
    let directory = tempfile::tempdir().unwrap();
    copy(&golden("journal-v4"), directory.path());
    let index = files(&directory.path().join("journal"))[0].with_extension("index");
    let known = || {
        let (journal, archive) = (directory.path().join("journal"), directory.path().join("archive"));
        let reader = Reader::open_with_archive(&journal, Some(&archive)).unwrap();
        assert_eq!(reader.verify(), []);
        let sealed = reader.segments()[3].positions.unwrap();
        let mut found = Vec::new();
        let after = Position::new(sealed.0.get() - 1);
        reader
            .for_each_block_content(after, sealed.1, |range, content| {
                found.push((range.first, range.last, content.has_only_messages));
            })
            .unwrap();
        (sealed, found, fs::read(&index).unwrap()[8])
    };
    let ((first, last), found, version) = known();
    // It has a record of another kind every 50 records, and so has every index that is made now.
    assert_eq!((found, version), (vec![(first, last, false)], 1));
    fs::remove_file(&index).unwrap();
    let open = || Journal::open(directory.path().join("journal"), &options(directory.path()), &mut |_| ());
    assert_eq!(open().unwrap().1.indexes_rebuilt, 1);
    let (_, found, version) = known();
    assert_eq!((found.len(), version), (1, 3));
}

/// The newest segment of a journal of version 1, after a clean stop or after a crash that tore a
/// batch.
fn newest_of_version_1(torn: bool) -> (tempfile::TempDir, PathBuf, Vec<u8>) {
    let directory = tempfile::tempdir().unwrap();
    copy(&golden("journal-v1-queues"), directory.path());
    let newest = files(&directory.path().join("journal")).pop().unwrap();
    let mut bytes = fs::read(&newest).unwrap();
    assert_eq!(bytes[8..12], [1, 0, 0, 0]);
    if torn {
        // In the place of the marker of the clean stop is the beginning of a batch that was not
        // written whole.
        let end = bytes.iter().rposition(|byte| *byte != 0).unwrap() + 1;
        let marker = (4096..end).rev().find(|at| bytes[*at..].starts_with(b"QBAT")).unwrap();
        bytes[marker..].fill(0);
        bytes[marker..marker + 4].copy_from_slice(b"QBAT");
        bytes[marker + 100] = 1;
        fs::write(&newest, &bytes).unwrap();
        // It knows that the stop was clean, up to the last record.
        let clients = newest.with_file_name("clients.ack");
        let mut bytes = fs::read(&clients).unwrap();
        bytes[16..24].copy_from_slice(&1u64.to_le_bytes());
        let end = bytes.len() - 4;
        let checksum = crc32c::crc32c(&bytes[..end]);
        bytes[end..].copy_from_slice(&checksum.to_le_bytes());
        fs::write(&clients, &bytes).unwrap();
    }
    (directory, newest, bytes)
}

#[test]
fn the_newest_segment_of_version_1_is_sealed_before_anything_is_written() {
    for torn in [false, true] {
        let (directory, newest, before) = newest_of_version_1(torn);
        let open =
            || Journal::open(directory.path().join("journal"), &options(directory.path()), &mut |_| ());
        let (mut journal, recovery) = open().unwrap();
        assert_eq!((recovery.was_clean, recovery.cut.is_some()), (!torn, torn));
        journal.append(&new_record(NEWEST, RECORDS + 1, &expected(NEWEST, RECORDS + 1))).unwrap();
        journal.flush(SOON).unwrap();
        let segments = journal.reader().segments();
        let [.., sealed, active] = &segments[..] else { panic!("{segments:?}") };
        assert_eq!((&sealed.path, sealed.state), (&newest, SegmentState::Sealed));
        assert_eq!((active.number, active.count), (sealed.number + 1, 1));
        assert_eq!(fs::read(&active.path).unwrap()[8], NEWEST);
        // Nothing was added to the old one; a torn tail was cut.
        let after = fs::read(&newest).unwrap();
        let batches_end = before.windows(4).rposition(|bytes| bytes == b"QBAT").unwrap();
        let untouched = if torn { batches_end } else { before.len() };
        assert_eq!(after[..untouched], before[..untouched]);
        assert!(!torn || after[untouched..].iter().all(|byte| *byte == 0));
        assert_eq!(journal.reader().verify(), []);
        journal.close().unwrap();
        let (journal, recovery) = open().unwrap();
        assert_eq!((recovery.records, recovery.was_clean), (RECORDS + 1, true));
        // Times are found, whichever segments hold no record.
        let second = Timestamp::from_ns(1_700_000_000_000_000_000 + 2 * 1_000_003);
        assert_eq!(journal.reader().position_before(second).unwrap(), Position::new(2));
    }
}

#[test]
fn a_segment_of_version_1_keeps_its_version_when_it_is_compressed_and_archived() {
    let directory = tempfile::tempdir().unwrap();
    copy(&golden("journal-v1-queues"), directory.path());
    let (journal, _) =
        Journal::open(directory.path().join("journal"), &options(directory.path()), &mut |_| ()).unwrap();
    let maintenance = journal.maintenance();
    assert_eq!(maintenance.compress(Which::All).unwrap().len(), 3);
    assert_eq!(maintenance.archive(Which::All).unwrap().len(), 2);
    let segments = journal.reader().segments();
    let versions: Vec<u8> = segments.iter().map(|segment| fs::read(&segment.path).unwrap()[8]).collect();
    assert_eq!(versions, [1, 1, 1, 1, 1, NEWEST]);
    check(&journal.reader(), 1);
}

#[test]
fn an_empty_segment_of_version_1_is_sealed_and_times_are_found_behind_it() {
    let (directory, newest, mut bytes) = newest_of_version_1(false);
    // As a stop leaves it before the first record: a header.
    let first = u32::from_le_bytes(bytes[12..16].try_into().unwrap());
    bytes[4096..].fill(0);
    fs::write(&newest, &bytes).unwrap();
    fs::remove_file(newest.with_file_name("clients.ack")).unwrap();
    let open = || Journal::open(directory.path().join("journal"), &options(directory.path()), &mut |_| ());
    for round in 0..2u64 {
        let (mut journal, recovery) = open().unwrap();
        let records = recovery.records;
        let sequence = 2 * RECORDS + round;
        journal.append(&new_record(NEWEST, sequence, &expected(NEWEST, sequence))).unwrap();
        journal.flush(SOON).unwrap();
        let reader = journal.reader();
        let segment = reader.segments().into_iter().find(|segment| segment.number == first).unwrap();
        assert_eq!((segment.count, segment.state), (0, SegmentState::Sealed));
        let taken = Timestamp::from_ns(1_700_000_000_000_000_000 + sequence * 1_000_003);
        assert_eq!(reader.position_before(taken).unwrap(), Position::new(records + 1));
        assert_eq!(reader.verify(), []);
        journal.close().unwrap();
    }
    // No segment but the newest, which is open, is read for a time in it.
    let disk = CountingDisk::new();
    for part in ["archive", "journal"] {
        let part = fs::read_dir(directory.path().join(part)).unwrap().map(|entry| entry.unwrap().path());
        part.filter(|path| path.file_name().unwrap() != "archive.place").for_each(|path| disk.put(&path));
    }
    let reader = Reader::open_read_only_on(Arc::new(disk.disk.clone()), Path::new(MEMORY), None).unwrap();
    let before = disk.opened();
    let last = Timestamp::from_ns(1_700_000_000_000_000_000 + 2 * RECORDS * 1_000_003);
    reader.position_before(last).unwrap();
    assert_eq!(disk.opened(), before);
}
