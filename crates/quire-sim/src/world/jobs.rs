//! Workers that fetch ahead: their handlers take about as long as a lease, and much longer. The ledger knows which job ran when, and checks:
//!
//! - No job begins while another run holds its lease. A client whose handler works on a job does not begin it again.
//! - A client does not begin a job that it has acknowledged.
//! - A lease runs out only on a job that its holder has begun, unless the connection of the holder was disturbed. So no delivery counts
//!   that was not begun. [`Ledger::judge`] reads this from the lease records of the journal.
//! - No job becomes a dead letter that never ran.
//! - At the end, every persisted job was acknowledged after a run, or is a dead letter.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use quire_broker::{QueueSettings, RecordedTopic};
use quire_client::{ClientCore, CommandId, Event, Lease, Message, NewMessage, Renewal, SubscriptionSpec};
use quire_types::Verdict;
use quire_types::time::Instant;

use super::{Canary, SECOND_NS};
use crate::random::Random;

const TOPIC: &str = "jobs/new";
const LETTERS: &str = "jobs/dead";
pub(super) const QUEUE: &str = "jobs";
const LEASE_NS: u64 = 2 * SECOND_NS / 5;
const MAX_DELIVERIES: u32 = 4;
/// Jobs of a world.
const COUNT_MAX: u64 = 40;
/// A run holds its lease by the clock of its client, which counts from the arrival. On the server it ends earlier, by the time that the
/// message traveled.
const TRAVEL: Duration = Duration::from_millis(5);
/// In this time a verdict reaches the server: programs act every 20 ms at most.
const VERDICT: Duration = Duration::from_millis(40);

/// Number of a job.
pub(super) type Job = usize;

pub(super) fn rule() -> RecordedTopic {
    RecordedTopic::new("^jobs/", "json")
}

pub(super) fn settings() -> QueueSettings {
    QueueSettings {
        name: QUEUE.into(),
        message_type: "json".into(),
        underlying_topic: Some(TOPIC.into()),
        lease_period_ns: Some(LEASE_NS),
        max_deliveries: Some(MAX_DELIVERIES),
        dead_letter_topic: Some(LETTERS.into()),
        record_leases: true,
        ..QueueSettings::default()
    }
}

/// The knowledge of all clients.
#[derive(Default)]
pub(super) struct Ledger {
    jobs: Vec<Known>,
    runs: Vec<Run>,
    /// How often the lease of a worker ran out while its handler worked on the job.
    outran: HashMap<(String, Job), u64>,
    /// How often the connection of a worker was slow, silent or lost.
    disturbances: HashMap<String, u64>,
    /// The workers whose present connection is slow or silent. Renewals and deliveries arrive late on it, so its leases prove nothing.
    disturbed: HashSet<String>,
    /// The jobs that the process of a worker has acknowledged.
    acknowledged: HashMap<String, HashSet<Job>>,
    fault: Option<String>,
}

#[derive(Clone, Copy, Default)]
struct Known {
    is_persisted: bool,
    run_count: u64,
    is_done: bool,
    is_letter: bool,
}

/// A handler that runs.
struct Run {
    job: Job,
    worker: String,
    lease: Arc<Lease>,
    /// The client renews the lease meanwhile.
    is_renewed: bool,
    is_disturbed: bool,
}

impl Ledger {
    /// A job to be published.
    fn next(&mut self) -> Option<Job> {
        (self.jobs.len() < COUNT_MAX as usize).then(|| {
            self.jobs.push(Known::default());
            self.jobs.len() - 1
        })
    }

    fn begin(&mut self, worker: &str, job: Job, lease: &Arc<Lease>, is_renewed: bool, now: Instant) {
        self.jobs[job].run_count += 1;
        let is_disturbed = self.disturbed.contains(worker);
        let others = self.runs.iter().filter(|run| run.job == job);
        let first = others.clone().find(|run| {
            let is_held = !is_disturbed && !run.is_disturbed && !run.lease.is_lost(now + TRAVEL);
            is_held || (run.worker == worker && run.is_renewed)
        });
        if let Some(Run { worker: first, .. }) = first {
            self.fault.get_or_insert(format!("job {job} begins on {worker} while it runs on {first}"));
        }
        if self.acknowledged.get(worker).is_some_and(|jobs| jobs.contains(&job)) {
            self.fault.get_or_insert(format!("job {job} begins on {worker}, which has acknowledged it"));
        }
        let (worker, lease) = (worker.to_owned(), lease.clone());
        self.runs.push(Run { job, worker, lease, is_renewed, is_disturbed });
    }

    /// `is_late`: the lease is over, or is over before the verdict arrives.
    fn end(&mut self, worker: &str, job: Job, lease: &Arc<Lease>, is_acknowledged: bool, is_late: bool) {
        if is_late {
            *self.outran.entry((worker.to_owned(), job)).or_default() += 1;
        }
        self.runs.retain(|run| !Arc::ptr_eq(&run.lease, lease));
        if is_acknowledged {
            self.jobs[job].is_done = true;
            self.acknowledged.entry(worker.to_owned()).or_default().insert(job);
        }
    }

    /// The connection of a worker is slow, silent or lost.
    pub fn disturbed(&mut self, worker: &str) {
        self.disturbed.insert(worker.to_owned());
        *self.disturbances.entry(worker.to_owned()).or_default() += 1;
        self.runs.iter_mut().filter(|run| run.worker == worker).for_each(|run| run.is_disturbed = true);
    }

    /// The connection of a worker is over. The next one may be a good one.
    pub fn disconnected(&mut self, worker: &str) {
        self.disturbed.remove(worker);
    }

    /// The process of a worker is gone.
    fn killed(&mut self, worker: &str) {
        self.disturbed(worker);
        self.disconnected(worker);
        self.runs.retain(|run| run.worker != worker);
        self.acknowledged.remove(worker);
    }

    /// # Errors
    /// What was promised and did not hold.
    pub fn verdict(&self) -> Result<(), String> {
        if let Some(fault) = &self.fault {
            return Err(fault.clone());
        }
        let disturbance_count: u64 = self.disturbances.values().sum();
        for (job, known) in self.jobs.iter().enumerate() {
            let is_excused = disturbance_count >= u64::from(MAX_DELIVERIES);
            if known.is_letter && known.run_count == 0 && !is_excused {
                return Err(format!("job {job} is a dead letter and never ran"));
            }
            if known.is_persisted && !known.is_done && !known.is_letter {
                return Err(format!("job {job} was persisted, and is neither done nor a dead letter"));
            }
        }
        Ok(())
    }

    /// `ran_out`: how often the lease of a worker on a job ran out, by the journal.
    ///
    /// # Errors
    /// A lease ran out on a job on which its holder did not work.
    pub fn judge(&self, ran_out: &HashMap<(String, Job), u64>) -> Result<(), String> {
        for ((worker, job), count) in ran_out {
            let outran = self.outran.get(&(worker.clone(), *job)).copied().unwrap_or_default();
            let excused = self.disturbances.get(worker).copied().unwrap_or_default();
            if *count > outran + excused {
                return Err(format!(
                    "{count} leases of {worker} on job {job} ran out, {outran} of them while its handler ran"
                ));
            }
        }
        Ok(())
    }

    /// Runs of handlers.
    pub fn run_count(&self) -> u64 {
        self.jobs.iter().map(|known| known.run_count).sum()
    }
}

/// The number of the job in a message.
pub(super) fn job_of(data: &[u8]) -> Option<Job> {
    let (_, text) = std::str::from_utf8(data).ok()?.split_once(r#""job":"#)?;
    text[..text.find('}')?].parse().ok()
}

/// The program of a client.
pub(super) enum Program {
    Publish(Publisher),
    Work(Worker),
    Letters(Letters),
}

impl Program {
    /// The programs of a world, with their names.
    pub fn draw_all(random: &mut Random, canary: Option<Canary>) -> Vec<(String, Program)> {
        let mut all = vec![
            ("job-publisher".to_owned(), Program::Publish(Publisher::new(random.number()))),
            ("job-letters".to_owned(), Program::Letters(Letters::default())),
        ];
        for number in 0..1 + random.below(4) {
            let worker = Worker::new(Random::new(random.number()), canary);
            all.push((format!("job-worker-{number}"), Program::Work(worker)));
        }
        all
    }

    pub fn is_worker(&self) -> bool {
        matches!(self, Program::Work(_))
    }

    pub fn restart(&mut self, name: &str, ledger: &mut Ledger) {
        match self {
            Program::Publish(publisher) => publisher.sent.clear(),
            Program::Work(worker) => worker.restart(name, ledger),
            Program::Letters(letters) => letters.subscription = None,
        }
    }

    pub fn act(
        &mut self,
        name: &str,
        core: &mut ClientCore,
        now: Instant,
        ledger: &mut Ledger,
        is_settling: bool,
    ) {
        match self {
            Program::Publish(publisher) if !is_settling => publisher.act(core, ledger),
            Program::Publish(_) => (),
            Program::Work(worker) => worker.act(name, core, now, ledger, is_settling),
            Program::Letters(letters) if letters.subscription.is_none() => {
                let spec = SubscriptionSpec { bookmark: Some("0".into()), ..SubscriptionSpec::new(LETTERS) };
                letters.subscription = core.subscribe(spec).ok().map(|(number, _)| number);
            }
            Program::Letters(_) => (),
        }
    }

    pub fn take(&mut self, core: &ClientCore, event: Event, ledger: &mut Ledger) {
        match (self, event) {
            (Program::Publish(publisher), Event::Persisted) => publisher.persisted(core.persisted(), ledger),
            (Program::Publish(publisher), Event::PublishFailed { sequence, .. }) => {
                publisher.sent.retain(|(sent, _)| *sent != sequence);
            }
            (Program::Work(worker), event) => worker.take(event),
            (Program::Letters(_), Event::Messages { messages, .. }) => {
                for job in messages.iter().filter_map(|message| job_of(message.data())) {
                    ledger.jobs[job].is_letter = true;
                }
            }
            (Program::Letters(letters), Event::Ended { .. }) => letters.subscription = None,
            _ => (),
        }
    }
}

/// Publishes the jobs.
pub(super) struct Publisher {
    random: Random,
    /// Those that are not known to be persisted, by sequence.
    sent: Vec<(u64, Job)>,
}

impl Publisher {
    fn new(seed: u64) -> Self {
        Publisher { random: Random::new(seed), sent: Vec::new() }
    }

    fn act(&mut self, core: &mut ClientCore, ledger: &mut Ledger) {
        if !self.random.percent(3) {
            return;
        }
        for _ in 0..1 + self.random.below(5) {
            let Some(job) = ledger.next() else { return };
            let data = format!(r#"{{"job":{job}}}"#);
            if let Ok(Some(sequence)) = core.publish(&NewMessage::new(TOPIC, data.as_bytes())) {
                self.sent.push((sequence, job));
            }
        }
    }

    fn persisted(&mut self, persisted: u64, ledger: &mut Ledger) {
        for (_, job) in self.sent.extract_if(.., |(sequence, _)| *sequence <= persisted) {
            ledger.jobs[job].is_persisted = true;
        }
    }
}

/// Reads the dead letters.
#[derive(Default)]
pub(super) struct Letters {
    subscription: Option<u32>,
}

/// Fetches jobs, and runs a handler on each.
pub(super) struct Worker {
    random: Random,
    renewal: Renewal,
    concurrency: usize,
    max_backlog: u32,
    /// How long a handler runs, at most.
    run_ns_max: u64,
    /// Begins also what its client says that it must not.
    is_deaf: bool,
    subscription: Option<u32>,
    entering: Option<CommandId>,
    fetched: VecDeque<Message>,
    running: Vec<(Instant, Message)>,
}

impl Worker {
    fn new(mut random: Random, canary: Option<Canary>) -> Self {
        let renewal = match random.below(4) {
            0 | 1 => Renewal::WhileHandled,
            2 => Renewal::UntilBegun,
            _ => Renewal::Never,
        };
        let run_ns_max = match renewal {
            Renewal::WhileHandled => LEASE_NS * [1, 3, 4, 12][random.below(4) as usize] / 4,
            // The program extends nothing, and sometimes takes too long.
            Renewal::UntilBegun | Renewal::Never => LEASE_NS * [1, 2, 3, 5][random.below(4) as usize] / 4,
        };
        Worker {
            renewal,
            concurrency: 1 + random.below(2) as usize,
            max_backlog: 1 + random.below(6) as u32,
            run_ns_max,
            is_deaf: canary == Some(Canary::BegunLost),
            random,
            subscription: None,
            entering: None,
            fetched: VecDeque::new(),
            running: Vec::new(),
        }
    }

    fn restart(&mut self, name: &str, ledger: &mut Ledger) {
        (self.subscription, self.entering) = (None, None);
        self.fetched.clear();
        self.running.clear();
        ledger.killed(name);
    }

    fn act(
        &mut self,
        name: &str,
        core: &mut ClientCore,
        now: Instant,
        ledger: &mut Ledger,
        is_settling: bool,
    ) {
        for (_, message) in self.running.extract_if(.., |(ends, _)| *ends <= now).collect::<Vec<_>>() {
            self.end(name, core, now, &message, ledger, is_settling);
        }
        let Some(subscription) = self.subscription else {
            let (max_backlog, renewal) = (Some(self.max_backlog), self.renewal);
            let spec = SubscriptionSpec { max_backlog, renewal, ..SubscriptionSpec::new(QUEUE) };
            if let Ok((subscription, command)) = core.subscribe(spec) {
                (self.subscription, self.entering) = (Some(subscription), Some(command));
            }
            return;
        };
        if !is_settling && self.running.is_empty() && self.random.below(300) == 0 {
            // Fails when the client is closed, which gives the jobs back as well.
            let _ = core.unsubscribe(subscription);
            self.subscription = None;
            self.fetched.clear();
            return;
        }
        while self.running.len() < self.concurrency
            && let Some(message) = self.fetched.pop_front()
        {
            let (Some(lease), Some(job)) = (message.lease(), job_of(message.data())) else { continue };
            if core.begin(lease, now) || self.is_deaf {
                ledger.begin(name, job, lease, self.renewal == Renewal::WhileHandled, now);
                let run = Duration::from_nanos(self.random.below(self.run_ns_max + 1));
                self.running.push((now + run, message));
            }
        }
    }

    fn end(
        &mut self,
        name: &str,
        core: &mut ClientCore,
        now: Instant,
        message: &Message,
        ledger: &mut Ledger,
        is_settling: bool,
    ) {
        let (Some(lease), Some(job)) = (message.lease(), job_of(message.data())) else { return };
        let is_late = lease.is_lost(now + VERDICT);
        let fails = !is_settling && self.random.percent(10);
        let verdict = if fails { Verdict::Cancel } else { Verdict::Acknowledge };
        // Fails when the client is closed, which gives the job back.
        let is_settled = core.settle(lease, verdict, now).is_ok();
        ledger.end(name, job, lease, is_settled && !fails, is_late);
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Messages { subscription, messages } if Some(subscription) == self.subscription => {
                self.fetched.extend(messages);
            }
            Event::Dropped { .. } if !self.is_deaf => {
                self.fetched
                    .retain(|message| message.lease().is_some_and(|lease| !lease.is_settled_or_over()));
            }
            Event::Answered { command, result } if Some(command) == self.entering => {
                self.entering = None;
                if result.is_err() {
                    self.subscription = None;
                }
            }
            Event::Ended { subscription, .. } if Some(subscription) == self.subscription => {
                self.subscription = None;
                self.fetched.clear();
            }
            _ => (),
        }
    }
}
