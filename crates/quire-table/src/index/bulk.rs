//! The indexes of a table that is restored at a start. The entries are collected first, and sorted
//! once at the end.
//!
//! An insertion searches for its block, and moves half of the values of the block. With random
//! values it also waits for memory. So sorting ten million entries takes less than a quarter of the
//! time of ten million insertions.
//!
//! The same reader is used for one large row: another thread reads its entries before the row is
//! put. The owner of the table does not wait for that.

use super::{IndexEntry, Indexes, Spelling, Values, put_entries, value_of};
use crate::fields::Fields;
use crate::key::KeyFields;
use quire_expression::message_type::{Arena, MessageType};

/// Reads the entries of each row in the indexes of a table. It does not need the table, so other
/// threads can use it.
#[derive(Debug)]
pub struct EntryReader {
    message_type: MessageType,
    key: Option<KeyFields>,
    /// The key fields, and then the fields of the indexes, so that a row is read once.
    fields: Fields,
    /// The fields of the indexes alone.
    indexed: Fields,
    /// The number of fields of each hash index.
    widths: Box<[usize]>,
    index_count: usize,
    arena: Arena,
}

/// The entries of a row in the indexes of a table, which [`EntryReader::read_row`] has read.
#[derive(Debug)]
pub struct RowEntries {
    pub(super) entries: Vec<IndexEntry>,
    pub(crate) spelling: Spelling,
    /// The number of indexes that the table had.
    index_count: usize,
}

impl EntryReader {
    /// A reader for a table with these key fields and these indexes.
    pub(crate) fn new(message_type: MessageType, key: Option<&KeyFields>, indexes: &Indexes) -> Self {
        EntryReader {
            message_type,
            key: key.cloned(),
            fields: key.map_or(indexes.fields.clone(), |key| key.list().and(&indexes.fields)),
            indexed: indexes.fields.clone(),
            widths: indexes.hash.iter().map(|index| index.width).collect(),
            index_count: indexes.hash.len() + indexes.ordered.len(),
            arena: Arena::default(),
        }
    }

    /// The number of indexes. A row usually has one entry in each.
    pub(crate) fn index_count(&self) -> usize {
        self.index_count
    }

    /// Another reader for the same table.
    pub(crate) fn another(&self) -> Self {
        EntryReader {
            message_type: self.message_type,
            key: self.key.clone(),
            fields: self.fields.clone(),
            indexed: self.indexed.clone(),
            widths: self.widths.clone(),
            index_count: self.index_count,
            arena: Arena::default(),
        }
    }

    /// The entries of a row with this key and this data.
    pub fn read_row(&mut self, row_key: &[u8], data: &[u8]) -> RowEntries {
        let mut entries = Vec::new();
        let spelling = self.read(row_key, data, &mut entries);
        RowEntries { entries, spelling, index_count: self.index_count }
    }

    /// Adds the entries of a row, and returns the spelling of its key fields.
    pub(crate) fn read(&mut self, row_key: &[u8], data: &[u8], entries: &mut Vec<IndexEntry>) -> Spelling {
        if self.index_count == 0 {
            return self.spelling_of(row_key, data);
        }
        self.arena.reset();
        let Ok(values) = self.fields.read(self.message_type, data, &self.arena) else {
            return self.read_apart(row_key, data, entries);
        };
        let values: Values<'_> = values.collect();
        let (own, indexed) = values.split_at(values.len() - self.indexed.paths().len());
        put_entries(self.widths.iter().copied(), indexed, entries);
        let of_values = |key| Spelling::of_values(key, row_key, own.iter().copied(), &self.arena);
        self.key.as_ref().map_or(Spelling::Usual, of_values)
    }

    /// As [`read`](Self::read), for a row that cannot be read up to the last field. Perhaps the key
    /// fields or the other fields can be read.
    fn read_apart(&mut self, row_key: &[u8], data: &[u8], entries: &mut Vec<IndexEntry>) -> Spelling {
        self.arena.reset();
        match self.indexed.read(self.message_type, data, &self.arena) {
            Ok(values) => {
                let values: Values<'_> = values.collect();
                put_entries(self.widths.iter().copied(), &values, entries);
            }
            Err(_) => entries.extend((0..self.index_count).map(IndexEntry::Irregular)),
        }
        self.spelling_of(row_key, data)
    }

    fn spelling_of(&mut self, row_key: &[u8], data: &[u8]) -> Spelling {
        let of_row = |key| Spelling::of_row(key, row_key, data, &mut self.arena);
        self.key.as_ref().map_or(Spelling::Usual, of_row)
    }
}

impl Indexes {
    /// Whether entries that were read without the table belong to its indexes. A query may have
    /// made another index since then.
    pub fn fit(&self, row: &RowEntries) -> bool {
        row.index_count == self.hash.len() + self.ordered.len()
    }

    /// Notes the entries of a row that is restored.
    pub fn restore_row(&mut self, slot: u32, data_size: usize, entries: &[IndexEntry]) {
        if !self.is_empty() {
            self.keep(slot, data_size, entries);
        }
        entries.iter().for_each(|entry| self.restore(*entry, slot));
    }

    /// Notes an entry of a slot after all slots before. [`finish_restore`](Self::finish_restore)
    /// must follow.
    fn restore(&mut self, entry: IndexEntry, slot: u32) {
        match entry {
            IndexEntry::Hash(number, hash) => self.hash[number].slots.gather([hash, slot]),
            IndexEntry::Number(number, bits) => self.ordered_mut(number).numbers.gather(value_of(bits, slot)),
            IndexEntry::Text(number, prefix) => self.ordered_mut(number).texts.gather(value_of(prefix, slot)),
            IndexEntry::Irregular(number) => self.irregular_mut(number).gather(slot),
        }
    }

    /// Makes the sets of all entries of [`restore`](Self::restore).
    pub fn finish_restore(&mut self) {
        for index in &mut self.hash {
            index.slots.build();
            index.irregular.build();
        }
        for index in &mut self.ordered {
            index.numbers.build();
            index.texts.build();
            index.irregular.build();
        }
    }
}
