//! Faults of replication that the simulation found, each as its shortest history.

use std::time::Duration;

use quire_broker::{BrokerConfig, SyncType};
use quire_command::*;
use quire_wire::link::{Frame, Hello, Member, SentAll, VERSION, Welcome};

use super::link_borders::logon;
use super::links::*;
use super::pair::*;

const A_MINUTE: Duration = Duration::from_secs(60);

/// Instances in a circle. Each one sends everything to the next one and waits for it.
fn sync_ring(count: usize) -> Cluster {
    let name = |number: usize| ["a", "b", "c", "d"][number % count];
    let config = |number: usize| {
        let mut destination = destination(name(number + 1), SyncType::Sync);
        destination.pass_through = vec![".*".into()];
        instance(name(number), vec![destination])
    };
    Cluster::new((0..count).map(config).collect())
}

#[test]
fn publishers_on_every_instance_of_a_sync_ring_are_acknowledged() {
    let mut cluster = sync_ring(3);
    for number in 0..3 {
        cluster.at(number).client(1, ["p", "q", "r"][number]);
        cluster.at(number).writes_at_once = false;
    }
    // All of them publish before any of them has sent anything.
    for number in 0..3 {
        cluster.at(number).publish(1, 1, "orders", "{}");
    }
    for number in 0..3 {
        cluster.at(number).writes_at_once = true;
    }
    cluster.pass(A_MINUTE);
    let persisted: Vec<_> = (0..3).map(|number| cluster.persisted(number, 1)).collect();
    assert_eq!(persisted, [1, 1, 1]);
}

#[test]
fn records_that_are_sent_again_wait_for_the_end_of_the_chain_again() {
    let mut to_c = destination("c", SyncType::Sync);
    to_c.pass_through = vec![".*".into()];
    let to_b = destination("b", SyncType::Sync);
    let configs = vec![instance("a", vec![to_b]), instance("b", vec![to_c]), instance("c", vec![])];
    let mut cluster = Cluster::new(configs);
    cluster.at(0).client(1, "p");
    cluster.partition(1, 2);
    cluster.publish(0, 1, 1, 2);
    // The acknowledgement that b owes is lost with the connection.
    cluster.partition(0, 1);
    cluster.heal();
    cluster.partition(1, 2);
    cluster.pass(A_MINUTE);
    assert_eq!((cluster.log(1).len(), cluster.log(2).len()), (2, 0));
    assert_eq!(cluster.persisted(0, 1), 0);
    cluster.heal();
    cluster.pass(A_MINUTE);
    assert_eq!(cluster.persisted(0, 1), 2);
}

fn with_last_values(mut configs: Vec<BrokerConfig>) -> Vec<BrokerConfig> {
    for config in &mut configs {
        config.sow_topics =
            serde_json::from_str(r#"[{"name": "orders", "message_type": "json", "key": ["/n"]}]"#).unwrap();
    }
    configs
}

#[test]
fn a_delete_is_acknowledged_when_the_sync_destination_has_it() {
    let mut cluster = Cluster::new(with_last_values(pair_of(SyncType::Sync)));
    cluster.at(0).client(1, "p");
    cluster.publish(0, 1, 1, 1);
    assert_eq!(cluster.persisted(0, 1), 1);
    cluster.partition(0, 1);
    let delete = SowDelete {
        command: 2,
        sequence: 2,
        topic: "orders",
        filter: Some("/n = 1"),
        ..SowDelete::default()
    };
    cluster.at(0).send(1, &Command::SowDelete(delete));
    cluster.settle();
    assert_eq!(cluster.persisted(0, 1), 0);
    cluster.heal();
    cluster.pass(A_MINUTE);
    assert_eq!(cluster.persisted(0, 1), 2);
}

#[test]
fn a_delete_is_acknowledged_when_the_end_of_a_chain_with_a_filter_has_it() {
    let mut to_c = destination("c", SyncType::Sync);
    to_c.pass_through = vec![".*".into()];
    to_c.topics[0].filter = Some("/n > 0".into());
    let to_b = destination("b", SyncType::Sync);
    let configs = vec![instance("a", vec![to_b]), instance("b", vec![to_c]), instance("c", vec![])];
    let mut cluster = Cluster::new(with_last_values(configs));
    cluster.at(0).client(1, "p");
    cluster.publish(0, 1, 1, 1);
    assert_eq!(cluster.persisted(0, 1), 1);
    cluster.at(2).writes_at_once = false;
    let delete = SowDelete {
        command: 2,
        sequence: 2,
        topic: "orders",
        filter: Some("/n = 1"),
        ..SowDelete::default()
    };
    cluster.at(0).send(1, &Command::SowDelete(delete));
    cluster.settle();
    assert_eq!(cluster.log(1).len(), 2);
    assert_eq!(cluster.persisted(0, 1), 0, "c does not have the delete");
    cluster.at(2).writes_at_once = true;
    cluster.settle();
    assert_eq!(cluster.persisted(0, 1), 2);
}

#[test]
fn the_delete_of_a_validated_topic_is_replicated() {
    let mut configs = with_last_values(pair_of(SyncType::Sync));
    for config in &mut configs {
        config.transaction_log.topics[0].validate = true;
    }
    let mut cluster = Cluster::new(configs);
    cluster.at(0).client(1, "p");
    cluster.publish(0, 1, 1, 1);
    for (sequence, filter) in [(2, "/n = 1"), (3, "/n = 1")] {
        let delete =
            SowDelete { command: 2, sequence, topic: "orders", filter: Some(filter), ..SowDelete::default() };
        cluster.at(0).send(1, &Command::SowDelete(delete));
        cluster.settle();
    }
    cluster.publish(0, 1, 4, 1);
    assert_eq!(cluster.persisted(0, 1), 4);
    assert_eq!(cluster.log(1).len(), 4, "the second delete found no record, and its record has no key");
}

#[test]
fn a_repeated_publish_is_acknowledged_when_the_sync_destination_has_it() {
    let mut configs = pair_of(SyncType::Sync);
    configs[1].replication.destinations[0].pass_through = vec![".*".into()];
    let mut to_c = destination("c", SyncType::Sync);
    to_c.pass_through = vec![".*".into()];
    configs[1].replication.destinations.push(to_c);
    configs.push(instance("c", vec![]));
    let mut cluster = Cluster::new(configs);
    cluster.at(0).client(1, "p");
    cluster.partition(1, 2);
    cluster.publish(0, 1, 1, 2);
    assert_eq!(cluster.persisted(0, 1), 0);
    // The client fails over to b, which has the messages from a, and sends them again.
    cluster.at(1).client(1, "p");
    cluster.publish(1, 1, 1, 2);
    assert_eq!(cluster.persisted(1, 1), 0, "c does not have them");
    cluster.heal();
    cluster.pass(A_MINUTE);
    assert_eq!(cluster.persisted(1, 1), 2);
}

#[test]
fn a_connection_that_says_nothing_asks_for_no_turns() {
    let mut cluster = Cluster::new(pair_of(SyncType::Async));
    let pair = cluster.at(0);
    let connection = quire_broker::ConnectionId(77);
    let now = pair.now();
    pair.broker.handle(now, quire_broker::Input::LinkAccepted { connection, peer: "test", tls: false });
    pair.turn();
    pair.now_ns += 3_000_000_000;
    pair.turn();
    let (now, due) = (pair.now().instant, pair.broker.next_timeout());
    assert!(due.is_some_and(|due| due > now), "due at {due:?}, now is {now:?}");
}

/// The frames of a link: size, kind, body.
fn frame(kind: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = (body.len() as u32 + 1).to_le_bytes().to_vec();
    bytes.push(kind);
    bytes.extend_from_slice(body);
    bytes
}

#[test]
fn clients_are_let_in_when_the_source_has_caught_up_before_the_destination_greets() {
    let mut pair = Pair::with(instance("a", vec![destination("b", SyncType::Sync)]));
    pair.turn();
    let now = pair.now();
    let from_b = quire_broker::ConnectionId(71);
    // b has connected and sent all that it has.
    pair.broker
        .handle(now, quire_broker::Input::LinkAccepted { connection: from_b, peer: "test", tls: false });
    pair.broker.handle(now, quire_broker::Input::Received { connection: from_b, bytes: &logon("b") });
    pair.turn();
    let told = || vec![Member { name: "b", group: "b", started_ns: 9, log: 5, ..Member::default() }];
    let hello = Hello {
        version: VERSION,
        instance: "b",
        group: "b",
        destination: "a",
        started_ns: 9,
        members: told(),
        ..Hello::default()
    };
    let mut bytes = Vec::new();
    Frame::Hello(hello).encode(&mut bytes);
    Frame::Mark(SentAll::default()).encode(&mut bytes);
    pair.broker.handle(now, quire_broker::Input::Received { connection: from_b, bytes: &bytes });
    pair.turn();
    // Only now the link in the other direction comes up.
    let welcome = Welcome {
        version: VERSION,
        instance: "b",
        group: "b",
        started_ns: 9,
        sends_back: true,
        members: told(),
        ..Welcome::default()
    };
    let mut bytes = Vec::new();
    Frame::Welcome(welcome).encode(&mut bytes);
    pair.broker.handle(now, quire_broker::Input::Received { connection: from_b, bytes: &bytes });
    pair.turn();
    pair.client(1, "p");
}

#[test]
fn a_source_with_another_version_of_links_is_refused_and_both_versions_are_named() {
    let text = |text: &str| [&(text.len() as u16).to_le_bytes()[..], text.as_bytes()].concat();
    let mut pair = Pair::with(instance("a", vec![]));
    pair.turn();
    let (now, connection) = (pair.now(), quire_broker::ConnectionId(71));
    pair.broker.handle(now, quire_broker::Input::LinkAccepted { connection, peer: "test", tls: false });
    // In version 3 the mark of a hello has no time.
    let version = 3_u16.to_le_bytes();
    let started = 9_u64.to_le_bytes();
    let names = ["b", "b", "a", ""].map(text);
    let hello = [&version[..], &names.concat(), &started, &[0; 24], &[0; 4], &[0; 4]];
    let bytes = frame(1, &hello.concat());
    pair.broker.handle(now, quire_broker::Input::Received { connection, bytes: &bytes });
    pair.turn();
    let reasons = pair.log.iter().filter_map(|event| match event {
        quire_broker::Event::LinkRefused { reason, .. } => Some(reason.clone()),
        _ => None,
    });
    assert_eq!(
        reasons.collect::<Vec<_>>(),
        ["it uses version 3 of links, and this instance version 10: run the same version of quire on both"]
    );
}

#[test]
fn a_log_that_has_the_message_of_the_mark_at_its_old_position_by_chance_gets_everything() {
    let configs = vec![instance("a", vec![destination("b", SyncType::Async)]), instance("b", vec![])];
    let mut cluster = Cluster::new(configs);
    cluster.at(0).client(1, "first");
    cluster.at(0).client(2, "second");
    cluster.publish(0, 1, 1, 1);
    cluster.publish(0, 2, 1, 1);
    // Time to save the places.
    cluster.pass(Duration::from_secs(3));
    cluster.partition(0, 1);
    cluster.destroy(1);
    cluster.start(1);
    cluster.at(1).client(3, "other");
    cluster.at(1).client(4, "second");
    cluster.publish(1, 3, 1, 1);
    cluster.publish(1, 4, 1, 1);
    cluster.heal();
    cluster.pass(A_MINUTE);
    let (at_a, at_b) = (cluster.log(0), cluster.log(1));
    assert!(at_a.iter().all(|message| at_b.contains(message)), "{at_b:?}");
}

/// The logs of b and c, of one group, have the last message that a knows at b at the same position.
/// A message before it is missing on c.
fn a_group_with_logs_that_end_alike(does_restart: bool) {
    let of_west = |mut config: BrokerConfig| {
        config.replication.group = Some("west".into());
        config
    };
    let mut to_west = destination("west", SyncType::Async);
    (to_west.group, to_west.addresses) = (Some("west".into()), vec!["b".into(), "c".into()]);
    let configs =
        vec![instance("a", vec![to_west]), of_west(instance("b", vec![])), of_west(instance("c", vec![]))];
    let mut cluster = Cluster::new(configs);
    cluster.at(0).client(1, "first");
    cluster.at(0).client(2, "second");
    cluster.publish(0, 1, 1, 1);
    cluster.publish(0, 2, 1, 1);
    assert_eq!(cluster.log(1).len(), 2);
    cluster.at(2).client(3, "other");
    cluster.at(2).client(4, "second");
    cluster.publish(2, 3, 1, 1);
    cluster.publish(2, 4, 1, 1);
    // Time to save the places.
    cluster.pass(Duration::from_secs(3));
    cluster.kill(1);
    if does_restart {
        cluster.kill(0);
        cluster.start(0);
    }
    cluster.pass(A_MINUTE);
    let (at_a, at_c) = (cluster.log(0), cluster.log(2));
    assert!(at_a.iter().all(|message| at_c.contains(message)), "{at_c:?}");
}

#[test]
fn another_instance_of_a_group_gets_everything_although_its_log_has_the_last_message_at_the_same_place() {
    a_group_with_logs_that_end_alike(false);
}

#[test]
fn a_restarted_source_knows_which_instance_of_a_group_its_place_is_about() {
    a_group_with_logs_that_end_alike(true);
}

#[test]
fn an_instance_of_a_group_gets_back_what_came_from_the_other_one() {
    // East and west have a group each. b and c are of west, and send to a, which sends to b.
    let of = |group: &str, mut config: BrokerConfig| {
        config.replication.group = Some(group.into());
        config
    };
    let mut to_west = destination("west", SyncType::Async);
    to_west.group = Some("west".into());
    to_west.addresses = vec!["b".into()];
    to_west.pass_through = vec!["^east$".into()];
    let configs = vec![
        of("east", instance("a", vec![to_west])),
        of("west", instance("b", vec![destination("a", SyncType::Async)])),
        of("west", instance("c", vec![destination("a", SyncType::Async), destination("b", SyncType::Async)])),
    ];
    let mut cluster = Cluster::new(configs);
    // a can send to c, and does not: it is connected to the other instance of the group.
    cluster.admit(2);
    cluster.at(2).client(1, "p");
    cluster.publish(2, 1, 1, 20);
    assert_eq!(cluster.log(1).len(), 20);
    // b loses its disk while it cannot reach c.
    cluster.destroy(1);
    cluster.partition(1, 2);
    cluster.start(1);
    cluster.pass(A_MINUTE);
    assert_eq!(cluster.log(1), cluster.log(2));
}
