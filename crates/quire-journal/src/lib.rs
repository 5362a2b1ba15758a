//! The append-only log on disk.
