//! The service of last-value topics: the records (`quire_table`) between the log and the
//! connections (docs/last-values.md).
//!
//! A [`Table`] has the newest message of each key. The intake puts a message into it after the
//! message was appended to the log, so the tables follow the newest appended state. The run loop
//! calls:
//!
//! - [`new`](Tables::new), [`recover`](Tables::recover): at the start.
//! - [`admit_topic`](Tables::admit_topic): for the first message of a topic.
//! - [`look_ahead`](Tables::look_ahead), [`prepare`](Tables::prepare), [`put`](Tables::put): for
//!   the next messages, for a message before it is appended to the log, and after it was appended.
//! - [`query`](Tables::query), [`begin_delete`](Tables::begin_delete): for commands of connections.
//! - [`enter`](Tables::enter) and [`begin`](Tables::begin), [`part`](Tables::part),
//!   [`end`](Tables::end): when subscriptions that have records in view begin, are replaced and end
//!   (`subscribe.rs`).
//! - [`forget_session`](Tables::forget_session), [`may_resume`](Tables::may_resume): when a
//!   connection ends, or takes data again.
//! - [`copy_next`](Tables::copy_next): once per turn, for the conflated topics (`conflated.rs`).
//! - [`derive_next`](Tables::derive_next), [`next_update`](Tables::next_update): once per turn, for
//!   the views (`derived.rs`).
//! - [`put_queued`](Tables::put_queued), [`remove_queued`](Tables::remove_queued),
//!   [`complete_queue`](Tables::complete_queue): for the messages of the queues that views read
//!   (`of_queue.rs`).
//! - [`compute_next`](Tables::compute_next): once per turn, for aggregated subscriptions
//!   (`aggregated.rs`).
//! - [`next_expired`](Tables::next_expired), [`next_portion`](Tables::next_portion),
//!   [`remove`](Tables::remove), [`serve`](Tables::serve), [`next_timeout`](Tables::next_timeout):
//!   once per turn.
//!
//! A query is a scan of a table in portions between other work (`scan.rs`). A delete by filter is a
//! scan that collects keys (`delete.rs`). A page, and a conflated subscription with `oof`, receive
//! their changes from this service (`follow.rs`). A subscription that is replaced receives the
//! difference between its two views (`replace.rs`), or between two pages (`turned_page.rs`). The
//! service appends nothing to the log, because the sequence of a delete belongs to its publisher.
//! The run loop appends the records of deletes, and sends the messages about records that leave the
//! view of a subscription (`view.rs`).

mod aggregate;
mod aggregated;
mod change;
mod conflated;
mod container;
mod delete;
mod derived;
mod follow;
mod history;
mod large;
mod late;
mod look_ahead;
mod of_queue;
mod past_view;
mod plan;
mod prepare;
mod recover;
mod redefine;
mod replace;
mod scan;
mod snapshot_file;
mod snapshots;
mod subscribe;
mod turned_page;
mod view;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use crate::unreadable::UnreadableLog;
use hashbrown::HashMap;
use quire_command::{MessageKind, OofReason};
use quire_expression::message_type::Arena;
use quire_journal::{Cursor, Headers, Journal, JournalError, Memory, Position, Record, Timestamp};
use quire_table::{
    KeyChange, KeyPlace, Moment, PageId, PutOptions, Row, RowEntries, RowError, Spelling, Table,
    TableConfigError,
};
use quire_types::time::{Instant, Now};
use rustc_hash::FxBuildHasher;

use crate::config::tables::{TableDefinition, TableDurability, TableMemory};
use crate::context::Context;
use crate::events::EventTopic;
use crate::io::Event;
use crate::paged::PagedMemory;
use crate::session::SessionId;
use crate::stats::{Page, TableChanges, TableFigures, TopicStats};
use crate::subscription::{Begun, Replaced, SowViews, SubscriptionId, UNRECORDED_BEGIN};
use crate::tail::{Consumed, LogConsumer};
use crate::topic::{ContainerId, ContainerRoute, TableId, TableRoutes, TopicId};
use aggregated::{ComputationId, Computations};
use change::RowChange;
use conflated::Conflated;
pub(crate) use conflated::Copied;
use container::Container;
use delete::RefusedDelete;
pub(crate) use delete::{DeleteDone, Portion};
use derived::Derived;
pub(crate) use derived::Update;
use follow::Followers;
pub(crate) use history::AskedState;
pub(crate) use large::{Outcome, Preparation, TURN_SIZE_MAX};
use late::NewSequences;
use look_ahead::LookAhead;
use of_queue::QueueTables;
use plan::RecordsPlan;
pub(crate) use prepare::{Arriving, Prepared};
use redefine::Redefining;
pub(crate) use redefine::ReplacedViews;
pub(crate) use replace::{FormerView, PENDING_CHANGES_MAX};
use scan::{Scan, Scanning};
pub use snapshot_file::{MakePart, SnapshotPart, SnapshotParts, SnapshotSteps};
use snapshots::Snapshots;
pub(crate) use subscribe::ViewPlan;
pub(crate) use view::Left;

/// The resolution of lifetimes: an expired record is removed at the latest after this time.
const EXPIRY_RESOLUTION: Duration = Duration::from_millis(100);

/// The most deletes that a topic with replication remembers, and the most of a topic of a pattern,
/// because there can be many of them. A delete takes about 150 bytes and its key.
const DELETES_MAX: usize = 100_000;
const PATTERN_DELETES_MAX: usize = 1_000;

/// The last-value topics of one broker.
pub(crate) struct Tables {
    all: Vec<TableState>,
    containers: Vec<Container>,
    /// Places of `all` whose topics were removed.
    free: Vec<TableId>,
    /// A topic of a container may no longer have records.
    has_empty: bool,
    /// The time when the next record of each topic expires.
    expiring: BTreeSet<(Timestamp, TableId)>,
    /// Queries, and subscriptions that get their records.
    scanning: Scanning,
    /// The topics that build an index.
    building: VecDeque<TableId>,
    snapshots: Snapshots,
    /// For the topics whose records can be paged out.
    memory: TableMemory,
    /// A cursor at the end of the oldest snapshot. Files from a cursor on are not removed.
    pin: Option<Cursor>,
    /// Deletes that are not done yet, by the session that waits for them.
    deleting: BTreeMap<SessionId, delete::Delete>,
    /// Queries that wait for the search of their bookmarks, by the session that waits for them.
    finding: BTreeMap<SessionId, history::Finding>,
    /// Deletes that ended early, and whose sequences must be recorded.
    refused: Vec<RefusedDelete>,
    /// Each subscription that has records in view.
    subscriptions: HashMap<SubscriptionId, Following, FxBuildHasher>,
    views: SowViews,
    /// The subscriptions whose view the last record left.
    leaving: Vec<SubscriptionId>,
    /// Memory that a thread frees.
    discarded: Vec<Box<dyn Send>>,
    /// The time of the last search for expired records.
    expired_at: Option<Instant>,
    unrecorded_count: u64,
    derived: Derived,
    redefining: Redefining,
    conflated: Conflated,
    computations: Computations,
    queue_tables: QueueTables,
    /// Of last-value topics with replication.
    new_sequences: NewSequences,
    ahead: LookAhead,
    arena: Arena,
}

/// One last-value topic.
struct TableState {
    definition: Arc<TableDefinition>,
    /// The container of the topic; `None`: the topic has a separate entry in the configuration.
    container: Option<ContainerId>,
    /// The topic no longer has a table, and another topic may use this place.
    is_free: bool,
    table: Table,
    /// Its entry in `expiring`.
    next_expiry: Option<Timestamp>,
    /// The subscriptions that receive a message when a record leaves their view.
    watchers: Vec<SubscriptionId>,
    followers: Followers,
    /// The views of the topic, as the places of `derived`.
    views: Vec<usize>,
    /// The conflated topics that copy the topic, as the places of `conflated`.
    copies: Vec<usize>,
    /// The computations of aggregated subscriptions to the topic.
    computations: Vec<ComputationId>,
    /// The number of delta subscriptions.
    delta_count: usize,
    /// It was logged that a message has no value for a field of the key.
    has_logged_missing: bool,
    /// It was logged that deletes were forgotten.
    has_logged_forgotten: bool,
    /// Whether a destination gets messages of the topic; `None`: not known yet.
    is_sent: Option<bool>,
    /// It has a snapshot file: it is persistent, or a view of such topics.
    has_file: bool,
    /// The position up to which the newest snapshot includes the log; 0: there is no snapshot.
    snapshot_position: Position,
    /// At a start: the number of the snapshots of the same instant.
    snapshot_together: u64,
    changes: TableChanges,
}

/// A subscription that has records in view.
struct Following {
    tables: Vec<TableId>,
    is_delta: bool,
    /// The newest page of the subscription. It may still read the records, while an older page is
    /// in effect.
    page: Option<(TableId, PageId)>,
    /// Of an aggregated subscription.
    computation: Option<ComputationId>,
}

/// A message that becomes a record.
pub(crate) struct NewRow<'a> {
    pub key: &'a [u8],
    /// `None`: the log does not record the message.
    pub position: Option<Position>,
    /// Its publisher and sequence, when the log records it.
    pub bookmark: Option<(u64, u64)>,
    pub timestamp: Timestamp,
    /// Its order among the changes of the key on all instances; `None` without replication.
    pub change: Option<KeyChange<'a>>,
    /// It is from another instance, so the record of the key may be newer.
    pub may_be_older: bool,
    /// The time by the clock. The timestamp is later when the clock was set back.
    pub received: Timestamp,
    pub expiration_s: Option<u32>,
    pub correlation_id: &'a [u8],
    pub headers: Headers<'a>,
    pub data: &'a [u8],
}

/// The effect of a message on the record of its key.
pub(crate) enum Put {
    /// It is the record now. The replaced record, when a delta subscription follows the topic.
    Newest(Option<Replaced>),
    /// The record, or a delete of the key, is newer.
    Older,
}

/// The last-value topic that a message has a key of.
#[derive(Clone, Copy)]
pub(crate) struct Keyed<'a> {
    pub table: TableId,
    /// When the key was made from the data that is stored ([`Prepared::spelling`]).
    pub spelling: Option<Spelling>,
    /// The probable place of the record of the key ([`Prepared::place`]).
    pub place: Option<KeyPlace>,
    /// Its entries in the indexes, when they are known ([`Prepared::entries`]).
    pub entries: Option<&'a RowEntries>,
}

impl Keyed<'_> {
    /// A key that was not generated just now.
    pub(crate) fn of(table: TableId) -> Self {
        Keyed { table, spelling: None, place: None, entries: None }
    }
}

impl Tables {
    pub(crate) fn new(
        definitions: Vec<TableDefinition>,
        replaced: ReplacedViews,
        journal: &Journal,
        unreadable: &UnreadableLog,
    ) -> Result<Self, TableConfigError> {
        let mut memory = TableMemory { paged: PagedMemory::default(), heap: Memory::heap_in_pieces() };
        if definitions.iter().any(|definition| definition.file_backed) {
            memory.paged.open(journal);
        }
        let (containers, topics): (Vec<_>, Vec<_>) =
            definitions.into_iter().partition(|definition| definition.pattern.is_some());
        let all = topics.into_iter().map(|definition| {
            let table = definition.new_table(&memory)?;
            Ok(TableState::new(definition, table, None, Position::ZERO))
        });
        let mut all: Vec<_> = all.collect::<Result<_, _>>()?;
        let derived = Derived::new(&mut all);
        Ok(Tables {
            snapshots: Snapshots::new(journal, &all, &derived),
            derived,
            redefining: Redefining::new(replaced),
            conflated: Conflated::new(&mut all),
            computations: Computations::default(),
            queue_tables: QueueTables::default(),
            new_sequences: NewSequences::default(),
            all,
            containers: containers.into_iter().map(Container::new).collect(),
            free: Vec::new(),
            has_empty: false,
            expiring: BTreeSet::new(),
            scanning: Scanning::default(),
            building: VecDeque::new(),
            memory,
            pin: None,
            deleting: BTreeMap::new(),
            finding: BTreeMap::new(),
            refused: Vec::new(),
            subscriptions: HashMap::default(),
            views: SowViews::default(),
            leaving: Vec::new(),
            discarded: Vec::new(),
            expired_at: None,
            unrecorded_count: 0,
            ahead: LookAhead::default(),
            arena: unreadable.arena(),
        })
    }

    /// The topics of the definitions, for the table of topics.
    pub(crate) fn routes(definitions: &[TableDefinition]) -> TableRoutes {
        let topics = definitions.iter().filter(|definition| definition.pattern.is_none());
        let numbered = (0..).map(TableId).zip(topics);
        let (of_queues, numbered): (Vec<_>, Vec<_>) = numbered.partition(|(_, table)| table.is_of_queue);
        let computed = definitions.iter().filter(|definition| definition.is_computed());
        let container = |definition: &TableDefinition| {
            let (_, pattern) = definition.pattern.clone()?;
            Some(ContainerRoute {
                name: definition.name.clone(),
                message_type: definition.message_type,
                pattern,
            })
        };
        TableRoutes {
            computed: computed.map(|definition| definition.name.clone()).collect(),
            tables: numbered
                .into_iter()
                .map(|(id, table)| (table.name.clone(), (id, table.message_type)))
                .collect(),
            of_queues: of_queues.into_iter().map(|(id, table)| (table.name.clone(), id)).collect(),
            containers: definitions.iter().filter_map(container).collect(),
        }
    }

    /// A place for a new table.
    fn place(&mut self, state: TableState) -> TableId {
        match self.free.pop() {
            Some(free) => {
                self.all[free.0 as usize] = state;
                free
            }
            None => {
                self.all.push(state);
                TableId(self.all.len() as u32 - 1)
            }
        }
    }

    /// The place of a table without readers is free again.
    fn clear_place(&mut self, id: TableId) {
        let state = self.state(id);
        state.is_free = true;
        state.followers = Followers::default();
        if let Ok(empty) = Table::new(state.definition.config.clone(), &Memory::heap()) {
            let table = std::mem::replace(&mut state.table, empty);
            self.discard(table);
        }
        self.free.push(id);
    }

    /// A thread frees the memory of groups, or of a table. To free millions of them takes longer
    /// than a portion of the work of a turn.
    fn discard(&mut self, memory: impl Send + 'static) {
        self.discarded.push(Box::new(memory));
    }

    /// The current instant, as the beginning of a subscription.
    fn begun(&self, cx: &Context) -> Begun {
        Begun {
            time: cx.clock.now.wall,
            recorded: cx.log.appended(),
            unrecorded: Position::new(UNRECORDED_BEGIN + self.unrecorded_count),
        }
    }

    /// Whether a snapshot waits until no change waits for the views.
    pub(crate) fn is_settling(&self) -> bool {
        self.snapshots.is_settling()
    }

    /// Whether there are last-value topics.
    pub(crate) fn any(&self) -> bool {
        !self.all.is_empty() || !self.containers.is_empty()
    }

    /// Updates the time when the next record of a topic expires, after a change of the topic.
    fn note_expiry(&mut self, id: TableId) {
        let TableState { table, next_expiry: noted, .. } = &mut self.all[id.0 as usize];
        let next = table.next_expiry();
        if next != *noted {
            noted.take().map(|at| self.expiring.remove(&(at, id)));
            next.map(|at| self.expiring.insert((at, id)));
            *noted = next;
        }
    }

    fn state(&mut self, id: TableId) -> &mut TableState {
        &mut self.all[id.0 as usize]
    }

    /// A message becomes the record of its key. Finds the subscriptions whose view the record
    /// leaves, because their filters matched the previous record and do not match the message.
    /// [`Tables::leaving`] returns them.
    pub(crate) fn put(&mut self, cx: &mut Context, keyed: Keyed<'_>, new: &NewRow<'_>) -> Put {
        let id = keyed.table;
        let mut change = new.change;
        if new.may_be_older
            && let Some(arrived) = change
        {
            change = self.place_late(cx, id, new.key, arrived);
            if change.is_none_or(|change| !self.state(id).table.admits(new.key, &change)) {
                return Put::Older;
            }
        }
        if let (Some(position), Some((_, sequence)), Some(_)) = (new.position, new.bookmark, change) {
            self.new_sequences.add(position, sequence, cx.log.journal.persisted());
        }
        let position = new.position.unwrap_or_else(|| {
            self.unrecorded_count += 1;
            Position::new(UNRECORDED_BEGIN + self.unrecorded_count)
        });
        let state = self.state(id);
        let row = Row {
            key: new.key,
            position,
            timestamp: new.timestamp,
            stamp: None,
            expires: state.definition.expiration.end_of(new.received, new.expiration_s),
            correlation_id: new.correlation_id,
            headers: new.headers,
            data: new.data,
        };
        let Keyed { spelling, place, entries, .. } = keyed;
        let options = PutOptions { place, spelling, entries, keeps_previous: state.reads_previous(), change };
        let is_new = match state.table.put_with(&row, options) {
            Ok(is_new) => is_new,
            // The intake has checked the message. A record that cannot be stored must not end the
            // server.
            Err(error) => {
                cx.note(unkept(&state.definition, position, &error));
                return Put::Newest(None);
            }
        };
        match is_new {
            true => state.changes.inserts += 1,
            false => state.changes.updates += 1,
        }
        let replaced = if is_new { None } else { self.replaced(id) };
        let (reason, timestamp) = (OofReason::Match, new.timestamp);
        self.changed(cx, id, RowChange { new: Some(&row), bookmark: new.bookmark, reason, timestamp });
        Put::Newest(replaced)
    }

    /// Removes a record, and returns the message for its subscriptions; `None` when there is no
    /// such record, or when it is newer than the delete. `change`: as [`NewRow::change`].
    pub(crate) fn remove(
        &mut self,
        cx: &mut Context,
        id: TableId,
        key: &[u8],
        change: Option<&KeyChange<'_>>,
    ) -> Option<Left<'_>> {
        let at = Moment { position: cx.log.appended(), timestamp: cx.log.stamp(cx.clock.now.wall) };
        let placed = change.map(|change| self.place_late(cx, id, key, *change));
        let table = &mut self.state(id).table;
        let is_removed = match placed {
            Some(Some(change)) if table.admits(key, &change) => table.delete(key, at, &change),
            Some(_) => false,
            None => table.remove(key, at),
        };
        self.note_forgotten(cx, id);
        if !is_removed {
            return None;
        }
        self.state(id).changes.deletes += 1;
        self.left(cx, id, OofReason::Deleted, cx.clock.now.wall)
    }

    /// Removes a record whose lifetime is over, and returns the message for its subscriptions;
    /// `None` when there is no such record.
    pub(crate) fn next_expired(&mut self, cx: &mut Context) -> Option<Left<'_>> {
        let now = cx.clock.now.wall;
        let due = self.expiring.first().filter(|(at, _)| *at <= now).map(|(_, id)| *id);
        let Some(id) = due.filter(|id| self.state(*id).table.pop_expired(now)) else {
            self.expired_at = Some(cx.clock.now.instant);
            return None;
        };
        self.note_forgotten(cx, id);
        self.state(id).changes.expiries += 1;
        let ended = self.state(id).table.previous().and_then(|row| row.expires).unwrap_or(now);
        self.left(cx, id, OofReason::Expired, ended)
    }

    /// The time of the stamp of a change of keys that is made here. `sends`: whether a destination
    /// gets messages of the topic.
    pub(crate) fn next_stamp<'k>(
        &mut self,
        id: TableId,
        keys: impl Iterator<Item = &'k [u8]>,
        time: Timestamp,
        sends: impl FnOnce() -> bool,
    ) -> Timestamp {
        let state = self.state(id);
        let is_sent = *state.is_sent.get_or_insert_with(sends);
        keys.fold(time, |time, key| state.table.next_stamp(key, time, is_sent))
    }

    /// From now on, a new table compares the changes of a key by their stamps, if the server has
    /// replication.
    fn keep_order(&mut self, cx: &Context, id: TableId) {
        let state = self.state(id);
        let deletes_max = if state.container.is_some() { PATTERN_DELETES_MAX } else { DELETES_MAX };
        if state.definition.is_computed() || state.definition.is_of_queue {
            return;
        }
        // The log or a snapshot may be of a server that had replication before.
        if cx.log.has_links || state.table.keeps_order() {
            state.table.keep_order(&cx.config.name, deletes_max);
        }
    }

    /// Reports the number of records of each last-value topic.
    pub(crate) fn tell_stats(&self, cx: &mut Context) {
        if !cx.wants_event(EventTopic::SowStats) {
            return;
        }
        let is_told = |state: &&TableState| {
            !state.is_free && !state.definition.is_of_queue && state.definition.view.is_none()
        };
        for state in self.all.iter().filter(is_told) {
            let TableDefinition { name, message_type, .. } = &*state.definition;
            cx.tell_sow_stats(name, *message_type, state.table.stats().rows as u64);
        }
    }

    /// Reports once for each topic that deletes were forgotten.
    fn note_forgotten(&mut self, cx: &mut Context, id: TableId) {
        let state = self.state(id);
        if !state.has_logged_forgotten && state.table.has_forgotten() {
            state.has_logged_forgotten = true;
            cx.note(Event::DeletesForgotten { topic: state.definition.name.to_string() });
        }
    }

    /// The last change removed a record.
    fn left(
        &mut self,
        cx: &mut Context,
        id: TableId,
        reason: OofReason,
        timestamp: Timestamp,
    ) -> Option<Left<'_>> {
        let state = &self.all[id.0 as usize];
        if let Some(row) = state.table.previous() {
            let TableDefinition { name, message_type, .. } = &*state.definition;
            cx.tell_left(name, *message_type, &row, reason, timestamp);
        }
        self.changed(cx, id, RowChange { new: None, bookmark: None, reason, timestamp });
        self.left_of_previous(id, MessageKind::Oof(reason), timestamp)
    }

    /// The next time when a record expires, at the resolution of lifetimes, when the snapshots must
    /// be checked, or when a conflated topic copies.
    pub(crate) fn next_timeout(&self, now: Now) -> Option<Instant> {
        let next = self.expiring.first().map(|(next, _)| {
            let left = Duration::from_nanos(next.as_ns().saturating_sub(now.wall.as_ns()));
            let earliest = self.expired_at.map_or(now.instant, |at| at + EXPIRY_RESOLUTION);
            (now.instant + left).max(earliest)
        });
        next.into_iter().chain(self.snapshot_due()).chain(self.conflated.next_due()).min()
    }

    /// Adds the figures of last-value topics to a list of topics.
    pub(crate) fn describe(&self, cx: &Context, page: &mut Page<TopicStats>) {
        for topic in &mut page.items {
            let figures = cx.topics.table(&topic.topic).map(|id| {
                let mut figures = self.all[id.0 as usize].figures();
                figures.waiting_count = self.conflated.waiting_count(id);
                (figures.computation_count, figures.computation_size) = self.computations.figures(id);
                self.describe_view(cx, id, &mut figures);
                figures
            });
            topic.last_values = figures.or_else(|| self.container_figures(&topic.topic));
        }
    }
}

/// A message that cannot be the record of its key.
fn unkept(definition: &TableDefinition, position: Position, error: &RowError) -> Event {
    let (topic, reason) = (definition.name.to_string(), error.to_string());
    Event::RecordNotKept { topic, position: position.get(), reason }
}

impl LogConsumer for Tables {
    /// The intake puts messages into the tables.
    fn is_following(&self, _: &Context) -> bool {
        false
    }

    fn on_record(&mut self, _: &mut Context, _: TopicId, _: &Record<'_>) -> Consumed {
        Consumed::default()
    }

    fn on_unreadable(&mut self, _: &mut Context, _: Position, _: &JournalError) {}

    /// A topic needs the log after its newest snapshot. In this process, a cursor retains the
    /// journal files. For other processes, the sidecar files retain them.
    fn needed_from(&self, cx: &Context) -> Option<Position> {
        self.first_needed(cx)
    }
}

impl TableState {
    fn new(
        definition: TableDefinition,
        table: Table,
        container: Option<ContainerId>,
        snapshot_position: Position,
    ) -> Self {
        TableState {
            has_file: container.is_none() && definition.is_persistent(),
            definition: Arc::new(definition),
            container,
            is_free: false,
            table,
            next_expiry: None,
            watchers: Vec::new(),
            followers: Followers::default(),
            views: Vec::new(),
            copies: Vec::new(),
            computations: Vec::new(),
            delta_count: 0,
            has_logged_missing: false,
            has_logged_forgotten: false,
            is_sent: None,
            snapshot_position,
            snapshot_together: 0,
            changes: TableChanges::default(),
        }
    }

    /// Whether a service reads the record that a message replaces: subscriptions with `oof`, pages,
    /// delta subscriptions, views, and aggregated subscriptions.
    fn reads_previous(&self) -> bool {
        self.delta_count > 0
            || !self.watchers.is_empty()
            || !self.followers.is_empty()
            || !self.views.is_empty()
            || !self.computations.is_empty()
    }

    fn figures(&self) -> TableFigures {
        let (stats, view) = (self.table.stats(), self.definition.view.as_deref());
        let join = view.map(|view| &view.settings.join).filter(|join| !join.is_empty());
        TableFigures {
            record_count: stats.rows as u64,
            size: stats.rows_size as u64,
            memory_size: stats.memory_size as u64,
            made_index_count: stats.made_indexes as u64,
            building_index_count: stats.building_indexes as u64,
            changes: self.changes,
            key: self.definition.key.clone(),
            durability: self.definition.durability.name(),
            snapshot_position: self.snapshot_position.get(),
            pattern: None,
            topic_count: None,
            underlying_topic: self.definition.source().filter(|_| join.is_none()).map(str::to_owned),
            interval_ms: self.definition.conflated.as_ref().map(|it| it.interval.as_millis() as u64),
            join: join.cloned(),
            waiting_count: None,
            behind_ns: None,
            view: None,
            computation_count: 0,
            computation_size: 0,
        }
    }
}
