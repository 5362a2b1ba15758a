//! The wire protocol: what client and server say to each other, as bytes and as values.
//!
//! The contract is `docs/protocol.md`; both sides of it are encoded and decoded here and nowhere else. Decoding borrows from the
//! received bytes and allocates nothing; any bytes give a value or a [`WireError`], never a panic. Encoding appends to a buffer.

mod code;
mod frame;
mod from_client;
mod from_server;
mod settle;
mod upkeep;

pub use code::Code;
pub use frame::{FRAME_OVERHEAD_MAX, Inbox, LENGTH_SIZE, LOGON_FRAME_SIZE_MAX, RawFrame, WireError};
pub use from_client::{
    Acks, BatchItems, ClientFrame, Logon, MAGIC, Publish, PublishBatch, Query, Subscribe, SubscribeOptions,
    SubscriptionNumbers, put_batch_item, put_publish_batch,
};
pub(crate) use from_server::copy_bookmark;
pub use from_server::{Ack, AckKind, FailureScope, LeaseEnd, LoggedOn, Message, Queued, ServerFrame};
pub use settle::{Bookmarks, Extend, SETTLE_BOOKMARKS_MAX, Selection, Settle, put_bookmark};
pub use upkeep::{Files, Upkeep};

/// The protocol version that this build speaks.
pub const VERSION: u16 = 1;

/// The longest topic, in bytes: enough for any path-like name, small enough to be copied into every record.
pub const TOPIC_SIZE_MAX: usize = 1024;

/// The longest correlation id, in bytes: its size is one byte on the wire.
pub const CORRELATION_SIZE_MAX: usize = 255;

/// The longest client name, in bytes.
pub const CLIENT_NAME_SIZE_MAX: usize = 255;
