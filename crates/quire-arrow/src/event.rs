//! What became of the messages of a queue, as rows: one for every run of neighbours to which the same happened.

use quire_core::queue::{ChangeKind, Logged};
use quire_journal::{Position, Record};

/// One entry of a record of a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    pub kind: &'static str,
    /// The first and the last message that it is about.
    pub first: Position,
    pub last: Position,
    pub deliveries: Option<u32>,
    pub cancels: Option<u32>,
    /// Why it expired.
    pub reasons: Option<String>,
}

impl Event {
    /// The entries of a record; what is no list of entries ends it.
    pub fn of<'a>(record: &Record<'a>) -> impl Iterator<Item = Event> + use<'a> {
        Logged::read(record.data, record.position).map_while(Result::ok).filter_map(|logged| match logged {
            Logged::Changed { first, last, kind } => Some(Event::changed(first, last, kind)),
            Logged::Begins { .. } => None,
        })
    }

    fn changed(first: Position, last: Position, kind: ChangeKind) -> Self {
        let event = |kind| Event { kind, first, last, deliveries: None, cancels: None, reasons: None };
        match kind {
            ChangeKind::Acknowledged => event("acknowledged"),
            ChangeKind::Taken => event("taken"),
            ChangeKind::Released => event("released"),
            ChangeKind::Cancelled { cancels } => Event { cancels: Some(cancels), ..event("cancelled") },
            ChangeKind::Expired { reasons, deliveries, cancels } => Event {
                deliveries: Some(deliveries),
                cancels: Some(cancels),
                reasons: Some(reasons.to_string()),
                ..event("expired")
            },
        }
    }
}
