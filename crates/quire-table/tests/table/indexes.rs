//! Indexes: their configuration, and that they are used. `random.rs` shows that they do not change results.

use quire_expression::message_type::MessageType;
use quire_journal::{Memory, Timestamp};
use quire_table::*;

use crate::{everything, filter, row, table_with};

/// 1,000 rows with a number, a text that ten rows share, and a text of a group of a hundred.
fn filled(hash_indexes: &[&[&str]], ordered_indexes: &[&str]) -> Table {
    let mut table = table_with(hash_indexes, ordered_indexes);
    for key in 0..1_000 {
        let data = format!(r#"{{"n":{key},"name":"name {}","group":"{}"}}"#, key / 10, key / 100 + 100);
        table.put(&row(&key.to_string(), &data));
    }
    table
}

/// How many rows match, and how many units of effort the scan takes: one for each row that it looks at.
pub fn cost(table: &mut Table, text: &str) -> (u64, usize) {
    let scan = table.open(Query { filter: Some(filter(text)), ..everything() }, Timestamp(0));
    let mut portions = 1;
    loop {
        match table.poll(scan, 0, &mut |_| true) {
            Polled::More => portions += 1,
            Polled::Done { matched } => {
                table.close(scan);
                return (matched, portions - 1);
            }
            failure => panic!("{failure:?}"),
        }
    }
}

#[test]
fn a_hash_index_serves_equality_and_in_with_texts_of_all_its_fields() {
    let mut table = filled(&[&["/name"], &["/group", "/name"]], &[]);
    assert_eq!(cost(&mut table, "/name = 'name 7'"), (10, 10));
    assert_eq!(cost(&mut table, "/name IN ('name 7', 'name 8', 'other')"), (20, 20));
    assert_eq!(cost(&mut table, "/n < 75 AND 'name 7' = /name"), (5, 10));
    assert_eq!(cost(&mut table, "/name = 'name 7' OR /n = 5"), (11, 1_000), "OR");
    assert_eq!(cost(&mut table, "/name != 'name 7'"), (990, 1_000));
    assert_eq!(cost(&mut table, "/group = '105'"), (100, 1_000), "a text that spells a number");
}

#[test]
fn an_index_of_several_fields_serves_only_filters_of_all_of_them() {
    let mut table = table_with(&[&["/a", "/b"]], &[]);
    for key in 0..1_000 {
        table.put(&row(&key.to_string(), &format!(r#"{{"a":"a{}","b":"b{}"}}"#, key % 10, key % 25)));
    }
    assert_eq!(cost(&mut table, "/b = 'b3' AND /a = 'a3'"), (20, 20));
    assert_eq!(cost(&mut table, "/a IN ('a3', 'a8') AND /b IN ('b3', 'b23')"), (80, 80));
    assert_eq!(cost(&mut table, "/a = 'a3'"), (100, 1_000));
}

#[test]
fn an_ordered_index_serves_ranges_of_numbers_and_of_texts() {
    let mut table = filled(&[], &["/n", "/name"]);
    // Of the texts, the first eight bytes count.
    assert_eq!(cost(&mut table, "/n = 7"), (1, 1));
    assert_eq!(cost(&mut table, "/n = '7'"), (1, 1));
    assert_eq!(cost(&mut table, "/n < 7"), (7, 8));
    assert_eq!(cost(&mut table, "997 <= /n"), (3, 3));
    assert_eq!(cost(&mut table, "/n > 5 AND /n < 9"), (3, 5));
    assert_eq!(cost(&mut table, "/n BETWEEN 5 AND 9 AND /name = 'name 0'"), (5, 5));
    assert_eq!(cost(&mut table, "/n < 5 AND /n > 9"), (0, 0));
    assert_eq!(cost(&mut table, "/name >= 'name 98'"), (20, 20));
    assert_eq!(cost(&mut table, "/name BETWEEN 'name 10' AND 'name 11'"), (20, 20));
    assert_eq!(cost(&mut table, "/name > 5"), (1_000, 1_000), "a text is greater than a number");
    assert_eq!(cost(&mut table, "/n != 7"), (999, 1_000));
}

#[test]
fn rows_with_arrays_are_looked_at_for_every_filter() {
    let mut table = filled(&[&["/name"]], &["/n"]);
    table.put(&row("array", r#"{"n":[5000, 7],"name":["name 7","x"]}"#));
    assert_eq!(cost(&mut table, "/name = 'x'"), (1, 1));
    assert_eq!(cost(&mut table, "/n > 4000"), (1, 1));
    assert_eq!(cost(&mut table, "/name = 'name 7'"), (11, 11));
    table.put(&row("array", r#"{"n":6000,"name":"x"}"#));
    assert_eq!(cost(&mut table, "/name = 'x'"), (1, 1));
    assert_eq!(cost(&mut table, "/name = 'name 7'"), (10, 10));
    table.remove(b"array", Moment::default());
    assert_eq!(cost(&mut table, "/name = 'x'"), (0, 0));
    assert_eq!(cost(&mut table, "/n > 4000"), (0, 0));
}

#[test]
fn messages_that_cannot_be_read_are_looked_at_for_every_filter() {
    let mut table = filled(&[&["/name"]], &["/n"]);
    // A filter reads a message up to its last field only. An index reads more of it.
    table.put(&row("bad", r#"{"n":7,"name":"#));
    assert_eq!(cost(&mut table, "/n = 7"), (2, 2));
    assert_eq!(cost(&mut table, "/name = 'name 7'"), (10, 11));
    table.put(&row("bad", r#"{"n":7,"name":"name 0"}"#));
    assert_eq!(cost(&mut table, "/n = 7"), (2, 2));
}

#[test]
fn a_scan_through_an_index_gives_the_state_of_its_instant() {
    let mut table = filled(&[&["/name"]], &[]);
    let query = Query { filter: Some(filter("/name = 'name 7'")), ..everything() };
    let scan = table.open(query, Timestamp(0));
    table.put(&row("70", r#"{"name":"other"}"#));
    table.remove(b"71", Moment::default());
    table.put(&row("500", r#"{"name":"name 7"}"#));
    table.put(&row("new", r#"{"name":"name 7"}"#));
    let mut keys = Vec::new();
    let polled = table.poll(scan, 1_000, &mut |row| {
        keys.push(String::from_utf8(row.key.to_vec()).unwrap());
        true
    });
    assert_eq!(polled, Polled::Done { matched: 10 });
    keys.sort();
    assert_eq!(keys, (70..80).map(|key| key.to_string()).collect::<Vec<_>>());
}

#[test]
fn indexes_of_no_field_or_of_equal_fields_are_refused() {
    let refused = |message_type, hash: &[&[&str]], ordered: &[&str]| {
        let names = |names: &[&str]| names.iter().map(|name| name.to_string()).collect::<Vec<_>>();
        let config = TableConfig {
            name: "orders".into(),
            message_type,
            key: None,
            hash_indexes: hash.iter().map(|fields| names(fields)).collect(),
            ordered_indexes: names(ordered),
            history: None,
        };
        Table::new(config, &Memory::heap()).unwrap_err().to_string()
    };
    let json = MessageType::Json;
    assert_eq!(refused(json, &[&[]], &[]), "hash_index: at least one field is required");
    assert_eq!(refused(json, &[&["/a", "[/a]"]], &[]), "hash_index: \"[/a]\" occurs twice");
    assert_eq!(refused(json, &[], &["/a", "/a"]), "ordered_index: \"/a\" occurs twice");
    assert_eq!(
        refused(json, &[], &["a"]),
        "ordered_index: \"a\" is not the name of a field, such as /symbol"
    );
    assert_eq!(refused(json, &[&["/a"][..]; 17], &[]), "17 indexes, the limit is 16");
    assert_eq!(
        refused(MessageType::Binary, &[&["/a"]], &[]),
        "binary messages have no fields; remove the indexes"
    );
}
