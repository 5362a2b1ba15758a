//! Archiving, compressing and removing sealed segments.

pub(crate) mod archive_directory;
pub(crate) mod files;
