//! Reading the log from any thread while it grows: by position, bookmark and time. Checking
//! everything that was written.

pub(crate) mod cursor;
pub(crate) mod digest;
pub(crate) mod pins;
pub(crate) mod plan;
pub(crate) mod reader;
pub(crate) mod verify;
