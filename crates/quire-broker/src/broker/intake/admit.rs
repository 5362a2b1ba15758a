//! The first stage of the intake: it finds the topic of a message, and checks whether the topic
//! accepts the message.

use quire_command::{CORRELATION_SIZE_MAX, KEY_SIZE_MAX, KEYS_MAX, Publish};
use quire_expression::filter::Filter;
use quire_expression::message_type::MessageType;
use quire_expression::topic::{check_name, check_published};
use quire_journal::{Bookmark, DeletedKeys, Instance, PublisherId, RecordKind};
use quire_types::Delay;

use super::Intake;
use super::prepare::context_of;
use crate::context::Context;
use crate::entitlement::{Denied, Right};
use crate::links::{LinkRules, SentRecord};
use crate::log::Log;
use crate::queues::QUEUE_PUBLISHER;
use crate::reply::Refusal;
use crate::session::{KnownTopic, PublisherKey, SessionId};
use crate::topic::{TableId, TopicId, TopicKind};

impl Intake<'_> {
    /// The number of the topic of a message of a client.
    #[inline(always)]
    pub(super) fn topic_of(&mut self, id: SessionId, publish: &Publish<'_>) -> Result<TopicId, Refusal> {
        match known_topic(self.cx, id, publish.topic) {
            Some(topic) => Ok(topic),
            None => self.find_topic(id, publish),
        }
    }

    /// The number of a topic that the session has not stored. The topic gets a table when it is the
    /// first message of a topic that keeps last values by its pattern.
    ///
    /// The session does not store a topic of which its user may publish only some messages. So this
    /// function decides about each of them.
    #[inline(never)]
    fn find_topic(&mut self, id: SessionId, publish: &Publish<'_>) -> Result<TopicId, Refusal> {
        let writable = writable(self.cx, id, publish.topic)?;
        let known = find_topic(self.cx, publish.topic)?;
        let count_max = self.cx.config.limits.max_pattern_topics as usize;
        self.tables.admit_topic(self.cx, known.id, count_max).map_err(Refusal::NoTable)?;
        let topic = known.id;
        if let Some(filter) = writable {
            let message_type = self.cx.topics.topic(topic).recording.message_type;
            check_writable(self.cx, id, &filter, &known.name, message_type, publish)?;
            return Ok(topic);
        }
        self.cx.clients.sessions.all[id].topic =
            Some(KnownTopic { generation: self.cx.topics.generation(), ..known });
        Ok(topic)
    }

    /// Refuses a message for a last-value topic when the filter of the right to publish does not
    /// match the merged message of a delta, or the record that the message replaces.
    pub(super) fn check_record_writable(
        &mut self,
        id: SessionId,
        received: &Publish<'_>,
        ready: &Publish<'_>,
        (topic, table): (TopicId, TableId),
    ) -> Result<(), Refusal> {
        let Some(filter) = writable(self.cx, id, received.topic)? else { return Ok(()) };
        let topic = self.cx.topics.topic(topic);
        let (name, message_type) = (topic.name.clone(), topic.recording.message_type);
        check_writable(self.cx, id, &filter, &name, message_type, ready)?;
        if self.tables.replaces_other(self.cx, table, ready.key, &filter) {
            let denied = Denied { right: Right::Write, topic: name.as_ref().into() };
            self.cx.note_denied(id, &denied);
            return Err(Refusal::NotEntitled(denied));
        }
        Ok(())
    }

    /// The topic of a message from a service, and its table when it keeps last values. The limits
    /// of topics are for clients.
    pub(super) fn admit_made(&mut self, topic: &str) -> (TopicId, Option<TableId>) {
        let topic = self.cx.topics.intern(topic);
        // When the log does not record the topic as its pattern requires, the topic keeps no
        // values.
        let _ = self.tables.admit_topic(self.cx, topic, usize::MAX);
        (topic, self.cx.topics.topic(topic).table())
    }

    /// The topic of a record of another instance, and the last-value topic that it is a record of.
    /// The record is checked as a publish of a client is checked.
    ///
    /// # Errors
    /// The reason for the refusal.
    pub(super) fn admit_record(
        &mut self,
        record: &SentRecord<'_>,
        publish: &Publish<'_>,
        rules: LinkRules,
    ) -> Result<(TopicId, Option<TableId>), String> {
        let name = check_name(publish.topic).map_err(|error| format!("a topic: {error}"))?;
        let topic = admit_topic(self.cx, name).ok_or("the log has max_topics topics, and more came")?;
        self.tables
            .admit_topic(self.cx, topic, usize::MAX)
            .map_err(|refused| format!("the topic {name:?}: {}", refused.reason))?;
        let table = check_record(self.cx, topic, record, publish, rules);
        Ok((topic, table.map_err(|reason| refused(record, &reason))?))
    }

    /// Whether the message of a client was taken before. A merged range of sequences that the log
    /// may lack does not say this for the messages of the connection itself: they may not be on the
    /// disk yet.
    #[inline(always)]
    pub(super) fn is_duplicate(&mut self, key: PublisherKey, sequence: u64) -> bool {
        let Some(publisher) = self.publishers.get_mut(key) else { return true };
        publisher.is_duplicate(sequence)
            && (self.cx.log.failure.is_none() || sequence <= publisher.persisted())
            && !match publisher.has_sent(sequence) {
                true => self.cx.log.lacks(Bookmark::new(publisher.id, sequence)),
                false => self.cx.log.may_lack(Bookmark::new(publisher.id, sequence)),
            }
    }
}

/// The reason why a link ends: the record that is refused, and the reason for the refusal.
pub(super) fn refused(record: &SentRecord<'_>, reason: &str) -> String {
    format!("the message {} on the topic {:?}: {reason}", record.bookmark, record.topic)
}

/// The number of the topic, from the session's memory when it is the same as last time.
#[inline]
fn known_topic(cx: &Context, id: SessionId, topic: &[u8]) -> Option<TopicId> {
    let known = cx.clients.sessions.all[id].topic.as_ref()?;
    let is_same = known.name.as_bytes() == topic && known.generation == cx.topics.generation();
    is_same.then_some(known.id)
}

/// The filter of the messages that a user may publish to a topic; `None`: all messages.
///
/// # Errors
/// It may publish none.
fn writable(cx: &mut Context, id: SessionId, topic: &[u8]) -> Result<Option<Filter>, Refusal> {
    if cx.clients.sessions.all[id].rights.is_none() {
        return Ok(None);
    }
    cx.writable(id, &String::from_utf8_lossy(topic)).map_err(Refusal::NotEntitled)
}

/// Refuses a message that the filter of the right to publish does not match.
fn check_writable(
    cx: &mut Context,
    id: SessionId,
    filter: &Filter,
    topic: &str,
    message_type: MessageType,
    publish: &Publish<'_>,
) -> Result<(), Refusal> {
    let now = cx.clock.now.wall;
    let message = context_of(publish, message_type, topic, None, now);
    if filter.matches_with(&message, &mut cx.messages.arena) {
        return Ok(());
    }
    let denied = Denied { right: Right::Write, topic: topic.into() };
    cx.note_denied(id, &denied);
    Err(Refusal::NotEntitled(denied))
}

fn find_topic(cx: &mut Context, topic: &[u8]) -> Result<KnownTopic, Refusal> {
    let name = check_published(topic).map_err(Refusal::BadTopic)?;
    let target = cx.topics.publish_target(name);
    let target = target.as_deref().unwrap_or(name);
    let topic = admit_topic(cx, target).ok_or(Refusal::TooManyTopics)?;
    if let TopicKind::Computed(_) = cx.topics.topic(topic).kind() {
        return Err(Refusal::IsComputed(cx.topics.topic(topic).name.clone()));
    }
    Ok(KnownTopic { name: name.into(), id: topic, generation: cx.topics.generation() })
}

/// Checks a message that is not plain against its topic. Returns its last-value topic.
///
/// # Errors
/// The reason for the refusal.
pub(super) fn check_publish(
    cx: &Context,
    topic: TopicId,
    publish: &Publish<'_>,
) -> Result<Option<TableId>, Refusal> {
    let topic = cx.topics.topic(topic);
    // A sequence requests an acknowledgement of persistence. A topic that the configuration does
    // not name may be misspelt.
    if publish.sequence != 0 && !topic.recording.is_configured() {
        return Err(Refusal::NotRecorded(topic.name.clone()));
    }
    // Only a queue can delay a message.
    if !publish.delay.is_none() && topic.queues.is_empty() {
        return Err(Refusal::NoQueue(topic.name.clone()));
    }
    if publish.delay.is_too_long(cx.clock.now.wall) {
        return Err(Refusal::DelayTooLong);
    }
    if topic.table().is_none() && (!publish.key.is_empty() || publish.is_update) {
        return Err(Refusal::NotLastValue(topic.name.clone()));
    }
    Ok(topic.table())
}

/// Checks a record of another instance as a publish of a client is checked. Returns the last-value
/// topic of the record.
///
/// # Errors
/// The reason for the refusal.
fn check_record(
    cx: &Context,
    topic: TopicId,
    record: &SentRecord<'_>,
    publish: &Publish<'_>,
    rules: LinkRules,
) -> Result<Option<TableId>, String> {
    check_sizes(cx, record, publish)?;
    let known = cx.topics.topic(topic);
    let recording = &known.recording;
    if !recording.is_configured() || !recording.records_any() {
        return Err("txlog: the log here does not record the topic".to_owned());
    }
    if recording.message_type.code() != record.message_type {
        let here = recording.message_type.name();
        return Err(format!("message_type: the topic has the type {here:?} here"));
    }
    let keeps_values = known.table().is_some();
    let has_keys = !publish.key.is_empty() || record.kind == RecordKind::Delete;
    if has_keys && !keeps_values && !rules.any_sow {
        return Err("sow: it has a key, and the topic keeps no last values here; define the same [[sow_topic]] on both, or \
             add \"sow\" to exclude_validation at the source"
            .to_owned());
    }
    if record.kind == RecordKind::Delete {
        return Ok(None);
    }
    // The source does not know whether a queue of this instance takes the topic. The message may
    // also have a key that has no meaning here.
    let key = if keeps_values { publish.key } else { b"" };
    let own = Publish { delay: Delay::None, key, ..*publish };
    let table = check_publish(cx, topic, &own).map_err(|refusal| refusal.reason().into_owned())?;
    Ok(table.filter(|_| !publish.key.is_empty()))
}

/// Checks the parts of a record of another instance that the protocol of clients limits.
fn check_sizes(cx: &Context, record: &SentRecord<'_>, publish: &Publish<'_>) -> Result<(), String> {
    let is_delete = record.kind == RecordKind::Delete;
    if !is_delete && record.kind != RecordKind::Publish {
        return Err(format!("a record of the kind {:?}, which no instance sends", record.kind.name()));
    }
    if record.bookmark.publisher == PublisherId::of_instance(&cx.config.name, QUEUE_PUBLISHER) {
        return Err("its publisher is this instance itself".to_owned());
    }
    // The keys of a delete are not data. The records of a delete have a separate limit.
    let limit = cx.config.message_size_max();
    if !is_delete && publish.data.len() > limit {
        let size = publish.data.len();
        return Err(format!("{size} bytes, max_message_size is {limit} bytes here: raise it"));
    }
    if publish.correlation_id.len() > CORRELATION_SIZE_MAX {
        let size = publish.correlation_id.len();
        return Err(format!("a correlation id of {size} bytes, the limit is {CORRELATION_SIZE_MAX}"));
    }
    let keys = DeletedKeys::from_bytes(if is_delete { publish.data } else { b"" });
    let keys = keys.ok_or("the data of a delete is not a list of keys")?;
    let count = keys.clone().count();
    if count > KEYS_MAX {
        return Err(format!("a delete of {count} keys, the limit is {KEYS_MAX}"));
    }
    for key in keys.chain([publish.key]) {
        if key.len() > KEY_SIZE_MAX || std::str::from_utf8(key).is_err() {
            return Err(format!(
                "a key of {} bytes; a key is text of at most {KEY_SIZE_MAX} bytes",
                key.len()
            ));
        }
    }
    if publish.delay.is_too_long(cx.clock.now.wall) {
        return Err("its delay is longer than a delay may be".to_owned());
    }
    for Instance { name, group } in record.attributes.path().instances() {
        crate::config::links::check_name("an instance of its path", name)
            .map_err(|error| error.to_string())?;
        crate::config::links::check_name("a group of its path", group).map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// The number of a topic that is published to; `None` when the log has the most topics that it may
/// have, and not this one.
fn admit_topic(cx: &mut Context, name: &str) -> Option<TopicId> {
    let Context { topics, log: Log { journal, .. }, config, .. } = cx;
    let count_max = config.limits.max_topics as usize;
    let topic = topics.intern(name);
    if topics.admit(topic, |name| journal.admit_topic(name, count_max)) {
        return Some(topic);
    }
    // Topics of removed journal files no longer count. This search runs once for each such file,
    // not for each publish.
    if !journal.forget_unused_topics(|| topics.forget_unpinned()) {
        return None;
    }
    let topic = topics.intern(name);
    topics.admit(topic, |name| journal.admit_topic(name, count_max)).then_some(topic)
}
