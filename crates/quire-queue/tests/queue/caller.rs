//! The engine with a caller that reads messages from a disk and sends them over connections. The
//! engine waits for messages that the caller still reads. It gives no messages to connections that
//! are full. It names the consumers that lost a lease.

use std::time::Duration;

use quire_queue::*;

const CONNECTION: ConnectionId = ConnectionId::new(1);
const OTHER: ConnectionId = ConnectionId::new(2);
const NOW: Time = Time::new(0);

/// Every filter matches every message whose data the caller has.
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
        queues.enqueue(queue, Position::new(position), QueueEntry::default());
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
    queues.enqueue(queue, Position::new(1), QueueEntry { barrier: true, ..QueueEntry::default() });
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
    queues.enqueue(queue, Position::new(1), QueueEntry { barrier: true, ..QueueEntry::default() });
    queues.enqueue(queue, Position::new(2), QueueEntry::default());
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
fn a_released_message_comes_again_at_its_old_place_and_its_delivery_does_not_count() {
    let config = QueueConfig {
        max_deliveries: Some(1),
        leasing: Leasing::Strict,
        record_leases: true,
        ..Default::default()
    };
    let mut queues = Queues::new();
    let queue = queue(&mut queues, config, 12);
    let first = subscribe(&mut queues, CONNECTION, queue, None);
    assert_eq!(delivered(&mut queues, NOW, 0).len(), 10);
    let third = Position::new(3);
    assert_eq!(queues.settle(queue, OTHER, Verdict::Release, &[third], NOW), 0, "another one holds it");
    queues.release(first, NOW, |_, position, _| position == third);
    let returned: Vec<Change> = std::iter::from_fn(|| queues.poll_change()).collect();
    assert_eq!(returned.len(), 9);
    assert!(returned.iter().all(|change| change.kind == ChangeKind::Returned { deliveries: 0 }));
    queues.unsubscribe(first, NOW);
    let expired: Vec<Change> = std::iter::from_fn(|| queues.poll_change()).collect();
    assert_eq!(expired.iter().map(|change| change.position).collect::<Vec<_>>(), [third]);
    subscribe(&mut queues, OTHER, queue, None);
    let again: Vec<Delivery> =
        std::iter::from_fn(|| queues.poll_delivery(NOW, &mut AtHand { until: 0 })).collect();
    let positions: Vec<u64> = again.iter().map(|delivery| delivery.position.get()).collect();
    assert_eq!(positions, [1, 2, 4, 5, 6, 7, 8, 9, 10, 11]);
    assert!(again.iter().all(|delivery| delivery.delivery_count == 1));
}

#[test]
fn a_message_whose_time_is_over_expires_when_it_is_released() {
    let config = QueueConfig { expiration: Some(Duration::from_secs(1)), ..Default::default() };
    let mut queues = Queues::new();
    let queue = queue(&mut queues, config, 1);
    subscribe(&mut queues, CONNECTION, queue, None);
    assert_eq!(delivered(&mut queues, NOW, 0).len(), 1);
    queues.settle(queue, CONNECTION, Verdict::Release, &[Position::new(1)], Time::new(1_000_000_000));
    let kind = ChangeKind::Expired { reasons: Reasons::TIME_LIMIT, deliveries: 0, cancels: 0 };
    assert_eq!(queues.poll_change().map(|change| change.kind), Some(kind));
}

#[test]
fn leases_of_an_earlier_and_a_later_period_end_in_the_order_of_their_ends() {
    let seconds = |seconds: u64| Time::new(seconds * 1_000_000_000);
    let config = |period: Option<u64>| QueueConfig {
        lease_period: period.map(Duration::from_secs),
        max_backlog: Some(2),
        ..QueueConfig::default()
    };
    let mut queues = Queues::new();
    let queue = queue(&mut queues, config(Some(100)), 8);
    let holder = subscribe(&mut queues, CONNECTION, queue, None);
    let altered = |queues: &mut Queues, period, backlog| {
        let config = QueueConfig { max_backlog: backlog, ..config(period) };
        queues.alter_queue(queue, config).unwrap();
        delivered(queues, NOW, 0).len()
    };
    assert_eq!(delivered(&mut queues, NOW, 0).len(), 2);
    // There is room for two more, with a shorter period, then without end, then with the shortest.
    assert_eq!(altered(&mut queues, Some(10), Some(4)), 2);
    assert_eq!(altered(&mut queues, None, Some(6)), 2);
    assert_eq!(altered(&mut queues, Some(1), None), 2);
    // An extension ends a lease at its own time, in any period.
    for position in [1, 3, 5] {
        assert!(queues.extend(queue, CONNECTION, Position::new(position), seconds(50), NOW));
    }
    queues.hold(holder, true);
    let mut lost = Vec::new();
    while let Some(next) = queues.poll_timeout() {
        queues.advance(next);
        assert_eq!(delivered(&mut queues, next, 0), []);
        let ended = std::iter::from_fn(|| queues.poll_lost());
        lost.extend(ended.map(|lost| (next.get() / 1_000_000_000, lost.position.get())));
    }
    assert_eq!(lost, [(1, 7), (1, 8), (10, 4), (50, 1), (50, 3), (50, 5), (100, 2)]);
    assert_eq!(queues.holder(queue, Position::new(6)), Some(holder), "its lease has no end");
    // When it is settled, the engine drops its period.
    queues.settle(queue, CONNECTION, Verdict::Release, &[Position::new(6)], seconds(100));
    queues.hold(holder, false);
    assert_eq!(delivered(&mut queues, seconds(100), 0).len(), 8);
    queues.advance(seconds(102));
    assert_eq!(std::iter::from_fn(|| queues.poll_lost()).count(), 8);
}

#[test]
fn the_end_of_a_lease_is_an_event_if_its_delivery_was() {
    let config = |record_leases| QueueConfig { record_leases, ..QueueConfig::default() };
    let mut queues = Queues::new();
    let queue = queue(&mut queues, config(false), 20);
    let holder = subscribe(&mut queues, CONNECTION, queue, None);
    let events = |queues: &mut Queues| {
        let events = std::iter::from_fn(|| queues.poll_lease_event());
        events.map(|event| (event.position.get(), event.kind)).collect::<Vec<_>>()
    };
    let acknowledge = |queues: &mut Queues, position: u64| {
        queues.settle(queue, CONNECTION, Verdict::Acknowledge, &[Position::new(position)], NOW);
    };
    assert_eq!(delivered(&mut queues, NOW, 0).len(), 10);
    queues.alter_queue(queue, config(true)).unwrap();
    acknowledge(&mut queues, 1);
    assert_eq!(delivered(&mut queues, NOW, 0), [(queue, 11)]);
    assert_eq!(events(&mut queues), [(11, LeaseEventKind::Delivered)]);
    queues.alter_queue(queue, config(false)).unwrap();
    acknowledge(&mut queues, 11);
    assert_eq!(delivered(&mut queues, NOW, 0), [(queue, 12)]);
    queues.unsubscribe(holder, NOW);
    assert_eq!(events(&mut queues), [(11, LeaseEventKind::Acknowledged)]);
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

#[test]
fn what_ends_at_once_ends_in_portions_and_is_over_all_the_same() {
    let mut queues = Queues::new();
    queues.set_ends_per_portion(300);
    let second = Duration::from_secs(1);
    let config = QueueConfig { expiration: Some(second), lease_period: Some(second), ..Default::default() };
    let short = queue(&mut queues, config, 1_000);
    let other = queue(&mut queues, QueueConfig::default(), 1);
    subscribe(&mut queues, CONNECTION, short, None);
    assert_eq!(delivered(&mut queues, NOW, 0).len(), 10);
    subscribe(&mut queues, OTHER, other, None);
    let now = Time::new(1_000_000_000);
    assert_eq!(delivered(&mut queues, now, 0), [(other, 1)], "the other queue is served meanwhile");
    let stats = queues.stats(short, now).unwrap();
    assert!((300..600).contains(&stats.expired), "{stats:?}");
    let leased = Position::new(10);
    assert!(!queues.extend(short, CONNECTION, leased, Time::new(u64::MAX), now));
    let next = queues.poll_timeout().unwrap();
    assert!(next > now, "the rest can wait a little");
    let mut now = next;
    while let Some(next) = queues.poll_timeout() {
        now = next;
        assert_eq!(delivered(&mut queues, now, 0), []);
    }
    assert_eq!(queues.stats(short, now).unwrap().expired, 1_000);
    queues.enqueue(short, Position::new(1_001), QueueEntry { received: now, ..QueueEntry::default() });
    assert_eq!(delivered(&mut queues, now, 0), [(short, 1_001)]);
}

#[test]
fn a_lease_that_is_over_is_over_before_its_portion_comes() {
    let mut queues = Queues::new();
    queues.set_ends_per_portion(1);
    let config = QueueConfig {
        lease_period: Some(Duration::from_secs(1)),
        leasing: Leasing::Strict,
        ..Default::default()
    };
    let jobs = queue(&mut queues, config, 10);
    let holder = subscribe(&mut queues, CONNECTION, jobs, None);
    assert_eq!(delivered(&mut queues, NOW, 0).len(), 10);
    let now = Time::new(1_000_000_000);
    let acknowledged = queues.settle(jobs, CONNECTION, Verdict::Acknowledge, &[Position::new(10)], now);
    assert_eq!(acknowledged, 0, "it came late");
    let lost: Vec<_> = std::iter::from_fn(|| queues.poll_lost()).collect();
    let of = |lost: &LostLease| (lost.position.get(), lost.subscription);
    assert_eq!(lost.iter().map(of).collect::<Vec<_>>(), [(1, holder), (10, holder)]);
}

#[test]
fn a_filter_that_has_yet_to_look_at_messages_shows_in_the_figures() {
    let mut queues = Queues::new();
    queues.set_questions_per_poll(2);
    let queue = queue(&mut queues, QueueConfig::default(), 5);
    let catching_up = |queues: &Queues| queues.stats(queue, NOW).unwrap().catching_up;
    let until_all_was_seen = |queues: &mut Queues, seen: &[u64]| {
        for count in seen {
            assert_eq!(catching_up(queues), *count);
            assert!(queues.poll_delivery(NOW, &mut |_: Position, _: FilterId| false).is_none());
        }
        assert_eq!(catching_up(queues), 0);
    };
    assert_eq!(catching_up(&queues), 0);
    // The first gets messages as they are admitted. The second and the third look at the earlier
    // messages together.
    subscribe(&mut queues, CONNECTION, queue, Some(1));
    until_all_was_seen(&mut queues, &[1, 1, 1]);
    subscribe(&mut queues, OTHER, queue, Some(2));
    subscribe(&mut queues, OTHER, queue, Some(3));
    until_all_was_seen(&mut queues, &[2, 2, 2, 1, 1]);
}

#[test]
fn a_removed_queue_is_unknown_and_leaves_nothing_to_a_queue_that_gets_its_number() {
    let mut queues = Queues::new();
    let config = QueueConfig { lease_period: Some(Duration::from_secs(1)), ..QueueConfig::default() };
    let first = queue(&mut queues, config.clone(), 5);
    let other = queue(&mut queues, config, 2);
    let moved = subscribe(&mut queues, CONNECTION, first, None);
    let all = delivered(&mut queues, NOW, 5);
    assert_eq!(all.len(), 5);
    assert_eq!(queues.subscriptions_of(first), [moved]);
    assert_eq!(queues.remove_queue(first), None, "it has a subscription");
    // The subscription moves away and keeps its messages.
    let spec = SubscriptionSpec { connection: CONNECTION, backlog: Some(6), queues: vec![(other, None)] };
    queues.replace(moved, &spec).unwrap();
    let cancelled = queues.settle(first, CONNECTION, Verdict::Cancel, &[Position::new(2)], NOW);
    assert_eq!(cancelled, 1);
    assert_eq!(queues.remove_queue(first), Some(5));
    assert_eq!(queues.poll_change(), None);
    assert_eq!(queues.backlog(moved), Some((6, 0)));
    // The number names no queue.
    assert!(queues.stats(first, NOW).is_none() && queues.config(first).is_none());
    assert!(queues.settled(first, Position::new(9)).is_none() && queues.remove_queue(first).is_none());
    assert_eq!(queues.enqueue(first, Position::new(6), QueueEntry::default()), Enqueued::Known);
    let spec = SubscriptionSpec { connection: OTHER, backlog: None, queues: vec![(first, None)] };
    assert_eq!(queues.subscribe(&spec), Err(SubscribeError::UnknownQueue { queue: first }));
    assert_eq!(delivered(&mut queues, Time::new(5_000_000_000), 9), [(other, 1), (other, 2)]);
    // A later queue begins empty, after its position.
    let second = queues.add_queue(QueueConfig::default()).unwrap();
    assert_eq!(second, first);
    queues.begin_after(second, Position::new(7));
    assert_eq!(queues.enqueue(second, Position::new(7), QueueEntry::default()), Enqueued::Known);
    assert_eq!(queues.enqueue(second, Position::new(8), QueueEntry::default()), Enqueued::Active);
    subscribe(&mut queues, OTHER, second, Some(1));
    assert_eq!(delivered(&mut queues, Time::new(5_000_000_000), 9), [(second, 8)]);
    assert_eq!(queues.stats(second, NOW).unwrap().entered, 1);
}
