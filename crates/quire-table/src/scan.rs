//! Scans: the rows of one instant, read in portions while the table changes.
//!
//! A scan reads the slots in their order. If a row changes before the scan has read it, it is first
//! evaluated, and copied into the scan when it belongs to the result. The scan recognizes slots
//! that changed after it was opened by their epoch, and skips them: their rows of the instant are
//! copies, or did not match.
//!
//! A scan of an earlier instant reads the versions of the history first, and then the rows. A row
//! that is replaced in between becomes a version that the scan does not read, but then the scan has
//! a copy of the row.
//!
//! A scan with an order first reads all slots, and collects the sort key and the slot of each row
//! of the result. With `top_n` it keeps only the first ones. Then it returns the rows in their
//! order. Rows that it keeps are also copied before they change.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use hashbrown::HashSet;
use rustc_hash::FxBuildHasher;

use crate::history::{AsOf, History};
use crate::index::Indexes;
use crate::order::{Order, SortKey};
use crate::query::{Polled, Query};
use crate::row::Row;
use crate::rows::Rows;
use crate::slots::{Slots, Taken};
use quire_expression::filter::{Filter, MessageContext};
use quire_expression::message_type::{Arena, MessageType};
use quire_journal::Timestamp;

/// Effort of a filter, in about a nanosecond, that counts as one unit of
/// [`Table::poll`](crate::Table::poll): the effort of a simple filter.
pub(crate) const UNIT_EFFORT: u64 = 1_000;

/// Effort that a filter may take for one row, in addition to [`BYTE_EFFORT`] for each byte of its
/// data: a few milliseconds. A query whose filter takes more is ended, because a table cannot
/// evaluate filters on another thread.
const ROW_EFFORT_MAX: u64 = 4_000_000;
const BYTE_EFFORT: u64 = 4;

/// Effort that the changes between two portions may take for one scan: about a millisecond. So
/// publishes stay fast while a costly filter runs. Further rows are copied, and evaluated in the
/// next portion.
const CHANGES_EFFORT_MAX: u64 = 1_000_000;

/// Bytes that are counted for a copy or a sort key in addition to its size.
const ENTRY_SIZE: usize = 64;

/// The rows of a table, and the facts about them that a filter may use.
#[derive(Clone, Copy)]
pub(crate) struct Source<'a> {
    pub rows: &'a Rows,
    pub history: Option<&'a History>,
    pub indexes: &'a Indexes,
    pub topic: &'a str,
    pub message_type: MessageType,
}

impl<'a> Source<'a> {
    fn context(self, row: &Row<'a>, now: Timestamp) -> MessageContext<'a> {
        MessageContext {
            message_type: self.message_type,
            data: row.data,
            topic: self.topic,
            key: Some(row.key),
            bookmark: None,
            correlation_id: row.correlation_id,
            headers: row.headers,
            timestamp: row.timestamp,
            now,
        }
    }
}

/// An open scan.
#[derive(Debug)]
pub(crate) struct Scan {
    filter: Option<Filter>,
    /// The earlier instant whose state is wanted.
    as_of: Option<AsOf>,
    /// With an earlier instant: only versions with these keys.
    keys: Option<HashSet<Box<[u8]>, FxBuildHasher>>,
    /// The numbers of the versions that were not read.
    versions: Range<u64>,
    /// The instant. Rows whose lifetime ended are not in the result.
    now: Timestamp,
    /// Slots with a later epoch changed after the instant.
    epoch: u32,
    ahead: Slots,
    sorting: Option<Sorting>,
    /// Rows of the result that changed, by their slots.
    copies: BTreeMap<u32, Box<[u8]>>,
    /// Rows that changed and were not evaluated.
    unchecked: BTreeMap<u32, Box<[u8]>>,
    /// Bytes of copies and sort keys, and of the bits of the slots that were read.
    held_size: usize,
    held_size_max: usize,
    /// The number of rows of the result that are still to be skipped, and to be returned.
    skip: u64,
    top: u64,
    matched: u64,
    /// Effort that changes took since the last portion.
    debt: u64,
    failure: Option<Polled>,
}

/// The rows of an ordered result that were found.
#[derive(Debug)]
struct Sorting {
    order: Order,
    /// Only this many are kept.
    limit: u64,
    found: BTreeSet<(SortKey, RowId)>,
    /// The slots among `found`.
    slots: BTreeSet<u32>,
}

/// The slot of a row, or the number of a version with [`VERSION`].
type RowId = u64;

/// The bit of a [`RowId`] that is a version. Versions are after rows with equal values.
const VERSION: RowId = 1 << 63;

/// The decision about a row that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// It is not in the result.
    Passed,
    /// It is in the result, and is returned later.
    Kept,
    /// It is the next row of the result.
    Next,
}

impl Scan {
    pub fn new(query: Query, now: Timestamp, epoch: u32, ahead: Slots, versions: Range<u64>) -> Self {
        let top = query.top_n.unwrap_or(u64::MAX);
        let held_size = ahead.size();
        let sorting = query.order.map(|order| Sorting {
            order,
            limit: top.saturating_add(query.skip_n),
            found: BTreeSet::new(),
            slots: BTreeSet::new(),
        });
        Scan {
            filter: query.filter,
            as_of: query.as_of,
            keys: query.keys.map(|keys| keys.into_iter().collect()),
            versions,
            now,
            epoch,
            ahead,
            sorting,
            copies: BTreeMap::new(),
            unchecked: BTreeMap::new(),
            held_size,
            held_size_max: query.copies_size_max,
            skip: query.skip_n,
            top,
            matched: 0,
            debt: 0,
            failure: None,
        }
    }

    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    pub fn set_epoch(&mut self, epoch: u32) {
        self.epoch = epoch;
    }

    /// The filter, when the scan reads all rows of the table for it.
    pub fn costly_filter(&self) -> Option<&Filter> {
        self.filter.as_ref().filter(|_| self.ahead.are_all())
    }

    /// The earlier instant whose versions the scan needs.
    pub fn as_of(&self) -> Option<AsOf> {
        self.as_of
    }

    /// Bytes of copies and sort keys, and of the bits of the slots that were read.
    pub fn held_size(&self) -> usize {
        self.held_size
    }

    /// Keeps the row of a slot that is about to change, if this scan still needs it.
    pub fn before_change(&mut self, slot: u32, source: Source<'_>, arena: &mut Arena) {
        if self.failure.is_some() || source.rows.epoch(slot) > self.epoch {
            return;
        }
        let Some(bytes) = source.rows.bytes(slot) else { return };
        if self.ahead.has(slot) {
            if self.debt > CHANGES_EFFORT_MAX {
                self.hold(bytes.len());
                self.unchecked.insert(slot, bytes.into());
            } else {
                let (fate, effort) = self.look_at(slot.into(), &Row::of(bytes), source, arena);
                self.debt += effort - UNIT_EFFORT;
                if fate != Fate::Passed {
                    self.copy(slot, bytes);
                }
            }
        } else if self.sorting.as_ref().is_some_and(|sorting| sorting.slots.contains(&slot)) {
            self.copy(slot, bytes);
        }
    }

    /// Passes the next rows of the result on, as [`Table::poll`](crate::Table::poll).
    pub fn poll(
        &mut self,
        effort: usize,
        source: Source<'_>,
        arena: &mut Arena,
        out: &mut dyn FnMut(&Row<'_>) -> bool,
    ) -> Polled {
        let allowed = (effort as u64).saturating_mul(UNIT_EFFORT);
        let mut used = std::mem::take(&mut self.debt);
        if let (Some(as_of), Some(history)) = (self.as_of, source.history)
            && history.has_lost(as_of)
        {
            self.fail(Polled::TooMuchHistory);
        }
        loop {
            if let Some(failure) = self.failure {
                return failure;
            }
            let Some(step) = self.step(source, arena, out) else {
                return Polled::Done { matched: self.matched };
            };
            used += step.effort;
            if step.is_full || used >= allowed {
                return self.failure.unwrap_or(Polled::More);
            }
        }
    }

    /// One row. `None` when there is none left.
    fn step(
        &mut self,
        source: Source<'_>,
        arena: &mut Arena,
        out: &mut dyn FnMut(&Row<'_>) -> bool,
    ) -> Option<Step> {
        if let Some((slot, bytes)) = self.unchecked.pop_first() {
            self.release(bytes.len());
            let row = Row::of(&bytes);
            let (fate, effort) = self.look_at(slot.into(), &row, source, arena);
            if fate == Fate::Kept {
                self.copy(slot, &bytes);
            }
            return Some(Step { effort, is_full: fate == Fate::Next && !out(&row) });
        }
        if self.sorting.is_none()
            && let Some((_, bytes)) = self.copies.pop_first()
        {
            self.release(bytes.len());
            return Some(Step { effort: UNIT_EFFORT, is_full: !out(&Row::of(&bytes)) });
        }
        if let Some(number) = self.versions.next() {
            let row =
                self.as_of.zip(source.history).and_then(|(as_of, history)| history.version_at(number, as_of));
            let row = row.filter(|row| self.keys.as_ref().is_none_or(|keys| keys.contains(row.key)));
            let Some(row) = row else { return Some(Step { effort: UNIT_EFFORT, is_full: false }) };
            let (fate, effort) = self.look_at(number | VERSION, &row, source, arena);
            return Some(Step { effort, is_full: fate == Fate::Next && !out(&row) });
        }
        let taken = self.ahead.take(source);
        if let Taken::Slot(slot) = taken {
            let is_of_the_instant = source.rows.epoch(slot) <= self.epoch;
            let row = source.rows.row(slot).filter(|_| is_of_the_instant);
            let Some(row) = row else { return Some(Step { effort: UNIT_EFFORT, is_full: false }) };
            let (fate, effort) = self.look_at(slot.into(), &row, source, arena);
            return Some(Step { effort, is_full: fate == Fate::Next && !out(&row) });
        }
        if taken == Taken::Nothing {
            return Some(Step { effort: UNIT_EFFORT, is_full: false });
        }
        let (key, id) = self.sorting.as_mut()?.take_first()?;
        self.release(key.len());
        let copy = slot_of(id).and_then(|slot| self.copies.remove(&slot));
        self.release_copy(copy.as_deref());
        if self.skip > 0 {
            self.skip -= 1;
            return Some(Step { effort: UNIT_EFFORT, is_full: false });
        }
        let bytes = copy.as_deref().or_else(|| match slot_of(id) {
            Some(slot) => source.rows.bytes(slot),
            None => Some(source.history?.version(id & !VERSION)?.1),
        });
        let is_full = bytes.is_some_and(|bytes| !out(&Row::of(bytes)));
        Some(Step { effort: UNIT_EFFORT, is_full })
    }

    /// Decides about a row of the instant. Returns the effort.
    fn look_at<'a>(
        &mut self,
        id: RowId,
        row: &Row<'a>,
        source: Source<'a>,
        arena: &mut Arena,
    ) -> (Fate, u64) {
        let has_row = match self.as_of {
            Some(as_of) => as_of.has(row),
            None => row.expires.is_none_or(|expires| expires > self.now),
        };
        if !has_row {
            return (Fate::Passed, UNIT_EFFORT);
        }
        let (decision, effort) =
            decide(self.filter.as_ref(), row, row_effort_max(row), source, self.now, arena);
        let mut effort = UNIT_EFFORT + effort;
        match decision {
            Decision::Matches => (),
            Decision::Passed => return (Fate::Passed, effort),
            Decision::TooMuchEffort => {
                self.fail(Polled::TooMuchEffort);
                return (Fate::Passed, effort);
            }
        }
        self.matched += 1;
        if self.sorting.is_some() {
            effort += row.data.len() as u64;
            return (self.sort(id, row, source.message_type, arena), effort);
        }
        if self.skip > 0 {
            self.skip -= 1;
            return (Fate::Passed, effort);
        }
        if self.top == 0 {
            return (Fate::Passed, effort);
        }
        self.top -= 1;
        (Fate::Next, effort)
    }

    /// Adds a row to the order, if it is among the first ones.
    fn sort(&mut self, id: RowId, row: &Row<'_>, message_type: MessageType, arena: &mut Arena) -> Fate {
        let Some(sorting) = &mut self.sorting else { return Fate::Passed };
        // The order of equal values is that of the slots.
        let entry = (sorting.order.key_of(message_type, row.data, arena), id);
        let is_full = sorting.found.len() as u64 >= sorting.limit;
        if is_full && sorting.found.last().is_none_or(|last| *last < entry) {
            return Fate::Passed;
        }
        let size = entry.0.len();
        sorting.slots.extend(slot_of(id));
        sorting.found.insert(entry);
        let dropped = if is_full { sorting.take_last() } else { None };
        self.hold(size);
        if let Some((key, id)) = dropped {
            self.release(key.len());
            let copy = slot_of(id).and_then(|slot| self.copies.remove(&slot));
            self.release_copy(copy.as_deref());
        }
        Fate::Kept
    }

    fn copy(&mut self, slot: u32, bytes: &[u8]) {
        self.hold(bytes.len());
        if self.failure.is_none() {
            self.copies.insert(slot, bytes.into());
        }
    }

    fn hold(&mut self, size: usize) {
        self.held_size += size + ENTRY_SIZE;
        if self.held_size > self.held_size_max {
            self.fail(Polled::TooManyCopies);
        }
    }

    fn release(&mut self, size: usize) {
        self.held_size = self.held_size.saturating_sub(size + ENTRY_SIZE);
    }

    fn release_copy(&mut self, copy: Option<&[u8]>) {
        if let Some(copy) = copy {
            self.release(copy.len());
        }
    }

    /// Ends the scan, and frees its memory.
    fn fail(&mut self, failure: Polled) {
        self.failure = self.failure.or(Some(failure));
        self.held_size = 0;
        self.copies.clear();
        self.unchecked.clear();
        self.ahead = Slots::none();
        self.versions = 0..0;
        if let Some(sorting) = &mut self.sorting {
            sorting.found.clear();
            sorting.slots.clear();
        }
    }
}

/// The decision of a filter about a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    Matches,
    Passed,
    /// The filter needs too much effort.
    TooMuchEffort,
}

/// The effort that a filter may take for a row.
pub(crate) fn row_effort_max(row: &Row<'_>) -> u64 {
    effort_max(row.data.len())
}

/// The effort that expressions may take for a message of this size.
pub(crate) fn effort_max(data_size: usize) -> u64 {
    ROW_EFFORT_MAX + BYTE_EFFORT * data_size as u64
}

/// Evaluates a filter for a row. Returns the effort with the decision.
pub(crate) fn decide<'a>(
    filter: Option<&Filter>,
    row: &Row<'a>,
    allowed: u64,
    source: Source<'a>,
    now: Timestamp,
    arena: &mut Arena,
) -> (Decision, u64) {
    let Some(filter) = filter else { return (Decision::Matches, 0) };
    arena.allow(allowed);
    let decision = match filter.decide(&source.context(row, now), arena) {
        Some(true) => Decision::Matches,
        Some(false) => Decision::Passed,
        None => Decision::TooMuchEffort,
    };
    (decision, allowed - arena.effort_left())
}

impl Sorting {
    fn take_first(&mut self) -> Option<(SortKey, RowId)> {
        let first = self.found.pop_first()?;
        self.forget(first.1);
        Some(first)
    }

    fn take_last(&mut self) -> Option<(SortKey, RowId)> {
        let last = self.found.pop_last()?;
        self.forget(last.1);
        Some(last)
    }

    fn forget(&mut self, id: RowId) {
        if let Some(slot) = slot_of(id) {
            self.slots.remove(&slot);
        }
    }
}

/// The slot of a row; `None`: it is a version.
fn slot_of(id: RowId) -> Option<u32> {
    u32::try_from(id).ok()
}

/// The cost of one row.
struct Step {
    effort: u64,
    /// The caller takes no more rows now.
    is_full: bool,
}
