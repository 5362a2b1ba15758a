//! The names that the parts of the broker use for connections, sessions, subscriptions, replays,
//! publishers and topics.
//!
//! Keys are generational: the key of a removed object never finds its successor. This module
//! imports no other module of the crate.

use slotmap::{Key, KeyData};

/// Number of a connection, chosen by the driver and never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u64);

/// A transport, by its index in [`BrokerConfig::transports`](crate::BrokerConfig::transports).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TransportId(pub u16);

/// Number of a topic, valid while the generation of the table of topics stays the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TopicId(pub u32);

/// A last-value topic. The topics that the configuration names have the first numbers, in its
/// order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TableId(pub u32);

/// A last-value topic with a pattern, by its index in the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ContainerId(pub u32);

/// Keys like those of `slotmap::new_key_type`. That macro does not mark functions as `#[inline]`,
/// and the broker looks up a session and a publisher for each message.
macro_rules! keys {
    ($(#[doc = $doc:literal] $name:ident;)+) => {$(
        #[doc = $doc]
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(KeyData);

        impl From<KeyData> for $name {
            #[inline]
            fn from(data: KeyData) -> Self {
                $name(data)
            }
        }

        #[allow(unsafe_code)]
        // SAFETY: the key is its data: both conversions and every derived trait pass it on
        // unchanged.
        unsafe impl Key for $name {
            #[inline]
            fn data(&self) -> KeyData {
                self.0
            }
        }
    )+};
}

keys! {
    /// Key of a session.
    SessionId;
    /// Key of a subscription.
    SubscriptionId;
    /// Key of a replay.
    ReplayId;
    /// Key of a publisher.
    PublisherKey;
}
