//! The append-only log on disk. Below the driver, only this crate accesses files.
//!
//! # What it promises
//! A record that [`Journal::persisted`] covers is on stable storage, in append order, and is found
//! again after any crash. Everything else (queues, replays, analytics) is a reader of it.
//! `docs/journal-format.md` describes the files field by field.
//!
//! # How it works
//! [`Journal::append`] encodes a record into the open batch and gives it its [`Position`]. It
//! writes nothing yet. [`Journal::submit`] sends the batches to one writer thread. The thread takes
//! all waiting batches, writes them in as few calls as it can, and syncs once for all of them
//! (group commit). The next flush begins when the previous one has returned. So a single record
//! does not wait for others, and many records share one sync. [`Reader`]s read the files into their
//! own buffers and never write.
//!
//! A failed write or sync poisons the journal: no later record is acknowledged, and reading
//! continues. The sync is not retried, because the kernel may have dropped the pages. A full disk
//! stalls the journal: it keeps the appended records, and writes them when there is room.

mod atomic_file;
pub mod descriptor;
mod disk;
mod error;
mod format;
mod knowledge;
mod log;
mod maintenance;
mod paged;
mod publishers;
mod read;
mod record;
mod recover;
mod segment;
mod sidecar;
mod spill;
mod write;

pub use disk::{Disk, File, MemoryDisk, RealDisk};
pub use error::{JournalError, limit_reached};
pub use maintenance::files::{FileMaintenance, Which};
pub use paged::{Array, Block, Memory, PageFile};
pub use quire_types::{
    Action, Bookmark, BookmarkError, HeaderValue, Headers, HeadersBuffer, HeadersError, Position,
    PublisherId, Timestamp, TimestampError,
};
pub use read::cursor::{AllTopics, Batch, Cursor, Records, TopicFilter};
pub use read::digest::{MessageRun, PublisherDigest, SequenceRange};
pub use read::plan::{BlockContent, BlockRange};
pub use read::reader::{Reader, RecordPlace, SegmentInfo, SegmentState};
pub use read::verify::Damage;
pub use record::attributes::{
    Attributes, AttributesBuffer, Instance, InstancePath, InstancePathBuffer, NewAttributes, Origin, Source,
};
pub use record::deleted::{DeletedKeys, put_deleted_key};
pub use record::{NewRecord, Record, RecordKind};
pub use recover::{Cut, Recovery, RecoveryProgress};
pub use segment::sums::RangeSum;
pub use sidecar::{FoundSidecar, SidecarHead, SidecarReader, Sidecars};
pub use spill::{SpillDirectory, Spilled};
pub use write::journal::{Appended, Durability, Held, Journal, Options, Sizes};
pub use write::syncs::{SYNC_BOUNDS_US, Syncs};
