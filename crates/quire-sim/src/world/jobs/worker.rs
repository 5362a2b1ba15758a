//! A worker that fetches jobs ahead, and runs a handler on each.

use std::collections::{HashSet, VecDeque};
use std::time::Duration;

use quire_client::{Begun, ClientCore, CommandId, Event, Message, Renewal, SubscriptionSpec};
use quire_types::time::Instant;
use quire_types::{Bookmark, Verdict};

use super::ledger::Ledger;
use super::{LEASE_NS, QUEUE, defects, job_of};
use crate::random::Random;
use crate::world::Canary;

/// Fetches jobs, and runs a handler on each.
pub(in crate::world) struct Worker {
    random: Random,
    renewal: Renewal,
    concurrency: usize,
    max_backlog: u32,
    /// How long a handler runs, at least and at most.
    run_ns: [u64; 2],
    canary: Option<Canary>,
    /// Every fourth job always fails, and becomes a dead letter.
    has_bad_jobs: bool,
    subscription: Option<u32>,
    entering: Option<CommandId>,
    fetched: VecDeque<Message>,
    running: Vec<(Instant, Message)>,
}

impl Worker {
    pub fn new(mut random: Random, canary: Option<Canary>) -> Self {
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
        let concurrency = 1 + random.below(2) as usize;
        let max_backlog = 1 + random.below(6) as u32;
        Worker::with(random, canary, renewal, [0, run_ns_max], concurrency, max_backlog)
    }

    /// Each handler takes almost the time that the lease of a message has when it begins, and other
    /// messages wait meanwhile. So a lease runs out when the client leaves out one of its renewals.
    pub fn tight(mut random: Random, canary: Option<Canary>) -> Self {
        let run_ns = [LEASE_NS / 4 * 3, LEASE_NS / 8 * 7];
        let max_backlog = 3 + random.below(4) as u32;
        Worker::with(random, canary, Renewal::UntilBegun, run_ns, 1, max_backlog)
    }

    fn with(
        random: Random,
        canary: Option<Canary>,
        renewal: Renewal,
        run_ns: [u64; 2],
        concurrency: usize,
        max_backlog: u32,
    ) -> Self {
        Worker {
            random,
            renewal,
            concurrency,
            max_backlog,
            run_ns,
            canary,
            has_bad_jobs: false,
            subscription: None,
            entering: None,
            fetched: VecDeque::new(),
            running: Vec::new(),
        }
    }

    /// Every fourth job always fails.
    pub fn with_bad_jobs(self) -> Self {
        Worker { has_bad_jobs: true, ..self }
    }

    pub fn restart(&mut self, name: &str, now: Instant, drained: Instant, ledger: &mut Ledger) {
        (self.subscription, self.entering) = (None, None);
        self.fetched.clear();
        self.running.clear();
        ledger.killed(name, now, drained);
    }

    pub fn act(
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
                ledger.subscribes(name, renewal);
                (self.subscription, self.entering) = (Some(subscription), Some(command));
            }
            return;
        };
        if !is_settling && self.running.is_empty() && self.random.below(300) == 0 {
            // Fails when the client is closed, which releases the jobs as well.
            let _ = core.unsubscribe(subscription);
            ledger.unsubscribes(name, now);
            self.subscription = None;
            self.fetched.clear();
            return;
        }
        while self.running.len() < self.concurrency
            && let Some(message) = self.fetched.pop_front()
        {
            let (Some(lease), Some(job)) = (message.lease(), job_of(message.data())) else { continue };
            let may_begin = match self.canary {
                Some(Canary::ForgottenRenewalAtBegin) => lease.begin(now) != Begun::No,
                _ => core.begin(lease, now),
            };
            if may_begin || self.is_deaf() {
                ledger.begin(name, job, lease, now);
                let [min, max] = self.run_ns;
                let run = Duration::from_nanos(min + self.random.below(max - min + 1));
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
        let is_bad = self.has_bad_jobs && job.is_multiple_of(4);
        let fails = is_bad || !is_settling && self.random.percent(10);
        let verdict = if fails { Verdict::Cancel } else { Verdict::Acknowledge };
        // Fails when the client is closed, which returns the job.
        let is_settled = core.settle(lease, verdict, now).is_ok();
        ledger.end(name, job, lease, is_settled && !fails, now);
    }

    /// The bytes that the client sends, without the commands that it leaves out.
    pub fn pass_frames(&self, bytes: Vec<u8>) -> Vec<u8> {
        let forgets_releases = match self.canary {
            Some(Canary::ForgottenRenewal) => false,
            Some(Canary::ForgottenRelease) => true,
            _ => return bytes,
        };
        let leases = self.running.iter().filter_map(|(_, message)| message.lease());
        let begun: HashSet<Bookmark> = leases.map(|lease| lease.bookmark()).collect();
        defects::without_care(&bytes, &begun, forgets_releases)
    }

    /// Also begins messages that its client says it must not begin.
    fn is_deaf(&self) -> bool {
        self.canary == Some(Canary::BegunLost)
    }

    pub fn take(&mut self, name: &str, event: Event, now: Instant, ledger: &mut Ledger) {
        match event {
            Event::Messages { subscription, messages } if Some(subscription) == self.subscription => {
                for message in &messages {
                    if let (Some(lease), Some(job)) = (message.lease(), job_of(message.data())) {
                        ledger.arrived(name, job, lease, now);
                    }
                }
                self.fetched.extend(messages);
            }
            Event::Dropped { .. } if !self.is_deaf() => {
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
