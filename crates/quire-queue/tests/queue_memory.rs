//! The memory of a queued message, counted by the allocator while ten million wait.

#[path = "../../quire-broker/tests/counting/mod.rs"]
mod counting;

use std::time::Duration;

use counting::allocated;
use quire_queue::*;

/// Bytes for each message that waits in a queue, its one subscription with a filter that takes one
/// in ten thousand.
fn cost(
    count: u64,
    config: QueueConfig,
    position: impl Fn(u64) -> u64,
    entry: impl Fn(u64) -> QueueEntry,
) -> f64 {
    let mut queues = Queues::new();
    let queue = queues.add_queue(config).unwrap();
    let connection = ConnectionId::new(1);
    let filter = Some(FilterId::new(1));
    queues
        .subscribe(&SubscriptionSpec { connection, backlog: Some(1), queues: vec![(queue, filter)] })
        .unwrap();
    let before = allocated();
    for number in 0..count {
        assert_eq!(
            queues.enqueue(queue, Position::new(position(number) + 1), entry(number)),
            Enqueued::Active
        );
    }
    let now = entry(count).received;
    while queues.poll_timeout() == Some(now) || queues.poll_timeout() == Some(Time::new(0)) {
        queues
            .poll_delivery(now, &mut |position: Position, _: FilterId| position.get().is_multiple_of(10_000));
    }
    assert_eq!(queues.stats(queue, now).unwrap().queue_depth, count);
    (allocated() - before) as f64 / count as f64
}

/// Received at 100,000 a second.
fn received(number: u64) -> Time {
    Time::new(1_000_000_000 + number * 10_000)
}

/// A number that does not depend on its neighbors.
fn scattered(number: u64) -> u64 {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20
}

#[test]
fn a_queued_message_costs_a_few_bytes_when_ten_million_wait() {
    let count = 10_000_000;
    let named = |publisher, sequence| Some(Bookmark::new(PublisherId::new(publisher), sequence));
    let plain = |number| QueueEntry {
        bookmark: named(7, number),
        received: received(number),
        ..QueueEntry::default()
    };
    let one_topic = cost(count, QueueConfig::default(), |number| number, plain);
    println!("one topic in log order: {one_topic:.2} bytes");
    assert!((0.1..4.0).contains(&one_topic));

    let in_turn = |number| QueueEntry { bookmark: named(1 + number % 100, number / 100), ..plain(number) };
    let in_turn = cost(count, QueueConfig::default(), |number| number, in_turn);
    println!("one topic, a hundred publishers in turn: {in_turn:.2} bytes");
    assert!((one_topic..one_topic + 10.0).contains(&in_turn));

    // Every message has a different expiration, with messages of other topics between them.
    let between = |number| number * 50 + scattered(number) % 50;
    let expiring =
        |number| QueueEntry { expiration_s: Some(3600 + scattered(number) as u32 % 86_400), ..plain(number) };
    let config = QueueConfig { expiration: Some(Duration::from_hours(1)), ..QueueConfig::default() };
    let general = cost(count, config, between, expiring);
    println!("many topics, own expirations: {general:.2} bytes");
    assert!((one_topic..16.0).contains(&general));

    let ranked = |number| QueueEntry { priority: Some(scattered(number)), ..expiring(number) };
    let priority = cost(count, QueueConfig { priority: true, ..QueueConfig::default() }, between, ranked);
    println!("with priority: {priority:.2} bytes");
    assert!((general..48.0).contains(&priority));
}
