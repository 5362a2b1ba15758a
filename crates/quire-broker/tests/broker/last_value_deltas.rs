//! Delta subscriptions: of each change of a record only the fields that differ (docs/last-values.md
//! section 4).

use std::time::Duration;

use quire_broker::{RecordedTopic, SowTopicSettings, TableExpiration};
use quire_command::*;
use xxhash_rust::xxh3::xxh3_128;

use crate::last_value_pair::*;
use crate::pair::*;
use crate::queue_pair::queue;

fn publish_all(pair: &mut Pair, first: u64, messages: &[&str]) {
    for (sequence, data) in (first..).zip(messages) {
        pair.publish(1, sequence, "orders", data);
    }
    pair.turn();
}

fn no_empties(subscribe: Subscribe<'_>) -> Subscribe<'_> {
    Subscribe { options: subscribe.options.and(SubscribeOptions::NO_EMPTIES), ..subscribe }
}

/// The messages with keys of one subscription.
pub fn rows_of(said: &[Said], number: u32) -> Vec<String> {
    let is_meant = |said: &&Said| matches!(said, Said::Row(row) if row.subscription == number);
    said.iter().filter(is_meant).cloned().filter_map(short).collect()
}

#[test]
fn a_change_has_the_fields_that_differ_and_the_key_fields() {
    let mut pair = with_topics([sow_topic("orders")]);
    publish_all(&mut pair, 1, &[r#"{"id":1,"a":1,"b":{"c":1,"d":2},"e":[1,2]}"#]);
    pair.subscribe(2, &sow_delta(3, "orders"));
    pair.subscribe(2, &delta(4, "orders"));
    pair.subscribe(2, &no_empties(sow_delta(5, "orders")));
    publish_all(
        &mut pair,
        2,
        &[
            r#"{"id":1,"a":2,"b":{"c":1,"d":2},"e":[1,2]}"#,
            r#"{"id":1,"a":2,"b":{"c":1,"d":3},"e":[1,3],"f":true}"#,
            r#"{"id":1, "a":2,"b":{"c":1,"d":3},"e":[1,3],"f":true}"#,
            r#"{"id":1,"a":2,"b":{"c":1}}"#,
            r#"{"id":2,"a":2}"#,
        ],
    );
    let said = pair.take(2);
    let changes = [
        r#"~{"id":1,"a":2}"#,
        r#"~{"id":1,"b":{"d":3},"e":[1,3],"f":true}"#,
        r#"~{"id":1}"#,
        r#"~{"id":1,"b":{"d":null},"e":null,"f":null}"#,
        r#"+{"id":2,"a":2}"#,
    ];
    let record = r#"={"id":1,"a":1,"b":{"c":1,"d":2},"e":[1,2]}"#;
    assert_eq!(rows_of(&said, 3), [&[record][..], &changes[..]].concat());
    assert_eq!(rows_of(&said, 4), changes);
    assert_eq!(rows_of(&said, 5), [&[record][..], &changes[..2], &changes[3..]].concat());
}

#[test]
fn a_difference_does_not_depend_on_the_way_of_the_publish() {
    let mut pair = with_topics([sow_topic("orders")]);
    pair.subscribe(2, &delta(3, "orders"));
    publish_all(&mut pair, 1, &[r#"{"id":1,"a":1,"b":1}"#]);
    let data = r#"{"id":1,"a":1,"b":2}"#;
    pair.send(1, &Command::Publish(Publish { is_delta: true, ..publish(2, "orders", data) }));
    pair.turn();
    assert_eq!(pair.take_rows(2), [r#"+{"id":1,"a":1,"b":1}"#, r#"~{"id":1,"b":2}"#]);
}

#[test]
fn a_record_that_enters_the_view_is_sent_whole() {
    let mut pair = with_topics([sow_topic("orders")]);
    pair.subscribe(2, &Subscribe { filter: Some("/n > 1"), ..sow_delta(3, "orders") });
    pair.subscribe(2, &Subscribe { filter: Some("/n > 1"), ..delta(4, "orders") });
    pair.turn();
    let messages =
        [(1, 1), (2, 2), (3, 3), (4, 0), (5, 5)].map(|(m, n)| format!(r#"{{"id":1,"n":{n},"m":{m}}}"#));
    publish_all(&mut pair, 1, &messages.each_ref().map(|data| &**data));
    pair.delete(1, SowDelete { filter: Some("1 = 1"), ..delete(7, 6, "orders") });
    publish_all(&mut pair, 7, &[r#"{"id":1,"n":7,"m":7}"#]);
    let said = pair.take(2);
    let entered = [r#"+{"id":1,"n":2,"m":2}"#, r#"~{"id":1,"n":3,"m":3}"#];
    let entered_again = r#"+{"id":1,"n":5,"m":5}"#;
    let left = [r#"-Match {"id":1,"n":0,"m":4}"#, entered_again, r#"-Deleted {"id":1,"n":5,"m":5}"#];
    let new = r#"+{"id":1,"n":7,"m":7}"#;
    assert_eq!(rows_of(&said, 3), [&entered[..], &left[..], &[new]].concat());
    assert_eq!(rows_of(&said, 4), [&entered[..], &[entered_again, new]].concat());
}

#[test]
fn a_delta_subscription_without_a_query_can_ask_for_oof() {
    let mut pair = with_topics([sow_topic("orders")]);
    publish_all(&mut pair, 1, &[r#"{"id":1,"n":2}"#]);
    let options = SubscribeOptions::DELTA.and(SubscribeOptions::OOF);
    pair.subscribe(2, &Subscribe { options, filter: Some("/n > 1"), ..delta(3, "orders") });
    publish_all(&mut pair, 2, &[r#"{"id":1,"n":1}"#]);
    let said = pair.take(2);
    assert_eq!(said[0], ack(AckKind::Processed, 3, 3));
    assert_eq!(rows_of(&said, 3), [r#"-Match {"id":1,"n":1}"#]);
}

#[test]
fn a_select_list_keeps_the_key_fields_of_a_difference() {
    let mut pair = with_topics([sow_topic("orders")]);
    publish_all(&mut pair, 1, &[r#"{"id":1,"a":1,"b":1}"#]);
    let select = Some("-/,+/a");
    pair.subscribe(2, &Subscribe { select, ..sow_delta(3, "orders") });
    pair.subscribe(2, &no_empties(Subscribe { select, ..sow_delta(4, "orders") }));
    publish_all(&mut pair, 2, &[r#"{"id":1,"a":1,"b":2}"#, r#"{"id":1,"a":2,"b":2}"#, r#"{"id":1,"b":2}"#]);
    let said = pair.take(2);
    let changes = [r#"~{"id":1}"#, r#"~{"id":1,"a":2}"#, r#"~{"id":1,"a":null}"#];
    assert_eq!(rows_of(&said, 3), [&[r#"={"a":1}"#][..], &changes[..]].concat());
    assert_eq!(rows_of(&said, 4), [&[r#"={"a":1}"#][..], &changes[1..]].concat());
    let hash = |data: &str| MessageKind::Delta(RecordHash(xxh3_128(data.as_bytes()).to_le_bytes()));
    let kinds = said.iter().filter_map(|said| match said {
        Said::Row(row) if row.subscription == 3 => Some(row.kind),
        _ => None,
    });
    let whole = [hash(r#"{"a":1}"#), hash(r#"{"a":2}"#), hash("{}")];
    assert_eq!(kinds.skip(1).collect::<Vec<_>>(), whole);
}

#[test]
fn the_hash_of_a_difference_is_that_of_the_whole_message() {
    let mut pair = with_topics([sow_topic("orders")]);
    let changed = r#"{"id":1, "a":2}"#;
    pair.subscribe(2, &delta(3, "orders"));
    publish_all(&mut pair, 1, &[r#"{"id":1,"a":1}"#, changed]);
    let kinds: Vec<_> = pair
        .take(2)
        .into_iter()
        .filter_map(|said| if let Said::Row(row) = said { Some(row.kind) } else { None })
        .collect();
    let hash = RecordHash(xxh3_128(changed.as_bytes()).to_le_bytes());
    assert_eq!(kinds, [MessageKind::Publish, MessageKind::Delta(hash)]);
}

#[test]
fn messages_without_a_difference_are_sent_whole() {
    let binary = SowTopicSettings { message_type: "binary".into(), ..supplied("orders") };
    for (topic, data) in [(supplied("orders"), ["[1]", "[2]", "[2]"]), (binary, ["x", "y", "y"])] {
        let mut config = sow_config([]);
        config.transaction_log.topics = vec![RecordedTopic::new("^", &topic.message_type)];
        config.sow_topics = vec![topic];
        let mut pair = Pair::with(config);
        pair.client(1, "publisher");
        pair.client(2, "reader");
        pair.subscribe(2, &delta(3, "orders"));
        pair.subscribe(2, &no_empties(delta(4, "orders")));
        for (sequence, data) in (1..).zip(data) {
            pair.send(1, &Command::Publish(Publish { key: b"k", ..publish(sequence, "orders", data) }));
        }
        pair.turn();
        let said = pair.take(2);
        assert_eq!(rows_of(&said, 3), data.map(|data| format!("+{data}")));
        assert_eq!(rows_of(&said, 4), [data[0], data[1]].map(|data| format!("+{data}")));
    }
}

#[test]
fn a_record_with_a_supplied_key_has_no_key_fields() {
    let mut pair = with_topics([supplied("orders")]);
    pair.subscribe(2, &sow_delta(3, "orders"));
    for (sequence, data) in (1..).zip([r#"{"a":1,"b":1}"#, r#"{"a":1,"b":2}"#, r#"{"a":1,"b":2}"#]) {
        pair.send(1, &Command::Publish(Publish { key: b"k", ..publish(sequence, "orders", data) }));
    }
    pair.turn();
    assert_eq!(pair.take_rows(2), [r#"+{"a":1,"b":1}"#, r#"~{"b":2}"#, "~{}"]);
}

#[test]
fn a_record_that_expired_before_the_subscription_was_not_in_its_view() {
    let topic =
        SowTopicSettings { expiration: TableExpiration::AfterNs(1_000_000_000), ..sow_topic("orders") };
    let mut pair = with_topics([topic]);
    for (sequence, after_ms) in [(1, 0), (2, 50), (3, 1)] {
        pair.pass(Duration::from_millis(after_ms));
        publish_all(&mut pair, sequence, &[&format!(r#"{{"id":{sequence},"n":1}}"#)]);
    }
    // The first record is removed at its end, the others up to 100 ms later.
    pair.pass(Duration::from_millis(1010));
    pair.subscribe(2, &sow_delta(3, "orders"));
    publish_all(&mut pair, 4, &[r#"{"id":3,"n":1}"#]);
    assert_eq!(pair.take_rows(2), [r#"+{"id":3,"n":1}"#]);
}

#[test]
fn changes_during_the_query_come_after_the_records() {
    let mut pair = with_topics([sow_topic("orders")]);
    let filler = "x".repeat(100_000);
    for sequence in 1..=60 {
        publish_all(&mut pair, sequence, &[&format!(r#"{{"id":{sequence},"n":1,"x":"{filler}"}}"#)]);
    }
    pair.set_writable(2, false);
    pair.subscribe(2, &sow_delta(3, "orders"));
    pair.turn();
    publish_all(&mut pair, 61, &[&format!(r#"{{"id":60,"n":2,"x":"{filler}"}}"#)]);
    pair.set_writable(2, true);
    pair.turn();
    let rows = pair.take_rows(2);
    assert!(rows[..60].iter().all(|row| row.starts_with('=')));
    assert_eq!(rows[60..], [r#"~{"id":60,"n":2}"#]);
}

#[test]
fn a_pattern_has_the_difference_of_each_topic() {
    let mut pair = with_topics([sow_topic("a/1"), supplied("a/2")]);
    pair.subscribe(2, &sow_delta(3, "^a/"));
    pair.publish(1, 1, "a/1", r#"{"id":1,"n":1}"#);
    pair.send(1, &Command::Publish(Publish { key: b"k", ..publish(2, "a/2", r#"{"id":1,"n":1}"#) }));
    pair.publish(1, 3, "a/1", r#"{"id":1,"n":2}"#);
    pair.send(1, &Command::Publish(Publish { key: b"k", ..publish(4, "a/2", r#"{"id":1,"n":2}"#) }));
    pair.publish(1, 5, "a/plain", r#"{"id":1}"#);
    pair.turn();
    let said = pair.take(2);
    let whole = r#"+{"id":1,"n":1}"#;
    assert_eq!(rows_of(&said, 3), [whole, whole, r#"~{"id":1,"n":2}"#, r#"~{"n":2}"#]);
    assert!(matches!(said.last(), Some(Said::Message { topic, .. }) if topic == "a/plain"), "{said:?}");
}

#[test]
fn a_costly_filter_of_a_delta_subscription_is_decided_at_once() {
    let mut pair = with_topics([sow_topic("orders")]);
    pair.broker.set_turn_effort(1);
    pair.reads_at_once = false;
    pair.subscribe(2, &Subscribe { filter: Some("/n > 1"), ..sow_delta(3, "orders") });
    pair.turn();
    let messages = [r#"{"id":1,"n":2}"#, r#"{"id":1,"n":3,"a":1}"#, r#"{"id":1,"n":1}"#];
    publish_all(&mut pair, 1, &messages);
    let rows = [r#"+{"id":1,"n":2}"#, r#"~{"id":1,"n":3,"a":1}"#, r#"-Match {"id":1,"n":1}"#];
    assert_eq!(pair.take_rows(2), rows);
}

#[test]
fn a_filter_above_the_limit_of_effort_ends_the_subscription() {
    let mut pair = with_topics([supplied("orders")]);
    pair.broker.set_turn_effort(1);
    let patterns: Vec<_> = (0..99).map(|n| format!("/a LIKE 'x{n}y$'")).collect();
    let filter = format!("/k = 1 OR {}", patterns.join(" OR "));
    pair.subscribe(2, &Subscribe { filter: Some(&filter), ..delta(3, "orders") });
    let message = |n: u64| format!(r#"{{"n":{n},"a":"{}"}}"#, "x".repeat(1_000_000));
    for sequence in 1..=2 {
        let data = message(sequence);
        let publish = Publish { key: b"k", ..publish(sequence, "orders", &data) };
        pair.send(1, &Command::Publish(publish));
        pair.turn();
    }
    let said = pair.take(2);
    assert!(matches!(said.last(), Some(Said::Ended { code: Code::LimitExceeded, .. })), "{said:?}");
}

#[test]
fn a_delta_subscription_to_a_topic_without_last_values_is_an_ordinary_one() {
    let mut pair = with_topics([sow_topic("orders")]);
    pair.subscribe(2, &delta(3, "other"));
    pair.subscribe(2, &sow_delta(4, "other"));
    for (sequence, data) in (1..).zip([r#"{"id":1,"n":1}"#, r#"{"id":1,"n":2}"#]) {
        pair.publish(1, sequence, "other", data);
    }
    pair.turn();
    assert_eq!(pair.take_data(2).len(), 4);
}

#[test]
fn a_subscription_that_has_ended_leaves_the_topic_without_delta_subscriptions() {
    let mut pair = with_topics([sow_topic("orders")]);
    for number in 3..6 {
        pair.subscribe(2, &delta(number, "orders"));
        pair.turn();
        let unsubscribe =
            Unsubscribe { command: 9, acks: Acks::PROCESSED, subscription: number, begun: None };
        pair.send(2, &Command::Unsubscribe(unsubscribe));
    }
    pair.subscribe(2, &delta(7, "orders"));
    pair.turn();
    pair.take(2);
    publish_all(&mut pair, 1, &[r#"{"id":1,"n":1}"#, r#"{"id":1,"n":2}"#]);
    assert_eq!(pair.take_rows(2), [r#"+{"id":1,"n":1}"#, r#"~{"id":1,"n":2}"#]);
}

#[test]
fn options_that_do_not_go_with_delta_are_refused() {
    let mut config = sow_config([sow_topic("orders")]);
    config.queues = vec![queue("JOBS")];
    let mut pair = Pair::with(config);
    pair.client(2, "reader");
    let no_empties = SubscribeOptions::NO_EMPTIES;
    for refused_subscribe in [
        Subscribe { options: no_empties, ..subscribe(3, "orders") },
        Subscribe { options: SubscribeOptions::SOW.and(no_empties), ..subscribe(3, "orders") },
        Subscribe { bookmark: Some("0"), ..delta(3, "orders") },
        Subscribe { conflation_ns: Some(10_000_000), conflation_key: Some("/id"), ..delta(3, "orders") },
        Subscribe { top_n: Some(1), ..delta(3, "orders") },
        Subscribe { keys: Keys::from_bytes(b"\x01a"), ..delta(3, "orders") },
        delta(3, "JOBS"),
        sow_delta(3, "JOBS"),
    ] {
        pair.subscribe(2, &refused_subscribe);
        pair.turn();
        assert_eq!(pair.take(2), [refused(Code::BadOption, 3, 3)], "{refused_subscribe:?}");
    }
}
