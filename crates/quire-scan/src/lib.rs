//! Ranges of the log: where one begins, which of its records are wanted, and reading it with
//! nothing but the files.

mod record;
mod scan;
mod start;

pub use record::{context_of, message_of};
pub use scan::{LogRange, SCAN_SIZE_MAX, Scan, ScanError, bounds};
pub use start::{BOOKMARKS_MAX, BookmarkError, Start, StartPoint};
