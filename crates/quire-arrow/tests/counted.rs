//! The counts of an aggregate from the index are equal to those from the rows, and blocks that the
//! index covers are not read.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use arrow_array::RecordBatch;
use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use proptest::collection::vec;
use proptest::prelude::*;
use quire_arrow::{Bounds, Plan, Scan, ScanSpec};
use quire_journal::{
    Attributes, Journal, NewRecord, Options, Position, PublisherId, Reader, RecordKind, Timestamp, Which,
};

/// Only a hang takes longer, on the slowest machine.
const SOON: Duration = Duration::from_secs(120);
const TOPICS: [&str; 3] = ["a", "b", "queue"];
const ALL: Bounds = Bounds { after: Position::ZERO, limit: Position::new(u64::MAX) };

/// Neighbours with one topic and one kind.
#[derive(Clone, Copy, Debug)]
struct Run {
    topic: usize,
    kind: RecordKind,
    count: u64,
}

fn options() -> Options {
    // Two or three blocks.
    Options { segment_size: 192 * 1024, prepared_segments: 1, ..Options::default() }
}

/// Eight records are a block.
fn write(directory: &Path, runs: &[Run]) -> Vec<(RecordKind, &'static str)> {
    let (mut journal, _) = Journal::open(directory, &options(), &mut |_| ()).unwrap();
    let mut written = Vec::new();
    for run in runs {
        for _ in 0..run.count {
            written.push((run.kind, TOPICS[run.topic]));
            let sequence = written.len() as u64;
            let record = NewRecord {
                kind: run.kind,
                message_type: 2,
                publisher: PublisherId(7),
                sequence,
                timestamp: Timestamp(1_000_000 + sequence * 1000),
                topic: TOPICS[run.topic],
                correlation_id: b"",
                expiration_s: None,
                attributes: Attributes::NONE,
                data: &[b'x'; 8 * 1024],
            };
            journal.append(&record).unwrap();
            if sequence.is_multiple_of(3) {
                journal.submit();
            }
        }
    }
    journal.flush(SOON).unwrap();
    written
}

fn plan(by_topic: bool, rest: &str) -> Plan {
    let functions = r#"["count", {"min": "position"}, {"max": "position"}]"#;
    let aggregate = format!(r#"{{"by_topic": {by_topic}, "functions": {functions}}}"#);
    let spec = format!(r#"{{"columns": [], "aggregate": {aggregate}{rest}}}"#);
    Plan::new(ScanSpec::from_json(&spec).unwrap()).unwrap()
}

type Totals = BTreeMap<String, [i64; 3]>;

/// Adds count, least and greatest position.
fn add(totals: &mut Totals, topic: &str, [count, least, greatest]: [i64; 3]) {
    let total = totals.entry(topic.to_owned()).or_insert([0, i64::MAX, i64::MIN]);
    *total = [total[0] + count, total[1].min(least), total[2].max(greatest)];
}

fn add_batch(totals: &mut Totals, by_topic: bool, batch: &RecordBatch) {
    let first = usize::from(by_topic);
    let column = |number: usize| batch.column(first + number).as_primitive::<Int64Type>();
    for row in 0..batch.num_rows() {
        let topic = if by_topic { batch.column(0).as_string::<i32>().value(row) } else { "" };
        if column(0).value(row) > 0 {
            add(totals, topic, [0, 1, 2].map(|number| column(number).value(row)));
        }
    }
}

fn read(mut scan: Scan, by_topic: bool) -> Totals {
    let mut totals = Totals::new();
    scan.by_ref().for_each(|batch| add_batch(&mut totals, by_topic, &batch.unwrap()));
    totals
}

fn reader(directory: &Path) -> Reader {
    Reader::open_read_only(directory).unwrap()
}

fn whole(reader: &Reader) -> Bounds {
    Bounds { limit: reader.persisted(), ..ALL }
}

fn bytes_read(plan: &Plan, reader: &Reader) -> u64 {
    let mut scan = plan.scan(reader, whole(reader)).unwrap();
    scan.by_ref().for_each(|batch| drop(batch.unwrap()));
    scan.progress().bytes.load(Ordering::Relaxed)
}

fn messages(topic: usize, count: u64) -> Run {
    Run { topic, kind: RecordKind::Publish, count }
}

fn runs() -> impl Strategy<Value = Vec<Run>> {
    let kind = prop_oneof![8 => Just(RecordKind::Publish), 1 => Just(RecordKind::Acknowledge), 1 => Just(RecordKind::Lease)];
    let run = (0..TOPICS.len(), kind, prop_oneof![1..5_u64, 1..60_u64]);
    vec(run.prop_map(|(topic, kind, count)| Run { topic, kind, count }), 1..12)
}

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_iters: 200, cases: ProptestConfig::default().cases.min(48), ..ProptestConfig::default() })]

    #[test]
    fn a_count_is_the_number_of_the_rows(
        runs in runs(),
        by_topic in any::<bool>(),
        topics in prop_oneof![Just(""), Just(r#"["a"]"#), Just(r#"["a", "b"]"#), Just(r#"["none"]"#)],
        ends in any::<(prop::sample::Index, prop::sample::Index)>(),
        part_size in prop_oneof![Just(1), 1..500_000_u64, Just(u64::MAX)],
    ) {
        let directory = tempfile::tempdir().unwrap();
        let written = write(directory.path(), &runs);
        let ends = [ends.0, ends.1].map(|end| end.index(written.len() + 1) as u64);
        let (after, limit) = (ends[0].min(ends[1]), ends[0].max(ends[1]));
        let mut expected = Totals::new();
        for (position, (kind, topic)) in (1..).zip(written) {
            let is_wanted = topics.is_empty() || topics.contains(&format!("{topic:?}"));
            if kind == RecordKind::Publish && is_wanted && position > after as i64 && position <= limit as i64 {
                add(&mut expected, if by_topic { topic } else { "" }, [1, position, position]);
            }
        }
        let rest = if topics.is_empty() { String::new() } else { format!(r#", "topics": {{"names": {topics}}}"#) };
        let plan = plan(by_topic, &rest);
        let reader = reader(directory.path());
        let bounds = Bounds { after: Position::new(after), limit: Position::new(limit) };
        prop_assert_eq!(read(plan.scan(&reader, bounds).unwrap(), by_topic), expected.clone());
        let mut joined = Totals::new();
        for part in plan.split(&reader, bounds, part_size, 1) {
            for (topic, total) in read(plan.scan(&reader, part.bounds).unwrap(), by_topic) {
                add(&mut joined, &topic, total);
            }
        }
        prop_assert_eq!(joined, expected);
    }
}

#[test]
fn only_blocks_of_several_topics_or_with_other_records_are_read() {
    let directory = tempfile::tempdir().unwrap();
    write(directory.path(), &[messages(0, 100), messages(1, 100)]);
    assert_eq!(bytes_read(&plan(false, ""), &reader(directory.path())), 0);
    let mixed = bytes_read(&plan(true, ""), &reader(directory.path()));
    assert!((1..200_000).contains(&mixed), "{mixed} bytes: about one block of 200");
    // Parts are made of what is read.
    let parts =
        plan(false, "").split(&reader(directory.path()), whole(&reader(directory.path())), 64 * 1024, 1);
    assert_eq!(parts.iter().map(|part| part.size).collect::<Vec<_>>(), [0]);
    let event = Run { topic: 2, kind: RecordKind::Acknowledge, count: 1 };
    let other = tempfile::tempdir().unwrap();
    write(other.path(), &[messages(0, 100), event, messages(0, 100)]);
    let with_event = bytes_read(&plan(false, ""), &reader(other.path()));
    assert!((1..200_000).contains(&with_event), "{with_event} bytes: about one block of 200");
    // With a condition that the index does not know, everything is read.
    let half =
        r#", "predicates": [{"source": {"attribute": "sequence"}, "operator": "less", "values": [10]}]"#;
    assert!(bytes_read(&plan(false, half), &reader(directory.path())) > 1_600_000);
}

#[test]
fn messages_that_are_damaged_are_left_out_only_where_that_is_asked_for() {
    let directory = tempfile::tempdir().unwrap();
    write(directory.path(), &[messages(0, 200)]);
    let segment = reader(directory.path()).segments()[1].path.clone();
    let mut bytes = fs::read(&segment).unwrap();
    bytes[100_000] ^= 1;
    fs::write(&segment, bytes).unwrap();
    let reader = reader(directory.path());
    let count = |plan: Plan| read(plan.scan(&reader, whole(&reader)).unwrap(), false)[""][0];
    assert_eq!(count(plan(false, "")), 200);
    assert!(count(plan(false, r#", "skips_damage": true"#)) < 200);
}

#[test]
fn a_file_that_was_removed_is_an_error_of_a_count_too() {
    let directory = tempfile::tempdir().unwrap();
    write(directory.path(), &[messages(0, 200)]);
    let (journal, _) = Journal::open(directory.path(), &options(), &mut |_| ()).unwrap();
    let reader = reader(directory.path());
    let end = journal.reader().segments()[0].timestamps.unwrap().1;
    assert_eq!(journal.maintenance().remove(Which::Until(end), None).unwrap().len(), 1);
    let scan = plan(false, "").scan(&reader, whole(&reader));
    let failed = scan.map_or_else(|_| true, |mut scan| scan.any(|batch| batch.is_err()));
    assert!(failed, "a count of files that are gone");
}
