//! The append-only log on disk: the only code of quire that touches files.
//!
//! # What it promises
//! A record that [`Journal::persisted`] covers is on stable storage, in append order, and is found again after any crash. Everything
//! else (queues, replays, analytics) is a reader of it. `docs/journal-format.md` describes the files field by field.
//!
//! # How it works
//! [`Journal::append`] encodes a record into the open batch and gives it its [`Position`]; nothing is written yet. [`Journal::submit`]
//! hands the batches to one writer thread, which takes everything that waits, writes it in as few calls as it can and syncs once for
//! all of it (group commit): the next flush begins when the last one returned, so a lone record waits for nobody and a crowd shares one
//! sync. [`Reader`]s read the files into buffers of their own and never write.
//!
//! A failed write or sync poisons the journal: nothing after it is ever acknowledged, the sync is not retried (the kernel may have
//! dropped the pages), and reading goes on (reliability J4). A full disk stalls it: what was appended is kept, and written when there is
//! room.

mod atomic_file;
mod disk;
mod error;
mod format;
mod log;
mod maintenance;
mod paged;
mod publishers;
mod read;
mod record;
mod recover;
mod segment;
mod sidecar;
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
pub use read::plan::BlockRange;
pub use read::reader::{Place, Reader, SegmentInfo, SegmentState};
pub use read::verify::Damage;
pub use record::attributes::{
    Attributes, AttributesBuffer, Instance, InstancePath, InstancePathBuffer, NewAttributes, Origin, Source,
};
pub use record::deleted::{BadDeletedKeys, DeletedKeys, put_deleted_key};
pub use record::{NewRecord, Record, RecordKind};
pub use recover::{Cut, Progress, Recovery};
pub use sidecar::{FoundSidecar, SidecarHead, SidecarReader, Sidecars};
pub use write::journal::{Appended, Durability, Journal, Options};
