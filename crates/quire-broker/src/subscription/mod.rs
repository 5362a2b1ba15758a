//! Subscriptions: what is wanted, and how far each has come.

mod conflation;
mod range;

use std::sync::Arc;

pub(crate) use conflation::{Conflation, ConflationKey};
pub(crate) use range::{End, Range};

pub(crate) use crate::ids::SubscriptionId;
use quire_expression::select::Select;
use quire_journal::{Position, Timestamp};

use crate::QueueSubscription;
use crate::codec::Encoder;
use crate::replay::{Pace, ReplayId};
use crate::session::SessionId;
use quire_expression::filter::Filter;
use quire_expression::topic::TopicSelector;

/// One subscription of one connection. An idle one is this, its place in the audience of its topic, and an entry in its session.
#[derive(Debug)]
pub(crate) struct Subscription {
    pub(crate) session: SessionId,
    /// The client's number for it.
    pub(crate) number: u32,
    pub(crate) selector: TopicSelector,
    pub(crate) filter: Option<Filter>,
    /// How it is served.
    pub(crate) served_by: ServedBy,
    /// What is held to be replaced by what is newer.
    pub(crate) conflation: Option<Box<Conflation>>,
    /// The part of each message that is wanted; `None` = the whole.
    pub(crate) select: Option<Select>,
    /// The server has ended it. It gets no further message and is about to be removed.
    pub(crate) has_ended: bool,
}

#[derive(Debug)]
pub(crate) enum ServedBy {
    /// From the publish stream.
    Ordinary,
    /// From the log.
    Bookmark(Box<Progress>),
    /// From queues, and for a pattern from the publish stream.
    Queue(Box<QueueSubscription>),
}

/// How far a bookmark subscription has come.
#[derive(Debug)]
pub(crate) struct Progress {
    /// Records up to here are not wanted, or were delivered. Exact except at the live tail, where records that do not match do not advance
    /// it.
    pub(crate) after: Position,
    /// Only messages taken after this instant are wanted.
    pub(crate) taken_after: Option<Timestamp>,
    /// Serve before persisting once the replay has caught up.
    pub(crate) live: bool,
    /// It asked for resume positions.
    pub(crate) wants_resume_positions: bool,
    /// The acknowledgement that is owed when `after` reaches a position.
    pub(crate) completed: Option<PendingCompletion>,
    pub(crate) stage: Source,
    /// The client paused it.
    pub(crate) is_paused: bool,
    /// How fast it may go, while no replay does that for it.
    pub(crate) pace: Option<Box<Pace>>,
    /// Where it ends.
    pub(crate) until: Option<EndPosition>,
}

/// The end of a bookmark subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EndPosition {
    /// The last position that is wanted.
    At(Position),
    /// Not in the log yet: the pass over what is persisted looks for it.
    Awaited(End),
}

/// A `completed` acknowledgement not yet sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PendingCompletion {
    /// The command to acknowledge.
    pub(crate) command: u32,
    /// The end of the log when the command was received.
    pub(crate) goal: Position,
}

/// Where the messages of a bookmark subscription come from at present.
#[derive(Debug)]
pub(crate) enum Source {
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
pub(crate) struct SwitchingToLive {
    /// The last record that comes from the log.
    pub(crate) switch_at: Position,
    /// The frames held back.
    pub(crate) buffered: Vec<u8>,
}

impl Progress {
    /// The next positions at which something has to be done: a `completed` is owed, or the subscription ends.
    pub(crate) fn awaited_positions(&self) -> impl Iterator<Item = Position> {
        let end = match self.until {
            Some(EndPosition::At(position)) => Some(position),
            _ => None,
        };
        self.completed.map(|completion| completion.goal).into_iter().chain(end)
    }
}

impl Subscription {
    pub(crate) fn progress(&self) -> Option<&Progress> {
        match &self.served_by {
            ServedBy::Ordinary | ServedBy::Queue(_) => None,
            ServedBy::Bookmark(progress) => Some(progress),
        }
    }

    pub(crate) fn progress_mut(&mut self) -> Option<&mut Progress> {
        match &mut self.served_by {
            ServedBy::Ordinary | ServedBy::Queue(_) => None,
            ServedBy::Bookmark(progress) => Some(progress),
        }
    }
}

/// The properties of a subscription that a reader needs to serve it.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    pub(crate) number: u32,
    /// Encodes the messages for the session of the subscription.
    pub(crate) encoder: Encoder,
    pub(crate) selector: TopicSelector,
    pub(crate) filter: Option<Filter>,
    pub(crate) taken_after: Option<Timestamp>,
    pub(crate) conflation_key: Option<ConflationKey>,
    pub(crate) select: Option<Select>,
}

/// The members of one replay, in the order in which they are served.
pub(crate) type Members = Arc<[Member]>;
