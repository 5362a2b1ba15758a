//! The input and the output of a broker.

use quire_expression::unreadable::Unreadable;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use quire_journal::{Action, Bookmark};

use super::access::Access;
use super::admin::{AdminCommand, AdminReply};
use super::journal_files::{MaintenanceDone, MaintenanceJob};
use super::work::{ReadDone, ReadRequest};
use crate::config::AccessRules;
use crate::entitlement::Right;
use crate::event_fields as fields;
use quire_command::Code;
use quire_queue::Reasons;
use quire_types::Secret;
use serde::Serialize;

pub use crate::ids::{ConnectionId, TransportId};

/// An event outside of the broker.
pub enum Input<'a> {
    /// A peer connected.
    Connected {
        /// The driver's number for it.
        connection: ConnectionId,
        /// Where it comes from, for the log.
        peer: &'a str,
        /// The transport that accepted it.
        transport: TransportId,
        /// The rights of its peer.
        access: Access,
    },
    /// Bytes arrived. While reading of a connection is paused, its bytes are kept until it
    /// continues.
    Received {
        /// From where.
        connection: ConnectionId,
        /// Any number of whole and broken frames.
        bytes: &'a [u8],
    },
    /// The send buffer of the connection rose above its high-water mark, or fell below its
    /// low-water mark.
    Writable {
        /// Which.
        connection: ConnectionId,
        /// Whether the connection accepts more bytes.
        writable: bool,
    },
    /// The connection has ended. This is also allowed after [`Output::Close`], and has no effect
    /// then.
    Disconnected {
        /// Which.
        connection: ConnectionId,
    },
    /// [`Output::Authenticate`] was carried out.
    Authenticated {
        /// Which connection.
        connection: ConnectionId,
        /// The user of the connection, or the code and the reason of the refusal, which the client
        /// receives.
        user: Result<&'a str, (Code, &'a str)>,
        /// The groups of the user, one a line.
        groups: &'a str,
    },
    /// Other entitlements and limits of users. Connections whose user has other entitlements end.
    Entitle(AccessRules),
    /// [`Output::Reload`] was carried out.
    Reloaded {
        /// The connection that requested it. It may have ended.
        connection: ConnectionId,
        /// The number of its command.
        command: u32,
        /// The keys that have changed, one a line, or what is wrong with the configuration.
        result: Result<&'a str, &'a str>,
    },
    /// [`Output::Statistics`] was carried out.
    Statistics {
        /// The connection that asked. It may have ended.
        connection: ConnectionId,
        /// The number of its command.
        command: u32,
        /// The answer as JSON, or why there is none.
        result: Result<&'a str, &'a str>,
    },
    /// An action has run: its message for the topic of actions, as JSON.
    ActionRan(&'a str),
    /// The user of a connection has changed: the connection ends.
    Reset {
        /// Which connection.
        connection: ConnectionId,
        /// The reason, which the client receives.
        reason: &'a str,
    },
    /// The journal has persisted something, or failed.
    Flushed,
    /// A [`ReadRequest`] was run.
    ReadDone(ReadDone),
    /// The [`MaintenanceJob`] was run.
    MaintenanceDone(MaintenanceDone),
    /// The process of the server has a command. The reply comes as [`Output::AdminReply`], perhaps
    /// in a later turn.
    Admin {
        /// The driver's number for it, which the reply echoes.
        ticket: u64,
        /// The action to take.
        command: AdminCommand,
    },
    /// [`Output::OpenLink`] was carried out.
    LinkOpened {
        /// The number of the destination.
        destination: u32,
        /// The driver's number for the connection.
        connection: ConnectionId,
        /// Whether it is encrypted.
        tls: bool,
        /// The identity with which this instance logs on.
        identity: LinkIdentity<'a>,
    },
    /// [`Output::OpenLink`] failed.
    LinkNotOpened {
        /// The number of the destination.
        destination: u32,
        /// The reason, for the log.
        reason: &'a str,
    },
    /// Another instance connected to the address for links.
    LinkAccepted {
        /// The driver's number for the connection.
        connection: ConnectionId,
        /// Where it comes from, for the log.
        peer: &'a str,
        /// Whether it is encrypted.
        tls: bool,
    },
    /// The time that `next_timeout` returned has been reached.
    Timeout,
    /// Stop: accepted publishes are flushed and acknowledged, all clients are notified, and all
    /// connections are closed.
    Shutdown,
}

/// The identity with which an instance logs on to another one. The certificate of a connection is
/// not part of it.
#[derive(Clone, Copy, Debug, Default)]
pub struct LinkIdentity<'a> {
    /// The user.
    pub user: Option<&'a str>,
    /// The password.
    pub password: Option<Secret<&'a str>>,
    /// The token.
    pub token: Option<Secret<&'a str>>,
}

/// An action that the driver must take.
pub enum Output {
    /// Write these bytes, after those of an earlier output for the connection.
    Send {
        /// The connection.
        connection: ConnectionId,
        /// Frames. The last one may continue in the next output for the connection. The buffer may
        /// be returned through `recycle`.
        bytes: Vec<u8>,
    },
    /// Write these bytes, after those of an earlier output for the connection. Other connections
    /// get the same bytes.
    SendShared {
        /// The connection.
        connection: ConnectionId,
        /// The end of the frame that the output before began.
        bytes: Arc<[u8]>,
    },
    /// Close the connection when the earlier output was written, or when the peer does not read it.
    Close {
        /// Which.
        connection: ConnectionId,
    },
    /// Connect to another instance. Then hand in [`Input::LinkOpened`] or [`Input::LinkNotOpened`].
    /// The attempt ends within a time that the driver chooses.
    OpenLink {
        /// The number of the destination.
        destination: u32,
        /// `HOST:PORT`.
        address: String,
    },
    /// Check the password or token of a logon, on a thread that may block. Then hand in
    /// [`Input::Authenticated`].
    Authenticate {
        /// The connection.
        connection: ConnectionId,
        /// The client name of the logon, or the name of another instance.
        client_name: String,
        /// The user of the logon.
        user: Option<String>,
        /// The password of the logon.
        password: Option<Secret<String>>,
        /// The token of the logon.
        token: Option<Secret<String>>,
    },
    /// Read no more from the connection until [`Output::ResumeReading`].
    PauseReading {
        /// Which.
        connection: ConnectionId,
    },
    /// Read on.
    ResumeReading {
        /// Which.
        connection: ConnectionId,
    },
    /// Run it on a thread that may block. Then hand in its result as [`Input::ReadDone`].
    Read(ReadRequest),
    /// Run it on a thread that may block. Then hand in its result as [`Input::MaintenanceDone`].
    /// The broker requests one job at a time.
    Maintenance(MaintenanceJob),
    /// The answer to [`Input::Admin`]. A command that waits when the broker stops is not answered.
    AdminReply {
        /// The number of the command.
        ticket: u64,
        /// The answer.
        reply: AdminReply,
    },
    /// Read the configuration again, and report the result as [`Input::Reloaded`].
    Reload {
        /// The connection that requests it.
        connection: ConnectionId,
        /// The number of its command.
        command: u32,
    },
    /// Answer a question about the statistics of the process, and report the result as
    /// [`Input::Statistics`].
    Statistics {
        /// The connection that asks.
        connection: ConnectionId,
        /// The number of its command.
        command: u32,
        /// The question, as JSON.
        question: Vec<u8>,
        /// Whether the answer may have clients: the user may monitor them.
        shows_clients: bool,
    },
    /// An event for the actions of the driver, as JSON.
    Signal(String),
    /// For the log.
    Log(Event),
}

/// The urgency of an [`Event`] for a reader of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// An event that happens for each request of a page.
    Debug,
    /// An event of normal operation.
    Info,
    /// A client was refused or cut off.
    Warning,
    /// The broker works with restrictions.
    Error,
}

/// An event for the log of the server. It contains no payload and no password.
///
/// `thiserror` makes the line of the log from the text of a variant. Most events are not errors:
/// the field of an instance is `r#source`, because a field `source` would be the cause of an error.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize)]
pub enum Event {
    /// A client logged on.
    #[error("connection {connection} from {peer}: client {client_name:?} logged on")]
    LoggedOn {
        /// Its connection.
        connection: ConnectionId,
        /// Where it comes from.
        peer: String,
        /// Its name.
        client_name: String,
        /// It is the client of a request of the HTTP server.
        is_inside: bool,
    },
    /// A command was refused, because a right is missing.
    #[error("audit: refused {}", Pairs(&[("user", .user), ("client", .client), ("right", .right.name()), ("topic", .topic)]))]
    Refused {
        /// The user.
        user: String,
        /// The name of the client.
        client: String,
        /// The right.
        #[serde(serialize_with = "fields::right")]
        right: Right,
        /// The topic, as the client wrote it.
        topic: String,
    },
    /// A user administered the server, or a queue.
    #[error(
        "audit: admin {}",
        Pairs(&[("user", .user), ("client", .client), ("action", .action), ("resource", .resource)])
    )]
    Administered {
        /// The user.
        user: String,
        /// The name of the client.
        client: String,
        /// The action.
        action: &'static str,
        /// The queue, or the resource.
        resource: String,
    },
    /// The server has ended the connection of a user.
    #[error("audit: logoff {}", Pairs(&[("user", .user), ("client", .client), ("reason", .reason)]))]
    LoggedOff {
        /// The user.
        user: String,
        /// The name of the client.
        client: String,
        /// Why.
        reason: String,
    },
    /// Further commands of a user were refused since the first of these lines.
    #[error("audit: refused {} {count} more times", Pairs(&[("user", .user), ("right", .right.name())]))]
    MoreRefused {
        /// The user.
        user: String,
        /// The right.
        #[serde(serialize_with = "fields::right")]
        right: Right,
        /// How many commands.
        count: u64,
    },
    /// A connection ended, and the broker had not requested it.
    #[error("connection {connection}{}: disconnected", Named(.client_name))]
    Disconnected {
        /// Which.
        connection: ConnectionId,
        /// The name of the client; `None` before its logon.
        client_name: Option<String>,
        /// As in [`Event::LoggedOn`].
        is_inside: bool,
    },
    /// The broker ended a connection.
    #[error("connection {connection}{}: ended, {code}: {reason}", Named(.client_name))]
    Ended {
        /// Which.
        connection: ConnectionId,
        /// The name of the client; `None` before its logon.
        client_name: Option<String>,
        /// The code that the peer received.
        #[serde(serialize_with = "fields::text")]
        code: Code,
        /// The reason that the peer received.
        reason: String,
    },
    /// A client reads more slowly than messages arrive. Its messages move to disk.
    #[error(
        "connection {connection}{}: offlined, {bytes} bytes wait for it{}",
        Named(.client_name),
        MoreLines(*.left_out)
    )]
    ClientOfflined {
        /// Its connection.
        connection: ConnectionId,
        /// The name of the client.
        client_name: Option<String>,
        /// Bytes that wait.
        bytes: u64,
        /// Lines about other cases that were left out since the last one.
        left_out: u64,
    },
    /// An offlined client has read its messages on disk.
    #[error(
        "connection {connection}{}: online again, nothing waits for it on disk{}",
        Named(.client_name),
        MoreLines(*.left_out)
    )]
    ClientOnline {
        /// Its connection.
        connection: ConnectionId,
        /// The name of the client.
        client_name: Option<String>,
        /// Lines about other cases that were left out since the last one.
        left_out: u64,
    },
    /// Deliveries of messages started no action, because too many of them waited.
    #[error("{count} deliveries of messages started no action: more than {limit} bytes of them waited")]
    DeliveriesLeftOut {
        /// Their number since the last such line.
        count: u64,
        /// Bytes that may wait.
        limit: usize,
    },
    /// The broker ended one subscription.
    #[error("connection {connection}: subscription {subscription} ended, {code}: {reason}")]
    SubscriptionEnded {
        /// Its connection.
        connection: ConnectionId,
        /// The client's number for it.
        subscription: u32,
        /// The code that the client received.
        #[serde(serialize_with = "fields::text")]
        code: Code,
        /// The reason that the client received.
        reason: String,
    },
    /// The sequence of a publisher increased by more than [`super::Limits::sequence_jump_logged`]
    /// at once, for the first time since it logged on.
    #[error(
        "connection {connection} (client {client_name:?}): its sequence jumped from {from} to {to}; \
         publishes of every client with this name and a number up to {to} now count as duplicates"
    )]
    SequenceJumped {
        /// Its connection.
        connection: ConnectionId,
        /// Its name.
        client_name: String,
        /// The highest sequence before.
        from: u64,
        /// The received sequence.
        to: u64,
    },
    /// The journal accepts no more writes. Reading continues.
    #[error("the journal takes no more writes, {code}: {reason}")]
    JournalFailed {
        /// The code that publishers receive.
        #[serde(serialize_with = "fields::text")]
        code: Code,
        /// The reason that publishers receive.
        reason: String,
    },
    /// The journal has no room for writes. It tries again at intervals. Reading continues.
    #[error("the journal takes no writes until there is room, {code}: {reason}")]
    JournalStalled {
        /// The code that publishers receive.
        #[serde(serialize_with = "fields::text")]
        code: Code,
        /// The reason that publishers receive.
        reason: String,
    },
    /// The journal has room again, and all buffered records are written.
    #[error("journal writes resumed")]
    JournalResumed,
    /// A message of a queue cannot be read, because the journal is damaged.
    #[error("the queue message at position {position} cannot be read, {code}: {reason}")]
    QueueMessageUnreadable {
        /// Its place in the log.
        position: u64,
        /// The code that subscribers receive.
        #[serde(serialize_with = "fields::text")]
        code: Code,
        /// What is wrong.
        reason: String,
    },
    /// A message expired from a queue, and is a dead letter. At most one of this event and of the
    /// next is logged for each queue and minute.
    #[error(
        "queue {queue:?}: message {message} expired ({reasons}) after {deliveries} {}, dead letter in {topic:?}",
        if_one(u64::from(*.deliveries), "delivery", "deliveries")
    )]
    DeadLetter {
        /// The queue.
        queue: String,
        /// The bookmark of the message, or its position in the log if the message cannot be read
        /// because of damage.
        message: String,
        /// Why it expired.
        #[serde(serialize_with = "fields::text")]
        reasons: Reasons,
        /// The number of its deliveries.
        deliveries: u32,
        /// The topic of the dead letter.
        topic: String,
    },
    /// Further messages expired from a queue since the last line, and are dead letters.
    #[error(
        "queue {queue:?}: {count} more {}",
        if_one(*.count, "message expired, and is a dead letter", "messages expired, and each is a dead letter")
    )]
    DeadLetters {
        /// The queue.
        queue: String,
        /// How many messages.
        count: u64,
    },
    /// A message expired at a limit of its queue, and no topic receives it. At most one of this
    /// event and of the next is logged for each queue and minute.
    #[error(
        "queue {queue:?}: message {message} expired ({reasons}, deliveries: {deliveries}, cancels: {cancels}) and left \
         the queue, which has no dead_letter_topic. The log still has it"
    )]
    MessageExpired {
        /// The queue.
        queue: String,
        /// As in [`Event::DeadLetter`].
        message: String,
        /// Why it expired.
        #[serde(serialize_with = "fields::text")]
        reasons: Reasons,
        /// The number of its deliveries.
        deliveries: u32,
        /// The number of its cancels.
        cancels: u32,
    },
    /// Further messages expired at a limit of their queue since the last line, and no topic
    /// receives them.
    #[error(
        "queue {queue:?}: {count} more {} expired at a limit and left the queue",
        if_one(*.count, "message", "messages")
    )]
    MessagesExpired {
        /// The queue.
        queue: String,
        /// How many messages.
        count: u64,
    },
    /// A message was cancelled repeatedly. At most one of this event and of the next is logged for
    /// each queue and minute.
    #[error(
        "queue {queue:?}: message {message} was cancelled {cancels} times. max_cancels or max_deliveries ends the \
         attempts, and dead_letter_topic keeps the message"
    )]
    MessageCancelled {
        /// The queue.
        queue: String,
        /// As in [`Event::DeadLetter`].
        message: String,
        /// The number of its cancels.
        cancels: u32,
    },
    /// Messages were cancelled repeatedly since the last line.
    #[error(
        "queue {queue:?}: messages with many cancels were cancelled {count} more {}",
        if_one(*.count, "time", "times")
    )]
    MessagesCancelled {
        /// The queue.
        queue: String,
        /// How many times.
        count: u64,
    },
    /// The file with the settled positions of queues could not be written. The next start takes
    /// longer.
    #[error("the settled positions of the queues are not saved: {reason}")]
    QueuePointsNotSaved {
        /// The error of the disk.
        reason: String,
    },
    /// The file for the states of queues cannot be created or extended. From now on, states without
    /// room in the file are in memory.
    #[error("the states of the queues stay in memory: they cannot be paged out, {reason}")]
    QueuesNotPaged {
        /// The error of the disk.
        reason: String,
    },
    /// The file for the records of last-value topics cannot be created or extended. From now on,
    /// records without room in the file are in memory.
    #[error("the records of last-value topics stay in memory: they cannot be paged out, {reason}")]
    TablesNotPaged {
        /// The error of the disk.
        reason: String,
    },
    /// Full journal files were archived, compressed or removed.
    #[error("{count} journal files {}", .action.done())]
    JournalFilesTaken {
        /// The action.
        #[serde(serialize_with = "fields::action")]
        action: Action,
        /// With how many.
        count: usize,
    },
    /// A full journal file was archived, compressed or removed at the request of a client.
    #[error(
        "connection {connection}{}: {} {}, as asked for", Named(.client_name), .path.display(), .action.done()
    )]
    JournalFileTaken {
        /// The connection of the client. It may have ended.
        connection: ConnectionId,
        /// The client's name.
        client_name: Option<String>,
        /// The action.
        #[serde(serialize_with = "fields::action")]
        action: Action,
        /// Where the file is, or was.
        #[serde(serialize_with = "fields::path")]
        path: PathBuf,
    },
    /// A rule of the maintenance schedule failed; it is tried again after the interval.
    #[error("cannot {} journal files: {reason}", .action.verb())]
    MaintenanceFailed {
        /// The action that failed.
        #[serde(serialize_with = "fields::action")]
        action: Action,
        /// The error of the disk.
        reason: String,
    },
    /// The end of the log was incomplete after a kill or a power failure, and was truncated at the
    /// start. It contained no acknowledged record.
    #[error(
        "{}: cut {size} bytes of an unfinished write at byte {offset}; nothing in them was acknowledged",
        .path.display()
    )]
    TornTailCut {
        /// The journal file.
        #[serde(serialize_with = "fields::path")]
        path: PathBuf,
        /// The offset at which it was truncated, in bytes.
        offset: u64,
        /// The number of truncated bytes.
        size: u64,
    },
    /// The sequences of some publishers are lost. Messages that these publishers send again are
    /// recorded again.
    #[error(
        "clients.ack was missing or damaged and older journal files were removed: publishers that wrote only to those \
         files are not recognized, and messages that they send again are recorded again"
    )]
    SequencesLost,
    /// The instance has another name than at the last start with this log.
    #[error(
        "the instance has the name {to:?}, and at the last start with this log it had the name {from:?}: the state of \
         the queues continues; clients take it for another instance"
    )]
    InstanceRenamed {
        /// The name at the last start.
        from: String,
        /// The present name.
        to: String,
    },
    /// The file with the earlier names of the instance cannot be used, and was replaced.
    #[error(
        "{file} cannot be used, {reason}: a new file has only the present name. A message that expired to a dead \
         letter under an earlier name of the instance may be delivered again"
    )]
    InstanceNamesLost {
        /// The file.
        file: &'static str,
        /// The cause.
        reason: String,
    },
    /// A queue was created at run time.
    #[error("{by}: created queue {queue:?}")]
    QueueCreated {
        /// The queue.
        queue: String,
        /// The requester.
        by: String,
    },
    /// A queue that was created at run time has other settings.
    #[error("{by}: changed queue {queue:?}: {}", .keys.join(", "))]
    QueueAltered {
        /// The queue.
        queue: String,
        /// The keys of the settings.
        keys: Vec<String>,
        /// The requester.
        by: String,
    },
    /// A queue that was created at run time was dropped.
    #[error("{by}: dropped queue {queue:?} with {message_count} messages")]
    QueueDropped {
        /// The queue.
        queue: String,
        /// The messages that it had.
        message_count: u64,
        /// The requester.
        by: String,
    },
    /// A view has another definition.
    #[error("{by}: changed the definition of view {view:?}")]
    ViewDefined {
        /// The view.
        view: String,
        /// The requester.
        by: String,
    },
    /// A definition that a client has given to a view is not used.
    #[error("view {view:?}: the definition that replaced the one of the configuration is not used: {reason}")]
    ViewDefinitionNotUsed {
        /// The view.
        view: String,
        /// The cause.
        reason: String,
    },
    /// Unacknowledged messages of a queue no longer match the configuration. This is reported at
    /// each start until it is resolved.
    #[error("queue {queue:?}{}", LeftOut(*.count, .why))]
    QueueMessagesLeftOut {
        /// The queue.
        queue: String,
        /// How many messages.
        count: u64,
        /// The change of the configuration.
        #[serde(serialize_with = "fields::why")]
        why: LeftOutBecause,
    },
    /// The server counted the messages of a removed queue. It could not read a part of a record of
    /// the changes of the queue.
    #[error(
        "queue {queue:?}: {reason}. The number of its messages that are not acknowledged can be too high"
    )]
    QueueRecordPassedOver {
        /// The queue.
        queue: String,
        /// The record, and why its rest cannot be read.
        reason: String,
    },
    /// A setting of a queue has no effect.
    #[error("queue {queue:?}: {key} has no effect")]
    QueueSettingIgnored {
        /// The queue.
        queue: String,
        /// The key.
        key: String,
    },
    /// A setting in the configuration is valid and probably not intended.
    #[error("configuration: {text}")]
    ConfigWarning {
        /// A description of the setting.
        text: String,
    },
    /// A message has no value for a field of the key of its last-value topic. Only the first such
    /// message of the topic is reported.
    #[error(
        "topic {topic:?}: a message lacks a field of the key; all messages without the field have one record"
    )]
    KeyFieldMissing {
        /// The topic.
        topic: String,
    },
    /// Messages could not be read for a filter or an expression. They are logged at intervals.
    #[error(
        "topic {:?}: message {} cannot be read as {}: {}. It matches no filter that reads fields. \
         Unreadable messages since the last such line: {count}",
        .example.topic,
        .example.bookmark.map_or("without a bookmark".to_owned(), |bookmark| bookmark.to_string()),
        .example.message_type.name(),
        .example.reason
    )]
    MessageUnreadable {
        /// The first of them since the last line.
        #[serde(flatten, serialize_with = "fields::unreadable")]
        example: Unreadable,
        /// The number of failed reads since the last line.
        count: u64,
    },
    /// A snapshot of a last-value topic could not be written. The next start reads more of the log.
    #[error("topic {topic:?}: the snapshot is not saved: {reason}")]
    SnapshotNotSaved {
        /// The topic.
        topic: String,
        /// The cause.
        reason: String,
    },
    /// A snapshot of a last-value topic was not read. The topic is built from the log.
    #[error("topic {topic:?}: the snapshot is not used, the topic is built from the log: {reason}")]
    SnapshotNotUsed {
        /// The topic.
        topic: String,
        /// The cause.
        reason: String,
    },
    /// A snapshot of a view was not read. The view is computed from its sources.
    #[error("view {view:?}: the snapshot is not used, the view is computed from its sources: {reason}")]
    ViewComputedAgain {
        /// The view.
        view: String,
        /// The cause.
        reason: String,
    },
    /// The log does not begin at its first record, so a last-value topic that is built from it
    /// lacks records.
    #[error("topic {topic:?}: the log begins at position {first}, so records of older messages are missing")]
    RecordsMissing {
        /// The topic.
        topic: String,
        /// The first position of the log.
        first: u64,
    },
    /// The wall clock shows an earlier time than the last record of the log. It was set back, or it
    /// was fast before.
    #[error(
        "the clock of this machine shows a time {:.3} s before that of the newest record of the log. Until it has \
         passed that time, new records get that time, and lifetimes and delays count from the time of the clock",
        .behind.as_secs_f64()
    )]
    ClockBehind {
        /// The difference.
        #[serde(serialize_with = "fields::seconds")]
        behind: Duration,
    },
    /// A destination is connected.
    #[error(
        "destination {destination:?}: connected to instance {instance:?}, records after position {after} are sent"
    )]
    LinkUp {
        /// The destination.
        destination: String,
        /// The instance that answered.
        instance: String,
        /// Its group.
        group: String,
        /// Records after this position are sent.
        after: u64,
    },
    /// A destination has everything that was in the log when it was connected.
    #[error("destination {destination:?}: everything that was in the log at the connect was sent")]
    LinkCaughtUp {
        /// The destination.
        destination: String,
    },
    /// A destination is not connected. Attempts that end for the same reason are logged once.
    #[error("destination {destination:?}: not connected: {reason}")]
    LinkDown {
        /// The destination.
        destination: String,
        /// Why.
        reason: String,
    },
    /// Publishers wait for a destination from now on, or no longer wait for it.
    #[error(
        "destination {destination:?}: {}: {reason}",
        if *.is_waited_for { "publishers wait for it again" } else { "publishers do not wait for it" }
    )]
    LinkWaitedFor {
        /// The destination.
        destination: String,
        /// Whether they wait.
        is_waited_for: bool,
        /// Why this changed.
        reason: &'static str,
    },
    /// A command paused a destination, or ended the pause.
    #[error(
        "destination {destination:?}: {}",
        if *.is_paused { "paused by a command: nothing is sent to it" } else { "resumed by a command" }
    )]
    LinkPaused {
        /// The destination.
        destination: String,
        /// Whether the link is paused from now on.
        is_paused: bool,
    },
    /// The log no longer has all records that a destination lacks.
    #[error(
        "destination {destination:?}: it has the records up to position {after}, and the log begins at position \
         {first}. Nothing is sent to it until `quire replication resume`, which leaves out the records between"
    )]
    LinkHasGap {
        /// The destination.
        destination: String,
        /// The destination has everything up to this position.
        after: u64,
        /// The first position of the log.
        first: u64,
    },
    /// Another instance begins to send its records.
    #[error("source {source:?}: connected from {peer}")]
    LinkAccepted {
        /// The instance.
        r#source: String,
        /// Its group.
        group: String,
        /// Its address.
        peer: String,
    },
    /// The connection of another instance that sent its records is gone.
    #[error("source {source:?}: disconnected from {peer}")]
    LinkLost {
        /// The instance.
        r#source: String,
        /// Its address.
        peer: String,
    },
    /// This instance ended the link of another instance.
    #[error("source {source:?}: link ended: {reason}")]
    LinkRefused {
        /// The instance, or its address.
        r#source: String,
        /// Why.
        reason: String,
    },
    /// A message of a last-value topic cannot be the record of its key.
    #[error(
        "last-value topic {topic:?}: the message at position {position} is in the log and not among the records: \
         {reason}"
    )]
    RecordNotKept {
        /// The topic.
        topic: String,
        /// The position of the message.
        position: u64,
        /// Why.
        reason: String,
    },
    /// The record of a group of a view cannot be written as a message of the view.
    #[error(
        "view {view:?}: a group has no record, because it cannot be a message of the view: {reason} ({count} times since the start)"
    )]
    ViewNotWritten {
        /// The view.
        view: String,
        /// How often this happened since the start.
        count: u64,
        /// Why.
        reason: String,
    },
    /// A last-value topic with replication has more deletes than it remembers.
    #[error(
        "last-value topic {topic:?}: older deletes are forgotten, because there are too many. A message that was \
         published before such a delete, and arrives later from another instance, becomes a record again"
    )]
    DeletesForgotten {
        /// The topic.
        topic: String,
    },
    /// The local log has another message with the bookmark of a message of another instance.
    #[error(
        "source {source:?}: its message {bookmark} is not recorded, because another message has this bookmark here. Two \
         runs of the publisher used the same sequences: the log of each instance has messages that the other one lacks \
         ({count} of this source)"
    )]
    LinkConflict {
        /// The instance that sent it.
        r#source: String,
        /// Its bookmark.
        #[serde(serialize_with = "fields::text")]
        bookmark: Bookmark,
        /// The conflicts of the link, over all restarts.
        count: u64,
    },
    /// A destination has another message with the bookmark of a message that was sent to it.
    #[error(
        "destination {destination:?}: it has not recorded the message {bookmark}, because another message has this \
         bookmark there. Two runs of the publisher used the same sequences: the log of each instance has messages that \
         the other one lacks ({count} of this destination)"
    )]
    LinkRejected {
        /// The destination.
        destination: String,
        /// The bookmark.
        #[serde(serialize_with = "fields::text")]
        bookmark: Bookmark,
        /// The conflicts of the link, over all restarts.
        count: u64,
    },
    /// Messages that the log lacked came from a source that was asked for them.
    #[error(
        "source {source:?}: {count} messages that were missing here were asked for, and it has sent them"
    )]
    LinkCompared {
        /// The instance.
        r#source: String,
        /// The messages.
        count: u64,
    },
    /// The log could not be compared with that of a source.
    #[error("source {source:?}: its messages were not compared with those here: {reason}")]
    LinkNotCompared {
        /// The instance.
        r#source: String,
        /// Why.
        reason: String,
    },
    /// Messages are missing between others of their publishers, and no source has them.
    #[error(
        "{count} messages of {publisher_count} publishers are missing: later messages of these publishers are in the log, \
         and no instance that sends to this one has the missing ones: {ranges}"
    )]
    MessagesMissing {
        /// The messages.
        count: u64,
        /// Their publishers.
        publisher_count: u64,
        /// The first of them.
        ranges: String,
    },
    /// A command has accepted that messages are missing.
    #[error(
        "a command has accepted that {count} messages of {publisher_count} publishers are missing: {ranges}. They are \
         recorded when they arrive"
    )]
    GapAccepted {
        /// The messages.
        count: u64,
        /// Their publishers.
        publisher_count: u64,
        /// The first of them.
        ranges: String,
    },
    /// The log may lack records that other instances have. It takes no clients until they have sent
    /// them.
    #[error(
        "the log may lack messages that other instances have, because {reason}: clients are let in when every instance \
         has sent what it has"
    )]
    LogFilling {
        /// Why.
        reason: &'static str,
    },
    /// Clients wait for messages of other instances.
    #[error(
        "clients are not let in yet: not everything was heard from {members}. `quire replication admit` lets them in \
         without the missing messages"
    )]
    ClientsWait {
        /// The members that were not heard, and their last known messages.
        members: String,
    },
    /// Every other instance has sent what it has.
    #[error("the log has everything that other instances have sent: clients are let in")]
    LogComplete,
    /// A command has let clients in.
    #[error(
        "clients are let in by a command. Messages that were not heard may be missing: of {members}. They are recorded \
         when they arrive, after later messages"
    )]
    ClientsAdmitted {
        /// The members that were not heard, and their last known messages.
        members: String,
    },
    /// Another instance uses the name of this one.
    #[error("another instance has the name {name:?}, and a later log: give each instance its own name")]
    NameUsedTwice {
        /// The name.
        name: String,
    },
    /// The broker is stopping.
    #[error("shutting down")]
    ShuttingDown,
}

/// The change of the configuration that messages no longer match.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeftOutBecause {
    /// Another filter, other topics, or another message type.
    Settings,
    /// The queue is no longer in the configuration.
    Removed,
    /// The queue begins later.
    Begins {
        /// Its recovery point.
        recovery_point: String,
    },
}

impl Event {
    /// The urgency of the event for a reader of the log.
    pub fn level(&self) -> Level {
        match self {
            Event::LoggedOn { is_inside: true, .. } | Event::Disconnected { is_inside: true, .. } => {
                Level::Debug
            }
            Event::LoggedOn { .. }
            | Event::Disconnected { .. }
            | Event::JournalFilesTaken { .. }
            | Event::JournalFileTaken { .. }
            | Event::TornTailCut { .. }
            | Event::JournalResumed
            | Event::InstanceRenamed { .. }
            | Event::QueueCreated { .. }
            | Event::QueueAltered { .. }
            | Event::QueueDropped { .. }
            | Event::ViewDefined { .. }
            | Event::LinkUp { .. }
            | Event::LinkCompared { .. }
            | Event::LinkCaughtUp { .. }
            | Event::LinkAccepted { .. }
            | Event::LinkLost { .. }
            | Event::LinkWaitedFor { is_waited_for: true, .. }
            | Event::LinkPaused { .. }
            | Event::LogComplete
            | Event::Administered { .. }
            | Event::LoggedOff { .. }
            | Event::ClientOnline { .. }
            | Event::ShuttingDown => Level::Info,
            Event::Ended { code: Code::ShuttingDown, .. } => Level::Info,
            Event::Ended { .. }
            | Event::SequenceJumped { .. }
            | Event::QueueSettingIgnored { .. }
            | Event::QueueRecordPassedOver { .. }
            | Event::QueueMessagesLeftOut { .. }
            | Event::DeadLetter { .. }
            | Event::DeadLetters { .. }
            | Event::MessageExpired { .. }
            | Event::MessagesExpired { .. }
            | Event::MessageCancelled { .. }
            | Event::MessagesCancelled { .. }
            | Event::ConfigWarning { .. }
            | Event::ClientOfflined { .. }
            | Event::DeliveriesLeftOut { .. }
            | Event::Refused { .. }
            | Event::MoreRefused { .. }
            | Event::SequencesLost
            | Event::InstanceNamesLost { .. }
            | Event::QueuePointsNotSaved { .. }
            | Event::QueuesNotPaged { .. }
            | Event::TablesNotPaged { .. }
            | Event::KeyFieldMissing { .. }
            | Event::DeletesForgotten { .. }
            | Event::ViewNotWritten { .. }
            | Event::MessageUnreadable { .. }
            | Event::RecordsMissing { .. }
            | Event::ClockBehind { .. }
            | Event::SnapshotNotSaved { .. }
            | Event::SnapshotNotUsed { .. }
            | Event::ViewComputedAgain { .. }
            | Event::ViewDefinitionNotUsed { .. }
            | Event::LinkDown { .. }
            | Event::LinkRefused { .. }
            | Event::LinkNotCompared { .. }
            | Event::LinkWaitedFor { .. }
            | Event::LogFilling { .. }
            | Event::ClientsWait { .. }
            | Event::ClientsAdmitted { .. }
            | Event::GapAccepted { .. }
            | Event::MaintenanceFailed { .. } => Level::Warning,
            Event::SubscriptionEnded { .. }
            | Event::JournalFailed { .. }
            | Event::JournalStalled { .. }
            | Event::LinkHasGap { .. }
            | Event::LinkConflict { .. }
            | Event::LinkRejected { .. }
            | Event::MessagesMissing { .. }
            | Event::NameUsedTwice { .. }
            | Event::RecordNotKept { .. }
            | Event::QueueMessageUnreadable { .. } => Level::Error,
        }
    }
}

/// The number of lines that were left out, when it is not 0.
struct MoreLines(u64);

impl fmt::Display for MoreLines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => Ok(()),
            count => write!(f, "; {count} more such lines were left out"),
        }
    }
}

/// The pairs of a line for an audit. Each value is quoted as JSON.
struct Pairs<'a>(&'a [(&'a str, &'a str)]);

impl fmt::Display for Pairs<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (name, value)) in self.0.iter().enumerate() {
            let blank = if index == 0 { "" } else { " " };
            write!(f, "{blank}{name}={}", serde_json::Value::from(*value))?;
        }
        Ok(())
    }
}

/// The word after a number.
fn if_one<'a>(count: u64, one: &'a str, more: &'a str) -> &'a str {
    if count == 1 { one } else { more }
}

/// The messages of [`Event::QueueMessagesLeftOut`], after the name of the queue.
struct LeftOut<'a>(u64, &'a LeftOutBecause);

impl fmt::Display for LeftOut<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LeftOut(count, why) = *self;
        let (messages, are) = (if_one(count, "message", "messages"), if_one(count, "is", "are"));
        match why {
            LeftOutBecause::Settings => write!(
                f,
                ": its filter or topics changed, and {count} {messages} that {are} not acknowledged {are} left \
                 out. The server keeps their journal files, and delivers them with the earlier settings again"
            ),
            LeftOutBecause::Removed => write!(
                f,
                " left the configuration, and {count} {messages} of it {are} not acknowledged. The server keeps \
                 their journal files, and delivers them when the queue is put back. To give them up, drop the queue"
            ),
            LeftOutBecause::Begins { recovery_point } => write!(
                f,
                ": its recovery_point changed to {recovery_point:?}, and {count} {messages} that {are} not \
                 acknowledged left the queue. The server does not keep them"
            ),
        }
    }
}

struct Named<'a>(&'a Option<String>);

impl fmt::Display for Named<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(name) => write!(f, " (client {name:?})"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for ConnectionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}
