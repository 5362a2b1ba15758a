//! Filters in a broker: message types of topics, functions about the subscriber, and patterns that
//! only a configuration allows.

use quire_broker::{BrokerConfig, Event, RecordedTopic};
use quire_command::*;
use serde_json::json;

use super::pair::*;

/// A broker whose topics are all of this type.
fn pair_of(message_type: &str) -> Pair {
    let mut config = config();
    config.transaction_log.topics = vec![RecordedTopic::new(".*", message_type)];
    Pair::with(config)
}

fn filtered<'a>(subscribe: Subscribe<'a>, filter: &'a str) -> Subscribe<'a> {
    Subscribe { filter: Some(filter), ..subscribe }
}

#[test]
fn a_topic_is_filtered_by_its_message_type_live_and_in_replay() {
    let mut pair = pair_of("fix");
    pair.client(1, "a");
    let filter = "/55 = 'IBM' AND /38 > 500";
    pair.subscribe(1, &filtered(subscribe(1, "orders"), filter));
    for (sequence, data) in
        [(1, "55=IBM\u{1}38=600\u{1}"), (2, "55=IBM\u{1}38=60\u{1}"), (3, "{\"55\":\"IBM\"}")]
    {
        pair.publish(1, sequence, "orders", data);
    }
    pair.turn();
    pair.subscribe(1, &filtered(replay(2, "orders", "0"), filter));
    pair.turn();
    assert_eq!(pair.take_data(1), ["55=IBM\u{1}38=600\u{1}"; 2]);
}

#[test]
fn a_filter_knows_its_subscriber_and_the_server() {
    let mut pair = Pair::new();
    pair.client(1, "publisher");
    for (client, name) in [(2, "desk-1"), (3, "desk-2")] {
        pair.client(client, name);
        // The same text means something else for each of them.
        pair.subscribe(client, &filtered(subscribe(1, "orders"), "/desk = CLIENT_NAME()"));
        pair.subscribe(client, &filtered(subscribe(2, "orders"), "CLIENT_NAME() = INSTANCE_NAME()"));
        pair.subscribe(
            client,
            &filtered(subscribe(3, "orders"), "USER() IS NOT NULL OR REMOTE_ADDRESS() IS NULL"),
        );
    }
    pair.publish(1, 1, "orders", r#"{"desk":"desk-2"}"#);
    pair.publish(1, 2, "orders", r#"{"desk":"desk-1"}"#);
    pair.turn();
    assert_eq!(pair.take_data(2), [r#"{"desk":"desk-1"}"#]);
    assert_eq!(pair.take_data(3), [r#"{"desk":"desk-2"}"#]);
}

#[test]
fn backtracking_patterns_are_refused_unless_they_are_configured() {
    let twice = r"/state LIKE '(.)\1'";
    let mut pair = Pair::new();
    pair.client(1, "a");
    pair.subscribe(1, &filtered(subscribe(1, "states"), twice));
    pair.turn();
    assert_eq!(pair.take(1), [refused(Code::BadFilter, 1, 1)]);

    let mut pair = Pair::with(BrokerConfig { allow_backtracking_patterns: true, ..config() });
    pair.client(1, "a");
    pair.subscribe(1, &filtered(subscribe(1, "states"), twice));
    for (sequence, data) in [(1, r#"{"state":"Utah"}"#), (2, r#"{"state":"Massachusetts"}"#)] {
        pair.publish(1, sequence, "states", data);
    }
    pair.turn();
    assert_eq!(pair.take_data(1), [r#"{"state":"Massachusetts"}"#]);

    // Also in what the log records.
    for (allowed, expected) in [(false, Some("transaction_log.topics[0].filter")), (true, None)] {
        let topic = json!({"name": "states", "message_type": "json", "filter": twice});
        let config = json!({"allow_backtracking_patterns": allowed, "transaction_log": {"topics": [topic]}});
        let error = BrokerConfig::from_json(&config.to_string()).err();
        assert_eq!(error.as_ref().map(|error| error.key.as_str()), expected);
    }
}

#[test]
fn a_message_that_is_not_of_its_type_meets_only_filters_without_fields() {
    let mut pair = pair_of("json");
    pair.client(1, "a");
    for (number, filter) in
        [(1, "/a IS NULL"), (2, "NOT (/a = 1)"), (3, "MESSAGE_SIZE() > 3"), (4, "TOPIC_NAME() = 't'")]
    {
        pair.subscribe(1, &filtered(subscribe(number, "t"), filter));
    }
    pair.publish(1, 1, "t", "not json");
    pair.turn();
    let mut got: Vec<u32> = pair
        .take(1)
        .into_iter()
        .filter_map(|said| match said {
            Said::Message { subscription, .. } => Some(subscription),
            _ => None,
        })
        .collect();
    got.sort_unstable();
    assert_eq!(got, [3, 4]);
}

/// The lines in the log about messages that cannot be read.
fn unreadable_lines(pair: &Pair) -> Vec<String> {
    let lines = pair.log.iter().filter(|event| matches!(event, Event::MessageUnreadable { .. }));
    lines.map(ToString::to_string).collect()
}

#[test]
fn an_unreadable_message_is_counted_and_logged_with_its_bookmark_at_intervals() {
    let mut pair = pair_of("xml");
    pair.client(1, "a");
    pair.subscribe(1, &filtered(subscribe(1, "t"), "/o/id = 1"));
    pair.subscribe(1, &filtered(subscribe(2, "^t"), "/o/id = 2"));
    pair.publish(1, 1, "t", "<o><id>1</id></o>");
    pair.turn();
    assert_eq!((pair.broker.stats().unreadable_count, unreadable_lines(&pair).len()), (0, 0));
    for sequence in 2..=9 {
        pair.publish(1, sequence, "t", "<o><id>1</o>");
        pair.turn();
    }
    // Once for the subscriptions to the topic, once for those to the pattern.
    assert_eq!(pair.broker.stats().unreadable_count, 16);
    let lines = unreadable_lines(&pair);
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].starts_with("topic \"t\": message "), "{}", lines[0]);
    assert!(lines[0].contains("|2| cannot be read as xml: malformed at byte "), "{}", lines[0]);
    pair.pass(std::time::Duration::from_secs(11));
    pair.turn();
    let lines = unreadable_lines(&pair);
    assert!(lines.len() == 2 && lines[1].ends_with("since the last such line: 14"), "{lines:?}");
    // A replay reads on another thread.
    pair.subscribe(1, &filtered(replay(3, "t", "0"), "/o/id = 1"));
    pair.turn();
    assert_eq!(pair.broker.stats().unreadable_count, 24);
    assert_eq!(pair.take_data(1), ["<o><id>1</id></o>"; 2]);
}

#[test]
fn a_recorded_topic_with_a_filter_logs_a_message_that_it_cannot_read() {
    let mut config = config();
    let topic = RecordedTopic { filter: Some("/a = 1".into()), ..RecordedTopic::new("t", "json") };
    config.transaction_log.topics = vec![topic];
    let mut pair = Pair::with(config);
    pair.client(1, "a");
    pair.publish(1, 1, "t", "{\"a\"");
    pair.turn();
    assert_eq!(unreadable_lines(&pair).len(), 1);
}
