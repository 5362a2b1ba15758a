//! A slow and simple model of the engine: lists that are searched from the start every time. It
//! follows `docs/queues.md`.

use std::collections::BTreeSet;

use quire_queue::*;

#[derive(Clone, Debug)]
pub struct Message {
    pub position: u64,
    pub entry: QueueEntry,
    pub expires: Option<u64>,
    pub deliveries: u32,
    /// Deliveries that count, as the log has them.
    pub logged_deliveries: u32,
    pub cancels: u32,
    /// Not delivered before this time.
    pub delayed_until: Option<u64>,
    pub holder: Option<Holder>,
    /// The orders of the subscriptions whose lease on it ran out.
    pub let_run_out: Vec<u64>,
    /// Until then it waits for a subscription that is not one of these.
    pub waits_until: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
pub struct Holder {
    pub subscription: usize,
    pub deadline: Option<u64>,
}

#[derive(Clone, Debug)]
pub struct Subscription {
    pub id: SubscriptionId,
    pub connection: u64,
    pub backlog: u32,
    pub order: u64,
    pub queues: Vec<(QueueId, Option<FilterId>)>,
    pub live: bool,
}

#[derive(Clone, Debug, Default)]
pub struct Queue {
    pub config: QueueConfig,
    pub messages: Vec<Message>,
    pub taken: Vec<(u64, usize)>,
    pub inactive: Vec<(u64, QueueEntry)>,
    pub deferred: BTreeSet<u64>,
    pub last_active: u64,
    pub cursor: u64,
    pub expired_leases: u64,
}

#[derive(Clone, Debug, Default)]
pub struct Model {
    pub queues: Vec<Queue>,
    pub subscriptions: Vec<Subscription>,
    pub changes: Vec<Change>,
    pub orders: u64,
    pub now: u64,
}

/// How a message returns from its holder.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Back {
    /// `None`: for as long as the queue is configured to.
    Cancelled {
        delay_ns: Option<u64>,
    },
    Released,
    /// The time of the lease is over.
    RanOut,
    /// The holder is gone.
    Lost,
}

/// Every filter matches the positions that are multiples of it: filter 1 all, filter 3 one in
/// three.
pub fn matches(position: u64, filter: Option<FilterId>) -> bool {
    filter.is_none_or(|filter| position.is_multiple_of(u64::from(filter.get())))
}

impl Message {
    /// It returns. If leases on it ran out, it waits for another subscription.
    fn wait(&mut self, now: u64, period: Option<u64>) {
        self.waits_until = period.filter(|_| !self.let_run_out.is_empty()).map(|period| now + period);
    }
}

impl Model {
    pub fn subscribe(&mut self, id: SubscriptionId, connection: u64, spec: &SubscriptionSpec) {
        self.orders += 1;
        let backlog = self.granted(spec);
        let queues = spec.queues.clone();
        self.subscriptions.push(Subscription {
            id,
            connection,
            backlog,
            order: self.orders,
            queues,
            live: true,
        });
    }

    pub fn replace(&mut self, at: usize, spec: &SubscriptionSpec) {
        self.orders += 1;
        let backlog = self.granted(spec);
        let entry = &mut self.subscriptions[at];
        (entry.backlog, entry.order, entry.queues) = (backlog, self.orders, spec.queues.clone());
    }

    fn granted(&self, spec: &SubscriptionSpec) -> u32 {
        let caps = spec
            .queues
            .iter()
            .filter_map(|(queue, _)| self.queues[queue.get() as usize].config.max_per_subscription_backlog);
        caps.chain([spec.backlog.unwrap_or(1)]).min().unwrap()
    }

    pub fn outstanding(&self, subscription: usize) -> u32 {
        let of_queue = |queue: &Queue| {
            let leased = queue.messages.iter().filter_map(|message| message.holder);
            leased.filter(|holder| holder.subscription == subscription).count()
                + queue.taken.iter().filter(|(_, holder)| *holder == subscription).count()
        };
        self.queues.iter().map(of_queue).sum::<usize>() as u32
    }

    pub fn backlog(&self, queue: usize) -> usize {
        let queue = &self.queues[queue];
        queue.messages.iter().filter(|message| message.holder.is_some()).count() + queue.taken.len()
    }

    pub fn enqueue(&mut self, queue: usize, position: u64, entry: QueueEntry) -> Enqueued {
        let queue = &mut self.queues[queue];
        let depth = queue.messages.len() as u64;
        let full = queue.config.target_queue_depth.is_some_and(|target| depth >= target);
        let again = queue.inactive.iter().position(|(other, _)| *other == position);
        if full || (again.is_none() && !queue.inactive.is_empty()) {
            if again.is_none() {
                queue.inactive.push((position, entry));
            }
            return Enqueued::Inactive;
        }
        if let Some(at) = again {
            queue.inactive.remove(at);
            let acknowledged = queue.deferred.contains(&position);
            queue.deferred.retain(|other| *other > position);
            if acknowledged {
                queue.last_active = position;
                return Enqueued::Acknowledged;
            }
        }
        queue.last_active = position;
        let own = entry.expiration_s.map(|s| (s > 0).then_some(u64::from(s) * 1_000_000_000));
        let mut eras = queue.config.earlier_expirations.iter();
        let (expiration, model) = match eras.find(|earlier| earlier.until.get() >= position) {
            Some(earlier) => (earlier.expiration, earlier.model),
            None => (queue.config.expiration, queue.config.expiration_model),
        };
        let general = expiration.map(|duration| duration.as_nanos() as u64);
        let lifetime = match model {
            ExpirationModel::Queue => general,
            ExpirationModel::Message => own.unwrap_or(general),
            ExpirationModel::Minimum => [own.flatten(), general].into_iter().flatten().min(),
        };
        let lifetime = match (model, own) {
            (ExpirationModel::Minimum, None) => general,
            _ => lifetime,
        };
        let delayed_until = entry.delayed_until.map(Time::get).filter(|until| *until > self.now);
        queue.messages.push(Message {
            position,
            entry,
            expires: lifetime.map(|lifetime| entry.received.get() + lifetime),
            deliveries: 0,
            logged_deliveries: 0,
            cancels: 0,
            delayed_until,
            holder: None,
            let_run_out: Vec::new(),
            waits_until: None,
        });
        Enqueued::Active
    }

    fn first_barrier(&self, queue: usize) -> Option<usize> {
        let queue = &self.queues[queue];
        queue.messages.iter().position(|message| queue.config.barrier && message.entry.barrier)
    }

    pub fn releasable(&self, queue: usize) -> Option<u64> {
        let somebody = self.subscriptions_of(queue).next().is_some();
        let first = self.first_barrier(queue) == Some(0) && self.queues[queue].taken.is_empty();
        let first = first.then(|| &self.queues[queue].messages[0]);
        first.filter(|barrier| somebody && barrier.delayed_until.is_none()).map(|barrier| barrier.position)
    }

    /// Releases the barrier and returns the subscription that gets it.
    pub fn release(&mut self, queue: usize) -> Vec<SubscriptionId> {
        let position = self.queues[queue].messages.remove(0).position;
        let mut all: Vec<_> =
            self.subscriptions_of(queue).filter(|(_, _, filter)| matches(position, *filter)).collect();
        all.sort_by_key(|(_, subscription, _)| subscription.order);
        let ids = all.into_iter().map(|(_, subscription, _)| subscription.id).collect();
        self.change(queue, position, ChangeKind::Released);
        ids
    }

    fn subscriptions_of(
        &self,
        queue: usize,
    ) -> impl Iterator<Item = (usize, &Subscription, Option<FilterId>)> {
        let live = self.subscriptions.iter().enumerate().filter(|(_, subscription)| subscription.live);
        live.filter_map(move |(index, subscription)| {
            let (_, filter) = subscription.queues.iter().find(|(other, _)| other.get() as usize == queue)?;
            Some((index, subscription, *filter))
        })
    }

    /// The next delivery of a queue: position, subscription.
    pub fn next(&self, queue: usize) -> Option<(u64, usize)> {
        let state = &self.queues[queue];
        if state.config.max_backlog.is_some_and(|limit| self.backlog(queue) >= limit as usize) {
            return None;
        }
        // Subscriptions that wait for another one to take a message get no later message.
        let mut waiting = Vec::new();
        for message in self.order(queue, self.first_barrier(queue)) {
            let room = |(index, subscription, filter): &(usize, &Subscription, Option<FilterId>)| {
                matches(message.position, *filter) && self.outstanding(*index) < subscription.backlog
            };
            let mut all: Vec<_> = self.subscriptions_of(queue).filter(room).collect();
            all.retain(|(_, subscription, _)| !waiting.contains(&subscription.order));
            // Only a message that a subscription with room can get has this effect: its holder may
            // have another filter now.
            if !all.is_empty() && message.waits_until.is_some() && self.another_takes(queue, message) {
                waiting.extend(&message.let_run_out);
                all.retain(|(_, subscription, _)| !waiting.contains(&subscription.order));
            }
            all.sort_by_key(|(_, subscription, _)| subscription.order);
            let chosen = match state.config.fairness() {
                FairnessModel::Fast => all.first(),
                FairnessModel::RoundRobin => {
                    all.iter().find(|(_, subscription, _)| subscription.order > state.cursor).or(all.first())
                }
                FairnessModel::Proportional => all.iter().min_by(|left, right| {
                    let part =
                        |index: usize, other: u32| u64::from(self.outstanding(index)) * u64::from(other);
                    part(left.0, right.1.backlog).cmp(&part(right.0, left.1.backlog))
                }),
            };
            if let Some((index, ..)) = chosen {
                return Some((message.position, *index));
            }
        }
        None
    }

    /// Whether there is a subscription that could take the message instead of those whose lease on
    /// it ran out. It has no filter, or the filter of one of them.
    fn another_takes(&self, queue: usize, message: &Message) -> bool {
        let has_let = |subscription: &Subscription| message.let_run_out.contains(&subscription.order);
        let all: Vec<_> = self.subscriptions_of(queue).collect();
        let filters: Vec<_> =
            all.iter().filter(|(_, other, _)| has_let(other)).map(|(_, _, filter)| *filter).collect();
        all.iter().any(|(_, other, filter)| {
            other.backlog > 0 && !has_let(other) && (filter.is_none() || filters.contains(filter))
        })
    }

    /// Waiting messages before message `end`, without barriers, in delivery order.
    fn order(&self, queue: usize, end: Option<usize>) -> Vec<&Message> {
        let state = &self.queues[queue];
        let all = &state.messages[..end.unwrap_or(state.messages.len())];
        let waits = |message: &&Message| message.holder.is_none() && message.delayed_until.is_none();
        let mut all: Vec<_> = all.iter().filter(waits).collect();
        if state.config.priority {
            all.sort_by_key(|message| {
                (
                    message.entry.priority.is_none(),
                    message.entry.priority.map(std::cmp::Reverse),
                    message.position,
                )
            });
        }
        all
    }

    /// Position, deliveries and cancels of each message.
    pub fn browse(&self, queue: usize) -> Vec<(u64, u32, u32)> {
        let shown = |message: &Message| (message.position, message.deliveries, message.cancels);
        let (mut copy, mut seen) = (self.clone(), Vec::new());
        loop {
            let end = copy.first_barrier(queue);
            seen.extend(copy.order(queue, end).iter().map(|message| shown(message)));
            let Some(end) = end else { return seen };
            let barrier = &copy.queues[queue].messages[end];
            seen.extend(barrier.delayed_until.is_none().then(|| shown(barrier)));
            copy.queues[queue].messages.drain(..=end);
        }
    }

    pub fn deliver(&mut self, queue: usize, position: u64, subscription: usize) -> Delivery {
        let order = self.subscriptions[subscription].order;
        let state = &mut self.queues[queue];
        state.cursor = order;
        let at = state.messages.iter().position(|message| message.position == position).unwrap();
        let message = &mut state.messages[at];
        message.deliveries += 1;
        message.waits_until = None;
        let deadline = state.config.lease_period.map(|period| self.now + period.as_nanos() as u64);
        let mut delivery = Delivery {
            queue: QueueId::new(queue as u32),
            position: Position::new(position),
            subscription: self.subscriptions[subscription].id,
            lease_deadline: deadline.map(Time::new),
            delivery_count: message.deliveries,
            cancel_count: message.cancels,
            barrier: false,
        };
        message.holder = Some(Holder { subscription, deadline });
        if state.config.semantics == Semantics::AtMostOnce {
            delivery.lease_deadline = None;
            state.messages.remove(at);
            state.taken.push((position, subscription));
            self.change(queue, position, ChangeKind::Taken);
        }
        delivery
    }

    pub fn advance(&mut self, now: u64) {
        self.now = now;
        for queue in 0..self.queues.len() {
            let due = |message: &&Message| {
                message.holder.is_some_and(|holder| holder.deadline.is_some_and(|deadline| deadline <= now))
            };
            let ended: Vec<u64> =
                self.queues[queue].messages.iter().filter(due).map(|message| message.position).collect();
            self.queues[queue].expired_leases += ended.len() as u64;
            ended.into_iter().for_each(|position| self.fail(queue, position, Back::RanOut));
            let period = self.lease_period(queue);
            for message in &mut self.queues[queue].messages {
                if message.delayed_until.take_if(|until| *until <= now).is_some() {
                    message.wait(now, period);
                }
                message.waits_until.take_if(|until| *until <= now);
            }
            let over = |message: &&Message| {
                message.holder.is_none() && message.expires.is_some_and(|time| time <= now)
            };
            let over: Vec<u64> =
                self.queues[queue].messages.iter().filter(over).map(|message| message.position).collect();
            over.into_iter()
                .for_each(|position| self.expire(queue, position, Reasons::TIME_LIMIT.to_string()));
        }
    }

    fn fail(&mut self, queue: usize, position: u64, back: Back) {
        let now = self.now;
        let (cancelled, released) = (matches!(back, Back::Cancelled { .. }), back == Back::Released);
        let config = self.queues[queue].config.clone();
        let period = self.lease_period(queue);
        let orders: Vec<u64> = self.subscriptions.iter().map(|subscription| subscription.order).collect();
        let of_queue: Vec<usize> = self.subscriptions_of(queue).map(|(index, ..)| index).collect();
        let message =
            self.queues[queue].messages.iter_mut().find(|message| message.position == position).unwrap();
        let holder = message.holder.take().map(|holder| holder.subscription);
        if let Some(holder) = holder.filter(|holder| back == Back::RanOut && of_queue.contains(holder)) {
            message.let_run_out.push(orders[holder]);
        }
        message.wait(now, period);
        message.cancels += u32::from(cancelled);
        message.deliveries -= u32::from(released);
        let reasons = [
            (message.expires.is_some_and(|time| time <= now), "time_limit"),
            (cancelled && config.max_cancels.is_some_and(|limit| message.cancels > limit), "max_cancels"),
            (
                !released && config.max_deliveries.is_some_and(|limit| message.deliveries >= limit),
                "max_deliveries",
            ),
        ];
        let reasons: Vec<_> = reasons.iter().filter(|(applies, _)| *applies).map(|(_, name)| *name).collect();
        let (deliveries, cancels) = (message.deliveries, message.cancels);
        if released {
            message.logged_deliveries = deliveries;
        }
        if !reasons.is_empty() {
            self.expire(queue, position, reasons.join(","));
        } else if let Back::Cancelled { delay_ns } = back {
            let nth = config.retry_delay.get(cancels as usize - 1).or(config.retry_delay.last());
            let configured = nth.map_or(0, |delay| delay.as_nanos() as u64);
            let delay = delay_ns.unwrap_or(configured);
            message.delayed_until = (delay > 0).then_some(now + delay);
            message.waits_until.take_if(|_| delay > 0);
            let delayed = message.delayed_until;
            self.change(queue, position, ChangeKind::Cancelled { cancels });
            if let Some(until) = delayed {
                self.change(queue, position, ChangeKind::Delayed { until: Time::new(until) });
            }
        } else if released {
            self.change(queue, position, ChangeKind::Returned { deliveries });
        }
    }

    fn lease_period(&self, queue: usize) -> Option<u64> {
        self.queues[queue].config.lease_period.map(|period| period.as_nanos() as u64)
    }

    fn expire(&mut self, queue: usize, position: u64, reasons: String) {
        let all =
            [Reasons::TIME_LIMIT, Reasons::FORCED_EXPIRE, Reasons::MAX_CANCELS, Reasons::MAX_DELIVERIES];
        let message = self.remove(queue, position);
        let reasons = all.into_iter().filter(|one| reasons.split(',').any(|name| name == one.to_string()));
        let reasons = reasons.reduce(|left, right| left | right).unwrap();
        let kind = ChangeKind::Expired { reasons, deliveries: message.deliveries, cancels: message.cancels };
        self.change(queue, position, kind);
    }

    fn remove(&mut self, queue: usize, position: u64) -> Message {
        let messages = &mut self.queues[queue].messages;
        let at = messages.iter().position(|message| message.position == position).unwrap();
        messages.remove(at)
    }

    fn change(&mut self, queue: usize, position: u64, kind: ChangeKind) {
        self.changes.push(Change {
            queue: QueueId::new(queue as u32),
            position: Position::new(position),
            bookmark: Some(bookmark_of(position)),
            kind,
        });
    }

    /// A message that is not active is acknowledged. The engine does not know its bookmark.
    fn change_inactive(&mut self, queue: usize, position: u64) {
        self.change(queue, position, ChangeKind::Acknowledged);
        self.changes.last_mut().unwrap().bookmark = None;
    }

    pub fn settle(&mut self, queue: usize, connection: u64, verdict: Verdict, position: u64) -> bool {
        let strict = self.queues[queue].config.leasing == Leasing::Strict;
        let own_only = strict || verdict.gives_back();
        let foreign = |holder: usize| own_only && self.subscriptions[holder].connection != connection;
        if let Some(at) = self.queues[queue].taken.iter().position(|(other, _)| *other == position) {
            let allowed = !foreign(self.queues[queue].taken[at].1);
            if allowed {
                self.queues[queue].taken.remove(at);
            }
            return allowed;
        }
        let state = &self.queues[queue];
        let Some(message) = state.messages.iter().find(|message| message.position == position) else {
            let last = state.inactive.last().map_or(0, |(last, _)| *last);
            let known = position > state.last_active && position <= last;
            let deferred =
                known && !strict && verdict == Verdict::Acknowledge && !state.deferred.contains(&position);
            if deferred {
                self.queues[queue].deferred.insert(position);
                self.change_inactive(queue, position);
            }
            return deferred;
        };
        let barrier = state.config.barrier && message.entry.barrier;
        match (message.holder, verdict) {
            (Some(holder), _) if foreign(holder.subscription) => return false,
            (None, _) if strict => return false,
            (Some(_), Verdict::Cancel) => self.fail(queue, position, Back::Cancelled { delay_ns: None }),
            (Some(_), Verdict::CancelWithDelay { delay_ms }) => {
                let delay_ns = Some(delay_ms * 1_000_000);
                self.fail(queue, position, Back::Cancelled { delay_ns });
            }
            (Some(_), Verdict::Release) => self.fail(queue, position, Back::Released),
            (None, Verdict::Cancel | Verdict::CancelWithDelay { .. } | Verdict::Release) => return false,
            (_, Verdict::Expire) => self.expire(queue, position, Reasons::FORCED_EXPIRE.to_string()),
            (_, Verdict::Acknowledge) if barrier => return false,
            (_, Verdict::Acknowledge) => {
                self.remove(queue, position);
                self.change(queue, position, ChangeKind::Acknowledged);
            }
        }
        true
    }

    /// Releases the messages of a subscription, except those that `is_begun` names.
    pub fn give_back(&mut self, at: usize, is_begun: impl Fn(u64) -> bool) {
        for queue in 0..self.queues.len() {
            let held = |message: &&Message| message.holder.is_some_and(|holder| holder.subscription == at);
            let held: Vec<u64> =
                self.queues[queue].messages.iter().filter(held).map(|message| message.position).collect();
            let released = held.into_iter().filter(|position| !is_begun(*position));
            released.for_each(|position| self.fail(queue, position, Back::Released));
        }
    }

    pub fn end(&mut self, at: usize) {
        for queue in 0..self.queues.len() {
            let held = |message: &&Message| message.holder.is_some_and(|holder| holder.subscription == at);
            let held: Vec<u64> =
                self.queues[queue].messages.iter().filter(held).map(|message| message.position).collect();
            held.into_iter().for_each(|position| self.fail(queue, position, Back::Lost));
            self.queues[queue].taken.retain(|(_, holder)| *holder != at);
        }
        self.subscriptions[at].live = false;
    }
}

/// The bookmark of the message at a position: runs of one publisher, then several publishers in
/// turn, with gaps and jumps of the sequences.
pub fn bookmark_of(position: u64) -> Bookmark {
    let publisher = if (position / 40).is_multiple_of(2) { 0 } else { position % 5 };
    let publisher = PublisherId::new(9 + publisher.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let sequence = if position.is_multiple_of(29) { position << 40 } else { position };
    Bookmark::new(publisher, sequence)
}
