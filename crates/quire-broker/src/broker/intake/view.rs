//! The updates of views and conflated topics. They are messages of these topics that the log does
//! not record.

use quire_command::Publish;
use quire_journal::{Bookmark, JournalError, PublisherId, RecordKind, Timestamp};

use super::{Assigned, Intake, Origin, Submission};
use crate::publishers::Numbering;
use crate::queues::Moved;
use crate::slice::{PASS, WEIGHT_MAX};
use crate::tables::{Copied, Keyed, Update};
use crate::topic::TableId;

impl Intake<'_> {
    /// Copies the records that are due to conflated topics, passes the changes of last-value topics
    /// to their views and aggregated subscriptions, and publishes the updates, all within the time
    /// of a turn.
    pub(crate) fn serve_views(&mut self) {
        self.tables.redefine(self.cx);
        self.queues.follow_sources(self.cx);
        if self.queues.moves_size() == 0 && !self.has_work() {
            return;
        }
        let deadline = self.cx.clock.slices.deadline(PASS);
        let mut weight = 0;
        // The records of a conflated topic can change views, and those of a view a conflated topic.
        while let Some(work) = self.update_next() {
            weight += work;
            if weight >= WEIGHT_MAX {
                weight = 0;
                if self.cx.clock.slices.is_past(deadline) {
                    break;
                }
            }
        }
        self.tables.derive_touched(self.cx);
        self.publish_updates();
        self.tables.redefine(self.cx);
        self.cx.clock.wants_turn |= self.has_work();
    }

    fn has_work(&self) -> bool {
        self.queues.has_moves()
            || self.tables.has_waiting_changes()
            || self.tables.has_pending_changes()
            || self.tables.must_copy(self.cx)
            || self.tables.must_build()
    }

    /// Copies one record, takes one message that entered or left a queue, and passes one change to
    /// an aggregated subscription and one to views, so that none of them waits for another. Returns
    /// the weight of the work; `None`: there was none.
    fn update_next(&mut self) -> Option<usize> {
        let copied = self.tables.copy_next(self.cx);
        copied.iter().for_each(|copied| self.publish_copy(copied));
        let has_moved = self.move_next();
        let has_computed = self.tables.compute_next(self.cx);
        let derived = self.tables.derive_next(self.cx);
        let updates = self.publish_updates();
        let count = 2 * (usize::from(copied.is_some()) + usize::from(has_moved) + usize::from(has_computed));
        (count > 0 || derived.is_some()).then(|| count + derived.unwrap_or_default() + updates)
    }

    /// Passes the next message that entered or left a queue to the table of the queue. Returns
    /// whether there was one.
    fn move_next(&mut self) -> bool {
        let Intake { cx, queues, tables, .. } = self;
        match queues.next_move(cx) {
            None => return false,
            Some(Moved::Entered { table, bookmark, record }) => {
                tables.put_queued(cx, table, bookmark, &record);
            }
            Some(Moved::Left { table, position, bookmark }) => {
                tables.remove_queued(cx, table, position, bookmark);
            }
            Some(Moved::Complete { table }) => tables.complete_queue(cx, table),
            Some(Moved::Looked) => (),
        }
        true
    }

    /// At a start: puts the messages of the queues that views read into their tables.
    pub(crate) fn load_queues(&mut self) -> Result<(), JournalError> {
        let Intake { cx, queues, tables, .. } = self;
        queues.load_sources(cx, &mut |cx, table, bookmark, record| {
            tables.restore_queued(cx, table, bookmark, record);
        })
    }

    /// Returns the number of updates.
    fn publish_updates(&mut self) -> usize {
        let mut count = 0;
        while let Some(update) = self.tables.next_update() {
            self.publish_update(&update);
            count += 1;
        }
        count
    }

    fn publish_update(&mut self, update: &Update) {
        let Update { table, topic, key, data, timestamp } = update;
        let Some(data) = data else {
            if let Some(left) = self.tables.remove(self.cx, *table, key, None) {
                self.stream.serve_left(self.cx, left.subscriptions, &left.context(), &left.message());
            }
            return;
        };
        let publish = Publish { topic: topic.as_bytes(), key, data, ..Publish::default() };
        self.publish_computed(*table, topic, &publish, *timestamp);
    }

    fn publish_copy(&mut self, copied: &Copied) {
        match copied {
            Copied::Gone { table, key, reason } => {
                if let Some(left) = self.tables.remove_copy(self.cx, *table, key, *reason) {
                    self.stream.serve_left(self.cx, left.subscriptions, &left.context(), &left.message());
                }
            }
            Copied::Record { table, topic, row } => {
                let Some(row) = row.new_row() else { return };
                let publish = Publish {
                    topic: topic.as_bytes(),
                    key: row.key,
                    correlation_id: row.correlation_id,
                    headers: row.headers,
                    data: row.data,
                    ..Publish::default()
                };
                self.publish_computed(*table, topic, &publish, row.timestamp);
            }
        }
    }

    fn publish_computed(&mut self, table: TableId, topic: &str, publish: &Publish<'_>, timestamp: Timestamp) {
        let publisher = PublisherId::new(0);
        let submission = Submission {
            origin: Origin::Service,
            kind: RecordKind::Publish,
            publisher,
            topic: self.cx.topics.intern(topic),
            publish,
            numbering: Numbering::NONE,
        };
        let bookmark = Bookmark::new(publisher, 0);
        let assigned = Assigned { timestamp, order: None, bookmark, is_late: false };
        self.serve(&submission, assigned, None, Some(Keyed::of(table)));
    }
}
