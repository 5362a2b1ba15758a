//! The commands of a client and the replies of a server.
//!
//! The values do not depend on a protocol. A codec decodes received bytes to commands and encodes
//! replies: `quire-wire` is the codec of the quire protocol. Commands and replies borrow their
//! texts and data, so that a codec does not need to copy received bytes.

mod code;
mod command;
mod packed;
mod reply;
pub mod subscribe;

pub use code::{Code, TOKEN_EXPIRED};
pub use command::{
    Acks, Command, DefineQueue, Extend, LinkAction, LogPlace, Logon, Maintain, Publish, PublishBatch, Query,
    Selection, Settle, SowDelete, Subject, Subscribe, SubscribeOptions, Unsubscribe, WaitingLogon,
};
pub use packed::{
    BatchItems, BegunMessages, Bookmarks, KEYS_MAX, Keys, PlaceList, SETTLE_BOOKMARKS_MAX,
    SubscriptionNumbers, TEXTS_MAX, Texts, put_batch_item, put_begun_queue, put_bookmark, put_key, put_place,
    put_text,
};
pub use quire_types::TOPIC_SIZE_MAX;
pub use reply::{
    Ack, AckKind, FailureScope, LeaseEnd, LoggedOn, Message, MessageKind, OofReason, Queued, RecordHash,
    Reply,
};

/// The longest correlation id, in bytes: records of the journal have one byte for its size.
pub const CORRELATION_SIZE_MAX: usize = 255;

/// The longest key of a record in a last-value topic, in bytes: it has one byte for its size.
pub const KEY_SIZE_MAX: usize = 255;

/// The longest reason of a cancel or an expiry, in bytes: an exception's name and text, without its
/// traceback.
pub const REASON_SIZE_MAX: usize = 1024;

/// The longest client name, in bytes.
pub const CLIENT_NAME_SIZE_MAX: usize = 255;
