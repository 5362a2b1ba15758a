//! Queues through the broker: publish, delivery, acknowledgement, and the limits of a queue
//! (docs/queues.md).

use std::time::Duration;

use quire_broker::{BrokerConfig, QueueSettings};
use quire_command::*;
use quire_types::Verdict;

use crate::pair::*;
use crate::queue_pair::*;

#[test]
fn a_published_message_is_queued_delivered_and_acknowledged() {
    let mut pair = with_queues([queue("jobs")]);
    pair.client(1, "publisher");
    pair.client(2, "worker");
    pair.subscribe(2, &consume(1, "jobs", 10));
    pair.publish(1, 1, "jobs", "a");
    pair.publish(1, 2, "jobs", "b");
    pair.turn();
    let messages = pair.take_queued(2);
    assert_eq!(data(&messages), ["a", "b"]);
    assert_eq!(messages[0].lease_ms, u64::MAX);
    assert_eq!((messages[0].deliveries, messages[0].cancels), (1, 0));
    pair.settle(2, "jobs", Verdict::Acknowledge, &messages);
    assert_eq!(pair.figure("jobs", "depth"), 0);
    assert_eq!(pair.figure("jobs", "acknowledged"), 2);
}

#[test]
fn settles_are_answered_when_applied_and_when_durable() {
    let mut pair = with_queues([queue("jobs")]);
    pair.client(1, "publisher");
    pair.client(2, "worker");
    pair.subscribe(2, &consume(1, "jobs", 10));
    pair.publish(1, 1, "jobs", "a");
    pair.turn();
    let messages = pair.take_queued(2);
    pair.writes_at_once = false;
    pair.settle_as(2, "jobs", Verdict::Acknowledge, &messages, 7, Acks::PROCESSED.and(Acks::PERSISTED));
    pair.turn();
    assert_eq!(pair.take(2), [ack(AckKind::Processed, 7, 0)]);
    pair.send(2, &Command::Flush { command: 8, acks: Acks::PERSISTED });
    pair.turn();
    assert_eq!(pair.take(2), []);
    pair.write();
    pair.turn();
    assert_eq!(pair.take(2), [ack(AckKind::Persisted, 7, 0), ack(AckKind::Persisted, 8, 0)]);
}

#[test]
fn what_was_acknowledged_stays_so_over_a_restart_and_the_rest_comes_back() {
    let settings = || [queue("jobs")];
    let mut pair = with_queues(settings());
    pair.client(1, "publisher");
    pair.client(2, "worker");
    pair.subscribe(2, &consume(1, "jobs", 10));
    for (sequence, data) in (1..).zip(["a", "b", "c", "d"]) {
        pair.publish(1, sequence, "jobs", data);
    }
    pair.turn();
    let messages = pair.take_queued(2);
    pair.settle(2, "jobs", Verdict::Acknowledge, &messages[1..3]);
    pair.settle(2, "jobs", Verdict::Cancel, &messages[3..]);
    let mut pair = pair.restart(queue_config(settings()));
    pair.client(2, "worker");
    pair.subscribe(2, &consume(1, "jobs", 10));
    pair.turn();
    let messages = pair.take_queued(2);
    assert_eq!(data(&messages), ["a", "d"]);
    assert_eq!((messages[1].deliveries, messages[1].cancels), (1, 1));
}

#[test]
fn rule_1_queues_over_one_topic_are_settled_on_their_own() {
    let over = |name: &str| QueueSettings { underlying_topic: Some("orders".into()), ..queue(name) };
    let mut pair = with_queues([over("risk"), over("analytics")]);
    pair.client(1, "publisher");
    pair.client(2, "worker");
    pair.subscribe(2, &consume(1, "risk", 10));
    pair.publish(1, 1, "orders", "a");
    pair.turn();
    let messages = pair.take_queued(2);
    assert_eq!(messages[0].topic, "orders");
    pair.settle(2, "risk", Verdict::Acknowledge, &messages);
    assert_eq!((pair.figure("risk", "depth"), pair.figure("analytics", "depth")), (0, 1));
}

#[test]
fn rule_2_the_name_of_a_queue_is_a_queue_and_with_a_bookmark_a_replay() {
    let mut pair = with_queues([queue("jobs")]);
    pair.client(1, "publisher");
    pair.client(2, "worker");
    pair.client(3, "auditor");
    pair.subscribe(2, &consume(1, "jobs", 10));
    pair.subscribe(3, &replay(1, "jobs", "0"));
    pair.subscribe(3, &subscribe(2, "^jo"));
    pair.publish(1, 1, "jobs", "a");
    pair.publish(1, 1, "joke", "not queued");
    pair.turn();
    let held = pair.take_queued(2);
    let others = pair.take_queued(3);
    assert_eq!((held.len(), others.len()), (1, 0), "one holds it, also among patterns");
    pair.settle(2, "jobs", Verdict::Acknowledge, &held);
    pair.subscribe(3, &replay(5, "jobs", "0"));
    pair.turn();
    assert_eq!(pair.take_data(3), ["a"]);
    assert_eq!(pair.figure("jobs", "depth"), 0);
}

#[test]
fn rule_3_without_max_backlog_the_second_message_comes_after_the_first_acknowledgement() {
    let settings = QueueSettings { max_per_subscription_backlog: Some(100), ..queue("jobs") };
    let mut pair = with_queues([settings]);
    pair.client(1, "publisher");
    pair.client(2, "worker");
    pair.subscribe(2, &subscribe(1, "jobs"));
    pair.publish(1, 1, "jobs", "a");
    pair.publish(1, 2, "jobs", "b");
    pair.turn();
    let first = pair.take_queued(2);
    assert_eq!(data(&first), ["a"]);
    pair.settle(2, "jobs", Verdict::Acknowledge, &first);
    assert_eq!(data(&pair.take_queued(2)), ["b"]);
}

#[test]
fn the_answer_to_a_subscribe_says_the_backlog_granted() {
    let capped = QueueSettings { max_per_subscription_backlog: Some(100), ..queue("jobs") };
    let mut pair = with_queues([capped, queue("more")]);
    pair.client(1, "worker");
    for (number, topic, asked, granted) in
        [(1, "jobs", 500, 100), (2, "jobs", 7, 7), (3, "more", 500, 500), (4, "^(jobs|more)$", 500, 100)]
    {
        pair.subscribe(1, &consume(number, topic, asked));
        pair.turn();
        assert_eq!(pair.clients[&1].detail, granted, "{topic} {asked}");
    }
    pair.subscribe(1, &Subscribe { options: SubscribeOptions::REPLACE, ..consume(3, "jobs", 500) });
    pair.subscribe(1, &subscribe(5, "no queue"));
    pair.turn();
    assert_eq!(pair.clients[&1].detail, 0);
}

#[test]
fn rule_6_a_lease_that_runs_out_is_delivered_to_another_and_its_holder_is_told() {
    let settings = QueueSettings { lease_period_ns: Some(1_000_000_000), ..queue("jobs") };
    let mut pair = with_queues([settings]);
    pair.client(1, "publisher");
    pair.client(2, "slow");
    pair.client(3, "other");
    pair.subscribe(2, &consume(1, "jobs", 1));
    pair.publish(1, 1, "jobs", "a");
    pair.turn();
    let held = pair.take_queued(2);
    assert_eq!(held[0].lease_ms, 1000);
    pair.subscribe(2, &Subscribe { options: SubscribeOptions::REPLACE, ..consume(1, "jobs", 0) });
    pair.subscribe(3, &consume(1, "jobs", 1));
    pair.turn();
    pair.pass(Duration::from_millis(999));
    assert_eq!(pair.take_queued(3), []);
    pair.take(2);
    pair.pass(Duration::from_millis(1));
    let again = pair.take_queued(3);
    assert_eq!((data(&again), again[0].deliveries), (vec!["a"], 2));
    let (reason, bookmark) = (LeaseEnd::Expired, held[0].bookmark);
    // The subscription was replaced while it held the message.
    let lost = Said::LeaseLost { subscription: 1, reason, bookmark, queue: Some("jobs".into()) };
    assert_eq!(pair.take(2), [lost]);
    assert_eq!(pair.figure("jobs", "expired_leases"), 1);
}

#[test]
fn an_idle_consumer_gets_a_message_whose_lease_expired_at_its_first_redelivery() {
    let settings =
        QueueSettings { lease_period_ns: Some(3_000_000_000), max_deliveries: Some(5), ..queue("jobs") };
    let mut pair = with_queues([settings]);
    pair.client(1, "publisher");
    pair.client(2, "silent");
    pair.client(3, "idle");
    pair.subscribe(2, &consume(1, "jobs", 2));
    pair.publish(1, 1, "jobs", "a");
    pair.turn();
    assert_eq!(data(&pair.take_queued(2)), ["a"]);
    pair.subscribe(3, &consume(1, "jobs", 2));
    pair.turn();
    pair.pass(Duration::from_secs(3));
    assert_eq!(pair.take_queued(2), []);
    let again = pair.take_queued(3);
    assert_eq!((data(&again), again[0].deliveries), (vec!["a"], 2));
}

#[test]
fn rule_7_what_a_lost_connection_held_is_delivered_at_once() {
    let mut pair = with_queues([queue("jobs")]);
    pair.client(1, "publisher");
    pair.client(2, "dies");
    pair.client(3, "lives");
    pair.subscribe(2, &consume(1, "jobs", 10));
    pair.publish(1, 1, "jobs", "a");
    pair.turn();
    assert_eq!(pair.take_queued(2).len(), 1);
    pair.subscribe(3, &consume(1, "jobs", 10));
    pair.turn();
    assert_eq!(pair.take_queued(3), []);
    pair.disconnect(2);
    pair.turn();
    assert_eq!(data(&pair.take_queued(3)), ["a"]);
}

#[test]
fn a_queue_that_is_not_there_is_refused() {
    let mut pair = Pair::with(BrokerConfig { queues: Vec::new(), ..config() });
    pair.client(1, "worker");
    let settle = Settle {
        verdict: Verdict::Acknowledge,
        command: 3,
        acks: Acks::PROCESSED,
        queue: "none",
        messages: Selection::Matching(""),
        reason: "",
    };
    pair.send(1, &Command::Settle(settle));
    pair.send(1, &Command::Settle(Settle { command: 0, ..settle }));
    pair.send(1, &Command::Stats { command: 4, queue: Some("none") });
    pair.turn();
    assert_eq!(pair.take(1), [refused(Code::UnknownQueue, 3, 0), refused(Code::UnknownQueue, 4, 0)]);
}
