//! Conflated subscriptions: their messages are held for an interval and delivered as their connection takes them (docs/replay.md).
//!
//! What is held belongs to the subscription, not to the replay or the edge that it came from: it outlives a pause and a change from the one
//! to the other.

use quire_journal::Record;

use super::{Alarm, Broker};
use crate::filter::MessageContext;
use crate::replay::{context_of, message_of};
use crate::subscription::{Course, SubscriptionId};
use crate::wire::Message;

impl Broker {
    /// Holds a message of a conflated subscription.
    pub(super) fn hold(&mut self, id: SubscriptionId, key: &[u8], frame: &[u8]) {
        let now = self.now.instant;
        let Some(conflation) = &mut self.subscriptions[id].conflation else { return };
        let was_empty = conflation.is_empty();
        conflation.hold(now, key, frame);
        let (next_end, is_full) = (conflation.next_end(), !conflation.has_room());
        if let Some(next_end) = next_end.filter(|_| was_empty) {
            self.alarms.set(Alarm::Held(id), next_end);
        }
        if is_full {
            self.deliver_held_while(id, |broker| {
                broker.subscriptions[id].conflation.as_ref().is_some_and(|held| !held.has_room())
            });
        }
    }

    /// Holds a record that the pass at the edge has come to; `data` is what the subscription wants of it.
    pub(super) fn hold_record(&mut self, id: SubscriptionId, record: &Record<'_>, data: &[u8]) {
        let number = self.subscriptions[id].number;
        let context = context_of(record, self.now.wall);
        let message = Message { data, ..message_of(record, number) };
        self.hold_message(id, record.topic, context.as_ref(), &message);
    }

    /// Holds a message as it is published, or persisted.
    pub(super) fn hold_message(
        &mut self,
        id: SubscriptionId,
        topic: &str,
        context: Option<&MessageContext<'_>>,
        message: &Message<'_>,
    ) {
        let Some(conflation) = &self.subscriptions[id].conflation else { return };
        let (mut key, mut frame) = (Vec::new(), Vec::new());
        conflation.key.write(topic, context, &mut self.arena, &mut key);
        message.encode(&mut frame);
        self.hold(id, &key, &frame);
    }

    /// An interval is over, or the connection takes more again: delivers what is due.
    pub(super) fn deliver_due(&mut self, id: SubscriptionId) {
        let now = self.now.instant;
        let is_paused = |broker: &Broker| {
            let progress = broker.subscriptions.get(id).and_then(|s| s.progress());
            progress.is_some_and(|progress| progress.is_paused)
        };
        if !self.subscriptions.contains_key(id) || is_paused(self) {
            return;
        }
        let next_end = |broker: &Broker| broker.subscriptions[id].conflation.as_ref()?.next_end();
        let session_id = self.subscriptions[id].session;
        self.deliver_held_while(id, |broker| {
            broker.sessions[session_id].can_be_fed() && next_end(broker).is_some_and(|end| end <= now)
        });
        match next_end(self) {
            Some(end) if end > now => self.alarms.set(Alarm::Held(id), end),
            Some(_) => self.sessions[session_id].overdue.push(id),
            None => (),
        }
    }

    /// Delivers everything that is held, in its order.
    pub(super) fn deliver_all_held(&mut self, id: SubscriptionId) {
        self.deliver_held_while(id, |_| true);
        self.alarms.clear(Alarm::Held(id));
    }

    fn deliver_held_while(&mut self, id: SubscriptionId, goes_on: impl Fn(&Broker) -> bool) {
        while goes_on(self) {
            let subscription = &mut self.subscriptions[id];
            let Some(frame) = subscription.conflation.as_mut().and_then(|held| held.take()) else { return };
            let is_replayed = matches!(subscription.course, Course::Bookmark(_));
            let session_id = subscription.session;
            let outbox = &mut self.sessions[session_id].outbox;
            if is_replayed {
                outbox.put_replayed(frame);
            } else {
                outbox.bytes_mut().extend_from_slice(&frame);
            }
            self.counters.delivered += 1;
            self.touch(session_id);
        }
    }
}
