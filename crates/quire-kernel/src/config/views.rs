//! The settings of a view, as a configuration holds them and as the broker uses them
//! (docs/views.md).

use std::sync::Arc;

use quire_expression::filter::{AssignmentError, Filter, FilterOptions, Projection, path_of};
use quire_expression::message_type::MessageType;
use quire_expression::topic::TopicSelector;
use quire_journal::Memory;
use quire_table::{GroupsConfig, INDEXES_MAX, IndexLimits, KeyRule, Table, TableConfig};
use serde::Deserialize;

use crate::ConfigError;
use crate::config::ConfigErrors;
use crate::config::queues::Definition;
use crate::config::tables::{TABLES_MAX, TableDefinition, TableDurability, TableExpiration, key_of};

/// One view.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ViewSettings {
    /// The topic of the view.
    pub name: String,
    /// The type of its messages.
    pub message_type: String,
    /// The source: a last-value topic or another view.
    pub underlying_topic: String,
    /// The fields of a record: `expression AS /destination`.
    pub projection: Vec<String>,
    /// The fields that make the groups. Without fields, all records are one group.
    pub grouping: Vec<String>,
    /// Only records of the source that match.
    pub filter: Option<String>,
    /// Fields that queries compare with `=`. Each list is an index.
    pub hash_index: Vec<Vec<String>>,
    /// Fields that queries compare with other operators.
    pub index: Vec<String>,
    /// Views with the same domain have equal keys for equal groups. The default is the name.
    pub key_domain: Option<String>,
    /// Groups that change several times in a short time are delivered once.
    pub inline_conflation: bool,
}

/// The groups of a view, and the topic that they are computed from.
pub struct ViewDefinition {
    pub source: Arc<str>,
    pub groups: GroupsConfig,
    pub inline_conflation: bool,
}

/// The names that views are checked against.
pub struct Known<'a> {
    pub tables: &'a [TableDefinition],
    pub queues: &'a [Definition],
}

impl ViewDefinition {
    /// Checks the settings of all views, and returns them in an order in which each one follows its
    /// source.
    ///
    /// # Errors
    /// [`ConfigErrors`] with every bad key.
    pub fn compile(
        all: &[ViewSettings],
        known: &Known<'_>,
        options: &FilterOptions,
    ) -> Result<Vec<TableDefinition>, ConfigErrors> {
        let mut errors = ConfigErrors::default();
        if all.len() + known.tables.len() > TABLES_MAX {
            let reason = format!("{} views and last-value topics, the limit is {TABLES_MAX}", all.len());
            return Err(ConfigError::new("views", reason).into());
        }
        let mut views: Vec<TableDefinition> = Vec::new();
        for index in in_order(all, &mut errors) {
            let settings = &all[index];
            let error = |key: &str, reason: String| {
                let name =
                    if settings.name.is_empty() { "".into() } else { format!("view {:?}: ", settings.name) };
                ConfigError::new(format!("views[{index}].{key}"), format!("{name}{reason}"))
            };
            if let Some(other) = known.other_with_name(&settings.name, &all[..index]) {
                errors.push(error("name", format!("{other} has the name")));
            }
            let source = known.tables.iter().chain(&views).find(|it| *it.name == *settings.underlying_topic);
            let source = match source {
                Some(source) if source.pattern.is_none() => Ok(source.message_type),
                // The mistake of a source that is a view is reported there.
                None if all.iter().any(|other| other.name == settings.underlying_topic) => continue,
                found => Err(error("underlying_topic", known.refusal_of(settings, found.is_some()))),
            };
            let source = errors.note(source);
            views.extend(settings.compile(source, options, &error, &mut errors));
        }
        errors.none_or(views)
    }
}

/// The places of the views, sources first. A view that reads itself is a mistake, and not among
/// them.
fn in_order(all: &[ViewSettings], errors: &mut ConfigErrors) -> Vec<usize> {
    let source_of = |view: &ViewSettings| all.iter().position(|it| it.name == view.underlying_topic);
    let mut depths = Vec::new();
    for (index, view) in all.iter().enumerate() {
        let mut path = vec![view.name.as_str()];
        let mut source = source_of(view);
        // A path that is longer than the list goes through a cycle of other views.
        while let Some(next) = source.filter(|next| *next != index && path.len() <= all.len()) {
            path.push(&all[next].name);
            source = source_of(&all[next]);
        }
        if source == Some(index) {
            path.push(&view.name);
            let reason = format!("the view reads itself: {}", path.join(" reads "));
            errors.push(ConfigError::new(format!("views[{index}].underlying_topic"), reason));
        } else if source.is_none() {
            depths.push((path.len(), index));
        }
    }
    depths.sort_unstable();
    depths.into_iter().map(|(_, index)| index).collect()
}

impl Known<'_> {
    fn other_with_name(&self, name: &str, views: &[ViewSettings]) -> Option<&'static str> {
        if self.tables.iter().any(|table| *table.name == *name) {
            Some("a last-value topic")
        } else if self.queues.iter().any(|queue| *queue.name == *name) {
            Some("a queue")
        } else {
            views.iter().any(|view| view.name == name).then_some("another view")
        }
    }

    /// Why a topic cannot be the source of a view.
    fn refusal_of(&self, settings: &ViewSettings, has_pattern: bool) -> String {
        let source = &settings.underlying_topic;
        if source.is_empty() {
            "name the last-value topic, or the view, that the view reads".to_owned()
        } else if has_pattern {
            format!("the sow_topic {source:?} has a pattern, and views of its topics are not in this version")
        } else if self.queues.iter().any(|queue| *queue.name == **source) {
            format!("{source:?} is a queue, and views of queues are not in this version")
        } else {
            format!("{source:?} keeps no last values: no sow_topic and no view has this name")
        }
    }

    /// Refuses queues whose messages would go to a view, or come from it.
    pub fn check_queues(&self, views: &[TableDefinition], errors: &mut ConfigErrors) {
        let is_view = |topic: &str| views.iter().any(|view| *view.name == *topic);
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
                if is_view(topic) {
                    let reason = format!("{topic:?} is a view, and only the server writes to it");
                    errors.push(ConfigError::new(format!("queues[{index}].{key}"), reason));
                    break;
                }
            }
        }
    }
}

impl ViewSettings {
    /// The view as a last-value topic; `None` after a mistake, which is then in the errors.
    fn compile(
        &self,
        source_type: Option<MessageType>,
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
        let message_type = match MessageType::from_name(&self.message_type) {
            None => Err(format!("{:?} is not a message type", self.message_type)),
            Some(found) if !found.has_fields() => Err(format!("{} messages have no fields", found.name())),
            Some(found) => Ok(found),
        };
        let message_type = errors.note(message_type.map_err(|reason| error("message_type", reason)));
        if let Some(source) = source_type.filter(|source| !source.has_fields()) {
            let reason =
                format!("the messages on {:?} have no fields: {}", self.underlying_topic, source.name());
            errors.push(error("underlying_topic", reason));
        }
        let filter = self.filter.as_ref().map(|text| Filter::parse(text, options)).transpose();
        let filter = errors.note(filter.map_err(|bad| error("filter", bad.to_string())));
        let message_type = message_type?;
        let projection = Projection::parse(&self.projection, &self.grouping, message_type, options);
        let projection = errors.note(projection.map_err(|bad| {
            let (key, place) = self.place_of(&bad);
            error(&format!("{key}{place}"), bad.with_caret())
        }))?;
        let (name, source_type, filter) = (name?, source_type?, filter?);
        let groups = GroupsConfig {
            source: (*self.underlying_topic).into(),
            source_type,
            filter,
            key_domain: self.key_domain.as_deref().unwrap_or(&name).into(),
            projection,
        };
        let config = self.table_config(&name, message_type, &groups.projection);
        let checked = Table::new(config.clone(), &Memory::heap());
        errors.note(checked.map_err(|bad| error(key_of(&bad), bad.to_string())))?;
        let shown = groups.projection.shown_groups().iter();
        Some(TableDefinition {
            pattern: None,
            message_type,
            key_rule: KeyRule::Supplied,
            key_fields: shown.map(|field| path_of(field)).collect(),
            key: self.grouping.clone(),
            key_domain: None,
            durability: TableDurability::Transient,
            expiration: TableExpiration::Disabled,
            file_backed: false,
            is_recovered: false,
            fields: None,
            config,
            view: Some(Arc::new(ViewDefinition {
                source: self.underlying_topic.as_str().into(),
                groups,
                inline_conflation: self.inline_conflation,
            })),
            name,
        })
    }

    /// The list with a mistake, and the number of its entry.
    fn place_of(&self, mistake: &AssignmentError) -> (&'static str, String) {
        let has = |list: &[String]| list.get(mistake.number - 1).is_some_and(|text| *text == mistake.text);
        match (has(&self.projection), has(&self.grouping)) {
            (false, true) => ("grouping", format!("[{}]", mistake.number - 1)),
            (true, _) => ("projection", format!("[{}]", mistake.number - 1)),
            (false, false) => ("projection", String::new()),
        }
    }

    /// The table of the records. It has an index of the groups.
    fn table_config(&self, name: &str, message_type: MessageType, projection: &Projection) -> TableConfig {
        let mut hash_indexes = self.hash_index.clone();
        let groups: Vec<String> = projection.shown_groups().iter().map(|field| field.to_string()).collect();
        let has_room = hash_indexes.len() + self.index.len() < INDEXES_MAX;
        let is_whole = !groups.is_empty() && groups.len() == projection.grouping_count();
        if has_room && is_whole && !hash_indexes.contains(&groups) {
            hash_indexes.push(groups);
        }
        TableConfig {
            name: name.to_owned(),
            message_type,
            key: None,
            hash_indexes,
            ordered_indexes: self.index.clone(),
            history: None,
            limits: IndexLimits::default(),
        }
    }
}
