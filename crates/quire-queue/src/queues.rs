//! [`Queues`]: all queues of an instance, the subscriptions they share, and the order of calls.

use std::collections::{HashMap, VecDeque};

use rustc_hash::FxBuildHasher;

use super::config::Semantics;
use super::event::{
    Change, ChangeKind, Delivery, Enqueued, LeaseEvent, LeaseEventKind, LostLease, Matcher, Move, MoveKind,
    QueueEntry,
};
use super::id::{ConnectionId, QueueId, Time};
use super::lease::{Lease, Leases};
use super::messages::{NEVER, NewMessage};
use super::settle::defer;
use super::state::{QueueState, Totals};
use super::subscription::Subscription;
use quire_journal::{Bookmark, Position};

/// Leases and messages whose time has come that end in one portion: a few milliseconds of work.
pub const ENDS_PER_PORTION_MAX: u32 = 4096;

/// The shortest time between two portions of ends, so that a million messages that expire at once
/// do not hold up the caller's loop.
const PORTION_INTERVAL_NS: u64 = 1_000_000;

/// The most questions to the [`Matcher`] for one delivery, so that a new filter over a deep queue
/// does not hold up the caller's loop.
pub const QUESTIONS_PER_POLL_MAX: u32 = 4096;

/// All queues of one instance. See the [module](super) for the order of calls.
#[derive(Debug, Default)]
pub struct Queues {
    pub(super) queues: Vec<QueueState>,
    pub(super) subscriptions: Vec<Subscription>,
    pub(super) unused: Vec<u32>,
    pub(super) by_connection: HashMap<ConnectionId, Vec<u32>, FxBuildHasher>,
    pub(super) leases: Leases,
    /// Queues that may have something to deliver, each once; they are served in turn, one message
    /// each.
    pub(super) line: VecDeque<u32>,
    /// Queues that wait for [`Queues::retry`].
    pub(super) starved: Vec<u32>,
    /// The numbers of removed queues, which queues that are added later get.
    pub(super) removed: Vec<u32>,
    pub(super) barriers: VecDeque<Delivery>,
    pub(super) changes: VecDeque<Change>,
    pub(super) lost: VecDeque<LostLease>,
    pub(super) lease_events: VecDeque<LeaseEvent>,
    pub(super) moves: VecDeque<Move>,
    pub(super) next_order: u64,
    pub(super) now: u64,
    /// No later than the next time at which something must happen.
    due: Option<u64>,
    ends_per_portion: Option<u32>,
    questions_per_poll: Option<u32>,
    /// See [`Queues::stop`].
    pub(super) is_stopping: bool,
}

/// Settings.
impl Queues {
    /// No queues.
    pub fn new() -> Self {
        Queues::default()
    }

    /// Changes how many questions one call may ask the matcher ([`QUESTIONS_PER_POLL_MAX`] if never
    /// called).
    pub fn set_questions_per_poll(&mut self, limit: u32) {
        self.questions_per_poll = Some(limit.max(1));
    }

    /// Changes how many leases and messages end in one portion ([`ENDS_PER_PORTION_MAX`] if never
    /// called).
    pub fn set_ends_per_portion(&mut self, limit: u32) {
        self.ends_per_portion = Some(limit.max(1));
    }

    /// The server stops. From now on, a delivery does not count when its lease ends with its
    /// subscription: the server ends it, and not the consumer.
    pub fn stop(&mut self) {
        self.is_stopping = true;
    }
}

/// Messages in.
impl Queues {
    /// Offers a message to a queue, in log order. Messages come from the log, after they are
    /// persisted.
    pub fn enqueue(&mut self, queue: QueueId, position: Position, entry: QueueEntry) -> Enqueued {
        let now = self.now;
        let Some(state) = self.live_mut(queue) else { return Enqueued::Known };
        let position = position.get();
        if position <= state.last_position {
            return Enqueued::Known;
        }
        if let Some(target) = state.config.target_queue_depth {
            let inactive = &mut state.inactive;
            let is_new = inactive.count == 0 || position > inactive.last_position;
            if is_new && (inactive.count > 0 || state.messages.present() >= target) {
                inactive.count += 1;
                inactive.last_position = position;
                return Enqueued::Inactive;
            }
            if !is_new {
                if state.messages.present() >= target {
                    return Enqueued::Inactive;
                }
                inactive.count -= 1;
                if let Some(acknowledged) = take_deferred(state, position) {
                    return acknowledged;
                }
            }
        }
        state.last_position = position;
        state.totals.entered += 1;
        let lifetime = state.config.lifetime_ns(position, entry.expiration_s);
        let expires = lifetime.map_or(NEVER, |lifetime| entry.received.get().saturating_add(lifetime));
        let priority = entry.priority.filter(|_| state.config.priority);
        let (bookmark, received) = (entry.bookmark, entry.received.get());
        let message = NewMessage { position, bookmark, received, priority, expires };
        let ordinal = state.messages.push(message);
        let mut due = expires;
        if let Some(until) = entry.delayed_until.filter(|until| until.get() > now) {
            due = state.delay(ordinal, until.get(), Vec::new());
        }
        if let Some(counts) = state.inactive.counts.remove(&position) {
            state.messages.set_counts(ordinal, counts.deliveries, counts.cancels);
            if counts.delayed_until > 0 {
                due = state.delay(ordinal, counts.delayed_until, Vec::new());
            }
        }
        if entry.barrier && state.config.barrier {
            state.barriers.push_back(ordinal);
        }
        if state.followed_to.is_some() && state.delays.until(ordinal).is_none() {
            self.note_move(queue.get(), position, bookmark, MoveKind::Entered);
        }
        self.wake_by(due);
        self.line_up(queue.get());
        Enqueued::Active
    }

    /// Which messages a queue with a target depth needs next: those after this position, and how
    /// many.
    pub fn wanted(&self, queue: QueueId) -> Option<(Position, u64)> {
        let state = self.live(queue)?;
        let room = state.config.target_queue_depth?.saturating_sub(state.messages.present());
        let count = room.min(state.inactive.count);
        (count > 0).then_some((Position::new(state.last_position), count))
    }

    /// Applies a change that was logged before a restart. It makes no output. Feed messages and
    /// changes in log order, and neither subscribe nor advance before the end.
    pub fn restore(&mut self, change: Change) {
        let Some(state) = self.live_mut(change.queue) else { return };
        let position = change.position.get();
        let Some(ordinal) = state.messages.find(position) else {
            let is_inactive = position > state.last_position;
            match change.kind {
                ChangeKind::Cancelled { cancels } if is_inactive => {
                    state.inactive.counts.entry(position).or_default().cancels = cancels;
                }
                ChangeKind::Returned { deliveries } if is_inactive => {
                    state.inactive.counts.entry(position).or_default().deliveries = deliveries;
                }
                ChangeKind::Delayed { until } if is_inactive => {
                    state.inactive.counts.entry(position).or_default().delayed_until = until.get();
                }
                ChangeKind::Cancelled { .. } | ChangeKind::Returned { .. } | ChangeKind::Delayed { .. } => {}
                _ => {
                    defer(state, position);
                }
            }
            return;
        };
        let totals = &mut state.totals;
        match change.kind {
            ChangeKind::Cancelled { cancels } => {
                // The log does not contain other deliveries. A snapshot may know them.
                let (deliveries, _) = state.messages.counts(ordinal);
                return state.messages.set_counts(ordinal, deliveries, cancels);
            }
            ChangeKind::Returned { deliveries } => {
                let (_, cancels) = state.messages.counts(ordinal);
                return state.messages.set_counts(ordinal, deliveries, cancels);
            }
            ChangeKind::Delayed { until } => {
                let due = state.delay(ordinal, until.get(), Vec::new());
                return self.wake_by(due);
            }
            ChangeKind::Acknowledged => totals.acknowledged += 1,
            ChangeKind::Expired { .. } => totals.expired += 1,
            ChangeKind::Taken => totals.taken += 1,
            ChangeKind::Released => totals.released += 1,
        }
        state.remove(ordinal);
        self.audit(change.queue.get());
    }

    /// Begins the figures that count: the messages that the queues have now are those that entered.
    /// Called after the last [`restore`](Self::restore), so that earlier events of the log are not
    /// counted.
    pub fn begin_figures(&mut self) {
        for state in &mut self.queues {
            state.totals = Totals { entered: state.messages.present(), ..Totals::default() };
        }
    }

    /// The position up to which everything of the queue is settled: recovery can start after it,
    /// and the log before it is not needed. `offered`: all messages of the queue up to there have
    /// been offered to it.
    pub fn settled(&self, queue: QueueId, offered: Position) -> Option<Position> {
        let state = self.live(queue)?;
        let first = state.messages.next_present(0).map(|ordinal| state.messages.position(ordinal) - 1);
        let behind_active = if state.inactive.count > 0 { state.last_position } else { offered.get() };
        Some(Position::new(first.unwrap_or(behind_active)))
    }
}

/// Outputs and time.
impl Queues {
    /// The next delivery at `now`; `None` when there is nothing more to deliver, or when as many
    /// questions were asked as one call may: [`poll_timeout`](Self::poll_timeout) is not in the
    /// future then. Call it until `None`, after every input.
    pub fn poll_delivery(&mut self, now: Time, matcher: &mut dyn Matcher) -> Option<Delivery> {
        self.advance(now);
        let mut questions = self.questions_per_poll.unwrap_or(QUESTIONS_PER_POLL_MAX);
        loop {
            if let Some(delivery) = self.next_barrier_delivery() {
                return Some(delivery);
            }
            let queue = *self.line.front()?;
            let state = &mut self.queues[queue as usize];
            // Its next deliveries may include messages whose time has come. It lines up again when
            // those are gone.
            if state.is_behind {
                self.line.pop_front();
                state.in_line = false;
                continue;
            }
            state.is_starved = false;
            let admitted = state.admit(matcher, &mut questions);
            // The message with the highest priority is known only when everything has been
            // admitted.
            let may_deliver = admitted || !state.config.priority;
            if state.config.barrier && self.release_barrier(queue, matcher) {
                self.next_in_line();
                continue;
            }
            let delivery = if may_deliver { self.deliver(queue) } else { None };
            let is_starved = self.queues[queue as usize].is_starved;
            if delivery.is_some() || !(admitted || is_starved) {
                self.next_in_line();
                return delivery;
            }
            self.line.pop_front();
            self.queues[queue as usize].in_line = false;
            if is_starved && !self.starved.contains(&queue) {
                self.starved.push(queue);
            }
        }
    }

    /// Continues with the queues that wait for messages that were not available.
    pub fn retry(&mut self) {
        while let Some(queue) = self.starved.pop() {
            self.line_up(queue);
        }
    }

    /// The next change of state to be logged, in order.
    pub fn poll_change(&mut self) -> Option<Change> {
        self.changes.pop_front()
    }

    /// The last change that was not polled.
    pub fn last_change(&self) -> Option<Change> {
        self.changes.back().copied()
    }

    /// The next holder to notify that it no longer holds a message.
    pub fn poll_lost(&mut self) -> Option<LostLease> {
        self.lost.pop_front()
    }

    /// The events between messages and consumers, in order, of queues with
    /// [`record_leases`](super::QueueConfig::record_leases).
    pub fn poll_lease_event(&mut self) -> Option<LeaseEvent> {
        self.lease_events.pop_front()
    }

    /// The time at which the caller must call the engine (by [`advance`](Self::advance) or any
    /// input) even without an event. It is no later than the next end of a lease, of a delay or of
    /// a message's time. A time in the past means that there is work to continue.
    pub fn poll_timeout(&self) -> Option<Time> {
        if !self.line.is_empty() || !self.barriers.is_empty() {
            return Some(Time::new(self.now));
        }
        self.due.map(Time::new)
    }

    /// Ends leases, delays and messages whose time has come. Every call with a `now` does this
    /// first. When there are very many, they end in portions. Until all have ended, their queue
    /// delivers nothing. A command that settles such a message finds its lease over in any case.
    #[inline]
    pub fn advance(&mut self, now: Time) {
        self.now = self.now.max(now.get());
        if self.due.is_some_and(|due| due <= self.now) {
            self.end_what_is_due();
        }
    }

    /// A portion of the ends whose time has come.
    fn end_what_is_due(&mut self) {
        let mut left = self.ends_per_portion.unwrap_or(ENDS_PER_PORTION_MAX);
        let mut due = None;
        for queue in 0..self.queues.len() as u32 {
            self.end_leases(queue, &mut left);
            self.end_delays(queue, &mut left);
            self.end_waits(queue, &mut left);
            self.expire_due(queue, &mut left);
            let state = &mut self.queues[queue as usize];
            let lease = self.leases.next_due(&state.leases).map(|(deadline, _)| deadline);
            let delay = state.delays.next_due();
            let next = lease.into_iter().chain(delay).chain(state.messages.next_expiry());
            let next = next.chain(state.lapses.next_due()).min();
            let is_behind = next.is_some_and(|next| next <= self.now);
            let was_behind = std::mem::replace(&mut state.is_behind, is_behind);
            let next = next.map(|next| if is_behind { self.now + PORTION_INTERVAL_NS } else { next });
            due = due.into_iter().chain(next).min();
            if was_behind && !is_behind {
                self.line_up(queue);
            }
        }
        self.due = due;
    }
}

/// Helpers.
impl Queues {
    /// Hands the next message of a queue to a subscription.
    fn deliver(&mut self, queue: u32) -> Option<Delivery> {
        let state = &mut self.queues[queue as usize];
        let pick = state.pick(&mut self.leases)?;
        let (position, deliveries, cancels) = state.messages.lease(pick.ordinal);
        let deliveries = deliveries.saturating_add(1);
        let mut lease = Lease::new(queue, pick.subscription, position, pick.ordinal);
        lease.started = self.now;
        lease.deliveries = deliveries;
        lease.cancels = cancels;
        lease.taken = state.config.semantics == Semantics::AtMostOnce;
        lease.classes = pick.classes;
        state.totals.delivered += 1;
        let mut taken_bookmark = None;
        if lease.taken {
            taken_bookmark = state.messages.remove(pick.ordinal);
            state.totals.taken += 1;
            self.changes.push_back(Change {
                queue: QueueId::new(queue),
                position: Position::new(position),
                bookmark: taken_bookmark,
                kind: ChangeKind::Taken,
            });
        } else {
            lease.deadline = state.lease_ns.map_or(u64::MAX, |period| self.now.saturating_add(period));
        }
        let (deadline, taken) = (lease.deadline, lease.taken);
        let is_recorded = state.config.record_leases;
        lease.is_recorded = is_recorded;
        let subscription = &mut self.subscriptions[pick.subscription as usize];
        subscription.outstanding += 1;
        self.leases.insert(lease, &mut state.leases, &mut subscription.leases);
        self.reload(pick.subscription);
        self.wake_by(deadline);
        if taken {
            self.note_move(queue, position, taken_bookmark, MoveKind::Left);
        }
        if is_recorded {
            // An at-most-once message is no longer in the queue.
            let messages = &self.queues[queue as usize].messages;
            let bookmark = taken_bookmark.or_else(|| messages.bookmark(pick.ordinal));
            self.lease_events.push_back(LeaseEvent {
                queue: QueueId::new(queue),
                position: Position::new(position),
                bookmark,
                connection: self.subscriptions[pick.subscription as usize].connection,
                kind: LeaseEventKind::Delivered,
            });
        }
        self.audit(queue);
        Some(Delivery {
            queue: QueueId::new(queue),
            position: Position::new(position),
            subscription: self.id(pick.subscription),
            lease_deadline: (deadline != u64::MAX).then_some(Time::new(deadline)),
            delivery_count: deliveries,
            cancel_count: cancels,
            barrier: false,
        })
    }

    /// Releases the barrier at the head of a queue if everything before it is settled. Returns
    /// whether it did.
    fn release_barrier(&mut self, queue: u32, matcher: &mut dyn Matcher) -> bool {
        let state = &mut self.queues[queue as usize];
        let Some(barrier) = state.barrier() else { return false };
        let is_first = state.messages.next_present(0) == Some(barrier) && state.leases.len() == 0;
        let is_delayed = state.delays.until(barrier).is_some();
        if !is_first || is_delayed || state.subscriptions == 0 {
            return false;
        }
        let position = Position::new(state.messages.position(barrier));
        let cancel_count = state.messages.counts(barrier).1;
        let Some(mut subscriptions) = state.barrier_subscriptions(barrier, matcher) else { return false };
        subscriptions.sort_unstable_by_key(|slot| self.subscriptions[*slot as usize].order);
        let bookmark = state.messages.remove(barrier);
        state.barriers.pop_front();
        state.totals.released += 1;
        let queue_id = QueueId::new(queue);
        for slot in subscriptions {
            self.barriers.push_back(Delivery {
                queue: queue_id,
                position,
                subscription: self.id(slot),
                lease_deadline: None,
                delivery_count: 0,
                cancel_count,
                barrier: true,
            });
        }
        self.changes.push_back(Change { queue: queue_id, position, bookmark, kind: ChangeKind::Released });
        self.note_move(queue, position.get(), bookmark, MoveKind::Left);
        self.line_up(queue);
        self.audit(queue);
        true
    }

    fn next_barrier_delivery(&mut self) -> Option<Delivery> {
        while let Some(delivery) = self.barriers.pop_front() {
            if self.slot(delivery.subscription).is_some() {
                return Some(delivery);
            }
        }
        None
    }

    /// The queue that was served goes to the end of the line.
    fn next_in_line(&mut self) {
        if self.line.len() > 1 {
            self.line.rotate_left(1);
        }
    }

    pub(super) fn line_up(&mut self, queue: u32) {
        if !std::mem::replace(&mut self.queues[queue as usize].in_line, true) {
            self.line.push_back(queue);
        }
    }

    pub(super) fn wake_by(&mut self, time: u64) {
        if time != u64::MAX {
            self.due = Some(self.due.map_or(time, |due| due.min(time)));
        }
    }

    /// Notes an event between a message and a consumer, where events are recorded. The message has
    /// a position, and a bookmark when it was active.
    #[inline]
    pub(super) fn note(
        &mut self,
        queue: u32,
        message: (u64, Option<Bookmark>),
        connection: ConnectionId,
        kind: LeaseEventKind,
    ) {
        let is_recorded = self.queues[queue as usize].config.record_leases;
        self.note_if(is_recorded, queue, message, connection, kind);
    }

    /// Notes an event of a lease. The end of a lease is recorded if its delivery was.
    #[inline]
    pub(super) fn note_if(
        &mut self,
        is_recorded: bool,
        queue: u32,
        (position, bookmark): (u64, Option<Bookmark>),
        connection: ConnectionId,
        kind: LeaseEventKind,
    ) {
        if is_recorded {
            let (queue, position) = (QueueId::new(queue), Position::new(position));
            self.lease_events.push_back(LeaseEvent { queue, position, bookmark, connection, kind });
        }
    }

    /// Invariant Q4: a message that entered is waiting or leased, or left in exactly one way.
    pub(super) fn audit(&self, queue: u32) {
        let state = &self.queues[queue as usize];
        let totals = &state.totals;
        let left = totals.acknowledged + totals.expired + totals.taken + totals.released;
        debug_assert_eq!(totals.entered, state.messages.present() + left);
        debug_assert!(state.messages.waiting() <= state.messages.present());
    }
}

/// Whether a message that becomes active now has been acknowledged already. Deferred
/// acknowledgements before it are for nothing.
fn take_deferred(state: &mut QueueState, position: u64) -> Option<Enqueued> {
    let mut found = None;
    while let Some(first) = state.inactive.deferred.first().filter(|first| *first <= position) {
        state.inactive.deferred.remove(first);
        if first == position {
            state.last_position = position;
            state.totals.entered += 1;
            state.totals.acknowledged += 1;
            found = Some(Enqueued::Acknowledged);
        }
    }
    found
}
