//! Last values of two instances: the record with the later stamp is the record of its key on both,
//! in whatever order the messages and the deletes arrive, and after each kind of restart.

use std::time::Duration;

use quire_broker::{BrokerConfig, SyncType};
use quire_command::*;

use super::last_value_pair::*;
use super::links::*;
use super::pair::*;

const A_MINUTE: Duration = Duration::from_secs(60);
const A_SECOND: Duration = Duration::from_secs(1);

fn configs() -> Vec<BrokerConfig> {
    let configs = pair_of(SyncType::Async).into_iter();
    configs.map(|config| BrokerConfig { sow_topics: vec![sow_topic("orders")], ..config }).collect()
}

/// Two instances with a publisher on each of them, `a` and `b`, and a reader.
fn cluster() -> Cluster {
    let mut cluster = Cluster::new(configs());
    cluster.at(0).client(1, "publisher-a");
    cluster.at(1).client(1, "publisher-b");
    readers(&mut cluster);
    cluster
}

fn readers(cluster: &mut Cluster) {
    for number in [0, 1] {
        cluster.at(number).client(2, "reader");
    }
}

fn put(cluster: &mut Cluster, number: usize, sequence: u64, data: &str) {
    cluster.at(number).publish(1, sequence, "orders", data);
    cluster.settle();
}

fn delete_all(cluster: &mut Cluster, number: usize, sequence: u64) {
    let delete = SowDelete { filter: Some("/id = 1"), ..delete(9, sequence, "orders") };
    assert_eq!(cluster.at(number).delete(1, delete), 1);
    cluster.settle();
}

/// The records of each instance, which are equal.
fn records(cluster: &mut Cluster) -> Vec<String> {
    let [one, other] = [0, 1].map(|number| cluster.at(number).records(2, query(7, "orders")));
    assert_eq!(one, other, "the instances differ");
    one
}

/// The records after a crash, and after a stop with a snapshot.
fn records_after_restarts(cluster: &mut Cluster) -> Vec<String> {
    let found = records(cluster);
    for number in [0, 1] {
        cluster.kill(number);
        cluster.start(number);
    }
    readers(cluster);
    assert_eq!(records(cluster), found, "after a crash");
    for number in [0, 1] {
        cluster.stop(number);
        cluster.start(number);
    }
    readers(cluster);
    assert_eq!(records(cluster), found, "with a snapshot");
    cluster.pass(A_MINUTE);
    assert_eq!(records(cluster), found);
    found
}

#[test]
fn two_writers_of_a_key_on_two_instances_leave_the_same_record() {
    for first in [0, 1] {
        let mut cluster = cluster();
        cluster.partition(0, 1);
        put(&mut cluster, first, 1, r#"{"id":1,"n":"first"}"#);
        cluster.pass(A_SECOND);
        put(&mut cluster, 1 - first, 1, r#"{"id":1,"n":"second"}"#);
        cluster.heal();
        cluster.pass(A_MINUTE);
        assert_eq!(cluster.log(0).len(), 2);
        assert_eq!(records_after_restarts(&mut cluster), [r#"{"id":1,"n":"second"}"#]);
    }
}

#[test]
fn equal_times_are_decided_by_the_names_of_the_instances() {
    let mut cluster = cluster();
    cluster.partition(0, 1);
    put(&mut cluster, 0, 1, r#"{"id":1,"n":"a"}"#);
    put(&mut cluster, 1, 1, r#"{"id":1,"n":"b"}"#);
    cluster.heal();
    cluster.pass(A_MINUTE);
    assert_eq!(records_after_restarts(&mut cluster), [r#"{"id":1,"n":"b"}"#]);
}

#[test]
fn a_delete_is_not_undone_by_an_older_message_that_arrives_later() {
    for writer in [0, 1] {
        let mut cluster = cluster();
        put(&mut cluster, writer, 1, r#"{"id":1,"n":1}"#);
        cluster.pass(A_SECOND);
        cluster.partition(0, 1);
        put(&mut cluster, writer, 2, r#"{"id":1,"n":2}"#);
        cluster.pass(A_SECOND);
        delete_all(&mut cluster, 1 - writer, 1);
        cluster.heal();
        cluster.pass(A_MINUTE);
        assert_eq!(cluster.log(0).len(), 3);
        assert_eq!(records_after_restarts(&mut cluster), Vec::<String>::new());
    }
}

#[test]
fn a_delete_does_not_remove_a_newer_record() {
    let mut cluster = cluster();
    put(&mut cluster, 0, 1, r#"{"id":1,"n":1}"#);
    cluster.pass(A_SECOND);
    cluster.partition(0, 1);
    delete_all(&mut cluster, 1, 1);
    cluster.pass(A_SECOND);
    put(&mut cluster, 0, 2, r#"{"id":1,"n":2}"#);
    cluster.heal();
    cluster.pass(A_MINUTE);
    assert_eq!(records_after_restarts(&mut cluster), [r#"{"id":1,"n":2}"#]);
}

#[test]
fn a_publish_after_a_record_of_a_faster_clock_is_the_newer_one() {
    let mut cluster = cluster();
    cluster.at(1).wall_ahead_ns = 3_600_000_000_000;
    put(&mut cluster, 1, 1, r#"{"id":1,"n":"an hour ahead"}"#);
    cluster.pass(A_SECOND);
    put(&mut cluster, 0, 1, r#"{"id":1,"n":"after it"}"#);
    cluster.pass(A_SECOND);
    assert_eq!(records(&mut cluster), [r#"{"id":1,"n":"after it"}"#]);
    // The clock of the other one is set back.
    cluster.at(1).wall_ahead_ns = 0;
    put(&mut cluster, 1, 2, r#"{"id":1,"n":"set back"}"#);
    cluster.pass(A_SECOND);
    assert_eq!(records(&mut cluster), [r#"{"id":1,"n":"set back"}"#]);
    delete_all(&mut cluster, 0, 2);
    cluster.pass(A_SECOND);
    assert_eq!(records(&mut cluster), Vec::<String>::new());
    put(&mut cluster, 0, 3, r#"{"id":1,"n":"again"}"#);
    cluster.pass(A_SECOND);
    assert_eq!(records_after_restarts(&mut cluster), [r#"{"id":1,"n":"again"}"#]);
}

#[test]
fn a_publisher_that_moves_to_a_slower_clock_replaces_its_own_record() {
    let mut cluster = cluster();
    cluster.at(0).wall_ahead_ns = 3_600_000_000_000;
    cluster.partition(0, 1);
    put(&mut cluster, 0, 1, r#"{"id":1,"n":"before"}"#);
    cluster.pass(A_SECOND);
    cluster.at(0).disconnect(1);
    cluster.at(1).client(3, "publisher-a");
    cluster.at(1).publish(3, 2, "orders", r#"{"id":1,"n":"after"}"#);
    cluster.settle();
    cluster.heal();
    cluster.pass(A_MINUTE);
    assert_eq!(records_after_restarts(&mut cluster), [r#"{"id":1,"n":"after"}"#]);
}

#[test]
fn subscribers_with_records_see_only_the_changes_that_the_record_made() {
    let mut cluster = cluster();
    put(&mut cluster, 1, 1, r#"{"id":1,"n":0}"#);
    cluster.partition(0, 1);
    put(&mut cluster, 0, 1, r#"{"id":1,"n":1}"#);
    cluster.pass(A_SECOND);
    put(&mut cluster, 1, 2, r#"{"id":1,"n":2}"#);
    let filtered = Subscribe { filter: Some("/n > 1"), ..sow(3, "orders") };
    let subscribers =
        [(10, sow(1, "orders")), (11, sow_delta(2, "orders")), (12, filtered), (13, subscribe(4, "orders"))];
    for (client, subscribe) in subscribers {
        cluster.at(1).client(client, &format!("subscriber-{client}"));
        cluster.at(1).subscribe(client, &subscribe);
        cluster.settle();
        cluster.at(1).take(client);
    }
    cluster.heal();
    cluster.pass(A_MINUTE);
    for client in [10, 11, 12] {
        assert_eq!(cluster.at(1).take_rows(client), Vec::<String>::new(), "{client}");
    }
    assert_eq!(cluster.at(1).take_rows(13), [r#"+{"id":1,"n":1}"#], "without records it gets each message");
    put(&mut cluster, 0, 2, r#"{"id":1,"n":1}"#);
    cluster.pass(A_SECOND);
    assert_eq!(cluster.at(1).take_rows(10), [r#"+{"id":1,"n":1}"#]);
    assert_eq!(cluster.at(1).take_rows(11), [r#"~{"id":1,"n":1}"#]);
    assert_eq!(cluster.at(1).take_rows(12), [r#"-Match {"id":1,"n":1}"#]);
}

#[test]
fn without_replication_a_record_has_no_stamp() {
    let mut pair = with_topics([sow_topic("orders")]);
    for (sequence, data) in [(1, r#"{"id":1}"#), (2, r#"{"id":1}"#)] {
        pair.publish(1, sequence, "orders", data);
    }
    pair.turn();
    pair.delete(1, SowDelete { filter: Some("/id = 1"), ..delete(9, 3, "orders") });
    let mut cursor = pair.broker.journal().reader().cursor(quire_journal::Position::ZERO);
    let batch = cursor.next(pair.broker.journal().persisted(), &quire_journal::AllTopics).unwrap().unwrap();
    assert!(batch.records().all(|record| record.attributes.stamp().is_none()));
}
