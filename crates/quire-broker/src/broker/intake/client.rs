//! Messages of clients, from a received frame to the result for their publisher.
//!
//! A *plain* message takes the fast path: it is recorded after one check of its topic and one of
//! the message. [`Intake::publish_checked`] takes the other messages. Another thread examines a
//! large message (`large.rs`). The message then passes the stages again from the beginning.

use quire_command::{Code, Publish};
use quire_journal::{Bookmark, Held, InstancePath, RecordKind};
use quire_link::InLog;
use quire_link::decide::{Here, PublishDecision, Published, decide_publish};

use super::admit::check_publish;
use super::large::{Done, Examined};
use super::prepare::Step;
use super::{Ingested, Intake, Origin, Submission};
use crate::context::{Context, Shutdown};
use crate::failure::code_of;
use crate::links::look_up;
use crate::publishers::Numbering;
use crate::reply::Refusal;
use crate::session::{OwnedPublish, Phase, PublisherKey, SessionId, Stall};
use crate::tables::Keyed;
use crate::topic::TopicId;

impl Intake<'_> {
    /// One message of a publish frame. This function allocates only for the first message on a
    /// topic.
    pub(crate) fn publish(&mut self, id: SessionId, key: PublisherKey, publish: &Publish<'_>) {
        let session = &mut self.cx.clients.sessions.all[id];
        if session.phase != Phase::Open {
            return;
        }
        session.traffic.published_count += 1;
        let size_max = self.cx.config.transports[session.transport.0 as usize].max_message_size;
        self.cx.clients.counters.published += 1;
        if publish.data.len() > size_max as usize {
            return end_too_large(self.cx, id, publish.data.len());
        }
        // The topic is checked before duplicates, so that a refused message is refused again when
        // it is repeated.
        let topic = match self.topic_of(id, publish) {
            Ok(topic) => topic,
            Err(refusal) => {
                return self.publishers.refuse(self.cx, id, key, publish.sequence, refusal);
            }
        };
        self.cx.topics.note_published(topic, publish.data.len());
        let is_plain = self.cx.topics.topic(topic).takes_plain() && publish.is_plain();
        if !is_plain || self.cx.log.failure.is_some() {
            return self.publish_checked(id, key, publish, topic);
        }
        self.take_in_plain(id, key, publish, topic);
    }

    /// A message that is not plain, or that arrives while the journal accepts no writes.
    #[inline(never)]
    fn publish_checked(&mut self, id: SessionId, key: PublisherKey, publish: &Publish<'_>, topic: TopicId) {
        match self.check_and_publish(id, key, publish, topic, Examined::default()) {
            Ok(None) => {}
            Ok(Some(examined)) => {
                self.in_hand.large.examine(self.cx, id, OwnedPublish::new(publish), examined);
            }
            Err(refusal) => self.publishers.refuse(self.cx, id, key, publish.sequence, refusal),
        }
    }

    /// Checks a message and passes it to the next stages. `Some`: the message is large, and another
    /// thread must examine it first.
    ///
    /// # Errors
    /// Why it is refused.
    fn check_and_publish(
        &mut self,
        id: SessionId,
        key: PublisherKey,
        publish: &Publish<'_>,
        topic: TopicId,
        examined: Examined,
    ) -> Result<Option<Examined>, Refusal> {
        let table = check_publish(self.cx, topic, publish)?;
        let is_known = self.is_duplicate(key, publish.sequence);
        let size_max = self.cx.transport_of(id).max_message_size as usize;
        let origin = Origin::Client { size_max, is_known };
        let Some(submission) = self.submission(key, origin, topic, publish) else { return Ok(None) };
        let ready = match self.prepare(&submission, table, examined)? {
            Step::Ready(ready) => ready,
            Step::Later(examined) => return Ok(Some(examined)),
        };
        if let Some(table) = table.filter(|_| !is_known && self.cx.clients.sessions.all[id].rights.is_some())
        {
            self.check_record_writable(id, publish, &ready.of(publish), (topic, table))?;
        }
        let now = self.cx.clock.now.wall;
        let key_of_record = ready.of(publish).key;
        if is_known {
            self.repeat(id, key, publish);
        } else if let Some(table) = table.filter(|_| publish.is_update)
            && !self.tables.has_record(table, key_of_record, now)
        {
            // There is nothing to update. The message is acknowledged, and nothing else happens.
            self.note_ingested(id, key, publish.sequence, Ingested::Unrecorded);
        } else {
            self.take_in(id, key, &Submission { publish: &ready.of(publish), ..submission }, ready.keyed());
        }
        Ok(None)
    }

    /// Takes the messages that were examined. The connections of finished messages continue.
    pub(crate) fn take_examined(&mut self) {
        while let Some(Done { session: id, sequence, found }) = self.in_hand.large.next_done() {
            let is_open =
                self.cx.clients.sessions.all.get(id).is_some_and(|session| session.phase == Phase::Open);
            // The client was not acknowledged, and sends the message again.
            if !is_open || self.cx.shutdown != Shutdown::No {
                continue;
            }
            let Some(publisher) = self.publishers.begin_publish(self.cx, id) else { continue };
            self.cx.session(id).preparing_size = 0;
            let is_done = match found {
                Some((message, examined)) => self.take_again(id, publisher, message, examined),
                None => {
                    let reason = "the server cannot examine the message, by a fault of its own".to_owned();
                    let refusal = Refusal::BadMessage(reason);
                    self.publishers.refuse(self.cx, id, publisher, sequence, refusal);
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
        let result = match self.topic_of(id, &publish) {
            Ok(topic) => self.check_and_publish(id, publisher, &publish, topic, examined),
            Err(refusal) => Err(refusal),
        };
        match result {
            Ok(None) => true,
            Ok(Some(examined)) => {
                self.in_hand.large.examine(self.cx, id, message, examined);
                false
            }
            Err(refusal) => {
                let sequence = publish.sequence;
                self.publishers.refuse(self.cx, id, publisher, sequence, refusal);
                true
            }
        }
    }

    /// The message of a client as a submission; `None`: its publisher was removed.
    #[inline(always)]
    fn submission<'a>(
        &self,
        key: PublisherKey,
        origin: Origin<'a>,
        topic: TopicId,
        publish: &'a Publish<'a>,
    ) -> Option<Submission<'a>> {
        let publisher = self.publishers.get(key)?;
        let publisher = if publish.sequence == 0 { publisher.derived } else { publisher.id };
        let (kind, numbering) = (RecordKind::Publish, Numbering::NONE);
        Some(Submission { origin, kind, publisher, topic, publish, numbering })
    }

    /// A plain message. Most publishers send plain messages.
    #[inline(always)]
    fn take_in_plain(&mut self, id: SessionId, key: PublisherKey, publish: &Publish<'_>, topic: TopicId) {
        if self.is_duplicate(key, publish.sequence) {
            return self.repeat(id, key, publish);
        }
        let origin = Origin::Client { size_max: usize::MAX, is_known: false };
        if let Some(submission) = self.submission(key, origin, topic, publish) {
            self.take_in(id, key, &submission, None);
        }
    }

    /// Records and serves a message that is ready, and stores the result for its publisher.
    /// Inlined, so that a plain message is not copied and has no key.
    #[inline(always)]
    fn take_in(
        &mut self,
        id: SessionId,
        key: PublisherKey,
        submission: &Submission<'_>,
        keyed: Option<Keyed<'_>>,
    ) {
        let sequence = submission.publish.sequence;
        let Some(publisher) = self.publishers.get_mut(key) else { return };
        if publisher.jumps_to(sequence, self.cx.config.limits.sequence_jump_logged) {
            self.publishers.note_jump(self.cx, id, key, sequence);
        }
        // The client already has the reason, and sends the message again.
        if self.cx.log.failure.is_some() && self.cx.session(id).knows_of_failure {
            self.cx.clients.counters.refused += 1;
            return;
        }
        if self.cx.log.has_links {
            return self.take_in_linked(id, key, submission, keyed);
        }
        let ingested = self.ingest(submission, keyed);
        self.note_ingested(id, key, sequence, ingested);
    }

    /// A message with a sequence that was seen before: a duplicate, or the message of another run.
    #[inline(never)]
    fn repeat(&mut self, id: SessionId, key: PublisherKey, publish: &Publish<'_>) {
        if self.cx.log.has_links
            && let Err(refusal) = self.decide_publish(key, publish.sequence, publish.is_numbered)
        {
            return self.publishers.refuse(self.cx, id, key, publish.sequence, refusal);
        }
        self.cx.clients.counters.duplicates += 1;
    }

    /// Decides about a message or a delete of a client, with replication.
    ///
    /// # Errors
    /// Why it is refused.
    pub(super) fn decide_publish(
        &self,
        key: PublisherKey,
        sequence: u64,
        is_numbered: bool,
    ) -> Result<Taking, Refusal> {
        let Some(publisher) = self.publishers.get(key).filter(|_| sequence != 0) else {
            return Ok(Taking::Record(Numbering::NONE));
        };
        let (bookmark, run) = (Bookmark::new(publisher.id, sequence), publisher.run_of(is_numbered));
        let here = self.here_of_publish(bookmark, run);
        let is_rejected = self.cx.log.replicated.is_rejected(bookmark, run);
        let is_gap = self.links.has_accepted(bookmark);
        match decide_publish(here, Published { run, is_rejected, is_gap }) {
            PublishDecision::Record => {
                let hole = (here != Here::Above).then(|| self.cx.log.journal.hole_at(bookmark)).flatten();
                Ok(Taking::Record(match hole {
                    Some((first, _)) => publisher.late_numbering(sequence, is_numbered, first),
                    None => publisher.numbering(sequence, is_numbered),
                }))
            }
            PublishDecision::Duplicate => {
                let highest = self.cx.log.highest_sequence(publisher.id);
                Ok(Taking::Duplicate { highest: highest.unwrap_or(sequence) })
            }
            PublishDecision::Refuse if is_gap => Err(Refusal::AcceptedAsLost { sequence }),
            PublishDecision::Refuse => Err(Refusal::NameInUse { sequence }),
        }
    }

    /// The record of the log under the bookmark of a message of a client, whose run is `run`.
    fn here_of_publish(&self, bookmark: Bookmark, run: u64) -> Here {
        let journal = &self.cx.log.journal;
        let current_run = journal.current_run(bookmark.publisher);
        let below = Here::Below { current_run };
        match journal.held(bookmark) {
            Held::No => Here::Above,
            Held::Missing => below,
            Held::OfRun(run) => Here::Record { run },
            Held::Unknown { .. } => {
                // A range of lacking sequences may be too wide, and never too narrow.
                let is_lacking = journal.hole_at(bookmark).is_some();
                // For a message that its program numbered, the sequence decides.
                if run == 0 && !is_lacking {
                    return Here::Record { run: 0 };
                }
                let recent = self.links.recent(bookmark).map(InLog::Record);
                match recent.unwrap_or_else(|| look_up(&self.cx.log.reader, bookmark)) {
                    InLog::Record(record) => Here::Record { run: record.run },
                    InLog::Nothing if is_lacking => below,
                    // It was removed, cannot be read, or is not on the disk yet. It counts as a
                    // message of the current run.
                    InLog::Removed | InLog::Nothing if run == 0 || run == current_run => Here::Record { run },
                    InLog::Removed | InLog::Nothing => below,
                }
            }
        }
    }

    /// As [`Intake::take_in`], with replication: the record has its run.
    #[inline(never)]
    fn take_in_linked(
        &mut self,
        id: SessionId,
        key: PublisherKey,
        submission: &Submission<'_>,
        keyed: Option<Keyed<'_>>,
    ) {
        let Publish { sequence, is_numbered, .. } = *submission.publish;
        let taking = match self.decide_publish(key, sequence, is_numbered) {
            Ok(taking) => taking,
            Err(refusal) => return self.publishers.refuse(self.cx, id, key, sequence, refusal),
        };
        let ingested = match taking {
            Taking::Record(numbering) => self.ingest(&Submission { numbering, ..*submission }, keyed),
            // The client sends it again when there is room.
            Taking::Duplicate { .. } if self.cx.log.failure.is_some() => Ingested::Refused,
            Taking::Duplicate { highest } => Ingested::Duplicate { highest },
        };
        self.note_linked(id, key, submission, ingested);
    }

    /// Stores the result for a message of a client, with the destinations that its acknowledgement
    /// waits for.
    fn note_linked(
        &mut self,
        id: SessionId,
        key: PublisherKey,
        submission: &Submission<'_>,
        ingested: Ingested,
    ) {
        let sequence = submission.publish.sequence;
        match ingested {
            Ingested::Recorded(position) => {
                let destinations = self.destinations_of(submission, position, InstancePath::EMPTY);
                if let Some(publisher) = self.publishers.get_mut(key).filter(|_| sequence != 0) {
                    publisher.follow(sequence, 0);
                    publisher.wait_for(destinations);
                }
                self.note_ingested(id, key, sequence, ingested);
            }
            // Another instance may have sent it just now, or the log may have had it before the
            // disk was full. The destinations have it when they have all records up to now.
            Ingested::Duplicate { highest } => {
                self.cx.clients.counters.duplicates += 1;
                self.note_duplicate(key, sequence, highest);
            }
            Ingested::Unrecorded | Ingested::Refused | Ingested::Unacceptable(_) => {
                self.note_ingested(id, key, sequence, ingested);
            }
        }
    }

    /// Acknowledges a message that the log has, when all destinations have what the log has now.
    pub(super) fn note_duplicate(&mut self, key: PublisherKey, sequence: u64, highest: u64) {
        let (appended, all) = (self.cx.log.appended(), self.cx.log.replicated.all());
        if let Some(publisher) = self.publishers.get_mut(key) {
            publisher.follow(sequence, highest);
            publisher.record(sequence, appended);
            publisher.wait_for(all);
        }
    }

    /// Stores the result for a message of a client.
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
                self.publishers.send_failure(self.cx, id);
            }
            Ingested::Unacceptable(error) => {
                let refusal = Refusal::NotAppended(code_of(&error), error.to_string());
                self.publishers.refuse(self.cx, id, key, sequence, refusal);
            }
        }
    }
}

/// What is done with a message or a delete of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taking {
    /// It is recorded, with this run and what it follows.
    Record(Numbering),
    /// The log has it. The highest sequence of its publisher is `highest`.
    Duplicate { highest: u64 },
}

#[cold]
fn end_too_large(cx: &mut Context, id: SessionId, size: usize) {
    let limit = cx.transport_of(id).max_message_size;
    let reason = format!("a message of {size} bytes, max_message_size is {limit} bytes");
    cx.end(id, Code::MessageTooLarge, &reason);
}
