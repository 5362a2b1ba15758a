//! Logs of several instances that agree in the end: late messages, and messages of two runs with
//! one bookmark (docs/internals/copies.md, *Decisions*).

use std::ops::RangeInclusive;

use quire_broker::{BrokerConfig, Event, SyncType};

use super::links::*;
use super::replication_runs::{A_MINUTE, answers, log_on, publish};

/// The sequences of the log of an instance, in its order, each with the first word of its data.
fn sequences(cluster: &mut Cluster, number: usize) -> Vec<(u64, String)> {
    let log = cluster.log(number).into_iter();
    log.map(|(_, sequence, data)| (sequence, data.split(' ').next().unwrap_or_default().to_owned())).collect()
}

fn of_run(sequences: RangeInclusive<u64>, run: &str) -> impl Iterator<Item = (u64, String)> {
    sequences.map(move |sequence| (sequence, run.to_owned()))
}

/// The messages that an instance has, in the order of their sequences.
fn sorted(cluster: &mut Cluster, number: usize) -> Vec<(u64, String)> {
    let mut found = sequences(cluster, number);
    found.sort();
    found
}

fn ring() -> Vec<BrokerConfig> {
    let to = |name: &str, to: &str| {
        let mut destination = destination(to, SyncType::Sync);
        destination.pass_through = vec![".*".into()];
        instance(name, vec![destination])
    };
    vec![to("a", "b"), to("b", "c"), to("c", "a")]
}

/// The conflicts of an instance: those of its destinations and those of its sources.
fn conflicts(cluster: &mut Cluster, number: usize) -> (u64, u64) {
    let stats = cluster.stats(number);
    let to = stats.destinations.iter().map(|link| link.conflict_count).sum();
    (to, stats.sources.iter().map(|link| link.conflict_count).sum())
}

/// Both runs use the sequences 4 and 5, each on another instance, before the instances can reach
/// each other again. The clients 1 and 2 are connected.
fn two_runs_with_one_bookmark(sync_type: SyncType) -> Cluster {
    let mut cluster = Cluster::new(pair_of(sync_type));
    log_on(&mut cluster, 0, 1, (11, 0, 1));
    publish(&mut cluster, 0, 1, 1..=3, "first");
    cluster.partition(0, 1);
    publish(&mut cluster, 0, 1, 4..=5, "first");
    log_on(&mut cluster, 1, 2, (22, 0, 1));
    publish(&mut cluster, 1, 2, 4..=6, "second");
    cluster
}

#[test]
fn a_publish_that_another_instance_has_of_another_run_gets_name_in_use_and_is_not_confirmed() {
    let mut cluster = two_runs_with_one_bookmark(SyncType::Sync);
    assert_eq!(answers(&mut cluster, 0, 1), (vec![], 3));
    assert_eq!(answers(&mut cluster, 1, 2), (vec![], 3));
    cluster.heal();
    cluster.pass(A_MINUTE);
    assert_eq!(answers(&mut cluster, 0, 1), (vec![4, 5], 0));
    assert_eq!(answers(&mut cluster, 1, 2), (vec![4, 5], 6));
    // Nothing is overwritten, and nothing else is missing.
    let first: Vec<_> = of_run(1..=5, "first").chain(of_run(6..=6, "second")).collect();
    let second: Vec<_> = of_run(1..=3, "first").chain(of_run(4..=6, "second")).collect();
    assert_eq!((sequences(&mut cluster, 0), sequences(&mut cluster, 1)), (first, second));
    let stats = cluster.stats(0);
    assert_eq!((stats.destinations[0].state, stats.destinations[0].acknowledged), ("live", 6));
}

#[test]
fn a_message_that_was_confirmed_is_not_refused_later() {
    let mut cluster = two_runs_with_one_bookmark(SyncType::Async);
    assert_eq!(answers(&mut cluster, 0, 1), (vec![], 5));
    cluster.heal();
    cluster.pass(A_MINUTE);
    assert_eq!(answers(&mut cluster, 0, 1), (vec![], 0));
    assert_eq!((conflicts(&mut cluster, 0), conflicts(&mut cluster, 1)), ((2, 2), (2, 2)));
}

#[test]
fn a_client_that_comes_back_is_refused_what_was_rejected_meanwhile() {
    let mut cluster = two_runs_with_one_bookmark(SyncType::Sync);
    cluster.at(0).disconnect(1);
    cluster.heal();
    cluster.pass(A_MINUTE);
    log_on(&mut cluster, 0, 3, (11, 3, 2));
    assert_eq!(answers(&mut cluster, 0, 3), (vec![], 3));
    publish(&mut cluster, 0, 3, 4..=5, "first");
    assert_eq!(answers(&mut cluster, 0, 3), (vec![4, 5], 0));
    // The same after a restart of the instance, and with a store that the program opens again.
    cluster.stop(0);
    cluster.start(0);
    cluster.pass(A_MINUTE);
    log_on(&mut cluster, 0, 4, (11, 3, 1));
    assert_eq!(answers(&mut cluster, 0, 4), (vec![], 3));
    publish(&mut cluster, 0, 4, 4..=5, "first");
    assert_eq!(answers(&mut cluster, 0, 4), (vec![4, 5], 0));
}

#[test]
fn conflicts_are_counted_on_both_sides_and_over_restarts_and_connections() {
    let mut cluster = two_runs_with_one_bookmark(SyncType::Sync);
    cluster.heal();
    cluster.pass(A_MINUTE);
    for _ in 0..2 {
        for number in 0..2 {
            assert_eq!(conflicts(&mut cluster, number), (2, 2), "instance {number}");
            cluster.kill(number);
            cluster.start(number);
            cluster.pass(A_MINUTE);
        }
    }
    cluster.kill(1);
    cluster.pass(A_MINUTE);
    let stats = cluster.stats(0);
    assert_eq!((stats.sources[0].state, &*stats.sources[0].name), ("away", "b"));
    assert_eq!(stats.sources[0].conflict_count, 2);
}

#[test]
fn each_publisher_with_conflicts_is_logged_once() {
    let mut cluster = two_runs_with_one_bookmark(SyncType::Sync);
    cluster.heal();
    cluster.pass(A_MINUTE);
    let log = &cluster.at(0).log;
    let lines: Vec<_> = log.iter().filter(|event| matches!(event.id(), "12-0009" | "12-0011")).collect();
    let names = |event: &&&Event| event.to_string().contains("|4|");
    assert_eq!((lines.len(), lines.iter().filter(names).count()), (2, 2), "{lines:?}");
}

#[test]
fn a_rejection_is_passed_on_to_the_instance_with_the_publisher() {
    let mut cluster = Cluster::new(ring());
    log_on(&mut cluster, 0, 1, (11, 0, 1));
    publish(&mut cluster, 0, 1, 1..=3, "first");
    assert_eq!(answers(&mut cluster, 0, 1), (vec![], 3));
    // `c` is alone, and takes a publish of another run. Then `b` gets the message of the first run.
    cluster.partition(1, 2);
    cluster.partition(0, 2);
    log_on(&mut cluster, 2, 2, (22, 0, 1));
    publish(&mut cluster, 2, 2, 4..=4, "second");
    publish(&mut cluster, 0, 1, 4..=5, "first");
    assert_eq!(answers(&mut cluster, 0, 1), (vec![], 0));
    cluster.heal();
    cluster.pass(A_MINUTE);
    assert_eq!(answers(&mut cluster, 0, 1), (vec![4], 5));
    assert_eq!(answers(&mut cluster, 2, 2), (vec![4], 3));
}

#[test]
fn a_rejection_that_was_passed_on_survives_the_instance_between() {
    let mut cluster = Cluster::new(ring());
    log_on(&mut cluster, 0, 1, (11, 0, 1));
    publish(&mut cluster, 0, 1, 1..=3, "first");
    cluster.partition(1, 2);
    cluster.partition(0, 2);
    log_on(&mut cluster, 2, 2, (22, 0, 1));
    publish(&mut cluster, 2, 2, 4..=4, "second");
    publish(&mut cluster, 0, 1, 4..=5, "first");
    answers(&mut cluster, 0, 1);
    // `b` hears of the rejection while it cannot tell `a`.
    cluster.partition(0, 1);
    cluster.heal();
    cluster.partition(0, 1);
    cluster.partition(0, 2);
    cluster.pass(A_MINUTE);
    cluster.kill(1);
    cluster.start(1);
    cluster.pass(A_MINUTE);
    assert_eq!(answers(&mut cluster, 0, 1), (vec![], 0));
    cluster.heal();
    cluster.pass(A_MINUTE);
    assert_eq!(answers(&mut cluster, 0, 1), (vec![4], 5));
}

/// A program is killed while its messages are on their way, and its next run continues on the other
/// instance. Nothing is confirmed that no instance has.
#[test]
fn nothing_is_confirmed_that_the_logs_do_not_have() {
    for publishes_first in [false, true] {
        let mut cluster = Cluster::new(pair_of(SyncType::Sync));
        log_on(&mut cluster, 0, 1, (11, 0, 1));
        publish(&mut cluster, 0, 1, 1..=3, "first");
        cluster.partition(0, 1);
        publish(&mut cluster, 0, 1, 4..=8, "first");
        cluster.at(0).disconnect(1);
        log_on(&mut cluster, 1, 2, (22, 0, 1));
        if !publishes_first {
            cluster.heal();
            cluster.pass(A_MINUTE);
        }
        publish(&mut cluster, 1, 2, 4..=9, "second");
        cluster.heal();
        cluster.pass(A_MINUTE);
        let (refused, confirmed) = answers(&mut cluster, 1, 2);
        assert_eq!((&refused[..], confirmed), (&[4, 5, 6, 7, 8][..], 9));
        for number in 0..2 {
            let log = sequences(&mut cluster, number);
            assert!(log.contains(&(9, "second".to_owned())), "{log:?}");
            assert_eq!(log.len(), 9, "{log:?}");
        }
    }
}

/// The disk of an instance is lost, and an operator lets a client in before the instance was
/// filled. The older messages of its publisher arrive later, and are recorded.
#[test]
fn a_lost_disk_is_filled_although_a_client_was_let_in_before() {
    let pair = pair_of(SyncType::Async);
    for configs in [ring(), pair] {
        let last = configs.len() - 1;
        let mut cluster = Cluster::new(configs);
        log_on(&mut cluster, 0, 1, (11, 0, 1));
        publish(&mut cluster, 0, 1, 1..=300, "first");
        assert_eq!(answers(&mut cluster, 0, 1), (vec![], 300));
        cluster.destroy(0);
        cluster.start(0);
        // The instance that sends to it does not reach it for now.
        (1..=last).for_each(|other| cluster.partition(0, other));
        cluster.admit(0);
        log_on(&mut cluster, 0, 2, (11, 300, 2));
        cluster.pass(A_MINUTE);
        publish(&mut cluster, 0, 2, 301..=302, "first");
        cluster.heal();
        cluster.pass(A_MINUTE);
        let expected: Vec<_> = of_run(1..=302, "first").collect();
        for number in 0..=last {
            assert_eq!(sorted(&mut cluster, number), expected, "instance {number}");
        }
        assert_eq!(sequences(&mut cluster, 0)[..3], [301, 302, 1].map(|s| (s, "first".to_owned())));
        // Also after a restart: no message is recorded twice, and none is missing.
        cluster.kill(0);
        cluster.start(0);
        cluster.pass(A_MINUTE);
        assert_eq!(sorted(&mut cluster, 0), expected);
    }
}

#[test]
fn a_late_message_is_sent_on_and_comes_to_subscriptions() {
    let mut cluster = Cluster::new(pair_of(SyncType::Async));
    log_on(&mut cluster, 0, 1, (11, 0, 1));
    publish(&mut cluster, 0, 1, 1..=3, "first");
    cluster.partition(0, 1);
    publish(&mut cluster, 0, 1, 4..=5, "first");
    cluster.at(0).disconnect(1);
    // The client has heard of 5, and `b` has 3.
    log_on(&mut cluster, 1, 2, (11, 5, 2));
    publish(&mut cluster, 1, 2, 6..=7, "first");
    cluster.heal();
    cluster.pass(A_MINUTE);
    let order = |sequences: &[u64]| sequences.iter().map(|s| (*s, "first".to_owned())).collect::<Vec<_>>();
    assert_eq!(sequences(&mut cluster, 0), order(&[1, 2, 3, 4, 5, 6, 7]));
    assert_eq!(sequences(&mut cluster, 1), order(&[1, 2, 3, 6, 7, 4, 5]));
    let reader = cluster.at(1).broker.journal();
    assert!(reader.holes(quire_journal::PublisherId::of_client_name("p")).is_empty());
}

#[test]
fn two_messages_without_a_run_are_compared_by_their_contents() {
    let mut cluster = Cluster::new(pair_of(SyncType::Sync));
    cluster.at(0).client(1, "p");
    cluster.publish(0, 1, 1, 3);
    cluster.partition(0, 1);
    cluster.publish(0, 1, 4, 3);
    cluster.at(1).client(2, "p");
    cluster.publish(1, 2, 4, 2);
    cluster.at(1).publish(2, 6, "orders", "another message");
    cluster.heal();
    cluster.pass(A_MINUTE);
    assert_eq!((conflicts(&mut cluster, 0), conflicts(&mut cluster, 1)), ((1, 1), (1, 1)));
    // The sequence names the message: it counts as a duplicate.
    assert_eq!(cluster.persisted(0, 1), 6);
    assert_eq!(cluster.persisted(1, 2), 6);
}

#[test]
fn messages_without_a_run_come_over_two_paths_and_are_recorded_once() {
    let to = |name: &str| {
        let others = ["a", "b", "c"].into_iter().filter(|other| *other != name);
        let destination = |other| {
            let mut destination = destination(other, SyncType::Sync);
            destination.pass_through = vec![".*".into()];
            destination
        };
        instance(name, others.map(destination).collect())
    };
    let mut cluster = Cluster::new(vec![to("a"), to("b"), to("c")]);
    cluster.at(0).client(1, "p");
    for round in 0..3 {
        cluster.publish(0, 1, 1 + 50 * round, 50);
    }
    cluster.pass(A_MINUTE);
    let log = cluster.sorted(0);
    assert_eq!(log.len(), 150);
    assert_eq!((cluster.sorted(1), cluster.sorted(2)), (log.clone(), log));
    for number in 0..3 {
        assert_eq!(conflicts(&mut cluster, number), (0, 0));
    }
}

#[test]
fn a_log_that_is_offered_again_is_compared_with_the_log_here() {
    let mut cluster = Cluster::new(pair_of(SyncType::Sync));
    cluster.at(0).client(1, "p");
    cluster.publish(0, 1, 1, 2000);
    cluster.at(1).client(2, "q");
    cluster.publish(1, 2, 1, 10);
    // Without the file of the places, everything is sent again.
    cluster.stop(0);
    let path = std::path::Path::new("journal/destinations.place");
    quire_journal::Disk::remove(&*cluster.disks[0], path).unwrap();
    cluster.start(0);
    cluster.pass(A_MINUTE);
    let stats = cluster.stats(1);
    assert!(stats.sources[0].duplicate_count >= 2000, "{stats:?}");
    assert_eq!((conflicts(&mut cluster, 0), conflicts(&mut cluster, 1)), ((0, 0), (0, 0)));
    assert_eq!((cluster.log(0).len(), cluster.log(1).len()), (2010, 2010));
}

/// The age of the oldest record that a destination lacks is right after a restart of its source,
/// and while the link is refused, paused or away.
#[test]
fn seconds_behind_is_the_age_of_the_oldest_record_that_the_destination_lacks() {
    let mut configs = pair_of(SyncType::Async);
    configs[1].replication.destinations.clear();
    configs[0].replication.destinations[0].exclude_validation = vec!["replicate".into()];
    let mut cluster = Cluster::new(configs);
    let behind = |cluster: &mut Cluster| cluster.stats(0).destinations[0].seconds_behind;
    log_on(&mut cluster, 0, 1, (11, 0, 1));
    publish(&mut cluster, 0, 1, 1..=3, "first");
    cluster.pass(A_MINUTE);
    assert_eq!(behind(&mut cluster), 0.0);
    // Away, over a restart, and with a publish of another topic, which no link sends.
    cluster.kill(1);
    publish(&mut cluster, 0, 1, 4..=5, "first");
    cluster.at(0).publish(1, 6, "local", "stays here");
    cluster.pass(A_MINUTE);
    assert_eq!(behind(&mut cluster), 60.0);
    cluster.stop(0);
    cluster.start(0);
    cluster.pass(A_MINUTE);
    assert_eq!(behind(&mut cluster), 120.0);
    // Paused, with another restart before.
    let link = |action| quire_broker::AdminCommand::Link { destination: "b".into(), action };
    cluster.admin(0, link(quire_command::LinkAction::Pause));
    cluster.start(1);
    cluster.pass(A_MINUTE);
    assert_eq!(behind(&mut cluster), 180.0);
    cluster.admin(0, link(quire_command::LinkAction::Resume));
    cluster.pass(A_MINUTE);
    assert_eq!((behind(&mut cluster), cluster.log(1).len()), (0.0, 5));
    // Only records that no link sends wait.
    cluster.kill(1);
    log_on(&mut cluster, 0, 2, (11, 5, 3));
    cluster.at(0).publish(2, 7, "local", "stays here");
    cluster.stop(0);
    cluster.start(0);
    cluster.pass(A_MINUTE);
    assert_eq!(behind(&mut cluster), 0.0);
    // Refused.
    log_on(&mut cluster, 0, 3, (11, 7, 4));
    publish(&mut cluster, 0, 3, 8..=8, "first");
    let mut other = instance("b", vec![]);
    other.transaction_log.topics.clear();
    other.transaction_log.topics.push(quire_broker::RecordedTopic::new("^local", "json"));
    cluster.configure(1, other);
    cluster.start(1);
    cluster.pass(A_MINUTE);
    let stats = cluster.stats(0);
    assert_eq!((stats.destinations[0].state, stats.destinations[0].seconds_behind), ("refused", 60.0));
}
