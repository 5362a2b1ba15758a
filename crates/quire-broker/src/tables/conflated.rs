//! Conflated topics: copies of other last-value topics that change at most once per interval
//! (docs/conflated-topics.md).
//!
//! A change of a topic notes its key ([`Conflated::note`]). When the interval is over, a phase of
//! the turn copies the current records of these keys ([`Tables::copy_next`]). So the memory that is
//! needed does not depend on the number of changes. The copies are changes of the conflated topic,
//! which views and other conflated topics get as usual.
//!
//! The interval of a topic begins with the first change after the last pass. A pass copies the keys
//! that were noted before its begin, in the order of their first changes. The next interval begins
//! when the pass is done. So two copies of one key are at least an interval apart, also when a pass
//! takes several turns.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use hashbrown::HashMap;
use quire_command::OofReason;
use quire_expression::filter::Filter;
use quire_expression::message_type::Arena;
use quire_journal::Timestamp;
use quire_table::{Moment, Polled, Query, Row, RowChange as RowCopy};
use quire_types::time::Instant;
use rustc_hash::FxBuildHasher;

use super::change::RowChange;
use super::view::{VIEW_EFFORT_MAX, context_of_row};
use super::{Left, TableState, Tables};
use crate::config::tables::TableDefinition;
use crate::context::Context;
use crate::topic::TableId;

/// Rows of one portion while records are copied at a start.
const EFFORT: usize = 1024;

/// The conflated topics of one broker, each after its source.
#[derive(Default)]
pub(super) struct Conflated(Vec<ConflatedTopic>);

/// One conflated topic.
struct ConflatedTopic {
    table: TableId,
    source: TableId,
    interval: Duration,
    filter: Option<Filter>,
    /// The keys whose records have changed, in the order of their first changes.
    waiting: BTreeMap<u64, Waiting>,
    /// Their places in `waiting`.
    places: HashMap<Arc<[u8]>, u64, FxBuildHasher>,
    /// The next place. Places are never used again.
    next_place: u64,
    /// When the next pass begins; `None`: no change waits, or a pass is in progress.
    due: Option<Instant>,
    /// The end of the pass in progress.
    pass_end: Option<u64>,
}

/// A key whose record has changed.
struct Waiting {
    key: Arc<[u8]>,
    /// The reason of the last change, if the source has no such record.
    reason: OofReason,
}

/// A record to publish, or to remove.
pub(crate) enum Copied {
    Record {
        table: TableId,
        topic: Arc<str>,
        /// The row of the source.
        row: RowCopy,
    },
    Gone {
        table: TableId,
        key: Arc<[u8]>,
        reason: OofReason,
    },
}

impl Conflated {
    /// The conflated topics among the topics. Sets the copies of each topic.
    pub fn new(all: &mut [TableState]) -> Self {
        let by_name: HashMap<_, _, FxBuildHasher> =
            all.iter().zip(0..).map(|(state, id)| (state.definition.name.clone(), TableId(id))).collect();
        let mut topics = Vec::new();
        for (id, table) in (0..all.len()).zip((0..).map(TableId)) {
            let Some(conflated) = all[id].definition.conflated.clone() else { continue };
            // The configuration was checked.
            let Some(&source) = by_name.get(&conflated.source) else { continue };
            all[source.0 as usize].copies.push(topics.len());
            topics.push(ConflatedTopic {
                table,
                source,
                interval: conflated.interval,
                filter: conflated.filter.clone(),
                waiting: BTreeMap::new(),
                places: HashMap::default(),
                next_place: 0,
                due: None,
                pass_end: None,
            });
        }
        Conflated(topics)
    }

    /// A topic with copies has changed.
    #[cold]
    pub fn note(&mut self, now: Instant, all: &[TableState], source: TableId, change: &RowChange<'_>) {
        let state = &all[source.0 as usize];
        let previous = if change.new.is_none() { state.table.previous() } else { None };
        let Some(key) = change.new.map(|row| row.key).or(previous.as_ref().map(|row| row.key)) else {
            return;
        };
        for &number in &state.copies {
            let topic = &mut self.0[number];
            let is_copied = || all[topic.table.0 as usize].table.get(key).is_some();
            if change.new.is_none() && !is_copied() {
                topic.forget(key);
            } else {
                topic.note(now, key, change.reason);
            }
        }
    }

    /// For a conflated topic: the records of its source that it does not have yet.
    pub fn waiting_count(&self, id: TableId) -> Option<u64> {
        let topic = self.0.iter().find(|topic| topic.table == id)?;
        Some(topic.waiting.len() as u64)
    }

    /// When the next pass begins.
    pub fn next_due(&self) -> Option<Instant> {
        self.0.iter().filter_map(|topic| topic.due).min()
    }
}

impl ConflatedTopic {
    fn note(&mut self, now: Instant, key: &[u8], reason: OofReason) {
        if let Some(place) = self.places.get(key) {
            if let Some(waiting) = self.waiting.get_mut(place) {
                waiting.reason = reason;
            }
            return;
        }
        let key: Arc<[u8]> = key.into();
        self.places.insert(key.clone(), self.next_place);
        self.waiting.insert(self.next_place, Waiting { key, reason });
        self.next_place += 1;
        if self.pass_end.is_none() {
            self.due.get_or_insert(now + self.interval);
        }
    }

    /// The record was removed, and was never copied.
    fn forget(&mut self, key: &[u8]) {
        if let Some(place) = self.places.remove(key) {
            self.waiting.remove(&place);
        }
    }

    /// The next key of the pass in progress. A pass begins when it is due.
    fn next(&mut self, now: Instant) -> Option<Waiting> {
        if self.due.is_some_and(|due| due <= now) {
            self.due = None;
            self.pass_end = Some(self.next_place);
        }
        let end = self.pass_end?;
        let first = self.waiting.first_entry();
        let Some(next) = first.filter(|first| *first.key() < end) else {
            self.pass_end = None;
            self.due = (!self.waiting.is_empty()).then(|| now + self.interval);
            return None;
        };
        let waiting = next.remove();
        self.places.remove(&waiting.key);
        Some(waiting)
    }

    /// Whether the conflated topic has a record. The time is that of the record, as in views.
    fn includes(&self, source: &TableDefinition, row: &Row<'_>, arena: &mut Arena) -> bool {
        let Some(filter) = &self.filter else { return true };
        let context = context_of_row(&source.name, source.message_type, row, row.timestamp);
        arena.allow(VIEW_EFFORT_MAX);
        let decided = filter.decide(&context, arena);
        if decided.is_none() {
            context.report_costly(arena);
        }
        decided == Some(true)
    }
}

impl Tables {
    /// The next change of a conflated topic, if one is due. Then publish it.
    pub(crate) fn copy_next(&mut self, cx: &Context) -> Option<Copied> {
        let Tables { all, conflated, arena, .. } = self;
        let now = cx.clock.now.instant;
        for topic in &mut conflated.0 {
            while let Some(Waiting { key, reason }) = topic.next(now) {
                let TableState { definition, table, .. } = &all[topic.source.0 as usize];
                let row = table.get(&key).filter(|row| topic.includes(definition, row, arena));
                let own = &all[topic.table.0 as usize];
                let table = topic.table;
                if let Some(row) = row {
                    let row = RowCopy::new(None, Some(&row), row.timestamp);
                    return Some(Copied::Record { table, topic: own.definition.name.clone(), row });
                }
                if own.table.get(&key).is_some() {
                    // A record that does not match the filter any more is deleted here.
                    let reason = if reason == OofReason::Expired { reason } else { OofReason::Deleted };
                    return Some(Copied::Gone { table, key, reason });
                }
            }
        }
        None
    }

    /// Whether a pass is in progress or due.
    pub(crate) fn must_copy(&self, cx: &Context) -> bool {
        let is_due = |due: Instant| due <= cx.clock.now.instant;
        self.conflated.0.iter().any(|topic| topic.pass_end.is_some() || topic.due.is_some_and(is_due))
    }

    /// Removes the copy of a record, and returns the message for its subscriptions.
    pub(crate) fn remove_copy(
        &mut self,
        cx: &mut Context,
        id: TableId,
        key: &[u8],
        reason: OofReason,
    ) -> Option<Left<'_>> {
        let now = cx.clock.now.wall;
        let at = Moment { position: cx.log.appended(), timestamp: cx.log.stamp(now) };
        let state = self.state(id);
        if !state.table.remove(key, at) {
            return None;
        }
        match reason {
            OofReason::Expired => state.changes.expiries += 1,
            _ => state.changes.deletes += 1,
        }
        self.left(cx, id, reason, now)
    }

    /// Makes the records of views and conflated topics from those of their sources, at a start.
    /// Nothing is delivered.
    pub(crate) fn compute_all(&mut self, cx: &mut Context) {
        // Each topic has its place after its source.
        for table in (0..self.all.len() as u32).map(TableId) {
            self.compute_view(cx, table);
            self.copy_all(cx, table);
        }
    }

    fn copy_all(&mut self, cx: &mut Context, table: TableId) {
        let Some(number) = self.conflated.0.iter().position(|topic| topic.table == table) else { return };
        let source = self.conflated.0[number].source;
        let query = Query { copies_size_max: usize::MAX, ..Query::default() };
        let scan = self.state(source).table.open(query, Timestamp(0));
        loop {
            let Tables { all, conflated, arena, .. } = self;
            let (topic, TableState { definition, table: rows, .. }) =
                (&conflated.0[number], &mut all[source.0 as usize]);
            let mut copies = Vec::new();
            let polled = rows.poll(scan, EFFORT, &mut |row| {
                if topic.includes(definition, row, arena) {
                    copies.push(RowCopy::new(None, Some(row), row.timestamp));
                }
                true
            });
            for copy in &copies {
                let Some(row) = copy.new_row() else { continue };
                self.restore_row(cx, table, &Row { stamp: None, expires: None, ..row });
            }
            if polled != Polled::More {
                break;
            }
        }
        self.state(source).table.close(scan);
    }
}
