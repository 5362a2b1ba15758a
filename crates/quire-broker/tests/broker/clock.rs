//! The wall clock is ahead for a while and is then corrected. The times in the log never decrease.
//! Lifetimes and delays count from the time at which the server took a message (docs/operations.md,
//! "The clock").

use std::time::Duration;

use quire_broker::{Event, QueueSettings, SowTopicSettings, SyncType, TableExpiration};
use quire_command::*;
use quire_types::Delay;

use crate::last_value_pair::*;
use crate::last_value_restarts::{crash, restart};
use crate::links::*;
use crate::pair::*;
use crate::queue_pair::*;

const SECOND: u64 = 1_000_000_000;
const HOUR: u64 = 3_600 * SECOND;

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A last-value topic whose records live for 2 s.
fn short_lived() -> SowTopicSettings {
    SowTopicSettings { expiration: TableExpiration::AfterNs(2 * SECOND), ..sow_topic("orders") }
}

/// One message was recorded while the clock was an hour ahead.
fn set_back(mut pair: Pair, topic: &str) -> Pair {
    pair.wall_ahead_ns = HOUR;
    pair.publish(1, 1, topic, r#"{"id":1}"#);
    pair.turn();
    pair.wall_ahead_ns = 0;
    pair
}

#[test]
fn records_published_after_the_clock_was_set_back_end_after_their_lifetime() {
    for ending in ["none", "restart", "crash"] {
        let mut pair = set_back(with_topics([short_lived()]), "orders");
        pair.publish(1, 2, "orders", r#"{"id":2}"#);
        pair.send(
            1,
            &Command::Publish(Publish { expiration_s: Some(4), ..publish(3, "orders", r#"{"id":3}"#) }),
        );
        pair.turn();
        let ended_at = pair.now_ns + 2 * SECOND;
        let mut pair = match ending {
            "restart" => restart(pair, sow_config([short_lived()])),
            "crash" => {
                let now_ns = pair.now_ns;
                let mut pair = crash(pair, sow_config([short_lived()]));
                pair.now_ns = now_ns;
                pair
            }
            _ => pair,
        };
        pair.pass(Duration::from_nanos(ended_at - pair.now_ns - SECOND / 2));
        assert_eq!(pair.records(2, query(5, "orders")).len(), 3, "{ending}");
        pair.pass(seconds(1));
        // The message that was taken while the clock was ahead keeps that time.
        let left = [r#"{"id":1}"#, r#"{"id":3}"#];
        assert_eq!(pair.records(2, query(5, "orders")), left, "{ending}");
        pair.pass(seconds(2));
        assert_eq!(pair.records(2, query(5, "orders")), left[..1], "{ending}");
    }
}

#[test]
fn a_record_that_ends_after_the_clock_was_set_back_gives_oof_to_subscriptions_from_before() {
    let mut pair = with_topics([short_lived()]);
    pair.wall_ahead_ns = HOUR;
    pair.subscribe(2, &sow(3, "orders"));
    pair.turn();
    pair.take(2);
    let mut pair = set_back(pair, "orders");
    pair.publish(1, 2, "orders", r#"{"id":2}"#);
    pair.turn();
    pair.pass(seconds(3));
    pair.turn();
    assert_eq!(pair.take_rows(2), [r#"+{"id":1}"#, r#"+{"id":2}"#, r#"-Expired {"id":2}"#]);
}

#[test]
fn messages_of_a_queue_expire_after_their_lifetime_also_after_a_crash_while_the_clock_is_behind_the_log() {
    let settings = || QueueSettings {
        expiration_ns: Some(2 * SECOND),
        dead_letter_topic: Some("dead".into()),
        ..queue("jobs")
    };
    for crashes in [false, true] {
        let mut pair = with_queues([settings()]);
        pair.client(1, "publisher");
        let mut pair = set_back(pair, "jobs");
        pair.publish(1, 2, "jobs", "2");
        pair.turn();
        if crashes {
            pair = pair.restart(queue_config([settings()]));
            pair.client(1, "publisher");
        }
        // After a crash the age of the first message is that of the log.
        let first = u64::from(crashes);
        pair.pass(seconds(1));
        assert_eq!(pair.figure("jobs", "depth"), 2, "{crashes}");
        pair.pass(seconds(2));
        assert_eq!(pair.figure("jobs", "depth"), first, "{crashes}");
        pair.publish(1, 3, "jobs", "3");
        pair.turn();
        pair.pass(seconds(3));
        assert_eq!(pair.figure("jobs", "depth"), first, "{crashes}");
    }
}

#[test]
fn delays_and_leases_do_not_follow_a_clock_that_was_set_back() {
    let settings = || QueueSettings { lease_period_ns: Some(2 * SECOND), ..queue("jobs") };
    let mut pair = with_queues([settings()]);
    pair.client(1, "publisher");
    let mut pair = set_back(pair, "jobs");
    let delay = Delay::For { ns: 5 * SECOND };
    pair.send(1, &Command::Publish(Publish { delay, ..publish(2, "jobs", "2") }));
    pair.turn();
    let mut pair = pair.restart(queue_config([settings()]));
    pair.client(2, "worker");
    pair.subscribe(2, &consume(1, "jobs", 10));
    pair.turn();
    assert_eq!(data(&pair.take_queued(2)), [r#"{"id":1}"#]);
    // The lease ends, and the message comes again.
    pair.pass(seconds(3));
    pair.turn();
    assert_eq!(data(&pair.take_queued(2)), [r#"{"id":1}"#]);
    assert_eq!(pair.figure("jobs", "delayed"), 1);
    pair.pass(seconds(3));
    pair.turn();
    assert!(data(&pair.take_queued(2)).contains(&"2"));
}

#[test]
fn lifetimes_end_after_a_jump_forward_and_do_not_end_while_the_clock_stands_still() {
    let mut pair = with_topics([short_lived()]);
    pair.wall_ahead_ns = HOUR;
    pair.publish(1, 1, "orders", r#"{"id":1}"#);
    pair.turn();
    // As much time passes as the clock is set back.
    for _ in 0..10 {
        pair.pass(seconds(1));
        pair.wall_ahead_ns -= SECOND;
        pair.turn();
    }
    assert_eq!(pair.records(2, query(5, "orders")).len(), 1);
    pair.wall_ahead_ns += 2 * HOUR;
    pair.pass(seconds(1));
    assert_eq!(pair.records(2, query(6, "orders")).len(), 0);
}

#[test]
fn a_clock_that_was_set_back_is_reported_once_with_the_distance() {
    let mut pair = set_back(with_topics([short_lived()]), "orders");
    let reports = |pair: &Pair| {
        let behind = |event: &Event| match event {
            Event::ClockBehind { behind } => Some(behind.as_secs()),
            _ => None,
        };
        pair.log.iter().filter_map(behind).collect::<Vec<_>>()
    };
    assert_eq!(reports(&pair), [0; 0]);
    for sequence in 2..50 {
        pair.publish(1, sequence, "orders", r#"{"id":2}"#);
        pair.turn();
        pair.pass(seconds(1));
    }
    assert_eq!(reports(&pair), [3_600]);
    // It is corrected, and set back again.
    let mut pair = set_back(pair, "orders");
    pair.pass(seconds(60));
    pair.turn();
    assert_eq!(reports(&pair).len(), 2);
    // The next start meets the same log.
    let mut pair = restart(pair, sow_config([short_lived()]));
    pair.turn();
    assert_eq!(reports(&pair).len(), 1);
}

#[test]
fn an_instance_counts_lifetimes_from_the_time_at_which_it_took_a_message() {
    let mut cluster = Cluster::new(pair_of(SyncType::Sync));
    cluster.at(0).client(1, "p");
    cluster.at(1).client(2, "q");
    // The clock of the second instance is an hour ahead for one message.
    cluster.at(1).wall_ahead_ns = HOUR;
    cluster.publish(1, 2, 1, 1);
    cluster.at(1).wall_ahead_ns = 0;
    cluster.publish(0, 1, 1, 1);
    let taken = |cluster: &mut Cluster, number| {
        cluster.records(number, |record| {
            (record.timestamp.as_ns() - WALL_START_NS, record.received().as_ns() - WALL_START_NS)
        })
    };
    let [first, second] = taken(&mut cluster, 1)[..] else { panic!("two records") };
    assert!(first.0 == first.1 && first.0 >= HOUR);
    assert!(second.0 == first.0 && second.1 < HOUR, "{second:?}");
    // The first instance took the message at its time, and does not get that of the second one.
    assert!(taken(&mut cluster, 0).iter().all(|(time, received)| time == received && *time < HOUR));
}
