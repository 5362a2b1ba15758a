//! The topics in use, and the subscriptions of each topic.
//!
//! The publish path looks up a topic once per name, and then identifies it by a small number. The
//! table is a cache of the subscriptions and of the rules of the log. A topic that no subscription
//! names may be removed and created again, so the names that publishers send cannot fill the
//! memory. Subscriptions with the same pattern text share one audience, and a topic has the numbers
//! of the patterns that match its name. So a message is never matched against a pattern.

pub use crate::ids::{ContainerId, TableId, TopicId};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use slab::Slab;

use super::kind::TopicKind;
use super::pattern_index::PatternIndex;
use super::recording::{Recording, RecordingRule};
use crate::config::tables::SourceQueue;
use crate::stats::TopicStats;
use crate::subscription::SubscriptionId;
use quire_expression::filter::{Decision, Filter, MessageContext, SubscriptionIndex};
use quire_expression::message_type::Arena;
use quire_expression::message_type::MessageType;
use quire_expression::topic::TopicPattern;
use quire_expression::topic::TopicSelector;
use quire_queue::QueueId;

/// The most topics in the table that no subscription names. It is more than most systems have. With
/// 200 bytes for each topic, they use 13 MB. At the limit, all of them are removed together, and
/// created again when they are published to.
const TOPICS_UNPINNED_MAX: usize = 65_536;

/// The most pairs of a topic and a matching pattern: 4 bytes each, so 16 MB. At the limit, the
/// unpinned topics are removed. A subscription that could still exceed the limit is refused.
const LINKS_MAX: usize = 4 << 20;

/// The most pattern matches for the topics of one answer. They take tens of milliseconds.
const MATCHES_MAX: usize = 1 << 17;

/// The most topics of other instances whose names are kept. It is more than the log of most
/// instances has, with 100 bytes each. At the limit, no further name is kept.
/// [`TopicTable::incoming`] then returns for each selection that it may include such a topic.
const INCOMING_MAX: usize = 1 << 18;

/// When the members of an audience receive a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// At once: ordinary and `live` subscriptions.
    Published,
    /// When it is persisted: bookmark subscriptions that have caught up.
    Persisted,
}

#[derive(Default)]
struct Audience {
    published: SubscriptionIndex<SubscriptionId>,
    persisted: SubscriptionIndex<SubscriptionId>,
    published_count: u32,
    persisted_count: u32,
}

/// The topics of a queue.
#[derive(Clone, Debug)]
pub struct QueueRoute {
    pub name: Arc<str>,
    pub message_type: MessageType,
    /// The topics whose messages enter.
    pub selector: TopicSelector,
    /// The topic for a message that is published to the name.
    pub publish_target: Arc<str>,
    /// The messages, for the views that read them, are in memory that can be paged out.
    pub file_backed: bool,
}

/// A queue that views read.
struct OfQueue {
    /// Its messages.
    table: TableId,
    views: Vec<Arc<str>>,
}

impl QueueRoute {
    /// The queue as a view sees it.
    pub fn source(&self) -> SourceQueue {
        let QueueRoute { name, message_type, file_backed, .. } = self;
        SourceQueue { name: name.clone(), message_type: *message_type, file_backed: *file_backed }
    }

    /// Whether the messages of a topic enter the queue.
    fn takes(&self, topic: &str, recording: &Recording) -> bool {
        self.message_type == recording.message_type && self.selector.matches(topic)
    }
}

/// The topics of a last-value topic with a pattern.
#[derive(Clone, Debug)]
pub struct ContainerRoute {
    pub name: Arc<str>,
    pub message_type: MessageType,
    /// The topics of the container. The pattern matches whole names.
    pub pattern: TopicPattern,
}

/// The last-value topics of a configuration.
#[derive(Default)]
pub struct TableRoutes {
    pub tables: BTreeMap<Arc<str>, (TableId, MessageType)>,
    /// Those that are views or conflated topics.
    pub computed: BTreeSet<Arc<str>>,
    pub containers: Vec<ContainerRoute>,
    /// The tables of the queues that views read.
    pub of_queues: BTreeMap<Arc<str>, TableId>,
}

pub struct Topic {
    pub name: Arc<str>,
    /// The log has the topic, or has added it. The name is then the copy of the log.
    is_admitted: bool,
    pub recording: Recording,
    /// The queues that the messages of the topic enter.
    pub queues: Box<[QueueId]>,
    kind: TopicKind,
    /// The result of [`TopicKind::takes_plain`], which is needed for each message.
    takes_plain: bool,
    /// The topic is in [`TopicTable::incoming`].
    is_incoming: bool,
    /// Subscriptions that name this topic.
    audience: Audience,
    /// The patterns that match the name.
    patterns: Vec<u32>,
    /// Messages that clients have published to it, and their bytes.
    published: (u64, u64),
}

impl Topic {
    /// Its kind.
    #[inline]
    pub fn kind(&self) -> TopicKind {
        self.kind
    }

    /// The records of the topic, when it keeps last values.
    #[inline]
    pub fn table(&self) -> Option<TableId> {
        match self.kind {
            TopicKind::Table(table) => table,
            TopicKind::Computed(table) => Some(table),
            TopicKind::Plain | TopicKind::Queue => None,
        }
    }

    /// Whether messages without special options are accepted without a check.
    #[inline]
    pub fn takes_plain(&self) -> bool {
        self.takes_plain
    }

    fn set_kind(&mut self, kind: TopicKind) {
        self.kind = kind;
        self.takes_plain = kind.takes_plain(&self.recording);
    }
}

struct PatternGroup {
    pattern: TopicPattern,
    audience: Audience,
}

pub struct TopicTable {
    rules: Vec<RecordingRule>,
    /// The routes by the numbers of the queues; `None`: the queue with the number was removed.
    routes: Vec<Option<QueueRoute>>,
    /// The last-value topics, and the topics of containers that have records.
    tables: BTreeMap<Arc<str>, (TableId, MessageType)>,
    computed: BTreeSet<Arc<str>>,
    containers: Vec<ContainerRoute>,
    /// The queues that views read.
    of_queues: BTreeMap<Arc<str>, OfQueue>,
    /// Changes when a queue gets another table, or none.
    of_queues_version: u64,
    /// A queue that is being created or dropped. No view begins to read it.
    unsettled_queue: Option<Arc<str>>,
    topics: Slab<Topic>,
    by_name: BTreeMap<Arc<str>, u32>,
    /// The topics with messages from other instances. They remain when topics are removed from the
    /// table.
    incoming: BTreeSet<Arc<str>>,
    is_incoming_full: bool,
    groups: Slab<PatternGroup>,
    by_pattern: BTreeMap<Arc<str>, u32>,
    pattern_index: PatternIndex,
    unpinned_count: usize,
    link_count: usize,
    persisted_count: usize,
    generation: u64,
    /// Memory for the fields of a message, for one audience after the other.
    arena: Arena,
}

/// The sources of the messages of a topic, as [`TopicTable::incoming`] returns them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Incoming {
    /// Messages of this topic arrive from other instances.
    Topic(Arc<str>),
    /// Perhaps: other instances send more topics than the table has names for.
    TooMany,
}

/// [`LINKS_MAX`] would be exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManyLinks;

impl TopicTable {
    pub fn new(
        rules: Vec<RecordingRule>,
        routes: Vec<QueueRoute>,
        TableRoutes { tables, computed, containers, of_queues }: TableRoutes,
        arena: Arena,
    ) -> Self {
        TopicTable {
            rules,
            tables,
            computed,
            containers,
            of_queues: of_queues
                .into_iter()
                .map(|(name, table)| (name, OfQueue { table, views: Vec::new() }))
                .collect(),
            of_queues_version: 1,
            unsettled_queue: None,
            routes: routes.into_iter().map(Some).collect(),
            topics: Slab::new(),
            by_name: BTreeMap::new(),
            incoming: BTreeSet::new(),
            is_incoming_full: false,
            groups: Slab::new(),
            by_pattern: BTreeMap::new(),
            pattern_index: PatternIndex::default(),
            unpinned_count: 0,
            link_count: 0,
            persisted_count: 0,
            generation: 0,
            arena,
        }
    }

    /// Records that messages of the topic arrive from other instances.
    pub fn note_incoming(&mut self, topic: TopicId) {
        let topic = &mut self.topics[topic.0 as usize];
        if topic.is_incoming {
            return;
        }
        if self.incoming.len() < INCOMING_MAX {
            topic.is_incoming = true;
            self.incoming.insert(topic.name.clone());
        } else {
            self.is_incoming_full |= !self.incoming.contains(&topic.name);
        }
    }

    /// Whether messages of the selected topics arrive from other instances.
    pub fn incoming(&self, selector: &TopicSelector) -> Option<Incoming> {
        let named = match selector {
            TopicSelector::Name(name) => self.incoming.get(&**name),
            TopicSelector::Pattern(_) => self.incoming.iter().find(|name| selector.matches(name)),
        };
        named.cloned().map(Incoming::Topic).or(self.is_incoming_full.then_some(Incoming::TooMany))
    }

    /// The last-value topic with this name.
    pub fn table(&self, name: &str) -> Option<TableId> {
        self.tables.get(name).map(|(table, _)| *table)
    }

    /// The table that a view with this source reads.
    pub fn source(&self, name: &str) -> Option<TableId> {
        self.table(name).or_else(|| self.of_queue(name))
    }

    /// The table of a queue that views read.
    pub fn of_queue(&self, name: &str) -> Option<TableId> {
        self.of_queues.get(name).map(|of_queue| of_queue.table)
    }

    /// The queues that views read, with their tables.
    pub fn of_queues(&self) -> Vec<(Arc<str>, TableId)> {
        self.of_queues.iter().map(|(name, of_queue)| (name.clone(), of_queue.table)).collect()
    }

    /// A view begins to read a queue, or (`None`) no view reads it any more.
    pub fn set_of_queue(&mut self, name: &Arc<str>, table: Option<TableId>) {
        self.of_queues_version += 1;
        match table {
            Some(table) => {
                drop(self.of_queues.insert(name.clone(), OfQueue { table, views: Vec::new() }));
            }
            None => drop(self.of_queues.remove(name)),
        }
    }

    /// Changes with [`of_queues`](Self::of_queues).
    pub fn of_queues_version(&self) -> u64 {
        self.of_queues_version
    }

    /// The views that read a queue. The list is empty while the first one is being defined.
    pub fn views_of_queue(&self, name: &str) -> Option<&[Arc<str>]> {
        self.of_queues.get(name).map(|of_queue| &of_queue.views[..])
    }

    /// Sets the views that read a queue.
    pub fn set_views_of_queue(&mut self, name: &str, views: Vec<Arc<str>>) {
        if let Some(of_queue) = self.of_queues.get_mut(name) {
            of_queue.views = views;
        }
    }

    /// Whether a queue is being created or dropped.
    pub fn is_unsettled_queue(&self, name: &str) -> bool {
        self.unsettled_queue.as_deref() == Some(name)
    }

    /// A queue is being created or dropped, or (`None`) none is.
    pub fn set_unsettled_queue(&mut self, name: Option<Arc<str>>) {
        self.unsettled_queue = name;
    }

    /// The container of a topic without a table. The names of queues and containers belong to no
    /// container.
    pub fn container_of(&self, name: &str) -> Option<ContainerId> {
        if self.containers.is_empty()
            || self.is_container(name)
            || self.routes.iter().flatten().any(|route| *route.name == *name)
        {
            return None;
        }
        let found = self.containers.iter().position(|container| container.pattern.matches(name));
        found.map(|index| ContainerId(index as u32))
    }

    /// Whether a container has the name.
    pub fn is_container(&self, name: &str) -> bool {
        self.containers.iter().any(|container| *container.name == *name)
    }

    /// Whether topics that the selector names can become last-value topics.
    pub fn may_keep_values(&self, selector: &TopicSelector) -> bool {
        match selector {
            TopicSelector::Name(name) => self.container_of(name).is_some(),
            TopicSelector::Pattern(_) => !self.containers.is_empty(),
        }
    }

    /// Sets the table of the topic.
    pub fn add_table(&mut self, name: &Arc<str>, table: TableId, message_type: MessageType) {
        self.tables.insert(name.clone(), (table, message_type));
        if let Some(&topic) = self.by_name.get(name) {
            self.topics[topic as usize].set_kind(TopicKind::Table(Some(table)));
        }
    }

    /// Removes the table of the topic. The next message creates a new one. Sessions look up the
    /// topic again.
    pub fn remove_table(&mut self, name: &str) {
        self.tables.remove(name);
        if let Some(&topic) = self.by_name.get(name) {
            let kind = self.kind_of(name);
            self.topics[topic as usize].set_kind(kind);
        }
        self.generation += 1;
    }

    /// The last-value topics that the selector names, in the order of their names.
    pub fn tables_of(&self, selector: &TopicSelector) -> Vec<TableId> {
        match selector {
            TopicSelector::Name(name) => self.table(name).into_iter().collect(),
            TopicSelector::Pattern(pattern) => {
                let named = self.tables.iter().filter(|(name, _)| pattern.matches(name));
                named.map(|(_, (table, _))| *table).collect()
            }
        }
    }

    /// The kind of the topic with this name.
    fn kind_of(&self, name: &str) -> TopicKind {
        if let Some(table) = self.table(name) {
            if self.is_computed(name) { TopicKind::Computed(table) } else { TopicKind::Table(Some(table)) }
        } else if self.routes.iter().flatten().any(|route| *route.name == *name) {
            TopicKind::Queue
        } else if self.container_of(name).is_some() {
            TopicKind::Table(None)
        } else {
            TopicKind::Plain
        }
    }

    /// Whether the topic is a view or a conflated topic.
    pub fn is_computed(&self, name: &str) -> bool {
        self.computed.contains(name)
    }

    /// Whether the log records messages of a topic, or a last-value topic keeps them.
    pub fn keeps(&self, name: &str) -> bool {
        self.recording_of(name).records_any() || self.kind_of(name) != TopicKind::Plain
    }

    /// Whether an ordinary subscription receives messages of a topic. The topic is not added to the
    /// table.
    pub fn is_heard(&self, name: &str) -> bool {
        if let Some(&id) = self.by_name.get(name) {
            return self.has_audience(TopicId(id), Stage::Published);
        }
        self.pattern_index.candidates(name).any(|group| {
            let group = &self.groups[group as usize];
            group.audience.count(Stage::Published) > 0 && group.pattern.matches(name)
        })
    }

    fn recording_of(&self, name: &str) -> Recording {
        let recording = Recording::of(&self.rules, name);
        let container = || Some(self.containers[self.container_of(name)?.0 as usize].message_type);
        match self.tables.get(name).map(|(_, message_type)| *message_type).or_else(container) {
            Some(message_type) if self.is_computed(name) => Recording::of_computed(message_type),
            Some(message_type) => recording.of_table(message_type),
            None => recording,
        }
    }

    /// The recording rules of the log.
    pub fn rules(&self) -> &[RecordingRule] {
        &self.rules
    }

    /// Sets the route of the queue with this number, or removes it.
    pub fn set_route(&mut self, queue: QueueId, route: Option<QueueRoute>) {
        let index = queue.get() as usize;
        if self.routes.len() <= index {
            self.routes.resize(index + 1, None);
        }
        self.routes[index] = route;
        self.forget_unpinned();
        let found: Vec<_> = self
            .topics
            .iter()
            .map(|(_, topic)| (self.recording_of(&topic.name), self.kind_of(&topic.name)))
            .collect();
        for ((_, topic), (recording, kind)) in self.topics.iter_mut().zip(found) {
            topic.recording = recording;
            topic.queues = queues_of(&self.routes, &topic.name, &topic.recording);
            topic.set_kind(kind);
        }
    }

    /// The generation changes whenever a [`TopicId`] may have been assigned to another topic.
    #[inline]
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// The first `count_max` names after `after` in the table, and those of the last-value topics.
    /// Each group is sorted.
    pub fn names_after(&self, after: &str, count_max: usize) -> Vec<Arc<str>> {
        let from = (Bound::Excluded(after), Bound::Unbounded);
        let used = self.by_name.range::<str, _>(from).take(count_max).map(|(name, _)| name);
        let tables = self.tables.range::<str, _>(from).take(count_max).map(|(name, _)| name);
        let containers = self.containers.iter().map(|container| &container.name);
        used.chain(tables).chain(containers.filter(|name| ***name > *after)).cloned().collect()
    }

    /// The number of these topics, at least one, that [`TopicTable::describe`] describes in one
    /// piece of work.
    pub fn describable_count(&self, names: &[Arc<str>]) -> usize {
        let mut match_count = 0;
        let is_within = |name: &&Arc<str>| {
            if !self.by_name.contains_key(*name) {
                match_count += self.pattern_index.candidates(name).count();
            }
            match_count <= MATCHES_MAX
        };
        names.iter().take_while(is_within).count().max(1).min(names.len())
    }

    /// The rules, the queues and the subscriptions of a topic, whether it is in the table or not.
    pub fn describe(&self, name: &str) -> TopicStats {
        let recording = self.recording_of(name);
        let entered = self.routes.iter().flatten().filter(|route| route.takes(name, &recording));
        let own = self.by_name.get(name).map(|&id| &self.topics[id as usize]);
        let subscription_count = match own {
            Some(topic) => {
                let patterns = topic.patterns.iter().map(|group| &self.groups[*group as usize].audience);
                patterns.chain([&topic.audience]).map(Audience::subscription_count).sum()
            }
            None => {
                let found = self.pattern_index.candidates(name).map(|group| &self.groups[group as usize]);
                let found = found.filter(|group| group.pattern.matches(name));
                found.map(|group| group.audience.subscription_count()).sum()
            }
        };
        TopicStats {
            topic: name.to_owned(),
            message_type: recording.message_type.name(),
            is_recorded: recording.records_any(),
            queues: entered.map(|route| route.name.to_string()).collect(),
            subscription_count,
            published: own.map_or(0, |topic| topic.published.0),
            published_bytes: own.map_or(0, |topic| topic.published.1),
            last_values: None,
        }
    }

    /// Whether any subscription waits for messages to be persisted.
    pub fn anyone_waits_for_persisted(&self) -> bool {
        self.persisted_count > 0
    }

    /// Whether a bookmark subscription to `selector` can ever receive a message.
    pub fn could_record(&self, selector: &TopicSelector) -> bool {
        let is_computed = matches!(selector, TopicSelector::Name(name) if self.is_computed(name));
        !is_computed && RecordingRule::could_record(&self.rules, selector)
    }

    /// The topic for a message that is published to `name`. It is another topic when `name` is the
    /// name of a queue.
    pub fn publish_target(&self, name: &str) -> Option<Arc<str>> {
        Some(self.queue_route(name)?.publish_target.clone())
    }

    /// The topics of the queue with this name.
    pub fn queue_route(&self, name: &str) -> Option<&QueueRoute> {
        self.routes.iter().flatten().find(|route| *route.name == *name)
    }

    #[inline]
    pub fn topic(&self, id: TopicId) -> &Topic {
        &self.topics[id.0 as usize]
    }

    /// Counts a message that a client has published.
    #[inline]
    pub fn note_published(&mut self, id: TopicId, size: usize) {
        let (count, bytes) = &mut self.topics[id.0 as usize].published;
        *count += 1;
        *bytes += size as u64;
    }

    /// The number of the topic with this name. The topic is added to the table when it is not in
    /// it.
    pub fn intern(&mut self, name: &str) -> TopicId {
        if let Some(&id) = self.by_name.get(name) {
            return TopicId(id);
        }
        if self.unpinned_count >= TOPICS_UNPINNED_MAX || self.link_count >= LINKS_MAX {
            self.forget_unpinned();
        }
        let name: Arc<str> = name.into();
        let is_found = |group: &u32| self.groups[*group as usize].pattern.matches(&name);
        let mut patterns: Vec<u32> = self.pattern_index.candidates(&name).filter(is_found).collect();
        patterns.sort_unstable();
        self.link_count += patterns.len();
        self.unpinned_count += 1;
        let recording = self.recording_of(&name);
        let kind = self.kind_of(&name);
        let topic = Topic {
            kind,
            takes_plain: kind.takes_plain(&recording),
            name: name.clone(),
            is_admitted: false,
            is_incoming: false,
            published: (0, 0),
            queues: queues_of(&self.routes, &name, &recording),
            recording,
            audience: Audience::default(),
            patterns,
        };
        let id = self.topics.insert(topic) as u32;
        self.by_name.insert(name, id);
        TopicId(id)
    }

    /// Whether messages may be published to the topic. `admit` adds the name of a recorded topic to
    /// the log, unless the log has too many topics, and returns the copy of the log.
    pub fn admit(&mut self, id: TopicId, admit: impl FnOnce(&Arc<str>) -> Option<Arc<str>>) -> bool {
        let topic = &mut self.topics[id.0 as usize];
        if topic.is_admitted || !topic.recording.records_any() {
            return true;
        }
        let Some(name) = admit(&topic.name) else { return false };
        topic.is_admitted = true;
        if !Arc::ptr_eq(&topic.name, &name) {
            topic.name = name.clone();
            // The old key is removed first, because an equal key would remain. So memory has one
            // copy, not two.
            self.by_name.remove(&name);
            self.by_name.insert(name, id.0);
        }
        true
    }

    /// Adds `subscription` to those that are served for `selector` at `stage`.
    pub fn add(
        &mut self,
        selector: &TopicSelector,
        stage: Stage,
        subscription: SubscriptionId,
        filter: Option<Filter>,
    ) {
        let audience = match selector {
            TopicSelector::Name(name) => {
                let id = self.intern(name);
                let audience = &mut self.topics[id.0 as usize].audience;
                self.unpinned_count -= usize::from(audience.is_empty());
                audience
            }
            TopicSelector::Pattern(pattern) => {
                let group = self.group(pattern);
                &mut self.groups[group as usize].audience
            }
        };
        audience.insert(stage, subscription, filter);
        self.persisted_count += usize::from(stage == Stage::Persisted);
    }

    /// Whether [`LINKS_MAX`] allows a subscription to `selector`.
    pub fn prepare(&mut self, selector: &TopicSelector) -> Result<(), TooManyLinks> {
        let count = |table: &Self| match selector {
            TopicSelector::Name(_) => table.groups.len(),
            TopicSelector::Pattern(pattern) if table.by_pattern.contains_key(pattern.text()) => 0,
            TopicSelector::Pattern(_) => table.topics.len(),
        };
        if self.link_count + count(self) > LINKS_MAX {
            self.forget_unpinned();
        }
        if self.link_count + count(self) > LINKS_MAX { Err(TooManyLinks) } else { Ok(()) }
    }

    /// Undoes [`TopicTable::add`] with the same arguments.
    pub fn remove(&mut self, selector: &TopicSelector, stage: Stage, subscription: SubscriptionId) {
        self.persisted_count -= usize::from(stage == Stage::Persisted);
        match selector {
            TopicSelector::Name(name) => {
                let id = self.intern(name);
                let audience = &mut self.topics[id.0 as usize].audience;
                audience.remove(stage, subscription);
                self.unpinned_count += usize::from(audience.is_empty());
            }
            TopicSelector::Pattern(pattern) => {
                let Some(&id) = self.by_pattern.get(pattern.text()) else { return };
                let audience = &mut self.groups[id as usize].audience;
                audience.remove(stage, subscription);
                if audience.is_empty() {
                    self.forget_group(id);
                }
            }
        }
    }

    /// Calls `serve` with every subscription that gets this message at `stage`, and with every
    /// subscription whose filter could not be evaluated within `effort`. Returns the used effort.
    pub fn for_each_decision(
        &mut self,
        id: TopicId,
        stage: Stage,
        message: &MessageContext<'_>,
        effort: u64,
        mut serve: impl FnMut(SubscriptionId, Decision),
    ) -> u64 {
        let topic = &mut self.topics[id.0 as usize];
        let arena = &mut self.arena;
        arena.allow(effort);
        topic.audience.for_each_decision(stage, message, arena, &mut serve);
        for &group in &topic.patterns {
            self.groups[group as usize].audience.for_each_decision(stage, message, arena, &mut serve);
        }
        effort - arena.effort_left()
    }

    /// Whether any subscription can receive a message of this topic at `stage`.
    #[inline]
    pub fn has_audience(&self, id: TopicId, stage: Stage) -> bool {
        let topic = &self.topics[id.0 as usize];
        topic.audience.count(stage) > 0
            || topic.patterns.iter().any(|&group| self.groups[group as usize].audience.count(stage) > 0)
    }

    fn group(&mut self, pattern: &TopicPattern) -> u32 {
        if let Some(&id) = self.by_pattern.get(pattern.text()) {
            return id;
        }
        let group = PatternGroup { pattern: pattern.clone(), audience: Audience::default() };
        let id = self.groups.insert(group) as u32;
        self.by_pattern.insert(pattern.text().into(), id);
        self.pattern_index.insert(pattern.prefix(), id);
        for topic in topics_below(&self.by_name, pattern.prefix()) {
            let topic = &mut self.topics[topic as usize];
            if pattern.matches(&topic.name) {
                topic.patterns.push(id);
                self.link_count += 1;
            }
        }
        id
    }

    fn forget_group(&mut self, id: u32) {
        let group = self.groups.remove(id as usize);
        self.by_pattern.remove(group.pattern.text());
        self.pattern_index.remove(group.pattern.prefix(), id);
        for topic in topics_below(&self.by_name, group.pattern.prefix()) {
            let topic = &mut self.topics[topic as usize];
            let before = topic.patterns.len();
            topic.patterns.retain(|&other| other != id);
            self.link_count -= before - topic.patterns.len();
        }
    }

    /// Removes every topic that no subscription names.
    pub fn forget_unpinned(&mut self) {
        let (by_name, link_count) = (&mut self.by_name, &mut self.link_count);
        self.topics.retain(|_, topic| {
            let pinned = !topic.audience.is_empty();
            if !pinned {
                by_name.remove(&topic.name);
                *link_count -= topic.patterns.len();
            }
            pinned
        });
        self.unpinned_count = 0;
        self.generation += 1;
    }
}

/// The queues that the messages of a topic enter.
fn queues_of(routes: &[Option<QueueRoute>], topic: &str, recording: &Recording) -> Box<[QueueId]> {
    let takes =
        |route: &Option<QueueRoute>| route.as_ref().is_some_and(|route| route.takes(topic, recording));
    let entered = routes.iter().enumerate().filter(|(_, route)| takes(route));
    entered.map(|(queue, _)| QueueId::new(queue as u32)).collect()
}

/// The topics whose names begin with `prefix`.
fn topics_below<'a>(by_name: &'a BTreeMap<Arc<str>, u32>, prefix: &'a str) -> impl Iterator<Item = u32> + 'a {
    let from = (Bound::Included(prefix), Bound::Unbounded);
    by_name.range::<str, _>(from).take_while(move |(name, _)| name.starts_with(prefix)).map(|(_, id)| *id)
}

impl Audience {
    fn subscription_count(&self) -> usize {
        self.published_count as usize + self.persisted_count as usize
    }

    #[inline]
    fn count(&self, stage: Stage) -> u32 {
        match stage {
            Stage::Published => self.published_count,
            Stage::Persisted => self.persisted_count,
        }
    }

    fn is_empty(&self) -> bool {
        self.published_count == 0 && self.persisted_count == 0
    }

    fn insert(&mut self, stage: Stage, subscription: SubscriptionId, filter: Option<Filter>) {
        let (index, count) = self.side(stage);
        index.insert(subscription, filter);
        *count += 1;
    }

    fn remove(&mut self, stage: Stage, subscription: SubscriptionId) {
        let (index, count) = self.side(stage);
        index.remove(subscription);
        *count -= 1;
    }

    fn for_each_decision(
        &mut self,
        stage: Stage,
        message: &MessageContext<'_>,
        arena: &mut Arena,
        serve: &mut impl FnMut(SubscriptionId, Decision),
    ) {
        let (index, count) = self.side(stage);
        if *count > 0 {
            index.for_each_decision(message, arena, serve);
        }
    }

    #[inline]
    fn side(&mut self, stage: Stage) -> (&mut SubscriptionIndex<SubscriptionId>, &mut u32) {
        match stage {
            Stage::Published => (&mut self.published, &mut self.published_count),
            Stage::Persisted => (&mut self.persisted, &mut self.persisted_count),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RecordedTopic;
    use quire_expression::filter::FilterOptions;

    /// The log records `orders` and `rooms/…`, and a container keeps the values of the latter.
    fn topics() -> TopicTable {
        let entry = |name: &str| RecordedTopic::new(name, "json");
        let rules = [entry("orders"), entry("^rooms/")];
        let rules = RecordingRule::compile(&rules, &FilterOptions::default()).unwrap();
        let pattern = TopicPattern::new("^rooms/").unwrap();
        let container = ContainerRoute { name: "rooms".into(), message_type: MessageType::Json, pattern };
        let routes = TableRoutes { containers: vec![container], ..TableRoutes::default() };
        TopicTable::new(rules, Vec::new(), routes, Arena::default())
    }

    fn kind_of(topics: &mut TopicTable, name: &str) -> (TopicKind, bool) {
        let topic = topics.intern(name);
        (topics.topic(topic).kind(), topics.topic(topic).takes_plain())
    }

    #[test]
    fn a_topic_has_the_kind_of_the_queue_that_has_its_name() {
        let mut topics = topics();
        let route = QueueRoute {
            name: "orders".into(),
            message_type: MessageType::Json,
            selector: TopicSelector::new("orders").unwrap(),
            publish_target: "orders".into(),
            file_backed: false,
        };
        assert_eq!(kind_of(&mut topics, "orders"), (TopicKind::Plain, true));
        // A subscription keeps the topic in the table meanwhile.
        let selector = TopicSelector::new("orders").unwrap();
        topics.add(&selector, Stage::Published, SubscriptionId::default(), None);
        topics.set_route(QueueId::new(0), Some(route));
        assert_eq!(kind_of(&mut topics, "orders"), (TopicKind::Queue, true));
        topics.set_route(QueueId::new(0), None);
        assert_eq!(kind_of(&mut topics, "orders"), (TopicKind::Plain, true));
        assert_eq!(kind_of(&mut topics, "other"), (TopicKind::Plain, false));
    }

    #[test]
    fn a_topic_of_a_container_keeps_its_kind_without_a_table() {
        let mut topics = topics();
        assert_eq!(kind_of(&mut topics, "rooms/1"), (TopicKind::Table(None), false));
        topics.add_table(&"rooms/1".into(), TableId(3), MessageType::Json);
        assert_eq!(kind_of(&mut topics, "rooms/1"), (TopicKind::Table(Some(TableId(3))), false));
        topics.remove_table("rooms/1");
        assert_eq!(kind_of(&mut topics, "rooms/1"), (TopicKind::Table(None), false));
        assert_eq!(kind_of(&mut topics, "rooms"), (TopicKind::Plain, false));
    }

    #[test]
    fn a_topic_of_a_container_is_recorded_as_such_when_the_queue_of_its_name_is_dropped() {
        let mut topics = topics();
        topics.containers[0].message_type = MessageType::Fix;
        let selector = TopicSelector::new("rooms/1").unwrap();
        let route = QueueRoute {
            name: "rooms/1".into(),
            message_type: MessageType::Json,
            selector: selector.clone(),
            publish_target: "rooms/1".into(),
            file_backed: false,
        };
        topics.set_route(QueueId::new(0), Some(route));
        topics.add(&selector, Stage::Published, SubscriptionId::default(), None);
        let message_type = |topics: &mut TopicTable| {
            let topic = topics.intern("rooms/1");
            topics.topic(topic).recording.message_type
        };
        assert_eq!(message_type(&mut topics), MessageType::Json);
        topics.set_route(QueueId::new(0), None);
        assert_eq!(message_type(&mut topics), MessageType::Fix);
    }
}
