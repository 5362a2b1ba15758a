//! Random interleavings of publishes, journal writes, reads, subscriptions, pauses, replaces, slow
//! connections and reconnects, against a simple model. Every bookmark subscription gets exactly the
//! messages of the log after its start that match, in order, once. An ordinary subscription gets
//! the messages that are published while it exists. Acknowledgements are true and never decrease.
//! With a rate, no message is too early. With an end, no message follows it. A conflated
//! subscription leaves out only messages that a newer message of the same key replaces.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;
use quire_command::*;
use quire_journal::PublisherId;

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
    Publish {
        publisher: usize,
        topic: usize,
        count: u8,
        numbered: bool,
    },
    Subscribe {
        number: u32,
        selector: usize,
        filter: usize,
        kind: Kind,
    },
    Unsubscribe {
        number: u32,
    },
    /// Of all with a number below it.
    Pause {
        below: u32,
    },
    Resume {
        below: u32,
    },
    Writable(bool),
    Pass {
        ms: u64,
    },
    WriteJournal,
    RunReads,
    Turn,
    Reconnect {
        publisher: usize,
    },
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Ordinary,
    Epoch,
    Now,
    Live,
    /// The limit, in messages per second.
    Paced(u64),
    /// By `/third`, with an interval in milliseconds.
    Conflated(u64),
    /// Up to this number of the first publisher, which may not be there yet; with it or without it.
    Until(u64, bool),
}

fn step() -> impl Strategy<Value = Step> {
    let kind = prop_oneof![
        2 => Just(Kind::Ordinary),
        4 => Just(Kind::Epoch),
        2 => Just(Kind::Now),
        3 => Just(Kind::Live),
        3 => (1..2000u64).prop_map(Kind::Paced),
        3 => (1..100u64).prop_map(Kind::Conflated),
        3 => (1..300u64, any::<bool>()).prop_map(|(number, included)| Kind::Until(number, included)),
    ];
    prop_oneof![
        20 => (0..2usize, 0..3usize, 1..40u8, any::<bool>())
            .prop_map(|(publisher, topic, count, numbered)| Step::Publish { publisher, topic, count, numbered }),
        8 => (1..6u32, 0..5usize, 0..3usize, kind)
            .prop_map(|(number, selector, filter, kind)| Step::Subscribe { number, selector, filter, kind }),
        2 => (1..6u32).prop_map(|number| Step::Unsubscribe { number }),
        3 => (2..7u32).prop_map(|below| Step::Pause { below }),
        4 => (2..7u32).prop_map(|below| Step::Resume { below }),
        6 => (0..300u64).prop_map(|ms| Step::Pass { ms }),
        4 => any::<bool>().prop_map(Step::Writable),
        12 => Just(Step::WriteJournal),
        12 => Just(Step::RunReads),
        25 => Just(Step::Turn),
        1 => (0..2usize).prop_map(|publisher| Step::Reconnect { publisher }),
    ]
}

/// A subscription of the model.
struct Expected {
    selector: &'static str,
    filter: usize,
    kind: Kind,
    /// Index into the model's log of the first message that it may get.
    from: usize,
    got: Vec<String>,
    /// When each of them came, in nanoseconds.
    at_ns: Vec<u64>,
    /// Of a conflated one, the index into the log for each bookmark.
    named: Vec<usize>,
}

struct Model {
    pair: Pair,
    /// Every message in the order in which it was published; all topics are recorded, so this is
    /// the log.
    log: Vec<(&'static str, String)>,
    /// The index into the log after each numbered message.
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
                let (range, rate);
                let subscribe = match kind {
                    Kind::Ordinary => subscribe(number, selector),
                    Kind::Now => replay(number, selector, "0|1|"),
                    Kind::Until(end, _) => {
                        let close = if matches!(kind, Kind::Until(_, true)) { ']' } else { ')' };
                        range = format!("[0:{}|{end}|{close}", PublisherId::of_client_name(PUBLISHERS[0]));
                        replay(number, selector, &range)
                    }
                    Kind::Paced(per_second) => {
                        rate = per_second.to_string();
                        Subscribe { rate: Some(&rate), ..replay(number, selector, "0") }
                    }
                    Kind::Conflated(ms) => Subscribe {
                        conflation_ns: Some(ms * 1_000_000),
                        conflation_key: Some("/third"),
                        ..replay(number, selector, "0")
                    },
                    Kind::Epoch | Kind::Live => replay(number, selector, "0"),
                };
                self.pair.subscribe(
                    READER,
                    &Subscribe { options, command, filter: FILTERS[filter].map(|f| f.0), ..subscribe },
                );
                if matches!(kind, Kind::Until(..)) {
                    // While its end is looked for, further commands wait: the model would not know
                    // when they come.
                    self.pair.one_turn();
                    self.pair.run_reads();
                    self.pair.one_turn();
                }
                let from = match kind {
                    Kind::Ordinary | Kind::Now => self.log.len(),
                    _ => 0,
                };
                let (got, at_ns, named) = Default::default();
                let expected = Expected { selector, filter, kind, from, got, at_ns, named };
                self.subscriptions.insert(number, expected);
            }
            Step::Unsubscribe { number } => {
                // The messages that wait to be sent belong to the subscription that has ended.
                if !self.pair.broker.stats().connections.iter().all(|c| c.writable) {
                    return;
                }
                self.pair.one_turn();
                self.hear();
                if let Some(expected) = self.subscriptions.remove(&number) {
                    self.ended.push(expected);
                    let acks = Acks::default();
                    self.pair.send(
                        READER,
                        &Command::Unsubscribe(Unsubscribe {
                            command,
                            acks,
                            subscription: number,
                            begun: None,
                        }),
                    );
                }
            }
            Step::Pause { below } | Step::Resume { below } => {
                let bytes: Vec<u8> = (1..below).flat_map(u32::to_le_bytes).collect();
                let subscriptions = SubscriptionNumbers::from_bytes(&bytes).unwrap();
                let acks = Acks::default();
                self.pair.send(
                    READER,
                    &match step {
                        Step::Pause { .. } => Command::Pause { command, acks, subscriptions },
                        _ => Command::Resume { command, acks, subscriptions },
                    },
                );
            }
            Step::Pass { ms } => self.pair.pass(Duration::from_millis(ms)),
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
                self.pair.send(publisher as u64, &Command::Logon(logon(PUBLISHERS[publisher])));
                let first = self.next[publisher].saturating_sub(5).max(1);
                for sequence in first..self.next[publisher] {
                    self.pair.publish(publisher as u64, sequence, TOPICS[0], "repeated");
                }
                // Nothing else is published before the session is let in: the model's log is in the
                // order of publishing.
                self.pair.one_turn();
                self.pair.write();
                self.pair.one_turn();
            }
        }
        self.hear();
    }

    /// Takes the frames of all clients, and makes the checks that are possible at once.
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
        for (at_ns, said) in self.pair.take_said(READER) {
            match said {
                Said::Message { subscription, data, bookmark, .. } => {
                    let expected = self.subscriptions.get_mut(&subscription).expect("it was ended");
                    let index = number_of(&data);
                    let (publisher, sequence) = bookmark.expect("everything is recorded");
                    if !matches!(expected.kind, Kind::Ordinary | Kind::Live) {
                        assert!(index < persisted, "delivered, not persisted");
                    }
                    let is_of = |name: &&str| PublisherId::of_client_name(name).get() == publisher;
                    // Without a number a message is named by its position.
                    let behind = match PUBLISHERS.iter().position(is_of) {
                        Some(publisher) => self.behind[&(publisher, sequence)],
                        None => sequence as usize,
                    };
                    expected.got.push(data);
                    expected.at_ns.push(at_ns);
                    expected.named.push(behind - 1);
                }
                Said::Ended { subscription, code: Code::Ok } => {
                    let expected = self.subscriptions.remove(&subscription).expect("it was ended");
                    let Kind::Until(end, _) = expected.kind else { panic!("it has no end") };
                    assert!(self.behind[&(0, end)] <= persisted, "ended before its end");
                    assert_eq!(expected.got, expected.wanted_of(&self.log, &self.behind));
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
        self.step(&Step::Resume { below: 7 });
        self.pair.writes_at_once = true;
        self.pair.reads_at_once = true;
        self.pair.turn();
        // One message per second is the slowest.
        self.pair.pass(Duration::from_secs(self.log.len() as u64 + 1));
        self.hear();
        assert_eq!(self.acked, self.next.map(|next| next - 1));
        for (expected, is_running) in
            self.ended.iter().map(|e| (e, false)).chain(self.subscriptions.values().map(|e| (e, true)))
        {
            let want = expected.wanted_of(&self.log, &self.behind);
            let got = &expected.got;
            match expected.kind {
                Kind::Conflated(_) => {
                    expected.check_conflated(&self.log, &want, is_running);
                    continue;
                }
                Kind::Paced(per_second) => expected.check_pace(per_second),
                _ => (),
            }
            assert!(want.starts_with(got), "{:?}: {got:?} instead of {want:?}", expected.kind);
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

    /// The messages that it gets by the end of the log.
    fn wanted_of(
        &self,
        log: &[(&'static str, String)],
        behind: &BTreeMap<(usize, u64), usize>,
    ) -> Vec<String> {
        let end = match self.kind {
            Kind::Until(end, included) => {
                behind.get(&(0, end)).map_or(log.len(), |behind| behind - usize::from(!included))
            }
            _ => log.len(),
        };
        let wanted = log[self.from..end].iter().filter(|(topic, data)| self.wants(topic, data));
        wanted.map(|(_, data)| data.clone()).collect()
    }

    /// No range of messages came faster than the rate, but for 200 ms that are made up for.
    fn check_pace(&self, per_second: u64) {
        for (first, start_ns) in self.at_ns.iter().enumerate() {
            for (last, end_ns) in self.at_ns.iter().enumerate().skip(first) {
                let allowed = (end_ns - start_ns + 200_000_000) as f64 * per_second as f64 / 1e9 + 1.0;
                let count = last - first;
                assert!(
                    count as f64 <= allowed + 0.01,
                    "{count} in {} ns at {per_second}/s",
                    end_ns - start_ns
                );
            }
        }
    }

    /// Bookmarks increase. Each message replaces those of its key from its bookmark on. Each
    /// message that matches is delivered or replaced.
    fn check_conflated(&self, log: &[(&'static str, String)], want: &[String], is_running: bool) {
        assert!(self.named.is_sorted_by(|a, b| a < b), "{:?}", self.named);
        let key = |index: usize| (log[index].0, index % 3);
        let got: Vec<usize> = self.got.iter().map(|data| number_of(data)).collect();
        for (index, named) in got.iter().zip(&self.named) {
            assert!(named <= index && key(*named) == key(*index), "{index} stands for {named}");
        }
        let last = self.named.last().map_or(0, |named| named + 1);
        for wanted in want.iter().map(|data| number_of(data)).filter(|wanted| is_running || *wanted < last) {
            let stands_for = |(index, named): (&usize, &usize)| {
                *named <= wanted && wanted <= *index && key(wanted) == key(*index)
            };
            assert!(got.iter().zip(&self.named).any(stands_for), "{wanted} is missing: {got:?}");
        }
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
