//! The part of the messages that a command may see or change.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use super::entry::{Entry, EntrySettings, Right};
use super::rights::decide;
use quire_expression::filter::{Filter, FilterError, FilterOptions, TopicGuard};
use quire_expression::select::Select;

/// A filter that every readable message matches. It leaves out messages that cannot be read.
const IS_READABLE: &str = "(/x IS NULL OR /x IS NOT NULL)";

/// The most topics whose decisions a guard keeps. At the limit, all of them are decided again.
const DECIDED_MAX: usize = 4_096;

/// The messages and fields that the rights of a user leave to one command. The default leaves all.
#[derive(Clone, Debug, Default)]
pub struct Grant {
    /// Of a pattern: the filters depend on the topic.
    guard: Option<Arc<Guard>>,
    /// Filters of entries. All of them must match.
    filters: Vec<Box<str>>,
    /// Select lists of entries. A field must be in all of them.
    selects: Vec<Box<str>>,
}

/// A command without limits.
static WHOLE: Grant = Grant { guard: None, filters: Vec::new(), selects: Vec::new() };

impl PartialEq for Grant {
    fn eq(&self, other: &Self) -> bool {
        let number = |grant: &Grant| grant.guard.as_ref().map(|guard| guard.number);
        number(self) == number(other) && self.filters == other.filters && self.selects == other.selects
    }
}

impl Eq for Grant {}

impl Grant {
    /// The grant of a command that may see and change everything.
    pub fn whole() -> &'static Self {
        &WHOLE
    }

    /// A command that needs an entry of this kind, in addition to earlier ones.
    pub(super) fn add(&mut self, settings: &EntrySettings, right: Right) {
        if let Some(filter) = &settings.filter
            && !self.filters.iter().any(|known| **known == **filter)
        {
            self.filters.push(filter.as_str().into());
        }
        if let Some(select) = settings.select.as_ref().filter(|_| right.is_of_reading())
            && !self.selects.iter().any(|known| **known == **select)
        {
            self.selects.push(select.as_str().into());
        }
    }

    pub(super) fn guarded(guard: Guard) -> Self {
        let selects = guard.select.iter().cloned().collect();
        Grant { guard: Some(Arc::new(guard)), filters: Vec::new(), selects }
    }

    /// Both grants must allow a message.
    #[must_use]
    pub fn and(mut self, other: Grant) -> Self {
        self.guard = self.guard.or(other.guard);
        self.filters.extend(other.filters);
        self.selects.extend(other.selects);
        self
    }

    /// Whether the command may see or change every message, with all fields.
    pub fn is_whole(&self) -> bool {
        self.guard.is_none() && self.filters.is_empty() && self.selects.is_empty()
    }

    /// Whether any message of the topic may be seen or changed.
    pub fn includes(&self, topic: &str) -> bool {
        self.guard.as_ref().is_none_or(|guard| guard.filters_of(topic).is_some())
    }

    /// The grant for one topic of a pattern. `None`: the topic is hidden.
    pub fn of_topic(&self, topic: &str) -> Option<Grant> {
        match &self.guard {
            None => Some(self.clone()),
            Some(guard) => guard.grant_of(topic),
        }
    }

    /// The select list of a command: the wanted part of the visible fields.
    pub fn select(&self, wanted: Option<Select>) -> Option<Select> {
        match self.visible_fields() {
            Some(granted) => Some(granted.of(wanted.as_ref())),
            None => wanted,
        }
    }

    /// The select list that hides fields; `None`: no field is hidden.
    pub fn visible_fields(&self) -> Option<Select> {
        if self.selects.is_empty() {
            return None;
        }
        // The lists were checked with the configuration. An empty one hides everything.
        let parsed = Select::granted(self.selects.iter().map(AsRef::as_ref));
        Some(parsed.unwrap_or_else(|_| Select::granted(["-/"]).expect("`-/` is a select list")))
    }

    /// The filter of a command: the wanted messages among the visible ones. `options` are those of
    /// entries.
    ///
    /// # Errors
    /// All filters together are too large.
    pub fn filter(
        &self,
        wanted: Option<Filter>,
        options: &FilterOptions,
    ) -> Result<Option<Filter>, FilterError> {
        if self.is_whole() {
            return Ok(wanted);
        }
        let own = FilterOptions { hidden: self.visible_fields(), ..options.clone() };
        let mut texts: Vec<(&str, &FilterOptions)> =
            self.filters.iter().map(|text| (&**text, options)).collect();
        if !self.selects.is_empty() {
            texts.push((IS_READABLE, options));
        }
        let shown = wanted.as_ref().map_or("", Filter::text);
        if wanted.is_some() {
            texts.push((shown, &own));
        }
        let guard = self.guard.clone().map(|guard| guard as Arc<dyn TopicGuard>);
        Filter::all(guard, &texts, shown).map(Some)
    }

    /// The filter of the visible messages; `None`: all messages are visible.
    pub fn visible(&self, options: &FilterOptions) -> Option<Filter> {
        // Without a filter of the command, all texts were checked with the configuration.
        self.filter(None, options).unwrap_or_else(|_| Filter::parse("1 = 0", options).ok())
    }
}

/// The decisions about the topics of a pattern.
#[derive(Debug)]
pub(super) struct Guard {
    number: u64,
    entries: Arc<[Arc<Entry>]>,
    rights: Box<[Right]>,
    /// The options for the filters of entries.
    options: FilterOptions,
    /// The select list of every topic that is visible. A topic with another one is hidden, because
    /// a subscription has one select list.
    select: Option<Box<str>>,
    decided: Mutex<Decisions>,
}

/// The filters of each topic; `None`: the topic is hidden.
type Decisions = HashMap<Box<str>, Option<Arc<[Filter]>>, FxBuildHasher>;

impl Guard {
    pub(super) fn new(entries: &Arc<[Arc<Entry>]>, rights: &[Right], options: &FilterOptions) -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        let allowing = |entry: &&Arc<Entry>| {
            rights.iter().any(|right| right.is_of_reading() && entry.verdict(*right) == Some(true))
        };
        let mut selects = entries.iter().filter(allowing).map(|entry| entry.settings.select.as_deref());
        let first = selects.next().flatten();
        Guard {
            number: LAST.fetch_add(1, Ordering::Relaxed) + 1,
            entries: entries.clone(),
            rights: rights.into(),
            options: FilterOptions { hidden: None, ..options.clone() },
            select: first.filter(|_| selects.all(|select| select == first)).map(Into::into),
            decided: Mutex::default(),
        }
    }

    /// The grant for one topic; `None`: the topic is hidden.
    fn grant_of(&self, topic: &str) -> Option<Grant> {
        let mut grant = Grant::default();
        for right in &self.rights {
            let entry = decide(&self.entries, *right, topic);
            let entry = entry.filter(|entry| entry.verdict(*right) == Some(true))?;
            let select = entry.settings.select.as_deref();
            if right.is_of_reading() && select != self.select.as_deref() {
                return None;
            }
            grant.add(&entry.settings, *right);
        }
        Some(grant)
    }

    fn decide(&self, topic: &str) -> Option<Arc<[Filter]>> {
        let grant = self.grant_of(topic)?;
        Some(grant.visible(&self.options).into_iter().collect())
    }
}

impl TopicGuard for Guard {
    fn number(&self) -> u64 {
        self.number
    }

    fn filters_of(&self, topic: &str) -> Option<Arc<[Filter]>> {
        if let Some(decided) = self.decided.lock().unwrap_or_else(PoisonError::into_inner).get(topic) {
            return decided.clone();
        }
        let filters = self.decide(topic);
        let mut decided = self.decided.lock().unwrap_or_else(PoisonError::into_inner);
        if decided.len() >= DECIDED_MAX {
            decided.clear();
        }
        decided.insert(topic.into(), filters.clone());
        filters
    }
}
