//! The broker without sockets: publishes taken (decoded, checked, appended to the open batch), fan-out to ordinary subscribers, and
//! replay as far as the frames that are handed out. The journal is one in memory, driven by hand, so that no disk is measured.

use std::path::Path;
use std::sync::Arc;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use quire_core::broker::{Broker, BrokerConfig, ConnectionId, Input, Output};
use quire_core::time::{Instant, Now};
use quire_core::wire::*;
use quire_journal::{Journal, MemoryDisk, Options, Timestamp};

const NOW: Now = Now { instant: Instant(0), wall: Timestamp(1_000_000_000_000_000_000) };

struct Bench {
    broker: Broker,
    sequence: u64,
}

impl Bench {
    fn new() -> Self {
        let disk = Arc::new(MemoryDisk::new(4 << 30));
        let options = Options { segment_size: 64 << 20, ..Options::default() };
        let (journal, _) = Journal::driven_by_hand(disk, Path::new("journal"), &options).unwrap();
        let mut config = BrokerConfig::default();
        config.limits.max_client_backlog = 1 << 40;
        config.limits.max_subscriptions_per_connection = 1 << 20;
        Bench { broker: Broker::new(config, journal).unwrap(), sequence: 0 }
    }

    fn connect(&mut self, number: u64, name: &str) {
        let connection = ConnectionId(number);
        self.broker.handle(NOW, Input::Connected { connection, peer: "bench" });
        let logon = Logon { version: VERSION, client_name: name, ..Logon::default() };
        self.send(number, &ClientFrame::Logon(logon));
        self.turn();
    }

    fn send(&mut self, number: u64, frame: &ClientFrame<'_>) {
        let mut bytes = Vec::new();
        frame.encode(&mut bytes);
        self.broker.handle(NOW, Input::Received { connection: ConnectionId(number), bytes: &bytes });
    }

    fn subscribe(&mut self, connection: u64, subscription: u32, topic: &str, bookmark: Option<&str>) {
        let subscribe = Subscribe { command: 1, subscription, topic, bookmark, ..Subscribe::default() };
        self.send(connection, &ClientFrame::Subscribe(subscribe));
    }

    /// One read's worth of publishes.
    fn publishes(&mut self, size: usize, data_size: usize, topic: &str) -> (Vec<u8>, u64) {
        let data = vec![b'x'; data_size];
        let mut bytes = Vec::new();
        let first = self.sequence;
        while bytes.len() < size {
            self.sequence += 1;
            let publish = Publish {
                sequence: self.sequence,
                expiration_s: None,
                topic: topic.as_bytes(),
                correlation_id: b"",
                data: &data,
            };
            ClientFrame::Publish(publish).encode(&mut bytes);
        }
        (bytes, self.sequence - first)
    }

    fn receive(&mut self, number: u64, bytes: &[u8]) {
        self.broker.handle(NOW, Input::Received { connection: ConnectionId(number), bytes });
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

const READ_SIZE: usize = 256 * 1024;

fn publish(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("broker");
    for data_size in [128, 512] {
        let mut bench = Bench::new();
        bench.connect(1, "publisher");
        let count = bench.publishes(READ_SIZE, data_size, "orders").1;
        group.throughput(Throughput::Elements(count));
        // Written between the measurements, and begun anew before the memory is full.
        group.bench_function(format!("take publishes of {data_size} B"), |bencher| {
            let mut bench = Bench::new();
            bench.connect(1, "publisher");
            let mut left = 8_000;
            bencher.iter_custom(|iterations| {
                let mut elapsed = std::time::Duration::ZERO;
                for _ in 0..iterations {
                    left -= 1;
                    if left == 0 {
                        bench = Bench::new();
                        bench.connect(1, "publisher");
                        left = 8_000;
                    }
                    let bytes = bench.publishes(READ_SIZE, data_size, "orders").0;
                    let start = std::time::Instant::now();
                    bench.receive(1, &bytes);
                    bench.turn();
                    elapsed += start.elapsed();
                    bench.broker.write_journal();
                }
                elapsed
            });
        });
    }
    group.finish();
}

fn fan_out(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("fan-out");
    for subscribers in [1u64, 100, 1000] {
        let mut bench = Bench::new();
        bench.connect(1, "publisher");
        for number in 0..subscribers {
            bench.connect(10 + number, &format!("subscriber-{number}"));
            bench.subscribe(10 + number, 1, "orders", None);
        }
        bench.turn();
        let count = 100;
        group.throughput(Throughput::Elements(count * subscribers));
        group.bench_function(format!("128 B to {subscribers} subscribers"), |bencher| {
            bencher.iter_custom(|iterations| {
                let mut elapsed = std::time::Duration::ZERO;
                for _ in 0..iterations {
                    let bytes = bench.publishes(count as usize * 159, 128, "orders").0;
                    let start = std::time::Instant::now();
                    bench.receive(1, &bytes);
                    bench.turn();
                    elapsed += start.elapsed();
                    bench.broker.write_journal();
                    bench.turn();
                }
                elapsed
            });
        });
    }
    group.finish();
}

fn replay(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("replay");
    let mut bench = Bench::new();
    bench.connect(1, "publisher");
    let mut count = 0;
    for _ in 0..200 {
        let (bytes, published) = bench.publishes(READ_SIZE, 256, "orders");
        count += published;
        bench.receive(1, &bytes);
        bench.turn();
        bench.broker.write_journal();
        bench.turn();
    }
    bench.connect(2, "reader");
    group.throughput(Throughput::Elements(count));
    group.sample_size(20);
    let mut number = 0;
    group.bench_function("read, match and encode 256 B", |bencher| {
        bencher.iter_batched(
            || (),
            |()| {
                number += 1;
                bench.subscribe(2, number, "orders", Some("0"));
                let size = bench.turn();
                assert!(size > count as usize * 256);
                let acks = Acks::default();
                bench.send(2, &ClientFrame::Unsubscribe { command: 1, acks, subscription: number });
            },
            BatchSize::PerIteration,
        );
    });
    group.finish();
}

criterion_group!(benches, publish, fan_out, replay);
criterion_main!(benches);
