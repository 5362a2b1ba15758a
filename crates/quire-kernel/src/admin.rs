//! Administration. Its commands are the same for a client, for the local administrator and for the
//! process of the server.

use std::collections::BTreeMap;
use std::time::Duration;

use quire_journal::SegmentInfo;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::context::Context;
use super::journal_files::Maintenance;
use super::reply::Refused;
use super::stats::{
    ConnectionStats, Figures, HeldFigures, Page, QueueFigures, ReplicationStats, ServerStats, Stats,
    SubscriptionStats, TopicStats,
};
use super::{Access, ConnectionId, Output, TransportId};
use crate::config::queues::{QueueChanges, QueueSettings};
use crate::config::views::ViewSettings;
use crate::entitlement::Explanation;
use crate::session::{Phase, SessionId};
use quire_command::{Ack, AckKind, Code, LinkAction, Maintain, Reply, Subject};

/// A request whose decision is explained.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AccessQuestion {
    /// The name of the user.
    pub user: String,
    /// The groups of the user. `None`: those of the connection of the user that logged on last.
    pub groups: Option<Vec<Box<str>>>,
    /// The name of the right.
    pub right: String,
    /// The topic, queue or resource.
    pub topic: String,
}

/// An administrative command.
#[derive(Clone, Debug, PartialEq)]
pub enum AdminCommand {
    /// Archives, compresses or removes one full journal file. The reply is [`AdminReply::Files`].
    Maintain(Maintenance),
    /// The figures of the queue with this name, or of every queue. The reply is
    /// [`AdminReply::Queues`].
    QueueStats(Option<String>),
    /// All figures. The reply is [`AdminReply::Stats`].
    Stats,
    /// The figures of every object of the instance, for its statistics. Only the process of the
    /// server may ask. The reply is [`AdminReply::Figures`].
    Figures,
    /// The messages of a queue in the hands of subscriptions, up to this number. Only the process
    /// of the server may ask. The reply is [`AdminReply::Held`].
    Held(String, usize),
    /// Describes the server. The reply is [`AdminReply::Server`].
    Server,
    /// The connections with numbers above this one. The reply is [`AdminReply::Clients`].
    Clients(u64),
    /// The subscriptions after the one with this number on this connection. The reply is
    /// [`AdminReply::Subscriptions`].
    Subscriptions(u64, u32),
    /// The topics whose names sort after this one. The reply is [`AdminReply::Topics`].
    Topics(String),
    /// Creates a queue at run time. The reply is [`AdminReply::QueueCreated`].
    CreateQueue(Box<QueueSettings>),
    /// Changes settings of a queue that was created at run time. The reply is
    /// [`AdminReply::QueueAltered`].
    AlterQueue {
        /// Its name.
        queue: String,
        /// The settings that change.
        changes: QueueChanges,
    },
    /// Drops a queue that was created at run time. The reply is [`AdminReply::QueueDropped`].
    DropQueue(String),
    /// Replaces the definition of a view. The reply is [`AdminReply::ViewDefined`].
    DefineView(Box<ViewSettings>),
    /// The links to other instances. The reply is [`AdminReply::Replication`].
    Replication,
    /// Ends the connection with this number. Its client name cannot log on for the time. The reply
    /// is [`AdminReply::Disconnected`].
    Disconnect(u64, Duration),
    /// Ends the connections of clients of a transport, which accepts no more of them. Only the
    /// process of the server may ask. The reply is [`AdminReply::Disconnected`].
    DisconnectTransport(TransportId),
    /// Moves the records of last-value topics together in memory, as far as one turn may. Only the
    /// process of the server may ask. The reply is [`AdminReply::Compacted`].
    CompactRecords(String),
    /// A node of the figures, or samples, as JSON. The driver answers. The reply is
    /// [`AdminReply::Statistics`].
    Statistics(Vec<u8>),
    /// A question about the messages of the log, as bytes (`quire_link::summary`). The reply is
    /// [`AdminReply::Messages`].
    Messages(Vec<u8>),
    /// Which entitlement decides about a request, as the JSON of [`AccessQuestion`]. The reply is
    /// [`AdminReply::Access`].
    Access(Vec<u8>),
    /// Changes the link to a destination, or lets clients in, or accepts the gap. The reply is
    /// [`AdminReply::Replication`].
    Link {
        /// The destination; empty for [`LinkAction::Admit`]. For [`LinkAction::Accept`] the id of a
        /// publisher; empty: all publishers.
        destination: String,
        /// The change.
        action: LinkAction,
    },
}

/// The answer to an [`AdminCommand`].
#[derive(Clone, Debug, PartialEq)]
pub enum AdminReply {
    /// The files that were taken, or would be taken, as they are now. A removed file is described
    /// as it was. Empty: no file is selected, or the selected file must not be removed.
    Files(Vec<SegmentInfo>),
    /// The figures of queues by name, and the names of queues whose figures are hidden.
    Queues {
        /// By name.
        figures: QueueFigures,
        /// The names of other queues.
        names: Vec<String>,
    },
    /// All figures.
    Stats(Box<Stats>),
    /// The figures of every object.
    Figures(Box<Figures>),
    /// Messages in the hands of subscriptions, in the order in which they were delivered.
    Held(Vec<HeldFigures>),
    /// A description of the server.
    Server(Box<ServerStats>),
    /// Connections, in the order of their numbers.
    Clients(Page<ConnectionStats>),
    /// Subscriptions, in the order of their connections and of their numbers.
    Subscriptions(Page<SubscriptionStats>),
    /// Topics, in the order of their names.
    Topics(Page<TopicStats>),
    /// The queue exists.
    QueueCreated {
        /// Its name.
        queue: String,
        /// The queue existed before the command, with the same settings.
        existed: bool,
    },
    /// The queue has the settings.
    QueueAltered {
        /// Its name.
        queue: String,
        /// The keys that had other values before.
        keys: Vec<String>,
    },
    /// The queue no longer exists.
    QueueDropped {
        /// Its name.
        queue: String,
        /// The messages that it had.
        message_count: u64,
        /// Warnings, in words.
        warnings: Vec<String>,
    },
    /// The view has the definition.
    ViewDefined {
        /// Its name.
        view: String,
        /// It had another definition before.
        changed: bool,
    },
    /// The server, for a client that may not see its figures.
    Identity {
        /// The name of the instance.
        name: String,
        /// The user of the client.
        user: Option<String>,
    },
    /// Connections were ended.
    Disconnected {
        /// Their number; 0: there is no such connection.
        count: u64,
    },
    /// Records were moved together.
    Compacted {
        /// Bytes of memory that were freed; 0: there are none to free.
        freed: u64,
    },
    /// The answer of the driver, as JSON.
    Statistics(String),
    /// The configuration was read again.
    Reloaded {
        /// The keys that have changed.
        keys: Vec<String>,
    },
    /// The links to other instances.
    Replication(Box<ReplicationStats>),
    /// The answer to a question about the messages of the log, as bytes (`quire_link::summary`) in
    /// hexadecimal digits.
    Messages(String),
    /// The entitlement that decides.
    Access(Box<Explanation>),
    /// The command was not carried out.
    Refused {
        /// Why, for programs.
        code: Code,
        /// Why, in words.
        reason: String,
    },
}

impl AdminReply {
    pub fn refused(code: Code, reason: impl Into<String>) -> Self {
        AdminReply::Refused { code, reason: reason.into() }
    }
}

impl From<Refused> for AdminReply {
    fn from(Refused { code, reason, .. }: Refused) -> Self {
        AdminReply::Refused { code, reason }
    }
}

/// The sender of a command, which is the receiver of the reply.
#[derive(Clone, Debug)]
pub enum Requester {
    /// A connection.
    Client {
        connection: ConnectionId,
        client_name: Option<String>,
        access: Access,
        /// The number of the command.
        command: u32,
    },
    /// The process that runs the server. The number distinguishes its requests.
    Process { ticket: u64 },
}

impl Requester {
    pub fn connection(&self) -> Option<ConnectionId> {
        match self {
            Requester::Client { connection, .. } => Some(*connection),
            Requester::Process { .. } => None,
        }
    }

    /// The name of the requester in the log.
    pub fn name(&self) -> String {
        match self {
            Requester::Client { connection, client_name: Some(name), .. } => {
                format!("connection {connection} (client {name:?})")
            }
            Requester::Client { connection, client_name: None, .. } => format!("connection {connection}"),
            Requester::Process { .. } => "the process of the server".to_owned(),
        }
    }
}

impl From<Subject<'_>> for AdminCommand {
    fn from(subject: Subject<'_>) -> Self {
        match subject {
            Subject::Server => AdminCommand::Server,
            Subject::Clients { after } => AdminCommand::Clients(after),
            Subject::Subscriptions { after_connection, after_subscription } => {
                AdminCommand::Subscriptions(after_connection, after_subscription)
            }
            Subject::Topics { after } => AdminCommand::Topics(after.to_owned()),
            Subject::Replication => AdminCommand::Replication,
            Subject::Messages { question } => AdminCommand::Messages(question.to_owned()),
            Subject::Access { question } => AdminCommand::Access(question.to_owned()),
            Subject::Statistics { question } => AdminCommand::Statistics(question.to_owned()),
        }
    }
}

impl From<Maintain<'_>> for Maintenance {
    fn from(frame: Maintain<'_>) -> Self {
        let Maintain { action, files, dry_run, archive_directory, .. } = frame;
        Maintenance { action, files, dry_run, archive_directory: archive_directory.map(Into::into) }
    }
}

impl Context {
    pub fn requester(&self, id: SessionId, command: u32) -> Requester {
        let session = &self.clients.sessions.all[id];
        Requester::Client {
            connection: session.connection,
            client_name: session.client_name(),
            access: session.access,
            command,
        }
    }

    /// The user of the requester.
    pub fn user_of(&self, by: &Requester) -> Option<String> {
        let session = &self.clients.sessions.all[self.session_of(by.connection()?)?];
        session.client_facts().user
    }

    /// Whether a reply reaches the requester.
    pub fn hears(&self, by: &Requester) -> bool {
        let Some(connection) = by.connection() else { return true };
        self.session_of(connection).is_some_and(|id| self.clients.sessions.all[id].phase == Phase::Open)
    }

    /// Sends the reply to the sender of the command. A reply to a connection that has ended is
    /// dropped.
    pub fn reply(&mut self, to: &Requester, reply: AdminReply) {
        let (connection, command) = match to {
            Requester::Process { ticket } => {
                return self.outputs.push_back(Output::AdminReply { ticket: *ticket, reply });
            }
            Requester::Client { connection, command, .. } => (*connection, *command),
        };
        let Some(id) = self.session_of(connection) else { return };
        let json = match reply {
            AdminReply::Files(files) => return self.send_files(id, command, &files),
            AdminReply::Refused { code, reason } => {
                return self.refuse_command(id, command, 0, &Refused::new(code, reason));
            }
            // A value in between would have every connection of the figures twice.
            AdminReply::Stats(stats) => stats.to_json(),
            AdminReply::Figures(figures) => figures.to_json(),
            AdminReply::Held(held) => json!({ "held": held }).to_string(),
            AdminReply::Queues { figures, names } => {
                let figures = figures.iter().map(|(name, figures)| (name, json!(figures)));
                let hidden = names.iter().map(|name| (name, json!({})));
                let queues: BTreeMap<_, _> = figures.chain(hidden).collect();
                json!({ "queues": queues }).to_string()
            }
            AdminReply::Server(server) => json!({ "server": server }).to_string(),
            AdminReply::Identity { name, user } => {
                let version = env!("CARGO_PKG_VERSION");
                json!({ "server": { "name": name, "version": version, "user": user } }).to_string()
            }
            AdminReply::Statistics(answer) => format!(r#"{{"statistics":{answer}}}"#),
            AdminReply::Compacted { freed } => json!({ "freed": freed }).to_string(),
            AdminReply::Disconnected { count } => json!({ "disconnected": count }).to_string(),
            AdminReply::Reloaded { keys } => json!({ "reloaded": keys }).to_string(),
            AdminReply::Replication(replication) => json!({ "replication": replication }).to_string(),
            AdminReply::Access(explanation) => json!({ "access": explanation }).to_string(),
            AdminReply::Messages(answer) => json!({ "messages": answer }).to_string(),
            AdminReply::Clients(page) => json_of_page("clients", &page),
            AdminReply::Subscriptions(page) => json_of_page("subscriptions", &page),
            AdminReply::Topics(page) => json_of_page("topics", &page),
            AdminReply::QueueCreated { queue, existed } => {
                json_of_queue(json!({ "name": queue, "existed": existed }))
            }
            AdminReply::QueueAltered { queue, keys } => {
                json_of_queue(json!({ "name": queue, "altered": keys }))
            }
            AdminReply::QueueDropped { queue, message_count, warnings } => {
                json_of_queue(json!({ "name": queue, "dropped": message_count, "warnings": warnings }))
            }
            AdminReply::ViewDefined { view, changed } => {
                json!({ "view": { "name": view, "changed": changed } }).to_string()
            }
        };
        self.put(id, &Reply::Stats { command, json: &json });
    }

    fn send_files(&mut self, id: SessionId, command: u32, files: &[SegmentInfo]) {
        for file in files {
            self.put(id, &Reply::JournalFile { command, json: &json_of(file) });
        }
        let kind = AckKind::Processed;
        let ack = Ack { kind, code: Code::Ok, command, subscription: 0, detail: 0, reason: "" };
        self.put(id, &Reply::Ack(ack));
    }
}

/// A part of a list, whose member `name` has the entries.
fn json_of_page<T: Serialize>(name: &str, page: &Page<T>) -> String {
    json!({ name: page.items, "more": page.has_more }).to_string()
}

/// The result of a command about one queue.
fn json_of_queue(result: Value) -> String {
    json!({ "queue": result }).to_string()
}

/// As in protocol.md, `journal_file`.
fn json_of(file: &SegmentInfo) -> String {
    let (first, last) = file.bookmarks.map(|(first, last)| (first.to_string(), last.to_string())).unzip();
    let (first_ns, last_ns) = file.timestamps.map(|(first, last)| (first.as_ns(), last.as_ns())).unzip();
    json!({
        "path": file.path.to_string_lossy(),
        "number": file.number,
        "first": first,
        "last": last,
        "first_ns": first_ns,
        "last_ns": last_ns,
        "count": file.count,
        "size": file.size,
        "state": file.state.name(),
    })
    .to_string()
}
