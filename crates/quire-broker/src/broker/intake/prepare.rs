//! The second stage of the intake: a message as it is recorded.
//!
//! The steps are the same for every origin, and [`Origin`] decides which of them it needs.
//!
//! - A delete: None of them. Its data are keys.
//! - JSON, where the topic wants it: Not checked for a service, which writes it.
//! - Key: Another instance has found that of its record. The key is compared with the data, unless
//!   the source permits other rules of keys here.
//! - Constructed fields, and the merge of a delta: Another instance has done both. The message of a
//!   service stays as it is when they fail.
//! - Size of the result: Refused above the limit of the connection. A service keeps its message
//!   then.
//! - A large message: Another thread prepares that of a client, and its connection waits. The
//!   others are prepared in the turn.

use quire_command::Publish;
use quire_expression::filter::MessageContext;
use quire_expression::message_type::MessageType;
use quire_journal::{Bookmark, RecordKind, Timestamp};

use super::large::{Examined, Json};
use super::{Intake, Origin, Submission};
use crate::context::Context;
use crate::reply::Refusal;
use crate::tables::{Arriving, Keyed, Outcome, Prepared};
use crate::topic::{TableId, TopicId};

/// A message that is ready for the log.
pub(super) enum Ready {
    /// It keeps its data, and is not a record of a last-value topic.
    AsItIs,
    /// It keeps its data and its key, and is a record.
    Keyed(TableId),
    /// It is a record with another key or data than it came with.
    Prepared(TableId, Prepared),
}

/// Whether a message is ready for the log.
pub(super) enum Step {
    Ready(Ready),
    /// It is large. After [`Examined::run`] on another thread, it is to be prepared again.
    Later(Examined),
}

impl Ready {
    /// The last-value topic that the message has a key of.
    pub(super) fn keyed(&self) -> Option<Keyed<'_>> {
        match self {
            Ready::AsItIs => None,
            Ready::Keyed(table) => Some(Keyed::of(*table)),
            Ready::Prepared(table, prepared) => Some(prepared.keyed(*table)),
        }
    }

    /// The message with its key and data.
    pub(super) fn of<'a>(&'a self, publish: &Publish<'a>) -> Publish<'a> {
        match self {
            Ready::AsItIs | Ready::Keyed(_) => *publish,
            Ready::Prepared(_, prepared) => {
                let data = prepared.data.as_deref().unwrap_or(publish.data);
                Publish { key: &prepared.key, data, ..*publish }
            }
        }
    }
}

impl Intake<'_> {
    /// The message of a submission as it is recorded. `table` is the last-value topic that it
    /// belongs to. `examined` is of the same message from an earlier call, when it is large.
    ///
    /// # Errors
    /// Why it is refused.
    pub(super) fn prepare(
        &mut self,
        submission: &Submission<'_>,
        table: Option<TableId>,
        mut examined: Examined,
    ) -> Result<Step, Refusal> {
        let Submission { origin, kind, topic, publish, .. } = *submission;
        if kind == RecordKind::Delete {
            return Ok(Step::Ready(Ready::AsItIs));
        }
        if !matches!(origin, Origin::Service) && !validate(self.cx, topic, publish.data, &mut examined.json)?
        {
            return Ok(Step::Later(examined));
        }
        let Some(table) = table else { return Ok(Step::Ready(Ready::AsItIs)) };
        let Examined { json, preparation } = examined;
        let arriving = Arriving::of_publish(publish, self.size_max(origin));
        let outcome = match origin {
            // A delta that is sent again is not merged a second time. A message that was refused is
            // refused again.
            Origin::Client { is_known: true, .. } => self
                .tables
                .check_again(self.cx, table, &arriving, preparation)
                .map(|outcome| outcome.map(|()| Ready::AsItIs)),
            Origin::Client { is_known: false, .. } => self
                .tables
                .prepare(self.cx, table, &arriving, preparation)
                .map(|outcome| outcome.map(|prepared| Ready::Prepared(table, prepared))),
            Origin::Service => self
                .tables
                .prepare_or_keep(self.cx, table, &arriving, preparation)
                .map(|outcome| outcome.map(|prepared| Ready::Prepared(table, prepared))),
            Origin::Peer { has_any_key: true, .. } => Ok(Outcome::Ready(Ready::Keyed(table))),
            Origin::Peer { has_any_key: false, .. } => {
                self.tables.check_data(table, publish.data).map(|()| Outcome::Ready(Ready::Keyed(table)))
            }
        };
        match outcome.map_err(Refusal::BadMessage)? {
            Outcome::Ready(ready) => Ok(Step::Ready(ready)),
            Outcome::Later(preparation) => Ok(Step::Later(Examined { json, preparation: Some(preparation) })),
        }
    }

    /// As [`Intake::prepare`], in this turn whatever it takes: no connection can wait for the
    /// message.
    ///
    /// # Errors
    /// As [`Intake::prepare`].
    pub(super) fn prepare_now(
        &mut self,
        submission: &Submission<'_>,
        table: Option<TableId>,
    ) -> Result<Ready, Refusal> {
        let size_max = self.size_max(submission.origin);
        let mut examined = Examined::default();
        loop {
            match self.prepare(submission, table, examined)? {
                Step::Ready(ready) => return Ok(ready),
                Step::Later(later) => {
                    examined = later;
                    let arena = &mut self.cx.messages.arena;
                    examined.run(submission.publish, size_max, arena);
                    // The next message has all effort. The memory of the large message is
                    // released.
                    arena.allow(u64::MAX);
                    arena.reset();
                }
            }
        }
    }

    /// The most bytes that a prepared message may have.
    fn size_max(&self, origin: Origin<'_>) -> usize {
        match origin {
            Origin::Client { size_max, .. } => size_max,
            Origin::Service | Origin::Peer { .. } => self.cx.config.message_size_max(),
        }
    }
}

/// The input of filters from a message.
#[inline]
pub(super) fn context_of<'a>(
    publish: &Publish<'a>,
    message_type: MessageType,
    topic: &'a str,
    bookmark: Option<Bookmark>,
    timestamp: Timestamp,
) -> MessageContext<'a> {
    MessageContext {
        message_type,
        data: publish.data,
        topic,
        key: (!publish.key.is_empty()).then_some(publish.key),
        bookmark,
        correlation_id: publish.correlation_id,
        headers: publish.headers,
        timestamp,
        now: timestamp,
    }
}

/// Whether all of the bytes are one JSON value in UTF-8.
pub(super) fn check_json(data: &[u8]) -> Result<(), serde_json::Error> {
    let text = std::str::from_utf8(data).map_err(serde::de::Error::custom)?;
    serde_json::from_str::<serde::de::IgnoredAny>(text).map(drop)
}

/// Checks that a message is JSON, if its topic wants that. `false`: it is large, and another thread
/// is asked.
///
/// # Errors
/// It is not.
fn validate(cx: &Context, topic: TopicId, data: &[u8], json: &mut Json) -> Result<bool, Refusal> {
    if !cx.topics.topic(topic).recording.validates() {
        return Ok(true);
    }
    match json {
        Json::Unknown | Json::Asked if data.len() > cx.clock.turn_size => {
            *json = Json::Asked;
            Ok(false)
        }
        Json::Unknown | Json::Asked => match check_json(data) {
            Ok(()) => Ok(true),
            Err(error) => Err(not_json(cx, topic, &error.to_string())),
        },
        Json::Valid => Ok(true),
        Json::Invalid(reason) => Err(not_json(cx, topic, reason)),
    }
}

fn not_json(cx: &Context, topic: TopicId, reason: &str) -> Refusal {
    let name = &cx.topics.topic(topic).name;
    Refusal::BadMessage(format!("the message on the topic {name:?} is not JSON: {reason}"))
}
