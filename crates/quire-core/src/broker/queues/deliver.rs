//! From the engine to connections: what can be delivered is sent, or waits for the disk or the journal in its place.

use quire_journal::Position;

use super::work::{FETCH_SIZE_AHEAD, FETCH_SIZE_ALONE, Fetched};
use super::{Purpose, QueueFound, QueueWork};
use crate::broker::acknowledge::code_of;
use crate::broker::slice::PASS;
use crate::broker::{Broker, Event, Output};
use crate::message_type::MessageType;
use crate::queue::{Delivery, Semantics, Time};
use crate::replay::{ReadRequest, Ticket, Work, message_of};
use crate::session::SessionId;
use crate::subscription::{Course, SubscriptionId};
use crate::wire::{Code, Message, Queued};

/// Deliveries in one turn: more would keep the other connections waiting.
const DELIVERIES_PER_TURN_MAX: usize = 16 * 1024;

/// Deliveries after which the time is looked at.
const DELIVERIES_PER_LOOK: usize = 64;

/// Deliveries of a subscription that wait for the disk. At the limit it gets no more leases until some have been sent.
const PENDING_MAX: usize = 1024;

/// Fetches under way at a time: with 1 MiB each no more than what counts as at hand.
const FETCHES_MAX: usize = 16;

/// A fetch that begins within so many records before a message may bring it; it is waited for before another begins.
const FETCH_REACH: u64 = 2048;

/// A delivery that could not be sent at once.
#[derive(Clone, Copy, Debug)]
pub(in crate::broker) struct Pending {
    delivery: Delivery,
    /// The log must be persisted up to here first. `None`: up to the next record of changes, which is not written yet.
    persisted: Option<Position>,
}

/// What became of an attempt to send.
enum Attempt {
    Sent,
    /// The message is in other hands by now, or its subscription is gone.
    Void,
    /// The record has to be fetched.
    Missing,
    /// Something else has to happen first.
    Waits,
    /// It can never be read.
    Unreadable,
}

impl Broker {
    /// Sends what queues have to deliver.
    pub(in crate::broker) fn serve_queues(&mut self) {
        if !self.queues.any() {
            return;
        }
        self.release_sessions();
        self.go_on_with_settles();
        self.go_on_with_queries();
        self.refill();
        let now = self.queues.time(self.now);
        // Whoever lost a message hears of that before it gets the message again.
        self.queues.engine.advance(now);
        self.tell_lost_leases();
        let mut missing = Vec::new();
        self.flush_waiting(now, &mut missing);
        let mut left = DELIVERIES_PER_TURN_MAX;
        let deadline = self.slices.deadline(PASS);
        while left > 0 {
            if left.is_multiple_of(DELIVERIES_PER_LOOK) && self.slices.is_past(deadline) {
                self.wants_turn = true;
                break;
            }
            left -= 1;
            let Some(delivery) = self.poll_delivery(now, &mut missing) else { break };
            self.deliver(delivery, now, &mut missing);
        }
        let is_due = self.queues.engine.poll_timeout().is_some_and(|due| due <= now);
        self.wants_turn |= left == 0 || is_due;
        self.end_costly_filters();
        self.fetch_missing(missing);
        self.log_changes();
        self.publish_dead_letters();
        self.save_points();
        self.keep_states();
    }

    fn poll_delivery(&mut self, now: Time, missing: &mut Vec<Position>) -> Option<Delivery> {
        let wall = self.now.wall;
        let mut answers = self.queues.answers(wall);
        let (engine, answers) = (&mut answers.0, &mut answers.1);
        let delivery = engine.poll_delivery(now, answers);
        missing.append(&mut answers.missing);
        delivery
    }

    fn deliver(&mut self, delivery: Delivery, now: Time, missing: &mut Vec<Position>) {
        let Some(id) = self.queues.subscriptions.get(&delivery.subscription).copied() else { return };
        let semantics = self.queues.definition(delivery.queue).config.semantics;
        let must_be_logged = semantics == Semantics::AtMostOnce;
        let persisted = if must_be_logged { None } else { Some(Position::ZERO) };
        let pending = Pending { delivery, persisted };
        let Some(course) = self.queue_course(id) else { return };
        let goes_at_once = course.pending.is_empty() && !must_be_logged;
        if goes_at_once {
            match self.attempt(id, &pending, now) {
                Attempt::Sent | Attempt::Void => return,
                Attempt::Missing => missing.push(delivery.position),
                Attempt::Waits => (),
                Attempt::Unreadable => return self.end_unreadable(id, delivery.position),
            }
        }
        let Some(course) = self.queue_course(id) else { return };
        course.pending.push_back(pending);
        if course.pending.len() >= PENDING_MAX {
            let engine_id = course.id;
            self.queues.engine.hold(engine_id, true);
        }
        self.queues.waiting.insert(id);
    }

    /// Sends what waited and need not wait any more.
    fn flush_waiting(&mut self, now: Time, missing: &mut Vec<Position>) {
        for id in std::mem::take(&mut self.queues.waiting) {
            while let Some(pending) = self.first_pending(id) {
                match self.attempt(id, &pending, now) {
                    Attempt::Sent | Attempt::Void => {
                        if let Some(course) = self.queue_course(id) {
                            course.pending.pop_front();
                        }
                        continue;
                    }
                    Attempt::Missing => missing.push(pending.delivery.position),
                    Attempt::Waits => (),
                    Attempt::Unreadable => {
                        self.end_unreadable(id, pending.delivery.position);
                        break;
                    }
                }
                self.queues.waiting.insert(id);
                break;
            }
            self.let_go_on(id);
        }
    }

    fn first_pending(&mut self, id: SubscriptionId) -> Option<Pending> {
        self.queue_course(id)?.pending.front().copied()
    }

    /// A subscription with few deliveries that wait gets leases again, unless its whole session is held.
    fn let_go_on(&mut self, id: SubscriptionId) {
        let Some(session) = self.subscriptions.get(id).map(|subscription| subscription.session) else {
            return;
        };
        let is_held = self.queues.held.contains(&session);
        let Some(course) = self.queue_course(id) else { return };
        if !is_held && course.pending.len() < PENDING_MAX / 2 {
            let engine_id = course.id;
            self.queues.engine.hold(engine_id, false);
        }
    }

    fn attempt(&mut self, id: SubscriptionId, pending: &Pending, now: Time) -> Attempt {
        let Pending { delivery, persisted } = *pending;
        let Some(subscription) = self.subscriptions.get(id) else { return Attempt::Void };
        let (session_id, number) = (subscription.session, subscription.number);
        let Course::Queue(course) = &subscription.course else { return Attempt::Void };
        let (is_named, select) = (course.is_named, subscription.select.clone());
        let still_holds = delivery.barrier
            || self.queues.engine.holder(delivery.queue, delivery.position) == Some(delivery.subscription);
        if !still_holds {
            return Attempt::Void;
        }
        if persisted.is_none_or(|persisted| persisted > self.journal.persisted()) {
            return Attempt::Waits;
        }
        if !self.sessions[session_id].can_be_fed() {
            self.hold_session(session_id);
            return Attempt::Waits;
        }
        if self.queues.unreadable.contains(&delivery.position) {
            return Attempt::Unreadable;
        }
        self.give_buffer(session_id);
        let ahead = self.queues.recent.take_ahead(delivery.position);
        let definition = self.queues.definition(delivery.queue);
        let lease_ms = match (delivery.lease_deadline, definition.config.semantics, delivery.barrier) {
            (Some(deadline), _, _) => deadline.get().saturating_sub(now.get()) / 1_000_000,
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
        let Some(record) = self.queues.recent.get(delivery.position) else { return Attempt::Missing };
        let outbox = &mut self.sessions[session_id].outbox;
        let size_before = outbox.size();
        let data = match &select {
            Some(select) if !delivery.barrier => {
                let message_type = MessageType::from_code(record.message_type);
                select.apply(message_type, record.data, &mut self.arena, &mut self.selected)
            }
            _ => record.data,
        };
        Message { queued: Some(queued), data, ..message_of(&record, number) }.encode(outbox.bytes_mut());
        let size = outbox.size() - size_before;
        // Deliveries keep the pace of the connection by themselves.
        outbox.count_as_replayed(size);
        if !delivery.barrier {
            let bookmark = record.bookmark();
            self.queues.outstanding[delivery.queue.get() as usize].insert(bookmark, delivery.position);
        }
        self.counters.delivered += 1;
        self.touch(session_id);
        if !self.sessions[session_id].can_be_fed() {
            self.hold_session(session_id);
        }
        if let Some(after) = ahead {
            self.fetch(after.next(), true);
        }
        Attempt::Sent
    }

    /// Nothing is leased to the session before it takes something again.
    pub(in crate::broker) fn hold_session(&mut self, id: SessionId) {
        if self.queues.any() && self.queues.held.insert(id) {
            self.hold_subscriptions(id, true);
        }
    }

    fn release_sessions(&mut self) {
        for id in std::mem::take(&mut self.queues.to_release) {
            let can_be_fed = self.sessions.get(id).is_some_and(|session| session.can_be_fed());
            if can_be_fed && self.queues.held.remove(&id) {
                self.hold_subscriptions(id, false);
            }
        }
    }

    fn hold_subscriptions(&mut self, id: SessionId, held: bool) {
        let subscriptions: Vec<_> = self.sessions[id].subscriptions.values().copied().collect();
        for subscription in subscriptions {
            if let Some(course) = self.queue_course(subscription) {
                let engine_id = course.id;
                self.queues.engine.hold(engine_id, held);
            }
        }
    }

    /// From here on the records of this turn's changes are in the log: what was taken may leave when they are persisted.
    pub(super) fn note_logged(&mut self) {
        let appended = self.journal.appended();
        for id in self.queues.waiting.clone() {
            let Some(course) = self.queue_course(id) else { continue };
            for pending in course.pending.iter_mut().rev() {
                match pending.persisted {
                    None => pending.persisted = Some(appended),
                    Some(_) => break,
                }
            }
        }
    }

    fn fetch_missing(&mut self, mut missing: Vec<Position>) {
        missing.sort_unstable();
        missing.dedup();
        for position in missing {
            self.fetch(position, false);
        }
    }

    /// Asks for the stretch of the log from a position on, unless it is on its way, or as many are as there may be.
    pub(super) fn fetch(&mut self, from: Position, is_ahead: bool) {
        let comes = |purpose: &Purpose| match purpose {
            Purpose::Fetch { from: begin, .. } => {
                (begin.get()..begin.get() + FETCH_REACH).contains(&from.get())
            }
            _ => false,
        };
        let fetches =
            self.queues.under_way.values().filter(|purpose| matches!(purpose, Purpose::Fetch { .. }));
        if from > self.edge || fetches.count() >= FETCHES_MAX || self.queues.under_way.values().any(comes) {
            return;
        }
        let definitions = self.queues.all.as_slice().into();
        let size = if is_ahead { FETCH_SIZE_AHEAD } else { FETCH_SIZE_ALONE };
        let work =
            QueueWork::Fetch { reader: self.reader.clone(), from, limit: self.edge, size, definitions };
        self.begin_work(Purpose::Fetch { from, is_ahead }, work);
    }

    /// Hands work to the reader threads; gives its number.
    pub(super) fn begin_work(&mut self, purpose: Purpose, work: QueueWork) -> u64 {
        self.read_number += 1;
        let number = self.read_number;
        self.queues.under_way.insert(number, purpose);
        let request = ReadRequest { ticket: Ticket::Queue { number }, work: Work::Queue(work) };
        self.outputs.push_back(Output::Read(request));
        number
    }

    /// Work for queues has been done; or not, by a bug of ours.
    pub(in crate::broker) fn queue_work_done(&mut self, number: u64, found: Option<QueueFound>) {
        let Some(purpose) = self.queues.under_way.remove(&number) else { return };
        match purpose {
            Purpose::Fetch { from, is_ahead } => {
                let fetched = match found {
                    Some(QueueFound::Fetched(fetched)) => fetched,
                    _ => Fetched::default(),
                };
                self.fetched(from, is_ahead, fetched);
            }
            Purpose::Query(session) => match found {
                Some(QueueFound::Sorted(found)) => self.sorted(session, number, found),
                Some(QueueFound::Page(found)) => self.page_found(session, number, Some(found)),
                _ => self.page_found(session, number, None),
            },
            Purpose::Refill(queue) => match found {
                Some(QueueFound::Refilled(found)) => self.refilled(queue, Some(found)),
                _ => self.refilled(queue, None),
            },
            Purpose::Save => match found {
                Some(QueueFound::Saved(result)) => self.points_saved(Some(result)),
                _ => self.points_saved(None),
            },
            Purpose::Keep => match found {
                Some(QueueFound::Saved(result)) => self.state_kept(Some(result)),
                _ => self.state_kept(None),
            },
            Purpose::Settle(session) => {
                let positions = match found {
                    Some(QueueFound::Found(positions)) => Some(positions),
                    _ => None,
                };
                self.settle_found(session, number, positions);
            }
        }
    }

    fn fetched(&mut self, from: Position, is_ahead: bool, fetched: Fetched) {
        let Fetched { batches, is_full, error } = fetched;
        let count = batches.len();
        let last = batches.last().map(|batch| batch.last());
        for (index, batch) in batches.into_iter().enumerate() {
            let ahead = last.filter(|_| is_full && index == count / 2);
            self.queues.recent.add(batch, ahead);
        }
        // What was read ahead may begin with a message of no queue, which is not brought.
        if !is_ahead && !self.queues.recent.has(from) {
            let (code, reason) = match error {
                Some(error) => (code_of(&error), error.to_string()),
                None => (Code::Internal, "it is not in the journal".to_owned()),
            };
            let event = Event::QueueMessageUnreadable { position: from.get(), code, reason };
            self.outputs.push_back(Output::Log(event));
            self.queues.unreadable.insert(from);
        }
        self.queues.engine.retry();
    }

    /// A message cannot be read: the subscription that was to get it ends, the message stays in its queue.
    fn end_unreadable(&mut self, id: SubscriptionId, position: Position) {
        let reason = format!("the message at position {position} of the journal cannot be read");
        self.end_subscription(id, Code::JournalCorrupt, &reason);
    }
}
