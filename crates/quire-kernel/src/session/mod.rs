//! One connection: its state, its partly received input, and its pending answers.

mod batch;
mod kept;
mod outbox;

use std::collections::{BTreeMap, VecDeque};
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

pub use crate::ids::SessionId;
use quire_journal::Position;

pub use crate::ids::PublisherKey;
pub use batch::{OwnedPublish, RestOfBatch};
pub use kept::{KeptBuffers, KeptBytes};
pub use outbox::{Outbox, Piece, SharedData, Taken};

use crate::Access;
use crate::codec::Codec;
use crate::entitlement::Rights;
use crate::ids::{ConnectionId, TransportId};
use crate::replay::ReplayId;
use crate::subscription::SubscriptionId;
use crate::topic::TopicId;
use quire_command::WaitingLogon;
use quire_expression::filter::ClientFacts;
use quire_types::Timestamp;
use quire_types::time::{Instant, Now};

/// The life of a connection (protocol.md section 2).
///
/// ```text
/// AwaitingLogon --logon, password checked--> LoggingOn --persisted--> Open
/// Open --goodbye--> Closing --persisted--> Closed
/// any of them --error--> Closed
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Only a logon is accepted.
    AwaitingLogon,
    /// Logged on, not answered. The earlier publishes of this name must be persisted first, so that
    /// the answer contains the correct last sequence.
    LoggingOn,
    /// Commands are taken.
    Open,
    /// The client has logged off. Some acknowledgements must still be sent.
    Closing,
    /// No command is accepted. The rest of the output is sent, then the connection is closed.
    Closed,
}

/// Why no further command of a connection is accepted for now. Bytes that arrive meanwhile are
/// buffered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stall {
    /// Until the driver has checked the password of the logon.
    Authenticating,
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
    /// Until another thread has prepared a large message.
    Preparing,
    /// Until it gets its next share of a turn.
    Waiting,
    /// Until the user is no longer ahead of the rate at which it may publish.
    Rate,
    /// Until refusals or flushes have been answered, because their number has reached
    /// [`ACK_BACKLOG_MAX`].
    AckBacklog,
}

/// The most refusals and flushes that wait until an earlier publish of the connection is persisted.
/// The limit allows a refusal for every message of a large read, and is small enough for every
/// connection. At the limit, no further command is accepted.
pub const ACK_BACKLOG_MAX: usize = 16 * 1024;

/// Bytes in an outbox above which replays, queues and last-value topics wait. They keep a
/// connection busy until the next turn.
const FEED_SIZE_MAX: usize = 512 * 1024;

/// Everything about one connection.
pub struct Session {
    pub connection: ConnectionId,
    pub peer: Box<str>,
    pub transport: TransportId,
    pub access: Access,
    pub phase: Phase,
    pub codec: Codec,
    /// Why commands wait, and the bytes of these commands.
    pub stall: Option<Stall>,
    pub kept: KeptBytes,
    /// The input before `kept`: the messages of a batch that a slice could not process.
    pub batch: Option<Box<RestOfBatch>>,
    /// Bytes of the large message that another thread prepares.
    pub preparing_size: usize,
    /// Bytes of unfinished frames and of `kept` that the sum of the broker includes.
    pub unfinished_size: usize,
    /// The driver was requested to stop reading.
    pub is_reading_paused: bool,
    pub outbox: Outbox,
    /// Bytes of the backlog of `outbox` that only this session holds, and `deferred_size`, as
    /// included in the sum of the broker.
    pub waiting_size: usize,
    /// Bytes of messages that wait until filters of its subscriptions are evaluated.
    pub deferred_size: usize,
    pub is_writable: bool,
    /// The session is in the list of sessions that are checked at the end of the turn.
    pub is_dirty: bool,
    /// The logon whose password the driver checks.
    pub waiting_logon: Option<Box<WaitingLogon>>,
    /// The groups of its user.
    pub groups: Box<[Box<str>]>,
    /// The entitlements of its user; `None`: it may do everything.
    pub rights: Option<Box<Rights>>,
    /// The name of its user, when the user has limits.
    pub limited: Option<Arc<str>>,
    /// Commands that its rights did not allow: those that read, and the others.
    pub denied_read_count: u64,
    pub denied_write_count: u64,
    pub traffic: Traffic,
    /// Name, user and publisher, after the logon.
    pub identity: Option<Identity>,
    pub heartbeat: Option<Duration>,
    pub received_at: Instant,
    pub sent_at: Instant,
    /// By the client's numbers.
    pub subscriptions: BTreeMap<u32, SubscriptionId>,
    /// Patterns in their filters.
    pub pattern_count: usize,
    /// The replays among them.
    pub replays: Vec<ReplayId>,
    /// The subscriptions that hold due messages, because the connection did not accept them at the
    /// end of their interval.
    pub overdue: Vec<SubscriptionId>,
    pub flushes: VecDeque<Flush>,
    /// The topic of the last publish. Successive publishes usually have the same topic.
    pub topic: Option<KnownTopic>,
    /// Records of the session were appended to the journal since it was last below the limit of
    /// unpersisted bytes.
    pub has_published: bool,
    /// The session has settled messages of a queue.
    pub has_settled: bool,
    /// It was notified that the journal takes no more writes.
    pub knows_of_failure: bool,
}

/// The sender of the commands of a connection.
pub struct Principal {
    pub client_name: Box<str>,
    pub user: Option<Box<str>>,
}

/// How much passed over a connection. The messages that were sent are counted by its outbox.
#[derive(Clone, Copy, Debug, Default)]
pub struct Traffic {
    /// When the connection was made.
    pub connected: Timestamp,
    pub received_bytes: u64,
    pub sent_bytes: u64,
    /// Messages that the client has published.
    pub published_count: u64,
}

/// The client of a connection, and its publisher.
pub struct Identity {
    pub principal: Principal,
    pub publisher: PublisherKey,
    /// The publisher of the client, and the number of this connection among its connections; 0 =
    /// unknown.
    pub incarnation: (u64, u32),
    /// The highest sequence that a server has acknowledged to the run of the publisher.
    pub persisted: u64,
    /// The version of the library of the client, if it named one.
    pub client_version: Option<Box<str>>,
    /// It only looks at the server and administers it.
    pub observes: bool,
}

/// A flush that waits.
#[derive(Clone, Copy, Debug)]
pub struct Flush {
    pub command: u32,
    /// The last appended position when it arrived.
    pub position: Position,
    /// The flush also waits for the announced records of the log up to this number. Their positions
    /// are known after they are appended.
    pub announced: Option<NonZeroU64>,
}

/// A topic by name and number.
pub struct KnownTopic {
    pub name: Arc<str>,
    pub id: TopicId,
    /// The generation of the table that gave the number.
    pub generation: u64,
}

impl Session {
    pub fn new(
        connection: ConnectionId,
        peer: &str,
        transport: TransportId,
        access: Access,
        Now { instant: now, wall: connected }: Now,
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
            preparing_size: 0,
            unfinished_size: 0,
            is_reading_paused: false,
            outbox: Outbox::new(codec.encoder()),
            waiting_size: 0,
            deferred_size: 0,
            is_writable: true,
            is_dirty: false,
            codec,
            waiting_logon: None,
            groups: Box::default(),
            rights: None,
            limited: None,
            denied_read_count: 0,
            denied_write_count: 0,
            traffic: Traffic { connected, ..Traffic::default() },
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

    /// Whether commands are accepted now.
    #[inline]
    pub fn takes_commands(&self) -> bool {
        self.stall.is_none() && matches!(self.phase, Phase::AwaitingLogon | Phase::Open)
    }

    /// Whether the connection has room for more messages. Replays, queues and last-value topics
    /// wait until it has.
    #[inline]
    pub fn has_room(&self) -> bool {
        self.is_writable && self.phase != Phase::Closed && self.outbox.size() < FEED_SIZE_MAX
    }

    /// The client's name, once known.
    pub fn client_name(&self) -> Option<String> {
        self.identity.as_ref().map(|identity| identity.principal.client_name.to_string())
    }

    /// The properties of the client that functions in its filters can return.
    pub fn client_facts(&self) -> ClientFacts {
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
