//! Queues over restarts: the messages that return, the position where recovery begins, and the
//! files that the log must keep.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use quire_broker::{BrokerConfig, Event, QueueSettings};
use quire_command::*;
use quire_journal::{Disk, MemoryDisk, Position, Which};
use quire_queue::{Semantics, Verdict};

use crate::faulty_disk::{Call, FaultyDisk};
use crate::pair::*;
use crate::queue_pair::*;

/// A publisher 1 and a worker 2 on `jobs`.
fn start(mut pair: Pair, max_backlog: u32) -> Pair {
    pair.client(1, "publisher");
    pair.client(2, "worker");
    pair.subscribe(2, &consume(1, "jobs", max_backlog));
    pair.turn();
    pair
}

fn working(settings: &QueueSettings, max_backlog: u32) -> Pair {
    start(with_queues([settings.clone()]), max_backlog)
}

fn again(pair: Pair, settings: &QueueSettings, max_backlog: u32) -> Pair {
    start(pair.restart(queue_config([settings.clone()])), max_backlog)
}

/// Lets the file `queues.ack` be written.
fn save(pair: &mut Pair) {
    pair.pass(Duration::from_secs(11));
    pair.turn();
}

#[test]
fn a_client_with_the_name_of_the_instance_is_another_publisher() {
    let mut pair = with_queues([queue("jobs")]);
    pair.client(1, "test");
    pair.client(2, "worker");
    pair.subscribe(2, &consume(1, "jobs", 100));
    for sequences in [1..=3, 4..=6] {
        publish_all(&mut pair, sequences.clone());
        let messages = pair.take_queued(2);
        assert_eq!(data(&messages), sequences.map(|n| n.to_string()).collect::<Vec<_>>());
        pair.settle(2, "jobs", Verdict::Acknowledge, &messages);
    }
}

fn forget_points(pair: &Pair) {
    pair.disk.remove(Path::new("journal/queues.ack")).unwrap();
}

#[test]
fn rule_18_all_that_is_unacknowledged_comes_back_and_nothing_else() {
    let settings = queue("jobs");
    let mut pair = working(&settings, 100);
    publish_all(&mut pair, 1..=50);
    let held = pair.take_queued(2);
    let (done, left): (Vec<_>, Vec<_>) =
        held.into_iter().partition(|message| message.data.parse::<u64>().unwrap() % 3 == 0);
    pair.settle(2, "jobs", Verdict::Acknowledge, &done);
    for loses_points in [false, true] {
        save(&mut pair);
        if loses_points {
            forget_points(&pair);
        }
        pair = again(pair, &settings, 100);
        assert_eq!(data(&pair.take_queued(2)), data(&left));
    }
}

#[test]
fn an_acknowledgement_that_was_not_persisted_may_be_lost_and_the_message_comes_back() {
    let settings = queue("jobs");
    let mut pair = working(&settings, 10);
    publish_all(&mut pair, 1..=2);
    let held = pair.take_queued(2);
    pair.writes_at_once = false;
    pair.settle(2, "jobs", Verdict::Acknowledge, &held[..1]);
    assert_eq!(pair.figure("jobs", "depth"), 1);
    let mut pair = again(pair, &settings, 10);
    assert_eq!(data(&pair.take_queued(2)), ["1", "2"]);
}

#[test]
fn rule_18_a_recovery_point_counts_once_and_when_it_is_changed() {
    let mut pair = working(&queue("other"), 0);
    publish_all(&mut pair, 1..=3);
    let now = QueueSettings { recovery_point: Some("now".into()), ..queue("jobs") };
    // New, at the end of the log: what is there does not enter.
    let mut pair = again(pair, &now, 10);
    assert_eq!(pair.take_queued(2), []);
    publish_all(&mut pair, 4..=5);
    assert_eq!(data(&pair.take_queued(2)), ["4", "5"]);
    // The same point again is not `now` again, also when the file is lost.
    for loses_points in [false, true] {
        save(&mut pair);
        if loses_points {
            forget_points(&pair);
        }
        pair = again(pair, &now, 10);
        let held = pair.take_queued(2);
        assert_eq!(data(&held), ["4", "5"], "{loses_points}");
    }
    let held = pair.publisher_of("publisher");
    pair.settle_bookmarks(2, "jobs", Verdict::Acknowledge, &[(held, 4)]);
    save(&mut pair);
    // Another point: from there on, without what was acknowledged.
    let mut pair = again(pair, &queue("jobs"), 10);
    assert_eq!(data(&pair.take_queued(2)), ["1", "2", "3", "5"]);
    let second = format!("{}|2|", pair.publisher_of("publisher"));
    let behind_second = QueueSettings { recovery_point: Some(second), ..queue("jobs") };
    let mut pair = again(pair, &behind_second, 10);
    assert_eq!(data(&pair.take_queued(2)), ["3", "5"]);
    let later = QueueSettings { recovery_point: Some("20380101T000000Z".into()), ..queue("jobs") };
    assert_eq!(again(pair, &later, 10).take_queued(2), []);
}

#[test]
fn recovery_begins_where_everything_before_is_settled() {
    let settings = queue("jobs");
    let mut pair = working(&settings, 1000);
    assert_eq!(pair.broker.needed_position(), Some(Position(1)));
    publish_all(&mut pair, 1..=600);
    let held = pair.take_queued(2);
    pair.settle(2, "jobs", Verdict::Acknowledge, &held[..400]);
    pair.settle(2, "jobs", Verdict::Acknowledge, &held[500..]);
    assert_eq!(pair.broker.needed_position(), Some(Position(1)), "until it is saved, all of it");
    save(&mut pair);
    assert_eq!(pair.broker.needed_position(), Some(Position(401)));
    let mut pair = again(pair, &settings, 1000);
    assert_eq!(data(&pair.take_queued(2)), data(&held[400..500]));
    assert_eq!(pair.broker.needed_position(), Some(Position(401)));
}

#[test]
fn an_idle_queue_holds_up_nothing() {
    let mut pair = working(&queue("jobs"), 10);
    publish_all(&mut pair, 1..=1);
    let held = pair.take_queued(2);
    pair.settle(2, "jobs", Verdict::Acknowledge, &held);
    (2..=100).for_each(|sequence| pair.publish(1, sequence, "elsewhere", "x"));
    pair.turn();
    save(&mut pair);
    assert!(pair.broker.needed_position().unwrap() > Position(100));
    assert_eq!(Pair::new().broker.needed_position(), None);
}

/// Publishes until the log continues in another file.
fn fill_a_file(pair: &mut Pair, topic: &str, first: u64) {
    let data = "x".repeat(8 * 1024);
    (first..first + 40).for_each(|sequence| pair.publish(1, sequence, topic, &data));
    pair.turn();
}

#[test]
fn a_journal_file_is_free_a_second_after_its_last_message_was_acknowledged() {
    let mut pair = working(&queue("jobs"), 1000);
    fill_a_file(&mut pair, "jobs", 1);
    let held = pair.take_queued(2);
    pair.pass(Duration::from_secs(11));
    pair.settle(2, "jobs", Verdict::Acknowledge, &held[..39]);
    assert_eq!(pair.broker.needed_position(), Some(Position(1)));
    pair.pass(Duration::from_secs(1));
    let needed = pair.broker.needed_position().unwrap();
    assert_eq!(needed, Position(40));
    let file = pair.broker.journal().sidecars().needs();
    assert_eq!(file, Some(needed), "a start after a crash needs no more");
}

#[test]
fn an_acknowledgement_that_frees_no_journal_file_is_saved_with_those_of_ten_seconds() {
    let mut pair = working(&queue("jobs"), 1000);
    publish_all(&mut pair, 1..=10);
    let held = pair.take_queued(2);
    pair.pass(Duration::from_secs(11));
    pair.settle(2, "jobs", Verdict::Acknowledge, &held[..5]);
    pair.pass(Duration::from_secs(9));
    assert_eq!(pair.broker.needed_position(), Some(Position(1)));
    pair.pass(Duration::from_secs(1));
    assert_eq!(pair.broker.needed_position(), Some(Position(6)));
}

#[test]
fn a_queue_without_messages_frees_the_journal_files_that_other_topics_fill() {
    let mut pair = working(&queue("jobs"), 10);
    pair.pass(Duration::from_secs(11));
    for round in 0..3 {
        fill_a_file(&mut pair, "elsewhere", 1 + 40 * round);
        pair.pass(Duration::from_secs(1));
        assert_eq!(pair.broker.needed_position(), Some(Position(41 + 40 * round)));
    }
}

/// A worker on `jobs`, on a disk that refuses `queues.ack` while the value is set.
fn on_a_disk_that_refuses_points(settings: &QueueSettings, refuses: &Arc<AtomicBool>) -> Pair {
    let (disk, refuses) = (Arc::new(MemoryDisk::new(1 << 30)), refuses.clone());
    let faulty = FaultyDisk::new(disk.clone(), move |call| match call {
        Call::Create(path) | Call::Rename(path)
            if path.to_string_lossy().contains("queues.ack") && refuses.load(Ordering::Relaxed) =>
        {
            Err(io::Error::other("the disk refused the call"))
        }
        _ => Ok(()),
    });
    start(Pair::over(Arc::new(faulty), disk, queue_config([settings.clone()])), 1000)
}

/// Removes every journal file that may go; gives their number.
fn remove_files(pair: &Pair) -> usize {
    let needed = pair.broker.needed_position();
    pair.broker.journal().maintenance().remove(Which::All, needed).unwrap().len()
}

fn count_refused_points(pair: &Pair) -> usize {
    pair.log.iter().filter(|event| matches!(event, Event::QueuePointsNotSaved { .. })).count()
}

#[test]
fn journal_files_stay_until_the_settled_positions_are_written() {
    // Where the queue begins is in `queues.ack` and in the first record of the log. A restart
    // without both begins at the end of the log.
    let settings = QueueSettings { recovery_point: Some("now".into()), ..queue("jobs") };
    for becomes_writable in [false, true] {
        let refuses = Arc::new(AtomicBool::new(true));
        let mut pair = on_a_disk_that_refuses_points(&settings, &refuses);
        fill_a_file(&mut pair, "jobs", 1);
        let held = pair.take_queued(2);
        pair.settle(2, "jobs", Verdict::Acknowledge, &held);
        publish_all(&mut pair, 41..=42);
        save(&mut pair);
        assert!(count_refused_points(&pair) > 0);
        if becomes_writable {
            refuses.store(false, Ordering::Relaxed);
            // Nothing was settled since the write that failed.
            save(&mut pair);
        }
        let (needed, removed_count) = (pair.broker.needed_position(), remove_files(&pair));
        let mut pair = again(pair, &settings, 1000);
        assert_eq!(data(&pair.take_queued(2)), ["41", "42"], "writable: {becomes_writable}");
        assert_eq!(needed > Some(Position(40)), becomes_writable);
        assert_eq!(removed_count > 0, becomes_writable);
    }
}

#[test]
fn a_queue_begins_once_although_the_process_dies_before_the_file_names_it() {
    let now = |name| QueueSettings { recovery_point: Some("now".into()), ..queue(name) };
    let dies_before_it_is_written = |pair: Pair, config| {
        let path = Path::new("journal/queues.ack");
        let points = pair.disk.read(path).unwrap();
        let mut pair = start(pair.restart(config), 0);
        publish_all(&mut pair, 4..=5);
        pair.disk.create(path, points.len() as u64).unwrap().write_at(&points, 0).unwrap();
        pair
    };
    // A new queue, and one with another recovery point than before.
    for other in ["other", "jobs"] {
        let mut pair = working(&queue(other), 0);
        publish_all(&mut pair, 1..=3);
        save(&mut pair);
        let queues = if other == "other" { vec![queue("other"), now("jobs")] } else { vec![now("jobs")] };
        let pair = dies_before_it_is_written(pair, queue_config(queues.clone()));
        let mut pair = start(pair.restart(queue_config(queues)), 10);
        assert_eq!(data(&pair.take_queued(2)), ["4", "5"], "{other}");
    }
    // A queue without messages that was removed and is defined again is new.
    let pair = working(&now("jobs"), 0);
    let mut pair = again(pair, &queue("other"), 0);
    publish_all(&mut pair, 1..=3);
    save(&mut pair);
    let queues = [queue("other"), now("jobs")];
    let mut pair = start(pair.restart(queue_config(queues)), 10);
    assert_eq!(pair.take_queued(2), []);
}

#[test]
fn a_write_of_the_settled_positions_that_fails_is_repeated() {
    let refuses = Arc::new(AtomicBool::new(true));
    let mut pair = on_a_disk_that_refuses_points(&queue("jobs"), &refuses);
    assert_eq!(count_refused_points(&pair), 1);
    pair.pass(Duration::from_secs(60));
    let refused = count_refused_points(&pair);
    assert!((5..=7).contains(&refused), "{refused} writes in a minute");
    refuses.store(false, Ordering::Relaxed);
    save(&mut pair);
    assert_eq!(pair.broker.journal().sidecars().needs(), Some(Position(1)));
    pair.pass(Duration::from_secs(60));
    assert_eq!(count_refused_points(&pair), refused);
}

#[test]
fn a_dead_letter_is_published_once_wherever_the_process_dies() {
    let settings =
        QueueSettings { max_cancels: Some(0), dead_letter_topic: Some("dead".into()), ..queue("jobs") };
    // The process dies before the first, between, and after the writes that the expiry causes.
    for writes in 0..4 {
        let mut pair = working(&settings, 10);
        publish_all(&mut pair, 1..=1);
        let held = pair.take_queued(2);
        pair.writes_at_once = false;
        pair.settle_as(2, "jobs", Verdict::Cancel, &held, 0, Acks::default());
        for _ in 0..writes {
            pair.one_turn();
            pair.write();
        }
        let mut pair = again(pair, &settings, 10);
        let held = pair.take_queued(2);
        assert_eq!(held.len(), usize::from(writes == 0), "after {writes} writes");
        if !held.is_empty() {
            pair.settle(2, "jobs", Verdict::Cancel, &held);
        }
        pair.client(3, "auditor");
        pair.subscribe(3, &replay(1, "dead", "0"));
        pair.turn();
        assert_eq!(pair.take_data(3).len(), 1, "after {writes} writes");
    }
}

#[test]
fn what_waits_for_its_dead_letter_is_still_needed() {
    let dead = QueueSettings { dead_letter_topic: Some("dead".into()), ..queue("jobs") };
    let mut pair = working(&dead, 0);
    publish_all(&mut pair, 1..=3);
    let mut pair = again(pair, &dead, 0);
    pair.reads_at_once = false;
    let purge = Settle {
        verdict: Verdict::Expire,
        command: 0,
        acks: Acks::default(),
        queue: "jobs",
        messages: Selection::Matching(""),
        reason: "",
    };
    pair.send(2, &Command::Settle(purge));
    pair.turn();
    assert_eq!((pair.figure("jobs", "depth"), pair.figure("jobs", "settled")), (0, 0));
    pair.reads_at_once = true;
    pair.run_reads();
    pair.turn();
    assert_eq!((pair.figure("jobs", "dead_letters"), pair.figure("jobs", "settled")), (3, 6));
}

#[test]
fn rule_14_beyond_the_target_depth_a_filter_reaches_nothing_and_a_bookmark_counts_later() {
    let settings = QueueSettings { target_queue_depth: Some(3), ..queue("jobs") };
    let mut pair = working(&settings, 0);
    publish_all(&mut pair, 1..=10);
    assert_eq!((pair.figure("jobs", "depth"), pair.figure("jobs", "inactive")), (3, 7));
    let publisher = pair.publisher_of("publisher");
    pair.settle_bookmarks(2, "jobs", Verdict::Acknowledge, &[(publisher, 5)]);
    assert_eq!(pair.figure("jobs", "deferred_acks"), 1);
    for restarts in [false, true] {
        if restarts {
            pair = again(pair, &settings, 0);
            assert_eq!(pair.figure("jobs", "deferred_acks"), 1);
        }
        let all = Settle {
            verdict: Verdict::Acknowledge,
            command: 0,
            acks: Acks::default(),
            queue: "jobs",
            messages: Selection::Matching(""),
            reason: "",
        };
        if !restarts {
            continue;
        }
        pair.send(2, &Command::Settle(all));
        pair.turn();
    }
    assert_eq!((pair.figure("jobs", "depth"), pair.figure("jobs", "inactive")), (3, 3));
    pair.subscribe(2, &consume(2, "jobs", 10));
    pair.turn();
    let held = pair.take_queued(2);
    assert_eq!(data(&held), ["4", "6", "7"]);
    pair.settle(2, "jobs", Verdict::Acknowledge, &held);
    assert_eq!(data(&pair.take_queued(2)), ["8", "9", "10"]);
    assert_eq!(pair.figure("jobs", "deferred_acks"), 0);
}

#[test]
fn a_barrier_that_was_released_is_not_released_again() {
    let settings = QueueSettings { barrier_expression: Some("/stop = true".into()), ..queue("jobs") };
    let mut pair = working(&settings, 10);
    pair.publish(1, 1, "jobs", r#"{"stop":true}"#);
    pair.publish(1, 2, "jobs", "{}");
    pair.turn();
    let sent = pair.take_queued(2);
    assert_eq!((sent[0].deliveries, sent[0].lease_ms, sent[1].deliveries), (0, 0, 1));
    let mut pair = again(pair, &settings, 10);
    assert_eq!(data(&pair.take_queued(2)), ["{}"]);
}

#[test]
fn ages_go_on_over_a_restart() {
    let settings = QueueSettings { expiration_ns: Some(10_000_000_000), ..queue("jobs") };
    let mut pair = working(&settings, 0);
    publish_all(&mut pair, 1..=1);
    pair.pass(Duration::from_secs(6));
    let mut pair = again(pair, &settings, 0);
    pair.pass(Duration::from_secs(3));
    assert_eq!(pair.figure("jobs", "depth"), 1);
    pair.pass(Duration::from_secs(1));
    assert_eq!((pair.figure("jobs", "depth"), pair.figure("jobs", "expired")), (0, 1));
}

#[test]
fn taken_messages_stay_taken() {
    let settings = QueueSettings { semantics: Semantics::AtMostOnce, ..queue("jobs") };
    let mut pair = working(&settings, 2);
    publish_all(&mut pair, 1..=3);
    assert_eq!(pair.take_queued(2).len(), 2);
    assert_eq!(data(&again(pair, &settings, 5).take_queued(2)), ["3"]);
}

#[test]
fn rule_19_what_a_queue_needs_is_not_removed() {
    use quire_journal::Which;
    let settings = queue("jobs");
    let mut pair = working(&settings, 1000);
    let filler = "x".repeat(50_000);
    let fill = |pair: &mut Pair, sequences: std::ops::RangeInclusive<u64>| {
        sequences.for_each(|sequence| {
            pair.publish(1, sequence, "elsewhere", &filler);
            pair.turn();
        });
    };
    fill(&mut pair, 1..=30);
    publish_all(&mut pair, 31..=31);
    fill(&mut pair, 32..=60);
    save(&mut pair);
    let held = pair.take_queued(2);
    let maintenance = pair.broker.journal().maintenance();
    let reader = pair.broker.journal().reader();
    assert!(!maintenance.remove(Which::All, None).unwrap().is_empty());
    let first = reader.first();
    assert!(first > Position(1) && first <= Position(31), "{first}");
    // The process dies; without a broker the file says what is needed.
    drop(maintenance);
    let mut pair = again(pair, &settings, 1000);
    assert_eq!(data(&pair.take_queued(2)), data(&held));
    assert_eq!(pair.broker.journal().maintenance().remove(Which::All, None).unwrap(), []);
    pair.settle(2, "jobs", Verdict::Acknowledge, &held);
    save(&mut pair);
    assert!(!pair.broker.journal().maintenance().remove(Which::All, None).unwrap().is_empty());
    assert!(pair.broker.journal().reader().first() > Position(31));
}

#[test]
fn journal_files_that_queues_ack_needs_are_kept_when_it_cannot_be_written() {
    let settings = queue("jobs");
    let fails = Arc::new(AtomicBool::new(false));
    let disk = Arc::new(MemoryDisk::new(1 << 30));
    let is_failing = fails.clone();
    let faulty = FaultyDisk::new(disk.clone(), move |call| match call {
        Call::Rename(path) if is_failing.load(Ordering::Relaxed) && path.ends_with("queues.ack") => {
            Err(std::io::ErrorKind::StorageFull.into())
        }
        _ => Ok(()),
    });
    let faulty = faulty.with_page_files(0);
    let mut pair = start(Pair::over(Arc::new(faulty), disk, queue_config([settings.clone()])), 1000);
    publish_all(&mut pair, 1..=1);
    let filler = "x".repeat(50_000);
    for sequence in 2..=60 {
        pair.publish(1, sequence, "elsewhere", &filler);
        pair.turn();
    }
    let held = pair.take_queued(2);
    pair.settle(2, "jobs", Verdict::Acknowledge, &held);
    pair.turn();
    fails.store(true, Ordering::Relaxed);
    save(&mut pair);
    assert!(pair.log.iter().any(|event| matches!(event, Event::QueuePointsNotSaved { .. })));
    fails.store(false, Ordering::Relaxed);
    assert_eq!(pair.broker.journal().maintenance().remove(Which::All, None).unwrap(), []);
    save(&mut pair);
    assert!(!pair.broker.journal().maintenance().remove(Which::All, None).unwrap().is_empty());
    let mut pair = again(pair, &settings, 1000);
    assert_eq!(pair.take_queued(2).len(), 0);
}

/// Rule G5 of journal management.
#[test]
fn rule_g5_what_is_queued_comes_from_archived_and_compressed_files_too() {
    use quire_journal::{SegmentState, Which};
    let settings = queue("jobs");
    let configured = || {
        let mut config = queue_config([settings.clone()]);
        config.transaction_log.journal_archive_directory = Some("archive".into());
        config
    };
    let mut pair = start(Pair::with(configured()), 4);
    let filler = "x".repeat(50_000);
    for sequence in (1..=120).step_by(2) {
        publish_all(&mut pair, sequence..=sequence);
        pair.publish(1, sequence + 1, "elsewhere", &filler);
        pair.turn();
    }
    let all: Vec<String> = (1..=120).step_by(2).map(|sequence| sequence.to_string()).collect();
    let held = pair.take_queued(2);
    assert_eq!(data(&held), all[..4]);
    let maintenance = pair.broker.journal().maintenance();
    let archived = maintenance.archive(Which::All).unwrap();
    assert!(archived.len() > 8, "{}", archived.len());
    let half = archived.iter().map(|segment| segment.size).sum::<u64>() / 2;
    maintenance.compress(Which::Beyond { size_max: half }).unwrap();
    let reader = pair.broker.journal().reader();
    let states: Vec<_> = reader.segments().iter().map(|segment| segment.state).collect();
    assert!(
        states.contains(&SegmentState::Archived) && states.contains(&SegmentState::Compressed),
        "{states:?}"
    );
    pair.settle(2, "jobs", Verdict::Acknowledge, &held);
    assert_eq!(data(&pair.take_queued(2)), all[4..8], "read from a file that was moved under the queue");
    drop((maintenance, reader));
    let mut pair = start(pair.restart(configured()), 1000);
    assert_eq!(data(&pair.take_queued(2)), all[4..]);
}

#[test]
fn messages_that_could_not_be_read_enter_the_queue_at_the_next_start() {
    let settings = QueueSettings { file_backed_metadata: true, ..queue("jobs") };
    for closes in [false, true] {
        let mut pair = working(&settings, 100);
        ["first", "second"].into_iter().zip(1..).for_each(|(data, sequence)| {
            pair.publish(1, sequence, "jobs", data);
        });
        pair.one_turn();
        pair.broker.write_journal();
        let name = pair.disk.list(Path::new("journal")).unwrap();
        let name = name.into_iter().find(|name| name.ends_with("0000000000.journal")).unwrap();
        let path = Path::new("journal").join(name);
        let bytes = pair.disk.read(&path).unwrap();
        let at = bytes.windows(6).position(|window| window == b"second").unwrap();
        let write = |pair: &Pair, byte: u8| {
            pair.disk.open(&path).unwrap().write_at(&[byte], at as u64).unwrap();
        };
        write(&pair, bytes[at] ^ 1);
        pair.one_turn();
        assert!(pair.broker.stats().journal_failed);
        assert_eq!(pair.take_queued(2), []);
        for _ in 0..3 {
            pair.now_ns += 61_000_000_000;
            pair.one_turn();
            pair.broker.write_journal();
            pair.run_reads();
            pair.one_turn();
            let next = pair.broker.next_timeout();
            assert!(next.is_none_or(|at| at.0 > pair.now_ns), "the broker never rests");
        }
        // The record can be read again.
        write(&pair, bytes[at]);
        let mut pair = if closes {
            let Pair { broker, disk, .. } = pair;
            broker.close().unwrap();
            start(Pair::on(disk, queue_config([settings.clone()])), 100)
        } else {
            again(pair, &settings, 100)
        };
        assert_eq!(data(&pair.take_queued(2)), ["first", "second"], "closes: {closes}");
    }
}

#[test]
fn an_at_most_once_queue_sends_nothing_after_a_failure_that_is_not_of_a_write() {
    let settings = QueueSettings { semantics: Semantics::AtMostOnce, ..queue("jobs") };
    let mut pair = working(&settings, 2);
    publish_all(&mut pair, 1..=5);
    let sent = pair.take_queued(2);
    assert_eq!(data(&sent), ["1", "2"]);
    pair.publish(1, 6, "jobs", "damaged");
    pair.one_turn();
    pair.broker.write_journal();
    let files = pair.disk.list(Path::new("journal")).unwrap();
    let file = files.iter().find(|name| name.ends_with("0000000000.journal")).unwrap();
    let path = &Path::new("journal").join(file);
    let bytes = pair.disk.read(path).unwrap();
    let at = bytes.windows(7).position(|window| window == b"damaged").unwrap();
    pair.disk.open(path).unwrap().write_at(b"D", at as u64).unwrap();
    pair.one_turn();
    assert!(pair.broker.stats().journal_failed && pair.broker.journal().failure().is_none());
    // Each acknowledgement frees a place in the backlog.
    pair.settle_as(2, "jobs", Verdict::Acknowledge, &sent, 0, Acks::default());
    for _ in 0..5 {
        pair.now_ns += 61_000_000_000;
        pair.one_turn();
        pair.broker.write_journal();
        pair.run_reads();
        let sent = pair.take_queued(2);
        assert_eq!(data(&sent), [""; 0], "their removal is not on stable storage");
    }
    pair.disk.open(path).unwrap().write_at(b"d", at as u64).unwrap();
    assert_eq!(data(&again(pair, &settings, 100).take_queued(2)), ["3", "4", "5", "damaged"]);
}

/// As [`again`], and the instance has another name than before.
fn renamed(pair: Pair, settings: &QueueSettings, name: &str) -> Pair {
    let config = BrokerConfig { name: name.into(), ..queue_config([settings.clone()]) };
    start(pair.restart(config), 100)
}

/// The numbers of the messages whose dead letters are in the log.
fn dead_letters(pair: &mut Pair) -> Vec<u64> {
    pair.client(3, "auditor");
    pair.subscribe(3, &replay(1, "dead", "0"));
    pair.turn();
    let letters = pair.take_data(3);
    let message =
        |letter: &String| serde_json::from_str::<serde_json::Value>(letter).unwrap()["message"].clone();
    letters.iter().map(|letter| message(letter).as_u64().unwrap()).collect()
}

#[test]
fn a_restart_under_another_name_delivers_no_settled_message_again() {
    let rename = |from: &str, to: &str| Event::InstanceRenamed { from: from.into(), to: to.into() };
    for (file_backed_metadata, saves, loses_points) in
        [(false, false, false), (false, true, false), (false, true, true), (true, true, false)]
    {
        let settings = QueueSettings {
            dead_letter_topic: Some("dead".into()),
            record_leases: true,
            file_backed_metadata,
            ..queue("jobs")
        };
        let mut pair = working(&settings, 100);
        publish_all(&mut pair, 1..=10);
        let held = pair.take_queued(2);
        let mut left: Vec<_> = data(&held).into_iter().map(str::to_owned).collect();
        // Each name acknowledges one message and expires one. The first message stays, so all of
        // the log has to be read.
        let names = ["first", "second", "third", "first"];
        let mut expired: Vec<u64> = Vec::new();
        for (round, name) in names.into_iter().enumerate() {
            let from = if round == 0 { "test" } else { names[round - 1] };
            let held = if round == 0 { held.clone() } else { pair.take_queued(2) };
            let case = format!("{name} after {from}: {file_backed_metadata} {saves} {loses_points}");
            assert_eq!(data(&held), left, "{case}");
            pair.settle(2, "jobs", Verdict::Acknowledge, &held[1..2]);
            pair.settle(2, "jobs", Verdict::Expire, &held[2..3]);
            expired.push(held[2].data.parse().unwrap());
            left.drain(1..3);
            if saves {
                pair.pass(Duration::from_secs(61));
                pair.turn();
                // The leases of the others ended meanwhile.
                pair.take_queued(2);
            }
            if loses_points {
                forget_points(&pair);
            }
            pair = renamed(pair, &settings, name);
            assert_eq!(pair.figure("jobs", "depth"), left.len() as u64, "{case}");
            assert_eq!(dead_letters(&mut pair), expired, "{case}");
            assert_eq!(
                pair.log.iter().find(|event| matches!(event, Event::InstanceRenamed { .. })),
                Some(&rename(from, name))
            );
        }
        let mut pair = renamed(pair, &settings, "first");
        assert!(!pair.log.iter().any(|event| matches!(event, Event::InstanceRenamed { .. })));
        assert_eq!(data(&pair.take_queued(2)), left);
    }
}

#[test]
fn a_client_cannot_publish_a_dead_letter_of_an_earlier_name() {
    let settings = QueueSettings { dead_letter_topic: Some("dead".into()), ..queue("jobs") };
    let mut pair = renamed(working(&settings, 100), &settings, "second");
    publish_all(&mut pair, 1..=1);
    for name in ["test", "second", "dead letters/test"] {
        pair.client(4, name);
        pair.publish(4, 1, "dead", r#"{"queue":"jobs","position":1}"#);
        pair.turn();
        pair.disconnect(4);
    }
    assert_eq!(data(&renamed(pair, &settings, "third").take_queued(2)), ["1"]);
}

#[test]
fn a_start_with_a_damaged_file_of_names_warns_and_recognizes_its_own_dead_letters() {
    let settings = QueueSettings { dead_letter_topic: Some("dead".into()), ..queue("jobs") };
    let mut pair = working(&settings, 100);
    publish_all(&mut pair, 1..=2);
    let held = pair.take_queued(2);
    pair.settle(2, "jobs", Verdict::Expire, &held[1..]);
    let file = Path::new("journal/instance-names.state");
    pair.disk.open(file).unwrap().write_at(b"x", 40).unwrap();
    let mut pair = again(pair, &settings, 100);
    let lost = |event: &&Event| matches!(event, Event::InstanceNamesLost { .. });
    assert!(pair.log.iter().find(lost).unwrap().to_string().contains("it is damaged"));
    assert_eq!(data(&pair.take_queued(2)), ["1"]);
    assert_eq!(again(pair, &settings, 100).log.iter().find(lost), None);
}
