//! The engine of last-value topics against a slow and obvious model, and the cases that a model
//! does not show.

mod bulk;
mod by_key;
mod groups;
mod history;
mod indexes;
mod joins;
mod model;
mod pages;
mod random;
mod scans;
mod snapshots;
mod stamps;
mod view_snapshots;

use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use quire_journal::{Headers, Memory, PageFile, Position, Timestamp};
use quire_table::*;

use quire_expression::filter::{Filter, FilterOptions};
use quire_expression::message_type::MessageType;

/// A table of JSON messages without indexes.
fn table() -> Table {
    table_with(&[], &[])
}

fn table_with(hash_indexes: &[&[&str]], ordered_indexes: &[&str]) -> Table {
    table_of(hash_indexes, ordered_indexes, IndexLimits::default())
}

/// A table whose scans take the slots of indexes one or two at a time.
fn walking_table(hash_indexes: &[&[&str]], ordered_indexes: &[&str]) -> Table {
    static CALLS: AtomicUsize = AtomicUsize::new(0);
    let portion_len = CALLS.fetch_add(1, Ordering::Relaxed) % 2 + 1;
    let limits = IndexLimits { listed_max: 0, walked_part: 1, portion_len, ..IndexLimits::default() };
    table_of(hash_indexes, ordered_indexes, limits)
}

/// A table that makes an index for every query that looks at all rows.
fn making_table() -> Table {
    let limits =
        IndexLimits { walked_part: 1, made_rows_min: 0, made_size_part: 1, ..IndexLimits::default() };
    table_of(&[], &[], limits)
}

fn table_of(hash_indexes: &[&[&str]], ordered_indexes: &[&str], limits: IndexLimits) -> Table {
    let names = |names: &[&str]| names.iter().map(|name| name.to_string()).collect::<Vec<_>>();
    let config = TableConfig {
        name: "orders".into(),
        message_type: MessageType::Json,
        key: None,
        hash_indexes: hash_indexes.iter().map(|fields| names(fields)).collect(),
        ordered_indexes: names(ordered_indexes),
        history: None,
        limits,
    };
    Table::new(config, &any_memory()).unwrap()
}

/// The heap, the heap in pieces, or a file that all tables share: one after the other.
fn any_memory() -> Memory {
    static CALLS: AtomicUsize = AtomicUsize::new(0);
    static PAGED: LazyLock<Memory> = LazyLock::new(|| {
        let directory = tempfile::tempdir().unwrap();
        Memory::paged(PageFile::create(directory.path(), 1 << 32).unwrap())
    });
    match CALLS.fetch_add(1, Ordering::Relaxed) % 3 {
        0 => Memory::heap(),
        1 => Memory::heap_in_pieces(),
        _ => PAGED.clone(),
    }
}

/// A put of a row that a table can have.
trait PutRow {
    /// Whether the key is new.
    fn put(&mut self, row: &Row<'_>) -> bool;
}

impl PutRow for Table {
    fn put(&mut self, row: &Row<'_>) -> bool {
        let options = PutOptions { keeps_previous: true, ..PutOptions::default() };
        self.put_with(row, options).unwrap()
    }
}

#[test]
fn a_row_whose_key_has_a_wrong_size_is_an_error_and_changes_nothing() {
    let mut table = table();
    assert!(table.put(&row("a", "1")));
    for key in ["", &"k".repeat(256)] {
        let refused = table.put_with(&row(key, "2"), PutOptions::default());
        assert_eq!(refused, Err(RowError::KeySize { size: key.len() }));
    }
    assert!(table.put(&row(&"k".repeat(255), "3")));
    assert_eq!(table.stats().rows, 2);
}

/// A row without a lifetime.
fn row<'a>(key: &'a str, data: &'a str) -> Row<'a> {
    Row {
        key: key.as_bytes(),
        position: Position(1),
        timestamp: Timestamp(1),
        stamp: None,
        expires: None,
        correlation_id: b"",
        headers: Headers::NONE,
        data: data.as_bytes(),
    }
}

fn filter(text: &str) -> Filter {
    Filter::parse(text, &FilterOptions::default()).unwrap()
}

/// A query for all rows, with room for copies.
fn everything() -> Query {
    Query { copies_size_max: 1 << 30, ..Query::default() }
}
