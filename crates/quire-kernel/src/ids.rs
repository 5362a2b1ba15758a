//! The names that the parts of the broker use for connections, sessions, subscriptions, replays, publishers and topics.
//!
//! Keys are generational: that of something that is gone finds nothing, never its successor. This module imports nothing of the crate.

use slotmap::new_key_type;

/// Number of a connection, chosen by the driver and never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u64);

/// A transport, by its place in [`BrokerConfig::transports`](crate::BrokerConfig::transports).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TransportId(pub u16);

/// Number of a topic, valid while the generation of the table of topics stays the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TopicId(pub u32);

/// A last-value topic. Those that the configuration names come first, in its order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TableId(pub u32);

/// A last-value topic with a pattern, by its place among those of the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ContainerId(pub u32);

new_key_type! {
    /// Key of a session.
    pub struct SessionId;
    /// Key of a subscription.
    pub struct SubscriptionId;
    /// Key of a replay.
    pub struct ReplayId;
    /// Key of a publisher.
    pub struct PublisherKey;
}
