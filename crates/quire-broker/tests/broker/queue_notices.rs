//! Lines of the log about messages that no consumer can handle: at most one for each queue, kind
//! and minute.

use std::time::Duration;

use quire_broker::{Event, QueueSettings};
use quire_queue::Verdict;

use crate::pair::*;
use crate::queue_pair::*;

fn start(settings: QueueSettings) -> Pair {
    let mut pair = with_queues([settings]);
    pair.client(1, "publisher");
    pair.client(2, "worker");
    pair.subscribe(2, &consume(1, "jobs", 100));
    pair
}

/// Cancels all messages of the worker, and repeats this `times` times.
fn cancel(pair: &mut Pair, times: usize) {
    for _ in 0..times {
        let held = pair.take_queued(2);
        assert!(!held.is_empty());
        pair.settle(2, "jobs", Verdict::Cancel, &held);
    }
}

fn lines(pair: &Pair, is_wanted: fn(&Event) -> bool) -> Vec<String> {
    pair.log.iter().filter(|event| is_wanted(event)).map(ToString::to_string).collect()
}

fn is_about_cancels(event: &Event) -> bool {
    matches!(event, Event::MessageCancelled { .. } | Event::MessagesCancelled { .. })
}

fn is_about_limits(event: &Event) -> bool {
    matches!(event, Event::MessageExpired { .. } | Event::MessagesExpired { .. })
}

#[test]
fn a_message_that_is_cancelled_again_and_again_is_logged_once_a_minute() {
    let mut pair = start(queue("jobs"));
    publish_all(&mut pair, 1..=1);
    cancel(&mut pair, 4);
    assert_eq!(lines(&pair, is_about_cancels), [""; 0]);
    cancel(&mut pair, 1000);
    let logged = lines(&pair, is_about_cancels);
    assert_eq!(logged.len(), 1, "{logged:?}");
    assert!(logged[0].contains("was cancelled 5 times"), "{logged:?}");
    pair.pass(Duration::from_secs(61));
    let logged = lines(&pair, is_about_cancels);
    assert_eq!(logged.len(), 2, "{logged:?}");
    assert!(logged[1].contains("999 more times"), "{logged:?}");
    pair.pass(Duration::from_secs(300));
    assert_eq!(lines(&pair, is_about_cancels).len(), 2);
}

#[test]
fn a_message_that_a_limit_removes_for_good_is_logged() {
    let limits = [
        QueueSettings { max_cancels: Some(0), ..queue("jobs") },
        QueueSettings { max_deliveries: Some(1), ..queue("jobs") },
    ];
    for settings in limits {
        let mut pair = start(settings.clone());
        publish_all(&mut pair, 1..=3);
        cancel(&mut pair, 1);
        let logged = lines(&pair, is_about_limits);
        assert_eq!(logged.len(), 1, "{logged:?}");
        assert!(logged[0].contains("which has no dead_letter_topic"), "{logged:?}");
        pair.pass(Duration::from_secs(61));
        assert!(lines(&pair, is_about_limits)[1].contains("2 more messages"));
        // A dead letter has a line of another kind.
        let mut pair = start(QueueSettings { dead_letter_topic: Some("dead".into()), ..settings });
        publish_all(&mut pair, 1..=1);
        cancel(&mut pair, 1);
        assert_eq!(lines(&pair, is_about_limits), [""; 0]);
        assert!(pair.log.iter().any(|event| matches!(event, Event::DeadLetter { .. })));
    }
}

#[test]
fn a_message_whose_time_is_over_or_that_its_consumer_expires_is_not_logged() {
    let mut pair = start(QueueSettings { expiration_ns: Some(1_000_000_000), ..queue("jobs") });
    publish_all(&mut pair, 1..=2);
    let held = pair.take_queued(2);
    pair.settle(2, "jobs", Verdict::Expire, &held[..1]);
    pair.pass(Duration::from_secs(61));
    assert_eq!(lines(&pair, is_about_limits), [""; 0]);
}
