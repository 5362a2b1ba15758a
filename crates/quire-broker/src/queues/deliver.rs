//! From the engine to connections: a delivery is sent, or it waits in its place for the disk or the
//! journal.

use quire_journal::Position;

use super::QueueService;
use crate::context::Context;
use crate::scan::message_of;
use crate::session::SessionId;
use crate::slice::PASS;
use crate::subscription::SubscriptionId;
use quire_command::{Code, Message, Queued};
use quire_expression::message_type::MessageType;
use quire_queue::{Delivery, QueueId, Semantics, Time};

/// Deliveries in one turn: more would keep the other connections waiting.
const DELIVERIES_PER_TURN_MAX: usize = 16 * 1024;

/// Deliveries after which the time is looked at.
const DELIVERIES_PER_LOOK: usize = 64;

/// Deliveries of a subscription that wait for the disk. At the limit it gets no more leases until
/// some have been sent.
const PENDING_MAX: usize = 1024;

/// A delivery that could not be sent at once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pending {
    delivery: Delivery,
    /// The log must be persisted up to here first. `None`: up to the next record of changes, which
    /// is not written yet.
    persisted: Option<Position>,
}

impl Pending {
    pub fn queue(&self) -> QueueId {
        self.delivery.queue
    }
}

/// The result of an attempt to send.
enum Attempt {
    Sent,
    /// Another subscription has the message now, or its subscription has ended.
    Void,
    /// The record has to be fetched.
    Missing,
    /// Something else has to happen first.
    Waits,
    /// It can never be read.
    Unreadable,
}

impl QueueService {
    /// Sends the deliveries of queues.
    pub(crate) fn serve(&mut self, cx: &mut Context) {
        if !self.any() {
            return;
        }
        self.resume_sessions(cx);
        self.continue_settles(cx);
        self.continue_queries(cx);
        self.refill(cx);
        self.fill(cx);
        let now = self.time(cx.clock.now);
        // A client that lost a message is notified before it gets the message again.
        self.engine.advance(now);
        self.notify_lost_leases(cx);
        let mut missing = Vec::new();
        self.flush_waiting(cx, now, &mut missing);
        if self.stopped_at.is_none() {
            self.deliver_some(cx, now, &mut missing);
            cx.clock.wants_turn |= self.engine.poll_timeout().is_some_and(|due| due <= now);
        }
        self.end_costly_filters(cx);
        self.fetch_missing(cx, missing);
        self.log_changes(cx);
        self.log_notices(cx);
    }

    /// As many deliveries as there is time for in this turn.
    fn deliver_some(&mut self, cx: &mut Context, now: Time, missing: &mut Vec<Position>) {
        let deadline = cx.clock.slices.deadline(PASS);
        for left in (1..=DELIVERIES_PER_TURN_MAX).rev() {
            if left.is_multiple_of(DELIVERIES_PER_LOOK) && cx.clock.slices.is_past(deadline) {
                break;
            }
            let Some(delivery) = self.poll_delivery(cx, now, missing) else { return };
            self.deliver(cx, delivery, now, missing);
        }
        cx.clock.wants_turn = true;
    }

    fn poll_delivery(
        &mut self,
        cx: &mut Context,
        now: Time,
        missing: &mut Vec<Position>,
    ) -> Option<Delivery> {
        let wall = cx.clock.now.wall;
        let mut answers = self.answers(wall);
        let (engine, answers) = (&mut answers.0, &mut answers.1);
        let delivery = engine.poll_delivery(now, answers);
        missing.append(&mut answers.missing);
        delivery
    }

    fn deliver(&mut self, cx: &mut Context, delivery: Delivery, now: Time, missing: &mut Vec<Position>) {
        let Some(id) = self.subscriptions.get(&delivery.subscription).copied() else { return };
        let semantics = self.definition(delivery.queue).config.semantics;
        let must_be_logged = semantics == Semantics::AtMostOnce;
        let persisted = if must_be_logged { None } else { Some(Position::ZERO) };
        let pending = Pending { delivery, persisted };
        let Some(queued) = self.served(cx, id) else { return };
        let goes_at_once = queued.pending.is_empty() && !must_be_logged;
        if goes_at_once {
            match self.attempt(cx, id, &pending, now) {
                Attempt::Sent | Attempt::Void => return,
                Attempt::Missing => missing.push(delivery.position),
                Attempt::Waits => (),
                Attempt::Unreadable => return self.end_unreadable(cx, id, delivery.position),
            }
        }
        let Some(queued) = self.served(cx, id) else { return };
        queued.pending.push_back(pending);
        if queued.pending.len() >= PENDING_MAX {
            let engine_id = queued.id;
            self.engine.hold(engine_id, true);
        }
        self.waiting.insert(id);
    }

    /// Sends the deliveries that no longer need to wait.
    fn flush_waiting(&mut self, cx: &mut Context, now: Time, missing: &mut Vec<Position>) {
        for id in std::mem::take(&mut self.waiting) {
            while let Some(pending) = self.first_pending(cx, id) {
                match self.attempt(cx, id, &pending, now) {
                    Attempt::Sent | Attempt::Void => {
                        if let Some(queued) = self.served(cx, id) {
                            queued.pending.pop_front();
                        }
                        continue;
                    }
                    Attempt::Missing => missing.push(pending.delivery.position),
                    Attempt::Waits => (),
                    Attempt::Unreadable => {
                        self.end_unreadable(cx, id, pending.delivery.position);
                        break;
                    }
                }
                self.waiting.insert(id);
                break;
            }
            self.resume_subscription(cx, id);
        }
    }

    /// A subscription with few deliveries that wait gets leases again, unless its session is
    /// paused.
    fn resume_subscription(&mut self, cx: &mut Context, id: SubscriptionId) {
        let Some(session) = cx.clients.subscriptions.get(id).map(|subscription| subscription.session) else {
            return;
        };
        let is_paused = self.paused.contains(&session);
        let Some(queued) = self.served(cx, id) else { return };
        if !is_paused && queued.pending.len() < PENDING_MAX / 2 {
            let engine_id = queued.id;
            self.engine.hold(engine_id, false);
        }
    }

    fn attempt(&mut self, cx: &mut Context, id: SubscriptionId, pending: &Pending, now: Time) -> Attempt {
        let Pending { delivery, persisted } = *pending;
        let Some(subscription) = cx.clients.subscriptions.get(id) else { return Attempt::Void };
        let (session_id, number) = (subscription.session, subscription.number);
        let Some(queued) = self.served.get(id) else { return Attempt::Void };
        let (is_named, select) = (queued.is_named, subscription.wanted.select.clone());
        let still_holds = delivery.barrier
            || self.engine.holder(delivery.queue, delivery.position) == Some(delivery.subscription);
        if !still_holds {
            return Attempt::Void;
        }
        if persisted.is_none_or(|persisted| persisted > cx.log.journal.persisted()) {
            return Attempt::Waits;
        }
        if !cx.clients.sessions.all[session_id].has_room() {
            self.pause_session(cx, session_id);
            return Attempt::Waits;
        }
        if self.unreadable.contains(&delivery.position) {
            return Attempt::Unreadable;
        }
        cx.give_buffer(session_id);
        let QueueService { recent, all, outstanding, selected, .. } = self;
        let Some((record, ahead)) = recent.read(delivery.position) else { return Attempt::Missing };
        let index = delivery.queue.get() as usize;
        let definition = &all[index];
        let lease_ms = match (delivery.lease_deadline, definition.config.semantics, delivery.barrier) {
            // 0 would mean that there is no lease.
            (Some(deadline), _, _) => (deadline.get().saturating_sub(now.get()) / 1_000_000).max(1),
            (None, Semantics::AtLeastOnce, false) => u64::MAX,
            (None, ..) => 0,
        };
        let queued = Queued {
            lease_ms,
            deliveries: delivery.delivery_count,
            cancels: delivery.cancel_count,
            position: delivery.position.get(),
            queue: is_named.then_some(definition.name.as_bytes()),
        };
        let outbox = &mut cx.clients.sessions.all[session_id].outbox;
        let select = select.as_ref().and_then(|select| select.of_topic(&definition.name));
        let data = match select {
            Some(select) if !delivery.barrier => {
                let message_type = MessageType::from_code(record.message_type);
                select.apply(message_type, record.data, &mut cx.messages.arena, selected)
            }
            _ => record.data,
        };
        let message = Message { queued: Some(queued), data, ..message_of(&record, number) };
        // The pace of the connection limits deliveries in any case.
        let size = outbox.put_replayed_message(&message, None);
        cx.tell_delivered(session_id, &message);
        cx.clients.subscriptions.note_sent(id, 1, size);
        if !delivery.barrier {
            let bookmark = record.bookmark();
            outstanding[index].insert(bookmark, delivery.position);
        }
        cx.clients.counters.delivered += 1;
        cx.touch(session_id);
        if !cx.clients.sessions.all[session_id].has_room() {
            self.pause_session(cx, session_id);
        }
        if let Some(after) = ahead {
            self.fetch(cx, after.next(), true);
        }
        Attempt::Sent
    }

    /// Nothing is leased to the session before it takes something again.
    pub(crate) fn pause_session(&mut self, cx: &mut Context, id: SessionId) {
        if self.any() && self.paused.insert(id) {
            self.set_paused(cx, id, true);
        }
    }

    fn resume_sessions(&mut self, cx: &mut Context) {
        for id in std::mem::take(&mut self.to_resume) {
            let has_room = cx.clients.sessions.all.get(id).is_some_and(|session| session.has_room());
            if has_room && self.paused.remove(&id) {
                self.set_paused(cx, id, false);
            }
        }
    }

    fn set_paused(&mut self, cx: &mut Context, id: SessionId, paused: bool) {
        let subscriptions: Vec<_> = cx.clients.sessions.all[id].subscriptions.values().copied().collect();
        for subscription in subscriptions {
            if let Some(queued) = self.served(cx, subscription) {
                let engine_id = queued.id;
                self.engine.hold(engine_id, paused);
            }
        }
    }

    /// From here on the records of this turn's changes are in the log. Taken messages may leave
    /// when these records are persisted. After any failure the records are not in the log, so the
    /// messages stay. The journal may have persisted all other records.
    pub(super) fn note_logged(&mut self, cx: &mut Context) {
        if cx.has_failed() {
            return;
        }
        let appended = cx.log.journal.appended();
        for id in self.waiting.clone() {
            let Some(queued) = self.served(cx, id) else { continue };
            for pending in queued.pending.iter_mut().rev() {
                match pending.persisted {
                    None => pending.persisted = Some(appended),
                    Some(_) => break,
                }
            }
        }
    }

    /// A message cannot be read: its subscription ends, and the message remains in its queue.
    fn end_unreadable(&mut self, cx: &mut Context, id: SubscriptionId, position: Position) {
        let reason = format!("the message at position {position} of the journal cannot be read");
        cx.end_subscription(id, Code::JournalCorrupt, &reason);
    }

    fn first_pending(&mut self, cx: &Context, id: SubscriptionId) -> Option<Pending> {
        self.served(cx, id)?.pending.front().copied()
    }
}
