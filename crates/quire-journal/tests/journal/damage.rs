//! Damage is distinguished from a torn tail, refused with its offset, and never read as data.

use std::fs;
use std::path::Path;

use quire_journal::*;

use crate::support::*;

#[test]
fn damage_before_the_tail_is_refused_with_file_and_offset_and_nothing_is_changed() {
    let directory = tempfile::tempdir().unwrap();
    let (mut journal, _) = open(directory.path());
    for round in 0..6 {
        append(&mut journal, round * 10 + 1..=round * 10 + 10);
    }
    let reader = journal.reader();
    let place = place_of(&reader, Position(15)).unwrap();
    let readable_to =
        Position(place_of(&reader, Position(14)).map_or(10, |before| if before == place { 10 } else { 14 }));
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
    let path = place_of(&journal.reader(), Position(5)).unwrap().path;
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
    let place = place_of(&journal.reader(), Position(20)).unwrap();
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
        let path = place_of(&journal.reader(), Position(150)).unwrap().path;
        journal.close().unwrap();
        damage(&path);
        let error = Journal::open(directory.path(), &small(), &mut |_| ()).err();
        assert!(matches!(error, Some(JournalError::Corrupt { .. })), "{error:?}");
    }
}

#[test]
fn a_flipped_bit_in_the_version_is_damage_and_not_a_file_from_the_future() {
    let directory = tempfile::tempdir().unwrap();
    let (mut journal, _) = open(directory.path());
    append(&mut journal, 1..=5);
    journal.close().unwrap();
    let path = &files(directory.path())[0];
    write_at(path, &[9], 8);
    let error = Journal::open(directory.path(), &small(), &mut |_| ()).err().unwrap();
    assert!(matches!(error, JournalError::Corrupt { offset: 0, .. }), "{error}");
    let mut header = fs::read(path).unwrap()[..48].to_vec();
    let checksum = crc32c::crc32c(&header[..44]).to_le_bytes();
    header[44..].copy_from_slice(&checksum);
    write_at(path, &header, 0);
    let error = Journal::open(directory.path(), &small(), &mut |_| ()).err().unwrap();
    assert!(matches!(error, JournalError::Version { version: 9, .. }), "{error}");
}

/// Bytes that only a program with the right checksums can make: numbers at the ends of their range.
#[test]
fn numbers_at_the_end_of_their_range_are_an_error_also_when_every_checksum_matches() {
    let numbers = [0, 1, 1 << 62, (1 << 62) + 1, i64::MAX as u64, u64::MAX - 1, u64::MAX];
    for number in numbers {
        for (file, field, is_header) in [(0, 16, true), (0, 24, true), (0, 40, false), (0, 56, false)] {
            let directory = tempfile::tempdir().unwrap();
            let (mut journal, _) = open(directory.path());
            append(&mut journal, 1..=5);
            journal.close().unwrap();
            fs::remove_file(directory.path().join("clients.ack")).unwrap();
            let path = &files(directory.path())[file];
            let mut bytes = fs::read(path).unwrap();
            let start = if is_header { 0 } else { 4096 };
            bytes[start + field..start + field + 8].copy_from_slice(&number.to_le_bytes());
            if is_header {
                repair_segment_header(&mut bytes);
            } else {
                repair_batch_header(&mut bytes, 4096);
            }
            fs::write(path, &bytes).unwrap();
            // No panic, and nothing is read as another record.
            if let Ok((mut journal, _)) = Journal::open(directory.path(), &small(), &mut |_| ()) {
                let reader = journal.reader();
                assert!(sequences(&reader, Position(0)).len() <= 5);
                reader.verify();
                reader.segments();
                let appended = journal.append(&record(1000, "topic-0", &[0; 500]));
                assert!(appended.is_ok() && journal.flush(SOON).is_ok(), "{number} at {field}");
            }
        }
    }
}

#[test]
fn verify_names_damage_in_headers_between_batches_behind_the_last_and_in_the_small_files() {
    let directory = tempfile::tempdir().unwrap();
    let (mut journal, _) = open(directory.path());
    append(&mut journal, 1..=500);
    journal.close().unwrap();
    let (journal, _) = open(directory.path());
    let reader = journal.reader();
    let segments = reader.segments();
    let path = segments[1].path.clone();
    let second = place_of(&reader, Position(segments[1].positions.unwrap().0.get() + 1)).unwrap().offset;
    let whole = fs::read(&path).unwrap();
    let end = whole.iter().rposition(|byte| *byte != 0).unwrap() as u64;
    for (offset, named) in [(5, 0), (20, 0), (46, 0), (60, 60), (4095, 4095), (second + 3, second)] {
        write_at(&path, &[whole[offset as usize] ^ 0x10], offset);
        let damages = reader.verify();
        assert_eq!(damages.len(), 1, "{offset}: {damages:?}");
        assert_eq!((&damages[0].path, damages[0].offset), (&path, named), "{damages:?}");
        write_at(&path, &[whole[offset as usize]], offset);
    }
    write_at(&path, &[1], end + 40);
    assert_eq!(reader.verify().iter().map(|damage| damage.offset).collect::<Vec<_>>(), [end + 40]);
    write_at(&path, &[0], end + 40);
    let index = path.with_extension("index");
    let clients = directory.path().join("clients.ack");
    for small_file in [&index, &clients] {
        let whole = fs::read(small_file).unwrap();
        write_at(small_file, &[whole[20] ^ 1], 20);
        let damages = reader.verify();
        assert_eq!(damages.iter().map(|damage| &damage.path).collect::<Vec<_>>(), [small_file]);
        write_at(small_file, &whole, 0);
    }
    // An index that is whole, but of another segment.
    fs::copy(segments[2].path.with_extension("index"), &index).unwrap();
    assert_eq!(reader.verify().iter().map(|damage| &damage.path).collect::<Vec<_>>(), [&index]);
    fs::remove_file(&index).unwrap();
    assert_eq!(reader.verify(), []);
}

#[test]
fn a_start_refuses_a_sealed_segment_that_is_cut_or_of_another_log_and_leaves_its_batches_to_readers() {
    let directory = tempfile::tempdir().unwrap();
    let (mut journal, _) = open(directory.path());
    append(&mut journal, 1..=500);
    let place = place_of(&journal.reader(), Position(150)).unwrap();
    journal.close().unwrap();
    let path = &files(directory.path())[1];
    assert_eq!(&place.path, path);
    let whole = fs::read(path).unwrap();
    let mut of_another_log = whole.clone();
    of_another_log[32] ^= 1;
    repair_segment_header(&mut of_another_log);
    for changed in [&whole[..whole.len() - 100], &whole[..5000], &of_another_log] {
        fs::write(path, changed).unwrap();
        let error = Journal::open(directory.path(), &small(), &mut |_| ()).err().unwrap();
        assert!(matches!(error, JournalError::Corrupt { .. }), "{error}");
    }
    let mut flipped = whole.clone();
    flipped[place.offset as usize + 100] ^= 1;
    fs::write(path, &flipped).unwrap();
    let (journal, _) = open(directory.path());
    let (read, error) = read_all(&journal.reader());
    assert!(read.len() < 150, "{}", read.len());
    assert!(
        matches!(&error, Some(JournalError::Corrupt { path: at, offset, .. }) if at == path && *offset == place.offset),
        "{error:?}"
    );
    assert_eq!(journal.reader().verify().len(), 1);
}
