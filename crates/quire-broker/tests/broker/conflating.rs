//! Conflation: each rule of docs/replay.md on a clock that the test moves.

use std::time::Duration;

use quire_command::*;

use super::pair::*;
use super::queue_pair::{queue, with_queues};

const MS: u64 = 1_000_000;

/// The messages of a client: milliseconds since the beginning, sequence of the bookmark, data.
type Got = (u64, u64, String);

/// A publisher, and a reader who conflates by `/s` over 100 ms, on a new log.
fn pair_with(messages: &[&str]) -> Pair {
    let mut pair = Pair::new();
    pair.client(1, "a");
    pair.client(2, "reader");
    for (sequence, data) in (1..).zip(messages) {
        pair.publish(1, sequence, "ticks", data);
    }
    pair.turn();
    pair
}

fn tick(symbol: &str, price: u32) -> String {
    format!(r#"{{"s":"{symbol}","p":{price}}}"#)
}

fn conflated<'a>(subscribe: Subscribe<'a>) -> Subscribe<'a> {
    Subscribe { conflation_ns: Some(100 * MS), conflation_key: Some("/s"), ..subscribe }
}

/// Publishes a tick now.
fn publish_tick(pair: &mut Pair, sequence: u64, symbol: &str, price: u32) {
    pair.publish(1, sequence, "ticks", &tick(symbol, price));
    pair.turn();
}

fn pass_ms(pair: &mut Pair, ms: u64) {
    pair.turn();
    pair.pass(Duration::from_millis(ms));
}

fn got(pair: &mut Pair) -> Vec<Got> {
    let said_at = pair.take_said(2);
    let message = |(at_ns, said)| match said {
        Said::Message { bookmark, data, .. } => {
            Some((at_ns / MS, bookmark.map_or(0, |(_, sequence)| sequence), data))
        }
        _ => None,
    };
    said_at.into_iter().filter_map(message).collect()
}

#[test]
fn rule_1_the_newest_of_a_key_comes_when_its_interval_ends() {
    for subscribe in [conflated(subscribe(7, "ticks")), conflated(replay(7, "ticks", "0"))] {
        let mut pair = pair_with(&[]);
        pair.subscribe(2, &subscribe);
        publish_tick(&mut pair, 1, "IBM", 1);
        pass_ms(&mut pair, 30);
        publish_tick(&mut pair, 2, "HPQ", 2);
        publish_tick(&mut pair, 3, "IBM", 3);
        pass_ms(&mut pair, 60);
        publish_tick(&mut pair, 4, "IBM", 4);
        pass_ms(&mut pair, 60);
        // The next interval begins with the next message, not when the last one ended.
        publish_tick(&mut pair, 5, "IBM", 5);
        pass_ms(&mut pair, 200);
        let want = [(100, 1, tick("IBM", 4)), (130, 2, tick("HPQ", 2)), (250, 5, tick("IBM", 5))];
        assert_eq!(got(&mut pair), want);
    }
}

#[test]
fn rule_2_a_replay_is_conflated_in_the_time_in_which_it_is_read() {
    let mut pair = pair_with(&[]);
    // Taken over ten minutes.
    for sequence in 1..=600 {
        publish_tick(&mut pair, sequence, ["IBM", "HPQ"][sequence as usize % 2], sequence as u32);
        pass_ms(&mut pair, 1000);
    }
    pair.subscribe(2, &Subscribe { acks: Acks::default(), ..conflated(replay(7, "ticks", "0")) });
    pass_ms(&mut pair, 1000);
    let want = [(600_100, 1, tick("HPQ", 599)), (600_100, 2, tick("IBM", 600))];
    assert_eq!(got(&mut pair), want);
}

#[test]
fn rules_3_and_4_who_resumes_behind_any_bookmark_misses_no_last_value() {
    let mut pair = pair_with(&[]);
    pair.subscribe(2, &conflated(replay(7, "ticks", "0")));
    let symbols = ["A", "B", "C", "D"];
    for sequence in 1..=200 {
        // Unevenly, so that the intervals of the keys overlap in every way.
        let symbol = symbols[(sequence * sequence / 7) as usize % 4];
        publish_tick(&mut pair, sequence, symbol, sequence as u32);
        pass_ms(&mut pair, sequence % 23);
    }
    pass_ms(&mut pair, 200);
    let delivered = got(&mut pair);
    let bookmarks: Vec<u64> = delivered.iter().map(|(_, bookmark, _)| *bookmark).collect();
    assert!(bookmarks.is_sorted_by(|a, b| a < b), "{bookmarks:?}");
    assert!(delivered.len() > 20 && delivered.len() < 150, "{}", delivered.len());
    let price = |data: &str| data[..data.len() - 1].rsplit(':').next().unwrap().parse::<u64>().unwrap();
    for (index, resumed_at) in bookmarks.iter().enumerate() {
        // Every message that no newer one replaced is delivered by then, or follows after the
        // bookmark.
        for sequence in 1..=*resumed_at {
            let symbol = symbols[(sequence * sequence / 7) as usize % 4];
            let is_covered = delivered[..=index]
                .iter()
                .any(|(_, _, data)| data.contains(&format!("\"{symbol}\"")) && price(data) >= sequence);
            assert!(is_covered, "{sequence} of {symbol} would be lost behind {resumed_at}");
        }
    }
}

#[test]
fn rule_5_keys_are_values_at_all_the_paths_of_one_topic() {
    let mut pair = pair_with(&[]);
    let key = Some("/s,/v/x");
    pair.subscribe(2, &Subscribe { conflation_key: key, ..conflated(replay(7, "^(ticks|tocks)$", "0")) });
    let messages = [
        (r#"{"s":"A","v":{"x":1}}"#, true),
        (r#"{"s":"A","v":{"x":2}}"#, true),
        (r#"{"s":"A","v":{"x":1.0},"n":1}"#, false),
        (r#"{"s":"A"}"#, true),
        (r#"{"s":"A","v":{"x":null}}"#, false),
        (r#"{"s":"A","v":{"x":[1,2]}}"#, true),
        (r#"{"s":"A","v":{"x":[2,1]}}"#, true),
        (r#"{"s":"A","v":{"x":"1"}}"#, true),
        ("no json", true),
        ("nor this", false),
    ];
    for (sequence, (data, _)) in (1..).zip(messages) {
        pair.publish(1, sequence, "ticks", data);
    }
    pair.publish(1, 99, "tocks", messages[0].0);
    pass_ms(&mut pair, 100);
    let news = messages.iter().filter(|(_, is_new)| *is_new).count();
    let got = got(&mut pair);
    assert_eq!(got.len(), news + 1, "{got:?}");
    assert_eq!(got[0], (100, 1, messages[2].0.to_owned()));
    assert_eq!(got[news - 1], (100, 9, "nor this".to_owned()));
}

#[test]
fn rule_6_the_rate_comes_first() {
    let messages: Vec<String> = (1..=40).map(|price| tick("IBM", price)).collect();
    let messages: Vec<&str> = messages.iter().map(String::as_str).collect();
    let mut pair = pair_with(&messages);
    let subscribe = Subscribe { acks: Acks::default(), ..conflated(replay(7, "ticks", "0")) };
    pair.subscribe(2, &Subscribe { rate: Some("100"), ..subscribe });
    pass_ms(&mut pair, 1000);
    // One each 10 ms: ten of them and the one at the beginning of the interval, then from the next
    // one on.
    let got: Vec<(u64, u64)> = got(&mut pair).into_iter().map(|(at, bookmark, _)| (at, bookmark)).collect();
    assert_eq!(got[0], (100, 1));
    assert_eq!(got.len(), 4, "{got:?}");
    assert!(got.windows(2).all(|pair| pair[1].0 - pair[0].0 >= 100), "{got:?}");
}

#[test]
fn rule_7_completed_and_an_end_come_behind_what_was_held() {
    let mut pair = pair_with(&[&tick("IBM", 1), &tick("HPQ", 2), &tick("IBM", 3)]);
    for bookmark in ["0", "[0:0|1|]"] {
        pair.subscribe(2, &conflated(replay(7, "ticks", bookmark)));
        pair.turn();
        let said = pair.take(2);
        let is_message = |said: &Said| matches!(said, Said::Message { .. });
        assert_eq!(said.iter().filter(|said| is_message(said)).count(), 2);
        let last = said.iter().rposition(is_message).unwrap();
        assert_eq!(said[last + 1], ack(AckKind::Completed, 7, 7));
        assert_eq!(said.get(last + 2).is_some(), bookmark != "0");
        pair.send(
            2,
            &Command::Unsubscribe(Unsubscribe {
                command: 8,
                acks: Acks::default(),
                subscription: 7,
                begun: None,
            }),
        );
        pair.turn();
        pair.take(2);
    }
}

#[test]
fn rule_8_what_is_held_goes_on_being_replaced_while_the_connection_takes_nothing() {
    for subscribe in [subscribe(7, "ticks"), replay(7, "ticks", "0|1|")] {
        let mut pair = pair_with(&[]);
        pair.subscribe(2, &conflated(subscribe));
        pair.turn();
        pair.set_writable(2, false);
        for sequence in 1..=1000 {
            publish_tick(&mut pair, sequence, ["IBM", "HPQ"][sequence as usize % 2], sequence as u32);
            pair.pass(Duration::from_millis(1));
        }
        assert_eq!(got(&mut pair), []);
        assert_eq!(pair.broker.stats().replay_count, 0);
        pair.set_writable(2, true);
        pass_ms(&mut pair, 1);
        let got = got(&mut pair);
        assert_eq!(got, [(1000, 1, tick("HPQ", 999)), (1000, 2, tick("IBM", 1000))]);
    }
}

#[test]
fn rule_8_at_its_bound_what_is_held_longest_is_delivered_early() {
    let mut pair = pair_with(&[]);
    let hour = Some(3600 * 1000 * MS);
    let subscribe = Subscribe { acks: Acks::default(), ..conflated(replay(7, "ticks", "0")) };
    pair.subscribe(2, &Subscribe { conflation_ns: hour, ..subscribe });
    let padding = "x".repeat(1024 * 1024);
    for sequence in 1..=20 {
        pair.publish(1, sequence, "ticks", &format!(r#"{{"s":{sequence},"padding":"{padding}"}}"#));
        pair.turn();
    }
    let early: Vec<u64> = got(&mut pair).into_iter().map(|(_, bookmark, _)| bookmark).collect();
    assert_eq!(early, [1, 2, 3, 4, 5]);
    pass_ms(&mut pair, 3_600_000);
    let late: Vec<u64> = got(&mut pair).into_iter().map(|(_, bookmark, _)| bookmark).collect();
    assert_eq!(late, (6..=20).collect::<Vec<_>>());
}

#[test]
fn what_is_held_in_a_pause_comes_after_it() {
    let mut pair = pair_with(&[]);
    pair.subscribe(2, &conflated(replay(7, "ticks", "0")));
    publish_tick(&mut pair, 1, "IBM", 1);
    let bytes = 7u32.to_le_bytes();
    let subscriptions = SubscriptionNumbers::from_bytes(&bytes).unwrap();
    let acks = Acks::default();
    pair.send(2, &Command::Pause { command: 20, acks, subscriptions });
    publish_tick(&mut pair, 2, "IBM", 2);
    pass_ms(&mut pair, 1000);
    assert_eq!(got(&mut pair), []);
    pair.send(2, &Command::Resume { command: 21, acks, subscriptions });
    pass_ms(&mut pair, 1000);
    assert_eq!(got(&mut pair), [(1000, 1, tick("IBM", 1)), (1100, 2, tick("IBM", 2))]);
}

#[test]
fn a_replace_delivers_what_is_held_and_goes_on_as_it_says() {
    let mut pair = pair_with(&[]);
    pair.subscribe(2, &conflated(replay(7, "ticks", "0")));
    publish_tick(&mut pair, 1, "IBM", 1);
    assert_eq!(got(&mut pair), []);
    let replace = Subscribe { options: SubscribeOptions::REPLACE, ..subscribe(7, "ticks") };
    pair.subscribe(2, &replace);
    pair.turn();
    assert_eq!(got(&mut pair), [(0, 1, tick("IBM", 1))]);
    publish_tick(&mut pair, 2, "IBM", 2);
    assert_eq!(got(&mut pair), [(0, 2, tick("IBM", 2))]);
}

#[test]
fn an_ended_subscription_or_connection_takes_what_it_holds_along() {
    let mut pair = pair_with(&[]);
    pair.client(3, "other");
    for client in [2, 3] {
        pair.subscribe(client, &conflated(replay(7, "ticks", "0")));
    }
    publish_tick(&mut pair, 1, "IBM", 1);
    pair.send(
        2,
        &Command::Unsubscribe(Unsubscribe {
            command: 8,
            acks: Acks::default(),
            subscription: 7,
            begun: None,
        }),
    );
    pair.disconnect(3);
    pass_ms(&mut pair, 1000);
    assert_eq!(got(&mut pair), []);
}

#[test]
fn no_place_is_told_beyond_what_is_held() {
    let mut pair = pair_with(&[]);
    let acks = Acks::PERSISTED;
    pair.subscribe(
        2,
        &Subscribe { acks, conflation_ns: Some(5000 * MS), ..conflated(replay(7, "ticks", "0")) },
    );
    publish_tick(&mut pair, 1, "IBM", 1);
    pass_ms(&mut pair, 2000);
    publish_tick(&mut pair, 2, "HPQ", 2);
    pass_ms(&mut pair, 2000);
    let said = pair.take(2);
    let beyond = |said: &Said| matches!(said, Said::Place { bookmark: (_, sequence), .. } if *sequence > 0);
    assert!(!said.iter().any(beyond), "{said:?}");
}

#[test]
fn what_is_no_conflation_is_refused() {
    let mut pair = pair_with(&[]);
    let fine = conflated(replay(7, "ticks", "0"));
    for subscribe in [
        Subscribe { conflation_ns: None, ..fine.clone() },
        Subscribe { conflation_key: None, ..fine.clone() },
        Subscribe { conflation_ns: Some(999_999), ..fine.clone() },
        Subscribe { conflation_key: Some("s"), ..fine.clone() },
        Subscribe { conflation_key: Some(""), ..fine.clone() },
    ] {
        pair.subscribe(2, &subscribe);
        pair.turn();
        assert_eq!(pair.take(2), [refused(Code::BadOption, 7, 7)], "{subscribe:?}");
    }
}

#[test]
fn rule_11_a_queue_is_not_conflated_but_a_replay_of_it_is() {
    let mut pair = with_queues([queue("ticks")]);
    pair.client(1, "a");
    pair.client(2, "reader");
    for topic in ["ticks", "^ti"] {
        pair.subscribe(2, &conflated(subscribe(7, topic)));
        pair.turn();
        assert_eq!(pair.take(2), [refused(Code::BadOption, 7, 7)]);
    }
    pair.subscribe(2, &conflated(replay(7, "ticks", "0")));
    publish_tick(&mut pair, 1, "IBM", 1);
    pass_ms(&mut pair, 200);
    assert_eq!(got(&mut pair), [(100, 1, tick("IBM", 1))]);
}
