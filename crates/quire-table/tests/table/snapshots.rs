//! Snapshots: they have the rows of their instant, earlier ones stay readable, and any bytes are a
//! snapshot or refused.

use proptest::collection::vec;
use proptest::prelude::*;
use quire_expression::message_type::MessageType;
use quire_journal::{HeaderValue, HeadersBuffer, Position, Timestamp};
use quire_table::*;

use crate::model::Version;
use crate::{PutRow, history, row, table, table_with};

pub const HEAD: SnapshotHead =
    SnapshotHead { position: Position(258), stamp: *b"a stamp of 24 characters", together: 0 };

pub fn owner() -> SnapshotOwner {
    let fields = KeyFields::new(MessageType::Json, "orders", &["/id".into()]).unwrap();
    SnapshotOwner::new("orders", MessageType::Json, &KeyRule::Fields(fields))
}

/// Reads a snapshot in pieces of this size into an empty table. Returns its head and the history
/// that it knows.
pub fn restore(
    table: &mut Table,
    bytes: &[u8],
    piece: usize,
) -> Result<(SnapshotHead, Option<KnownHistory>), BadSnapshot> {
    let mut reader = SnapshotReader::new(owner());
    for piece in bytes.chunks(piece) {
        let blocks = reader.read(piece)?;
        let made = table.row_reader().read(&blocks)?;
        table.restore(made);
    }
    table.finish_restore()?;
    let history = reader.history();
    reader.take_order().into_iter().for_each(|order| table.restore_order(order));
    reader.finish().map(|head| (head, history))
}

/// Reads a snapshot in pieces of this size.
fn read(bytes: &[u8], piece: usize) -> Result<(SnapshotHead, Vec<Version>), BadSnapshot> {
    let mut table = table();
    let (head, _) = restore(&mut table, bytes, piece)?;
    let scan = table.open(Query { copies_size_max: usize::MAX, ..Query::default() }, Timestamp(0));
    let mut rows = Vec::new();
    table.poll(scan, usize::MAX, &mut |row| {
        rows.push(Version::of(row));
        true
    });
    Ok((head, rows))
}

/// Writes a snapshot of a table at once.
pub fn written(table: &mut Table) -> Vec<u8> {
    let mut writer = SnapshotWriter::new(table, &owner(), &HEAD, 0);
    let mut bytes = Vec::new();
    while writer.write(table, 1_000, &mut bytes) == SnapshotState::More {}
    bytes
}

/// Few rows, with and without each optional part, and two versions of the history.
fn golden_table() -> Table {
    let mut table = history::table(0, 1 << 20);
    table.put(&row("plain", r#"{"id":0}"#));
    table.put(&row("removed", r#"{"id":9}"#));
    table.remove(b"removed", Moment { position: Position(2), timestamp: Timestamp(2) });
    table.set_history_begin(Timestamp(1));
    table.put(&row("plain", r#"{"id":1}"#));
    let headers = HeadersBuffer::new([("trace", HeaderValue::Text("t1"))]).unwrap();
    table.put(&Row {
        position: Position(258),
        timestamp: Timestamp(1_600_000_000_000_000_000),
        expires: Some(Timestamp(1_600_000_060_000_000_000)),
        correlation_id: b"correlation",
        headers: headers.as_headers(),
        ..row("full", r#"{"id":2}"#)
    });
    table.put(&row("large", &format!(r#"{{"id":"{}"}}"#, "x".repeat(70_000))));
    table.put(&row("last", "{}"));
    table
}

#[test]
fn a_snapshot_has_the_bytes_of_the_golden_file_and_the_file_is_read() {
    let golden = include_bytes!("../../../../tests/golden/table-v1.snapshot");
    assert!(written(&mut golden_table()) == golden, "another format needs another version");
    let (head, rows) = read(golden, 1_000).unwrap();
    assert_eq!(head, HEAD);
    let table = golden_table();
    let expected: Vec<_> = ["plain", "full", "large", "last"]
        .iter()
        .map(|key| Version::of(&table.get(key.as_bytes()).unwrap()))
        .collect();
    assert_eq!(rows, expected);
    let mut restored = history::table(0, 1 << 20);
    let known = KnownHistory { begin: Timestamp(1), granularity_ns: 0 };
    assert_eq!(restore(&mut restored, golden, 1_000), Ok((HEAD, Some(known))));
    restored.set_history_begin(known.begin);
    assert!(written(&mut restored) == golden, "the versions of the history are restored");
}

#[test]
fn a_snapshot_is_read_in_pieces_of_any_size() {
    let bytes = written(&mut golden_table());
    let whole = read(&bytes, usize::MAX).unwrap();
    assert_eq!(whole.1.len(), 4);
    for piece in [1, 2, 3, 67, 68, 69, 4_096, 65_536] {
        assert_eq!(read(&bytes, piece), Ok(whole.clone()), "{piece}");
    }
    let empty = written(&mut table());
    assert_eq!(read(&empty, 7), Ok((HEAD, Vec::new())));
}

#[test]
fn a_snapshot_that_ends_early_or_has_a_wrong_byte_is_refused() {
    let mut small = table();
    small.put(&row("a", "{}"));
    let bytes = written(&mut small);
    for end in 0..bytes.len() {
        assert_eq!(read(&bytes[..end], 50), Err(BadSnapshot::Incomplete { size: end as u64 }));
    }
    for index in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[index] ^= 1;
        assert!(matches!(read(&damaged, 50), Err(BadSnapshot::Damaged { .. })), "{index}");
    }
    let longer = [&bytes[..], b"x"].concat();
    assert_eq!(read(&longer, 50), Err(BadSnapshot::Damaged { offset: bytes.len() as u64 }));
    // Bytes of the second block, at its place in the content.
    let begin = bytes.len() - 48;
    let mut damaged = bytes.clone();
    damaged[begin + 20] ^= 1;
    assert_eq!(read(&damaged, 1), Err(BadSnapshot::Damaged { offset: begin as u64 }));
}

#[test]
fn a_snapshot_of_another_topic_type_or_key_is_refused() {
    let bytes = written(&mut golden_table());
    let fields = |domain: &str, fields: &[&str]| {
        let fields: Vec<_> = fields.iter().map(|field| field.to_string()).collect();
        KeyRule::Fields(KeyFields::new(MessageType::Json, domain, &fields).unwrap())
    };
    for (name, message_type, rule) in [
        ("other", MessageType::Json, fields("orders", &["/id"])),
        ("orders", MessageType::Xml, fields("orders", &["/id"])),
        ("orders", MessageType::Json, fields("other", &["/id"])),
        ("orders", MessageType::Json, fields("orders", &["/id", "/b"])),
        ("orders", MessageType::Json, KeyRule::Supplied),
    ] {
        let mut reader = SnapshotReader::new(SnapshotOwner::new(name, message_type, &rule));
        assert_eq!(reader.read(&bytes).err(), Some(BadSnapshot::OtherTopic));
    }
    assert_eq!(SnapshotOwner::new("orders", MessageType::Json, &fields("orders", &["/id"])), owner());
    assert_eq!(snapshot_file("orders"), "table-a88ccdc9fa4974fb.state");
}

#[test]
fn restored_rows_are_found_and_can_be_changed() {
    let mut table = table();
    let keys: Vec<String> = (0..5_000).map(|number| format!("key-{number}")).collect();
    let data = |id: usize| format!(r#"{{"id":{id}}}"#);
    for (number, key) in keys.iter().enumerate() {
        let expires = (number % 3 == 0).then_some(Timestamp(1_000 + number as u64));
        table.put(&Row { expires, ..row(key, &data(number)) });
    }
    let mut restored = table_with(&[&["/id"]], &["/id"]);
    restore(&mut restored, &written(&mut table), 100_000).unwrap();
    assert_eq!((restored.next_expiry(), restored.stats().lifetimes), (Some(Timestamp(1_000)), 1_667));
    for (number, key) in keys.iter().enumerate() {
        assert_eq!(restored.get(key.as_bytes()).map(|row| row.data), Some(data(number).as_bytes()));
        assert!(!restored.put(&row(key, &data(number + 1))));
    }
    assert!(restored.put(&row("new", "{}")));
    assert!(restored.remove(b"key-7", Moment::default()));
    assert_eq!((restored.len(), restored.get(b"key-7")), (5_000, None));
    assert_eq!(restored.next_expiry(), None, "each row was replaced by one without a lifetime");
}

#[test]
fn a_snapshot_with_two_rows_of_one_key_is_refused() {
    let mut restored = table();
    for keys in [&["a", "b"][..], &["a"]] {
        let mut table = table();
        keys.iter().for_each(|key| assert!(table.put(&row(key, "{}"))));
        let blocks = SnapshotReader::new(owner()).read(&written(&mut table));
        let piece = restored.row_reader().read(&blocks.unwrap());
        restored.restore(piece.unwrap());
    }
    assert_eq!(restored.finish_restore(), Err(BadSnapshot::SameKey));
}

#[test]
fn a_snapshot_that_changes_overtake_ends() {
    let mut table = table();
    (0..100).for_each(|key| assert!(table.put(&row(&key.to_string(), "{}"))));
    let mut writer = SnapshotWriter::new(&mut table, &owner(), &HEAD, 1_000);
    let mut bytes = Vec::new();
    assert_eq!(writer.write(&mut table, 10, &mut bytes), SnapshotState::More);
    (0..100).for_each(|key| assert!(table.remove(key.to_string().as_bytes(), Moment::default())));
    assert_eq!(writer.write(&mut table, 10, &mut bytes), SnapshotState::TooManyCopies);
    assert_eq!(table.stats().scans, 0);
    let writer = SnapshotWriter::new(&mut table, &owner(), &HEAD, 1_000);
    assert_eq!(table.stats().scans, 1);
    writer.close(&mut table);
    assert_eq!(table.stats().scans, 0);
}

proptest! {
    /// Pages of a snapshot become pages of the table, so rows that move later must know their
    /// slots.
    #[test]
    fn rows_of_restored_pages_are_replaced_and_removed_as_others(
        sizes in vec(prop_oneof![10 => 1usize..700, 1 => 4_000usize..6_000], 1..300),
        piece in prop_oneof![Just(usize::MAX), 1_000usize..100_000],
        steps in vec((any::<prop::sample::Index>(), 0usize..1_500), 0..600),
    ) {
        let data = |size: usize, byte: char| byte.to_string().repeat(size);
        let mut table = table();
        let mut model = std::collections::BTreeMap::new();
        for (number, size) in sizes.iter().enumerate() {
            table.put(&row(&number.to_string(), &data(*size, 'a')));
            model.insert(number.to_string(), data(*size, 'a'));
        }
        let mut restored = table_with(&[], &[]);
        restore(&mut restored, &written(&mut table), piece).unwrap();
        for (index, size) in steps {
            let key = index.index(sizes.len()).to_string();
            if size == 0 {
                prop_assert_eq!(restored.remove(key.as_bytes(), Moment::default()), model.remove(&key).is_some());
            } else {
                restored.put(&row(&key, &data(size, 'b')));
                model.insert(key, data(size, 'b'));
            }
        }
        prop_assert_eq!(restored.len(), model.len());
        for (key, data) in &model {
            let row = restored.get(key.as_bytes());
            prop_assert_eq!(row.map(|row| row.data), Some(data.as_bytes()));
        }
    }

    #[test]
    fn any_bytes_are_a_snapshot_or_refused(
        bytes in vec(prop_oneof![0u8..4, any::<u8>()], 0..300),
        begin in 0usize..300,
        piece in 1usize..100,
        has_right_checksums in any::<bool>(),
    ) {
        // Bytes after the beginning of a true snapshot.
        let mut snapshot = written(&mut golden_table());
        snapshot.truncate(begin);
        if has_right_checksums {
            snapshot.truncate(68);
            let count = u32::from(bytes.first().copied().unwrap_or(0));
            let mut head = [(bytes.len() as u32).to_le_bytes(), count.to_le_bytes()].concat();
            head.extend(crc32c::crc32c(&bytes).to_le_bytes());
            head.extend(crc32c::crc32c(&head).to_le_bytes());
            snapshot.extend(head);
        }
        snapshot.extend(bytes);
        if let Ok((head, _)) = read(&snapshot, piece) {
            prop_assert_eq!(head, HEAD);
        }
    }
}
