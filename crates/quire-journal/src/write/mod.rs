//! Writing the log: from an append to durable bytes, and the segments and buffers that are made
//! ready for it.

pub(crate) mod background_sync;
pub(crate) mod buffer_pool;
pub(crate) mod journal;
pub(crate) mod segment_pool;
pub(crate) mod sidecar_writer;
pub(crate) mod syncs;
pub(crate) mod writer;
