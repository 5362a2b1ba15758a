//! The parts of a record other than its fixed fields, against a slow model that writes the format
//! by its page. Bytes that the format does not define are refused.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use proptest::prelude::*;
use quire_journal::*;

use crate::support::*;

/// A number as the page says: seven bits a byte, the lowest first, the highest bit set where more
/// follow.
fn number(value: u64) -> Vec<u8> {
    let (low, rest) = ((value & 0x7f) as u8, value >> 7);
    if rest == 0 { vec![low] } else { [vec![low | 0x80], number(rest)].concat() }
}

/// The content of the attributes.
#[derive(Clone, Debug, Default)]
struct Model {
    key: Vec<u8>,
    position: Option<u64>,
    /// Name and group.
    path: Vec<(String, String)>,
    /// Name, whether the value is text, and the value.
    headers: BTreeMap<String, (bool, String)>,
    not_before: Option<u64>,
    received: Option<u64>,
    run: u64,
    follows: Option<u64>,
    stamp: Option<u64>,
}

impl Model {
    fn bytes(&self) -> Vec<u8> {
        let attribute = |tag: u8, value: Vec<u8>| [vec![tag], number(value.len() as u64), value].concat();
        let text = |text: &str| [vec![text.len() as u8], text.as_bytes().to_vec()].concat();
        let mut bytes = Vec::new();
        if !self.key.is_empty() {
            bytes.extend(attribute(1, self.key.clone()));
        }
        if !self.path.is_empty() {
            let mut value = number(self.position.unwrap_or(0));
            for (name, group) in &self.path {
                value.extend(text(name));
                value.extend(text(if name == group { "" } else { group }));
            }
            bytes.extend(attribute(2, value));
        }
        if !self.headers.is_empty() {
            let mut list = Vec::new();
            for (name, (is_text, value)) in &self.headers {
                list.extend(text(name));
                list.push(u8::from(!is_text));
                list.extend((value.len() as u16).to_le_bytes());
                list.extend(value.as_bytes());
            }
            bytes.extend(attribute(3, list));
        }
        if let Some(ns) = self.not_before {
            bytes.extend(attribute(4, ns.to_le_bytes().to_vec()));
        }
        if let Some(ns) = self.received {
            bytes.extend(attribute(5, ns.to_le_bytes().to_vec()));
        }
        if self.run > 0 {
            bytes.extend(attribute(6, self.run.to_le_bytes().to_vec()));
        }
        if let Some(sequence) = self.follows {
            bytes.extend(attribute(7, number(sequence)));
        }
        if let Some(ns) = self.stamp {
            bytes.extend(attribute(8, ns.to_le_bytes().to_vec()));
        }
        bytes
    }

    fn headers(&self) -> HeadersBuffer {
        HeadersBuffer::new(self.headers.iter().map(|(name, (is_text, value))| {
            let value = match is_text {
                true => HeaderValue::Text(value),
                false => HeaderValue::Bytes(value.as_bytes()),
            };
            (name.as_str(), value)
        }))
        .unwrap()
    }

    fn path(&self) -> InstancePathBuffer {
        let mut path = InstancePathBuffer::default();
        for (name, group) in &self.path {
            path.push(Instance { name, group }).unwrap();
        }
        path
    }

    fn encode<'a>(&self, buffer: &'a mut AttributesBuffer) -> Attributes<'a> {
        let (path, headers) = (self.path(), self.headers());
        let new = NewAttributes {
            key: &self.key,
            position: self.position.map(Position::new),
            path: path.as_path(),
            headers: headers.as_headers(),
            not_before: self.not_before.map(Timestamp::from_ns),
            received: self.received.map(Timestamp::from_ns),
            run: self.run,
            follows: self.follows,
            stamp: self.stamp.map(Timestamp::from_ns),
        };
        buffer.encode(&new).unwrap()
    }

    fn check(&self, attributes: Attributes<'_>) {
        assert_eq!(attributes.key(), (!self.key.is_empty()).then_some(&self.key[..]));
        let path: Vec<_> = attributes.path().instances().collect();
        let expected: Vec<_> = self.path.iter().map(|(name, group)| Instance { name, group }).collect();
        assert_eq!(path, expected);
        assert_eq!(attributes.headers(), self.headers().as_headers());
        assert_eq!(attributes.not_before(), self.not_before.map(Timestamp::from_ns));
        assert_eq!(attributes.received(), self.received.map(Timestamp::from_ns));
        assert_eq!((attributes.run(), attributes.follows()), (self.run, self.follows));
        assert_eq!(attributes.stamp(), self.stamp.map(Timestamp::from_ns));
        let position = self.position.map(Position::new);
        assert_eq!(attributes.source(), path.last().map(|instance| Source { instance: *instance, position }));
    }
}

fn model() -> impl Strategy<Value = Model> {
    let name = prop_oneof![8 => "[a-z]{1,6}-[0-9]", 1 => "[a-zß€😀]{1,20}", 1 => "[a-z]{255}"];
    let instance = (name.clone(), prop::option::of(name))
        .prop_map(|(name, group)| (name.clone(), group.unwrap_or(name)));
    let key = prop_oneof![
        4 => prop::collection::vec(any::<u8>(), 0..40),
        1 => prop::collection::vec(any::<u8>(), 120..300),
    ];
    let position =
        prop::option::of((0u32..63).prop_map(|bits| (1u64 << bits) + (u64::from(bits) * 77) % (1 << bits)));
    let headers = prop::collection::btree_map("[a-zß]{1,9}", (any::<bool>(), "[a-z😀]{0,9}"), 0..4);
    let time = || prop::option::of(1u64..);
    let run = prop_oneof![Just(0), any::<u64>()];
    let follows = prop::option::of(prop_oneof![0..3u64, any::<u64>()]);
    let of_publisher = (run, follows, time());
    (key, position, prop::collection::vec(instance, 0..6), headers, time(), time(), of_publisher).prop_map(
        |(key, position, path, headers, not_before, received, (run, follows, stamp))| Model {
            key,
            position,
            path,
            headers,
            not_before,
            received,
            run,
            follows,
            stamp,
        },
    )
}

proptest! {
    #[test]
    fn attributes_are_what_the_page_says_and_come_back(model in model()) {
        let mut buffer = AttributesBuffer::default();
        let attributes = model.encode(&mut buffer);
        prop_assert_eq!(attributes.as_bytes(), &model.bytes()[..]);
        model.check(attributes);
        let bytes = model.bytes();
        prop_assert_eq!(Attributes::from_bytes(&bytes), Some(attributes));
        let path = model.path();
        prop_assert_eq!(InstancePath::from_bytes(path.as_path().as_bytes()), Some(path.as_path()));
    }

    #[test]
    fn any_bytes_are_attributes_that_can_be_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..60), model in model(), at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let mut changed = model.bytes();
        if !changed.is_empty() {
            let at = at.index(changed.len());
            changed[at] = byte;
        }
        for bytes in [bytes, changed] {
            if let Some(attributes) = Attributes::from_bytes(&bytes) {
                let path = attributes.path();
                prop_assert_eq!(path.is_empty(), attributes.source().is_none());
                for instance in path.instances() {
                    prop_assert!(!instance.name.is_empty() && !instance.group.is_empty());
                }
                let mut again = AttributesBuffer::default();
                let key = attributes.key().unwrap_or_default();
                let position = attributes.source().and_then(|source| source.position);
                let headers = attributes.headers();
                let (not_before, received) = (attributes.not_before(), attributes.received());
                let (run, follows) = (attributes.run(), attributes.follows());
                let stamp = attributes.stamp();
                let new =
                    NewAttributes { key, position, path, headers, not_before, received, run, follows, stamp };
                let again = again.encode(&new).unwrap();
                prop_assert_eq!((again.run(), again.follows()), (run, follows));
                prop_assert_eq!((again.not_before(), again.received()), (not_before, received));
                prop_assert_eq!(again.stamp(), stamp);
                prop_assert_eq!((again.key(), again.source()), (attributes.key(), attributes.source()));
                prop_assert_eq!(again.headers(), headers);
            }
            let keys = DeletedKeys::from_bytes(&bytes).map_or(0, Iterator::count);
            prop_assert!(keys <= bytes.len());
        }
    }

    #[test]
    fn deleted_keys_come_back_in_their_order(keys in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..200), 0..20)) {
        let (mut data, mut expected) = (Vec::new(), Vec::new());
        for key in &keys {
            put_deleted_key(&mut data, key);
            expected.extend([number(key.len() as u64), key.clone()].concat());
        }
        prop_assert_eq!(&data, &expected);
        let found: Vec<_> = DeletedKeys::from_bytes(&data).unwrap().collect();
        prop_assert_eq!(found, keys.iter().map(Vec::as_slice).collect::<Vec<_>>());
        if !data.is_empty() {
            // Cut short, or with an empty key, the bytes are not a list.
            prop_assert!(DeletedKeys::from_bytes(&data[..data.len() - 1]).is_none());
            data.push(0);
            prop_assert!(DeletedKeys::from_bytes(&data).is_none());
        }
    }
}

fn attributes_of<'a>(key: &'a [u8], position: Option<Position>, path: InstancePath<'a>) -> NewAttributes<'a> {
    NewAttributes { key, position, path, ..NewAttributes::default() }
}

fn path_of(names: &[(&str, &str)]) -> InstancePathBuffer {
    let mut path = InstancePathBuffer::default();
    for (name, group) in names {
        path.push(Instance { name, group }).unwrap();
    }
    path
}

#[test]
fn a_received_record_says_its_origin_its_source_and_its_path() {
    let path = path_of(&[("west-1", "west"), ("hub", "hub")]);
    let mut buffer = AttributesBuffer::default();
    let attributes =
        buffer.encode(&attributes_of(b"4711", Some(Position::new(300)), path.as_path())).unwrap();
    let disk = MemoryDisk::new(64 << 20);
    let (mut journal, _) = open_on(&disk).unwrap();
    journal.append(&record(1, "orders", b"local")).unwrap();
    journal.append(&NewRecord { attributes, ..record(2, "orders", b"received") }).unwrap();
    journal.flush(SOON).unwrap();
    let reader = journal.reader();
    let batch = reader.cursor(Position::ZERO).next(reader.persisted(), &AllTopics).unwrap().unwrap();
    let [local, received] = batch.records().collect::<Vec<_>>()[..] else { panic!("two records") };
    let bookmark = |sequence| Bookmark { publisher: PublisherId(7), sequence };
    assert_eq!(local.origin(), Origin { bookmark: bookmark(1), instance: None });
    assert_eq!((local.key(), local.source(), local.path()), (None, None, InstancePath::EMPTY));
    let west = Instance { name: "west-1", group: "west" };
    assert_eq!(received.origin(), Origin { bookmark: bookmark(2), instance: Some(west) });
    let hub = Instance { name: "hub", group: "hub" };
    assert_eq!(received.source(), Some(Source { instance: hub, position: Some(Position::new(300)) }));
    assert_eq!(received.path(), path.as_path());
    assert_eq!((received.key(), received.data), (Some(&b"4711"[..]), &b"received"[..]));
    // The record on the next instance.
    let mut next = InstancePathBuffer::default();
    next.copy_from(received.path());
    next.push(Instance { name: "east-1", group: "east" }).unwrap();
    assert_eq!(
        next.as_path().instances().map(|instance| instance.name).collect::<Vec<_>>(),
        ["west-1", "hub", "east-1"]
    );
}

/// The bytes of the first batch of a new journal that holds these records.
fn first_batch(records: &[NewRecord<'_>]) -> Vec<u8> {
    let disk = MemoryDisk::new(64 << 20);
    let (mut journal, _) = open_on(&disk).unwrap();
    for record in records {
        journal.append(record).unwrap();
    }
    journal.flush(SOON).unwrap();
    let segment = disk.read(&Path::new(MEMORY).join("quire.0000000000.journal")).unwrap();
    let size = u32::from_le_bytes(segment[4108..4112].try_into().unwrap()) as usize;
    segment[4096 + 64..4096 + 64 + size].to_vec()
}

#[test]
fn the_bytes_of_a_record_are_those_of_the_format() {
    let path = path_of(&[("east-1", "east")]);
    let mut buffer = AttributesBuffer::default();
    let attributes = buffer.encode(&attributes_of(b"k7", Some(Position::new(300)), path.as_path())).unwrap();
    let new = NewRecord {
        kind: RecordKind::Publish,
        message_type: 3,
        publisher: PublisherId(0x0102_0304_0506_0708),
        sequence: 9,
        timestamp: Timestamp::from_ns(0x1112_1314_1516_1718),
        topic: "orders",
        correlation_id: b"c1",
        expiration_s: Some(60),
        attributes: Attributes::NONE,
        data: b"{}",
    };
    // A record without attributes is that of version 1.
    let local = [
        &[50, 0, 0, 0, 1, 3, 6, 0, 2, 1, 0, 0, 60, 0, 0, 0][..],
        &[0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11],
        &[8, 7, 6, 5, 4, 3, 2, 1, 9, 0, 0, 0, 0, 0, 0, 0],
        b"ordersc1{}",
    ]
    .concat();
    assert_eq!(first_batch(&[new]), local);
    let source = [&[0xac, 2, 6][..], b"east-1", &[4], b"east"].concat();
    let expected = [
        &[70, 0, 0, 0, 1, 3, 6, 0, 2, 1, 20, 0, 60, 0, 0, 0][..],
        &local[16..48],
        &[1, 2],
        b"k7",
        &[2, source.len() as u8],
        &source,
        b"{}",
    ]
    .concat();
    assert_eq!(first_batch(&[NewRecord { attributes, ..new }]), expected);
    let list = HeadersBuffer::new([("trace", HeaderValue::Text("abc"))]).unwrap();
    let with_headers = NewAttributes { headers: list.as_headers(), ..NewAttributes::default() };
    let attributes = buffer.encode(&with_headers).unwrap();
    let expected = [
        &[64, 0, 0, 0, 1, 3, 6, 0, 2, 1, 14, 0, 60, 0, 0, 0][..],
        &local[16..48],
        &[3, 12, 5],
        b"trace",
        &[0, 3, 0],
        b"abc",
        b"{}",
    ]
    .concat();
    assert_eq!(first_batch(&[NewRecord { attributes, ..new }]), expected);
    let not_before = Some(Timestamp::from_ns(0x2122_2324_2526_2728));
    let attributes = buffer.encode(&NewAttributes { not_before, ..NewAttributes::default() }).unwrap();
    let expected = [
        &[60, 0, 0, 0, 1, 3, 6, 0, 2, 1, 10, 0, 60, 0, 0, 0][..],
        &local[16..48],
        &[4, 8, 0x28, 0x27, 0x26, 0x25, 0x24, 0x23, 0x22, 0x21],
        b"{}",
    ]
    .concat();
    assert_eq!(first_batch(&[NewRecord { attributes, ..new }]), expected);
    let received = Some(Timestamp::from_ns(0x2122_2324_2526_2728));
    let attributes = buffer.encode(&NewAttributes { received, ..NewAttributes::default() }).unwrap();
    let expected = [
        &[60, 0, 0, 0, 1, 3, 6, 0, 2, 1, 10, 0, 60, 0, 0, 0][..],
        &local[16..48],
        &[5, 8, 0x28, 0x27, 0x26, 0x25, 0x24, 0x23, 0x22, 0x21],
        b"{}",
    ]
    .concat();
    assert_eq!(first_batch(&[NewRecord { attributes, ..new }]), expected);
    let mut keys = Vec::new();
    put_deleted_key(&mut keys, b"k7");
    put_deleted_key(&mut keys, b"k8");
    let delete =
        NewRecord { kind: RecordKind::Delete, expiration_s: None, correlation_id: b"", data: &keys, ..new };
    let expected =
        [&[52, 0, 0, 0, 4, 3, 6, 0, 0, 0, 0, 0, 0, 0, 0, 0][..], &local[16..40], b"orders\x02k7\x02k8"]
            .concat();
    assert_eq!(first_batch(&[delete]), expected);
}

#[test]
fn attributes_and_keys_beyond_their_limits_are_refused() {
    let option = |error: JournalError| match error {
        JournalError::BadOption { option, reason } => (option, reason),
        error => panic!("{error}"),
    };
    let mut path = InstancePathBuffer::default();
    for (instance, expected) in [
        (Instance { name: "", group: "g" }, "instance"),
        (Instance { name: "n", group: "" }, "group"),
        (Instance { name: &"n".repeat(256), group: "g" }, "instance"),
    ] {
        assert_eq!(option(path.push(instance).unwrap_err()).0, expected);
        assert!(path.as_path().is_empty());
    }
    let mut buffer = AttributesBuffer::default();
    // A number of one byte, a size of three, and the key.
    assert!(buffer.encode(&attributes_of(&[b'k'; 65_531], None, InstancePath::EMPTY)).is_ok());
    let (name, reason) =
        option(buffer.encode(&attributes_of(&[b'k'; 65_532], None, InstancePath::EMPTY)).unwrap_err());
    assert_eq!(name, "attributes");
    assert_eq!(
        reason,
        "65536 bytes of attributes (65532 of the key, 0 of the path, 0 of the headers), the limit is 65535"
    );

    let (mut journal, _) = open_on(&MemoryDisk::new(64 << 20)).unwrap();
    let delete = NewRecord { kind: RecordKind::Delete, ..record(1, "orders", b"\x05key") };
    let (name, reason) = option(journal.append(&delete).unwrap_err());
    assert_eq!((name, &reason[..]), ("data", "the data of a delete is not a list of keys"));
    // One that deleted nothing keeps its sequence.
    let delete = NewRecord { data: b"", ..delete };
    assert_eq!(journal.append(&delete).unwrap(), Appended::Recorded(Position::new(1)));
    assert_eq!(journal.append(&delete).unwrap(), Appended::Duplicate { highest: 1 });
}

/// A journal with one batch, and no synced batch after it. One byte of the batch was changed, and
/// its checksums match again.
fn changed(at: usize, byte: u8) -> MemoryDisk {
    let disk = MemoryDisk::new(64 << 20);
    let (mut journal, _) = open_on(&disk).unwrap();
    let path = path_of(&[("east-1", "east")]);
    let mut buffer = AttributesBuffer::default();
    let attributes = buffer.encode(&attributes_of(b"key", None, path.as_path())).unwrap();
    journal.append(&NewRecord { attributes, ..record(1, "orders", b"{}") }).unwrap();
    journal.flush(SOON).unwrap();
    std::mem::forget(journal);
    let segment = Path::new(MEMORY).join("quire.0000000000.journal");
    let mut bytes = disk.read(&segment).unwrap();
    assert_ne!(bytes[4096 + at], byte);
    bytes[4096 + at] = byte;
    repair_batch_header(&mut bytes, 4096);
    let changed = MemoryDisk::new(64 << 20);
    changed.create(&segment, bytes.len() as u64).unwrap().write_at(&bytes, 0).unwrap();
    changed
}

#[test]
fn what_the_format_does_not_define_is_damage_and_never_a_torn_tail() {
    // In the header of the batch, its reserved bytes, in the header of the record, and in its
    // attributes.
    let cases = [
        (20, 4, "the batch has a flag that this version does not define"),
        (23, 1, "the batch has a flag that this version does not define"),
        (64 + 4, 5, "a record has a kind that this version does not define"),
        (64 + 9, 5, "a record has a flag that this version does not define"),
        (64 + 40 + 6 + 1, 4, "a record has attributes that this version does not define"),
    ];
    for (at, byte, expected) in cases {
        let disk = changed(at, byte);
        let error = open_on(&disk).err().unwrap_or_else(|| panic!("byte {at} of the batch is not refused"));
        let JournalError::Corrupt { offset: 4096, reason, .. } = error else { panic!("{error}") };
        assert_eq!(reason, expected);
        // Nothing was cut.
        assert!(open_on(&disk).is_err());
    }
}

#[test]
fn verify_and_readers_name_what_the_format_does_not_define() {
    let disk = MemoryDisk::new(64 << 20);
    let (mut journal, _) = open_on(&disk).unwrap();
    journal.append(&record(1, "orders", b"{}")).unwrap();
    journal.flush(SOON).unwrap();
    let segment = Path::new(MEMORY).join("quire.0000000000.journal");
    for (at, byte, expected) in [
        (64 + 9, 0x81, "a record has a flag that this version does not define"),
        (22, 1, "the batch has a flag that this version does not define"),
    ] {
        let whole = disk.read(&segment).unwrap();
        let mut bytes = whole.clone();
        bytes[4096 + at] = byte;
        repair_batch_header(&mut bytes, 4096);
        disk.open(&segment).unwrap().write_at(&bytes, 0).unwrap();
        let damages = journal.reader().verify();
        assert_eq!(damages.len(), 1, "{damages:?}");
        assert_eq!((damages[0].offset, &damages[0].reason[..]), (4096, expected));
        let (found, error) = read_all(&journal.reader());
        assert!(found.is_empty() && error.unwrap().to_string().contains(expected));
        disk.open(&segment).unwrap().write_at(&whole, 0).unwrap();
    }
}

#[test]
fn a_delete_whose_data_is_not_a_list_of_keys_is_damage() {
    let disk = MemoryDisk::new(64 << 20);
    let (mut journal, _) = open_on(&disk).unwrap();
    let mut keys = Vec::new();
    put_deleted_key(&mut keys, b"k7");
    put_deleted_key(&mut keys, b"k8");
    journal.append(&NewRecord { kind: RecordKind::Delete, ..record(1, "orders", &keys) }).unwrap();
    journal.flush(SOON).unwrap();
    let (segment, expected) =
        (Path::new(MEMORY).join("quire.0000000000.journal"), "the data of a delete is not a list of keys");
    let mut bytes = disk.read(&segment).unwrap();
    let second = bytes.windows(3).position(|found| found == b"\x02k8").unwrap();
    bytes[second] = 3;
    repair_batch_header(&mut bytes, 4096);
    disk.open(&segment).unwrap().write_at(&bytes, 0).unwrap();
    let damages = journal.reader().verify();
    assert_eq!(damages.len(), 1, "{damages:?}");
    assert_eq!((damages[0].offset, &damages[0].reason[..]), (4096, expected));
    let (found, error) = read_all(&journal.reader());
    assert!(found.is_empty() && error.unwrap().to_string().contains(expected));
    std::mem::forget(journal);
    let changed = MemoryDisk::new(64 << 20);
    changed.create(&segment, bytes.len() as u64).unwrap().write_at(&bytes, 0).unwrap();
    let error = open_on(&changed).err().unwrap();
    assert!(
        matches!(error, JournalError::Corrupt { offset: 4096, reason, .. } if reason == expected),
        "{error}"
    );
}

#[test]
fn a_segment_of_a_later_version_is_refused_by_its_name_and_version() {
    let disk = MemoryDisk::new(64 << 20);
    let (journal, _) = open_on(&disk).unwrap();
    journal.close().unwrap();
    let segment = Path::new(MEMORY).join("quire.0000000000.journal");
    let mut bytes = disk.read(&segment).unwrap();
    assert_eq!(bytes[8..12], [8, 0, 0, 0]);
    for version in [9u32, 0, u32::MAX] {
        bytes[8..12].copy_from_slice(&version.to_le_bytes());
        repair_segment_header(&mut bytes);
        disk.open(&segment).unwrap().write_at(&bytes, 0).unwrap();
        let error = open_on(&disk).err().unwrap();
        assert_eq!(
            error.to_string(),
            format!(
                "{}: journal format version {version}; this build reads versions 1, 2, 3, 4, 5, 6, 7 and 8",
                segment.display()
            )
        );
        let reader = Reader::open_read_only_on(Arc::new(disk.clone()), Path::new(MEMORY), None);
        assert!(matches!(reader.err(), Some(JournalError::Version { .. })));
    }
}

#[test]
fn a_time_in_the_attributes_is_one_time_after_1970_and_nothing_else() {
    for number in [4, 5] {
        let whole = [number, 8, 1, 0, 0, 0, 0, 0, 0, 0];
        let read = Attributes::from_bytes(&whole).unwrap();
        assert_eq!(read.not_before().or(read.received()), Some(Timestamp::from_ns(1)));
        let none = [number, 8, 0, 0, 0, 0, 0, 0, 0, 0];
        let long = [&[number, 9][..], &[1; 9]].concat();
        let short = [number, 7, 1, 0, 0, 0, 0, 0, 0];
        for bytes in [&none[..], &whole[..9], &short, &long, &[whole, whole].concat()] {
            assert_eq!(Attributes::from_bytes(bytes), None, "{bytes:?}");
        }
    }
    let mut buffer = AttributesBuffer::default();
    let never = NewAttributes { not_before: Some(Timestamp::from_ns(0)), ..NewAttributes::default() };
    assert_eq!(buffer.encode(&never).unwrap(), Attributes::NONE);
}

#[test]
fn a_run_in_the_attributes_is_one_number_above_zero_and_what_it_follows_is_one_number() {
    let run = [6, 8, 1, 0, 0, 0, 0, 0, 0, 0];
    let (zero, next) = ([7, 1, 0], [7, 2, 0x80, 2]);
    let read =
        |parts: &[&[u8]]| Attributes::from_bytes(&parts.concat()).map(|read| (read.run(), read.follows()));
    assert_eq!(read(&[&run]), Some((1, None)));
    assert_eq!(read(&[&zero]), Some((0, Some(0))));
    assert_eq!(read(&[&run, &next]), Some((1, Some(256))));
    let none = [6, 8, 0, 0, 0, 0, 0, 0, 0, 0];
    let (short, long) = ([6, 7, 1, 0, 0, 0, 0, 0, 0], [&[6, 9][..], &[1; 9]].concat());
    for parts in [&[&none[..]][..], &[&short], &[&long], &[&run, &run], &[&next, &run]] {
        assert_eq!(read(parts), None, "{parts:?}");
    }
    for bytes in [&[7, 0][..], &[7, 1, 0x80], &[7, 2, 1, 1], &[7, 10, 0xff, 0xff]] {
        assert_eq!(Attributes::from_bytes(bytes), None, "{bytes:?}");
    }
}
