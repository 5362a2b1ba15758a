//! Serves the subscriptions that have not caught up, each replay at the pace of its connection.
//!
//! While a connection takes its output, each of its replays has one read in progress or one chunk
//! ready. When a chunk has been delivered, the next read begins, so that reading and sending
//! overlap. Reads, and their data until its delivery, share one limit for the whole broker. Above
//! the limit, replays wait in a queue. The last range before the live tail is read at once, on the
//! loop. It was just written. Under full load, the tail would move further away during a read on
//! another thread.
//!
//! A replay with a rate delivers its messages one by one, and sets a timer for the next message. A
//! replay of several subscriptions never ends: at the tail it waits for more, so that their
//! messages stay in the order of the log and share one rate.
//!
//! A replay pauses while a single small publish waits for the disk. A publisher that sends one
//! message at a time waits for each of them. The replay would compete for the resources that this
//! publisher waits for: the disk, the loop and the processors.

use crate::context::Context;
use std::collections::VecDeque;
use std::time::Duration;

use quire_journal::{JournalError, Position};

use super::{Bookmarks, EndPosition, Source};
use crate::Timer;
use crate::failure::code_of;
use crate::log::YIELD_MAX;
use crate::replay::{
    CHUNK_SIZE_MAX, Chunk, Found, Item, PACED_CHUNK_SIZE_MIN, Pace, Reading, Replay, ReplayId, ReplayPosition,
};
use crate::session::SessionId;
use crate::slice::PASS;
use crate::subscription::{Interest, Member, Members, Subscription, SubscriptionId};
use crate::topic::Stage;
use quire_command::{AckKind, Code};

/// The most reads in progress and chunks not yet delivered, together. With chunks of 256 KiB, they
/// use 32 MiB for all replays of a broker.
const READS_MAX: usize = 128;

/// Bytes of chunks of replays with a rate, which may wait for a long time: another 32 MiB. Above
/// the limit, the replay that would wait longest drops its chunk.
const PACED_SIZE_MAX: usize = 32 * 1024 * 1024;

/// A range of at most this many records before the live tail is read on the loop.
const INLINE_RECORDS_MAX: u64 = 256;

/// The size of a chunk, and of one read from the disk, of a replay that paused. So the loop and the
/// disk are busy for a shorter time when the next publish arrives. A sync that waits for 256 KiB of
/// reads takes half a millisecond.
const CHUNK_SIZE_THROTTLED: usize = 64 * 1024;

/// The time in which another single publish is expected. After it, the chunks grow again. Their
/// size doubles with each chunk that is delivered whole.
const THROTTLE_TIME: Duration = Duration::from_millis(100);

/// Reads on the loop in one turn.
const INLINE_READS_MAX: usize = 64;

/// The limit on reads, and the replays that wait for it.
#[derive(Debug, Default)]
pub(super) struct ReadSlots {
    /// Reads that are in progress, including those whose result is no longer needed.
    under_way: usize,
    /// Chunks not yet delivered.
    ready: usize,
    /// Bytes of the chunks of replays with a rate.
    paced_size: usize,
    waiting: VecDeque<ReplayId>,
}

impl ReadSlots {
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

    /// The replay has delivered or dropped its chunk.
    fn remove(&mut self, replay: &Replay, chunk: &Chunk) {
        match replay.pace {
            Some(_) => self.paced_size -= chunk.size,
            None => self.ready -= 1,
        }
    }
}

impl Bookmarks {
    /// Serves these subscriptions of one session from the log. The replay begins at the lowest of
    /// their places, and each subscription receives the messages after its place.
    pub(crate) fn start_replay(
        &mut self,
        cx: &mut Context,
        session: SessionId,
        mut subscriptions: Vec<SubscriptionId>,
    ) {
        // A range may be empty, or have ended before the subscription was paused.
        for subscription in &subscriptions {
            self.reach(cx, *subscription, self.place(cx, *subscription));
        }
        subscriptions.retain(|subscription| cx.clients.subscriptions.get(*subscription).is_some());
        match subscriptions[..] {
            [] => (),
            [subscription]
                if self.place(cx, subscription) >= cx.log.served && !self.is_durable(cx, subscription) =>
            {
                self.follow_tail(cx, subscription);
            }
            _ => self.begin_replay(cx, session, subscriptions),
        }
    }

    /// As [`Bookmarks::start_replay`], also at the tail itself.
    pub(crate) fn begin_replay(
        &mut self,
        cx: &mut Context,
        session: SessionId,
        subscriptions: Vec<SubscriptionId>,
    ) {
        let members = self.members(cx, &subscriptions);
        let place = ReplayPosition { after: self.lowest_place(cx, &subscriptions), served: 0 };
        let paces = subscriptions
            .iter()
            .filter_map(|id| self.subscriptions.get_mut(*id).and_then(|progress| progress.pace.take()));
        let pace = paces.reduce(Pace::later);
        let is_durable = subscriptions.iter().any(|id| self.is_durable(cx, *id));
        let replay = Replay {
            session,
            subscriptions: subscriptions.clone(),
            members,
            place,
            read_position: place,
            cursor: None,
            reading: None,
            ready: None,
            is_queued: false,
            error: None,
            costly: None,
            is_heavy: false,
            chunk_size_max: if pace.is_some() { PACED_CHUNK_SIZE_MIN } else { CHUNK_SIZE_MAX },
            throttled_until: cx.clock.now.instant,
            is_durable,
            pace,
        };
        let id = self.replays.insert(replay);
        for subscription in subscriptions {
            if let Some(progress) = self.subscriptions.get_mut(subscription) {
                progress.stage = Source::Replaying(id);
            }
        }
        cx.session(session).replays.push(id);
        self.runnable.push_back(id);
    }

    /// Detaches a bookmark subscription from the source of its messages. Its place in the log is
    /// then exact.
    pub(crate) fn detach_bookmark(&mut self, cx: &mut Context, id: SubscriptionId) {
        let (served, appended) = (cx.log.served, cx.log.appended());
        self.awaiting.remove(&id);
        self.switching.remove(&id);
        self.wanting_deletions.remove(&id);
        let Subscription { wanted: Interest { selector, .. }, delivery, .. } =
            &mut cx.clients.subscriptions.all[id];
        let Some(progress) = self.subscriptions.get_mut(id) else { return };
        match std::mem::replace(&mut progress.stage, Source::Detached) {
            Source::Detached => (),
            Source::Tailing => {
                cx.topics.remove(selector, Stage::Persisted, id);
                progress.after = progress.after.max(served);
            }
            Source::SwitchingToLive { .. } => {
                // The log has the held messages.
                delivery.gate.open();
                cx.topics.remove(selector, Stage::Persisted, id);
                cx.topics.remove(selector, Stage::Published, id);
                progress.after = progress.after.max(served);
            }
            Source::Live => {
                cx.topics.remove(selector, Stage::Published, id);
                progress.after = progress.after.max(appended);
            }
            Source::Replaying(replay) => self.leave_replay(cx, replay, id),
        }
    }

    /// Removes one subscription from a replay. The other subscriptions continue at their places.
    pub(crate) fn leave_replay(&mut self, cx: &mut Context, id: ReplayId, subscription: SubscriptionId) {
        self.rewind(id);
        let replay = self.replay(id);
        let Some(index) = replay.subscriptions.iter().position(|member| *member == subscription) else {
            return;
        };
        let after = replay.after(index);
        replay.subscriptions.remove(index);
        if index < replay.place.served as usize {
            replay.place.served -= 1;
        }
        let rest = replay.subscriptions.clone();
        // The removed subscription may have been the only one that wanted the next messages.
        let lowest = self.lowest_place(cx, &rest);
        let replay = self.replay(id);
        if lowest > replay.place.after {
            replay.place = ReplayPosition { after: lowest, served: 0 };
        }
        replay.read_position = replay.place;
        let mut pace = replay.pace.clone();
        if let Some(pace) = &mut pace {
            pace.rest();
        }
        if let Some(progress) = self.subscriptions.get_mut(subscription) {
            // The replay may not have reached the place where the subscription joined it.
            progress.after = progress.after.max(after);
            progress.pace = pace;
        }
        if rest.is_empty() {
            self.remove_replay(cx, id);
        } else {
            self.replay(id).members = self.members(cx, &rest);
            self.runnable.push_back(id);
        }
    }

    fn remove_replay(&mut self, cx: &mut Context, id: ReplayId) {
        self.rewind(id);
        let Some(replay) = self.replays.remove(id) else { return };
        cx.session(replay.session).replays.retain(|other| *other != id);
        self.caught_up_groups.retain(|other| *other != id);
        self.yielding.remove(&id);
        cx.clock.timers.clear(Timer::Replay(id));
        if replay.is_queued {
            self.read_slots.waiting.retain(|other| *other != id);
        }
    }

    /// Drops the data that was read ahead for a replay.
    fn rewind(&mut self, id: ReplayId) {
        let replay = &mut self.replays[id];
        if let Some(chunk) = &replay.ready {
            self.read_slots.remove(replay, chunk);
        }
        replay.rewind();
    }

    /// A connection that accepts no bytes holds no chunk that others could use.
    pub(crate) fn give_back_reads(&mut self, cx: &mut Context, id: SessionId) {
        for replay in cx.session(id).replays.clone() {
            if self.read_slots.waiting.is_empty() && self.read_slots.paced_size < PACED_SIZE_MAX {
                return;
            }
            if self.replay(replay).ready.is_some() {
                self.rewind(replay);
            }
        }
    }

    /// These replays may continue before the turn ends.
    pub(crate) fn wake(&mut self, replays: &[ReplayId]) {
        self.runnable.extend(replays);
    }

    /// Advances every replay as far as possible, then the queued replays as long as there is room.
    pub(crate) fn serve_replays(&mut self, cx: &mut Context) {
        self.runnable.extend(std::mem::take(&mut self.runnable_next_turn));
        if !self.yielding.is_empty() && !cx.log.has_lone_publish() {
            for id in std::mem::take(&mut self.yielding) {
                cx.clock.timers.clear(Timer::Replay(id));
                let throttled_until = cx.clock.now.instant + THROTTLE_TIME;
                let replay = self.replay(id);
                replay.chunk_size_max = CHUNK_SIZE_THROTTLED;
                replay.throttled_until = throttled_until;
                self.runnable.push_back(id);
            }
        }
        self.wake_durable(cx);
        let mut inline_reads_left = INLINE_READS_MAX;
        let deadline = cx.clock.slices.deadline(PASS);
        loop {
            while let Some(id) = self.runnable.pop_front() {
                self.serve_replay(cx, id, &mut inline_reads_left);
                if cx.clock.slices.is_past(deadline) {
                    let has_more = self.read_slots.has_room() && !self.read_slots.waiting.is_empty();
                    cx.clock.wants_turn |= has_more || !self.runnable.is_empty();
                    return;
                }
            }
            // One at a time, because a waiting replay may have no more to read, or its connection
            // may accept no data.
            if !self.read_slots.has_room() {
                return;
            }
            let Some(id) = self.read_slots.waiting.pop_front() else { return };
            self.replay(id).is_queued = false;
            self.runnable.push_back(id);
        }
    }

    /// Continues with the durable replays when all destinations have further records.
    fn wake_durable(&mut self, cx: &Context) {
        if self.awaiting_destinations.is_empty() {
            return;
        }
        let end = cx.log.replay_end(true);
        let (replays, runnable) = (&self.replays, &mut self.runnable);
        self.awaiting_destinations.retain(|id| {
            let Some(replay) = replays.get(*id) else { return false };
            let may_go = replay.place.after < end;
            if may_go {
                runnable.push_back(*id);
            }
            !may_go
        });
    }

    /// Advances a replay as far as possible for now.
    fn serve_replay(&mut self, cx: &mut Context, id: ReplayId, inline_reads_left: &mut usize) {
        // A replay that dropped its chunk while it waits reads again when its time has been
        // reached.
        if cx.clock.timers.is_set(Timer::Replay(id)) || self.yields_to_publish(cx, id) {
            return;
        }
        loop {
            let Some(replay) = self.replays.get_mut(id) else { return };
            let session_id = replay.session;
            if !cx.clients.sessions.all[session_id].has_room() {
                if let Some(pace) = &mut replay.pace {
                    pace.rest();
                }
                return;
            }
            if let Some(mut chunk) = replay.ready.take() {
                let is_new = chunk.taken_count == 0;
                if !self.hand_over(cx, id, &mut chunk) {
                    self.replay(id).ready = Some(chunk);
                    return;
                }
                let replay = &mut self.replays[id];
                self.read_slots.remove(replay, &chunk);
                // When a chunk is delivered completely on its arrival, the next chunk may be
                // larger, which has a lower cost. A replay with a rate needs no larger chunk than
                // the rate requires.
                let may_grow = cx.clock.now.instant >= replay.throttled_until
                    && (replay.pace.is_none() || chunk.size >= replay.chunk_size_max);
                if is_new && may_grow {
                    replay.chunk_size_max = CHUNK_SIZE_MAX.min(replay.chunk_size_max * 2);
                }
                replay.place = chunk.next;
                self.reach_together(cx, id);
                continue;
            }
            if let Some(error) = replay.error.take() {
                return self.end_replay(cx, id, &error);
            }
            if let Some((member, size)) = replay.costly.take() {
                let subscription = replay.subscriptions[member];
                return cx.end_costly(subscription, size);
            }
            if replay.reading.is_some() || replay.is_queued {
                return;
            }
            let is_durable = replay.is_durable;
            if replay.place.served == 0 && replay.place.after >= cx.log.replay_end(is_durable) {
                if let Some(pace) = &mut replay.pace {
                    pace.rest();
                }
                if is_durable {
                    return self.awaiting_destinations.push(id);
                }
                match replay.subscriptions.len() {
                    1 => self.finish_replay(cx, id),
                    _ => {
                        self.caught_up_groups.push(id);
                        self.resume_positions.want();
                    }
                }
                return;
            }
            if !self.read_on(cx, id, inline_reads_left) {
                return;
            }
        }
    }

    /// Reads the next records of a replay: records near the tail at once, others in a job. Returns
    /// whether the records are available now.
    fn read_on(&mut self, cx: &mut Context, id: ReplayId, inline_reads_left: &mut usize) -> bool {
        if self.is_near_tail(cx, id) && !self.replay(id).is_heavy {
            if *inline_reads_left == 0 {
                self.serve_next_turn(cx, id);
                return false;
            }
            *inline_reads_left -= 1;
            let found = self.next_read(cx, id, true).run(cx.messages.unreadable.arena());
            self.add_chunk(cx, id, found);
            return true;
        }
        if self.read_slots.has_room() {
            let reading = self.next_read(cx, id, false);
            let number = cx.begin_job(
                move |arena| reading.run(arena),
                move |bookmarks: &mut Bookmarks, cx, number, found| bookmarks.read(cx, id, number, found),
            );
            self.replay(id).reading = Some(number);
            self.read_slots.under_way += 1;
        } else {
            self.replay(id).is_queued = true;
            self.read_slots.waiting.push_back(id);
        }
        false
    }

    /// Whether the replay waits until a single publish is persistent. This is checked again when
    /// the publish is persistent, or when the replay has paused for long enough. Two kinds of
    /// replay do not wait: a replay with a rate, which leaves time to others anyway, and a replay
    /// that is about to reach the tail.
    fn yields_to_publish(&mut self, cx: &mut Context, id: ReplayId) -> bool {
        let Some(replay) = self.replays.get(id) else { return false };
        if replay.pace.is_some() || !cx.log.has_lone_publish() || self.is_near_tail(cx, id) {
            return false;
        }
        // A replay that is already in the list was woken by its timer.
        let begins = !self.yielding.remove(&id);
        if begins {
            self.yielding.insert(id);
            cx.clock.timers.set(Timer::Replay(id), cx.clock.now.instant + YIELD_MAX);
        }
        begins
    }

    /// Passes the part of a chunk that may be sent now to the connection, or holds it for
    /// conflation. Returns false when a part remains, for which a timer is set.
    fn hand_over(&mut self, cx: &mut Context, id: ReplayId, chunk: &mut Chunk) -> bool {
        let session_id = self.replays[id].session;
        if chunk.items.is_empty() {
            if !chunk.frames.is_empty() {
                let frames = std::mem::take(&mut chunk.frames);
                for (id, sent) in self.replays[id].subscriptions.iter().zip(&chunk.sent) {
                    cx.clients.counters.delivered += sent.message_count;
                    cx.session(session_id).outbox.note_messages(sent.message_count);
                    cx.clients.subscriptions.note_sent(*id, sent.message_count, sent.size as usize);
                }
                cx.tell_frames_delivered(session_id, &frames);
                cx.session(session_id).outbox.put_replayed(frames);
                cx.touch(session_id);
            }
            return true;
        }
        let members = self.replays[id].members.clone();
        let mut frames = Vec::new();
        for index in chunk.taken_count..chunk.items.len() {
            let item = chunk.items[index];
            if !self.may_go(cx, id, &item) {
                break;
            }
            let before = index.checked_sub(1).map(|before| chunk.items[before]);
            let (frame_start, key_start) = before.map_or((0, 0), |item| (item.frame_end, item.key_end));
            let frame = &chunk.frames[frame_start..item.frame_end];
            let subscription = self.replays[id].subscriptions[item.member];
            if members[item.member].conflation_key.is_some() {
                cx.hold(subscription, &chunk.keys[key_start..item.key_end], frame);
            } else {
                frames.extend_from_slice(frame);
                cx.session(session_id).outbox.note_messages(1);
                cx.clients.subscriptions.note_sent(subscription, 1, frame.len());
                cx.clients.counters.delivered += 1;
            }
            self.replay(id).place = item.place;
            chunk.taken_count += 1;
        }
        if !frames.is_empty() {
            cx.tell_frames_delivered(session_id, &frames);
            cx.session(session_id).outbox.put_replayed(frames);
            cx.touch(session_id);
        }
        chunk.taken_count == chunk.items.len()
    }

    /// Whether a message may be sent now. If not, its replay is checked again when it may be sent.
    fn may_go(&mut self, cx: &mut Context, id: ReplayId, item: &Item) -> bool {
        let now = cx.clock.now.instant;
        let Some(pace) = &mut self.replays[id].pace else { return true };
        let opens_at = pace.opens_at(now, item.timestamp);
        if opens_at > now {
            let wakes_at = pace.wakes_at(opens_at);
            cx.clock.timers.set(Timer::Replay(id), wakes_at);
            return false;
        }
        pace.went(now, item.data_size, item.timestamp);
        true
    }

    fn is_near_tail(&self, cx: &mut Context, id: ReplayId) -> bool {
        let place = self.replays[id].read_position;
        cx.log.served.get().saturating_sub(place.after.get()) <= INLINE_RECORDS_MAX
    }

    fn serve_next_turn(&mut self, cx: &mut Context, id: ReplayId) {
        self.runnable_next_turn.push(id);
        cx.clock.wants_turn = true;
    }

    /// The next read of a replay. It ends at the next goal, so that the goal is handled between the
    /// right two messages.
    fn next_read(&mut self, cx: &Context, id: ReplayId, is_inline: bool) -> Reading {
        let replay = &self.replays[id];
        let place = replay.read_position;
        let progress = |id: &SubscriptionId| self.progress(*id);
        let awaited_positions = replay
            .subscriptions
            .iter()
            .filter_map(progress)
            .flat_map(|progress| progress.awaited_positions());
        let limit = awaited_positions
            .filter(|goal| *goal > place.after)
            .fold(cx.log.replay_end(replay.is_durable), Position::min);
        let now = cx.clock.now.wall;
        let (reader, turn_effort) = (&cx.log.reader, cx.clock.turn_effort);
        let replay = &mut self.replays[id];
        let cursor = replay.cursor.take().unwrap_or_else(|| reader.cursor(place.after));
        let members = replay.members.clone();
        let is_itemized = replay.pace.is_some() || members.iter().any(|m| m.conflation_key.is_some());
        let chunk_size_max = replay.chunk_size_max;
        let inline_effort = is_inline.then_some(turn_effort);
        Reading { cursor, place, limit, members, chunk_size_max, is_itemized, now, inline_effort }
    }

    /// A read of a replay has been done. One that panicked ends its subscriptions, because they
    /// would otherwise wait forever.
    fn read(&mut self, cx: &mut Context, id: ReplayId, number: u64, found: Option<Found>) {
        self.read_slots.under_way -= 1;
        let Some(replay) = self.replays.get_mut(id).filter(|replay| replay.reading == Some(number)) else {
            return;
        };
        replay.reading = None;
        match found {
            Some(found) => self.add_chunk(cx, id, found),
            None => self.end_subscriptions(cx, id, Code::Internal, "reading the journal failed"),
        }
    }

    fn add_chunk(&mut self, cx: &mut Context, id: ReplayId, found: Found) {
        let replay = &mut self.replays[id];
        replay.read_position = found.chunk.next;
        self.read_slots.add(replay, &found.chunk);
        replay.ready = Some(found.chunk);
        match found.cursor {
            Ok(cursor) => replay.cursor = Some(cursor),
            Err(error) => replay.error = Some(error),
        }
        replay.is_heavy = found.was_inline && found.costly.is_some();
        replay.costly = found.costly.filter(|_| !found.was_inline);
        self.runnable.push_back(id);
        if self.read_slots.paced_size > PACED_SIZE_MAX {
            let has_chunk = |other: &ReplayId| {
                let other = &self.replays[*other];
                other.pace.is_some() && other.ready.is_some()
            };
            let longest = cx.clock.timers.waiting_replays().find(has_chunk);
            longest.into_iter().for_each(|longest| self.rewind(longest));
        }
        let session = self.replays[id].session;
        if !cx.session(session).is_writable {
            self.give_back_reads(cx, session);
        }
    }

    /// Handles the goals that the subscriptions of a replay have reached.
    fn reach_together(&mut self, cx: &mut Context, id: ReplayId) {
        let replay = &self.replays[id];
        let reached = |(index, subscription): (usize, &SubscriptionId)| (*subscription, replay.after(index));
        for (subscription, after) in replay.subscriptions.iter().enumerate().map(reached).collect::<Vec<_>>()
        {
            self.reach(cx, subscription, after);
        }
    }

    /// A subscription has reached `reached`. Sends its `completed` acknowledgement if it is due,
    /// and ends the subscription if it ends there.
    pub(crate) fn reach(&mut self, cx: &mut Context, id: SubscriptionId, reached: Position) {
        let Some(subscription) = cx.clients.subscriptions.get_mut(id) else { return };
        let (session, number) = (subscription.session, subscription.number);
        let Some(progress) = self.subscriptions.get_mut(id) else { return };
        let is_over = matches!(progress.until, Some(EndPosition::At(end)) if end <= reached);
        let completion = progress.completed.take_if(|completion| completion.goal <= reached || is_over);
        if is_over || completion.is_some() {
            cx.deliver_all_conflated(id);
        }
        if let Some(completion) = completion {
            cx.acknowledge_command(session, AckKind::Completed, completion.command, number);
        }
        if is_over && cx.clients.subscriptions.get(id).is_some() {
            self.end_range(cx, id);
        }
    }

    /// The journal accepts no more writes. No record above the persisted position will be
    /// delivered, so no subscription waits for one.
    pub(crate) fn clamp_awaited(&mut self, cx: &mut Context) {
        let persisted = cx.log.visible();
        for progress in self.subscriptions.values_mut() {
            if let Some(completion) = &mut progress.completed {
                completion.goal = completion.goal.min(persisted);
            }
            if let Some(EndPosition::At(end)) = &mut progress.until {
                *end = persisted.min(*end);
            }
        }
        cx.clock.wants_turn = true;
    }

    /// A replay has reached the live tail. Its subscriptions follow the tail from now on.
    fn finish_replay(&mut self, cx: &mut Context, id: ReplayId) {
        let after = self.replay(id).place.after;
        let subscriptions = std::mem::take(&mut self.replay(id).subscriptions);
        let mut pace = self.replay(id).pace.take();
        self.remove_replay(cx, id);
        for subscription in subscriptions {
            if let Some(progress) = self.subscriptions.get_mut(subscription) {
                progress.pace = pace.take();
                progress.after = progress.after.max(after);
                progress.stage = Source::Detached;
            }
            self.follow_tail(cx, subscription);
        }
    }

    /// A replay has found damage. Its subscriptions end there.
    fn end_replay(&mut self, cx: &mut Context, id: ReplayId, error: &JournalError) {
        self.end_subscriptions(cx, id, code_of(error), &error.to_string());
    }

    fn end_subscriptions(&mut self, cx: &mut Context, id: ReplayId, code: Code, reason: &str) {
        for subscription in self.replay(id).subscriptions.clone() {
            cx.end_subscription(subscription, code, reason);
        }
    }

    /// The place after which a bookmark subscription that no replay serves wants messages.
    fn place(&self, cx: &Context, id: SubscriptionId) -> Position {
        self.running(cx, id).map_or(cx.log.served, |progress| progress.after)
    }

    /// The lowest place of several subscriptions. For a subscription in a replay, this is the place
    /// where it joined the replay.
    fn lowest_place(&self, cx: &Context, subscriptions: &[SubscriptionId]) -> Position {
        subscriptions.iter().map(|id| self.place(cx, *id)).min().unwrap_or_default()
    }

    fn is_durable(&self, cx: &Context, id: SubscriptionId) -> bool {
        self.running(cx, id).is_some_and(|progress| progress.delivery.is_fully_durable)
    }

    fn members(&self, cx: &Context, subscriptions: &[SubscriptionId]) -> Members {
        let member = |id: &SubscriptionId| {
            let subscription = &cx.clients.subscriptions.all[*id];
            let encoder = cx.clients.sessions.all[subscription.session].outbox.encoder();
            let progress = self.progress(*id);
            let conflation = subscription.delivery.conflation.as_ref();
            Member {
                number: subscription.number,
                encoder,
                wanted: subscription.wanted.clone(),
                after: progress.map_or(Position::default(), |progress| progress.after),
                wants_deletions: progress.is_some_and(|progress| progress.delivery.has_deletions),
                conflation_key: conflation.map(|conflation| conflation.key.clone()),
            }
        };
        subscriptions.iter().map(member).collect()
    }
}
