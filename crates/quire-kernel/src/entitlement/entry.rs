//! The entries of a configuration.

use std::fmt;
use std::sync::Arc;

use serde::Deserialize;

use crate::config::{ConfigError, ConfigErrors};
use quire_expression::filter::{Filter, FilterOptions};
use quire_expression::select::Select;
use quire_expression::topic::{TopicSelector, is_anchored};

/// Names below it are resources of the server, and not topics. A pattern matches them only if it
/// begins with `^` and this prefix.
const RESOURCE_PREFIX: &str = "/quire/";

/// The most entries. A decision goes through those of a user.
const ENTRIES_MAX: usize = 10_000;

/// A right that a command needs on a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Right {
    /// Subscribe. Of a queue: take its messages, and settle them.
    Read,
    /// Read messages of the log.
    Replay,
    /// Read the records of a last-value topic, or browse a queue.
    Query,
    /// Publish.
    Write,
    /// Delete records, and purge a queue.
    Delete,
    /// See figures.
    Monitor,
    /// Define queues, and administer the server.
    Admin,
    /// Copy the messages of a topic to another instance, or from it.
    Replicate,
}

impl Right {
    /// Every right, in the order of the documentation.
    pub const ALL: [Right; 8] = [
        Right::Read,
        Right::Replay,
        Right::Query,
        Right::Write,
        Right::Delete,
        Right::Monitor,
        Right::Admin,
        Right::Replicate,
    ];

    /// As the configuration writes it.
    pub const fn name(self) -> &'static str {
        match self {
            Right::Read => "read",
            Right::Replay => "replay",
            Right::Query => "query",
            Right::Write => "write",
            Right::Delete => "delete",
            Right::Monitor => "monitor",
            Right::Admin => "admin",
            Right::Replicate => "replicate",
        }
    }

    /// The right with this name.
    pub fn of_name(name: &str) -> Option<Self> {
        Right::ALL.into_iter().find(|right| right.name() == name)
    }

    /// Whether a refusal counts as one of reading.
    pub fn is_of_reading(self) -> bool {
        matches!(self, Right::Read | Right::Replay | Right::Query)
    }

    /// Whether a select list has a meaning for it. Of a delete, it limits the fields that the
    /// filter of the command sees: the number of deleted records would tell the hidden ones.
    pub(super) fn takes_select(self) -> bool {
        self.is_of_reading() || self == Right::Delete
    }

    /// Whether a filter has a meaning for it.
    fn takes_filter(self) -> bool {
        self.is_of_reading() || matches!(self, Right::Write | Right::Delete)
    }
}

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A part of the server that has rights, as topics have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    /// The server itself.
    Server,
    /// Its connections.
    Clients,
    /// The files of its journal.
    Journal,
    /// Its links.
    Replication,
    /// Its entitlements.
    Access,
}

impl Resource {
    /// Its name in an entry.
    pub const fn name(self) -> &'static str {
        match self {
            Resource::Server => "/quire/server",
            Resource::Clients => "/quire/clients",
            Resource::Journal => "/quire/journal",
            Resource::Replication => "/quire/replication",
            Resource::Access => "/quire/access",
        }
    }
}

/// An entry of the configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EntrySettings {
    /// Names or patterns of users; empty: every user.
    pub user: Vec<String>,
    /// Names or patterns of groups, of which the user must be in one; empty: any groups.
    pub group: Vec<String>,
    /// Names or patterns of topics, queues and resources.
    pub topic: Vec<String>,
    /// The rights that it grants.
    pub allow: Vec<Right>,
    /// The rights that it refuses.
    pub deny: Vec<Right>,
    /// The messages that are visible, or that may be changed; `None`: all.
    pub filter: Option<String>,
    /// The fields that are visible, as a select list; `None`: all.
    pub select: Option<String>,
}

/// A checked entry.
#[derive(Debug)]
pub(super) struct Entry {
    /// Its number in the file, from 1.
    pub number: usize,
    pub settings: EntrySettings,
    who: Who,
    topics: Vec<TopicSelector>,
}

/// The users that an entry is about.
#[derive(Debug)]
pub(super) struct Who {
    names: Vec<String>,
    users: Vec<TopicSelector>,
    groups: Vec<TopicSelector>,
}

/// The entries of a configuration.
#[derive(Debug)]
pub struct Entitlements {
    pub(super) entries: Vec<Arc<Entry>>,
}

impl Entitlements {
    /// Checks the entries. `None`: there are none, and everything is allowed.
    ///
    /// # Errors
    /// Every mistake, with its key.
    pub fn compile(
        settings: &[EntrySettings],
        options: &FilterOptions,
    ) -> Result<Option<Arc<Self>>, ConfigErrors> {
        let mut errors = ConfigErrors::default();
        if settings.len() > ENTRIES_MAX {
            let reason = format!("{} entries, the limit is {ENTRIES_MAX}", settings.len());
            errors.push(ConfigError::new("entitlements", reason));
            return Err(errors);
        }
        let entries: Vec<_> = settings
            .iter()
            .enumerate()
            .map(|(index, settings)| Arc::new(Entry::new(index, settings, options, &mut errors)))
            .collect();
        errors.none_or((!entries.is_empty()).then(|| Arc::new(Entitlements { entries })))
    }

    /// The select lists of entries for a topic, with the numbers of these entries.
    pub fn selects_of<'e>(&'e self, topic: &str) -> impl Iterator<Item = (usize, &'e str)> {
        let topic = topic.to_owned();
        self.entries.iter().filter_map(move |entry| {
            let select = entry.settings.select.as_deref()?;
            entry.matches_topic(&topic).then_some((entry.number, select))
        })
    }
}

impl Entry {
    fn new(
        index: usize,
        settings: &EntrySettings,
        options: &FilterOptions,
        errors: &mut ConfigErrors,
    ) -> Self {
        let mut wrong = |key: &str, reason: String| {
            errors.push(ConfigError::new(format!("entitlements[{index}].{key}"), reason));
        };
        let who = Who::new(&settings.user, &settings.group, &mut wrong);
        let topics = selectors("topic", &settings.topic, &mut wrong);
        if settings.topic.is_empty() {
            wrong("topic", "expected the topics of the entry; \"^\" is every topic".to_owned());
        }
        let EntrySettings { allow, deny, filter, select, .. } = settings;
        if allow.is_empty() && deny.is_empty() {
            wrong("allow", "expected rights in allow or in deny".to_owned());
        }
        if let Some(right) = allow.iter().find(|right| deny.contains(right)) {
            wrong("deny", format!("{:?} is in allow, too", right.name()));
        }
        let replicates = allow.contains(&Right::Replicate);
        if let Some(filter) = filter {
            match Filter::parse(filter, options) {
                Err(error) => wrong("filter", error.to_string()),
                Ok(_) if replicates => wrong("filter", "a link has no filter in its right".to_owned()),
                Ok(_) if !allow.iter().any(|right| right.takes_filter()) => {
                    wrong("filter", "no right in allow uses it".to_owned());
                }
                Ok(_) => (),
            }
        }
        if let Some(select) = select {
            match Select::parse(select) {
                Err(error) => wrong("select", error.to_string()),
                Ok(_) if replicates => wrong("select", "a link has no select in its right".to_owned()),
                Ok(_) if !allow.iter().any(|right| right.takes_select()) => {
                    wrong("select", "no right in allow uses it".to_owned());
                }
                Ok(_) => (),
            }
        }
        Entry { number: index + 1, settings: settings.clone(), who, topics }
    }

    /// Whether the entry is about this user with these groups.
    pub fn matches_user(&self, user: &str, groups: &[Box<str>]) -> bool {
        self.who.matches(user, groups)
    }

    pub fn matches_name(&self, user: &str) -> bool {
        self.who.matches_name(user)
    }

    pub fn matches_groups(&self, groups: &[Box<str>]) -> bool {
        self.who.matches_groups(groups)
    }

    pub fn matches_topic(&self, topic: &str) -> bool {
        let is_resource = topic.starts_with(RESOURCE_PREFIX);
        self.topics.iter().any(|selector| match selector {
            TopicSelector::Pattern(pattern) if is_resource => {
                let text = pattern.text();
                let names_resources =
                    text.strip_prefix('^').is_some_and(|rest| rest.starts_with(RESOURCE_PREFIX));
                names_resources && pattern.matches(topic)
            }
            selector => selector.matches(topic),
        })
    }

    /// Whether the entry decides about the right: `true` allows it.
    pub fn verdict(&self, right: Right) -> Option<bool> {
        if self.settings.deny.contains(&right) {
            return Some(false);
        }
        self.settings.allow.contains(&right).then_some(true)
    }

    /// Whether the entry covers every topic that a pattern with this text covers.
    pub fn covers_pattern(&self, text: &str) -> bool {
        self.settings.topic.iter().any(|topic| topic == text || topic == "^")
    }
}

impl Who {
    pub fn new(user: &[String], group: &[String], wrong: &mut impl FnMut(&str, String)) -> Self {
        let (users, groups) = (selectors("user", user, wrong), selectors("group", group, wrong));
        Who { names: user.to_vec(), users, groups }
    }

    pub fn matches(&self, user: &str, groups: &[Box<str>]) -> bool {
        self.matches_name(user) && self.matches_groups(groups)
    }

    /// Whether the user of the entry matches. A pattern does not match a user whom no
    /// authentication has found out.
    fn matches_name(&self, user: &str) -> bool {
        match user {
            super::ANONYMOUS => self.names.iter().any(|name| name == user),
            _ => self.users.is_empty() || self.users.iter().any(|selector| selector.matches(user)),
        }
    }

    fn matches_groups(&self, groups: &[Box<str>]) -> bool {
        self.groups.is_empty()
            || groups.iter().any(|group| self.groups.iter().any(|selector| selector.matches(group)))
    }
}

/// The names and patterns of a key. Mistakes are left out.
fn selectors(key: &str, texts: &[String], wrong: &mut impl FnMut(&str, String)) -> Vec<TopicSelector> {
    let parsed = texts.iter().map(|text| selector_of(text));
    parsed.filter_map(|parsed| parsed.map_err(|reason| wrong(key, reason)).ok()).collect()
}

/// A name or a pattern of an entry.
fn selector_of(text: &str) -> Result<TopicSelector, String> {
    let selector = TopicSelector::new(text).map_err(|error| error.to_string())?;
    match &selector {
        TopicSelector::Pattern(_) if !is_anchored(text) => Err(format!(
            "every alternative of the pattern {text:?} must begin with \"^\" or \".*\", so that it matches no other names"
        )),
        _ => Ok(selector),
    }
}
