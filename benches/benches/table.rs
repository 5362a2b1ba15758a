//! The engine of last-value topics alone: puts of new and of known keys with the generation of the
//! key, lookups, and scans with a filter.

use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use quire_benches::filled_table::{Bench, message};
use quire_expression::filter::{Filter, FilterOptions};

const ROWS: u64 = 1_000_000;
/// Calls of one round.
const ROUND: u64 = 100_000;

/// Rows of this many in an order without a pattern.
fn scattered(round: u64, rows: u64) -> impl Iterator<Item = u64> {
    (0..ROUND).map(move |call| ((round * ROUND + call) * 7_919 + round) % rows)
}

fn puts(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("table put");
    group.throughput(Throughput::Elements(ROUND)).sample_size(10);
    group.bench_function("new key", |bencher| {
        let messages: Vec<_> = (0..ROUND).map(message).collect();
        bencher.iter_custom(|rounds| {
            let mut taken = Duration::ZERO;
            for _ in 0..rounds {
                let mut bench = Bench::new(Vec::new(), Vec::new());
                let start = Instant::now();
                messages.iter().zip(0..).for_each(|(data, number)| assert!(bench.put(number, data)));
                taken += start.elapsed();
            }
            taken
        });
    });
    for (name, rows, indexes) in [
        ("known key of 10,000", 10_000, Vec::new()),
        ("known key of 1,000,000", ROWS, Vec::new()),
        ("the same, one hash index", ROWS, vec![vec!["/symbol".to_owned()]]),
    ] {
        group.bench_function(name, |bencher| {
            let mut bench = Bench::filled(rows, indexes.clone());
            let mut round = 0;
            bencher.iter_custom(|rounds| {
                let mut taken = Duration::ZERO;
                for _ in 0..rounds {
                    round += 1;
                    let calls: Vec<_> =
                        scattered(round, rows).map(|number| (number, message(number))).collect();
                    let start = Instant::now();
                    calls.iter().for_each(|(number, data)| assert!(!bench.put(*number, data)));
                    taken += start.elapsed();
                }
                taken
            });
        });
    }
    group.finish();
}

fn reads(criterion: &mut Criterion) {
    let mut bench = Bench::filled(ROWS, Vec::new());
    let mut group = criterion.benchmark_group("table read");
    group.throughput(Throughput::Elements(ROUND)).sample_size(10);
    group.bench_function("get of 1,000,000", |bencher| {
        let data: Vec<_> = scattered(1, ROWS).map(message).collect();
        let keys: Vec<_> =
            data.iter().map(|data| bench.keys.key_of(data.as_bytes(), &mut bench.arena).unwrap()).collect();
        bencher.iter(|| keys.iter().filter(|key| bench.table.get(key).is_some()).count());
    });
    group.throughput(Throughput::Elements(ROWS));
    let filter = |text| Filter::parse(text, &FilterOptions::default()).unwrap();
    for text in ["/symbol = 'SYM123'", "/quantity > 990 AND /side = 'buy'", "SOW_KEY() = '0'"] {
        let filter = filter(text);
        group.bench_function(format!("scan with {text}"), |bencher| bencher.iter(|| bench.scan(&filter)));
    }
    group.finish();
}

/// Queries by the key, and of a range that one row in a hundred is in.
fn queries(criterion: &mut Criterion) {
    let filter = |text: &str| Filter::parse(text, &FilterOptions::default()).unwrap();
    for rows in [1_000, 100_000, 10_000_000] {
        let mut bench = Bench::indexed(rows, Vec::new(), vec!["/quantity".to_owned()]);
        let mut group = criterion.benchmark_group(format!("table query of {rows}"));
        group.sample_size(10);
        let mut number = 0;
        group.bench_function("by the key", |bencher| {
            bencher.iter(|| {
                number = (number * 7_919 + 1) % rows;
                assert_eq!(bench.scan(&filter(&format!("/order_id = 'order-{number:09}'"))), 1);
            });
        });
        let (indexed, whole) = (filter("/quantity < 10"), filter("/quantity < 10 OR /quantity = -1"));
        group.bench_function("range of 1 %, ordered index", |bencher| {
            bencher.iter(|| assert_eq!(bench.scan(&indexed), rows / 100));
        });
        group.bench_function("range of 1 %, all rows", |bencher| {
            bencher.iter(|| assert_eq!(bench.scan(&whole), rows / 100));
        });
        group.finish();
    }
}

criterion_group!(benches, puts, reads, queries);
criterion_main!(benches);
