//! The kinds of topics.

use super::recording::Recording;
use crate::ids::TableId;

/// The kind of a topic. It decides which way the messages of the topic take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TopicKind {
    /// The log records its messages by its rules, and its subscriptions get them.
    Plain,
    /// A queue has the name. A message that is published to it goes to the target of the queue. A
    /// subscription without a bookmark never subscribes to the topic itself.
    Queue,
    /// It keeps last values, in this table. `None`: by the pattern of its container, and its next
    /// message gives it a table.
    Table(Option<TableId>),
}

impl TopicKind {
    /// Whether messages that ask for nothing special are taken without a check. The topic is
    /// configured, validates nothing and keeps no last values then.
    pub(super) fn takes_plain(self, recording: &Recording) -> bool {
        match self {
            TopicKind::Plain | TopicKind::Queue => recording.is_configured() && !recording.validates(),
            TopicKind::Table(_) => false,
        }
    }
}
