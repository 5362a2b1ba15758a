//! Commands of connections about messages: acknowledge, cancel, expire, extend.

use std::sync::Arc;

use hashbrown::HashMap;
use quire_journal::{Bookmark, Position, PublisherId};
use rustc_hash::FxBuildHasher;

use super::QueueService;
use super::jobs::{find_all, matching};
use crate::context::Context;
use crate::entitlement::Grant;
use crate::reply::Refused;
use crate::session::{SessionId, Stall};
use quire_command::{Ack, AckKind, Acks, Bookmarks, Code, Extend, Reply, Selection, Settle};
use quire_expression::filter::Filter;
use quire_queue::{Change, ChangeKind, ConnectionId, Leasing, QueueId, Time, Verdict};

/// Bookmarks are swept when there are more than twice as many as messages outstanding, and this
/// many.
const SLACK: usize = 1024;

/// Messages that a settle by filter looks at in one piece of work, or settles in one turn without
/// looking.
const PIECE_COUNT_MAX: usize = 4096;

/// A settle that takes more than one step. Its connection's further commands wait.
pub(super) struct SettleJob {
    queue: QueueId,
    verdict: Verdict,
    reason: Option<Arc<str>>,
    command: u32,
    acks: Acks,
    /// Messages that it has settled.
    count: u64,
    /// The work under way.
    number: Option<u64>,
    /// Of a settle by filter: what is still to be looked at.
    sweep: Option<Sweep>,
}

impl SettleJob {
    pub fn queue(&self) -> QueueId {
        self.queue
    }
}

/// A walk through the active messages of a queue.
struct Sweep {
    filter: Option<Filter>,
    /// Done up to here.
    after: Position,
    /// Messages that enter later are not selected.
    end: Position,
    /// At-most-once messages whose places in a backlog are not freed yet.
    taken: Vec<Position>,
}

impl QueueService {
    pub(crate) fn settle(&mut self, cx: &mut Context, id: SessionId, settle: &Settle<'_>, grant: &Grant) {
        let Settle { command, acks, queue: name, messages, .. } = *settle;
        let Some(queue) = self.find(name) else { return cx.no_queue(id, command, name) };
        if command != 0 {
            cx.acknowledge_received(id, command, 0, acks);
        }
        cx.session(id).has_settled = true;
        match messages {
            Selection::Bookmarks(bookmarks) if grant.is_whole() => {
                self.settle_bookmarks(cx, id, queue, settle, bookmarks);
            }
            Selection::Bookmarks(bookmarks) => {
                self.settle_visible(cx, id, queue, settle, bookmarks, grant);
            }
            Selection::Matching(text) => self.begin_sweep(cx, id, queue, settle, text, grant),
        }
    }

    fn settle_bookmarks(
        &mut self,
        cx: &mut Context,
        id: SessionId,
        queue: QueueId,
        settle: &Settle<'_>,
        bookmarks: Bookmarks<'_>,
    ) {
        let Settle { verdict, command, acks, .. } = *settle;
        let (known, unknown) = self.split_known(queue, bookmarks);
        let reason = self.reason_to_keep(queue, settle);
        let count = self.settle_positions(cx, id, queue, verdict, reason.as_ref(), &known);
        let definition = self.definition(queue).clone();
        // Of a message without a holder, a strict queue takes no word, and giving it back means
        // nothing.
        let may_search = definition.config.leasing == Leasing::Sublease && !verdict.gives_back();
        if unknown.is_empty() || !may_search {
            return self.answer_settle(cx, id, command, acks, count);
        }
        let reader = cx.log.reader.clone();
        let number = Some(cx.begin_job(
            move |_| find_all(&reader, unknown, &definition),
            move |queues: &mut QueueService, cx, number, found| queues.settle_searched(cx, id, number, found),
        ));
        let job = SettleJob { queue, verdict, reason, command, acks, count, number, sweep: None };
        self.settling.insert(id, job);
        cx.stall(id, Stall::Settling);
    }

    /// Settles those of the messages that the grant leaves visible. A message that the connection
    /// holds was visible when it was delivered. The others are read first.
    fn settle_visible(
        &mut self,
        cx: &mut Context,
        id: SessionId,
        queue: QueueId,
        settle: &Settle<'_>,
        bookmarks: Bookmarks<'_>,
        grant: &Grant,
    ) {
        let Settle { verdict, command, acks, .. } = *settle;
        let filter = match cx.narrow(id, grant, None) {
            Ok(filter) => filter,
            Err(_) if command == 0 => return,
            Err(refused) => return cx.refuse_command(id, command, 0, &refused),
        };
        let (known, mut unknown) = self.split_known(queue, bookmarks);
        let (held, others): (Vec<_>, Vec<_>) =
            known.into_iter().partition(|position| self.holds(cx, id, queue, *position));
        let definition = self.definition(queue).clone();
        // As in `settle_bookmarks`.
        if definition.config.leasing != Leasing::Sublease || verdict.gives_back() {
            unknown.clear();
        }
        let reason = self.reason_to_keep(queue, settle);
        let count = self.settle_positions(cx, id, queue, verdict, reason.as_ref(), &held);
        if others.is_empty() && unknown.is_empty() {
            return self.answer_settle(cx, id, command, acks, count);
        }
        let (reader, now) = (cx.log.reader.clone(), cx.clock.now.wall);
        let number = Some(cx.begin_job(
            move |arena| {
                let found = find_all(&reader, unknown, &definition);
                let mut positions = others;
                positions.extend(found.iter().map(|(_, position)| *position));
                let visible = match &filter {
                    Some(filter) => matching(reader, positions, filter, now, arena),
                    None => positions,
                };
                let is_visible = |(_, position): &(Bookmark, Position)| visible.contains(position);
                let searched = found.into_iter().filter(is_visible).collect::<Vec<_>>();
                (visible, searched)
            },
            move |queues: &mut QueueService, cx, number, found: Option<(Vec<Position>, Vec<_>)>| {
                let (positions, searched) = found.unzip();
                queues.searched.extend(
                    searched.into_iter().flatten().map(|(bookmark, position)| ((queue, position), bookmark)),
                );
                queues.settle_found(cx, id, number, positions);
            },
        ));
        let job = SettleJob { queue, verdict, reason, command, acks, count, number, sweep: None };
        self.settling.insert(id, job);
        cx.stall(id, Stall::Settling);
    }

    /// Whether a message is delivered to a connection, and not settled.
    fn holds(&self, cx: &Context, id: SessionId, queue: QueueId, position: Position) -> bool {
        let holder = self.engine.holder(queue, position).and_then(|holder| self.subscriptions.get(&holder));
        let subscription = holder.and_then(|holder| cx.clients.subscriptions.get(*holder));
        subscription.is_some_and(|subscription| subscription.session == id)
    }

    fn begin_sweep(
        &mut self,
        cx: &mut Context,
        id: SessionId,
        queue: QueueId,
        settle: &Settle<'_>,
        text: &str,
        grant: &Grant,
    ) {
        let Settle { verdict, command, acks, .. } = *settle;
        let wanted = if text.is_empty() { Ok(None) } else { cx.parse_filter(id, text).map(Some) };
        let filter = match wanted.and_then(|wanted| cx.narrow(id, grant, wanted)) {
            Ok(filter) => filter,
            Err(_) if command == 0 => return,
            Err(refused) => return cx.refuse_command(id, command, 0, &refused),
        };
        let taken = self.engine.taken(queue);
        let end = self.engine.last_active(queue).unwrap_or_default();
        let sweep = Sweep { filter, after: Position::ZERO, end, taken };
        let (reason, sweep) = (self.reason_to_keep(queue, settle), Some(sweep));
        let job = SettleJob { queue, verdict, reason, command, acks, count: 0, number: None, sweep };
        self.settling.insert(id, job);
        cx.stall(id, Stall::Settling);
        cx.clock.wants_turn = true;
    }

    /// Takes every settle by filter one step on.
    pub(super) fn continue_settles(&mut self, cx: &mut Context) {
        let idle = self.settling.iter().filter(|(_, job)| job.number.is_none());
        for id in idle.map(|(id, _)| *id).collect::<Vec<_>>() {
            let Some(job) = self.settling.get_mut(&id) else { continue };
            let (queue, verdict, reason) = (job.queue, job.verdict, job.reason.clone());
            let Some(sweep) = &mut job.sweep else { continue };
            let mut positions = std::mem::take(&mut sweep.taken);
            let active = self.engine.active_after(queue, sweep.after, PIECE_COUNT_MAX);
            positions.extend(active.iter().copied().filter(|position| *position <= sweep.end));
            sweep.after = active.last().copied().unwrap_or(sweep.end).min(sweep.end);
            if active.is_empty() {
                sweep.after = sweep.end;
            }
            if positions.is_empty() {
                self.end_settle(cx, id, true);
                continue;
            }
            match sweep.filter.clone() {
                None => {
                    let count = self.settle_positions(cx, id, queue, verdict, reason.as_ref(), &positions);
                    if let Some(job) = self.settling.get_mut(&id) {
                        job.count += count;
                    }
                    cx.clock.wants_turn = true;
                }
                Some(filter) => {
                    let (reader, now) = (cx.log.reader.clone(), cx.clock.now.wall);
                    let number = cx.begin_job(
                        move |arena| matching(reader, positions, &filter, now, arena),
                        move |queues: &mut QueueService, cx, number, found| {
                            queues.settle_found(cx, id, number, found);
                        },
                    );
                    if let Some(job) = self.settling.get_mut(&id) {
                        job.number = Some(number);
                    }
                }
            }
        }
    }

    /// The positions of those bookmarks that are out, and the other bookmarks.
    fn split_known(&self, queue: QueueId, bookmarks: Bookmarks<'_>) -> (Vec<Position>, Vec<Bookmark>) {
        let outstanding = &self.outstanding[queue.get() as usize];
        let mut known = Vec::with_capacity(bookmarks.count());
        let mut unknown = Vec::new();
        for (publisher, sequence) in bookmarks.iter() {
            let bookmark = Bookmark { publisher: PublisherId::new(publisher), sequence };
            match outstanding.position(bookmark) {
                Some(position) => known.push(position),
                None => unknown.push(bookmark),
            }
        }
        (known, unknown)
    }

    /// The reason of a settle, if dead letters can show it.
    fn reason_to_keep(&self, queue: QueueId, settle: &Settle<'_>) -> Option<Arc<str>> {
        let is_shown = !settle.reason.is_empty() && self.definition(queue).dead_letter_topic.is_some();
        is_shown.then(|| settle.reason.into())
    }

    /// Gives the number of messages that were settled.
    fn settle_positions(
        &mut self,
        cx: &mut Context,
        id: SessionId,
        queue: QueueId,
        verdict: Verdict,
        reason: Option<&Arc<str>>,
        positions: &[Position],
    ) -> u64 {
        let now = self.time(cx.clock.now);
        let connection = ConnectionId::new(cx.session(id).connection.0);
        match reason {
            None => self.engine.settle(queue, connection, verdict, positions, now),
            Some(reason) => positions
                .iter()
                .map(|position| self.settle_because(queue, connection, verdict, reason, *position, now))
                .sum(),
        }
    }

    /// Forgets bookmarks of a queue whose changes are logged.
    pub(super) fn sweep_outstanding(&mut self, cx: &Context, queue: QueueId) {
        let now = self.time(cx.clock.now);
        let engine = &self.engine;
        let outstanding = &mut self.outstanding[queue.get() as usize];
        let held = engine.stats(queue, now).map_or(0, |stats| stats.backlog as usize);
        outstanding.sweep(held, |position| engine.holder(queue, position).is_some());
    }

    /// Settles one message, and keeps the reason if the message expires by this verdict. One whose
    /// lease is over expires without the verdict.
    fn settle_because(
        &mut self,
        queue: QueueId,
        connection: ConnectionId,
        verdict: Verdict,
        reason: &Arc<str>,
        position: Position,
        now: Time,
    ) -> u64 {
        let count = self.engine.settle(queue, connection, verdict, &[position], now);
        if count > 0
            && let Some(Change { queue: of, position: at, kind: ChangeKind::Expired { .. }, .. }) =
                self.engine.last_change()
            && (of, at) == (queue, position)
        {
            self.dead_letters.explain(queue, position, reason.clone());
        }
        count
    }

    /// The bookmarks of a settle were searched in the log; `None`: in vain, by a bug of ours.
    fn settle_searched(
        &mut self,
        cx: &mut Context,
        id: SessionId,
        number: u64,
        found: Option<Vec<(Bookmark, Position)>>,
    ) {
        let Some(job) = self.settling.get(&id).filter(|job| job.number == Some(number)) else { return };
        let of_queue = |(bookmark, position): &(Bookmark, Position)| ((job.queue, *position), *bookmark);
        self.searched.extend(found.iter().flatten().map(of_queue));
        let positions = found.map(|found| found.into_iter().map(|(_, position)| position).collect());
        self.settle_found(cx, id, number, positions);
    }

    /// The messages of a settle that waited have been looked for; `None`: in vain, by a bug of
    /// ours.
    fn settle_found(
        &mut self,
        cx: &mut Context,
        id: SessionId,
        number: u64,
        positions: Option<Vec<Position>>,
    ) {
        let Some(job) = self.settling.get_mut(&id).filter(|job| job.number == Some(number)) else {
            return;
        };
        job.number = None;
        let (queue, verdict, goes_on) = (job.queue, job.verdict, job.sweep.is_some());
        let reason = job.reason.clone();
        let Some(positions) = positions else { return self.end_settle(cx, id, false) };
        let count = self.settle_positions(cx, id, queue, verdict, reason.as_ref(), &positions);
        if let Some(job) = self.settling.get_mut(&id) {
            job.count += count;
        }
        if !goes_on {
            self.end_settle(cx, id, true);
        }
    }

    fn end_settle(&mut self, cx: &mut Context, id: SessionId, is_done: bool) {
        let Some(job) = self.settling.remove(&id) else { return };
        if is_done {
            self.answer_settle(cx, id, job.command, job.acks, job.count);
        } else if job.command != 0 {
            let refused = Refused::new(Code::Internal, "the messages could not be looked for".to_owned());
            cx.refuse_command(id, job.command, 0, &refused);
        }
        cx.resume_commands(id, Stall::Settling);
    }

    fn answer_settle(&mut self, cx: &mut Context, id: SessionId, command: u32, acks: Acks, count: u64) {
        if command == 0 {
            return;
        }
        cx.acknowledge_with(id, command, 0, acks, u32::try_from(count).unwrap_or(u32::MAX), "");
        if !acks.has(Acks::PERSISTED) {
            return;
        }
        self.log_changes(cx);
        if let Some(failure) = cx.log.failure.clone() {
            let ack = Ack {
                kind: AckKind::Persisted,
                code: failure.code,
                command,
                subscription: 0,
                detail: 0,
                reason: &failure.reason,
            };
            return cx.put(id, &Reply::Ack(ack));
        }
        cx.owe_persisted(id, command);
    }

    pub(crate) fn extend(&mut self, cx: &mut Context, id: SessionId, extend: &Extend<'_>) {
        let Extend { period_ms, command, acks, queue: name, bookmarks } = *extend;
        let Some(queue) = self.find(name) else { return cx.no_queue(id, command, name) };
        if command != 0 {
            cx.acknowledge_received(id, command, 0, acks);
        }
        let now = self.time(cx.clock.now);
        let period_ns = match period_ms {
            0 => self.definition(queue).config.lease_period.map(|period| period.as_nanos() as u64),
            period_ms => Some(period_ms.saturating_mul(1_000_000)),
        };
        let deadline = Time::new(period_ns.map_or(u64::MAX, |period| now.get().saturating_add(period)));
        let (known, _) = self.split_known(queue, bookmarks);
        let connection = ConnectionId::new(cx.session(id).connection.0);
        for position in known {
            self.engine.extend(queue, connection, position, deadline, now);
        }
        // The client learns first which of the leases were over: the answer means that it has the
        // others.
        self.notify_lost_leases(cx);
        if command != 0 {
            let granted_ms =
                period_ns.map_or(0, |period| u32::try_from(period / 1_000_000).unwrap_or(u32::MAX));
            cx.acknowledge_with(id, command, 0, acks, granted_ms, "");
        }
    }
}

/// Messages that were handed out and not settled, and some more. A bookmark always has the same
/// position, so one that is kept too long does no harm.
#[derive(Default)]
pub(super) struct Outstanding(HashMap<Bookmark, Position, FxBuildHasher>);

impl Outstanding {
    /// A message is delivered.
    pub fn insert(&mut self, bookmark: Bookmark, position: Position) {
        self.0.insert(bookmark, position);
    }

    /// The position of the message.
    pub fn position(&self, bookmark: Bookmark) -> Option<Position> {
        self.0.get(&bookmark).copied()
    }

    /// A message was settled.
    pub fn remove(&mut self, bookmark: Bookmark) {
        self.0.remove(&bookmark);
    }

    /// Forgets the bookmarks of messages that are no longer delivered, when there are many of them.
    pub fn sweep(&mut self, outstanding_count: usize, is_out: impl Fn(Position) -> bool) {
        if self.0.len() > 2 * outstanding_count + SLACK {
            self.0.retain(|_, position| is_out(*position));
        }
    }
}
