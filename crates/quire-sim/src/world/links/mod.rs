//! Links between the instances of a world, the topics that links send, and the clients that move
//! between the instances.

pub(super) mod auditor;
mod defects;
mod program;
mod queue;
pub(super) mod topology;

pub(super) use auditor::{Auditor, Logged};
pub(super) use defects::Defects;
pub(super) use program::{At, Program};
pub(super) use queue::add_queue;
