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
//! - At the end, every persisted job was acknowledged after a run, or is a dead letter.

mod defects;
mod ledger;
mod worker;

use quire_broker::{QueueSettings, RecordedTopic};
use quire_client::{ClientCore, Event, NewMessage, SubscriptionSpec};
use quire_types::time::Instant;

use super::{Canary, SECOND_NS};
use crate::random::Random;
pub(super) use ledger::Ledger;
use worker::Worker;

const TOPIC: &str = "jobs/new";
const LETTERS: &str = "jobs/dead";
pub(super) const QUEUE: &str = "jobs";
const LEASE_NS: u64 = 2 * SECOND_NS / 5;
const MAX_DELIVERIES: u32 = 4;
/// Jobs of a world.
const COUNT_MAX: u64 = 40;

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
        let is_tight = random.percent(50);
        for number in 0..1 + random.below(4) {
            let seed = Random::new(random.number());
            let worker = match number {
                0 if is_tight => Worker::tight(seed, canary),
                _ => Worker::new(seed, canary),
            };
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
            Program::Publish(_) | Program::Letters(_) => bytes,
        }
    }

    pub fn restart(&mut self, name: &str, now: Instant, drained: Instant, ledger: &mut Ledger) {
        match self {
            Program::Publish(publisher) => publisher.sent.clear(),
            Program::Work(worker) => worker.restart(name, now, drained, ledger),
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
