//! Topics: names and patterns, which of them are recorded, and the table of those in use.

mod pattern;
mod pattern_index;
mod recording;
mod table;

pub(crate) use pattern::check_name;
pub use pattern::{TopicError, TopicPattern, TopicSelector};
pub(crate) use recording::{Recording, RecordingRule};
pub(crate) use table::{QueueRoute, Stage, TopicId, TopicTable};
