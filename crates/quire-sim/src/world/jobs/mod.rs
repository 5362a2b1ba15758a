//! Workers that fetch ahead: their handlers take about as long as a lease, and much longer. The
//! ledger has the times of all runs, and checks:
//!
//! - No job begins while another run holds its lease. A client whose handler works on a job does
//!   not begin it again.
//! - A client does not begin a job that it has acknowledged, or that came over a connection that it
//!   has lost.
//! - The lease of a job that its holder has not begun does not run out, so no delivery counts that
//!   was not begun. A client that renews leases does not release such a job either.
//! - A job that its holder begins has almost a whole lease, when the client renews the lease at
//!   that moment. [`Ledger::judge`] reads both from the lease records of the journal. A connection
//!   that was slow, silent or lost in the last period of the lease excuses its end.
//! - No job becomes a dead letter that never ran.
//! - At the end, every persisted job was acknowledged after a run, or is a dead letter. In half of
//!   the casts the dead letters start an action, so that each of them has a run.

mod defects;
mod ledger;
mod worker;

use std::collections::VecDeque;

use quire_broker::{EventsConfig, QueueSettings, RecordedTopic};
use quire_client::{ClientCore, ConnectionState, Event, Message, NewMessage, SubscriptionSpec};
use quire_types::time::Instant;

use super::{Canary, SECOND_NS};
use crate::random::Random;
pub(super) use ledger::Ledger;
use worker::Worker;

const TOPIC: &str = "jobs/new";
const LETTERS: &str = "jobs/dead";
/// The topic of the dead letters that start an action.
pub(super) const LEFT: &str = "/quire/Left/jobs";
pub(super) const QUEUE: &str = "jobs";
const LEASE_NS: u64 = 2 * SECOND_NS / 5;
const MAX_DELIVERIES: u32 = 4;
/// Steps of a client that a run of an action takes, and those until its place is on the disk, on
/// average.
const RUN_STEPS: u64 = 300;
const SAVE_STEPS: u64 = 100;
/// Jobs of a world.
const COUNT_MAX: u64 = 40;

/// Number of a job.
pub(super) type Job = usize;

pub(super) fn rules() -> [RecordedTopic; 2] {
    [RecordedTopic::new("^jobs/", "json"), RecordedTopic::new("^/quire/Left/", "json")]
}

/// The settings of events when dead letters start an action.
pub(super) fn events() -> EventsConfig {
    EventsConfig { expired: vec![QUEUE.into()], ..EventsConfig::default() }
}

/// `has_action`: the dead letters start an action.
pub(super) fn settings(has_action: bool) -> QueueSettings {
    QueueSettings {
        name: QUEUE.into(),
        message_type: "json".into(),
        underlying_topic: Some(TOPIC.into()),
        lease_period_ns: Some(LEASE_NS),
        max_deliveries: Some(MAX_DELIVERIES),
        dead_letter_topic: (!has_action).then(|| LETTERS.into()),
        record_leases: true,
        ..QueueSettings::default()
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
    Act(Action),
}

impl Program {
    /// The programs of a world, with their names. `action`: for an action that dead letters start.
    pub fn draw_all(
        random: &mut Random,
        action: Option<Random>,
        canary: Option<Canary>,
    ) -> Vec<(String, Program)> {
        let has_action = action.is_some();
        let letters = match action {
            Some(random) => Program::Act(Action::new(random, canary == Some(Canary::EarlyPlace))),
            None => Program::Letters(Letters::default()),
        };
        let mut all = vec![
            ("job-publisher".to_owned(), Program::Publish(Publisher::new(random.number()))),
            ("job-letters".to_owned(), letters),
        ];
        let is_tight = random.percent(50);
        for number in 0..1 + random.below(4) {
            let seed = Random::new(random.number());
            let worker = match number {
                0 if is_tight => Worker::tight(seed, canary),
                _ => Worker::new(seed, canary),
            };
            let worker = if has_action { worker.with_bad_jobs() } else { worker };
            all.push((format!("job-worker-{number}"), Program::Work(worker)));
        }
        all
    }

    pub fn is_worker(&self) -> bool {
        matches!(self, Program::Work(_))
    }

    /// The bytes that the client sends, changed by a deliberate mistake.
    pub fn pass_frames(&self, bytes: Vec<u8>) -> Vec<u8> {
        match self {
            Program::Work(worker) => worker.pass_frames(bytes),
            Program::Publish(_) | Program::Letters(_) | Program::Act(_) => bytes,
        }
    }

    pub fn restart(&mut self, name: &str, now: Instant, drained: Instant, ledger: &mut Ledger) {
        match self {
            Program::Publish(publisher) => publisher.sent.clear(),
            Program::Work(worker) => worker.restart(name, now, drained, ledger),
            Program::Letters(letters) => letters.subscription = None,
            Program::Act(action) => action.restart(),
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
            Program::Act(action) => action.act(core, ledger, is_settling),
        }
    }

    pub fn take(&mut self, name: &str, core: &ClientCore, event: Event, now: Instant, ledger: &mut Ledger) {
        match (self, event) {
            (Program::Publish(publisher), Event::Persisted) => publisher.persisted(core.persisted(), ledger),
            (Program::Publish(publisher), Event::PublishFailed { sequence, .. }) => {
                publisher.sent.retain(|(sent, _)| *sent != sequence);
            }
            (Program::Work(worker), event) => worker.take(name, event, now, ledger),
            (Program::Letters(_), Event::Messages { messages, .. }) => {
                for job in messages.iter().filter_map(|message| job_of(message.data())) {
                    ledger.is_letter(job);
                }
            }
            (Program::Letters(letters), Event::Ended { .. }) => letters.subscription = None,
            (Program::Act(action), Event::Messages { subscription, messages })
                if action.subscription == Some(subscription) =>
            {
                action.waiting.extend(messages);
            }
            (Program::Act(action), Event::StateChanged) => {
                action.is_lost |= *core.state() == ConnectionState::Reconnecting;
            }
            (Program::Act(action), Event::Ended { subscription, .. })
                if action.subscription == Some(subscription) =>
            {
                action.end();
            }
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
            ledger.persisted(job);
        }
    }
}

/// Reads the dead letters.
#[derive(Default)]
pub(super) struct Letters {
    subscription: Option<u32>,
}

/// An action that dead letters start, as a server runs it: one run after the other. Its place in
/// the log moves on after each run, and is on the disk some time later. It is killed with its
/// server: a lost connection counts as that, too.
pub(super) struct Action {
    random: Random,
    subscription: Option<u32>,
    /// The connection was lost since the last step.
    is_lost: bool,
    /// Messages without a run.
    waiting: VecDeque<Message>,
    /// The bookmark of the last run.
    place: Option<String>,
    /// The place that a kill leaves.
    saved: Option<String>,
    /// A deliberate mistake: the place moves on before the run.
    is_early: bool,
}

impl Action {
    fn new(random: Random, is_early: bool) -> Self {
        let (waiting, place, saved) = (VecDeque::new(), None, None);
        Action { random, subscription: None, is_lost: false, waiting, place, saved, is_early }
    }

    fn act(&mut self, core: &mut ClientCore, ledger: &mut Ledger, is_settling: bool) {
        if std::mem::take(&mut self.is_lost) {
            if let Some(subscription) = self.subscription {
                let _ = core.unsubscribe(subscription);
            }
            self.restart();
        }
        if self.subscription.is_none() {
            let bookmark = self.saved.clone().unwrap_or_else(|| "0".into());
            let spec = SubscriptionSpec { bookmark: Some(bookmark), ..SubscriptionSpec::new(LEFT) };
            self.subscription = core.subscribe(spec).ok().map(|(number, _)| number);
        }
        let bookmark_of = |message: &Message| message.bookmark().map(|bookmark| bookmark.to_string());
        if self.is_early
            && let Some(last) = self.waiting.back()
        {
            self.place = bookmark_of(last);
        }
        // A run takes its time.
        if self.random.below(if is_settling { 2 } else { RUN_STEPS }) == 0
            && let Some(message) = self.waiting.pop_front()
        {
            if let Some(job) = job_of(message.data()) {
                ledger.has_started(job);
            }
            if !self.is_early {
                self.place = bookmark_of(&message);
            }
        }
        if self.random.below(SAVE_STEPS) == 0 {
            self.saved.clone_from(&self.place);
        }
    }

    /// The subscription is over. The next one begins at the place.
    fn end(&mut self) {
        self.subscription = None;
        self.waiting.clear();
        self.saved.clone_from(&self.place);
    }

    /// The process was killed.
    fn restart(&mut self) {
        self.subscription = None;
        self.waiting.clear();
        self.place.clone_from(&self.saved);
    }
}
