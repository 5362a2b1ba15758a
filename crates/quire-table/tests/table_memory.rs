//! The memory of a table, counted by the allocator: the bytes of a row in addition to its key and
//! its data, and a table in a mapped file.

#[path = "../../quire-broker/tests/counting/mod.rs"]
mod counting;

use counting::allocated;
use quire_expression::message_type::MessageType;
use quire_journal::{Headers, Memory, PageFile, Position, Timestamp};
use quire_table::*;

const ROWS: usize = 1_000_000;
const KEY_SIZE: usize = 32;

/// A number without a pattern.
fn scattered(number: usize) -> usize {
    (number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) as usize >> 20
}

fn table(has_index: bool, memory: &Memory) -> Table {
    let config = TableConfig {
        name: "orders".into(),
        message_type: MessageType::Json,
        key: None,
        hash_indexes: if has_index { vec![vec!["/name".into()]] } else { Vec::new() },
        ordered_indexes: Vec::new(),
        history: None,
        limits: IndexLimits::default(),
    };
    Table::new(config, memory).unwrap()
}

/// Puts a row with a new name and with data of this size.
fn put(table: &mut Table, number: usize, size: usize) {
    let start = format!(r#"{{"name":"customer {number}","text":""#);
    let data = format!("{start}{:x<1$}\"}}", "", size - start.len() - 2);
    let key = format!("{:032x}", scattered(number));
    let row = Row {
        key: key.as_bytes(),
        position: Position(number as u64 + 1),
        timestamp: Timestamp(1_700_000_000_000_000_000 + number as u64),
        stamp: None,
        expires: None,
        correlation_id: b"",
        headers: Headers::NONE,
        data: data.as_bytes(),
    };
    table.put_with(&row, PutOptions::default()).unwrap();
}

/// One test, because the allocator counts for all threads.
#[test]
fn the_memory_of_a_table() {
    a_row_takes_few_bytes_more_than_its_key_and_its_data();
    rows_in_a_mapped_file_are_read_as_before_when_they_were_paged_out();
}

/// Bytes of memory for each row, less its key and its data.
fn overhead(table: &Table, allocated: usize, data_size: usize) -> f64 {
    let counted = table.stats().memory_size;
    assert!(counted.abs_diff(allocated) < counted / 50, "{counted} bytes, {allocated} allocated");
    (allocated - (ROWS * KEY_SIZE + data_size)) as f64 / ROWS as f64
}

fn a_row_takes_few_bytes_more_than_its_key_and_its_data() {
    let memory = Memory::heap();
    for (has_index, most) in [(false, 56.0), (true, 61.5)] {
        let before = allocated();
        let mut table = table(has_index, &memory);
        (0..ROWS).for_each(|number| put(&mut table, number, 300));
        let fresh = overhead(&table, allocated() - before, 300 * ROWS);
        // Most rows get another size, in an order without a pattern.
        let size = |number| 250 + scattered(number) % 100;
        for step in 0..ROWS {
            put(&mut table, scattered(step + 7) % ROWS, size(step));
        }
        let mut data_size = 0;
        let everything = Query { copies_size_max: 0, ..Query::default() };
        let scan = table.open(everything, Timestamp(0));
        let mut add = |row: &Row<'_>| {
            data_size += row.data.len();
            true
        };
        while table.poll(scan, 1_000_000, &mut add) == Polled::More {}
        table.close(scan);
        let changed = overhead(&table, allocated() - before, data_size);
        println!("hash index: {has_index}; new {fresh:.1} bytes, after changes {changed:.1} bytes");
        assert!((20.0..most).contains(&fresh));
        assert!((20.0..most + 30.0).contains(&changed));
    }
}

fn rows_in_a_mapped_file_are_read_as_before_when_they_were_paged_out() {
    let directory = tempfile::tempdir().unwrap();
    let memory = Memory::paged(PageFile::create(directory.path(), 1 << 30).unwrap());
    let before = allocated();
    let count = 100_000;
    let mut table = table(true, &memory);
    (0..count).for_each(|number| put(&mut table, number, 300));
    let heap = (allocated() - before) as f64 / count as f64;
    let file = memory.file_size() as f64 / count as f64;
    println!("{heap:.1} bytes of the heap and {file:.1} of the file for each row of {}", 300 + KEY_SIZE);
    assert!(heap < 32.0 && (340.0..440.0).contains(&file));
    memory.page_out().unwrap();
    for number in 0..count {
        let key = format!("{:032x}", scattered(number));
        let row = table.get(key.as_bytes()).unwrap();
        assert_eq!((row.position, row.data.len()), (Position(number as u64 + 1), 300));
    }
    memory.page_out().unwrap();
    (0..count).for_each(|number| put(&mut table, number, 290 + number % 20));
    assert_eq!(table.len(), count);
    (0..count).for_each(|number| {
        assert!(table.remove(format!("{:032x}", scattered(number)).as_bytes(), Moment::default()))
    });
    drop(table);
    assert!(memory.file_size() <= 8 << 20, "the file is short again");
}
