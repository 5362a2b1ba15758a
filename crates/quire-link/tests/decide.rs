//! The decisions about messages, against the tables of docs/internals/copies.md over a list of
//! records.

use proptest::prelude::*;
use quire_link::decide::*;

/// The records of one publisher: sequence and run, in any order.
type Log = Vec<(u64, u64)>;

fn here(log: &Log, sequence: u64) -> Here {
    if let Some((_, run)) = log.iter().find(|(known, _)| *known == sequence) {
        return Here::Record { run: *run };
    }
    match log.iter().max() {
        Some((highest, run)) if *highest > sequence => Here::Below { current_run: *run },
        _ => Here::Above,
    }
}

/// The first row of the table for publishes that applies.
fn by_the_table_of_publishes(log: &Log, sequence: u64, published: Published) -> PublishDecision {
    let Published { run, is_rejected, is_gap } = published;
    let there = log.iter().find(|(known, _)| *known == sequence).map(|(_, known)| *known);
    let is_same = |known: u64| known == run || known == 0 || run == 0;
    let (highest, current) = log.iter().copied().max().unwrap_or_default();
    let lacks_below = there.is_none() && sequence < highest;
    let is_of_current = current == run || run == 0;
    let rows = [
        (there.is_some_and(is_same) && !is_rejected, PublishDecision::Duplicate),
        (there.is_some_and(is_same) && is_rejected, PublishDecision::Refuse),
        (there.is_some_and(|known| !is_same(known)), PublishDecision::Refuse),
        (lacks_below && is_of_current && !is_gap, PublishDecision::Record),
        (lacks_below && is_of_current && is_gap, PublishDecision::Refuse),
        (lacks_below && !is_of_current, PublishDecision::Refuse),
    ];
    let row = rows.iter().find(|(applies, _)| *applies);
    row.map_or(PublishDecision::Record, |(_, decision)| *decision)
}

fn by_the_table_of_records(log: &Log, sequence: u64, run: u64) -> RecordDecision {
    let there = log.iter().find(|(known, _)| *known == sequence).map(|(_, known)| *known);
    let rows = [
        (there.is_some_and(|known| known == 0 || run == 0), RecordDecision::Compare),
        (there == Some(run), RecordDecision::Duplicate),
        (there.is_some_and(|known| known != run), RecordDecision::Reject),
    ];
    let row = rows.iter().find(|(applies, _)| *applies);
    row.map_or(RecordDecision::Record, |(_, decision)| *decision)
}

fn run() -> impl Strategy<Value = u64> {
    prop_oneof![8 => 0..4_u64, 1 => any::<u64>()]
}

proptest! {
    #[test]
    fn a_decision_is_that_of_the_first_row_that_applies(
        log in prop::collection::btree_map(1..9_u64, run(), 0..6),
        sequence in 1..10_u64,
        run in run(),
        is_rejected: bool,
        is_gap: bool,
    ) {
        let log: Log = log.into_iter().collect();
        let published = Published { run, is_rejected, is_gap };
        let here = here(&log, sequence);
        prop_assert_eq!(
            decide_publish(here, published),
            by_the_table_of_publishes(&log, sequence, published)
        );
        prop_assert_eq!(decide_record(here, run), by_the_table_of_records(&log, sequence, run));
    }
}
