//! A client's process: the client core, a connection to one of the instances that it may use, the
//! parties that work on the connection, and a program that publishes or reads.

mod parties;

use std::collections::BTreeMap;
use std::time::Duration;

use quire_client::{
    ClientConfig, ClientCore, CommandId, ConnectionState, Event, NewMessage, PublishError, Reconnect,
    SubscriptionSpec,
};
use quire_command::Reply;
use quire_types::time::{Instant, Now};
use quire_wire::{Decode, Inbox};

use super::auditor::{Auditor, Condition, Start, StreamId, Value, Want};
use super::cast::Part;
use super::delays::new_delay;
use super::instance::Instance;
use super::links::At;
use super::links::topology::{Topology, name_of};
use super::played::Played;
use super::worker::Worker;
use super::{Auditors, Canary, SECOND_NS, jobs, last_values, links, replays};
use crate::network::{Network, Site};
use crate::random::Random;
use parties::{Parties, Rest};

/// The longest time for which a client that uses last-value topics reads nothing.
const SLOWNESS_NS: u64 = 400_000_000;

/// The longest time for which a client does not reach an instance that it has left.
const AWAY_NS: u64 = 15 * SECOND_NS;

pub(super) struct Client {
    site: Site,
    name: String,
    program: Program,
    core: ClientCore,
    /// They share the connection.
    parties: Parties,
    /// No party can make a step.
    rest: Option<Rest>,
    canary: Option<Canary>,
    /// The instances in the order in which it tries them. Its machine has the clock of the first.
    instances: Vec<usize>,
    /// The connection, its instance, and when it was made.
    connection: Option<(u64, At)>,
    /// Reads the frames of a connection up to the answer to the logon.
    greeting: Option<Inbox>,
    /// Instances that it cannot reach, and until when.
    away: BTreeMap<usize, u64>,
    /// Its last connection, for events that come after the end of the connection.
    last: At,
    /// The instance that let it in last.
    last_instance: Option<usize>,
    failovers: u64,
    /// No new work is begun.
    is_settling: bool,
    /// Reads nothing before this time.
    reads_from: u64,
}

/// Last values by key, or why there are none.
type Found = Result<BTreeMap<u64, u64>, String>;

enum Program {
    Publish(Publisher),
    Read(Reader),
    Work(Worker),
    LastValues(last_values::Program),
    Jobs(jobs::Program),
    Replays(replays::Program),
    Links(links::Program),
}

/// The parts of a world that a client uses.
pub(super) struct Surroundings<'a> {
    pub network: &'a mut Network,
    pub instances: &'a [Instance],
    pub topology: &'a Topology,
    pub auditors: &'a mut Auditors,
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
    pub fn worker(number: u64, home: usize, random: &mut Random, now: Now) -> Self {
        let worker = Worker::new(number % 3 == 2, now.instant);
        Client::new(format!("worker-{number}"), vec![home], Program::Work(worker), random, now)
    }

    pub fn publisher(number: u64, home: usize, random: &mut Random, now: Now) -> Self {
        let program = Program::Publish(Publisher { number: number as usize, ..Publisher::default() });
        Client::new(format!("publisher-{number}"), vec![home], program, random, now)
    }

    pub fn reader(number: u64, home: usize, random: &mut Random, now: Now) -> Self {
        let start = [Start::Epoch, Start::Epoch, Start::Now, Start::Unrecorded][random.below(4) as usize];
        let reader = Reader::new(Want::draw(random), start);
        Client::new(format!("reader-{number}"), vec![home], Program::Read(reader), random, now)
    }

    /// A client that uses last-value topics.
    pub fn last_values(
        name: String,
        home: usize,
        program: last_values::Program,
        random: &mut Random,
        now: Now,
    ) -> Self {
        Client::new(name, vec![home], Program::LastValues(program), random, now)
    }

    /// A client that publishes or works on jobs.
    pub fn jobs(name: String, home: usize, program: jobs::Program, random: &mut Random, now: Now) -> Self {
        Client::new(name, vec![home], Program::Jobs(program), random, now)
    }

    /// A client with combined replays.
    pub fn replays(
        name: String,
        home: usize,
        program: replays::Program,
        random: &mut Random,
        now: Now,
    ) -> Self {
        Client::new(name, vec![home], Program::Replays(program), random, now)
    }

    /// A client that uses the topics that links send. `instances` are those that it may use, in the
    /// order in which it tries them.
    pub fn links(
        name: String,
        instances: Vec<usize>,
        program: links::Program,
        random: &mut Random,
        now: Now,
    ) -> Self {
        Client::new(name, instances, Program::Links(program), random, now)
    }

    /// Whether it is of a part of a cast.
    pub fn is_of(&self, part: Part) -> bool {
        match &self.program {
            Program::Jobs(_) => part == Part::Jobs,
            Program::Replays(_) => part == Part::CombinedReplays,
            Program::LastValues(program) => program.is_of(part),
            _ => false,
        }
    }

    /// The reader stays paused for seconds.
    pub fn linger(&mut self) {
        if let Program::Read(reader) = &mut self.program {
            reader.lingers = true;
        }
    }

    /// Reads the whole log of an instance, at the end.
    pub fn witness_of_all(home: usize, random: &mut Random, now: Now) -> Self {
        let want = Want { topic: None, condition: Condition::All };
        let reader = Reader { is_witness: true, ..Reader::new(want, Start::Epoch) };
        let mut client = Client::new("witness".into(), vec![home], Program::Read(reader), random, now);
        client.is_settling = true;
        client
    }

    fn new(name: String, instances: Vec<usize>, program: Program, random: &mut Random, now: Now) -> Self {
        let core = ClientCore::new(config(&name, instances.len(), &program, random), now.instant);
        let last = At { instance: instances[0], since_ns: 0 };
        let parties = Parties::new(&program, None, random.number());
        let mut client = Client {
            site: Site::Client(0),
            name,
            program,
            core,
            parties,
            rest: None,
            canary: None,
            instances,
            connection: None,
            greeting: None,
            away: BTreeMap::new(),
            last,
            last_instance: None,
            failovers: 0,
            is_settling: false,
            reads_from: 0,
        };
        client.open_stores();
        client
    }

    /// Its number as a process of the network, and the mistake of its parties.
    pub fn join(&mut self, number: usize, canary: Option<Canary>) {
        self.site = Site::Client(number);
        self.canary = canary;
        self.parties.make_mistake(canary);
    }

    fn open_stores(&mut self) {
        if let Program::Links(program) = &self.program {
            program.open_stores(&mut self.core);
        }
    }

    /// The instance that it uses first.
    pub fn home(&self) -> usize {
        self.instances[0]
    }

    /// The stream of the reader of everything on an instance.
    pub fn witness(&self, home: usize) -> Option<StreamId> {
        match &self.program {
            Program::Read(reader) if reader.is_witness && self.home() == home => reader.stream,
            _ => None,
        }
    }

    /// The last values that it found, and on which instance; `None`: it looks for none.
    pub fn found(&self) -> Option<(usize, Found)> {
        match &self.program {
            Program::Links(program) if program.looks_for_values() => {
                let instance = self.connection.map_or(self.home(), |(_, at)| at.instance);
                let missing = || format!("{} found no last values on {}", self.name, name_of(instance));
                Some((instance, program.found().ok_or_else(missing)))
            }
            _ => None,
        }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Counts the events of its connections and of its parties.
    pub fn played(&self) -> Played {
        Played { failovers: self.failovers, ..self.parties.played() }
    }

    /// A line for the history of a failure.
    pub fn describe(&self) -> String {
        let (state, count) = (self.core.state(), self.core.unpersisted_count());
        let instance = self.connection.map(|(_, at)| name_of(at.instance));
        let parties = self.parties.describe();
        format!("{}: {state:?} at {instance:?}, {count} publishes are not persisted ({parties})", self.name)
    }

    /// The process is killed and started again. Its name survives, and so do the stores of some
    /// programs, and of some readers the bookmark.
    pub fn restart(&mut self, now: Now, network: &mut Network, random: &mut Random, auditors: &mut Auditors) {
        let drained = self.drained(network, now);
        network.site_is_gone(self.site, now.instant.as_ns(), false);
        let home = self.home();
        match &mut self.program {
            Program::Publish(publisher) => {
                *publisher = Publisher { number: publisher.number, ..Publisher::default() };
            }
            Program::Read(reader) => {
                reader.restart(&self.core, random.percent(50), auditors.of(home));
            }
            Program::Work(worker) => worker.restart(),
            Program::LastValues(program) => program.restart(&mut auditors.of(home).last_values),
            Program::Replays(program) => program.restart(&self.core, auditors.of(home)),
            Program::Jobs(program) => {
                program.restart(&self.name, now.instant, drained, &mut auditors.of(home).jobs);
            }
            Program::Links(program) => program.restart(&self.core),
        }
        let config = config(&self.name, self.instances.len(), &self.program, random);
        self.core = ClientCore::new(config, now.instant);
        (self.connection, self.rest) = (None, None);
        self.parties.followed_by(Parties::new(&self.program, self.canary, random.number()));
        self.open_stores();
    }

    /// When the server notices the end of the connection that it has, if the process ends now.
    fn drained(&self, network: &Network, now: Now) -> Instant {
        let ns = now.instant.as_ns();
        Instant::from_ns(self.connection.map_or(ns, |(connection, _)| network.drained_at(connection, ns)))
    }

    /// It loses its connection, and does not reach the instance for a while. Clients of a cast
    /// stay.
    pub fn lose_instance(&mut self, now: Now, network: &mut Network, random: &mut Random) {
        if let Program::Links(_) = self.program
            && let Some((connection, at)) = self.connection
        {
            let ns = now.instant.as_ns();
            self.away.insert(at.instance, ns + random.below(AWAY_NS));
            network.close(connection, self.site, ns);
            self.hang_up();
        }
    }

    /// From now on nothing new is begun, nothing is held back, and nothing is out of reach.
    pub fn settle(&mut self, now: Now) {
        (self.is_settling, self.rest) = (true, None);
        self.away.clear();
        let (was_idle, due) = (self.core.is_idle(), self.core.next_timeout());
        if let Program::Read(reader) = &mut self.program
            && reader.is_paused
            && let Some(subscription) = reader.subscription
        {
            reader.is_paused = self.core.set_paused(&[subscription], false).is_err();
        }
        self.called(was_idle, due, now.instant);
    }

    /// Whether nothing of it waits for the server.
    pub fn is_done(&self) -> bool {
        self.core.unpersisted_count() == 0
    }

    /// One step of the program.
    pub fn act(&mut self, now: Now, network: &mut Network, random: &mut Random, auditors: &mut Auditors) {
        if let ConnectionState::Closed(_) = self.core.state() {
            return self.restart(now, network, random, auditors);
        }
        self.rest = None;
        self.parties.continue_process(now.instant, self.is_settling);
        let (was_idle, due) = (self.core.is_idle(), self.core.next_timeout());
        self.run_program(now, random, auditors);
        self.called(was_idle, due, now.instant);
    }

    fn run_program(&mut self, now: Now, random: &mut Random, auditors: &mut Auditors) {
        let is_connected = *self.core.state() == ConnectionState::Connected;
        let home = self.home();
        if let Program::Links(program) = &mut self.program {
            let state = (is_connected, self.is_settling);
            return program.act(&mut self.core, now, random, &mut auditors.links, state);
        }
        if !is_connected {
            return;
        }
        let auditor = auditors.of(home);
        match &mut self.program {
            Program::Publish(publisher) if !self.is_settling => {
                publisher.act(&mut self.core, now, random, auditor)
            }
            Program::Publish(_) | Program::Links(_) => (),
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
                    // Shorter than the silence after which the server or the client ends the
                    // connection.
                    self.reads_from = now.instant.as_ns() + random.below(SLOWNESS_NS);
                }
                let ledger = &mut auditor.last_values;
                program.act(&self.name, &mut self.core, now, random, ledger, self.is_settling);
            }
        }
    }

    /// When it does something by itself, after a time.
    pub fn next_due(&self, ns: u64) -> Option<u64> {
        if let Some(rest) = &self.rest {
            return rest.until;
        }
        let core = match self.connection {
            Some(_) => self.core.next_timeout(),
            None => self.core.poll_connect().map(|(_, at)| at),
        };
        let due = core.map(|at| at.as_ns()).into_iter().chain([self.reads_from]);
        due.filter(|at| *at > ns).chain(self.parties.next_due(ns)).min()
    }

    /// Moves bytes and events; whether there were any.
    ///
    /// # Errors
    /// The server violates the protocol, or the parties forget something.
    pub fn turn(&mut self, now: Now, around: &mut Surroundings<'_>) -> Result<bool, String> {
        let rests = self.rests(now, around.network);
        let is_busy = (!rests || self.parties.looks_anyway()) && self.let_parties_work(now, around)?;
        if is_busy && rests {
            return Err(format!("a party of {} could make a step, and no party was to", self.name));
        }
        if let (Some((connection, at)), true) = (self.connection, self.is_worker_of_jobs()) {
            let jobs = &mut around.auditors.of(at.instance).jobs;
            match around.network.is_disturbed(connection) {
                true => jobs.disturbed(&self.name, now.instant),
                false => jobs.undisturbed(&self.name, now.instant),
            }
        }
        if rests {
            return Ok(false);
        }
        // Those of calls.
        let is_busy = is_busy | self.take_events(now, around);
        if !is_busy {
            self.begin_rest(now, around.network);
        }
        Ok(is_busy)
    }

    fn is_worker_of_jobs(&self) -> bool {
        matches!(&self.program, Program::Jobs(program) if program.is_worker())
    }

    /// Connects to the next of its instances, if it runs and can be reached.
    fn connect(&mut self, now: Now, around: &mut Surroundings<'_>) {
        let Some((address, _)) = self.core.poll_connect() else { return };
        let (instance, since_ns) = (self.instances[address], now.instant.as_ns());
        let to = Site::Instance(instance);
        let is_away = self.away.get(&instance).is_some_and(|until| *until > since_ns);
        let is_running = around.instances[instance].is_running();
        if !is_running || is_away || !around.network.is_reachable(self.site, to) {
            return self.core.handle_disconnected(now.instant);
        }
        let connection = around.network.connect(self.site, to, since_ns);
        self.last = At { instance, since_ns };
        self.connection = Some((connection, self.last));
        self.core.handle_connected(now.instant);
        self.note_connected();
        match &mut self.program {
            Program::Work(worker) => worker.since = now.instant,
            Program::Replays(program) => program.connected(now.instant, around.auditors.of(instance)),
            Program::Links(_) => self.greeting = Some(Inbox::new(1 << 20)),
            _ => (),
        }
    }

    /// The connection is over, for either side.
    fn end_connection(&mut self, now: Now, around: &mut Surroundings<'_>) {
        let Some((connection, at)) = self.connection else { return };
        let drained = self.drained(around.network, now);
        around.network.close(connection, self.site, now.instant.as_ns());
        // The messages that came before the end belong to the old connection.
        self.take_events(now, around);
        self.core.handle_disconnected(now.instant);
        self.take_events(now, around);
        self.connection = None;
        let auditor = around.auditors.local[at.instance].as_mut();
        match (&self.program, auditor) {
            (Program::Read(Reader { stream: Some(stream), start, .. }), Some(auditor))
                if self.canary != Some(Canary::EarlyRemoval) || *start == Start::Unrecorded =>
            {
                auditor.reconnected(*stream);
            }
            (Program::Jobs(_), Some(auditor)) if self.is_worker_of_jobs() => {
                auditor.jobs.disconnected(&self.name, now.instant, drained);
            }
            _ => (),
        }
    }

    fn receive(
        &mut self,
        bytes: Vec<u8>,
        at: At,
        now: Now,
        around: &mut Surroundings<'_>,
    ) -> Result<(), String> {
        self.greet(&bytes, at, now, around)?;
        let received = self.core.handle_received(now.instant, bytes.into());
        received.map_err(|error| format!("{} does not understand the server: {error}", self.name))
    }

    /// Looks for the answer to the logon, which names the highest sequence that the instance has.
    fn greet(&mut self, bytes: &[u8], at: At, now: Now, around: &mut Surroundings<'_>) -> Result<(), String> {
        let (Some(inbox), Program::Links(program)) = (&mut self.greeting, &self.program) else {
            return Ok(());
        };
        let mut rest = bytes;
        let wrong = |error| format!("{} does not understand the server: {error}", self.name);
        while let Some(frame) = inbox.next(&mut rest).map_err(wrong)? {
            let Reply::LoggedOn(logged_on) = Reply::decode(frame).map_err(wrong)? else { continue };
            let last = self.last_instance.replace(at.instance);
            self.failovers += u64::from(last.is_some_and(|last| last != at.instance));
            let (highest, auditor) = (logged_on.highest_sequence, &mut around.auditors.links);
            program.logged_on(&self.core, at, highest, now, auditor);
            self.greeting = None;
            break;
        }
        Ok(())
    }

    /// Hands the events of the core to the program. Returns whether there were any.
    fn take_events(&mut self, now: Now, around: &mut Surroundings<'_>) -> bool {
        let mut is_busy = false;
        while let Some(event) = self.core.poll_event() {
            is_busy = true;
            self.parties.announce_event();
            self.take(event, now, around);
        }
        is_busy
    }

    fn take(&mut self, event: Event, now: Now, around: &mut Surroundings<'_>) {
        if let Program::Links(program) = &mut self.program {
            let (world, links) = ((around.instances, around.topology), &mut around.auditors.links);
            return program.take(&self.name, &self.core, event, (now, self.last), world, links);
        }
        let auditor = around.auditors.of(self.instances[0]);
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

fn config(name: &str, address_count: usize, program: &Program, random: &mut Random) -> ClientConfig {
    // Clients of links wait longer, so that the long histories of several instances have fewer
    // turns.
    let (factor, ack_batch_size) = match program {
        Program::Links(_) => (2, 1),
        _ => (1, 1 + random.below(20) as u32),
    };
    ClientConfig {
        name: name.into(),
        user: None,
        password: None,
        token: None,
        renews_token: false,
        heartbeat: Some(Duration::from_millis(500) * factor),
        ack_interval: Duration::from_millis(random.below(20)),
        reconnect: Reconnect {
            initial_delay: Duration::from_millis(10) * factor,
            maximum_delay: Duration::from_millis(500) * factor,
            ..Reconnect::default()
        },
        address_count,
        publish_store_size_max: 32 << 10,
        ack_batch_size,
        ack_timeout: Duration::from_millis(10),
        incarnation: random.number(),
        observes: false,
    }
}

impl Publisher {
    fn act(&mut self, core: &mut ClientCore, now: Now, random: &mut Random, auditor: &mut Auditor) {
        for _ in 0..random.below(6) {
            let (value, topic, mut data) = auditor.next(random);
            let is_malformed = auditor.is_malformed(topic, random);
            if is_malformed {
                // The last brace is missing.
                data.pop();
            }
            let delay = if auditor.forgets_delays() { None } else { new_delay(value, topic, now) };
            match core.publish(&NewMessage { delay, ..NewMessage::new(topic, data.as_bytes()) }) {
                Ok(Some(sequence)) => {
                    auditor.taken(self.number, topic, Some(now), is_malformed);
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
