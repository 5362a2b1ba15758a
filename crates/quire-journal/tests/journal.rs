//! The journal keeps its promises over restarts, torn tails and damage: behaviour on real files.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use quire_journal::*;

const SOON: Duration = Duration::from_secs(20);

fn small() -> Options {
    Options { segment_size: 64 * 1024, prepared_segments: 1, ..Options::default() }
}

fn open(directory: &Path) -> (Journal, Recovery) {
    Journal::open(directory, &small(), &mut |_| ()).unwrap()
}

fn record<'a>(sequence: u64, topic: &'a str, data: &'a [u8]) -> NewRecord<'a> {
    NewRecord {
        kind: RecordKind::Publish,
        message_type: 1,
        publisher: PublisherId(7),
        sequence,
        timestamp: Timestamp(sequence * 1000),
        topic,
        correlation_id: b"c",
        expiration_s: Some(9),
        data,
    }
}

fn append(journal: &mut Journal, sequences: std::ops::RangeInclusive<u64>) {
    for sequence in sequences {
        let topic = format!("topic-{}", sequence % 10);
        let data = vec![sequence as u8; 500];
        let appended = journal.append(&record(sequence, &topic, &data)).unwrap();
        assert!(matches!(appended, Appended::Recorded(_)));
        if sequence.is_multiple_of(7) {
            journal.submit();
        }
    }
    journal.flush(SOON).unwrap();
}

fn sequences(reader: &Reader, after: Position) -> Vec<u64> {
    let mut cursor = reader.cursor(after);
    let mut found = Vec::new();
    while let Some(batch) = cursor.next(reader.persisted(), &AllTopics).unwrap() {
        for record in batch.records() {
            assert_eq!(record.data, vec![record.sequence as u8; 500]);
            assert_eq!(record.topic, format!("topic-{}", record.sequence % 10));
            assert_eq!((record.correlation_id, record.expiration_s), (&b"c"[..], Some(9)));
            found.push(record.sequence);
        }
    }
    found
}

fn files(directory: &Path) -> Vec<PathBuf> {
    let mut files: Vec<_> = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "journal"));
    files.sort();
    files
}

fn write_at(path: &Path, bytes: &[u8], offset: u64) {
    fs::OpenOptions::new().write(true).open(path).unwrap().write_all_at(bytes, offset).unwrap();
}

#[test]
fn what_was_flushed_is_there_after_every_restart() {
    let directory = tempfile::tempdir().unwrap();
    for round in 0..4 {
        let (mut journal, recovery) = open(directory.path());
        assert!(recovery.was_clean && recovery.cut.is_none());
        assert_eq!(journal.highest_sequence(PublisherId(7)).unwrap_or(0), round * 300);
        append(&mut journal, round * 300 + 1..=round * 300 + 300);
        let all: Vec<u64> = (1..=round * 300 + 300).collect();
        assert_eq!(sequences(&journal.reader(), Position(0)), all);
        assert_eq!(sequences(&journal.reader(), Position(150)), all[150..]);
        journal.close().unwrap();
    }
    assert!(files(directory.path()).len() > 10, "it went over many segments");
}

#[test]
fn a_second_journal_on_the_directory_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let (journal, _) = open(directory.path());
    let second = Journal::open(directory.path(), &small(), &mut |_| ());
    assert!(matches!(second, Err(JournalError::Locked { .. })));
    drop(journal);
    open(directory.path());
}

#[test]
fn a_sequence_that_is_not_above_the_highest_is_a_duplicate_also_after_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let (mut journal, _) = open(directory.path());
    append(&mut journal, 1..=5);
    assert_eq!(journal.append(&record(5, "topic-5", b"x")).unwrap(), Appended::Duplicate { highest: 5 });
    journal.close().unwrap();
    let (mut journal, _) = open(directory.path());
    assert_eq!(journal.append(&record(3, "topic-3", b"x")).unwrap(), Appended::Duplicate { highest: 5 });
    append(&mut journal, 9..=9);
    assert_eq!(sequences(&journal.reader(), Position(0)), [1, 2, 3, 4, 5, 9]);
}

#[test]
fn bookmarks_times_and_positions_are_found() {
    let directory = tempfile::tempdir().unwrap();
    let (mut journal, _) = open(directory.path());
    append(&mut journal, 1..=1000);
    let reader = journal.reader();
    for sequence in [1, 2, 130, 999, 1000] {
        let bookmark = Bookmark { publisher: PublisherId(7), sequence };
        assert_eq!(reader.find(bookmark).unwrap(), Some(Position(sequence)));
        assert_eq!(reader.position_before(Timestamp(sequence * 1000)).unwrap(), Position(sequence));
        assert_eq!(reader.position_before(Timestamp(sequence * 1000 + 999)).unwrap(), Position(sequence));
        assert!(reader.place(Position(sequence)).is_some());
    }
    assert_eq!(reader.position_before(Timestamp(10)).unwrap(), Position(0));
    assert_eq!(reader.find(Bookmark { publisher: PublisherId(7), sequence: 1001 }).unwrap(), None);
    assert_eq!(reader.find(Bookmark { publisher: PublisherId(8), sequence: 1 }).unwrap(), None);
}

#[test]
fn a_cursor_for_a_rare_topic_gives_all_of_it_and_skips_most_of_the_rest() {
    struct Rare;
    impl TopicFilter for Rare {
        fn wants(&self, topic: &str) -> bool {
            topic == "rare"
        }
    }
    let directory = tempfile::tempdir().unwrap();
    let options = Options { segment_size: 1024 * 1024, ..small() };
    let (mut journal, _) = Journal::open(directory.path(), &options, &mut |_| ()).unwrap();
    for sequence in 1..=20_000 {
        let topic = if sequence % 2500 == 0 { "rare" } else { "common" };
        journal.append(&record(sequence, topic, &[0; 500])).unwrap();
    }
    journal.flush(SOON).unwrap();
    let reader = journal.reader();
    let mut cursor = reader.cursor(Position(0));
    let (mut rare, mut read) = (Vec::new(), 0);
    while let Some(batch) = cursor.next(reader.persisted(), &Rare).unwrap() {
        read += batch.records().count();
        rare.extend(batch.records().filter(|record| record.topic == "rare").map(|record| record.sequence));
    }
    assert_eq!(rare, (1..=8).map(|i| i * 2500).collect::<Vec<_>>());
    assert_eq!(cursor.after(), Position(20_000));
    assert!(read < 5_000, "read {read} records");
}

#[test]
fn a_torn_tail_is_cut_and_reported_and_appending_goes_on() {
    let directory = tempfile::tempdir().unwrap();
    let (mut journal, _) = open(directory.path());
    append(&mut journal, 1..=50);
    let end = journal.reader().place(Position(50)).unwrap();
    // The process ends without a word: a copy of the directory is what it leaves.
    let crashed = tempfile::tempdir().unwrap();
    for file in fs::read_dir(directory.path()).unwrap() {
        let path = file.unwrap().path();
        fs::copy(&path, crashed.path().join(path.file_name().unwrap())).unwrap();
    }
    let path = crashed.path().join(end.path.file_name().unwrap());
    let bytes = fs::read(&path).unwrap();
    let last = bytes.iter().rposition(|byte| *byte != 0).unwrap() as u64;
    // Half of a batch header behind the last batch.
    let torn_at = (last + 1).next_multiple_of(8);
    write_at(&path, &bytes[end.offset as usize..end.offset as usize + 40], torn_at);
    let (mut journal, recovery) = open(crashed.path());
    let cut = recovery.cut.expect("a torn tail");
    assert_eq!((cut.path, cut.offset), (path, torn_at));
    assert_eq!(sequences(&journal.reader(), Position(0)), (1..=50).collect::<Vec<_>>());
    append(&mut journal, 51..=60);
    journal.close().unwrap();
    let (journal, recovery) = open(crashed.path());
    assert_eq!(recovery.cut, None);
    assert_eq!(sequences(&journal.reader(), Position(0)), (1..=60).collect::<Vec<_>>());
}

#[test]
fn damage_before_the_tail_is_refused_with_file_and_offset_and_nothing_is_changed() {
    let directory = tempfile::tempdir().unwrap();
    let (mut journal, _) = open(directory.path());
    for round in 0..6 {
        append(&mut journal, round * 10 + 1..=round * 10 + 10);
    }
    let reader = journal.reader();
    let place = reader.place(Position(15)).unwrap();
    let readable_to =
        Position(reader.place(Position(14)).map_or(10, |before| if before == place { 10 } else { 14 }));
    journal.close().unwrap();
    let before = fs::read(&place.path).unwrap();
    let mut flipped = before.clone();
    flipped[place.offset as usize + 100] ^= 1;
    fs::write(&place.path, &flipped).unwrap();
    match Journal::open(directory.path(), &small(), &mut |_| ()) {
        Err(JournalError::Corrupt { path, offset, readable_to: to, .. }) => {
            assert_eq!((path, offset), (place.path.clone(), place.offset));
            assert!(to >= readable_to && to < Position(15));
        }
        Err(error) => panic!("another error: {error}"),
        Ok(_) => panic!("it opened"),
    }
    assert_eq!(fs::read(&place.path).unwrap(), flipped);
}

#[test]
fn after_a_clean_stop_a_stray_byte_at_the_end_is_damage() {
    let directory = tempfile::tempdir().unwrap();
    let (mut journal, _) = open(directory.path());
    append(&mut journal, 1..=5);
    let path = journal.reader().place(Position(5)).unwrap().path;
    journal.close().unwrap();
    write_at(&path, &[1], 50_000);
    assert!(matches!(
        Journal::open(directory.path(), &small(), &mut |_| ()),
        Err(JournalError::Corrupt { .. })
    ));
}

#[test]
fn a_missing_file_in_the_middle_is_a_gap() {
    let directory = tempfile::tempdir().unwrap();
    let (mut journal, _) = open(directory.path());
    append(&mut journal, 1..=500);
    journal.close().unwrap();
    let files = files(directory.path());
    fs::remove_file(&files[1]).unwrap();
    let error = Journal::open(directory.path(), &small(), &mut |_| ()).err().unwrap();
    assert!(matches!(error, JournalError::Gap { missing: 1, .. }), "{error}");
}

#[test]
fn a_missing_or_wrong_index_is_made_again() {
    let directory = tempfile::tempdir().unwrap();
    let (mut journal, _) = open(directory.path());
    append(&mut journal, 1..=500);
    journal.close().unwrap();
    let files = files(directory.path());
    fs::remove_file(files[0].with_extension("index")).unwrap();
    let wrong = files[1].with_extension("index");
    let mut bytes = fs::read(&wrong).unwrap();
    bytes[90] ^= 1;
    fs::write(&wrong, bytes).unwrap();
    let (journal, recovery) = open(directory.path());
    assert_eq!(recovery.indexes_rebuilt, 2);
    assert_eq!(sequences(&journal.reader(), Position(0)), (1..=500).collect::<Vec<_>>());
    assert_eq!(
        journal.reader().find(Bookmark { publisher: PublisherId(7), sequence: 77 }).unwrap(),
        Some(Position(77))
    );
}

#[test]
fn a_flipped_bit_in_a_sealed_segment_is_found_by_verify_and_by_the_reader() {
    let directory = tempfile::tempdir().unwrap();
    let (mut journal, _) = open(directory.path());
    append(&mut journal, 1..=500);
    assert_eq!(journal.reader().verify(), []);
    let place = journal.reader().place(Position(20)).unwrap();
    journal.close().unwrap();
    let mut bytes = fs::read(&place.path).unwrap();
    bytes[place.offset as usize + 200] ^= 4;
    fs::write(&place.path, bytes).unwrap();
    let (journal, _) = open(directory.path());
    let reader = journal.reader();
    let damages = reader.verify();
    assert_eq!(damages.len(), 1, "{damages:?}");
    assert_eq!((&damages[0].path, damages[0].offset), (&place.path, place.offset));
    let mut cursor = reader.cursor(Position(0));
    let mut result = Ok(None);
    for _ in 0..500 {
        result = cursor.next(reader.persisted(), &AllTopics).map(|batch| batch.map(|_| ()));
        if !matches!(result, Ok(Some(()))) {
            break;
        }
    }
    assert!(
        matches!(result, Err(JournalError::Corrupt { offset, .. }) if offset == place.offset),
        "{result:?}"
    );
}

#[test]
fn a_record_larger_than_a_segment_gets_one_of_its_own_size() {
    let directory = tempfile::tempdir().unwrap();
    let (mut journal, _) = open(directory.path());
    append(&mut journal, 1..=3);
    let large = vec![7; 300_000];
    journal.append(&record(4, "large", &large)).unwrap();
    journal.flush(SOON).unwrap();
    append(&mut journal, 5..=6);
    journal.close().unwrap();
    let (journal, _) = open(directory.path());
    let reader = journal.reader();
    let batch = reader.cursor(Position(3)).next(Position(4), &AllTopics).unwrap().unwrap();
    assert_eq!(batch.records().next().unwrap().data, large);
    assert_eq!(reader.persisted(), Position(6));
}

#[test]
fn a_reader_in_another_place_follows_the_journal_as_it_grows() {
    let directory = tempfile::tempdir().unwrap();
    let (mut journal, _) = open(directory.path());
    append(&mut journal, 1..=30);
    let reader = Reader::open_read_only(directory.path()).unwrap();
    assert_eq!(sequences(&reader, Position(0)), (1..=30).collect::<Vec<_>>());
    append(&mut journal, 31..=700);
    reader.refresh().unwrap();
    assert_eq!(sequences(&reader, Position(0)), (1..=700).collect::<Vec<_>>());
    assert_eq!(reader.verify(), []);
    assert_eq!(reader.segments().last().unwrap().positions.unwrap().1, Position(700));
}

#[test]
fn a_journal_in_memory_behaves_the_same_up_to_its_bound() {
    let options = Options { memory_size_max: 512 * 1024, ..small() };
    let mut journal = Journal::in_memory(&options).unwrap();
    append(&mut journal, 1..=300);
    assert_eq!(sequences(&journal.reader(), Position(0)), (1..=300).collect::<Vec<_>>());
    let mut sequence = 301;
    let failure = loop {
        let appended = journal.append(&record(sequence, "topic-0", &[0; 500]));
        journal.submit();
        match appended {
            Ok(_) => sequence += 1,
            Err(failure) => break failure,
        }
        assert!(sequence < 2000, "no bound");
    };
    assert!(matches!(failure, JournalError::Full { .. }), "{failure}");
    let persisted = journal.persisted();
    assert!(persisted > Position(300) && persisted < journal.appended());
    let mut cursor = journal.reader().cursor(Position(300));
    while cursor.next(persisted, &AllTopics).unwrap().is_some() {}
    assert_eq!(cursor.after(), persisted);
}

#[test]
fn an_active_segment_that_lost_its_header_or_its_end_is_damage() {
    let damage: [fn(&Path); 3] = [
        |path| write_at(path, &[0; 512], 0),
        |path| fs::OpenOptions::new().write(true).open(path).unwrap().set_len(10_096).unwrap(),
        |path| fs::OpenOptions::new().write(true).open(path).unwrap().set_len(0).unwrap(),
    ];
    for damage in damage {
        let directory = tempfile::tempdir().unwrap();
        let (mut journal, _) = open(directory.path());
        for round in 0..15 {
            append(&mut journal, round * 10 + 1..=round * 10 + 10);
        }
        let path = journal.reader().place(Position(150)).unwrap().path;
        journal.close().unwrap();
        damage(&path);
        let error = Journal::open(directory.path(), &small(), &mut |_| ()).err();
        assert!(matches!(error, Some(JournalError::Corrupt { .. })), "{error:?}");
    }
}

#[test]
fn a_journal_that_is_only_opened_and_closed_goes_on_to_the_next_segment_when_its_marks_fill_one() {
    let directory = tempfile::tempdir().unwrap();
    let (mut journal, _) = open(directory.path());
    append(&mut journal, 1..=100);
    journal.close().unwrap();
    for _ in 0..400 {
        let (journal, _) = open(directory.path());
        journal.close().unwrap();
    }
    let (journal, recovery) = open(directory.path());
    assert!(recovery.was_clean);
    assert_eq!(journal.reader().verify(), []);
    assert_eq!(sequences(&journal.reader(), Position(0)), (1..=100).collect::<Vec<_>>());
    for file in files(directory.path()) {
        assert_eq!(fs::metadata(file).unwrap().len(), 64 * 1024);
    }
}
