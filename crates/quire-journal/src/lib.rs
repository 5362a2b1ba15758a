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

mod archive_place;
mod beginning;
mod cursor;
mod directory;
mod disk;
mod error;
mod format;
mod index;
mod index_file;
mod journal;
mod keeper;
mod log;
mod memory;
mod open_files;
mod packed;
mod pins;
mod plan;
mod prepare;
mod publishers;
mod queue_points;
mod queue_states;
mod reader;
mod record;
mod recover;
mod segment;
mod spares;
mod timestamp;
mod upkeep;
mod verify;
mod view;
mod whole_file;
mod writer;

pub use cursor::{AllTopics, Batch, Cursor, Records, TopicFilter};
pub use disk::{Disk, File, MemoryDisk, RealDisk};
pub use error::{JournalError, limit_reached};
pub use journal::{Appended, Durability, Journal, Options};
pub use memory::{Array, Block, Memory, PageFile};
pub use plan::Stretch;
pub use queue_points::{QueuePoint, QueuePoints};
pub use queue_states::{KeptState, QueueStates};
pub use reader::{Place, Reader, SegmentInfo, SegmentState};
pub use record::{Bookmark, BookmarkError, NewRecord, Position, PublisherId, Record, RecordKind};
pub use recover::{Cut, Progress, Recovery};
pub use timestamp::{Timestamp, TimestampError};
pub use upkeep::{Action, Upkeep, Which};
pub use verify::Damage;
