//! Messages into the log: from a received publish, or a message that a service made, to its record and the subscriptions.
//!
//! [`Broker::publish`] takes the messages of clients, [`Broker::publish_dead_letters`] those of the queues, and
//! [`Broker::take_replicated`] those of other instances. All make a [`Submission`] and hand it to [`Broker::ingest`], the one way of messages into the log: stamped, recorded, served.
//!
//! A *plain* message goes straight there, after one look at its topic and one at the message. [`Broker::publish_checked`] takes the other
//! messages. They have a key, a delay or a part of a record. Or their topic keeps last values, validates its messages or is not configured.
//! Or the journal takes no writes.

use quire_command::{
    CORRELATION_SIZE_MAX, Code, KEY_SIZE_MAX, KEYS_MAX, Message, MessageKind, OofReason, Publish,
};
use quire_expression::filter::MessageContext;
use quire_expression::message_type::MessageType;
use quire_expression::topic::check_name;
use quire_journal::{
    Appended, Attributes, AttributesBuffer, Bookmark, DeletedKeys, Headers, Instance, InstancePath,
    InstancePathBuffer, JournalError, NewAttributes, NewRecord, Position, PublisherId, RecordKind, Timestamp,
};
use quire_types::Delay;

use super::Broker;
use super::large::{Done, Examined, Json};
use crate::context::{Context, Shutdown};
use crate::failure::code_of;
use crate::links::{Arrived, LinkRules, SentRecord, Taken};
use crate::log::Log;
use crate::ordinary::Replacement;
use crate::queues::DeadLetter;
use crate::queues::QUEUE_PUBLISHER;
use crate::replicated::Destinations;
use crate::reply::Refusal;
use crate::session::{KnownTopic, OwnedPublish, Phase, PublisherKey, SessionId, Stall};
use crate::slice::{PASS, WEIGHT_MAX};
use crate::subscription::Replaced;
use crate::tables::{Arriving, Keyed, NewRow, Outcome, Prepared};
use crate::topic::{Stage, TableId, TopicId};

/// Dead letters published in one turn: more would keep the other connections waiting.
const DEAD_LETTERS_PER_TURN_MAX: usize = 1024;

/// Memory for the attributes of a record of another instance, kept from record to record.
#[derive(Default)]
struct Scratch {
    path: InstancePathBuffer,
    attributes: AttributesBuffer,
}

/// A message on its way into the log.
struct Submission<'a> {
    origin: Origin,
    publisher: PublisherId,
    topic: TopicId,
    /// `sequence` is among those of the publisher, and 0 lets the log give it one. `key` is that of the last-value topic, if any.
    publish: &'a Publish<'a>,
    /// For a message that comes from another instance: all its attributes, with where it came from.
    attributes: Option<Attributes<'a>>,
}

/// Where a message comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    /// A client published it. While the journal has no room, the message is refused, and the client gets the refusal.
    Client,
    /// A service made it from records of the log, or it comes from another instance. The journal keeps it until there is room.
    Service,
}

/// The result for a message.
#[derive(Debug)]
pub(super) enum Ingested {
    /// It has this position in the log.
    Recorded(Position),
    /// Its topic is not recorded, or the recording rule leaves it out.
    Unrecorded,
    /// The log has this sequence of the publisher, and all up to `highest`.
    Duplicate { highest: u64 },
    /// The journal takes no writes.
    Refused,
    /// The journal does not take this message, and takes others.
    Unacceptable(Box<JournalError>),
}

impl Broker {
    /// One message of a publish frame. Nothing here allocates, unless it is the first on its topic.
    pub(super) fn publish(&mut self, id: SessionId, key: PublisherKey, publish: &Publish<'_>) {
        let session = &self.cx.clients.sessions.all[id];
        if session.phase != Phase::Open {
            return;
        }
        let size_max = self.cx.config.transports[session.transport.0 as usize].max_message_size;
        self.cx.clients.counters.published += 1;
        if publish.data.len() > size_max as usize {
            return end_too_large(&mut self.cx, id, publish.data.len());
        }
        // The topic is checked before duplicates, so that a refused message is refused again when it is repeated.
        let topic = match self.topic_of(id, publish.topic) {
            Ok(topic) => topic,
            Err(refusal) => {
                return self.publishers.refuse(&mut self.cx, id, key, publish.sequence, refusal);
            }
        };
        let is_plain = self.cx.topics.topic(topic).takes_plain && publish.is_plain();
        if !is_plain || self.cx.log.failure.is_some() {
            return self.publish_checked(id, key, publish, topic);
        }
        self.take_in_new(id, key, publish, topic);
    }

    /// The number of the topic of a message.
    #[inline(always)]
    pub(super) fn topic_of(&mut self, id: SessionId, topic: &[u8]) -> Result<TopicId, Refusal> {
        match known_topic(&self.cx, id, topic) {
            Some(topic) => Ok(topic),
            None => self.find_topic(id, topic),
        }
    }

    /// The number of a topic that the session does not remember. The topic gets a table when it is the first message of a topic that
    /// keeps last values by its pattern.
    #[inline(never)]
    fn find_topic(&mut self, id: SessionId, topic: &[u8]) -> Result<TopicId, Refusal> {
        let known = find_topic(&mut self.cx, topic)?;
        let count_max = self.cx.config.limits.max_pattern_topics as usize;
        self.tables.admit_topic(&mut self.cx, known.id, count_max).map_err(Refusal::NoTable)?;
        let topic = known.id;
        self.cx.clients.sessions.all[id].topic =
            Some(KnownTopic { generation: self.cx.topics.generation(), ..known });
        Ok(topic)
    }

    /// A message that is not plain, or that comes while the journal takes no writes.
    #[inline(never)]
    fn publish_checked(&mut self, id: SessionId, key: PublisherKey, publish: &Publish<'_>, topic: TopicId) {
        match self.check_and_publish(id, key, publish, topic, Examined::default()) {
            Ok(None) => {}
            Ok(Some(examined)) => {
                self.large.examine(&mut self.cx, id, OwnedPublish::new(publish), examined);
            }
            Err(refusal) => self.publishers.refuse(&mut self.cx, id, key, publish.sequence, refusal),
        }
    }

    /// Checks a message and hands it on. `Some`: it is large, and another thread has to examine it first.
    ///
    /// # Errors
    /// Why it is refused.
    pub(super) fn check_and_publish(
        &mut self,
        id: SessionId,
        key: PublisherKey,
        publish: &Publish<'_>,
        topic: TopicId,
        mut examined: Examined,
    ) -> Result<Option<Examined>, Refusal> {
        let table = check_publish(&self.cx, topic, publish)?;
        if !validate(&self.cx, topic, publish.data, &mut examined.json)? {
            return Ok(Some(examined));
        }
        let Some(table) = table else {
            self.take_in_new(id, key, publish, topic);
            return Ok(None);
        };
        let arriving = Arriving::of_publish(publish, self.cx.transport_of(id).max_message_size as usize);
        let Examined { json, preparation } = examined;
        // A delta that is sent again is not merged a second time. A message that was refused is refused again.
        if self.is_duplicate(key, publish.sequence) {
            let checked = self.tables.check_again(&mut self.cx, table, &arriving, preparation);
            return Ok(match checked.map_err(Refusal::BadMessage)? {
                Outcome::Later(preparation) => Some(Examined { json, preparation: Some(preparation) }),
                Outcome::Ready(()) => {
                    self.cx.clients.counters.duplicates += 1;
                    None
                }
            });
        }
        let outcome = self.tables.prepare(&mut self.cx, table, &arriving, preparation);
        let prepared = match outcome.map_err(Refusal::BadMessage)? {
            Outcome::Later(preparation) => {
                return Ok(Some(Examined { json, preparation: Some(preparation) }));
            }
            Outcome::Ready(prepared) => prepared,
        };
        let Prepared { key: row_key, spelling, place, entries, data } = prepared;
        let data = data.as_deref().unwrap_or(publish.data);
        let keyed = Keyed { table, spelling, place: Some(place), entries: entries.as_deref() };
        self.take_in(id, key, &Publish { key: &row_key, data, ..*publish }, topic, Some(keyed));
        Ok(None)
    }

    /// Takes the messages that were examined. The connections of those that are done continue.
    pub(super) fn take_examined(&mut self) {
        while let Some(Done { session: id, sequence, found }) = self.large.next_done() {
            let is_open =
                self.cx.clients.sessions.all.get(id).is_some_and(|session| session.phase == Phase::Open);
            // The client was not acknowledged, and sends the message again.
            if !is_open || self.cx.shutdown != Shutdown::No {
                continue;
            }
            let Some(publisher) = self.publishers.begin_publish(&mut self.cx, id) else { continue };
            self.cx.session(id).preparing_size = 0;
            let is_done = match found {
                Some((message, examined)) => self.take_again(id, publisher, message, examined),
                None => {
                    let reason = "the server cannot examine the message, by a fault of its own".to_owned();
                    let refusal = Refusal::BadMessage(reason);
                    self.publishers.refuse(&mut self.cx, id, publisher, sequence, refusal);
                    true
                }
            };
            if is_done {
                self.cx.resume_commands(id, Stall::Preparing);
            }
            self.cx.count_unfinished(id);
        }
    }

    /// Takes a message that was examined. `false`: another job begins for it.
    fn take_again(
        &mut self,
        id: SessionId,
        publisher: PublisherKey,
        message: OwnedPublish,
        examined: Examined,
    ) -> bool {
        let publish = message.as_publish();
        let result = match self.topic_of(id, publish.topic) {
            Ok(topic) => self.check_and_publish(id, publisher, &publish, topic, examined),
            Err(refusal) => Err(refusal),
        };
        match result {
            Ok(None) => true,
            Ok(Some(examined)) => {
                self.large.examine(&mut self.cx, id, message, examined);
                false
            }
            Err(refusal) => {
                let sequence = publish.sequence;
                self.publishers.refuse(&mut self.cx, id, publisher, sequence, refusal);
                true
            }
        }
    }

    /// A message of a topic that keeps no last values.
    #[inline(always)]
    fn take_in_new(&mut self, id: SessionId, key: PublisherKey, publish: &Publish<'_>, topic: TopicId) {
        match self.is_duplicate(key, publish.sequence) {
            true => self.cx.clients.counters.duplicates += 1,
            false => self.take_in(id, key, publish, topic, None),
        }
    }

    /// Whether the message was taken before.
    #[inline(always)]
    fn is_duplicate(&mut self, key: PublisherKey, sequence: u64) -> bool {
        let Some(publisher) = self.publishers.get_mut(key) else { return true };
        publisher.is_duplicate(sequence)
            && (self.cx.log.failure.is_none() || sequence <= publisher.persisted())
    }

    /// Hands a checked message on, and notes the result for its publisher. Inlined, so that a plain message is not copied and has no key.
    #[inline(always)]
    fn take_in(
        &mut self,
        id: SessionId,
        key: PublisherKey,
        publish: &Publish<'_>,
        topic: TopicId,
        keyed: Option<Keyed<'_>>,
    ) {
        let sequence = publish.sequence;
        let Some(publisher) = self.publishers.get_mut(key) else { return };
        let source = if sequence == 0 { publisher.derived } else { publisher.id };
        if publisher.jumps_to(sequence, self.cx.config.limits.sequence_jump_logged) {
            self.publishers.note_jump(&mut self.cx, id, key, sequence);
        }
        // The client has the reason already, and sends the message again.
        if self.cx.log.failure.is_some() && self.cx.session(id).knows_of_failure {
            self.cx.clients.counters.refused += 1;
            return;
        }
        let submission =
            Submission { origin: Origin::Client, publisher: source, topic, publish, attributes: None };
        let ingested = self.ingest(submission, keyed);
        if self.cx.log.has_links {
            return self.note_linked(id, key, source, topic, publish, ingested);
        }
        self.note_ingested(id, key, sequence, ingested);
    }

    /// Notes the result for a message of a client, with the destinations that its acknowledgement waits for.
    #[cold]
    #[inline(never)]
    fn note_linked(
        &mut self,
        id: SessionId,
        key: PublisherKey,
        source: PublisherId,
        topic: TopicId,
        publish: &Publish<'_>,
        ingested: Ingested,
    ) {
        let appended = self.cx.log.appended();
        match ingested {
            Ingested::Recorded(position) => {
                let sequence = self.cx.log.highest_sequence(source).unwrap_or(publish.sequence);
                let bookmark = Bookmark::new(source, sequence);
                let destinations =
                    self.destinations_of(topic, publish, position, bookmark, InstancePath::EMPTY);
                if let Some(publisher) = self.publishers.get_mut(key).filter(|_| publish.sequence != 0) {
                    publisher.wait_for(destinations);
                }
                self.note_ingested(id, key, publish.sequence, ingested);
            }
            // It may have come from another instance just now, or be in the log since before the disk had no room. The destinations have
            // it when they have everything up to now.
            Ingested::Duplicate { highest } => {
                self.cx.clients.counters.duplicates += 1;
                let all = self.cx.log.replicated.all();
                if let Some(publisher) = self.publishers.get_mut(key) {
                    publisher.record(highest, appended);
                    publisher.wait_for(all);
                }
            }
            Ingested::Unrecorded | Ingested::Refused | Ingested::Unacceptable(_) => {
                self.note_ingested(id, key, publish.sequence, ingested);
            }
        }
    }

    /// The destinations of a message that was recorded.
    fn destinations_of(
        &mut self,
        topic: TopicId,
        publish: &Publish<'_>,
        position: Position,
        bookmark: Bookmark,
        path: InstancePath<'_>,
    ) -> Destinations {
        let known = self.cx.topics.topic(topic);
        let (name, message_type) = (&known.name, known.recording.message_type);
        let stamped = self.cx.log.stamped;
        let context = || Some(context_of(publish, message_type, name, Some(bookmark), stamped));
        self.links.route(&self.cx, topic, (position, bookmark), path, context)
    }

    /// Notes the result for a message of a client.
    #[inline(always)]
    fn note_ingested(&mut self, id: SessionId, key: PublisherKey, sequence: u64, ingested: Ingested) {
        let Some(publisher) = self.publishers.get_mut(key) else { return };
        match ingested {
            Ingested::Recorded(position) if sequence != 0 => publisher.record(sequence, position),
            Ingested::Recorded(_) => (),
            Ingested::Unrecorded => publisher.pass(sequence),
            Ingested::Duplicate { highest } => {
                self.cx.clients.counters.duplicates += 1;
                publisher.pass(highest);
            }
            Ingested::Refused => {
                self.cx.clients.counters.refused += 1;
                self.publishers.send_failure(&mut self.cx, id);
            }
            Ingested::Unacceptable(error) => {
                let refusal = Refusal::NotAppended(code_of(&error), error.to_string());
                self.publishers.refuse(&mut self.cx, id, key, sequence, refusal);
            }
        }
    }

    /// Publishes the dead letters that are ready.
    pub(super) fn publish_dead_letters(&mut self) {
        for _ in 0..DEAD_LETTERS_PER_TURN_MAX {
            let Some(letter) = self.queues.next_dead_letter(&mut self.cx) else { return };
            let DeadLetter { publisher, topic, correlation_id, headers, data } = letter;
            let id = self.cx.topics.intern(&topic);
            // The limit is for clients. When the log does not record the topic as its pattern requires, the topic keeps no values.
            let _ = self.tables.admit_topic(&mut self.cx, id, usize::MAX);
            // No client is there to get a refusal. Without its fields the letter is recorded as it is. Without a key it is a message of the
            // topic, and not a record. A start decides in the same way.
            let row = self.cx.topics.topic(id).table.and_then(|table| {
                let arriving = Arriving {
                    correlation_id: &correlation_id,
                    headers: headers.as_headers(),
                    size_max: self.cx.config.message_size_max(),
                    ..Arriving::of_data(&data)
                };
                if let Ok(Prepared { key, data, .. }) =
                    self.tables.prepare_now(&mut self.cx, table, &arriving)
                {
                    return Some((Keyed::of(table), key, data));
                }
                let (arriving, now) = (Arriving { size_max: usize::MAX, ..arriving }, self.cx.clock.now.wall);
                let key = self.tables.key_of(&mut self.cx, table, &arriving, now).ok()?;
                Some((Keyed::of(table), key, None))
            });
            let (keyed, key, data) = match &row {
                None => (None, &[][..], &data[..]),
                Some((keyed, key, own)) => (Some(*keyed), &key[..], own.as_deref().unwrap_or(&data)),
            };
            let publish = Publish {
                topic: topic.as_bytes(),
                correlation_id: &correlation_id,
                headers: headers.as_headers(),
                key,
                data,
                ..Publish::default()
            };
            let submission = Submission {
                origin: Origin::Service,
                publisher,
                topic: id,
                publish: &publish,
                attributes: None,
            };
            // The configuration was checked: the log records every message on the topic.
            match self.ingest(submission, keyed) {
                Ingested::Recorded(_) => self.queues.dead_letter_recorded(&mut self.cx),
                // The service makes letters that the journal takes.
                Ingested::Unacceptable(error) => return self.cx.fail(&error),
                Ingested::Unrecorded | Ingested::Duplicate { .. } | Ingested::Refused => return,
            }
        }
        self.cx.clock.wants_turn = true;
    }

    /// Records the messages of other instances, within the time of a turn.
    pub(super) fn take_replicated(&mut self) {
        if !self.links.any() {
            return;
        }
        let deadline = self.cx.clock.slices.deadline(PASS);
        let mut scratch = Scratch::default();
        while let Some(mut arrived) = self.links.next_arrived(&mut self.cx) {
            let mut taken = arrived.take_result();
            let mut result = Ok(());
            let mut is_over = false;
            let mut done = None;
            for (record, weight) in arrived.records().zip(1_usize..) {
                result = record.and_then(|(record, end)| {
                    done = Some(end);
                    self.take_record(&arrived, &record, &mut scratch, &mut taken)
                });
                is_over = weight.is_multiple_of(WEIGHT_MAX) && self.cx.clock.slices.is_past(deadline);
                if result.is_err() || is_over {
                    break;
                }
            }
            match done.filter(|_| is_over && result.is_ok()) {
                Some(done) => self.links.suspend(arrived, done, taken),
                None => self.links.taken(&mut self.cx, arrived, taken, result),
            }
            if is_over || self.cx.clock.slices.is_past(deadline) {
                self.cx.clock.wants_turn = true;
                return;
            }
        }
    }

    /// Records one record of another instance.
    ///
    /// # Errors
    /// The reason why the link ends.
    fn take_record(
        &mut self,
        arrived: &Arrived,
        record: &SentRecord<'_>,
        scratch: &mut Scratch,
        taken: &mut Taken,
    ) -> Result<(), String> {
        let publish = publish_of(record);
        let name = check_name(record.topic.as_bytes()).map_err(|error| format!("a topic: {error}"))?;
        let topic = admit_topic(&mut self.cx, name).ok_or("the log has max_topics topics, and more came")?;
        self.tables
            .admit_topic(&mut self.cx, topic, usize::MAX)
            .map_err(|refused| format!("the topic {name:?}: {}", refused.reason))?;
        let table = self
            .check_record(topic, record, &publish, arrived.rules())
            .map_err(|reason| format!("the message {} on the topic {name:?}: {reason}", record.bookmark))?;
        self.cx.topics.note_incoming(topic);
        let key = publish.key;
        scratch.path.copy_from(record.attributes.path());
        scratch.path.push(arrived.source()).map_err(|error| error.to_string())?;
        let path = scratch.path.as_path();
        let new = NewAttributes {
            key,
            position: Some(record.position),
            path,
            headers: publish.headers,
            not_before: record.attributes.not_before(),
            received: self.cx.log.is_ahead_of(self.cx.clock.now.wall).then_some(self.cx.clock.now.wall),
        };
        let attributes = scratch.attributes.encode(&new).map_err(|error| error.to_string())?;
        taken.record_count += 1;
        let publisher = record.bookmark.publisher;
        let ingested = match record.kind {
            RecordKind::Delete => self.removals().replicate(record, attributes, topic)?,
            _ => {
                let submission = Submission {
                    origin: Origin::Service,
                    publisher,
                    topic,
                    publish: &publish,
                    attributes: Some(attributes),
                };
                self.ingest(submission, table.map(Keyed::of))
            }
        };
        let hops = u8::try_from(record.attributes.path().instances().count()).unwrap_or(u8::MAX);
        let (position, destinations) = match ingested {
            Ingested::Recorded(position) => {
                taken.note_recorded(record);
                (position, self.destinations_of(topic, &publish, position, record.bookmark, path))
            }
            Ingested::Unrecorded => (Position::ZERO, Destinations::NONE),
            // When it came from the same instance before, its acknowledgement got lost, and waits for the same destinations. Otherwise
            // the instance from which it came first waits for them, and this wait does no harm.
            Ingested::Duplicate { .. } => {
                taken.note_duplicate(record);
                let position = self.cx.log.appended();
                (position, self.links.route_again(&self.cx, topic, position, path, || None))
            }
            Ingested::Refused => return Err("the journal takes no writes".to_owned()),
            Ingested::Unacceptable(error) => return Err(error.to_string()),
        };
        taken.note(hops, record.position, position, destinations);
        Ok(())
    }

    /// Checks a record of another instance as a publish of a client is checked. Returns the last-value topic that it belongs to.
    ///
    /// # Errors
    /// Why it is refused.
    fn check_record(
        &mut self,
        topic: TopicId,
        record: &SentRecord<'_>,
        publish: &Publish<'_>,
        rules: LinkRules,
    ) -> Result<Option<TableId>, String> {
        check_sizes(&self.cx, record, publish)?;
        let known = self.cx.topics.topic(topic);
        let recording = &known.recording;
        if !recording.is_configured() || !recording.records_any() {
            return Err("txlog: the log here does not record the topic".to_owned());
        }
        if recording.message_type.code() != record.message_type {
            let here = recording.message_type.name();
            return Err(format!("message_type: the topic has the type {here:?} here"));
        }
        let keeps_values = known.table.is_some();
        let has_keys = !publish.key.is_empty() || record.kind == RecordKind::Delete;
        if has_keys && !keeps_values && !rules.any_sow {
            return Err("sow: it has a key, and the topic keeps no last values here; define the same [[sow_topic]] on both, or \
                 add \"sow\" to exclude_validation at the source"
                .to_owned());
        }
        if record.kind == RecordKind::Delete {
            return Ok(None);
        }
        // Whether a queue here takes the topic is not for the source to know. It may also have a key that means nothing here.
        let own =
            Publish { delay: Delay::None, key: if keeps_values { publish.key } else { b"" }, ..*publish };
        let checked = check_publish(&self.cx, topic, &own).and_then(|table| {
            if self.cx.topics.topic(topic).recording.validates() {
                check_json(own.data).map_err(|error| not_json(&self.cx, topic, &error.to_string()))?;
            }
            Ok(table)
        });
        let table = checked.map_err(|refusal| refusal.reason().into_owned())?;
        let table = table.filter(|_| !publish.key.is_empty());
        if let Some(table) = table.filter(|_| !rules.any_key) {
            self.tables.check_data(table, publish.data)?;
        }
        Ok(table)
    }

    /// The one way of messages into the log. Records a message and serves ordinary and `live` subscriptions with it. `keyed` is the
    /// last-value topic that the message has a key of.
    #[inline(always)]
    fn ingest(&mut self, submission: Submission<'_>, keyed: Option<Keyed<'_>>) -> Ingested {
        let Submission { origin, publisher, topic, publish, attributes } = submission;
        let Publish { correlation_id, headers, expiration_s, delay, data, .. } = *publish;
        let key = if keyed.is_some() { publish.key } else { &[] };
        let timestamp = self.cx.log.stamp(self.cx.clock.now.wall);
        let sequence = match publish.sequence {
            0 => self.cx.log.next_sequence(publisher),
            sequence => sequence,
        };
        let bookmark = Bookmark::new(publisher, sequence);
        let known = self.cx.topics.topic(topic);
        let message_type = known.recording.message_type;
        let is_heard = self.cx.topics.has_audience(topic, Stage::Published);
        let context = || context_of(publish, message_type, &known.name, Some(bookmark), timestamp);
        let mut ingested = Ingested::Unrecorded;
        if known.recording.records(&mut self.cx.messages.arena, context) {
            if origin == Origin::Client && self.cx.log.failure.is_some() {
                return Ingested::Refused;
            }
            let now = self.cx.clock.now.wall;
            let is_plain = headers.is_empty() && delay.is_none() && key.is_empty() && timestamp == now;
            let attributes = match (attributes, is_plain) {
                (Some(attributes), _) => attributes,
                (None, true) => Attributes::NONE,
                (None, false) => match encode(&mut self.attributes, headers, delay, key, (timestamp, now)) {
                    Ok(attributes) => attributes,
                    Err(error) => return Ingested::Unacceptable(Box::new(error)),
                },
            };
            let record = NewRecord {
                kind: RecordKind::Publish,
                message_type: message_type.code(),
                publisher,
                sequence: publish.sequence,
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
                Err(error) if error.is_about_record() => return Ingested::Unacceptable(Box::new(error)),
                Err(error) => {
                    self.cx.fail(&error);
                    return Ingested::Refused;
                }
            }
        }
        let mut replaced = None;
        if let Some(keyed) = keyed {
            let position = match ingested {
                Ingested::Recorded(position) => Some(position),
                _ => None,
            };
            let mark = position.map(|_| (publisher.get(), sequence));
            let new = NewRow {
                key,
                position,
                bookmark: mark,
                timestamp,
                received: self.cx.clock.now.wall,
                expiration_s,
                correlation_id,
                headers,
                data,
            };
            replaced = self.tables.put(&mut self.cx, keyed, &new);
        }
        if is_heard {
            let mark = matches!(ingested, Ingested::Recorded(_)).then_some(bookmark);
            self.serve(topic, publish, key, (mark, timestamp), replaced);
        }
        ingested
    }

    /// Serves ordinary and `live` subscriptions, and those whose view the previous record of the key left. Most topics have none of them.
    #[inline(never)]
    fn serve(
        &mut self,
        topic: TopicId,
        publish: &Publish<'_>,
        key: &[u8],
        (bookmark, timestamp): (Option<Bookmark>, Timestamp),
        replaced: Option<Replaced>,
    ) {
        let known = self.cx.topics.topic(topic);
        let (name, message_type, is_queue) =
            (known.name.clone(), known.recording.message_type, known.is_queue);
        let context = context_of(publish, message_type, &name, bookmark, timestamp);
        let message = Message {
            subscription: 0,
            bookmark: bookmark.map(|bookmark| (bookmark.publisher.get(), bookmark.sequence)),
            timestamp_ns: timestamp.as_ns(),
            queued: None,
            topic: name.as_bytes(),
            correlation_id: publish.correlation_id,
            headers: publish.headers,
            key,
            kind: MessageKind::Publish,
            data: publish.data,
        };
        let replacement = Replacement { views: self.tables.views(), replaced };
        self.ordinary.serve_published(&mut self.cx, topic, &context, &message, is_queue, replacement);
        while let Some(id) = self.ordinary.next_behind() {
            self.bookmarks.fall_back_from_publish(&mut self.cx, id);
        }
        if !key.is_empty() && !self.tables.leaving().is_empty() {
            let message = Message { bookmark: None, kind: MessageKind::Oof(OofReason::Match), ..message };
            self.ordinary.serve_left(&mut self.cx, self.tables.leaving(), &context, &message);
        }
    }
}

/// A record of another instance as the message that it was.
fn publish_of<'a>(record: &SentRecord<'a>) -> Publish<'a> {
    Publish {
        sequence: record.bookmark.sequence,
        expiration_s: record.expiration_s,
        delay: record.attributes.not_before().map_or(Delay::None, Delay::Until),
        topic: record.topic.as_bytes(),
        correlation_id: record.correlation_id,
        headers: record.attributes.headers(),
        key: record.attributes.key().unwrap_or_default(),
        data: record.data,
        ..Publish::default()
    }
}

/// The input of filters from a message.
#[inline]
fn context_of<'a>(
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

/// The attributes of a message that has headers, a delay or a key, or whose timestamp is ahead of the clock. Few messages have them, and
/// [`Broker::ingest`] is shorter without this code.
#[cold]
#[inline(never)]
fn encode<'a>(
    buffer: &'a mut AttributesBuffer,
    headers: Headers<'_>,
    delay: Delay,
    key: &[u8],
    (timestamp, now): (Timestamp, Timestamp),
) -> Result<Attributes<'a>, JournalError> {
    // By the wall clock: the times in the log are ahead of it after it was put back.
    let (not_before, received) = (delay.end(now), (now < timestamp).then_some(now));
    buffer.encode(&NewAttributes { key, headers, not_before, received, ..NewAttributes::default() })
}

/// Whether all of the bytes are one JSON value in UTF-8.
pub(super) fn check_json(data: &[u8]) -> Result<(), serde_json::Error> {
    let text = std::str::from_utf8(data).map_err(serde::de::Error::custom)?;
    serde_json::from_str::<serde::de::IgnoredAny>(text).map(drop)
}

/// The number of the topic, from the session's memory when it is the same as last time.
#[inline]
fn known_topic(cx: &Context, id: SessionId, topic: &[u8]) -> Option<TopicId> {
    let known = cx.clients.sessions.all[id].topic.as_ref()?;
    let is_same = known.name.as_bytes() == topic && known.generation == cx.topics.generation();
    is_same.then_some(known.id)
}

fn find_topic(cx: &mut Context, topic: &[u8]) -> Result<KnownTopic, Refusal> {
    let name = check_name(topic).map_err(Refusal::BadTopic)?;
    let target = cx.topics.publish_target(name);
    let target = target.as_deref().unwrap_or(name);
    let topic = admit_topic(cx, target).ok_or(Refusal::TooManyTopics)?;
    Ok(KnownTopic { name: name.into(), id: topic, generation: cx.topics.generation() })
}

/// Checks a message that is not plain against its topic. Returns the last-value topic that it belongs to.
///
/// # Errors
/// Why it is refused.
fn check_publish(cx: &Context, topic: TopicId, publish: &Publish<'_>) -> Result<Option<TableId>, Refusal> {
    let topic = cx.topics.topic(topic);
    // A sequence asks for an acknowledgement of persistence. A topic that the configuration does not name may be misspelt.
    if publish.sequence != 0 && !topic.recording.is_configured() {
        return Err(Refusal::NotRecorded(topic.name.clone()));
    }
    // Only a queue can hold a message back.
    if !publish.delay.is_none() && topic.queues.is_empty() {
        return Err(Refusal::NoQueue(topic.name.clone()));
    }
    if publish.delay.is_too_long(cx.clock.now.wall) {
        return Err(Refusal::DelayTooLong);
    }
    if topic.table.is_none() && !publish.key.is_empty() {
        return Err(Refusal::NotLastValue(topic.name.clone()));
    }
    Ok(topic.table)
}

/// Checks that a message is JSON, if its topic wants that. `false`: it is large, and another thread is asked.
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

/// Checks the parts of a record of another instance that the protocol of clients limits.
fn check_sizes(cx: &Context, record: &SentRecord<'_>, publish: &Publish<'_>) -> Result<(), String> {
    let is_delete = record.kind == RecordKind::Delete;
    if !is_delete && record.kind != RecordKind::Publish {
        return Err(format!("a record of the kind {:?}, which no instance sends", record.kind.name()));
    }
    if record.bookmark.publisher == PublisherId::of_instance(&cx.config.name, QUEUE_PUBLISHER) {
        return Err("its publisher is this instance itself".to_owned());
    }
    // The keys of a delete are not data. The records of a delete have a limit, and this is above it.
    let limit = cx.config.message_size_max();
    if !is_delete && publish.data.len() > limit {
        let size = publish.data.len();
        return Err(format!("{size} bytes, max_message_size is {limit} bytes here: raise it"));
    }
    if publish.correlation_id.len() > CORRELATION_SIZE_MAX {
        let size = publish.correlation_id.len();
        return Err(format!("a correlation id of {size} bytes, the limit is {CORRELATION_SIZE_MAX}"));
    }
    let keys = DeletedKeys::new(if is_delete { publish.data } else { b"" });
    let count = keys.clone().count();
    if count > KEYS_MAX {
        return Err(format!("a delete of {count} keys, the limit is {KEYS_MAX}"));
    }
    for key in keys.chain([Ok(publish.key)]) {
        let key = key.map_err(|_| "the data of a delete is not a list of keys")?;
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

#[cold]
fn end_too_large(cx: &mut Context, id: SessionId, size: usize) {
    let limit = cx.transport_of(id).max_message_size;
    let reason = format!("a message of {size} bytes, max_message_size is {limit} bytes");
    cx.end(id, Code::MessageTooLarge, &reason);
}

/// The number of a topic that is published to; `None` when the log has as many as it may have, and not this one.
fn admit_topic(cx: &mut Context, name: &str) -> Option<TopicId> {
    let Context { topics, log: Log { journal, .. }, config, .. } = cx;
    let count_max = config.limits.max_topics as usize;
    let topic = topics.intern(name);
    if topics.admit(topic, |name| journal.admit_topic(name, count_max)) {
        return Some(topic);
    }
    // Those of removed journal files count no longer. It is looked for once for each such file, not for each publish.
    if !journal.forget_unused_topics(|| topics.forget_unpinned()) {
        return None;
    }
    let topic = topics.intern(name);
    topics.admit(topic, |name| journal.admit_topic(name, count_max)).then_some(topic)
}
