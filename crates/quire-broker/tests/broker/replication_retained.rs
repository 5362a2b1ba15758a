//! The limit for journal files that are kept for a destination, and what happens at it
//! (docs/replication.md, *Journal files*).

use std::time::Duration;

use quire_broker::{AdminCommand, AdminReply, Event, SyncType};
use quire_command::LinkAction;
use quire_journal::Which;

use super::links::*;

/// Messages of 10 kB: two megabytes, or 8 journal files.
const COUNT: u64 = 200;

/// Two instances. The first one keeps 600 kB for the second one.
fn limited(sync_type: SyncType) -> Cluster {
    let mut configs = pair_of(sync_type);
    configs[0].replication.destinations[0].retained_size_max = Some(600_000);
    let mut cluster = Cluster::new(configs);
    cluster.at(0).client(1, "p");
    cluster.publish(0, 1, 1, 2);
    assert_eq!(cluster.log(1).len(), 2);
    cluster
}

/// Publishes [`COUNT`] messages, the first one with number 3.
fn fill(cluster: &mut Cluster) {
    for sequence in 3..3 + COUNT {
        let data = format!("{{\"n\":{sequence},\"text\":\"{}\"}}", "x".repeat(10_000));
        cluster.at(0).publish(1, sequence, "orders", &data);
    }
    // The file with the places is written once a second.
    cluster.pass(Duration::from_secs(3));
}

/// Removes every full journal file that may go.
fn remove_files(cluster: &mut Cluster) -> usize {
    let broker = &cluster.at(0).broker;
    let needed = broker.needed_position();
    broker.journal().maintenance().remove(Which::All, needed).unwrap().len()
}

fn command(cluster: &mut Cluster, action: LinkAction) {
    let reply = cluster.admin(0, AdminCommand::Link { destination: "b".into(), action });
    assert!(!matches!(reply, AdminReply::Refused { .. }), "{reply:?}");
}

fn state(cluster: &mut Cluster) -> &'static str {
    cluster.stats(0).destinations[0].state
}

#[test]
fn a_link_with_a_gap_sends_nothing_until_a_command_accepts_the_gap() {
    let mut cluster = limited(SyncType::Async);
    cluster.kill(1);
    fill(&mut cluster);
    let all = cluster.log(0);
    let removed_count = remove_files(&mut cluster);
    assert!(removed_count >= 4, "{removed_count}");
    cluster.pass(Duration::from_secs(2));
    assert_eq!(state(&mut cluster), "gap");
    let left = |event: &&Event| matches!(event, Event::LinkHasGap { after: 2, .. });
    assert_eq!(cluster.at(0).log.iter().filter(left).count(), 1);
    // Neither the return of the destination nor a restart of the source changes it.
    cluster.start(1);
    cluster.kill(0);
    cluster.start(0);
    cluster.pass(Duration::from_secs(60));
    assert_eq!(state(&mut cluster), "gap");
    assert_eq!(cluster.log(1), all[..2]);
    let kept = cluster.log(0);
    assert_eq!(kept, all[all.len() - kept.len()..]);
    command(&mut cluster, LinkAction::Resume);
    cluster.pass(Duration::from_secs(60));
    assert_eq!(state(&mut cluster), "live");
    assert_eq!(cluster.log(1), [&all[..2], &kept].concat());
}

#[test]
fn a_destination_beyond_its_limit_gets_everything_when_no_file_was_removed() {
    let mut cluster = limited(SyncType::Async);
    cluster.kill(1);
    fill(&mut cluster);
    cluster.start(1);
    cluster.pass(Duration::from_secs(60));
    assert_eq!(state(&mut cluster), "live");
    assert_eq!(cluster.log(1), cluster.log(0));
    assert_eq!(cluster.log(1).len() as u64, 2 + COUNT);
}

#[test]
fn without_a_limit_the_files_stay() {
    let mut cluster = Cluster::new(pair_of(SyncType::Async));
    cluster.at(0).client(1, "p");
    cluster.publish(0, 1, 1, 2);
    cluster.kill(1);
    fill(&mut cluster);
    assert_eq!(remove_files(&mut cluster), 0);
}

#[test]
fn publishers_do_not_wait_for_a_sync_destination_with_a_gap_until_it_is_upgraded() {
    let mut cluster = limited(SyncType::Sync);
    assert_eq!(cluster.persisted(0, 1), 2);
    cluster.kill(1);
    fill(&mut cluster);
    assert_eq!(cluster.persisted(0, 1), 0);
    assert!(remove_files(&mut cluster) > 0);
    cluster.pass(Duration::from_secs(2));
    assert_eq!(cluster.persisted(0, 1), 2 + COUNT);
    cluster.start(1);
    command(&mut cluster, LinkAction::Resume);
    cluster.pass(Duration::from_secs(60));
    assert_eq!(cluster.stats(0).destinations[0].sync_type, SyncType::Async, "until the command");
    command(&mut cluster, LinkAction::Upgrade);
    cluster.partition(0, 1);
    cluster.publish(0, 1, 3 + COUNT, 1);
    assert_eq!(cluster.persisted(0, 1), 0);
    cluster.heal();
    cluster.pass(Duration::from_secs(60));
    assert_eq!(cluster.persisted(0, 1), 3 + COUNT);
}

#[test]
fn a_destination_that_is_new_gets_a_log_whose_beginning_was_removed() {
    let mut cluster = Cluster::new(vec![instance("a", vec![]), instance("b", vec![])]);
    cluster.at(0).client(1, "p");
    cluster.publish(0, 1, 1, 2);
    fill(&mut cluster);
    assert!(remove_files(&mut cluster) > 0);
    cluster.kill(0);
    cluster.configure(0, instance("a", vec![destination("b", SyncType::Sync)]));
    cluster.start(0);
    cluster.pass(Duration::from_secs(60));
    assert_eq!(state(&mut cluster), "live");
    assert_eq!(cluster.log(1), cluster.log(0));
    // It loses its disk: what is in the log is sent again.
    cluster.destroy(1);
    cluster.start(1);
    cluster.pass(Duration::from_secs(60));
    assert_eq!(cluster.log(1), cluster.log(0));
}
