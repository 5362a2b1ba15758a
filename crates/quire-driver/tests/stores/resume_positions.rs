//! A bookmark store gives back what was processed, whenever the process ends.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use proptest::prelude::*;
use quire_client::{PositionsByInstance, Processed, ResumePosition, SequenceRange};
use quire_command::LogPlace;
use quire_driver::store::{BookmarkStore, StoreError};
use quire_journal::{Bookmark, PublisherId};

fn bookmark(publisher: u64, sequence: u64) -> Bookmark {
    Bookmark { publisher: PublisherId(publisher), sequence }
}

fn up_to(last: Bookmark, received: &[SequenceRange]) -> Processed {
    Processed::UpTo { last, instance: 1, received: received.to_vec(), places: None }
}

fn range(publisher: u64, first: u64, last: u64) -> SequenceRange {
    SequenceRange { publisher: PublisherId(publisher), first, last }
}

fn one() -> Arc<str> {
    "one".into()
}

/// What is kept under a name.
fn resume_position(store: &BookmarkStore, sub_id: &str) -> Option<ResumePosition> {
    store.keep(sub_id, true).unwrap().1
}

/// Without a stored position, it begins with the first message of the log.
fn begin_at_epoch(resume_position: &mut ResumePosition) {
    if resume_position.is_empty() {
        resume_position.start = Some("0".into());
    }
}

/// A place in the log of one of some instances.
fn places(instance: u64, position: u64) -> Arc<PositionsByInstance> {
    let name = format!("instance {instance}").into();
    Arc::new([(name, LogPlace { log: instance, position })].into())
}

/// A store with some places in it.
fn filled(path: &Path) {
    let store = BookmarkStore::open(path).unwrap();
    let (keeper, _) = store.keep("orders", false).unwrap();
    keeper.begin(None).unwrap();
    for sequence in 1..=3 {
        keeper.processed(&up_to(bookmark(7, sequence), &[range(7, sequence, sequence)]), &one()).unwrap();
    }
    keeper.processed(&Processed::Ahead(bookmark(8, 5)), &one()).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Against the obvious model, with enough changes for the file to be rewritten.
    #[test]
    fn every_change_is_there_after_every_end_of_the_process(
        steps in proptest::collection::vec((0u8..8, 0usize..3, 1u64..5, 1usize..3000), 1..40),
    ) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("places");
        let mut store = BookmarkStore::open(&path).unwrap();
        let names = ["a", "b", "a rather longer name of a subscription"];
        let mut model: BTreeMap<&str, ResumePosition> = BTreeMap::new();
        let mut sequence = 0;
        for (step, name, publisher, count) in steps {
            let sub_id = names[name];
            let expected = model.entry(sub_id).or_default();
            match step {
                0 => {
                    store.keep(sub_id, false).unwrap().0.begin(None).unwrap();
                    *expected = ResumePosition::default();
                }
                1 => {
                    store.forget(sub_id).unwrap();
                    *expected = ResumePosition::default();
                }
                2..=3 => {
                    let keeper = store.keep(sub_id, true).unwrap().0;
                    let ahead = bookmark(publisher, sequence + count as u64);
                    keeper.processed(&Processed::Ahead(ahead), &one()).unwrap();
                    begin_at_epoch(expected);
                    expected.ahead.insert(ahead);
                }
                4..=6 => {
                    let keeper = store.keep(sub_id, true).unwrap().0;
                    begin_at_epoch(expected);
                    for _ in 0..count {
                        sequence += 1;
                        let last = bookmark(publisher, sequence);
                        // Some messages are passed over, and some of those arrive late.
                        let late = sequence.saturating_sub(sequence % 7).max(1);
                        let received = [
                            range(publisher + 9, late, late),
                            range(publisher, sequence, sequence),
                            range(publisher + 20, 3 * sequence, 3 * sequence + sequence % 3),
                        ];
                        let told = sequence.is_multiple_of(5).then(|| places(publisher, sequence));
                        let noted = told.iter().flat_map(|places| places.iter());
                        expected.reach(last, &one(), &received);
                        if told.is_some() {
                            expected.note_places(noted.map(|(name, place)| (&**name, *place)));
                        }
                        let received = received.to_vec();
                        let processed = Processed::UpTo { last, instance: 1, received, places: told };
                        keeper.processed(&processed, &one()).unwrap();
                    }
                }
                _ => {
                    // Nothing is done at the end that `kill -9` would leave out: closing only
                    // syncs.
                    store.close();
                    store = BookmarkStore::open(&path).unwrap();
                    for (sub_id, expected) in &model {
                        prop_assert_eq!(&resume_position(&store, sub_id).unwrap_or_default(), expected);
                    }
                    prop_assert!(std::fs::metadata(&path).unwrap().len() < 5 << 20);
                }
            }
        }
    }
}

#[test]
fn a_file_that_has_grown_is_rewritten_with_what_is_kept() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("places");
    let store = BookmarkStore::open(&path).unwrap();
    let (keeper, _) = store.keep("orders", false).unwrap();
    let mut largest = 0;
    for sequence in 1..=30_000 {
        keeper.processed(&up_to(bookmark(7, sequence), &[range(7, sequence, sequence)]), &one()).unwrap();
        largest = largest.max(std::fs::metadata(&path).unwrap().len());
    }
    let size = std::fs::metadata(&path).unwrap().len();
    assert!(largest > 1 << 20 && largest < (1 << 20) + 8192 && size < largest, "{largest} {size}");
    assert!(
        matches!(BookmarkStore::open(&path), Err(StoreError::Locked { .. })),
        "the new file is locked too"
    );
    store.close();
    let store = BookmarkStore::open(&path).unwrap();
    assert_eq!(store.most_recent("orders"), Some(bookmark(7, 30_000)));
}

#[test]
fn messages_that_were_passed_over_are_known_after_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("places");
    let store = BookmarkStore::open(&path).unwrap();
    let (keeper, _) = store.keep("orders", false).unwrap();
    keeper.processed(&up_to(bookmark(7, 2), &[range(7, 1, 2)]), &one()).unwrap();
    keeper.processed(&up_to(bookmark(7, 9), &[range(7, 6, 9)]), &one()).unwrap();
    keeper.processed(&up_to(bookmark(7, 4), &[range(7, 4, 4)]), &one()).unwrap();
    store.close();
    let store = BookmarkStore::open(&path).unwrap();
    let kept = resume_position(&store, "orders").unwrap();
    let had = (1..=10).map(|sequence| kept.publishers.has(bookmark(7, sequence)));
    assert_eq!(had.collect::<Vec<_>>(), [true, true, false, true, false, true, true, true, true, false]);
    assert_eq!(kept.last, Some(bookmark(7, 4)));
}

#[test]
fn a_message_before_the_first_one_of_its_publisher_is_not_known_after_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("places");
    for has_later in [false, true] {
        let store = BookmarkStore::open(&path).unwrap();
        let (keeper, _) = store.keep("orders", false).unwrap();
        keeper.begin(None).unwrap();
        keeper.processed(&up_to(bookmark(7, 6), &[range(7, 6, 6)]), &one()).unwrap();
        if has_later {
            keeper.processed(&up_to(bookmark(7, 7), &[range(7, 7, 7)]), &one()).unwrap();
        }
        store.close();
        let store = BookmarkStore::open(&path).unwrap();
        let kept = resume_position(&store, "orders").unwrap();
        let had = [1, 5, 6].map(|sequence| kept.publishers.has(bookmark(7, sequence)));
        assert_eq!(had, [false, false, true]);
    }
}

#[test]
fn the_start_and_the_places_of_a_subscription_are_kept() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("places");
    let store = BookmarkStore::open(&path).unwrap();
    let (keeper, _) = store.keep("orders", false).unwrap();
    keeper.begin(Some("0|1|")).unwrap();
    assert_eq!(store.sub_ids(), Vec::<String>::new());
    let told = Some(places(1, 4));
    let received = vec![range(7, 1, 1)];
    let processed = Processed::UpTo { last: bookmark(7, 1), instance: 1, received, places: told };
    keeper.processed(&processed, &one()).unwrap();
    store.close();
    let store = BookmarkStore::open(&path).unwrap();
    let kept = resume_position(&store, "orders").unwrap();
    assert_eq!((kept.start.as_deref(), kept.places.as_ref()), (Some("0|1|"), Some(&*places(1, 4))));
    // Another place of the same log, and one of a later log.
    let (keeper, _) = store.keep("orders", true).unwrap();
    for place in [LogPlace { log: 1, position: 3 }, LogPlace { log: 2, position: 1 }] {
        let told = Some(Arc::new([("instance 1".into(), place)].into()));
        let processed =
            Processed::UpTo { last: bookmark(7, 2), instance: 1, received: Vec::new(), places: told };
        keeper.processed(&processed, &one()).unwrap();
    }
    let kept = resume_position(&store, "orders").unwrap();
    let place = kept.places.unwrap()["instance 1"];
    assert_eq!(place, LogPlace { log: 2, position: 1 });
}

#[test]
fn the_subscription_that_came_last_keeps_the_place() {
    let store = BookmarkStore::in_memory();
    let (earlier, _) = store.keep("orders", false).unwrap();
    earlier.processed(&up_to(bookmark(7, 1), &[range(7, 1, 1)]), &one()).unwrap();
    let (later, resume_position) = store.keep("orders", true).unwrap();
    assert_eq!(resume_position.and_then(|resume_position| resume_position.last), Some(bookmark(7, 1)));
    later.processed(&up_to(bookmark(7, 9), &[range(7, 2, 9)]), &one()).unwrap();
    earlier.processed(&up_to(bookmark(7, 2), &[range(7, 2, 2)]), &one()).unwrap();
    assert_eq!(store.most_recent("orders"), Some(bookmark(7, 9)));
    assert_eq!(store.sub_ids(), ["orders"]);
    assert_eq!(store.forget("orders"), Ok(true));
    assert_eq!((store.forget("orders"), store.sub_ids()), (Ok(false), Vec::new()));
}

#[test]
fn a_last_change_that_is_not_whole_is_dropped_and_damage_before_it_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("places");
    filled(&path);
    let whole = std::fs::read(&path).unwrap();
    std::fs::write(&path, &whole[..whole.len() - 9]).unwrap();
    let store = BookmarkStore::open(&path).unwrap();
    let kept = resume_position(&store, "orders").unwrap();
    assert_eq!((kept.last, kept.ahead), (Some(bookmark(7, 3)), BTreeSet::new()));
    store.close();
    for at in [4096, 4096 + 45, whole.len() - 80] {
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        std::fs::write(&path, &bytes).unwrap();
        assert!(matches!(BookmarkStore::open(&path), Err(StoreError::Corrupt { .. })), "at {at}");
        assert_eq!(std::fs::read(&path).unwrap(), bytes);
    }
}

#[test]
fn a_closed_store_takes_no_subscription_and_another_kind_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("places");
    filled(&path);
    let store = BookmarkStore::open(&path).unwrap();
    let (keeper, _) = store.keep("orders", true).unwrap();
    store.close();
    assert!(store.keep("orders", true).is_err());
    assert_eq!(keeper.processed(&Processed::Ahead(bookmark(7, 9)), &one()), Ok(()), "nobody is harmed");
    let other = quire_driver::store::PublishFile::open(&path, "client", 1 << 20, 1);
    assert!(matches!(other, Err(StoreError::Unfit { .. })));
}
