//! A new definition of a view (docs/views.md section 8).
//!
//! The groups of the new definition are built next to those of the old one:
//!
//! 1. *Reading*: the records that the sources have at the begin are added, in portions. The changes
//!    after it wait.
//! 2. *Following*: the groups take these changes, and then each further one, after the view has
//!    taken it.
//! 3. *Replacing*: when the caller has made the definition durable, the groups take the place of
//!    the old ones between two changes. Then the difference of the records is worked off, as one
//!    change of the view: first the records that leave, then those that are new or have changed.
//!    The changes of all topics with views wait until it is done.
//!
//! To the topics that it reads, a build is one more view. Its number is the one after the last
//! view.

use std::collections::VecDeque;
use std::sync::Arc;

use quire_command::Code;
use quire_expression::message_type::Arena;
use quire_journal::Timestamp;
use quire_table::{GroupId, GroupWalk, Polled, Query, Row, RowChange, ScanId};

use super::joined::WEIGHT;
use super::{Records, Update};
use crate::config::tables::TableDefinition;
use crate::context::Context;
use crate::reply::Refused;
use crate::tables::follow::refusal_of;
use crate::tables::{TableState, Tables};
use crate::topic::TableId;

/// Records of the sources of one portion. The views take one change for each portion, so they have
/// about half of the time.
const READ_PORTION: usize = 8;

/// Records and groups of one portion of a difference.
const PORTION: usize = 32;

/// The new definition of a view.
pub(super) struct Build {
    /// The number of the view.
    view: usize,
    definition: Arc<TableDefinition>,
    /// In the order of the joins.
    sources: Vec<TableId>,
    records: Records,
    /// The scans have the changes up to this number.
    after: u64,
    /// Changes that the groups do not have yet: the place of the topic, and the change.
    pending: VecDeque<(usize, RowChange)>,
    pending_size: usize,
    stage: Stage,
}

enum Stage {
    Reading {
        /// The topics that are left to read, with their places. The first topic of a join is the
        /// last one, so that each combination is added once.
        scans: VecDeque<(usize, TableId, ScanId)>,
        /// Records of the first of these topics that are not added yet.
        rows: VecDeque<RowChange>,
    },
    Following {
        /// The definition is durable.
        may_replace: bool,
    },
    /// The records that leave.
    Leaving(ScanId),
    /// The other records.
    Changing(GroupWalk),
    Failed(Refused),
}

/// How far a build is.
pub(in crate::tables) enum Progress {
    Working,
    /// The groups have all changes. The definition can be made durable.
    Following,
    /// The view has the new definition and its records.
    Replaced,
    Failed(Refused),
}

impl Build {
    /// A topic of the definition has changed.
    pub fn take(&mut self, source: TableId, change: &RowChange, number: u64) {
        let place = self.sources.iter().position(|it| *it == source);
        if let Some(place) = place.filter(|_| number > self.after) {
            self.pending_size += change.size();
            self.pending.push_back((place, change.clone()));
        }
    }

    /// Whether the difference of the records is worked off.
    fn is_done(&self) -> bool {
        matches!(&self.stage, Stage::Changing(groups) if groups.is_done())
    }

    /// Takes the next changes. Returns the weight of the work.
    fn follow(&mut self, arena: &mut Arena) -> Option<usize> {
        let weight = self.records.portion_weight();
        let mut total = 0;
        // More than one for each change that the views take, so that the build catches up.
        while total < 2 * WEIGHT {
            let Some((place, change)) = self.pending.front() else { break };
            total += weight;
            if self.records.follow_portion(*place, change, arena) {
                self.pending_size -= change.size();
                self.pending.pop_front();
            }
        }
        (total > 0).then_some(total)
    }
}

impl super::Derived {
    /// Whether the difference between two definitions is being worked off.
    pub fn is_replacing(&self) -> bool {
        self.build.as_ref().is_some_and(|build| match &build.stage {
            Stage::Leaving(_) => true,
            Stage::Changing { .. } => !build.is_done(),
            _ => false,
        })
    }

    /// The bytes of the changes that a build can work off.
    pub fn followed_size(&self) -> usize {
        let followed = self.build.iter().filter(|build| matches!(build.stage, Stage::Following { .. }));
        followed.map(|build| build.pending_size).sum()
    }
}

impl Tables {
    /// Begins to build a new definition of a view.
    pub(in crate::tables) fn begin_build(
        &mut self,
        cx: &Context,
        table: TableId,
        definition: TableDefinition,
    ) {
        let Tables { all, derived, .. } = self;
        let Some(view) = derived.views.iter().position(|view| view.table == table) else { return };
        let Some(new) = definition.view.clone() else { return };
        let source_of = |name: &Arc<str>| cx.topics.source(name);
        let sources: Vec<TableId> = new.sources.iter().filter_map(source_of).collect();
        let records = Records::new(&new.records);
        let mut scans = VecDeque::new();
        for (place, source) in sources.iter().enumerate() {
            let state = &mut all[source.0 as usize];
            // Rows whose lifetime is over are removed later, which is a change. So they count now.
            let query = Query { copies_size_max: size_max(cx), ..Query::default() };
            scans.push_front((place, *source, state.table.open(query, Timestamp(0))));
            state.views.push(derived.views.len());
            derived.waiting.follow(*source, &records);
        }
        derived.build = Some(Box::new(Build {
            view,
            definition: Arc::new(definition),
            sources,
            records,
            after: derived.waiting.newest(),
            pending: VecDeque::new(),
            pending_size: 0,
            stage: Stage::Reading { scans, rows: VecDeque::new() },
        }));
    }

    /// The definition that is being built is durable. It takes the place of the old one.
    pub(in crate::tables) fn let_replace(&mut self) {
        if let Some(Stage::Following { may_replace }) =
            self.derived.build.as_mut().map(|build| &mut build.stage)
        {
            *may_replace = true;
        }
    }

    /// How far the build is; `None`: there is none. A build that is done or has failed has ended
    /// then.
    pub(in crate::tables) fn build_progress(&mut self) -> Option<Progress> {
        let build = self.derived.build.as_mut()?;
        let is_done = build.is_done();
        let progress = match &mut build.stage {
            Stage::Following { may_replace: false } if build.pending.is_empty() => {
                return Some(Progress::Following);
            }
            Stage::Changing { .. } if is_done => Progress::Replaced,
            Stage::Failed(refused) => {
                let code = refused.code;
                Progress::Failed(Refused::new(code, std::mem::take(&mut refused.reason)))
            }
            _ => return Some(Progress::Working),
        };
        self.end_build();
        Some(progress)
    }

    /// Whether the build has work that does not wait for anything.
    pub(crate) fn must_build(&self) -> bool {
        let Some(build) = &self.derived.build else { return false };
        match &build.stage {
            Stage::Following { may_replace } => {
                !build.pending.is_empty() || *may_replace && self.may_replace()
            }
            Stage::Failed(_) => false,
            Stage::Changing { .. } => !build.is_done(),
            Stage::Reading { .. } | Stage::Leaving(_) => true,
        }
    }

    /// At the end: only a difference that has begun is worked off.
    pub(in crate::tables) fn end_unfinished_build(&mut self) {
        if !self.derived.is_replacing() {
            self.end_build();
        }
    }

    /// Ends a build. Before its definition took the place of the old one, the view is as before.
    pub(in crate::tables) fn end_build(&mut self) {
        let Tables { all, derived, .. } = self;
        let number = derived.views.len();
        let Some(build) = derived.build.take() else { return };
        let Build { view, records, stage, .. } = *build;
        match stage {
            Stage::Reading { scans, .. } => {
                scans.into_iter().for_each(|(_, id, scan)| all[id.0 as usize].table.close(scan));
            }
            Stage::Leaving(scan) => all[derived.views[view].table.0 as usize].table.close(scan),
            Stage::Following { .. } | Stage::Changing(_) | Stage::Failed(_) => (),
        }
        all.iter_mut().for_each(|state| state.views.retain(|it| *it != number));
        self.discard(records);
        self.note_sources_changed();
    }

    /// One portion of the work before the definition takes the place of the old one. Returns its
    /// weight; `None`: there was none.
    pub(super) fn build_next(&mut self, cx: &mut Context) -> Option<usize> {
        let Tables { all, derived, arena, .. } = self;
        let build = derived.build.as_mut()?;
        let failed = match &mut build.stage {
            Stage::Reading { .. } if build.pending_size > size_max(cx) => Some(too_fast(cx)),
            Stage::Reading { scans, rows } => match read(cx, all, scans, rows, &mut build.records, arena) {
                Ok(true) => {
                    build.stage = Stage::Following { may_replace: false };
                    None
                }
                Ok(false) => None,
                Err(refused) => Some(refused),
            },
            Stage::Following { .. } => return build.follow(arena),
            Stage::Leaving(_) | Stage::Changing { .. } | Stage::Failed(_) => return None,
        };
        if let Some(refused) = failed {
            if let Stage::Reading { scans, .. } = std::mem::replace(&mut build.stage, Stage::Failed(refused))
            {
                scans.into_iter().for_each(|(_, id, scan)| all[id.0 as usize].table.close(scan));
            }
            build.pending.clear();
        }
        Some(READ_PORTION)
    }

    /// Whether no change is being worked off, and no snapshot has the old groups in hand.
    fn may_replace(&self) -> bool {
        self.derived.current.is_none() && !self.snapshots.is_busy()
    }

    /// Lets the definition take the place of the old one, and works off the next portion of the
    /// difference. Until that is done, no change is passed to views. Returns the weight of the
    /// work; `None`: there is nothing to replace now.
    pub(super) fn replace_next(&mut self, cx: &mut Context) -> Option<usize> {
        let may_replace = self.may_replace();
        let Tables { all, derived, arena, .. } = self;
        let super::Derived { views, updates, build, .. } = derived;
        let build = build.as_mut().filter(|build| !build.is_done())?;
        match &mut build.stage {
            Stage::Following { may_replace: true } if may_replace => {
                if let Some(weight) = build.follow(arena) {
                    return Some(weight);
                }
                self.replace(cx);
            }
            Stage::Leaving(scan) => {
                let view = &mut views[build.view];
                let TableState { definition, table, .. } = &mut all[view.table.0 as usize];
                let mut leave = |row: &Row<'_>| {
                    if !view.records.has_record(row.key) {
                        updates.push_back(Update {
                            table: view.table,
                            topic: definition.name.clone(),
                            key: GroupId::of_key(row.key).unwrap_or_default().key(),
                            data: None,
                            timestamp: cx.clock.now.wall,
                        });
                    }
                    true
                };
                if table.poll(*scan, PORTION, &mut leave) != Polled::More {
                    table.close(*scan);
                    build.stage = Stage::Changing(GroupWalk::default());
                }
            }
            Stage::Changing(groups) => {
                let view = &mut views[build.view];
                let TableState { definition, table, .. } = &all[view.table.0 as usize];
                for _ in 0..PORTION {
                    let Some(id) = groups.next(|part| view.records.ids_of_part(part)) else { break };
                    let (update, event) = view.update(definition, id, cx.clock.now.wall, arena);
                    event.into_iter().for_each(|event| cx.note(event));
                    let old = table.get(&update.key);
                    if old.map(|row| row.data) != update.data.as_deref() {
                        updates.push_back(update);
                    }
                }
            }
            _ => return None,
        }
        Some(PORTION)
    }

    /// The groups of the new definition are now those of the view. Its records are still the old
    /// ones.
    fn replace(&mut self, cx: &mut Context) {
        let Tables { all, derived, .. } = self;
        let number = derived.views.len();
        let Some(build) = derived.build.as_mut() else { return };
        let view = &mut derived.views[build.view];
        let table = view.table;
        std::mem::swap(&mut view.records, &mut build.records);
        std::mem::swap(&mut view.sources, &mut build.sources);
        view.records.clear_touched();
        view.touched.clear();
        view.is_touched.clear();
        view.unwritten_count = 0;
        let settings = build.definition.view.as_ref().map(|view| &view.settings);
        view.inline_conflation = settings.is_some_and(|settings| settings.inline_conflation);
        for (state, id) in all.iter_mut().zip((0..).map(TableId)) {
            state.views.retain(|it| *it != number && (*it != build.view || view.sources.contains(&id)));
            if view.sources.contains(&id) && !state.views.contains(&build.view) {
                state.views.push(build.view);
            }
        }
        let state = &mut all[table.0 as usize];
        state.definition = build.definition.clone();
        let query = Query { copies_size_max: usize::MAX, ..Query::default() };
        build.stage = Stage::Leaving(state.table.open(query, Timestamp(0)));
        derived.find_files(all);
        self.snapshots.find_together(&self.all, &self.derived);
        self.show_keys(cx, table);
    }
}

/// Adds the next records of the topics to the groups. Returns whether that was all.
fn read(
    cx: &Context,
    all: &mut [TableState],
    scans: &mut VecDeque<(usize, TableId, ScanId)>,
    rows: &mut VecDeque<RowChange>,
    records: &mut Records,
    arena: &mut Arena,
) -> Result<bool, Refused> {
    let Some((place, source, scan)) = scans.front() else { return Ok(true) };
    // A record of a join can have many combinations.
    for _ in 0..(READ_PORTION / records.portion_weight()).max(1) {
        let Some(row) = rows.front().and_then(RowChange::new_row) else { break };
        if records.add_portion(*place, &row, arena) {
            rows.pop_front();
        }
    }
    if !rows.is_empty() {
        return Ok(false);
    }
    let TableState { definition, table, .. } = &mut all[source.0 as usize];
    let polled = table.poll(*scan, READ_PORTION, &mut |row| {
        rows.push_back(RowChange::new(None, Some(row), row.timestamp));
        true
    });
    match polled {
        Polled::More => Ok(false),
        Polled::Done { .. } => {
            if rows.is_empty() {
                table.close(*scan);
                scans.pop_front();
            }
            Ok(scans.is_empty())
        }
        Polled::TooManyCopies => Err(too_fast(cx)),
        failed => Err(refusal_of(cx, definition, failed)),
    }
}

fn too_fast(cx: &Context) -> Refused {
    let reason = format!(
        "max_query_copies: while the new definition was computed, its topics had more than {} bytes of changes. Try again \
         when fewer messages are published, or raise limits.max_query_copies of the server",
        cx.config.limits.max_query_copies
    );
    Refused::new(Code::LimitExceeded, reason)
}

fn size_max(cx: &Context) -> usize {
    usize::try_from(cx.config.limits.max_query_copies).unwrap_or(usize::MAX)
}
