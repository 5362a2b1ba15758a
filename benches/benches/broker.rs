//! The broker without sockets: publishes taken (decoded, checked, appended to the open batch),
//! fan-out to ordinary subscribers, and replay as far as the frames that are handed out.

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use quire_benches::driven_broker::Bench;
use quire_command::*;

const READ_SIZE: usize = 256 * 1024;

fn publish(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("broker");
    for data_size in [128, 512] {
        let mut bench = Bench::new();
        bench.connect(1, "publisher");
        let count = bench.publishes(READ_SIZE, data_size, "orders").1;
        group.throughput(Throughput::Elements(count));
        // Written between the measurements, and begun again before the memory is full.
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
            bench.subscribe(
                10 + number,
                Subscribe { subscription: 1, topic: "orders", ..Subscribe::default() },
            );
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
                let bookmark = Some("0");
                bench.subscribe(
                    2,
                    Subscribe { subscription: number, topic: "orders", bookmark, ..Subscribe::default() },
                );
                let size = bench.turn();
                assert!(size > count as usize * 256);
                let acks = Acks::default();
                bench.send(
                    2,
                    &Command::Unsubscribe(Unsubscribe {
                        command: 1,
                        acks,
                        subscription: number,
                        begun: None,
                    }),
                );
            },
            BatchSize::PerIteration,
        );
    });
    group.finish();
}

criterion_group!(benches, publish, fan_out, replay);
criterion_main!(benches);
