//! An operator creates, alters and drops queues while everything else goes wrong. It remembers the
//! answers: a queue whose creation was answered exists after every crash, with the settings of the
//! last answer, and a queue whose drop was answered does not. A command without an answer leaves
//! the queue as it was before or after the command.

use quire_broker::QueueSettings;
use quire_command::{Code, Command, DefineQueue, Logon, Reply};
use quire_types::time::Now;
use quire_wire::{Decode, Encode, Inbox, VERSION};

use super::instance::Instance;
use crate::network::{Arrival, Network, Site};
use crate::random::Random;

const NAME: &str = "operator";
const QUEUE_COUNT: usize = 3;
/// The number of each command: one is sent at a time.
const COMMAND: u32 = 1;

pub(super) struct Operator {
    site: Site,
    /// The instance that it uses.
    pub home: usize,
    random: Random,
    life: Option<Life>,
    /// The known state of each queue; `None`: a command about it was not answered, or failed.
    known: [Option<QueueState>; QUEUE_COUNT],
    answers: u64,
}

/// A queue, as far as commands change it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum QueueState {
    Absent,
    /// It exists, with this limit of deliveries.
    Present {
        max_deliveries: u32,
    },
}

#[derive(Clone, Copy, Debug)]
enum Action {
    Create,
    /// Changes the limit of deliveries, and the expiration with it.
    Alter {
        max_deliveries: u32,
    },
    Drop,
}

/// The limit of deliveries of a queue that was not altered.
const MAX_DELIVERIES: u32 = 50;

/// One connection.
struct Life {
    connection: u64,
    inbox: Inbox,
    is_logged_on: bool,
    /// The queue of the command that is not answered yet, and the command.
    asked: Option<(usize, Action)>,
}

impl Operator {
    pub fn new(number: usize, home: usize, random: Random) -> Self {
        Operator {
            site: Site::Client(number),
            home,
            random,
            life: None,
            known: [Some(QueueState::Absent); QUEUE_COUNT],
            answers: 0,
        }
    }

    /// Commands that were answered.
    pub fn answer_count(&self) -> u64 {
        self.answers
    }

    /// Its action at this step.
    pub fn act(&mut self, now: Now, network: &mut Network, instance: &Instance) {
        match &mut self.life {
            None if instance.is_running() && self.random.percent(30) => {
                let connection = network.connect(self.site, Site::Instance(self.home), now.instant.as_ns());
                let inbox = Inbox::new(1 << 20);
                self.life = Some(Life { connection, inbox, is_logged_on: false, asked: None });
                let mut bytes = Vec::new();
                let logon = Logon { version: VERSION, client_name: NAME, ..Logon::default() };
                Command::Logon(logon).encode(&mut bytes);
                network.send(connection, self.site, now.instant.as_ns(), &bytes);
            }
            None => (),
            Some(_) if self.random.percent(2) => self.leave(now, network),
            Some(life) if life.is_logged_on && life.asked.is_none() && self.random.percent(20) => {
                let queue = self.random.below(QUEUE_COUNT as u64) as usize;
                let action = match self.random.below(10) {
                    0..4 => Action::Create,
                    4..7 => Action::Alter { max_deliveries: MAX_DELIVERIES + self.random.below(3) as u32 },
                    _ => Action::Drop,
                };
                life.asked = Some((queue, action));
                network.send(life.connection, self.site, now.instant.as_ns(), &command(queue, action));
            }
            Some(_) => (),
        }
    }

    /// Begins nothing new.
    pub fn settle(&mut self, now: Now, network: &mut Network) {
        network.site_is_gone(self.site, now.instant.as_ns(), false);
        self.life = None;
    }

    fn leave(&mut self, now: Now, network: &mut Network) {
        let Some(life) = self.life.take() else { return };
        network.close(life.connection, self.site, now.instant.as_ns());
        if let Some((queue, _)) = life.asked {
            self.known[queue] = None;
        }
    }

    /// Reads the replies that have arrived. Returns whether there were any.
    ///
    /// # Errors
    /// The server does not speak the protocol, or an answer contradicts an earlier one.
    pub fn turn(&mut self, now: Now, network: &mut Network) -> Result<bool, String> {
        let Some(life) = &mut self.life else { return Ok(false) };
        let mut is_busy = false;
        while let Some(arrival) = network.take(life.connection, self.site, now.instant.as_ns()) {
            is_busy = true;
            let bytes = match arrival {
                Arrival::Bytes(bytes) => bytes,
                Arrival::Ended => {
                    self.leave(now, network);
                    return Ok(true);
                }
                Arrival::Opened(_) | Arrival::Writable(_) => continue,
            };
            let mut rest = &bytes[..];
            let wrong = |error| format!("the operator does not understand the server: {error}");
            while let Some(frame) = life.inbox.next(&mut rest).map_err(wrong)? {
                let answer = match Reply::decode(frame).map_err(wrong)? {
                    Reply::LoggedOn(_) => {
                        life.is_logged_on = true;
                        continue;
                    }
                    Reply::Stats { json, .. } => {
                        Ok(json.contains("\"existed\":true") || json.contains("\"altered\":[]"))
                    }
                    Reply::Ack(ack) => Err(ack.code),
                    _ => continue,
                };
                if let Some((queue, action)) = life.asked.take() {
                    self.answers += 1;
                    let before = self.known[queue];
                    self.known[queue] = judge(before, action, answer)
                        .map_err(|wrong| format!("{}: {action:?}: {wrong}", name(queue)))?;
                }
            }
        }
        Ok(is_busy)
    }
}

/// The known state of the queue after the answer to a command about it. The answer is whether the
/// command changed nothing, or a refusal.
fn judge(
    before: Option<QueueState>,
    action: Action,
    answer: Result<bool, Code>,
) -> Result<Option<QueueState>, String> {
    let new = QueueState::Present { max_deliveries: MAX_DELIVERIES };
    // Whether the queue can have had a state before the command, and its state after the command.
    type IsPossible = fn(QueueState, QueueState) -> bool;
    let (is_possible, after): (IsPossible, _) = match (action, answer) {
        (Action::Create, Ok(true)) => (|state, new| state == new, Some(new)),
        (Action::Create, Ok(false)) => (|state, _| state == QueueState::Absent, Some(new)),
        // It exists, with another limit. If it was not known before, it still is not.
        (Action::Create, Err(Code::QueueExists)) => {
            (|state, new| state != QueueState::Absent && state != new, before)
        }
        (Action::Alter { max_deliveries }, Ok(is_same)) => {
            let altered = QueueState::Present { max_deliveries };
            if before.is_some_and(|before| (before == altered) != is_same) {
                return Err(format!("is the same: {is_same}, known was {before:?}"));
            }
            (|state, _| state != QueueState::Absent, Some(altered))
        }
        (Action::Drop, Ok(_)) => (|state, _| state != QueueState::Absent, Some(QueueState::Absent)),
        (Action::Alter { .. } | Action::Drop, Err(Code::UnknownQueue)) => {
            (|state, _| state == QueueState::Absent, Some(QueueState::Absent))
        }
        // It has messages from before too many changes of its expiration.
        (Action::Alter { .. }, Err(Code::LimitExceeded)) => (|state, _| state != QueueState::Absent, before),
        // A write that failed may have changed the file.
        (_, Err(Code::StorageFull | Code::StorageFailed)) => return Ok(None),
        (_, Err(code)) => return Err(format!("the command is refused with {code}")),
    };
    match before {
        Some(before) if !is_possible(before, new) => {
            Err(format!("answered {answer:?}, known was {before:?}"))
        }
        _ => Ok(after),
    }
}

/// The frame of a command about a queue.
fn command(queue: usize, action: Action) -> Vec<u8> {
    let (name, settings) = (name(queue), settings(queue).to_json());
    let changes = match action {
        // With the expiration, which is far off, the change is kept with a position of the log.
        Action::Alter { max_deliveries } => format!(
            "{{\"max_deliveries\":{max_deliveries},\"expiration_ns\":{}}}",
            u64::from(max_deliveries) * 1_000_000_000_000
        ),
        Action::Create | Action::Drop => String::new(),
    };
    let action = match action {
        Action::Create => DefineQueue::Create { settings: &settings },
        Action::Alter { .. } => DefineQueue::Alter { queue: &name, changes: &changes },
        Action::Drop => DefineQueue::Drop { queue: &name },
    };
    let mut bytes = Vec::new();
    Command::DefineQueue { command: COMMAND, action }.encode(&mut bytes);
    bytes
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
        max_deliveries: Some(MAX_DELIVERIES),
        expiration_ns: Some(u64::from(MAX_DELIVERIES) * 1_000_000_000_000),
        file_backed_metadata: queue == 1,
        recovery_point: (queue == 0).then(|| "epoch".into()),
        target_queue_depth: (queue == 2).then_some(5),
        ..QueueSettings::default()
    }
}
