//! Snapshots of a queue. A snapshot and the log after its beginning give the same state as the
//! whole log, with any changes while it is written. The histories are random, with thousands of
//! messages, and a portion is a chunk of 256. Any bytes are a snapshot or are refused.

use std::time::Duration;

use proptest::prelude::*;
use quire_journal::Memory;
use quire_queue::*;

use crate::model::bookmark_of;

const CONNECTION: ConnectionId = ConnectionId::new(1);
const NOW: Time = Time::new(0);
/// All delays are over.
const LATER: Time = Time::new(1_000_000_000);

/// The records of one queue in the log.
#[derive(Clone, Debug)]
enum Record {
    Message(Position, QueueEntry),
    Change(Change),
}

/// A queue at work, and its log.
struct Work {
    config: QueueConfig,
    queues: Queues,
    queue: QueueId,
    position: u64,
    held: Vec<Position>,
    log: Vec<Record>,
}

#[derive(Clone, Debug)]
enum Step {
    /// The number of messages. One in `barriers` is a barrier.
    Enter {
        count: u16,
        barriers: u64,
    },
    Deliver {
        count: u16,
    },
    /// One in this many of the held messages.
    Settle {
        verdict: Verdict,
        one_in: usize,
    },
    Portion,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let verdict = prop_oneof![
        4 => Just(Verdict::Acknowledge),
        2 => Just(Verdict::Cancel),
        1 => (1u64..900).prop_map(|delay_ms| Verdict::CancelWithDelay { delay_ms }),
        1 => Just(Verdict::Release),
        1 => Just(Verdict::Expire),
    ];
    let step = prop_oneof![
        2 => (1u16..700, 2u64..900).prop_map(|(count, barriers)| Step::Enter { count, barriers }),
        3 => (1u16..500).prop_map(|count| Step::Deliver { count }),
        3 => (verdict, 1usize..4).prop_map(|(verdict, one_in)| Step::Settle { verdict, one_in }),
        3 => Just(Step::Portion),
    ];
    prop::collection::vec(step, 1..40)
}

impl Work {
    fn new(config: QueueConfig) -> Self {
        let (queues, queue) = empty(&config);
        let mut work = Work { config, queues, queue, position: 0, held: Vec::new(), log: Vec::new() };
        let spec =
            SubscriptionSpec { connection: CONNECTION, backlog: Some(1000), queues: vec![(queue, None)] };
        work.queues.subscribe(&spec).unwrap();
        work
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Enter { count, barriers } => {
                for _ in 0..count {
                    // Not every record of a log is a message of the queue.
                    self.position += 1 + u64::from(self.position.is_multiple_of(7));
                    let position = Position::new(self.position);
                    let expiration_s = self.position.is_multiple_of(5).then_some(1000 + self.position as u32);
                    let priority = (!self.position.is_multiple_of(3)).then_some(self.position % 11);
                    let barrier = self.position.is_multiple_of(barriers);
                    let is_delayed = self.position.is_multiple_of(13);
                    let delayed_until =
                        is_delayed.then(|| Time::new(NOW.get() + 1 + self.position % 700 * 1_000_000));
                    let bookmark = Some(bookmark_of(self.position));
                    let entry = QueueEntry {
                        bookmark,
                        received: NOW,
                        expiration_s,
                        priority,
                        barrier,
                        delayed_until,
                    };
                    self.queues.enqueue(self.queue, position, entry);
                    self.log.push(Record::Message(position, entry));
                }
            }
            Step::Deliver { count } => {
                for _ in 0..count {
                    let Some(delivery) = self.queues.poll_delivery(NOW, &mut Nobody) else { break };
                    if !delivery.barrier {
                        self.held.push(delivery.position);
                    }
                }
            }
            Step::Settle { verdict, one_in } => {
                let chosen: Vec<_> = self.held.iter().copied().step_by(one_in).collect();
                self.held.retain(|position| !chosen.contains(position));
                self.queues.settle(self.queue, CONNECTION, verdict, &chosen, NOW);
            }
            Step::Portion => (),
        }
        while let Some(change) = self.queues.poll_change() {
            self.log.push(Record::Change(change));
        }
    }
}

struct Nobody;

impl Matcher for Nobody {
    fn matches(&mut self, _: Position, _: FilterId) -> bool {
        unreachable!("there are no filters")
    }
}

fn bytes_of(snapshot: &Snapshot) -> Vec<u8> {
    snapshot.parts().collect::<Vec<_>>().concat()
}

fn empty(config: &QueueConfig) -> (Queues, QueueId) {
    let mut queues = Queues::new();
    let queue = queues.add_queue(config.clone()).unwrap();
    (queues, queue)
}

fn replay(queues: &mut Queues, queue: QueueId, log: &[Record]) {
    for record in log {
        match record {
            Record::Message(position, entry) => drop(queues.enqueue(queue, *position, *entry)),
            Record::Change(change) => queues.restore(*change),
        }
    }
}

/// Everything that the queue hands out when all delays are over, with its cancels; how many
/// messages are delayed before that, when the next one is over or expires, and the messages of all
/// changes.
#[derive(Debug, PartialEq)]
struct All {
    deliveries: Vec<(Position, u32, bool)>,
    delayed: u64,
    due: Option<Time>,
    changed: Vec<(Position, Option<Bookmark>)>,
}

fn all_of(queues: &mut Queues, queue: QueueId) -> All {
    let due = queues.poll_timeout().filter(|due| *due > NOW);
    let delayed = queues.stats(queue, NOW).unwrap().delayed;
    let spec =
        SubscriptionSpec { connection: CONNECTION, backlog: Some(u32::MAX), queues: vec![(queue, None)] };
    queues.subscribe(&spec).unwrap();
    let mut deliveries = Vec::new();
    while let Some(delivery) = queues.poll_delivery(LATER, &mut Nobody) {
        deliveries.push((delivery.position, delivery.cancel_count, delivery.barrier));
        if !delivery.barrier {
            queues.settle(queue, CONNECTION, Verdict::Acknowledge, &[delivery.position], LATER);
        }
    }
    let changed = std::iter::from_fn(|| queues.poll_change());
    let changed = changed.map(|change| (change.position, change.bookmark)).collect();
    All { deliveries, delayed, due, changed }
}

fn any_config() -> impl Strategy<Value = QueueConfig> {
    (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>()).prop_map(
        |(priority, barrier, expires, once)| QueueConfig {
            priority,
            barrier,
            expiration: expires.then_some(Duration::from_secs(5000)),
            semantics: if once { Semantics::AtMostOnce } else { Semantics::AtLeastOnce },
            ..QueueConfig::default()
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]
    #[test]
    fn a_snapshot_and_the_log_behind_it_are_the_whole_log(config in any_config(), before in steps(), during in steps()) {
        let mut work = Work::new(config.clone());
        before.iter().for_each(|step| work.step(step));
        let (begun, mut snapshot, mut is_whole) = (work.log.len(), Snapshot::new(&Memory::heap()), false);
        for step in &during {
            if matches!(step, Step::Portion) && !is_whole {
                is_whole = work.queues.write_snapshot(work.queue, &mut snapshot, 1, 0);
            }
            work.step(step);
        }
        while !is_whole {
            is_whole = work.queues.write_snapshot(work.queue, &mut snapshot, 1, 0);
        }
        let bytes = bytes_of(&snapshot);

        let (mut rebuilt, queue) = empty(&work.config);
        replay(&mut rebuilt, queue, &work.log);
        let (mut restored, queue) = empty(&work.config);
        restored.read_snapshot(queue, &bytes[..], Position::new(1)).unwrap();
        replay(&mut restored, queue, &work.log[begun..]);
        let depth = |queues: &Queues| queues.stats(queue, NOW).unwrap().queue_depth;
        prop_assert_eq!(depth(&rebuilt), depth(&restored));
        let restored = all_of(&mut restored, queue);
        prop_assert!(
            restored.changed.iter().all(|(at, bookmark)| *bookmark == Some(bookmark_of(at.get())))
        );
        prop_assert_eq!(all_of(&mut rebuilt, queue), restored);
    }

}

proptest! {
    #[test]
    fn any_bytes_are_a_snapshot_or_refused(
        config in any_config(),
        steps in steps(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let mut work = Work::new(config.clone());
        steps.iter().for_each(|step| work.step(step));
        let mut snapshot = Snapshot::new(&Memory::heap());
        while !work.queues.write_snapshot(work.queue, &mut snapshot, u64::MAX, 0) {}
        let mut bytes = bytes_of(&snapshot);
        for (index, byte) in changes {
            let index = index.index(bytes.len());
            bytes[index] = byte;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        let (mut queues, queue) = empty(&config);
        match queues.read_snapshot(queue, &bytes[..], Position::new(1)) {
            Ok(()) => drop(all_of(&mut queues, queue)),
            Err(BadSnapshot) => prop_assert_eq!(queues.stats(queue, NOW).unwrap().entered, 0),
        }
    }
}

#[test]
fn the_times_in_a_snapshot_are_those_of_the_clock_of_the_next_start() {
    let config = QueueConfig { expiration: Some(Duration::from_secs(100)), ..QueueConfig::default() };
    for (ahead_s, age_s) in [(0, 90), (3_600, 90), (-50, 90)] {
        let (mut queues, queue) = empty(&config);
        let second = |number: i64| Time::new(((number + 10_000) as u64) * 1_000_000_000);
        for (position, delay_s) in [(1, None), (2, Some(95))] {
            let received = second(0);
            let delayed_until = delay_s.map(second);
            let entry = QueueEntry { received, delayed_until, ..QueueEntry::default() };
            queues.enqueue(queue, Position::new(position), entry);
        }
        let mut snapshot = Snapshot::new(&Memory::heap());
        assert!(queues.write_snapshot(queue, &mut snapshot, u64::MAX, ahead_s * 1_000_000_000));
        let (mut queues, queue) = empty(&config);
        queues.read_snapshot(queue, &bytes_of(&snapshot)[..], Position::new(1)).unwrap();
        let figures = |queues: &Queues, now: Time| {
            let stats = queues.stats(queue, now).unwrap();
            (stats.queue_depth, stats.delayed)
        };
        let mut at = |number: i64| {
            queues.advance(second(number + ahead_s));
            figures(&queues, second(number + ahead_s))
        };
        assert_eq!(at(age_s), (2, 1));
        assert_eq!(at(96), (2, 0));
        assert_eq!(at(99), (2, 0));
        assert_eq!(at(101), (0, 0));
    }
}

#[test]
fn deliveries_count_also_those_that_are_under_way_and_what_the_log_lost_is_left_out() {
    let config = QueueConfig { barrier: true, ..QueueConfig::default() };
    let mut work = Work::new(config.clone());
    work.step(&Step::Enter { count: 600, barriers: u64::MAX });
    for _ in 0..2 {
        work.step(&Step::Deliver { count: 3 });
        work.step(&Step::Settle { verdict: Verdict::Cancel, one_in: 1 });
    }
    work.step(&Step::Deliver { count: 1 });
    let mut snapshot = Snapshot::new(&Memory::heap());
    assert!(work.queues.write_snapshot(work.queue, &mut snapshot, u64::MAX, 0));
    let bytes = bytes_of(&snapshot);
    for (first, expected) in
        [(1, [(2, 4, 2), (3, 3, 2), (4, 3, 2), (5, 1, 0)]), (4, [(4, 3, 2), (5, 1, 0), (6, 1, 0), (7, 1, 0)])]
    {
        let (mut queues, queue) = empty(&config);
        queues.read_snapshot(queue, &bytes[..], Position::new(first)).unwrap();
        let spec = SubscriptionSpec { connection: CONNECTION, backlog: Some(4), queues: vec![(queue, None)] };
        queues.subscribe(&spec).unwrap();
        let next = || queues.poll_delivery(NOW, &mut Nobody);
        let counts = std::iter::from_fn(next)
            .map(|delivery| (delivery.position.get(), delivery.delivery_count, delivery.cancel_count));
        assert_eq!(counts.collect::<Vec<_>>(), expected);
    }
    let (mut queues, queue) = empty(&config);
    queues.read_snapshot(queue, &bytes[..], Position::new(10_000)).unwrap();
    assert_eq!(queues.stats(queue, NOW).unwrap().queue_depth, 0);
}
