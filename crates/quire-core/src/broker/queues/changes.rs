//! What happened to messages goes into the log: one record per queue and turn.

use quire_journal::{NewRecord, RecordKind, Timestamp};

use super::{BrokerQueues, Definition};
use crate::broker::Broker;
use crate::queue::{ChangeKind, QueueId};

/// Bytes of changes, or of leases, after which a record ends: half a batch of the journal.
pub(super) const RECORD_SIZE_MAX: usize = 32 * 1024;

impl Broker {
    /// Logs what happened since the last call. Whoever asks for the journal's end afterwards asks for that, too.
    pub(in crate::broker) fn log_changes(&mut self) {
        self.note_leases();
        // Before the bookmarks are forgotten by which the holders know their messages.
        self.tell_lost_leases();
        let mut is_any = false;
        while let Some(change) = self.queues.engine.poll_change() {
            is_any = true;
            let index = change.queue.get() as usize;
            match change.kind {
                ChangeKind::Acknowledged | ChangeKind::Expired { .. } => {
                    self.queues.outstanding[index].remove(change.position);
                }
                ChangeKind::Cancelled { .. } | ChangeKind::Taken | ChangeKind::Released => (),
            }
            // What can no longer be logged happens again after a restart.
            if self.has_failed() {
                continue;
            }
            let change = match self.queues.definition(change.queue).dead_letter_topic {
                Some(_) => self.queues.dead_letters.push(change),
                None => Some(change),
            };
            let Some(change) = change else { continue };
            let writer = &mut self.queues.writers[index];
            if writer.is_empty() {
                self.queues.to_log.push(change.queue);
            }
            writer.push(change.position, change.kind);
            if writer.size() >= RECORD_SIZE_MAX {
                self.log_record(change.queue);
            }
        }
        if is_any {
            for queue in std::mem::take(&mut self.queues.to_log) {
                self.log_record(queue);
            }
            self.note_logged();
            self.save_later();
        }
    }

    pub(super) fn log_record(&mut self, queue: QueueId) {
        self.stamped = self.stamped.max(self.now.wall);
        let definition = self.queues.definition(queue).clone();
        let record = self.queues.record_of(&definition, RecordKind::Acknowledge, self.stamped);
        let writer = &mut self.queues.writers[queue.get() as usize];
        if writer.is_empty() {
            return;
        }
        let appended = self.journal.append(&NewRecord { data: writer.finish(), ..record });
        writer.clear();
        if let Err(error) = appended {
            self.fail(&error);
        }
    }
}

impl BrokerQueues {
    /// What a queue writes into the log, without its data.
    pub(super) fn record_of<'a>(
        &self,
        definition: &'a Definition,
        kind: RecordKind,
        timestamp: Timestamp,
    ) -> NewRecord<'a> {
        NewRecord {
            kind,
            message_type: 0,
            publisher: self.publisher,
            sequence: 0,
            timestamp,
            topic: &definition.name,
            correlation_id: b"",
            expiration_s: None,
            data: b"",
        }
    }
}
