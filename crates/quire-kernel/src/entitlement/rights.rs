//! The rights of one user, and the decision about a request.

use std::sync::Arc;

use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use super::entry::{Entitlements, Entry, Right};
use super::grant::Grant;
use super::guard::Guard;
use super::nameable::Nameable;
use super::replicable::Replicable;
use crate::reply::Refused;
use quire_command::Code;
use quire_expression::filter::{Filter, FilterOptions};
use quire_expression::topic::TopicSelector;

/// The user of a connection without authentication.
pub const ANONYMOUS: &str = "anonymous";

/// The most topics of one connection whose grants for publishes are kept. At the limit, all of them
/// are decided again.
const WRITABLE_MAX: usize = 1_024;

/// The rights of the user of one connection.
#[derive(Debug)]
pub struct Rights {
    pub(super) user: Box<str>,
    pub(super) groups: Box<[Box<str>]>,
    /// The entries about the user, in the order of the file.
    pub(super) entries: Arc<[Arc<Entry>]>,
    /// The decisions about publishes, by topic.
    writable: HashMap<Box<str>, Result<Option<Filter>, Denied>, FxBuildHasher>,
}

/// A request that the rights of its user do not allow. It names only what the user has named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denied {
    /// The right that is missing.
    pub right: Right,
    /// The topic, as the client has written it.
    pub topic: Box<str>,
}

impl Denied {
    /// The refusal, as its client receives it.
    pub fn refused(&self) -> Refused {
        Refused::new(Code::NotEntitled, self.reason())
    }

    /// The text of the refusal.
    pub fn reason(&self) -> String {
        format!("the user may not {} {}", self.right, serde_json::Value::from(&*self.topic))
    }
}

impl Entitlements {
    /// The rights of a user.
    pub fn of_user(&self, user: &str, groups: &[Box<str>]) -> Rights {
        let about = |entry: &&Arc<Entry>| entry.matches_user(user, groups);
        Rights {
            user: user.into(),
            groups: groups.into(),
            entries: self.entries.iter().filter(about).cloned().collect(),
            writable: HashMap::default(),
        }
    }
}

impl Rights {
    /// The user.
    pub fn user(&self) -> &str {
        &self.user
    }

    /// The same user with the entries of another configuration.
    pub fn within(&self, entitlements: &Entitlements) -> Rights {
        entitlements.of_user(&self.user, &self.groups)
    }

    /// Whether both have equal entries in the same order.
    pub fn has_same_entries(&self, other: &Rights) -> bool {
        let settings = |rights: &Rights| -> Vec<_> {
            rights.entries.iter().map(|entry| entry.settings.clone()).collect()
        };
        settings(self) == settings(other)
    }

    /// The entry that allows a right on a topic.
    pub(super) fn entry_for(&self, right: Right, topic: &str) -> Option<&Arc<Entry>> {
        decide(&self.entries, right, topic).filter(|entry| entry.verdict(right) == Some(true))
    }

    /// Whether a right is allowed on a topic, for any of its messages.
    pub fn allows(&self, right: Right, topic: &str) -> bool {
        self.entry_for(right, topic).is_some()
    }

    /// The messages of the log that the user may name by their bookmarks.
    pub fn nameable(&self) -> Nameable {
        Nameable::within(&self.entries)
    }

    /// The topics that a link of the user may have.
    pub fn replicable(&self) -> Replicable {
        Replicable::within(&self.entries)
    }

    /// Whether the user has any right on the topic.
    pub fn knows(&self, topic: &str) -> bool {
        Right::ALL.into_iter().any(|right| self.allows(right, topic))
    }

    /// The grant for a command that needs all of these rights on a topic, or on the topics that a
    /// pattern matches. `written` is the topic as the client has written it.
    ///
    /// # Errors
    /// The first of the rights that is missing.
    pub fn grant(&self, rights: &[Right], written: &str) -> Result<Grant, Denied> {
        match TopicSelector::new(written) {
            Ok(TopicSelector::Pattern(_)) => self.grant_pattern(rights, written),
            // A text that is neither a name nor a pattern is refused later.
            Ok(TopicSelector::Name(_)) | Err(_) => self.grant_name(rights, written, written),
        }
    }

    /// As [`Rights::grant`], for one topic. Errors name `written`.
    ///
    /// # Errors
    /// As [`Rights::grant`].
    pub fn grant_name(&self, rights: &[Right], topic: &str, written: &str) -> Result<Grant, Denied> {
        let mut grant = Grant::default();
        for right in rights {
            let Some(entry) = self.entry_for(*right, topic) else {
                return Err(Denied { right: *right, topic: written.into() });
            };
            grant.add(&entry.settings, *right);
        }
        Ok(grant)
    }

    /// The grant for the topics of a selector on which the rights hold. The other topics are left
    /// out.
    pub fn grant_left_out(&self, rights: &[Right], selector: &TopicSelector) -> Grant {
        let granted = match selector {
            TopicSelector::Name(name) => self.grant_name(rights, name, name).ok(),
            TopicSelector::Pattern(pattern) => self.grant_pattern(rights, pattern.text()).ok(),
        };
        granted.unwrap_or_else(|| Grant::guarded(Guard::new(&self.entries, rights)))
    }

    fn grant_pattern(&self, rights: &[Right], written: &str) -> Result<Grant, Denied> {
        let is_allowed = |right: &Right| self.entries.iter().any(|entry| entry.verdict(*right) == Some(true));
        if let Some(right) = rights.iter().find(|right| !is_allowed(right)) {
            return Err(Denied { right: *right, topic: written.into() });
        }
        // An entry that covers the pattern decides about all of its topics.
        let mut grant = Grant::default();
        for right in rights {
            let mut deciding = self.entries.iter().filter(|entry| entry.verdict(*right).is_some());
            match deciding.next().filter(|entry| entry.covers_pattern(written)) {
                Some(entry) if entry.verdict(*right) == Some(true) => grant.add(&entry.settings, *right),
                _ => return Ok(Grant::guarded(Guard::new(&self.entries, rights))),
            }
        }
        Ok(grant)
    }

    /// The filter of the messages that the user may publish to a topic; `None`: of all messages.
    /// The decisions are kept.
    ///
    /// # Errors
    /// The user may not publish to the topic.
    pub fn writable(
        &mut self,
        topic: &str,
        options: impl FnOnce() -> FilterOptions,
    ) -> Result<Option<Filter>, Denied> {
        if let Some(known) = self.writable.get(topic) {
            return known.clone();
        }
        let granted = self.grant_name(&[Right::Write], topic, topic);
        let writable = granted.map(|grant| grant.visible(&options()));
        if self.writable.len() >= WRITABLE_MAX {
            self.writable.clear();
        }
        self.writable.insert(topic.into(), writable.clone());
        writable
    }

    /// Checks that an entry without a filter and a select list allows the rights on every topic of
    /// a selector.
    ///
    /// # Errors
    /// The first of the rights that is missing.
    pub fn check_whole(&self, rights: &[Right], selector: &TopicSelector) -> Result<(), Denied> {
        for right in rights {
            let entry = match selector {
                TopicSelector::Name(name) => decide(&self.entries, *right, name),
                // Entries before it could decide otherwise about some of its topics.
                TopicSelector::Pattern(pattern) => {
                    let mut deciding = self.entries.iter().filter(|entry| entry.verdict(*right).is_some());
                    deciding.next().filter(|entry| entry.covers_pattern(pattern.text()))
                }
            };
            let is_whole = entry.is_some_and(|entry| {
                let settings = &entry.settings;
                entry.verdict(*right) == Some(true) && settings.filter.is_none() && settings.select.is_none()
            });
            if !is_whole {
                return Err(Denied { right: *right, topic: selector.text().into() });
            }
        }
        Ok(())
    }
}

/// The first entry that applies.
pub(super) fn decide<'e>(entries: &'e [Arc<Entry>], right: Right, topic: &str) -> Option<&'e Arc<Entry>> {
    entries.iter().find(|entry| entry.verdict(right).is_some() && entry.matches_topic(topic))
}
