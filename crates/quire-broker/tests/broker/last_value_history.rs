//! States of earlier instants (docs/last-values.md section 3).

use std::time::Duration;

use quire_broker::{Broker, BrokerConfig, HistorySettings, SowTopicSettings, TableExpiration};
use quire_command::*;
use quire_types::Timestamp;

use crate::last_value_pair::*;
use crate::pair::*;

const S: u64 = 1_000_000_000;

fn history(window_s: u64, granularity_s: u64) -> Option<HistorySettings> {
    let settings =
        HistorySettings { window_ns: window_s * S, granularity_ns: granularity_s * S, max_size: 1 << 30 };
    Some(settings)
}

fn kept(window_s: u64, granularity_s: u64) -> SowTopicSettings {
    SowTopicSettings { history: history(window_s, granularity_s), ..sow_topic("orders") }
}

fn put(pair: &mut Pair, sequence: u64, id: u64, n: u64) {
    pair.publish(1, sequence, "orders", &format!(r#"{{"id":{id},"n":{n}}}"#));
    pair.turn();
}

fn text(at_ns: u64) -> String {
    Timestamp(WALL_START_NS + at_ns).to_string()
}

/// The records of the state after a time.
fn at(pair: &mut Pair, at_ns: u64) -> Vec<String> {
    pair.records(2, Query { bookmark: Some(&text(at_ns)), ..query(5, "orders") })
}

fn refusal(pair: &mut Pair, bookmark: &str) -> Code {
    pair.take(2);
    pair.send(2, &Command::Query(Query { bookmark: Some(bookmark), ..query(5, "orders") }));
    pair.turn();
    match &pair.take(2)[..] {
        [Said::Ack { kind: AckKind::Processed, code, .. }] => *code,
        other => panic!("{other:?}"),
    }
}

/// The bookmarks of all messages of the topic, as texts.
fn bookmarks(pair: &mut Pair) -> Vec<String> {
    bookmarks_of(pair, "orders")
}

fn bookmarks_of(pair: &mut Pair, topic: &str) -> Vec<String> {
    pair.take(2);
    pair.subscribe(2, &replay(9, topic, "0"));
    pair.turn();
    let bookmark = |said| {
        let bookmark = match said {
            Said::Row(row) => row.bookmark,
            Said::Message { bookmark, .. } => bookmark,
            _ => None,
        };
        bookmark.map(|(publisher, sequence)| format!("{publisher}|{sequence}|"))
    };
    let found = pair.take(2).into_iter().filter_map(bookmark).collect();
    let unsubscribe = Unsubscribe { command: 4, acks: Acks::PROCESSED, subscription: 9, begun: None };
    pair.send(2, &Command::Unsubscribe(unsubscribe));
    pair.turn();
    pair.take(2);
    found
}

/// Two records that change every ten seconds, and a delete. Gives the beginning.
fn changing(pair: &mut Pair) -> u64 {
    pair.pass(Duration::from_secs(1000));
    let begin_ns = pair.now_ns;
    for (sequence, (id, n)) in [(1, 1), (2, 2), (1, 3)].into_iter().enumerate() {
        put(pair, sequence as u64 + 1, id, n);
        pair.pass(Duration::from_secs(10));
    }
    pair.delete(1, SowDelete { filter: Some("/id = 2"), ..delete(9, 4, "orders") });
    pair.pass(Duration::from_secs(10));
    begin_ns
}

/// The states of [`changing`] after each change.
const STATES: [&[&str]; 4] = [
    &[r#"{"id":1,"n":1}"#],
    &[r#"{"id":1,"n":1}"#, r#"{"id":2,"n":2}"#],
    &[r#"{"id":1,"n":3}"#, r#"{"id":2,"n":2}"#],
    &[r#"{"id":1,"n":3}"#],
];

fn restart(pair: Pair, config: BrokerConfig, stop: impl FnOnce(Broker)) -> Pair {
    let Pair { broker, disk, now_ns, .. } = pair;
    stop(broker);
    let mut pair = Pair::on(disk, config);
    pair.now_ns = now_ns;
    pair.client(1, "publisher");
    pair.client(2, "reader");
    pair
}

#[test]
fn a_query_with_a_time_gives_the_state_after_it() {
    let mut pair = with_topics([kept(3600, 0)]);
    let begin_ns = changing(&mut pair);
    for (index, state) in STATES.iter().enumerate() {
        let index = index as u64;
        assert_eq!(at(&mut pair, begin_ns + 10 * index * S), *state);
        assert_eq!(at(&mut pair, begin_ns + (10 * index + 9) * S), *state);
    }
    assert_eq!(at(&mut pair, begin_ns - S), Vec::<String>::new());
    assert_eq!(at(&mut pair, begin_ns + 99_999 * S), STATES[3]);
}

#[test]
fn a_query_with_a_bookmark_gives_the_state_after_its_message() {
    let mut pair = with_topics([kept(3600, 0)]);
    // All at one time.
    for (sequence, id, n) in [(1, 1, 1), (2, 2, 2), (3, 1, 3)] {
        put(&mut pair, sequence, id, n);
    }
    for (bookmark, state) in bookmarks(&mut pair).iter().zip(STATES) {
        assert_eq!(pair.records(2, Query { bookmark: Some(bookmark), ..query(5, "orders") }), state);
    }
}

#[test]
fn filter_order_keys_and_limits_hold_for_earlier_states() {
    let mut pair = with_topics([SowTopicSettings { key: Vec::new(), ..kept(3600, 0) }]);
    for (sequence, key) in [(1, b"a"), (2, b"b"), (3, b"c"), (4, b"d")] {
        let data = format!(r#"{{"n":{sequence}}}"#);
        pair.send(1, &Command::Publish(Publish { key, ..publish(sequence, "orders", &data) }));
    }
    pair.turn();
    let then = text(pair.now_ns);
    pair.pass(Duration::from_secs(1));
    for (sequence, key) in [(5, b"b"), (6, b"d")] {
        pair.send(1, &Command::Publish(Publish { key, ..publish(sequence, "orders", r#"{"n":0}"#) }));
    }
    pair.pass(Duration::from_secs(1));
    let past = || Query { bookmark: Some(&then), ..query(5, "orders") };
    let page = Query { order_by: Some("/n DESC"), skip_n: Some(1), top_n: Some(2), ..past() };
    assert_eq!(pair.ordered(2, page), [r#"{"n":3}"#, r#"{"n":2}"#]);
    assert_eq!(pair.clients[&2].total, 4);
    let filtered = Query { filter: Some("/n > 3"), select: Some("-/n,+/x"), ..past() };
    assert_eq!(pair.records(2, filtered), ["{}"]);
    let keys = Keys::from_bytes(b"\x01b\x01x");
    assert_eq!(pair.records(2, Query { keys, ..past() }), [r#"{"n":2}"#]);
}

#[test]
fn an_expired_record_is_in_the_states_of_its_lifetime() {
    let topic = SowTopicSettings { expiration: TableExpiration::AfterNs(5 * S), ..kept(3600, 0) };
    let mut pair = with_topics([topic]);
    pair.pass(Duration::from_secs(10));
    let begin_ns = pair.now_ns;
    put(&mut pair, 1, 1, 1);
    pair.pass(Duration::from_secs(20));
    assert_eq!(at(&mut pair, begin_ns + 4 * S), [r#"{"id":1,"n":1}"#]);
    assert_eq!(at(&mut pair, begin_ns + 5 * S), Vec::<String>::new());
}

#[test]
fn with_a_granularity_the_state_is_that_of_the_last_period() {
    let mut pair = with_topics([kept(3600, 60)]);
    pair.pass(Duration::from_secs(600));
    let wall_ns = WALL_START_NS + pair.now_ns;
    let minute_ns = wall_ns / (60 * S) * (60 * S) + 60 * S - WALL_START_NS;
    pair.pass(Duration::from_nanos(minute_ns + S - pair.now_ns));
    for sequence in 1..=4 {
        put(&mut pair, sequence, 1, sequence);
        pair.pass(Duration::from_secs(30));
    }
    let n = |n: u64| vec![format!(r#"{{"id":1,"n":{n}}}"#)];
    assert_eq!(at(&mut pair, minute_ns + 59 * S), Vec::<String>::new());
    assert_eq!(at(&mut pair, minute_ns + 60 * S), n(2));
    assert_eq!(at(&mut pair, minute_ns + 119 * S), n(2));
    // The record of the third message was replaced within its period. Those of the others are held.
    let of_bookmarks = |pair: &mut Pair| {
        let found = bookmarks(pair);
        let state =
            |bookmark: &String| pair.records(2, Query { bookmark: Some(bookmark), ..query(5, "orders") });
        found.iter().map(state).collect::<Vec<_>>()
    };
    assert_eq!(of_bookmarks(&mut pair), [vec![], n(2), n(2), n(4)]);
    let now_ns = pair.now_ns;
    assert_eq!(at(&mut pair, now_ns), n(4));
    // A snapshot does not say which records of its period, and before, were not kept.
    pair = restart(pair, sow_config([kept(3600, 60)]), |broker| broker.close().unwrap());
    assert_eq!(of_bookmarks(&mut pair), [vec![], vec![], n(2), n(2)]);
}

#[test]
fn history_survives_a_restart_and_a_crash() {
    let config = || sow_config([kept(3600, 0)]);
    let mut pair = with_topics([kept(3600, 0)]);
    let begin_ns = changing(&mut pair);
    let check = |pair: &mut Pair| {
        for (index, state) in STATES.iter().enumerate() {
            assert_eq!(at(pair, begin_ns + (10 * index as u64 + 5) * S), *state, "{index}");
        }
    };
    pair = restart(pair, config(), |broker| broker.close().unwrap());
    check(&mut pair);
    pair = restart(pair, config(), |broker| broker.abandon());
    check(&mut pair);
    put(&mut pair, 5, 1, 9);
    pair.pass(Duration::from_secs(1));
    pair = restart(pair, config(), |broker| broker.abandon());
    check(&mut pair);
    let now_ns = pair.now_ns;
    assert_eq!(at(&mut pair, now_ns - 1), [r#"{"id":1,"n":9}"#]);
}

#[test]
fn a_finer_granularity_begins_with_the_snapshot_and_a_multiple_keeps_the_history() {
    let mut pair = with_topics([kept(3600, 5)]);
    let begin_ns = changing(&mut pair);
    pair = restart(pair, sow_config([kept(3600, 10)]), |broker| broker.close().unwrap());
    assert_eq!(at(&mut pair, begin_ns + 35 * S), STATES[2]);
    pair = restart(pair, sow_config([kept(3600, 4)]), |broker| broker.close().unwrap());
    assert_eq!(refusal(&mut pair, &text(begin_ns + 25 * S)), Code::BadBookmark);
    assert_eq!(at(&mut pair, begin_ns + 39 * S), STATES[3]);
}

#[test]
fn history_that_is_switched_on_begins_with_the_snapshot() {
    let mut pair = with_topics([sow_topic("orders")]);
    let begin_ns = changing(&mut pair);
    put(&mut pair, 5, 3, 5);
    pair.pass(Duration::from_secs(5));
    let snapshot_ns = pair.now_ns - 5 * S;
    for settings in [kept(3600, 10), kept(3600, 0)] {
        pair = restart(pair, sow_config([settings]), |broker| broker.close().unwrap());
        assert_eq!(refusal(&mut pair, &text(begin_ns + 25 * S)), Code::BadBookmark);
    }
    assert_eq!(at(&mut pair, snapshot_ns), [r#"{"id":1,"n":3}"#, r#"{"id":3,"n":5}"#]);
    // A coarser one has all its states.
    pair = restart(pair, sow_config([kept(3600, 1)]), |broker| broker.close().unwrap());
    assert_eq!(at(&mut pair, snapshot_ns + S), [r#"{"id":1,"n":3}"#, r#"{"id":3,"n":5}"#]);
}

#[test]
fn a_bookmark_outside_the_window_is_refused() {
    let mut pair = with_topics([kept(30, 0)]);
    let begin_ns = changing(&mut pair);
    assert_eq!(refusal(&mut pair, &text(begin_ns)), Code::BadBookmark);
    assert_eq!(refusal(&mut pair, "0"), Code::BadBookmark);
    assert_eq!(at(&mut pair, begin_ns + 15 * S), STATES[1]);
    let first = bookmarks(&mut pair).remove(0);
    assert_eq!(refusal(&mut pair, &first), Code::BadBookmark);
    for wrong in ["yesterday", "1|1|,1|2|", "[0:0|1|]", ""] {
        assert_eq!(refusal(&mut pair, wrong), Code::BadBookmark, "{wrong:?}");
    }
    assert_eq!(refusal(&mut pair, "77|1|"), Code::BookmarkNotFound);
    assert_eq!(pair.records(2, Query { bookmark: Some("0|1|"), ..query(5, "orders") }), STATES[3]);
}

#[test]
fn a_topic_without_history_ignores_the_bookmark() {
    let mut pair = with_topics([sow_topic("orders")]);
    let begin_ns = changing(&mut pair);
    assert_eq!(at(&mut pair, begin_ns), STATES[3]);
    assert_eq!(pair.records(2, Query { bookmark: Some("77|1|"), ..query(5, "orders") }), STATES[3]);
}

#[test]
fn a_transient_topic_has_history_until_the_server_stops() {
    let topic = || SowTopicSettings { history: history(3600, 0), ..transient("scratch") };
    let mut pair = with_topics([topic()]);
    pair.publish(1, 1, "scratch", r#"{"id":1,"n":1}"#);
    let then = text(pair.now_ns);
    pair.pass(Duration::from_secs(1));
    pair.publish(1, 2, "scratch", r#"{"id":1,"n":2}"#);
    pair.pass(Duration::from_secs(1));
    // The log does not have these messages. A bookmark of another topic names its time.
    pair.publish(1, 3, "other", "{}");
    pair.turn();
    let other = bookmarks_of(&mut pair, "other").remove(0);
    pair.pass(Duration::from_secs(1));
    pair.publish(1, 4, "scratch", r#"{"id":1,"n":4}"#);
    pair.pass(Duration::from_secs(1));
    let after_other = Query { bookmark: Some(&other), ..query(5, "scratch") };
    assert_eq!(pair.records(2, after_other), [r#"{"id":1,"n":2}"#]);
    let past = || Query { bookmark: Some(&then), ..query(5, "scratch") };
    assert_eq!(pair.records(2, past()), [r#"{"id":1,"n":1}"#]);
    pair = restart(pair, sow_config([topic()]), |broker| broker.close().unwrap());
    assert_eq!(pair.records(2, past()), Vec::<String>::new());
}

#[test]
fn the_bookmark_of_a_message_that_is_not_persisted_yet_is_waited_for() {
    let mut pair = with_topics([kept(3600, 0)]);
    put(&mut pair, 1, 1, 1);
    let first = bookmarks(&mut pair).remove(0);
    let second = first.replace("|1|", "|2|");
    pair.writes_at_once = false;
    put(&mut pair, 2, 1, 2);
    pair.send(2, &Command::Query(Query { bookmark: Some(&second), ..query(5, "orders") }));
    pair.send(2, &Command::Query(query(6, "orders")));
    pair.turn();
    assert_eq!(pair.take_rows(2), Vec::<String>::new());
    pair.writes_at_once = true;
    put(&mut pair, 3, 1, 3);
    // The later query also waited.
    assert_eq!(pair.take_rows(2), [r#"={"id":1,"n":2}"#, r#"={"id":1,"n":3}"#]);
}

/// The rows of the reader: the kind, and the number of the message.
fn rows(pair: &mut Pair) -> Vec<String> {
    let rows = pair.take_rows(2).into_iter();
    rows.map(|row| format!("{}{}", &row[..1], row.rsplit_once(':').unwrap().1.trim_end_matches('}')))
        .collect()
}

fn from(bookmark: &str) -> Subscribe<'_> {
    Subscribe { options: SubscribeOptions::SOW, bookmark: Some(bookmark), ..sow(3, "orders") }
}

#[test]
fn a_subscription_with_a_bookmark_gets_the_state_and_then_every_later_message() {
    let mut pair = with_topics([kept(3600, 0)]);
    let begin_ns = changing(&mut pair);
    put(&mut pair, 5, 3, 5);
    let second = bookmarks(&mut pair).remove(1);
    for bookmark in [second, text(begin_ns + 10 * S), text(begin_ns + 15 * S)] {
        pair.subscribe(2, &from(&bookmark));
        pair.turn();
        let said = pair.take(2);
        assert_eq!(said[0], ack(AckKind::Processed, 3, 3), "{bookmark}");
        let completed = said.iter().position(|said| *said == ack(AckKind::Completed, 3, 3)).unwrap();
        let short = |said: &[Said]| said.iter().cloned().filter_map(short).collect::<Vec<_>>();
        let mut records = short(&said[..completed]);
        records.sort();
        assert_eq!(records, [r#"={"id":1,"n":1}"#, r#"={"id":2,"n":2}"#]);
        assert_eq!(short(&said[completed..]), [r#"+{"id":1,"n":3}"#, r#"+{"id":3,"n":5}"#]);
        let unsubscribe = Unsubscribe { command: 4, acks: Acks::PROCESSED, subscription: 3, begun: None };
        pair.send(2, &Command::Unsubscribe(unsubscribe));
        pair.turn();
        pair.take(2);
    }
    pair.subscribe(2, &from("0|1|"));
    put(&mut pair, 6, 3, 6);
    let mut got = rows(&mut pair);
    got.sort();
    assert_eq!(got, ["+6", "=3", "=5"]);
}

#[test]
fn a_message_is_in_the_state_or_after_it_while_messages_are_published() {
    let mut pair = with_topics([kept(3600, 0)]);
    let mut at_ns = 0;
    pair.broker.set_stopwatch(Box::new(move || {
        at_ns += 2_000_000;
        quire_types::time::Instant(at_ns)
    }));
    let mut sequence = 0;
    let mut publish_some = |pair: &mut Pair| {
        for _ in 0..700 {
            sequence += 1;
            pair.publish(1, sequence, "orders", &format!(r#"{{"id":{},"n":{sequence}}}"#, sequence % 900));
        }
        pair.one_turn();
        pair.pass(Duration::from_millis(1));
        sequence
    };
    publish_some(&mut pair);
    let until = publish_some(&mut pair);
    let then = text(pair.now_ns);
    pair.pass(Duration::from_millis(1));
    publish_some(&mut pair);
    pair.subscribe(2, &from(&then));
    publish_some(&mut pair);
    let last = publish_some(&mut pair);
    pair.turn();
    pair.turn();
    let got = rows(&mut pair);
    let (records, messages) = got.split_at(900);
    let mut records: Vec<u64> =
        records.iter().map(|row| row.strip_prefix('=').unwrap().parse().unwrap()).collect();
    records.sort_unstable();
    assert_eq!(records, Vec::from_iter(until - 899..=until));
    let messages: Vec<u64> =
        messages.iter().map(|row| row.strip_prefix('+').unwrap().parse().unwrap()).collect();
    assert_eq!(messages, Vec::from_iter(until + 1..=last));
}

#[test]
fn with_a_granularity_the_messages_begin_after_the_state() {
    let mut pair = with_topics([kept(3600, 60)]);
    let wall_ns = WALL_START_NS + pair.now_ns;
    let minute_ns = wall_ns / (60 * S) * (60 * S) + 600 * S - WALL_START_NS;
    pair.pass(Duration::from_nanos(minute_ns + S - pair.now_ns));
    for sequence in 1..=5 {
        put(&mut pair, sequence, 1, sequence);
        pair.pass(Duration::from_secs(25));
    }
    // The messages are at the seconds 1, 26, 51, 76 and 101.
    pair.subscribe(2, &from(&text(minute_ns + 110 * S)));
    pair.turn();
    assert_eq!(rows(&mut pair), ["=3", "+4", "+5"]);
}

#[test]
fn a_paused_subscription_gets_its_state_and_no_message() {
    let mut pair = with_topics([kept(3600, 0)]);
    changing(&mut pair);
    let first = bookmarks(&mut pair).remove(0);
    let options = SubscribeOptions::SOW.and(SubscribeOptions::PAUSED);
    pair.subscribe(2, &Subscribe { options, ..from(&first) });
    // It is resumed before its records were sent, and then paused again.
    let numbers = SubscriptionNumbers::from_bytes(&[3, 0, 0, 0]).unwrap();
    let acks = Acks::PROCESSED;
    pair.send(2, &Command::Resume { command: 5, acks, subscriptions: numbers });
    pair.send(2, &Command::Pause { command: 6, acks, subscriptions: numbers });
    pair.turn();
    assert_eq!(rows(&mut pair), ["=1"]);
    pair.send(2, &Command::Resume { command: 7, acks, subscriptions: numbers });
    pair.turn();
    assert_eq!(rows(&mut pair), ["+2", "+3"]);
}

#[test]
fn the_messages_after_a_state_are_conflated_and_selected() {
    let mut pair = with_topics([kept(3600, 0)]);
    let begin_ns = changing(&mut pair);
    let then = text(begin_ns - S);
    let conflation_ns = Some(S);
    pair.subscribe(
        2,
        &Subscribe { conflation_ns, select: Some("-/id"), filter: Some("/n != 2"), ..from(&then) },
    );
    pair.turn();
    assert_eq!(pair.take_rows(2), Vec::<String>::new());
    pair.pass(Duration::from_millis(1100));
    assert_eq!(pair.take_rows(2), [r#"+{"n":3}"#]);
}

#[test]
fn a_subscription_to_an_earlier_state_that_cannot_be_is_refused() {
    let mut pair = with_topics([kept(30, 0), sow_topic("other")]);
    let begin_ns = changing(&mut pair);
    let early = text(begin_ns);
    let oof = SubscribeOptions::SOW.and(SubscribeOptions::OOF);
    for (subscribe, code) in [
        (from(&early), Code::BadBookmark),
        (from("0"), Code::BadBookmark),
        (from("[0|1|:]"), Code::BadBookmark),
        (from("77|1|"), Code::BookmarkNotFound),
        (Subscribe { topic: "other", ..from("0|1|") }, Code::BadOption),
        (Subscribe { topic: "^", ..from("0|1|") }, Code::BadOption),
        (Subscribe { options: oof, ..from("0|1|") }, Code::BadOption),
        (Subscribe { skip_n: Some(0), top_n: Some(1), ..from("0|1|") }, Code::BadOption),
    ] {
        pair.subscribe(2, &subscribe);
        pair.turn();
        assert_eq!(pair.take(2), [refused(code, 3, 3)], "{subscribe:?}");
    }
}

#[test]
fn a_subscription_from_an_earlier_state_is_replaced_without_records() {
    let mut pair = with_topics([kept(3600, 0)]);
    put(&mut pair, 1, 1, 1);
    put(&mut pair, 2, 2, 2);
    let replace = |options: SubscribeOptions, bookmark| Subscribe {
        options: options.and(SubscribeOptions::REPLACE),
        bookmark,
        filter: Some("/id = 2"),
        ..subscribe(3, "orders")
    };
    let answer = |pair: &mut Pair, subscribe: &Subscribe<'_>| {
        pair.subscribe(2, subscribe);
        pair.turn();
        pair.take(2).remove(0)
    };
    let [with, without] = [SubscribeOptions::SOW, SubscribeOptions::default()];
    pair.subscribe(2, &sow(3, "orders"));
    pair.turn();
    pair.take(2);
    for options in [with, without] {
        let refusal = refused(Code::BadOption, 3, 3);
        assert_eq!(answer(&mut pair, &replace(options, Some("0|1|"))), refusal);
    }
    let unsubscribe = Unsubscribe { command: 4, acks: Acks::PROCESSED, subscription: 3, begun: None };
    pair.send(2, &Command::Unsubscribe(unsubscribe));
    pair.take(2);
    // Its records are not sent yet.
    pair.subscribe(2, &from("0|1|"));
    pair.subscribe(2, &replace(without, None));
    pair.turn();
    let said = pair.take(2);
    assert!(said.contains(&refused(Code::LimitExceeded, 3, 3)), "{said:?}");
    assert_eq!(said.into_iter().filter_map(short).count(), 2);
    for bookmark in [None, Some("0|1|")] {
        assert_eq!(answer(&mut pair, &replace(with, bookmark)), refused(Code::BadOption, 3, 3));
    }
    put(&mut pair, 3, 1, 3);
    assert_eq!(rows(&mut pair), ["+3"], "a refused replacement changes nothing");
    assert_eq!(answer(&mut pair, &replace(without, None)), ack(AckKind::Processed, 3, 3));
    put(&mut pair, 4, 1, 4);
    put(&mut pair, 5, 2, 5);
    assert_eq!(rows(&mut pair), ["+5"]);
}
