//! The figures of a broker, the same for clients, the process of the server and the command line.

use std::collections::BTreeMap;
use std::ops::AddAssign;
use std::time::Duration;

use quire_journal::SYNC_BOUNDS_US;
use quire_types::Timestamp;
use serde::{Serialize, Serializer};

use super::ConnectionId;
use crate::config::links::SyncType;

/// Counters since the start, and the current numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Stats {
    /// Connections, including connections before their logon.
    #[serde(rename = "connections")]
    pub connection_count: usize,
    /// Client names with state in the broker: connected clients, and clients with messages that are
    /// not persisted or not answered.
    #[serde(rename = "publishers")]
    pub publisher_count: usize,
    /// Subscriptions of all connections.
    #[serde(rename = "subscriptions")]
    pub subscription_count: usize,
    /// Replays that have not caught up.
    #[serde(rename = "replays")]
    pub replay_count: usize,
    /// The largest [`SubscriptionStats::lag`] of the replays that are not paused.
    pub replay_lag: u64,
    /// Published messages, including refused messages and duplicates.
    #[serde(rename = "published")]
    pub published_count: u64,
    /// Of these, dropped as duplicates.
    #[serde(rename = "duplicates")]
    pub duplicate_count: u64,
    /// Of these, refused.
    #[serde(rename = "refused")]
    pub refused_count: u64,
    /// Messages sent to subscriptions.
    #[serde(rename = "delivered")]
    pub delivered_count: u64,
    /// Connections whose output moves to disk, because they do not read fast enough.
    #[serde(rename = "offlined_clients")]
    pub offlined_count: usize,
    /// Bytes that wait on disk.
    pub offlined_bytes: u64,
    /// The number of times that a message could not be read for a filter or an expression
    /// (docs/filters.md section 12).
    #[serde(rename = "unreadable")]
    pub unreadable_count: u64,
    /// Bytes received.
    pub received_bytes: u64,
    /// Bytes handed to the driver.
    pub sent_bytes: u64,
    /// Bytes appended to the journal but not yet persisted.
    pub unpersisted_bytes: usize,
    /// Position of the last record appended.
    pub appended: u64,
    /// Position of the last record persisted.
    pub persisted: u64,
    /// Whether the journal accepts writes.
    pub journal_failed: bool,
    /// The figures of every queue by its name (docs/queues.md section 10).
    pub queues: QueueFigures,
    /// Every connection.
    #[serde(rename = "clients")]
    pub connections: Vec<ConnectionStats>,
}

/// One connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ConnectionStats {
    /// Which.
    #[serde(serialize_with = "number_of")]
    pub connection: ConnectionId,
    /// Where it comes from.
    pub peer: String,
    /// Its client name; empty before logon.
    pub client_name: String,
    /// The version of its library, if the client named one.
    pub client_version: Option<String>,
    /// Its user, if the client named one.
    pub user: Option<String>,
    /// Whether it is encrypted.
    pub tls: bool,
    /// Commands that its rights did not allow: `read`, `replay` or `query` was missing.
    #[serde(rename = "denied_reads")]
    pub denied_read_count: u64,
    /// Commands that its rights did not allow: another right was missing.
    #[serde(rename = "denied_writes")]
    pub denied_write_count: u64,
    /// The highest sequence of its client name; 0 before logon.
    pub sequence: u64,
    /// The number of times that its sequence increased by more than
    /// [`super::Limits::sequence_jump_logged`] at once since it logged on.
    #[serde(rename = "sequence_jumps")]
    pub sequence_jump_count: u64,
    /// Its subscriptions.
    #[serde(rename = "subscriptions")]
    pub subscription_count: usize,
    /// Bytes that wait for it in memory.
    pub backlog_bytes: usize,
    /// Bytes that wait for it on disk.
    pub offlined_bytes: usize,
    /// Its messages move to disk, because it reads more slowly than they arrive.
    pub offlined: bool,
    /// The name of its transport.
    pub transport: String,
    /// Nanoseconds since 1970 UTC when it was made.
    #[serde(rename = "connected_ns", serialize_with = "ns_of")]
    pub connected: Timestamp,
    /// Messages that it has published.
    pub messages_in: u64,
    /// Messages that were sent to its subscriptions.
    pub messages_out: u64,
    /// Bytes that it has sent.
    pub bytes_in: u64,
    /// Bytes that were sent to it.
    pub bytes_out: u64,
    /// Whether its transport accepts more bytes.
    pub writable: bool,
}

/// One subscription.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SubscriptionStats {
    /// The connection of the subscription.
    #[serde(serialize_with = "number_of")]
    pub connection: ConnectionId,
    /// The client name of the connection.
    pub client_name: String,
    /// Its number on the connection.
    pub subscription: u32,
    /// Its topic, or its pattern.
    pub topic: String,
    /// Its content filter.
    pub filter: Option<String>,
    /// `live`: messages as they are published; `replay`: it has a bookmark, whether or not it has
    /// caught up; `queue`; `last_value`: the records of last-value topics, and their changes.
    pub kind: &'static str,
    /// For a replay: the position of the log up to which its messages were handed to the
    /// connection.
    pub position: Option<u64>,
    /// For a replay: the number of records of the log after this position, including those of other
    /// topics.
    pub lag: Option<u64>,
    /// For a replay: an upper limit for the age of the first of these records, in seconds; 0 when
    /// there is no such record.
    pub lag_s: Option<f64>,
    /// For a queue subscription: its outstanding messages.
    pub backlog: Option<u32>,
    /// For a queue subscription: the most messages that it may have outstanding.
    pub max_backlog: Option<u32>,
    /// Whether the client has paused it.
    #[serde(rename = "paused")]
    pub is_paused: bool,
    /// Messages that were sent to it.
    pub messages_out: u64,
    /// Bytes of the frames of these messages.
    pub bytes_out: u64,
}

/// The server itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ServerStats {
    /// The name of the instance.
    pub name: String,
    /// The version of quire.
    pub version: &'static str,
    /// The user of the requester, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Nanoseconds since 1970 UTC at its first turn.
    #[serde(rename = "started_ns", serialize_with = "ns_of")]
    pub started: Timestamp,
    /// Nanoseconds since 1970 UTC now, by the same clock.
    #[serde(rename = "now_ns", serialize_with = "ns_of")]
    pub now: Timestamp,
    /// Files of the journal, including archived files.
    #[serde(rename = "journal_files")]
    pub journal_file_count: usize,
    /// Bytes of these files.
    pub journal_size: u64,
    /// Topics of the log.
    #[serde(rename = "topics")]
    pub topic_count: usize,
    /// Queues.
    #[serde(rename = "queues")]
    pub queue_count: usize,
    /// Connections, including connections before their logon.
    #[serde(rename = "connections")]
    pub connection_count: usize,
    /// Subscriptions of all connections.
    #[serde(rename = "subscriptions")]
    pub subscription_count: usize,
    /// As in [`Stats`].
    pub replay_lag: u64,
    /// As in [`Stats`].
    #[serde(rename = "published")]
    pub published_count: u64,
    /// As in [`Stats`].
    #[serde(rename = "delivered")]
    pub delivered_count: u64,
    /// As in [`Stats`].
    #[serde(rename = "unreadable")]
    pub unreadable_count: u64,
    /// Position of the last record persisted.
    pub persisted: u64,
    /// Bytes appended to the journal but not yet persisted.
    pub unpersisted_bytes: usize,
    /// Whether the journal accepts writes.
    pub journal_failed: bool,
}

/// The figures of queues by name.
pub type QueueFigures = BTreeMap<String, QueueStats>;

/// The figures of one queue: those of the engine, and further figures of the broker.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct QueueStats {
    /// The figures of the engine.
    #[serde(flatten)]
    pub engine: quire_queue::QueueStats,
    /// The type of its messages.
    pub message_type: &'static str,
    /// Messages that were published as dead letters.
    pub dead_letters: u64,
    /// Its messages are dead letters of a queue: the `dead_letter_topic` of one is among its
    /// underlying topics.
    pub takes_dead_letters: bool,
    /// The position up to which the queue needs no record of the log.
    pub settled: u64,
    /// Unacknowledged messages that no longer match the configuration.
    pub left_out: u64,
    /// Only the holder of a message can settle it.
    pub strict: bool,
    /// The queue was created at run time, not by the configuration.
    pub created: bool,
}

/// A message in the hands of a subscription to a queue.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HeldFigures {
    /// Its bookmark; `None`: it was delivered at most once, and has left the queue.
    pub bookmark: Option<String>,
    /// Its position in the log.
    pub position: u64,
    /// The connection of the subscription.
    #[serde(serialize_with = "number_of")]
    pub connection: ConnectionId,
    /// The client name of the connection.
    pub client_name: String,
    /// The number of the subscription on the connection.
    pub subscription: u32,
    /// How long the subscription has held it, in seconds.
    pub age_s: f64,
    /// After which time the lease ends, in seconds; `None`: it does not end.
    pub left_s: Option<f64>,
    /// How often it was delivered, this time included.
    pub deliveries: u32,
    /// How often it was cancelled.
    pub cancels: u32,
}

/// One topic.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TopicStats {
    /// Its name.
    pub topic: String,
    /// The type of its messages.
    pub message_type: &'static str,
    /// Whether the log records its messages, or the messages that match a filter.
    #[serde(rename = "recorded")]
    pub is_recorded: bool,
    /// The queues that its messages enter.
    pub queues: Vec<String>,
    /// Subscriptions to the topic, including subscriptions with patterns. Subscriptions to queues
    /// do not count, unless they have a pattern.
    #[serde(rename = "subscriptions")]
    pub subscription_count: usize,
    /// Messages that clients have published to it since the start, including refused messages and
    /// duplicates.
    pub published: u64,
    /// Bytes of these messages.
    pub published_bytes: u64,
    /// The records of a last-value topic; `None` for another topic.
    pub last_values: Option<TableFigures>,
}

/// The records of a last-value topic, and how it is configured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TableFigures {
    /// The number of records.
    #[serde(rename = "records")]
    pub record_count: u64,
    /// Bytes of their messages.
    #[serde(rename = "bytes")]
    pub size: u64,
    /// Bytes of memory that the topic uses.
    #[serde(rename = "memory")]
    pub memory_size: u64,
    /// Indexes that were created for queries, and that queries use.
    #[serde(rename = "made_indexes")]
    pub made_index_count: u64,
    /// Indexes that are being built for queries.
    #[serde(rename = "building_indexes")]
    pub building_index_count: u64,
    /// The changes and queries since the start.
    #[serde(flatten)]
    pub changes: TableChanges,
    /// The fields of the key. Empty when publishers supply the keys.
    pub key: Vec<String>,
    /// `persistent` or `transient`.
    pub durability: &'static str,
    /// The position of the log that the newest snapshot includes; 0: there is no snapshot.
    pub snapshot_position: u64,
    /// For a last-value topic that has a pattern: the pattern. Its figures are those of all its
    /// topics together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pattern: Option<String>,
    /// For a last-value topic that has a pattern: the number of topics with records.
    #[serde(rename = "topics", skip_serializing_if = "Option::is_none")]
    pub topic_count: Option<u64>,
    /// For a view and a conflated topic: the topic that they are computed from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub underlying_topic: Option<String>,
    /// For a view with joins: the entries of `join`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub join: Option<Vec<String>>,
    /// For a view: the changes of its topics that it does not have yet. For a conflated topic: the
    /// records of its source that have changed, and are not copied yet.
    #[serde(rename = "waiting_changes", skip_serializing_if = "Option::is_none")]
    pub waiting_count: Option<u64>,
    /// The different computations of aggregated subscriptions to the topic.
    #[serde(rename = "aggregations")]
    pub computation_count: u64,
    /// Bytes of memory of these computations.
    #[serde(rename = "aggregation_memory")]
    pub computation_size: u64,
    /// For a conflated topic: the time between two changes of one record, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interval_ms: Option<u64>,
    /// For a view: the age of the oldest of these changes, in seconds; 0: there is none.
    #[serde(rename = "behind_s", serialize_with = "seconds_of", skip_serializing_if = "Option::is_none")]
    pub behind_ns: Option<u64>,
    /// For a view: its sources and its state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub view: Option<ViewFigures>,
}

/// The sources and the state of a view.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ViewFigures {
    /// The fields of a record, as configured.
    pub projection: Vec<String>,
    /// The condition for records of the source, as configured.
    pub filter: Option<String>,
    /// Groups that change several times in a short time are delivered once.
    pub inline_conflation: bool,
    /// The topics that it reads.
    pub sources: Vec<ViewSourceFigures>,
    /// The indexes by the keys of joins.
    pub joins: Vec<ViewJoinFigures>,
    /// The aggregates of each group.
    pub aggregates: Vec<&'static str>,
    /// The number of groups.
    #[serde(rename = "groups")]
    pub group_count: u64,
    /// Bytes of memory that the groups use.
    #[serde(rename = "groups_memory")]
    pub groups_memory_size: u64,
    /// The combinations of joined records, or the records of the only topic, that are in the
    /// groups.
    #[serde(rename = "combinations")]
    pub combination_count: u64,
    /// When a client replaced the definition of the configuration; `None`: the configuration has
    /// the definition.
    pub replaced_ns: Option<u64>,
}

/// A topic that a view reads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ViewSourceFigures {
    /// Its name.
    pub topic: String,
    /// Its records.
    #[serde(rename = "records")]
    pub record_count: u64,
    /// Bytes of memory for what the view keeps of these records: 0 without joins.
    #[serde(rename = "memory")]
    pub memory_size: u64,
}

/// An index by the keys of a join.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ViewJoinFigures {
    /// The topic that comes first.
    pub parent: String,
    /// The topic that is joined with it.
    pub child: String,
    /// The number of different keys.
    #[serde(rename = "keys")]
    pub key_count: u64,
    /// Bytes of memory of the index.
    #[serde(rename = "memory")]
    pub memory_size: u64,
}

/// The changes of the records of a last-value topic, and its queries, since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TableChanges {
    /// Messages with a new key.
    pub inserts: u64,
    /// Messages that replaced a record.
    pub updates: u64,
    /// Records that a delete removed.
    pub deletes: u64,
    /// Records whose lifetime has ended.
    pub expiries: u64,
    /// Queries of its records, and subscriptions that received them.
    pub queries: u64,
}

impl AddAssign for TableChanges {
    fn add_assign(&mut self, other: Self) {
        self.inserts += other.inserts;
        self.updates += other.updates;
        self.deletes += other.deletes;
        self.expiries += other.expiries;
        self.queries += other.queries;
    }
}

/// The links of an instance to others.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ReplicationStats {
    /// The name of the instance.
    pub name: String,
    /// The group of the instance.
    pub group: String,
    /// The number of its log: the time at which it began, in nanoseconds since 1970; 0: not known.
    pub log: u64,
    /// The number of sync destinations that must have a message; `None`: all.
    pub required_acks: Option<u32>,
    /// `filling`, `gap`, `conflict`, `refused`, `away` or `live`: the first that applies.
    pub state: &'static str,
    /// Clients cannot log on until the instance has recovered the records that it lost.
    pub holds_logons: bool,
    /// A command has let clients in while the log may lack records.
    #[serde(rename = "admitted")]
    pub is_admitted: bool,
    /// While the log may lack records: the members from which not everything has come.
    pub not_heard: Vec<NotHeardStats>,
    /// The instances that it sends to.
    pub destinations: Vec<DestinationStats>,
    /// The connections of instances that send to it.
    pub sources: Vec<SourceStats>,
    /// Messages that are missing between others of their publishers, and that no source could send.
    pub missing: u64,
    /// Of these, the first ranges.
    pub missing_ranges: Vec<MissingRange>,
    /// Missing messages that a command has accepted as lost.
    pub accepted: u64,
    /// Of these, the first ranges.
    pub accepted_ranges: Vec<MissingRange>,
    /// Messages that were ever found to be missing, over all restarts.
    pub missing_total: u64,
    /// The first publishers with such messages.
    pub missing_publishers: Vec<MissingOfPublisher>,
    /// The log is being compared with those of the sources.
    pub comparing: bool,
    /// Such comparisons since the start.
    pub comparisons: u64,
}

/// Messages of a publisher that are missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct MissingRange {
    /// The id of the publisher.
    pub publisher: u64,
    /// The first sequence.
    pub first: u64,
    /// The last sequence.
    pub last: u64,
}

/// The missing messages of a publisher.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct MissingOfPublisher {
    /// The id of the publisher.
    pub publisher: u64,
    /// Messages that are missing.
    pub missing: u64,
    /// Missing messages that a command has accepted as lost.
    pub accepted: u64,
    /// Messages that were ever found to be missing, over all restarts.
    pub total: u64,
}

/// A member from which not everything has come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NotHeardStats {
    /// Its name, or the name of a group of which no instance is known.
    pub name: String,
    /// It is a group.
    #[serde(rename = "group")]
    pub is_group: bool,
    /// The bookmark of the last message that is known to be in its log.
    pub last: Option<String>,
}

/// The link to a destination.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DestinationStats {
    /// The name in the configuration.
    pub name: String,
    /// The name of the instance that is connected; `None` without a connection.
    pub instance: Option<String>,
    /// The address that is connected, or tried next. Empty: the destination must connect.
    pub address: String,
    /// The addresses in the configuration.
    pub addresses: Vec<String>,
    /// The user of its connection; `None` without a connection, or without authentication.
    pub user: Option<String>,
    /// Whether its connection is encrypted; `None` without a connection.
    pub tls: Option<bool>,
    /// `waiting`, `refused`, `connecting`, `catching_up`, `live`, `paused` or `gap`.
    pub state: &'static str,
    /// As configured.
    pub configured_sync_type: SyncType,
    /// As it is now: `async` after a downgrade.
    pub sync_type: SyncType,
    /// The position of the local log up to which the destination has all records.
    pub acknowledged: u64,
    /// The position of the local log up to which records were read for the destination.
    pub scanned: u64,
    /// Bytes of records that are sent and not acknowledged.
    pub unacknowledged_bytes: u64,
    /// The age of the oldest message that the destination has not acknowledged; 0 when there is no
    /// such message.
    pub seconds_behind: f64,
    /// Records sent since the start.
    #[serde(rename = "sent")]
    pub sent_count: u64,
    /// Bytes of frames of records since the start.
    pub sent_bytes: u64,
    /// Connections since the start.
    #[serde(rename = "connects")]
    pub connect_count: u64,
    /// Messages that it has not recorded, because it has others with their bookmarks. Counted over
    /// all restarts.
    #[serde(rename = "conflicts")]
    pub conflict_count: u64,
    /// Why the last connection or attempt ended; `None` while it is connected.
    pub last_error: Option<String>,
}

/// A connection of an instance that sends to this one.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct SourceStats {
    /// The name of the instance, or its address before its logon.
    pub name: String,
    /// Its address.
    pub peer: String,
    /// The user of its connection; `None` without authentication.
    pub user: Option<String>,
    /// Whether its connection is encrypted.
    pub tls: bool,
    /// `connecting` or `live`; `gap` when the log lacks messages that no source has; `away` for an
    /// instance that is not connected, and had conflicts.
    pub state: &'static str,
    /// The position of its log up to which its records were received.
    pub received: u64,
    /// The position of its log up to which it received acknowledgements.
    pub acknowledged: u64,
    /// Records that this connection received.
    #[serde(rename = "records")]
    pub received_count: u64,
    /// Of these, dropped as duplicates.
    #[serde(rename = "duplicates")]
    pub duplicate_count: u64,
    /// Its messages that are not recorded, because the local log has others with their bookmarks.
    /// Counted over all restarts.
    #[serde(rename = "conflicts")]
    pub conflict_count: u64,
}

/// The files of the journal.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct JournalFigures {
    /// Their number, including archived files.
    pub segments: usize,
    /// Bytes of the file that is written.
    pub active_bytes: u64,
    /// Bytes of full files in the directory of the journal, without compressed files.
    pub sealed_bytes: u64,
    /// Bytes of archived files, without compressed files.
    pub archived_bytes: u64,
    /// Bytes of compressed files.
    pub compressed_bytes: u64,
    /// Position of the first record.
    pub first: u64,
    /// The part of the broker that needs the oldest file: `queues`, `subscriptions`, `last_values`
    /// or `replication`; `None` when no part needs it.
    pub kept_by: Option<&'static str>,
    /// Bytes of records that were written since the start.
    pub appended_bytes: u64,
    /// The syncs of its files.
    pub syncs: DurationFigures,
}

/// A transport.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TransportFigures {
    /// Its name.
    pub name: String,
    /// Its connections now.
    pub connections: u64,
    /// Connections since the start.
    pub accepted: u64,
    /// Of these, refused because of a limit.
    pub refused: u64,
    /// Messages that its clients have published.
    pub messages_in: u64,
    /// Messages that were sent to them.
    pub messages_out: u64,
    /// Bytes that they have sent.
    pub bytes_in: u64,
    /// Bytes that were sent to them.
    pub bytes_out: u64,
}

/// Durations since the start, counted by upper bounds.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct DurationFigures {
    /// The upper bounds, in seconds.
    pub bounds_s: Vec<f64>,
    /// The number of durations up to each bound and above the bound before it, and the number of
    /// longer ones.
    pub counts: Vec<u64>,
    /// The sum of the durations, in seconds.
    pub sum_s: f64,
}

/// Every figure of an instance at one time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figures {
    /// The instance.
    pub server: ServerStats,
    /// The counters, the queues and the connections.
    #[serde(flatten)]
    pub stats: Stats,
    /// Every subscription, in the order of connections and of their numbers.
    #[serde(rename = "all_subscriptions")]
    pub subscriptions: Vec<SubscriptionStats>,
    /// Every topic, in the order of their names.
    pub topics: Vec<TopicStats>,
    /// The links to other instances.
    pub replication: ReplicationStats,
    /// The files of the journal.
    pub journal: JournalFigures,
    /// The transports, in the order of the configuration.
    pub transports: Vec<TransportFigures>,
    /// The ends of connections, by their reasons.
    pub disconnects: BTreeMap<&'static str, u64>,
    /// The times from the receipt of publishes to their persistence: one for the publishes of a
    /// client in a turn.
    pub persisted_durations: DurationFigures,
}

impl DurationFigures {
    /// Durations that were counted by the bounds of [`SYNC_BOUNDS_US`].
    pub fn new(counts: &[u64], sum: Duration) -> Self {
        DurationFigures {
            bounds_s: SYNC_BOUNDS_US.iter().map(|bound| *bound as f64 / 1e6).collect(),
            counts: counts.to_vec(),
            sum_s: sum.as_secs_f64(),
        }
    }
}

impl Figures {
    /// The figures as a JSON object.
    pub fn to_json(&self) -> String {
        // Fails only for maps whose keys are not text.
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// A part of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page<T> {
    /// The entries, in order.
    pub items: Vec<T>,
    /// There are more entries after the last one.
    pub has_more: bool,
}

/// Entries of a page.
pub const PAGE_COUNT_MAX: usize = 1000;

/// Bytes of a page as JSON. A client always takes frames of 128 KiB, for any limit on its messages.
const PAGE_SIZE_MAX: usize = 96 * 1024;

impl<T: Serialize> Page<T> {
    /// The items that fit into one reply.
    pub fn of(items: impl IntoIterator<Item = T>) -> Self {
        let mut page = Page { items: Vec::new(), has_more: false };
        let mut size = 0;
        for item in items {
            size += serde_json::to_string(&item).map_or(0, |json| json.len() + 1);
            if !page.items.is_empty() && (size > PAGE_SIZE_MAX || page.items.len() == PAGE_COUNT_MAX) {
                page.has_more = true;
                break;
            }
            page.items.push(item);
        }
        page
    }
}

impl Stats {
    /// The figures as a JSON object. The names of its fields are stable.
    pub fn to_json(&self) -> String {
        // Fails only for maps whose keys are not text.
        serde_json::to_string(self).unwrap_or_default()
    }
}

impl ReplicationStats {
    /// The figures as a JSON object. The names of its fields are stable.
    pub fn to_json(&self) -> String {
        // Fails only for maps whose keys are not text.
        serde_json::to_string(self).unwrap_or_default()
    }
}

fn seconds_of<S: Serializer>(ns: &Option<u64>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(ns.unwrap_or_default() as f64 / 1e9)
}

fn ns_of<S: Serializer>(time: &Timestamp, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(time.as_ns())
}

fn number_of<S: Serializer>(connection: &ConnectionId, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(connection.0)
}
