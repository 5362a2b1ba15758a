//! Bookmark subscriptions that end (docs/replay.md; reference: queues-and-transaction-log 2.4).

use quire_command::*;
use quire_journal::{PublisherId, Timestamp};

use super::pair::*;

fn bookmark(sequence: u64) -> String {
    format!("{}|{sequence}|", PublisherId::of_client_name("a"))
}

/// A moment as a time bookmark; messages of these tests are taken at whole milliseconds.
fn at_ms(ms: u64) -> String {
    Timestamp(WALL_START_NS + ms * 1_000_000).to_string()
}

/// Publishes the message `sequence` at this time, in milliseconds.
fn publish_at_ms(pair: &mut Pair, sequence: u64) {
    pair.now_ns = sequence * 1_000_000;
    pair.publish(1, sequence, "orders", &sequence.to_string());
    pair.turn();
}

/// Messages 1 to `count`, one in each millisecond.
fn log_of(count: u64) -> Pair {
    let mut pair = Pair::new();
    pair.client(1, "a");
    (1..=count).for_each(|sequence| publish_at_ms(&mut pair, sequence));
    pair.client(2, "reader");
    pair
}

fn ended(subscription: u32) -> Said {
    Said::Ended { subscription, code: Code::Ok }
}

fn data(said: &[Said]) -> Vec<&str> {
    let messages = said.iter().filter_map(|said| match said {
        Said::Message { data, .. } => Some(data.as_str()),
        _ => None,
    });
    messages.collect()
}

#[test]
fn a_range_gives_what_lies_between_its_ends_and_then_ends() {
    let (b2, b4) = (bookmark(2), bookmark(4));
    let (t2, t4) = (at_ms(2), at_ms(4));
    let unknown = "17|1|";
    let cases = [
        (format!("[{b2}:{b4}]"), vec!["2", "3", "4"]),
        (format!("({b2}:{b4})"), vec!["3"]),
        (format!("[{b2}:{b4})"), vec!["2", "3"]),
        (format!("({b2}:{b4}]"), vec!["3", "4"]),
        (format!("[{t2}:{t4}]"), vec!["2", "3", "4"]),
        (format!("({t2}:{t4})"), vec!["3"]),
        (format!("[{b4},{b2}:{t4}]"), vec!["2", "3", "4"]),
        (format!("[:{b2}]"), vec!["1", "2"]),
        (format!("[{unknown}:{b2}]"), vec!["1", "2"]),
        (format!("({b4}:0|1|]"), vec!["5", "6"]),
        ("(0:0|1|]".to_owned(), vec!["1", "2", "3", "4", "5", "6"]),
        // Nothing between them.
        (format!("({b2}:{b2}]"), vec![]),
        ("[0|1|:0|1|]".to_owned(), vec![]),
    ];
    for (range, want) in cases {
        let mut pair = log_of(6);
        pair.subscribe(2, &replay(7, "orders", &range));
        pair.turn();
        let said = pair.take(2);
        assert_eq!(data(&said), want, "{range}");
        let last = said.len() - 2;
        assert_eq!(said[last..], [ack(AckKind::Completed, 7, 7), ended(7)], "{range}");
        assert_eq!(pair.broker.stats().subscription_count, 0, "{range}");
        assert_eq!(pair.broker.stats().replay_count, 0, "{range}");
    }
}

#[test]
fn a_range_that_has_ended_leaves_its_number_free() {
    let mut pair = log_of(2);
    for _ in 0..2 {
        pair.subscribe(2, &replay(7, "orders", "[0:0|1|]"));
        pair.turn();
        assert_eq!(data(&pair.take(2)), ["1", "2"]);
    }
}

#[test]
fn an_end_that_has_not_come_is_waited_for() {
    let (b5, t5) = (bookmark(5), at_ms(5));
    for (range, want) in [
        (format!("[0:{b5}]"), vec!["1", "2", "3", "4", "5"]),
        (format!("[0:{b5})"), vec!["1", "2", "3", "4"]),
        (format!("[0:{t5}]"), vec!["1", "2", "3", "4", "5"]),
        (format!("[0:{t5})"), vec!["1", "2", "3", "4"]),
        (format!("[0|1|:{b5})"), vec!["4"]),
    ] {
        let mut pair = log_of(3);
        pair.subscribe(2, &replay(7, "orders", &range));
        pair.turn();
        publish_at_ms(&mut pair, 4);
        let said = pair.take(2);
        assert!(
            said.contains(&ack(AckKind::Completed, 7, 7)) && !said.contains(&ended(7)),
            "{range}: {said:?}"
        );
        publish_at_ms(&mut pair, 5);
        publish_at_ms(&mut pair, 6);
        let rest = pair.take(2);
        assert_eq!([data(&said), data(&rest)].concat(), want, "{range}");
        assert_eq!(rest.last(), Some(&ended(7)), "{range}");
    }
}

#[test]
fn an_instant_ends_a_range_without_another_message_once_it_has_passed() {
    let mut pair = log_of(3);
    pair.subscribe(2, &replay(7, "orders", &format!("[0:{}]", at_ms(5))));
    pair.turn();
    assert_eq!(data(&pair.take(2)), ["1", "2", "3"]);
    pair.pass(std::time::Duration::from_millis(2));
    assert_eq!(pair.take(2), []);
    pair.pass(std::time::Duration::from_nanos(1));
    assert_eq!(pair.take(2), [ended(7)]);
}

#[test]
fn an_instant_waits_for_what_was_taken_before_it_to_be_persisted() {
    let mut pair = log_of(1);
    pair.subscribe(2, &replay(7, "orders", &format!("[0:{}]", at_ms(2))));
    pair.turn();
    pair.take(2);
    pair.writes_at_once = false;
    publish_at_ms(&mut pair, 2);
    pair.pass(std::time::Duration::from_millis(1));
    pair.turn();
    assert_eq!(pair.take(2), []);
    pair.write();
    pair.turn();
    let said = pair.take(2);
    assert_eq!((data(&said), said.last()), (vec!["2"], Some(&ended(7))));
}

#[test]
fn an_end_that_is_recorded_while_it_is_looked_for_is_not_missed() {
    let mut pair = log_of(3);
    pair.reads_at_once = false;
    let range = format!("[0:{}]", bookmark(4));
    pair.subscribe(2, &replay(7, "orders", &range));
    pair.turn();
    // The search is run before the message is recorded, and answered after.
    let reads: Vec<_> = std::mem::take(&mut pair.reads).into_iter().map(|read| read.run()).collect();
    publish_at_ms(&mut pair, 4);
    publish_at_ms(&mut pair, 5);
    let now = pair.now();
    for read in reads {
        pair.broker.handle(now, quire_broker::Input::ReadDone(read));
    }
    pair.reads_at_once = true;
    pair.turn();
    let said = pair.take(2);
    assert_eq!((data(&said), said.last()), (vec!["1", "2", "3", "4"], Some(&ended(7))));
}

#[test]
fn ends_hold_for_paused_and_slow_subscriptions_too() {
    let mut pair = log_of(3);
    let range = format!("[0:{}]", bookmark(4));
    let paused = Subscribe { options: SubscribeOptions::PAUSED, ..replay(7, "orders", &range) };
    pair.subscribe(2, &paused);
    pair.client(3, "slow");
    pair.subscribe(3, &replay(8, "orders", &range));
    pair.turn();
    pair.set_writable(3, false);
    (4..=6).for_each(|sequence| publish_at_ms(&mut pair, sequence));
    pair.set_writable(3, true);
    let bytes = 7u32.to_le_bytes();
    let subscriptions = SubscriptionNumbers::from_bytes(&bytes).unwrap();
    pair.send(2, &Command::Resume { command: 9, acks: Acks::default(), subscriptions });
    pair.turn();
    for (client, number) in [(2, 7), (3, 8)] {
        let said = pair.take(client);
        assert_eq!((data(&said), said.last()), (vec!["1", "2", "3", "4"], Some(&ended(number))));
    }
}

#[test]
fn a_replaced_range_keeps_its_end_unless_it_gets_another_start() {
    let mut pair = log_of(3);
    let range = format!("[0:{}]", bookmark(5));
    let replace =
        |bookmark| Subscribe { options: SubscribeOptions::REPLACE, bookmark, ..subscribe(7, "orders") };
    pair.subscribe(2, &replay(7, "orders", &range));
    pair.turn();
    pair.subscribe(2, &replace(None));
    (4..=6).for_each(|sequence| publish_at_ms(&mut pair, sequence));
    let said = pair.take(2);
    assert_eq!((data(&said), said.last()), (vec!["1", "2", "3", "4", "5"], Some(&ended(7))));
    let range = format!("[0:{}]", bookmark(8));
    pair.subscribe(2, &replay(7, "orders", &range));
    pair.turn();
    pair.subscribe(2, &replace(Some("0|1|")));
    (7..=9).for_each(|sequence| publish_at_ms(&mut pair, sequence));
    let said = pair.take(2);
    assert_eq!(data(&said), ["1", "2", "3", "4", "5", "6", "7", "8", "9"]);
    assert!(!said.contains(&ended(7)));
}

#[test]
fn what_is_no_range_is_refused() {
    let mut pair = log_of(5);
    let backwards =
        [format!("[{}:{}]", bookmark(4), bookmark(2)), format!("[{}:0]", at_ms(3)), "[0".to_owned()];
    for range in backwards {
        pair.subscribe(2, &replay(7, "orders", &range));
        pair.turn();
        assert_eq!(pair.take(2), [refused(Code::BadBookmark, 7, 7)], "{range}");
    }
    let range = format!("[0:{}]", bookmark(9));
    let live = Subscribe { options: SubscribeOptions::LIVE, ..replay(7, "orders", &range) };
    pair.subscribe(2, &live);
    pair.turn();
    assert_eq!(pair.take(2), [refused(Code::BadOption, 7, 7)]);
}

#[test]
fn an_end_where_a_shared_replay_waits_ends_its_subscription_at_once() {
    let mut pair = log_of(3);
    let range = format!("[0:{})", bookmark(4));
    for (number, bookmark) in [(7, range.as_str()), (8, "0")] {
        let options = SubscribeOptions::PAUSED;
        pair.subscribe(2, &Subscribe { options, ..replay(number, "orders", bookmark) });
    }
    let bytes: Vec<u8> = [7, 8].into_iter().flat_map(u32::to_le_bytes).collect();
    let subscriptions = SubscriptionNumbers::from_bytes(&bytes).unwrap();
    pair.turn();
    pair.send(2, &Command::Resume { command: 9, acks: Acks::default(), subscriptions });
    pair.turn();
    assert_eq!(pair.take_data(2).len(), 6);
    publish_at_ms(&mut pair, 4);
    let said = pair.take(2);
    assert_eq!(said[0], ended(7));
    assert_eq!(data(&said), ["4"]);
}
