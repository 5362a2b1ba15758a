//! The server's process: a broker, its journal on the simulated disk, and the threads that read, write and maintain files for it.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;

use quire_broker::ReadDone;
use quire_broker::{
    Access, Broker, BrokerConfig, Input, Limits, MaintenanceConfig, MaintenanceJob, Output, QueueSettings,
    RecordedTopic, TransactionLogConfig, TransportConfig, TransportId,
};
use quire_journal::{Action, AllTopics, Journal, Options, Position, Reader, RecordKind, SegmentInfo};
use quire_queue::Semantics;
use quire_types::time::{Instant, Now};

use super::auditor::Auditor;
use super::last_values::{self, Topic};
use super::network::{Arrival, Network};
use super::{Canary, SECOND_NS, holders, jobs, ns};
use crate::disk::SimulatedDisk;
use crate::random::Random;

/// The queues, by name.
pub(super) const AT_LEAST_ONCE: &str = "work";
pub(super) const AT_MOST_ONCE: &str = "once";

const DIRECTORY: &str = "journal";
const ARCHIVE: &str = "archive";

pub(super) struct Server {
    disk: SimulatedDisk,
    running: Option<Running>,
    /// The ends of the journal when a broker began with it.
    lives: Vec<Position>,
    /// The ends of the journal at the times at which it grew.
    ends: Vec<(Position, Instant)>,
    poisoned: u64,
    hung: u64,
    backlog_max: u64,
    /// Rules of the maintenance schedule are drawn from here; `None`: there are none.
    rules: Option<Random>,
    maintained: u64,
    removed: u64,
    cut_short: u64,
    last_values: Vec<Topic>,
    has_jobs: bool,
    /// Nothing goes wrong any more.
    is_calm: bool,
    canary: Option<Canary>,
}

struct Running {
    broker: Broker,
    /// When the sync under way returns.
    sync_at: Option<u64>,
    /// Finished reads, and the times at which the broker gets them.
    reads: VecDeque<(u64, ReadDone)>,
    /// The maintenance job that was handed out, and when its thread runs it.
    job: Option<(u64, MaintenanceJob)>,
    is_poisoned: bool,
    /// Something was handed in outside a turn.
    is_touched: bool,
}

impl Server {
    pub fn new(
        disk: SimulatedDisk,
        backlog_max: u64,
        rules: Option<Random>,
        last_values: Vec<Topic>,
        has_jobs: bool,
        canary: Option<Canary>,
    ) -> Self {
        Server {
            disk,
            running: None,
            lives: Vec::new(),
            ends: Vec::new(),
            poisoned: 0,
            hung: 0,
            backlog_max,
            rules,
            maintained: 0,
            removed: 0,
            cut_short: 0,
            last_values,
            has_jobs,
            is_calm: false,
            canary,
        }
    }

    /// The numbers of journal files that were archived, compressed or removed, of those that were removed, and of jobs that an end of the
    /// process or a power cut interrupted.
    pub fn maintenance_counts(&self) -> [u64; 3] {
        [self.maintained, self.removed, self.cut_short]
    }

    pub fn is_running(&self) -> bool {
        self.running.is_some()
    }

    pub fn is_poisoned(&self) -> bool {
        self.running.as_ref().is_some_and(|running| running.is_poisoned)
    }

    pub fn poisoned_count(&self) -> u64 {
        self.poisoned
    }

    pub fn hung_count(&self) -> u64 {
        self.hung
    }

    /// # Errors
    /// It does not start: no crash may make damage.
    pub fn start(
        &mut self,
        now: Now,
        network: &mut Network,
        random: &mut Random,
        auditor: &mut Auditor,
    ) -> Result<(), String> {
        network.server_is_gone();
        let recorded = RecordedTopic::new("^recorded/", "json");
        let passing = RecordedTopic { recorded: false, ..RecordedTopic::new("^passing/", "json") };
        let jobs = self.has_jobs.then(jobs::rule);
        let mut queues = vec![at_least_once(random), at_most_once(random)];
        queues.extend(self.has_jobs.then(jobs::settings));
        let config = BrokerConfig {
            transaction_log: TransactionLogConfig {
                topics: [recorded, passing].into_iter().chain(last_values::rules()).chain(jobs).collect(),
                journal_archive_directory: Some(ARCHIVE.into()),
                maintenance: self.rules.as_mut().map(rules).unwrap_or_default(),
                ..TransactionLogConfig::default()
            },
            queues,
            sow_topics: last_values::settings(&self.last_values),
            transports: vec![TransportConfig {
                max_client_backlog: self.backlog_max,
                logon_timeout_ns: 2 * SECOND_NS,
                ..TransportConfig::default()
            }],
            limits: Limits { max_unpersisted: 16 << 10 << random.below(6), ..Limits::default() },
            ..BrokerConfig::default()
        };
        let options = Options { segment_size: 64 << 10, prepared_segments: 1, ..config.journal_options() };
        let (journal, _) =
            Journal::driven_by_hand(Arc::new(self.disk.clone()), Path::new(DIRECTORY), &options)
                .map_err(|error| format!("the journal does not open again: {error}"))?;
        // Records that were not acknowledged may be gone, and their positions are used again.
        self.lives.retain(|begin| *begin <= journal.appended());
        self.lives.push(journal.appended());
        let kept = self.ends.partition_point(|(end, _)| *end < journal.appended());
        self.ends.truncate(kept + 1);
        if let Some((end, _)) = self.ends.get_mut(kept) {
            *end = journal.appended();
        }
        let mut broker =
            Broker::new(config, journal).map_err(|error| format!("the broker does not start: {error}"))?;
        // Every piece of work takes a part of the budget of its turn, so that all work that can be delayed is delayed.
        let (mut pace, mut elapsed_ns) = (Random::new(self.lives.len() as u64), 0);
        // Filters are decided at once, never, or by the size of the message.
        broker.set_turn_effort([50, 250, 1_000, 200_000][pace.below(4) as usize]);
        broker.set_turn_size([20, 60, 200_000][pace.below(3) as usize]);
        broker.set_stopwatch(Box::new(move || {
            elapsed_ns += pace.below(400_000);
            Instant::from_ns(elapsed_ns)
        }));
        auditor.last_values.server_starts(broker.journal(), now);
        self.running = Some(Running {
            broker,
            sync_at: None,
            reads: VecDeque::new(),
            job: None,
            is_poisoned: false,
            is_touched: false,
        });
        Ok(())
    }

    /// Checks that the lease records of the journal are possible. Returns their number.
    ///
    /// # Errors
    /// What cannot have been.
    pub fn judge_leases(&self, auditor: &Auditor) -> Result<u64, String> {
        let running = self.running.as_ref().ok_or("no server is left")?;
        let followed = holders::follow(&running.broker.journal().reader(), &self.lives, &self.ends)?;
        auditor.jobs.judge(&followed.ends)?;
        Ok(followed.count)
    }

    /// The process is gone between two instructions.
    pub fn kill(&mut self) {
        if let Some(running) = self.running.take() {
            // Dropping a broker would close its journal. This call writes nothing more, and frees its memory.
            running.broker.abandon();
        }
    }

    /// From now on no job is cut short.
    pub fn calm(&mut self) {
        self.is_calm = true;
    }

    pub fn begin_stop(&mut self, now: Now) {
        if let Some(running) = &mut self.running {
            running.broker.handle(now, Input::Shutdown);
            running.is_touched = true;
        }
    }

    pub fn next_due(&self) -> Option<u64> {
        let running = self.running.as_ref()?;
        let timeout = running.broker.next_timeout().map(|at| at.as_ns());
        let read = running.reads.front().map(|(at, _)| *at);
        let job = running.job.as_ref().map(|(at, _)| *at);
        [timeout, running.sync_at, read, job].into_iter().flatten().min()
    }

    /// Passes on the input and carries out the output of the broker. Returns whether anything happened.
    ///
    /// # Errors
    /// None at present. The checks of the clients find mistakes of the broker.
    pub fn turn(
        &mut self,
        now: Now,
        network: &mut Network,
        random: &mut Random,
        auditor: &mut Auditor,
    ) -> Result<bool, String> {
        let has_maintained = self.run_job(now, network, random, auditor)?;
        let Some(running) = &mut self.running else { return Ok(has_maintained) };
        let mut is_busy = std::mem::take(&mut running.is_touched) || has_maintained;
        for arrival in network.arrivals(now.instant.as_ns()) {
            is_busy = true;
            if self.canary == Some(Canary::DroppedInput)
                && matches!(arrival, Arrival::Bytes(..))
                && random.below(500) == 0
            {
                continue;
            }
            running.arrived(now, &arrival);
        }
        is_busy |= running.disk_answers(now);
        if running.broker.next_timeout().is_some_and(|at| at <= now.instant) {
            is_busy = true;
            running.broker.handle(now, Input::Timeout);
        }
        if !is_busy {
            return Ok(false);
        }
        running.broker.finish_turn(now);
        while let Some(output) = running.broker.poll_output() {
            running.carry_out(output, now.instant.as_ns(), network, random);
        }
        let end = running.broker.journal().appended();
        if self.ends.last().is_none_or(|(last, _)| *last < end) {
            self.ends.push((end, now.instant));
        }
        auditor.last_values.follow(running.broker.journal(), now);
        running.begin_sync(now.instant.as_ns(), random, &mut self.hung);
        if !running.is_poisoned && running.broker.journal().failure().is_some() {
            running.is_poisoned = true;
            self.poisoned += 1;
        }
        if running.broker.is_drained() {
            // Stopped as asked. A disk that fails on the way out costs nothing that was acknowledged: the next start shows it.
            let running = self.running.take();
            drop(running.map(|running| running.broker.close()));
            network.server_is_gone();
        }
        Ok(true)
    }
}

impl Server {
    /// Runs the maintenance job whose time has come, as its thread would. Returns whether there was one. Now and then the process or the
    /// power ends in the middle.
    ///
    /// # Errors
    /// What the job would remove cannot be read.
    fn run_job(
        &mut self,
        now: Now,
        network: &mut Network,
        random: &mut Random,
        auditor: &mut Auditor,
    ) -> Result<bool, String> {
        let Some(running) = &mut self.running else { return Ok(false) };
        let Some((_, job)) = running.job.take_if(|(at, _)| *at <= now.instant.as_ns()) else {
            return Ok(false);
        };
        let reader = running.broker.journal().reader();
        let removes = job.action() == Action::Remove;
        if removes {
            for file in job.plan().into_iter().take(1) {
                notice_removal(&reader, &file, auditor)?;
            }
        }
        let ends = !self.is_calm && random.percent(5);
        if ends {
            self.disk.end_after(Some(random.below(12)));
        }
        let done = job.run();
        self.disk.end_after(None);
        if ends && done.files().is_none() {
            self.cut_short += 1;
            self.kill();
            network.server_is_gone();
            if random.percent(50) {
                self.disk.cut_power();
            }
            return Ok(true);
        }
        let count = done.files().map_or(0, |files| files.len() as u64);
        self.maintained += count;
        self.removed += if removes { count } else { 0 };
        running.broker.handle(now, Input::MaintenanceDone(done));
        Ok(true)
    }
}

/// Tells the auditor which messages are in a file that is about to be removed.
fn notice_removal(reader: &Reader, file: &SegmentInfo, auditor: &mut Auditor) -> Result<(), String> {
    let Some((first, last)) = file.positions else { return Ok(()) };
    let mut cursor = reader.cursor(Position::new(first.get() - 1));
    while let Some(batch) = cursor
        .next(last.min(reader.persisted()), &AllTopics)
        .map_err(|error| format!("a file that is to be removed cannot be read: {error}"))?
    {
        for record in batch.records().filter(|record| record.position <= last) {
            if record.kind == RecordKind::Publish && !record.topic.starts_with(last_values::PREFIX) {
                auditor.removing(record.position, record.data);
            }
        }
    }
    Ok(())
}

/// Rules of a maintenance schedule. Some of them are absent, so that the others go deeper.
fn rules(random: &mut Random) -> MaintenanceConfig {
    let mut sometimes = |most: u64| random.percent(40).then(|| 1 + random.below(most));
    MaintenanceConfig {
        archive_after_ns: sometimes(5 * SECOND_NS),
        compress_after_ns: sometimes(5 * SECOND_NS),
        remove_after_ns: sometimes(3 * SECOND_NS),
        archive_size_max: sometimes(4 << 16),
        compress_size_max: sometimes(4 << 16),
        remove_size_max: sometimes(3 << 16),
        interval_ns: SECOND_NS / 10 + random.below(2 * SECOND_NS),
        ..MaintenanceConfig::default()
    }
}

/// A queue whose leases end while some workers still hold on to them.
fn at_least_once(random: &mut Random) -> QueueSettings {
    QueueSettings {
        name: AT_LEAST_ONCE.into(),
        message_type: "json".into(),
        underlying_topic: Some("recorded/b".into()),
        lease_period_ns: Some(SECOND_NS / 2),
        max_per_subscription_backlog: Some(1 + random.below(50) as u32),
        // From start to start the state is kept or not, and a file may be there or not.
        file_backed_metadata: random.below(2) == 0,
        record_leases: true,
        ..QueueSettings::default()
    }
}

fn at_most_once(random: &mut Random) -> QueueSettings {
    QueueSettings {
        name: AT_MOST_ONCE.into(),
        message_type: "json".into(),
        underlying_topic: Some("recorded/a".into()),
        semantics: Semantics::AtMostOnce,
        file_backed_metadata: random.below(2) == 0,
        record_leases: true,
        ..QueueSettings::default()
    }
}

impl Running {
    fn arrived(&mut self, now: Now, arrival: &Arrival) {
        let input = match arrival {
            Arrival::Connected(connection) => Input::Connected {
                connection: *connection,
                peer: "simulated",
                transport: TransportId::default(),
                access: Access::Client,
            },
            Arrival::Bytes(connection, bytes) => Input::Received { connection: *connection, bytes },
            Arrival::Writable(connection, writable) => {
                Input::Writable { connection: *connection, writable: *writable }
            }
            Arrival::Ended(connection) => Input::Disconnected { connection: *connection },
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

    fn begin_sync(&mut self, now: u64, random: &mut Random, hung: &mut u64) {
        let journal = self.broker.journal();
        if self.sync_at.is_none() && journal.failure().is_none() && journal.appended() > journal.persisted() {
            let hangs = random.below(2_000) == 0;
            *hung += u64::from(hangs);
            let most = if hangs { 5 * SECOND_NS } else { ns(std::time::Duration::from_millis(3)) };
            self.sync_at = Some(now + random.below(most));
        }
    }

    fn carry_out(&mut self, output: Output, now: u64, network: &mut Network, random: &mut Random) {
        match output {
            Output::Send { connection, bytes } => network.send_down(connection, now, bytes),
            Output::SendShared { connection, bytes } => network.send_down(connection, now, bytes.to_vec()),
            Output::Close { connection } => network.close(connection),
            Output::PauseReading { connection } => network.pause_reading(connection, true),
            Output::ResumeReading { connection } => network.pause_reading(connection, false),
            Output::Read(request) => {
                // A reader thread sees the disk as it is when it runs, and is done some time later.
                let last = self.reads.back().map_or(now, |(at, _)| *at);
                self.reads.push_back((last.max(now + random.below(1_000_000)), request.run()));
            }
            Output::Maintenance(job) => self.job = Some((now + random.below(50_000_000), job)),
            // The worlds have one instance.
            Output::OpenLink { .. } | Output::AdminReply { .. } | Output::Log(_) => (),
        }
    }
}
