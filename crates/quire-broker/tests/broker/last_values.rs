//! Keys, records and queries of last-value topics (docs/last-values.md, sections 1 to 3).

use std::time::Duration;

use quire_broker::{BrokerConfig, Event, Limits, QueueSettings, SowTopicSettings, TableExpiration};
use quire_command::*;
use quire_types::Verdict;

use crate::last_value_pair::*;
use crate::pair::*;
use crate::queue_pair::*;

#[test]
fn a_topic_keeps_the_newest_message_of_each_key() {
    let mut pair = with_topics([sow_topic("orders")]);
    for (sequence, data) in [r#"{"id":1,"n":1}"#, r#"{"id":2,"n":2}"#, r#"{"id":1,"n":3}"#].iter().enumerate()
    {
        pair.publish(1, sequence as u64 + 1, "orders", data);
    }
    assert_eq!(pair.records(2, query(5, "orders")), [r#"{"id":1,"n":3}"#, r#"{"id":2,"n":2}"#]);
    assert_eq!(pair.clients[&2].total, 2);
}

#[test]
fn a_query_sees_what_its_own_client_published_before_it() {
    let mut pair = with_topics([sow_topic("orders")]);
    pair.writes_at_once = false;
    pair.publish(1, 1, "orders", r#"{"id":1}"#);
    assert_eq!(pair.records(1, query(5, "orders")), [r#"{"id":1}"#]);
    assert_eq!(pair.broker.stats().persisted, 0);
}

#[test]
fn later_publishes_do_not_change_the_result() {
    let mut pair = with_topics([sow_topic("orders")]);
    pair.publish(1, 1, "orders", r#"{"id":1,"n":1}"#);
    pair.send(2, &Command::Query(query(5, "orders")));
    pair.publish(1, 2, "orders", r#"{"id":1,"n":2}"#);
    pair.publish(1, 3, "orders", r#"{"id":2,"n":3}"#);
    pair.turn();
    assert_eq!(pair.take_rows(2), [r#"={"id":1,"n":1}"#]);
}

#[test]
fn a_duplicate_changes_nothing() {
    let mut pair = with_topics([sow_topic("orders")]);
    pair.publish(1, 1, "orders", r#"{"id":1,"n":1}"#);
    pair.publish(1, 2, "orders", r#"{"id":1,"n":2}"#);
    pair.publish(1, 1, "orders", r#"{"id":1,"n":1}"#);
    assert_eq!(pair.records(2, query(5, "orders")), [r#"{"id":1,"n":2}"#]);
}

#[test]
fn every_subscription_gets_the_key_with_the_message() {
    let mut pair = with_topics([supplied("orders")]);
    pair.subscribe(2, &subscribe(3, "orders"));
    pair.subscribe(2, &replay(4, "orders", "0"));
    pair.turn();
    pair.take(2);
    pair.send(1, &Command::Publish(Publish { key: b"a-1", ..publish(1, "orders", "{}") }));
    pair.turn();
    let mut keys: Vec<_> = pair
        .take(2)
        .into_iter()
        .filter_map(|said| match said {
            Said::Row(row) => Some((row.subscription, row.key, row.kind, row.bookmark.is_some())),
            _ => None,
        })
        .collect();
    keys.sort_by_key(|key| key.0);
    let key = |number| (number, "a-1".to_owned(), MessageKind::Publish, true);
    assert_eq!(keys, [key(3), key(4)]);
}

#[test]
fn a_missing_or_bad_key_is_refused_with_bad_message() {
    let mut pair = with_topics([supplied("orders"), sow_topic("trades")]);
    let bad = |sequence| Said::Failed { sequence, code: Code::BadMessage, scope: FailureScope::One };
    for (sequence, key) in [(1, &b""[..]), (2, b"a b"), (3, "ä".as_bytes())] {
        pair.send(1, &Command::Publish(Publish { key, ..publish(sequence, "orders", "{}") }));
        pair.turn();
        assert!(pair.take(1).contains(&bad(sequence)), "{key:?}");
    }
    pair.publish(1, 4, "trades", "{");
    pair.turn();
    assert!(pair.take(1).contains(&bad(4)));
    // The refusal is repeated when the publish is.
    pair.publish(1, 4, "trades", "{");
    pair.turn();
    assert!(pair.take(1).contains(&bad(4)));
    assert_eq!(pair.records(2, query(5, "^")), Vec::<String>::new());
}

#[test]
fn a_supplied_key_on_a_topic_with_generated_keys_is_ignored() {
    let mut pair = with_topics([sow_topic("orders")]);
    for (sequence, key) in [(1, b"a"), (2, b"b")] {
        pair.send(1, &Command::Publish(Publish { key, ..publish(sequence, "orders", r#"{"id":1}"#) }));
    }
    assert_eq!(pair.records(2, query(5, "orders")), [r#"{"id":1}"#]);
}

#[test]
fn messages_without_the_key_field_have_one_record_and_one_warning() {
    let mut pair = with_topics([sow_topic("orders")]);
    for sequence in 1..=3 {
        pair.publish(1, sequence, "orders", &format!(r#"{{"n":{sequence}}}"#));
    }
    assert_eq!(pair.records(2, query(5, "orders")), [r#"{"n":3}"#]);
    let is_warning = |event: &&Event| matches!(event, Event::KeyFieldMissing { topic } if topic == "orders");
    assert_eq!(pair.log.iter().filter(is_warning).count(), 1);
}

#[test]
fn a_message_that_is_malformed_after_its_key_is_refused_and_replaces_no_record() {
    let mut pair = with_topics([sow_topic("orders")]);
    pair.publish(1, 1, "orders", r#"{"id":1,"qty":10}"#);
    let deep = format!("{{\"id\":1,\"a\":{}{}}}", "[".repeat(300), "]".repeat(300));
    for (sequence, data) in [(2, r#"{"id":1,"qty":11"#), (3, r#"{"id":1,"qty":}"#), (4, &deep)] {
        pair.publish(1, sequence, "orders", data);
    }
    pair.turn();
    let is_refusal = |said: &Said| matches!(said, Said::Failed { code: Code::BadMessage, .. });
    assert_eq!(pair.take(1).iter().filter(|said| is_refusal(said)).count(), 3);
    assert_eq!(pair.records(2, query(5, "orders")), [r#"{"id":1,"qty":10}"#]);
}

#[test]
fn topics_with_one_key_domain_have_the_same_keys() {
    let domain = |name| SowTopicSettings { key_domain: Some("ids".into()), ..sow_topic(name) };
    let mut pair = with_topics([domain("a"), domain("b"), sow_topic("c")]);
    for (sequence, topic) in [(1, "a"), (2, "b"), (3, "c")] {
        pair.publish(1, sequence, topic, r#"{"id":1}"#);
    }
    pair.send(2, &Command::Query(query(5, "^")));
    pair.turn();
    let keys: Vec<_> = pair
        .take(2)
        .into_iter()
        .filter_map(|said| match said {
            Said::Row(row) => Some(row.key),
            _ => None,
        })
        .collect();
    assert_eq!(keys.len(), 3);
    assert!(keys[0] == keys[1] && keys[1] != keys[2], "{keys:?}");
    assert!(keys[0].len() == 32 && keys[0].bytes().all(|byte| byte.is_ascii_hexdigit()));
}

#[test]
fn filter_keys_order_and_pages_select_records() {
    let mut pair = with_topics([supplied("orders")]);
    for (sequence, key, price) in [(1, "a", 30), (2, "b", 10), (3, "c", 20), (4, "d", 5)] {
        let data = format!(r#"{{"price":{price}}}"#);
        let publish = Publish { key: key.as_bytes(), ..publish(sequence, "orders", &data) };
        pair.send(1, &Command::Publish(publish));
    }
    let price = |price: u32| format!(r#"{{"price":{price}}}"#);
    let filtered = Query { filter: Some("/price > 10"), ..query(5, "orders") };
    assert_eq!(pair.records(2, filtered.clone()), [price(20), price(30)]);
    let keys = Keys::from_bytes(b"\x01a\x01b\x01x");
    assert_eq!(pair.records(2, Query { keys, ..query(5, "orders") }), [price(10), price(30)]);
    assert_eq!(pair.records(2, Query { keys, ..filtered }), [price(30)]);
    let by_key = Query { filter: Some("SOW_KEY() = 'c'"), ..query(5, "orders") };
    assert_eq!(pair.records(2, by_key), [price(20)]);
    let page = Query { order_by: Some("/price DESC"), top_n: Some(2), skip_n: Some(1), ..query(5, "orders") };
    assert_eq!(pair.ordered(2, page), [price(20), price(10)]);
    assert_eq!(pair.clients[&2].total, 4);
    let select = Query { select: Some("-/,+/x"), top_n: Some(1), ..query(5, "orders") };
    assert_eq!(pair.ordered(2, select), ["{}"]);
}

#[test]
fn a_pattern_queries_every_last_value_topic_that_it_matches() {
    let mut pair = with_topics([sow_topic("a/1"), sow_topic("a/2"), sow_topic("b")]);
    for (sequence, topic) in [(1, "a/1"), (2, "a/2"), (3, "b"), (4, "a/plain")] {
        pair.publish(1, sequence, topic, &format!(r#"{{"id":{sequence}}}"#));
    }
    assert_eq!(pair.records(2, query(5, "^a/")), [r#"{"id":1}"#, r#"{"id":2}"#]);
    assert_eq!(pair.clients[&2].total, 2);
    assert_eq!(pair.records(2, query(5, "^none")), Vec::<String>::new());
}

#[test]
fn queries_that_cannot_be_are_refused() {
    let mut pair = with_topics([sow_topic("a/1"), sow_topic("a/2")]);
    pair.subscribe(2, &subscribe(3, "plain"));
    pair.turn();
    pair.take(2);
    for (query, code) in [
        (query(5, "plain"), Code::NotLastValue),
        (Query { filter: Some("/a ="), ..query(5, "a/1") }, Code::BadFilter),
        (Query { order_by: Some("price"), ..query(5, "a/1") }, Code::BadFilter),
        (Query { select: Some("x"), ..query(5, "a/1") }, Code::BadOption),
        (Query { skip_n: Some(1), ..query(5, "a/1") }, Code::BadOption),
        (Query { top_n: Some(1), ..query(5, "^a") }, Code::BadOption),
        (Query { order_by: Some("/id"), ..query(5, "^a") }, Code::BadOption),
        // A pattern that does not compile.
        (query(5, "a("), Code::BadTopic),
        (Query { command: 5, ..query(3, "a/1") }, Code::SubscriptionInUse),
    ] {
        let number = query.subscription;
        pair.send(2, &Command::Query(query.clone()));
        pair.turn();
        let [Said::Ack { kind: AckKind::Processed, code: said, command: 5, subscription }] = pair.take(2)[..]
        else {
            panic!("{query:?}")
        };
        assert_eq!((said, subscription), (code, number), "{query:?}");
    }
}

/// One message of 100,000 bytes each.
fn publish_large(pair: &mut Pair, count: u64) {
    let filler = "x".repeat(100_000);
    for sequence in 1..=count {
        pair.publish(1, sequence, "orders", &format!(r#"{{"id":{sequence},"x":"{filler}"}}"#));
        pair.turn();
    }
}

#[test]
fn a_large_result_goes_out_as_the_connection_takes_it_and_other_connections_do_not_wait() {
    let mut pair = with_topics([sow_topic("orders")]);
    publish_large(&mut pair, 60);
    pair.client(3, "other");
    pair.set_writable(2, false);
    pair.send(2, &Command::Query(query(5, "orders")));
    pair.turn();
    assert!(pair.broker.stats().connections.iter().all(|connection| connection.backlog_bytes < 3_000_000));
    assert_eq!(pair.records(3, Query { keys: Keys::from_bytes(b"\x01x"), ..query(5, "orders") }).len(), 0);
    pair.set_writable(2, true);
    pair.turn();
    assert_eq!(pair.take_rows(2).len(), 60);
}

#[test]
fn a_query_that_holds_too_many_copies_ends_with_limit_exceeded() {
    let limits = Limits { max_query_copies: 200_000, ..Limits::default() };
    let mut pair = Pair::with(BrokerConfig { limits, ..sow_config([sow_topic("orders")]) });
    pair.client(1, "publisher");
    pair.client(2, "reader");
    publish_large(&mut pair, 60);
    pair.set_writable(2, false);
    pair.send(2, &Command::Query(query(5, "orders")));
    pair.turn();
    for (sequence, id) in (61..).zip(1..=60) {
        pair.publish(1, sequence, "orders", &format!(r#"{{"id":{id}}}"#));
    }
    pair.turn();
    pair.set_writable(2, true);
    pair.turn();
    let said = pair.take(2);
    assert_eq!(said.last(), Some(&refused(Code::LimitExceeded, 5, 5)));
    assert!(!said.contains(&ack(AckKind::Completed, 5, 5)));
    // Its number is free, and the scan is closed.
    assert_eq!(pair.records(2, query(5, "orders")).len(), 60);
}

#[test]
fn unsubscribing_the_number_of_a_query_ends_it() {
    let mut pair = with_topics([sow_topic("orders")]);
    publish_large(&mut pair, 60);
    pair.set_writable(2, false);
    pair.send(2, &Command::Query(query(5, "orders")));
    pair.turn();
    let unsubscribe = Unsubscribe { command: 6, acks: Acks::PROCESSED, subscription: 5, begun: None };
    pair.send(2, &Command::Unsubscribe(unsubscribe));
    pair.set_writable(2, true);
    pair.turn();
    let said = pair.take(2);
    assert!(said.len() < 60 && said.last() == Some(&ack(AckKind::Processed, 6, 5)), "{}", said.len());
    pair.send(2, &Command::Unsubscribe(unsubscribe));
    pair.turn();
    assert_eq!(pair.take(2), [refused(Code::UnknownSubscription, 6, 5)]);
}

#[test]
fn a_connection_runs_sixteen_queries_at_a_time() {
    let mut pair = with_topics([sow_topic("orders")]);
    publish_large(&mut pair, 60);
    pair.set_writable(2, false);
    for number in 1..=17 {
        pair.send(2, &Command::Query(query(number, "orders")));
    }
    pair.send(2, &Command::Query(query(3, "orders")));
    pair.set_writable(2, true);
    pair.turn();
    let said = pair.take(2);
    assert!(said.contains(&refused(Code::LimitExceeded, 17, 17)));
    assert!(said.contains(&refused(Code::SubscriptionInUse, 3, 3)));
    for number in 1..=16 {
        assert!(said.contains(&ack(AckKind::Completed, number, number)), "{number}");
    }
}

#[test]
fn a_query_of_a_connection_that_ends_is_closed() {
    let mut pair = with_topics([sow_topic("orders")]);
    publish_large(&mut pair, 60);
    pair.set_writable(2, false);
    pair.send(2, &Command::Query(query(5, "orders")));
    pair.turn();
    pair.disconnect(2);
    for (sequence, id) in (61..).zip(1..=60) {
        pair.publish(1, sequence, "orders", &format!(r#"{{"id":{id}}}"#));
    }
    pair.turn();
    assert_eq!(pair.records(1, query(5, "orders")).len(), 60);
}

#[test]
fn records_end_with_their_lifetime() {
    let expiring = |name, expiration| SowTopicSettings { expiration, ..sow_topic(name) };
    let second = 1_000_000_000;
    let mut pair = with_topics([
        sow_topic("disabled"),
        expiring("enabled", TableExpiration::Enabled),
        expiring("default", TableExpiration::AfterNs(second)),
    ]);
    let mut sequence = 0;
    for topic in ["disabled", "enabled", "default"] {
        for (id, expiration_s) in [(1, None), (2, Some(0)), (3, Some(2))] {
            sequence += 1;
            let data = format!(r#"{{"id":{id}}}"#);
            let publish = Publish { expiration_s, ..publish(sequence, topic, &data) };
            pair.send(1, &Command::Publish(publish));
        }
    }
    pair.turn();
    let ids = |pair: &mut Pair, topic: &str| pair.records(2, query(5, topic)).len();
    for (after_ms, counts) in
        [(999, [3, 3, 3]), (1, [3, 3, 2]), (999, [3, 3, 2]), (1, [3, 2, 1]), (5000, [3, 2, 1])]
    {
        pair.pass(Duration::from_millis(after_ms));
        assert_eq!(["disabled", "enabled", "default"].map(|topic| ids(&mut pair, topic)), counts);
    }
    // Every publish of a key begins its lifetime again.
    pair.publish(1, sequence + 1, "default", r#"{"id":2,"n":1}"#);
    pair.turn();
    pair.pass(Duration::from_millis(1100));
    assert_eq!(ids(&mut pair, "default"), 0);
}

#[test]
fn the_list_of_topics_has_the_figures_of_last_value_topics() {
    let mut pair = with_topics([sow_topic("orders"), transient("scratch")]);
    pair.publish(1, 1, "orders", r#"{"id":1}"#);
    pair.send(2, &Command::Inspect { command: 4, subject: Subject::Topics { after: "" } });
    pair.turn();
    let said = pair.take(2);
    let Some(Said::Stats { json, .. }) = said.last() else { panic!("{said:?}") };
    let json: serde_json::Value = serde_json::from_str(json).unwrap();
    let figures = |name: &str| {
        let topics = json["topics"].as_array().unwrap();
        topics.iter().find(|topic| topic["topic"] == name).unwrap()["last_values"].clone()
    };
    let orders = figures("orders");
    assert_eq!((&orders["records"], &orders["key"][0]), (&1.into(), &"/id".into()));
    assert_eq!(orders["durability"], "persistent");
    assert!(orders["bytes"].as_u64() > Some(0) && orders["memory"].as_u64() > Some(0));
    assert_eq!(figures("scratch")["durability"], "transient");
}

/// A topic with 10,000 records of a number and a text.
fn many_records() -> Pair {
    let mut pair = with_topics([sow_topic("orders")]);
    pair.client(3, "inspector");
    (1..=10_000).for_each(|id| pair.publish(1, id, "orders", &named(id)));
    pair.turn();
    pair.take(1);
    pair
}

fn named(id: u64) -> String {
    format!(r#"{{"id":{id},"name":"n{id}","text":"{:100}"}}"#, "")
}

/// The indexes of the topic that queries made, those that are being built, and the memory of the
/// topic.
fn indexes(pair: &mut Pair) -> (u64, u64, u64) {
    pair.send(3, &Command::Inspect { command: 4, subject: Subject::Topics { after: "" } });
    pair.one_turn();
    let said = pair.take(3);
    let Some(Said::Stats { json, .. }) = said.last() else { panic!("{said:?}") };
    let json: serde_json::Value = serde_json::from_str(json).unwrap();
    let orders = json["topics"].as_array().unwrap().iter().find(|topic| topic["topic"] == "orders");
    let figure = |name: &str| orders.unwrap()["last_values"][name].as_u64().unwrap();
    (figure("made_indexes"), figure("building_indexes"), figure("memory"))
}

#[test]
fn a_query_that_needs_an_index_has_it_made_between_other_work() {
    let mut pair = many_records();
    let (made, building, memory) = indexes(&mut pair);
    assert_eq!((made, building), (0, 0));
    let by_name = || Query { filter: Some("/name IN ('n7', 'n10001')"), ..query(5, "orders") };
    pair.send(2, &Command::Query(by_name()));
    // While the query runs and the index is built, records come and go.
    let mut was_building = false;
    for id in 10_001..10_100 {
        was_building |= indexes(&mut pair).1 == 1;
        pair.publish(1, id, "orders", &named(id));
    }
    pair.turn();
    pair.take(2);
    let (made, building, memory_after) = indexes(&mut pair);
    assert_eq!((made, building, was_building), (1, 0, true));
    assert!(memory_after > memory + 10_000 * 8);
    assert_eq!(pair.records(2, by_name()), [named(10_001), named(7)]);
}

#[test]
fn a_delete_that_needs_an_index_has_it_made() {
    let mut pair = many_records();
    let by_name = |sequence| SowDelete { filter: Some("/name = 'n7'"), ..delete(7, sequence, "orders") };
    assert_eq!(pair.delete(1, by_name(10_001)), 1);
    pair.turn();
    let (made, building, _) = indexes(&mut pair);
    assert_eq!((made, building), (1, 0));
    assert_eq!(pair.delete(1, by_name(10_002)), 0);
}

#[test]
fn a_dead_letter_becomes_a_record_when_it_has_the_fields_of_the_key() {
    let dead =
        QueueSettings { dead_letter_topic: Some("dead".into()), max_cancels: Some(0), ..queue("jobs") };
    for (topic, count) in [(sow_topic("dead"), 1), (supplied("dead"), 0)] {
        let mut pair = Pair::with(BrokerConfig { queues: vec![dead.clone()], ..sow_config([topic]) });
        pair.client(1, "publisher");
        pair.client(2, "reader");
        pair.publish(1, 1, "jobs", r#"{"id":1}"#);
        pair.subscribe(2, &consume(3, "jobs", 10));
        pair.turn();
        let taken = pair.take_queued(2);
        pair.settle(2, "jobs", Verdict::Expire, &taken);
        pair.turn();
        pair.subscribe(2, &replay(4, "dead", "0"));
        pair.turn();
        assert_eq!(
            pair.take(2).iter().filter(|said| matches!(said, Said::Row(_) | Said::Message { .. })).count(),
            1
        );
        assert_eq!(pair.records(2, query(5, "dead")).len(), count);
    }
}

#[test]
fn a_delta_is_merged_into_the_record_before_it_is_recorded_and_delivered() {
    let mut pair = with_topics([sow_topic("orders")]);
    pair.publish(1, 1, "orders", r#"{"id":1,"qty":5,"at":{"x":1,"y":2}}"#);
    pair.subscribe(2, &subscribe(3, "orders"));
    pair.take(2);
    let delta = |sequence, data| Publish { is_delta: true, ..publish(sequence, "orders", data) };
    pair.send(1, &Command::Publish(delta(2, r#"{"id":1,"at":{"y":3},"side":"buy"}"#)));
    pair.turn();
    let merged = r#"{"id":1,"qty":5,"at":{"x":1,"y":3},"side":"buy"}"#;
    assert_eq!(pair.take_rows(2), [format!("+{merged}")]);
    assert_eq!(pair.records(2, query(5, "orders")), [merged]);
    // A resent delta changes nothing. Without a record, the delta is the message.
    pair.send(1, &Command::Publish(delta(2, r#"{"id":1,"qty":9}"#)));
    pair.send(1, &Command::Publish(delta(3, r#"{"id":2,"qty":7}"#)));
    pair.turn();
    assert_eq!(pair.records(2, query(5, "orders")), [merged, r#"{"id":2,"qty":7}"#]);
    pair.subscribe(2, &replay(4, "orders", "0"));
    pair.turn();
    assert!(pair.take_rows(2).iter().any(|row| row.ends_with(merged)));
}

#[test]
fn a_delta_that_cannot_be_merged_is_refused_and_the_record_stays() {
    let mut pair = with_topics([supplied("orders")]);
    pair.send(1, &Command::Publish(Publish { key: b"a", ..publish(1, "orders", r#"{"n":1}"#) }));
    pair.send(1, &Command::Publish(Publish { key: b"a", is_delta: true, ..publish(2, "orders", "[1") }));
    pair.turn();
    let refused = Said::Failed { sequence: 2, code: Code::BadMessage, scope: FailureScope::One };
    assert!(pair.take(1).contains(&refused));
    assert_eq!(pair.records(2, query(5, "orders")), [r#"{"n":1}"#]);
}
