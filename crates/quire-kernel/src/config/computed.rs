//! The topics that the server computes from others: views and conflated topics. Each of them can
//! read the others, so they are checked together, sources first.

use std::collections::VecDeque;

use quire_expression::filter::FilterOptions;
use quire_expression::message_type::MessageType;
use quire_expression::topic::TopicSelector;

use crate::ConfigError;
use crate::config::ConfigErrors;
use crate::config::conflated::ConflatedTopicSettings;
use crate::config::joins::Source;
use crate::config::queues::Definition;
use crate::config::tables::{SourceQueue, TABLES_MAX, TableDefinition};
use crate::config::views::ViewSettings;

/// The names that computed topics are checked against.
pub struct Known<'a> {
    pub tables: &'a [TableDefinition],
    pub queues: &'a [Definition],
    /// The queues that were created at run time.
    pub created: &'a [SourceQueue],
}

/// The settings of one computed topic.
#[derive(Clone, Copy)]
enum Settings<'a> {
    View(&'a ViewSettings),
    Conflated(&'a ConflatedTopicSettings),
}

/// One computed topic, with its number among those of its kind.
#[derive(Clone, Copy)]
struct Computed<'a> {
    number: usize,
    settings: Settings<'a>,
}

impl<'a> Computed<'a> {
    /// All of them, the views first.
    fn all(views: &'a [ViewSettings], conflated: &'a [ConflatedTopicSettings]) -> Vec<Self> {
        let views = views
            .iter()
            .enumerate()
            .map(|(number, view)| Computed { number, settings: Settings::View(view) });
        let conflated = conflated
            .iter()
            .enumerate()
            .map(|(number, topic)| Computed { number, settings: Settings::Conflated(topic) });
        views.chain(conflated).collect()
    }

    fn name(&self) -> &'a str {
        match self.settings {
            Settings::View(view) => &view.name,
            Settings::Conflated(topic) => &topic.name,
        }
    }

    fn sources(&self) -> Vec<String> {
        match self.settings {
            Settings::View(view) => view.sources(),
            Settings::Conflated(topic) => vec![topic.underlying_topic.clone()],
        }
    }

    /// The key with the sources.
    fn source_key(&self) -> &'static str {
        match self.settings {
            Settings::View(view) if !view.join.is_empty() => "join",
            Settings::View(_) | Settings::Conflated(_) => "underlying_topic",
        }
    }

    fn kind(&self) -> &'static str {
        match self.settings {
            Settings::View(_) => "view",
            Settings::Conflated(_) => "conflated topic",
        }
    }

    fn error(&self, key: &str, reason: &str) -> ConfigError {
        let list = match self.settings {
            Settings::View(_) => "views",
            Settings::Conflated(_) => "conflated_topics",
        };
        let name = match self.name() {
            "" => String::new(),
            name => format!("{} {name:?}: ", self.kind()),
        };
        ConfigError::new(format!("{list}[{}].{key}", self.number), format!("{name}{reason}"))
    }
}

/// Checks the settings of all views and conflated topics, and returns them in an order in which
/// each one follows its source. Then follow the tables of the queues that views read.
///
/// # Errors
/// [`ConfigErrors`] with every bad key.
pub fn compile(
    views: &[ViewSettings],
    conflated: &[ConflatedTopicSettings],
    known: &Known<'_>,
    options: &FilterOptions,
) -> Result<Vec<TableDefinition>, ConfigErrors> {
    let mut errors = ConfigErrors::default();
    let all = Computed::all(views, conflated);
    if all.len() + known.tables.len() > TABLES_MAX {
        let count = all.len() + known.tables.len();
        let reason =
            format!("{count} last-value topics, views and conflated topics, the limit is {TABLES_MAX}");
        let list = if views.is_empty() { "conflated_topics" } else { "views" };
        return Err(ConfigError::new(list, reason).into());
    }
    let mut compiled: Vec<TableDefinition> = Vec::new();
    for index in in_order(&all, &mut errors) {
        let topic = all[index];
        let error = |key: &str, reason: String| topic.error(key, &reason);
        if let Some(other) = known.other_with_name(topic, &all[..index]) {
            errors.push(error("name", format!("{other} has the name")));
        }
        let table_of = |name: &str| known.tables.iter().chain(&compiled).find(|it| *it.name == *name);
        let find = |name: &str| match table_of(name) {
            Some(source) if source.pattern.is_none() => Source::Found(source.message_type),
            // The mistake of a source that is computed is reported there.
            None if all.iter().any(|other| other.name() == name) => Source::Mistaken,
            found => match (topic.settings, known.queue(name)) {
                (Settings::View(_), Some(queue)) => Source::Found(queue.message_type),
                (_, queue) => Source::Refused(refusal_of(topic, name, found.is_some(), queue.is_some())),
            },
        };
        let made = match topic.settings {
            Settings::View(view) => view.compile(&find, options, &error, &mut errors),
            Settings::Conflated(topic) => {
                let name = &topic.underlying_topic;
                let source = match find(name) {
                    Source::Found(_) => table_of(name),
                    Source::Mistaken => continue,
                    Source::Refused(reason) => {
                        errors.push(error("underlying_topic", reason));
                        None
                    }
                };
                topic.compile(source, options, &error, &mut errors)
            }
        };
        compiled.extend(made);
    }
    let read = compiled.iter().flat_map(|topic| topic.view.iter()).flat_map(|view| view.sources.iter());
    let mut queues: Vec<SourceQueue> = Vec::new();
    for queue in read.filter_map(|source| known.queue(source)) {
        if !queues.contains(&queue) {
            queues.push(queue);
        }
    }
    compiled.extend(queues.iter().map(TableDefinition::of_queue));
    errors.none_or(compiled)
}

/// Another topic, as a new definition of a view sees it.
pub enum Other {
    /// Its messages have this type.
    LastValues(MessageType),
    /// A queue. Its messages have this type.
    Queue(MessageType),
    /// It is the name of settings for the topics of a pattern.
    Pattern,
    /// It keeps no last values.
    None,
}

/// Checks a new definition of a view that exists. `find` describes the other topics. Whether the
/// view would read itself is not checked.
///
/// # Errors
/// [`ConfigErrors`] with every bad key.
pub fn redefine(
    settings: &ViewSettings,
    find: &dyn Fn(&str) -> Other,
    options: &FilterOptions,
) -> Result<TableDefinition, ConfigErrors> {
    let mut errors = ConfigErrors::default();
    let topic = Computed { number: 0, settings: Settings::View(settings) };
    let error = |key: &str, reason: String| ConfigError::new(key, reason);
    let find = |name: &str| match find(name) {
        Other::LastValues(message_type) | Other::Queue(message_type) => Source::Found(message_type),
        Other::Pattern => Source::Refused(refusal_of(topic, name, true, false)),
        Other::None => Source::Refused(refusal_of(topic, name, false, false)),
    };
    let made = settings.compile(&find, options, &error, &mut errors);
    let made = errors.none_or(made)?;
    made.ok_or_else(|| ConfigError::new("projection", "it cannot be compiled").into())
}

/// The places of the topics, sources first. A topic that reads itself is a mistake, and neither it
/// nor a topic that reads it is among them.
fn in_order(all: &[Computed<'_>], errors: &mut ConfigErrors) -> Vec<usize> {
    let place_of = |name: &String| all.iter().position(|it| it.name() == *name);
    let sources: Vec<Vec<usize>> =
        all.iter().map(|topic| topic.sources().iter().filter_map(place_of).collect()).collect();
    for (index, topic) in all.iter().enumerate() {
        let Some(path) = path_to_itself(index, &sources) else { continue };
        let names: Vec<&str> = path.into_iter().map(|place| all[place].name()).collect();
        let reason = format!("the {} reads itself: {}", topic.kind(), names.join(" reads "));
        let error = topic.error(topic.source_key(), &reason);
        errors.push(ConfigError::new(error.key, reason));
    }
    let mut order = Vec::new();
    let mut left: Vec<usize> = (0..all.len()).collect();
    loop {
        let is_ready = |index: &usize, order: &[usize]| sources[*index].iter().all(|it| order.contains(it));
        let ready: Vec<usize> = left.extract_if(.., |index| is_ready(index, &order)).collect();
        if ready.is_empty() {
            return order;
        }
        order.extend(ready);
    }
}

/// The shortest way from a topic over its sources back to it.
fn path_to_itself(index: usize, sources: &[Vec<usize>]) -> Option<Vec<usize>> {
    let mut reader_of = vec![None; sources.len()];
    let mut waiting = VecDeque::from([index]);
    while let Some(reader) = waiting.pop_front() {
        for &source in &sources[reader] {
            if source == index {
                let mut path = vec![index];
                let mut at = Some(reader);
                while let Some(place) = at.filter(|place| *place != index) {
                    path.push(place);
                    at = reader_of[place];
                }
                path.push(index);
                path.reverse();
                return Some(path);
            }
            if reader_of[source].is_none() {
                reader_of[source] = Some(reader);
                waiting.push_back(source);
            }
        }
    }
    None
}

impl Known<'_> {
    fn queue(&self, name: &str) -> Option<SourceQueue> {
        let configured = self.queues.iter().find(|queue| *queue.name == *name).map(Definition::source);
        configured.or_else(|| self.created.iter().find(|queue| *queue.name == *name).cloned())
    }

    fn other_with_name(&self, topic: Computed<'_>, before: &[Computed<'_>]) -> Option<String> {
        let name = topic.name();
        if self.tables.iter().any(|table| *table.name == *name) {
            return Some("a last-value topic".to_owned());
        }
        if self.queue(name).is_some() {
            return Some("a queue".to_owned());
        }
        let other = before.iter().find(|other| other.name() == name)?;
        let article = if other.kind() == topic.kind() { "another" } else { "a" };
        Some(format!("{article} {}", other.kind()))
    }

    /// Refuses queues whose messages would go to a computed topic, or come from it.
    pub fn check_queues(&self, computed: &[TableDefinition], errors: &mut ConfigErrors) {
        for (index, queue) in self.queues.iter().enumerate() {
            let dead_letters = queue.dead_letter_topic.as_deref().unwrap_or_default();
            let named = match &queue.selector {
                TopicSelector::Name(name) => name,
                TopicSelector::Pattern(_) => "",
            };
            for (key, topic) in [
                ("underlying_topic", named),
                ("default_publish_target", &*queue.publish_target),
                ("dead_letter_topic", dead_letters),
            ] {
                let is_meant = |it: &&TableDefinition| it.is_computed() && *it.name == *topic;
                let Some(found) = computed.iter().find(is_meant) else { continue };
                let kind = if found.view.is_some() { "view" } else { "conflated topic" };
                let reason = format!("{topic:?} is a {kind}, and only the server writes to it");
                errors.push(ConfigError::new(format!("queues[{index}].{key}"), reason));
                break;
            }
        }
    }
}

/// Why a topic cannot be the source of a computed topic.
fn refusal_of(topic: Computed<'_>, source: &str, has_pattern: bool, is_queue: bool) -> String {
    let kind = topic.kind();
    if source.is_empty() {
        let queue = if matches!(topic.settings, Settings::View(_)) { ", the queue" } else { "" };
        format!("name the last-value topic, the view{queue} or the conflated topic that the {kind} reads")
    } else if has_pattern {
        format!("the sow_topic {source:?} has a pattern, and a {kind} of its topics is not in this version")
    } else if is_queue {
        format!("{source:?} is a queue: it delivers each message once, so there is no newest one")
    } else {
        let queue = if matches!(topic.settings, Settings::View(_)) { ", no queue" } else { "" };
        format!(
            "{source:?} keeps no last values: no sow_topic, no view{queue} and no conflated_topic has this name"
        )
    }
}
