//! Scans: their limits, and what they cost publishes.

use quire_journal::Timestamp;
use quire_table::*;

use crate::{PutRow, everything, filter, row, table};

const NOW: Timestamp = Timestamp(0);

fn keys(table: &mut Table, scan: ScanId, effort: usize) -> (Vec<String>, Polled) {
    let mut keys = Vec::new();
    let polled = table.poll(scan, effort, &mut |row| {
        keys.push(String::from_utf8(row.key.to_vec()).unwrap());
        true
    });
    (keys, polled)
}

#[test]
fn a_portion_looks_at_about_as_many_rows_as_its_effort_and_at_least_one() {
    let mut table = table();
    (0..100).for_each(|key| assert!(table.put(&row(&format!("{key:02}"), "{}"))));
    let scan = table.open(everything(), NOW);
    assert_eq!(keys(&mut table, scan, 10).0.len(), 10);
    assert_eq!(keys(&mut table, scan, 0).0.len(), 1);
    let mut count = 0;
    let polled = table.poll(scan, 1_000, &mut |_| {
        count += 1;
        count < 5
    });
    assert_eq!((count, polled), (5, Polled::More));
    let (rest, polled) = keys(&mut table, scan, 1_000);
    assert_eq!((rest.len(), polled), (84, Polled::Done { matched: 100 }));
    assert_eq!(keys(&mut table, scan, 1_000), (vec![], Polled::Done { matched: 100 }));
    table.close(scan);
    assert_eq!(keys(&mut table, scan, 1_000), (vec![], Polled::Done { matched: 0 }));
}

#[test]
fn rows_that_match_nothing_take_effort_too() {
    let mut table = table();
    (0..100).for_each(|key| assert!(table.put(&row(&key.to_string(), "{}"))));
    let scan = table.open(Query { filter: Some(filter("1 = 2")), ..everything() }, NOW);
    assert_eq!(keys(&mut table, scan, 60), (vec![], Polled::More));
    assert_eq!(keys(&mut table, scan, 60), (vec![], Polled::Done { matched: 0 }));
}

#[test]
fn only_rows_of_the_result_are_copied_and_the_copies_have_a_limit() {
    let mut table = table();
    (0..100).for_each(|key| assert!(table.put(&row(&key.to_string(), &format!(r#"{{"n":{key}}}"#)))));
    let some = Query { filter: Some(filter("/n < 10")), copies_size_max: 10 * 100, ..Query::default() };
    let all = Query { copies_size_max: 10 * 100, ..Query::default() };
    let (some, all) = (table.open(some, NOW), table.open(all, NOW));
    for key in 0..100 {
        table.put(&row(&key.to_string(), r#"{"n":1000}"#));
        table.put(&row(&key.to_string(), r#"{"n":1}"#));
    }
    assert!(table.stats().copies_size > 0);
    assert_eq!(keys(&mut table, all, 1_000), (vec![], Polled::TooManyCopies));
    assert_eq!(keys(&mut table, all, 1_000), (vec![], Polled::TooManyCopies));
    let (keys, polled) = keys(&mut table, some, 1_000);
    assert_eq!((keys.len(), polled), (10, Polled::Done { matched: 10 }));
    assert_eq!(table.stats().copies_size, 0);
}

#[test]
fn a_result_with_top_n_holds_few_sort_keys_and_one_without_is_limited() {
    let mut table = table();
    (0..10_000).for_each(|key| assert!(table.put(&row(&key.to_string(), &format!(r#"{{"n":{key}}}"#)))));
    let order = Order::parse("/n DESC", &Default::default()).unwrap();
    let all = Query { order: Some(order), copies_size_max: 10_000, ..Query::default() };
    let top = Query { top_n: Some(3), skip_n: 2, ..all.clone() };
    let (all, top) = (table.open(all, NOW), table.open(top, NOW));
    assert_eq!(keys(&mut table, all, 100_000), (vec![], Polled::TooManyCopies));
    let expected = ["9997", "9996", "9995"].map(String::from).to_vec();
    assert_eq!(keys(&mut table, top, 100_000), (expected, Polled::Done { matched: 10_000 }));
}

#[test]
fn a_filter_with_too_much_effort_for_one_row_ends_the_scan() {
    let mut table = table();
    let numbers = vec!["1"; 2_000].join(",");
    table.put(&row("k", &format!(r#"{{"a":[{numbers}],"b":[{numbers}]}}"#)));
    let query = Query { filter: Some(filter("/a != /b OR /b != /a")), ..everything() };
    let scan = table.open(query.clone(), NOW);
    assert_eq!(keys(&mut table, scan, 1_000), (vec![], Polled::TooMuchEffort));
    let scan = table.open(query, NOW);
    table.remove(b"k", Moment::default());
    assert_eq!(keys(&mut table, scan, 1_000), (vec![], Polled::TooMuchEffort));
}

#[test]
fn changes_stop_evaluating_a_costly_filter_and_copy_rows_until_the_next_portion() {
    let mut table = table();
    let numbers = vec!["1"; 50].join(",");
    let data = format!(r#"{{"a":[{numbers}],"b":[{numbers}]}}"#);
    (0..100).for_each(|key| assert!(table.put(&row(&key.to_string(), &data))));
    let query = Query { filter: Some(filter("/a != /b")), ..everything() };
    let scan = table.open(query, NOW);
    (0..100).for_each(|key| assert!(table.remove(key.to_string().as_bytes(), Moment::default())));
    // None of the rows matches, so that all copies are of rows that were not evaluated. Forty times
    // 25,000 is the limit of the effort.
    let copied = table.stats().copies_size / (data.len() + 64 + 13);
    assert!((55..=65).contains(&copied), "{copied} rows");
    let (none, polled) = keys(&mut table, scan, 100_000);
    assert_eq!((none, polled), (vec![], Polled::Done { matched: 0 }));
    assert_eq!(table.stats().copies_size, 0);
}

#[test]
fn rows_that_come_after_the_instant_are_not_in_the_result() {
    let mut table = table();
    (0..10).for_each(|key| assert!(table.put(&row(&key.to_string(), "{}"))));
    let scan = table.open(everything(), NOW);
    (0..10).for_each(|key| assert!(table.remove(key.to_string().as_bytes(), Moment::default())));
    // These take the slots of the removed rows, and new ones.
    (10..30).for_each(|key| assert!(table.put(&row(&key.to_string(), "{}"))));
    let (mut found, polled) = keys(&mut table, scan, 1_000);
    found.sort();
    assert_eq!(found, (0..10).map(|key| key.to_string()).collect::<Vec<_>>());
    assert_eq!(polled, Polled::Done { matched: 10 });
}

#[test]
fn equal_tables_give_equal_results_in_equal_order() {
    let results: Vec<_> = (0..2)
        .map(|_| {
            let mut table = table();
            (0..1_000).for_each(|key| assert!(table.put(&row(&key.to_string(), "{}"))));
            (0..500)
                .for_each(|key| assert!(table.remove((key * 2).to_string().as_bytes(), Moment::default())));
            (0..300).for_each(|key| assert!(table.put(&row(&format!("again {key}"), "{}"))));
            let scan = table.open(everything(), NOW);
            keys(&mut table, scan, 10_000).0
        })
        .collect();
    assert_eq!(results[0].len(), 800);
    assert_eq!(results[0], results[1]);
}
