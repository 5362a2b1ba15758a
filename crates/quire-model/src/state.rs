//! The state of a system.

use crate::log::{INSTANCES_MAX, Instances, Log, Message, Messages, Record};
use crate::setup::{Faults, Setup};

/// A whole system.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    /// The instances of the setup. Others are never used.
    pub instances: [Instance; INSTANCES_MAX],
    /// By the numbers of both instances, the smaller one first.
    pub connections: [[Connection; INSTANCES_MAX]; INSTANCES_MAX],
    /// By source and destination.
    pub links: [[Link; INSTANCES_MAX]; INSTANCES_MAX],
    /// The program that publishes.
    pub client: Client,
    /// The numbers of both runs.
    pub runs: [Run; 2],
    /// Messages that their publisher passed over: they were refused, and the next one was recorded.
    pub passed: Messages,
    /// The faults that may still happen.
    pub left: Faults,
    /// For the checks: messages that were confirmed. Messages that were lost with more disks than
    /// there were spare copies are not in it.
    pub confirmed: Messages,
    /// For the checks: logs that were lost since all instances were last complete and connected.
    pub lost: u8,
    /// A message was confirmed that a counted copy does not have.
    pub has_false_confirmation: bool,
    /// A client was let in to an instance that lacked messages which others had.
    pub has_early_logon: bool,
}

/// A server with its log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Instance {
    /// It is not a member yet.
    pub is_absent: bool,
    /// Its log. A record is on the disk as soon as it is appended.
    pub log: Log,
    /// New rule: it may lack records that it had, or that were there before it, and lets no client
    /// in. It is kept in a file.
    pub is_filling: bool,
    /// The instances that have reported that they sent everything. It is lost in a crash.
    pub heard: Instances,
    /// The number of the log of each instance, as far as it is known here. It is kept in a file.
    pub known: LogNumbers,
    /// Marks for instances that are filled, by the instance that made it and the one that it is
    /// for. They are lost in a crash.
    pub marks: [[Mark; INSTANCES_MAX]; INSTANCES_MAX],
    /// Another run has used a sequence, here or at a destination. It is kept in a file.
    pub has_conflict: bool,
    /// An operator has let clients in.
    pub is_admitted: bool,
    /// For the checks: messages that its log ever had.
    pub had: Messages,
    /// Its messages that another instance has rejected, because it has another message with the
    /// sequence. It is kept in a file.
    pub rejected: Messages,
    /// With a mistake only: messages that it has acknowledged and does not have.
    pub acknowledged: Messages,
    /// For the checks: messages that it must have before it lets clients in, because it had them
    /// and another instance has them.
    pub due: Messages,
}

/// The number of the log of each instance. A log that lost records has the next number.
pub type LogNumbers = [u8; INSTANCES_MAX];

/// An instance reports that it has sent everything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Mark {
    /// It is passed on after this many records, plus one; 0: there is no mark.
    pub after: u8,
    /// The logs that the instance knew when it made the mark.
    pub numbers: LogNumbers,
}

/// The connection of two instances, with a link in one or both directions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Connection {
    /// There is none.
    #[default]
    Down,
    /// Both instances have it.
    Up,
    /// One of them was killed. The other one may still read the frames in flight.
    Ended,
}

/// A link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Link {
    /// Records of the log of the source that were looked at.
    pub scanned: u8,
    /// Records that were in the log when the connection was made.
    pub greeted: u8,
    /// Records in flight, the oldest first.
    pub in_flight: [Option<Record>; 2],
    /// The destination has asked for the records of a hole. The source has sent those of them that
    /// it has.
    pub has_asked: bool,
    /// Marks that were passed on, by the instance that made it and the one that it is for.
    pub marked: [Instances; INSTANCES_MAX],
}

/// The numbers of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Run {
    /// The highest sequence in the answer to its first logon.
    pub told: u8,
    /// The sequence of its first message; 0 before the first logon.
    pub first: u8,
}

/// A run of the program, and its connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Client {
    /// 0 is the first run.
    pub run: usize,
    /// The instance that it is connected to.
    pub at: Option<usize>,
    /// Its last sequence, or the highest one in the answer to a logon.
    pub last: u8,
    /// They are persisted up to this one.
    pub persisted: u8,
    /// Messages that the instance has refused on this connection. The answers are lost with the
    /// connection, unless a `persisted` has come for later messages.
    pub refused: Messages,
    /// Its logon was refused because another program uses its name (`NameInUseError`).
    pub is_refused: bool,
}

impl Client {
    /// Its connection ends.
    pub(crate) fn leave(&mut self) {
        (self.at, self.refused) = (None, Messages::default());
    }

    /// The message of this run with a sequence.
    pub fn message(&self, sequence: u8) -> Message {
        Message { run: if self.run == 0 { 1 } else { 2 }, sequence }
    }
}

impl Link {
    /// The number of records in flight.
    pub fn in_flight_count(&self) -> usize {
        self.in_flight.iter().flatten().count()
    }

    pub(crate) fn send(&mut self, record: Record) {
        let place = self.in_flight_count();
        self.in_flight[place] = Some(record);
    }

    pub(crate) fn take(&mut self) -> Option<Record> {
        let [first, second] = self.in_flight;
        self.in_flight = [second, None];
        first
    }
}

impl State {
    /// The begin of a system.
    pub fn new(setup: &Setup) -> Self {
        let mut state = State {
            instances: [Instance::default(); INSTANCES_MAX],
            connections: Default::default(),
            links: Default::default(),
            client: Client::default(),
            runs: [Run::default(); 2],
            passed: Messages::default(),
            left: setup.faults,
            confirmed: Messages::default(),
            lost: 0,
            has_false_confirmation: false,
            has_early_logon: false,
        };
        for number in 0..setup.instance_count {
            let instance = &mut state.instances[number];
            instance.is_absent = setup.faults.joins > 0 && number + 1 == setup.instance_count;
            instance.is_filling = setup.begins_unheard && setup.rule.is_copies();
        }
        state
    }

    /// The instances that take part.
    pub fn members(&self, setup: &Setup) -> Instances {
        let present = (0..setup.instance_count).filter(|number| !self.instances[*number].is_absent);
        present.fold(Instances::default(), Instances::with)
    }

    /// The connection of two instances.
    pub fn connection(&self, one: usize, other: usize) -> Connection {
        self.connections[one.min(other)][one.max(other)]
    }

    pub(crate) fn connection_mut(&mut self, one: usize, other: usize) -> &mut Connection {
        &mut self.connections[one.min(other)][one.max(other)]
    }

    /// The sequence that the message follows: the one before it in its run that was not passed
    /// over, or the highest one in the answer to the first logon of its run.
    pub fn follows(&self, message: Message) -> u8 {
        let run = self.runs[usize::from(message.run - 1)];
        let mut first = message.sequence;
        while first > run.first && self.passed.has(Message { sequence: first - 1, ..message }) {
            first -= 1;
        }
        if first == run.first { run.told } else { first - 1 }
    }

    /// Whether the log of the instance lacks the sequence although a record there follows it.
    pub fn has_hole(&self, instance: usize, sequence: u8) -> bool {
        let log = &self.instances[instance].log;
        let is_followed = log.records().iter().any(|record| self.follows(record.message) == sequence);
        sequence > 0 && is_followed && log.find(sequence).is_none()
    }
}
