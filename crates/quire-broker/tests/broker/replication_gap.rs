//! Messages that no instance has stay a gap until they arrive, or until a command accepts them as
//! lost (docs/replication.md, *Messages that are missing*).

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use quire_broker::{AdminCommand, AdminReply, ReplicationStats, SyncType};
use quire_command::{Code, Command, LinkAction, Logon};
use quire_journal::{MemoryDisk, PublisherId};

use super::faulty_disk::{Call, FaultyDisk};
use super::links::*;
use super::pair::logon;
use super::replication_compare::{connect_again, lines, sequences, with_lost_messages};
use super::replication_runs::{A_MINUTE, answers, log_on};

fn accept(publisher: &str) -> AdminCommand {
    AdminCommand::Link { destination: publisher.into(), action: LinkAction::Accept }
}

/// The figures after a command has accepted the gap of a publisher, or the whole gap.
fn accepted(cluster: &mut Cluster, number: usize, publisher: &str) -> ReplicationStats {
    match cluster.admin(number, accept(publisher)) {
        AdminReply::Replication(stats) => *stats,
        reply => panic!("{reply:?}"),
    }
}

/// The gap as publisher, first and last sequence.
fn ranges(stats: &ReplicationStats) -> Vec<(u64, u64, u64)> {
    stats.missing_ranges.iter().map(|range| (range.publisher, range.first, range.last)).collect()
}

/// The messages 4 and 5 are on no instance.
pub fn with_a_gap() -> Cluster {
    with_a_gap_and_the_lost_disk().0
}

/// As [`with_a_gap`], with the disk that has these messages.
pub fn with_a_gap_and_the_lost_disk() -> (Cluster, Arc<MemoryDisk>) {
    let mut cluster = with_lost_messages();
    cluster.kill(0);
    let disk = cluster.backup(0);
    cluster.destroy(0);
    cluster.heal();
    cluster.start(0);
    cluster.pass(A_MINUTE);
    assert_eq!((cluster.stats(0).missing, cluster.stats(1).missing), (2, 2));
    (cluster, disk)
}

#[test]
fn an_accepted_gap_is_not_found_again_after_reconnects_and_restarts() {
    let mut cluster = with_a_gap();
    let publisher = cluster.stats(1).missing_ranges[0].publisher;
    let stats = accepted(&mut cluster, 1, "");
    assert_eq!((stats.state, stats.missing, stats.accepted, stats.missing_total), ("live", 0, 2, 2));
    let range = stats.accepted_ranges[0];
    assert_eq!((range.publisher, range.first, range.last), (publisher, 4, 5));
    let line = cluster.at(1).log.iter().rfind(|event| event.id() == "12-0020").unwrap().to_string();
    let expected = format!(
        "a command has accepted that 2 messages of 1 publishers are missing: publisher {}: 4 to 5. They are recorded \
         when they arrive",
        PublisherId::new(publisher)
    );
    assert_eq!(line, expected);
    // The answer says that the file has it: a process that is killed now forgets nothing.
    cluster.kill(1);
    cluster.start(1);
    cluster.pass(A_MINUTE);
    connect_again(&mut cluster);
    let stats = cluster.stats(1);
    assert_eq!((stats.state, stats.missing, stats.accepted, stats.missing_total), ("live", 0, 2, 2));
    assert_eq!(stats.sources[0].state, "live");
    assert_eq!(lines(&mut cluster, 1, "12-0019"), 0);
    // The other instance has its own gap.
    assert_eq!((cluster.stats(0).state, cluster.stats(0).missing), ("gap", 2));
    // There is nothing to accept any more, and the command says so at once.
    assert_eq!(accepted(&mut cluster, 1, "").accepted, 2);
    assert_eq!(lines(&mut cluster, 1, "12-0020"), 0);
}

#[test]
fn a_publish_of_an_accepted_message_is_refused_and_not_confirmed() {
    let mut cluster = with_a_gap();
    accepted(&mut cluster, 1, "");
    log_on(&mut cluster, 1, 3, (11, 3, 3));
    answers(&mut cluster, 1, 3);
    super::replication_runs::publish(&mut cluster, 1, 3, 4..=8, "first");
    cluster.pass(A_MINUTE);
    assert_eq!(answers(&mut cluster, 1, 3), (vec![4, 5], 8));
    assert_eq!(sequences(&mut cluster, 1), [1, 2, 3, 6, 7, 8]);
}

#[test]
fn a_gap_stays_after_a_restart_while_the_other_instance_is_away() {
    let mut cluster = with_a_gap();
    cluster.kill(0);
    cluster.stop(1);
    for _ in 0..2 {
        cluster.start(1);
        cluster.pass(A_MINUTE);
        let stats = cluster.stats(1);
        assert_eq!((stats.state, stats.missing, stats.missing_total), ("gap", 2, 2));
        assert_eq!(lines(&mut cluster, 1, "12-0019"), 1);
        cluster.kill(1);
    }
    cluster.start(1);
    accepted(&mut cluster, 1, "");
    cluster.pass(A_MINUTE);
    assert_eq!((cluster.stats(1).state, cluster.stats(1).missing), ("away", 0));
}

#[test]
fn accepted_messages_that_arrive_after_all_are_recorded() {
    let (mut cluster, disk) = with_a_gap_and_the_lost_disk();
    assert_eq!(accepted(&mut cluster, 1, "").accepted, 2);
    cluster.kill(0);
    cluster.disks[0] = disk;
    cluster.start(0);
    cluster.pass(A_MINUTE);
    assert_eq!(sequences(&mut cluster, 1), (1..=7).collect::<Vec<_>>());
    let stats = cluster.stats(1);
    assert_eq!((stats.state, stats.missing, stats.accepted, stats.missing_total), ("live", 0, 0, 2));
    cluster.stop(1);
    cluster.start(1);
    assert_eq!(cluster.stats(1).accepted, 0);
}

/// A program logs on, and publishes these sequences.
fn publish(cluster: &mut Cluster, number: usize, name: &str, sequences: std::ops::RangeInclusive<u64>) {
    let persisted = sequences.start() - 1;
    let program = Logon { run: 11, persisted, incarnation: 11, connection_number: 1, ..logon(name) };
    cluster.at(number).connect(1);
    cluster.at(number).send(1, &Command::Logon(program));
    for sequence in sequences {
        cluster.at(number).publish(1, sequence, "orders", "1");
    }
    cluster.settle();
    cluster.at(number).disconnect(1);
    cluster.settle();
}

#[test]
fn a_command_accepts_the_gap_of_one_publisher() {
    let mut cluster = Cluster::new(pair_of(SyncType::Async));
    for name in ["p", "q"] {
        publish(&mut cluster, 0, name, 1..=3);
    }
    cluster.partition(0, 1);
    for name in ["p", "q"] {
        publish(&mut cluster, 0, name, 4..=4);
        publish(&mut cluster, 1, name, 5..=5);
    }
    cluster.destroy(0);
    cluster.heal();
    cluster.start(0);
    cluster.pass(A_MINUTE);
    let before = ranges(&cluster.stats(1));
    let [(one, 4, 4), (two, 4, 4)] = before[..] else { panic!("{before:?}") };
    let stats = accepted(&mut cluster, 1, &two.to_string());
    assert_eq!(ranges(&stats), [(one, 4, 4)]);
    let of = |stats: &ReplicationStats| {
        let each = stats.missing_publishers.iter();
        each.map(|of| (of.publisher, of.missing, of.accepted, of.total)).collect::<Vec<_>>()
    };
    assert_eq!(of(&stats), [(one, 1, 0, 1), (two, 0, 1, 1)]);
    assert_eq!((stats.state, stats.missing), ("gap", 1));
    // A publisher without a gap changes nothing.
    assert_eq!(ranges(&accepted(&mut cluster, 1, "7")), [(one, 4, 4)]);
    let AdminReply::Refused { code, reason } = cluster.admin(1, accept("p")) else { panic!() };
    assert_eq!(code, Code::BadOption);
    assert_eq!(reason, "publisher: \"p\" is not the id of a publisher, which is a number");
}

#[test]
fn a_gap_needs_the_answer_of_an_instance_that_only_sends() {
    let mut configs = pair_of(SyncType::Async);
    configs[1].replication.instances = vec!["c".into()];
    configs.push(instance("c", vec![destination("b", SyncType::Async)]));
    let mut cluster = Cluster::new(configs);
    cluster.pass(A_MINUTE);
    publish(&mut cluster, 0, "p", 1..=3);
    cluster.kill(2);
    cluster.partition(0, 1);
    publish(&mut cluster, 0, "p", 4..=4);
    publish(&mut cluster, 1, "p", 5..=5);
    cluster.destroy(0);
    cluster.heal();
    cluster.start(0);
    cluster.admit(0);
    cluster.pass(A_MINUTE);
    assert_eq!(cluster.stats(1).missing, 0, "`c` may have the message");
    cluster.start(2);
    cluster.pass(A_MINUTE);
    assert_eq!(cluster.stats(1).missing, 1);
}

#[test]
fn a_command_is_refused_when_the_file_cannot_be_written() {
    let mut cluster = with_a_gap();
    cluster.stop(1);
    let is_full = Arc::new(AtomicBool::new(false));
    let fails = Arc::clone(&is_full);
    let disk = FaultyDisk::new(cluster.disks[1].clone(), move |call| match call {
        Call::Write(_) if fails.load(Ordering::Relaxed) => Err(io::ErrorKind::StorageFull.into()),
        _ => Ok(()),
    });
    cluster.start_over(1, Arc::new(disk));
    cluster.pass(A_MINUTE);
    is_full.store(true, Ordering::Relaxed);
    let AdminReply::Refused { code, reason } = cluster.admin(1, accept("")) else { panic!() };
    assert_eq!(code, Code::StorageFailed);
    assert!(reason.starts_with("the file copies.place"), "{reason}");
    // The file is written when it can be, and the command may be repeated.
    is_full.store(false, Ordering::Relaxed);
    assert_eq!(accepted(&mut cluster, 1, "").accepted, 2);
    cluster.kill(1);
    cluster.start(1);
    assert_eq!(cluster.stats(1).accepted, 2);
}
