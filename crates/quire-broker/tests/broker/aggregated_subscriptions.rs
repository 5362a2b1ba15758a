//! Aggregated subscriptions over a virtual clock (docs/last-values.md, "Aggregated subscriptions"):
//! the order of their messages, one computation for equal subscriptions, limits, and a comparison
//! with a model.
//!
//! `tests/test_aggregated_subscriptions.py` has the behavior for clients.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;
use quire_broker::{BrokerConfig, Event, Limits};
use quire_command::*;
use quire_wire::Encode;

use crate::last_value_pair::*;
use crate::pair::*;
use crate::slices::with_stopwatch;

/// Texts, as a command has them.
pub fn packed(texts: &[&str]) -> Vec<u8> {
    let mut bytes = Vec::new();
    texts.iter().for_each(|text| put_text(&mut bytes, text));
    bytes
}

/// Subscribes with these options to the groups by `/g`.
fn subscribe_to_groups(pair: &mut Pair, client: u64, wanted: Subscribe<'_>) {
    let projection = packed(&["/g", "COUNT(1) AS /n", "SUM(/v) AS /sum"]);
    let grouping = packed(&["/g"]);
    let subscribe = Subscribe {
        projection: Texts::from_bytes(&projection),
        grouping: Texts::from_bytes(&grouping),
        ..wanted
    };
    pair.subscribe(client, &subscribe);
    pair.turn();
}

fn put(pair: &mut Pair, sequence: u64, id: u64, g: &str, v: u64) {
    pair.publish(1, sequence, "orders", &format!(r#"{{"id":{id},"g":"{g}","v":{v}}}"#));
    pair.turn();
}

/// The figures of the topic: the number of computations.
fn computation_count(pair: &mut Pair) -> usize {
    pair.take(1);
    pair.send(1, &Command::Inspect { command: 77, subject: Subject::Topics { after: "" } });
    pair.turn();
    let said = pair.take(1);
    let Some(Said::Stats { json, .. }) = said.last() else { panic!("{said:?}") };
    let told: serde_json::Value = serde_json::from_str(json).unwrap();
    let topics = told["topics"].as_array().unwrap();
    let topic = topics.iter().find(|topic| topic["topic"] == "orders").unwrap();
    topic["last_values"]["aggregations"].as_u64().unwrap() as usize
}

#[test]
fn the_groups_come_as_records_and_each_change_changes_them() {
    let mut pair = with_topics([sow_topic("orders")]);
    for (id, g, v) in [(1, "a", 1), (2, "a", 2), (3, "b", 3)] {
        put(&mut pair, id, id, g, v);
    }
    subscribe_to_groups(&mut pair, 2, Subscribe { order_by: Some("/sum DESC, /g"), ..sow(7, "orders") });
    assert_eq!(pair.take_rows(2), [r#"={"g":"a","n":2,"sum":3}"#, r#"={"g":"b","n":1,"sum":3}"#]);
    put(&mut pair, 4, 1, "b", 5);
    assert_eq!(pair.take_rows(2), [r#"+{"g":"a","n":1,"sum":2}"#, r#"+{"g":"b","n":2,"sum":8}"#]);
    assert_eq!(pair.delete(1, SowDelete { filter: Some("/id = 2"), ..delete(9, 5, "orders") }), 1);
    assert_eq!(pair.take_rows(2), [r#"-Deleted {"g":"a","n":1,"sum":2}"#]);
    put(&mut pair, 6, 9, "c", 1);
    let said = pair.take(2);
    let [Said::Row(row)] = &said[..] else { panic!("{said:?}") };
    assert_eq!((&*row.topic, row.key.len(), row.bookmark, row.subscription), ("orders", 32, None, 7));
}

#[test]
fn differences_filters_keys_and_intervals_apply_to_groups() {
    let mut pair = with_topics([sow_topic("orders")]);
    let filter = Some("/v > 1");
    subscribe_to_groups(&mut pair, 2, Subscribe { filter, ..sow_delta(7, "orders") });
    let conflation_ns = Some(1_000_000_000);
    subscribe_to_groups(&mut pair, 2, Subscribe { filter, conflation_ns, ..sow_delta(8, "orders") });
    pair.take(2);
    for (sequence, id, v) in [(1, 1, 1), (2, 1, 2), (3, 2, 3), (4, 1, 1)] {
        put(&mut pair, sequence, id, "a", v);
    }
    let expected =
        [r#"+{"g":"a","n":1,"sum":2}"#, r#"~{"g":"a","n":2,"sum":5}"#, r#"~{"g":"a","n":1,"sum":3}"#];
    assert_eq!(pair.take_rows(2), expected);
    pair.pass(Duration::from_millis(1001));
    assert_eq!(pair.take_rows(2), [r#"+{"g":"a","n":1,"sum":3}"#]);
    put(&mut pair, 5, 3, "a", 3);
    put(&mut pair, 6, 3, "a", 0);
    pair.take(2);
    pair.pass(Duration::from_millis(1001));
    assert_eq!(pair.take_rows(2), [r#"~{"g":"a","n":1,"sum":3}"#]);
}

#[test]
fn equal_subscriptions_share_a_computation_which_ends_with_the_last_one() {
    let mut pair = with_topics([sow_topic("orders")]);
    pair.client(3, "another");
    put(&mut pair, 1, 1, "a", 1);
    subscribe_to_groups(&mut pair, 2, sow(7, "orders"));
    subscribe_to_groups(&mut pair, 3, sow(7, "orders"));
    subscribe_to_groups(&mut pair, 3, Subscribe { filter: Some("/v > 5"), ..sow(8, "orders") });
    assert_eq!(computation_count(&mut pair), 2);
    pair.take(3);
    put(&mut pair, 2, 1, "a", 2);
    assert_eq!(pair.take_rows(3), [r#"+{"g":"a","n":1,"sum":2}"#]);
    let end = Unsubscribe { command: 9, subscription: 8, ..Unsubscribe::default() };
    pair.send(3, &Command::Unsubscribe(end));
    pair.disconnect(2);
    pair.turn();
    assert_eq!(computation_count(&mut pair), 1);
    pair.disconnect(3);
    pair.turn();
    assert_eq!(computation_count(&mut pair), 0);
    // Its place is used again.
    pair.client(4, "later");
    subscribe_to_groups(&mut pair, 4, sow(7, "orders"));
    assert_eq!(pair.take_rows(4), [r#"={"g":"a","n":1,"sum":2}"#]);
}

#[test]
fn a_computation_of_many_records_takes_several_turns_and_misses_no_change() {
    let mut pair = with_stopwatch(sow_config([sow_topic("orders")]));
    pair.client(1, "publisher");
    pair.client(2, "reader");
    let mut frames = Vec::new();
    for id in 1..=5_000_u64 {
        let data = format!(r#"{{"id":{id},"g":"{}","v":1}}"#, id % 1000);
        Command::Publish(publish(id, "orders", &data)).encode(&mut frames);
    }
    pair.send_bytes(1, &frames);
    pair.turn();
    let projection = packed(&["/g", "COUNT(1) AS /n"]);
    let grouping = packed(&["/g"]);
    let subscribe = Subscribe {
        projection: Texts::from_bytes(&projection),
        grouping: Texts::from_bytes(&grouping),
        ..sow(7, "orders")
    };
    pair.subscribe(2, &subscribe);
    pair.one_turn();
    // Changes while the records are read.
    for sequence in 5_001..=5_010 {
        pair.publish(1, sequence, "orders", &format!(r#"{{"id":{},"g":"x","v":1}}"#, sequence - 5_000));
        pair.one_turn();
    }
    pair.turn();
    let rows = pair.take_rows(2);
    assert!(pair.repeat_count > 20);
    // The last row of each group is its state: the records may have some of the changes.
    let mut groups = BTreeMap::new();
    for row in &rows {
        let data: serde_json::Value = serde_json::from_str(&row[1..]).unwrap();
        groups.insert(data["g"].as_str().unwrap().to_owned(), data["n"].as_u64().unwrap());
    }
    assert!(rows[..1_000].iter().all(|row| row.starts_with('=')));
    assert_eq!(groups.remove("x"), Some(10));
    let expected = (0..1_000_u64).map(|g| (g.to_string(), 5 - u64::from((1..=10).contains(&g))));
    assert_eq!(groups, expected.collect());
}

#[test]
fn a_computation_above_the_limit_ends_its_subscriptions_and_nothing_else() {
    let limits = Limits { max_query_copies: 64 * 1024, ..Limits::default() };
    let mut pair = Pair::with(BrokerConfig { limits, ..sow_config([sow_topic("orders")]) });
    pair.client(1, "publisher");
    pair.client(2, "reader");
    put(&mut pair, 1, 1, "a", 1);
    subscribe_to_groups(&mut pair, 2, sow(7, "orders"));
    pair.subscribe(2, &sow(8, "orders"));
    pair.turn();
    pair.take(2);
    for sequence in 2..=1_000 {
        put(&mut pair, sequence, sequence, &format!("group {sequence}"), 1);
    }
    let said = pair.take(2);
    let ended = Said::Ended { subscription: 7, code: Code::LimitExceeded };
    assert!(said.contains(&ended));
    let of_others =
        said.iter().filter(|said| matches!(said, Said::Row(row) if row.subscription == 8)).count();
    assert_eq!(of_others, 999);
    assert_eq!(computation_count(&mut pair), 0);
    let lines = pair.log.iter().filter(|event| matches!(event, Event::SubscriptionEnded { .. }));
    assert!(lines.map(ToString::to_string).all(|line| line.contains("max_query_copies")));
    // Each connection, and the server, have a limit of their number.
    for number in 100..170 {
        let filter = format!("/v > {number}");
        let wanted = Subscribe { filter: Some(&filter), ..sow(number, "scratch-orders") };
        subscribe_to_groups(&mut pair, 2, Subscribe { topic: "orders", ..wanted });
    }
    let said = pair.take(2);
    let refused = said
        .iter()
        .filter(|said| matches!(said, Said::Ack { kind: AckKind::Processed, code: Code::LimitExceeded, .. }));
    assert_eq!(refused.count(), 6);
}

#[test]
fn what_has_no_groups_is_refused() {
    let mut pair = with_topics([sow_topic("orders")]);
    for (wanted, code, text) in [
        (sow(7, "plain"), Code::NotLastValue, "keeps no last values"),
        (sow(7, "^ord"), Code::BadOption, "projection: \"^ord\" is a pattern"),
        (Subscribe { skip_n: Some(0), top_n: Some(1), ..sow(7, "orders") }, Code::BadOption, "skip_n"),
        (Subscribe { bookmark: Some("0"), ..subscribe(7, "orders") }, Code::BadOption, "projection"),
        (Subscribe { select: Some("-/g"), ..sow(7, "orders") }, Code::BadOption, "select"),
    ] {
        subscribe_to_groups(&mut pair, 2, wanted);
        assert!(pair.take(2).contains(&refused(code, 7, 7)), "{text}");
        assert!(pair.clients[&2].refusal.contains(text), "{}", pair.clients[&2].refusal);
    }
    subscribe_to_groups(&mut pair, 2, sow(7, "orders"));
    let options = sow(7, "orders").options.and(SubscribeOptions::REPLACE);
    pair.subscribe(2, &Subscribe { options, ..sow(7, "orders") });
    pair.turn();
    assert!(pair.clients[&2].refusal.contains("projection cannot be replaced"));
}

#[derive(Clone, Debug)]
enum Move {
    Put { id: u64, g: u8, v: u64 },
    Delete { id: u64 },
    Subscribe { number: u32, kind: u8 },
    Unsubscribe { number: u32 },
    Pass,
    OneTurn,
}

fn next_move() -> impl Strategy<Value = Move> {
    prop_oneof![
        6 => (0..6_u64, 0..3_u8, 0..5_u64).prop_map(|(id, g, v)| Move::Put { id, g, v }),
        1 => (0..6_u64).prop_map(|id| Move::Delete { id }),
        2 => (1..4_u32, 0..4_u8).prop_map(|(number, kind)| Move::Subscribe { number, kind }),
        1 => (1..4_u32).prop_map(|number| Move::Unsubscribe { number }),
        1 => Just(Move::Pass),
        2 => Just(Move::OneTurn),
    ]
}

/// The groups of the records that a kind of subscription has.
fn expected(records: &BTreeMap<u64, (u8, u64)>, kind: u8) -> BTreeMap<String, (u64, u64)> {
    let mut groups = BTreeMap::new();
    for (g, v) in records.values().filter(|(_, v)| kind.is_multiple_of(2) || *v > 2) {
        let (count, sum) = groups.entry(g.to_string()).or_insert((0, 0));
        *count += 1;
        *sum += v;
    }
    groups
}

proptest! {
    #[test]
    fn a_subscriber_has_the_groups_of_a_computation_from_nothing(
        moves in proptest::collection::vec(next_move(), 1..60)
    ) {
        let mut pair = with_stopwatch(sow_config([sow_topic("orders")]));
        pair.client(1, "publisher");
        pair.client(2, "reader");
        let (mut records, mut sequence) = (BTreeMap::new(), 0);
        // The kind of each subscription, and its groups: key, and fields.
        let mut seen: BTreeMap<u32, (u8, BTreeMap<String, serde_json::Value>)> = BTreeMap::new();
        for step in moves.into_iter().chain([Move::Pass]) {
            match step {
                Move::Put { id, g, v } => {
                    sequence += 1;
                    pair.publish(1, sequence, "orders", &format!(r#"{{"id":{id},"g":"{g}","v":{v}}}"#));
                    records.insert(id, (g, v));
                }
                Move::Delete { id } => {
                    sequence += 1;
                    let filter = format!("/id = {id}");
                    let wanted = delete(9, sequence, "orders");
                    pair.send(1, &Command::SowDelete(SowDelete { filter: Some(&filter), ..wanted }));
                    pair.turn();
                    records.remove(&id);
                }
                Move::Subscribe { number, kind } if !seen.contains_key(&number) => {
                    let wanted = if kind < 2 { sow(number, "orders") } else { sow_delta(number, "orders") };
                    let wanted = Subscribe {
                        filter: (kind % 2 == 1).then_some("/v > 2"),
                        conflation_ns: (number == 2).then_some(100_000_000),
                        ..wanted
                    };
                    let projection = packed(&["/g", "COUNT(1) AS /n", "SUM(/v) AS /sum"]);
                    let grouping = packed(&["/g"]);
                    pair.subscribe(2, &Subscribe {
                        projection: Texts::from_bytes(&projection),
                        grouping: Texts::from_bytes(&grouping),
                        ..wanted
                    });
                    seen.insert(number, (kind, BTreeMap::new()));
                }
                Move::Subscribe { .. } => (),
                Move::Unsubscribe { number } => {
                    if seen.remove(&number).is_some() {
                        let end = Unsubscribe { command: 8, subscription: number, ..Unsubscribe::default() };
                        pair.send(2, &Command::Unsubscribe(end));
                        pair.turn();
                    }
                }
                Move::OneTurn => pair.one_turn(),
                Move::Pass => {
                    pair.turn();
                    pair.pass(Duration::from_millis(250));
                }
            }
            let is_quiet = matches!(step, Move::Pass);
            for said in pair.take(2) {
                let Said::Row(row) = said else { continue };
                let Some((_, groups)) = seen.get_mut(&row.subscription) else { continue };
                let data = || serde_json::from_str::<serde_json::Value>(&row.data).unwrap();
                match row.kind {
                    MessageKind::Oof(_) => {
                        prop_assert!(groups.remove(&row.key).is_some(), "{:?}", row);
                    }
                    MessageKind::Delta(_) => {
                        let known = groups.get_mut(&row.key).unwrap().as_object_mut().unwrap();
                        known.extend(data().as_object().unwrap().clone());
                    }
                    _ => {
                        groups.insert(row.key.clone(), data());
                    }
                }
            }
            if is_quiet {
                for (number, (kind, groups)) in &seen {
                    let found: BTreeMap<String, (u64, u64)> = groups
                        .values()
                        .map(|it| {
                            let number = |name: &str| it[name].as_u64().unwrap();
                            (it["g"].as_str().unwrap().to_owned(), (number("n"), number("sum")))
                        })
                        .collect();
                    prop_assert_eq!(found, expected(&records, *kind), "{}", number);
                }
            }
        }
    }
}
