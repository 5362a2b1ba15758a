//! Logs the changes of messages: one record per queue and turn.

use hashbrown::HashMap;
use quire_journal::{Attributes, JournalError, NewRecord, PublisherId, RecordKind};

use super::QueueService;
use crate::context::Context;
use quire_queue::{ChangeKind, QueueId, Time};

/// Bytes of changes, or of leases, after which a record ends: half a batch of the journal.
pub(super) const RECORD_SIZE_MAX: usize = 32 * 1024;

impl QueueService {
    /// Logs the changes since the last call. The end of the journal then includes them.
    pub(crate) fn log_changes(&mut self, cx: &mut Context) {
        self.note_leases(cx);
        // Before the bookmarks are forgotten by which the holders know their messages.
        self.notify_lost_leases(cx);
        let mut is_any = false;
        let ahead_ns = self.wall_ahead_ns(cx.clock.now);
        while let Some(change) = self.engine.poll_change() {
            is_any = true;
            let index = change.queue.get() as usize;
            let mut bookmark = change.bookmark;
            match change.kind {
                ChangeKind::Acknowledged => match bookmark {
                    Some(bookmark) => self.outstanding[index].remove(bookmark),
                    // The engine does not have a message that is not active yet.
                    None => bookmark = self.searched.get(&(change.queue, change.position)).copied(),
                },
                ChangeKind::Expired { reasons, deliveries, cancels } => {
                    if let Some(bookmark) = bookmark {
                        self.outstanding[index].remove(bookmark);
                    }
                    if self.all[index].dead_letter_topic.is_none() {
                        let why = (reasons, deliveries, cancels);
                        self.note_expired(cx, change.queue, change.position, why);
                    }
                }
                ChangeKind::Cancelled { cancels } => {
                    self.note_cancelled(cx, change.queue, change.position, cancels);
                }
                ChangeKind::Returned { .. }
                | ChangeKind::Delayed { .. }
                | ChangeKind::Taken
                | ChangeKind::Released => (),
            }
            // A change that can no longer be logged happens again after a restart.
            if cx.has_failed() {
                continue;
            }
            let change = match &self.all[change.queue.get() as usize].dead_letter_topic {
                Some(topic) => self.dead_letters.push(&mut cx.log, change, topic),
                None => Some(change),
            };
            let Some(change) = change else { continue };
            let writer = &mut self.writers[index];
            if writer.is_empty() {
                self.to_log.push(change.queue);
            }
            writer.push(change.position, bookmark, at_time_of_day(change.kind, ahead_ns));
            if writer.size() >= RECORD_SIZE_MAX {
                self.log_record(cx, change.queue);
            }
        }
        if !self.searched.is_empty() {
            self.searched = HashMap::default();
        }
        if is_any {
            for queue in std::mem::take(&mut self.to_log) {
                self.log_record(cx, queue);
                self.sweep_outstanding(cx, queue);
            }
            self.dead_letters.forget_reasons();
            self.note_logged(cx);
            self.save_later(cx);
        }
    }

    fn log_record(&mut self, cx: &mut Context, queue: QueueId) {
        let definition = self.definition(queue).clone();
        let writer = &mut self.writers[queue.get() as usize];
        if writer.is_empty() {
            return;
        }
        let appended = append(cx, self.publisher, &definition.name, RecordKind::Acknowledge, writer.finish());
        writer.clear();
        if let Err(error) = appended {
            cx.fail(&error);
        }
    }
}

/// A change as the next start reads it: with the end of a delay by the wall clock, which is
/// `ahead_ns` ahead of the engine's clock.
fn at_time_of_day(kind: ChangeKind, ahead_ns: i64) -> ChangeKind {
    match kind {
        ChangeKind::Delayed { until } => {
            ChangeKind::Delayed { until: Time::new(until.get().saturating_add_signed(ahead_ns)) }
        }
        other => other,
    }
}

/// Appends a record of the service's own, with the time of the turn.
pub(super) fn append(
    cx: &mut Context,
    publisher: PublisherId,
    queue: &str,
    kind: RecordKind,
    data: &[u8],
) -> Result<(), JournalError> {
    let timestamp = cx.log.stamp(cx.clock.now.wall);
    let record = NewRecord {
        kind,
        message_type: 0,
        publisher,
        sequence: 0,
        timestamp,
        topic: queue,
        correlation_id: b"",
        expiration_s: None,
        attributes: Attributes::NONE,
        data,
    };
    cx.log.append(&record).map(drop)
}
