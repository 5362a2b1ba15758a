//! The result of a publish, and the answer to its publisher (docs/protocol.md).

use std::time::Duration;

use quire_command::*;
use quire_journal::PublisherId;
use quire_wire::*;

use super::pair::*;
use quire_broker::{BrokerConfig, Event, RecordedTopic, TransactionLogConfig};

/// Records the topics that begin with `recorded`. Those that begin with `other` are unrecorded on
/// purpose.
fn partly_recorded() -> BrokerConfig {
    let other = RecordedTopic { recorded: false, ..RecordedTopic::new("^other", "json") };
    let topics = vec![RecordedTopic::new("^recorded", "json"), other];
    let transaction_log = TransactionLogConfig { topics, ..TransactionLogConfig::default() };
    BrokerConfig { transaction_log, ..config() }
}

#[test]
fn a_publish_is_delivered_at_once_and_acknowledged_when_persisted() {
    let mut pair = Pair::new();
    pair.client(1, "publisher");
    pair.client(2, "subscriber");
    pair.subscribe(2, &subscribe(7, "orders"));
    pair.turn();
    assert_eq!(pair.take(2), [ack(AckKind::Processed, 7, 7), ack(AckKind::Completed, 7, 7)]);
    pair.writes_at_once = false;
    pair.publish(1, 1, "orders", "a");
    pair.turn();
    assert_eq!(pair.take_data(2), ["a"]);
    assert_eq!(pair.take(1), []);
    pair.write();
    pair.turn();
    assert_eq!(pair.take(1), [Said::Persisted(1)]);
}

#[test]
fn a_batch_is_one_publish_after_the_other() {
    let mut pair = Pair::new();
    pair.client(1, "publisher");
    pair.subscribe(1, &subscribe(7, "orders"));
    pair.turn();
    pair.take(1);
    let mut bytes = Vec::new();
    put_publish_batch(&mut bytes, &publish(5, "orders", ""), |out| {
        ["a", "b", "c"].iter().for_each(|data| put_batch_item(out, data.as_bytes()));
    });
    pair.send_bytes(1, &bytes);
    pair.turn();
    let said = pair.take(1);
    let id = PublisherId::of_client_name("publisher").get();
    let message = |sequence, data: &str| Said::Message {
        subscription: 7,
        bookmark: Some((id, sequence)),
        topic: "orders".into(),
        data: data.into(),
    };
    assert_eq!(said, [message(5, "a"), message(6, "b"), message(7, "c"), Said::Persisted(7)]);
}

#[test]
fn a_duplicate_is_dropped_and_still_acknowledged() {
    let mut pair = Pair::new();
    pair.client(1, "publisher");
    pair.client(2, "subscriber");
    pair.subscribe(2, &subscribe(7, "^"));
    pair.writes_at_once = false;
    pair.publish(1, 5, "orders", "first");
    pair.turn();
    pair.publish(1, 5, "orders", "again");
    pair.publish(1, 4, "trades", "earlier, on another topic");
    pair.publish(1, 6, "trades", "next");
    pair.turn();
    assert_eq!(pair.take_data(2), ["first", "next"]);
    pair.write();
    pair.turn();
    assert_eq!(pair.take(1), [Said::Persisted(6)]);
    assert_eq!(pair.broker.stats().duplicate_count, 2);
}

#[test]
fn the_highest_sequence_survives_a_reconnect_and_a_restart() {
    let mut pair = Pair::new();
    pair.client(1, "publisher");
    pair.publish(1, 9, "orders", "a");
    pair.turn();
    pair.disconnect(1);
    pair.connect(1);
    pair.send(1, &Command::Logon(logon("publisher")));
    pair.turn();
    assert_eq!(pair.take(1), [Said::LoggedOn { last_sequence: 9 }]);
    let Pair { broker, disk, .. } = pair;
    broker.close().unwrap();
    let mut pair = Pair::on(disk, config());
    pair.connect(1);
    pair.send(1, &Command::Logon(logon("publisher")));
    pair.turn();
    assert_eq!(pair.take(1), [Said::LoggedOn { last_sequence: 9 }]);
    pair.publish(1, 9, "orders", "again");
    pair.subscribe(1, &replay(7, "orders", "0"));
    pair.turn();
    assert_eq!(pair.take_data(1), ["a"]);
}

#[test]
fn messages_without_a_sequence_get_another_publisher_id_and_their_position() {
    let mut pair = Pair::new();
    pair.client(1, "publisher");
    pair.subscribe(1, &subscribe(7, "orders"));
    pair.publish(1, 40, "orders", "numbered");
    pair.publish(1, 0, "orders", "not numbered");
    pair.publish(1, 0, "orders", "nor this");
    pair.turn();
    let id = PublisherId::of_client_name("publisher");
    let derived = PublisherId::derived(id, "test").get();
    assert_ne!(id.get(), derived);
    let bookmarks: Vec<_> = pair
        .take(1)
        .into_iter()
        .filter_map(|said| match said {
            Said::Message { bookmark, .. } => bookmark,
            _ => None,
        })
        .collect();
    assert_eq!(bookmarks, [(id.get(), 40), (derived, 2), (derived, 3)]);
}

#[test]
fn a_refused_publish_splits_the_acknowledgements() {
    let mut pair = Pair::new();
    pair.client(1, "publisher");
    pair.writes_at_once = false;
    for (sequence, topic) in [(1, "a"), (2, "a"), (3, ""), (4, "a"), (5, "a")] {
        pair.publish(1, sequence, topic, "x");
    }
    pair.turn();
    assert_eq!(pair.take(1), [], "nothing is said before what came first is persisted");
    pair.write();
    pair.turn();
    let failed = Said::Failed { sequence: 3, code: Code::BadTopic, scope: FailureScope::One };
    assert_eq!(pair.take(1), [Said::Persisted(2), failed.clone(), Said::Persisted(5)]);
    pair.publish(1, 3, "", "repeated");
    pair.turn();
    assert_eq!(pair.take(1), [failed], "what was refused is refused again");
}

#[test]
fn a_refusal_that_a_lost_connection_was_not_told_is_told_to_the_next() {
    let mut pair = Pair::new();
    pair.client(1, "publisher");
    pair.writes_at_once = false;
    pair.publish(1, 1, "orders", "a");
    pair.publish(1, 2, "", "b");
    pair.turn();
    pair.disconnect(1);
    pair.connect(2);
    pair.send(2, &Command::Logon(logon("publisher")));
    pair.turn();
    assert_eq!(pair.take(2), [], "the last sequence is not told before it is persisted");
    pair.write();
    pair.turn();
    let failed = Said::Failed { sequence: 2, code: Code::BadTopic, scope: FailureScope::One };
    assert_eq!(pair.take(2), [Said::LoggedOn { last_sequence: 2 }, failed]);
}

#[test]
fn a_refusal_is_also_kept_for_a_publisher_that_stays_away_longer() {
    let mut pair = Pair::new();
    pair.client(1, "publisher");
    pair.writes_at_once = false;
    pair.publish(1, 1, "orders", "a");
    pair.publish(1, 2, "", "b");
    pair.turn();
    pair.disconnect(1);
    pair.write();
    pair.turn();
    pair.connect(2);
    pair.send(2, &Command::Logon(logon("publisher")));
    pair.turn();
    let failed = Said::Failed { sequence: 2, code: Code::BadTopic, scope: FailureScope::One };
    assert_eq!(pair.take(2), [Said::LoggedOn { last_sequence: 2 }, failed]);
    // A limited number of publishers that are not connected is kept.
    for client in 100..300 {
        pair.client(client, &client.to_string());
        pair.publish(client, 1, "orders", "a");
        pair.publish(client, 2, "", "b");
        pair.turn();
        pair.disconnect(client);
    }
    pair.write();
    pair.turn();
    for (client, count) in [(100, 1), (299, 2)] {
        pair.connect(client);
        pair.send(client, &Command::Logon(logon(&client.to_string())));
        pair.turn();
        assert_eq!(pair.take(client).len(), count, "{client}");
    }
}

#[test]
fn unrecorded_topics_count_in_the_sequence_and_have_no_bookmark() {
    let mut pair = Pair::with(partly_recorded());
    pair.client(1, "publisher");
    pair.subscribe(1, &subscribe(7, "^"));
    pair.writes_at_once = false;
    pair.publish(1, 1, "recorded", "a");
    pair.publish(1, 2, "other", "b");
    pair.turn();
    let said = pair.take(1);
    let bookmarks: Vec<_> = said
        .iter()
        .filter_map(|said| match said {
            Said::Message { bookmark, .. } => Some(bookmark.is_some()),
            _ => None,
        })
        .collect();
    assert_eq!(bookmarks, [true, false]);
    assert!(!said.iter().any(|said| matches!(said, Said::Persisted(_))));
    pair.write();
    pair.turn();
    assert_eq!(pair.take(1), [Said::Persisted(2)]);
    pair.publish(1, 2, "other", "again");
    pair.turn();
    assert_eq!(pair.take_data(1), [""; 0]);
    pair.disconnect(1);
    pair.client(2, "publisher");
    pair.subscribe(2, &subscribe(7, "^"));
    pair.publish(2, 2, "other", "again");
    pair.turn();
    assert_eq!(pair.take_data(2), [""; 0], "the broker remembers what the journal does not know");
}

#[test]
fn a_sequence_on_a_topic_that_the_configuration_does_not_name_is_refused_and_not_delivered() {
    let mut pair = Pair::with(partly_recorded());
    pair.client(1, "publisher");
    pair.client(2, "subscriber");
    pair.subscribe(2, &subscribe(7, "^"));
    pair.turn();
    pair.take(2);
    pair.writes_at_once = false;
    for (sequence, topic) in [(1, "recorded"), (2, "misspelt"), (3, "other"), (4, "recorded")] {
        pair.publish(1, sequence, topic, &sequence.to_string());
    }
    pair.turn();
    assert_eq!(pair.take(1), [], "nothing is said before what came first is persisted");
    assert_eq!(pair.take_data(2), ["1", "3", "4"]);
    pair.write();
    pair.turn();
    let failed = Said::Failed { sequence: 2, code: Code::NotJournaled, scope: FailureScope::One };
    assert_eq!(pair.take(1), [Said::Persisted(1), failed.clone(), Said::Persisted(4)]);
    pair.publish(1, 2, "misspelt", "repeated");
    pair.turn();
    assert_eq!(pair.take(1), [failed], "what was refused is refused again");
    assert_eq!(pair.take_data(2), [""; 0]);
}

#[test]
fn a_message_without_a_sequence_may_be_published_to_any_topic() {
    let mut pair = Pair::with(partly_recorded());
    pair.client(1, "publisher");
    pair.subscribe(1, &subscribe(7, "misspelt"));
    pair.turn();
    pair.take(1);
    pair.publish(1, 0, "misspelt", "a");
    pair.turn();
    assert_eq!(pair.take_data(1), ["a"]);
}

#[test]
fn a_message_that_the_filter_of_its_topic_leaves_out_is_accepted() {
    let mut config = partly_recorded();
    config.transaction_log.topics[0].filter = Some("/qty > 5".into());
    let mut pair = Pair::with(config);
    pair.client(1, "publisher");
    pair.publish(1, 1, "recorded", r#"{"qty": 1}"#);
    pair.turn();
    assert_eq!(pair.take(1), [Said::Persisted(1)]);
}

#[test]
fn acknowledgements_come_no_closer_than_the_interval() {
    let mut pair = Pair::new();
    pair.connect(1);
    pair.send(1, &Command::Logon(Logon { ack_interval_ms: 100, ..logon("publisher") }));
    pair.turn();
    pair.take(1);
    pair.publish(1, 1, "orders", "a");
    pair.turn();
    assert_eq!(pair.take(1), [Said::Persisted(1)]);
    pair.publish(1, 2, "orders", "b");
    pair.publish(1, 3, "orders", "c");
    pair.turn();
    assert_eq!(pair.take(1), []);
    pair.pass(Duration::from_millis(99));
    assert_eq!(pair.take(1), []);
    pair.pass(Duration::from_millis(1));
    assert_eq!(pair.take(1), [Said::Persisted(3)]);
    pair.publish(1, 4, "orders", "d");
    pair.send(1, &Command::Flush { command: 9, acks: Acks::PERSISTED });
    pair.turn();
    assert_eq!(
        pair.take(1),
        [Said::Persisted(4), ack(AckKind::Persisted, 9, 0)],
        "a flush does not wait for it"
    );
}

#[test]
fn the_interval_of_acknowledgements_begins_anew_after_a_flush() {
    let mut pair = Pair::new();
    pair.connect(1);
    pair.send(1, &Command::Logon(Logon { ack_interval_ms: 100, ..logon("publisher") }));
    pair.turn();
    pair.publish(1, 1, "orders", "a");
    pair.turn();
    pair.take(1);
    pair.publish(1, 2, "orders", "b");
    pair.turn();
    pair.pass(Duration::from_millis(50));
    assert_eq!(pair.take(1), [], "it waits for the interval");
    pair.send(1, &Command::Flush { command: 9, acks: Acks::PERSISTED });
    pair.turn();
    assert_eq!(pair.take(1), [Said::Persisted(2), ack(AckKind::Persisted, 9, 0)]);
    pair.publish(1, 3, "orders", "c");
    pair.turn();
    pair.pass(Duration::from_millis(99));
    assert_eq!(pair.take(1), []);
    pair.pass(Duration::from_millis(1));
    assert_eq!(pair.take(1), [Said::Persisted(3)]);
}

#[test]
fn a_flush_waits_for_what_was_published_before_it() {
    let mut pair = Pair::new();
    pair.client(1, "publisher");
    let acks = Acks::RECEIVED.and(Acks::PROCESSED).and(Acks::PERSISTED);
    pair.send(1, &Command::Flush { command: 1, acks });
    pair.turn();
    let kinds = [AckKind::Received, AckKind::Processed, AckKind::Persisted];
    assert_eq!(pair.take(1), kinds.map(|kind| ack(kind, 1, 0)));
    pair.writes_at_once = false;
    pair.publish(1, 0, "orders", "not numbered");
    pair.send(1, &Command::Flush { command: 2, acks: Acks::PERSISTED });
    pair.turn();
    assert_eq!(pair.take(1), []);
    pair.write();
    pair.turn();
    assert_eq!(pair.take(1), [ack(AckKind::Persisted, 2, 0)]);
}

#[test]
fn a_sequence_that_jumps_is_logged_once_per_connection_and_counted() {
    let mut config = config();
    config.limits.sequence_jump_logged = 100;
    let mut pair = Pair::with(config);
    let jumps = |pair: &Pair| {
        let jump = |event: &Event| match event {
            Event::SequenceJumped { client_name, from, to, .. } => Some((client_name.clone(), *from, *to)),
            _ => None,
        };
        pair.log.iter().filter_map(jump).collect::<Vec<_>>()
    };
    pair.client(1, "loader-9");
    for sequence in [1, 101, 202, 1000] {
        pair.publish(1, sequence, "orders", "x");
    }
    pair.turn();
    assert_eq!(jumps(&pair), [("loader-9".to_owned(), 101, 202)]);
    let stats = pair.broker.stats().connections;
    assert_eq!((stats[0].sequence, stats[0].sequence_jump_count), (1000, 2));
    pair.disconnect(1);
    pair.client(2, "loader-9");
    // A refused publish uses its number, too.
    pair.publish(2, 5000, "", "x");
    pair.turn();
    assert_eq!(jumps(&pair).last(), Some(&("loader-9".to_owned(), 1000, 5000)));
    assert_eq!(pair.broker.stats().connections[0].sequence_jump_count, 1);
}
