//! The part of the log that queues keep in memory has a bound, also when every message was written
//! alone. Counted by the allocator.

mod counting;

use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::{Arc, Mutex};

use counting::allocated;
use quire_broker::{Access, Broker, BrokerConfig, ConnectionId, Input, Output, QueueSettings, TransportId};
use quire_command::{Acks, Bookmarks, Command, Logon, Publish, Selection, Settle, put_bookmark};
use quire_journal::{Journal, MemoryDisk, PublisherId, Timestamp};
use quire_queue::Verdict;
use quire_types::time::{Instant, Now};
use quire_wire::Encode;

/// The allocator counts what the whole process has: one test at a time.
static ALONE: Mutex<()> = Mutex::new(());

/// A server with the queue `jobs`, and one client.
struct Server {
    broker: Broker,
    bytes: Vec<u8>,
}

const CONNECTION: ConnectionId = ConnectionId(1);

impl Server {
    fn new() -> Self {
        let queue =
            QueueSettings { name: "jobs".into(), message_type: "json".into(), ..QueueSettings::default() };
        let config = BrokerConfig { queues: vec![queue], ..BrokerConfig::default() };
        // All messages here are in one segment, because a disk in memory would count, too.
        let options = quire_journal::Options {
            segment_size: 256 << 20,
            first_segment_size: 256 << 20,
            ..config.journal_options()
        };
        let disk = Arc::new(MemoryDisk::new(1 << 30));
        let (journal, _) = Journal::driven_by_hand(disk, Path::new("journal"), &options).unwrap();
        let mut server = Server { broker: Broker::new(config, journal).unwrap(), bytes: Vec::new() };
        server.turn(Input::Connected {
            connection: CONNECTION,
            peer: "127.0.0.1:50000",
            transport: TransportId::default(),
            access: Access::Client,
        });
        server.send(&Command::Logon(Logon { version: 1, client_name: "publisher", ..Logon::default() }));
        server
    }

    fn turn(&mut self, input: Input<'_>) {
        let now = Now { instant: Instant(1), wall: Timestamp(1) };
        self.broker.handle(now, input);
        let mut goes_on = true;
        while goes_on {
            goes_on = false;
            self.broker.finish_turn(now);
            while let Some(output) = self.broker.poll_output() {
                match output {
                    Output::Send { bytes, .. } => self.broker.recycle(bytes),
                    Output::Read(request) => {
                        self.broker.handle(now, Input::ReadDone(request.run()));
                        goes_on = true;
                    }
                    _ => (),
                }
            }
            self.broker.write_journal();
            self.broker.handle(now, Input::Flushed);
        }
    }

    fn send(&mut self, command: &Command<'_>) {
        let mut bytes = std::mem::take(&mut self.bytes);
        bytes.clear();
        command.encode(&mut bytes);
        self.turn(Input::Received { connection: CONNECTION, bytes: &bytes });
        self.bytes = bytes;
    }

    fn publish(&mut self, sequences: RangeInclusive<u64>) {
        for sequence in sequences {
            self.send(&Command::Publish(Publish {
                sequence,
                expiration_s: None,
                topic: b"jobs",
                correlation_id: b"",
                headers: quire_types::Headers::NONE,
                delay: quire_types::Delay::None,
                key: b"",
                is_delta: false,
                is_update: false,
                is_numbered: false,
                data: b"{}",
            }));
        }
    }

    fn acknowledge(&mut self, messages: Selection<'_>) {
        let (verdict, command, acks) = (Verdict::Acknowledge, 0, Acks::default());
        self.send(&Command::Settle(Settle { verdict, command, acks, queue: "jobs", messages, reason: "" }));
    }

    fn acknowledge_bookmarks(&mut self, sequences: RangeInclusive<u64>) {
        let (publisher, mut bytes) = (PublisherId::of_client_name("publisher").get(), Vec::new());
        sequences.for_each(|sequence| put_bookmark(&mut bytes, publisher, sequence));
        self.acknowledge(Selection::Bookmarks(Bookmarks::from_bytes(&bytes).unwrap()));
    }

    fn depth(&self) -> u64 {
        let stats = serde_json::to_value(&self.broker.queue_stats()["jobs"]).unwrap();
        stats["depth"].as_u64().unwrap()
    }
}

#[test]
fn small_messages_that_are_written_one_by_one_do_not_fill_the_memory() {
    let _alone = ALONE.lock();
    let mut server = Server::new();
    let before = allocated();
    server.publish(1..=150_000);
    let grown = (allocated() - before) >> 20;
    assert!(grown < 44, "{grown} MiB");
}

#[test]
fn messages_that_are_acknowledged_again_do_not_fill_the_memory() {
    let _alone = ALONE.lock();
    let mut server = Server::new();
    server.publish(1..=40_000);
    server.turn(Input::Flushed);
    assert_eq!(server.depth(), 40_000);
    server.acknowledge(Selection::Matching(""));
    // Some thousand messages a turn.
    (0..40).for_each(|_| server.turn(Input::Flushed));
    assert_eq!(server.depth(), 0);
    server.acknowledge_bookmarks(1..=1_000);
    let before = allocated();
    for first in (1_001..=40_000).step_by(1_000) {
        server.acknowledge_bookmarks(first..=first + 999);
    }
    let grown = allocated().saturating_sub(before) >> 10;
    assert!(grown < 256, "{grown} KiB");
}
