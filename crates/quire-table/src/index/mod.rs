//! Indexes of fields: they determine which slots a scan must read.
//!
//! An index never decides about a row. It returns slots that include all matching rows, and the
//! scan evaluates the whole filter for each. So results do not depend on indexes. A row with an
//! array in an indexed field, or with unreadable fields, is returned for every filter.
//!
//! - A hash index has the hash of the texts of its fields. Values that are not texts, and texts
//!   that are numbers or Booleans, are not in it, because they are never equal to the texts of a
//!   search ([`Filter::equalities`]).
//! - An ordered index has numbers as floats, and the first eight bytes of texts. A text that is a
//!   number is in it as both.

mod build;
mod bulk;
mod by_key;
mod choose;
mod sorted_set;
mod walk;

use std::collections::{HashMap, HashSet};

use rustc_hash::FxBuildHasher;
use smallvec::SmallVec;
use xxhash_rust::xxh3::xxh3_64;

use crate::error::TableConfigError;
use crate::fields::Fields;
use crate::order::ordered_bits;
use crate::table::TableConfig;
use quire_expression::filter::Filter;
use quire_expression::message_type::{Arena, MessageType, Number, Value};
use quire_journal::Memory;
use sorted_set::SortedSet;

use build::Building;
pub use build::MADE_INDEXES_MAX;
pub use bulk::{EntryReader, RowEntries};
pub(crate) use by_key::ByKey;
pub use by_key::Spelling;
pub(crate) use walk::Walk;
use walk::Which;

/// The most indexes of a table: every publish changes all of them.
pub const INDEXES_MAX: usize = 16;

/// Rows of this many bytes are large: their entries take little memory compared with them.
const KEPT_SIZE_MIN: usize = 64 * 1024;

/// Bytes of the list of a large row in addition to its entries, about.
const KEPT_OVERHEAD: usize = 32;

/// The indexes of a table.
#[derive(Debug)]
pub(crate) struct Indexes {
    /// The fields of all indexes, the hash indexes first, so that a row is read once.
    fields: Fields,
    hash: Vec<HashIndex>,
    ordered: Vec<OrderedIndex>,
    building: Option<Building>,
    /// The number of indexes that are not configured.
    made_count: usize,
    memory: Memory,
    /// The entries of large rows. Without them, the end of such a row would read it again, which
    /// takes long.
    kept: HashMap<u32, Box<[IndexEntry]>, FxBuildHasher>,
    /// The entries of a row before and after a change, kept between calls.
    before: Vec<IndexEntry>,
    after: Vec<IndexEntry>,
}

/// The values of the fields of one row. There are few.
type Values<'a> = SmallVec<[Value<'a>; 8]>;

#[derive(Debug)]
struct HashIndex {
    /// The number of its fields.
    width: usize,
    /// The hash of the texts, and the slot.
    slots: SortedSet<[u32; 2]>,
    irregular: SortedSet<u32>,
}

#[derive(Debug)]
struct OrderedIndex {
    /// The rank of a number in two halves, and the slot.
    numbers: SortedSet<[u32; 3]>,
    /// The first bytes of a text, and the slot.
    texts: SortedSet<[u32; 3]>,
    irregular: SortedSet<u32>,
}

/// The entry of one row in one index. All indexes are numbered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IndexEntry {
    Hash(usize, u32),
    Number(usize, u64),
    Text(usize, u64),
    Irregular(usize),
}

impl Indexes {
    /// The indexes of a table without rows.
    ///
    /// # Errors
    /// [`TableConfigError`] for texts that are not fields, for lists without fields, for fields
    /// that occur twice, and for too many indexes.
    pub fn new(config: &TableConfig, memory: &Memory) -> Result<Self, TableConfigError> {
        check(config)?;
        let names: Vec<String> =
            config.hash_indexes.iter().flatten().chain(&config.ordered_indexes).cloned().collect();
        let hash = config.hash_indexes.iter().map(|fields| HashIndex::new(fields.len(), memory));
        let ordered = config.ordered_indexes.iter().map(|_| OrderedIndex::new(memory));
        Ok(Indexes {
            fields: Fields::new("index", &names)?,
            hash: hash.collect(),
            ordered: ordered.collect(),
            building: None,
            made_count: 0,
            memory: memory.clone(),
            kept: HashMap::default(),
            before: Vec::new(),
            after: Vec::new(),
        })
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.hash.is_empty() && self.ordered.is_empty()
    }

    /// Reads the entries of the message that the next [`change`](Self::change) replaces. `None`:
    /// the slot has no row before it.
    pub fn read_before(&mut self, slot: Option<(u32, &[u8])>, message_type: MessageType, arena: &mut Arena) {
        let mut entries = std::mem::take(&mut self.before);
        entries.clear();
        match slot {
            Some((slot, data)) if data.len() >= KEPT_SIZE_MIN && self.kept.contains_key(&slot) => {
                entries.extend_from_slice(&self.kept[&slot]);
            }
            Some((_, data)) => self.read(message_type, data, arena, &mut entries),
            None => {}
        }
        self.before = entries;
    }

    /// Changes the entries of a slot from those of [`read_before`](Self::read_before) to those of a
    /// message. `None`: the slot has no row any more.
    pub fn change(&mut self, slot: u32, message_type: MessageType, after: Option<&[u8]>, arena: &mut Arena) {
        let mut entries = std::mem::take(&mut self.after);
        entries.clear();
        if let Some(data) = after {
            self.read(message_type, data, arena, &mut entries);
        }
        self.after = entries;
        self.move_slot(slot, after.map_or(0, <[u8]>::len));
    }

    /// As [`change`](Self::change), with the entries of a message of `data_size` bytes that were
    /// read without the table.
    pub fn change_to(&mut self, slot: u32, data_size: usize, row: &RowEntries) {
        self.after.clone_from(&row.entries);
        self.move_slot(slot, data_size);
    }

    /// Moves a slot from the entries `before` to the entries `after`.
    fn move_slot(&mut self, slot: u32, data_size: usize) {
        let (mut before, mut after) = (std::mem::take(&mut self.before), std::mem::take(&mut self.after));
        self.keep(slot, data_size, &after);
        if let Some(unread) = self.unread(slot) {
            before.retain(|entry| entry.number() != unread);
            after.retain(|entry| entry.number() != unread);
        }
        before.iter().filter(|entry| !after.contains(entry)).for_each(|entry| self.remove(*entry, slot));
        after.iter().filter(|entry| !before.contains(entry)).for_each(|entry| self.insert(*entry, slot));
        (self.before, self.after) = (before, after);
    }

    /// Keeps the entries of a slot when its row is large.
    fn keep(&mut self, slot: u32, data_size: usize, entries: &[IndexEntry]) {
        if data_size >= KEPT_SIZE_MIN {
            self.kept.insert(slot, entries.into());
        } else if !self.kept.is_empty() {
            self.kept.remove(&slot);
        }
    }

    /// A walk over slots that include all rows that match the filter, of the index with the fewest,
    /// and their number. `None` when no index fits the filter.
    pub fn walk(&self, filter: &Filter) -> Option<(Walk, usize)> {
        choose::best(self, filter)
    }

    fn irregular(&self, index: Which) -> &SortedSet<u32> {
        match index {
            Which::Hash(number) => &self.hash[number].irregular,
            Which::Ordered(number) => &self.ordered[number].irregular,
        }
    }

    /// The number of indexes that are not configured, with the one that is being built.
    pub fn made_count(&self) -> usize {
        self.made_count
    }

    /// Bytes of memory.
    pub fn memory_size(&self) -> usize {
        let hash = self.hash.iter().map(|index| index.slots.memory_size() + index.irregular.memory_size());
        let ordered = self.ordered.iter().map(|index| {
            index.numbers.memory_size() + index.texts.memory_size() + index.irregular.memory_size()
        });
        let kept = self.kept.values().map(|entries| size_of_val(&**entries) + KEPT_OVERHEAD);
        hash.sum::<usize>() + ordered.sum::<usize>() + kept.sum::<usize>()
    }

    /// The entries of a message.
    fn read(&self, message_type: MessageType, data: &[u8], arena: &mut Arena, entries: &mut Vec<IndexEntry>) {
        arena.reset();
        let Ok(values) = self.fields.read(message_type, data, arena) else {
            let count = self.hash.len() + self.ordered.len();
            entries.extend((0..count).map(IndexEntry::Irregular));
            return;
        };
        let values: Values<'_> = values.collect();
        put_entries(self.hash.iter().map(|index| index.width), &values, entries);
    }

    fn insert(&mut self, entry: IndexEntry, slot: u32) {
        match entry {
            IndexEntry::Hash(number, hash) => self.hash[number].slots.insert([hash, slot]),
            IndexEntry::Number(number, bits) => self.ordered_mut(number).numbers.insert(value_of(bits, slot)),
            IndexEntry::Text(number, prefix) => self.ordered_mut(number).texts.insert(value_of(prefix, slot)),
            IndexEntry::Irregular(number) => self.irregular_mut(number).insert(slot),
        }
    }

    fn remove(&mut self, entry: IndexEntry, slot: u32) {
        match entry {
            IndexEntry::Hash(number, hash) => self.hash[number].slots.remove([hash, slot]),
            IndexEntry::Number(number, bits) => self.ordered_mut(number).numbers.remove(value_of(bits, slot)),
            IndexEntry::Text(number, prefix) => self.ordered_mut(number).texts.remove(value_of(prefix, slot)),
            IndexEntry::Irregular(number) => self.irregular_mut(number).remove(slot),
        }
    }

    fn ordered_mut(&mut self, number: usize) -> &mut OrderedIndex {
        &mut self.ordered[number - self.hash.len()]
    }

    fn irregular_mut(&mut self, number: usize) -> &mut SortedSet<u32> {
        match number.checked_sub(self.hash.len()) {
            None => &mut self.hash[number].irregular,
            Some(number) => &mut self.ordered[number].irregular,
        }
    }
}

impl HashIndex {
    fn new(width: usize, memory: &Memory) -> Self {
        HashIndex { width, slots: SortedSet::new(memory), irregular: SortedSet::new(memory) }
    }
}

impl OrderedIndex {
    fn new(memory: &Memory) -> Self {
        OrderedIndex {
            numbers: SortedSet::new(memory),
            texts: SortedSet::new(memory),
            irregular: SortedSet::new(memory),
        }
    }
}

/// Adds the entries of a row whose indexed fields have these values. `widths`: the number of fields
/// of each hash index.
fn put_entries(
    widths: impl ExactSizeIterator<Item = usize>,
    values: &[Value<'_>],
    entries: &mut Vec<IndexEntry>,
) {
    let hash_count = widths.len();
    let mut rest = values;
    for (number, width) in widths.enumerate() {
        let (own, others) = rest.split_at(width);
        entries.extend(hash_entry(number, own));
        rest = others;
    }
    for (value, number) in rest.iter().zip(hash_count..) {
        put_ordered_entries(number, *value, entries);
    }
}

fn hash_entry(number: usize, values: &[Value<'_>]) -> Option<IndexEntry> {
    let is_never_found = |value: &Value<'_>| !matches!(value, Value::Text(_) | Value::Array(_));
    if values.iter().any(is_never_found) {
        return None;
    }
    if values.iter().any(|value| matches!(value, Value::Array(_))) {
        return Some(IndexEntry::Irregular(number));
    }
    let texts = values.iter().map(|value| match value {
        Value::Text(text) => *text,
        _ => &[],
    });
    Some(IndexEntry::Hash(number, hash_of_texts(texts)))
}

/// The hash of the texts of the fields of one index, each with its size.
fn hash_of_texts<'a>(texts: impl Iterator<Item = &'a [u8]>) -> u32 {
    let mut hashed: SmallVec<[u8; 256]> = SmallVec::new();
    for text in texts {
        hashed.extend_from_slice(&(text.len() as u64).to_le_bytes());
        hashed.extend_from_slice(text);
    }
    xxh3_64(&hashed) as u32
}

fn put_ordered_entries(number: usize, value: Value<'_>, entries: &mut Vec<IndexEntry>) {
    let bits_of = |value: Number| (!value.is_nan()).then(|| number_bits(value));
    match value {
        Value::Null | Value::Compound(_) => {}
        Value::Array(_) => entries.push(IndexEntry::Irregular(number)),
        Value::Number(value, _) => {
            entries.extend(bits_of(value).map(|bits| IndexEntry::Number(number, bits)))
        }
        Value::Boolean(value) => {
            entries.push(IndexEntry::Number(number, number_bits(Number::Integer(value.into()))))
        }
        Value::Text(text) => {
            let bits = Number::parse(text).and_then(bits_of);
            entries.extend(bits.map(|bits| IndexEntry::Number(number, bits)));
            entries.push(IndexEntry::Text(number, prefix_of(text)));
        }
    }
}

/// Bits with the order of the numbers, except integers that are equal as floats.
fn number_bits(number: Number) -> u64 {
    // Adding zero makes the negative zero the positive one.
    ordered_bits(number.as_f64() + 0.0)
}

/// The first bytes of a text as a number. A lesser text never has a greater number.
fn prefix_of(text: &[u8]) -> u64 {
    let mut prefix = [0; 8];
    let size = text.len().min(8);
    prefix[..size].copy_from_slice(&text[..size]);
    u64::from_be_bytes(prefix)
}

fn value_of(number: u64, slot: u32) -> [u32; 3] {
    [(number >> 32) as u32, number as u32, slot]
}

/// Checks the fields of the indexes of a table.
fn check(config: &TableConfig) -> Result<(), TableConfigError> {
    let count = config.hash_indexes.len() + config.ordered_indexes.len();
    if count > INDEXES_MAX {
        return Err(TableConfigError::TooManyIndexes { count });
    }
    if count > 0 && !config.message_type.has_fields() {
        return Err(TableConfigError::NoIndexes { message_type: config.message_type });
    }
    for fields in &config.hash_indexes {
        if fields.is_empty() {
            return Err(TableConfigError::EmptyList { list: "hash_index" });
        }
        check_different("hash_index", fields)?;
    }
    check_different("index", &config.ordered_indexes)
}

/// Checks that all names are fields, and different ones.
fn check_different(list: &'static str, names: &[String]) -> Result<(), TableConfigError> {
    let fields = Fields::new(list, names)?;
    let mut known = HashSet::with_hasher(FxBuildHasher);
    match fields.paths().iter().zip(names).find(|(path, _)| !known.insert(*path)) {
        Some((_, field)) => Err(TableConfigError::Twice { list, field: field.clone() }),
        None => Ok(()),
    }
}
