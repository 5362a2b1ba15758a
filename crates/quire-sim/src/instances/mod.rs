//! Two to five instances with links between them, in one thread: real client cores, real brokers and real journals, over a network, disks
//! and clocks that misbehave.
//!
//! A seed draws the topology, the way in which publishers wait, the clients, and the mix of faults. In the first phase connections are cut
//! and slow, partitions hold back one or both directions, instances are killed and stopped, lose power, lose their disk or get an older one,
//! and clients fail over. In the second phase there are no faults, and everything must be correct within a time. The checks are in
//! [`auditor`].

mod auditor;
mod client;
mod defects;
mod instance;
mod network;
mod played;
mod topology;

use std::collections::BTreeMap;

use quire_command::LinkAction;
use quire_journal::Timestamp;
use quire_types::time::{Instant, Now};

use crate::disk::Faults;
use crate::random::Random;
use auditor::Auditor;
use client::Client;
use defects::Defects;
use instance::Instance;
use network::{Network, Site};
pub use played::Played;
use topology::{Topology, Waiting, name_of};

/// A deliberate mistake, to prove that a check sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Canary {
    /// A source takes records as acknowledged when it has sent them.
    EarlyLinkAcknowledgement,
    /// A link leaves out some of the records, and continues after them.
    DroppedRecords,
    /// A link leaves out some of the deletes.
    ForgottenDelete,
    /// A link exchanges the order of some records.
    SwappedRecords,
    /// A source continues where it ended, also when the destination has lost its log.
    BelievedMark,
    /// An instance keeps records that came by another path.
    KeptDuplicate,
    /// A restored backup is restored on another instance, too.
    SharedBackup,
    /// Subscribers never see some messages.
    SkippedDelivery,
    /// Publishers do not wait for a destination although nothing has downgraded it.
    EarlyDowngrade,
    /// A link sends messages that do not match its filter.
    IgnoredFilter,
}

const SECOND_NS: u64 = 1_000_000_000;
const WALL_START_NS: u64 = 1_500_000_000 * SECOND_NS;
/// How long things go wrong, in virtual time, and how long everything may then take to be well.
const TROUBLE_NS: u64 = 40 * SECOND_NS;
const PEACE_NS: u64 = 240 * SECOND_NS;
/// Turns without time passing after which something runs in a circle.
const TURNS_AT_ONCE_MAX: u32 = 100_000;
/// The longest partition.
const PARTITION_NS: u64 = 20 * SECOND_NS;
/// Lines of the history that a failure shows.
const HISTORY_LINES: usize = 60;

/// How likely each trouble is at each step of the script, in thousandths; a seed has its own.
struct Mix {
    partition: u64,
    slow: u64,
    cut: u64,
    kill: u64,
    power_cut: u64,
    stop: u64,
    lost_disk: u64,
    restore: u64,
    clock_step: u64,
    client_kill: u64,
    failover: u64,
    downgrade: u64,
    pause: u64,
    resume: u64,
    start_percent: u64,
    disk: Faults,
}

impl Mix {
    fn draw(random: &mut Random) -> Self {
        let mut chance = |most: u64| if random.percent(60) { random.below(most) } else { 0 };
        Mix {
            partition: chance(12),
            slow: chance(8),
            cut: chance(15),
            kill: chance(10),
            power_cut: chance(10),
            stop: chance(6),
            lost_disk: chance(4),
            restore: chance(4),
            clock_step: chance(6),
            client_kill: chance(10),
            failover: chance(20),
            downgrade: chance(10),
            pause: chance(6),
            resume: 2 + chance(20),
            start_percent: 1 + chance(20),
            disk: Faults {
                write_percent: chance(2),
                sync_percent: chance(2),
                read_percent: 0,
                full_percent: 0,
                kept_percent: [0, 20, 50, 80, 100][chance(5) as usize],
            },
        }
    }
}

/// Plays the history of a seed.
///
/// # Errors
/// What went wrong, and the last events before it.
pub fn play(seed: u64, canary: Option<Canary>) -> Result<Played, String> {
    let mut random = Random::new(seed ^ 0x0069_u64.rotate_left(40));
    let mix = Mix::draw(&mut random);
    let mut world = World::new(random, canary);
    let result = world.trouble(&mix).and_then(|()| world.peace());
    result.map_err(|reason| world.told(&reason))?;
    Ok(world.played())
}

struct World {
    random: Random,
    ns: u64,
    topology: Topology,
    instances: Vec<Instance>,
    network: Network,
    clients: Vec<Client>,
    auditor: Auditor,
    defects: Defects,
    heal_at: Option<u64>,
    history: Vec<String>,
    played: Played,
}

impl World {
    fn new(mut random: Random, canary: Option<Canary>) -> Self {
        let mut topology = Topology::draw(&mut random);
        let defects = Defects::new(canary, random.number());
        if defects.concern_links() {
            topology = topology.uncompressed();
        }
        let count = topology.count();
        let mut configs: Vec<_> = (0..count).map(|number| topology.config(number)).collect();
        if canary == Some(Canary::IgnoredFilter) {
            let destinations = &mut configs[0].replication.destinations;
            let topics = destinations.iter_mut().flat_map(|destination| &mut destination.topics);
            topics.for_each(|topic| topic.filter = None);
        }
        let instances = configs.into_iter().enumerate();
        let instances =
            instances.map(|(number, config)| Instance::new(number, config, random.number())).collect();
        let publisher_count = 1 + random.below(3) as usize;
        let subscriber_count = 1 + random.below(3) as usize;
        let publishers: Vec<_> = (0..publisher_count).map(|number| format!("publisher-{number}")).collect();
        let subscribers: Vec<_> =
            (0..subscriber_count).map(|number| format!("subscriber-{number}")).collect();
        let mut clients = Vec::new();
        for (number, name) in publishers.iter().enumerate() {
            let mut order = shuffled(count, &mut random);
            // Where not every instance is waited for, some publishers stay on one of them.
            if !topology.is_strict() && random.percent(50) {
                order.truncate(1);
            }
            clients.push(Client::publisher(number, name.clone(), order, &mut random));
        }
        for (stream, name) in subscribers.iter().enumerate() {
            let order = shuffled(count, &mut random);
            clients.push(Client::subscriber(clients.len(), stream, name.clone(), order, &mut random));
        }
        let auditor = Auditor::new(canary, random.number(), &topology, &publishers, &subscribers);
        World {
            ns: 0,
            instances,
            network: Network::new(random.number()),
            clients,
            auditor,
            defects,
            heal_at: None,
            history: vec![format!("{} of {count}, waits: {:?}", topology.kind, topology.waiting)],
            played: Played {
                instances: count as u64,
                strict: u64::from(topology.is_strict()),
                filtered: u64::from(topology.has_filter()),
                compressed: u64::from(topology.is_compressed()),
                ..Played::default()
            },
            topology,
            random,
        }
    }

    fn now(&self) -> Now {
        Now { instant: Instant::from_ns(self.ns), wall: Timestamp::from_ns(WALL_START_NS + self.ns) }
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
    fn trouble(&mut self, mix: &Mix) -> Result<(), String> {
        for number in 0..self.instances.len() {
            self.start(number)?;
        }
        while self.ns < TROUBLE_NS {
            for number in 0..self.instances.len() {
                if !self.instances[number].is_running() && self.random.percent(mix.start_percent) {
                    self.start(number)?;
                    self.instances[number].disk.set_faults(mix.disk);
                }
            }
            self.misbehave(mix)?;
            self.act(false);
            let pause_ns = self.random.below(SECOND_NS / 10);
            self.pass(pause_ns)?;
            self.auditor.fault()?;
        }
        Ok(())
    }

    /// Nothing goes wrong any more, and nothing new is asked for.
    fn peace(&mut self) -> Result<(), String> {
        self.network.heal(self.ns);
        self.note("peace");
        self.clients.iter_mut().for_each(Client::settle);
        for number in 0..self.instances.len() {
            self.instances[number].disk.set_faults(Faults::default());
            self.clients.push(Client::querier(self.clients.len(), number, &mut self.random));
            self.instances[number].resume_all(self.ns);
        }
        let end = self.ns + PEACE_NS;
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
            self.act(true);
            self.pass(SECOND_NS / 2)?;
            self.auditor.fault()?;
            if self.clients.iter().all(Client::is_done) {
                result = self.verdict();
                if result.is_ok() {
                    return Ok(());
                }
            }
        }
        result
    }

    fn verdict(&mut self) -> Result<(), String> {
        let logs = self.instances.iter().map(Instance::log).collect::<Result<Vec<_>, _>>()?;
        self.auditor.verdict(&logs)?;
        let expected = self.auditor.last_values();
        for client in self.clients.iter().filter(|client| client.is_querier()) {
            let (instance, found) = client.found().ok_or("an instance did not answer a query")?;
            compare(&expected, found).map_err(|reason| format!("{}: {reason}", name_of(instance)))?;
        }
        Ok(())
    }

    fn misbehave(&mut self, mix: &Mix) -> Result<(), String> {
        if self.heal_at.is_some_and(|at| at <= self.ns) {
            self.heal_at = None;
            self.network.heal(self.ns);
            self.note("the network heals");
        }
        if self.happens(mix.partition) {
            self.part();
        }
        if self.happens(mix.slow) {
            let (a, b) = self.two_instances();
            let byte_ns = 1_000 + self.random.below(200_000);
            self.network.slow_down(Site::Instance(a), Site::Instance(b), byte_ns);
            self.heal_at.get_or_insert(self.ns + PARTITION_NS);
            self.played.slow += 1;
            self.note(&format!("slow: {} to {}", name_of(a), name_of(b)));
        }
        if self.happens(mix.cut) {
            self.played.cuts += u64::from(self.network.cut_one(&mut self.random, self.ns));
        }
        let now = self.now();
        if self.happens(mix.client_kill) {
            let number = self.random.below(self.clients.len() as u64) as usize;
            self.clients[number].restart(now, &mut self.network, &mut self.random);
            self.played.client_kills += 1;
        }
        if self.happens(mix.failover) {
            let number = self.random.below(self.clients.len() as u64) as usize;
            self.clients[number].lose_instance(now, &mut self.network, &mut self.random);
        }
        let number = self.random.below(self.instances.len() as u64) as usize;
        if self.happens(mix.clock_step) {
            let steps = [-86_400, -3_600, -1, 1, 3_600, 86_400];
            let step_ns = steps[self.random.below(6) as usize] * SECOND_NS as i64;
            self.instances[number].step_clock(step_ns);
            self.played.clock_steps += 1;
        }
        if self.topology.waiting == Waiting::Downgrading && self.happens(mix.downgrade) {
            let is_downgraded = self.random.percent(40);
            let action = if is_downgraded { LinkAction::Downgrade } else { LinkAction::Upgrade };
            self.instances[number].act_on_a_link(self.ns, &mut self.random, action);
        }
        if self.defects.is_meant(Canary::EarlyDowngrade, 5) {
            self.instances[number].act_on_a_link(self.ns, &mut self.random, LinkAction::Downgrade);
        }
        if self.happens(mix.pause) {
            self.instances[number].act_on_a_link(self.ns, &mut self.random, LinkAction::Pause);
        }
        if self.happens(mix.resume) {
            self.instances[number].resume_all(self.ns);
        }
        if self.happens(mix.power_cut) {
            self.kill(number, true);
            self.played.power_cuts += 1;
            self.note(&format!("{} loses power", name_of(number)));
        } else if self.happens(mix.kill) || (self.instances[number].is_poisoned() && self.random.percent(5)) {
            self.kill(number, false);
            self.played.kills += 1;
            self.note(&format!("{} is killed", name_of(number)));
        } else if self.happens(mix.stop) {
            self.instances[number].begin_stop(self.ns);
            self.played.stops += 1;
            self.note(&format!("{} stops", name_of(number)));
        }
        if self.happens(mix.lost_disk) {
            self.replace_disk(number, |instance, random| instance.lose_disk(random.number()))?;
            self.played.lost_disks += 1;
            self.note(&format!("{} loses its disk", name_of(number)));
        } else if self.happens(mix.restore) && self.instances[number].has_backup() {
            self.replace_disk(number, Instance::restore)?;
            self.played.restores += 1;
            self.note(&format!("{} gets an older disk", name_of(number)));
            if self.defects.canary == Some(Canary::SharedBackup) {
                let other = (number + 1) % self.instances.len();
                self.kill(other, false);
                self.instances[other].lose_disk(0);
                self.instances[other].disk = self.instances[number].disk.copy();
            }
        }
        Ok(())
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
                self.note(&format!("nothing gets from {} to {}", name_of(a), name_of(b)));
            }
            1 => {
                self.network.block(from, to);
                self.network.block(to, from);
                self.played.partitions += 1;
                self.note(&format!("nothing gets between {} and {}", name_of(a), name_of(b)));
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

    /// The instance is killed, and gets another disk.
    fn replace_disk(
        &mut self,
        number: usize,
        replace: impl FnOnce(&mut Instance, &mut Random),
    ) -> Result<(), String> {
        self.kill(number, false);
        let logs = self.instances.iter().filter(|instance| instance.is_running());
        let logs = logs
            .map(|instance| Ok((instance.number, instance.log()?)))
            .collect::<Result<Vec<_>, String>>()?;
        self.auditor.replaced(number, self.ns, &logs);
        replace(&mut self.instances[number], &mut self.random);
        Ok(())
    }

    fn happens(&mut self, thousandths: u64) -> bool {
        self.random.below(1000) < thousandths
    }

    fn start(&mut self, number: usize) -> Result<(), String> {
        // A disk that fails while it is opened is another history.
        let quiet = Faults { kept_percent: 50, ..Faults::default() };
        self.instances[number].disk.set_faults(quiet);
        self.instances[number].start(&mut self.network, self.ns, &mut self.random)?;
        self.note(&format!("{} starts", name_of(number)));
        Ok(())
    }

    fn kill(&mut self, number: usize, with_power: bool) {
        let instance = &mut self.instances[number];
        instance.kill(&mut self.network, self.ns, with_power);
        if self.random.percent(30) {
            instance.back_up();
        }
    }

    fn act(&mut self, is_settling: bool) {
        let now = self.now();
        for client in &mut self.clients {
            client.act(now, &mut self.network, &mut self.random, &mut self.auditor, is_settling);
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
            let due = self.instances.iter().filter_map(Instance::next_due).chain(self.network.next_due());
            let due = due.chain(self.clients.iter().filter_map(Client::next_due));
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
        let now = self.now();
        let mut is_busy = false;
        for client in &mut self.clients {
            is_busy |=
                client.turn(now, &mut self.network, &self.instances, &self.topology, &mut self.auditor)?;
        }
        let up: Vec<bool> = self.instances.iter().map(Instance::is_running).collect();
        for instance in &mut self.instances {
            is_busy |= instance.turn(self.ns, &mut self.network, &mut self.random, &up, &mut self.defects);
            for (bookmark, is_other) in instance.take_conflicts() {
                self.auditor.conflicted(instance.number, bookmark, is_other);
            }
        }
        Ok(is_busy)
    }

    fn played(&self) -> Played {
        let sum = |count: fn(&Instance) -> u64| self.instances.iter().map(count).sum();
        Played {
            published: self.auditor.published_count(),
            delivered: self.auditor.delivered_count(),
            links: sum(|instance| instance.links_up),
            poisoned: sum(|instance| instance.poisoned),
            downgrades: sum(|instance| instance.downgrades),
            pauses: sum(|instance| instance.pauses),
            failovers: self.clients.iter().map(|client| client.failover_count).sum(),
            torn: self.auditor.torn_count(),
            conflicts: self.auditor.conflict_count,
            excused: self.auditor.excused_count,
            ..self.played
        }
    }
}

/// The numbers of all instances, in any order.
fn shuffled(count: usize, random: &mut Random) -> Vec<usize> {
    let mut numbers: Vec<_> = (0..count).collect();
    for end in (1..count).rev() {
        numbers.swap(end, random.below(end as u64 + 1) as usize);
    }
    numbers
}

/// Compares the last values of an instance with the expected ones; those that are `None` are unknown.
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
        for seed in 0..20 {
            assert_eq!(play(seed, None), play(seed, None));
        }
    }

    /// The new instance had the message from the first one, did not wait for the third one, and so did not count its copy.
    #[test]
    fn a_message_that_is_sent_again_counts_only_the_copies_that_the_new_instance_waited_for() {
        play(30_000_255, None).unwrap_or_else(|reason| panic!("{reason}"));
    }

    /// An instance had the messages of a path that was not waited for. So it did not wait for the next instance when they came over another
    /// path.
    #[test]
    fn a_message_that_came_over_another_path_before_counts_no_copy_behind_it() {
        play(70_007_561, None).unwrap_or_else(|reason| panic!("{reason}"));
    }

    #[test]
    fn every_trouble_happens_and_nothing_goes_wrong() {
        let mut all = Played::default();
        for seed in 0..60 {
            all.add(&play(seed, None).unwrap_or_else(|reason| panic!("seed {seed}: {reason}")));
        }
        assert!(all.counters().iter().all(|count| **count > 0), "{all:?}");
    }

    #[test]
    fn every_canary_is_found() {
        let found = |canary| (0..200).filter(|seed| play(*seed, Some(canary)).is_err()).take(3).count();
        for canary in [
            Canary::EarlyLinkAcknowledgement,
            Canary::DroppedRecords,
            Canary::ForgottenDelete,
            Canary::SwappedRecords,
            Canary::BelievedMark,
            Canary::KeptDuplicate,
            Canary::SharedBackup,
            Canary::SkippedDelivery,
            Canary::EarlyDowngrade,
            Canary::IgnoredFilter,
        ] {
            assert_eq!(found(canary), 3, "{canary:?}");
        }
    }
}
