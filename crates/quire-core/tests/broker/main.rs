//! The broker behaves as docs/protocol.md and the seeds say: a real codec on the client's side, a real journal below, virtual time.

#[allow(dead_code)]
mod pair;
mod publishing;
