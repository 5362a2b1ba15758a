//! At every limit the stated thing happens (protocol.md section 6).

use quire_broker::{Access, BrokerConfig, Limits, RecordedTopic, TransportConfig, TransportId};
use quire_command::*;
use quire_wire::*;

use super::pair::*;

fn over(transport: TransportConfig) -> Pair {
    Pair::with(BrokerConfig { transports: vec![transport], ..config() })
}

fn with(limits: Limits) -> Pair {
    Pair::with(BrokerConfig { limits, ..config() })
}

#[test]
fn one_connection_too_many_is_told_so() {
    let mut pair = over(TransportConfig { max_connections: 2, ..TransportConfig::default() });
    pair.client(1, "a");
    pair.client(2, "b");
    pair.connect(3);
    pair.turn();
    assert_eq!(pair.take(3), [Said::Error(Code::LimitExceeded), Said::Closed]);
    pair.disconnect(1);
    pair.client(4, "c");
}

#[test]
fn administrators_have_a_separate_limit_of_connections() {
    let mut pair = over(TransportConfig { max_connections: 2, ..TransportConfig::default() });
    for administrator in 11..=15 {
        pair.connect_as(administrator, Access::Administrator);
        pair.log_on(administrator, &format!("administrator {administrator}"));
    }
    // They take no place of a client, and a full transport takes none of theirs.
    pair.client(1, "a");
    pair.client(2, "b");
    pair.connect(3);
    pair.connect_as(16, Access::Administrator);
    pair.connect_as(17, Access::Denied);
    pair.turn();
    for refused in [3, 16] {
        assert_eq!(pair.take(refused), [Said::Error(Code::LimitExceeded), Said::Closed]);
        pair.disconnect(refused);
    }
    assert_eq!(pair.take(17), [Said::Error(Code::NotEntitled), Said::Closed]);
    pair.disconnect(17);
    pair.disconnect(11);
    pair.disconnect(1);
    pair.connect_as(18, Access::Administrator);
    pair.log_on(18, "administrator 18");
    pair.client(4, "c");
    pair.send(18, &Command::Inspect { command: 9, subject: Subject::Server });
    pair.turn();
    assert!(matches!(&pair.take(18)[..], [Said::Stats { command: 9, .. }]));
}

#[test]
fn a_message_above_the_limit_ends_the_connection() {
    let mut pair = over(TransportConfig { max_message_size: 10, ..TransportConfig::default() });
    pair.client(1, "a");
    pair.publish(1, 1, "orders", "0123456789");
    pair.publish(1, 2, "orders", "0123456789x");
    pair.publish(1, 3, "orders", "after it");
    pair.turn();
    assert_eq!(pair.take(1), [Said::Error(Code::MessageTooLarge), Said::Closed]);
    assert_eq!(pair.broker.stats().appended, 1);
}

#[test]
fn a_slow_ordinary_subscriber_is_cut_off_and_disturbs_nobody() {
    let limit = 64 * 1024;
    let mut pair = over(TransportConfig { max_client_backlog: limit, ..TransportConfig::default() });
    pair.client(1, "publisher");
    pair.client(2, "slow");
    pair.client(3, "other");
    for client in [2, 3] {
        pair.subscribe(client, &subscribe(7, "orders"));
    }
    pair.turn();
    pair.take(2);
    pair.set_writable(2, false);
    let data = "x".repeat(1000);
    for sequence in 1..=60 {
        pair.publish(1, sequence, "orders", &data);
        pair.turn();
    }
    assert_eq!(pair.take(2), [], "within the limit it is only waited for");
    for sequence in 61..=70 {
        pair.publish(1, sequence, "orders", &data);
        pair.turn();
    }
    assert_eq!(pair.take(2), [Said::Error(Code::SlowConsumer), Said::Closed]);
    assert_eq!(pair.take_data(3).len(), 70);
    assert_eq!(pair.broker.stats().subscription_count, 1);
}

/// Found by seed 12 of the simulation: messages after the dropped ones arrived, and the reason did
/// not.
#[test]
fn a_slow_subscriber_gets_the_reason_and_no_message_after_the_dropped_ones() {
    let mut pair = over(TransportConfig { max_client_backlog: 4096, ..TransportConfig::default() });
    pair.client(1, "publisher");
    pair.client(2, "slow");
    pair.subscribe(2, &subscribe(7, "orders"));
    pair.turn();
    pair.take(2);
    let data = "x".repeat(1000);
    let mut input = Vec::new();
    for sequence in 1..=13 {
        Command::Publish(publish(sequence, "orders", &data)).encode(&mut input);
    }
    pair.send_bytes(1, &input);
    pair.turn();
    assert_eq!(pair.take(2), [Said::Error(Code::SlowConsumer), Said::Closed]);
}

#[test]
fn what_waits_for_all_connections_together_has_a_bound_and_the_slowest_pays() {
    let limits = Limits { max_waiting: 150_000, ..Limits::default() };
    let transport = TransportConfig { max_client_backlog: 100_000, ..TransportConfig::default() };
    let mut pair = Pair::with(BrokerConfig { transports: vec![transport], limits, ..config() });
    pair.client(1, "publisher");
    for client in 2..=4 {
        pair.client(client, &format!("subscriber-{client}"));
        pair.subscribe(client, &subscribe(7, "orders"));
    }
    pair.subscribe(3, &subscribe(8, "more"));
    pair.turn();
    for client in 2..=4 {
        pair.take(client);
        pair.set_writable(client, client == 4);
    }
    let data = "x".repeat(10_000);
    pair.publish(1, 1, "more", &data);
    for sequence in 2..=7 {
        pair.publish(1, sequence, "orders", &data);
        pair.turn();
    }
    assert_eq!((pair.take(2).len(), pair.take(3).len()), (0, 0), "130,000 bytes wait");
    pair.publish(1, 8, "orders", &data);
    pair.turn();
    assert_eq!(pair.take(3), [Said::Error(Code::SlowConsumer), Said::Closed], "80,000 waited for it");
    for sequence in 9..=10 {
        pair.publish(1, sequence, "orders", &data);
        pair.turn();
    }
    assert_eq!(pair.take(2), [], "90,000 bytes wait, what was dropped does not count any more");
    assert_eq!(pair.take_data(4).len(), 9);
    pair.set_writable(2, true);
    pair.turn();
    assert_eq!(pair.take_data(2).len(), 9);
}

#[test]
fn a_large_message_that_waits_for_many_connections_counts_once_for_all_of_them_and_whole_for_each() {
    let limits = Limits { max_waiting: 200_000, ..Limits::default() };
    let transport = TransportConfig { max_client_backlog: 100_000, ..TransportConfig::default() };
    let mut pair = Pair::with(BrokerConfig { transports: vec![transport], limits, ..config() });
    pair.client(1, "publisher");
    for client in 2..=11 {
        pair.client(client, &format!("subscriber-{client}"));
        pair.subscribe(client, &subscribe(client as u32, "orders"));
        pair.turn();
        pair.take(client);
        pair.set_writable(client, false);
    }
    let data = |sequence: u64| sequence.to_string().repeat(20_000);
    for sequence in 1..=4 {
        pair.publish(1, sequence, "orders", &data(sequence));
        pair.turn();
    }
    let backlogs: Vec<_> = pair.broker.stats().connections.iter().map(|each| each.backlog_bytes).collect();
    assert!(backlogs[1..].iter().all(|size| (80_000..81_000).contains(size)), "{backlogs:?}");
    for client in 2..=6 {
        assert_eq!(pair.take(client), [], "80,000 bytes wait for each of ten connections, 80,000 for all");
        pair.set_writable(client, true);
    }
    pair.turn();
    for client in 2..=6 {
        assert_eq!(pair.take_data(client), [data(1), data(2), data(3), data(4)]);
    }
    pair.publish(1, 5, "orders", &data(5));
    pair.turn();
    for client in 2..=6 {
        assert_eq!(pair.take_data(client), [data(5)]);
    }
    for client in 7..=11 {
        assert_eq!(pair.take(client), [Said::Error(Code::SlowConsumer), Said::Closed], "100,000 wait for it");
    }
}

#[test]
fn unfinished_frames_of_all_connections_together_have_a_bound() {
    let mut pair = with(Limits { max_unfinished: 100_000, ..Limits::default() });
    for client in 1..=3 {
        pair.client(client, &format!("client-{client}"));
    }
    let mut frame = Vec::new();
    Command::Publish(publish(1, "orders", &"x".repeat(80_000))).encode(&mut frame);
    let (most, rest) = frame.split_at(60_000);
    for client in [1, 2] {
        pair.send_bytes(client, most);
        pair.turn();
    }
    assert_eq!(pair.take(2), [Said::Error(Code::LimitExceeded), Said::Closed]);
    pair.send_bytes(3, &most[..30_000]);
    pair.send_bytes(1, rest);
    pair.turn();
    assert_eq!(pair.take(1), [Said::Persisted(1)], "what was within the bound goes on");
    pair.send_bytes(3, &most[30_000..]);
    pair.send_bytes(3, rest);
    pair.turn();
    assert_eq!(pair.take(3), [Said::Persisted(1)]);
}

#[test]
fn publishers_are_not_read_from_while_too_much_is_unpersisted() {
    let mut pair = with(Limits { max_unpersisted: 10_000, ..Limits::default() });
    pair.client(1, "publisher");
    pair.client(2, "reader");
    pair.writes_at_once = false;
    pair.publish(1, 1, "orders", &"x".repeat(10_000));
    pair.turn();
    assert!(pair.clients[&1].is_reading_paused);
    assert!(!pair.clients[&2].is_reading_paused, "only those who publish");
    pair.publish(1, 2, "orders", "waits");
    pair.turn();
    assert_eq!(pair.broker.stats().appended, 1);
    pair.write();
    pair.turn();
    assert!(!pair.clients[&1].is_reading_paused);
    pair.turn();
    assert_eq!(pair.broker.stats().appended, 2);
}

#[test]
fn refusals_and_flushes_that_wait_are_bounded() {
    let mut pair = Pair::new();
    pair.client(1, "publisher");
    pair.writes_at_once = false;
    pair.publish(1, 1, "orders", "x");
    for sequence in 2..20_000 {
        pair.publish(1, sequence, "", "x");
    }
    pair.turn();
    assert!(pair.clients[&1].is_reading_paused);
    pair.write();
    pair.turn();
    let failed = pair.take(1).iter().filter(|said| matches!(said, Said::Failed { .. })).count();
    assert_eq!(failed, 19_998);
    assert!(!pair.clients[&1].is_reading_paused);
    pair.publish(1, 20_000, "orders", "x");
    for command in 1..20_000 {
        pair.send(1, &Command::Flush { command, acks: Acks::PERSISTED });
    }
    pair.turn();
    assert!(pair.clients[&1].is_reading_paused);
    pair.write();
    pair.turn();
    assert_eq!(pair.take(1).len(), 20_000);
    assert!(!pair.clients[&1].is_reading_paused);
}

#[test]
fn many_replays_share_the_reads_and_all_arrive() {
    let mut pair = Pair::new();
    pair.client(1, "publisher");
    let data = "x".repeat(1000);
    for sequence in 1..=2000 {
        pair.publish(1, sequence, "orders", &data);
    }
    pair.turn();
    pair.take(1);
    pair.reads_at_once = false;
    pair.client(2, "reader");
    for number in 0..300 {
        pair.subscribe(2, &replay(number + 1, "orders", "0"));
    }
    pair.turn();
    assert!(pair.reads.len() <= 128, "{}", pair.reads.len());
    pair.reads_at_once = true;
    pair.turn();
    assert_eq!(pair.take_data(2).len(), 300 * 2000);
}

#[test]
fn a_connection_that_takes_nothing_keeps_no_read_from_the_others() {
    let mut pair = Pair::new();
    pair.client(1, "publisher");
    let data = "x".repeat(1000);
    for sequence in 1..=2000 {
        pair.publish(1, sequence, "orders", &data);
    }
    pair.turn();
    pair.reads_at_once = false;
    pair.client(2, "stuck");
    for number in 1..=300 {
        pair.subscribe(2, &replay(number, "orders", "0"));
    }
    pair.turn();
    pair.client(3, "reader");
    pair.subscribe(3, &replay(1, "orders", "0"));
    pair.turn();
    pair.set_writable(2, false);
    pair.reads_at_once = true;
    pair.turn();
    assert_eq!(pair.take_data(3).len(), 2000);
    pair.take(2);
    pair.set_writable(2, true);
    pair.turn();
    assert_eq!(pair.take_data(2).len(), 300 * 2000);
}

/// One frame whose refusals exceed the backlog of its connection: the connection ends in the middle
/// of being told of them.
#[test]
fn refusals_above_the_backlog_end_their_connection_and_no_other() {
    let mut pair = over(TransportConfig { max_client_backlog: 1024, ..TransportConfig::default() });
    pair.client(1, "honest");
    for round in 1..=20 {
        pair.client(2, "refused");
        pair.set_writable(2, false);
        pair.publish(2, round * 1_000, "orders", "good");
        for sequence in 1..=500 {
            pair.publish(2, round * 1_000 + sequence, "", "refused");
        }
        pair.publish(1, round, "orders", "honest");
        pair.turn();
        assert_eq!(pair.take(2), [Said::Error(Code::SlowConsumer), Said::Closed], "round {round}");
        assert_eq!(pair.take(1), [Said::Persisted(round)], "round {round}");
        pair.disconnect(2);
    }
    assert_eq!(pair.broker.stats().appended, 40);
}

#[test]
fn a_connection_that_ends_at_the_answer_to_a_subscribe_leaves_the_topic_as_it_was() {
    let mut pair = over(TransportConfig { max_client_backlog: 1024, ..TransportConfig::default() });
    pair.client(1, "publisher");
    for round in 1..=3 {
        pair.client(2, "slow");
        pair.set_writable(2, false);
        let mut input = Vec::new();
        for number in 1..=200 {
            let topic = format!("topic-{number}");
            Command::Subscribe(subscribe(number, &topic)).encode(&mut input);
        }
        pair.send_bytes(2, &input);
        pair.turn();
        assert_eq!(pair.take(2), [Said::Error(Code::SlowConsumer), Said::Closed], "round {round}");
        pair.disconnect(2);
    }
    pair.client(2, "subscriber");
    pair.subscribe(2, &subscribe(1, "topic-60"));
    pair.turn();
    pair.take(2);
    pair.publish(1, 1, "topic-60", "x");
    pair.turn();
    assert_eq!(pair.take_data(2), ["x"]);
}

fn refused_topic(sequence: u64) -> Said {
    Said::Failed { sequence, code: Code::LimitExceeded, scope: FailureScope::One }
}

#[test]
fn a_publish_to_one_topic_more_than_the_limit_is_refused_and_nothing_else_is() {
    let mut pair = with(Limits { max_topics: 2, ..Limits::default() });
    pair.client(1, "publisher");
    for (sequence, topic) in [(1, "a"), (2, "b"), (3, "c"), (4, "a")] {
        pair.publish(1, sequence, topic, "x");
    }
    pair.subscribe(1, &subscribe(7, "c"));
    pair.turn();
    let accepted = [ack(AckKind::Processed, 7, 7), ack(AckKind::Completed, 7, 7)];
    let said = [&accepted[..], &[Said::Persisted(2), refused_topic(3), Said::Persisted(4)]].concat();
    assert_eq!(pair.take(1), said);
    // Those that the log has are known after a restart, and count.
    let mut pair =
        pair.restart(BrokerConfig { limits: Limits { max_topics: 2, ..Limits::default() }, ..config() });
    pair.client(1, "publisher");
    pair.publish(1, 5, "c", "x");
    pair.publish(1, 6, "b", "x");
    pair.turn();
    assert_eq!(pair.take(1), [refused_topic(5), Said::Persisted(6)]);
}

#[test]
fn topics_that_are_not_recorded_do_not_count() {
    let mut config = config();
    config.limits.max_topics = 1;
    let passing = RecordedTopic { recorded: false, ..RecordedTopic::new("^passing/", "json") };
    config.transaction_log.topics = vec![RecordedTopic::new("^kept", "json"), passing];
    let mut pair = Pair::with(config);
    pair.client(1, "publisher");
    (1..=100).for_each(|sequence| pair.publish(1, sequence, &format!("passing/{sequence}"), "x"));
    pair.publish(1, 101, "kept/1", "x");
    pair.publish(1, 102, "kept/2", "x");
    pair.turn();
    assert_eq!(pair.take(1), [Said::Persisted(101), refused_topic(102)]);
}

#[test]
fn a_topic_counts_until_the_last_journal_file_that_holds_it_is_removed() {
    let mut pair = with(Limits { max_topics: 2, ..Limits::default() });
    pair.client(1, "publisher");
    let data = "x".repeat(8 * 1024);
    pair.publish(1, 1, "old", "x");
    (2..=80).for_each(|sequence| pair.publish(1, sequence, "kept", &data));
    pair.publish(1, 81, "new", "x");
    pair.turn();
    assert_eq!(pair.take(1), [Said::Persisted(80), refused_topic(81)]);
    let maintenance = pair.broker.journal().maintenance();
    assert_eq!(maintenance.remove(quire_journal::Which::All, None).unwrap().len(), 2);
    pair.publish(1, 82, "new", "x");
    pair.publish(1, 83, "old", "x");
    pair.publish(1, 84, "kept", "x");
    pair.turn();
    assert_eq!(pair.take(1), [Said::Persisted(82), refused_topic(83), Said::Persisted(84)]);
}

/// The names that a reader has met in finished files must not count as topics of the log.
#[test]
fn a_topic_that_a_live_reader_has_passed_counts_no_longer_than_its_journal_files() {
    let mut pair = with(Limits { max_topics: 2, ..Limits::default() });
    pair.client(1, "publisher");
    pair.client(2, "reader");
    pair.subscribe(2, &replay(1, "kept", "0|1|"));
    pair.turn();
    pair.take(2);
    let data = "x".repeat(8 * 1024);
    pair.publish(1, 1, "old", "x");
    (2..=80).for_each(|sequence| pair.publish(1, sequence, "kept", &data));
    pair.turn();
    assert_eq!(pair.take(1), [Said::Persisted(80)]);
    let maintenance = pair.broker.journal().maintenance();
    assert_eq!(maintenance.remove(quire_journal::Which::All, None).unwrap().len(), 2);
    pair.publish(1, 81, "new", "x");
    pair.turn();
    assert_eq!(pair.take(1), [Said::Persisted(81)]);
}

#[test]
fn each_transport_has_its_own_limits() {
    let narrow = TransportConfig {
        name: "narrow".into(),
        max_connections: 1,
        max_message_size: 10,
        ..TransportConfig::default()
    };
    let mut pair =
        Pair::with(BrokerConfig { transports: vec![TransportConfig::default(), narrow], ..config() });
    pair.client(1, "wide-1");
    pair.client(2, "wide-2");
    pair.connect_over(3, TransportId(1));
    pair.send(3, &Command::Logon(logon("narrow-1")));
    pair.connect_over(4, TransportId(1));
    pair.turn();
    assert_eq!(pair.take(4), [Said::Error(Code::LimitExceeded), Said::Closed]);
    pair.client(5, "wide-3");
    pair.take(3);
    for client in [1, 3] {
        pair.publish(client, 1, "orders", "0123456789x");
    }
    pair.turn();
    assert_eq!(pair.take(1), [Said::Persisted(1)]);
    assert_eq!(pair.take(3), [Said::Error(Code::MessageTooLarge), Said::Closed]);
    // A connection that leaves makes room on its own transport.
    pair.disconnect(3);
    pair.connect_over(6, TransportId(1));
    pair.turn();
    assert_eq!(pair.take(6), []);
}
