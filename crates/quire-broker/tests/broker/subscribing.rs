//! Ordinary subscriptions, and what every subscribe command is answered (protocol.md section 3.4).

use quire_broker::{BrokerConfig, TransportConfig};
use quire_command::*;

use super::pair::*;

fn options(subscribe: Subscribe<'_>, options: SubscribeOptions) -> Subscribe<'_> {
    Subscribe { options, ..subscribe }
}

#[test]
fn a_pattern_meets_topics_that_come_later() {
    let mut pair = Pair::new();
    pair.client(1, "publisher");
    pair.client(2, "subscriber");
    pair.publish(1, 1, "eu.orders", "known before, not delivered");
    pair.subscribe(2, &subscribe(1, "orders$"));
    pair.subscribe(2, &subscribe(2, "^us"));
    pair.subscribe(2, &subscribe(3, "us.orders"));
    for (sequence, topic) in [(2, "eu.orders"), (3, "us.orders"), (4, "us.trades"), (5, "us_orders")] {
        pair.publish(1, sequence, topic, topic);
    }
    pair.turn();
    let mut got: Vec<_> = pair
        .take(2)
        .into_iter()
        .filter_map(|said| match said {
            Said::Message { subscription, data, .. } => Some((subscription, data)),
            _ => None,
        })
        .collect();
    got.sort();
    let want = [
        (1, "eu.orders"),
        (1, "us.orders"),
        (1, "us_orders"),
        (2, "us.orders"),
        (2, "us.trades"),
        (2, "us_orders"),
        (3, "us.orders"),
    ];
    assert_eq!(got, want.map(|(subscription, data)| (subscription, data.to_owned())));
}

#[test]
fn commands_are_answered_in_their_order() {
    let mut pair = Pair::new();
    pair.client(1, "a");
    let acks = Acks::RECEIVED.and(Acks::PROCESSED).and(Acks::COMPLETED);
    pair.subscribe(1, &Subscribe { acks, ..subscribe(4, "orders") });
    pair.send(1, &Command::Unsubscribe(Unsubscribe { command: 5, acks, subscription: 4, begun: None }));
    pair.send(
        1,
        &Command::Unsubscribe(Unsubscribe {
            command: 6,
            acks: Acks::default(),
            subscription: 4,
            begun: None,
        }),
    );
    pair.turn();
    let said = pair.take(1);
    assert_eq!(
        said,
        [
            ack(AckKind::Received, 4, 4),
            ack(AckKind::Processed, 4, 4),
            ack(AckKind::Completed, 4, 4),
            ack(AckKind::Received, 5, 4),
            ack(AckKind::Processed, 5, 4),
            refused(Code::UnknownSubscription, 6, 4),
        ]
    );
}

#[test]
fn an_ended_subscription_gets_nothing_more() {
    let mut pair = Pair::new();
    pair.client(1, "a");
    pair.subscribe(1, &subscribe(4, "orders"));
    pair.subscribe(1, &replay(5, "orders", "0|1|"));
    pair.publish(1, 1, "orders", "x");
    pair.turn();
    assert_eq!(pair.take_data(1), ["x", "x"]);
    for subscription in [4, 5] {
        pair.send(
            1,
            &Command::Unsubscribe(Unsubscribe {
                command: 9,
                acks: Acks::default(),
                subscription,
                begun: None,
            }),
        );
    }
    pair.publish(1, 2, "orders", "y");
    pair.turn();
    assert_eq!(pair.take(1), [Said::Persisted(2)]);
}

#[test]
fn what_cannot_be_is_refused_with_its_code() {
    let log = quire_broker::TransactionLogConfig {
        topics: vec![quire_broker::RecordedTopic::new("^orders", "json")],
        ..Default::default()
    };
    let transport = TransportConfig { max_subscriptions_per_connection: 2, ..TransportConfig::default() };
    let mut pair = Pair::with(BrokerConfig { transaction_log: log, transports: vec![transport], ..config() });
    pair.client(1, "a");
    pair.subscribe(1, &subscribe(1, "orders"));
    pair.subscribe(1, &replay(2, "orders", "0"));
    pair.turn();
    pair.take(1);
    use SubscribeOptions as O;
    let both = O::NOT_FOUND_FAILS.and(O::NOT_FOUND_NOW);
    let cases = [
        (subscribe(1, "orders"), Code::SubscriptionInUse),
        (subscribe(3, "orders"), Code::LimitExceeded),
        (options(subscribe(3, "orders"), O::REPLACE), Code::UnknownSubscription),
        (options(subscribe(1, ""), O::REPLACE), Code::BadTopic),
        (options(subscribe(1, "a("), O::REPLACE), Code::BadTopic),
        (options(replay(1, "orders", "yesterday"), O::REPLACE), Code::BadBookmark),
        (options(replay(1, "trades", "0"), O::REPLACE), Code::NotJournaled),
        (options(subscribe(1, "orders"), O::REPLACE.and(O::LIVE)), Code::BadOption),
        (options(subscribe(1, "orders"), O::REPLACE.and(O::PAUSED)), Code::BadOption),
        (options(subscribe(1, "orders"), O::REPLACE.and(O::FULLY_DURABLE)), Code::BadOption),
        (options(subscribe(2, "orders"), O::REPLACE.and(O::LIVE).and(O::FULLY_DURABLE)), Code::BadOption),
        (options(subscribe(2, "orders"), O::REPLACE.and(O::LIVE).and(O::PAUSED)), Code::BadOption),
        (options(subscribe(2, "orders"), O::REPLACE.and(both)), Code::BadOption),
        (Subscribe { filter: Some("/a ="), ..options(subscribe(1, "orders"), O::REPLACE) }, Code::BadFilter),
    ];
    for (subscribe, code) in cases {
        pair.subscribe(1, &subscribe);
        pair.turn();
        let number = subscribe.subscription;
        assert_eq!(pair.take(1), [refused(code, number, number)], "{subscribe:?}");
    }
    // Nothing of it touched what was there.
    pair.publish(1, 1, "orders", "x");
    pair.turn();
    assert_eq!(pair.take_data(1), ["x", "x"]);
}

#[test]
fn a_replaced_subscription_changes_between_two_messages() {
    let mut pair = Pair::new();
    pair.client(1, "a");
    pair.subscribe(1, &subscribe(4, "orders"));
    pair.publish(1, 1, "orders", "1");
    pair.publish(1, 2, "trades", "2");
    pair.subscribe(1, &options(subscribe(4, "trades"), SubscribeOptions::REPLACE));
    pair.publish(1, 3, "orders", "3");
    pair.publish(1, 4, "trades", "4");
    pair.turn();
    assert_eq!(pair.take_data(1), ["1", "4"]);
    assert_eq!(pair.broker.stats().subscription_count, 1);
}

#[test]
fn a_filter_holds_at_once_at_the_live_edge_and_in_a_replay() {
    let mut pair = Pair::new();
    pair.client(1, "a");
    let large = |subscribe| Subscribe { filter: Some("/qty > 50"), ..subscribe };
    pair.subscribe(1, &large(subscribe(1, "orders")));
    pair.subscribe(1, &large(replay(2, "^orders", "0")));
    for (sequence, qty) in [(1, 10), (2, 60), (3, 50), (4, 70)] {
        pair.publish(1, sequence, "orders", &format!(r#"{{"qty": {qty}}}"#));
    }
    pair.publish(1, 5, "orders", "not JSON");
    pair.turn();
    pair.subscribe(1, &large(replay(3, "orders", "0")));
    pair.turn();
    let mut got: Vec<_> = pair
        .take(1)
        .into_iter()
        .filter_map(|said| match said {
            Said::Message { subscription, data, .. } => Some((subscription, data)),
            _ => None,
        })
        .collect();
    got.sort();
    let data = [r#"{"qty": 60}"#, r#"{"qty": 70}"#];
    let want: Vec<_> = (1..=3).flat_map(|number| data.map(|data| (number, data.to_owned()))).collect();
    assert_eq!(got, want);
}

#[test]
fn the_log_records_what_its_filters_let_through_and_subscribers_get_the_rest_without_a_bookmark() {
    let entry = |filter: &str| quire_broker::RecordedTopic {
        filter: Some(filter.into()),
        ..quire_broker::RecordedTopic::new("orders", "json")
    };
    let log = quire_broker::TransactionLogConfig {
        topics: vec![entry("/qty > 50"), entry("/urgent = TRUE")],
        ..Default::default()
    };
    let mut pair = Pair::with(BrokerConfig { transaction_log: log, ..config() });
    pair.client(1, "a");
    pair.subscribe(1, &subscribe(1, "orders"));
    for (sequence, data) in
        [(1, r#"{"qty": 60}"#), (2, r#"{"qty": 1}"#), (3, r#"{"qty": 1, "urgent": true}"#)]
    {
        pair.publish(1, sequence, "orders", data);
    }
    pair.turn();
    let recorded: Vec<_> = pair
        .take(1)
        .into_iter()
        .filter_map(|said| match said {
            Said::Message { bookmark, .. } => Some(bookmark.is_some()),
            _ => None,
        })
        .collect();
    assert_eq!(recorded, [true, false, true]);
    pair.subscribe(1, &replay(2, "orders", "0"));
    pair.turn();
    assert_eq!(pair.take_data(1).len(), 2);
}

#[test]
fn a_filter_on_fields_is_refused_where_messages_have_none() {
    let topic = quire_broker::RecordedTopic::new("blobs", "binary");
    let log = quire_broker::TransactionLogConfig { topics: vec![topic], ..Default::default() };
    let mut pair = Pair::with(BrokerConfig { transaction_log: log, ..config() });
    pair.client(1, "a");
    pair.subscribe(1, &Subscribe { filter: Some("/a = 1"), ..subscribe(1, "blobs") });
    pair.turn();
    assert_eq!(pair.take(1), [refused(Code::BadFilter, 1, 1)]);
}
