//! The decisions about the topics of a pattern.
//!
//! A [`Guard`] decides about a topic when its first message comes, and keeps the decision. Topics
//! about which the same entries decide share the limits, and so the filters and select lists that a
//! command makes of them.

use std::borrow::Borrow;
use std::hash::Hash;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use super::entry::{Entry, Right};
use super::grant::Limits;
use super::rights::decide;
use quire_expression::filter::{Filter, FilterOptions, TopicGuard};
use quire_expression::select::Select;

/// The most topics whose decisions a guard keeps, and the most results that a command keeps. At the
/// limit, all of them are made again.
const KEPT_MAX: usize = 4_096;

static LAST_NUMBER: AtomicU64 = AtomicU64::new(0);

/// A number that nothing else has.
fn new_number() -> u64 {
    LAST_NUMBER.fetch_add(1, Ordering::Relaxed) + 1
}

/// The entries of a user about some rights.
#[derive(Debug)]
pub(super) struct Guard {
    entries: Arc<[Arc<Entry>]>,
    rights: Box<[Right]>,
    /// `None`: the topic is hidden.
    topics: Kept<Box<str>, Option<Arc<Decided>>>,
    decided: Kept<Limits, Arc<Decided>>,
}

/// The decision about some topics.
#[derive(Debug)]
pub(super) struct Decided {
    number: u64,
    pub limits: Limits,
}

impl Guard {
    pub fn new(entries: &Arc<[Arc<Entry>]>, rights: &[Right]) -> Self {
        let (topics, decided) = (Kept::default(), Kept::default());
        Guard { entries: entries.clone(), rights: rights.into(), topics, decided }
    }

    /// What is left of a topic; `None`: it is hidden.
    pub fn decide(&self, topic: &str) -> Option<Arc<Decided>> {
        self.topics.get_or_make(topic, || {
            let mut limits = Limits::default();
            for right in &self.rights {
                let entry = decide(&self.entries, *right, topic);
                let entry = entry.filter(|entry| entry.verdict(*right) == Some(true))?;
                limits.add(&entry.settings, *right);
            }
            let make = || Arc::new(Decided { number: new_number(), limits: limits.clone() });
            Some(self.decided.get_or_make(&limits, make))
        })
    }

    /// The limits of each entry that can decide about a topic.
    pub fn limits(&self) -> impl Iterator<Item = Limits> {
        self.entries.iter().map(|entry| {
            let mut limits = Limits::default();
            for right in self.rights.iter().filter(|right| entry.verdict(**right) == Some(true)) {
                limits.add(&entry.settings, *right);
            }
            limits
        })
    }
}

/// The filter of a command for each topic of a pattern.
#[derive(Debug)]
pub(super) struct FilterByTopic {
    number: u64,
    guard: Arc<Guard>,
    /// The limits of every topic.
    limits: Limits,
    /// It sees only the fields of the topic that are visible.
    wanted: Option<Filter>,
    options: FilterOptions,
    made: Kept<u64, Option<Arc<[Filter]>>>,
}

impl FilterByTopic {
    pub fn new(guard: Arc<Guard>, limits: Limits, wanted: Option<Filter>, options: FilterOptions) -> Self {
        FilterByTopic { number: new_number(), guard, limits, wanted, options, made: Kept::default() }
    }
}

impl TopicGuard for FilterByTopic {
    fn number(&self) -> u64 {
        self.number
    }

    fn filters_of(&self, topic: &str) -> Option<Arc<[Filter]>> {
        let decided = self.guard.decide(topic)?;
        self.made.get_or_make(&decided.number, || {
            let limits = decided.limits.and(&self.limits);
            // A topic is hidden when its filters are too large together.
            let filter = limits.filter(None, self.wanted.as_ref(), &self.options).ok()?;
            Some(filter.into_iter().collect())
        })
    }
}

/// The select list of a command for each topic of a pattern.
#[derive(Debug)]
pub(super) struct SelectByTopic {
    guard: Arc<Guard>,
    /// The limits of every topic.
    limits: Limits,
    wanted: Option<Select>,
    made: Kept<u64, Option<Select>>,
}

impl SelectByTopic {
    pub fn new(guard: Arc<Guard>, limits: Limits, wanted: Option<Select>) -> Self {
        SelectByTopic { guard, limits, wanted, made: Kept::default() }
    }

    /// The part of the messages of a topic; `None`: they are delivered whole.
    pub fn of_topic(&self, topic: &str) -> Option<Select> {
        let Some(decided) = self.guard.decide(topic) else { return Some(Select::nothing()) };
        self.made
            .get_or_make(&decided.number, || decided.limits.and(&self.limits).select(self.wanted.as_ref()))
    }
}

/// Results that are kept, on whichever thread they are needed.
#[derive(Debug)]
struct Kept<K, V>(Mutex<HashMap<K, V, FxBuildHasher>>);

impl<K, V> Default for Kept<K, V> {
    fn default() -> Self {
        Kept(Mutex::default())
    }
}

impl<K: Eq + Hash, V: Clone> Kept<K, V> {
    fn get_or_make<Q>(&self, key: &Q, make: impl FnOnce() -> V) -> V
    where
        Q: Hash + Eq + ToOwned + ?Sized,
        K: Borrow<Q> + From<Q::Owned>,
    {
        let known = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(value) = known().get(key) {
            return value.clone();
        }
        let value = make();
        let mut known = known();
        if known.len() >= KEPT_MAX {
            known.clear();
        }
        known.insert(K::from(key.to_owned()), value.clone());
        value
    }
}
