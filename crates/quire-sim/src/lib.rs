//! Seeded simulation: the real journal over a disk that loses, tears and refuses, checked against a slow obvious model.
//!
//! One seed makes one history: a program of appends, flushes, crashes and restarts, and everything the disk does to it. Equal seeds give
//! equal histories. [`run`] plays one and says what went wrong; the binary plays many.

mod disk;
mod history;
mod random;
pub mod world;

pub use disk::{Faults, SimulatedDisk};
pub use history::{Bug, Outcome, run};
pub use random::Random;
