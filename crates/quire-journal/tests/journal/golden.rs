//! Journals that earlier builds wrote stay readable: directories in `tests/golden`, with every state that a segment can have.
//!
//! - `journal-v1`: files carry the name of an instance, `golden`, and `clients.ack` is of version 1
//! - `journal-v1-clients-v2`: all files are named alike, and `clients.ack` says where the log begins
//!
//! The newest directory was made by `QUIRE_MAKE_GOLDEN=1 cargo test -p quire-journal golden`. No directory is made again for the same version
//! of the format: a change after which this fails needs another version (`docs/journal-format.md`).

use std::fs;
use std::path::{Path, PathBuf};

use quire_journal::*;

use crate::support::*;

const RECORDS: u64 = 950;

const DIRECTORIES: [&str; 2] = ["journal-v1", "journal-v1-clients-v2"];

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden").join(name)
}

fn options(directory: &Path) -> Options {
    Options { archive_directory: Some(directory.join("archive")), ..small() }
}

/// The record with this sequence, and the bytes that it borrows.
fn expected(sequence: u64) -> (String, Vec<u8>) {
    let topic = ["orders", "trades/eu", "größe"][sequence as usize % 3].to_owned();
    let data = format!("{{\"n\": {sequence}, \"pad\": \"{}\"}}", "pad".repeat(sequence as usize % 150));
    (topic, data.into_bytes())
}

fn new_record<'a>(sequence: u64, topic: &'a str, data: &'a [u8]) -> NewRecord<'a> {
    NewRecord {
        kind: if sequence.is_multiple_of(50) { RecordKind::Acknowledge } else { RecordKind::Publish },
        message_type: (sequence % 7) as u8,
        publisher: PublisherId::of_client_name(["loader-1", "loader-2"][sequence as usize % 2]),
        sequence,
        timestamp: Timestamp::from_ns(1_700_000_000_000_000_000 + sequence * 1_000_003),
        topic,
        correlation_id: if sequence.is_multiple_of(5) { b"correlated" } else { b"" },
        expiration_s: (sequence.is_multiple_of(4)).then_some(sequence as u32),
        data,
    }
}

fn make(directory: &Path) {
    let (mut journal, _) =
        Journal::open(directory.join("journal"), &options(directory), &mut |_| ()).unwrap();
    for sequence in 1..=RECORDS {
        let (topic, data) = expected(sequence);
        journal.append(&new_record(sequence, &topic, &data)).unwrap();
        if sequence.is_multiple_of(10) {
            journal.flush(SOON).unwrap();
        }
    }
    let upkeep = journal.upkeep();
    let end_of = |number: usize| Which::Until(journal.reader().segments()[number].timestamps.unwrap().1);
    upkeep.compress(end_of(0)).unwrap();
    upkeep.archive(end_of(1)).unwrap();
    upkeep.compress(end_of(1)).unwrap();
    upkeep.archive(end_of(2)).unwrap();
    journal.close().unwrap();
    // It names a directory of the machine.
    fs::remove_file(directory.join("journal/archive.place")).unwrap();
    // What every start makes.
    fs::remove_file(directory.join("journal/journal.lock")).unwrap();
    let prepared = files(&directory.join("journal")).split_off(2);
    prepared.iter().for_each(|path| fs::remove_file(path).unwrap());
}

fn check(reader: &Reader) {
    let mut cursor = reader.cursor(Position::ZERO);
    let mut sequence = 0;
    while let Some(batch) = cursor.next(reader.persisted(), &AllTopics).unwrap() {
        for found in batch.records() {
            sequence += 1;
            let (topic, data) = expected(sequence);
            let NewRecord { kind, message_type, publisher, timestamp, correlation_id, expiration_s, .. } =
                new_record(sequence, &topic, &data);
            let position = Position::new(sequence);
            let (topic, data) = (&topic[..], &data[..]);
            let expected = Record {
                position,
                kind,
                message_type,
                publisher,
                sequence,
                timestamp,
                topic,
                correlation_id,
                expiration_s,
                data,
            };
            assert_eq!(found, expected);
            assert_eq!(reader.find(found.bookmark()).unwrap(), Some(position));
        }
    }
    assert_eq!(sequence, RECORDS);
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
fn golden_journals_of_version_1_are_read_and_written_on() {
    if std::env::var_os("QUIRE_MAKE_GOLDEN").is_some() {
        let newest = golden(DIRECTORIES[DIRECTORIES.len() - 1]);
        assert!(!newest.exists(), "a golden directory is made once");
        make(&newest);
    }
    DIRECTORIES.iter().for_each(|name| is_read_and_written_on(&golden(name)));
}

fn is_read_and_written_on(golden: &Path) {
    let reader = Reader::open_with_archive(golden.join("journal"), Some(&golden.join("archive"))).unwrap();
    let states: Vec<SegmentState> = reader.segments().iter().map(|segment| segment.state).collect();
    use SegmentState::{Active, Archived, Compressed, Sealed};
    assert_eq!(states, [Compressed, Compressed, Archived, Sealed, Active]);
    check(&reader);

    let directory = tempfile::tempdir().unwrap();
    copy(golden, directory.path());
    let open = || Journal::open(directory.path().join("journal"), &options(directory.path()), &mut |_| ());
    let (mut journal, recovery) = open().unwrap();
    assert!(recovery.was_clean && !recovery.sequences_lost);
    assert_eq!((recovery.records, recovery.indexes_rebuilt, recovery.cut), (RECORDS, 0, None));
    check(&journal.reader());
    let (topic, data) = expected(RECORDS + 1);
    let last = new_record(RECORDS, &topic, &data);
    assert_eq!(journal.append(&last).unwrap(), Appended::Duplicate { highest: RECORDS });
    let elsewhere = Reader::open_read_only(directory.path().join("journal")).unwrap();
    // As many as take another file.
    for sequence in RECORDS + 1..=2 * RECORDS {
        let (topic, data) = expected(sequence);
        let next = new_record(sequence, &topic, &data);
        assert_eq!(journal.append(&next).unwrap(), Appended::Recorded(Position::new(sequence)));
    }
    journal.flush(SOON).unwrap();
    let newest = journal.reader().segments().pop().unwrap();
    assert!(newest.number > 4 && newest.path.file_name().unwrap().to_str().unwrap().starts_with("quire."));
    elsewhere.refresh().unwrap();
    assert_eq!(elsewhere.persisted(), Position::new(2 * RECORDS));
    journal.close().unwrap();
    let (journal, recovery) = open().unwrap();
    assert_eq!((recovery.records, journal.reader().verify()), (2 * RECORDS, vec![]));
    drop(journal);
    // What it did not say before, it says now: a file at the front that is not there is an error.
    fs::remove_file(&files(&directory.path().join("archive"))[0]).unwrap();
    let error = open().err().unwrap();
    assert!(matches!(error, JournalError::Missing { first: Some(0), last: Some(0), .. }), "{error}");
}
