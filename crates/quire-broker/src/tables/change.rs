//! The changes of records, for the services that follow last-value topics.
//!
//! While the server runs, every change of a record passes [`Tables::changed`] once, after the table
//! was changed: a publish, a delete, and the end of a lifetime. A [`Change`] has the record before
//! it and after it. Services that follow the records of a topic receive the change there:
//! subscriptions with `oof` (`view.rs`), and pages and conflated subscriptions with `oof`
//! (`follow.rs`). Views (`derived.rs`) and aggregated subscriptions (`aggregated.rs`) get a copy,
//! and conflated topics note the key (`conflated.rs`). A start restores records without changes, so
//! such a service reads the tables first.

use quire_command::OofReason;
use quire_journal::Timestamp;
use quire_table::Row;

use super::{TableDefinition, Tables};
use crate::context::Context;
use crate::subscription::SubscriptionId;
use crate::topic::TableId;

/// A change of one record.
pub(super) struct Change<'a> {
    pub topic: &'a TableDefinition,
    /// The previous record; `None`: the key is new, or no service reads it
    /// ([`TableState::reads_previous`](super::TableState)).
    pub old: Option<Row<'a>>,
    /// The current record; `None`: it was deleted, or its lifetime ended.
    pub new: Option<&'a Row<'a>>,
    /// The subscriptions that receive `oof` messages of the topic.
    pub watchers: &'a [SubscriptionId],
}

/// A change, as the caller describes it.
#[derive(Clone, Copy)]
pub(super) struct RowChange<'a> {
    /// The record, when it was put.
    pub new: Option<&'a Row<'a>>,
    /// The publisher and the sequence of the message that was put, when the log records it.
    pub bookmark: Option<(u64, u64)>,
    /// The reason, when it was removed.
    pub reason: OofReason,
    pub timestamp: Timestamp,
}

impl Tables {
    /// A table has made this change.
    pub(super) fn changed(&mut self, cx: &mut Context, id: TableId, made: RowChange<'_>) {
        self.note_expiry(id);
        let Tables { all, arena, leaving, has_empty, views, derived, conflated, computations, .. } = self;
        let state = &all[id.0 as usize];
        *has_empty |= made.new.is_none() && state.table.is_empty();
        let change = Change {
            topic: &state.definition,
            old: state.table.previous(),
            new: made.new,
            watchers: &state.watchers,
        };
        change.find_leaving(cx, views, arena, leaving);
        if !state.views.is_empty() {
            derived.add(id, &change, made.timestamp);
        }
        if !state.computations.is_empty() {
            computations.add(&state.computations, &change, made.timestamp);
        }
        if !state.copies.is_empty() {
            conflated.note(cx.clock.now.instant, all, id, &made);
        }
        self.serve_followers(cx, id, made);
    }
}
