//! A broker driven without sockets, over a journal in memory that is written by hand, so that no
//! disk is measured.

use std::path::Path;
use std::sync::Arc;

use quire_broker::{Access, Broker, BrokerConfig, ConnectionId, Input, Output, TransportId};
use quire_command::*;
use quire_journal::{Journal, MemoryDisk, Options, Timestamp};
use quire_types::time::{Instant, Now};
use quire_wire::*;

const NOW: Now = Now { instant: Instant(0), wall: Timestamp(1_000_000_000_000_000_000) };

/// A broker, and the number of the last publish.
pub struct Bench {
    /// What is driven.
    pub broker: Broker,
    sequence: u64,
}

impl Default for Bench {
    fn default() -> Self {
        Bench::new()
    }
}

impl Bench {
    /// A broker without connections, over an empty journal.
    pub fn new() -> Self {
        Bench::with(BrokerConfig::default())
    }

    /// The same, configured.
    pub fn with(mut config: BrokerConfig) -> Self {
        let disk = Arc::new(MemoryDisk::new(4 << 30));
        let options = Options { segment_size: 64 << 20, ..Options::default() };
        let (journal, _) = Journal::driven_by_hand(disk, Path::new("journal"), &options).unwrap();
        config.transports[0].max_client_backlog = 1 << 40;
        config.transports[0].max_subscriptions_per_connection = 1 << 20;
        Bench { broker: Broker::new(config, journal).unwrap(), sequence: 0 }
    }

    /// Connects and logs on.
    pub fn connect(&mut self, number: u64, name: &str) {
        self.connect_in_run(number, name, 0);
    }

    /// The same, with a run of the publisher.
    pub fn connect_in_run(&mut self, number: u64, name: &str, run: u64) {
        let connection = ConnectionId(number);
        self.broker.handle(
            NOW,
            Input::Connected {
                connection,
                peer: "bench",
                transport: TransportId::default(),
                access: Access::Client,
            },
        );
        let logon = Logon { version: VERSION, client_name: name, run, ..Logon::default() };
        self.send(number, &Command::Logon(logon));
        self.turn();
    }

    /// Hands in one frame.
    pub fn send(&mut self, number: u64, frame: &Command<'_>) {
        let mut bytes = Vec::new();
        frame.encode(&mut bytes);
        self.broker.handle(NOW, Input::Received { connection: ConnectionId(number), bytes: &bytes });
    }

    /// Subscribes with the given frame as command 1.
    pub fn subscribe(&mut self, connection: u64, subscribe: Subscribe<'_>) {
        self.send(connection, &Command::Subscribe(Subscribe { command: 1, ..subscribe }));
    }

    /// One read's worth of publishes, with data of one size.
    pub fn publishes(&mut self, size: usize, data_size: usize, topic: &str) -> (Vec<u8>, u64) {
        let data = vec![b'x'; data_size];
        let mut bytes = Vec::new();
        let first = self.sequence;
        while bytes.len() < size {
            self.publish(&mut bytes, topic, &data);
        }
        (bytes, self.sequence - first)
    }

    /// Adds a publish with the next sequence number to `bytes`.
    pub fn publish(&mut self, bytes: &mut Vec<u8>, topic: &str, data: &[u8]) {
        self.sequence += 1;
        let publish = Publish {
            sequence: self.sequence,
            expiration_s: None,
            topic: topic.as_bytes(),
            correlation_id: b"",
            headers: quire_types::Headers::NONE,
            delay: quire_types::Delay::None,
            key: b"",
            is_delta: false,
            is_update: false,
            is_numbered: false,
            data,
        };
        Command::Publish(publish).encode(bytes);
    }

    /// Hands in what arrived.
    pub fn receive(&mut self, number: u64, bytes: &[u8]) {
        self.broker.handle(NOW, Input::Received { connection: ConnectionId(number), bytes });
    }

    /// A turn, and those that it asks for; gives the bytes sent.
    pub fn turn(&mut self) -> usize {
        let mut size = 0;
        loop {
            self.broker.finish_turn(NOW);
            let mut did = false;
            while let Some(output) = self.broker.poll_output() {
                match output {
                    Output::Send { bytes, .. } => {
                        size += bytes.len();
                        self.broker.recycle(bytes);
                        did = true;
                    }
                    Output::SendShared { bytes, .. } => {
                        size += bytes.len();
                        did = true;
                    }
                    Output::Read(request) => {
                        self.broker.handle(NOW, Input::ReadDone(request.run()));
                        did = true;
                    }
                    _ => (),
                }
            }
            if !did {
                return size;
            }
        }
    }
}
