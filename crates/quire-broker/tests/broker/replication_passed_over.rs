//! An instance refuses a message, or delivers it without a record, and records a later one of its
//! publisher. No log has the message, so no instance confirms it when the client has lost the
//! answer (docs/internals/copies.md, *Decisions*).

use quire_broker::{BrokerConfig, RecordedTopic, SyncType};
use quire_command::*;
use quire_journal::{Bookmark, Held, PublisherId};

use super::links::*;
use super::pair::{Said, publish as publish_of, subscribe};
use super::replication_compare::{connect_again, sequences};
use super::replication_runs::{A_MINUTE, answers, log_on, publish};

/// With `scratch`, which is not recorded, and with these recorded topics.
fn with_topics(mut config: BrokerConfig, names: &[&str]) -> BrokerConfig {
    let topics = &mut config.transaction_log.topics;
    topics.push(RecordedTopic { recorded: false, ..RecordedTopic::new("scratch", "json") });
    topics.extend(names.iter().map(|name| RecordedTopic::new(name, "json")));
    config
}

/// A pair, of which `b` records `other`. `a` refuses it, because no entry names it.
fn pair() -> Cluster {
    let [a, b] = pair_of(SyncType::Async).try_into().unwrap();
    Cluster::new(vec![with_topics(a, &[]), with_topics(b, &["other"])])
}

fn publish_on(cluster: &mut Cluster, number: usize, client: u64, sequence: u64, topic: &str) {
    cluster.at(number).publish(client, sequence, topic, &format!("first {sequence}"));
    cluster.settle();
}

/// `a` has 1 to 3 and 5. It has taken 4 on the topic. The client got the answers up to 3.
fn with_4_on(topic: &str) -> Cluster {
    let mut cluster = pair();
    log_on(&mut cluster, 0, 1, (11, 0, 1));
    publish(&mut cluster, 0, 1, 1..=3, "first");
    publish_on(&mut cluster, 0, 1, 4, topic);
    publish(&mut cluster, 0, 1, 5..=5, "first");
    cluster.pass(A_MINUTE);
    assert_eq!(order(&mut cluster, 0), [1, 2, 3, 5]);
    assert_eq!(order(&mut cluster, 1), [1, 2, 3, 5]);
    cluster.at(0).disconnect(1);
    cluster.settle();
    cluster
}

/// The sequences of a log in its order.
fn order(cluster: &mut Cluster, number: usize) -> Vec<u64> {
    cluster.log(number).into_iter().map(|(_, sequence, _)| sequence).collect()
}

fn refused(sequence: u64) -> Said {
    Said::Failed { sequence, code: Code::NotJournaled, scope: FailureScope::One }
}

/// Nothing is missing, and both logs have the same messages.
fn check_equal(cluster: &mut Cluster) {
    connect_again(cluster);
    for number in 0..2 {
        let stats = cluster.stats(number);
        assert_eq!((stats.state, stats.missing, stats.missing_total), ("live", 0, 0), "{number}");
        assert_eq!(stats.sources[0].conflict_count, 0);
    }
    let digests =
        [0, 1].map(|number| cluster.at(number).broker.journal().publisher_digests(0).collect::<Vec<_>>());
    assert!(!digests[0].is_empty() && digests[0] == digests[1], "{digests:?}");
}

#[test]
fn after_a_restart_a_message_that_was_refused_is_not_confirmed_and_is_refused_again() {
    let mut cluster = with_4_on("other");
    cluster.kill(0);
    cluster.start(0);
    cluster.settle();
    log_on(&mut cluster, 0, 2, (11, 3, 2));
    assert_eq!(answers(&mut cluster, 0, 2), (vec![], 3), "4 is not confirmed");
    publish_on(&mut cluster, 0, 2, 4, "other");
    assert_eq!(cluster.at(0).take(2), [refused(4)]);
    publish(&mut cluster, 0, 2, 5..=6, "first");
    assert_eq!(answers(&mut cluster, 0, 2), (vec![], 6));
    assert_eq!(order(&mut cluster, 0), [1, 2, 3, 5, 6]);
    // It was reported as refused, so the client does not have it any more.
    cluster.at(0).disconnect(2);
    log_on(&mut cluster, 0, 3, (11, 6, 3));
    assert_eq!(answers(&mut cluster, 0, 3), (vec![], 6));
    check_equal(&mut cluster);
}

#[test]
fn a_message_that_another_instance_refused_is_recorded_late_where_it_is_accepted() {
    let mut cluster = with_4_on("other");
    log_on(&mut cluster, 1, 2, (11, 3, 2));
    assert_eq!(answers(&mut cluster, 1, 2), (vec![], 3), "4 is not confirmed");
    publish_on(&mut cluster, 1, 2, 4, "other");
    assert_eq!(answers(&mut cluster, 1, 2), (vec![], 4));
    publish(&mut cluster, 1, 2, 5..=6, "first");
    assert_eq!(answers(&mut cluster, 1, 2), (vec![], 6));
    assert_eq!(order(&mut cluster, 1), [1, 2, 3, 5, 4, 6]);
    cluster.pass(A_MINUTE);
    assert_eq!(order(&mut cluster, 0), [1, 2, 3, 5, 6]);
    connect_again(&mut cluster);
    assert_eq!([0, 1].map(|number| cluster.stats(number).state), ["live"; 2]);
}

#[test]
fn a_message_that_was_delivered_without_a_record_is_delivered_by_the_other_instance() {
    let mut cluster = with_4_on("scratch");
    cluster.at(1).client(9, "reader");
    cluster.at(1).subscribe(9, &subscribe(1, "scratch"));
    log_on(&mut cluster, 1, 2, (11, 3, 2));
    assert_eq!(answers(&mut cluster, 1, 2), (vec![], 3), "4 is not confirmed");
    publish_on(&mut cluster, 1, 2, 4, "scratch");
    assert_eq!(answers(&mut cluster, 1, 2), (vec![], 4));
    let is_message = |said: &Said| matches!(said, Said::Message { data, .. } if data == "first 4");
    assert_eq!(cluster.at(1).take(9).iter().filter(|said| is_message(said)).count(), 1);
    publish(&mut cluster, 1, 2, 5..=5, "first");
    assert_eq!(answers(&mut cluster, 1, 2), (vec![], 5));
    check_equal(&mut cluster);
}

#[test]
fn messages_that_were_confirmed_to_the_client_are_not_asked_for_again() {
    let mut cluster = with_4_on("other");
    for (number, client) in [(0, 2), (1, 3)] {
        log_on(&mut cluster, number, client, (11, 4, client as u32));
        assert_eq!(answers(&mut cluster, number, client), (vec![], 5));
        cluster.at(number).disconnect(client);
        cluster.settle();
    }
    check_equal(&mut cluster);
}

#[test]
fn another_run_cannot_use_a_sequence_that_was_passed_over() {
    let mut cluster = with_4_on("other");
    log_on(&mut cluster, 1, 2, (22, 0, 1));
    assert_eq!(answers(&mut cluster, 1, 2), (vec![], 5));
    publish(&mut cluster, 1, 2, 4..=4, "second");
    assert_eq!(answers(&mut cluster, 1, 2).0, [4], "the run 11 is the current one");
    publish(&mut cluster, 1, 2, 6..=6, "second");
    assert_eq!(answers(&mut cluster, 1, 2), (vec![], 6));
    cluster.at(1).disconnect(2);
    log_on(&mut cluster, 1, 3, (11, 3, 2));
    publish_on(&mut cluster, 1, 3, 4, "other");
    assert_eq!(answers(&mut cluster, 1, 3).0, [4], "the run 22 is the current one");
    assert_eq!(order(&mut cluster, 1), [1, 2, 3, 5, 6]);
}

#[test]
fn a_record_of_a_link_is_recorded_late_where_its_sequence_was_passed_over() {
    let mut cluster = pair();
    log_on(&mut cluster, 0, 1, (11, 0, 1));
    publish(&mut cluster, 0, 1, 1..=3, "first");
    cluster.partition(0, 1);
    cluster.pass(A_MINUTE);
    publish_on(&mut cluster, 0, 1, 4, "other");
    publish(&mut cluster, 0, 1, 5..=5, "first");
    cluster.at(0).disconnect(1);
    log_on(&mut cluster, 1, 2, (11, 3, 2));
    publish(&mut cluster, 1, 2, 4..=4, "first");
    assert_eq!(answers(&mut cluster, 1, 2), (vec![], 4));
    cluster.heal();
    cluster.pass(A_MINUTE);
    assert_eq!(order(&mut cluster, 0), [1, 2, 3, 5, 4]);
    assert_eq!(order(&mut cluster, 1), [1, 2, 3, 4, 5]);
    assert_eq!(cluster.stats(1).destinations[0].seconds_behind, 0.0);
    check_equal(&mut cluster);
}

#[test]
fn an_instance_with_many_refusals_stays_live_and_its_log_equals_the_other_one() {
    let mut cluster = pair();
    log_on(&mut cluster, 0, 1, (11, 0, 1));
    for sequence in 1..=300 {
        let topic = ["orders", "other", "scratch"][sequence as usize % 3];
        publish_on(&mut cluster, 0, 1, sequence, topic);
    }
    cluster.pass(A_MINUTE);
    assert_eq!(sequences(&mut cluster, 1).len(), 100);
    check_equal(&mut cluster);
}

/// The odd messages go to `orders`, and the even ones to `scratch`.
fn alternate(cluster: &mut Cluster, number: usize, client: u64, sequences: std::ops::RangeInclusive<u64>) {
    for sequence in sequences {
        let topic = if sequence.is_multiple_of(2) { "scratch" } else { "orders" };
        cluster.at(number).publish(client, sequence, topic, &format!("first {sequence}"));
    }
    cluster.settle();
}

fn odd(last: u64) -> Vec<u64> {
    (1..=last).step_by(2).collect()
}

#[test]
fn a_client_with_each_second_message_unrecorded_sends_only_unconfirmed_ones_again() {
    let mut cluster = pair();
    log_on(&mut cluster, 0, 1, (11, 0, 1));
    // The journal does not know the messages between the lower ones for certain.
    let last = 399;
    alternate(&mut cluster, 0, 1, 1..=last);
    assert_eq!(answers(&mut cluster, 0, 1), (vec![], last));
    cluster.at(0).disconnect(1);
    for (connection, (persisted, named)) in
        (2..).zip([(last, last), (last - 1, last), (last - 2, last - 2), (0, 1), (100, 100)])
    {
        let client = u64::from(connection);
        log_on(&mut cluster, 0, client, (11, persisted, connection));
        assert_eq!(answers(&mut cluster, 0, client), (vec![], named), "{persisted}");
        alternate(&mut cluster, 0, client, persisted + 1..=last);
        assert!(answers(&mut cluster, 0, client).1 == last || named == last);
        cluster.at(0).disconnect(client);
        cluster.settle();
    }
    assert_eq!(order(&mut cluster, 0), odd(last));
    check_equal(&mut cluster);
}

#[test]
fn a_message_between_merged_ranges_is_recorded_once_when_its_connection_repeats_it() {
    let mut cluster = pair();
    log_on(&mut cluster, 0, 1, (11, 0, 1));
    cluster.at(0).writes_at_once = false;
    for _ in 0..2 {
        alternate(&mut cluster, 0, 1, 1..=399);
    }
    cluster.at(0).writes_at_once = true;
    cluster.settle();
    assert_eq!(order(&mut cluster, 0), odd(399));
}

#[test]
fn a_message_between_merged_ranges_is_recorded_once_when_a_link_has_just_sent_it() {
    let mut cluster = pair();
    cluster.partition(0, 1);
    cluster.pass(A_MINUTE);
    log_on(&mut cluster, 0, 1, (11, 0, 1));
    alternate(&mut cluster, 0, 1, 1..=399);
    cluster.at(0).disconnect(1);
    log_on(&mut cluster, 1, 2, (11, 0, 2));
    cluster.at(1).writes_at_once = false;
    cluster.heal();
    cluster.pass(A_MINUTE);
    alternate(&mut cluster, 1, 2, 1..=399);
    cluster.at(1).writes_at_once = true;
    cluster.settle();
    cluster.pass(A_MINUTE);
    assert_eq!(sequences(&mut cluster, 1), odd(399));
    check_equal(&mut cluster);
}

#[test]
fn a_sequence_that_a_program_skipped_is_recorded_when_it_comes_after_all() {
    let mut cluster = pair();
    log_on(&mut cluster, 0, 1, (11, 0, 1));
    let numbered = |cluster: &mut Cluster, client, sequences: &[u64]| {
        for sequence in sequences {
            let publish = Publish { is_numbered: true, ..publish_of(*sequence, "orders", "{}") };
            cluster.at(0).send(client, &Command::Publish(publish));
        }
        cluster.settle();
    };
    numbered(&mut cluster, 1, &[10, 20, 30]);
    cluster.at(0).disconnect(1);
    log_on(&mut cluster, 0, 2, (11, 30, 2));
    numbered(&mut cluster, 2, &[15, 20, 40]);
    assert_eq!(order(&mut cluster, 0), [10, 20, 30, 15, 40]);
    cluster.pass(A_MINUTE);
    check_equal(&mut cluster);
}

#[test]
fn what_was_passed_over_is_known_after_a_restart() {
    let mut cluster = with_4_on("other");
    let bookmark = Bookmark::new(PublisherId::of_client_name("p"), 4);
    for _ in 0..2 {
        let journal = cluster.at(0).broker.journal();
        assert_eq!((journal.held(bookmark), journal.hole_at(bookmark)), (Held::Missing, Some((4, 4))));
        assert_eq!(journal.exact_holes_of(bookmark.publisher).next(), None, "no comparison asks for it");
        cluster.stop(0);
        cluster.start(0);
        cluster.settle();
    }
}
