//! A disk that does not give back what was written, and files that another process shortens while
//! they are read: an error that names file and offset, never a signal, never a torn tail, and
//! nothing is changed.

use std::fs;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use quire_journal::*;

use crate::faulty_disk::{Call, FaultyDisk};
use crate::support::*;

/// A disk in memory on which a range of bytes of one file cannot be read.
#[derive(Clone)]
struct BadDisk {
    disk: FaultyDisk,
    bad: Arc<Mutex<Option<Bad>>>,
}

/// The file, and the bytes of it.
type Bad = (PathBuf, Range<u64>);

const ARCHIVE: &str = "archive";

impl BadDisk {
    fn new() -> Self {
        let bad = Arc::new(Mutex::new(None::<Bad>));
        let is_bad = bad.clone();
        let fault = move |call: Call<'_>| match (call, &*is_bad.lock().unwrap()) {
            (Call::Read(path, range), Some((bad_path, bad)))
                if path == bad_path && range.start < bad.end && bad.start < range.end =>
            {
                Err(io::Error::from_raw_os_error(5))
            }
            _ => Ok(()),
        };
        BadDisk { disk: FaultyDisk::new(Arc::new(MemoryDisk::new(64 << 20)), fault), bad }
    }

    fn spoil(&self, path: &Path, range: Range<u64>) {
        *self.bad.lock().unwrap() = Some((path.to_owned(), range));
    }

    fn heal(&self) {
        *self.bad.lock().unwrap() = None;
    }

    fn open_journal(&self) -> Result<Journal, JournalError> {
        let options = Options { archive_directory: Some(ARCHIVE.into()), ..small() };
        Journal::driven_by_hand(Arc::new(self.disk.clone()), Path::new(MEMORY), &options)
            .map(|(journal, _)| journal)
    }
}

/// The file and the offset that an error names.
fn place_in(error: &JournalError) -> (&Path, u64) {
    match error {
        JournalError::Unreadable { path, offset, reason } => {
            assert!(reason.contains("Input/output error"), "{reason}");
            (path, *offset)
        }
        other => panic!("another error: {other}"),
    }
}

/// The sequences up to the first error, and the error.
fn read_up_to_an_error(cursor: &mut Cursor, limit: Position) -> (Vec<u64>, Option<JournalError>) {
    let mut found = Vec::new();
    loop {
        match cursor.next(limit, &AllTopics) {
            Ok(Some(batch)) => found.extend(batch.records().map(|record| record.sequence)),
            Ok(None) => return (found, None),
            Err(error) => return (found, Some(error)),
        }
    }
}

#[test]
fn a_bad_sector_in_a_sealed_segment_is_an_error_with_file_and_offset_and_the_rest_is_read() {
    let disk = BadDisk::new();
    let mut journal = disk.open_journal().unwrap();
    append(&mut journal, 1..=500);
    let reader = journal.reader();
    let bad = place_of(&reader, Position(77)).unwrap();
    disk.spoil(&bad.path, bad.offset + 70..bad.offset + 71);
    let mut cursor = reader.cursor(Position(0));
    let (found, error) = read_up_to_an_error(&mut cursor, reader.persisted());
    let error = error.expect("the sector cannot be read");
    assert_eq!(place_in(&error).0, bad.path);
    assert!(place_in(&error).1 <= bad.offset, "{error}");
    assert_eq!(found, (1..=found.len() as u64).collect::<Vec<_>>());
    assert!(cursor.after() < Position(77));
    // Other segments can be read, by position and by bookmark, and more records can be written.
    let second = reader.segments()[1].positions.unwrap().0.get();
    assert!(second > 77);
    assert_eq!(sequences(&reader, Position(second - 1)), (second..=500).collect::<Vec<_>>());
    assert!(reader.find(Bookmark { publisher: PublisherId(7), sequence: 400 }).unwrap().is_some());
    let error = reader.find(Bookmark { publisher: PublisherId(7), sequence: 77 }).err().unwrap();
    assert_eq!(place_in(&error).0, bad.path);
    append(&mut journal, 501..=510);
    // `verify` names it once.
    let damages = reader.verify();
    assert!(!damages.is_empty());
    assert!(
        damages.iter().all(|damage| damage.path == bad.path && damage.offset <= bad.offset),
        "{damages:?}"
    );
    assert!(damages[0].reason.contains("Input/output error"), "{damages:?}");
    // The cursor stayed where it was.
    disk.heal();
    let (rest, error) = read_up_to_an_error(&mut cursor, reader.persisted());
    assert!(error.is_none());
    assert_eq!([found, rest].concat(), (1..=510).collect::<Vec<_>>());
}

#[test]
fn a_bad_sector_in_the_active_segment_is_not_taken_for_a_torn_tail() {
    let disk = BadDisk::new();
    let mut journal = disk.open_journal().unwrap();
    append(&mut journal, 1..=20);
    let first = place_of(&journal.reader(), Position(1)).unwrap();
    let last = place_of(&journal.reader(), Position(20)).unwrap();
    // The process ends without a stop.
    std::mem::forget(journal);
    let before = Snapshot::of(&disk.disk.disk).0;
    for bad in [0..1, first.offset..first.offset + 1, last.offset..last.offset + 1, 60_000..60_001] {
        disk.spoil(&first.path, bad.clone());
        let error = disk.open_journal().err().expect("it is refused");
        assert_eq!(place_in(&error).0, first.path);
        assert!(place_in(&error).1 <= bad.start, "{error}");
        let error = Reader::open_read_only_on(Arc::new(disk.disk.clone()), Path::new(MEMORY), None)
            .map(|reader| reader.verify());
        match error {
            Err(error) => assert_eq!(place_in(&error).0, first.path),
            // No reader reads after the tail.
            Ok(damages) => assert!(damages.is_empty() && bad.start == 60_000, "{damages:?}"),
        }
    }
    assert_eq!(Snapshot::of(&disk.disk.disk).0, before);
    disk.heal();
    let journal = disk.open_journal().unwrap();
    assert_eq!(sequences(&journal.reader(), Position(0)), (1..=20).collect::<Vec<_>>());
}

#[test]
fn a_segment_that_cannot_be_read_is_neither_archived_nor_compressed_and_stays_as_it_is() {
    for is_archived in [false, true] {
        let disk = BadDisk::new();
        let mut journal = disk.open_journal().unwrap();
        append(&mut journal, 1..=500);
        let bad = place_of(&journal.reader(), Position(20)).unwrap();
        disk.spoil(&bad.path, bad.offset..bad.offset + 1);
        let maintenance = journal.maintenance();
        let taken =
            if is_archived { maintenance.archive(Which::All) } else { maintenance.compress(Which::All) };
        let error = taken.expect_err("it cannot be read");
        assert_eq!(place_in(&error).0, bad.path);
        disk.heal();
        assert_eq!(sequences(&journal.reader(), Position(0)), (1..=500).collect::<Vec<_>>());
        let taken =
            if is_archived { maintenance.archive(Which::All) } else { maintenance.compress(Which::All) };
        assert!(taken.unwrap().len() > 3);
        assert_eq!(sequences(&journal.reader(), Position(0)), (1..=500).collect::<Vec<_>>());
        assert_eq!(journal.reader().verify(), []);
    }
}

#[test]
fn a_frame_or_a_frame_table_that_cannot_be_read_is_an_error_with_file_and_offset() {
    let disk = BadDisk::new();
    let mut journal = disk.open_journal().unwrap();
    append(&mut journal, 1..=500);
    let compressed = journal.maintenance().compress(Which::All).unwrap()[1].clone();
    let (first, last) = compressed.positions.unwrap();
    disk.spoil(&compressed.path, 5000..5001);
    let reader = journal.reader();
    let error = reader.cursor(Position(first.get() - 1)).next(last, &AllTopics).err().expect("a bad frame");
    assert_eq!(place_in(&error), (&*compressed.path, 4096));
    assert!(reader.verify().iter().any(|damage| damage.path == compressed.path && damage.offset == 4096));
    drop(journal);
    disk.spoil(&compressed.path, compressed.size - 1..compressed.size);
    let error = disk.open_journal().err().expect("a bad frame table");
    assert_eq!(place_in(&error).0, compressed.path);
    disk.heal();
    let journal = disk.open_journal().unwrap();
    assert_eq!(sequences(&journal.reader(), Position(0)), (1..=500).collect::<Vec<_>>());
}

/// On the machine's file system, where a mapped file that is shortened ends the process with a
/// signal.
#[test]
fn a_file_that_is_cut_while_it_is_read_is_damage_at_its_end() {
    let directory = tempfile::tempdir().unwrap();
    let (mut journal, _) = open(directory.path());
    append(&mut journal, 1..=500);
    let reader = journal.reader();
    let elsewhere = Reader::open_read_only(directory.path()).unwrap();
    let cut = place_of(&reader, Position(77)).unwrap();
    let mut cursor = reader.cursor(Position(0));
    fs::OpenOptions::new().write(true).open(&cut.path).unwrap().set_len(cut.offset + 30).unwrap();
    let (found, error) = read_up_to_an_error(&mut cursor, reader.persisted());
    assert!(found.len() < 77, "{}", found.len());
    assert!(
        matches!(&error, Some(JournalError::Corrupt { path, offset, .. }) if *path == cut.path && *offset <= cut.offset),
        "{error:?}"
    );
    for reader in [&reader, &elsewhere] {
        let second = reader.segments()[1].positions.unwrap().0.get();
        assert_eq!(sequences(reader, Position(second - 1)), (second..=500).collect::<Vec<_>>());
        assert!(reader.verify().iter().all(|damage| damage.path == cut.path));
        assert!(!reader.verify().is_empty());
    }
    assert!(journal.maintenance().compress(Which::All).is_err());
    append(&mut journal, 501..=510);
}

/// The limit on open files is far below the number of segments that a log may have.
#[test]
fn a_log_of_many_segments_keeps_few_files_open() {
    let directory = tempfile::tempdir().unwrap();
    let (mut journal, _) = open(directory.path());
    append(&mut journal, 1..=8000);
    let count = files(directory.path()).len();
    assert!(count > 60, "{count}");
    drop(journal);
    let own = directory.path().to_owned();
    let open_files = move || {
        let links = fs::read_dir("/proc/self/fd")
            .unwrap()
            .filter_map(|entry| fs::read_link(entry.unwrap().path()).ok());
        links.filter(|link| link.starts_with(&own)).count()
    };
    let (journal, _) = open(directory.path());
    assert!(open_files() < 10, "{} open", open_files());
    let reader = journal.reader();
    assert_eq!(sequences(&reader, Position(0)).len(), 8000);
    assert!(open_files() < 45, "{} open", open_files());
}
