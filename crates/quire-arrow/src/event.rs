//! Records that are not messages, as rows: one row for every run of neighbors of a queue with the
//! same event, and one for every key that was deleted from a last-value topic.

use std::sync::Arc;

use quire_journal::{Position, Record, RecordKind, Timestamp};
use quire_queue::{BadChanges, ChangeKind, LeaseEventKind, LeaseRun, Logged};

/// One entry of a record of a queue, or of a delete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    pub kind: &'static str,
    /// Its first and its last message of a queue.
    pub messages: Option<(Position, Position)>,
    /// The key that was deleted.
    pub key: Option<Arc<str>>,
    pub deliveries: Option<u32>,
    pub cancels: Option<u32>,
    /// Why it expired, or how the lease ended.
    pub reasons: Option<Arc<str>>,
    pub consumer: Option<Arc<str>>,
    /// Its time, if that is not the time of the record.
    pub time: Option<Timestamp>,
}

impl Event {
    /// The entries of a record. A record of a queue that has a source has none: its positions are
    /// those of another log.
    ///
    /// The last item is an error if the record is damaged, one of a group, or of another version.
    pub fn of<'a>(record: &Record<'a>) -> impl Iterator<Item = Result<Event, BadChanges>> + use<'a> {
        let position = record.position;
        let is_of_this_log = record.source().is_none();
        let is_of = |kind| if record.kind == kind && is_of_this_log { record.data } else { b"" };
        let changes = Logged::read(is_of(RecordKind::Acknowledge), position);
        let changes = changes.filter_map(|logged| match logged {
            Ok(Logged::Changed { first, last, kind, .. }) => Some(Ok(Event::changed(first, last, kind))),
            Ok(Logged::Begins { .. }) => None,
            Err(error) => Some(Err(error)),
        });
        let leases = LeaseRun::read(is_of(RecordKind::Lease), position);
        let leases = leases.map(|run| run.map(|run| Event::leased(&run)));
        let deleted = record.deleted_keys().map(Event::deleted);
        changes.chain(leases).chain(deleted.map(Ok))
    }

    fn new(kind: &'static str, messages: Option<(Position, Position)>) -> Self {
        Event {
            kind,
            messages,
            key: None,
            deliveries: None,
            cancels: None,
            reasons: None,
            consumer: None,
            time: None,
        }
    }

    fn changed(first: Position, last: Position, kind: ChangeKind) -> Self {
        let event = |kind| Event::new(kind, Some((first, last)));
        match kind {
            ChangeKind::Acknowledged => event("acknowledged"),
            ChangeKind::Taken => event("taken"),
            ChangeKind::Released => event("released"),
            ChangeKind::Returned { deliveries } => {
                Event { deliveries: Some(deliveries), ..event("returned") }
            }
            ChangeKind::Delayed { .. } => event("delayed"),
            ChangeKind::Cancelled { cancels } => Event { cancels: Some(cancels), ..event("cancelled") },
            ChangeKind::Expired { reasons, deliveries, cancels } => Event {
                deliveries: Some(deliveries),
                cancels: Some(cancels),
                reasons: Some(reasons.to_string().into()),
                ..event("expired")
            },
        }
    }

    fn leased(run: &LeaseRun<'_>) -> Self {
        let (kind, how) = match run.kind {
            LeaseEventKind::Delivered => ("delivered", None),
            LeaseEventKind::Acknowledged => ("lease_ended", Some("acknowledged")),
            LeaseEventKind::Cancelled => ("lease_ended", Some("cancelled")),
            LeaseEventKind::Expired => ("lease_ended", Some("expired")),
            LeaseEventKind::RanOut => ("lease_ended", Some("ran_out")),
            LeaseEventKind::Left => ("lease_ended", Some("left")),
            LeaseEventKind::Lost => ("lease_ended", Some("lost")),
            LeaseEventKind::Released => ("lease_ended", Some("released")),
            LeaseEventKind::AcknowledgedUnheld => ("settled_unheld", Some("acknowledged")),
            LeaseEventKind::ExpiredUnheld => ("settled_unheld", Some("expired")),
        };
        Event {
            reasons: how.map(Into::into),
            consumer: Some(run.consumer.into()),
            time: Some(run.time),
            ..Event::new(kind, Some((run.first, run.last)))
        }
    }

    fn deleted(key: &[u8]) -> Self {
        // Keys are text: the characters of supplied keys are limited, and generated keys are
        // hexadecimal digits.
        Event {
            key: Some(String::from_utf8_lossy(key).into()),
            ..Event::new(RecordKind::Delete.name(), None)
        }
    }
}
