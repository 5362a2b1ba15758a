//! What clients are told about the server, its clients and its topics: whole lists in bounded answers.

use quire_command::*;
use serde_json::Value;

use crate::pair::*;

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
