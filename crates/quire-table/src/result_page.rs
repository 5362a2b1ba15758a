//! Pages: a part of an ordered result that the table keeps up to date.
//!
//! A page has the sort key and the slot of every matching row, in three sets: the rows before the
//! shown part, the shown part, and the rows after it. A change of a row removes one entry and adds
//! one. At most one entry then moves over each border between two sets. So a change costs the
//! logarithm of the number of rows, and at most two other rows enter or leave the shown part.
//!
//! A page first reads all rows, in portions. If a row changes before the page has read it, the page
//! reads its new data later. So the result is the state at which the last row was read. From then
//! on, each change reports its [`Move`]s.

use std::collections::BTreeSet;

use hashbrown::HashSet;
use rustc_hash::FxBuildHasher;
use smallvec::SmallVec;

use crate::order::{Order, SortKey};
use crate::query::Polled;
use crate::row::Row;
use crate::scan::{Decision, Source, UNIT_EFFORT, decide, row_effort_max};
use crate::slots::{Slots, Taken};
use quire_expression::filter::Filter;
use quire_expression::message_type::Arena;
use quire_journal::Timestamp;

/// The rows of a page, and their order.
#[derive(Clone, Debug, Default)]
pub struct PageQuery {
    /// Only rows that it matches, as in a [`Query`](crate::Query).
    pub filter: Option<Filter>,
    /// Only rows with these keys.
    pub keys: Option<Vec<Box<[u8]>>>,
    /// The order of the result; without one, the order of the slots: a new row is last, or in the
    /// place of a removed row.
    pub order: Option<Order>,
    /// The number of rows before the shown ones.
    pub skip_n: usize,
    /// The number of shown rows.
    pub top_n: usize,
    /// The most bytes of sort keys that the page may hold. A page that needs more ends with
    /// [`Polled::TooManyCopies`].
    pub size_max: usize,
}

/// The key of an open page. It is never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageId(pub(crate) u64);

/// Which of the rows that a page shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shown {
    /// All of them.
    All,
    /// The rows that another page of the table does not show.
    Beyond(PageId),
    /// The rows that another page of the table shows, too.
    Common(PageId),
}

/// One row that entered or left the shown part of a page, or changed in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move<'a> {
    /// The page.
    pub page: PageId,
    /// The change of the page.
    pub kind: MoveKind,
    /// The row with its new data; the last one when it was removed.
    pub row: Row<'a>,
}

/// The change of a page. A change of a row reports its moves in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoveKind {
    /// The row is not shown any more, because it was removed from the table.
    Removed,
    /// The row is not shown any more.
    Left,
    /// The row is shown now.
    Entered,
    /// The row was shown and still is. It was replaced.
    Replaced,
}

/// A move before its row is looked up; `None`: the row that the change removed.
pub(crate) type SlotMove = (MoveKind, Option<u32>);

/// The moves of one change of one page.
pub(crate) type SlotMoves = SmallVec<[SlotMove; 4]>;

/// A row in the order.
type PageEntry = (SortKey, u32);

/// Bytes of an entry in a set, about.
const ENTRY_SIZE: usize = 56;

/// A sort key of up to this size is a part of its entry.
const INLINE_SIZE: usize = 24;

/// An open page.
#[derive(Debug)]
pub(crate) struct Page {
    filter: Option<Filter>,
    keys: Option<HashSet<Box<[u8]>, FxBuildHasher>>,
    order: Option<Order>,
    skip_n: usize,
    top_n: usize,
    /// The slots that the page has not read.
    ahead: Slots,
    /// It has read all slots, and has reported that.
    is_complete: bool,
    before: BTreeSet<PageEntry>,
    shown: BTreeSet<PageEntry>,
    after: BTreeSet<PageEntry>,
    size: usize,
    size_max: usize,
    /// The moves of the current change.
    moves: SlotMoves,
    failure: Option<Polled>,
}

/// A row that changes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Change<'a> {
    pub slot: u32,
    pub before: Option<Row<'a>>,
    pub after: Option<Row<'a>>,
}

impl Page {
    pub fn new(query: PageQuery, ahead: Slots) -> Self {
        Page {
            filter: query.filter,
            keys: query.keys.map(|keys| keys.into_iter().collect()),
            order: query.order,
            skip_n: query.skip_n,
            top_n: query.top_n,
            ahead,
            is_complete: false,
            before: BTreeSet::new(),
            shown: BTreeSet::new(),
            after: BTreeSet::new(),
            size: 0,
            size_max: query.size_max,
            moves: SlotMoves::new(),
            failure: None,
        }
    }

    pub fn order(&self) -> Option<&Order> {
        self.order.as_ref()
    }

    /// The slots of the shown rows, in ascending order.
    pub fn shown_slots(&self) -> Vec<u32> {
        let mut slots: Vec<u32> = self.shown.iter().map(|(_, slot)| *slot).collect();
        slots.sort_unstable();
        slots
    }

    /// Bytes of the sort keys.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Why the page has ended.
    pub fn failure(&self) -> Option<Polled> {
        self.failure
    }

    /// Reads the next rows.
    pub fn poll(&mut self, effort: usize, source: Source<'_>, now: Timestamp, arena: &mut Arena) -> Polled {
        let allowed = (effort as u64).saturating_mul(UNIT_EFFORT);
        let mut used = 0;
        loop {
            if let Some(failure) = self.failure {
                return failure;
            }
            let row = match self.ahead.take(source) {
                Taken::Slot(slot) => source.rows.row(slot).map(|row| (slot, row)),
                Taken::Nothing => None,
                Taken::End => {
                    self.is_complete = true;
                    return Polled::Done { matched: self.len() as u64 };
                }
            };
            used += UNIT_EFFORT;
            if let Some((slot, row)) = row.filter(|(_, row)| row.expires.is_none_or(|expires| expires > now))
            {
                used += self.look_at(slot, &row, row_effort_max(&row), source, now, arena);
                self.moves.clear();
            }
            if used >= allowed {
                return self.failure.unwrap_or(Polled::More);
            }
        }
    }

    /// A row of the table was put, replaced or removed. Subtracts the effort of the filter from
    /// `effort`, and ends the page when that is not enough. Returns the moves.
    pub fn change(
        &mut self,
        change: Change<'_>,
        effort: &mut u64,
        source: Source<'_>,
        now: Timestamp,
        arena: &mut Arena,
    ) -> SlotMoves {
        let Change { slot, before, after } = change;
        if self.failure.is_some() || self.ahead.defers(slot) {
            return SlotMoves::new();
        }
        let before = before.map(|row| (self.sort_key(&row, source, arena), slot));
        let was_shown = before.is_some_and(|entry| self.take(&entry));
        if let Some(row) = after {
            let used = self.look_at(slot, &row, *effort, source, now, arena);
            *effort = effort.saturating_sub(used);
        }
        self.balance();
        let mut moves = std::mem::take(&mut self.moves);
        if !self.is_complete || self.failure.is_some() {
            return SlotMoves::new();
        }
        if after.is_none() {
            let own = moves.iter_mut().find(|(_, moved)| *moved == Some(slot));
            own.into_iter().for_each(|own| *own = (MoveKind::Removed, None));
        } else if was_shown && !moves.iter().any(|(_, moved)| *moved == Some(slot)) {
            moves.push((MoveKind::Replaced, Some(slot)));
        }
        // Rows that leave are first.
        moves.sort_by_key(|(kind, _)| *kind as u8);
        moves
    }

    fn len(&self) -> usize {
        self.before.len() + self.shown.len() + self.after.len()
    }

    /// Adds a row to the order when it matches. Returns the effort of the filter, which may be up
    /// to `allowed`.
    fn look_at<'a>(
        &mut self,
        slot: u32,
        row: &Row<'a>,
        allowed: u64,
        source: Source<'a>,
        now: Timestamp,
        arena: &mut Arena,
    ) -> u64 {
        if self.keys.as_ref().is_some_and(|keys| !keys.contains(row.key)) {
            return 0;
        }
        let (decision, mut effort) = decide(self.filter.as_ref(), row, allowed, source, now, arena);
        match decision {
            Decision::Matches => (),
            Decision::Passed => return effort,
            Decision::TooMuchEffort => {
                self.fail(Polled::TooMuchEffort);
                return effort;
            }
        }
        if self.order.is_some() {
            effort += row.data.len() as u64;
        }
        let entry = (self.sort_key(row, source, arena), slot);
        self.size += size_of_entry(&entry);
        if self.size > self.size_max {
            self.fail(Polled::TooManyCopies);
            return effort;
        }
        if self.before.last().is_some_and(|last| entry < *last) {
            self.before.insert(entry);
        } else if self.after.first().is_some_and(|first| entry > *first) {
            self.after.insert(entry);
        } else {
            self.show(entry);
        }
        self.balance();
        effort
    }

    fn sort_key<'a>(&self, row: &Row<'a>, source: Source<'a>, arena: &mut Arena) -> SortKey {
        let order = self.order.as_ref();
        order.map_or_else(SortKey::new, |order| order.key_of(source.message_type, row.data, arena))
    }

    /// Removes an entry from the order. Returns whether its row was shown.
    fn take(&mut self, entry: &PageEntry) -> bool {
        let was_shown = self.shown.remove(entry);
        if was_shown {
            self.moves.push((MoveKind::Left, Some(entry.1)));
        }
        if was_shown || self.before.remove(entry) || self.after.remove(entry) {
            self.size -= size_of_entry(entry);
        }
        was_shown
    }

    /// Moves entries over the borders until each set has its number of rows.
    fn balance(&mut self) {
        while self.before.len() > self.skip_n
            && let Some(entry) = self.before.pop_last()
        {
            self.show(entry);
        }
        while self.before.len() < self.skip_n
            && let Some(entry) = self.hide_first().or_else(|| self.after.pop_first())
        {
            self.before.insert(entry);
        }
        while self.shown.len() > self.top_n
            && let Some(entry) = self.shown.pop_last()
        {
            self.moved(MoveKind::Left, entry.1);
            self.after.insert(entry);
        }
        while self.shown.len() < self.top_n
            && let Some(entry) = self.after.pop_first()
        {
            self.show(entry);
        }
    }

    fn show(&mut self, entry: PageEntry) {
        self.moved(MoveKind::Entered, entry.1);
        self.shown.insert(entry);
    }

    fn hide_first(&mut self) -> Option<PageEntry> {
        let entry = self.shown.pop_first()?;
        self.moved(MoveKind::Left, entry.1);
        Some(entry)
    }

    /// Notes a move. A row that leaves and enters in one change has not moved.
    fn moved(&mut self, kind: MoveKind, slot: u32) {
        match self.moves.iter().position(|(_, moved)| *moved == Some(slot)) {
            Some(index) => {
                self.moves.remove(index);
            }
            None => self.moves.push((kind, Some(slot))),
        }
    }

    /// Ends the page, and frees its memory.
    fn fail(&mut self, failure: Polled) {
        self.failure = self.failure.or(Some(failure));
        self.ahead = Slots::none();
        self.before.clear();
        self.shown.clear();
        self.after.clear();
        self.moves.clear();
        self.size = 0;
    }
}

fn size_of_entry((key, _): &PageEntry) -> usize {
    ENTRY_SIZE + if key.len() > INLINE_SIZE { key.len() } else { 0 }
}
