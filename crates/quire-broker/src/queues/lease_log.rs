//! Logs the holders of messages (docs/queues.md section 13): one record per queue and turn, which
//! is written together with the next other record. It is a trace: no operation waits for it, and no
//! state is rebuilt from it.

use std::time::Duration;

use quire_journal::{Position, RecordKind};

use super::QueueService;
use super::changes::{RECORD_SIZE_MAX, append};
use crate::ConnectionId;
use crate::context::Context;
use quire_queue::{LeasesWriter, QueueId};
use quire_types::time::Instant;

/// The longest that a record waits for another record with which it can be written. A separate sync
/// would delay the next publish.
const WAIT_MAX: Duration = Duration::from_millis(100);

/// The events that are not in the log yet.
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

    /// A queue has this number that is new, or the number of a removed queue.
    pub fn add(&mut self, queue: QueueId) {
        let count = self.writers.len().max(queue.get() as usize + 1);
        self.writers.resize_with(count, LeasesWriter::default);
    }

    pub fn due(&self) -> Option<Instant> {
        self.due
    }
}

impl QueueService {
    /// Notes the events between messages and consumers since the last call. Called before the name
    /// of a consumer is forgotten, and at the end of a turn.
    pub(crate) fn note_leases(&mut self, cx: &mut Context) {
        while let Some(mut event) = self.engine.poll_lease_event() {
            // The engine does not have a message that is not active yet.
            let searched = || self.searched.get(&(event.queue, event.position)).copied();
            event.bookmark = event.bookmark.or_else(searched);
            // The record is a trace, so it may be missing.
            if cx.has_failed() {
                continue;
            }
            cx.log.stamped = cx.log.stamped.max(cx.clock.now.wall);
            let log = &mut self.lease_log;
            let writer = &mut log.writers[event.queue.get() as usize];
            if writer.is_empty() {
                log.to_log.push(event.queue);
                log.due.get_or_insert(cx.clock.now.instant + WAIT_MAX);
            }
            let (sessions, by_connection) = (&cx.clients.sessions.all, &cx.clients.sessions.by_connection);
            let name = || {
                let session = by_connection.get(&ConnectionId(event.connection.get()));
                let identity = session.and_then(|id| sessions[*id].identity.as_ref());
                identity.map_or("", |identity| &*identity.principal.client_name)
            };
            writer.push(event, cx.log.stamped, name);
            if writer.size() >= RECORD_SIZE_MAX {
                self.log_lease_record(cx, event.queue);
            }
        }
    }

    /// Appends the noted events, if another record is about to be written, or their time has come,
    /// or `must` is set.
    pub(crate) fn log_leases(&mut self, cx: &mut Context, must: bool) {
        let log = &mut self.lease_log;
        let is_due = log.due.is_some_and(|due| due <= cx.clock.now.instant);
        if must || is_due || cx.log.journal.appended() > log.submitted {
            log.due = None;
            for queue in std::mem::take(&mut log.to_log) {
                self.log_lease_record(cx, queue);
            }
        }
        self.lease_log.submitted = cx.log.journal.appended();
    }

    fn log_lease_record(&mut self, cx: &mut Context, queue: QueueId) {
        let definition = self.definition(queue).clone();
        let writer = &mut self.lease_log.writers[queue.get() as usize];
        if writer.is_empty() {
            return;
        }
        let appended = append(cx, self.publisher, &definition.name, RecordKind::Lease, writer.finish());
        writer.clear();
        if let Err(error) = appended {
            cx.fail(&error);
        }
    }
}
