//! The settings of a conflated topic, as a configuration holds them and as the broker uses them
//! (docs/conflated-topics.md).

use std::sync::Arc;
use std::time::Duration;

use quire_expression::filter::{Filter, FilterOptions};
use quire_expression::message_type::MessageType;
use quire_expression::topic::TopicSelector;
use quire_journal::Memory;
use quire_table::{INDEXES_MAX, IndexLimits, KeyRule, Table, TableConfig};
use serde::Deserialize;

use crate::ConfigError;
use crate::config::ConfigErrors;
use crate::config::tables::{TableDefinition, TableDurability, TableExpiration, key_of};

/// The shortest interval. With a shorter one, a conflated topic has no advantage over its source.
const INTERVAL_MIN: Duration = Duration::from_millis(100);

/// One conflated topic.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ConflatedTopicSettings {
    /// The conflated topic.
    pub name: String,
    /// The type of its messages, which is that of the source.
    pub message_type: String,
    /// The source: a last-value topic, a view or another conflated topic.
    pub underlying_topic: String,
    /// The time between two changes of one record, in nanoseconds.
    pub interval_ns: u64,
    /// Only records of the source that match.
    pub filter: Option<String>,
    /// Fields that queries compare with `=`. Each list is an index.
    pub hash_index: Vec<Vec<String>>,
    /// Fields that queries compare with other operators.
    pub index: Vec<String>,
}

impl Default for ConflatedTopicSettings {
    fn default() -> Self {
        ConflatedTopicSettings {
            name: String::new(),
            message_type: String::new(),
            underlying_topic: String::new(),
            interval_ns: 5_000_000_000,
            filter: None,
            hash_index: Vec::new(),
            index: Vec::new(),
        }
    }
}

/// The source of a conflated topic, and what is copied when.
pub struct ConflatedDefinition {
    pub source: Arc<str>,
    pub interval: Duration,
    /// Only records of the source that match are copied.
    pub filter: Option<Filter>,
    /// The index of the groups, when the records are from a view.
    group_index: Option<Vec<String>>,
}

/// The index that a view, or a copy of one, makes of its groups.
fn group_index_of(source: &TableDefinition) -> Option<Vec<String>> {
    match (&source.view, &source.conflated) {
        (Some(view), _) => view.group_index(),
        (None, Some(conflated)) => conflated.group_index.clone(),
        (None, None) => None,
    }
}

impl ConflatedTopicSettings {
    /// The conflated topic as a last-value topic; `None` after a mistake, which is then in the
    /// errors.
    pub(super) fn compile(
        &self,
        source: Option<&TableDefinition>,
        options: &FilterOptions,
        error: &dyn Fn(&str, String) -> ConfigError,
        errors: &mut ConfigErrors,
    ) -> Option<TableDefinition> {
        let name: Result<Arc<str>, _> = match TopicSelector::new(&self.name) {
            Ok(TopicSelector::Name(name)) => Ok(name),
            Ok(TopicSelector::Pattern(_)) => Err(format!("{:?} is a pattern, not a name", self.name)),
            Err(bad) => Err(bad.to_string()),
        };
        let name = errors.note(name.map_err(|reason| error("name", reason)));
        let message_type = self.message_type(source).map_err(|reason| error("message_type", reason));
        let message_type = errors.note(message_type);
        let interval = Duration::from_nanos(self.interval_ns);
        if interval < INTERVAL_MIN {
            let reason = format!("{interval:?}, it must be at least {INTERVAL_MIN:?}");
            errors.push(error("interval", reason));
        }
        let filter = self.filter.as_ref().map(|text| Filter::parse(text, options)).transpose();
        let filter = errors.note(filter.map_err(|bad| error("filter", bad.to_string())));
        let (source, name, message_type, filter) = (source?, name?, message_type?, filter?);
        let reads_fields = filter.as_ref().is_some_and(|filter| filter.fields().next().is_some());
        if reads_fields && !message_type.has_fields() {
            let reason = format!("messages of type {} have no fields", message_type.name());
            errors.push(error("filter", reason));
        }
        let config = self.table_config(&name, source);
        let checked = Table::new(config.clone(), &Memory::heap());
        errors.note(checked.map_err(|bad| error(key_of(&bad), bad.to_string())))?;
        Some(TableDefinition {
            name,
            pattern: None,
            message_type,
            key_rule: KeyRule::Supplied,
            key_fields: source.key_fields.clone(),
            key: source.key.clone(),
            key_domain: None,
            durability: TableDurability::Transient,
            expiration: TableExpiration::Disabled,
            file_backed: false,
            is_recovered: false,
            fields: None,
            config,
            view: None,
            is_of_queue: false,
            conflated: Some(Arc::new(ConflatedDefinition {
                source: source.name.clone(),
                interval,
                filter,
                group_index: group_index_of(source),
            })),
        })
    }

    fn message_type(&self, source: Option<&TableDefinition>) -> Result<MessageType, String> {
        let Some(own) = MessageType::from_name(&self.message_type) else {
            return Err(format!("{:?} is not a message type", self.message_type));
        };
        match source.map(|source| source.message_type) {
            Some(found) if found != own => Err(format!(
                "it is {}, and the messages on {:?} are {}: a conflated topic has the type of its source",
                own.name(),
                self.underlying_topic,
                found.name()
            )),
            _ => Ok(own),
        }
    }

    /// The table of the records. It has the index of the keys of its source.
    fn table_config(&self, name: &str, source: &TableDefinition) -> TableConfig {
        let mut hash_indexes = self.hash_index.clone();
        if let Some(groups) = group_index_of(source)
            && hash_indexes.len() + self.index.len() < INDEXES_MAX
            && !hash_indexes.contains(&groups)
        {
            hash_indexes.push(groups);
        }
        TableConfig {
            name: name.to_owned(),
            message_type: source.message_type,
            key: source.config.key.clone(),
            hash_indexes,
            ordered_indexes: self.index.clone(),
            history: None,
            limits: IndexLimits::default(),
        }
    }
}
