//! Changes go into the journal and come back, small, in order, and nothing else is taken for changes.

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
    (position, kind).prop_map(|(position, kind)| Change {
        queue: QUEUE,
        position: Position::new(position),
        kind,
    })
}

fn written(changes: &[Change]) -> Vec<u8> {
    let mut writer = ChangesWriter::default();
    changes.iter().for_each(|change| writer.push(change.position, change.kind));
    writer.finish().to_vec()
}

fn read(data: &[u8], limit: u64) -> Result<Vec<Change>, BadChanges> {
    let mut changes = Vec::new();
    for logged in Logged::read(data, Position::new(limit)) {
        changes.extend(logged?.changes(QUEUE));
    }
    Ok(changes)
}

proptest! {
    #[test]
    fn changes_come_back_in_their_order(changes in prop::collection::vec(change(), 0..60)) {
        prop_assert_eq!(read(&written(&changes), u64::MAX), Ok(changes));
    }

    #[test]
    fn any_bytes_are_changes_of_earlier_messages_or_refused(data in prop::collection::vec(any::<u8>(), 0..40)) {
        for logged in Logged::read(&data, Position::new(1000)) {
            match logged {
                Ok(Logged::Changed { first, last, .. }) => {
                    prop_assert!(first <= last && last < Position::new(1000));
                }
                Ok(Logged::Begins { after, .. }) => prop_assert!(after < Position::new(1000)),
                Err(BadChanges) => (),
            }
        }
    }
}

#[test]
fn a_batch_of_neighbours_takes_a_few_bytes() {
    let acknowledged =
        |position| Change { queue: QUEUE, position: Position::new(position), kind: ChangeKind::Acknowledged };
    let all: Vec<Change> = (1_000_000..1_000_080).map(acknowledged).collect();
    assert!(written(&all).len() <= 6, "{} bytes", written(&all).len());
    let every_other: Vec<Change> = all.iter().copied().step_by(2).collect();
    assert!(written(&every_other).len() <= 2 * every_other.len() + 4);
}

#[test]
fn a_record_speaks_of_what_lies_before_it() {
    let change = Change { queue: QUEUE, position: Position::new(7), kind: ChangeKind::Taken };
    assert_eq!(read(&written(&[change]), 8), Ok(vec![change]));
    assert_eq!(read(&written(&[change]), 7), Err(BadChanges));
}

#[test]
fn a_change_that_is_not_known_is_refused() {
    let change =
        Change { queue: QUEUE, position: Position::new(7), kind: ChangeKind::Returned { deliveries: 2 } };
    let data = written(&[change]);
    // Head, distance, which change, deliveries.
    assert_eq!(data, [7, 14, 1, 2]);
    let later = ChangeKind::Delayed { until: Time::new(300) };
    assert_eq!(written(&[Change { kind: later, ..change }]), [7, 14, 2, 0xac, 0x02]);
    assert_eq!(read(&[7, 14, 9, 2], 8), Err(BadChanges));
    assert_eq!(read(&data, 8), Ok(vec![change]));
}

#[test]
fn where_a_queue_begins_comes_back() {
    let mut writer = ChangesWriter::default();
    writer.push(Position::new(3), ChangeKind::Acknowledged);
    writer.push_beginning(Position::new(9), "now");
    let data = writer.finish().to_vec();
    let logged: Vec<_> = Logged::read(&data, Position::new(10)).map(Result::unwrap).collect();
    assert_eq!(logged[1], Logged::Begins { after: Position::new(9), recovery_point: "now" });
    assert_eq!(Logged::read(&data[..data.len() - 1], Position::new(10)).last(), Some(Err(BadChanges)));
    writer.clear();
    assert!(writer.is_empty() && writer.finish().is_empty());
}
