//! Where a message goes whose lease ran out: to another subscription, if there is one that takes
//! it.

use std::time::Duration;

use quire_queue::*;

const SECOND: u64 = 1_000_000_000;

/// One queue with leases of 3 seconds. Filter `n` matches the positions that `n` divides.
struct Jobs {
    queues: Queues,
    queue: QueueId,
    subscriptions: Vec<SubscriptionId>,
}

impl Jobs {
    fn new(messages: u64) -> Self {
        let config = QueueConfig {
            lease_period: Some(Duration::from_secs(3)),
            max_deliveries: Some(5),
            ..QueueConfig::default()
        };
        let mut queues = Queues::new();
        let queue = queues.add_queue(config).unwrap();
        for position in 1..=messages {
            queues.enqueue(queue, Position::new(position), QueueEntry::default());
        }
        Jobs { queues, queue, subscriptions: Vec::new() }
    }

    /// A subscription on its own connection. Returns its number.
    fn subscribe(&mut self, backlog: u32, filter: Option<u32>) -> usize {
        let connection = ConnectionId::new(self.subscriptions.len() as u64);
        let wanted = vec![(self.queue, filter.map(FilterId::new))];
        let spec = SubscriptionSpec { connection, backlog: Some(backlog), queues: wanted };
        self.subscriptions.push(self.queues.subscribe(&spec).unwrap());
        self.subscriptions.len() - 1
    }

    /// The deliveries at this second: position and subscription.
    fn deliveries(&mut self, second: u64) -> Vec<(u64, usize)> {
        let mut matcher =
            |position: Position, filter: FilterId| position.get().is_multiple_of(u64::from(filter.get()));
        let next = || self.queues.poll_delivery(Time::new(second * SECOND), &mut matcher);
        let all: Vec<Delivery> = std::iter::from_fn(next).collect();
        let number = |id| self.subscriptions.iter().position(|other| *other == id).unwrap();
        all.iter().map(|delivery| (delivery.position.get(), number(delivery.subscription))).collect()
    }

    fn acknowledge(&mut self, subscription: usize, position: u64, second: u64) {
        let (connection, now) = (ConnectionId::new(subscription as u64), Time::new(second * SECOND));
        let verdict = Verdict::Acknowledge;
        assert_eq!(self.queues.settle(self.queue, connection, verdict, &[Position::new(position)], now), 1);
    }
}

#[test]
fn the_first_redelivery_after_an_expired_lease_goes_to_another_subscription() {
    let mut jobs = Jobs::new(1);
    let silent = jobs.subscribe(10, None);
    assert_eq!(jobs.deliveries(0), [(1, silent)]);
    let other = jobs.subscribe(10, None);
    assert_eq!(jobs.deliveries(2), []);
    assert_eq!(jobs.deliveries(3), [(1, other)]);
}

#[test]
fn the_only_subscription_gets_its_message_again_at_once() {
    let mut jobs = Jobs::new(1);
    let only = jobs.subscribe(10, None);
    jobs.subscribe(0, None);
    jobs.subscribe(10, Some(7));
    assert_eq!(jobs.deliveries(0), [(1, only)]);
    assert_eq!(jobs.deliveries(3), [(1, only)]);
}

#[test]
fn a_message_meets_each_silent_subscription_once_while_another_takes_it() {
    let mut jobs = Jobs::new(1);
    let silent: Vec<usize> = (0..3).map(|_| jobs.subscribe(10, None)).collect();
    for (turn, silent) in silent.iter().enumerate() {
        assert_eq!(jobs.deliveries(3 * turn as u64), [(1, *silent)]);
    }
    let other = jobs.subscribe(10, None);
    assert_eq!(jobs.deliveries(9), [(1, other)]);
}

#[test]
fn a_message_waits_for_a_full_subscription_at_most_one_lease_period() {
    let mut jobs = Jobs::new(3);
    let silent = jobs.subscribe(1, None);
    assert_eq!(jobs.deliveries(0), [(1, silent)]);
    let other = jobs.subscribe(1, None);
    assert_eq!(jobs.deliveries(0), [(2, other)]);
    let long = Time::new(100 * SECOND);
    assert!(jobs.queues.extend(jobs.queue, ConnectionId::new(1), Position::new(2), long, Time::new(0)));
    assert_eq!(jobs.deliveries(3), [], "message 1 waits for the other, and message 3 does not overtake it");
    assert_eq!(jobs.deliveries(5), []);
    assert_eq!(jobs.queues.poll_timeout(), Some(Time::new(6 * SECOND)));
    assert_eq!(jobs.deliveries(6), [(1, silent)]);
    assert_eq!(jobs.deliveries(9), []);
    jobs.acknowledge(other, 2, 10);
    assert_eq!(jobs.deliveries(10), [(1, other), (3, silent)]);
}

#[test]
fn a_message_no_longer_waits_when_the_other_subscription_has_left() {
    let mut jobs = Jobs::new(2);
    let silent = jobs.subscribe(1, None);
    let other = jobs.subscribe(1, None);
    assert_eq!(jobs.deliveries(0), [(1, silent), (2, other)]);
    let long = Time::new(100 * SECOND);
    assert!(jobs.queues.extend(jobs.queue, ConnectionId::new(1), Position::new(2), long, Time::new(0)));
    assert_eq!(jobs.deliveries(3), []);
    jobs.queues.disconnect(ConnectionId::new(1), Time::new(4 * SECOND));
    assert_eq!(jobs.deliveries(4), [(1, silent)]);
}

#[test]
fn a_subscription_with_the_same_filter_or_without_one_takes_the_message() {
    for filter in [Some(2), None] {
        let mut jobs = Jobs::new(2);
        let silent = jobs.subscribe(5, Some(2));
        assert_eq!(jobs.deliveries(0), [(2, silent)]);
        let other = jobs.subscribe(5, filter);
        jobs.deliveries(1);
        assert_eq!(jobs.deliveries(3), [(2, other)]);
    }
}

#[test]
fn a_subscription_that_let_a_lease_run_out_gets_later_messages_once_the_first_is_taken() {
    let mut jobs = Jobs::new(1);
    let slow = jobs.subscribe(2, None);
    assert_eq!(jobs.deliveries(0), [(1, slow)]);
    let other = jobs.subscribe(2, None);
    for position in 2..=3 {
        jobs.queues.enqueue(jobs.queue, Position::new(position), QueueEntry::default());
    }
    let later = jobs.deliveries(3);
    assert_eq!(later, [(1, other), (2, slow), (3, slow)]);
}
