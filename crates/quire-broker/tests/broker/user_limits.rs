//! Limits of users: the first entry that matches a user decides, and its connections share the
//! limits.

use std::sync::Arc;
use std::time::Duration;

use quire_broker::{Access, AccessRules, BrokerConfig, ConnectionId, Input, PublishRate, UserLimitSettings};
use quire_command::*;
use quire_types::Secret;

use super::entitling::*;
use super::pair::*;

fn anna() -> UserLimitSettings {
    UserLimitSettings { user: vec!["anna".into()], ..UserLimitSettings::default() }
}

fn with_limits(limits: Vec<UserLimitSettings>) -> Pair {
    Pair::with(BrokerConfig { user_limits: limits, ..guarded(everything().to_vec()) })
}

/// The answers to a client whose password was accepted.
fn try_log_on(pair: &mut Pair, client: u64, user: &str, groups: &str) -> Vec<Said> {
    let name = format!("client-{client}");
    pair.connect(client);
    let password = Some(Secret("correct horse"));
    pair.send(client, &Command::Logon(Logon { user: Some(user), password, ..logon(&name) }));
    pair.turn();
    let now = pair.now();
    let connection = ConnectionId(client);
    pair.broker.handle(now, Input::Authenticated { connection, user: Ok(user), groups });
    pair.turn();
    pair.take(client)
}

fn is_accepted(said: &[Said]) -> bool {
    matches!(said, [Said::LoggedOn { .. }])
}

#[test]
fn a_user_has_at_most_max_connections() {
    let mut pair = with_limits(vec![UserLimitSettings { max_connections: 2, ..anna() }]);
    assert!(is_accepted(&try_log_on(&mut pair, 2, "anna", "")));
    assert!(is_accepted(&try_log_on(&mut pair, 3, "anna", "")));
    let said = try_log_on(&mut pair, 4, "anna", "");
    assert_eq!(said, [Said::Error(Code::LimitExceeded), Said::Closed]);
    assert!(pair.log.iter().any(|event| event.to_string().contains("max_connections")));
    assert!(is_accepted(&try_log_on(&mut pair, 5, "bob", "")), "another user");
    pair.disconnect(2);
    pair.turn();
    assert!(is_accepted(&try_log_on(&mut pair, 6, "anna", "")));
    // A connection that takes over a name replaces the other one.
    pair.disconnect(6);
    pair.turn();
    assert!(is_accepted(&try_log_on(&mut pair, 7, "anna", "")));
    pair.connect_as(8, Access::Administrator);
    pair.log_on(8, "administrator");
}

#[test]
fn the_first_entry_that_matches_decides() {
    let of_group = UserLimitSettings { group: vec!["desk".into()], max_connections: 1, ..Default::default() };
    let mut pair = with_limits(vec![
        UserLimitSettings { max_connections: 2, ..anna() },
        of_group,
        UserLimitSettings { max_connections: 3, ..Default::default() },
    ]);
    let mut client = 1;
    for (user, groups, limit) in
        [("anna", "desk", 2), ("bob", "desk", 1), ("carl", "ops", 3), ("dora", "", 3)]
    {
        let mut count = 0;
        loop {
            client += 1;
            if !is_accepted(&try_log_on(&mut pair, client, user, groups)) {
                break;
            }
            count += 1;
        }
        assert_eq!(count, limit, "{user}");
    }
}

#[test]
fn the_connections_of_a_user_have_at_most_max_subscriptions_together() {
    let mut pair = with_limits(vec![UserLimitSettings { max_subscriptions: Some(2), ..anna() }]);
    log_on_as(&mut pair, 2, "anna", "");
    log_on_as(&mut pair, 3, "anna", "");
    let mut subscribe_one = |client, number| {
        pair.subscribe(client, &subscribe(number, "orders"));
        pair.turn();
        let refusal = pair.clients[&client].refusal.clone();
        (pair.take(client).contains(&ack(AckKind::Processed, number, number)), refusal)
    };
    assert!(subscribe_one(2, 1).0);
    assert!(subscribe_one(3, 1).0);
    let (is_accepted, refusal) = subscribe_one(3, 2);
    assert!(!is_accepted);
    assert_eq!(refusal, "max_subscriptions: the user has 2 subscriptions, and its limit is 2");
    let replace = Subscribe { options: SubscribeOptions::REPLACE, ..subscribe(1, "state") };
    pair.subscribe(3, &replace);
    pair.disconnect(2);
    pair.turn();
    pair.take(3);
    pair.subscribe(3, &subscribe(2, "orders"));
    pair.turn();
    assert!(pair.take(3).contains(&ack(AckKind::Processed, 2, 2)));
}

#[test]
fn a_publisher_that_is_ahead_of_its_rate_waits() {
    for (rate, at_once) in [(PublishRate::Messages(100), 11), (PublishRate::Bytes(500), 11)] {
        let mut pair = with_limits(vec![UserLimitSettings { publish_rate: Some(rate), ..anna() }]);
        log_on_as(&mut pair, 2, "anna", "");
        log_on_as(&mut pair, 3, "anna", "");
        log_on_as(&mut pair, 4, "bob", "");
        pair.subscribe(4, &subscribe(1, "orders"));
        pair.turn();
        pair.take(4);
        // 5 bytes.
        (1..=40).for_each(|sequence| pair.publish(2, sequence, "orders", "12345"));
        pair.turn();
        assert_eq!(pair.take_data(4).len(), at_once, "{rate:?}");
        assert!(pair.clients[&2].is_reading_paused);
        // A second connection does not get another rate.
        pair.publish(3, 1, "orders", "12345");
        pair.publish(3, 2, "orders", "12345");
        pair.turn();
        assert_eq!(pair.take_data(4).len(), 1, "{rate:?}");
        pair.publish(4, 1, "orders", "12345");
        pair.turn();
        assert_eq!(pair.take_data(4).len(), 1, "{rate:?}: another user");
        for _ in 0..10 {
            pair.pass(Duration::from_millis(100));
        }
        let later = pair.take_data(4).len();
        assert!((30..=31).contains(&later), "{rate:?}: {later}");
        assert!(!pair.clients[&2].is_reading_paused);
    }
}

#[test]
fn a_batch_continues_when_the_rate_has_caught_up() {
    let limit = UserLimitSettings { publish_rate: Some(PublishRate::Messages(100)), ..anna() };
    let mut pair = with_limits(vec![limit]);
    log_on_as(&mut pair, 2, "anna", "");
    let mut items = Vec::new();
    (0..30).for_each(|_| put_batch_item(&mut items, b"12345"));
    pair.send(2, &Command::PublishBatch(PublishBatch::of_checked(publish(1, "orders", ""), &items)));
    pair.turn();
    assert_eq!(pair.take(2).last(), Some(&Said::Persisted(11)));
    for _ in 0..5 {
        pair.pass(Duration::from_millis(100));
    }
    assert_eq!(pair.take(2).last(), Some(&Said::Persisted(30)));
}

#[test]
fn a_user_for_which_too_much_waits_loses_its_slowest_connection() {
    let limit = UserLimitSettings { max_waiting: Some(100_000), ..anna() };
    let mut pair = with_limits(vec![limit]);
    pair.connect_as(1, Access::Administrator);
    pair.log_on(1, "administrator");
    log_on_as(&mut pair, 2, "anna", "");
    log_on_as(&mut pair, 3, "anna", "");
    log_on_as(&mut pair, 4, "bob", "");
    for client in [2, 3, 4] {
        pair.subscribe(client, &subscribe(1, "orders"));
        if client == 3 {
            pair.subscribe(client, &subscribe(2, "orders"));
        }
        pair.turn();
        pair.take(client);
        pair.set_writable(client, false);
    }
    let data = "x".repeat(10_000);
    for sequence in 1..=3 {
        pair.publish(1, sequence, "orders", &data);
        pair.turn();
    }
    assert!(!pair.log.iter().any(|event| event.to_string().contains("max_waiting")));
    pair.publish(1, 4, "orders", &data);
    pair.turn();
    let ended: Vec<_> =
        pair.log.iter().map(ToString::to_string).filter(|line| line.contains("max_waiting")).collect();
    let ended: Vec<_> = ended.into_iter().filter(|line| !line.starts_with("audit: ")).collect();
    assert_eq!(ended.len(), 1, "{ended:?}");
    assert!(ended[0].contains("client-3") && ended[0].contains("100000"), "{ended:?}");
}

#[test]
fn other_limits_hold_for_the_connections_that_exist_and_end_none() {
    let mut pair = with_limits(Vec::new());
    log_on_as(&mut pair, 2, "anna", "");
    log_on_as(&mut pair, 3, "anna", "");
    let entitlements = quire_broker::Entitlements::compile(&everything(), &Default::default()).unwrap();
    let set = |pair: &mut Pair, limits: &[UserLimitSettings]| {
        let user_limits = Arc::new(quire_broker::UserLimits::compile(limits).unwrap());
        let now = pair.now();
        let rules = AccessRules {
            entitlements: entitlements.clone(),
            user_limits,
            authenticates: vec![true],
            authenticates_links: false,
        };
        pair.broker.handle(now, Input::Entitle(rules));
        pair.turn();
    };
    let strict =
        UserLimitSettings { max_connections: 1, publish_rate: Some(PublishRate::Messages(10)), ..anna() };
    set(&mut pair, &[strict]);
    assert_eq!((pair.take(2), pair.take(3)), (vec![], vec![]));
    assert_eq!(try_log_on(&mut pair, 4, "anna", ""), [Said::Error(Code::LimitExceeded), Said::Closed]);
    (1..=10).for_each(|sequence| pair.publish(2, sequence, "orders", "1"));
    pair.turn();
    assert_eq!(pair.take(2).last(), Some(&Said::Persisted(2)));
    set(&mut pair, &[]);
    pair.pass(Duration::from_secs(1));
    assert_eq!(pair.take(2).last(), Some(&Said::Persisted(10)));
    assert!(is_accepted(&try_log_on(&mut pair, 5, "anna", "")));
}

#[test]
fn a_mistake_in_a_limit_names_its_key() {
    for (key, limit) in [
        ("max_connections", UserLimitSettings { max_connections: 0, ..anna() }),
        ("max_subscriptions", UserLimitSettings { max_subscriptions: Some(0), ..anna() }),
        ("max_waiting", UserLimitSettings { max_waiting: Some(1), ..anna() }),
        ("publish_rate", UserLimitSettings { publish_rate: Some(PublishRate::Bytes(0)), ..anna() }),
        ("user", UserLimitSettings { user: vec!["a|b".into()], ..anna() }),
        ("group", UserLimitSettings { group: vec!["x+".into()], ..anna() }),
    ] {
        let config = BrokerConfig { user_limits: vec![anna(), limit], ..BrokerConfig::default() };
        let error = quire_broker::ConfigError::from(config.check().unwrap_err());
        assert_eq!(error.key, format!("user_limits[1].{key}"), "{error}");
    }
}
