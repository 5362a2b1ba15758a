//! Any bytes in the files of a store: an error that says so, or what was really put in; never a
//! panic, never something made up.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use proptest::prelude::*;
use quire_client::{PositionsByInstance, Processed, PublishLog, SequenceRange};
use quire_command::LogPlace;
use quire_driver::store::{BookmarkStore, PublishFile};
use quire_journal::{Bookmark, PublisherId};

/// The number of a new store.
const NEW_RUN: u64 = 77;

const SIZE_MAX: u64 = 64 * 1024;

/// The offset, and the new bytes.
#[derive(Clone, Debug)]
enum Change {
    Byte(prop::sample::Index, u8),
    Word(prop::sample::Index, u32),
    Cut(prop::sample::Index),
    Copy(prop::sample::Index, prop::sample::Index, usize),
}

fn change() -> impl Strategy<Value = Change> {
    let at = any::<prop::sample::Index>;
    prop_oneof![
        4 => (at(), any::<u8>()).prop_map(|(at, byte)| Change::Byte(at, byte)),
        3 => (at(), prop_oneof![Just(0), Just(u32::MAX), 0..5000u32]).prop_map(|(at, word)| Change::Word(at, word)),
        1 => at().prop_map(Change::Cut),
        2 => (at(), at(), 1..600usize).prop_map(|(from, to, size)| Change::Copy(from, to, size)),
    ]
}

fn apply(changes: &[Change], whole: &[u8]) -> Vec<u8> {
    let mut bytes = whole.to_vec();
    for change in changes {
        if bytes.is_empty() {
            break;
        }
        match change {
            Change::Byte(at, byte) => {
                let at = at.index(bytes.len());
                bytes[at] = *byte;
            }
            Change::Word(at, word) => {
                let at = at.index(bytes.len());
                let size = (bytes.len() - at).min(4);
                bytes[at..at + size].copy_from_slice(&word.to_le_bytes()[..size]);
            }
            Change::Cut(at) => bytes.truncate(at.index(bytes.len())),
            Change::Copy(from, to, size) => {
                let (from, to) = (from.index(bytes.len()), to.index(bytes.len()));
                let size = (*size).min(bytes.len() - from.max(to));
                bytes.copy_within(from..from + size, to);
            }
        }
    }
    bytes
}

fn frame(sequence: u64) -> Vec<u8> {
    (0..60 + 40 * sequence as usize).map(|n| (sequence as usize + n) as u8).collect()
}

/// A store of publishes that went round its ring, closed as a kill leaves it.
fn publishes(path: &Path) -> Vec<u8> {
    let (mut store, _) = PublishFile::open(path, "client", SIZE_MAX, NEW_RUN).unwrap();
    for sequence in 1..=20 {
        store.append(sequence, &frame(sequence)).unwrap();
        store.persisted(sequence.saturating_sub(6));
    }
    drop(store);
    fs::read(path).unwrap()
}

/// One message.
fn range(message: Bookmark) -> SequenceRange {
    SequenceRange { publisher: message.publisher, first: message.sequence, last: message.sequence }
}

/// The place of an instance after a message.
fn told(last: &Bookmark) -> Arc<PositionsByInstance> {
    Arc::new([("one".into(), LogPlace { log: 3, position: last.sequence })].into())
}

fn places(path: &Path) -> Vec<u8> {
    let store = BookmarkStore::open(path).unwrap();
    let (keeper, _) = store.keep("orders", false).unwrap();
    keeper.begin(Some("0|1|")).unwrap();
    for sequence in 1..=20 {
        let last = Bookmark { publisher: PublisherId(7), sequence: 2 * sequence };
        keeper
            .processed(
                &Processed::UpTo {
                    last,
                    instance: 1,
                    received: vec![range(last)],
                    places: Some(told(&last)),
                },
                &"one".into(),
            )
            .unwrap();
    }
    keeper
        .processed(&Processed::Ahead(Bookmark { publisher: PublisherId(8), sequence: 5 }), &"one".into())
        .unwrap();
    store.close();
    fs::read(path).unwrap()
}

proptest! {
    #[test]
    fn a_changed_store_of_publishes_gives_what_was_put_in_or_an_error(changes in prop::collection::vec(change(), 1..5)) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("store");
        let changed = apply(&changes, &publishes(&path));
        fs::write(&path, &changed).unwrap();
        match PublishFile::open(&path, "client", SIZE_MAX, NEW_RUN) {
            Ok((mut store, stored)) => {
                for (sequence, bytes) in &stored.frames {
                    prop_assert_eq!(bytes, &frame(*sequence));
                }
                prop_assert!(stored.frames.is_sorted_by_key(|(sequence, _)| *sequence));
                // It can be used, and holds what it takes.
                let next = stored.frames.last().map_or(21, |(sequence, _)| sequence + 1);
                store.append(next, &frame(next)).unwrap();
                drop(store);
                let (_, again) = PublishFile::open(&path, "client", SIZE_MAX, NEW_RUN).unwrap();
                prop_assert_eq!(again.frames.last(), Some(&(next, frame(next))));
            }
            Err(error) => {
                prop_assert!(!error.to_string().is_empty());
                prop_assert_eq!(fs::read(&path).unwrap(), changed, "a store that is refused stays as it is");
            }
        }
    }

    #[test]
    fn a_changed_store_of_places_gives_what_was_put_in_or_an_error(changes in prop::collection::vec(change(), 1..5)) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("places");
        let changed = apply(&changes, &places(&path));
        fs::write(&path, &changed).unwrap();
        match BookmarkStore::open(&path) {
            Ok(store) => {
                if let Some(last) = store.most_recent("orders") {
                    prop_assert!(last.publisher == PublisherId(7) && last.sequence <= 40, "{:?}", last);
                }
                let (keeper, _) = store.keep("orders", true).unwrap();
                let last = Bookmark { publisher: PublisherId(9), sequence: 1 };
                keeper.processed(&Processed::UpTo { last, instance: 1, received: vec![range(last)], places: Some(told(&last)) }, &"one".into()).unwrap();
            }
            Err(error) => {
                prop_assert!(!error.to_string().is_empty());
                prop_assert_eq!(fs::read(&path).unwrap(), changed, "a store that is refused stays as it is");
            }
        }
    }
}
