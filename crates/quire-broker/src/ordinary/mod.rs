//! Subscriptions without a bookmark, and `live` ones that have caught up: served with each publish, from the received frame.

mod deferred;
mod delta;

use std::sync::Arc;

use quire_command::Message;
use quire_expression::filter::{Decision, MessageContext};
use quire_expression::message_type::{Arena, MessageType};
use quire_journal::Position;

use super::context::Context;
use super::slice::{SERVED, WEIGHED_EFFORT};
use crate::send::mark_dirty;
use crate::session::{SessionId, SharedData};
use crate::subscription::{ServedBy, Source, SubscriptionId};
use crate::topic::{Stage, TopicId};
use deferred::{Deferred, SharedMessage};
use delta::Change;

/// See the module's documentation.
#[derive(Default)]
pub(crate) struct Ordinary {
    deferred: Deferred,
    /// `live` subscriptions that could not take a message, and the positions after which they continue from the log.
    behind: Vec<(SubscriptionId, Position)>,
    /// The subscriptions that get the current message. A buffer that is used again.
    matched: Vec<(SubscriptionId, Decision)>,
    /// For the filters of delta subscriptions.
    arena: Arena,
}

impl Ordinary {
    /// A `live` subscription that continues from the log, and the position after which it does.
    pub(crate) fn next_behind(&mut self) -> Option<(SubscriptionId, Position)> {
        (!self.behind.is_empty()).then(|| self.behind.remove(0))
    }

    /// Serves ordinary and `live` subscriptions.
    pub(crate) fn serve_published(
        &mut self,
        cx: &mut Context,
        topic: TopicId,
        context: &MessageContext<'_>,
        message: &Message<'_>,
        is_queue: bool,
    ) {
        let mut matched = std::mem::take(&mut self.matched);
        let push = |id, decision| matched.push((id, decision));
        let effort = cx.topics.for_each_decision(topic, Stage::Published, context, cx.turn_effort, push);
        cx.slices.weigh(SERVED + matched.len() + effort as usize / WEIGHED_EFFORT);
        let mut owned = None;
        let shared = cx.share(message.data, matched.len(), Stage::Published);
        let mut memory = std::mem::take(&mut cx.selected);
        // Only a message of a last-value topic has a key.
        let replaced = if message.key.is_empty() { None } else { cx.replaced.take() };
        let mut change = replaced.map(Change::of);
        for &(subscription, decision) in &matched {
            let decided = match decision {
                Decision::Open => self.decide_delta(cx, subscription, context),
                Decision::Wanted => None,
            };
            if decided == Some(false) {
                continue;
            }
            if decided.is_none() && (decision == Decision::Open || self.deferred.has(subscription)) {
                if !self.falls_back(cx, subscription, message.bookmark.is_some()) {
                    let owned = owned.get_or_insert_with(|| SharedMessage::of(context, message, is_queue));
                    self.defer(cx, subscription, decision, owned);
                }
                continue;
            }
            if let Some(change) = &mut change
                && self.serve_change(cx, subscription, context, message, change)
            {
                continue;
            }
            let message_type = Some(context.message_type);
            let data = cx.select(subscription, message_type, message.data, &mut memory);
            let shared = shared.as_ref().filter(|_| std::ptr::eq(data, message.data));
            let message = Message { data, ..*message };
            cx.deliver_published(subscription, context, &message, is_queue, shared);
        }
        cx.selected = memory;
        matched.clear();
        self.matched = matched;
    }

    /// Tells subscriptions that a record left their view, after the messages that wait for a decision.
    pub(crate) fn serve_left(
        &mut self,
        cx: &mut Context,
        subscriptions: &[SubscriptionId],
        context: &MessageContext<'_>,
        message: &Message<'_>,
    ) {
        cx.slices.weigh(subscriptions.len());
        let mut owned = None;
        let mut memory = std::mem::take(&mut cx.selected);
        for &subscription in subscriptions {
            if self.deferred.has(subscription) {
                let owned = owned.get_or_insert_with(|| SharedMessage::of(context, message, false));
                self.defer(cx, subscription, Decision::Wanted, owned);
                continue;
            }
            let data = cx.select(subscription, Some(context.message_type), message.data, &mut memory);
            cx.deliver_published(subscription, context, &Message { data, ..*message }, false, None);
        }
        cx.selected = memory;
    }

    /// A `live` subscription that cannot take a message continues from the log, if the message is there. Returns whether the subscription
    /// does not have to wait for a decision.
    fn falls_back(&mut self, cx: &Context, id: SubscriptionId, is_recorded: bool) -> bool {
        let Some(subscription) = cx.subscriptions.get(id) else { return true };
        let Some(progress) = subscription.progress() else { return false };
        if is_recorded {
            // It is the last record. One that is not in step yet is served up to the tail.
            let after = match progress.stage {
                Source::Live => Position::new(cx.log.appended().get() - 1),
                _ => progress.after.max(cx.log.served),
            };
            self.behind.push((id, after));
        }
        true
    }
}

impl Context {
    /// The part of a message that a subscription wants; `memory` holds it when that is not the whole.
    pub(crate) fn select<'a>(
        &mut self,
        id: SubscriptionId,
        message_type: Option<MessageType>,
        data: &'a [u8],
        memory: &'a mut Vec<u8>,
    ) -> &'a [u8] {
        let select = self.subscriptions.get(id).and_then(|subscription| subscription.select.as_ref());
        let Some(select) = select else { return data };
        select.apply(message_type, data, &mut self.arena, memory)
    }

    /// `shared` has the same bytes as the message's data.
    pub(crate) fn deliver_published(
        &mut self,
        id: SubscriptionId,
        context: &MessageContext<'_>,
        message: &Message<'_>,
        is_queue: bool,
        shared: Option<&Arc<SharedData>>,
    ) {
        // A connection that was ended while this message was served took its subscriptions along.
        let Some(subscription) = self.subscriptions.get_mut(id) else { return };
        let session_id = subscription.session;
        let message = Message { subscription: subscription.number, ..*message };
        let conflation = subscription.conflation.as_ref().filter(|_| !is_queue);
        if conflation.is_some_and(|conflation| conflation.key.applies_to(message.key)) {
            if subscription.is_follower() && !message.key.is_empty() {
                return;
            }
            if !subscription.wants_key(message.key) {
                return;
            }
            self.conflate_message(id, context.topic, Some(context), &message);
            return self.check_backlog(session_id);
        }
        let session = &mut self.sessions.all[session_id];
        if shared.is_none() {
            self.buffers.give(&mut session.outbox);
        }
        let size = match &mut subscription.served_by {
            // The name belongs to a queue, which serves the subscriptions without a bookmark.
            ServedBy::Ordinary | ServedBy::Queue(_) if is_queue => return,
            ServedBy::Ordinary | ServedBy::Queue(_) => {
                session.outbox.put_message(&message, shared);
                session.outbox.backlog_size()
            }
            ServedBy::Sow(sow) if !sow.wants_key(message.key) => return,
            ServedBy::Sow(sow) => match &mut sow.held {
                Some(held) => {
                    let size_before = held.len();
                    session.outbox.encoder().put_message(&message, held);
                    session.deferred_size += held.len() - size_before;
                    session.deferred_size + session.outbox.backlog_size()
                }
                None => {
                    session.outbox.put_message(&message, shared);
                    session.outbox.backlog_size()
                }
            },
            // A bookmark subscription gets what is recorded, and nothing else.
            ServedBy::Bookmark(_) if message.bookmark.is_none() => return,
            ServedBy::Bookmark(progress) => {
                if progress.taken_after.is_some_and(|instant| message.timestamp_ns <= instant.as_ns()) {
                    return;
                }
                match &mut progress.stage {
                    Source::SwitchingToLive(switching) => {
                        session.outbox.encoder().put_message(&message, &mut switching.buffered);
                        switching.buffered.len() + session.outbox.backlog_size()
                    }
                    _ => {
                        session.outbox.put_message(&message, shared);
                        session.outbox.backlog_size()
                    }
                }
            }
        };
        if shared.is_some() && session.is_writable {
            self.slices.charge(message.data.len());
        }
        self.counters.delivered += 1;
        let size_max = self.config.transports[session.transport.0 as usize].max_client_backlog;
        mark_dirty(session, &mut self.sessions.dirty, session_id);
        if size as u64 > size_max {
            self.end_slow(session_id);
        }
    }

    /// Conflated messages have one bound. Beyond it messages go to the backlog, which has another.
    pub(crate) fn check_backlog(&mut self, id: SessionId) {
        let session = self.session(id);
        let size = session.outbox.backlog_size() + session.deferred_size;
        if size as u64 > self.transport_of(id).max_client_backlog {
            self.end_slow(id);
        }
    }
}
