//! The input and the output of the engine.

use std::fmt;
use std::ops::BitOr;

use serde::{Serialize, Serializer};

use super::id::{ConnectionId, FilterId, QueueId, SubscriptionId, Time};
use quire_journal::{Bookmark, Position};

/// The properties of a message that the engine keeps, other than its position.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueEntry {
    /// Its name on every instance. `None`: it has no such name, so other instances cannot use
    /// records about it.
    pub bookmark: Option<Bookmark>,
    /// When this instance received it; never earlier than that of the message before (it is taken
    /// as equal then).
    pub received: Time,
    /// Its priority; `None` ranks below every number.
    pub priority: Option<u64>,
    /// Whether it matches the queue's barrier expression.
    pub barrier: bool,
    /// Its own expiration in seconds; 0: never.
    pub expiration_s: Option<u32>,
    /// It was published with a delay that is over then.
    pub delayed_until: Option<Time>,
}

/// The result of offering a message to a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Enqueued {
    /// It is in the queue and active.
    Active,
    /// It is beyond the target depth: no state is kept. Offer it again when
    /// [`Queues::wanted`](super::Queues::wanted) asks for it.
    Inactive,
    /// It had been acknowledged before it became active.
    Acknowledged,
    /// Its position is not above the last one; nothing was done.
    Known,
}

/// A message that no subscription holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitingMessage {
    /// Its position in the log.
    pub position: Position,
    /// How often it was delivered.
    pub delivery_count: u32,
    /// How often it was cancelled.
    pub cancel_count: u32,
}

/// A message for a subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// The queue it comes from.
    pub queue: QueueId,
    /// The message.
    pub position: Position,
    /// The subscription that gets it.
    pub subscription: SubscriptionId,
    /// When the lease ends: `None` for a lease without end, for at-most-once, and for a barrier.
    pub lease_deadline: Option<Time>,
    /// How often the message was delivered, this time included; 0 for a barrier.
    pub delivery_count: u32,
    /// How often it was cancelled.
    pub cancel_count: u32,
    /// Whether it is a barrier: sent to all, not to be acknowledged.
    pub barrier: bool,
}

/// A change of state that must be written to the log so that it outlives a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// The queue.
    pub queue: QueueId,
    /// The message.
    pub position: Position,
    /// Its name on every instance. `None`: it is not known, because the message is not active, or
    /// the change comes from a record of version 1.
    pub bookmark: Option<Bookmark>,
    /// The kind of the change.
    pub kind: ChangeKind,
}

/// A change of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    /// Processed and removed.
    Acknowledged,
    /// Returned by a `cancel`, for the time with this number.
    Cancelled {
        /// All cancels of the message so far.
        cancels: u32,
    },
    /// Removed without having been processed.
    Expired {
        /// Why.
        reasons: Reasons,
        /// How often it was delivered.
        deliveries: u32,
        /// How often it was cancelled.
        cancels: u32,
    },
    /// Delivered from an at-most-once queue. The record must be durable before the first byte of
    /// the message is sent.
    Taken,
    /// A barrier, sent to every subscription that matches.
    Released,
    /// Given back by a holder that had not begun it: the delivery does not count.
    Returned {
        /// All deliveries of the message that count.
        deliveries: u32,
    },
    /// Cancelled with a delay: it is not delivered before this time. Follows
    /// [`Cancelled`](Self::Cancelled).
    Delayed {
        /// On the clock of [`Time`], which continues over a restart.
        until: Time,
    },
}

impl ChangeKind {
    /// Whether the message is no longer in its queue.
    pub fn removes(self) -> bool {
        !matches!(
            self,
            ChangeKind::Cancelled { .. } | ChangeKind::Returned { .. } | ChangeKind::Delayed { .. }
        )
    }
}

/// Why a message expired. Several reasons can apply at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reasons(u8);

impl Reasons {
    /// Its time was over.
    pub const TIME_LIMIT: Reasons = Reasons(1);
    /// Acknowledged with `expire`.
    pub const FORCED_EXPIRE: Reasons = Reasons(2);
    /// Cancelled more often than `max_cancels`.
    pub const MAX_CANCELS: Reasons = Reasons(4);
    /// Delivered `max_deliveries` times without success.
    pub const MAX_DELIVERIES: Reasons = Reasons(8);

    const NAMES: [(Reasons, &'static str); 4] = [
        (Reasons::TIME_LIMIT, "time_limit"),
        (Reasons::FORCED_EXPIRE, "forced_expire"),
        (Reasons::MAX_CANCELS, "max_cancels"),
        (Reasons::MAX_DELIVERIES, "max_deliveries"),
    ];

    /// Whether `reason` is among them.
    pub fn contains(self, reason: Reasons) -> bool {
        self.0 & reason.0 == reason.0
    }

    /// Whether a limit of the attempts is among them: no consumer could handle the message.
    pub fn is_limit(self) -> bool {
        self.contains(Reasons::MAX_CANCELS) || self.contains(Reasons::MAX_DELIVERIES)
    }

    /// The stable names.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        Self::NAMES.into_iter().filter(move |(reason, _)| self.contains(*reason)).map(|(_, name)| name)
    }

    /// The reasons as the journal holds them.
    pub(super) fn bits(self) -> u8 {
        self.0
    }

    /// From the journal; `None` for bits without a meaning.
    pub(super) fn from_bits(bits: u8) -> Option<Self> {
        (bits < 16).then_some(Reasons(bits))
    }

    pub(super) fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(super) fn add(&mut self, reason: Reasons, applies: bool) {
        self.0 |= if applies { reason.0 } else { 0 };
    }
}

impl BitOr for Reasons {
    type Output = Reasons;

    fn bitor(self, other: Reasons) -> Reasons {
        Reasons(self.0 | other.0)
    }
}

impl fmt::Display for Reasons {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.names().collect();
        f.write_str(&names.join(","))
    }
}

/// A lease that ended without its holder's doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LostLease {
    /// The queue.
    pub queue: QueueId,
    /// The message.
    pub position: Position,
    /// Its name on every instance. `None`: it has none.
    pub bookmark: Option<Bookmark>,
    /// The subscription that held it.
    pub subscription: SubscriptionId,
    /// Why it ended.
    pub cause: LostCause,
}

/// Why a lease ended without its holder's doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LostCause {
    /// Its period is over; the message waits again.
    Returned,
    /// Its period is over and the message has expired.
    Expired,
    /// Another connection settled the message.
    Settled,
}

/// An event between a message and a consumer, of a queue that records its leases (docs/queues.md
/// section 13).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseEvent {
    /// The queue.
    pub queue: QueueId,
    /// The message.
    pub position: Position,
    /// Its name on every instance. `None`: it is not known, because the message is not active.
    pub bookmark: Option<Bookmark>,
    /// The consumer's connection.
    pub connection: ConnectionId,
    /// The kind of the event.
    pub kind: LeaseEventKind,
}

/// How a lease begins and ends. The numbers are those of the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum LeaseEventKind {
    /// The consumer got the message. A message of an at-most-once queue does not return.
    Delivered = 2,
    /// Acknowledged by its holder.
    Acknowledged = 3,
    /// Cancelled by its holder.
    Cancelled = 4,
    /// Expired by its holder.
    Expired = 5,
    /// Its time was over.
    RanOut = 6,
    /// The holder disconnected or unsubscribed.
    Left = 7,
    /// Another consumer settled the message.
    Lost = 8,
    /// Acknowledged by a consumer that did not hold it.
    AcknowledgedUnheld = 9,
    /// Expired by a consumer that did not hold it.
    ExpiredUnheld = 10,
    /// Given back by its holder, which had not begun it.
    Released = 11,
}

impl LeaseEventKind {
    /// All of them.
    pub const ALL: [LeaseEventKind; 10] = [
        LeaseEventKind::Delivered,
        LeaseEventKind::Acknowledged,
        LeaseEventKind::Cancelled,
        LeaseEventKind::Expired,
        LeaseEventKind::RanOut,
        LeaseEventKind::Left,
        LeaseEventKind::Lost,
        LeaseEventKind::AcknowledgedUnheld,
        LeaseEventKind::ExpiredUnheld,
        LeaseEventKind::Released,
    ];

    /// The number in the journal.
    pub(super) fn number(self) -> u8 {
        self as u8
    }

    /// From the journal; `None` for a number without a meaning.
    pub(super) fn from_number(number: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| u64::from(kind.number()) == number)
    }
}

/// A message of a queue that is followed ([`Queues::follow`](super::Queues::follow)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// The queue.
    pub queue: QueueId,
    /// The message.
    pub position: Position,
    /// Its name on every instance. `None`: it has none.
    pub bookmark: Option<Bookmark>,
    /// The kind of the move.
    pub kind: MoveKind,
}

/// The kinds of moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoveKind {
    /// The message waits. Before, it was not in the queue, or was delayed.
    Entered,
    /// The message is gone, or is delayed. It may have been delayed before.
    Left,
    /// The reader has all messages of the queue. There is no message.
    Complete,
}

/// The options of a subscription.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubscriptionSpec {
    /// The connection it belongs to.
    pub connection: ConnectionId,
    /// `max_backlog`; 1 when it is not given.
    pub backlog: Option<u32>,
    /// The queues it matches, and the content filter for each.
    pub queues: Vec<(QueueId, Option<FilterId>)>,
}

/// Answers questions about the content of messages, which the engine never holds.
pub trait Matcher {
    /// Whether the message at `position` matches `filter`. Asked once for each message and filter
    /// that has subscriptions.
    fn matches(&mut self, position: Position, filter: FilterId) -> bool;

    /// Appends those of `filters` that match. Override it when an index over the filters is
    /// available.
    fn matching(&mut self, position: Position, filters: &[FilterId], matched: &mut Vec<FilterId>) {
        matched.extend(filters.iter().copied().filter(|filter| self.matches(position, *filter)));
    }

    /// Whether the message can be looked at now. Of one that cannot nothing is asked: its queue
    /// waits until [`Queues::retry`](super::Queues::retry), the others are served meanwhile.
    fn is_at_hand(&mut self, _position: Position) -> bool {
        true
    }
}

impl<F: FnMut(Position, FilterId) -> bool> Matcher for F {
    fn matches(&mut self, position: Position, filter: FilterId) -> bool {
        self(position, filter)
    }
}

/// The figures of a queue. The names of the serialized fields are those of docs/queues.md.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct QueueStats {
    /// Unacknowledged active messages: waiting, delayed and leased.
    #[serde(rename = "depth")]
    pub queue_depth: u64,
    /// Messages that are neither leased nor delayed.
    pub waiting: u64,
    /// Cancelled messages whose delay is not over.
    pub delayed: u64,
    /// Messages outstanding: delivered and not acknowledged.
    pub backlog: u64,
    /// The limit of `backlog`, if there is one.
    pub max_backlog: Option<u32>,
    /// Messages that this instance owns; all of them until queues are replicated.
    pub owned: u64,
    /// Subscriptions of the queue.
    pub subscriptions: u64,
    /// How long the oldest lease has been held, in nanoseconds.
    #[serde(rename = "age_of_oldest_lease_s", serialize_with = "seconds")]
    pub age_of_oldest_lease_ns: Option<u64>,
    /// How long ago the oldest unacknowledged message was received, in nanoseconds.
    #[serde(rename = "age_of_oldest_s", serialize_with = "seconds")]
    pub age_of_oldest_message_ns: Option<u64>,
    /// Leases that ran out (not cancels, not disconnects).
    pub expired_leases: u64,
    /// Messages beyond the target depth.
    #[serde(rename = "inactive")]
    pub inactive_message_count: u64,
    /// The target depth, if there is one.
    pub target_queue_depth: Option<u64>,
    /// Acknowledgements kept for messages that are not active yet.
    #[serde(rename = "deferred_acks")]
    pub deferred_ack_count: u64,
    /// Filters of subscriptions that were not evaluated for everything up to the first barrier.
    /// Their messages may be delivered later.
    pub catching_up: u64,
    /// Messages that ever entered.
    pub entered: u64,
    /// Deliveries, repeated ones included, barriers excluded.
    pub delivered: u64,
    /// Messages removed by an acknowledgement.
    pub acknowledged: u64,
    /// Cancels that returned a message.
    pub cancelled: u64,
    /// Messages expired.
    pub expired: u64,
    /// The same by their reasons.
    #[serde(flatten)]
    pub expired_by: ExpiredBy,
    /// Messages delivered at most once.
    pub taken: u64,
    /// Barriers released.
    pub released: u64,
}

/// Expired messages by their reasons. A message with several reasons counts for each of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ExpiredBy {
    /// Their time was over.
    #[serde(rename = "expired_time_limit")]
    pub time_limit: u64,
    /// Acknowledged with `expire`.
    #[serde(rename = "expired_forced_expire")]
    pub forced_expire: u64,
    /// Cancelled more often than `max_cancels`.
    #[serde(rename = "expired_max_cancels")]
    pub max_cancels: u64,
    /// Delivered `max_deliveries` times without success.
    #[serde(rename = "expired_max_deliveries")]
    pub max_deliveries: u64,
}

impl ExpiredBy {
    /// Counts a message.
    pub(super) fn note(&mut self, reasons: Reasons) {
        for (reason, count) in [
            (Reasons::TIME_LIMIT, &mut self.time_limit),
            (Reasons::FORCED_EXPIRE, &mut self.forced_expire),
            (Reasons::MAX_CANCELS, &mut self.max_cancels),
            (Reasons::MAX_DELIVERIES, &mut self.max_deliveries),
        ] {
            *count += u64::from(reasons.contains(reason));
        }
    }
}

/// A message in the hands of a subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldMessage {
    /// Its position in the log.
    pub position: Position,
    /// Its name on every instance; `None`: it has none, or it has left the queue already.
    pub bookmark: Option<Bookmark>,
    /// The subscription that holds it.
    pub subscription: SubscriptionId,
    /// When it was delivered.
    pub since: Time,
    /// When the lease ends; `None`: it does not.
    pub deadline: Option<Time>,
    /// How often it was delivered, this time included.
    pub delivery_count: u32,
    /// How often it was cancelled.
    pub cancel_count: u32,
}

fn seconds<S: Serializer>(ns: &Option<u64>, serializer: S) -> Result<S::Ok, S::Error> {
    ns.map(|ns| ns as f64 / 1e9).serialize(serializer)
}
