//! Queries, and the results of a portion of one.

use crate::history::AsOf;
use crate::order::Order;
use quire_expression::filter::Filter;

/// The rows that a scan returns, and their order.
#[derive(Clone, Debug, Default)]
pub struct Query {
    /// Only rows that it matches. `BOOKMARK()` is NULL, and `SOW_KEY()` is the key.
    pub filter: Option<Filter>,
    /// Only rows with these keys.
    pub keys: Option<Vec<Box<[u8]>>>,
    /// The state at an earlier instant, from [`Table::as_of`](crate::Table::as_of); `None` = the
    /// current state.
    pub as_of: Option<AsOf>,
    /// The order of the result; without one the order is undefined.
    pub order: Option<Order>,
    /// Skips this many rows at the beginning of the result.
    pub skip_n: u64,
    /// At most this many rows, after the skipped ones.
    pub top_n: Option<u64>,
    /// The most bytes of copies of rows, and of values to sort by, that the scan may hold. A scan
    /// that needs more ends with [`Polled::TooManyCopies`].
    pub copies_size_max: usize,
}

/// The key of an open scan. It is never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ScanId(pub(crate) u64);

/// The state of a scan after a portion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Polled {
    /// There may be more rows.
    More,
    /// The result is complete.
    Done {
        /// The number of matching rows, including those that `skip_n` and `top_n` leave out.
        matched: u64,
    },
    /// The scan ended without its whole result: it had to hold more than
    /// [`Query::copies_size_max`].
    TooManyCopies,
    /// The scan ended without its whole result: the history had too many bytes, and the part that
    /// the scan needed was dropped.
    TooMuchHistory,
    /// The scan ended without its whole result: the filter took too much effort for one row.
    TooMuchEffort,
}
