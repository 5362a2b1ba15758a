//! Last-value topics with a pattern: one entry of the configuration for all topics whose names
//! match (docs/last-values.md section 12).
//!
//! Such an entry is a *container*. A topic gets a table with its first message. A table without
//! records is removed when another topic needs room, and at a start. All tables of a container have
//! one snapshot file (`snapshots.rs`).

use std::sync::Arc;

use hashbrown::HashSet;
use quire_command::Code;
use quire_journal::Position;
use rustc_hash::FxBuildHasher;

use super::follow::Followers;
use super::{TableDefinition, TableState, Tables};
use crate::context::Context;
use crate::reply::Refused;
use crate::stats::{TableChanges, TableFigures};
use crate::subscription::{ServedBy, SubscriptionId};
use crate::topic::{ContainerId, TableId, TopicId};

/// A last-value topic with a pattern.
pub(super) struct Container {
    pub definition: TableDefinition,
    /// Its topics that have a table.
    pub tables: Vec<TableId>,
    /// The position up to which the newest snapshot includes the log, or more; 0: there is no
    /// snapshot.
    pub snapshot_position: Position,
    /// The changes of topics whose tables were removed.
    pub gone: TableChanges,
}

impl Container {
    pub fn new(definition: TableDefinition) -> Self {
        Container {
            definition,
            tables: Vec::new(),
            snapshot_position: Position::ZERO,
            gone: TableChanges::default(),
        }
    }
}

impl Tables {
    /// Creates a table for a topic of a container, when fewer than `count_max` topics of containers
    /// have one. A topic without a container, and a topic that has a table, are not changed.
    ///
    /// # Errors
    /// There is no room for another topic, or the log does not record it as the container requires.
    pub(crate) fn admit_topic(
        &mut self,
        cx: &mut Context,
        topic: TopicId,
        count_max: usize,
    ) -> Result<(), Refused> {
        let known = cx.topics.topic(topic);
        if known.table().is_some() {
            return Ok(());
        }
        let Some(container) = cx.topics.container_of(&known.name) else { return Ok(()) };
        let name = known.name.clone();
        // A check of all topics for each refused message would cost more than the message.
        if self.has_empty && self.pattern_topic_count() >= count_max {
            self.forget_empty(cx, false);
        }
        if self.pattern_topic_count() >= count_max {
            let reason = format!(
                "max_pattern_topics: {count_max} topics of sow_topics with a pattern have records, and {name:?} is a new one; \
                 delete the records of topics that are not used, or raise limits.max_pattern_topics of the server"
            );
            return Err(Refused::new(Code::LimitExceeded, reason));
        }
        self.make_table(cx, container, &name).map(drop).map_err(|reason| Refused::new(Code::BadTopic, reason))
    }

    fn pattern_topic_count(&self) -> usize {
        self.containers.iter().map(|container| container.tables.len()).sum()
    }

    /// Creates the table of a topic. The subscriptions to its name follow it from now on.
    ///
    /// # Errors
    /// The log does not record the topic as the container requires.
    pub(super) fn make_table(
        &mut self,
        cx: &mut Context,
        id: ContainerId,
        name: &Arc<str>,
    ) -> Result<TableId, String> {
        let container = &mut self.containers[id.0 as usize];
        let definition = container.definition.for_topic(cx.topics.rules(), name)?;
        let message_type = definition.message_type;
        let table = definition.new_table(&self.memory).map_err(|error| error.to_string())?;
        let state = TableState::new(definition, table, Some(id), container.snapshot_position);
        let table = self.place(state);
        self.containers[id.0 as usize].tables.push(table);
        self.keep_order(cx, table);
        // The message that needs the table can still be refused.
        self.has_empty = true;
        cx.topics.add_table(name, table, message_type);
        self.follow(cx, table, name);
        Ok(table)
    }

    /// Subscriptions whose topics include a new table see its records from the first one on.
    fn follow(&mut self, cx: &mut Context, table: TableId, name: &str) {
        let mut joining: Vec<SubscriptionId> = Vec::new();
        for (id, following) in &mut self.subscriptions {
            if cx
                .clients
                .subscriptions
                .get(*id)
                .is_some_and(|subscription| subscription.wanted.selector.matches(name))
            {
                following.tables.push(table);
                joining.push(*id);
            }
        }
        joining.sort_unstable();
        for id in joining {
            let subscription = &cx.clients.subscriptions.all[id];
            let state = &mut self.all[table.0 as usize];
            let Some(view) = self.views.get_mut(id) else { continue };
            if let Some(delta) = &mut view.delta {
                state.delta_count += 1;
                let select = subscription.wanted.select.as_ref();
                if let Some(select) = select.and_then(|select| select.of_topic(name)) {
                    delta.set_select(table, select.with_fields(&state.definition.key_fields));
                }
            }
            if subscription.served_by == ServedBy::Table {
                state.followers.add(id);
            } else if subscription.wanted.wants_oof() {
                state.watchers.push(id);
            }
        }
    }

    /// Removes the tables of topics of containers without records, unless a command reads the table
    /// or a large message waits for it. `keeps_deletes`: a table that remembers deletes stays, too.
    pub(super) fn forget_empty(&mut self, cx: &mut Context, keeps_deletes: bool) {
        let deleting = self.deleting_tables();
        self.has_empty = false;
        let mut gone: HashSet<TableId, FxBuildHasher> = HashSet::default();
        for container in &mut self.containers {
            container.tables.retain(|id| {
                let TableState { definition, table, followers, changes, .. } = &self.all[id.0 as usize];
                // A large message that is prepared for the topic shares its definition.
                let is_awaited = Arc::strong_count(definition) > 1;
                let is_read = table.is_empty()
                    && (table.stats().scans > 0
                        || deleting.contains(id)
                        || followers.has_pages()
                        || is_awaited
                        || keeps_deletes && table.stats().deletes > 0);
                let is_used = !table.is_empty() || is_read;
                self.has_empty |= is_read;
                if !is_used {
                    gone.insert(*id);
                    container.gone += *changes;
                }
                is_used
            });
        }
        for following in self.subscriptions.values_mut() {
            following.tables.retain(|id| !gone.contains(id));
        }
        let mut gone: Vec<TableId> = gone.into_iter().collect();
        gone.sort_unstable_by(|a, b| b.cmp(a));
        for id in &gone {
            let state = self.state(*id);
            state.is_free = true;
            state.watchers.clear();
            state.followers = Followers::default();
            state.delta_count = 0;
            let name = state.definition.name.clone();
            cx.topics.remove_table(&name);
        }
        self.free.extend(gone);
    }

    /// The figures of a container, by its name.
    pub(super) fn container_figures(&self, name: &str) -> Option<TableFigures> {
        let container = self.containers.iter().find(|container| *container.definition.name == *name)?;
        let definition = &container.definition;
        let mut topic_count = 0;
        let mut figures = TableFigures {
            record_count: 0,
            size: 0,
            memory_size: 0,
            made_index_count: 0,
            building_index_count: 0,
            changes: container.gone,
            key: definition.key.clone(),
            durability: definition.durability.name(),
            snapshot_position: container.snapshot_position.get(),
            pattern: definition.pattern.as_ref().map(|(text, _)| text.clone()),
            topic_count: None,
            underlying_topic: None,
            interval_ms: None,
            join: None,
            waiting_count: None,
            behind_ns: None,
            view: None,
            computation_count: 0,
            computation_size: 0,
        };
        for id in &container.tables {
            let state = &self.all[id.0 as usize];
            let stats = state.table.stats();
            figures.changes += state.changes;
            topic_count += u64::from(stats.rows > 0);
            figures.record_count += stats.rows as u64;
            figures.size += stats.rows_size as u64;
            figures.memory_size += stats.memory_size as u64;
            figures.made_index_count += stats.made_indexes as u64;
            figures.building_index_count += stats.building_indexes as u64;
        }
        Some(TableFigures { topic_count: Some(topic_count), ..figures })
    }
}
