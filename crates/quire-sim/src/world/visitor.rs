//! A peer that follows docs/protocol.md exactly and waits for nothing: it logs on, publishes, says
//! goodbye, and leaves at any step. Its publishes are valid, refused by the thousand, or both. It
//! exchanges frames without the client core, because the client core waits for answers.

use quire_command::{Command, Logon, Publish, Reply};
use quire_types::time::Now;
use quire_wire::{Decode, Encode, Inbox, VERSION};

use super::auditor::{Auditor, Value};
use super::instance::Instance;
use crate::network::{Arrival, Network, Site};
use crate::random::Random;

/// The most refused messages at a time: their refusals exceed each `max_client_backlog` of the
/// simulation.
const REFUSED_MAX: u64 = 4_000;

pub(super) struct Visitor {
    /// Its number as a publisher.
    number: usize,
    site: Site,
    /// The instance that it uses.
    pub home: usize,
    name: String,
    random: Random,
    life: Option<Life>,
    /// The last sequence used under the name.
    sequence: u64,
    visits: u64,
}

/// One connection.
struct Life {
    connection: u64,
    inbox: Inbox,
    /// The unacknowledged publishes of this connection, by sequence.
    sent: Vec<(u64, Value)>,
    /// Steps until it leaves without a word.
    steps_left: u64,
    said_goodbye: bool,
}

impl Visitor {
    pub fn new(number: usize, home: usize, random: Random) -> Self {
        let name = format!("visitor-{number}");
        Visitor { number, site: Site::Client(number), home, name, random, life: None, sequence: 0, visits: 0 }
    }

    /// Connections made.
    pub fn visit_count(&self) -> u64 {
        self.visits
    }

    /// One step of the visitor.
    pub fn act(&mut self, now: Now, network: &mut Network, instance: &Instance, auditor: &mut Auditor) {
        match &mut self.life {
            None if instance.is_running() && self.random.percent(60) => {
                let connection = network.connect(self.site, Site::Instance(self.home), now.instant.as_ns());
                self.visits += 1;
                let steps_left = self.random.below(6);
                self.life = Some(Life {
                    connection,
                    inbox: Inbox::new(1 << 20),
                    sent: Vec::new(),
                    steps_left,
                    said_goodbye: false,
                });
                let logon =
                    Command::Logon(Logon { version: VERSION, client_name: &self.name, ..Logon::default() });
                let mut bytes = Vec::new();
                logon.encode(&mut bytes);
                // Often everything arrives with the logon, the goodbye included.
                while self.random.percent(60) {
                    self.say_more(&mut bytes, auditor);
                }
                network.send(connection, self.site, now.instant.as_ns(), &bytes);
            }
            None => (),
            Some(life) if life.steps_left == 0 => {
                let connection = life.connection;
                network.close(connection, self.site, now.instant.as_ns());
                self.life = None;
            }
            Some(life) => {
                life.steps_left -= 1;
                let connection = life.connection;
                let mut bytes = Vec::new();
                self.say_more(&mut bytes, auditor);
                network.send(connection, self.site, now.instant.as_ns(), &bytes);
            }
        }
    }

    /// Nothing new is begun any more.
    pub fn settle(&mut self, now: Now, network: &mut Network) {
        network.site_is_gone(self.site, now.instant.as_ns(), false);
        self.life = None;
    }

    fn say_more(&mut self, bytes: &mut Vec<u8>, auditor: &mut Auditor) {
        let Some(life) = self.life.as_mut().filter(|life| !life.said_goodbye) else { return };
        match self.random.below(10) {
            0..=4 => {
                for _ in 0..1 + self.random.below(4) {
                    let (value, topic, data) = auditor.next(&mut self.random);
                    self.sequence += 1;
                    publish(self.sequence, topic, &data).encode(bytes);
                    auditor.taken(self.number, topic, None, false);
                    life.sent.push((self.sequence, value));
                }
            }
            5..=6 => {
                // Messages without a topic are refused one by one.
                let count = 1 + self.random.below(REFUSED_MAX);
                for _ in 0..count {
                    self.sequence += 1;
                    publish(self.sequence, "", "").encode(bytes);
                }
            }
            _ => {
                Command::Goodbye.encode(bytes);
                life.said_goodbye = true;
            }
        }
    }

    /// Reads the received bytes. Returns whether there were any.
    ///
    /// # Errors
    /// The server violates the protocol.
    pub fn turn(&mut self, now: Now, network: &mut Network, auditor: &mut Auditor) -> Result<bool, String> {
        let Some(life) = &mut self.life else { return Ok(false) };
        let mut is_busy = false;
        while let Some(arrival) = network.take(life.connection, self.site, now.instant.as_ns()) {
            is_busy = true;
            let bytes = match arrival {
                Arrival::Bytes(bytes) => bytes,
                Arrival::Ended => {
                    network.close(life.connection, self.site, now.instant.as_ns());
                    self.life = None;
                    return Ok(true);
                }
                Arrival::Opened(_) | Arrival::Writable(_) => continue,
            };
            let mut rest = &bytes[..];
            let wrong = |error| format!("{} does not understand the server: {error}", self.name);
            while let Some(frame) = life.inbox.next(&mut rest).map_err(wrong)? {
                if let Reply::Persisted { sequence } = Reply::decode(frame).map_err(wrong)? {
                    // It is unknown which publishes of earlier connections arrived.
                    life.sent.retain(|(sent, value)| {
                        if *sent <= sequence {
                            auditor.persisted(*value);
                        }
                        *sent > sequence
                    });
                }
            }
        }
        Ok(is_busy)
    }
}

fn publish<'a>(sequence: u64, topic: &'a str, data: &'a str) -> Command<'a> {
    Command::Publish(Publish {
        sequence,
        expiration_s: None,
        topic: topic.as_bytes(),
        correlation_id: b"",
        headers: quire_types::Headers::NONE,
        delay: quire_types::Delay::None,
        key: b"",
        is_delta: false,
        is_update: false,
        is_numbered: false,
        data: data.as_bytes(),
    })
}
