//! The process of a client that fails over between instances: a publisher with its publish store, a subscriber with its bookmark store, or
//! a reader of the last-value topic at the end.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use quire_client::{
    ClientConfig, ClientCore, ConnectionState, DeleteSpec, Event, Failure, NewMessage, PublishError,
    PublishLog, QuerySpec, Reconnect, ResumePosition, SubscriptionSpec,
};
use quire_command::{Code, Reply, SubscribeOptions};
use quire_types::time::{Instant, Now};
use quire_wire::{Decode, Inbox};

use super::SECOND_NS;
use super::auditor::{Action, Auditor, KEYS, value_of};
use super::instance::Instance;
use super::network::{Arrival, Network, Site};
use super::topology::{PARTS, Topology, VALUES, name_of};
use crate::random::Random;

pub(super) struct Client {
    number: usize,
    name: String,
    program: Program,
    core: ClientCore,
    /// The instances in the order in which it tries them.
    instances: Vec<usize>,
    /// The connection and its instance.
    connection: Option<(u64, usize)>,
    /// Reads the frames of a connection up to the answer to the logon.
    greeting: Option<Inbox>,
    /// Instances that it cannot reach, and until when.
    away: BTreeMap<usize, u64>,
    pub failover_count: u64,
    last_instance: Option<usize>,
}

enum Program {
    Publish { number: usize, store: Store },
    Subscribe { stream: usize, is_durable: bool, subscription: Option<u32>, place: Option<ResumePosition> },
    Query { running: Option<u32>, rows: BTreeMap<u64, u64>, found: Option<BTreeMap<u64, u64>> },
}

/// The file of a publish store: it survives the process.
#[derive(Clone, Default)]
struct Store(Arc<Mutex<Stored>>);

#[derive(Default)]
struct Stored {
    frames: VecDeque<(u64, Vec<u8>)>,
    last_sequence: u64,
}

impl Store {
    fn stored(&self) -> MutexGuard<'_, Stored> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PublishLog for Store {
    fn has_room(&self, _: usize) -> bool {
        true
    }

    fn frame_size_max(&self) -> usize {
        1 << 20
    }

    fn append(&mut self, sequence: u64, frame: &[u8]) -> Result<(), Failure> {
        let mut stored = self.stored();
        stored.frames.push_back((sequence, frame.to_vec()));
        stored.last_sequence = stored.last_sequence.max(sequence);
        Ok(())
    }

    fn persisted(&mut self, sequence: u64) {
        let mut stored = self.stored();
        while stored.frames.pop_front_if(|(first, _)| *first <= sequence).is_some() {}
    }
}

impl Client {
    /// `instances` are those that it may use, in the order in which it tries them.
    pub fn publisher(number: usize, name: String, instances: Vec<usize>, random: &mut Random) -> Self {
        let program = Program::Publish { number, store: Store::default() };
        Client::new(number, name, program, instances, random)
    }

    pub fn subscriber(
        number: usize,
        stream: usize,
        name: String,
        instances: Vec<usize>,
        random: &mut Random,
    ) -> Self {
        let is_durable = random.percent(50);
        let program = Program::Subscribe { stream, is_durable, subscription: None, place: None };
        Client::new(number, name, program, instances, random)
    }

    /// Asks an instance for its last values, again and again.
    pub fn querier(number: usize, instance: usize, random: &mut Random) -> Self {
        let program = Program::Query { running: None, rows: BTreeMap::new(), found: None };
        Client::new(number, format!("querier-{instance}"), program, vec![instance], random)
    }

    fn new(
        number: usize,
        name: String,
        program: Program,
        instances: Vec<usize>,
        random: &mut Random,
    ) -> Self {
        let core = ClientCore::new(config(&name, instances.len(), random), Instant::default());
        let mut client = Client {
            number,
            name,
            program,
            core,
            instances,
            connection: None,
            greeting: None,
            away: BTreeMap::new(),
            failover_count: 0,
            last_instance: None,
        };
        client.open_stores();
        client
    }

    fn site(&self) -> Site {
        Site::Client(self.number)
    }

    fn open_stores(&mut self) {
        if let Program::Publish { store, .. } = &self.program {
            let (frames, last) = {
                let stored = store.stored();
                (stored.frames.iter().cloned().collect::<Vec<_>>(), stored.last_sequence)
            };
            self.core.keep_publishes_in(Box::new(store.clone()), &frames, last);
        }
    }

    /// The process ends and is started again. Its stores survive.
    pub fn restart(&mut self, now: Now, network: &mut Network, random: &mut Random) {
        network.site_is_gone(self.site(), now.instant.as_ns(), false);
        if let Program::Subscribe { subscription, place, .. } = &mut self.program {
            *place =
                subscription.and_then(|number| self.core.resume_position(number).cloned()).or(place.take());
            *subscription = None;
        }
        self.core = ClientCore::new(config(&self.name, self.instances.len(), random), now.instant);
        self.connection = None;
        self.open_stores();
    }

    /// It loses its connection, and cannot reach the instance for a while.
    pub fn lose_instance(&mut self, now: Now, network: &mut Network, random: &mut Random) {
        let Some((connection, instance)) = self.connection.take() else { return };
        let now_ns = now.instant.as_ns();
        self.away.insert(instance, now_ns + random.below(15 * SECOND_NS));
        network.close(connection, self.site(), now_ns);
        self.core.handle_disconnected(now.instant);
    }

    /// Nothing is out of reach any more.
    pub fn settle(&mut self) {
        self.away.clear();
    }

    /// Whether nothing of it waits for a server.
    pub fn is_done(&self) -> bool {
        self.core.unpersisted_count() == 0
    }

    /// A line for the history of a failure.
    pub fn describe(&self) -> String {
        let (state, count) = (self.core.state(), self.core.unpersisted_count());
        let instance = self.connection.map(|(_, instance)| name_of(instance));
        format!("{}: {state:?} at {instance:?}, {count} publishes are not persisted", self.name)
    }

    /// The last values of an instance; `None`: it has not answered.
    pub fn found(&self) -> Option<(usize, &BTreeMap<u64, u64>)> {
        match &self.program {
            Program::Query { found: Some(found), .. } => Some((self.instances[0], found)),
            _ => None,
        }
    }

    pub fn is_querier(&self) -> bool {
        matches!(self.program, Program::Query { .. })
    }

    /// One step of the program.
    pub fn act(
        &mut self,
        now: Now,
        network: &mut Network,
        random: &mut Random,
        auditor: &mut Auditor,
        is_settling: bool,
    ) {
        if let ConnectionState::Closed(_) = self.core.state() {
            self.restart(now, network, random);
        }
        let is_connected = *self.core.state() == ConnectionState::Connected;
        match &mut self.program {
            // A publisher continues without a connection: its store keeps the messages.
            Program::Publish { number, .. } if !is_settling && (is_connected || random.percent(10)) => {
                publish(*number, &mut self.core, now, random, auditor);
            }
            Program::Subscribe { subscription, place, is_durable, .. }
                if is_connected && subscription.is_none() =>
            {
                let durable = SubscribeOptions::FULLY_DURABLE;
                let spec = SubscriptionSpec {
                    bookmark: Some("0".into()),
                    resume_position: place.clone(),
                    options: if *is_durable { durable } else { SubscribeOptions::default() },
                    ..SubscriptionSpec::new("^orders")
                };
                *subscription = self.core.subscribe(spec).ok().map(|(number, _)| number);
            }
            Program::Query { running: running @ None, rows, .. } if is_connected => {
                let spec = QuerySpec { topic: VALUES.into(), ..QuerySpec::default() };
                rows.clear();
                *running = self.core.query(&spec).ok().map(|(number, _)| number);
            }
            _ => (),
        }
    }

    pub fn next_due(&self) -> Option<u64> {
        match self.connection {
            Some(_) => self.core.next_timeout().map(|at| at.as_ns()),
            None => self.core.poll_connect().map(|(_, at)| at.as_ns()),
        }
    }

    /// Moves bytes and events; whether there were any.
    ///
    /// # Errors
    /// The server violates the protocol.
    pub fn turn(
        &mut self,
        now: Now,
        network: &mut Network,
        instances: &[Instance],
        topology: &Topology,
        auditor: &mut Auditor,
    ) -> Result<bool, String> {
        let now_ns = now.instant.as_ns();
        let mut is_busy = false;
        if self.connection.is_none()
            && let Some((address, at)) = self.core.poll_connect()
            && at <= now.instant
        {
            is_busy = true;
            let instance = self.instances[address];
            let is_away = self.away.get(&instance).is_some_and(|until| *until > now_ns);
            if instances[instance].is_running()
                && !is_away
                && network.is_reachable(self.site(), Site::Instance(instance))
            {
                let connection = network.connect(self.site(), Site::Instance(instance), now_ns);
                self.connection = Some((connection, instance));
                self.greeting = Some(Inbox::new(1 << 20));
                self.core.handle_connected(now.instant);
            } else {
                self.core.handle_disconnected(now.instant);
            }
        }
        let mut has_ended = false;
        for (number, arrival) in network.arrivals(self.site(), now_ns) {
            is_busy = true;
            let is_current = self.connection.is_some_and(|(connection, _)| connection == number);
            match arrival {
                Arrival::Bytes(bytes) if is_current => self.receive(now, &bytes, auditor)?,
                Arrival::Ended if is_current => has_ended = true,
                _ => (),
            }
            self.take_events(instances, topology, auditor);
        }
        let Some((connection, _)) = self.connection else { return Ok(is_busy) };
        let is_silent = self.core.handle_timeout(now.instant);
        let mut bytes = Vec::new();
        self.core.poll_transmit(now.instant, &mut bytes);
        if !bytes.is_empty() {
            is_busy = true;
            network.send(connection, self.site(), now_ns, &bytes);
        }
        self.take_events(instances, topology, auditor);
        if has_ended || is_silent || self.core.wants_close() {
            is_busy = true;
            network.close(connection, self.site(), now_ns);
            self.connection = None;
            self.core.handle_disconnected(now.instant);
            self.take_events(instances, topology, auditor);
        }
        Ok(is_busy)
    }

    fn receive(&mut self, now: Now, bytes: &[u8], auditor: &mut Auditor) -> Result<(), String> {
        self.greet(now, bytes, auditor)?;
        let received = self.core.handle_received(now.instant, bytes.to_vec().into());
        received.map_err(|error| format!("{} does not understand the server: {error}", self.name))
    }

    /// Looks for the answer to the logon, which names the highest sequence that the instance has.
    fn greet(&mut self, now: Now, bytes: &[u8], auditor: &mut Auditor) -> Result<(), String> {
        let Some(inbox) = &mut self.greeting else { return Ok(()) };
        let mut rest = bytes;
        let wrong = |error| format!("{} does not understand the server: {error}", self.name);
        while let Some(frame) = inbox.next(&mut rest).map_err(wrong)? {
            let Reply::LoggedOn(logged_on) = Reply::decode(frame).map_err(wrong)? else { continue };
            let instance = self.connection.map_or(0, |(_, instance)| instance);
            if self.last_instance.replace(instance).is_some_and(|last| last != instance) {
                self.failover_count += 1;
            }
            if let Program::Subscribe { stream, .. } = &self.program {
                auditor.arrived(*stream, instance, now.instant.as_ns());
            }
            if let Program::Publish { number, .. } = &self.program {
                auditor.logged_on(*number, instance, logged_on.highest_sequence, now.instant.as_ns());
            }
            self.greeting = None;
            break;
        }
        Ok(())
    }

    fn take_events(&mut self, instances: &[Instance], topology: &Topology, auditor: &mut Auditor) {
        let instance = self.connection.map_or(0, |(_, instance)| instance);
        while let Some(event) = self.core.poll_event() {
            match (&mut self.program, event) {
                (Program::Publish { number, .. }, Event::Persisted) => {
                    let waits =
                        |since_ns| move |by: usize, name: &str| instances[by].has_waited_for(name, since_ns);
                    let counted = |since_ns| topology.counted(instance, &waits(since_ns));
                    let directly = |since_ns| match topology.reaches_all(instance) {
                        true => Some(topology.counted_directly(instance, &waits(since_ns))),
                        false => None,
                    };
                    auditor.acknowledged(*number, self.core.persisted(), instance, &counted, &directly);
                }
                (Program::Publish { .. }, Event::PublishFailed { sequence, failure })
                    if failure.code != Code::StorageFailed =>
                {
                    auditor.fail(format!("{}: publish {sequence} failed: {failure}", self.name));
                }
                (Program::Publish { .. }, Event::Overtaken { own, persisted, highest }) => {
                    auditor.fail(format!(
                        "{} is overtaken: {own} own, {persisted} persisted, {highest} there",
                        self.name
                    ));
                }
                (
                    Program::Subscribe { stream, subscription, .. },
                    Event::Messages { subscription: number, messages },
                ) if Some(number) == *subscription => {
                    for message in &messages {
                        auditor.received(*stream, instance, message.bookmark(), message.data());
                    }
                }
                (Program::Subscribe { stream, .. }, Event::BookmarkMissing { .. }) => {
                    auditor.bookmark_missing(*stream, instance);
                }
                (
                    Program::Subscribe { subscription, place, .. },
                    Event::Ended { subscription: number, .. },
                ) if Some(number) == *subscription => {
                    *place = self.core.resume_position(number).cloned().or(place.take());
                    *subscription = None;
                }
                (Program::Query { running, rows, .. }, Event::Messages { subscription, messages })
                    if Some(subscription) == *running =>
                {
                    for message in &messages {
                        if let Some((key, value)) = key_of(message.data()).zip(value_of(message.data())) {
                            rows.insert(key, value);
                        }
                    }
                }
                (Program::Query { running, rows, found }, Event::Completed { subscription, .. })
                    if Some(subscription) == *running =>
                {
                    *found = Some(std::mem::take(rows));
                }
                (Program::Query { running, .. }, Event::Ended { subscription, .. })
                    if Some(subscription) == *running =>
                {
                    *running = None;
                }
                _ => (),
            }
        }
    }
}

/// Publishes some messages, and deletes records.
fn publish(number: usize, core: &mut ClientCore, now: Now, random: &mut Random, auditor: &mut Auditor) {
    let now_ns = now.instant.as_ns();
    for _ in 0..random.below(4) {
        let key = number as u64 * KEYS + random.below(KEYS);
        if random.percent(8) {
            let filter = format!("/k = {key}");
            let spec = DeleteSpec { topic: VALUES, filter: Some(&filter), ..DeleteSpec::default() };
            match core.delete(&spec) {
                Ok((sequence, _)) => auditor.taken(number, sequence, Action::Delete { key }, now_ns),
                Err(_) => return,
            }
            continue;
        }
        let value = auditor.next_value();
        let size = if random.percent(5) { random.below(6_000) } else { random.below(60) };
        let pad = "x".repeat(size as usize);
        let is_sent = random.percent(50);
        let data = format!(r#"{{"v":{value},"k":{key},"sent":{is_sent},"pad":"{pad}"}}"#);
        let (topic, action) = match random.below(12) {
            0..4 => (VALUES, Action::Value { key }),
            4..7 => ("orders/a", Action::Order),
            7..10 => ("orders/b", Action::Order),
            _ => (PARTS, Action::Part { is_sent }),
        };
        match core.publish(&NewMessage::new(topic, data.as_bytes())) {
            Ok(Some(sequence)) => auditor.taken(number, sequence, action, now_ns),
            Ok(None) | Err(PublishError::Full { .. } | PublishError::Refused(_)) => return,
        }
    }
}

fn key_of(data: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(data).ok()?;
    text.split_once(r#""k":"#)?.1.split_once(',')?.0.parse().ok()
}

fn config(name: &str, address_count: usize, random: &mut Random) -> ClientConfig {
    ClientConfig {
        name: name.into(),
        user: None,
        password: None,
        heartbeat: Some(Duration::from_secs(1)),
        ack_interval: Duration::from_millis(random.below(20)),
        reconnect: Reconnect {
            initial_delay: Duration::from_millis(20),
            maximum_delay: Duration::from_secs(1),
            ..Reconnect::default()
        },
        address_count,
        publish_store_size_max: 32 << 10,
        ack_batch_size: 1,
        ack_timeout: Duration::from_millis(10),
        incarnation: random.number(),
    }
}
