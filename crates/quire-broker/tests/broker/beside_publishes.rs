//! Replays give way to publishers that wait for each message: docs/internals/notes.md, "Replays and
//! single publishes".

use std::time::Duration;

use quire_command::*;

use super::pair::*;

/// A log of `count` messages of 1 KB on `orders`, all of it persistent; client 2 replays it. Reads
/// and writes wait for the test.
fn replaying(count: u64, rate: Option<&str>) -> Pair {
    let mut pair = Pair::new();
    pair.client(1, "a");
    for sequence in 1..=count {
        pair.publish(1, sequence, "orders", &"x".repeat(1000));
        pair.turn();
    }
    pair.client(2, "reader");
    pair.subscribe(2, &Subscribe { rate, ..replay(7, "orders", "0") });
    pair.writes_at_once = false;
    pair.reads_at_once = false;
    pair
}

/// How many messages the replay brought since the last call.
fn came(pair: &mut Pair) -> usize {
    pair.turn();
    pair.take_data(2).len()
}

/// The next read is done, and one small message begins to wait for the disk.
fn read_and_publish(pair: &mut Pair, sequence: u64) {
    pair.turn();
    assert!(pair.run_reads());
    pair.publish(1, sequence, "other", "x");
}

#[test]
fn a_replay_goes_on_when_a_lone_publish_is_persistent() {
    let mut pair = replaying(2000, None);
    read_and_publish(&mut pair, 2001);
    assert_eq!(came(&mut pair), 0);
    assert!(!pair.run_reads(), "nor is anything read");
    assert!(pair.write());
    assert!(came(&mut pair) > 0);
    assert!(pair.run_reads());
}

#[test]
fn a_replay_stands_back_for_a_millisecond_at_most() {
    let mut pair = replaying(2000, None);
    read_and_publish(&mut pair, 2001);
    assert_eq!(came(&mut pair), 0);
    pair.pass(Duration::from_micros(999));
    assert_eq!(came(&mut pair), 0);
    pair.pass(Duration::from_micros(1));
    assert!(came(&mut pair) > 200, "as much at a time as without publishes");
    assert!(pair.run_reads());
    assert_eq!(came(&mut pair), 0);
    pair.pass(Duration::from_millis(1));
    assert!(came(&mut pair) > 200);
}

#[test]
fn after_it_stood_back_a_replay_takes_smaller_steps_for_a_tenth_of_a_second() {
    let mut pair = replaying(2000, None);
    read_and_publish(&mut pair, 2001);
    came(&mut pair);
    pair.write();
    let mut counts = Vec::new();
    for millis in [0, 50, 49, 1, 0, 0] {
        pair.pass(Duration::from_millis(millis));
        counts.push(came(&mut pair));
        pair.run_reads();
    }
    // The first was read before.
    let expected = [(240, 260), (60, 70), (60, 70), (60, 70), (120, 130), (240, 260)];
    for (count, (least, most)) in counts.iter().zip(expected) {
        assert!((least..=most).contains(count), "{counts:?}");
    }
}

#[test]
fn behind_publishers_that_do_not_wait_a_replay_goes_on() {
    let mut pair = replaying(2000, None);
    read_and_publish(&mut pair, 2001);
    for sequence in 2002..2012 {
        pair.publish(1, sequence, "other", &"x".repeat(1000));
    }
    assert!(came(&mut pair) > 0);
}

#[test]
fn with_a_rate_or_close_to_the_edge_a_replay_goes_on() {
    let mut pair = replaying(2000, Some("1000"));
    read_and_publish(&mut pair, 2001);
    assert_eq!(came(&mut pair), 1);
    let mut pair = replaying(200, None);
    pair.publish(1, 201, "other", "x");
    assert_eq!(came(&mut pair), 200);
}

#[test]
fn a_replay_that_ends_while_it_stands_back_leaves_nothing_behind() {
    let mut pair = replaying(2000, None);
    read_and_publish(&mut pair, 2001);
    assert_eq!(came(&mut pair), 0);
    pair.disconnect(2);
    pair.client(3, "next");
    pair.subscribe(3, &replay(7, "orders", "0"));
    pair.turn();
    pair.write();
    pair.reads_at_once = true;
    pair.turn();
    assert_eq!(pair.take_data(3).len(), 2000);
}
