//! Decides outside of the loop which messages a subscription wants, for filters that take more
//! effort than a turn has.

use std::sync::Arc;

use quire_journal::{Bookmark, HeadersBuffer, Timestamp};

use crate::subscription::SubscriptionId;
use quire_command::MessageKind;
use quire_expression::filter::{EVALUATION_EFFORT_MAX, Filter, MessageContext};
use quire_expression::message_type::{Arena, MessageType};
use quire_expression::select::Select;

/// A message that outlives its received frame.
#[derive(Debug)]
pub struct OwnedMessage {
    pub message_type: MessageType,
    pub topic: Arc<str>,
    /// Publisher and sequence, when the log records it.
    pub bookmark: Option<Bookmark>,
    pub timestamp: Timestamp,
    pub correlation_id: Box<[u8]>,
    pub headers: HeadersBuffer,
    /// Its key in its last-value topic; empty = none.
    pub key: Box<[u8]>,
    pub kind: MessageKind,
    pub data: Box<[u8]>,
    /// The topic is the name of a queue.
    pub is_queue: bool,
}

impl OwnedMessage {
    /// Bytes of data and headers.
    pub fn size(&self) -> usize {
        self.data.len() + self.headers.as_headers().as_bytes().len()
    }

    /// The input of a filter.
    pub fn context(&self) -> MessageContext<'_> {
        MessageContext {
            message_type: self.message_type,
            data: &self.data,
            topic: &self.topic,
            key: (!self.key.is_empty()).then_some(&self.key),
            bookmark: self.bookmark,
            correlation_id: &self.correlation_id,
            headers: self.headers.as_headers(),
            timestamp: self.timestamp,
            now: self.timestamp,
        }
    }
}

/// One message and one subscription.
pub struct Question {
    pub subscription: SubscriptionId,
    pub message: Arc<OwnedMessage>,
    /// The filter of the subscription when the message arrived; `None` when the message is known to
    /// match.
    pub filter: Option<Filter>,
    pub select: Option<Select>,
    /// Bytes that are counted for the question. The first question of a session about a message
    /// counts the bytes of the message.
    pub charge: usize,
}

/// The answer to a [`Question`].
pub struct Answer {
    pub subscription: SubscriptionId,
    pub message: Arc<OwnedMessage>,
    pub verdict: Verdict,
}

pub enum Verdict {
    Unwanted,
    Wanted,
    /// A part of the message is wanted.
    Selected(Vec<u8>),
    /// The filter takes more effort than [`EVALUATION_EFFORT_MAX`].
    TooCostly,
}

/// Answers all questions in their order.
pub fn decide_all(questions: Vec<Question>, mut arena: Arena) -> Vec<Answer> {
    let mut selected = Vec::new();
    let answer = |Question { subscription, message, filter, select, .. }| {
        arena.allow(EVALUATION_EFFORT_MAX);
        let filter: Option<Filter> = filter;
        let decided = filter.map_or(Some(true), |filter| filter.decide(&message.context(), &mut arena));
        arena.allow(u64::MAX);
        let verdict = match (decided, select) {
            (None, _) => Verdict::TooCostly,
            (Some(false), _) => Verdict::Unwanted,
            (Some(true), None) => Verdict::Wanted,
            (Some(true), Some(select)) => {
                let select: Select = select;
                let part = select.apply(Some(message.message_type), &message.data, &mut arena, &mut selected);
                Verdict::Selected(part.to_vec())
            }
        };
        Answer { subscription, message, verdict }
    };
    questions.into_iter().map(answer).collect()
}
