//! Settling: acknowledged, cancelled, expired, or back in the queue because a lease is over.

use super::config::Leasing;
use super::event::{Change, ChangeKind, LeaseEventKind, LostCause, LostLease, Matcher, MoveKind, Reasons};
use super::id::{ConnectionId, FilterId, QueueId, Time};
use super::lease::{Ended, Lease};
use super::queues::Queues;
use super::state::QueueState;
use quire_journal::{Bookmark, Position};
use quire_types::Verdict;

/// Settling messages.
impl Queues {
    /// Acknowledges, cancels or expires the messages at `positions`, as far as `connection` may.
    /// Positions that are not in the queue are passed over. Returns how many messages it had an
    /// effect on.
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

    /// As [`settle`](Self::settle), for every active message that matches `filter`; `None`: for
    /// every one.
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

    /// Lets a connection keep a message until `deadline`. False when it does not hold a lease on
    /// it.
    pub fn extend(
        &mut self,
        queue: QueueId,
        connection: ConnectionId,
        position: Position,
        deadline: Time,
        now: Time,
    ) -> bool {
        self.advance(now);
        let Some(slot) = self.lease_on(queue.get(), position.get()) else { return false };
        let Some(state) = self.queues.get_mut(queue.get() as usize) else { return false };
        let Lease { subscription, taken, .. } = *self.leases.get(slot);
        if taken || self.subscriptions[subscription as usize].connection != connection {
            return false;
        }
        self.leases.extend(slot, deadline.get(), &mut state.leases);
        self.wake_by(deadline.get());
        true
    }
}

/// Helpers.
impl Queues {
    /// Returns whether it had an effect.
    fn settle_one(&mut self, queue: u32, connection: ConnectionId, verdict: Verdict, position: u64) -> bool {
        match self.lease_on(queue, position) {
            Some(slot) => self.settle_leased(slot, connection, verdict),
            None => self.settle_unleased(queue, connection, verdict, position),
        }
    }

    #[inline]
    fn settle_leased(&mut self, slot: u32, connection: ConnectionId, verdict: Verdict) -> bool {
        let Lease { queue, subscription, position, taken, is_recorded, .. } = *self.leases.get(slot);
        let strict = self.queues[queue as usize].config.leasing == Leasing::Strict;
        let is_own = self.subscriptions[subscription as usize].connection == connection;
        // Only the holder gives a message back: a late cancel must not take it from the next
        // holder, which is at work.
        if !is_own && (strict || verdict.gives_back()) {
            return false;
        }
        if !is_own && !taken {
            self.lose(slot, LostCause::Settled);
            self.note_end(slot, LeaseEventKind::Lost);
        }
        match verdict {
            _ if taken => drop(self.take_lease(slot)),
            Verdict::Cancel => self.fail(slot, LeaseEventKind::Cancelled),
            Verdict::CancelWithDelay { delay_ms } => {
                let delay_ns = delay_ms.saturating_mul(1_000_000);
                self.give_back(slot, LeaseEventKind::Cancelled, Some(delay_ns));
            }
            Verdict::Release => self.fail(slot, LeaseEventKind::Released),
            Verdict::Acknowledge => {
                let lease = self.take_lease(slot);
                let bookmark = self.remove(queue, lease.ordinal, position, ChangeKind::Acknowledged);
                let message = (position, bookmark);
                match is_own {
                    true => {
                        self.note_if(is_recorded, queue, message, connection, LeaseEventKind::Acknowledged);
                    }
                    false => self.note(queue, message, connection, LeaseEventKind::AcknowledgedUnheld),
                }
            }
            Verdict::Expire => {
                let Ended { ordinal, deliveries, cancels, .. } = self.take_lease(slot);
                let reasons = Reasons::FORCED_EXPIRE;
                let message = (position, self.expire(queue, ordinal, reasons, deliveries, cancels));
                match is_own {
                    true => self.note_if(is_recorded, queue, message, connection, LeaseEventKind::Expired),
                    false => self.note(queue, message, connection, LeaseEventKind::ExpiredUnheld),
                }
            }
        }
        true
    }

    /// Settles a message that waits, or that is not active yet.
    fn settle_unleased(
        &mut self,
        queue: u32,
        connection: ConnectionId,
        verdict: Verdict,
        position: u64,
    ) -> bool {
        let state = &mut self.queues[queue as usize];
        if state.config.leasing == Leasing::Strict || verdict.gives_back() {
            return false;
        }
        let Some(ordinal) = state.messages.find(position) else {
            let deferred = verdict == Verdict::Acknowledge && defer(state, position);
            if deferred {
                self.note(queue, (position, None), connection, LeaseEventKind::AcknowledgedUnheld);
                let (queue, position) = (QueueId::new(queue), Position::new(position));
                let kind = ChangeKind::Acknowledged;
                self.changes.push_back(Change { queue, position, bookmark: None, kind });
            }
            return deferred;
        };
        if verdict == Verdict::Expire {
            let (deliveries, cancels) = state.messages.counts(ordinal);
            let bookmark = self.expire(queue, ordinal, Reasons::FORCED_EXPIRE, deliveries, cancels);
            self.note(queue, (position, bookmark), connection, LeaseEventKind::ExpiredUnheld);
            return true;
        }
        let is_barrier = state.barriers.binary_search(&ordinal).is_ok();
        if !is_barrier {
            let bookmark = self.remove(queue, ordinal, position, ChangeKind::Acknowledged);
            self.note(queue, (position, bookmark), connection, LeaseEventKind::AcknowledgedUnheld);
        }
        !is_barrier
    }

    /// Ends a lease without success: the message waits again, or is expired when a limit is
    /// reached. When it was released, or the server stops, the delivery does not count.
    pub(super) fn fail(&mut self, slot: u32, end: LeaseEventKind) {
        self.give_back(slot, end, None);
    }

    /// As [`fail`](Self::fail). A cancelled message is delayed for `delay_ns`; `None`: for as long
    /// as the queue is configured to.
    fn give_back(&mut self, slot: u32, end: LeaseEventKind, delay_ns: Option<u64>) {
        let Lease { queue, position, taken, subscription, .. } = *self.leases.get(slot);
        if !taken {
            self.note_end(slot, end);
        }
        let Ended { ordinal, deliveries, cancels, taken, classes } = self.take_lease(slot);
        if taken {
            return;
        }
        let cancelled = end == LeaseEventKind::Cancelled;
        let released = end == LeaseEventKind::Released || (end == LeaseEventKind::Left && self.is_stopping);
        let cancels = cancels.saturating_add(u32::from(cancelled));
        let deliveries = deliveries.saturating_sub(u32::from(released));
        let holder = self.holder_in(queue, subscription);
        let state = &mut self.queues[queue as usize];
        let mut reasons = Reasons::default();
        reasons.add(Reasons::TIME_LIMIT, state.messages.expires(ordinal) <= self.now);
        reasons.add(
            Reasons::MAX_CANCELS,
            cancelled && state.config.max_cancels.is_some_and(|limit| cancels > limit),
        );
        reasons.add(
            Reasons::MAX_DELIVERIES,
            !released && state.config.max_deliveries.is_some_and(|limit| deliveries >= limit),
        );
        if !reasons.is_empty() {
            self.expire(queue, ordinal, reasons, deliveries, cancels);
            return;
        }
        state.messages.set_counts(ordinal, deliveries, cancels);
        state.totals.cancelled += u64::from(cancelled);
        let delay_ns = match cancelled {
            true => delay_ns.unwrap_or_else(|| state.config.retry_delay_ns(cancels)),
            false => 0,
        };
        let until = self.now.saturating_add(delay_ns);
        let due = if delay_ns > 0 {
            state.delay(ordinal, until, classes)
        } else {
            if end == LeaseEventKind::RanOut
                && let Some(holder) = holder
            {
                state.note_lapse(ordinal, holder);
            }
            state.give_back(ordinal, &classes, self.now)
        };
        let bookmark = state.messages.bookmark(ordinal);
        let kind = match end {
            LeaseEventKind::Cancelled => Some(ChangeKind::Cancelled { cancels }),
            _ if released => Some(ChangeKind::Returned { deliveries }),
            _ => None,
        };
        let delayed = (delay_ns > 0).then_some(ChangeKind::Delayed { until: Time::new(until) });
        let (id, position) = (QueueId::new(queue), Position::new(position));
        let change = |kind| Change { queue: id, position, bookmark, kind };
        self.changes.extend(kind.into_iter().chain(delayed).map(change));
        if delay_ns > 0 {
            self.note_move(queue, position.get(), bookmark, MoveKind::Left);
        }
        self.wake_by(due);
        self.line_up(queue);
        self.audit(queue);
    }

    /// Expires a message. Returns its bookmark, if it has one.
    fn expire(
        &mut self,
        queue: u32,
        ordinal: u64,
        reasons: Reasons,
        deliveries: u32,
        cancels: u32,
    ) -> Option<Bookmark> {
        let position = self.queues[queue as usize].messages.position(ordinal);
        self.remove(queue, ordinal, position, ChangeKind::Expired { reasons, deliveries, cancels })
    }

    /// Takes a message out of its queue. Returns its bookmark, if it has one.
    #[inline]
    fn remove(&mut self, queue: u32, ordinal: u64, position: u64, kind: ChangeKind) -> Option<Bookmark> {
        let state = &mut self.queues[queue as usize];
        let bookmark = state.remove(ordinal);
        match kind {
            ChangeKind::Expired { reasons, .. } => {
                state.totals.expired += 1;
                state.totals.expired_by.note(reasons);
            }
            _ => state.totals.acknowledged += 1,
        }
        self.changes.push_back(Change {
            queue: QueueId::new(queue),
            position: Position::new(position),
            bookmark,
            kind,
        });
        self.note_move(queue, position, bookmark, MoveKind::Left);
        self.line_up(queue);
        self.audit(queue);
        bookmark
    }

    /// Ends a lease and frees its place in the backlog.
    #[inline]
    pub(super) fn take_lease(&mut self, slot: u32) -> Ended {
        let Lease { queue, subscription, .. } = *self.leases.get(slot);
        let entry = &mut self.subscriptions[subscription as usize];
        let lease = self.leases.remove(slot, &mut self.queues[queue as usize].leases, &mut entry.leases);
        entry.outstanding -= 1;
        self.reload(subscription);
        self.line_up(queue);
        lease
    }

    /// Ends the leases of a queue that are over, as many as are `left` of this portion.
    pub(super) fn end_leases(&mut self, queue: u32, left: &mut u32) {
        while let Some((deadline, slot)) = self.leases.next_due(&self.queues[queue as usize].leases) {
            if deadline > self.now || *left == 0 {
                break;
            }
            *left -= 1;
            self.end_lease(slot);
        }
    }

    /// Ends the delays of a queue that are over, about as many as are `left` of this portion. A
    /// message whose time is over expires.
    pub(super) fn end_delays(&mut self, queue: u32, left: &mut u32) {
        while *left > 0 {
            let state = &mut self.queues[queue as usize];
            let Some((ordinal, delayed)) = state.delays.take_due(self.now) else { break };
            *left -= 1;
            if state.messages.expires(ordinal) <= self.now {
                let (deliveries, cancels) = state.messages.counts(ordinal);
                self.expire(queue, ordinal, Reasons::TIME_LIMIT, deliveries, cancels);
            } else {
                state.give_back(ordinal, &delayed.classes, self.now);
                let (position, bookmark) =
                    (state.messages.position(ordinal), state.messages.bookmark(ordinal));
                self.note_move(queue, position, bookmark, MoveKind::Entered);
                self.line_up(queue);
            }
        }
    }

    /// Ends the waits of messages for another subscription that are over, about as many as are
    /// `left` of this portion.
    pub(super) fn end_waits(&mut self, queue: u32, left: &mut u32) {
        while *left > 0 && self.queues[queue as usize].lapses.end_due(self.now) {
            *left -= 1;
            self.line_up(queue);
        }
    }

    /// The lease on a message. One that is over ends here, if that was still to be done.
    fn lease_on(&mut self, queue: u32, position: u64) -> Option<u32> {
        let slot = self.queues.get(queue as usize)?.leases.find(position)?;
        if self.leases.get(slot).deadline > self.now {
            return Some(slot);
        }
        self.end_lease(slot);
        None
    }

    /// Ends a lease whose time is over.
    fn end_lease(&mut self, slot: u32) {
        let queue = self.leases.get(slot).queue as usize;
        self.queues[queue].totals.expired_leases += 1;
        let expired = self.queues[queue].totals.expired;
        self.lose(slot, LostCause::Returned);
        self.fail(slot, LeaseEventKind::RanOut);
        if self.queues[queue].totals.expired > expired
            && let Some(lost) = self.lost.back_mut()
        {
            lost.cause = LostCause::Expired;
        }
    }

    /// Notes that a holder is about to lose a message.
    fn lose(&mut self, slot: u32, cause: LostCause) {
        let Lease { queue, subscription, position, ordinal, .. } = *self.leases.get(slot);
        let bookmark = self.queues[queue as usize].messages.bookmark(ordinal);
        let (queue, position) = (QueueId::new(queue), Position::new(position));
        let subscription = self.id(subscription);
        self.lost.push_back(LostLease { queue, position, bookmark, subscription, cause });
    }

    /// Notes how a lease ends for its holder, if its delivery was noted.
    #[inline]
    fn note_end(&mut self, slot: u32, kind: LeaseEventKind) {
        let Lease { queue, subscription, ordinal, position, is_recorded, .. } = *self.leases.get(slot);
        if is_recorded {
            let connection = self.subscriptions[subscription as usize].connection;
            let bookmark = self.queues[queue as usize].messages.bookmark(ordinal);
            self.note_if(true, queue, (position, bookmark), connection, kind);
        }
    }

    /// Expires the waiting messages of a queue whose time has come, about as many as are `left` of
    /// this portion.
    pub(super) fn expire_due(&mut self, queue: u32, left: &mut u32) {
        while *left > 0 {
            let due = self.queues[queue as usize].messages.due(self.now);
            if due.is_empty() {
                break;
            }
            *left = left.saturating_sub(due.len() as u32);
            for ordinal in due {
                let (deliveries, cancels) = self.queues[queue as usize].messages.counts(ordinal);
                self.expire(queue, ordinal, Reasons::TIME_LIMIT, deliveries, cancels);
            }
        }
    }
}

/// Keeps an acknowledgement for a message that is not active yet. Only the log knows whether the
/// position is one of this queue. So every position between the first and the last inactive message
/// is kept, until that place is reached.
pub(super) fn defer(state: &mut QueueState, position: u64) -> bool {
    let is_inactive = state.inactive.count > 0
        && position > state.last_position
        && position <= state.inactive.last_position
        && !state.inactive.deferred.contains(position);
    if is_inactive {
        state.inactive.deferred.insert(position);
    }
    is_inactive
}
