//! The third stage of the intake: the record of a message or of a delete in the log.

use quire_journal::{
    Appended, Attributes, AttributesBuffer, Bookmark, JournalError, NewAttributes, NewRecord, RecordKind,
    Timestamp,
};

use super::prepare::context_of;
use super::{Ingested, Intake, Origin, Stamp, Submission};
use crate::publishers::Numbering;

impl Intake<'_> {
    /// The time and the bookmark of the record of a submission.
    #[inline(always)]
    pub(super) fn stamp(&mut self, submission: &Submission<'_>) -> Stamp {
        let Submission { publisher, publish, .. } = *submission;
        let timestamp = self.cx.log.stamp(self.cx.clock.now.wall);
        let sequence = match publish.sequence {
            0 => self.cx.log.next_sequence(publisher),
            sequence => sequence,
        };
        Stamp { timestamp, bookmark: Bookmark::new(publisher, sequence) }
    }

    /// Appends the record of a submission, unless the rules of the log exclude it. `key` is the key
    /// in the last-value topic, if any.
    #[inline(always)]
    pub(super) fn record(&mut self, submission: &Submission<'_>, stamp: Stamp, key: &[u8]) -> Ingested {
        let Submission { origin, kind, publisher, topic, publish, numbering } = *submission;
        let Stamp { timestamp, bookmark } = stamp;
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
            && (timestamp == now || kind == RecordKind::Delete);
        let attributes = if is_plain && !matches!(origin, Origin::Peer { .. }) {
            Attributes::NONE
        } else {
            match encode(&mut self.in_hand.attributes, submission, key, (timestamp, now)) {
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
        match self.cx.log.append(&record) {
            Ok(Appended::Recorded(position)) => {
                self.bookmarks.appended(position, bookmark);
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
    (timestamp, now): (Timestamp, Timestamp),
) -> Result<Attributes<'a>, JournalError> {
    let Submission { origin, publish, numbering: Numbering { run, follows }, .. } = *submission;
    let headers = publish.headers;
    // By the wall clock. The times in the log are later than the clock after it was set back.
    let received = (now < timestamp).then_some(now);
    buffer.encode(&match origin {
        Origin::Client { .. } | Origin::Service => {
            let not_before = publish.delay.end(now);
            NewAttributes { key, headers, not_before, received, run, follows, ..NewAttributes::default() }
        }
        // Another instance may keep last values that this one does not keep. So the key is
        // recorded.
        Origin::Peer { position, path, not_before, .. } => {
            let (key, position) = (publish.key, Some(position));
            NewAttributes { key, headers, position, path, not_before, received, run, follows }
        }
    })
}
