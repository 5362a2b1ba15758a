//! The position up to which each queue is settled. It is kept in a file, so that recovery does not
//! begin at the first record. The removal of old journal files also uses it.

use std::time::Duration;

use quire_journal::{Cursor, JournalError, Position};

use super::QueueService;
use super::sidecars::{QueuePoint, QueuePoints, QueuePointsFile};
use crate::Event;
use crate::context::Context;
use crate::failure::code_of;
use crate::reply::Refused;
use crate::tail::LogConsumer;
use quire_command::Code;
use quire_queue::QueueId;
use quire_types::time::Instant;

/// The time between two writes of the file while messages are settled. A restart reads at most the
/// records of this time again.
const SAVE_INTERVAL: Duration = Duration::from_secs(10);

/// The time between two checks whether the queues need fewer journal files than are noted in the
/// file. If so, the file is written at once, so that the removal of files waits no longer than this
/// for acknowledgements. A write for each full journal file has no measurable cost for publishers.
/// A write for each check would sync the disk every second.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// How far each queue is done, by the numbers of the queues; `None` where no queue has the number.
pub(super) type Points = Vec<Option<Position>>;

/// What is saved, and when.
pub(super) struct Saving {
    file: QueuePointsFile,
    /// The positions in the file, by the numbers of the queues; `None` before it is written.
    pub(super) saved: Option<Points>,
    /// The positions that the file will have when the write under way has succeeded. Until then a
    /// restart needs the log from the positions in the file on.
    writing: Option<Points>,
    /// The last write failed. The next one is due even when no position changes: a new queue may
    /// have no file yet.
    has_failed: bool,
    /// The positions to write when the log is persisted up to the first position.
    next: Option<(Position, Points)>,
    /// The file is being written.
    pub(super) is_under_way: bool,
    /// When the settled positions are saved.
    save_due: Option<Instant>,
    /// When to look whether a journal file is needed no longer.
    look_due: Option<Instant>,
    /// The tail at the last look.
    looked_to: Position,
    /// A cursor where the slowest queue needs the log from: files from a cursor on are not removed.
    pin: Option<Cursor>,
}

impl Saving {
    pub fn new(file: QueuePointsFile) -> Self {
        Saving {
            file,
            saved: None,
            writing: None,
            has_failed: false,
            next: None,
            is_under_way: false,
            save_due: None,
            look_due: None,
            looked_to: Position::ZERO,
            pin: None,
        }
    }

    /// The content of the file at the start.
    pub fn read(&self) -> Option<QueuePoints> {
        self.file.read()
    }

    /// Removes queues that no longer exist from the file. The log ends at `end`.
    pub fn clear(&self, end: Position) -> Result<(), JournalError> {
        self.file.clear(end)
    }

    /// The position up to which the file has a queue settled. Everything that settled the queue up
    /// to there is in the log.
    pub fn saved(&self, queue: QueueId) -> Option<Position> {
        *self.saved.as_ref()?.get(queue.get() as usize)?
    }

    /// Whether something is to be saved, or to be looked at.
    pub fn has_work(&self) -> bool {
        self.next.is_some() || self.save_due.is_some() || self.look_due.is_some()
    }

    /// When to look whether something is to be saved. While the log has to be written first, its
    /// flush wakes the broker.
    pub fn due(&self) -> Option<Instant> {
        if self.is_under_way || self.next.is_some() {
            return None;
        }
        [self.save_due, self.look_due].into_iter().flatten().min()
    }
}

impl QueueService {
    /// The position up to which a queue does not need the log.
    pub(super) fn settled(&self, queue: QueueId, served: Position) -> Position {
        let offered = self.fills.read_to(queue).unwrap_or(served);
        let settled = self.engine.settled(queue, offered).unwrap_or_default().max(self.defining.begin(queue));
        let left_out = self.left_out.of(queue).map(|left_out| Position::new(left_out.first));
        let needed = [self.dead_letters.first(queue), left_out].into_iter().flatten().min();
        needed.map_or(settled, |first| settled.min(Position::new(first.get() - 1)))
    }

    fn points(&self, served: Position) -> Points {
        let mut points = vec![None; self.all.len()];
        self.live().for_each(|(queue, _)| points[queue.get() as usize] = Some(self.settled(queue, served)));
        points
    }

    /// The content of the file when the queues are settled up to `points`, and the log is persisted
    /// up to `covers`.
    pub(super) fn file_entries(&self, cx: &Context, points: &Points, covers: Position) -> QueuePoints {
        let entry = |(queue, definition): (QueueId, &std::sync::Arc<super::Definition>)| {
            // A definition may not be on stable storage yet, or no longer. Then a start has only
            // this entry.
            let is_defined = self.find(&definition.name) == Some(queue);
            Some(QueuePoint {
                queue: definition.name.to_string(),
                recovery_point: definition.recovery_point.0.clone(),
                settled: (*points.get(queue.get() as usize)?)?,
                is_created: is_defined && self.defining.is_created(queue),
                selection: is_defined.then(|| definition.selection.clone()),
                left_out: self.left_out.of(queue).cloned().unwrap_or_default(),
            })
        };
        let points = self.live().filter_map(entry).chain(self.left_out.absent().iter().cloned()).collect();
        QueuePoints::new(points, cx.log.reader.first(), covers)
    }

    /// A queue was created and begins after a position, or was removed.
    pub(super) fn set_point(&mut self, cx: &Context, queue: QueueId, begin: Option<Position>) {
        let index = queue.get() as usize;
        let Saving { saved, writing, next, .. } = &mut self.saving;
        let next = next.as_mut().map(|(_, points)| points);
        for points in [Some(saved.get_or_insert_default()), writing.as_mut(), next].into_iter().flatten() {
            points.resize(points.len().max(index + 1), None);
            points[index] = begin;
        }
        self.pin_log(cx);
    }

    /// A queue was removed. The file is written, so that the log is not kept for the queue.
    pub(super) fn save_now(&mut self, cx: &Context) {
        self.saving.next = Some((cx.log.journal.appended(), self.points(cx.log.served)));
    }
}

impl QueueService {
    /// Something may have been settled: it is saved in a while.
    pub(super) fn save_later(&mut self, cx: &mut Context) {
        let at = cx.clock.now.instant + SAVE_INTERVAL;
        self.saving.save_due.get_or_insert(at);
    }

    /// Saves the settled positions of the queues, when it is time and the log has the records that
    /// they depend on.
    pub(super) fn save_points(&mut self, cx: &mut Context) {
        let (now, served) = (cx.clock.now.instant, cx.log.served);
        let saving = &mut self.saving;
        // Changes since the failure are not in the log, and the tail may have left out records. The
        // next start reads them again.
        if cx.has_failed() {
            (saving.save_due, saving.look_due, saving.next) = (None, None, None);
            if !saving.is_under_way {
                let failure = cx.failure_frame();
                self.left_out.begin_write();
                self.answer_dropped(cx, Some(&Refused::new(failure.code, failure.reason)));
            }
            return;
        }
        // Every settled message is a record of the log. A queue without messages does not need the
        // log before the tail.
        if saving.looked_to != served {
            saving.look_due.get_or_insert(now + LOOK_INTERVAL);
        }
        if saving.due().is_some_and(|due| due <= now) {
            let is_due = saving.save_due.take_if(|due| *due <= now).is_some();
            (saving.look_due, saving.looked_to) = (None, served);
            let points = self.points(served);
            let saved = self.saving.saved.as_ref();
            let first_needed = |points: &Points| {
                let oldest = points.iter().flatten().min()?;
                cx.log.reader.segment_start(oldest.next())
            };
            let frees_a_file = saved.and_then(first_needed) < first_needed(&points);
            let is_news = saved != Some(&points) || self.saving.has_failed;
            if is_news && (is_due || frees_a_file) {
                self.saving.save_due = None;
                self.saving.next = Some((cx.log.journal.appended(), points));
            }
        }
        let saving = &mut self.saving;
        if saving.is_under_way {
            return;
        }
        let persisted = cx.log.journal.persisted();
        if let Some((rests_on, points)) = saving.next.take_if(|(rests_on, _)| *rests_on <= persisted) {
            let file = saving.file.clone();
            saving.is_under_way = true;
            let entries = self.file_entries(cx, &points, rests_on);
            self.saving.writing = Some(points);
            self.left_out.begin_write();
            cx.begin_job(move |_| file.write(&entries), QueueService::points_saved);
        }
    }

    fn points_saved(&mut self, cx: &mut Context, _number: u64, result: Option<Result<(), JournalError>>) {
        self.saving.is_under_way = false;
        let written = self.saving.writing.take();
        self.saving.has_failed = !matches!(result, Some(Ok(())));
        let failure = match &result {
            Some(Ok(())) => None,
            Some(Err(error)) => Some(Refused::new(code_of(error), error.to_string())),
            None => Some(Refused::new(Code::Internal, "queues.ack could not be written".to_owned())),
        };
        self.answer_dropped(cx, failure.as_ref());
        if let Some(Ok(())) = result {
            if written.is_some() {
                self.saving.saved = written;
                self.pin_log(cx);
            }
            return;
        }
        // The old file only costs recovery time and the room of journal files.
        self.save_later(cx);
        if let Some(Err(error)) = result {
            cx.note(Event::QueuePointsNotSaved { reason: error.to_string() });
        }
    }

    /// The positions with which recovery began. They are saved at once if the file has others.
    pub(super) fn set_beginnings(&mut self, cx: &mut Context, points: Vec<Position>) {
        let points: Points = points.into_iter().map(Some).collect();
        let end = cx.log.journal.appended();
        let entries = self.file_entries(cx, &points, end);
        if self.saving.read().is_none_or(|found| !found.is_as_good_as(&entries)) {
            self.saving.next = Some((end, points.clone()));
        }
        self.saving.saved = Some(points);
        self.pin_log(cx);
    }

    /// Keeps the files that queues need from being removed.
    pub(super) fn pin_log(&mut self, cx: &Context) {
        let needed = self.needed_from(cx).map(|needed| Position::new(needed.get() - 1));
        self.saving.pin = needed.map(|after| cx.log.reader.cursor(after));
    }

    /// At the end: the log has every change, so the file can contain all of them. Waits for the
    /// disk.
    pub(crate) fn save_at_end(&mut self, cx: &mut Context) -> Result<(), JournalError> {
        let points = self.points(cx.log.served);
        self.saving.file.write(&self.file_entries(cx, &points, cx.log.journal.persisted()))
    }
}
