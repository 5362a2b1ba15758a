//! Records of other instances: messages and deletes. A record is recorded when the log lacks it,
//! also below the highest sequence of its publisher (docs/internals/copies.md, *Decisions*).

use quire_command::Publish;
use quire_journal::{Bookmark, Held, InstancePathBuffer, Position, RecordKind};
use quire_link::decide::{Here, RecordDecision, decide_record};
use quire_link::{InLog, RecordHere, hash_of};
use quire_types::Delay;

use super::admit::refused;
use super::{Ingested, Intake, Origin, Submission};
use crate::links::{Arrived, SentRecord, Taken};
use crate::publishers::Numbering;
use crate::replicated::Destinations;
use crate::slice::{PASS, WEIGHT_MAX};

impl Intake<'_> {
    /// Records the messages of other instances, within the time of a turn.
    pub(crate) fn take_replicated(&mut self) {
        if !self.links.any() {
            return;
        }
        for (bookmark, run) in self.links.take_rejections() {
            self.publishers.reject(bookmark, run);
        }
        let deadline = self.cx.clock.slices.deadline(PASS);
        let mut path = InstancePathBuffer::default();
        while let Some(mut arrived) = self.links.next_arrived(self.cx) {
            let mut taken = arrived.take_result();
            let mut user = self.links.take_user(&arrived);
            let mut result = Ok(Took::All);
            let mut is_over = false;
            let mut done = arrived.done();
            for (record, weight) in arrived.records().zip(1_usize..) {
                result = record.and_then(|(record, end)| {
                    // Before anything else about it, so that it has no effect on its publisher.
                    self.cx.admit_replicated(&mut user, record.topic).map_err(|denied| denied.reason())?;
                    let took = self.take_record(&arrived, &record, &mut path, &mut taken)?;
                    done = if took == Took::All { end } else { done };
                    Ok(took)
                });
                is_over = weight.is_multiple_of(WEIGHT_MAX) && self.cx.clock.slices.is_past(deadline);
                if result != Ok(Took::All) || is_over {
                    break;
                }
            }
            self.links.give_user_back(&arrived, user);
            match result {
                Ok(Took::NeedsLog) => {
                    let unknown = self.unknown(&arrived, done);
                    self.links.look_up(self.cx, arrived, (done, taken), unknown);
                }
                Ok(Took::All) if is_over => self.links.suspend(arrived, done, taken),
                Ok(Took::All) => self.links.taken(self.cx, arrived, taken, Ok(())),
                Err(reason) => self.links.taken(self.cx, arrived, taken, Err(reason)),
            }
            if is_over || self.cx.clock.slices.is_past(deadline) {
                self.cx.clock.wants_turn = true;
                return;
            }
        }
    }

    /// Records one record of another instance. `path` is memory that is reused from record to
    /// record.
    ///
    /// # Errors
    /// The reason why the link ends.
    fn take_record(
        &mut self,
        arrived: &Arrived,
        record: &SentRecord<'_>,
        path: &mut InstancePathBuffer,
        taken: &mut Taken,
    ) -> Result<Took, String> {
        let publish = publish_of(record);
        let (topic, table) = self.admit_record(record, &publish, arrived.rules())?;
        path.copy_from(record.attributes.path());
        path.push(arrived.source()).map_err(|error| error.to_string())?;
        let path = path.as_path();
        let origin = Origin::Peer {
            position: record.position,
            path,
            not_before: record.attributes.not_before(),
            stamp: record.stamp,
            has_any_key: arrived.rules().any_key,
        };
        let (kind, publisher) = (record.kind, record.bookmark.publisher);
        let numbering = Numbering { run: record.attributes.run(), follows: record.attributes.follows() };
        let submission = Submission { origin, kind, publisher, topic, publish: &publish, numbering };
        let ready = self.prepare_now(&submission, table);
        let ready = ready.map_err(|refusal| refused(record, &refusal.reason()))?;
        let Some(decided) = self.decide(arrived, record) else { return Ok(Took::NeedsLog) };
        self.cx.topics.note_incoming(topic);
        taken.record_count += 1;
        let hops = u8::try_from(record.attributes.path().instances().count()).unwrap_or(u8::MAX);
        let is_other = matches!(decided, Decided::Differs | Decided::Reject);
        if is_other {
            let run = if decided == Decided::Reject { numbering.run } else { 0 };
            self.links.note_conflict(self.cx, arrived, record.bookmark, run);
            taken.note_rejected(record.bookmark, run);
        }
        let ingested = match decided {
            Decided::Record => self.ingest(&submission, ready.keyed()),
            // The source hears of it before the acknowledgement.
            Decided::Reject => Ingested::Unrecorded,
            Decided::Duplicate | Decided::Differs => Ingested::Duplicate { highest: 0 },
        };
        let (position, destinations) = match ingested {
            Ingested::Recorded(position) => {
                taken.note_recorded(record);
                (position, self.destinations_of(&submission, position, path))
            }
            Ingested::Unrecorded => {
                self.links.note_unrecorded(record.bookmark);
                (Position::ZERO, Destinations::NONE)
            }
            // If the same instance sent it before, its acknowledgement was lost, and waits for the
            // same destinations. Otherwise the instance that sent it first waits for them, and this
            // wait has no disadvantage.
            Ingested::Duplicate { .. } => {
                taken.duplicate_count += 1;
                let position = self.cx.log.appended();
                (position, self.links.route_again(self.cx, topic, position, path, || None))
            }
            Ingested::Refused => return Err("the journal takes no writes".to_owned()),
            Ingested::Unacceptable(error) => return Err(error.to_string()),
        };
        taken.note(hops, record.position, position, destinations);
        Ok(Took::All)
    }

    /// The decision about a record; `None`: the log must be asked first.
    fn decide(&self, arrived: &Arrived, record: &SentRecord<'_>) -> Option<Decided> {
        let run = record.attributes.run();
        let (here, hash) = match self.here(arrived, record)? {
            Known::Memory(here) => (here, None),
            Known::Log(InLog::Record(RecordHere { run, hash })) => (Here::Record { run }, Some(hash)),
            Known::Log(InLog::Nothing) => (Here::Below { current_run: 0 }, None),
            Known::Log(InLog::Removed) => return Some(Decided::Duplicate),
        };
        Some(match decide_record(here, run) {
            RecordDecision::Record => Decided::Record,
            RecordDecision::Duplicate => Decided::Duplicate,
            RecordDecision::Compare => {
                let differs = hash != Some(hash_of(record.kind, record.topic, record.data));
                if differs { Decided::Differs } else { Decided::Duplicate }
            }
            RecordDecision::Reject => Decided::Reject,
        })
    }

    /// What is known of the record under the bookmark of a record of another instance; `None`: the
    /// log must be asked.
    fn here(&self, arrived: &Arrived, record: &SentRecord<'_>) -> Option<Known> {
        let bookmark = record.bookmark;
        match self.cx.log.journal.held(bookmark) {
            Held::No => return Some(Known::Memory(Here::Above)),
            Held::Missing => return Some(Known::Memory(Here::Below { current_run: 0 })),
            Held::OfRun(run) if record.attributes.run() != 0 => {
                return Some(Known::Memory(Here::Record { run }));
            }
            // The contents decide, or the journal does not know the record.
            Held::OfRun(_) | Held::Unknown { .. } => (),
        }
        let recent = self.links.recent(bookmark).map(InLog::Record);
        recent.or_else(|| arrived.answer(bookmark)).map(Known::Log)
    }

    /// The bookmarks of the records of a frame, after `done` bytes of them, for which the log must
    /// be asked.
    fn unknown(&self, arrived: &Arrived, done: usize) -> Vec<Bookmark> {
        let rest = arrived.records().map_while(Result::ok).filter(|(_, end)| *end > done);
        let unknown = rest.filter(|(record, _)| self.here(arrived, record).is_none());
        unknown.map(|(record, _)| record.bookmark).collect()
    }
}

/// The result of taking a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Took {
    All,
    /// Nothing was done: the log must be asked for its bookmark.
    NeedsLog,
}

/// What is known of the record here under a bookmark.
enum Known {
    Memory(Here),
    Log(InLog),
}

/// The decision about a record (docs/internals/copies.md, *Decisions*).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Decided {
    Record,
    Duplicate,
    /// It counts as a duplicate, and its content is another one.
    Differs,
    Reject,
}

/// Converts a record of another instance into a message.
fn publish_of<'a>(record: &SentRecord<'a>) -> Publish<'a> {
    Publish {
        sequence: record.bookmark.sequence,
        expiration_s: record.expiration_s.filter(|_| record.kind != RecordKind::Delete),
        delay: record.attributes.not_before().map_or(Delay::None, Delay::Until),
        topic: record.topic.as_bytes(),
        correlation_id: record.correlation_id,
        headers: record.attributes.headers(),
        key: record.attributes.key().unwrap_or_default(),
        data: record.data,
        ..Publish::default()
    }
}
