//! Clients and servers over a fake network with virtual time: the real client core against the real
//! broker, bytes between them.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use quire_broker::{Access, Broker, BrokerConfig, ConnectionId, Input, Output, TransportId};
use quire_client::*;
use quire_journal::{Journal, MemoryDisk, Timestamp};
use quire_types::time::{Instant, Now};

/// A server that can be killed and started again over its disk.
struct Server {
    name: String,
    disk: Arc<MemoryDisk>,
    broker: Option<Broker>,
}

/// A client, its connection of the moment, and what its user was told.
pub struct Side {
    pub core: ClientCore,
    /// The servers that it knows, in its order.
    servers: Vec<usize>,
    connection: Option<(usize, ConnectionId)>,
    pub messages: Vec<(u32, String)>,
    pub answers: BTreeMap<u32, Result<(), Failure>>,
    pub completed: Vec<u32>,
    /// The answers to commands, as JSON.
    pub told: Vec<(u32, String)>,
    pub ended: Vec<(u32, Option<Failure>)>,
    /// How many publishes and subscriptions each logon sent again.
    pub logons: Vec<(u64, usize)>,
    pub settled: Vec<(ReceiptId, Outcome)>,
    /// Refused publishes that no receipt asked for.
    pub refused: Vec<(u64, Failure)>,
}

pub struct Link {
    servers: Vec<Server>,
    pub clients: Vec<Side>,
    now_ns: u64,
    last_connection: u64,
    /// Whether the journals are written whenever there is something to write.
    pub writes: bool,
}

const WALL_START_NS: u64 = 1_000_000_000_000_000_000;

pub fn config(name: &str) -> ClientConfig {
    ClientConfig {
        name: name.into(),
        user: None,
        password: None,
        token: None,
        renews_token: false,
        heartbeat: None,
        ack_interval: Duration::ZERO,
        reconnect: Reconnect { jitter: 0.0, ..Reconnect::default() },
        address_count: 1,
        publish_store_size_max: 1 << 20,
        ack_batch_size: 1,
        ack_timeout: Duration::from_secs(1),
        incarnation: 7,
        observes: false,
    }
}

pub fn message_of<'a>(topic: &'a str, data: &'a str, sequence: Sequence) -> NewMessage<'a> {
    NewMessage { sequence, ..NewMessage::new(topic, data.as_bytes()) }
}

impl Link {
    /// As many servers as names, all running.
    pub fn new(names: &[&str]) -> Self {
        let server = |name: &&str| Server {
            name: (*name).into(),
            disk: Arc::new(MemoryDisk::new(1 << 30)),
            broker: None,
        };
        let mut link = Link {
            servers: names.iter().map(server).collect(),
            clients: Vec::new(),
            now_ns: 0,
            last_connection: 0,
            writes: true,
        };
        (0..names.len()).for_each(|server| link.start(server));
        link
    }

    pub fn start(&mut self, server: usize) {
        let server = &mut self.servers[server];
        let config = BrokerConfig { name: server.name.clone(), ..BrokerConfig::default() };
        let options = quire_journal::Options { segment_size: 256 * 1024, ..config.journal_options() };
        let (journal, _) =
            Journal::driven_by_hand(server.disk.clone(), Path::new("journal"), &options).unwrap();
        server.broker = Some(Broker::new(config, journal).unwrap());
    }

    /// The server is gone, and with it every connection and what was not written.
    pub fn kill(&mut self, server: usize) {
        self.servers[server].broker = None;
        let now = self.now().instant;
        for side in &mut self.clients {
            if side.connection.take_if(|(other, _)| *other == server).is_some() {
                side.core.handle_disconnected(now);
            }
        }
    }

    /// The disk of a server that does not run is replaced by an empty one.
    pub fn erase(&mut self, server: usize) {
        self.servers[server].disk = Arc::new(MemoryDisk::new(1 << 30));
    }

    /// A client that knows all servers, in their order. Gives its number.
    pub fn client(&mut self, config: ClientConfig) -> usize {
        self.client_of(&(0..self.servers.len()).collect::<Vec<_>>(), config)
    }

    /// A client that knows some of the servers.
    pub fn client_of(&mut self, servers: &[usize], config: ClientConfig) -> usize {
        let config = ClientConfig { address_count: servers.len(), ..config };
        self.clients.push(Side {
            core: ClientCore::new(config, self.now().instant),
            servers: servers.to_vec(),
            connection: None,
            messages: Vec::new(),
            answers: BTreeMap::new(),
            completed: Vec::new(),
            told: Vec::new(),
            ended: Vec::new(),
            logons: Vec::new(),
            settled: Vec::new(),
            refused: Vec::new(),
        });
        self.run();
        self.clients.len() - 1
    }

    /// The connection of a client breaks. The client may connect again when time passes or the
    /// network runs.
    pub fn cut(&mut self, client: usize) {
        let now = self.now();
        if let Some((server, connection)) = self.clients[client].connection.take() {
            if let Some(broker) = &mut self.servers[server].broker {
                broker.handle(now, Input::Disconnected { connection });
            }
            self.clients[client].core.handle_disconnected(now.instant);
        }
    }

    pub fn publish(&mut self, client: usize, topic: &str, data: &str) -> u64 {
        let message = message_of(topic, data, Sequence::Auto);
        self.clients[client].core.publish(&message).unwrap().unwrap()
    }

    /// Subscribes and expects the server to accept it; gives the number.
    pub fn subscribe(&mut self, client: usize, spec: SubscriptionSpec) -> u32 {
        let (number, command) = self.clients[client].core.subscribe(spec).unwrap();
        self.run();
        assert_eq!(self.clients[client].answers.remove(&command.0), Some(Ok(())));
        number
    }

    /// The data of the messages that a client received since the last call.
    pub fn take(&mut self, client: usize) -> Vec<String> {
        std::mem::take(&mut self.clients[client].messages).into_iter().map(|(_, data)| data).collect()
    }

    /// Moves time, and everything that happens meanwhile.
    pub fn pass(&mut self, duration: Duration) {
        let end = self.now_ns + duration.as_nanos() as u64;
        loop {
            self.run();
            let timers = self.clients.iter().filter_map(|side| side.core.next_timeout());
            let connects = self.clients.iter().filter_map(|side| Some(side.core.poll_connect()?.1));
            let brokers = self.servers.iter().filter_map(|server| server.broker.as_ref()?.next_timeout());
            let next = timers.chain(connects).chain(brokers).filter(|at| at.0 > self.now_ns).min();
            match next {
                Some(at) if at.0 <= end => self.now_ns = at.0,
                _ => break,
            }
        }
        self.now_ns = end;
        self.run();
    }

    /// Everything that happens at this moment.
    pub fn run(&mut self) {
        for _ in 0..10_000 {
            if !self.step() {
                return;
            }
        }
        panic!("it never becomes quiet");
    }

    /// One turn of every party. Returns whether anything happened.
    pub fn step(&mut self) -> bool {
        let mut is_busy = false;
        for client in 0..self.clients.len() {
            is_busy |= self.turn_of_client(client);
        }
        for server in 0..self.servers.len() {
            is_busy |= self.turn_of_server(server);
        }
        is_busy
    }

    /// The client sends what it has, and its user gets its events; whether there was any.
    pub fn turn_of_client(&mut self, client: usize) -> bool {
        let now = self.now();
        let side = &mut self.clients[client];
        let mut is_busy = false;
        if let Some((address, at)) = side.core.poll_connect()
            && at <= now.instant
        {
            is_busy = true;
            let server = side.servers[address];
            match &mut self.servers[server].broker {
                Some(broker) => {
                    self.last_connection += 1;
                    let connection = ConnectionId(self.last_connection);
                    broker.handle(
                        now,
                        Input::Connected {
                            connection,
                            peer: "test",
                            transport: TransportId::default(),
                            access: Access::Client,
                        },
                    );
                    side.connection = Some((server, connection));
                    side.core.handle_connected(now.instant);
                }
                None => side.core.handle_disconnected(now.instant),
            }
        }
        if let Some((server, connection)) = side.connection {
            let _ = side.core.handle_timeout(now.instant);
            let mut bytes = Vec::new();
            side.core.poll_transmit(now.instant, &mut bytes);
            if !bytes.is_empty()
                && let Some(broker) = &mut self.servers[server].broker
            {
                is_busy = true;
                broker.handle(now, Input::Received { connection, bytes: &bytes });
            }
        }
        while let Some(event) = side.core.poll_event() {
            is_busy = true;
            side.take(event);
        }
        is_busy
    }

    /// The server answers what it has received; whether anything happened.
    pub fn turn_of_server(&mut self, server: usize) -> bool {
        let now = self.now();
        let Some(broker) = &mut self.servers[server].broker else { return false };
        broker.finish_turn(now);
        let mut outputs = Vec::new();
        while let Some(output) = broker.poll_output() {
            outputs.push(output);
        }
        let persisted = broker.stats().persisted;
        if self.writes {
            broker.write_journal();
            broker.handle(now, Input::Flushed);
        }
        let mut is_busy = broker.stats().persisted != persisted;
        for output in outputs {
            match output {
                Output::Send { connection, bytes } => {
                    is_busy = true;
                    if let Some(side) = side_of(&mut self.clients, server, connection) {
                        side.core.handle_received(now.instant, bytes.into()).unwrap();
                    }
                }
                Output::SendShared { connection, bytes } => {
                    is_busy = true;
                    if let Some(side) = side_of(&mut self.clients, server, connection) {
                        side.core.handle_received(now.instant, bytes.to_vec().into()).unwrap();
                    }
                }
                Output::Close { connection } => {
                    is_busy = true;
                    if let Some(side) = side_of(&mut self.clients, server, connection) {
                        side.connection = None;
                        side.core.handle_disconnected(now.instant);
                    }
                }
                Output::Read(request) => {
                    is_busy = true;
                    broker.handle(now, Input::ReadDone(request.run()));
                }
                Output::Maintenance(job) => {
                    is_busy = true;
                    broker.handle(now, Input::MaintenanceDone(job.run()));
                }
                Output::AdminReply { .. }
                | Output::Authenticate { .. }
                | Output::OpenLink { .. }
                | Output::PauseReading { .. }
                | Output::ResumeReading { .. }
                | Output::Reload { .. }
                | Output::Statistics { .. }
                | Output::Signal(_)
                | Output::Log(_) => (),
            }
        }
        is_busy || broker.next_timeout().is_some_and(|at| at <= now.instant)
    }

    fn now(&self) -> Now {
        Now { instant: Instant(self.now_ns), wall: Timestamp(WALL_START_NS + self.now_ns) }
    }
}

fn side_of(clients: &mut [Side], server: usize, connection: ConnectionId) -> Option<&mut Side> {
    clients.iter_mut().find(|side| side.connection == Some((server, connection)))
}

impl Side {
    fn take(&mut self, event: Event) {
        match event {
            Event::Messages { subscription, messages } => {
                let text = |message: &Message| String::from_utf8(message.data().to_vec()).unwrap();
                self.messages.extend(messages.iter().map(|message| (subscription, text(message))));
            }
            Event::Answered { command, result } => {
                self.answers.insert(command.0, result);
            }
            Event::Completed { subscription, .. } => self.completed.push(subscription),
            Event::JsonReply { command, json } => self.told.push((command.0, json)),
            Event::Ended { subscription, failure } => self.ended.push((subscription, failure)),
            Event::Settled { receipt, outcome } => self.settled.push((receipt, outcome)),
            Event::PublishFailed { sequence, failure } => self.refused.push((sequence, failure)),
            Event::LoggedOn { publish_count, subscription_count } => {
                self.logons.push((publish_count, subscription_count));
            }
            _ => (),
        }
    }
}
