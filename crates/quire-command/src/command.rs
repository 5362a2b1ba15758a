//! The commands of a client.

use crate::packed::{BatchItems, BegunMessages, Bookmarks, Keys, SubscriptionNumbers, Texts};
use quire_types::{Action, Delay, Files, Headers, Secret, Verdict};

/// A command of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the variants are named and described in protocol.md
pub enum Command<'a> {
    Logon(Logon<'a>),
    Publish(Publish<'a>),
    PublishBatch(PublishBatch<'a>),
    Subscribe(Subscribe<'a>),
    Unsubscribe(Unsubscribe<'a>),
    Flush {
        command: u32,
        acks: Acks,
    },
    Heartbeat,
    Goodbye,
    Pause {
        command: u32,
        acks: Acks,
        subscriptions: SubscriptionNumbers<'a>,
    },
    Resume {
        command: u32,
        acks: Acks,
        subscriptions: SubscriptionNumbers<'a>,
    },
    Settle(Settle<'a>),
    Extend(Extend<'a>),
    Query(Query<'a>),
    Stats {
        command: u32,
        queue: Option<&'a str>,
    },
    Maintain(Maintain<'a>),
    Inspect {
        command: u32,
        subject: Subject<'a>,
    },
    DefineQueue {
        command: u32,
        action: DefineQueue<'a>,
    },
    /// A view gets another definition. `settings`: all of them, as JSON (protocol.md section 3).
    DefineView {
        command: u32,
        settings: &'a str,
    },
    SowDelete(SowDelete<'a>),
    Replicate {
        command: u32,
        destination: &'a str,
        action: LinkAction,
    },
    Reload {
        command: u32,
    },
    /// `block_ms`: the client name of the connection cannot log on for this time; 0 = it can.
    Disconnect {
        command: u32,
        connection: u64,
        block_ms: u32,
    },
}

/// The change that a [`Command::Replicate`] asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkAction {
    /// Publishers no longer wait for the destination.
    Downgrade,
    /// They wait for it again.
    Upgrade,
    /// No records are sent to the destination.
    Pause,
    /// Records are sent again.
    Resume,
    /// The log is compared with those of all sources, and what it lacks is asked for. The name is
    /// that of the server.
    Compare,
    /// The server lets clients in although its log may lack messages. It names no destination.
    Admit,
    /// The messages that are missing are accepted as lost: those of the publisher whose id is the
    /// name, or all of them. It names no destination.
    Accept,
}

/// The change that a [`Command::DefineQueue`] asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DefineQueue<'a> {
    /// It is created.
    Create {
        /// Its settings as JSON (protocol.md section 3).
        settings: &'a str,
    },
    /// A queue that was created at run time gets other settings.
    Alter {
        /// Its name.
        queue: &'a str,
        /// The settings that change, as JSON (protocol.md section 3).
        changes: &'a str,
    },
    /// A queue that was created at run time is dropped.
    Drop {
        /// Its name.
        queue: &'a str,
    },
}

/// The subject of a [`Command::Inspect`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject<'a> {
    /// The server itself.
    Server,
    /// Its connections with a number above this one.
    Clients {
        /// 0: from the first one on.
        after: u64,
    },
    /// The subscriptions of its connections, after this one.
    Subscriptions {
        /// The connection; 0: from the first subscription on.
        after_connection: u64,
        /// Its number on the connection.
        after_subscription: u32,
    },
    /// Its topics with names after this one.
    Topics {
        /// Empty: from the first one on.
        after: &'a str,
    },
    /// Its links to other instances.
    Replication,
    /// Its messages, for a comparison with those of another server.
    Messages {
        /// What is asked (docs/protocol.md, *Comparison of logs*).
        question: &'a [u8],
    },
    /// Its statistics: a node of the tree of figures, or the samples of a metric.
    Statistics {
        /// What is asked (docs/protocol.md, *inspect*).
        question: &'a [u8],
    },
    /// The entitlements: which of them decides about a request.
    Access {
        /// What is asked (docs/protocol.md, *inspect*).
        question: &'a [u8],
    },
}

/// The identity of the client, and its options for the connection.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Logon<'a> {
    /// Protocol version of the client.
    pub version: u16,
    /// The publisher's identity, 1 to 255 bytes without control characters.
    pub client_name: &'a str,
    /// Identity for the "name in use" rule.
    pub user: Option<&'a str>,
    /// Secret of the user.
    pub password: Option<Secret<&'a str>>,
    /// Token of the user, instead of a password.
    pub token: Option<Secret<&'a str>>,
    /// Heartbeat interval in milliseconds, 0 = none.
    pub heartbeat_ms: u32,
    /// Shortest time between two persisted acknowledgements in milliseconds, 0 = one per journal
    /// flush.
    pub ack_interval_ms: u32,
    /// Version of the client library, for the log.
    pub client_version: Option<&'a str>,
    /// A random number of the client, the same on all its connections; 0 = none.
    pub incarnation: u64,
    /// The number of this connection among those of the incarnation.
    pub connection_number: u32,
    /// The run of the publisher: the number of its store file, or the incarnation; 0 = none.
    pub run: u64,
    /// The highest sequence that a server has acknowledged to the run.
    pub persisted: u64,
    /// The client only shows the server and administers it. So it is let in before other clients.
    pub observes: bool,
}

/// A logon that waits until another thread has checked its password or token.
#[derive(Clone, Debug)]
pub struct WaitingLogon {
    version: u16,
    client_name: Box<str>,
    heartbeat_ms: u32,
    ack_interval_ms: u32,
    client_version: Option<Box<str>>,
    incarnation: u64,
    connection_number: u32,
    run: u64,
    persisted: u64,
    observes: bool,
}

impl WaitingLogon {
    /// Keeps a logon, without its user, password and token.
    pub fn new(logon: &Logon<'_>) -> Self {
        WaitingLogon {
            version: logon.version,
            client_name: logon.client_name.into(),
            heartbeat_ms: logon.heartbeat_ms,
            ack_interval_ms: logon.ack_interval_ms,
            client_version: logon.client_version.map(Into::into),
            incarnation: logon.incarnation,
            connection_number: logon.connection_number,
            run: logon.run,
            persisted: logon.persisted,
            observes: logon.observes,
        }
    }

    /// The logon, as that of `user`.
    pub fn of_user<'a>(&'a self, user: &'a str) -> Logon<'a> {
        Logon {
            version: self.version,
            client_name: &self.client_name,
            user: Some(user),
            password: None,
            token: None,
            heartbeat_ms: self.heartbeat_ms,
            ack_interval_ms: self.ack_interval_ms,
            client_version: self.client_version.as_deref(),
            incarnation: self.incarnation,
            connection_number: self.connection_number,
            run: self.run,
            persisted: self.persisted,
            observes: self.observes,
        }
    }
}

/// One message that a client sends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Publish<'a> {
    /// Number in this publisher's sequence, 0 = none.
    pub sequence: u64,
    /// Lifetime in seconds, 0 = never expires; `None` = not given.
    pub expiration_s: Option<u32>,
    /// The time for which queues do not deliver it.
    pub delay: Delay,
    /// Its topic. It was not checked to be text.
    pub topic: &'a [u8],
    /// Delivered unchanged; empty = none.
    pub correlation_id: &'a [u8],
    /// Delivered unchanged.
    pub headers: Headers<'a>,
    /// The key in its last-value topic that the publisher supplies; empty = none.
    pub key: &'a [u8],
    /// Its fields are merged into the record with the same key.
    pub is_delta: bool,
    /// It is only taken when its last-value topic has a record with its key.
    pub is_update: bool,
    /// The program gave the sequence. It names the message, whichever run publishes it.
    pub is_numbered: bool,
    /// The message.
    pub data: &'a [u8],
}

impl Publish<'_> {
    /// Whether it is a whole message without a key and a delay, which does not depend on a record.
    #[inline]
    pub fn is_plain(&self) -> bool {
        self.key.is_empty() && self.delay.is_none() && !self.is_delta && !self.is_update
    }
}

/// Several messages for one topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PublishBatch<'a> {
    /// The parts that all messages have in common. `sequence` is that of the first message, and
    /// `data` is empty.
    pub head: Publish<'a>,
    /// The data of each.
    pub items: BatchItems<'a>,
}

impl<'a> PublishBatch<'a> {
    /// The messages one by one, numbered.
    pub fn messages(mut self) -> impl Iterator<Item = Publish<'a>> {
        std::iter::from_fn(move || self.next_message())
    }

    /// Removes and returns the first message of the batch.
    pub fn next_message(&mut self) -> Option<Publish<'a>> {
        let data = self.items.next()?;
        let publish = Publish { data, ..self.head };
        // The codec has checked the last sequence of a batch. The sequence after it is not used.
        self.head.sequence = self.head.sequence.wrapping_add(u64::from(self.head.sequence != 0));
        Some(publish)
    }

    /// Whether all messages were taken out.
    pub fn is_empty(&self) -> bool {
        self.items.bytes().is_empty()
    }

    /// The batch of items that were part of a batch before, from [`BatchItems::bytes`].
    pub fn of_checked(head: Publish<'a>, items: &'a [u8]) -> Self {
        PublishBatch { head, items: BatchItems::of_checked(items) }
    }
}

/// Which acknowledgements a command asks for (protocol.md section 3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Acks(pub u8);

impl Acks {
    /// The command arrived.
    pub const RECEIVED: Acks = Acks(1);
    /// The command was accepted or refused.
    pub const PROCESSED: Acks = Acks(2);
    /// The operation is done: replay has caught up.
    pub const COMPLETED: Acks = Acks(4);
    /// Everything that was published before is persisted.
    pub const PERSISTED: Acks = Acks(8);
    /// All defined bits.
    pub const ALL: Acks = Acks(15);

    /// Both sets together.
    pub const fn and(self, other: Acks) -> Acks {
        Acks(self.0 | other.0)
    }

    /// Whether all of `other` are set.
    pub const fn has(self, other: Acks) -> bool {
        self.0 & other.0 == other.0
    }
}

/// The options of a subscription.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Subscribe<'a> {
    /// Number that the acknowledgements echo, not 0.
    pub command: u32,
    /// The acknowledgements wanted.
    pub acks: Acks,
    /// The client's number for the subscription.
    pub subscription: u32,
    /// Exact, or a pattern.
    pub topic: &'a str,
    /// Content filter.
    pub filter: Option<&'a str>,
    /// Where replay begins; present makes it a bookmark subscription.
    pub bookmark: Option<&'a str>,
    /// See [`SubscribeOptions`].
    pub options: SubscribeOptions,
    /// For queues: the most messages outstanding; `None` = 1, 0 = barriers only.
    pub max_backlog: Option<u32>,
    /// The fastest pace.
    pub rate: Option<&'a str>,
    /// For a multiple of the original rate: the longest wait for a message, in nanoseconds.
    pub rate_max_gap_ns: Option<u64>,
    /// At most one message per key in this time, in nanoseconds.
    pub conflation_ns: Option<u64>,
    /// The fields that are the key, separated by commas.
    pub conflation_key: Option<&'a str>,
    /// The fields to deliver; `None` = whole messages.
    pub select: Option<&'a str>,
    /// With [`SubscribeOptions::SOW`]: the order of the records.
    pub order_by: Option<&'a str>,
    /// With [`SubscribeOptions::SOW`]: the most records wanted.
    pub top_n: Option<u32>,
    /// With [`SubscribeOptions::SOW`]: the records to skip at the beginning.
    pub skip_n: Option<u32>,
    /// With [`SubscribeOptions::SOW`]: only the records with these keys, and messages with these
    /// keys.
    pub keys: Option<Keys<'a>>,
    /// With [`SubscribeOptions::SOW`]: a record of computed fields for each group of records,
    /// instead of the records.
    pub projection: Option<Texts<'a>>,
    /// With `projection`: the fields that make the groups. `None` = one group.
    pub grouping: Option<Texts<'a>>,
    /// The client takes [`Reply::Places`](crate::Reply::Places).
    pub takes_places: bool,
    /// With a bookmark: it begins after this position instead, when the log there has this number.
    pub place: Option<LogPlace>,
}

/// A position of the log with a number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct LogPlace {
    /// The number of the log; 0: none is known.
    pub log: u64,
    /// The position.
    pub position: u64,
}

/// Ends a subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Unsubscribe<'a> {
    /// Number that the acknowledgements echo, not 0.
    pub command: u32,
    /// The acknowledgements wanted.
    pub acks: Acks,
    /// The client's number for the subscription.
    pub subscription: u32,
    /// For messages of queues: those that the program has begun. All others of the subscription are
    /// released. `None`: every message counts as begun.
    pub begun: Option<BegunMessages<'a>>,
}

/// Reads records of last-value topics, or messages of a queue, without a change.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Query<'a> {
    /// Number that the acknowledgements echo, not 0.
    pub command: u32,
    /// The acknowledgements wanted.
    pub acks: Acks,
    /// The number that the messages carry.
    pub subscription: u32,
    /// The queue, a last-value topic, or a pattern of last-value topics.
    pub topic: &'a str,
    /// Content filter.
    pub filter: Option<&'a str>,
    /// The fields to sort by. Without it, messages of a queue are in delivery order, and records in
    /// any order.
    pub order_by: Option<&'a str>,
    /// The most messages wanted.
    pub top_n: Option<u32>,
    /// The messages to skip at the beginning.
    pub skip_n: Option<u32>,
    /// Only the records with these keys.
    pub keys: Option<Keys<'a>>,
    /// The fields to deliver; `None` = whole messages.
    pub select: Option<&'a str>,
    /// For last-value topics: the state after this message or time; `None` = the current state.
    pub bookmark: Option<&'a str>,
    /// For one last-value topic: a record of computed fields for each group of records, instead of
    /// the records.
    pub projection: Option<Texts<'a>>,
    /// With `projection`: the fields that make the groups. `None` = one group.
    pub grouping: Option<Texts<'a>>,
    /// A topic that does not exist is refused with
    /// [`Code::NotLastValue`](crate::Code::NotLastValue), and not as an unknown queue.
    pub wants_last_values: bool,
}

/// Removes records of last-value topics. All given selectors must hold; at least one is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct SowDelete<'a> {
    /// Number that the acknowledgements echo, not 0.
    pub command: u32,
    /// The acknowledgements wanted.
    pub acks: Acks,
    /// Number in this publisher's sequence, 0 = none.
    pub sequence: u64,
    /// A last-value topic, or a pattern of them.
    pub topic: &'a str,
    /// Content filter.
    pub filter: Option<&'a str>,
    /// The records with these keys.
    pub keys: Option<Keys<'a>>,
    /// A message: selects the record that a publish of it would replace.
    pub data: Option<&'a [u8]>,
}

/// The option bits of a subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct SubscribeOptions(pub u32);

impl SubscribeOptions {
    /// Replaces the subscription with the same number, atomically.
    pub const REPLACE: SubscribeOptions = SubscribeOptions(1);
    /// After the replay, messages are delivered before they are persisted.
    pub const LIVE: SubscribeOptions = SubscribeOptions(2);
    /// After the replay, messages are delivered when every synchronous destination has them, too.
    pub const FULLY_DURABLE: SubscribeOptions = SubscribeOptions(4);
    /// It does not deliver until it is resumed.
    pub const PAUSED: SubscribeOptions = SubscribeOptions(8);
    /// None of the bookmarks is in the log: fail.
    pub const NOT_FOUND_FAILS: SubscribeOptions = SubscribeOptions(16);
    /// None of the bookmarks is in the log: begin now.
    pub const NOT_FOUND_NOW: SubscribeOptions = SubscribeOptions(32);
    /// First the records of last-value topics, then the messages.
    pub const SOW: SubscribeOptions = SubscribeOptions(64);
    /// A message for each record that leaves the view of the subscription.
    pub const OOF: SubscribeOptions = SubscribeOptions(128);
    /// Only the fields that differ in each change of a record.
    pub const DELTA: SubscribeOptions = SubscribeOptions(256);
    /// With [`DELTA`](Self::DELTA): no message for a change in which no field differs.
    pub const NO_EMPTIES: SubscribeOptions = SubscribeOptions(512);
    /// The log is replayed with its deletes of records.
    pub const DELETIONS: SubscribeOptions = SubscribeOptions(1024);
    /// All defined bits.
    pub const ALL: SubscribeOptions = SubscribeOptions(2047);

    /// Whether all of `other` are set.
    pub const fn has(self, other: SubscribeOptions) -> bool {
        self.0 & other.0 == other.0
    }

    /// Both sets together.
    pub const fn and(self, other: SubscribeOptions) -> SubscribeOptions {
        SubscribeOptions(self.0 | other.0)
    }
}

/// Acknowledges, cancels or expires messages of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settle<'a> {
    /// The verdict on the messages.
    pub verdict: Verdict,
    /// Number that the acknowledgements echo, 0 = none is wanted.
    pub command: u32,
    /// The acknowledgements wanted.
    pub acks: Acks,
    /// The queue.
    pub queue: &'a str,
    /// Which messages.
    pub messages: Selection<'a>,
    /// The reason for their dead letters; empty: none. Only with a cancel or an expiry, up to
    /// [`REASON_SIZE_MAX`](crate::REASON_SIZE_MAX) bytes.
    pub reason: &'a str,
}

/// Extends leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extend<'a> {
    /// The period from now on, in milliseconds; 0 = the period of the queue.
    pub period_ms: u64,
    /// Number that the acknowledgements echo, 0 = none is wanted.
    pub command: u32,
    /// The acknowledgements wanted.
    pub acks: Acks,
    /// The queue.
    pub queue: &'a str,
    /// Which messages.
    pub bookmarks: Bookmarks<'a>,
}

/// The messages that a [`Settle`] is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Selection<'a> {
    /// These.
    Bookmarks(Bookmarks<'a>),
    /// Every active one that the filter matches; empty: every one.
    Matching(&'a str),
}

/// Archives, compresses or removes one full journal file, or names the selected files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Maintain<'a> {
    /// Number that the answer echoes, not 0.
    pub command: u32,
    /// The action.
    pub action: Action,
    /// With which files.
    pub files: Files,
    /// No file is changed. The answer names every selected file.
    pub dry_run: bool,
    /// The server refuses the command unless it archives to this directory; `None`: any.
    pub archive_directory: Option<&'a str>,
}
