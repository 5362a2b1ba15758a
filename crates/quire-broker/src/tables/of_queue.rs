//! The messages of a queue as the source of views (docs/views.md section 4).
//!
//! A queue that a view reads has a table here with its waiting and leased messages. The table is
//! not a topic: clients cannot name it, and the table of topics has it only as a source. The
//! service of the queues reports the messages that enter and leave, and the run loop passes them on
//! in the phase of the views. The key of a record is the bookmark of its message.
//!
//! A queue that a new definition of a view names gets its table when the definition is checked. The
//! groups are built when the table is complete. The table is removed with its last view.

use std::sync::Arc;

use quire_command::OofReason;
use quire_journal::{Bookmark, Position, Record};
use quire_table::{Moment, Row};

use super::{Keyed, NewRow, RowChange, TableState, Tables};
use crate::config::tables::{SourceQueue, TableDefinition};
use crate::context::Context;
use crate::topic::TableId;

/// The tables of queues.
pub(super) struct QueueTables {
    /// The tables that do not have all messages yet.
    incomplete: Vec<TableId>,
    /// Tables without views, until no change of them waits.
    unused: Vec<TableId>,
    /// Views may read other queues than before.
    is_changed: bool,
}

impl Default for QueueTables {
    fn default() -> Self {
        QueueTables { incomplete: Vec::new(), unused: Vec::new(), is_changed: true }
    }
}

/// The key of the record of a message.
fn key_of(position: Position, bookmark: Option<Bookmark>) -> String {
    match bookmark {
        Some(bookmark) => bookmark.to_string(),
        None => position.get().to_string(),
    }
}

impl Tables {
    /// A message waits in a queue.
    pub(crate) fn put_queued(
        &mut self,
        cx: &mut Context,
        id: TableId,
        bookmark: Option<Bookmark>,
        record: &Record<'_>,
    ) {
        let key = key_of(record.position, bookmark);
        let new = NewRow {
            key: key.as_bytes(),
            position: None,
            bookmark: None,
            timestamp: record.timestamp,
            change: None,
            may_be_older: false,
            received: record.received(),
            expiration_s: None,
            correlation_id: record.correlation_id,
            headers: record.headers(),
            data: record.data,
        };
        self.put(cx, Keyed::of(id), &new);
    }

    /// A message waits no longer in a queue, and is not leased.
    pub(crate) fn remove_queued(
        &mut self,
        cx: &mut Context,
        id: TableId,
        position: Position,
        bookmark: Option<Bookmark>,
    ) {
        let timestamp = cx.clock.now.wall;
        let at = Moment { position: cx.log.appended(), timestamp };
        let key = key_of(position, bookmark);
        if self.state(id).table.remove(key.as_bytes(), at) {
            let reason = OofReason::Deleted;
            self.changed(cx, id, RowChange { new: None, bookmark: None, reason, timestamp });
        }
    }

    /// A message of a queue at a start.
    pub(crate) fn restore_queued(
        &mut self,
        cx: &mut Context,
        id: TableId,
        bookmark: Option<Bookmark>,
        record: &Record<'_>,
    ) {
        let key = key_of(record.position, bookmark);
        let row = Row {
            key: key.as_bytes(),
            position: Position::ZERO,
            timestamp: record.timestamp,
            stamp: None,
            expires: None,
            correlation_id: record.correlation_id,
            headers: record.headers(),
            data: record.data,
        };
        self.restore_row(cx, id, &row);
    }

    /// A table has all messages of its queue.
    pub(crate) fn complete_queue(&mut self, cx: &mut Context, id: TableId) {
        self.queue_tables.incomplete.retain(|incomplete| *incomplete != id);
        cx.clock.wants_turn = true;
    }

    /// Whether the tables of queues among the sources of a view have all messages, apart from
    /// changes that follow.
    pub(super) fn has_complete_queues<'a>(
        &self,
        cx: &Context,
        sources: impl Iterator<Item = &'a Arc<str>>,
    ) -> bool {
        let mut tables = sources.filter_map(|name| cx.topics.of_queue(name));
        tables.all(|table| !self.queue_tables.incomplete.contains(&table))
    }

    /// Makes a table for a queue that a view is going to read, unless it has one.
    pub(super) fn add_queue_table(&mut self, cx: &mut Context, queue: &SourceQueue) {
        if cx.topics.of_queue(&queue.name).is_some() {
            return;
        }
        if queue.file_backed {
            self.memory.paged.open(&cx.log.journal);
        }
        let definition = TableDefinition::of_queue(queue);
        // The settings of the table are fixed, and are valid.
        let Ok(table) = definition.new_table(&self.memory) else { return };
        let id = self.place(TableState::new(definition, table, None, Position::ZERO));
        self.queue_tables.incomplete.push(id);
        cx.topics.set_of_queue(&queue.name, Some(id));
        cx.clock.wants_turn = true;
    }

    /// Between two new definitions: forgets the queues that no view reads any more, and names the
    /// views of the others.
    pub(super) fn look_at_queues(&mut self, cx: &mut Context) {
        if std::mem::take(&mut self.queue_tables.is_changed) {
            for (name, id) in cx.topics.of_queues() {
                let views = self.derived.views_of(&self.all, id);
                if views.is_empty() {
                    cx.topics.set_of_queue(&name, None);
                    self.queue_tables.unused.push(id);
                } else {
                    cx.topics.set_views_of_queue(&name, views);
                }
            }
        }
        if !self.queue_tables.unused.is_empty() {
            self.free_unused_queues();
        }
    }

    /// Views may read other queues than before.
    pub(super) fn note_sources_changed(&mut self) {
        self.queue_tables.is_changed = true;
    }

    /// Frees the tables without views of which no change waits. Another table can then get the
    /// place.
    fn free_unused_queues(&mut self) {
        let derived = &self.derived;
        let freed: Vec<TableId> =
            self.queue_tables.unused.extract_if(.., |id| !derived.has_changes_of(*id)).collect();
        freed.into_iter().for_each(|id| self.clear_place(id));
    }
}
