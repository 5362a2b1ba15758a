//! A journal knows where its older segments were archived, and nothing is removed behind their back.

use std::fs;
use std::path::Path;

use quire_journal::*;

use crate::support::*;

/// A stopped journal in `journal`, its oldest two segments in `archive`.
fn archived() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let options = Options { archive_directory: Some(directory.path().join("archive")), ..small() };
    let (mut journal, _) = Journal::open(directory.path().join("journal"), &options, &mut |_| ()).unwrap();
    append(&mut journal, 1..=1000);
    let end = journal.reader().segments()[1].timestamps.unwrap().1;
    assert_eq!(journal.upkeep().archive(Which::Until(end)).unwrap().len(), 2);
    journal.close().unwrap();
    directory
}

fn stopped(directory: &Path, archive: Option<&Path>) -> Upkeep {
    Upkeep::open_stopped(directory.join("journal"), archive, &mut |_| ()).unwrap().0
}

#[track_caller]
fn assert_refused<T: std::fmt::Debug>(result: Result<T, JournalError>) {
    let error = result.expect_err("it is refused");
    assert!(matches!(error, JournalError::BadOption { option: "journal_archive_directory", .. }), "{error}");
}

#[test]
fn nothing_is_removed_while_older_segments_lie_in_an_archive_that_was_not_named() {
    let directory = archived();
    let archive = directory.path().join("archive");
    let before = files(&directory.path().join("journal"));
    for other in [None, Some(directory.path().join("another"))] {
        let upkeep = stopped(directory.path(), other.as_deref());
        assert_refused(upkeep.remove(Which::All, None));
        assert_refused(upkeep.plan(Action::Remove, Which::All, None));
        // Nothing else needs the older ones.
        assert!(!upkeep.plan(Action::Compress, Which::All, None).unwrap().is_empty());
    }
    assert_eq!(files(&directory.path().join("journal")), before);
    // The journal that runs without its archive refuses, too.
    let (journal, _) = open(&directory.path().join("journal"));
    assert_refused(journal.upkeep().remove(Which::All, None));
    journal.close().unwrap();
    let link = directory.path().join("link");
    std::os::unix::fs::symlink(&archive, &link).unwrap();
    for named in [&archive, &link] {
        let upkeep = stopped(directory.path(), Some(named));
        let oldest = upkeep.take_next(Action::Remove, Which::All, None).unwrap().unwrap();
        assert_eq!(oldest.path.parent(), Some(&**named));
    }
    // Nothing older is there any more.
    let removed = stopped(directory.path(), None).remove(Which::All, None).unwrap();
    assert_eq!(removed[0].number, 2);
}

#[test]
fn an_archive_that_is_not_there_is_named_where_it_is_now_or_given_up() {
    let directory = archived();
    let (archive, moved) = (directory.path().join("archive"), directory.path().join("moved"));
    fs::rename(&archive, &moved).unwrap();
    assert_refused(stopped(directory.path(), None).remove(Which::All, None));
    let planned = stopped(directory.path(), Some(&moved)).plan(Action::Remove, Which::All, None).unwrap();
    assert!(planned[0].path.starts_with(&moved));
    fs::remove_file(directory.path().join("journal/archive.place")).unwrap();
    let planned = stopped(directory.path(), None).plan(Action::Remove, Which::All, None).unwrap();
    assert_eq!(planned[0].number, 2);
}
