//! Subscriptions: what is wanted, and how far each has come.

mod conflation;
mod delta;
mod range;

use std::sync::Arc;

pub use conflation::{Conflation, ConflationKey, ViewChange};
pub use delta::{Delta, Replaced};
pub use range::{End, Range};

pub use crate::ids::SubscriptionId;
use quire_command::subscribe::Family;
use quire_expression::select::Select;
use quire_journal::{Position, Timestamp};

use crate::codec::Encoder;
use crate::replay::{Pace, ReplayId};
use crate::session::SessionId;
use hashbrown::HashSet;
use quire_expression::filter::Filter;
use quire_expression::topic::TopicSelector;
use rustc_hash::FxBuildHasher;

/// One subscription of one connection. An idle one is this, its place in the audience of its topic, and an entry in its session.
#[derive(Debug)]
pub struct Subscription {
    pub session: SessionId,
    /// The client's number for it.
    pub number: u32,
    pub selector: TopicSelector,
    pub filter: Option<Filter>,
    /// How it is served.
    pub served_by: ServedBy,
    /// What is held to be replaced by what is newer.
    pub conflation: Option<Box<Conflation>>,
    /// The part of each message that is wanted; `None` = the whole.
    pub select: Option<Select>,
    /// With which it was made.
    pub family: Family,
    /// The server has ended it. It gets no further message and is about to be removed.
    pub has_ended: bool,
}

#[derive(Debug)]
pub enum ServedBy {
    /// From the publish stream.
    Ordinary,
    /// From the log.
    Bookmark(Box<Progress>),
    /// From queues, and for a pattern from the publish stream.
    Queue,
    /// From the publish stream, in view of the records of last-value topics. It may get these records first.
    Sow(Box<SowSubscription>),
}

/// Keys of records.
pub type KeySet = HashSet<Box<[u8]>, FxBuildHasher>;

/// A subscription that has records of last-value topics in view.
#[derive(Debug)]
pub struct SowSubscription {
    /// The keys that are wanted; `None` = all.
    pub keys: Option<KeySet>,
    /// It gets a message for each record that leaves its view.
    pub wants_oof: bool,
    /// It gets changes of records from the tables, and not from the publish stream: a page, and a conflated one with `oof`.
    pub is_follower: bool,
    /// It gets only the fields that a change of a record changes.
    pub delta: Option<Delta>,
    /// The frames that are held back until the records have been sent; `None` from then on. They count in `deferred_size` of the session.
    pub held: Option<Vec<u8>>,
    /// The time of its records: those whose lifetime had ended are not among them.
    pub begun: Begun,
}

/// The instant at which a subscription with records begins.
#[derive(Clone, Copy, Debug)]
pub struct Begun {
    /// By the clock, which may be set back later.
    pub time: Timestamp,
    /// The last message of the log.
    pub recorded: Position,
    /// The last message that is not in the log. Its position is at least [`UNRECORDED_BEGIN`].
    pub unrecorded: Position,
}

/// Messages of topics that are not recorded have no position. Each gets a number from here on, so that two messages never have the same
/// one. The positions of the log end below it.
pub const UNRECORDED_BEGIN: u64 = 1 << 62;

impl Begun {
    fn is_before(&self, position: Position) -> bool {
        let last = if position.get() < UNRECORDED_BEGIN { self.recorded } else { self.unrecorded };
        position > last
    }
}

impl SowSubscription {
    /// Whether it had the record at this position, which has this end of its lifetime.
    pub fn had(&self, position: Position, expires: Option<Timestamp>) -> bool {
        expires.is_none_or(|expires| expires > self.begun.time) || self.begun.is_before(position)
    }

    /// Whether a message about a record, or without a key, does not belong to it. The table compares the keys for a page. While the page
    /// is turned, the messages are those of the former page, which can have other keys.
    pub fn leaves_out(&self, key: &[u8]) -> bool {
        let is_chosen = self.is_follower && !key.is_empty();
        !is_chosen && !self.wants_key(key)
    }

    /// Whether it wants messages with this key.
    pub fn wants_key(&self, key: &[u8]) -> bool {
        self.keys.as_ref().is_none_or(|keys| keys.contains(key))
    }
}

/// How far a bookmark subscription has come.
#[derive(Debug)]
pub struct Progress {
    /// Records up to here are not wanted, or were delivered. Exact while it is detached. A replay keeps its own place, and the live tail
    /// does not advance it for records that do not match.
    pub after: Position,
    /// Only messages taken after this instant are wanted.
    pub taken_after: Option<Timestamp>,
    /// Serve before persisting once the replay has caught up.
    pub live: bool,
    /// Serve after the sync destinations have persisted, too. Such a subscription never follows the live tail.
    pub is_durable: bool,
    /// It gets the deletes of the log, too. Not with `live`.
    pub wants_deletions: bool,
    /// It asked for resume positions.
    pub wants_resume_positions: bool,
    /// The acknowledgement that is owed when `after` reaches a position.
    pub completed: Option<PendingCompletion>,
    pub stage: Source,
    /// The client paused it.
    pub is_paused: bool,
    /// It gets the state of its last-value topic at the bookmark first.
    pub awaits_records: bool,
    /// How fast it may go, while no replay does that for it.
    pub pace: Option<Box<Pace>>,
    /// Where it ends.
    pub until: Option<EndPosition>,
}

/// The end of a bookmark subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndPosition {
    /// The last position that is wanted.
    At(Position),
    /// Not in the log yet: the pass over what is persisted looks for it.
    Awaited(End),
}

/// A `completed` acknowledgement not yet sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PendingCompletion {
    /// The command to acknowledge.
    pub command: u32,
    /// The end of the log when the command was received.
    pub goal: Position,
}

/// Where the messages of a bookmark subscription come from at present.
#[derive(Debug)]
pub enum Source {
    /// From nowhere: it is paused, or between two of the others.
    Detached,
    /// From a separate replay, or from one that it shares.
    Replaying(ReplayId),
    /// From the tail over newly persisted records.
    Tailing,
    /// `live`, not yet in step. Boxed: few subscriptions are ever here, and all pay for the largest variant.
    SwitchingToLive(Box<SwitchingToLive>),
    /// `live` and in step: from the publish stream.
    Live,
}

/// What is published from here on is held back until the tail has passed `join`.
#[derive(Debug)]
pub struct SwitchingToLive {
    /// The last record that comes from the log.
    pub switch_at: Position,
    /// The frames held back.
    pub buffered: Vec<u8>,
}

impl Progress {
    /// The next positions at which something has to be done: a `completed` is owed, or the subscription ends.
    pub fn awaited_positions(&self) -> impl Iterator<Item = Position> {
        let end = match self.until {
            Some(EndPosition::At(position)) => Some(position),
            _ => None,
        };
        self.completed.map(|completion| completion.goal).into_iter().chain(end)
    }
}

impl Subscription {
    /// Whether it gets the changes of records from the tables.
    pub fn is_follower(&self) -> bool {
        matches!(&self.served_by, ServedBy::Sow(sow) if sow.is_follower)
    }

    /// The frames that are held back until its records have been sent.
    pub fn held_back(&mut self) -> Option<&mut Vec<u8>> {
        match &mut self.served_by {
            ServedBy::Sow(sow) => sow.held.as_mut(),
            _ => None,
        }
    }

    /// Whether it wants messages with this key.
    pub fn wants_key(&self, key: &[u8]) -> bool {
        match &self.served_by {
            ServedBy::Sow(sow) => sow.wants_key(key),
            _ => true,
        }
    }

    pub fn progress(&self) -> Option<&Progress> {
        match &self.served_by {
            ServedBy::Ordinary | ServedBy::Queue | ServedBy::Sow(_) => None,
            ServedBy::Bookmark(progress) => Some(progress),
        }
    }

    pub fn progress_mut(&mut self) -> Option<&mut Progress> {
        match &mut self.served_by {
            ServedBy::Ordinary | ServedBy::Queue | ServedBy::Sow(_) => None,
            ServedBy::Bookmark(progress) => Some(progress),
        }
    }
}

/// The properties of a subscription that a reader needs to serve it.
#[derive(Clone, Debug)]
pub struct Member {
    pub number: u32,
    /// Encodes the messages for the session of the subscription.
    pub encoder: Encoder,
    pub selector: TopicSelector,
    pub filter: Option<Filter>,
    /// It wants the records after this one.
    pub after: Position,
    pub taken_after: Option<Timestamp>,
    pub wants_deletions: bool,
    pub conflation_key: Option<ConflationKey>,
    pub select: Option<Select>,
}

/// The members of one replay, in the order in which they are served.
pub type Members = Arc<[Member]>;
