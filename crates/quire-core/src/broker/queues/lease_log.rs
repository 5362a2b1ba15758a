//! Who held what goes into the log (docs/queues.md section 15): one record per queue and turn, which goes with the next thing that is
//! written anyway. It is a trace: nothing waits for it, and nothing is rebuilt from it.

use std::time::Duration;

use quire_journal::{NewRecord, Position, RecordKind};

use super::changes::RECORD_SIZE_MAX;
use crate::broker::{Broker, ConnectionId};
use crate::queue::{LeasesWriter, QueueId};
use crate::time::Instant;

/// The longest that a record waits for something that it can go with. A sync of its own would hold up the next publish.
const WAIT_MAX: Duration = Duration::from_millis(100);

/// What happened and is not in the log yet.
pub(super) struct LeaseLog {
    /// By the numbers of the queues.
    writers: Vec<LeasesWriter>,
    to_log: Vec<QueueId>,
    /// When it goes into the log at the latest.
    due: Option<Instant>,
    /// The end of what was handed to the writer of the journal.
    submitted: Position,
}

impl LeaseLog {
    pub fn new(queue_count: usize) -> Self {
        LeaseLog {
            writers: (0..queue_count).map(|_| LeasesWriter::default()).collect(),
            to_log: Vec::new(),
            due: None,
            submitted: Position::ZERO,
        }
    }

    pub fn due(&self) -> Option<Instant> {
        self.due
    }
}

impl Broker {
    /// Takes down what happened between messages and consumers since the last call: before the name of a consumer is forgotten, and at
    /// the end of a turn.
    pub(in crate::broker) fn note_leases(&mut self) {
        while let Some(event) = self.queues.engine.poll_lease_event() {
            // It is missed by nobody: it is a trace.
            if self.has_failed() {
                continue;
            }
            self.stamped = self.stamped.max(self.now.wall);
            let log = &mut self.queues.lease_log;
            let writer = &mut log.writers[event.queue.get() as usize];
            if writer.is_empty() {
                log.to_log.push(event.queue);
                log.due.get_or_insert(self.now.instant + WAIT_MAX);
            }
            let (sessions, by_connection) = (&self.sessions, &self.by_connection);
            let name = || {
                let session = by_connection.get(&ConnectionId(event.connection.get()));
                let identity = session.and_then(|id| sessions[*id].identity.as_ref());
                identity.map_or("", |identity| &*identity.client_name)
            };
            writer.push(event, self.stamped, name);
            if writer.size() >= RECORD_SIZE_MAX {
                self.log_lease_record(event.queue);
            }
        }
    }

    /// Appends what was taken down, if something else is about to be written, or it is time, or it `must` be.
    pub(in crate::broker) fn log_leases(&mut self, must: bool) {
        let log = &mut self.queues.lease_log;
        let is_due = log.due.is_some_and(|due| due <= self.now.instant);
        if must || is_due || self.journal.appended() > log.submitted {
            log.due = None;
            for queue in std::mem::take(&mut log.to_log) {
                self.log_lease_record(queue);
            }
        }
        self.queues.lease_log.submitted = self.journal.appended();
    }

    fn log_lease_record(&mut self, queue: QueueId) {
        let definition = self.queues.definition(queue).clone();
        let record = self.queues.record_of(&definition, RecordKind::Lease, self.stamped);
        let writer = &mut self.queues.lease_log.writers[queue.get() as usize];
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
