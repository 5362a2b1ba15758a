//! Rebuilding the queues from the log at the start (docs/queues.md section 5).

use std::sync::Arc;

use quire_journal::{AllTopics, JournalError, Position, Record, RecordKind, RecoveryProgress};

use super::changes::append;
use super::instance_names::NamesFile;
use super::sidecars::QueuePoints;
use super::{Definition, QueueService};
use crate::context::Context;
use crate::entitlement::Nameable;
use crate::{Event, Output};
use quire_queue::{Change, ChangeKind, Logged, QueueId, Reasons, Time};

/// Where a queue begins, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Beginning {
    /// Nothing up to here belongs to it, or is needed.
    pub after: Position,
    /// It was given another recovery point.
    pub is_changed: bool,
    /// The log contains this place; it is not new.
    is_known: bool,
    /// Of the log up to here nothing has to be read for it: `after`, or where the state that was
    /// kept for it ends.
    read_after: Position,
}

impl QueueService {
    /// Feeds the queues their records of the log.
    ///
    /// # Errors
    /// Damage in the log, and an error of the journal when it cannot record where the queues begin.
    pub(crate) fn recover(
        &mut self,
        cx: &mut Context,
        on_progress: &mut dyn FnMut(RecoveryProgress),
    ) -> Result<(), JournalError> {
        self.clamp_created(cx)?;
        self.recognize_names(cx)?;
        let saved = self.saving.read();
        let mut beginnings = self.beginnings(cx, saved.as_ref(), on_progress)?;
        let mut counting = self.begin_counting(cx, saved, &beginnings);
        let reader = cx.log.reader.clone();
        for (queue, beginning) in (0..).map(QueueId::new).zip(&mut beginnings) {
            if beginning.is_known {
                let kept = self.load_snapshot(&reader, queue, beginning.after);
                beginning.read_after = kept.unwrap_or(beginning.after);
            }
            self.engine.begin_after(queue, self.defining.begin(queue));
        }
        self.snapshots.tidy(&self.all)?;
        let oldest =
            beginnings.iter().map(|beginning| beginning.read_after).chain(counting.reads_after()).min();
        if let Some(oldest) = oldest {
            self.read_log(cx, oldest, on_progress, |service, cx, record| {
                counting.take(service, cx, record);
                service.restore(cx, record, &beginnings)
            })?;
        }
        self.engine.begin_figures();
        self.end_counting(cx, counting);
        if !self.any() && self.left_out.absent().is_empty() {
            return self.saving.clear(cx.log.journal.persisted());
        }
        for (queue, beginning) in (0..).map(QueueId::new).zip(&beginnings) {
            self.log_beginning(cx, queue, *beginning)?;
            let definition = self.definition(queue);
            for key in definition.ineffective() {
                let (queue, key) = (definition.name.to_string(), key.to_owned());
                cx.note(Event::QueueSettingIgnored { queue, key });
            }
        }
        cx.log.journal.submit();
        self.set_beginnings(cx, beginnings.iter().map(|beginning| beginning.after).collect());
        self.save_later(cx);
        Ok(())
    }

    /// Where each queue begins.
    fn beginnings(
        &mut self,
        cx: &mut Context,
        saved: Option<&QueuePoints>,
        on_progress: &mut dyn FnMut(RecoveryProgress),
    ) -> Result<Vec<Beginning>, JournalError> {
        if !self.any() {
            return Ok(Vec::new());
        }
        let mut known: Vec<Option<(Position, String)>> = vec![None; self.all.len()];
        // The log also contains the places, of queues that the file does not name yet, too. The
        // file may be new or lost.
        let mut search_after = Some(Position::ZERO);
        if let Some(points) = saved {
            for point in &points.points {
                if let Some(queue) = self.find(&point.queue) {
                    known[queue.get() as usize] = Some((point.settled, point.recovery_point.clone()));
                }
            }
            // Where a queue is new in the configuration, or has another recovery point, it may have
            // begun after the file was written.
            let is_in_file = |(queue, definition): (QueueId, &Arc<Definition>)| {
                let text = &definition.recovery_point.0;
                self.defining.created(queue).is_some()
                    || known[queue.get() as usize].as_ref().map_or("epoch", |(_, known)| known.as_str())
                        == text
            };
            search_after = points.covers.filter(|_| !self.live().all(is_in_file));
        }
        if let Some(after) = search_after {
            self.read_log(cx, after, on_progress, |service, _, record| {
                service.find_beginning(record, &mut known)
            })?;
        }
        let now = cx.log.journal.persisted();
        let mut beginnings = Vec::new();
        for ((queue, definition), known) in self.live().zip(known) {
            let (text, start) = &definition.recovery_point;
            // An entry from before this beginning is that of another queue, which had the name and
            // was dropped.
            let known = match self.defining.created(queue) {
                Some(created) => {
                    let begin = created.takes_after();
                    let known = known.filter(|(after, known)| *after >= begin && known == text);
                    known.or_else(|| Some((begin, text.clone())))
                }
                None => known,
            };
            let beginning = match known {
                Some((after, known_text)) if known_text == *text => {
                    Beginning { after, is_changed: false, is_known: true, read_after: after }
                }
                known => {
                    let found = start.locate(&cx.log.reader, now, false, &Nameable::default())?;
                    let after = found.unwrap_or_default();
                    Beginning { after, is_changed: known.is_some(), is_known: false, read_after: after }
                }
            };
            beginnings.push(beginning);
        }
        Ok(beginnings)
    }

    fn read_log(
        &mut self,
        cx: &mut Context,
        after: Position,
        on_progress: &mut dyn FnMut(RecoveryProgress),
        mut each: impl FnMut(&mut Self, &mut Context, &Record<'_>) -> Result<(), JournalError>,
    ) -> Result<(), JournalError> {
        let limit = cx.log.journal.persisted();
        let segments = cx.log.reader.segments().into_iter();
        let ahead = segments.filter(|segment| segment.positions.is_some_and(|(_, last)| last > after));
        let total_bytes: u64 = ahead.map(|segment| segment.size).sum();
        let mut done_bytes = 0;
        let mut cursor = cx.log.reader.cursor(after);
        while let Some(batch) = cursor.next(limit, &AllTopics)? {
            for record in batch.records() {
                each(self, cx, &record)?;
            }
            done_bytes = total_bytes.min(done_bytes + batch.size() as u64);
            on_progress(RecoveryProgress { done_bytes, total_bytes });
        }
        Ok(())
    }

    fn restore(
        &mut self,
        cx: &mut Context,
        record: &Record<'_>,
        beginnings: &[Beginning],
    ) -> Result<(), JournalError> {
        match record.kind {
            RecordKind::Publish => {
                let topic = cx.topics.intern(record.topic);
                let wall = record.received();
                let received = Time::new(wall.as_ns());
                for queue in &cx.topics.topic(topic).queues {
                    let QueueService { engine, all, arena, .. } = self;
                    let index = queue.get() as usize;
                    if record.position > beginnings[index].read_after
                        && let Some(entry) = all[index].entry_of(record, received, wall, arena)
                    {
                        engine.enqueue(*queue, record.position, entry);
                    }
                }
                self.restore_dead_letter(record);
            }
            RecordKind::Acknowledge => self.restore_changes(record)?,
            RecordKind::Lease | RecordKind::Delete => (),
        }
        Ok(())
    }

    /// Notes in the log where a queue begins, unless that is plain to see.
    fn log_beginning(
        &mut self,
        cx: &mut Context,
        queue: QueueId,
        beginning: Beginning,
    ) -> Result<(), JournalError> {
        let is_plain = !beginning.is_changed && self.definition(queue).recovery_point.0 == "epoch";
        if is_plain { Ok(()) } else { self.log_begin(cx, queue, beginning.after) }
    }

    /// Notes in the log that a queue begins after a position.
    pub(super) fn log_begin(
        &mut self,
        cx: &mut Context,
        queue: QueueId,
        after: Position,
    ) -> Result<(), JournalError> {
        let definition = self.definition(queue).clone();
        let writer = &mut self.writers[queue.get() as usize];
        writer.push_beginning(after, &definition.recovery_point.0);
        let appended = append(cx, self.publisher, &definition.name, RecordKind::Acknowledge, writer.finish());
        writer.clear();
        appended
    }
}

impl QueueService {
    /// A log that lost its end begins again before the queues that were created at that end: they
    /// begin at the new end, too. Also drops the definitions that the configuration replaced.
    fn clamp_created(&mut self, cx: &Context) -> Result<(), JournalError> {
        if self.defining.clamp(cx.log.journal.persisted()) {
            self.defining.file.write(&self.defining.definitions())?;
        }
        Ok(())
    }

    /// Lets the dead letters of earlier names of the instance count.
    fn recognize_names(&mut self, cx: &mut Context) -> Result<(), JournalError> {
        let file = NamesFile::new(cx.log.journal.sidecars());
        let (names, event) = file.begin(&cx.config.name, |publisher| cx.log.highest_sequence(publisher))?;
        self.dead_letters.recognize(&names);
        cx.outputs.extend(event.map(Output::Log));
        Ok(())
    }

    fn restore_changes(&mut self, record: &Record<'_>) -> Result<(), JournalError> {
        let Some(queue) = self.find(record.topic) else { return Ok(()) };
        if record.position <= self.defining.created_at(queue) {
            return Ok(());
        }
        for logged in changes_in(record) {
            logged?.changes(queue).for_each(|change| self.engine.restore(change));
        }
        Ok(())
    }

    /// A dead letter is the record of an expiry.
    fn restore_dead_letter(&mut self, record: &Record<'_>) {
        let Some((name, position)) = self.dead_letters.origin(record) else { return };
        let Some(queue) = self.find(&name) else { return };
        if record.position <= self.defining.created_at(queue) {
            return;
        }
        let kind = ChangeKind::Expired { reasons: Reasons::default(), deliveries: 0, cancels: 0 };
        self.engine.restore(Change { queue, position, bookmark: None, kind });
    }

    fn find_beginning(
        &self,
        record: &Record<'_>,
        known: &mut [Option<(Position, String)>],
    ) -> Result<(), JournalError> {
        let Some(queue) = self.find(record.topic) else { return Ok(()) };
        if record.position <= self.defining.created_at(queue) {
            return Ok(());
        }
        for logged in changes_in(record) {
            if let Logged::Begins { after, recovery_point } = logged? {
                known[queue.get() as usize] = Some((after, recovery_point.to_owned()));
            }
        }
        Ok(())
    }
}

/// The changes in a record of changes of this log; none in any other record. The positions in it
/// are those of this log. Without a source it is a record of this log's own server, under any name
/// that the server had: no client can append a record of this kind.
///
/// The last item is an error if the meaning of the rest is not known here. Without it, the queue
/// would have messages that were acknowledged.
pub(super) fn changes_in<'a>(
    record: &Record<'a>,
) -> impl Iterator<Item = Result<Logged<'a>, JournalError>> + use<'a> {
    let position = record.position;
    let is_of_this_log = record.kind == RecordKind::Acknowledge && record.source().is_none();
    let data = if is_of_this_log { record.data } else { b"" };
    Logged::read(data, position).map(move |logged| {
        logged.map_err(|error| JournalError::LaterRecord { position, reason: error.to_string() })
    })
}
