//! The records of queues in the log: they name messages by position and by bookmark, and records of
//! version 1 stay readable (docs/journal-format.md).

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use quire_broker::{Event, OpenError, QueueSettings};
use quire_command::*;
use quire_journal::*;
use quire_queue::{LeaseRun, Leasing, Logged, NamedRun, Names, Semantics, Verdict};

use crate::pair::*;
use crate::queue_pair::*;

/// Asserts that every record of a queue names each of its messages by the bookmark of the message.
/// Gives how many messages were named.
pub fn check_names(pair: &Pair) -> usize {
    let reader = pair.broker.journal().reader();
    let (mut published, mut named) = (BTreeMap::new(), 0);
    let mut cursor = reader.cursor(Position::ZERO);
    while let Some(batch) = cursor.next(reader.persisted(), &AllTopics).unwrap() {
        for record in batch.records() {
            let mut check = |first: Position, names: Names| {
                let bookmarks = names.into_iter().flat_map(NamedRun::bookmarks);
                for (position, bookmark) in (first.get()..).zip(bookmarks) {
                    assert_eq!(bookmark, Some(published[&position]), "the message at {position}");
                    named += 1;
                }
            };
            match record.kind {
                RecordKind::Publish => drop(published.insert(record.position.get(), record.bookmark())),
                RecordKind::Acknowledge => {
                    for logged in Logged::read(record.data, record.position).map(Result::unwrap) {
                        if let Logged::Changed { first, last, names, .. } = logged {
                            let count: u64 = names.iter().map(|run| run.count).sum();
                            assert_eq!(count, last.get() - first.get() + 1);
                            check(first, names);
                        }
                    }
                }
                RecordKind::Lease => {
                    for run in LeaseRun::read(record.data, record.position).map(Result::unwrap) {
                        check(run.first, run.names);
                    }
                }
                RecordKind::Delete => (),
            }
        }
    }
    named
}

/// Two publishers, 1 and 3, in turn on `jobs`.
fn publish_in_turn(pair: &mut Pair, sequences: std::ops::RangeInclusive<u64>) {
    for sequence in sequences {
        pair.publish(1, sequence, "jobs", "1");
        pair.publish(3, sequence, "jobs", "3");
    }
    pair.turn();
}

fn working(settings: QueueSettings) -> Pair {
    let mut pair = with_queues([settings]);
    pair.client(1, "first");
    pair.client(2, "worker");
    pair.client(3, "second");
    pair
}

#[test]
fn each_kind_of_change_names_its_messages_by_bookmark() {
    let settings = QueueSettings {
        record_leases: true,
        max_cancels: Some(1),
        retry_delay_ns: vec![1_000_000],
        lease_period_ns: Some(10_000_000_000),
        expiration_ns: Some(100_000_000_000),
        ..queue("jobs")
    };
    let mut pair = working(settings);
    pair.subscribe(2, &consume(1, "jobs", 6));
    publish_in_turn(&mut pair, 1..=20);
    let held = pair.take_queued(2);
    let verdicts = [
        Verdict::Acknowledge,
        Verdict::Acknowledge,
        Verdict::Cancel,
        Verdict::CancelWithDelay { delay_ms: 50 },
        Verdict::Release,
        Verdict::Expire,
    ];
    for (message, verdict) in held.iter().zip(verdicts) {
        pair.settle(2, "jobs", verdict, std::slice::from_ref(message));
    }
    pair.pass(Duration::from_secs(1));
    // Some of them again, above `max_cancels`.
    let held = pair.take_queued(2);
    pair.settle(2, "jobs", Verdict::Cancel, &held);
    // Leases run out, and the waiting messages expire.
    pair.pass(Duration::from_secs(200));
    assert_eq!(pair.figure("jobs", "depth"), 0);
    assert!(check_names(&pair) > 60);
}

#[test]
fn at_most_once_messages_and_barriers_are_named_by_bookmark() {
    let settings = QueueSettings {
        semantics: Semantics::AtMostOnce,
        record_leases: true,
        barrier_expression: Some("/b = 1".into()),
        ..queue("jobs")
    };
    let mut pair = working(settings);
    pair.publish(1, 1, "jobs", "{}");
    pair.publish(3, 1, "jobs", "{\"b\": 1}");
    pair.publish(3, 2, "jobs", "{}");
    pair.turn();
    pair.subscribe(2, &consume(1, "jobs", 10));
    pair.turn();
    let held = pair.take_queued(2);
    pair.settle(2, "jobs", Verdict::Acknowledge, &held);
    pair.pass(Duration::from_secs(10));
    // Two were taken and delivered, and one was released.
    assert_eq!(check_names(&pair), 5);
}

#[test]
fn messages_that_nobody_holds_are_named_by_bookmark() {
    let settings = QueueSettings {
        leasing: Leasing::Sublease,
        target_queue_depth: Some(4),
        record_leases: true,
        ..queue("jobs")
    };
    let mut pair = working(settings);
    publish_in_turn(&mut pair, 1..=10);
    // By bookmark: one that is active, and one beyond the target depth.
    let first = pair.publisher_of("first");
    pair.settle_bookmarks(2, "jobs", Verdict::Acknowledge, &[(first, 1), (first, 9)]);
    assert_eq!(check_names(&pair), 4);
    // By filter, with and without looking at the messages.
    for filter in ["/ = 3", ""] {
        let (verdict, command, acks) = (Verdict::Acknowledge, 0, Acks::default());
        let messages = Selection::Matching(filter);
        let settle = Settle { verdict, command, acks, queue: "jobs", messages, reason: "" };
        pair.send(2, &Command::Settle(settle));
        pair.pass(Duration::from_secs(1));
    }
    assert!(check_names(&pair) > 4);
}

/// Ends the server, and appends a record to its log.
fn append(pair: Pair, record: &NewRecord<'_>) -> std::sync::Arc<MemoryDisk> {
    let Pair { broker, disk, .. } = pair;
    std::mem::forget(broker);
    let options = Options { segment_size: 256 * 1024, ..config().journal_options() };
    let (mut journal, _) = Journal::driven_by_hand(disk.clone(), Path::new("journal"), &options).unwrap();
    let timestamp = journal.last_timestamp();
    journal.append(&NewRecord { timestamp, ..*record }).unwrap();
    journal.submit();
    journal.write_waiting();
    drop(journal);
    disk
}

fn record_of_changes<'a>(queue: &'a str, data: &'a [u8]) -> NewRecord<'a> {
    NewRecord {
        kind: RecordKind::Acknowledge,
        message_type: 0,
        publisher: PublisherId::of_instance("test", "queues"),
        sequence: 0,
        timestamp: Timestamp::from_ns(0),
        topic: queue,
        correlation_id: b"",
        expiration_s: None,
        attributes: Attributes::NONE,
        data,
    }
}

fn append_changes(pair: Pair, data: &[u8]) -> std::sync::Arc<MemoryDisk> {
    append(pair, &record_of_changes("jobs", data))
}

fn three_of_six_acknowledged() -> Pair {
    let mut pair = working(queue("jobs"));
    pair.subscribe(2, &consume(1, "jobs", 10));
    publish_all(&mut pair, 1..=6);
    let held = pair.take_queued(2);
    pair.settle(2, "jobs", Verdict::Acknowledge, &held[1..=1]);
    pair
}

#[test]
fn a_log_with_records_of_both_versions_is_read() {
    // Version 1: the first message, and the two at the positions 4 and 5, are acknowledged.
    let disk = append_changes(three_of_six_acknowledged(), &[1, 2, (1 << 3) | 1, 4]);
    let mut pair = Pair::on(disk, queue_config([queue("jobs")]));
    pair.client(2, "worker");
    pair.subscribe(2, &consume(1, "jobs", 10));
    pair.turn();
    assert_eq!(data(&pair.take_queued(2)), ["3", "6"]);
}

#[test]
fn a_record_of_a_group_or_of_a_later_version_keeps_the_server_from_starting() {
    let change = [1, 2, 0];
    for (header, named) in [([16, 8], "the group 4"), ([24, 0], "the version 3")] {
        let disk = append_changes(three_of_six_acknowledged(), &[&header[..], &change].concat());
        let options = Options { segment_size: 256 * 1024, ..config().journal_options() };
        let (journal, _) = Journal::driven_by_hand(disk, Path::new("journal"), &options).unwrap();
        let opened = quire_broker::Broker::new(queue_config([queue("jobs")]), journal);
        let error = opened.err().unwrap();
        assert!(matches!(error, OpenError::Journal(JournalError::LaterRecord { .. })), "{error}");
        let text = error.to_string();
        assert!(text.contains(named) && text.contains("the record at position 8"), "{text}");
    }
}

#[test]
fn a_record_that_is_not_a_list_of_changes_keeps_the_server_from_starting() {
    // The first message is acknowledged, and the rest is not a change.
    let disk = append_changes(three_of_six_acknowledged(), &[1, 2, 0x80]);
    let options = Options { segment_size: 256 * 1024, ..config().journal_options() };
    let (journal, _) = Journal::driven_by_hand(disk, Path::new("journal"), &options).unwrap();
    let error = quire_broker::Broker::new(queue_config([queue("jobs")]), journal).err().unwrap();
    assert!(matches!(error, OpenError::Journal(JournalError::LaterRecord { .. })), "{error}");
    let text = error.to_string();
    assert!(text.contains("the record at position 8") && text.contains("not a list of changes"), "{text}");
}

#[test]
fn a_record_of_a_later_version_of_a_queue_that_is_not_configured_stops_nobody() {
    let later = [24, 0, 1, 2, 0];
    let disk = append(three_of_six_acknowledged(), &record_of_changes("another", &later));
    let mut pair = Pair::on(disk, queue_config([queue("jobs")]));
    pair.client(2, "worker");
    pair.subscribe(2, &consume(1, "jobs", 10));
    pair.turn();
    assert_eq!(data(&pair.take_queued(2)), ["1", "3", "4", "5", "6"]);
}

#[test]
fn a_record_that_is_passed_over_when_a_removed_queue_is_counted_is_in_the_log_of_the_server() {
    let mut pair = three_of_six_acknowledged();
    // The file says that the queue was there.
    pair.pass(Duration::from_secs(20));
    let pair = pair.restart(queue_config([queue("jobs")]));
    let disk = append_changes(pair, &[24, 0, 1, 2, 0]);
    let mut pair = Pair::on(disk, queue_config([queue("other")]));
    pair.turn();
    let passed_over = |event: &Event| match event {
        Event::QueueRecordPassedOver { queue, reason } => Some((queue.clone(), reason.clone())),
        _ => None,
    };
    let said: Vec<_> = pair.log.iter().filter_map(passed_over).collect();
    assert!(said.len() == 1 && said[0].0 == "jobs" && said[0].1.contains("the version 3"), "{:?}", pair.log);
}

/// The data of what a worker gets after a restart from a log with three messages and a dead letter
/// of the second position, which came from this instance or from another one.
fn left_after_a_dead_letter(path: InstancePath<'_>) -> Vec<String> {
    let settings = || QueueSettings { dead_letter_topic: Some("dead".into()), ..queue("jobs") };
    let mut pair = working(settings());
    publish_all(&mut pair, 1..=3);
    let mut buffer = AttributesBuffer::default();
    let position = (!path.is_empty()).then_some(Position::new(9));
    let attributes = buffer.encode(&NewAttributes { path, position, ..NewAttributes::default() }).unwrap();
    let letter = NewRecord {
        kind: RecordKind::Publish,
        message_type: 1,
        publisher: PublisherId::of_instance("test", "dead letters"),
        sequence: 1,
        attributes,
        ..record_of_changes("dead", br#"{"queue": "jobs", "position": 2, "reason": ["forced_expire"]}"#)
    };
    let mut pair = Pair::on(append(pair, &letter), queue_config([settings()]));
    pair.client(2, "worker");
    pair.subscribe(2, &consume(1, "jobs", 10));
    pair.turn();
    data(&pair.take_queued(2)).into_iter().map(ToOwned::to_owned).collect()
}

#[test]
fn a_dead_letter_that_came_back_from_another_instance_expires_no_message() {
    assert_eq!(left_after_a_dead_letter(InstancePath::EMPTY), ["1", "3"]);
    // This instance lost its log, and another one sent the letter back. The position in the letter
    // is that of the lost log.
    let mut path = InstancePathBuffer::default();
    path.push(Instance { name: "other", group: "other" }).unwrap();
    assert_eq!(left_after_a_dead_letter(path.as_path()), ["1", "2", "3"]);
}
