//! The configuration of a broker, as the drivers pass it: one JSON object. Every key is checked.

pub mod computed;
pub mod conflated;
mod joins;
pub mod links;
pub mod queues;
pub mod route;
pub mod tables;
pub mod views;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use quire_journal::{Action, JournalError};
use serde::Deserialize;

use crate::delivered::Watch;
use crate::entitlement::{Entitlements, EntrySettings, Explanation, Right, UserLimitSettings, UserLimits};
use crate::events::EventsConfig;
use crate::offline::{backlog_max, share_of};
use crate::topic::RecordingRule;
use conflated::ConflatedTopicSettings;
use links::{Definition as LinkDefinition, ReplicatedTopic, ReplicationConfig};
use queues::{Definition, QueueSettings};
use quire_expression::filter::{ClientFacts, FilterOptions, InstanceFacts, similar};
use quire_expression::message_type::MessageType;
use quire_expression::select::Select;
use quire_expression::topic::TopicSelector;
use quire_queue::QUEUES_MAX;
use tables::{SourceQueue, SowTopicSettings, TableDefinition};
use views::ViewSettings;

/// The settings that a broker needs before it starts.
///
/// In JSON, every key is optional, and an unknown key is an error. Without a `transaction_log`
/// every topic is recorded as JSON.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BrokerConfig {
    /// Name of the instance. It is part of the publisher ids that are derived for publishes without
    /// a sequence.
    pub name: String,
    /// What is recorded, where and how durably.
    pub transaction_log: TransactionLogConfig,
    /// Whether filters may contain patterns that require a backtracking engine; see
    /// [`FilterOptions::allow_backtracking`].
    pub allow_backtracking_patterns: bool,
    /// The queues over recorded topics.
    pub queues: Vec<QueueSettings>,
    /// The topics that keep the newest message of each key.
    pub sow_topics: Vec<SowTopicSettings>,
    /// The topics that are computed from last-value topics.
    pub views: Vec<ViewSettings>,
    /// The copies of last-value topics and views that change once per interval.
    pub conflated_topics: Vec<ConflatedTopicSettings>,
    /// Links to other instances.
    pub replication: ReplicationConfig,
    /// Which user may do what. Without an entry, every user may do everything.
    pub entitlements: Vec<EntrySettings>,
    /// The limits of users. The first entry that matches a user decides.
    pub user_limits: Vec<UserLimitSettings>,
    /// The transports. The driver names the transport of each connection by its index in this list.
    pub transports: Vec<TransportConfig>,
    /// The limits of all connections together.
    pub limits: Limits,
    /// The events of the server, as messages and for actions.
    pub events: EventsConfig,
}

/// The transaction log.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TransactionLogConfig {
    /// The directory of the journal files; `None` keeps the journal in memory.
    pub journal_directory: Option<PathBuf>,
    /// The directory of archived journal files.
    pub journal_archive_directory: Option<PathBuf>,
    /// The actions on full journal files, and their schedule.
    pub maintenance: MaintenanceConfig,
    /// Size of a journal file in bytes, at least 64 KiB.
    pub journal_size: u64,
    /// Journal files that are created before they are needed, at least 1.
    pub preallocated_journal_files: u32,
    /// The longest time that a message may wait for its flush to start, in nanoseconds: 30 us to
    /// 100 ms.
    pub flush_interval_ns: u64,
    /// The meaning of "persisted".
    pub durability: Durability,
    /// The topics that are recorded; every topic as JSON by default. The first entry that names a
    /// topic decides. A publish with a sequence is refused when no entry names its topic.
    pub topics: Vec<RecordedTopic>,
}

/// The schedule for full journal files. The age of a file is the age of its last record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MaintenanceConfig {
    /// Files move to the archive directory at this age, in nanoseconds; `None`: never.
    pub archive_after_ns: Option<u64>,
    /// Files are compressed at this age, in nanoseconds; `None`: never.
    pub compress_after_ns: Option<u64>,
    /// Files are removed at this age, in nanoseconds, unless they are needed; `None`: never.
    pub remove_after_ns: Option<u64>,
    /// The oldest files move to the archive directory until the files outside of it have at most
    /// this total size, in bytes; `None`: never.
    pub archive_size_max: Option<u64>,
    /// The oldest files are compressed until the uncompressed files have at most this total size,
    /// in bytes; `None`: never.
    pub compress_size_max: Option<u64>,
    /// The oldest files are removed, unless they are needed, until all files have at most this
    /// total size, in bytes; `None`: never.
    pub remove_size_max: Option<u64>,
    /// The time between two checks of all files, in nanoseconds.
    pub interval_ns: u64,
    /// The broker follows these rules. `false`: the driver does.
    pub is_scheduled: bool,
    /// The actions that clients may request.
    pub by_clients: ByClients,
}

/// The actions on full journal files that clients may request. All are allowed by default here. The
/// driver listens, so it decides which clients can reach the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ByClients {
    /// Clients may archive files.
    pub archive: bool,
    /// Clients may compress files.
    pub compress: bool,
    /// Clients may remove files, unless the files are needed.
    pub remove: bool,
}

impl ByClients {
    /// Whether clients may request the action.
    pub fn allows(&self, action: Action) -> bool {
        match action {
            Action::Archive => self.archive,
            Action::Compress => self.compress,
            Action::Remove => self.remove,
        }
    }
}

impl Default for ByClients {
    fn default() -> Self {
        ByClients { archive: true, compress: true, remove: true }
    }
}

impl Default for MaintenanceConfig {
    fn default() -> Self {
        MaintenanceConfig {
            archive_after_ns: None,
            compress_after_ns: None,
            remove_after_ns: None,
            archive_size_max: None,
            compress_size_max: None,
            remove_size_max: None,
            interval_ns: 600_000_000_000,
            is_scheduled: true,
            by_clients: ByClients::default(),
        }
    }
}

/// The condition under which a message is persisted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Durability {
    /// A sync of the file has returned: the message survives a power failure.
    #[default]
    Fsync,
    /// The operating system has the message: it survives a crash of the process, but not a crash of
    /// the machine.
    Os,
}

/// One entry of the list of recorded topics. A message that several entries match is recorded once.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecordedTopic {
    /// Exact name, or a pattern when it contains any of `^ $ * + ? [ ] ( ) { } | \`.
    pub name: String,
    /// Name of the message type, as in `json`.
    pub message_type: String,
    /// Only messages that match are recorded. The others are accepted.
    #[serde(default)]
    pub filter: Option<String>,
    /// `false`: the topics are deliberately unrecorded. Their publishes are accepted, and not
    /// persisted.
    #[serde(default = "is_recorded_by_default")]
    pub recorded: bool,
    /// Messages that are not well formed are refused. This requires the message type `json`.
    #[serde(default)]
    pub validate: bool,
}

impl RecordedTopic {
    /// Every message on the topics is recorded.
    pub fn new(name: &str, message_type: &str) -> Self {
        RecordedTopic {
            name: name.into(),
            message_type: message_type.into(),
            filter: None,
            recorded: true,
            validate: false,
        }
    }
}

fn is_recorded_by_default() -> bool {
    true
}

/// A transport. The driver decides where it listens. The limits of its connections are here
/// (docs/protocol.md section 6).
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TransportConfig {
    /// For logs and messages.
    pub name: String,
    /// Largest data of a message that a client may publish, in bytes. A larger message closes the
    /// connection. Subscribers also receive larger messages.
    pub max_message_size: u32,
    /// The most concurrent connections. A further connection receives `limit_exceeded` and is
    /// closed.
    pub max_connections: u32,
    /// The most subscriptions of one connection. A further subscription fails with
    /// `limit_exceeded`.
    pub max_subscriptions_per_connection: u32,
    /// Patterns (`LIKE`, `REGEXP_REPLACE`) in the filters of the subscriptions of one connection.
    /// Each takes some 10 KB, and microseconds for each message. A subscription that exceeds the
    /// limit fails with `limit_exceeded`.
    pub max_patterns_per_connection: u32,
    /// Bytes that wait to be sent on one connection, without the bytes of replays. Above the limit,
    /// the connection is ended as `slow_consumer`.
    pub max_client_backlog: u64,
    /// The part of `max_waiting` and of `message_disk_limit` that one connection may use, in
    /// thousandths.
    pub client_max_capacity: u16,
    /// Bytes that may wait in memory for all of its connections; `None`: only the limit of all
    /// transports together.
    pub message_memory_limit: Option<u64>,
    /// The same on disk. 0: its connections are not offlined.
    pub message_disk_limit: Option<u64>,
    /// The age of the oldest unread message above which a connection is ended as `slow_consumer`,
    /// in nanoseconds; `None`: no age.
    pub client_message_age_limit_ns: Option<u64>,
    /// Time within which a connection must have logged on, in nanoseconds.
    pub logon_timeout_ns: u64,
    /// The driver checks the password of each logon, except those of administrators.
    pub authenticates: bool,
    /// Its connections are encrypted, for the figures.
    pub tls: bool,
    /// Its clients are those of requests of the HTTP server. There may be many short connections.
    pub is_inside: bool,
}

/// The limits on all connections together, and on the log (docs/protocol.md section 6).
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Patterns in the filters of all subscriptions: see
    /// [`TransportConfig::max_patterns_per_connection`].
    pub max_patterns: u32,
    /// Bytes that wait to be sent on all connections. Above the limit, the connection with the
    /// largest share is ended as `slow_consumer`. Without the limit, `max_connections` times
    /// `max_client_backlog` could wait.
    pub max_waiting: u64,
    /// Bytes of messages for slow connections on disk; 0: none, and a connection beyond its limit
    /// is ended.
    pub message_disk_limit: u64,
    /// The directory of these messages; `None`: as with a limit of 0.
    pub message_disk_path: Option<PathBuf>,
    /// Bytes appended but not yet persisted. Above the limit, the server stops reading from
    /// publishers until the journal has caught up.
    pub max_unpersisted: u64,
    /// Bytes of buffered frames that are incomplete, or that wait to be processed. The connection
    /// that exceeds the limit gets `limit_exceeded` and is closed. Without the limit, one frame for
    /// each of `max_connections` connections could be buffered.
    pub max_unfinished: u64,
    /// Topics of the log. A publish to a further topic is refused with `limit_exceeded`. A topic
    /// counts until the last journal file that contains it is removed.
    pub max_topics: u32,
    /// Queues that clients created at run time. A command to create a further queue fails with
    /// `limit_exceeded`.
    pub max_created_queues: u32,
    /// Bytes of records that were replaced before a query had sent them, for one query. A query
    /// that needs more ends with `limit_exceeded`.
    pub max_query_copies: u64,
    /// Topics with records of all last-value topics that have a pattern. A publish to a further
    /// topic is refused with `limit_exceeded`.
    pub max_pattern_topics: u32,
    /// A publisher whose sequence increases by more than this at once is logged, once per
    /// connection.
    pub sequence_jump_logged: u64,
}

/// The parts of a configuration that were compiled.
pub struct Compiled {
    pub rules: Vec<RecordingRule>,
    pub queues: Vec<Definition>,
    /// The last-value topics, and then the views and the conflated topics. Each of these follows
    /// its source. Then follow the tables of the queues that views read.
    pub tables: Vec<TableDefinition>,
    pub links: Vec<LinkDefinition>,
    pub entitlements: Option<Arc<Entitlements>>,
    pub user_limits: UserLimits,
    /// The deliveries that actions want.
    pub watches: Vec<Watch>,
}

/// The part of a configuration that a running server can exchange.
#[derive(Clone, Debug)]
pub struct AccessRules {
    /// `None`: every user may do everything.
    pub entitlements: Option<Arc<Entitlements>>,
    pub user_limits: Arc<UserLimits>,
    /// By transport: the driver checks the password of each logon.
    pub authenticates: Vec<bool>,
    /// The driver checks the logon of an instance that connects.
    pub authenticates_links: bool,
}

/// A value that cannot be used: an error in the configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {reason}")]
pub struct ConfigError {
    /// Path of the key, as in `transaction_log.topics[0].filter`; empty when the text is not an
    /// object at all.
    pub key: String,
    /// What is wrong with its value, and which values are valid.
    pub reason: String,
}

/// Every value that cannot be used.
#[derive(Clone, Debug, Default)]
pub struct ConfigErrors(Vec<ConfigError>);

impl ConfigErrors {
    pub fn push(&mut self, error: ConfigError) {
        self.0.push(error);
    }

    /// The value; an error is kept.
    pub fn note<T>(&mut self, result: Result<T, ConfigError>) -> Option<T> {
        result.map_err(|error| self.push(error)).ok()
    }

    pub fn any(&self) -> bool {
        !self.0.is_empty()
    }

    /// The value, unless there are errors.
    pub fn none_or<T>(self, value: T) -> Result<T, ConfigErrors> {
        if self.0.is_empty() { Ok(value) } else { Err(self) }
    }
}

impl From<ConfigError> for ConfigErrors {
    fn from(error: ConfigError) -> Self {
        ConfigErrors(vec![error])
    }
}

/// The first error.
impl From<ConfigErrors> for ConfigError {
    fn from(errors: ConfigErrors) -> Self {
        errors.0.into_iter().next().unwrap_or_else(|| ConfigError::new("", "no error"))
    }
}

impl From<ConfigErrors> for OpenError {
    fn from(errors: ConfigErrors) -> Self {
        OpenError::Config(errors.into())
    }
}

/// Why there is no broker.
#[derive(Clone, Debug, thiserror::Error)]
pub enum OpenError {
    /// A value of the configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The log cannot be read, so the queues cannot be rebuilt.
    #[error(transparent)]
    Journal(#[from] JournalError),
}

impl ConfigError {
    pub fn new(key: impl Into<String>, reason: impl Into<String>) -> Self {
        ConfigError { key: key.into(), reason: reason.into() }
    }

    /// Text of another form than expected.
    pub fn of_json(error: &serde_json::Error) -> Self {
        ConfigError::new(key_of(error), error.to_string())
    }
}

impl BrokerConfig {
    /// Reads and checks a configuration.
    ///
    /// # Errors
    /// [`ConfigError`] for the first key that is unknown, of the wrong kind or out of its range.
    pub fn from_json(text: &str) -> Result<Self, ConfigError> {
        let config = Self::unchecked(text)?;
        config.check()?;
        Ok(config)
    }

    /// The mistakes in a configuration. Without mistakes, the result is the settings that are valid
    /// and probably not intended: for example, no topic is recorded, or messages of a queue are not
    /// recorded. Text that is not a configuration counts as one mistake.
    pub fn diagnose(text: &str) -> (Vec<ConfigError>, Vec<String>) {
        let checked = Self::unchecked(text).map_err(ConfigErrors::from).and_then(|config| {
            config.check()?;
            let Compiled { rules, queues, .. } = config.compile()?;
            Ok(config.warnings(&rules, &queues))
        });
        match checked {
            Ok(warnings) => (Vec::new(), warnings),
            Err(errors) => (errors.0, Vec::new()),
        }
    }

    /// Why the entries of a configuration allow a request, or refuse it, as JSON.
    ///
    /// # Errors
    /// The first mistake in the configuration or in the request.
    pub fn explain_entitlement(
        text: &str,
        user: &str,
        groups: Vec<String>,
        right: &str,
        topic: &str,
    ) -> Result<String, ConfigError> {
        let Some(right) = Right::of_name(right) else {
            let names = Right::ALL.map(Right::name).join(", ");
            return Err(ConfigError::new("right", format!("expected one of {names}")));
        };
        let config = Self::unchecked(text)?;
        let groups: Vec<Box<str>> = groups.into_iter().map(Into::into).collect();
        let explanation = match Entitlements::compile(&config.entitlements, &config.filter_options())? {
            Some(entitlements) => entitlements.explain(user, &groups, right, topic),
            None => Explanation::without_entries(&groups),
        };
        serde_json::to_string(&explanation).map_err(|error| ConfigError::of_json(&error))
    }

    /// The part of a configuration that a running server can exchange.
    ///
    /// # Errors
    /// The first mistake.
    pub fn access_rules_of(text: &str) -> Result<AccessRules, ConfigError> {
        let config = Self::from_json(text)?;
        let Compiled { entitlements, user_limits, .. } = config.compile()?;
        let authenticates = config.transports.iter().map(|transport| transport.authenticates).collect();
        let (user_limits, authenticates_links) = (Arc::new(user_limits), config.replication.authenticates);
        Ok(AccessRules { entitlements, user_limits, authenticates, authenticates_links })
    }

    fn unchecked(text: &str) -> Result<Self, ConfigError> {
        serde_json::from_str(text).map_err(|error| ConfigError::of_json(&error))
    }

    /// The part of the configuration that the journal is opened with.
    pub fn journal_options(&self) -> quire_journal::Options {
        let log = &self.transaction_log;
        quire_journal::Options {
            segment_size: log.journal_size,
            prepared_segments: log.preallocated_journal_files as usize,
            flush_interval: Duration::from_nanos(log.flush_interval_ns),
            durability: match log.durability {
                Durability::Fsync => quire_journal::Durability::Fsync,
                Durability::Os => quire_journal::Durability::Os,
            },
            // `max_unpersisted` slows publishers down. A second limit would refuse messages that
            // they were allowed to send.
            unpersisted_size_max: usize::MAX,
            archive_directory: log.journal_archive_directory.clone(),
            ..quire_journal::Options::default()
        }
    }

    /// The options for filters, and the values of `INSTANCE_NAME()` and similar functions. The
    /// client is unknown here.
    pub fn filter_options(&self) -> FilterOptions {
        FilterOptions {
            allow_backtracking: self.allow_backtracking_patterns,
            client: ClientFacts::default(),
            instance: InstanceFacts {
                name: Some(self.name.clone()),
                group: Some(self.group().to_owned()),
                version: Some(env!("CARGO_PKG_VERSION").to_owned()),
            },
            hidden: None,
            joined: None,
        }
    }

    /// The group of the instance.
    pub fn group(&self) -> &str {
        self.replication.group.as_deref().unwrap_or(&self.name)
    }

    /// Whether only this instance has the queue.
    pub fn is_local_queue(&self, name: &str) -> bool {
        self.replication.local_queues.iter().any(|queue| queue == name)
    }

    /// The largest message that any connection may publish, in bytes.
    pub fn message_size_max(&self) -> usize {
        self.transports.iter().map(|transport| transport.max_message_size as usize).max().unwrap_or_default()
    }

    /// Refuses values out of their range. Patterns, message types and filters are checked where
    /// they are compiled.
    pub fn check(&self) -> Result<(), ConfigErrors> {
        let limits = &self.limits;
        let log = &self.transaction_log;
        let mut errors = ConfigErrors::default();
        errors.note(check_name(&self.name));
        let ranges = [
            ("transaction_log.journal_size", log.journal_size, JOURNAL_SIZE_MIN, u64::MAX),
            ("transaction_log.preallocated_journal_files", log.preallocated_journal_files.into(), 1, 1024),
            ("transaction_log.flush_interval_ns", log.flush_interval_ns, 30_000, 100_000_000),
            ("transaction_log.maintenance.interval_ns", log.maintenance.interval_ns, 1, u64::MAX),
            ("limits.max_patterns", limits.max_patterns.into(), 0, 1 << 20),
            ("limits.max_unpersisted", limits.max_unpersisted, 1024, u64::MAX),
            ("limits.max_waiting", limits.max_waiting, 1024, u64::MAX),
            ("limits.max_unfinished", limits.max_unfinished, 1024, u64::MAX),
            ("limits.max_topics", limits.max_topics.into(), 1, 1 << 26),
            ("limits.max_created_queues", limits.max_created_queues.into(), 0, QUEUES_MAX as u64),
            ("limits.max_query_copies", limits.max_query_copies, 1024, u64::MAX),
            ("limits.max_pattern_topics", limits.max_pattern_topics.into(), 1, 1 << 20),
            ("limits.sequence_jump_logged", limits.sequence_jump_logged, 1, u64::MAX),
        ];
        for (key, value, low, high) in ranges {
            errors.note(check_range(key, value, low, high));
        }
        if self.transports.is_empty() || self.transports.len() > TRANSPORTS_MAX {
            let reason = format!("{} transports, not 1 to {TRANSPORTS_MAX}", self.transports.len());
            errors.push(ConfigError::new("transports", reason));
        }
        for (index, transport) in self.transports.iter().enumerate() {
            transport.check(&format!("transports[{index}]"), &mut errors);
        }
        // Other spellings of the same path are detected when the journal is opened.
        if log.journal_directory.is_some() && log.journal_archive_directory == log.journal_directory {
            let key = "transaction_log.journal_archive_directory";
            errors.push(ConfigError::new(key, "it is the journal directory itself"));
        }
        let maintenance = &log.maintenance;
        let archiving = [
            ("transaction_log.maintenance.archive_after", maintenance.archive_after_ns),
            ("transaction_log.maintenance.archive_size_max", maintenance.archive_size_max),
        ];
        let archives = archiving.into_iter().find(|(_, value)| value.is_some());
        if let Some((key, _)) = archives.filter(|_| log.journal_archive_directory.is_none()) {
            errors.push(ConfigError::new(key, "it requires journal_archive_directory"));
        }
        if let Err(ConfigErrors(compiling)) = self.compile() {
            errors.0.extend(compiling);
        }
        errors.none_or(())
    }

    /// The recording rules, the queues, the last-value topics and the topics computed from them,
    /// with their patterns and filters compiled. Queues and last-value topics are checked only when
    /// the rules are valid, because their checks depend on the rules. Views and conflated topics
    /// are checked when all others are valid.
    pub fn compile(&self) -> Result<Compiled, ConfigErrors> {
        self.compile_with(&[])
    }

    /// As [`compile`](Self::compile). Views can read queues that were created at run time, too.
    ///
    /// # Errors
    /// [`ConfigErrors`] with every bad key.
    pub fn compile_with(&self, created: &[SourceQueue]) -> Result<Compiled, ConfigErrors> {
        let options = self.filter_options();
        let rules = RecordingRule::compile(&self.transaction_log.topics, &options)?;
        let names: Vec<_> = self.queues.iter().map(|queue| queue.name.as_str().into()).collect();
        let settings = self.events.with_letters(&self.queues);
        let queues = Definition::compile(&settings, &rules, &options);
        let tables = TableDefinition::compile(&self.sow_topics, &rules, &names, &options);
        let links = self.replication.compile(&self.name, &options);
        let entitlements = Entitlements::compile(&self.entitlements, &options);
        let user_limits = UserLimits::compile(&self.user_limits);
        let watches = Watch::compile(&self.events.delivered, &options);
        match (queues, tables, links, entitlements, user_limits, watches) {
            (Ok(queues), Ok(mut tables), Ok(links), Ok(entitlements), Ok(user_limits), Ok(watches)) => {
                let mut errors = ConfigErrors::default();
                let known = computed::Known { tables: &tables, queues: &queues, created };
                let computed = computed::compile(&self.views, &self.conflated_topics, &known, &options);
                let computed = match computed {
                    Ok(computed) => computed,
                    Err(mistakes) => {
                        errors.0.extend(mistakes.0);
                        Vec::new()
                    }
                };
                known.check_queues(&computed, &mut errors);
                tables.extend(computed);
                check_selects(entitlements.as_deref(), &tables, &mut errors);
                let shared = queues.iter().enumerate().filter(|(_, queue)| !self.is_local_queue(&queue.name));
                for (index, queue) in shared {
                    if let Some(refused) = self.replication.refuses(queue, true) {
                        errors.push(ConfigError::new(format!("queues[{index}].name"), refused));
                    }
                }
                errors.none_or(Compiled { rules, queues, tables, links, entitlements, user_limits, watches })
            }
            (queues, tables, links, entitlements, user_limits, watches) => {
                let mut errors = queues.err().unwrap_or_default();
                errors.0.extend(tables.err().unwrap_or_default().0);
                errors.0.extend(links.err().unwrap_or_default().0);
                errors.0.extend(entitlements.err().unwrap_or_default().0);
                errors.0.extend(user_limits.err().unwrap_or_default().0);
                errors.0.extend(watches.err().unwrap_or_default().0);
                Err(errors)
            }
        }
    }

    /// The second part of the result of [`BrokerConfig::diagnose`].
    pub fn warnings(&self, rules: &[RecordingRule], queues: &[Definition]) -> Vec<String> {
        let mut warnings = Vec::new();
        let log = &self.transaction_log;
        if log.durability == Durability::Os && log.journal_directory.is_some() {
            warnings.push(
                "transaction_log.durability is \"os\": messages are acknowledged before they are on the disk, and a power \
                 cut can lose the last ones"
                    .to_owned(),
            );
        }
        if !rules.iter().any(RecordingRule::records) {
            warnings.push(
                "the transaction log records nothing: no transaction_log.topic has recorded = true. Messages are \
                 delivered to current subscribers only"
                    .to_owned(),
            );
        }
        self.warn_of_sizes(&mut warnings);
        for queue in queues {
            warn_of_recording(rules, queue, &mut warnings);
            let is_local = self.is_local_queue(&queue.name);
            if let Some(reason) = self.replication.refuses(queue, false).filter(|_| !is_local) {
                warnings.push(format!("queue {:?}: {reason}", queue.name));
            }
            let topic = queue.dead_letter_topic.as_deref().unwrap_or_default();
            if let Some(to) = self.replication.sends(topic, MessageType::Json).filter(|_| is_local) {
                warnings.push(format!(
                    "local_queue {:?}: its dead_letter_topic {topic:?} is sent to {to:?}. If both instances have the queue, each \
                     has the dead letters of both, and a redrive on each publishes every message twice. Use a \
                     dead_letter_topic that is not replicated, or redrive on one instance only",
                    queue.name
                ));
            }
            if self.sow_topics.iter().any(|table| table.key.is_empty() && table.includes(topic)) {
                warnings.push(format!(
                    "queue {:?}: its dead_letter_topic {topic:?} is a last-value topic whose keys publishers supply. A dead \
                     letter has no key, so it never becomes a record; name another topic, or give the topic a key such as \
                     [\"/queue\", \"/position\"]",
                    queue.name
                ));
            }
            // Dead letters on a topic without a queue are for subscribers, unless the name is
            // probably misspelled.
            let is_taken = queues.iter().any(|other| other.selector.matches(topic));
            let others = queues.iter().map(|other| other.selector.text());
            if let Some(similar) = similar(topic, others).filter(|_| !is_taken) {
                warnings.push(format!(
                    "queue {:?}: no queue takes messages from its dead_letter_topic {topic:?}, perhaps {similar:?} is meant",
                    queue.name
                ));
            }
        }
        warnings
    }

    /// Warns of limits that are too small for the largest message of another transport. Every
    /// connection may receive this message.
    fn warn_of_sizes(&self, warnings: &mut Vec<String>) {
        let limits = &self.limits;
        let Some(largest) = self.transports.iter().max_by_key(|transport| transport.max_message_size) else {
            return;
        };
        let (name, size) = (&largest.name, largest.max_message_size);
        for transport in &self.transports {
            if transport.max_message_size < size {
                warnings.push(format!(
                    "transport {:?}: clients may publish {} bytes (max_message_size), and those of the transport {name:?} {size} \
                     bytes. Its subscribers receive messages that are larger than what they may publish",
                    transport.name, transport.max_message_size
                ));
            }
            let offlines = limits.message_disk_path.is_some()
                && limits.message_disk_limit > 0
                && transport.message_disk_limit != Some(0);
            if backlog_max(transport.max_client_backlog, offlines) < size.into() {
                warnings.push(format!(
                    "transport {:?}: max_client_backlog is {} bytes, and clients of the transport {name:?} may publish {size} \
                     bytes (max_message_size). Such a message disconnects ordinary subscribers with slow_consumer",
                    transport.name, transport.max_client_backlog
                ));
            }
        }
        if self.limits.max_unfinished < size.into() {
            warnings.push(format!(
                "limits.max_unfinished is {} bytes, and clients of the transport {name:?} may publish {size} bytes \
                 (max_message_size). Such a publish ends its connection with limit_exceeded",
                self.limits.max_unfinished
            ));
        }
    }
}

/// Refuses select lists of entries that hide the key of a last-value topic.
fn check_selects(entitlements: Option<&Entitlements>, tables: &[TableDefinition], errors: &mut ConfigErrors) {
    for table in tables {
        for number in hiding(entitlements, table) {
            let reason = format!("it hides a field of the key of the last-value topic {:?}", table.name);
            errors.push(ConfigError::new(format!("entitlements[{}].select", number - 1), reason));
        }
    }
}

/// The numbers of the entitlements whose `select` hides a field of the key of a last-value topic.
pub fn hiding<'a>(
    entitlements: Option<&'a Entitlements>,
    table: &'a TableDefinition,
) -> impl Iterator<Item = usize> + 'a {
    let selects = entitlements.into_iter().flat_map(|entitlements| entitlements.selects_of(&table.name));
    let hides = |select: Select| table.key_fields.iter().any(|field| select.hides(field));
    let hiding = selects.filter(move |(_, select)| Select::granted([*select]).is_ok_and(hides));
    hiding.map(|(number, _)| number)
}

impl ReplicationConfig {
    /// A destination to which messages of a topic are sent.
    fn sends(&self, topic: &str, message_type: MessageType) -> Option<&str> {
        let sends = |sent: &ReplicatedTopic| {
            sent.message_type == message_type.name()
                && TopicSelector::new(&sent.name).is_ok_and(|selector| selector.matches(topic))
        };
        let found = self.destinations.iter().find(|destination| destination.topics.iter().any(sends));
        found.map(|destination| destination.name.as_str())
    }

    /// Why a queue that is not local cannot exist here: messages of its topics also arrive from
    /// another instance. With `is_certain`, the destination of a sync link must send them here, or
    /// it refuses the link. Otherwise, it may send them.
    pub fn refuses(&self, queue: &Definition, is_certain: bool) -> Option<String> {
        if !self.accepts {
            return None;
        }
        let shares = |sent: &ReplicatedTopic| {
            let Ok(selector) = TopicSelector::new(&sent.name) else { return false };
            let names_one = matches!(&selector, TopicSelector::Name(name) if queue.selector.matches(name));
            sent.message_type == queue.message_type.name()
                && (names_one || selector.matches(&queue.publish_target))
        };
        let sharing = self.destinations.iter().filter(|destination| destination.topics.iter().any(shares));
        let mut sharing = sharing.filter(|destination| destination.is_mutual() == is_certain);
        let name = &sharing.next()?.name;
        let (topics, advice) = (
            queue.selector.text(),
            "define it as [[local_queue]]: then each instance delivers every message to its own consumers",
        );
        Some(match is_certain {
            true => format!(
                "the queue takes messages of {topics:?}, which {name:?} and this instance send to each other, and the link would be \
                 refused; {advice}"
            ),
            false => format!(
                "it takes messages of {topics:?}, which are sent to {name:?}. If {name:?} sends them to this instance, too, the link \
                 is refused: then {advice}"
            ),
        })
    }
}

impl TransportConfig {
    /// [`TransportConfig::logon_timeout_ns`] as a duration.
    pub fn logon_timeout(&self) -> Duration {
        Duration::from_nanos(self.logon_timeout_ns)
    }

    /// [`TransportConfig::client_message_age_limit_ns`] as a duration.
    pub fn client_message_age_limit(&self) -> Option<Duration> {
        self.client_message_age_limit_ns.map(Duration::from_nanos)
    }

    /// Bytes that may wait for one connection in memory, before it is offlined.
    pub fn memory_share(&self, max_waiting: u64) -> u64 {
        let limit = self.message_memory_limit.map_or(max_waiting, |limit| limit.min(max_waiting));
        self.max_client_backlog.min(share_of(limit, self.client_max_capacity))
    }

    /// Bytes that may wait for one connection on disk.
    pub fn disk_share(&self, limit_of_all: u64) -> u64 {
        let limit = self.message_disk_limit.map_or(limit_of_all, |limit| limit.min(limit_of_all));
        share_of(limit, self.client_max_capacity)
    }

    fn check(&self, path: &str, errors: &mut ConfigErrors) {
        let subscriptions = self.max_subscriptions_per_connection.into();
        let ranges = [
            ("max_message_size", self.max_message_size.into(), 1, 1 << 30),
            ("max_connections", self.max_connections.into(), 1, 1 << 20),
            ("max_subscriptions_per_connection", subscriptions, 1, 1 << 20),
            ("max_patterns_per_connection", self.max_patterns_per_connection.into(), 0, 1 << 20),
            ("max_client_backlog", self.max_client_backlog, 1024, u64::MAX),
            ("client_max_capacity", self.client_max_capacity.into(), 1, 1000),
            ("message_memory_limit", self.message_memory_limit.unwrap_or(1024), 1024, u64::MAX),
            ("client_message_age_limit_ns", self.client_message_age_limit_ns.unwrap_or(1), 1, u64::MAX),
            ("logon_timeout_ns", self.logon_timeout_ns, 1, u64::MAX),
        ];
        for (key, value, low, high) in ranges {
            errors.note(check_range(&format!("{path}.{key}"), value, low, high));
        }
    }
}

impl Default for TransportConfig {
    fn default() -> Self {
        TransportConfig {
            name: "clients".into(),
            max_message_size: 16 << 20,
            max_connections: 10_000,
            max_subscriptions_per_connection: 1024,
            max_patterns_per_connection: 1024,
            max_client_backlog: 64 << 20,
            client_max_capacity: 500,
            message_memory_limit: None,
            message_disk_limit: None,
            client_message_age_limit_ns: None,
            logon_timeout_ns: 5_000_000_000,
            authenticates: false,
            tls: false,
            is_inside: false,
        }
    }
}

impl Default for BrokerConfig {
    fn default() -> Self {
        BrokerConfig {
            name: "quire".into(),
            transaction_log: TransactionLogConfig::default(),
            allow_backtracking_patterns: false,
            queues: Vec::new(),
            sow_topics: Vec::new(),
            views: Vec::new(),
            conflated_topics: Vec::new(),
            replication: ReplicationConfig::default(),
            entitlements: Vec::new(),
            user_limits: Vec::new(),
            transports: vec![TransportConfig::default()],
            limits: Limits::default(),
            events: EventsConfig::default(),
        }
    }
}

impl Default for TransactionLogConfig {
    fn default() -> Self {
        TransactionLogConfig {
            journal_directory: None,
            journal_archive_directory: None,
            maintenance: MaintenanceConfig::default(),
            journal_size: 64 << 20,
            preallocated_journal_files: 2,
            flush_interval_ns: 100_000_000,
            durability: Durability::Fsync,
            topics: vec![RecordedTopic::new(".*", "json")],
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            max_patterns: 8192,
            max_waiting: 1 << 30,
            message_disk_limit: 1 << 30,
            message_disk_path: None,
            max_unpersisted: 64 << 20,
            max_unfinished: 256 << 20,
            max_topics: 100_000,
            max_created_queues: 1000,
            max_query_copies: 64 << 20,
            max_pattern_topics: 10_000,
            sequence_jump_logged: 1_000_000,
        }
    }
}

/// A limit far above the number of transports of a server. It is one more than a configuration may
/// have, because clients inside of the server have their own.
const TRANSPORTS_MAX: usize = 66;

/// A smaller journal file would contain hardly more than its header.
const JOURNAL_SIZE_MIN: u64 = 64 << 10;

/// The longest name of an instance.
const NAME_SIZE_MAX: usize = 100;

fn check_range(key: &str, value: u64, low: u64, high: u64) -> Result<(), ConfigError> {
    if (low..=high).contains(&value) {
        return Ok(());
    }
    let reason = if high == u64::MAX {
        format!("{value} is too small, at least {low}")
    } else {
        format!("{value} is not between {low} and {high}")
    };
    Err(ConfigError::new(key, reason))
}

/// A name without spaces and signs. It is used in log lines and in the values that filters compute.
fn check_name(name: &str) -> Result<(), ConfigError> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if name.is_empty() || name.len() > NAME_SIZE_MAX || name.starts_with('.') || !name.chars().all(plain) {
        let reason = format!(
            "{name:?} is not 1 to {NAME_SIZE_MAX} letters, digits, '-', '_' or '.', not beginning with '.'"
        );
        return Err(ConfigError::new("name", reason));
    }
    Ok(())
}

/// The key that a JSON error is about, when the error names it between backticks.
fn key_of(error: &serde_json::Error) -> String {
    let text = error.to_string();
    text.split('`').nth(1).unwrap_or_default().to_owned()
}

/// Warns of underlying topics of a queue whose messages do not enter it.
fn warn_of_recording(rules: &[RecordingRule], queue: &Definition, warnings: &mut Vec<String>) {
    let unrecorded = rules.iter().filter(|rule| !rule.records()).filter_map(RecordingRule::name);
    for topic in unrecorded.filter(|topic| queue.selector.matches(topic)) {
        warnings.push(format!(
            "queue {:?}: the transaction log does not record its underlying topic {topic:?}, so messages on it \
             do not enter the queue",
            queue.name
        ));
    }
    let filtered = rules.iter().filter(|rule| rule.has_filter()).filter_map(RecordingRule::name);
    for topic in filtered.filter(|topic| queue.selector.matches(topic)) {
        warnings.push(format!(
            "queue {:?}: the transaction log records only a part of its underlying topic {topic:?}, because of \
             the filter of its transaction_log.topic; the other messages do not enter the queue",
            queue.name
        ));
    }
    let named = rules.iter().filter_map(RecordingRule::name);
    for topic in named.filter(|topic| queue.selector.matches(topic)) {
        let recorded = RecordingRule::message_type_of(rules, topic);
        if let Some(other) = recorded.filter(|recorded| *recorded != queue.message_type) {
            warnings.push(format!(
                "queue {:?}: the transaction log records its underlying topic {topic:?} as {}, and the queue has the \
                 message_type {}, so messages on it do not enter the queue",
                queue.name,
                other.name(),
                queue.message_type.name()
            ));
        }
    }
}
