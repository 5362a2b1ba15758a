//! Feeding the subscriptions that have not caught up, each replay at the pace of its connection.
//!
//! While a connection takes what it is sent, its replays have one read under way or one chunk ready each; when a chunk has been handed
//! over, the next read begins, so that reading and sending overlap. Reads, and what they brought until it is handed over, share one
//! bound for the whole broker; beyond it replays stand in line. The last stretch before the live edge is read at once, on the loop: it was
//! just written, and waiting for a read elsewhere would let the edge run away under full load.

use std::collections::VecDeque;

use quire_journal::{JournalError, Position};

use super::acknowledge::code_of;
use super::{Broker, Output};
use crate::replay::{Found, Place, ReadRequest, Reading, Replay, ReplayId, Source, Ticket, Work};
use crate::session::{Session, SessionId};
use crate::subscription::{Member, Members, Progressing, Subscription, SubscriptionId};
use crate::wire::{AckKind, Code};

/// Reads under way and chunks not yet handed over, together: with chunks of 256 KiB, 32 MiB for all replays of a broker.
const READS_MAX: usize = 128;

/// Bytes in an outbox above which replays wait: enough for a connection to be busy until the next turn.
pub(super) const FEED_SIZE_MAX: usize = 512 * 1024;

/// A stretch of at most this many records before the live edge is read on the loop.
const INLINE_RECORDS_MAX: u64 = 256;

/// Reads on the loop in one turn.
const INLINE_READS_MAX: usize = 64;

/// The bound on reads, and who waits for it.
#[derive(Debug, Default)]
pub(super) struct ReadLine {
    /// Reads under way, those nobody waits for any more included.
    under_way: usize,
    /// Chunks not yet handed over.
    ready: usize,
    waiting: VecDeque<ReplayId>,
}

impl ReadLine {
    fn has_room(&self) -> bool {
        self.under_way + self.ready < READS_MAX
    }
}

impl Session {
    /// Whether replays, and those that follow the live edge, may put more in line.
    pub(super) fn can_be_fed(&self) -> bool {
        self.is_writable && self.outbox.size() < FEED_SIZE_MAX
    }
}

impl Broker {
    /// Serves these subscriptions of one session, all at one place, from the log.
    pub(super) fn start_replay(
        &mut self,
        session: SessionId,
        subscriptions: Vec<SubscriptionId>,
        after: Position,
    ) {
        if after >= self.edge {
            for subscription in subscriptions {
                self.join_edge(subscription);
            }
            return;
        }
        self.begin_replay(session, subscriptions, after);
    }

    /// As [`Broker::start_replay`], also at the edge itself.
    pub(super) fn begin_replay(
        &mut self,
        session: SessionId,
        subscriptions: Vec<SubscriptionId>,
        after: Position,
    ) {
        let members = self.members(&subscriptions);
        let place = Place { after, served: 0 };
        let replay = Replay {
            session,
            subscriptions: subscriptions.clone(),
            members,
            place,
            read_place: place,
            source: None,
            reading: None,
            ready: None,
            in_line: false,
            error: None,
        };
        let id = ReplayId(self.replays.insert(replay) as u32);
        for subscription in subscriptions {
            if let Some(progress) = self.subscription(subscription).progress_mut() {
                progress.stage = Progressing::Replaying(id);
            }
        }
        self.session(session).replays.push(id);
        self.to_feed.push_back(id);
    }

    fn members(&self, subscriptions: &[SubscriptionId]) -> Members {
        let member = |id: &SubscriptionId| {
            let Subscription { number, selector, filter, .. } = &self.subscriptions[id.0 as usize];
            let taken_after = self.subscriptions[id.0 as usize].progress().and_then(|p| p.taken_after);
            Member { number: *number, selector: selector.clone(), filter: filter.clone(), taken_after }
        };
        subscriptions.iter().map(member).collect()
    }

    /// Takes one subscription out of a replay; the others go on where they are.
    pub(super) fn leave_replay(&mut self, id: ReplayId, subscription: SubscriptionId) {
        self.rewind(id);
        let replay = self.replay(id);
        let Some(index) = replay.subscriptions.iter().position(|member| *member == subscription) else {
            return;
        };
        let after = replay.after(index);
        replay.subscriptions.remove(index);
        if index < replay.place.served as usize {
            replay.place.served -= 1;
            replay.read_place = replay.place;
        }
        let rest = replay.subscriptions.clone();
        if let Some(progress) = self.subscription(subscription).progress_mut() {
            progress.after = after;
        }
        if rest.is_empty() {
            self.remove_replay(id);
        } else {
            self.replay(id).members = self.members(&rest);
            self.to_feed.push_back(id);
        }
    }

    fn remove_replay(&mut self, id: ReplayId) {
        self.rewind(id);
        let replay = self.replays.remove(id.0 as usize);
        self.session(replay.session).replays.retain(|other| *other != id);
        if replay.in_line {
            self.read_line.waiting.retain(|other| *other != id);
        }
    }

    /// Forgets what was read ahead for a replay.
    fn rewind(&mut self, id: ReplayId) {
        let replay = &mut self.replays[id.0 as usize];
        if replay.ready.is_some() {
            self.read_line.ready -= 1;
        }
        replay.rewind();
    }

    /// A connection that takes nothing keeps no chunk that others could use.
    pub(super) fn give_back_reads(&mut self, id: SessionId) {
        for replay in self.session(id).replays.clone() {
            if self.read_line.waiting.is_empty() {
                return;
            }
            if self.replay(replay).ready.is_some() {
                self.rewind(replay);
            }
        }
    }

    /// Takes every replay as far as it can go, then those in line for as long as there is room.
    pub(super) fn feed_replays(&mut self) {
        self.to_feed.extend(std::mem::take(&mut self.fed_later));
        let mut inline_reads_left = INLINE_READS_MAX;
        loop {
            while let Some(id) = self.to_feed.pop_front() {
                self.feed(id, &mut inline_reads_left);
            }
            // One at a time: who was in line may have nothing to read any more, or a connection that takes nothing.
            if !self.read_line.has_room() {
                return;
            }
            let Some(id) = self.read_line.waiting.pop_front() else { return };
            self.replay(id).in_line = false;
            self.to_feed.push_back(id);
        }
    }

    /// Takes a replay as far as it can go for now.
    fn feed(&mut self, id: ReplayId, inline_reads_left: &mut usize) {
        loop {
            let Some(replay) = self.replays.get_mut(id.0 as usize) else { return };
            let session_id = replay.session;
            if !self.sessions[session_id.0 as usize].can_be_fed() {
                return;
            }
            if let Some(chunk) = replay.ready.take() {
                self.read_line.ready -= 1;
                replay.place = chunk.next;
                self.counters.delivered += chunk.message_count;
                if !chunk.frames.is_empty() {
                    self.session(session_id).outbox.put_replayed(chunk.frames);
                    self.touch(session_id);
                }
                self.complete_replay(id);
                continue;
            }
            if let Some(error) = replay.error.take() {
                return self.end_replay(id, &error);
            }
            if replay.reading.is_some() || replay.in_line {
                return;
            }
            if replay.place.served == 0 && replay.place.after >= self.edge {
                return self.finish_replay(id);
            }
            if self.is_near_edge(id) {
                if *inline_reads_left == 0 {
                    self.feed_later(id);
                    return;
                }
                *inline_reads_left -= 1;
                let Some(request) = self.begin_read(id) else { return };
                self.read_done(request.run());
            } else if self.read_line.has_room() {
                if let Some(request) = self.begin_read(id) {
                    self.outputs.push_back(Output::Read(request));
                }
                return;
            } else {
                self.replay(id).in_line = true;
                self.read_line.waiting.push_back(id);
                return;
            }
        }
    }

    fn is_near_edge(&self, id: ReplayId) -> bool {
        let place = self.replays[id.0 as usize].read_place;
        self.edge.get().saturating_sub(place.after.get()) <= INLINE_RECORDS_MAX
    }

    fn feed_later(&mut self, id: ReplayId) {
        self.fed_later.push(id);
        self.wants_turn = true;
    }

    /// The next read of a replay. It ends where a `completed` is owed, so that this comes between the right two messages.
    fn begin_read(&mut self, id: ReplayId) -> Option<ReadRequest> {
        self.read_number += 1;
        let number = self.read_number;
        let replay = &self.replays[id.0 as usize];
        let place = replay.read_place;
        let goals = replay.subscriptions.iter().filter_map(|id| {
            let progress = self.subscriptions[id.0 as usize].progress()?;
            progress.completed.map(|completion| completion.goal).filter(|goal| *goal > place.after)
        });
        let limit = goals.min().map_or(self.edge, |goal| goal.min(self.edge));
        let now = self.now.wall;
        let reader = &self.reader;
        let replay = &mut self.replays[id.0 as usize];
        let source =
            replay.source.take().unwrap_or_else(|| Source { cursor: reader.cursor(place.after), rest: None });
        let reading = Reading { source, place, limit, members: replay.members.clone(), now };
        replay.reading = Some(number);
        self.read_line.under_way += 1;
        Some(ReadRequest { ticket: Ticket::Replay { replay: id, number }, work: Work::Read(reading) })
    }

    /// A read of a replay has been done.
    pub(super) fn read(&mut self, id: ReplayId, number: u64, found: Found) {
        self.read_line.under_way -= 1;
        let waits = self.replays.get(id.0 as usize).is_some_and(|replay| replay.reading == Some(number));
        if waits {
            let replay = &mut self.replays[id.0 as usize];
            replay.reading = None;
            replay.read_place = found.chunk.next;
            replay.ready = Some(found.chunk);
            match found.source {
                Ok(source) => replay.source = Some(source),
                Err(error) => replay.error = Some(error),
            }
            self.read_line.ready += 1;
            self.to_feed.push_back(id);
            let session = self.replays[id.0 as usize].session;
            if !self.session(session).is_writable {
                self.give_back_reads(session);
            }
        }
    }

    /// A read of a replay panicked: its subscriptions end rather than wait for ever.
    pub(super) fn read_panicked(&mut self, id: ReplayId, number: u64) {
        self.read_line.under_way -= 1;
        if self.replays.get(id.0 as usize).is_some_and(|replay| replay.reading == Some(number)) {
            self.replay(id).reading = None;
            self.end_subscriptions(id, Code::Internal, "reading the journal failed");
        }
    }

    /// Sends the `completed` acknowledgements that have become true.
    fn complete_replay(&mut self, id: ReplayId) {
        let replay = &self.replays[id.0 as usize];
        for (index, subscription) in replay.subscriptions.clone().into_iter().enumerate() {
            let Some(replay) = self.replays.get(id.0 as usize) else { return };
            let after = replay.after(index);
            self.complete(subscription, after);
        }
    }

    /// Sends the `completed` acknowledgement of a subscription that has come to `reached`, if it is owed.
    pub(super) fn complete(&mut self, id: SubscriptionId, reached: Position) {
        let Some(subscription) = self.subscriptions.get_mut(id.0 as usize) else { return };
        let (session, number) = (subscription.session, subscription.number);
        let Some(progress) = subscription.progress_mut() else { return };
        if let Some(completion) = progress.completed.take_if(|completion| completion.goal <= reached) {
            self.to_complete.remove(&id);
            self.acknowledge_command(session, AckKind::Completed, completion.command, number);
        }
    }

    /// The journal takes no more writes: nothing above what is persisted will ever come, so nobody waits for it.
    pub(super) fn clamp_goals(&mut self) {
        let persisted = self.journal.persisted();
        for (_, subscription) in &mut self.subscriptions {
            if let Some(completion) = subscription.progress_mut().and_then(|p| p.completed.as_mut()) {
                completion.goal = completion.goal.min(persisted);
            }
        }
        self.wants_turn = true;
    }

    /// A replay has arrived at the live edge: its subscriptions follow that from now on.
    fn finish_replay(&mut self, id: ReplayId) {
        let after = self.replay(id).place.after;
        let subscriptions = std::mem::take(&mut self.replay(id).subscriptions);
        self.remove_replay(id);
        for subscription in subscriptions {
            if let Some(progress) = self.subscription(subscription).progress_mut() {
                progress.after = after;
                progress.stage = Progressing::Halted;
            }
            self.join_edge(subscription);
        }
    }

    /// A replay has met damage: its subscriptions end there.
    fn end_replay(&mut self, id: ReplayId, error: &JournalError) {
        self.end_subscriptions(id, code_of(error), &error.to_string());
    }

    fn end_subscriptions(&mut self, id: ReplayId, code: Code, reason: &str) {
        for subscription in self.replay(id).subscriptions.clone() {
            if self.subscriptions.contains(subscription.0 as usize) {
                self.end_subscription(subscription, code, reason);
            }
        }
    }
}
