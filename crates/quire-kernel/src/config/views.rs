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
use crate::config::tables::{TableDefinition, TableDurability, TableExpiration, key_of};

/// One view.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ViewSettings {
    /// The topic of the view.
    pub name: String,
    /// The type of its messages.
    pub message_type: String,
    /// The source: a last-value topic, a conflated topic or another view.
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

impl ViewDefinition {
    /// The index of the fields of `grouping`; `None` when a record does not show all of them.
    pub fn group_index(&self) -> Option<Vec<String>> {
        group_index(&self.groups.projection)
    }
}

fn group_index(projection: &Projection) -> Option<Vec<String>> {
    let groups: Vec<String> = projection.shown_groups().iter().map(|field| field.to_string()).collect();
    (!groups.is_empty() && groups.len() == projection.grouping_count()).then_some(groups)
}

impl ViewSettings {
    /// The view as a last-value topic; `None` after a mistake, which is then in the errors.
    pub(super) fn compile(
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
            conflated: None,
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
        let has_room = hash_indexes.len() + self.index.len() < INDEXES_MAX;
        if let Some(groups) = group_index(projection).filter(|it| has_room && !hash_indexes.contains(it)) {
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
