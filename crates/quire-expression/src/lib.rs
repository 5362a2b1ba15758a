//! The languages in which a subscription selects messages: filters, select lists and topic
//! patterns, over every message type.
//!
//! Filters read a message through [`message_type`], which finds the fields that a filter names
//! without building the other values. It also merges messages, and [`filter::Assignments`] writes
//! computed fields into a message. A message can only end the work on this message: see
//! [`unreadable`].

pub mod filter;
pub mod message_type;
pub mod select;
pub mod topic;
pub mod unreadable;
