//! Snapshots of queues in files, so that a restart reads them and only the end of the log. Also
//! states of queues in memory that can be paged out (`file_backed_metadata`; docs/queues.md
//! sections 5 and 6).
//!
//! A state is written in portions, one per turn. It is written to its file when the log has every
//! change that it may contain. The file names the last record of the log that it covers. With
//! another log, or a log that was cut, the file is not used. When anything in it is wrong, the
//! queue is rebuilt from the log.

use std::collections::VecDeque;
use std::io::Read;
use std::time::Duration;

use quire_journal::{AllTopics, Journal, JournalError, Memory, Position, Reader};

use super::sidecars::QueueStates;
use super::{Definition, QueueService};
use crate::Event;
use crate::context::Context;
use crate::paged::PagedMemory;
use quire_queue::{QueueId, Snapshot};
use quire_types::time::Instant;

/// The time between two writes of a state that changes. After a crash, the records of this time are
/// read again.
const SNAPSHOT_INTERVAL: Duration = Duration::from_secs(60);

/// The messages that are added to a snapshot in one turn: about a millisecond of work.
const PORTION_COUNT_MAX: u64 = 256 * 1024;

/// The snapshots, and when the next ones are due.
pub(super) struct Snapshots {
    files: QueueStates,
    /// The queues with snapshots.
    queues: Vec<QueueId>,
    /// Those that wait for their turn.
    line: VecDeque<QueueId>,
    draft: Option<Draft>,
    is_under_way: bool,
    due: Option<Instant>,
    /// The memory that holds the states of these queues.
    memory: PagedMemory,
}

/// A snapshot on its way into its file.
struct Draft {
    queue: QueueId,
    snapshot: Snapshot,
    /// Everything of the log up to here is in it.
    after: Position,
    /// Of a whole one: the log has everything in it when this position is persisted.
    rests_on: Option<Position>,
}

impl Snapshots {
    pub fn new(journal: &Journal, definitions: &[Definition]) -> Self {
        let all = (0..).map(QueueId::new).zip(definitions);
        let queues: Vec<QueueId> =
            all.filter(|(_, definition)| definition.keeps_state()).map(|(queue, _)| queue).collect();
        let keeps_any = !queues.is_empty();
        let mut snapshots = Snapshots {
            files: QueueStates::new(journal.sidecars()),
            queues,
            line: VecDeque::new(),
            draft: None,
            is_under_way: false,
            due: None,
            memory: PagedMemory::default(),
        };
        if keeps_any {
            snapshots.memory.open(journal);
        }
        snapshots
    }

    /// Prepares for the state of a queue that is created.
    pub fn prepare(&mut self, journal: &Journal, definition: &Definition) {
        if definition.keeps_state() {
            self.memory.open(journal);
        }
    }

    /// A queue was created.
    pub fn add(&mut self, queue: QueueId, definition: &Definition) {
        if definition.keeps_state() {
            self.queues.push(queue);
        }
    }

    /// No state of the queue is written any more.
    pub fn forget(&mut self, queue: QueueId) {
        self.queues.retain(|other| *other != queue);
        self.line.retain(|other| *other != queue);
        self.draft.take_if(|draft| draft.queue == queue);
    }

    /// Whether the state of a queue may be being written.
    pub fn is_writing(&self) -> bool {
        self.is_under_way
    }

    /// The memory that holds the state of a queue.
    pub fn memory_of(&self, definition: &Definition) -> Memory {
        if definition.keeps_state() { self.memory.get() } else { Memory::heap() }
    }

    /// Memory that can be paged out, for state that no queue keeps.
    pub fn pageable_memory(&mut self, journal: &Journal) -> &Memory {
        self.memory.open(journal)
    }

    /// When to begin again.
    pub fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Removes the files of queues without snapshots.
    pub fn tidy(&self, definitions: &[std::sync::Arc<Definition>]) -> Result<(), JournalError> {
        let names: Vec<&str> =
            self.queues.iter().map(|queue| &*definitions[queue.get() as usize].name).collect();
        self.files.retain(&names)
    }
}

impl QueueService {
    /// Loads the snapshot of a queue, if it fits the log; gives the position up to which it holds
    /// the log.
    pub(super) fn load_snapshot(
        &mut self,
        reader: &Reader,
        queue: QueueId,
        settled: Position,
    ) -> Option<Position> {
        let definition = self.definition(queue).clone();
        if !definition.keeps_state() {
            return None;
        }
        let mut file = self.snapshots.files.read(&definition.name)?;
        let mut head = vec![0; 4 + definition.state_key.len() + PLACE_SIZE];
        file.read_exact(&mut head).ok()?;
        let (key, place) = head.split_at(head.len() - PLACE_SIZE);
        let (size, key) = key.split_first_chunk::<4>()?;
        let after = Position::new(u64::from_le_bytes(place[..8].try_into().ok()?));
        // It cannot be used without the log from there on.
        let is_of_use = u32::from_le_bytes(*size) as usize == key.len()
            && key == definition.state_key.as_bytes()
            && after >= settled
            && place_of(reader, after)? == place;
        if !is_of_use {
            return None;
        }
        self.engine.read_snapshot(queue, file, reader.first()).ok().map(|()| after)
    }
}

impl QueueService {
    /// Continues the snapshot under way, or begins the next one when it is due.
    pub(super) fn write_snapshots(&mut self, cx: &mut Context) {
        let (now, served, persisted) = (cx.clock.now.instant, cx.log.served, cx.log.journal.persisted());
        let ahead_ns = self.wall_ahead_ns(cx.clock.now);
        let QueueService { snapshots, engine, dead_letters, fills, .. } = self;
        // The count of left-out messages at the start may have used it, also without such queues.
        if let Some(error) = snapshots.memory.take_failure() {
            cx.note(Event::QueuesNotPaged { reason: error.to_string() });
        }
        if snapshots.queues.is_empty() {
            // The last one was removed.
            snapshots.due = None;
            return;
        }
        let due = *snapshots.due.get_or_insert(now + SNAPSHOT_INTERVAL);
        if due <= now {
            snapshots.due = Some(now + SNAPSHOT_INTERVAL);
            if snapshots.line.is_empty() {
                // A queue that still reads the log does not have everything up to the tail.
                let whole = snapshots.queues.iter().filter(|queue| fills.read_to(**queue).is_none());
                snapshots.line.extend(whole);
            }
        }
        if cx.log.failure.is_some() {
            return;
        }
        if snapshots.draft.is_none()
            && let Some(queue) = snapshots.line.pop_front()
        {
            let snapshot = Snapshot::new(&snapshots.memory.get());
            snapshots.draft = Some(Draft { queue, snapshot, after: served, rests_on: None });
        }
        let Some(draft) = &mut snapshots.draft else { return };
        if draft.rests_on.is_none() {
            if !engine.write_snapshot(draft.queue, &mut draft.snapshot, PORTION_COUNT_MAX, ahead_ns) {
                cx.clock.wants_turn = true;
                return;
            }
            // An expired message is not in the log before its dead letter is. So the snapshot is
            // made later.
            if dead_letters.first(draft.queue).is_some() {
                snapshots.draft = None;
                cx.clock.wants_turn |= !snapshots.line.is_empty();
                return;
            }
            draft.rests_on = Some(cx.log.journal.appended());
        }
        let is_ready = |draft: &mut Draft| draft.rests_on.is_some_and(|position| position <= persisted);
        if !snapshots.is_under_way
            && let Some(draft) = snapshots.draft.take_if(is_ready)
        {
            snapshots.is_under_way = true;
            let files = snapshots.files.clone();
            let definition = self.definition(draft.queue).clone();
            let state = WholeState {
                after: draft.after,
                snapshot: draft.snapshot,
                reader: cx.log.reader.clone(),
                definition,
            };
            cx.begin_job(move |_| state.write(&files), QueueService::snapshot_saved);
        }
    }

    /// Removes the file with the state of a queue that was removed. A file that could not be
    /// removed is not read.
    pub(super) fn remove_state(&mut self, cx: &mut Context, definition: &Definition) {
        if definition.keeps_state() {
            self.snapshots.is_under_way = true;
            let (files, queue) = (self.snapshots.files.clone(), definition.name.clone());
            cx.begin_job(move |_| files.remove(&queue), QueueService::snapshot_saved);
        }
    }

    fn snapshot_saved(&mut self, cx: &mut Context, _number: u64, result: Option<Result<(), JournalError>>) {
        self.snapshots.is_under_way = false;
        cx.clock.wants_turn |= self.snapshots.draft.is_some() || !self.snapshots.line.is_empty();
        // The old file only costs recovery time.
        if let Some(Err(error)) = result {
            cx.note(Event::QueuePointsNotSaved { reason: error.to_string() });
        }
    }

    /// At the end: the log has every change, so the files can contain all of them. Waits for the
    /// disk.
    pub(crate) fn write_snapshots_at_end(&mut self, cx: &mut Context) -> Result<(), JournalError> {
        let ahead_ns = self.wall_ahead_ns(cx.clock.now);
        let QueueService { snapshots, engine, dead_letters, fills, all, .. } = self;
        for queue in &snapshots.queues {
            if dead_letters.first(*queue).is_some() || fills.read_to(*queue).is_some() {
                continue;
            }
            let mut snapshot = Snapshot::new(&snapshots.memory.get());
            while !engine.write_snapshot(*queue, &mut snapshot, u64::MAX, ahead_ns) {}
            let definition = all[queue.get() as usize].clone();
            let state =
                WholeState { after: cx.log.served, snapshot, reader: cx.log.reader.clone(), definition };
            state.write(&snapshots.files)?;
        }
        Ok(())
    }
}

/// A whole state.
pub(crate) struct WholeState {
    after: Position,
    snapshot: Snapshot,
    reader: Reader,
    definition: std::sync::Arc<Definition>,
}

impl WholeState {
    /// Writes it into its file. Waits for the disk.
    pub fn write(self, files: &QueueStates) -> Result<(), JournalError> {
        let Definition { state_key, name, .. } = &*self.definition;
        // A place that cannot be read is damaged: the queue is rebuilt from the rest of the log.
        let Some(place) = place_of(&self.reader, self.after) else { return Ok(()) };
        let size = (state_key.len() as u32).to_le_bytes();
        let head = [&size[..], state_key.as_bytes(), &place];
        let parts: Vec<&[u8]> = head.into_iter().chain(self.snapshot.parts()).collect();
        files.write(name, self.after, &parts)
    }
}

/// A position, and the time and the bookmark of the record there.
const PLACE_SIZE: usize = 32;

/// The bytes that identify the log up to a position; `None` when the log does not have the record.
fn place_of(reader: &Reader, position: Position) -> Option<[u8; PLACE_SIZE]> {
    let mut numbers = [position.get(), 0, 0, 0];
    if position > Position::ZERO {
        let mut cursor = reader.cursor(Position::new(position.get() - 1)).sparingly();
        let batch = cursor.next(position, &AllTopics).ok()??;
        let record = batch.records().last().filter(|record| record.position == position)?;
        numbers[1..].copy_from_slice(&[record.timestamp.as_ns(), record.publisher.get(), record.sequence]);
    }
    let mut place = [0; PLACE_SIZE];
    for (to, number) in place.chunks_exact_mut(8).zip(numbers) {
        to.copy_from_slice(&number.to_le_bytes());
    }
    Some(place)
}
