//! Queues through the broker without sockets: a message published, queued, delivered and
//! acknowledged, without and with a view of the queue, and a restart with many unacknowledged. The
//! journal is one in memory, driven by hand, so that no disk is measured.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use quire_broker::{
    Access, Broker, BrokerConfig, ConnectionId, Input, Output, QueueSettings, TransportId, ViewSettings,
};
use quire_command::*;
use quire_journal::{Journal, MemoryDisk, Options, PublisherId, Timestamp};
use quire_types::Verdict;
use quire_types::time::{Instant, Now};
use quire_wire::*;

const NOW: Now = Now { instant: Instant(0), wall: Timestamp(1_000_000_000_000_000_000) };
const PUBLISHER: u64 = 1;
const WORKER: u64 = 2;

/// Acknowledgements in one command, as clients send them.
const ACK_BATCH_SIZE: u64 = 80;

/// Messages between two writes of the journal: as many as arrive during a flush at some 200,000 a
/// second.
const ROUND_COUNT: u64 = 400;

struct Bench {
    broker: Broker,
    disk: Arc<MemoryDisk>,
    published: u64,
}

impl Bench {
    fn new(views: Vec<ViewSettings>) -> Self {
        Bench::on(Arc::new(MemoryDisk::new(8 << 30)), views)
    }

    fn on(disk: Arc<MemoryDisk>, views: Vec<ViewSettings>) -> Self {
        let options =
            Options { segment_size: 64 << 20, unpersisted_size_max: usize::MAX, ..Options::default() };
        let (journal, _) = Journal::driven_by_hand(disk.clone(), Path::new("journal"), &options).unwrap();
        let queue = QueueSettings {
            name: "jobs".into(),
            message_type: "json".into(),
            lease_period_ns: Some(30_000_000_000),
            ..QueueSettings::default()
        };
        let config = BrokerConfig { queues: vec![queue], views, ..BrokerConfig::default() };
        Bench { broker: Broker::new(config, journal).unwrap(), disk, published: 0 }
    }

    fn connect(&mut self, number: u64, name: &str) {
        self.broker.handle(
            NOW,
            Input::Connected {
                connection: ConnectionId(number),
                peer: "bench",
                transport: TransportId::default(),
                access: Access::Client,
            },
        );
        self.send(number, &Command::Logon(Logon { version: VERSION, client_name: name, ..Logon::default() }));
        self.turn();
    }

    fn work(&mut self, max_backlog: u32) {
        let (command, subscription, max_backlog) = (1, 1, Some(max_backlog));
        let subscribe =
            Subscribe { command, subscription, topic: "jobs", max_backlog, ..Subscribe::default() };
        self.send(WORKER, &Command::Subscribe(subscribe));
        self.turn();
    }

    fn send(&mut self, number: u64, frame: &Command<'_>) {
        let mut bytes = Vec::new();
        frame.encode(&mut bytes);
        self.receive(number, &bytes);
    }

    fn receive(&mut self, number: u64, bytes: &[u8]) {
        self.broker.handle(NOW, Input::Received { connection: ConnectionId(number), bytes });
    }

    fn publishes(&mut self, count: u64, data_size: usize) -> Vec<u8> {
        let kind = r#"{"kind":"mail","text":""#;
        let text = "x".repeat(data_size - kind.len() - 2);
        let (data, mut bytes) = (format!(r#"{kind}{text}"}}"#).into_bytes(), Vec::new());
        for _ in 0..count {
            self.published += 1;
            let publish = Publish {
                sequence: self.published,
                expiration_s: None,
                topic: b"jobs",
                correlation_id: b"",
                headers: quire_types::Headers::NONE,
                delay: quire_types::Delay::None,
                key: b"",
                is_delta: false,
                is_update: false,
                is_numbered: false,
                data: &data,
            };
            Command::Publish(publish).encode(&mut bytes);
        }
        bytes
    }

    /// The settles for the last `count` messages, a frame for each batch.
    fn settles(&self, count: u64) -> Vec<Vec<u8>> {
        let publisher = PublisherId::of_client_name("publisher").get();
        let sequences: Vec<u64> = (self.published - count + 1..=self.published).collect();
        let settle = |sequences: &[u64]| {
            let (mut bookmarks, mut bytes) = (Vec::new(), Vec::new());
            sequences.iter().for_each(|sequence| put_bookmark(&mut bookmarks, publisher, *sequence));
            let messages = Selection::Bookmarks(Bookmarks::from_bytes(&bookmarks).unwrap());
            let (verdict, acks) = (Verdict::Acknowledge, Acks::default());
            let settle = Settle { verdict, command: 0, acks, queue: "jobs", messages, reason: "" };
            Command::Settle(settle).encode(&mut bytes);
            bytes
        };
        sequences.chunks(ACK_BATCH_SIZE as usize).map(settle).collect()
    }

    /// A turn, and those that it asks for; gives the bytes sent.
    fn turn(&mut self) -> usize {
        let mut size = 0;
        loop {
            self.broker.finish_turn(NOW);
            let mut did = false;
            while let Some(output) = self.broker.poll_output() {
                match output {
                    Output::Send { bytes, .. } => {
                        size += bytes.len();
                        self.broker.recycle(bytes);
                        did = true;
                    }
                    Output::SendShared { bytes, .. } => {
                        size += bytes.len();
                        did = true;
                    }
                    Output::Read(request) => {
                        self.broker.handle(NOW, Input::ReadDone(request.run()));
                        did = true;
                    }
                    _ => (),
                }
            }
            if !did {
                return size;
            }
        }
    }
}

/// A view of the queue with the number of messages of each kind.
fn backlog() -> ViewSettings {
    ViewSettings {
        name: "backlog".into(),
        message_type: "json".into(),
        underlying_topic: "jobs".into(),
        projection: vec!["/kind".into(), "COUNT(1) AS /jobs".into()],
        grouping: vec!["/kind".into()],
        ..ViewSettings::default()
    }
}

fn work_off(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("queue");
    group.throughput(Throughput::Elements(ROUND_COUNT));
    for (name, views) in [
        ("publish, queue, deliver and acknowledge 512 B", vec![]),
        ("the same, with a view that counts", vec![backlog()]),
    ] {
        group.bench_function(name, |bencher| {
            bencher.iter_custom(|iterations| work_off_rounds(iterations, &views));
        });
    }
    group.finish();
}

fn work_off_rounds(iterations: u64, views: &[ViewSettings]) -> Duration {
    let (mut bench, mut left) = (Bench::new(views.to_vec()), 0);
    let mut elapsed = Duration::ZERO;
    for _ in 0..iterations {
        // Begun again before the memory is full.
        if left == 0 {
            bench = Bench::new(views.to_vec());
            bench.connect(PUBLISHER, "publisher");
            bench.connect(WORKER, "worker");
            bench.work(1000);
            left = 20_000;
        }
        left -= 1;
        let publishes = bench.publishes(ROUND_COUNT, 512);
        let settles = bench.settles(ROUND_COUNT);
        let start = std::time::Instant::now();
        bench.receive(PUBLISHER, &publishes);
        bench.turn();
        elapsed += start.elapsed();
        bench.broker.write_journal();
        let start = std::time::Instant::now();
        let size = bench.turn();
        for settle in settles {
            bench.receive(WORKER, &settle);
            bench.turn();
        }
        elapsed += start.elapsed();
        assert!(size > ROUND_COUNT as usize * 512);
        bench.broker.write_journal();
    }
    elapsed
}

/// `QUIRE_BENCH_MESSAGES`: how many are unacknowledged, a million without it.
fn restart(criterion: &mut Criterion) {
    let count = std::env::var("QUIRE_BENCH_MESSAGES").ok().and_then(|count| count.parse().ok());
    let count: u64 = count.unwrap_or(1_000_000);
    let mut bench = Bench::new(vec![]);
    bench.connect(PUBLISHER, "publisher");
    for _ in 0..count / 10_000 {
        let bytes = bench.publishes(10_000, 100);
        bench.receive(PUBLISHER, &bytes);
        bench.turn();
        bench.broker.write_journal();
        bench.turn();
    }
    let disk = bench.disk.clone();
    drop(bench);
    let mut group = criterion.benchmark_group("queue");
    group.throughput(Throughput::Elements(count)).sample_size(10);
    group.bench_function("restart with unacknowledged messages of 100 B", |bencher| {
        bencher.iter(|| Bench::on(disk.clone(), vec![]));
    });
    group.finish();
}

criterion_group!(benches, work_off, restart);
criterion_main!(benches);
