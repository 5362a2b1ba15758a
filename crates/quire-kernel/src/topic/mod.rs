//! Topics: names and patterns, the rules for recording, and the table of the topics in use.

mod kind;
mod pattern_index;
mod recording;
mod table;

pub use kind::TopicKind;
pub use pattern_index::PatternIndex;
pub use recording::{Recording, RecordingRule};
pub use table::{
    ContainerId, ContainerRoute, Incoming, QueueRoute, Stage, TableId, TableRoutes, TopicId, TopicTable,
};
