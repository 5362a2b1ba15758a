//! Worlds whose rights change at any moment: users publish, read, query and take messages, while
//! entries of entitlements and groups of users are taken away and given back, the logons of others
//! wait, connections are lost, and the server is killed.
//!
//! An auditor decides about each message with an own, simple reading of the entries. It checks:
//!
//! - From the moment of a change on, the server sends no message that the entries hide, and no
//!   hidden field. This counts when the server writes a frame, not when it arrives.
//! - A reader whose connection lasts gets every message that its entries show, and readers of the
//!   whole log, queries and workers get exactly those.
//! - The log has no publish that the entries refuse, and each one that was acknowledged. No publish
//!   that they allow is refused.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::Path;
use std::sync::Arc;

use quire_broker::{
    Access, AccessRules, Broker, BrokerConfig, ConnectionId, Entitlements, EntrySettings, Input, Output,
    QueueSettings, ReadRequest, RecordedTopic, Right, SowTopicSettings, TransactionLogConfig,
    TransportConfig, TransportId,
};
use quire_command::{
    AckKind, Acks, Bookmarks, Code, Command, Logon, Message, Publish, Query, Reply, Selection, Settle,
    Subscribe, put_bookmark,
};
use quire_expression::filter::FilterOptions;
use quire_journal::{AllTopics, Journal, Options, Position, RecordKind, Timestamp};
use quire_types::time::{Instant, Now};
use quire_types::{Delay, Headers, Verdict};
use quire_wire::{Decode, Encode, Inbox, VERSION};

use crate::disk::{Faults, SimulatedDisk};
use crate::random::Random;

/// A deliberate mistake, to prove that the auditor sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Canary {
    /// The server learns of changed entries some steps too late.
    LateChange,
    /// The server does not learn of one of the entries that grant a right.
    ForgottenGrant,
    /// The server accepts publishes by the entries of before.
    LateRefusal,
}

/// The events of histories.
#[derive(Clone, Copy, Debug, Default)]
pub struct Played {
    changes: u64,
    resets: u64,
    shown: u64,
    refused: u64,
    restarts: u64,
}

impl Played {
    /// Adds those of another history.
    pub fn add(&mut self, other: &Played) {
        self.changes += other.changes;
        self.resets += other.resets;
        self.shown += other.shown;
        self.refused += other.refused;
        self.restarts += other.restarts;
    }
}

impl std::fmt::Display for Played {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Played { changes, resets, shown, refused, restarts } = self;
        write!(
            f,
            "{changes} changes of rights, {resets} connections reset, {shown} messages shown, {refused} publishes refused, {restarts} restarts"
        )
    }
}

const STEPS: u64 = 250;
/// Lines of the history that a failure shows.
const HISTORY_LINES: usize = 40;
const CLIENTS_MAX: usize = 7;
const WALL_START_NS: u64 = 1_500_000_000_000_000_000;
const STEP_NS: u64 = 20_000_000;
/// Longer than a lease.
const LEASE_NS: u64 = 120_000_000_000;

const USERS: [&str; 4] = ["anna", "bob", "carl", "dora"];
const GROUPS: [&str; 2] = ["desk", "risk"];
const TOPICS: [&str; 5] = ["orders/a", "orders/b", "trades", "state", "work"];
const QUEUE: &str = "jobs";
const KEYS: u64 = 4;

/// The number of a message over all publishers.
type Value = u64;

/// Plays the history of a seed.
///
/// # Errors
/// A message was shown or withheld against the rights.
pub fn play(seed: u64, canary: Option<Canary>) -> Result<Played, String> {
    let mut world = World::new(seed, canary)?;
    let result = (0..STEPS).try_for_each(|_| world.step()).and_then(|()| world.peace());
    result.map(|()| world.played).map_err(|reason| {
        let history: Vec<_> = world.history.iter().map(String::as_str).collect();
        format!("{reason}\n{}\nentries: {:#?}", history.join("\n"), world.entries)
    })
}

struct Published {
    topic: &'static str,
    is_fx: bool,
    n: u64,
    /// Whether its user may publish it; `None`: that depends on the record that it replaces.
    is_allowed: Option<bool>,
    /// The filter of the user on the last-value topic.
    filter: Option<String>,
    outcome: Outcome,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Unknown,
    Persisted,
    Refused,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// An ordinary subscription.
    Live,
    /// A subscription from the beginning of the log.
    Log,
    Query,
    Worker,
}

struct Reading {
    kind: Kind,
    topic: &'static str,
    /// The number of messages when the server accepted it.
    accepted_at: Option<Value>,
    got: Vec<Value>,
}

struct Client {
    user: usize,
    inbox: Inbox,
    is_logged_on: bool,
    readings: BTreeMap<u32, Reading>,
    /// The values of its publishes, by sequence.
    sent: BTreeMap<u64, Value>,
    /// Messages that it holds, by bookmark.
    held: Vec<((u64, u64), Value)>,
    is_writable: bool,
}

struct World {
    random: Random,
    canary: Option<Canary>,
    ns: u64,
    disk: SimulatedDisk,
    broker: Option<Broker>,
    reads: VecDeque<ReadRequest>,
    /// The entries that are in force.
    entries: Vec<EntrySettings>,
    /// The groups of each user.
    groups: [Vec<&'static str>; USERS.len()],
    /// The entries that the server gets late, and at which step.
    late: Option<(u64, Arc<Entitlements>)>,
    steps: u64,
    clients: BTreeMap<u64, Client>,
    /// Logons that wait for their check.
    checks: Vec<u64>,
    last_connection: u64,
    published: Vec<Published>,
    /// Values whose acknowledgement by a worker was sent.
    settled: BTreeSet<Value>,
    /// The journal is written and read at once.
    is_calm: bool,
    played: Played,
    fault: Option<String>,
    /// The last changes and connections.
    history: VecDeque<String>,
}

/// Whether a list of names and patterns has a name.
fn has(list: &[String], name: &str) -> bool {
    list.iter().any(|each| each.strip_prefix('^').map_or(each == name, |begin| name.starts_with(begin)))
}

fn holds(filter: Option<&str>, published: &Published) -> bool {
    match filter {
        None => true,
        Some("/desk = 'FX'") => published.is_fx,
        Some("/n > 4") => published.n > 4,
        Some(other) => unreachable!("{other}"),
    }
}

fn draw_entry(random: &mut Random) -> EntrySettings {
    let mut one_of = |names: &[&str]| vec![names[random.below(names.len() as u64) as usize].to_owned()];
    let user = one_of(&USERS);
    let group = one_of(&GROUPS);
    let topic = one_of(&["^", "^", "^orders/", "orders/a", "trades", "state", "work", QUEUE]);
    let of = random.below(5);
    let rights = [Right::Read, Right::Replay, Right::Query, Right::Write];
    let mut listed: Vec<Right> = rights.into_iter().filter(|_| random.percent(75)).collect();
    if listed.is_empty() {
        listed.push(Right::Read);
    }
    let is_granted = random.percent(80);
    let reads = listed.iter().any(|right| *right != Right::Write);
    let filter = ["/desk = 'FX'", "/n > 4"][random.below(2) as usize];
    EntrySettings {
        user: if of < 2 { user } else { Vec::new() },
        group: if (1..4).contains(&of) { group } else { Vec::new() },
        topic,
        filter: (is_granted && random.percent(40)).then(|| filter.to_owned()),
        select: (is_granted && reads && random.percent(30)).then(|| "-/secret".to_owned()),
        allow: if is_granted { listed.clone() } else { Vec::new() },
        deny: if is_granted { Vec::new() } else { listed },
    }
}

fn compiled(entries: &[EntrySettings]) -> Result<Arc<Entitlements>, String> {
    Entitlements::compile(entries, &FilterOptions::default())
        .map_err(|error| format!("the entries {entries:?} are not accepted: {error:?}"))?
        .ok_or_else(|| "there is no entry".to_owned())
}

impl World {
    fn new(seed: u64, canary: Option<Canary>) -> Result<Self, String> {
        let mut random = Random::new(seed);
        let entries = (0..2 + random.below(5)).map(|_| draw_entry(&mut random)).collect();
        let faults = Faults { kept_percent: 50, ..Faults::default() };
        let mut world = World {
            disk: SimulatedDisk::new(random.number(), faults),
            random,
            canary,
            ns: 1_000_000_000,
            broker: None,
            reads: VecDeque::new(),
            entries,
            groups: [vec!["desk"], vec!["risk"], vec!["desk", "risk"], Vec::new()],
            late: None,
            steps: 0,
            clients: BTreeMap::new(),
            checks: Vec::new(),
            last_connection: 0,
            published: Vec::new(),
            settled: BTreeSet::new(),
            is_calm: false,
            played: Played::default(),
            fault: None,
            history: VecDeque::new(),
        };
        world.start()?;
        Ok(world)
    }

    fn now(&self) -> Now {
        Now { instant: Instant::from_ns(self.ns), wall: Timestamp::from_ns(WALL_START_NS + self.ns) }
    }

    fn start(&mut self) -> Result<(), String> {
        let queue = QueueSettings {
            name: QUEUE.into(),
            message_type: "json".into(),
            underlying_topic: Some("work".into()),
            ..QueueSettings::default()
        };
        let state = SowTopicSettings {
            name: "state".into(),
            message_type: "json".into(),
            key: vec!["/id".into()],
            ..SowTopicSettings::default()
        };
        let transaction_log = TransactionLogConfig {
            topics: vec![RecordedTopic::new("^", "json")],
            ..TransactionLogConfig::default()
        };
        let config = BrokerConfig {
            name: "quire".into(),
            transports: vec![TransportConfig { authenticates: true, ..TransportConfig::default() }],
            queues: vec![queue],
            sow_topics: vec![state],
            entitlements: self.known_entries(),
            transaction_log,
            ..BrokerConfig::default()
        };
        let options = Options { segment_size: 64 << 10, ..config.journal_options() };
        let (journal, _) =
            Journal::driven_by_hand(Arc::new(self.disk.clone()), Path::new("journal"), &options)
                .map_err(|error| format!("the journal does not open: {error}"))?;
        let mut broker =
            Broker::new(config, journal).map_err(|error| format!("the broker does not start: {error}"))?;
        let (mut pace, mut elapsed_ns) = (Random::new(self.random.number()), 0);
        broker.set_stopwatch(Box::new(move || {
            elapsed_ns += pace.below(200_000);
            Instant::from_ns(elapsed_ns)
        }));
        self.broker = Some(broker);
        Ok(())
    }

    /// The entries that the server learns of.
    fn known_entries(&mut self) -> Vec<EntrySettings> {
        let mut known = self.entries.clone();
        if self.canary == Some(Canary::ForgottenGrant) && known.len() > 1 {
            // A refused publish would be noticed before a message that is withheld.
            let is_of_reading =
                |entry: &EntrySettings| !entry.allow.is_empty() && !entry.allow.contains(&Right::Write);
            let grants: Vec<usize> = (0..known.len()).filter(|at| is_of_reading(&known[*at])).collect();
            if !grants.is_empty() {
                known.remove(grants[self.random.below(grants.len() as u64) as usize]);
            }
        }
        known
    }

    fn note(&mut self, event: &str) {
        if self.history.len() == HISTORY_LINES {
            self.history.pop_front();
        }
        self.history.push_back(format!("step {}: {event}", self.steps));
    }

    fn hand_in(&mut self, input: Input<'_>) {
        let now = self.now();
        if let Some(broker) = &mut self.broker {
            broker.handle(now, input);
        }
    }

    /// The entry that grants a right, by the entries in force.
    fn granted(&self, user: usize, right: Right, topic: &str) -> Option<&EntrySettings> {
        let groups = &self.groups[user];
        self.entries
            .iter()
            .filter(|entry| entry.user.is_empty() || has(&entry.user, USERS[user]))
            .filter(|entry| entry.group.is_empty() || groups.iter().any(|group| has(&entry.group, group)))
            .filter(|entry| has(&entry.topic, topic))
            .find(|entry| entry.allow.contains(&right) || entry.deny.contains(&right))
            .filter(|entry| entry.allow.contains(&right))
    }

    /// Whether a reader of a user sees a message, and whether its field `secret` is hidden.
    fn visible(&self, user: usize, kind: Kind, published: &Published) -> Option<bool> {
        let (rights, topic): (&[Right], _) = match kind {
            Kind::Live => (&[Right::Read], published.topic),
            Kind::Log => (&[Right::Read, Right::Replay], published.topic),
            Kind::Query => (&[Right::Query], published.topic),
            Kind::Worker => (&[Right::Read], QUEUE),
        };
        let mut is_hidden = false;
        for right in rights {
            let entry = self.granted(user, *right, topic)?;
            if !holds(entry.filter.as_deref(), published) {
                return None;
            }
            is_hidden |= entry.select.is_some();
        }
        Some(is_hidden)
    }

    fn step(&mut self) -> Result<(), String> {
        self.steps += 1;
        match self.random.below(100) {
            0..=13 if self.clients.len() < CLIENTS_MAX => self.connect(None),
            14..=27 => self.answer_check(),
            28..=55 => self.publish(),
            56..=72 => self.read(),
            73..=78 => self.settle_held(),
            79..=84 => self.change_entries()?,
            85..=86 => self.change_groups(),
            87..=88 => self.lose_connection(),
            89..=93 => self.toggle_writable(),
            94 if self.random.percent(40) => self.restart()?,
            _ => (),
        }
        if self.late.as_ref().is_some_and(|(at, _)| *at <= self.steps) {
            self.apply_late();
        }
        self.turn()
    }

    fn apply_late(&mut self) {
        if let Some((_, entitlements)) = self.late.take() {
            self.hand_in(Input::Entitle(rules_of(entitlements)));
        }
    }

    /// `user`: a number; `None`: any.
    fn connect(&mut self, user: Option<usize>) {
        let user = user.unwrap_or_else(|| self.random.below(USERS.len() as u64) as usize);
        self.last_connection += 1;
        let number = self.last_connection;
        self.clients.insert(
            number,
            Client {
                user,
                inbox: Inbox::new(1 << 24),
                is_logged_on: false,
                readings: BTreeMap::new(),
                sent: BTreeMap::new(),
                held: Vec::new(),
                is_writable: true,
            },
        );
        let (connection, transport) = (ConnectionId(number), TransportId::default());
        self.hand_in(Input::Connected { connection, peer: "test", transport, access: Access::Client });
        let name = format!("client-{number}");
        let user = Some(USERS[user]);
        self.send(
            number,
            &Command::Logon(Logon { version: VERSION, client_name: &name, user, ..Logon::default() }),
        );
    }

    fn send(&mut self, number: u64, command: &Command<'_>) {
        let mut bytes = Vec::new();
        command.encode(&mut bytes);
        self.hand_in(Input::Received { connection: ConnectionId(number), bytes: &bytes });
    }

    /// The check of a logon is done: with the groups that the user has now.
    fn answer_check(&mut self) {
        if self.checks.is_empty() {
            return;
        }
        let number = self.checks.remove(self.random.below(self.checks.len() as u64) as usize);
        let Some(client) = self.clients.get(&number) else { return };
        let (user, groups) = (USERS[client.user], self.groups[client.user].join("\n"));
        let connection = ConnectionId(number);
        self.note(&format!("{user} with the groups {groups:?} is logged on as {number}"));
        self.hand_in(Input::Authenticated { connection, user: Ok(user), groups: &groups });
    }

    fn one_of_the_logged_on(&mut self) -> Option<u64> {
        let on: Vec<u64> = self
            .clients
            .iter()
            .filter(|(_, client)| client.is_logged_on)
            .map(|(number, _)| *number)
            .collect();
        (!on.is_empty()).then(|| on[self.random.below(on.len() as u64) as usize])
    }

    fn publish(&mut self) {
        let Some(number) = self.one_of_the_logged_on() else { return };
        for _ in 0..1 + self.random.below(4) {
            let value = self.published.len() as Value;
            let topic = TOPICS[self.random.below(TOPICS.len() as u64) as usize];
            let (is_fx, n) = (self.random.percent(50), self.random.below(10));
            let user = self.clients[&number].user;
            let published =
                Published { topic, is_fx, n, is_allowed: None, filter: None, outcome: Outcome::Unknown };
            let entry = self.granted(user, Right::Write, topic);
            let matches = entry.is_some_and(|entry| holds(entry.filter.as_deref(), &published));
            let filter = entry.and_then(|entry| entry.filter.clone());
            let is_open = matches && topic == "state" && filter.is_some();
            let is_allowed = (!is_open).then_some(matches);
            self.published.push(Published { is_allowed, filter, ..published });
            let desk = if is_fx { "FX" } else { "EQ" };
            let key = value % KEYS;
            let data = format!(r#"{{"v":{value},"id":"{key}","desk":"{desk}","n":{n},"secret":"geheim"}}"#);
            let Some(client) = self.clients.get_mut(&number) else { return };
            let sequence = client.sent.len() as u64 + 1;
            client.sent.insert(sequence, value);
            self.send(number, &Command::Publish(publish(sequence, topic, &data)));
        }
    }

    fn read(&mut self) {
        let Some(number) = self.one_of_the_logged_on() else { return };
        let kind = [Kind::Live, Kind::Log, Kind::Query, Kind::Worker][self.random.below(4) as usize];
        let topics = ["^", "^orders/", "orders/a", "state", "trades"];
        let topic = topics[self.random.below(topics.len() as u64) as usize];
        self.begin(number, kind, topic);
    }

    fn begin(&mut self, number: u64, kind: Kind, topic: &'static str) {
        let topic = match kind {
            Kind::Query => "state",
            Kind::Worker => QUEUE,
            Kind::Live | Kind::Log => topic,
        };
        self.note(&format!("{number} begins {kind:?} of {topic}"));
        let Some(client) = self.clients.get_mut(&number) else { return };
        let subscription = client.readings.len() as u32 + 1;
        client.readings.insert(subscription, Reading { kind, topic, accepted_at: None, got: Vec::new() });
        let acks = Acks::PROCESSED;
        let command = match kind {
            Kind::Query => Command::Query(Query {
                command: subscription,
                acks,
                subscription,
                topic,
                wants_last_values: true,
                ..Query::default()
            }),
            _ => Command::Subscribe(Subscribe {
                command: subscription,
                acks,
                subscription,
                topic,
                bookmark: (kind == Kind::Log).then_some("0"),
                max_backlog: (kind == Kind::Worker).then_some(if self.is_calm { 10_000 } else { 3 }),
                ..Subscribe::default()
            }),
        };
        self.send(number, &command);
    }

    /// A worker acknowledges the messages that it holds.
    fn settle_held(&mut self) {
        if let Some(number) = self.one_of_the_logged_on() {
            self.settle_of(number);
        }
    }

    fn settle_of(&mut self, number: u64) {
        let Some(client) = self.clients.get_mut(&number) else { return };
        let held = std::mem::take(&mut client.held);
        if held.is_empty() {
            return;
        }
        let mut bytes = Vec::new();
        for ((publisher, sequence), value) in held {
            put_bookmark(&mut bytes, publisher, sequence);
            self.settled.insert(value);
        }
        let Some(bookmarks) = Bookmarks::from_bytes(&bytes) else { return };
        self.send(
            number,
            &Command::Settle(Settle {
                verdict: Verdict::Acknowledge,
                command: 0,
                acks: Acks::PROCESSED,
                queue: QUEUE,
                messages: Selection::Bookmarks(bookmarks),
                reason: "",
            }),
        );
    }

    /// An entry is added, removed, replaced or moved. It is in force at once.
    fn change_entries(&mut self) -> Result<(), String> {
        let count = self.entries.len() as u64;
        let at = self.random.below(count) as usize;
        match self.random.below(4) {
            0 if count > 1 => drop(self.entries.remove(at)),
            1 if count < 8 => self.entries.insert(at, draw_entry(&mut self.random)),
            2 => self.entries.swap(at, 0),
            _ => self.entries[at] = draw_entry(&mut self.random),
        }
        self.played.changes += 1;
        self.note(&format!("the entries change at {at}"));
        let known = self.known_entries();
        let entitlements = compiled(&known)?;
        let is_late = matches!(self.canary, Some(Canary::LateChange | Canary::LateRefusal));
        if is_late {
            let after = 2 + self.random.below(10);
            self.late = Some((self.steps + after, entitlements));
        } else {
            self.hand_in(Input::Entitle(rules_of(entitlements)));
        }
        Ok(())
    }

    /// A user gets other groups: its connections end.
    fn change_groups(&mut self) {
        let user = self.random.below(USERS.len() as u64) as usize;
        self.groups[user] = GROUPS.into_iter().filter(|_| self.random.percent(50)).collect();
        self.played.changes += 1;
        let own: Vec<u64> = self
            .clients
            .iter()
            .filter(|(number, client)| client.user == user && !self.checks.contains(number))
            .map(|(number, _)| *number)
            .collect();
        self.note(&format!("{} has the groups {:?}", USERS[user], self.groups[user]));
        for number in own {
            self.hand_in(Input::Reset { connection: ConnectionId(number), reason: "other groups" });
        }
    }

    fn lose_connection(&mut self) {
        let numbers: Vec<u64> = self.clients.keys().copied().collect();
        if !numbers.is_empty() {
            let number = numbers[self.random.below(numbers.len() as u64) as usize];
            self.disconnect(number);
        }
    }

    fn disconnect(&mut self, number: u64) {
        self.clients.remove(&number);
        self.checks.retain(|check| *check != number);
        self.hand_in(Input::Disconnected { connection: ConnectionId(number) });
    }

    fn toggle_writable(&mut self) {
        let Some(number) = self.one_of_the_logged_on() else { return };
        let Some(client) = self.clients.get_mut(&number) else { return };
        client.is_writable = !client.is_writable;
        let writable = client.is_writable;
        self.note(&format!("{number} is writable: {writable}"));
        self.hand_in(Input::Writable { connection: ConnectionId(number), writable });
    }

    fn restart(&mut self) -> Result<(), String> {
        if let Some(broker) = self.broker.take() {
            broker.abandon();
        }
        self.played.restarts += 1;
        self.note("the server is killed");
        if self.random.percent(50) {
            self.disk.cut_power();
        }
        self.clients.clear();
        self.checks.clear();
        self.reads.clear();
        // It begins with the entries in force.
        self.late = None;
        self.start()
    }

    /// Some time passes, and the server takes a turn.
    fn turn(&mut self) -> Result<(), String> {
        self.ns += self.random.below(STEP_NS);
        let is_due = |broker: &Broker, ns| broker.next_timeout().is_some_and(|at| at <= Instant::from_ns(ns));
        if self.broker.as_ref().is_some_and(|broker| is_due(broker, self.ns)) {
            self.hand_in(Input::Timeout);
        }
        let now = self.now();
        if let Some(broker) = &mut self.broker {
            broker.finish_turn(now);
        }
        while let Some(output) = self.broker.as_mut().and_then(Broker::poll_output) {
            self.carry_out(output);
        }
        if self.is_calm || self.random.percent(50) {
            if let Some(broker) = &mut self.broker {
                broker.write_journal();
            }
            self.hand_in(Input::Flushed);
        }
        while !self.reads.is_empty() && (self.is_calm || self.random.percent(40)) {
            if let Some(read) = self.reads.pop_front() {
                self.hand_in(Input::ReadDone(read.run()));
            }
        }
        self.fault.take().map_or(Ok(()), Err)
    }

    fn carry_out(&mut self, output: Output) {
        match output {
            Output::Send { connection, bytes } => self.sent(connection.0, &bytes),
            Output::SendShared { connection, bytes } => self.sent(connection.0, &bytes),
            Output::Close { connection } => {
                self.clients.remove(&connection.0);
                self.checks.retain(|check| *check != connection.0);
                self.hand_in(Input::Disconnected { connection });
            }
            Output::Authenticate { connection, .. } => self.checks.push(connection.0),
            Output::Read(request) => self.reads.push_back(request),
            Output::Maintenance(job) => self.hand_in(Input::MaintenanceDone(job.run())),
            _ => (),
        }
    }

    /// The server has written bytes to a connection.
    fn sent(&mut self, number: u64, bytes: &[u8]) {
        let Some(mut client) = self.clients.remove(&number) else { return };
        let mut rest = bytes;
        let mut inbox = std::mem::replace(&mut client.inbox, Inbox::new(0));
        while let Ok(Some(frame)) = inbox.next(&mut rest) {
            let Ok(reply) = Reply::decode(frame) else {
                self.fault.get_or_insert("the server sent a frame that cannot be read".to_owned());
                break;
            };
            self.heard(&mut client, &reply);
        }
        client.inbox = inbox;
        self.clients.insert(number, client);
    }

    fn heard(&mut self, client: &mut Client, reply: &Reply<'_>) {
        match reply {
            Reply::LoggedOn(_) => client.is_logged_on = true,
            Reply::Error { code, .. } => {
                client.is_logged_on = false;
                self.played.resets += u64::from(*code == Code::EntitlementReset);
            }
            Reply::Ack(ack) if ack.kind == AckKind::Processed && ack.code == Code::Ok => {
                if let Some(reading) = client.readings.get_mut(&ack.command) {
                    reading.accepted_at.get_or_insert(self.published.len() as Value);
                }
            }
            Reply::Persisted { sequence } => {
                for (_, value) in client.sent.range(..=*sequence) {
                    let published = &mut self.published[*value as usize];
                    if published.outcome == Outcome::Unknown {
                        published.outcome = Outcome::Persisted;
                    }
                }
            }
            Reply::PublishFailed { sequence, code, .. } => self.publish_failed(client, *sequence, *code),
            Reply::Message(message) => self.shown(client, message),
            _ => (),
        }
    }

    fn publish_failed(&mut self, client: &Client, sequence: u64, code: Code) {
        let Some(value) = client.sent.get(&sequence) else { return };
        let published = &mut self.published[*value as usize];
        published.outcome = Outcome::Refused;
        self.played.refused += 1;
        if published.is_allowed == Some(true) || code != Code::NotEntitled {
            let user = USERS[client.user];
            let reason = format!("message {value} of {user} on {} was refused: {code}", published.topic);
            self.fault.get_or_insert(reason);
        }
    }

    /// The server has sent a message: the entries in force must show it.
    fn shown(&mut self, client: &mut Client, message: &Message<'_>) {
        self.played.shown += 1;
        let user = USERS[client.user];
        let Some(reading) = client.readings.get_mut(&message.subscription) else { return };
        let data = std::str::from_utf8(message.data).unwrap_or("");
        let value = data.split_once(r#""v":"#).and_then(|(_, rest)| {
            let end = rest.find(|c: char| !c.is_ascii_digit())?;
            rest[..end].parse::<Value>().ok()
        });
        let Some(value) = value.filter(|value| (*value as usize) < self.published.len()) else {
            self.fault.get_or_insert(format!("{user} received {data:?}, which nobody published"));
            return;
        };
        // A pattern also takes messages of the queue.
        let kind = if message.queued.is_some() { Kind::Worker } else { reading.kind };
        match message.bookmark {
            Some(bookmark) if kind == Kind::Worker => client.held.push((bookmark, value)),
            _ => reading.got.push(value),
        }
        let published = &self.published[value as usize];
        let fault = match self.visible(client.user, kind, published) {
            None => Some("without the right"),
            Some(is_hidden) if is_hidden == data.contains("secret") => Some("with other fields than its own"),
            Some(_) => None,
        };
        if let Some(fault) = fault {
            let topic = published.topic;
            self.fault
                .get_or_insert(format!("{user} received message {value} of {topic} ({kind:?}) {fault}"));
        }
    }

    /// Nothing changes any more. Everything that the entries show must arrive.
    fn peace(&mut self) -> Result<(), String> {
        self.apply_late();
        self.is_calm = true;
        self.rest()?;
        let logged = self.logged()?;
        self.judge_publishes(&logged)?;
        for client in self.clients.values().filter(|client| client.is_logged_on) {
            self.judge_readings(client, &logged)?;
        }
        let numbers: Vec<u64> = self.clients.keys().copied().collect();
        numbers.into_iter().for_each(|number| self.disconnect(number));
        // Leases of connections before a restart end.
        self.ns += LEASE_NS;
        self.rest()?;
        let mut taken = BTreeSet::new();
        for (user, name) in USERS.into_iter().enumerate() {
            self.connect(Some(user));
            self.rest()?;
            let number = self.last_connection;
            self.begin(number, Kind::Log, "^");
            self.begin(number, Kind::Query, "state");
            self.begin(number, Kind::Worker, QUEUE);
            self.rest()?;
            let Some(client) = self.clients.get(&number) else {
                return Err(format!("{name} cannot log on"));
            };
            self.judge_readings(client, &logged)?;
            self.judge_query(client, &logged)?;
            taken.extend(client.held.iter().map(|(_, value)| *value));
            self.settle_of(number);
            self.rest()?;
            self.disconnect(number);
        }
        let of_queue = logged.iter().filter(|value| self.published[**value as usize].topic == "work");
        for value in of_queue.filter(|value| !self.settled.contains(value)) {
            let published = &self.published[*value as usize];
            let user = (0..USERS.len()).find(|user| self.visible(*user, Kind::Worker, published).is_some());
            if let Some(user) = user.filter(|_| !taken.contains(value)) {
                return Err(format!("no worker got message {value}, which {} may take", USERS[user]));
            }
        }
        Ok(())
    }

    /// Turns until nothing happens.
    fn rest(&mut self) -> Result<(), String> {
        for _ in 0..40 {
            while !self.checks.is_empty() {
                self.answer_check();
            }
            let stalled: Vec<u64> = self
                .clients
                .iter()
                .filter(|(_, client)| !client.is_writable)
                .map(|(number, _)| *number)
                .collect();
            for number in stalled {
                if let Some(client) = self.clients.get_mut(&number) {
                    client.is_writable = true;
                }
                self.hand_in(Input::Writable { connection: ConnectionId(number), writable: true });
            }
            self.turn()?;
        }
        Ok(())
    }

    /// The messages of the log, in their order.
    fn logged(&self) -> Result<Vec<Value>, String> {
        let broker = self.broker.as_ref().ok_or("no server is left")?;
        let reader = broker.journal().reader();
        let mut cursor = reader.cursor(Position::new(0));
        let mut found = Vec::new();
        while let Some(batch) = cursor
            .next(reader.persisted(), &AllTopics)
            .map_err(|error| format!("the log cannot be read: {error}"))?
        {
            for record in batch.records() {
                let data = std::str::from_utf8(record.data).unwrap_or("");
                if record.kind == RecordKind::Publish
                    && let Some((_, rest)) = data.split_once(r#""v":"#)
                {
                    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
                    found.extend(rest[..end].parse::<Value>());
                }
            }
        }
        Ok(found)
    }

    fn judge_publishes(&self, logged: &[Value]) -> Result<(), String> {
        let mut records: BTreeMap<u64, Value> = BTreeMap::new();
        for value in logged {
            let published = &self.published[*value as usize];
            let topic = published.topic;
            if published.outcome == Outcome::Refused {
                return Err(format!("message {value} of {topic} was refused, and is in the log"));
            }
            if published.is_allowed == Some(false) {
                return Err(format!("message {value} of {topic} is in the log without the right"));
            }
            if topic == "state" {
                let replaced = records.insert(value % KEYS, *value);
                let matches = |replaced: &Value| {
                    holds(published.filter.as_deref(), &self.published[*replaced as usize])
                };
                if let Some(replaced) = replaced.filter(|replaced| !matches(replaced)) {
                    return Err(format!(
                        "message {value} replaced the record of {replaced} without the right"
                    ));
                }
            }
        }
        let logged: BTreeSet<&Value> = logged.iter().collect();
        let lost = (0..self.published.len() as Value).find(|value| {
            self.published[*value as usize].outcome == Outcome::Persisted && !logged.contains(value)
        });
        lost.map_or(Ok(()), |value| Err(format!("message {value} was acknowledged, and is not in the log")))
    }

    /// The subscriptions of a connection that lasts.
    fn judge_readings(&self, client: &Client, logged: &[Value]) -> Result<(), String> {
        for reading in client.readings.values() {
            let Some(accepted_at) = reading.accepted_at else { continue };
            let shows = |value: &&Value| {
                let published = &self.published[**value as usize];
                has(&[reading.topic.to_owned()], published.topic)
                    && self.visible(client.user, reading.kind, published).is_some()
            };
            let (expected, got): (Vec<Value>, Vec<Value>) = match reading.kind {
                Kind::Log => (logged.iter().filter(shows).copied().collect(), reading.got.clone()),
                Kind::Live => {
                    let is_later = |value: &&Value| **value >= accepted_at;
                    let got = reading.got.iter().filter(is_later).copied().collect();
                    (logged.iter().filter(is_later).filter(shows).copied().collect(), got)
                }
                Kind::Query | Kind::Worker => continue,
            };
            if expected != got {
                let missing: Vec<_> = expected.iter().filter(|value| !got.contains(value)).collect();
                let (user, kind, topic) = (USERS[client.user], reading.kind, reading.topic);
                return Err(format!(
                    "{user} ({kind:?} of {topic}) did not get {missing:?}, or in another order"
                ));
            }
        }
        Ok(())
    }

    fn judge_query(&self, client: &Client, logged: &[Value]) -> Result<(), String> {
        let Some(reading) = client.readings.values().find(|reading| reading.kind == Kind::Query) else {
            return Ok(());
        };
        let mut records: BTreeMap<u64, Value> = BTreeMap::new();
        for value in logged.iter().filter(|value| self.published[**value as usize].topic == "state") {
            records.insert(value % KEYS, *value);
        }
        let shows = |value: &Value| {
            self.visible(client.user, Kind::Query, &self.published[*value as usize]).is_some()
        };
        let expected: BTreeSet<Value> = records.into_values().filter(shows).collect();
        let got: BTreeSet<Value> = reading.got.iter().copied().collect();
        if expected != got {
            let user = USERS[client.user];
            return Err(format!("a query of {user} found {got:?}, and the user may see {expected:?}"));
        }
        Ok(())
    }
}

fn publish<'a>(sequence: u64, topic: &'a str, data: &'a str) -> Publish<'a> {
    Publish {
        sequence,
        expiration_s: None,
        topic: topic.as_bytes(),
        correlation_id: b"",
        headers: Headers::NONE,
        delay: Delay::None,
        key: b"",
        is_delta: false,
        is_update: false,
        is_numbered: false,
        data: data.as_bytes(),
    }
}

/// The rules of a reload that changes the entitlements only.
fn rules_of(entitlements: Arc<Entitlements>) -> AccessRules {
    AccessRules {
        entitlements: Some(entitlements),
        user_limits: Arc::default(),
        authenticates: vec![true],
        authenticates_links: false,
    }
}

#[cfg(test)]
mod tests {
    use super::{Canary, play};

    #[test]
    fn no_message_is_shown_or_withheld_against_the_rights() {
        for seed in 0..60 {
            if let Err(reason) = play(seed, None) {
                panic!("seed {seed}: {reason}");
            }
        }
    }

    #[test]
    fn each_planted_mistake_is_found() {
        for (canary, text) in [
            (Canary::LateChange, "without the right"),
            (Canary::ForgottenGrant, "did not get"),
            (Canary::LateRefusal, "in the log without the right"),
        ] {
            let found = (0..200).filter_map(|seed| play(seed, Some(canary)).err());
            assert!(found.filter(|reason| reason.contains(text)).take(3).count() == 3, "{canary:?}");
        }
    }
}
