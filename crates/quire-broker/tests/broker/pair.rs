//! A broker and its clients without sockets: frames go both ways as values, time stands still until
//! it is moved, the journal is written when the test says so, and reads are run when the test says
//! so.

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use quire_broker::{
    Access, AdminReply, Broker, BrokerConfig, ConnectionId, Event, Input, MaintenanceJob, Output,
    ReadRequest, TransportId,
};
use quire_command::*;
use quire_journal::{Disk, Journal, MemoryDisk, Timestamp};
use quire_types::Secret;
use quire_types::time::{Instant, Now};
use quire_wire::*;

/// What a client was told, owned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Said {
    LoggedOn { last_sequence: u64 },
    Ack { kind: AckKind, code: Code, command: u32, subscription: u32 },
    Persisted(u64),
    Failed { sequence: u64, code: Code, scope: FailureScope },
    Message { subscription: u32, bookmark: Option<(u64, u64)>, topic: String, data: String },
    Error(Code),
    Heartbeat,
    Ended { subscription: u32, code: Code },
    Queued(FromQueue),
    Row(RowMessage),
    Stats { command: u32, json: String },
    JournalFile { command: u32, json: String },
    LeaseLost { subscription: u32, reason: LeaseEnd, bookmark: (u64, u64), queue: Option<String> },
    Place { bookmark: (u64, u64), subscriptions: Vec<u32> },
    Places { places: Vec<(String, LogPlace)>, subscriptions: Vec<u32> },
    Closed,
}

/// A message with a key, owned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowMessage {
    pub subscription: u32,
    pub kind: MessageKind,
    pub key: String,
    pub data: String,
    pub topic: String,
    pub bookmark: Option<(u64, u64)>,
}

/// A message from a queue, owned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FromQueue {
    pub subscription: u32,
    pub bookmark: (u64, u64),
    pub lease_ms: u64,
    pub deliveries: u32,
    pub cancels: u32,
    pub queue: Option<String>,
    pub topic: String,
    pub data: String,
}

/// A successful acknowledgement.
pub fn ack(kind: AckKind, command: u32, subscription: u32) -> Said {
    Said::Ack { kind, code: Code::Ok, command, subscription }
}

/// A refused command.
pub fn refused(code: Code, command: u32, subscription: u32) -> Said {
    Said::Ack { kind: AckKind::Processed, code, command, subscription }
}

/// What a broker wants of its links to other instances.
pub enum LinkOutput {
    Open { destination: u32, address: String },
    Send { connection: u64, bytes: Vec<u8> },
    Close { connection: u64 },
}

pub struct Client {
    inbox: Inbox,
    pub said: Vec<Said>,
    /// Of the last `processed`.
    pub detail: u32,
    /// Of the last `processed` without an error.
    pub note: String,
    /// The reason of the last refusal.
    pub refusal: String,
    /// Of the last `completed`.
    pub total: u32,
    /// When each of it was said, in nanoseconds since the beginning.
    said_at_ns: Vec<u64>,
    pub is_closed: bool,
    pub is_reading_paused: bool,
    /// What `logged_on` said.
    pub highest_sequence: u64,
    /// Sent by the test while the broker did not read.
    waiting: Vec<u8>,
}

pub struct Pair {
    pub broker: Broker,
    pub disk: Arc<MemoryDisk>,
    pub clients: BTreeMap<u64, Client>,
    pub reads: VecDeque<ReadRequest>,
    /// Maintenance that the broker handed out; the test runs it.
    pub jobs: VecDeque<MaintenanceJob>,
    /// Tickets of commands of the process, and their replies.
    pub replies: Vec<(u64, AdminReply)>,
    /// Logons whose password the broker wants to be checked.
    pub logons: Vec<(ConnectionId, Option<String>, Option<Secret<String>>)>,
    /// Connections that want the configuration to be read again, and their commands.
    pub reloads: Vec<(ConnectionId, u32)>,
    pub log: Vec<Event>,
    /// The events for the actions of the driver.
    pub signals: Vec<String>,
    /// What the broker wants of its links.
    pub links: VecDeque<LinkOutput>,
    pub now_ns: u64,
    /// How far the wall clock was put forward since the beginning.
    pub wall_ahead_ns: u64,
    /// Whether the journal is written at the end of every turn.
    pub writes_at_once: bool,
    /// Whether reads are run at the end of every turn.
    pub reads_at_once: bool,
    /// The turns that the broker asked for at once after another one.
    pub repeat_count: usize,
}

/// Nothing on the wire is recorded at this time of day or earlier.
pub const WALL_START_NS: u64 = 1_000_000_000_000_000_000;

pub fn config() -> BrokerConfig {
    BrokerConfig { name: "test".into(), ..BrokerConfig::default() }
}

impl Pair {
    pub fn new() -> Self {
        Pair::with(config())
    }

    pub fn with(config: BrokerConfig) -> Self {
        Pair::on(Arc::new(MemoryDisk::new(1 << 30)), config)
    }

    /// Over what is on the disk.
    pub fn on(disk: Arc<MemoryDisk>, config: BrokerConfig) -> Self {
        Pair::over(disk.clone(), disk, config)
    }

    /// Over `as_disk`, which passes on to `disk`.
    pub fn over(as_disk: Arc<dyn Disk>, disk: Arc<MemoryDisk>, config: BrokerConfig) -> Self {
        let options = quire_journal::Options { segment_size: 256 * 1024, ..config.journal_options() };
        let (journal, _) = Journal::driven_by_hand(as_disk, Path::new("journal"), &options).unwrap();
        Pair {
            broker: Broker::new(config, journal).unwrap(),
            disk,
            clients: BTreeMap::new(),
            reads: VecDeque::new(),
            jobs: VecDeque::new(),
            replies: Vec::new(),
            logons: Vec::new(),
            reloads: Vec::new(),
            log: Vec::new(),
            signals: Vec::new(),
            links: VecDeque::new(),
            now_ns: 0,
            wall_ahead_ns: 0,
            writes_at_once: true,
            repeat_count: 0,
            reads_at_once: true,
        }
    }

    pub fn now(&self) -> Now {
        let wall = Timestamp(WALL_START_NS + self.wall_ahead_ns + self.now_ns);
        Now { instant: Instant(self.now_ns), wall }
    }

    pub fn connect(&mut self, client: u64) {
        self.connect_with(client, TransportId::default(), Access::Client);
    }

    pub fn connect_over(&mut self, client: u64, transport: TransportId) {
        self.connect_with(client, transport, Access::Client);
    }

    pub fn connect_as(&mut self, client: u64, access: Access) {
        self.connect_with(client, TransportId::default(), access);
    }

    fn connect_with(&mut self, client: u64, transport: TransportId, access: Access) {
        let inbox = Inbox::new(1 << 30);
        let before = Client {
            inbox,
            said: Vec::new(),
            detail: 0,
            note: String::new(),
            refusal: String::new(),
            total: 0,
            said_at_ns: Vec::new(),
            is_closed: false,
            is_reading_paused: false,
            highest_sequence: 0,
            waiting: Vec::new(),
        };
        self.clients.insert(client, before);
        let now = self.now();
        let connection = ConnectionId(client);
        self.broker.handle(now, Input::Connected { connection, peer: "test", transport, access });
    }

    /// Connects and logs on under a name.
    pub fn client(&mut self, client: u64, name: &str) {
        self.connect(client);
        self.log_on(client, name);
    }

    pub fn log_on(&mut self, client: u64, name: &str) {
        self.send(client, &Command::Logon(logon(name)));
        self.turn();
        assert!(matches!(self.take(client)[..], [Said::LoggedOn { .. }]));
    }

    pub fn send(&mut self, client: u64, frame: &Command<'_>) {
        let mut bytes = Vec::new();
        frame.encode(&mut bytes);
        self.send_bytes(client, &bytes);
    }

    pub fn send_bytes(&mut self, client: u64, bytes: &[u8]) {
        let now = self.now();
        let side = self.clients.get_mut(&client).unwrap();
        if side.is_reading_paused {
            side.waiting.extend_from_slice(bytes);
        } else {
            self.broker.handle(now, Input::Received { connection: ConnectionId(client), bytes });
        }
    }

    pub fn publish(&mut self, client: u64, sequence: u64, topic: &str, data: &str) {
        self.send(client, &Command::Publish(publish(sequence, topic, data)));
    }

    pub fn subscribe(&mut self, client: u64, subscribe: &Subscribe<'_>) {
        self.send(client, &Command::Subscribe(subscribe.clone()));
    }

    pub fn set_writable(&mut self, client: u64, writable: bool) {
        let now = self.now();
        self.broker.handle(now, Input::Writable { connection: ConnectionId(client), writable });
    }

    pub fn disconnect(&mut self, client: u64) {
        let now = self.now();
        self.clients.remove(&client);
        self.broker.handle(now, Input::Disconnected { connection: ConnectionId(client) });
    }

    /// Moves time, as far as timers go in their order.
    pub fn pass(&mut self, duration: Duration) {
        let end = self.now_ns + duration.as_nanos() as u64;
        while let Some(at) = self.broker.next_timeout().filter(|at| at.0 <= end) {
            self.now_ns = self.now_ns.max(at.0);
            let now = self.now();
            self.broker.handle(now, Input::Timeout);
            self.turn();
        }
        self.now_ns = end;
    }

    /// One turn, and those that it asks for.
    pub fn turn(&mut self) {
        for _ in 0..10_000 {
            self.one_turn();
            let wants_more = self.broker.next_timeout().is_some_and(|at| at.0 <= self.now_ns);
            self.repeat_count += usize::from(wants_more);
            let wrote = self.writes_at_once && self.write();
            let read = self.reads_at_once && self.run_reads();
            if !wants_more && !wrote && !read {
                return;
            }
        }
        panic!("the broker always wants another turn");
    }

    /// Writes what the journal was handed; whether there is any news.
    pub fn write(&mut self) -> bool {
        let before = self.broker.stats().persisted;
        self.broker.write_journal();
        let now = self.now();
        self.broker.handle(now, Input::Flushed);
        let stats = self.broker.stats();
        let journal = self.broker.journal();
        let has_failed = journal.failure().is_some() || journal.stall().is_some();
        stats.persisted != before || has_failed != stats.journal_failed
    }

    /// Runs the reads that the broker asked for; whether there were any.
    pub fn run_reads(&mut self) -> bool {
        let reads = std::mem::take(&mut self.reads);
        let any = !reads.is_empty();
        for read in reads {
            let now = self.now();
            self.broker.handle(now, Input::ReadDone(read.run()));
        }
        any
    }

    /// Collects the outputs, and runs the read that was asked for last; whether there was one.
    pub fn run_last_read(&mut self) -> bool {
        self.one_turn();
        let Some(read) = self.reads.pop_back() else { return false };
        let now = self.now();
        self.broker.handle(now, Input::ReadDone(read.run()));
        true
    }

    /// Exactly one turn.
    pub fn one_turn(&mut self) {
        let now = self.now();
        self.broker.finish_turn(now);
        while let Some(output) = self.broker.poll_output() {
            match output {
                Output::Send { connection, bytes } => {
                    if let Some(client) = self.clients.get_mut(&connection.0) {
                        client.hear(self.now_ns, &bytes);
                        self.broker.recycle(bytes);
                    } else {
                        self.links.push_back(LinkOutput::Send { connection: connection.0, bytes });
                    }
                }
                Output::SendShared { connection, bytes } => {
                    if let Some(client) = self.clients.get_mut(&connection.0) {
                        client.hear(self.now_ns, &bytes);
                    }
                }
                Output::Close { connection } => {
                    if let Some(client) = self.clients.get_mut(&connection.0) {
                        client.is_closed = true;
                        client.said.push(Said::Closed);
                        client.said_at_ns.push(self.now_ns);
                    } else {
                        self.links.push_back(LinkOutput::Close { connection: connection.0 });
                    }
                }
                Output::OpenLink { destination, address } => {
                    self.links.push_back(LinkOutput::Open { destination, address });
                }
                Output::PauseReading { connection } => {
                    if let Some(client) = self.clients.get_mut(&connection.0) {
                        client.is_reading_paused = true;
                    }
                }
                Output::ResumeReading { connection } => {
                    if let Some(client) = self.clients.get_mut(&connection.0) {
                        client.is_reading_paused = false;
                        let bytes = std::mem::take(&mut client.waiting);
                        self.broker.handle(now, Input::Received { connection, bytes: &bytes });
                    }
                }
                Output::Authenticate { connection, user, password, .. } => {
                    self.logons.push((connection, user, password));
                }
                Output::Read(request) => self.reads.push_back(request),
                Output::Maintenance(job) => self.jobs.push_back(job),
                Output::AdminReply { ticket, reply } => self.replies.push((ticket, reply)),
                Output::Reload { connection, command } => self.reloads.push((connection, command)),
                // No client of the test waits for an answer of the driver.
                Output::Statistics { connection, command, .. } => {
                    let result = Ok(r#"{"a":1}"#);
                    self.broker.handle(now, Input::Statistics { connection, command, result });
                }
                Output::Signal(text) => self.signals.push(text),
                Output::Log(event) => self.log.push(event),
            }
        }
    }

    /// What the client was told since the last call.
    pub fn take(&mut self, client: u64) -> Vec<Said> {
        let client = self.clients.get_mut(&client).unwrap();
        client.said_at_ns.clear();
        std::mem::take(&mut client.said)
    }

    /// What the client was told since the last call, and when, in nanoseconds.
    pub fn take_said(&mut self, client: u64) -> Vec<(u64, Said)> {
        let at_ns = std::mem::take(&mut self.clients.get_mut(&client).unwrap().said_at_ns);
        at_ns.into_iter().zip(self.take(client)).collect()
    }

    /// The data of the messages that the client was sent since the last call, and when, in
    /// microseconds.
    pub fn take_timed(&mut self, client: u64) -> Vec<(u64, String)> {
        let data = |(at_ns, said)| match said {
            Said::Message { data, .. } => Some((at_ns / 1000, data)),
            _ => None,
        };
        self.take_said(client).into_iter().filter_map(data).collect()
    }

    /// The data of the messages that the client was sent since the last call, whatever else it was
    /// told.
    pub fn take_data(&mut self, client: u64) -> Vec<String> {
        let data = |said| match said {
            Said::Message { data, .. } => Some(data),
            _ => None,
        };
        self.take(client).into_iter().filter_map(data).collect()
    }
}

impl Client {
    fn hear(&mut self, now_ns: u64, mut bytes: &[u8]) {
        while let Some(frame) = self.inbox.next(&mut bytes).unwrap() {
            let said = match Reply::decode(frame).unwrap() {
                Reply::LoggedOn(logged_on) => {
                    self.highest_sequence = logged_on.highest_sequence;
                    Said::LoggedOn { last_sequence: logged_on.last_sequence }
                }
                Reply::Ack(Ack { kind, code, command, subscription, detail, reason }) => {
                    if code != Code::Ok {
                        self.refusal = reason.to_owned();
                    }
                    match kind {
                        AckKind::Processed => {
                            self.detail = detail;
                            self.note = if code == Code::Ok { reason.to_owned() } else { String::new() };
                        }
                        AckKind::Completed => self.total = detail,
                        AckKind::Received | AckKind::Persisted => (),
                    }
                    Said::Ack { kind, code, command, subscription }
                }
                Reply::Persisted { sequence } => Said::Persisted(sequence),
                Reply::PublishFailed { sequence, code, scope, .. } => Said::Failed { sequence, code, scope },
                Reply::Message(message) if !message.key.is_empty() => Said::Row(RowMessage {
                    subscription: message.subscription,
                    kind: message.kind,
                    key: text(message.key),
                    data: text(message.data),
                    topic: text(message.topic),
                    bookmark: message.bookmark,
                }),
                Reply::Message(message) => match message.queued {
                    None => Said::Message {
                        subscription: message.subscription,
                        bookmark: message.bookmark,
                        topic: text(message.topic),
                        data: text(message.data),
                    },
                    Some(queued) => Said::Queued(FromQueue {
                        subscription: message.subscription,
                        bookmark: message.bookmark.unwrap(),
                        lease_ms: queued.lease_ms,
                        deliveries: queued.deliveries,
                        cancels: queued.cancels,
                        queue: queued.queue.map(text),
                        topic: text(message.topic),
                        data: text(message.data),
                    }),
                },
                Reply::Stats { command, json } => Said::Stats { command, json: json.to_owned() },
                Reply::JournalFile { command, json } => Said::JournalFile { command, json: json.to_owned() },
                Reply::LeaseLost { subscription, reason, publisher, sequence, queue } => {
                    let (bookmark, queue) = ((publisher, sequence), queue.map(str::to_owned));
                    Said::LeaseLost { subscription, reason, bookmark, queue }
                }
                Reply::ResumePosition { publisher, sequence, subscriptions } => {
                    let subscriptions = subscriptions.iter().collect();
                    Said::Place { bookmark: (publisher, sequence), subscriptions }
                }
                Reply::Places { places, subscriptions } => {
                    let places = places.iter().map(|(name, place)| (name.to_owned(), place)).collect();
                    Said::Places { places, subscriptions: subscriptions.iter().collect() }
                }
                Reply::Error { code, .. } => Said::Error(code),
                Reply::Heartbeat => Said::Heartbeat,
                Reply::SubscriptionEnded { subscription, code, .. } => Said::Ended { subscription, code },
            };
            self.said.push(said);
            self.said_at_ns.push(now_ns);
        }
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

pub fn logon(name: &str) -> Logon<'_> {
    Logon { version: VERSION, client_name: name, ..Logon::default() }
}

pub fn publish<'a>(sequence: u64, topic: &'a str, data: &'a str) -> Publish<'a> {
    Publish {
        sequence,
        expiration_s: None,
        topic: topic.as_bytes(),
        correlation_id: b"",
        headers: quire_types::Headers::NONE,
        delay: quire_types::Delay::None,
        key: b"",
        is_delta: false,
        is_update: false,
        is_numbered: false,
        data: data.as_bytes(),
    }
}

/// A subscription that wants to know when it is processed and completed; its command has the same
/// number.
pub fn subscribe(number: u32, topic: &str) -> Subscribe<'_> {
    Subscribe {
        command: number,
        acks: Acks::PROCESSED.and(Acks::COMPLETED),
        subscription: number,
        topic,
        ..Subscribe::default()
    }
}

/// The same from a bookmark.
pub fn replay<'a>(number: u32, topic: &'a str, bookmark: &'a str) -> Subscribe<'a> {
    Subscribe { bookmark: Some(bookmark), ..subscribe(number, topic) }
}
