//! The names that the engine and its caller use for queues, subscriptions, connections, filters and
//! time.

use std::fmt;

macro_rules! numbered {
    ($($(#[$doc:meta])* $name:ident($inner:ty);)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name($inner);

        impl $name {
            /// The one with this number.
            pub const fn new(number: $inner) -> Self { Self(number) }

            /// The number.
            pub const fn get(self) -> $inner { self.0 }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result { self.0.fmt(f) }
        }
    )*};
}

numbered! {
    /// The caller's clock in nanoseconds. It never decreases, and steps of the wall clock have no
    /// effect on it. The caller chooses its zero; receive times and `now` must share it.
    Time(u64);
    /// A queue of one [`Queues`](super::Queues), given by `add_queue`.
    QueueId(u32);
    /// A subscription, given by `subscribe`; never given again.
    SubscriptionId(u64);
    /// A connection, chosen by the caller: it owns leases and loses them all when it ends.
    ConnectionId(u64);
    /// A content filter, chosen by the caller. Equal filters should get equal ids: each is
    /// evaluated once per message.
    FilterId(u32);
}
