//! Conflated subscriptions. Their messages are held for an interval, and then delivered when their
//! connection accepts bytes (docs/replay.md).
//!
//! A held message belongs to the subscription, not to the replay or the tail that it came from. It
//! survives a pause, and the change from the replay to the tail.

use crate::context::Context;
use quire_journal::Record;

use super::Timer;
use crate::scan::{context_of, message_of};
use crate::subscription::{Conflation, DeltaChange, ServedBy, SubscriptionId, ViewChange};
use quire_command::Message;
use quire_expression::filter::MessageContext;

impl Context {
    /// Holds a message of a conflated subscription.
    pub fn hold(&mut self, id: SubscriptionId, key: &[u8], frame: &[u8]) {
        let now = self.clock.now.instant;
        self.hold_with(id, |conflation| conflation.hold(now, key, frame));
    }

    fn hold_with(&mut self, id: SubscriptionId, hold: impl FnOnce(&mut Conflation)) {
        let Some(conflation) = &mut self.clients.subscriptions.all[id].delivery.conflation else { return };
        let was_empty = conflation.is_empty();
        hold(conflation);
        let (next_end, is_full) = (conflation.next_end(), !conflation.has_room());
        if let Some(next_end) = next_end.filter(|_| was_empty) {
            self.clock.timers.set(Timer::Conflated(id), next_end);
        }
        if is_full {
            self.deliver_conflated_while(id, |cx| {
                cx.clients.subscriptions.all[id]
                    .delivery
                    .conflation
                    .as_ref()
                    .is_some_and(|held| !held.has_room())
            });
        }
    }

    /// Holds a record that the live tail has reached. `data` is the part of the record that the
    /// subscription wants.
    pub fn conflate_record(&mut self, id: SubscriptionId, record: &Record<'_>, data: &[u8]) {
        let number = self.clients.subscriptions.all[id].number;
        let context = context_of(record, self.clock.now.wall);
        let message = Message { data, ..message_of(record, number) };
        self.conflate_message(id, record.topic, context.as_ref(), &message);
    }

    /// Holds a message when it is published, or persisted.
    pub fn conflate_message(
        &mut self,
        id: SubscriptionId,
        topic: &str,
        context: Option<&MessageContext<'_>>,
        message: &Message<'_>,
    ) {
        let Some(conflation) = &self.clients.subscriptions.all[id].delivery.conflation else { return };
        let (mut key, mut frame) = (Vec::new(), Vec::new());
        conflation.key.write(topic, context, &mut self.messages.arena, &mut key);
        conflation.encoder.put_message(message, &mut frame);
        self.hold(id, &key, &frame);
    }

    /// Sends a subscription the change of a record in its view, or holds it for conflation. Without
    /// `oof`, no message is sent for a record that leaves the view. `delta`: the change for a
    /// conflated delta subscription.
    pub fn deliver_view_change(
        &mut self,
        id: SubscriptionId,
        context: &MessageContext<'_>,
        message: &Message<'_>,
        change: ViewChange,
        delta: Option<&DeltaChange<'_>>,
    ) {
        let Some(subscription) = self.clients.subscriptions.get(id) else { return };
        let is_told = change != ViewChange::Left || subscription.wanted.wants_oof();
        let Some(conflation) = &subscription.delivery.conflation else {
            if is_told {
                self.deliver_published(id, context, message, false, None);
            }
            return;
        };
        let (session, mut key, mut frame) = (subscription.session, Vec::new(), Vec::new());
        conflation.key.write(context.topic, Some(context), &mut self.messages.arena, &mut key);
        if is_told {
            let message = Message { subscription: subscription.number, ..*message };
            conflation.encoder.put_message(&message, &mut frame);
        }
        let now = self.clock.now.instant;
        self.hold_with(id, |conflation| conflation.hold_change(now, &key, change, frame, delta));
        self.check_backlog(session);
    }

    /// Delivers the due messages, after the end of an interval or when the connection accepts bytes
    /// again.
    pub fn deliver_due(&mut self, id: SubscriptionId) {
        let now = self.clock.now.instant;
        let is_paused = |cx: &Context| {
            cx.clients.subscriptions.get(id).is_some_and(|subscription| subscription.delivery.is_paused)
        };
        if !self.clients.subscriptions.all.contains_key(id) || is_paused(self) {
            return;
        }
        let next_end =
            |cx: &Context| cx.clients.subscriptions.all[id].delivery.conflation.as_ref()?.next_end();
        let session_id = self.clients.subscriptions.all[id].session;
        self.deliver_conflated_while(id, |cx| {
            cx.clients.sessions.all[session_id].has_room() && next_end(cx).is_some_and(|end| end <= now)
        });
        match next_end(self) {
            Some(end) if end > now => self.clock.timers.set(Timer::Conflated(id), end),
            Some(_) => self.clients.sessions.all[session_id].overdue.push(id),
            None => (),
        }
    }

    /// Delivers all held messages in their order.
    pub fn deliver_all_conflated(&mut self, id: SubscriptionId) {
        self.deliver_conflated_while(id, |_| true);
        self.clock.timers.clear(Timer::Conflated(id));
    }

    pub fn deliver_conflated_while(&mut self, id: SubscriptionId, goes_on: impl Fn(&Context) -> bool) {
        while goes_on(self) {
            let subscription = &mut self.clients.subscriptions.all[id];
            let Some(frame) = subscription.delivery.conflation.as_mut().and_then(|held| held.take()) else {
                return;
            };
            if frame.is_empty() {
                continue;
            }
            let (session_id, size) = (subscription.session, frame.len());
            self.tell_frames_delivered(session_id, &frame);
            let subscription = &mut self.clients.subscriptions.all[id];
            let session = &mut self.clients.sessions.all[session_id];
            let is_replayed = subscription.served_by == ServedBy::Bookmark;
            match subscription.delivery.gate.held().filter(|_| !is_replayed) {
                // The records are delivered first.
                Some(held) => {
                    held.extend_from_slice(&frame);
                    session.deferred_size += frame.len();
                }
                None if is_replayed => session.outbox.put_replayed(frame),
                None => session.outbox.put_frames(&frame),
            }
            session.outbox.note_messages(1);
            self.clients.subscriptions.note_sent(id, 1, size);
            self.clients.counters.delivered += 1;
            self.touch(session_id);
        }
    }
}
