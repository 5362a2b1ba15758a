//! Records travel between instances, and publishers wait for the sync destinations of their
//! messages (docs/replication.md).

use std::time::Duration;

use quire_broker::{AdminCommand, AdminReply, Compression, QueueSettings, ReplicatedTopic, SyncType};
use quire_command::*;
use quire_types::Timestamp;

use super::links::*;
use super::pair::*;

#[test]
fn a_message_has_the_same_name_and_data_on_both_instances() {
    let mut cluster = Cluster::new(pair_of(SyncType::Sync));
    cluster.at(0).client(1, "p");
    cluster.publish(0, 1, 1, 3);
    assert_eq!(cluster.log(0).len(), 3);
    assert_eq!(cluster.log(0), cluster.log(1));
    assert_eq!(cluster.paths(0), ["", "", ""]);
    assert_eq!(cluster.paths(1), ["a", "a", "a"]);
    assert_eq!(cluster.persisted(0, 1), 3);
}

#[test]
fn compressed_records_arrive_as_others_do_with_fewer_bytes() {
    let carried = |compression| {
        let mut configs = pair_of(SyncType::Sync);
        for destination in configs.iter_mut().flat_map(|config| &mut config.replication.destinations) {
            destination.compression = compression;
        }
        let mut cluster = Cluster::new(configs);
        cluster.at(0).client(1, "p");
        cluster.kill(1);
        cluster.publish(0, 1, 1, 2_000);
        cluster.start(1);
        cluster.pass(Duration::from_secs(60));
        assert_eq!(cluster.log(0).len(), 2_000);
        assert_eq!(cluster.log(0), cluster.log(1));
        assert_eq!(cluster.persisted(0, 1), 2_000);
        cluster.carried_size
    };
    let plain = carried(Compression::None);
    for compression in [Compression::Lz4, Compression::Zstd] {
        let compressed = carried(compression);
        assert!(compressed < plain / 2, "{compression:?}: {compressed} of {plain} bytes");
    }
}

#[test]
fn a_message_that_came_from_an_instance_is_not_sent_back_to_it() {
    let mut cluster = Cluster::new(pair_of(SyncType::Sync));
    cluster.at(0).client(1, "p");
    cluster.publish(0, 1, 1, 3);
    let stats = cluster.stats(1);
    assert_eq!(stats.destinations[0].sent_count, 0);
    assert_eq!(stats.sources[0].received_count, 3);
    assert_eq!(stats.sources[0].duplicate_count, 0);
}

#[test]
fn a_link_passes_over_what_came_from_its_destination_and_sends_what_lies_between() {
    let mut cluster = Cluster::new(pair_of(SyncType::Sync));
    cluster.at(0).client(1, "p");
    cluster.at(1).client(2, "q");
    for round in 0..20_u64 {
        // More than one frame of records, or few. Both instances take records of their own while
        // those of the other one come.
        let (first, size) = (round * 1000 + 1, if round % 2 == 0 { 1000 } else { 3 });
        for sequence in first..first + size {
            cluster.at(0).publish(1, sequence, "orders", "{}");
            cluster.at(1).publish(2, sequence, "orders", "{}");
        }
        if round % 3 == 0 {
            cluster.settle();
        }
    }
    cluster.settle();
    // Both are too long to be shown.
    assert!(cluster.sorted(0) == cluster.sorted(1), "the logs differ");
    for number in [0, 1] {
        let stats = cluster.stats(number);
        let (link, source) = (&stats.destinations[0], &stats.sources[0]);
        assert_eq!((link.scanned, link.acknowledged, link.sent_count), (20_060, 20_060, 10_030));
        assert_eq!((source.received_count, source.duplicate_count), (10_030, 0));
    }
}

#[test]
fn an_instance_that_only_receives_sends_nothing_back_after_a_crash() {
    let mut cluster = Cluster::new(pair_of(SyncType::Sync));
    cluster.at(0).client(1, "p");
    cluster.publish(0, 1, 1, 3000);
    // The place of the link from 1 to 0 is on the disk by then.
    cluster.pass(Duration::from_secs(2));
    cluster.kill(1);
    cluster.pass(Duration::from_secs(2));
    cluster.start(1);
    cluster.pass(Duration::from_secs(2));
    let source = &cluster.stats(0).sources[0];
    assert_eq!((source.state, source.received_count, source.duplicate_count), ("live", 0, 0));
}

#[test]
fn a_publisher_waits_until_the_sync_destination_has_persisted_the_message() {
    let mut cluster = Cluster::new(pair_of(SyncType::Sync));
    cluster.at(0).client(1, "p");
    cluster.at(1).writes_at_once = false;
    cluster.publish(0, 1, 1, 2);
    assert_eq!(cluster.persisted(0, 1), 0);
    cluster.at(1).writes_at_once = true;
    cluster.settle();
    assert_eq!(cluster.persisted(0, 1), 2);
}

#[test]
fn sending_and_acknowledging_ask_for_no_other_turn() {
    let mut cluster = Cluster::new(pair_of(SyncType::Sync));
    cluster.at(0).client(1, "p");
    cluster.publish(0, 1, 1, 1);
    let before = [0, 1].map(|number| cluster.at(number).repeat_count);
    cluster.publish(0, 1, 2, 3);
    assert_eq!(cluster.persisted(0, 1), 4);
    assert_eq!([0, 1].map(|number| cluster.at(number).repeat_count), before);
}

#[test]
fn a_publisher_does_not_wait_for_an_async_destination() {
    let mut cluster = Cluster::new(pair_of(SyncType::Async));
    cluster.at(0).client(1, "p");
    cluster.kill(1);
    cluster.publish(0, 1, 1, 2);
    assert_eq!(cluster.persisted(0, 1), 2);
    cluster.start(1);
    cluster.pass(Duration::from_secs(60));
    assert_eq!(cluster.log(0), cluster.log(1));
}

#[test]
fn a_destination_that_does_not_get_a_message_does_not_delay_its_acknowledgement() {
    let mut cluster = Cluster::new(pair_of(SyncType::Sync));
    cluster.at(0).client(1, "p");
    cluster.at(0).client(2, "q");
    cluster.kill(1);
    cluster.publish(0, 1, 1, 1);
    cluster.at(0).publish(2, 1, "local", "{}");
    cluster.settle();
    assert_eq!(cluster.persisted(0, 1), 0);
    assert_eq!(cluster.persisted(0, 2), 1);
}

#[test]
fn a_flush_waits_for_the_destinations_of_the_earlier_publishes() {
    let mut cluster = Cluster::new(pair_of(SyncType::Sync));
    cluster.at(0).client(1, "p");
    cluster.partition(0, 1);
    cluster.publish(0, 1, 1, 1);
    cluster.at(0).send(1, &Command::Flush { command: 9, acks: Acks::PERSISTED });
    cluster.settle();
    assert_eq!(cluster.at(0).take(1), []);
    cluster.heal();
    cluster.pass(Duration::from_secs(30));
    let flushed = ack(AckKind::Persisted, 9, 0);
    assert_eq!(cluster.at(0).take(1), [Said::Persisted(1), flushed]);
}

#[test]
fn only_matching_topics_and_contents_are_sent() {
    let mut to_b = destination("b", SyncType::Sync);
    to_b.topics[0].filter = Some("/n > 2".into());
    let mut cluster = Cluster::new(vec![instance("a", vec![to_b]), instance("b", vec![])]);
    cluster.at(0).client(1, "p");
    cluster.publish(0, 1, 1, 4);
    assert_eq!(cluster.persisted(0, 1), 4);
    cluster.at(0).publish(1, 5, "local", "{\"n\":5}");
    cluster.settle();
    let sequences: Vec<_> = cluster.log(1).into_iter().map(|(_, sequence, _)| sequence).collect();
    assert_eq!(sequences, [3, 4]);
    assert_eq!(cluster.persisted(0, 1), 5);
}

#[test]
fn a_message_travels_one_hop_without_pass_through_and_on_with_it() {
    let chain = |pass_through: Vec<String>| {
        let mut to_c = destination("c", SyncType::Sync);
        to_c.pass_through = pass_through;
        let to_b = destination("b", SyncType::Sync);
        vec![instance("a", vec![to_b]), instance("b", vec![to_c]), instance("c", vec![])]
    };
    for (pass_through, expected) in [(vec![], 0), (vec!["^x".to_owned()], 0), (vec!["^a".to_owned()], 2)] {
        let mut cluster = Cluster::new(chain(pass_through));
        cluster.at(0).client(1, "p");
        cluster.publish(0, 1, 1, 2);
        assert_eq!(cluster.log(2).len(), expected);
        assert_eq!(cluster.persisted(0, 1), 2);
        if expected > 0 {
            assert_eq!(cluster.paths(2), ["a,b", "a,b"]);
        }
    }
}

#[test]
fn the_acknowledgement_of_a_chain_waits_for_its_end() {
    let mut to_c = destination("c", SyncType::Sync);
    to_c.pass_through = vec![".*".into()];
    let to_b = destination("b", SyncType::Sync);
    let configs = vec![instance("a", vec![to_b]), instance("b", vec![to_c]), instance("c", vec![])];
    let mut cluster = Cluster::new(configs);
    cluster.at(0).client(1, "p");
    cluster.at(2).writes_at_once = false;
    cluster.publish(0, 1, 1, 2);
    assert_eq!(cluster.log(1).len(), 2);
    assert_eq!(cluster.persisted(0, 1), 0);
    cluster.at(2).writes_at_once = true;
    cluster.settle();
    assert_eq!(cluster.persisted(0, 1), 2);
}

/// Every instance sends to every other one, and passes everything on.
fn mesh_of_three() -> Cluster {
    let names = ["a", "b", "c"];
    let destinations = |own: &str| {
        let others = names.iter().filter(|name| **name != own);
        others
            .map(|name| {
                let mut destination = destination(name, SyncType::Sync);
                destination.pass_through = vec![".*".into()];
                destination
            })
            .collect()
    };
    Cluster::new(names.iter().map(|name| instance(name, destinations(name))).collect())
}

#[test]
fn a_message_that_arrives_by_several_paths_is_recorded_once() {
    let mut cluster = mesh_of_three();
    cluster.at(0).client(1, "p");
    cluster.at(1).client(1, "q");
    cluster.publish(0, 1, 1, 5);
    cluster.publish(1, 1, 1, 5);
    assert_eq!(cluster.persisted(0, 1), 5);
    assert_eq!(cluster.persisted(1, 1), 5);
    assert_eq!(cluster.log(0).len(), 10);
    assert_eq!(cluster.sorted(0), cluster.sorted(1));
    assert_eq!(cluster.sorted(0), cluster.sorted(2));
}

#[test]
fn required_acks_counts_the_sync_destinations_that_have_the_message() {
    let mut a = instance("a", vec![destination("b", SyncType::Sync), destination("c", SyncType::Sync)]);
    a.replication.required_acks = Some(1);
    let mut cluster = Cluster::new(vec![a, instance("b", vec![]), instance("c", vec![])]);
    cluster.at(0).client(1, "p");
    cluster.kill(2);
    cluster.publish(0, 1, 1, 2);
    assert_eq!(cluster.persisted(0, 1), 2);
    cluster.kill(1);
    cluster.publish(0, 1, 3, 1);
    assert_eq!(cluster.persisted(0, 1), 0);
}

#[test]
fn a_hub_with_required_acks_counts_the_other_spokes_for_a_spoke() {
    let spokes = ["b", "c", "d"];
    let to_spoke = |name: &&str| {
        let mut destination = destination(name, SyncType::Sync);
        destination.pass_through = vec![".*".into()];
        destination
    };
    let mut hub = instance("a", spokes.iter().map(to_spoke).collect());
    hub.replication.required_acks = Some(1);
    let of_spoke = |name: &&str| instance(name, vec![destination("a", SyncType::Sync)]);
    let mut cluster = Cluster::new([hub].into_iter().chain(spokes.iter().map(of_spoke)).collect());
    cluster.at(1).client(1, "p");
    cluster.kill(2);
    cluster.kill(3);
    cluster.publish(1, 1, 1, 2);
    assert_eq!((cluster.log(0).len(), cluster.persisted(1, 1)), (2, 0), "the hub has it, and no other spoke");
    cluster.start(3);
    cluster.pass(Duration::from_secs(30));
    assert_eq!((cluster.log(3).len(), cluster.persisted(1, 1)), (2, 2));
}

#[test]
fn a_destination_is_downgraded_by_age_and_upgraded_when_it_has_caught_up() {
    let mut configs = pair_of(SyncType::Sync);
    let to_b = &mut configs[0].replication.destinations[0];
    to_b.downgrade_after_ns = Some(30_000_000_000);
    to_b.upgrade_below_ns = Some(10_000_000_000);
    let mut cluster = Cluster::new(configs);
    cluster.at(0).client(1, "p");
    cluster.kill(1);
    cluster.publish(0, 1, 1, 2);
    cluster.pass(Duration::from_secs(29));
    assert_eq!(cluster.persisted(0, 1), 0);
    cluster.pass(Duration::from_secs(2));
    assert_eq!(cluster.persisted(0, 1), 2);
    assert_eq!(cluster.stats(0).destinations[0].sync_type, SyncType::Async);
    cluster.start(1);
    cluster.pass(Duration::from_secs(60));
    assert_eq!(cluster.stats(0).destinations[0].sync_type, SyncType::Sync);
    assert_eq!(cluster.log(0), cluster.log(1));
}

#[test]
fn a_command_downgrades_and_upgrades_a_destination() {
    let mut cluster = Cluster::new(pair_of(SyncType::Sync));
    cluster.at(0).client(1, "p");
    cluster.kill(1);
    cluster.publish(0, 1, 1, 2);
    let set = |action| AdminCommand::Link { destination: "b".into(), action };
    assert!(matches!(cluster.admin(0, set(LinkAction::Downgrade)), AdminReply::Replication(_)));
    cluster.settle();
    assert_eq!(cluster.persisted(0, 1), 2);
    assert!(matches!(cluster.admin(0, set(LinkAction::Upgrade)), AdminReply::Replication(_)));
    cluster.publish(0, 1, 3, 1);
    assert_eq!(cluster.persisted(0, 1), 0);
    let unknown = AdminCommand::Link { destination: "x".into(), action: LinkAction::Downgrade };
    let AdminReply::Refused { reason, .. } = cluster.admin(0, unknown) else { panic!("it was not refused") };
    assert_eq!(reason, "no destination has the name \"x\"; the destinations are: \"b\"");
}

/// The messages that each 5 ms bring to an instance that returns, while a publish at the source
/// waits for the disk, and after that.
fn coming_beside_a_publish(sync_type: SyncType) -> (Vec<usize>, usize) {
    let mut cluster = Cluster::new(pair_of(sync_type));
    cluster.at(0).client(1, "p");
    cluster.kill(1);
    let data = "x".repeat(1000);
    for sequence in 1..=2000 {
        cluster.at(0).publish(1, sequence, "orders", &data);
        cluster.settle();
    }
    cluster.at(0).writes_at_once = false;
    (2001..=2020).for_each(|sequence| cluster.at(0).publish(1, sequence, "local", &data));
    cluster.start(1);
    while cluster.stats(0).destinations[0].state != "catching_up" && cluster.log(1).is_empty() {
        cluster.pass(Duration::from_millis(1));
    }
    let before = cluster.log(1).len();
    let mut counts = Vec::new();
    for _ in 0..3 {
        cluster.pass(Duration::from_millis(5));
        counts.push(cluster.log(1).len());
    }
    cluster.at(0).writes_at_once = true;
    cluster.settle();
    counts.insert(0, before);
    (counts, cluster.log(1).len())
}

#[test]
fn a_link_that_catches_up_gives_way_to_publishes_unless_they_wait_for_its_destination() {
    let (counts, after) = coming_beside_a_publish(SyncType::Async);
    assert!(counts[0] < 20, "{counts:?}");
    let steps: Vec<_> = counts.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(steps.iter().all(|step| (230..=270).contains(step)), "one read each: {counts:?}");
    assert_eq!(after, 2000, "all of them without publishes");
    let (counts, _) = coming_beside_a_publish(SyncType::Sync);
    assert_eq!(counts[0], 2000);
}

#[test]
fn a_paused_link_sends_nothing_and_keeps_the_journal_until_it_is_resumed() {
    let mut cluster = Cluster::new(pair_of(SyncType::Sync));
    cluster.at(0).client(1, "p");
    cluster.publish(0, 1, 1, 2);
    assert_eq!(cluster.persisted(0, 1), 2);
    let set = |action| AdminCommand::Link { destination: "b".into(), action };
    cluster.admin(0, set(LinkAction::Pause));
    cluster.settle();
    let carried_size = cluster.carried_size;
    cluster.publish(0, 1, 3, 3);
    cluster.pass(Duration::from_secs(60));
    assert_eq!(cluster.stats(0).destinations[0].state, "paused");
    // Only the link of the other direction sends its heartbeats. No other program connects.
    assert!(cluster.carried_size < carried_size + 1000, "{carried_size} {}", cluster.carried_size);
    assert_eq!(cluster.log(1).len(), 2);
    assert_eq!(cluster.persisted(0, 1), 0, "publishers wait");
    assert_eq!(cluster.at(0).broker.needed_position().map(|position| position.get()), Some(3));
    // A second pause and a second resume change nothing.
    cluster.admin(0, set(LinkAction::Pause));
    cluster.admin(0, set(LinkAction::Resume));
    cluster.admin(0, set(LinkAction::Resume));
    cluster.pass(Duration::from_secs(1));
    assert_eq!(cluster.stats(0).destinations[0].state, "live");
    assert_eq!(cluster.persisted(0, 1), 5);
    assert_eq!(cluster.log(0), cluster.log(1));
    let unknown = AdminCommand::Link { destination: "x".into(), action: LinkAction::Pause };
    assert!(matches!(cluster.admin(0, unknown), AdminReply::Refused { .. }));
}

#[test]
fn a_pause_ends_an_attempt_to_connect_and_a_restart_ends_the_pause() {
    let configs = vec![instance("a", vec![destination("b", SyncType::Async)]), instance("b", vec![])];
    let mut cluster = Cluster::new(configs);
    cluster.kill(0);
    cluster.held = Some(0);
    cluster.start(0);
    cluster.settle();
    let pause = AdminCommand::Link { destination: "b".into(), action: LinkAction::Pause };
    cluster.admin(0, pause.clone());
    cluster.release();
    assert_eq!(cluster.stats(0).destinations[0].state, "paused");
    assert!(cluster.stats(1).sources.is_empty(), "the connection was closed");
    cluster.kill(0);
    cluster.start(0);
    cluster.pass(Duration::from_secs(1));
    assert_eq!(cluster.stats(0).destinations[0].state, "live");
}

#[test]
fn a_link_between_configurations_that_do_not_fit_does_not_come_up() {
    let mut b = instance("b", vec![]);
    b.transaction_log.topics[0].message_type = "binary".into();
    let mut to_b = destination("b", SyncType::Async);
    to_b.topics = vec![ReplicatedTopic {
        name: "orders".into(),
        message_type: "json".into(),
        ..ReplicatedTopic::default()
    }];
    let mut cluster = Cluster::new(vec![instance("a", vec![to_b]), b]);
    cluster.admit(0);
    cluster.at(0).client(1, "p");
    cluster.publish(0, 1, 1, 1);
    let stats = cluster.stats(0);
    let error = stats.destinations[0].last_error.clone().unwrap_or_default();
    assert!(error.starts_with("message_type: the topic \"orders\""), "{error}");
    assert_eq!(cluster.log(1).len(), 0);
}

/// Why a link from an instance with one last-value topic to an instance with another one is
/// refused; empty when it is up.
fn refusal(at_source: &str, at_destination: &str, excluded: &[&str]) -> String {
    let mut configs = vec![instance("a", vec![destination("b", SyncType::Async)]), instance("b", vec![])];
    for (config, topics) in configs.iter_mut().zip([at_source, at_destination]) {
        config.sow_topics = serde_json::from_str(topics).unwrap();
    }
    let to_b = &mut configs[0].replication.destinations[0];
    to_b.topics[0].name = "orders".into();
    to_b.exclude_validation = excluded.iter().map(|check| (*check).to_owned()).collect();
    let mut cluster = Cluster::new(configs);
    let link = cluster.stats(0).destinations.remove(0);
    assert_eq!(link.last_error.is_none(), link.state == "live");
    link.last_error.unwrap_or_default()
}

#[test]
fn last_value_topics_that_differ_are_refused_unless_the_check_is_excluded() {
    let by_id = r#"[{"name": "orders", "message_type": "json", "key": ["/id"]}]"#;
    let in_domain = r#"[{"name": "orders", "message_type": "json", "key": ["/id"], "key_domain": "d"}]"#;
    let by_publisher = r#"[{"name": "orders", "message_type": "json"}]"#;
    assert_eq!(refusal(by_id, by_id, &[]), "");
    assert_eq!(
        refusal(by_id, "[]", &[]),
        "sow: \"a\" keeps last values of the topic \"orders\" and \"b\" does not; define the same [[sow_topic]] on both"
    );
    let refused = refusal("[]", by_publisher, &["key"]);
    assert!(refused.starts_with("sow: \"b\" keeps last values of the topic \"orders\""), "{refused}");
    assert_eq!(refusal(by_id, "[]", &["sow"]), "");
    for other in [in_domain, by_publisher] {
        let refused = refusal(by_id, other, &["sow"]);
        assert!(
            refused.starts_with("key: the last-value topic \"orders\" has the key \"/id\" at \"a\""),
            "{refused}"
        );
        assert_eq!(refusal(by_id, other, &["key"]), "");
    }
}

#[test]
fn a_queue_over_replicated_topics_must_be_local() {
    let with_queue = |topic: &str, is_local: bool| {
        let mut configs = pair_of(SyncType::Async);
        for config in &mut configs {
            config.queues = serde_json::from_str(
                r#"[{"name": "work", "message_type": "json", "underlying_topic": "orders"}]"#,
            )
            .unwrap();
            config.replication.destinations[0].topics[0].name = topic.into();
            if is_local {
                config.replication.local_queues = vec!["work".into()];
            }
        }
        Cluster::new(configs)
    };
    // The pattern matches a topic that has no message yet.
    for topic in ["orders", "^ord"] {
        let mut refused = with_queue(topic, false);
        let error = refused.stats(0).destinations[0].last_error.clone().unwrap_or_default();
        assert!(error.contains("[[local_queue]]"), "{topic}: {error}");
    }
    let mut cluster = with_queue("^ord", true);
    cluster.at(0).client(1, "p");
    cluster.publish(0, 1, 1, 3);
    for number in 0..2 {
        let stats = cluster.at(number).broker.queue_stats();
        assert_eq!(serde_json::to_value(&stats).unwrap()["work"]["depth"], 3);
    }
}

#[test]
fn last_values_and_deletes_are_equal_on_both_instances() {
    let mut configs = pair_of(SyncType::Sync);
    for config in &mut configs {
        config.sow_topics =
            serde_json::from_str(r#"[{"name": "orders", "message_type": "json", "key": ["/id"]}]"#).unwrap();
    }
    let mut cluster = Cluster::new(configs);
    cluster.at(0).client(1, "p");
    for (sequence, data) in [(1, r#"{"id":1,"v":1}"#), (2, r#"{"id":2,"v":1}"#), (3, r#"{"id":1,"v":2}"#)] {
        cluster.at(0).publish(1, sequence, "orders", data);
    }
    let delete = SowDelete {
        command: 4,
        sequence: 4,
        topic: "orders",
        filter: Some("/id = 2"),
        ..SowDelete::default()
    };
    cluster.at(0).send(1, &Command::SowDelete(delete));
    cluster.settle();
    for number in 0..2 {
        cluster.at(number).client(7, "reader");
        let query = Query {
            command: 5,
            acks: Acks::COMPLETED,
            topic: "orders",
            wants_last_values: true,
            ..Query::default()
        };
        cluster.at(number).send(7, &Command::Query(query));
        cluster.settle();
        let rows: Vec<_> = cluster
            .at(number)
            .take(7)
            .into_iter()
            .filter_map(|said| match said {
                Said::Row(row) => Some(row.data),
                _ => None,
            })
            .collect();
        assert_eq!(rows.iter().filter(|row| !row.is_empty()).collect::<Vec<_>>(), [r#"{"id":1,"v":2}"#]);
    }
    assert_eq!(cluster.log(0).len(), 4);
    assert_eq!(cluster.log(0), cluster.log(1));
}

#[test]
fn journal_files_that_a_destination_needs_are_kept() {
    let mut cluster = Cluster::new(pair_of(SyncType::Async));
    cluster.at(0).client(1, "p");
    cluster.publish(0, 1, 1, 5);
    assert_eq!(cluster.at(0).broker.needed_position().map(|position| position.get()), Some(6));
    cluster.kill(1);
    cluster.publish(0, 1, 6, 5);
    assert_eq!(cluster.at(0).broker.needed_position().map(|position| position.get()), Some(6));
}

#[test]
fn records_have_the_time_at_which_each_instance_took_them() {
    let mut cluster = Cluster::new(pair_of(SyncType::Sync));
    cluster.at(1).wall_ahead_ns = 5_000_000_000;
    cluster.at(0).client(1, "p");
    cluster.publish(0, 1, 1, 1);
    let last = |cluster: &mut Cluster, number| cluster.at(number).broker.journal().last_timestamp();
    let (a, b): (Timestamp, Timestamp) = (last(&mut cluster, 0), last(&mut cluster, 1));
    assert!(b.as_ns() >= a.as_ns() + 5_000_000_000);
}

#[test]
fn a_fully_durable_subscription_gets_a_message_when_the_sync_destinations_have_it() {
    let mut cluster = Cluster::new(pair_of(SyncType::Sync));
    cluster.at(0).client(1, "p");
    cluster.at(0).client(2, "plain");
    cluster.at(0).client(3, "durable");
    let durable = Subscribe { options: SubscribeOptions::FULLY_DURABLE, ..replay(7, "orders", "0") };
    cluster.at(0).subscribe(2, &replay(7, "orders", "0"));
    cluster.at(0).subscribe(3, &durable);
    cluster.publish(0, 1, 1, 2);
    assert_eq!(cluster.at(0).take_data(2).len(), 2);
    assert_eq!(cluster.at(0).take_data(3).len(), 2);
    cluster.at(1).writes_at_once = false;
    cluster.publish(0, 1, 3, 2);
    assert_eq!(cluster.at(0).take_data(2).len(), 2);
    assert_eq!(cluster.at(0).take_data(3).len(), 0);
    cluster.at(1).writes_at_once = true;
    cluster.settle();
    assert_eq!(cluster.at(0).take_data(3).len(), 2);
    // A destination that is not waited for any more releases what waited for it.
    cluster.kill(1);
    cluster.publish(0, 1, 5, 2);
    assert_eq!(cluster.at(0).take_data(3).len(), 0);
    cluster.admin(0, AdminCommand::Link { destination: "b".into(), action: LinkAction::Downgrade });
    cluster.settle();
    assert_eq!(cluster.at(0).take_data(3).len(), 2);
}

#[test]
fn a_queue_over_topics_of_other_instances_cannot_be_created_at_run_time() {
    let create = |cluster: &mut Cluster, number: usize, topic: &str| {
        let settings = QueueSettings {
            name: format!("work-{}", topic.trim_start_matches('^')),
            underlying_topic: Some(topic.into()),
            default_publish_target: topic.starts_with('^').then(|| "orders/1".into()),
            ..QueueSettings::default()
        };
        match cluster.admin(number, AdminCommand::CreateQueue(Box::new(settings))) {
            AdminReply::Refused { reason, .. } => Err(reason),
            AdminReply::QueueCreated { .. } => Ok(()),
            reply => panic!("{reply:?}"),
        }
    };
    // A link in both directions refuses the queue, also without any message.
    for topic in ["orders/1", "^orders"] {
        let reason = create(&mut Cluster::new(pair_of(SyncType::Sync)), 0, topic).unwrap_err();
        assert!(reason.contains("[[local_queue]]"), "{reason}");
    }
    // The destination of a link in one direction learns with the first message what comes in.
    let mut cluster =
        Cluster::new(vec![instance("a", vec![destination("b", SyncType::Sync)]), instance("b", vec![])]);
    cluster.at(0).client(1, "p");
    cluster.publish(0, 1, 1, 1);
    let topic = cluster.at(1).broker.journal().topics_after("", 1).remove(0);
    let reason = create(&mut cluster, 1, &topic).unwrap_err();
    assert!(reason.contains("come from another instance"), "{reason}");
    // Another queue that is created changes nothing about it.
    create(&mut cluster, 1, "local").unwrap();
    let reason = create(&mut cluster, 1, &topic).unwrap_err();
    assert!(reason.contains("come from another instance"), "{reason}");
    // The source has the queue: nothing comes in.
    create(&mut cluster, 0, "orders/1").unwrap();
}

/// Of each record of a log: the sequence, the run, and the sequence that it follows.
fn numberings(cluster: &mut Cluster, number: usize) -> Vec<(u64, u64, u64)> {
    cluster.records(number, |record| (record.sequence, record.run(), record.follows()))
}

#[test]
fn records_have_the_run_of_their_publisher_and_what_they_follow_on_each_instance() {
    let mut cluster = Cluster::new(pair_of(SyncType::Sync));
    cluster.at(0).connect(1);
    cluster.at(0).send(1, &Command::Logon(Logon { run: 77, persisted: 0, ..logon("p") }));
    cluster.settle();
    let numbered = |sequence| Publish { is_numbered: true, ..publish(sequence, "orders", "{}") };
    cluster.publish(0, 1, 1, 2);
    // It is refused: the log does not record the topic.
    cluster.at(0).publish(1, 3, "elsewhere", "{}");
    cluster.at(0).publish(1, 4, "orders", "{}");
    cluster.at(0).send(1, &Command::Publish(numbered(9)));
    cluster.at(0).publish(1, 0, "orders", "{}");
    cluster.settle();
    let expected = [(1, 77, 0), (2, 77, 1), (4, 77, 2), (9, 0, 4)];
    let without_number = numberings(&mut cluster, 0)[4];
    assert_eq!((without_number.1, without_number.2), (0, without_number.0 - 1));
    for number in [0, 1] {
        assert_eq!(numberings(&mut cluster, number)[..4], expected, "{number}");
    }
    // The other instance has acknowledged more to the run than there is here.
    cluster.at(1).connect(1);
    cluster.at(1).send(1, &Command::Logon(Logon { run: 77, persisted: 20, ..logon("p") }));
    cluster.settle();
    cluster.publish(1, 1, 25, 1);
    assert_eq!(numberings(&mut cluster, 1).last(), Some(&(25, 77, 20)));
}

#[test]
fn records_have_no_run_without_replication() {
    let mut config = instance("a", vec![]);
    config.replication.accepts = false;
    let mut cluster = Cluster::new(vec![config]);
    cluster.at(0).connect(1);
    cluster.at(0).send(1, &Command::Logon(Logon { run: 77, persisted: 3, ..logon("p") }));
    cluster.settle();
    cluster.publish(0, 1, 9, 1);
    assert_eq!(cluster.records(0, |record| record.attributes.as_bytes().len()), [0]);
}
