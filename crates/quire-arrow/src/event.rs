//! Changes and leases of the messages of a queue, as rows: one row for every run of neighbors with the same event.

use std::sync::Arc;

use quire_journal::{Position, Record, RecordKind, Timestamp};
use quire_queue::{ChangeKind, LeaseEventKind, LeaseRun, Logged};

/// One entry of a record of a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    pub kind: &'static str,
    /// The first and the last message that it is about.
    pub first: Position,
    pub last: Position,
    pub deliveries: Option<u32>,
    pub cancels: Option<u32>,
    /// Why it expired, or how the lease ended.
    pub reasons: Option<Arc<str>>,
    pub consumer: Option<Arc<str>>,
    /// When it was, if that is not the time of the record.
    pub time: Option<Timestamp>,
}

impl Event {
    /// The entries of a record; what is no list of entries ends it.
    pub fn of<'a>(record: &Record<'a>) -> impl Iterator<Item = Event> + use<'a> {
        let is_of = |kind| if record.kind == kind { record.data } else { b"" };
        let changes = Logged::read(is_of(RecordKind::Acknowledge), record.position).map_while(Result::ok);
        let leases = LeaseRun::read(is_of(RecordKind::Lease), record.position).map_while(Result::ok);
        let changes = changes.filter_map(|logged| match logged {
            Logged::Changed { first, last, kind } => Some(Event::changed(first, last, kind)),
            Logged::Begins { .. } => None,
        });
        changes.chain(leases.map(|run| Event::leased(&run)))
    }

    fn new(kind: &'static str, first: Position, last: Position) -> Self {
        Event {
            kind,
            first,
            last,
            deliveries: None,
            cancels: None,
            reasons: None,
            consumer: None,
            time: None,
        }
    }

    fn changed(first: Position, last: Position, kind: ChangeKind) -> Self {
        let event = |kind| Event::new(kind, first, last);
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
            ..Event::new(kind, run.first, run.last)
        }
    }
}
