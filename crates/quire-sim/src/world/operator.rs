//! An operator creates and drops queues while everything else goes wrong. It remembers the answers: a queue whose creation was answered
//! exists after every crash, with the same settings, and a queue whose drop was answered does not. A command without an answer leaves
//! the queue as it was before or after the command.

use quire_broker::{ConnectionId, QueueSettings};
use quire_command::{Code, Command, DefineQueue, Logon, Reply};
use quire_types::time::Now;
use quire_wire::{Decode, Encode, Inbox, VERSION};

use super::network::Network;
use super::server::Server;
use crate::random::Random;

const NAME: &str = "operator";
const QUEUE_COUNT: usize = 3;
/// The number of each command: one is sent at a time.
const COMMAND: u32 = 1;

pub(super) struct Operator {
    /// Number of its process in the network.
    number: usize,
    random: Random,
    life: Option<Life>,
    /// Whether each queue exists; `None`: a command about it was not answered, or failed.
    exists: [Option<bool>; QUEUE_COUNT],
    answers: u64,
}

/// One connection.
struct Life {
    connection: ConnectionId,
    inbox: Inbox,
    is_logged_on: bool,
    /// The queue of the command that is not answered yet, and whether it is to be created.
    asked: Option<(usize, bool)>,
}

impl Operator {
    pub fn new(number: usize, random: Random) -> Self {
        Operator { number, random, life: None, exists: [Some(false); QUEUE_COUNT], answers: 0 }
    }

    /// Commands that were answered.
    pub fn answer_count(&self) -> u64 {
        self.answers
    }

    /// Its action at this step.
    pub fn act(&mut self, now: Now, network: &mut Network, server: &Server) {
        match &mut self.life {
            None if server.is_running() && self.random.percent(30) => {
                let connection = network.connect(self.number);
                let inbox = Inbox::new(1 << 20);
                self.life = Some(Life { connection, inbox, is_logged_on: false, asked: None });
                let mut bytes = Vec::new();
                let logon = Logon { version: VERSION, client_name: NAME, ..Logon::default() };
                Command::Logon(logon).encode(&mut bytes);
                network.send_up(connection, now.instant.as_ns(), bytes);
            }
            None => (),
            Some(_) if self.random.percent(2) => self.leave(network),
            Some(life) if life.is_logged_on && life.asked.is_none() && self.random.percent(20) => {
                let queue = self.random.below(QUEUE_COUNT as u64) as usize;
                let creates = self.random.percent(60);
                life.asked = Some((queue, creates));
                let (name, settings) = (name(queue), settings(queue).to_json());
                let action = match creates {
                    true => DefineQueue::Create { settings: &settings },
                    false => DefineQueue::Drop { queue: &name },
                };
                let mut bytes = Vec::new();
                Command::DefineQueue { command: COMMAND, action }.encode(&mut bytes);
                network.send_up(life.connection, now.instant.as_ns(), bytes);
            }
            Some(_) => (),
        }
    }

    /// Begins nothing new.
    pub fn settle(&mut self, network: &mut Network) {
        network.client_is_gone(self.number);
        self.life = None;
    }

    fn leave(&mut self, network: &mut Network) {
        let Some(life) = self.life.take() else { return };
        network.leave(life.connection);
        if let Some((queue, _)) = life.asked {
            self.exists[queue] = None;
        }
    }

    /// Reads the replies that have arrived. Returns whether there were any.
    ///
    /// # Errors
    /// The server does not speak the protocol, or an answer contradicts an earlier one.
    pub fn turn(&mut self, now: Now, network: &mut Network) -> Result<bool, String> {
        let Some(life) = &mut self.life else { return Ok(false) };
        let mut is_busy = false;
        while let Some(bytes) = network.take_down(life.connection, now.instant.as_ns()) {
            is_busy = true;
            let mut rest = &bytes[..];
            let wrong = |error| format!("the operator does not understand the server: {error}");
            while let Some(frame) = life.inbox.next(&mut rest).map_err(wrong)? {
                let answer = match Reply::decode(frame).map_err(wrong)? {
                    Reply::LoggedOn(_) => {
                        life.is_logged_on = true;
                        continue;
                    }
                    Reply::Stats { json, .. } => Ok(json.contains("\"existed\":true")),
                    Reply::Ack(ack) => Err(ack.code),
                    _ => continue,
                };
                if let Some((queue, creates)) = life.asked.take() {
                    self.answers += 1;
                    let before = self.exists[queue];
                    self.exists[queue] = judge(before, creates, answer)
                        .map_err(|wrong| format!("{}: {wrong}", name(queue)))?;
                }
            }
        }
        if !network.is_open(life.connection) || network.has_ended(life.connection) {
            self.leave(network);
            return Ok(true);
        }
        Ok(is_busy)
    }
}

/// Whether the queue exists after the answer to a command about it. The answer is whether a created queue existed before, or a refusal.
fn judge(before: Option<bool>, creates: bool, answer: Result<bool, Code>) -> Result<Option<bool>, String> {
    let contradicts = |existed: bool| before.is_some_and(|before| before != existed);
    match (creates, answer) {
        (true, Ok(existed)) if contradicts(existed) => {
            Err(format!("existed: {existed}, known was {before:?}"))
        }
        (true, Ok(_)) => Ok(Some(true)),
        (false, Ok(_)) if contradicts(true) => Err("it was dropped twice".to_owned()),
        (false, Err(Code::UnknownQueue)) if contradicts(false) => Err("it is gone".to_owned()),
        (false, Ok(_) | Err(Code::UnknownQueue)) => Ok(Some(false)),
        // A write that failed may have changed the file.
        (_, Err(Code::StorageFull | Code::StorageFailed)) => Ok(None),
        (_, Err(code)) => Err(format!("the command is refused with {code}")),
    }
}

fn name(queue: usize) -> String {
    format!("created-{queue}")
}

fn settings(queue: usize) -> QueueSettings {
    QueueSettings {
        name: name(queue),
        underlying_topic: Some("^recorded/".into()),
        default_publish_target: Some("recorded/created".into()),
        lease_period_ns: Some(1_000_000_000),
        file_backed_metadata: queue == 1,
        target_queue_depth: (queue == 2).then_some(5),
        ..QueueSettings::default()
    }
}
