//! The store files (docs/stores.md): their content after the end of the process, and the errors
//! when they are not whole.

mod any_bytes;
mod publishes;
mod resume_positions;
