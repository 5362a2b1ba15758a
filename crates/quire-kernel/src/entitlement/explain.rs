//! The decision about a request, entry by entry.

use serde::Serialize;

use super::entry::{Entitlements, Right};

/// Why a request is allowed or refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Explanation {
    /// Whether it is allowed.
    pub allowed: bool,
    /// The number of the entry that decides, from 1; `None`: no entry applies, or there is none.
    pub entry: Option<usize>,
    /// The filter of that entry.
    pub filter: Option<String>,
    /// The select list of that entry.
    pub select: Option<String>,
    /// The groups of the user.
    pub groups: Vec<String>,
    /// The entries up to the one that decides.
    pub steps: Vec<Step>,
}

/// One entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Step {
    /// Its number, from 1.
    pub entry: usize,
    /// Why it applies, or does not.
    pub reason: String,
}

impl Explanation {
    /// Without entries: everything is allowed.
    pub fn without_entries(groups: &[Box<str>]) -> Self {
        let groups = groups.iter().map(|group| group.to_string()).collect();
        Explanation { allowed: true, entry: None, filter: None, select: None, groups, steps: Vec::new() }
    }
}

impl Entitlements {
    /// Decides as [`Rights`](super::Rights) does, and says why.
    pub fn explain(&self, user: &str, groups: &[Box<str>], right: Right, topic: &str) -> Explanation {
        let mut explanation = Explanation { allowed: false, ..Explanation::without_entries(groups) };
        for entry in &self.entries {
            let reason = if !entry.matches_name(user) {
                format!("its user is not {user:?}")
            } else if !entry.matches_groups(groups) {
                "the user is in none of its groups".to_owned()
            } else if !entry.matches_topic(topic) {
                format!("its topic does not match {topic:?}")
            } else {
                match entry.verdict(right) {
                    None => format!("it does not list {:?}", right.name()),
                    Some(true) => format!("it allows {:?}", right.name()),
                    Some(false) => format!("it refuses {:?}", right.name()),
                }
            };
            explanation.steps.push(Step { entry: entry.number, reason });
            let decides = entry.matches_user(user, groups) && entry.matches_topic(topic);
            if let Some(allowed) = entry.verdict(right).filter(|_| decides) {
                let settings = &entry.settings;
                let select = settings.select.clone().filter(|_| right.takes_select());
                return Explanation {
                    allowed,
                    entry: Some(entry.number),
                    filter: settings.filter.clone().filter(|_| allowed),
                    select: select.filter(|_| allowed),
                    ..explanation
                };
            }
        }
        explanation
    }
}
