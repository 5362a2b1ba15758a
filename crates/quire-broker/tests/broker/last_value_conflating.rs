//! Conflation on last-value topics (docs/last-values.md section 4).

use std::time::Duration;

use quire_command::*;

use crate::last_value_pair::*;
use crate::pair::*;

/// Records first, then at most one message per record and second.
fn conflated(number: u32) -> Subscribe<'static> {
    Subscribe { conflation_ns: Some(1_000_000_000), ..sow(number, "orders") }
}

fn put(pair: &mut Pair, sequence: u64, id: u64, n: u64) {
    pair.publish(1, sequence, "orders", &format!(r#"{{"id":{id},"n":{n}}}"#));
    pair.turn();
}

fn after_a_second(pair: &mut Pair) -> Vec<String> {
    assert_eq!(pair.take_rows(2), Vec::<String>::new());
    pair.pass(Duration::from_millis(1001));
    pair.take_rows(2)
}

#[test]
fn the_records_come_at_once_and_each_record_has_one_message_per_interval() {
    let mut pair = with_topics([sow_topic("orders")]);
    put(&mut pair, 1, 1, 1);
    pair.subscribe(2, &conflated(3));
    pair.turn();
    assert_eq!(pair.take_rows(2), [r#"={"id":1,"n":1}"#]);
    for (sequence, id) in [(2, 1), (3, 2), (4, 1), (5, 1)] {
        put(&mut pair, sequence, id, sequence);
    }
    assert_eq!(after_a_second(&mut pair), [r#"+{"id":1,"n":5}"#, r#"+{"id":2,"n":3}"#]);
    put(&mut pair, 6, 2, 6);
    assert_eq!(after_a_second(&mut pair), [r#"+{"id":2,"n":6}"#]);
}

#[test]
fn a_record_that_comes_and_goes_within_an_interval_gives_no_message() {
    let mut pair = with_topics([sow_topic("orders")]);
    put(&mut pair, 1, 1, 5);
    pair.subscribe(2, &Subscribe { filter: Some("/n > 2"), ..conflated(3) });
    pair.turn();
    pair.take(2);
    put(&mut pair, 2, 2, 3);
    put(&mut pair, 3, 2, 1);
    put(&mut pair, 4, 3, 3);
    pair.delete(1, SowDelete { filter: Some("/id = 3"), ..delete(9, 5, "orders") });
    // It comes a second time, and stays.
    put(&mut pair, 6, 4, 3);
    put(&mut pair, 7, 4, 0);
    put(&mut pair, 8, 4, 9);
    assert_eq!(after_a_second(&mut pair), [r#"+{"id":4,"n":9}"#]);
}

#[test]
fn oof_replaces_the_message_that_is_held() {
    let mut pair = with_topics([sow_topic("orders")]);
    for id in 1..=3 {
        put(&mut pair, id, id, 5);
    }
    pair.subscribe(2, &Subscribe { filter: Some("/n > 2"), ..conflated(3) });
    pair.turn();
    pair.take(2);
    put(&mut pair, 4, 1, 6);
    put(&mut pair, 5, 1, 1);
    put(&mut pair, 6, 2, 7);
    pair.delete(1, SowDelete { filter: Some("/id = 2"), ..delete(9, 7, "orders") });
    // It leaves the view and enters it again.
    put(&mut pair, 8, 3, 0);
    put(&mut pair, 9, 3, 8);
    let expected = [r#"-Match {"id":1,"n":1}"#, r#"-Deleted {"id":2,"n":7}"#, r#"+{"id":3,"n":8}"#];
    assert_eq!(after_a_second(&mut pair), expected);
}

/// As [`conflated`], and of each record the fields that differ.
fn conflated_delta(number: u32) -> Subscribe<'static> {
    Subscribe { conflation_ns: Some(1_000_000_000), ..sow_delta(number, "orders") }
}

fn put_all(pair: &mut Pair, sequence: u64, messages: &[&str]) {
    for (sequence, data) in (sequence..).zip(messages) {
        pair.publish(1, sequence, "orders", data);
    }
    pair.turn();
}

#[test]
fn deltas_of_an_interval_are_merged_and_fields_may_have_their_old_value() {
    let mut pair = with_topics([sow_topic("orders")]);
    put_all(&mut pair, 1, &[r#"{"id":99,"status":"open","notes":"none","xref":82}"#]);
    pair.subscribe(2, &conflated_delta(3));
    pair.turn();
    assert_eq!(pair.take_rows(2), [r#"={"id":99,"status":"open","notes":"none","xref":82}"#]);
    put_all(
        &mut pair,
        2,
        &[
            r#"{"id":99,"status":"pending","notes":"none","xref":82}"#,
            r#"{"id":99,"status":"pending","notes":"urgent","xref":82}"#,
            r#"{"id":99,"status":"open","notes":"urgent","xref":82}"#,
            r#"{"id":99,"status":"open","notes":"none","xref":82}"#,
        ],
    );
    assert_eq!(after_a_second(&mut pair), [r#"~{"id":99,"status":"open","notes":"none"}"#]);
    // An object that becomes another one.
    put_all(
        &mut pair,
        6,
        &[r#"{"id":99,"a":{"b":1,"z":9}}"#, r#"{"id":99,"a":5}"#, r#"{"id":99,"a":{"b":1,"c":2}}"#],
    );
    assert_eq!(
        after_a_second(&mut pair),
        [r#"~{"id":99,"a":{"b":1,"c":2},"status":null,"notes":null,"xref":null}"#]
    );
    put_all(&mut pair, 9, &[r#"{"id":99,"a":5}"#, r#"{"id":99,"a":{"b":1}}"#]);
    assert_eq!(after_a_second(&mut pair), [r#"~{"id":99,"a":{"b":1,"c":null}}"#]);
}

#[test]
fn a_conflated_delta_subscription_gets_whole_records_that_come_into_view() {
    let mut pair = with_topics([sow_topic("orders")]);
    put(&mut pair, 1, 1, 5);
    put(&mut pair, 2, 2, 5);
    let options = SubscribeOptions::DELTA.and(SubscribeOptions::NO_EMPTIES).and(SubscribeOptions::OOF);
    let wanted = Subscribe { filter: Some("/n > 2"), ..conflated_delta(3) };
    pair.subscribe(2, &Subscribe { options, ..wanted });
    pair.turn();
    pair.take(2);
    // It leaves the view and enters it again, another one enters it, and one leaves it.
    for (sequence, id, n) in [(3, 1, 1), (4, 1, 7), (5, 3, 8), (6, 3, 9), (7, 2, 6), (8, 2, 0)] {
        put(&mut pair, sequence, id, n);
    }
    let expected = [r#"+{"id":1,"n":7}"#, r#"+{"id":3,"n":9}"#, r#"-Match {"id":2,"n":0}"#];
    assert_eq!(after_a_second(&mut pair), expected);
    // No field differs at the end of the interval.
    put(&mut pair, 9, 1, 8);
    put(&mut pair, 10, 1, 7);
    assert_eq!(after_a_second(&mut pair), Vec::<String>::new());
    // Without `oof`, a record that enters the view again is whole.
    let options = SubscribeOptions::DELTA;
    pair.subscribe(2, &Subscribe { options, subscription: 4, command: 4, ..wanted });
    pair.turn();
    pair.take(2);
    for (sequence, n) in [(11, 6), (12, 1), (13, 5)] {
        put(&mut pair, sequence, 1, n);
    }
    pair.pass(Duration::from_millis(1001));
    assert!(pair.take_rows(2).contains(&r#"+{"id":1,"n":5}"#.to_owned()));
}

#[test]
fn a_select_list_applies_to_conflated_deltas_and_the_key_is_delivered_in_addition() {
    let mut pair = with_topics([sow_topic("orders")]);
    put_all(&mut pair, 1, &[r#"{"id":1,"a":1,"b":1}"#]);
    pair.subscribe(2, &Subscribe { select: Some("-/,+/a"), ..conflated_delta(3) });
    pair.turn();
    assert_eq!(pair.take_rows(2), [r#"={"a":1}"#]);
    put_all(&mut pair, 2, &[r#"{"id":1,"a":2,"b":2}"#, r#"{"id":1,"a":3,"b":3}"#]);
    assert_eq!(after_a_second(&mut pair), [r#"~{"id":1,"a":3}"#]);
}

#[test]
fn a_conflation_key_of_fields_wins_over_the_key_of_the_records() {
    let mut pair = with_topics([sow_topic("orders")]);
    let options = SubscribeOptions::SOW;
    pair.subscribe(2, &Subscribe { options, conflation_key: Some("/n"), ..conflated(3) });
    pair.turn();
    pair.take(2);
    for (sequence, id) in [(1, 1), (2, 2), (3, 3)] {
        put(&mut pair, sequence, id, 1);
    }
    assert_eq!(after_a_second(&mut pair), [r#"+{"id":3,"n":1}"#]);
}

#[test]
fn ordinary_and_bookmark_subscriptions_conflate_by_record_too() {
    let mut pair = with_topics([sow_topic("orders")]);
    for sequence in 1..=3 {
        put(&mut pair, sequence, sequence % 2, sequence);
    }
    let conflation_ns = Some(1_000_000_000);
    pair.subscribe(2, &Subscribe { conflation_ns, ..subscribe(3, "orders") });
    pair.subscribe(2, &Subscribe { conflation_ns, ..replay(4, "orders", "0") });
    pair.turn();
    // When a replay has caught up, it delivers the messages that are held.
    assert_eq!(pair.take_rows(2), [r#"+{"id":1,"n":3}"#, r#"+{"id":0,"n":2}"#]);
    put(&mut pair, 4, 0, 4);
    put(&mut pair, 5, 0, 5);
    assert_eq!(after_a_second(&mut pair), [r#"+{"id":0,"n":5}"#; 2]);
    // A pattern also finds a topic whose messages have no keys.
    pair.subscribe(2, &Subscribe { conflation_ns, topic: "^", ..sow(5, "^") });
    pair.turn();
    pair.take(2);
    for sequence in 6..=7 {
        pair.publish(1, sequence, "plain", r#"{"id":1}"#);
        pair.turn();
    }
    assert_eq!(pair.take_data(2).len(), 2);
}

#[test]
fn messages_about_records_stay_after_the_records() {
    let mut pair = with_topics([sow_topic("orders")]);
    let filler = "x".repeat(100_000);
    for sequence in 1..=60 {
        pair.publish(1, sequence, "orders", &format!(r#"{{"id":{sequence},"x":"{filler}"}}"#));
        pair.turn();
    }
    pair.set_writable(2, false);
    pair.subscribe(2, &Subscribe { conflation_ns: Some(1_000_000), ..sow(3, "orders") });
    pair.turn();
    pair.publish(1, 61, "orders", r#"{"id":60,"n":"new"}"#);
    pair.turn();
    pair.pass(Duration::from_millis(10));
    pair.set_writable(2, true);
    pair.turn();
    pair.pass(Duration::from_millis(10));
    let rows = pair.take_rows(2);
    assert_eq!(rows.len(), 61);
    assert!(rows[..60].iter().all(|row| row.starts_with('=')));
    assert_eq!(rows[60], r#"+{"id":60,"n":"new"}"#);
}

#[test]
fn conflation_that_cannot_be_is_refused() {
    let mut pair = with_topics([sow_topic("orders")]);
    for subscribe in [
        Subscribe { topic: "plain", ..conflated(3) },
        Subscribe { conflation_ns: None, conflation_key: Some("/n"), ..conflated(3) },
        Subscribe { conflation_key: Some("/n"), ..conflated(3) },
        Subscribe { conflation_key: Some("/n"), ..conflated_delta(3) },
        Subscribe { topic: "plain", ..conflated_delta(3) },
        Subscribe { conflation_ns: Some(999_999), ..conflated(3) },
    ] {
        pair.subscribe(2, &subscribe);
        pair.turn();
        assert_eq!(pair.take(2), [refused(Code::BadOption, 3, 3)], "{subscribe:?}");
    }
}
