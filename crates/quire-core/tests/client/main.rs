//! The client core against the broker: what holds over lost connections and killed servers.

mod link;
mod logon;
mod places;
mod queues;
