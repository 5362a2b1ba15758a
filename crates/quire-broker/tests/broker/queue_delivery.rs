//! Which subscription gets which message of a queue, and when. The rules are in docs/queues.md.

use std::time::Duration;

use quire_broker::QueueSettings;
use quire_command::*;
use quire_queue::{FairnessModel, Verdict};

use crate::pair::*;
use crate::queue_pair::*;

fn publish_all(pair: &mut Pair, topic: &str, sequences: std::ops::RangeInclusive<u64>) {
    for sequence in sequences {
        pair.publish(1, sequence, topic, &format!(r#"{{"n":{sequence}}}"#));
    }
    pair.turn();
}

fn numbers(messages: &[FromQueue]) -> Vec<u64> {
    let number = |message: &FromQueue| {
        serde_json::from_str::<serde_json::Value>(&message.data).unwrap()["n"].as_u64().unwrap()
    };
    messages.iter().map(number).collect()
}

#[test]
fn rule_4_proportional_goes_to_the_smallest_part_in_use_and_ties_to_the_oldest() {
    let mut pair = with_queues([queue("jobs")]);
    pair.client(1, "publisher");
    for (client, backlog) in [(2, 2), (3, 4), (4, 10)] {
        pair.client(client, &format!("worker-{client}"));
        pair.subscribe(client, &consume(1, "jobs", backlog));
    }
    pair.turn();
    // All are empty: ties go to the oldest; then 1/2, 1/4, 1/10 and so on.
    publish_all(&mut pair, "jobs", 1..=8);
    let held: Vec<Vec<u64>> = (2..=4).map(|client| numbers(&pair.take_queued(client))).collect();
    assert_eq!(held, [vec![1], vec![2, 6], vec![3, 4, 5, 7, 8]]);
}

#[test]
fn rule_5_a_message_that_nobody_wants_holds_up_nobody() {
    let mut pair = with_queues([queue("jobs")]);
    pair.client(1, "publisher");
    pair.client(2, "worker");
    pair.subscribe(2, &Subscribe { filter: Some("/n > 2"), ..consume(1, "jobs", 10) });
    publish_all(&mut pair, "jobs", 1..=4);
    assert_eq!(numbers(&pair.take_queued(2)), [3, 4]);
    assert_eq!(pair.figure("jobs", "waiting"), 2);
}

#[test]
fn subscriptions_with_filters_share_the_work_of_a_queue() {
    let fast = QueueSettings { fairness_model: Some(FairnessModel::Fast), ..queue("jobs") };
    let mut pair = with_queues([fast]);
    pair.client(1, "publisher");
    pair.client(2, "worker");
    publish_all(&mut pair, "jobs", 1..=20);
    let third = Subscribe { filter: Some("/n % 3 = 0"), ..consume(1, "jobs", 100) };
    pair.subscribe(2, &third);
    pair.subscribe(2, &Subscribe { filter: Some("/n % 2 = 0"), ..consume(2, "jobs", 100) });
    pair.subscribe(2, &consume(3, "jobs", 1));
    pair.turn();
    let messages = pair.take_queued(2);
    let of = |number: u32| {
        let mine: Vec<_> =
            messages.iter().filter(|message| message.subscription == number).cloned().collect();
        numbers(&mine)
    };
    assert_eq!(of(1), [3, 6, 9, 12, 15, 18]);
    assert_eq!(of(2), [2, 4, 8, 10, 14, 16, 20]);
    assert_eq!(of(3), [1]);
}

#[test]
fn rule_13_a_barrier_comes_when_all_before_it_is_settled_and_to_everyone_it_matches() {
    let settings = QueueSettings { barrier_expression: Some("/n = 3".into()), ..queue("jobs") };
    let mut pair = with_queues([settings]);
    pair.client(1, "publisher");
    pair.client(2, "worker");
    pair.client(3, "barriers only");
    pair.client(4, "others");
    pair.subscribe(2, &consume(1, "jobs", 2));
    pair.subscribe(3, &consume(1, "jobs", 0));
    pair.subscribe(4, &Subscribe { filter: Some("/n > 3"), ..consume(1, "jobs", 1) });
    publish_all(&mut pair, "jobs", 1..=5);
    let held = pair.take_queued(2);
    assert_eq!(numbers(&held), [1, 2]);
    pair.settle(2, "jobs", Verdict::Acknowledge, &held[..1]);
    for client in [2, 3, 4] {
        assert_eq!(pair.take_queued(client), [], "held until everything before it is settled");
    }
    pair.settle(2, "jobs", Verdict::Acknowledge, &held[1..]);
    assert_eq!(numbers(&pair.take_queued(3)), [3]);
    let after = pair.take_queued(2);
    let mut all: Vec<u64> = numbers(&after);
    all.extend(numbers(&pair.take_queued(4)));
    all.sort_unstable();
    assert_eq!(all, [3, 4, 5]);
    // Clients settle what they got from a queue; of a barrier that changes nothing.
    pair.settle(2, "jobs", Verdict::Acknowledge, &after[..1]);
    assert_eq!(pair.figure("jobs", "released"), 1);
}

#[test]
fn rule_15_a_publish_to_the_queue_is_a_publish_to_its_target() {
    let risk = QueueSettings {
        underlying_topic: Some("^(ORDERS|RISK_DIRECT)$".into()),
        default_publish_target: Some("RISK_DIRECT".into()),
        ..queue("RISK")
    };
    let analytics = QueueSettings {
        underlying_topic: Some("^(ORDERS|ANALYTICS_DIRECT)$".into()),
        default_publish_target: Some("ANALYTICS_DIRECT".into()),
        ..queue("ANALYTICS")
    };
    let mut pair = with_queues([risk, analytics]);
    pair.client(1, "publisher");
    pair.client(2, "worker");
    pair.client(3, "listener");
    pair.subscribe(2, &consume(1, "RISK", 10));
    pair.subscribe(2, &consume(2, "ANALYTICS", 10));
    pair.subscribe(3, &subscribe(1, "RISK_DIRECT"));
    pair.publish(1, 1, "ORDERS", "both");
    pair.publish(1, 2, "RISK", "risk");
    pair.publish(1, 3, "ANALYTICS_DIRECT", "analytics");
    pair.turn();
    let got = pair.take_queued(2).into_iter();
    let got: Vec<_> = got.map(|message| (message.subscription, message.topic, message.data)).collect();
    let expected = [
        (1, "ORDERS", "both"),
        (1, "RISK_DIRECT", "risk"),
        (2, "ORDERS", "both"),
        (2, "ANALYTICS_DIRECT", "analytics"),
    ];
    assert_eq!(got.len(), expected.len());
    for (subscription, topic, data) in expected {
        assert!(got.contains(&(subscription, topic.into(), data.into())), "{got:?}");
    }
    assert_eq!(pair.take_data(3), ["risk"]);
    pair.subscribe(3, &replay(2, "RISK", "0"));
    pair.turn();
    assert_eq!(pair.take_data(3), ["both", "risk"]);
}

#[test]
fn a_pattern_over_queues_has_one_backlog_and_names_the_queue() {
    let mut pair = with_queues([queue("jobs-a"), queue("jobs-b")]);
    pair.client(1, "publisher");
    pair.client(2, "worker");
    pair.subscribe(2, &consume(1, "^jobs-", 3));
    pair.publish(1, 1, "jobs-a", "a1");
    pair.publish(1, 2, "jobs-a", "a2");
    pair.publish(1, 3, "jobs-b", "b1");
    pair.publish(1, 4, "jobs-b", "b2");
    pair.publish(1, 5, "jobs-c", "no queue");
    pair.turn();
    let mut queued = Vec::new();
    let mut others = Vec::new();
    for said in pair.take(2) {
        match said {
            Said::Queued(message) => queued.push(message),
            Said::Message { data, .. } => others.push(data),
            _ => (),
        }
    }
    assert_eq!((data(&queued), others), (vec!["a1", "b1", "a2"], vec!["no queue".to_owned()]));
    let named: Vec<_> = queued.iter().map(|message| message.queue.as_deref().unwrap()).collect();
    assert_eq!(named, ["jobs-a", "jobs-b", "jobs-a"]);
    pair.settle(2, "jobs-a", Verdict::Acknowledge, &queued[..1]);
    assert_eq!(data(&pair.take_queued(2)), ["b2"]);
}

#[test]
fn rule_16_replaced_by_a_smaller_backlog_it_waits_until_less_is_outstanding_and_keeps_its_leases() {
    let mut pair = with_queues([queue("jobs")]);
    pair.client(1, "publisher");
    pair.client(2, "worker");
    pair.subscribe(2, &consume(1, "jobs", 3));
    publish_all(&mut pair, "jobs", 1..=6);
    let held = pair.take_queued(2);
    assert_eq!(numbers(&held), [1, 2, 3]);
    pair.subscribe(2, &Subscribe { options: SubscribeOptions::REPLACE, ..consume(1, "jobs", 2) });
    pair.turn();
    assert_eq!((pair.figure("jobs", "backlog"), pair.figure("jobs", "waiting")), (3, 3));
    pair.settle(2, "jobs", Verdict::Acknowledge, &held[..1]);
    assert_eq!(pair.take_queued(2), []);
    pair.settle(2, "jobs", Verdict::Acknowledge, &held[1..2]);
    assert_eq!(numbers(&pair.take_queued(2)), [4]);
    pair.send(
        2,
        &Command::Unsubscribe(Unsubscribe {
            command: 9,
            acks: Acks::default(),
            subscription: 1,
            begun: None,
        }),
    );
    pair.turn();
    assert_eq!((pair.figure("jobs", "backlog"), pair.figure("jobs", "depth")), (0, 4));
}

/// A worker, with three of four messages, whose subscription is replaced by another; and another
/// worker.
fn replaced(replacement: &Subscribe<'_>) -> (Pair, Vec<FromQueue>) {
    let mut pair = with_queues([queue("jobs")]);
    pair.client(1, "publisher");
    pair.client(2, "worker");
    pair.client(3, "other");
    pair.subscribe(2, &consume(1, "jobs", 3));
    publish_all(&mut pair, "jobs", 1..=4);
    let held = pair.take_queued(2);
    pair.subscribe(2, &Subscribe { options: SubscribeOptions::REPLACE, ..*replacement });
    pair.turn();
    pair.subscribe(3, &consume(1, "jobs", 10));
    pair.turn();
    assert_eq!(numbers(&pair.take_queued(3)), [4], "the others are still leased");
    (pair, held)
}

#[test]
fn a_subscription_that_is_replaced_by_another_kind_keeps_its_leases() {
    for replacement in [subscribe(1, "plain"), replay(1, "plain", "0"), consume(1, "others", 3)] {
        let (mut pair, held) = replaced(&replacement);
        pair.settle(2, "jobs", Verdict::Acknowledge, &held[..1]);
        pair.settle(2, "jobs", Verdict::Release, &held[1..2]);
        let again = pair.take_queued(3);
        assert_eq!((numbers(&again), again[0].deliveries), (vec![2], 1));
        pair.publish(1, 5, "plain", "news");
        pair.turn();
        let is_news = |said: &Said| matches!(said, Said::Message { data, .. } if data == "news");
        let is_plain = replacement.topic == "plain";
        assert_eq!(pair.take(2).iter().any(is_news), is_plain);
        let mut begun = Vec::new();
        put_bookmark(&mut begun, held[2].bookmark.0, held[2].bookmark.1);
        let begun = BegunMessages::from_bytes(&begun, None);
        let unsubscribe = Unsubscribe { command: 9, acks: Acks::default(), subscription: 1, begun };
        pair.send(2, &Command::Unsubscribe(unsubscribe));
        pair.turn();
        let again = pair.take_queued(3);
        assert_eq!((numbers(&again), again[0].deliveries), (vec![3], 2), "the delivery counts");
        assert_eq!(pair.figure("jobs", "subscriptions"), 1);
    }
}

#[test]
fn a_replaced_subscription_that_loses_its_connection_loses_its_leases() {
    let (mut pair, _) = replaced(&subscribe(1, "plain"));
    pair.disconnect(2);
    pair.turn();
    assert_eq!(numbers(&pair.take_queued(3)), [1, 2, 3]);
}

#[test]
fn a_subscription_that_returns_to_its_queue_has_its_leases_in_its_backlog() {
    let (mut pair, held) = replaced(&subscribe(1, "plain"));
    pair.send(3, &Command::Goodbye);
    pair.turn();
    pair.disconnect(3);
    pair.subscribe(2, &Subscribe { options: SubscribeOptions::REPLACE, ..consume(1, "jobs", 3) });
    pair.turn();
    assert_eq!(pair.take_queued(2), [], "three are outstanding");
    pair.settle(2, "jobs", Verdict::Acknowledge, &held);
    assert_eq!(numbers(&pair.take_queued(2)), [4]);
    assert_eq!(pair.figure("jobs", "depth"), 1);
}

#[test]
fn rule_17_the_highest_priority_first_ties_to_the_oldest_and_what_is_no_number_last() {
    let settings = QueueSettings { priority: Some("/price * /qty".into()), ..queue("jobs") };
    let mut pair = with_queues([settings]);
    pair.client(1, "publisher");
    pair.client(2, "worker");
    let messages = [
        r#"{"n":1}"#,
        r#"{"n":2,"price":2,"qty":3}"#,
        r#"{"n":3,"price":10,"qty":1.5}"#,
        r#"{"n":4,"price":3,"qty":2}"#,
        r#"{"n":5,"price":-3,"qty":2}"#,
        r#"{"n":6,"price":"x","qty":2}"#,
        r#"{"n":7,"price":0,"qty":2}"#,
    ];
    for (sequence, data) in (1..).zip(messages) {
        pair.publish(1, sequence, "jobs", data);
    }
    pair.turn();
    pair.subscribe(2, &consume(1, "jobs", 10));
    pair.turn();
    assert_eq!(numbers(&pair.take_queued(2)), [3, 2, 4, 7, 1, 5, 6]);
}

#[test]
fn a_priority_is_converted_to_a_number_as_in_a_filter() {
    let settings = QueueSettings { priority: Some("/p".into()), ..queue("jobs") };
    let mut pair = with_queues([settings]);
    pair.client(1, "publisher");
    pair.client(2, "worker");
    let messages = [
        r#"{"n":1,"p":"x9"}"#,
        r#"{"n":2,"p":"5"}"#,
        r#"{"n":3,"p":7}"#,
        r#"{"n":4,"p":"1e1"}"#,
        r#"{"n":5,"p":true}"#,
        r#"{"n":6,"p":["6",9]}"#,
        r#"{"n":7,"p":{"a":9}}"#,
        r#"{"n":8,"p":[]}"#,
        r#"{"n":9,"p":"-1"}"#,
        r#"{"n":10,"p":" 9"}"#,
        r#"{"n":11,"p":false}"#,
    ];
    for (sequence, data) in (1..).zip(messages) {
        pair.publish(1, sequence, "jobs", data);
    }
    pair.turn();
    pair.subscribe(2, &consume(1, "jobs", 20));
    pair.turn();
    assert_eq!(numbers(&pair.take_queued(2)), [4, 3, 6, 2, 5, 11, 1, 7, 8, 9, 10]);
}

#[test]
fn only_what_the_filter_of_a_queue_lets_through_enters() {
    let settings = QueueSettings { filter: Some("/n % 2 = 1".into()), ..queue("jobs") };
    let mut pair = with_queues([settings]);
    pair.client(1, "publisher");
    publish_all(&mut pair, "jobs", 1..=5);
    assert_eq!(pair.figure("jobs", "depth"), 3);
}

#[test]
fn a_connection_that_takes_nothing_gets_no_leases_and_is_not_cut_off() {
    let mut pair = with_queues([queue("jobs")]);
    pair.client(1, "publisher");
    pair.client(2, "slow");
    pair.client(3, "quick");
    pair.subscribe(2, &consume(1, "jobs", 1000));
    pair.turn();
    pair.set_writable(2, false);
    publish_all(&mut pair, "jobs", 1..=100);
    assert_eq!(pair.figure("jobs", "backlog"), 0);
    pair.subscribe(3, &consume(1, "jobs", 40));
    pair.turn();
    assert_eq!(pair.take_queued(3).len(), 40);
    pair.set_writable(2, true);
    pair.turn();
    assert_eq!(numbers(&pair.take_queued(2)), (41..=100).collect::<Vec<_>>());
}

#[test]
fn large_messages_are_leased_as_the_connection_takes_them() {
    let mut pair = with_queues([queue("jobs")]);
    pair.client(1, "publisher");
    pair.client(2, "worker");
    pair.subscribe(2, &consume(1, "jobs", 1000));
    let large = "x".repeat(200_000);
    (1..=20).for_each(|sequence| pair.publish(1, sequence, "jobs", &large));
    pair.one_turn();
    pair.write();
    pair.one_turn();
    let leased = pair.figure("jobs", "backlog");
    assert!((1..=4).contains(&leased), "{leased} of 200 KB in one turn");
    pair.turn();
    assert_eq!(pair.take_queued(2).len(), 20);
}

#[test]
fn what_is_not_at_hand_is_fetched_off_the_loop_and_the_order_holds() {
    let mut pair = with_queues([queue("jobs")]);
    pair.client(1, "publisher");
    publish_all(&mut pair, "jobs", 1..=3000);
    let mut pair = pair.restart(queue_config([queue("jobs")]));
    pair.client(1, "publisher");
    pair.client(2, "worker");
    pair.client(3, "filtered");
    pair.reads_at_once = false;
    pair.subscribe(2, &consume(1, "jobs", 5000));
    pair.turn();
    assert_eq!(pair.take_queued(2), [], "nothing is read on the loop");
    // The data of messages that are published meanwhile is in memory. They must not overtake.
    publish_all(&mut pair, "jobs", 3001..=3010);
    assert_eq!(pair.take_queued(2), []);
    pair.reads_at_once = true;
    pair.run_reads();
    pair.turn();
    assert_eq!(numbers(&pair.take_queued(2)), (1..=3010).collect::<Vec<_>>());
    // A filter also waits for messages whose data is not in memory.
    let mut pair = pair.restart(queue_config([queue("jobs")]));
    pair.client(3, "filtered");
    pair.subscribe(3, &Subscribe { filter: Some("/n % 1000 = 0"), ..consume(1, "jobs", 10) });
    pair.turn();
    assert_eq!(numbers(&pair.take_queued(3)), [1000, 2000, 3000]);
}

#[test]
fn what_is_fetched_for_a_lease_that_ended_meanwhile_is_not_sent() {
    let settings = || QueueSettings { lease_period_ns: Some(1_000_000_000), ..queue("jobs") };
    let mut pair = with_queues([settings()]);
    pair.client(1, "publisher");
    publish_all(&mut pair, "jobs", 1..=1);
    let mut pair = pair.restart(queue_config([settings()]));
    pair.client(2, "worker");
    pair.reads_at_once = false;
    pair.subscribe(2, &consume(1, "jobs", 1));
    pair.turn();
    pair.send(
        2,
        &Command::Unsubscribe(Unsubscribe {
            command: 1,
            acks: Acks::default(),
            subscription: 1,
            begun: None,
        }),
    );
    pair.client(3, "other");
    pair.subscribe(3, &consume(1, "jobs", 1));
    pair.pass(Duration::from_millis(10));
    pair.run_reads();
    pair.turn();
    assert_eq!(pair.take_queued(2), []);
    assert_eq!(numbers(&pair.take_queued(3)), [1]);
}
