//! The queue engine alone: leasing and acknowledging by the number of subscriptions and by the
//! depth of the queue, filters that rarely match, and the restart. Messages enter outside the
//! measured time. Each delivery is one call, and so is each acknowledgement. Another call takes the
//! change that the broker would log.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use quire_queue::*;

const NOW: Time = Time::new(1_000_000_000);
const CONNECTION: ConnectionId = ConnectionId::new(1);
/// Messages leased and acknowledged in one round.
const ROUND: u64 = 100_000;

/// A queue with its subscriptions, and the deliveries that are outstanding.
struct Bench {
    queues: Queues,
    queue: QueueId,
    entered: u64,
    held: VecDeque<Position>,
    questions: u64,
}

impl Bench {
    fn new(config: QueueConfig) -> Self {
        let mut queues = Queues::new();
        let queue = queues.add_queue(config).unwrap();
        Bench { queues, queue, entered: 0, held: VecDeque::new(), questions: 0 }
    }

    fn subscribe(&mut self, count: u32, backlog: u32, filter: impl Fn(u32) -> Option<FilterId>) {
        for number in 0..count {
            let queues = vec![(self.queue, filter(number))];
            let spec = SubscriptionSpec { connection: CONNECTION, backlog: Some(backlog), queues };
            self.queues.subscribe(&spec).unwrap();
        }
    }

    fn enqueue(&mut self, count: u64) {
        for _ in 0..count {
            self.entered += 1;
            let bookmark = Some(Bookmark::new(PublisherId::new(7), self.entered));
            let entry = QueueEntry { bookmark, received: NOW, ..QueueEntry::default() };
            self.queues.enqueue(self.queue, Position::new(self.entered), entry);
        }
    }

    /// Leases one message.
    fn lease(&mut self) {
        let questions = &mut self.questions;
        let mut matcher = |position: Position, filter: FilterId| {
            *questions += 1;
            position.get() % 10_000 == u64::from(filter.get())
        };
        // One call asks a bounded number of questions only.
        let delivery = loop {
            if let Some(delivery) = self.queues.poll_delivery(NOW, &mut matcher) {
                break delivery;
            }
            assert_eq!(self.queues.poll_timeout(), Some(NOW), "there is nothing to lease");
        };
        self.held.push_back(delivery.position);
    }

    /// Acknowledges the message that has been held the longest.
    fn acknowledge(&mut self) {
        let position = self.held.pop_front().unwrap();
        assert_eq!(self.queues.settle(self.queue, CONNECTION, Verdict::Acknowledge, &[position], NOW), 1);
        assert!(self.queues.poll_change().is_some());
    }

    #[inline(never)]
    fn round(&mut self) {
        for _ in 0..ROUND {
            self.acknowledge();
            self.lease();
        }
    }

    /// How long `rounds` rounds take, with `held` messages outstanding all the time.
    fn rounds(&mut self, rounds: u64, held: usize) -> Duration {
        self.enqueue((held - self.held.len()) as u64);
        while self.held.len() < held {
            self.lease();
        }
        let mut elapsed = Duration::ZERO;
        for _ in 0..rounds {
            self.enqueue(ROUND);
            let start = Instant::now();
            self.round();
            elapsed += start.elapsed();
        }
        elapsed
    }
}

/// Two queues take turns, so that what else the machine does falls on both: the time of the second
/// as a part of that of the first.
fn ratio(
    group: &mut BenchmarkGroup<'_, WallTime>,
    name: String,
    mut make: impl FnMut() -> [(Bench, usize); 2],
) {
    let mut ratios = Vec::new();
    let mut benches = None;
    group.bench_function(name.as_str(), |bencher| {
        let [(base, base_held), (other, held)] = benches.get_or_insert_with(&mut make);
        bencher.iter_custom(|rounds| {
            let mut elapsed = Duration::ZERO;
            for _ in 0..rounds {
                let expected = base.rounds(1, *base_held);
                let took = other.rounds(1, *held);
                ratios.push(took.as_secs_f64() / expected.as_secs_f64());
                elapsed += took;
            }
            elapsed
        });
    });
    ratios.sort_by(f64::total_cmp);
    if let Some(median) = ratios.get(ratios.len() / 2) {
        println!("{name}: {median:.2} (median of {} pairs of rounds)", ratios.len());
    }
}

/// Subscriptions with a backlog of 20,000 messages together, half of which is in use.
fn subscribed(model: FairnessModel, subscriptions: u32) -> (Bench, usize) {
    let mut bench = Bench::new(QueueConfig {
        fairness_model: Some(model),
        lease_period: Some(Duration::from_secs(30)),
        ..QueueConfig::default()
    });
    bench.subscribe(subscriptions, 20_000 / subscriptions, |_| None);
    (bench, 10_000)
}

/// How fast, and that ten thousand subscriptions are served as fast as ten.
fn fairness(criterion: &mut Criterion) {
    for model in [FairnessModel::Fast, FairnessModel::RoundRobin, FairnessModel::Proportional] {
        let mut group = criterion.benchmark_group(format!("lease and acknowledge/{model:?}"));
        group.throughput(Throughput::Elements(ROUND)).sample_size(10);
        for subscriptions in [10, 1_000, 10_000] {
            let mut bench = None;
            group.bench_function(BenchmarkId::from_parameter(subscriptions), |bencher| {
                let (bench, held) = bench.get_or_insert_with(|| subscribed(model, subscriptions));
                bencher.iter_custom(|rounds| bench.rounds(rounds, *held));
            });
        }
        ratio(&mut group, "10,000 to 10".into(), || [subscribed(model, 10), subscribed(model, 10_000)]);
        group.finish();
    }
}

/// A queue of this depth, with 100 subscriptions.
fn deep(depth: u64, priority: bool) -> (Bench, usize) {
    let mut bench = Bench::new(QueueConfig { priority, ..QueueConfig::default() });
    bench.subscribe(100, 10, |_| None);
    bench.enqueue(depth);
    (bench, 500)
}

/// A queue serves as fast when it is ten million deep as when it is a thousand deep.
fn depth(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("depth");
    group.throughput(Throughput::Elements(ROUND)).sample_size(10);
    for priority in [false, true] {
        let order = if priority { "priority" } else { "log order" };
        let name = format!("{order}/10 million to 1,000");
        ratio(&mut group, name, || [deep(1_000, priority), deep(10_000_000, priority)]);
    }
    group.finish();
}

/// 100 subscriptions with a filter that one message in 10,000 matches, beside one that takes the
/// rest.
fn rare_matches(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("filters");
    group.throughput(Throughput::Elements(ROUND)).sample_size(10);
    for filters in [1, 100] {
        let mut bench = Bench::new(QueueConfig::default());
        bench.subscribe(filters, 10, |number| Some(FilterId::new(number)));
        bench.subscribe(1, 1_000, |_| None);
        let id = BenchmarkId::new("one in 10,000", filters);
        group.bench_function(id, |bencher| bencher.iter_custom(|rounds| bench.rounds(rounds, 500)));
        assert!(
            bench.questions <= bench.entered * u64::from(filters),
            "a filter was asked twice about a message"
        );
    }
    group.finish();
}

/// Ten million messages of which none was acknowledged, and ten million of which every second was.
fn restart(criterion: &mut Criterion) {
    const DEPTH: u64 = 10_000_000;
    let mut group = criterion.benchmark_group("restart");
    group.throughput(Throughput::Elements(DEPTH)).sample_size(10);
    for acknowledged in [false, true] {
        let name = if acknowledged { "every second acknowledged" } else { "none acknowledged" };
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                let mut bench = Bench::new(QueueConfig::default());
                bench.enqueue(DEPTH);
                for position in (1..=DEPTH).step_by(2).filter(|_| acknowledged) {
                    let (queue, position) = (bench.queue, Position::new(position));
                    bench.queues.restore(Change {
                        queue,
                        position,
                        bookmark: None,
                        kind: ChangeKind::Acknowledged,
                    });
                }
                bench.queues
            });
        });
    }
    group.finish();
}

criterion_group!(benches, fairness, depth, rare_matches, restart);
criterion_main!(benches);
