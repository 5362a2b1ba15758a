//! The content of snapshots of views (docs/journal-format.md, `table-*.state`, content version 5)
//! is that of the golden files, and the files are read.

use quire_expression::filter::{Filter, FilterOptions, JoinCondition, JoinedTopic, Projection};
use quire_expression::message_type::{Arena, MessageType};
use quire_journal::{Headers, Position, Timestamp};
use quire_table::*;

use crate::table_with;

/// The state of a view with one topic or with several.
enum State {
    Groups(Groups),
    Joins(Box<Joins>),
}

impl State {
    fn begin_saving(&mut self) {
        match self {
            State::Groups(groups) => groups.begin_saving(),
            State::Joins(joins) => joins.begin_saving(),
        }
    }

    fn save(&mut self, effort: usize, out: &mut Vec<u8>) -> Option<u32> {
        match self {
            State::Groups(groups) => groups.save(effort, out),
            State::Joins(joins) => joins.save(effort, out),
        }
    }

    fn restore(&mut self, entries: &[u8]) -> Option<()> {
        match self {
            State::Groups(groups) => groups.restore(entries),
            State::Joins(joins) => joins.restore(entries),
        }
    }

    fn ids(&self) -> Vec<GroupId> {
        match self {
            State::Groups(groups) => (0..PARTS).flat_map(|part| groups.ids_of_part(part)).collect(),
            State::Joins(joins) => (0..PARTS).flat_map(|part| joins.ids_of_part(part)).collect(),
        }
    }

    fn write(&mut self, id: GroupId, arena: &mut Arena, out: &mut Vec<u8>) -> Written {
        match self {
            State::Groups(groups) => groups.write(id, "view", arena, out).unwrap(),
            State::Joins(joins) => joins.write(id, "view", arena, out).unwrap(),
        }
    }
}

const HEAD: SnapshotHead =
    SnapshotHead { position: Position(258), stamp: *b"24 bytes of other facts.", together: 0x1234_5678_9abc };

fn owner() -> SnapshotOwner {
    SnapshotOwner::of_view("view", MessageType::Json, "its definition")
}

/// A source row of this time.
fn row<'a>(key: &'a str, at: u64, data: &'a str) -> Row<'a> {
    Row {
        key: key.as_bytes(),
        position: Position(at),
        timestamp: Timestamp(1_600_000_000_000_000_000 + at),
        stamp: None,
        expires: None,
        correlation_id: b"",
        headers: Headers::NONE,
        data: data.as_bytes(),
    }
}

fn empty_groups() -> State {
    let options = FilterOptions::default();
    let projection = [
        "/g",
        "COUNT(/v) AS /count",
        "SUM(/v) AS /sum",
        "VAR_POP(/v) AS /var",
        "MIN(/v) AS /min",
        "DISTINCT_LIST(/t, ';') AS /list",
    ];
    State::Groups(Groups::new(GroupsConfig {
        source: "orders".into(),
        source_type: MessageType::Json,
        filter: Some(Filter::parse("/v != 77", &options).unwrap()),
        projection: Projection::parse(&projection, &["/g"], MessageType::Json, &options).unwrap(),
        key_domain: "view".into(),
    }))
}

/// Groups of each kind of value, and sums with several parts and with infinite values.
fn groups(arena: &mut Arena) -> State {
    let State::Groups(mut groups) = empty_groups() else { unreachable!() };
    let rows = [
        r#"{"g":"text","v":1,"t":"a"}"#,
        r#"{"g":"text","v":-300,"t":"b"}"#,
        r#"{"g":"text","v":1e300,"t":true}"#,
        r#"{"g":"text","v":1e-300,"t":"4.0"}"#,
        r#"{"g":7,"v":0.1,"t":4}"#,
        r#"{"g":7,"v":18446744073709551615,"t":"4.0"}"#,
        r#"{"g":7,"v":"1e999"}"#,
        r#"{"g":2.5,"v":true}"#,
        r#"{"g":null,"v":-0.5}"#,
        r#"{"g":false,"v":"other","t":"x"}"#,
        r#"{"g":"left out","v":77}"#,
    ];
    for (at, data) in (1..).zip(rows) {
        let key = at.to_string();
        let row = row(&key, at, data);
        groups.change(None, Some(&row), row.timestamp, arena);
    }
    State::Groups(groups)
}

fn empty_joins() -> State {
    let topic = |topic: &str| JoinedTopic { topic: topic.into(), message_type: MessageType::Json };
    let topics = vec![topic("orders"), topic("accounts")];
    let options = FilterOptions { joined: Some(topics.into()), ..FilterOptions::default() };
    let condition = JoinCondition::parse("[orders].[/account] = [accounts].[/id]").unwrap();
    let keys = [condition.left, condition.right];
    let (projection, grouping) =
        (["[accounts].[/desk] AS /desk", "SUM([orders].[/qty]) AS /qty"], ["[accounts].[/desk]"]);
    let projection =
        Projection::parse_joined(&projection, &grouping, MessageType::Json, &options, &keys).unwrap();
    State::Joins(Box::new(Joins::new(JoinConfig {
        sources: ["orders", "accounts"].map(|topic| (topic.into(), MessageType::Json)).into(),
        joins: vec![JoinKeys { parent: 0, child: 1, parent_fields: vec![0], child_fields: vec![1] }],
        projection,
        key_domain: "view".into(),
    })))
}

/// Records with and without a match, and with a key that matches nothing.
fn joins(arena: &mut Arena) -> State {
    let State::Joins(mut joins) = empty_joins() else { unreachable!() };
    let rows = [
        (0, "o1", r#"{"account":"A","qty":5}"#),
        (0, "o2", r#"{"account":"B","qty":2.5}"#),
        (0, "o3", r#"{"account":null,"qty":1}"#),
        (1, "a", r#"{"id":"A","desk":"north"}"#),
        (1, "c", r#"{"id":"C","desk":"south"}"#),
    ];
    for (at, (place, key, data)) in (1..).zip(rows) {
        let row = row(key, at, data);
        joins.begin(place, row.key, Some(&row), row.timestamp, arena);
        while !joins.step(&mut { u32::MAX }, arena) {}
    }
    while joins.pop_touched().is_some() {}
    State::Joins(joins)
}

/// The records of a view, sorted.
fn records(state: &mut State, arena: &mut Arena) -> Vec<String> {
    let mut data = Vec::new();
    let mut records: Vec<String> = Vec::new();
    for id in state.ids() {
        if let Written::Record(_) = state.write(id, arena, &mut data) {
            records.push(String::from_utf8(data.clone()).unwrap());
        }
    }
    records.sort();
    records
}

/// The content of the snapshot of a view.
fn written(state: &mut State, arena: &mut Arena) -> Vec<u8> {
    let mut table = table_with(&[], &[]);
    let mut data = Vec::new();
    for id in state.ids() {
        if let Written::Record(timestamp) = state.write(id, arena, &mut data) {
            let key = id.key();
            let row = Row { key: &key, timestamp, data: &data, ..row("", 0, "") };
            table.put_with(&row, PutOptions::default()).unwrap();
        }
    }
    state.begin_saving();
    let mut writer = SnapshotWriter::new(&mut table, &owner(), &HEAD, 1 << 20);
    let (mut bytes, save) = (Vec::new(), &mut |effort, out: &mut Vec<u8>| state.save(effort, out));
    while writer.write_with(&mut table, 3, &mut bytes, save) == SnapshotState::More {}
    bytes
}

/// Reads a snapshot into an empty state. Returns the number of rows.
fn restore(golden: &[u8], state: &mut State, piece: usize) -> usize {
    let mut table = table_with(&[], &[]);
    let mut reader = SnapshotReader::new(owner());
    for bytes in golden.chunks(piece) {
        let blocks = reader.read(bytes).unwrap();
        let piece = table.row_reader().read(&blocks).unwrap();
        piece.state().for_each(|entries| state.restore(entries).unwrap());
        table.restore(piece);
    }
    table.finish_restore().unwrap();
    assert_eq!(reader.finish(), Ok(HEAD));
    table.len()
}

fn check(golden: &[u8], mut state: State, empty: impl Fn() -> State) {
    let arena = &mut Arena::default();
    let bytes = written(&mut state, arena);
    assert!(bytes == golden, "another format needs another version");
    let expected = records(&mut state, arena);
    for piece in [1, 7, 1_000_000] {
        let mut restored = empty();
        assert_eq!(restore(golden, &mut restored, piece), expected.len());
        assert_eq!(records(&mut restored, arena), expected);
        assert!(written(&mut restored, arena) == golden, "the state is restored");
    }
}

#[test]
fn a_snapshot_of_a_view_has_the_bytes_of_the_golden_file_and_the_file_is_read() {
    let golden = include_bytes!("../../../../tests/golden/table-v5.snapshot");
    check(golden, groups(&mut Arena::default()), empty_groups);
}

#[test]
fn a_snapshot_of_a_join_has_the_bytes_of_the_golden_file_and_the_file_is_read() {
    let golden = include_bytes!("../../../../tests/golden/table-v5-join.snapshot");
    check(golden, joins(&mut Arena::default()), empty_joins);
}
