//! The state of a queue in a file. It takes little of the heap while ten million messages wait. The
//! system can page all of the rest out, and the queue then serves as before.

#[path = "../../quire-broker/tests/counting/mod.rs"]
mod counting;

use std::fs;

use counting::allocated;
use quire_journal::{Memory, PageFile};
use quire_queue::*;

const COUNT: u64 = 10_000_000;
const CONNECTION: ConnectionId = ConnectionId::new(1);
const NOW: Time = Time::new(1_000_000_000);

/// Bytes of this process: those that only swap could take, and all that are in memory.
#[allow(clippy::disallowed_methods)] // not a file of ours
fn resident() -> (usize, usize) {
    let text = fs::read_to_string("/proc/self/smaps_rollup").unwrap();
    let bytes = |key: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(key)).unwrap();
        line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() * 1024
    };
    (bytes("Anonymous:"), bytes("Rss:"))
}

/// A number that does not depend on its neighbors.
fn scattered(number: u64) -> u64 {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20
}

struct Nobody;

impl Matcher for Nobody {
    fn matches(&mut self, _: Position, _: FilterId) -> bool {
        unreachable!("there are no filters")
    }
}

#[test]
#[cfg(target_os = "linux")]
fn ten_million_messages_lie_in_the_file_and_are_served_from_it() {
    let directory = tempfile::tempdir().unwrap();
    let memory = Memory::paged(PageFile::create(directory.path(), 1 << 32).unwrap());
    let before = (allocated(), resident());
    let mut queues = Queues::new();
    let config = QueueConfig { priority: true, ..QueueConfig::default() };
    let queue = queues.add_queue_in(config, &memory).unwrap();
    let spec =
        SubscriptionSpec { connection: CONNECTION, backlog: Some(100_000), queues: vec![(queue, None)] };
    let subscription = queues.subscribe(&spec).unwrap();
    queues.hold(subscription, true);
    for position in 1..=COUNT {
        let expiration_s = Some(3600 + scattered(position) as u32 % 86_400);
        let priority = Some(scattered(position));
        let bookmark = Some(Bookmark::new(PublisherId::new(7), position));
        let entry = QueueEntry { bookmark, received: NOW, priority, expiration_s, ..QueueEntry::default() };
        queues.enqueue(queue, Position::new(position), entry);
    }
    while queues.poll_timeout().is_some_and(|due| due <= NOW) {
        assert!(queues.poll_delivery(NOW, &mut Nobody).is_none());
    }
    let each = |bytes: usize, before: usize| bytes.saturating_sub(before) as f64 / COUNT as f64;
    let (anonymous, _) = resident();
    let (heap, anonymous) = (each(allocated(), before.0), each(anonymous, before.1.0));
    let file = memory.file_size() as f64 / COUNT as f64;
    println!("with priority: {heap:.2} bytes on the heap ({anonymous:.2} in pages), {file:.2} in the file");
    assert!(memory.take_failure().is_none());
    assert!((20.0..48.0).contains(&file));
    assert!(heap < 2.0 && anonymous < 4.0);

    let held = allocated();
    let mut snapshot = Snapshot::new(&memory);
    while !queues.write_snapshot(queue, &mut snapshot, 1 << 18, 0) {}
    let size = each(snapshot.parts().map(<[u8]>::len).sum(), 0);
    let heap = each(allocated(), held);
    println!("a snapshot: {size:.2} bytes, {heap:.2} of the heap");
    assert!(size > 10.0 && heap < 0.5);
    drop(snapshot);

    memory.page_out().unwrap();
    let (_, all) = resident();
    let left = each(all, before.1.1);
    println!("paged out: {left:.2} bytes in memory");
    assert!(left < 4.0);

    queues.hold(subscription, false);
    let mut last = u64::MAX;
    for _ in 0..100_000 {
        let delivery = queues.poll_delivery(NOW, &mut Nobody).unwrap();
        let priority = scattered(delivery.position.get());
        assert!(priority <= last);
        last = priority;
        let done = queues.settle(queue, CONNECTION, Verdict::Acknowledge, &[delivery.position], NOW);
        assert_eq!(done, 1);
    }
    assert_eq!(queues.stats(queue, NOW).unwrap().queue_depth, COUNT - 100_000);
}
