//! The client core against the broker: what holds over lost connections and killed servers.

mod any_bytes;
mod failover;
mod link;
mod logon;
mod places;
mod queues;
mod rooms;
mod upkeep;
