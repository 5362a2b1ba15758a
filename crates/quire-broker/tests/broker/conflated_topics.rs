//! Conflated topics over a virtual clock (docs/conflated-topics.md): what is copied when, portions,
//! restarts, and a comparison with a model.
//!
//! `tests/test_conflated_topics.py` has the behavior for clients.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;
use quire_broker::{BrokerConfig, ConflatedTopicSettings, TableExpiration, ViewSettings};
use quire_command::*;
use quire_wire::Encode;

use crate::last_value_pair::*;
use crate::pair::*;
use crate::slices::with_stopwatch;

const INTERVAL_NS: u64 = 1_000_000_000;

fn conflated(name: &str, source: &str) -> ConflatedTopicSettings {
    ConflatedTopicSettings {
        name: name.into(),
        message_type: "json".into(),
        underlying_topic: source.into(),
        interval_ns: INTERVAL_NS,
        ..ConflatedTopicSettings::default()
    }
}

fn filtered(name: &str, source: &str) -> ConflatedTopicSettings {
    ConflatedTopicSettings { filter: Some("/v > 2".into()), ..conflated(name, source) }
}

fn conflated_config(topics: Vec<ConflatedTopicSettings>) -> BrokerConfig {
    let mut orders = sow_topic("orders");
    orders.expiration = TableExpiration::Enabled;
    BrokerConfig { conflated_topics: topics, ..sow_config([orders]) }
}

fn pair_with(topics: Vec<ConflatedTopicSettings>) -> Pair {
    with_clients(Pair::with(conflated_config(topics)))
}

fn with_clients(mut pair: Pair) -> Pair {
    pair.client(1, "publisher");
    pair.client(2, "reader");
    pair
}

fn put(pair: &mut Pair, sequence: u64, id: u64, v: u64) {
    pair.publish(1, sequence, "orders", &format!(r#"{{"id":{id},"v":{v}}}"#));
    pair.turn();
}

fn follow(pair: &mut Pair, topic: &str) {
    pair.subscribe(2, &sow(7, topic));
    pair.turn();
    pair.take(2);
}

fn pass_ms(pair: &mut Pair, duration: u64) -> Vec<String> {
    pair.pass(Duration::from_millis(duration));
    pair.take_rows(2)
}

const NOTHING: [&str; 0] = [];

#[test]
fn each_interval_copies_the_newest_records() {
    let mut pair = pair_with(vec![conflated("copy", "orders")]);
    follow(&mut pair, "copy");
    put(&mut pair, 1, 1, 1);
    assert_eq!(pass_ms(&mut pair, 400), NOTHING);
    for (sequence, id, v) in [(2, 2, 2), (3, 1, 3), (4, 1, 4)] {
        put(&mut pair, sequence, id, v);
    }
    assert_eq!(pass_ms(&mut pair, 590), NOTHING);
    assert_eq!(pass_ms(&mut pair, 20), [r#"+{"id":1,"v":4}"#, r#"+{"id":2,"v":2}"#]);
    // Nothing has changed.
    assert_eq!(pass_ms(&mut pair, 5000), NOTHING);
    put(&mut pair, 5, 2, 2);
    assert_eq!(pass_ms(&mut pair, 990), NOTHING);
    assert_eq!(pass_ms(&mut pair, 20), [r#"+{"id":2,"v":2}"#]);
    assert_eq!(pair.records(2, query(9, "copy")), [r#"{"id":1,"v":4}"#, r#"{"id":2,"v":2}"#]);
}

#[test]
fn records_that_are_deleted_or_expire_or_do_not_match_leave_at_the_end_of_the_interval() {
    let mut pair = pair_with(vec![filtered("copy", "orders")]);
    follow(&mut pair, "copy");
    for id in 1..=4 {
        put(&mut pair, id, id, 5);
    }
    assert_eq!(pass_ms(&mut pair, 1010).len(), 4);
    put(&mut pair, 5, 1, 1);
    assert_eq!(pair.delete(1, SowDelete { filter: Some("/id = 2"), ..delete(9, 6, "orders") }), 1);
    let short_lived = publish(7, "orders", r#"{"id":3,"v":9}"#);
    pair.send(1, &Command::Publish(Publish { expiration_s: Some(2), ..short_lived }));
    pair.turn();
    // It is deleted, and made again.
    assert_eq!(pair.delete(1, SowDelete { filter: Some("/id = 4"), ..delete(9, 8, "orders") }), 1);
    put(&mut pair, 9, 4, 6);
    // It was never copied.
    put(&mut pair, 10, 5, 7);
    assert_eq!(pair.delete(1, SowDelete { filter: Some("/id = 5"), ..delete(9, 11, "orders") }), 1);
    assert_eq!(
        pass_ms(&mut pair, 1001),
        [
            r#"-Deleted {"id":1,"v":5}"#,
            r#"-Deleted {"id":2,"v":5}"#,
            r#"+{"id":3,"v":9}"#,
            r#"+{"id":4,"v":6}"#,
        ]
    );
    assert_eq!(pass_ms(&mut pair, 3000), [r#"-Expired {"id":3,"v":9}"#]);
    assert_eq!(pair.records(2, query(9, "copy")), [r#"{"id":4,"v":6}"#]);
}

#[test]
fn a_pass_of_many_records_takes_several_turns_and_the_next_one_follows_an_interval_later() {
    // Each reading of the clock takes a tenth of a portion.
    let mut pair = with_clients(with_stopwatch(conflated_config(vec![conflated("copy", "orders")])));
    pair.subscribe(2, &subscribe(7, "copy"));
    pair.turn();
    pair.take(2);
    let put_all = |pair: &mut Pair, first: u64| {
        let mut frames = Vec::new();
        for number in 0..1_000 {
            let data = format!(r#"{{"id":{number},"v":{first}}}"#);
            Command::Publish(publish(first + number, "orders", &data)).encode(&mut frames);
        }
        pair.send_bytes(1, &frames);
        pair.one_turn();
    };
    put_all(&mut pair, 1);
    pair.turn();
    pair.now_ns += INTERVAL_NS;
    let (mut counts, mut copied_at) = (Vec::new(), Vec::new());
    while copied_at.len() < 1_000 && counts.len() < 100 {
        pair.one_turn();
        let count = pair.take_rows(2).len();
        counts.push(count);
        copied_at.extend(std::iter::repeat_n(pair.now_ns, count));
        pair.now_ns += 1_000_000;
        if counts.len() == 1 {
            // The first records change again while the last ones are not copied yet.
            put_all(&mut pair, 1_001);
        }
    }
    assert!(counts.iter().all(|count| *count <= 400), "{counts:?}");
    assert_eq!(copied_at.len(), 1_000);
    let done = *copied_at.last().unwrap();
    let again = loop {
        pair.now_ns += 1_000_000;
        pair.turn();
        let rows = pair.take_rows(2);
        if !rows.is_empty() {
            break rows;
        }
        assert!(pair.now_ns < done + 2 * INTERVAL_NS);
    };
    assert!(pair.now_ns >= done + INTERVAL_NS, "{} {done}", pair.now_ns);
    assert!(again.iter().all(|row| row.contains(r#""v":1001"#)), "{:?}", &again[..2]);
}

#[test]
fn a_copy_has_the_parts_of_the_record() {
    let mut pair = pair_with(vec![conflated("copy", "orders")]);
    pair.subscribe(2, &subscribe(7, "copy"));
    pair.turn();
    pair.take(2);
    put(&mut pair, 1, 1, 1);
    pair.pass(Duration::from_millis(1001));
    let said = pair.take(2);
    let [Said::Row(row)] = &said[..] else { panic!("{said:?}") };
    assert_eq!((&*row.topic, row.bookmark, row.key.len()), ("copy", None, 32));
    // The key is that of the source.
    let mut packed = Vec::new();
    put_key(&mut packed, row.key.as_bytes());
    let by_key = Query { keys: Keys::from_bytes(&packed), ..query(9, "orders") };
    assert_eq!(pair.records(2, by_key).len(), 1);
}

#[test]
fn deltas_are_those_to_the_last_copy() {
    let mut pair = pair_with(vec![conflated("copy", "orders")]);
    pair.subscribe(2, &sow_delta(7, "copy"));
    pair.turn();
    pair.take(2);
    pair.publish(1, 1, "orders", r#"{"id":1,"a":1,"b":1}"#);
    pair.turn();
    assert_eq!(pass_ms(&mut pair, 1001), [r#"+{"id":1,"a":1,"b":1}"#]);
    pair.publish(1, 2, "orders", r#"{"id":1,"a":2,"b":2}"#);
    pair.publish(1, 3, "orders", r#"{"id":1,"a":1,"b":3}"#);
    pair.turn();
    assert_eq!(pass_ms(&mut pair, 1001), [r#"~{"id":1,"b":3}"#]);
}

#[test]
fn a_start_copies_the_records_and_delivers_nothing() {
    let settings = || vec![filtered("copy", "orders"), conflated("copy-of-sums", "sums")];
    let config = || BrokerConfig { views: vec![sums("copy")], ..conflated_config(settings()) };
    let mut pair = with_clients(Pair::with(config()));
    for (id, v) in [(1, 1), (2, 3), (3, 4)] {
        put(&mut pair, id, id, v);
    }
    pair.turn();
    let Pair { broker, disk, .. } = pair;
    broker.close().unwrap();
    let mut pair = with_clients(Pair::on(disk, config()));
    assert_eq!(pair.records(2, query(9, "copy")), [r#"{"id":2,"v":3}"#, r#"{"id":3,"v":4}"#]);
    assert_eq!(pair.records(2, query(9, "copy-of-sums")), [r#"{"n":2,"sum":7}"#]);
    follow(&mut pair, "copy");
    assert_eq!(pass_ms(&mut pair, 3000), NOTHING);
}

fn sums(source: &str) -> ViewSettings {
    ViewSettings {
        name: "sums".into(),
        message_type: "json".into(),
        underlying_topic: source.into(),
        projection: vec!["COUNT(1) AS /n".into(), "SUM(/v) AS /sum".into()],
        ..ViewSettings::default()
    }
}

#[test]
fn a_view_and_a_conflated_topic_follow_a_conflated_topic() {
    let topics = vec![conflated("second", "copy"), conflated("copy", "orders")];
    let config = BrokerConfig { views: vec![sums("copy")], ..conflated_config(topics) };
    let mut pair = with_clients(Pair::with(config));
    pair.subscribe(2, &sow(7, "sums"));
    pair.subscribe(2, &sow(8, "second"));
    pair.turn();
    pair.take(2);
    for sequence in 1..=3 {
        put(&mut pair, sequence, sequence % 2, sequence);
    }
    assert_eq!(pass_ms(&mut pair, 1001), [r#"+{"n":1,"sum":3}"#, r#"+{"n":2,"sum":5}"#]);
    assert_eq!(pass_ms(&mut pair, 1001), [r#"+{"id":1,"v":3}"#, r#"+{"id":0,"v":2}"#]);
}

#[derive(Clone, Debug)]
enum Step {
    Put { id: u64, v: u64 },
    Delete { id: u64 },
    Pass { ms: u64 },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..4_u64, 0..6_u64).prop_map(|(id, v)| Step::Put { id, v }),
        1 => (0..4_u64).prop_map(|id| Step::Delete { id }),
        3 => prop_oneof![1..300_u64, Just(1_000), Just(2_500)].prop_map(|ms| Step::Pass { ms }),
    ]
}

/// The records that a subscriber has, from the messages that it got.
fn apply(records: &mut BTreeMap<u64, u64>, row: &str) -> u64 {
    let (kind, data) = row.split_at(row.find('{').unwrap());
    let data: serde_json::Value = serde_json::from_str(data).unwrap();
    let (id, v) = (data["id"].as_u64().unwrap(), data["v"].as_u64().unwrap());
    if kind.starts_with('-') {
        assert!(records.remove(&id).is_some(), "{row}");
    } else {
        records.insert(id, v);
    }
    id
}

proptest! {
    #[test]
    fn a_conflated_topic_has_the_records_of_an_instant_of_its_interval(
        steps in proptest::collection::vec(step(), 1..60)
    ) {
        let mut pair = pair_with(vec![filtered("copy", "orders")]);
        follow(&mut pair, "copy");
        let mut source = BTreeMap::new();
        // The values of each record, with the time since when it had them.
        let mut history: BTreeMap<u64, Vec<(u64, Option<u64>)>> = BTreeMap::new();
        let (mut copy, mut changed_at) = (BTreeMap::new(), BTreeMap::new());
        let mut sequence = 0;
        for step in steps.into_iter().chain([Step::Pass { ms: 2_500 }]) {
            sequence += 1;
            match step {
                Step::Put { id, v } => {
                    put(&mut pair, sequence, id, v);
                    source.insert(id, v);
                    history.entry(id).or_default().push((pair.now_ns, Some(v).filter(|v| *v > 2)));
                }
                Step::Delete { id } => {
                    let filter = format!("/id = {id}");
                    let wanted = SowDelete { filter: Some(&filter), ..delete(9, sequence, "orders") };
                    pair.delete(1, wanted);
                    source.remove(&id);
                    history.entry(id).or_default().push((pair.now_ns, None));
                }
                Step::Pass { ms } => pair.pass(Duration::from_millis(ms)),
            }
            for (at, row) in pair.take_said(2) {
                let Some(row) = short(row) else { continue };
                let id = apply(&mut copy, &row);
                // Not before an interval after the last change.
                let before = changed_at.insert(id, at);
                prop_assert!(before.is_none_or(|before| at >= before + INTERVAL_NS), "{row}");
                // The newest value at this instant.
                let newest = history[&id].iter().rev().find(|(since, _)| *since <= at);
                prop_assert_eq!(newest.and_then(|(_, v)| *v), copy.get(&id).copied());
            }
        }
        source.retain(|_, v| *v > 2);
        prop_assert_eq!(copy, source);
    }
}
