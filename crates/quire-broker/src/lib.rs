//! The broker as a state machine without input or output.

mod bookmarks;
mod broker;
mod links;
mod maintenance;
mod publishers;
mod queues;
mod stream;
mod tables;

// The modules of the kernel, under the names that they have there: `crate::log` is
// `quire_kernel::log`.
use quire_kernel::{
    access, admin, codec, config, context, enclosed, entitlement, events, failure, ids, io, journal_files,
    limited, log, paged, replicated, reply, send, session, sessions, slice, stats, subscription, tail, topic,
    unreadable,
};

pub use broker::Broker;
pub use links::LINKS_ACCEPTED_MAX;
pub use queues::{Expired, StandaloneError, StandaloneQueue};
pub use quire_kernel::entitlement::{
    Entitlements, EntrySettings, PublishRate, Right, UserLimitSettings, UserLimits,
};
use quire_kernel::timer::Timer;
pub use quire_kernel::{
    Access, AccessRules, AdminCommand, AdminReply, BrokerConfig, ByClients, Compression, ConfigError,
    ConflatedTopicSettings, ConnectionId, ConnectionStats, DeliveredTopic, DestinationSettings,
    DestinationStats, Durability, DurationFigures, Event, EventTopic, EventsConfig, Figures, HeldFigures,
    HistorySettings, Input, JournalFigures, LeftOutBecause, LeftTopic, Level, Limits, LinkIdentity,
    Maintenance, MaintenanceConfig, MaintenanceDone, MaintenanceJob, OpenError, Output, Page, QueueChanges,
    QueueFigures, QueueSettings, QueueStats, ReadDone, ReadRequest, ReadTicket, RecordedTopic,
    ReplicatedTopic, ReplicationConfig, ReplicationStats, ServerStats, SourceStats, SowTopicSettings, Stats,
    Stopwatch, SubscriptionStats, SyncType, TableChanges, TableDurability, TableExpiration, TableFigures,
    TopicStats, TransactionLogConfig, TransportConfig, TransportFigures, TransportId, ViewFigures,
    ViewJoinFigures, ViewSettings, ViewSourceFigures, code_of, replay, scan,
};
pub use quire_link::summary;
pub use tables::{MakePart, SnapshotPart, SnapshotParts, SnapshotSteps};
