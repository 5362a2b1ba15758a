//! Queues that are created with the recovery point `epoch` (docs/queues.md section 14): they get
//! the messages of the log in order, and later messages only after them. Restarts, drops and
//! further messages while the log is read change nothing about that.

use std::path::Path;
use std::time::Duration;

use quire_broker::QueueSettings;
use quire_command::*;
use quire_journal::{Disk, Which};
use quire_types::Verdict;

use crate::pair::*;
use crate::queue_defining::*;
use crate::queue_pair::*;

fn from_epoch(name: &str) -> QueueSettings {
    QueueSettings { recovery_point: Some("epoch".into()), ..over(name, "jobs") }
}

fn texts(sequences: std::ops::RangeInclusive<u64>) -> Vec<String> {
    sequences.map(|sequence| sequence.to_string()).collect()
}

/// Sends the creation and does everything up to its answer, without reading the log for the queue.
fn begin(pair: &mut Pair, settings: &QueueSettings) {
    assert_eq!(create_without_reads(pair, settings), Ok(true));
}

fn create_without_reads(pair: &mut Pair, settings: &QueueSettings) -> Result<bool, Code> {
    pair.reads_at_once = false;
    let text = settings.to_json();
    pair.send(3, &Command::DefineQueue { command: COMMAND, action: DefineQueue::Create { settings: &text } });
    pair.turn();
    // The definition is written; the turns after it ask for the first portion.
    pair.run_reads();
    pair.turn();
    Ok(!answered(pair)?["existed"].as_bool().unwrap())
}

/// Publishes enough for several portions of the log.
fn publish_many(pair: &mut Pair, sequences: std::ops::RangeInclusive<u64>) {
    let filler = "x".repeat(20_000);
    for sequence in sequences {
        pair.publish(1, sequence, "jobs", &format!("{sequence} {filler}"));
        pair.turn();
    }
}

/// The numbers in front of the messages that the worker gets.
fn numbers(pair: &mut Pair) -> Vec<u64> {
    let messages = pair.take_queued(2);
    messages.iter().map(|message| message.data.split(' ').next().unwrap().parse().unwrap()).collect()
}

#[test]
fn a_queue_from_the_epoch_gets_the_messages_of_the_log_and_then_later_ones() {
    let mut pair = start();
    publish_all(&mut pair, 1..=3);
    assert_eq!(create(&mut pair, &from_epoch("queue")), Ok(true));
    assert_eq!(create(&mut pair, &from_epoch("queue")), Ok(false));
    assert_eq!(create(&mut pair, &over("queue", "jobs")), Err(Code::QueueExists));
    publish_all(&mut pair, 4..=5);
    pair.subscribe(2, &consume(1, "queue", 10));
    assert_eq!(taken(&mut pair), texts(1..=5));
    assert_eq!(pair.figure("queue", "catching_up"), 0);
}

#[test]
fn an_empty_log_is_read_at_once() {
    let mut pair = start();
    create(&mut pair, &from_epoch("queue")).unwrap();
    assert_eq!(pair.figure("queue", "catching_up"), 0);
    publish_all(&mut pair, 1..=1);
    pair.subscribe(2, &consume(1, "queue", 10));
    assert_eq!(taken(&mut pair), ["1"]);
}

#[test]
fn the_answer_does_not_wait_for_the_log_and_messages_follow_in_order() {
    let mut pair = start();
    publish_many(&mut pair, 1..=130);
    begin(&mut pair, &from_epoch("queue"));
    pair.subscribe(2, &consume(1, "queue", 1000));
    pair.turn();
    assert_eq!(pair.figure("queue", "depth"), 0);
    assert_eq!(pair.figure("queue", "catching_up"), 1);
    let mut portions = 0;
    let mut sequence = 130;
    while pair.figure("queue", "catching_up") == 1 {
        // The log grows while each portion is read.
        sequence += 1;
        publish_many(&mut pair, sequence..=sequence);
        pair.run_reads();
        pair.turn();
        portions += 1;
    }
    assert!((3..20).contains(&portions), "{portions}");
    sequence += 1;
    publish_many(&mut pair, sequence..=sequence);
    pair.reads_at_once = true;
    pair.turn();
    assert_eq!(numbers(&mut pair), (1..=sequence).collect::<Vec<_>>());
}

#[test]
fn a_message_in_the_turn_in_which_the_last_portion_ends_follows_it() {
    let mut pair = start();
    publish_all(&mut pair, 1..=2);
    begin(&mut pair, &from_epoch("queue"));
    pair.subscribe(2, &consume(1, "queue", 10));
    publish_all(&mut pair, 3..=3);
    pair.publish(1, 4, "jobs", "4");
    pair.run_reads();
    pair.publish(1, 5, "jobs", "5");
    pair.reads_at_once = true;
    assert_eq!(taken(&mut pair), texts(1..=5));
}

#[test]
fn more_messages_than_are_kept_while_a_portion_is_read_are_read_from_the_log() {
    let mut pair = start();
    publish_all(&mut pair, 1..=2);
    begin(&mut pair, &from_epoch("queue"));
    publish_all(&mut pair, 3..=70_000);
    pair.run_reads();
    pair.turn();
    assert_eq!(pair.figure("queue", "depth"), 2);
    assert_eq!(pair.figure("queue", "catching_up"), 1);
    pair.reads_at_once = true;
    pair.run_reads();
    pair.turn();
    assert_eq!((pair.figure("queue", "depth"), pair.figure("queue", "catching_up")), (70_000, 0));
}

#[test]
fn a_restart_in_the_middle_has_every_message_once_and_no_settled_one() {
    for is_clean in [false, true] {
        let mut pair = start();
        publish_many(&mut pair, 1..=400);
        let settings = QueueSettings { file_backed_metadata: true, ..from_epoch("queue") };
        begin(&mut pair, &settings);
        pair.run_reads();
        pair.turn();
        let depth = pair.figure("queue", "depth");
        assert!((10..100).contains(&depth), "{depth}");
        // Some messages of the first portion are done, and their places are saved.
        pair.subscribe(2, &consume(1, "queue", 3));
        for _ in 0..2 {
            pair.run_reads();
            pair.turn();
        }
        let done = pair.take_queued(2);
        assert_eq!(done.len(), 3);
        pair.settle(2, "queue", Verdict::Acknowledge, &done);
        assert!(pair.figure("queue", "settled") < 20);
        assert_eq!(pair.figure("queue", "catching_up"), 1);
        let mut pair = if is_clean {
            let Pair { broker, disk, now_ns, .. } = pair;
            broker.close().unwrap();
            log_on(Pair { now_ns, ..Pair::on(disk, config()) })
        } else {
            again(pair)
        };
        assert_eq!(pair.figure("queue", "catching_up"), 0);
        publish_many(&mut pair, 401..=401);
        pair.subscribe(2, &consume(1, "queue", 1000));
        pair.turn();
        assert_eq!(numbers(&mut pair), (4..=401).collect::<Vec<_>>(), "clean: {is_clean}");
        assert_eq!(create(&mut pair, &settings), Ok(false));
        // The states that are written from here on are whole.
        pair.pass(Duration::from_secs(61));
        pair.turn();
        let pair = again(pair);
        assert_eq!(pair.figure("queue", "depth"), 398);
    }
}

#[test]
fn what_happened_to_an_earlier_queue_of_the_name_does_not_count() {
    for without_points in [false, true] {
        let mut pair = start();
        let settings = QueueSettings {
            dead_letter_topic: Some("dead".into()),
            max_cancels: Some(0),
            ..from_epoch("queue")
        };
        publish_all(&mut pair, 1..=4);
        create(&mut pair, &settings).unwrap();
        pair.subscribe(2, &consume(1, "queue", 10));
        pair.turn();
        let held = pair.take_queued(2);
        pair.settle(2, "queue", Verdict::Acknowledge, &held[..1]);
        pair.settle(2, "queue", Verdict::Cancel, &held[1..2]);
        let points = Path::new("journal/queues.ack");
        pair.pass(Duration::from_secs(11));
        let old = pair.disk.read(points).unwrap();
        assert_eq!(drop_queue(&mut pair, "queue"), Ok(2));
        create(&mut pair, &settings).unwrap();
        assert_eq!(pair.figure("queue", "depth"), 4);
        // Also when a backup restores the place of the earlier queue, or all places are lost.
        pair.disk.remove(points).unwrap();
        if !without_points {
            pair.disk.create(points, old.len() as u64).unwrap().write_at(&old, 0).unwrap();
        }
        let mut pair = again(pair);
        pair.subscribe(2, &consume(1, "queue", 10));
        assert_eq!(taken(&mut pair), texts(1..=4), "{without_points}");
    }
}

#[test]
fn journal_files_that_a_queue_has_not_read_are_kept() {
    let mut pair = start();
    let filler = "x".repeat(50_000);
    for sequence in 1..=40 {
        pair.publish(1, sequence, "jobs", &format!("{{\"n\":{sequence},\"filler\":\"{filler}\"}}"));
        pair.turn();
    }
    let remove = |pair: &Pair| {
        let maintenance = pair.broker.journal().maintenance();
        maintenance.remove(Which::All, pair.broker.needed_position()).unwrap().len()
    };
    // No message of the first portion enters the queue.
    let settings = QueueSettings { filter: Some("/n > 35".into()), ..from_epoch("queue") };
    begin(&mut pair, &settings);
    pair.pass(Duration::from_secs(11));
    assert_eq!((pair.figure("queue", "settled"), remove(&pair)), (0, 0));
    pair.run_reads();
    pair.turn();
    let settled = pair.figure("queue", "settled");
    assert!((10..35).contains(&settled), "{settled}");
    // At most the files of the first portion may go.
    pair.pass(Duration::from_secs(11));
    remove(&pair);
    pair.reads_at_once = true;
    pair.run_reads();
    pair.turn();
    assert_eq!(pair.figure("queue", "depth"), 5);
}

#[test]
fn a_queue_is_dropped_while_it_reads_the_log() {
    let mut pair = start();
    publish_all(&mut pair, 1..=3);
    begin(&mut pair, &from_epoch("queue"));
    let portion = pair.reads.pop_front().unwrap();
    pair.reads_at_once = true;
    pair.send(3, &Command::DefineQueue { command: COMMAND, action: DefineQueue::Drop { queue: "queue" } });
    pair.turn();
    assert_eq!(pair.take(3), [], "the portion is not read");
    assert_eq!(queues(&pair), Vec::<String>::new());
    pair.reads.push_back(portion);
    pair.turn();
    assert_eq!(answered(&mut pair).unwrap()["dropped"], 0);
    // Another queue gets its number.
    create(&mut pair, &over("other", "jobs")).unwrap();
    assert_eq!(pair.figure("other", "depth"), 0);
    create(&mut pair, &from_epoch("queue")).unwrap();
    assert_eq!(pair.figure("queue", "depth"), 3);
}

#[test]
fn settings_apply_to_messages_of_the_log() {
    let mut pair = start();
    for (sequence, price) in [(1, 5), (2, 9), (3, 1), (4, 9)] {
        pair.publish(1, sequence, "jobs", &format!("{{\"price\":{price}}}"));
    }
    pair.turn();
    let settings = QueueSettings {
        filter: Some("/price > 1".into()),
        priority: Some("/price".into()),
        expiration_ns: Some(100_000_000_000),
        ..from_epoch("sorted")
    };
    pair.pass(Duration::from_secs(60));
    create(&mut pair, &settings).unwrap();
    let shallow = QueueSettings { target_queue_depth: Some(2), ..from_epoch("shallow") };
    create(&mut pair, &shallow).unwrap();
    assert_eq!((pair.figure("shallow", "depth"), pair.figure("shallow", "inactive")), (2, 2));
    pair.subscribe(2, &consume(1, "sorted", 10));
    pair.turn();
    let held = pair.take_queued(2);
    assert_eq!(data(&held), ["{\"price\":9}", "{\"price\":9}", "{\"price\":5}"]);
    pair.settle(2, "sorted", Verdict::Release, &held);
    pair.disconnect(2);
    // The lifetime began when the message was recorded.
    pair.pass(Duration::from_secs(50));
    assert_eq!(pair.figure("sorted", "expired"), 3);
}
