//! Changes are written to the journal and read again: small, and in order. No other record is read
//! as changes.

use proptest::prelude::*;
use quire_queue::*;

const QUEUE: QueueId = QueueId::new(3);

fn change() -> impl Strategy<Value = Change> {
    let reasons =
        [Reasons::TIME_LIMIT, Reasons::FORCED_EXPIRE | Reasons::MAX_CANCELS, Reasons::MAX_DELIVERIES];
    let kind = prop_oneof![
        6 => Just(ChangeKind::Acknowledged),
        1 => any::<u32>().prop_map(|cancels| ChangeKind::Cancelled { cancels }),
        1 => (0usize..3, any::<u32>(), 0u32..4).prop_map(move |(reason, deliveries, cancels)| {
            ChangeKind::Expired { reasons: reasons[reason], deliveries, cancels }
        }),
        1 => Just(ChangeKind::Taken),
        1 => Just(ChangeKind::Released),
        1 => any::<u32>().prop_map(|deliveries| ChangeKind::Returned { deliveries }),
        1 => any::<u64>().prop_map(|until| ChangeKind::Delayed { until: Time::new(until) }),
    ];
    let position = prop_oneof![8 => 1u64..40, 1 => 1u64..u64::MAX - 1];
    (position, bookmark(), kind).prop_map(|(position, bookmark, kind)| Change {
        queue: QUEUE,
        position: Position::new(position),
        bookmark,
        kind,
    })
}

/// Few publishers, and sequences that often follow each other.
pub fn bookmark() -> impl Strategy<Value = Option<Bookmark>> {
    let publisher = prop_oneof![6 => Just(7u64), 2 => 1u64..4, 1 => any::<u64>()];
    let sequence = prop_oneof![8 => 1u64..5, 1 => any::<u64>()];
    let bookmark = (publisher, sequence)
        .prop_map(|(publisher, sequence)| Bookmark::new(PublisherId::new(publisher), sequence));
    prop::option::weighted(0.9, bookmark)
}

fn acknowledged(position: u64, publisher: u64, sequence: u64) -> Change {
    Change {
        queue: QUEUE,
        position: Position::new(position),
        bookmark: Some(Bookmark::new(PublisherId::new(publisher), sequence)),
        kind: ChangeKind::Acknowledged,
    }
}

fn written(changes: &[Change]) -> Vec<u8> {
    let mut writer = ChangesWriter::default();
    changes.iter().for_each(|change| writer.push(change.position, change.bookmark, change.kind));
    writer.finish().to_vec()
}

fn read(data: &[u8], limit: u64) -> Result<Vec<Change>, BadChanges> {
    let mut changes = Vec::new();
    for logged in Logged::read(data, Position::new(limit)) {
        changes.extend(logged?.changes(QUEUE));
    }
    Ok(changes)
}

/// Every run is before the limit, and its names are those of its messages.
fn check(data: &[u8], limit: u64) -> Result<(), TestCaseError> {
    for logged in Logged::read(data, Position::new(limit)) {
        match logged {
            Ok(Logged::Changed { first, last, names, .. }) => {
                prop_assert!(first <= last && last.get() < limit);
                let named: u64 = names.iter().map(|run| run.count).sum();
                prop_assert!(names.is_empty() || named == last.get() - first.get() + 1);
            }
            Ok(Logged::Begins { after, .. }) => prop_assert!(after.get() < limit),
            Err(_) => (),
        }
    }
    Ok(())
}

proptest! {
    #[test]
    fn changes_come_back_in_their_order(changes in prop::collection::vec(change(), 0..60)) {
        prop_assert_eq!(read(&written(&changes), u64::MAX), Ok(changes));
    }

    #[test]
    fn any_bytes_are_changes_of_earlier_messages_or_refused(data in prop::collection::vec(any::<u8>(), 0..40)) {
        check(&data, 1000)?;
        // As a record of this version.
        check(&[&HEADER[..], &data].concat(), 1000)?;
    }

    #[test]
    fn any_change_of_a_byte_gives_changes_of_earlier_messages_or_is_refused(
        changes in prop::collection::vec(change(), 1..20),
        place in any::<prop::sample::Index>(),
        byte: u8,
    ) {
        let mut data = written(&changes);
        let place = place.index(data.len());
        data[place] = byte;
        check(&data, 1000)?;
    }
}

/// Version 2, no group.
const HEADER: [u8; 2] = [16, 0];

#[test]
fn consecutive_messages_of_a_publisher_take_a_few_bytes() {
    let all: Vec<Change> =
        (0..1000).map(|number| acknowledged(1_000_000 + number, u64::MAX, 70_000 + number)).collect();
    // The header, the run of positions, and one name.
    assert_eq!(written(&all).len(), 2 + 5 + 14, "{:?}", written(&all));
    let every_other: Vec<Change> = all.iter().copied().step_by(2).collect();
    assert!(written(&every_other).len() <= 4 * every_other.len() + 20, "{}", written(&every_other).len());
}

#[test]
fn messages_of_publishers_in_turn_take_a_byte_each_and_twelve_for_each_publisher() {
    let all: Vec<Change> = (0..1000u64)
        .map(|number| acknowledged(1_000_000 + number, (number % 20) << 50, 70_000 + number / 20))
        .collect();
    assert_eq!(written(&all).len(), 2 + 5 + 1000 + 20 * (8 + 3), "{:?}", written(&all));
    assert_eq!(read(&written(&all), 2_000_000), Ok(all));
}

#[test]
fn the_size_of_a_record_is_known_while_it_grows() {
    let (mut writer, mut pushed) = (ChangesWriter::default(), 0);
    // One run of positions, and each message of another publisher than its neighbors.
    for number in 0..100_000 {
        if writer.size() >= 32 * 1024 {
            break;
        }
        let Change { position, bookmark, kind, .. } = acknowledged(1 + number, number % 50, number);
        writer.push(position, bookmark, kind);
        pushed += 1;
    }
    assert!(pushed < 100_000);
    assert!(writer.finish().len() < 36 * 1024, "{}", writer.finish().len());
}

#[test]
fn a_record_speaks_of_what_lies_before_it() {
    let change = acknowledged(7, 3, 4);
    assert_eq!(read(&written(&[change]), 8), Ok(vec![change]));
    assert_eq!(read(&written(&[change]), 7), Err(BadChanges::NotAList));
}

#[test]
fn a_change_that_is_not_known_is_refused() {
    let change = Change { kind: ChangeKind::Returned { deliveries: 2 }, ..acknowledged(7, 3, 4) };
    let data = written(&[change]);
    // The header. Then the head, the distance, the kind of change and the deliveries. Then the
    // name: the number of the publisher and whether the sequence follows, the publisher, the
    // sequence.
    assert_eq!(data, [16, 0, 7, 14, 1, 2, 5, 3, 0, 0, 0, 0, 0, 0, 0, 8]);
    let later = ChangeKind::Delayed { until: Time::new(300) };
    assert_eq!(written(&[Change { kind: later, ..change }])[2..7], [7, 14, 2, 0xac, 0x02]);
    assert_eq!(read(&[16, 0, 7, 14, 9, 2], 8), Err(BadChanges::NotAList));
    assert_eq!(read(&data, 8), Ok(vec![change]));
    // A publisher that the record does not have, and a name that is missing.
    assert_eq!(read(&[16, 0, 1, 14, 12, 8], 8), Err(BadChanges::NotAList));
    assert_eq!(read(&[16, 0, 1, 14], 8), Err(BadChanges::NotAList));
}

#[test]
fn records_of_every_version_are_read() {
    for (golden, is_current) in [(GOLDEN, false), (GOLDEN_V2, true)] {
        let mut lines = golden.lines().filter(|line| !line.starts_with('#'));
        let hexadecimal = lines.next().unwrap();
        let bytes: Vec<u8> = (0..hexadecimal.len() / 2)
            .map(|at| u8::from_str_radix(&hexadecimal[2 * at..2 * at + 2], 16).unwrap())
            .collect();
        let (mut found, mut writer) = (Vec::new(), ChangesWriter::default());
        for logged in Logged::read(&bytes, Position::new(100_000)) {
            let logged = logged.unwrap();
            found.push(match &logged {
                Logged::Changed { first, last, kind, names } => {
                    assert_eq!(names.is_empty(), !is_current);
                    let named = |name: NamedRun| {
                        let first = name.first.map_or("an unknown one".to_owned(), |first| first.to_string());
                        format!(", {} from {first}", name.count)
                    };
                    let names: String = names.iter().copied().map(named).collect();
                    format!("{first}-{last} {kind:?}{names}")
                }
                Logged::Begins { after, recovery_point } => format!("begins {after} {recovery_point:?}"),
            });
            if let Logged::Begins { after, recovery_point } = logged {
                writer.push_beginning(after, recovery_point);
            } else {
                let changes = logged.changes(QueueId::new(0));
                changes.for_each(|change| writer.push(change.position, change.bookmark, change.kind));
            }
        }
        assert_eq!(found, lines.collect::<Vec<_>>());
        if is_current {
            let written: String = writer.finish().iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(written, hexadecimal);
        }
    }
}

/// Written by the build before version 2; as in `tests/golden/filters.txt`, lines that begin with
/// `#` are remarks.
const GOLDEN: &str = include_str!("../../../../tests/golden/change-record-v1.txt");

/// Made from the description of version 2 in docs/journal-format.md.
const GOLDEN_V2: &str = include_str!("../../../../tests/golden/change-record-v2.txt");

#[test]
fn a_record_of_another_version_or_of_a_group_is_refused_with_its_number() {
    let change = [1, 14, 5, 3, 0, 0, 0, 0, 0, 0, 0, 8];
    let with = |header: [u8; 2]| [&header[..], &change].concat();
    assert_eq!(read(&with(HEADER), 8).map(|changes| changes.len()), Ok(1));
    assert_eq!(read(&with([24, 0]), 8), Err(BadChanges::Version(3)));
    assert_eq!(read(&with([0, 0]), 8), Err(BadChanges::Version(0)));
    // The group 4, the last record of the group and another one.
    for group in [9, 8] {
        let data = with([16, group]);
        assert_eq!(read(&data, 8), Err(BadChanges::Group(4)));
    }
    // A header is at the beginning only.
    assert_eq!(read(&[&with(HEADER)[..], &with(HEADER)].concat(), 8), Err(BadChanges::NotAList));
}

#[test]
fn where_a_queue_begins_comes_back() {
    let mut writer = ChangesWriter::default();
    writer.push(Position::new(3), None, ChangeKind::Acknowledged);
    writer.push_beginning(Position::new(9), "now");
    let data = writer.finish().to_vec();
    let logged: Vec<_> = Logged::read(&data, Position::new(10)).map(Result::unwrap).collect();
    assert_eq!(logged[1], Logged::Begins { after: Position::new(9), recovery_point: "now" });
    let cut = &data[..data.len() - 1];
    assert_eq!(Logged::read(cut, Position::new(10)).last(), Some(Err(BadChanges::NotAList)));
    writer.clear();
    assert!(writer.is_empty() && writer.finish().is_empty());
}
