//! What the engine does for a caller that reads messages from a disk and sends them over connections: it waits for what is not at
//! hand, holds back from those who take no more, and says who lost a lease.

use std::time::Duration;

use quire_core::queue::*;

const CONNECTION: ConnectionId = ConnectionId::new(1);
const OTHER: ConnectionId = ConnectionId::new(2);
const NOW: Time = Time::new(0);

/// Every filter matches everything that is at hand.
struct AtHand {
    until: u64,
}

impl Matcher for AtHand {
    fn matches(&mut self, position: Position, _: FilterId) -> bool {
        assert!(position.get() <= self.until, "{position} is not at hand");
        true
    }

    fn is_at_hand(&mut self, position: Position) -> bool {
        position.get() <= self.until
    }
}

fn queue(queues: &mut Queues, config: QueueConfig, messages: u64) -> QueueId {
    let queue = queues.add_queue(config).unwrap();
    (1..=messages).for_each(|position| {
        queues.enqueue(queue, Position::new(position), Entry::default());
    });
    queue
}

fn subscribe(
    queues: &mut Queues,
    connection: ConnectionId,
    queue: QueueId,
    filter: Option<u32>,
) -> SubscriptionId {
    let queues_wanted = vec![(queue, filter.map(FilterId::new))];
    let spec = SubscriptionSpec { connection, backlog: Some(10), queues: queues_wanted };
    queues.subscribe(&spec).unwrap()
}

fn delivered(queues: &mut Queues, now: Time, until: u64) -> Vec<(QueueId, u64)> {
    let mut matcher = AtHand { until };
    let next = || queues.poll_delivery(now, &mut matcher);
    std::iter::from_fn(next).map(|delivery| (delivery.queue, delivery.position.get())).collect()
}

#[test]
fn a_queue_waits_for_messages_that_are_not_at_hand_and_the_others_do_not() {
    let mut queues = Queues::new();
    let cold = queue(&mut queues, QueueConfig::default(), 4);
    let hot = queue(&mut queues, QueueConfig::default(), 4);
    subscribe(&mut queues, CONNECTION, cold, Some(1));
    subscribe(&mut queues, CONNECTION, hot, None);
    assert_eq!(delivered(&mut queues, NOW, 0), [1, 2, 3, 4].map(|position| (hot, position)));
    assert_eq!(queues.poll_timeout(), None, "nothing can be done before the messages are at hand");
    queues.retry();
    assert_eq!(delivered(&mut queues, NOW, 2), [1, 2].map(|position| (cold, position)));
    queues.retry();
    assert_eq!(delivered(&mut queues, NOW, 4), [3, 4].map(|position| (cold, position)));
}

#[test]
fn a_barrier_waits_until_it_can_be_asked_about() {
    let mut queues = Queues::new();
    let queue = queues.add_queue(QueueConfig { barrier: true, ..QueueConfig::default() }).unwrap();
    queues.enqueue(queue, Position::new(1), Entry { barrier: true, ..Entry::default() });
    subscribe(&mut queues, CONNECTION, queue, Some(1));
    assert_eq!(delivered(&mut queues, NOW, 0), []);
    queues.retry();
    assert_eq!(delivered(&mut queues, NOW, 1), [(queue, 1)]);
}

#[test]
fn a_subscription_that_is_held_gets_barriers_only() {
    let mut queues = Queues::new();
    let queue = queues.add_queue(QueueConfig { barrier: true, ..QueueConfig::default() }).unwrap();
    let subscription = subscribe(&mut queues, CONNECTION, queue, None);
    queues.hold(subscription, true);
    queues.enqueue(queue, Position::new(1), Entry { barrier: true, ..Entry::default() });
    queues.enqueue(queue, Position::new(2), Entry::default());
    assert_eq!(delivered(&mut queues, NOW, 9), [(queue, 1)]);
    assert_eq!(queues.backlog(subscription), Some((10, 0)));
    queues.hold(subscription, false);
    assert_eq!(delivered(&mut queues, NOW, 9), [(queue, 2)]);
    assert_eq!(queues.holder(queue, Position::new(2)), Some(subscription));
    assert_eq!(queues.holder(queue, Position::new(3)), None);
}

#[test]
fn whoever_loses_a_lease_is_named_with_the_cause() {
    let period = Some(Duration::from_secs(1));
    let mut queues = Queues::new();
    let config = QueueConfig { lease_period: period, max_deliveries: Some(2), ..QueueConfig::default() };
    let queue = queue(&mut queues, config, 2);
    let subscription = subscribe(&mut queues, CONNECTION, queue, None);
    let lost = |queues: &mut Queues| {
        let lost = std::iter::from_fn(|| queues.poll_lost());
        lost.map(|lost| {
            assert_eq!((lost.queue, lost.subscription), (queue, subscription));
            (lost.position.get(), lost.cause)
        })
        .collect::<Vec<_>>()
    };
    assert_eq!(delivered(&mut queues, NOW, 9).len(), 2);
    queues.settle(queue, CONNECTION, Verdict::Cancel, &[Position::new(2)], NOW);
    assert_eq!(lost(&mut queues), [], "who settles it knows");
    let later = Time::new(1_000_000_000);
    assert_eq!(delivered(&mut queues, later, 9).len(), 2);
    assert_eq!(lost(&mut queues), [(1, LostCause::Returned)]);
    queues.settle(queue, OTHER, Verdict::Acknowledge, &[Position::new(2)], later);
    assert_eq!(lost(&mut queues), [(2, LostCause::Settled)]);
    queues.advance(Time::new(2_000_000_000));
    assert_eq!(lost(&mut queues), [(1, LostCause::Expired)]);
}

#[test]
fn active_messages_are_listed_in_pieces() {
    let mut queues = Queues::new();
    let queue = queue(&mut queues, QueueConfig::default(), 1000);
    let all: Vec<Position> = (1..=1000).map(Position::new).collect();
    let gone: Vec<Position> = (250..=600).map(Position::new).collect();
    queues.settle(queue, CONNECTION, Verdict::Acknowledge, &gone, NOW);
    let mut listed = Vec::new();
    loop {
        let after = listed.last().copied().unwrap_or_default();
        let piece = queues.active_after(queue, after, 7);
        assert!(piece.len() <= 7);
        if piece.is_empty() {
            break;
        }
        listed.extend(piece);
    }
    let expected: Vec<Position> = all.into_iter().filter(|position| !gone.contains(position)).collect();
    assert_eq!(listed, expected);
}
