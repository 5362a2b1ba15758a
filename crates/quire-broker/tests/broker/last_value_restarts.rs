//! Last-value topics after a restart (docs/last-values.md section 7).

use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use quire_broker::{Broker, BrokerConfig, Event, SowTopicSettings, TableExpiration};
use quire_command::*;
use quire_journal::{Disk, Journal, Position, Which};

use crate::failures::configured_on_a_disk_that_fills_or_fails;
use crate::last_value_pair::*;
use crate::pair::*;

/// Closes the broker, and starts another one on the same disk.
pub fn restart(pair: Pair, config: BrokerConfig) -> Pair {
    let Pair { broker, disk, now_ns, .. } = pair;
    broker.close().unwrap();
    let mut pair = Pair::on(disk, config);
    pair.now_ns = now_ns;
    pair.client(1, "publisher");
    pair.client(2, "reader");
    pair
}

/// The same after a crash: records that were not written are lost.
pub fn crash(pair: Pair, config: BrokerConfig) -> Pair {
    let Pair { broker, disk, .. } = pair;
    broker.abandon();
    let mut pair = Pair::on(disk, config);
    pair.client(1, "publisher");
    pair.client(2, "reader");
    pair
}

#[test]
fn a_persistent_topic_is_rebuilt_from_the_log_with_its_keys_and_deletes() {
    let topics = || sow_config([sow_topic("orders"), supplied("named")]);
    let mut pair = with_topics([sow_topic("orders"), supplied("named")]);
    for id in 1..=4 {
        pair.publish(1, id, "orders", &format!(r#"{{"id":{id}}}"#));
    }
    pair.publish(1, 5, "orders", r#"{"id":1,"n":2}"#);
    pair.send(1, &Command::Publish(Publish { key: b"a", ..publish(6, "named", "7") }));
    pair.delete(1, SowDelete { filter: Some("/id = 2"), ..delete(7, 7, "orders") });
    let orders = [r#"{"id":1,"n":2}"#, r#"{"id":3}"#, r#"{"id":4}"#];
    let mut pair = restart(pair, topics());
    assert_eq!(pair.records(2, query(5, "orders")), orders);
    let by_key = Query { keys: Keys::from_bytes(b"\x01a"), ..query(5, "named") };
    assert_eq!(pair.records(2, by_key), ["7"]);
    let mut pair = crash(pair, topics());
    assert_eq!(pair.records(2, query(5, "orders")), orders);
}

/// Found by seed 11 of the simulation: the log gave the message a later time than the topic did.
#[test]
fn a_lifetime_stays_the_same_over_a_restart_after_the_wall_clock_was_set_back() {
    let expiration = TableExpiration::AfterNs(1_000_000_000);
    let topic = || SowTopicSettings { expiration, ..sow_topic("orders") };
    let mut pair = with_topics([topic()]);
    pair.wall_ahead_ns = 3_600_000_000_000;
    pair.publish(1, 1, "orders", r#"{"id":1}"#);
    pair.turn();
    // The wall clock of the next pair is not ahead.
    let mut pair = restart(pair, sow_config([topic()]));
    pair.publish(1, 2, "orders", r#"{"id":2}"#);
    pair.pass(Duration::from_secs(2));
    let before = pair.records(2, query(5, "orders"));
    let mut pair = restart(pair, sow_config([topic()]));
    assert_eq!(pair.records(2, query(5, "orders")), before);
}

#[test]
fn a_crash_takes_back_only_what_was_not_persisted() {
    let mut pair = with_topics([sow_topic("orders")]);
    pair.publish(1, 1, "orders", r#"{"id":1,"n":1}"#);
    pair.turn();
    pair.writes_at_once = false;
    pair.publish(1, 2, "orders", r#"{"id":1,"n":2}"#);
    assert_eq!(pair.records(2, query(5, "orders")), [r#"{"id":1,"n":2}"#]);
    let mut pair = crash(pair, sow_config([sow_topic("orders")]));
    assert_eq!(pair.records(2, query(5, "orders")), [r#"{"id":1,"n":1}"#]);
}

#[test]
fn a_transient_topic_is_empty_or_read_from_the_log() {
    let epoch = || SowTopicSettings { recovery_point: Some("epoch".into()), ..transient("read") };
    let topics = || sow_config([transient("empty"), epoch(), transient("scratch")]);
    let mut pair = with_topics([transient("empty"), epoch(), transient("scratch")]);
    for (sequence, topic) in [(1, "empty"), (2, "read"), (3, "scratch")] {
        pair.publish(1, sequence, topic, r#"{"id":1}"#);
    }
    pair.turn();
    assert_eq!(pair.records(2, query(5, "^")).len(), 3);
    let mut pair = restart(pair, topics());
    let counts = ["empty", "read", "scratch"].map(|topic| pair.records(2, query(5, topic)).len());
    assert_eq!(counts, [0, 1, 0]);
}

#[test]
fn records_whose_lifetime_ended_while_the_server_was_stopped_are_gone() {
    let topic =
        || SowTopicSettings { expiration: TableExpiration::AfterNs(1_000_000_000), ..sow_topic("orders") };
    let mut pair = with_topics([topic()]);
    pair.publish(1, 1, "orders", r#"{"id":1}"#);
    pair.now_ns = 700_000_000;
    pair.publish(1, 2, "orders", r#"{"id":2}"#);
    pair.turn();
    pair.now_ns = 1_200_000_000;
    let mut pair = restart(pair, sow_config([topic()]));
    assert_eq!(pair.records(2, query(5, "orders")), [r#"{"id":2}"#]);
    assert_eq!(pair.delete(1, SowDelete { filter: Some("1 = 1"), ..delete(7, 3, "orders") }), 1);
}

#[test]
fn a_topic_that_becomes_a_last_value_topic_gets_the_messages_that_the_log_has() {
    let mut pair = Pair::with(sow_config([]));
    pair.client(1, "publisher");
    for (sequence, topic) in [(1, "orders"), (2, "orders"), (3, "named")] {
        pair.publish(1, sequence, topic, r#"{"id":1}"#);
    }
    pair.turn();
    let mut pair = restart(pair, sow_config([sow_topic("orders"), supplied("named")]));
    assert_eq!(pair.records(2, query(5, "orders")), [r#"{"id":1}"#]);
    // A message without a supplied key is the record of no key.
    assert_eq!(pair.records(2, query(5, "named")), Vec::<String>::new());
}

#[test]
fn other_key_fields_do_not_change_the_keys_of_messages_in_the_log() {
    let mut pair = with_topics([sow_topic("orders")]);
    pair.publish(1, 1, "orders", r#"{"id":1,"b":1}"#);
    pair.publish(1, 2, "orders", r#"{"id":2,"b":1}"#);
    pair.turn();
    let by_b = SowTopicSettings { key: vec!["/b".into()], ..sow_topic("orders") };
    let mut pair = restart(pair, sow_config([by_b]));
    assert_eq!(pair.records(2, query(5, "orders")).len(), 2);
}

#[test]
fn without_a_snapshot_a_persistent_topic_needs_the_whole_log() {
    let pair = with_topics([sow_topic("orders")]);
    assert_eq!(pair.broker.needed_position(), Some(Position::new(1)));
    // Another process learns it from the file.
    assert_eq!(pair.broker.journal().sidecars().needs(), Some(Position::new(1)));
    let pair = with_topics([transient("orders")]);
    assert_eq!(pair.broker.needed_position(), None);
}

/// The position of the log that the snapshot of `orders` includes.
fn snapshot_position(pair: &mut Pair) -> u64 {
    pair.take(2);
    pair.send(2, &Command::Inspect { command: 4, subject: Subject::Topics { after: "" } });
    pair.turn();
    let said = pair.take(2);
    let Some(Said::Stats { json, .. }) = said.last() else { panic!("{said:?}") };
    let json: serde_json::Value = serde_json::from_str(json).unwrap();
    let topics = json["topics"].as_array().unwrap();
    let orders = topics.iter().find(|topic| topic["topic"] == "orders").unwrap();
    orders["last_values"]["snapshot_position"].as_u64().unwrap()
}

#[test]
fn a_start_after_a_stop_reads_the_snapshot_and_the_log_after_it() {
    let mut pair = with_topics([sow_topic("orders")]);
    for id in 1..=3 {
        pair.publish(1, id, "orders", &format!(r#"{{"id":{id}}}"#));
    }
    pair.turn();
    let mut pair = restart(pair, sow_config([sow_topic("orders")]));
    assert_eq!((snapshot_position(&mut pair), pair.broker.needed_position()), (3, Some(Position::new(4))));
    assert_eq!(pair.broker.journal().sidecars().needs(), Some(Position::new(4)));
    pair.publish(1, 4, "orders", r#"{"id":1,"n":2}"#);
    pair.delete(1, SowDelete { filter: Some("/id = 2"), ..delete(7, 5, "orders") });
    let mut pair = crash(pair, sow_config([sow_topic("orders")]));
    assert_eq!(snapshot_position(&mut pair), 3);
    assert_eq!(pair.records(2, query(5, "orders")), [r#"{"id":1,"n":2}"#, r#"{"id":3}"#]);
}

/// Publishes until the log has several full files.
fn fill_files(pair: &mut Pair, first: u64) {
    let filler = "x".repeat(10_000);
    for sequence in first..first + 200 {
        let id = sequence % 3;
        pair.publish(1, sequence, "orders", &format!(r#"{{"id":{id},"x":"{filler}","n":{sequence}}}"#));
        pair.turn();
    }
}

#[test]
fn a_snapshot_is_written_while_the_log_grows_so_that_older_files_can_be_removed() {
    let mut pair = with_topics([sow_topic("orders")]);
    fill_files(&mut pair, 1);
    assert_eq!(snapshot_position(&mut pair), 0);
    pair.pass(Duration::from_secs(11));
    pair.turn();
    assert_eq!(
        (snapshot_position(&mut pair), pair.broker.needed_position()),
        (200, Some(Position::new(201)))
    );
    // The log has not grown enough since then.
    pair.publish(1, 201, "orders", r#"{"id":1}"#);
    pair.turn();
    pair.pass(Duration::from_secs(30));
    assert_eq!(snapshot_position(&mut pair), 200);
    let before = pair.records(2, query(5, "orders"));
    let mut pair = crash(pair, sow_config([sow_topic("orders")]));
    assert_eq!((snapshot_position(&mut pair), pair.records(2, query(5, "orders"))), (200, before));
}

#[test]
fn a_snapshot_waits_until_the_log_is_persisted() {
    let mut pair = with_topics([sow_topic("orders")]);
    fill_files(&mut pair, 1);
    pair.writes_at_once = false;
    pair.publish(1, 201, "orders", r#"{"id":9}"#);
    pair.pass(Duration::from_secs(11));
    pair.turn();
    assert_eq!(snapshot_position(&mut pair), 0);
    let mut pair = crash(pair, sow_config([sow_topic("orders")]));
    assert_eq!(snapshot_position(&mut pair), 0);
    assert_eq!(pair.records(2, query(5, "orders")).len(), 3);
}

/// Changes one byte of the snapshot of `orders`, after the head of the file.
fn damage_snapshot(pair: &Pair) {
    let path = Path::new("journal").join(quire_table::snapshot_file("orders"));
    let mut bytes = pair.disk.read(&path).unwrap();
    bytes[150] ^= 1;
    pair.disk.create(&path, bytes.len() as u64).unwrap().write_at(&bytes, 0).unwrap();
}

#[test]
fn a_damaged_snapshot_is_not_used_while_the_log_is_whole() {
    let mut pair = with_topics([sow_topic("orders")]);
    fill_files(&mut pair, 1);
    let pair = restart(pair, sow_config([sow_topic("orders")]));
    damage_snapshot(&pair);
    let mut pair = crash(pair, sow_config([sow_topic("orders")]));
    let is_warning =
        |event: &Event| matches!(event, Event::SnapshotNotUsed { topic, .. } if topic == "orders");
    assert!(pair.log.iter().any(is_warning));
    assert_eq!(snapshot_position(&mut pair), 0);
    assert_eq!(pair.records(2, query(5, "orders")).len(), 3);
}

#[test]
fn a_damaged_snapshot_without_the_older_log_is_an_error_that_names_the_file() {
    let mut pair = with_topics([sow_topic("orders")]);
    fill_files(&mut pair, 1);
    let pair = restart(pair, sow_config([sow_topic("orders")]));
    let maintenance = pair.broker.journal().maintenance();
    assert!(!maintenance.remove(Which::All, pair.broker.needed_position()).unwrap().is_empty());
    damage_snapshot(&pair);
    let Pair { broker, disk, .. } = pair;
    broker.abandon();
    let config = sow_config([sow_topic("orders")]);
    let options = quire_journal::Options { segment_size: 256 * 1024, ..config.journal_options() };
    let (journal, _) = Journal::driven_by_hand(disk.clone(), Path::new("journal"), &options).unwrap();
    let error = Broker::new(config.clone(), journal).err().unwrap().to_string();
    assert!(error.contains(&quire_table::snapshot_file("orders")), "{error}");
    // Without the file, a start still knows that there was one.
    disk.remove(&Path::new("journal").join(quire_table::snapshot_file("orders"))).unwrap();
    let (journal, _) = Journal::driven_by_hand(disk.clone(), Path::new("journal"), &options).unwrap();
    let error = Broker::new(config.clone(), journal).err().unwrap().to_string();
    assert!(error.contains("is missing") && error.contains("snapshot-names.state"), "{error}");
    // Without both files the topic has what the log has.
    disk.remove(Path::new("journal/snapshot-names.state")).unwrap();
    let mut pair = Pair::on(disk, config);
    pair.client(2, "reader");
    let is_warning =
        |event: &Event| matches!(event, Event::RecordsMissing { topic, .. } if topic == "orders");
    assert!(pair.log.iter().any(is_warning));
    assert!(pair.records(2, query(5, "orders")).len() <= 3);
}

#[test]
fn a_topic_that_is_new_in_the_configuration_needs_no_snapshot_of_removed_files() {
    let mut pair = with_topics([sow_topic("orders")]);
    fill_files(&mut pair, 1);
    let pair = restart(pair, sow_config([sow_topic("orders")]));
    let maintenance = pair.broker.journal().maintenance();
    assert!(!maintenance.remove(Which::All, pair.broker.needed_position()).unwrap().is_empty());
    let both = sow_config([sow_topic("orders"), sow_topic("trades")]);
    let mut pair = restart(restart(pair, both.clone()), both);
    assert!(!pair.records(2, query(5, "orders")).is_empty());
}

#[test]
fn records_of_removed_files_stay_in_the_snapshot() {
    let mut pair = with_topics([sow_topic("orders")]);
    pair.publish(1, 1, "orders", r#"{"id":"first"}"#);
    fill_files(&mut pair, 2);
    let pair = restart(pair, sow_config([sow_topic("orders")]));
    let removed =
        pair.broker.journal().maintenance().remove(Which::All, pair.broker.needed_position()).unwrap();
    assert!(!removed.is_empty());
    let mut pair = crash(pair, sow_config([sow_topic("orders")]));
    let records = pair.records(2, query(5, "orders"));
    assert_eq!(records.len(), 4);
    assert!(records.contains(&r#"{"id":"first"}"#.to_owned()));
    assert!(!pair.log.iter().any(|event| matches!(event, Event::RecordsMissing { .. })));
}

/// The time for the next snapshot is past when the journal takes no writes. The server must not
/// have turns without end then.
#[test]
fn a_failed_disk_does_not_keep_the_broker_busy_with_snapshots() {
    let config = sow_config([sow_topic("orders")]);
    let (mut pair, _, fails_syncs) = configured_on_a_disk_that_fills_or_fails(config);
    pair.client(1, "publisher");
    pair.publish(1, 1, "orders", r#"{"id":1}"#);
    pair.turn();
    fails_syncs.store(true, Ordering::Relaxed);
    pair.publish(1, 2, "orders", r#"{"id":2}"#);
    pair.turn();
    pair.pass(Duration::from_secs(60));
    assert!(pair.broker.next_timeout().is_none_or(|at| at.as_ns() > pair.now_ns));
}
