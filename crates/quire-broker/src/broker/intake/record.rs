//! The third stage of the intake: the record of a message or of a delete in the log.

use quire_journal::{
    Appended, Attributes, AttributesBuffer, Bookmark, DeletedKeys, JournalError, NewAttributes, NewRecord,
    RecordKind, Timestamp,
};

use super::prepare::context_of;
use super::{Assigned, Ingested, Intake, Origin, Submission};
use crate::publishers::Numbering;
use crate::tables::Keyed;

impl Intake<'_> {
    /// The time and the bookmark of the record of a submission.
    #[inline(always)]
    pub(super) fn assign(&mut self, submission: &Submission<'_>) -> Assigned {
        let Submission { publisher, publish, .. } = *submission;
        let timestamp = self.cx.log.stamp(self.cx.clock.now.wall);
        let sequence = match publish.sequence {
            0 => self.cx.log.next_sequence(publisher),
            sequence => sequence,
        };
        Assigned { timestamp, order: None, bookmark: Bookmark::new(publisher, sequence), is_late: false }
    }

    /// Whether the log has later messages of its publisher. The log lacks the message: a caller has
    /// decided that it is recorded.
    pub(super) fn is_late(&self, submission: &Submission<'_>) -> bool {
        let Submission { publisher, publish, .. } = *submission;
        // Without a sequence, the log assigns the next one.
        publish.sequence != 0
            && self.cx.log.highest_sequence(publisher).is_some_and(|highest| publish.sequence <= highest)
    }

    /// Whether the ranges of lacking sequences around a record of another instance can be merged
    /// while it is not on the disk. The journal then does not know whether the log has it.
    fn is_between(&self, origin: Origin<'_>, bookmark: Bookmark) -> bool {
        matches!(origin, Origin::Peer { .. }) && self.cx.log.journal.may_lack_any(bookmark.publisher)
    }

    /// The time by which a message or a delete is ordered among the changes of its keys on all
    /// instances; `None`: its timestamp. A change of this instance is later than those that this
    /// instance knows, also when the clock was set back or another instance has a faster clock.
    #[inline(never)]
    pub(super) fn order(
        &mut self,
        submission: &Submission<'_>,
        keyed: Option<Keyed<'_>>,
        timestamp: Timestamp,
    ) -> Option<Timestamp> {
        let Submission { origin, kind, topic, publish, .. } = *submission;
        if let Origin::Peer { stamp, .. } = origin {
            return stamp;
        }
        let is_delete = kind == RecordKind::Delete;
        let known = self.cx.topics.topic(topic);
        let table = known.table().filter(|_| keyed.is_some() || is_delete)?;
        let sends = || self.links.sends(&known.name, known.recording.message_type);
        let keys = DeletedKeys::from_bytes(if is_delete { publish.data } else { b"" });
        let keys = keys.into_iter().flatten().chain((!is_delete).then_some(publish.key));
        let order = self.tables.next_stamp(table, keys, timestamp, sends);
        (order > timestamp).then_some(order)
    }

    /// Appends the record of a submission, unless the rules of the log exclude it. `key` is the key
    /// in the last-value topic, if any.
    #[inline(always)]
    pub(super) fn record(&mut self, submission: &Submission<'_>, assigned: Assigned, key: &[u8]) -> Ingested {
        let Submission { origin, kind, publisher, topic, publish, numbering } = *submission;
        let Assigned { timestamp, order, bookmark, is_late } = assigned;
        let known = self.cx.topics.topic(topic);
        let message_type = known.recording.message_type;
        let is_recorded = match kind {
            // A delete has no content that a filter could read.
            RecordKind::Delete => known.recording.records_any(),
            _ => known.recording.records(&mut self.cx.messages.arena, || {
                context_of(publish, message_type, &known.name, Some(bookmark), timestamp)
            }),
        };
        if !is_recorded {
            return Ingested::Unrecorded;
        }
        if matches!(origin, Origin::Client { .. }) && self.cx.log.failure.is_some() {
            return Ingested::Refused;
        }
        let now = self.cx.clock.now.wall;
        let is_plain = publish.headers.is_empty()
            && publish.delay.is_none()
            && key.is_empty()
            && numbering == Numbering::NONE
            && order.is_none()
            && (timestamp == now || kind == RecordKind::Delete);
        let attributes = if is_plain && !matches!(origin, Origin::Peer { .. }) {
            Attributes::NONE
        } else {
            match encode(&mut self.in_hand.attributes, submission, key, assigned, now) {
                Ok(attributes) => attributes,
                Err(error) => return Ingested::Unacceptable(Box::new(error)),
            }
        };
        let record = NewRecord {
            kind,
            message_type: message_type.code(),
            publisher,
            sequence: publish.sequence,
            timestamp,
            topic: &known.name,
            correlation_id: publish.correlation_id,
            expiration_s: publish.expiration_s,
            attributes,
            data: publish.data,
        };
        let appended = match is_late {
            true => self.cx.log.append_late(&record),
            false => self.cx.log.append(&record),
        };
        match appended {
            Ok(Appended::Recorded(position)) => {
                self.bookmarks.appended(position, bookmark);
                if self.cx.log.has_links
                    && (is_late || numbering.run == 0 || self.is_between(origin, bookmark))
                {
                    let content = (numbering.run, kind, &*known.name, publish.data);
                    self.links.note_recent(&self.cx.log, position, bookmark, content);
                }
                Ingested::Recorded(position)
            }
            Ok(Appended::Duplicate { highest }) => Ingested::Duplicate { highest },
            Err(error) if error.is_about_record() => Ingested::Unacceptable(Box::new(error)),
            Err(error) => {
                self.cx.fail(&error);
                Ingested::Refused
            }
        }
    }
}

/// The attributes of a record that has headers, a delay, a key or a run, whose timestamp is ahead
/// of the clock, or that comes from another instance. Without replication few messages have them,
/// and [`Intake::record`] is shorter without this code.
#[inline(never)]
fn encode<'a>(
    buffer: &'a mut AttributesBuffer,
    submission: &Submission<'_>,
    key: &[u8],
    Assigned { timestamp, order: stamp, .. }: Assigned,
    now: Timestamp,
) -> Result<Attributes<'a>, JournalError> {
    let Submission { origin, publish, numbering: Numbering { run, follows }, .. } = *submission;
    let headers = publish.headers;
    // By the wall clock. The times in the log are later than the clock after it was set back.
    let received = (now < timestamp).then_some(now);
    buffer.encode(&match origin {
        Origin::Client { .. } | Origin::Service => {
            let not_before = publish.delay.end(now);
            NewAttributes {
                key,
                headers,
                not_before,
                received,
                run,
                follows,
                stamp,
                ..NewAttributes::default()
            }
        }
        // Another instance may keep last values that this one does not keep. So the key is
        // recorded.
        Origin::Peer { position, path, not_before, .. } => {
            let (key, position) = (publish.key, Some(position));
            NewAttributes { key, headers, position, path, not_before, received, run, follows, stamp }
        }
    })
}
