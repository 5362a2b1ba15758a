//! Replication with crashes, partitions, lost disks and old backups. Afterwards all instances have
//! the same messages, once each, in the same order for each publisher. No acknowledged message is
//! missing.

use std::time::Duration;

use quire_broker::{AdminCommand, Event, SyncType};
use quire_command::LinkAction;

use super::links::*;
use super::pair::*;

const A_MINUTE: Duration = Duration::from_secs(60);

#[test]
fn a_destination_that_was_away_gets_what_it_missed() {
    let mut cluster = Cluster::new(pair_of(SyncType::Async));
    cluster.at(0).client(1, "p");
    cluster.publish(0, 1, 1, 10);
    cluster.kill(1);
    cluster.publish(0, 1, 11, 500);
    cluster.start(1);
    let before = cluster.carried_size;
    cluster.pass(A_MINUTE);
    assert_eq!(cluster.log(1).len(), 510);
    assert_eq!(cluster.log(0), cluster.log(1));
    assert_eq!(cluster.stats(1).sources[0].duplicate_count, 0, "it begins where it ended");
    assert!(cluster.carried_size > before);
}

/// Two instances. The second one has just returned, lacks 12,000 messages, and the disk of the
/// first one is slow.
fn far_behind(sync_type: SyncType) -> Cluster {
    let mut cluster = Cluster::new(pair_of(sync_type));
    cluster.at(0).client(1, "p");
    cluster.kill(1);
    cluster.publish(0, 1, 1, 12_000);
    cluster.at(0).writes_at_once = false;
    cluster.publish(0, 1, 12_001, 1);
    cluster.start(1);
    cluster.settle();
    cluster
}

#[test]
fn a_link_that_catches_up_pauses_for_5_ms_while_a_publish_waits() {
    let mut cluster = far_behind(SyncType::Async);
    assert_eq!((link_state(&mut cluster), cluster.log(1).len()), ("catching_up", 0));
    cluster.pass(Duration::from_micros(4999));
    assert_eq!(cluster.log(1).len(), 0);
    cluster.pass(Duration::from_micros(1));
    let count = cluster.log(1).len();
    assert!((1..12_000).contains(&count), "{count} after 5 ms");
    cluster.at(0).writes_at_once = true;
    cluster.settle();
    assert_eq!(cluster.log(1).len(), 12_001);
}

/// Two instances with a link that has caught up, and lags again because its connection took nothing
/// for a while.
fn lagging(data: &str) -> Cluster {
    let mut cluster = Cluster::new(pair_of(SyncType::Async));
    cluster.at(0).client(1, "p");
    cluster.publish(0, 1, 1, 1);
    cluster.set_writable(0, false);
    cluster.publish(0, 1, 2, 12_000);
    assert_eq!((link_state(&mut cluster), cluster.log(1).len()), ("live", 1));
    cluster.at(0).writes_at_once = false;
    cluster.at(0).publish(1, 12_002, "orders", data);
    cluster.set_writable(0, true);
    cluster.settle();
    cluster
}

#[test]
fn a_link_that_lags_after_it_caught_up_pauses_for_a_millisecond_while_a_publish_waits_alone() {
    let mut cluster = lagging("x");
    assert_eq!(cluster.log(1).len(), 1);
    cluster.pass(Duration::from_millis(1));
    assert!(cluster.log(1).len() > 1);
    let mut cluster = lagging(&"x".repeat(10_000));
    assert_eq!(cluster.log(1).len(), 12_001, "many publishes do not make it fall behind");
}

#[test]
fn a_link_that_publishers_wait_for_does_not_pause() {
    let mut cluster = far_behind(SyncType::Sync);
    assert_eq!(cluster.log(1).len(), 12_000);
}

fn link_state(cluster: &mut Cluster) -> &'static str {
    cluster.stats(0).destinations[0].state
}

#[test]
fn a_partition_costs_nothing_but_time() {
    let mut cluster = Cluster::new(pair_of(SyncType::Sync));
    cluster.at(0).client(1, "p");
    cluster.at(1).client(1, "q");
    cluster.publish(0, 1, 1, 10);
    cluster.partition(0, 1);
    cluster.publish(0, 1, 11, 10);
    cluster.publish(1, 1, 1, 10);
    assert_eq!((cluster.persisted(0, 1), cluster.persisted(1, 1)), (10, 0));
    cluster.pass(A_MINUTE);
    cluster.heal();
    cluster.pass(A_MINUTE);
    assert_eq!((cluster.persisted(0, 1), cluster.persisted(1, 1)), (20, 10));
    assert_eq!(cluster.log(0).len(), 30);
    assert_eq!(cluster.sorted(0), cluster.sorted(1));
}

#[test]
fn an_instance_that_lost_its_disk_is_filled_again() {
    let mut cluster = Cluster::new(pair_of(SyncType::Sync));
    cluster.at(0).client(1, "p");
    cluster.at(1).client(1, "q");
    cluster.publish(0, 1, 1, 100);
    cluster.publish(1, 1, 1, 100);
    let before = cluster.sorted(1);
    cluster.destroy(0);
    cluster.start(0);
    cluster.pass(A_MINUTE);
    assert_eq!(cluster.sorted(0), before);
    assert_eq!(cluster.sorted(1), before);
    // Later messages are numbered and sent as before.
    cluster.at(0).client(1, "p");
    cluster.publish(0, 1, 101, 10);
    assert_eq!(cluster.persisted(0, 1), 110);
    assert_eq!(cluster.log(1).len(), 210);
    assert_eq!(cluster.sorted(0), cluster.sorted(1));
}

#[test]
fn a_client_is_let_in_after_the_instance_has_back_what_it_lost() {
    let mut cluster = Cluster::new(pair_of(SyncType::Sync));
    cluster.at(0).client(1, "p");
    cluster.publish(0, 1, 1, 50);
    // A log has the number of its time.
    cluster.pass(A_MINUTE);
    cluster.destroy(0);
    cluster.start(0);
    // The client is there first.
    cluster.at(0).connect(1);
    cluster.at(0).send(1, &quire_command::Command::Logon(logon("p")));
    cluster.at(0).one_turn();
    assert_eq!(cluster.at(0).take(1), []);
    cluster.settle();
    cluster.pass(A_MINUTE);
    // The other instance has all of them: they came from there.
    assert_eq!(cluster.at(0).take(1), [Said::LoggedOn { last_sequence: 50 }]);
    cluster.publish(0, 1, 51, 1);
    assert_eq!(cluster.sorted(0).len(), 51);
    assert_eq!(cluster.sorted(0), cluster.sorted(1));
}

#[test]
fn an_instance_that_gets_no_answer_uses_the_connection_of_the_other_one() {
    let mut cluster = Cluster::new(pair_of(SyncType::Sync));
    cluster.at(0).client(1, "p");
    cluster.publish(0, 1, 1, 10);
    cluster.destroy(0);
    cluster.held = Some(0);
    cluster.start(0);
    cluster.pass(Duration::from_secs(2));
    assert_eq!(cluster.log(0).len(), 10);
    assert!(!cluster.stats(0).holds_logons);
    cluster.at(0).client(1, "p");
    cluster.publish(0, 1, 11, 10);
    assert_eq!(cluster.persisted(0, 1), 20);
    assert_eq!(cluster.sorted(0), cluster.sorted(1));
}

#[test]
fn a_client_is_let_in_after_an_instance_that_tried_in_vain_for_long_has_sent_what_is_missing() {
    let mut cluster = Cluster::new(pair_of(SyncType::Sync));
    cluster.at(0).client(1, "p");
    cluster.publish(0, 1, 1, 3);
    cluster.kill(0);
    let action = LinkAction::Downgrade;
    cluster.admin(1, AdminCommand::Link { destination: "a".into(), action });
    cluster.at(1).client(1, "p");
    cluster.publish(1, 1, 4, 3);
    // The other instance tries every 20 s by now, and has just done so.
    cluster.pass(A_MINUTE);
    cluster.start(0);
    cluster.at(0).connect(1);
    cluster.at(0).send(1, &quire_command::Command::Logon(logon("p")));
    cluster.pass(Duration::from_secs(1));
    assert_eq!(cluster.at(0).take(1), [Said::LoggedOn { last_sequence: 3 }, Said::Persisted(6)]);
    assert_eq!(cluster.sorted(0), cluster.sorted(1));
}

#[test]
fn a_client_waits_a_limited_time_for_instances_that_do_not_answer() {
    let mut cluster = Cluster::new(pair_of(SyncType::Sync));
    cluster.kill(0);
    cluster.kill(1);
    cluster.start(0);
    cluster.at(0).connect(1);
    cluster.at(0).send(1, &quire_command::Command::Logon(logon("p")));
    cluster.pass(Duration::from_secs(6));
    assert_eq!(cluster.at(0).take(1), [Said::LoggedOn { last_sequence: 0 }]);
}

#[test]
fn a_restored_old_backup_gets_what_it_lacks_and_costs_the_others_nothing() {
    let mut cluster = Cluster::new(pair_of(SyncType::Sync));
    cluster.at(0).client(1, "p");
    cluster.publish(0, 1, 1, 100);
    cluster.kill(0);
    let backup = cluster.backup(0);
    cluster.start(0);
    cluster.pass(A_MINUTE);
    cluster.at(0).client(1, "p");
    cluster.publish(0, 1, 101, 100);
    assert_eq!(cluster.persisted(0, 1), 200);
    cluster.kill(0);
    cluster.disks[0] = backup;
    cluster.start(0);
    cluster.pass(A_MINUTE);
    assert_eq!(cluster.log(1).len(), 200);
    assert_eq!(cluster.sorted(0), cluster.sorted(1));
}

#[test]
fn a_destination_with_a_restored_old_backup_is_filled_again() {
    let mut cluster = Cluster::new(pair_of(SyncType::Sync));
    cluster.at(0).client(1, "p");
    cluster.publish(0, 1, 1, 100);
    cluster.kill(1);
    let backup = cluster.backup(1);
    cluster.start(1);
    cluster.pass(A_MINUTE);
    cluster.publish(0, 1, 101, 100);
    assert_eq!(cluster.persisted(0, 1), 200);
    cluster.kill(1);
    cluster.disks[1] = backup;
    cluster.start(1);
    cluster.pass(A_MINUTE);
    assert_eq!(cluster.log(1).len(), 200);
    assert_eq!(cluster.sorted(0), cluster.sorted(1));
}

#[test]
fn a_publisher_that_fails_over_loses_and_doubles_nothing() {
    let mut cluster = Cluster::new(pair_of(SyncType::Sync));
    cluster.at(0).client(1, "p");
    cluster.publish(0, 1, 1, 100);
    assert_eq!(cluster.persisted(0, 1), 100);
    // The last ones are not acknowledged when the instance dies.
    cluster.at(1).writes_at_once = false;
    cluster.publish(0, 1, 101, 5);
    assert_eq!(cluster.persisted(0, 1), 0);
    cluster.kill(0);
    cluster.at(1).writes_at_once = true;
    cluster.settle();
    cluster.at(1).client(1, "p");
    cluster.publish(1, 1, 101, 10);
    cluster.start(0);
    cluster.pass(A_MINUTE);
    assert_eq!(cluster.persisted(1, 1), 110);
    assert_eq!(cluster.log(1).len(), 110);
    assert_eq!(cluster.sorted(0), cluster.sorted(1));
    assert_eq!(conflicts(&mut cluster, 0), []);
    assert_eq!(conflicts(&mut cluster, 1), []);
}

/// The lines of the log of an instance about messages with one bookmark.
fn conflicts(cluster: &mut Cluster, number: usize) -> Vec<(&'static str, u64, u64)> {
    let log = &cluster.at(number).log;
    let conflicts = log.iter().filter_map(|event| match event {
        Event::LinkConflict { bookmark, count, .. } => Some(("from", bookmark.sequence, *count)),
        Event::LinkRejected { bookmark, count, .. } => Some(("to", bookmark.sequence, *count)),
        _ => None,
    });
    let mut conflicts: Vec<_> = conflicts.collect();
    conflicts.sort_unstable();
    conflicts
}

/// Two instances with three messages of a publisher that cannot reach each other any more, and do
/// not wait for each other.
fn parted() -> Cluster {
    let mut cluster = Cluster::new(pair_of(SyncType::Sync));
    cluster.at(0).client(1, "p");
    cluster.publish(0, 1, 1, 3);
    cluster.partition(0, 1);
    for (number, destination) in [(0, "b"), (1, "a")] {
        let action = LinkAction::Downgrade;
        cluster.admin(number, AdminCommand::Link { destination: destination.into(), action });
    }
    cluster
}

#[test]
fn messages_that_got_the_same_bookmark_on_two_instances_are_reported_once_for_each_publisher() {
    let mut cluster = parted();
    cluster.publish(0, 1, 4, 3);
    cluster.at(1).client(1, "p");
    for sequence in 4..7 {
        cluster.at(1).publish(1, sequence, "orders", "another message");
    }
    cluster.heal();
    cluster.pass(A_MINUTE);
    assert_eq!(conflicts(&mut cluster, 0), [("from", 4, 1), ("to", 4, 1)]);
    assert_eq!(conflicts(&mut cluster, 1), [("from", 4, 1), ("to", 4, 1)]);
    for number in 0..2 {
        let stats = cluster.stats(number);
        assert_eq!((stats.sources[0].conflict_count, stats.destinations[0].conflict_count), (3, 3));
    }
    assert_ne!(cluster.sorted(0), cluster.sorted(1));
}

#[test]
fn a_message_that_comes_after_later_ones_of_its_publisher_is_recorded() {
    let mut cluster = parted();
    cluster.publish(0, 1, 4, 3);
    cluster.at(1).client(1, "p");
    cluster.publish(1, 1, 7, 3);
    cluster.heal();
    cluster.pass(A_MINUTE);
    let sequences = |log: Vec<(u64, u64, String)>| log.into_iter().map(|(_, s, _)| s).collect::<Vec<_>>();
    assert_eq!(sequences(cluster.log(0)), [1, 2, 3, 4, 5, 6, 7, 8, 9]);
    assert_eq!(sequences(cluster.log(1)), [1, 2, 3, 7, 8, 9, 4, 5, 6]);
    assert_eq!((conflicts(&mut cluster, 0), conflicts(&mut cluster, 1)), (vec![], vec![]));
}

#[test]
fn messages_that_were_sent_twice_are_no_conflict() {
    let mut cluster = parted();
    cluster.publish(0, 1, 4, 3);
    // The client has sent them to both instances.
    cluster.at(1).client(1, "p");
    cluster.publish(1, 1, 4, 3);
    cluster.heal();
    cluster.pass(A_MINUTE);
    assert_eq!(cluster.stats(1).sources[0].duplicate_count, 3);
    assert_eq!((conflicts(&mut cluster, 0), conflicts(&mut cluster, 1)), (vec![], vec![]));
}

#[test]
fn an_instance_that_starts_again_does_not_acknowledge_what_its_destination_lacks() {
    let mut cluster = Cluster::new(pair_of(SyncType::Sync));
    cluster.at(0).client(1, "p");
    cluster.publish(0, 1, 1, 10);
    cluster.kill(1);
    cluster.publish(0, 1, 11, 5);
    cluster.kill(0);
    cluster.start(0);
    cluster.at(0).connect(1);
    cluster.at(0).send(1, &quire_command::Command::Logon(logon("p")));
    cluster.pass(Duration::from_secs(6));
    let said = cluster.at(0).take(1);
    assert!(matches!(said[..], [Said::LoggedOn { last_sequence: ..=10 }]), "{said:?}");
    assert_eq!(cluster.at(0).clients[&1].highest_sequence, 15);
    cluster.start(1);
    cluster.pass(A_MINUTE);
    assert_eq!(cluster.persisted(0, 1), 15);
    assert_eq!(cluster.log(0), cluster.log(1));
}

#[test]
fn a_ring_heals_after_a_lost_disk() {
    let ring = |name: &str, to: &str| {
        let mut destination = destination(to, SyncType::Async);
        destination.pass_through = vec![".*".into()];
        instance(name, vec![destination])
    };
    let mut cluster = Cluster::new(vec![ring("a", "b"), ring("b", "c"), ring("c", "a")]);
    for number in 0..3 {
        cluster.at(number).client(1, ["p", "q", "r"][number]);
        cluster.publish(number, 1, 1, 20);
    }
    let all = cluster.sorted(0);
    assert_eq!(all.len(), 60);
    for number in 0..3 {
        cluster.destroy(number);
        cluster.start(number);
        cluster.pass(A_MINUTE);
        for other in 0..3 {
            assert_eq!(cluster.sorted(other), all, "instance {other} after a lost disk of {number}");
        }
    }
}
