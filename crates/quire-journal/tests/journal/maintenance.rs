//! Archived and compressed segments are part of the log like any other; removed ones are gone, and
//! nothing that is needed is removed.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use quire_journal::*;

use crate::support::*;

/// A journal over many segments, and its archive directory.
struct House {
    journal: Journal,
    /// Removed when the journal is closed, which writes to it.
    directory: tempfile::TempDir,
}

impl House {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let (mut journal, _) = House::open(directory.path()).unwrap();
        append(&mut journal, 1..=1000);
        House { directory, journal }
    }

    fn open(directory: &Path) -> Result<(Journal, Recovery), JournalError> {
        let options = Options { archive_directory: Some(directory.join("archive")), ..small() };
        Journal::open(directory.join("journal"), &options, &mut |_| ())
    }

    fn reopen(self) -> (Self, Recovery) {
        let House { directory, journal } = self;
        journal.close().unwrap();
        let (journal, recovery) = House::open(directory.path()).unwrap();
        (House { directory, journal }, recovery)
    }

    fn states(&self) -> Vec<SegmentState> {
        self.journal.reader().segments().iter().map(|segment| segment.state).collect()
    }

    /// Everything is there, and is found in every way.
    fn check(&self, first: u64) {
        let reader = self.journal.reader();
        assert_eq!(sequences(&reader, Position(0)), (first..=1000).collect::<Vec<_>>());
        assert_eq!(sequences(&reader, Position(first + 400)), (first + 401..=1000).collect::<Vec<_>>());
        for sequence in (first..=1000).step_by(37) {
            let bookmark = Bookmark { publisher: PublisherId(7), sequence };
            assert_eq!(reader.find(bookmark).unwrap(), Some(Position(sequence)));
            assert_eq!(reader.position_before(Timestamp(sequence * 1000)).unwrap(), Position(sequence));
            assert!(place_of(&reader, Position(sequence)).is_some());
        }
        assert_eq!(reader.verify(), []);
        let archive = self.directory.path().join("archive");
        let other = Reader::open_with_archive(self.directory.path().join("journal"), Some(&archive)).unwrap();
        assert_eq!(sequences(&other, Position(0)), (first..=1000).collect::<Vec<_>>());
        assert_eq!(other.verify(), []);
    }
}

/// The instant of the last record of the segment.
fn end_of(house: &House, number: usize) -> Timestamp {
    house.journal.reader().segments()[number].timestamps.unwrap().1
}

#[test]
fn archived_and_compressed_segments_are_read_found_and_verified_like_any_other_also_after_a_restart() {
    use SegmentState::{Active, Archived, Compressed, Sealed};
    let house = House::new();
    let count = house.states().len();
    assert!(count > 8);
    let maintenance = house.journal.maintenance();
    let archived = maintenance.archive(Which::Until(end_of(&house, 3))).unwrap();
    assert_eq!(archived.iter().map(|segment| segment.number).collect::<Vec<_>>(), [0, 1, 2, 3]);
    assert!(archived.iter().all(|segment| segment.path.starts_with(house.directory.path().join("archive"))));
    house.check(1);
    let compressed = maintenance.compress(Which::Until(end_of(&house, 5))).unwrap();
    assert_eq!(compressed.len(), 6);
    assert!(compressed.iter().all(|segment| segment.size < 20_000), "{compressed:?}");
    let states = |archived: usize| {
        let mut states = vec![Sealed; count];
        states[..archived].fill(Archived);
        states[..6].fill(Compressed);
        states[count - 1] = Active;
        states
    };
    assert_eq!(house.states(), states(0));
    house.check(1);
    let (house, recovery) = house.reopen();
    assert_eq!((recovery.indexes_rebuilt, recovery.records), (0, 1000));
    house.check(1);
    // A compressed file can be archived, and an archived file can be compressed.
    assert_eq!(house.journal.maintenance().archive(Which::Until(end_of(&house, 6))).unwrap().len(), 3);
    assert_eq!(house.states(), states(7));
    let (house, recovery) = house.reopen();
    assert_eq!(recovery.indexes_rebuilt, 0);
    assert_eq!(house.states(), states(7));
    house.check(1);
    assert_eq!(house.journal.maintenance().compress(Which::All).unwrap().len(), count - 7);
    house.check(1);
}

#[test]
fn the_index_of_a_compressed_segment_is_made_again_from_its_frames() {
    let (house, _) = House::new().reopen();
    let compressed = house.journal.maintenance().compress(Which::All).unwrap();
    for segment in &compressed {
        fs::remove_file(segment.path.with_extension("index")).unwrap();
    }
    let (house, recovery) = house.reopen();
    assert_eq!(recovery.indexes_rebuilt, compressed.len());
    house.check(1);
}

#[test]
fn removed_segments_are_gone_from_the_oldest_on_and_their_sequences_stay_known() {
    let mut house = House::new();
    let once = NewRecord { publisher: PublisherId(99), ..record(5, "topic-1", &[5; 500]) };
    assert_eq!(house.journal.append(&once).unwrap(), Appended::Recorded(Position(1001)));
    append(&mut house.journal, 1001..=1200);
    let maintenance = house.journal.maintenance();
    maintenance.archive(Which::Until(end_of(&house, 1))).unwrap();
    let segments = house.journal.reader().segments();
    let holding = segments.iter().position(|segment| segment.positions.unwrap().1 >= Position(1001)).unwrap();
    let planned = maintenance.plan(Action::Remove, Which::Until(end_of(&house, holding)), None);
    let removed = maintenance.remove(Which::Until(end_of(&house, holding)), None).unwrap();
    assert_eq!(removed, planned);
    assert_eq!(removed, segments[..=holding]);
    for segment in &removed {
        assert!(!segment.path.exists() && !segment.path.with_extension("index").exists());
    }
    let first = segments[holding + 1].positions.unwrap().0;
    for _ in 0..2 {
        let reader = house.journal.reader();
        assert_eq!(reader.first(), first);
        assert_eq!(house.journal.highest_sequence(PublisherId(99)), Some(5));
        assert_eq!(house.journal.highest_sequence(PublisherId(7)), Some(1200));
        let bookmark = |sequence| Bookmark { publisher: PublisherId(7), sequence };
        assert_eq!(reader.find(bookmark(3)).unwrap(), None);
        assert_eq!(reader.find(bookmark(1200)).unwrap(), Some(Position(1201)));
        assert_eq!(reader.verify(), []);
        let recovery;
        (house, recovery) = house.reopen();
        assert!(!recovery.sequences_lost && recovery.indexes_rebuilt == 0);
    }
}

#[test]
fn the_active_segment_is_never_touched() {
    let house = House::new();
    let count = house.states().len();
    let maintenance = house.journal.maintenance();
    assert_eq!(maintenance.compress(Which::All).unwrap().len(), count - 1);
    assert_eq!(maintenance.archive(Which::Beyond { size_max: 0 }).unwrap().len(), count - 1);
    assert_eq!(maintenance.remove(Which::All, None).unwrap().len(), count - 1);
    assert_eq!(house.states(), [SegmentState::Active]);
    let (mut house, _) = house.reopen();
    append(&mut house.journal, 1001..=1300);
    assert_eq!(*sequences(&house.journal.reader(), Position(0)).last().unwrap(), 1300);
}

#[test]
fn nothing_is_removed_that_a_reader_has_not_passed_or_the_caller_still_needs() {
    let house = House::new();
    let segments = house.journal.reader().segments();
    let maintenance = house.journal.maintenance();
    let last_of = |number: usize| segments[number].positions.unwrap().1;
    // All records after the position in the middle of the third segment are needed.
    let needed = Position(last_of(2).get() - 3);
    assert_eq!(maintenance.remove(Which::All, Some(needed)).unwrap().len(), 2);
    let reader = house.journal.reader();
    let mut slow = reader.cursor(Position(0));
    let mut fast = reader.cursor(Position(900));
    assert_eq!(slow.after(), last_of(1));
    assert_eq!(maintenance.remove(Which::All, None).unwrap(), []);
    fast.next(reader.persisted(), &AllTopics).unwrap().unwrap();
    assert_eq!(maintenance.plan(Action::Remove, Which::All, None), []);
    while slow.after() <= last_of(4) {
        slow.next(reader.persisted(), &AllTopics).unwrap().unwrap();
    }
    assert_eq!(maintenance.remove(Which::All, None).unwrap().len(), 3, "what the slow one has passed");
    drop((slow, fast));
    assert_eq!(maintenance.remove(Which::All, None).unwrap().len(), segments.len() - 1 - 5);
}

#[test]
fn a_size_takes_the_oldest_until_the_rest_is_small_enough() {
    let house = House::new();
    let segments = house.journal.reader().segments();
    let maintenance = house.journal.maintenance();
    let size_max = 3 * 64 * 1024 + 5;
    assert_eq!(maintenance.archive(Which::Beyond { size_max }).unwrap().len(), segments.len() - 3);
    assert_eq!(maintenance.archive(Which::Beyond { size_max }).unwrap().len(), 0);
    assert_eq!(maintenance.compress(Which::Beyond { size_max }).unwrap().len(), segments.len() - 3);
    let total: u64 = house.journal.reader().segments().iter().map(|segment| segment.size).sum();
    assert_eq!(maintenance.remove(Which::Beyond { size_max: total }, None).unwrap().len(), 0);
    assert_eq!(maintenance.remove(Which::Beyond { size_max: total - 1 }, None).unwrap().len(), 1);
}

#[test]
fn archiving_needs_a_place_and_takes_none_from_another_journal() {
    let directory = tempfile::tempdir().unwrap();
    let (mut journal, _) = open(directory.path());
    append(&mut journal, 1..=300);
    let error = journal.maintenance().archive(Which::All).unwrap_err();
    assert!(matches!(error, JournalError::BadOption { option: "journal_archive_directory", .. }), "{error}");

    let house = House::new();
    let archive = house.directory.path().join("archive");
    fs::create_dir(&archive).unwrap();
    let other = archive.join("quire.0000000001.journal");
    fs::copy(&journal.reader().segments()[1].path, &other).unwrap();
    // It is of a log that began with other records.
    let before = fs::read(&other).unwrap();
    let mut bytes = before.clone();
    bytes[32] ^= 1;
    repair_segment_header(&mut bytes);
    fs::write(&other, &bytes).unwrap();
    let error = house.journal.maintenance().archive(Which::All).unwrap_err();
    assert!(matches!(error, JournalError::BadOption { option: "journal_archive_directory", .. }), "{error}");
    assert_eq!(fs::read(&other).unwrap(), bytes);
    assert_eq!(sequences(&house.journal.reader(), Position(0)).len(), 1000);
}

#[test]
fn a_journal_directory_is_not_its_own_archive_however_it_is_spelled() {
    let house = House::new();
    let journal = house.directory.path().join("journal");
    let link = house.directory.path().join("link");
    std::os::unix::fs::symlink(&journal, &link).unwrap();
    let files: Vec<_> = house.journal.reader().segments().into_iter().map(|segment| segment.path).collect();
    // A link that comes while the journal is open.
    std::os::unix::fs::symlink(&journal, house.directory.path().join("archive")).unwrap();
    let error = house.journal.maintenance().archive(Which::All).unwrap_err();
    assert!(matches!(error, JournalError::BadOption { option: "journal_archive_directory", .. }), "{error}");
    let House { directory: _kept, journal: running } = house;
    running.close().unwrap();
    for archive in [journal.clone(), journal.join("."), journal.join("../journal"), link] {
        let stopped = FileMaintenance::open_stopped(&journal, Some(&archive), &mut |_| ()).map(drop);
        let options = Options { archive_directory: Some(archive.clone()), ..small() };
        let running = Journal::open(&journal, &options, &mut |_| ()).map(drop);
        let read = Reader::open_with_archive(&journal, Some(&archive)).map(drop);
        for refused in [stopped, running, read] {
            let error = refused.unwrap_err();
            assert!(
                matches!(error, JournalError::BadOption { option: "journal_archive_directory", .. }),
                "{error}"
            );
        }
    }
    assert!(files.len() > 1);
    assert!(files.iter().all(|file| file.exists()), "one is gone");
}

#[test]
fn a_stopped_journal_is_kept_from_outside_and_a_running_one_is_not() {
    let house = House::new();
    let journal = house.directory.path().join("journal");
    let archive = house.directory.path().join("archive");
    assert!(matches!(
        FileMaintenance::open_stopped(&journal, Some(&archive), &mut |_| ()),
        Err(JournalError::Locked { .. })
    ));
    let running_maintenance = house.journal.maintenance();
    let House { directory, journal: running } = house;
    running.close().unwrap();
    assert!(matches!(running_maintenance.compress(Which::All), Err(JournalError::Closed)));
    let (maintenance, recovery) =
        FileMaintenance::open_stopped(&journal, Some(&archive), &mut |_| ()).unwrap();
    assert!(recovery.was_clean);
    assert!(matches!(House::open(directory.path()), Err(JournalError::Locked { .. })));
    let count = maintenance.archive(Which::All).unwrap().len();
    assert!(count > 8);
    assert_eq!(maintenance.compress(Which::Beyond { size_max: 5 * 64 * 1024 }).unwrap().len(), count - 4);
    assert_eq!(maintenance.remove(Which::All, Some(Position(300))).unwrap().len(), 2);
    drop(maintenance);
    let (journal, _) = House::open(directory.path()).unwrap();
    let first = journal.reader().first().get();
    House { directory, journal }.check(first);
}

#[test]
fn a_reader_elsewhere_goes_on_while_segments_are_moved_and_compressed_under_it() {
    let disk = MemoryDisk::new(256 << 20);
    let (directory, archive) = (Path::new("/journal"), Path::new("/archive"));
    let options = Options { archive_directory: Some(archive.into()), ..small() };
    let (mut journal, _) = Journal::driven_by_hand(Arc::new(disk.clone()), directory, &options).unwrap();
    append(&mut journal, 1..=100);
    let reader = Reader::open_read_only_on(Arc::new(disk.clone()), directory, Some(archive)).unwrap();
    let blind = Reader::open_read_only_on(Arc::new(disk), directory, None).unwrap();
    append(&mut journal, 101..=1000);
    let maintenance = journal.maintenance();
    maintenance.compress(Which::Until(Timestamp(500_000))).unwrap();
    maintenance.archive(Which::Until(Timestamp(700_000))).unwrap();
    reader.refresh().unwrap();
    assert_eq!(sequences(&reader, Position(0)), (1..=1000).collect::<Vec<_>>());
    assert_eq!(reader.verify(), []);
    // Also one that was opened before the journal was archived, and is not told where to.
    blind.refresh().unwrap();
    assert_eq!(sequences(&blind, Position(0)), (1..=1000).collect::<Vec<_>>());
}

#[test]
fn a_flipped_bit_in_a_compressed_segment_is_an_error_or_reads_the_same_and_verify_finds_it() {
    let house = House::new();
    let segment = house.journal.maintenance().compress(Which::All).unwrap()[2].clone();
    let whole = fs::read(&segment.path).unwrap();
    let reader = house.journal.reader();
    let (first, last) = segment.positions.unwrap();
    let all = read_all(&reader).0;
    let (mut refused, mut seen) = (0, 0);
    for at in (0..whole.len()).filter(|at| *at >= 4096 || *at < 64 || at % 97 == 0) {
        write_at(&segment.path, &[whole[at] ^ 1 << (at % 8)], at as u64);
        assert!(!reader.verify().is_empty(), "verify does not see byte {at}");
        // As after a restart: a file that cannot be opened is refused by name.
        if at < 64 || at % 50 == 0 || at >= whole.len() - 40 {
            let archive = house.directory.path().join("archive");
            match Reader::open_with_archive(house.directory.path().join("journal"), Some(&archive)) {
                Err(JournalError::Corrupt { path, .. }) => {
                    assert_eq!(path, segment.path);
                    refused += 1;
                }
                Err(error) => panic!("{error}"),
                Ok(reader) => {
                    let (found, error) = read_all(&reader);
                    assert!(all.starts_with(&found), "byte {at}");
                    assert!(found.len() == all.len() || error.is_some(), "byte {at}");
                    if error.is_some() {
                        assert!((first.get() - 1..last.get()).contains(&(found.len() as u64)));
                        seen += 1;
                    }
                }
            }
        }
        write_at(&segment.path, &[whole[at]], at as u64);
    }
    assert!(refused > 40 && seen > 0, "{refused} {seen}");
    assert_eq!(reader.verify(), []);
}

/// A journal on a disk in memory that archives, and readers of its directory.
struct Followed {
    disk: Arc<MemoryDisk>,
    journal: Journal,
}

impl Followed {
    const DIRECTORY: &str = "/journal";
    const ARCHIVE: &str = "/archive";

    fn new() -> Self {
        let disk = Arc::new(MemoryDisk::new(256 << 20));
        let options = Options { archive_directory: Some(Followed::ARCHIVE.into()), ..small() };
        let (journal, _) =
            Journal::driven_by_hand(disk.clone(), Path::new(Followed::DIRECTORY), &options).unwrap();
        Followed { disk, journal }
    }

    fn reader(&self) -> Reader {
        Reader::open_read_only_on(self.disk.clone(), Path::new(Followed::DIRECTORY), None).unwrap()
    }
}

#[test]
fn a_reader_elsewhere_steps_over_files_that_were_removed_behind_it() {
    let mut followed = Followed::new();
    append(&mut followed.journal, 1..=100);
    let reader = followed.reader();
    append(&mut followed.journal, 101..=1000);
    // Everything that the reader knows is gone, and more.
    let removed = followed.journal.maintenance().remove(Which::Until(Timestamp(500_000)), None).unwrap();
    let first = removed.last().unwrap().positions.unwrap().1.next();
    assert!(first > Position(200), "{first}");
    reader.refresh().unwrap();
    assert_eq!((reader.first(), reader.persisted()), (first, Position(1000)));
    assert_eq!(sequences(&reader, Position(0)), (first.get()..=1000).collect::<Vec<_>>());
    assert_eq!(reader.find(Bookmark { publisher: PublisherId(7), sequence: 50 }).unwrap(), None);
    assert_eq!(reader.verify(), []);
    // It also follows what is added and removed later, and so do its clones.
    let clone = reader.clone();
    append(&mut followed.journal, 1001..=1500);
    followed.journal.maintenance().remove(Which::Until(Timestamp(900_000)), None).unwrap();
    reader.refresh().unwrap();
    assert_eq!(clone.first(), followed.journal.reader().first());
    assert_eq!(clone.segments().len(), followed.journal.reader().segments().len());
    assert_eq!(*sequences(&clone, Position(0)).last().unwrap(), 1500);
}

#[test]
fn a_reader_elsewhere_shows_where_files_are_now() {
    let mut followed = Followed::new();
    append(&mut followed.journal, 1..=700);
    let reader = followed.reader();
    followed.journal.maintenance().archive(Which::Until(Timestamp(400_000))).unwrap();
    reader.refresh().unwrap();
    assert_eq!(reader.segments(), followed.journal.reader().segments());
    assert_eq!(sequences(&reader, Position(0)), (1..=700).collect::<Vec<_>>());
}

#[test]
fn a_reader_elsewhere_shows_where_all_files_are_after_its_cursors_found_some_in_the_archive() {
    let mut followed = Followed::new();
    append(&mut followed.journal, 1..=1000);
    let sealed = followed.reader().segments().len() - 1;
    assert!(sealed > 4, "{sealed}");
    for last in 1..sealed {
        let mut followed = Followed::new();
        append(&mut followed.journal, 1..=1000);
        let reader = followed.reader();
        // Asked of another reader: this one has no sealed file open.
        let segments = followed.journal.reader().segments();
        let until = segments[last].timestamps.unwrap().1;
        let archived = followed.journal.maintenance().archive(Which::Until(until)).unwrap();
        assert_eq!(archived.len(), last + 1);
        // The first and the last archived file are found, those between them are not looked for.
        for at in [0, last] {
            let first = segments[at].positions.unwrap().0;
            let mut cursor = reader.cursor(Position(first.get() - 1));
            assert_eq!(cursor.next(first, &AllTopics).unwrap().unwrap().first(), first);
        }
        reader.refresh().unwrap();
        assert_eq!(reader.segments(), followed.journal.reader().segments(), "{last}");
    }
}

#[test]
fn a_cursor_that_is_in_a_file_when_it_is_removed_elsewhere_reads_it_to_its_end() {
    let mut followed = Followed::new();
    append(&mut followed.journal, 1..=100);
    let reader = followed.reader();
    let mut cursor = reader.cursor(Position(0));
    let batch = cursor.next(reader.persisted(), &AllTopics).unwrap().unwrap();
    let mut last = batch.last();
    append(&mut followed.journal, 101..=1000);
    followed.journal.maintenance().remove(Which::Until(Timestamp(500_000)), None).unwrap();
    reader.refresh().unwrap();
    while let Some(batch) = cursor.next(Position(100), &AllTopics).unwrap() {
        assert_eq!(batch.first(), last.next());
        last = batch.last();
    }
    assert_eq!(last, Position(100));
    // The next records were removed. The reader reports that, and neither waits for them nor skips
    // them.
    let mut end = Ok(None);
    while end.is_ok() {
        end = cursor.next(Position(1000), &AllTopics).map(|batch| batch.map(|batch| last = batch.last()));
        assert!(matches!(end, Ok(Some(())) | Err(JournalError::Removed { .. })), "{end:?}");
    }
    assert_eq!(cursor.after(), last);
}

#[test]
fn a_file_that_is_missing_in_the_middle_is_a_gap_for_a_reader_elsewhere_too() {
    let mut followed = Followed::new();
    append(&mut followed.journal, 1..=100);
    let reader = followed.reader();
    let known = reader.segments().len();
    append(&mut followed.journal, 101..=1000);
    let missing = followed.journal.reader().segments()[known].clone();
    followed.disk.remove(&missing.path).unwrap();
    match reader.refresh() {
        Err(JournalError::Gap { missing: number, .. }) => assert_eq!(number, missing.number),
        other => panic!("{other:?}"),
    }
    // Earlier records can still be read.
    let last = reader.persisted();
    assert!(last >= Position(100) && last < missing.positions.unwrap().0);
    assert_eq!(sequences(&reader, Position(0)), (1..=last.get()).collect::<Vec<_>>());
}

#[test]
fn a_reader_elsewhere_finds_the_files_that_were_moved_or_compressed_before_it_opened_them() {
    let disk = MemoryDisk::new(256 << 20);
    let (directory, archive) = (Path::new("journal"), Path::new("archive"));
    let options = Options { archive_directory: Some(archive.into()), ..small() };
    let (mut journal, _) = Journal::driven_by_hand(Arc::new(disk.clone()), directory, &options).unwrap();
    append(&mut journal, 1..=1000);
    let reader = Reader::open_read_only_on(Arc::new(disk.clone()), directory, Some(archive)).unwrap();
    assert!(reader.segments().len() > 8);
    let maintenance = journal.maintenance();
    maintenance.compress(Which::Until(Timestamp(500_000))).unwrap();
    maintenance.archive(Which::Until(Timestamp(700_000))).unwrap();
    assert_eq!(sequences(&reader, Position(0)), (1..=1000).collect::<Vec<_>>());
    assert_eq!(reader.verify(), []);
    // What is gone is an error, and not the end of the log.
    let reader = Reader::open_read_only_on(Arc::new(disk), directory, Some(archive)).unwrap();
    maintenance.remove(Which::Until(Timestamp(300_000)), None).unwrap();
    let error = reader.cursor(Position(0)).next(reader.persisted(), &AllTopics).err().unwrap();
    assert!(matches!(error, JournalError::Removed { after: Position(0), .. }), "{error}");
}

#[test]
fn a_sealed_segment_without_records_is_as_old_as_the_next_record() {
    let directory = tempfile::tempdir().unwrap();
    let (mut journal, _) = open(directory.path());
    // Larger than the first segment, which is sealed without a record.
    let data = vec![b'x'; 2 * small().segment_size as usize];
    journal.append(&NewRecord { timestamp: Timestamp(5_000), ..record(1, "orders", &data) }).unwrap();
    journal.submit();
    journal.flush(SOON).unwrap();
    journal.append(&NewRecord { timestamp: Timestamp(9_000), ..record(2, "orders", &data) }).unwrap();
    journal.submit();
    journal.flush(SOON).unwrap();
    let maintenance = journal.maintenance();
    let removed = |until| maintenance.plan(Action::Remove, Which::Until(Timestamp(until)), None).len();
    assert_eq!(journal.reader().segments()[0].positions, None);
    assert_eq!((removed(1), removed(4_999), removed(5_000)), (0, 0, 2));
}
