//! Queries, and the records of subscriptions. Both are scans of tables, in portions between other
//! work.

use std::collections::VecDeque;
use std::time::Duration;

use quire_command::{Ack, AckKind, Acks, Code, Message, MessageKind, Reply};
use quire_expression::message_type::Arena;
use quire_table::{PageId, Polled, Row, ScanId, Shown};

use super::aggregate::Groups;
use super::aggregated::Awaiting;
use super::follow::refusal_of;
use super::past_view::PastView;
use super::replace::{RowMessage, ViewDifference};
use super::turned_page::PageDifference;
use super::{TableDefinition, TableState, Tables};
use crate::codec::Encoder;
use crate::context::Context;
use crate::entitlement::TopicSelect;
use crate::replay::CHUNK_SIZE_MAX;
use crate::reply::Refused;
use crate::session::SessionId;
use crate::subscription::{Gate, ServedBy, SubscriptionId};
use crate::topic::TableId;

/// Records that one query examines before the turn of the next query.
pub(super) const EFFORT: usize = 256;

/// The longest time of scans in one turn. A publish waits for two scans: it arrives during the
/// first one, and its sync ends during the second one. A single scan loses little time, because a
/// turn without other work takes a few microseconds.
const SCANNING: Duration = Duration::from_micros(100);

/// Records that an index under construction reads at a time: about a tenth of a millisecond.
const BUILT_COUNT: usize = 128;

/// The longest time in one turn in which indexes under construction read records.
const BUILDING: Duration = Duration::from_micros(500);

/// The most concurrent queries of one connection. Each can hold copies of `max_query_copies` bytes.
pub(super) const QUERIES_PER_SESSION_MAX: usize = 16;

/// The scans in progress. The first scan has the next portion.
#[derive(Default)]
pub(super) struct Scanning(VecDeque<Scan>);

/// A query, or the records of a subscription.
pub(super) struct Scan {
    pub session: SessionId,
    pub command: u32,
    pub acks: Acks,
    /// The number that the records carry.
    pub number: u32,
    /// `None`: it is a query.
    pub subscription: Option<SubscriptionId>,
    /// A page that has not read the records yet.
    pub page: Option<(TableId, PageId)>,
    /// The remaining tables. The first one is in progress.
    pub parts: VecDeque<(TableId, ScanId)>,
    pub total: Total,
    pub select: Option<TopicSelect>,
    /// The groups of an aggregated query.
    pub groups: Option<Box<Groups>>,
    /// The view that is computed before the query begins.
    pub past: Option<Box<PastView>>,
    /// The tables of this view, which end with the query.
    pub temporary: Vec<TableId>,
    /// The computation whose records an aggregated subscription waits for.
    pub awaiting: Option<Box<Awaiting>>,
    pub encoder: Encoder,
    /// The difference between two views of a subscription.
    pub change: Option<Difference>,
    /// The scan that begins when this one is done, because the subscription was replaced meanwhile.
    pub next: Option<Box<Scan>>,
    /// The bytes of held messages of the subscription that are sent before this scan.
    pub lead_size: usize,
}

/// The messages that a scan sends instead of records, because a subscription was replaced.
pub(super) enum Difference {
    OfViews(Box<ViewDifference>),
    OfPages(Box<PageDifference>),
}

impl Difference {
    /// The page that ends with the scan.
    fn former_page(&self) -> Option<(TableId, PageId)> {
        match self {
            Difference::OfViews(_) => None,
            Difference::OfPages(difference) => difference.former(),
        }
    }

    fn is_leaving(&self) -> bool {
        matches!(self, Difference::OfViews(difference) if difference.is_leaving())
    }

    fn finish_part(&mut self) {
        match self {
            Difference::OfViews(difference) => difference.finish_part(),
            Difference::OfPages(difference) => difference.finish_part(),
        }
    }

    fn message_for(
        &mut self,
        table: TableId,
        definition: &TableDefinition,
        row: &Row<'_>,
        arena: &mut Arena,
    ) -> RowMessage {
        match self {
            Difference::OfViews(difference) => difference.message_for(table, definition, row, arena),
            Difference::OfPages(difference) => difference.message_for(definition, row, arena),
        }
    }
}

impl Scan {
    /// The number of scans that follow this one.
    pub fn chained_count(&self) -> usize {
        std::iter::successors(self.next.as_deref(), |scan| scan.next.as_deref()).count()
    }

    /// Another scan begins when this one and those after it are done. `held_size`: the bytes of the
    /// held messages.
    fn chain(&mut self, mut scan: Scan, held_size: usize) {
        let (mut end, mut before) = (&mut self.next, 0);
        while let Some(next) = end {
            before += next.lead_size;
            end = &mut next.next;
        }
        scan.lead_size = held_size - before;
        *end = Some(Box::new(scan));
    }
}

/// The number of records of a result, before `skip_n` and `top_n` count.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Total {
    matched: u64,
    /// The page has counted all records.
    is_final: bool,
}

/// The result of a portion.
pub(super) enum Step {
    More,
    Done,
    Failed(Refused),
}

impl Scanning {
    pub fn push(&mut self, scan: Scan) {
        self.0.push_back(scan);
    }

    /// The scan in progress of a subscription.
    pub fn of(&self, id: SubscriptionId) -> Option<&Scan> {
        self.0.iter().find(|scan| scan.subscription == Some(id))
    }

    /// As [`Scanning::push`], after the scan of the same subscription that is in progress.
    pub fn push_after(&mut self, scan: Scan, held_size: usize) {
        match self.0.iter_mut().find(|other| other.subscription == scan.subscription) {
            Some(first) => first.chain(scan, held_size),
            None => self.push(scan),
        }
    }

    pub fn count_of(&self, session: SessionId) -> usize {
        self.0.iter().filter(|scan| scan.session == session).count()
    }

    pub fn has(&self, session: SessionId, number: u32) -> bool {
        self.0.iter().any(|scan| scan.session == session && scan.number == number)
    }

    fn take(&mut self, is_meant: impl Fn(&Scan) -> bool) -> Vec<Scan> {
        let (taken, kept) = std::mem::take(&mut self.0).into_iter().partition(|scan| is_meant(scan));
        self.0 = kept;
        Vec::from_iter::<VecDeque<Scan>>(taken)
    }
}

impl Tables {
    /// Whether the session waits for records.
    pub(crate) fn may_resume(&self, id: SessionId) -> bool {
        !self.scanning.0.is_empty() && self.scanning.count_of(id) > 0
    }

    /// Whether a query of the session has this number.
    pub(crate) fn has_query(&self, id: SessionId, number: u32) -> bool {
        self.scanning.has(id, number)
    }

    /// Ends a query that the client cancels. Returns whether there is one.
    pub(crate) fn end_query(&mut self, id: SessionId, number: u32) -> bool {
        let is_meant =
            |scan: &Scan| scan.session == id && scan.number == number && scan.subscription.is_none();
        let taken = self.scanning.take(is_meant);
        let found = !taken.is_empty();
        self.close_scans(taken);
        found
    }

    /// Ends the scans of a subscription.
    pub(super) fn end_scans(&mut self, id: SubscriptionId) {
        let taken = self.scanning.take(|scan| scan.subscription == Some(id));
        self.close_scans(taken);
    }

    /// The session has ended.
    pub(crate) fn forget_session(&mut self, id: SessionId) {
        let taken = self.scanning.take(|scan| scan.session == id);
        self.close_scans(taken);
        self.forget_delete(id);
        self.finding.remove(&id);
    }

    /// A subscription no longer follows these topics.
    pub(super) fn unwatch(&mut self, id: SubscriptionId, tables: &[TableId], is_delta: bool) {
        for table in tables {
            let state = self.state(*table);
            state.watchers.retain(|watcher| *watcher != id);
            state.delta_count -= usize::from(is_delta);
            state.unfollow(id);
        }
    }

    /// Closes scans that are not continued, and the pages that wait for them.
    fn close_scans(&mut self, scans: Vec<Scan>) {
        for scan in scans {
            let mut chained = Some(Box::new(scan));
            while let Some(scan) = chained {
                for (table, number) in scan.parts {
                    self.state(table).table.close(number);
                }
                scan.past.into_iter().for_each(|past| self.close_past_view(*past));
                scan.temporary.iter().for_each(|table| self.clear_place(*table));
                let former = scan.change.as_ref().and_then(Difference::former_page);
                for (table, page) in scan.page.into_iter().chain(former) {
                    self.state(table).close_page(page);
                }
                chained = scan.next;
            }
        }
    }

    /// Continues with the scans whose connections accept more bytes, and with the indexes that they
    /// needed.
    pub(crate) fn serve(&mut self, cx: &mut Context) {
        self.serve_scans(cx);
        self.build_indexes(cx);
        if !self.discarded.is_empty() {
            let discarded = std::mem::take(&mut self.discarded);
            cx.begin_job(move |_| drop(discarded), |_: &mut Tables, _, _, _| ());
        }
    }

    /// A scan of a table is done: builds the index that it needs.
    pub(super) fn note_building(&mut self, cx: &mut Context, id: TableId) {
        if self.state(id).table.is_building_index() && !self.building.contains(&id) {
            self.building.push_back(id);
            cx.clock.wants_turn = true;
        }
    }

    /// Reads the next records into the indexes that are being built.
    fn build_indexes(&mut self, cx: &mut Context) {
        if self.building.is_empty() {
            return;
        }
        let deadline = cx.clock.slices.deadline(BUILDING);
        while let Some(id) = self.building.pop_front() {
            // A removed topic builds no index.
            if self.state(id).table.build_index(BUILT_COUNT) {
                self.building.push_back(id);
            }
            if deadline.is_none() || cx.clock.slices.is_past(deadline) {
                break;
            }
        }
        cx.clock.wants_turn |= !self.building.is_empty();
    }

    fn serve_scans(&mut self, cx: &mut Context) {
        if self.scanning.0.is_empty() {
            return;
        }
        let deadline = cx.clock.slices.deadline(SCANNING);
        let mut waiting_count = 0;
        while waiting_count < self.scanning.0.len()
            && let Some(mut scan) = self.scanning.0.pop_front()
        {
            if !cx.clients.sessions.all.get(scan.session).is_some_and(|session| session.has_room()) {
                self.scanning.0.push_back(scan);
                waiting_count += 1;
                continue;
            }
            waiting_count = 0;
            match self.step(cx, &mut scan) {
                Step::More => self.scanning.0.push_back(scan),
                Step::Done => {
                    finish(cx, &scan);
                    scan.temporary.drain(..).for_each(|table| self.clear_place(table));
                    self.scanning.0.extend(scan.next.map(|next| *next));
                }
                Step::Failed(refused) => {
                    fail(cx, &scan, &refused);
                    self.close_scans(vec![scan]);
                }
            }
            if cx.clock.slices.is_past(deadline) {
                cx.clock.wants_turn |= !self.scanning.0.is_empty();
                return;
            }
        }
    }

    /// One portion.
    fn step(&mut self, cx: &mut Context, scan: &mut Scan) -> Step {
        if scan.page.is_some() {
            return self.step_page(cx, scan);
        }
        if scan.awaiting.is_some() {
            return self.step_computation(cx, scan);
        }
        if scan.past.is_some() {
            return self.step_past_view(cx, scan);
        }
        if scan.groups.is_some() {
            return self.step_groups(cx, scan);
        }
        let Tables { all, arena, .. } = self;
        let Some(&(table, number)) = scan.parts.front() else { return Step::Done };
        let state = &mut all[table.0 as usize];
        let (definition, mut frames) = (&state.definition, Vec::new());
        let (mut selected, mut count) = (Vec::new(), 0);
        let select = scan.select.as_ref().and_then(|select| select.of_topic(&definition.name));
        let (mut change, mut is_too_costly) = (scan.change.as_mut(), false);
        let polled = state.table.poll(number, EFFORT, &mut |row| {
            let told = match &mut change {
                Some(change) => change.message_for(table, definition, row, arena),
                None => RowMessage::Message(MessageKind::Record, row.timestamp),
            };
            let RowMessage::Message(kind, timestamp) = told else {
                is_too_costly |= told == RowMessage::TooCostly;
                return !is_too_costly;
            };
            let data = match &select {
                Some(select) => select.apply(Some(definition.message_type), row.data, arena, &mut selected),
                None => row.data,
            };
            let message = Message {
                subscription: scan.number,
                bookmark: None,
                timestamp_ns: timestamp.as_ns(),
                queued: None,
                topic: definition.name.as_bytes(),
                correlation_id: row.correlation_id,
                headers: row.headers,
                key: row.key,
                kind,
                data,
            };
            scan.encoder.put_message(&message, &mut frames);
            count += 1;
            frames.len() < CHUNK_SIZE_MAX
        });
        if count > 0 {
            cx.clients.counters.delivered += count;
            cx.session(scan.session).outbox.note_messages(count);
            if let Some(id) = scan.subscription {
                cx.clients.subscriptions.note_sent(id, count, frames.len());
            }
            cx.session(scan.session).outbox.put_replayed(frames);
            cx.touch(scan.session);
        }
        let is_leaving = scan.change.as_ref().is_some_and(|change| change.is_leaving());
        let polled = if is_too_costly { Polled::TooMuchEffort } else { polled };
        match polled {
            Polled::More => return Step::More,
            Polled::Done { .. } if is_leaving => (),
            Polled::Done { matched } => scan.total.add(matched),
            Polled::TooManyCopies => {
                let reason = format!(
                    "max_query_copies: the query of {1:?} needs more than {0} bytes for sort keys, and for records that \
                     were replaced before it had sent them; use top_n or a filter, or read the records faster",
                    cx.config.limits.max_query_copies, definition.name
                );
                return Step::Failed(Refused::new(Code::LimitExceeded, reason));
            }
            Polled::TooMuchHistory => {
                let reason = format!(
                    "max_size of the history of {:?}: versions were dropped before the query had sent them; read the records \
                     faster, or raise the limit",
                    definition.name
                );
                return Step::Failed(Refused::new(Code::LimitExceeded, reason));
            }
            Polled::TooMuchEffort => {
                let reason = format!(
                    "the filter of the query of {:?} takes more than the limit of effort for one record; use fewer patterns",
                    definition.name
                );
                return Step::Failed(Refused::new(Code::LimitExceeded, reason));
            }
        }
        state.table.close(number);
        self.note_building(cx, table);
        scan.parts.pop_front();
        scan.change.iter_mut().for_each(|change| change.finish_part());
        if scan.parts.is_empty() { Step::Done } else { Step::More }
    }
}

impl Tables {
    /// A page reads the next records. Its result is valid for the instant at which it has read all
    /// of them.
    fn step_page(&mut self, cx: &mut Context, scan: &mut Scan) -> Step {
        let Some((id, page)) = scan.page else { return Step::More };
        let TableState { definition, table, .. } = &mut self.all[id.0 as usize];
        match table.poll_page(page, EFFORT, cx.clock.now.wall) {
            Polled::More => Step::More,
            Polled::Done { matched } => {
                let copies_size_max =
                    usize::try_from(cx.config.limits.max_query_copies).unwrap_or(usize::MAX);
                scan.total = Total { matched, is_final: true };
                scan.page = None;
                match scan.subscription.filter(|_| scan.change.is_some()) {
                    Some(subscription) => self.turn_page(cx, scan, subscription, (id, page)),
                    None => {
                        let shown = table.open_shown(page, Shown::All, copies_size_max);
                        scan.parts.push_back((id, shown));
                    }
                }
                Step::More
            }
            failure => Step::Failed(refusal_of(cx, definition, failure)),
        }
    }
}

impl Total {
    pub(super) fn add(&mut self, matched: u64) {
        if !self.is_final {
            self.matched += matched;
        }
    }
}

/// The last record was sent.
fn finish(cx: &mut Context, scan: &Scan) {
    if scan.acks.has(Acks::COMPLETED) {
        let detail = u32::try_from(scan.total.matched).unwrap_or(u32::MAX);
        let (command, subscription) = (scan.command, scan.number);
        let ack = Ack { kind: AckKind::Completed, code: Code::Ok, command, subscription, detail, reason: "" };
        cx.put(scan.session, &Reply::Ack(ack));
    }
    if let Some(subscription) = scan.subscription {
        // A page stays in effect while the page that replaces it reads the records.
        let next = scan.next.as_ref().filter(|next| next.page.is_none());
        release_held(cx, subscription, next.map(|next| next.lead_size));
        cx.clients.subscriptions.follow_log(subscription);
    }
}

fn fail(cx: &mut Context, scan: &Scan, refused: &Refused) {
    match scan.subscription {
        Some(subscription) => cx.end_subscription(subscription, refused.code, &refused.reason),
        None => cx.refuse_command(scan.session, scan.command, scan.number, refused),
    }
}

/// The messages that were held while the records were sent follow them. `size`: only the messages
/// in these first bytes, because the others follow another scan.
fn release_held(cx: &mut Context, id: SubscriptionId, size: Option<usize>) {
    let Some(mut held) = take_held(cx, id) else { return };
    if let Some(size) = size {
        hold_back(cx, id, held.split_off(size));
    }
    let Some(subscription) = cx.clients.subscriptions.get(id) else { return };
    let session = subscription.session;
    cx.session(session).outbox.put_frames(&held);
    cx.touch(session);
    cx.check_backlog(session);
}

/// Drops the held messages.
pub(super) fn drop_held(cx: &mut Context, id: SubscriptionId) {
    take_held(cx, id);
}

fn hold_back(cx: &mut Context, id: SubscriptionId, held: Vec<u8>) {
    let Some(subscription) = cx.clients.subscriptions.all.get_mut(id) else { return };
    let (session, size) = (subscription.session, held.len());
    subscription.delivery.gate = Gate::closed(held);
    cx.session(session).deferred_size += size;
}

fn take_held(cx: &mut Context, id: SubscriptionId) -> Option<Vec<u8>> {
    let subscription = cx.clients.subscriptions.all.get_mut(id)?;
    if !matches!(subscription.served_by, ServedBy::Sow | ServedBy::Table) {
        return None;
    }
    let held = subscription.delivery.gate.open()?;
    let session = subscription.session;
    cx.session(session).deferred_size -= held.len();
    cx.touch(session);
    Some(held)
}
