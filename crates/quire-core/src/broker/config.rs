//! What a broker is configured with, as the drivers hand it over: one JSON object, every key of which is checked.

use std::path::PathBuf;
use std::time::Duration;

use quire_journal::{Action, JournalError};
use serde::Deserialize;

use super::queues::{Definition, QueueSettings};
use crate::filter::{ClientFacts, FilterOptions, InstanceFacts};

/// Everything that a broker needs to know before it starts.
///
/// From JSON every key may be left out and an unknown one is an error. Without a `transaction_log` every topic is recorded as JSON.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BrokerConfig {
    /// Name of the instance: part of the publisher ids derived for publishes without a sequence (seed 004).
    pub name: String,
    /// What is recorded, where and how durably.
    pub transaction_log: TransactionLogConfig,
    /// Whether filters may hold patterns that only a backtracking engine runs; see [`FilterOptions::allow_backtracking`].
    pub allow_backtracking_patterns: bool,
    /// The queues over recorded topics.
    pub queues: Vec<QueueSettings>,
    /// What may grow, and how far.
    pub limits: Limits,
}

/// The transaction log (seed 003).
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TransactionLogConfig {
    /// Where the journal files are; `None` keeps the journal in memory.
    pub journal_directory: Option<PathBuf>,
    /// Where archived journal files go, and where those are that went there.
    pub journal_archive_directory: Option<PathBuf>,
    /// What is done with full journal files, and when.
    pub upkeep: UpkeepConfig,
    /// Size of a journal file in bytes, at least 64 KiB.
    pub journal_size: u64,
    /// Journal files made ready before they are needed, at least 1.
    pub preallocated_journal_files: u32,
    /// The longest a message may wait for its flush to start, in nanoseconds: 30 us to 100 ms.
    pub flush_interval_ns: u64,
    /// What "persisted" means.
    pub durability: Durability,
    /// The topics that are recorded. Empty: the log is there and records nothing (reference: queues-and-transaction-log 2.1 J4).
    pub topics: Vec<RecordedTopic>,
}

/// What becomes of journal files that are full (reference: queues-and-transaction-log 2.6). Ages are those of the last record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct UpkeepConfig {
    /// They move to the archive directory at this age, in nanoseconds; `None`: never.
    pub archive_after_ns: Option<u64>,
    /// They are compressed at this age, in nanoseconds; `None`: never.
    pub compress_after_ns: Option<u64>,
    /// They are removed at this age, in nanoseconds, as far as nobody needs them; `None`: never.
    pub remove_after_ns: Option<u64>,
    /// The oldest move to the archive directory until those outside of it are this large at most, in bytes; `None`: never.
    pub archive_size_max: Option<u64>,
    /// The oldest are compressed until those that are not are this large at most, in bytes; `None`: never.
    pub compress_size_max: Option<u64>,
    /// The oldest are removed, as far as nobody needs them, until all are this large at most, in bytes; `None`: never.
    pub remove_size_max: Option<u64>,
    /// The time between two looks at all of them, in nanoseconds.
    pub interval_ns: u64,
    /// What clients may ask for.
    pub by_clients: ByClients,
}

/// What clients may have done with full journal files. From here everything: who may reach the server is known where it listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ByClients {
    /// They may archive them.
    pub archive: bool,
    /// They may compress them.
    pub compress: bool,
    /// They may remove them, as far as nobody needs them.
    pub remove: bool,
}

impl ByClients {
    /// Whether it is among what they may ask for.
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

impl Default for UpkeepConfig {
    fn default() -> Self {
        UpkeepConfig {
            archive_after_ns: None,
            compress_after_ns: None,
            remove_after_ns: None,
            archive_size_max: None,
            compress_size_max: None,
            remove_size_max: None,
            interval_ns: 600_000_000_000,
            by_clients: ByClients::default(),
        }
    }
}

/// What must have happened to a message before it is called persisted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Durability {
    /// A sync of the file returned: survives a power cut.
    #[default]
    Fsync,
    /// The operating system has it: survives the process, not the machine.
    Os,
}

/// One entry of the list of recorded topics. A message that several entries match is recorded once.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecordedTopic {
    /// Exact name, or a pattern when it holds any of `^ $ * + ? [ ] ( ) { } | \`.
    pub name: String,
    /// Name of the message type, as in `json`.
    pub message_type: String,
    /// Only messages that match are recorded.
    #[serde(default)]
    pub filter: Option<String>,
}

/// The named limits of docs/protocol.md section 6.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Largest data of a message, in bytes. A larger one closes the connection.
    pub max_message_size: u32,
    /// Connections at a time. One more is told `limit_exceeded` and closed.
    pub max_connections: u32,
    /// Subscriptions of one connection. One more fails with `limit_exceeded`.
    pub max_subscriptions_per_connection: u32,
    /// Patterns (`LIKE`, `REGEXP_REPLACE`) in the filters of the subscriptions of one connection, and of all together: each takes some 10 KB,
    /// and microseconds for each message. A subscription beyond fails with `limit_exceeded`.
    pub max_patterns_per_connection: u32,
    /// See `max_patterns_per_connection`.
    pub max_patterns: u32,
    /// Bytes waiting for one connection, those of replays apart. Above it the connection is ended as `slow_consumer`.
    pub max_client_backlog: u64,
    /// The same of all connections together. Above it the connection for which most waits is ended as `slow_consumer`: without it,
    /// `max_connections` times `max_client_backlog` could wait.
    pub max_waiting: u64,
    /// Bytes appended but not yet persisted. Above it publishers are not read from until the journal has caught up.
    pub max_unpersisted: u64,
    /// Bytes kept of frames that have not arrived whole, or wait for their turn, all connections together. The connection that goes beyond
    /// is told `limit_exceeded` and closed: without it, `max_connections` times a frame could be held.
    pub max_unfinished: u64,
    /// Time within which a connection must have logged on, in nanoseconds.
    pub logon_timeout_ns: u64,
    /// Topics of the log. A publish to one more is refused with `limit_exceeded`. A topic counts until the last journal file that holds it is
    /// removed.
    pub max_topics: u32,
    /// A publisher whose sequence goes up by more than this at once is logged, once per connection.
    pub sequence_jump_logged: u64,
}

/// A value that cannot be used. The fault of whoever wrote the configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {reason}")]
pub struct ConfigError {
    /// Path of the key, as in `transaction_log.topics[0].filter`; empty when the text is not an object at all.
    pub key: String,
    /// What is wrong with its value, and what would be right.
    pub reason: String,
}

/// Why there is no broker.
#[derive(Clone, Debug, thiserror::Error)]
pub enum OpenError {
    /// A value of the configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The log, of which the queues are to be rebuilt, cannot be read.
    #[error(transparent)]
    Journal(#[from] JournalError),
}

impl ConfigError {
    pub(crate) fn new(key: impl Into<String>, reason: impl Into<String>) -> Self {
        ConfigError { key: key.into(), reason: reason.into() }
    }
}

impl BrokerConfig {
    /// Reads and checks a configuration.
    ///
    /// # Errors
    /// [`ConfigError`] for the first key that is unknown, of the wrong kind or out of its range.
    pub fn from_json(text: &str) -> Result<Self, ConfigError> {
        let config: BrokerConfig = serde_json::from_str(text)
            .map_err(|error| ConfigError::new(key_of(&error), error.to_string()))?;
        config.check()?;
        Ok(config)
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
            // Publishers are pushed back by `max_unpersisted`; a second bound would refuse what they were allowed to send.
            unpersisted_size_max: usize::MAX,
            archive_directory: log.journal_archive_directory.clone(),
            ..quire_journal::Options::default()
        }
    }

    /// What filters may use, and what `INSTANCE_NAME()` and its like give in them; the client is not known here.
    pub(crate) fn filter_options(&self) -> FilterOptions {
        FilterOptions {
            allow_backtracking: self.allow_backtracking_patterns,
            client: ClientFacts::default(),
            instance: InstanceFacts {
                name: Some(self.name.clone()),
                group: None,
                version: Some(env!("CARGO_PKG_VERSION").to_owned()),
            },
        }
    }

    /// Refuses values out of their range. Patterns, message types and filters are checked where they are compiled.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        let limits = &self.limits;
        let log = &self.transaction_log;
        check_name(&self.name)?;
        let ranges = [
            ("transaction_log.journal_size", log.journal_size, JOURNAL_SIZE_MIN, u64::MAX),
            ("transaction_log.preallocated_journal_files", log.preallocated_journal_files.into(), 1, 1024),
            ("transaction_log.flush_interval_ns", log.flush_interval_ns, 30_000, 100_000_000),
            ("transaction_log.upkeep.interval_ns", log.upkeep.interval_ns, 1, u64::MAX),
            ("limits.max_message_size", limits.max_message_size.into(), 1, 1 << 30),
            ("limits.max_connections", limits.max_connections.into(), 1, 1 << 20),
            (
                "limits.max_subscriptions_per_connection",
                limits.max_subscriptions_per_connection.into(),
                1,
                1 << 20,
            ),
            ("limits.max_patterns_per_connection", limits.max_patterns_per_connection.into(), 0, 1 << 20),
            ("limits.max_patterns", limits.max_patterns.into(), 0, 1 << 20),
            ("limits.max_client_backlog", limits.max_client_backlog, 1024, u64::MAX),
            ("limits.max_unpersisted", limits.max_unpersisted, 1024, u64::MAX),
            ("limits.max_waiting", limits.max_waiting, 1024, u64::MAX),
            ("limits.max_unfinished", limits.max_unfinished, 1024, u64::MAX),
            ("limits.logon_timeout_ns", limits.logon_timeout_ns, 1, u64::MAX),
            ("limits.max_topics", limits.max_topics.into(), 1, 1 << 26),
            ("limits.sequence_jump_logged", limits.sequence_jump_logged, 1, u64::MAX),
        ];
        for (key, value, low, high) in ranges {
            if !(low..=high).contains(&value) {
                let reason = if high == u64::MAX {
                    format!("{value} is too small, at least {low}")
                } else {
                    format!("{value} is not between {low} and {high}")
                };
                return Err(ConfigError::new(key, reason));
            }
        }
        // However else it is spelled, opening the journal finds out.
        if log.journal_directory.is_some() && log.journal_archive_directory == log.journal_directory {
            let key = "transaction_log.journal_archive_directory";
            return Err(ConfigError::new(key, "it is the journal directory itself"));
        }
        let upkeep = &log.upkeep;
        let archiving = [
            ("transaction_log.upkeep.archive_after", upkeep.archive_after_ns),
            ("transaction_log.upkeep.archive_size_max", upkeep.archive_size_max),
        ];
        let archives = archiving.into_iter().find(|(_, value)| value.is_some());
        if let Some((key, _)) = archives.filter(|_| log.journal_archive_directory.is_none()) {
            return Err(ConfigError::new(key, "journal_archive_directory does not say where to"));
        }
        let options = self.filter_options();
        let rules = crate::topic::RecordingRule::compile(&log.topics, &options)?;
        Definition::compile(&self.queues, &rules, &options).map(drop)
    }
}

impl Limits {
    /// [`Limits::logon_timeout_ns`] as a duration.
    pub fn logon_timeout(&self) -> Duration {
        Duration::from_nanos(self.logon_timeout_ns)
    }
}

impl Default for BrokerConfig {
    fn default() -> Self {
        let everything = RecordedTopic { name: ".*".into(), message_type: "json".into(), filter: None };
        BrokerConfig {
            name: "quire".into(),
            transaction_log: TransactionLogConfig {
                topics: vec![everything],
                ..TransactionLogConfig::default()
            },
            allow_backtracking_patterns: false,
            queues: Vec::new(),
            limits: Limits::default(),
        }
    }
}

impl Default for TransactionLogConfig {
    fn default() -> Self {
        TransactionLogConfig {
            journal_directory: None,
            journal_archive_directory: None,
            upkeep: UpkeepConfig::default(),
            journal_size: 64 << 20,
            preallocated_journal_files: 2,
            flush_interval_ns: 100_000_000,
            durability: Durability::Fsync,
            topics: Vec::new(),
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            max_message_size: 16 << 20,
            max_connections: 10_000,
            max_subscriptions_per_connection: 1024,
            max_patterns_per_connection: 1024,
            max_patterns: 8192,
            max_client_backlog: 64 << 20,
            max_waiting: 1 << 30,
            max_unpersisted: 64 << 20,
            max_unfinished: 256 << 20,
            logon_timeout_ns: 5_000_000_000,
            max_topics: 100_000,
            sequence_jump_logged: 1_000_000,
        }
    }
}

/// A journal file below this would hold hardly more than its own header.
const JOURNAL_SIZE_MIN: u64 = 64 << 10;

/// The longest name of an instance.
const NAME_SIZE_MAX: usize = 100;

/// A name without spaces and signs: it stands in messages of logs and in what filters compute.
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

/// The key that a JSON error is about, as far as the error names it between backticks.
fn key_of(error: &serde_json::Error) -> String {
    let text = error.to_string();
    text.split('`').nth(1).unwrap_or_default().to_owned()
}
