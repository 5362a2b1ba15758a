//! Random creations, drops, publishes, settlements and restarts, beside a model that is slow and obvious: a queue is the set of its
//! messages. A crash in the middle of a command leaves the queue as it was before or after the command; the model learns which.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use quire_broker::QueueSettings;
use quire_command::*;
use quire_types::Verdict;

use crate::pair::*;
use crate::queue_pair::*;

const PUBLISHER: u64 = 1;
const WORKER: u64 = 2;
const OPERATOR: u64 = 3;

/// The names of queues, each over one or two of the topics.
const QUEUES: [(&str, &str); 4] =
    [("jobs", "jobs"), ("all", "^(jobs|orders)$"), ("risk", "orders"), ("kept", "orders")];
const TOPICS: [&str; 2] = ["jobs", "orders"];

#[derive(Clone, Debug)]
enum Step {
    Publish {
        topic: usize,
        count: u64,
    },
    Create {
        queue: usize,
    },
    Drop {
        queue: usize,
    },
    /// A worker takes some messages of a queue, acknowledges some of them and returns the others.
    Work {
        queue: usize,
        backlog: u32,
        one_in: usize,
    },
    Restart {
        is_clean: bool,
    },
    /// A command, and the number of single steps of the server and its disk before a crash.
    CrashIn {
        queue: usize,
        creates: bool,
        steps: usize,
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let queue = || 0..QUEUES.len();
    let step = prop_oneof![
        4 => (0..TOPICS.len(), 1u64..8).prop_map(|(topic, count)| Step::Publish { topic, count }),
        3 => queue().prop_map(|queue| Step::Create { queue }),
        2 => queue().prop_map(|queue| Step::Drop { queue }),
        4 => (queue(), 1u32..9, 1usize..4)
            .prop_map(|(queue, backlog, one_in)| Step::Work { queue, backlog, one_in }),
        1 => any::<bool>().prop_map(|is_clean| Step::Restart { is_clean }),
        2 => (queue(), any::<bool>(), 0usize..10)
            .prop_map(|(queue, creates, steps)| Step::CrashIn { queue, creates, steps }),
    ];
    prop::collection::vec(step, 1..40)
}

fn settings(queue: usize) -> QueueSettings {
    let (name, topic) = QUEUES[queue];
    QueueSettings {
        name: name.into(),
        underlying_topic: Some(topic.into()),
        default_publish_target: Some(if topic.contains("orders") { "orders" } else { "jobs" }.into()),
        file_backed_metadata: name == "kept",
        target_queue_depth: (name == "all").then_some(3),
        ..QueueSettings::default()
    }
}

struct Checked {
    pair: Pair,
    published: u64,
    /// What each queue holds.
    queues: BTreeMap<&'static str, BTreeSet<u64>>,
}

impl Checked {
    fn new() -> Self {
        let mut checked = Checked { pair: Pair::new(), published: 0, queues: BTreeMap::new() };
        checked.log_on();
        checked
    }

    fn log_on(&mut self) {
        self.pair.client(PUBLISHER, "publisher");
        self.pair.client(WORKER, "worker");
        self.pair.client(OPERATOR, "operator");
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Publish { topic, count } => {
                for _ in 0..count {
                    self.published += 1;
                    let data = self.published.to_string();
                    self.pair.publish(PUBLISHER, self.published, TOPICS[topic], &data);
                    for (name, selector) in QUEUES {
                        if selector.contains(TOPICS[topic]) {
                            self.queues.get_mut(name).map(|held| held.insert(self.published));
                        }
                    }
                }
                self.pair.turn();
            }
            Step::Create { queue } => {
                let name = QUEUES[queue].0;
                let answer = self.define(queue, true);
                assert_eq!(answer["existed"], self.queues.contains_key(name), "{answer}");
                self.queues.entry(name).or_default();
            }
            Step::Drop { queue } => {
                let answer = self.define(queue, false);
                let expected = self.queues.remove(QUEUES[queue].0).map(|held| held.len());
                assert_eq!(answer["dropped"].as_u64().map(|count| count as usize), expected, "{answer}");
            }
            Step::Work { queue, backlog, one_in } => self.work(queue, backlog, one_in),
            Step::Restart { is_clean } => self.restart(is_clean),
            Step::CrashIn { queue, creates, steps } => self.crash_in(queue, creates, steps),
        }
        self.check();
    }

    /// Sends a command about a queue, and gives what was answered.
    fn define(&mut self, queue: usize, creates: bool) -> serde_json::Value {
        self.send_define(queue, creates);
        self.pair.turn();
        match &self.pair.take(OPERATOR)[..] {
            [Said::Stats { json, .. }] => {
                serde_json::from_str::<serde_json::Value>(json).unwrap()["queue"].take()
            }
            [Said::Ack { code: Code::UnknownQueue, .. }] => serde_json::Value::Null,
            said => panic!("{said:?}"),
        }
    }

    fn send_define(&mut self, queue: usize, creates: bool) {
        let settings = settings(queue).to_json();
        let action = match creates {
            true => DefineQueue::Create { settings: &settings },
            false => DefineQueue::Drop { queue: QUEUES[queue].0 },
        };
        self.pair.send(OPERATOR, &Command::DefineQueue { command: 5, action });
    }

    fn work(&mut self, queue: usize, backlog: u32, one_in: usize) {
        let name = QUEUES[queue].0;
        let Some(held) = self.queues.get_mut(name) else { return };
        self.pair.subscribe(WORKER, &consume(1, name, backlog));
        self.pair.turn();
        let messages = self.pair.take_queued(WORKER);
        let expected: Vec<String> = held.iter().take(backlog as usize).map(u64::to_string).collect();
        let is_shallow = settings(queue).target_queue_depth.is_some_and(|depth| depth < backlog.into());
        match is_shallow {
            true => assert_eq!(data(&messages), expected[..messages.len()], "{name}"),
            false => assert_eq!(data(&messages), expected, "{name}"),
        }
        let done: Vec<FromQueue> = messages.iter().step_by(one_in).cloned().collect();
        for message in &done {
            assert!(held.remove(&message.data.parse().unwrap()));
        }
        self.pair.settle(WORKER, name, Verdict::Acknowledge, &done);
        let unsubscribe = Unsubscribe { command: 2, subscription: 1, ..Unsubscribe::default() };
        self.pair.send(WORKER, &Command::Unsubscribe(unsubscribe));
        self.pair.turn();
        self.pair.take(WORKER);
    }

    fn restart(&mut self, is_clean: bool) {
        let before = std::mem::replace(&mut self.pair, Pair::new());
        self.pair = match is_clean {
            true => {
                let Pair { broker, disk, now_ns, .. } = before;
                broker.close().unwrap();
                Pair { now_ns, ..Pair::on(disk, config()) }
            }
            false => before.restart(config()),
        };
        self.log_on();
    }

    fn crash_in(&mut self, queue: usize, creates: bool, steps: usize) {
        let name = QUEUES[queue].0;
        self.send_define(queue, creates);
        for step in 0..steps {
            match step % 3 {
                0 => self.pair.one_turn(),
                1 => drop(self.pair.write()),
                _ => drop(self.pair.run_reads()),
            }
        }
        let was_answered = !self.pair.take(OPERATOR).is_empty();
        self.restart(false);
        let exists = self.pair.broker.queue_stats().contains_key(name);
        let before = self.queues.contains_key(name);
        assert!(exists == before || exists == creates);
        assert!(!was_answered || exists == creates);
        match exists {
            true => drop(self.queues.entry(name).or_default()),
            false => drop(self.queues.remove(name)),
        }
    }

    fn check(&mut self) {
        let figures = self.pair.broker.queue_stats();
        let names: Vec<&str> = figures.keys().map(String::as_str).collect();
        assert_eq!(names, self.queues.keys().copied().collect::<Vec<_>>());
        for (name, held) in &self.queues {
            let depth = self.pair.figure(name, "depth") + self.pair.figure(name, "inactive");
            assert_eq!(depth as usize, held.len(), "{name}");
        }
    }
}

#[test]
fn a_queue_that_was_dropped_and_created_again_takes_only_new_messages() {
    let mut checked = Checked::new();
    for step in [
        Step::Create { queue: 3 },
        Step::Publish { topic: 1, count: 3 },
        Step::Drop { queue: 3 },
        Step::Create { queue: 3 },
        Step::Restart { is_clean: true },
        Step::Publish { topic: 1, count: 2 },
        Step::Work { queue: 3, backlog: 8, one_in: 2 },
        Step::Restart { is_clean: false },
    ] {
        checked.step(&step);
    }
}

proptest! {
    #[test]
    fn queues_hold_what_was_published_while_they_existed(steps in steps()) {
        let mut checked = Checked::new();
        for step in &steps {
            checked.step(step);
        }
        checked.restart(false);
        checked.check();
    }
}
