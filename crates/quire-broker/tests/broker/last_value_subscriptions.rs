//! Query and subscribe, and `oof` (docs/last-values.md section 4).

use std::time::Duration;

use quire_broker::{SowTopicSettings, TableExpiration, TransportConfig};
use quire_command::*;

use crate::last_value_pair::*;
use crate::pair::*;

#[test]
fn the_records_come_first_and_then_every_later_publish() {
    let mut pair = with_topics([sow_topic("orders")]);
    pair.publish(1, 1, "orders", r#"{"id":1,"n":1}"#);
    pair.subscribe(2, &sow(3, "orders"));
    pair.publish(1, 2, "orders", r#"{"id":1,"n":2}"#);
    pair.turn();
    pair.publish(1, 3, "orders", r#"{"id":2,"n":3}"#);
    pair.turn();
    let said = pair.take(2);
    assert_eq!(said[0], ack(AckKind::Processed, 3, 3));
    assert_eq!(said[2], ack(AckKind::Completed, 3, 3));
    let rows: Vec<_> = said.into_iter().filter_map(short).collect();
    assert_eq!(rows, [r#"={"id":1,"n":1}"#, r#"+{"id":1,"n":2}"#, r#"+{"id":2,"n":3}"#]);
    assert_eq!(pair.clients[&2].total, 1);
}

#[test]
fn messages_wait_until_a_slow_connection_has_taken_the_records() {
    let mut pair = with_topics([sow_topic("orders")]);
    let filler = "x".repeat(100_000);
    for sequence in 1..=60 {
        pair.publish(1, sequence, "orders", &format!(r#"{{"id":{sequence},"x":"{filler}"}}"#));
        pair.turn();
    }
    pair.set_writable(2, false);
    pair.subscribe(2, &sow(3, "orders"));
    pair.turn();
    pair.publish(1, 61, "orders", r#"{"id":60,"n":"new"}"#);
    pair.delete(1, SowDelete { keys: None, filter: Some("/id = 59"), ..delete(9, 62, "orders") });
    pair.set_writable(2, true);
    pair.turn();
    let rows = pair.take_rows(2);
    assert_eq!(rows.len(), 62);
    assert!(rows[..60].iter().all(|row| row.starts_with('=')));
    assert_eq!(rows[60], r#"+{"id":60,"n":"new"}"#);
    assert!(rows[61].starts_with(r#"-Deleted {"id":59"#));
}

#[test]
fn messages_that_wait_for_the_records_count_in_max_client_backlog() {
    let transport = TransportConfig { max_client_backlog: 100_000, ..TransportConfig::default() };
    let config = sow_config([sow_topic("orders")]);
    let mut pair = Pair::with(quire_broker::BrokerConfig { transports: vec![transport], ..config });
    pair.client(1, "publisher");
    pair.client(2, "reader");
    let filler = "x".repeat(100_000);
    for sequence in 1..=30 {
        pair.publish(1, sequence, "orders", &format!(r#"{{"id":{sequence},"x":"{filler}"}}"#));
        pair.turn();
    }
    pair.set_writable(2, false);
    pair.subscribe(2, &sow(3, "orders"));
    pair.turn();
    pair.publish(1, 31, "orders", &format!(r#"{{"id":31,"x":"{filler}"}}"#));
    pair.turn();
    assert!(pair.clients[&2].is_closed);
    assert_eq!(pair.records(1, query(5, "orders")).len(), 31);
}

#[test]
fn a_record_that_leaves_the_filter_gives_oof_match() {
    let mut pair = with_topics([sow_topic("orders")]);
    pair.subscribe(2, &Subscribe { filter: Some("/n > 1"), ..sow(3, "orders") });
    pair.subscribe(
        2,
        &Subscribe { options: SubscribeOptions::SOW, filter: Some("/n > 1"), ..sow(4, "orders") },
    );
    pair.turn();
    pair.take(2);
    for (sequence, n) in [(1, 1), (2, 2), (3, 3), (4, 0), (5, 1), (6, 2)] {
        pair.publish(1, sequence, "orders", &format!(r#"{{"id":1,"n":{n}}}"#));
    }
    pair.turn();
    let rows = |number| {
        move |said| {
            matches!(&said, Said::Row(row) if row.subscription == number).then(|| short(said)).flatten()
        }
    };
    let said = pair.take(2);
    let with_oof: Vec<_> = said.clone().into_iter().filter_map(rows(3)).collect();
    assert_eq!(
        with_oof,
        [r#"+{"id":1,"n":2}"#, r#"+{"id":1,"n":3}"#, r#"-Match {"id":1,"n":0}"#, r#"+{"id":1,"n":2}"#]
    );
    let without: Vec<_> = said.into_iter().filter_map(rows(4)).collect();
    assert_eq!(without, [r#"+{"id":1,"n":2}"#, r#"+{"id":1,"n":3}"#, r#"+{"id":1,"n":2}"#]);
}

#[test]
fn a_deleted_record_gives_oof_with_the_last_message() {
    let mut pair = with_topics([sow_topic("orders")]);
    pair.publish(1, 1, "orders", r#"{"id":1,"n":1}"#);
    pair.publish(1, 2, "orders", r#"{"id":2,"n":2}"#);
    pair.subscribe(2, &Subscribe { filter: Some("/n < 2"), ..sow(3, "orders") });
    pair.turn();
    pair.take(2);
    assert_eq!(pair.delete(1, SowDelete { filter: Some("1 = 1"), ..delete(7, 3, "orders") }), 2);
    assert_eq!(pair.take_rows(2), [r#"-Deleted {"id":1,"n":1}"#]);
}

#[test]
fn an_expired_record_gives_oof_within_a_tenth_of_a_second() {
    let topic =
        SowTopicSettings { expiration: TableExpiration::AfterNs(1_000_000_000), ..sow_topic("orders") };
    let mut pair = with_topics([topic]);
    pair.subscribe(2, &sow(3, "orders"));
    pair.turn();
    for (sequence, after_ms) in [(1, 0), (2, 30), (3, 50)] {
        pair.pass(Duration::from_millis(after_ms));
        pair.publish(1, sequence, "orders", &format!(r#"{{"id":{sequence}}}"#));
        pair.turn();
    }
    pair.take(2);
    let begin_ns = pair.now_ns;
    pair.pass(Duration::from_secs(2));
    let said: Vec<_> =
        pair.take_said(2).into_iter().filter_map(|(at, said)| Some((at, short(said)?))).collect();
    let expected = [(1, 920), (2, 950), (3, 1000)];
    assert_eq!(said.len(), 3, "{said:?}");
    for ((at, row), (id, due_ms)) in said.into_iter().zip(expected) {
        assert_eq!(row, format!(r#"-Expired {{"id":{id}}}"#));
        let late_ms = (at - begin_ns) / 1_000_000 - due_ms;
        assert!(late_ms <= 100, "{id}: {late_ms} ms late");
    }
}

#[test]
fn keys_restrict_the_records_and_the_messages() {
    let mut pair = with_topics([supplied("orders")]);
    let put = |pair: &mut Pair, sequence, key: &str, data: &str| {
        pair.send(1, &Command::Publish(Publish { key: key.as_bytes(), ..publish(sequence, "orders", data) }));
        pair.turn();
    };
    put(&mut pair, 1, "a", "1");
    put(&mut pair, 2, "b", "2");
    let keys = Keys::from_bytes(b"\x01a\x01c");
    pair.subscribe(2, &Subscribe { keys, ..sow(3, "orders") });
    pair.turn();
    for (sequence, key) in [(3, "a"), (4, "b"), (5, "c")] {
        put(&mut pair, sequence, key, &sequence.to_string());
    }
    pair.delete(1, SowDelete { filter: Some("1 = 1"), ..delete(7, 6, "orders") });
    let mut rows = pair.take_rows(2);
    rows[3..].sort();
    assert_eq!(rows, ["=1", "+3", "+5", "-Deleted 3", "-Deleted 5"]);
}

#[test]
fn top_n_limits_the_records_and_not_the_messages() {
    let mut pair = with_topics([sow_topic("orders")]);
    for id in 1..=3 {
        pair.publish(1, id, "orders", &format!(r#"{{"id":{id}}}"#));
    }
    pair.subscribe(2, &Subscribe { top_n: Some(1), order_by: Some("/id DESC"), ..sow(3, "orders") });
    pair.turn();
    pair.publish(1, 4, "orders", r#"{"id":1}"#);
    pair.turn();
    assert_eq!(pair.take_rows(2), [r#"={"id":3}"#, r#"+{"id":1}"#]);
    assert_eq!(pair.clients[&2].total, 3);
}

#[test]
fn a_pattern_gets_the_records_of_all_topics_and_then_all_messages() {
    let mut pair = with_topics([sow_topic("a/1"), sow_topic("a/2")]);
    pair.publish(1, 1, "a/1", r#"{"id":1}"#);
    pair.publish(1, 2, "a/2", r#"{"id":2}"#);
    pair.subscribe(2, &sow(3, "^a/"));
    pair.publish(1, 3, "a/plain", r#"{"id":3}"#);
    pair.turn();
    let said = pair.take(2);
    let rows: Vec<_> = said[1..3].iter().cloned().filter_map(short).collect();
    assert_eq!(rows, [r#"={"id":1}"#, r#"={"id":2}"#]);
    assert_eq!(said[3], ack(AckKind::Completed, 3, 3));
    assert!(matches!(&said[4..], [Said::Message { topic, .. }] if topic == "a/plain"), "{said:?}");
}

#[test]
fn an_unsubscribed_or_replaced_subscription_gets_nothing_more() {
    let mut pair = with_topics([sow_topic("orders")]);
    pair.publish(1, 1, "orders", r#"{"id":1}"#);
    pair.subscribe(2, &sow(3, "orders"));
    pair.turn();
    pair.take(2);
    pair.subscribe(2, &Subscribe { options: SubscribeOptions::REPLACE, ..subscribe(3, "orders") });
    pair.turn();
    assert_eq!(pair.take(2), [refused(Code::BadOption, 3, 3)]);
    let unsubscribe = Unsubscribe { command: 4, acks: Acks::PROCESSED, subscription: 3, begun: None };
    pair.send(2, &Command::Unsubscribe(unsubscribe));
    pair.turn();
    pair.take(2);
    pair.publish(1, 2, "orders", r#"{"id":1}"#);
    pair.delete(1, SowDelete { filter: Some("1 = 1"), ..delete(7, 3, "orders") });
    assert_eq!(pair.take(2), []);
}

#[test]
fn a_message_that_waits_for_a_costly_filter_keeps_its_place_before_oof() {
    let mut pair = with_topics([sow_topic("orders")]);
    pair.broker.set_turn_effort(1);
    pair.reads_at_once = false;
    pair.subscribe(2, &Subscribe { filter: Some("/n > 1"), ..sow(3, "orders") });
    pair.turn();
    for (sequence, n) in [(1, 2), (2, 1)] {
        pair.publish(1, sequence, "orders", &format!(r#"{{"id":1,"n":{n}}}"#));
        pair.turn();
    }
    assert_eq!(pair.take_rows(2), Vec::<String>::new());
    pair.reads_at_once = true;
    pair.turn();
    assert_eq!(pair.take_rows(2), [r#"+{"id":1,"n":2}"#, r#"-Match {"id":1,"n":1}"#]);
}

#[test]
fn a_record_that_expired_before_the_subscription_gives_no_oof() {
    let topic =
        SowTopicSettings { expiration: TableExpiration::AfterNs(1_000_000_000), ..sow_topic("orders") };
    let mut pair = with_topics([topic]);
    for (sequence, after_ms) in [(1, 0), (2, 50), (3, 1)] {
        pair.pass(Duration::from_millis(after_ms));
        pair.publish(1, sequence, "orders", &format!(r#"{{"id":{sequence}}}"#));
        pair.turn();
    }
    // The first record is removed at its end, the others up to 100 ms later.
    pair.pass(Duration::from_millis(1010));
    pair.subscribe(2, &Subscribe { filter: Some("/n IS NULL"), ..sow(3, "orders") });
    pair.publish(1, 4, "orders", r#"{"id":3,"n":1}"#);
    pair.turn();
    pair.pass(Duration::from_millis(200));
    assert_eq!(pair.take_rows(2), Vec::<String>::new());
    assert_eq!(pair.clients[&2].total, 0);
}

#[test]
fn a_record_gives_oof_although_the_clock_was_set_back_behind_the_start_of_the_subscription() {
    let topic =
        SowTopicSettings { expiration: TableExpiration::AfterNs(1_000_000_000), ..sow_topic("orders") };
    let mut pair = with_topics([topic]);
    pair.publish(1, 1, "orders", r#"{"id":1}"#);
    pair.turn();
    pair.wall_ahead_ns = 3_600_000_000_000;
    pair.subscribe(2, &sow(3, "orders"));
    pair.turn();
    pair.take(2);
    pair.wall_ahead_ns = 0;
    pair.publish(1, 2, "orders", r#"{"id":2}"#);
    pair.turn();
    assert_eq!(pair.delete(1, SowDelete { filter: Some("/id = 2"), ..delete(7, 3, "orders") }), 1);
    assert_eq!(pair.take_rows(2), [r#"+{"id":2}"#, r#"-Deleted {"id":2}"#]);
}
