//! Rebuilding the queues from the log at the start (docs/queues.md section 5).

use quire_journal::{AllTopics, JournalError, Position, Progress, RecordKind};

use crate::broker::Broker;
use crate::queue::{Logged, Time};

impl Broker {
    /// Feeds the queues what the log holds.
    ///
    /// # Errors
    /// Damage in the log.
    pub(in crate::broker) fn recover_queues(
        &mut self,
        on_progress: &mut dyn FnMut(Progress),
    ) -> Result<(), JournalError> {
        if !self.queues.any() {
            return Ok(());
        }
        let limit = self.journal.persisted();
        let mut done_bytes = 0;
        let total_bytes = self.reader.segments().iter().map(|segment| segment.size).sum();
        let mut cursor = self.reader.cursor(Position::ZERO);
        while let Some(batch) = cursor.next(limit, &AllTopics)? {
            done_bytes += batch.size() as u64;
            on_progress(Progress { done_bytes, total_bytes });
            for record in batch.records() {
                match record.kind {
                    RecordKind::Publish => {
                        let topic = self.topics.intern(record.topic);
                        let received = Time::new(record.timestamp.as_ns());
                        for queue in &self.topics.topic(topic).queues {
                            let wall = record.timestamp;
                            if let Some(entry) = self.queues.entry_of(*queue, &record, received, wall) {
                                self.queues.engine.enqueue(*queue, record.position, entry);
                            }
                        }
                    }
                    RecordKind::Acknowledge => {
                        let Some(queue) = self.queues.find(record.topic) else { continue };
                        if record.publisher != self.queues.publisher {
                            continue;
                        }
                        for logged in Logged::read(record.data, record.position) {
                            // What was written whole and is not a list of changes was not written by this version.
                            let Ok(logged) = logged else { break };
                            logged.changes(queue).for_each(|change| self.queues.engine.restore(change));
                        }
                    }
                    RecordKind::Noop => (),
                }
            }
        }
        Ok(())
    }
}
