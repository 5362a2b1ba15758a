//! A destination asks for what it lacks, and a source that gives some of it: against the lists of
//! the messages.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use quire_journal::*;
use quire_link::SequenceRanges;
use quire_link::reconcile::{Next, Reconciliation};
use quire_link::summary::*;
use quire_wire::link::{Given, Wanted};

fn id(publisher: u64) -> PublisherId {
    PublisherId::of_client_name(&publisher.to_string())
}

fn journal() -> Journal {
    Journal::in_memory(&Options { segment_size: 64 * 1024, ..Options::default() }).unwrap()
}

/// Appends a message of run 5, unless the log has it.
fn append(journal: &mut Journal, (publisher, sequence): Message, follows: Option<u64>) {
    let mut buffer = AttributesBuffer::default();
    let attributes = buffer.encode(&NewAttributes { run: 5, follows, ..NewAttributes::default() }).unwrap();
    let record = NewRecord {
        kind: RecordKind::Publish,
        message_type: 1,
        publisher,
        sequence,
        timestamp: Timestamp::from_ns(1),
        topic: "orders",
        correlation_id: b"",
        expiration_s: None,
        attributes,
        data: &[0; 100],
    };
    journal.append_late(&record).unwrap();
}

fn filled(messages: &BTreeSet<Message>) -> Journal {
    let mut journal = journal();
    messages.iter().for_each(|message| append(&mut journal, *message, None));
    journal.flush(Duration::from_secs(60)).unwrap();
    journal
}

/// Publisher and sequence.
type Message = (PublisherId, u64);

fn answer(question: &Question, journal: &Journal) -> Answer {
    match MemoryAnswer::begin(question) {
        Some(mut answer) => {
            while !answer.advance(journal, 2) {}
            answer.into_answer()
        }
        None => answer_from_log(question, &journal.reader()).unwrap().unwrap(),
    }
}

/// The requests of a reconciliation, carried out. The source leaves out some messages, and works on
/// a few sequences for one request.
struct Session {
    here: Journal,
    there: Journal,
    /// Messages of the source that do not go to the destination.
    left_out: BTreeSet<Message>,
    /// Of these, the ones that the destination gets for a hole.
    with_path: BTreeSet<Message>,
    wanted_count: usize,
    steps: usize,
}

impl Session {
    fn run(&mut self, settled: Settled) -> (Settled, SequenceRanges, u64) {
        let mut holes = SequenceRanges::default();
        for (publisher, first, last) in self.here.exact_holes(0, usize::MAX) {
            holes.insert(publisher, first, last);
        }
        let mut reconciliation = Reconciliation::new(settled, Arc::new(holes));
        (self.wanted_count, self.steps) = (0, 0);
        let messages = messages_of(&self.there);
        loop {
            self.steps += 1;
            assert!(self.steps < 100_000);
            match reconciliation.next_step() {
                Next::Ask(question) => {
                    let (here, there) = (answer(&question, &self.here), answer(&question, &self.there));
                    reconciliation.handle_answers(here, there).unwrap();
                }
                Next::Want(ranges) => {
                    let given = self.give(&ranges, &messages);
                    reconciliation.handle_given(&given).unwrap();
                }
                Next::Nothing => return reconciliation.finish(),
            }
        }
    }

    fn give(&mut self, ranges: &[Wanted], messages: &BTreeSet<Message>) -> Given {
        let mut given = Given::default();
        let mut budget = 7;
        for wanted in ranges {
            let mut next = wanted.first;
            let end = (wanted.publisher, wanted.last + 1);
            while let Some(message) = messages.range((wanted.publisher, next)..end).next() {
                if budget == 0 {
                    given.next = message.1;
                    return self.flushed(given);
                }
                budget -= 1;
                self.wanted_count += 1;
                let (publisher, sequence) = *message;
                if self.left_out.contains(message) && !(wanted.is_hole && self.with_path.contains(message)) {
                    given.left_out.push((publisher, sequence, sequence));
                } else {
                    append(&mut self.here, *message, None);
                    given.sent += 1;
                }
                next = sequence + 1;
            }
            given.done += 1;
        }
        self.flushed(given)
    }

    fn flushed(&mut self, given: Given) -> Given {
        self.here.submit();
        self.here.flush(Duration::from_secs(60)).unwrap();
        given
    }
}

fn messages_of(journal: &Journal) -> BTreeSet<Message> {
    let reader = journal.reader();
    let mut cursor = reader.cursor(Position::ZERO);
    let mut messages = BTreeSet::new();
    while let Some(batch) = cursor.next(reader.persisted(), &AllTopics).unwrap() {
        messages.extend(batch.records().map(|record| (record.publisher, record.sequence)));
    }
    messages
}

/// The fate of a message: it is in both logs, only here, only there, only there and left out, or
/// left out unless it is in a hole.
fn messages() -> impl Strategy<Value = BTreeMap<(u64, u64), usize>> {
    let sequence = prop_oneof![5 => 1u64..60, 2 => 1_000u64..1_060, 1 => 5_000u64..5_005];
    prop::collection::btree_map((0u64..4, sequence), 0usize..5, 0..120)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 80, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn everything_that_goes_to_the_destination_arrives_and_nothing_is_asked_for_again(found in messages()) {
        let (mut here, mut there) = (BTreeSet::new(), BTreeSet::new());
        let (mut left_out, mut with_path) = (BTreeSet::new(), BTreeSet::new());
        for ((publisher, sequence), fate) in found {
            let message = (id(publisher), sequence);
            if fate <= 1 {
                here.insert(message);
            }
            if fate != 1 {
                there.insert(message);
            }
            if fate >= 3 {
                left_out.insert(message);
            }
            if fate == 4 {
                with_path.insert(message);
            }
        }
        let mut session = Session {
            here: filled(&here), there: filled(&there), left_out, with_path, wanted_count: 0, steps: 0,
        };
        // Without *follows*, each sequence below another one follows the one before it.
        let is_in_hole = |message: &Message| {
            here.range((message.0, message.1)..=(message.0, u64::MAX)).next().is_some()
        };
        let stays_out = |message: &Message| {
            session.left_out.contains(message)
                && !(session.with_path.contains(message) && is_in_hole(message))
        };
        let expected: BTreeSet<_> =
            here.iter().copied().chain(there.iter().copied().filter(|message| !stays_out(message))).collect();
        let wanted: BTreeSet<_> = there.difference(&here).copied().collect();
        let missing: BTreeSet<_> = wanted.iter().copied().filter(|message| stays_out(message)).collect();
        let holes_before = here.clone();
        let (settled, told, sent) = session.run(Settled::default());
        prop_assert_eq!(messages_of(&session.here), expected.clone());
        prop_assert_eq!(session.wanted_count, wanted.len());
        prop_assert_eq!(sent as usize, wanted.len() - missing.len());
        // Of the messages that are left out, the holes are known. The knowledge of a publisher has
        // 63 of them.
        let told: BTreeSet<_> = told.iter().flat_map(|(publisher, first, last)| {
            (first..=last).map(move |sequence| (publisher, sequence))
        }).collect();
        prop_assert!(told.is_subset(&missing));
        for message in &missing {
            let is_hole = holes_before.range((message.0, message.1)..=(message.0, u64::MAX)).next().is_some();
            prop_assert!(!is_hole || told.contains(message), "{message:?}");
        }
        // Messages that arrived can make holes, which are filled the next time. Then no more come.
        let (settled, _, _) = session.run(settled);
        let log = messages_of(&session.here);
        let has_later = |message: &Message| {
            log.range((message.0, message.1 + 1)..=(message.0, u64::MAX)).next().is_some()
        };
        let comes = |message: &Message| {
            !session.left_out.contains(message)
                || (session.with_path.contains(message) && has_later(message))
        };
        let all: BTreeSet<_> =
            here.iter().copied().chain(there.iter().copied().filter(|message| comes(message))).collect();
        prop_assert_eq!(&log, &all);
        let (_, _, sent) = session.run(settled);
        prop_assert_eq!((sent, messages_of(&session.here)), (0, log));
    }
}

#[test]
fn what_was_left_out_is_not_asked_for_again_until_one_of_the_logs_changes_there() {
    let publisher = id(1);
    let there: BTreeSet<_> = (1..=3_000).map(|sequence| (publisher, sequence)).collect();
    let left_out: BTreeSet<_> = there.iter().copied().filter(|(_, sequence)| *sequence > 1_000).collect();
    let mut session = Session {
        here: journal(),
        there: filled(&there),
        left_out,
        with_path: BTreeSet::new(),
        wanted_count: 0,
        steps: 0,
    };
    let (settled, _, sent) = session.run(Settled::default());
    assert_eq!((sent, session.wanted_count), (1_000, 3_000));
    // The log here has changed in the first range.
    let (settled, _, _) = session.run(settled);
    assert!(session.wanted_count <= 1_024, "{}", session.wanted_count);
    let (settled, _, _) = session.run(settled);
    assert_eq!(session.wanted_count, 0);
    append(&mut session.there, (publisher, 3_001), None);
    session.there.flush(Duration::from_secs(60)).unwrap();
    let (_, _, sent) = session.run(settled);
    assert_eq!(sent, 1);
    assert!(session.wanted_count <= 1_024, "{}", session.wanted_count);
}

#[test]
fn a_result_without_progress_is_refused() {
    let publisher = id(1);
    let there: BTreeSet<_> = (1..=9).map(|sequence| (publisher, sequence)).collect();
    let (here, there) = (journal(), filled(&there));
    let mut reconciliation = Reconciliation::new(Settled::default(), Arc::default());
    let wanted = loop {
        match reconciliation.next_step() {
            Next::Ask(question) => {
                reconciliation.handle_answers(answer(&question, &here), answer(&question, &there)).unwrap();
            }
            Next::Want(ranges) => break ranges,
            Next::Nothing => panic!(),
        }
    };
    assert_eq!(wanted, [Wanted { publisher, first: 1, last: 9, is_hole: false }]);
    for (done, next) in [(0, 0), (0, 1), (0, 10), (2, 0)] {
        let given = Given { done, next, ..Given::default() };
        assert_eq!(reconciliation.handle_given(&given), Err(BadAnswer), "{done} {next}");
    }
    reconciliation.handle_given(&Given { done: 0, next: 4, ..Given::default() }).unwrap();
    assert_eq!(
        reconciliation.next_step(),
        Next::Want(vec![Wanted { publisher, first: 4, last: 9, is_hole: false }])
    );
    reconciliation.handle_given(&Given { done: 1, next: 0, ..Given::default() }).unwrap();
    assert_eq!(reconciliation.next_step(), Next::Nothing);
}
