//! The intake: the only path of messages and of deletes into the log.
//!
//! Each of them is a [`Submission`] of one [`Origin`], and passes four stages:
//!
//! - admit (`admit.rs`): Finds the topic, and checks the message against it.
//! - prepare (`prepare.rs`): Checks that it is JSON, finds its key, computes fields, merges a
//!   delta.
//! - record (`record.rs`): Gives it its time and its position.
//! - serve (`serve.rs`): Puts it into the last-value topic, and serves subscriptions and
//!   destinations.
//!
//! Each origin has a file, which takes the messages, runs the stages and notes the result:
//! `client.rs`, `dead_letter.rs`, `event.rs`, `peer.rs`, and `delete.rs` for deletes. The updates
//! of views pass only the last stage (`view.rs`).
//!
//! A *plain* message of a client skips the second stage, after one check of its topic and one of
//! the message. Other messages have a key, a delay or a part of a record, or their topic keeps last
//! values, validates its messages or is not configured. While the journal accepts no writes, no
//! message is plain.

mod admit;
mod client;
mod dead_letter;
mod delete;
mod event;
mod large;
mod peer;
mod prepare;
mod record;
mod serve;
mod view;

use quire_command::Publish;
use quire_journal::{
    AttributesBuffer, Bookmark, InstancePath, JournalError, Position, PublisherId, RecordKind, Timestamp,
};

use crate::bookmarks::Bookmarks;
use crate::context::Context;
use crate::links::Links;
use crate::publishers::{Numbering, Publishers};
use crate::queues::QueueService;
use crate::stream::PublishStream;
use crate::tables::{Keyed, Tables};
use crate::topic::TopicId;
use large::LargeMessages;
use prepare::Ready;

/// The services of the broker that take part in the intake of messages.
pub(crate) struct Intake<'a> {
    pub(crate) cx: &'a mut Context,
    pub(crate) publishers: &'a mut Publishers,
    pub(crate) queues: &'a mut QueueService,
    pub(crate) tables: &'a mut Tables,
    pub(crate) stream: &'a mut PublishStream,
    pub(crate) bookmarks: &'a mut Bookmarks,
    pub(crate) links: &'a mut Links,
    pub(crate) in_hand: &'a mut InHand,
}

/// The state of the intake between two messages.
#[derive(Default)]
pub(crate) struct InHand {
    large: LargeMessages,
    /// The attributes of the message that is being recorded. The buffer is reused.
    attributes: AttributesBuffer,
}

/// A message, or a delete, on its way into the log.
struct Submission<'a> {
    origin: Origin<'a>,
    /// A message, or a delete of records.
    kind: RecordKind,
    publisher: PublisherId,
    topic: TopicId,
    /// `sequence` is a sequence of the publisher. With 0, the log assigns one. The data of a delete
    /// are the keys of the records, in the form of the log.
    publish: &'a Publish<'a>,
    /// The run of the publisher, and what the record follows.
    numbering: Numbering,
}

/// Where a message comes from.
#[derive(Clone, Copy)]
enum Origin<'a> {
    /// A client sent it. While the journal has no room, the message is refused, and the client
    /// receives the refusal.
    Client {
        /// The most bytes that the prepared message may have.
        size_max: usize,
        /// The message arrived before, and is only checked again.
        is_known: bool,
    },
    /// A service created it from records of the log. The journal buffers it until there is room.
    Service,
    /// Another instance prepared and recorded it. As for [`Origin::Service`], the journal buffers
    /// it.
    Peer {
        /// Its position in the log of that instance.
        position: Position,
        /// The instances that it has passed, including that one.
        path: InstancePath<'a>,
        /// Queues delay it until then.
        not_before: Option<Timestamp>,
        /// The time of its stamp; `None` when it cannot change a last value.
        stamp: Option<Timestamp>,
        /// The source permits other rules of keys here: the key is not compared with the data.
        has_any_key: bool,
    },
}

/// The result for a message.
#[derive(Debug)]
enum Ingested {
    /// The message has this position in the log.
    Recorded(Position),
    /// Its topic is not recorded, or the recording rule excludes it.
    Unrecorded,
    /// The log has this sequence of the publisher, and all sequences up to `highest`.
    Duplicate { highest: u64 },
    /// The journal accepts no writes.
    Refused,
    /// The journal refuses this message, and accepts others.
    Unacceptable(Box<JournalError>),
}

/// The time and the bookmark that are assigned to a message.
#[derive(Clone, Copy)]
struct Assigned {
    timestamp: Timestamp,
    /// The time by which last values are ordered, when it is not the timestamp.
    order: Option<Timestamp>,
    bookmark: Bookmark,
    /// Later messages of the publisher are in the log.
    is_late: bool,
}

impl Origin<'_> {
    /// The instance that took the message from its publisher; empty = this one.
    fn instance(&self) -> &str {
        match self {
            Origin::Client { .. } | Origin::Service => "",
            Origin::Peer { path, .. } => path.instances().next().map_or("", |instance| instance.name),
        }
    }
}

impl Intake<'_> {
    /// Takes a message of a service through all stages. Services publish with this function. The
    /// message has no sequence. When its fields cannot be constructed, it is recorded unchanged,
    /// because no client can receive a refusal.
    fn submit(&mut self, publisher: PublisherId, topic: &str, publish: &Publish<'_>) -> Ingested {
        let (topic, table) = self.admit_made(topic);
        let (origin, kind, numbering) = (Origin::Service, RecordKind::Publish, Numbering::NONE);
        let submission = Submission { origin, kind, publisher, topic, publish, numbering };
        let ready = self.prepare_now(&submission, table).unwrap_or(Ready::AsItIs);
        let publish = &ready.of(publish);
        self.ingest(&Submission { publish, ..submission }, ready.keyed())
    }

    /// Records a message that is ready, and serves it. `keyed` is the last-value topic that the
    /// message has a key of. Inlined, so that a plain message is not copied and has no key.
    #[inline(always)]
    fn ingest(&mut self, submission: &Submission<'_>, keyed: Option<Keyed<'_>>) -> Ingested {
        let mut assigned = self.assign(submission);
        if self.cx.log.has_links {
            assigned.order = self.order(submission, keyed, assigned.timestamp);
            assigned.is_late = self.is_late(submission);
        }
        let key = if keyed.is_some() { submission.publish.key } else { &[] };
        let ingested = self.record(submission, assigned, key);
        let position = match ingested {
            Ingested::Recorded(position) => Some(position),
            Ingested::Unrecorded => None,
            Ingested::Duplicate { .. } | Ingested::Refused | Ingested::Unacceptable(_) => return ingested,
        };
        match submission.kind {
            RecordKind::Delete => self.remove(submission, assigned),
            _ => self.serve(submission, assigned, position, keyed),
        }
        ingested
    }
}
