//! Publishes: from a received frame to the journal's open batch and to those who are served at once.

use quire_journal::{Appended, Bookmark, NewRecord, Position, RecordKind, Timestamp};

use super::deferred::Kept;
use super::slice::{SERVED, WEIGHED_EFFORT};
use super::{Broker, Event, Output};
use crate::filter::{Decision, MessageContext};
use crate::message_type::MessageType;
use crate::replay::OwnedMessage;
use crate::session::{KnownTopic, OWED_MAX, Phase, PublisherKey, Refusal, SessionId, Stall};
use crate::subscription::{Course, Progressing, SubscriptionId, bookmark};
use crate::topic::{Stage, TopicId, check_name};
use crate::wire::{Code, Message, Publish};

impl Broker {
    /// What every publish frame needs first: whose it is. `None` when the session takes none any more.
    pub(super) fn begin_publish(&mut self, id: SessionId) -> Option<PublisherKey> {
        let session = &mut self.sessions[id];
        let publisher = session.identity.as_ref()?.publisher;
        if !session.has_published {
            session.has_published = true;
            self.touch(id);
        }
        self.publishers.activate(publisher);
        Some(publisher)
    }

    /// One message of a publish frame. Nothing here allocates, unless it is the first on its topic.
    pub(super) fn publish(&mut self, id: SessionId, key: PublisherKey, publish: &Publish<'_>) {
        if self.sessions[id].phase != Phase::Open {
            return;
        }
        self.counters.published += 1;
        if publish.data.len() > self.config.limits.max_message_size as usize {
            let (size, limit) = (publish.data.len(), self.config.limits.max_message_size);
            self.end(
                id,
                Code::MessageTooLarge,
                &format!("a message of {size} bytes, max_message_size is {limit} bytes"),
            );
            return;
        }
        // The topic comes before the duplicate check: what was refused is refused again when it is repeated.
        let topic = match self.topic_of(id, publish.topic) {
            Ok(topic) => topic,
            Err(refusal) => return self.refuse(id, key, publish.sequence, refusal),
        };
        let Some(publisher) = self.publishers.get_mut(key) else { return };
        if publisher.is_duplicate(publish.sequence)
            && (self.failure.is_none() || publish.sequence <= publisher.persisted())
        {
            self.counters.duplicates += 1;
            return;
        }
        if publisher.jumps_to(publish.sequence, self.config.limits.sequence_jump_logged) {
            self.note_jump(id, key, publish.sequence);
        }
        self.take(id, key, topic, publish);
    }

    /// A message that is neither refused nor a duplicate.
    fn take(&mut self, id: SessionId, key: PublisherKey, topic: TopicId, publish: &Publish<'_>) {
        self.stamped = self.stamped.max(self.now.wall);
        let timestamp = self.stamped;
        let known = self.topics.topic(topic);
        let Some(publisher) = self.publishers.get_mut(key) else { return };
        let next = self.journal.appended().get() + 1;
        let (publisher_id, sequence) = match publish.sequence {
            0 => (publisher.derived, next),
            sequence => (publisher.id, sequence),
        };
        let message_type = known.recording.message_type;
        let mark = bookmark(publisher_id, sequence);
        let is_recorded =
            known.recording.records(&context_of(publish, message_type, &known.name, Some(mark), timestamp));
        if self.sessions[id].knows_of_failure || (self.failure.is_some() && is_recorded) {
            self.counters.refused += 1;
            return self.say_failure(id);
        }
        if is_recorded {
            let record = NewRecord {
                kind: RecordKind::Publish,
                message_type: message_type.code(),
                publisher: publisher_id,
                sequence,
                timestamp,
                topic: &known.name,
                correlation_id: publish.correlation_id,
                expiration_s: publish.expiration_s,
                data: publish.data,
            };
            match self.journal.append(&record) {
                Ok(Appended::Recorded(position)) => {
                    self.places.appended(position, mark);
                    if publish.sequence != 0 {
                        publisher.record(sequence, position);
                    }
                }
                Ok(Appended::Duplicate { highest }) => {
                    self.counters.duplicates += 1;
                    return publisher.pass(highest);
                }
                Err(error) => {
                    self.counters.refused += 1;
                    self.fail(&error);
                    return self.say_failure(id);
                }
            }
        } else {
            publisher.pass(publish.sequence);
        }
        if self.topics.has_audience(topic, Stage::Published) {
            let name = known.name.clone();
            let context = context_of(publish, message_type, &name, is_recorded.then_some(mark), timestamp);
            let is_queue = known.is_queue;
            let message = Message {
                subscription: 0,
                bookmark: is_recorded.then_some((publisher_id.get(), sequence)),
                timestamp_ns: timestamp.as_ns(),
                queued: None,
                topic: name.as_bytes(),
                correlation_id: publish.correlation_id,
                data: publish.data,
            };
            self.serve_published(topic, &context, &message, is_queue);
        }
    }

    /// Logs a sequence that is far above the last one: everything between counts as a duplicate from now on, also when another program has
    /// published under the name. Numbers that a program gives itself may go up by as much as it likes, so nothing is refused.
    #[cold]
    fn note_jump(&mut self, id: SessionId, key: PublisherKey, to: u64) {
        let Some(publisher) = self.publishers.get_mut(key) else { return };
        let from = publisher.highest();
        if publisher.note_jump() {
            let session = &self.sessions[id];
            let (connection, client_name) = (session.connection, session.client_name().unwrap_or_default());
            self.outputs.push_back(Output::Log(Event::SequenceJumped { connection, client_name, from, to }));
        }
    }

    /// The number of the topic, from the session's memory when it is the same as last time.
    fn topic_of(&mut self, id: SessionId, topic: &[u8]) -> Result<TopicId, Refusal> {
        let session = &mut self.sessions[id];
        if let Some(known) = &session.topic
            && known.name.as_bytes() == topic
            && known.generation == self.topics.generation()
        {
            return Ok(known.id);
        }
        let name = check_name(topic).map_err(|error| Refusal::from(&error))?;
        let target = self.topics.publish_target(name);
        let target = target.as_deref().unwrap_or(name);
        let topic = self.admit_topic(target).ok_or(Refusal::TooManyTopics)?;
        let known = KnownTopic { name: name.into(), id: topic, generation: self.topics.generation() };
        self.sessions[id].topic = Some(known);
        Ok(topic)
    }

    /// The number of a topic that is published to; `None` when the log has as many as it may have, and not this one.
    fn admit_topic(&mut self, name: &str) -> Option<TopicId> {
        let Broker { topics, journal, config, .. } = self;
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

    fn refuse(&mut self, id: SessionId, key: PublisherKey, sequence: u64, refusal: Refusal) {
        self.counters.refused += 1;
        let jump_logged = self.config.limits.sequence_jump_logged;
        let Some(publisher) = self.publishers.get_mut(key) else { return };
        if publisher.jumps_to(sequence, jump_logged) {
            self.note_jump(id, key, sequence);
        }
        let Some(publisher) = self.publishers.get_mut(key) else { return };
        publisher.refuse(sequence, refusal);
        if publisher.refusal_count() >= OWED_MAX {
            self.stall(id, Stall::Owing);
        }
    }

    /// Serves ordinary and `live` subscriptions.
    pub(super) fn serve_published(
        &mut self,
        topic: TopicId,
        context: &MessageContext<'_>,
        message: &Message<'_>,
        is_queue: bool,
    ) {
        let mut matched = std::mem::take(&mut self.matched);
        let push = |id, decision| matched.push((id, decision));
        let effort = self.topics.for_each_decision(topic, Stage::Published, context, self.turn_effort, push);
        self.slices.weigh(SERVED + matched.len() + effort as usize / WEIGHED_EFFORT);
        let mut owned = None;
        for &(subscription, decision) in &matched {
            if decision == Decision::Open || self.deferred.has(subscription) {
                self.put_off(subscription, decision, context, message, is_queue, &mut owned);
                continue;
            }
            self.with_selected(subscription, Some(context.message_type), message.data, |broker, data| {
                broker.deliver_published(subscription, context, &Message { data, ..*message }, is_queue);
            });
        }
        matched.clear();
        self.matched = matched;
    }

    /// A subscription for which the message cannot be delivered at once.
    fn put_off(
        &mut self,
        id: SubscriptionId,
        decision: Decision,
        context: &MessageContext<'_>,
        message: &Message<'_>,
        is_queue: bool,
        owned: &mut Option<Kept>,
    ) {
        let Some(subscription) = self.subscriptions.get(id) else { return };
        if let Some(progress) = subscription.progress() {
            if message.bookmark.is_some() {
                // It is the last record. One that is not in step yet is served up to the edge.
                let after = match progress.stage {
                    Progressing::Live => Position::new(self.journal.appended().get() - 1),
                    _ => progress.after.max(self.edge),
                };
                self.fall_behind(id, after);
            }
            return;
        }
        let owned = owned.get_or_insert_with(|| {
            Kept::new(OwnedMessage {
                message_type: context.message_type,
                topic: context.topic.into(),
                bookmark: message.bookmark.and(context.bookmark),
                timestamp: context.timestamp,
                correlation_id: context.correlation_id.into(),
                data: context.data.into(),
                is_queue,
            })
        });
        self.defer(id, decision, owned);
    }

    /// Hands on the part of a message that a subscription wants.
    pub(super) fn with_selected(
        &mut self,
        id: SubscriptionId,
        message_type: Option<MessageType>,
        data: &[u8],
        deliver: impl FnOnce(&mut Broker, &[u8]),
    ) {
        let select = self.subscriptions.get(id).and_then(|subscription| subscription.select.clone());
        let Some(select) = select else { return deliver(self, data) };
        let mut selected = std::mem::take(&mut self.selected);
        let data = select.apply(message_type, data, &mut self.arena, &mut selected);
        deliver(self, data);
        self.selected = selected;
    }

    pub(super) fn deliver_published(
        &mut self,
        id: SubscriptionId,
        context: &MessageContext<'_>,
        message: &Message<'_>,
        is_queue: bool,
    ) {
        // A connection that was ended while this message was served took its subscriptions along.
        let Some(subscription) = self.subscriptions.get(id) else { return };
        let session_id = subscription.session;
        self.give_buffer(session_id);
        let Some(subscription) = self.subscriptions.get_mut(id) else { return };
        let message = Message { subscription: subscription.number, ..*message };
        if subscription.conflation.is_some() && !is_queue {
            self.hold_message(id, context.topic, Some(context), &message);
            return self.check_backlog(session_id);
        }
        let session = &mut self.sessions[session_id];
        let size = match &mut subscription.course {
            // The name belongs to a queue, which serves those who want its messages without a bookmark.
            Course::Ordinary | Course::Queue(_) if is_queue => return,
            Course::Ordinary | Course::Queue(_) => {
                message.encode(session.outbox.bytes_mut());
                session.outbox.backlog_size()
            }
            // A bookmark subscription gets what is recorded, and nothing else (seed 003).
            Course::Bookmark(_) if message.bookmark.is_none() => return,
            Course::Bookmark(progress) => {
                if progress.taken_after.is_some_and(|instant| message.timestamp_ns <= instant.as_ns()) {
                    return;
                }
                match &mut progress.stage {
                    Progressing::Joining(joining) => {
                        message.encode(&mut joining.held);
                        joining.held.len() + session.outbox.backlog_size()
                    }
                    _ => {
                        message.encode(session.outbox.bytes_mut());
                        session.outbox.backlog_size()
                    }
                }
            }
        };
        self.counters.delivered += 1;
        self.touch(session_id);
        if size as u64 > self.config.limits.max_client_backlog {
            self.end_slow(session_id);
        }
    }

    /// What is held has a bound of its own; beyond it messages go to the backlog, which has another.
    fn check_backlog(&mut self, id: SessionId) {
        if self.session(id).outbox.backlog_size() as u64 > self.config.limits.max_client_backlog {
            self.end_slow(id);
        }
    }
}

/// What a filter may look at of a message on its way in.
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
        bookmark,
        correlation_id: publish.correlation_id,
        timestamp,
        now: timestamp,
    }
}
