//! Removes records from last-value topics: deletes of clients, and records whose lifetime is over.
//!
//! The tables find the records of a delete. Each portion of them is a submission with the keys. The
//! record of a delete has the sequence of its publisher. An expired record leaves no record in the
//! log.

use quire_command::{Acks, Code, Publish, SowDelete};
use quire_expression::topic::TopicSelector;
use quire_journal::{InstancePath, RecordKind};

use super::client::Taking;
use super::{Ingested, Intake, Origin, Submission};
use crate::Access;
use crate::entitlement::{Denied, Grant};
use crate::failure::code_of;
use crate::publishers::Numbering;
use crate::reply::{Refusal, Refused, is_computed, not_last_value};
use crate::session::{PublisherKey, SessionId};
use crate::slice::{PASS, WEIGHT_MAX};
use crate::tables::{DeleteDone, Portion};

impl Intake<'_> {
    /// Removes records of last-value topics. The records are removed at the end of the turn, or
    /// later when there are many.
    pub(crate) fn begin_delete(&mut self, id: SessionId, delete: &SowDelete<'_>, grant: &Grant) {
        let SowDelete { command, acks, sequence, topic, .. } = *delete;
        self.cx.acknowledge_received(id, command, 0, acks);
        let Some(key) = self.publishers.begin_publish(self.cx, id) else { return };
        if self.cx.log.failure.is_some() {
            return self.fail_delete(id, command, sequence);
        }
        let is_known = self.is_duplicate(key, sequence);
        let taking = match self.decide_delete(key, sequence) {
            Ok(taking) => taking,
            Err(refusal) => return self.refuse_sequence(id, command, sequence, &refusal),
        };
        if let Taking::Duplicate { highest } = taking
            && !is_known
        {
            self.note_duplicate(key, sequence, highest);
        }
        if is_known || matches!(taking, Taking::Duplicate { .. }) {
            self.cx.clients.counters.duplicates += 1;
            return self.answer_delete(id, &DeleteDone { command, acks, count: 0 });
        }
        let tables = match TopicSelector::new(topic) {
            Ok(TopicSelector::Name(name)) if self.cx.topics.is_computed(&name) => {
                Err(Refused::new(Code::BadTopic, is_computed(&name)))
            }
            Ok(selector) => {
                let mut tables = self.cx.topics.tables_of(&selector);
                tables.retain(|table| !self.tables.is_computed(*table));
                self.tables.retain_visible(&mut tables, grant);
                Ok(tables)
            }
            Err(error) => Err(Refused::new(Code::BadTopic, error.to_string())),
        };
        let begun = tables.and_then(|tables| match tables[..] {
            // No topic that may have records has a record, or no topic matches the pattern.
            [] if self.may_keep_values(topic) => {
                self.pass(id, sequence);
                self.answer_delete(id, &DeleteDone { command, acks, count: 0 });
                Ok(())
            }
            [] => Err(not_last_value(topic, self.cx.topics.is_container(topic))),
            _ => self.tables.begin_delete(self.cx, id, delete, &tables, grant),
        });
        if let Err(refused) = begun {
            self.pass(id, sequence);
            self.cx.refuse_command(id, command, 0, &refused);
        }
    }

    /// Decides about a delete. Without replication, the highest sequence of its publisher decides.
    fn decide_delete(&self, key: PublisherKey, sequence: u64) -> Result<Taking, Refusal> {
        match self.cx.log.has_links {
            true => self.decide_publish(key, sequence, false),
            false => Ok(Taking::Record(Numbering::NONE)),
        }
    }

    fn may_keep_values(&self, topic: &str) -> bool {
        TopicSelector::new(topic).is_ok_and(|selector| match selector {
            TopicSelector::Pattern(_) => true,
            TopicSelector::Name(_) => self.cx.topics.may_keep_values(&selector),
        })
    }

    /// The journal accepts no writes. The client sends the delete again.
    fn fail_delete(&mut self, id: SessionId, command: u32, sequence: u64) {
        let failure = self.cx.failure_frame();
        self.cx.fail_command(id, command, 0, &failure);
        if sequence != 0 {
            self.publishers.send_failure(self.cx, id);
        }
    }

    /// Refuses a delete that its user may not run.
    pub(crate) fn refuse_delete(&mut self, id: SessionId, delete: &SowDelete<'_>, denied: &Denied) {
        self.pass(id, delete.sequence);
        self.cx.refuse_command(id, delete.command, 0, &denied.refused());
    }

    /// Refuses a delete because of its sequence.
    fn refuse_sequence(&mut self, id: SessionId, command: u32, sequence: u64, refusal: &Refusal) {
        self.pass(id, sequence);
        self.cx.refuse_command(id, command, 0, &Refused::new(refusal.code(), refusal.reason().into_owned()));
    }

    /// The sequence of a delete is used, and the log has no record of the delete.
    fn pass(&mut self, id: SessionId, sequence: u64) {
        if let Some(key) = self.publishers.begin_publish(self.cx, id)
            && let Some(publisher) = self.publishers.get_mut(key)
        {
            publisher.pass(sequence);
        }
    }

    fn answer_delete(&mut self, id: SessionId, done: &DeleteDone) {
        let detail = u32::try_from(done.count).unwrap_or(u32::MAX);
        self.cx.acknowledge_with(id, done.command, 0, done.acks, detail, "");
        if done.acks.has(Acks::PERSISTED) {
            self.cx.owe_persisted(id, done.command);
        }
    }

    /// Removes the records of deletes, and those whose lifetime is over.
    pub(crate) fn remove_records(&mut self) {
        let deadline = self.cx.clock.slices.deadline(PASS);
        for removed in 1.. {
            let Some(left) = self.tables.next_expired(self.cx) else { break };
            self.stream.serve_left(self.cx, left.subscriptions, &left.context(), &left.message());
            if removed % WEIGHT_MAX == 0 && self.cx.clock.slices.is_past(deadline) {
                self.cx.clock.wants_turn = true;
                break;
            }
        }
        while let Some(refused) = self.tables.next_refused(self.cx) {
            self.pass(refused.session, refused.sequence);
        }
        while let Some(portion) = self.tables.next_portion(self.cx) {
            self.remove_portion(&portion);
            if self.cx.clock.slices.is_past(deadline) {
                self.cx.clock.wants_turn = true;
                break;
            }
        }
    }

    /// Records the removal of some records, and removes them.
    fn remove_portion(&mut self, portion: &Portion) {
        let id = portion.session;
        let Some(key) = self.publishers.begin_publish(self.cx, id) else { return };
        let sequence = portion.sequence.unwrap_or_default();
        // Another instance may have sent a message with the sequence meanwhile.
        let taking = match self.decide_delete(key, sequence) {
            Ok(taking) => taking,
            Err(refusal) => {
                if let Some(done) = self.tables.finish_delete(self.cx, id) {
                    self.refuse_sequence(id, done.command, sequence, &refusal);
                }
                return;
            }
        };
        match self.record_portion(portion, key, sequence, taking) {
            Ingested::Recorded(_) | Ingested::Unrecorded => (),
            Ingested::Duplicate { .. } => {
                let done = self.tables.finish_delete(self.cx, id);
                let done = done.map(|done| DeleteDone { count: 0, ..done });
                return done.iter().for_each(|done| self.answer_delete(id, done));
            }
            Ingested::Unacceptable(error) => {
                self.pass(id, sequence);
                if let Some(done) = self.tables.finish_delete(self.cx, id) {
                    let refused = Refused::new(code_of(&error), error.to_string());
                    self.cx.refuse_command(id, done.command, 0, &refused);
                }
                return;
            }
            Ingested::Refused => {
                if let Some(done) = self.tables.finish_delete(self.cx, id) {
                    self.fail_delete(id, done.command, sequence);
                }
                return;
            }
        }
        if portion.sequence.is_some()
            && let Some(done) = self.tables.finish_delete(self.cx, id)
        {
            self.answer_delete(id, &done);
        }
    }

    /// Passes a portion to the log and to the subscriptions. The last portion has the sequence of
    /// the delete, also when it removes no record.
    fn record_portion(
        &mut self,
        portion: &Portion,
        key: PublisherKey,
        sequence: u64,
        taking: Taking,
    ) -> Ingested {
        if portion.keys.is_empty() && sequence == 0 {
            return Ingested::Unrecorded;
        }
        let numbering = match taking {
            Taking::Record(numbering) => numbering,
            Taking::Duplicate { .. } if self.cx.log.failure.is_some() => return Ingested::Refused,
            Taking::Duplicate { highest } => {
                self.note_duplicate(key, sequence, highest);
                return Ingested::Duplicate { highest };
            }
        };
        let Some(publisher) = self.publishers.get(key) else { return Ingested::Refused };
        let submission = Submission {
            origin: Origin::Client { size_max: usize::MAX, is_known: false },
            kind: RecordKind::Delete,
            publisher: if sequence == 0 { publisher.derived } else { publisher.id },
            topic: self.cx.topics.intern(&portion.topic),
            publish: &Publish { sequence, data: &portion.keys, ..Publish::default() },
            numbering,
        };
        let session = &self.cx.clients.sessions.all[portion.session];
        let client_name = session.client_name().filter(|_| session.access == Access::Internal);
        self.cx.messages.events.set_deleting(client_name);
        let ingested = self.ingest(&submission, None);
        self.cx.messages.events.set_deleting(None);
        // The publisher waits for the destinations of every portion.
        let destinations = match ingested {
            Ingested::Recorded(position) if self.cx.log.has_links => {
                Some(self.destinations_of(&submission, position, InstancePath::EMPTY))
            }
            _ => None,
        };
        let Some(publisher) = self.publishers.get_mut(key) else { return ingested };
        match ingested {
            Ingested::Recorded(position) if sequence != 0 => publisher.record(sequence, position),
            Ingested::Unrecorded => publisher.pass(sequence),
            Ingested::Duplicate { highest } => publisher.pass(highest),
            Ingested::Recorded(_) | Ingested::Refused | Ingested::Unacceptable(_) => (),
        }
        if let Some(destinations) = destinations {
            if sequence != 0 {
                publisher.follow(sequence, 0);
            }
            publisher.wait_for(destinations);
        }
        ingested
    }
}
