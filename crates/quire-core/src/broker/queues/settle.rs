//! What connections say about messages: acknowledge, cancel, expire, extend.

use quire_journal::{Bookmark, Position, PublisherId};

use super::{Purpose, QueueWork};
use crate::broker::Broker;
use crate::broker::subscribe::Refused;
use crate::filter::Filter;
use crate::queue::{ConnectionId, Leasing, QueueId, Time, Verdict};
use crate::session::{Flush, OWED_MAX, SessionId, Stall};
use crate::wire::{Ack, AckKind, Acks, Bookmarks, Code, Extend, Selection, ServerFrame, Settle};

/// Messages that a settle by filter looks at in one piece of work, or settles in one turn without looking.
const PIECE_COUNT_MAX: usize = 4096;

/// A settle that takes more than one step. Its connection's further commands wait.
pub(super) struct SettleJob {
    queue: QueueId,
    verdict: Verdict,
    command: u32,
    acks: Acks,
    /// The work under way.
    number: Option<u64>,
    /// Of a settle by filter: what is still to be looked at.
    sweep: Option<Sweep>,
}

/// A walk through the active messages of a queue.
struct Sweep {
    filter: Option<Filter>,
    /// Done up to here.
    after: Position,
    /// What enters later is not meant.
    end: Position,
    /// At-most-once messages whose places in a backlog are not freed yet.
    taken: Vec<Position>,
}

impl Broker {
    pub(in crate::broker) fn settle_queue(&mut self, id: SessionId, settle: &Settle<'_>) {
        let Settle { command, acks, queue: name, messages, .. } = *settle;
        let Some(queue) = self.queues.find(name) else { return self.no_queue(id, command, name) };
        if command != 0 {
            self.acknowledge_received(id, command, 0, acks);
        }
        self.session(id).has_settled = true;
        match messages {
            Selection::Bookmarks(bookmarks) => self.settle_bookmarks(id, queue, settle, bookmarks),
            Selection::Matching(text) => self.begin_sweep(id, queue, settle, text),
        }
    }

    fn settle_bookmarks(
        &mut self,
        id: SessionId,
        queue: QueueId,
        settle: &Settle<'_>,
        bookmarks: Bookmarks<'_>,
    ) {
        let Settle { verdict, command, acks, .. } = *settle;
        let (known, unknown) = self.split_known(queue, bookmarks);
        self.settle_positions(id, queue, verdict, &known);
        let definition = self.queues.definition(queue).clone();
        // Of a message that nobody holds, a strict queue takes no word, and a cancel means nothing.
        let may_search = definition.config.leasing == Leasing::Sublease && verdict != Verdict::Cancel;
        if unknown.is_empty() || !may_search {
            return self.answer_settle(id, command, acks);
        }
        let work = QueueWork::Find { reader: self.reader.clone(), bookmarks: unknown, definition };
        let number = Some(self.begin_work(Purpose::Settle(id), work));
        self.queues.settling.insert(id, SettleJob { queue, verdict, command, acks, number, sweep: None });
        self.stall(id, Stall::Settling);
    }

    fn begin_sweep(&mut self, id: SessionId, queue: QueueId, settle: &Settle<'_>, text: &str) {
        let Settle { verdict, command, acks, .. } = *settle;
        let filter = match text {
            "" => None,
            text => match self.parse_filter(id, text) {
                Ok(filter) => Some(filter),
                Err(_) if command == 0 => return,
                Err(refused) => return self.refuse_command(id, command, 0, &refused),
            },
        };
        let taken = self.queues.engine.taken(queue);
        let end = self.queues.engine.last_active(queue).unwrap_or_default();
        let sweep = Sweep { filter, after: Position::ZERO, end, taken };
        let job = SettleJob { queue, verdict, command, acks, number: None, sweep: Some(sweep) };
        self.queues.settling.insert(id, job);
        self.stall(id, Stall::Settling);
        self.wants_turn = true;
    }

    /// Takes every settle by filter one step on.
    pub(super) fn go_on_with_settles(&mut self) {
        let idle = self.queues.settling.iter().filter(|(_, job)| job.number.is_none());
        for id in idle.map(|(id, _)| *id).collect::<Vec<_>>() {
            let Some(job) = self.queues.settling.get_mut(&id) else { continue };
            let (queue, verdict) = (job.queue, job.verdict);
            let Some(sweep) = &mut job.sweep else { continue };
            let mut positions = std::mem::take(&mut sweep.taken);
            let active = self.queues.engine.active_after(queue, sweep.after, PIECE_COUNT_MAX);
            positions.extend(active.iter().copied().filter(|position| *position <= sweep.end));
            sweep.after = active.last().copied().unwrap_or(sweep.end).min(sweep.end);
            if active.is_empty() {
                sweep.after = sweep.end;
            }
            if positions.is_empty() {
                self.end_settle(id, true);
                continue;
            }
            match sweep.filter.clone() {
                None => {
                    self.settle_positions(id, queue, verdict, &positions);
                    self.wants_turn = true;
                }
                Some(filter) => {
                    let (reader, now) = (self.reader.clone(), self.now.wall);
                    let work = QueueWork::Match { reader, positions, filter, now };
                    let number = self.begin_work(Purpose::Settle(id), work);
                    if let Some(job) = self.queues.settling.get_mut(&id) {
                        job.number = Some(number);
                    }
                }
            }
        }
    }

    /// The positions of those bookmarks that are out, and the other bookmarks.
    fn split_known(&self, queue: QueueId, bookmarks: Bookmarks<'_>) -> (Vec<Position>, Vec<Bookmark>) {
        let outstanding = &self.queues.outstanding[queue.get() as usize];
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

    fn settle_positions(&mut self, id: SessionId, queue: QueueId, verdict: Verdict, positions: &[Position]) {
        let now = self.queues.time(self.now);
        let connection = ConnectionId::new(self.session(id).connection.0);
        self.queues.engine.settle(queue, connection, verdict, positions, now);
        let engine = &self.queues.engine;
        let outstanding = &mut self.queues.outstanding[queue.get() as usize];
        let held = engine.stats(queue, now).map_or(0, |stats| stats.backlog as usize);
        outstanding.sweep(held, |position| engine.holder(queue, position).is_some());
    }

    /// The messages of a settle that waited have been looked for; `None`: in vain, by a bug of ours.
    pub(super) fn settle_found(&mut self, id: SessionId, number: u64, positions: Option<Vec<Position>>) {
        let Some(job) = self.queues.settling.get_mut(&id).filter(|job| job.number == Some(number)) else {
            return;
        };
        job.number = None;
        let (queue, verdict, goes_on) = (job.queue, job.verdict, job.sweep.is_some());
        let Some(positions) = positions else { return self.end_settle(id, false) };
        self.settle_positions(id, queue, verdict, &positions);
        if !goes_on {
            self.end_settle(id, true);
        }
    }

    fn end_settle(&mut self, id: SessionId, is_done: bool) {
        let Some(job) = self.queues.settling.remove(&id) else { return };
        if is_done {
            self.answer_settle(id, job.command, job.acks);
        } else if job.command != 0 {
            let refused = Refused::new(Code::Internal, "the messages could not be looked for".to_owned());
            self.refuse_command(id, job.command, 0, &refused);
        }
        if self.session(id).stall == Some(Stall::Settling) {
            self.end_stall(id);
        }
    }

    fn answer_settle(&mut self, id: SessionId, command: u32, acks: Acks) {
        if command == 0 {
            return;
        }
        self.acknowledge_processed(id, command, 0, acks);
        if !acks.has(Acks::PERSISTED) {
            return;
        }
        self.log_changes();
        if let Some(failure) = self.failure.clone() {
            let ack = Ack {
                kind: AckKind::Persisted,
                code: failure.code,
                command,
                subscription: 0,
                detail: 0,
                reason: &failure.reason,
            };
            return self.put(id, &ServerFrame::Ack(ack));
        }
        let position = self.journal.appended();
        let session = self.session(id);
        session.flushes.push_back(Flush { command, position });
        let count = session.flushes.len();
        self.flushing.insert(id);
        if count >= OWED_MAX {
            self.stall(id, Stall::Owing);
        }
    }

    pub(in crate::broker) fn extend(&mut self, id: SessionId, extend: &Extend<'_>) {
        let Extend { period_ms, command, acks, queue: name, bookmarks } = *extend;
        let Some(queue) = self.queues.find(name) else { return self.no_queue(id, command, name) };
        if command != 0 {
            self.acknowledge_received(id, command, 0, acks);
        }
        let now = self.queues.time(self.now);
        let period_ns = match period_ms {
            0 => self.queues.definition(queue).config.lease_period.map(|period| period.as_nanos() as u64),
            period_ms => Some(period_ms.saturating_mul(1_000_000)),
        };
        let deadline = Time::new(period_ns.map_or(u64::MAX, |period| now.get().saturating_add(period)));
        let (known, _) = self.split_known(queue, bookmarks);
        let connection = ConnectionId::new(self.session(id).connection.0);
        for position in known {
            self.queues.engine.extend(queue, connection, position, deadline, now);
        }
        if command != 0 {
            self.acknowledge_processed(id, command, 0, acks);
        }
    }
}
