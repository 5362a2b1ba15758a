//! A client publishes what the log lacks below the highest sequence of its run. The message is
//! recorded, and nothing is confirmed before (docs/internals/copies.md, *Decisions*).

use std::ops::RangeInclusive;

use quire_broker::{BrokerConfig, SyncType};
use quire_command::*;

use super::last_value_pair::*;
use super::links::*;
use super::pair::{Said, ack, publish as publish_of};
use super::replication_compare::{connect_again, sequences, with_lost_messages};
use super::replication_runs::{A_MINUTE, answers, log_on, publish};

/// The sequences of a log in its order.
fn order(cluster: &mut Cluster, number: usize) -> Vec<u64> {
    cluster.log(number).into_iter().map(|(_, sequence, _)| sequence).collect()
}

/// The messages 4 and 5 are only in the store of the client, which the program opens again.
fn with_a_store() -> Cluster {
    let mut cluster = with_lost_messages();
    cluster.at(1).disconnect(2);
    cluster.destroy(0);
    cluster.settle();
    cluster
}

#[test]
fn a_client_with_a_message_that_the_log_lacks_is_told_so_and_fills_the_hole() {
    for connection_number in [1, 3] {
        let mut cluster = with_a_store();
        log_on(&mut cluster, 1, 3, (11, 3, connection_number));
        assert_eq!(answers(&mut cluster, 1, 3), (vec![], 3), "4 and 5 are not confirmed");
        assert_eq!(cluster.at(1).clients[&3].highest_sequence, 7);
        publish(&mut cluster, 1, 3, 4..=4, "first");
        assert_eq!(answers(&mut cluster, 1, 3), (vec![], 4), "5 is not confirmed");
        publish(&mut cluster, 1, 3, 5..=8, "first");
        assert_eq!(answers(&mut cluster, 1, 3), (vec![], 8));
        assert_eq!(order(&mut cluster, 1), [1, 2, 3, 6, 7, 4, 5, 8]);
        cluster.heal();
        cluster.start(0);
        cluster.pass(A_MINUTE);
        assert_eq!(sequences(&mut cluster, 0), (1..=8).collect::<Vec<_>>());
        for number in 0..2 {
            let stats = cluster.stats(number);
            assert_eq!((stats.missing_total, stats.sources[0].conflict_count), (0, 0));
        }
    }
}

#[test]
fn messages_that_were_confirmed_to_the_client_are_not_waited_for() {
    let mut cluster = with_a_store();
    log_on(&mut cluster, 1, 3, (11, 5, 1));
    assert_eq!(answers(&mut cluster, 1, 3), (vec![], 7));
    publish(&mut cluster, 1, 3, 8..=8, "first");
    assert_eq!(answers(&mut cluster, 1, 3), (vec![], 8));
    assert_eq!(order(&mut cluster, 1), [1, 2, 3, 6, 7, 8]);
}

#[test]
fn a_new_run_is_told_the_highest_sequence_and_not_a_hole_of_the_earlier_one() {
    let mut cluster = with_a_store();
    log_on(&mut cluster, 1, 3, (22, 0, 1));
    assert_eq!(answers(&mut cluster, 1, 3), (vec![], 7));
    publish(&mut cluster, 1, 3, 4..=4, "second");
    assert_eq!(answers(&mut cluster, 1, 3).0, [4], "another run has used the sequence");
}

#[test]
fn a_link_that_sends_later_messages_while_the_client_is_connected_confirms_none_before_them() {
    let mut cluster = Cluster::new(pair_of(SyncType::Async));
    log_on(&mut cluster, 0, 1, (11, 0, 1));
    publish(&mut cluster, 0, 1, 1..=3, "first");
    log_on(&mut cluster, 1, 3, (11, 3, 1));
    // Another program has the same store, and has confirmed 4 and 5.
    cluster.at(0).disconnect(1);
    log_on(&mut cluster, 0, 1, (11, 5, 2));
    publish(&mut cluster, 0, 1, 6..=7, "first");
    cluster.pass(A_MINUTE);
    assert_eq!(order(&mut cluster, 1), [1, 2, 3, 6, 7]);
    publish(&mut cluster, 1, 3, 4..=4, "first");
    assert_eq!(answers(&mut cluster, 1, 3), (vec![], 4));
    publish(&mut cluster, 1, 3, 5..=8, "first");
    assert_eq!(answers(&mut cluster, 1, 3), (vec![], 8));
    assert_eq!(order(&mut cluster, 1), [1, 2, 3, 6, 7, 4, 5, 8]);
    cluster.pass(A_MINUTE);
    assert_eq!(sequences(&mut cluster, 0), (1..=8).collect::<Vec<_>>());
    assert_eq!(cluster.stats(0).sources[0].conflict_count, 0);
}

#[test]
fn messages_before_a_hole_are_confirmed_when_the_sync_destination_has_them() {
    let mut cluster = Cluster::new(pair_of(SyncType::Sync));
    cluster.kill(0);
    log_on(&mut cluster, 1, 1, (11, 0, 1));
    publish(&mut cluster, 1, 1, 1..=3, "first");
    cluster.at(1).disconnect(1);
    log_on(&mut cluster, 1, 2, (11, 5, 2));
    publish(&mut cluster, 1, 2, 6..=6, "first");
    cluster.at(1).disconnect(2);
    log_on(&mut cluster, 1, 3, (11, 0, 3));
    publish(&mut cluster, 1, 3, 1..=3, "first");
    assert_eq!(answers(&mut cluster, 1, 3), (vec![], 0), "only this instance has them");
    publish(&mut cluster, 1, 3, 4..=6, "first");
    assert_eq!(answers(&mut cluster, 1, 3), (vec![], 0));
    assert_eq!(order(&mut cluster, 1), [1, 2, 3, 6, 4, 5]);
    cluster.start(0);
    cluster.pass(A_MINUTE);
    assert_eq!(answers(&mut cluster, 1, 3), (vec![], 6));
    assert_eq!(sequences(&mut cluster, 0), (1..=6).collect::<Vec<_>>());
}

#[test]
fn a_flush_waits_for_the_message_that_fills_a_hole() {
    let mut cluster = with_a_store();
    log_on(&mut cluster, 1, 3, (11, 3, 1));
    answers(&mut cluster, 1, 3);
    cluster.at(1).writes_at_once = false;
    cluster.at(1).publish(3, 4, "orders", "first 4");
    cluster.at(1).send(3, &Command::Flush { command: 9, acks: Acks::PERSISTED });
    cluster.settle();
    assert_eq!(cluster.at(1).take(3), []);
    cluster.at(1).writes_at_once = true;
    cluster.settle();
    assert_eq!(cluster.at(1).take(3), [Said::Persisted(4), ack(AckKind::Persisted, 9, 0)]);
}

#[test]
fn a_message_that_its_program_numbered_fills_a_hole_and_leaves_no_other_one() {
    let mut cluster = Cluster::new(pair_of(SyncType::Async));
    let numbered = |cluster: &mut Cluster, number: usize, client, sequences: &[u64]| {
        for sequence in sequences {
            let publish = Publish { is_numbered: true, ..publish_of(*sequence, "orders", "{}") };
            cluster.at(number).send(client, &Command::Publish(publish));
        }
        cluster.settle();
    };
    log_on(&mut cluster, 0, 1, (11, 0, 1));
    numbered(&mut cluster, 0, 1, &[10, 20]);
    cluster.partition(0, 1);
    log_on(&mut cluster, 1, 2, (11, 40, 2));
    numbered(&mut cluster, 1, 2, &[50]);
    cluster.at(1).disconnect(2);
    cluster.settle();
    log_on(&mut cluster, 1, 3, (11, 20, 3));
    assert_eq!(answers(&mut cluster, 1, 3), (vec![], 20));
    numbered(&mut cluster, 1, 3, &[30, 40, 50]);
    assert_eq!(answers(&mut cluster, 1, 3), (vec![], 50));
    assert_eq!(order(&mut cluster, 1), [10, 20, 50, 30, 40]);
    cluster.heal();
    cluster.pass(A_MINUTE);
    connect_again(&mut cluster);
    assert_eq!(sequences(&mut cluster, 0), [10, 20, 30, 40, 50]);
    assert_eq!([0, 1].map(|number| cluster.stats(number).missing_total), [0, 0]);
}

#[test]
fn a_message_in_a_merged_hole_is_recorded_once() {
    let mut cluster = Cluster::new(pair_of(SyncType::Async));
    cluster.kill(0);
    // Each connection skips a sequence, so the log has a hole before each message.
    let last = 2 * 80;
    for sequence in (2..=last).step_by(2) {
        let client = sequence + 10;
        log_on(&mut cluster, 1, client, (11, sequence - 1, sequence as u32));
        publish(&mut cluster, 1, client, sequence..=sequence, "first");
        cluster.at(1).disconnect(client);
        cluster.settle();
    }
    let even: Vec<u64> = (2..=last).step_by(2).collect();
    assert_eq!(order(&mut cluster, 1), even);
    for client in [3, 4] {
        log_on(&mut cluster, 1, client, (11, 0, last as u32 + client as u32));
        assert_eq!(answers(&mut cluster, 1, client), (vec![], 0));
        // Each message twice, and the log is not written between them.
        cluster.at(1).writes_at_once = false;
        for _ in 0..2 {
            publish(&mut cluster, 1, client, 1..=last, "first");
        }
        cluster.at(1).writes_at_once = true;
        cluster.settle();
        assert_eq!(answers(&mut cluster, 1, client), (vec![], last));
        assert_eq!(sequences(&mut cluster, 1), (1..=last).collect::<Vec<_>>());
        cluster.at(1).disconnect(client);
        cluster.settle();
    }
}

fn tables() -> Vec<BrokerConfig> {
    let configs = pair_of(SyncType::Async).into_iter();
    configs.map(|config| BrokerConfig { sow_topics: vec![sow_topic("orders")], ..config }).collect()
}

fn put(cluster: &mut Cluster, number: usize, client: u64, sequences: RangeInclusive<u64>) {
    for sequence in sequences {
        cluster.at(number).publish(client, sequence, "orders", &format!(r#"{{"id":1,"n":{sequence}}}"#));
    }
    cluster.settle();
}

/// `b` has 1 and 4 of the run, and lacks 2 and 3. The record is that of 4.
fn with_a_hole_in_a_table() -> Cluster {
    let mut cluster = Cluster::new(tables());
    log_on(&mut cluster, 0, 1, (11, 0, 1));
    put(&mut cluster, 0, 1, 1..=1);
    cluster.kill(0);
    log_on(&mut cluster, 1, 2, (11, 3, 2));
    put(&mut cluster, 1, 2, 4..=4);
    cluster.at(1).disconnect(2);
    cluster.settle();
    log_on(&mut cluster, 1, 3, (11, 1, 3));
    assert_eq!(answers(&mut cluster, 1, 3), (vec![], 1));
    cluster
}

#[test]
fn a_publish_in_a_hole_does_not_replace_a_later_record_of_its_publisher() {
    let mut cluster = with_a_hole_in_a_table();
    put(&mut cluster, 1, 3, 2..=4);
    assert_eq!(answers(&mut cluster, 1, 3), (vec![], 4));
    assert_eq!(order(&mut cluster, 1), [1, 4, 2, 3]);
    for restarts in 0..2 {
        cluster.start(0);
        cluster.pass(A_MINUTE);
        for number in 0..2 {
            cluster.at(number).client(7, "reader");
            let records = cluster.at(number).records(7, query(7, "orders"));
            assert_eq!(records, [r#"{"id":1,"n":4}"#], "{number} {restarts}");
        }
        cluster.kill(0);
        cluster.kill(1);
        cluster.start(1);
    }
}

#[test]
fn a_delete_in_a_hole_is_recorded_and_does_not_remove_a_later_record() {
    let mut cluster = with_a_hole_in_a_table();
    put(&mut cluster, 1, 3, 2..=2);
    let delete = SowDelete { filter: Some("/id = 1"), acks: Acks::PERSISTED, ..delete(9, 3, "orders") };
    cluster.at(1).send(3, &Command::SowDelete(delete));
    cluster.settle();
    let said = cluster.at(1).take(3);
    assert_eq!(said, [Said::Persisted(2), Said::Persisted(3), ack(AckKind::Persisted, 9, 0)]);
    assert_eq!(order(&mut cluster, 1), [1, 4, 2, 3]);
    cluster.at(1).client(7, "reader");
    assert_eq!(cluster.at(1).records(7, query(7, "orders")), [r#"{"id":1,"n":4}"#]);
}

#[test]
fn a_delete_with_a_sequence_of_another_run_is_refused() {
    let mut cluster = with_a_hole_in_a_table();
    log_on(&mut cluster, 1, 4, (22, 0, 1));
    cluster.at(1).take(4);
    let delete = SowDelete { filter: Some("/id = 1"), acks: Acks::PROCESSED, ..delete(9, 4, "orders") };
    cluster.at(1).send(4, &Command::SowDelete(delete));
    cluster.settle();
    let refused = Said::Ack { kind: AckKind::Processed, code: Code::NameInUse, command: 9, subscription: 0 };
    assert_eq!(cluster.at(1).take(4), [refused]);
}
