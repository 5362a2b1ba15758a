//! Views: last-value topics whose records the server computes from the changes of other last-value
//! topics (docs/views.md).
//!
//! A change of a topic with views is copied into a queue (`waiting.rs`). A phase of the turn takes
//! the changes from it in their order ([`Tables::derive_next`]), and publishes the updates of the
//! views ([`Tables::next_update`]). An update changes the table of the view as a publish does. So
//! the views of a view get their changes in the same way.
//!
//! A new definition of a view is built next to the old one, and then takes its place (`build.rs`).
//!
//! A change of a topic that is joined with others can touch many records. It is worked off in
//! portions (`joined.rs`), and the changes after it wait until it is done.

mod build;
mod figures;
mod joined;
mod waiting;

use std::collections::VecDeque;
use std::sync::Arc;

use hashbrown::{HashMap, HashSet};
use quire_expression::message_type::{Arena, AssignError};
use quire_journal::{Headers, Position, Timestamp};
use quire_table::{GroupId, GroupWalk, Key, Moment, Polled, PutOptions, Query, Row, RowChange, Written};
use rustc_hash::FxBuildHasher;

use super::change::Change;
use super::{TableState, Tables};
use crate::Event;
use crate::config::tables::TableDefinition;
use crate::context::Context;
use crate::subscription::UNRECORDED_BEGIN;
use crate::topic::TableId;
use build::Build;
pub(super) use build::Progress;
pub(super) use joined::Records;
use waiting::Waiting;

/// Rows of one portion while views are computed at a start.
const EFFORT: usize = 1024;

/// The views of one broker, each after its sources.
#[derive(Default)]
pub(super) struct Derived {
    views: Vec<View>,
    waiting: Waiting,
    /// The change that is being worked off.
    current: Option<Current>,
    /// The updates of views that are not published yet.
    updates: VecDeque<Update>,
    /// With conflation: groups have changed, and their updates are not made yet.
    has_touched: bool,
    /// The new definition of a view that is being built.
    build: Option<Box<Build>>,
}

/// A change on its way to the views of its topic.
struct Current {
    source: TableId,
    change: RowChange,
    /// As of [`Waiting::newest`].
    number: u64,
    /// The number of views that have it.
    view_count: usize,
}

/// One view.
struct View {
    table: TableId,
    /// In the order of the joins.
    sources: Vec<TableId>,
    records: Records,
    /// The records are those of its sources. At a start, they are first computed, or read from a
    /// snapshot.
    is_ready: bool,
    inline_conflation: bool,
    /// With conflation: the groups that changed, in the order of their first changes.
    touched: Vec<GroupId>,
    is_touched: HashSet<GroupId, FxBuildHasher>,
    /// Records that could not be written.
    unwritten_count: u64,
}

/// Where updates go, and the events about them.
struct Made<'a> {
    updates: &'a mut VecDeque<Update>,
    cx: &'a mut Context,
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
        let mut waiting = Waiting::new(all.len());
        for (id, table) in (0..all.len()).zip((0..).map(TableId)) {
            let Some(view) = all[id].definition.view.clone() else { continue };
            // The configuration was checked.
            let sources: Option<Vec<TableId>> =
                view.sources.iter().map(|source| by_name.get(source).copied()).collect();
            let Some(sources) = sources else { continue };
            let records = Records::new(&view.records);
            for source in &sources {
                all[source.0 as usize].views.push(views.len());
                waiting.follow(*source, &records);
            }
            views.push(View {
                table,
                sources,
                records,
                is_ready: false,
                inline_conflation: view.settings.inline_conflation,
                touched: Vec::new(),
                is_touched: HashSet::default(),
                unwritten_count: 0,
            });
        }
        let derived = Derived { views, waiting, ..Derived::default() };
        derived.find_files(all);
        derived
    }

    /// A view has a file when all of its sources have one.
    fn find_files(&self, all: &mut [TableState]) {
        // A new definition can read a view with a later place.
        loop {
            let mut is_changed = false;
            for view in &self.views {
                let has_file = view.sources.iter().all(|source| all[source.0 as usize].has_file);
                let before = std::mem::replace(&mut all[view.table.0 as usize].has_file, has_file);
                is_changed |= before != has_file;
            }
            if !is_changed {
                return;
            }
        }
    }

    fn view(&self, id: TableId) -> Option<&View> {
        self.views.iter().find(|view| view.table == id)
    }

    fn view_mut(&mut self, id: TableId) -> Option<&mut View> {
        self.views.iter_mut().find(|view| view.table == id)
    }

    /// The topics that a view reads. Other topics have none.
    pub fn sources_of(&self, id: TableId) -> &[TableId] {
        self.view(id).map_or(&[], |view| &view.sources)
    }

    /// The state of a view.
    pub fn records_of(&self, id: TableId) -> Option<&Records> {
        self.view(id).map(|view| &view.records)
    }

    /// The state of a view.
    pub fn records_mut(&mut self, id: TableId) -> Option<&mut Records> {
        self.view_mut(id).map(|view| &mut view.records)
    }

    /// A snapshot of the view was read.
    pub fn set_ready(&mut self, id: TableId) {
        self.view_mut(id).into_iter().for_each(|view| view.is_ready = true);
    }

    /// A part of a snapshot may have been read into the state of a view.
    pub fn clear(&mut self, all: &[TableState], id: TableId) {
        let definition = all[id.0 as usize].definition.view.as_ref();
        if let (Some(definition), Some(records)) = (definition, self.records_mut(id)) {
            *records = Records::new(&definition.records);
        }
    }

    /// The names of the views that read a topic.
    pub fn views_of(&self, all: &[TableState], source: TableId) -> Vec<Arc<str>> {
        let readers = self.views.iter().filter(|view| view.sources.contains(&source));
        readers.map(|view| all[view.table.0 as usize].definition.name.clone()).collect()
    }

    /// Whether changes of a topic wait, or one is being worked off.
    pub fn has_changes_of(&self, source: TableId) -> bool {
        self.waiting.has_changes_of(source)
            || self.current.as_ref().is_some_and(|current| current.source == source)
    }

    /// A topic with views has changed.
    #[cold]
    pub fn add(&mut self, source: TableId, change: &Change<'_>, at: Timestamp) {
        self.waiting.add(source, change, at);
    }
}

impl View {
    /// Takes a change of a topic without joins.
    fn take(
        &mut self,
        definition: &TableDefinition,
        change: &RowChange,
        arena: &mut Arena,
        made: &mut Made<'_>,
    ) {
        let Records::Groups(groups) = &mut self.records else { return };
        let (old, new) = (change.old(), change.new_row());
        let touched = groups.change(old.as_ref(), new.as_ref(), change.at, arena);
        if self.inline_conflation {
            let is_first = |id: &GroupId| self.is_touched.insert(*id);
            self.touched.extend(touched.into_iter().filter(is_first));
            return;
        }
        touched.into_iter().for_each(|id| self.make(definition, id, change.at, arena, made));
    }

    /// Makes the update of a group.
    fn make(
        &mut self,
        definition: &TableDefinition,
        id: GroupId,
        at: Timestamp,
        arena: &mut Arena,
        made: &mut Made<'_>,
    ) {
        let (update, event) = self.update(definition, id, at, arena);
        made.updates.push_back(update);
        event.into_iter().for_each(|event| made.cx.note(event));
    }

    /// The update of a group.
    fn update(
        &mut self,
        definition: &TableDefinition,
        id: GroupId,
        at: Timestamp,
        arena: &mut Arena,
    ) -> (Update, Option<Event>) {
        let mut data = Vec::new();
        let (written, event) = match self.records.write(id, &definition.name, arena, &mut data) {
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

    /// Whether changes wait for views, or changed groups for their updates.
    pub(crate) fn has_waiting_changes(&self) -> bool {
        let Derived { waiting, current, has_touched, .. } = &self.derived;
        current.is_some() || !waiting.is_empty() || *has_touched || self.derived.is_replacing()
    }

    /// The bytes of the changes that wait for views and aggregated subscriptions.
    pub(crate) fn waiting_changes_size(&self) -> usize {
        self.derived.waiting.size() + self.derived.followed_size() + self.pending_changes_size()
    }

    /// Passes the oldest waiting change to the views of its topic, or continues with it, and
    /// continues to build a new definition. Then publish the updates. Returns the weight of the
    /// work; `None`: there was none.
    pub(crate) fn derive_next(&mut self, cx: &mut Context) -> Option<usize> {
        if let Some(weight) = self.replace_next(cx) {
            return Some(weight);
        }
        let built = self.build_next(cx);
        let taken = self.take_next(cx);
        (built.is_some() || taken.is_some()).then(|| built.unwrap_or_default() + taken.unwrap_or_default())
    }

    fn take_next(&mut self, cx: &mut Context) -> Option<usize> {
        let Tables { all, derived, arena, .. } = self;
        let current = derived.current.take();
        let mut current = current.or_else(|| derived.waiting.pop())?;
        let Current { source, change, number: change_number, view_count } = &mut current;
        let mut weight = 1;
        let numbers = &all[source.0 as usize].views;
        while let Some(&number) = numbers.get(*view_count) {
            let Some(view) = derived.views.get_mut(number) else {
                derived.build.iter_mut().for_each(|build| build.take(*source, change, *change_number));
                *view_count += 1;
                continue;
            };
            if !view.is_ready {
                *view_count += 1;
                continue;
            }
            let definition = &all[view.table.0 as usize].definition;
            let made = &mut Made { updates: &mut derived.updates, cx };
            let is_done = match &view.records {
                Records::Groups(_) => {
                    view.take(definition, change, arena, made);
                    true
                }
                Records::Joins(_) => {
                    weight += joined::WEIGHT;
                    view.take_portion(definition, *source, change, arena, made)
                }
            };
            if !is_done {
                derived.current = Some(current);
                return Some(weight);
            }
            *view_count += 1;
        }
        Some(weight)
    }

    /// Makes the updates of the views with conflation. Then publish them.
    pub(crate) fn derive_touched(&mut self, cx: &mut Context) {
        let Tables { all, derived, arena, .. } = self;
        let now = cx.clock.now.wall;
        derived.has_touched = false;
        for view in derived.views.iter_mut().filter(|view| view.inline_conflation) {
            let definition = &all[view.table.0 as usize].definition;
            view.is_touched.clear();
            let mut touched = std::mem::take(&mut view.touched);
            touched.extend(view.records.take_touched());
            derived.has_touched |= view.records.has_touched();
            let made = &mut Made { updates: &mut derived.updates, cx };
            touched.into_iter().for_each(|id| view.make(definition, id, now, arena, made));
        }
    }

    /// The next update to publish.
    pub(crate) fn next_update(&mut self) -> Option<Update> {
        self.derived.updates.pop_front()
    }

    /// Whether a topic is a view.
    pub(super) fn is_view(&self, id: TableId) -> bool {
        self.all[id.0 as usize].definition.view.is_some()
    }

    /// Passes the change of a topic to the views that were read from snapshots, at a start.
    /// [`derive_all`](Self::derive_all) then computes them.
    pub(super) fn derive_restored(&mut self, id: TableId, new: Option<&Row<'_>>, at: Timestamp) {
        let Tables { all, derived, .. } = self;
        let state = &all[id.0 as usize];
        let is_ready = |number: &usize| derived.views.get(*number).is_some_and(|view| view.is_ready);
        if !state.views.iter().any(is_ready) {
            return;
        }
        let (topic, old) = (&*state.definition, state.table.previous());
        if new.is_some() || old.is_some() {
            derived.add(id, &Change { topic, old, new, watchers: &[] }, at);
        }
    }

    /// Computes the views for all waiting changes, at a start and at the end. Nothing is delivered.
    pub(super) fn derive_all(&mut self, cx: &mut Context) {
        while self.has_waiting_changes() {
            while self.derive_next(cx).is_some() {
                self.restore_updates(cx);
            }
            self.derive_touched(cx);
            self.restore_updates(cx);
        }
    }

    fn restore_updates(&mut self, cx: &mut Context) {
        while let Some(update) = self.next_update() {
            if update.data.is_some() {
                self.restore_update(cx, &update);
            } else if self.state(update.table).table.remove(&update.key, Moment::default()) {
                self.derive_restored(update.table, None, update.timestamp);
            }
        }
    }

    /// Computes the records of a view from those of its sources, at a start. Nothing is delivered.
    pub(super) fn compute_view(&mut self, cx: &mut Context, table: TableId) {
        let number = self.derived.views.iter().position(|view| view.table == table && !view.is_ready);
        let Some(number) = number else { return };
        self.add_all_rows(number);
        let mut walk = GroupWalk::default();
        while let Some(id) = walk.next(|part| self.derived.views[number].records.ids_of_part(part)) {
            let Tables { all, derived, arena, .. } = self;
            let view = &mut derived.views[number];
            let definition = all[view.table.0 as usize].definition.clone();
            let (update, event) = view.update(&definition, id, Timestamp(0), arena);
            event.into_iter().for_each(|event| cx.note(event));
            self.restore_update(cx, &update);
        }
        self.derived.views[number].is_ready = true;
    }

    fn add_all_rows(&mut self, number: usize) {
        let Tables { all, derived, arena, .. } = self;
        let View { sources, records, .. } = &mut derived.views[number];
        // The first topic of a join is the last one, so that each combination is added once.
        for (place, source) in sources.iter().enumerate().rev() {
            let table = &mut all[source.0 as usize].table;
            // Rows whose lifetime is over are removed later, which is a change. So they count now.
            let scan = table.open(Query { copies_size_max: usize::MAX, ..Query::default() }, Timestamp(0));
            let mut add = |row: &Row<'_>| {
                records.add(place, row, arena);
                true
            };
            while table.poll(scan, EFFORT, &mut add) == Polled::More {}
            table.close(scan);
        }
        records.clear_touched();
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
        let options = PutOptions { keeps_previous: state.reads_previous(), ..PutOptions::default() };
        match state.table.put_with(&row, options) {
            Ok(_) => self.derive_restored(table, Some(&row), row.timestamp),
            Err(error) => cx.note(super::unkept(&state.definition, row.position, &error)),
        }
    }
}
