//! Filters that take more effort for a message than a turn has are evaluated elsewhere, and their
//! subscriptions still get every message in order (docs/internals/notes.md,
//! docs/filters.md).

use quire_broker::{BrokerConfig, Limits, QueueSettings, TransportConfig};
use quire_command::*;
use quire_expression::filter::EVALUATION_EFFORT_MAX;

use super::pair::*;

/// Finds `x` in a text of `a`s, after 99 patterns that are not there.
fn costly_filter() -> String {
    let mut patterns: Vec<_> = (0..99).map(|n| format!("/s LIKE 'a{n}b$'")).collect();
    patterns.push("/s LIKE 'x$'".to_owned());
    patterns.join(" OR ")
}

fn message(number: u64, size: usize, end: &str) -> String {
    format!(r#"{{"n":{number},"s":"{}{end}"}}"#, "a".repeat(size))
}

/// Publishes large and small messages in turn, every third without what the filter wants; gives the
/// data of those that it wants.
fn publish_some(pair: &mut Pair, client: u64, count: u64) -> Vec<String> {
    let mut wanted = Vec::new();
    for number in 1..=count {
        let size = if number % 2 == 0 { 50_000 } else { 5 };
        let end = if number % 3 == 0 { "y" } else { "x" };
        let data = message(number, size, end);
        pair.publish(client, number, "orders", &data);
        pair.turn();
        if end == "x" {
            wanted.push(data);
        }
    }
    wanted
}

#[test]
fn a_publish_does_not_wait_for_a_costly_filter_and_its_subscription_misses_nothing() {
    let mut pair = Pair::new();
    pair.reads_at_once = false;
    let filter = costly_filter();
    pair.client(1, "publisher");
    pair.client(2, "costly");
    pair.client(3, "plain");
    pair.subscribe(2, &Subscribe { filter: Some(&filter), ..subscribe(1, "orders") });
    pair.subscribe(3, &subscribe(1, "orders"));
    pair.turn();
    pair.take(2);
    let wanted = publish_some(&mut pair, 1, 30);
    assert_eq!(pair.take(1).last(), Some(&Said::Persisted(30)), "no filter was waited for");
    assert_eq!(pair.take_data(3).len(), 30);
    assert_eq!(pair.take_data(2), wanted[..1], "the second message is large, and all others wait behind it");
    pair.reads_at_once = true;
    pair.run_reads();
    pair.turn();
    assert_eq!(pair.take_data(2), wanted[1..]);
}

#[test]
fn bookmark_and_live_subscriptions_with_costly_filters_miss_nothing() {
    for options in [SubscribeOptions::default(), SubscribeOptions::LIVE] {
        let mut pair = Pair::new();
        let filter = costly_filter();
        pair.client(1, "publisher");
        pair.client(2, "costly");
        pair.subscribe(2, &Subscribe { filter: Some(&filter), options, ..replay(1, "orders", "0") });
        pair.turn();
        pair.take(2);
        let wanted = publish_some(&mut pair, 1, 30);
        assert_eq!(pair.take_data(2), wanted, "{options:?}");
    }
}

#[test]
fn messages_that_wait_for_costly_filters_count_as_backlog() {
    let mut pair = Pair::with(BrokerConfig {
        transports: vec![TransportConfig { max_client_backlog: 1024 * 1024, ..TransportConfig::default() }],
        ..config()
    });
    pair.reads_at_once = false;
    let filter = costly_filter();
    pair.client(1, "publisher");
    pair.client(2, "costly");
    pair.subscribe(2, &Subscribe { filter: Some(&filter), ..subscribe(1, "orders") });
    pair.turn();
    pair.take(2);
    for number in 1..=30 {
        pair.publish(1, number, "orders", &message(number, 50_000, "x"));
        pair.turn();
    }
    assert_eq!(pair.take(1).last(), Some(&Said::Persisted(30)));
    assert_eq!(pair.take(2), [Said::Error(Code::SlowConsumer), Said::Closed]);
    assert_eq!(pair.broker.stats().subscription_count, 0);
    // No session is left for the answers.
    pair.reads_at_once = true;
    pair.run_reads();
    pair.turn();
}

#[test]
fn a_message_counts_once_for_all_subscriptions_of_a_connection_that_wait_with_it() {
    let transport = TransportConfig { max_client_backlog: 1024 * 1024, ..TransportConfig::default() };
    let mut pair = Pair::with(BrokerConfig { transports: vec![transport], ..config() });
    let filter = costly_filter();
    pair.client(1, "publisher");
    pair.client(2, "costly");
    for number in 1..=10 {
        pair.subscribe(2, &Subscribe { filter: Some(&filter), ..subscribe(number, "orders") });
    }
    pair.turn();
    pair.take(2);
    pair.publish(1, 1, "orders", &message(1, 300_000, "y"));
    pair.turn();
    assert_eq!(pair.take(2), [], "ten times the message is more than the limit");
    assert_eq!(pair.broker.stats().subscription_count, 10);
}

#[test]
fn a_filter_that_takes_more_than_the_limit_ends_its_subscription_and_no_other() {
    let filter = costly_filter();
    let size = EVALUATION_EFFORT_MAX as usize / 4 / 99;
    for bookmark in [None, Some("0")] {
        let mut pair = Pair::new();
        pair.client(1, "publisher");
        pair.client(2, "costly");
        pair.subscribe(2, &Subscribe { filter: Some(&filter), bookmark, ..subscribe(1, "orders") });
        pair.subscribe(2, &Subscribe { bookmark, ..subscribe(2, "orders") });
        pair.turn();
        pair.take(2);
        pair.publish(1, 1, "orders", &message(1, 5, "x"));
        pair.publish(1, 2, "orders", &message(2, size, "x"));
        pair.publish(1, 3, "orders", &message(3, 5, "x"));
        pair.turn();
        let said = pair.take(2);
        let of = |wanted: u32| {
            said.iter()
                .filter(|said| matches!(said, Said::Message { subscription, .. } if *subscription == wanted))
                .count()
        };
        assert_eq!((of(1), of(2)), (1, 3), "bookmark {bookmark:?}");
        assert!(
            said.contains(&Said::Ended { subscription: 1, code: Code::LimitExceeded }),
            "bookmark {bookmark:?}"
        );
    }
}

/// The engine of the queues waits for the answer, so their filters have a smaller limit.
#[test]
fn a_costly_filter_of_a_queue_ends_its_subscription_and_the_message_goes_to_another() {
    let queue = QueueSettings {
        name: "work".into(),
        message_type: "json".into(),
        underlying_topic: Some("orders".into()),
        ..QueueSettings::default()
    };
    let mut pair = Pair::with(BrokerConfig { queues: vec![queue], ..config() });
    let filter = costly_filter();
    for client in 1..=3 {
        pair.client(client, &format!("client-{client}"));
    }
    pair.subscribe(2, &Subscribe { filter: Some(&filter), ..subscribe(1, "work") });
    pair.subscribe(3, &Subscribe { filter: Some("/n > 1"), ..subscribe(1, "work") });
    pair.turn();
    pair.take(2);
    pair.take(3);
    let data = [message(1, 5, "x"), message(2, 50_000, "x")];
    for (sequence, data) in (1..).zip(&data) {
        pair.publish(1, sequence, "orders", data);
        pair.turn();
    }
    let queued = |said: &Said| match said {
        Said::Queued(message) => Some(message.data.clone()),
        _ => None,
    };
    let said = pair.take(2);
    assert_eq!(said.iter().filter_map(queued).collect::<Vec<_>>(), data[..1]);
    assert_eq!(said.last(), Some(&Said::Ended { subscription: 1, code: Code::LimitExceeded }));
    assert_eq!(pair.take(3).iter().filter_map(queued).collect::<Vec<_>>(), data[1..]);
}

#[test]
fn patterns_are_limited_per_connection_and_for_the_server() {
    let limits = Limits { max_patterns: 5, ..Limits::default() };
    let transport = TransportConfig { max_patterns_per_connection: 3, ..TransportConfig::default() };
    let mut pair = Pair::with(BrokerConfig { transports: vec![transport], limits, ..config() });
    let filter = |count: usize| vec!["/s LIKE 'a'"; count].join(" OR ");
    for client in 1..=3 {
        pair.client(client, &format!("client-{client}"));
    }
    let try_it = |pair: &mut Pair, client: u64, number: u32, count: usize, options: SubscribeOptions| {
        let filter = filter(count);
        pair.subscribe(client, &Subscribe { filter: Some(&filter), options, ..subscribe(number, "orders") });
        pair.turn();
        !pair.take(client).contains(&refused(Code::LimitExceeded, number, number))
    };
    let plain = SubscribeOptions::default();
    assert!(try_it(&mut pair, 1, 1, 3, plain));
    assert!(!try_it(&mut pair, 1, 2, 1, plain), "the fourth of the connection");
    assert!(try_it(&mut pair, 1, 1, 2, SubscribeOptions::REPLACE), "the replaced ones do not count");
    assert!(try_it(&mut pair, 2, 1, 3, plain));
    assert!(!try_it(&mut pair, 3, 1, 1, plain), "the sixth of the server");
    pair.send(
        2,
        &Command::Unsubscribe(Unsubscribe {
            command: 9,
            acks: Acks::default(),
            subscription: 1,
            begun: None,
        }),
    );
    assert!(try_it(&mut pair, 3, 1, 3, plain));
    pair.disconnect(3);
    assert!(try_it(&mut pair, 2, 2, 3, plain));
}
