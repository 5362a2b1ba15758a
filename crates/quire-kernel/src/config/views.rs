//! The settings of a view, as a configuration holds them and as the broker uses them
//! (docs/views.md).

use std::sync::Arc;

use quire_expression::filter::{
    AssignmentError, ENGINE_VERSION, Filter, FilterOptions, InstanceFacts, Projection, path_of,
};
use quire_expression::message_type::MessageType;
use quire_expression::topic::{TopicSelector, check_published};
use quire_journal::Memory;
use quire_table::{GroupsConfig, INDEXES_MAX, IndexLimits, JoinConfig, KeyRule, Table, TableConfig};
use serde::{Deserialize, Serialize};

use crate::ConfigError;
use crate::config::ConfigErrors;
use crate::config::joins::{JoinPlan, Mistake, Source, topics_of};
use crate::config::tables::{TableDefinition, TableDurability, TableExpiration, key_of};

/// One view.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct ViewSettings {
    /// The topic of the view.
    pub name: String,
    /// The type of its messages.
    pub message_type: String,
    /// The source: a last-value topic, a conflated topic, another view or a queue.
    pub underlying_topic: String,
    /// Instead of a source: pairs of fields that join several of them.
    pub join: Vec<String>,
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

/// The records of a view, and the topics that they are computed from.
pub struct ViewDefinition {
    /// The topics, in the order of the joins.
    pub sources: Vec<Arc<str>>,
    pub records: ViewRecords,
    /// As configured.
    pub settings: ViewSettings,
    /// All that the records depend on, other than the sources.
    pub identity: String,
}

/// The definition of the records of a view.
pub enum ViewRecords {
    /// The records of one topic.
    Groups(GroupsConfig),
    /// The records of several topics.
    Joins(JoinConfig),
}

impl ViewRecords {
    pub fn projection(&self) -> &Projection {
        match self {
            ViewRecords::Groups(groups) => &groups.projection,
            ViewRecords::Joins(joins) => &joins.projection,
        }
    }
}

impl ViewDefinition {
    /// The index of the fields of `grouping`; `None` when a record does not show all of them.
    pub fn group_index(&self) -> Option<Vec<String>> {
        group_index(self.records.projection())
    }
}

fn group_index(projection: &Projection) -> Option<Vec<String>> {
    let groups: Vec<String> = projection.shown_groups().iter().map(|field| field.to_string()).collect();
    (!groups.is_empty() && groups.len() == projection.grouping_count()).then_some(groups)
}

impl ViewSettings {
    /// Reads the settings from a JSON object with the keys of this type.
    ///
    /// # Errors
    /// [`ConfigError`] for text that is not such an object. It names the key when the key is known.
    pub fn from_json(text: &str) -> Result<Self, ConfigError> {
        serde_json::from_str(text).map_err(|error| ConfigError::of_json(&error))
    }

    /// The topics that the view reads.
    pub fn sources(&self) -> Vec<String> {
        if self.join.is_empty() { vec![self.underlying_topic.clone()] } else { topics_of(&self.join) }
    }

    /// The view as a last-value topic; `None` after a mistake, which is then in the errors.
    pub(super) fn compile(
        &self,
        find: &dyn Fn(&str) -> Source,
        options: &FilterOptions,
        error: &dyn Fn(&str, String) -> ConfigError,
        errors: &mut ConfigErrors,
    ) -> Option<TableDefinition> {
        let name: Result<Arc<str>, _> = match TopicSelector::new(&self.name) {
            Ok(TopicSelector::Name(name)) => {
                check_published(name.as_bytes()).map(|_| name.clone()).map_err(|bad| bad.to_string())
            }
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
        let key_domain = self.key_domain.as_ref().unwrap_or(&self.name);
        let records = match self.join.is_empty() {
            true => self.groups(message_type, key_domain, find, options, error, errors),
            false => self.joins(message_type, key_domain, find, options, error, errors),
        };
        let (name, message_type, (sources, records)) = (name?, message_type?, records?);
        let projection = records.projection();
        let config = self.table_config(&name, message_type, projection);
        let checked = Table::new(config.clone(), &Memory::heap());
        errors.note(checked.map_err(|bad| error(key_of(&bad), bad.to_string())))?;
        Some(TableDefinition {
            pattern: None,
            message_type,
            key_rule: KeyRule::Supplied,
            key_fields: projection.shown_groups().iter().map(|field| path_of(field)).collect(),
            key: self.grouping.clone(),
            key_domain: None,
            durability: TableDurability::Transient,
            expiration: TableExpiration::Disabled,
            file_backed: false,
            is_recovered: false,
            fields: None,
            config,
            view: Some(Arc::new(ViewDefinition {
                sources,
                records,
                identity: self.identity(options),
                settings: self.clone(),
            })),
            conflated: None,
            is_of_queue: false,
            name,
        })
    }

    /// All that the records depend on, other than the sources. With another text, the state that a
    /// snapshot has of the view is not used.
    fn identity(&self, options: &FilterOptions) -> String {
        let InstanceFacts { name, group, version } = &options.instance;
        let key_domain = self.key_domain.as_ref().unwrap_or(&self.name);
        let all = serde_json::json!([
            ENGINE_VERSION,
            [name, group, version],
            options.allow_backtracking,
            self.underlying_topic,
            self.join,
            self.projection,
            self.grouping,
            self.filter,
            key_domain,
        ]);
        all.to_string()
    }

    /// The groups of one topic.
    fn groups(
        &self,
        message_type: Option<MessageType>,
        key_domain: &str,
        find: &dyn Fn(&str) -> Source,
        options: &FilterOptions,
        error: &dyn Fn(&str, String) -> ConfigError,
        errors: &mut ConfigErrors,
    ) -> Option<(Vec<Arc<str>>, ViewRecords)> {
        let source = &self.underlying_topic;
        let source_type = match find(source) {
            Source::Found(found) if found.has_fields() => Ok(found),
            Source::Found(found) => {
                Err(format!("the messages on {source:?} have no fields: {}", found.name()))
            }
            Source::Mistaken => return None,
            Source::Refused(reason) => Err(reason),
        };
        let source_type = errors.note(source_type.map_err(|reason| error("underlying_topic", reason)));
        let filter = self.filter.as_ref().map(|text| Filter::parse(text, options)).transpose();
        let filter = errors.note(filter.map_err(|bad| error("filter", bad.to_string())));
        let projection = Projection::parse(&self.projection, &self.grouping, message_type?, options);
        let projection = errors.note(projection.map_err(|bad| self.error_of(&bad, error)));
        let groups = GroupsConfig {
            source: source.as_str().into(),
            source_type: source_type?,
            filter: filter?,
            key_domain: key_domain.into(),
            projection: projection?,
        };
        Some((vec![source.as_str().into()], ViewRecords::Groups(groups)))
    }

    /// The combinations of several topics.
    fn joins(
        &self,
        message_type: Option<MessageType>,
        key_domain: &str,
        find: &dyn Fn(&str) -> Source,
        options: &FilterOptions,
        error: &dyn Fn(&str, String) -> ConfigError,
        errors: &mut ConfigErrors,
    ) -> Option<(Vec<Arc<str>>, ViewRecords)> {
        if !self.underlying_topic.is_empty() {
            errors
                .push(error("underlying_topic", "join names the topics already: remove one of them".into()));
        }
        if self.filter.is_some() {
            let reason =
                "a view with join has no filter: filter its topics with views, or the view with another view";
            errors.push(error("filter", reason.to_owned()));
        }
        let plan = match JoinPlan::new(&self.join, find) {
            Ok(plan) => plan,
            Err(Mistake(number, reason)) => {
                let mistake = reason.map(|reason| error(&format!("join[{number}]"), reason));
                mistake.into_iter().for_each(|mistake| errors.push(mistake));
                return None;
            }
        };
        let JoinPlan { topics, joins, keys } = plan;
        let options = FilterOptions { joined: Some(topics.clone().into()), ..options.clone() };
        let (projection, grouping) = (&self.projection, &self.grouping);
        let parsed = Projection::parse_joined(projection, grouping, message_type?, &options, &keys);
        let projection = errors.note(parsed.map_err(|bad| self.error_of(&bad, error)))?;
        let names = topics.iter().map(|topic| Arc::from(&*topic.topic)).collect();
        let sources = topics.into_iter().map(|topic| (topic.topic, topic.message_type)).collect();
        Some((
            names,
            ViewRecords::Joins(JoinConfig { sources, joins, projection, key_domain: key_domain.into() }),
        ))
    }

    /// A mistake in `projection` or `grouping`.
    fn error_of(&self, bad: &AssignmentError, error: &dyn Fn(&str, String) -> ConfigError) -> ConfigError {
        let (key, place) = self.place_of(bad);
        error(&format!("{key}{place}"), bad.with_caret())
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
