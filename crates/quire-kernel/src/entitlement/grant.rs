//! The part of the messages that a command may see or change.

use std::borrow::Cow;
use std::sync::Arc;

use super::entry::{EntrySettings, Right};
use super::guard::{FilterByTopic, Guard, SelectByTopic};
use quire_expression::filter::{Filter, FilterError, FilterOptions, TopicGuard};
use quire_expression::message_type::Step;
use quire_expression::select::Select;

/// The messages and fields that the rights of a user leave to one command. The default leaves all.
#[derive(Clone, Debug, Default)]
pub struct Grant {
    /// Of a pattern: the filters and the select lists depend on the topic.
    guard: Option<Arc<Guard>>,
    /// The limits of the entries that decide about every topic of the command.
    entries: Limits,
}

/// The filters and the select lists of entries.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Limits {
    /// All of them must match.
    filters: Vec<Box<str>>,
    /// A field must be in all of them.
    selects: Vec<Box<str>>,
}

/// A command without limits.
static WHOLE: Grant = Grant { guard: None, entries: Limits { filters: Vec::new(), selects: Vec::new() } };

/// The part of each message that a command wants, and may have. An idle subscription has a pointer
/// to it, or none. Clones share it.
#[derive(Clone, Debug)]
pub struct TopicSelect(Arc<Selects>);

#[derive(Debug)]
enum Selects {
    /// The same for every topic.
    Same(Select),
    /// A command with a pattern. Its entries have select lists.
    ByTopic(SelectByTopic),
}

impl TopicSelect {
    /// The part of the messages of a topic; `None`: they are delivered whole.
    #[inline]
    pub fn of_topic(&self, topic: &str) -> Option<Cow<'_, Select>> {
        match &*self.0 {
            Selects::Same(select) => Some(Cow::Borrowed(select)),
            Selects::ByTopic(by_topic) => by_topic.of_topic(topic).map(Cow::Owned),
        }
    }
}

impl Limits {
    /// The limits of an entry that allows a right.
    pub fn add(&mut self, settings: &EntrySettings, right: Right) {
        if let Some(filter) = &settings.filter
            && !self.filters.iter().any(|known| **known == **filter)
        {
            self.filters.push(filter.as_str().into());
        }
        if let Some(select) = settings.select.as_ref().filter(|_| right.takes_select())
            && !self.selects.iter().any(|known| **known == **select)
        {
            self.selects.push(select.as_str().into());
        }
    }

    /// Both limits hold.
    #[must_use]
    pub fn and(&self, other: &Limits) -> Limits {
        let mut both = self.clone();
        both.filters.extend_from_slice(&other.filters);
        both.selects.extend_from_slice(&other.selects);
        both
    }

    fn is_none(&self) -> bool {
        self.filters.is_empty() && self.selects.is_empty()
    }

    /// The select list that hides fields; `None`: no field is hidden.
    pub fn visible_fields(&self) -> Option<Select> {
        if self.selects.is_empty() {
            return None;
        }
        // The lists were checked with the configuration.
        let parsed = Select::granted(self.selects.iter().map(AsRef::as_ref));
        Some(parsed.unwrap_or_else(|_| Select::nothing()))
    }

    /// The wanted part of the visible fields.
    pub fn select(&self, wanted: Option<&Select>) -> Option<Select> {
        match self.visible_fields() {
            Some(granted) => Some(granted.of(wanted)),
            None => wanted.cloned(),
        }
    }

    /// The wanted messages among the visible ones.
    pub fn filter(
        &self,
        guard: Option<Arc<dyn TopicGuard>>,
        wanted: Option<&Filter>,
        options: &FilterOptions,
    ) -> Result<Option<Filter>, FilterError> {
        if self.is_none() && guard.is_none() {
            return Ok(wanted.cloned());
        }
        let own = FilterOptions { hidden: self.visible_fields(), ..options.clone() };
        let mut texts: Vec<(&str, &FilterOptions)> =
            self.filters.iter().map(|text| (&**text, options)).collect();
        let shown = wanted.map_or("", Filter::text);
        if wanted.is_some() {
            texts.push((shown, &own));
        }
        Filter::all(guard, &texts, !self.is_none(), shown).map(Some)
    }
}

impl Grant {
    /// The grant of a command that may see and change everything.
    pub fn whole() -> &'static Self {
        &WHOLE
    }

    /// A command that needs an entry of this kind, in addition to earlier ones.
    pub(super) fn add(&mut self, settings: &EntrySettings, right: Right) {
        self.entries.add(settings, right);
    }

    pub(super) fn guarded(guard: Guard) -> Self {
        Grant { guard: Some(Arc::new(guard)), entries: Limits::default() }
    }

    /// Both grants must allow a message.
    #[must_use]
    pub fn and(self, other: Grant) -> Self {
        Grant { guard: self.guard.or(other.guard), entries: self.entries.and(&other.entries) }
    }

    /// Whether the command may see or change every message, with all fields.
    pub fn is_whole(&self) -> bool {
        self.guard.is_none() && self.entries.is_none()
    }

    /// Whether any message of the topic may be seen or changed.
    pub fn includes(&self, topic: &str) -> bool {
        self.guard.as_ref().is_none_or(|guard| guard.decide(topic).is_some())
    }

    /// The grant for one topic of a pattern. `None`: the topic is hidden.
    pub fn of_topic(&self, topic: &str) -> Option<Grant> {
        let Some(guard) = &self.guard else { return Some(self.clone()) };
        let decided = guard.decide(topic)?;
        Some(Grant { guard: None, entries: decided.limits.and(&self.entries) })
    }

    /// The select list of a command: the wanted part of the visible fields.
    pub fn select(&self, wanted: Option<Select>) -> Option<TopicSelect> {
        match self.selecting_guard() {
            Some(guard) => {
                let by_topic = SelectByTopic::new(guard.clone(), self.entries.clone(), wanted);
                Some(TopicSelect(Arc::new(Selects::ByTopic(by_topic))))
            }
            None => self
                .entries
                .select(wanted.as_ref())
                .map(|select| TopicSelect(Arc::new(Selects::Same(select)))),
        }
    }

    /// The fields of the messages of one topic that are visible; `None`: all.
    pub fn visible_fields(&self, topic: &str) -> Option<Select> {
        match self.of_topic(topic) {
            Some(grant) => grant.entries.visible_fields(),
            None => Some(Select::nothing()),
        }
    }

    /// Whether a field, or a part of it, is hidden on any topic.
    pub fn hides(&self, field: &[Step]) -> bool {
        let is_hidden = |visible: Option<Select>| visible.is_some_and(|visible| visible.hides(field));
        is_hidden(self.entries.visible_fields())
            || self
                .guard
                .as_ref()
                .is_some_and(|guard| guard.limits().any(|of| is_hidden(of.visible_fields())))
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
        let options = FilterOptions { hidden: None, ..options.clone() };
        if let Some(guard) = self.selecting_guard() {
            // The fields that the wanted filter sees depend on the topic.
            let shown = wanted.as_ref().map_or("", Filter::text).to_owned();
            let by_topic = FilterByTopic::new(guard.clone(), self.entries.clone(), wanted, options);
            return Filter::all(Some(Arc::new(by_topic)), &[], false, &shown).map(Some);
        }
        let guard = self.guard.clone().map(|guard| -> Arc<dyn TopicGuard> {
            Arc::new(FilterByTopic::new(guard, Limits::default(), None, options.clone()))
        });
        // An index finds the conditions of a filter that is outside of the guard.
        self.entries.filter(guard, wanted.as_ref(), &options)
    }

    /// The guard, when its entries have select lists.
    fn selecting_guard(&self) -> Option<&Arc<Guard>> {
        self.guard.as_ref().filter(|guard| guard.limits().any(|of| !of.selects.is_empty()))
    }

    /// The filter of the visible messages; `None`: all messages are visible.
    pub fn visible(&self, options: &FilterOptions) -> Option<Filter> {
        match self.filter(None, options) {
            Ok(filter) => filter,
            // Each filter was checked with the configuration, but not all of them together.
            Err(_) => Some(Filter::never()),
        }
    }
}
