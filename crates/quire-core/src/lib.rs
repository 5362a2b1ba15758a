//! The broker and the client as state machines without input or output.

pub mod broker;
pub mod client;
pub mod filter;
pub mod message_type;
pub mod queue;
pub mod replay;
pub mod scan;
mod session;
mod subscription;
pub mod time;
pub mod topic;
pub mod wire;
