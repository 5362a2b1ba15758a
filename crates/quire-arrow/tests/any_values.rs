//! Any values in messages: rows of typed columns, with NULL where there is no value of the type;
//! never a panic, never a row less.

use std::path::Path;
use std::sync::Arc;

use proptest::prelude::*;
use quire_arrow::{Bounds, Plan, ScanSpec};
use quire_journal::{
    Attributes, Journal, MemoryDisk, NewRecord, Options, Position, PublisherId, RecordKind, Timestamp,
};

const TYPES: [&str; 10] =
    ["boolean", "byte", "short", "int", "long", "float", "double", "string", "timestamp", "date"];

fn plan() -> Plan {
    let column = |kind: &str| {
        let field = format!(r#"{{"name": "{kind}", "field": {{"path": "/v", "type": "{kind}"}}}}"#);
        let inner = format!(r#"{{"name": "{kind}_inner", "field": {{"path": "/v/w", "type": "{kind}"}}}}"#);
        let array = format!(r#"{{"name": "{kind}_array", "array": {{"path": "/v", "type": "{kind}"}}}}"#);
        let map = format!(r#"{{"name": "{kind}_map", "map": {{"path": "/v", "type": "{kind}"}}}}"#);
        [field, inner, array, map]
    };
    let columns: Vec<_> = TYPES.iter().flat_map(|kind| column(kind)).collect();
    let spec = format!(
        r#"{{"columns": [{{"name": "position", "attribute": "position"}}, {{"name": "data", "attribute": "data_variant"}}, {}]}}"#,
        columns.join(", ")
    );
    Plan::new(ScanSpec::from_json(&spec).unwrap()).unwrap()
}

/// A value as JSON has it, and what is nearly one.
fn value() -> impl Strategy<Value = String> {
    let plain = prop_oneof![
        "-?[0-9]{1,25}(\\.[0-9]{1,20})?([eE][+-]?[0-9]{1,4})?",
        any::<f64>().prop_map(|number| number.to_string()),
        any::<i64>().prop_map(|number| number.to_string()),
        prop::sample::select(vec![
            "true",
            "false",
            "null",
            "\"\"",
            "\"NaN\"",
            "nul",
            "-",
            "\"\\ud800\"",
            "\"\\u0000\""
        ])
        .prop_map(str::to_owned),
        "\"[0-9]{1,6}-[0-9]{2}-[0-9]{2}([T ][0-9]{2}:[0-9]{2}(:[0-9]{2}(\\.[0-9]{1,12})?)?(Z|[+-][0-9]{2}:?[0-9]{2})?)?\"",
        "\\PC{0,12}".prop_map(|text| format!("{text:?}")),
    ];
    plain.prop_recursive(3, 8, 3, |inner| {
        prop_oneof![
            inner.clone().prop_map(|value| format!(r#"{{"w": {value}}}"#)),
            prop::collection::vec(inner, 0..3).prop_map(|values| format!("[{}]", values.join(", "))),
        ]
    })
}

fn data() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        4 => value().prop_map(|value| format!(r#"{{"v": {value}}}"#).into_bytes()),
        1 => value().prop_map(|value| format!("v={value}\u{1}w={value}\u{1}").into_bytes()),
        1 => value().prop_map(|value| format!("<m><v>{value}<w>{value}</w></v></m>").into_bytes()),
        // Maps of MessagePack and documents of BSON with a member `v`.
        1 => prop::collection::vec(any::<u8>(), 0..24).prop_map(|rest| [&b"\x81\xa1v"[..], &rest].concat()),
        1 => (any::<u8>(), prop::collection::vec(any::<u8>(), 0..24)).prop_map(|(kind, rest)| {
            let size = (4 + 1 + 2 + rest.len() + 1) as u32;
            [&size.to_le_bytes()[..], &[kind, b'v', 0], &rest, &[0]].concat()
        }),
        1 => prop::collection::vec(any::<u8>(), 0..60),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn any_values_are_rows_of_typed_columns(messages in prop::collection::vec((0..10u8, data()), 1..8)) {
        let options = Options { segment_size: 64 * 1024, prepared_segments: 1, ..Options::default() };
        let disk = Arc::new(MemoryDisk::new(4 << 20));
        let (mut journal, _) = Journal::driven_by_hand(disk, Path::new("journal"), &options).unwrap();
        for (sequence, (message_type, data)) in (1..).zip(&messages) {
            let record = NewRecord {
                kind: RecordKind::Publish,
                message_type: *message_type,
                publisher: PublisherId(7),
                sequence,
                timestamp: Timestamp(1_000_000),
                topic: "any",
                correlation_id: b"",
                expiration_s: None,
                attributes: Attributes::NONE,
                data,
            };
            journal.append(&record).unwrap();
        }
        journal.submit();
        journal.write_waiting();
        let reader = journal.reader();
        let bounds = Bounds { after: Position::ZERO, limit: reader.persisted() };
        let rows: usize = plan().scan(&reader, bounds).unwrap().map(|batch| batch.unwrap().num_rows()).sum();
        prop_assert_eq!(rows, messages.len());
    }
}
