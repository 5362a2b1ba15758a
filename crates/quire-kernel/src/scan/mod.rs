//! Ranges of the log: the start of a range, the conditions for its records, and reads without a
//! broker. This module also converts records to the form that filters and clients see.

mod read;
mod record;
mod start;

pub use read::{LogRange, SCAN_SIZE_MAX, Scan, ScanError, bounds};
pub use record::{context_of, facts_of, message_of};
pub use start::{BOOKMARKS_MAX, BookmarkError, Start, StartPoint};
