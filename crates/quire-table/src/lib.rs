//! The engine of last-value topics: the newest row of each key, queries of one instant, and
//! snapshots.
//!
//! # What it promises
//! [`Table`] keeps the newest row of each key. The result of a scan is the state at the moment at
//! which it was opened. Later changes do not change it. Equal calls return equal results in equal
//! order: there is no randomness, and time is an argument.
//!
//! # What a caller must do
//! The caller finds the key of a message ([`KeyRule`]), records the message in the log, and then
//! puts it into the table. It removes rows whose lifetime ended ([`Table::pop_expired`]) at about
//! [`Table::next_expiry`]. It polls every open scan until the scan ends, and closes it. It calls
//! [`Table::build_index`] while [`Table::is_building_index`].
//!
//! A caller whose changes come from several instances calls [`Table::keep_order`]. It then asks
//! [`Table::admits`] before each change, and gives the [`KeyChange`].
//!
//! # How it works
//! `docs/internals/last-value-engine.md` describes the layout in memory, and how scans see one
//! instant.

mod aggregation;
mod error;
mod fields;
mod groups;
mod history;
mod index;
mod join;
mod key;
mod key_index;
mod order;
mod prefetch;
mod query;
mod restore;
mod result_page;
mod row;
mod row_pages;
mod rows;
mod saving;
mod scan;
mod slots;
mod snapshot;
mod stamp;
mod table;

pub use aggregation::{Aggregation, AggregationError, GroupRow};
pub use error::{KeyError, RowError, TableConfigError};
pub use groups::{GroupId, GroupWalk, Groups, GroupsConfig, PARTS, RowChange, Written};
pub use history::{AsOf, BeforeHistory, HistoryConfig, KnownHistory, Moment};
pub use index::{EntryReader, INDEXES_MAX, MADE_INDEXES_MAX, RowEntries, Spelling};
pub use join::{IndexFigures, JoinConfig, JoinKeys, Joins, SourceFigures};
pub use key::{KEY_SIZE_MAX, Key, KeyFields, KeyRule, check_supplied_key};
pub use order::{ORDER_FIELDS_MAX, Order, SortKey};
pub use query::{Polled, Query, ScanId};
pub use restore::{RowReader, SnapshotBlocks, SnapshotPiece};
pub use result_page::{Move, MoveKind, PageId, PageQuery, Shown};
pub use row::Row;
pub use slots::IndexLimits;
pub use snapshot::{
    BadSnapshot, ORDERED_VERSION, SNAPSHOT_VERSION, SnapshotHead, SnapshotOwner, SnapshotReader,
    SnapshotState, SnapshotWriter, TOGETHER_VERSION, snapshot_file,
};
pub use stamp::{KeyChange, KnownChange, KnownOrder, RowStamp, Stamp};
pub use table::{KeyPlace, PutOptions, Table, TableConfig, TableStats};
