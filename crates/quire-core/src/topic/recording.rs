//! Which messages the transaction log records: by topic and, where an entry says so, by content (seed 003).

use super::pattern::TopicSelector;
use crate::broker::{ConfigError, RecordedTopic};
use crate::filter::{Filter, FilterOptions, MessageContext};
use crate::message_type::MessageType;

/// The type of messages on a topic that no entry of the log names.
const MESSAGE_TYPE_DEFAULT: MessageType = MessageType::Json;

/// One entry of the log's topics, compiled.
#[derive(Clone, Debug)]
pub struct RecordingRule {
    selector: TopicSelector,
    message_type: MessageType,
    filter: Option<Filter>,
}

/// What the rules say about one topic.
#[derive(Clone, Debug)]
pub struct Recording {
    /// How the messages of the topic are read.
    pub message_type: MessageType,
    when: When,
}

#[derive(Clone, Debug)]
enum When {
    Never,
    Always,
    /// When any of these matches: overlapping entries record the union (reference: queues-and-transaction-log 2.2).
    Matches(Vec<Filter>),
}

impl RecordingRule {
    /// Compiles the entries of a configuration.
    ///
    /// # Errors
    /// [`ConfigError`] that names the entry and the key in it.
    pub fn compile(
        topics: &[RecordedTopic],
        options: &FilterOptions,
    ) -> Result<Vec<RecordingRule>, ConfigError> {
        let compile = |(index, topic): (usize, &RecordedTopic)| {
            let error = |key: &str, reason: String| {
                ConfigError::new(format!("transaction_log.topics[{index}].{key}"), reason)
            };
            let selector = TopicSelector::new(&topic.name).map_err(|e| error("name", e.to_string()))?;
            let message_type = MessageType::from_name(&topic.message_type).ok_or_else(|| {
                error("message_type", format!("{:?} is not a message type", topic.message_type))
            })?;
            let filter = topic
                .filter
                .as_ref()
                .map(|text| Filter::parse(text, options))
                .transpose()
                .map_err(|e| error("filter", e.to_string()))?;
            Ok(RecordingRule { selector, message_type, filter })
        };
        topics.iter().enumerate().map(compile).collect()
    }

    /// The type of the messages that are recorded on a topic; `None` when none are.
    pub fn message_type_of(rules: &[RecordingRule], topic: &str) -> Option<MessageType> {
        rules.iter().find(|rule| rule.selector.matches(topic)).map(|rule| rule.message_type)
    }

    /// Whether a subscription to `selector` can ever see a recorded message: its topic is recorded, or its pattern and an entry
    /// could meet (reference: queues-and-transaction-log 2.5 BR2, BR3).
    pub fn could_record(rules: &[RecordingRule], selector: &TopicSelector) -> bool {
        rules.iter().any(|rule| match (selector, &rule.selector) {
            (TopicSelector::Name(name), entry) => entry.matches(name),
            (TopicSelector::Pattern(pattern), TopicSelector::Name(name)) => pattern.matches(name),
            (TopicSelector::Pattern(_), TopicSelector::Pattern(_)) => true,
        })
    }
}

impl Recording {
    /// What `rules` say about `topic`. The first entry that names it decides its message type.
    pub fn of(rules: &[RecordingRule], topic: &str) -> Recording {
        let mut meant = rules.iter().filter(|rule| rule.selector.matches(topic)).peekable();
        let Some(first) = meant.peek() else {
            return Recording { message_type: MESSAGE_TYPE_DEFAULT, when: When::Never };
        };
        let message_type = first.message_type;
        let filters: Option<Vec<Filter>> = meant.map(|rule| rule.filter.clone()).collect();
        Recording { message_type, when: filters.map_or(When::Always, When::Matches) }
    }

    /// Whether any message is recorded.
    pub fn records_any(&self) -> bool {
        !matches!(self.when, When::Never)
    }

    /// Whether every message is recorded.
    pub fn records_all(&self) -> bool {
        matches!(self.when, When::Always)
    }

    /// Whether this message is recorded.
    pub fn records(&self, message: &MessageContext<'_>) -> bool {
        match &self.when {
            When::Always => true,
            When::Never => false,
            When::Matches(filters) => filters.iter().any(|filter| filter.matches(message)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(entries: &[(&str, Option<&str>)]) -> Vec<RecordingRule> {
        let topics: Vec<RecordedTopic> = entries
            .iter()
            .map(|(name, filter)| RecordedTopic {
                name: (*name).into(),
                message_type: "json".into(),
                filter: filter.map(Into::into),
            })
            .collect();
        RecordingRule::compile(&topics, &FilterOptions::default()).unwrap()
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
            let topic = RecordedTopic { name: name.into(), message_type: message_type.into(), filter: None };
            RecordingRule::compile(&[topic], &FilterOptions::default()).unwrap_err().key
        };
        assert_eq!(bad("a(", "json"), "transaction_log.topics[0].name");
        assert_eq!(bad("a", "jsn"), "transaction_log.topics[0].message_type");
    }
}
