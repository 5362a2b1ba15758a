//! A publish store holds what was taken and is not persisted, whenever the process ends.

use std::path::Path;

use proptest::prelude::*;
use quire_client::PublishLog;
use quire_driver::store::{PublishFile, StoreError, StoredPublishes};

const SIZE_MAX: u64 = 64 * 1024;

/// The number of a new store.
const NEW_RUN: u64 = 77;

fn open(path: &Path) -> (PublishFile, StoredPublishes) {
    PublishFile::open(path, "client", SIZE_MAX, NEW_RUN).unwrap()
}

fn frame(sequence: u64, size: usize) -> Vec<u8> {
    (0..size).map(|n| (sequence as usize + n) as u8).collect()
}

/// A store with the publishes 1 to `count` of 100 bytes in it.
fn filled(path: &Path, count: u64) {
    let (mut store, _) = open(path);
    (1..=count).for_each(|sequence| store.append(sequence, &frame(sequence, 100)).unwrap());
}

fn sequences(stored: &StoredPublishes) -> Vec<u64> {
    stored.frames.iter().map(|(sequence, _)| *sequence).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Against the obvious model, through many rounds of a small ring. What is gone from the file
    /// must be persisted, and what is not persisted must be there.
    #[test]
    fn what_is_not_persisted_is_there_after_every_end_of_the_process(
        steps in proptest::collection::vec((0u8..8, 0usize..9_000), 1..120),
    ) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("store");
        let (mut store, _) = open(&path);
        let (mut taken, mut persisted): (Vec<(u64, Vec<u8>)>, u64) = (Vec::new(), 0);
        for (step, number) in steps {
            match step {
                0..=4 if store.has_room(number) => {
                    let sequence = taken.len() as u64 + 1;
                    store.append(sequence, &frame(sequence, number)).unwrap();
                    taken.push((sequence, frame(sequence, number)));
                }
                0..=5 => {
                    persisted = persisted.max(number as u64 % (taken.len() as u64 + 1));
                    store.persisted(persisted);
                }
                _ => {
                    // Nothing is done at the end that `kill -9` would leave out: closing only
                    // syncs.
                    drop(store);
                    let (again, stored) = open(&path);
                    store = again;
                    let unpersisted = &taken[persisted as usize..];
                    prop_assert!(stored.frames.ends_with(unpersisted));
                    prop_assert!(taken.ends_with(&stored.frames));
                    prop_assert_eq!(stored.last_sequence, taken.len() as u64);
                }
            }
        }
    }
}

#[test]
fn a_full_store_has_room_again_when_something_is_persisted() {
    let directory = tempfile::tempdir().unwrap();
    let (mut store, _) = open(&directory.path().join("store"));
    let mut sequence = 0;
    while store.has_room(1000) {
        sequence += 1;
        store.append(sequence, &frame(sequence, 1000)).unwrap();
    }
    assert_eq!(sequence, SIZE_MAX / 1032);
    assert!(store.frame_size_max() < SIZE_MAX as usize);
    store.persisted(sequence);
    assert!(store.has_room(store.frame_size_max()) && !store.has_room(store.frame_size_max() + 1));
}

#[test]
fn a_last_publish_that_is_not_whole_is_dropped_and_the_next_takes_its_place() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    for cut in [1, 8, 50, 100, 130] {
        let _ = std::fs::remove_file(&path);
        filled(&path, 3);
        let size = std::fs::metadata(&path).unwrap().len();
        std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(size - cut).unwrap();
        let (mut store, stored) = open(&path);
        // A lost padding has no effect.
        let left: &[u64] = if cut <= 4 { &[1, 2, 3] } else { &[1, 2] };
        assert_eq!(sequences(&stored), left, "cut {cut} bytes");
        store.append(7, &frame(7, 20)).unwrap();
        drop(store);
        assert_eq!(sequences(&open(&path).1), [left, &[7]].concat());
    }
}

#[test]
fn damage_before_the_last_publish_is_named_and_nothing_is_changed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    filled(&path, 3);
    let entry = 136;
    for at in [4096, 4096 + entry, 4096 + entry + 40, 4096 + entry + 25] {
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[at] ^= 1;
        let damaged = directory.path().join("damaged");
        std::fs::write(&damaged, &bytes).unwrap();
        let error = PublishFile::open(&damaged, "client", SIZE_MAX, NEW_RUN).err().unwrap();
        let place = (at - 4096) / entry * entry + 4096;
        assert!(matches!(error, StoreError::Corrupt { at, .. } if at == place as u64), "{error}");
        assert_eq!(std::fs::read(&damaged).unwrap(), bytes);
    }
}

#[test]
fn one_damaged_header_is_no_harm_and_two_are_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    filled(&path, 3);
    drop(open(&path));
    let whole = std::fs::read(&path).unwrap();
    let flipped = |places: &[usize]| {
        let mut bytes = whole.clone();
        places.iter().for_each(|at| bytes[*at] ^= 1);
        std::fs::write(&path, bytes).unwrap();
        PublishFile::open(&path, "client", SIZE_MAX, NEW_RUN).map(|(_, stored)| sequences(&stored))
    };
    assert_eq!(flipped(&[30]).unwrap(), [1, 2, 3]);
    assert_eq!(flipped(&[512 + 30]).unwrap(), [1, 2, 3]);
    assert!(matches!(flipped(&[30, 512 + 30]), Err(StoreError::Corrupt { at: 0, .. })));
}

/// Found by random changes: it was taken for a file whose making a power cut had ended, and its
/// publishes for nothing.
#[test]
fn a_store_whose_header_is_zeros_is_damaged_and_not_new() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    filled(&path, 3);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[..1024].fill(0);
    std::fs::write(&path, &bytes).unwrap();
    let error = PublishFile::open(&path, "client", SIZE_MAX, NEW_RUN).err();
    assert!(matches!(error, Some(StoreError::Corrupt { at: 0, .. })), "{error:?}");
    assert_eq!(std::fs::read(&path).unwrap(), bytes);
    std::fs::write(&path, &bytes[..1024]).unwrap();
    assert_eq!(open(&path).1.frames, []);
}

#[test]
fn a_store_has_one_owner_one_name_and_one_kind() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    filled(&path, 1);
    let (first, _) = open(&path);
    let open_again = |name| PublishFile::open(&path, name, SIZE_MAX, NEW_RUN).err();
    assert!(matches!(open_again("client"), Some(StoreError::Locked { .. })));
    drop(first);
    assert!(matches!(open_again("other"), Some(StoreError::Unfit { .. })));
    std::fs::write(&path, "something else that somebody keeps").unwrap();
    assert!(matches!(open_again("client"), Some(StoreError::Unfit { .. })));
    assert_eq!(std::fs::read(&path).unwrap(), b"something else that somebody keeps");
    assert!(matches!(
        PublishFile::open(directory.path(), "client", SIZE_MAX, NEW_RUN),
        Err(StoreError::Io { .. })
    ));
}

#[test]
fn the_missing_directories_of_a_store_are_created() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a/b/publishes");
    filled(&path, 3);
    assert_eq!(sequences(&open(&path).1), [1, 2, 3]);
    let file = directory.path().join("a/file");
    std::fs::write(&file, "").unwrap();
    let below = file.join("b");
    let refused =
        PublishFile::open(&below.join("publishes"), "client", SIZE_MAX, NEW_RUN).map(drop).unwrap_err();
    let reason = format!("{}: creating the directory: Not a directory (os error 20)", below.display());
    assert_eq!(refused.to_string(), reason);
}

#[test]
fn an_empty_store_takes_another_size_and_its_numbers_go_on() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    filled(&path, 300);
    let bigger = |path: &Path| PublishFile::open(path, "client", 4 * SIZE_MAX, NEW_RUN).unwrap();
    let (mut store, stored) = bigger(&path);
    assert_eq!(sequences(&stored).len(), 300);
    assert!(!store.has_room(SIZE_MAX as usize), "as long as there is something in it");
    store.persisted(300);
    drop(store);
    let (mut store, stored) = bigger(&path);
    assert_eq!(
        stored,
        StoredPublishes { last_sequence: 300, persisted: 300, run: NEW_RUN, ..Default::default() }
    );
    assert!(store.has_room(2 * SIZE_MAX as usize));
    store.append(301, b"frame").unwrap();
    drop(store);
    let (_, stored) = bigger(&path);
    let frames = vec![(301, b"frame".to_vec())];
    assert_eq!(stored, StoredPublishes { frames, last_sequence: 301, persisted: 300, run: NEW_RUN });
}

#[test]
fn a_store_keeps_its_run_and_one_of_version_1_gets_one() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    filled(&path, 3);
    let run_of = |new_run| PublishFile::open(&path, "client", SIZE_MAX, new_run).unwrap().1.run;
    assert_eq!((run_of(5), run_of(6)), (NEW_RUN, NEW_RUN));
    let mut bytes = std::fs::read(&path).unwrap();
    for header in bytes[..1024].chunks_mut(512) {
        assert_eq!(header[4..6], [2, 0]);
        header[4] = 1;
        header[496..504].fill(0);
        let checksum = xxhash_rust::xxh3::xxh3_64(&header[..504]);
        header[504..].copy_from_slice(&checksum.to_le_bytes());
    }
    std::fs::write(&path, &bytes).unwrap();
    assert_eq!((run_of(5), run_of(6)), (5, 5));
    assert_eq!(sequences(&open(&path).1), [1, 2, 3]);
}
