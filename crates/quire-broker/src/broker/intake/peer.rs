//! Records of other instances: messages and deletes.

use quire_command::Publish;
use quire_journal::{InstancePathBuffer, Position, RecordKind};
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
        let deadline = self.cx.clock.slices.deadline(PASS);
        let mut path = InstancePathBuffer::default();
        while let Some(mut arrived) = self.links.next_arrived(self.cx) {
            let mut taken = arrived.take_result();
            let mut user = self.links.take_user(&arrived);
            let mut result = Ok(());
            let mut is_over = false;
            let mut done = None;
            for (record, weight) in arrived.records().zip(1_usize..) {
                result = record.and_then(|(record, end)| {
                    done = Some(end);
                    // Before anything else about it, so that it has no effect on its publisher.
                    self.cx.admit_replicated(&mut user, record.topic).map_err(|denied| denied.reason())?;
                    self.take_record(&arrived, &record, &mut path, &mut taken)
                });
                is_over = weight.is_multiple_of(WEIGHT_MAX) && self.cx.clock.slices.is_past(deadline);
                if result.is_err() || is_over {
                    break;
                }
            }
            self.links.give_user_back(&arrived, user);
            match done.filter(|_| is_over && result.is_ok()) {
                Some(done) => self.links.suspend(arrived, done, taken),
                None => self.links.taken(self.cx, arrived, taken, result),
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
    ) -> Result<(), String> {
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
        self.cx.topics.note_incoming(topic);
        taken.record_count += 1;
        let ingested = self.ingest(&submission, ready.keyed());
        let hops = u8::try_from(record.attributes.path().instances().count()).unwrap_or(u8::MAX);
        let (position, destinations) = match ingested {
            Ingested::Recorded(position) => {
                taken.note_recorded(record);
                (position, self.destinations_of(&submission, position, path))
            }
            Ingested::Unrecorded => (Position::ZERO, Destinations::NONE),
            // If the same instance sent it before, its acknowledgement was lost, and waits for the
            // same destinations. Otherwise the instance that sent it first waits for them, and this
            // wait has no disadvantage.
            Ingested::Duplicate { .. } => {
                taken.note_duplicate(record);
                let position = self.cx.log.appended();
                (position, self.links.route_again(self.cx, topic, position, path, || None))
            }
            Ingested::Refused => return Err("the journal takes no writes".to_owned()),
            Ingested::Unacceptable(error) => return Err(error.to_string()),
        };
        taken.note(hops, record.position, position, destinations);
        Ok(())
    }
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
