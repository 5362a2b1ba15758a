//! Queries of a queue: the messages that could be delivered, in their order, without a change; and
//! the figures.

use quire_broker::QueueSettings;
use quire_command::*;
use quire_types::Verdict;

use crate::pair::*;
use crate::queue_pair::*;

fn query<'a>(topic: &'a str) -> Query<'a> {
    let acks = Acks::PROCESSED.and(Acks::COMPLETED);
    Query { command: 7, acks, subscription: 9, topic, ..Query::default() }
}

fn with_messages(settings: QueueSettings, values: &[u64]) -> Pair {
    let mut pair = with_queues([settings]);
    pair.client(1, "publisher");
    pair.client(2, "operator");
    for (sequence, value) in (1..).zip(values) {
        pair.publish(1, sequence, "jobs", &format!(r#"{{"n":{value}}}"#));
    }
    pair.turn();
    pair
}

/// The values that the answer holds, between its two acknowledgements.
fn answer(pair: &mut Pair, query: Query<'_>) -> Vec<u64> {
    pair.send(2, &Command::Query(query));
    pair.turn();
    let said = pair.take(2);
    assert_eq!(said.first(), Some(&ack(AckKind::Processed, 7, 9)), "{said:?}");
    assert_eq!(said.last(), Some(&ack(AckKind::Completed, 7, 9)), "{said:?}");
    let value = |said: &Said| match said {
        Said::Queued(message) => {
            assert_eq!((message.subscription, message.lease_ms, message.deliveries), (9, 0, 0));
            serde_json::from_str::<serde_json::Value>(&message.data).unwrap()["n"].as_u64()
        }
        _ => None,
    };
    said.iter().filter_map(value).collect()
}

#[test]
fn the_total_of_a_query_counts_every_message_that_matches() {
    let mut pair = with_messages(queue("jobs"), &[5, 1, 4, 2]);
    let mut total = |query: Query<'_>| {
        let count = answer(&mut pair, query).len();
        (count, pair.clients[&2].total)
    };
    let (filter, order_by) = (Some("/n > 1"), Some("/n"));
    assert_eq!(total(query("jobs")), (4, 4));
    for top_n in [0, 1, 2] {
        let top = Query { top_n: Some(top_n), ..query("jobs") };
        let count = top_n as usize;
        assert_eq!(total(top.clone()), (count, 4));
        assert_eq!(total(Query { order_by, ..top.clone() }), (count, 4));
        assert_eq!(total(Query { filter, ..top.clone() }), (count, 3));
        assert_eq!(total(Query { filter, order_by, ..top }), (count, 3));
    }
}

/// A program that publishes, waits for `flush`, and then queries the queue finds its messages. The
/// journal has persisted more here than the queues receive in one turn.
#[test]
fn an_acknowledged_message_is_in_its_queue() {
    let mut pair = with_messages(queue("jobs"), &[]);
    let count = 8;
    let data = format!(r#"{{"n":1,"text":"{}"}}"#, "x".repeat(1 << 20));
    for sequence in 1..=count {
        pair.publish(1, sequence, "jobs", &data);
    }
    pair.send(1, &Command::Flush { command: 5, acks: Acks::PERSISTED });
    pair.one_turn();
    pair.write();
    let mut acknowledged = 0;
    let mut turns = 0;
    while acknowledged < count {
        turns += 1;
        assert!(turns < 100);
        pair.one_turn();
        for said in pair.take(1) {
            match said {
                Said::Persisted(sequence) => acknowledged = sequence,
                answer => {
                    assert_eq!((answer, acknowledged), (ack(AckKind::Persisted, 5, 0), count));
                }
            }
            assert!(pair.figure("jobs", "depth") >= acknowledged, "{acknowledged}");
        }
    }
    assert!(turns > 1, "the queues received everything in one turn");
}

#[test]
fn a_query_shows_what_waits_and_changes_nothing() {
    let mut pair = with_messages(queue("jobs"), &[5, 1, 4, 2]);
    pair.client(3, "worker");
    pair.subscribe(3, &consume(1, "jobs", 1));
    pair.turn();
    let held = pair.take_queued(3);
    assert_eq!(answer(&mut pair, query("jobs")), [1, 4, 2], "what is leased is not shown");
    assert_eq!(answer(&mut pair, Query { filter: Some("/n > 1"), ..query("jobs") }), [4, 2]);
    assert_eq!(answer(&mut pair, Query { order_by: Some("/n DESC"), ..query("jobs") }), [4, 2, 1]);
    assert_eq!(answer(&mut pair, Query { order_by: Some("/n"), top_n: Some(2), ..query("jobs") }), [1, 2]);
    assert_eq!(answer(&mut pair, Query { top_n: Some(2), ..query("jobs") }), [1, 4]);
    assert_eq!(answer(&mut pair, Query { top_n: Some(0), ..query("jobs") }), Vec::<u64>::new());
    assert_eq!((pair.figure("jobs", "depth"), pair.figure("jobs", "backlog")), (4, 1));
    pair.settle(3, "jobs", Verdict::Acknowledge, &held);
    assert_eq!(pair.take_queued(3).len(), 1);
}

/// An operator finds the job that ends its workers by these counts.
#[test]
fn a_query_shows_how_often_a_message_was_delivered_and_cancelled() {
    let mut pair = with_messages(queue("jobs"), &[5]);
    for worker in [3, 4] {
        pair.client(worker, "worker");
        pair.subscribe(worker, &consume(1, "jobs", 1));
        pair.turn();
        let held = pair.take_queued(worker);
        assert_eq!(held.len(), 1);
        if worker == 3 {
            // It is delivered to this worker again.
            pair.settle(3, "jobs", Verdict::Cancel, &held);
        }
        pair.disconnect(worker);
        pair.turn();
    }
    pair.take(2);
    pair.send(2, &Command::Query(query("jobs")));
    pair.turn();
    let shown = pair.take_queued(2);
    assert_eq!(shown.iter().map(|job| (job.deliveries, job.cancels)).collect::<Vec<_>>(), [(3, 1)]);
}

#[test]
fn a_query_comes_in_delivery_order() {
    let settings = QueueSettings { priority: Some("/n".into()), ..queue("jobs") };
    let mut pair = with_messages(settings, &[5, 1, 9, 2]);
    assert_eq!(answer(&mut pair, query("jobs")), [9, 5, 2, 1]);
}

#[test]
fn a_query_is_sorted_by_several_fields_as_a_query_of_last_values_is() {
    let mut pair = with_messages(queue("jobs"), &[]);
    let messages = [
        r#"{"n":1,"a":2,"b":"10"}"#,
        r#"{"n":2,"a":1,"b":"x"}"#,
        r#"{"n":3,"a":1,"b":9}"#,
        r#"{"n":4,"b":1}"#,
        r#"{"n":5,"a":1,"b":"10"}"#,
        r#"{"n":6,"a":2,"b":9}"#,
    ];
    (1..).zip(messages).for_each(|(sequence, message)| pair.publish(1, sequence, "jobs", message));
    pair.turn();
    for (order_by, expected) in [
        ("/a, /b", [4, 3, 5, 2, 6, 1]),
        ("/a DESC, /b TEXT", [1, 6, 5, 3, 2, 4]),
        ("/a DESC, /b DESC TEXT", [6, 1, 2, 3, 5, 4]),
        ("/a", [4, 2, 3, 5, 1, 6]),
    ] {
        let query = Query { order_by: Some(order_by), ..query("jobs") };
        assert_eq!(answer(&mut pair, query), expected, "{order_by}");
    }
}

#[test]
fn a_query_that_cannot_be_is_refused() {
    let mut pair = with_messages(queue("jobs"), &[1]);
    pair.subscribe(2, &consume(3, "jobs", 0));
    pair.turn();
    pair.take(2);
    let cases = [
        (query("none"), 9, Code::UnknownQueue),
        (Query { filter: Some("/n ="), ..query("jobs") }, 9, Code::BadFilter),
        (Query { order_by: Some("/n ="), ..query("jobs") }, 9, Code::BadFilter),
        (Query { subscription: 3, ..query("jobs") }, 3, Code::SubscriptionInUse),
        (Query { keys: Keys::from_bytes(b"\x01a"), ..query("jobs") }, 9, Code::BadOption),
        (Query { skip_n: Some(1), ..query("jobs") }, 9, Code::BadOption),
        (Query { select: Some("-/,+/n"), ..query("jobs") }, 9, Code::BadOption),
    ];
    for (query, subscription, code) in cases {
        pair.send(2, &Command::Query(query));
        pair.turn();
        assert_eq!(pair.take(2), [refused(code, 7, subscription)]);
    }
}

#[test]
fn a_large_answer_goes_out_as_the_connection_takes_it_and_commands_wait_for_its_end() {
    let mut pair = with_messages(queue("jobs"), &[]);
    let large = "x".repeat(100_000);
    (1..=30).for_each(|sequence| pair.publish(1, sequence, "jobs", &large));
    pair.turn();
    pair.send(2, &Command::Query(query("jobs")));
    pair.send(2, &Command::Flush { command: 8, acks: Acks::PROCESSED });
    pair.one_turn();
    pair.set_writable(2, false);
    for _ in 0..10 {
        pair.run_reads();
        pair.one_turn();
    }
    let before = pair.take_queued(2).len();
    assert!(before < 10, "{before} messages of 100 KB for a connection that takes nothing");
    pair.set_writable(2, true);
    pair.turn();
    let said = pair.take(2);
    assert_eq!(said.len(), 30 - before + 2);
    assert_eq!(said[said.len() - 2..], [ack(AckKind::Completed, 7, 9), ack(AckKind::Processed, 8, 0)]);
}

#[test]
fn stats_name_every_queue_or_one() {
    let mut pair = with_queues([queue("jobs"), QueueSettings { max_backlog: Some(7), ..queue("tasks") }]);
    pair.client(2, "operator");
    pair.send(2, &Command::Stats { command: 1, queue: None });
    pair.send(2, &Command::Stats { command: 2, queue: Some("tasks") });
    pair.turn();
    let stats: Vec<(u32, serde_json::Value)> = pair
        .take(2)
        .into_iter()
        .map(|said| match said {
            Said::Stats { command, json } => (command, serde_json::from_str(&json).unwrap()),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(stats[0].1["queues"].as_object().unwrap().len(), 2);
    assert_eq!(stats[1].1["queues"].as_object().unwrap().len(), 1);
    let tasks = &stats[1].1["queues"]["tasks"];
    assert_eq!((&tasks["max_backlog"], &tasks["depth"]), (&7.into(), &0.into()));
}
