//! Queues that are created, altered and dropped at run time, over restarts: the definitions survive
//! crashes between two steps and writes that fail, and the journal keeps the files that the queues
//! need.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use quire_broker::{BrokerConfig, OpenError, QueueSettings};
use quire_command::*;
use quire_journal::{Disk, Journal, MemoryDisk, Which};
use serde_json::json;

use crate::failures::on_a_disk_that_fills_or_fails;
use crate::faulty_disk::{Call, FaultyDisk};
use crate::pair::*;
use crate::queue_altering::alter;
use crate::queue_defining::*;
use crate::queue_pair::*;

#[test]
fn a_restart_without_queues_ack_finds_where_a_created_queue_begins() {
    let mut pair = start();
    publish_all(&mut pair, 1..=2);
    create(&mut pair, &named("jobs")).unwrap();
    publish_all(&mut pair, 3..=3);
    pair.disk.remove(Path::new("journal/queues.ack")).unwrap();
    let mut pair = again(pair);
    pair.subscribe(2, &consume(1, "jobs", 10));
    assert_eq!(taken(&mut pair), ["3"]);
}

#[test]
fn files_of_a_dropped_queue_that_come_back_are_not_used_for_a_later_queue() {
    let settings = QueueSettings { file_backed_metadata: true, ..named("jobs") };
    for suffix in ["queues.ack", ".state"] {
        let mut pair = start();
        create(&mut pair, &settings).unwrap();
        publish_all(&mut pair, 1..=3);
        pair.pass(Duration::from_secs(61));
        pair.turn();
        let files = pair.disk.list(Path::new("journal")).unwrap();
        let is_wanted = |file: &&String| file.ends_with(suffix) && !file.starts_with("created");
        let path = Path::new("journal").join(files.iter().find(is_wanted).unwrap());
        let old = pair.disk.read(&path).unwrap();
        assert_eq!(drop_queue(&mut pair, "jobs"), Ok(3));
        assert_eq!(create(&mut pair, &settings), Ok(true));
        publish_all(&mut pair, 4..=4);
        pair.disk.create(&path, old.len() as u64).unwrap().write_at(&old, 0).unwrap();
        let mut pair = again(pair);
        pair.subscribe(2, &consume(1, "jobs", 10));
        assert_eq!(taken(&mut pair), ["4"], "{suffix}");
    }
}

#[test]
fn the_journal_keeps_the_files_of_a_created_queue_and_gives_them_up_when_it_is_dropped() {
    let mut pair = start();
    let filler = "x".repeat(50_000);
    create(&mut pair, &named("jobs")).unwrap();
    for sequence in 1..=40 {
        pair.publish(1, sequence, "jobs", &filler);
        pair.turn();
    }
    let removed = |pair: &Pair| {
        let maintenance = pair.broker.journal().maintenance();
        maintenance.remove(Which::All, pair.broker.needed_position()).unwrap().len()
    };
    assert_eq!(removed(&pair), 0);
    // After a crash, the sidecar files decide which files another process may remove.
    let first = pair.broker.needed_position().unwrap();
    assert!(pair.broker.journal().sidecars().needs().unwrap() <= first);
    drop_queue(&mut pair, "jobs").unwrap();
    pair.turn();
    assert_eq!(pair.broker.needed_position(), None);
    assert_eq!(pair.broker.journal().sidecars().needs(), None);
    assert!(removed(&pair) > 0);
}

#[test]
fn a_damaged_file_keeps_the_server_from_starting() {
    let mut pair = start();
    create(&mut pair, &named("jobs")).unwrap();
    let path = Path::new("journal/created-queues.state");
    let bytes = pair.disk.read(path).unwrap();
    let disk = pair.disk.clone();
    std::mem::forget(pair.broker);
    let opened = |content: &[u8]| {
        disk.remove(path).unwrap();
        disk.create(path, content.len() as u64).unwrap().write_at(content, 0).unwrap();
        let options = quire_journal::Options { segment_size: 256 * 1024, ..config().journal_options() };
        let (journal, _) = Journal::driven_by_hand(disk.clone(), Path::new("journal"), &options).unwrap();
        quire_broker::Broker::new(config(), journal).map(|broker| broker.queue_stats().len())
    };
    for end in 0..bytes.len() {
        let error = opened(&bytes[..end]).unwrap_err();
        assert!(matches!(error, OpenError::Journal(_)), "{end}: {error}");
    }
    let error = opened(&bytes[..40]).unwrap_err().to_string();
    assert!(
        error.contains("created-queues.state") && error.contains("restore the file from a backup"),
        "{error}"
    );
    assert_eq!(opened(&bytes).unwrap(), 1);
}

#[test]
fn a_created_queue_that_does_not_fit_the_configuration_keeps_the_server_from_starting() {
    let mut pair = start();
    create(&mut pair, &named("jobs")).unwrap();
    let disk = pair.disk.clone();
    std::mem::forget(pair.broker);
    let options = quire_journal::Options { segment_size: 256 * 1024, ..config().journal_options() };
    let open = |config: BrokerConfig| {
        let (journal, _) = Journal::driven_by_hand(disk.clone(), Path::new("journal"), &options).unwrap();
        quire_broker::Broker::new(config, journal)
    };
    let mut other = config();
    other.transaction_log.topics = vec![quire_broker::RecordedTopic::new("orders", "json")];
    let error = open(other.clone()).map(drop).unwrap_err().to_string();
    assert!(
        error.contains("does not record \"jobs\"") && error.contains("was created at run time"),
        "{error}"
    );
    // A queue of the configuration with the name is the way out.
    other.queues = vec![QueueSettings { underlying_topic: Some("orders".into()), ..queue("jobs") }];
    drop(open(other).unwrap());
}

#[test]
fn a_journal_that_fails_refuses_the_commands_and_keeps_the_queues() {
    let (pair, _, fails_syncs) = on_a_disk_that_fills_or_fails();
    let mut pair = log_on(pair);
    create(&mut pair, &named("old")).unwrap();
    pair.writes_at_once = false;
    let settings = named("jobs").to_json();
    let action = DefineQueue::Create { settings: &settings };
    pair.send(3, &Command::DefineQueue { command: COMMAND, action });
    pair.one_turn();
    fails_syncs.store(true, Ordering::Relaxed);
    pair.writes_at_once = true;
    pair.turn();
    assert_eq!(answered(&mut pair), Err(Code::StorageFailed));
    assert_eq!(queues(&pair), ["old"]);
    assert_eq!(create(&mut pair, &named("more")), Err(Code::StorageFailed));
    assert_eq!(alter(&mut pair, "old", json!({ "max_backlog": 1 })), Err(Code::StorageFailed));
    assert_eq!(drop_queue(&mut pair, "old"), Err(Code::StorageFailed));
    let mut pair = again(pair);
    assert_eq!(queues(&pair), ["old"]);
    assert_eq!(create(&mut pair, &named("old")), Ok(false));
}

#[test]
fn a_journal_that_fails_refuses_a_change_that_waits_for_it() {
    let (pair, _, fails_syncs) = on_a_disk_that_fills_or_fails();
    let mut pair = log_on(pair);
    create(&mut pair, &named("jobs")).unwrap();
    pair.writes_at_once = false;
    pair.publish(1, 1, "jobs", "1");
    pair.one_turn();
    let action = DefineQueue::Alter { queue: "jobs", changes: r#"{"max_backlog": 1}"# };
    pair.send(3, &Command::DefineQueue { command: COMMAND, action });
    pair.one_turn();
    assert_eq!(pair.take(3), [], "it waits until the message before it is persisted");
    fails_syncs.store(true, Ordering::Relaxed);
    pair.writes_at_once = true;
    pair.turn();
    assert_eq!(answered(&mut pair), Err(Code::StorageFailed));
    assert_eq!(create(&mut again(pair), &named("jobs")), Ok(false));
}

/// A broker on a disk that fails the call with this number among those on the definitions; 0: none.
/// Counts them.
fn on_a_disk_that_fails_once(number: usize) -> (Pair, Arc<AtomicUsize>) {
    let (disk, count) = (Arc::new(MemoryDisk::new(1 << 30)), Arc::new(AtomicUsize::new(0)));
    let calls = count.clone();
    let faulty = FaultyDisk::new(disk.clone(), move |call| {
        let is_definition = |path: &Path| path.to_string_lossy().contains("created-queues");
        let path = match call {
            Call::Create(path) | Call::Reserve(path) | Call::Write(path) | Call::Sync(path) => path,
            Call::Rename(path) => path,
            _ => return Ok(()),
        };
        if is_definition(path) && calls.fetch_add(1, Ordering::Relaxed) + 1 == number {
            return Err(io::Error::other("the disk refused the call"));
        }
        Ok(())
    });
    (log_on(Pair::over(Arc::new(faulty), disk, config())), count)
}

#[test]
fn a_write_of_the_definitions_that_fails_loses_no_earlier_definition() {
    let (mut pair, count) = on_a_disk_that_fails_once(0);
    create(&mut pair, &named("old")).unwrap();
    let per_write = count.load(Ordering::Relaxed);
    assert!(per_write >= 5, "{per_write} calls");
    for failing in 1..=per_write {
        let (mut pair, _) = on_a_disk_that_fails_once(per_write + failing);
        create(&mut pair, &named("old")).unwrap();
        assert_eq!(create(&mut pair, &named("jobs")), Err(Code::StorageFailed), "call {failing}");
        assert_eq!(queues(&pair), ["old"]);
        // The next command works, and what it says holds.
        assert_eq!(create(&mut pair, &named("jobs")), Ok(true));
        let pair = again(pair);
        assert_eq!(queues(&pair), ["jobs", "old"]);
        let (mut pair, _) = on_a_disk_that_fails_once(per_write + failing);
        create(&mut pair, &named("old")).unwrap();
        publish_to(&mut pair, "old");
        assert_eq!(drop_queue(&mut pair, "old"), Err(Code::StorageFailed), "call {failing}");
        pair.subscribe(2, &consume(1, "old", 10));
        assert_eq!(taken(&mut pair), ["1"]);
        let mut pair = again(pair);
        pair.subscribe(2, &consume(1, "old", 10));
        assert_eq!(taken(&mut pair), ["1"]);
        // A change that fails leaves the settings as they were, and the next one works.
        let (mut pair, _) = on_a_disk_that_fails_once(per_write + failing);
        create(&mut pair, &named("old")).unwrap();
        let change = || json!({ "max_backlog": 7 });
        assert_eq!(alter(&mut pair, "old", change()), Err(Code::StorageFailed), "call {failing}");
        assert_eq!(create(&mut pair, &named("old")), Ok(false));
        let mut pair = again(pair);
        assert_eq!(create(&mut pair, &named("old")), Ok(false), "call {failing}");
        assert_eq!(alter(&mut pair, "old", change()).unwrap(), ["max_backlog"]);
        let mut pair = again(pair);
        assert_eq!(pair.figure("old", "max_backlog"), 7);
        assert_eq!(alter(&mut pair, "old", change()).unwrap(), [""; 0]);
    }
}

#[test]
fn a_write_that_fails_after_the_file_was_replaced_changes_nothing_that_was_answered() {
    let (disk, renames) = (Arc::new(MemoryDisk::new(1 << 30)), Arc::new(AtomicUsize::new(0)));
    let seen = renames.clone();
    // The second rename of the definitions is made, and the sync of the directory after it fails.
    let faulty = FaultyDisk::new(disk.clone(), move |call| match call {
        Call::Rename(path) if path.ends_with("created-queues.state") => {
            seen.fetch_add(1, Ordering::Relaxed);
            Ok(())
        }
        Call::SyncDirectory(_) if seen.load(Ordering::Relaxed) == 2 => {
            seen.fetch_add(1, Ordering::Relaxed);
            Err(io::Error::other("the disk refused the sync"))
        }
        _ => Ok(()),
    });
    let mut pair = log_on(Pair::over(Arc::new(faulty), disk, config()));
    create(&mut pair, &named("old")).unwrap();
    assert_eq!(create(&mut pair, &named("jobs")), Err(Code::StorageFailed));
    assert_eq!(drop_queue(&mut pair, "jobs"), Err(Code::UnknownQueue));
    assert_eq!(queues(&again(pair)), ["old"]);
}

fn publish_to(pair: &mut Pair, topic: &str) {
    pair.publish(1, 1, topic, "1");
    pair.turn();
}

/// A restart at each moment of a creation and of a drop, before the answer.
#[test]
fn a_crash_at_any_moment_leaves_a_queue_as_it_was_before_or_after_the_command() {
    let mut outcomes = BTreeMap::<(bool, bool), u32>::new();
    for drops in [false, true] {
        for steps in 0..12 {
            let mut pair = start();
            if drops {
                create(&mut pair, &named("jobs")).unwrap();
                publish_all(&mut pair, 1..=1);
            }
            let settings = named("jobs").to_json();
            let action = match drops {
                true => DefineQueue::Drop { queue: "jobs" },
                false => DefineQueue::Create { settings: &settings },
            };
            (pair.writes_at_once, pair.reads_at_once) = (false, false);
            pair.send(3, &Command::DefineQueue { command: COMMAND, action });
            for step in 0..steps {
                match step % 3 {
                    0 => pair.one_turn(),
                    1 => drop(pair.write()),
                    _ => drop(pair.run_reads()),
                }
            }
            let was_answered = !pair.take(3).is_empty();
            let mut pair = again(pair);
            let exists = queues(&pair) == ["jobs"];
            if was_answered {
                assert_eq!(exists, !drops, "drops: {drops}, {steps} steps");
            }
            *outcomes.entry((drops, exists)).or_default() += 1;
            // The queue works in both cases.
            let existed = !create(&mut pair, &named("jobs")).unwrap();
            assert_eq!(existed, exists);
            pair.subscribe(2, &consume(1, "jobs", 10));
            assert_eq!(taken(&mut pair).len(), usize::from(drops && exists));
        }
    }
    assert!(outcomes.len() == 4, "each moment was met: {outcomes:?}");
}

/// A restart at each moment of a change of settings, before the answer.
#[test]
fn a_crash_at_any_moment_leaves_the_settings_as_they_were_before_or_after_the_command() {
    let old = QueueSettings { max_backlog: Some(1), expiration_ns: Some(100_000_000_000), ..named("jobs") };
    let new = QueueSettings { max_backlog: Some(2), expiration_ns: Some(10_000_000_000), ..named("jobs") };
    let changes = json!({ "max_backlog": 2, "expiration_ns": 10_000_000_000_u64 }).to_string();
    let mut outcomes = BTreeMap::<bool, u32>::new();
    for steps in 0..12 {
        let mut pair = start();
        create(&mut pair, &old).unwrap();
        publish_all(&mut pair, 1..=3);
        (pair.writes_at_once, pair.reads_at_once) = (false, false);
        // The record before the command is not persisted, so the change waits for it.
        pair.publish(1, 4, "jobs", "4");
        let action = DefineQueue::Alter { queue: "jobs", changes: &changes };
        pair.send(3, &Command::DefineQueue { command: COMMAND, action });
        for step in 0..steps {
            match step % 3 {
                0 => pair.one_turn(),
                1 => drop(pair.write()),
                _ => drop(pair.run_reads()),
            }
        }
        let was_answered = !pair.take(3).is_empty();
        let mut pair = again(pair);
        let is_new = pair.figure("jobs", "max_backlog") == 2;
        assert!(is_new || !was_answered, "{steps} steps");
        *outcomes.entry(is_new).or_default() += 1;
        // Both settings are old, or both are new. The messages are there, with the expiration that
        // they had.
        assert_eq!(create(&mut pair, if is_new { &new } else { &old }), Ok(false), "{steps} steps");
        pair.subscribe(2, &consume(1, "jobs", 10));
        assert_eq!(taken(&mut pair), ["1", "2"][..if is_new { 2 } else { 1 }]);
        pair.disconnect(2);
        let depth = pair.figure("jobs", "depth");
        pair.pass(Duration::from_secs(50));
        pair.turn();
        assert_eq!(pair.figure("jobs", "depth"), depth, "{steps} steps");
    }
    assert!(outcomes.len() == 2, "each moment was met: {outcomes:?}");
}
