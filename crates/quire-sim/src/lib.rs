//! Seeded simulation: the real journal over a disk that loses, tears and refuses, checked against a
//! slow obvious model.
//!
//! One seed makes one history: a program of appends, flushes, crashes and restarts, and all faults
//! of the disk. Equal seeds give equal histories. [`run`] plays one and returns the first
//! violation. The binary plays many.

mod disk;
mod history;
mod network;
mod random;
pub mod rights;
pub mod world;

pub use disk::{Faults, SimulatedDisk};
pub use history::{Bug, Outcome, run};
pub use random::Random;
