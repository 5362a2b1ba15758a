//! The deliveries, runs and connections of the workers, and the checks of them.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use quire_client::{Lease, Renewal};
use quire_types::time::Instant;

use super::{Job, LEASE_NS, MAX_DELIVERIES, job_of};
use crate::world::holders::{Cause, LeaseEnd};

const LEASE: Duration = Duration::from_nanos(LEASE_NS);
/// Bytes on a connection that is not slow arrive in this time.
const TRAVEL: Duration = Duration::from_millis(5);
/// A delivery waits for so long until the server has read the message. Its lease runs meanwhile.
const READ: Duration = Duration::from_millis(20);
/// In this time a verdict reaches the server: the client waits for a batch before it sends the
/// verdict.
const VERDICT: Duration = Duration::from_millis(40);
/// The time that a program has at least for a message that it begins, when the client renews the
/// lease at that moment.
const RENEWED: Duration = Duration::from_nanos(LEASE_NS / 20 * 19);
/// The same when the client renews nothing: a message that has less time left is released.
const LEFT: Duration = Duration::from_nanos(LEASE_NS / 4);

/// The knowledge of all clients.
#[derive(Default)]
pub(in crate::world) struct Ledger {
    jobs: Vec<Known>,
    runs: Vec<Run>,
    /// Every delivery that a program got, in the order of their arrivals.
    deliveries: HashMap<(String, Job), Vec<Delivery>>,
    connections: HashMap<String, Connections>,
    /// The jobs that the process of a worker has acknowledged.
    acknowledged: HashMap<String, HashSet<Job>>,
    /// Runs of actions that dead letters started.
    started_count: u64,
    fault: Option<String>,
}

#[derive(Clone, Copy, Default)]
struct Known {
    is_persisted: bool,
    run_count: u64,
    is_done: bool,
    is_letter: bool,
    /// The journal file with its dead letter was removed. A reader that was not connected then may
    /// miss it.
    is_letter_gone: bool,
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

struct Delivery {
    lease: Arc<Lease>,
    arrived: Instant,
    /// The number of the connection on which it came.
    connection: u64,
    begun: Option<Instant>,
    /// The handler has returned.
    ended: Option<Instant>,
}

/// The connections of a worker.
#[derive(Default)]
struct Connections {
    renewal: Renewal,
    /// Those that are over.
    over_count: u64,
    /// Times at which the connection was slow or silent, was not read, or was lost. Renewals and
    /// deliveries arrive late then, or not at all.
    disturbances: Vec<Disturbance>,
    /// When it unsubscribed. The jobs that it has not begun are released then.
    unsubscribed: Vec<Instant>,
}

struct Disturbance {
    from: Instant,
    /// `None`: it lasts.
    until: Option<Instant>,
}

impl Connections {
    fn is_disturbed(&self) -> bool {
        self.disturbances.last().is_some_and(|disturbance| disturbance.until.is_none())
    }

    fn was_disturbed(&self, from: Instant, until: Instant) -> bool {
        self.disturbances.iter().any(|disturbance| {
            disturbance.from <= until && disturbance.until.is_none_or(|until| until >= from)
        })
    }
}

impl Ledger {
    /// A job to be published.
    pub(super) fn next(&mut self) -> Option<Job> {
        (self.jobs.len() < super::COUNT_MAX as usize).then(|| {
            self.jobs.push(Known::default());
            self.jobs.len() - 1
        })
    }

    pub(super) fn persisted(&mut self, job: Job) {
        self.jobs[job].is_persisted = true;
    }

    pub(super) fn is_letter(&mut self, job: Job) {
        self.jobs[job].is_letter = true;
    }

    /// The removal of the journal file with this dead letter was begun.
    pub fn removing(&mut self, data: &[u8]) {
        if let Some(job) = job_of(data) {
            self.jobs[job].is_letter_gone = true;
        }
    }

    /// A dead letter has started an action.
    pub(super) fn has_started(&mut self, job: Job) {
        self.is_letter(job);
        self.started_count += 1;
    }

    /// Runs of actions that dead letters started.
    pub fn started_count(&self) -> u64 {
        self.started_count
    }

    /// A worker subscribes, and its client renews these leases.
    pub(super) fn subscribes(&mut self, worker: &str, renewal: Renewal) {
        self.connections_of(worker).renewal = renewal;
    }

    pub(super) fn unsubscribes(&mut self, worker: &str, now: Instant) {
        self.connections_of(worker).unsubscribed.push(now);
    }

    /// The program of a worker gets a message.
    pub(super) fn arrived(&mut self, worker: &str, job: Job, lease: &Arc<Lease>, now: Instant) {
        let connection = self.connections_of(worker).over_count;
        let delivery = Delivery { lease: lease.clone(), arrived: now, connection, begun: None, ended: None };
        self.deliveries.entry((worker.to_owned(), job)).or_default().push(delivery);
    }

    pub(super) fn begin(&mut self, worker: &str, job: Job, lease: &Arc<Lease>, now: Instant) {
        self.jobs[job].run_count += 1;
        let connections = self.connections_of(worker);
        let (is_disturbed, over_count) = (connections.is_disturbed(), connections.over_count);
        let is_renewed = connections.renewal == Renewal::WhileHandled;
        if let Some(delivery) = self.delivery(worker, job, lease) {
            delivery.begun = Some(now);
            if delivery.connection != over_count {
                let fault = format!("job {job} begins on {worker}, which has lost its connection since");
                self.fault.get_or_insert(fault);
            }
        }
        let others = self.runs.iter().filter(|run| run.job == job);
        let first = others.clone().find(|run| {
            // The client counts the lease from the arrival, and the server from before the read.
            let is_held = !is_disturbed && !run.is_disturbed && !run.lease.is_lost(now + TRAVEL + READ);
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

    pub(super) fn end(
        &mut self,
        worker: &str,
        job: Job,
        lease: &Arc<Lease>,
        is_acknowledged: bool,
        now: Instant,
    ) {
        if let Some(delivery) = self.delivery(worker, job, lease) {
            delivery.ended = Some(now);
        }
        self.runs.retain(|run| !Arc::ptr_eq(&run.lease, lease));
        if is_acknowledged {
            self.jobs[job].is_done = true;
            self.acknowledged.entry(worker.to_owned()).or_default().insert(job);
        }
    }

    /// The server reads the connection of a worker again.
    pub fn undisturbed(&mut self, worker: &str, now: Instant) {
        let connections = self.connections_of(worker);
        if let Some(disturbance) = connections.disturbances.last_mut() {
            disturbance.until.get_or_insert(now);
        }
    }

    /// The connection of a worker is slow or silent from now on, or the server does not read it.
    pub fn disturbed(&mut self, worker: &str, now: Instant) {
        let connections = self.connections_of(worker);
        if !connections.is_disturbed() {
            connections.disturbances.push(Disturbance { from: now, until: None });
        }
        self.runs.iter_mut().filter(|run| run.worker == worker).for_each(|run| run.is_disturbed = true);
    }

    /// The connection of a worker is over. The next one may be a good one. The server notices the
    /// end at `drained`, and delivers messages until then.
    pub fn disconnected(&mut self, worker: &str, now: Instant, drained: Instant) {
        self.disturbed(worker, now);
        let connections = self.connections_of(worker);
        connections.over_count += 1;
        if let Some(disturbance) = connections.disturbances.last_mut() {
            disturbance.until = Some(drained);
        }
    }

    /// The process of a worker is gone.
    pub(super) fn killed(&mut self, worker: &str, now: Instant, drained: Instant) {
        self.disconnected(worker, now, drained);
        self.runs.retain(|run| run.worker != worker);
        self.acknowledged.remove(worker);
    }

    /// # Errors
    /// What was promised and did not hold.
    pub fn verdict(&self) -> Result<(), String> {
        if let Some(fault) = &self.fault {
            return Err(fault.clone());
        }
        let disturbance_count: usize =
            self.connections.values().map(|connections| connections.disturbances.len()).sum();
        for (job, known) in self.jobs.iter().enumerate() {
            let is_excused = disturbance_count >= MAX_DELIVERIES as usize;
            if known.is_letter && known.run_count == 0 && !is_excused {
                return Err(format!("job {job} is a dead letter and never ran"));
            }
            if known.is_persisted && !known.is_done && !known.is_letter && !known.is_letter_gone {
                return Err(format!("job {job} was persisted, and is neither done nor a dead letter"));
            }
        }
        Ok(())
    }

    /// `ends`: the leases that ran out or were released, by the journal.
    ///
    /// # Errors
    /// A lease ended that its holder should have kept.
    pub fn judge(&self, ends: &[LeaseEnd]) -> Result<(), String> {
        ends.iter().try_for_each(|end| {
            self.judge_end(end).map_err(|reason| {
                let LeaseEnd { worker, job, until, .. } = end;
                format!("the lease of {worker} on job {job} {reason} before {} ns", until.as_ns())
            })
        })
    }

    fn judge_end(&self, end: &LeaseEnd) -> Result<(), String> {
        let LeaseEnd { worker, job, cause, from, until } = end;
        let Some(connections) = self.connections.get(worker) else { return Ok(()) };
        // The last renewal that counted was a period ago. A connection that was good since then
        // excuses nothing.
        if connections.was_disturbed(before(*from, LEASE + TRAVEL), *until) {
            return Ok(());
        }
        match cause {
            Cause::Released => {
                let left = before(*from, TRAVEL)..=*until;
                let is_left = connections.unsubscribed.iter().any(|at| left.contains(at));
                if connections.renewal == Renewal::Never || is_left {
                    return Ok(());
                }
                Err("was released, which its client should have renewed,".into())
            }
            Cause::RanOut => {
                let deliveries = self.deliveries.get(&(worker.clone(), *job)).map_or(&[][..], Vec::as_slice);
                let delivery = deliveries.iter().rfind(|delivery| delivery.arrived <= *from);
                let Some(begun) = delivery.and_then(|delivery| delivery.begun).filter(|begun| begun <= until)
                else {
                    return Err("ran out on a message that it had not begun,".into());
                };
                let ended = delivery.and_then(|delivery| delivery.ended);
                if ended.is_some_and(|ended| ended + VERDICT < *from) {
                    return Err("ran out after the verdict,".into());
                }
                let granted = match connections.renewal {
                    Renewal::WhileHandled => return Err("ran out while its client renewed it,".into()),
                    Renewal::UntilBegun => RENEWED,
                    Renewal::Never => LEFT,
                };
                if *until + READ + TRAVEL < begun + granted {
                    return Err(format!("ran out too early, it began at {} ns,", begun.as_ns()));
                }
                Ok(())
            }
        }
    }

    /// Runs of handlers.
    pub fn run_count(&self) -> u64 {
        self.jobs.iter().map(|known| known.run_count).sum()
    }

    fn connections_of(&mut self, worker: &str) -> &mut Connections {
        self.connections.entry(worker.to_owned()).or_default()
    }

    fn delivery(&mut self, worker: &str, job: Job, lease: &Arc<Lease>) -> Option<&mut Delivery> {
        let deliveries = self.deliveries.get_mut(&(worker.to_owned(), job))?;
        deliveries.iter_mut().rfind(|delivery| Arc::ptr_eq(&delivery.lease, lease))
    }
}

fn before(at: Instant, duration: Duration) -> Instant {
    Instant::from_ns(at.as_ns().saturating_sub(duration.as_nanos() as u64))
}
