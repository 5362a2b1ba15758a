//! The promises of appending: duplicates, limits, failures.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use quire_journal::*;

use crate::support::*;

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
fn a_journal_in_memory_behaves_the_same_up_to_its_bound() {
    let options = Options { memory_size_max: 512 * 1024, ..small() };
    let mut journal = Journal::in_memory(&options).unwrap();
    append(&mut journal, 1..=300);
    assert_eq!(sequences(&journal.reader(), Position(0)), (1..=300).collect::<Vec<_>>());
    let mut sequence = 301;
    let stall = loop {
        journal.append(&record(sequence, "topic-0", &[0; 500])).unwrap();
        journal.submit();
        if let Some(stall) = journal.stall() {
            break stall;
        }
        sequence += 1;
        assert!(sequence < 2000, "no bound");
    };
    assert!(matches!(stall, JournalError::Full { .. }), "{stall}");
    let persisted = journal.persisted();
    assert!(persisted > Position(300) && persisted < journal.appended());
    let mut cursor = journal.reader().cursor(Position(300));
    while cursor.next(persisted, &AllTopics).unwrap().is_some() {}
    assert_eq!(cursor.after(), persisted);
    drop(cursor);
    // Old segments make room, and what waited is written.
    journal.maintenance().remove(Which::Beyond { size_max: 256 * 1024 }, None).unwrap();
    journal.submit();
    assert!(journal.stall().is_none());
    assert_eq!(journal.persisted(), journal.appended());
}

#[test]
fn a_panic_in_the_callback_of_a_flush_ends_writing_and_wakes_who_waits() {
    let directory = tempfile::tempdir().unwrap();
    let (mut journal, _) = open(directory.path());
    journal.on_flush(Box::new(|| panic!("the callback of this test panics")));
    journal.append(&record(1, "topic-1", b"x")).unwrap();
    // The record itself became persistent before the callback was called.
    journal.flush(SOON).unwrap();
    journal.reader().wait_persisted(Position(2), SOON).expect_err("nothing more becomes persistent");
    assert!(matches!(journal.failure(), Some(JournalError::Panicked { unpersisted_bytes: 0, .. })));
    let error = journal.append(&record(2, "topic-2", b"x")).expect_err("it takes no more writes");
    let place = format!("{}: the writer of the journal panicked", directory.path().display());
    assert!(error.to_string().starts_with(&place), "{error}");
    assert!(journal.close().is_err());
    let (journal, recovery) = open(directory.path());
    assert!(!recovery.was_clean);
    assert_eq!(journal.persisted(), Position(1));
}

#[test]
fn a_producer_that_outruns_the_disk_is_refused_at_the_bound_and_may_wait_instead() {
    let directory = tempfile::tempdir().unwrap();
    let options = Options { unpersisted_size_max: 10_000, ..small() };
    let (mut journal, _) = Journal::open(directory.path(), &options, &mut |_| ()).unwrap();
    let mut sequence = 0;
    let refused = loop {
        // Never submitted, so nothing becomes persistent.
        match journal.append(&record(sequence + 1, "topic", &[0; 500])) {
            Ok(_) => sequence += 1,
            Err(error) => break error,
        }
        assert!(journal.unpersisted_bytes() <= 10_000);
    };
    assert!(matches!(refused, JournalError::Behind { limit_bytes: 10_000 }), "{refused}");
    assert!(sequence >= 15 && journal.failure().is_none());
    for _ in 0..200 {
        sequence += 1;
        let appended = journal.append_waiting(&record(sequence, "topic", &[0; 500]), SOON).unwrap();
        assert_eq!(appended, Appended::Recorded(Position(sequence)));
        assert!(journal.unpersisted_bytes() <= 10_000);
    }
    // One record may always wait, of any size.
    journal.append_waiting(&record(sequence + 1, "topic", &[0; 50_000]), SOON).unwrap();
    journal.flush(SOON).unwrap();
    assert_eq!(journal.unpersisted_bytes(), 0);
}

#[test]
fn a_record_without_a_sequence_is_never_a_duplicate_and_one_with_the_last_number_ends_the_publisher() {
    let directory = tempfile::tempdir().unwrap();
    let (mut journal, _) = open(directory.path());
    let mut given = |sequence| journal.append(&record(sequence, "topic", b"x"));
    assert_eq!(given(0).unwrap(), Appended::Recorded(Position(1)));
    assert_eq!(given(1000).unwrap(), Appended::Recorded(Position(2)));
    assert_eq!(given(0).unwrap(), Appended::Recorded(Position(3)));
    assert_eq!(given(1001).unwrap(), Appended::Duplicate { highest: 1001 });
    assert_eq!(given(u64::MAX).unwrap(), Appended::Recorded(Position(4)));
    assert!(matches!(given(0), Err(JournalError::SequencesEnd { publisher: PublisherId(7) })));
    assert_eq!(given(u64::MAX).unwrap(), Appended::Duplicate { highest: u64::MAX });
    journal.flush(SOON).unwrap();
    let reader = journal.reader();
    let batch = reader.cursor(Position(0)).next(Position(4), &AllTopics).unwrap().unwrap();
    let sequences: Vec<u64> = batch.records().map(|record| record.sequence).collect();
    assert_eq!(sequences, [1, 1000, 1001, u64::MAX]);
}

#[test]
fn thousands_of_batches_go_out_with_one_flush() {
    assert_eq!(flushes_of(2500, true), 1);
}

#[test]
fn a_crowd_becomes_persistent_in_steps() {
    assert_eq!(flushes_of(10_000, false), 3, "5.5 MB in steps of 2 MiB");
}

/// The number of flushes of records that wait together, in as few batches as possible or each in a
/// separate batch. All can be read then.
fn flushes_of(count: u64, each_its_own: bool) -> usize {
    let directory = tempfile::tempdir().unwrap();
    let options = Options { segment_size: 16 << 20, ..small() };
    let (mut journal, _) = Journal::driven_by_hand(Arc::new(RealDisk), directory.path(), &options).unwrap();
    let flushes = counted_flushes(&mut journal);
    for sequence in 1..=count {
        let topic = format!("topic-{}", sequence % 10);
        journal.append(&record(sequence, &topic, &[sequence as u8; 500])).unwrap();
        if each_its_own {
            journal.submit();
        }
    }
    journal.submit();
    journal.write_waiting();
    assert_eq!(sequences(&journal.reader(), Position::ZERO), (1..=count).collect::<Vec<_>>());
    flushes.load(Ordering::Relaxed)
}

fn counted_flushes(journal: &mut Journal) -> Arc<AtomicUsize> {
    let flushes = Arc::new(AtomicUsize::new(0));
    let counted = flushes.clone();
    journal.on_flush(Box::new(move || {
        counted.fetch_add(1, Ordering::Relaxed);
    }));
    flushes
}

#[test]
fn the_first_segments_of_a_journal_are_small_and_later_ones_double_up_to_the_full_size() {
    const MIB: u64 = 1 << 20;
    let directory = tempfile::tempdir().unwrap();
    let options = Options { segment_size: 16 * MIB, prepared_segments: 2, ..Options::default() };
    let open = || Journal::driven_by_hand(Arc::new(RealDisk), directory.path(), &options).unwrap().0;
    let sizes = || {
        let sizes = files(directory.path()).into_iter().map(|file| fs::metadata(file).unwrap().len() / MIB);
        sizes.collect::<Vec<_>>()
    };
    let mut journal = open();
    assert_eq!(sizes(), [4]);
    let mut sequence = 0;
    let mut fill = |journal: &mut Journal, count: usize| {
        while sizes().len() < count {
            sequence += 1;
            journal.append(&record(sequence, "topic", &[1; 1 << 20])).unwrap();
            journal.flush(SOON).unwrap();
        }
    };
    fill(&mut journal, 4);
    journal.close().unwrap();
    // The size of the next segment is known after a restart, too.
    let mut journal = open();
    fill(&mut journal, 6);
    journal.close().unwrap();
    assert_eq!(sizes(), [4, 4, 4, 8, 16, 16]);
}

#[test]
fn a_new_journal_takes_the_size_of_its_small_segments_on_disk() {
    let directory = tempfile::tempdir().unwrap();
    let (mut journal, _) = Journal::open(directory.path(), &Options::default(), &mut |_| ()).unwrap();
    journal.append(&record(1, "topic", b"x")).unwrap();
    journal.flush(SOON).unwrap();
    journal.close().unwrap();
    let sizes = files(directory.path()).into_iter().map(|file| fs::metadata(file).unwrap().len());
    assert!(sizes.sum::<u64>() <= 3 * (4 << 20));
}
