//! The progress of a bookmark subscription.

use quire_command::subscribe::Delivery;
use quire_journal::Position;

use crate::replay::{Pace, ReplayId};
use crate::subscription::End;

/// The progress of a bookmark subscription.
#[derive(Debug)]
pub(crate) struct LogProgress {
    /// Records up to this position are not wanted, or were delivered. It is exact while the
    /// subscription is detached. A replay has its own place, and the live tail does not advance
    /// this position for records that do not match.
    pub(crate) after: Position,
    /// The options of its command that have an effect. `is_live` has no effect with conflation, and
    /// `is_fully_durable` has none without sync destinations. It may have been paused or resumed
    /// since then.
    pub(crate) delivery: Delivery,
    /// The subscription requested resume positions.
    pub(crate) wants_resume_positions: bool,
    /// It also takes places.
    pub(crate) takes_places: bool,
    /// The acknowledgement that is sent when `after` reaches a position.
    pub(crate) completed: Option<PendingCompletion>,
    pub(crate) stage: Source,
    /// The subscription first receives the state of its last-value topic at the bookmark.
    pub(crate) awaits_records: bool,
    /// The pace of the subscription, while no replay has it.
    pub(crate) pace: Option<Box<Pace>>,
    /// Where it ends.
    pub(crate) until: Option<EndPosition>,
}

/// The end of a bookmark subscription.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum EndPosition {
    /// The last position of the range.
    At(Position),
    /// The end is not in the log yet. The pass over persisted records searches for it.
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

/// The current source of the messages of a bookmark subscription.
#[derive(Debug)]
pub(crate) enum Source {
    /// No source: the subscription is paused, or between two other sources.
    Detached,
    /// From a separate replay, or from one that it shares.
    Replaying(ReplayId),
    /// From the tail over newly persisted records.
    Tailing,
    /// `live`, not synchronized yet. Messages that are published from now on are held until the
    /// tail has passed `switch_at`, the last record that the log delivers.
    SwitchingToLive { switch_at: Position },
    /// `live` and synchronized: from the publish stream.
    Live,
}

impl LogProgress {
    /// The next goals: positions at which a `completed` is sent, or the subscription ends.
    pub(crate) fn awaited_positions(&self) -> impl Iterator<Item = Position> {
        let end = match &self.until {
            Some(EndPosition::At(position)) => Some(*position),
            _ => None,
        };
        self.completed.map(|completion| completion.goal).into_iter().chain(end)
    }
}
