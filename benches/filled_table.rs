//! A table of last-value records, and the key of each message from its field.

use quire_expression::filter::Filter;
use quire_expression::message_type::{Arena, MessageType};
use quire_journal::{Headers, Memory, Position, Timestamp};
use quire_table::*;

/// A message of 300 bytes with one key field in front.
pub fn message(number: u64) -> String {
    let start = format!(
        r#"{{"order_id":"order-{number:09}","symbol":"SYM{:03}","side":"{}","quantity":{},"price":{}.{:02},"text":""#,
        number % 500,
        if number.is_multiple_of(2) { "buy" } else { "sell" },
        number % 1_000,
        number % 90 + 10,
        number % 100,
    );
    format!("{start}{:x<1$}\"}}", "", 298 - start.len())
}

/// A table, and the fields of its keys.
pub struct Bench {
    /// The table.
    pub table: Table,
    /// Where the keys come from.
    pub keys: KeyFields,
    /// Memory of evaluations.
    pub arena: Arena,
}

impl Bench {
    /// A table without rows.
    pub fn new(hash_indexes: Vec<Vec<String>>, ordered_indexes: Vec<String>) -> Self {
        let keys = KeyFields::new(MessageType::Json, "orders", &["/order_id".into()]).unwrap();
        let config = TableConfig {
            name: "orders".into(),
            message_type: MessageType::Json,
            key: Some(keys.clone()),
            hash_indexes,
            ordered_indexes,
            history: None,
            limits: IndexLimits::default(),
        };
        Bench { table: Table::new(config, &Memory::heap()).unwrap(), keys, arena: Arena::default() }
    }

    /// A table with this many rows.
    pub fn filled(rows: u64, hash_indexes: Vec<Vec<String>>) -> Self {
        Bench::indexed(rows, hash_indexes, Vec::new())
    }

    /// A table with this many rows, with these indexes.
    pub fn indexed(rows: u64, hash_indexes: Vec<Vec<String>>, ordered_indexes: Vec<String>) -> Self {
        let mut bench = Bench::new(hash_indexes, ordered_indexes);
        (0..rows).for_each(|number| assert!(bench.put(number, &message(number))));
        bench
    }

    /// Generates the key, and puts the row.
    pub fn put(&mut self, number: u64, data: &str) -> bool {
        let key = self.keys.key_of(data.as_bytes(), &mut self.arena).unwrap();
        let place = Some(self.table.look_ahead(&key, data.len()));
        let row = Row {
            key: &key,
            position: Position(number + 1),
            timestamp: Timestamp(1_700_000_000_000_000_000 + number),
            stamp: None,
            expires: None,
            correlation_id: b"",
            headers: Headers::NONE,
            data: data.as_bytes(),
        };
        let spelling = Some(key.spelling().expect("the key was made from fields"));
        let options = PutOptions { place, spelling, entries: None, keeps_previous: false, change: None };
        self.table.put_with(&row, options).expect("generated keys are short")
    }

    /// Looks at all rows. Returns how many match.
    pub fn scan(&mut self, filter: &Filter) -> u64 {
        let query = Query { filter: Some(filter.clone()), copies_size_max: 64 << 20, ..Query::default() };
        let scan = self.table.open(query, Timestamp(0));
        loop {
            match self.table.poll(scan, 1_000, &mut |_| true) {
                Polled::More => {}
                Polled::Done { matched } => {
                    self.table.close(scan);
                    return matched;
                }
                failure => panic!("{failure:?}"),
            }
        }
    }
}
