//! Answers to commands (protocol.md, `ack`).

use std::borrow::Cow;
use std::sync::Arc;

use super::context::Context;
use super::failure::Failure;
use crate::entitlement::Denied;
use crate::session::SessionId;
use quire_command::subscribe::OptionError;
use quire_command::{Ack, AckKind, Acks, Code, FailureScope, Reply};
use quire_expression::filter::FilterError;
use quire_expression::topic::TopicError;

/// Why a command is refused: an error of the caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    pub code: Code,
    /// For a filter: where.
    pub column: u32,
    pub reason: String,
}

impl Context {
    pub fn send_refused(&mut self, id: SessionId, sequence: u64, refusal: &Refusal) {
        let (code, reason) = (refusal.code(), refusal.reason());
        let scope = FailureScope::One;
        self.put(id, &Reply::PublishFailed { sequence, code, scope, reason: &reason });
    }

    pub fn acknowledge_received(&mut self, id: SessionId, command: u32, subscription: u32, acks: Acks) {
        if acks.has(Acks::RECEIVED) {
            self.acknowledge_command(id, AckKind::Received, command, subscription);
        }
    }

    pub fn acknowledge_processed(&mut self, id: SessionId, command: u32, subscription: u32, acks: Acks) {
        if acks.has(Acks::PROCESSED) {
            self.acknowledge_command(id, AckKind::Processed, command, subscription);
        }
    }

    /// As [`acknowledge_processed`](Self::acknowledge_processed), with a note that the client logs,
    /// and with `detail`, whose meaning depends on the command (protocol.md, `ack`).
    pub fn acknowledge_with(
        &mut self,
        id: SessionId,
        command: u32,
        subscription: u32,
        acks: Acks,
        detail: u32,
        note: &str,
    ) {
        if acks.has(Acks::PROCESSED) {
            let kind = AckKind::Processed;
            let ack = Ack { kind, code: Code::Ok, command, subscription, detail, reason: note };
            self.put(id, &Reply::Ack(ack));
        }
    }

    pub fn acknowledge_command(&mut self, id: SessionId, kind: AckKind, command: u32, subscription: u32) {
        let ack = Ack { kind, code: Code::Ok, command, subscription, detail: 0, reason: "" };
        self.put(id, &Reply::Ack(ack));
    }

    /// A failed command is answered by one `processed` with its code, for any `acks`.
    pub fn fail_command(&mut self, id: SessionId, command: u32, subscription: u32, failure: &Failure) {
        let Failure { code, reason, .. } = failure;
        let ack = Ack { kind: AckKind::Processed, code: *code, command, subscription, detail: 0, reason };
        self.put(id, &Reply::Ack(ack));
    }

    /// A command about a queue that does not exist.
    pub fn no_queue(&mut self, id: SessionId, command: u32, queue: &str) {
        if command != 0 {
            let reason = format!("no queue has the name {queue:?}");
            self.refuse_command(id, command, 0, &Refused::new(Code::UnknownQueue, reason));
        }
    }

    /// A refused command is answered by one `processed` with the code, for any `acks`.
    pub fn refuse_command(&mut self, id: SessionId, command: u32, subscription: u32, refused: &Refused) {
        let Refused { code, column, reason } = refused;
        let kind = AckKind::Processed;
        self.put(id, &Reply::Ack(Ack { kind, code: *code, command, subscription, detail: *column, reason }));
    }
}

impl Refused {
    pub fn new(code: Code, reason: String) -> Self {
        Refused { code, column: 0, reason }
    }
}

/// Options that cannot be combined.
pub fn bad_option(error: OptionError) -> Refused {
    Refused::new(Code::BadOption, error.to_string())
}

/// A mistake in `order_by`.
pub fn bad_order(error: &FilterError) -> Refused {
    Refused {
        code: Code::BadFilter,
        column: u32::try_from(error.column).unwrap_or(u32::MAX),
        reason: format!("order_by: {}", error.reason),
    }
}

pub fn unknown_subscription(number: u32) -> Refused {
    Refused::new(Code::UnknownSubscription, format!("the connection has no subscription {number}"))
}

/// `is_container`: an entry with a pattern has the name.
pub fn not_last_value(topic: &str, is_container: bool) -> Refused {
    let reason = if is_container {
        format!("{topic:?} is the name of an entry with a pattern, and no topic: name one of its topics")
    } else {
        format!("the topic {topic:?} keeps no last values")
    };
    Refused::new(Code::NotLastValue, reason)
}

/// Why clients cannot change a view or a conflated topic.
pub fn is_computed(topic: &str) -> String {
    format!(
        "the topic {topic:?} is a view or a conflated topic: the server computes its records; publish to its underlying \
         topic"
    )
}

/// Why one publish was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    BadTopic(TopicError),
    /// The topic is a view or a conflated topic.
    IsComputed(Arc<str>),
    TooManyTopics,
    /// The topic is validated, and the message is not well formed.
    BadMessage(String),
    /// No entry of the transaction log names this topic.
    NotRecorded(Arc<str>),
    /// The message has a delay, and no queue has this underlying topic.
    NoQueue(Arc<str>),
    /// The delay is longer than [`DELAY_MAX_NS`](quire_types::DELAY_MAX_NS).
    DelayTooLong,
    /// The message has a key, and its topic keeps no last values.
    NotLastValue(Arc<str>),
    /// The topic keeps last values by its pattern, and cannot get a table.
    NoTable(Refused),
    /// The user may not publish it.
    NotEntitled(Denied),
    /// Another run of the publisher has used the sequence of the message.
    NameInUse {
        sequence: u64,
    },
    /// An operator has accepted that the message is lost, and the log has later ones.
    AcceptedAsLost {
        sequence: u64,
    },
    /// The journal refuses this message, and accepts others.
    NotAppended(Code, String),
}

impl Refusal {
    pub fn code(&self) -> Code {
        match self {
            Refusal::NotRecorded(_) => Code::NotJournaled,
            Refusal::BadTopic(_) | Refusal::IsComputed(_) => Code::BadTopic,
            Refusal::BadMessage(_) => Code::BadMessage,
            Refusal::TooManyTopics => Code::LimitExceeded,
            Refusal::NoQueue(_) => Code::UnknownQueue,
            Refusal::DelayTooLong => Code::BadOption,
            Refusal::NotLastValue(_) => Code::NotLastValue,
            Refusal::NoTable(refused) => refused.code,
            Refusal::NotEntitled(_) => Code::NotEntitled,
            Refusal::NameInUse { .. } | Refusal::AcceptedAsLost { .. } => Code::NameInUse,
            Refusal::NotAppended(code, _) => *code,
        }
    }

    pub fn reason(&self) -> Cow<'static, str> {
        match self {
            Refusal::BadTopic(error) => error.to_string().into(),
            Refusal::BadMessage(reason) | Refusal::NotAppended(_, reason) => reason.clone().into(),
            Refusal::NoTable(refused) => refused.reason.clone().into(),
            Refusal::NotEntitled(denied) => denied.reason().into(),
            Refusal::TooManyTopics => {
                "the log has max_topics topics, and this is a new one; raise transaction_log.max_topics of the server".into()
            }
            Refusal::IsComputed(topic) => is_computed(topic).into(),
            Refusal::NotRecorded(topic) => {
                format!("the transaction log does not record the topic {topic:?}, so the message was not taken").into()
            }
            Refusal::NoQueue(topic) => {
                format!("the message has a delay, and no queue takes messages from the topic {topic:?}").into()
            }
            Refusal::NameInUse { sequence } => format!(
                "the log has another message with sequence {sequence} of the client name, from another run of the program or from \
                 another program. This message was not taken: publish it again"
            )
            .into(),
            Refusal::AcceptedAsLost { sequence } => format!(
                "an operator has accepted that the message with sequence {sequence} of the client name is lost, and the log has \
                 later messages of it. This message was not taken: publish it again"
            )
            .into(),
            Refusal::DelayTooLong => "the delay of the message ends more than 10 years from now".into(),
            Refusal::NotLastValue(topic) => {
                format!("the message has a key or updates a record, and the topic {topic:?} keeps no last values").into()
            }
        }
    }
}
