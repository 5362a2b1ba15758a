//! Subscriptions without a bookmark, and `live` subscriptions that have caught up. They are served
//! with each publish, from the received frame.

mod deferred;
mod delta;
mod subscribe;

use quire_command::Message;
use quire_expression::filter::{Decision, MessageContext};
use quire_expression::message_type::Arena;

use super::context::Context;
use super::slice::{SERVED, WEIGHED_EFFORT};
use crate::subscription::{ServedBy, SubscriptionId};
use crate::topic::{Stage, TopicId};
use deferred::{Deferred, SharedMessage};
use delta::Change;
pub(crate) use delta::Replacement;

/// See the module's documentation.
pub(crate) struct PublishStream {
    deferred: Deferred,
    /// `live` subscriptions that could not accept the message. The log has the message.
    behind: Vec<SubscriptionId>,
    /// The subscriptions that receive the current message. The buffer is reused.
    matched: Vec<(SubscriptionId, Decision)>,
    /// The part of a message that a subscription wants. The buffer is reused.
    selected: Vec<u8>,
    /// For the filters of delta subscriptions.
    arena: Arena,
}

impl PublishStream {
    pub(crate) fn new(cx: &Context) -> Self {
        PublishStream {
            deferred: Deferred::default(),
            behind: Vec::new(),
            matched: Vec::new(),
            selected: Vec::new(),
            arena: cx.messages.unreadable.arena(),
        }
    }

    /// A `live` subscription that continues from the log, and the position after which it
    /// continues.
    pub(crate) fn next_behind(&mut self) -> Option<SubscriptionId> {
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
        Replacement { views, replaced, is_older }: Replacement<'_>,
    ) {
        let mut matched = std::mem::take(&mut self.matched);
        let push = |id, decision| matched.push((id, decision));
        let effort =
            cx.topics.for_each_decision(topic, Stage::Published, context, cx.clock.turn_effort, push);
        cx.clock.slices.weigh(SERVED + matched.len() + effort as usize / WEIGHED_EFFORT);
        let mut owned = None;
        let shared = cx.share(message.data, matched.len(), Stage::Published);
        let mut memory = std::mem::take(&mut self.selected);
        let mut change = replaced.map(Change::of);
        for &(subscription, decision) in &matched {
            if is_older && views.get(subscription).is_some() {
                continue;
            }
            let decided = match decision {
                Decision::Open => self.decide_delta(cx, views, subscription, context),
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
            if let (Some(change), Some(view)) = (&mut change, views.get(subscription))
                && self.serve_change(cx, view, subscription, context, message, change)
            {
                continue;
            }
            let message_type = Some(context.message_type);
            let data = cx.select(subscription, message_type, context.topic, message.data, &mut memory);
            let shared = shared.as_ref().filter(|_| std::ptr::eq(data, message.data));
            let message = Message { data, ..*message };
            cx.deliver_published(subscription, context, &message, is_queue, shared);
        }
        self.selected = memory;
        matched.clear();
        self.matched = matched;
    }

    /// Notifies subscriptions that a record left their view, after the messages that wait for a
    /// decision.
    pub(crate) fn serve_left(
        &mut self,
        cx: &mut Context,
        subscriptions: &[SubscriptionId],
        context: &MessageContext<'_>,
        message: &Message<'_>,
    ) {
        cx.clock.slices.weigh(subscriptions.len());
        let mut owned = None;
        let mut memory = Vec::new();
        for &subscription in subscriptions {
            if self.deferred.has(subscription) {
                let owned = owned.get_or_insert_with(|| SharedMessage::of(context, message, false));
                self.defer(cx, subscription, Decision::Wanted, owned);
                continue;
            }
            let message_type = Some(context.message_type);
            let data = cx.select(subscription, message_type, context.topic, message.data, &mut memory);
            let message = cx.leaving(subscription, context, Message { data, ..*message });
            cx.deliver_published(subscription, context, &message, false, None);
        }
    }

    /// A `live` subscription that cannot accept a message continues from the log, if the log has
    /// the message. Returns whether the subscription does not have to wait for a decision.
    fn falls_back(&mut self, cx: &Context, id: SubscriptionId, is_recorded: bool) -> bool {
        let Some(subscription) = cx.clients.subscriptions.get(id) else { return true };
        if !matches!(subscription.served_by, ServedBy::Bookmark) {
            return false;
        }
        if is_recorded {
            self.behind.push(id);
        }
        true
    }
}
