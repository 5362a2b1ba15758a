//! The messages of the server itself, on topics that begin with `/quire/` (docs/operations.md,
//! "Event topics").

use std::time::Duration;

use quire_broker::{
    Access, BrokerConfig, DeliveredTopic, Event, EventsConfig, LeftTopic, RecordedTopic, SowTopicSettings,
    TableExpiration,
};
use quire_command::*;

use crate::last_value_pair::*;
use crate::pair::*;

const STATUS: &str = "/quire/ClientStatus";
const STATS: &str = "/quire/SowStats";
const LEFT: &str = "/quire/Left/orders";
const DELIVERED: &str = "/quire/Delivered/a/0";

fn recording(topics: &[&str]) -> BrokerConfig {
    let mut config = config();
    config.transaction_log.topics.extend(topics.iter().map(|name| RecordedTopic::new(name, "json")));
    config
}

/// The messages of a topic that the client got since the last call.
fn told(pair: &mut Pair, client: u64, topic: &str) -> Vec<serde_json::Value> {
    let said = pair.take(client).into_iter();
    let messages = said.filter_map(|said| match said {
        Said::Message { topic: found, data, .. } if found == topic => Some(data),
        _ => None,
    });
    messages.map(|data| serde_json::from_str(&data).unwrap()).collect()
}

fn events(pair: &mut Pair, client: u64) -> Vec<String> {
    told(pair, client, STATUS)
        .into_iter()
        .map(|status| {
            let text = |name: &str| status[name].as_str().unwrap_or("-").to_owned();
            format!("{} {} {} {}", text("event"), text("client_name"), text("topic"), text("reason"))
        })
        .collect()
}

#[test]
fn a_subscription_gets_the_events_of_clients_in_their_order() {
    let mut pair = Pair::new();
    pair.client(1, "watch");
    pair.subscribe(1, &subscribe(3, STATUS));
    pair.turn();
    pair.take(1);
    pair.client(2, "shop");
    pair.subscribe(2, &subscribe(3, "^orders"));
    pair.turn();
    pair.disconnect(2);
    pair.turn();
    let expected = [
        "connect - - -",
        "logon shop - -",
        "subscribe shop ^orders -",
        "disconnect shop - lost",
        "unsubscribe shop ^orders -",
    ];
    assert_eq!(events(&mut pair, 1), expected);
}

#[test]
fn no_message_is_made_for_a_topic_that_nothing_reads() {
    let mut pair = Pair::new();
    pair.client(1, "watch");
    pair.subscribe(1, &subscribe(3, "^"));
    pair.subscribe(1, &subscribe(4, "^/quire/Action"));
    pair.turn();
    pair.take(1);
    pair.client(2, "shop");
    pair.disconnect(2);
    pair.turn();
    assert!(pair.take(1).is_empty());
    assert_eq!(pair.broker.stats().appended, 0);
}

#[test]
fn a_client_of_the_server_itself_has_no_events_and_no_signals() {
    let events_config = EventsConfig { signals_clients: true, ..EventsConfig::default() };
    let mut pair = Pair::with(BrokerConfig { events: events_config, ..recording(&["^/quire/"]) });
    pair.connect_as(1, Access::Internal);
    pair.log_on(1, "engine");
    pair.disconnect(1);
    pair.turn();
    assert!(pair.signals.is_empty());
    assert_eq!(pair.broker.stats().appended, 0);
    pair.client(2, "shop");
    assert_eq!(pair.signals.len(), 2);
    assert!(pair.signals[1].contains(r#""transport":"#));
}

#[test]
fn publishes_of_clients_are_refused_and_the_connection_continues() {
    let mut pair = Pair::with(recording(&["^/quire/"]));
    pair.client(1, "shop");
    pair.publish(1, 1, STATUS, "{}");
    pair.publish(1, 2, "orders", "{}");
    pair.turn();
    let said = pair.take(1);
    let refused = Said::Failed { sequence: 1, code: Code::BadTopic, scope: FailureScope::One };
    assert!(said.contains(&refused), "{said:?}");
    assert!(!pair.clients[&1].is_closed);
}

#[test]
fn the_records_of_each_last_value_topic_are_counted_in_each_interval() {
    let interval = EventsConfig { sow_stats_interval_ns: Some(1_000_000_000), ..EventsConfig::default() };
    let config = BrokerConfig { sow_topics: vec![sow_topic("orders")], events: interval, ..config() };
    let mut pair = Pair::with(config);
    pair.client(1, "watch");
    pair.publish(1, 1, "orders", r#"{"id":1}"#);
    pair.subscribe(1, &subscribe(3, STATS));
    pair.turn();
    pair.pass(Duration::from_millis(3500));
    let counts: Vec<_> =
        told(&mut pair, 1, STATS).iter().map(|stats| stats["record_count"].clone()).collect();
    assert_eq!(counts, [1, 1, 1]);
}

/// A broker that publishes deliveries of orders. The client 1 is of the server itself and receives
/// them, and the client 2 receives orders.
fn delivering(filter: Option<&str>) -> Pair {
    let wanted =
        DeliveredTopic { name: "a/0".into(), topic: "^orders".into(), filter: filter.map(Into::into) };
    let events = EventsConfig { delivered: vec![wanted], ..EventsConfig::default() };
    let mut pair = Pair::with(BrokerConfig { events, ..config() });
    pair.connect_as(1, Access::Internal);
    pair.log_on(1, "engine");
    pair.subscribe(1, &subscribe(3, DELIVERED));
    pair.subscribe(1, &subscribe(4, "orders"));
    pair.client(2, "reader");
    pair.subscribe(2, &subscribe(3, "^"));
    pair.client(3, "shop");
    pair.turn();
    pair.take(1);
    pair.take(2);
    pair
}

#[test]
fn each_delivery_to_a_client_is_a_message_when_an_action_wants_it() {
    let mut pair = delivering(Some("/id > 1"));
    for (sequence, topic) in [(1, "orders"), (2, "orders"), (3, "other")] {
        pair.publish(3, sequence, topic, &format!(r#"{{"id":{sequence}}}"#));
    }
    pair.turn();
    let [delivered] = &told(&mut pair, 1, DELIVERED)[..] else { panic!("one delivery") };
    assert_eq!(delivered["subscriber"], "reader");
    assert_eq!(delivered["topic"], "orders");
    assert_eq!(delivered["message"], serde_json::json!({ "id": 2 }));
    assert_eq!(pair.take_data(2).len(), 3, "a pattern without /quire/ gets none of them");
    // Without a subscription, no message is made.
    pair.disconnect(1);
    pair.publish(3, 4, "orders", r#"{"id":4}"#);
    pair.turn();
    assert_eq!(pair.take_data(2).len(), 1);
}

#[test]
fn deliveries_beyond_the_limit_start_no_action_and_are_counted() {
    let mut pair = delivering(None);
    for client in 10..60 {
        pair.client(client, &format!("reader-{client}"));
        pair.subscribe(client, &subscribe(3, "orders"));
    }
    pair.turn();
    pair.publish(3, 1, "orders", &format!(r#"{{"text":"{}"}}"#, "x".repeat(1_000_000)));
    pair.turn();
    let count = told(&mut pair, 1, DELIVERED).len() as u64;
    let left_out = pair.log.iter().filter_map(|event| match event {
        Event::DeliveriesLeftOut { count, .. } => Some(*count),
        _ => None,
    });
    assert_eq!(left_out.collect::<Vec<_>>(), [1], "one line in a second");
    assert!((16..25).contains(&count), "{count}");
    assert_eq!(pair.take_data(2).len(), 1);
}

#[test]
fn a_removed_record_is_a_message_with_its_data_when_an_action_wants_it() {
    let left = LeftTopic { topic: "orders".into(), deleted: true, expired: true };
    let events = EventsConfig { left: vec![left], ..EventsConfig::default() };
    let orders = SowTopicSettings { expiration: TableExpiration::Enabled, ..sow_topic("orders") };
    let config = BrokerConfig { sow_topics: vec![orders], events, ..recording(&["^/quire/Left/"]) };
    let mut pair = Pair::with(config);
    pair.client(1, "shop");
    pair.subscribe(1, &replay(3, LEFT, "0"));
    pair.send(1, &Command::Publish(Publish { expiration_s: Some(1), ..publish(1, "orders", r#"{"id":1}"#) }));
    pair.publish(1, 2, "orders", r#"{"id":2, "n":1.0}"#);
    pair.turn();
    pair.pass(Duration::from_secs(2));
    let delete = SowDelete {
        command: 9,
        sequence: 3,
        topic: "orders",
        filter: Some("/id = 2"),
        ..SowDelete::default()
    };
    pair.send(1, &Command::SowDelete(delete));
    pair.turn();
    let told = told(&mut pair, 1, LEFT);
    let reasons: Vec<_> = told.iter().map(|left| left["reason"][0].as_str().unwrap()).collect();
    assert_eq!(reasons, ["time_limit", "deleted"]);
    assert_eq!(told[1]["message"], serde_json::json!({ "id": 2, "n": 1.0 }));
    assert_eq!(told[0]["topic"], "orders");
    assert!(told[1]["action"].is_null());
}
