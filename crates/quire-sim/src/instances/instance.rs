//! One instance: a broker, its journal on its own simulated disk, and the threads that read and write for it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::Path;
use std::sync::Arc;

use quire_broker::{
    Access, AdminCommand, AdminReply, Broker, BrokerConfig, ConnectionId, Event, Input, Output, ReadDone,
    TransportId,
};
use quire_command::LinkAction;
use quire_journal::{AllTopics, Bookmark, Journal, Options, Position, RecordKind, Timestamp};
use quire_types::time::{Instant, Now};

use super::defects::Defects;
use super::network::{Arrival, Network, Site};
use super::topology::name_of;
use super::{Canary, SECOND_NS, WALL_START_NS};
use crate::disk::{Faults, SimulatedDisk};
use crate::random::Random;

const DIRECTORY: &str = "journal";

/// How long a connection attempt takes that nothing answers, at most.
const CONNECT_NS: u64 = 3 * SECOND_NS;

pub(super) struct Instance {
    pub number: usize,
    pub disk: SimulatedDisk,
    config: BrokerConfig,
    running: Option<Running>,
    /// Copies of the disk of earlier times.
    backups: Vec<SimulatedDisk>,
    wall_shift_ns: i64,
    /// By name, when each destination was not waited for last; `u64::MAX`: it is not now.
    not_waited_for: BTreeMap<String, u64>,
    starts: u64,
    pub poisoned: u64,
    pub downgrades: u64,
    pub pauses: u64,
    pub links_up: u64,
    /// Messages that it dropped although its log does not have them, and whether another message has their bookmark.
    conflicts: Vec<(Bookmark, bool)>,
}

struct Running {
    broker: Broker,
    /// When the sync under way returns.
    sync_at: Option<u64>,
    /// Finished reads, and the times at which the broker gets them.
    reads: VecDeque<(u64, ReadDone)>,
    /// Attempts to connect to a destination that end at a time.
    opening: Vec<(u64, u32, usize)>,
    /// Connections between instances.
    links: BTreeSet<u64>,
    is_poisoned: bool,
    /// Something was handed in outside a turn.
    is_touched: bool,
}

/// A record of the log of an instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Logged {
    pub publisher: u64,
    pub sequence: u64,
    /// The number of the message; `None`: it is a delete.
    pub value: Option<u64>,
    /// It passed more than one instance.
    pub is_passed_on: bool,
}

impl Instance {
    pub fn new(number: usize, config: BrokerConfig, seed: u64) -> Self {
        Instance {
            number,
            disk: SimulatedDisk::new(seed, Faults::default()),
            config,
            running: None,
            backups: Vec::new(),
            wall_shift_ns: 0,
            not_waited_for: BTreeMap::new(),
            starts: 0,
            poisoned: 0,
            downgrades: 0,
            pauses: 0,
            links_up: 0,
            conflicts: Vec::new(),
        }
    }

    fn site(&self) -> Site {
        Site::Instance(self.number)
    }

    fn now(&self, ns: u64) -> Now {
        let wall = (WALL_START_NS + ns).saturating_add_signed(self.wall_shift_ns);
        Now { instant: Instant::from_ns(ns), wall: Timestamp::from_ns(wall) }
    }

    pub fn is_running(&self) -> bool {
        self.running.is_some()
    }

    pub fn is_poisoned(&self) -> bool {
        self.running.as_ref().is_some_and(|running| running.is_poisoned)
    }

    pub fn take_conflicts(&mut self) -> Vec<(Bookmark, bool)> {
        std::mem::take(&mut self.conflicts)
    }

    pub fn step_clock(&mut self, step_ns: i64) {
        self.wall_shift_ns += step_ns;
    }

    /// Whether it waited for a destination since a time.
    pub fn has_waited_for(&self, destination: &str, since_ns: u64) -> bool {
        self.not_waited_for.get(destination).is_none_or(|last| *last < since_ns)
    }

    /// # Errors
    /// It does not start: no crash may make damage.
    pub fn start(&mut self, network: &mut Network, now_ns: u64, random: &mut Random) -> Result<(), String> {
        network.site_is_gone(self.site(), now_ns, false);
        let name = name_of(self.number);
        let options =
            Options { segment_size: 64 << 10, prepared_segments: 1, ..self.config.journal_options() };
        let (journal, _) =
            Journal::driven_by_hand(Arc::new(self.disk.clone()), Path::new(DIRECTORY), &options)
                .map_err(|error| format!("the journal of {name} does not open again: {error}"))?;
        let mut broker = Broker::new(self.config.clone(), journal)
            .map_err(|error| format!("the broker of {name} does not start: {error}"))?;
        self.starts += 1;
        let (mut pace, mut elapsed_ns) = (Random::new(random.number()), 0);
        broker.set_stopwatch(Box::new(move || {
            elapsed_ns += pace.below(200_000);
            Instant::from_ns(elapsed_ns)
        }));
        // It waits for every sync destination at first.
        for last in self.not_waited_for.values_mut().filter(|last| **last == u64::MAX) {
            *last = now_ns;
        }
        self.running = Some(Running {
            broker,
            sync_at: None,
            reads: VecDeque::new(),
            opening: Vec::new(),
            links: BTreeSet::new(),
            is_poisoned: false,
            is_touched: true,
        });
        Ok(())
    }

    /// The process is gone between two instructions.
    pub fn kill(&mut self, network: &mut Network, now_ns: u64, with_power: bool) {
        if let Some(running) = self.running.take() {
            running.broker.abandon();
        }
        network.site_is_gone(self.site(), now_ns, with_power);
        if with_power {
            self.disk.cut_power();
        }
    }

    /// It stops as an operator stops it.
    pub fn begin_stop(&mut self, now_ns: u64) {
        self.hand_in(now_ns, Input::Shutdown);
    }

    /// An operator changes the link to one of the destinations.
    pub fn act_on_a_link(&mut self, now_ns: u64, random: &mut Random, action: LinkAction) {
        let count = self.config.replication.destinations.len() as u64;
        let destination = self.config.replication.destinations[random.below(count) as usize].name.clone();
        let command = AdminCommand::Link { destination, action };
        self.hand_in(now_ns, Input::Admin { ticket: 0, command });
    }

    /// An operator ends all pauses.
    pub fn resume_all(&mut self, now_ns: u64) {
        for number in 0..self.config.replication.destinations.len() {
            let destination = self.config.replication.destinations[number].name.clone();
            let command = AdminCommand::Link { destination, action: LinkAction::Resume };
            self.hand_in(now_ns, Input::Admin { ticket: 0, command });
        }
    }

    fn hand_in(&mut self, now_ns: u64, input: Input<'_>) {
        let now = self.now(now_ns);
        if let Some(running) = &mut self.running {
            running.broker.handle(now, input);
            running.is_touched = true;
        }
    }

    /// The directory is copied while the instance is down.
    pub fn back_up(&mut self) {
        self.backups.push(self.disk.copy());
    }

    pub fn has_backup(&self) -> bool {
        !self.backups.is_empty()
    }

    /// The directory of an earlier time replaces the present one.
    pub fn restore(&mut self, random: &mut Random) {
        if !self.backups.is_empty() {
            let number = random.below(self.backups.len() as u64) as usize;
            self.disk = self.backups[number].copy();
            self.backups.truncate(number + 1);
        }
    }

    /// The disk is replaced by an empty one. Backups are elsewhere.
    pub fn lose_disk(&mut self, seed: u64) {
        self.disk = SimulatedDisk::new(seed, Faults::default());
    }

    pub fn next_due(&self) -> Option<u64> {
        let running = self.running.as_ref()?;
        let timeout = running.broker.next_timeout().map(|at| at.as_ns());
        let read = running.reads.front().map(|(at, _)| *at);
        let opening = running.opening.iter().map(|(at, ..)| *at).min();
        [timeout, running.sync_at, read, opening].into_iter().flatten().min()
    }

    /// Passes on the input and carries out the output of the broker. Returns whether anything happened.
    pub fn turn(
        &mut self,
        now_ns: u64,
        network: &mut Network,
        random: &mut Random,
        up: &[bool],
        defects: &mut Defects,
    ) -> bool {
        let (now, site) = (self.now(now_ns), self.site());
        let Some(running) = &mut self.running else { return false };
        let mut is_busy = std::mem::take(&mut running.is_touched);
        for (connection, arrival) in network.arrivals(site, now_ns) {
            is_busy = true;
            running.arrived(now, connection, &arrival);
        }
        is_busy |= running.disk_answers(now);
        is_busy |= running.connect(now, site, network, up);
        if running.broker.next_timeout().is_some_and(|at| at <= now.instant) {
            is_busy = true;
            running.broker.handle(now, Input::Timeout);
        }
        if !is_busy {
            return false;
        }
        running.broker.finish_turn(now);
        while let Some(output) = running.broker.poll_output() {
            match output {
                Output::Log(Event::LinkWaitedFor { .. })
                    if defects.canary == Some(Canary::EarlyDowngrade) => {}
                Output::Log(Event::LinkPaused { is_paused, .. }) => self.pauses += u64::from(is_paused),
                Output::Log(Event::LinkWaitedFor { destination, is_waited_for, .. }) => {
                    self.downgrades += u64::from(!is_waited_for);
                    self.not_waited_for.insert(destination, if is_waited_for { now_ns } else { u64::MAX });
                }
                Output::Log(Event::LinkUp { .. }) => self.links_up += 1,
                Output::Log(Event::LinkConflict { bookmark, is_other, .. }) => {
                    self.conflicts.push((bookmark, is_other));
                }
                output => running.carry_out(output, now, site, network, random, up, defects),
            }
        }
        running.begin_sync(now_ns, random);
        if !running.is_poisoned && running.broker.journal().failure().is_some() {
            running.is_poisoned = true;
            self.poisoned += 1;
        }
        if running.broker.is_drained() {
            let running = self.running.take();
            drop(running.map(|running| running.broker.close()));
            network.site_is_gone(site, now_ns, false);
        }
        true
    }

    /// A line for each of its links, for the history of a failure.
    pub fn describe(&mut self, now_ns: u64) -> Vec<String> {
        self.hand_in(now_ns, Input::Admin { ticket: 1, command: AdminCommand::Replication });
        let (now, name) = (self.now(now_ns), name_of(self.number));
        let Some(running) = &mut self.running else { return vec![format!("{name} does not run")] };
        running.broker.finish_turn(now);
        let mut lines = vec![format!(
            "{name}: {} appended, {} persisted",
            running.broker.journal().appended(),
            running.broker.journal().persisted()
        )];
        while let Some(output) = running.broker.poll_output() {
            if let Output::AdminReply { ticket: 1, reply: AdminReply::Replication(stats) } = output {
                lines.extend(stats.destinations.iter().map(|link| format!("  to {link:?}")));
                lines.extend(stats.sources.iter().map(|link| format!("  from {link:?}")));
            }
        }
        lines
    }

    /// The records that are persisted, in their order; nothing while it does not run.
    ///
    /// # Errors
    /// The log cannot be read.
    pub fn log(&self) -> Result<Vec<Logged>, String> {
        let Some(running) = &self.running else { return Ok(Vec::new()) };
        let reader = running.broker.journal().reader();
        let mut cursor = reader.cursor(Position::ZERO);
        let mut found = Vec::new();
        while let Some(batch) = cursor
            .next(reader.persisted(), &AllTopics)
            .map_err(|error| format!("the log of {} cannot be read: {error}", name_of(self.number)))?
        {
            for record in batch.records() {
                let value = match record.kind {
                    RecordKind::Publish => Some(super::auditor::value_of(record.data).unwrap_or(u64::MAX)),
                    RecordKind::Delete => None,
                    _ => continue,
                };
                found.push(Logged {
                    publisher: record.publisher.get(),
                    sequence: record.sequence,
                    value,
                    is_passed_on: record.path().instances().count() > 1,
                });
            }
        }
        Ok(found)
    }
}

impl Running {
    fn arrived(&mut self, now: Now, number: u64, arrival: &Arrival) {
        let connection = ConnectionId(number);
        let input = match arrival {
            Arrival::Opened(Site::Client(_)) => Input::Connected {
                connection,
                peer: "simulated",
                transport: TransportId::default(),
                access: Access::Client,
            },
            Arrival::Opened(Site::Instance(_)) => {
                self.links.insert(number);
                Input::LinkAccepted { connection, peer: "simulated" }
            }
            Arrival::Bytes(bytes) => Input::Received { connection, bytes },
            Arrival::Writable(writable) => Input::Writable { connection, writable: *writable },
            Arrival::Ended => {
                self.links.remove(&number);
                Input::Disconnected { connection }
            }
        };
        self.broker.handle(now, input);
    }

    fn disk_answers(&mut self, now: Now) -> bool {
        let mut is_busy = false;
        if self.sync_at.is_some_and(|at| at <= now.instant.as_ns()) {
            self.sync_at = None;
            self.broker.write_journal();
            self.broker.handle(now, Input::Flushed);
            is_busy = true;
        }
        while let Some((_, done)) = self.reads.pop_front_if(|(at, _)| *at <= now.instant.as_ns()) {
            self.broker.handle(now, Input::ReadDone(done));
            is_busy = true;
        }
        is_busy
    }

    /// Ends the attempts to connect whose time has come.
    fn connect(&mut self, now: Now, site: Site, network: &mut Network, up: &[bool]) -> bool {
        let ns = now.instant.as_ns();
        let (due, later) = std::mem::take(&mut self.opening).into_iter().partition(|(at, ..)| *at <= ns);
        self.opening = later;
        let due: Vec<(u64, u32, usize)> = due;
        for &(_, destination, target) in &due {
            let to = Site::Instance(target);
            if up[target] && network.is_reachable(site, to) {
                let number = network.connect(site, to, ns);
                self.links.insert(number);
                let connection = ConnectionId(number);
                self.broker.handle(now, Input::LinkOpened { destination, connection });
            } else {
                self.broker.handle(now, Input::LinkNotOpened { destination, reason: "connection refused" });
            }
        }
        !due.is_empty()
    }

    fn begin_sync(&mut self, now_ns: u64, random: &mut Random) {
        let journal = self.broker.journal();
        if self.sync_at.is_none() && journal.failure().is_none() && journal.appended() > journal.persisted() {
            let hangs = random.below(2_000) == 0;
            let most = if hangs { 5 * SECOND_NS } else { SECOND_NS / 200 };
            self.sync_at = Some(now_ns + random.below(most));
        }
    }

    #[expect(clippy::too_many_arguments, reason = "everything that an output can be about")]
    fn carry_out(
        &mut self,
        output: Output,
        now: Now,
        site: Site,
        network: &mut Network,
        random: &mut Random,
        up: &[bool],
        defects: &mut Defects,
    ) {
        let now_ns = now.instant.as_ns();
        match output {
            Output::Send { connection: ConnectionId(number), bytes } => {
                if self.links.contains(&number) && defects.concern_links() {
                    let passed = defects.pass_frames(number, site, &bytes);
                    network.send(number, site, now_ns, &passed.sent);
                    if !passed.answered.is_empty() {
                        let connection = ConnectionId(number);
                        self.broker.handle(now, Input::Received { connection, bytes: &passed.answered });
                    }
                } else {
                    network.send(number, site, now_ns, &bytes);
                }
            }
            Output::SendShared { connection: ConnectionId(number), bytes } => {
                network.send(number, site, now_ns, &bytes);
            }
            Output::Close { connection: ConnectionId(number) } => {
                self.links.remove(&number);
                network.close(number, site, now_ns);
            }
            Output::PauseReading { connection: ConnectionId(number) } => {
                network.pause_reading(number, site, true);
            }
            Output::ResumeReading { connection: ConnectionId(number) } => {
                network.pause_reading(number, site, false);
            }
            Output::Read(request) => {
                let last = self.reads.back().map_or(now_ns, |(at, _)| *at);
                self.reads.push_back((last.max(now_ns + random.below(1_000_000)), request.run()));
            }
            Output::OpenLink { destination, address } => {
                let target = (0..up.len()).find(|number| name_of(*number) == address).unwrap_or_default();
                let is_silent = !network.is_reachable(site, Site::Instance(target));
                let most = if is_silent { CONNECT_NS } else { SECOND_NS / 100 };
                self.opening.push((now_ns + random.below(most), destination, target));
            }
            Output::Maintenance(_) | Output::AdminReply { .. } | Output::Log(_) => (),
        }
    }
}
