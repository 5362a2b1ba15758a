//! The journal compared with the disk: appends with group commit and raw writes of the same bytes,
//! finding a bookmark, and reading the log plain and compressed.
//!
//! What is compared is measured in the same run, in turns, and the ratio is printed: the machine
//! and its load drop out of it. `QUIRE_BENCH_RECORDS=10000000` finds in that many records instead
//! of a million.

use std::fs::File;
use std::hint::black_box;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use criterion::{Criterion, SamplingMode, Throughput, criterion_group, criterion_main};
use quire_journal::*;

/// Bytes of records in one measurement of appending.
const APPENDED_SIZE: u64 = 64 << 20;

/// The records that a turn of a broker passes to the journal at once.
const TURN_SIZE: u64 = 64 << 10;

const TIMEOUT: Duration = Duration::from_secs(100);

criterion_group!(benches, append, find, read);
criterion_main!(benches);

fn append(criterion: &mut Criterion) {
    for data_size in [64, 512, 4096, 65536] {
        let mut group = criterion.benchmark_group(format!("journal/append {data_size} B"));
        group.sample_size(10).sampling_mode(SamplingMode::Flat).throughput(Throughput::Bytes(APPENDED_SIZE));
        let mut spent = [Vec::new(), Vec::new()];
        group.bench_function("of which the journal", |bencher| {
            bencher.iter_custom(|rounds| {
                let mut appending = Duration::ZERO;
                for _ in 0..rounds {
                    let directory = tempfile::tempdir_in(".").expect("a directory");
                    let (journal, flushes) = append_all(directory.path(), data_size);
                    spent[0].push(journal);
                    spent[1].push(write_raw(directory.path(), flushes));
                    appending += journal;
                }
                appending
            });
        });
        group.finish();
        if spent[0].is_empty() {
            continue;
        }
        let rounds = spent[0].len();
        // Now and then the disk is busy with something else for longer than a round takes.
        let [journal, raw] = spent.map(median);
        let percent = raw.as_secs_f64() / journal.as_secs_f64() * 100.0;
        println!(
            "journal/append {data_size} B: {percent:.0} % of the rate of raw writes and syncs of the same bytes \
             ({journal:.0?} and {raw:.0?}, medians of {rounds} rounds)"
        );
    }
}

fn median(mut spent: Vec<Duration>) -> Duration {
    spent.sort_unstable();
    spent[spent.len() / 2]
}

/// Appends as fast as the disk takes it; the time until everything is persistent, and how often was
/// synced.
fn append_all(directory: &Path, data_size: usize) -> (Duration, u64) {
    const SEGMENT_SIZE: u64 = APPENDED_SIZE + (8 << 20);
    let data = vec![5; data_size];
    let size = (40 + "orders".len() + data_size) as u64;
    let options = Options {
        segment_size: SEGMENT_SIZE,
        first_segment_size: SEGMENT_SIZE,
        prepared_segments: 1,
        ..Options::default()
    };
    let (mut journal, _) = Journal::open(directory, &options, &mut |_| ()).expect("a journal");
    // The first segment is taken before it could be filled, and the first bodies of batches are
    // memory that the system has yet to give; what is measured is the second segment of a journal
    // that has filled one.
    wait_for_file(&directory.join(APPENDED_TO));
    append_records(&mut journal, 1, options.segment_size / size + 1, &data);
    // The next one is filled with zeros meanwhile, which is not what is measured here.
    wait_for_file(&directory.join("quire.0000000002.journal"));
    let flushes = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&flushes);
    journal.on_flush(Box::new(move || {
        counted.fetch_add(1, Ordering::Relaxed);
    }));
    let started = Instant::now();
    append_records(&mut journal, 2, APPENDED_SIZE / size, &data);
    let spent = started.elapsed();
    journal.close().expect("a clean stop");
    (spent, flushes.load(Ordering::Relaxed).max(1))
}

/// Appends as a broker does, turn by turn, until everything is persistent.
fn append_records(journal: &mut Journal, publisher: u64, count: u64, data: &[u8]) {
    let turn = (TURN_SIZE / (data.len() as u64 + 46)).max(1);
    for sequence in 1..=count {
        journal.append_waiting(&record(publisher, sequence, data), TIMEOUT).expect("an append");
        if sequence.is_multiple_of(turn) {
            journal.submit();
        }
    }
    journal.flush(TIMEOUT).expect("a flush");
}

/// The segment that the journal appends to, at its size.
const APPENDED_TO: &str = "quire.0000000001.journal";

/// Writes and syncs the bytes that the journal appended, from memory, in as many steps, to a file
/// that was written before.
fn write_raw(directory: &Path, steps: u64) -> Duration {
    let path = directory.join("raw");
    let file = File::create(&path).expect("a file");
    let zeros = vec![0; 1 << 20];
    for offset in (0..APPENDED_SIZE).step_by(zeros.len()) {
        file.write_all_at(&zeros, offset).expect("a write");
    }
    file.sync_all().expect("a sync");
    let appended = std::fs::read(directory.join(APPENDED_TO)).expect("a segment");
    let bytes = &appended[..APPENDED_SIZE as usize];
    assert_ne!(bytes[bytes.len() - 100_000..], vec![0; 100_000], "it is filled");
    let started = Instant::now();
    let mut offset = 0;
    for step in bytes.chunks(bytes.len().div_ceil(steps as usize)) {
        file.write_all_at(step, offset).expect("a write");
        file.sync_data().expect("a sync");
        offset += step.len() as u64;
    }
    started.elapsed()
}

fn wait_for_file(path: &Path) {
    let deadline = Instant::now() + TIMEOUT;
    while !path.exists() {
        assert!(Instant::now() < deadline, "{} was not prepared", path.display());
        std::thread::yield_now();
    }
}

fn find(criterion: &mut Criterion) {
    let directory = tempfile::tempdir_in(".").expect("a directory");
    let asked = std::env::var("QUIRE_BENCH_RECORDS").ok().and_then(|count| count.parse().ok());
    let large = asked.unwrap_or(1_000_000);
    for count in [large / 10, large] {
        let directory = directory.path().join(count.to_string());
        let journal = filled(&directory, count, 20);
        let reader = journal.reader();
        let mut random = 88_172_645_463_325_252_u64;
        criterion.bench_function(&format!("journal/find in {count} records"), |bencher| {
            bencher.iter(|| {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                let sequence = random % count + 1;
                let bookmark = Bookmark { publisher: PublisherId::new(sequence % 100), sequence };
                assert_eq!(
                    reader.find(black_box(bookmark)).expect("a sound log"),
                    Some(Position::new(sequence))
                );
            });
        });
    }
}

fn read(criterion: &mut Criterion) {
    let directory = tempfile::tempdir_in(".").expect("a directory");
    let journal = filled(directory.path(), 300_000, 256);
    let reader = journal.reader();
    let size: u64 = reader.segments().iter().map(|segment| segment.size).sum();
    let mut group = criterion.benchmark_group("journal/read");
    group.sample_size(10).throughput(Throughput::Bytes(size));
    let mut fastest = [Duration::MAX; 2];
    for (at, name) in ["plain", "compressed"].into_iter().enumerate() {
        if name == "compressed" {
            journal.maintenance().compress(Which::All).expect("compressed segments");
        }
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                let started = Instant::now();
                let mut cursor = reader.cursor(Position::ZERO);
                let mut found = 0;
                while let Some(batch) = cursor.next(reader.persisted(), &AllTopics).expect("a sound log") {
                    found += batch.records().map(|record| u64::from(record.data[0])).sum::<u64>();
                }
                fastest[at] = fastest[at].min(started.elapsed());
                black_box(found)
            });
        });
    }
    group.finish();
    if fastest.contains(&Duration::MAX) {
        return;
    }
    let percent = fastest[0].as_secs_f64() / fastest[1].as_secs_f64() * 100.0;
    println!("journal/read: compressed segments at {percent:.0} % of the rate of plain ones");
}

/// A journal of `count` records of a hundred publishers, with data as text has it.
fn filled(directory: &Path, count: u64, data_size: usize) -> Journal {
    let options = Options { segment_size: 16 << 20, durability: Durability::Os, ..Options::default() };
    let (mut journal, _) = Journal::open(directory, &options, &mut |_| ()).expect("a journal");
    for sequence in 1..=count {
        let mut data = format!(
            "{{\"symbol\": \"S{}\", \"price\": {}, \"note\": \"",
            sequence % 500,
            sequence * 7919 % 100_000
        );
        while data.len() < data_size {
            data.push_str("a message of some length ");
        }
        data.truncate(data_size);
        journal
            .append_waiting(&record(sequence % 100, sequence, data.as_bytes()), TIMEOUT)
            .expect("an append");
        if sequence.is_multiple_of(1000) {
            journal.submit();
        }
    }
    journal.flush(TIMEOUT).expect("a flush");
    journal
}

fn record(publisher: u64, sequence: u64, data: &[u8]) -> NewRecord<'_> {
    NewRecord {
        kind: RecordKind::Publish,
        message_type: 1,
        publisher: PublisherId::new(publisher),
        sequence,
        timestamp: Timestamp::from_ns(sequence),
        topic: "orders",
        correlation_id: b"",
        expiration_s: None,
        attributes: Attributes::NONE,
        data,
    }
}
