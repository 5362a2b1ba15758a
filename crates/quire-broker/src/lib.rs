//! The broker as a state machine without input or output.

mod access;
mod admin;
mod bookmarks;
mod broker;
mod codec;
mod config;
mod conflate;
mod context;
mod failure;
mod ids;
mod io;
mod journal_files;
mod links;
mod log;
mod maintenance;
mod ordinary;
mod paged;
mod publishers;
mod queues;
pub mod replay;
mod replicated;
mod reply;
pub mod scan;
mod send;
mod session;
mod sessions;
mod slice;
mod stats;
mod subscription;
mod subscriptions;
mod tables;
mod tail;
mod timer;
mod topic;
mod unreadable;
mod work;

pub use access::Access;
pub use admin::{AdminCommand, AdminReply};
pub use broker::Broker;
pub use config::links::{Compression, DestinationSettings, ReplicatedTopic, ReplicationConfig, SyncType};
pub use config::queues::{QueueChanges, QueueSettings};
pub use config::tables::{HistorySettings, SowTopicSettings, TableDurability, TableExpiration};
pub use config::{
    BrokerConfig, ByClients, ConfigError, Durability, Limits, MaintenanceConfig, OpenError, RecordedTopic,
    TransactionLogConfig, TransportConfig,
};
pub use failure::code_of;
pub use io::{ConnectionId, Event, Input, LeftOutBecause, Level, Output, TransportId};
pub use journal_files::{Maintenance, MaintenanceDone, MaintenanceJob};
pub use links::LINKS_ACCEPTED_MAX;
pub use queues::{Expired, StandaloneError, StandaloneQueue};
pub use slice::Stopwatch;
pub use stats::{
    ConnectionStats, DestinationStats, Page, QueueFigures, QueueStats, ReplicationStats, ServerStats,
    SourceStats, Stats, SubscriptionStats, TableFigures, TopicStats,
};
pub use tables::{MakePart, SnapshotPart, SnapshotParts, SnapshotSteps};
pub(crate) use timer::Timer;
pub use work::{ReadDone, ReadRequest, ReadTicket};
