//! Looking at a queue without changing it: its waiting messages and its figures.

use super::event::{HeldMessage, QueueStats, WaitingMessage};
use super::id::{QueueId, Time};
use super::messages::{Key, MessageState};
use super::queues::Queues;
use quire_journal::Position;

impl Queues {
    /// Shows the waiting messages that are not delayed, in delivery order, until `visit` returns
    /// false. Barriers and the messages after them are included. Nothing changes. With priorities,
    /// the waiting messages up to the next barrier are sorted for it.
    pub fn browse(&self, queue: QueueId, now: Time, mut visit: impl FnMut(WaitingMessage) -> bool) {
        let Some(state) = self.queues.get(queue.get() as usize) else { return };
        let messages = &state.messages;
        let mut segment: Vec<(Key, u64)> = Vec::new();
        let shown = |ordinal| {
            let (delivery_count, cancel_count) = messages.counts(ordinal);
            WaitingMessage {
                position: Position::new(messages.position(ordinal)),
                delivery_count,
                cancel_count,
            }
        };
        let flush = |segment: &mut Vec<(Key, u64)>, visit: &mut dyn FnMut(WaitingMessage) -> bool| {
            segment.sort_unstable();
            segment.drain(..).all(|(_, ordinal)| visit(shown(ordinal)))
        };
        let is_there = |barrier: &u64| messages.state(*barrier) != MessageState::Gone;
        let mut barriers = state.barriers.iter().copied().filter(is_there).peekable();
        let mut from = 0;
        while let Some(ordinal) = messages.next_waiting(from) {
            from = ordinal + 1;
            if messages.expires(ordinal) <= now.get() {
                continue;
            }
            // A delayed barrier before it is not shown, but it separates the messages before it
            // from those after it.
            while barriers.next_if(|barrier| *barrier < ordinal).is_some() {
                if !flush(&mut segment, &mut visit) {
                    return;
                }
            }
            let is_barrier = barriers.next_if_eq(&ordinal).is_some();
            if is_barrier && !flush(&mut segment, &mut visit) {
                return;
            }
            if state.config.priority && !is_barrier {
                segment.push((messages.key(ordinal), ordinal));
            } else if !visit(shown(ordinal)) {
                return;
            }
        }
        flush(&mut segment, &mut visit);
    }

    /// The position of the last message that became active.
    pub fn last_active(&self, queue: QueueId) -> Option<Position> {
        self.queues.get(queue.get() as usize).map(|state| Position::new(state.last_position))
    }

    /// Up to `limit` active messages after a position, waiting or leased, in log order.
    pub fn active_after(&self, queue: QueueId, after: Position, limit: usize) -> Vec<Position> {
        let Some(state) = self.queues.get(queue.get() as usize) else { return Vec::new() };
        let messages = &state.messages;
        let first = messages.first_after(after.get());
        let ordinals = std::iter::successors(first, |ordinal| messages.next_present(ordinal + 1));
        ordinals.take(limit).map(|ordinal| Position::new(messages.position(ordinal))).collect()
    }

    /// The messages of an at-most-once queue whose places in a backlog are not freed yet.
    pub fn taken(&self, queue: QueueId) -> Vec<Position> {
        let Some(state) = self.queues.get(queue.get() as usize) else { return Vec::new() };
        let slots = std::iter::successors(state.leases.oldest(), |slot| self.leases.after(*slot));
        let leases = slots.map(|slot| self.leases.get(slot));
        leases.filter(|lease| lease.taken).map(|lease| Position::new(lease.position)).collect()
    }

    /// Up to `limit` messages in the hands of subscriptions: those that were delivered first.
    pub fn held(&self, queue: QueueId, limit: usize) -> Vec<HeldMessage> {
        let Some(state) = self.live(queue) else { return Vec::new() };
        let slots = std::iter::successors(state.leases.oldest(), |slot| self.leases.after(*slot));
        let held = slots.take(limit).map(|slot| {
            let lease = self.leases.get(slot);
            HeldMessage {
                position: Position::new(lease.position),
                bookmark: if lease.taken { None } else { state.messages.bookmark(lease.ordinal) },
                subscription: self.id(lease.subscription),
                since: Time::new(lease.started),
                deadline: (lease.deadline != u64::MAX).then(|| Time::new(lease.deadline)),
                delivery_count: lease.deliveries,
                cancel_count: lease.cancels,
            }
        });
        held.collect()
    }

    /// The figures of a queue.
    pub fn stats(&self, queue: QueueId, now: Time) -> Option<QueueStats> {
        let state = self.live(queue)?;
        let oldest_lease =
            state.leases.oldest().map(|slot| self.leases.get(slot)).filter(|lease| !lease.taken);
        let oldest = state.messages.next_present(0);
        let totals = state.totals;
        Some(QueueStats {
            queue_depth: state.messages.present(),
            waiting: state.messages.waiting(),
            delayed: state.delays.len() as u64,
            backlog: state.leases.len() as u64,
            max_backlog: state.config.max_backlog,
            owned: state.messages.present(),
            subscriptions: state.subscriptions,
            age_of_oldest_lease_ns: oldest_lease.map(|lease| now.get().saturating_sub(lease.started)),
            age_of_oldest_message_ns: oldest
                .map(|ordinal| now.get().saturating_sub(state.messages.received(ordinal))),
            expired_leases: totals.expired_leases,
            inactive_message_count: state.inactive.count,
            target_queue_depth: state.config.target_queue_depth,
            deferred_ack_count: state.inactive.deferred.len(),
            catching_up: state.catching_up(),
            entered: totals.entered,
            delivered: totals.delivered,
            acknowledged: totals.acknowledged,
            cancelled: totals.cancelled,
            expired: totals.expired,
            expired_by: totals.expired_by,
            taken: totals.taken,
            released: totals.released,
        })
    }
}
