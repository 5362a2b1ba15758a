//! The replacement of a page by another page: the difference between the rows of the two pages.
//!
//! The page of a subscription stays in effect while the new page reads the records. The instant at
//! which the new page has read all of them is the instant of the difference. The former page then
//! ends, and the new one takes effect. Three scans find the records that leave, that are in both
//! pages, and that enter. Later messages wait until the difference was sent.

use std::collections::VecDeque;

use quire_command::{MessageKind, OofReason};
use quire_expression::message_type::Arena;
use quire_table::{PageId, Row, Shown};

use super::replace::{RowMessage, changes_part};
use super::scan::{Difference, Scan};
use super::{TableDefinition, Tables};
use crate::context::Context;
use crate::entitlement::TopicSelect;
use crate::subscription::{Gate, ServedBy, SubscriptionId};
use crate::topic::TableId;

/// The difference between two pages.
pub(super) struct PageDifference {
    /// The page that ends when the new one has read all records; `None`: it has ended.
    former: Option<(TableId, PageId)>,
    /// The select lists of the former page and of the new page.
    selects: (Option<TopicSelect>, Option<TopicSelect>),
    /// The remaining parts, one for each scan.
    sought: VecDeque<Sought>,
}

/// The records that a scan of the difference returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sought {
    Leaving,
    Common,
    Entering,
}

impl PageDifference {
    pub fn new(former: (TableId, PageId), selects: (Option<TopicSelect>, Option<TopicSelect>)) -> Self {
        PageDifference { former: Some(former), selects, sought: VecDeque::new() }
    }

    /// The page that must still be ended.
    pub fn former(&self) -> Option<(TableId, PageId)> {
        self.former
    }

    /// A scan is done.
    pub fn finish_part(&mut self) {
        self.sought.pop_front();
    }

    /// The message for the subscription about a row of the scan in progress.
    pub fn message_for(&self, definition: &TableDefinition, row: &Row<'_>, arena: &mut Arena) -> RowMessage {
        let kind = match self.sought.front() {
            Some(Sought::Leaving) => MessageKind::Oof(OofReason::Match),
            Some(Sought::Common) => {
                let (former, new) = &self.selects;
                if !changes_part(former.as_ref(), new.as_ref(), definition, row, arena) {
                    return RowMessage::Nothing;
                }
                MessageKind::Publish
            }
            Some(Sought::Entering) | None => MessageKind::Publish,
        };
        RowMessage::Message(kind, row.timestamp)
    }
}

impl Tables {
    /// The new page of a subscription has read all records. It replaces the former page.
    pub(super) fn turn_page(
        &mut self,
        cx: &mut Context,
        scan: &mut Scan,
        subscription: SubscriptionId,
        (table, page): (TableId, PageId),
    ) {
        let Some(Difference::OfPages(difference)) = &mut scan.change else { return };
        // The messages that are held for conflation belong to the former page.
        cx.deliver_all_conflated(subscription);
        let subscription = cx.subscription(subscription);
        if subscription.served_by != ServedBy::Table {
            return;
        }
        let Some((former_table, former)) = difference.former.take() else { return };
        let wants_oof = subscription.wanted.wants_oof();
        if subscription.delivery.gate.is_open() {
            subscription.delivery.gate = Gate::closed(Vec::new());
        }
        let copies_size_max = usize::try_from(cx.config.limits.max_query_copies).unwrap_or(usize::MAX);
        let (beyond_former, beyond_new) = if former_table == table {
            (Shown::Beyond(former), Shown::Beyond(page))
        } else {
            (Shown::All, Shown::All)
        };
        let mut scans = Vec::new();
        if wants_oof {
            scans.push((Sought::Leaving, former_table, former, beyond_new));
        }
        if former_table == table && (difference.selects.0.is_some() || difference.selects.1.is_some()) {
            scans.push((Sought::Common, table, page, Shown::Common(former)));
        }
        scans.push((Sought::Entering, table, page, beyond_former));
        for (sought, table, page, shown) in scans {
            difference.sought.push_back(sought);
            let opened = self.state(table).table.open_shown(page, shown, copies_size_max);
            scan.parts.push_back((table, opened));
        }
        self.state(former_table).close_page(former);
    }
}
