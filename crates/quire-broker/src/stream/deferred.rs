//! Ordinary subscriptions whose filters take more effort for a message than a turn has.
//!
//! The message is buffered for such a subscription. A reader thread evaluates the filter, and a
//! matching message is delivered when the answer arrives. Until then, every later message for the
//! subscription waits, so that its messages stay in order. Buffered messages count against
//! `max_client_backlog` like the backlog of a slow connection. A bookmark subscription does not
//! need this: it falls back to a replay, whose filters are always evaluated on those threads.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::Arc;

use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use super::PublishStream;
use crate::context::Context;
use crate::replay::{Answer, OwnedMessage, Question, Verdict, decide_all};
use crate::session::SessionId;
use crate::subscription::{ServedBy, SubscriptionId};
use quire_command::{Code, Message};
use quire_expression::filter::{Decision, MessageContext};

/// The most messages and subscriptions of one piece of work. The number is small enough for early
/// answers, and large enough for a low cost of the transfer.
const QUESTIONS_MAX: usize = 1024;

/// Bytes of the messages of one piece of work.
const QUESTIONS_SIZE_MAX: usize = 1024 * 1024;

/// The size of a kept message in addition to its data.
const KEPT_OVERHEAD: usize = 64;

/// A message that is kept for subscriptions, one after the other.
pub(super) struct SharedMessage {
    pub(super) message: Arc<OwnedMessage>,
    /// The session of the last of these subscriptions. Subscriptions of one session usually follow
    /// each other. When they do not, the message counts again.
    last_session: Option<SessionId>,
}

impl SharedMessage {
    pub(super) fn of(context: &MessageContext<'_>, message: &Message<'_>, is_queue: bool) -> Self {
        let message = OwnedMessage {
            message_type: context.message_type,
            topic: context.topic.into(),
            bookmark: message.bookmark.and(context.bookmark),
            timestamp: context.timestamp,
            correlation_id: context.correlation_id.into(),
            headers: context.headers.into(),
            key: message.key.into(),
            kind: message.kind,
            data: context.data.into(),
            is_queue,
        };
        SharedMessage { message: Arc::new(message), last_session: None }
    }
}

/// The messages that wait for a decision.
#[derive(Default)]
pub(super) struct Deferred {
    by_subscription: HashMap<SubscriptionId, Waiting, FxBuildHasher>,
    /// The subscriptions with messages that no job has, in the order of their waiting times: the
    /// longest first.
    line: VecDeque<SubscriptionId>,
    /// The subscriptions whose messages the current job decides, each with its session and the
    /// bytes that are buffered for it. There is one job at a time, so that replays can use the
    /// other reader thread.
    under_way: Option<Vec<(SubscriptionId, SessionId, usize)>>,
}

#[derive(Default)]
struct Waiting {
    questions: VecDeque<Question>,
    /// The subscription is in the queue.
    is_in_line: bool,
}

impl Deferred {
    /// Whether a message waits for the subscription. Then all later messages must wait, too.
    pub(crate) fn has(&self, id: SubscriptionId) -> bool {
        self.by_subscription.contains_key(&id)
    }

    /// The subscription has ended. Returns the bytes that were buffered for it, without the bytes
    /// in the current job.
    fn forget(&mut self, id: SubscriptionId) -> usize {
        let waiting = self.by_subscription.remove(&id);
        waiting.map_or(0, |waiting| waiting.questions.iter().map(|question| question.charge).sum())
    }
}

impl PublishStream {
    /// Buffers a message for a subscription whose filter was not decided, or that waits for the
    /// decision about an earlier message.
    pub(super) fn defer(
        &mut self,
        cx: &mut Context,
        id: SubscriptionId,
        decision: Decision,
        kept: &mut SharedMessage,
    ) {
        let Some(subscription) = cx.clients.subscriptions.get(id) else { return };
        let filter = match decision {
            Decision::Open => subscription.wanted.filter.clone(),
            Decision::Wanted => None,
        };
        let session = subscription.session;
        let select = subscription.wanted.select.as_ref();
        let select = select.and_then(|select| select.of_topic(&kept.message.topic)).map(Cow::into_owned);
        // The subscriptions of a session share the message.
        let is_first = kept.last_session.replace(session) != Some(session);
        let charge = KEPT_OVERHEAD + if is_first { kept.message.size() } else { 0 };
        let waiting = self.deferred.by_subscription.entry(id).or_default();
        let message = kept.message.clone();
        waiting.questions.push_back(Question { subscription: id, message, filter, select, charge });
        if !waiting.is_in_line {
            waiting.is_in_line = true;
            self.deferred.line.push_back(id);
        }
        let session_state = &mut cx.clients.sessions.all[session];
        session_state.deferred_size += charge;
        let size = session_state.deferred_size + session_state.outbox.backlog_size();
        cx.touch(session);
        if size as u64 > cx.backlog_max(session) {
            let limit = cx.transport_of(session).max_client_backlog;
            let reason = format!(
                "slow filters: more than max_client_backlog ({limit} bytes) of messages wait until the filters of this connection are evaluated"
            );
            cx.drop_slow(session, &reason);
        }
    }

    /// Whether messages wait until the filter of a subscription is evaluated.
    pub(crate) fn is_deciding(&self, id: SubscriptionId) -> bool {
        self.deferred.has(id)
    }

    /// The subscription has ended. The messages that wait for it are dropped.
    pub(crate) fn forget_deferred(&mut self, cx: &mut Context, id: SubscriptionId) {
        if self.deferred.has(id) {
            let size = self.deferred.forget(id);
            if let Some(session) =
                cx.clients.subscriptions.all.get(id).map(|subscription| subscription.session)
            {
                cx.session(session).deferred_size -= size;
            }
        }
    }

    /// Passes the next questions to the reader threads, unless a job is in progress.
    pub(crate) fn decide_deferred(&mut self, cx: &mut Context) {
        if self.deferred.under_way.is_some() || self.deferred.line.is_empty() {
            return;
        }
        let (mut questions, mut subscriptions, mut size) = (Vec::new(), Vec::new(), 0);
        while questions.len() < QUESTIONS_MAX
            && size < QUESTIONS_SIZE_MAX
            && let Some(id) = self.deferred.line.pop_front()
        {
            let Some(waiting) = self.deferred.by_subscription.get_mut(&id) else { continue };
            waiting.is_in_line = false;
            let size_before = size;
            while questions.len() < QUESTIONS_MAX
                && size < QUESTIONS_SIZE_MAX
                && let Some(question) = waiting.questions.pop_front()
            {
                size += question.charge;
                questions.push(question);
            }
            if let Some(subscription) = cx.clients.subscriptions.all.get(id) {
                subscriptions.push((id, subscription.session, size - size_before));
            }
        }
        if questions.is_empty() {
            return;
        }
        self.deferred.under_way = Some(subscriptions);
        cx.begin_job(
            move |arena| decide_all(questions, arena),
            |stream: &mut PublishStream, cx, _, answers| stream.decided(cx, answers),
        );
    }

    /// The questions were answered; `None` because of a bug in quire.
    fn decided(&mut self, cx: &mut Context, answers: Option<Vec<Answer>>) {
        let Some(subscriptions) = self.deferred.under_way.take() else { return };
        let is_known = answers.is_some();
        for (_, session, size) in &subscriptions {
            if let Some(session_state) = cx.clients.sessions.all.get_mut(*session) {
                session_state.deferred_size -= size;
                cx.touch(*session);
            }
        }
        for Answer { subscription, message, verdict } in answers.into_iter().flatten() {
            match verdict {
                Verdict::Unwanted => (),
                Verdict::Wanted => self.deliver_decided(cx, subscription, &message, &message.data),
                Verdict::Selected(data) => self.deliver_decided(cx, subscription, &message, &data),
                Verdict::TooCostly => cx.end_costly(subscription, message.data.len()),
            }
        }
        for (id, ..) in subscriptions {
            if !is_known && cx.clients.subscriptions.all.contains_key(id) {
                cx.end_subscription(id, Code::Internal, "the evaluation of the filter failed");
            }
            let Some(waiting) = self.deferred.by_subscription.get_mut(&id) else { continue };
            if waiting.questions.is_empty() {
                self.deferred.by_subscription.remove(&id);
            } else if !waiting.is_in_line {
                waiting.is_in_line = true;
                self.deferred.line.push_back(id);
            }
        }
    }

    fn deliver_decided(&mut self, cx: &mut Context, id: SubscriptionId, message: &OwnedMessage, data: &[u8]) {
        // The subscription may have become a bookmark subscription meanwhile. It then receives its
        // messages from the log.
        if cx
            .clients
            .subscriptions
            .get(id)
            .is_none_or(|subscription| matches!(subscription.served_by, ServedBy::Bookmark))
        {
            return;
        }
        let frame = Message {
            subscription: 0,
            bookmark: message.bookmark.map(|bookmark| (bookmark.publisher.get(), bookmark.sequence)),
            timestamp_ns: message.timestamp.as_ns(),
            queued: None,
            topic: message.topic.as_bytes(),
            correlation_id: &message.correlation_id,
            headers: message.headers.as_headers(),
            key: &message.key,
            kind: message.kind,
            data,
        };
        let frame = cx.leaving(id, &message.context(), frame);
        cx.deliver_published(id, &message.context(), &frame, message.is_queue, None);
    }
}
