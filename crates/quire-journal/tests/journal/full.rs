//! A disk that is full for a while: nothing is acknowledged meanwhile, everything is written when
//! there is room, in order and once.

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};

use quire_journal::*;

use crate::faulty_disk::{Call, FaultyDisk};
use crate::support::*;

/// The operation that the disk refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refuses {
    Nothing,
    /// No space for new files.
    Files,
    /// No space for the second half of what is written.
    Writes,
    /// The process has no file left for new ones.
    Opening,
    /// The process has no file left for the directory that is to be synced.
    Directories,
    /// A sync: for want of space, as file systems say that reserve it late.
    Syncs,
}

/// A disk in memory with a fault that can be switched.
struct FullDisk {
    disk: FaultyDisk,
    refuses: Arc<Mutex<Refuses>>,
}

impl FullDisk {
    fn new() -> Self {
        let refuses = Arc::new(Mutex::new(Refuses::Nothing));
        let refused = refuses.clone();
        let fault = move |call: Call<'_>| match (*refused.lock().unwrap(), call) {
            (Refuses::Files, Call::Reserve(_))
            | (Refuses::Writes, Call::Write(_))
            | (Refuses::Syncs, Call::Sync(_)) => Err(io::ErrorKind::StorageFull.into()),
            (Refuses::Opening, Call::Create(_)) | (Refuses::Directories, Call::SyncDirectory(_)) => {
                Err(io::Error::from_raw_os_error(24))
            }
            _ => Ok(()),
        };
        FullDisk { disk: FaultyDisk::new(Arc::new(MemoryDisk::new(64 << 20)), fault), refuses }
    }

    fn refuse(&self, what: Refuses) {
        *self.refuses.lock().unwrap() = what;
    }
}

fn open(disk: &FullDisk) -> Journal {
    Journal::driven_by_hand(Arc::new(disk.disk.clone()), Path::new(MEMORY), &small()).unwrap().0
}

fn append_some(journal: &mut Journal, sequences: std::ops::RangeInclusive<u64>) {
    for sequence in sequences {
        let topic = format!("topic-{}", sequence % 10);
        let record = record(sequence, &topic, &[0; 500]);
        journal.append(&NewRecord { data: &[sequence as u8; 500], ..record }).unwrap();
        journal.submit();
    }
    journal.write_waiting();
}

#[test]
fn a_journal_without_room_keeps_what_is_appended_and_writes_all_of_it_once_when_there_is_room() {
    for refuses in [Refuses::Files, Refuses::Writes, Refuses::Opening, Refuses::Directories] {
        let disk = FullDisk::new();
        let mut journal = open(&disk);
        append(&mut journal, 1..=20);
        disk.refuse(refuses);
        append_some(&mut journal, 21..=300);
        let persisted = journal.persisted();
        assert!((Position(20)..Position(300)).contains(&persisted), "{refuses:?}: {persisted}");
        let stall = journal.stall().expect("there is no room");
        assert!(journal.failure().is_none());
        let told = journal.flush(SOON).expect_err("there is no room");
        match refuses {
            Refuses::Opening | Refuses::Directories => {
                assert!(matches!(stall, JournalError::OutOfFiles { .. }), "{stall}")
            }
            _ => assert!(matches!(stall, JournalError::Full { .. }), "{stall}"),
        }
        assert_eq!(told.to_string(), stall.to_string());
        if refuses == Refuses::Files {
            assert!(stall.to_string().ends_with("; it needs 65536 bytes, 77 are free"), "{stall}");
            let names = disk.disk.list(Path::new(MEMORY)).unwrap();
            assert!(!names.iter().any(|name| name.ends_with(".preparing")), "it takes the room: {names:?}");
        }
        // Reading continues, and another attempt has no effect.
        assert_eq!(sequences(&journal.reader(), Position(0)), (1..=persisted.get()).collect::<Vec<_>>());
        journal.write_waiting();
        assert_eq!(journal.persisted(), persisted);
        append_some(&mut journal, 301..=310);
        disk.refuse(Refuses::Nothing);
        journal.write_waiting();
        assert!(journal.stall().is_none());
        assert_eq!(journal.persisted(), Position(310));
        append(&mut journal, 311..=600);
        assert_eq!(sequences(&journal.reader(), Position(0)), (1..=600).collect::<Vec<_>>());
        assert_eq!(journal.reader().verify(), []);
        journal.close().unwrap();
        let journal = open(&disk);
        assert_eq!(sequences(&journal.reader(), Position(0)), (1..=600).collect::<Vec<_>>());
    }
}

#[test]
fn a_sync_that_fails_for_want_of_space_is_not_tried_again() {
    let disk = FullDisk::new();
    let mut journal = open(&disk);
    append(&mut journal, 1..=20);
    disk.refuse(Refuses::Syncs);
    append_some(&mut journal, 21..=22);
    assert!(matches!(journal.failure(), Some(JournalError::Full { operation: "syncing", .. })));
    disk.refuse(Refuses::Nothing);
    journal.write_waiting();
    assert_eq!(journal.persisted(), Position(20));
    assert!(journal.append(&record(23, "topic-3", b"x")).is_err());
}

#[test]
fn a_journal_that_is_closed_without_room_says_so_and_the_next_start_has_what_was_persisted() {
    let disk = FullDisk::new();
    let mut journal = open(&disk);
    append(&mut journal, 1..=20);
    disk.refuse(Refuses::Files);
    append_some(&mut journal, 21..=300);
    let persisted = journal.persisted().get();
    assert!(matches!(journal.close(), Err(JournalError::Full { .. })));
    disk.refuse(Refuses::Nothing);
    let mut journal = open(&disk);
    assert_eq!(sequences(&journal.reader(), Position(0)), (1..=persisted).collect::<Vec<_>>());
    append(&mut journal, persisted + 1..=400);
    assert_eq!(sequences(&journal.reader(), Position(0)), (1..=400).collect::<Vec<_>>());
}

#[test]
fn a_journal_that_is_closed_with_room_again_writes_what_waited() {
    let disk = FullDisk::new();
    let mut journal = open(&disk);
    disk.refuse(Refuses::Files);
    append_some(&mut journal, 1..=300);
    assert!(journal.stall().is_some());
    disk.refuse(Refuses::Nothing);
    journal.close().unwrap();
    assert_eq!(sequences(&open(&disk).reader(), Position(0)), (1..=300).collect::<Vec<_>>());
}
