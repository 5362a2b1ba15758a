//! An instance: a broker, its journal on a simulated disk, and the threads that read, write and
//! maintain files for it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::Path;
use std::sync::Arc;

use quire_broker::{
    Access, AdminCommand, AdminReply, Broker, BrokerConfig, ConnectionId, Event, Input, LinkIdentity,
    MaintenanceJob, Output, ReadDone, TransportId,
};
use quire_command::LinkAction;
use quire_journal::{
    Action, AllTopics, Bookmark, Journal, Options, Position, Reader, Record, RecordKind, SegmentInfo,
    Timestamp,
};
use quire_types::time::{Instant, Now};

use super::auditor::{Auditor, TOPICS, value_of};
use super::cast::Setup;
use super::links::topology::{Instances, is_sent, name_of};
use super::links::{Defects, Logged};
use super::played::Played;
use super::{Canary, SECOND_NS, WALL_START_NS, holders, jobs};
use crate::disk::{Faults, SimulatedDisk};
use crate::network::{Arrival, Network, Site};
use crate::random::Random;

const DIRECTORY: &str = "journal";

/// How long a connection attempt takes that is not answered, at most.
const CONNECT_NS: u64 = 3 * SECOND_NS;
/// How long a sync takes, at most, and one that hangs.
const SYNC_NS: u64 = 4_000_000;
const HUNG_SYNC_NS: u64 = 5 * SECOND_NS;

pub(super) struct Instance {
    pub number: usize,
    pub disk: SimulatedDisk,
    pub played: Played,
    /// The configuration of its links.
    config: BrokerConfig,
    /// The topics and queues that only this instance has.
    setup: Option<Setup>,
    running: Option<Running>,
    /// Copies of the disk.
    backups: Vec<Backup>,
    wall_shift_ns: i64,
    /// The ends of the journal when a broker began with it.
    lives: Vec<Position>,
    /// The ends of the journal at the times at which it grew.
    ends: Vec<(Position, Instant)>,
    /// By name, when each destination was not waited for last; `u64::MAX`: it is not now.
    not_waited_for: BTreeMap<String, u64>,
    /// Messages that it dropped although its log does not have them, and whether another message
    /// has their bookmark.
    conflicts: Vec<Bookmark>,
    /// The records of topics that links send, of journal files whose removal was begun.
    removed: Vec<(Position, Logged)>,
    /// How many of them were taken.
    removed_count: usize,
    /// Nothing goes wrong any more.
    is_calm: bool,
    canary: Option<Canary>,
}

/// A copy of the disk, and what was known of its journal.
struct Backup {
    copied_ns: u64,
    disk: SimulatedDisk,
    lives: Vec<Position>,
    ends: Vec<(Position, Instant)>,
}

struct Running {
    broker: Broker,
    site: Site,
    /// When the sync under way returns.
    sync_at: Option<u64>,
    /// Finished reads, and the times at which the broker gets them.
    reads: VecDeque<(u64, ReadDone)>,
    /// The maintenance job that was handed out, and when its thread runs it.
    job: Option<(u64, MaintenanceJob)>,
    /// Attempts to connect to a destination that end at a time.
    opening: Vec<(u64, u32, usize)>,
    /// Connections between instances.
    links: BTreeSet<u64>,
    is_poisoned: bool,
    /// Something was handed in outside a turn.
    is_touched: bool,
}

/// The surroundings of an instance that runs.
pub(super) struct Surroundings<'a> {
    pub network: &'a mut Network,
    pub random: &'a mut Random,
    pub defects: &'a mut Defects,
    /// The instances that run.
    pub up: Instances,
}

impl Instance {
    pub fn new(
        number: usize,
        disk: SimulatedDisk,
        config: BrokerConfig,
        setup: Option<Setup>,
        canary: Option<Canary>,
    ) -> Self {
        Instance {
            number,
            disk,
            played: Played::default(),
            config,
            setup,
            running: None,
            backups: Vec::new(),
            wall_shift_ns: 0,
            lives: Vec::new(),
            ends: Vec::new(),
            not_waited_for: BTreeMap::new(),
            conflicts: Vec::new(),
            removed: Vec::new(),
            removed_count: 0,
            is_calm: false,
            canary,
        }
    }

    fn site(&self) -> Site {
        Site::Instance(self.number)
    }

    /// The time on its machine.
    pub fn now(&self, ns: u64) -> Now {
        let wall = (WALL_START_NS + ns).saturating_add_signed(self.wall_shift_ns);
        Now { instant: Instant::from_ns(ns), wall: Timestamp::from_ns(wall) }
    }

    pub fn is_running(&self) -> bool {
        self.running.is_some()
    }

    pub fn is_poisoned(&self) -> bool {
        self.running.as_ref().is_some_and(|running| running.is_poisoned)
    }

    pub fn take_conflicts(&mut self) -> Vec<Bookmark> {
        std::mem::take(&mut self.conflicts)
    }

    /// Numbers of messages in journal files whose removal was begun since the last call.
    pub fn take_removed(&mut self) -> Vec<u64> {
        let from = std::mem::replace(&mut self.removed_count, self.removed.len());
        self.removed[from..].iter().filter_map(|(_, logged)| logged.value).collect()
    }

    pub fn step_clock(&mut self, step_ns: i64) {
        self.wall_shift_ns += step_ns;
    }

    /// From now on no job is cut short.
    pub fn calm(&mut self) {
        self.is_calm = true;
    }

    /// Whether it waited for a destination since a time.
    pub fn has_waited_for(&self, destination: &str, since_ns: u64) -> bool {
        self.not_waited_for.get(destination).is_none_or(|last| *last < since_ns)
    }

    /// `auditor`: of the topics that only this instance has.
    ///
    /// # Errors
    /// It does not start: no crash may make damage.
    pub fn start(
        &mut self,
        ns: u64,
        network: &mut Network,
        random: &mut Random,
        auditor: Option<&mut Auditor>,
    ) -> Result<(), String> {
        network.site_begins(self.site(), ns);
        let name = name_of(self.number);
        let mut config = self.config.clone();
        if let Some(setup) = &mut self.setup {
            setup.add_to(&mut config, random);
        }
        super::links::add_queue(&mut config, random);
        let options = Options { segment_size: 64 << 10, prepared_segments: 1, ..config.journal_options() };
        let (journal, _) =
            Journal::driven_by_hand(Arc::new(self.disk.clone()), Path::new(DIRECTORY), &options)
                .map_err(|error| format!("the journal of {name} does not open again: {error}"))?;
        // Records that were not acknowledged may be gone, and their positions are used again.
        self.lives.retain(|begin| *begin <= journal.appended());
        self.lives.push(journal.appended());
        let kept = self.ends.partition_point(|(end, _)| *end < journal.appended());
        self.ends.truncate(kept + 1);
        if let Some((end, _)) = self.ends.get_mut(kept) {
            *end = journal.appended();
        }
        let mut broker = Broker::new(config, journal)
            .map_err(|error| format!("the broker of {name} does not start: {error}"))?;
        // Every piece of work takes a part of the budget of its turn, so that all work that can be
        // delayed is delayed.
        let (mut pace, mut elapsed_ns) = (Random::new(random.number()), 0);
        // Filters are decided at once, never, or by the size of the message.
        broker.set_turn_effort([50, 250, 1_000, 200_000][pace.below(4) as usize]);
        broker.set_turn_size([20, 60, 200_000][pace.below(3) as usize]);
        broker.set_stopwatch(Box::new(move || {
            elapsed_ns += pace.below(400_000);
            Instant::from_ns(elapsed_ns)
        }));
        if let Some(auditor) = auditor {
            auditor.last_values.server_starts(broker.journal(), self.now(ns));
        }
        // It waits for every sync destination at first.
        for last in self.not_waited_for.values_mut().filter(|last| **last == u64::MAX) {
            *last = ns;
        }
        self.running = Some(Running {
            broker,
            site: self.site(),
            sync_at: None,
            reads: VecDeque::new(),
            job: None,
            opening: Vec::new(),
            links: BTreeSet::new(),
            is_poisoned: false,
            is_touched: true,
        });
        Ok(())
    }

    /// Checks that the lease records of the journal are possible. Returns their number. `auditor`:
    /// of the topics and queues that only this instance has.
    ///
    /// # Errors
    /// What cannot have been.
    pub fn judge_leases(&self, auditor: Option<&Auditor>) -> Result<u64, String> {
        let running = self.running.as_ref().ok_or("no server is left")?;
        let followed = holders::follow(&running.broker.journal().reader(), &self.lives, &self.ends)
            .map_err(|reason| format!("{}: {reason}", name_of(self.number)))?;
        auditor.map_or(Ok(()), |auditor| auditor.jobs.judge(&followed.ends))?;
        Ok(followed.count)
    }

    /// The process is gone between two instructions.
    pub fn kill(&mut self, ns: u64, network: &mut Network, with_power: bool) {
        if let Some(running) = self.running.take() {
            // Dropping a broker would close its journal. This call writes nothing more, and frees
            // its memory.
            running.broker.abandon();
        }
        network.site_is_gone(self.site(), ns, with_power);
        if with_power {
            self.disk.cut_power();
        }
    }

    /// It stops as an operator stops it.
    pub fn begin_stop(&mut self, ns: u64) {
        self.hand_in(ns, Input::Shutdown);
    }

    /// An operator changes the link to one of the destinations.
    pub fn act_on_a_link(&mut self, ns: u64, random: &mut Random, action: LinkAction) {
        let count = self.config.replication.destinations.len() as u64;
        let destination = self.config.replication.destinations[random.below(count) as usize].name.clone();
        let command = AdminCommand::Link { destination, action };
        self.hand_in(ns, Input::Admin { ticket: 0, command });
    }

    /// An operator ends all pauses.
    pub fn resume_all(&mut self, ns: u64) {
        for number in 0..self.config.replication.destinations.len() {
            let destination = self.config.replication.destinations[number].name.clone();
            let command = AdminCommand::Link { destination, action: LinkAction::Resume };
            self.hand_in(ns, Input::Admin { ticket: 0, command });
        }
    }

    fn hand_in(&mut self, ns: u64, input: Input<'_>) {
        let now = self.now(ns);
        if let Some(running) = &mut self.running {
            running.broker.handle(now, input);
            running.is_touched = true;
        }
    }

    /// Whether its disk may be lost or replaced. The auditor of the topics that only this instance
    /// has knows no such fault.
    pub fn may_lose_disk(&self) -> bool {
        self.setup.is_none()
    }

    /// The directory is copied while the instance is down.
    pub fn back_up(&mut self, ns: u64) {
        let (disk, lives, ends) = (self.disk.copy(), self.lives.clone(), self.ends.clone());
        self.backups.push(Backup { copied_ns: ns, disk, lives, ends });
    }

    pub fn has_backup(&self) -> bool {
        !self.backups.is_empty()
    }

    /// The directory of an earlier time replaces the present one. Returns this time.
    pub fn restore(&mut self, random: &mut Random) -> Option<u64> {
        let number = random.below(self.backups.len().max(1) as u64) as usize;
        let Backup { copied_ns, disk, lives, ends } = self.backups.get(number)?;
        (self.disk, self.lives, self.ends) = (disk.copy(), lives.clone(), ends.clone());
        let copied_ns = *copied_ns;
        self.backups.truncate(number + 1);
        Some(copied_ns)
    }

    /// The disk is replaced by an empty one. Backups are elsewhere.
    pub fn lose_disk(&mut self, seed: u64) {
        self.disk = SimulatedDisk::new(seed, Faults::default());
        (self.lives, self.ends) = (Vec::new(), Vec::new());
    }

    pub fn next_due(&self) -> Option<u64> {
        let running = self.running.as_ref()?;
        let timeout = running.broker.next_timeout().map(|at| at.as_ns());
        let read = running.reads.front().map(|(at, _)| *at);
        let job = running.job.as_ref().map(|(at, _)| *at);
        let opening = running.opening.iter().map(|(at, ..)| *at).min();
        [timeout, running.sync_at, read, job, opening].into_iter().flatten().min()
    }

    /// Passes on the input and carries out the output of the broker. Returns whether anything
    /// happened.
    ///
    /// # Errors
    /// What a maintenance job would remove cannot be read.
    pub fn turn(
        &mut self,
        ns: u64,
        around: &mut Surroundings<'_>,
        mut auditor: Option<&mut Auditor>,
    ) -> Result<bool, String> {
        let now = self.now(ns);
        let has_maintained = self.run_job(now, around, auditor.as_deref_mut())?;
        let Some(running) = &mut self.running else { return Ok(has_maintained) };
        let mut is_busy = std::mem::take(&mut running.is_touched) || has_maintained;
        for (connection, arrival) in around.network.arrivals(running.site, ns) {
            is_busy = true;
            if self.canary == Some(Canary::DroppedInput)
                && matches!(arrival, Arrival::Bytes(_))
                && around.random.below(500) == 0
            {
                continue;
            }
            running.arrived(now, connection, &arrival);
        }
        is_busy |= running.disk_answers(now);
        is_busy |= running.connect(now, around);
        if running.broker.next_timeout().is_some_and(|at| at <= now.instant) {
            is_busy = true;
            running.broker.handle(now, Input::Timeout);
        }
        if !is_busy {
            return Ok(false);
        }
        running.broker.finish_turn(now);
        while let Some(output) = running.broker.poll_output() {
            match output {
                Output::Log(Event::LinkWaitedFor { .. }) if self.canary == Some(Canary::EarlyDowngrade) => (),
                Output::Log(Event::LinkPaused { is_paused, .. }) => {
                    self.played.pauses += u64::from(is_paused);
                }
                Output::Log(Event::LinkWaitedFor { destination, is_waited_for, .. }) => {
                    self.played.downgrades += u64::from(!is_waited_for);
                    self.not_waited_for.insert(destination, if is_waited_for { ns } else { u64::MAX });
                }
                Output::Log(Event::LinkUp { .. }) => self.played.links += 1,
                Output::Log(Event::LinkConflict { bookmark, .. } | Event::LinkRejected { bookmark, .. }) => {
                    self.conflicts.push(bookmark);
                }
                output => running.carry_out(output, now, around),
            }
        }
        let journal = running.broker.journal();
        let end = journal.appended();
        if self.ends.last().is_none_or(|(last, _)| *last < end) {
            self.ends.push((end, now.instant));
        }
        if let Some(auditor) = auditor {
            auditor.last_values.follow(journal, now);
        }
        self.played.hung_syncs += u64::from(running.begin_sync(ns, around.random));
        if !running.is_poisoned && running.broker.journal().failure().is_some() {
            running.is_poisoned = true;
            self.played.poisoned += 1;
        }
        if running.broker.is_drained() {
            // Stopped as asked. A disk that fails meanwhile costs nothing that was acknowledged:
            // the next start shows it.
            let running = self.running.take();
            drop(running.map(|running| running.broker.close()));
            around.network.site_is_gone(self.site(), ns, false);
        }
        Ok(true)
    }

    /// Runs the maintenance job whose time has come, as its thread would. Returns whether there was
    /// one. Now and then the process or the power ends in the middle.
    ///
    /// # Errors
    /// What the job would remove cannot be read.
    fn run_job(
        &mut self,
        now: Now,
        around: &mut Surroundings<'_>,
        auditor: Option<&mut Auditor>,
    ) -> Result<bool, String> {
        let ns = now.instant.as_ns();
        let Some(running) = &mut self.running else { return Ok(false) };
        let Some((_, job)) = running.job.take_if(|(at, _)| *at <= ns) else { return Ok(false) };
        let removes = job.action() == Action::Remove;
        if removes && let Some(file) = job.plan().first() {
            let mut auditor = auditor;
            read_file(&running.broker.journal().reader(), file, |record| {
                if let Some(auditor) = &mut auditor
                    && record.topic == jobs::LEFT
                {
                    auditor.jobs.removing(record.data);
                }
                if let Some(auditor) = &mut auditor
                    && record.kind == RecordKind::Publish
                    && TOPICS.contains(&record.topic)
                {
                    auditor.removing(record.position, record.data);
                }
                let is_known = self.removed.last().is_some_and(|(last, _)| *last >= record.position);
                if let Some(logged) = logged(record, self.number).filter(|_| !is_known) {
                    self.removed.push((record.position, logged));
                }
            })?;
        }
        let ends = !self.is_calm && around.random.percent(5);
        if ends {
            self.disk.end_after(Some(around.random.below(12)));
        }
        let done = job.run();
        self.disk.end_after(None);
        if ends && done.files().is_none() {
            self.played.cut_short += 1;
            let with_power = around.random.percent(50);
            self.kill(ns, around.network, with_power);
            return Ok(true);
        }
        let count = done.files().map_or(0, |files| files.len() as u64);
        self.played.maintained += count;
        self.played.removed += if removes { count } else { 0 };
        running.broker.handle(now, Input::MaintenanceDone(done));
        Ok(true)
    }

    /// A line for each of its links, for the history of a failure.
    pub fn describe(&mut self, ns: u64) -> Vec<String> {
        self.hand_in(ns, Input::Admin { ticket: 1, command: AdminCommand::Replication });
        let (now, name) = (self.now(ns), name_of(self.number));
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

    /// The records of topics that links send which are persisted, in their order, also those of
    /// removed files; none while it does not run.
    ///
    /// # Errors
    /// The log cannot be read.
    pub fn log(&self) -> Result<Vec<Logged>, String> {
        let Some(running) = &self.running else { return Ok(Vec::new()) };
        let reader = running.broker.journal().reader();
        let mut cursor = reader.cursor(Position::ZERO);
        let (removed, first) = (self.removed.iter(), cursor.after());
        let removed = removed.take_while(|(position, _)| *position <= first);
        let mut found: Vec<_> = removed.map(|(_, logged)| logged.clone()).collect();
        while let Some(batch) = cursor
            .next(reader.persisted(), &AllTopics)
            .map_err(|error| format!("the log of {} cannot be read: {error}", name_of(self.number)))?
        {
            found.extend(batch.records().filter_map(|record| logged(&record, self.number)));
        }
        Ok(found)
    }
}

/// A record of a topic that links send; `None`: it is another one.
fn logged(record: &Record<'_>, own: usize) -> Option<Logged> {
    let value = match record.kind {
        RecordKind::Publish => Some(value_of(record.data).unwrap_or(u64::MAX)),
        RecordKind::Delete => None,
        _ => return None,
    };
    is_sent(record.topic).then(|| Logged {
        publisher: record.publisher.get(),
        sequence: record.sequence,
        value,
        removes: record.deleted_keys().next().is_some(),
        is_late: record.is_late,
        follows: record.follows(),
        is_passed_on: record.path().instances().count() > 1,
        stamp: (
            record.stamp().as_ns(),
            record.origin().instance.map_or_else(|| name_of(own), |instance| instance.name.to_owned()),
        ),
    })
}

/// Reads the records of a file that is about to be removed.
fn read_file(reader: &Reader, file: &SegmentInfo, mut take: impl FnMut(&Record<'_>)) -> Result<(), String> {
    let Some((first, last)) = file.positions else { return Ok(()) };
    let mut cursor = reader.cursor(Position::new(first.get() - 1));
    while let Some(batch) = cursor
        .next(last.min(reader.persisted()), &AllTopics)
        .map_err(|error| format!("a file that is to be removed cannot be read: {error}"))?
    {
        batch.records().filter(|record| record.position <= last).for_each(|record| take(&record));
    }
    Ok(())
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
                Input::LinkAccepted { connection, peer: "simulated", tls: false }
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
    fn connect(&mut self, now: Now, around: &mut Surroundings<'_>) -> bool {
        let ns = now.instant.as_ns();
        let due: Vec<_> = self.opening.extract_if(.., |(at, ..)| *at <= ns).collect();
        for &(_, destination, target) in &due {
            let to = Site::Instance(target);
            if around.up & (1 << target) != 0 && around.network.is_reachable(self.site, to) {
                let number = around.network.connect(self.site, to, ns);
                self.links.insert(number);
                let connection = ConnectionId(number);
                let (tls, identity) = (false, LinkIdentity::default());
                self.broker.handle(now, Input::LinkOpened { destination, connection, tls, identity });
            } else {
                self.broker.handle(now, Input::LinkNotOpened { destination, reason: "connection refused" });
            }
        }
        !due.is_empty()
    }

    /// Returns whether the sync hangs.
    fn begin_sync(&mut self, ns: u64, random: &mut Random) -> bool {
        let journal = self.broker.journal();
        if self.sync_at.is_some() || journal.failure().is_some() || journal.appended() <= journal.persisted()
        {
            return false;
        }
        let hangs = random.below(2_000) == 0;
        self.sync_at = Some(ns + random.below(if hangs { HUNG_SYNC_NS } else { SYNC_NS }));
        hangs
    }

    fn carry_out(&mut self, output: Output, now: Now, around: &mut Surroundings<'_>) {
        let Surroundings { network, random, defects, .. } = around;
        let (ns, site) = (now.instant.as_ns(), self.site);
        match output {
            Output::Send { connection: ConnectionId(number), bytes } => {
                if self.links.contains(&number) && defects.concern_links() {
                    let passed = defects.pass_frames(number, site, &bytes);
                    network.send(number, site, ns, &passed.sent);
                    if !passed.answered.is_empty() {
                        let connection = ConnectionId(number);
                        self.broker.handle(now, Input::Received { connection, bytes: &passed.answered });
                    }
                } else {
                    network.send(number, site, ns, &bytes);
                }
            }
            Output::SendShared { connection: ConnectionId(number), bytes } => {
                network.send(number, site, ns, &bytes);
            }
            Output::Close { connection: ConnectionId(number) } => {
                self.links.remove(&number);
                network.close(number, site, ns);
            }
            Output::PauseReading { connection: ConnectionId(number) } => {
                network.pause_reading(number, site, true);
            }
            Output::ResumeReading { connection: ConnectionId(number) } => {
                network.pause_reading(number, site, false);
            }
            Output::Read(request) => {
                // A reader thread sees the disk as it is when it runs, and is done some time later.
                let last = self.reads.back().map_or(ns, |(at, _)| *at);
                self.reads.push_back((last.max(ns + random.below(1_000_000)), request.run()));
            }
            Output::Maintenance(job) => self.job = Some((ns + random.below(50_000_000), job)),
            Output::OpenLink { destination, address } => {
                let target = (0..64).find(|number| name_of(*number) == address).unwrap_or_default();
                let is_silent = !network.is_reachable(site, Site::Instance(target));
                let most = if is_silent { CONNECT_NS } else { SECOND_NS / 100 };
                self.opening.push((ns + random.below(most), destination, target));
            }
            Output::AdminReply { .. }
            | Output::Authenticate { .. }
            | Output::Reload { .. }
            | Output::Statistics { .. }
            | Output::Signal(_)
            | Output::Log(_) => (),
        }
    }
}
