//! What was persisted is there after every end of the process.

use std::fs;
use std::io;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use quire_journal::*;

use crate::support::*;

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
fn a_torn_tail_is_cut_and_reported_and_appending_goes_on() {
    let directory = tempfile::tempdir().unwrap();
    let (mut journal, _) = open(directory.path());
    append(&mut journal, 1..=50);
    let end = place_of(&journal.reader(), Position(50)).unwrap();
    // The process ends without a word: a copy of the directory is what it leaves.
    let crashed = tempfile::tempdir().unwrap();
    for file in fs::read_dir(directory.path()).unwrap() {
        let path = file.unwrap().path();
        match fs::copy(&path, crashed.path().join(path.file_name().unwrap())) {
            // The journal makes its next segment under another name, and renames it when it is ready.
            Err(error) if error.kind() == io::ErrorKind::NotFound => (),
            copied => assert!(copied.is_ok(), "{copied:?}"),
        }
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
fn a_journal_that_is_only_opened_and_closed_goes_on_to_the_next_segment_when_its_marks_fill_one() {
    let disk = MemoryDisk::new(16 << 20);
    let open = || Journal::driven_by_hand(Arc::new(disk.clone()), Path::new("journal"), &small()).unwrap();
    let (mut journal, _) = open();
    append(&mut journal, 1..=100);
    journal.close().unwrap();
    for _ in 0..400 {
        let (journal, _) = open();
        journal.close().unwrap();
    }
    let (journal, recovery) = open();
    assert!(recovery.was_clean);
    assert_eq!(journal.reader().verify(), []);
    assert_eq!(sequences(&journal.reader(), Position(0)), (1..=100).collect::<Vec<_>>());
    assert!(journal.reader().segments().iter().all(|segment| segment.size == 64 * 1024));
}

#[test]
fn a_stop_that_left_a_torn_tail_was_not_clean() {
    let directory = tempfile::tempdir().unwrap();
    let (journal, _) = open(directory.path());
    drop(journal);
    // The first flush of all was torn: nothing but a part of it is there.
    let path = &files(directory.path())[0];
    fs::remove_file(directory.path().join("clients.ack")).unwrap();
    write_at(path, &[0; 64], 4096);
    write_at(path, &[9; 100], 4096 + 600);
    let (_, recovery) = open(directory.path());
    assert_eq!(recovery.cut.map(|cut| cut.offset), Some(4096));
    assert!(!recovery.was_clean);
}

#[test]
fn a_log_whose_newest_files_were_lost_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let (mut journal, _) = open(directory.path());
    append(&mut journal, 1..=500);
    let last = place_of(&journal.reader(), Position(500)).unwrap().path;
    journal.close().unwrap();
    for file in files(directory.path()).iter().filter(|file| **file >= last) {
        fs::remove_file(file).unwrap();
    }
    let error = Journal::open(directory.path(), &small(), &mut |_| ()).err().unwrap();
    assert!(
        matches!(error, JournalError::Truncated { durable: Position(500), last, .. } if last < Position(500)),
        "{error}"
    );
}

#[test]
fn a_lost_or_damaged_clients_file_is_reported_only_when_the_log_cannot_make_it_again() {
    for (first_removed, damaged) in [(false, false), (false, true), (true, false), (true, true)] {
        let directory = tempfile::tempdir().unwrap();
        let (mut journal, _) = open(directory.path());
        append(&mut journal, 1..=500);
        journal.close().unwrap();
        if first_removed {
            // The file that says where the log begins is not whole either.
            fs::remove_file(&files(directory.path())[0]).unwrap();
        }
        let clients = directory.path().join("clients.ack");
        if damaged {
            write_at(&clients, &[0xff], 30);
        } else {
            fs::remove_file(&clients).unwrap();
        }
        let (journal, recovery) = open(directory.path());
        assert_eq!(recovery.sequences_lost, first_removed);
        assert_eq!(journal.highest_sequence(PublisherId(7)), Some(500));
        drop(journal);
        // It was written again.
        let (journal, recovery) = open(directory.path());
        assert!(!recovery.sequences_lost);
        assert_eq!(journal.highest_sequence(PublisherId(7)), Some(500));
    }
}

#[test]
fn sequences_outlive_the_segments_they_were_in() {
    let directory = tempfile::tempdir().unwrap();
    let (mut journal, _) = open(directory.path());
    for sequence in 1..=10 {
        let once = NewRecord { publisher: PublisherId(99), ..record(sequence, "topic-1", b"once") };
        journal.append(&once).unwrap();
    }
    append(&mut journal, 1..=500);
    journal.close().unwrap();
    // By hand, with the server stopped, from the oldest on: allowed (reference: queues-and-transaction-log G7), and then said.
    fs::remove_file(&files(directory.path())[0]).unwrap();
    assert_eq!(Upkeep::give_up_missing(directory.path(), None).unwrap(), Some((Some(0), 0)));
    for _ in 0..2 {
        let (journal, recovery) = open(directory.path());
        assert!(!recovery.sequences_lost);
        assert_eq!(journal.highest_sequence(PublisherId(99)), Some(10));
    }
}

#[test]
fn queue_points_survive_and_a_damaged_file_says_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let (journal, _) = open(directory.path());
    let points = journal.queue_points();
    assert_eq!(points.read(), None);
    let point = QueuePoint { queue: "orders".into(), recovery_point: "epoch".into(), settled: Position(12) };
    points.write(std::slice::from_ref(&point)).unwrap();
    journal.close().unwrap();
    let (journal, _) = open(directory.path());
    assert_eq!(journal.queue_points().read(), Some(vec![point]));
    write_at(&directory.path().join("queues.ack"), &[1], 20);
    assert_eq!(journal.queue_points().read(), None);
}

#[test]
fn states_of_queues_survive_and_a_damaged_one_says_nothing() {
    let read = |state: Option<KeptState>| {
        let mut bytes = Vec::new();
        state?.read_to_end(&mut bytes).ok().map(|_| bytes)
    };
    let directory = tempfile::tempdir().unwrap();
    let (journal, _) = open(directory.path());
    let states = journal.queue_states();
    let long = "a/".repeat(400);
    assert!(states.read("orders").is_none());
    states.write("orders", &[]).unwrap();
    assert_eq!(read(states.read("orders")).as_deref(), Some(&b""[..]));
    states.write("orders", &[b"one, ", b"", b"two"]).unwrap();
    states.write(&long, &[b"three"]).unwrap();
    assert!(states.write(&"x".repeat(65_536), &[]).is_err());
    journal.close().unwrap();
    let (journal, _) = open(directory.path());
    let states = journal.queue_states();
    assert_eq!(read(states.read("orders")).as_deref(), Some(&b"one, two"[..]));
    states.retain(&["orders"]).unwrap();
    assert!(states.read(&long).is_none() && states.read("orders").is_some());
    let file = fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().path());
    let file = file.into_iter().find(|path| path.extension().is_some_and(|extension| extension == "state"));
    let file = file.unwrap();
    write_at(&file, &[1], 25);
    assert_eq!(read(states.read("orders")), None);
    // Cut short while it is read, which of a mapped file would end the process.
    let state = states.read("orders");
    fs::OpenOptions::new().write(true).open(&file).unwrap().set_len(21).unwrap();
    assert_eq!(read(state), None);
}

/// Found by simulation: the index of a segment was written, a power cut took the segment behind it, more was appended to the first, and
/// the next index could not be written.
#[test]
fn an_index_from_before_more_was_appended_is_made_again() {
    let disk = MemoryDisk::new(64 << 20);
    let (mut journal, _) = open_on(&disk).unwrap();
    append(&mut journal, 1..=50);
    let rolled = Snapshot::of(&disk).disk();
    let (mut other, _) = open_on(&rolled).unwrap();
    other.append(&record(51, "topic-1", &[0; 60_000])).unwrap();
    other.flush(SOON).unwrap();
    let index = Path::new(MEMORY).join("quire.0000000000.index");
    let old = rolled.read(&index).unwrap();
    append(&mut journal, 51..=300);
    assert_ne!(disk.read(&index).unwrap(), old);
    disk.create(&index, old.len() as u64).unwrap().write_at(&old, 0).unwrap();
    journal.close().unwrap();
    let (journal, recovery) = open_on(&disk).unwrap();
    assert_eq!((recovery.indexes_rebuilt, recovery.records), (1, 300));
    assert_eq!(sequences(&journal.reader(), Position(0)), (1..=300).collect::<Vec<_>>());
    assert_eq!(journal.reader().verify(), []);
}
