//! Attributes of consecutive rows are added to their columns together, and each row keeps its
//! attributes.

use std::path::Path;
use std::time::Duration;

use arrow_array::cast::AsArray;
use arrow_array::types::{Int64Type, TimestampMicrosecondType};
use arrow_array::{Array, RecordBatch};
use quire_arrow::{Bounds, Plan, ScanSpec};
use quire_expression::message_type::MessageType;
use quire_journal::{
    AllTopics, AttributesBuffer, Journal, NewAttributes, NewRecord, Options, Position, PublisherId, Reader,
    RecordKind, Timestamp,
};

const COUNT: u64 = 5000;
const SEED: u64 = 20_261_122;
const NAMES: [&str; 12] = [
    "position",
    "timestamp_ns",
    "sequence",
    "timestamp",
    "bookmark",
    "topic",
    "publisher",
    "kind",
    "correlation_id",
    "message_type",
    "data",
    "sow_key",
];

/// Messages, each attribute of which is now and then another than that of the message before.
fn write(directory: &Path) {
    let (mut journal, _) = Journal::open(directory, &Options::default(), &mut |_| ()).unwrap();
    let mut state = SEED;
    let mut chance = move |of: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % of
    };
    let (mut now, mut buffer) = ([0; 5], AttributesBuffer::default());
    for sequence in 1..=COUNT {
        let which = chance(8);
        if let Some(one) = now.get_mut(which) {
            *one = chance(4);
        }
        let data = [
            "{}".into(),
            "äöü".repeat(chance(60)).into_bytes(),
            b"x".repeat(chance(200)),
            vec![0xff; chance(70)],
        ];
        let given =
            NewAttributes { key: [&b""[..], b"one", b"two", b"three"][now[4]], ..NewAttributes::default() };
        let record = NewRecord {
            kind: RecordKind::Publish,
            message_type: [1, 2, 3, 99][now[0]],
            publisher: PublisherId([7, 8, u64::MAX, 1][now[1]]),
            sequence,
            timestamp: Timestamp(1_000_000 + sequence * 999),
            topic: ["orders", "orders/new", "t", "ünï"][now[2]],
            correlation_id: [&b""[..], b"one", b"two", &[0xff]][now[3]],
            expiration_s: None,
            attributes: buffer.encode(&given).unwrap(),
            data: &data[chance(data.len())],
        };
        journal.append(&record).unwrap();
    }
    journal.flush(Duration::from_secs(120)).unwrap();
}

fn scan(reader: &Reader, rest: &str) -> Vec<RecordBatch> {
    let columns: Vec<_> =
        NAMES.iter().map(|name| format!(r#"{{"name": "{name}", "attribute": "{name}"}}"#)).collect();
    let spec = format!(r#"{{"columns": [{}{rest}}}"#, columns.join(", "));
    let plan = Plan::new(ScanSpec::from_json(&spec).unwrap()).unwrap();
    let bounds = Bounds { after: Position::ZERO, limit: reader.persisted() };
    plan.scan(reader, bounds).unwrap().collect::<Result<_, _>>().unwrap()
}

/// The values of each row: numbers first, then texts. `None` is NULL.
fn shown(batches: &[RecordBatch]) -> Vec<([i64; 4], [Option<String>; 8])> {
    let rows = |batch: &RecordBatch| {
        let numbers = [0, 1, 2].map(|column| batch.column(column).as_primitive::<Int64Type>().clone());
        let timestamps = batch.column(3).as_primitive::<TimestampMicrosecondType>().clone();
        let texts = [4, 5, 6, 7, 8, 9, 10, 11].map(|column| batch.column(column).as_string::<i32>().clone());
        (0..batch.num_rows())
            .map(|row| {
                let [position, ns, sequence] = numbers.each_ref().map(|column| column.value(row));
                let texts =
                    texts.each_ref().map(|column| column.is_valid(row).then(|| column.value(row).to_owned()));
                ([position, ns, sequence, timestamps.value(row)], texts)
            })
            .collect::<Vec<_>>()
    };
    batches.iter().flat_map(rows).collect()
}

/// The same from the records, one by one.
fn expected(reader: &Reader) -> Vec<([i64; 4], [Option<String>; 8])> {
    let text = |bytes: &[u8]| std::str::from_utf8(bytes).ok().map(str::to_owned);
    let mut cursor = reader.cursor(Position::ZERO);
    let mut rows = Vec::new();
    while let Some(batch) = cursor.next(reader.persisted(), &AllTopics).unwrap() {
        rows.extend(batch.records().map(|record| {
            let ns = record.timestamp.as_ns() as i64;
            let texts = [
                Some(record.bookmark().to_string()),
                Some(record.topic.to_owned()),
                Some(record.publisher.to_string()),
                Some("publish".to_owned()),
                text(record.correlation_id).filter(|text| !text.is_empty()),
                MessageType::from_code(record.message_type).map(|known| known.name().to_owned()),
                text(record.data),
                record.key().and_then(text),
            ];
            ([record.position.get() as i64, ns, record.sequence as i64, ns / 1000], texts)
        }));
    }
    rows
}

#[test]
fn every_row_has_the_attributes_of_its_record() {
    let directory = tempfile::tempdir().unwrap();
    write(directory.path());
    let reader = Reader::open_read_only(directory.path()).unwrap();
    let expected = expected(&reader);
    assert_eq!(expected.len() as u64, COUNT);
    // Alone, with a field of the data, and where events of queues may come between.
    for rest in [
        "]",
        r#"], "batch_rows": 100"#,
        r#", {"name": "n", "field": {"path": "/n", "type": "long"}}]"#,
        r#"], "includes_events": true"#,
        r#"], "includes_deletes": true"#,
    ] {
        let shown = shown(&scan(&reader, rest));
        for (shown, expected) in shown.iter().zip(&expected) {
            assert_eq!(shown, expected, "{rest}, seed {SEED}");
        }
        assert_eq!(shown.len(), expected.len(), "{rest}");
    }
}
