//! Publishes of clients: from a received frame to a [`Submission`], and from its result to the publisher.

use crate::context::Context;
use crate::log::Log;

use super::Broker;
use super::ingest::{Ingested, Origin, Submission};
use crate::publishers::Refusal;
use crate::session::{KnownTopic, Phase, PublisherKey, SessionId};
use crate::topic::TopicId;
use quire_command::{Code, Publish};
use quire_expression::topic::check_name;
use quire_types::Delay;

impl Broker {
    /// One message of a publish frame. Nothing here allocates, unless it is the first on its topic.
    pub(super) fn publish(&mut self, id: SessionId, key: PublisherKey, publish: &Publish<'_>) {
        let session = &self.cx.sessions.all[id];
        if session.phase != Phase::Open {
            return;
        }
        let knows_of_failure = session.knows_of_failure;
        let limit = self.cx.config.transports[session.transport.0 as usize].max_message_size;
        self.cx.counters.published += 1;
        if publish.data.len() > limit as usize {
            let size = publish.data.len();
            self.cx.end(
                id,
                Code::MessageTooLarge,
                &format!("a message of {size} bytes, max_message_size is {limit} bytes"),
            );
            return;
        }
        // The topic is checked before duplicates, so that a refused message is refused again when it is repeated.
        let topic = match self.cx.topic_of(id, publish.topic) {
            Ok(topic) => topic,
            Err(refusal) => return self.publishers.refuse(&mut self.cx, id, key, publish.sequence, refusal),
        };
        // A sequence asks for an acknowledgement of persistence. A topic that the configuration does not name may be misspelt.
        let known = self.cx.topics.topic(topic);
        if publish.sequence != 0 && !known.recording.is_configured() {
            let refusal = Refusal::NotRecorded(known.name.clone());
            return self.publishers.refuse(&mut self.cx, id, key, publish.sequence, refusal);
        }
        if known.recording.validates()
            && let Err(error) = check_json(publish.data)
        {
            let refusal = Refusal::BadMessage(format!(
                "the message on the topic {:?} is not JSON: {error}",
                known.name
            ));
            return self.publishers.refuse(&mut self.cx, id, key, publish.sequence, refusal);
        }
        if !publish.delay.is_none()
            && let Some(refusal) = self.cx.refusal_of_delay(topic, publish.delay)
        {
            return self.publishers.refuse(&mut self.cx, id, key, publish.sequence, refusal);
        }
        let Some(publisher) = self.publishers.get_mut(key) else { return };
        if publisher.is_duplicate(publish.sequence)
            && (self.cx.log.failure.is_none() || publish.sequence <= publisher.persisted())
        {
            self.cx.counters.duplicates += 1;
            return;
        }
        let is_jump = publisher.jumps_to(publish.sequence, self.cx.config.limits.sequence_jump_logged);
        let submission = Submission {
            origin: Origin::Client,
            publisher: if publish.sequence == 0 { publisher.derived } else { publisher.id },
            sequence: publish.sequence,
            topic,
            correlation_id: publish.correlation_id,
            headers: publish.headers,
            expiration_s: publish.expiration_s,
            delay: publish.delay,
            data: publish.data,
        };
        if is_jump {
            self.publishers.note_jump(&mut self.cx, id, key, publish.sequence);
        }
        if knows_of_failure {
            self.cx.counters.refused += 1;
            return self.publishers.send_failure(&mut self.cx, id);
        }
        let ingested = self.ingest(submission);
        let Some(publisher) = self.publishers.get_mut(key) else { return };
        match ingested {
            Ingested::Recorded(position) if publish.sequence != 0 => {
                publisher.record(publish.sequence, position)
            }
            Ingested::Recorded(_) => (),
            Ingested::Unrecorded => publisher.pass(publish.sequence),
            Ingested::Duplicate { highest } => {
                self.cx.counters.duplicates += 1;
                publisher.pass(highest);
            }
            Ingested::Refused => {
                self.cx.counters.refused += 1;
                self.publishers.send_failure(&mut self.cx, id);
            }
        }
    }
}

/// Whether all of the bytes are one JSON value in UTF-8.
fn check_json(data: &[u8]) -> Result<(), serde_json::Error> {
    let text = std::str::from_utf8(data).map_err(serde::de::Error::custom)?;
    serde_json::from_str::<serde::de::IgnoredAny>(text).map(drop)
}

impl Context {
    /// The number of the topic, from the session's memory when it is the same as last time.
    #[inline]
    pub(crate) fn topic_of(&mut self, id: SessionId, topic: &[u8]) -> Result<TopicId, Refusal> {
        let session = &mut self.sessions.all[id];
        if let Some(known) = &session.topic
            && known.name.as_bytes() == topic
            && known.generation == self.topics.generation()
        {
            return Ok(known.id);
        }
        let name = check_name(topic).map_err(Refusal::BadTopic)?;
        let target = self.topics.publish_target(name);
        let target = target.as_deref().unwrap_or(name);
        let topic = self.admit_topic(target).ok_or(Refusal::TooManyTopics)?;
        let known = KnownTopic { name: name.into(), id: topic, generation: self.topics.generation() };
        self.sessions.all[id].topic = Some(known);
        Ok(topic)
    }

    /// Why a message on the topic cannot have this delay. Only a queue can hold a message back.
    #[cold]
    #[inline(never)]
    fn refusal_of_delay(&self, topic: TopicId, delay: Delay) -> Option<Refusal> {
        let topic = self.topics.topic(topic);
        if topic.queues.is_empty() {
            return Some(Refusal::NoQueue(topic.name.clone()));
        }
        delay.is_too_long(self.now.wall).then_some(Refusal::DelayTooLong)
    }

    /// The number of a topic that is published to; `None` when the log has as many as it may have, and not this one.
    pub(crate) fn admit_topic(&mut self, name: &str) -> Option<TopicId> {
        let Context { topics, log: Log { journal, .. }, config, .. } = self;
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
}
