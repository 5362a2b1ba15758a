//! Bookmark subscriptions: where they begin, that nothing is missing and nothing comes twice, and
//! `completed` (docs/replay.md).

use quire_broker::Access;
use quire_command::*;
use quire_journal::{PublisherId, Timestamp};

use super::pair::*;
use super::queue_pair::queue;

fn bookmark(name: &str, sequence: u64) -> String {
    format!("{}|{sequence}|", PublisherId::of_client_name(name))
}

/// The data that a new subscription is sent, and whether `completed` came after exactly the
/// messages that were there.
fn replayed(pair: &mut Pair, subscribe: &Subscribe<'_>) -> Vec<String> {
    pair.client(99, "reader");
    pair.subscribe(99, subscribe);
    pair.turn();
    let said = pair.take(99);
    let number = subscribe.subscription;
    assert_eq!(said.first(), Some(&ack(AckKind::Processed, number, number)));
    assert_eq!(said.last(), Some(&ack(AckKind::Completed, number, number)));
    pair.disconnect(99);
    said.into_iter()
        .filter_map(|said| match said {
            Said::Message { data, .. } => Some(data),
            _ => None,
        })
        .collect()
}

/// Two publishers whose messages alternate, one every millisecond: `a1 b1 a2 b2 ...`, six in all.
fn six() -> Pair {
    let mut pair = Pair::new();
    pair.client(1, "a");
    pair.client(2, "b");
    for sequence in 1..=3 {
        for (client, name) in [(1, "a"), (2, "b")] {
            pair.now_ns += 1_000_000;
            // The numbers of `b` are high, so that the oldest in the log is not the smallest
            // number.
            let number = if client == 1 { sequence } else { 100 - 10 * (3 - sequence) };
            pair.publish(client, number, "orders", &format!("{name}{sequence}"));
        }
    }
    pair.turn();
    pair
}

#[test]
fn a_replay_begins_where_its_bookmark_says() {
    let all = ["a1", "b1", "a2", "b2", "a3", "b3"];
    let time = Timestamp(WALL_START_NS + 3_000_000).to_string();
    let late = Timestamp(WALL_START_NS - 1).to_string();
    let list = format!("{},{},{}", bookmark("a", 3), bookmark("b", 80), bookmark("nobody", 1));
    let cases = [
        ("0".to_owned(), 0),
        ("0|1|".to_owned(), 6),
        (bookmark("a", 2), 3),
        (bookmark("b", 100), 6),
        // The oldest in the log, which has the largest number; the unknown one is ignored.
        (list, 2),
        // The log lacks a message of a publisher: it begins before the next one of that publisher.
        (format!("{},{}", bookmark("a", 3), bookmark("b", 85)), 3),
        (format!("{},{}", bookmark("a", 3), bookmark("b", 101)), 5),
        (time, 3),
        (late, 0),
        // None of them known: from the beginning, which repeats rather than loses.
        (bookmark("nobody", 7), 0),
    ];
    let mut pair = six();
    for (text, from) in cases {
        assert_eq!(replayed(&mut pair, &replay(7, "orders", &text)), all[from..], "{text}");
    }
}

#[test]
fn an_unknown_bookmark_may_fail_or_mean_now() {
    let mut pair = six();
    let text = bookmark("nobody", 7);
    let unknown = replay(7, "orders", &text);
    let now = Subscribe { options: SubscribeOptions::NOT_FOUND_NOW, ..unknown.clone() };
    assert_eq!(replayed(&mut pair, &now), [""; 0]);
    pair.client(3, "c");
    pair.subscribe(3, &Subscribe { options: SubscribeOptions::NOT_FOUND_FAILS, ..unknown });
    pair.publish(3, 1, "orders", "x");
    pair.turn();
    assert_eq!(pair.take(3), [refused(Code::BookmarkNotFound, 7, 7), Said::Persisted(1)]);
}

#[test]
fn a_client_is_told_whether_its_bookmark_is_in_the_log() {
    let (known, missing) = (bookmark("a", 2), bookmark("nobody", 7));
    let either = format!("{missing},{known}");
    let now = SubscribeOptions::NOT_FOUND_NOW;
    let epoch = SubscribeOptions::default();
    let cases = [(&known, epoch, 0), (&either, now, 0), (&missing, epoch, 1), (&missing, now, 1)];
    let mut pair = six();
    pair.client(9, "reader");
    for (number, (text, options, detail)) in (1..).zip(cases) {
        pair.subscribe(9, &Subscribe { options, ..replay(number, "orders", text) });
        pair.turn();
        assert_eq!(pair.take(9).first(), Some(&ack(AckKind::Processed, number, number)));
        assert_eq!(pair.clients[&9].detail, detail, "{text}");
    }
    for (number, text) in (5..).zip(["0", "0|1|", "20200101T000000Z"]) {
        pair.subscribe(9, &replay(number, "orders", text));
        pair.turn();
        pair.take(9);
        assert_eq!(pair.clients[&9].detail, 0, "{text}");
    }
}

#[test]
fn a_bookmark_that_is_not_yet_persisted_is_waited_for() {
    let mut pair = Pair::new();
    pair.client(1, "a");
    pair.publish(1, 1, "orders", "1");
    pair.turn();
    pair.writes_at_once = false;
    pair.publish(1, 2, "orders", "2");
    pair.publish(1, 3, "orders", "3");
    pair.client(2, "reader");
    let text = bookmark("a", 2);
    pair.subscribe(2, &replay(7, "orders", &text));
    pair.turn();
    assert_eq!(pair.take(2), []);
    pair.write();
    pair.turn();
    assert_eq!(pair.take_data(2), ["3"]);
}

#[test]
fn a_time_to_come_keeps_out_what_is_recorded_before_it() {
    let text = Timestamp(WALL_START_NS + 5_000_000_000).to_string();
    // From the tail, from the publish stream, and from a replay.
    for options in [SubscribeOptions::default(), SubscribeOptions::LIVE, SubscribeOptions::PAUSED] {
        let mut pair = Pair::new();
        pair.client(1, "a");
        pair.subscribe(1, &Subscribe { options, ..replay(7, "orders", &text) });
        pair.publish(1, 1, "orders", "too early");
        pair.turn();
        pair.now_ns = 5_000_000_001;
        pair.publish(1, 2, "orders", "after it");
        pair.turn();
        if options == SubscribeOptions::PAUSED {
            let bytes = 7u32.to_le_bytes();
            let subscriptions = SubscriptionNumbers::from_bytes(&bytes).unwrap();
            pair.send(1, &Command::Resume { command: 1, acks: Acks::PROCESSED, subscriptions });
            pair.turn();
        }
        assert_eq!(pair.take_data(1), ["after it"], "{options:?}");
    }
}

#[test]
fn now_leaves_out_what_is_published_but_not_yet_persisted() {
    let mut pair = Pair::new();
    pair.client(1, "a");
    pair.writes_at_once = false;
    pair.publish(1, 1, "orders", "before");
    pair.subscribe(1, &replay(7, "orders", "0|1|"));
    pair.publish(1, 2, "orders", "after");
    pair.turn();
    pair.write();
    pair.turn();
    assert_eq!(pair.take_data(1), ["after"]);
}

#[test]
fn completed_comes_once_between_the_right_messages() {
    let mut pair = Pair::new();
    pair.client(1, "a");
    pair.client(2, "reader");
    pair.writes_at_once = false;
    pair.publish(1, 1, "orders", "persisted");
    pair.turn();
    pair.write();
    pair.publish(1, 2, "orders", "appended");
    pair.subscribe(2, &replay(7, "orders", "0"));
    pair.publish(1, 3, "orders", "later");
    pair.turn();
    pair.write();
    pair.turn();
    let kinds: Vec<_> = pair
        .take(2)
        .into_iter()
        .map(|said| match said {
            Said::Message { data, .. } => data,
            Said::Ack { kind, .. } => format!("{kind:?}"),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(kinds, ["Processed", "persisted", "appended", "Completed", "later"]);
}

#[test]
fn a_pattern_sees_recorded_topics_only() {
    use quire_broker::RecordedTopic;
    let others = RecordedTopic { recorded: false, ..RecordedTopic::new("^", "json") };
    let topics = vec![RecordedTopic::new("^rec", "json"), others];
    let log = quire_broker::TransactionLogConfig { topics, ..Default::default() };
    let mut pair = Pair::with(quire_broker::BrokerConfig { transaction_log: log, ..config() });
    pair.client(1, "a");
    let live = Subscribe { options: SubscribeOptions::LIVE, ..replay(8, "orders", "0") };
    pair.subscribe(1, &replay(7, "[o]rders", "0"));
    pair.subscribe(1, &Subscribe { topic: "[o]rders", ..live });
    for (sequence, topic) in [(1, "rec.orders"), (2, "orders"), (3, "rec.orders")] {
        pair.publish(1, sequence, topic, &sequence.to_string());
    }
    pair.turn();
    let mut data = pair.take_data(1);
    data.sort();
    assert_eq!(data, ["1", "1", "3", "3"]);
}

#[test]
fn a_replay_of_a_connection_that_takes_nothing_waits_without_a_limit() {
    let mut pair = Pair::new();
    pair.client(1, "a");
    pair.client(2, "reader");
    let data = "x".repeat(10_000);
    for sequence in 1..=1000 {
        pair.publish(1, sequence, "orders", &data);
        pair.turn();
    }
    pair.set_writable(2, false);
    pair.subscribe(2, &replay(7, "orders", "0"));
    for sequence in 1001..=2000 {
        pair.publish(1, sequence, "orders", &data);
        pair.turn();
    }
    assert!(pair.broker.stats().connections.iter().all(|c| c.backlog_bytes < 2 << 20));
    assert_eq!(pair.take(2), []);
    pair.set_writable(2, true);
    pair.turn();
    assert_eq!(pair.take_data(2).len(), 2000);
}

#[test]
fn one_that_falls_behind_at_the_live_edge_goes_on_from_the_log() {
    let mut pair = Pair::new();
    pair.client(1, "a");
    pair.client(2, "slow");
    pair.subscribe(2, &replay(7, "orders", "0"));
    let mut got = Vec::new();
    for sequence in 1..=300u64 {
        if sequence % 7 == 0 {
            pair.set_writable(2, sequence % 2 == 0);
        }
        pair.publish(1, sequence, "orders", &sequence.to_string());
        pair.turn();
        got.extend(pair.take_data(2));
    }
    pair.set_writable(2, true);
    pair.turn();
    got.extend(pair.take_data(2));
    assert_eq!(got, (1..=300).map(|n| n.to_string()).collect::<Vec<_>>());
}

#[test]
fn live_is_served_before_persisting_and_in_order_across_the_joint() {
    let mut pair = Pair::new();
    pair.client(1, "a");
    pair.client(2, "live");
    pair.writes_at_once = false;
    pair.publish(1, 1, "orders", "1");
    pair.turn();
    pair.write();
    pair.publish(1, 2, "orders", "2");
    pair.turn();
    let live = Subscribe { options: SubscribeOptions::LIVE, ..replay(7, "orders", "0") };
    pair.subscribe(2, &live);
    pair.turn();
    pair.publish(1, 3, "orders", "3");
    pair.turn();
    assert_eq!(pair.take_data(2), ["1"], "3 must not overtake 2, which is not persisted");
    pair.write();
    pair.turn();
    assert_eq!(pair.take_data(2), ["2", "3"]);
    pair.publish(1, 4, "orders", "4");
    pair.turn();
    assert_eq!(pair.take_data(2), ["4"]);
    pair.write();
    pair.turn();
    assert_eq!(pair.take_data(2), [""; 0]);
}

#[test]
fn a_replace_keeps_the_position_unless_it_names_another() {
    let mut pair = Pair::new();
    pair.client(1, "a");
    for sequence in 1..=4 {
        let topic = if sequence % 2 == 0 { "even" } else { "odd" };
        pair.publish(1, sequence, topic, &sequence.to_string());
    }
    pair.subscribe(1, &replay(7, "odd", "0"));
    pair.turn();
    assert_eq!(pair.take_data(1), ["1", "3"]);
    let replace = |subscribe| Subscribe { options: SubscribeOptions::REPLACE, ..subscribe };
    pair.subscribe(1, &replace(subscribe(7, "even")));
    pair.publish(1, 5, "odd", "5");
    pair.publish(1, 6, "even", "6");
    pair.turn();
    let said = pair.take(1);
    assert!(said.contains(&ack(AckKind::Completed, 7, 7)));
    let data = |said: Vec<Said>| -> Vec<String> {
        said.into_iter()
            .filter_map(|said| match said {
                Said::Message { data, .. } => Some(data),
                _ => None,
            })
            .collect()
    };
    assert_eq!(data(said), ["6"]);
    pair.subscribe(1, &replace(replay(7, "even", "0")));
    pair.turn();
    assert_eq!(pair.take_data(1), ["2", "4", "6"]);
}

#[test]
fn commands_after_one_whose_start_is_looked_for_wait_for_it() {
    let mut pair = six();
    pair.reads_at_once = false;
    let text = bookmark("a", 2);
    pair.subscribe(1, &replay(7, "orders", &text));
    pair.send(
        1,
        &Command::Unsubscribe(Unsubscribe {
            command: 8,
            acks: Acks::PROCESSED,
            subscription: 7,
            begun: None,
        }),
    );
    pair.publish(1, 4, "orders", "a4");
    pair.turn();
    pair.take(1);
    assert!(pair.clients[&1].is_reading_paused);
    pair.run_reads();
    pair.turn();
    assert_eq!(
        pair.take(1),
        [ack(AckKind::Processed, 7, 7), ack(AckKind::Processed, 8, 7), Said::Persisted(4)]
    );
    assert!(!pair.clients[&1].is_reading_paused);
}

#[test]
fn a_replay_of_a_topic_that_the_log_does_not_have_gets_a_note() {
    let letters = quire_broker::QueueSettings { dead_letter_topic: Some("dead".into()), ..queue("jobs") };
    let topics = ["quotes", "^"].map(|name| quire_broker::RecordedTopic::new(name, "json")).into();
    let transaction_log = quire_broker::TransactionLogConfig { topics, ..Default::default() };
    let queues = vec![letters];
    let mut pair = Pair::with(quire_broker::BrokerConfig { transaction_log, queues, ..config() });
    pair.client(1, "a");
    pair.publish(1, 1, "orders", "1");
    pair.turn();
    pair.client(2, "reader");
    pair.connect_as(3, Access::Internal);
    pair.log_on(3, "action");
    pair.turn();
    pair.take(3);
    let mut number = 0;
    let mut note_of = |pair: &mut Pair, client: u64, topic: &str, bookmark: Option<&str>| {
        number += 1;
        pair.subscribe(client, &Subscribe { bookmark, ..subscribe(number, topic) });
        pair.turn();
        assert_eq!(pair.take(client)[0], ack(AckKind::Processed, number, number));
        pair.clients[&client].note.clone()
    };
    let expected = "the log has no message of the topic \"ordres\"";
    for bookmark in ["0", "20200101T000000Z", "4711|1|"] {
        assert_eq!(note_of(&mut pair, 2, "ordres", Some(bookmark)), expected, "{bookmark}");
        assert_eq!(note_of(&mut pair, 3, "ordres", Some(bookmark)), "", "the server knows its topics");
    }
    for (topic, bookmark) in [
        ("ordres", None),
        ("ordres", Some("0|1|")),
        ("ordres", Some("[0:0|1|]")),
        ("^ordres", Some("0")),
        ("orders", Some("0")),
        ("quotes", Some("0")),
        ("jobs", Some("0")),
        ("dead", Some("0")),
    ] {
        assert_eq!(note_of(&mut pair, 2, topic, bookmark), "", "{topic} {bookmark:?}");
    }
}
