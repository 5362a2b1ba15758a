//! The client core against the broker, over lost connections and killed servers.

mod any_bytes;
mod away;
mod backpressure;
mod delays;
mod drive;
mod failover;
mod flushes;
mod last_values;
mod leases;
mod link;
mod logon;
mod maintenance;
mod places;
mod queues;
mod receipts;
mod replacements;
mod together;
