//! The one way of messages into the log: checked, transformed, stamped, recorded, served.
//!
//! Every sender makes a [`Submission`] of its message and hands it to [`Broker::ingest`]. A client (`publish.rs`) has checked size, topic
//! and duplicates before. The queue service has made its dead letters itself. [`Ingested`] is the result for the sender.

use quire_command::Message;
use quire_journal::{
    Appended, Attributes, AttributesBuffer, Bookmark, Headers, JournalError, NewAttributes, NewRecord,
    Position, PublisherId, RecordKind, Timestamp,
};

use super::Broker;
use crate::queues::DeadLetter;
use crate::topic::{Stage, TopicId};
use quire_expression::filter::MessageContext;
use quire_expression::message_type::MessageType;
use quire_types::Delay;

/// Dead letters published in one turn: more would keep the other connections waiting.
const DEAD_LETTERS_PER_TURN_MAX: usize = 1024;

/// A message on its way into the log.
pub(super) struct Submission<'a> {
    pub origin: Origin,
    pub publisher: PublisherId,
    /// Among those of the publisher. 0: the log gives it one.
    pub sequence: u64,
    pub topic: TopicId,
    pub correlation_id: &'a [u8],
    pub headers: Headers<'a>,
    pub expiration_s: Option<u32>,
    pub delay: Delay,
    pub data: &'a [u8],
}

impl Submission<'_> {
    /// The input of filters from the message.
    #[inline]
    fn context<'a>(
        &'a self,
        message_type: MessageType,
        topic: &'a str,
        bookmark: Option<Bookmark>,
        timestamp: Timestamp,
    ) -> MessageContext<'a> {
        MessageContext {
            message_type,
            data: self.data,
            topic,
            bookmark,
            correlation_id: self.correlation_id,
            headers: self.headers,
            timestamp,
            now: timestamp,
        }
    }
}

/// Where a message comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// A client published it. While the journal has no room, the message is refused, and the client gets the refusal.
    Client,
    /// A service made it from records of the log. The journal keeps it until there is room.
    Service,
}

/// The result for a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ingested {
    /// It has this position in the log.
    Recorded(Position),
    /// Its topic is not recorded, or the recording rule leaves it out.
    Unrecorded,
    /// The log has this sequence of the publisher, and all up to `highest`.
    Duplicate { highest: u64 },
    /// The journal takes no writes.
    Refused,
}

impl Broker {
    /// Records a message and serves ordinary and `live` subscriptions with it.
    #[inline]
    pub(super) fn ingest(&mut self, submission: Submission<'_>) -> Ingested {
        // A part that changes the bytes of messages belongs here: everything below sees the bytes that are recorded.
        let Submission {
            origin, publisher, topic, correlation_id, headers, expiration_s, delay, data, ..
        } = submission;
        let timestamp = self.cx.log.stamp(self.cx.now.wall);
        let sequence = match submission.sequence {
            0 => self.cx.log.next_sequence(publisher),
            sequence => sequence,
        };
        let bookmark = Bookmark::new(publisher, sequence);
        let known = self.cx.topics.topic(topic);
        let message_type = known.recording.message_type;
        let context = || submission.context(message_type, &known.name, Some(bookmark), timestamp);
        let mut ingested = Ingested::Unrecorded;
        if known.recording.records(context) {
            if origin == Origin::Client && self.cx.log.failure.is_some() {
                return Ingested::Refused;
            }
            let attributes = match headers.is_empty() && delay.is_none() {
                true => Attributes::NONE,
                false => match encode(&mut self.attributes, headers, delay, self.cx.now.wall) {
                    Ok(attributes) => attributes,
                    Err(error) => {
                        self.cx.fail(&error);
                        return Ingested::Refused;
                    }
                },
            };
            let record = NewRecord {
                kind: RecordKind::Publish,
                message_type: message_type.code(),
                publisher,
                sequence: submission.sequence,
                timestamp,
                topic: &known.name,
                correlation_id,
                expiration_s,
                attributes,
                data,
            };
            match self.cx.log.append(&record) {
                Ok(Appended::Recorded(position)) => {
                    self.bookmarks.appended(position, bookmark);
                    ingested = Ingested::Recorded(position);
                }
                Ok(Appended::Duplicate { highest }) => return Ingested::Duplicate { highest },
                Err(error) => {
                    self.cx.fail(&error);
                    return Ingested::Refused;
                }
            }
        }
        if self.cx.topics.has_audience(topic, Stage::Published) {
            let is_recorded = ingested != Ingested::Unrecorded;
            let (name, is_queue) = (known.name.clone(), known.is_queue);
            let mark = is_recorded.then_some(bookmark);
            let context = submission.context(message_type, &name, mark, timestamp);
            let message = Message {
                subscription: 0,
                bookmark: is_recorded.then_some((publisher.get(), sequence)),
                timestamp_ns: timestamp.as_ns(),
                queued: None,
                topic: name.as_bytes(),
                correlation_id,
                headers,
                data,
            };
            self.ordinary.serve_published(&mut self.cx, topic, &context, &message, is_queue);
            while let Some((id, after)) = self.ordinary.next_behind() {
                self.bookmarks.fall_back(&mut self.cx, id, after);
            }
        }
        ingested
    }

    /// Publishes the dead letters that are ready.
    pub(super) fn publish_dead_letters(&mut self) {
        for _ in 0..DEAD_LETTERS_PER_TURN_MAX {
            let Some(letter) = self.queues.next_dead_letter(&mut self.cx) else { return };
            let DeadLetter { publisher, topic, correlation_id, headers, data } = letter;
            let submission = Submission {
                origin: Origin::Service,
                publisher,
                sequence: 0,
                topic: self.cx.topics.intern(&topic),
                correlation_id: &correlation_id,
                headers: headers.as_headers(),
                expiration_s: None,
                delay: Delay::None,
                data: &data,
            };
            // The configuration was checked: the log records every message on the topic.
            match self.ingest(submission) {
                Ingested::Recorded(_) => self.queues.dead_letter_recorded(),
                Ingested::Unrecorded | Ingested::Duplicate { .. } | Ingested::Refused => return,
            }
        }
        self.cx.wants_turn = true;
    }
}

/// The attributes of a message that has headers or a delay. Few messages have them, and [`Broker::ingest`] is shorter without this code.
#[cold]
#[inline(never)]
fn encode<'a>(
    buffer: &'a mut AttributesBuffer,
    headers: Headers<'_>,
    delay: Delay,
    now: Timestamp,
) -> Result<Attributes<'a>, JournalError> {
    // By the wall clock: the times in the log are ahead of it after it was put back.
    buffer.encode(&NewAttributes { headers, not_before: delay.end(now), ..NewAttributes::default() })
}
