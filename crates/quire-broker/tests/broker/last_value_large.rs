//! Large messages: another thread prepares them, and only their connection waits
//! (docs/last-values.md section 11).

use quire_broker::{BrokerConfig, RecordedTopic, SowTopicSettings, TransportConfig};
use quire_command::*;

use crate::last_value_deltas::rows_of;
use crate::last_value_pair::*;
use crate::last_value_restarts::crash;
use crate::pair::*;

/// Reads wait, and each message is large.
fn waiting(topics: impl IntoIterator<Item = SowTopicSettings>) -> Pair {
    let mut pair = with_topics(topics);
    pair.client(3, "other");
    pair.broker.set_turn_size(1);
    pair.reads_at_once = false;
    pair
}

/// With a field that counts from the record before.
fn counted() -> SowTopicSettings {
    SowTopicSettings {
        enrichment: vec!["COALESCE(/c OF PREVIOUS, 0) + 1 AS /c".into()],
        ..sow_topic("orders")
    }
}

fn records(pair: &mut Pair) -> Vec<String> {
    pair.reads_at_once = true;
    pair.turn();
    let records = pair.records(2, query(900, "orders"));
    pair.reads_at_once = false;
    records
}

fn delta_of(sequence: u64, data: &str) -> Publish<'_> {
    Publish { is_delta: true, ..publish(sequence, "orders", data) }
}

fn bad(sequence: u64) -> Said {
    Said::Failed { sequence, code: Code::BadMessage, scope: FailureScope::One }
}

/// Runs the reads of one turn.
fn step(pair: &mut Pair) {
    pair.one_turn();
    pair.run_reads();
    pair.one_turn();
}

#[test]
fn the_connection_of_a_large_message_waits_and_the_others_do_not() {
    let mut pair = waiting([sow_topic("orders"), sow_topic("others")]);
    pair.subscribe(2, &subscribe(3, "^"));
    pair.turn();
    pair.take(2);
    pair.publish(1, 1, "orders", r#"{"id":1,"n":1}"#);
    pair.publish(1, 2, "plain", "after it");
    pair.publish(3, 1, "plain", "of another");
    pair.turn();
    assert_eq!(pair.take_data(2), ["of another"]);
    pair.reads_at_once = true;
    pair.turn();
    let said = pair.take(2);
    assert_eq!(rows_of(&said, 3), [r#"+{"id":1,"n":1}"#]);
    assert!(matches!(said.last(), Some(Said::Message { data, .. }) if data == "after it"), "{said:?}");
}

#[test]
fn a_large_batch_is_taken_in_order_and_acknowledged() {
    let mut pair = waiting([counted()]);
    let messages: Vec<_> = (0..5).map(|n| format!(r#"{{"id":1,"n":{n}}}"#)).collect();
    for (sequence, data) in (1..).zip(&messages) {
        pair.publish(1, sequence, "orders", data);
    }
    assert_eq!(records(&mut pair), [r#"{"id":1,"n":4,"c":5}"#]);
    assert!(pair.take(1).contains(&Said::Persisted(5)));
}

#[test]
fn a_record_that_changes_while_a_large_delta_is_prepared_is_read_again() {
    let mut pair = waiting([counted()]);
    pair.publish(1, 1, "orders", r#"{"id":1,"a":1}"#);
    assert_eq!(records(&mut pair), [r#"{"id":1,"a":1,"c":1}"#]);
    pair.send(1, &Command::Publish(delta_of(2, r#"{"id":1,"b":2}"#)));
    pair.send(3, &Command::Publish(delta_of(1, r#"{"id":1,"d":3}"#)));
    // Both have copied the same record.
    step(&mut pair);
    step(&mut pair);
    assert_eq!(records(&mut pair), [r#"{"id":1,"a":1,"c":3,"b":2,"d":3}"#]);
}

#[test]
fn a_record_that_is_deleted_while_a_large_delta_is_prepared_is_gone() {
    let mut pair = waiting([counted()]);
    pair.publish(1, 1, "orders", r#"{"id":1,"a":1}"#);
    records(&mut pair);
    pair.send(1, &Command::Publish(delta_of(2, r#"{"id":1,"b":2}"#)));
    step(&mut pair);
    pair.send(3, &Command::SowDelete(SowDelete { filter: Some("1 = 1"), ..delete(900, 1, "orders") }));
    while pair.broker.next_timeout().is_some_and(|at| at.0 <= pair.now_ns) {
        pair.one_turn();
    }
    assert_eq!(pair.clients[&3].said.last(), Some(&ack(AckKind::Processed, 900, 0)));
    assert_eq!(records(&mut pair), [r#"{"id":1,"b":2,"c":1}"#]);
}

#[test]
fn a_record_that_changes_all_the_time_does_not_keep_a_large_delta_waiting() {
    let mut pair = waiting([counted()]);
    pair.publish(1, 1, "orders", r#"{"id":1}"#);
    records(&mut pair);
    pair.send(1, &Command::Publish(delta_of(2, r#"{"id":1,"b":2}"#)));
    pair.one_turn();
    for sequence in 1..=30 {
        // The job of the delta has read the record before this change.
        pair.broker.set_turn_size(usize::MAX);
        pair.publish(3, sequence, "orders", r#"{"id":1}"#);
        pair.broker.set_turn_size(1);
        step(&mut pair);
    }
    assert!(records(&mut pair)[0].contains(r#""b":2"#) || pair.broker.stats().appended == 32);
    assert!(pair.take(1).contains(&Said::Persisted(2)));
}

#[test]
fn a_refused_large_message_is_refused_again_and_nothing_after_it_waits() {
    let mut pair = waiting([sow_topic("orders")]);
    for sequence in [1, 2, 1] {
        let data = if sequence == 1 { r#"{"id":1,"# } else { r#"{"id":1}"# };
        pair.publish(1, sequence, "orders", data);
    }
    assert_eq!(records(&mut pair), [r#"{"id":1}"#]);
    let said = pair.take(1);
    assert_eq!(said.iter().filter(|said| **said == bad(1)).count(), 2, "{said:?}");
}

#[test]
fn a_large_message_of_a_validated_topic_is_validated() {
    let mut config = sow_config([sow_topic("orders")]);
    config.transaction_log.topics[1].validate = true;
    let mut pair = Pair::with(config);
    pair.client(1, "publisher");
    pair.client(2, "reader");
    pair.broker.set_turn_size(1);
    pair.reads_at_once = false;
    pair.subscribe(2, &subscribe(3, "^"));
    pair.publish(1, 1, "plain", "{} is no JSON");
    pair.publish(1, 2, "plain", r#"{"is":"JSON"}"#);
    pair.publish(1, 3, "orders", r#"{"id":1}"#);
    pair.reads_at_once = true;
    pair.turn();
    assert!(pair.take(1).contains(&bad(1)));
    assert_eq!(pair.take_data(2), [r#"{"is":"JSON"}"#]);
    assert_eq!(pair.records(2, query(900, "orders")), [r#"{"id":1}"#]);
}

#[test]
fn a_large_message_that_arrives_twice_is_recorded_once() {
    let mut pair = waiting([counted()]);
    pair.publish(1, 1, "orders", r#"{"id":1}"#);
    step(&mut pair);
    // The client has lost its connection, and sends the message again while the job of the first
    // one runs.
    pair.disconnect(1);
    pair.client(4, "publisher");
    pair.publish(4, 1, "orders", r#"{"id":1}"#);
    pair.publish(4, 1, "orders", r#"{"id":1}"#);
    assert_eq!(records(&mut pair), [r#"{"id":1,"c":1}"#]);
    assert_eq!(pair.broker.stats().appended, 1);
    assert!(pair.take(4).contains(&Said::Persisted(1)));
}

#[test]
fn the_indexes_know_a_large_record_and_its_end() {
    let topic = SowTopicSettings {
        hash_index: vec![vec!["/a".into()]],
        index: vec!["/n".into()],
        ..sow_topic("orders")
    };
    let mut pair = waiting([topic]);
    let pad = "x".repeat(100_000);
    let large = |a: &str, n: u32| format!(r#"{{"id":1,"a":"{a}","n":{n},"pad":"{pad}"}}"#);
    let found = |pair: &mut Pair, filter: &str| {
        pair.reads_at_once = true;
        pair.turn();
        let found = pair.records(2, Query { filter: Some(filter), ..query(900, "orders") }).len();
        pair.reads_at_once = false;
        found
    };
    pair.publish(1, 1, "orders", &large("one", 1));
    assert_eq!((found(&mut pair, "/a = 'one'"), found(&mut pair, "/n > 0")), (1, 1));
    pair.publish(1, 2, "orders", &large("two", 2));
    assert_eq!((found(&mut pair, "/a = 'one'"), found(&mut pair, "/a = 'two'")), (0, 1));
    assert_eq!((found(&mut pair, "/n = 1"), found(&mut pair, "/n = 2")), (0, 1));
    pair.publish(1, 3, "orders", r#"{"id":1,"a":"three"}"#);
    assert_eq!((found(&mut pair, "/a = 'two'"), found(&mut pair, "/a = 'three'")), (0, 1));
    assert_eq!(found(&mut pair, "/n > 0"), 0);
    // As the large record was.
    pair.publish(1, 4, "orders", r#"{"id":1,"a":"two","n":2}"#);
    assert_eq!((found(&mut pair, "/a = 'two'"), found(&mut pair, "/n = 2")), (1, 1));
}

#[test]
fn too_many_bytes_of_large_messages_end_their_connection() {
    let mut config = BrokerConfig {
        transports: vec![TransportConfig { max_message_size: 100_000, ..TransportConfig::default() }],
        ..sow_config([sow_topic("orders")])
    };
    config.limits.max_unfinished = 80_000;
    let mut pair = Pair::with(config);
    pair.client(1, "publisher");
    pair.client(3, "other");
    pair.broker.set_turn_size(1);
    pair.reads_at_once = false;
    let data = format!(r#"{{"id":1,"pad":"{}"}}"#, "x".repeat(90_000));
    pair.publish(1, 1, "orders", &data);
    pair.publish(3, 1, "orders", &data);
    pair.turn();
    assert!(!pair.clients[&1].is_closed);
    assert!(pair.clients[&3].is_closed);
    pair.reads_at_once = true;
    pair.turn();
    assert!(pair.take(1).contains(&Said::Persisted(1)));
}

#[test]
fn a_crash_during_a_job_loses_only_what_was_not_acknowledged() {
    let mut pair = waiting([counted()]);
    pair.publish(1, 1, "orders", r#"{"id":1}"#);
    records(&mut pair);
    pair.publish(1, 2, "orders", r#"{"id":1}"#);
    step(&mut pair);
    let mut pair = crash(pair, sow_config([counted()]));
    assert_eq!(records(&mut pair), [r#"{"id":1,"c":1}"#]);
}

/// The record is large, the message is empty.
#[test]
fn an_empty_delta_onto_a_large_record_is_taken_before_the_message_after_it() {
    let mut config = sow_config([SowTopicSettings { message_type: "nvfix".into(), ..supplied("orders") }]);
    config.transaction_log.topics.insert(0, RecordedTopic::new("orders", "nvfix"));
    let mut pair = Pair::with(config);
    pair.client(1, "publisher");
    pair.client(2, "reader");
    pair.client(3, "other");
    pair.broker.set_turn_size(0);
    pair.reads_at_once = false;
    let first = Publish { key: b"k", ..publish(1, "orders", "a=1\u{1}") };
    pair.send(1, &Command::Publish(first));
    pair.reads_at_once = true;
    pair.turn();
    pair.reads_at_once = false;
    let empty = Publish { key: b"k", is_delta: true, ..publish(2, "orders", "") };
    pair.send(1, &Command::Publish(empty));
    pair.publish(1, 3, "plain", "after it");
    pair.one_turn();
    // The delete comes while the job has the copy of the record.
    pair.broker.set_turn_size(usize::MAX);
    pair.send(3, &Command::SowDelete(SowDelete { filter: Some("1 = 1"), ..delete(900, 1, "orders") }));
    (0..5).for_each(|_| pair.one_turn());
    pair.broker.set_turn_size(0);
    pair.take(1);
    for _ in 0..4 {
        step(&mut pair);
        let said = pair.take(1);
        let appended = pair.broker.stats().appended;
        assert!(!said.contains(&Said::Persisted(3)) || appended >= 4, "{said:?} {appended}");
    }
    pair.reads_at_once = true;
    pair.turn();
    // The first message, the delete, the delta and the message after it.
    assert_eq!(pair.broker.stats().appended, 4);
    assert!(pair.take(1).contains(&Said::Persisted(3)));
}

#[test]
fn a_large_message_alone_does_not_end_its_connection() {
    let mut config = BrokerConfig {
        transports: vec![TransportConfig { max_message_size: 100_000, ..TransportConfig::default() }],
        ..sow_config([counted()])
    };
    config.limits.max_unfinished = 100_000;
    let mut pair = Pair::with(config);
    pair.client(1, "publisher");
    pair.client(2, "reader");
    pair.broker.set_turn_size(1);
    let data = format!(r#"{{"id":1,"pad":"{}"}}"#, "x".repeat(99_900));
    pair.publish(1, 1, "orders", &data);
    pair.turn();
    pair.reads_at_once = false;
    pair.send(1, &Command::Publish(delta_of(2, r#"{"id":1,"b":2}"#)));
    pair.publish(1, 3, "orders", &data);
    pair.turn();
    pair.reads_at_once = true;
    pair.turn();
    assert!(!pair.clients[&1].is_closed);
    assert_eq!(pair.broker.stats().appended, 3);
}

#[test]
fn a_topic_that_a_large_message_waits_for_keeps_its_place() {
    let pattern = SowTopicSettings { pattern: Some("c/[0-9]".into()), ..counted() };
    let pattern = SowTopicSettings { name: "c".into(), ..pattern };
    let mut config = sow_config([pattern]);
    config.limits.max_pattern_topics = 1;
    let mut pair = Pair::with(config);
    pair.client(1, "publisher");
    pair.client(3, "other");
    pair.broker.set_turn_size(1);
    pair.reads_at_once = false;
    pair.publish(1, 1, "c/1", r#"{"id":1}"#);
    pair.publish(3, 1, "c/2", r#"{"id":1}"#);
    for _ in 0..6 {
        step(&mut pair);
    }
    pair.reads_at_once = true;
    pair.turn();
    assert!(pair.take(1).contains(&Said::Persisted(1)));
    let said = pair.take(3);
    assert!(said.iter().any(|said| matches!(said, Said::Failed { sequence: 1, .. })), "{said:?}");
    assert_eq!(pair.broker.stats().appended, 1);
}
