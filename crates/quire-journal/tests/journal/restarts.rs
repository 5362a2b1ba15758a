//! Persisted records are there after every end of the process.

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
            // The journal makes its next segment under another name, and renames it when it is
            // ready.
            Err(error) if error.kind() == io::ErrorKind::NotFound => (),
            copied => assert!(copied.is_ok(), "{copied:?}"),
        }
    }
    let path = crashed.path().join(end.path.file_name().unwrap());
    let bytes = fs::read(&path).unwrap();
    let last = bytes.iter().rposition(|byte| *byte != 0).unwrap() as u64;
    // Half of a batch header after the last batch.
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
    // By hand, with the server stopped, from the oldest on: this is allowed, and then reported.
    fs::remove_file(&files(directory.path())[0]).unwrap();
    assert_eq!(FileMaintenance::give_up_missing(directory.path(), None).unwrap(), Some((Some(0), 0)));
    for _ in 0..2 {
        let (journal, recovery) = open(directory.path());
        assert!(!recovery.sequences_lost);
        assert_eq!(journal.highest_sequence(PublisherId(99)), Some(10));
    }
}

#[test]
fn sidecar_files_survive_a_restart_and_a_damaged_one_says_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let (journal, _) = open(directory.path());
    let files = journal.sidecars();
    assert_eq!(files.read("queues.ack", "queues").unwrap(), FoundSidecar::Missing);
    assert!(files.open("queues.ack", "queues").is_none());
    let head = SidecarHead { version: 7, position: Position(12), needs: Some(Position(5)) };
    files.write("queues.ack", "queues", head, &[b"one, ", b"", b"two"]).unwrap();
    files.write("table-1.state", "orders", SidecarHead { needs: None, ..head }, &[]).unwrap();
    for (file, name) in [("queues.txt", "queues"), ("queues", "queues"), ("queues.ack", &"x".repeat(65_536))]
    {
        let error = files.write(file, name, head, &[]).unwrap_err();
        assert!(matches!(error, JournalError::BadOption { option: "sidecar", .. }), "{error}");
    }
    journal.close().unwrap();
    let (journal, _) = open(directory.path());
    let files = journal.sidecars();
    let expected = FoundSidecar::Whole(head, b"one, two".to_vec());
    assert_eq!(files.read("queues.ack", "queues").unwrap(), expected);
    assert_eq!(files.read("queues.ack", "tables").unwrap(), FoundSidecar::Damaged);
    assert!(files.open("queues.ack", "tables").is_none());
    let read = |name: &str| {
        let mut bytes = Vec::new();
        let (head, mut reader) = files.open(name, if name == "queues.ack" { "queues" } else { "orders" })?;
        reader.read_to_end(&mut bytes).ok().map(|_| (head.version, bytes))
    };
    assert_eq!(read("queues.ack"), Some((7, b"one, two".to_vec())));
    assert_eq!(read("table-1.state"), Some((7, Vec::new())));
    let mut names = files.files().unwrap();
    names.sort();
    assert_eq!(names, ["clients.ack", "queues.ack", "table-1.state"]);
    assert_eq!(files.needs(), Some(Position(5)));
    files.remove("table-1.state").unwrap();
    assert_eq!(read("table-1.state"), None);

    // A byte of the content: the head, and with it what is needed, is still known.
    let path = directory.path().join("queues.ack");
    write_at(&path, &[1], 45);
    assert_eq!(files.read("queues.ack", "queues").unwrap(), FoundSidecar::Damaged);
    assert_eq!((read("queues.ack"), files.needs()), (None, Some(Position(5))));
    let damages = journal.reader().verify();
    assert_eq!(damages.len(), 1);
    assert_eq!(
        (&damages[0].path, &damages[0].reason[..]),
        (&path, "the checksum of the file does not match")
    );
    // A byte of the head.
    write_at(&path, &[1], 10);
    assert_eq!((read("queues.ack"), files.needs()), (None, None));
    // Cut short while it is read.
    files.write("queues.ack", "queues", head, &[b"content"]).unwrap();
    let (_, mut reader) = files.open("queues.ack", "queues").unwrap();
    fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(45).unwrap();
    assert!(reader.read_to_end(&mut Vec::new()).is_err());
}

#[test]
fn verify_names_a_sidecar_file_that_needs_what_the_log_has_no_more() {
    let directory = tempfile::tempdir().unwrap();
    let (mut journal, _) = open(directory.path());
    append(&mut journal, 1..=400);
    assert_eq!(journal.maintenance().remove(Which::All, None).unwrap().len(), 3);
    let first = journal.reader().first();
    let needs = |position| SidecarHead { version: 1, position: Position(400), needs: position };
    for position in [None, Some(first), Some(Position(400)), Some(Position(500))] {
        journal.sidecars().write("queues.ack", "queues", needs(position), &[]).unwrap();
        assert_eq!(journal.reader().verify(), []);
    }
    journal.sidecars().write("queues.ack", "queues", needs(Some(Position(7))), &[]).unwrap();
    for reader in [journal.reader(), Reader::open_read_only(directory.path()).unwrap()] {
        let damages = reader.verify();
        assert_eq!(damages.len(), 1);
        assert_eq!(damages[0].path, directory.path().join("queues.ack"));
        let expected = format!("it needs the log from position 7 on, but the log begins at {first}");
        assert_eq!(damages[0].reason, expected);
    }
}

#[test]
fn what_a_sidecar_file_needs_is_not_removed() {
    let directory = tempfile::tempdir().unwrap();
    let (mut journal, _) = open(directory.path());
    append(&mut journal, 1..=400);
    let segments = journal.reader().segments();
    assert_eq!(segments.len(), 4);
    let (_, second_ends) = segments[1].positions.unwrap();
    let head = SidecarHead { version: 1, position: Position(400), needs: Some(second_ends) };
    journal.sidecars().write("tables.state", "tables", head, &[]).unwrap();
    assert_eq!(journal.maintenance().needed(), Some(second_ends));
    let removed = journal.maintenance().remove(Which::All, None).unwrap();
    assert_eq!(removed.iter().map(|segment| segment.number).collect::<Vec<_>>(), [0]);
    journal.sidecars().remove("tables.state").unwrap();
    assert_eq!(journal.maintenance().remove(Which::All, None).unwrap().len(), 2);
}

/// Found by simulation: the index of a segment was written, a power cut removed the segment after
/// it, more records were appended to the first one, and the next index could not be written.
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
