//! [`Queues`]: all queues of an instance, the subscriptions they share, and the order of calls.

use std::collections::{HashMap, VecDeque};

use rustc_hash::FxBuildHasher;
use smallvec::SmallVec;
use thiserror::Error;

use super::config::{ConfigError, Leasing, QueueConfig, Semantics};
use super::event::{
    Change, ChangeKind, Delivery, Enqueued, Entry, LostCause, LostLease, Matcher, Reasons, SubscriptionSpec,
    Verdict,
};
use super::id::{ConnectionId, FilterId, QueueId, SubscriptionId, Time};
use super::lease::{Lease, Leases, List, NONE};
use super::members::Load;
use super::messages::{NEVER, NewMessage};
use super::state::QueueState;
use quire_journal::Position;

/// The most queues of one instance: each costs a kilobyte when empty, and timers are found by looking at each.
pub const QUEUES_MAX: usize = 10_000;

/// The most subscriptions to queues of one instance: 100 times the connections that one event loop serves well.
pub const SUBSCRIPTIONS_MAX: usize = 1_000_000;

/// The most questions to the [`Matcher`] for one delivery, so that a new filter over a deep queue does not hold up the caller's loop.
pub const QUESTIONS_PER_POLL_MAX: u32 = 4096;

/// All queues of one instance. See the [module](super) for the order of calls.
#[derive(Debug, Default)]
pub struct Queues {
    pub(super) queues: Vec<QueueState>,
    subscriptions: Vec<Subscription>,
    unused: Vec<u32>,
    by_connection: HashMap<ConnectionId, Vec<u32>, FxBuildHasher>,
    pub(super) leases: Leases,
    /// Queues that may have something to deliver, each once; they are served in turn, one message each.
    line: VecDeque<u32>,
    /// Queues that wait for [`Queues::retry`].
    starved: Vec<u32>,
    barriers: VecDeque<Delivery>,
    changes: VecDeque<Change>,
    lost: VecDeque<LostLease>,
    next_order: u64,
    now: u64,
    /// No later than the next time at which something must happen.
    due: Option<u64>,
    questions_per_poll: Option<u32>,
}

/// One subscription, over all the queues it matches.
#[derive(Debug, Default)]
struct Subscription {
    generation: u32,
    live: bool,
    /// Gets nothing but barriers at present.
    held: bool,
    connection: ConnectionId,
    outstanding: u32,
    backlog: u32,
    order: u64,
    /// Most match one queue only: no second place in memory to look at then.
    memberships: SmallVec<[Membership; 1]>,
    leases: List,
}

impl Subscription {
    /// How full it is; one that is held has no room.
    fn load(&self) -> Load {
        let outstanding = if self.held { self.outstanding.max(self.backlog) } else { self.outstanding };
        Load { outstanding, backlog: self.backlog }
    }
}

/// The place of a subscription in a queue.
#[derive(Clone, Copy, Debug)]
struct Membership {
    queue: u32,
    class: u32,
    index: u32,
}

/// Why a subscription was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SubscribeError {
    /// There is no such queue.
    #[error("no queue has the number {queue}")]
    UnknownQueue {
        /// The number.
        queue: QueueId,
    },
    /// There is no such subscription (any more).
    #[error("no subscription has the number {subscription}")]
    UnknownSubscription {
        /// The number.
        subscription: SubscriptionId,
    },
    /// One queue twice in one subscription.
    #[error("the subscription names queue {queue} twice")]
    RepeatedQueue {
        /// The number.
        queue: QueueId,
    },
    /// As many subscriptions as there can be.
    #[error("more than {limit} subscriptions")]
    TooMany {
        /// The limit.
        limit: usize,
    },
}

/// Queues and their configuration.
impl Queues {
    /// No queues.
    pub fn new() -> Self {
        Queues::default()
    }

    /// Changes how many questions one call may ask the matcher ([`QUESTIONS_PER_POLL_MAX`] if never called).
    pub fn set_questions_per_poll(&mut self, limit: u32) {
        self.questions_per_poll = Some(limit.max(1));
    }

    /// Adds a queue.
    pub fn add_queue(&mut self, config: QueueConfig) -> Result<QueueId, ConfigError> {
        config.validate()?;
        if self.queues.len() == QUEUES_MAX {
            return Err(ConfigError::TooManyQueues { limit: QUEUES_MAX });
        }
        self.queues.push(QueueState::new(config));
        Ok(QueueId::new(self.queues.len() as u32 - 1))
    }

    /// The configuration of a queue.
    pub fn config(&self, queue: QueueId) -> Option<&QueueConfig> {
        self.queues.get(queue.get() as usize).map(|queue| &queue.config)
    }
}

/// Messages in.
impl Queues {
    /// Offers a message to a queue, in log order. Messages come from the log, after they are persisted.
    pub fn enqueue(&mut self, queue: QueueId, position: Position, entry: Entry) -> Enqueued {
        let Some(state) = self.queues.get_mut(queue.get() as usize) else { return Enqueued::Known };
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
        state.last_received = state.last_received.max(entry.received.get());
        state.totals.entered += 1;
        let lifetime = state.config.lifetime_ns(entry.expiration_s);
        let expires = lifetime.map_or(NEVER, |lifetime| state.last_received.saturating_add(lifetime));
        let priority = entry.priority.filter(|_| state.config.priority);
        let message = NewMessage { position, received: state.last_received, priority, expires };
        let ordinal = state.messages.push(message);
        if let Some(cancels) = state.inactive.cancels.remove(&position) {
            state.messages.set_counts(ordinal, 0, cancels);
        }
        if entry.barrier && state.config.barrier {
            state.barriers.push_back(ordinal);
        }
        self.wake_by(expires);
        self.line_up(queue.get());
        Enqueued::Active
    }

    /// Where a queue with a target depth wants to be fed from: the messages after this position, and how many of them.
    pub fn wanted(&self, queue: QueueId) -> Option<(Position, u64)> {
        let state = self.queues.get(queue.get() as usize)?;
        let room = state.config.target_queue_depth?.saturating_sub(state.messages.present());
        let count = room.min(state.inactive.count);
        (count > 0).then_some((Position::new(state.last_position), count))
    }

    /// Applies a change that was logged before a restart. No output comes of it. Feed messages and changes in log order, and neither
    /// subscribe nor advance before the end.
    pub fn restore(&mut self, change: Change) {
        let Some(state) = self.queues.get_mut(change.queue.get() as usize) else { return };
        let position = change.position.get();
        let Some(ordinal) = state.messages.find(position) else {
            match change.kind {
                ChangeKind::Cancelled { cancels } if position > state.last_position => {
                    state.inactive.cancels.insert(position, cancels);
                }
                ChangeKind::Cancelled { .. } => {}
                _ => {
                    defer(state, position);
                }
            }
            return;
        };
        let totals = &mut state.totals;
        match change.kind {
            ChangeKind::Cancelled { cancels } => return state.messages.set_counts(ordinal, 0, cancels),
            ChangeKind::Acknowledged => totals.acknowledged += 1,
            ChangeKind::Expired { .. } => totals.expired += 1,
            ChangeKind::Taken => totals.taken += 1,
            ChangeKind::Released => totals.released += 1,
        }
        state.messages.remove(ordinal);
        self.audit(change.queue.get());
    }

    /// The position up to which everything of the queue is settled: recovery can start after it, and the log before it is not needed.
    pub fn settled(&self, queue: QueueId) -> Option<Position> {
        let state = self.queues.get(queue.get() as usize)?;
        let first = state.messages.next_present(0).map(|ordinal| state.messages.position(ordinal) - 1);
        Some(Position::new(first.unwrap_or(state.last_position)))
    }
}

/// Subscriptions.
impl Queues {
    /// Adds a subscription. It takes part in deliveries from the next poll on.
    pub fn subscribe(&mut self, spec: &SubscriptionSpec) -> Result<SubscriptionId, SubscribeError> {
        self.check_spec(spec)?;
        let slot = match self.unused.pop() {
            Some(slot) => slot,
            None if self.subscriptions.len() == SUBSCRIPTIONS_MAX => {
                return Err(SubscribeError::TooMany { limit: SUBSCRIPTIONS_MAX });
            }
            None => {
                self.subscriptions.push(Subscription::default());
                self.subscriptions.len() as u32 - 1
            }
        };
        let generation = self.subscriptions[slot as usize].generation + 1;
        self.subscriptions[slot as usize] =
            Subscription { generation, live: true, connection: spec.connection, ..Subscription::default() };
        self.by_connection.entry(spec.connection).or_default().push(slot);
        self.join(slot, spec);
        Ok(self.id(slot))
    }

    /// Gives a subscription other queues, filters or another backlog at once. Its leases stay, and so does what it has outstanding
    /// (reference: queues-and-transaction-log 1.15). Among the others it is the youngest then. Its connection stays.
    pub fn replace(
        &mut self,
        subscription: SubscriptionId,
        spec: &SubscriptionSpec,
    ) -> Result<(), SubscribeError> {
        let slot = self.slot(subscription).ok_or(SubscribeError::UnknownSubscription { subscription })?;
        self.check_spec(spec)?;
        let memberships = self.part(slot);
        self.join(slot, spec);
        self.drop_classes(&memberships);
        Ok(())
    }

    /// Removes a subscription; what it holds returns to the queues.
    pub fn unsubscribe(&mut self, subscription: SubscriptionId, now: Time) {
        self.advance(now);
        if let Some(slot) = self.slot(subscription) {
            let connection = self.subscriptions[slot as usize].connection;
            if let Some(slots) = self.by_connection.get_mut(&connection) {
                slots.retain(|other| *other != slot);
                if slots.is_empty() {
                    self.by_connection.remove(&connection);
                }
            }
            self.end(slot);
        }
    }

    /// Removes all subscriptions of a connection; what they hold returns at once (seed 000).
    pub fn disconnect(&mut self, connection: ConnectionId, now: Time) {
        self.advance(now);
        for slot in self.by_connection.remove(&connection).unwrap_or_default() {
            self.end(slot);
        }
    }

    /// Lets a subscription get nothing but barriers for a while, as if its backlog were full: its connection takes no more.
    pub fn hold(&mut self, subscription: SubscriptionId, held: bool) {
        let Some(slot) = self.slot(subscription) else { return };
        if std::mem::replace(&mut self.subscriptions[slot as usize].held, held) != held {
            self.reload(slot);
        }
    }

    /// Who holds a message, delivered and not settled.
    pub fn holder(&self, queue: QueueId, position: Position) -> Option<SubscriptionId> {
        let state = self.queues.get(queue.get() as usize)?;
        let slot = state.leases.find(position.get())?;
        Some(self.id(self.leases.get(slot).subscription))
    }

    /// The backlog granted to a subscription, and how much of it is in use.
    pub fn backlog(&self, subscription: SubscriptionId) -> Option<(u32, u32)> {
        let subscription = &self.subscriptions[self.slot(subscription)? as usize];
        Some((subscription.backlog, subscription.outstanding))
    }
}

/// Settling messages.
impl Queues {
    /// Acknowledges, cancels or expires the messages at `positions`, as far as `connection` may. Positions that are not in the queue
    /// are passed over. Returns how many messages it had an effect on.
    pub fn settle(
        &mut self,
        queue: QueueId,
        connection: ConnectionId,
        verdict: Verdict,
        positions: &[Position],
        now: Time,
    ) -> u64 {
        self.advance(now);
        if queue.get() as usize >= self.queues.len() {
            return 0;
        }
        positions
            .iter()
            .map(|position| u64::from(self.settle_one(queue.get(), connection, verdict, position.get())))
            .sum()
    }

    /// As [`settle`](Self::settle), for every active message that matches `filter`; `None`: for every one.
    pub fn settle_matching(
        &mut self,
        queue: QueueId,
        connection: ConnectionId,
        verdict: Verdict,
        filter: Option<FilterId>,
        now: Time,
        matcher: &mut dyn Matcher,
    ) -> u64 {
        self.advance(now);
        let Some(state) = self.queues.get(queue.get() as usize) else { return 0 };
        let (mut positions, mut from) = (Vec::new(), 0);
        while let Some(ordinal) = state.messages.next_present(from) {
            positions.push(state.messages.position(ordinal));
            from = ordinal + 1;
        }
        let mut lease = state.leases.oldest();
        while let Some(slot) = lease {
            let Lease { taken, position, .. } = self.leases.get(slot);
            positions.extend(taken.then_some(*position));
            lease = self.leases.after(slot);
        }
        positions
            .retain(|position| filter.is_none_or(|filter| matcher.matches(Position::new(*position), filter)));
        positions
            .iter()
            .map(|position| u64::from(self.settle_one(queue.get(), connection, verdict, *position)))
            .sum()
    }

    /// Lets a connection keep a message until `deadline`. False when it does not hold a lease on it.
    pub fn extend(
        &mut self,
        queue: QueueId,
        connection: ConnectionId,
        position: Position,
        deadline: Time,
        now: Time,
    ) -> bool {
        self.advance(now);
        let Some(state) = self.queues.get_mut(queue.get() as usize) else { return false };
        let Some(slot) = state.leases.find(position.get()) else { return false };
        let Lease { subscription, taken, .. } = *self.leases.get(slot);
        if taken || self.subscriptions[subscription as usize].connection != connection {
            return false;
        }
        self.leases.extend(slot, deadline.get(), &mut state.leases);
        self.wake_by(deadline.get());
        true
    }
}

/// Outputs and time.
impl Queues {
    /// The next delivery at `now`; `None` when there is nothing more to deliver, or when as many questions were asked as one call may:
    /// [`poll_timeout`](Self::poll_timeout) is not in the future then. Call it until `None`, after every input.
    pub fn poll_delivery(&mut self, now: Time, matcher: &mut dyn Matcher) -> Option<Delivery> {
        self.advance(now);
        let mut questions = self.questions_per_poll.unwrap_or(QUESTIONS_PER_POLL_MAX);
        loop {
            if let Some(delivery) = self.next_barrier_delivery() {
                return Some(delivery);
            }
            let queue = *self.line.front()?;
            let state = &mut self.queues[queue as usize];
            state.is_starved = false;
            let admitted = state.admit(matcher, &mut questions);
            // What has the highest priority is known when everything has been admitted.
            let may_deliver = admitted || !state.config.priority;
            if self.release_barrier(queue, matcher) {
                self.line.rotate_left(1);
                continue;
            }
            let delivery = if may_deliver { self.deliver(queue) } else { None };
            let is_starved = self.queues[queue as usize].is_starved;
            if delivery.is_some() || !(admitted || is_starved) {
                self.line.rotate_left(1);
                return delivery;
            }
            self.line.pop_front();
            self.queues[queue as usize].in_line = false;
            if is_starved && !self.starved.contains(&queue) {
                self.starved.push(queue);
            }
        }
    }

    /// Goes on with the queues that wait for messages that were not at hand.
    pub fn retry(&mut self) {
        while let Some(queue) = self.starved.pop() {
            self.line_up(queue);
        }
    }

    /// The next change of state to be logged, in order.
    pub fn poll_change(&mut self) -> Option<Change> {
        self.changes.pop_front()
    }

    /// The next holder that is to learn that it holds a message no longer.
    pub fn poll_lost(&mut self) -> Option<LostLease> {
        self.lost.pop_front()
    }

    /// When the engine next wants to be called (by [`advance`](Self::advance) or any input) though nothing happened: no later than the
    /// next end of a lease or of a message's time. A time that has passed means that there is work to go on with.
    pub fn poll_timeout(&self) -> Option<Time> {
        if !self.line.is_empty() || !self.barriers.is_empty() {
            return Some(Time::new(self.now));
        }
        self.due.map(Time::new)
    }

    /// Ends leases and messages whose time has come. Every call with a `now` does this first.
    pub fn advance(&mut self, now: Time) {
        self.now = self.now.max(now.get());
        if self.due.is_none_or(|due| due > self.now) {
            return;
        }
        let mut due = None;
        for queue in 0..self.queues.len() as u32 {
            self.end_leases(queue);
            self.expire_due(queue);
            let state = &self.queues[queue as usize];
            let lease = self.leases.next_due(&state.leases).map(|(deadline, _)| deadline);
            due = due.into_iter().chain(lease).chain(state.messages.next_expiry()).min();
        }
        self.due = due;
    }
}

/// Helpers.
impl Queues {
    fn slot(&self, subscription: SubscriptionId) -> Option<u32> {
        let slot = subscription.get() as u32;
        let entry = self.subscriptions.get(slot as usize)?;
        (entry.live && u64::from(entry.generation) == subscription.get() >> 32).then_some(slot)
    }

    fn id(&self, slot: u32) -> SubscriptionId {
        SubscriptionId::new(u64::from(self.subscriptions[slot as usize].generation) << 32 | u64::from(slot))
    }

    fn check_spec(&self, spec: &SubscriptionSpec) -> Result<(), SubscribeError> {
        for (index, (queue, _)) in spec.queues.iter().enumerate() {
            if queue.get() as usize >= self.queues.len() {
                return Err(SubscribeError::UnknownQueue { queue: *queue });
            }
            if spec.queues[..index].iter().any(|(other, _)| other == queue) {
                return Err(SubscribeError::RepeatedQueue { queue: *queue });
            }
        }
        Ok(())
    }

    /// Makes a subscription a member of its queues, as the youngest.
    fn join(&mut self, slot: u32, spec: &SubscriptionSpec) {
        let caps = spec
            .queues
            .iter()
            .filter_map(|(queue, _)| self.queues[queue.get() as usize].config.max_per_subscription_backlog);
        let backlog = caps.chain([spec.backlog.unwrap_or(1)]).min().unwrap_or(1);
        self.next_order += 1;
        let order = self.next_order;
        let subscription = &mut self.subscriptions[slot as usize];
        subscription.backlog = backlog;
        subscription.order = order;
        let load = subscription.load();
        for (queue, filter) in &spec.queues {
            let state = &mut self.queues[queue.get() as usize];
            let class = state.class_for(*filter);
            if let Some(entry) = state.class_mut(class) {
                let index = entry.members.add(slot, order, load);
                self.subscriptions[slot as usize].memberships.push(Membership {
                    queue: queue.get(),
                    class,
                    index,
                });
                self.queues[queue.get() as usize].settle_class(class);
            }
            self.queues[queue.get() as usize].subscriptions += 1;
            self.line_up(queue.get());
        }
    }

    /// Takes a subscription out of its queues. The classes it leaves may be empty now.
    fn part(&mut self, slot: u32) -> SmallVec<[Membership; 1]> {
        let memberships = std::mem::take(&mut self.subscriptions[slot as usize].memberships);
        for Membership { queue, class, index } in &memberships {
            let state = &mut self.queues[*queue as usize];
            state.subscriptions -= 1;
            let Some(entry) = state.class_mut(*class) else { continue };
            entry.members.remove(*index);
            if entry.members.is_sparse() {
                let subscriptions = &mut self.subscriptions;
                entry.members.compact(|subscription, index| {
                    let all = &mut subscriptions[subscription as usize].memberships;
                    all.iter_mut().filter(|at| at.queue == *queue).for_each(|at| at.index = index);
                });
            }
            state.settle_class(*class);
        }
        memberships
    }

    fn drop_classes(&mut self, memberships: &[Membership]) {
        for Membership { queue, class, .. } in memberships {
            self.queues[*queue as usize].drop_if_empty(*class);
            self.line_up(*queue);
        }
    }

    /// Ends a subscription: its leases first, then its memberships.
    fn end(&mut self, slot: u32) {
        while self.subscriptions[slot as usize].leases.first != NONE {
            self.fail(self.subscriptions[slot as usize].leases.first, false);
        }
        let memberships = self.part(slot);
        self.drop_classes(&memberships);
        self.subscriptions[slot as usize].live = false;
        self.unused.push(slot);
    }

    /// Hands the next message of a queue to a subscription.
    fn deliver(&mut self, queue: u32) -> Option<Delivery> {
        let state = &mut self.queues[queue as usize];
        let pick = state.pick(&mut self.leases)?;
        let position = state.messages.position(pick.ordinal);
        let (deliveries, cancels) = state.messages.counts(pick.ordinal);
        let mut lease = Lease::new(queue, pick.subscription, position, pick.ordinal);
        lease.started = self.now;
        lease.deliveries = deliveries.saturating_add(1);
        lease.cancels = cancels;
        lease.taken = state.config.semantics == Semantics::AtMostOnce;
        lease.classes = pick.classes;
        let deliveries = lease.deliveries;
        state.totals.delivered += 1;
        if lease.taken {
            state.messages.remove(pick.ordinal);
            state.totals.taken += 1;
            self.changes.push_back(Change {
                queue: QueueId::new(queue),
                position: Position::new(position),
                kind: ChangeKind::Taken,
            });
        } else {
            state.messages.lease(pick.ordinal);
            lease.deadline = state.lease_ns.map_or(u64::MAX, |period| self.now.saturating_add(period));
        }
        let deadline = lease.deadline;
        let subscription = &mut self.subscriptions[pick.subscription as usize];
        subscription.outstanding += 1;
        self.leases.insert(lease, &mut state.leases, &mut subscription.leases);
        self.reload(pick.subscription);
        self.wake_by(deadline);
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

    /// Releases the barrier at the head of a queue if everything before it is settled (seed 001). Returns whether it did.
    fn release_barrier(&mut self, queue: u32, matcher: &mut dyn Matcher) -> bool {
        let state = &mut self.queues[queue as usize];
        let Some(barrier) = state.barrier() else { return false };
        let is_first = state.messages.next_present(0) == Some(barrier) && state.leases.len() == 0;
        if !is_first || state.subscriptions == 0 {
            return false;
        }
        let position = Position::new(state.messages.position(barrier));
        let cancel_count = state.messages.counts(barrier).1;
        let Some(mut subscriptions) = state.barrier_subscriptions(barrier, matcher) else { return false };
        subscriptions.sort_unstable_by_key(|slot| self.subscriptions[*slot as usize].order);
        state.messages.remove(barrier);
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
        self.changes.push_back(Change { queue: queue_id, position, kind: ChangeKind::Released });
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

    fn settle_one(&mut self, queue: u32, connection: ConnectionId, verdict: Verdict, position: u64) -> bool {
        let state = &mut self.queues[queue as usize];
        let strict = state.config.leasing == Leasing::Strict;
        if let Some(slot) = state.leases.find(position) {
            let Lease { subscription, taken, .. } = *self.leases.get(slot);
            let is_own = self.subscriptions[subscription as usize].connection == connection;
            if strict && !is_own {
                return false;
            }
            if !is_own && !taken {
                self.lose(slot, LostCause::Settled);
            }
            match verdict {
                _ if taken => drop(self.take_lease(slot)),
                Verdict::Cancel => self.fail(slot, true),
                Verdict::Acknowledge => {
                    let lease = self.take_lease(slot);
                    self.remove(queue, lease.ordinal, position, ChangeKind::Acknowledged);
                }
                Verdict::Expire => {
                    let lease = self.take_lease(slot);
                    self.expire(
                        queue,
                        lease.ordinal,
                        Reasons::FORCED_EXPIRE,
                        lease.deliveries,
                        lease.cancels,
                    );
                }
            }
            return true;
        }
        if strict || verdict == Verdict::Cancel {
            return false;
        }
        let Some(ordinal) = state.messages.find(position) else {
            let deferred = verdict == Verdict::Acknowledge && defer(state, position);
            if deferred {
                let (queue, position) = (QueueId::new(queue), Position::new(position));
                self.changes.push_back(Change { queue, position, kind: ChangeKind::Acknowledged });
            }
            return deferred;
        };
        if verdict == Verdict::Expire {
            let (deliveries, cancels) = state.messages.counts(ordinal);
            self.expire(queue, ordinal, Reasons::FORCED_EXPIRE, deliveries, cancels);
            return true;
        }
        let is_barrier = state.barriers.binary_search(&ordinal).is_ok();
        if !is_barrier {
            self.remove(queue, ordinal, position, ChangeKind::Acknowledged);
        }
        !is_barrier
    }

    /// Ends a lease without success: the message waits again, or is expired when a limit is reached (reference: 1.9 X1 to X4).
    fn fail(&mut self, slot: u32, cancelled: bool) {
        let lease = self.take_lease(slot);
        if lease.taken {
            return;
        }
        let Lease { queue, ordinal, position, deliveries, .. } = lease;
        let cancels = lease.cancels.saturating_add(u32::from(cancelled));
        let state = &mut self.queues[queue as usize];
        let mut reasons = Reasons::default();
        reasons.add(Reasons::TIME_LIMIT, state.messages.expires(ordinal) <= self.now);
        reasons.add(
            Reasons::MAX_CANCELS,
            cancelled && state.config.max_cancels.is_some_and(|limit| cancels > limit),
        );
        reasons.add(
            Reasons::MAX_DELIVERIES,
            state.config.max_deliveries.is_some_and(|limit| deliveries >= limit),
        );
        if !reasons.is_empty() {
            return self.expire(queue, ordinal, reasons, deliveries, cancels);
        }
        state.messages.set_counts(ordinal, deliveries, cancels);
        state.give_back(ordinal, &lease.classes);
        if cancelled {
            state.totals.cancelled += 1;
            self.changes.push_back(Change {
                queue: QueueId::new(queue),
                position: Position::new(position),
                kind: ChangeKind::Cancelled { cancels },
            });
        }
        let expires = self.queues[queue as usize].messages.expires(ordinal);
        self.wake_by(expires);
        self.line_up(queue);
        self.audit(queue);
    }

    fn expire(&mut self, queue: u32, ordinal: u64, reasons: Reasons, deliveries: u32, cancels: u32) {
        let position = self.queues[queue as usize].messages.position(ordinal);
        self.remove(queue, ordinal, position, ChangeKind::Expired { reasons, deliveries, cancels });
    }

    fn remove(&mut self, queue: u32, ordinal: u64, position: u64, kind: ChangeKind) {
        let state = &mut self.queues[queue as usize];
        state.messages.remove(ordinal);
        match kind {
            ChangeKind::Expired { .. } => state.totals.expired += 1,
            _ => state.totals.acknowledged += 1,
        }
        self.changes.push_back(Change {
            queue: QueueId::new(queue),
            position: Position::new(position),
            kind,
        });
        self.line_up(queue);
        self.audit(queue);
    }

    /// Ends a lease and frees its place in the backlog.
    fn take_lease(&mut self, slot: u32) -> Lease {
        let Lease { queue, subscription, .. } = *self.leases.get(slot);
        let entry = &mut self.subscriptions[subscription as usize];
        let lease = self.leases.remove(slot, &mut self.queues[queue as usize].leases, &mut entry.leases);
        entry.outstanding -= 1;
        self.reload(subscription);
        self.line_up(queue);
        lease
    }

    /// Tells the queues of a subscription how full it is now.
    #[inline]
    fn reload(&mut self, slot: u32) {
        let Queues { queues, subscriptions, line, .. } = self;
        let subscription = &subscriptions[slot as usize];
        let load = subscription.load();
        for Membership { queue, class, index } in &subscription.memberships {
            let state = &mut queues[*queue as usize];
            let Some(entry) = state.class_mut(*class) else { continue };
            if entry.members.set_outstanding(*index, load.outstanding) {
                state.settle_class(*class);
            }
            if load.has_room() && !std::mem::replace(&mut state.in_line, true) {
                line.push_back(*queue);
            }
        }
    }

    fn end_leases(&mut self, queue: u32) {
        while let Some((deadline, slot)) = self.leases.next_due(&self.queues[queue as usize].leases) {
            if deadline > self.now {
                break;
            }
            self.queues[queue as usize].totals.expired_leases += 1;
            let expired = self.queues[queue as usize].totals.expired;
            self.lose(slot, LostCause::Returned);
            self.fail(slot, false);
            if self.queues[queue as usize].totals.expired > expired
                && let Some(lost) = self.lost.back_mut()
            {
                lost.cause = LostCause::Expired;
            }
        }
    }

    /// Notes that a holder is about to lose a message.
    fn lose(&mut self, slot: u32, cause: LostCause) {
        let Lease { queue, subscription, position, .. } = *self.leases.get(slot);
        let (queue, position) = (QueueId::new(queue), Position::new(position));
        let subscription = self.id(subscription);
        self.lost.push_back(LostLease { queue, position, subscription, cause });
    }

    fn expire_due(&mut self, queue: u32) {
        loop {
            let due = self.queues[queue as usize].messages.due(self.now);
            if due.is_empty() {
                break;
            }
            for ordinal in due {
                let (deliveries, cancels) = self.queues[queue as usize].messages.counts(ordinal);
                self.expire(queue, ordinal, Reasons::TIME_LIMIT, deliveries, cancels);
            }
        }
    }

    fn line_up(&mut self, queue: u32) {
        if !std::mem::replace(&mut self.queues[queue as usize].in_line, true) {
            self.line.push_back(queue);
        }
    }

    fn wake_by(&mut self, time: u64) {
        if time != u64::MAX {
            self.due = Some(self.due.map_or(time, |due| due.min(time)));
        }
    }

    /// Invariant Q4: what entered is waiting, leased, or left by exactly one of the ways out.
    fn audit(&self, queue: u32) {
        let state = &self.queues[queue as usize];
        let totals = &state.totals;
        let left = totals.acknowledged + totals.expired + totals.taken + totals.released;
        debug_assert_eq!(totals.entered, state.messages.present() + left);
        debug_assert!(state.messages.waiting() <= state.messages.present());
    }
}

/// Keeps an acknowledgement for a message that is not active yet (seed 001). Only the log knows whether the position is one of this
/// queue's, so any between the first and the last inactive message is kept, until that place is reached.
fn defer(state: &mut QueueState, position: u64) -> bool {
    let is_inactive = state.inactive.count > 0
        && position > state.last_position
        && position <= state.inactive.last_position
        && !state.inactive.deferred.contains(position);
    if is_inactive {
        state.inactive.deferred.insert(position);
    }
    is_inactive
}

/// Whether a message that becomes active now has been acknowledged already. Deferred acknowledgements before it are for nothing.
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
