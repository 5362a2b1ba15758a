//! How far queues are done: kept in a file so that recovery need not begin at the first record, and told to whoever removes old journal
//! files (seed 000; reference: queues-and-transaction-log 1.16, Y12).

use std::time::Duration;

use quire_journal::{Cursor, JournalError, Position, QueuePoint, QueuePoints};

use super::{BrokerQueues, Purpose, QueueWork};
use crate::broker::{Broker, Event, Output};
use crate::queue::QueueId;
use crate::time::Instant;

/// The time between two writes of the file while messages are settled: what it saves is reading at most the records of this time at a
/// restart.
const SAVE_INTERVAL: Duration = Duration::from_secs(10);

/// The time between two looks whether the queues need a journal file less than the file says. Then it is written at once, so that whoever
/// removes files waits no longer than this for acknowledgements. A write for each full journal file costs publishers nothing that can
/// be measured; one for each look would have the disk sync every second.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// What is saved, and when.
pub(super) struct Saving {
    file: QueuePoints,
    /// What the file says, by the numbers of the queues; `None` before it says anything.
    saved: Option<Vec<Position>>,
    /// What it is to say once the log is persisted up to the position.
    next: Option<(Position, Vec<Position>)>,
    is_under_way: bool,
    /// When what was settled is saved.
    save_due: Option<Instant>,
    /// When to look whether a journal file is needed no longer.
    look_due: Option<Instant>,
    /// The edge at the last look.
    looked_to: Position,
    /// Stands where the slowest queue needs the log from: what lies behind a cursor is not removed.
    hold: Option<Cursor>,
}

impl Saving {
    pub fn new(file: QueuePoints) -> Self {
        Saving {
            file,
            saved: None,
            next: None,
            is_under_way: false,
            save_due: None,
            look_due: None,
            looked_to: Position::ZERO,
            hold: None,
        }
    }

    /// What the file says at the start.
    pub fn read(&self) -> Option<Vec<QueuePoint>> {
        self.file.read()
    }

    /// When to look whether something is to be saved. While the log has to be written first, its flush wakes the broker.
    pub fn due(&self) -> Option<Instant> {
        if self.is_under_way || self.next.is_some() {
            return None;
        }
        [self.save_due, self.look_due].into_iter().flatten().min()
    }
}

impl BrokerQueues {
    /// The position up to which a queue needs nothing of the log.
    pub(super) fn settled(&self, queue: QueueId, edge: Position) -> Position {
        let settled = self.engine.settled(queue, edge).unwrap_or_default();
        match self.dead_letters.first(queue) {
            Some(first) => settled.min(Position::new(first.get() - 1)),
            None => settled,
        }
    }

    fn points(&self, edge: Position) -> Vec<Position> {
        (0..self.all.len() as u32).map(|queue| self.settled(QueueId::new(queue), edge)).collect()
    }

    fn file_entries(&self, points: &[Position]) -> Vec<QueuePoint> {
        let entry = |(definition, settled): (&std::sync::Arc<super::Definition>, &Position)| QueuePoint {
            queue: definition.name.to_string(),
            recovery_point: definition.recovery_point.0.clone(),
            settled: *settled,
        };
        self.all.iter().zip(points).map(entry).collect()
    }
}

impl Broker {
    /// The first position of the log that a queue still needs, also after a crash at this moment; `None` without queues. Journal files
    /// from there on are kept, whoever removes files: in this process because the broker's own cursor stands there, elsewhere because
    /// `queues.ack` says so.
    pub fn needed_position(&self) -> Option<Position> {
        let saved = self.queues.saving.saved.as_ref()?;
        saved.iter().min().map(|settled| settled.next())
    }

    /// Something may have been settled: it is saved in a while.
    pub(super) fn save_later(&mut self) {
        let at = self.now.instant + SAVE_INTERVAL;
        self.queues.saving.save_due.get_or_insert(at);
    }

    /// Saves how far the queues are done, when it is time to and what it rests on is in the log.
    pub(super) fn save_points(&mut self) {
        let (now, edge) = (self.now.instant, self.edge);
        let saving = &mut self.queues.saving;
        // Every settled message is a record of the log. A queue without messages needs nothing up to the edge.
        if saving.looked_to != edge {
            saving.look_due.get_or_insert(now + LOOK_INTERVAL);
        }
        if saving.due().is_some_and(|due| due <= now) {
            let is_due = saving.save_due.take_if(|due| *due <= now).is_some();
            (saving.look_due, saving.looked_to) = (None, edge);
            let points = self.queues.points(edge);
            let saved = self.queues.saving.saved.as_ref();
            let first_needed = |points: &Vec<Position>| {
                let oldest = points.iter().min()?;
                self.reader.segment_start(oldest.next())
            };
            let frees_a_file = saved.and_then(first_needed) < first_needed(&points);
            if saved != Some(&points) && (is_due || frees_a_file) {
                self.queues.saving.save_due = None;
                self.queues.saving.next = Some((self.journal.appended(), points));
            }
        }
        let saving = &mut self.queues.saving;
        if saving.is_under_way {
            return;
        }
        let persisted = self.journal.persisted();
        if let Some((_, points)) = saving.next.take_if(|(rests_on, _)| *rests_on <= persisted) {
            let file = saving.file.clone();
            saving.is_under_way = true;
            let entries = self.queues.file_entries(&points);
            self.queues.saving.saved = Some(points);
            self.hold_log();
            self.begin_work(Purpose::Save, QueueWork::Save { file, points: entries });
        }
    }

    pub(super) fn points_saved(&mut self, result: Option<Result<(), JournalError>>) {
        self.queues.saving.is_under_way = false;
        // The old file costs recovery time, nothing else.
        if let Some(Err(error)) = result {
            self.outputs.push_back(Output::Log(Event::QueuePointsNotSaved { reason: error.to_string() }));
        }
    }

    /// What recovery began with; it is saved at once if the file did not say so.
    pub(super) fn set_beginnings(&mut self, points: Vec<Position>) {
        let entries = self.queues.file_entries(&points);
        if self.queues.saving.read().as_ref() != Some(&entries) {
            self.queues.saving.next = Some((self.journal.appended(), points.clone()));
        }
        self.queues.saving.saved = Some(points);
        self.hold_log();
    }

    /// Keeps what queues need from being removed.
    fn hold_log(&mut self) {
        let needed = self.needed_position().map(|needed| Position::new(needed.get() - 1));
        self.queues.saving.hold = needed.map(|after| self.reader.cursor(after));
    }

    /// At the end: everything is in the log, so the file can say all of it. Waits for the disk.
    pub(in crate::broker) fn save_at_end(&mut self) -> Result<(), JournalError> {
        let points = self.queues.points(self.edge);
        self.queues.saving.file.write(&self.queues.file_entries(&points))
    }
}
