//! Subscriptions that receive the changes of records from the tables, not from the publish stream
//! (docs/last-values.md, section 4).
//!
//! These subscriptions need their records before each change: pages, conflated subscriptions that
//! have `oof` or receive only the fields that differ, and aggregated subscriptions.

use quire_command::{Code, Message, MessageKind, OofReason, RecordHash};
use quire_expression::filter::MessageContext;
use quire_expression::message_type;
use quire_journal::Timestamp;
use quire_table::{MoveKind, PageId, Polled, Row};
use xxhash_rust::xxh3::xxh3_128;

use super::plan::RecordsPlan;
use super::view::{VIEW_EFFORT_MAX, context_of_row};
use super::{RowChange, TableState, Tables};
use crate::config::tables::TableDefinition;
use crate::context::Context;
use crate::reply::Refused;
use crate::subscription::{Delta, DeltaChange, SubscriptionId, ViewChange};
use crate::topic::TableId;

/// The subscriptions of one topic that receive their changes from the table.
#[derive(Default)]
pub(super) struct Followers {
    pages: Vec<(PageId, SubscriptionId)>,
    /// Conflated subscriptions with `oof` or with differences, and aggregated subscriptions.
    others: Vec<SubscriptionId>,
}

impl Followers {
    pub(super) fn is_empty(&self) -> bool {
        self.pages.is_empty() && self.others.is_empty()
    }

    pub(super) fn has_pages(&self) -> bool {
        !self.pages.is_empty()
    }

    pub(super) fn add(&mut self, id: SubscriptionId) {
        self.others.push(id);
    }
}

impl TableState {
    /// A subscription receives its changes from the table. A page first reads the records.
    pub(super) fn follow(&mut self, cx: &Context, id: SubscriptionId, plan: &RecordsPlan) -> Option<PageId> {
        let filter = cx.clients.subscriptions.all[id].wanted.filter.as_ref();
        let Some(query) = plan.page_query(filter, cx.config.limits.max_query_copies) else {
            self.followers.add(id);
            return None;
        };
        let page = self.table.open_page(query);
        self.followers.pages.push((page, id));
        Some(page)
    }

    pub(super) fn unfollow(&mut self, id: SubscriptionId) {
        let Followers { pages, others } = &mut self.followers;
        others.retain(|follower| *follower != id);
        for (page, _) in pages.extract_if(.., |(_, subscription)| *subscription == id) {
            self.table.close_page(page);
        }
    }

    /// Ends one page of a subscription.
    pub(super) fn close_page(&mut self, page: PageId) {
        self.followers.pages.retain(|(open, _)| *open != page);
        self.table.close_page(page);
    }
}

impl Tables {
    /// Serves the followers of a table after the last change.
    pub(super) fn serve_followers(&mut self, cx: &mut Context, id: TableId, change: RowChange<'_>) {
        let state = &self.all[id.0 as usize];
        if state.followers.is_empty() {
            return;
        }
        let Followers { pages, others } = &state.followers;
        cx.clock.slices.weigh(pages.len() + others.len());
        for moved in state.table.moves() {
            let Some((_, subscription)) = pages.iter().find(|(page, _)| *page == moved.page) else {
                continue;
            };
            let (kind, view_change) = match moved.kind {
                MoveKind::Removed => (MessageKind::Oof(change.reason), ViewChange::Left),
                MoveKind::Left => (MessageKind::Oof(OofReason::Match), ViewChange::Left),
                MoveKind::Entered => (MessageKind::Publish, ViewChange::Entered),
                MoveKind::Replaced => (MessageKind::Publish, ViewChange::Replaced),
            };
            let new = change.new.filter(|new| new.key == moved.row.key && kind == MessageKind::Publish);
            let timestamp = if kind == MessageKind::Publish { moved.row.timestamp } else { change.timestamp };
            let bookmark = new.and(change.bookmark);
            let told = Told { kind, change: view_change, bookmark, timestamp };
            deliver(cx, &state.definition, *subscription, &moved.row, told, None);
        }
        for (page, subscription) in pages {
            if let Some(failure) = state.table.page_failure(*page) {
                let refused = refusal_of(cx, &state.definition, failure);
                cx.end_subscription(*subscription, refused.code, &refused.reason);
            }
        }
        if !others.is_empty() {
            self.serve_others(cx, id, change);
        }
    }

    fn serve_others(&mut self, cx: &mut Context, id: TableId, change: RowChange<'_>) {
        let Tables { all, arena, views, .. } = self;
        let TableState { definition, table, followers, .. } = &all[id.0 as usize];
        let previous = table.previous();
        let current = change.new.and_then(|new| table.get(new.key));
        let Some(key) = current.or(previous).map(|row| row.key) else { return };
        let context = |row| context_of_row(&definition.name, definition.message_type, row, change.timestamp);
        let (before, after) = (previous.as_ref().map(context), change.new.map(context));
        arena.allow(VIEW_EFFORT_MAX);
        let mut shared = None;
        for follower in &followers.others {
            let Some(subscription) = cx.clients.subscriptions.get(*follower) else { continue };
            let Some(view) = views.get(*follower) else { continue };
            if !subscription.wanted.wants_key(key) {
                continue;
            }
            let filter = subscription.wanted.filter.as_ref();
            let mut decide = |context: &MessageContext<'_>| {
                filter.map_or(Some(true), |filter| filter.decide(context, arena))
            };
            let had = match (&before, &previous) {
                (Some(before), Some(row)) if view.had(row.position, row.expires) => decide(before),
                _ => Some(false),
            };
            let has = after.as_ref().map_or(Some(false), &mut decide);
            let (Some(had), Some(has)) = (had, has) else {
                cx.end_costly(*follower, current.or(previous).map_or(0, |row| row.data.len()));
                continue;
            };
            let (kind, view_change) = match (had, has, change.new) {
                (false, false, _) => continue,
                (true, true, _) => (MessageKind::Publish, ViewChange::Replaced),
                (false, true, _) => (MessageKind::Publish, ViewChange::Entered),
                (true, false, Some(_)) => (MessageKind::Oof(OofReason::Match), ViewChange::Left),
                (true, false, None) => (MessageKind::Oof(change.reason), ViewChange::Left),
            };
            let Some(row) = current.or(previous) else { continue };
            let told = Told {
                kind,
                change: view_change,
                bookmark: change.bookmark.filter(|_| has),
                timestamp: change.timestamp,
            };
            match (&view.delta, previous.as_ref().filter(|_| view_change == ViewChange::Replaced)) {
                (Some(delta), Some(old)) => {
                    let place = DeltaPlace { definition, table: id, delta };
                    deliver_delta(cx, &place, *follower, (old, &row), told, &mut shared);
                }
                _ => deliver(cx, definition, *follower, &row, told, None),
            }
        }
    }
}

/// The parts of a message about a record that are not in the record.
#[derive(Clone, Copy)]
struct Told {
    kind: MessageKind,
    change: ViewChange,
    bookmark: Option<(u64, u64)>,
    timestamp: Timestamp,
}

/// The topic of a change, and the options of a delta subscription to it.
struct DeltaPlace<'a> {
    definition: &'a TableDefinition,
    table: TableId,
    delta: &'a Delta,
}

/// Delivers the difference between two records to a delta subscription, or holds it. Subscriptions
/// without a select list share `shared`, the difference between the whole records.
fn deliver_delta(
    cx: &mut Context,
    place: &DeltaPlace<'_>,
    id: SubscriptionId,
    (old, new): (&Row<'_>, &Row<'_>),
    told: Told,
    shared: &mut Option<Step>,
) {
    let DeltaPlace { definition, delta, .. } = place;
    let message_type = definition.message_type;
    let own;
    let (mut old_part, mut new_part) = (Vec::new(), Vec::new());
    let (old_data, new_data, step) = match delta.select(place.table) {
        None => {
            let step = shared.get_or_insert_with(|| Step::of(definition, old.data, new.data, new.data));
            (old.data, new.data, &*step)
        }
        Some(with_key) => {
            let mut memory = Vec::new();
            let mut part = |data, out: &mut Vec<u8>| {
                let arena = &mut cx.messages.arena;
                out.extend_from_slice(with_key.apply(Some(message_type), data, arena, &mut memory));
            };
            part(old.data, &mut old_part);
            part(new.data, &mut new_part);
            let whole = cx.select(id, Some(message_type), &definition.name, new.data, &mut memory);
            own = Step::of(definition, &old_part, &new_part, whole);
            (&old_part[..], &new_part[..], &own)
        }
    };
    if step.difference.is_none() && delta.no_empties && old_data == new_data {
        return;
    }
    let is_conflated = cx.clients.subscriptions.get(id).is_some_and(|it| it.delivery.conflation.is_some());
    if let Some(difference) = step.difference.as_ref().filter(|_| !is_conflated) {
        if !delta.no_empties || step.differs {
            let told = Told { kind: MessageKind::Delta(step.hash), ..told };
            deliver(cx, definition, id, &Row { data: difference, ..*new }, told, None);
        }
        return;
    }
    let change = step.difference.as_ref().map(|difference| DeltaChange {
        message_type,
        key_fields: &definition.key_fields,
        no_empties: delta.no_empties,
        old: old_data,
        new: new_data,
        difference,
        hash: step.hash,
    });
    deliver(cx, definition, id, new, told, change.as_ref());
}

/// The difference between a record and the one that it replaced.
struct Step {
    /// `None`: the records have no difference.
    difference: Option<Vec<u8>>,
    differs: bool,
    hash: RecordHash,
}

impl Step {
    /// `whole`: the part of the new record that the client computes.
    fn of(definition: &TableDefinition, old: &[u8], new: &[u8], whole: &[u8]) -> Step {
        let message_type = definition.message_type;
        let mut out = Vec::new();
        let compare = |out| message_type::difference(message_type, old, new, &definition.key_fields, out);
        let compared = if message_type.has_fields() { compare(&mut out).ok() } else { None };
        Step {
            difference: compared.map(|_| out),
            differs: compared.unwrap_or(old != new),
            hash: RecordHash(xxh3_128(whole).to_le_bytes()),
        }
    }
}

/// Sends a subscription the message about a record.
fn deliver(
    cx: &mut Context,
    definition: &TableDefinition,
    id: SubscriptionId,
    row: &Row<'_>,
    told: Told,
    delta: Option<&DeltaChange<'_>>,
) {
    let Told { kind, change, bookmark, timestamp } = told;
    let message_type = definition.message_type;
    let context = context_of_row(&definition.name, message_type, row, timestamp);
    let mut memory = Vec::new();
    let data = cx.select(id, Some(message_type), &definition.name, row.data, &mut memory);
    let message = Message {
        subscription: 0,
        bookmark,
        timestamp_ns: timestamp.as_ns(),
        queued: None,
        topic: definition.name.as_bytes(),
        correlation_id: row.correlation_id,
        headers: row.headers,
        key: row.key,
        kind,
        data,
    };
    let message = cx.leaving(id, &context, message);
    cx.deliver_view_change(id, &context, &message, change, delta);
}

/// Why a page has ended.
pub(super) fn refusal_of(cx: &Context, definition: &TableDefinition, failure: Polled) -> Refused {
    let name = &definition.name;
    let reason = match failure {
        Polled::TooMuchEffort => format!(
            "the filter of the page of {name:?} takes more than the limit of effort for one record; use fewer patterns"
        ),
        _ => format!(
            "max_query_copies: the page of {name:?} needs more than {} bytes for the order of its records; use a filter, or \
             raise the limit",
            cx.config.limits.max_query_copies
        ),
    };
    Refused::new(Code::LimitExceeded, reason)
}
