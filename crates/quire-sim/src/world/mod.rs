//! The whole system in one thread: real client cores, real brokers and real journals, over a
//! network, disks and clocks that misbehave.
//!
//! A seed draws the instances of a world and their links, the casts of the instances, and the mix
//! of faults. In the first phase every possible fault occurs: connections are cut, are silent, are
//! slow, or bring bytes one by one. Partitions hold back one or both directions. Instances and
//! clients are killed. The power fails. Syncs and writes fail or hang. Disks are lost, or replaced
//! by older ones. Wall clocks jump. Clients fail over. In the second phase there are no faults, and
//! everything must be correct within a time.
//!
//! The auditors see only the view of users and the logs, and never the state of a server:
//!
//! - [`auditor`]: of the topics and queues that only one instance has. It has auditors of
//!   last-value topics, of workers that fetch ahead, and of combined replays. [`holders`] reads the
//!   lease records of the journal.
//! - [`links`]: of the topics that links send, and of the clients that move between the instances.

mod auditor;
mod cast;
mod client;
mod delays;
mod holders;
mod instance;
mod jobs;
mod last_values;
mod links;
mod operator;
mod played;
mod replays;
mod visitor;
mod worker;

use std::collections::BTreeMap;

use quire_command::LinkAction;

use crate::disk::{Faults, SimulatedDisk};
use crate::network::{Network, Site};
use crate::random::Random;
use auditor::Auditor;
use cast::Cast;
use client::Client;
use instance::Instance;
use links::Defects;
use links::topology::{Topology, Waiting, name_of};
use operator::Operator;
pub use played::Played;
use visitor::Visitor;

/// A deliberate mistake, to prove that a check sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Canary {
    /// Syncs return without making anything durable. Acknowledged messages are lost with the power.
    ForgottenSync,
    /// Clients treat their publishes as persisted at once.
    EarlyAcknowledgement,
    /// Readers never see some messages.
    SkippedDelivery,
    /// Readers see some messages twice.
    RepeatedDelivery,
    /// Readers see some messages before the one that they follow.
    SwappedDelivery,
    /// The server drops some of the bytes that it received, as a turn does that continues after a
    /// panic.
    DroppedInput,
    /// Clients publish without the delays that they were given.
    ForgottenDelay,
    /// The server does not validate the topics that it should validate.
    ForgottenValidation,
    /// Journal files are removed although a reader needs them: a reader that is not connected
    /// counts as connected.
    EarlyRemoval,
    /// The result of a query has a message that was published after its instant.
    LateRecord,
    /// Subscriptions do not see that some records left their view.
    ForgottenOof,
    /// Some deletes are not in the log.
    ForgottenDelete,
    /// Subscriptions with records do not see some publishes.
    SkippedChange,
    /// The state of an earlier instant has a message that was published after it.
    LaterState,
    /// Subscriptions do not see some messages after an earlier state.
    SkippedFollowing,
    /// Pages do not see some records that enter or leave.
    SkippedMove,
    /// Subscriptions that were replaced do not see some messages.
    SkippedDifference,
    /// Conflated subscriptions see a message that is older than the one before.
    OlderMessage,
    /// Subscriptions that should share a replay are resumed one by one.
    SeparateReplays,
    /// Workers do not renew the leases of messages that they have not begun.
    ForgottenRenewal,
    /// Workers neither renew the leases of messages that they have not begun, nor release such
    /// messages.
    ForgottenRelease,
    /// Workers do not renew the leases of messages that they begin.
    ForgottenRenewalAtBegin,
    /// Workers begin messages whose leases are lost.
    BegunLost,
    /// The place of an action moves on before its run.
    EarlyPlace,
    /// A source takes records as acknowledged when it has sent them.
    EarlyLinkAcknowledgement,
    /// A link leaves out some of the records, and continues after them.
    DroppedRecords,
    /// A link leaves out some of the deletes.
    DroppedDelete,
    /// A link exchanges the order of some records.
    SwappedRecords,
    /// A source continues where it ended, also when the destination has lost its log.
    BelievedMark,
    /// An instance keeps records that came by another path.
    KeptDuplicate,
    /// A restored backup is restored on another instance, too.
    SharedBackup,
    /// Subscribers that move never see some messages.
    SkippedRecord,
    /// Subscribers that start again begin on another instance after a later place.
    LaterPlaces,
    /// Publishers do not wait for a destination although nothing has downgraded it.
    EarlyDowngrade,
    /// A link sends messages that do not match its filter.
    IgnoredFilter,
    /// Workers of local queues treat messages as acknowledged that they have not acknowledged.
    ForgottenVerdict,
    /// Workers of local queues never see some messages.
    LostJob,
    /// Journal files that a destination needs are removed.
    ForgottenRetention,
    /// Local queues treat messages that workers cancel as acknowledged.
    LostCancel,
    /// Subscribers with records that move do not see some changes.
    StaleView,
    /// Some wake-ups of the parties that share a connection are lost.
    ForgottenWakeUp,
    /// A caller that does not get the connection reads anyway.
    TwoReaders,
    /// Callers that leave a connection do not hand it over.
    ForgottenHandover,
    /// Bytes that a stream has decrypted are not read when the socket has none.
    ForgottenBuffer,
}

impl Canary {
    /// The mistakes that concern the topics, queues and clients that only one instance has.
    pub const OF_CASTS: [Canary; 23] = [
        Canary::ForgottenSync,
        Canary::EarlyAcknowledgement,
        Canary::SkippedDelivery,
        Canary::RepeatedDelivery,
        Canary::SwappedDelivery,
        Canary::DroppedInput,
        Canary::ForgottenDelay,
        Canary::ForgottenValidation,
        Canary::LateRecord,
        Canary::ForgottenOof,
        Canary::ForgottenDelete,
        Canary::SkippedChange,
        Canary::LaterState,
        Canary::SkippedFollowing,
        Canary::SkippedMove,
        Canary::SkippedDifference,
        Canary::OlderMessage,
        Canary::SeparateReplays,
        Canary::ForgottenRenewal,
        Canary::ForgottenRelease,
        Canary::ForgottenRenewalAtBegin,
        Canary::BegunLost,
        Canary::EarlyPlace,
    ];

    /// The mistakes of the parties that share the connection of a client.
    pub const OF_PARTIES: [Canary; 4] =
        [Canary::ForgottenWakeUp, Canary::TwoReaders, Canary::ForgottenHandover, Canary::ForgottenBuffer];

    /// The mistakes of links, and of the clients that move between instances.
    pub const OF_LINKS: [Canary; 16] = [
        Canary::EarlyLinkAcknowledgement,
        Canary::DroppedRecords,
        Canary::DroppedDelete,
        Canary::SwappedRecords,
        Canary::BelievedMark,
        Canary::KeptDuplicate,
        Canary::SharedBackup,
        Canary::SkippedRecord,
        Canary::LaterPlaces,
        Canary::EarlyDowngrade,
        Canary::IgnoredFilter,
        Canary::ForgottenVerdict,
        Canary::LostJob,
        Canary::LostCancel,
        Canary::ForgottenRetention,
        Canary::StaleView,
    ];
}

/// How many instances a world has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// One instance without links.
    One,
    /// Two to five, with links.
    Several,
}

const SECOND_NS: u64 = 1_000_000_000;
const WALL_START_NS: u64 = 1_500_000_000 * SECOND_NS;
/// Turns without time passing after which something runs in a circle.
const TURNS_AT_ONCE_MAX: u32 = 100_000;
/// The number of clients for which [`Mix`] has the faults of clients and connections. More clients
/// have more faults, so that those between two instances do not become rare.
const RATED_CLIENTS: u64 = 4;
/// How many instances do not start at the beginning, but some time later.
const LATE_PERCENT: u64 = 5;
/// The longest partition.
const PARTITION_NS: u64 = 20 * SECOND_NS;
/// The steps of the second phase.
const PEACE_STEP_NS: u64 = SECOND_NS / 10;
/// The steps before the first verdict of a world of several instances, and the most steps between
/// two verdicts. A verdict reads whole logs.
const STEPS_BEFORE_VERDICT: u64 = 5;
const STEPS_BETWEEN_VERDICTS_MAX: u64 = 80;
/// Lines of the history that a failure shows.
const HISTORY_LINES: usize = 60;
/// The most instances of a world in which some of them have a cast.
const MIXED_COUNT_MAX: usize = 3;
/// How many of these worlds have casts. A cast costs more time than all the rest of such a world.
const MIXED_PERCENT: u64 = 12;

/// The times of a world, in virtual time.
struct Times {
    /// How long things go wrong.
    trouble_ns: u64,
    /// The longest step of the script meanwhile.
    step_ns: u64,
    /// How long everything may then take to be well, or the next message to leave a queue.
    peace_ns: u64,
}

impl Times {
    fn of(topology: &Topology) -> Self {
        match topology.is_alone() {
            true => Times { trouble_ns: 20 * SECOND_NS, step_ns: SECOND_NS / 50, peace_ns: 90 * SECOND_NS },
            false => Times { trouble_ns: 40 * SECOND_NS, step_ns: SECOND_NS / 10, peace_ns: 240 * SECOND_NS },
        }
    }
}

/// How likely each trouble is at each step of the script, in thousandths; a seed has its own.
struct Mix {
    partition: u64,
    slow: u64,
    cut: u64,
    silence: u64,
    client_kill: u64,
    kill: u64,
    power_cut: u64,
    stop: u64,
    lost_disk: u64,
    restore: u64,
    clock_step: u64,
    failover: u64,
    downgrade: u64,
    pause: u64,
    resume: u64,
    start_percent: u64,
    disk: Faults,
}

impl Mix {
    fn draw(size: Size, random: &mut Random) -> Self {
        let is_alone = size == Size::One;
        // Each may be absent: one that is lets the others go deeper. The first number is for a
        // world of one instance.
        let mut chance = |alone: u64, several: u64| {
            let (percent, most) = if is_alone { (50, alone) } else { (60, several) };
            if most > 0 && random.percent(percent) { random.below(most) } else { 0 }
        };
        Mix {
            partition: chance(0, 12),
            slow: chance(0, 8),
            cut: chance(30, 15),
            silence: chance(15, 5),
            client_kill: chance(10, 10),
            kill: chance(6, 10),
            power_cut: chance(6, 10),
            stop: chance(6, 6),
            lost_disk: chance(0, 4),
            restore: chance(0, 4),
            clock_step: chance(10, 6),
            failover: chance(0, 20),
            downgrade: chance(0, 10),
            pause: chance(0, 6),
            resume: 2 + chance(0, 20),
            start_percent: if is_alone { 20 } else { 1 + chance(0, 20) },
            disk: Faults {
                write_percent: chance(3, 2),
                sync_percent: chance(3, 2),
                read_percent: 0,
                full_percent: chance(4, 0),
                kept_percent: [0, 20, 50, 80, 100][chance(5, 5) as usize],
            },
        }
    }
}

/// Plays the history of a seed.
///
/// # Errors
/// What went wrong, and the last events before it.
pub fn play(seed: u64, size: Size, canary: Option<Canary>) -> Result<Played, String> {
    let mut world = World::new(seed, size, canary);
    let result = world.trouble().and_then(|()| world.peace());
    match result {
        Ok(leases) => Ok(Played { leases, ..world.played() }),
        Err(reason) => Err(world.told(&reason)),
    }
}

struct World {
    random: Random,
    canary: Option<Canary>,
    ns: u64,
    times: Times,
    mix: Mix,
    topology: Topology,
    instances: Vec<Instance>,
    network: Network,
    clients: Vec<Client>,
    visitors: Vec<Visitor>,
    operators: Vec<Operator>,
    auditors: Auditors,
    defects: Defects,
    heal_at: Option<u64>,
    history: Vec<String>,
    played: Played,
}

struct Auditors {
    /// Of the topics and queues that only one instance has.
    local: Vec<Option<Auditor>>,
    /// Of the topics that links send.
    links: links::Auditor,
}

impl Auditors {
    /// The auditor of an instance with a cast.
    fn of(&mut self, instance: usize) -> &mut Auditor {
        self.local[instance].as_mut().expect("only clients of a cast have an instance with an auditor")
    }

    /// # Errors
    /// What was seen to be wrong so far.
    fn fault(&self) -> Result<(), String> {
        self.local.iter().flatten().try_for_each(Auditor::fault)?;
        self.links.fault()
    }
}

impl World {
    fn new(seed: u64, size: Size, canary: Option<Canary>) -> Self {
        let tag: u64 = if size == Size::One { 0x0051 } else { 0x0069 };
        let mut random = Random::new(seed ^ tag.rotate_left(40));
        let mix = Mix::draw(size, &mut random);
        let mut topology = match size {
            Size::One => Topology::alone(),
            // Few of the instances have a cast. A mistake of casts is in a world that has one.
            Size::Several => loop {
                let topology = Topology::draw(&mut random);
                if !is_of_casts(canary) || topology.count() <= MIXED_COUNT_MAX {
                    break topology;
                }
            },
        };
        let defects = Defects::new(canary, random.number());
        if defects.concern_links() {
            topology = topology.uncompressed();
        }
        let mut world = World {
            canary,
            ns: 0,
            times: Times::of(&topology),
            mix,
            instances: Vec::new(),
            network: Network::new(random.number()),
            clients: Vec::new(),
            visitors: Vec::new(),
            operators: Vec::new(),
            auditors: Auditors {
                local: Vec::new(),
                links: links::Auditor::new(canary, random.number(), &topology),
            },
            defects,
            heal_at: None,
            history: vec![format!(
                "{} of {}, waits: {:?}",
                topology.kind,
                topology.count(),
                topology.waiting
            )],
            played: Played {
                instances: topology.count() as u64,
                strict: u64::from(topology.is_strict()),
                filtered: u64::from(topology.has_filter()),
                compressed: u64::from(topology.is_compressed()),
                ..Played::default()
            },
            topology,
            random,
        };
        world.add_instances(seed);
        if !world.topology.is_alone() {
            world.add_clients_of_links();
        }
        world
    }

    /// Adds the instances and their casts. A world of one instance has a cast. Of several instances
    /// some have one, in some worlds.
    fn add_instances(&mut self, seed: u64) {
        let mut casting = Random::new(seed ^ 0x006e_u64.rotate_left(40));
        let is_alone = self.topology.is_alone();
        let has_mistake = is_of_casts(self.canary);
        let is_mixed = self.topology.count() <= MIXED_COUNT_MAX
            && self.canary != Some(Canary::SharedBackup)
            && (casting.percent(MIXED_PERCENT) || has_mistake);
        let mut has_cast = |number| if has_mistake { number == 0 } else { casting.percent(60) };
        // Messages in removed files cannot come back to an instance that has lost its disk.
        let mut maintenance = Random::new(seed ^ 0x0072_u64.rotate_left(40));
        let is_meant = self.canary == Some(Canary::ForgottenRetention);
        let maintains = !is_alone && (maintenance.percent(40) || is_meant);
        let may_remove = self.canary != Some(Canary::SharedBackup);
        let removes = maintains && may_remove && (maintenance.percent(50) || is_meant);
        if removes {
            (self.mix.lost_disk, self.mix.restore) = (0, 0);
        }
        for number in 0..self.topology.count() {
            let disk = SimulatedDisk::new(self.random.number(), Faults::default());
            if self.canary == Some(Canary::ForgottenSync) {
                disk.forget_syncs();
            }
            let mut config = self.topology.config(number);
            if self.canary == Some(Canary::IgnoredFilter) && number == 0 {
                let destinations = &mut config.replication.destinations;
                let topics = destinations.iter_mut().flat_map(|destination| &mut destination.topics);
                topics.for_each(|topic| topic.filter = None);
            }
            if self.canary == Some(Canary::ForgottenRetention) {
                let destinations = &mut config.replication.destinations;
                destinations.iter_mut().for_each(|destination| destination.retained_size_max = Some(1));
            }
            let now = Instance::new(number, disk.clone(), config.clone(), None, None).now(self.ns);
            let cast = (is_alone || is_mixed && has_cast(number))
                .then(|| Cast::draw(seed, number, is_alone, &mut self.random, self.canary, now));
            let Some(Cast { setup, clients, visitors, operator, auditor }) = cast else {
                if maintains {
                    config.transaction_log.journal_archive_directory = Some(cast::ARCHIVE.into());
                    config.transaction_log.maintenance = cast::rules(&mut maintenance, removes);
                }
                self.instances.push(Instance::new(number, disk, config, None, self.canary));
                self.auditors.local.push(None);
                continue;
            };
            self.played.mixed += u64::from(!is_alone);
            self.instances.push(Instance::new(number, disk, config, Some(setup), self.canary));
            self.auditors.local.push(Some(auditor));
            clients.into_iter().for_each(|client| self.add(client));
            self.visitors.extend(visitors);
            self.operators.extend(operator);
        }
    }

    fn add_clients_of_links(&mut self) {
        let (count, canary) = (self.topology.count(), self.canary);
        let now = self.instances[0].now(self.ns);
        for number in 0..1 + self.random.below(3) as usize {
            let mut order = shuffled(count, &mut self.random);
            // Where not every instance is waited for, some publishers stay on one of them.
            if !self.topology.is_strict() && self.random.percent(50) {
                order.truncate(1);
            }
            let name = format!("links-publisher-{number}");
            self.auditors.links.add_publisher(&name);
            let program = links::Program::publisher(number);
            let client = Client::links(name, order, program, &mut self.random, now);
            self.add(client);
        }
        for stream in 0..1 + self.random.below(3) as usize {
            let (order, name) = (shuffled(count, &mut self.random), format!("links-subscriber-{stream}"));
            self.auditors.links.add_stream(&name);
            let program = links::Program::subscriber(stream, self.canary, &mut self.random);
            let client = Client::links(name, order, program, &mut self.random, now);
            self.add(client);
        }
        if self.random.percent(50) {
            let (order, name) = (shuffled(count, &mut self.random), "links-follower".to_owned());
            let program = links::Program::follower(canary, &mut self.random);
            let client = Client::links(name, order, program, &mut self.random, now);
            self.add(client);
        }
        // A worker of each instance always takes the messages of its queue. Some others move.
        for instance in 0..count {
            let (order, name) = (vec![instance], format!("links-worker-{instance}"));
            let program = links::Program::worker(instance, canary);
            let client = Client::links(name, order, program, &mut self.random, now);
            self.add(client);
        }
        if self.random.percent(50) {
            let (order, name) = (shuffled(count, &mut self.random), "links-worker".to_owned());
            let program = links::Program::worker(count, canary);
            let client = Client::links(name, order, program, &mut self.random, now);
            self.add(client);
        }
    }

    fn add(&mut self, mut client: Client) {
        client.join(self.clients.len(), self.canary);
        self.clients.push(client);
    }

    fn note(&mut self, line: &str) {
        let (seconds, milliseconds) = (self.ns / SECOND_NS, self.ns % SECOND_NS / 1_000_000);
        self.history.push(format!("{seconds:>4}.{milliseconds:03} s  {line}"));
    }

    /// A failure with the history before it.
    fn told(&mut self, reason: &str) -> String {
        let ns = self.ns;
        self.history.push(format!("at {} s:", ns / SECOND_NS));
        self.history.extend(self.clients.iter().map(Client::describe));
        self.history.extend(self.instances.iter_mut().flat_map(|instance| instance.describe(ns)));
        let first = self.history.first().cloned().unwrap_or_default();
        let begin = self.history.len().saturating_sub(HISTORY_LINES).max(1);
        let lines = self.history.get(begin..).unwrap_or_default().join("\n");
        format!("{first}\n{lines}\n{reason}")
    }

    /// Work continues while faults occur.
    fn trouble(&mut self) -> Result<(), String> {
        for number in 0..self.instances.len() {
            if !self.random.percent(LATE_PERCENT) {
                self.start_on_a_failing_disk(number)?;
            }
        }
        while self.ns < self.times.trouble_ns {
            for number in 0..self.instances.len() {
                if !self.instances[number].is_running() && self.random.percent(self.mix.start_percent) {
                    self.start_on_a_failing_disk(number)?;
                }
            }
            self.misbehave()?;
            self.act();
            for visitor in &mut self.visitors {
                let instance = &self.instances[visitor.home];
                let auditor = self.auditors.of(visitor.home);
                visitor.act(instance.now(self.ns), &mut self.network, instance, auditor);
            }
            for operator in &mut self.operators {
                let instance = &self.instances[operator.home];
                operator.act(instance.now(self.ns), &mut self.network, instance);
            }
            let pause_ns = self.random.below(self.times.step_ns);
            self.pass(pause_ns)?;
            self.auditors.fault()?;
        }
        Ok(())
    }

    /// Nothing goes wrong any more, and nothing new is asked for. Returns the number of the lease
    /// records of the journals.
    fn peace(&mut self) -> Result<u64, String> {
        self.begin_peace();
        let mut end = self.ns + self.times.peace_ns;
        let (mut taken, mut step) = (0, 0);
        let mut pause = if self.topology.is_alone() { 1 } else { STEPS_BEFORE_VERDICT };
        let mut next_verdict = pause;
        let mut result = Err("not everything was published".to_owned());
        while self.ns < end {
            for number in 0..self.instances.len() {
                if self.instances[number].is_poisoned() {
                    self.kill(number, false);
                }
                if !self.instances[number].is_running() {
                    self.start(number)?;
                }
            }
            self.act();
            self.pass(PEACE_STEP_NS)?;
            self.auditors.fault()?;
            step += 1;
            if step >= next_verdict && self.clients.iter().all(Client::is_done) {
                result = self.verdict();
                if result.is_ok() {
                    break;
                }
                // What is missing now often takes several times as long.
                pause = (2 * pause).min(STEPS_BETWEEN_VERDICTS_MAX);
                next_verdict = step + pause;
            }
            // One worker that takes one message at a time is slow, and not wrong.
            let now_taken: usize = self.auditors.local.iter().flatten().map(Auditor::taken_count).sum();
            if now_taken > taken {
                taken = now_taken;
                end = self.ns + self.times.peace_ns;
            }
        }
        result?;
        let judged = self.instances.iter().zip(&self.auditors.local);
        judged.map(|(instance, auditor)| instance.judge_leases(auditor.as_ref())).sum()
    }

    fn begin_peace(&mut self) {
        self.note("peace");
        self.network.calm(self.ns);
        for client in &mut self.clients {
            client.settle(self.instances[client.home()].now(self.ns));
        }
        for visitor in &mut self.visitors {
            visitor.settle(self.instances[visitor.home].now(self.ns), &mut self.network);
        }
        for operator in &mut self.operators {
            operator.settle(self.instances[operator.home].now(self.ns), &mut self.network);
        }
        for number in 0..self.instances.len() {
            let instance = &mut self.instances[number];
            instance.disk.set_faults(Faults::default());
            instance.calm();
            instance.resume_all(self.ns);
            let now = instance.now(self.ns);
            if self.auditors.local[number].is_some() {
                let witness = Client::witness_of_all(number, &mut self.random, now);
                self.add(witness);
            }
            if !self.topology.is_alone() {
                let (name, program) = (format!("querier-{}", name_of(number)), links::Program::querier());
                let querier = Client::links(name, vec![number], program, &mut self.random, now);
                self.add(querier);
            }
        }
    }

    fn verdict(&mut self) -> Result<(), String> {
        for (number, auditor) in self.auditors.local.iter().enumerate() {
            let witness = self.clients.iter().find_map(|client| client.witness(number));
            auditor.as_ref().map_or(Ok(()), |auditor| auditor.verdict(witness))?;
        }
        if self.topology.is_alone() {
            return Ok(());
        }
        let logs = self.instances.iter().map(Instance::log).collect::<Result<Vec<_>, _>>()?;
        self.auditors.links.verdict(&logs)?;
        let expected = self.auditors.links.last_values(&logs);
        for client in &self.clients {
            if let Some((instance, found)) = client.found() {
                compare(&expected[instance], &found?)
                    .map_err(|reason| format!("{}: {reason}", client.name()))?;
            }
        }
        Ok(())
    }

    fn misbehave(&mut self) -> Result<(), String> {
        if self.heal_at.is_some_and(|at| at <= self.ns) {
            self.heal_at = None;
            self.network.heal(self.ns);
            self.note("the network heals");
        }
        if self.happens_among_clients(self.mix.cut) {
            self.played.cuts += u64::from(self.network.cut_one(&mut self.random, self.ns));
        }
        if self.happens_among_clients(self.mix.silence) {
            self.played.silences += u64::from(self.network.silence_one(&mut self.random));
        }
        if self.happens_among_clients(self.mix.client_kill) {
            let number = self.random.below(self.clients.len() as u64) as usize;
            let client = &mut self.clients[number];
            let now = self.instances[client.home()].now(self.ns);
            client.restart(now, &mut self.network, &mut self.random, &mut self.auditors);
            self.played.client_kills += 1;
        }
        if !self.topology.is_alone() {
            self.misbehave_between_instances();
        }
        let number = self.random.below(self.instances.len() as u64) as usize;
        if self.happens(self.mix.clock_step) {
            let steps = [-86_400, -3_600, -1, 1, 3_600, 86_400];
            let step_ns = steps[self.random.below(6) as usize] * SECOND_NS as i64;
            self.instances[number].step_clock(step_ns);
            if let Some(auditor) = &mut self.auditors.local[number] {
                auditor.clock_steps.step(step_ns);
                auditor.last_values.clock_stepped();
            }
            self.played.clock_steps += 1;
        }
        let is_running = self.instances[number].is_running();
        // A process that has ended may have left data that only the power takes away. It begins
        // again soon, so the power fails more often meanwhile.
        let factor = if is_running { 1 } else { 3 };
        if self.happens(factor * self.mix.power_cut) {
            self.kill(number, true);
            self.played.power_cuts += 1;
            self.played.late_power_cuts += u64::from(!is_running);
            self.note(&format!("{} loses power", name_of(number)));
        } else if is_running && self.happens(self.mix.kill)
            || self.instances[number].is_poisoned() && self.random.percent(5)
        {
            self.kill(number, false);
            self.played.kills += 1;
            self.note(&format!("{} is killed", name_of(number)));
        } else if is_running && self.happens(self.mix.stop) {
            self.instances[number].begin_stop(self.ns);
            self.played.stops += 1;
            self.note(&format!("{} stops", name_of(number)));
        }
        if !self.topology.is_alone() && self.instances[number].may_lose_disk() {
            self.replace_disk(number)?;
        }
        Ok(())
    }

    fn misbehave_between_instances(&mut self) {
        if self.happens(self.mix.partition) {
            self.part();
        }
        if self.happens(self.mix.slow) {
            let (a, b) = self.two_instances();
            let byte_ns = 1_000 + self.random.below(200_000);
            self.network.slow_down(Site::Instance(a), Site::Instance(b), byte_ns);
            self.heal_at.get_or_insert(self.ns + PARTITION_NS);
            self.played.slow += 1;
            self.note(&format!("slow: {} to {}", name_of(a), name_of(b)));
        }
        if self.happens_among_clients(self.mix.failover) {
            let number = self.random.below(self.clients.len() as u64) as usize;
            let client = &mut self.clients[number];
            let now = self.instances[client.home()].now(self.ns);
            client.lose_instance(now, &mut self.network, &mut self.random);
        }
        let number = self.random.below(self.instances.len() as u64) as usize;
        if self.topology.waiting == Waiting::Downgrading && self.happens(self.mix.downgrade) {
            let is_downgraded = self.random.percent(40);
            let action = if is_downgraded { LinkAction::Downgrade } else { LinkAction::Upgrade };
            self.instances[number].act_on_a_link(self.ns, &mut self.random, action);
        }
        if self.defects.is_meant(Canary::EarlyDowngrade, 5) {
            self.instances[number].act_on_a_link(self.ns, &mut self.random, LinkAction::Downgrade);
        }
        if self.happens(self.mix.pause) {
            self.instances[number].act_on_a_link(self.ns, &mut self.random, LinkAction::Pause);
        }
        if self.happens(self.mix.resume) {
            self.instances[number].resume_all(self.ns);
        }
    }

    /// Begins a partition that lasts for a while.
    fn part(&mut self) {
        let (a, b) = self.two_instances();
        self.heal_at.get_or_insert(self.ns + self.random.below(PARTITION_NS));
        let (from, to) = (Site::Instance(a), Site::Instance(b));
        match self.random.below(3) {
            0 => {
                self.network.block(from, to);
                self.played.one_way += 1;
                self.note(&format!("no byte gets from {} to {}", name_of(a), name_of(b)));
            }
            1 => {
                self.network.block(from, to);
                self.network.block(to, from);
                self.played.partitions += 1;
                self.note(&format!("no byte gets between {} and {}", name_of(a), name_of(b)));
            }
            _ => {
                for other in (0..self.instances.len()).filter(|other| *other != a).map(Site::Instance) {
                    self.network.block(from, other);
                    self.network.block(other, from);
                }
                self.played.partitions += 1;
                self.note(&format!("no instance reaches {}", name_of(a)));
            }
        }
    }

    fn two_instances(&mut self) -> (usize, usize) {
        let count = self.instances.len() as u64;
        let a = self.random.below(count);
        let b = (a + 1 + self.random.below(count - 1)) % count;
        (a as usize, b as usize)
    }

    /// Perhaps the instance loses its disk, or gets an older one.
    fn replace_disk(&mut self, number: usize) -> Result<(), String> {
        if self.happens(self.mix.lost_disk) {
            self.kill(number, false);
            let seed = self.random.number();
            self.instances[number].lose_disk(seed);
            self.replaced(number, None)?;
            self.played.lost_disks += 1;
            self.note(&format!("{} loses its disk", name_of(number)));
        } else if self.happens(self.mix.restore) && self.instances[number].has_backup() {
            self.kill(number, false);
            let copied_ns = self.instances[number].restore(&mut self.random);
            self.replaced(number, copied_ns)?;
            self.played.restores += 1;
            self.note(&format!("{} gets an older disk", name_of(number)));
            if self.canary == Some(Canary::SharedBackup) {
                let other = (number + 1) % self.instances.len();
                self.kill(other, false);
                self.instances[other].disk = self.instances[number].disk.copy();
            }
        }
        Ok(())
    }

    /// The disk of the instance is another one: the copy of a time, or empty.
    fn replaced(&mut self, number: usize, copied_ns: Option<u64>) -> Result<(), String> {
        let logs = self.instances.iter().filter(|instance| instance.is_running());
        let logs = logs
            .map(|instance| Ok((instance.number, instance.log()?)))
            .collect::<Result<Vec<_>, String>>()?;
        self.auditors.links.replaced(number, self.ns, copied_ns, &logs);
        Ok(())
    }

    fn happens(&mut self, thousandths: u64) -> bool {
        self.random.below(1000) < thousandths
    }

    /// Whether a fault occurs that concerns one of the clients, or one of the connections.
    fn happens_among_clients(&mut self, thousandths: u64) -> bool {
        match self.topology.is_alone() {
            true => self.happens(thousandths),
            false => self.happens(thousandths * self.clients.len() as u64 / RATED_CLIENTS),
        }
    }

    /// The disk fails only after the start. One that fails while it is opened is another history:
    /// the journal's own (see `history`).
    fn start_on_a_failing_disk(&mut self, number: usize) -> Result<(), String> {
        let quiet = Faults { kept_percent: self.mix.disk.kept_percent, ..Faults::default() };
        self.instances[number].disk.set_faults(quiet);
        self.start(number)?;
        self.instances[number].disk.set_faults(self.mix.disk);
        Ok(())
    }

    fn start(&mut self, number: usize) -> Result<(), String> {
        let auditor = &mut self.auditors.local[number];
        if let Some(auditor) = auditor {
            auditor.clock_steps.server_starts();
        }
        let (network, random) = (&mut self.network, &mut self.random);
        self.instances[number].start(self.ns, network, random, auditor.as_mut())?;
        self.note(&format!("{} starts", name_of(number)));
        Ok(())
    }

    fn kill(&mut self, number: usize, with_power: bool) {
        let instance = &mut self.instances[number];
        instance.kill(self.ns, &mut self.network, with_power);
        if !self.topology.is_alone() && instance.may_lose_disk() && self.random.percent(30) {
            instance.back_up(self.ns);
            self.auditors.links.queues[number].copied(self.ns);
        }
    }

    fn act(&mut self) {
        for client in &mut self.clients {
            let now = self.instances[client.home()].now(self.ns);
            client.act(now, &mut self.network, &mut self.random, &mut self.auditors);
        }
    }

    /// Lets time pass, and everything happen that is due meanwhile.
    fn pass(&mut self, duration_ns: u64) -> Result<(), String> {
        let end = self.ns + duration_ns;
        let mut turns = 0;
        loop {
            while self.turn()? {
                turns += 1;
                if turns > TURNS_AT_ONCE_MAX {
                    return Err("something runs in a circle without time passing".into());
                }
            }
            let due = self.instances.iter().filter_map(Instance::next_due);
            let due = due.chain(self.network.next_due(self.ns));
            let due = due.chain(self.clients.iter().filter_map(|client| client.next_due(self.ns)));
            match due.filter(|at| *at > self.ns).min() {
                Some(at) if at <= end => {
                    self.ns = at;
                    turns = 0;
                }
                _ => break,
            }
        }
        self.ns = end;
        Ok(())
    }

    /// Does what is due at this moment; whether anything was.
    fn turn(&mut self) -> Result<bool, String> {
        let mut is_busy = false;
        for client in &mut self.clients {
            let now = self.instances[client.home()].now(self.ns);
            let mut around = client::Surroundings {
                network: &mut self.network,
                instances: &self.instances,
                topology: &self.topology,
                auditors: &mut self.auditors,
            };
            is_busy |= client.turn(now, &mut around)?;
        }
        for visitor in &mut self.visitors {
            let (now, auditor) = (self.instances[visitor.home].now(self.ns), self.auditors.of(visitor.home));
            is_busy |= visitor.turn(now, &mut self.network, auditor)?;
        }
        for operator in &mut self.operators {
            let now = self.instances[operator.home].now(self.ns);
            is_busy |= operator.turn(now, &mut self.network)?;
        }
        let running = self.instances.iter().filter(|instance| instance.is_running());
        let mut around = instance::Surroundings {
            up: running.fold(0, |up, instance| up | 1 << instance.number),
            network: &mut self.network,
            random: &mut self.random,
            defects: &mut self.defects,
        };
        for instance in &mut self.instances {
            let auditor = self.auditors.local[instance.number].as_mut();
            is_busy |= instance.turn(self.ns, &mut around, auditor)?;
            for bookmark in instance.take_conflicts() {
                self.auditors.links.conflicted(instance.number, bookmark);
            }
            self.auditors.links.removing(instance.number, &instance.take_removed());
        }
        Ok(is_busy)
    }

    fn played(&self) -> Played {
        let mut sum = self.played;
        let local = self.auditors.local.iter().flatten();
        local.map(Auditor::played).for_each(|played| sum.add(&played));
        sum.add(&self.auditors.links.played());
        self.instances.iter().for_each(|instance| sum.add(&instance.played));
        sum.stalls += self.network.stall_count();
        sum.visits += self.visitors.iter().map(Visitor::visit_count).sum::<u64>();
        sum.defined += self.operators.iter().map(Operator::answer_count).sum::<u64>();
        self.clients.iter().for_each(|client| sum.add(&client.played()));
        sum
    }
}

/// Whether it is a mistake that concerns what only one instance has.
fn is_of_casts(canary: Option<Canary>) -> bool {
    canary.is_some_and(|canary| Canary::OF_CASTS.contains(&canary))
}

/// The numbers of all instances, in any order.
fn shuffled(count: usize, random: &mut Random) -> Vec<usize> {
    let mut numbers: Vec<_> = (0..count).collect();
    for end in (1..count).rev() {
        numbers.swap(end, random.below(end as u64 + 1) as usize);
    }
    numbers
}

/// Compares the last values that were found with the expected ones; those that are `None` are
/// unknown.
fn compare(expected: &BTreeMap<u64, Option<u64>>, found: &BTreeMap<u64, u64>) -> Result<(), String> {
    for (key, value) in expected {
        let there = found.get(key);
        if value.is_some() && there != value.as_ref() {
            return Err(format!("the record {key} is {there:?}, the last message is {value:?}"));
        }
    }
    match found.iter().find(|(key, _)| !expected.contains_key(key)) {
        Some((key, value)) => Err(format!("the record {key} is {value}, and was deleted")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_seeds_give_equal_histories() {
        for (size, count) in [(Size::One, 10), (Size::Several, 20)] {
            for seed in 0..count {
                assert_eq!(play(seed, size, None), play(seed, size, None));
            }
        }
    }

    /// One that takes one message at a time is slow, and not wrong.
    #[test]
    fn a_slow_worker_has_the_time_it_needs() {
        let needs_more = |seed: u64| {
            let mut world = World::new(seed, Size::One, None);
            world.times.peace_ns = 2 * SECOND_NS;
            assert_eq!(world.trouble(), Ok(()), "seed {seed}");
            let end = world.ns + world.times.peace_ns;
            assert_eq!(world.peace().err(), None, "seed {seed}");
            world.ns > end
        };
        assert!((0..20).any(needs_more), "all workers were done before");
    }

    fn assert_found(size: Size, seeds: u64, times: usize, canaries: &[Canary]) {
        let found = |canary: Canary| {
            let is_found = |seed: &u64| play(*seed, size, Some(canary)).is_err();
            (0..seeds).filter(is_found).take(times).count()
        };
        let counts: Vec<_> = canaries.iter().map(|canary| (*canary, found(*canary))).collect();
        let missed: Vec<_> = counts.iter().filter(|(_, count)| *count < times).collect();
        assert!(missed.is_empty(), "{missed:?}");
    }

    #[test]
    #[cfg_attr(debug_assertions, ignore = "for an optimized build: make sim")]
    fn every_canary_of_casts_is_found() {
        assert_found(Size::One, 160, 3, &Canary::OF_CASTS);
        // Files are removed in worlds of one instance only.
        assert_found(Size::One, 160, 2, &[Canary::EarlyRemoval]);
    }

    #[test]
    #[cfg_attr(debug_assertions, ignore = "for an optimized build: make sim")]
    fn every_canary_of_casts_is_found_among_several_instances() {
        assert_found(Size::Several, 160, 2, &Canary::OF_CASTS);
    }

    #[test]
    #[cfg_attr(debug_assertions, ignore = "for an optimized build: make sim")]
    fn every_canary_of_parties_is_found() {
        assert_found(Size::One, 40, 4, &Canary::OF_PARTIES);
        assert_found(Size::Several, 40, 4, &Canary::OF_PARTIES);
    }

    #[test]
    #[cfg_attr(debug_assertions, ignore = "for an optimized build: make sim")]
    fn every_canary_of_links_is_found() {
        assert_found(Size::Several, 200, 3, &Canary::OF_LINKS);
    }
}
