//! Dead letters: what expires from a queue that names a place for it (docs/queues.md section 9).
//!
//! The dead letter is itself the record of the expiry: a restart finds either both or neither. Until it is in the log the message counts
//! as one that the queue still needs.

use std::collections::VecDeque;

use quire_journal::{NewRecord, Position, PublisherId, Record, RecordKind};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Map, Value, json};

use crate::broker::Broker;
use crate::filter::MessageContext;
use crate::message_type::MessageType;
use crate::queue::{Change, ChangeKind, QueueId, Reasons};
use crate::subscription::bookmark;
use crate::wire::Message;

/// Dead letters published in one turn: more would keep the other connections waiting.
const PER_TURN_MAX: usize = 1024;

/// Publisher ids are derived from the name of the instance and this: no instance has such a name.
const PUBLISHER_SUFFIX: &str = "|dead letters";

/// What expired and is not published yet.
pub(super) struct DeadLetters {
    publisher: PublisherId,
    waiting: VecDeque<Expired>,
    /// How many were published, by the numbers of the queues.
    counts: Vec<u64>,
}

#[derive(Clone, Copy)]
struct Expired {
    queue: QueueId,
    position: Position,
    reasons: Reasons,
    deliveries: u32,
    cancels: u32,
}

impl DeadLetters {
    pub fn new(instance: &str, queues: usize) -> Self {
        let name = format!("{instance}{PUBLISHER_SUFFIX}");
        let publisher = PublisherId::derived(PublisherId::new(0), &name);
        DeadLetters { publisher, waiting: VecDeque::new(), counts: vec![0; queues] }
    }

    /// A message has expired. Gives the change back when it is not an expiry.
    pub fn push(&mut self, change: Change) -> Option<Change> {
        let Change { queue, position, kind: ChangeKind::Expired { reasons, deliveries, cancels } } = change
        else {
            return Some(change);
        };
        self.waiting.push_back(Expired { queue, position, reasons, deliveries, cancels });
        None
    }

    /// The first message of a queue whose dead letter is not published yet.
    pub fn first(&self, queue: QueueId) -> Option<Position> {
        self.waiting.iter().filter(|expired| expired.queue == queue).map(|expired| expired.position).min()
    }

    /// How many of a queue were published.
    pub fn count(&self, queue: QueueId) -> u64 {
        self.counts[queue.get() as usize]
    }

    /// Where a dead letter comes from: the name of the queue, and the position.
    pub fn origin(&self, record: &Record<'_>) -> Option<(String, Position)> {
        #[derive(Deserialize)]
        struct Origin {
            queue: String,
            position: u64,
        }
        if record.publisher != self.publisher || record.kind != RecordKind::Publish {
            return None;
        }
        let Origin { queue, position } = serde_json::from_slice(record.data).ok()?;
        Some((queue, Position::new(position)))
    }
}

impl Broker {
    /// Publishes the dead letters whose messages are at hand, in the order in which they expired.
    pub(super) fn publish_dead_letters(&mut self) {
        if self.has_failed() {
            self.queues.dead_letters.waiting.clear();
        }
        for _ in 0..PER_TURN_MAX {
            let Some(expired) = self.queues.dead_letters.waiting.front().copied() else { return };
            let is_unreadable = self.queues.unreadable.contains(&expired.position);
            if !self.queues.recent.has(expired.position) && !is_unreadable {
                return self.fetch(expired.position, false);
            }
            self.queues.dead_letters.waiting.pop_front();
            self.publish_dead_letter(expired);
        }
        self.wants_turn = true;
    }

    fn publish_dead_letter(&mut self, expired: Expired) {
        let definition = self.queues.definition(expired.queue).clone();
        let Some(topic) = &definition.dead_letter_topic else { return };
        let record = self.queues.recent.get(expired.position);
        let size_max = self.config.limits.max_message_size as usize;
        let data = envelope(&definition.name, &expired, record.as_ref(), size_max);
        let correlation_id = record.map_or_else(Vec::new, |record| record.correlation_id.to_vec());
        self.stamped = self.stamped.max(self.now.wall);
        let timestamp = self.stamped;
        let publisher = self.queues.dead_letters.publisher;
        let letter = NewRecord {
            kind: RecordKind::Publish,
            message_type: MessageType::Json.code(),
            publisher,
            sequence: 0,
            timestamp,
            topic,
            correlation_id: &correlation_id,
            expiration_s: None,
            data: &data,
        };
        if let Err(error) = self.journal.append(&letter) {
            return self.fail(&error);
        }
        self.queues.dead_letters.counts[expired.queue.get() as usize] += 1;
        let sequence = self.journal.appended().get();
        let id = self.topics.intern(topic);
        let is_queue = self.topics.topic(id).is_queue;
        let context = MessageContext {
            message_type: MessageType::Json,
            data: &data,
            topic,
            bookmark: Some(bookmark(publisher, sequence)),
            correlation_id: &correlation_id,
            timestamp,
            now: timestamp,
        };
        let message = Message {
            subscription: 0,
            bookmark: Some((publisher.get(), sequence)),
            timestamp_ns: timestamp.as_ns(),
            queued: None,
            topic: topic.as_bytes(),
            correlation_id: &correlation_id,
            data: &data,
        };
        self.serve_published(id, &context, &message, is_queue);
    }
}

/// What is published in place of the message. The message itself is left out when it cannot be read, or there is no room for it.
fn envelope(queue: &str, expired: &Expired, record: Option<&Record<'_>>, size_max: usize) -> Vec<u8> {
    let mut members = Map::new();
    members.insert("queue".into(), queue.into());
    members.insert("position".into(), expired.position.get().into());
    members.insert("reason".into(), expired.reasons.names().map(Value::from).collect());
    members.insert("deliveries".into(), expired.deliveries.into());
    members.insert("cancels".into(), expired.cancels.into());
    let Some(record) = record else { return json!(members).to_string().into_bytes() };
    members.insert("source_topic".into(), record.topic.into());
    members.insert("bookmark".into(), record.bookmark().to_string().into());
    members.insert("timestamp".into(), record.timestamp.as_ns().into());
    let mut data = json!(members).to_string().into_bytes();
    let is_json = record.message_type == MessageType::Json.code()
        && serde_json::from_slice::<IgnoredAny>(record.data).is_ok();
    let message = match (is_json, std::str::from_utf8(record.data)) {
        (true, _) => [b",\"message\":", record.data].concat(),
        (false, Ok(text)) => format!(",\"text\":{}", Value::from(text)).into_bytes(),
        (false, Err(_)) => format!(",\"base64\":\"{}\"", base64(record.data)).into_bytes(),
    };
    if data.len() + message.len() <= size_max {
        data.pop();
        data.extend_from_slice(&message);
        data.push(b'}');
    }
    data
}

/// Bytes as text (RFC 4648, section 4).
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let bits = chunk.iter().fold(0, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        for digit in 0..4 {
            let is_digit = digit <= chunk.len();
            let index = (bits >> (18 - 6 * digit)) as usize & 63;
            text.push(if is_digit { char::from(DIGITS[index]) } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_become_the_text_that_the_standard_shows() {
        let shown = ["", "Zg==", "Zm8=", "Zm9v", "Zm9vYg==", "Zm9vYmE=", "Zm9vYmFy"];
        for (size, text) in shown.into_iter().enumerate() {
            assert_eq!(base64(&b"foobar"[..size]), text);
        }
        assert_eq!(base64(&[0xff, 0xfe, 0xfd]), "//79");
    }
}
