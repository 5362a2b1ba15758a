//! Views: last-value topics whose records the server computes from the changes of other last-value
//! topics (docs/views.md).
//!
//! A change of a topic with views is copied into one queue ([`Derived::add`]). A phase of the turn
//! takes the changes from it in their order ([`Tables::derive_next`]), and publishes the updates of
//! the views ([`Tables::next_update`]). An update changes the table of the view as a publish does.
//! So the views of a view get their changes in the same way.

use std::collections::VecDeque;
use std::sync::Arc;

use hashbrown::{HashMap, HashSet};
use quire_expression::message_type::{Arena, AssignError};
use quire_journal::{Headers, Position, Timestamp};
use quire_table::{GroupId, Groups, Key, Polled, PutOptions, Query, Row, RowChange, Written};
use rustc_hash::FxBuildHasher;

use super::change::Change;
use super::{TableState, Tables};
use crate::Event;
use crate::config::tables::TableDefinition;
use crate::context::Context;
use crate::subscription::UNRECORDED_BEGIN;
use crate::topic::TableId;

/// Rows of one portion while views are computed at a start.
const EFFORT: usize = 1024;

/// The views of one broker, each after its source.
#[derive(Default)]
pub(super) struct Derived {
    views: Vec<View>,
    /// The changes that the views have not seen, oldest first.
    waiting: VecDeque<(TableId, RowChange)>,
    waiting_size: usize,
    /// Their number, by topic.
    waiting_counts: Vec<u64>,
    /// The updates of views that are not published yet.
    updates: VecDeque<Update>,
}

/// One view.
struct View {
    table: TableId,
    source: TableId,
    groups: Groups,
    inline_conflation: bool,
    /// With conflation: the groups that changed, in the order of their first changes.
    touched: Vec<GroupId>,
    is_touched: HashSet<GroupId, FxBuildHasher>,
    /// Records that could not be written.
    unwritten_count: u64,
}

/// The new record of a group.
pub(crate) struct Update {
    pub table: TableId,
    pub topic: Arc<str>,
    pub key: Key,
    /// `None`: the group has no record any more.
    pub data: Option<Vec<u8>>,
    pub timestamp: Timestamp,
}

impl Derived {
    /// The views among the topics. Sets the views of each topic.
    pub fn new(all: &mut [TableState]) -> Self {
        let by_name: HashMap<_, _, FxBuildHasher> =
            all.iter().zip(0..).map(|(state, id)| (state.definition.name.clone(), TableId(id))).collect();
        let mut views = Vec::new();
        for (id, table) in (0..all.len()).zip((0..).map(TableId)) {
            let Some(view) = all[id].definition.view.clone() else { continue };
            // The configuration was checked.
            let Some(&source) = by_name.get(&view.source) else { continue };
            all[source.0 as usize].views.push(views.len());
            views.push(View {
                table,
                source,
                groups: Groups::new(view.groups.clone()),
                inline_conflation: view.inline_conflation,
                touched: Vec::new(),
                is_touched: HashSet::default(),
                unwritten_count: 0,
            });
        }
        Derived { views, waiting_counts: vec![0; all.len()], ..Derived::default() }
    }

    /// For a view: the changes of its source that it does not have yet.
    pub fn waiting_count(&self, id: TableId) -> Option<u64> {
        let view = self.views.iter().find(|view| view.table == id)?;
        self.waiting_counts.get(view.source.0 as usize).copied()
    }

    /// A topic with views has changed.
    #[cold]
    pub fn add(&mut self, source: TableId, change: &Change<'_>, at: Timestamp) {
        let copy = RowChange::new(change.old.as_ref(), change.new, at);
        self.waiting_size += copy.size();
        self.waiting_counts[source.0 as usize] += 1;
        self.waiting.push_back((source, copy));
    }
}

impl View {
    /// The update of a group.
    fn update(
        &mut self,
        definition: &TableDefinition,
        id: GroupId,
        at: Timestamp,
        arena: &mut Arena,
    ) -> (Update, Option<Event>) {
        let mut data = Vec::new();
        let (written, event) = match self.groups.write(id, &definition.name, arena, &mut data) {
            Ok(written) => (written, None),
            // The record of before would be wrong.
            Err(error) => (Written::Gone, self.unwritten(definition, &error)),
        };
        let (data, timestamp) = match written {
            Written::Record(changed) => (Some(data), changed),
            Written::Gone => (None, at),
        };
        let topic = definition.name.clone();
        (Update { table: self.table, topic, key: id.key(), data, timestamp }, event)
    }

    /// Counts a record that could not be written. The log gets the first one, the second, the
    /// fourth and so on, so that a view cannot fill it.
    fn unwritten(&mut self, definition: &TableDefinition, error: &AssignError) -> Option<Event> {
        self.unwritten_count += 1;
        self.unwritten_count.is_power_of_two().then(|| Event::ViewNotWritten {
            view: definition.name.to_string(),
            count: self.unwritten_count,
            reason: error.to_string(),
        })
    }
}

impl Tables {
    /// Whether the records of a table are computed.
    pub(crate) fn is_computed(&self, id: TableId) -> bool {
        self.all[id.0 as usize].definition.is_computed()
    }

    /// Whether changes wait for views.
    pub(crate) fn has_waiting_changes(&self) -> bool {
        !self.derived.waiting.is_empty()
    }

    /// The bytes of the changes that wait for views.
    pub(crate) fn waiting_changes_size(&self) -> usize {
        self.derived.waiting_size
    }

    /// Passes the oldest waiting change to the views of its topic. Then publish the updates.
    /// Returns whether there was one.
    pub(crate) fn derive_next(&mut self, cx: &mut Context) -> bool {
        let Tables { all, derived, arena, .. } = self;
        let Some((source, change)) = derived.waiting.pop_front() else { return false };
        derived.waiting_size -= change.size();
        derived.waiting_counts[source.0 as usize] -= 1;
        let (old, new) = (change.old(), change.new_row());
        for &number in &all[source.0 as usize].views {
            let view = &mut derived.views[number];
            let touched = view.groups.change(old.as_ref(), new.as_ref(), change.at, arena);
            if view.inline_conflation {
                let is_first = |id: &GroupId| view.is_touched.insert(*id);
                view.touched.extend(touched.into_iter().filter(is_first));
                continue;
            }
            let definition = &all[view.table.0 as usize].definition;
            for id in touched {
                let (update, event) = view.update(definition, id, change.at, arena);
                derived.updates.push_back(update);
                event.into_iter().for_each(|event| cx.note(event));
            }
        }
        true
    }

    /// Makes the updates of the views with conflation. Then publish them.
    pub(crate) fn derive_touched(&mut self, cx: &mut Context) {
        let Tables { all, derived, arena, .. } = self;
        let now = cx.clock.now.wall;
        for view in derived.views.iter_mut().filter(|view| !view.touched.is_empty()) {
            let definition = &all[view.table.0 as usize].definition;
            view.is_touched.clear();
            for id in std::mem::take(&mut view.touched) {
                let (update, event) = view.update(definition, id, now, arena);
                derived.updates.push_back(update);
                event.into_iter().for_each(|event| cx.note(event));
            }
        }
    }

    /// The next update to publish.
    pub(crate) fn next_update(&mut self) -> Option<Update> {
        self.derived.updates.pop_front()
    }

    /// Computes the records of a view from those of its source, at a start. Nothing is delivered.
    pub(super) fn compute_view(&mut self, cx: &mut Context, table: TableId) {
        let number = self.derived.views.iter().position(|view| view.table == table);
        let Some(number) = number else { return };
        let source = self.derived.views[number].source;
        self.add_all_rows(number, source);
        let ids: Vec<GroupId> = self.derived.views[number].groups.ids().collect();
        for id in ids {
            let Tables { all, derived, arena, .. } = self;
            let view = &mut derived.views[number];
            let definition = all[view.table.0 as usize].definition.clone();
            let (update, event) = view.update(&definition, id, Timestamp(0), arena);
            event.into_iter().for_each(|event| cx.note(event));
            self.restore_update(cx, &update);
        }
    }

    fn add_all_rows(&mut self, number: usize, source: TableId) {
        let Tables { all, derived, arena, .. } = self;
        let (table, groups) = (&mut all[source.0 as usize].table, &mut derived.views[number].groups);
        // Rows whose lifetime is over are removed later, which is a change. So they count now.
        let scan = table.open(Query { copies_size_max: usize::MAX, ..Query::default() }, Timestamp(0));
        let mut add = |row: &Row<'_>| {
            groups.change(None, Some(row), row.timestamp, arena);
            true
        };
        while table.poll(scan, EFFORT, &mut add) == Polled::More {}
        table.close(scan);
    }

    fn restore_update(&mut self, cx: &mut Context, update: &Update) {
        let Some(data) = &update.data else { return };
        let row = Row {
            key: &update.key,
            position: Position::ZERO,
            timestamp: update.timestamp,
            stamp: None,
            expires: None,
            correlation_id: b"",
            headers: Headers::NONE,
            data,
        };
        self.restore_row(cx, update.table, &row);
    }

    /// A record of a computed topic, at a start.
    pub(super) fn restore_row(&mut self, cx: &mut Context, table: TableId, row: &Row<'_>) {
        self.unrecorded_count += 1;
        let row = Row { position: Position::new(UNRECORDED_BEGIN + self.unrecorded_count), ..*row };
        let state = self.state(table);
        if let Err(error) = state.table.put_with(&row, PutOptions::default()) {
            cx.note(super::unkept(&state.definition, row.position, &error));
        }
    }
}
