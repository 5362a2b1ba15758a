//! Random creations, changes, drops, publishes, settlements and restarts, against a slow and simple
//! model: a queue is the set of its messages, and its limit of outstanding messages. After a crash
//! in the middle of a command, the queue is as before or as after the command. The model takes over
//! which.

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
    Alter {
        queue: usize,
        max_backlog: u32,
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
        action: Action,
        steps: usize,
    },
}

/// The effect of a command on a queue.
#[derive(Clone, Copy, Debug)]
enum Action {
    Create,
    /// The limit of outstanding messages.
    Alter(u32),
    Drop,
}

/// A queue that exists.
#[derive(Clone, Debug)]
struct Known {
    held: BTreeSet<u64>,
    max_backlog: u32,
}

/// The limit of a queue that was not altered.
const MAX_BACKLOG: u32 = 6;

impl Default for Known {
    fn default() -> Self {
        Known { held: BTreeSet::new(), max_backlog: MAX_BACKLOG }
    }
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let queue = || 0..QUEUES.len();
    let action = prop_oneof![Just(Action::Create), (1u32..9).prop_map(Action::Alter), Just(Action::Drop)];
    let step = prop_oneof![
        4 => (0..TOPICS.len(), 1u64..8).prop_map(|(topic, count)| Step::Publish { topic, count }),
        3 => queue().prop_map(|queue| Step::Create { queue }),
        2 => queue().prop_map(|queue| Step::Drop { queue }),
        2 => (queue(), 1u32..9).prop_map(|(queue, max_backlog)| Step::Alter { queue, max_backlog }),
        4 => (queue(), 1u32..9, 1usize..4)
            .prop_map(|(queue, backlog, one_in)| Step::Work { queue, backlog, one_in }),
        1 => any::<bool>().prop_map(|is_clean| Step::Restart { is_clean }),
        3 => (queue(), action, 0usize..10)
            .prop_map(|(queue, action, steps)| Step::CrashIn { queue, action, steps }),
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
        max_backlog: Some(MAX_BACKLOG),
        recovery_point: is_from_epoch(name).then(|| "epoch".into()),
        ..QueueSettings::default()
    }
}

/// Whether the queue begins with the first message of the log.
fn is_from_epoch(name: &str) -> bool {
    matches!(name, "all" | "risk")
}

/// Whether the messages of the topic enter the queue.
fn takes(queue: usize, topic: usize) -> bool {
    QUEUES[queue].1.contains(TOPICS[topic])
}

struct Checked {
    pair: Pair,
    /// The topics of the messages that were published.
    published: Vec<usize>,
    queues: BTreeMap<&'static str, Known>,
}

impl Checked {
    fn new() -> Self {
        let mut checked = Checked { pair: Pair::new(), published: Vec::new(), queues: BTreeMap::new() };
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
                    self.published.push(topic);
                    let sequence = self.published.len() as u64;
                    self.pair.publish(PUBLISHER, sequence, TOPICS[topic], &sequence.to_string());
                    for (queue, (name, _)) in QUEUES.into_iter().enumerate() {
                        if takes(queue, topic) {
                            self.queues.get_mut(name).map(|known| known.held.insert(sequence));
                        }
                    }
                }
                self.pair.turn();
            }
            Step::Create { queue } => {
                let name = QUEUES[queue].0;
                let answer = self.define(queue, Action::Create);
                match self.queues.get(name) {
                    Some(known) if known.max_backlog != MAX_BACKLOG => assert_eq!(answer, "queue_exists"),
                    known => assert_eq!(answer["existed"], known.is_some(), "{answer}"),
                }
                self.create(queue);
            }
            Step::Alter { queue, max_backlog } => {
                let answer = self.define(queue, Action::Alter(max_backlog));
                let Some(known) = self.queues.get_mut(QUEUES[queue].0) else {
                    return assert_eq!(answer, "unknown_queue");
                };
                let is_changed = std::mem::replace(&mut known.max_backlog, max_backlog) != max_backlog;
                assert_eq!(answer["altered"].as_array().unwrap().len(), usize::from(is_changed), "{answer}");
            }
            Step::Drop { queue } => {
                let answer = self.define(queue, Action::Drop);
                let expected = self.queues.remove(QUEUES[queue].0).map(|known| known.held.len());
                assert_eq!(answer["dropped"].as_u64().map(|count| count as usize), expected, "{answer}");
            }
            Step::Work { queue, backlog, one_in } => self.work(queue, backlog, one_in),
            Step::Restart { is_clean } => self.restart(is_clean),
            Step::CrashIn { queue, action, steps } => self.crash_in(queue, action, steps),
        }
        self.check();
    }

    /// The queue exists from here on, if it did not before.
    fn create(&mut self, queue: usize) -> &mut Known {
        let topics = self.published.iter().filter(|_| is_from_epoch(QUEUES[queue].0));
        let held = (1..).zip(topics).filter(|(_, topic)| takes(queue, **topic)).map(|(sequence, _)| sequence);
        self.queues
            .entry(QUEUES[queue].0)
            .or_insert_with(|| Known { held: held.collect(), ..Known::default() })
    }

    /// Sends a command about a queue, and gives what was answered: an object, or the name of the
    /// code.
    fn define(&mut self, queue: usize, action: Action) -> serde_json::Value {
        self.send_define(queue, action);
        self.pair.turn();
        match &self.pair.take(OPERATOR)[..] {
            [Said::Stats { json, .. }] => {
                serde_json::from_str::<serde_json::Value>(json).unwrap()["queue"].take()
            }
            [Said::Ack { code, .. }] => code.name().into(),
            said => panic!("{said:?}"),
        }
    }

    fn send_define(&mut self, queue: usize, action: Action) {
        let (name, settings) = (QUEUES[queue].0, settings(queue).to_json());
        let changes = match action {
            Action::Alter(max_backlog) => format!("{{\"max_backlog\":{max_backlog}}}"),
            Action::Create | Action::Drop => String::new(),
        };
        let action = match action {
            Action::Create => DefineQueue::Create { settings: &settings },
            Action::Alter(_) => DefineQueue::Alter { queue: name, changes: &changes },
            Action::Drop => DefineQueue::Drop { queue: name },
        };
        self.pair.send(OPERATOR, &Command::DefineQueue { command: 5, action });
    }

    fn work(&mut self, queue: usize, backlog: u32, one_in: usize) {
        let name = QUEUES[queue].0;
        let Some(Known { held, max_backlog }) = self.queues.get_mut(name) else { return };
        self.pair.subscribe(WORKER, &consume(1, name, backlog));
        self.pair.turn();
        let messages = self.pair.take_queued(WORKER);
        let count = backlog.min(*max_backlog);
        let expected: Vec<String> = held.iter().take(count as usize).map(u64::to_string).collect();
        let is_shallow = settings(queue).target_queue_depth.is_some_and(|depth| depth < count.into());
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

    fn crash_in(&mut self, queue: usize, action: Action, steps: usize) {
        let name = QUEUES[queue].0;
        self.send_define(queue, action);
        for step in 0..steps {
            match step % 3 {
                0 => self.pair.one_turn(),
                1 => drop(self.pair.write()),
                _ => drop(self.pair.run_reads()),
            }
        }
        let was_answered = !self.pair.take(OPERATOR).is_empty();
        self.restart(false);
        let found = self.pair.broker.queue_stats().contains_key(name);
        let found = found.then(|| self.pair.figure(name, "max_backlog") as u32);
        let before = self.queues.get(name).map(|known| known.max_backlog);
        let after = match action {
            Action::Create => Some(before.unwrap_or(MAX_BACKLOG)),
            Action::Alter(max_backlog) => before.map(|_| max_backlog),
            Action::Drop => None,
        };
        assert!(found == before || found == after, "{found:?}: {before:?} or {after:?}");
        assert!(!was_answered || found == after, "{found:?}: {after:?} was answered");
        match found {
            Some(max_backlog) => self.create(queue).max_backlog = max_backlog,
            None => drop(self.queues.remove(name)),
        }
    }

    fn check(&mut self) {
        let figures = self.pair.broker.queue_stats();
        let names: Vec<&str> = figures.keys().map(String::as_str).collect();
        assert_eq!(names, self.queues.keys().copied().collect::<Vec<_>>());
        for (name, Known { held, max_backlog }) in &self.queues {
            assert_eq!(self.pair.figure(name, "max_backlog"), u64::from(*max_backlog), "{name}");
            let depth = self.pair.figure(name, "depth") + self.pair.figure(name, "inactive");
            assert_eq!(depth as usize, held.len(), "{name}");
        }
    }
}

#[test]
fn a_queue_that_is_created_again_from_the_epoch_has_every_message_again() {
    let mut checked = Checked::new();
    for step in [
        Step::Publish { topic: 1, count: 5 },
        Step::Create { queue: 2 },
        Step::Work { queue: 2, backlog: 3, one_in: 1 },
        Step::Drop { queue: 2 },
        Step::Create { queue: 2 },
        Step::Work { queue: 2, backlog: 2, one_in: 1 },
        Step::Restart { is_clean: false },
        Step::Publish { topic: 1, count: 1 },
        Step::Restart { is_clean: true },
        Step::Work { queue: 2, backlog: 6, one_in: 2 },
    ] {
        checked.step(&step);
    }
}

#[test]
fn a_queue_that_was_dropped_and_created_again_takes_only_new_messages() {
    let mut checked = Checked::new();
    for step in [
        Step::Create { queue: 3 },
        Step::Publish { topic: 1, count: 3 },
        Step::Alter { queue: 3, max_backlog: 2 },
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
