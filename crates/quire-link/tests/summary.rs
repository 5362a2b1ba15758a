//! The comparison of two logs against the two lists of their records.

use std::collections::BTreeSet;
use std::time::Duration;

use proptest::prelude::*;
use quire_journal::*;
use quire_link::summary::*;

/// Publisher, sequence, and run.
type Message = (u64, u64, u64);

/// Ids are hashes. So they are in several of the 256 ranges.
fn id(publisher: u64) -> PublisherId {
    PublisherId::of_client_name(&publisher.to_string())
}

fn journal() -> Journal {
    Journal::in_memory(&Options { segment_size: 64 * 1024, ..Options::default() }).unwrap()
}

fn append(journal: &mut Journal, (publisher, sequence, run): Message, size: usize) {
    let mut buffer = AttributesBuffer::default();
    let attributes = buffer.encode(&NewAttributes { run, ..NewAttributes::default() }).unwrap();
    let data = vec![0; size];
    let record = NewRecord {
        kind: RecordKind::Publish,
        message_type: 1,
        publisher: id(publisher),
        sequence,
        timestamp: Timestamp::from_ns(1),
        topic: "orders",
        correlation_id: b"",
        expiration_s: None,
        attributes,
        data: &data,
    };
    assert!(matches!(journal.append_late(&record).unwrap(), Appended::Recorded(_)), "{publisher} {sequence}");
}

fn answer_from_memory(question: &Question, journal: &Journal) -> Option<Answer> {
    let mut answer = MemoryAnswer::begin(question)?;
    while !answer.advance(journal, 2) {}
    Some(answer.into_answer())
}

/// Compares the logs, with each question and answer as bytes. Returns the bytes.
fn compare(comparison: &mut Comparison, here: &Journal, there: &Journal) -> usize {
    let mut size = 0;
    while let Some(question) = comparison.question().cloned() {
        let mut bytes = Vec::new();
        question.encode(&mut bytes);
        size += bytes.len();
        let question = Question::decode(&bytes).unwrap();
        for (side, journal) in [(Side::Here, here), (Side::There, there)] {
            let from_log = || answer_from_log(&question, &journal.reader()).unwrap().unwrap();
            let answer = answer_from_memory(&question, journal).unwrap_or_else(from_log);
            bytes.clear();
            answer.encode(&mut bytes);
            assert_eq!(Answer::decode(&bytes), Some(answer.clone()));
            size += bytes.len();
            comparison.handle_answer(side, answer).unwrap();
        }
    }
    size
}

fn found(comparison: &Comparison) -> BTreeSet<(PublisherId, u64, Option<u64>, Option<u64>)> {
    let differences = comparison.differences().iter();
    let found: BTreeSet<_> = differences
        .map(|difference| {
            let Difference { bookmark, here, there } = *difference;
            (bookmark.publisher, bookmark.sequence, here, there)
        })
        .collect();
    assert_eq!(found.len(), comparison.differences().len());
    found
}

fn sequence() -> impl Strategy<Value = u64> {
    prop_oneof![
        6 => 1u64..40,
        2 => 1000u64..1050,
        1 => 260_000u64..263_000,
        1 => (0u64..9).prop_map(|more| (1 << 40) + more),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 120, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_comparison_finds_exactly_the_messages_that_differ(
        both in prop::collection::btree_set((0u64..5, sequence()), 0..120),
        // 0: only here, 1: only there, 2: another run there.
        differ in prop::collection::btree_map((0u64..5, sequence()), 0usize..3, 0..12),
        seed: u64,
    ) {
        let (mut here, mut there) = (journal(), journal());
        let mut messages: [Vec<Message>; 2] = Default::default();
        let mut expected = BTreeSet::new();
        for (publisher, sequence) in both.iter().filter(|message| !differ.contains_key(message)) {
            messages.iter_mut().for_each(|side| side.push((*publisher, *sequence, 1 + sequence % 3)));
        }
        for ((publisher, sequence), how) in &differ {
            let runs = [(Some(7), None), (None, Some(7)), (Some(7), Some(8))][*how];
            messages[0].extend(runs.0.map(|run| (*publisher, *sequence, run)));
            messages[1].extend(runs.1.map(|run| (*publisher, *sequence, run)));
            expected.insert((id(*publisher), *sequence, runs.0, runs.1));
        }
        // Every log has another order, so that most records are late. A record of the current run
        // is not late.
        for (side, journal) in [&mut here, &mut there].into_iter().enumerate() {
            let factor = (seed >> (8 * side)) | 1;
            messages[side].sort_by_key(|(publisher, sequence, run)| {
                (*publisher * 31 + *sequence * 17 + *run).wrapping_mul(factor) % 1009
            });
            // The first record of each publisher has the highest sequence, of a run without others.
            for publisher in 0..5 {
                append(journal, (publisher, 1 << 50, 99), 10);
            }
            for (number, message) in messages[side].iter().enumerate() {
                append(journal, *message, 900);
                if number % 20 == 0 {
                    journal.submit();
                }
            }
            journal.flush(Duration::from_secs(60)).unwrap();
        }
        let mut comparison = Comparison::new(usize::MAX);
        compare(&mut comparison, &here, &there);
        prop_assert!(comparison.is_complete());
        prop_assert_eq!(found(&comparison), expected);
    }

    #[test]
    fn any_bytes_are_a_question_and_an_answer_or_refused(
        kind in 0u8..6, bytes in prop::collection::vec(any::<u8>(), 0..200)
    ) {
        let bytes = [&[kind][..], &bytes].concat();
        let mut again = Vec::new();
        if let Some(question) = Question::decode(&bytes) {
            question.encode(&mut again);
            prop_assert_eq!(Question::decode(&again), Some(question.clone()));
            let journal = journal();
            let answer = answer_from_memory(&question, &journal);
            let answer = answer.or_else(|| answer_from_log(&question, &journal.reader()).unwrap()).unwrap();
            let mut comparison = Comparison::new(9);
            let _taken = comparison.handle_answer(Side::Here, answer);
        }
        again.clear();
        if let Some(answer) = Answer::decode(&bytes) {
            answer.encode(&mut again);
            prop_assert_eq!(Answer::decode(&again), Some(answer.clone()));
            let mut comparison = Comparison::new(9);
            for side in [Side::Here, Side::There] {
                let _taken = comparison.handle_answer(side, answer.clone());
            }
        }
    }
}

/// A log with records of some publishers, without those of `left_out`.
fn filled(count: u64, left_out: &[(u64, u64)]) -> Journal {
    let mut journal = journal();
    for sequence in 1..=count {
        for publisher in 0..3 {
            if !left_out.contains(&(publisher, sequence)) {
                append(&mut journal, (publisher, sequence, 5), 20);
            }
        }
        if sequence % 100 == 0 {
            journal.submit();
        }
    }
    journal.flush(Duration::from_secs(60)).unwrap();
    journal
}

#[test]
fn the_bytes_of_a_comparison_depend_on_the_differences_and_not_on_the_logs() {
    let whole = filled(30_000, &[]);
    let mut equal = Comparison::new(100);
    assert_eq!(compare(&mut equal, &whole, &filled(30_000, &[])), 2 * (1 + 256 * 8) + 1);
    assert!(equal.is_complete() && equal.differences().is_empty());
    let one = compare(&mut Comparison::new(100), &whole, &filled(30_000, &[(1, 17_000)]));
    // One range of 1,024 sequences on both sides, and what leads to it.
    assert!((6_000..10_000).contains(&one), "{one} bytes");
    let left_out: Vec<_> = (1..=10).map(|number| (number % 3, number * 2_500)).collect();
    let mut comparison = Comparison::new(100);
    let ten = compare(&mut comparison, &whole, &filled(30_000, &left_out));
    assert_eq!(comparison.differences().len(), 10);
    assert!(ten < 10 * one && ten < 60_000, "{ten} bytes, one difference takes {one}");
}

#[test]
fn a_comparison_ends_at_the_limit_of_differences() {
    let left_out: Vec<_> = (1..=9).map(|number| (number % 3, number * 1_500)).collect();
    let mut comparison = Comparison::new(3);
    compare(&mut comparison, &filled(15_000, &[]), &filled(15_000, &left_out));
    assert!(comparison.differences().len() >= 3);
    assert_eq!(comparison.question(), None);
}

#[test]
fn messages_that_follow_each_other_are_one_range() {
    let left_out: Vec<_> = (5..=1100).chain([1102]).map(|sequence| (1, sequence)).collect();
    let mut comparison = Comparison::new(usize::MAX);
    compare(&mut comparison, &filled(1_200, &[(0, 7)]), &filled(1_200, &left_out));
    let mut expected = Vec::new();
    for (publisher, first, last, missing) in
        [(0, 7, 7, Side::Here), (1, 5, 1100, Side::There), (1, 1102, 1102, Side::There)]
    {
        expected.push(DifferentRange { publisher: id(publisher), first, last, missing: Some(missing) });
    }
    let mut ranges = comparison.ranges();
    ranges.sort_by_key(|range| (range.missing == Some(Side::There), range.first));
    assert_eq!(ranges, expected);
}

#[test]
fn messages_that_one_log_has_removed_are_no_difference() {
    let whole = filled(15_000, &[]);
    let (removed, other) = (filled(15_000, &[]), filled(15_000, &[(2, 14_000)]));
    assert!(!removed.maintenance().remove(Which::All, None).unwrap().is_empty());
    let mut comparison = Comparison::new(100);
    compare(&mut comparison, &whole, &removed);
    // The sums of removed records are kept, so nothing is looked at.
    assert_eq!((comparison.differences(), comparison.publishers().count()), (&[][..], 0));
    let mut comparison = Comparison::new(100);
    compare(&mut comparison, &removed, &other);
    let expected = (id(2), 14_000, Some(5), None);
    let is_kept = removed.reader().kept_from(id(2)).unwrap() <= 14_000;
    assert_eq!(found(&comparison), BTreeSet::from_iter(is_kept.then_some(expected)));
    assert_eq!(comparison.publishers().collect::<Vec<_>>(), [id(2)]);
    // A difference in the removed files is not found, and the publisher is named.
    let early = filled(15_000, &[(2, 10)]);
    let mut comparison = Comparison::new(100);
    compare(&mut comparison, &removed, &early);
    assert_eq!((found(&comparison).len(), comparison.publishers().count()), (0, 1));
}

#[test]
fn an_answer_to_another_question_is_refused() {
    let mut comparison = Comparison::new(1);
    assert_eq!(comparison.handle_answer(Side::Here, Answer::Messages(Vec::new())), Err(BadAnswer));
    for side in [Side::Here, Side::There] {
        let digest = u64::from(side == Side::Here);
        comparison.handle_answer(side, Answer::Digests(Box::new([digest; 256]))).unwrap();
    }
    let Some(Question::Publishers(ranges)) = comparison.question().cloned() else { panic!() };
    let outside = PublisherId::new(u64::from(ranges.last().unwrap() + 1) << 56);
    let digest = PublisherDigest { publisher: outside, highest: 1, sum: 1 };
    assert_eq!(comparison.handle_answer(Side::There, Answer::Publishers(vec![digest])), Err(BadAnswer));
}
