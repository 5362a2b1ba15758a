//! The updates of views. They are messages of the views that the log does not record.

use quire_command::Publish;
use quire_journal::{Bookmark, PublisherId, RecordKind};

use super::{Assigned, Intake, Origin, Submission};
use crate::publishers::Numbering;
use crate::slice::{PASS, WEIGHT_MAX};
use crate::tables::{Keyed, Update};

impl Intake<'_> {
    /// Passes the changes of last-value topics to their views, within the time of a turn, and
    /// publishes the updates.
    pub(crate) fn serve_views(&mut self) {
        if !self.tables.has_waiting_changes() {
            return;
        }
        let deadline = self.cx.clock.slices.deadline(PASS);
        let mut weight = 0;
        while self.tables.derive_next(self.cx) {
            weight += 1 + self.publish_updates();
            if weight >= WEIGHT_MAX {
                weight = 0;
                if self.cx.clock.slices.is_past(deadline) {
                    break;
                }
            }
        }
        self.tables.derive_touched(self.cx);
        self.publish_updates();
        self.cx.clock.wants_turn |= self.tables.has_waiting_changes();
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
        let publisher = PublisherId::new(0);
        let submission = Submission {
            origin: Origin::Service,
            kind: RecordKind::Publish,
            publisher,
            topic: self.cx.topics.intern(topic),
            publish: &Publish { topic: topic.as_bytes(), key, data, ..Publish::default() },
            numbering: Numbering::NONE,
        };
        let assigned = Assigned { timestamp: *timestamp, order: None, bookmark: Bookmark::new(publisher, 0) };
        self.serve(&submission, assigned, None, Some(Keyed::of(*table)));
    }
}
