//! The kinds of topics.

use super::recording::Recording;
use crate::ids::TableId;

/// The kind of a topic. It decides how the messages of the topic are processed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TopicKind {
    /// The log records the messages by its rules, and the subscriptions receive them.
    Plain,
    /// A queue has the name. A message that is published to it is published to the target of the
    /// queue. A subscription without a bookmark never subscribes to the topic itself.
    Queue,
    /// The topic keeps last values in this table. `None`: it matches the pattern of a container,
    /// and its next message creates the table.
    Table(Option<TableId>),
    /// The server computes the last values in this table. Nothing else is published to the topic.
    Computed(TableId),
}

impl TopicKind {
    /// Whether messages without special options are accepted without a check. The topic is then
    /// configured, has no validation and keeps no last values.
    pub(super) fn takes_plain(self, recording: &Recording) -> bool {
        match self {
            TopicKind::Plain | TopicKind::Queue => recording.is_configured() && !recording.validates(),
            TopicKind::Table(_) | TopicKind::Computed(_) => false,
        }
    }
}
