//! The settings of a queue, as a configuration holds them and as the broker uses them
//! (docs/queues.md section 8).

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::ConfigError;
use crate::config::ConfigErrors;
use crate::config::tables::SourceQueue;
use crate::events::left_topic;
use crate::scan::{Start, context_of};
use crate::topic::{QueueRoute, Recording, RecordingRule};
use quire_expression::filter::{Expression, Filter, FilterOptions, MessageContext};
use quire_expression::message_type::{Arena, MessageType};
use quire_expression::topic::{TopicSelector, check_published};
use quire_journal::{Record, RecordKind, Timestamp};
use quire_queue::{
    self as queue, ExpirationModel, FairnessModel, Leasing, QueueConfig, QueueEntry, Semantics, Time,
};

/// One queue. Every key except `name` and `message_type` is optional.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct QueueSettings {
    /// The name that consumers subscribe to.
    pub name: String,
    /// The message type of all underlying topics.
    pub message_type: String,
    /// The topic whose messages enter, or a pattern for several topics. The default is the topic
    /// with the name of the queue.
    pub underlying_topic: Option<String>,
    /// The topic for a message that is published to the name of the queue. The default is the
    /// underlying topic.
    pub default_publish_target: Option<String>,
    /// The delivery semantics: whether a message may be delivered more than once.
    pub semantics: Semantics,
    /// The choice of the next subscription. The default depends on the semantics.
    pub fairness_model: Option<FairnessModel>,
    /// How long a subscription may hold a message, in nanoseconds. Without this setting, there is
    /// no limit.
    pub lease_period_ns: Option<u64>,
    /// The consumers that may acknowledge.
    pub leasing: Leasing,
    /// The most messages outstanding over the whole queue.
    pub max_backlog: Option<u32>,
    /// The most messages outstanding for one subscription.
    pub max_per_subscription_backlog: Option<u32>,
    /// The most deliveries of one message.
    pub max_deliveries: Option<u32>,
    /// The most cancels of one message.
    pub max_cancels: Option<u32>,
    /// How long a message waits after its first cancel, its second, and so on, in nanoseconds. The
    /// last delay repeats.
    pub retry_delay_ns: Vec<u64>,
    /// The most time in the queue, in nanoseconds.
    pub expiration_ns: Option<u64>,
    /// How this limit combines with the expiration of a message.
    pub expiration_model: ExpirationModel,
    /// Only messages that match enter.
    pub filter: Option<String>,
    /// The expression by which messages are ordered, the greatest first.
    pub priority: Option<String>,
    /// Messages that match are barriers.
    pub barrier_expression: Option<String>,
    /// The most messages active at a time.
    pub target_queue_depth: Option<u64>,
    /// The start of a new queue: `epoch`, `now`, a bookmark or a time.
    pub recovery_point: Option<String>,
    /// The topic or queue that receives expired messages.
    pub dead_letter_topic: Option<String>,
    /// The state of the queue is saved in a file, so that a restart need not read the log for it.
    pub file_backed_metadata: bool,
    /// The journal also records the holders of messages.
    pub record_leases: bool,
}

/// The settings that decide which messages of the log enter a queue, as they are written.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Selection {
    pub message_type: String,
    pub underlying_topic: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filter: Option<String>,
}

/// A queue with valid settings.
pub struct Definition {
    pub name: Arc<str>,
    pub message_type: MessageType,
    /// The topics whose messages enter.
    pub selector: TopicSelector,
    /// The settings that decide which messages enter.
    pub selection: Selection,
    pub publish_target: Arc<str>,
    pub filter: Option<Filter>,
    pub priority: Option<Priority>,
    pub barrier: Option<Filter>,
    /// The filter as written, and its compiled form.
    pub recovery_point: (String, Start),
    /// The topic that dead letters are published to.
    pub dead_letter_topic: Option<Arc<str>>,
    /// As configured. See [`keeps_state`](Self::keeps_state).
    pub file_backed_metadata: bool,
    /// All settings that the state of the queue depends on. A state that was saved with another key
    /// is not used.
    pub state_key: String,
    pub config: QueueConfig,
}

/// The expression by which messages are ordered.
#[derive(Clone, Debug)]
pub struct Priority(Expression);

impl Definition {
    /// Checks the settings of all queues, together with the recording rules of the log.
    ///
    /// # Errors
    /// [`ConfigErrors`] with every bad key. The queues are compared with each other when each of
    /// them is valid.
    pub fn compile(
        all: &[QueueSettings],
        rules: &[RecordingRule],
        options: &FilterOptions,
    ) -> Result<Vec<Definition>, ConfigErrors> {
        let mut errors = ConfigErrors::default();
        if all.len() > queue::QUEUES_MAX {
            let reason = format!("{} queues, the limit is {}", all.len(), queue::QUEUES_MAX);
            return Err(ConfigError::new("queues", reason).into());
        }
        let compiled: Vec<_> = (all.iter().enumerate())
            .filter_map(|(index, settings)| {
                settings.compile(&format!("queues[{index}]."), rules, options, &mut errors)
            })
            .collect();
        if errors.any() {
            // Dead letters between queues cannot be checked here. Dead letters to other topics can
            // be checked.
            for (index, settings) in all.iter().enumerate() {
                let is_queue = |topic: &str| all.iter().any(|queue| queue.name == topic);
                settings.check_dead_letters(&format!("queues[{index}]."), rules, is_queue, &mut errors);
            }
        }
        let mut definitions = errors.none_or(compiled)?;
        let mut errors = ConfigErrors::default();
        check_together(&mut definitions, rules, &mut errors);
        errors.none_or(definitions)
    }

    /// Checks the settings of one queue that is added to others.
    ///
    /// # Errors
    /// [`ConfigErrors`] with every bad key. The queue is compared with the others when its keys are
    /// valid.
    pub fn compile_one(
        settings: &QueueSettings,
        others: &[&Definition],
        rules: &[RecordingRule],
        options: &FilterOptions,
    ) -> Result<Definition, ConfigErrors> {
        let mut errors = ConfigErrors::default();
        let compiled = settings.compile("", rules, options, &mut errors);
        if errors.any() {
            let is_queue =
                |topic: &str| topic == settings.name || others.iter().any(|other| *other.name == *topic);
            settings.check_dead_letters("", rules, is_queue, &mut errors);
        }
        let Some(mut definition) = errors.none_or(compiled)? else { return Err(ConfigErrors::default()) };
        let mut errors = ConfigErrors::default();
        check_added(&mut definition, others, rules, &mut errors);
        errors.none_or(definition)
    }

    /// Whether its state is saved in a file. With a target depth, the state is small, and only the
    /// log has the position up to which it is valid.
    pub fn keeps_state(&self) -> bool {
        self.file_backed_metadata && self.config.target_queue_depth.is_none()
    }

    /// The keys that have no effect in combination with the other keys.
    pub fn ineffective(&self) -> Vec<&'static str> {
        let mut keys = self.config.ineffective();
        if self.file_backed_metadata && !self.keeps_state() {
            keys.push("file_backed_metadata");
        }
        keys
    }

    /// Whether the record is a message of the queue. The filter is not applied.
    pub fn takes(&self, record: &Record<'_>) -> bool {
        record.kind == RecordKind::Publish
            && record.message_type == self.message_type.code()
            && self.selector.matches(record.topic)
    }

    /// The properties of a message that the engine stores; `None` when the message does not match
    /// the filter of the queue.
    pub fn entry_of(
        &self,
        record: &Record<'_>,
        received: Time,
        wall: Timestamp,
        arena: &mut Arena,
    ) -> Option<QueueEntry> {
        let delayed_until = record.not_before().map(|end| {
            // By the clock of the engine, which shows `now`.
            let now = received.get() + wall.as_ns().saturating_sub(record.received().as_ns());
            Time::new(now.saturating_add(end.as_ns()).saturating_sub(wall.as_ns()))
        });
        let (bookmark, expiration_s) = (Some(record.bookmark()), record.expiration_s);
        let mut entry =
            QueueEntry { bookmark, received, expiration_s, delayed_until, ..QueueEntry::default() };
        if self.filter.is_none() && self.priority.is_none() && self.barrier.is_none() {
            return Some(entry);
        }
        let message = context_of(record, wall)?;
        if self.filter.as_ref().is_some_and(|filter| !filter.matches_with(&message, arena)) {
            return None;
        }
        entry.priority = self.priority.as_ref().and_then(|priority| priority.of(&message, arena));
        entry.barrier = self.barrier.as_ref().is_some_and(|barrier| barrier.matches_with(&message, arena));
        Some(entry)
    }

    /// The properties of the queue that a view needs.
    pub fn source(&self) -> SourceQueue {
        let (name, message_type) = (self.name.clone(), self.message_type);
        SourceQueue { name, message_type, file_backed: self.file_backed_metadata }
    }

    /// The properties of the queue that the table of topics needs.
    pub fn route(&self) -> QueueRoute {
        let Definition { name, message_type, selector, publish_target, .. } = self;
        QueueRoute {
            name: name.clone(),
            message_type: *message_type,
            selector: selector.clone(),
            publish_target: publish_target.clone(),
            file_backed: self.file_backed_metadata,
        }
    }
}

impl Priority {
    /// The rank of a message: a whole number without its fraction, at most 2^64 - 1. The value is
    /// converted to a number as in a filter. `None` when it is NULL, not a number, or negative: the
    /// message then sorts last.
    pub fn of(&self, message: &MessageContext<'_>, arena: &mut Arena) -> Option<u64> {
        let number = self.0.evaluate(message, arena).to_number()?;
        match number.as_i128() {
            Some(whole) => u64::try_from(whole.min(u64::MAX.into())).ok(),
            None => Some(number.as_f64()).filter(|number| *number >= 0.0).map(|number| number as u64),
        }
    }
}

/// The lease period of a queue that delivers at least once, when none is set (docs/queues.md
/// section 8).
const LEASE_PERIOD_NS: u64 = 300_000_000_000;

/// Its retry delays, when none are set.
const RETRY_DELAY_NS: [u64; 4] = [100_000_000, 1_000_000_000, 10_000_000_000, 60_000_000_000];

/// Some settings of a queue, by their keys in [`QueueSettings`]. A key with the value null gets its
/// default. For `lease_period` and `retry_delay` without `_ns`, this is the default of the
/// configuration. It depends on the semantics of the queue.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct QueueChanges(Map<String, Value>);

impl QueueChanges {
    /// Reads the settings from a JSON object.
    ///
    /// # Errors
    /// [`ConfigError`] for text that is not a JSON object.
    pub fn from_json(text: &str) -> Result<Self, ConfigError> {
        serde_json::from_str(text).map(QueueChanges).map_err(|error| ConfigError::of_json(&error))
    }

    /// The text that a key gets; `None`: it does not change, or has no value.
    pub fn text(&self, key: &str) -> Option<&str> {
        self.0.get(key)?.as_str()
    }

    /// The settings with these changes.
    ///
    /// # Errors
    /// [`ConfigError`] for a key that is unknown, or whose value is of the wrong kind.
    pub fn applied_to(&self, settings: &QueueSettings) -> Result<QueueSettings, ConfigError> {
        let defaults = QueueSettings::default().all_keys();
        let mut changed = settings.clone();
        let is_leased = settings.semantics == Semantics::AtLeastOnce;
        for (key, value) in &self.0 {
            let (key, value) = match (&**key, value) {
                ("lease_period", Value::Null) => {
                    ("lease_period_ns", is_leased.then_some(LEASE_PERIOD_NS).into())
                }
                ("retry_delay", Value::Null) => {
                    ("retry_delay_ns", if is_leased { RETRY_DELAY_NS.to_vec() } else { vec![] }.into())
                }
                (key, value) => (key, defaults.get(key).filter(|_| value.is_null()).unwrap_or(value).clone()),
            };
            let mut all = changed.all_keys();
            all.insert(key.to_owned(), value);
            changed = serde_json::from_value(Value::from(all)).map_err(|error| {
                ConfigError::new(key.strip_suffix("_ns").unwrap_or(key), error.to_string())
            })?;
        }
        Ok(changed)
    }
}

impl QueueSettings {
    /// The settings as [`from_json`](Self::from_json) reads them. Keys with default values are
    /// omitted, so that an older version can read the settings unless they use a newer key.
    pub fn to_json(&self) -> String {
        Value::from(self.explicit()).to_string()
    }

    /// The keys with other values than their defaults.
    pub fn explicit(&self) -> Map<String, Value> {
        let defaults = QueueSettings::default().all_keys();
        let mut all = self.all_keys();
        all.retain(|key, value| defaults.get(key) != Some(value));
        all
    }

    /// Every key, with its value.
    fn all_keys(&self) -> Map<String, Value> {
        // The values are texts, numbers and lists of numbers. JSON can represent all of them.
        match serde_json::to_value(self) {
            Ok(Value::Object(all)) => all,
            _ => Map::new(),
        }
    }

    /// Reads the settings from a JSON object with the keys of this type.
    ///
    /// # Errors
    /// [`ConfigError`] for text that is not such an object. It names the key when the key is known.
    pub fn from_json(text: &str) -> Result<Self, ConfigError> {
        serde_json::from_str(text).map_err(|error| ConfigError::of_json(&error))
    }

    /// The keys whose values differ.
    pub fn differences(&self, other: &QueueSettings) -> Vec<String> {
        let (left, right) = (serde_json::to_value(self), serde_json::to_value(other));
        let (Ok(Value::Object(left)), Ok(Value::Object(right))) = (left, right) else { return Vec::new() };
        let differing = left.iter().filter(|(key, value)| right.get(*key) != Some(value));
        // Users write `lease_period`. The name of the value in nanoseconds is internal.
        differing.map(|(key, _)| key.strip_suffix("_ns").unwrap_or(key).to_owned()).collect()
    }

    /// The queue; `None` after a mistake, which is then in the errors.
    fn compile(
        &self,
        path: &str,
        rules: &[RecordingRule],
        options: &FilterOptions,
        errors: &mut ConfigErrors,
    ) -> Option<Definition> {
        let error = |key: &str, reason: String| self.mistake(path, key, &reason);
        let exact = |key: &str, topic: &str| exact_name(topic).map_err(|reason| error(key, reason));
        let name = errors.note(exact("name", &self.name));
        let message_type =
            errors.note(MessageType::from_name(&self.message_type).ok_or_else(|| {
                error("message_type", format!("{:?} is not a message type", self.message_type))
            }));
        let topics = name.as_ref().zip(message_type);
        let topics = topics.map(|(name, kind)| self.compile_topics(name, kind, rules, &error));
        let topics = topics.and_then(|found| errors.note(found));
        let parse = |key: &str, text: &Option<String>| {
            let parsed = text.as_ref().map(|text| Filter::parse(text, options)).transpose();
            parsed.map_err(|bad| error(key, bad.to_string()))
        };
        let priority = self.priority.as_ref().map(|text| Expression::parse(text, options)).transpose();
        let recovery_point = self.recovery_point.clone().unwrap_or_else(|| "epoch".to_owned());
        let start = match recovery_point.as_str() {
            "epoch" => "0".parse(),
            "now" => "0|1|".parse(),
            other => other.parse::<Start>(),
        };
        let dead_letter_topic = self.dead_letter_topic.as_ref().map(|topic| {
            // The topic of the server for actions: see `EventsConfig::with_letters`.
            if *topic == left_topic(&self.name) {
                return Ok(topic.as_str().into());
            }
            exact("dead_letter_topic", topic)
        });
        let config = self.engine_config();
        let filter = errors.note(parse("filter", &self.filter));
        let barrier = errors.note(parse("barrier_expression", &self.barrier_expression));
        let priority = errors.note(priority.map_err(|bad| error("priority", bad.to_string())));
        let start = errors.note(start.map_err(|bad| error("recovery_point", bad.to_string())));
        let dead_letter_topic = errors.note(dead_letter_topic.transpose());
        errors.note(config.validate().map_err(|bad| error(key_of(&bad), bad.to_string())))?;
        let (selector, publish_target) = topics?;
        let selection = Selection {
            message_type: self.message_type.clone(),
            underlying_topic: selector.text().to_owned(),
            filter: self.filter.clone(),
        };
        Some(Definition {
            message_type: message_type?,
            selector,
            selection,
            publish_target,
            filter: filter?,
            barrier: barrier?,
            priority: priority?.map(Priority),
            recovery_point: (recovery_point, start?),
            dead_letter_topic: dead_letter_topic?,
            file_backed_metadata: self.file_backed_metadata,
            state_key: self.state_key(),
            config,
            name: name?,
        })
    }

    /// The topics whose messages enter, and the topic for messages to the name of the queue.
    fn compile_topics(
        &self,
        name: &Arc<str>,
        message_type: MessageType,
        rules: &[RecordingRule],
        error: &dyn Fn(&str, String) -> ConfigError,
    ) -> Result<(TopicSelector, Arc<str>), ConfigError> {
        let selector = match &self.underlying_topic {
            None => TopicSelector::Name(name.clone()),
            Some(topic) => {
                TopicSelector::new(topic).map_err(|bad| error("underlying_topic", bad.to_string()))?
            }
        };
        if !RecordingRule::could_record(rules, &selector) {
            let reason = format!("the transaction log does not record {:?}", selector.text());
            return Err(error("underlying_topic", reason));
        }
        let bad_target = |reason| error("default_publish_target", reason);
        let publish_target = match (&self.default_publish_target, &selector) {
            (Some(target), _) => exact_name(target).map_err(bad_target)?,
            (None, TopicSelector::Name(topic)) => topic.clone(),
            (None, TopicSelector::Pattern(_)) => {
                return Err(bad_target("required, as underlying_topic is a pattern".to_owned()));
            }
        };
        if !selector.matches(&publish_target) {
            let reason =
                format!("{publish_target:?} is not among the underlying topics {:?}", selector.text());
            return Err(bad_target(reason));
        }
        check_recorded(rules, &publish_target, message_type).map_err(bad_target)?;
        Ok((selector, publish_target))
    }

    /// Checks the topic for dead letters of a queue that cannot be compiled, unless it is a queue.
    fn check_dead_letters(
        &self,
        path: &str,
        rules: &[RecordingRule],
        is_queue: impl Fn(&str) -> bool,
        errors: &mut ConfigErrors,
    ) {
        let Some(topic) = self.dead_letter_topic.as_deref().filter(|topic| !is_queue(topic)) else { return };
        // Another form was already reported.
        if let Ok(TopicSelector::Name(topic)) = TopicSelector::new(topic)
            && let Err(reason) = check_dead_letters(rules, &topic)
        {
            errors.push(self.mistake(path, "dead_letter_topic", &reason));
        }
    }

    /// A mistake in a key. `path` names the queue in a configuration. A command about one queue has
    /// no path.
    fn mistake(&self, path: &str, key: &str, reason: &str) -> ConfigError {
        match path.is_empty() && !self.name.is_empty() {
            true => ConfigError::new(key, format!("queue {:?}: {reason}", self.name)),
            false => ConfigError::new(format!("{path}{key}"), reason),
        }
    }

    /// See [`Definition::state_key`]. It contains the version of quire, because the meaning of
    /// expressions may change with a version.
    fn state_key(&self) -> String {
        let QueueSettings { name, message_type, underlying_topic, filter, priority, .. } = self;
        let QueueSettings {
            barrier_expression,
            expiration_ns,
            expiration_model,
            recovery_point,
            semantics,
            ..
        } = self;
        let entering = (name, message_type, underlying_topic, filter, priority, barrier_expression);
        let version = env!("CARGO_PKG_VERSION");
        format!("{version} {entering:?} {:?}", (expiration_ns, expiration_model, recovery_point, semantics))
    }

    fn engine_config(&self) -> QueueConfig {
        QueueConfig {
            semantics: self.semantics,
            fairness_model: self.fairness_model,
            lease_period: self.lease_period_ns.map(Duration::from_nanos),
            leasing: self.leasing,
            max_backlog: self.max_backlog,
            max_per_subscription_backlog: self.max_per_subscription_backlog,
            max_deliveries: self.max_deliveries,
            max_cancels: self.max_cancels,
            retry_delay: self.retry_delay_ns.iter().copied().map(Duration::from_nanos).collect(),
            expiration: self.expiration_ns.map(Duration::from_nanos),
            expiration_model: self.expiration_model,
            earlier_expirations: Vec::new(),
            priority: self.priority.is_some(),
            barrier: self.barrier_expression.is_some(),
            target_queue_depth: self.target_queue_depth,
            record_leases: self.record_leases,
        }
    }
}

/// Checks that need all queues: names, publish targets and dead letters. A queue that receives dead
/// letters is replaced by the topic of these dead letters.
fn check_together(all: &mut [Definition], rules: &[RecordingRule], errors: &mut ConfigErrors) {
    let named = |all: &[Definition], name: &str| all.iter().position(|other| *other.name == *name);
    for index in 0..all.len() {
        let queue = &all[index];
        let mut refuse = |key: &str, reason: String| {
            errors.push(ConfigError::new(format!("queues[{index}].{key}"), reason));
        };
        if named(all, &queue.name) != Some(index) {
            refuse("name", "another queue has the name".to_owned());
        }
        if named(all, &queue.publish_target).is_some_and(|other| other != index) {
            refuse("default_publish_target", target_is_queue(&queue.publish_target));
        }
        let Some(topic) = &queue.dead_letter_topic else { continue };
        let target = named(all, topic).map_or(topic, |other| &all[other].publish_target).clone();
        if let Err(reason) = check_dead_letters(rules, &target) {
            refuse("dead_letter_topic", reason);
        }
        all[index].dead_letter_topic = Some(target);
    }
    let every: Vec<&Definition> = all.iter().collect();
    for index in 0..every.len() {
        if leads_back(&every, index) {
            let reason = "dead letters would come back to the queue";
            errors.push(ConfigError::new(format!("queues[{index}].dead_letter_topic"), reason));
        }
    }
}

/// The user may not have set the key: it has a default.
fn target_is_queue(target: &str) -> String {
    format!("{target:?} is another queue; name a topic that is not a queue (the default is underlying_topic)")
}

/// As [`check_together`], for one queue that is added to others. The others have passed the check.
fn check_added(
    queue: &mut Definition,
    others: &[&Definition],
    rules: &[RecordingRule],
    errors: &mut ConfigErrors,
) {
    let name = queue.name.clone();
    let mut refuse = |key: &str, reason: String| {
        errors.push(ConfigError::new(key, format!("queue {name:?}: {reason}")));
    };
    if others.iter().any(|other| other.name == name) {
        refuse("name", "another queue has the name".to_owned());
    }
    if let Some(other) = others.iter().find(|other| other.publish_target == name) {
        refuse(
            "name",
            format!("messages that are published to queue {:?} go to the topic {name:?}", other.name),
        );
    }
    let is_moved = queue.publish_target != name;
    if let Some(other) =
        others.iter().find(|other| is_moved && other.dead_letter_topic.as_ref() == Some(&name))
    {
        refuse("name", format!("the dead letters of queue {:?} go to the topic {name:?}", other.name));
    }
    if others.iter().any(|other| other.name == queue.publish_target) {
        refuse("default_publish_target", target_is_queue(&queue.publish_target));
    }
    if let Some(topic) = &queue.dead_letter_topic {
        let named = others.iter().find(|other| other.name == *topic).map(|other| &other.publish_target);
        let own = (name == *topic).then_some(&queue.publish_target);
        let target = named.or(own).unwrap_or(topic).clone();
        if let Err(reason) = check_dead_letters(rules, &target) {
            refuse("dead_letter_topic", reason);
        }
        queue.dead_letter_topic = Some(target);
    }
    // An added queue may close a cycle of existing queues.
    let every: Vec<&Definition> = others.iter().copied().chain([&*queue]).collect();
    if leads_back(&every, others.len()) {
        refuse("dead_letter_topic", "dead letters would come back to the queue".to_owned());
    }
}

/// Whether a topic accepts dead letters. The error is the reason why not.
fn check_dead_letters(rules: &[RecordingRule], target: &str) -> Result<(), String> {
    check_recorded(rules, target, MessageType::Json)?;
    if Recording::of(rules, target).records_all() {
        return Ok(());
    }
    Err(format!("the transaction log does not record every message on {target:?}"))
}

/// Whether a dead letter of the queue can enter the queue again, directly or through other queues.
fn leads_back(all: &[&Definition], from: usize) -> bool {
    let mut seen = vec![false; all.len()];
    let mut to_visit = vec![from];
    while let Some(at) = to_visit.pop() {
        let Some(topic) = &all[at].dead_letter_topic else { continue };
        for (next, queue) in all.iter().enumerate() {
            if queue.selector.matches(topic) && !std::mem::replace(&mut seen[next], true) {
                to_visit.push(next);
            }
        }
    }
    seen[from]
}

/// Whether the log records messages of this type on the topic. The error is the reason why not.
fn check_recorded(rules: &[RecordingRule], topic: &str, message_type: MessageType) -> Result<(), String> {
    match RecordingRule::message_type_of(rules, topic) {
        None => Err(format!("the transaction log does not record {topic:?}")),
        Some(recorded) if recorded != message_type => Err(format!(
            "the transaction log records {topic:?} as {}, wanted is {}",
            recorded.name(),
            message_type.name()
        )),
        Some(_) => Ok(()),
    }
}

/// The key that a forbidden combination is about.
fn key_of(error: &queue::ConfigError) -> &'static str {
    match error {
        queue::ConfigError::TargetQueueDepth { .. } => "target_queue_depth",
        queue::ConfigError::FairnessModel => "fairness_model",
        queue::ConfigError::Zero { element } | queue::ConfigError::Fixed { element } => element,
        queue::ConfigError::TooManyQueues { .. } => "name",
    }
}

/// A topic that is an exact name, not a pattern, and not a topic of the server.
fn exact_name(topic: &str) -> Result<Arc<str>, String> {
    match TopicSelector::new(topic) {
        Ok(TopicSelector::Name(name)) => {
            check_published(topic.as_bytes()).map_err(|bad| bad.to_string())?;
            Ok(name)
        }
        Ok(TopicSelector::Pattern(_)) => Err(format!("{topic:?} is a pattern, not a name")),
        Err(bad) => Err(bad.to_string()),
    }
}
