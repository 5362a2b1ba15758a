//! The values that every part of quire uses: positions and bookmarks, headers, times, verdicts on
//! messages, actions on journal files.
//!
//! This crate imports no other crate of quire, so that the journal, the wire protocol and the
//! engines can use the same values without importing each other.

mod bookmark;
mod delay;
mod headers;
mod maintenance;
mod secret;
pub mod time;
mod timestamp;
mod topic;
mod verdict;

pub use bookmark::{Bookmark, BookmarkError, Position, PublisherId};
pub use delay::{DELAY_MAX_NS, Delay};
pub use headers::{
    HEADER_NAME_SIZE_MAX, HEADERS_MAX, HEADERS_SIZE_MAX, HeaderValue, Headers, HeadersBuffer, HeadersError,
};
pub use maintenance::{Action, Files};
pub use secret::Secret;
pub use timestamp::{Timestamp, TimestampError};
pub use topic::{TOPIC_SIZE_MAX, TopicNameError, check_topic_name};
pub use verdict::Verdict;
