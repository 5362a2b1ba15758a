//! How far a bookmark subscription has come.

use quire_command::subscribe::Delivery;
use quire_journal::Position;

use crate::replay::{Pace, ReplayId};
use crate::subscription::End;

/// How far a bookmark subscription has come.
#[derive(Debug)]
pub(crate) struct LogProgress {
    /// Records up to here are not wanted, or were delivered. Exact while it is detached. A replay
    /// keeps its own place, and the live tail does not advance it for records that do not match.
    pub(crate) after: Position,
    /// The options of its command, as far as they have an effect: `is_live` not with conflation,
    /// and `is_fully_durable` not without sync destinations. It may have been paused or resumed
    /// since then.
    pub(crate) delivery: Delivery,
    /// It asked for resume positions.
    pub(crate) wants_resume_positions: bool,
    /// The acknowledgement that is owed when `after` reaches a position.
    pub(crate) completed: Option<PendingCompletion>,
    pub(crate) stage: Source,
    /// It gets the state of its last-value topic at the bookmark first.
    pub(crate) awaits_records: bool,
    /// How fast it may go, while no replay does that for it.
    pub(crate) pace: Option<Box<Pace>>,
    /// Where it ends.
    pub(crate) until: Option<EndPosition>,
}

/// The end of a bookmark subscription.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum EndPosition {
    /// The last position that is wanted.
    At(Position),
    /// Not in the log yet: the pass over what is persisted looks for it.
    Awaited(Box<End>),
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
    /// `live`, not yet in step. What is published from here on is held back until the tail has
    /// passed `switch_at`, the last record that comes from the log.
    SwitchingToLive { switch_at: Position },
    /// `live` and in step: from the publish stream.
    Live,
}

impl LogProgress {
    /// The next positions at which something has to be done: a `completed` is owed, or the
    /// subscription ends.
    pub(crate) fn awaited_positions(&self) -> impl Iterator<Item = Position> {
        let end = match &self.until {
            Some(EndPosition::At(position)) => Some(*position),
            _ => None,
        };
        self.completed.map(|completion| completion.goal).into_iter().chain(end)
    }
}
