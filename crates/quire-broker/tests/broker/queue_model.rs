//! Random publishers, workers, crashes and times on two queues over one topic, checked from
//! outside. No message is lost. No message is leased to two workers at a time. A message whose
//! acknowledgement was persisted does not return. A message is not delivered before its delay is
//! over. An at-most-once message is delivered once at most, over every crash. In every second case
//! the states of the queues are kept in files. `PROPTEST_CASES` sets the number of cases. A failing
//! case is printed with its steps.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proptest::prelude::*;
use quire_broker::{BrokerConfig, QueueSettings};
use quire_command::*;
use quire_queue::{Semantics, Verdict};
use quire_types::{Delay, Timestamp};

use crate::pair::*;
use crate::queue_pair::*;

const PUBLISHER: u64 = 1;
const LEASE: Duration = Duration::from_secs(1);
/// The longest delay of a publish.
const DELAY_MS_MAX: u64 = 2_000;
const JOBS: u32 = 1;
const ONCE: u32 = 2;

#[derive(Clone, Debug)]
enum Step {
    Publish(u64),
    /// With a delay in milliseconds.
    PublishLater {
        count: u64,
        delay_ms: u64,
    },
    /// A worker with a backlog for both queues, or with another one.
    Work {
        worker: u64,
        max_backlog: u32,
    },
    Stop {
        worker: u64,
    },
    Disconnect {
        worker: u64,
    },
    /// One in this many of the messages that a worker holds.
    Settle {
        worker: u64,
        verdict: Verdict,
        one_in: usize,
    },
    Stall {
        worker: u64,
        writable: bool,
    },
    Pass {
        ms: u64,
    },
    /// Turns with and without what the disk does.
    Turn {
        writes: bool,
        reads: bool,
    },
    Crash {
        saves: bool,
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let worker = || 2u64..5;
    let verdict = prop_oneof![
        5 => Just(Verdict::Acknowledge),
        1 => Just(Verdict::Cancel),
        1 => Just(Verdict::Expire),
        1 => (0u64..900).prop_map(|delay_ms| Verdict::CancelWithDelay { delay_ms }),
        1 => Just(Verdict::Release),
    ];
    let step = prop_oneof![
        6 => (1u64..40).prop_map(Step::Publish),
        2 => (1u64..10, 1u64..DELAY_MS_MAX).prop_map(|(count, delay_ms)| Step::PublishLater { count, delay_ms }),
        3 => (worker(), prop_oneof![0u32..4, Just(100)]).prop_map(|(worker, max_backlog)| Step::Work { worker, max_backlog }),
        1 => worker().prop_map(|worker| Step::Stop { worker }),
        1 => worker().prop_map(|worker| Step::Disconnect { worker }),
        6 => (worker(), verdict, 1usize..4).prop_map(
            |(worker, verdict, one_in)| Step::Settle { worker, verdict, one_in }),
        1 => (worker(), any::<bool>()).prop_map(|(worker, writable)| Step::Stall { worker, writable }),
        2 => (1u64..1500).prop_map(|ms| Step::Pass { ms }),
        1 => Just(Step::Pass { ms: 61_000 }),
        8 => (prop::bool::weighted(0.7), prop::bool::weighted(0.7)).prop_map(|(writes, reads)| Step::Turn { writes, reads }),
        1 => any::<bool>().prop_map(|saves| Step::Crash { saves }),
    ];
    prop::collection::vec(step, 1..60)
}

fn settings(file_backed_metadata: bool) -> BrokerConfig {
    let over = |name: &str| QueueSettings {
        underlying_topic: Some("t".into()),
        file_backed_metadata,
        record_leases: true,
        ..queue(name)
    };
    queue_config([
        QueueSettings { lease_period_ns: Some(LEASE.as_nanos() as u64), ..over("jobs") },
        QueueSettings { semantics: Semantics::AtMostOnce, ..over("once") },
    ])
}

#[derive(Clone, Copy)]
struct Held {
    holder: u64,
    deliveries: u32,
    deadline: u64,
}

/// Everything that those outside know.
struct Outside {
    pair: Pair,
    keeps: bool,
    published: u64,
    persisted: u64,
    /// The delivered messages of `jobs`: the worker, the number of the delivery, and the end.
    held: BTreeMap<u64, Held>,
    /// Settled in this life of the server, as was heard before the last step; for good; and at any
    /// time, heard of or not.
    settled: BTreeSet<u64>,
    settled_for_good: BTreeSet<u64>,
    settled_ever: BTreeSet<u64>,
    /// Settles that were not said to be persisted, by command.
    unsure: BTreeMap<u32, Vec<u64>>,
    /// Cancels that were not said to be processed, by command.
    cancelled: BTreeMap<u32, Vec<u64>>,
    commands: u32,
    seen_once: BTreeSet<u64>,
    /// Messages that were published with a delay, and the time before which they must not come.
    not_before: BTreeMap<u64, u64>,
    backlogs: BTreeMap<u64, u32>,
    publisher_id: u64,
}

impl Outside {
    fn new(keeps: bool) -> Self {
        let mut pair = Pair::with(settings(keeps));
        pair.client(PUBLISHER, "publisher");
        let publisher_id = pair.publisher_of("publisher");
        Outside {
            pair,
            keeps,
            published: 0,
            persisted: 0,
            held: BTreeMap::new(),
            settled: BTreeSet::new(),
            settled_for_good: BTreeSet::new(),
            settled_ever: BTreeSet::new(),
            unsure: BTreeMap::new(),
            cancelled: BTreeMap::new(),
            commands: 10,
            seen_once: BTreeSet::new(),
            not_before: BTreeMap::new(),
            backlogs: BTreeMap::new(),
            publisher_id,
        }
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Publish(count) => {
                for _ in 0..count {
                    self.publish(None);
                }
            }
            Step::PublishLater { count, delay_ms } => {
                (0..count).for_each(|_| self.publish(Some(delay_ms * 1_000_000)));
            }
            Step::Work { worker, max_backlog } => self.work(worker, max_backlog),
            Step::Stop { worker } => {
                if self.backlogs.contains_key(&worker) {
                    self.settle_down(worker);
                    self.backlogs.remove(&worker);
                    for subscription in [JOBS, ONCE] {
                        let acks = Acks::default();
                        self.pair.send(
                            worker,
                            &Command::Unsubscribe(Unsubscribe {
                                command: 1,
                                acks,
                                subscription,
                                begun: None,
                            }),
                        );
                    }
                    self.let_go(worker);
                }
            }
            Step::Disconnect { worker } => {
                if self.pair.clients.contains_key(&worker) {
                    self.pair.disconnect(worker);
                    self.backlogs.remove(&worker);
                    self.let_go(worker);
                }
            }
            Step::Settle { worker, verdict, one_in } => self.settle(worker, verdict, one_in),
            Step::Stall { worker, writable } => {
                if self.pair.clients.contains_key(&worker) {
                    self.pair.set_writable(worker, writable);
                }
            }
            Step::Pass { ms } => self.pass(Duration::from_millis(ms)),
            Step::Turn { writes, reads } => {
                (self.pair.writes_at_once, self.pair.reads_at_once) = (writes, reads);
                self.pair.turn();
                (self.pair.writes_at_once, self.pair.reads_at_once) = (true, true);
            }
            Step::Crash { saves } => self.crash(saves),
        }
        self.listen();
    }

    fn publish(&mut self, delay_ns: Option<u64>) {
        self.published += 1;
        let (sequence, data) = (self.published, self.published.to_string());
        // Of what a crash took back, the sequence is used again.
        self.not_before.remove(&sequence);
        let delay = delay_ns.map_or(Delay::None, |ns| {
            let end = self.pair.now_ns + ns;
            self.not_before.insert(sequence, end);
            match sequence.is_multiple_of(2) {
                true => Delay::For { ns },
                false => Delay::Until(Timestamp(WALL_START_NS + end)),
            }
        });
        self.pair.send(PUBLISHER, &Command::Publish(Publish { delay, ..publish(sequence, "t", &data) }));
    }

    fn check_delay(&self, sequence: u64, now: u64) {
        let not_before = self.not_before.get(&sequence).copied().unwrap_or(0);
        assert!(not_before <= now, "{sequence} came at {now}, before {not_before}");
    }

    /// Time passes; everything is heard at the time at which it is said.
    fn pass(&mut self, duration: Duration) {
        let end = self.pair.now_ns + duration.as_nanos() as u64;
        while let Some(at) = self.pair.broker.next_timeout().filter(|at| at.0 <= end) {
            self.pair.pass(Duration::from_nanos(at.0.saturating_sub(self.pair.now_ns)));
            self.listen();
        }
        self.pair.pass(Duration::from_nanos(end - self.pair.now_ns));
        self.listen();
    }

    fn work(&mut self, worker: u64, max_backlog: u32) {
        if !self.pair.clients.contains_key(&worker) {
            self.pair.connect(worker);
            self.pair.send(worker, &Command::Logon(logon(&format!("worker-{worker}"))));
        }
        self.settle_down(worker);
        let known = self.backlogs.insert(worker, max_backlog).is_some();
        let options = if known { SubscribeOptions::REPLACE } else { SubscribeOptions::default() };
        for (subscription, queue) in [(JOBS, "jobs"), (ONCE, "once")] {
            let subscribe =
                Subscribe { options, acks: Acks::default(), ..consume(subscription, queue, max_backlog) };
            self.pair.subscribe(worker, &subscribe);
        }
    }

    /// What is under way for a worker arrives, so that what it does next takes effect at once.
    fn settle_down(&mut self, worker: u64) {
        self.pair.set_writable(worker, true);
        self.pair.turn();
        self.listen();
    }

    /// The messages of a worker return.
    fn let_go(&mut self, worker: u64) {
        self.held.retain(|_, held| held.holder != worker);
    }

    fn settle(&mut self, worker: u64, verdict: Verdict, one_in: usize) {
        if !self.pair.clients.contains_key(&worker) {
            return;
        }
        let held = self.held.iter().filter(|(_, held)| held.holder == worker);
        let chosen: Vec<u64> = held.map(|(sequence, _)| *sequence).step_by(one_in).collect();
        self.commands += 1;
        let bookmarks: Vec<_> = chosen.iter().map(|sequence| (self.publisher_id, *sequence)).collect();
        let acks = Acks::PROCESSED.and(Acks::PERSISTED);
        self.pair.settle_bookmarks_as(worker, "jobs", verdict, &bookmarks, self.commands, acks);
        self.held.retain(|sequence, _| !chosen.contains(sequence));
        if verdict.gives_back() {
            self.cancelled.insert(self.commands, chosen);
        } else {
            self.settled_ever.extend(&chosen);
            self.unsure.insert(self.commands, chosen);
        }
        // A message of an at-most-once queue frees its place when it is settled with any verdict.
        let seen: Vec<_> = self.seen_once.iter().map(|sequence| (self.publisher_id, *sequence)).collect();
        self.pair.settle_bookmarks_as(worker, "once", verdict, &seen, 0, Acks::default());
    }

    fn crash(&mut self, saves: bool) {
        if saves {
            self.pass(Duration::from_secs(11));
        }
        let before = std::mem::replace(&mut self.pair, Pair::new());
        self.pair = before.restart(settings(self.keeps));
        self.held.clear();
        self.backlogs.clear();
        self.unsure.clear();
        self.cancelled.clear();
        self.settled = self.settled_for_good.clone();
        self.pair.connect(PUBLISHER);
        self.pair.send(PUBLISHER, &Command::Logon(logon("publisher")));
        self.pair.turn();
    }

    /// Takes the frames of all clients, and checks them.
    fn listen(&mut self) {
        let now = self.pair.now_ns;
        let mut processed = Vec::new();
        for client in self.pair.clients.keys().copied().collect::<Vec<_>>() {
            for said in self.pair.take(client) {
                match said {
                    Said::Persisted(sequence) => self.persisted = self.persisted.max(sequence),
                    Said::LoggedOn { last_sequence } if client == PUBLISHER => {
                        assert!(last_sequence >= self.persisted, "what was persisted is gone");
                        self.published = last_sequence;
                    }
                    Said::Queued(message) if message.subscription == ONCE => {
                        assert!(self.seen_once.insert(message.bookmark.1), "{} twice", message.bookmark.1);
                        self.check_delay(message.bookmark.1, now);
                    }
                    Said::Queued(message) => self.judge(client, &message, now),
                    Said::LeaseLost { subscription: JOBS, bookmark, .. } => {
                        let is_mine = self.held.get(&bookmark.1).is_some_and(|held| held.holder == client);
                        if is_mine {
                            self.held.remove(&bookmark.1);
                        }
                    }
                    Said::Ack { kind: AckKind::Processed, code: Code::Ok, command, .. } => {
                        processed.extend(self.unsure.get(&command).cloned().unwrap_or_default());
                        // It may have waited until the lease was over and the message came again:
                        // then it is given back again.
                        for sequence in self.cancelled.remove(&command).unwrap_or_default() {
                            self.held.retain(|other, held| (*other, held.holder) != (sequence, client));
                        }
                    }
                    Said::Ack { kind: AckKind::Persisted, code: Code::Ok, command, .. } => {
                        self.settled_for_good.extend(self.unsure.remove(&command).unwrap_or_default());
                    }
                    Said::Error(code) => panic!("client {client} was ended: {code}"),
                    _ => (),
                }
            }
        }
        // A message that was delivered in the same step may have been delivered before.
        self.settled.extend(processed);
    }

    fn judge(&mut self, worker: u64, message: &FromQueue, now: u64) {
        let sequence = message.bookmark.1;
        assert_eq!(message.data, sequence.to_string());
        assert!(!self.settled.contains(&sequence), "{sequence} was settled");
        self.check_delay(sequence, now);
        let deliveries = message.deliveries;
        if let Some(held) = self.held.get(&sequence) {
            if held.deliveries > deliveries {
                // Workers are listened to one after the other: this one lost it again before the
                // other got it.
                return;
            }
            assert!(
                held.deadline <= now,
                "{sequence} is with {} until {}, at {now} for {worker}",
                held.holder,
                held.deadline
            );
        }
        let deadline = now + message.lease_ms * 1_000_000;
        self.held.insert(sequence, Held { holder: worker, deliveries, deadline });
    }

    /// After everything, one worker gets all that is left.
    fn finish(mut self) {
        self.pair.turn();
        self.listen();
        let persisted = self.persisted;
        self.crash(false);
        // All delays are over.
        self.pass(Duration::from_millis(DELAY_MS_MAX));
        self.work(9, u32::MAX);
        self.pair.turn();
        self.listen();
        let left: BTreeSet<u64> = self.held.keys().copied().collect();
        for sequence in 1..=persisted {
            assert!(left.contains(&sequence) || self.settled_ever.contains(&sequence), "{sequence} is lost");
        }
        let figures = ["depth", "backlog"].map(|name| self.pair.figure("jobs", name));
        assert_eq!(figures, [left.len() as u64; 2]);
        assert_eq!(self.pair.figure("once", "depth"), 0);
        crate::queue_records::check_names(&self.pair);
    }
}

#[test]
fn a_cancel_that_waits_longer_than_its_lease_gives_back_the_next_one_of_its_own() {
    let mut outside = Outside::new(false);
    for step in [
        Step::Publish(2),
        Step::Work { worker: 2, max_backlog: 1 },
        Step::Pass { ms: 1 },
        Step::Crash { saves: false },
        Step::Work { worker: 2, max_backlog: 2 },
        // The log is searched for the messages of the other queue that the worker had before the
        // crash. The cancel waits for that.
        Step::Settle { worker: 2, verdict: Verdict::Expire, one_in: 2 },
        Step::Settle { worker: 2, verdict: Verdict::Cancel, one_in: 1 },
        Step::Turn { writes: false, reads: false },
        Step::Pass { ms: 1000 },
    ] {
        outside.step(&step);
    }
    outside.finish();
}

proptest! {
    #[test]
    fn queues_keep_their_word_over_crashes(keeps: bool, steps in steps()) {
        let mut outside = Outside::new(keeps);
        for step in &steps {
            outside.step(step);
        }
        outside.finish();
    }
}
