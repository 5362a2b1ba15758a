//! The newest messages of a topic agree with a map of all its records, at every position and
//! however the range is cut; deletes are rows with keys.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{Array, RecordBatch};
use quire_arrow::{Bounds, Lifetimes, Plan, Positions, ScanSpec, last_values};
use quire_journal::{
    Attributes, AttributesBuffer, Instance, InstancePath, InstancePathBuffer, Journal, NewAttributes,
    NewRecord, Options, Position, PublisherId, Reader, RecordKind, Timestamp, put_deleted_key,
};

/// Only a hang takes longer, on the slowest machine.
const SOON: Duration = Duration::from_secs(120);
const COUNT: u64 = 12_000;
/// The time between two records.
const STEP_NS: u64 = 1_000_000_000;

/// A record of the topic, in the order of the log.
enum Change {
    Put { key: String, position: u64, expiration_s: Option<u32> },
    Delete { keys: Vec<String> },
}

/// Writes changes of `orders` among messages of other topics, some messages of `orders` without
/// keys, and a long part without `orders`. Returns the changes with the positions up to which they
/// are in effect.
fn write(directory: &Path) -> Vec<(u64, Change)> {
    let options = Options { segment_size: 64 * 1024, prepared_segments: 1, ..Options::default() };
    let (mut journal, _) = Journal::open(directory, &options, &mut |_| ()).unwrap();
    let mut state = 7_u64;
    let mut chance = move |of: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % of
    };
    let (mut buffer, mut changes) = (AttributesBuffer::default(), Vec::new());
    for position in 1..=COUNT {
        let is_quiet = (2_000..11_000).contains(&position);
        let (key, expiration_s) =
            (format!("k{}", chance(30)), [None, Some(0), Some(400)][chance(3) as usize]);
        let (mut kind, mut data, mut attributes) = (RecordKind::Publish, b"{}".to_vec(), Attributes::NONE);
        let topic = if is_quiet || chance(4) == 0 { "other" } else { "orders" };
        if topic == "orders" && chance(20) == 0 {
            let keys = vec![key, format!("k{}", chance(30))];
            (kind, data) = (RecordKind::Delete, Vec::new());
            keys.iter().for_each(|key| put_deleted_key(&mut data, key.as_bytes()));
            changes.push((position, Change::Delete { keys }));
        } else if topic == "other" || chance(50) > 0 {
            let given = NewAttributes { key: key.as_bytes(), ..NewAttributes::default() };
            attributes = buffer.encode(&given).unwrap();
            if topic == "orders" {
                changes.push((position, Change::Put { key, position, expiration_s }));
            }
        }
        let record = NewRecord {
            kind,
            message_type: 1,
            publisher: PublisherId(7),
            sequence: position,
            timestamp: Timestamp(position * STEP_NS),
            topic,
            correlation_id: b"",
            expiration_s,
            attributes,
            data: &data,
        };
        journal.append(&record).unwrap();
        if position.is_multiple_of(100) {
            journal.submit();
        }
    }
    journal.flush(SOON).unwrap();
    changes
}

/// The positions of the newest records up to `limit`, of those that have not ended at `at_s`.
fn model(changes: &[(u64, Change)], limit: u64, lifetimes: Lifetimes, at_s: u64) -> Vec<u64> {
    let mut newest = BTreeMap::new();
    for (_, change) in changes.iter().take_while(|(position, _)| *position <= limit) {
        match change {
            Change::Put { key, position, expiration_s } => {
                let lifetime_s = match (lifetimes, expiration_s) {
                    (Lifetimes::Unlimited, _) | (_, Some(0)) | (Lifetimes::OfMessages, None) => None,
                    (_, Some(seconds)) => Some(u64::from(*seconds)),
                    (Lifetimes::AfterNs(ns), None) => Some(ns / STEP_NS),
                };
                newest.insert(key, (*position, lifetime_s.map(|lifetime_s| position + lifetime_s)));
            }
            Change::Delete { keys } => newest.retain(|key, _| !keys.contains(*key)),
        }
    }
    let mut positions: Vec<_> =
        newest.into_values().filter(|(_, end)| end.is_none_or(|end| end > at_s)).map(|(at, _)| at).collect();
    positions.sort_unstable();
    positions
}

fn plan(rest: &str) -> Plan {
    let columns = r#"{"name": "position", "attribute": "position"}, {"name": "kind", "attribute": "kind"},
        {"name": "sow_key", "attribute": "sow_key"}, {"name": "data", "attribute": "data"}"#;
    let spec = format!(r#"{{"columns": [{columns}], "topics": {{"names": ["orders"]}}{rest}}}"#);
    Plan::new(ScanSpec::from_json(&spec).unwrap()).unwrap()
}

fn positions(batches: &[RecordBatch]) -> Vec<u64> {
    let column = |batch: &RecordBatch| batch.column(0).as_primitive::<Int64Type>().values().to_vec();
    batches.iter().flat_map(column).map(|position| position as u64).collect()
}

#[test]
fn the_newest_messages_are_those_of_the_model_at_every_point_and_in_any_parts() {
    let directory = tempfile::tempdir().unwrap();
    let changes = write(directory.path());
    let reader = Reader::open_read_only(directory.path()).unwrap();
    let scans = [plan(""), plan(r#", "batch_rows": 3"#), plan(r#", "includes_events": true"#)];
    for lifetimes in [Lifetimes::Unlimited, Lifetimes::OfMessages, Lifetimes::AfterNs(90 * STEP_NS)] {
        for limit in [0, 1, 57, 1_000, 1_999, 5_000, 11_003, COUNT] {
            let at_s = limit + 5;
            let bounds = Bounds { after: Position::ZERO, limit: Position::new(limit) };
            let at = Timestamp(at_s * STEP_NS);
            let found = last_values(&reader, "orders", bounds, lifetimes, at).unwrap();
            let expected = model(&changes, limit, lifetimes, at_s);
            let newest: Vec<_> = found.positions.iter().map(|position| position.get()).collect();
            assert_eq!(newest, expected, "{lifetimes:?}, up to {limit}");
            for plan in &scans {
                let mut read = Vec::new();
                for part in plan.split(&reader, bounds, 20_000, 1) {
                    let wanted = Positions::new(found.between(part.bounds));
                    let scan = plan.scan_at(&reader, part.bounds, wanted).unwrap();
                    read.extend(positions(&scan.collect::<Result<Vec<_>, _>>().unwrap()));
                }
                assert_eq!(read, expected, "{lifetimes:?}, up to {limit}");
            }
        }
    }
}

#[test]
fn messages_without_a_key_are_counted_and_are_not_records() {
    let directory = tempfile::tempdir().unwrap();
    let changes = write(directory.path());
    let reader = Reader::open_read_only(directory.path()).unwrap();
    let bounds = Bounds { after: Position::ZERO, limit: reader.persisted() };
    let found = last_values(&reader, "orders", bounds, Lifetimes::Unlimited, Timestamp(0)).unwrap();
    let puts = changes.iter().filter(|(_, change)| matches!(change, Change::Put { .. })).count();
    assert_eq!(found.keyed_count, puts as u64);
    assert!(found.keyless_count > 0);
    let other = last_values(&reader, "nothing", bounds, Lifetimes::Unlimited, Timestamp(0)).unwrap();
    assert_eq!((other.keyed_count, other.keyless_count, other.positions.len()), (0, 0, 0));
}

#[test]
fn a_delete_is_a_row_for_each_of_its_keys() {
    let directory = tempfile::tempdir().unwrap();
    let changes = write(directory.path());
    let reader = Reader::open_read_only(directory.path()).unwrap();
    let bounds = Bounds { after: Position::ZERO, limit: reader.persisted() };
    let rows = |rest: &str| -> Vec<_> {
        let batches = plan(rest).scan(&reader, bounds).unwrap().collect::<Result<Vec<_>, _>>().unwrap();
        let of_batch = |batch: &RecordBatch| {
            let [kinds, keys, data] = [1, 2, 3].map(|column| batch.column(column).as_string::<i32>().clone());
            let rows = positions(std::slice::from_ref(batch)).into_iter().enumerate();
            rows.map(|(row, position)| {
                let key = keys.is_valid(row).then(|| keys.value(row).to_owned());
                (position, kinds.value(row).to_owned(), key, data.is_valid(row))
            })
            .collect::<Vec<_>>()
        };
        batches.iter().flat_map(of_batch).collect()
    };
    assert!(rows("").iter().all(|(_, kind, _, _)| kind == "publish"));
    let expected = changes.iter().flat_map(|(position, change)| match change {
        Change::Delete { keys } => keys
            .iter()
            .map(|key| (*position, "delete".to_owned(), Some(key.clone()), false))
            .collect::<Vec<_>>(),
        Change::Put { key, .. } => vec![(*position, "publish".to_owned(), Some(key.clone()), true)],
    });
    let found = rows(r#", "includes_deletes": true"#);
    let keyed: Vec<_> = found.iter().filter(|(_, _, key, _)| key.is_some()).cloned().collect();
    assert_eq!(keyed, expected.collect::<Vec<_>>());
    assert!(found.len() > keyed.len(), "messages without a key are rows, too");
    let only = r#", "includes_deletes": true, "predicates": [{"source": {"attribute": "sow_key"}, "operator": "in", "values": ["k3"]}]"#;
    let of_key: Vec<_> =
        found.iter().filter(|(_, _, key, _)| key.as_deref() == Some("k3")).cloned().collect();
    assert_eq!(rows(only), of_key);
}

#[test]
fn the_change_with_the_latest_stamp_is_the_newest_one_in_any_order_of_the_log() {
    let directory = tempfile::tempdir().unwrap();
    let (mut journal, _) = Journal::open(directory.path(), &Options::default(), &mut |_| ()).unwrap();
    let (mut buffer, mut path) = (AttributesBuffer::default(), InstancePathBuffer::default());
    path.push(Instance { name: "b", group: "b" }).unwrap();
    let mut sequence = 0;
    let mut append = |key: &str, stamp: Option<u64>, is_delete: bool| {
        sequence += 1;
        let mut keys = Vec::new();
        put_deleted_key(&mut keys, key.as_bytes());
        let path = if stamp.is_some() { path.as_path() } else { InstancePath::EMPTY };
        let publisher = PublisherId(if stamp.is_some() { 8 } else { 7 });
        let stamp = stamp.map(Timestamp);
        let key = if is_delete { b"" } else { key.as_bytes() };
        let attributes = buffer.encode(&NewAttributes { key, path, stamp, ..NewAttributes::default() });
        let record = NewRecord {
            kind: if is_delete { RecordKind::Delete } else { RecordKind::Publish },
            message_type: 1,
            publisher,
            sequence,
            timestamp: Timestamp(1_000 + sequence),
            topic: "orders",
            correlation_id: b"",
            expiration_s: None,
            attributes: attributes.unwrap(),
            data: if is_delete { &keys } else { b"{}" },
        };
        journal.append(&record).unwrap();
    };
    append("own is newer", None, false);
    append("own is newer", Some(1_000), false);
    append("deleted before", None, true);
    append("deleted before", Some(1_000), false);
    append("other is newer", None, false);
    append("other is newer", Some(2_000), false);
    append("deleted by the other", None, false);
    append("deleted by the other", Some(2_000), true);
    journal.flush(SOON).unwrap();
    let reader = Reader::open_read_only(directory.path()).unwrap();
    let bounds = Bounds { after: Position::ZERO, limit: reader.persisted() };
    let found = last_values(&reader, "orders", bounds, Lifetimes::Unlimited, Timestamp(0)).unwrap();
    assert_eq!(found.positions, [Position::new(1), Position::new(6)]);
}
