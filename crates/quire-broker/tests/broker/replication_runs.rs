//! Two runs of a program with one name, on two instances: no message is confirmed that the log does
//! not have.

use std::time::Duration;

use quire_broker::SyncType;
use quire_command::*;

use super::links::*;
use super::pair::*;

pub const A_MINUTE: Duration = Duration::from_secs(60);

/// A program logs on. `connection_number` counts its connections.
pub fn log_on(
    cluster: &mut Cluster,
    number: usize,
    client: u64,
    (run, persisted, connection_number): (u64, u64, u32),
) {
    let logon = Logon { run, persisted, incarnation: run, connection_number, ..logon("p") };
    cluster.at(number).connect(client);
    cluster.at(number).send(client, &Command::Logon(logon));
    cluster.settle();
}

pub fn publish(
    cluster: &mut Cluster,
    number: usize,
    client: u64,
    sequences: std::ops::RangeInclusive<u64>,
    run: &str,
) {
    for sequence in sequences {
        cluster.at(number).publish(client, sequence, "orders", &format!("{run} {sequence}"));
    }
    cluster.settle();
}

/// The sequences that were refused with `name_in_use`, and the highest one that was confirmed.
pub fn answers(cluster: &mut Cluster, number: usize, client: u64) -> (Vec<u64>, u64) {
    let (mut refused, mut confirmed) = (Vec::new(), 0);
    for said in cluster.at(number).take(client) {
        match said {
            Said::Failed { sequence, code: Code::NameInUse, scope: FailureScope::One } => {
                refused.push(sequence)
            }
            Said::Persisted(sequence) => confirmed = sequence,
            Said::LoggedOn { last_sequence } => confirmed = last_sequence,
            other => panic!("{other:?}"),
        }
    }
    (refused, confirmed)
}

/// The first run publishes 1 to 5 on `a`, of which `b` gets 1 to 3 at first. The second run logs on
/// to `b`, and `b` gets the others.
fn two_runs() -> Cluster {
    let mut cluster = Cluster::new(pair_of(SyncType::Sync));
    log_on(&mut cluster, 0, 1, (11, 0, 1));
    publish(&mut cluster, 0, 1, 1..=3, "first");
    cluster.partition(0, 1);
    publish(&mut cluster, 0, 1, 4..=5, "first");
    cluster.at(0).disconnect(1);
    log_on(&mut cluster, 1, 2, (22, 0, 1));
    cluster.heal();
    cluster.pass(A_MINUTE);
    assert_eq!(cluster.log(1).len(), 5);
    answers(&mut cluster, 1, 2);
    cluster
}

#[test]
fn a_second_run_gets_name_in_use_for_messages_with_sequences_of_the_first_one() {
    let mut cluster = two_runs();
    publish(&mut cluster, 1, 2, 4..=7, "second");
    assert_eq!(answers(&mut cluster, 1, 2), (vec![4, 5], 7));
    // It is sent again on the same connection.
    publish(&mut cluster, 1, 2, 4..=4, "second");
    assert_eq!(answers(&mut cluster, 1, 2).0, [4]);
    cluster.pass(A_MINUTE);
    assert_eq!(cluster.log(0), cluster.log(1));
    let data: Vec<_> = cluster.log(1).into_iter().map(|(_, _, data)| data).collect();
    assert_eq!(data[5..], ["second 6", "second 7"]);
}

#[test]
fn a_publisher_is_confirmed_only_up_to_its_own_messages() {
    let mut cluster = two_runs();
    publish(&mut cluster, 1, 2, 4..=4, "second");
    assert_eq!(answers(&mut cluster, 1, 2), (vec![4], 0), "5 is a message of the first run");
}

#[test]
fn a_second_run_that_connects_again_is_not_confirmed_by_messages_of_the_first_one() {
    let mut cluster = two_runs();
    cluster.at(1).disconnect(2);
    cluster.settle();
    log_on(&mut cluster, 1, 3, (22, 3, 2));
    assert_eq!(answers(&mut cluster, 1, 3), (vec![], 3));
    publish(&mut cluster, 1, 3, 4..=6, "second");
    assert_eq!(answers(&mut cluster, 1, 3), (vec![4, 5], 6));
    // Messages of the second run are now the highest ones. Those before are still of the first run.
    cluster.at(1).disconnect(3);
    cluster.settle();
    log_on(&mut cluster, 1, 4, (22, 3, 3));
    assert_eq!(answers(&mut cluster, 1, 4), (vec![], 3));
    publish(&mut cluster, 1, 4, 4..=6, "second");
    assert_eq!(answers(&mut cluster, 1, 4), (vec![4, 5], 6));
    assert_eq!(cluster.log(1).len(), 6);
}

#[test]
fn a_run_that_moves_to_another_instance_and_publishes_again_is_confirmed() {
    let mut cluster = Cluster::new(pair_of(SyncType::Sync));
    log_on(&mut cluster, 0, 1, (11, 0, 1));
    publish(&mut cluster, 0, 1, 1..=5, "first");
    cluster.at(0).disconnect(1);
    cluster.settle();
    log_on(&mut cluster, 1, 2, (11, 3, 2));
    publish(&mut cluster, 1, 2, 4..=7, "first");
    assert_eq!(answers(&mut cluster, 1, 2), (vec![], 7));
    cluster.pass(A_MINUTE);
    assert_eq!(cluster.log(0), cluster.log(1));
    assert_eq!(cluster.log(0).len(), 7);
}

#[test]
fn sequences_that_the_program_gives_name_the_message_in_each_run() {
    let mut cluster = two_runs();
    for sequence in 4..=6 {
        let publish = Publish { is_numbered: true, ..publish_of(sequence) };
        cluster.at(1).send(2, &Command::Publish(publish));
    }
    cluster.settle();
    assert_eq!(answers(&mut cluster, 1, 2), (vec![], 6));
}

fn publish_of(sequence: u64) -> Publish<'static> {
    super::pair::publish(sequence, "orders", "numbered")
}
