//! One connection: where it stands, what arrived of it, what is owed to it.

mod outbox;
mod publisher;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use quire_journal::Position;
use slotmap::new_key_type;

pub(crate) use outbox::Outbox;
pub(crate) use publisher::{Publisher, PublisherKey, Refusal, Settled};

use crate::broker::{ConnectionId, RestOfBatch, TIMER_COUNT};
use crate::filter::ClientFacts;
use crate::replay::ReplayId;
use crate::subscription::SubscriptionId;
use crate::time::Instant;
use crate::topic::TopicId;
use crate::wire::{Inbox, LOGON_FRAME_SIZE_MAX};

new_key_type! {
    /// Key of a session in the broker. Never given again, so the key of an ended session finds nothing.
    pub(crate) struct SessionId;
}

/// The life of a connection (protocol.md section 2).
///
/// ```text
/// Strange --logon--> Entering --persisted--> Open --goodbye--> Leaving --persisted--> Closed
///    any of them --error--> Closed
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Nothing but a logon is taken.
    Strange,
    /// Logged on, not answered: what an earlier connection of this name published must be persisted first, so that the answer's
    /// last sequence is true.
    Entering,
    /// Commands are taken.
    Open,
    /// Said goodbye; acknowledgements are still owed.
    Leaving,
    /// Nothing is taken any more; the rest is sent, then the connection is closed.
    Closed,
}

/// Why no further command of a connection is taken for the moment. What arrives meanwhile is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stall {
    /// Until the session is let in.
    Entering,
    /// Until the start of a subscription has been found.
    Locating,
    /// Until a settle has been carried out.
    Settling,
    /// Until the answer to a query has been sent.
    Querying,
    /// Until it gets its next share of a turn.
    Waiting,
    /// Until refusals or flushes have been answered, of which there are [`OWED_MAX`].
    Owing,
}

/// Refusals, and flushes, that wait for an earlier publish of the connection to be persisted: enough for every message of a large
/// read to be refused, small enough to be kept for every connection. At the limit no further command is taken.
pub(crate) const OWED_MAX: usize = 16 * 1024;

/// Everything about one connection.
pub(crate) struct Session {
    pub(crate) connection: ConnectionId,
    pub(crate) peer: Box<str>,
    pub(crate) phase: Phase,
    pub(crate) inbox: Inbox,
    /// Why commands wait, and the bytes that hold them.
    pub(crate) stall: Option<Stall>,
    pub(crate) kept: Vec<u8>,
    /// What goes before `kept`: the messages of a batch that a slice had no time for.
    pub(crate) batch: Option<Box<RestOfBatch>>,
    /// Bytes of unfinished frames and of `kept`, as the broker has counted them into its sum.
    pub(crate) unfinished_size: usize,
    /// The driver was told to read no more.
    pub(crate) is_reading_paused: bool,
    pub(crate) outbox: Outbox,
    /// The backlog of `outbox`, and `deferred_size`, as the broker has counted them into its sum.
    pub(crate) waiting_size: usize,
    /// Bytes of messages that wait until filters of its subscriptions are evaluated.
    pub(crate) deferred_size: usize,
    pub(crate) is_writable: bool,
    /// Stands in the list of sessions that the end of the turn looks at.
    pub(crate) is_dirty: bool,
    /// Name, user, publisher; from the logon on.
    pub(crate) identity: Option<Identity>,
    pub(crate) heartbeat: Option<Duration>,
    pub(crate) ack_interval: Duration,
    /// When the last `persisted` frame was sent.
    pub(crate) acked_at: Option<Instant>,
    /// When each timer of the session fires.
    pub(crate) timers: [Option<Instant>; TIMER_COUNT],
    pub(crate) heard_at: Instant,
    pub(crate) sent_at: Instant,
    /// By the client's numbers.
    pub(crate) subscriptions: BTreeMap<u32, SubscriptionId>,
    /// Patterns in their filters.
    pub(crate) pattern_count: usize,
    /// The replays among them.
    pub(crate) replays: Vec<ReplayId>,
    /// Those that hold messages whose interval is over and that the connection did not take.
    pub(crate) overdue: Vec<SubscriptionId>,
    pub(crate) flushes: VecDeque<Flush>,
    /// The topic of the last publish: publishers seldom change it from one message to the next.
    pub(crate) topic: Option<KnownTopic>,
    /// Something was appended to the journal for it since it last was below the limit of unpersisted bytes.
    pub(crate) has_published: bool,
    /// It said something about messages of a queue.
    pub(crate) has_settled: bool,
    /// It was told that the journal takes no more writes.
    pub(crate) knows_of_failure: bool,
}

/// Who a connection belongs to.
pub(crate) struct Identity {
    pub(crate) client_name: Box<str>,
    pub(crate) user: Option<Box<str>>,
    pub(crate) publisher: PublisherKey,
}

/// A flush that waits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flush {
    pub(crate) command: u32,
    /// What was appended when it came.
    pub(crate) position: Position,
}

/// A topic by name and number.
pub(crate) struct KnownTopic {
    pub(crate) name: Arc<str>,
    pub(crate) id: TopicId,
    /// The generation of the table that gave the number.
    pub(crate) generation: u64,
}

impl Session {
    pub(crate) fn new(connection: ConnectionId, peer: &str, now: Instant) -> Self {
        Session {
            connection,
            peer: peer.into(),
            phase: Phase::Strange,
            inbox: Inbox::new(LOGON_FRAME_SIZE_MAX),
            stall: None,
            kept: Vec::new(),
            batch: None,
            unfinished_size: 0,
            is_reading_paused: false,
            outbox: Outbox::default(),
            waiting_size: 0,
            deferred_size: 0,
            is_writable: true,
            is_dirty: false,
            identity: None,
            heartbeat: None,
            ack_interval: Duration::ZERO,
            acked_at: None,
            timers: [None; TIMER_COUNT],
            heard_at: now,
            sent_at: now,
            subscriptions: BTreeMap::new(),
            pattern_count: 0,
            replays: Vec::new(),
            overdue: Vec::new(),
            flushes: VecDeque::new(),
            topic: None,
            has_published: false,
            has_settled: false,
            knows_of_failure: false,
        }
    }

    /// Whether commands are taken at present.
    pub(crate) fn takes_commands(&self) -> bool {
        self.stall.is_none() && matches!(self.phase, Phase::Strange | Phase::Open)
    }

    /// The client's name, once known.
    pub(crate) fn client_name(&self) -> Option<String> {
        self.identity.as_ref().map(|identity| identity.client_name.to_string())
    }

    /// What functions in its filters may ask about it (reference: topics-filters-sow 2.7).
    pub(crate) fn client_facts(&self) -> ClientFacts {
        ClientFacts {
            client_name: self.client_name(),
            connection_name: Some(self.connection.0.to_string()),
            user: self.identity.as_ref().and_then(|identity| identity.user.as_deref()).map(str::to_owned),
            remote_address: Some(self.peer.to_string()),
        }
    }
}
