//! The subscriptions of a queue that share a filter, and the messages that match it.

use super::id::FilterId;
use super::members::Members;
use super::messages::{Key, MessageState, Messages, ordinal_of};
use super::ordinal_set::OrdinalSet;
use super::ranked_set::RankedSet;

/// A set of matches is swept when it holds more than twice the messages of the queue and this many.
const SLACK: u64 = 1024;

#[derive(Debug)]
pub(super) struct Class {
    /// `None`: everything matches.
    pub filter: Option<FilterId>,
    /// Distinguishes this class from earlier ones in the same slot.
    pub generation: u32,
    pub members: Members,
    pub matches: Matches,
    /// The ordinal up to which messages have been asked about.
    pub scanned: u64,
    /// Under which key it is among the ready classes.
    pub ready: Option<Key>,
}

/// The messages that match and were evaluated. They can include messages that left the queue or
/// were leased through another class: such a message is dropped when it is first in the list.
#[derive(Debug)]
pub(super) enum Matches {
    /// Everything that waits; nothing is kept.
    All,
    /// In log order.
    Fifo(OrdinalSet),
    /// In the order of priority.
    Ranked(RankedSet),
}

impl Matches {
    pub fn first(&self) -> Option<Key> {
        match self {
            Matches::All => None,
            Matches::Fifo(set) => set.first().map(|ordinal| (0, ordinal)),
            Matches::Ranked(set) => set.first(),
        }
    }

    pub fn insert(&mut self, key: Key, messages: &Messages) {
        let len = match self {
            Matches::All => return,
            Matches::Fifo(set) => {
                set.insert(key.1);
                set.len()
            }
            Matches::Ranked(set) => {
                set.insert(key);
                set.len()
            }
        };
        if len > 2 * messages.present() + SLACK {
            self.sweep(messages);
        }
    }

    pub fn remove(&mut self, key: Key) {
        match self {
            Matches::All => {}
            Matches::Fifo(set) => set.remove(key.1),
            Matches::Ranked(set) => set.remove(key),
        }
    }

    fn sweep(&mut self, messages: &Messages) {
        let is_present = |ordinal: u64| messages.state(ordinal) != MessageState::Gone;
        match self {
            Matches::All => {}
            Matches::Fifo(set) => set.retain(is_present),
            Matches::Ranked(set) => set.retain(|key| is_present(ordinal_of(key))),
        }
    }
}
