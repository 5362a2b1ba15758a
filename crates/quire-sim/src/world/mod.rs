//! The whole system in one thread: real client cores, a real broker and a real journal, over a network, a disk and clocks that misbehave.
//!
//! A seed draws the cast and the mix of faults. In the first phase every possible fault occurs: connections are cut, are silent, are slow,
//! or bring bytes one by one. Server and clients are killed. The power fails. Syncs and writes fail or hang. The wall clock jumps. In the
//! second phase there are no faults, and everything must be correct: every acknowledged message is in the log once and in order, and every
//! reader has seen exactly the log. The checks are in [`auditor`], which sees only the view of users and never the state of a server, and,
//! for the journal, in [`holders`].

mod auditor;
mod client;
mod delays;
mod holders;
mod jobs;
mod last_values;
mod network;
mod operator;
mod played;
mod replays;
mod server;
mod visitor;
mod worker;

use std::time::Duration;

use quire_journal::Timestamp;
use quire_types::time::{Instant, Now};

use crate::disk::{Faults, SimulatedDisk};
use crate::random::Random;
use auditor::Auditor;
use client::Client;
use last_values::Ledger;
use network::Network;
use operator::Operator;
pub use played::Played;
use server::Server;
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
    /// The server drops some of the bytes that it received, as a turn does that continues after a panic.
    DroppedInput,
    /// Clients publish without the delays that they were given.
    ForgottenDelay,
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
}

/// How long things go wrong, in virtual time, and how long everything may then take to be well, or the next message to leave a queue.
const TROUBLE_NS: u64 = 20 * SECOND_NS;
const PEACE_NS: u64 = 90 * SECOND_NS;
const SECOND_NS: u64 = 1_000_000_000;
const WALL_START_NS: u64 = 1_500_000_000 * SECOND_NS;
/// Turns without time passing after which something runs in a circle.
const TURNS_AT_ONCE_MAX: u32 = 100_000;
/// Number of the first visitor as a process of the network and as a publisher.
const FIRST_VISITOR: usize = 1000;
/// Number of the operator as a process of the network.
const OPERATOR: usize = 2000;
/// The `max_client_backlog` of most worlds, small enough to be reached, and the smallest that a configuration may name.
const BACKLOG_MAX: u64 = 64 << 10;
const BACKLOG_MAX_LEAST: u64 = 1024;

/// How likely each trouble is at each step of the script, in thousandths; a seed has its own.
struct Mix {
    cut: u64,
    silence: u64,
    client_kill: u64,
    server_kill: u64,
    power_cut: u64,
    server_stop: u64,
    clock_step: u64,
    disk: Faults,
}

impl Mix {
    fn draw(random: &mut Random) -> Self {
        // Each may be absent: one that is lets the others go deeper.
        let mut chance = |most: u64| if random.percent(50) { random.below(most) } else { 0 };
        Mix {
            cut: chance(30),
            silence: chance(15),
            client_kill: chance(10),
            server_kill: chance(6),
            power_cut: chance(6),
            server_stop: chance(6),
            clock_step: chance(10),
            disk: Faults {
                write_percent: chance(3),
                sync_percent: chance(3),
                read_percent: 0,
                full_percent: chance(4),
                kept_percent: [0, 20, 50, 80, 100][chance(5) as usize],
            },
        }
    }
}

/// Plays the history of a seed.
///
/// # Errors
/// What went wrong, in words.
pub fn play(seed: u64, canary: Option<Canary>) -> Result<Played, String> {
    let mut random = Random::new(seed ^ 0x0051_u64.rotate_left(40));
    let mix = Mix::draw(&mut random);
    let mut world = World::new(seed, random, canary);
    world.trouble(&mix)?;
    world.peace()?;
    world.auditor.verdict(&world.clients)?;
    world.played.leases = world.server.judge_leases(&world.auditor)?;
    Ok(world.played())
}

struct World {
    random: Random,
    clock: Clock,
    disk: SimulatedDisk,
    server: Server,
    network: Network,
    clients: Vec<Client>,
    visitors: Vec<Visitor>,
    operator: Option<Operator>,
    auditor: Auditor,
    played: Played,
}

/// Virtual time. Timers run on the one, messages are stamped with the other.
#[derive(Clone, Copy)]
struct Clock {
    ns: u64,
    wall_shift_ns: i64,
}

impl Clock {
    fn now(&self) -> Now {
        let wall = (WALL_START_NS + self.ns).saturating_add_signed(self.wall_shift_ns);
        Now { instant: Instant::from_ns(self.ns), wall: Timestamp::from_ns(wall) }
    }
}

impl World {
    fn new(seed: u64, mut random: Random, canary: Option<Canary>) -> Self {
        let disk = SimulatedDisk::new(seed, Faults::default());
        if canary == Some(Canary::ForgottenSync) {
            disk.forget_syncs();
        }
        let clock = Clock { ns: 0, wall_shift_ns: 0 };
        let publishers = 1 + random.below(3);
        let readers = 2 + random.below(4);
        let mut clients: Vec<_> =
            (0..publishers).map(|number| Client::publisher(number, &mut random, clock.now())).collect();
        clients.extend((0..readers).map(|number| Client::reader(number, &mut random, clock.now())));
        let workers = random.below(5);
        clients.extend((0..workers).map(|number| Client::worker(number, &mut random, clock.now())));
        // One worker always takes the messages of the queue.
        clients.push(Client::worker(workers / 3 * 3 + 3, &mut random, clock.now()));
        // Drawn separately, so that the histories of seeds without visitors stay as they were.
        let mut apart = Random::new(seed ^ 0x0076_u64.rotate_left(40));
        let visitor_count = if apart.percent(50) { 1 + apart.below(3) } else { 0 };
        let backlog_max = if apart.percent(20) { BACKLOG_MAX_LEAST } else { BACKLOG_MAX };
        let mut maintenance = Random::new(seed ^ 0x006d_u64.rotate_left(40));
        let has_rules = maintenance.percent(50);
        if has_rules {
            clients.iter_mut().for_each(Client::linger);
        }
        let rules = has_rules.then_some(maintenance);
        let mut defining = Random::new(seed ^ 0x0071_u64.rotate_left(40));
        let operator = defining.percent(50).then(|| Operator::new(OPERATOR, Random::new(defining.number())));
        let mut last_values = Random::new(seed ^ 0x0073_u64.rotate_left(40));
        // Drawn separately, so that the histories of seeds without these topics and programs stay as they were.
        let mut more = Random::new(seed ^ 0x0074_u64.rotate_left(40));
        let topics = last_values::draw_topics(&mut last_values, &mut more);
        for (name, program) in
            last_values::Program::draw_all(&topics, &mut last_values, &mut more, !has_rules)
        {
            clients.push(Client::last_values(name, program, &mut last_values, clock.now()));
        }
        let mut jobs = Random::new(seed ^ 0x006a_u64.rotate_left(40));
        let has_jobs = jobs.percent(50);
        if has_jobs {
            for (name, program) in jobs::Program::draw_all(&mut jobs, canary) {
                clients.push(Client::jobs(name, program, &mut jobs, clock.now()));
            }
        }
        let mut combined = Random::new(seed ^ 0x0063_u64.rotate_left(40));
        if combined.percent(50) {
            let program = replays::Program::new(Random::new(combined.number()), canary);
            clients.push(Client::replays("combined".into(), program, &mut combined, clock.now()));
        }
        let ledger = Ledger::new(topics.clone(), canary, last_values.number());
        let visitors = (0..visitor_count)
            .map(|number| Visitor::new(FIRST_VISITOR + number as usize, Random::new(apart.number())));
        World {
            visitors: visitors.collect(),
            operator,
            server: Server::new(disk.clone(), backlog_max, rules, topics, has_jobs, canary),
            network: Network::new(random.number()),
            auditor: Auditor::new(canary, random.number(), ledger),
            random,
            clock,
            disk,
            clients,
            played: Played::default(),
        }
    }

    /// Work continues while faults occur.
    fn trouble(&mut self, mix: &Mix) -> Result<(), String> {
        let quiet = Faults { kept_percent: mix.disk.kept_percent, ..Faults::default() };
        while self.clock.ns < TROUBLE_NS {
            if !self.server.is_running() && self.random.percent(20) {
                // A disk that fails while it is opened is another history: the journal's own (see `history`).
                self.disk.set_faults(quiet);
                self.start_server()?;
                self.disk.set_faults(mix.disk);
            }
            self.misbehave(mix);
            for client in 0..self.clients.len() {
                let now = self.clock.now();
                self.clients[client].act(now, &mut self.random, &mut self.auditor);
            }
            for visitor in &mut self.visitors {
                visitor.act(self.clock.now(), &mut self.network, &self.server, &mut self.auditor);
            }
            if let Some(operator) = &mut self.operator {
                operator.act(self.clock.now(), &mut self.network, &self.server);
            }
            let pause_ns = self.random.below(20_000_000);
            self.pass(pause_ns)?;
        }
        Ok(())
    }

    /// Nothing goes wrong any more, and nothing new is asked for.
    fn peace(&mut self) -> Result<(), String> {
        self.disk.set_faults(Faults::default());
        self.network.calm();
        self.server.calm();
        let now = self.clock.now();
        self.clients.iter_mut().for_each(Client::settle);
        self.visitors.iter_mut().for_each(|visitor| visitor.settle(&mut self.network));
        self.operator.iter_mut().for_each(|operator| operator.settle(&mut self.network));
        self.clients.push(Client::witness_of_all(&mut self.random, now));
        let mut end = self.clock.ns + PEACE_NS;
        let mut taken = 0;
        while self.clock.ns < end {
            if self.server.is_poisoned() {
                self.kill_server();
            }
            if !self.server.is_running() {
                self.start_server()?;
            }
            let now = self.clock.now();
            for client in &mut self.clients {
                client.act(now, &mut self.random, &mut self.auditor);
            }
            self.pass(SECOND_NS / 10)?;
            if self.clients.iter().all(Client::is_done) && self.auditor.is_complete(&self.clients) {
                break;
            }
            // One worker that takes one message at a time is slow, and not wrong.
            if self.auditor.taken_count() > taken {
                taken = self.auditor.taken_count();
                end = self.clock.ns + PEACE_NS;
            }
        }
        Ok(())
    }

    fn misbehave(&mut self, mix: &Mix) {
        let now = self.clock.now();
        if self.happens(mix.cut) {
            self.played.cuts += u64::from(self.network.cut_one(&mut self.random));
        }
        if self.happens(mix.silence) {
            self.played.silences += u64::from(self.network.silence_one(&mut self.random));
        }
        if self.happens(mix.client_kill) {
            let client = self.random.below(self.clients.len() as u64) as usize;
            let drained = self.clients[client].drained(&self.network, now);
            self.network.client_is_gone(client);
            self.clients[client].restart(now, drained, &mut self.random, &mut self.auditor);
            self.played.client_kills += 1;
        }
        if self.happens(mix.clock_step) {
            let steps = [-86_400, -3_600, -1, 1, 3_600, 86_400];
            let step_ns = steps[self.random.below(6) as usize] * SECOND_NS as i64;
            self.clock.wall_shift_ns += step_ns;
            self.auditor.clock_steps.step(step_ns);
            self.auditor.last_values.clock_stepped();
            self.played.clock_steps += 1;
        }
        if !self.server.is_running() {
            return;
        }
        if self.happens(mix.power_cut) {
            self.kill_server();
            self.disk.cut_power();
            self.played.power_cuts += 1;
        } else if self.happens(mix.server_kill) || (self.server.is_poisoned() && self.random.percent(5)) {
            self.kill_server();
            self.played.kills += 1;
        } else if self.happens(mix.server_stop) {
            self.server.begin_stop(now);
            self.played.stops += 1;
        }
    }

    fn happens(&mut self, thousandths: u64) -> bool {
        self.random.below(1000) < thousandths
    }

    fn start_server(&mut self) -> Result<(), String> {
        self.auditor.clock_steps.server_starts();
        self.server.start(self.clock.now(), &mut self.network, &mut self.random, &mut self.auditor)
    }

    fn kill_server(&mut self) {
        self.server.kill();
        self.network.server_is_gone();
    }

    /// Lets time pass, and everything happen that is due meanwhile.
    fn pass(&mut self, duration_ns: u64) -> Result<(), String> {
        let end = self.clock.ns + duration_ns;
        let mut turns = 0;
        loop {
            while self.turn()? {
                turns += 1;
                if turns > TURNS_AT_ONCE_MAX {
                    return Err("something runs in a circle without time passing".into());
                }
            }
            let due = [self.network.next_due(), self.server.next_due()].into_iter().flatten();
            let due = due.chain(self.clients.iter().filter_map(|client| client.next_due(&self.network)));
            match due.filter(|at| *at > self.clock.ns).min() {
                Some(at) if at <= end => {
                    self.clock.ns = at;
                    turns = 0;
                }
                _ => break,
            }
        }
        self.clock.ns = end;
        Ok(())
    }

    /// Does what is due at this moment; whether anything was.
    fn turn(&mut self) -> Result<bool, String> {
        let now = self.clock.now();
        let mut is_busy = false;
        for (number, client) in self.clients.iter_mut().enumerate() {
            is_busy |= client.turn(number, now, &mut self.network, &self.server, &mut self.auditor)?;
        }
        for visitor in &mut self.visitors {
            is_busy |= visitor.turn(now, &mut self.network, &mut self.auditor)?;
        }
        if let Some(operator) = &mut self.operator {
            is_busy |= operator.turn(now, &mut self.network)?;
        }
        is_busy |= self.server.turn(now, &mut self.network, &mut self.random, &mut self.auditor)?;
        Ok(is_busy)
    }

    fn played(&self) -> Played {
        let [maintained, removed, cut_short] = self.server.maintenance_counts();
        let [queried, followed, left, differences, deleted, earlier, paged, conflated, replaced] =
            self.auditor.last_values.counts();
        Played {
            maintained,
            removed,
            cut_short,
            queried,
            followed,
            left,
            differences,
            deleted,
            earlier,
            paged,
            conflated,
            replaced,
            published: self.auditor.published_count(),
            delivered: self.auditor.delivered_count(),
            acknowledged: self.auditor.acknowledged_count(),
            poisoned: self.server.poisoned_count(),
            hung_syncs: self.server.hung_count(),
            stalls: self.network.stall_count(),
            visits: self.visitors.iter().map(Visitor::visit_count).sum(),
            runs: self.auditor.jobs.run_count(),
            combined: self.auditor.replays.count(),
            defined: self.operator.as_ref().map_or(0, Operator::answer_count),
            ..self.played
        }
    }
}

/// A duration in nanoseconds.
const fn ns(duration: Duration) -> u64 {
    duration.as_nanos() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_seeds_give_equal_histories() {
        for seed in 0..10 {
            assert_eq!(play(seed, None), play(seed, None));
        }
    }

    #[test]
    fn every_trouble_happens_and_nothing_goes_wrong() {
        let mut all = Played::default();
        for seed in 0..40 {
            all.add(&play(seed, None).unwrap_or_else(|reason| panic!("seed {seed}: {reason}")));
        }
        assert!(all.counters().iter().all(|count| **count > 0), "{all:?}");
    }

    /// Found by seed 699: 950 messages waited for a worker with a backlog of one, which takes ten a second.
    #[test]
    fn a_slow_worker_has_the_time_it_needs() {
        assert_eq!(play(699, None).err(), None);
    }

    /// While the client asked about the records that it had lost, conflated messages about other records came.
    #[test]
    fn a_conflated_view_after_a_reconnect_has_records_of_several_instants() {
        assert_eq!(play(60_000_621, None).err(), None);
    }

    /// The records of a repeated query came after the answers to two replacements.
    #[test]
    fn records_come_after_the_answers_to_several_replacements() {
        assert_eq!(play(80_002_456, None).err(), None);
    }

    /// A conflated subscription without `oof` had a message that a crash of the server lost, and received it again.
    #[test]
    fn a_message_that_a_crash_lost_comes_again_to_a_conflated_subscription() {
        assert_eq!(play(80_005_481, None).err(), None);
    }

    /// A stop waited two seconds for a sync. Meanwhile leases ran out that their clients renewed.
    #[test]
    fn a_stop_that_waits_for_the_disk_ends_no_lease() {
        assert_eq!(play(100_607, None).err(), None);
    }

    #[test]
    fn every_canary_is_found() {
        let found = |canary| (0..160).filter(|seed| play(*seed, Some(canary)).is_err()).take(4).count();
        for canary in [
            Canary::ForgottenSync,
            Canary::EarlyAcknowledgement,
            Canary::SkippedDelivery,
            Canary::RepeatedDelivery,
            Canary::SwappedDelivery,
            Canary::DroppedInput,
            Canary::ForgottenDelay,
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
        ] {
            assert_eq!(found(canary), 4, "{canary:?}");
        }
    }
}
