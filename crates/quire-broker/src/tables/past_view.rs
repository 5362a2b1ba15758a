//! The records of a view at an earlier instant: `sow` of a view with a bookmark (docs/views.md,
//! "Earlier states").
//!
//! They are computed from the earlier states of the topics that the view reads, as a start computes
//! the view from their current states. The views that it reads are computed first. The records are
//! in tables that are not topics. The query then reads the last of these tables.

use std::collections::VecDeque;

use quire_command::Code;
use quire_expression::filter::Filter;
use quire_journal::{Headers, Position, Timestamp};
use quire_table::{AsOf, GroupWalk, Polled, PutOptions, Query, Row, RowChange, ScanId, Table, Written};

use super::derived::Records;
use super::follow::refusal_of;
use super::history::AskedState;
use super::plan::RecordsPlan;
use super::scan::{EFFORT, Scan, Step};
use super::{TableState, Tables};
use crate::context::Context;
use crate::log::Moment;
use crate::reply::Refused;
use crate::topic::TableId;

/// The weight of one portion: a record of a view of one topic has the weight 1.
const PORTION: usize = EFFORT / 4;

/// A view that is being computed for a query.
pub(super) struct PastView {
    /// The views that are left, each after those that it reads. The last one is asked for.
    left: VecDeque<Stage>,
    /// Their tables.
    tables: Vec<TableId>,
    /// The query of the records.
    plan: RecordsPlan,
    filter: Option<Filter>,
}

/// One view.
struct Stage {
    table: TableId,
    records: Records,
    /// The topics that are left to read, with their places. The first topic of a join is the last
    /// one, so that each combination is added once.
    sources: VecDeque<(usize, PastSource)>,
    /// Records of the first of these topics that are not added yet.
    pending: VecDeque<RowChange>,
    /// When all of them were read: the groups that have no records yet.
    groups: Option<GroupWalk>,
}

/// A topic that a view reads.
#[derive(Clone, Copy)]
struct PastSource {
    table: TableId,
    /// `None`: it is the table of a stage before, which is not open yet.
    scan: Option<ScanId>,
}

impl Tables {
    /// The view that a query asks for; `None`: it asks for other topics, or for several.
    fn asked_view(&self, tables: &[TableId]) -> Option<TableId> {
        let [id] = tables else { return None };
        self.is_view(*id).then_some(*id)
    }

    /// Whether a query needs the instant of its bookmark.
    ///
    /// # Errors
    /// It asks for an earlier state of a view that has none.
    pub(super) fn needs_instant(&self, asked: &AskedState, tables: &[TableId]) -> Result<bool, Refused> {
        let Some(view) = self.asked_view(tables) else { return Ok(self.keep_history(tables)) };
        if *asked == AskedState::Current {
            return Ok(false);
        }
        match self.leaves(view).into_iter().find(|leaf| !self.keep_history(&[*leaf])) {
            None => Ok(true),
            Some(leaf) => {
                let definition = |id: TableId| &self.all[id.0 as usize].definition;
                let (name, leaf) = (&definition(view).name, definition(leaf));
                let reason = match leaf.is_of_queue {
                    true => format!(
                        "bookmark: {name:?} is a view of the queue {:?}, and queues keep no history. Ask for the current state",
                        leaf.name
                    ),
                    false => format!(
                        "bookmark: {name:?} is a view of {:?}, which keeps no history. Ask for the current state, or add \
                         history to the topic",
                        leaf.name
                    ),
                };
                Err(Refused::new(Code::BadBookmark, reason))
            }
        }
    }

    /// The topics that are not views and that a view reads, also through other views.
    fn leaves(&self, view: TableId) -> Vec<TableId> {
        let mut leaves = Vec::new();
        for source in self.derived.sources_of(view) {
            match self.is_view(*source) {
                true => leaves.extend(self.leaves(*source)),
                false => leaves.push(*source),
            }
        }
        leaves.sort_unstable();
        leaves.dedup();
        leaves
    }

    /// The earlier state of a view that a plan asks for, and the scans of the topics; `None`: the
    /// plan asks for another state, or for other topics.
    ///
    /// # Errors
    /// The history of a topic does not contain the instant.
    pub(super) fn open_past_view(
        &mut self,
        cx: &mut Context,
        plan: &RecordsPlan,
        filter: Option<&Filter>,
        instant: Option<Moment>,
    ) -> Result<Option<Box<PastView>>, Refused> {
        let (Some(view), Some(instant)) = (self.asked_view(&plan.tables), instant) else { return Ok(None) };
        let leaves = self.leaves(view);
        let Some(states) = self.common_state(cx, &leaves, instant)? else { return Ok(None) };
        let mut past = PastView {
            left: VecDeque::new(),
            tables: Vec::new(),
            plan: plan.clone(),
            filter: filter.cloned(),
        };
        let mut computed = Vec::new();
        if let Err(refused) = self.add_stage(cx, view, &leaves, &states, &mut past, &mut computed) {
            self.close_past_view(past);
            return Err(refused);
        }
        Ok(Some(Box::new(past)))
    }

    /// The states of topics at one instant; `None`: the current states. With a granularity, the
    /// state of one topic can be earlier than the instant. Then those of the others are, too.
    ///
    /// # Errors
    /// A history does not contain the instant.
    fn common_state(
        &self,
        cx: &mut Context,
        leaves: &[TableId],
        instant: Moment,
    ) -> Result<Option<Vec<AsOf>>, Refused> {
        let states: Result<Option<Vec<AsOf>>, Refused> =
            leaves.iter().map(|leaf| self.as_of(cx, *leaf, instant)).collect();
        let Some(states) = states? else { return Ok(None) };
        if states.windows(2).all(|pair| pair[0] == pair[1]) {
            return Ok(Some(states));
        }
        // The end of a period of every topic.
        let earliest = states.iter().map(|state| state.time).min().unwrap_or(instant.time);
        let granularities = leaves.iter().filter_map(|leaf| self.granularity_of(*leaf));
        let time = match granularities.reduce(common_multiple) {
            None => earliest,
            Some(common) => {
                let periods = (u128::from(earliest.as_ns()) + 1) / common;
                Timestamp(u64::try_from(periods * common).unwrap_or_default().saturating_sub(1))
            }
        };
        for leaf in leaves {
            // The end of a period is the state of the next instant.
            let next = u64::from(self.granularity_of(*leaf).is_some());
            let time = Timestamp(time.as_ns().saturating_add(next));
            self.as_of(cx, *leaf, Moment { time, position: None })?;
        }
        Ok(Some(vec![AsOf { time, position: None }; leaves.len()]))
    }

    /// The distance of the instants whose states a topic keeps; `None`: every instant.
    fn granularity_of(&self, leaf: TableId) -> Option<u128> {
        let known = self.all[leaf.0 as usize].table.known_history()?;
        (known.granularity_ns > 0).then_some(known.granularity_ns.into())
    }

    /// Adds the stages of a view after those of the views that it reads. Opens the scans of its
    /// topics, so that their histories keep the instant.
    fn add_stage(
        &mut self,
        cx: &Context,
        view: TableId,
        leaves: &[TableId],
        states: &[AsOf],
        past: &mut PastView,
        computed: &mut Vec<(TableId, TableId)>,
    ) -> Result<TableId, Refused> {
        if let Some((_, table)) = computed.iter().find(|(known, _)| *known == view) {
            return Ok(*table);
        }
        let mut sources = VecDeque::new();
        for (place, source) in self.derived.sources_of(view).to_vec().into_iter().enumerate() {
            let source = match leaves.iter().position(|leaf| *leaf == source) {
                None => {
                    let table = self.add_stage(cx, source, leaves, states, past, computed)?;
                    PastSource { table, scan: None }
                }
                Some(leaf) => {
                    let copies_size_max = size_max(cx);
                    let query = Query { as_of: Some(states[leaf]), copies_size_max, ..Query::default() };
                    let scan = self.state(source).table.open(query, cx.clock.now.wall);
                    PastSource { table: source, scan: Some(scan) }
                }
            };
            sources.push_front((place, source));
        }
        let definition = self.all[view.0 as usize].definition.clone();
        let records = definition.view.as_ref().map(|view| Records::new(&view.records));
        let table = Table::new(definition.config.clone(), &self.memory.heap);
        let (Some(records), Ok(table)) = (records, table) else {
            return Err(Refused::new(Code::Internal, "the view cannot be computed".to_owned()));
        };
        let table = self.place(TableState::new((*definition).clone(), table, None, Position::ZERO));
        past.tables.push(table);
        past.left.push_back(Stage { table, records, sources, pending: VecDeque::new(), groups: None });
        computed.push((view, table));
        Ok(table)
    }

    /// One portion of the computation of a view for a query.
    pub(super) fn step_past_view(&mut self, cx: &mut Context, scan: &mut Scan) -> Step {
        let Some(past) = &mut scan.past else { return Step::Done };
        let Some(stage) = past.left.front_mut() else { return self.query_past_view(cx, scan) };
        let step = match stage.groups.is_some() {
            false => self.read_past(cx, stage),
            true => self.write_past(stage),
        };
        match step {
            Step::More => (),
            Step::Done => {
                if let Some(stage) = past.left.pop_front() {
                    self.discarded.push(Box::new(stage.records));
                }
            }
            failed @ Step::Failed(_) => return failed,
        }
        let groups: usize = past.left.iter().map(|stage| stage.records.memory_size()).sum();
        let tables = past.tables.iter().map(|id| self.all[id.0 as usize].table.stats().memory_size);
        if groups + tables.sum::<usize>() > size_max(cx) {
            let reason = format!(
                "max_query_copies: the earlier state of the view needs more than {} bytes",
                cx.config.limits.max_query_copies
            );
            return Step::Failed(Refused::new(Code::LimitExceeded, reason));
        }
        Step::More
    }

    /// Adds the next records of a source.
    fn read_past(&mut self, cx: &Context, stage: &mut Stage) -> Step {
        let Some((place, source)) = stage.sources.front_mut() else {
            stage.groups = Some(GroupWalk::default());
            return Step::More;
        };
        let Tables { all, arena, .. } = self;
        let TableState { table, definition, .. } = &mut all[source.table.0 as usize];
        let copies_size_max = size_max(cx);
        let query = || Query { copies_size_max, ..Query::default() };
        let number = *source.scan.get_or_insert_with(|| table.open(query(), Timestamp(0)));
        // A record of a join can have many combinations.
        let Stage { records, pending, .. } = stage;
        for _ in 0..PORTION / records.portion_weight() {
            let Some(row) = pending.front().and_then(RowChange::new_row) else { break };
            if records.add_portion(*place, &row, arena) {
                pending.pop_front();
            }
        }
        if !pending.is_empty() {
            return Step::More;
        }
        let polled = table.poll(number, PORTION, &mut |row| {
            pending.push_back(RowChange::new(None, Some(row), row.timestamp));
            true
        });
        match polled {
            Polled::More => Step::More,
            // The scan is closed when its last records were added, and has no more then.
            Polled::Done { .. } if !pending.is_empty() => Step::More,
            Polled::Done { .. } => {
                table.close(number);
                records.clear_touched();
                stage.sources.pop_front();
                Step::More
            }
            failed => Step::Failed(refusal_of(cx, definition, failed)),
        }
    }

    /// Makes the next records of the groups.
    fn write_past(&mut self, stage: &mut Stage) -> Step {
        let Stage { table, records, groups: Some(groups), .. } = stage else { return Step::Done };
        let Tables { all, arena, .. } = self;
        let TableState { table, definition, .. } = &mut all[table.0 as usize];
        let mut data = Vec::new();
        for _ in 0..PORTION {
            let Some(id) = groups.next(|part| records.ids_of_part(part)) else { return Step::Done };
            // As in the view, a group whose record cannot be written has none.
            if let Ok(Written::Record(timestamp)) = records.write(id, &definition.name, arena, &mut data) {
                let key = id.key();
                let row = Row {
                    key: &key,
                    position: Position::ZERO,
                    timestamp,
                    stamp: None,
                    expires: None,
                    correlation_id: b"",
                    headers: Headers::NONE,
                    data: &data,
                };
                // The key and the size of a record are those of a group.
                let _ = table.put_with(&row, PutOptions::default());
            }
        }
        Step::More
    }

    /// The view is computed: begins the query of its records.
    fn query_past_view(&mut self, cx: &Context, scan: &mut Scan) -> Step {
        let Some(past) = scan.past.take() else { return Step::Done };
        let PastView { tables, plan, filter, .. } = *past;
        scan.temporary = tables;
        let Some(table) = scan.temporary.last().copied() else { return Step::Done };
        let plan = plan.over(table);
        let query = plan.query(filter.as_ref(), None, cx.config.limits.max_query_copies);
        scan.parts.push_back((table, self.state(table).table.open(query, Timestamp(0))));
        scan.groups = self.groups_of(cx, &plan);
        Step::More
    }

    /// The query ends before the view is computed.
    pub(super) fn close_past_view(&mut self, past: PastView) {
        for stage in past.left {
            for (_, source) in stage.sources {
                if let Some(scan) = source.scan {
                    self.state(source.table).table.close(scan);
                }
            }
            self.discard(stage.records);
        }
        past.tables.iter().for_each(|table| self.clear_place(*table));
    }
}

/// The least common multiple of two numbers of 64 bits, or more than 64 bits.
fn common_multiple(one: u128, other: u128) -> u128 {
    let (mut divisor, mut rest) = (one, other);
    while rest != 0 {
        (divisor, rest) = (rest, divisor % rest);
    }
    (one / divisor).saturating_mul(other)
}

fn size_max(cx: &Context) -> usize {
    usize::try_from(cx.config.limits.max_query_copies).unwrap_or(usize::MAX)
}
