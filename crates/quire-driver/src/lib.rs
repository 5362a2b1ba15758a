//! The threads and sockets under the Python clients and the embedded engine.

pub mod client;
