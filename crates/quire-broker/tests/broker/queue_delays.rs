//! Messages that are cancelled with a delay: when they come again, in which order, and that a restart changes neither.

use std::time::Duration;

use quire_broker::QueueSettings;
use quire_command::Subscribe;
use quire_queue::Verdict;

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
