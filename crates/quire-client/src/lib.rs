//! The client as a state machine: the state, the frames and the timers of a publisher and
//! subscriber, without a socket or a clock.
//!
//! # The run loop
//! A driver owns one [`ClientCore`] and the current connection:
//!
//! 1. [`ClientCore::poll_connect`] returns whether and when to connect, and to which of the
//!    addresses. Report the outcome with [`ClientCore::handle_connected`] or
//!    [`ClientCore::handle_disconnected`].
//! 2. Pass received bytes to [`ClientCore::handle_received`]. Write the bytes of
//!    [`ClientCore::poll_transmit`], until it returns none.
//! 3. After either, take [`ClientCore::poll_event`] until `None`.
//! 4. Call [`ClientCore::handle_timeout`] no later than [`ClientCore::next_timeout`].
//!
//! The user may call `publish`, `subscribe`, `flush` and so on at any time, connected or not.
//!
//! # What it promises
//! A publish with a sequence is kept until the server has persisted it. It is sent again, in order,
//! after every reconnect, and the server drops publishes that it already has. After a reconnect the
//! order is: logon, publishes, subscriptions, commands. So no subscriber sees a gap that this
//! client's publishes are about to fill. A bookmark subscription resumes after the last message
//! that it received: no gap and no duplicate.

mod assigned_sequences;
mod backpressure;
mod command;
mod connection;
pub mod drive;
mod last_values;
mod lease;
mod leases;
mod maintenance;
mod message;
mod progress;
mod publish;
mod queues;
mod receipt;
mod reconnect;
mod replies;
mod resume_position;
mod subscription;
mod view;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use quire_types::Bookmark;

use assigned_sequences::AssignedSequences;
pub use command::CommandId;
use command::Commands;
use connection::Connection;
pub use last_values::{DeleteSpec, QuerySpec};
pub use lease::{Begun, Lease, Renewal};
use leases::Leases;
pub use leases::{LossCause, LossCount};
pub use message::{Cause, Message};
pub use progress::{Processed, SubscriptionProgress};
use publish::PublishStore;
pub use publish::{NewDelay, NewMessage, PublishError, PublishLog, StoredPublishes};
use quire_command::{Code, Command, LoggedOn, TOKEN_EXPIRED};
use quire_types::Secret;
use quire_types::time::Instant;
use quire_wire::{Encode, FRAME_OVERHEAD_MAX, WireError};
use receipt::Receipts;
pub use receipt::{BatchError, Outcome, ReceiptId};
use reconnect::Backoff;
pub use reconnect::{Reconnect, ServerChooser};
pub use resume_position::{LastBookmarks, PositionsByInstance, ResumePosition, SequenceRange};
pub use subscription::{RecordsSpec, SubscriptionSpec};
use subscription::{Replacement, Subscriptions, bad_option};

/// The identity and the behavior of the client.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// The publisher's identity.
    pub name: String,
    /// Identity for the "name in use" rule.
    pub user: Option<String>,
    /// Secret of the user.
    pub password: Option<Secret<String>>,
    /// Token of the user, instead of a password.
    pub token: Option<Secret<String>>,
    /// The driver has another token for each connection ([`ClientCore::set_token`]). After the
    /// refusal of one that has expired, the client tries the next one.
    pub renews_token: bool,
    /// Interval of heartbeats; `None` = none.
    pub heartbeat: Option<Duration>,
    /// Shortest time between two persisted acknowledgements.
    pub ack_interval: Duration,
    /// How to reconnect.
    pub reconnect: Reconnect,
    /// The number of addresses, at least one.
    pub address_count: usize,
    /// The most bytes of unpersisted publishes. Above it, [`ClientCore::publish`] refuses.
    pub publish_store_size_max: usize,
    /// The number of acknowledgements of queue messages in a batch. A smaller backlog that the
    /// server granted lowers it.
    pub ack_batch_size: u32,
    /// The longest time that an acknowledgement waits for its batch.
    pub ack_timeout: Duration,
    /// A random number that differs for each client. By it, the server recognizes late logons of
    /// earlier connections of the client. It is also the seed of the jitter, and the run of a
    /// publisher without a [`PublishLog`].
    pub incarnation: u64,
    /// The program only looks at the server and administers it. So the server lets the client in
    /// while its log may lack messages, and takes no other commands then.
    pub observes: bool,
}

/// Which sequence a publish gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sequence {
    /// The next one.
    Auto,
    /// This one. If it is not above the highest one, the server drops the publish as a duplicate.
    Given(u64),
    /// None. The server numbers it under a publisher id of the server. The publish is not sent
    /// again after a lost connection.
    None,
}

/// Why a call or a command failed, and the text for a person.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct Failure {
    /// The stable code.
    pub code: FailureCode,
    /// For a person.
    pub reason: String,
    /// For [`Code::BadFilter`]: the column of the mistake, from 1; else 0.
    pub column: u32,
}

impl Failure {
    /// A failure without a column.
    pub fn new(code: impl Into<FailureCode>, reason: impl Into<String>) -> Self {
        Failure { code: code.into(), reason: reason.into(), column: 0 }
    }
}

/// The stable code of a failure: a code of the protocol, or a code for a case that only clients
/// have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureCode {
    /// As a server sends it.
    Wire(Code),
    /// The client, or the subscription, is closed.
    Closed,
    /// There is no connection, or it was lost.
    Disconnected,
}

impl FailureCode {
    /// The stable name, as in `bad_filter`.
    pub const fn name(self) -> &'static str {
        match self {
            FailureCode::Wire(code) => code.name(),
            FailureCode::Closed => "closed",
            FailureCode::Disconnected => "disconnected",
        }
    }
}

impl From<Code> for FailureCode {
    fn from(code: Code) -> Self {
        FailureCode::Wire(code)
    }
}

impl PartialEq<Code> for FailureCode {
    fn eq(&self, code: &Code) -> bool {
        *self == FailureCode::Wire(*code)
    }
}

/// The failure of calls on a client that its user has closed.
pub(crate) fn closed() -> Failure {
    Failure::new(FailureCode::Closed, "the client is closed")
}

/// The state of the connection to the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConnectionState {
    /// Never connected yet.
    Connecting,
    /// Logged on.
    Connected,
    /// It was connected before, and tries to reconnect.
    Reconnecting,
    /// Closed for good; `None` = the user closed it.
    Closed(Option<Failure>),
}

/// An event that the driver passes on.
#[derive(Debug)]
pub enum Event {
    /// See [`ClientCore::state`].
    StateChanged,
    /// A command was answered.
    Answered {
        /// Which one.
        command: CommandId,
        /// How.
        result: Result<(), Failure>,
    },
    /// Messages of one subscription, in order.
    Messages {
        /// The number of the subscription.
        subscription: u32,
        /// At least one.
        messages: Vec<Message>,
    },
    /// Data of the server about its queues or about a file of its journal, or the number of deleted
    /// records or settled messages. [`Event::Answered`] follows.
    JsonReply {
        /// Which command asked.
        command: CommandId,
        /// As in protocol.md, `stats` and `journal_file`. For a delete and a settle, a number.
        json: String,
    },
    /// The replay of a subscription has caught up with the live stream, or a query is answered. A
    /// subscription that begins with a query reports it again after each reconnect, when the
    /// program has the difference.
    Completed {
        /// The number of the subscription.
        subscription: u32,
        /// For a query: the number of matching records.
        total: Option<u64>,
    },
    /// The connection is lost, and the query of a subscription will be repeated: until the next
    /// [`Event::Completed`] it may miss changes.
    Outdated {
        /// The number of the subscription.
        subscription: u32,
    },
    /// The server ended a subscription, or did not accept it. No more events follow for it.
    Ended {
        /// The number of the subscription.
        subscription: u32,
        /// The reason; `None` = it has reached the end of its range.
        failure: Option<Failure>,
    },
    /// Waiting messages of a subscription must not reach the program any more: their leases are
    /// lost, or the messages were released ([`Lease::is_settled_or_over`]).
    Dropped {
        /// The number of the subscription.
        subscription: u32,
    },
    /// Leases were lost. Reported once a minute at most, with all losses since then.
    LeasesLost {
        /// The queue.
        queue: Arc<str>,
        /// Why.
        cause: LossCause,
        /// How many.
        count: LossCount,
    },
    /// None of the bookmarks of a subscription is in the log. It begins at the beginning of the
    /// log, or now, as its options define.
    BookmarkMissing {
        /// The topic of the subscription.
        topic: String,
        /// It begins now.
        begins_now: bool,
    },
    /// A subscription was on another instance before, and has no place in the log of this one.
    PlaceMissing {
        /// The topic of the subscription.
        topic: String,
        /// It begins at the beginning of the log again, and what it has is dropped. Otherwise it
        /// continues after the last message of each publisher. A message of another one may be
        /// missed.
        begins_again: bool,
    },
    /// Places in the logs of instances: a subscription has everything up to them.
    Places {
        /// The subscription.
        subscription: u32,
        /// The last message that it was given before.
        after: Option<Bookmark>,
        /// As that of the messages.
        generation: u16,
        /// All places that are known.
        places: Arc<PositionsByInstance>,
    },
    /// The server accepted a subscription, and has a note about it for a person.
    SubscriptionNote {
        /// The topic of the subscription.
        topic: String,
        /// The note.
        text: String,
    },
    /// [`ClientCore::persisted`] went up, or there is more room for publishes
    /// ([`ClientCore::released`]).
    Persisted,
    /// The server accepted the logon. Publishes that are not known to be persisted, and the
    /// subscriptions, are sent again.
    LoggedOn {
        /// How many publishes.
        publish_count: u64,
        /// How many subscriptions.
        subscription_count: usize,
    },
    /// The server ends the connection, and gives the reason.
    ConnectionEnded {
        /// The code of the server.
        code: Code,
        /// Its reason.
        reason: String,
    },
    /// At logon the server has a sequence of the client name that this client did not publish:
    /// another program has published under the name, or the publish store of the name was lost.
    /// Publishes of this client that were not known to be persisted may have been dropped as
    /// duplicates. One [`Event::PublishFailed`] follows for all of them that the client numbered
    /// and that have no receipt.
    Overtaken {
        /// The highest sequence that this client assigned.
        own: u64,
        /// The highest sequence that was known to be persisted.
        persisted: u64,
        /// The highest sequence that the server has.
        highest: u64,
    },
    /// The outcome of every message of a receipt is known. Reported once.
    Settled {
        /// Which receipt.
        receipt: ReceiptId,
        /// Which messages are persisted.
        outcome: Outcome,
    },
    /// The server refused a publish that has no receipt, or dropped such publishes as duplicates
    /// ([`Code::NameInUse`]).
    PublishFailed {
        /// Its sequence; 0 = it has none.
        sequence: u64,
        /// Why.
        failure: Failure,
    },
}

/// The client core. See the module for the order of calls.
pub struct ClientCore {
    config: ClientConfig,
    state: ConnectionState,
    connection: Option<Connection>,
    /// All connections so far.
    connection_count: u32,
    /// Whether a token that had expired may be replaced once more.
    token: TokenState,
    backoff: Backoff,
    store: PublishStore,
    /// One life of the publisher: servers tell its messages from those of other runs by it.
    run: u64,
    /// The highest sequence that was assigned or seen, and the highest persisted one.
    last_sequence: u64,
    persisted: u64,
    assigned: AssignedSequences,
    /// No publish of the store was ever sent, so the sequences that the server has are from another
    /// program.
    is_unsent: bool,
    /// The sequence of the last publish, if this connection sends no later one, and if it is the
    /// highest of all. The server acknowledges it when it has persisted or refused all publishes.
    sent_last: Option<u64>,
    /// A message without a sequence was published. No acknowledgement covers such messages.
    has_unnumbered: bool,
    /// The instances that the client was logged on to, numbered from 1, and the current one.
    instances: Vec<Arc<str>>,
    instance: Instance,
    /// The limit that the server sent at logon.
    message_size_max: Option<u32>,
    publisher: u64,
    storage_failure: Option<StorageFailure>,
    subscriptions: Subscriptions,
    leases: Leases,
    commands: Commands,
    receipts: Receipts,
    events: VecDeque<Event>,
}

/// Whether a client that gets another token for each connection replaces one that has expired.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum TokenState {
    /// It tries the next one.
    #[default]
    Usable,
    /// The next connection tries the next one.
    Renewing,
    /// That one was tried: its refusal counts.
    Renewed,
}

/// The most bytes that one [`ClientCore::poll_transmit`] returns. One write can have hundreds of
/// messages, and a publisher does not wait long for the copy.
const TRANSMIT_SIZE: usize = 256 * 1024;

impl ClientCore {
    /// A client that is not connected yet.
    pub fn new(config: ClientConfig, now: Instant) -> Self {
        ClientCore {
            backoff: Backoff::new(config.reconnect.clone(), config.address_count, config.incarnation, now),
            store: PublishStore::new(config.publish_store_size_max),
            leases: Leases::new(config.ack_batch_size, config.ack_timeout),
            run: config.incarnation,
            config,
            state: ConnectionState::Connecting,
            connection: None,
            connection_count: 0,
            token: TokenState::default(),
            last_sequence: 0,
            persisted: 0,
            assigned: AssignedSequences::default(),
            is_unsent: true,
            sent_last: None,
            has_unnumbered: false,
            instances: vec!["".into()],
            instance: Instance::default(),
            message_size_max: None,
            publisher: 0,
            storage_failure: None,
            subscriptions: Subscriptions::default(),
            commands: Commands::default(),
            receipts: Receipts::default(),
            events: VecDeque::new(),
        }
    }

    /// Keeps every publish in `log` too, which already has `stored`. Call it before the first
    /// connection.
    pub fn keep_publishes_in(&mut self, log: Box<dyn PublishLog>, stored: &StoredPublishes) {
        let StoredPublishes { frames, last_sequence, persisted, run } = stored;
        self.store.keep_in(log, frames);
        // The log has no mark for the sequences that the client assigned, so all of them count. In
        // almost all programs, the client assigns all sequences.
        let mut sequences: Vec<u64> = frames.iter().map(|(sequence, _)| *sequence).collect();
        sequences.sort_unstable();
        sequences.dedup();
        sequences.into_iter().for_each(|sequence| self.assigned.push(sequence));
        (self.last_sequence, self.persisted, self.run) = (*last_sequence, *persisted, *run);
        self.is_unsent = *last_sequence == 0;
    }

    /// Releases the log that [`ClientCore::keep_publishes_in`] took. The client is closed and has
    /// no connection.
    pub fn release_publish_log(&mut self) {
        self.store.release_log();
    }

    /// The publisher's identity.
    pub fn name(&self) -> &str {
        &self.config.name
    }

    /// The current state of the client.
    pub fn state(&self) -> &ConnectionState {
        &self.state
    }

    /// The highest sequence that is persisted.
    pub fn persisted(&self) -> u64 {
        self.persisted
    }

    /// The highest sequence that was assigned, or that the server had.
    pub fn last_sequence(&self) -> u64 {
        self.last_sequence
    }

    /// The client's own publisher id, once it was logged on.
    pub fn publisher(&self) -> u64 {
        self.publisher
    }

    /// The most messages of queues that a subscription may have outstanding, by the last answer of
    /// the server. 0 when it gets no messages of queues.
    pub fn granted_backlog(&self, subscription: u32) -> u32 {
        self.subscriptions.backlog(subscription)
    }

    /// Whether none of the bookmarks of a subscription was in the log when it began, or when it
    /// continued after a reconnect.
    pub fn is_bookmark_missing(&self, subscription: u32) -> bool {
        self.subscriptions.is_bookmark_missing(subscription)
    }

    /// Bytes of publishes that were released since the client was made. The room for publishes
    /// grows only when this number rises.
    pub fn released(&self) -> u64 {
        self.store.released()
    }

    /// The size of the largest message that the server takes, in bytes; `None` before the first
    /// logon.
    pub fn message_size_max(&self) -> Option<u32> {
        self.message_size_max
    }

    /// Why the server takes no publishes for now: its disk is full or has failed.
    pub fn storage_failure(&self) -> Option<&Failure> {
        self.storage_failure.as_ref().map(|failed| &failed.failure)
    }

    /// Publishes that are kept because they are not known to be persisted.
    pub fn unpersisted_count(&self) -> u64 {
        self.store.count()
    }

    /// Asks the server to answer when every publish so far is persisted, and every verdict so far
    /// is durable: [`Event::Answered`]. The flush continues after a reconnect. It fails if verdicts
    /// were lost with the connection, because leases end with it.
    ///
    /// # Errors
    /// When the client is closed, or the server's disk takes no more writes.
    /// [`FailureCode::Disconnected`], once, when verdicts were lost.
    pub fn flush(&mut self) -> Result<CommandId, Failure> {
        self.check_open()?;
        self.send_verdicts();
        let (command, is_answered_by_acknowledgement) =
            self.commands.flush(self.covering_acknowledgement())?;
        if is_answered_by_acknowledgement {
            return Ok(command);
        }
        Ok(self.command(|_| command))
    }

    /// The sequence whose acknowledgement has the same meaning for the publishes so far as the
    /// answer to a flush. `None`: there is no such acknowledgement, or it has arrived, or the
    /// server may delay it for an interval.
    fn covering_acknowledgement(&self) -> Option<u64> {
        let sequence = self.sent_last.filter(|sequence| *sequence > self.persisted)?;
        (self.config.ack_interval.is_zero() && !self.has_unnumbered).then_some(sequence)
    }

    /// The caller does not wait for the answer to `command` any more. A command that was not sent
    /// yet and would act later is withdrawn. True: there will be no answer. False: the answer will
    /// arrive, and is to be dropped.
    pub fn abandon(&mut self, command: CommandId) -> bool {
        self.commands.abandon(command, self.is_up())
    }

    /// Enters a subscription. Returns its number and the command that [`Event::Answered`] will
    /// name. It is entered again after every reconnect until it is unsubscribed.
    ///
    /// # Errors
    /// [`Code::BadOption`] for options that do not go together, and when the client is closed.
    pub fn subscribe(&mut self, spec: SubscriptionSpec) -> Result<(u32, CommandId), Failure> {
        self.check_not_closed()?;
        spec.check().map_err(|error| bad_option(&error))?;
        let number = self.subscriptions.add(spec);
        Ok((number, self.command(|commands| commands.subscribe(number))))
    }

    /// Changes topic, filter or options of a subscription atomically; it keeps its place in the log
    /// unless `spec` names a bookmark.
    ///
    /// # Errors
    /// [`Code::UnknownSubscription`], [`Code::BadOption`] for options that do not go together, and
    /// when the client is closed.
    pub fn replace(&mut self, number: u32, spec: SubscriptionSpec) -> Result<CommandId, Failure> {
        self.check_not_closed()?;
        let after_bookmark = self.commands.gives_bookmark(number);
        self.subscriptions.check_replacement(number, &Replacement { spec: &spec, after_bookmark })?;
        Ok(self.command(|commands| commands.replace(number, spec)))
    }

    /// Ends a subscription. Messages of queues that the program has not begun are released, and
    /// their deliveries do not count.
    ///
    /// # Errors
    /// [`Code::UnknownSubscription`], and when the client is closed.
    pub fn unsubscribe(&mut self, number: u32) -> Result<CommandId, Failure> {
        self.check_not_closed()?;
        let begun = self.release(number);
        if !self.subscriptions.remove(number) {
            return Err(Failure::new(
                Code::UnknownSubscription,
                format!("no subscription has the number {number}"),
            ));
        }
        self.send_verdicts();
        if !self.is_up() {
            // No server has the subscription: it ended with the connection, or was never entered.
            return Ok(self.commands.unsubscribe_unconnected(number, &mut self.events));
        }
        Ok(self.command(|commands| commands.unsubscribe(number, begun)))
    }

    /// Whether the program has messages of queues from the subscription that are neither settled
    /// nor lost.
    pub fn has_begun(&self, number: u32) -> bool {
        self.leases.has_begun(number)
    }

    /// Pauses (`paused`) or resumes bookmark subscriptions, all with one command. Those that are
    /// resumed share a replay, also after a reconnect.
    ///
    /// # Errors
    /// [`Code::BadOption`] for an empty list, and for a subscription that is live or has no
    /// bookmark, [`Code::UnknownSubscription`], and when the client is closed.
    pub fn set_paused(&mut self, numbers: &[u32], paused: bool) -> Result<CommandId, Failure> {
        self.check_not_closed()?;
        let gives_bookmark = |number| self.commands.gives_bookmark(number);
        let told = self.subscriptions.set_paused(numbers, paused, gives_bookmark)?;
        if told.is_empty() {
            // All of them are held. They continue when there is room.
            let command = self.commands.pause(numbers, paused);
            self.commands.answered(command, Ok(()), &mut self.subscriptions, &mut self.events);
            return Ok(command);
        }
        Ok(self.command(|commands| commands.pause(&told, paused)))
    }

    /// The current topic, filter and bookmark of a subscription.
    pub fn subscription(&self, number: u32) -> Option<&SubscriptionSpec> {
        self.subscriptions.spec(number)
    }

    /// The names of the instances that the client was ever logged on to, by their numbers. No
    /// instance has the number 0.
    pub fn instances(&self) -> &[Arc<str>] {
        &self.instances
    }

    /// The number of times that a subscription got a new bookmark, modulo 65,536.
    pub fn generation(&self, number: u32) -> u16 {
        self.subscriptions.generation(number)
    }

    /// The bookmark with which a subscription began.
    pub fn subscription_bookmark(&self, number: u32) -> Option<&str> {
        self.subscriptions.spec(number)?.bookmark.as_deref()
    }

    /// The place after the last message that a subscription received.
    pub fn resume_position(&self, number: u32) -> Option<&ResumePosition> {
        self.subscriptions.resume_position(number)
    }

    /// The bookmark of the last message that a subscription received.
    pub fn last_received(&self, number: u32) -> Option<Bookmark> {
        self.subscriptions.resume_position(number)?.last
    }

    /// Sends the pending output and a goodbye, and ends the client for good. Messages of queues
    /// that the program has not begun are released.
    pub fn close(&mut self) {
        self.send_verdicts();
        self.release_all();
        let mut frame = Vec::new();
        Command::Goodbye.encode(&mut frame);
        self.queue_frames(&frame);
        self.finish(None);
    }

    /// Whether, where and when to connect: `Some((address, at))` while there is no connection and
    /// the client is not closed.
    pub fn poll_connect(&self) -> Option<(usize, Instant)> {
        (self.connection.is_none() && !matches!(self.state, ConnectionState::Closed(_)))
            .then(|| self.backoff.next())
    }

    /// Whether the choice of the next address needs the loads of the servers: call
    /// [`ClientCore::set_loads`] before the next attempt.
    pub fn wants_loads(&self) -> bool {
        self.backoff.wants_loads()
    }

    /// The password of the next connections.
    pub fn set_password(&mut self, password: Secret<String>) {
        self.config.password = Some(password);
    }

    /// The token of the next connections.
    pub fn set_token(&mut self, token: Secret<String>) {
        self.config.token = Some(token);
    }

    /// The last connection was refused because its token had expired. The next one tries another
    /// token, so that one is not a failed attempt.
    pub fn is_renewing_token(&self) -> bool {
        self.token == TokenState::Renewing
    }

    /// The number of connections of each server, by address; `None`: it does not answer.
    pub fn set_loads(&mut self, loads: &[Option<u64>]) {
        self.backoff.set_loads(loads);
    }

    /// The name of the instance that the client is logged on to.
    pub fn instance(&self) -> Option<&str> {
        (self.state == ConnectionState::Connected).then_some(&*self.instance.name)
    }

    /// A connection to the address that [`ClientCore::poll_connect`] named is open.
    pub fn handle_connected(&mut self, now: Instant) {
        self.connection_count = self.connection_count.saturating_add(1);
        let logon = Connection::logon(&self.config, self.connection_count, self.run, self.persisted);
        self.store.begin(logon);
        if self.token == TokenState::Renewing {
            self.token = TokenState::Renewed;
        }
        self.connection = Some(Connection::new(&self.config, now));
    }

    /// The connection was lost, or could not be made. No effect without a connection.
    pub fn handle_disconnected(&mut self, now: Instant) {
        let was_up = self.is_up();
        self.connection = None;
        self.store.rewind();
        let unsaid = self.leases.disconnected(&mut self.events);
        self.leases.report(now, &mut self.events);
        self.ending();
        if self.is_renewing_token() {
            self.backoff.again(now);
        } else {
            self.backoff.failed(now);
        }
        if matches!(self.state, ConnectionState::Closed(_)) {
            return;
        }
        if was_up {
            self.set_state(ConnectionState::Reconnecting);
            self.commands.disconnected(unsaid, &mut self.subscriptions, &mut self.events);
        }
        if let Some(after) = self.backoff.given_up(now) {
            let failure =
                Failure::new(FailureCode::Disconnected, format!("no server could be reached for {after:?}"));
            self.finish(Some(failure));
        }
    }

    /// Ends the client for good, as when its first connection attempt took too long.
    pub fn fail(&mut self, failure: Failure) {
        self.finish(Some(failure));
    }

    /// Bytes have arrived. Their messages keep `bytes` alive.
    ///
    /// # Errors
    /// The bytes are not the protocol: close the connection, then call
    /// [`ClientCore::handle_disconnected`].
    pub fn handle_received(&mut self, now: Instant, bytes: bytes::Bytes) -> Result<(), WireError> {
        let Some(mut connection) = self.connection.take() else { return Ok(()) };
        let result = connection.receive(now, bytes, self);
        self.connection = Some(connection);
        result
    }

    /// Appends the next bytes to be written to `out`. No bytes: there is nothing to write.
    pub fn poll_transmit(&mut self, now: Instant, out: &mut Vec<u8>) {
        if self.leases.is_due() {
            self.send_verdicts();
        }
        if self.wants_confirmation() {
            self.command(Commands::confirm);
        }
        if let Some(connection) = &mut self.connection {
            let before = out.len();
            self.store.take(out, TRANSMIT_SIZE);
            if out.len() > before {
                connection.sent(now);
            }
            if self.store.release_known() {
                self.events.push_back(Event::Persisted);
            }
        }
    }

    /// Whether there is nothing to write.
    pub fn is_idle(&self) -> bool {
        self.store.is_sent() && !(self.is_up() && self.leases.is_due()) && !self.wants_confirmation()
    }

    /// Whether the connection should be closed now. After the client's goodbye, the server closes
    /// the connection when it has read everything before the goodbye. If the client closed first,
    /// with unread messages, it would lose its frames that are still on their way.
    pub fn wants_close(&self) -> bool {
        matches!(self.state, ConnectionState::Closed(_)) && !self.is_up()
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        loop {
            match self.events.pop_front()? {
                Event::Answered { command, result } if self.answer_barrier(command, &result) => (),
                event => return Some(event),
            }
        }
    }

    /// When [`ClientCore::handle_timeout`] must be called at the latest.
    pub fn next_timeout(&self) -> Option<Instant> {
        let is_up = self.is_up();
        let connection = self.connection.as_ref().and_then(|connection| connection.next_timeout(is_up));
        connection.into_iter().chain(self.leases.next_timeout()).min()
    }

    /// Time has passed. True: the server is silent for too long; close the connection, then call
    /// [`ClientCore::handle_disconnected`].
    #[must_use]
    pub fn handle_timeout(&mut self, now: Instant) -> bool {
        self.leases.tick(now);
        self.attend_leases(now);
        self.leases.report(now, &mut self.events);
        let is_up = self.is_up();
        let Some(connection) = &mut self.connection else { return false };
        if connection.is_silent(now) {
            return true;
        }
        if is_up && connection.begin_heartbeat(now) {
            let mut frame = Vec::new();
            Command::Heartbeat.encode(&mut frame);
            self.queue_frames(&frame);
        }
        false
    }

    /// Whether the client is logged on.
    fn is_up(&self) -> bool {
        self.store.is_up()
    }

    fn command(&mut self, make: impl FnOnce(&mut Commands) -> CommandId) -> CommandId {
        // The waiting acknowledgements are sent first.
        if self.leases.is_due() {
            self.send_verdicts();
        }
        let id = make(&mut self.commands);
        if self.is_up()
            && let Some(frame) = self.commands.frame(id, &self.subscriptions)
        {
            self.send_command(id, &frame);
        }
        id
    }

    /// Sends a command. A command that the server would not accept is answered here, because the
    /// server would end the connection, and the client with it.
    fn send_command(&mut self, id: CommandId, frame: &[u8]) {
        match self.check_command_size(frame.len()) {
            Ok(()) => drop(self.queue_frames(frame)),
            Err(failure) => {
                self.commands.answered(id, Err(failure), &mut self.subscriptions, &mut self.events);
            }
        }
    }

    /// Checks whether the server takes a command with a frame of this size. Fails with the reason.
    fn check_command_size(&self, size: usize) -> Result<(), Failure> {
        let limit = self.message_size_max.map_or(usize::MAX, |limit| limit as usize + FRAME_OVERHEAD_MAX);
        if size <= limit {
            return Ok(());
        }
        let reason = format!(
            "a command of {size} bytes, the server takes up to {limit} (max_message_size and 128 KB): send several commands with \
             fewer keys or bookmarks, or a shorter filter"
        );
        Err(Failure::new(Code::MessageTooLarge, reason))
    }

    fn check_not_closed(&self) -> Result<(), Failure> {
        match &self.state {
            ConnectionState::Closed(None) => Err(closed()),
            ConnectionState::Closed(Some(failure)) => Err(failure.clone()),
            _ => Ok(()),
        }
    }

    fn check_open(&self) -> Result<(), Failure> {
        self.check_not_closed()?;
        self.storage_failure().cloned().map_or(Ok(()), Err)
    }

    fn set_state(&mut self, state: ConnectionState) {
        if self.state != state {
            self.state = state;
            self.events.push_back(Event::StateChanged);
        }
    }

    /// Ends the client permanently. Every waiting command and subscription gets the failure.
    fn finish(&mut self, failure: Option<Failure>) {
        if matches!(self.state, ConnectionState::Closed(_)) {
            return;
        }
        let told = failure.clone().unwrap_or_else(closed);
        self.commands.fail_all(&told, &mut self.events);
        for subscription in self.subscriptions.clear() {
            self.events.push_back(Event::Ended { subscription, failure: Some(told.clone()) });
        }
        self.set_state(ConnectionState::Closed(failure));
    }

    // The following are reports of a connection while it decodes (see `connection`).

    /// The connection ends. A failure of the disk of its server does not apply to the next
    /// connection, which gets the publishes from now on.
    fn ending(&mut self) {
        self.storage_failure = None;
    }

    /// A server has refused the logon. Returns whether the client tries the next token.
    fn renews_token(&mut self, code: Code, reason: &str) -> bool {
        let renews = self.config.renews_token
            && self.token == TokenState::Usable
            && (code, reason) == (Code::AuthenticationFailed, TOKEN_EXPIRED);
        if renews {
            self.token = TokenState::Renewing;
        }
        renews
    }

    fn logged_on(&mut self, now: Instant, logged_on: &LoggedOn<'_>) {
        self.publisher = logged_on.publisher;
        self.message_size_max = Some(logged_on.message_size_max);
        self.commands.takes_reasons(logged_on.takes_reasons);
        let highest = logged_on.highest_sequence.max(logged_on.last_sequence);
        self.look_for_others(highest);
        // Messages that the server received but did not persist may still appear, so their
        // sequences are not used again.
        self.last_sequence = self.last_sequence.max(logged_on.highest_sequence);
        self.sent_last = None;
        self.store.reach(logged_on.last_sequence);
        self.persisted_up_to(logged_on.last_sequence);
        self.commands.fail_seen_deletes(highest, &mut self.events);
        self.backoff.succeeded(now);
        self.token = TokenState::Usable;
        // Sent before a waiting flush, because the flush also covers them.
        self.send_verdicts();
        let subscription_count = self.commands.reenter(&mut self.subscriptions, &mut self.events);
        let publish_count = self.store.count();
        self.events.push_back(Event::LoggedOn { publish_count, subscription_count });
        for (command, frame) in self.commands.frames(&self.subscriptions) {
            self.send_command(command, &frame);
        }
        self.set_state(ConnectionState::Connected);
    }

    /// Reports the publishes that the server drops as duplicates, because another program has
    /// published under the name of the client.
    fn look_for_others(&mut self, highest: u64) {
        let is_unsent = std::mem::replace(&mut self.is_unsent, false);
        let own = self.last_sequence;
        let is_overtaken = own > 0 && highest > own;
        let has_dropped = is_unsent && self.assigned.first().is_some_and(|first| first <= highest);
        if !is_overtaken && !has_dropped {
            return;
        }
        let persisted = self.persisted;
        self.events.push_back(Event::Overtaken { own, persisted, highest });
        let first = self.assigned.first().unwrap_or_default();
        let count = self.assigned.count(0, highest) - self.overtake_receipts(highest);
        if count > 0 {
            let (publishes, were, duplicates, them) = if count == 1 {
                ("publish", "was", "a duplicate", "it")
            } else {
                ("publishes", "were", "duplicates", "them")
            };
            let were = if is_unsent { were } else { "may have been" };
            let reason = format!(
                "the server already has sequence {highest} of the client name {:?}, which this client did not publish. {count} \
                 {publishes} of this client {were} dropped as {duplicates}: publish {them} again. Keep the file of publish_store= as long as the name",
                self.config.name
            );
            let failure = Failure::new(Code::NameInUse, reason);
            self.events.push_back(Event::PublishFailed { sequence: first, failure });
        }
    }

    /// The server has sent the name of the instance.
    fn reach_instance(&mut self, name: &str) {
        let known = self.instances.iter().skip(1).position(|other| **other == *name).map(|index| index + 1);
        let number = match known {
            Some(number) => number,
            None if self.instances.len() < INSTANCES_MAX => {
                self.instances.push(name.into());
                self.instances.len() - 1
            }
            // A position on it is then not exact on any instance, and is resumed by a list.
            None => 0,
        };
        self.instance = Instance { number: number as u16, name: self.instances[number].clone() };
        self.subscriptions.reach_instance(&self.instance.name);
    }
}

/// The journal of the server of this connection takes no writes for now.
struct StorageFailure {
    /// The first sequence that is not persisted.
    from: u64,
    failure: Failure,
}

/// An instance and its number among those of the client.
#[derive(Clone, Debug, Default)]
struct Instance {
    number: u16,
    name: Arc<str>,
}

/// The most instance names that are distinguished: far more than a client has addresses.
const INSTANCES_MAX: usize = 1024;

impl SubscriptionSpec {
    /// An ordinary subscription to a topic.
    pub fn new(topic: impl Into<String>) -> Self {
        SubscriptionSpec { topic: topic.into(), ..SubscriptionSpec::default() }
    }
}
