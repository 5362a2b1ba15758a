//! Changes of several instances: the tables are equal in whatever order the changes arrive.

use std::collections::{BTreeMap, BTreeSet};

use proptest::collection::vec;
use proptest::prelude::*;
use quire_journal::{Position, PublisherId, Timestamp};
use quire_table::*;

use crate::snapshots::{HEAD, owner, restore, written};
use crate::{PutRow, row, table};

const OWN: &str = "a";

fn ordered_table(deletes_max: usize) -> Table {
    let mut table = table();
    table.keep_order(OWN, deletes_max);
    table
}

fn stamp(time: u64, instance: &str) -> Stamp<'_> {
    Stamp { time: Timestamp(time), instance }
}

/// A change of another publisher.
fn other(time: u64, instance: &str) -> KeyChange<'_> {
    KeyChange { stamp: stamp(time, instance), publisher: PublisherId(7), sequence: 0, is_late: false }
}

/// A put or a delete of a key, at an instance.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Change {
    key: String,
    time: u64,
    instance: &'static str,
    is_delete: bool,
}

impl Change {
    fn stamp(&self) -> Stamp<'_> {
        stamp(self.time, if self.instance == OWN { "" } else { self.instance })
    }

    /// Of a publisher that only this instance has.
    fn as_key_change(&self) -> KeyChange<'_> {
        let number = self.instance.bytes().map(u64::from).sum();
        KeyChange { stamp: self.stamp(), publisher: PublisherId(number), sequence: 0, is_late: true }
    }

    fn data(&self) -> String {
        format!("{{\"{}\": {}}}", self.instance, self.time)
    }
}

/// The change arrives: it changes the table unless it is older.
fn arrive(table: &mut Table, change: &Change) {
    take(table, change, change.as_key_change());
}

fn take(table: &mut Table, change: &Change, key_change: KeyChange<'_>) {
    let key = change.key.as_bytes();
    if !table.admits(key, &key_change) {
        return;
    }
    if change.is_delete {
        table.delete(key, Moment::default(), &key_change);
    } else {
        let options = PutOptions { change: Some(key_change), ..PutOptions::default() };
        table.put_with(&row(&change.key, &change.data()), options).unwrap();
    }
}

/// The data of all rows by key.
fn rows(table: &Table) -> BTreeMap<String, String> {
    let keys = (0..4).map(|key| format!("key-{key}"));
    keys.filter_map(|key| {
        let data = table.get(key.as_bytes())?.data;
        Some((key.clone(), String::from_utf8(data.to_vec()).unwrap()))
    })
    .collect()
}

/// The last change of each key.
fn expected(changes: &[Change]) -> BTreeMap<String, String> {
    let mut last: BTreeMap<&str, &Change> = BTreeMap::new();
    for change in changes {
        let known = last.entry(&change.key).or_insert(change);
        if (change.time, change.instance) > (known.time, known.instance) {
            *known = change;
        }
    }
    let rows = last.into_values().filter(|change| !change.is_delete);
    rows.map(|change| (change.key.clone(), change.data())).collect()
}

/// Different changes have different stamps.
fn changes() -> impl Strategy<Value = Vec<Change>> {
    let instance = prop_oneof![Just("a"), Just("b"), Just("c")];
    let change = (0u8..4, 1u64..9, instance, any::<bool>()).prop_map(|(key, time, instance, is_delete)| {
        Change { key: format!("key-{key}"), time, instance, is_delete }
    });
    vec(change, 1..40).prop_map(|changes| {
        let by_stamp = |change: Change| ((change.key.clone(), change.time, change.instance), change);
        changes.into_iter().map(by_stamp).collect::<BTreeMap<_, _>>().into_values().collect()
    })
}

proptest! {
    /// One table gets them in one order, the other one in another order and some of them twice. It
    /// is restored from a snapshot in between, and applies again what the snapshot may have.
    #[test]
    fn tables_that_got_the_same_changes_are_equal_in_any_order(
        (changes, shuffled) in changes().prop_flat_map(|changes| (Just(changes.clone()), Just(changes).prop_shuffle())),
        saved_at in any::<prop::sample::Index>(),
        again_from in any::<prop::sample::Index>(),
        piece in 1usize..200,
    ) {
        let mut one = ordered_table(1_000);
        changes.iter().for_each(|change| arrive(&mut one, change));
        prop_assert_eq!(rows(&one), expected(&changes));

        let mut other = ordered_table(1_000);
        let saved_at = saved_at.index(changes.len());
        shuffled[..saved_at].iter().for_each(|change| arrive(&mut other, change));
        let bytes = written(&mut other);
        let mut other = ordered_table(1_000);
        restore(&mut other, &bytes, piece).unwrap();
        let again_from = again_from.index(saved_at + 1);
        shuffled[again_from..].iter().for_each(|change| arrive(&mut other, change));
        prop_assert_eq!(rows(&other), expected(&changes));
    }
}

/// Two publishers of a key. Each moves between instances with different clocks, so its stamps can
/// descend.
fn moves() -> impl Strategy<Value = [Vec<Change>; 2]> {
    let change = || (1u64..9, any::<bool>(), any::<bool>());
    (vec(change(), 0..6), vec(change(), 0..6)).prop_map(|(one, other)| {
        let mut used = BTreeSet::new();
        [one, other].map(|changes| {
            let changes = changes.into_iter().filter(|(time, at_a, _)| used.insert((*time, *at_a)));
            let change = |(time, at_a, is_delete): (u64, bool, bool)| {
                let instance = if at_a { "a" } else { "b" };
                Change { key: "key-0".into(), time, instance, is_delete }
            };
            changes.map(change).collect()
        })
    })
}

/// The rows of a table that got the changes of each publisher in their order. `merge` says whose
/// change is the next one.
fn merged(moves: &[Vec<Change>; 2], mut merge: impl Iterator<Item = usize>) -> BTreeMap<String, String> {
    let mut table = ordered_table(10);
    let mut rest = [0, 1].map(|number| moves[number].iter());
    loop {
        let wanted = merge.next().unwrap_or_default();
        let next = [wanted, 1 - wanted].into_iter().find_map(|number| Some((number, rest[number].next()?)));
        let Some((number, change)) = next else { return rows(&table) };
        let publisher = PublisherId(number as u64 + 1);
        take(&mut table, change, KeyChange { stamp: change.stamp(), publisher, sequence: 0, is_late: false });
    }
}

proptest! {
    #[test]
    fn the_last_change_of_a_publisher_counts_also_on_an_instance_with_a_slower_clock(
        moves in moves(),
        merge in vec(0usize..2, 12),
    ) {
        let first = merged(&moves, std::iter::repeat(0));
        prop_assert_eq!(&merged(&moves, std::iter::repeat(1)), &first);
        prop_assert_eq!(&merged(&moves, merge.into_iter()), &first);
        if let (Some(last), true) = (moves[0].last(), moves[1].is_empty()) {
            let expected = (!last.is_delete).then(|| last.data());
            prop_assert_eq!(first.get("key-0"), expected.as_ref());
        }
    }
}

#[test]
fn a_change_of_this_instance_is_later_than_those_that_it_knows() {
    let mut table = ordered_table(10);
    assert_eq!(table.next_stamp(b"k", Timestamp(5), true), Timestamp(5));
    arrive(&mut table, &Change { key: "k".into(), time: 9, instance: "b", is_delete: false });
    assert_eq!(table.next_stamp(b"k", Timestamp(5), false), Timestamp(10));
    arrive(&mut table, &Change { key: "k".into(), time: 11, instance: "b", is_delete: true });
    assert_eq!(table.next_stamp(b"k", Timestamp(5), false), Timestamp(12));
    arrive(&mut table, &Change { key: "k".into(), time: 12, instance: OWN, is_delete: false });
    assert_eq!(table.next_stamp(b"k", Timestamp(12), true), Timestamp(13));
    // No other instance gets it, so the log has the order.
    assert_eq!(table.next_stamp(b"k", Timestamp(12), false), Timestamp(12));
    assert_eq!(table.next_stamp(b"k", Timestamp(20), true), Timestamp(20));
}

#[test]
fn equal_times_are_ordered_by_the_name_of_the_instance() {
    let mut table = ordered_table(10);
    arrive(&mut table, &Change { key: "k".into(), time: 9, instance: "b", is_delete: false });
    assert!(!table.admits(b"k", &other(9, "")));
    assert!(!table.admits(b"k", &other(9, OWN)));
    assert!(table.admits(b"k", &other(9, "b")));
    assert!(table.admits(b"k", &other(9, "c")));
}

#[test]
fn a_row_whose_lifetime_ended_does_not_come_back_as_an_older_one() {
    let mut table = ordered_table(10);
    table.put(&Row { expires: Some(Timestamp(5)), timestamp: Timestamp(4), ..row("k", "{}") });
    assert!(table.pop_expired(Timestamp(5)));
    assert!(!table.admits(b"k", &other(3, "b")));
    assert!(table.admits(b"k", &other(5, "b")));
}

#[test]
fn the_oldest_delete_is_forgotten_at_the_limit() {
    let mut table = ordered_table(2);
    for (number, key) in ["k1", "k2", "k3"].into_iter().enumerate() {
        assert!(!table.has_forgotten());
        let time = 10 - number as u64;
        arrive(&mut table, &Change { key: key.into(), time, instance: "b", is_delete: true });
    }
    assert_eq!((table.stats().deletes, table.has_forgotten()), (2, true));
    assert!(table.admits(b"k1", &other(1, "b")), "it is forgotten");
    assert!(!table.admits(b"k2", &other(1, "b")));
    // An own change of the key is later than the delete.
    assert_eq!(table.next_stamp(b"k1", Timestamp(3), true), Timestamp(11));
    table.put(&row("k2", "{}"));
    assert_eq!(table.stats().deletes, 1);
}

/// Rows with and without a stamp, and deletes.
fn golden_table() -> Table {
    let mut table = ordered_table(2);
    table.put(&row("plain", "{}"));
    for (key, time, instance, is_delete) in [
        ("foreign", 1_600_000_000_000_000_000, "west-1", false),
        ("ahead", 1_600_000_000_000_000_001, OWN, false),
        ("forgotten", 5, "west-2", true),
        ("deleted", 1_600_000_000_000_000_002, "west-2", true),
        ("gone", 1_600_000_000_000_000_003, OWN, true),
    ] {
        arrive(&mut table, &Change { key: key.into(), time, instance, is_delete });
    }
    table
}

#[test]
fn a_snapshot_with_an_order_has_the_bytes_of_the_golden_file_and_the_file_is_read() {
    let golden = include_bytes!("../../../../tests/golden/table-v3.snapshot");
    let bytes = written(&mut golden_table());
    assert!(bytes == golden, "another format needs another version: {bytes:02x?}");
    for piece in [1, 7, 1_000] {
        let mut restored = table();
        assert_eq!(restore(&mut restored, golden, piece), Ok((HEAD, None)));
        assert!(restored.keeps_order());
        restored.keep_order(OWN, 2);
        assert!(written(&mut restored) == golden);
        for key in ["foreign", "deleted"] {
            assert!(!restored.admits(key.as_bytes(), &other(1_600_000_000_000_000_000, "west-0")));
            assert!(restored.admits(key.as_bytes(), &other(1_600_000_000_000_000_002, "west-2")));
        }
        assert_eq!(restored.next_stamp(b"unknown", Timestamp(3), true), Timestamp(6));
        assert_eq!(restored.get(b"plain").map(|row| row.position), Some(Position(1)));
    }
}

#[test]
fn a_damaged_snapshot_with_an_order_is_refused() {
    let bytes = written(&mut golden_table());
    let read = |bytes: &[u8]| {
        let mut reader = SnapshotReader::new(owner());
        let blocks = reader.read(bytes)?;
        table().row_reader().read(&blocks)?;
        reader.finish()
    };
    assert_eq!(read(&bytes), Ok(HEAD));
    for at in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1;
        assert!(read(&damaged).is_err(), "{at}");
        assert!(read(&bytes[..at]).is_err(), "{at}");
    }
}

#[test]
fn the_known_change_of_a_key_is_that_of_its_publisher() {
    let mut table = ordered_table(10);
    let change = |sequence| KeyChange { sequence, ..other(5, "b") };
    let stranger = KeyChange { publisher: PublisherId(8), ..change(9) };
    let known = |table: &Table, change: &KeyChange<'_>| table.known_of(b"key-1", change);
    assert_eq!(known(&table, &change(3)), None);
    let options = PutOptions { change: Some(change(3)), ..PutOptions::default() };
    table.put_with(&row("key-1", "{}"), options).unwrap();
    let position = table.get(b"key-1").unwrap().position;
    assert_eq!(known(&table, &change(2)), Some(KnownChange::Row(position)));
    assert_eq!(known(&table, &stranger), None);
    table.delete(b"key-1", Moment::default(), &change(4));
    assert_eq!(known(&table, &change(2)), Some(KnownChange::Delete { sequence: 4 }));
    assert_eq!(known(&table, &stranger), None);
    // A snapshot does not have the sequence.
    let bytes = written(&mut table);
    let mut again = ordered_table(10);
    restore(&mut again, &bytes, 1000).unwrap();
    assert_eq!(known(&again, &change(2)), Some(KnownChange::Delete { sequence: 0 }));
}
