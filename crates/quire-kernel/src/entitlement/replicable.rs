//! The topics that a link may have.

use std::sync::Arc;

use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use super::entry::{Entry, Right};
use super::rights::decide;

/// The most topics whose decisions are kept. At the limit, all of them are decided again.
const KNOWN_MAX: usize = 1_024;

/// The topics that the user of a link may replicate. The default is every topic.
#[derive(Debug, Default)]
pub struct Replicable {
    entries: Option<Arc<[Arc<Entry>]>>,
    known: HashMap<Box<str>, bool, FxBuildHasher>,
}

impl Replicable {
    /// The topics of a user with these entries.
    pub(super) fn within(entries: &Arc<[Arc<Entry>]>) -> Self {
        Replicable { entries: Some(entries.clone()), known: HashMap::default() }
    }

    /// The same topics, for another thread.
    #[must_use]
    pub fn copy(&self) -> Self {
        Replicable { entries: self.entries.clone(), known: HashMap::default() }
    }

    /// Whether the link may have the topic. The decisions are kept.
    #[inline]
    pub fn allows(&mut self, topic: &str) -> bool {
        self.entries.is_none() || self.decide(topic)
    }

    /// Whether the link may have any topic.
    pub fn allows_any(&self) -> bool {
        let Some(entries) = &self.entries else { return true };
        entries.iter().any(|entry| entry.verdict(Right::Replicate) == Some(true))
    }

    fn decide(&mut self, topic: &str) -> bool {
        let Some(entries) = &self.entries else { return true };
        if let Some(known) = self.known.get(topic) {
            return *known;
        }
        let entry = decide(entries, Right::Replicate, topic);
        let is_allowed = entry.and_then(|entry| entry.verdict(Right::Replicate)) == Some(true);
        if self.known.len() >= KNOWN_MAX {
            self.known.clear();
        }
        self.known.insert(topic.into(), is_allowed);
        is_allowed
    }
}
