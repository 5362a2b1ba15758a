//! The codec of the quire protocol: commands and replies as bytes.
//!
//! The contract is `docs/protocol.md`. Only this crate encodes and decodes it, for both sides. The
//! values are those of `quire-command`. Decoding borrows from the received bytes and allocates
//! nothing. Any bytes result in a value or a [`WireError`], never in a panic. Encoding appends to a
//! buffer.

mod define_queue;
mod frame;
mod from_client;
mod from_server;
pub mod link;
mod maintain;
mod select;
mod settle;

pub use frame::{
    Decode, Encode, FRAME_OVERHEAD_MAX, Inbox, LENGTH_SIZE, LOGON_FRAME_SIZE_MAX, RawFrame,
    SERVER_FRAME_SIZE_MAX, WireError,
};
pub use from_client::{MAGIC, publishes, put_publish_batch, replace_delay};
pub use from_server::{
    copy_bookmark, copy_others_than_messages, decode_message, encode_without_data, message_body, messages,
};

/// The protocol version of this build.
pub const VERSION: u16 = 1;
