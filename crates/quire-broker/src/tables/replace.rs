//! The replacement of a subscription with records: the difference between its former view and its
//! new view.
//!
//! The instant of the difference is the command. Scans of the former view find the records that
//! leave, and scans of the new view find the records that enter. Every row of a scan is also
//! evaluated by the other view. Messages after the command wait until the difference was sent, as
//! for the records of a new subscription.
//!
//! A subscription may be replaced before all records of its first query, or of the last difference,
//! were sent. Then the new scans follow the scans in progress ([`Scan::next`]), and the messages
//! that were held until then.

use quire_command::{MessageKind, OofReason};
use quire_expression::filter::Filter;
use quire_expression::message_type::Arena;
use quire_journal::Timestamp;
use quire_table::{PageId, Row};

use super::scan::Difference;
use super::turned_page::PageDifference;
use super::view::{VIEW_EFFORT_MAX, context_of_row};
use super::{Scan, TableDefinition, Tables};
use crate::context::Context;
use crate::entitlement::TopicSelect;
use crate::subscription::{KeySet, SubscriptionId};
use crate::topic::TableId;

/// The most replacements of one subscription that wait for their turn. Each can hold copies of
/// `max_query_copies` bytes.
pub(crate) const PENDING_CHANGES_MAX: usize = 16;

/// The view that a subscription had before it was replaced.
pub(crate) struct FormerView {
    pub(super) view: View,
    /// The time of its records.
    pub(super) begun: Timestamp,
    /// The messages that wait for its records; `None`: it has all of its records.
    pub(super) held: Option<Vec<u8>>,
    /// The page of the view. It stays in effect until the new page has read the records.
    pub(super) page: Option<(TableId, PageId)>,
}

/// The records that a subscription has in view.
pub(super) struct View {
    pub tables: Vec<TableId>,
    pub keys: Option<KeySet>,
    pub filter: Option<Filter>,
    pub select: Option<TopicSelect>,
}

/// The difference between two views.
pub(super) struct ViewDifference {
    former: View,
    new: View,
    /// The instant of the difference.
    at: Timestamp,
    /// The number of remaining scans for records that leave. These scans are first.
    leaving_count: usize,
    /// The most records that enter that are sent.
    entering_max: u64,
}

/// The message for the subscription about a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RowMessage {
    Nothing,
    Message(MessageKind, Timestamp),
    /// A filter takes too much effort.
    TooCostly,
}

impl View {
    /// Whether a row is in view; `None`: the filter takes too much effort.
    fn has(
        &self,
        table: TableId,
        definition: &TableDefinition,
        row: &Row<'_>,
        at: Timestamp,
        arena: &mut Arena,
    ) -> Option<bool> {
        if !self.tables.contains(&table) || self.keys.as_ref().is_some_and(|keys| !keys.contains(row.key)) {
            return Some(false);
        }
        let Some(filter) = &self.filter else { return Some(true) };
        arena.allow(VIEW_EFFORT_MAX);
        let decided =
            filter.decide(&context_of_row(&definition.name, definition.message_type, row, at), arena);
        arena.allow(u64::MAX);
        decided
    }
}

impl ViewDifference {
    /// Whether the scan in progress searches for records that leave.
    pub fn is_leaving(&self) -> bool {
        self.leaving_count > 0
    }

    /// A scan is done.
    pub fn finish_part(&mut self) {
        self.leaving_count = self.leaving_count.saturating_sub(1);
    }

    /// The message for the subscription about a row of the scan in progress.
    pub fn message_for(
        &mut self,
        table: TableId,
        definition: &TableDefinition,
        row: &Row<'_>,
        arena: &mut Arena,
    ) -> RowMessage {
        if self.is_leaving() {
            return self.message_for_leaving(table, definition, row, arena);
        }
        if self.entering_max == 0 {
            return RowMessage::Nothing;
        }
        match self.former.has(table, definition, row, self.at, arena) {
            None => return RowMessage::TooCostly,
            Some(true) if !self.changes_part(definition, row, arena) => {
                return RowMessage::Nothing;
            }
            Some(_) => (),
        }
        self.entering_max -= 1;
        RowMessage::Message(MessageKind::Publish, row.timestamp)
    }

    fn message_for_leaving(
        &self,
        table: TableId,
        definition: &TableDefinition,
        row: &Row<'_>,
        arena: &mut Arena,
    ) -> RowMessage {
        // The former view still has the record, and no later message reports its expiration.
        if let Some(expires) = row.expires.filter(|expires| *expires <= self.at) {
            return RowMessage::Message(MessageKind::Oof(OofReason::Expired), expires);
        }
        match self.new.has(table, definition, row, self.at, arena) {
            None => RowMessage::TooCostly,
            Some(true) => RowMessage::Nothing,
            Some(false) => RowMessage::Message(MessageKind::Oof(OofReason::Match), row.timestamp),
        }
    }

    fn changes_part(&self, definition: &TableDefinition, row: &Row<'_>, arena: &mut Arena) -> bool {
        changes_part(self.former.select.as_ref(), self.new.select.as_ref(), definition, row, arena)
    }
}

/// Whether two select lists deliver different parts of a record.
pub(super) fn changes_part(
    former: Option<&TopicSelect>,
    new: Option<&TopicSelect>,
    definition: &TableDefinition,
    row: &Row<'_>,
    arena: &mut Arena,
) -> bool {
    if former.is_none() && new.is_none() {
        return false;
    }
    let message_type = definition.message_type;
    let mut part = |select: Option<&TopicSelect>| {
        let mut memory = Vec::new();
        match select.and_then(|select| select.of_topic(&definition.name)) {
            Some(select) => select.apply(Some(message_type), row.data, arena, &mut memory).to_vec(),
            None => row.data.to_vec(),
        }
    };
    part(former) != part(new)
}

impl Tables {
    /// The number of replacements of a subscription that wait for their turn.
    pub(crate) fn pending_change_count(&self, id: SubscriptionId) -> usize {
        self.scanning.of(id).map_or(0, Scan::chained_count)
    }

    /// Whether a subscription is a page.
    pub(crate) fn is_page(&self, id: SubscriptionId) -> bool {
        self.subscriptions.get(&id).is_some_and(|following| following.page.is_some())
    }

    /// Changes the scan of a new view into the scan of its difference to the former view.
    pub(super) fn compare(
        &mut self,
        cx: &Context,
        former: FormerView,
        new: View,
        wants_oof: bool,
        top_n: Option<u64>,
        scan: &mut Scan,
    ) {
        let FormerView { view: former, begun, page, .. } = former;
        if let Some(page) = page {
            let difference = PageDifference::new(page, (former.select, new.select));
            scan.change = Some(Difference::OfPages(Box::new(difference)));
            return;
        }
        let mut leaving_count = 0;
        if wants_oof {
            // The scan compares lifetimes with the begin of the former view, so that it includes
            // records whose lifetime has ended since then. When the clock was set back, the
            // lifetime of later records may end before that.
            let begun = begun.min(cx.clock.now.wall);
            for table in former.tables.iter().rev() {
                let query = quire_table::Query {
                    filter: former.filter.clone(),
                    keys: former.keys.as_ref().map(|keys| keys.iter().cloned().collect()),
                    copies_size_max: usize::try_from(cx.config.limits.max_query_copies).unwrap_or(usize::MAX),
                    ..quire_table::Query::default()
                };
                scan.parts.push_front((*table, self.state(*table).table.open(query, begun)));
                leaving_count += 1;
            }
        }
        let entering_max = top_n.unwrap_or(u64::MAX);
        let difference = ViewDifference { former, new, at: cx.clock.now.wall, leaving_count, entering_max };
        scan.change = Some(Difference::OfViews(Box::new(difference)));
    }
}
