//! Instances compare their logs when a link has caught up, and ask for what they lack
//! (docs/internals/copies.md, *Holes*).

use std::time::Duration;

use quire_broker::{AdminCommand, AdminReply, BrokerConfig, Event, RecordedTopic, ReplicatedTopic, SyncType};
use quire_command::LinkAction;
use quire_journal::Which;

use super::links::*;
use super::replication_gap::{with_a_gap, with_a_gap_and_the_lost_disk};
use super::replication_runs::{A_MINUTE, log_on, publish};

/// The sequences of the log of an instance, ascending.
pub fn sequences(cluster: &mut Cluster, number: usize) -> Vec<u64> {
    let mut found: Vec<_> = cluster.log(number).into_iter().map(|(_, sequence, _)| sequence).collect();
    found.sort_unstable();
    found
}

/// A destination that gets these topics.
fn with_topics(mut config: BrokerConfig, topics: &[(&str, Option<&str>)]) -> BrokerConfig {
    let topic = |(name, filter): &(&str, Option<&str>)| ReplicatedTopic {
        name: (*name).into(),
        message_type: "json".into(),
        filter: filter.map(str::to_owned),
    };
    config.replication.destinations[0].topics = topics.iter().map(topic).collect();
    config
}

/// `a` sends these topics to `b`, which sends nothing.
fn one_way(topics: &[(&str, Option<&str>)]) -> Cluster {
    let a = with_topics(instance("a", vec![destination("b", SyncType::Async)]), topics);
    Cluster::new(vec![a, instance("b", vec![])])
}

/// The second of each two messages goes to the topic `local`.
fn publish_on_two_topics(cluster: &mut Cluster, count: u64) {
    for sequence in 1..=count {
        let topic = if sequence.is_multiple_of(2) { "local" } else { "orders" };
        cluster.at(0).publish(1, sequence, topic, &format!("{{\"n\":{sequence}}}"));
    }
    cluster.settle();
    cluster.pass(Duration::from_secs(3));
}

/// The connections of all links are made again.
pub fn connect_again(cluster: &mut Cluster) {
    cluster.partition(0, 1);
    cluster.pass(A_MINUTE);
    cluster.heal();
    cluster.pass(A_MINUTE);
}

fn sent(cluster: &mut Cluster) -> u64 {
    cluster.stats(0).destinations[0].sent_count
}

pub fn lines(cluster: &mut Cluster, number: usize, id: &str) -> usize {
    cluster.at(number).log.iter().filter(|event| event.id() == id).count()
}

#[test]
fn a_link_that_is_made_wider_fills_in_what_it_left_out() {
    let mut cluster = one_way(&[("orders", None)]);
    cluster.at(0).client(1, "p");
    publish_on_two_topics(&mut cluster, 9);
    assert_eq!(sequences(&mut cluster, 1), [1, 3, 5, 7, 9]);
    let a = instance("a", vec![destination("b", SyncType::Async)]);
    cluster.configure(0, with_topics(a, &[("^", None)]));
    cluster.stop(0);
    cluster.start(0);
    cluster.pass(A_MINUTE);
    assert_eq!(sequences(&mut cluster, 1), (1..=9).collect::<Vec<_>>());
    assert_eq!(cluster.stats(1).missing, 0);
    let line = |event: &&Event| matches!(event, Event::LinkCompared { source, count: 4 } if source == "a");
    assert_eq!(cluster.at(1).log.iter().filter(line).count(), 1);
}

#[test]
fn messages_that_a_link_leaves_out_are_no_gap_and_are_not_sent() {
    let mut cluster = one_way(&[("orders", Some("/n != 5"))]);
    cluster.at(0).client(1, "p");
    publish_on_two_topics(&mut cluster, 9);
    for _ in 0..3 {
        connect_again(&mut cluster);
        assert_eq!(sequences(&mut cluster, 1), [1, 3, 7, 9]);
        let stats = cluster.stats(1);
        assert_eq!((stats.missing, stats.sources[0].state, sent(&mut cluster)), (0, "live", 4));
    }
    assert_eq!(lines(&mut cluster, 1, "12-0019"), 0);
}

#[test]
fn messages_that_the_log_of_the_destination_leaves_out_are_no_gap() {
    let a = instance("a", vec![destination("b", SyncType::Async)]);
    let mut b = instance("b", vec![]);
    let filter = Some("/n != 5".to_owned());
    b.transaction_log.topics = vec![RecordedTopic { filter, ..RecordedTopic::new("^orders", "json") }];
    let mut cluster = Cluster::new(vec![a, b]);
    cluster.at(0).client(1, "p");
    cluster.publish(0, 1, 1, 9);
    for round in 0..3 {
        assert_eq!(sequences(&mut cluster, 1), [1, 2, 3, 4, 6, 7, 8, 9]);
        let stats = cluster.stats(1);
        assert_eq!((stats.missing, stats.sources[0].state), (0, "live"));
        // At each connect, it is sent once more.
        assert_eq!(sent(&mut cluster), 9 + round);
        connect_again(&mut cluster);
    }
}

/// The messages 4 and 5 are on `a` only, and its disk is lost. The client continues on `b`.
pub fn with_lost_messages() -> Cluster {
    let mut cluster = Cluster::new(pair_of(SyncType::Async));
    log_on(&mut cluster, 0, 1, (11, 0, 1));
    publish(&mut cluster, 0, 1, 1..=3, "first");
    cluster.partition(0, 1);
    publish(&mut cluster, 0, 1, 4..=5, "first");
    log_on(&mut cluster, 1, 2, (11, 5, 2));
    publish(&mut cluster, 1, 2, 6..=7, "first");
    cluster
}

#[test]
fn messages_that_no_instance_has_are_a_gap_that_is_shown_again_after_a_restart() {
    let mut cluster = with_a_gap();
    for restarts in 0..2 {
        for number in 0..2 {
            assert_eq!(sequences(&mut cluster, number), [1, 2, 3, 6, 7]);
            let stats = cluster.stats(number);
            assert_eq!((stats.missing, stats.sources[0].state), (2, "gap"), "{number} {restarts}");
            let range = stats.missing_ranges[0];
            assert_eq!((range.first, range.last, stats.missing_ranges.len()), (4, 5, 1));
            assert_eq!(lines(&mut cluster, number, "12-0019"), 1);
        }
        for number in 0..2 {
            cluster.stop(number);
            cluster.start(number);
        }
        cluster.pass(A_MINUTE);
    }
}

#[test]
fn a_gap_ends_when_an_instance_with_the_messages_returns() {
    let (mut cluster, disk) = with_a_gap_and_the_lost_disk();
    cluster.kill(0);
    cluster.disks[0] = disk;
    cluster.start(0);
    cluster.pass(A_MINUTE);
    for number in 0..2 {
        assert_eq!(sequences(&mut cluster, number), (1..=7).collect::<Vec<_>>());
        let stats = cluster.stats(number);
        assert_eq!((stats.missing, stats.sources[0].state), (0, "live"));
    }
}

#[test]
fn messages_that_returned_to_their_instance_go_to_the_others() {
    // `b` has messages of `a` that `c` lacks, and does not pass on messages of `a`. `a` has lost
    // its disk. `b` sends them back. `a` has them at the next connect of `c`.
    let to = |names: &[&str]| names.iter().map(|name| destination(name, SyncType::Async)).collect();
    let configs =
        vec![instance("a", to(&["b", "c"])), instance("b", to(&["a", "c"])), instance("c", to(&["a", "b"]))];
    let mut cluster = Cluster::new(configs);
    cluster.at(0).client(1, "p");
    cluster.partition(0, 2);
    cluster.publish(0, 1, 1, 3);
    cluster.destroy(0);
    cluster.heal();
    cluster.pass(A_MINUTE);
    assert!(sequences(&mut cluster, 2).is_empty(), "without a path");
    cluster.start(0);
    cluster.pass(A_MINUTE);
    assert_eq!(sequences(&mut cluster, 0), [1, 2, 3]);
    cluster.partition(0, 2);
    cluster.pass(A_MINUTE);
    cluster.heal();
    cluster.pass(A_MINUTE);
    for number in 0..3 {
        assert_eq!(sequences(&mut cluster, number), [1, 2, 3], "{number}");
    }
}

#[test]
fn messages_of_removed_files_are_no_gap() {
    let mut cluster = Cluster::new(pair_of(SyncType::Async));
    cluster.at(0).client(1, "p");
    for sequence in 1..=200 {
        let data = format!("{{\"n\":{sequence},\"text\":\"{}\"}}", "x".repeat(10_000));
        cluster.at(0).publish(1, sequence, "orders", &data);
    }
    cluster.pass(Duration::from_secs(3));
    let broker = &cluster.at(0).broker;
    let needed = broker.needed_position();
    let removed = broker.journal().maintenance().remove(Which::All, needed).unwrap();
    assert!(removed.len() >= 4, "{}", removed.len());
    cluster.destroy(1);
    cluster.start(1);
    cluster.pass(A_MINUTE);
    let log = sequences(&mut cluster, 1);
    assert!(log.len() > 1 && log.len() < 200);
    for number in 0..2 {
        assert_eq!(cluster.stats(number).missing, 0, "{number}");
    }
    let sent_count = sent(&mut cluster);
    connect_again(&mut cluster);
    assert_eq!((sequences(&mut cluster, 1), sent(&mut cluster)), (log, sent_count));
}

#[test]
fn a_command_and_an_interval_begin_a_comparison() {
    let compare = |name: &str| AdminCommand::Link { destination: name.into(), action: LinkAction::Compare };
    let mut configs = pair_of(SyncType::Async);
    configs[1].replication.compare_interval_ns = Some(3_600_000_000_000);
    let mut cluster = Cluster::new(configs);
    cluster.pass(A_MINUTE);
    let before = cluster.stats(0).comparisons;
    assert!(before > 0);
    let AdminReply::Replication(_) = cluster.admin(0, compare("a")) else { panic!() };
    cluster.pass(A_MINUTE);
    assert_eq!(cluster.stats(0).comparisons, before + 1);
    let AdminReply::Refused { reason, .. } = cluster.admin(0, compare("b")) else { panic!() };
    assert_eq!(reason, "compare: the name is that of the server, \"a\"");
    let before = cluster.stats(1).comparisons;
    cluster.pass(Duration::from_secs(3 * 3_600));
    assert_eq!(cluster.stats(1).comparisons, before + 3);
    // Without a source there is nothing to compare, and the command does not wait.
    cluster.kill(1);
    cluster.settle();
    let before = cluster.stats(0).comparisons;
    cluster.admin(0, compare("a"));
    assert_eq!(cluster.stats(0).comparisons, before + 1);
}
