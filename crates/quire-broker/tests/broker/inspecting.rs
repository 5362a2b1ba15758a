//! Answers about the server, its clients, their subscriptions, and its topics: whole lists in
//! bounded answers.

use std::time::Duration;

use quire_command::*;
use serde_json::{Value, json};

use crate::pair::*;
use crate::queue_pair::*;

fn ask(pair: &mut Pair, client: u64, subject: Subject<'_>) -> Value {
    pair.send(client, &Command::Inspect { command: 7, subject });
    pair.turn();
    let said = pair.take(client);
    let [Said::Stats { command: 7, json }] = &said[..] else { panic!("{said:?}") };
    assert!(json.len() < 128 * 1024, "larger than a client takes: {} bytes", json.len());
    serde_json::from_str(json).unwrap()
}

#[test]
fn the_server_tells_what_it_is() {
    let mut pair = Pair::new();
    pair.client(1, "operator");
    pair.publish(1, 1, "orders", "{}");
    pair.turn();
    pair.take(1);
    let server = ask(&mut pair, 1, Subject::Server)["server"].take();
    assert_eq!((&server["name"], &server["connections"]), (&"test".into(), &1.into()));
    assert_eq!((&server["topics"], &server["persisted"]), (&1.into(), &1.into()));
    assert!(server["now_ns"].as_u64() >= server["started_ns"].as_u64());
}

#[test]
fn a_question_about_messages_is_answered_and_other_bytes_are_refused() {
    let mut pair = Pair::new();
    pair.client(1, "operator");
    pair.publish(1, 1, "orders", "{}");
    pair.turn();
    pair.take(1);
    // All publishers, and the messages of the first range of one.
    let digests = ask(&mut pair, 1, Subject::Messages { question: &[1] })["messages"].take();
    assert_eq!(digests.as_str().map(|digits| (digits.len(), &digits[..2])), Some((2 * (1 + 256 * 8), "01")));
    let publisher = quire_journal::PublisherId::of_client_name("operator").get().to_le_bytes();
    let question = [&[4][..], &publisher, &[0]].concat();
    let messages = ask(&mut pair, 1, Subject::Messages { question: &question })["messages"].take();
    // One entry of the run 0 with the sequence 1.
    let digits: String = publisher.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(messages, json!(format!("0401{digits}000000000000000001")));
    for question in [&[][..], &[9], &[1, 1], &[2; 10]] {
        pair.send(1, &Command::Inspect { command: 8, subject: Subject::Messages { question } });
        pair.turn();
        let said = pair.take(1);
        assert!(matches!(said[..], [Said::Ack { code: Code::BadOption, .. }]), "{said:?}");
    }
}

#[test]
fn every_connection_is_listed_once_in_order() {
    let mut config = config();
    config.transports[0].max_connections = 3000;
    let mut pair = Pair::with(config);
    pair.client(1, "operator");
    for client in 2..=2500 {
        pair.connect(client);
    }
    pair.turn();
    let (mut connections, mut answers) = (Vec::new(), 0);
    let mut has_more = true;
    while has_more {
        let after = connections.last().copied().unwrap_or(0);
        let answer = ask(&mut pair, 1, Subject::Clients { after });
        let listed = answer["clients"].as_array().unwrap();
        connections.extend(listed.iter().map(|client| client["connection"].as_u64().unwrap()));
        answers += 1;
        has_more = answer["more"].as_bool().unwrap();
    }
    assert_eq!(connections, (1..=2500).collect::<Vec<_>>());
    assert!(answers > 2);
}

#[test]
fn every_topic_of_the_log_and_of_subscriptions_is_listed_once_in_order() {
    let mut pair = Pair::new();
    pair.client(1, "operator");
    let names: Vec<String> =
        (0..1500).map(|number| format!("topic/{number:04}/{}", "x".repeat(900))).collect();
    for (number, name) in names.iter().enumerate() {
        pair.publish(1, number as u64 + 1, name, "{}");
        if number % 100 == 0 {
            pair.turn();
            pair.take(1);
        }
    }
    pair.subscribe(1, &Subscribe { command: 1, subscription: 9, topic: "quiet", ..Subscribe::default() });
    pair.turn();
    pair.take(1);
    let (mut topics, mut answers) = (Vec::<(String, Value)>::new(), 0);
    let mut has_more = true;
    while has_more {
        let after = topics.last().map(|(name, _)| name.clone()).unwrap_or_default();
        let answer = ask(&mut pair, 1, Subject::Topics { after: &after });
        for topic in answer["topics"].as_array().unwrap() {
            topics.push((topic["topic"].as_str().unwrap().to_owned(), topic["subscriptions"].clone()));
        }
        answers += 1;
        has_more = answer["more"].as_bool().unwrap();
    }
    let quiet = ("quiet".to_owned(), Value::from(1));
    let expected = std::iter::once(quiet).chain(names.into_iter().map(|name| (name, Value::from(0))));
    assert_eq!(topics, expected.collect::<Vec<_>>());
    assert!(answers > 10);
}

#[test]
fn a_subscription_is_listed_with_its_position_its_lag_and_its_backlog() {
    let mut pair = with_queues([queue("jobs")]);
    pair.client(1, "operator");
    for sequence in 1..=30 {
        pair.publish(1, sequence, "orders", "{}");
        pair.turn();
        pair.pass(Duration::from_secs(1));
    }
    pair.client(2, "reader");
    let paused = SubscribeOptions::PAUSED;
    pair.subscribe(2, &Subscribe { options: paused, filter: Some("/id = 1"), ..replay(7, "orders", "0") });
    pair.subscribe(2, &replay(8, "^orders", "0"));
    pair.subscribe(2, &subscribe(9, "orders"));
    pair.client(3, "worker");
    pair.subscribe(3, &consume(4, "jobs", 10));
    publish_all(&mut pair, 31..=33);
    pair.turn();
    pair.take(1);
    let answer = ask(&mut pair, 1, Subject::Subscriptions { after_connection: 0, after_subscription: 0 });
    let mut listed = answer["subscriptions"].as_array().unwrap().clone();
    let lag_s = listed[0]["lag_s"].take().as_f64().unwrap();
    assert!((30.0..31.0).contains(&lag_s), "{lag_s}");
    let expected = [
        json!({
            "connection": 2, "client_name": "reader", "subscription": 7, "topic": "orders", "filter": "/id = 1", "kind": "replay",
            "position": 0, "lag": 33, "lag_s": null, "backlog": null, "max_backlog": null, "paused": true,
            "messages_out": 0, "bytes_out": 0,
        }),
        json!({
            "connection": 2, "client_name": "reader", "subscription": 8, "topic": "^orders", "filter": null, "kind": "replay",
            "position": 33, "lag": 0, "lag_s": 0.0, "backlog": null, "max_backlog": null, "paused": false,
            "messages_out": 30, "bytes_out": 1350,
        }),
        json!({
            "connection": 2, "client_name": "reader", "subscription": 9, "topic": "orders", "filter": null, "kind": "live",
            "position": null, "lag": null, "lag_s": null, "backlog": null, "max_backlog": null, "paused": false,
            "messages_out": 0, "bytes_out": 0,
        }),
        json!({
            "connection": 3, "client_name": "worker", "subscription": 4, "topic": "jobs", "filter": null, "kind": "queue",
            "position": null, "lag": null, "lag_s": null, "backlog": 3, "max_backlog": 10, "paused": false,
            "messages_out": 3, "bytes_out": 201,
        }),
    ];
    assert_eq!(listed, expected);
    let topics = ask(&mut pair, 1, Subject::Topics { after: "jobs" });
    let orders = &topics["topics"].as_array().unwrap()[0];
    assert_eq!((&orders["topic"], &orders["subscriptions"]), (&json!("orders"), &json!(3)));
    // A paused replay is meant to wait.
    let server = |pair: &mut Pair| ask(pair, 1, Subject::Server)["server"]["replay_lag"].as_u64();
    assert_eq!(server(&mut pair), Some(0));
    // The connection takes nothing, so the position is that of the last message that was handed to
    // it.
    pair.set_writable(2, false);
    let data = "x".repeat(100_000);
    for sequence in 34..=83 {
        pair.publish(1, sequence, "orders", &data);
    }
    pair.turn();
    pair.take(1);
    let lag = server(&mut pair).unwrap();
    assert!(lag > 0 && lag <= 50, "{lag}");
    let answer = ask(&mut pair, 1, Subject::Subscriptions { after_connection: 2, after_subscription: 7 });
    assert_eq!(answer["subscriptions"].as_array().unwrap()[0]["lag"], lag);
}

#[test]
fn every_subscription_is_listed_once_in_order() {
    let mut config = config();
    config.transports[0].max_subscriptions_per_connection = 3000;
    let mut pair = Pair::with(config);
    pair.client(1, "operator");
    pair.client(2, "reader");
    for number in 1..=1300 {
        pair.subscribe(2, &replay(number, "orders", "0"));
        pair.subscribe(1, &subscribe(number, "orders"));
        if number % 100 == 0 {
            pair.turn();
            pair.take(1);
            pair.take(2);
        }
    }
    let (mut found, mut answers) = (Vec::<(u64, u32)>::new(), 0);
    let mut has_more = true;
    while has_more {
        let (after_connection, after_subscription) = found.last().copied().unwrap_or((0, 0));
        let answer = ask(&mut pair, 1, Subject::Subscriptions { after_connection, after_subscription });
        let number = |value: &Value| value.as_u64().unwrap();
        let key = |one: &Value| (number(&one["connection"]), number(&one["subscription"]) as u32);
        found.extend(answer["subscriptions"].as_array().unwrap().iter().map(key));
        answers += 1;
        has_more = answer["more"].as_bool().unwrap();
    }
    let all = [1, 2].into_iter().flat_map(|connection| (1..=1300).map(move |number| (connection, number)));
    assert_eq!(found, all.collect::<Vec<_>>());
    assert!(answers > 2, "{answers}");
}

#[test]
fn an_answer_about_topics_is_shorter_when_many_patterns_are_matched_and_counts_all_of_them() {
    let mut config = config();
    config.transports[0].max_subscriptions_per_connection = 3000;
    let mut pair = Pair::with(config);
    pair.client(1, "operator");
    pair.client(2, "reader");
    (1..=200).for_each(|n| pair.publish(1, n, &format!("orders/{n:03}"), "{}"));
    pair.turn();
    pair.take(1);
    for number in 1..=2000 {
        // Paused, so that it is in no audience.
        let options = SubscribeOptions::PAUSED;
        let pattern = format!("(orders|{number})");
        pair.subscribe(2, &Subscribe { options, ..replay(number, &pattern, "0") });
        pair.turn();
        pair.take(2);
    }
    let (mut found, mut answers, mut has_more) = (Vec::<String>::new(), 0, true);
    while has_more {
        let after = found.last().cloned().unwrap_or_default();
        let answer = ask(&mut pair, 1, Subject::Topics { after: &after });
        for topic in answer["topics"].as_array().unwrap() {
            assert_eq!(topic["subscriptions"], 2000, "{topic}");
            found.push(topic["topic"].as_str().unwrap().to_owned());
        }
        answers += 1;
        has_more = answer["more"].as_bool().unwrap();
    }
    assert_eq!(found, (1..=200).map(|n| format!("orders/{n:03}")).collect::<Vec<_>>());
    // 65 topics and 2,000 patterns are what one answer takes.
    assert_eq!(answers, 4);
}
