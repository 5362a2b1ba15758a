//! Views: the order of their updates, the portions in which the broker works off the changes of
//! their sources, and content that cannot be read or written (docs/views.md).
//!
//! `tests/test_views.py` has the behavior for clients, and the tests of quire-table compare the
//! groups with a computation from nothing.

use quire_broker::{BrokerConfig, Event, Limits, ViewSettings};
use quire_command::*;
use quire_types::time::Instant;
use quire_wire::Encode;

use crate::last_value_pair::*;
use crate::pair::*;
use crate::slices::with_stopwatch;

fn view(name: &str, source: &str) -> ViewSettings {
    ViewSettings {
        name: name.into(),
        message_type: "json".into(),
        underlying_topic: source.into(),
        projection: vec!["/g".into(), "COUNT(1) AS /n".into(), "SUM(/v) AS /sum".into()],
        grouping: vec!["/g".into()],
        ..ViewSettings::default()
    }
}

fn view_config(views: Vec<ViewSettings>) -> BrokerConfig {
    BrokerConfig { views, ..sow_config([sow_topic("orders"), supplied("prices")]) }
}

fn pair_with(views: Vec<ViewSettings>) -> Pair {
    let mut pair = Pair::with(view_config(views));
    pair.client(1, "publisher");
    pair.client(2, "reader");
    pair
}

/// The messages with these numbers, in one write.
fn put_orders(pair: &mut Pair, numbers: std::ops::Range<u64>) {
    let mut frames = Vec::new();
    for number in numbers {
        let data = format!(r#"{{"id":{number},"g":"g","v":{number}}}"#);
        Command::Publish(publish(number, "orders", &data)).encode(&mut frames);
    }
    pair.send_bytes(1, &frames);
}

#[test]
fn the_updates_of_a_view_have_the_order_of_the_changes_of_its_source() {
    let mut pair = pair_with(vec![view("sums", "orders")]);
    pair.subscribe(2, &sow(7, "sums"));
    pair.turn();
    pair.take(2);
    put_orders(&mut pair, 1..4);
    pair.publish(1, 4, "orders", r#"{"id":1,"g":"other","v":1}"#);
    pair.turn();
    assert_eq!(
        pair.take_rows(2),
        [
            r#"+{"g":"g","n":1,"sum":1}"#,
            r#"+{"g":"g","n":2,"sum":3}"#,
            r#"+{"g":"g","n":3,"sum":6}"#,
            r#"+{"g":"g","n":2,"sum":5}"#,
            r#"+{"g":"other","n":1,"sum":1}"#,
        ]
    );
    assert_eq!(pair.delete(1, SowDelete { filter: Some("/id = 1"), ..delete(9, 5, "orders") }), 1);
    assert_eq!(pair.take_rows(2), [r#"-Deleted {"g":"other","n":1,"sum":1}"#]);
}

#[test]
fn many_changes_are_worked_off_in_portions_and_in_order() {
    // Each reading of the clock takes a tenth of a portion.
    let mut pair = with_stopwatch(view_config(vec![view("sums", "orders")]));
    pair.client(1, "publisher");
    pair.client(2, "reader");
    pair.subscribe(2, &subscribe(7, "sums"));
    pair.turn();
    pair.take(2);
    put_orders(&mut pair, 1..2_001);
    let mut counts = Vec::new();
    let mut sums = Vec::new();
    for _ in 0..1_000 {
        pair.one_turn();
        let rows = pair.take_rows(2);
        counts.push(rows.len());
        sums.extend(rows);
        if sums.len() == 2_000 {
            break;
        }
    }
    assert!(counts.iter().all(|count| *count <= 400), "{counts:?}");
    assert_eq!(sums.len(), 2_000);
    for (sum, n) in sums.iter().zip(1..) {
        assert_eq!(*sum, format!(r#"+{{"g":"g","n":{n},"sum":{}}}"#, n * (n + 1) / 2));
    }
}

#[test]
fn publishers_are_paused_while_too_many_changes_wait() {
    let limits = Limits { max_unpersisted: 4_096, ..Limits::default() };
    // Each portion ends after its first step: each reading of the clock takes a second.
    let mut pair = Pair::with(BrokerConfig { limits, ..view_config(vec![view("sums", "orders")]) });
    let mut now = 0;
    pair.broker.set_stopwatch(Box::new(move || {
        now += 1_000_000_000;
        Instant(now)
    }));
    pair.client(1, "publisher");
    pair.client(2, "reader");
    put_orders(&mut pair, 1..1_001);
    let mut was_paused = false;
    for _ in 0..2_000 {
        pair.one_turn();
        was_paused |= pair.clients[&1].is_reading_paused;
        pair.write();
    }
    assert!(was_paused);
    assert!(!pair.clients[&1].is_reading_paused);
    pair.turn();
    assert_eq!(pair.records(2, query(5, "sums")), [r#"{"g":"g","n":1000,"sum":500500}"#]);
}

#[test]
fn a_message_that_cannot_be_read_is_counted_and_does_not_stop_a_view() {
    let mut pair = pair_with(vec![view("sums", "prices")]);
    for (sequence, data) in [r#"{"g":"a","v":1}"#, "nonsense", r#"{"g":"a","v":"#].iter().enumerate() {
        let publish = publish(sequence as u64 + 1, "prices", data);
        pair.send(1, &Command::Publish(Publish { key: b"ABC", ..publish }));
        pair.send(1, &Command::Publish(Publish { key: b"DEF", sequence: 0, ..publish }));
    }
    pair.turn();
    assert_eq!(pair.records(2, query(5, "sums")), [r#"{"g":null,"n":0,"sum":null}"#]);
    let unreadable = pair.log.iter().filter(|event| matches!(event, Event::MessageUnreadable { .. })).count();
    assert_eq!(unreadable, 1);
    assert_ne!(pair.broker.stats().unreadable_count, 0);
    let good = publish(4, "prices", r#"{"g":"a","v":7}"#);
    pair.send(1, &Command::Publish(Publish { key: b"ABC", ..good }));
    pair.turn();
    assert_eq!(
        pair.records(2, query(5, "sums")),
        [r#"{"g":"a","n":1,"sum":7}"#, r#"{"g":null,"n":0,"sum":null}"#]
    );
}

#[test]
fn a_group_that_cannot_be_written_has_no_record_until_it_can() {
    let list = ViewSettings {
        message_type: "nvfix".into(),
        projection: vec!["DISTINCT_LIST(/v) AS /list".into()],
        ..view("lists", "orders")
    };
    let mut pair = pair_with(vec![list]);
    pair.subscribe(2, &sow(7, "lists"));
    pair.turn();
    pair.take(2);
    for (sequence, data) in
        [r#"{"id":1,"g":1,"v":"a"}"#, r#"{"id":2,"g":1,"v":"\u0001"}"#, r#"{"id":2,"g":1,"v":"b"}"#]
            .iter()
            .enumerate()
    {
        pair.publish(1, sequence as u64 + 1, "orders", data);
    }
    pair.turn();
    assert_eq!(pair.take_rows(2), ["+list=a\u{1}", "-Deleted list=a\u{1}", "+list=a,b\u{1}"]);
    let lines = pair.log.iter().filter(|event| matches!(event, Event::ViewNotWritten { .. }));
    let lines: Vec<_> = lines.map(ToString::to_string).collect();
    assert_eq!(lines.len(), 1);
    assert!(lines[0].starts_with(r#"view "lists": a group has no record"#), "{lines:?}");
}
