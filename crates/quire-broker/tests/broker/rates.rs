//! The pace of replays: each rule of docs/replay.md on a clock that the test moves.

use std::time::Duration;

use proptest::prelude::*;
use quire_broker::{BrokerConfig, TransportConfig};
use quire_command::*;

use super::pair::*;

const MS: u64 = 1_000_000;

/// A log of `count` messages of 100 bytes on `orders`, taken `gap_ns` apart; client 2 reads.
fn log_of(count: u64, gap_ns: u64) -> Pair {
    let transport = TransportConfig { max_subscriptions_per_connection: 2000, ..TransportConfig::default() };
    let mut pair = Pair::with(BrokerConfig { transports: vec![transport], ..config() });
    pair.client(1, "a");
    for sequence in 1..=count {
        pair.publish(1, sequence, "orders", &format!("{sequence:0100}"));
        pair.now_ns += gap_ns;
    }
    pair.turn();
    pair.take(1);
    pair.client(2, "reader");
    pair
}

fn paced<'a>(number: u32, topic: &'a str, rate: &'a str) -> Subscribe<'a> {
    Subscribe { rate: Some(rate), ..replay(number, topic, "0") }
}

/// Moves time by `ms` and gives the microseconds, from now on, at which messages came.
fn times(pair: &mut Pair, ms: u64) -> Vec<u64> {
    let start_us = pair.now_ns / 1000;
    pair.turn();
    pair.pass(Duration::from_millis(ms));
    pair.take_timed(2).into_iter().map(|(at, _)| at - start_us).collect()
}

fn numbers(which: &[u32]) -> Vec<u8> {
    which.iter().flat_map(|number| number.to_le_bytes()).collect()
}

fn pause(pair: &mut Pair, which: &[u32]) {
    let bytes = numbers(which);
    let subscriptions = SubscriptionNumbers::from_bytes(&bytes).unwrap();
    pair.send(2, &Command::Pause { command: 90, acks: Acks::default(), subscriptions });
}

fn resume(pair: &mut Pair, which: &[u32]) {
    let bytes = numbers(which);
    let subscriptions = SubscriptionNumbers::from_bytes(&bytes).unwrap();
    pair.send(2, &Command::Resume { command: 91, acks: Acks::default(), subscriptions });
}

#[test]
fn rule_3_messages_per_second_come_at_their_times() {
    let mut pair = log_of(500, 0);
    pair.subscribe(2, &paced(7, "orders", "100"));
    let want: Vec<u64> = (0..=100).map(|n| n * 10_000).collect();
    assert_eq!(times(&mut pair, 1000), want);
}

#[test]
fn rule_3_bytes_per_second_count_the_data_of_the_message_before() {
    let mut pair = log_of(500, 0);
    pair.subscribe(2, &paced(7, "orders", "1000B"));
    let want: Vec<u64> = (0..=10).map(|n| n * 100_000).collect();
    assert_eq!(times(&mut pair, 1000), want);
}

#[test]
fn rule_3_a_multiple_keeps_the_original_distances() {
    for (rate, gap_us) in [("2X", 5_000), ("0.5x", 20_000), ("1X", 10_000)] {
        let mut pair = log_of(50, 10 * MS);
        pair.subscribe(2, &paced(7, "orders", rate));
        let want: Vec<u64> = (0..=200_000 / gap_us).map(|n| n * gap_us).collect();
        assert_eq!(times(&mut pair, 200), want, "{rate}");
    }
}

#[test]
fn rule_2_only_delivered_messages_count() {
    let mut pair = Pair::new();
    pair.client(1, "a");
    for sequence in 1..=100 {
        pair.publish(1, sequence, "orders", &format!(r#"{{"n":{sequence}}}"#));
    }
    pair.turn();
    pair.client(2, "reader");
    pair.subscribe(2, &Subscribe { filter: Some("/n IN (10, 20, 30, 95)"), ..paced(7, "orders", "10") });
    assert_eq!(times(&mut pair, 1000), [0, 100_000, 200_000, 300_000]);
}

#[test]
fn rule_6_a_gap_is_never_longer_than_rate_max_gap() {
    let mut pair = Pair::new();
    pair.client(1, "a");
    // Taken at 0, 1, 3601 and 3602 seconds.
    for (sequence, at_s) in [(1, 0), (2, 1), (3, 3601), (4, 3602)] {
        pair.now_ns = at_s * 1000 * MS;
        pair.publish(1, sequence, "orders", "x");
    }
    pair.turn();
    pair.client(2, "reader");
    let gap = Some(3000 * MS);
    pair.subscribe(2, &Subscribe { rate_max_gap_ns: gap, ..paced(7, "orders", "0.5X") });
    assert_eq!(times(&mut pair, 60_000), [0, 2_000_000, 5_000_000, 7_000_000]);
}

#[test]
fn rule_5_above_a_thousand_per_second_groups_go_out_a_millisecond_apart() {
    let mut pair = log_of(4000, 0);
    pair.subscribe(2, &paced(7, "orders", "2500"));
    let times = times(&mut pair, 1000);
    let mut groups: Vec<(u64, usize)> = Vec::new();
    for at in times {
        match groups.last_mut() {
            Some((last, count)) if *last == at => *count += 1,
            _ => groups.push((at, 1)),
        }
    }
    assert!(groups.windows(2).all(|pair| pair[1].0 - pair[0].0 >= 1000), "{groups:?}");
    let count: usize = groups.iter().map(|group| group.1).sum();
    assert!((2500..=2501).contains(&count), "{count}");
}

#[test]
fn rule_4_nothing_is_saved_up_while_it_is_paused() {
    let mut pair = log_of(50, 0);
    pair.subscribe(2, &paced(7, "orders", "10"));
    assert_eq!(times(&mut pair, 150), [0, 100_000]);
    pause(&mut pair, &[7]);
    assert_eq!(times(&mut pair, 10_000), [0; 0]);
    resume(&mut pair, &[7]);
    assert_eq!(times(&mut pair, 250), [0, 100_000, 200_000]);
    // Nor does a short pause shorten the wait.
    pause(&mut pair, &[7]);
    resume(&mut pair, &[7]);
    assert_eq!(times(&mut pair, 100), [50_000]);
}

#[test]
fn rule_4_nothing_is_saved_up_while_the_connection_takes_nothing() {
    let mut pair = log_of(50, 0);
    pair.subscribe(2, &paced(7, "orders", "10"));
    assert_eq!(times(&mut pair, 50), [0]);
    pair.set_writable(2, false);
    assert_eq!(times(&mut pair, 10_000), [0; 0]);
    pair.set_writable(2, true);
    assert_eq!(times(&mut pair, 250), [0, 100_000, 200_000]);
}

#[test]
fn rule_4_nothing_is_saved_up_in_a_quiet_range_at_the_live_tail() {
    let mut pair = log_of(2, 0);
    pair.subscribe(2, &paced(7, "orders", "10"));
    assert_eq!(times(&mut pair, 1000), [0, 100_000]);
    for sequence in 3..=6 {
        pair.publish(1, sequence, "orders", "x");
    }
    assert_eq!(times(&mut pair, 1000), [0, 100_000, 200_000, 300_000]);
}

#[test]
fn rule_4_what_the_server_was_late_with_is_made_up_for() {
    let mut pair = log_of(50, 0);
    pair.subscribe(2, &paced(7, "orders", "10"));
    pair.turn();
    // The timer for 100 ms fires at 150 ms, the next ones as early as they may.
    pair.now_ns += 150 * MS;
    let start = pair.now_ns / 1000;
    let now = pair.now();
    pair.broker.handle(now, quire_broker::Input::Timeout);
    pair.turn();
    pair.pass(Duration::from_millis(200));
    let at: Vec<u64> = pair.take_timed(2).into_iter().map(|(at, _)| at).collect();
    assert_eq!(at[1..], [start, start + 50_000, start + 150_000]);
    // But no more than 200 ms of it.
    pair.now_ns += 10_000 * MS;
    assert_eq!(times(&mut pair, 10).len(), 3);
}

#[test]
fn rule_1_the_limit_holds_at_the_live_edge_too() {
    let mut pair = Pair::new();
    pair.client(1, "a");
    pair.client(2, "reader");
    pair.subscribe(2, &paced(7, "orders", "100"));
    pair.turn();
    let mut got = Vec::new();
    // Published five times as fast as it may be delivered.
    for sequence in 1..=200 {
        pair.publish(1, sequence, "orders", &sequence.to_string());
        pair.turn();
        pair.pass(Duration::from_millis(2));
        got.extend(pair.take_timed(2));
    }
    pair.pass(Duration::from_millis(2000));
    got.extend(pair.take_timed(2));
    let (at, data): (Vec<u64>, Vec<String>) = got.into_iter().unzip();
    assert_eq!(data, (1..=200).map(|n| n.to_string()).collect::<Vec<_>>());
    assert!(at.windows(2).all(|pair| pair[1] - pair[0] == 10_000), "{at:?}");
    // And what comes slower than that is not held up.
    pair.publish(1, 201, "orders", "201");
    assert_eq!(times(&mut pair, 20), [0]);
}

#[test]
fn rule_7_those_that_share_a_replay_share_its_rate_and_keep_the_order_of_the_log() {
    let mut pair = Pair::new();
    pair.client(1, "a");
    let topics = ["x", "y"];
    for sequence in 1..=10 {
        pair.publish(1, sequence, topics[sequence as usize % 2], &sequence.to_string());
    }
    pair.turn();
    pair.client(2, "reader");
    for (number, topic) in [(1, "x"), (2, "y")] {
        let subscribe = paced(number, topic, "10");
        pair.subscribe(2, &Subscribe { options: SubscribeOptions::PAUSED, ..subscribe });
    }
    resume(&mut pair, &[2, 1]);
    pair.turn();
    pair.pass(Duration::from_millis(450));
    // More is published before they have caught up, and after.
    for sequence in 11..=20 {
        pair.publish(1, sequence, topics[sequence as usize % 2], &sequence.to_string());
    }
    pair.pass(Duration::from_millis(5000));
    for sequence in 21..=30 {
        pair.publish(1, sequence, topics[sequence as usize % 2], &sequence.to_string());
    }
    pair.turn();
    pair.pass(Duration::from_millis(5000));
    let (at, data): (Vec<u64>, Vec<String>) = pair.take_timed(2).into_iter().unzip();
    assert_eq!(data, (1..=30).map(|n| n.to_string()).collect::<Vec<_>>());
    assert!(at.windows(2).all(|pair| pair[1] - pair[0] >= 100_000), "{at:?}");
    assert_eq!(pair.broker.stats().replay_count, 1);
}

#[test]
fn rule_7_another_rate_is_another_replay() {
    let mut pair = log_of(10, 0);
    for (number, rate) in [(1, "10"), (2, "20"), (3, "10")] {
        let subscribe = paced(number, "orders", rate);
        pair.subscribe(2, &Subscribe { options: SubscribeOptions::PAUSED, ..subscribe });
    }
    resume(&mut pair, &[1, 2, 3]);
    pair.turn();
    assert_eq!(pair.broker.stats().replay_count, 2);
}

#[test]
fn completed_comes_with_the_last_message_that_was_there() {
    let mut pair = log_of(3, 0);
    pair.subscribe(2, &paced(7, "orders", "10"));
    pair.turn();
    pair.pass(Duration::from_millis(150));
    assert!(!pair.take(2).contains(&ack(AckKind::Completed, 7, 7)));
    pair.pass(Duration::from_millis(50));
    assert_eq!(pair.take(2).last(), Some(&ack(AckKind::Completed, 7, 7)));
}

#[test]
fn a_replace_changes_the_rate_in_mid_replay() {
    let mut pair = log_of(50, 0);
    pair.subscribe(2, &paced(7, "orders", "1"));
    assert_eq!(times(&mut pair, 500), [0]);
    let replace =
        Subscribe { options: SubscribeOptions::REPLACE, rate: Some("10"), ..subscribe(7, "orders") };
    pair.subscribe(2, &replace);
    assert_eq!(times(&mut pair, 150), [0, 100_000]);
    pair.subscribe(2, &Subscribe { rate: None, ..replace });
    assert_eq!(times(&mut pair, 0).len(), 47);
}

#[test]
fn what_is_no_rate_is_refused() {
    let mut pair = log_of(1, 0);
    let cases = [
        paced(7, "orders", "0"),
        paced(7, "orders", "fast"),
        Subscribe { options: SubscribeOptions::LIVE, ..paced(7, "orders", "10") },
        Subscribe { bookmark: None, ..paced(7, "orders", "10") },
        Subscribe { rate_max_gap_ns: Some(1), ..paced(7, "orders", "10") },
        Subscribe { rate_max_gap_ns: Some(0), ..paced(7, "orders", "2X") },
        Subscribe { rate_max_gap_ns: Some(1), ..replay(7, "orders", "0") },
    ];
    for subscribe in cases {
        pair.subscribe(2, &subscribe);
        pair.turn();
        assert_eq!(pair.take(2), [refused(Code::BadOption, 7, 7)], "{subscribe:?}");
    }
}

#[test]
fn more_paced_replays_than_may_keep_what_they_read_all_go_on() {
    let mut pair = log_of(0, 0);
    let data = "x".repeat(16 * 1024);
    (1..=3).for_each(|sequence| pair.publish(1, sequence, "orders", &data));
    pair.turn();
    // Each reads 32 KiB ahead: together 40 MB.
    for number in 1..=1300 {
        pair.subscribe(2, &paced(number, "orders", "1"));
    }
    let times = times(&mut pair, 2000);
    assert_eq!(times.len(), 3 * 1300);
    for at in [0, 1_000_000, 2_000_000] {
        assert_eq!(times.iter().filter(|time| **time == at).count(), 1300, "{at}");
    }
}

#[test]
fn a_high_rate_holds_when_every_read_takes_a_millisecond() {
    let mut pair = log_of(60_000, 0);
    pair.reads_at_once = false;
    pair.subscribe(2, &paced(7, "orders", "400000"));
    pair.turn();
    let mut count = 0;
    for _ in 0..125 {
        pair.run_reads();
        pair.turn();
        pair.pass(Duration::from_millis(1));
        count += pair.take_timed(2).len();
    }
    assert!((45_000..=50_001).contains(&count), "{count} in 125 ms");
}

/// A read brings 256 KiB at most: were each of them a group, no replay would be faster than one of
/// them in a millisecond.
#[test]
fn a_rate_of_more_than_a_read_brings_in_a_millisecond_holds() {
    let mut pair = log_of(0, 0);
    let data = "x".repeat(64 * 1024);
    for sequence in 1..=1200 {
        pair.publish(1, sequence, "orders", &data);
        pair.turn();
    }
    pair.reads_at_once = false;
    pair.subscribe(2, &paced(7, "orders", "1000MB"));
    let mut count = 0;
    for _ in 0..500 {
        pair.run_reads();
        pair.turn();
        pair.pass(Duration::from_micros(100));
        count += pair.take_timed(2).len();
    }
    assert!((790..=801).contains(&count), "{count} of 64 KiB in 50 ms");
}

proptest! {
    /// However the messages lie and whatever the rate: none comes before its time, and the last
    /// comes at it.
    #[test]
    fn over_ten_seconds_the_rate_is_exact(
        gaps_us in proptest::collection::vec(0u64..20_000, 2..400),
        rate in prop_oneof![
            (1u32..5000).prop_map(|n| n.to_string()),
            (1u32..200).prop_map(|n| format!("{n}KB")),
            (1u32..80).prop_map(|n| format!("{}X", f64::from(n) / 8.0)),
        ],
    ) {
        let mut pair = Pair::new();
        pair.client(1, "a");
        for (sequence, gap_us) in (1..).zip(&gaps_us) {
            pair.now_ns += gap_us * 1000;
            pair.publish(1, sequence, "orders", &"x".repeat(*gap_us as usize % 1000));
        }
        pair.turn();
        pair.client(2, "reader");
        pair.subscribe(2, &paced(7, "orders", &rate));
        let got = times(&mut pair, 100_000);
        let sizes: Vec<f64> = gaps_us.iter().map(|gap_us| (gap_us % 1000) as f64).collect();
        let mut want_us = 0.0;
        for (n, at) in got.iter().enumerate() {
            if n > 0 {
                want_us += match rate.split_at(rate.len() - 1) {
                    (factor, "X") => gaps_us[n] as f64 / factor.parse::<f64>().unwrap(),
                    (kb, "B") => sizes[n - 1] * 1e6 / (1024.0 * kb.trim_end_matches('K').parse::<f64>().unwrap()),
                    _ => 1e6 / rate.parse::<f64>().unwrap(),
                };
            }
            prop_assert!(*at as f64 >= want_us - 1.0, "message {n} of {rate} at {at} us, due at {want_us}");
            prop_assert!(*at as f64 <= want_us + 1001.0, "message {n} of {rate} at {at} us, due at {want_us}");
        }
        prop_assert!(got.len() == gaps_us.len() || want_us > 99_000_000.0);
    }
}
