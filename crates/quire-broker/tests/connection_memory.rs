//! A connection that has ended leaves no memory in a broker, counted by the allocator. A client
//! name that published leaves the state that finds its duplicates.

mod counting;

use std::path::Path;
use std::sync::Arc;

use counting::allocated;
use quire_broker::{Access, Broker, BrokerConfig, ConnectionId, Input, Output, TransportId};
use quire_command::{Command, Logon, Publish};
use quire_journal::{Journal, MemoryDisk, Timestamp};
use quire_types::time::{Instant, Now};
use quire_wire::Encode;

/// A driver as the server has it: it gives buffers back.
struct Driver {
    broker: Broker,
    connections: u64,
}

impl Driver {
    fn new() -> Self {
        let config = BrokerConfig::default();
        let disk = Arc::new(MemoryDisk::new(1 << 30));
        // All messages here are in one segment, because a disk in memory would count, too.
        let options = quire_journal::Options {
            segment_size: 256 << 20,
            first_segment_size: 256 << 20,
            ..config.journal_options()
        };
        let (journal, _) = Journal::driven_by_hand(disk, Path::new("journal"), &options).unwrap();
        Driver { broker: Broker::new(config, journal).unwrap(), connections: 0 }
    }

    /// A client logs on, publishes if it has a sequence, and goes.
    fn connection(&mut self, client_name: &str, sequence: Option<u64>) {
        self.connections += 1;
        let connection = ConnectionId(self.connections);
        let now = Now {
            instant: Instant(self.connections * 1_000_000),
            wall: Timestamp(self.connections * 1_000_000),
        };
        let mut bytes = Vec::new();
        Command::Logon(Logon { version: 1, client_name, ..Logon::default() }).encode(&mut bytes);
        if let Some(sequence) = sequence {
            let publish = Publish {
                sequence,
                expiration_s: None,
                topic: b"t",
                correlation_id: b"",
                headers: quire_types::Headers::NONE,
                delay: quire_types::Delay::None,
                key: b"",
                is_delta: false,
                is_update: false,
                is_numbered: false,
                data: b"x",
            };
            Command::Publish(publish).encode(&mut bytes);
        }
        self.broker.handle(
            now,
            Input::Connected {
                connection,
                peer: "127.0.0.1:50000",
                transport: TransportId::default(),
                access: Access::Client,
            },
        );
        self.broker.handle(now, Input::Received { connection, bytes: &bytes });
        self.turn(now);
        self.broker.write_journal();
        self.broker.handle(now, Input::Flushed);
        self.turn(now);
        self.broker.handle(now, Input::Disconnected { connection });
        self.turn(now);
    }

    fn turn(&mut self, now: Now) {
        self.broker.finish_turn(now);
        while let Some(output) = self.broker.poll_output() {
            if let Output::Send { bytes, .. } = output {
                self.broker.recycle(bytes);
            }
        }
    }

    /// The bytes that each connection leaves, after the same number of earlier connections.
    fn left_by_each(&mut self, count: u64, mut name: impl FnMut(u64) -> (String, Option<u64>)) -> f64 {
        let mut before = 0;
        for number in 0..2 * count {
            if number == count {
                before = allocated();
            }
            let (client_name, sequence) = name(number);
            self.connection(&client_name, sequence);
        }
        (allocated() - before) as f64 / count as f64
    }
}

#[test]
fn a_connection_leaves_nothing_and_a_new_name_that_published_a_hundred_bytes() {
    let count = 20_000;
    let silent = Driver::new().left_by_each(count, |number| (format!("name-{number}"), None));
    println!("a new name that published nothing: {silent:.1} bytes");
    assert!(silent < 1.0);

    let again = Driver::new().left_by_each(count, |number| ("one name".to_owned(), Some(number + 1)));
    println!("one name that publishes: {again:.1} bytes");
    assert!(again < 1.0);

    let new = Driver::new().left_by_each(count, |number| (format!("name-{number}"), Some(1)));
    println!("a new name that published: {new:.1} bytes");
    assert!(new < 130.0);

    let mut driver = Driver::new();
    let returning =
        driver.left_by_each(count, |number| (format!("name-{}", number % count), Some(1 + number / count)));
    println!("a name that comes back: {returning:.1} bytes");
    // Its place in another block of the log, for as long as that journal file is there.
    assert!(returning < 40.0);
}
