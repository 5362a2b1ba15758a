//! The last stage of the intake: the record of a message in its last-value topic, the
//! subscriptions, and the destinations of replication.

use quire_command::{Message, MessageKind, OofReason, Publish};
use quire_journal::{Bookmark, DeletedKeys, InstancePath, Position, RecordKind, Timestamp};

use super::prepare::context_of;
use super::{Assigned, Intake, Origin, Submission};
use crate::replicated::Destinations;
use crate::stream::Replacement;
use crate::tables::{Keyed, NewRow, Put};
use crate::topic::{Stage, TopicId, TopicKind};
use quire_table::{KeyChange, Stamp};

impl Intake<'_> {
    /// Puts a message into its last-value topic, and serves ordinary and `live` subscriptions.
    /// `position` is the position of its record, when the log has it.
    #[inline(always)]
    pub(super) fn serve(
        &mut self,
        submission: &Submission<'_>,
        assigned: Assigned,
        position: Option<Position>,
        keyed: Option<Keyed<'_>>,
    ) {
        let Submission { topic, publish, .. } = *submission;
        let Assigned { timestamp, bookmark, .. } = assigned;
        let bookmark = position.map(|_| bookmark);
        let mut key: &[u8] = &[];
        let mut put = Put::Newest(None);
        if let Some(keyed) = keyed {
            key = publish.key;
            let new = NewRow {
                key,
                position,
                bookmark: bookmark.map(|bookmark| (bookmark.publisher.get(), bookmark.sequence)),
                timestamp,
                change: self.change(submission, assigned),
                may_be_older: assigned.is_late || matches!(submission.origin, Origin::Peer { .. }),
                received: self.cx.clock.now.wall,
                expiration_s: publish.expiration_s,
                correlation_id: publish.correlation_id,
                headers: publish.headers,
                data: publish.data,
            };
            put = self.tables.put(self.cx, keyed, &new);
        }
        if self.cx.topics.has_audience(topic, Stage::Published) {
            self.serve_subscriptions(topic, publish, key, (bookmark, timestamp), put);
        }
    }

    /// The order of a change of last values. Without replication, the log has the order of changes.
    fn change<'a>(&self, submission: &'a Submission<'_>, assigned: Assigned) -> Option<KeyChange<'a>> {
        let Assigned { timestamp, order, bookmark, is_late } = assigned;
        self.cx.log.has_links.then(|| KeyChange {
            stamp: Stamp { time: order.unwrap_or(timestamp), instance: submission.origin.instance() },
            publisher: submission.publisher,
            sequence: bookmark.sequence,
            is_late,
        })
    }

    /// Serves ordinary and `live` subscriptions, and subscriptions whose view the previous record
    /// of the key has left. Most topics have no such subscription.
    #[inline(never)]
    fn serve_subscriptions(
        &mut self,
        topic: TopicId,
        publish: &Publish<'_>,
        key: &[u8],
        (bookmark, timestamp): (Option<Bookmark>, Timestamp),
        put: Put,
    ) {
        let known = self.cx.topics.topic(topic);
        let (name, message_type, is_queue) =
            (known.name.clone(), known.recording.message_type, known.kind() == TopicKind::Queue);
        let context = context_of(publish, message_type, &name, bookmark, timestamp);
        let message = Message {
            subscription: 0,
            bookmark: bookmark.map(|bookmark| (bookmark.publisher.get(), bookmark.sequence)),
            timestamp_ns: timestamp.as_ns(),
            queued: None,
            topic: name.as_bytes(),
            correlation_id: publish.correlation_id,
            headers: publish.headers,
            key,
            kind: MessageKind::Publish,
            data: publish.data,
        };
        let is_older = matches!(put, Put::Older);
        let replaced = if let Put::Newest(replaced) = put { replaced } else { None };
        let replacement = Replacement { views: self.tables.views(), replaced, is_older };
        self.stream.serve_published(self.cx, topic, &context, &message, is_queue, replacement);
        while let Some(id) = self.stream.next_behind() {
            self.bookmarks.fall_back_from_publish(self.cx, id);
        }
        if !key.is_empty() && !is_older && !self.tables.leaving().is_empty() {
            let message = Message { bookmark: None, kind: MessageKind::Oof(OofReason::Match), ..message };
            self.stream.serve_left(self.cx, self.tables.leaving(), &context, &message);
        }
    }

    /// Removes the records of a delete from its last-value topic, and notifies the subscriptions
    /// that had them in view.
    pub(super) fn remove(&mut self, submission: &Submission<'_>, assigned: Assigned) {
        let Some(table) = self.cx.topics.topic(submission.topic).table() else { return };
        let change = self.change(submission, assigned);
        // The log has refused data that is not a list of keys.
        for key in DeletedKeys::from_bytes(submission.publish.data).into_iter().flatten() {
            if let Some(left) = self.tables.remove(self.cx, table, key, change.as_ref()) {
                self.stream.serve_left(self.cx, left.subscriptions, &left.context(), &left.message());
            }
        }
    }

    /// The destinations of a submission that was recorded at `position`. `path` is the path of its
    /// record.
    pub(super) fn destinations_of(
        &mut self,
        submission: &Submission<'_>,
        position: Position,
        path: InstancePath<'_>,
    ) -> Destinations {
        let Submission { kind, publisher, topic, publish, .. } = *submission;
        let sequence = match publish.sequence {
            // The log has given it one.
            0 => self.cx.log.highest_sequence(publisher).unwrap_or_default(),
            sequence => sequence,
        };
        let bookmark = Bookmark::new(publisher, sequence);
        let known = self.cx.topics.topic(topic);
        let (name, message_type) = (&known.name, known.recording.message_type);
        let stamped = self.cx.log.stamped;
        let context = || match kind {
            // A delete has no content, so it passes every filter.
            RecordKind::Delete => None,
            _ => Some(context_of(publish, message_type, name, Some(bookmark), stamped)),
        };
        self.links.route(self.cx, topic, (position, bookmark), path, context)
    }
}
