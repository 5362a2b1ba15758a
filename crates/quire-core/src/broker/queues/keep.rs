//! The states of queues that are kept in files, so that a restart reads them and the log behind them, and in memory that can be paged out
//! (`file_backed_metadata`; seed 000, docs/queues.md sections 5 and 6).
//!
//! A state is written a portion a turn, and goes into its file when the log has everything that it may contain. The file names the last
//! record of the log that it rests on: beside another log, or a log that was cut, it says nothing. Whatever is wrong with it, the queue
//! is rebuilt from the log.

use std::collections::VecDeque;
use std::io::{self, Read};
use std::time::Duration;

use quire_journal::{AllTopics, Journal, JournalError, Memory, Position, QueueStates, Reader};

use super::{BrokerQueues, Definition, Purpose, QueueWork};
use crate::broker::{Broker, Event, Output};
use crate::queue::{QueueId, Snapshot};
use crate::time::Instant;

/// The time between two writes of a state that changes: what a crash costs is reading the records of this time again.
const KEEP_INTERVAL: Duration = Duration::from_secs(60);

/// Messages that go into a snapshot in one turn: about a millisecond of work.
const PORTION_COUNT_MAX: u64 = 256 * 1024;

/// What is kept, and when.
pub(super) struct Keeping {
    files: QueueStates,
    /// The queues whose states are kept.
    queues: Vec<QueueId>,
    /// Those that wait for their turn.
    line: VecDeque<QueueId>,
    draft: Option<Draft>,
    is_under_way: bool,
    due: Option<Instant>,
    /// What the states of these queues lie in.
    memory: Memory,
    /// Why that is the heap, until it is told.
    unpaged: Option<io::Error>,
}

/// A state on its way into its file.
struct Draft {
    queue: QueueId,
    snapshot: Snapshot,
    /// Everything of the log up to here is in it.
    after: Position,
    /// Of a whole one: everything that is in it is in the log when this is persisted.
    rests_on: Option<Position>,
}

impl Keeping {
    pub fn new(journal: &Journal, definitions: &[Definition]) -> Self {
        let all = (0..).map(QueueId::new).zip(definitions);
        let queues: Vec<QueueId> =
            all.filter(|(_, definition)| definition.keeps_state()).map(|(queue, _)| queue).collect();
        let memory = if queues.is_empty() { Ok(Memory::heap()) } else { journal.queue_memory() };
        let (memory, unpaged) = match memory {
            Ok(memory) => (memory, None),
            Err(error) => (Memory::heap(), Some(error)),
        };
        Keeping {
            files: journal.queue_states(),
            queues,
            line: VecDeque::new(),
            draft: None,
            is_under_way: false,
            due: None,
            memory,
            unpaged,
        }
    }

    /// What the state of a queue lies in.
    pub fn memory_of(&self, definition: &Definition) -> Memory {
        if definition.keeps_state() { self.memory.clone() } else { Memory::heap() }
    }

    /// When to begin again.
    pub fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Removes the files of queues that do not keep theirs.
    pub fn tidy(&self, definitions: &[std::sync::Arc<Definition>]) -> Result<(), JournalError> {
        let names: Vec<&str> =
            self.queues.iter().map(|queue| &*definitions[queue.get() as usize].name).collect();
        self.files.retain(&names)
    }
}

impl BrokerQueues {
    /// Gives a queue the state that was kept, if it is of use: gives the position up to which it holds the log.
    pub(super) fn load_state(
        &mut self,
        reader: &Reader,
        queue: QueueId,
        settled: Position,
    ) -> Option<Position> {
        let definition = self.definition(queue).clone();
        if !definition.keeps_state() {
            return None;
        }
        let mut file = self.keeping.files.read(&definition.name)?;
        let mut head = vec![0; 4 + definition.state_key.len() + PLACE_SIZE];
        file.read_exact(&mut head).ok()?;
        let (key, place) = head.split_at(head.len() - PLACE_SIZE);
        let (size, key) = key.split_first_chunk::<4>()?;
        let after = Position::new(u64::from_le_bytes(place[..8].try_into().ok()?));
        // Without the log from there on it is worth nothing.
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

impl Broker {
    /// Takes the writing of states one step on.
    pub(super) fn keep_states(&mut self) {
        let (now, edge, persisted) = (self.now.instant, self.edge, self.journal.persisted());
        let BrokerQueues { keeping, engine, dead_letters, .. } = &mut self.queues;
        if keeping.queues.is_empty() {
            return;
        }
        if let Some(error) = keeping.unpaged.take().or_else(|| keeping.memory.take_failure()) {
            self.outputs.push_back(Output::Log(Event::QueuesNotPaged { reason: error.to_string() }));
        }
        if self.failure.is_some() {
            return;
        }
        let due = *keeping.due.get_or_insert(now + KEEP_INTERVAL);
        if due <= now {
            keeping.due = Some(now + KEEP_INTERVAL);
            if keeping.line.is_empty() {
                keeping.line.extend(&keeping.queues);
            }
        }
        if keeping.draft.is_none()
            && let Some(queue) = keeping.line.pop_front()
        {
            let snapshot = Snapshot::new(&keeping.memory);
            keeping.draft = Some(Draft { queue, snapshot, after: edge, rests_on: None });
        }
        let Some(draft) = &mut keeping.draft else { return };
        if draft.rests_on.is_none() {
            if !engine.write_snapshot(draft.queue, &mut draft.snapshot, PORTION_COUNT_MAX) {
                self.wants_turn = true;
                return;
            }
            // What expired is not in the log before its dead letter is: another time, then.
            if dead_letters.first(draft.queue).is_some() {
                keeping.draft = None;
                self.wants_turn |= !keeping.line.is_empty();
                return;
            }
            draft.rests_on = Some(self.journal.appended());
        }
        let is_ready = |draft: &mut Draft| draft.rests_on.is_some_and(|position| position <= persisted);
        if !keeping.is_under_way
            && let Some(draft) = keeping.draft.take_if(is_ready)
        {
            keeping.is_under_way = true;
            let files = keeping.files.clone();
            let definition = self.queues.definition(draft.queue).clone();
            let state = State {
                after: draft.after,
                snapshot: draft.snapshot,
                reader: self.reader.clone(),
                definition,
            };
            self.begin_work(Purpose::Keep, QueueWork::Keep { files, state });
        }
    }

    pub(super) fn state_kept(&mut self, result: Option<Result<(), JournalError>>) {
        self.queues.keeping.is_under_way = false;
        self.wants_turn |= self.queues.keeping.draft.is_some() || !self.queues.keeping.line.is_empty();
        // The old file costs recovery time, nothing else.
        if let Some(Err(error)) = result {
            self.outputs.push_back(Output::Log(Event::QueuePointsNotSaved { reason: error.to_string() }));
        }
    }

    /// At the end: everything is in the log, so the files can say all of it. Waits for the disk.
    pub(in crate::broker) fn keep_at_end(&mut self) -> Result<(), JournalError> {
        let BrokerQueues { keeping, engine, dead_letters, all, .. } = &self.queues;
        for queue in &keeping.queues {
            if dead_letters.first(*queue).is_some() {
                continue;
            }
            let mut snapshot = Snapshot::new(&keeping.memory);
            while !engine.write_snapshot(*queue, &mut snapshot, u64::MAX) {}
            let definition = all[queue.get() as usize].clone();
            let state = State { after: self.edge, snapshot, reader: self.reader.clone(), definition };
            state.write(&keeping.files)?;
        }
        Ok(())
    }
}

/// A whole state.
pub(crate) struct State {
    after: Position,
    snapshot: Snapshot,
    reader: Reader,
    definition: std::sync::Arc<Definition>,
}

impl State {
    /// Writes it into its file. Waits for the disk.
    pub fn write(self, files: &QueueStates) -> Result<(), JournalError> {
        let Definition { state_key, name, .. } = &*self.definition;
        // A place that cannot be read is damaged: the queue is rebuilt from what is left of the log.
        let Some(place) = place_of(&self.reader, self.after) else { return Ok(()) };
        let size = (state_key.len() as u32).to_le_bytes();
        let head = [&size[..], state_key.as_bytes(), &place];
        let parts: Vec<&[u8]> = head.into_iter().chain(self.snapshot.parts()).collect();
        files.write(name, &parts)
    }
}

/// A position, and the time and the bookmark of the record there.
const PLACE_SIZE: usize = 32;

/// What tells the log up to a position from any other; `None` when the log does not have the record.
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
