//! Aggregated subscriptions: records of groups that follow the changes of a last-value topic
//! (docs/last-values.md, "Aggregated subscriptions").
//!
//! A *computation* has the groups, and a table with a record for each group. The table is not a
//! topic. Subscriptions that want the same share one computation: it begins with the first of them,
//! and ends with the last one. To their scans and followers its table is a table as every other.
//!
//! A computation first reads the records of its topic, in portions between other work. It is ready
//! when each group has a record. Its subscriptions then receive these records. The changes of the
//! topic after the begin wait meanwhile. A phase of the turn works them off
//! ([`Tables::compute_next`]).

use std::collections::VecDeque;
use std::sync::Arc;

use quire_command::Code;
use quire_command::subscribe::GroupsWanted;
use quire_expression::filter::{Filter, Projection};
use quire_expression::message_type::{Arena, AssignError};
use quire_expression::select::Select;
use quire_expression::topic::TopicSelector;
use quire_journal::{Headers, Timestamp};
use quire_table::{
    GroupId, GroupWalk, Groups, GroupsConfig, Polled, Query, Row, RowChange, ScanId, Table, Written,
};

use super::aggregate::refusal;
use super::change::Change;
use super::plan::RecordsPlan;
use super::scan::{EFFORT, Scan, Step};
use super::view::{VIEW_EFFORT_MAX, context_of_row};
use super::{Keyed, NewRow, TableDefinition, TableState, Tables};
use crate::context::Context;
use crate::entitlement::Grant;
use crate::reply::{Refused, not_last_value};
use crate::session::SessionId;
use crate::subscription::{KeySet, SubscriptionId};
use crate::topic::TableId;

/// The most computations of a server. Each change of a topic is work for all computations of the
/// topic.
const COMPUTATIONS_MAX: usize = 256;

/// The most aggregated subscriptions of one connection.
const PER_SESSION_MAX: usize = 64;

/// All computations together may have this many times the bytes of one.
const SIZE_FACTOR: usize = 8;

/// Bytes of the table for each record, in addition to its message.
const RECORD_SIZE: usize = 128;

/// The computations of one broker.
#[derive(Default)]
pub(super) struct Computations {
    all: Vec<Option<Computation>>,
    /// Of all of them.
    size: usize,
    /// The computation that has the next portion.
    next: usize,
}

/// The place of a computation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ComputationId(usize);

/// The groups of an aggregated subscription. Subscriptions with equal ones share a computation.
#[derive(Clone, PartialEq)]
pub(super) struct WantedGroups {
    source: TableId,
    projection: Vec<String>,
    grouping: Vec<String>,
    /// The projection with the values of functions about the client.
    canonical: String,
    /// Of the client and of its rights.
    filter: Option<Filter>,
    keys: Option<Vec<Box<[u8]>>>,
    /// The fields that its rights show, as text.
    visible: String,
}

/// An aggregated subscription that was understood.
pub(super) struct GroupsPlan {
    wanted: WantedGroups,
    projection: Projection,
    /// The fields that its rights show.
    visible: Option<Select>,
}

/// The groups of one or several subscriptions.
struct Computation {
    wanted: WantedGroups,
    visible: Option<Select>,
    keys: Option<KeySet>,
    groups: Groups,
    /// Has the records of the groups.
    table: TableId,
    stage: Stage,
    /// The changes of the topic that the groups do not have yet.
    pending: VecDeque<Arc<RowChange>>,
    pending_size: usize,
    records_size: usize,
    /// As the sum of all computations has it.
    size: usize,
    size_max: usize,
    users: Vec<(SubscriptionId, SessionId)>,
    /// Why it has ended. It does nothing until its subscriptions have left.
    ended: Option<Refused>,
}

/// The progress of a computation.
enum Stage {
    /// It reads the records of the topic.
    Reading(ScanId),
    /// It makes the records of these groups.
    Writing(GroupWalk),
    Ready,
}

/// A subscription that waits until its computation is ready.
pub(super) struct Awaiting {
    computation: ComputationId,
    plan: RecordsPlan,
}

/// Why a computation ends.
enum Failure {
    TooLarge,
    AllTooLarge,
    Unwritable(AssignError),
}

impl Computation {
    fn is_ready(&self) -> bool {
        matches!(self.stage, Stage::Ready)
    }

    /// The row, if it is one of those that are aggregated, with its visible fields. The time of an
    /// evaluation is that of the row, so that each evaluation has the same result.
    fn seen<'r>(
        &self,
        source: &TableDefinition,
        row: &'r Row<'_>,
        arena: &mut Arena,
        memory: &'r mut Vec<u8>,
    ) -> Option<Row<'r>> {
        if self.keys.as_ref().is_some_and(|keys| !keys.contains(row.key)) {
            return None;
        }
        if let Some(filter) = &self.wanted.filter {
            let context = context_of_row(&source.name, source.message_type, row, row.timestamp);
            arena.allow(VIEW_EFFORT_MAX);
            match filter.decide(&context, arena) {
                Some(true) => (),
                Some(false) => return None,
                None => {
                    context.report_costly(arena);
                    return None;
                }
            }
        }
        let data = match &self.visible {
            Some(visible) => visible.apply(Some(source.message_type), row.data, arena, memory),
            None => row.data,
        };
        // The rights hide the whole message.
        (!data.is_empty() || row.data.is_empty()).then_some(Row { data, ..*row })
    }

    /// Takes a change of the topic. Returns the groups that it touched.
    fn change(
        &mut self,
        source: &TableDefinition,
        (old, new): (Option<&Row<'_>>, Option<&Row<'_>>),
        at: Timestamp,
        arena: &mut Arena,
    ) -> impl IntoIterator<Item = GroupId> + use<> {
        let (mut old_memory, mut new_memory) = (Vec::new(), Vec::new());
        let old = old.and_then(|row| self.seen(source, row, arena, &mut old_memory));
        let new = new.and_then(|row| self.seen(source, row, arena, &mut new_memory));
        self.groups.change(old.as_ref(), new.as_ref(), at, arena)
    }

    /// Whether there is work for [`Tables::compute_next`].
    fn is_waiting(&self) -> bool {
        let is_full = !self.is_ready() && self.pending_size > self.size_max;
        self.ended.is_none() && (is_full || (self.is_ready() && !self.pending.is_empty()))
    }

    fn size_now(&self) -> usize {
        self.groups.memory_size() + self.records_size + self.pending_size
    }
}

impl Computations {
    fn get(&mut self, id: ComputationId) -> Option<&mut Computation> {
        self.all.get_mut(id.0)?.as_mut()
    }

    fn count(&self) -> usize {
        self.all.iter().flatten().count()
    }

    fn find(&self, wanted: &WantedGroups) -> Option<ComputationId> {
        let is_meant = |it: &Option<Computation>| {
            it.as_ref().is_some_and(|it| it.ended.is_none() && it.wanted == *wanted)
        };
        self.all.iter().position(is_meant).map(ComputationId)
    }

    /// A topic with computations has changed.
    #[cold]
    pub fn add(&mut self, ids: &[ComputationId], change: &Change<'_>, at: Timestamp) {
        let copy = Arc::new(RowChange::new(change.old.as_ref(), change.new, at));
        for id in ids {
            // Above the limit, the computation ends in the next turn.
            if let Some(computation) = self.get(*id)
                && computation.ended.is_none()
                && (computation.is_ready() || computation.pending_size <= computation.size_max)
            {
                computation.pending_size += copy.size();
                computation.pending.push_back(copy.clone());
            }
        }
    }

    /// The bytes of the changes that computations could work off.
    fn waiting_size(&self) -> usize {
        self.all.iter().flatten().filter(|it| it.is_ready()).map(|it| it.pending_size).sum()
    }

    /// The next computation that has work.
    fn next_waiting(&mut self) -> Option<ComputationId> {
        let count = self.all.len();
        let is_waiting = |it: &Option<Computation>| it.as_ref().is_some_and(Computation::is_waiting);
        let found =
            (0..count).map(|step| (self.next + step) % count).find(|at| is_waiting(&self.all[*at]))?;
        self.next = found + 1;
        Some(ComputationId(found))
    }

    /// Updates the sum of all sizes.
    fn check_size(&mut self, id: ComputationId) -> Result<(), Failure> {
        let Some(computation) = self.all[id.0].as_mut() else { return Ok(()) };
        let (size, size_max) = (computation.size_now(), computation.size_max);
        self.size = self.size - computation.size + size;
        computation.size = size;
        match size {
            size if size > size_max => Err(Failure::TooLarge),
            _ if self.size > size_max.saturating_mul(SIZE_FACTOR) => Err(Failure::AllTooLarge),
            _ => Ok(()),
        }
    }

    /// The figures of the computations of a topic: their number and their bytes.
    pub fn figures(&self, source: TableId) -> (u64, u64) {
        let all = self.all.iter().flatten().filter(|it| it.wanted.source == source);
        all.fold((0, 0), |(count, size), it| (count + 1, size + it.size_now() as u64))
    }
}

impl Tables {
    /// An aggregated subscription: the records of its groups, and how they are computed.
    ///
    /// # Errors
    /// Why it is refused.
    pub(super) fn plan_groups(
        &self,
        cx: &mut Context,
        id: SessionId,
        selector: &TopicSelector,
        wanted: &GroupsWanted<'_>,
        (filter, keys): (Option<&Filter>, Option<quire_command::Keys<'_>>),
        grant: &Grant,
    ) -> Result<GroupsPlan, Refused> {
        let bad = |reason: String| Err(Refused::new(Code::BadOption, reason));
        let TopicSelector::Name(name) = selector else {
            let text = selector.text();
            return bad(format!("projection: {text:?} is a pattern; name one last-value topic"));
        };
        let is_of_pattern = |id: &TableId| self.all[id.0 as usize].container.is_some();
        let Some(source) = cx.topics.table(name).filter(|id| !is_of_pattern(id)) else {
            if cx.topics.may_keep_values(selector) {
                return bad(format!(
                    "projection: {name:?} is a topic of a pattern; give it an entry of its own, or query it with sow"
                ));
            }
            return Err(not_last_value(name, cx.topics.is_container(name)));
        };
        let TableDefinition { message_type, .. } = &*self.all[source.0 as usize].definition;
        if !message_type.has_fields() {
            return bad(format!("projection: the messages on {name:?} have no fields"));
        }
        let options = cx.options_within(id, grant, name);
        let texts =
            |list: quire_command::Texts<'_>| -> Vec<String> { list.iter().map(str::to_owned).collect() };
        let (projection, grouping) =
            (texts(wanted.projection), wanted.grouping.map(texts).unwrap_or_default());
        let parsed = Projection::parse(&projection, &grouping, *message_type, &options);
        let parsed = match parsed {
            Ok(parsed) => parsed,
            Err(mistake) => return bad(refusal(&mistake, &projection)),
        };
        let visible = grant.visible_fields(name);
        let mut keys: Option<Vec<Box<[u8]>>> = keys.map(|keys| keys.iter().map(Box::from).collect());
        keys.iter_mut().for_each(|keys| keys.sort_unstable());
        let wanted = WantedGroups {
            source,
            projection,
            grouping,
            canonical: parsed.canonical(),
            filter: filter.cloned(),
            keys,
            visible: format!("{visible:?}"),
        };
        self.check_counts(id, &wanted)?;
        Ok(GroupsPlan { wanted, projection: parsed, visible })
    }

    fn check_counts(&self, id: SessionId, wanted: &WantedGroups) -> Result<(), Refused> {
        let limit = |reason: String| Err(Refused::new(Code::LimitExceeded, reason));
        let users = self.computations.all.iter().flatten().flat_map(|it| &it.users);
        if users.filter(|(_, session)| *session == id).count() >= PER_SESSION_MAX {
            return limit(format!(
                "projection: the connection has {PER_SESSION_MAX} subscriptions with projection, which is the limit"
            ));
        }
        if self.computations.find(wanted).is_none() && self.computations.count() >= COMPUTATIONS_MAX {
            return limit(format!(
                "projection: the server computes {COMPUTATIONS_MAX} different projections for subscriptions, which is the \
                 limit; configure a view"
            ));
        }
        Ok(())
    }

    /// A subscription uses the computation that it wants, which begins if there is none.
    pub(super) fn join_computation(
        &mut self,
        cx: &Context,
        (subscription, session): (SubscriptionId, SessionId),
        plan: GroupsPlan,
    ) -> Result<ComputationId, Refused> {
        let id = match self.computations.find(&plan.wanted) {
            Some(id) => id,
            None => self.begin_computation(cx, plan)?,
        };
        if let Some(computation) = self.computations.get(id) {
            computation.users.push((subscription, session));
        }
        Ok(id)
    }

    fn begin_computation(&mut self, cx: &Context, plan: GroupsPlan) -> Result<ComputationId, Refused> {
        let GroupsPlan { wanted, projection, visible } = plan;
        let source = wanted.source;
        let definition = self.all[source.0 as usize].definition.clone();
        let groups = Groups::new(GroupsConfig {
            source: (*definition.name).into(),
            source_type: definition.message_type,
            // The whole message is filtered before its hidden fields are removed.
            filter: None,
            projection: projection.clone(),
            key_domain: (*definition.name).into(),
        });
        let own = definition.of_groups(&projection, &wanted.grouping);
        let table = Table::new(own.config.clone(), &self.memory.heap)
            .map_err(|error| Refused::new(Code::Internal, error.to_string()))?;
        let table = self.place(TableState::new(own, table, None, quire_journal::Position::ZERO));
        let size_max = usize::try_from(cx.config.limits.max_query_copies).unwrap_or(usize::MAX);
        let query = Query { keys: wanted.keys.clone(), copies_size_max: size_max, ..Query::default() };
        // Rows whose lifetime is over are removed later, which is a change. So they count now.
        let scan = self.state(source).table.open(query, Timestamp(0));
        let computation = Computation {
            keys: wanted.keys.as_ref().map(|keys| keys.iter().cloned().collect()),
            wanted,
            visible,
            groups,
            table,
            stage: Stage::Reading(scan),
            pending: VecDeque::new(),
            pending_size: 0,
            records_size: 0,
            size: 0,
            size_max,
            users: Vec::new(),
            ended: None,
        };
        let all = &mut self.computations.all;
        let place = all.iter().position(Option::is_none).unwrap_or(all.len());
        match all.get_mut(place) {
            Some(free) => *free = Some(computation),
            None => all.push(Some(computation)),
        }
        self.state(source).computations.push(ComputationId(place));
        Ok(ComputationId(place))
    }

    /// A subscription no longer uses its computation, which ends with the last one.
    pub(super) fn leave_computation(&mut self, id: ComputationId, subscription: SubscriptionId) {
        let Some(computation) = self.computations.get(id) else { return };
        computation.users.retain(|(user, _)| *user != subscription);
        if !computation.users.is_empty() {
            return;
        }
        let Some(ended) = self.computations.all[id.0].take() else { return };
        self.computations.size -= ended.size;
        let source = self.state(ended.wanted.source);
        source.computations.retain(|other| *other != id);
        if let Stage::Reading(scan) = ended.stage {
            source.table.close(scan);
        }
        self.clear_place(ended.table);
        self.discard(ended.groups);
    }

    /// One portion of the work until the computation of a subscription is ready. The subscription
    /// then follows its table, and its records are sent.
    pub(super) fn step_computation(&mut self, cx: &mut Context, scan: &mut Scan) -> Step {
        let Some(awaiting) = &scan.awaiting else { return Step::Done };
        let id = awaiting.computation;
        let Some(computation) = self.computations.get(id) else { return Step::Done };
        if let Some(refused) = &computation.ended {
            return Step::Failed(refused.clone());
        }
        let made = match computation.stage {
            Stage::Reading(_) => self.read_source(cx, id),
            Stage::Writing(_) => self.write_first(cx, id),
            Stage::Ready => {
                let table = computation.table;
                return self.send_first(cx, scan, table);
            }
        };
        if let Err(failure) = made.and_then(|()| self.computations.check_size(id)) {
            self.fail_computation(cx, id, &failure);
        }
        // After a failure, the next step ends the scan.
        Step::More
    }

    /// Adds the next records of the topic to the groups.
    fn read_source(&mut self, _: &Context, id: ComputationId) -> Result<(), Failure> {
        let Tables { all, computations, arena, .. } = self;
        let Some(computation) = computations.get(id) else { return Ok(()) };
        let Stage::Reading(scan) = computation.stage else { return Ok(()) };
        let TableState { definition, table, .. } = &mut all[computation.wanted.source.0 as usize];
        let mut add = |row: &Row<'_>| {
            computation.change(definition, (None, Some(row)), row.timestamp, arena);
            true
        };
        match table.poll(scan, EFFORT, &mut add) {
            Polled::More => return Ok(()),
            Polled::Done { .. } => (),
            _ => return Err(Failure::TooLarge),
        }
        table.close(scan);
        computation.stage = Stage::Writing(GroupWalk::default());
        Ok(())
    }

    /// Makes the first records of the next groups.
    fn write_first(&mut self, cx: &mut Context, id: ComputationId) -> Result<(), Failure> {
        for _ in 0..EFFORT {
            let Some(computation) = self.computations.get(id) else { return Ok(()) };
            let Stage::Writing(left) = &mut computation.stage else { return Ok(()) };
            let groups = &computation.groups;
            let Some(group) = left.next(|part| groups.ids_of_part(part).collect()) else {
                computation.stage = Stage::Ready;
                return Ok(());
            };
            self.write_group(cx, id, group, Timestamp(0))?;
        }
        Ok(())
    }

    /// The computation of a subscription is ready.
    fn send_first(&mut self, cx: &mut Context, scan: &mut Scan, table: TableId) -> Step {
        let Some(awaiting) = scan.awaiting.take() else { return Step::Done };
        let Some(subscription) = scan.subscription else { return Step::Done };
        let plan = awaiting.plan.over(table);
        if let Some(following) = self.subscriptions.get_mut(&subscription) {
            following.tables.push(table);
        }
        let state = self.state(table);
        state.follow(cx, subscription, &plan);
        let query = plan.query(None, None, cx.config.limits.max_query_copies);
        scan.parts.push_back((table, state.table.open(query, cx.clock.now.wall)));
        Step::More
    }

    /// Whether a computation has work.
    pub(crate) fn has_pending_changes(&self) -> bool {
        self.computations.all.iter().flatten().any(Computation::is_waiting)
    }

    /// The bytes of the changes that computations could work off.
    pub(crate) fn pending_changes_size(&self) -> usize {
        self.computations.waiting_size()
    }

    /// Passes one change to a computation, and sends its subscriptions the records that it changes.
    /// Returns whether there was one.
    pub(crate) fn compute_next(&mut self, cx: &mut Context) -> bool {
        let Some(id) = self.computations.next_waiting() else { return false };
        if self.computations.get(id).is_some_and(|it| !it.is_ready()) {
            self.fail_computation(cx, id, &Failure::TooLarge);
            return true;
        }
        let Tables { all, computations, arena, .. } = self;
        let Some(computation) = computations.get(id) else { return false };
        let Some(change) = computation.pending.pop_front() else { return false };
        computation.pending_size -= change.size();
        let definition = &all[computation.wanted.source.0 as usize].definition;
        let (old, new) = (change.old(), change.new_row());
        let touched = computation.change(definition, (old.as_ref(), new.as_ref()), change.at, arena);
        let mut made = Ok(());
        for group in touched {
            made = made.and_then(|()| self.write_group(cx, id, group, change.at));
        }
        if let Err(failure) = made.and_then(|()| self.computations.check_size(id)) {
            self.fail_computation(cx, id, &failure);
        }
        true
    }

    /// Puts the record of a group into the table of the computation, or removes it.
    fn write_group(
        &mut self,
        cx: &mut Context,
        id: ComputationId,
        group: GroupId,
        at: Timestamp,
    ) -> Result<(), Failure> {
        let Tables { all, computations, arena, .. } = self;
        let Some(computation) = computations.get(id) else { return Ok(()) };
        let TableState { definition, table: rows, .. } = &all[computation.table.0 as usize];
        let mut data = Vec::new();
        let written = computation.groups.write(group, &definition.name, arena, &mut data);
        let written = written.map_err(Failure::Unwritable)?;
        let (key, table) = (group.key(), computation.table);
        let before = rows.get(&key).map_or(0, |row| row.data.len() + RECORD_SIZE);
        computation.records_size -= before;
        let timestamp = match written {
            Written::Record(changed) => changed.max(at),
            Written::Gone => {
                self.remove(cx, table, &key, None);
                return Ok(());
            }
        };
        computation.records_size += data.len() + RECORD_SIZE;
        let row = NewRow {
            key: &key,
            position: None,
            bookmark: None,
            timestamp,
            change: None,
            may_be_older: false,
            received: cx.clock.now.wall,
            expiration_s: None,
            correlation_id: b"",
            headers: Headers::NONE,
            data: &data,
        };
        self.put(cx, Keyed::of(table), &row);
        Ok(())
    }

    /// Ends the subscriptions of a computation, which then ends.
    fn fail_computation(&mut self, cx: &mut Context, id: ComputationId, failure: &Failure) {
        let Some(computation) = self.computations.get(id) else { return };
        computation.pending.clear();
        computation.pending_size = 0;
        let users = computation.users.clone();
        let name = &self.all[computation.wanted.source.0 as usize].definition.name;
        let limit = cx.config.limits.max_query_copies;
        let (code, reason) = match failure {
            Failure::TooLarge => (
                Code::LimitExceeded,
                format!(
                    "max_query_copies: the groups of the subscription to {name:?} need more than {limit} bytes; use a filter, or \
                     fewer groups, or configure a view"
                ),
            ),
            Failure::AllTooLarge => (
                Code::LimitExceeded,
                format!(
                    "max_query_copies: the groups of all subscriptions with projection need more than {SIZE_FACTOR} times {limit} \
                     bytes; use fewer groups, or configure a view"
                ),
            ),
            Failure::Unwritable(error) => {
                (Code::BadMessage, format!("projection: on {name:?}, a group cannot be a message: {error}"))
            }
        };
        for (user, _) in users {
            cx.end_subscription(user, code, &reason);
        }
        if let Some(computation) = self.computations.get(id) {
            computation.ended = Some(Refused::new(code, reason));
        }
    }

    /// Whether a subscription has records of groups.
    pub(crate) fn is_aggregated(&self, id: SubscriptionId) -> bool {
        self.subscriptions.get(&id).is_some_and(|following| following.computation.is_some())
    }
}

impl Awaiting {
    pub fn new(computation: ComputationId, plan: RecordsPlan) -> Self {
        Awaiting { computation, plan }
    }
}

impl GroupsPlan {
    /// The topic that is aggregated.
    pub fn source(&self) -> TableId {
        self.wanted.source
    }
}
