//! The settings of replication, as a configuration holds them and as the links use them
//! (docs/replication.md).

use std::time::Duration;

use serde::Deserialize;

use super::route::{Route, TopicRoute};
use crate::ConfigError;
use crate::config::ConfigErrors;
use quire_expression::filter::{Filter, FilterOptions};
use quire_expression::message_type::MessageType;
use quire_expression::topic::TopicSelector;

/// More destinations than an instance needs. Each is a bit of
/// [`Destinations`](crate::replicated::Destinations).
const DESTINATIONS_MAX: usize = 64;

/// The longest name of an instance or a group, in bytes, as in the path of a record.
const NAME_SIZE_MAX: usize = 100;

/// Replication to and from other instances. Without this setting, the instance has no links.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ReplicationConfig {
    /// The group of the instance. The default is the name of the instance.
    pub group: Option<String>,
    /// Whether other instances may connect. The driver listens for them.
    pub accepts: bool,
    /// The driver checks the logon of an instance that connects.
    pub authenticates: bool,
    /// Time within which an instance that connects must have logged on, in nanoseconds; 0: 5
    /// seconds.
    pub logon_timeout_ns: u64,
    /// The sync destinations that must have a message before it is acknowledged; `None`: all sync
    /// destinations.
    pub required_acks: Option<u32>,
    /// The time between two comparisons with the sources, in nanoseconds; `None`: the log is
    /// compared when a source connects, and by command.
    pub compare_interval_ns: Option<u64>,
    /// The names of the queues that only this instance has. Such a queue may contain messages from
    /// other instances.
    pub local_queues: Vec<String>,
    /// The instances that this instance sends to.
    pub destinations: Vec<DestinationSettings>,
    /// The names of instances that send to this instance, and that are not destinations. After the
    /// loss of a disk, clients wait for them, too.
    pub instances: Vec<String>,
}

/// An instance that this instance sends to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DestinationSettings {
    /// The name of the instance.
    pub name: String,
    /// The group of the instance. With a group, any instance of the group may answer at the
    /// addresses.
    pub group: Option<String>,
    /// Equivalent addresses, tried in their order. Without an address, the destination connects to
    /// this instance.
    pub addresses: Vec<String>,
    /// Whether publishers wait for it.
    pub sync_type: SyncType,
    /// Patterns of groups. Messages from an instance of a matching group are forwarded.
    pub pass_through: Vec<String>,
    /// The compression of the records that are sent.
    pub compression: Compression,
    /// Publishers stop waiting for a sync destination when its oldest unacknowledged message is
    /// older than this; `None`: they always wait.
    pub downgrade_after_ns: Option<u64>,
    /// Publishers wait for the destination again when that message is younger than this.
    pub upgrade_below_ns: Option<u64>,
    /// Bytes of the newest journal files that are retained for the destination. Older files may be
    /// removed although the destination needs them; `None`: no limit.
    pub retained_size_max: Option<u64>,
    /// Checks of the two configurations that are skipped.
    pub exclude_validation: Vec<String>,
    /// What is sent.
    pub topics: Vec<ReplicatedTopic>,
}

/// Whether publishers wait for a destination.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SyncType {
    /// A message counts as persisted when the destination has it, too.
    #[default]
    Sync,
    /// Publishers do not wait for the destination.
    Async,
}

/// The compression of records on a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Compression {
    /// Records are sent without compression.
    #[default]
    None,
    /// LZ4: little time.
    Lz4,
    /// Zstandard: fewer bytes, and more processor time.
    Zstd,
}

/// Topics that are sent to a destination.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ReplicatedTopic {
    /// Exact name or pattern.
    pub name: String,
    /// The type of the messages.
    pub message_type: String,
    /// Only messages that match are sent.
    pub filter: Option<String>,
}

/// The checks of two configurations against each other, by the names that `exclude_validation`
/// uses.
pub const CHECKS: [&str; 6] = [TXLOG, MESSAGE_TYPE, SOW, KEY, REPLICATE, CASCADE];
pub const TXLOG: &str = "txlog";
pub const MESSAGE_TYPE: &str = "message_type";
pub const SOW: &str = "sow";
pub const KEY: &str = "key";
/// Only for sync links: clients fail over between the two instances.
pub const REPLICATE: &str = "replicate";
pub const CASCADE: &str = "cascade";

/// A destination, compiled.
#[derive(Debug)]
pub struct Definition {
    pub settings: DestinationSettings,
    pub route: Route,
}

impl Definition {
    pub fn downgrade_after(&self) -> Option<Duration> {
        self.settings.downgrade_after_ns.map(Duration::from_nanos)
    }

    pub fn upgrade_below(&self) -> Option<Duration> {
        self.settings.upgrade_below_ns.map(Duration::from_nanos)
    }

    /// The checks that the link skips.
    pub fn excluded(&self) -> impl Iterator<Item = &str> {
        let one_way = (self.settings.sync_type == SyncType::Async).then_some(REPLICATE);
        self.settings.exclude_validation.iter().map(String::as_str).chain(one_way)
    }

    /// Whether this is the link to the instance.
    pub fn leads_to(&self, instance: &str, group: &str) -> bool {
        self.settings.name == instance || self.settings.group.as_deref() == Some(group)
    }
}

impl DestinationSettings {
    /// Whether the destination must send the same topics to this instance, because clients fail
    /// over between both.
    pub fn is_mutual(&self) -> bool {
        self.sync_type == SyncType::Sync && !self.exclude_validation.iter().any(|check| check == REPLICATE)
    }
}

/// The default of [`ReplicationConfig::logon_timeout_ns`].
const LOGON_TIMEOUT: Duration = Duration::from_secs(5);

impl ReplicationConfig {
    pub fn logon_timeout(&self) -> Duration {
        match self.logon_timeout_ns {
            0 => LOGON_TIMEOUT,
            ns => Duration::from_nanos(ns),
        }
    }

    /// The destinations with their patterns and filters compiled.
    pub fn compile(&self, instance: &str, options: &FilterOptions) -> Result<Vec<Definition>, ConfigErrors> {
        let mut errors = ConfigErrors::default();
        if let Some(group) = &self.group {
            errors.note(check_name("replication.group", group));
        }
        if self.destinations.len() > DESTINATIONS_MAX {
            let reason = format!("{} destinations, at most {DESTINATIONS_MAX}", self.destinations.len());
            errors.push(ConfigError::new("replication.destinations", reason));
        }
        let sync_count =
            self.destinations.iter().filter(|destination| destination.sync_type == SyncType::Sync).count();
        if let Some(count) = self.required_acks
            && (count == 0 || count as usize > sync_count)
        {
            let reason =
                format!("{count} is not between 1 and the number of sync destinations, {sync_count}");
            errors.push(ConfigError::new("replication.required_acks", reason));
        }
        if self.instances.len() > DESTINATIONS_MAX {
            let reason = format!("{} instances, at most {DESTINATIONS_MAX}", self.instances.len());
            errors.push(ConfigError::new("replication.instances", reason));
        }
        for (index, name) in self.instances.iter().enumerate() {
            let key = format!("replication.instances[{index}]");
            errors.note(check_name(&key, name));
            if name == instance {
                errors.push(ConfigError::new(key, format!("{instance:?} is the name of this instance")));
            } else if !self.accepts {
                let reason = "without `replication.address` no instance can send to this one";
                errors.push(ConfigError::new(key, reason));
            }
        }
        let mut definitions = Vec::new();
        for (index, settings) in self.destinations.iter().enumerate() {
            let path = format!("replication.destinations[{index}]");
            let earlier = &self.destinations[..index];
            if earlier.iter().any(|other| other.name == settings.name) {
                let reason = format!("{:?} is the name of an earlier destination", settings.name);
                errors.push(ConfigError::new(format!("{path}.name"), reason));
            }
            if settings.name == instance {
                let reason = format!("{instance:?} is the name of this instance");
                errors.push(ConfigError::new(format!("{path}.name"), reason));
            }
            definitions.extend(settings.compile(&path, self.accepts, options, &mut errors));
        }
        errors.none_or(definitions)
    }
}

impl DestinationSettings {
    /// `accepts`: other instances can connect to this instance.
    fn compile(
        &self,
        path: &str,
        accepts: bool,
        options: &FilterOptions,
        errors: &mut ConfigErrors,
    ) -> Option<Definition> {
        errors.note(check_name(&format!("{path}.name"), &self.name));
        if let Some(group) = &self.group {
            errors.note(check_name(&format!("{path}.group"), group));
        }
        if self.addresses.is_empty() && !accepts {
            let reason =
                "it is empty, and without `replication.address` the destination cannot connect either";
            errors.push(ConfigError::new(format!("{path}.addresses"), reason));
        }
        if self.topics.is_empty() {
            errors.push(ConfigError::new(format!("{path}.topics"), "it is empty: nothing would be sent"));
        }
        match (self.downgrade_after_ns, self.upgrade_below_ns) {
            (None, Some(_)) => {
                let reason = "it requires downgrade_after";
                errors.push(ConfigError::new(format!("{path}.upgrade_below"), reason));
            }
            (Some(down), Some(up)) if up >= down => {
                let reason = "it must be shorter than downgrade_after, best half of it";
                errors.push(ConfigError::new(format!("{path}.upgrade_below"), reason));
            }
            (Some(_), _) if self.sync_type == SyncType::Async => {
                let reason = "it is for destinations with sync_type = \"sync\"";
                errors.push(ConfigError::new(format!("{path}.downgrade_after"), reason));
            }
            _ => (),
        }
        for (index, check) in self.exclude_validation.iter().enumerate() {
            if !CHECKS.contains(&check.as_str()) {
                let reason = format!("{check:?} is not a check; the checks are {}", CHECKS.join(", "));
                errors.push(ConfigError::new(format!("{path}.exclude_validation[{index}]"), reason));
            }
        }
        let mut pass_through = Vec::new();
        for (index, pattern) in self.pass_through.iter().enumerate() {
            let selector = TopicSelector::new(pattern).map_err(|error| {
                ConfigError::new(format!("{path}.pass_through[{index}]"), error.to_string())
            });
            pass_through.extend(errors.note(selector));
        }
        let mut topics = Vec::new();
        for (index, topic) in self.topics.iter().enumerate() {
            let error =
                |key: &str, reason: String| ConfigError::new(format!("{path}.topics[{index}].{key}"), reason);
            let selector = TopicSelector::new(&topic.name).map_err(|e| error("name", e.to_string()));
            let message_type = MessageType::from_name(&topic.message_type).ok_or_else(|| {
                error("message_type", format!("{:?} is not a message type", topic.message_type))
            });
            let filter = topic.filter.as_ref().map(|text| Filter::parse(text, options)).transpose();
            let filter = filter.map_err(|e| error("filter", e.to_string()));
            let parts = (errors.note(selector), errors.note(message_type), errors.note(filter));
            let (Some(selector), Some(message_type), Some(filter)) = parts else { continue };
            topics.push(TopicRoute { selector, message_type, filter });
        }
        let route = Route { destination: self.name.clone(), pass_through, topics };
        Some(Definition { settings: self.clone(), route })
    }
}

/// Refuses a name that the path of a record cannot contain.
pub fn check_name(key: &str, name: &str) -> Result<(), ConfigError> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if name.is_empty() || name.len() > NAME_SIZE_MAX || !name.chars().all(plain) {
        let reason = format!("{name:?} is not 1 to {NAME_SIZE_MAX} letters, digits, '-', '_' or '.'");
        return Err(ConfigError::new(key, reason));
    }
    Ok(())
}
