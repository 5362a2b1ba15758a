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

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use quire_journal::{FoundSidecar, Journal, JournalError, Position, SidecarHead, Sidecars};
use quire_table::{SnapshotHead, SnapshotOwner, SnapshotState, SnapshotWriter, snapshot_file};

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
    current: Option<Current>,
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

/// The topics of one snapshot file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unit {
    Topic(TableId),
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
    current: Option<(TableId, SnapshotWriter, Section)>,
    done: Vec<Section>,
    /// The topics that follow.
    left: VecDeque<TableId>,
}

impl Snapshots {
    pub fn new(journal: &Journal) -> Self {
        Snapshots { files: journal.sidecars(), current: None, look_due: None, looked_to: Position::ZERO }
    }
}

impl TableState {
    /// Whether it has a snapshot file.
    fn has_file(&self) -> bool {
        self.container.is_none() && self.definition.is_persistent()
    }

    pub(super) fn owner(&self) -> SnapshotOwner {
        let definition = &self.definition;
        SnapshotOwner::new(&definition.name, definition.message_type, &definition.key_rule)
    }

    /// Begins to read the rows for a snapshot at a position.
    fn begin_section(&mut self, position: Position, copies_size_max: usize) -> (SnapshotWriter, Section) {
        let owner = self.owner();
        let head = SnapshotHead { position, stamp: [0; 24] };
        let writer = SnapshotWriter::new(&mut self.table, &owner, &head, copies_size_max);
        let (topic, is_ordered) = (self.definition.name.clone(), self.table.keeps_order());
        (writer, Section { topic, owner, position, is_ordered, parts: Vec::new() })
    }

    /// All rows at once.
    fn section(&mut self, position: Position) -> Section {
        let (mut writer, mut section) = self.begin_section(position, usize::MAX);
        while self.write_portion(&mut writer, &mut section.parts) == SnapshotState::More {}
        section
    }

    /// The rows after a portion was added to the parts.
    fn write_portion(&mut self, writer: &mut SnapshotWriter, parts: &mut Vec<Vec<u8>>) -> SnapshotState {
        if parts.last().is_none_or(|part| part.len() >= PART_SIZE) {
            parts.push(Vec::new());
        }
        match parts.last_mut() {
            Some(part) => writer.write(&mut self.table, EFFORT, part),
            None => SnapshotState::TooManyCopies,
        }
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
                let file = self.file_of(cx, current.unit, current.position, sections);
                let number = cx.begin_job(move |_| file.write(), Tables::snapshot_saved);
                Step::Saving { number }
            }
            step => step,
        };
        self.snapshots.current = Some(current);
    }

    fn file_of(&self, cx: &Context, unit: Unit, position: Position, sections: Vec<Section>) -> SnapshotFile {
        SnapshotFile {
            files: self.snapshots.files.clone(),
            reader: cx.log.reader.clone(),
            name: self.definition_of(unit).name.to_string(),
            container: match unit {
                Unit::Topic(_) => None,
                Unit::Container(id) => Some(self.settings_of(id)),
            },
            position,
            sections,
        }
    }

    fn definition_of(&self, unit: Unit) -> &TableDefinition {
        match unit {
            Unit::Topic(id) => &self.all[id.0 as usize].definition,
            Unit::Container(id) => &self.containers[id.0 as usize].definition,
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

    /// The snapshots of persistent topics and containers.
    fn units(&self) -> impl Iterator<Item = (Unit, Position)> {
        let topics = (0..).map(TableId).zip(&self.all).filter(|(_, state)| state.has_file());
        let topics = topics.map(|(id, state)| (Unit::Topic(id), state.snapshot_position));
        let containers = (0..).map(ContainerId).zip(&self.containers);
        let containers = containers.filter(|(_, container)| container.definition.is_persistent());
        topics.chain(containers.map(|(id, it)| (Unit::Container(id), it.snapshot_position)))
    }

    fn tables_of(&self, unit: Unit) -> Vec<TableId> {
        match unit {
            Unit::Topic(id) => vec![id],
            Unit::Container(id) => self.containers[id.0 as usize].tables.clone(),
        }
    }

    /// Begins a snapshot of the topic with the oldest newest snapshot, when the log after it has a
    /// full file and at least as many bytes as the records. So the snapshots together have at most
    /// the size of the log.
    fn look(&mut self, cx: &mut Context) {
        let appended = cx.log.appended();
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
        let rows_size: usize = tables.iter().map(|id| self.all[id.0 as usize].table.stats().rows_size).sum();
        if later_size > 0 && later_size >= rows_size as u64 {
            let step =
                Step::Writing(Box::new(Writing { current: None, done: Vec::new(), left: tables.into() }));
            self.snapshots.current = Some(Current { unit, position: appended, step });
        }
    }

    /// The next portions; `None` when the snapshot was given up.
    fn continue_snapshot(&mut self, cx: &mut Context, unit: Unit, mut writing: Box<Writing>) -> Option<Step> {
        let deadline = cx.clock.slices.deadline(PASS);
        let copies_size_max = usize::try_from(cx.config.limits.max_query_copies).unwrap_or(usize::MAX);
        loop {
            let (id, mut writer, mut section) = match writing.current.take() {
                Some(current) => current,
                None => {
                    let Some(id) = writing.left.pop_front() else {
                        return Some(Step::Waiting { sections: std::mem::take(&mut writing.done) });
                    };
                    // The topic was removed, and another topic may have its place. A topic that was
                    // created again has only messages after the beginning of the snapshot, and
                    // needs no section.
                    let state = self.state(id);
                    if matches!(unit, Unit::Container(own) if state.is_free || state.container != Some(own)) {
                        continue;
                    }
                    let position = cx.log.appended();
                    let (writer, section) = self.state(id).begin_section(position, copies_size_max);
                    (id, writer, section)
                }
            };
            match self.state(id).write_portion(&mut writer, &mut section.parts) {
                SnapshotState::More => writing.current = Some((id, writer, section)),
                SnapshotState::Done { .. } => writing.done.push(section),
                SnapshotState::TooManyCopies => {
                    let reason = "max_query_copies: the records change faster than the snapshot is written";
                    self.report(cx, unit, reason.to_owned());
                    return None;
                }
            }
            if cx.clock.slices.is_past(deadline) {
                cx.clock.wants_turn = true;
                return Some(Step::Writing(writing));
            }
        }
    }

    fn report(&self, cx: &mut Context, unit: Unit, reason: String) {
        let topic = self.definition_of(unit).name.to_string();
        cx.note(Event::SnapshotNotSaved { topic, reason });
    }

    /// The file was written; `None` because of a bug in quire.
    fn snapshot_saved(&mut self, cx: &mut Context, number: u64, saved: Option<Result<(), JournalError>>) {
        let is_current =
            |current: &mut Current| matches!(current.step, Step::Saving { number: own } if own == number);
        let Some(current) = self.snapshots.current.take_if(is_current) else { return };
        match saved {
            Some(Ok(())) => self.set_snapshot(cx, current.unit, current.position),
            Some(Err(error)) => self.report(cx, current.unit, error.to_string()),
            None => self.report(cx, current.unit, "the job failed".to_owned()),
        }
    }

    fn set_snapshot(&mut self, cx: &Context, unit: Unit, position: Position) {
        match unit {
            Unit::Topic(id) => self.state(id).snapshot_position = position,
            Unit::Container(id) => self.containers[id.0 as usize].snapshot_position = position,
        }
        self.pin_log(cx);
    }

    /// Keeps the journal files that the topics need from being removed.
    pub(super) fn pin_log(&mut self, cx: &Context) {
        let needed = self.first_needed(cx).map(|needed| Position::new(needed.get() - 1));
        self.pin = needed.map(|after| cx.log.reader.cursor(after));
    }

    /// The first position of the log that a topic needs.
    pub(super) fn first_needed(&self, cx: &Context) -> Option<Position> {
        let needed = self.units().map(|(_, position)| position.next()).min()?;
        Some(needed.max(cx.log.reader.first()))
    }

    /// Ends the service: waits for the disk, and writes a snapshot of each topic.
    ///
    /// # Errors
    /// The error of the journal. Acknowledged messages are safe.
    pub(crate) fn close(&mut self, cx: &mut Context) -> Result<(), JournalError> {
        let units: Vec<_> = self.units().collect();
        if units.is_empty() {
            return Ok(());
        }
        cx.log.journal.flush(FLUSH_AT_CLOSE_MAX)?;
        let position = cx.log.appended();
        if cx.has_failed() || cx.log.journal.persisted() < position {
            return Ok(());
        }
        for (unit, _) in units.into_iter().filter(|(_, old)| *old != position) {
            let tables = self.tables_of(unit).into_iter();
            let sections = tables.map(|id| self.state(id).section(position)).collect();
            self.file_of(cx, unit, position, sections).write()?;
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
            let name = self.definition_of(unit).name.to_string();
            let file = snapshot_file(&name);
            if !existing.contains(&file) {
                if known.contains(&name) && cx.log.reader.first() > Position::new(1) {
                    let reason = format!(
                        "the snapshot {file} of the topic {name:?} is missing, and the log has lost older messages. Restore the file \
                         from a backup. To build the topic from the messages that the log has, remove {NAMES_FILE}"
                    );
                    return Err(JournalError::BadOption { option: "sow_topic", reason });
                }
                self.write_empty(cx, unit)?;
                continue;
            }
            let loaded = match unit {
                Unit::Topic(id) => load(&files, &cx.log.reader, &file, self.state(id), run_steps),
                Unit::Container(id) => self.load_container(cx, &file, id),
            };
            let reason = match loaded {
                Ok((position, newest)) if newest <= cx.log.journal.persisted() => {
                    match unit {
                        Unit::Topic(id) => self.state(id).snapshot_position = position,
                        Unit::Container(id) => self.containers[id.0 as usize].snapshot_position = position,
                    }
                    continue;
                }
                Ok(_) | Err(None) => "it is of another log, or of other settings of the topic".to_owned(),
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
            // A part of the snapshot may have been read.
            for id in self.tables_of(unit) {
                let table = self.all[id.0 as usize].definition.new_table(&self.memory);
                let state = self.state(id);
                state.snapshot_position = Position::ZERO;
                if let Ok(table) = table {
                    state.table = table;
                }
                self.keep_order(cx, id);
            }
            cx.note(Event::SnapshotNotUsed { topic: name, reason });
        }
        // The snapshot of a topic that was removed from the configuration remains until the user
        // removes it.
        let kept = known.iter().filter(|name| existing.contains(&snapshot_file(name))).cloned();
        let own = self.units().map(|(unit, _)| self.definition_of(unit).name.to_string());
        let names: BTreeSet<String> = kept.chain(own).collect();
        if names != known { write_names(&files, &names) } else { Ok(()) }
    }

    /// Writes a snapshot that includes no part of the log, so that no other process removes journal
    /// files while the server is stopped.
    fn write_empty(&mut self, cx: &Context, unit: Unit) -> Result<(), JournalError> {
        let tables = self.tables_of(unit).into_iter();
        let sections = tables.map(|id| self.state(id).section(Position::ZERO)).collect();
        self.file_of(cx, unit, Position::ZERO, sections).write()
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
