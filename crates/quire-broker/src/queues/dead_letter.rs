//! Dead letters: messages that expire from a queue with a dead letter topic (docs/queues.md section
//! 9).
//!
//! The dead letter is itself the record of the expiry: a restart finds either both or neither.
//! Until it is in the log the message counts as one that the queue still needs.

use std::collections::VecDeque;
use std::sync::Arc;

use hashbrown::HashMap;
use quire_journal::{HeadersBuffer, Position, PublisherId, Record, RecordKind};
use rustc_hash::FxBuildHasher;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::QueueService;
use super::notices::Kind;
use crate::Event;
use crate::context::Context;
use crate::enclosed::{add, enclosed};
use crate::log::Log;
use quire_expression::message_type::MessageType;
use quire_queue::{Change, ChangeKind, QueueId, Reasons};

/// Messages that expired and are not published yet.
pub(super) struct DeadLetters {
    publisher: PublisherId,
    /// The publishers of the dead letters in the log: the one above, and those of earlier names of
    /// the instance.
    publishers: Vec<PublisherId>,
    waiting: VecDeque<Expired>,
    /// The reasons of consumers for messages that expired by their verdicts, until the changes are
    /// logged.
    reasons: HashMap<(QueueId, Position), Arc<str>, FxBuildHasher>,
    /// Bytes of the reasons in `waiting`. The reason of a command counts once for the letters that
    /// follow each other.
    reasons_size: usize,
    /// How many were published, by the numbers of the queues.
    counts: Vec<u64>,
}

/// Bytes of the reasons of letters that wait. Letters above it have no reason, because the message
/// must not be lost, and the reason may be.
const REASONS_SIZE_MAX: usize = 16 * 1024 * 1024;

/// The dead letter of a message that expired.
pub(crate) struct DeadLetter {
    pub publisher: PublisherId,
    pub topic: Arc<str>,
    pub correlation_id: Vec<u8>,
    pub headers: HeadersBuffer,
    /// JSON (docs/queues.md section 9).
    pub data: Vec<u8>,
}

#[derive(Clone)]
struct Expired {
    /// 1 for the first that expired since the start.
    number: u64,
    queue: QueueId,
    /// The topic that the queue had for dead letters. It may have another one when the letter is
    /// published.
    topic: Arc<str>,
    position: Position,
    reasons: Reasons,
    deliveries: u32,
    cancels: u32,
    /// The reason of the consumer whose verdict ended the message.
    consumer_reason: Option<Arc<str>>,
}

impl Expired {
    /// The bytes that the reason counts against [`REASONS_SIZE_MAX`] after this other letter.
    fn reason_size_after(&self, last: Option<&Expired>) -> usize {
        let of_last = last.and_then(|last| last.consumer_reason.as_ref());
        match &self.consumer_reason {
            Some(reason) if !of_last.is_some_and(|other| Arc::ptr_eq(reason, other)) => reason.len(),
            _ => 0,
        }
    }
}

impl DeadLetters {
    pub fn new(instance: &str, queues: usize) -> Self {
        let publisher = publisher_of(instance);
        DeadLetters {
            publisher,
            publishers: vec![publisher],
            waiting: VecDeque::new(),
            reasons: HashMap::default(),
            reasons_size: 0,
            counts: vec![0; queues],
        }
    }

    /// The instance published dead letters under these names.
    pub fn recognize(&mut self, names: &[String]) {
        self.publishers = names.iter().map(|name| publisher_of(name)).collect();
    }

    /// A message has expired whose dead letter goes to the topic. Gives the change back when it is
    /// not an expiry.
    pub fn push(&mut self, log: &mut Log, change: Change, topic: &Arc<str>) -> Option<Change> {
        let Change { queue, position, kind: ChangeKind::Expired { reasons, deliveries, cancels }, .. } =
            change
        else {
            return Some(change);
        };
        let (topic, consumer_reason) = (topic.clone(), self.reasons.remove(&(queue, position)));
        let number = log.announced.add();
        let mut expired =
            Expired { number, queue, topic, position, reasons, deliveries, cancels, consumer_reason };
        let reason_size = expired.reason_size_after(self.waiting.back());
        if self.reasons_size + reason_size <= REASONS_SIZE_MAX {
            self.reasons_size += reason_size;
        } else {
            expired.consumer_reason = None;
        }
        self.waiting.push_back(expired);
        None
    }

    /// A message has expired by a verdict that has this reason. Its change is not logged yet.
    pub fn explain(&mut self, queue: QueueId, position: Position, reason: Arc<str>) {
        self.reasons.insert((queue, position), reason);
    }

    /// All changes are logged.
    pub fn forget_reasons(&mut self) {
        self.reasons.clear();
    }

    /// The first letter waits no longer.
    fn pop(&mut self) -> Option<Expired> {
        let expired = self.waiting.pop_front()?;
        // Letters with the same reason, after this one, count it now.
        let left_size = self.waiting.front().map_or(0, |next| next.reason_size_after(None));
        let counted_size = self.waiting.front().map_or(0, |next| next.reason_size_after(Some(&expired)));
        self.reasons_size += left_size - counted_size;
        self.reasons_size -= expired.reason_size_after(None);
        Some(expired)
    }

    /// A queue has this number that is new, or the number of a removed queue.
    pub fn add(&mut self, queue: QueueId) {
        let index = queue.get() as usize;
        self.counts.resize(self.counts.len().max(index + 1), 0);
        self.counts[index] = 0;
    }

    /// Drops the letters of a queue that are not published yet; gives how many they are.
    pub fn forget(&mut self, log: &mut Log, queue: QueueId) -> u64 {
        let before = self.waiting.len();
        self.waiting.retain(|expired| expired.queue != queue);
        let lasts = std::iter::once(None).chain(self.waiting.iter().map(Some));
        self.reasons_size =
            self.waiting.iter().zip(lasts).map(|(expired, last)| expired.reason_size_after(last)).sum();
        self.count_appended(log);
        (before - self.waiting.len()) as u64
    }

    /// Some of the letters no longer wait. After a failure this includes letters that the log does
    /// not have, so the count is not changed.
    fn count_appended(&self, log: &mut Log) {
        if log.failure.as_ref().is_some_and(|failure| !failure.passes) {
            return;
        }
        log.announced.set_next(self.waiting.front().map(|first| first.number));
    }

    /// The first message of a queue whose dead letter is not published yet.
    pub fn first(&self, queue: QueueId) -> Option<Position> {
        self.waiting.iter().filter(|expired| expired.queue == queue).map(|expired| expired.position).min()
    }

    /// How many of a queue were published.
    pub fn count(&self, queue: QueueId) -> u64 {
        self.counts[queue.get() as usize]
    }

    /// The origin of a dead letter of this log: the name of the queue, and the position. A letter
    /// that another instance sent has a position of another log, also if it was published here
    /// before this instance lost its log.
    pub fn origin(&self, record: &Record<'_>) -> Option<(String, Position)> {
        #[derive(Deserialize)]
        struct Origin {
            queue: String,
            position: u64,
        }
        let is_letter = record.kind == RecordKind::Publish && self.publishers.contains(&record.publisher);
        if !is_letter || record.source().is_some() {
            return None;
        }
        let Origin { queue, position } = serde_json::from_slice(record.data).ok()?;
        Some((queue, Position::new(position)))
    }
}

impl QueueService {
    /// The next dead letter to be recorded, in the order in which messages expired; `None` while
    /// its message is being fetched, too. It is given again until
    /// [`dead_letter_recorded`](Self::dead_letter_recorded) is called for it.
    pub(crate) fn next_dead_letter(&mut self, cx: &mut Context) -> Option<DeadLetter> {
        if cx.has_failed() {
            self.dead_letters.waiting.clear();
            self.dead_letters.reasons_size = 0;
        }
        let expired = self.dead_letters.waiting.front()?.clone();
        let record = self.recent.get(expired.position);
        if record.is_none() && !self.unreadable.contains(&expired.position) {
            self.fetch(cx, expired.position, false);
            return None;
        }
        let definition = self.definition(expired.queue);
        let size_max = cx.config.message_size_max();
        Some(DeadLetter {
            publisher: self.dead_letters.publisher,
            data: envelope(&definition.name, &expired, record.as_ref(), size_max),
            topic: expired.topic,
            headers: record.map_or_else(HeadersBuffer::default, |record| record.headers().into()),
            correlation_id: record.map_or_else(Vec::new, |record| record.correlation_id.to_vec()),
        })
    }

    /// The dead letter that was given last is in the log. Its message is no longer needed.
    pub(crate) fn dead_letter_recorded(&mut self, cx: &mut Context) {
        let Some(expired) = self.dead_letters.pop() else { return };
        self.dead_letters.count_appended(&mut cx.log);
        self.dead_letters.counts[expired.queue.get() as usize] += 1;
        if !self.notices.admits(cx.clock.now.instant, expired.queue, Kind::DeadLetter) {
            return;
        }
        let event = Event::DeadLetter {
            queue: self.definition(expired.queue).name.to_string(),
            message: self.name_of(expired.position),
            reasons: expired.reasons,
            deliveries: expired.deliveries,
            topic: expired.topic.to_string(),
        };
        cx.note(event);
    }
}

/// The publisher of the dead letters of an instance with this name.
pub(super) fn publisher_of(instance: &str) -> PublisherId {
    PublisherId::of_instance(instance, "dead letters")
}

/// The data of the dead letter. The message itself is left out when it cannot be read, or there is
/// no room for it. The reason of the consumer is left out before that, because a letter without its
/// message cannot be put back.
fn envelope(queue: &str, expired: &Expired, record: Option<&Record<'_>>, size_max: usize) -> Vec<u8> {
    let mut members = Map::new();
    members.insert("queue".into(), queue.into());
    members.insert("position".into(), expired.position.get().into());
    members.insert("reason".into(), expired.reasons.names().map(Value::from).collect());
    members.insert("deliveries".into(), expired.deliveries.into());
    members.insert("cancels".into(), expired.cancels.into());
    let reason = expired.consumer_reason.as_deref();
    let reason = reason.map(|reason| format!(",\"consumer_reason\":{}", Value::from(reason)).into_bytes());
    let Some(record) = record else {
        let mut data = json!(members).to_string().into_bytes();
        add(&mut data, reason.as_deref(), size_max);
        return data;
    };
    members.insert("source_topic".into(), record.topic.into());
    members.insert("bookmark".into(), record.bookmark().to_string().into());
    members.insert("timestamp".into(), record.timestamp.as_ns().into());
    if let Some(key) = record.key().and_then(|key| std::str::from_utf8(key).ok()) {
        members.insert("sow_key".into(), key.into());
    }
    let mut data = json!(members).to_string().into_bytes();
    let message_type = MessageType::from_code(record.message_type).unwrap_or(MessageType::Binary);
    let message = enclosed(message_type, record.data);
    let head_size_max =
        if data.len() + message.len() <= size_max { size_max - message.len() } else { size_max };
    add(&mut data, reason.as_deref(), head_size_max);
    add(&mut data, Some(&message), size_max);
    data
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;
    use std::path::Path;

    use quire_journal::{Journal, MemoryDisk, Options};

    use super::*;
    use crate::failure::Failure;
    use quire_command::Code;

    #[test]
    fn letters_that_a_failed_journal_did_not_take_never_count_as_recorded() {
        let disk = Arc::new(MemoryDisk::new(1 << 30));
        let (journal, _) = Journal::driven_by_hand(disk, Path::new("journal"), &Options::default()).unwrap();
        let (mut log, mut letters) = (Log::new(journal), DeadLetters::new("one", 1));
        let (queue, kind) =
            (QueueId::new(0), ChangeKind::Expired { reasons: Reasons::default(), deliveries: 1, cancels: 0 });
        let change = Change { queue, position: Position::new(1), bookmark: None, kind };
        assert_eq!(letters.push(&mut log, change, &"dead".into()), None);
        log.failure = Some(Failure { code: Code::StorageFailed, reason: String::new(), passes: false });
        // As `next_dead_letter` does, and then the drop of a queue.
        letters.waiting.clear();
        letters.forget(&mut log, queue);
        assert_eq!(log.announced.last(), NonZeroU64::new(1));
    }
}
