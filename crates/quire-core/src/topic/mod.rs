//! Topics: names and patterns, which of them are recorded, and the table of those in use.

mod pattern;
mod recording;
mod table;

pub(crate) use pattern::{TopicError, TopicSelector, check_name};
pub(crate) use recording::RecordingRule;
pub(crate) use table::{Stage, TopicId, TopicTable};
