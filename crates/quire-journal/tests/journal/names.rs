//! Older builds named journal files after the instance. Such files are part of the log, also when
//! another instance left files there.

use std::fs;
use std::path::{Path, PathBuf};

use quire_journal::*;

use crate::support::*;

/// Gives the files of a journal the names of an instance.
fn rename(directory: &Path, instance: &str) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if let Some(rest) = name.strip_prefix("quire.") {
            fs::rename(&path, directory.join(format!("{instance}.{rest}"))).unwrap();
        }
    }
}

fn names(directory: &Path) -> Vec<String> {
    files(directory).iter().map(|path| path.file_name().unwrap().to_str().unwrap().to_owned()).collect()
}

fn number(path: &Path) -> String {
    path.file_stem().unwrap().to_str().unwrap().rsplit_once('.').unwrap().1.to_owned()
}

/// A stopped journal of the instance `orders-1`, with a file that was prepared.
fn of_an_instance(records: u64) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let (mut journal, _) = open(directory.path());
    append(&mut journal, 1..=records);
    journal.close().unwrap();
    let newest = files(directory.path()).iter().map(|path| number(path)).max().unwrap();
    let active: u32 = newest.parse().unwrap();
    // The thread that prepares files may have made the next one, or not.
    let prepared = directory.path().join(format!("quire.{:010}.journal", active + 1));
    fs::write(prepared, vec![0; 64 * 1024]).unwrap();
    rename(directory.path(), "orders-1");
    directory
}

#[test]
fn a_journal_whose_files_carry_the_name_of_an_instance_goes_on_under_names_without() {
    let directory = of_an_instance(1000);
    let before: Vec<String> = names(directory.path());
    let reader = Reader::open_read_only(directory.path()).unwrap();
    assert_eq!(sequences(&reader, Position(0)), (1..=1000).collect::<Vec<_>>());
    let (mut journal, recovery) = open(directory.path());
    assert!(recovery.was_clean);
    append(&mut journal, 1001..=1500);
    journal.close().unwrap();
    let after = names(directory.path());
    let used = recovery.segments;
    assert!(used < before.len(), "files were prepared");
    assert!(after.iter().filter(|name| !before.contains(name)).all(|name| name.starts_with("quire.")));
    assert_eq!(after.iter().filter(|name| name.starts_with("orders-1.")).collect::<Vec<_>>(), {
        before.iter().take(used).collect::<Vec<_>>()
    });
    // A reader that was there before finds the new names.
    reader.refresh().unwrap();
    assert_eq!(sequences(&reader, Position(0)), (1..=1500).collect::<Vec<_>>());
    let (journal, _) = open(directory.path());
    assert_eq!(sequences(&journal.reader(), Position(0)), (1..=1500).collect::<Vec<_>>());
    assert_eq!(journal.reader().verify(), []);
}

#[test]
fn a_journal_with_prepared_files_of_two_instances_opens() {
    // Another instance of an older build left prepared files, or a used one, with the numbers of
    // the prepared files of the first.
    for is_used in [false, true] {
        let directory = of_an_instance(300);
        let prepared = files(directory.path()).pop().unwrap();
        assert!(fs::read(&prepared).unwrap().iter().all(|byte| *byte == 0));
        let last = if is_used {
            let aside = prepared.with_extension("aside");
            fs::rename(&prepared, &aside).unwrap();
            let (mut journal, _) = open(directory.path());
            append(&mut journal, 301..=420);
            journal.close().unwrap();
            fs::rename(&aside, &prepared).unwrap();
            420
        } else {
            fs::write(
                directory.path().join(format!("quire.{}.journal", number(&prepared))),
                vec![0; 64 * 1024],
            )
            .unwrap();
            300
        };
        let reader = Reader::open_read_only(directory.path()).unwrap();
        assert_eq!(sequences(&reader, Position(0)), (1..=last).collect::<Vec<_>>());
        let (mut journal, recovery) = open(directory.path());
        assert!(recovery.was_clean);
        assert!(!prepared.exists());
        append(&mut journal, last + 1..=900);
        reader.refresh().unwrap();
        assert_eq!(sequences(&reader, Position(0)), (1..=900).collect::<Vec<_>>());
        journal.close().unwrap();
        let (journal, _) = open(directory.path());
        assert_eq!(journal.reader().verify(), []);
        assert_eq!(journal.persisted(), Position(900));
    }
}

#[test]
fn two_files_that_both_hold_records_are_named() {
    let directory = tempfile::tempdir().unwrap();
    let (mut journal, _) = open(directory.path());
    append(&mut journal, 1..=1000);
    journal.close().unwrap();
    let one: PathBuf = files(directory.path())[2].clone();
    let other = directory.path().join("orders-1.0000000002.journal");
    fs::copy(&one, &other).unwrap();
    // Also when the header of one of them is lost, but not the batches after it.
    for is_headless in [false, true] {
        if is_headless {
            write_at(&other, &[0; 48], 0);
        }
        let before = names(directory.path());
        let errors = [
            Reader::open_read_only(directory.path()).err().unwrap().to_string(),
            Journal::open(directory.path(), &small(), &mut |_| ()).err().unwrap().to_string(),
        ];
        for error in errors {
            for path in [&one, &other] {
                assert!(error.contains(path.to_str().unwrap()), "{error}");
            }
        }
        assert_eq!(names(directory.path()), before);
    }
    fs::remove_file(&other).unwrap();
    assert_eq!(open(directory.path()).0.persisted(), Position(1000));
}
