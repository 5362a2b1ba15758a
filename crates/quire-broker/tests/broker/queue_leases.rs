//! Queues with `record_leases`: the log says who held which message and how each lease ended,
//! nothing waits for that, and nothing but an audit reads it (docs/queues.md section 13).

use std::time::Duration;

use quire_broker::QueueSettings;
use quire_command::*;
use quire_journal::{AllTopics, Position, Reader, Record, RecordKind};
use quire_queue::LeaseEventKind::{self, Acknowledged, Cancelled, Delivered, Left, Lost, RanOut};
use quire_queue::{LeaseRun, Leasing, Semantics, Verdict};

use crate::pair::*;
use crate::queue_pair::*;

const SECOND: u64 = 1_000_000_000;

fn recording() -> QueueSettings {
    QueueSettings { record_leases: true, lease_period_ns: Some(5 * SECOND), ..queue("jobs") }
}

/// A publisher 1, and workers 2, `ann`, and 3, `bob`, of whom only the first is subscribed.
fn working(settings: QueueSettings) -> Pair {
    let mut pair = with_queues([settings]);
    pair.client(1, "publisher");
    pair.client(2, "ann");
    pair.client(3, "bob");
    pair.subscribe(2, &consume(1, "jobs", 10));
    pair.turn();
    pair.take(2);
    pair
}

fn each_record(reader: &Reader, mut each: impl FnMut(&Record<'_>)) {
    let mut cursor = reader.cursor(Position::ZERO);
    while let Some(batch) = cursor.next(reader.persisted(), &AllTopics).unwrap() {
        batch.records().for_each(|record| each(&record));
    }
}

/// The events of leases in the log: the consumer, the kind, the number of the message from 1, and
/// the milliseconds.
fn leases(pair: &Pair) -> Vec<(String, LeaseEventKind, u64, u64)> {
    let (mut published, mut found) = (Vec::new(), Vec::new());
    each_record(&pair.broker.journal().reader(), |record| match record.kind {
        RecordKind::Publish => published.push(record.position),
        RecordKind::Acknowledge | RecordKind::Delete => (),
        RecordKind::Lease => {
            assert_eq!(record.topic, "jobs");
            for run in LeaseRun::read(record.data, record.position) {
                let LeaseRun { first, last, kind, consumer, time, .. } = run.unwrap();
                assert!(time <= record.timestamp);
                let after_ms = (time.as_ns() - WALL_START_NS) / 1_000_000;
                for position in first.get()..=last.get() {
                    let number = published.binary_search(&Position::new(position)).unwrap() as u64 + 1;
                    found.push((consumer.to_owned(), kind, number, after_ms));
                }
            }
        }
    });
    found
}

/// As [`leases`], without the times, after what is held back has been written.
fn who_held(pair: &mut Pair) -> Vec<(String, LeaseEventKind, u64)> {
    pair.pass(Duration::from_millis(100));
    leases(pair).into_iter().map(|(consumer, kind, number, _)| (consumer, kind, number)).collect()
}

fn said(consumer: &str, kind: LeaseEventKind, number: u64) -> (String, LeaseEventKind, u64) {
    (consumer.to_owned(), kind, number)
}

#[test]
fn the_log_names_the_holder_and_how_it_settled() {
    let mut pair = working(recording());
    publish_all(&mut pair, 1..=3);
    let held = pair.take_queued(2);
    pair.settle(2, "jobs", Verdict::Acknowledge, &held[..1]);
    pair.settle(2, "jobs", Verdict::Expire, &held[1..2]);
    pair.settle(2, "jobs", Verdict::Release, &held[2..]);
    let held = pair.take_queued(2);
    pair.settle(2, "jobs", Verdict::Cancel, &held);
    let expected = [
        said("ann", Delivered, 1),
        said("ann", Delivered, 2),
        said("ann", Delivered, 3),
        said("ann", Acknowledged, 1),
        said("ann", LeaseEventKind::Expired, 2),
        said("ann", LeaseEventKind::Released, 3),
        said("ann", Delivered, 3),
        said("ann", Cancelled, 3),
        said("ann", Delivered, 3),
    ];
    assert_eq!(who_held(&mut pair), expected);
}

#[test]
fn a_lease_that_is_over_and_a_holder_that_leaves_pass_the_message_on() {
    let mut pair = working(recording());
    publish_all(&mut pair, 1..=1);
    pair.subscribe(3, &consume(1, "jobs", 10));
    pair.turn();
    // The first lease is over while its holder takes nothing more.
    pair.set_writable(2, false);
    pair.pass(Duration::from_secs(5));
    pair.disconnect(3);
    pair.set_writable(2, true);
    pair.turn();
    pair.send(
        2,
        &Command::Unsubscribe(Unsubscribe {
            command: 0,
            acks: Acks::default(),
            subscription: 1,
            begun: None,
        }),
    );
    pair.turn();
    let expected = [
        said("ann", Delivered, 1),
        said("ann", RanOut, 1),
        said("bob", Delivered, 1),
        said("bob", Left, 1),
        said("ann", Delivered, 1),
        said("ann", Left, 1),
    ];
    assert_eq!(who_held(&mut pair), expected);
    let times: Vec<u64> = leases(&pair).into_iter().map(|(.., after_ms)| after_ms).collect();
    assert_eq!(times, [0, 5000, 5000, 5000, 5000, 5000], "when it happened, not when it was written");
}

#[test]
fn of_two_that_want_to_end_a_lease_the_log_names_the_one_that_did() {
    let mut pair = working(recording());
    publish_all(&mut pair, 1..=3);
    let held = pair.take_queued(2);
    // Another one settles the first, the holder the second, and time the third, an instant before
    // its holder does.
    pair.settle(3, "jobs", Verdict::Acknowledge, &held[..1]);
    pair.settle(2, "jobs", Verdict::Acknowledge, &held[..2]);
    pair.settle(3, "jobs", Verdict::Acknowledge, &held[1..2]);
    pair.now_ns += 5 * SECOND;
    pair.settle(2, "jobs", Verdict::Acknowledge, &held[2..]);
    let expected = [
        said("ann", Delivered, 1),
        said("ann", Delivered, 2),
        said("ann", Delivered, 3),
        said("ann", Lost, 1),
        said("bob", LeaseEventKind::AcknowledgedUnheld, 1),
        said("ann", Acknowledged, 2),
        said("ann", RanOut, 3),
        said("ann", LeaseEventKind::AcknowledgedUnheld, 3),
    ];
    assert_eq!(who_held(&mut pair), expected);
}

#[test]
fn the_last_words_of_a_consumer_are_under_its_name() {
    let strict = QueueSettings { leasing: Leasing::Strict, ..recording() };
    for says_goodbye in [false, true] {
        let mut pair = working(strict.clone());
        publish_all(&mut pair, 1..=2);
        let held = pair.take_queued(2);
        // All of it in one turn.
        pair.settle_as(2, "jobs", Verdict::Acknowledge, &held[..1], 0, Acks::default());
        if says_goodbye {
            pair.send(2, &Command::Goodbye);
        }
        pair.disconnect(2);
        pair.turn();
        let expected = [
            said("ann", Delivered, 1),
            said("ann", Delivered, 2),
            said("ann", Acknowledged, 1),
            said("ann", Left, 2),
        ];
        assert_eq!(who_held(&mut pair), expected);
    }
}

#[test]
fn what_an_at_most_once_queue_gives_away_is_only_delivered() {
    let settings = QueueSettings { semantics: Semantics::AtMostOnce, lease_period_ns: None, ..recording() };
    let mut pair = working(settings);
    publish_all(&mut pair, 1..=2);
    let held = pair.take_queued(2);
    pair.settle(2, "jobs", Verdict::Acknowledge, &held[..1]);
    pair.disconnect(2);
    assert_eq!(who_held(&mut pair), [said("ann", Delivered, 1), said("ann", Delivered, 2)]);
}

#[test]
fn a_delivery_costs_no_write_of_its_own_for_a_while() {
    let mut pair = working(recording());
    publish_all(&mut pair, 1..=2);
    assert_eq!(pair.take_queued(2).len(), 2);
    let before = pair.broker.stats().appended;
    pair.pass(Duration::from_millis(99));
    assert_eq!((pair.broker.stats().appended, leases(&pair).len()), (before, 0));
    // It goes with the next publish, of which a further delivery comes.
    pair.publish(1, 3, "jobs", "3");
    pair.one_turn();
    assert_eq!(pair.broker.stats().appended, before + 2);
    pair.turn();
    assert_eq!(leases(&pair).len(), 2);
    pair.pass(Duration::from_millis(99));
    assert_eq!(leases(&pair).len(), 2);
    pair.pass(Duration::from_millis(1));
    let times: Vec<u64> = leases(&pair).into_iter().map(|(.., after_ms)| after_ms).collect();
    assert_eq!(times, [0, 0, 99]);
    let before = pair.broker.stats().appended;
    pair.pass(Duration::from_secs(1));
    assert_eq!(pair.broker.stats().appended, before, "there is nothing more to say");
}

#[test]
fn what_a_turn_did_is_one_record_and_a_long_list_is_several() {
    let mut pair = working(recording());
    pair.subscribe(3, &consume(1, "jobs", 20_000));
    publish_all(&mut pair, 1..=30);
    publish_all(&mut pair, 31..=15_000);
    let held = pair.take_queued(2);
    assert_eq!(held.len(), 10);
    pair.pass(Duration::from_secs(1));
    let mut sizes = Vec::new();
    each_record(&pair.broker.journal().reader(), |record| {
        if record.kind == RecordKind::Lease {
            sizes.push(record.data.len());
        }
    });
    assert!(sizes.len() < 10 && sizes.iter().all(|size| *size < 33 * 1024), "{sizes:?}");
    assert_eq!(leases(&pair).len(), 15_000);
    // One consumer in ten holds every other message: no list is short.
    for client in 10..20 {
        pair.client(client, &format!("worker-{client}"));
        pair.subscribe(client, &consume(1, "jobs", 2000));
    }
    pair.disconnect(3);
    pair.turn();
    pair.pass(Duration::from_secs(1));
    let all = leases(&pair);
    let left = all.iter().filter(|(.., kind, _, _)| *kind == Left).count();
    assert_eq!((left, all.len()), (14_990, 15_000 + 2 * 14_990));
}

#[test]
fn whoever_reads_messages_and_whoever_recovers_a_queue_passes_over_leases() {
    let mut pair = working(recording());
    publish_all(&mut pair, 1..=3);
    let held = pair.take_queued(2);
    pair.settle(2, "jobs", Verdict::Acknowledge, &held[..1]);
    pair.pass(Duration::from_secs(1));
    assert!(!leases(&pair).is_empty());
    // The queue of the restart records nothing: what is there does not depend on it.
    let mut pair = pair.restart(queue_config([queue("jobs")]));
    pair.client(4, "reader");
    pair.subscribe(4, &replay(1, "^", "0"));
    pair.turn();
    assert_eq!(pair.take_data(4), ["1", "2", "3"]);
    pair.client(2, "ann");
    pair.subscribe(2, &consume(1, "jobs", 10));
    pair.turn();
    assert_eq!(data(&pair.take_queued(2)), ["2", "3"]);
    let before = leases(&pair);
    pair.pass(Duration::from_secs(1));
    assert_eq!(leases(&pair), before, "nothing is recorded that is not asked for");
}

#[test]
fn a_clean_stop_leaves_nothing_out() {
    let mut pair = working(recording());
    publish_all(&mut pair, 1..=1);
    let reader = pair.broker.journal().reader();
    let now = pair.now();
    pair.broker.handle(now, quire_broker::Input::Shutdown);
    pair.turn();
    let Pair { broker, .. } = pair;
    assert!(broker.is_drained());
    broker.close().unwrap();
    let mut kinds = Vec::new();
    each_record(&reader, |record| {
        if record.kind == RecordKind::Lease {
            kinds.extend(LeaseRun::read(record.data, record.position).map(|run| run.unwrap().kind));
        }
    });
    assert_eq!(kinds, [Delivered, Left]);
}

/// A stop that waits for the disk for ten seconds, while `ann` has a lease of five on the first
/// message and the second one is not persisted. `during` is called in the middle.
fn slow_stop(settings: QueueSettings, during: impl FnOnce(&mut Pair)) -> Pair {
    let mut pair = working(settings);
    publish_all(&mut pair, 1..=1);
    assert_eq!(data(&pair.take_queued(2)), ["1"]);
    pair.subscribe(3, &consume(1, "jobs", 10));
    pair.turn();
    pair.take(3);
    pair.writes_at_once = false;
    pair.publish(1, 2, "jobs", "2");
    pair.turn();
    let now = pair.now();
    pair.broker.handle(now, quire_broker::Input::Shutdown);
    pair.turn();
    during(&mut pair);
    pair.pass(Duration::from_secs(10));
    assert!(!pair.broker.is_drained());
    while pair.write() {
        pair.turn();
    }
    assert!(pair.broker.is_drained());
    pair
}

#[test]
fn no_lease_runs_out_while_a_stop_waits_for_the_disk() {
    let mut pair = slow_stop(recording(), |pair| pair.pass(Duration::from_secs(4)));
    assert_eq!(pair.take(2), [Said::Error(Code::ShuttingDown), Said::Closed]);
    // Neither what `ann` still has, nor what was persisted during the stop.
    assert_eq!(pair.take(3), [Said::Error(Code::ShuttingDown), Said::Closed]);
    let Pair { broker, .. } = pair;
    let reader = broker.journal().reader();
    broker.close().unwrap();
    let mut kinds = Vec::new();
    each_record(&reader, |record| {
        if record.kind == RecordKind::Lease {
            kinds.extend(LeaseRun::read(record.data, record.position).map(|run| run.unwrap().kind));
        }
    });
    assert_eq!(kinds, [Delivered, Left]);
}

#[test]
fn a_message_whose_holder_disconnects_during_a_stop_is_not_delivered_again() {
    let mut pair = slow_stop(recording(), |pair| {
        pair.disconnect(2);
        pair.turn();
    });
    assert_eq!(pair.take(3), [Said::Error(Code::ShuttingDown), Said::Closed]);
}

#[test]
fn a_message_in_its_last_delivery_is_in_the_queue_again_after_a_stop_of_the_server() {
    for dead_letter_topic in [None, Some("dead".to_owned())] {
        for file_backed_metadata in [false, true] {
            let dead_letter_topic = dead_letter_topic.clone();
            let settings = QueueSettings {
                max_deliveries: Some(1),
                dead_letter_topic,
                file_backed_metadata,
                ..recording()
            };
            let mut pair = working(settings.clone());
            publish_all(&mut pair, 1..=1);
            assert_eq!(pair.take_queued(2)[0].deliveries, 1);
            let now = pair.now();
            pair.broker.handle(now, quire_broker::Input::Shutdown);
            pair.turn();
            let Pair { broker, disk, now_ns, .. } = pair;
            broker.close().unwrap();
            let mut pair = Pair::on(disk, queue_config([settings]));
            pair.now_ns = now_ns;
            pair.client(2, "ann");
            pair.subscribe(2, &consume(1, "jobs", 10));
            pair.turn();
            let again = pair.take_queued(2);
            assert_eq!((data(&again), again[0].deliveries), (vec!["1"], 1));
        }
    }
}

/// Two queues over one topic, with leases of a second, and a consumer 2 of both that has a message
/// of each: `a` first.
fn copies() -> (Pair, Vec<FromQueue>) {
    let settings = |name: &str| QueueSettings {
        underlying_topic: Some("jobs".into()),
        lease_period_ns: Some(1_000_000_000),
        ..queue(name)
    };
    let mut pair = with_queues([settings("a"), settings("b")]);
    pair.client(1, "publisher");
    pair.client(2, "worker");
    pair.subscribe(2, &consume(1, "^[ab]$", 10));
    pair.publish(1, 1, "jobs", "1");
    pair.turn();
    let mut copies = pair.take_queued(2);
    copies.sort_by(|one, other| one.queue.cmp(&other.queue));
    assert_eq!(copies.len(), 2);
    assert_eq!(copies[0].bookmark, copies[1].bookmark);
    (pair, copies)
}

#[test]
fn a_lost_lease_names_its_queue_when_the_messages_of_the_subscription_do() {
    let (mut pair, copies) = copies();
    let (reason, bookmark) = (LeaseEnd::SettledByAnother, copies[0].bookmark);
    let lost = |queue: &str| Said::LeaseLost { subscription: 1, reason, bookmark, queue: Some(queue.into()) };
    pair.client(4, "other");
    pair.settle(4, "a", Verdict::Acknowledge, &copies[..1]);
    assert_eq!(pair.take(2), [lost("a")]);
    // From now on it names one queue, and still holds a message of another one.
    pair.subscribe(2, &Subscribe { options: SubscribeOptions::REPLACE, ..consume(1, "a", 10) });
    pair.turn();
    pair.take(2);
    pair.settle(4, "b", Verdict::Acknowledge, &copies[1..]);
    assert_eq!(pair.take(2), [lost("b")]);
}

#[test]
fn a_message_has_begun_only_in_the_queues_that_the_client_names() {
    for (named, counts) in [(Some("a"), [2, 1]), (None, [2, 2])] {
        let (mut pair, copies) = copies();
        let (bytes, mut queues) = (bookmarks(&copies[..1]), Vec::new());
        put_begun_queue(&mut queues, 1, "a");
        let begun = BegunMessages::from_bytes(&bytes, named.map(|_| &queues[..]));
        let unsubscribe = Unsubscribe { command: 9, acks: Acks::PROCESSED, subscription: 1, begun };
        pair.send(2, &Command::Unsubscribe(unsubscribe));
        pair.turn();
        pair.take(2);
        pair.subscribe(2, &consume(2, "^[ab]$", 10));
        pair.turn();
        let mut again = pair.take_queued(2);
        again.sort_by(|one, other| one.queue.cmp(&other.queue));
        assert_eq!([again[0].deliveries, again[1].deliveries], counts, "{named:?}");
    }
}
