//! Decoding publishes: 128 bytes of data each, in reads of 256 KiB. Build for 5 million/s on one
//! core.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use quire_command::*;
use quire_wire::*;
use std::hint::black_box;

const READ_SIZE: usize = 256 * 1024;

fn frames(data_size: usize) -> (Vec<u8>, u64) {
    let data = vec![b'x'; data_size];
    let mut bytes = Vec::new();
    let mut count = 0;
    while bytes.len() < READ_SIZE {
        count += 1;
        let publish = Publish {
            sequence: count,
            expiration_s: None,
            topic: b"orders",
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
    (bytes, count)
}

fn decode(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("frame");
    let (bytes, count) = frames(128);
    group.throughput(Throughput::Elements(count));
    group.bench_function("decode publishes of 128 B", |bencher| {
        let mut inbox = Inbox::new(16 << 20);
        bencher.iter(|| {
            let mut rest = &bytes[..];
            let mut size = 0;
            while let Some(frame) = inbox.next(&mut rest).unwrap() {
                let Command::Publish(publish) = Command::decode(frame).unwrap() else { panic!() };
                size += publish.data.len();
            }
            black_box(size)
        });
    });
    group.finish();
}

criterion_group!(benches, decode);
criterion_main!(benches);
