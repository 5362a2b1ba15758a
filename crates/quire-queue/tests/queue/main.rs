//! The queue engine against its promises: named behaviours on injected time, and a slow obvious
//! model under random operations.

mod caller;
mod lapse;
mod lease_record;
mod model;
mod random;
mod record;
mod snapshot;
