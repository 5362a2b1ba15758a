//! The topics that the server computes from others: views and conflated topics. Each of them can
//! read the others, so they are checked together, sources first.

use quire_expression::filter::FilterOptions;
use quire_expression::topic::TopicSelector;

use crate::ConfigError;
use crate::config::ConfigErrors;
use crate::config::conflated::ConflatedTopicSettings;
use crate::config::queues::Definition;
use crate::config::tables::{TABLES_MAX, TableDefinition};
use crate::config::views::ViewSettings;

/// The names that computed topics are checked against.
pub struct Known<'a> {
    pub tables: &'a [TableDefinition],
    pub queues: &'a [Definition],
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

    fn source(&self) -> &'a str {
        match self.settings {
            Settings::View(view) => &view.underlying_topic,
            Settings::Conflated(topic) => &topic.underlying_topic,
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
/// each one follows its source.
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
        let source = known.tables.iter().chain(&compiled).find(|it| *it.name == *topic.source());
        let source = match source {
            Some(source) if source.pattern.is_none() => Ok(source),
            // The mistake of a source that is computed is reported there.
            None if all.iter().any(|other| other.name() == topic.source()) => continue,
            found => Err(error("underlying_topic", known.refusal_of(topic, found.is_some()))),
        };
        let source = errors.note(source);
        let made = match topic.settings {
            Settings::View(view) => {
                view.compile(source.map(|it| it.message_type), options, &error, &mut errors)
            }
            Settings::Conflated(topic) => topic.compile(source, options, &error, &mut errors),
        };
        compiled.extend(made);
    }
    errors.none_or(compiled)
}

/// The places of the topics, sources first. A topic that reads itself is a mistake, and not among
/// them.
fn in_order(all: &[Computed<'_>], errors: &mut ConfigErrors) -> Vec<usize> {
    let source_of = |topic: &Computed<'_>| all.iter().position(|it| it.name() == topic.source());
    let mut depths = Vec::new();
    for (index, topic) in all.iter().enumerate() {
        let mut path = vec![topic.name()];
        let mut source = source_of(topic);
        // A path that is longer than the list goes through a cycle of other topics.
        while let Some(next) = source.filter(|next| *next != index && path.len() <= all.len()) {
            path.push(all[next].name());
            source = source_of(&all[next]);
        }
        if source == Some(index) {
            path.push(topic.name());
            let reason = format!("the {} reads itself: {}", topic.kind(), path.join(" reads "));
            let error = topic.error("underlying_topic", &reason);
            errors.push(ConfigError::new(error.key, reason));
        } else if source.is_none() {
            depths.push((path.len(), index));
        }
    }
    depths.sort_unstable();
    depths.into_iter().map(|(_, index)| index).collect()
}

impl Known<'_> {
    fn other_with_name(&self, topic: Computed<'_>, before: &[Computed<'_>]) -> Option<String> {
        let name = topic.name();
        if self.tables.iter().any(|table| *table.name == *name) {
            return Some("a last-value topic".to_owned());
        }
        if self.queues.iter().any(|queue| *queue.name == *name) {
            return Some("a queue".to_owned());
        }
        let other = before.iter().find(|other| other.name() == name)?;
        let article = if other.kind() == topic.kind() { "another" } else { "a" };
        Some(format!("{article} {}", other.kind()))
    }

    /// Why a topic cannot be the source of a computed topic.
    fn refusal_of(&self, topic: Computed<'_>, has_pattern: bool) -> String {
        let (source, kind) = (topic.source(), topic.kind());
        if source.is_empty() {
            format!("name the last-value topic, the view or the conflated topic that the {kind} reads")
        } else if has_pattern {
            format!(
                "the sow_topic {source:?} has a pattern, and a {kind} of its topics is not in this version"
            )
        } else if self.queues.iter().any(|queue| *queue.name == *source) {
            match topic.settings {
                Settings::View(_) => {
                    format!("{source:?} is a queue, and views of queues are not in this version")
                }
                Settings::Conflated(_) => {
                    format!("{source:?} is a queue: it delivers each message once, so there is no newest one")
                }
            }
        } else {
            format!(
                "{source:?} keeps no last values: no sow_topic, no view and no conflated_topic has this name"
            )
        }
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
                let Some(found) = computed.iter().find(|it| *it.name == *topic) else { continue };
                let kind = if found.view.is_some() { "view" } else { "conflated topic" };
                let reason = format!("{topic:?} is a {kind}, and only the server writes to it");
                errors.push(ConfigError::new(format!("queues[{index}].{key}"), reason));
                break;
            }
        }
    }
}
