//! One connection: its state, its partly received input, and its pending answers.

mod batch;
mod kept;
mod outbox;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

pub(crate) use crate::ids::SessionId;
use quire_journal::Position;

pub(crate) use crate::ids::PublisherKey;
pub(crate) use batch::RestOfBatch;
pub(crate) use kept::{KeptBuffers, KeptBytes};
pub(crate) use outbox::{Outbox, SharedData, Taken};

use crate::Access;
use crate::codec::Codec;
use crate::ids::{ConnectionId, TransportId};
use crate::replay::ReplayId;
use crate::subscription::SubscriptionId;
use crate::topic::TopicId;
use quire_expression::filter::ClientFacts;
use quire_types::time::Instant;

/// The life of a connection (protocol.md section 2).
///
/// ```text
/// AwaitingLogon --logon--> LoggingOn --persisted--> Open --goodbye--> Closing --persisted--> Closed
///    any of them --error--> Closed
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Nothing but a logon is taken.
    AwaitingLogon,
    /// Logged on, not answered. The earlier publishes of this name must be persisted first, so that the last sequence in the answer is
    /// true.
    LoggingOn,
    /// Commands are taken.
    Open,
    /// Said goodbye; acknowledgements are still owed.
    Closing,
    /// Nothing is taken any more; the rest is sent, then the connection is closed.
    Closed,
}

/// Why no further command of a connection is taken for now. Bytes that arrive meanwhile are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stall {
    /// Until the logon of the session is accepted.
    LoggingOn,
    /// Until the start of a subscription has been found.
    Searching,
    /// Until a settle has been carried out.
    Settling,
    /// Until the answer to a query has been sent.
    Querying,
    /// Until records of last-value topics have been deleted.
    Deleting,
    /// Until a queue has been created or dropped.
    Defining,
    /// Until it gets its next share of a turn.
    Waiting,
    /// Until refusals or flushes have been answered, of which there are [`ACK_BACKLOG_MAX`].
    AckBacklog,
}

/// Refusals, and flushes, that wait for an earlier publish of the connection to be persisted: enough for every message of a large
/// read to be refused, small enough to be kept for every connection. At the limit no further command is taken.
pub(crate) const ACK_BACKLOG_MAX: usize = 16 * 1024;

/// Bytes in an outbox above which replays, queues and last-value topics wait: enough for a connection to be busy until the next turn.
const FEED_SIZE_MAX: usize = 512 * 1024;

/// Everything about one connection.
pub(crate) struct Session {
    pub(crate) connection: ConnectionId,
    pub(crate) peer: Box<str>,
    pub(crate) transport: TransportId,
    pub(crate) access: Access,
    pub(crate) phase: Phase,
    pub(crate) codec: Codec,
    /// Why commands wait, and the bytes that hold them.
    pub(crate) stall: Option<Stall>,
    pub(crate) kept: KeptBytes,
    /// The input before `kept`: the messages of a batch that a slice had no time for.
    pub(crate) batch: Option<Box<RestOfBatch>>,
    /// Bytes of unfinished frames and of `kept`, as the broker has counted them into its sum.
    pub(crate) unfinished_size: usize,
    /// The driver was asked to read no more.
    pub(crate) is_reading_paused: bool,
    pub(crate) outbox: Outbox,
    /// Bytes of the backlog of `outbox` that only this session holds, and `deferred_size`, as the broker has counted them into its sum.
    pub(crate) waiting_size: usize,
    /// Bytes of messages that wait until filters of its subscriptions are evaluated.
    pub(crate) deferred_size: usize,
    pub(crate) is_writable: bool,
    /// It is in the list of sessions that the end of the turn looks at.
    pub(crate) is_dirty: bool,
    /// Name, user, publisher; from the logon on.
    pub(crate) identity: Option<Identity>,
    pub(crate) heartbeat: Option<Duration>,
    pub(crate) received_at: Instant,
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
    /// It sent a verdict on messages of a queue.
    pub(crate) has_settled: bool,
    /// It was notified that the journal takes no more writes.
    pub(crate) knows_of_failure: bool,
}

/// The sender of the commands of a connection.
pub(crate) struct Principal {
    pub(crate) client_name: Box<str>,
    pub(crate) user: Option<Box<str>>,
}

/// The client of a connection, and its publisher.
pub(crate) struct Identity {
    pub(crate) principal: Principal,
    pub(crate) publisher: PublisherKey,
    /// Of the client, and the number of the connection among its connections; 0 = unknown.
    pub(crate) incarnation: (u64, u32),
}

/// A flush that waits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flush {
    pub(crate) command: u32,
    /// The last appended position when it arrived.
    pub(crate) position: Position,
    /// It also waits for the first dead letters of the log, this many. The position is known once they are appended. 0: for none.
    pub(crate) letters: u64,
}

/// A topic by name and number.
pub(crate) struct KnownTopic {
    pub(crate) name: Arc<str>,
    pub(crate) id: TopicId,
    /// The generation of the table that gave the number.
    pub(crate) generation: u64,
}

impl Session {
    pub(crate) fn new(
        connection: ConnectionId,
        peer: &str,
        transport: TransportId,
        access: Access,
        now: Instant,
    ) -> Self {
        let codec = Codec::quire();
        Session {
            connection,
            peer: peer.into(),
            transport,
            access,
            phase: Phase::AwaitingLogon,
            stall: None,
            kept: KeptBytes::default(),
            batch: None,
            unfinished_size: 0,
            is_reading_paused: false,
            outbox: Outbox::new(codec.encoder()),
            waiting_size: 0,
            deferred_size: 0,
            is_writable: true,
            is_dirty: false,
            codec,
            identity: None,
            heartbeat: None,
            received_at: now,
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
        self.stall.is_none() && matches!(self.phase, Phase::AwaitingLogon | Phase::Open)
    }

    /// Whether the connection has room for more messages. Replays, queues and last-value topics wait until it has.
    pub(crate) fn has_room(&self) -> bool {
        self.is_writable && self.phase != Phase::Closed && self.outbox.size() < FEED_SIZE_MAX
    }

    /// The client's name, once known.
    pub(crate) fn client_name(&self) -> Option<String> {
        self.identity.as_ref().map(|identity| identity.principal.client_name.to_string())
    }

    /// The properties of the client that functions in its filters can return.
    pub(crate) fn client_facts(&self) -> ClientFacts {
        ClientFacts {
            client_name: self.client_name(),
            connection_name: Some(self.connection.0.to_string()),
            user: self
                .identity
                .as_ref()
                .and_then(|identity| identity.principal.user.as_deref())
                .map(str::to_owned),
            remote_address: Some(self.peer.to_string()),
        }
    }
}
