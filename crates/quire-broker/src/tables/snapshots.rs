//! Snapshots of last-value topics next to the log (docs/last-values.md section 7).
//!
//! A snapshot is a scan of one table in portions, from the newest appended position on. When the
//! log is persisted up to that position, a background job writes the file. So a crash cannot leave
//! a snapshot that is ahead of the log. One snapshot is in progress at a time.
//!
//! Each topic with an entry in the configuration has a file, and each container has a file for all
//! of its topics (`snapshot_file.rs`). The topics of a container are scanned one after another,
//! each at a separate position of the log. They do not depend on each other, so a start applies to
//! each topic the records after its position.
//!
//! A view has a file when all of its sources have one. Its snapshot and those of its sources are of
//! one instant, at which no change waits for the view. A number in the files shows a start which
//! belong together. With other files, the view is computed again.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use quire_journal::{FoundSidecar, Journal, JournalError, Position, SidecarHead, Sidecars};
use quire_table::{SnapshotHead, SnapshotOwner, SnapshotState, SnapshotWriter, snapshot_file};
use quire_types::Timestamp;

use super::derived::Derived;
use super::snapshot_file::{
    CONTAINER_VERSION, ContainerReader, ORDERED_CONTAINER_VERSION, Section, SnapshotFile, SnapshotParts,
    SnapshotSteps, load,
};
use super::{TableDefinition, TableState, Tables};
use crate::Event;
use crate::context::Context;
use crate::slice::PASS;
use crate::topic::{ContainerId, TableId};
use quire_types::time::Instant;

/// The time between two checks whether a topic needs a new snapshot.
const LOOK_INTERVAL: Duration = Duration::from_secs(10);

/// How long a close waits for the disk before it continues without snapshots. A slower disk is
/// considered faulty.
const FLUSH_AT_CLOSE_MAX: Duration = Duration::from_secs(60);

/// Rows of one portion, and bytes of one part of the content.
const EFFORT: usize = 256;
const PART_SIZE: usize = 1024 * 1024;

/// The file with the names of the topics and containers that have a snapshot. With it, a start
/// detects a lost snapshot.
const NAMES_FILE: &str = "snapshot-names.state";
const NAMES_NAME: &str = "snapshot names";
const NAMES_VERSION: u32 = 1;

/// The snapshots of one broker.
pub(super) struct Snapshots {
    files: Sidecars,
    /// The topics whose snapshots are of one instant: a topic, its views, and the topics that these
    /// join. At a start, each after its sources.
    together: Vec<Vec<TableId>>,
    current: Option<Current>,
    /// The snapshot that begins when no change waits for the views.
    settling: Option<Unit>,
    look_due: Option<Instant>,
    looked_to: Position,
}

/// The snapshot in progress.
struct Current {
    unit: Unit,
    /// Where it began.
    position: Position,
    step: Step,
}

/// The topics of one snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unit {
    /// A place of [`Snapshots::together`]. Each topic has a file.
    Topics(usize),
    /// All topics are in one file.
    Container(ContainerId),
}

enum Step {
    Writing(Box<Writing>),
    /// Until the log is persisted up to the positions of all sections.
    Waiting {
        sections: Vec<Section>,
    },
    /// A background job writes the file.
    Saving {
        number: u64,
    },
}

/// A snapshot whose rows are being read.
struct Writing {
    /// The topics whose snapshots have begun. The first one is being written.
    begun: VecDeque<Begun>,
    done: Vec<Section>,
    /// The topics of a container that follow.
    left: VecDeque<TableId>,
}

/// The snapshot of a topic that has begun.
struct Begun {
    table: TableId,
    writer: SnapshotWriter,
    section: Section,
}

/// The instant of a snapshot, and the bytes of copies that it may hold.
#[derive(Clone, Copy)]
struct Beginning {
    position: Position,
    /// As of [`SnapshotHead`].
    together: u64,
    copies_size_max: usize,
}

impl Snapshots {
    pub fn new(journal: &Journal, all: &[TableState], derived: &Derived) -> Self {
        Snapshots {
            files: journal.sidecars(),
            together: together(all, derived),
            current: None,
            settling: None,
            look_due: None,
            looked_to: Position::ZERO,
        }
    }

    /// Whether a snapshot waits until no change waits for the views.
    pub fn is_settling(&self) -> bool {
        self.settling.is_some()
    }

    /// Whether a snapshot is in progress, or will begin soon.
    pub fn is_busy(&self) -> bool {
        self.current.is_some() || self.settling.is_some()
    }

    /// A view reads other topics. No snapshot is in progress.
    pub fn find_together(&mut self, all: &[TableState], derived: &Derived) {
        self.together = together(all, derived);
    }
}

/// The topics with files whose snapshots are of one instant.
fn together(all: &[TableState], derived: &Derived) -> Vec<Vec<TableId>> {
    let mut units: Vec<Vec<TableId>> = Vec::new();
    let with_files = (0..).map(TableId).zip(all).filter(|(_, state)| state.has_file);
    for (id, _) in with_files {
        let sources = derived.sources_of(id);
        // A new definition can read a view with a later place.
        let reads = |unit: &Vec<TableId>| {
            let reads = |topic| sources.contains(topic) || derived.sources_of(*topic).contains(&id);
            unit.iter().any(reads)
        };
        let (read, mut others): (Vec<_>, Vec<_>) = units.into_iter().partition(reads);
        let mut unit = read.concat();
        unit.push(id);
        // At a start, each topic has its place after its sources.
        unit.sort_unstable();
        others.push(unit);
        units = others;
    }
    units
}

impl TableState {
    pub(super) fn owner(&self) -> SnapshotOwner {
        let definition = &self.definition;
        match &definition.view {
            Some(view) => SnapshotOwner::of_view(&definition.name, definition.message_type, &view.identity),
            None => SnapshotOwner::new(&definition.name, definition.message_type, &definition.key_rule),
        }
    }

    /// The state of the topic is that of its newest snapshot.
    fn set_loaded(&mut self, head: &SnapshotHead) {
        self.snapshot_position = head.position;
        self.snapshot_together = head.together;
    }
}

impl Tables {
    /// The time of the next check whether a topic needs a new snapshot.
    pub(super) fn snapshot_due(&self) -> Option<Instant> {
        self.snapshots.look_due.filter(|_| self.snapshots.current.is_none())
    }

    /// Continues the snapshot in progress, or begins the next one when it is due.
    pub(crate) fn write_snapshots(&mut self, cx: &mut Context) {
        if let Some(error) = self.memory.paged.take_failure() {
            cx.note(Event::TablesNotPaged { reason: error.to_string() });
        }
        if self.snapshots.current.is_none() {
            self.look(cx);
        }
        // A new definition of a view may wait until no snapshot is in progress.
        cx.clock.wants_turn |= self.snapshots.current.is_none() && self.must_build();
        let Some(mut current) = self.snapshots.current.take() else { return };
        current.step = match current.step {
            Step::Writing(writing) => match self.continue_snapshot(cx, current.unit, writing) {
                Some(step) => step,
                None => return,
            },
            step => step,
        };
        current.step = match current.step {
            Step::Waiting { .. } if cx.log.failure.is_some() => return,
            Step::Waiting { sections } if is_persisted(cx, &sections) => {
                let files = self.files_of(cx, current.unit, current.position, sections);
                let write = move |_| files.into_iter().try_for_each(SnapshotFile::write);
                let number = cx.begin_job(write, Tables::snapshot_saved);
                Step::Saving { number }
            }
            step => step,
        };
        self.snapshots.current = Some(current);
    }

    /// The files of a snapshot.
    fn files_of(
        &self,
        cx: &Context,
        unit: Unit,
        position: Position,
        sections: Vec<Section>,
    ) -> Vec<SnapshotFile> {
        let file = |name: String, container, sections| SnapshotFile {
            files: self.snapshots.files.clone(),
            reader: cx.log.reader.clone(),
            name,
            container,
            position,
            sections,
        };
        match unit {
            Unit::Topics(_) => {
                let each = |section: Section| file(section.topic.to_string(), None, vec![section]);
                sections.into_iter().map(each).collect()
            }
            Unit::Container(id) => {
                let name = self.containers[id.0 as usize].definition.name.to_string();
                vec![file(name, Some(self.settings_of(id)), sections)]
            }
        }
    }

    /// The definitions with the names of the files.
    fn definitions_of(&self, unit: Unit) -> Vec<&TableDefinition> {
        match unit {
            Unit::Topics(place) => {
                let topics = self.snapshots.together[place].iter();
                topics.map(|id| &*self.all[id.0 as usize].definition).collect()
            }
            Unit::Container(id) => vec![&self.containers[id.0 as usize].definition],
        }
    }

    /// The settings that decide which topics belong to a container. A snapshot of other settings
    /// can lack topics.
    fn settings_of(&self, id: ContainerId) -> String {
        let containers = self.containers.iter().map(|container| &container.definition);
        let patterns = containers.clone().take(id.0 as usize + 1).filter_map(|it| it.pattern.as_ref());
        let topics = self.all.iter().filter(|state| state.container.is_none());
        let names = topics.map(|state| &*state.definition).chain(containers).map(|it| &*it.name);
        let own = self.containers[id.0 as usize].definition.pattern.as_ref();
        // A name that the pattern does not match has no effect.
        let names = names.filter(|name| own.is_some_and(|(_, pattern)| pattern.matches(name)));
        let texts: Vec<&str> = patterns.map(|(text, _)| text.as_str()).chain(names).collect();
        texts.join("\n")
    }

    /// The snapshots of topics and containers, with the oldest position of their files.
    fn units(&self) -> impl Iterator<Item = (Unit, Position)> {
        let position = |id: &TableId| self.all[id.0 as usize].snapshot_position;
        let topics = self.snapshots.together.iter().enumerate();
        let topics = topics.map(move |(place, topics)| {
            (Unit::Topics(place), topics.iter().map(position).min().unwrap_or_default())
        });
        let containers = (0..).map(ContainerId).zip(&self.containers);
        let containers = containers.filter(|(_, container)| container.definition.is_persistent());
        topics.chain(containers.map(|(id, it)| (Unit::Container(id), it.snapshot_position)))
    }

    fn tables_of(&self, unit: Unit) -> Vec<TableId> {
        match unit {
            Unit::Topics(place) => self.snapshots.together[place].clone(),
            Unit::Container(id) => self.containers[id.0 as usize].tables.clone(),
        }
    }

    /// Begins a snapshot of the topics with the oldest newest snapshot, when the log after it has a
    /// full file and at least as many bytes as the records. So the snapshots together have at most
    /// the size of the log.
    fn look(&mut self, cx: &mut Context) {
        let appended = cx.log.appended();
        if cx.log.failure.is_some() {
            self.snapshots.settling = None;
        }
        if let Some(unit) = self.snapshots.settling {
            return self.begin_settled(cx, unit);
        }
        if appended == self.snapshots.looked_to || cx.log.failure.is_some() {
            // The time must be cleared. Otherwise it would be in the past later, and the broker
            // would run turns without end.
            self.snapshots.look_due = None;
            return;
        }
        let due = *self.snapshots.look_due.get_or_insert(cx.clock.now.instant + LOOK_INTERVAL);
        if due > cx.clock.now.instant {
            return;
        }
        self.snapshots.looked_to = appended;
        self.snapshots.look_due = None;
        let Some((unit, position)) = self.units().min_by_key(|(_, position)| *position) else { return };
        let segments = cx.log.reader.segments();
        let full = segments.iter().rev().skip(1).map(|segment| (segment.positions, segment.size));
        let later = full.filter(|(positions, _)| positions.is_some_and(|(first, _)| first > position));
        let later_size: u64 = later.map(|(_, size)| size).sum();
        let tables = self.tables_of(unit);
        let rows_size: usize = tables.iter().map(|id| self.state_size(*id)).sum();
        if later_size > 0 && later_size >= rows_size as u64 {
            self.begin_settled(cx, unit);
        }
    }

    /// The bytes of the records of a topic, and of the state of a view.
    fn state_size(&self, id: TableId) -> usize {
        let groups = self.derived.records_of(id).map_or(0, |records| records.groups_size());
        self.all[id.0 as usize].table.stats().rows_size + groups
    }

    /// Begins a snapshot when no change waits for its views. Until then, reading from publishers is
    /// paused, so that it begins.
    fn begin_settled(&mut self, cx: &mut Context, unit: Unit) {
        let tables = self.tables_of(unit);
        let is_container = matches!(unit, Unit::Container(_));
        let has_views = tables.iter().any(|id| self.is_view(*id));
        let must_settle = !is_container && has_views && self.has_waiting_changes();
        // Reading from publishers continues in the next turn.
        cx.clock.wants_turn |= self.snapshots.is_settling() && !must_settle;
        self.snapshots.settling = must_settle.then_some(unit);
        if must_settle {
            return;
        }
        let position = cx.log.appended();
        let copies_size_max = usize::try_from(cx.config.limits.max_query_copies).unwrap_or(usize::MAX);
        let together = if has_views { number_of(cx.clock.now.wall) } else { 0 };
        let beginning = Beginning { position, together, copies_size_max };
        let (begun, left) = match is_container {
            true => (VecDeque::new(), tables.into()),
            false => {
                (tables.into_iter().map(|id| self.begin_table(id, beginning)).collect(), VecDeque::new())
            }
        };
        let step = Step::Writing(Box::new(Writing { begun, done: Vec::new(), left }));
        self.snapshots.current = Some(Current { unit, position, step });
    }

    /// Begins to read the rows of a topic, and the state of a view.
    fn begin_table(&mut self, id: TableId, beginning: Beginning) -> Begun {
        let Beginning { position, together, copies_size_max } = beginning;
        let unrecorded_count = self.unrecorded_count;
        let state = self.state(id);
        let owner = state.owner();
        let head = SnapshotHead { position, stamp: [0; 24], together };
        let writer = SnapshotWriter::new(&mut state.table, &owner, &head, copies_size_max);
        let (topic, is_ordered) = (state.definition.name.clone(), state.table.keeps_order());
        let stamp = state.definition.view.is_some().then(|| {
            let mut stamp = [0; 24];
            stamp[..8].copy_from_slice(&unrecorded_count.to_le_bytes());
            stamp
        });
        if let Some(records) = self.derived.records_mut(id) {
            records.begin_saving();
        }
        let section = Section { topic, owner, position, together, stamp, is_ordered, parts: Vec::new() };
        Begun { table: id, writer, section }
    }

    /// The rows after a portion was added to the section.
    fn write_portion(&mut self, begun: &mut Begun) -> SnapshotState {
        let Begun { table, writer, section } = begun;
        if section.parts.last().is_none_or(|part| part.len() >= PART_SIZE) {
            section.parts.push(Vec::new());
        }
        let Some(part) = section.parts.last_mut() else { return SnapshotState::TooManyCopies };
        let Tables { all, derived, .. } = self;
        let mut records = derived.records_mut(*table);
        let save =
            &mut |effort, out: &mut Vec<u8>| records.as_mut().and_then(|records| records.save(effort, out));
        writer.write_with(&mut all[table.0 as usize].table, EFFORT, part, save)
    }

    /// All topics of a snapshot at once.
    fn sections(&mut self, tables: Vec<TableId>, beginning: Beginning) -> Vec<Section> {
        let begun: Vec<Begun> = tables.into_iter().map(|id| self.begin_table(id, beginning)).collect();
        let whole = begun.into_iter().map(|mut begun| {
            while self.write_portion(&mut begun) == SnapshotState::More {}
            begun.section
        });
        whole.collect()
    }

    /// The next portions; `None` when the snapshot was given up.
    fn continue_snapshot(&mut self, cx: &mut Context, unit: Unit, mut writing: Box<Writing>) -> Option<Step> {
        let deadline = cx.clock.slices.deadline(PASS);
        let copies_size_max = usize::try_from(cx.config.limits.max_query_copies).unwrap_or(usize::MAX);
        loop {
            if writing.begun.is_empty()
                && let Some(id) = writing.left.pop_front()
            {
                // The topic was removed, and another topic may have its place. A topic that was
                // created again has only messages after the beginning of the snapshot, and needs
                // no section.
                let state = self.state(id);
                if matches!(unit, Unit::Container(own) if state.is_free || state.container != Some(own)) {
                    continue;
                }
                let beginning = Beginning { position: cx.log.appended(), together: 0, copies_size_max };
                writing.begun.push_back(self.begin_table(id, beginning));
            }
            let Some(begun) = writing.begun.front_mut() else {
                return Some(Step::Waiting { sections: std::mem::take(&mut writing.done) });
            };
            let mut state = self.write_portion(begun);
            let held = |begun: &Begun| self.derived.records_of(begun.table).map_or(0, |it| it.saving_size());
            if writing.begun.iter().any(|begun| held(begun) > copies_size_max) {
                state = SnapshotState::TooManyCopies;
            }
            match state {
                SnapshotState::More => (),
                SnapshotState::Done { .. } => {
                    writing.done.extend(writing.begun.pop_front().map(|begun| begun.section));
                }
                SnapshotState::TooManyCopies => {
                    self.give_up(writing.begun);
                    let reason = "max_query_copies: the records change faster than the snapshot is written";
                    self.report(cx, unit, reason);
                    return None;
                }
            }
            if cx.clock.slices.is_past(deadline) {
                cx.clock.wants_turn = true;
                return Some(Step::Writing(writing));
            }
        }
    }

    fn give_up(&mut self, begun: VecDeque<Begun>) {
        for Begun { table, writer, .. } in begun {
            writer.close(&mut self.state(table).table);
            if let Some(records) = self.derived.records_mut(table) {
                records.end_saving();
            }
        }
    }

    fn report(&self, cx: &mut Context, unit: Unit, reason: &str) {
        let topics: Vec<String> =
            self.definitions_of(unit).iter().map(|definition| definition.name.to_string()).collect();
        for topic in topics {
            cx.note(Event::SnapshotNotSaved { topic, reason: reason.to_owned() });
        }
    }

    /// The files were written; `None` because of a bug in quire.
    fn snapshot_saved(&mut self, cx: &mut Context, number: u64, saved: Option<Result<(), JournalError>>) {
        let is_current =
            |current: &mut Current| matches!(current.step, Step::Saving { number: own } if own == number);
        let Some(current) = self.snapshots.current.take_if(is_current) else { return };
        match saved {
            Some(Ok(())) => self.set_snapshot(cx, current.unit, current.position),
            Some(Err(error)) => self.report(cx, current.unit, &error.to_string()),
            None => self.report(cx, current.unit, "the job failed"),
        }
    }

    fn set_snapshot(&mut self, cx: &Context, unit: Unit, position: Position) {
        match unit {
            Unit::Topics(_) => {
                self.tables_of(unit).into_iter().for_each(|id| self.state(id).snapshot_position = position);
            }
            Unit::Container(id) => self.containers[id.0 as usize].snapshot_position = position,
        }
        self.pin_log(cx);
    }

    /// Keeps the journal files that the topics need from being removed.
    pub(super) fn pin_log(&mut self, cx: &Context) {
        let needed = self.first_needed(cx).map(|needed| Position::new(needed.get() - 1));
        self.pin = needed.map(|after| cx.log.reader.cursor(after));
    }

    /// The first position of the log that a topic needs. A view needs none.
    pub(super) fn first_needed(&self, cx: &Context) -> Option<Position> {
        let topics = self.all.iter().filter(|state| state.has_file && state.definition.view.is_none());
        let containers = self.containers.iter().filter(|container| container.definition.is_persistent());
        let positions = topics.map(|state| state.snapshot_position);
        let positions = positions.chain(containers.map(|container| container.snapshot_position));
        let needed = positions.map(Position::next).min()?;
        Some(needed.max(cx.log.reader.first()))
    }

    /// Ends the service: waits for the disk, and writes a snapshot of each topic.
    ///
    /// # Errors
    /// The error of the journal. Acknowledged messages are safe.
    pub(crate) fn close(&mut self, cx: &mut Context) -> Result<(), JournalError> {
        self.write_uncertain_views()?;
        let units: Vec<_> = self.units().collect();
        if units.is_empty() {
            return Ok(());
        }
        cx.log.journal.flush(FLUSH_AT_CLOSE_MAX)?;
        let position = cx.log.appended();
        if cx.has_failed() || cx.log.journal.persisted() < position {
            return Ok(());
        }
        self.snapshots.current = None;
        self.end_unfinished_build();
        self.derive_all(cx);
        let together = number_of(cx.clock.now.wall);
        for (unit, _) in units.into_iter().filter(|(_, old)| *old != position) {
            let tables = self.tables_of(unit);
            let has_views = tables.iter().any(|id| self.is_view(*id));
            let together = if has_views { together } else { 0 };
            let beginning = Beginning { position, together, copies_size_max: usize::MAX };
            let sections = self.sections(tables, beginning);
            self.files_of(cx, unit, position, sections).into_iter().try_for_each(SnapshotFile::write)?;
        }
        Ok(())
    }

    /// Reads the snapshots of the topics, and stores the positions up to which they include the
    /// log.
    ///
    /// # Errors
    /// A damaged snapshot, when the log no longer has its first record.
    pub(super) fn load_snapshots(
        &mut self,
        cx: &mut Context,
        run_steps: &dyn Fn(SnapshotSteps) -> SnapshotParts,
    ) -> Result<(), JournalError> {
        let files = self.snapshots.files.clone();
        let existing = files.files()?;
        let known = read_names(&files)?;
        for (unit, _) in self.units().collect::<Vec<_>>() {
            match unit {
                Unit::Container(id) => {
                    let name = self.containers[id.0 as usize].definition.name.to_string();
                    let tables = self.tables_of(unit);
                    if !self.is_found(cx, &name, &existing, &known)? {
                        self.write_empty(cx, unit, &tables)?;
                        continue;
                    }
                    let loaded = match self.load_container(cx, &snapshot_file(&name), id) {
                        Ok((position, newest)) if newest <= cx.log.journal.persisted() => {
                            self.containers[id.0 as usize].snapshot_position = position;
                            continue;
                        }
                        loaded => loaded.map(|_| ()),
                    };
                    // Topics may have been created.
                    let tables = self.tables_of(unit);
                    self.not_loaded(cx, &name, &tables, loaded)?;
                }
                Unit::Topics(_) => {
                    for id in self.tables_of(unit) {
                        self.load_topic(cx, unit, id, &existing, &known, run_steps)?;
                    }
                }
            }
        }
        // The snapshot of a topic that was removed from the configuration remains until the user
        // removes it.
        let kept = known.iter().filter(|name| existing.contains(&snapshot_file(name))).cloned();
        let own = self.units().flat_map(|(unit, _)| self.definitions_of(unit));
        let own = own.filter(|it| it.view.is_none()).map(|definition| definition.name.to_string());
        let names: BTreeSet<String> = kept.chain(own).collect();
        if names != known { write_names(&files, &names) } else { Ok(()) }
    }

    /// Reads the snapshot of a topic or a view.
    fn load_topic(
        &mut self,
        cx: &mut Context,
        unit: Unit,
        id: TableId,
        existing: &[String],
        known: &BTreeSet<String>,
        run_steps: &dyn Fn(SnapshotSteps) -> SnapshotParts,
    ) -> Result<(), JournalError> {
        let name = self.all[id.0 as usize].definition.name.to_string();
        let file = snapshot_file(&name);
        if self.is_view(id) {
            if existing.contains(&file) {
                self.load_view(cx, id, &file, run_steps);
            }
            return Ok(());
        }
        if !self.is_found(cx, &name, existing, known)? {
            return self.write_empty(cx, unit, &[id]);
        }
        let files = self.snapshots.files.clone();
        let loaded = load(&files, &cx.log.reader, &file, self.state(id), None, run_steps);
        match loaded {
            Ok(head) if head.position <= cx.log.journal.persisted() => {
                self.state(id).set_loaded(&head);
                Ok(())
            }
            loaded => self.not_loaded(cx, &name, &[id], loaded.map(|_| ())),
        }
    }

    /// Reads the snapshot of a view. It is used when it is of the same instant as those of its
    /// sources.
    fn load_view(
        &mut self,
        cx: &mut Context,
        id: TableId,
        file: &str,
        run_steps: &dyn Fn(SnapshotSteps) -> SnapshotParts,
    ) {
        let files = self.snapshots.files.clone();
        let Tables { all, derived, .. } = self;
        let records = derived.records_mut(id);
        let loaded = load(&files, &cx.log.reader, file, &mut all[id.0 as usize], records, run_steps);
        let is_of_sources = |head: &SnapshotHead| {
            let is_of = |source: &TableId| {
                let source = &all[source.0 as usize];
                (source.snapshot_position, source.snapshot_together) == (head.position, head.together)
            };
            head.together != 0 && derived.sources_of(id).iter().all(is_of)
        };
        let reason = match loaded {
            Ok(head) if is_of_sources(&head) => {
                let mut count = [0; 8];
                count.copy_from_slice(&head.stamp[..8]);
                self.unrecorded_count = self.unrecorded_count.max(u64::from_le_bytes(count));
                self.state(id).set_loaded(&head);
                self.derived.set_ready(id);
                return;
            }
            Ok(_) => "it is not of the same instant as the snapshots of its sources".to_owned(),
            Err(None) => "it is of another definition of the view, or of another version".to_owned(),
            Err(Some(reason)) => reason,
        };
        self.clear(cx, id);
        self.derived.clear(&self.all, id);
        let view = self.all[id.0 as usize].definition.name.to_string();
        cx.note(Event::ViewComputedAgain { view, reason });
    }

    /// Whether there is a snapshot of a topic or a container.
    ///
    /// # Errors
    /// It was lost, and the log is not whole.
    fn is_found(
        &self,
        cx: &Context,
        name: &str,
        existing: &[String],
        known: &BTreeSet<String>,
    ) -> Result<bool, JournalError> {
        let file = snapshot_file(name);
        if existing.contains(&file) {
            return Ok(true);
        }
        if known.contains(name) && cx.log.reader.first() > Position::new(1) {
            let reason = format!(
                "the snapshot {file} of the topic {name:?} is missing, and the log has lost older messages. Restore the file \
                 from a backup. To build the topic from the messages that the log has, remove {NAMES_FILE}"
            );
            return Err(JournalError::BadOption { option: "sow_topic", reason });
        }
        Ok(false)
    }

    /// The snapshot of a topic or a container was not read, or only a part of it.
    ///
    /// # Errors
    /// It is damaged, and the log is not whole.
    fn not_loaded(
        &mut self,
        cx: &mut Context,
        name: &str,
        tables: &[TableId],
        loaded: Result<(), Option<String>>,
    ) -> Result<(), JournalError> {
        let file = snapshot_file(name);
        let reason = match loaded {
            Ok(()) | Err(None) => "it is of another log, or of other settings of the topic".to_owned(),
            Err(Some(reason)) if cx.log.reader.first() > Position::new(1) => {
                let reason = format!(
                    "the snapshot {file} of the topic {name:?} is damaged, and the log has lost older messages: {reason}. \
                     Restore the file from a backup. To build the topic from the messages that the log has, remove the file and \
                     {NAMES_FILE}"
                );
                return Err(JournalError::BadOption { option: "sow_topic", reason });
            }
            Err(Some(reason)) => reason,
        };
        tables.iter().for_each(|id| self.clear(cx, *id));
        cx.note(Event::SnapshotNotUsed { topic: name.to_owned(), reason });
        Ok(())
    }

    /// A part of a snapshot may have been read into the table.
    fn clear(&mut self, cx: &Context, id: TableId) {
        let table = self.all[id.0 as usize].definition.new_table(&self.memory);
        let state = self.state(id);
        (state.snapshot_position, state.snapshot_together) = (Position::ZERO, 0);
        if let Ok(table) = table {
            state.table = table;
        }
        self.keep_order(cx, id);
    }

    /// Writes a snapshot that includes no part of the log, so that no other process removes journal
    /// files while the server is stopped.
    fn write_empty(&mut self, cx: &Context, unit: Unit, tables: &[TableId]) -> Result<(), JournalError> {
        let beginning = Beginning { position: Position::ZERO, together: 0, copies_size_max: usize::MAX };
        let sections = self.sections(tables.into(), beginning);
        self.files_of(cx, unit, Position::ZERO, sections).into_iter().try_for_each(SnapshotFile::write)
    }

    /// Reads the snapshot of a container, and creates the tables of its topics. Returns the
    /// position at which the snapshot began, and the newest position of its sections.
    ///
    /// # Errors
    /// `None`: it does not belong to this log and these settings. Otherwise the damage.
    fn load_container(
        &mut self,
        cx: &mut Context,
        file: &str,
        id: ContainerId,
    ) -> Result<(Position, Position), Option<String>> {
        let container = &self.containers[id.0 as usize];
        let opened = self.snapshots.files.open(file, &container.definition.name);
        let (head, content) = opened.ok_or_else(|| Some("its head is damaged".to_owned()))?;
        if ![CONTAINER_VERSION, ORDERED_CONTAINER_VERSION].contains(&head.version) {
            return Err(Some(format!("its version {} is not known to this build", head.version)));
        }
        let mut newest = head.position;
        let mut reader = ContainerReader::begin(content, &self.settings_of(id))?;
        while let Some((name, size)) = reader.next_topic()? {
            let table = self.make_table(cx, id, &name).map_err(|_| None)?;
            let state = self.state(table);
            let position = reader.read_rows(size, &cx.log.reader, state)?;
            state.snapshot_position = position;
            newest = newest.max(position);
        }
        Ok((head.position, newest))
    }
}

/// The number of the snapshots that begin now ([`SnapshotHead`]): a time in microseconds, not 0.
fn number_of(now: Timestamp) -> u64 {
    ((now.as_ns() / 1000) & ((1 << 48) - 1)).max(1)
}

/// Whether the log is persisted up to the positions of all sections.
fn is_persisted(cx: &Context, sections: &[Section]) -> bool {
    sections.iter().all(|section| section.position <= cx.log.journal.persisted())
}

/// The content of [`NAMES_FILE`]. A file that is missing or damaged has no names.
fn read_names(files: &Sidecars) -> Result<BTreeSet<String>, JournalError> {
    Ok(match files.read(NAMES_FILE, NAMES_NAME)? {
        FoundSidecar::Whole(head, content) if head.version == NAMES_VERSION => {
            serde_json::from_slice(&content).unwrap_or_default()
        }
        _ => BTreeSet::new(),
    })
}

fn write_names(files: &Sidecars, names: &BTreeSet<String>) -> Result<(), JournalError> {
    let content = serde_json::json!(names).to_string();
    let head = SidecarHead { version: NAMES_VERSION, ..SidecarHead::default() };
    files.write(NAMES_FILE, NAMES_NAME, head, &[content.as_bytes()])
}
