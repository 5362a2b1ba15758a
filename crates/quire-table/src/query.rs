//! Queries, and what a portion of one gives.

use crate::history::AsOf;
use crate::order::Order;
use quire_expression::filter::Filter;

/// Which rows a scan gives, and in which order.
#[derive(Clone, Debug, Default)]
pub struct Query {
    /// Only rows that it matches. `BOOKMARK()` is NULL, and `SOW_KEY()` is the key.
    pub filter: Option<Filter>,
    /// Only rows with these keys.
    pub keys: Option<Vec<Box<[u8]>>>,
    /// The state at an earlier instant, as [`Table::as_of`](crate::Table::as_of) gives it; `None` =
    /// the current state.
    pub as_of: Option<AsOf>,
    /// The order of the result; without one the order is undefined.
    pub order: Option<Order>,
    /// Leaves out this many rows at the beginning of the result.
    pub skip_n: u64,
    /// At most this many rows, after those that are left out.
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
        /// Rows that matched, before any were left out by `skip_n` and `top_n`.
        matched: u64,
    },
    /// The scan ended without its whole result: it had to hold more than
    /// [`Query::copies_size_max`].
    TooManyCopies,
    /// The scan ended without its whole result: the history that it needed was dropped, because it
    /// had too many bytes.
    TooMuchHistory,
    /// The scan ended without its whole result: the filter took too much effort for one row.
    TooMuchEffort,
}
