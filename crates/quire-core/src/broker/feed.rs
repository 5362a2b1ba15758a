//! Feeding the subscriptions that have not caught up, each replay at the pace of its connection.
//!
//! While a connection takes what it is sent, its replays have one read under way or one chunk ready each; when a chunk has been handed
//! over, the next read begins, so that reading and sending overlap. Reads, and what they brought until it is handed over, share one
//! bound for the whole broker; beyond it replays stand in line. The last stretch before the live edge is read at once, on the loop: it was
//! just written, and waiting for a read elsewhere would let the edge run away under full load.
//!
//! A replay with a rate hands its messages on one by one, and sets an alarm for the next of them. A replay of several subscriptions never
//! ends: at the edge it waits for more, so that their messages stay in the order of the log and share one rate.
//!
//! A replay stands back while a publish that came alone waits for the disk: whoever publishes one message after the other waits for each of
//! them, and the replay is in the way of all that it waits for: the disk, the loop and the processors.

use std::collections::VecDeque;
use std::time::Duration;

use quire_journal::{JournalError, Position};

use super::acknowledge::code_of;
use super::slice::PASS;
use super::{Alarm, Broker, Output};
use crate::replay::{
    CHUNK_SIZE_MAX, Chunk, Found, Item, PACED_CHUNK_SIZE_MIN, Pace, Place, ReadRequest, Reading, Replay,
    ReplayId, Ticket, Work,
};
use crate::session::{Phase, Session, SessionId};
use crate::subscription::{Member, Members, Progressing, Subscription, SubscriptionId, Until};
use crate::wire::{AckKind, Code};

/// Reads under way and chunks not yet handed over, together: with chunks of 256 KiB, 32 MiB for all replays of a broker.
const READS_MAX: usize = 128;

/// Bytes of chunks of replays with a rate, which may wait for long: as much again. Beyond it the one that would wait longest gives its
/// chunk back.
const PACED_SIZE_MAX: usize = 32 * 1024 * 1024;

/// Bytes in an outbox above which replays wait: enough for a connection to be busy until the next turn.
pub(super) const FEED_SIZE_MAX: usize = 512 * 1024;

/// A stretch of at most this many records before the live edge is read on the loop.
const INLINE_RECORDS_MAX: u64 = 256;

/// What waits for the disk is a publish that came alone up to this many bytes. More of them come from publishers that do not wait for each
/// message, and who reads behind those must keep up with them.
const LONE_SIZE_MAX: usize = 8 * 1024;

/// The longest that a replay stands back. With full chunks 256 MB/s are left to it, more than lone publishes can bring meanwhile.
const STAND_BACK_MAX: Duration = Duration::from_millis(1);

/// The chunks of a replay that stood back, and what it asks the disk for at a time: the next publish finds the loop and the disk busy for
/// less long. A sync that waits behind 256 KiB of reads takes half a millisecond.
const CHUNK_SIZE_BESIDE: usize = 64 * 1024;

/// For so long another lone publish is expected. Then the chunks grow again, twice as large with each that goes whole.
const BESIDE_TIME: Duration = Duration::from_millis(100);

/// Reads on the loop in one turn.
const INLINE_READS_MAX: usize = 64;

/// The bound on reads, and who waits for it.
#[derive(Debug, Default)]
pub(super) struct ReadLine {
    /// Reads under way, those nobody waits for any more included.
    under_way: usize,
    /// Chunks not yet handed over.
    ready: usize,
    /// Bytes of those of replays with a rate.
    paced_size: usize,
    waiting: VecDeque<ReplayId>,
}

impl ReadLine {
    fn has_room(&self) -> bool {
        self.under_way + self.ready < READS_MAX
    }

    /// A replay has got a chunk.
    fn add(&mut self, replay: &Replay, chunk: &Chunk) {
        match replay.pace {
            Some(_) => self.paced_size += chunk.size,
            None => self.ready += 1,
        }
    }

    /// It has handed the chunk over, or given it back.
    fn remove(&mut self, replay: &Replay, chunk: &Chunk) {
        match replay.pace {
            Some(_) => self.paced_size -= chunk.size,
            None => self.ready -= 1,
        }
    }
}

impl Session {
    /// Whether replays, and those that follow the live edge, may put more in line.
    pub(super) fn can_be_fed(&self) -> bool {
        self.is_writable && self.phase != Phase::Closed && self.outbox.size() < FEED_SIZE_MAX
    }
}

impl Broker {
    /// Serves these subscriptions of one session, all at one place, from the log.
    pub(super) fn start_replay(
        &mut self,
        session: SessionId,
        mut subscriptions: Vec<SubscriptionId>,
        after: Position,
    ) {
        // A range may be empty, or have ended before the subscription was paused.
        subscriptions.iter().for_each(|subscription| self.reach(*subscription, after));
        subscriptions.retain(|subscription| self.subscriptions.contains_key(*subscription));
        match subscriptions[..] {
            [] => (),
            [subscription] if after >= self.edge => self.join_edge(subscription),
            _ => self.begin_replay(session, subscriptions, after),
        }
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
        let paces = subscriptions.iter().filter_map(|id| {
            self.subscriptions[*id].progress_mut().and_then(|progress| progress.pace.take())
        });
        let pace = paces.reduce(Pace::later);
        let replay = Replay {
            session,
            subscriptions: subscriptions.clone(),
            members,
            place,
            read_place: place,
            cursor: None,
            reading: None,
            ready: None,
            in_line: false,
            error: None,
            costly: None,
            is_heavy: false,
            chunk_size_max: if pace.is_some() { PACED_CHUNK_SIZE_MIN } else { CHUNK_SIZE_MAX },
            beside_until: self.now.instant,
            pace,
        };
        let id = self.replays.insert(replay);
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
            let subscription = &self.subscriptions[*id];
            let Subscription { number, selector, filter, conflation, select, .. } = subscription;
            let taken_after = subscription.progress().and_then(|p| p.taken_after);
            let conflation = conflation.as_ref();
            Member {
                number: *number,
                selector: selector.clone(),
                filter: filter.clone(),
                taken_after,
                conflation_key: conflation.map(|conflation| conflation.key.clone()),
                select: select.clone(),
            }
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
        let mut pace = replay.pace.clone();
        if let Some(pace) = &mut pace {
            pace.rest();
        }
        if let Some(progress) = self.subscription(subscription).progress_mut() {
            progress.after = after;
            progress.pace = pace;
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
        let Some(replay) = self.replays.remove(id) else { return };
        self.session(replay.session).replays.retain(|other| *other != id);
        self.tails.retain(|other| *other != id);
        self.standing_back.remove(&id);
        self.alarms.clear(Alarm::Replay(id));
        if replay.in_line {
            self.read_line.waiting.retain(|other| *other != id);
        }
    }

    /// Forgets what was read ahead for a replay.
    fn rewind(&mut self, id: ReplayId) {
        let replay = &mut self.replays[id];
        if let Some(chunk) = &replay.ready {
            self.read_line.remove(replay, chunk);
        }
        replay.rewind();
    }

    /// A connection that takes nothing keeps no chunk that others could use.
    pub(super) fn give_back_reads(&mut self, id: SessionId) {
        for replay in self.session(id).replays.clone() {
            if self.read_line.waiting.is_empty() && self.read_line.paced_size < PACED_SIZE_MAX {
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
        if !self.standing_back.is_empty() && !self.has_lone_publish() {
            for id in std::mem::take(&mut self.standing_back) {
                self.alarms.clear(Alarm::Replay(id));
                let beside_until = self.now.instant + BESIDE_TIME;
                let replay = self.replay(id);
                replay.chunk_size_max = CHUNK_SIZE_BESIDE;
                replay.beside_until = beside_until;
                self.to_feed.push_back(id);
            }
        }
        let mut inline_reads_left = INLINE_READS_MAX;
        let deadline = self.slices.deadline(PASS);
        loop {
            while let Some(id) = self.to_feed.pop_front() {
                self.feed(id, &mut inline_reads_left);
                if self.slices.is_past(deadline) {
                    let has_more = self.read_line.has_room() && !self.read_line.waiting.is_empty();
                    self.wants_turn |= has_more || !self.to_feed.is_empty();
                    return;
                }
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
        // One that gave its chunk back while it waits reads again when its time has come.
        if self.alarms.is_set(Alarm::Replay(id)) || self.stands_back(id) {
            return;
        }
        loop {
            let Some(replay) = self.replays.get_mut(id) else { return };
            let session_id = replay.session;
            if !self.sessions[session_id].can_be_fed() {
                if let Some(pace) = &mut replay.pace {
                    pace.rest();
                }
                return;
            }
            if let Some(mut chunk) = replay.ready.take() {
                let is_new = chunk.taken_count == 0;
                if !self.hand_over(id, &mut chunk) {
                    self.replay(id).ready = Some(chunk);
                    return;
                }
                let replay = &mut self.replays[id];
                self.read_line.remove(replay, &chunk);
                // What goes whole when it comes may be more at a time, which costs less. A rate asks for no more than keeps it up.
                let may_grow = self.now.instant >= replay.beside_until
                    && (replay.pace.is_none() || chunk.size >= replay.chunk_size_max);
                if is_new && may_grow {
                    replay.chunk_size_max = CHUNK_SIZE_MAX.min(replay.chunk_size_max * 2);
                }
                replay.place = chunk.next;
                self.reach_together(id);
                continue;
            }
            if let Some(error) = replay.error.take() {
                return self.end_replay(id, &error);
            }
            if let Some((member, size)) = replay.costly.take() {
                let subscription = replay.subscriptions[member];
                return self.end_costly(subscription, size);
            }
            if replay.reading.is_some() || replay.in_line {
                return;
            }
            if replay.place.served == 0 && replay.place.after >= self.edge {
                if let Some(pace) = &mut replay.pace {
                    pace.rest();
                }
                match replay.subscriptions.len() {
                    1 => self.finish_replay(id),
                    _ => self.tails.push(id),
                }
                return;
            }
            if self.is_near_edge(id) && !self.replay(id).is_heavy {
                if *inline_reads_left == 0 {
                    self.feed_later(id);
                    return;
                }
                *inline_reads_left -= 1;
                let Some(request) = self.begin_read(id, true) else { return };
                self.read_done(request.run());
            } else if self.read_line.has_room() {
                if let Some(request) = self.begin_read(id, false) {
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

    /// Whether something small waits for the disk.
    fn has_lone_publish(&self) -> bool {
        let size = self.journal.unpersisted_bytes();
        0 < size && size <= LONE_SIZE_MAX && self.failure.is_none()
    }

    /// Whether the replay waits until a lone publish is persistent. It is looked at again when that is so, or when it has stood back for long
    /// enough. Not one with a rate, which leaves time to others by itself, nor one that is about to arrive at the edge.
    fn stands_back(&mut self, id: ReplayId) -> bool {
        let Some(replay) = self.replays.get(id) else { return false };
        if replay.pace.is_some() || !self.has_lone_publish() || self.is_near_edge(id) {
            return false;
        }
        // One that is there already has heard its alarm.
        let begins = !self.standing_back.remove(&id);
        if begins {
            self.standing_back.insert(id);
            self.alarms.set(Alarm::Replay(id), self.now.instant + STAND_BACK_MAX);
        }
        begins
    }

    /// Hands what may go now of a chunk to the connection, or to what is held for it; false when there is a rest, for which an alarm is set.
    fn hand_over(&mut self, id: ReplayId, chunk: &mut Chunk) -> bool {
        let session_id = self.replays[id].session;
        if chunk.items.is_empty() {
            self.counters.delivered += chunk.message_count;
            if !chunk.frames.is_empty() {
                let frames = std::mem::take(&mut chunk.frames);
                self.session(session_id).outbox.put_replayed(frames);
                self.touch(session_id);
            }
            return true;
        }
        let members = self.replays[id].members.clone();
        let mut frames = Vec::new();
        for index in chunk.taken_count..chunk.items.len() {
            let item = chunk.items[index];
            if !self.may_go(id, &item) {
                break;
            }
            let before = index.checked_sub(1).map(|before| chunk.items[before]);
            let (frame_start, key_start) = before.map_or((0, 0), |item| (item.frame_end, item.key_end));
            let frame = &chunk.frames[frame_start..item.frame_end];
            if members[item.member].conflation_key.is_some() {
                let subscription = self.replays[id].subscriptions[item.member];
                self.hold(subscription, &chunk.keys[key_start..item.key_end], frame);
            } else {
                frames.extend_from_slice(frame);
                self.counters.delivered += 1;
            }
            self.replay(id).place = item.place;
            chunk.taken_count += 1;
        }
        if !frames.is_empty() {
            self.session(session_id).outbox.put_replayed(frames);
            self.touch(session_id);
        }
        chunk.taken_count == chunk.items.len()
    }

    /// Whether a message may go now; if not, its replay is looked at again when it may.
    fn may_go(&mut self, id: ReplayId, item: &Item) -> bool {
        let now = self.now.instant;
        let Some(pace) = &mut self.replays[id].pace else { return true };
        let opens_at = pace.opens_at(now, item.timestamp);
        if opens_at > now {
            let wakes_at = pace.wakes_at(opens_at);
            self.alarms.set(Alarm::Replay(id), wakes_at);
            return false;
        }
        pace.went(now, item.data_size, item.timestamp);
        true
    }

    fn is_near_edge(&self, id: ReplayId) -> bool {
        let place = self.replays[id].read_place;
        self.edge.get().saturating_sub(place.after.get()) <= INLINE_RECORDS_MAX
    }

    fn feed_later(&mut self, id: ReplayId) {
        self.fed_later.push(id);
        self.wants_turn = true;
    }

    /// The next read of a replay. It ends where something has to be done, so that this comes between the right two messages.
    fn begin_read(&mut self, id: ReplayId, is_inline: bool) -> Option<ReadRequest> {
        self.read_number += 1;
        let number = self.read_number;
        let replay = &self.replays[id];
        let place = replay.read_place;
        let progress = |id: &SubscriptionId| self.subscriptions[*id].progress();
        let goals = replay.subscriptions.iter().filter_map(progress).flat_map(|progress| progress.goals());
        let limit = goals.filter(|goal| *goal > place.after).fold(self.edge, Position::min);
        let now = self.now.wall;
        let (reader, turn_effort) = (&self.reader, self.turn_effort);
        let replay = &mut self.replays[id];
        let cursor = replay.cursor.take().unwrap_or_else(|| reader.cursor(place.after));
        let members = replay.members.clone();
        let is_itemized = replay.pace.is_some() || members.iter().any(|m| m.conflation_key.is_some());
        let chunk_size_max = replay.chunk_size_max;
        let inline_effort = is_inline.then_some(turn_effort);
        let reading =
            Reading { cursor, place, limit, members, chunk_size_max, is_itemized, now, inline_effort };
        replay.reading = Some(number);
        self.read_line.under_way += 1;
        Some(ReadRequest {
            ticket: Ticket::Replay { replay: id, number },
            work: Work::Read(Box::new(reading)),
        })
    }

    /// A read of a replay has been done.
    pub(super) fn read(&mut self, id: ReplayId, number: u64, found: Box<Found>) {
        self.read_line.under_way -= 1;
        let waits = self.replays.get(id).is_some_and(|replay| replay.reading == Some(number));
        if waits {
            let found = *found;
            let replay = &mut self.replays[id];
            replay.reading = None;
            replay.read_place = found.chunk.next;
            self.read_line.add(replay, &found.chunk);
            replay.ready = Some(found.chunk);
            match found.cursor {
                Ok(cursor) => replay.cursor = Some(cursor),
                Err(error) => replay.error = Some(error),
            }
            replay.is_heavy = found.was_inline && found.costly.is_some();
            replay.costly = found.costly.filter(|_| !found.was_inline);
            self.to_feed.push_back(id);
            if self.read_line.paced_size > PACED_SIZE_MAX {
                let has_chunk = |other: &ReplayId| {
                    let other = &self.replays[*other];
                    other.pace.is_some() && other.ready.is_some()
                };
                let longest = self.alarms.waiting_replays().find(has_chunk);
                longest.into_iter().for_each(|longest| self.rewind(longest));
            }
            let session = self.replays[id].session;
            if !self.session(session).is_writable {
                self.give_back_reads(session);
            }
        }
    }

    /// A read of a replay panicked: its subscriptions end rather than wait for ever.
    pub(super) fn read_panicked(&mut self, id: ReplayId, number: u64) {
        self.read_line.under_way -= 1;
        if self.replays.get(id).is_some_and(|replay| replay.reading == Some(number)) {
            self.replay(id).reading = None;
            self.end_subscriptions(id, Code::Internal, "reading the journal failed");
        }
    }

    /// Does what has to be done where the subscriptions of a replay have come to.
    fn reach_together(&mut self, id: ReplayId) {
        let replay = &self.replays[id];
        let reached = |(index, subscription): (usize, &SubscriptionId)| (*subscription, replay.after(index));
        for (subscription, after) in replay.subscriptions.iter().enumerate().map(reached).collect::<Vec<_>>()
        {
            self.reach(subscription, after);
        }
    }

    /// A subscription has come to `reached`: sends its `completed` acknowledgement if that is owed, and ends it if it ends there.
    pub(super) fn reach(&mut self, id: SubscriptionId, reached: Position) {
        let Some(subscription) = self.subscriptions.get_mut(id) else { return };
        let (session, number) = (subscription.session, subscription.number);
        let Some(progress) = subscription.progress_mut() else { return };
        let is_over = matches!(progress.until, Some(Until::At(end)) if end <= reached);
        let completion = progress.completed.take_if(|completion| completion.goal <= reached || is_over);
        if is_over || completion.is_some() {
            self.deliver_all_held(id);
        }
        if let Some(completion) = completion {
            self.acknowledge_command(session, AckKind::Completed, completion.command, number);
        }
        if is_over && self.subscriptions.contains_key(id) {
            self.end_range(id);
        }
    }

    /// The journal takes no more writes: nothing above what is persisted will ever come, so nobody waits for it.
    pub(super) fn clamp_goals(&mut self) {
        let persisted = self.journal.persisted();
        for (_, subscription) in &mut self.subscriptions {
            let Some(progress) = subscription.progress_mut() else { continue };
            if let Some(completion) = &mut progress.completed {
                completion.goal = completion.goal.min(persisted);
            }
            if let Some(Until::At(end)) = &mut progress.until {
                *end = persisted.min(*end);
            }
        }
        self.wants_turn = true;
    }

    /// A replay has arrived at the live edge: its subscriptions follow that from now on.
    fn finish_replay(&mut self, id: ReplayId) {
        let after = self.replay(id).place.after;
        let subscriptions = std::mem::take(&mut self.replay(id).subscriptions);
        let mut pace = self.replay(id).pace.take();
        self.remove_replay(id);
        for subscription in subscriptions {
            if let Some(progress) = self.subscription(subscription).progress_mut() {
                progress.pace = pace.take();
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
            if self.subscriptions.contains_key(subscription) {
                self.end_subscription(subscription, code, reason);
            }
        }
    }
}
