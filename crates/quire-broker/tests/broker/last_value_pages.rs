//! Pages: subscriptions that keep a part of an ordered result up to date (docs/last-values.md
//! section 4).

use std::time::Duration;

use quire_broker::{BrokerConfig, Limits, SowTopicSettings, TableExpiration};
use quire_command::*;

use crate::last_value_pair::*;
use crate::pair::*;

/// The records at these places of the order by `/p`.
fn page(skip_n: u32, top_n: u32) -> Subscribe<'static> {
    Subscribe { order_by: Some("/p"), skip_n: Some(skip_n), top_n: Some(top_n), ..sow(3, "orders") }
}

fn put(pair: &mut Pair, sequence: u64, id: u64, p: i64) {
    pair.publish(1, sequence, "orders", &format!(r#"{{"id":{id},"p":{p}}}"#));
    pair.turn();
}

/// The ids of the messages, each with its kind.
fn ids(pair: &mut Pair) -> Vec<String> {
    let rows = pair.take_rows(2).into_iter();
    rows.map(|row| {
        let (kind, rest) = row.split_once(r#"{"id":"#).unwrap();
        format!("{}{}", kind.trim_end(), rest.split_once(',').unwrap().0)
    })
    .collect()
}

/// Four records with the places 10 to 40, and a page with the second and the third.
fn second_and_third() -> Pair {
    let mut pair = with_topics([sow_topic("orders")]);
    for id in 1..=4 {
        put(&mut pair, id, id, 10 * id as i64);
    }
    pair.subscribe(2, &page(1, 2));
    pair.turn();
    assert_eq!(ids(&mut pair), ["=2", "=3"]);
    assert_eq!(pair.clients[&2].total, 4);
    pair
}

#[test]
fn a_record_that_enters_the_page_replaces_the_record_that_leaves_it() {
    let mut pair = second_and_third();
    put(&mut pair, 5, 5, 25);
    assert_eq!(ids(&mut pair), ["-Match3", "+5"]);
    put(&mut pair, 6, 6, 0);
    assert_eq!(ids(&mut pair), ["-Match5", "+1"]);
}

#[test]
fn a_change_outside_the_page_gives_no_message_and_one_within_it_gives_one() {
    let mut pair = second_and_third();
    put(&mut pair, 5, 1, 11);
    put(&mut pair, 6, 4, 41);
    put(&mut pair, 7, 7, 50);
    assert_eq!(ids(&mut pair), Vec::<String>::new());
    put(&mut pair, 8, 2, 31);
    assert_eq!(ids(&mut pair), ["+2"]);
}

#[test]
fn a_record_that_leaves_the_page_by_its_own_change_gives_its_new_message() {
    let mut pair = second_and_third();
    put(&mut pair, 5, 3, 99);
    assert_eq!(pair.take_rows(2), [r#"-Match {"id":3,"p":99}"#, r#"+{"id":4,"p":40}"#]);
}

#[test]
fn a_deleted_record_of_the_page_makes_room_for_the_next_one() {
    let mut pair = second_and_third();
    pair.delete(1, SowDelete { filter: Some("/id = 2"), ..delete(9, 5, "orders") });
    assert_eq!(ids(&mut pair), ["-Deleted2", "+4"]);
    // A record before the page.
    pair.delete(1, SowDelete { filter: Some("/id = 1"), ..delete(9, 6, "orders") });
    assert_eq!(ids(&mut pair), ["-Match3"]);
    pair.delete(1, SowDelete { filter: Some("1 = 1"), ..delete(9, 7, "orders") });
    assert_eq!(ids(&mut pair).len(), 1);
}

#[test]
fn an_expired_record_of_the_page_makes_room_for_the_next_one() {
    let topic = SowTopicSettings { expiration: TableExpiration::Enabled, ..sow_topic("orders") };
    let mut pair = with_topics([topic]);
    for id in 1..=3 {
        put(&mut pair, id, id, id as i64);
    }
    let message = Publish { expiration_s: Some(1), ..publish(4, "orders", r#"{"id":0,"p":0}"#) };
    pair.send(1, &Command::Publish(message));
    pair.subscribe(2, &page(0, 2));
    pair.turn();
    assert_eq!(ids(&mut pair), ["=0", "=1"]);
    pair.pass(Duration::from_millis(1100));
    assert_eq!(ids(&mut pair), ["-Expired0", "+2"]);
}

#[test]
fn a_page_without_oof_gets_only_the_records_that_enter() {
    let mut pair = second_and_third();
    let unsubscribe = Unsubscribe { command: 4, acks: Acks::PROCESSED, subscription: 3, begun: None };
    pair.send(2, &Command::Unsubscribe(unsubscribe));
    pair.subscribe(2, &Subscribe { options: SubscribeOptions::SOW, ..page(0, 1) });
    pair.turn();
    pair.take(2);
    put(&mut pair, 5, 5, 5);
    pair.delete(1, SowDelete { filter: Some("/id = 5"), ..delete(9, 6, "orders") });
    assert_eq!(ids(&mut pair), ["+5", "+1"]);
}

#[test]
fn filter_keys_and_select_hold_for_the_page() {
    let mut pair = with_topics([supplied("orders")]);
    let put = |pair: &mut Pair, sequence, key: &str, data: &str| {
        pair.send(1, &Command::Publish(Publish { key: key.as_bytes(), ..publish(sequence, "orders", data) }));
        pair.turn();
    };
    let keys = Keys::from_bytes(b"\x01a\x01b\x01c");
    let filtered = Subscribe { filter: Some("/p > 1"), select: Some("-/,+/p"), keys, ..page(0, 2) };
    pair.subscribe(2, &filtered);
    pair.turn();
    for (sequence, key, p) in [(1, "a", 1), (2, "b", 2), (3, "d", 2), (4, "c", 3), (5, "a", 5), (6, "b", 0)] {
        put(&mut pair, sequence, key, &format!(r#"{{"p":{p},"x":1}}"#));
    }
    let expected = [r#"+{"p":2}"#, r#"+{"p":3}"#, r#"-Match {"p":0}"#, r#"+{"p":5}"#];
    assert_eq!(pair.take_rows(2), expected);
}

#[test]
fn a_page_of_many_records_is_that_of_the_moment_at_which_its_records_begin() {
    let mut pair = with_topics([sow_topic("orders")]);
    for id in 1..=3000 {
        pair.publish(1, id, "orders", &format!(r#"{{"id":{id},"p":{id}}}"#));
    }
    pair.turn();
    // A clock that moves by itself ends each portion of work early.
    let mut at_ns = 0;
    pair.broker.set_stopwatch(Box::new(move || {
        at_ns += 2_000_000;
        quire_types::time::Instant(at_ns)
    }));
    pair.subscribe(2, &page(2998, 5));
    for (sequence, (id, p)) in [(1, 9000), (3000, 5), (2999, 0), (3001, 8000)].into_iter().enumerate() {
        pair.publish(1, 3001 + sequence as u64, "orders", &format!(r#"{{"id":{id},"p":{p}}}"#));
        pair.one_turn();
    }
    pair.turn();
    let mut shown = std::collections::BTreeSet::new();
    for id in ids(&mut pair) {
        match id.split_at(1) {
            ("=" | "+", id) => drop(shown.insert(id.to_owned())),
            (_, id) => assert!(shown.remove(id.trim_start_matches("Match"))),
        }
    }
    assert_eq!(Vec::from_iter(shown), ["1", "2998", "3001"]);
}

#[test]
fn pages_that_cannot_be_are_refused() {
    let mut pair = with_topics([sow_topic("orders")]);
    let refusals = [
        (Subscribe { top_n: None, ..page(0, 1) }, Code::BadOption),
        (page(0, 65_537), Code::BadOption),
        (Subscribe { topic: "^orders", ..page(0, 1) }, Code::BadOption),
        (Subscribe { topic: "plain", order_by: None, ..page(0, 1) }, Code::NotLastValue),
        (
            Subscribe { options: SubscribeOptions(0), order_by: None, top_n: None, ..page(0, 1) },
            Code::BadOption,
        ),
        (
            Subscribe { conflation_ns: Some(1_000_000_000), conflation_key: Some("/p"), ..page(0, 1) },
            Code::BadOption,
        ),
    ];
    for (subscribe, code) in refusals {
        pair.subscribe(2, &subscribe);
        pair.turn();
        assert_eq!(pair.take(2), [refused(code, 3, 3)], "{subscribe:?}");
    }
}

#[test]
fn a_page_that_needs_too_much_memory_is_ended() {
    let limits = Limits { max_query_copies: 1_024, ..Limits::default() };
    let config = BrokerConfig { limits, ..sow_config([sow_topic("orders")]) };
    let mut pair = Pair::with(config);
    pair.client(1, "publisher");
    pair.client(2, "reader");
    pair.subscribe(2, &page(0, 1));
    pair.turn();
    pair.take(2);
    for id in 1..=20 {
        put(&mut pair, id, id, 100 - id as i64);
    }
    let said = pair.take(2);
    assert_eq!(said.last(), Some(&Said::Ended { subscription: 3, code: Code::LimitExceeded }), "{said:?}");
    // Then the records of the topic are still served.
    assert_eq!(pair.records(1, query(5, "orders")).len(), 20);
}

#[test]
fn the_messages_of_a_page_are_conflated_by_record() {
    let mut pair = second_and_third();
    let unsubscribe = Unsubscribe { command: 4, acks: Acks::PROCESSED, subscription: 3, begun: None };
    pair.send(2, &Command::Unsubscribe(unsubscribe));
    pair.subscribe(2, &Subscribe { conflation_ns: Some(1_000_000_000), ..page(1, 2) });
    pair.turn();
    pair.take(2);
    // 5 enters the page and leaves it. 3 leaves it and enters it again.
    put(&mut pair, 5, 5, 25);
    put(&mut pair, 6, 5, 99);
    put(&mut pair, 7, 2, 21);
    assert_eq!(ids(&mut pair), Vec::<String>::new());
    pair.pass(Duration::from_millis(1100));
    assert_eq!(ids(&mut pair), ["+3", "+2"]);
}
