//! Leases are written to the journal and read again: small, in order, with consumer and time. No
//! other record is read as leases.

use std::fmt::Write as _;

use proptest::prelude::*;
use quire_journal::Timestamp;
use quire_queue::*;

use crate::model::bookmark_of;

/// Written by the build that introduced the records; as in `tests/golden/filters.txt`, lines that
/// begin with `#` are remarks.
const GOLDEN: &str = include_str!("../../../../tests/golden/lease-record-v1.txt");

/// Written by the build that introduced the bookmarks.
const GOLDEN_V2: &str = include_str!("../../../../tests/golden/lease-record-v2.txt");

/// A position, the kind of event, the connection, and the nanoseconds since the event before.
type Step = (u64, LeaseEventKind, u64, u64);

fn step() -> impl Strategy<Value = Step> {
    let position = prop_oneof![8 => 1u64..40, 1 => 1u64..u64::MAX - 1];
    let elapsed = prop_oneof![6 => Just(0u64), 2 => 1u64..1000, 1 => 0u64..1 << 50];
    (position, prop::sample::select(&LeaseEventKind::ALL[..]), 0u64..4, elapsed)
}

fn name_of(connection: u64) -> &'static str {
    ["worker-1", "", "größe", "worker-1"][connection as usize]
}

fn written(steps: &[Step]) -> Vec<u8> {
    written_with(steps, bookmark_of)
}

fn written_with(steps: &[Step], named: impl Fn(u64) -> Bookmark) -> Vec<u8> {
    let (mut writer, mut time_ns) = (LeasesWriter::default(), 0);
    for &(position, kind, connection, elapsed_ns) in steps {
        time_ns += elapsed_ns;
        let (queue, position) = (QueueId::new(3), Position::new(position));
        let connection_id = ConnectionId::new(connection);
        let bookmark = Some(named(position.get()));
        let event = LeaseEvent { queue, position, bookmark, connection: connection_id, kind };
        writer.push(event, Timestamp::from_ns(time_ns), || name_of(connection));
    }
    assert_eq!(writer.is_empty(), steps.is_empty());
    writer.finish().to_vec()
}

fn read(data: &[u8], limit: u64) -> Result<Vec<LeaseRun<'_>>, BadChanges> {
    LeaseRun::read(data, Position::new(limit)).collect()
}

proptest! {
    #[test]
    fn leases_come_back_in_their_order(steps in prop::collection::vec(step(), 0..60)) {
        let data = written(&steps);
        let mut found = Vec::new();
        for run in read(&data, u64::MAX).unwrap() {
            let LeaseRun { first, last, kind, consumer, time, names } = run;
            let positions = first.get()..=last.get();
            let bookmarks: Vec<_> = names.into_iter().flat_map(NamedRun::bookmarks).collect();
            let expected: Vec<_> = positions.clone().map(|position| Some(bookmark_of(position))).collect();
            prop_assert_eq!(bookmarks, expected);
            found.extend(positions.map(|position| (position, kind, consumer.to_owned(), time.as_ns())));
        }
        let mut time_ns = 0;
        let expected: Vec<_> = steps.iter().map(|&(position, kind, connection, elapsed_ns)| {
            time_ns += elapsed_ns;
            (position, kind, name_of(connection).to_owned(), time_ns)
        }).collect();
        prop_assert_eq!(found, expected);
    }

    #[test]
    fn any_bytes_are_leases_of_earlier_messages_or_refused(data in prop::collection::vec(any::<u8>(), 0..40)) {
        for run in LeaseRun::read(&data, Position::new(1000)).flatten() {
            prop_assert!(run.first <= run.last && run.last < Position::new(1000));
        }
        // As a record of this version.
        for run in LeaseRun::read(&[&[47, 0][..], &data].concat(), Position::new(1000)).flatten() {
            prop_assert!(run.first <= run.last && run.last < Position::new(1000));
            let named: u64 = run.names.iter().map(|names| names.count).sum();
            prop_assert_eq!(named, run.last.get() - run.first.get() + 1);
        }
    }

    #[test]
    fn any_change_of_a_byte_gives_leases_of_earlier_messages_or_is_refused(
        steps in prop::collection::vec(step(), 1..20),
        place in any::<prop::sample::Index>(),
        byte: u8,
    ) {
        let mut data = written(&steps);
        let place = place.index(data.len());
        data[place] = byte;
        for run in LeaseRun::read(&data, Position::new(1000)).flatten() {
            prop_assert!(run.first <= run.last && run.last < Position::new(1000));
        }
    }
}

#[test]
fn a_consumer_is_named_once_and_neighbours_are_one_run() {
    let to = |connection| move |position| (position, LeaseEventKind::Delivered, connection, 0);
    let run: Vec<Step> = (1_000_000..1_000_080).map(to(0)).collect();
    let named = |position| Bookmark::new(PublisherId::new(7), position);
    let size = |steps: &[Step]| written_with(steps, named).len();
    let (header, name) = (2, 1 + 8 + 4 + 2);
    assert!(size(&run) <= header + 2 + "worker-1".len() + 5 + name, "{} bytes", size(&run));
    let in_turn: Vec<Step> = (1_000_000..1_000_080).map(|position| to(position % 2)(position)).collect();
    assert!(size(&in_turn) <= header + 4 * 80 + 2 * 10 + 4 + name, "{} bytes", size(&in_turn));
}

#[test]
fn a_record_speaks_of_what_lies_before_it() {
    let data = written(&[(7, LeaseEventKind::Left, 0, 5)]);
    assert_eq!(read(&data, 8).unwrap().len(), 1);
    assert_eq!(read(&data, 7), Err(BadChanges::NotAList));
    assert_eq!(read(&data[..data.len() - 1], 8), Err(BadChanges::NotAList));
}

#[test]
fn a_run_without_a_consumer_and_an_unknown_kind_are_refused() {
    assert_eq!(read(&[0x02, 0x0e], 100), Err(BadChanges::NotAList));
    let of_a_consumer = |kind: u8| [0x01, 0x01, b'w', kind, 0x0e];
    assert_eq!(read(&of_a_consumer(0x02), 100).unwrap()[0].consumer, "w");
    assert_eq!(read(&of_a_consumer(0x0b), 100).unwrap()[0].kind, LeaseEventKind::Released);
    assert_eq!(read(&of_a_consumer(0x0c), 100), Err(BadChanges::NotAList));
    // The second consumer of a list cannot be before the first.
    assert_eq!(read(&[0x11, 0x01, b'w', 0x02, 0x0e], 100), Err(BadChanges::NotAList));
    let mut writer = LeasesWriter::default();
    writer.clear();
    assert!(writer.is_empty() && writer.size() == 0 && writer.finish().is_empty());
}

#[test]
fn a_golden_record_is_read_and_written_as_it_was() {
    use LeaseEventKind::*;
    let start = 1_700_000_000_000_000_000;
    let steps = [
        (11, Delivered, 0, start),
        (12, Delivered, 0, 0),
        (13, Delivered, 2, 0),
        (200, Delivered, 1, 0),
        (11, Acknowledged, 0, 1_500_000),
        (12, Cancelled, 0, 0),
        (12, Delivered, 2, 0),
        (13, Expired, 2, 1),
        (12, RanOut, 2, 30_000_000_000),
        (12, Delivered, 0, 0),
        (12, Lost, 0, 5),
        (12, AcknowledgedUnheld, 2, 0),
        (14, ExpiredUnheld, 2, 0),
        (200, Left, 1, 7),
    ];
    for (golden, is_current) in [(GOLDEN, false), (GOLDEN_V2, true)] {
        let mut lines = golden.lines().filter(|line| !line.starts_with('#'));
        let hexadecimal = lines.next().unwrap();
        let bytes: Vec<u8> = (0..hexadecimal.len() / 2)
            .map(|at| u8::from_str_radix(&hexadecimal[2 * at..2 * at + 2], 16).unwrap())
            .collect();
        if is_current {
            let hexadecimal_now: String = written(&steps).iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(hexadecimal, hexadecimal_now);
        }
        let mut found = String::new();
        for run in read(&bytes, 1000).unwrap() {
            let LeaseRun { first, last, kind, consumer, time, names } = run;
            assert_eq!(names.is_empty(), !is_current);
            writeln!(found, "{first}-{last} {kind:?} {consumer:?} {}", time.as_ns()).unwrap();
        }
        assert_eq!(found.lines().collect::<Vec<_>>(), lines.collect::<Vec<_>>());
    }
}
