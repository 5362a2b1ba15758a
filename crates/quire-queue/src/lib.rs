//! Queues: which consumer gets a message, for how long, and the handling of a returned message.
//!
//! **What for.** A queue is a view over the log: it holds positions and states, never data.
//! [`Queues`] decides for all queues of an instance together, because a subscription that matches
//! several queues has one backlog for all of them. The rules are in `docs/queues.md`.
//!
//! **What it promises.** One subscription at a time has a message. At-least-once: it is delivered
//! again until it is acknowledged or expired. At-most-once: it is delivered once or never. Order is
//! log order, or priority and then log order, for every subscription by itself. This crate does not
//! read a clock, and the same calls give the same results.
//!
//! **What the caller must do.** Offer persisted messages in log order
//! ([`enqueue`](Queues::enqueue)), and pass on the commands of connections. After every input, poll
//! until nothing comes: [`poll_delivery`](Queues::poll_delivery) for messages to send,
//! [`poll_change`](Queues::poll_change) for changes to log, and [`poll_lost`](Queues::poll_lost)
//! for connections to notify. Where leases are recorded, also poll
//! [`poll_lease_event`](Queues::poll_lease_event), and where messages are followed
//! [`next_move`](Queues::next_move). A `Taken` must be durable before its message is
//! sent. Call [`advance`](Queues::advance) by [`poll_timeout`](Queues::poll_timeout). After a
//! restart, feed messages and logged changes again in log order ([`restore`](Queues::restore))
//! before anything else.
//!
//! **How it works.** `messages` holds two bits and a few shared columns for each message. `class`
//! holds the messages that match one filter. `members` finds the next subscription. `lease` holds
//! the outstanding messages, and `delay` those that wait for their time. `state` is one queue.
//! `registry` adds and removes queues. `queues` connects them, with `subscription` for the members
//! and `settle` for the verdicts on messages.

mod bits;
mod browse;
mod chunk;
mod chunks;
mod class;
mod column;
mod config;
mod delay;
mod event;
mod follow;
mod id;
mod lapse;
mod lease;
mod lease_record;
mod members;
mod messages;
mod names;
mod ordinal_set;
mod queues;
mod ranked_set;
mod record;
mod registry;
mod settle;
mod snapshot;
mod state;
mod subscription;

pub use config::{
    ConfigError, EarlierExpiration, ExpirationModel, FairnessModel, Leasing, QueueConfig, Semantics,
};
pub use event::{
    Change, ChangeKind, Delivery, Enqueued, ExpiredBy, HeldMessage, LeaseEvent, LeaseEventKind, LostCause,
    LostLease, Matcher, Move, MoveKind, QueueEntry, QueueStats, Reasons, SubscriptionSpec, WaitingMessage,
};
pub use id::{ConnectionId, FilterId, QueueId, SubscriptionId, Time};
pub use lease_record::{LeaseRun, LeasesWriter};
pub use names::{BadChanges, NamedRun, Names};
pub use queues::{ENDS_PER_PORTION_MAX, QUESTIONS_PER_POLL_MAX, Queues};
pub use quire_types::{Bookmark, Position, PublisherId, Verdict};
pub use record::{ChangesWriter, Logged};
pub use registry::QUEUES_MAX;
pub use snapshot::{BadSnapshot, Snapshot};
pub use subscription::{SUBSCRIPTIONS_MAX, SubscribeError};
