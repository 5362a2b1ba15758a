//! The subscriptions of all queues: their memberships, and the load of each.

use smallvec::SmallVec;
use thiserror::Error;

use super::event::{LeaseEventKind, SubscriptionSpec};
use super::id::{ConnectionId, QueueId, SubscriptionId, Time};
use super::lapse::Holder;
use super::lease::{Lease, List, NONE};
use super::members::Load;
use super::queues::Queues;
use quire_journal::{Bookmark, Position};

/// The most subscriptions to queues of one instance: 100 times the connections that one event loop
/// serves well.
pub const SUBSCRIPTIONS_MAX: usize = 1_000_000;

/// One subscription, over all the queues it matches.
#[derive(Debug, Default)]
pub(super) struct Subscription {
    pub generation: u32,
    pub live: bool,
    /// Gets nothing but barriers at present.
    pub held: bool,
    pub connection: ConnectionId,
    pub outstanding: u32,
    pub backlog: u32,
    pub order: u64,
    /// Most match one queue only: no second place in memory to look at then.
    pub memberships: SmallVec<[Membership; 1]>,
    pub leases: List,
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
pub(super) struct Membership {
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

    /// Gives a subscription other queues, filters or another backlog at once. Its leases and its
    /// outstanding messages stay. It is then the youngest subscription. Its connection stays.
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

    /// Removes a subscription. The messages that it holds return to the queues.
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

    /// Releases the messages that a subscription holds, except those that its consumer has begun.
    /// The deliveries do not count. `is_begun` gets the queue, the position and the bookmark.
    pub fn release(
        &mut self,
        subscription: SubscriptionId,
        now: Time,
        is_begun: impl Fn(QueueId, Position, Option<Bookmark>) -> bool,
    ) {
        self.advance(now);
        let Some(slot) = self.slot(subscription) else { return };
        let first = self.subscriptions[slot as usize].leases.first;
        let held = std::iter::successors((first != NONE).then_some(first), |lease| {
            self.leases.after_of_subscription(*lease)
        });
        let is_released = |lease: &u32| {
            let Lease { queue, position, ordinal, taken, .. } = *self.leases.get(*lease);
            if taken {
                return false;
            }
            let bookmark = self.queues[queue as usize].messages.bookmark(ordinal);
            !is_begun(QueueId::new(queue), Position::new(position), bookmark)
        };
        let released: Vec<u32> = held.filter(is_released).collect();
        released.into_iter().for_each(|lease| self.fail(lease, LeaseEventKind::Released));
    }

    /// Removes all subscriptions of a connection. The messages that they hold return at once.
    pub fn disconnect(&mut self, connection: ConnectionId, now: Time) {
        self.advance(now);
        for slot in self.by_connection.remove(&connection).unwrap_or_default() {
            self.end(slot);
        }
    }

    /// Lets a subscription get nothing but barriers for a while, as if its backlog were full: its
    /// connection takes no more.
    pub fn hold(&mut self, subscription: SubscriptionId, held: bool) {
        let Some(slot) = self.slot(subscription) else { return };
        if std::mem::replace(&mut self.subscriptions[slot as usize].held, held) != held {
            self.reload(slot);
        }
    }

    /// The subscription that holds a message, delivered and not settled.
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

/// Helpers.
impl Queues {
    pub(super) fn slot(&self, subscription: SubscriptionId) -> Option<u32> {
        let slot = subscription.get() as u32;
        let entry = self.subscriptions.get(slot as usize)?;
        (entry.live && u64::from(entry.generation) == subscription.get() >> 32).then_some(slot)
    }

    pub(super) fn id(&self, slot: u32) -> SubscriptionId {
        SubscriptionId::new(u64::from(self.subscriptions[slot as usize].generation) << 32 | u64::from(slot))
    }

    /// A subscription as a holder of messages of a queue, while it is a member of it.
    pub(super) fn holder_in(&self, queue: u32, slot: u32) -> Option<Holder> {
        let subscription = &self.subscriptions[slot as usize];
        let membership = subscription.memberships.iter().find(|membership| membership.queue == queue)?;
        Some(Holder { class: membership.class, order: subscription.order })
    }

    fn check_spec(&self, spec: &SubscriptionSpec) -> Result<(), SubscribeError> {
        for (index, (queue, _)) in spec.queues.iter().enumerate() {
            if self.live(*queue).is_none() {
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
            self.fail(self.subscriptions[slot as usize].leases.first, LeaseEventKind::Left);
        }
        let memberships = self.part(slot);
        self.drop_classes(&memberships);
        self.subscriptions[slot as usize].live = false;
        self.unused.push(slot);
    }

    /// Tells the queues of a subscription how full it is now.
    #[inline]
    pub(super) fn reload(&mut self, slot: u32) {
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
}
