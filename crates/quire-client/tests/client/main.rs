//! The client core against the broker: what holds over lost connections and killed servers.

mod any_bytes;
mod away;
mod delays;
mod drive;
mod failover;
mod flushes;
mod leases;
mod link;
mod logon;
mod maintenance;
mod places;
mod queues;
mod receipts;
mod records;
mod replacements;
mod rooms;
mod together;
