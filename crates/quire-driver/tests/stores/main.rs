//! The store files (docs/stores.md): what they hold after the process is gone, and what they say
//! when they are not whole.

mod any_bytes;
mod publishes;
mod resume_positions;
