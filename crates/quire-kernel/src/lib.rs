//! The parts that every service of the broker uses: connections and their subscriptions, topics,
//! the log and its positions, time, background jobs, configuration, and the input and output of a
//! driver.
//!
//! No part of this crate depends on a service. A service gets the [`Context`](context::Context) as
//! an argument. It ends a session or a subscription there, sends replies and messages, and begins
//! jobs. The run loop (`quire-broker`) calls the services.

// Only the broker uses the crate. The broker exports the items that programs use, and these are
// documented in full: settings, input and output, figures, work on journal files.
#![allow(missing_docs)]

pub mod access;
pub mod admin;
pub mod codec;
pub mod config;
pub mod conflate;
pub mod context;
pub mod delivered;
pub mod enclosed;
pub mod entitlement;
mod event_fields;
mod event_id;
pub mod events;
pub mod failure;
pub mod ids;
pub mod io;
pub mod journal_files;
pub mod limited;
pub mod log;
pub mod offline;
pub mod paged;
pub mod replay;
pub mod reply;
pub mod scan;
pub mod send;
pub mod session;
pub mod sessions;
pub mod slice;
pub mod stats;
pub mod subscription;
pub mod subscriptions;
pub mod tail;
pub mod timer;
pub mod topic;
pub mod unreadable;
pub mod work;

pub use access::Access;
pub use admin::{AdminCommand, AdminReply};
pub use config::conflated::ConflatedTopicSettings;
pub use config::links::{Compression, DestinationSettings, ReplicatedTopic, ReplicationConfig, SyncType};
pub use config::queues::{QueueChanges, QueueSettings};
pub use config::tables::{HistorySettings, SowTopicSettings, TableDurability, TableExpiration};
pub use config::views::ViewSettings;
pub use config::{
    AccessRules, BrokerConfig, ByClients, ConfigError, Durability, Limits, MaintenanceConfig, OpenError,
    RecordedTopic, TransactionLogConfig, TransportConfig,
};
pub use events::{DeliveredTopic, EventTopic, EventsConfig, LeftTopic};
pub use failure::code_of;
pub use io::{ConnectionId, Event, Input, LeftOutBecause, Level, LinkIdentity, Output, TransportId};
pub use journal_files::{Maintenance, MaintenanceDone, MaintenanceJob};
pub use quire_link::replicated;
pub use slice::Stopwatch;
pub use stats::{
    ConnectionStats, DestinationStats, DurationFigures, Figures, HeldFigures, JournalFigures, Page,
    QueueFigures, QueueStats, ReplicationStats, ServerStats, SourceStats, Stats, SubscriptionStats,
    TableChanges, TableFigures, TopicStats, TransportFigures, ViewFigures, ViewJoinFigures,
    ViewSourceFigures,
};
use timer::Timer;
pub use work::{ReadDone, ReadRequest, ReadTicket};
