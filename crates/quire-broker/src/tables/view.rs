//! Records that leave the view of a subscription (docs/last-values.md, `oof`).

use std::sync::Arc;

use quire_command::{Message, MessageKind};
use quire_expression::filter::MessageContext;
use quire_expression::message_type::{Arena, MessageType};
use quire_journal::Timestamp;
use quire_table::Row;

use super::change::Change;
use super::{TableState, Tables};
use crate::context::Context;
use crate::replay::OwnedMessage;
use crate::subscription::{Replaced, SowViews, SubscriptionId};
use crate::topic::TableId;

/// Effort that the filters of the subscriptions of one topic may take for one record. A
/// subscription whose filter is not decided within it is ended. The effort takes a fraction of a
/// second, as for the subscriptions of a queue.
pub(super) const VIEW_EFFORT_MAX: u64 = 4_000_000;

/// A record that left the view of subscriptions.
pub(crate) struct Left<'a> {
    pub subscriptions: &'a [SubscriptionId],
    topic: Arc<str>,
    message_type: MessageType,
    kind: MessageKind,
    timestamp: Timestamp,
    row: Row<'a>,
}

impl Left<'_> {
    /// The input of filters from the record.
    pub(crate) fn context(&self) -> MessageContext<'_> {
        context_of_row(&self.topic, self.message_type, &self.row, self.timestamp)
    }

    /// The message for the subscriptions.
    pub(crate) fn message(&self) -> Message<'_> {
        Message {
            subscription: 0,
            bookmark: None,
            timestamp_ns: self.timestamp.as_ns(),
            queued: None,
            topic: self.topic.as_bytes(),
            correlation_id: self.row.correlation_id,
            headers: self.row.headers,
            key: self.row.key,
            kind: self.kind,
            data: self.row.data,
        }
    }
}

impl Change<'_> {
    /// Finds the subscriptions that had the old record in view, and do not have the new record in
    /// view.
    pub(super) fn find_leaving(
        &self,
        cx: &mut Context,
        views: &SowViews,
        arena: &mut Arena,
        leaving: &mut Vec<SubscriptionId>,
    ) {
        leaving.clear();
        let Change { topic, old: Some(old), new, watchers } = self else { return };
        if watchers.is_empty() {
            return;
        }
        let context = |row, now| context_of_row(&topic.name, topic.message_type, row, now);
        let before = context(old, cx.clock.now.wall);
        let after = new.as_ref().map(|row| context(row, row.timestamp));
        arena.allow(VIEW_EFFORT_MAX);
        for watcher in *watchers {
            let Some(subscription) = cx.clients.subscriptions.get(*watcher) else { continue };
            let Some(view) = views.get(*watcher) else { continue };
            if !subscription.wanted.wants_key(old.key) || !view.had(old.position, old.expires) {
                continue;
            }
            let decided = match (&subscription.wanted.filter, &after) {
                // Every message stays in view.
                (None, Some(_)) => Some(false),
                (None, None) => Some(true),
                (Some(filter), after) => match (filter.decide(&before, arena), after) {
                    (Some(true), Some(after)) => filter.decide(after, arena).map(|matches| !matches),
                    (decided, _) => decided,
                },
            };
            match decided {
                Some(true) => leaving.push(*watcher),
                Some(false) => (),
                None => cx.end_costly(*watcher, old.data.len()),
            }
        }
        cx.clock.slices.weigh(watchers.len());
    }
}

impl Tables {
    /// The subscriptions that have records in view, and receive messages from the publish stream or
    /// from a table.
    pub(crate) fn views(&self) -> &SowViews {
        &self.views
    }

    /// The subscriptions whose view the last record left.
    pub(crate) fn leaving(&self) -> &[SubscriptionId] {
        &self.leaving
    }

    /// The previous record of a table, for its delta subscriptions.
    pub(super) fn replaced(&self, id: TableId) -> Option<Replaced> {
        let TableState { definition, table, delta_count, .. } = &self.all[id.0 as usize];
        if *delta_count == 0 {
            return None;
        }
        let row = table.previous()?;
        let message = OwnedMessage {
            message_type: definition.message_type,
            topic: definition.name.clone(),
            bookmark: None,
            timestamp: row.timestamp,
            correlation_id: row.correlation_id.into(),
            headers: row.headers.into(),
            key: row.key.into(),
            kind: MessageKind::Publish,
            data: row.data.into(),
            is_queue: false,
        };
        let key_fields = definition.key_fields.clone();
        Some(Replaced { table: id, key_fields, position: row.position, expires: row.expires, message })
    }

    /// The message about the previous record of a table.
    pub(super) fn left_of_previous(
        &self,
        id: TableId,
        kind: MessageKind,
        timestamp: Timestamp,
    ) -> Option<Left<'_>> {
        let state = &self.all[id.0 as usize];
        Some(Left {
            subscriptions: &self.leaving,
            topic: state.definition.name.clone(),
            message_type: state.definition.message_type,
            kind,
            timestamp,
            row: state.table.previous()?,
        })
    }
}

pub(super) fn context_of_row<'a>(
    topic: &'a str,
    message_type: MessageType,
    row: &Row<'a>,
    now: Timestamp,
) -> MessageContext<'a> {
    MessageContext {
        message_type,
        data: row.data,
        topic,
        bookmark: None,
        correlation_id: row.correlation_id,
        headers: row.headers,
        key: Some(row.key),
        timestamp: row.timestamp,
        now,
    }
}
