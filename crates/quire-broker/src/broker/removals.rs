//! Records that leave last-value topics: deletes of clients, and records whose lifetime is over.
//!
//! The tables find and remove the records. This part appends the record of a delete to the log under the sequence of its publisher, and
//! tells the subscriptions about the records that left.

use super::publish::Ingested;
use crate::bookmarks::Bookmarks;
use crate::context::Context;
use crate::failure::code_of;
use crate::links::{Links, SentRecord};
use crate::ordinary::Ordinary;
use crate::publishers::Publishers;
use crate::reply::{Refused, not_last_value};
use crate::session::{PublisherKey, SessionId};
use crate::slice::{PASS, WEIGHT_MAX};
use crate::tables::{DeleteDone, Portion, Tables};
use crate::topic::TopicId;
use quire_command::{Acks, Code, SowDelete};
use quire_expression::topic::TopicSelector;
use quire_journal::{Appended, Attributes, Bookmark, DeletedKeys, InstancePath, NewRecord, RecordKind};

/// The parts of the broker that take part in a removal.
pub(super) struct Removals<'a> {
    pub(super) cx: &'a mut Context,
    pub(super) publishers: &'a mut Publishers,
    pub(super) tables: &'a mut Tables,
    pub(super) ordinary: &'a mut Ordinary,
    pub(super) bookmarks: &'a mut Bookmarks,
    pub(super) links: &'a mut Links,
}

impl Removals<'_> {
    /// Removes records of last-value topics. The records are removed at the end of the turn, or later when there are many.
    pub(super) fn begin(&mut self, id: SessionId, delete: &SowDelete<'_>) {
        let SowDelete { command, acks, sequence, topic, .. } = *delete;
        self.cx.acknowledge_received(id, command, 0, acks);
        let Some(key) = self.publishers.begin_publish(self.cx, id) else { return };
        if self.cx.log.failure.is_some() {
            return self.fail_delete(id, command, sequence);
        }
        let Some(publisher) = self.publishers.get_mut(key) else { return };
        if publisher.is_duplicate(sequence) {
            self.cx.clients.counters.duplicates += 1;
            return self.answer_delete(id, &DeleteDone { command, acks, count: 0 });
        }
        let tables = match TopicSelector::new(topic) {
            Ok(selector) => Ok(self.cx.topics.tables_of(&selector)),
            Err(error) => Err(Refused::new(Code::BadTopic, error.to_string())),
        };
        let begun = tables.and_then(|tables| match tables[..] {
            // No topic that may have records has one, or no topic matches the pattern.
            [] if self.may_keep_values(topic) => {
                self.pass(id, sequence);
                self.answer_delete(id, &DeleteDone { command, acks, count: 0 });
                Ok(())
            }
            [] => Err(not_last_value(topic, self.cx.topics.is_container(topic))),
            _ => self.tables.begin_delete(self.cx, id, delete, &tables),
        });
        if let Err(refused) = begun {
            self.pass(id, sequence);
            self.cx.refuse_command(id, command, 0, &refused);
        }
    }

    fn may_keep_values(&self, topic: &str) -> bool {
        TopicSelector::new(topic).is_ok_and(|selector| match selector {
            TopicSelector::Pattern(_) => true,
            TopicSelector::Name(_) => self.cx.topics.may_keep_values(&selector),
        })
    }

    /// The journal takes no writes. The client sends the delete again.
    fn fail_delete(&mut self, id: SessionId, command: u32, sequence: u64) {
        let failure = self.cx.failure_frame();
        self.cx.fail_command(id, command, 0, &failure);
        if sequence != 0 {
            self.publishers.send_failure(self.cx, id);
        }
    }

    /// The sequence of a delete is used, and nothing of it is in the log.
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
    pub(super) fn run(&mut self) {
        let deadline = self.cx.clock.slices.deadline(PASS);
        for removed in 1.. {
            let Some(left) = self.tables.next_expired(self.cx) else { break };
            self.ordinary.serve_left(self.cx, left.subscriptions, &left.context(), &left.message());
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
        match self.record_portion(portion, key, sequence) {
            Recorded::Yes => (),
            Recorded::Duplicate => {
                let done = self.tables.finish_delete(self.cx, id);
                let done = done.map(|done| DeleteDone { count: 0, ..done });
                return done.iter().for_each(|done| self.answer_delete(id, done));
            }
            Recorded::Refused(refused) => {
                self.pass(id, sequence);
                if let Some(done) = self.tables.finish_delete(self.cx, id) {
                    self.cx.refuse_command(id, done.command, 0, &refused);
                }
                return;
            }
            Recorded::Failed => {
                if let Some(done) = self.tables.finish_delete(self.cx, id) {
                    self.fail_delete(id, done.command, sequence);
                }
                return;
            }
        }
        for key in DeletedKeys::new(&portion.keys).map_while(Result::ok) {
            if let Some(left) = self.tables.remove(self.cx, portion.table, key) {
                self.ordinary.serve_left(self.cx, left.subscriptions, &left.context(), &left.message());
            }
        }
        if portion.sequence.is_some()
            && let Some(done) = self.tables.finish_delete(self.cx, id)
        {
            self.answer_delete(id, &done);
        }
    }

    /// Appends the record of a portion. The last portion has the sequence of the delete, also when it removes nothing.
    fn record_portion(&mut self, portion: &Portion, key: PublisherKey, sequence: u64) -> Recorded {
        let Some(publisher) = self.publishers.get_mut(key) else { return Recorded::Failed };
        let topic = self.cx.topics.intern(&portion.topic);
        let is_recorded = self.cx.topics.topic(topic).recording.records_any();
        if !is_recorded || (portion.keys.is_empty() && sequence == 0) {
            publisher.pass(sequence);
            return Recorded::Yes;
        }
        if self.cx.log.failure.is_some() {
            return Recorded::Failed;
        }
        let record = NewRecord {
            kind: RecordKind::Delete,
            message_type: portion.message_type.code(),
            publisher: if sequence == 0 { publisher.derived } else { publisher.id },
            sequence,
            timestamp: self.cx.log.stamp(self.cx.clock.now.wall),
            topic: &portion.topic,
            correlation_id: b"",
            expiration_s: None,
            attributes: Attributes::NONE,
            data: &portion.keys,
        };
        match self.cx.log.append(&record) {
            Ok(Appended::Recorded(position)) => {
                if sequence != 0 {
                    publisher.record(sequence, position);
                }
                let bookmark = Bookmark::new(
                    record.publisher,
                    self.cx.log.highest_sequence(record.publisher).unwrap_or(sequence),
                );
                self.bookmarks.appended(position, bookmark);
                if self.cx.log.has_links {
                    // The publisher waits for the destinations of every portion.
                    let appended = (position, bookmark);
                    // A delete has no content, so it passes every filter.
                    let destinations =
                        self.links.route(self.cx, topic, appended, InstancePath::EMPTY, || None);
                    publisher.wait_for(destinations);
                }
                Recorded::Yes
            }
            Ok(Appended::Duplicate { highest }) => {
                publisher.pass(highest);
                Recorded::Duplicate
            }
            Err(error) if error.is_about_record() => {
                Recorded::Refused(Refused::new(code_of(&error), error.to_string()))
            }
            Err(error) => {
                self.cx.fail(&error);
                Recorded::Failed
            }
        }
    }
}

impl Removals<'_> {
    /// Records a delete of another instance, which was checked, and removes its records here.
    ///
    /// # Errors
    /// The reason why the link ends.
    pub(super) fn replicate(
        &mut self,
        record: &SentRecord<'_>,
        attributes: Attributes<'_>,
        topic: TopicId,
    ) -> Result<Ingested, String> {
        let new = NewRecord {
            kind: RecordKind::Delete,
            message_type: record.message_type,
            publisher: record.bookmark.publisher,
            sequence: record.bookmark.sequence,
            timestamp: self.cx.log.stamp(self.cx.clock.now.wall),
            topic: record.topic,
            correlation_id: record.correlation_id,
            expiration_s: None,
            attributes,
            data: record.data,
        };
        let position = match self.cx.log.append(&new) {
            Ok(Appended::Recorded(position)) => position,
            Ok(Appended::Duplicate { highest }) => return Ok(Ingested::Duplicate { highest }),
            Err(error) if error.is_about_record() => return Err(error.to_string()),
            Err(error) => {
                self.cx.fail(&error);
                return Ok(Ingested::Refused);
            }
        };
        self.bookmarks.appended(position, record.bookmark);
        if let Some(table) = self.cx.topics.topic(topic).table {
            for key in DeletedKeys::new(record.data).map_while(Result::ok) {
                if let Some(left) = self.tables.remove(self.cx, table, key) {
                    self.ordinary.serve_left(self.cx, left.subscriptions, &left.context(), &left.message());
                }
            }
        }
        Ok(Ingested::Recorded(position))
    }
}

/// The result of recording a portion.
enum Recorded {
    Yes,
    Duplicate,
    /// The journal does not take the record, and takes others.
    Refused(Refused),
    Failed,
}
