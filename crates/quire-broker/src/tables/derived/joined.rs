//! The records of a view of one topic or of several, and changes in portions.

use quire_expression::message_type::{Arena, AssignError};
use quire_table::{GroupId, Groups, IndexFigures, Joins, Row, RowChange, SourceFigures, Written};

use super::{Made, View};
use crate::config::tables::TableDefinition;
use crate::config::views::ViewRecords;
use crate::topic::TableId;

/// The steps of a join of one portion. A step takes about a tenth of a microsecond, and a
/// combination about one.
const PORTION: u32 = 64;

/// The most records of one portion.
const RECORDS: usize = 16;

/// The weight of a portion: a change of a view of one topic has the weight 1.
pub(super) const WEIGHT: usize = 16;

/// With conflation: the most records of one turn.
const CONFLATED_PORTION: usize = 256;

/// The state that makes the records of a view.
pub(in crate::tables) enum Records {
    /// The records of one topic.
    Groups(Groups),
    /// Combinations of records of several topics.
    Joins(Box<Joined>),
}

/// A join, and how far it is with a change.
pub(in crate::tables) struct Joined {
    joins: Joins,
    has_begun: bool,
}

impl Records {
    pub fn new(definition: &ViewRecords) -> Self {
        match definition {
            ViewRecords::Groups(config) => Records::Groups(Groups::new(config.clone())),
            ViewRecords::Joins(config) => {
                let joins = Joins::new(config.clone());
                Records::Joins(Box::new(Joined { joins, has_begun: false }))
            }
        }
    }

    /// Adds a record of a source at a start.
    pub fn add(&mut self, place: usize, row: &Row<'_>, arena: &mut Arena) {
        match self {
            Records::Groups(groups) => drop(groups.change(None, Some(row), row.timestamp, arena)),
            Records::Joins(joined) => {
                joined.joins.begin(place, row.key, Some(row), row.timestamp, arena);
                while !joined.joins.step(&mut { u32::MAX }, arena) {}
            }
        }
    }

    /// The groups of one of the [`PARTS`](quire_table::PARTS) parts.
    pub fn ids_of_part(&self, part: usize) -> Vec<GroupId> {
        match self {
            Records::Groups(groups) => groups.ids_of_part(part).collect(),
            Records::Joins(joined) => joined.joins.ids_of_part(part).collect(),
        }
    }

    /// Whether there is a group whose record has this key, unless it cannot be written.
    pub fn has_record(&self, key: &[u8]) -> bool {
        GroupId::of_key(key).is_some_and(|id| match self {
            Records::Groups(groups) => groups.has_record(id),
            Records::Joins(joined) => joined.joins.has_record(id),
        })
    }

    /// Takes a change of a source, and makes no updates. Returns whether it is done. Until then,
    /// call it again with the same change.
    pub fn follow_portion(&mut self, place: usize, change: &RowChange, arena: &mut Arena) -> bool {
        let (old, new) = (change.old(), change.new_row());
        match self {
            Records::Groups(groups) => {
                groups.change(old.as_ref(), new.as_ref(), change.at, arena);
                true
            }
            Records::Joins(joined) => {
                if !joined.has_begun
                    && let Some(key) = new.or(old).map(|row| row.key)
                {
                    joined.joins.begin(place, key, new.as_ref(), change.at, arena);
                }
                joined.has_begun = !joined.joins.step(&mut { PORTION }, arena);
                !joined.has_begun
            }
        }
    }

    /// The weight of [`add_portion`](Self::add_portion).
    pub fn portion_weight(&self) -> usize {
        if matches!(self, Records::Joins(_)) { WEIGHT } else { 1 }
    }

    /// As [`add`](Self::add), in portions. Returns whether the record is added. Until then, call it
    /// again with the same record.
    pub fn add_portion(&mut self, place: usize, row: &Row<'_>, arena: &mut Arena) -> bool {
        let Records::Joins(joined) = self else {
            self.add(place, row, arena);
            return true;
        };
        if !joined.has_begun {
            joined.joins.begin(place, row.key, Some(row), row.timestamp, arena);
        }
        joined.has_begun = !joined.joins.step(&mut { PORTION }, arena);
        !joined.has_begun
    }

    pub fn write(
        &mut self,
        id: GroupId,
        topic: &str,
        arena: &mut Arena,
        out: &mut Vec<u8>,
    ) -> Result<Written, AssignError> {
        match self {
            Records::Groups(groups) => groups.write(id, topic, arena, out),
            Records::Joins(joined) => joined.joins.write(id, topic, arena, out),
        }
    }

    /// Whether a join has groups whose updates are not made yet.
    pub fn has_touched(&self) -> bool {
        matches!(self, Records::Joins(joined) if joined.joins.has_touched())
    }

    /// With conflation: the next groups of a join whose updates are to be made. While a change is
    /// worked off, the groups have only a part of it.
    pub fn take_touched(&mut self) -> Vec<GroupId> {
        match self {
            Records::Joins(joined) if !joined.joins.is_working() => {
                std::iter::from_fn(|| joined.joins.pop_touched()).take(CONFLATED_PORTION).collect()
            }
            _ => Vec::new(),
        }
    }

    /// All records are written now, or will be.
    pub fn clear_touched(&mut self) {
        if let Records::Joins(joined) = self {
            joined.joins.clear_touched();
        }
    }

    /// Begins a snapshot of this instant, at which no change is worked off.
    pub fn begin_saving(&mut self) {
        match self {
            Records::Groups(groups) => groups.begin_saving(),
            Records::Joins(joined) => joined.joins.begin_saving(),
        }
    }

    /// As [`Groups::save`].
    pub fn save(&mut self, effort: usize, out: &mut Vec<u8>) -> Option<u32> {
        match self {
            Records::Groups(groups) => groups.save(effort, out),
            Records::Joins(joined) => joined.joins.save(effort, out),
        }
    }

    /// The bytes that a snapshot holds.
    pub fn saving_size(&self) -> usize {
        match self {
            Records::Groups(groups) => groups.saving_size(),
            Records::Joins(joined) => joined.joins.saving_size(),
        }
    }

    /// Ends a snapshot before it is done.
    pub fn end_saving(&mut self) {
        match self {
            Records::Groups(groups) => groups.end_saving(),
            Records::Joins(joined) => joined.joins.end_saving(),
        }
    }

    /// As [`Groups::restore`].
    pub fn restore(&mut self, entries: &[u8]) -> Option<()> {
        match self {
            Records::Groups(groups) => groups.restore(entries),
            Records::Joins(joined) => joined.joins.restore(entries),
        }
    }

    /// The number of groups.
    pub fn group_count(&self) -> usize {
        match self {
            Records::Groups(groups) => groups.len(),
            Records::Joins(joined) => joined.joins.len(),
        }
    }

    /// The bytes of memory of the groups.
    pub fn groups_size(&self) -> usize {
        match self {
            Records::Groups(groups) => groups.memory_size(),
            Records::Joins(joined) => joined.joins.groups_size(),
        }
    }

    /// The bytes of memory of all of it.
    pub fn memory_size(&self) -> usize {
        let kept = match self {
            Records::Groups(_) => 0,
            Records::Joins(joined) => {
                let sources: usize = joined.source_figures().map(|source| source.memory_size).sum();
                sources + joined.index_figures().map(|(_, _, index)| index.memory_size).sum::<usize>()
            }
        };
        self.groups_size() + kept
    }

    /// The records, or the combinations of records, that are in the groups.
    pub fn combination_count(&self) -> u64 {
        match self {
            Records::Groups(groups) => groups.row_count(),
            Records::Joins(joined) => joined.joins.combination_count(),
        }
    }
}

impl Joined {
    /// What is kept of each topic.
    pub fn source_figures(&self) -> impl Iterator<Item = SourceFigures> {
        self.joins.source_figures()
    }

    /// What is kept of the keys of each join, after the places of its topics.
    pub fn index_figures(&self) -> impl Iterator<Item = (usize, usize, IndexFigures)> {
        self.joins.index_figures()
    }
}

impl View {
    /// Takes a change, or continues with it. First the groups take all of it, and then the updates
    /// are made, so that no record shows a part of the change. Returns whether the view is done
    /// with the change.
    pub(super) fn take_portion(
        &mut self,
        definition: &TableDefinition,
        source: TableId,
        change: &RowChange,
        arena: &mut Arena,
        made: &mut Made<'_>,
    ) -> bool {
        let Records::Joins(joined) = &mut self.records else { return true };
        if !joined.has_begun {
            let place = self.sources.iter().position(|it| *it == source).unwrap_or_default();
            let (old, new) = (change.old(), change.new_row());
            if let Some(key) = new.or(old).map(|row| row.key) {
                joined.joins.begin(place, key, new.as_ref(), change.at, arena);
            }
            joined.has_begun = true;
        }
        if !joined.joins.step(&mut { PORTION }, arena) {
            return false;
        }
        if !self.inline_conflation {
            let touched: Vec<GroupId> =
                std::iter::from_fn(|| joined.joins.pop_touched()).take(RECORDS).collect();
            let is_done = !joined.joins.has_touched();
            joined.has_begun = !is_done;
            touched.into_iter().for_each(|id| self.make(definition, id, change.at, arena, made));
            return is_done;
        }
        joined.has_begun = false;
        true
    }
}
