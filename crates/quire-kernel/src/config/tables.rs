//! The settings of a last-value topic, as a configuration holds them and as the broker uses them
//! (docs/last-values.md).

use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;

use crate::ConfigError;
use crate::config::ConfigErrors;
use crate::config::conflated::ConflatedDefinition;
use crate::config::views::ViewDefinition;
use crate::paged::PagedMemory;
use crate::topic::{Recording, RecordingRule};
use quire_expression::filter::{AssignmentError, Assignments, FilterOptions, Projection, Stage, path_of};
use quire_expression::message_type::{MessageType, Step};
use quire_expression::topic::{TopicPattern, TopicSelector, is_reserved};
use quire_journal::Memory;
use quire_table::{HistoryConfig, IndexLimits, KeyFields, KeyRule, Table, TableConfig, TableConfigError};
use quire_types::Timestamp;

/// One last-value topic. Every key except `name` and `message_type` is optional.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SowTopicSettings {
    /// The topic.
    pub name: String,
    /// The type of its messages.
    pub message_type: String,
    /// The fields that form the key. Without fields, publishers supply the keys.
    pub key: Vec<String>,
    /// Topics with the same domain and the same values have the same keys. The default is the name
    /// of the topic.
    pub key_domain: Option<String>,
    /// Whether the records survive a restart.
    pub durability: TableDurability,
    /// Fields that queries compare with `=`. Each list is an index.
    pub hash_index: Vec<Vec<String>>,
    /// Fields that queries compare with other operators.
    pub index: Vec<String>,
    /// The lifetimes of records.
    pub expiration: TableExpiration,
    /// Fields that the server computes before the key: `expression AS /destination`.
    pub preprocessing: Vec<String>,
    /// Fields that the server computes after the key, also from the previous record.
    pub enrichment: Vec<String>,
    /// Earlier states are retained.
    pub history: Option<HistorySettings>,
    /// The topics of this container. Each topic whose whole name matches is a last-value topic with
    /// these settings. `name` then only names the settings.
    pub pattern: Option<String>,
    /// The records and their indexes are in a file, so that the system can page them out.
    pub file_backed: bool,
    /// For a transient topic: `epoch` reads it from the log at a start, `now` leaves it empty.
    pub recovery_point: Option<String>,
}

/// How much of its history a topic keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HistorySettings {
    /// How long states are retained, in nanoseconds.
    pub window_ns: u64,
    /// The interval between the instants whose states are retained, in nanoseconds; 0: every
    /// instant.
    #[serde(default)]
    pub granularity_ns: u64,
    /// The most bytes of earlier messages.
    #[serde(default = "HistorySettings::default_size_max")]
    pub max_size: u64,
}

impl HistorySettings {
    const fn default_size_max() -> u64 {
        1 << 30
    }

    fn compile(&self) -> Result<HistoryConfig, (&'static str, String)> {
        if self.window_ns == 0 {
            return Err(("history.window", "it is 0: use a duration such as \"1d\"".to_owned()));
        }
        if self.granularity_ns > self.window_ns {
            let reason = "it is longer than the window: no state would be kept".to_owned();
            return Err(("history.granularity", reason));
        }
        if self.max_size < HISTORY_SIZE_MIN {
            let reason = format!("{} bytes, it must be at least {HISTORY_SIZE_MIN}", self.max_size);
            return Err(("history.max_size", reason));
        }
        Ok(HistoryConfig {
            window_ns: self.window_ns,
            granularity_ns: self.granularity_ns,
            size_max: usize::try_from(self.max_size).unwrap_or(usize::MAX),
        })
    }
}

/// Whether the records of a topic survive a restart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TableDurability {
    /// The log records every message of the topic, and the topic is rebuilt from it.
    #[default]
    Persistent,
    /// The topic is in memory only.
    Transient,
}

impl TableDurability {
    /// The name in settings and figures.
    pub const fn name(self) -> &'static str {
        match self {
            TableDurability::Persistent => "persistent",
            TableDurability::Transient => "transient",
        }
    }
}

/// The lifetimes of records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TableExpiration {
    /// Unlimited. The expiration of a message is ignored.
    #[default]
    Disabled,
    /// The lifetime of the message. Without one, it is unlimited.
    Enabled,
    /// The lifetime of the message. Without one, this time, in nanoseconds.
    AfterNs(u64),
}

impl TableExpiration {
    /// When the lifetime of a record ends, for a message that was taken at `received` by the clock;
    /// `None`: never.
    pub fn end_of(self, received: Timestamp, expiration_s: Option<u32>) -> Option<Timestamp> {
        let lifetime_ns = match (self, expiration_s) {
            (TableExpiration::Disabled, _) | (_, Some(0)) | (TableExpiration::Enabled, None) => return None,
            (_, Some(seconds)) => Duration::from_secs(seconds.into()).as_nanos() as u64,
            (TableExpiration::AfterNs(lifetime_ns), None) => lifetime_ns,
        };
        Some(Timestamp(received.as_ns().saturating_add(lifetime_ns)))
    }
}

/// A last-value topic with valid settings.
#[derive(Clone)]
pub struct TableDefinition {
    pub name: Arc<str>,
    /// The topics of a container, as configured; `None`: it is one topic.
    pub pattern: Option<(String, TopicPattern)>,
    pub message_type: MessageType,
    pub key_rule: KeyRule,
    /// The fields of the key. Empty when publishers supply the keys.
    pub key_fields: Arc<[Vec<Step>]>,
    /// As configured; for lists.
    pub key: Vec<String>,
    pub(super) key_domain: Option<String>,
    pub durability: TableDurability,
    pub expiration: TableExpiration,
    /// The records and their indexes are in memory that can be paged out.
    pub file_backed: bool,
    /// The records are read from the log at a start.
    pub is_recovered: bool,
    /// `None`: the server writes no fields into the messages.
    pub fields: Option<Arc<ConstructedFields>>,
    pub config: TableConfig,
    /// The server computes the records. `None`: publishers write them.
    pub view: Option<Arc<ViewDefinition>>,
    /// The server copies the records from another topic. `None`: it does not.
    pub conflated: Option<Arc<ConflatedDefinition>>,
    /// The records are the messages of the queue with this name, for the views that read it.
    /// Clients cannot name the table.
    pub is_of_queue: bool,
}

impl TableDefinition {
    /// Checks the settings of all topics, together with the recording rules of the log and the
    /// names of the queues.
    ///
    /// # Errors
    /// [`ConfigErrors`] with every bad key.
    pub fn compile(
        all: &[SowTopicSettings],
        rules: &[RecordingRule],
        queues: &[Arc<str>],
        options: &FilterOptions,
    ) -> Result<Vec<TableDefinition>, ConfigErrors> {
        let mut errors = ConfigErrors::default();
        if all.len() > TABLES_MAX {
            let reason = format!("{} topics, the limit is {TABLES_MAX}", all.len());
            return Err(ConfigError::new("sow_topics", reason).into());
        }
        let mut definitions: Vec<TableDefinition> = Vec::new();
        for (index, settings) in all.iter().enumerate() {
            let error = |key: &str, reason: String| {
                let name =
                    if settings.name.is_empty() { "".into() } else { format!("topic {:?}: ", settings.name) };
                ConfigError::new(format!("sow_topics[{index}].{key}"), format!("{name}{reason}"))
            };
            if all[..index].iter().any(|other| other.name == settings.name) {
                errors.push(error("name", "another last-value topic has the name".to_owned()));
            }
            if queues.iter().any(|queue| **queue == *settings.name) {
                errors.push(error("name", "a queue has the name".to_owned()));
            }
            definitions.extend(settings.compile(rules, options, &error, &mut errors));
        }
        errors.none_or(definitions)
    }
}

/// A queue, as a view that reads it sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceQueue {
    pub name: Arc<str>,
    pub message_type: MessageType,
    /// The table with its messages is in memory that can be paged out, as its state.
    pub file_backed: bool,
}

/// The memory of the records of all topics.
pub struct TableMemory {
    /// The memory of the records of file-backed topics.
    pub paged: PagedMemory,
    /// The memory of the records of the other topics.
    pub heap: Memory,
}

impl TableDefinition {
    /// Whether only the server writes the records: it is a view or a conflated topic.
    pub fn is_computed(&self) -> bool {
        self.view.is_some() || self.conflated.is_some()
    }

    /// For a view and a conflated topic: the topic that they read, the first one of a join.
    pub fn source(&self) -> Option<&str> {
        let conflated = self.conflated.as_ref().map(|conflated| &*conflated.source);
        conflated.or_else(|| self.view.as_ref().map(|view| &*view.sources[0]))
    }

    /// The fields that are constructed after the key is known.
    pub fn enrichment(&self) -> Option<&Assignments> {
        self.fields.as_deref()?.enrichment.as_ref()
    }

    /// Whether constructed fields read the record that a message replaces.
    pub fn reads_previous(&self) -> bool {
        self.enrichment().is_some_and(Assignments::reads_previous)
    }

    /// Whether the key or the preprocessing of a message reads its data.
    pub fn key_reads_data(&self) -> bool {
        matches!(self.key_rule, KeyRule::Fields(_))
            || self.fields.as_ref().is_some_and(|fields| fields.has_preprocessing())
    }

    /// A table without records.
    ///
    /// # Errors
    /// [`TableConfigError`]: none for settings that were checked.
    pub fn new_table(&self, memory: &TableMemory) -> Result<Table, TableConfigError> {
        let memory = if self.file_backed { memory.paged.get() } else { memory.heap.clone() };
        Table::new(self.config.clone(), &memory)
    }

    /// Whether the records survive a restart.
    pub fn is_persistent(&self) -> bool {
        self.durability == TableDurability::Persistent
    }

    /// The definition of the table with a record for each group of the records of this topic. Its
    /// messages have the name of the topic.
    pub fn of_groups(&self, projection: &Projection, grouping: &[String]) -> TableDefinition {
        let config = TableConfig {
            name: self.name.to_string(),
            message_type: self.message_type,
            key: None,
            hash_indexes: Vec::new(),
            ordered_indexes: Vec::new(),
            history: None,
            limits: IndexLimits::default(),
        };
        TableDefinition {
            pattern: None,
            key_rule: KeyRule::Supplied,
            key_fields: projection.shown_groups().iter().map(|field| path_of(field)).collect(),
            key: grouping.to_vec(),
            key_domain: None,
            durability: TableDurability::Transient,
            expiration: TableExpiration::Disabled,
            file_backed: false,
            is_recovered: false,
            fields: None,
            config,
            view: None,
            conflated: None,
            is_of_queue: false,
            ..self.clone()
        }
    }

    /// The definition of the table with the messages of a queue.
    pub fn of_queue(queue: &SourceQueue) -> TableDefinition {
        let SourceQueue { name, message_type, file_backed } = queue.clone();
        TableDefinition {
            pattern: None,
            message_type,
            key_rule: KeyRule::Supplied,
            key_fields: Arc::default(),
            key: Vec::new(),
            key_domain: None,
            durability: TableDurability::Transient,
            expiration: TableExpiration::Disabled,
            file_backed,
            is_recovered: false,
            fields: None,
            config: TableConfig {
                name: name.to_string(),
                message_type,
                key: None,
                hash_indexes: Vec::new(),
                ordered_indexes: Vec::new(),
                history: None,
                limits: IndexLimits::default(),
            },
            view: None,
            conflated: None,
            is_of_queue: true,
            name,
        }
    }

    /// The definition of one topic of this container.
    ///
    /// # Errors
    /// The log does not record the topic as the container requires.
    pub fn for_topic(&self, rules: &[RecordingRule], name: &Arc<str>) -> Result<TableDefinition, String> {
        let recording = Recording::of(rules, name);
        let container = &self.name;
        if recording.is_configured() && recording.message_type != self.message_type {
            let (log, own) = (recording.message_type.name(), self.message_type.name());
            return Err(format!(
                "transaction_log.topic has {name:?} as {log}, and the sow_topic {container:?} as {own}"
            ));
        }
        if self.durability == TableDurability::Persistent && !recording.records_all() {
            return Err(format!(
                "transaction_log.topic does not record every message on {name:?}, which the sow_topic {container:?} requires"
            ));
        }
        let domain = self.key_domain.as_deref().unwrap_or(name);
        let key_rule = match &self.key_rule {
            KeyRule::Supplied => KeyRule::Supplied,
            KeyRule::Fields(_) => KeyFields::new(self.message_type, domain, &self.key)
                .map(KeyRule::Fields)
                .map_err(|error| error.to_string())?,
        };
        let key = match &key_rule {
            KeyRule::Supplied => None,
            KeyRule::Fields(fields) => Some(fields.clone()),
        };
        let config = TableConfig { name: name.to_string(), key, ..self.config.clone() };
        Ok(TableDefinition { name: name.clone(), key_rule, config, pattern: None, ..self.clone() })
    }
}

/// The lists of constructed fields of a topic.
pub struct ConstructedFields {
    pub preprocessing: Option<Assignments>,
    pub enrichment: Option<Assignments>,
}

impl ConstructedFields {
    /// Whether the data changes before the key is generated.
    pub fn has_preprocessing(&self) -> bool {
        self.preprocessing.is_some()
    }

    /// The lists; `None` when both are empty.
    ///
    /// # Errors
    /// The first mistake of each list, with the name of the list.
    pub fn parse(
        preprocessing: &[String],
        enrichment: &[String],
        message_type: MessageType,
        options: &FilterOptions,
    ) -> Result<Option<Arc<Self>>, Vec<(&'static str, AssignmentError)>> {
        let mut errors = Vec::new();
        let mut parsed = |name, entries: &[String], stage| {
            let list = Assignments::parse(entries, message_type, stage, options);
            let list = list.map_err(|error| errors.push((name, error))).ok();
            list.filter(|_| !entries.is_empty())
        };
        let preprocessing = parsed("preprocessing", preprocessing, Stage::Preprocessing);
        let enrichment = parsed("enrichment", enrichment, Stage::Enrichment);
        if !errors.is_empty() {
            return Err(errors);
        }
        let has_fields = preprocessing.is_some() || enrichment.is_some();
        Ok(has_fields.then(|| Arc::new(ConstructedFields { preprocessing, enrichment })))
    }
}

impl SowTopicSettings {
    /// Whether a topic is this topic, or belongs to this container. A pattern that cannot be
    /// compiled includes no topic.
    pub fn includes(&self, topic: &str) -> bool {
        match &self.pattern {
            Some(pattern) => whole_names(pattern).is_ok_and(|pattern| pattern.matches(topic)),
            None => self.name == topic,
        }
    }

    /// The topic; `None` after a mistake, which is then in the errors.
    fn compile(
        &self,
        rules: &[RecordingRule],
        options: &FilterOptions,
        error: &dyn Fn(&str, String) -> ConfigError,
        errors: &mut ConfigErrors,
    ) -> Option<TableDefinition> {
        let name = match TopicSelector::new(&self.name) {
            Ok(TopicSelector::Name(name)) => Ok(name),
            Ok(TopicSelector::Pattern(_)) => Err(format!("{:?} is a pattern, not a name", self.name)),
            Err(bad) => Err(bad.to_string()),
        };
        let name = errors.note(name.map_err(|reason| error("name", reason)));
        let message_type =
            errors.note(MessageType::from_name(&self.message_type).ok_or_else(|| {
                error("message_type", format!("{:?} is not a message type", self.message_type))
            }));
        let is_reserved = name.as_ref().is_some_and(|name| is_reserved(name));
        if is_reserved && message_type.is_some_and(|kind| kind != MessageType::Json) {
            let reason = "messages of topics that begin with /quire/ have the type json".to_owned();
            errors.push(error("message_type", reason));
        }
        let is_recovered = errors.note(self.is_recovered().map_err(|reason| error("recovery_point", reason)));
        if self.expiration == TableExpiration::AfterNs(0) {
            let reason = "the lifetime is 0: use \"disabled\" for records that do not end".to_owned();
            errors.push(error("expiration", reason));
        }
        let (name, message_type) = (name?, message_type?);
        let fields = ConstructedFields::parse(&self.preprocessing, &self.enrichment, message_type, options);
        let fields = fields.map_err(|bad| {
            let mistakes = bad.iter().map(|(list, mistake)| {
                error(&format!("{list}[{}]", mistake.number - 1), mistake.with_caret())
            });
            mistakes.for_each(|mistake| errors.push(mistake));
        });
        let key_rule = errors.note(self.key_rule(&name, message_type, error))?;
        let pattern = errors.note(self.compile_pattern(rules, &name, message_type, error))?;
        let history = self.history.map(|history| history.compile()).transpose();
        let history = errors.note(history.map_err(|(key, reason)| error(key, reason)))?;
        if history.is_some() && pattern.is_some() {
            let reason = "topics of a pattern keep no history in this version: remove history, or give the topic whose earlier \
                          states you need an entry without pattern";
            errors.push(error("history", reason.to_owned()));
            return None;
        }
        let config = TableConfig {
            name: name.to_string(),
            message_type,
            key: match &key_rule {
                KeyRule::Supplied => None,
                KeyRule::Fields(fields) => Some(fields.clone()),
            },
            hash_indexes: self.hash_index.clone(),
            ordered_indexes: self.index.clone(),
            history,
            limits: IndexLimits::default(),
        };
        let checked = Table::new(config.clone(), &Memory::heap());
        errors.note(checked.map_err(|bad| error(key_of(&bad), bad.to_string())))?;
        Some(TableDefinition {
            name,
            pattern,
            message_type,
            key_fields: match &key_rule {
                KeyRule::Supplied => Arc::default(),
                KeyRule::Fields(fields) => fields.paths().into(),
            },
            key_rule,
            key: self.key.clone(),
            key_domain: self.key_domain.clone(),
            durability: self.durability,
            expiration: self.expiration,
            file_backed: self.file_backed,
            is_recovered: is_recovered?,
            fields: fields.ok()?,
            config,
            view: None,
            conflated: None,
            is_of_queue: false,
        })
    }

    /// The topics of a container; `None` for one topic. The log records them as the topic requires.
    fn compile_pattern(
        &self,
        rules: &[RecordingRule],
        name: &str,
        message_type: MessageType,
        error: &dyn Fn(&str, String) -> ConfigError,
    ) -> Result<Option<(String, TopicPattern)>, ConfigError> {
        let Some(text) = &self.pattern else {
            self.check_recording(rules, name, message_type, error)?;
            return Ok(None);
        };
        let pattern = whole_names(text).map_err(|reason| error("pattern", reason))?;
        self.check_pattern_recording(rules, &pattern, error)?;
        Ok(Some((text.clone(), pattern)))
    }

    /// Whether the topic is read from the log at a start.
    fn is_recovered(&self) -> Result<bool, String> {
        let is_transient = self.durability == TableDurability::Transient;
        match self.recovery_point.as_deref() {
            None => Ok(!is_transient),
            Some(_) if !is_transient => Err(
                "only a transient topic has a recovery point: remove it, or set durability = \"transient\""
                    .to_owned(),
            ),
            Some("epoch") => Ok(true),
            Some("now") => Ok(false),
            Some(other) => Err(format!("{other:?} is not \"epoch\" or \"now\"")),
        }
    }

    fn key_rule(
        &self,
        name: &str,
        message_type: MessageType,
        error: &dyn Fn(&str, String) -> ConfigError,
    ) -> Result<KeyRule, ConfigError> {
        if self.key.is_empty() {
            if self.key_domain.is_some() {
                let reason =
                    "publishers supply the keys of this topic: remove key_domain, or add key".to_owned();
                return Err(error("key_domain", reason));
            }
            return Ok(KeyRule::Supplied);
        }
        if !message_type.has_fields() {
            let reason = format!(
                "{} messages have no fields: remove the key, and supply keys with each publish",
                message_type.name()
            );
            return Err(error("key", reason));
        }
        let domain = self.key_domain.as_deref().unwrap_or(name);
        KeyFields::new(message_type, domain, &self.key)
            .map(KeyRule::Fields)
            .map_err(|bad| error(key_of(&bad), bad.to_string()))
    }

    /// Whether the log can record topics of the pattern. Each topic is checked when it gets its
    /// first message.
    fn check_pattern_recording(
        &self,
        rules: &[RecordingRule],
        pattern: &TopicPattern,
        error: &dyn Fn(&str, String) -> ConfigError,
    ) -> Result<(), ConfigError> {
        let needs_log =
            self.durability == TableDurability::Persistent || self.recovery_point.as_deref() == Some("epoch");
        if needs_log && !RecordingRule::could_record(rules, &TopicSelector::Pattern(pattern.clone())) {
            let key = match self.durability {
                TableDurability::Persistent => "durability",
                TableDurability::Transient => "recovery_point",
            };
            let reason = "transaction_log.topic records no topic that the pattern matches: add an entry, or set \
                          durability = \"transient\" without recovery_point = \"epoch\"";
            return Err(error(key, reason.to_owned()));
        }
        Ok(())
    }

    /// Whether the rules of the log and the settings of the topic are compatible.
    fn check_recording(
        &self,
        rules: &[RecordingRule],
        name: &str,
        message_type: MessageType,
        error: &dyn Fn(&str, String) -> ConfigError,
    ) -> Result<(), ConfigError> {
        let recording = Recording::of(rules, name);
        if recording.is_configured() && recording.message_type != message_type {
            let reason = format!(
                "transaction_log.topic has {name:?} as {}, and sow_topic as {}",
                recording.message_type.name(),
                message_type.name()
            );
            return Err(error("message_type", reason));
        }
        if self.durability == TableDurability::Persistent && !recording.records_all() {
            let reason = format!(
                "transaction_log.topic does not record every message on {name:?}: add an entry without a filter, or set \
                 durability = \"transient\""
            );
            return Err(error("durability", reason));
        }
        if self.recovery_point.as_deref() == Some("epoch") && !recording.records_any() {
            let reason =
                format!("transaction_log.topic does not record {name:?}: use \"now\", or add an entry");
            return Err(error("recovery_point", reason));
        }
        Ok(())
    }
}

/// The pattern that matches the whole names.
fn whole_names(text: &str) -> Result<TopicPattern, String> {
    if text.is_empty() {
        return Err("the pattern is empty: leave it out, or write one such as \"orders/.*\"".to_owned());
    }
    // The pattern is first compiled as written, so that an error shows the text of the user.
    TopicSelector::new(text).map_err(|bad| bad.to_string())?;
    TopicPattern::new(&format!("^(?:{text})$")).map_err(|bad| bad.to_string())
}

/// The key that a mistake is about.
pub(super) fn key_of(error: &TableConfigError) -> &'static str {
    match error {
        TableConfigError::NoFields { .. } => "key",
        TableConfigError::NoIndexes { .. } => "hash_index",
        TableConfigError::EmptyList { list }
        | TableConfigError::NotAField { list, .. }
        | TableConfigError::Twice { list, .. } => list,
        TableConfigError::TooManyIndexes { .. } => "index",
    }
}

/// The smallest limit of a history: a few messages.
const HISTORY_SIZE_MIN: u64 = 64 * 1024;

/// More last-value topics than an application needs. Each turn checks the next lifetime of each
/// topic.
pub(super) const TABLES_MAX: usize = 1_000;
