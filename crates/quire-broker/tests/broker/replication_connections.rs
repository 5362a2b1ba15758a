//! The two links between a pair of instances share a connection, and do not disturb each other
//! there.

use std::time::Duration;

use quire_broker::{AdminCommand, BrokerConfig, DestinationStats, RecordedTopic, ReplicatedTopic, SyncType};
use quire_command::LinkAction;

use super::links::*;

const A_MINUTE: Duration = Duration::from_secs(60);

/// The link of an instance to its first destination.
fn link(cluster: &mut Cluster, number: usize) -> DestinationStats {
    cluster.stats(number).destinations.remove(0)
}

fn states(cluster: &mut Cluster) -> [(&'static str, u64); 2] {
    [0, 1].map(|number| {
        let link = link(cluster, number);
        (link.state, link.connect_count)
    })
}

#[test]
fn a_pair_has_one_connection_also_after_a_restart_and_a_partition() {
    let mut cluster = Cluster::new(pair_of(SyncType::Sync));
    cluster.pass(A_MINUTE);
    assert_eq!((cluster.connection_count(), states(&mut cluster)), (1, [("live", 1), ("live", 1)]));
    for number in [0, 1] {
        cluster.kill(number);
        cluster.pass(A_MINUTE);
        cluster.start(number);
        cluster.pass(Duration::from_secs(1));
        assert_eq!(cluster.connection_count(), 1, "after a restart of {number}");
    }
    cluster.partition(0, 1);
    cluster.pass(A_MINUTE);
    cluster.heal();
    cluster.pass(A_MINUTE);
    assert_eq!(cluster.connection_count(), 1);
    cluster.at(0).client(1, "p");
    cluster.at(1).client(2, "q");
    cluster.publish(0, 1, 1, 100);
    cluster.publish(1, 2, 1, 100);
    assert_eq!((cluster.persisted(0, 1), cluster.persisted(1, 2)), (100, 100));
    assert_eq!(cluster.sorted(0), cluster.sorted(1));
}

#[test]
fn a_link_that_is_refused_leaves_the_other_direction_alone() {
    let mut to_a = destination("a", SyncType::Async);
    to_a.topics.push(ReplicatedTopic { name: "secret".into(), message_type: "json".into(), filter: None });
    let mut b = instance("b", vec![to_a]);
    b.transaction_log.topics.push(RecordedTopic::new("secret", "json"));
    let mut cluster = Cluster::new(vec![instance("a", vec![destination("b", SyncType::Async)]), b]);
    cluster.pass(Duration::from_secs(50));
    cluster.admit(0);
    cluster.at(0).client(1, "p");
    cluster.publish(0, 1, 1, 10);
    assert_eq!(cluster.log(1).len(), 10);
    assert_eq!((cluster.connection_count(), states(&mut cluster)), (1, [("live", 1), ("refused", 0)]));
    let error = link(&mut cluster, 1).last_error.unwrap();
    assert!(error.contains("does not record"), "{error}");
}

#[test]
fn a_link_that_is_paused_leaves_the_other_direction_alone() {
    let mut cluster = Cluster::new(pair_of(SyncType::Async));
    let command = |action| AdminCommand::Link { destination: "b".into(), action };
    cluster.admin(0, command(LinkAction::Pause));
    cluster.pass(A_MINUTE);
    cluster.at(0).client(1, "p");
    cluster.at(1).client(2, "q");
    cluster.publish(0, 1, 1, 10);
    cluster.publish(1, 2, 1, 10);
    assert_eq!((cluster.log(0).len(), cluster.log(1).len()), (20, 10));
    assert_eq!((cluster.connection_count(), states(&mut cluster)), (1, [("paused", 1), ("live", 1)]));
    assert!(cluster.stats(1).sources.is_empty());
    cluster.admin(0, command(LinkAction::Resume));
    cluster.pass(Duration::from_secs(1));
    assert_eq!((cluster.connection_count(), states(&mut cluster)), (1, [("live", 2), ("live", 1)]));
    assert_eq!(cluster.sorted(0), cluster.sorted(1));
}

#[test]
fn a_destination_without_an_address_gets_its_records_over_its_own_connection() {
    let without = |mut config: BrokerConfig| {
        config.replication.destinations[0].addresses.clear();
        config
    };
    let mut configs = pair_of(SyncType::Sync);
    configs[0] = without(configs[0].clone());
    let mut cluster = Cluster::new(configs);
    cluster.at(0).client(1, "p");
    cluster.publish(0, 1, 1, 10);
    assert_eq!(cluster.persisted(0, 1), 10);
    cluster.kill(1);
    cluster.pass(A_MINUTE);
    assert_eq!((link(&mut cluster, 0).state, &*link(&mut cluster, 0).address), ("waiting", ""));
    cluster.start(1);
    cluster.pass(Duration::from_secs(1));
    cluster.publish(0, 1, 11, 10);
    assert_eq!(cluster.persisted(0, 1), 20);
    assert_eq!(link(&mut cluster, 0).address, "test");
}

/// `a` sends to two instances of one group, and each of the two links may lead to either.
fn to_a_group() -> Cluster {
    let to = |name, addresses: [&str; 2]| {
        let mut to = destination(name, SyncType::Sync);
        (to.group, to.addresses) = (Some("g".into()), addresses.map(str::to_owned).to_vec());
        to
    };
    let of_group = |name| {
        let mut config = instance(name, vec![destination("a", SyncType::Sync)]);
        config.replication.group = Some("g".into());
        config
    };
    let mut a = instance("a", vec![to("first", ["b", "c"]), to("second", ["b", "c"])]);
    a.replication.required_acks = Some(2);
    Cluster::new(vec![a, of_group("b"), of_group("c")])
}

#[test]
fn two_links_to_a_group_lead_to_two_instances() {
    let mut cluster = to_a_group();
    cluster.pass(A_MINUTE);
    let mut instances: Vec<_> = cluster.stats(0).destinations.into_iter().map(|link| link.instance).collect();
    instances.sort();
    assert_eq!(instances, [Some("b".into()), Some("c".into())]);
    cluster.kill(2);
    cluster.at(0).client(1, "p");
    cluster.publish(0, 1, 1, 10);
    cluster.pass(A_MINUTE);
    assert_eq!(cluster.persisted(0, 1), 0, "only b has them");
    cluster.start(2);
    cluster.pass(A_MINUTE);
    assert_eq!(cluster.persisted(0, 1), 10);
}

#[test]
fn an_instance_that_changes_its_link_is_one_copy() {
    let mut cluster = to_a_group();
    cluster.pass(A_MINUTE);
    cluster.at(0).client(1, "p");
    cluster.kill(2);
    cluster.publish(0, 1, 1, 10);
    for _ in 0..8 {
        cluster.partition(0, 1);
        cluster.pass(A_MINUTE);
        cluster.heal();
        cluster.pass(A_MINUTE);
        assert_eq!(cluster.persisted(0, 1), 0, "only b has them");
    }
    cluster.start(2);
    cluster.pass(A_MINUTE);
    assert_eq!(cluster.persisted(0, 1), 10);
}
