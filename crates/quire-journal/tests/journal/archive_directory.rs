//! A journal stores where it begins and where its older segments were archived. Every process finds
//! them, or gets an error that names the missing files.

use std::fs;
use std::path::{Path, PathBuf};

use quire_journal::*;

use crate::support::*;

/// A stopped journal in `journal`, its oldest two segments in `archive`.
fn archived() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let options = Options { archive_directory: Some(directory.path().join("archive")), ..small() };
    let (mut journal, _) = Journal::open(directory.path().join("journal"), &options, &mut |_| ()).unwrap();
    append(&mut journal, 1..=1000);
    let end = journal.reader().segments()[1].timestamps.unwrap().1;
    assert_eq!(journal.maintenance().archive(Which::Until(end)).unwrap().len(), 2);
    journal.close().unwrap();
    directory
}

type Opened = Result<Vec<SegmentInfo>, JournalError>;

fn read(journal: &Path, archive: Option<&Path>) -> Opened {
    let reader = Reader::open_with_archive(journal, archive)?;
    assert_eq!(sequences(&reader, Position(0)), (reader.first().get()..=1000).collect::<Vec<_>>());
    assert_eq!(reader.verify(), []);
    Ok(reader.segments())
}

fn write(journal: &Path, archive: Option<&Path>) -> Opened {
    let options = Options { archive_directory: archive.map(Path::to_owned), ..small() };
    let (journal, _) = Journal::open(journal, &options, &mut |_| ())?;
    let segments = journal.reader().segments();
    journal.close().map(|()| segments)
}

fn keep(journal: &Path, archive: Option<&Path>) -> Opened {
    FileMaintenance::open_stopped(journal, archive, &mut |_| ())
        .map(|(maintenance, _)| maintenance.plan(Action::Remove, Which::All, None))
}

/// Every way of opening a journal, the ones that change nothing first.
const WAYS: [fn(&Path, Option<&Path>) -> Opened; 3] = [read, keep, write];

#[track_caller]
fn assert_missing(opened: Opened, files: (Option<u32>, Option<u32>), place: Option<&Path>) {
    match opened {
        Err(JournalError::Missing { first, last, archive, .. }) => {
            assert_eq!(((first, last), archive.as_deref()), (files, place));
        }
        other => panic!("{other:?}"),
    }
}

/// Makes `clients.ack` and `archive.place` what the first version of both was, which did not say
/// where the log begins and whose it is.
fn make_first_version(journal: &Path) {
    let rewrite = |name: &str, change: fn(&[u8]) -> Vec<u8>| {
        let Ok(bytes) = fs::read(journal.join(name)) else { return };
        let mut bytes = change(&bytes[..bytes.len() - 4]);
        bytes.extend(crc32c::crc32c(&bytes).to_le_bytes());
        fs::write(journal.join(name), bytes).unwrap();
    };
    // The head of each with its name is 43 bytes.
    rewrite("clients.ack", |bytes| {
        let (position, count, entries) = (&bytes[16..24], &bytes[55..59], bytes[79..].chunks(40));
        let entries: Vec<u8> = entries.flat_map(|entry| &entry[..16]).copied().collect();
        [b"QUIRECLI\x01\0\0\0", count, position, &entries].concat()
    });
    rewrite("archive.place", |bytes| {
        let size = u32::from_le_bytes(bytes[43..47].try_into().unwrap()) as usize;
        [b"QUIREARC\x01\0\0\0", &bytes[47 + size..]].concat()
    });
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, to.join(path.file_name().unwrap())).unwrap();
    }
}

#[test]
fn archived_segments_are_found_without_a_name_for_their_directory() {
    for is_first_version in [false, true] {
        let directory = archived();
        let (journal, archive) = (directory.path().join("journal"), directory.path().join("archive"));
        if is_first_version {
            make_first_version(&journal);
        }
        let link = directory.path().join("link");
        std::os::unix::fs::symlink(&archive, &link).unwrap();
        for way in WAYS {
            for named in [None, Some(&*archive), Some(&*link)] {
                let segments = way(&journal, named).unwrap();
                let numbers: Vec<_> = segments.iter().map(|segment| segment.number).take(3).collect();
                assert_eq!(numbers, [0, 1, 2]);
                assert_eq!(segments[1].path.parent(), Some(named.unwrap_or(&archive)));
            }
        }
    }
}

#[test]
fn an_archive_that_is_not_where_it_was_is_an_error_until_it_is_named_or_back() {
    let directory = archived();
    let [journal, archive, moved, empty] =
        ["journal", "archive", "moved", "empty"].map(|name| directory.path().join(name));
    fs::rename(&archive, &moved).unwrap();
    fs::create_dir(&empty).unwrap();
    let before = files(&journal);
    for way in WAYS {
        for named in [None, Some(&*archive), Some(&*empty)] {
            assert_missing(way(&journal, named), (Some(0), Some(1)), Some(&archive));
        }
        // The directory of a file system that is not mounted.
        fs::create_dir(&archive).unwrap();
        assert_missing(way(&journal, None), (Some(0), Some(1)), Some(&archive));
        fs::remove_dir(&archive).unwrap();
    }
    assert_eq!(files(&journal), before);
    let error = write(&journal, None).unwrap_err().to_string();
    for part in ["files 0000000000 to 0000000001 are missing", archive.to_str().unwrap(), "--missing"] {
        assert!(error.contains(part), "{error}");
    }
    assert_eq!(read(&journal, Some(&moved)).unwrap()[0].number, 0);
    // An opening for writing notes where the archive is now.
    assert_eq!(write(&journal, Some(&moved)).unwrap()[0].number, 0);
    for way in WAYS {
        assert_eq!(way(&journal, None).unwrap()[0].number, 0);
    }
}

#[test]
fn a_part_of_the_archive_that_is_missing_is_named() {
    let directory = archived();
    let (journal, archive) = (directory.path().join("journal"), directory.path().join("archive"));
    fs::remove_file(&files(&archive)[0]).unwrap();
    for way in WAYS {
        assert_missing(way(&journal, None), (Some(0), Some(0)), Some(&archive));
    }
}

#[test]
fn a_copied_or_moved_journal_does_not_take_the_archive_of_its_original_for_its_own() {
    let directory = archived();
    let [journal, archive, copied, moved] =
        ["journal", "archive", "copied", "moved"].map(|name| directory.path().join(name));
    copy(&journal, &copied);
    for way in WAYS {
        assert_missing(way(&copied, None), (Some(0), Some(1)), Some(&archive));
    }
    fs::rename(&journal, &moved).unwrap();
    for way in WAYS {
        assert_missing(way(&moved, None), (Some(0), Some(1)), Some(&archive));
    }
    assert_eq!(write(&moved, Some(&archive)).unwrap()[0].number, 0);
    assert_eq!(read(&moved, None).unwrap()[0].number, 0);
}

#[test]
fn a_deleted_oldest_segment_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let (mut journal, _) = open(directory.path());
    append(&mut journal, 1..=1000);
    journal.close().unwrap();
    let files = files(directory.path());
    fs::remove_file(&files[0]).unwrap();
    for way in WAYS {
        assert_missing(way(directory.path(), None), (Some(0), Some(0)), None);
    }
    fs::remove_file(&files[1]).unwrap();
    assert_missing(write(directory.path(), None), (Some(0), Some(1)), None);
}

#[test]
fn a_deleted_only_segment_is_an_error_also_before_the_first_clean_stop() {
    let directory = tempfile::tempdir().unwrap();
    let (mut journal, _) = open(directory.path());
    append(&mut journal, 1..=10);
    // A process that was killed: the lock goes, nothing is marked.
    let copied = directory.path().join("copied");
    fs::create_dir(&copied).unwrap();
    for path in files(directory.path()).into_iter().chain([directory.path().join("clients.ack")]) {
        fs::copy(&path, copied.join(path.file_name().unwrap())).unwrap();
    }
    drop(journal);
    let files = files(&copied);
    fs::remove_file(&files[0]).unwrap();
    let missing = if files.len() > 1 { (Some(0), Some(0)) } else { (Some(0), None) };
    assert_missing(write(&copied, None), missing, None);
    for file in &files[1..] {
        fs::remove_file(file).unwrap();
    }
    assert_missing(write(&copied, None), (Some(0), None), None);
    assert_missing(FileMaintenance::give_up_missing(&copied, None).map(|_| vec![]), (Some(0), None), None);
}

#[test]
fn what_was_removed_on_purpose_is_not_missing() {
    let directory = archived();
    let (journal, archive) = (directory.path().join("journal"), directory.path().join("archive"));
    let (maintenance, _) = FileMaintenance::open_stopped(&journal, None, &mut |_| ()).unwrap();
    let first = maintenance.take_next(Action::Remove, Which::All, None).unwrap().unwrap();
    assert_eq!((first.number, first.path.parent()), (0, Some(&*archive)));
    drop(maintenance);
    for way in WAYS {
        assert_eq!(way(&journal, None).unwrap()[0].number, 1);
    }
    let (maintenance, _) = FileMaintenance::open_stopped(&journal, None, &mut |_| ()).unwrap();
    assert_eq!(maintenance.take_next(Action::Remove, Which::All, None).unwrap().unwrap().number, 1);
    drop(maintenance);
    // Nothing of the journal is in the archive any more, so that it need not be there.
    fs::remove_dir_all(&archive).unwrap();
    for way in WAYS {
        assert_eq!(way(&journal, None).unwrap()[0].number, 2);
    }
}

#[test]
fn missing_segments_can_be_given_up_and_are_part_of_the_log_again_when_they_are_back() {
    let directory = archived();
    let [journal, archive, moved] = ["journal", "archive", "moved"].map(|name| directory.path().join(name));
    assert_eq!(FileMaintenance::give_up_missing(&journal, None).unwrap(), None);
    fs::rename(&archive, &moved).unwrap();
    assert_eq!(FileMaintenance::give_up_missing(&journal, None).unwrap(), Some((Some(0), 1)));
    assert_eq!(FileMaintenance::give_up_missing(&journal, None).unwrap(), None);
    for way in WAYS {
        assert_eq!(way(&journal, None).unwrap()[0].number, 2);
    }
    let (opened, recovery) = open(&journal);
    assert!(recovery.was_clean && !recovery.sequences_lost);
    assert_eq!(opened.highest_sequence(PublisherId(7)), Some(1000));
    opened.close().unwrap();
    // What is missing after that is an error as before.
    let third = files(&journal)[0].clone();
    let kept = third.with_extension("kept");
    fs::rename(&third, &kept).unwrap();
    assert_missing(write(&journal, None), (Some(2), Some(2)), Some(&archive));
    fs::rename(&kept, &third).unwrap();
    fs::rename(&moved, &archive).unwrap();
    for way in WAYS {
        assert_eq!(way(&journal, None).unwrap()[0].number, 0);
    }
}

#[test]
fn a_journal_of_the_first_version_is_refused_when_its_other_files_say_that_older_segments_are_needed() {
    let start = || {
        let directory = archived();
        make_first_version(&directory.path().join("journal"));
        let [journal, archive, moved] =
            ["journal", "archive", "moved"].map(|name| directory.path().join(name));
        fs::rename(&archive, &moved).unwrap();
        (directory, journal, archive, moved)
    };
    let unknown = (None, Some(1));
    // The archive is not there.
    let (_directory, journal, archive, moved) = start();
    for way in WAYS {
        assert_missing(way(&journal, None), unknown, Some(&archive));
        assert_missing(way(&journal, Some(&archive)), unknown, Some(&archive));
    }
    for way in WAYS {
        assert_eq!(way(&journal, Some(&moved)).unwrap()[0].number, 0);
    }
    // Another one is named than that which holds older files.
    let (_directory, journal, archive, moved) = start();
    fs::rename(&moved, &archive).unwrap();
    for way in WAYS {
        assert_missing(way(&journal, Some(&moved)), unknown, Some(&archive));
    }
    // The directory is empty, as that of a file system that is not mounted: a queue that had come
    // so far tells.
    let (_directory, journal, archive, _moved) = start();
    fs::create_dir(&archive).unwrap();
    let write_points = |settled| {
        let mut bytes = [&b"QUIREQUE"[..], &1u32.to_le_bytes(), &[4, 0, 5, 0]].concat();
        bytes.extend(u64::to_le_bytes(settled));
        bytes.extend(b"jobsepoch");
        bytes.extend(crc32c::crc32c(&bytes).to_le_bytes());
        fs::write(journal.join("queues.ack"), bytes).unwrap();
    };
    write_points(100);
    for way in WAYS {
        assert_missing(way(&journal, None), unknown, Some(&archive));
    }
    // A queue that has not settled anything may be newer than what was removed: the log is taken as
    // it is, and that is written down.
    write_points(0);
    assert_eq!(read(&journal, None).unwrap()[0].number, 2);
    assert_eq!(write(&journal, None).unwrap()[0].number, 2);
    fs::remove_file(&files(&journal)[0]).unwrap();
    assert_missing(write(&journal, None), (Some(2), Some(2)), Some(&archive));
}

#[test]
fn a_first_segment_of_another_log_is_damage() {
    let directory = archived();
    let (journal, archive) = (directory.path().join("journal"), directory.path().join("archive"));
    let oldest: Vec<PathBuf> = files(&archive);
    fs::remove_file(&oldest[0]).unwrap();
    assert_eq!(FileMaintenance::give_up_missing(&journal, None).unwrap(), Some((Some(0), 0)));
    let mut bytes = fs::read(&oldest[1]).unwrap();
    bytes[16] ^= 1;
    repair_segment_header(&mut bytes);
    fs::write(&oldest[1], &bytes).unwrap();
    let error = write(&journal, None).unwrap_err();
    assert!(matches!(&error, JournalError::Corrupt { path, offset: 0, .. } if *path == oldest[1]), "{error}");
}

#[test]
fn verify_names_a_segment_that_was_deleted_while_the_journal_is_open_and_a_damaged_place() {
    let directory = archived();
    let (journal, archive) = (directory.path().join("journal"), directory.path().join("archive"));
    let (opened, _) = open(&journal);
    let (reader, elsewhere) = (opened.reader(), Reader::open_read_only(&journal).unwrap());
    assert_eq!(reader.verify(), []);
    let path = files(&archive)[0].clone();
    let kept = path.with_extension("kept");
    fs::rename(&path, &kept).unwrap();
    let reason = "the file is not there any more";
    assert_eq!(reader.verify(), [Damage { path: path.clone(), offset: 0, reason: reason.into() }]);
    assert_missing(elsewhere.refresh().map(|()| vec![]), (Some(0), Some(0)), Some(&archive));
    fs::rename(&kept, &path).unwrap();
    assert_eq!(reader.verify(), []);
    elsewhere.refresh().unwrap();
    let place = journal.join("archive.place");
    write_at(&place, &[0xff], 20);
    for reader in [&reader, &elsewhere] {
        assert_eq!(reader.verify().iter().map(|damage| &damage.path).collect::<Vec<_>>(), [&place]);
    }
    // A journal that needs the archive says that it is missing, and takes it when it is named.
    opened.close().unwrap();
    assert_missing(write(&journal, None), (Some(0), Some(1)), None);
    assert_eq!(write(&journal, Some(&archive)).unwrap()[0].number, 0);
    assert_eq!(read(&journal, None).unwrap()[0].number, 0);
}
