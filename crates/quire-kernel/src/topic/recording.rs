//! The messages that the transaction log records: by topic and, where an entry has a filter, by
//! content.

use crate::config::ConfigErrors;
use crate::{ConfigError, RecordedTopic};
use quire_expression::filter::{Filter, FilterOptions, MessageContext};
use quire_expression::message_type::{Arena, MessageType};
use quire_expression::topic::TopicSelector;

/// The type of messages on a topic without an entry of the log.
const MESSAGE_TYPE_DEFAULT: MessageType = MessageType::Json;

/// One entry of the log's topics, compiled.
#[derive(Clone, Debug)]
pub struct RecordingRule {
    selector: TopicSelector,
    message_type: MessageType,
    filter: Option<Filter>,
    records: bool,
    validates: bool,
}

/// The result of the rules for one topic.
#[derive(Clone, Debug)]
pub struct Recording {
    /// The type of the messages of the topic.
    pub message_type: MessageType,
    validates: bool,
    when: When,
}

#[derive(Clone, Debug)]
enum When {
    /// No entry names the topic.
    Unnamed,
    /// An entry with `recorded = false` names it.
    Never,
    Always,
    /// Messages that match any of these filters are recorded: overlapping entries record the union.
    Matches(Vec<Filter>),
}

impl RecordingRule {
    /// Compiles the entries of a configuration.
    ///
    /// # Errors
    /// [`ConfigErrors`] with every bad key, by entry. The order of the entries is checked when each
    /// of them is valid.
    pub fn compile(
        topics: &[RecordedTopic],
        options: &FilterOptions,
    ) -> Result<Vec<RecordingRule>, ConfigErrors> {
        let mut errors = ConfigErrors::default();
        let compiled: Vec<_> = (topics.iter().enumerate())
            .filter_map(|(index, topic)| Self::compile_one(index, topic, options, &mut errors))
            .collect();
        let rules = errors.none_or(compiled)?;
        let mut errors = ConfigErrors::default();
        check_order(&rules, &mut errors);
        errors.none_or(rules)
    }

    /// `None` after a mistake, which is then in the errors.
    fn compile_one(
        index: usize,
        topic: &RecordedTopic,
        options: &FilterOptions,
        errors: &mut ConfigErrors,
    ) -> Option<Self> {
        let error = |key: &str, reason: String| {
            ConfigError::new(format!("transaction_log.topics[{index}].{key}"), reason)
        };
        let selector = errors.note(TopicSelector::new(&topic.name).map_err(|e| error("name", e.to_string())));
        let message_type =
            errors.note(MessageType::from_name(&topic.message_type).ok_or_else(|| {
                error("message_type", format!("{:?} is not a message type", topic.message_type))
            }));
        let is_reserved = selector.as_ref().is_some_and(TopicSelector::takes_reserved);
        if is_reserved && message_type.is_some_and(|kind| kind != MessageType::Json) {
            let reason = "messages of topics that begin with /quire/ have the type json";
            errors.push(error("message_type", reason.to_owned()));
        }
        let filter = topic.filter.as_ref().map(|text| Filter::parse(text, options)).transpose();
        let filter = errors.note(filter.map_err(|e| error("filter", e.to_string())));
        if topic.filter.is_some() && !topic.recorded {
            let reason = "an entry with recorded = false has no filter: remove one of the two";
            errors.push(error("filter", reason.to_owned()));
        }
        if topic.validate && message_type.is_some_and(|kind| kind != MessageType::Json) {
            let reason = "messages of the type json can be validated, others cannot: leave the key out";
            errors.push(error("validate", reason.to_owned()));
        }
        let RecordedTopic { recorded: records, validate: validates, .. } = *topic;
        let (selector, message_type, filter) = (selector?, message_type?, filter?);
        Some(RecordingRule { selector, message_type, filter, records, validates })
    }

    /// Whether the entry records messages. If not, its topics are deliberately unrecorded.
    pub fn records(&self) -> bool {
        self.records
    }

    /// Whether it records only the messages that match its filter.
    pub fn has_filter(&self) -> bool {
        self.filter.is_some()
    }

    /// The topic that it names; `None` for a pattern.
    pub fn name(&self) -> Option<&str> {
        match &self.selector {
            TopicSelector::Name(name) => Some(name),
            TopicSelector::Pattern(_) => None,
        }
    }

    /// The type of the messages that are recorded on a topic; `None` when none are.
    pub fn message_type_of(rules: &[RecordingRule], topic: &str) -> Option<MessageType> {
        let first = rules.iter().find(|rule| rule.selector.matches(topic))?;
        first.records.then_some(first.message_type)
    }

    /// Whether a subscription to `selector` can ever see a recorded message: its topic is recorded,
    /// or its pattern and an entry can match the same topic.
    pub fn could_record(rules: &[RecordingRule], selector: &TopicSelector) -> bool {
        let TopicSelector::Pattern(pattern) = selector else {
            return RecordingRule::message_type_of(rules, selector.text()).is_some();
        };
        rules.iter().filter(|rule| rule.records).any(|rule| match &rule.selector {
            TopicSelector::Name(name) => pattern.matches(name),
            TopicSelector::Pattern(_) => true,
        })
    }
}

/// Refuses a name with `recorded = false` that an earlier entry records, because it would have no
/// effect.
fn check_order(rules: &[RecordingRule], errors: &mut ConfigErrors) {
    for (index, rule) in rules.iter().enumerate() {
        let TopicSelector::Name(name) = &rule.selector else { continue };
        let before = rules[..index].iter().find(|before| before.selector.matches(name));
        if let Some(before) = before.filter(|before| before.records && !rule.records) {
            let reason = format!(
                "{name:?} is recorded by the entry {:?} before it: put the entry with recorded = false first",
                before.selector.text()
            );
            errors.push(ConfigError::new(format!("transaction_log.topics[{index}].recorded"), reason));
        }
    }
}

impl Recording {
    /// Applies `rules` to `topic`. The first entry that names it decides its message type, whether
    /// it is recorded, and whether its messages are validated.
    pub fn of(rules: &[RecordingRule], topic: &str) -> Recording {
        let mut meant = rules.iter().filter(|rule| rule.selector.matches(topic)).peekable();
        let Some(first) = meant.peek() else {
            return Recording { message_type: MESSAGE_TYPE_DEFAULT, validates: false, when: When::Unnamed };
        };
        let RecordingRule { message_type, validates, .. } = **first;
        if !first.records {
            return Recording { message_type, validates, when: When::Never };
        }
        let recorded = meant.filter(|rule| rule.records);
        let filters: Option<Vec<Filter>> = recorded.map(|rule| rule.filter.clone()).collect();
        Recording { message_type, validates, when: filters.map_or(When::Always, When::Matches) }
    }

    /// The same for a last-value topic. The configuration contains its message type.
    pub fn of_table(self, message_type: MessageType) -> Recording {
        let when = if self.is_configured() { self.when } else { When::Never };
        Recording { message_type, when, ..self }
    }

    /// The rules of a view or a conflated topic: the log does not record its records.
    pub fn of_computed(message_type: MessageType) -> Recording {
        Recording { message_type, validates: false, when: When::Never }
    }

    /// Whether messages that are not well formed are refused.
    pub fn validates(&self) -> bool {
        self.validates
    }

    /// Whether an entry of the configuration names the topic. Otherwise the topic may be unrecorded
    /// by mistake.
    pub fn is_configured(&self) -> bool {
        !matches!(self.when, When::Unnamed)
    }

    /// Whether any message is recorded.
    pub fn records_any(&self) -> bool {
        !matches!(self.when, When::Unnamed | When::Never)
    }

    /// Whether every message is recorded.
    pub fn records_all(&self) -> bool {
        matches!(self.when, When::Always)
    }

    /// Whether a message is recorded. `message` is called only when that depends on its content.
    #[inline(always)]
    pub fn records<'a>(&self, arena: &mut Arena, message: impl FnOnce() -> MessageContext<'a>) -> bool {
        match &self.when {
            When::Always => true,
            When::Unnamed | When::Never => false,
            When::Matches(filters) => {
                let message = message();
                // A message must not be lost because its filter is slow.
                arena.allow(u64::MAX);
                filters.iter().any(|filter| filter.matches_with(&message, arena))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &str, filter: Option<&str>, recorded: bool) -> RecordedTopic {
        let filter = filter.map(Into::into);
        RecordedTopic { name: name.into(), message_type: "json".into(), filter, recorded, validate: false }
    }

    fn compile(topics: &[RecordedTopic]) -> Result<Vec<RecordingRule>, ConfigError> {
        RecordingRule::compile(topics, &FilterOptions::default()).map_err(ConfigError::from)
    }

    fn rules(entries: &[(&str, Option<&str>)]) -> Vec<RecordingRule> {
        let topics: Vec<_> = entries.iter().map(|(name, filter)| entry(name, *filter, true)).collect();
        compile(&topics).unwrap()
    }

    #[test]
    fn the_first_entry_that_names_a_topic_decides_whether_it_is_recorded() {
        let scratch_first = compile(&[entry("scratch", None, false), entry("^", None, true)]).unwrap();
        let orders_first = compile(&[entry("^orders", None, true), entry("^", None, false)]).unwrap();
        for (rules, recorded, unrecorded) in
            [(scratch_first, "orders", "scratch"), (orders_first, "orders", "scratch")]
        {
            assert!(Recording::of(&rules, recorded).records_all());
            let scratch = Recording::of(&rules, unrecorded);
            assert!(!scratch.records_any() && scratch.is_configured());
            assert_eq!(RecordingRule::message_type_of(&rules, unrecorded), None);
            let selector = |topic| TopicSelector::new(topic).unwrap();
            assert!(!RecordingRule::could_record(&rules, &selector(unrecorded)));
            assert!(RecordingRule::could_record(&rules, &selector("^scr")));
        }
        assert!(!Recording::of(&rules(&[("orders", None)]), "order").is_configured());
    }

    #[test]
    fn an_entry_without_effect_is_refused() {
        let late = compile(&[entry("^", None, true), entry("scratch", None, false)]).unwrap_err();
        assert_eq!(late.key, "transaction_log.topics[1].recorded");
        let filtered = compile(&[entry("scratch", Some("/a = 1"), false)]).unwrap_err();
        assert_eq!(filtered.key, "transaction_log.topics[0].filter");
    }

    #[test]
    fn a_pattern_may_subscribe_when_an_entry_could_meet_it() {
        let selector = |topic| TopicSelector::new(topic).unwrap();
        let exact = rules(&[("orders", None)]);
        assert!(RecordingRule::could_record(&exact, &selector("orders")));
        assert!(!RecordingRule::could_record(&exact, &selector("trades")));
        assert!(RecordingRule::could_record(&exact, &selector("^ord")));
        assert!(!RecordingRule::could_record(&exact, &selector("^tra")));
        assert!(RecordingRule::could_record(&rules(&[("^orders", None)]), &selector("^tra")));
        assert!(!RecordingRule::could_record(&[], &selector(".*")));
    }

    #[test]
    fn a_bad_entry_is_named() {
        let bad = |name: &str, message_type: &str| {
            let topic = RecordedTopic { message_type: message_type.into(), ..entry(name, None, true) };
            compile(&[topic]).unwrap_err().key
        };
        assert_eq!(bad("a(", "json"), "transaction_log.topics[0].name");
        assert_eq!(bad("a", "jsn"), "transaction_log.topics[0].message_type");
        assert_eq!(bad("^/quire/", "fix"), "transaction_log.topics[0].message_type");
        let fix = RecordedTopic { message_type: "fix".into(), validate: true, ..entry("a", None, true) };
        assert_eq!(compile(&[fix]).unwrap_err().key, "transaction_log.topics[0].validate");
    }
}
