//! Scans over real journals: the wanted records arrive once and in order, for any division of the
//! range. Damage is always reported.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use arrow_array::cast::AsArray;
use arrow_array::types::{Float64Type, Int64Type, TimestampMicrosecondType};
use arrow_array::{Array, RecordBatch};
use quire_arrow::{Bounds, Plan, ScanError, ScanSpec, SpecError};
use quire_journal::{
    Attributes, AttributesBuffer, Instance, InstancePathBuffer, Journal, JournalError, NewAttributes,
    NewRecord, Options, Position, PublisherId, Reader, RecordKind, Timestamp, Which,
};
use quire_queue::{
    Bookmark, ChangeKind, ChangesWriter, ConnectionId, LeaseEvent, LeaseEventKind, LeasesWriter, QueueId,
    Reasons, Time,
};

/// Only a hang takes longer, on the slowest machine.
const SOON: Duration = Duration::from_secs(120);
const COUNT: u64 = 3000;
const COLUMNS: &str = r#"[{"name": "position", "attribute": "position"}, {"name": "topic", "attribute": "topic"},
    {"name": "timestamp", "attribute": "timestamp"}, {"name": "data", "attribute": "data"}]"#;

/// Three thousand messages on `busy`, of which every five hundredth goes to `rare` instead, one
/// microsecond apart from 1 ms on.
fn write(directory: &Path) {
    let options = Options { segment_size: 64 * 1024, prepared_segments: 1, ..Options::default() };
    let (mut journal, _) = Journal::open(directory, &options, &mut |_| ()).unwrap();
    for sequence in 1..=COUNT {
        let topic = if sequence.is_multiple_of(500) { "rare" } else { "busy" };
        let data =
            format!(r#"{{"n": {sequence}, "half": {}, "name": "n{sequence}"}}"#, sequence as f64 / 2.0);
        let record = NewRecord {
            kind: RecordKind::Publish,
            message_type: 1,
            publisher: PublisherId(7),
            sequence,
            timestamp: Timestamp(1_000_000 + sequence * 1000),
            topic,
            correlation_id: b"",
            expiration_s: None,
            attributes: Attributes::NONE,
            data: data.as_bytes(),
        };
        journal.append(&record).unwrap();
        if sequence.is_multiple_of(50) {
            journal.submit();
        }
    }
    journal.flush(SOON).unwrap();
}

fn plan(rest: &str) -> Plan {
    Plan::new(ScanSpec::from_json(&format!(r#"{{"columns": {COLUMNS}{rest}}}"#)).unwrap()).unwrap()
}

fn all(reader: &Reader) -> Bounds {
    Bounds { after: Position::ZERO, limit: reader.persisted() }
}

fn positions(batches: &[RecordBatch]) -> Vec<i64> {
    batches.iter().flat_map(|batch| batch.column(0).as_primitive::<Int64Type>().values().to_vec()).collect()
}

fn read(plan: &Plan, reader: &Reader, bounds: Bounds) -> Vec<RecordBatch> {
    plan.scan(reader, bounds).unwrap().collect::<Result<_, _>>().unwrap()
}

fn rare() -> Vec<i64> {
    (1..=COUNT as i64).filter(|position| position % 500 == 0).collect()
}

#[test]
fn every_record_comes_once_and_in_order_whatever_the_batches() {
    let directory = tempfile::tempdir().unwrap();
    write(directory.path());
    let reader = Reader::open_read_only(directory.path()).unwrap();
    for rest in ["", r#", "batch_rows": 1"#, r#", "batch_rows": 7"#, r#", "batch_bytes": 1"#] {
        let batches = read(&plan(rest), &reader, all(&reader));
        assert_eq!(positions(&batches), (1..=COUNT as i64).collect::<Vec<_>>(), "{rest}");
    }
    let batches = read(&plan(""), &reader, all(&reader));
    assert!(batches.len() == 1, "all fits into one batch");
    assert_eq!(batches[0].column(2).as_primitive::<TimestampMicrosecondType>().value(41), 1042);
    assert_eq!(batches[0].column(3).as_string::<i32>().value(2), r#"{"n": 3, "half": 1.5, "name": "n3"}"#);
}

#[test]
fn parts_of_any_size_join_to_the_whole() {
    let directory = tempfile::tempdir().unwrap();
    write(directory.path());
    let reader = Reader::open_read_only(directory.path()).unwrap();
    let plan = plan("");
    for (part_size, count_min) in [(1, 1), (100_000, 1), (1 << 40, 1), (1 << 40, 5), (u64::MAX, 0)] {
        let parts = plan.split(
            &reader,
            Bounds { after: Position::new(10), limit: Position::new(2990) },
            part_size,
            count_min,
        );
        assert!(parts.len() as u64 >= count_min.max(1), "{part_size} {count_min}");
        let found: Vec<i64> =
            parts.iter().flat_map(|part| positions(&read(&plan, &reader, part.bounds))).collect();
        assert_eq!(found, (11..=2990).collect::<Vec<_>>(), "{part_size} {count_min}");
    }
}

#[test]
fn there_are_as_many_parts_as_asked_for_unless_blocks_are_larger() {
    let directory = tempfile::tempdir().unwrap();
    write(directory.path());
    let reader = Reader::open_read_only(directory.path()).unwrap();
    let plan = plan("");
    let blocks: Vec<u64> = plan.split(&reader, all(&reader), 1, 1).iter().map(|part| part.size).collect();
    let (total, largest) = (blocks.iter().sum::<u64>(), *blocks.iter().max().unwrap());
    let counts = 1..=total / largest;
    assert!(counts.clone().count() > 3, "{blocks:?}");
    for count in counts {
        let parts = plan.split(&reader, all(&reader), 1 << 40, count);
        assert_eq!(parts.len() as u64, count, "{blocks:?}");
    }
}

#[test]
fn a_rare_topic_costs_the_blocks_that_hold_it() {
    let directory = tempfile::tempdir().unwrap();
    write(directory.path());
    let reader = Reader::open_read_only(directory.path()).unwrap();
    let size =
        |plan: &Plan| plan.split(&reader, all(&reader), 1 << 40, 1).iter().map(|part| part.size).sum::<u64>();
    for rest in [
        r#", "topics": {"names": ["rare"]}"#,
        r#", "topics": {"prefix": "ra"}"#,
        r#", "topics": {"pattern": "^r.re$"}"#,
        r#", "topics": {"selector": "rare"}"#,
        r#", "topics": {"selector": "^ra"}"#,
        r#", "predicates": [{"source": {"attribute": "topic"}, "operator": "in", "values": ["rare", "none"]}]"#,
        r#", "predicates": [{"source": {"attribute": "topic"}, "operator": "in", "values": ["busy"], "negated": true}]"#,
    ] {
        let plan = plan(rest);
        assert_eq!(positions(&read(&plan, &reader, all(&reader))), rare(), "{rest}");
        assert!(size(&plan) <= size(&self::plan("")), "{rest}");
    }
    let none = plan(r#", "topics": {"names": ["none"]}"#);
    assert!(positions(&read(&none, &reader, all(&reader))).is_empty());
    let sealed_up_to = reader.segments().iter().rev().nth(1).unwrap().positions.unwrap().1;
    assert_eq!(none.split(&reader, Bounds { after: Position::ZERO, limit: sealed_up_to }, 1, 9), []);
}

#[test]
fn positions_times_and_bookmarks_narrow_the_range() {
    let directory = tempfile::tempdir().unwrap();
    write(directory.path());
    let reader = Reader::open_read_only(directory.path()).unwrap();
    let narrowed = |source: &str, operator: &str, values: &str| {
        let plan = plan(&format!(
            r#", "predicates": [{{"source": {{"attribute": "{source}"}}, "operator": "{operator}", "values": [{values}]}}]"#
        ));
        let bounds = plan.narrow(&reader, all(&reader)).unwrap();
        let found = positions(&read(&plan, &reader, bounds));
        assert_eq!(found, positions(&read(&plan, &reader, all(&reader))), "narrowing loses nothing");
        assert_eq!(found.len() as u64, bounds.limit.get() - bounds.after.get(), "and leaves nothing over");
        (bounds.after.get(), bounds.limit.get())
    };
    assert_eq!(narrowed("position", "greater", "2000"), (2000, COUNT));
    assert_eq!(narrowed("position", "less_or_equal", "17"), (0, 17));
    assert_eq!(narrowed("position", "in", "18"), (17, 18));
    assert_eq!(narrowed("timestamp", "greater_or_equal", "1500"), (499, COUNT));
    assert_eq!(narrowed("timestamp", "less", "1500"), (0, 499));
    assert_eq!(narrowed("timestamp", "greater", "-5"), (0, COUNT));
    assert_eq!(narrowed("timestamp", "less", "-5"), (0, 0));
    assert_eq!(narrowed("timestamp_ns", "in", "1500000"), (499, 500));
    assert_eq!(narrowed("bookmark", "in", r#""7|1200|""#), (1199, 1200));
}

#[test]
fn fields_are_read_and_filtered_before_a_row_is_built() {
    let directory = tempfile::tempdir().unwrap();
    write(directory.path());
    let reader = Reader::open_read_only(directory.path()).unwrap();
    let spec = r#"{"columns": [{"name": "n", "field": {"path": "/n", "type": "long"}},
            {"name": "both", "struct": [{"name": "half", "field": {"path": "/half", "type": "double"}},
                                        {"name": "name", "field": {"path": "/name", "type": "string"}}]},
            {"name": "absent", "field": {"path": "/absent", "type": "long"}},
            {"name": "wrong", "field": {"path": "/name", "type": "long"}},
            {"name": "from", "constant": "here"}],
        "filter": "/n > 100 AND /n <= 103",
        "predicates": [{"source": {"field": {"path": "/n", "type": "long"}}, "operator": "in", "values": [102], "negated": true}]}"#;
    let plan = Plan::new(ScanSpec::from_json(spec).unwrap()).unwrap();
    let batches = read(&plan, &reader, all(&reader));
    assert_eq!(positions(&batches), [101, 103]);
    let both = batches[0].column(1).as_struct();
    assert_eq!(both.column(0).as_primitive::<Float64Type>().values().to_vec(), [50.5, 51.5]);
    assert_eq!(both.column(1).as_string::<i32>().value(1), "n103");
    assert_eq!((batches[0].column(2).null_count(), batches[0].column(3).null_count()), (2, 2));
    assert_eq!(batches[0].column(4).as_string::<i32>().value(1), "here");
}

#[test]
fn a_column_that_is_not_null_has_a_value_in_every_row_or_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    write(directory.path());
    let reader = Reader::open_read_only(directory.path()).unwrap();
    let scan = |columns: &str| {
        let spec = format!(r#"{{"columns": [{columns}], "batch_rows": 100}}"#);
        let plan = Plan::new(ScanSpec::from_json(&spec).unwrap()).unwrap();
        plan.scan(&reader, all(&reader)).unwrap().collect::<Vec<_>>()
    };
    let there = scan(
        r#"{"name": "position", "nullable": false, "attribute": "position"},
           {"name": "both", "nullable": false, "struct": [{"name": "n", "nullable": false, "field": {"path": "/n", "type": "long"}}]}"#,
    );
    let batch = there[0].as_ref().unwrap();
    assert!(batch.schema().fields().iter().all(|field| !field.is_nullable()));
    assert!(!batch.column(1).as_struct().fields()[0].is_nullable());
    let absent = r#"{"name": "absent", "nullable": false, "field": {"path": "/absent", "type": "long"}}"#;
    for columns in [absent.to_owned(), format!(r#"{{"name": "both", "struct": [{absent}]}}"#)] {
        let results = scan(&columns);
        assert_eq!(results.len(), 1);
        assert!(
            matches!(&results[0], Err(ScanError::Null { column, .. }) if column == "absent"),
            "{:?}",
            results[0]
        );
    }
}

#[test]
fn a_path_in_brackets_is_one_member_with_any_characters_in_its_name() {
    let directory = tempfile::tempdir().unwrap();
    let options = Options { segment_size: 64 * 1024, ..Options::default() };
    let (mut journal, _) = Journal::open(directory.path(), &options, &mut |_| ()).unwrap();
    let record = NewRecord {
        kind: RecordKind::Publish,
        message_type: 1,
        publisher: PublisherId(7),
        sequence: 1,
        timestamp: Timestamp(1),
        topic: "t",
        correlation_id: b"",
        expiration_s: None,
        attributes: Attributes::NONE,
        data: br#"{"a/b": 1, "a": {"b": 2}, "legs": [{"x": 3}, {"x": 4}]}"#,
    };
    journal.append(&record).unwrap();
    journal.flush(SOON).unwrap();
    let reader = Reader::open_read_only(directory.path()).unwrap();
    let column = |path: &str| {
        let column = format!(r#"{{"name": "c", "field": {{"path": "{path}", "type": "long"}}}}"#);
        Plan::new(ScanSpec::from_json(&format!(r#"{{"columns": [{column}]}}"#)).unwrap())
    };
    for (path, value) in [("/a/b", 2), ("[/a/b]", 1), ("/legs[1]/x", 4), ("/legs[0]/x", 3)] {
        let batches = read(&column(path).unwrap(), &reader, all(&reader));
        assert_eq!(batches[0].column(0).as_primitive::<Int64Type>().values().to_vec(), [value], "{path}");
    }
    for path in
        ["", "a", "/", "/a/", "/[0]", "/a[x]", "/a[0", "/a[]", "/a[0]b", "[/]", "[/a", "[/a]b]", "[/a/b]/c"]
    {
        assert!(matches!(column(path), Err(SpecError::Path { .. })), "{path:?}");
    }
}

#[test]
fn no_column_still_counts_its_rows() {
    let directory = tempfile::tempdir().unwrap();
    write(directory.path());
    let reader = Reader::open_read_only(directory.path()).unwrap();
    let plan = Plan::new(ScanSpec::from_json(r#"{"columns": []}"#).unwrap()).unwrap();
    assert_eq!(
        read(&plan, &reader, all(&reader)).iter().map(RecordBatch::num_rows).sum::<usize>(),
        COUNT as usize
    );
}

#[test]
fn damage_is_an_error_or_a_stated_gap() {
    let directory = tempfile::tempdir().unwrap();
    write(directory.path());
    let file = segment_files(directory.path())[1].clone();
    let first = Reader::open_read_only(directory.path()).unwrap().segments()[1].positions.unwrap().0.get();
    fs::OpenOptions::new().write(true).open(&file).unwrap().write_all_at(b"damage", 4096 + 200).unwrap();
    let reader = Reader::open_read_only(directory.path()).unwrap();
    let results: Vec<_> = plan("").scan(&reader, all(&reader)).unwrap().collect();
    assert!(matches!(results.last(), Some(Err(ScanError::Journal(_)))), "{:?}", results.last());
    let plan = plan(r#", "skips_damage": true"#);
    let mut scan = plan.scan(&reader, all(&reader)).unwrap();
    let batches: Vec<RecordBatch> = scan.by_ref().collect::<Result<_, _>>().unwrap();
    let found = positions(&batches);
    assert_eq!(scan.skipped().len(), 1);
    let gap = scan.skipped()[0].clone();
    assert!(
        gap.first.get() >= first && gap.reason.contains(&*file.file_name().unwrap().to_string_lossy()),
        "{gap:?}"
    );
    let expected: Vec<i64> = (1..=COUNT as i64)
        .filter(|position| !(gap.first.get() as i64..=gap.last.get() as i64).contains(position))
        .collect();
    assert_eq!(found, expected, "what is said to be missing is all that is missing");
}

#[test]
fn a_beginning_that_was_removed_is_an_error_or_a_stated_gap() {
    let directory = tempfile::tempdir().unwrap();
    write(directory.path());
    let options = Options { segment_size: 64 * 1024, ..Options::default() };
    let (journal, _) = Journal::open(directory.path(), &options, &mut |_| ()).unwrap();
    let end = journal.reader().segments()[0].timestamps.unwrap().1;
    assert_eq!(journal.maintenance().remove(Which::Until(end), None).unwrap().len(), 1);
    let reader = Reader::open_read_only(directory.path()).unwrap();
    let error = plan("").scan(&reader, all(&reader)).err().unwrap();
    assert!(
        matches!(error, ScanError::Removed { first, begins, .. } if first.get() == 1 && begins == reader.first()),
        "{error}"
    );
    let plan = plan(r#", "skips_damage": true"#);
    let mut scan = plan.scan(&reader, all(&reader)).unwrap();
    let batches: Vec<RecordBatch> = scan.by_ref().collect::<Result<_, _>>().unwrap();
    assert_eq!(positions(&batches).first().copied(), Some(reader.first().get() as i64));
    assert_eq!((scan.skipped()[0].first.get(), scan.skipped()[0].last.next()), (1, reader.first()));
}

#[test]
fn a_beginning_that_is_removed_before_it_is_read_is_the_same_error_or_gap() {
    let directory = tempfile::tempdir().unwrap();
    write(directory.path());
    let options = Options { segment_size: 64 * 1024, ..Options::default() };
    let (journal, _) = Journal::open(directory.path(), &options, &mut |_| ()).unwrap();
    let end = journal.reader().segments()[0].timestamps.unwrap().1;
    let reader = Reader::open_read_only(directory.path()).unwrap();
    let mut strict = plan("").scan(&reader, all(&reader)).unwrap();
    let mut tolerant = plan(r#", "skips_damage": true"#).scan(&reader, all(&reader)).unwrap();
    // A reader in another process does not keep files.
    assert_eq!(journal.maintenance().remove(Which::Until(end), None).unwrap().len(), 1);
    let begins = journal.reader().first();
    let error = strict.next().unwrap().err().unwrap();
    assert!(
        matches!(&error, ScanError::Removed { first, begins: named, .. } if first.get() == 1 && *named == begins),
        "{error}"
    );
    let batches: Vec<RecordBatch> = tolerant.by_ref().collect::<Result<_, _>>().unwrap();
    assert_eq!(positions(&batches).first().copied(), Some(begins.get() as i64));
    assert_eq!(positions(&batches).last().copied(), Some(COUNT as i64));
    assert_eq!((tolerant.skipped()[0].first.get(), tolerant.skipped()[0].last.next()), (1, begins));
}

#[test]
fn a_range_beyond_the_end_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    write(directory.path());
    let reader = Reader::open_read_only(directory.path()).unwrap();
    let bounds = Bounds { after: Position::ZERO, limit: Position::new(COUNT + 1) };
    assert!(matches!(plan("").scan(&reader, bounds), Err(ScanError::Short { .. })));
}

#[test]
fn a_spec_that_cannot_be_is_refused_with_its_reason() {
    for (spec, expected) in [
        ("{", "EOF"),
        (r#"{"columns": [], "colour": 1}"#, "colour"),
        (r#"{"columns": [{"name": "a", "attribute": "price"}]}"#, "price"),
        (r#"{"columns": [{"name": "a", "field": {"path": "price", "type": "long"}}]}"#, "price"),
        (r#"{"columns": [{"name": "a", "struct": []}]}"#, "struct"),
        (r#"{"columns": [], "filter": "/a >"}"#, "filter"),
        (r#"{"columns": [], "topics": {"pattern": "("}}"#, "topics"),
        (r#"{"columns": [], "batch_rows": 0}"#, "batch_rows"),
        (r#"{"columns": [], "batch_bytes": 999999999999}"#, "batch_bytes"),
    ] {
        let error = ScanSpec::from_json(spec).and_then(Plan::new).map(drop).unwrap_err().to_string();
        assert!(error.contains(expected), "{spec}: {error}");
    }
}

#[test]
fn a_limit_by_size_takes_at_least_something() {
    let directory = tempfile::tempdir().unwrap();
    write(directory.path());
    let reader = Reader::open_read_only(directory.path()).unwrap();
    let bounds = all(&reader);
    let mut after = Position::ZERO;
    let mut steps = 0;
    while after < bounds.limit {
        let end = Plan::limit_by_size(&reader, Bounds { after, ..bounds }, 1);
        assert!(end > after);
        (after, steps) = (end, steps + 1);
    }
    assert!(steps > 3, "several blocks");
    assert_eq!(Plan::limit_by_size(&reader, bounds, u64::MAX), bounds.limit);
}

fn segment_files(directory: &Path) -> Vec<PathBuf> {
    let mut files: Vec<_> = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "journal"));
    files.sort();
    files
}

/// The records of a queue, with each of the data.
fn append_of_queue(directory: &Path, kind: RecordKind, data: [&[u8]; 2]) {
    append_with(directory, kind, data, Attributes::NONE);
}

fn append_with(directory: &Path, kind: RecordKind, data: [&[u8]; 2], attributes: Attributes<'_>) {
    let options = Options { segment_size: 64 * 1024, ..Options::default() };
    let (mut journal, _) = Journal::open(directory, &options, &mut |_| ()).unwrap();
    for (sequence, data) in (1..).zip(data) {
        let record = NewRecord {
            kind,
            message_type: 0,
            publisher: PublisherId(8),
            sequence,
            timestamp: Timestamp(9_000_000),
            topic: "queue",
            correlation_id: b"",
            expiration_s: None,
            attributes,
            data,
        };
        journal.append(&record).unwrap();
    }
    journal.flush(SOON).unwrap();
}

#[test]
fn a_record_of_a_group_or_of_a_later_version_is_an_error() {
    let headers: [(_, [u8; 2], _); 4] = [
        (RecordKind::Acknowledge, [16, 8], "the group 4"),
        (RecordKind::Acknowledge, [24, 0], "the version 3"),
        (RecordKind::Lease, [47, 8], "the group 4"),
        (RecordKind::Lease, [63, 0], "the version 3"),
    ];
    for (kind, header, named) in headers {
        let directory = tempfile::tempdir().unwrap();
        write(directory.path());
        append_of_queue(directory.path(), kind, [&header, b""]);
        let reader = Reader::open_read_only(directory.path()).unwrap();
        let plan = |includes: bool| {
            let spec = format!(
                r#"{{"columns": [{{"name": "kind", "attribute": "kind"}}], "topics": {{"names": ["queue"]}}, "includes_events": {includes}}}"#
            );
            Plan::new(ScanSpec::from_json(&spec).unwrap()).unwrap()
        };
        let scanned: Result<Vec<_>, _> = plan(true).scan(&reader, all(&reader)).unwrap().collect();
        let error = scanned.err().unwrap();
        let is_later = matches!(error, ScanError::Journal(JournalError::LaterRecord { .. }));
        let text = error.to_string();
        assert!(is_later && text.contains(named) && text.contains("position 3001"), "{text}");
        assert!(read(&plan(false), &reader, all(&reader)).is_empty());
    }
}

#[test]
fn a_damaged_record_of_a_queue_is_an_error_or_a_stated_gap() {
    for (kind, damage) in
        [(RecordKind::Acknowledge, &b"\xff\xff no list"[..]), (RecordKind::Lease, b"\x0e no list")]
    {
        let directory = tempfile::tempdir().unwrap();
        write(directory.path());
        let mut changes = ChangesWriter::default();
        changes.push(Position::new(5), None, ChangeKind::Acknowledged);
        let whole = if kind == RecordKind::Lease { &b""[..] } else { changes.finish() };
        append_of_queue(directory.path(), kind, [whole, damage]);
        let reader = Reader::open_read_only(directory.path()).unwrap();
        let plan = |skips: bool| {
            let spec = format!(
                r#"{{"columns": [{{"name": "kind", "attribute": "kind"}}], "topics": {{"names": ["queue"]}}, "includes_events": true, "skips_damage": {skips}}}"#
            );
            Plan::new(ScanSpec::from_json(&spec).unwrap()).unwrap()
        };
        let strict: Result<Vec<_>, _> = plan(false).scan(&reader, all(&reader)).unwrap().collect();
        let expected =
            "the record at position 3002 of the journal: not a list of changes or leases of a queue";
        assert_eq!(strict.err().unwrap().to_string(), expected);
        let tolerant = plan(true);
        let mut scan = tolerant.scan(&reader, all(&reader)).unwrap();
        let rows: usize = scan.by_ref().map(|batch| batch.unwrap().num_rows()).sum();
        assert_eq!(rows, usize::from(kind == RecordKind::Acknowledge), "the entries before the damage");
        let [gap] = scan.skipped() else { panic!("{:?}", scan.skipped()) };
        assert_eq!((gap.first.get(), gap.last.get(), &gap.reason[..]), (3002, 3002, expected));
    }
}

#[test]
fn changes_and_leases_of_another_log_give_no_rows() {
    let directory = tempfile::tempdir().unwrap();
    write(directory.path());
    let mut changes = ChangesWriter::default();
    changes.push(Position::new(5), None, ChangeKind::Acknowledged);
    let mut path = InstancePathBuffer::default();
    path.push(Instance { name: "other", group: "other" }).unwrap();
    let mut buffer = AttributesBuffer::default();
    let new = NewAttributes { path: path.as_path(), ..NewAttributes::default() };
    let attributes = buffer.encode(&new).unwrap();
    append_with(directory.path(), RecordKind::Acknowledge, [changes.finish(), b""], attributes);
    let reader = Reader::open_read_only(directory.path()).unwrap();
    let spec = r#"{"columns": [{"name": "first", "attribute": "first_position"}], "topics": {"names": ["queue"]}, "includes_events": true}"#;
    let plan = Plan::new(ScanSpec::from_json(spec).unwrap()).unwrap();
    assert!(read(&plan, &reader, all(&reader)).is_empty());
}

#[test]
fn what_became_of_queue_messages_comes_when_it_is_asked_for() {
    let directory = tempfile::tempdir().unwrap();
    write(directory.path());
    let name = |position| Some(Bookmark::new(PublisherId::new(position % 2), position));
    let mut changes = ChangesWriter::default();
    for position in 5..=9 {
        // A run of positions is one row. Its messages have two publishers.
        changes.push(Position::new(position), name(position), ChangeKind::Acknowledged);
    }
    let expired = ChangeKind::Expired {
        reasons: Reasons::TIME_LIMIT | Reasons::MAX_CANCELS,
        deliveries: 3,
        cancels: 2,
    };
    changes.push(Position::new(11), name(11), expired);
    changes.push(Position::new(12), name(12), ChangeKind::Returned { deliveries: 4 });
    changes.push(Position::new(13), name(13), ChangeKind::Delayed { until: Time::new(9) });
    append_of_queue(directory.path(), RecordKind::Acknowledge, [changes.finish(), b""]);
    let reader = Reader::open_read_only(directory.path()).unwrap();
    let columns = r#"{"columns": [{"name": "first", "attribute": "first_position"}, {"name": "last", "attribute": "last_position"},
        {"name": "kind", "attribute": "kind"}, {"name": "deliveries", "attribute": "deliveries"},
        {"name": "reasons", "attribute": "reasons"}, {"name": "data", "attribute": "data"}],
        "topics": {"names": ["queue"]}, "includes_events": "#;
    let batches = |includes: &str| {
        let plan = Plan::new(ScanSpec::from_json(&format!("{columns}{includes}}}")).unwrap()).unwrap();
        read(&plan, &reader, all(&reader))
    };
    assert!(batches("false").is_empty());
    let batch = &batches("true")[0];
    assert_eq!(positions(std::slice::from_ref(batch)), [5, 11, 12, 13]);
    assert_eq!(batch.column(1).as_primitive::<Int64Type>().values().to_vec(), [9, 11, 12, 13]);
    assert_eq!(
        batch.column(2).as_string::<i32>().iter().flatten().collect::<Vec<_>>(),
        ["acknowledged", "expired", "returned", "delayed"]
    );
    assert_eq!((batch.column(3).null_count(), batch.column(5).null_count()), (2, 4));
    assert_eq!(batch.column(4).as_string::<i32>().value(1), "time_limit,max_cancels");
}

#[test]
fn who_held_queue_messages_comes_with_its_own_times() {
    let directory = tempfile::tempdir().unwrap();
    write(directory.path());
    let mut leases = LeasesWriter::default();
    let mut push = |position, kind, connection, time| {
        let (queue, position) = (QueueId::new(0), Position::new(position));
        let (bookmark, connection_id) = (None, ConnectionId::new(connection));
        let event = LeaseEvent { queue, position, bookmark, connection: connection_id, kind };
        leases.push(event, Timestamp(time), || ["ann", "bob"][connection as usize]);
    };
    (5..=7).for_each(|position| push(position, LeaseEventKind::Delivered, 0, 7_000_000));
    push(6, LeaseEventKind::Lost, 0, 8_000_000);
    push(6, LeaseEventKind::ExpiredUnheld, 1, 8_000_000);
    push(7, LeaseEventKind::Released, 0, 8_000_000);
    append_of_queue(directory.path(), RecordKind::Lease, [leases.finish(), b""]);
    let reader = Reader::open_read_only(directory.path()).unwrap();
    let spec = r#"{"columns": [{"name": "first", "attribute": "first_position"}, {"name": "last", "attribute": "last_position"},
        {"name": "time", "attribute": "timestamp_ns"}, {"name": "kind", "attribute": "kind"},
        {"name": "consumer", "attribute": "consumer"}, {"name": "reasons", "attribute": "reasons"}],
        "topics": {"names": ["queue"]}, "includes_events": true}"#;
    let plan = Plan::new(ScanSpec::from_json(spec).unwrap()).unwrap();
    let batch = &read(&plan, &reader, all(&reader))[0];
    let numbers = |column: usize| batch.column(column).as_primitive::<Int64Type>().values().to_vec();
    let texts = |column: usize| {
        let texts = batch.column(column).as_string::<i32>().iter();
        texts.map(|text| text.unwrap_or("-").to_owned()).collect::<Vec<_>>()
    };
    assert_eq!((numbers(0), numbers(1)), (vec![5, 6, 6, 7], vec![7, 6, 6, 7]));
    assert_eq!(numbers(2), [7_000_000, 8_000_000, 8_000_000, 8_000_000]);
    assert_eq!(texts(3), ["delivered", "lease_ended", "settled_unheld", "lease_ended"]);
    assert_eq!(
        (texts(4), texts(5)),
        (
            ["ann", "ann", "bob", "ann"].map(String::from).to_vec(),
            ["-", "lost", "expired", "released"].map(String::from).to_vec(),
        )
    );
    // An event is older than its record, which is after the messages of its time.
    for (operator, time, expected) in
        [("less_or_equal", 7_000_000, 1), ("less", 8_000_001, 4), ("greater", 7_000_000, 3)]
    {
        let condition = format!(
            r#", "predicates": [{{"source": {{"attribute": "timestamp_ns"}}, "operator": "{operator}", "values": [{time}]}}]}}"#
        );
        let spec = spec.strip_suffix('}').unwrap().to_owned() + &condition;
        let plan = Plan::new(ScanSpec::from_json(&spec).unwrap()).unwrap();
        let bounds = plan.narrow(&reader, all(&reader)).unwrap();
        let rows: usize = read(&plan, &reader, bounds).iter().map(RecordBatch::num_rows).sum();
        assert_eq!(rows, expected, "{operator} {time}");
    }
}
