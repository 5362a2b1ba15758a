//! Subscriptions that were resumed together share a replay: its order, its rate, and no gap or
//! duplicate for any of them. A lost connection, a server that restarts, a hold and a fail-over do
//! not separate them (docs/replay.md, "Pause and resume").

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;
use quire_client::SubscriptionSpec;
use quire_command::SubscribeOptions;

use crate::link::{Link, config};

const LONG: Duration = Duration::from_secs(60);

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Paused at the beginning of the log.
fn paused(topic: &str, rate: Option<&str>) -> SubscriptionSpec {
    SubscriptionSpec {
        bookmark: Some("0".into()),
        rate: rate.map(str::to_owned),
        options: SubscribeOptions::PAUSED,
        ..SubscriptionSpec::new(topic)
    }
}

fn set_paused(link: &mut Link, client: usize, numbers: &[u32], paused: bool) {
    link.clients[client].core.set_paused(numbers, paused).unwrap();
    link.run();
}

/// A publisher that has published `count` numbers to `topics` in turn, and a reader.
fn link_with(count: u64, topics: &[&str]) -> (Link, usize, usize) {
    let mut link = Link::new(&["one"]);
    let (publisher, reader) = (link.client(config("publisher")), link.client(config("reader")));
    for number in 1..=count {
        link.publish(publisher, topics[number as usize % topics.len()], &number.to_string());
    }
    link.run();
    (link, publisher, reader)
}

fn numbers_of(data: &[String]) -> Vec<u64> {
    data.iter().map(|text| text.parse().unwrap()).collect()
}

fn restart(link: &mut Link) {
    link.kill(0);
    link.start(0);
}

#[test]
fn subscriptions_stay_in_the_order_of_the_log_over_lost_connections() {
    // `y` has a message less often than `x`, so that the last messages of the two are far apart.
    let (mut link, _, reader) = link_with(400, &["x", "x", "x", "x", "x", "x", "y"]);
    let x = link.subscribe(reader, paused("x", Some("100")));
    let y = link.subscribe(reader, paused("y", Some("100")));
    set_paused(&mut link, reader, &[x, y], false);
    let mut got = Vec::new();
    for _ in 0..6 {
        link.pass(ms(333));
        got.extend(numbers_of(&link.take(reader)));
        restart(&mut link);
    }
    link.pass(LONG);
    got.extend(numbers_of(&link.take(reader)));
    assert_eq!(got, (1..=400).collect::<Vec<_>>());
}

#[test]
fn subscriptions_share_one_rate_after_a_lost_connection() {
    let (mut link, _, reader) = link_with(400, &["x", "y"]);
    let x = link.subscribe(reader, paused("x", Some("100")));
    let y = link.subscribe(reader, paused("y", Some("100")));
    set_paused(&mut link, reader, &[x, y], false);
    link.pass(ms(500));
    link.take(reader);
    link.cut(reader);
    let count = (0..100).map(|_| {
        link.pass(ms(10));
        link.take(reader).len()
    });
    let counts: Vec<usize> = count.collect();
    // The first message comes at once.
    assert!(counts[0] == 2 && counts[1..].iter().all(|count| *count == 1), "{counts:?}");
}

#[test]
fn a_group_that_is_paused_between_the_messages_of_one_record_is_resumed_as_one_replay() {
    // Both subscriptions get every message. After an odd number of messages, one has a message more
    // than the other.
    for before in 1..6 {
        let (mut link, _, reader) = link_with(50, &["x"]);
        let one = link.subscribe(reader, paused("x", Some("10")));
        let two = link.subscribe(reader, paused("x", Some("10")));
        set_paused(&mut link, reader, &[one, two], false);
        link.pass(ms(100 * before));
        let mut got = numbers_of(&link.take(reader));
        set_paused(&mut link, reader, &[one, two], true);
        set_paused(&mut link, reader, &[one, two], false);
        link.pass(ms(10));
        let at_once = numbers_of(&link.take(reader));
        assert!(at_once.len() <= 1, "after {before}: {at_once:?}");
        got.extend(at_once);
        link.pass(LONG);
        got.extend(numbers_of(&link.take(reader)));
        assert_eq!(got, (1..=50).flat_map(|number| [number, number]).collect::<Vec<_>>());
    }
}

#[test]
fn places_of_a_store_that_differ_are_continued_by_one_replay() {
    let (mut link, _, reader) = link_with(60, &["x", "y", "z"]);
    let numbers = ["x", "y", "z"].map(|topic| link.subscribe(reader, paused(topic, None)));
    // One was processed further than the others, and one not at all.
    set_paused(&mut link, reader, &numbers[..1], false);
    link.run();
    link.cut(reader);
    let kept = link.clients[reader].core.resume_position(numbers[0]).cloned();
    link.publish(0, "x", "61");
    link.publish(0, "y", "62");
    let next = link.client(config("next"));
    let x = link.subscribe(next, SubscriptionSpec { resume_position: kept, ..paused("x", None) });
    let others = ["y", "z"].map(|topic| link.subscribe(next, paused(topic, None)));
    set_paused(&mut link, next, &[x, others[0], others[1]], false);
    link.run();
    let all = (1..=62).filter(|number| number % 3 != 0 || *number > 60);
    assert_eq!(numbers_of(&link.take(next)), all.collect::<Vec<_>>());
}

#[test]
fn a_replaced_subscription_stays_in_its_group() {
    let (mut link, _, reader) = link_with(100, &["x", "y"]);
    let x = link.subscribe(reader, paused("x", Some("10")));
    let y = link.subscribe(reader, paused("y", Some("10")));
    set_paused(&mut link, reader, &[x, y], false);
    link.pass(ms(1000));
    let mut got = numbers_of(&link.take(reader));
    let spec = link.clients[reader].core.subscription(x).unwrap().clone();
    let spec = SubscriptionSpec { bookmark: None, filter: Some("1 = 1".into()), ..spec };
    link.clients[reader].core.replace(x, spec).unwrap();
    link.pass(ms(1000));
    got.extend(numbers_of(&link.take(reader)));
    assert!(got.len() <= 22, "{}", got.len());
    link.cut(reader);
    link.pass(LONG);
    got.extend(numbers_of(&link.take(reader)));
    assert_eq!(got, (1..=100).collect::<Vec<_>>());
}

#[test]
fn a_resume_that_waits_for_a_connection_makes_one_replay() {
    let (mut link, _, reader) = link_with(40, &["x", "y"]);
    let x = link.subscribe(reader, paused("x", Some("10")));
    let y = link.subscribe(reader, paused("y", Some("10")));
    link.kill(0);
    let command = link.clients[reader].core.set_paused(&[x, y], false).unwrap();
    link.start(0);
    link.pass(LONG);
    assert_eq!(link.clients[reader].answers.remove(&command.0), Some(Ok(())));
    assert_eq!(numbers_of(&link.take(reader)), (1..=40).collect::<Vec<_>>());
    assert!(link.clients[reader].answers.is_empty(), "commands of the client itself are not reported");
}

#[test]
fn a_group_that_goes_over_to_another_instance_misses_and_repeats_nothing() {
    for cut_after in 0..12 {
        let mut link = Link::new(&["one", "two"]);
        let publishers = [0, 1].map(|server| ["a", "b"].map(|name| link.client_of(&[server], config(name))));
        let reader = link.client(config("reader"));
        let publish = |link: &mut Link, server: usize, order: &str| {
            for letter in order.chars() {
                let publisher = publishers[server][usize::from(letter == 'b')];
                let number = link.clients[publisher].core.last_sequence() + 1;
                link.publish(publisher, &letter.to_string(), &format!("{letter}{number}"));
                link.run();
            }
        };
        publish(&mut link, 0, "aabab");
        // On the second server b is ahead of where it is on the first.
        publish(&mut link, 1, "bbbaaaab");
        let a = link.subscribe(reader, paused("a", None));
        let b = link.subscribe(reader, paused("b", None));
        set_paused(&mut link, reader, &[a, b], false);
        assert_eq!(link.take(reader), ["a1", "a2", "b1", "a3", "b2"]);
        link.kill(0);
        for _ in 0..cut_after {
            link.step();
        }
        link.cut(reader);
        link.pass(LONG);
        publish(&mut link, 1, "ab");
        link.pass(LONG);
        assert_eq!(link.take(reader), ["b3", "a4", "b4", "a5", "b5"], "cut after {cut_after}");
    }
}

#[test]
fn a_group_at_the_tail_that_matches_nothing_continues_where_the_log_was_looked_at() {
    let (mut link, publisher, reader) = link_with(0, &["x"]);
    let one = link.subscribe(reader, paused("rare", None));
    let two = link.subscribe(reader, paused("seldom", None));
    set_paused(&mut link, reader, &[one, two], false);
    for number in 0..10 {
        link.publish(publisher, "common", &number.to_string());
    }
    link.pass(Duration::from_secs(3));
    for number in [one, two] {
        let last = link.clients[reader].core.last_received(number).unwrap();
        assert_eq!(last.sequence, 10);
    }
}

#[derive(Clone, Debug)]
enum Step {
    Publish(Vec<u8>),
    Pass(u64),
    Cut,
    Restart,
    Pause(u8),
    Resume(u8),
    /// With the second: all that share its replay.
    Hold(u8, bool),
    /// Everything that is held.
    LetGo,
    Replace(u8),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => proptest::collection::vec(0u8..4, 1..12).prop_map(Step::Publish),
        4 => (1u64..700).prop_map(Step::Pass),
        2 => Just(Step::Cut),
        2 => Just(Step::Restart),
        1 => (1u8..16).prop_map(Step::Pause),
        2 => (1u8..16).prop_map(Step::Resume),
        1 => (0u8..4, any::<bool>()).prop_map(|(which, all)| Step::Hold(which, all)),
        1 => Just(Step::LetGo),
        1 => (0u8..4).prop_map(Step::Replace),
    ]
}

/// The messages that a subscription must get: it matches every topic of its pattern.
const PATTERNS: [&str; 4] = ["^[ab]$", "b", "c", "^[a-d]$"];
const TOPICS: [&str; 4] = ["a", "b", "c", "d"];

fn matches(pattern: usize, topic: usize) -> bool {
    match pattern {
        0 => topic <= 1,
        1 => topic == 1,
        2 => topic == 2,
        _ => true,
    }
}

struct Model {
    link: Link,
    publisher: usize,
    reader: usize,
    numbers: Vec<u32>,
    published: Vec<usize>,
    is_paused: [bool; 4],
    is_held: [bool; 4],
    /// The group in which the order of the log is promised, and the last message of each group.
    group: [Option<usize>; 4],
    last: BTreeMap<usize, u64>,
    group_count: usize,
    got: [Vec<u64>; 4],
}

impl Model {
    fn new(rate: Option<&str>) -> Self {
        let (mut link, publisher, reader) = link_with(0, &["a"]);
        let numbers = PATTERNS.iter().map(|pattern| link.subscribe(reader, paused(pattern, rate)));
        let numbers = numbers.collect();
        Model {
            link,
            publisher,
            reader,
            numbers,
            published: Vec::new(),
            is_paused: [true; 4],
            is_held: [false; 4],
            group: [None; 4],
            last: BTreeMap::new(),
            group_count: 0,
            got: Default::default(),
        }
    }

    fn chosen(&self, mask: u8) -> Vec<usize> {
        (0..4).filter(|index| mask & (1 << index) != 0).collect()
    }

    fn apply(&mut self, step: &Step) -> Result<(), TestCaseError> {
        match step {
            Step::Publish(topics) => {
                for topic in topics {
                    self.published.push(usize::from(*topic));
                    let data = self.published.len().to_string();
                    self.link.publish(self.publisher, TOPICS[usize::from(*topic)], &data);
                }
            }
            Step::Pass(time) => self.link.pass(ms(*time)),
            Step::Cut => self.link.cut(self.reader),
            Step::Restart => restart(&mut self.link),
            Step::Pause(mask) => {
                let chosen = self.chosen(*mask);
                for index in &chosen {
                    (self.is_paused[*index], self.group[*index]) = (true, None);
                }
                self.set_paused(&chosen, true);
            }
            Step::Resume(mask) => {
                let chosen = self.chosen(*mask);
                self.group_count += 1;
                for index in &chosen {
                    // One that is held alone follows when it is let go.
                    if std::mem::take(&mut self.is_paused[*index]) && !self.is_held[*index] {
                        self.group[*index] = Some(self.group_count);
                    }
                }
                self.set_paused(&chosen, false);
            }
            Step::Hold(which, all) => {
                let number = self.numbers[usize::from(*which)];
                let core = &mut self.link.clients[self.reader].core;
                let numbers = if *all { core.companions(number) } else { vec![number] };
                if numbers.len() == 1 {
                    self.group[usize::from(*which)] = None;
                }
                core.set_held(&numbers, true);
                for (index, number) in self.numbers.iter().enumerate() {
                    self.is_held[index] |= numbers.contains(number);
                }
            }
            Step::LetGo => {
                self.is_held = [false; 4];
                self.link.clients[self.reader].core.set_held(&self.numbers, false);
            }
            Step::Replace(which) => {
                let number = self.numbers[usize::from(*which)];
                let core = &mut self.link.clients[self.reader].core;
                let spec = core.subscription(number).unwrap().clone();
                let options = SubscribeOptions::default();
                let spec = SubscriptionSpec { bookmark: None, filter: Some("1 = 1".into()), options, ..spec };
                core.replace(number, spec).unwrap();
            }
        }
        self.link.run();
        self.look()
    }

    fn set_paused(&mut self, chosen: &[usize], paused: bool) {
        let numbers: Vec<u32> = chosen.iter().map(|index| self.numbers[*index]).collect();
        self.link.clients[self.reader].core.set_paused(&numbers, paused).unwrap();
    }

    /// Takes what has come, and checks the order in each group.
    fn look(&mut self) -> Result<(), TestCaseError> {
        for (number, text) in std::mem::take(&mut self.link.clients[self.reader].messages) {
            let index = self.numbers.iter().position(|other| *other == number).unwrap();
            let message: u64 = text.parse().unwrap();
            self.got[index].push(message);
            if let Some(group) = self.group[index] {
                let last = self.last.entry(group).or_default();
                prop_assert!(message >= *last, "{} got {} after {}", PATTERNS[index], message, last);
                *last = message;
            }
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<(), TestCaseError> {
        self.apply(&Step::LetGo)?;
        self.apply(&Step::Resume(15))?;
        self.apply(&Step::Pass(600_000))?;
        for (index, got) in self.got.iter().enumerate() {
            let all = (1..).zip(&self.published).filter(|(_, topic)| matches(index, **topic));
            let all: Vec<u64> = all.map(|(number, _)| number).collect();
            prop_assert_eq!(got, &all, "{}", PATTERNS[index]);
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_steps_keep_the_order_of_each_group_and_lose_and_repeat_nothing(
        has_rate: bool, steps in proptest::collection::vec(step(), 1..60),
    ) {
        let mut model = Model::new(has_rate.then_some("100"));
        model.apply(&Step::Resume(15))?;
        for step in &steps {
            model.apply(step)?;
        }
        model.finish()?;
    }
}
