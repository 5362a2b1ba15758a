//! Indexes: their configuration, and that they are used. `random.rs` shows that they do not change
//! results.

use quire_expression::message_type::MessageType;
use quire_journal::{Memory, Timestamp};
use quire_table::*;

use crate::{PutRow, everything, filter, row, table_of, table_with};

/// 1,000 rows with a number, a text that ten rows share, and a text of a group of a hundred.
fn filled(hash_indexes: &[&[&str]], ordered_indexes: &[&str]) -> Table {
    let mut table = table_with(hash_indexes, ordered_indexes);
    for key in 0..1_000 {
        let data = format!(r#"{{"n":{key},"name":"name {}","group":"{}"}}"#, key / 10, key / 100 + 100);
        table.put(&row(&key.to_string(), &data));
    }
    table
}

/// How many rows match, and how many units of effort the scan takes: one for each row that it looks
/// at.
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
            limits: IndexLimits::default(),
        };
        Table::new(config, &Memory::heap()).unwrap_err().to_string()
    };
    let json = MessageType::Json;
    assert_eq!(refused(json, &[&[]], &[]), "hash_index: at least one field is required");
    assert_eq!(refused(json, &[&["/a", "[/a]"]], &[]), "hash_index: \"[/a]\" occurs twice");
    assert_eq!(refused(json, &[], &["/a", "/a"]), "index: \"/a\" occurs twice");
    assert_eq!(refused(json, &[], &["a"]), "index: \"a\" is not the name of a field, such as /symbol");
    assert_eq!(refused(json, &[&["/a"][..]; 17], &[]), "17 indexes, the limit is 16");
    assert_eq!(
        refused(MessageType::Binary, &[&["/a"]], &[]),
        "binary messages have no fields; remove the indexes"
    );
}

/// The numbers of the rows of a scan, in ascending order.
fn numbers(table: &mut Table, scan: ScanId) -> Vec<u64> {
    let mut numbers = Vec::new();
    while table.poll(scan, 3, &mut |row| {
        let text = String::from_utf8(row.key.to_vec()).unwrap();
        numbers.push(text.parse().unwrap());
        true
    }) == Polled::More
    {}
    table.close(scan);
    numbers.sort_unstable();
    numbers
}

#[test]
fn a_range_of_many_rows_costs_its_matches_and_stays_the_state_of_its_instant() {
    const ROWS: u64 = 100_000;
    let mut table = table_with(&[], &["/n"]);
    let put = |table: &mut Table, key: u64, n: u64| {
        // Some numbers are texts, which the index has twice.
        let n = if n.is_multiple_of(3) { format!("\"{n}\"") } else { n.to_string() };
        table.put(&row(&key.to_string(), &format!(r#"{{"n":{n}}}"#)))
    };
    (0..ROWS).for_each(|key| assert!(put(&mut table, key, key * 7_919 % ROWS)));
    let wanted = |key: u64| key * 7_919 % ROWS < 20_000;
    let expected: Vec<u64> = (0..ROWS).filter(|key| wanted(*key)).collect();
    let range = || Query { filter: Some(filter("/n < 20000")), ..everything() };
    let (matched, cost) = cost(&mut table, "/n < 20000");
    assert_eq!(matched, 20_000);
    // The next row of the index is looked at, too, and every portion has the cost of a row.
    assert!((20_000..20_200).contains(&cost), "{cost}");
    let scan = table.open(range(), Timestamp(0));
    assert!(table.stats().copies_size <= ROWS as usize / 8 + 8);
    let mut found = Vec::new();
    for key in 0..ROWS {
        if key.is_multiple_of(64) {
            table.poll(scan, 1, &mut |row| {
                found.push(String::from_utf8(row.key.to_vec()).unwrap().parse::<u64>().unwrap());
                false
            });
        }
        match key % 5 {
            0 => drop(table.remove(key.to_string().as_bytes(), Moment::default())),
            1 => drop(put(&mut table, key, (key * 7_919 + 10_000) % ROWS)),
            2 => drop(put(&mut table, ROWS + key, key % ROWS)),
            _ => {}
        }
    }
    let second = table.open(range(), Timestamp(0));
    found.extend(numbers(&mut table, scan));
    found.sort_unstable();
    assert_eq!(found, expected);
    let mut left: Vec<u64> = (0..ROWS)
        .filter(|key| match key % 5 {
            0 => false,
            1 => (key * 7_919 + 10_000) % ROWS < 20_000,
            _ => wanted(*key),
        })
        .chain((0..ROWS).filter(|key| key % 5 == 2 && *key < 20_000).map(|key| ROWS + key))
        .collect();
    left.sort_unstable();
    assert_eq!(numbers(&mut table, second), left);
}

/// 20,000 rows with a number and a text that ten rows share.
fn large(limits: IndexLimits) -> Table {
    let mut table = table_of(&[], &[], limits);
    for key in 0..20_000 {
        let data = format!(r#"{{"n":{key},"name":"name {}","text":"{:200}"}}"#, key / 10, "");
        table.put(&row(&key.to_string(), &data));
    }
    table
}

/// Builds the index that is being built.
fn build(table: &mut Table) {
    assert!(table.is_building_index());
    while table.build_index(128) {}
    assert!(!table.is_building_index());
}

#[test]
fn a_query_that_looks_at_all_rows_for_few_makes_an_index_for_later_ones() {
    let mut table = large(IndexLimits::default());
    let before = table.stats().memory_size;
    assert_eq!(cost(&mut table, "/name = 'name 7'"), (10, 20_000));
    table.build_index(128);
    assert_eq!(cost(&mut table, "/name = 'name 7'"), (10, 20_000), "the index is not whole");
    table.put(&row("70", r#"{"name":"other"}"#));
    table.put(&row("19999", r#"{"name":"name 7"}"#));
    table.put(&row("20000", r#"{"name":"name 7"}"#));
    table.remove(b"19998", Moment::default());
    build(&mut table);
    assert_eq!(cost(&mut table, "/name = 'name 7'"), (11, 11));
    assert_eq!(cost(&mut table, "/name = 'name 1999'"), (8, 8));
    // A row that changed before the index read it is in the index once.
    table.put(&row("19999", r#"{"name":"other"}"#));
    assert_eq!(cost(&mut table, "/name = 'name 7'"), (10, 10));
    assert!(!table.is_building_index(), "a query that an index serves needs no other");
    assert!(table.stats().memory_size > before + 20_000 * 8);

    assert_eq!(cost(&mut table, "/n > 19000 AND /n < 19011 AND /name > 'a'"), (10, 20_001));
    build(&mut table);
    assert_eq!(cost(&mut table, "/n > 19000 AND /n < 19011 AND /name > 'a'"), (10, 12));
}

#[test]
fn no_index_is_made_for_few_rows_for_many_matches_and_for_other_conditions() {
    let mut few = filled(&[], &[]);
    cost(&mut few, "/name = 'name 7'");
    assert!(!few.is_building_index());
    let mut table = large(IndexLimits::default());
    for text in ["/n >= 0", "/name LIKE '^name 7$'", "/n = 1 OR /n = 2", "/n + 1 = 2", "SOW_KEY() = '7'"] {
        cost(&mut table, text);
        assert!(!table.is_building_index(), "{text}");
    }
}

#[test]
fn the_indexes_that_queries_make_have_a_limit_of_number_and_of_memory() {
    let mut table = large(IndexLimits { made_size_part: 1, ..IndexLimits::default() });
    for field in 0..MADE_INDEXES_MAX {
        cost(&mut table, &format!("/field{field} = 'x'"));
        build(&mut table);
    }
    cost(&mut table, "/another = 'x'");
    assert!(!table.is_building_index());
    let mut small = large(IndexLimits { made_size_part: 1_000, ..IndexLimits::default() });
    cost(&mut small, "/name = 'name 7'");
    assert!(!small.is_building_index());
}
