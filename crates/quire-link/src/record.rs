//! Records as the frames of a link hold them, and as the log holds them.

use quire_journal::{Attributes, Bookmark, Position, Record, RecordKind, Timestamp};
use quire_wire::link::{BadFrame, LinkRecord};

/// A record that another instance sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SentRecord<'a> {
    /// Its place in the log of the source.
    pub position: Position,
    /// Its kind.
    pub kind: RecordKind,
    /// The type of the message.
    pub message_type: u8,
    /// Its bookmark.
    pub bookmark: Bookmark,
    /// The lifetime of the message.
    pub expiration_s: Option<u32>,
    /// The time of its stamp; `None` when it cannot change a last value.
    pub stamp: Option<Timestamp>,
    /// Its topic.
    pub topic: &'a str,
    /// Its correlation id.
    pub correlation_id: &'a [u8],
    /// Its attributes.
    pub attributes: Attributes<'a>,
    /// The message.
    pub data: &'a [u8],
}

impl<'a> SentRecord<'a> {
    /// Reads a record of a frame.
    ///
    /// # Errors
    /// It has an unknown kind, or its attributes are not attributes.
    pub fn new(record: LinkRecord<'a>) -> Result<Self, BadFrame> {
        let kind = RecordKind::from_number(record.kind).ok_or(BadFrame("the kind of a record"))?;
        let attributes =
            Attributes::from_bytes(record.attributes).ok_or(BadFrame("the attributes of a record"))?;
        Ok(SentRecord {
            position: record.position,
            kind,
            message_type: record.message_type,
            bookmark: record.bookmark,
            expiration_s: record.expiration_s,
            stamp: attributes.stamp().or(record.stamp),
            topic: record.topic,
            correlation_id: record.correlation_id,
            attributes,
            data: record.data,
        })
    }
}

/// A record of the log as it is sent.
pub fn for_frame<'a>(record: &Record<'a>) -> LinkRecord<'a> {
    let can_change_last_values = record.kind == RecordKind::Delete || record.key().is_some();
    LinkRecord {
        position: record.position,
        kind: record.kind as u8,
        message_type: record.message_type,
        bookmark: record.bookmark(),
        expiration_s: record.expiration_s,
        stamp: can_change_last_values.then(|| record.stamp()).filter(|_| record.attributes.stamp().is_none()),
        topic: record.topic,
        correlation_id: record.correlation_id,
        attributes: record.attributes.as_bytes(),
        data: record.data,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quire_journal::PublisherId;
    use quire_wire::link::{Frame, RecordsWriter, next_frame};

    #[test]
    fn a_record_arrives_as_it_was_sent() {
        let record = Record {
            position: Position::new(7),
            kind: RecordKind::Publish,
            message_type: 1,
            publisher: PublisherId::new(3),
            sequence: 4,
            timestamp: Timestamp::default(),
            topic: "orders",
            correlation_id: b"c",
            expiration_s: Some(9),
            is_late: false,
            attributes: Attributes::NONE,
            data: b"{}",
        };
        let mut bytes = Vec::new();
        let mut writer = RecordsWriter::begin(&mut bytes);
        writer.put(&for_frame(&record), &mut bytes);
        writer.end(Position::new(8), None, |_| None, &mut bytes);
        let Ok(Some((Frame::Records(records), _))) = next_frame(&bytes, 1000) else { panic!() };
        let found: Vec<_> = records
            .each_after(0)
            .map(|record| record.and_then(|(found, _)| SentRecord::new(found)))
            .collect();
        let expected = SentRecord {
            position: record.position,
            kind: record.kind,
            message_type: 1,
            bookmark: record.bookmark(),
            expiration_s: Some(9),
            stamp: None,
            topic: "orders",
            correlation_id: b"c",
            attributes: Attributes::NONE,
            data: b"{}",
        };
        assert_eq!(found, [Ok(expected)]);
        let delete =
            Record { kind: RecordKind::Delete, timestamp: Timestamp::from_ns(8), data: b"\x01a", ..record };
        assert_eq!(for_frame(&delete).stamp, Some(Timestamp::from_ns(8)));
        let Ok(Some((Frame::Records(records), _))) = next_frame(&bytes, 1000) else { panic!() };
        let (sent, _) = records.each_after(0).next().unwrap().unwrap();
        assert!(SentRecord::new(LinkRecord { kind: 200, ..sent }).is_err());
        assert!(SentRecord::new(LinkRecord { attributes: b"\xff", ..sent }).is_err());
    }
}
