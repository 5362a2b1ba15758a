//! The broker and the client as state machines without input or output.

pub mod client;
pub mod time;
pub mod wire;
