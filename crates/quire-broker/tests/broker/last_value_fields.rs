//! Constructed fields: preprocessing and enrichment of the messages of last-value topics
//! (docs/last-values.md section 11).

use std::time::Duration;

use quire_broker::{BrokerConfig, QueueSettings, SowTopicSettings, TableExpiration, TransportConfig};
use quire_command::*;
use quire_types::Verdict;

use crate::last_value_pair::*;
use crate::last_value_restarts::crash;
use crate::pair::*;
use crate::queue_pair::*;

/// A topic with keys of `/key`, a field that preprocessing makes, and with the difference of the
/// quantities.
fn topic() -> SowTopicSettings {
    SowTopicSettings {
        key: vec!["/key".into()],
        preprocessing: vec!["CONCAT(/customer, '-', /order) AS /key".into()],
        enrichment: vec!["/qty - COALESCE(/qty OF PREVIOUS, 0) AS /change".into()],
        ..supplied("orders")
    }
}

fn order(order: u32, qty: u32) -> String {
    format!(r#"{{"customer":"c","order":{order},"qty":{qty}}}"#)
}

/// The same with its fields.
fn whole(order: u32, qty: u32, change: i32) -> String {
    format!(r#"{{"customer":"c","order":{order},"qty":{qty},"key":"c-{order}","change":{change}}}"#)
}

fn enriched(fields: &[&str]) -> SowTopicSettings {
    let enrichment = fields.iter().map(|field| field.to_string()).collect();
    SowTopicSettings { enrichment, ..sow_topic("orders") }
}

fn bad(sequence: u64) -> Said {
    Said::Failed { sequence, code: Code::BadMessage, scope: FailureScope::One }
}

#[test]
fn fields_are_in_the_record_the_log_the_live_message_and_the_queue() {
    let queue = QueueSettings { underlying_topic: Some("orders".into()), ..queue("jobs") };
    let mut pair = Pair::with(BrokerConfig { queues: vec![queue], ..sow_config([topic()]) });
    pair.client(1, "publisher");
    pair.client(2, "reader");
    pair.client(3, "worker");
    pair.subscribe(3, &consume(3, "jobs", 10));
    pair.subscribe(2, &subscribe(3, "orders"));
    pair.turn();
    pair.take(2);
    pair.publish(1, 1, "orders", &order(1, 5));
    pair.publish(1, 2, "orders", &order(2, 7));
    pair.publish(1, 3, "orders", &order(1, 3));
    pair.turn();
    let all = [whole(1, 5, 5), whole(2, 7, 7), whole(1, 3, -2)];
    let live = all.each_ref().map(|data| format!("+{data}"));
    assert_eq!(pair.take_rows(2), live);
    assert_eq!(pair.take_rows(3), live);
    assert_eq!(pair.records(2, query(5, "orders")), [whole(1, 3, -2), whole(2, 7, 7)]);
    pair.subscribe(2, &replay(4, "orders", "0"));
    pair.turn();
    assert_eq!(pair.take_rows(2), live);
    // A filter of a subscription sees the fields.
    let filtered = Subscribe { filter: Some("/change < 0"), ..subscribe(6, "orders") };
    pair.subscribe(2, &filtered);
    pair.publish(1, 4, "orders", &order(2, 1));
    pair.turn();
    let row = format!("+{}", whole(2, 1, -6));
    assert_eq!(pair.take_rows(2).iter().filter(|said| **said == row).count(), 3);
}

/// The example of the original's documentation.
#[test]
fn a_negative_quantity_is_replaced_by_the_previous_one() {
    let mut pair = with_topics([SowTopicSettings {
        preprocessing: vec![r#"CONCAT(/customer_id,"-",/order_id) as /order_key"#.into()],
        key: vec!["/order_key".into()],
        enrichment: vec!["IF(/qty < 0, /qty OF PREVIOUS, /qty) as /qty".into()],
        ..supplied("orders")
    }]);
    let published = |qty| format!(r#"{{"customer_id":"a","order_id":1,"qty":{qty}}}"#);
    let stored = |qty| [format!(r#"{{"customer_id":"a","order_id":1,"qty":{qty},"order_key":"a-1"}}"#)];
    for (sequence, (qty, result)) in [("-1", "null"), ("5", "5"), ("-2", "5")].into_iter().enumerate() {
        pair.publish(1, sequence as u64 + 1, "orders", &published(qty));
        assert_eq!(pair.records(2, query(5, "orders")), stored(result));
    }
}

#[test]
fn a_duplicate_is_not_enriched_again() {
    let mut pair = with_topics([topic()]);
    pair.publish(1, 1, "orders", &order(1, 5));
    pair.publish(1, 1, "orders", &order(1, 5));
    pair.turn();
    assert_eq!(pair.take(1), [Said::Persisted(1)]);
    assert_eq!(pair.records(2, query(5, "orders")), [whole(1, 5, 5)]);
    assert_eq!(pair.broker.stats().duplicate_count, 1);
}

#[test]
fn a_delta_gets_its_fields_before_it_is_merged() {
    let fields = ["/qty OF PREVIOUS AS /was", "COALESCE(/side, 'none') AS /sent_side"];
    let mut pair = with_topics([enriched(&fields)]);
    let delta = |sequence, data| Publish { is_delta: true, ..publish(sequence, "orders", data) };
    pair.send(1, &Command::Publish(delta(1, r#"{"id":1,"qty":5,"side":"buy"}"#)));
    let first = r#"{"id":1,"qty":5,"side":"buy","was":null,"sent_side":"buy"}"#;
    assert_eq!(pair.records(2, query(5, "orders")), [first]);
    // The expressions read the delta, which has no side.
    pair.send(1, &Command::Publish(delta(2, r#"{"id":1,"qty":8}"#)));
    let second = r#"{"id":1,"qty":8,"side":"buy","was":5,"sent_side":"none"}"#;
    assert_eq!(pair.records(2, query(5, "orders")), [second]);
    pair.publish(1, 3, "orders", r#"{"id":1,"qty":1}"#);
    assert_eq!(pair.records(2, query(5, "orders")), [r#"{"id":1,"qty":1,"was":8,"sent_side":"none"}"#]);
}

#[test]
fn a_record_that_was_deleted_or_whose_lifetime_ended_is_not_the_previous_one() {
    let expiration = TableExpiration::Enabled;
    let mut pair = with_topics([SowTopicSettings { expiration, ..enriched(&["/n OF PREVIOUS AS /was"]) }]);
    let first = publish(1, "orders", r#"{"id":1,"n":1}"#);
    pair.send(1, &Command::Publish(Publish { expiration_s: Some(1), ..first }));
    pair.turn();
    // Before the broker has a turn in which it removes the record.
    pair.now_ns += 2_000_000_000;
    pair.publish(1, 2, "orders", r#"{"id":1,"n":2}"#);
    assert_eq!(pair.records(2, query(5, "orders")), [r#"{"id":1,"n":2,"was":null}"#]);
    pair.delete(1, SowDelete { filter: Some("1 = 1"), ..delete(7, 3, "orders") });
    pair.publish(1, 4, "orders", r#"{"id":1,"n":4}"#);
    assert_eq!(pair.records(2, query(5, "orders")), [r#"{"id":1,"n":4,"was":null}"#]);
}

#[test]
fn a_query_finds_a_record_by_its_key_field_as_enrichment_wrote_it() {
    let topics = || [enriched(&["CONCAT('new-', /id) AS /id"])];
    let mut pair = with_topics(topics());
    pair.publish(1, 1, "orders", r#"{"id":"a","n":1}"#);
    pair.publish(1, 2, "orders", r#"{"id":"b","n":2}"#);
    pair.turn();
    let found =
        |pair: &mut Pair, filter| pair.records(2, Query { filter: Some(filter), ..query(5, "orders") });
    let check = |pair: &mut Pair| {
        assert_eq!(found(pair, "/id = 'new-a'"), [r#"{"id":"new-a","n":1}"#]);
        assert_eq!(found(pair, "/id IN ('new-b', 'b')"), [r#"{"id":"new-b","n":2}"#]);
        assert!(found(pair, "/id = 'a'").is_empty());
    };
    check(&mut pair);
    // Without enrichment, later records are found through their keys.
    let mut pair = crash(pair, sow_config([sow_topic("orders")]));
    check(&mut pair);
    pair.publish(1, 3, "orders", r#"{"id":"c","n":3}"#);
    pair.turn();
    assert_eq!(found(&mut pair, "/id = 'c'"), [r#"{"id":"c","n":3}"#]);
    check(&mut pair);
}

#[test]
fn expressions_read_the_key_the_topic_the_headers_and_the_time() {
    let fields =
        ["SOW_KEY() AS /key", "TOPIC_NAME() AS /topic", "CORRELATION_ID() AS /cause", "BOOKMARK() AS /b"];
    let enrichment = fields.map(str::to_owned).to_vec();
    let preprocessing =
        vec!["SOW_KEY() AS /early".into(), "UNIX_TIMESTAMP() = LAST_UPDATED() AS /now".into()];
    let mut pair = with_topics([SowTopicSettings { preprocessing, enrichment, ..supplied("orders") }]);
    let publish = Publish { key: b"a-1", correlation_id: b"c", ..publish(1, "orders", "{}") };
    pair.send(1, &Command::Publish(publish));
    let record = r#"{"early":null,"now":true,"key":"a-1","topic":"orders","cause":"c","b":null}"#;
    assert_eq!(pair.records(2, query(5, "orders")), [record]);
}

#[test]
fn a_message_that_cannot_get_its_fields_is_refused_and_refused_again() {
    let preprocessed = SowTopicSettings { preprocessing: vec!["1 AS /a".into()], ..supplied("orders") };
    let enriched = SowTopicSettings { enrichment: vec!["1 AS /a".into()], ..supplied("orders") };
    for topic in [preprocessed, enriched] {
        let mut pair = with_topics([topic]);
        for data in ["[1]", "7", r#"{"b":1"#, r#"{"b":1"#] {
            let sequence = if data.starts_with('{') { 2 } else { 1 };
            pair.send(1, &Command::Publish(Publish { key: b"a", ..publish(sequence, "orders", data) }));
            pair.turn();
            assert!(pair.take(1).contains(&bad(sequence)), "{data}");
        }
        assert_eq!(pair.records(2, query(5, "orders")), [""; 0]);
        assert_eq!(pair.broker.stats().duplicate_count, 0);
    }
}

#[test]
fn a_message_that_is_too_large_with_its_fields_is_refused() {
    let transport = TransportConfig { max_message_size: 40, ..TransportConfig::default() };
    let doubled = || enriched(&["CONCAT(/x, /x) AS /x"]);
    let mut pair = Pair::with(BrokerConfig { transports: vec![transport], ..sow_config([doubled()]) });
    pair.client(1, "publisher");
    pair.client(2, "reader");
    pair.publish(1, 1, "orders", r#"{"id":1,"x":"abcdefghijkl"}"#);
    pair.publish(1, 2, "orders", r#"{"id":1,"x":"abcdefghijklm"}"#);
    pair.turn();
    assert_eq!(pair.take(1), [Said::Persisted(1), bad(2)]);
    assert_eq!(pair.records(2, query(5, "orders")), [r#"{"id":1,"x":"abcdefghijklabcdefghijkl"}"#]);
}

#[test]
fn fields_that_take_too_much_effort_are_refused_and_later_messages_are_not() {
    let pattern = "REGEXP_REPLACE(/x, '(a|b)c', '')";
    let fields: Vec<String> = (0..60).map(|number| format!("{pattern} AS /f{number}")).collect();
    let fields: Vec<&str> = fields.iter().map(String::as_str).collect();
    let mut pair = with_topics([enriched(&fields)]);
    pair.publish(1, 1, "orders", &format!(r#"{{"id":1,"x":"{}"}}"#, "x".repeat(20_000)));
    pair.publish(1, 2, "orders", r#"{"id":2,"x":"xacx"}"#);
    pair.turn();
    let said = pair.take(1);
    assert!(said.contains(&bad(1)) && said.contains(&Said::Persisted(2)), "{said:?}");
    let records = pair.records(2, query(5, "orders"));
    assert!(records.len() == 1 && records[0].ends_with(r#""f59":"xx"}"#), "{records:?}");
}

#[test]
fn a_dead_letter_gets_the_fields_of_its_topic() {
    let letters = || SowTopicSettings {
        preprocessing: vec!["/message/order AS /id".into()],
        enrichment: vec!["COALESCE(/count OF PREVIOUS, 0) + 1 AS /count".into()],
        ..sow_topic("dead")
    };
    let jobs =
        || QueueSettings { dead_letter_topic: Some("dead".into()), max_cancels: Some(0), ..queue("jobs") };
    // With the lower limit, a dead letter is too large for its fields. It is a record without them.
    for (max_message_size, count) in [(1024, r#""count":2}"#), (100, r#""timestamp":1000000000000000000}"#)] {
        let transports = vec![TransportConfig { max_message_size, ..TransportConfig::default() }];
        let config = || BrokerConfig {
            queues: vec![jobs()],
            transports: transports.clone(),
            ..sow_config([letters()])
        };
        let mut pair = Pair::with(config());
        pair.client(1, "publisher");
        pair.client(2, "reader");
        pair.publish(1, 1, "jobs", r#"{"order":7}"#);
        pair.publish(1, 2, "jobs", r#"{"order":7}"#);
        pair.subscribe(2, &consume(3, "jobs", 10));
        pair.turn();
        let taken = pair.take_queued(2);
        pair.settle(2, "jobs", Verdict::Expire, &taken);
        pair.turn();
        let records = pair.records(2, query(5, "dead"));
        assert!(records.len() == 1 && records[0].ends_with(count), "{records:?}");
        pair.subscribe(2, &replay(4, "dead", "0"));
        pair.turn();
        assert_eq!(pair.take_rows(2).len(), 2);
        let mut pair = crash(pair, config());
        assert_eq!(pair.records(2, query(5, "dead")), records);
    }
}

#[test]
fn a_delete_by_data_finds_the_record_by_the_preprocessed_key() {
    let mut pair = with_topics([topic()]);
    pair.publish(1, 1, "orders", &order(1, 5));
    pair.publish(1, 2, "orders", &order(2, 5));
    let data = order(1, 0);
    assert_eq!(pair.delete(1, SowDelete { data: Some(data.as_bytes()), ..delete(7, 3, "orders") }), 1);
    assert_eq!(pair.records(2, query(5, "orders")), [whole(2, 5, 5)]);
}

#[test]
fn a_restart_computes_no_fields_again() {
    let mut pair = with_topics([topic()]);
    pair.publish(1, 1, "orders", &order(1, 5));
    pair.publish(1, 2, "orders", &order(1, 8));
    pair.turn();
    // The first one has the log only, the second one has a snapshot.
    for is_crash in [true, false] {
        let Pair { broker, disk, .. } = pair;
        match is_crash {
            true => broker.abandon(),
            false => broker.close().unwrap(),
        }
        // Other fields: those of the messages in the log stay.
        let changed = SowTopicSettings { enrichment: vec!["0 AS /change".into()], ..topic() };
        pair = Pair::on(disk, sow_config([changed]));
        pair.client(1, "publisher");
        pair.client(2, "reader");
        assert_eq!(pair.records(2, query(5, "orders")), [whole(1, 8, 3)]);
    }
    pair.publish(1, 3, "orders", &order(1, 9));
    pair.pass(Duration::from_secs(1));
    assert_eq!(pair.records(2, query(5, "orders")), [whole(1, 9, 0)]);
}

#[test]
fn messages_from_before_get_the_preprocessed_key_and_keep_their_bytes() {
    let mut pair = Pair::with(sow_config([]));
    pair.client(1, "publisher");
    for (sequence, data) in [(1, order(1, 5)), (2, order(2, 5)), (3, order(1, 6))] {
        pair.publish(1, sequence, "orders", &data);
    }
    pair.turn();
    let Pair { broker, disk, .. } = pair;
    broker.close().unwrap();
    let mut pair = Pair::on(disk, sow_config([topic()]));
    pair.client(1, "publisher");
    pair.client(2, "reader");
    assert_eq!(pair.records(2, query(5, "orders")), [order(1, 6), order(2, 5)]);
    pair.publish(1, 4, "orders", &order(1, 9));
    assert_eq!(pair.records(2, query(5, "orders")), [whole(1, 9, 3), order(2, 5)]);
}
