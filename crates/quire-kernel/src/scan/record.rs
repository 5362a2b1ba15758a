//! A record of the log as a filter and as a client see it.

use quire_command::{Message, MessageKind};
use quire_expression::filter::MessageContext;
use quire_expression::message_type::MessageType;
use quire_journal::Record;
use quire_types::Timestamp;

/// The frame's view of a record.
#[inline]
pub fn message_of<'a>(record: &Record<'a>, subscription: u32) -> Message<'a> {
    Message {
        subscription,
        bookmark: Some((record.publisher.get(), record.sequence)),
        timestamp_ns: record.timestamp.as_ns(),
        queued: None,
        topic: record.topic.as_bytes(),
        correlation_id: record.correlation_id,
        headers: record.headers(),
        key: key_of(record),
        kind: MessageKind::Publish,
        data: record.data,
    }
}

/// The key of a record of a last-value topic; empty when it has none.
#[inline]
fn key_of<'a>(record: &Record<'a>) -> &'a [u8] {
    match record.attributes.as_bytes().is_empty() {
        true => &[],
        false => record.attributes.key().unwrap_or_default(),
    }
}

/// The input of a filter from a record; `None` for a type that this build does not know, which no
/// filter matches.
pub fn context_of<'a>(record: &Record<'a>, now: Timestamp) -> Option<MessageContext<'a>> {
    let message_type = MessageType::from_code(record.message_type)?;
    Some(MessageContext { message_type, ..facts_of(record, now) })
}

/// The input of a bound from a record. A bound does not read the data. So every record has this
/// input, also a delete, which has no message type.
pub fn facts_of<'a>(record: &Record<'a>, now: Timestamp) -> MessageContext<'a> {
    MessageContext {
        message_type: MessageType::Binary,
        data: record.data,
        topic: record.topic,
        key: record.key(),
        bookmark: Some(record.bookmark()),
        correlation_id: record.correlation_id,
        headers: record.headers(),
        timestamp: record.timestamp,
        now,
    }
}
