//! Ranges of the log: where one begins, which of its records are wanted, and reading it without a
//! broker. Records as filters and clients see them.

mod read;
mod record;
mod start;

pub use read::{LogRange, SCAN_SIZE_MAX, Scan, ScanError, bounds};
pub use record::{context_of, message_of};
pub use start::{BOOKMARKS_MAX, BookmarkError, Start, StartPoint};
