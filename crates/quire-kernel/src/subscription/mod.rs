//! Subscriptions: their conditions and their positions.

mod conflation;
mod delta;
mod range;

use std::sync::Arc;

pub use conflation::{Conflation, ConflationKey, DeltaChange, ViewChange};
pub use delta::{Delta, Replaced};
pub use range::{End, Range};

pub use crate::ids::SubscriptionId;
use quire_command::subscribe::Family;
use quire_journal::{Position, Timestamp};

use crate::codec::Encoder;
use crate::entitlement::TopicSelect;
use crate::session::SessionId;
use hashbrown::HashSet;
use quire_expression::filter::{Filter, MessageContext};
use quire_expression::message_type::Arena;
use quire_expression::topic::TopicSelector;
use rustc_hash::FxBuildHasher;
use slotmap::SecondaryMap;

/// Effort for the decision whether a record that left a view is still visible, as for the view.
const VISIBLE_EFFORT_MAX: u64 = 4_000_000;

/// One subscription of one connection. An idle one is this, its place in the audience of its topic,
/// and an entry in its session.
#[derive(Debug)]
pub struct Subscription {
    pub session: SessionId,
    /// The client's number for it.
    pub number: u32,
    /// The command that created the subscription.
    pub family: Family,
    pub wanted: Interest,
    /// The service that it belongs to.
    pub served_by: ServedBy,
    pub delivery: Delivery,
}

/// The conditions and options of the client. Clones share them.
#[derive(Clone, Debug)]
pub struct Interest {
    pub selector: TopicSelector,
    pub filter: Option<Filter>,
    /// The messages that its user may see, which `filter` includes; `None` = all.
    pub visible: Option<Filter>,
    /// The part of each message that is wanted; `None` = the whole.
    pub select: Option<TopicSelect>,
    /// Few subscriptions have bounds.
    pub bounds: Option<Arc<Bounds>>,
}

/// Bounds that a filter cannot express.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Bounds {
    /// The keys of records that are wanted; `None` = all.
    pub keys: Option<KeySet>,
    /// Only messages taken after this instant are wanted.
    pub taken_after: Option<Timestamp>,
    /// The subscription receives a message for each record that leaves its view.
    pub wants_oof: bool,
}

impl Bounds {
    /// To be shared; `None` when there is no bound.
    pub fn shared(self) -> Option<Arc<Self>> {
        (self != Bounds::default()).then(|| Arc::new(self))
    }

    /// Whether a message of the log is not wanted. Replays, the live tail and the publish stream
    /// ask this, so that the messages do not depend on which of them serves the subscription.
    fn leaves_out(&self, message: &MessageContext<'_>) -> bool {
        self.taken_after.is_some_and(|instant| message.timestamp <= instant)
    }
}

impl Interest {
    pub fn wants_oof(&self) -> bool {
        self.bounds.as_ref().is_some_and(|bounds| bounds.wants_oof)
    }

    /// Only messages taken after this instant are wanted.
    #[inline]
    pub fn taken_after(&self) -> Option<Timestamp> {
        self.bounds.as_ref().and_then(|bounds| bounds.taken_after)
    }

    /// Whether the bounds of a subscription to the log exclude a message. The message is only
    /// looked at when there are bounds.
    #[inline]
    pub fn leaves_out<'a>(&self, message: impl FnOnce() -> MessageContext<'a>) -> bool {
        self.bounds.as_ref().is_some_and(|bounds| bounds.leaves_out(&message()))
    }

    /// Whether the user may see a message. When the decision takes too much effort, the
    /// user may not.
    pub fn shows(&self, message: &MessageContext<'_>, arena: &mut Arena) -> bool {
        let Some(visible) = &self.visible else { return true };
        arena.allow(VISIBLE_EFFORT_MAX);
        visible.decide(message, arena) == Some(true)
    }

    /// Whether messages with this key are wanted.
    #[inline]
    pub fn wants_key(&self, key: &[u8]) -> bool {
        let keys = self.bounds.as_ref().and_then(|bounds| bounds.keys.as_ref());
        keys.is_none_or(|keys| keys.contains(key))
    }
}

/// The delivery of its messages to the connection.
#[derive(Debug, Default)]
pub struct Delivery {
    /// Messages that are held to be replaced by newer ones.
    pub conflation: Option<Box<Conflation>>,
    pub gate: Gate,
    /// The client has paused the subscription.
    pub is_paused: bool,
    /// The server has ended the subscription. It receives no further message, and will be removed.
    pub has_ended: bool,
}

/// The messages that a subscription has received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    pub message_count: u64,
    /// Bytes of their frames.
    pub size: u64,
}

impl Sent {
    /// Counts messages.
    #[inline]
    pub fn note(&mut self, message_count: u64, size: usize) {
        self.message_count += message_count;
        self.size += size as u64;
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServedBy {
    /// From the publish stream.
    Stream,
    /// From the log.
    Bookmark,
    /// From queues. With a pattern, also from the publish stream.
    Queue,
    /// From the publish stream, with the records of last-value topics in view. It may receive these
    /// records first.
    Sow,
    /// From last-value topics: a subscription to a page, and a conflated subscription that receives
    /// a message for each record that leaves its view.
    Table,
}

/// Whether messages of a subscription are sent to its connection. The gate is closed while its
/// service sends other messages first. The frames that it holds are then sent. The held frames of a
/// subscription with records in view count in `deferred_size` of the session.
#[derive(Debug, Default)]
pub struct Gate {
    held: Option<Box<Held>>,
}

/// A separate allocation, because few gates are closed.
#[derive(Debug)]
struct Held {
    frames: Vec<u8>,
}

impl Gate {
    /// A closed gate that holds these frames.
    pub fn closed(frames: Vec<u8>) -> Self {
        Gate { held: Some(Box::new(Held { frames })) }
    }

    pub fn is_open(&self) -> bool {
        self.held.is_none()
    }

    /// The bytes of the frames that it holds; `None` while it is open.
    pub fn held_size(&self) -> Option<usize> {
        self.held.as_ref().map(|held| held.frames.len())
    }

    /// The frames that it holds; `None` while it is open.
    #[inline]
    pub fn held(&mut self) -> Option<&mut Vec<u8>> {
        self.held.as_mut().map(|held| &mut held.frames)
    }

    /// Opens the gate. Returns the frames that it held; `None` when it was open.
    pub fn open(&mut self) -> Option<Vec<u8>> {
        self.held.take().map(|held| held.frames)
    }
}

/// Keys of records.
pub type KeySet = HashSet<Box<[u8]>, FxBuildHasher>;

/// The view of a subscription that has records of last-value topics in view.
#[derive(Debug)]
pub struct SowView {
    /// The subscription receives only the fields that a change of a record changes.
    pub delta: Option<Delta>,
    /// The time of its records. Records whose lifetime had ended are not included.
    pub begun: Begun,
}

/// The views of subscriptions. The service of last-value topics owns them, and lends them to the
/// service of the publish stream.
pub type SowViews = SecondaryMap<SubscriptionId, Box<SowView>>;

/// The instant at which a subscription with records begins.
#[derive(Clone, Copy, Debug)]
pub struct Begun {
    /// The time of the clock, which may be set back later.
    pub time: Timestamp,
    /// The last message of the log.
    pub recorded: Position,
    /// The last message that is not recorded. Its position is at least [`UNRECORDED_BEGIN`].
    pub unrecorded: Position,
}

/// Messages of topics that are not recorded have no position. Each message gets a number that is at
/// least this one, so that two messages never have the same number. The positions of the log are
/// below it.
pub const UNRECORDED_BEGIN: u64 = 1 << 62;

impl Begun {
    fn is_before(&self, position: Position) -> bool {
        let last = if position.get() < UNRECORDED_BEGIN { self.recorded } else { self.unrecorded };
        position > last
    }
}

impl SowView {
    /// Whether the subscription had the record with this position and this end of its lifetime.
    pub fn had(&self, position: Position, expires: Option<Timestamp>) -> bool {
        expires.is_none_or(|expires| expires > self.begun.time) || self.begun.is_before(position)
    }
}

impl Subscription {
    /// Whether a message about a record, or without a key, does not belong to the subscription. The
    /// table compares the keys for a page. While the page is turned, the messages are those of the
    /// former page, which can have other keys.
    pub fn leaves_out(&self, key: &[u8]) -> bool {
        let is_chosen = self.served_by == ServedBy::Table && !key.is_empty();
        !is_chosen && !self.wanted.wants_key(key)
    }
}

/// The properties of a subscription that a reader needs to serve it.
#[derive(Clone, Debug)]
pub struct Member {
    pub number: u32,
    /// Encodes the messages for the session of the subscription.
    pub encoder: Encoder,
    pub wanted: Interest,
    /// The subscription wants the records after this position.
    pub after: Position,
    pub wants_deletions: bool,
    pub conflation_key: Option<ConflationKey>,
}

/// The members of one replay, in the order in which they are served.
pub type Members = Arc<[Member]>;
