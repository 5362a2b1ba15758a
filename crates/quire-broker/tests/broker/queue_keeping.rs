//! Queues whose state is kept in a file (`file_backed_metadata`): it is read when it is of use, and
//! whenever anything about it is wrong the queue is rebuilt from the log. Counts of deliveries, of
//! which the log does not speak, show which it was.

use std::path::{Path, PathBuf};
use std::time::Duration;

use quire_broker::QueueSettings;
use quire_journal::{Disk, Which};
use quire_types::Verdict;

use crate::pair::*;
use crate::queue_pair::*;

/// A queue whose state is kept, with time for a worker to hold messages.
fn kept() -> QueueSettings {
    QueueSettings { file_backed_metadata: true, ..queue("jobs") }
}

/// A publisher 1 and a worker 2 on `jobs`.
fn start(mut pair: Pair) -> Pair {
    pair.client(1, "publisher");
    pair.client(2, "worker");
    pair.subscribe(2, &consume(1, "jobs", 100));
    pair.turn();
    pair
}

fn again(pair: Pair, settings: &QueueSettings) -> Pair {
    start(pair.restart(queue_config([settings.clone()])))
}

/// Lets `queues.ack` and the state be written.
fn keep(pair: &mut Pair) {
    pair.pass(Duration::from_secs(61));
    pair.turn();
}

fn state_file(pair: &Pair) -> Option<PathBuf> {
    let names = pair.disk.list(Path::new("journal")).unwrap();
    let name = names.into_iter().find(|name| name.starts_with("queue-") && name.ends_with(".state"))?;
    Some(Path::new("journal").join(name))
}

/// What is delivered, and how often it was.
fn counts(messages: &[FromQueue]) -> Vec<(&str, u32)> {
    messages.iter().map(|message| (message.data.as_str(), message.deliveries)).collect()
}

/// Messages 1 to 4 of which 2 was acknowledged and 3 given back once, kept; then 5, and 4
/// acknowledged.
fn working(settings: &QueueSettings) -> Pair {
    let mut pair = start(with_queues([settings.clone()]));
    publish_all(&mut pair, 1..=4);
    let held = pair.take_queued(2);
    pair.settle(2, "jobs", Verdict::Acknowledge, &held[1..2]);
    pair.settle(2, "jobs", Verdict::Cancel, &held[2..3]);
    keep(&mut pair);
    publish_all(&mut pair, 5..=5);
    pair.settle(2, "jobs", Verdict::Acknowledge, &held[3..]);
    pair
}

#[test]
fn a_restart_reads_the_state_and_the_log_behind_it() {
    let pair = working(&kept());
    assert!(state_file(&pair).is_some());
    let mut pair = again(pair, &kept());
    let held = pair.take_queued(2);
    assert_eq!(counts(&held), [("1", 2), ("3", 3), ("5", 1)]);
    assert_eq!(held[1].cancels, 1);
    pair.settle(2, "jobs", Verdict::Acknowledge, &held);
    assert_eq!(pair.figure("jobs", "depth"), 0);
    assert_eq!(again(pair, &kept()).take_queued(2), []);
}

#[test]
fn a_restart_knows_what_was_released_after_the_state_was_kept() {
    let mut pair = start(with_queues([kept()]));
    publish_all(&mut pair, 1..=3);
    let held = pair.take_queued(2);
    keep(&mut pair);
    pair.settle(2, "jobs", Verdict::Release, &held[1..2]);
    pair.take(2);
    let mut pair = again(pair, &kept());
    assert_eq!(counts(&pair.take_queued(2)), [("1", 2), ("2", 1), ("3", 2)]);
}

#[test]
fn a_clean_end_keeps_the_state_as_it_is_then() {
    let mut pair = working(&kept());
    pair.take_queued(2);
    let Pair { broker, disk, .. } = pair;
    broker.close().unwrap();
    let mut pair = start(Pair::on(disk, queue_config([kept()])));
    assert_eq!(counts(&pair.take_queued(2)), [("1", 2), ("3", 3), ("5", 2)]);
}

#[test]
fn whatever_is_wrong_with_the_file_the_queue_is_rebuilt_from_the_log() {
    type Harm = fn(&Pair, &Path);
    let harms: [Harm; 4] = [
        |pair, path| pair.disk.remove(path).unwrap(),
        |pair, path| drop(pair.disk.create(path, 0).unwrap()),
        |pair, path| {
            let mut bytes = pair.disk.read(path).unwrap();
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
            pair.disk.create(path, bytes.len() as u64).unwrap().write_at(&bytes, 0).unwrap();
        },
        |pair, path| {
            let bytes = pair.disk.read(path).unwrap();
            let cut = &bytes[..bytes.len() - 9];
            pair.disk.create(path, cut.len() as u64).unwrap().write_at(cut, 0).unwrap();
        },
    ];
    for (number, harm) in harms.into_iter().enumerate() {
        let pair = working(&kept());
        harm(&pair, &state_file(&pair).unwrap());
        let mut pair = again(pair, &kept());
        assert_eq!(counts(&pair.take_queued(2)), [("1", 1), ("3", 1), ("5", 1)], "harm {number}");
    }
    // The whole state of another journal, which was the same for a while.
    let (other, pair) = (working(&kept()), working(&kept()));
    let path = state_file(&other).unwrap();
    let (mut other, mut pair) = (again(other, &kept()), again(pair, &kept()));
    publish_all(&mut other, 6..=6);
    keep(&mut other);
    pair.pass(Duration::from_secs(1));
    publish_all(&mut pair, 6..=6);
    let bytes = other.disk.read(&path).unwrap();
    pair.disk.create(&path, bytes.len() as u64).unwrap().write_at(&bytes, 0).unwrap();
    let mut pair = again(pair, &kept());
    assert_eq!(counts(&pair.take_queued(2)), [("1", 1), ("3", 1), ("5", 1), ("6", 1)]);
}

#[test]
fn a_state_of_other_settings_says_nothing() {
    let filtered = QueueSettings { filter: Some("1 = 2".into()), ..kept() };
    let since_now = QueueSettings { recovery_point: Some("now".into()), ..kept() };
    let without = QueueSettings { file_backed_metadata: false, ..kept() };
    for (settings, expected) in
        [(filtered, vec![]), (since_now, vec![]), (without.clone(), vec![("1", 1), ("3", 1), ("5", 1)])]
    {
        let mut pair = again(working(&kept()), &settings);
        assert_eq!(counts(&pair.take_queued(2)), expected, "{settings:?}");
    }
    let pair = again(working(&kept()), &without);
    assert_eq!(state_file(&pair), None, "nobody needs the file");
}

#[test]
fn a_state_from_before_the_queue_was_done_says_nothing() {
    let mut pair = working(&kept());
    // The earlier file is restored after the queue has continued.
    let path = state_file(&pair).unwrap();
    let old = pair.disk.read(&path).unwrap();
    let held = pair.take_queued(2);
    pair.settle(2, "jobs", Verdict::Acknowledge, &held);
    let mut pair = again(pair, &kept());
    let held = pair.take_queued(2);
    pair.settle(2, "jobs", Verdict::Acknowledge, &held);
    let filler = "x".repeat(50_000);
    for sequence in 6..=40 {
        pair.publish(1, sequence, "elsewhere", &filler);
        pair.turn();
    }
    keep(&mut pair);
    assert!(!pair.broker.journal().maintenance().remove(Which::All, None).unwrap().is_empty());
    pair.disk.create(&path, old.len() as u64).unwrap().write_at(&old, 0).unwrap();
    assert_eq!(again(pair, &kept()).take_queued(2), []);
}

#[test]
fn a_dead_letter_that_is_not_published_yet_is_not_forgotten_by_a_state() {
    let settings = QueueSettings {
        dead_letter_topic: Some("dead".into()),
        expiration_ns: Some(59_000_000_000),
        ..kept()
    };
    let config = || queue_config([settings.clone(), queue("dead")]);
    let mut pair = Pair::with(config());
    pair.client(1, "publisher");
    publish_all(&mut pair, 1..=3);
    // All expire. The reads of their messages do not run, so no dead letter is published before the
    // stop.
    (pair.reads_at_once, pair.writes_at_once) = (false, false);
    keep(&mut pair);
    let mut pair = pair.restart(config());
    pair.client(3, "undertaker");
    pair.subscribe(3, &consume(1, "dead", 100));
    pair.pass(Duration::from_secs(1));
    pair.turn();
    assert_eq!(pair.take_queued(3).len(), 3);
}

#[test]
fn with_a_target_depth_there_is_no_file_and_the_start_says_so() {
    let settings = QueueSettings { target_queue_depth: Some(2), ..kept() };
    let mut pair = start(with_queues([settings]));
    publish_all(&mut pair, 1..=4);
    keep(&mut pair);
    assert_eq!(state_file(&pair), None);
    let log: Vec<String> = pair.log.iter().map(|event| event.to_string()).collect();
    assert!(log.iter().any(|line| line.contains("file_backed_metadata")), "{log:?}");
}
