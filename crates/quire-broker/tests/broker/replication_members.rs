//! An instance whose log is new, or has less than it had, takes no clients until every member that
//! can have records for it has sent them (docs/internals/copies.md, *States, and when clients are
//! let in*).

use std::path::Path;
use std::time::Duration;

use quire_broker::{BrokerConfig, SyncType};
use quire_command::*;
use quire_journal::{Disk, MemoryDisk};

use super::links::*;
use super::pair::*;
use super::replication_runs::{A_MINUTE, answers, log_on, publish};

fn ring() -> Vec<BrokerConfig> {
    let to = |name: &str, to: &str| {
        let mut destination = destination(to, SyncType::Sync);
        destination.pass_through = vec![".*".into()];
        instance(name, vec![destination])
    };
    vec![to("a", "b"), to("b", "c"), to("c", "a")]
}

/// Each of them sends its own messages to all others.
fn mesh(names: &[&str], sync_type: SyncType) -> Vec<BrokerConfig> {
    let of = |name: &&str| {
        let others = names.iter().filter(|other| *other != name);
        instance(name, others.map(|other| destination(other, sync_type)).collect())
    };
    names.iter().map(of).collect()
}

/// The sequences of the log of an instance, in its order.
fn sequences(cluster: &mut Cluster, number: usize) -> Vec<u64> {
    cluster.log(number).into_iter().map(|(_, sequence, _)| sequence).collect()
}

/// The reason why an instance does not let the client in.
fn refusal(cluster: &mut Cluster, number: usize, client: u64, logon: (u64, u64, u32)) -> String {
    log_on(cluster, number, client, logon);
    assert_eq!(cluster.at(number).take(client), [], "it may be over soon");
    cluster.pass(Duration::from_secs(1));
    let said = cluster.at(number).take(client);
    assert_eq!(said, [Said::Error(Code::NotReady), Said::Closed]);
    let ended = cluster.at(number).log.iter().rev().find_map(|event| match event {
        quire_broker::Event::Ended { code: Code::NotReady, reason, .. } => Some(reason.clone()),
        _ => None,
    });
    cluster.at(number).disconnect(client);
    ended.expect("the log has the reason")
}

fn state(cluster: &mut Cluster, number: usize) -> &'static str {
    cluster.stats(number).state
}

fn not_heard(cluster: &mut Cluster, number: usize) -> Vec<String> {
    cluster.stats(number).not_heard.into_iter().map(|member| member.name).collect()
}

/// The client publishes 1 to 300 on the first instance, whose disk is then lost. `cut` are the
/// instances that it does not reach for a minute.
fn a_lost_disk_is_filled_before_clients_are_let_in(configs: Vec<BrokerConfig>, cut: &[usize]) {
    let last = configs.len() - 1;
    let mut cluster = Cluster::new(configs);
    log_on(&mut cluster, 0, 1, (11, 0, 1));
    publish(&mut cluster, 0, 1, 1..=300, "first");
    assert_eq!(answers(&mut cluster, 0, 1), (vec![], 300));
    cluster.pass(A_MINUTE);
    cluster.destroy(0);
    cut.iter().for_each(|other| cluster.partition(0, *other));
    cluster.start(0);
    cluster.pass(A_MINUTE);
    assert_eq!(state(&mut cluster, 0), "filling");
    let reason = refusal(&mut cluster, 0, 2, (11, 300, 2));
    for name in not_heard(&mut cluster, 0) {
        assert!(reason.contains(&format!("{name:?}")), "{name}: {reason}");
    }
    cluster.heal();
    cluster.pass(A_MINUTE);
    assert_eq!((state(&mut cluster, 0), not_heard(&mut cluster, 0)), ("live", vec![]));
    log_on(&mut cluster, 0, 3, (11, 300, 3));
    publish(&mut cluster, 0, 3, 301..=302, "first");
    cluster.pass(A_MINUTE);
    for number in 0..=last {
        assert_eq!(sequences(&mut cluster, number), (1..=302).collect::<Vec<_>>(), "instance {number}");
    }
}

/// The source of the first instance is the last one. Its destination is heard, and has nothing that
/// it can send.
#[test]
fn a_ring_lets_no_client_in_to_a_lost_disk_before_its_source_was_heard() {
    a_lost_disk_is_filled_before_clients_are_let_in(ring(), &[2]);
}

#[test]
fn an_async_pair_lets_no_client_in_to_a_lost_disk_before_the_other_one_was_heard() {
    a_lost_disk_is_filled_before_clients_are_let_in(pair_of(SyncType::Async), &[1]);
}

/// The other instance does not answer for longer than a start waits for sync destinations.
#[test]
fn a_sync_pair_lets_no_client_in_to_a_lost_disk_before_the_other_one_was_heard() {
    a_lost_disk_is_filled_before_clients_are_let_in(pair_of(SyncType::Sync), &[1]);
}

#[test]
fn an_instance_without_an_address_of_the_other_one_waits_for_it_after_a_lost_disk() {
    let mut configs = pair_of(SyncType::Sync);
    configs[0].replication.destinations[0].addresses.clear();
    a_lost_disk_is_filled_before_clients_are_let_in(configs, &[1]);
}

#[test]
fn an_instance_that_only_receives_waits_for_the_instances_that_its_configuration_names() {
    let mut receiver = instance("b", vec![]);
    receiver.replication.instances = vec!["a".into()];
    let mut cluster = Cluster::new(vec![instance("a", vec![destination("b", SyncType::Async)]), receiver]);
    log_on(&mut cluster, 0, 1, (11, 0, 1));
    publish(&mut cluster, 0, 1, 1..=9, "first");
    cluster.destroy(1);
    cluster.partition(0, 1);
    cluster.start(1);
    cluster.pass(A_MINUTE);
    let reason = refusal(&mut cluster, 1, 2, (11, 9, 2));
    assert!(reason.contains("\"a\""), "{reason}");
    cluster.heal();
    cluster.pass(A_MINUTE);
    log_on(&mut cluster, 1, 3, (11, 9, 3));
    assert_eq!(answers(&mut cluster, 1, 3), (vec![], 9));
}

/// No configuration names the source, so only its connection makes it a member.
#[test]
fn an_instance_knows_a_source_that_no_configuration_names_while_it_is_connected() {
    let configs = vec![instance("a", vec![destination("b", SyncType::Async)]), instance("b", vec![])];
    let mut cluster = Cluster::new(configs);
    cluster.pass(A_MINUTE);
    assert_eq!(state(&mut cluster, 1), "live");
    // The news of both do not change any more.
    for _ in 0..3 {
        cluster.partition(0, 1);
        cluster.pass(A_MINUTE);
        cluster.heal();
        cluster.pass(A_MINUTE);
        assert_eq!((state(&mut cluster, 0), state(&mut cluster, 1)), ("live", "live"));
    }
}

/// The files of an earlier time are in the same directory. The first instance that it connects to
/// is new, and does not know the later log.
#[test]
fn an_older_copy_is_filled_also_when_it_meets_a_new_instance_first() {
    let mut cluster = Cluster::new(mesh(&["a", "b", "c"], SyncType::Async));
    log_on(&mut cluster, 1, 1, (11, 0, 1));
    publish(&mut cluster, 1, 1, 1..=9, "first");
    cluster.pass(A_MINUTE);
    let older = cluster.backup(1);
    cluster.destroy(1);
    cluster.start(1);
    cluster.pass(A_MINUTE);
    assert_eq!(state(&mut cluster, 1), "live");
    cluster.kill(0);
    cluster.kill(1);
    put_back(&cluster.disks[1], &older);
    cluster.destroy(2);
    cluster.start(1);
    cluster.start(2);
    cluster.pass(A_MINUTE);
    cluster.start(0);
    cluster.pass(A_MINUTE);
    for number in 0..3 {
        assert_eq!((state(&mut cluster, number), not_heard(&mut cluster, number)), ("live", vec![]));
    }
}

#[test]
fn both_instances_of_a_pair_start_again_and_the_empty_one_is_first() {
    let mut cluster = Cluster::new(pair_of(SyncType::Sync));
    log_on(&mut cluster, 0, 1, (11, 0, 1));
    publish(&mut cluster, 0, 1, 1..=9, "first");
    cluster.pass(A_MINUTE);
    cluster.kill(1);
    cluster.destroy(0);
    cluster.start(0);
    cluster.pass(Duration::from_secs(1));
    refusal(&mut cluster, 0, 2, (11, 9, 2));
    cluster.start(1);
    cluster.pass(A_MINUTE);
    log_on(&mut cluster, 0, 3, (11, 9, 3));
    publish(&mut cluster, 0, 3, 10..=10, "first");
    assert_eq!(sequences(&mut cluster, 0), (1..=10).collect::<Vec<_>>());
}

/// A third instance is added by the steps of docs/replication.md, after a publisher has moved
/// between the two.
#[test]
fn an_added_instance_has_every_message_of_a_publisher_that_moved() {
    let mut cluster = Cluster::new(pair_of(SyncType::Sync));
    for (round, number) in [0, 1, 0].into_iter().enumerate() {
        let (client, last) = (1 + round as u64, 10 * round as u64);
        log_on(&mut cluster, number, client, (11, last, 1 + round as u32));
        publish(&mut cluster, number, client, last + 1..=last + 10, "first");
        assert_eq!(answers(&mut cluster, number, client), (vec![], last + 10));
        cluster.at(number).disconnect(client);
    }
    add_a_third_instance(&mut cluster);
    assert_eq!(sequences(&mut cluster, 2), (1..=30).collect::<Vec<_>>());
}

/// The messages of the filled disk have passed both instances.
#[test]
fn an_added_instance_has_every_message_after_a_disk_of_the_pair_was_lost_and_filled() {
    let mut cluster = Cluster::new(pair_of(SyncType::Sync));
    log_on(&mut cluster, 0, 1, (11, 0, 1));
    publish(&mut cluster, 0, 1, 1..=10, "first");
    cluster.destroy(0);
    cluster.start(0);
    cluster.pass(A_MINUTE);
    add_a_third_instance(&mut cluster);
    assert_eq!(sequences(&mut cluster, 2), (1..=10).collect::<Vec<_>>());
}

/// The two start again, one after the other, with an async destination for the third one. Then it
/// starts with an empty directory. It does not reach one of them for a minute.
fn add_a_third_instance(cluster: &mut Cluster) {
    let [a, b, c] = ["a", "b", "c"].map(|name| {
        let others = ["a", "b", "c"].into_iter().filter(|other| *other != name);
        let to = |other: &str| {
            let sync_type = if other == "c" { SyncType::Async } else { SyncType::Sync };
            destination(other, sync_type)
        };
        instance(name, others.map(to).collect())
    });
    for (number, config) in [a, b].into_iter().enumerate() {
        cluster.configure(number, config);
        cluster.stop(number);
        cluster.start(number);
        cluster.pass(A_MINUTE);
        assert_eq!(state(cluster, number), "away");
    }
    cluster.partition(1, 2);
    cluster.add(vec![c], quire_broker::LinkIdentity::default());
    cluster.pass(A_MINUTE);
    assert_eq!((state(cluster, 2), not_heard(cluster, 2)), ("filling", vec!["b".to_owned()]));
    let reason = refusal(cluster, 2, 99, (99, 0, 1));
    assert!(reason.contains("\"b\" (last known message"), "{reason}");
    cluster.heal();
    cluster.pass(A_MINUTE);
    assert_eq!((state(cluster, 2), not_heard(cluster, 2)), ("live", vec![]));
    log_on(cluster, 2, 100, (99, 0, 2));
    assert!(matches!(cluster.at(2).take(100)[..], [Said::LoggedOn { .. }]));
}

#[test]
fn a_restored_backup_is_filled_before_clients_are_let_in() {
    let mut cluster = Cluster::new(pair_of(SyncType::Sync));
    log_on(&mut cluster, 0, 1, (11, 0, 1));
    publish(&mut cluster, 0, 1, 1..=10, "first");
    cluster.pass(A_MINUTE);
    let backup = cluster.backup(0);
    publish(&mut cluster, 0, 1, 11..=20, "first");
    cluster.kill(0);
    cluster.disks[0] = backup;
    cluster.partition(0, 1);
    cluster.start(0);
    cluster.pass(A_MINUTE);
    refusal(&mut cluster, 0, 2, (11, 20, 2));
    cluster.heal();
    cluster.pass(A_MINUTE);
    assert_eq!(state(&mut cluster, 0), "live");
    assert_eq!(sequences(&mut cluster, 0), (1..=20).collect::<Vec<_>>());
}

/// The files of an earlier time are in the same directory, with the file of the members. The log
/// has lost a message, and the other instance had seen it.
#[test]
fn an_instance_that_lost_the_end_of_its_log_disconnects_its_clients_and_is_filled() {
    let mut cluster = Cluster::new(pair_of(SyncType::Sync));
    log_on(&mut cluster, 0, 1, (11, 0, 1));
    publish(&mut cluster, 0, 1, 1..=10, "first");
    cluster.pass(A_MINUTE);
    let backup = cluster.backup(0);
    publish(&mut cluster, 0, 1, 11..=20, "first");
    cluster.kill(0);
    put_back(&cluster.disks[0], &backup);
    cluster.partition(0, 1);
    cluster.start(0);
    cluster.pass(A_MINUTE);
    log_on(&mut cluster, 0, 2, (11, 10, 2));
    assert_eq!(state(&mut cluster, 0), "away", "nothing here tells that the log was longer");
    cluster.heal();
    cluster.pass(A_MINUTE);
    let said = cluster.at(0).take(2);
    assert!(said.ends_with(&[Said::Error(Code::NotReady), Said::Closed]), "{said:?}");
    assert_eq!(state(&mut cluster, 0), "live");
    assert_eq!(sequences(&mut cluster, 0), (1..=20).collect::<Vec<_>>());
}

fn put_back(disk: &MemoryDisk, backup: &MemoryDisk) {
    let directory = Path::new("journal");
    disk.list(directory).unwrap().iter().for_each(|name| disk.remove(&directory.join(name)).unwrap());
    for name in backup.list(directory).unwrap() {
        let path = directory.join(name);
        let bytes = backup.read(&path).unwrap();
        disk.create(&path, bytes.len() as u64).unwrap().write_at(&bytes, 0).unwrap();
    }
}

/// The file could have said that the log lacks messages.
#[test]
fn an_instance_whose_file_about_the_copies_is_damaged_is_filled() {
    let mut cluster = Cluster::new(pair_of(SyncType::Async));
    log_on(&mut cluster, 0, 1, (11, 0, 1));
    publish(&mut cluster, 0, 1, 1..=10, "first");
    cluster.pass(A_MINUTE);
    (0..2).for_each(|number| cluster.stop(number));
    let path = Path::new("journal/copies.place");
    let mut bytes = cluster.disks[0].read(path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    cluster.disks[0].create(path, bytes.len() as u64).unwrap().write_at(&bytes, 0).unwrap();
    cluster.start(0);
    cluster.pass(A_MINUTE);
    let reason = refusal(&mut cluster, 0, 2, (11, 10, 2));
    assert!(reason.contains("\"b\""), "{reason}");
    cluster.start(1);
    cluster.pass(A_MINUTE);
    assert_eq!(state(&mut cluster, 0), "live");
    assert_eq!(sequences(&mut cluster, 0), (1..=10).collect::<Vec<_>>());
}

/// The log of an earlier version has no number. It has records, so it counts as whole.
#[test]
fn a_log_of_an_earlier_version_takes_clients_without_the_others() {
    let mut cluster = Cluster::new(pair_of(SyncType::Async));
    log_on(&mut cluster, 0, 1, (11, 0, 1));
    publish(&mut cluster, 0, 1, 1..=10, "first");
    (0..2).for_each(|number| cluster.stop(number));
    for disk in &cluster.disks {
        disk.remove(Path::new("journal/copies.place")).unwrap();
    }
    cluster.start(0);
    cluster.pass(A_MINUTE);
    assert_eq!(state(&mut cluster, 0), "away");
    log_on(&mut cluster, 0, 2, (11, 10, 2));
    assert_eq!(answers(&mut cluster, 0, 2), (vec![], 10));
    cluster.start(1);
    cluster.pass(A_MINUTE);
    assert_eq!((state(&mut cluster, 0), state(&mut cluster, 1)), ("live", "live"));
}

#[test]
fn a_whole_log_takes_clients_after_a_restart_while_the_others_are_away() {
    let mut cluster = Cluster::new(mesh(&["a", "b", "c"], SyncType::Async));
    cluster.pass(A_MINUTE);
    (0..3).for_each(|number| cluster.kill(number));
    cluster.start(0);
    cluster.pass(A_MINUTE);
    assert_eq!(state(&mut cluster, 0), "away");
    log_on(&mut cluster, 0, 1, (11, 0, 1));
    assert_eq!(answers(&mut cluster, 0, 1), (vec![], 0));
}

#[test]
fn a_command_lets_clients_in_and_the_log_names_the_members_that_were_not_heard() {
    let mut cluster = Cluster::new(pair_of(SyncType::Async));
    log_on(&mut cluster, 0, 1, (11, 0, 1));
    publish(&mut cluster, 0, 1, 1..=9, "first");
    cluster.destroy(0);
    cluster.partition(0, 1);
    cluster.start(0);
    cluster.pass(A_MINUTE);
    refusal(&mut cluster, 0, 2, (11, 9, 2));
    let stats = cluster.admit(0);
    let names: Vec<_> = stats.not_heard.iter().map(|member| &*member.name).collect();
    assert_eq!((stats.state, stats.is_admitted, names), ("filling", true, vec!["b"]));
    let lines = |cluster: &mut Cluster, id: &str| {
        let log = &cluster.at(0).log;
        log.iter().filter(|event| event.id() == id).map(ToString::to_string).collect::<Vec<_>>()
    };
    for id in ["12-0013", "12-0015"] {
        let lines = lines(&mut cluster, id);
        assert!(lines.len() == 1 && lines[0].contains("\"b\""), "{id}: {lines:?}");
    }
    assert_eq!(lines(&mut cluster, "12-0012").len(), 1);
    log_on(&mut cluster, 0, 3, (11, 9, 3));
    publish(&mut cluster, 0, 3, 10..=10, "first");
    assert_eq!(answers(&mut cluster, 0, 3), (vec![], 10));
    // A restart does not withdraw it.
    cluster.pass(A_MINUTE);
    cluster.kill(0);
    cluster.start(0);
    cluster.pass(A_MINUTE);
    assert_eq!((state(&mut cluster, 0), cluster.stats(0).is_admitted), ("filling", true));
    log_on(&mut cluster, 0, 4, (11, 10, 4));
    assert_eq!(answers(&mut cluster, 0, 4), (vec![], 10));
    // The missing messages arrive later.
    cluster.heal();
    cluster.pass(A_MINUTE);
    assert_eq!(state(&mut cluster, 0), "live");
    let mut all = sequences(&mut cluster, 0);
    all.sort_unstable();
    assert_eq!(all, (1..=10).collect::<Vec<_>>());
    assert_eq!(lines(&mut cluster, "12-0014").len(), 1);
}

#[test]
fn a_client_that_only_observes_is_let_in_and_can_do_nothing_else() {
    let mut cluster = Cluster::new(pair_of(SyncType::Sync));
    cluster.kill(1);
    cluster.destroy(0);
    cluster.start(0);
    cluster.settle();
    cluster.at(0).connect(1);
    cluster.at(0).send(1, &Command::Logon(Logon { observes: true, ..logon("operator") }));
    cluster.settle();
    assert!(matches!(cluster.at(0).take(1)[..], [Said::LoggedOn { .. }]));
    cluster.at(0).send(1, &Command::Inspect { command: 1, subject: Subject::Replication });
    cluster.settle();
    let said = cluster.at(0).take(1);
    let [Said::Stats { json, .. }] = &said[..] else { panic!("{said:?}") };
    assert!(
        json.contains("\"state\":\"filling\"")
            && json.contains("\"not_heard\":[{\"group\":false,\"last\":null,\"name\":\"b\"}]"),
        "{json}"
    );
    cluster.at(0).publish(1, 1, "orders", "{}");
    cluster.settle();
    assert_eq!(cluster.at(0).take(1), [Said::Error(Code::NotReady), Said::Closed]);
}

#[test]
fn a_new_set_takes_clients_when_all_are_there_and_the_first_one_alone_does_not() {
    for configs in [pair_of(SyncType::Sync), ring(), mesh(&["a", "b", "c"], SyncType::Async)] {
        let count = configs.len();
        let mut cluster = Cluster::new(configs);
        cluster.pass(Duration::from_secs(1));
        for number in 0..count {
            assert_eq!(state(&mut cluster, number), "live");
            log_on(&mut cluster, number, 1, (11, 0, 1));
            assert_eq!(answers(&mut cluster, number, 1), (vec![], 0));
        }
        (0..count).for_each(|number| cluster.destroy(number));
        cluster.start(0);
        cluster.pass(A_MINUTE);
        refusal(&mut cluster, 0, 2, (11, 0, 2));
        (1..count).for_each(|number| cluster.start(number));
        cluster.pass(A_MINUTE);
        assert_eq!(state(&mut cluster, 0), "live");
    }
}

/// The crash comes before the file of the members has a completed state, and after records arrived.
#[test]
fn a_crash_while_the_log_is_filled_does_not_make_it_whole() {
    let mut cluster = Cluster::new(ring());
    log_on(&mut cluster, 0, 1, (11, 0, 1));
    publish(&mut cluster, 0, 1, 1..=9, "first");
    cluster.destroy(0);
    // The mark of b cannot come over c.
    cluster.partition(1, 2);
    cluster.start(0);
    cluster.pass(Duration::from_secs(1));
    assert_eq!((state(&mut cluster, 0), sequences(&mut cluster, 0).len()), ("filling", 9));
    cluster.kill(0);
    cluster.partition(0, 2);
    cluster.start(0);
    cluster.pass(A_MINUTE);
    assert_eq!(state(&mut cluster, 0), "filling");
    refusal(&mut cluster, 0, 2, (11, 9, 2));
    cluster.heal();
    cluster.pass(A_MINUTE);
    assert_eq!(state(&mut cluster, 0), "live");
}

#[test]
fn a_single_instance_writes_no_file_of_members() {
    let mut pair = Pair::with(instance("a", vec![]));
    pair.turn();
    pair.client(1, "p");
    let mut alone = config();
    alone.replication = quire_broker::ReplicationConfig::default();
    let mut alone = Pair::with(alone);
    alone.turn();
    alone.client(1, "p");
    let disk = alone.disk.clone();
    alone.broker.close().unwrap();
    assert!(!disk.list(Path::new("journal")).unwrap().iter().any(|name| name == "copies.place"));
}

#[test]
fn an_instance_says_that_it_is_filling_before_its_first_turn() {
    let mut cluster = Cluster::new(pair_of(SyncType::Sync));
    cluster.pass(A_MINUTE);
    cluster.destroy(0);
    cluster.start(0);
    assert_eq!(state(&mut cluster, 0), "filling");
}
