//! A journal that takes no more writes, and one that is damaged. Publishers are notified, and
//! reading continues (protocol.md section 4). The disk is in memory, and its writes can be made to
//! fail.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use quire_broker::{BrokerConfig, Event, Input, QueueSettings, SowTopicSettings};
use quire_command::*;
use quire_journal::{Disk, MemoryDisk};
use quire_types::Verdict;

use super::faulty_disk::{Call, FaultyDisk};
use super::last_value_pair::*;
use super::pair::*;
use super::queue_pair::*;

/// A disk that is full, or fails syncs, while the values are set. Earlier data can be read.
fn full_disk(disk: &Arc<MemoryDisk>, is_full: &Arc<AtomicBool>, fails_syncs: &Arc<AtomicBool>) -> FaultyDisk {
    let (is_full, fails_syncs) = (is_full.clone(), fails_syncs.clone());
    FaultyDisk::new(disk.clone(), move |call| match call {
        Call::Write(_) if is_full.load(Ordering::Relaxed) => Err(io::ErrorKind::StorageFull.into()),
        Call::Sync(_) if fails_syncs.load(Ordering::Relaxed) => {
            Err(io::Error::other("the disk refused the sync"))
        }
        _ => Ok(()),
    })
}

/// A broker whose disk becomes full when the value is set.
fn on_a_disk_that_fills() -> (Pair, Arc<AtomicBool>) {
    let (pair, is_full, _) = on_a_disk_that_fills_or_fails();
    (pair, is_full)
}

/// As before, with a second value: syncs fail.
pub fn on_a_disk_that_fills_or_fails() -> (Pair, Arc<AtomicBool>, Arc<AtomicBool>) {
    configured_on_a_disk_that_fills_or_fails(config())
}

pub fn configured_on_a_disk_that_fills_or_fails(
    config: BrokerConfig,
) -> (Pair, Arc<AtomicBool>, Arc<AtomicBool>) {
    let (is_full, fails_syncs) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let disk = Arc::new(MemoryDisk::new(1 << 30));
    let full = full_disk(&disk, &is_full, &fails_syncs).with_page_files(0);
    (Pair::over(Arc::new(full), disk, config), is_full, fails_syncs)
}

fn all_from(sequence: u64) -> Said {
    Said::Failed { sequence, code: Code::StorageFull, scope: FailureScope::AllFromHere }
}

#[test]
fn publishers_are_told_from_where_on_nothing_is_persisted_and_reading_goes_on() {
    let (mut pair, is_full) = on_a_disk_that_fills();
    pair.client(1, "a");
    pair.client(2, "reader");
    pair.publish(1, 1, "orders", "1");
    pair.turn();
    pair.take(1);
    is_full.store(true, Ordering::Relaxed);
    pair.publish(1, 2, "orders", "2");
    pair.publish(1, 3, "orders", "3");
    pair.send(1, &Command::Flush { command: 8, acks: Acks::PROCESSED.and(Acks::PERSISTED) });
    pair.turn();
    let failed_flush =
        Said::Ack { kind: AckKind::Persisted, code: Code::StorageFull, command: 8, subscription: 0 };
    assert_eq!(pair.take(1), [ack(AckKind::Processed, 8, 0), all_from(2), failed_flush]);
    assert!(
        pair.log.iter().any(|event| matches!(event, Event::JournalStalled { code: Code::StorageFull, .. }))
    );
    pair.publish(1, 2, "orders", "repeated: neither a duplicate nor persisted");
    pair.publish(1, 4, "orders", "4");
    pair.send(1, &Command::Flush { command: 9, acks: Acks::PERSISTED });
    pair.turn();
    assert_eq!(pair.take(1), [refused(Code::StorageFull, 9, 0)], "it is said once");
    pair.subscribe(2, &replay(7, "orders", "0"));
    pair.turn();
    let said = pair.take(2);
    assert_eq!(said.last(), Some(&ack(AckKind::Completed, 7, 7)));
    let messages = said.iter().filter(|said| matches!(said, Said::Message { .. })).count();
    assert_eq!(messages, 1, "what was persisted, and nothing else");
}

#[test]
fn one_who_publishes_after_the_failure_is_told_with_the_first_message() {
    let (mut pair, is_full) = on_a_disk_that_fills();
    pair.client(1, "a");
    pair.client(2, "b");
    pair.publish(2, 5, "orders", "before");
    pair.turn();
    pair.take(2);
    is_full.store(true, Ordering::Relaxed);
    pair.publish(1, 1, "orders", "x");
    pair.turn();
    pair.publish(2, 6, "orders", "after");
    pair.publish(2, 0, "orders", "without a number");
    pair.turn();
    assert_eq!(pair.take(2), [all_from(6)]);
    pair.connect(3);
    pair.send(3, &Command::Logon(logon("a")));
    pair.turn();
    assert_eq!(pair.take(3), [Said::LoggedOn { last_sequence: 0 }], "only what is persisted is claimed");
    assert_eq!(pair.clients[&3].highest_sequence, 1, "the next start may find it: its number is taken");
}

/// Before a fix, the refusal of a malformed message also acknowledged the messages before it that
/// the full journal had not taken. Their client forgot them. The simulation found this.
#[test]
fn a_refusal_while_the_journal_is_full_does_not_acknowledge_the_messages_before_it() {
    let (mut pair, is_full) = on_a_disk_that_fills();
    pair.client(1, "a");
    pair.publish(1, 1, "orders", "1");
    pair.turn();
    pair.take(1);
    is_full.store(true, Ordering::Relaxed);
    pair.publish(1, 2, "orders", "2");
    pair.turn();
    assert_eq!(pair.take(1), [all_from(2)]);
    // The journal has taken 2, and neither of these.
    pair.publish(1, 3, "orders", "3");
    pair.publish(1, 4, "", "without a topic");
    pair.turn();
    assert_eq!(pair.take(1), [], "the client sends all of them again");
    make_room(&mut pair, &is_full);
    assert_eq!(pair.take(1), [Said::Error(Code::StorageFull), Said::Closed]);
    pair.connect(2);
    pair.send(2, &Command::Logon(logon("a")));
    pair.turn();
    assert_eq!(pair.take(2), [Said::LoggedOn { last_sequence: 2 }], "and not 4");
    pair.publish(2, 3, "orders", "3");
    pair.publish(2, 4, "", "without a topic");
    pair.turn();
    let said = pair.take(2);
    assert!(matches!(said[..], [Said::Persisted(3), Said::Failed { sequence: 4, .. }]), "{said:?}");
}

/// There is room again, and the writer finds it.
fn make_room(pair: &mut Pair, is_full: &AtomicBool) {
    is_full.store(false, Ordering::Relaxed);
    pair.write();
    pair.turn();
}

#[test]
fn when_there_is_room_again_publishers_go_on_where_they_were_and_nothing_is_lost_or_doubled() {
    let (mut pair, is_full) = on_a_disk_that_fills();
    pair.client(1, "a");
    pair.client(2, "b");
    pair.client(9, "reader");
    pair.subscribe(9, &replay(7, "orders", "0"));
    pair.publish(1, 1, "orders", "a1");
    pair.turn();
    pair.take(1);
    is_full.store(true, Ordering::Relaxed);
    pair.publish(1, 2, "orders", "a2");
    pair.turn();
    // Refused: the journal has taken none of these.
    pair.publish(1, 3, "orders", "a3");
    pair.publish(2, 1, "orders", "b1");
    pair.turn();
    assert_eq!(pair.take(1), [all_from(2)]);
    assert_eq!(pair.take(2), [all_from(1)]);
    // A client that comes meanwhile is let in, and is not told that what waits is persisted.
    pair.connect(3);
    pair.send(3, &Command::Logon(logon("c")));
    pair.connect(4);
    pair.send(4, &Command::Logon(logon("a")));
    pair.turn();
    assert_eq!(pair.take(3), [Said::LoggedOn { last_sequence: 0 }]);
    assert_eq!(pair.take(4), [Said::LoggedOn { last_sequence: 1 }]);
    assert_eq!(pair.clients[&4].highest_sequence, 2);
    make_room(&mut pair, &is_full);
    assert!(pair.log.iter().any(|event| matches!(event, Event::JournalResumed)));
    // A publisher that was notified must connect again, because publishes of it were refused. The
    // others continue.
    let ended = Said::Error(Code::StorageFull);
    assert_eq!(pair.take(2), [ended, Said::Closed]);
    assert_eq!(pair.take(4), [Said::Persisted(2)]);
    pair.publish(3, 1, "orders", "c1");
    pair.publish(4, 3, "orders", "a3");
    pair.connect(5);
    pair.send(5, &Command::Logon(logon("b")));
    pair.turn();
    pair.publish(5, 1, "orders", "b1");
    pair.turn();
    assert_eq!(pair.take(3), [Said::Persisted(1)]);
    assert_eq!(pair.take(4), [Said::Persisted(3)]);
    assert_eq!(pair.take(5), [Said::LoggedOn { last_sequence: 0 }, Said::Persisted(1)]);
    let mut data = pair.take_data(9);
    assert_eq!(data[..2], ["a1", "a2"]);
    data.sort();
    assert_eq!(data, ["a1", "a2", "a3", "b1", "c1"]);
}

#[test]
fn what_comes_on_a_connection_that_was_told_is_refused_also_in_the_turn_in_which_there_is_room() {
    let (mut pair, is_full) = on_a_disk_that_fills();
    pair.client(1, "a");
    is_full.store(true, Ordering::Relaxed);
    pair.publish(1, 1, "orders", "1");
    pair.turn();
    pair.publish(1, 2, "orders", "2");
    pair.turn();
    is_full.store(false, Ordering::Relaxed);
    pair.write();
    // Taken here, 3 would make a duplicate of the 2 that its client sends again.
    pair.publish(1, 3, "orders", "3");
    pair.turn();
    assert_eq!(pair.take(1), [all_from(1), Said::Error(Code::StorageFull), Said::Closed]);
    pair.connect(2);
    pair.send(2, &Command::Logon(logon("a")));
    pair.turn();
    assert_eq!(pair.take(2), [Said::LoggedOn { last_sequence: 1 }]);
    for sequence in [2, 3] {
        pair.publish(2, sequence, "orders", &sequence.to_string());
    }
    pair.subscribe(2, &replay(7, "orders", "0"));
    pair.turn();
    assert_eq!(pair.take_data(2), ["1", "2", "3"]);
}

#[test]
fn what_is_acknowledged_of_a_queue_while_the_disk_is_full_does_not_come_again() {
    let is_full = Arc::new(AtomicBool::new(false));
    let disk = Arc::new(MemoryDisk::new(1 << 30));
    let full = full_disk(&disk, &is_full, &Arc::default()).with_page_files(0);
    let mut pair = Pair::over(Arc::new(full), disk.clone(), queue_config([queue("jobs")]));
    pair.client(1, "publisher");
    pair.client(2, "worker");
    pair.subscribe(2, &consume(1, "jobs", 100));
    publish_all(&mut pair, 1..=5);
    pair.turn();
    let queued = pair.take_queued(2);
    assert_eq!(queued.len(), 5);
    is_full.store(true, Ordering::Relaxed);
    publish_all(&mut pair, 6..=6);
    pair.turn();
    assert!(pair.log.iter().any(|event| matches!(event, Event::JournalStalled { .. })));
    pair.settle(2, "jobs", Verdict::Acknowledge, &queued[..3]);
    make_room(&mut pair, &is_full);
    // A start on what is on the disk now.
    let mut pair = Pair::over(disk.clone(), disk, queue_config([queue("jobs")]));
    pair.client(3, "worker");
    pair.subscribe(3, &consume(1, "jobs", 100));
    pair.turn();
    assert_eq!(
        pair.take_queued(3).len(),
        3,
        "two that were not acknowledged, and the one that waited for room"
    );
}

#[test]
fn a_full_disk_whose_sync_then_fails_is_told_as_a_failure_and_does_not_resume() {
    let (mut pair, is_full, fails_syncs) = on_a_disk_that_fills_or_fails();
    pair.client(1, "a");
    is_full.store(true, Ordering::Relaxed);
    pair.publish(1, 1, "orders", "1");
    pair.turn();
    assert_eq!(pair.take(1), [all_from(1)]);
    fails_syncs.store(true, Ordering::Relaxed);
    make_room(&mut pair, &is_full);
    fails_syncs.store(false, Ordering::Relaxed);
    make_room(&mut pair, &is_full);
    assert!(
        pair.log.iter().any(|event| matches!(event, Event::JournalFailed { code: Code::StorageFailed, .. }))
    );
    assert!(!pair.log.iter().any(|event| matches!(event, Event::JournalResumed)));
    assert_eq!(pair.take(1), [], "it is said once");
}

#[test]
fn one_who_said_goodbye_is_told_of_the_failure_and_let_go() {
    let (mut pair, is_full) = on_a_disk_that_fills();
    pair.client(1, "a");
    is_full.store(true, Ordering::Relaxed);
    pair.publish(1, 1, "orders", "x");
    pair.send(1, &Command::Goodbye);
    pair.turn();
    assert_eq!(pair.take(1), [all_from(1), Said::Closed]);
}

#[test]
fn a_subscription_waiting_for_completed_is_not_left_waiting() {
    let (mut pair, is_full) = on_a_disk_that_fills();
    pair.client(1, "a");
    pair.publish(1, 1, "orders", "1");
    pair.turn();
    is_full.store(true, Ordering::Relaxed);
    pair.writes_at_once = false;
    pair.publish(1, 2, "orders", "2");
    pair.subscribe(1, &replay(7, "orders", "0"));
    pair.turn();
    pair.write();
    pair.turn();
    let said = pair.take(1);
    assert!(said.contains(&ack(AckKind::Completed, 7, 7)), "{said:?}");
}

#[test]
fn a_replay_that_meets_damage_ends_with_the_place() {
    let disk = Arc::new(MemoryDisk::new(1 << 30));
    let mut pair = Pair::on(disk.clone(), config());
    pair.client(1, "a");
    let data = "x".repeat(1000);
    for sequence in 1..=500 {
        pair.publish(1, sequence, "orders", &data);
        pair.turn();
    }
    pair.client(2, "reader");
    pair.client(3, "other");
    pair.subscribe(3, &subscribe(5, "orders"));
    pair.turn();
    pair.take(3);
    let name = disk
        .list(Path::new("journal"))
        .unwrap()
        .into_iter()
        .find(|name| name.ends_with("0000000000.journal"));
    let path = Path::new("journal").join(name.unwrap());
    let bytes = disk.read(&path).unwrap();
    let at = bytes.len() / 2;
    disk.open(&path).unwrap().write_at(&[bytes[at] ^ 1], at as u64).unwrap();
    pair.subscribe(2, &replay(7, "orders", "0"));
    pair.turn();
    let said = pair.take(2);
    let count = said.iter().filter(|said| matches!(said, Said::Message { .. })).count();
    assert!(count > 0 && count < 500, "{count}");
    assert_eq!(said.last(), Some(&Said::Ended { subscription: 7, code: Code::JournalCorrupt }));
    pair.publish(1, 501, "orders", "goes on");
    pair.turn();
    assert_eq!(pair.take_data(3), ["goes on"]);
}

#[test]
fn a_read_that_panics_ends_its_subscriptions_and_no_others() {
    let mut pair = Pair::new();
    pair.client(1, "publisher");
    for sequence in 1..=1000 {
        pair.publish(1, sequence, "orders", "x");
    }
    pair.turn();
    pair.client(2, "reader");
    pair.client(3, "seeker");
    pair.reads_at_once = false;
    pair.subscribe(2, &Subscribe { acks: Acks::PROCESSED, ..replay(1, "orders", "0") });
    pair.subscribe(3, &replay(1, "orders", "7|7|"));
    pair.turn();
    assert_eq!(pair.take(2), [ack(AckKind::Processed, 1, 1)]);
    let panicked: Vec<_> = pair.reads.drain(..).map(|read| read.ticket().panicked()).collect();
    assert_eq!(panicked.len(), 2);
    for done in panicked {
        let now = pair.now();
        pair.broker.handle(now, Input::ReadDone(done));
    }
    pair.reads_at_once = true;
    pair.turn();
    assert_eq!(pair.take(2), [Said::Ended { subscription: 1, code: Code::Internal }]);
    assert_eq!(pair.take(3), [refused(Code::Internal, 1, 1)]);
    pair.subscribe(2, &replay(2, "orders", "0"));
    pair.subscribe(3, &replay(2, "orders", "0"));
    pair.turn();
    assert_eq!(pair.take_data(2).len(), 1000);
    assert_eq!(pair.take_data(3).len(), 1000);
}

#[test]
fn a_range_of_time_ends_with_what_was_persisted() {
    let (mut pair, is_full) = on_a_disk_that_fills();
    pair.client(1, "a");
    pair.client(2, "reader");
    pair.publish(1, 1, "orders", "1");
    pair.turn();
    let end = quire_journal::Timestamp(WALL_START_NS + 1_000_000);
    pair.subscribe(2, &replay(7, "orders", &format!("[0:{end}]")));
    pair.turn();
    is_full.store(true, Ordering::Relaxed);
    pair.publish(1, 2, "orders", "2");
    pair.turn();
    assert_eq!(pair.take_data(2), ["1"]);
    pair.pass(std::time::Duration::from_millis(2));
    assert_eq!(pair.take(2), [Said::Ended { subscription: 7, code: Code::Ok }]);
}

#[test]
fn records_that_cannot_be_paged_out_are_kept_in_memory_and_it_is_told_once() {
    // There is no file, or it is too small to be of use.
    for page_file_size in [0, 4096] {
        let disk = Arc::new(MemoryDisk::new(1 << 30));
        let full = full_disk(&disk, &Arc::default(), &Arc::default()).with_page_files(page_file_size);
        let topic = SowTopicSettings { file_backed: true, ..sow_topic("orders") };
        let mut pair = Pair::over(Arc::new(full), disk, sow_config([topic]));
        pair.client(1, "publisher");
        pair.client(2, "reader");
        for (sequence, id) in (1..).zip([1, 2, 1]) {
            pair.publish(1, sequence, "orders", &format!(r#"{{"id":{id},"n":{sequence}}}"#));
            pair.turn();
        }
        assert_eq!(pair.records(2, query(5, "orders")), [r#"{"id":1,"n":3}"#, r#"{"id":2,"n":2}"#]);
        let told = pair.log.iter().filter(|event| matches!(event, Event::TablesNotPaged { .. }));
        assert_eq!(told.count(), 1, "{:?}", pair.log);
    }
}

#[test]
fn queues_that_cannot_be_paged_out_work_and_it_is_told_once() {
    // There is no file, or it is too small to be of use.
    for page_file_size in [0, 4096] {
        let disk = Arc::new(MemoryDisk::new(1 << 30));
        let full = full_disk(&disk, &Arc::default(), &Arc::default()).with_page_files(page_file_size);
        let settings = QueueSettings { file_backed_metadata: true, ..queue("jobs") };
        let mut pair = Pair::over(Arc::new(full), disk, queue_config([settings]));
        pair.client(1, "publisher");
        pair.client(2, "worker");
        pair.subscribe(2, &consume(1, "jobs", 100));
        for sequence in 1..=3 {
            publish_all(&mut pair, sequence..=sequence);
            pair.turn();
        }
        assert_eq!(pair.take_queued(2).len(), 3);
        let told = pair.log.iter().filter(|event| matches!(event, Event::QueuesNotPaged { .. }));
        assert_eq!(told.count(), 1, "{:?}", pair.log);
    }
}

#[test]
fn left_out_messages_that_cannot_be_paged_out_are_counted_in_memory_and_it_is_told_once() {
    let disk = Arc::new(MemoryDisk::new(1 << 30));
    let mut pair = Pair::on(disk.clone(), queue_config([queue("jobs")]));
    pair.client(1, "publisher");
    publish_all(&mut pair, 1..=3);
    // `queues.ack` is written.
    pair.pass(std::time::Duration::from_secs(11));
    let Pair { broker, now_ns, .. } = pair;
    std::mem::forget(broker);
    let full = full_disk(&disk, &Arc::default(), &Arc::default()).with_page_files(0);
    let mut pair = Pair::over(Arc::new(full), disk, config());
    pair.now_ns = now_ns;
    pair.turn();
    let count = |is_it: fn(&Event) -> bool| pair.log.iter().filter(|event| is_it(event)).count();
    assert_eq!(count(|event| matches!(event, Event::QueueMessagesLeftOut { count: 3, .. })), 1);
    assert_eq!(count(|event| matches!(event, Event::QueuesNotPaged { .. })), 1, "{:?}", pair.log);
}
