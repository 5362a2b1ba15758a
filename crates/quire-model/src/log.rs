//! Messages, records and logs, as small values.

use std::fmt;

use quire_link::decide::Here;

/// Instances of the largest setup.
pub const INSTANCES_MAX: usize = 3;

/// Records of the largest log.
const RECORDS_MAX: usize = 6;

/// Sequences are at most this.
const SEQUENCE_MAX: u8 = 7;

/// A message of the one publisher name. The run is the program that sent it. Two runs can use the
/// same sequence, which is the same bookmark.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Message {
    /// 1 or 2.
    pub run: u8,
    /// From 1.
    pub sequence: u8,
}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.run, self.sequence)
    }
}

/// A set of messages.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Messages(u16);

impl Messages {
    fn bit(message: Message) -> u16 {
        1 << (u16::from(message.run - 1) * u16::from(SEQUENCE_MAX) + u16::from(message.sequence - 1))
    }

    /// Adds a message.
    pub fn insert(&mut self, message: Message) {
        self.0 |= Messages::bit(message);
    }

    /// Whether it has the message.
    pub fn has(self, message: Message) -> bool {
        self.0 & Messages::bit(message) != 0
    }

    /// The messages of both sets together.
    #[must_use]
    pub fn or(self, other: Messages) -> Messages {
        Messages(self.0 | other.0)
    }

    /// The messages that both sets have.
    #[must_use]
    pub fn and(self, other: Messages) -> Messages {
        Messages(self.0 & other.0)
    }

    /// The messages that the other set does not have.
    #[must_use]
    pub fn without(self, other: Messages) -> Messages {
        Messages(self.0 & !other.0)
    }

    /// Its messages.
    pub fn each(self) -> impl Iterator<Item = Message> {
        let all = (1..=2).flat_map(|run| (1..=SEQUENCE_MAX).map(move |sequence| Message { run, sequence }));
        all.filter(move |message| self.has(*message))
    }
}

impl fmt::Debug for Messages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.each()).finish()
    }
}

/// A set of instances.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Instances(pub u8);

impl Instances {
    /// One instance.
    pub fn one(instance: usize) -> Instances {
        Instances(1 << instance)
    }

    /// Whether it has the instance.
    pub fn has(self, instance: usize) -> bool {
        self.0 & (1 << instance) != 0
    }

    /// The set with one more.
    #[must_use]
    pub fn with(self, instance: usize) -> Instances {
        Instances(self.0 | (1 << instance))
    }

    /// The set with one less.
    #[must_use]
    pub fn without(self, instance: usize) -> Instances {
        Instances(self.0 & !(1 << instance))
    }

    /// Whether it has all of the others.
    pub fn contains(self, others: Instances) -> bool {
        others.0 & !self.0 == 0
    }

    /// Its instances.
    pub fn each(self) -> impl Iterator<Item = usize> {
        (0..INSTANCES_MAX).filter(move |instance| self.has(*instance))
    }
}

impl fmt::Debug for Instances {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.each()).finish()
    }
}

/// A record of a log, or on its way to one.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Record {
    /// Its message.
    pub message: Message,
    /// The instances that it passed before.
    pub path: Instances,
    /// The instance that sent it, plus one; 0: it was published here.
    pub source: u8,
}

impl fmt::Debug for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.message)?;
        self.path.each().try_for_each(|passed| write!(f, "<{passed}"))
    }
}

/// The records of an instance, in their order.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Log {
    records: [Record; RECORDS_MAX],
    size: u8,
}

impl fmt::Debug for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.records()).finish()
    }
}

impl Log {
    /// The number of its records.
    pub fn size(&self) -> u8 {
        self.size
    }

    /// Its records.
    pub fn records(&self) -> &[Record] {
        &self.records[..usize::from(self.size)]
    }

    /// Appends a record.
    pub fn append(&mut self, record: Record) {
        self.records[usize::from(self.size)] = record;
        self.size += 1;
    }

    /// The log with its first records only.
    #[must_use]
    pub fn prefix(&self, size: u8) -> Log {
        let mut prefix = Log::default();
        self.records[..usize::from(size)].iter().for_each(|record| prefix.append(*record));
        prefix
    }

    /// The message with this sequence.
    pub fn find(&self, sequence: u8) -> Option<Message> {
        self.records().iter().map(|record| record.message).find(|message| message.sequence == sequence)
    }

    /// The record with this sequence.
    pub fn here(&self, sequence: u8) -> Here {
        let run_of = |message: Message| u64::from(message.run);
        match self.find(sequence) {
            Some(known) => Here::Record { run: run_of(known) },
            None if sequence > self.highest() => Here::Above,
            None => Here::Below { current_run: self.find(self.highest()).map_or(0, run_of) },
        }
    }

    /// Whether it has the message.
    pub fn has(&self, message: Message) -> bool {
        self.records().iter().any(|record| record.message == message)
    }

    /// The highest sequence; 0 in an empty log.
    pub fn highest(&self) -> u8 {
        self.records().iter().map(|record| record.message.sequence).max().unwrap_or(0)
    }

    /// Its messages.
    pub fn messages(&self) -> Messages {
        let mut messages = Messages::default();
        self.records().iter().for_each(|record| messages.insert(record.message));
        messages
    }
}
