//! Messages that are published or cancelled with a delay: when they come, in which order, and that
//! a restart changes neither.

use std::time::Duration;

use quire_broker::QueueSettings;
use quire_command::*;
use quire_queue::Verdict;
use quire_types::{DELAY_MAX_NS, Delay, Timestamp};

use crate::pair::*;
use crate::queue_pair::*;

const SECOND: u64 = 1_000_000_000;

/// A publisher 1 and a worker 2 on `jobs`.
fn start(mut pair: Pair) -> Pair {
    pair.client(1, "publisher");
    pair.client(2, "worker");
    pair.subscribe(2, &consume(1, "jobs", 10));
    pair.turn();
    pair
}

fn later(seconds: u64) -> Verdict {
    Verdict::CancelWithDelay { delay_ms: seconds * 1_000 }
}

fn pass(pair: &mut Pair, seconds: u64) {
    pair.pass(Duration::from_secs(seconds));
    pair.turn();
}

#[test]
fn a_delayed_message_comes_again_at_its_time_and_before_later_messages() {
    let mut pair = start(with_queues([queue("jobs")]));
    publish_all(&mut pair, 1..=3);
    let held = pair.take_queued(2);
    pair.settle(2, "jobs", later(5), &held[..2]);
    let figures =
        |pair: &Pair| ["depth", "waiting", "delayed", "backlog"].map(|name| pair.figure("jobs", name));
    assert_eq!(figures(&pair), [3, 0, 2, 1]);
    pass(&mut pair, 4);
    assert_eq!(pair.take_queued(2), []);
    // The worker takes nothing for a while, so that the messages wait together.
    pair.set_writable(2, false);
    publish_all(&mut pair, 4..=4);
    pass(&mut pair, 1);
    assert_eq!(figures(&pair)[2], 0);
    pair.set_writable(2, true);
    pair.turn();
    let again = pair.take_queued(2);
    assert_eq!(data(&again), ["1", "2", "4"]);
    assert_eq!((again[0].deliveries, again[0].cancels), (2, 1));
}

#[test]
fn the_nth_cancel_waits_for_the_nth_delay_and_the_last_delay_repeats() {
    let settings = QueueSettings { retry_delay_ns: vec![SECOND, 0, 3 * SECOND], ..queue("jobs") };
    let mut pair = start(with_queues([settings]));
    publish_all(&mut pair, 1..=1);
    for (cancels, delay) in [1, 0, 3, 3].into_iter().enumerate() {
        let held = pair.take_queued(2);
        assert_eq!(held[0].cancels, cancels as u32);
        pair.settle(2, "jobs", Verdict::Cancel, &held);
        if delay > 0 {
            pair.pass(Duration::from_millis(delay * 1_000 - 1));
            assert_eq!(pair.take_queued(2), [], "cancel {cancels}");
            pair.pass(Duration::from_millis(1));
        }
    }
    let held = pair.take_queued(2);
    pair.settle(2, "jobs", later(0), &held);
    assert_eq!(pair.take_queued(2).len(), 1, "the delay of the command replaces that of the queue");
}

#[test]
fn a_delay_ends_at_its_time_of_day_also_after_a_restart() {
    for file_backed_metadata in [false, true] {
        let settings = QueueSettings { file_backed_metadata, ..queue("jobs") };
        let mut pair = start(with_queues([settings.clone()]));
        publish_all(&mut pair, 1..=3);
        let held = pair.take_queued(2);
        pair.settle(2, "jobs", later(100), &held[..1]);
        // The state of the queue is written.
        pass(&mut pair, 61);
        pair.settle(2, "jobs", later(10), &held[1..2]);
        let mut pair = start(pair.restart(queue_config([settings])));
        assert_eq!(data(&pair.take_queued(2)), ["3"]);
        assert_eq!(pair.figure("jobs", "delayed"), 2);
        pass(&mut pair, 9);
        assert_eq!(pair.take_queued(2), []);
        pass(&mut pair, 1);
        assert_eq!(data(&pair.take_queued(2)), ["2"]);
        pass(&mut pair, 28);
        assert_eq!(pair.take_queued(2), []);
        pass(&mut pair, 1);
        let last = pair.take_queued(2);
        assert_eq!((data(&last), last[0].cancels), (vec!["1"], 1));
    }
}

#[test]
fn a_message_that_a_restart_finds_delayed_goes_to_the_filters_and_by_the_priorities_of_then() {
    let settings = QueueSettings { priority: Some("/p".into()), ..queue("jobs") };
    let mut pair = start(with_queues([settings.clone()]));
    let all = [(1, r#"{"p":1}"#), (2, r#"{"p":2}"#), (3, r#"{"p":3}"#)];
    all.into_iter().for_each(|(sequence, data)| pair.publish(1, sequence, "jobs", data));
    pair.turn();
    let held = pair.take_queued(2);
    pair.settle(2, "jobs", later(5), &held);
    let mut pair = pair.restart(queue_config([settings]));
    pair.client(2, "worker");
    pair.subscribe(2, &Subscribe { filter: Some("/p > 1"), ..consume(1, "jobs", 10) });
    pair.turn();
    assert_eq!(pair.take_queued(2), []);
    pass(&mut pair, 5);
    assert_eq!(data(&pair.take_queued(2)), [r#"{"p":3}"#, r#"{"p":2}"#]);
}

#[test]
fn a_delayed_message_expires_at_its_time_and_can_be_acknowledged_before_that() {
    let settings = QueueSettings {
        expiration_ns: Some(10 * SECOND),
        dead_letter_topic: Some("dead".into()),
        ..queue("jobs")
    };
    let mut pair = start(with_queues([settings]));
    publish_all(&mut pair, 1..=3);
    let held = pair.take_queued(2);
    pair.settle(2, "jobs", later(60), &held);
    pair.settle(2, "jobs", Verdict::Acknowledge, &held[..1]);
    assert_eq!(pair.figure("jobs", "delayed"), 2);
    pass(&mut pair, 9);
    assert_eq!(pair.figure("jobs", "depth"), 2);
    pass(&mut pair, 1);
    assert_eq!((pair.figure("jobs", "depth"), pair.figure("jobs", "dead_letters")), (0, 2));
}

/// A relative delay.
fn seconds(seconds: u64) -> Delay {
    Delay::For { ns: seconds * SECOND }
}

/// A delay until this number of seconds after the beginning.
fn at(seconds: u64) -> Delay {
    Delay::Until(Timestamp(WALL_START_NS + seconds * SECOND))
}

/// Client 1 publishes its sequence with a delay.
fn publish_later(pair: &mut Pair, sequence: u64, topic: &str, delay: Delay) {
    let data = sequence.to_string();
    pair.send(1, &Command::Publish(Publish { delay, ..publish(sequence, topic, &data) }));
}

fn figures(pair: &Pair) -> [u64; 4] {
    ["depth", "waiting", "delayed", "backlog"].map(|name| pair.figure("jobs", name))
}

#[test]
fn a_message_published_with_a_delay_comes_at_its_time_and_before_later_messages() {
    for delay in [seconds(5), at(5)] {
        let mut pair = start(with_queues([queue("jobs")]));
        publish_later(&mut pair, 1, "jobs", delay);
        publish_all(&mut pair, 2..=2);
        assert_eq!(data(&pair.take_queued(2)), ["2"]);
        assert_eq!(figures(&pair), [2, 0, 1, 1]);
        pair.pass(Duration::from_millis(4_999));
        assert_eq!(pair.take_queued(2), []);
        // The worker takes nothing for a while, so that the messages wait together.
        pair.set_writable(2, false);
        publish_all(&mut pair, 3..=3);
        pair.pass(Duration::from_millis(1));
        assert_eq!(figures(&pair), [3, 2, 0, 1]);
        pair.set_writable(2, true);
        pair.turn();
        let messages = pair.take_queued(2);
        assert_eq!(data(&messages), ["1", "3"]);
        assert_eq!((messages[0].deliveries, messages[0].cancels), (1, 0));
    }
}

#[test]
fn a_delay_that_is_over_when_the_message_arrives_is_none() {
    let mut pair = start(with_queues([queue("jobs")]));
    pass(&mut pair, 5);
    for (sequence, delay) in [(1, seconds(0)), (2, at(5)), (3, Delay::Until(Timestamp(1)))] {
        publish_later(&mut pair, sequence, "jobs", delay);
    }
    pair.turn();
    assert_eq!(data(&pair.take_queued(2)), ["1", "2", "3"]);
    let reader = pair.broker.journal().reader();
    let mut cursor = reader.cursor(quire_journal::Position::ZERO);
    let batch = cursor.next(reader.persisted(), &quire_journal::AllTopics).unwrap().unwrap();
    assert!(batch.records().all(|record| record.attributes.as_bytes().is_empty()));
}

#[test]
fn subscriptions_and_replays_of_the_topic_get_a_delayed_message_at_once() {
    let settings = QueueSettings { underlying_topic: Some("t".into()), ..queue("jobs") };
    let mut pair = start(with_queues([settings]));
    pair.client(3, "reader");
    pair.subscribe(3, &subscribe(1, "t"));
    pair.turn();
    publish_later(&mut pair, 1, "t", seconds(5));
    pair.turn();
    assert_eq!(pair.take_data(3), ["1"]);
    pair.subscribe(3, &Subscribe { bookmark: Some("0"), ..subscribe(2, "t") });
    pair.turn();
    assert_eq!(pair.take_data(3), ["1"]);
    assert_eq!(pair.take_queued(2), []);
    // The name of the queue leads to its topic.
    publish_later(&mut pair, 2, "jobs", seconds(5));
    pass(&mut pair, 5);
    assert_eq!(data(&pair.take_queued(2)), ["1", "2"]);
}

#[test]
fn a_published_delay_ends_at_its_time_also_after_a_restart() {
    for file_backed_metadata in [false, true] {
        let settings = QueueSettings { file_backed_metadata, ..queue("jobs") };
        let mut pair = start(with_queues([settings.clone()]));
        publish_later(&mut pair, 1, "jobs", seconds(100));
        publish_later(&mut pair, 2, "jobs", at(75));
        publish_later(&mut pair, 3, "jobs", seconds(20));
        publish_all(&mut pair, 4..=4);
        // The state of the queue is written.
        pass(&mut pair, 61);
        assert_eq!(data(&pair.take_queued(2)), ["4", "3"]);
        publish_later(&mut pair, 5, "jobs", seconds(20));
        pair.turn();
        let mut pair = start(pair.restart(queue_config([settings])));
        assert_eq!(data(&pair.take_queued(2)), ["3", "4"]);
        assert_eq!(pair.figure("jobs", "delayed"), 3);
        pass(&mut pair, 13);
        assert_eq!(pair.take_queued(2), []);
        pass(&mut pair, 1);
        assert_eq!(data(&pair.take_queued(2)), ["2"]);
        pass(&mut pair, 6);
        assert_eq!(data(&pair.take_queued(2)), ["5"]);
        pass(&mut pair, 19);
        assert_eq!(data(&pair.take_queued(2)), ["1"]);
    }
}

#[test]
fn a_delayed_publish_that_is_sent_again_keeps_its_time() {
    let mut pair = start(with_queues([queue("jobs")]));
    publish_later(&mut pair, 1, "jobs", seconds(5));
    pass(&mut pair, 3);
    publish_later(&mut pair, 1, "jobs", seconds(5));
    pass(&mut pair, 2);
    assert_eq!(data(&pair.take_queued(2)), ["1"]);
    pass(&mut pair, 10);
    assert_eq!(pair.take_queued(2), []);
}

#[test]
fn a_step_of_the_wall_clock_after_the_start_does_not_change_a_relative_delay() {
    let mut pair = start(with_queues([queue("jobs")]));
    pair.wall_ahead_ns = 3_600 * SECOND;
    publish_later(&mut pair, 1, "jobs", seconds(5));
    pair.turn();
    pass(&mut pair, 4);
    assert_eq!(pair.take_queued(2), []);
    pass(&mut pair, 1);
    assert_eq!(data(&pair.take_queued(2)), ["1"]);
}

/// Found by seed 1,000,227 of the simulation: the state in the file and the record of a cancel had
/// times of the engine's clock, which does not follow steps of the wall clock.
#[test]
fn after_a_step_of_the_wall_clock_and_a_restart_delays_end_at_their_time_of_day() {
    const HOUR: u64 = 3_600;
    for file_backed_metadata in [false, true] {
        let settings = QueueSettings { file_backed_metadata, ..queue("jobs") };
        let mut pair = start(with_queues([settings.clone()]));
        pair.turn();
        pair.wall_ahead_ns = HOUR * SECOND;
        publish_all(&mut pair, 1..=2);
        let held = pair.take_queued(2);
        pair.settle(2, "jobs", later(100), &held[..1]);
        publish_later(&mut pair, 3, "jobs", at(HOUR + 100));
        // The state of the queue is written.
        pass(&mut pair, 61);
        pair.settle(2, "jobs", later(39), &held[1..]);
        pair.turn();
        let mut pair = pair.restart(queue_config([settings]));
        pair.wall_ahead_ns = HOUR * SECOND;
        let mut pair = start(pair);
        pass(&mut pair, 38);
        assert_eq!(pair.take_queued(2), []);
        assert_eq!(pair.figure("jobs", "delayed"), 3);
        pass(&mut pair, 1);
        assert_eq!(data(&pair.take_queued(2)), ["1", "2", "3"]);
    }
}

#[test]
fn after_a_step_of_the_wall_clock_and_a_restart_messages_are_not_older() {
    let settings = QueueSettings { file_backed_metadata: true, ..queue("jobs") };
    let mut pair = with_queues([settings.clone()]);
    pair.client(1, "publisher");
    pair.turn();
    pair.wall_ahead_ns = 3_600 * SECOND;
    pair.send(1, &Command::Publish(Publish { expiration_s: Some(100), ..publish(1, "jobs", "1") }));
    // The state of the queue is written.
    pass(&mut pair, 61);
    let mut pair = pair.restart(queue_config([settings]));
    pair.wall_ahead_ns = 3_600 * SECOND;
    pass(&mut pair, 38);
    assert_eq!(pair.figure("jobs", "depth"), 1);
    pass(&mut pair, 2);
    assert_eq!(pair.figure("jobs", "depth"), 0);
}

/// The log gives records later times than the wall clock as long as the clock is earlier than the
/// last record.
#[test]
fn a_delay_does_not_become_longer_when_the_wall_clock_was_put_back_before_a_restart() {
    let settings = queue("jobs");
    let mut pair = start(with_queues([settings.clone()]));
    pair.wall_ahead_ns = 3_600 * SECOND;
    publish_all(&mut pair, 1..=1);
    pair.turn();
    pair.wall_ahead_ns = 0;
    publish_later(&mut pair, 2, "jobs", seconds(5));
    pair.turn();
    let mut pair = start(pair.restart(queue_config([settings])));
    assert_eq!(data(&pair.take_queued(2)), ["1"]);
    pass(&mut pair, 4);
    assert_eq!(pair.take_queued(2), []);
    pass(&mut pair, 1);
    assert_eq!(data(&pair.take_queued(2)), ["2"]);
}

#[test]
fn a_delay_on_a_topic_without_a_queue_is_refused_and_so_is_one_of_more_than_ten_years() {
    let mut pair = start(with_queues([queue("jobs")]));
    publish_later(&mut pair, 1, "other", seconds(5));
    publish_later(&mut pair, 0, "other", seconds(5));
    publish_later(&mut pair, 2, "jobs", Delay::For { ns: DELAY_MAX_NS + 1 });
    publish_later(&mut pair, 3, "jobs", Delay::Until(Timestamp(u64::MAX)));
    publish_later(&mut pair, 4, "jobs", Delay::For { ns: DELAY_MAX_NS });
    pair.turn();
    let failed = |sequence, code| Said::Failed { sequence, code, scope: FailureScope::One };
    let said = pair.take(1);
    let refused: Vec<_> = said.iter().filter(|said| matches!(said, Said::Failed { .. })).collect();
    assert_eq!(
        refused,
        [
            &failed(1, Code::UnknownQueue),
            &failed(0, Code::UnknownQueue),
            &failed(2, Code::BadOption),
            &failed(3, Code::BadOption),
        ]
    );
    assert_eq!(said.last(), Some(&Said::Persisted(4)));
    assert_eq!(figures(&pair), [1, 0, 1, 0]);
    assert_eq!(pair.broker.stats().appended, 1);
}

#[test]
fn a_published_message_that_expires_before_its_delay_ends_expires() {
    let settings = QueueSettings {
        expiration_ns: Some(3 * SECOND),
        dead_letter_topic: Some("dead".into()),
        ..queue("jobs")
    };
    let mut pair = start(with_queues([settings]));
    publish_later(&mut pair, 1, "jobs", seconds(5));
    publish_later(&mut pair, 2, "jobs", seconds(2));
    pass(&mut pair, 2);
    assert_eq!(data(&pair.take_queued(2)), ["2"]);
    assert_eq!(figures(&pair), [2, 0, 1, 1]);
    pass(&mut pair, 1);
    assert_eq!((figures(&pair), pair.figure("jobs", "dead_letters")), ([1, 0, 0, 1], 1));
}

#[test]
fn a_later_barrier_waits_for_a_delayed_message_and_a_delayed_barrier_for_its_time() {
    let settings = QueueSettings { barrier_expression: Some("/b = 1".into()), ..queue("jobs") };
    let mut pair = start(with_queues([settings]));
    let barrier =
        |sequence, delay| Command::Publish(Publish { delay, ..publish(sequence, "jobs", r#"{"b":1}"#) });
    publish_later(&mut pair, 1, "jobs", seconds(5));
    pair.send(1, &barrier(2, Delay::None));
    pair.send(1, &barrier(3, seconds(10)));
    publish_all(&mut pair, 4..=4);
    assert_eq!(pair.take_queued(2), []);
    pass(&mut pair, 5);
    let first = pair.take_queued(2);
    assert_eq!(data(&first), ["1"]);
    pair.settle(2, "jobs", Verdict::Acknowledge, &first);
    assert_eq!(data(&pair.take_queued(2)), [r#"{"b":1}"#]);
    pair.pass(Duration::from_millis(4_999));
    assert_eq!(pair.take_queued(2), []);
    pair.pass(Duration::from_millis(1));
    assert_eq!(data(&pair.take_queued(2)), [r#"{"b":1}"#, "4"]);
}

#[test]
fn a_delayed_message_takes_its_place_by_priority_and_among_filters_when_its_time_has_come() {
    let settings = QueueSettings { priority: Some("/p".into()), ..queue("jobs") };
    let mut pair = with_queues([settings]);
    pair.client(1, "publisher");
    pair.client(2, "worker");
    pair.subscribe(2, &Subscribe { filter: Some("/p > 1"), ..consume(1, "jobs", 10) });
    pair.set_writable(2, false);
    for (sequence, data) in [(1, r#"{"p":2}"#), (2, r#"{"p":3}"#), (3, r#"{"p":1}"#)] {
        let delay = seconds(sequence);
        pair.send(1, &Command::Publish(Publish { delay, ..publish(sequence, "jobs", data) }));
    }
    pass(&mut pair, 4);
    pair.set_writable(2, true);
    pair.turn();
    assert_eq!(data(&pair.take_queued(2)), [r#"{"p":3}"#, r#"{"p":2}"#]);
}

#[test]
fn a_delayed_message_counts_toward_the_target_depth_and_one_beyond_it_keeps_its_delay() {
    let settings = QueueSettings { target_queue_depth: Some(2), ..queue("jobs") };
    let mut pair = start(with_queues([settings]));
    publish_later(&mut pair, 1, "jobs", seconds(3));
    publish_later(&mut pair, 2, "jobs", seconds(4));
    publish_later(&mut pair, 3, "jobs", seconds(60));
    publish_all(&mut pair, 4..=4);
    assert_eq!((pair.take_queued(2), figures(&pair)), (vec![], [2, 0, 2, 0]));
    pass(&mut pair, 4);
    let held = pair.take_queued(2);
    assert_eq!(data(&held), ["1", "2"]);
    pair.settle(2, "jobs", Verdict::Acknowledge, &held);
    assert_eq!((data(&pair.take_queued(2)), figures(&pair)), (vec!["4"], [2, 0, 1, 1]));
    pass(&mut pair, 55);
    assert_eq!(pair.take_queued(2), []);
    pass(&mut pair, 1);
    assert_eq!(data(&pair.take_queued(2)), ["3"]);
}

#[test]
fn every_message_of_a_large_batch_has_the_delay_of_the_batch() {
    let mut pair = start(with_queues([queue("jobs")]));
    let mut elapsed_ns = 0;
    // Each look at the clock takes a part of the turn, so that the batch is taken in several
    // slices.
    pair.broker.set_stopwatch(Box::new(move || {
        elapsed_ns += 100_000;
        quire_types::time::Instant::from_ns(elapsed_ns)
    }));
    let (mut frame, head) = (Vec::new(), Publish { delay: seconds(5), ..publish(1, "jobs", "") });
    quire_wire::put_publish_batch(&mut frame, &head, |out| {
        (0..10_000).for_each(|_| put_batch_item(out, b"1"));
    });
    pair.send_bytes(1, &frame);
    pair.one_turn();
    assert!(pair.broker.stats().appended < 10_000, "the rest of the batch waits");
    pair.turn();
    assert_eq!(figures(&pair), [10_000, 0, 10_000, 0]);
    pair.pass(Duration::from_millis(4_999));
    assert_eq!(figures(&pair), [10_000, 0, 10_000, 0]);
    // Many delays end in portions.
    pair.pass(Duration::from_millis(10));
    assert_eq!(figures(&pair), [10_000, 9_990, 0, 10]);
}
