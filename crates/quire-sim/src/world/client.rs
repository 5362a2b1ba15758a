//! A client's process: the client core, a connection, and a program that publishes or reads.

use std::time::Duration;

use quire_broker::ConnectionId;
use quire_client::{
    ClientConfig, ClientCore, CommandId, ConnectionState, Event, NewMessage, PublishError, Reconnect,
    SubscriptionSpec,
};
use quire_types::time::{Instant, Now};

use super::auditor::{Auditor, Condition, Start, StreamId, Value, Want};
use super::delays::new_delay;
use super::network::Network;
use super::server::Server;
use super::worker::Worker;
use super::{jobs, last_values, replays};
use crate::random::Random;

/// The longest time for which a client that uses last-value topics reads nothing.
const SLOWNESS_NS: u64 = 400_000_000;

pub(super) struct Client {
    name: String,
    program: Program,
    core: ClientCore,
    connection: Option<ConnectionId>,
    /// No new work is begun.
    is_settling: bool,
    /// Reads nothing before this time.
    reads_from: u64,
}

enum Program {
    Publish(Publisher),
    Read(Reader),
    Work(Worker),
    LastValues(last_values::Program),
    Jobs(jobs::Program),
    Replays(replays::Program),
}

#[derive(Default)]
struct Publisher {
    number: usize,
    /// The messages that this process has published, by sequence.
    sent: Vec<(u64, Value)>,
    /// How many of them are persisted.
    persisted: usize,
}

struct Reader {
    want: Want,
    start: Start,
    stream: Option<StreamId>,
    /// Where the next subscription begins; of a process that keeps its bookmarks.
    resume: Option<String>,
    subscription: Option<u32>,
    entering: Option<CommandId>,
    is_paused: bool,
    /// Stays paused for seconds, so that whole journal files fill after its position.
    lingers: bool,
    is_witness: bool,
}

impl Client {
    pub fn worker(number: u64, random: &mut Random, now: Now) -> Self {
        let worker = Worker::new(number % 3 == 2, now.instant);
        Client::new(format!("worker-{number}"), Program::Work(worker), random, now)
    }

    pub fn publisher(number: u64, random: &mut Random, now: Now) -> Self {
        let program = Program::Publish(Publisher { number: number as usize, ..Publisher::default() });
        Client::new(format!("publisher-{number}"), program, random, now)
    }

    pub fn reader(number: u64, random: &mut Random, now: Now) -> Self {
        let start = [Start::Epoch, Start::Epoch, Start::Now, Start::Unrecorded][random.below(4) as usize];
        let reader = Reader::new(Want::draw(random), start);
        Client::new(format!("reader-{number}"), Program::Read(reader), random, now)
    }

    /// A client that uses last-value topics.
    pub fn last_values(name: String, program: last_values::Program, random: &mut Random, now: Now) -> Self {
        Client::new(name, Program::LastValues(program), random, now)
    }

    /// A client that publishes or works on jobs.
    pub fn jobs(name: String, program: jobs::Program, random: &mut Random, now: Now) -> Self {
        Client::new(name, Program::Jobs(program), random, now)
    }

    /// A client with combined replays.
    pub fn replays(name: String, program: replays::Program, random: &mut Random, now: Now) -> Self {
        Client::new(name, Program::Replays(program), random, now)
    }

    /// The reader stays paused for seconds.
    pub fn linger(&mut self) {
        if let Program::Read(reader) = &mut self.program {
            reader.lingers = true;
        }
    }

    /// Reads the whole log, at the end.
    pub fn witness_of_all(random: &mut Random, now: Now) -> Self {
        let want = Want { topic: None, condition: Condition::All };
        let reader = Reader { is_witness: true, ..Reader::new(want, Start::Epoch) };
        let mut client = Client::new("witness".into(), Program::Read(reader), random, now);
        client.is_settling = true;
        client
    }

    fn new(name: String, program: Program, random: &mut Random, now: Now) -> Self {
        let core = ClientCore::new(config(&name, random), now.instant);
        Client { name, program, core, connection: None, is_settling: false, reads_from: 0 }
    }

    /// The stream of the reader of everything.
    pub fn witness(&self) -> Option<StreamId> {
        match &self.program {
            Program::Read(reader) if reader.is_witness => reader.stream,
            _ => None,
        }
    }

    /// The process is killed and started again. Only its name survives, and of some readers the bookmark.
    /// `drained`: see [`Client::drained`].
    pub fn restart(&mut self, now: Now, drained: Instant, random: &mut Random, auditor: &mut Auditor) {
        match &mut self.program {
            Program::Publish(publisher) => {
                publisher.sent.clear();
                publisher.persisted = 0;
            }
            Program::Read(reader) => reader.restart(&self.core, random.percent(50), auditor),
            Program::Work(worker) => worker.restart(),
            Program::LastValues(program) => program.restart(&mut auditor.last_values),
            Program::Replays(program) => program.restart(&self.core, auditor),
            Program::Jobs(program) => {
                program.restart(&self.name, now.instant, drained, &mut auditor.jobs);
            }
        }
        self.core = ClientCore::new(config(&self.name, random), now.instant);
        self.connection = None;
    }

    /// When the server notices the end of the connection that it has, if the process ends now.
    pub fn drained(&self, network: &Network, now: Now) -> Instant {
        let now = now.instant.as_ns();
        Instant::from_ns(self.connection.map_or(now, |connection| network.drained_at(connection, now)))
    }

    /// From now on nothing new is begun, and nothing is held back.
    pub fn settle(&mut self) {
        self.is_settling = true;
        if let Program::Read(reader) = &mut self.program
            && reader.is_paused
            && let Some(subscription) = reader.subscription
        {
            reader.is_paused = self.core.set_paused(&[subscription], false).is_err();
        }
    }

    /// Whether nothing of it waits for the server.
    pub fn is_done(&self) -> bool {
        self.core.unpersisted_count() == 0
    }

    /// One step of the program.
    pub fn act(&mut self, now: Now, random: &mut Random, auditor: &mut Auditor) {
        if let ConnectionState::Closed(_) = self.core.state() {
            return self.restart(now, now.instant, random, auditor);
        }
        if *self.core.state() != ConnectionState::Connected {
            return;
        }
        match &mut self.program {
            Program::Publish(publisher) if !self.is_settling => {
                publisher.act(&mut self.core, now, random, auditor)
            }
            Program::Publish(_) => (),
            Program::Read(reader) => {
                reader.act(&self.name, &mut self.core, random, auditor, self.is_settling);
            }
            Program::Work(worker) => worker.act(&mut self.core, now, random, self.is_settling),
            Program::Jobs(program) => {
                let ledger = &mut auditor.jobs;
                program.act(&self.name, &mut self.core, now.instant, ledger, self.is_settling);
            }
            Program::Replays(program) => {
                program.act(&self.name, &mut self.core, now, auditor, self.is_settling);
            }
            Program::LastValues(program) => {
                if !self.is_settling && random.percent(2) {
                    // Shorter than the silence after which the server or the client ends the connection.
                    self.reads_from = now.instant.as_ns() + random.below(SLOWNESS_NS);
                }
                let ledger = &mut auditor.last_values;
                program.act(&self.name, &mut self.core, now, random, ledger, self.is_settling);
            }
        }
    }

    pub fn next_due(&self, network: &Network) -> Option<u64> {
        match self.connection {
            Some(connection) if !network.is_open(connection) => Some(0),
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
        number: usize,
        now: Now,
        network: &mut Network,
        server: &Server,
        auditor: &mut Auditor,
    ) -> Result<bool, String> {
        let mut is_busy = false;
        if let Some((_, at)) = self.core.poll_connect()
            && self.connection.is_none()
            && at <= now.instant
        {
            is_busy = true;
            if server.is_running() {
                self.connection = Some(network.connect(number));
                self.core.handle_connected(now.instant);
                match &mut self.program {
                    Program::Work(worker) => worker.since = now.instant,
                    Program::Replays(program) => program.connected(now.instant, auditor),
                    _ => (),
                }
            } else {
                self.core.handle_disconnected(now.instant);
            }
        }
        if let Some(connection) = self.connection {
            is_busy |= self.exchange(connection, now, network, auditor)?;
        }
        while let Some(event) = self.core.poll_event() {
            is_busy = true;
            self.take(event, now, auditor);
        }
        Ok(is_busy)
    }

    fn exchange(
        &mut self,
        connection: ConnectionId,
        now: Now,
        network: &mut Network,
        auditor: &mut Auditor,
    ) -> Result<bool, String> {
        let mut is_busy = false;
        while self.reads_from <= now.instant.as_ns()
            && let Some(bytes) = network.take_down(connection, now.instant.as_ns())
        {
            is_busy = true;
            let received = self.core.handle_received(now.instant, bytes.into());
            received.map_err(|error| format!("{} does not understand the server: {error}", self.name))?;
        }
        let is_worker = matches!(&self.program, Program::Jobs(program) if program.is_worker());
        if is_worker {
            match network.is_disturbed(connection) {
                true => auditor.jobs.disturbed(&self.name, now.instant),
                false => auditor.jobs.undisturbed(&self.name, now.instant),
            }
        }
        let is_silent = self.core.handle_timeout(now.instant);
        let mut bytes = Vec::new();
        self.core.poll_transmit(now.instant, &mut bytes);
        if let Program::Jobs(program) = &self.program {
            bytes = program.pass_frames(bytes);
        }
        if !bytes.is_empty() {
            is_busy = true;
            network.send_up(connection, now.instant.as_ns(), bytes);
        }
        let is_gone = !network.is_open(connection) || network.has_ended(connection);
        if is_gone || is_silent || self.core.wants_close() {
            is_busy = true;
            let drained = self.drained(network, now);
            network.leave(connection);
            self.connection = None;
            self.core.handle_disconnected(now.instant);
            // The messages that came before the end belong to the old connection.
            if let Program::Read(_) = &self.program {
                while let Some(event) = self.core.poll_event() {
                    self.take(event, now, auditor);
                }
            }
            if let Program::Read(Reader { stream: Some(stream), .. }) = &self.program {
                auditor.reconnected(*stream);
            }
            if is_worker {
                auditor.jobs.disconnected(&self.name, now.instant, drained);
            }
        }
        Ok(is_busy)
    }

    fn take(&mut self, event: Event, now: Now, auditor: &mut Auditor) {
        match (&mut self.program, event) {
            (Program::Publish(publisher), Event::Persisted) => {
                publisher.persisted_up_to(self.core.persisted(), auditor);
            }
            (Program::Publish(publisher), Event::PublishFailed { sequence, .. }) => {
                publisher.refused(sequence, auditor);
            }
            (Program::Read(reader), event) => reader.take(event, auditor),
            (Program::Work(worker), event) => worker.take(&self.name, event, now.instant, auditor),
            (Program::LastValues(program), event) => {
                program.take(&self.core, event, now, &mut auditor.last_values)
            }
            (Program::Replays(program), event) => program.take(event, now, auditor),
            (Program::Jobs(program), event) => {
                program.take(&self.name, &self.core, event, now.instant, &mut auditor.jobs)
            }
            _ => (),
        }
    }
}

fn config(name: &str, random: &mut Random) -> ClientConfig {
    ClientConfig {
        name: name.into(),
        user: None,
        password: None,
        heartbeat: Some(Duration::from_millis(500)),
        ack_interval: Duration::from_millis(random.below(20)),
        reconnect: Reconnect {
            initial_delay: Duration::from_millis(10),
            maximum_delay: Duration::from_millis(500),
            ..Reconnect::default()
        },
        address_count: 1,
        publish_store_size_max: 32 << 10,
        ack_batch_size: 1 + random.below(20) as u32,
        ack_timeout: Duration::from_millis(10),
        incarnation: random.number(),
    }
}

impl Publisher {
    fn act(&mut self, core: &mut ClientCore, now: Now, random: &mut Random, auditor: &mut Auditor) {
        for _ in 0..random.below(6) {
            let (value, topic, data) = auditor.next(random);
            let delay = if auditor.forgets_delays() { None } else { new_delay(value, topic, now) };
            match core.publish(&NewMessage { delay, ..NewMessage::new(topic, data.as_bytes()) }) {
                Ok(Some(sequence)) => {
                    auditor.taken(self.number, topic, Some(now));
                    self.sent.push((sequence, value));
                }
                Ok(None) | Err(PublishError::Full { .. } | PublishError::Refused(_)) => return,
            }
        }
    }

    fn persisted_up_to(&mut self, persisted: u64, auditor: &mut Auditor) {
        while let Some((_, value)) =
            self.sent.get(self.persisted).filter(|(sequence, _)| *sequence <= persisted)
        {
            auditor.persisted(*value);
            self.persisted += 1;
        }
    }

    fn refused(&mut self, sequence: u64, auditor: &mut Auditor) {
        if let Ok(index) = self.sent.binary_search_by_key(&sequence, |(sequence, _)| *sequence) {
            let (_, value) = self.sent.remove(index);
            self.persisted = self.persisted.min(index);
            auditor.refused(value);
        }
    }
}

impl Reader {
    fn new(want: Want, start: Start) -> Self {
        Reader {
            want,
            start,
            stream: None,
            resume: None,
            subscription: None,
            entering: None,
            is_paused: false,
            lingers: false,
            is_witness: false,
        }
    }

    fn restart(&mut self, core: &ClientCore, keeps_bookmark: bool, auditor: &mut Auditor) {
        let last = self.subscription.and_then(|subscription| core.last_received(subscription));
        let keeps_bookmark = keeps_bookmark && self.start != Start::Unrecorded;
        self.resume = last.filter(|_| keeps_bookmark).map(|bookmark| bookmark.to_string());
        if self.resume.is_none() {
            self.give_up(auditor);
        }
        if let Some(stream) = self.stream {
            auditor.reconnected(stream);
        }
        self.subscription = None;
        self.entering = None;
        self.is_paused = false;
    }

    /// The next messages belong to another stream.
    fn give_up(&mut self, auditor: &mut Auditor) {
        if let Some(stream) = self.stream.take() {
            auditor.over(stream);
        }
    }

    fn act(
        &mut self,
        name: &str,
        core: &mut ClientCore,
        random: &mut Random,
        auditor: &mut Auditor,
        is_settling: bool,
    ) {
        match self.subscription {
            None => self.subscribe(name, core, auditor),
            Some(_) if is_settling || self.start == Start::Unrecorded => (),
            Some(_) if self.lingers && self.is_paused && random.below(10) > 0 => (),
            Some(subscription) if random.percent(2) => {
                self.is_paused ^= core.set_paused(&[subscription], !self.is_paused).is_ok();
            }
            Some(subscription) if !self.is_witness && random.below(500) == 0 => {
                self.give_up(auditor);
                self.subscription = None;
                self.is_paused = false;
                let _ = core.unsubscribe(subscription);
            }
            Some(_) => (),
        }
    }

    fn subscribe(&mut self, name: &str, core: &mut ClientCore, auditor: &mut Auditor) {
        let bookmark = match self.start {
            Start::Epoch => Some("0".to_owned()),
            Start::Now => Some("0|1|".to_owned()),
            Start::Unrecorded => None,
        };
        let bookmark = self.resume.take().or(bookmark);
        let spec = SubscriptionSpec {
            filter: self.want.filter(),
            bookmark,
            ..SubscriptionSpec::new(self.want.topic())
        };
        if let Ok((subscription, command)) = core.subscribe(spec) {
            self.stream.get_or_insert_with(|| auditor.begin(name, self.want, self.start));
            self.subscription = Some(subscription);
            self.entering = Some(command);
        }
    }

    fn take(&mut self, event: Event, auditor: &mut Auditor) {
        match event {
            Event::Messages { subscription, messages } if Some(subscription) == self.subscription => {
                if let Some(stream) = self.stream {
                    messages.iter().for_each(|message| auditor.received(stream, message));
                }
            }
            Event::Answered { command, result } if Some(command) == self.entering => {
                self.entering = None;
                match (result, self.stream) {
                    (Ok(()), Some(stream)) => auditor.accepted(stream),
                    _ => {
                        self.give_up(auditor);
                        self.subscription = None;
                    }
                }
            }
            Event::Ended { subscription, .. } if Some(subscription) == self.subscription => {
                self.give_up(auditor);
                self.subscription = None;
                self.is_paused = false;
            }
            _ => (),
        }
    }
}
