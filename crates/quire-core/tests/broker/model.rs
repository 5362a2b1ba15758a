//! Random interleavings of publishes, journal writes, reads, subscriptions, pauses, replaces, slow connections and reconnects,
//! against an obvious model: every bookmark subscription gets exactly the messages of the log behind its start that it asks for, in
//! order, once; an ordinary one gets those published while it was there; acknowledgements are true and never go back.

use std::collections::BTreeMap;

use proptest::prelude::*;
use quire_core::wire::*;

use super::pair::*;

const TOPICS: [&str; 3] = ["a", "b", "a.b"];
const SELECTORS: [&str; 5] = ["a", "b", "a.b", "^a", "b$"];
/// A filter, and what it means in the model.
type Filter = (&'static str, fn(usize) -> bool);
const FILTERS: [Option<Filter>; 3] =
    [None, Some(("/n >= 100", |n| n >= 100)), Some(("/third = 1", |n| n % 3 == 1))];
const PUBLISHERS: [&str; 2] = ["p", "q"];

#[derive(Clone, Debug)]
enum Step {
    Publish { publisher: usize, topic: usize, count: u8, numbered: bool },
    Subscribe { number: u32, selector: usize, filter: usize, kind: Kind },
    Unsubscribe { number: u32 },
    Pause { number: u32 },
    Resume { number: u32 },
    Writable(bool),
    WriteJournal,
    RunReads,
    Turn,
    Reconnect { publisher: usize },
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Ordinary,
    Epoch,
    Now,
    Live,
}

fn step() -> impl Strategy<Value = Step> {
    let kind = prop_oneof![
        2 => Just(Kind::Ordinary),
        4 => Just(Kind::Epoch),
        2 => Just(Kind::Now),
        3 => Just(Kind::Live),
    ];
    prop_oneof![
        20 => (0..2usize, 0..3usize, 1..40u8, any::<bool>())
            .prop_map(|(publisher, topic, count, numbered)| Step::Publish { publisher, topic, count, numbered }),
        8 => (1..6u32, 0..5usize, 0..3usize, kind)
            .prop_map(|(number, selector, filter, kind)| Step::Subscribe { number, selector, filter, kind }),
        2 => (1..6u32).prop_map(|number| Step::Unsubscribe { number }),
        3 => (1..6u32).prop_map(|number| Step::Pause { number }),
        4 => (1..6u32).prop_map(|number| Step::Resume { number }),
        4 => any::<bool>().prop_map(Step::Writable),
        12 => Just(Step::WriteJournal),
        12 => Just(Step::RunReads),
        25 => Just(Step::Turn),
        1 => (0..2usize).prop_map(|publisher| Step::Reconnect { publisher }),
    ]
}

/// What the model knows of a subscription.
struct Expected {
    selector: &'static str,
    filter: usize,
    kind: Kind,
    /// Index into the model's log of the first message that it may get.
    from: usize,
    got: Vec<String>,
}

struct Model {
    pair: Pair,
    /// Every message in the order in which it was published; all topics are recorded, so this is the log.
    log: Vec<(&'static str, String)>,
    /// Index into the log behind each numbered message.
    behind: BTreeMap<(usize, u64), usize>,
    next: [u64; 2],
    acked: [u64; 2],
    subscriptions: BTreeMap<u32, Expected>,
    ended: Vec<Expected>,
    command: u32,
}

const READER: u64 = 50;

impl Model {
    fn new() -> Self {
        let mut pair = Pair::new();
        pair.writes_at_once = false;
        pair.reads_at_once = false;
        for (client, name) in PUBLISHERS.iter().enumerate() {
            pair.client(client as u64, name);
        }
        pair.client(READER, "reader");
        Model {
            pair,
            log: Vec::new(),
            behind: BTreeMap::new(),
            next: [1; 2],
            acked: [0; 2],
            subscriptions: BTreeMap::new(),
            ended: Vec::new(),
            command: 0,
        }
    }

    fn step(&mut self, step: &Step) {
        self.command += 1;
        let command = self.command;
        match *step {
            Step::Publish { publisher, topic, count, numbered } => {
                for _ in 0..count {
                    let n = self.log.len();
                    let data = format!(r#"{{"n": {n}, "third": {}}}"#, n % 3);
                    let sequence = if numbered { self.next[publisher] } else { 0 };
                    self.pair.publish(publisher as u64, sequence, TOPICS[topic], &data);
                    self.log.push((TOPICS[topic], data));
                    if numbered {
                        self.behind.insert((publisher, sequence), self.log.len());
                        self.next[publisher] += 1;
                    }
                }
            }
            Step::Subscribe { number, selector, filter, kind } => {
                if self.subscriptions.contains_key(&number) {
                    return;
                }
                let selector = SELECTORS[selector];
                let options = if matches!(kind, Kind::Live) {
                    SubscribeOptions::LIVE
                } else {
                    SubscribeOptions::default()
                };
                let subscribe = match kind {
                    Kind::Ordinary => subscribe(number, selector),
                    Kind::Now => replay(number, selector, "0|1|"),
                    Kind::Epoch | Kind::Live => replay(number, selector, "0"),
                };
                self.pair.subscribe(
                    READER,
                    &Subscribe { options, command, filter: FILTERS[filter].map(|f| f.0), ..subscribe },
                );
                let from = match kind {
                    Kind::Ordinary | Kind::Now => self.log.len(),
                    Kind::Epoch | Kind::Live => 0,
                };
                self.subscriptions.insert(number, Expected { selector, filter, kind, from, got: Vec::new() });
            }
            Step::Unsubscribe { number } => {
                // What waits to be sent belongs to the subscription that is now ended.
                if !self.pair.broker.stats().connections.iter().all(|c| c.writable) {
                    return;
                }
                self.pair.one_turn();
                self.hear();
                if let Some(expected) = self.subscriptions.remove(&number) {
                    self.ended.push(expected);
                    let acks = Acks::default();
                    self.pair.send(READER, &ClientFrame::Unsubscribe { command, acks, subscription: number });
                }
            }
            Step::Pause { number } | Step::Resume { number } => {
                let bytes = number.to_le_bytes();
                let subscriptions = SubscriptionNumbers::from_bytes(&bytes).unwrap();
                let acks = Acks::default();
                self.pair.send(
                    READER,
                    &match step {
                        Step::Pause { .. } => ClientFrame::Pause { command, acks, subscriptions },
                        _ => ClientFrame::Resume { command, acks, subscriptions },
                    },
                );
            }
            Step::Writable(writable) => self.pair.set_writable(READER, writable),
            Step::WriteJournal => {
                self.pair.write();
            }
            Step::RunReads => {
                self.pair.run_reads();
            }
            Step::Turn => self.pair.one_turn(),
            Step::Reconnect { publisher } => {
                // The next connection repeats the last messages of the one before.
                self.pair.one_turn();
                self.hear();
                self.pair.disconnect(publisher as u64);
                self.pair.connect(publisher as u64);
                self.pair.send(publisher as u64, &ClientFrame::Logon(logon(PUBLISHERS[publisher])));
                let first = self.next[publisher].saturating_sub(5).max(1);
                for sequence in first..self.next[publisher] {
                    self.pair.publish(publisher as u64, sequence, TOPICS[0], "repeated");
                }
                // Nothing else is published before the session is let in: the model's log is in the order of publishing.
                self.pair.one_turn();
                self.pair.write();
                self.pair.one_turn();
            }
        }
        self.hear();
    }

    /// Takes what everybody was told and checks what can be checked at once.
    fn hear(&mut self) {
        let persisted = self.pair.broker.stats().persisted as usize;
        for publisher in 0..2 {
            for said in self.pair.take(publisher as u64) {
                let sequence = match said {
                    Said::Persisted(sequence) => sequence,
                    Said::LoggedOn { last_sequence } => {
                        assert!(last_sequence >= self.acked[publisher]);
                        assert_eq!(last_sequence, self.next[publisher] - 1);
                        self.acked[publisher] = last_sequence;
                        continue;
                    }
                    other => panic!("{other:?}"),
                };
                assert!(sequence > self.acked[publisher], "acknowledgements go forward");
                self.acked[publisher] = sequence;
                assert!(self.behind[&(publisher, sequence)] <= persisted, "acknowledged, not persisted");
            }
        }
        for said in self.pair.take(READER) {
            match said {
                Said::Message { subscription, data, bookmark, .. } => {
                    let expected = self.subscriptions.get_mut(&subscription).expect("it was ended");
                    let index = number_of(&data);
                    assert!(bookmark.is_some());
                    if matches!(expected.kind, Kind::Epoch | Kind::Now) {
                        assert!(index < persisted, "delivered, not persisted");
                    }
                    expected.got.push(data);
                }
                Said::Ack { code, kind: AckKind::Processed, .. } => {
                    let refusals = [Code::Ok, Code::UnknownSubscription, Code::BadOption];
                    assert!(refusals.contains(&code), "{code:?}");
                }
                Said::Ack { kind: AckKind::Completed, code: Code::Ok, .. } => (),
                other => panic!("{other:?}"),
            }
        }
    }

    fn finish(mut self) {
        self.pair.set_writable(READER, true);
        let numbers: Vec<u32> = self.subscriptions.keys().copied().collect();
        for number in numbers {
            self.step(&Step::Resume { number });
        }
        self.pair.writes_at_once = true;
        self.pair.reads_at_once = true;
        self.pair.turn();
        self.hear();
        assert_eq!(self.acked, self.next.map(|next| next - 1));
        for (expected, is_running) in
            self.ended.iter().map(|e| (e, false)).chain(self.subscriptions.values().map(|e| (e, true)))
        {
            let want: Vec<&String> = self.log[expected.from..]
                .iter()
                .filter(|(topic, data)| expected.wants(topic, data))
                .map(|(_, data)| data)
                .collect();
            let got: Vec<&String> = expected.got.iter().collect();
            assert!(want.starts_with(&got), "{:?}: {got:?} instead of {want:?}", expected.kind);
            assert!(
                !is_running || got.len() == want.len(),
                "{:?}: {got:?} and no more of {want:?}",
                expected.kind
            );
        }
    }
}

impl Expected {
    fn wants(&self, topic: &str, data: &str) -> bool {
        let topic_matches = match self.selector {
            "^a" => topic.starts_with('a'),
            "b$" => topic.ends_with('b'),
            name => topic == name,
        };
        topic_matches && FILTERS[self.filter].is_none_or(|(_, matches)| matches(number_of(data)))
    }
}

/// The number in a message of the model.
fn number_of(data: &str) -> usize {
    data[6..].split(',').next().unwrap().parse().unwrap()
}

proptest! {
    #[test]
    fn nothing_is_missing_nothing_comes_twice_and_acknowledgements_are_true(
        steps in proptest::collection::vec(step(), 1..150),
    ) {
        let mut model = Model::new();
        for step in &steps {
            model.step(step);
        }
        model.finish();
    }
}
