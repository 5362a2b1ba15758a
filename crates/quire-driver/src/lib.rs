//! The threads and sockets under the Python clients and the embedded engine.
//!
//! It has two halves, which exchange only bytes: a [`client`] with its thread, and a broker on a
//! [`Host`]. The thread of an embedded [`Engine`] or an event loop outside this crate runs the
//! host. A [`SharedJournal`] is for programs that keep a journal without a broker.

pub mod client;
mod clock;
pub mod descriptor;
mod engine;
mod error;
mod host;
mod journal;
mod maintenance;
mod reader_pool;
mod run_steps;
pub mod store;
mod waker;

pub use clock::Clock;
pub use engine::{Engine, EngineKey, after_fork_in_child};
pub use error::EngineError;
pub use host::{Effect, Host};
pub use journal::{Head, SharedJournal};
pub use reader_pool::ReaderPool;
pub use waker::{Wake, Waker};
