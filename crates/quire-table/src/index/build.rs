//! Indexes that queries need and that are not configured. An index is made in portions at the first
//! query that needs it, and used when it is complete.
//!
//! While an index is built, the rows of the slots before [`Building::next`] are in it, and changes
//! of these rows change it. The others are read later.

use super::walk::Which;
use super::{HashIndex, INDEXES_MAX, IndexEntry, Indexes, OrderedIndex};
use crate::fields::Fields;
use crate::rows::Rows;
use quire_expression::filter::{Filter, path_of};
use quire_expression::message_type::{Arena, MessageType};

/// The most indexes that a table makes for queries. A publish changes each of them.
pub const MADE_INDEXES_MAX: usize = 4;

/// Bytes for each row that an index of one field takes, about.
const ENTRY_SIZE_USUAL: usize = 24;

/// The index that is being built.
#[derive(Debug)]
pub(super) struct Building {
    pub index: Which,
    /// The first slot that was not read.
    pub next: u32,
}

impl Indexes {
    /// Whether an index is being built.
    pub fn is_building(&self) -> bool {
        self.building.is_some()
    }

    /// Begins to build an index for a filter that has none, if there is room for one more.
    /// `size_max`: the bytes that all such indexes may take.
    pub fn make_for(&mut self, filter: &Filter, rows: usize, size_max: usize) {
        let made = self.made_count + 1;
        let count = self.hash.len() + self.ordered.len() + 1;
        let has_room =
            made <= MADE_INDEXES_MAX && count <= INDEXES_MAX && made * ENTRY_SIZE_USUAL * rows <= size_max;
        if has_room
            && self.building.is_none()
            && let Some((field, is_text)) = self.missing(filter)
        {
            self.make(field, is_text);
        }
    }

    /// The first field that the filter compares and that no index has, and whether it is compared
    /// with texts only by equality.
    fn missing<'f>(&self, filter: &'f Filter) -> Option<(&'f str, bool)> {
        let paths = self.fields.paths();
        let (hashed, ordered) = paths.split_at(self.hash_width());
        let mut rest = hashed;
        let mut single = Vec::new();
        for index in &self.hash {
            let (own, others) = rest.split_at(index.width);
            single.extend(own.first().filter(|_| index.width == 1));
            rest = others;
        }
        let is_ordered = |field: &str| ordered.contains(&path_of(field));
        let is_hashed = |field: &str| single.contains(&&path_of(field));
        let equalities = filter.equalities();
        let texts = equalities.iter().find(|equality| {
            equality.plain_texts().is_some() && !is_hashed(equality.field) && !is_ordered(equality.field)
        });
        let ranges = filter.ranges();
        // An equality with a plain text is also a range. A hash index finds it.
        let is_text = |field: &str| {
            let mut own = equalities.iter().filter(|equality| equality.field == field);
            own.any(|equality| equality.plain_texts().is_some())
        };
        let range = ranges.iter().find(|range| !is_ordered(range.field) && !is_text(range.field));
        let texts = texts.map(|equality| (equality.field, true));
        texts.or(range.map(|range| (range.field, false)))
    }

    fn make(&mut self, field: &str, is_text: bool) {
        let (mut names, mut paths) =
            (self.fields.names().map(Box::from).collect::<Vec<_>>(), self.fields.paths().to_vec());
        let place = if is_text { self.hash_width() } else { paths.len() };
        names.insert(place, field.into());
        paths.insert(place, path_of(field));
        self.fields = Fields::of_paths(names.into(), paths);
        // They were read for the indexes before, and have no entry for the new one.
        self.kept.clear();
        let index = if is_text {
            self.hash.push(HashIndex::new(1, &self.memory));
            Which::Hash(self.hash.len() - 1)
        } else {
            self.ordered.push(OrderedIndex::new(&self.memory));
            Which::Ordered(self.ordered.len() - 1)
        };
        self.made_count += 1;
        self.building = Some(Building { index, next: 0 });
    }

    /// Reads the next rows into the index that is being built, at most `count`. Returns whether
    /// there are more.
    pub fn build(&mut self, rows: &Rows, message_type: MessageType, count: usize, arena: &mut Arena) -> bool {
        let Some(Building { index, next }) = self.building else { return false };
        let end = rows.end().min(next.saturating_add(count as u32));
        let number = self.number_of(index);
        let mut entries = std::mem::take(&mut self.after);
        for slot in next..end {
            if let Some(row) = rows.row(slot) {
                entries.clear();
                self.read(message_type, row.data, arena, &mut entries);
                entries.retain(|entry| entry.number() == number);
                entries.iter().for_each(|entry| self.insert(*entry, slot));
            }
        }
        self.after = entries;
        self.building = (end < rows.end()).then_some(Building { index, next: end });
        self.is_building()
    }

    /// The number of the index that is being built, when it has not read a slot yet.
    pub(super) fn unread(&self, slot: u32) -> Option<usize> {
        let Building { index, .. } = self.building.as_ref().filter(|building| slot >= building.next)?;
        Some(self.number_of(*index))
    }

    /// Whether an index has all rows.
    pub(super) fn is_whole(&self, index: Which) -> bool {
        self.building.as_ref().is_none_or(|building| building.index != index)
    }

    /// The number of fields of each hash index.
    fn hash_width(&self) -> usize {
        self.hash.iter().map(|index| index.width).sum()
    }

    fn number_of(&self, index: Which) -> usize {
        match index {
            Which::Hash(number) => number,
            Which::Ordered(number) => self.hash.len() + number,
        }
    }
}

impl IndexEntry {
    /// The number of its index.
    pub(super) fn number(self) -> usize {
        match self {
            IndexEntry::Hash(number, _)
            | IndexEntry::Number(number, _)
            | IndexEntry::Text(number, _)
            | IndexEntry::Irregular(number) => number,
        }
    }
}
