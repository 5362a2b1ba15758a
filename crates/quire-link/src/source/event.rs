//! The inputs and outputs of a source.

use quire_types::{Bookmark, Position};
use quire_wire::link::{Member, Offered, Wanted};
use std::time::Duration;

use super::SentFrame;
use crate::{Connection, MemberInfo};

/// A request to the caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourceOutput {
    /// Connect to the address with this place in the settings. Then call
    /// [`begin`](super::Source::begin) or [`handle_not_opened`](super::Source::handle_not_opened).
    Open {
        /// The place of the address.
        address: usize,
    },
    /// Send the bytes.
    Send {
        /// The connection.
        connection: Connection,
        /// Whole frames.
        bytes: Vec<u8>,
    },
    /// Publishers wait for the destination from now on, or do not.
    WaitFor(bool),
    /// The destination has another record with the bookmark of a record that was sent. It keeps its
    /// own, so it does not count as a copy.
    Rejected {
        /// The bookmark.
        bookmark: Bookmark,
        /// The run of the record here. 0: one of the two names no run, and their contents differ.
        run: u64,
    },
    /// Answer a question of the destination. Then call
    /// [`handle_answer`](super::Source::handle_answer).
    Answer {
        /// For the answer.
        number: u64,
        /// The question.
        question: Vec<u8>,
    },
    /// Read these messages, as far as they go to the destination and are among those that were
    /// looked at. Then call [`handle_given`](super::Source::handle_given).
    Give {
        /// For the result.
        number: u64,
        /// The messages.
        ranges: Vec<Wanted>,
    },
    /// Something happened.
    Note(SourceEvent),
    /// Another turn is needed soon.
    Turn,
}

/// An event that the log of the server shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourceEvent {
    /// The destination has answered.
    Up {
        /// The name of the instance.
        instance: String,
        /// Its group.
        group: String,
        /// Records after this position are sent.
        after: Position,
    },
    /// Everything that was in the log at the connect was sent.
    CaughtUp,
    /// The link is not connected.
    Down {
        /// The reason.
        reason: String,
    },
    /// Publishers wait for the destination from now on, or do not.
    WaitedFor {
        /// They wait.
        is_waited_for: bool,
        /// The reason.
        reason: &'static str,
    },
    /// A command has paused the link, or continues it.
    Paused {
        /// It is paused.
        is_paused: bool,
    },
    /// Records that the destination lacks are no longer in the log. The caller describes it with
    /// [`describe_error`](super::Source::describe_error).
    HasGap {
        /// The destination has the records up to this position.
        after: Position,
        /// The first position of the log.
        first: Position,
    },
}

/// The log of the source at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogState {
    /// The position of the first record that it has.
    pub first: Position,
    /// The last position that was given to a record.
    pub appended: Position,
    /// The position up to which it is on the disk.
    pub persisted: Position,
    /// Publishes wait for the disk.
    pub has_publishes: bool,
    /// A single publish waits for the disk: readers with a lag pause for this time at most.
    pub single_publish: Option<Duration>,
}

impl LogState {
    /// The position before the first record.
    pub fn start(&self) -> Position {
        Position::new(self.first.get() - 1)
    }

    /// Whether records after this position are no longer in the log.
    pub(super) fn lacks(&self, after: Position) -> bool {
        after.next() < self.first
    }
}

/// A piece of the log to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Read {
    /// For the result.
    pub number: u64,
    /// Read the records after this position,
    pub after: Position,
    /// and up to this one.
    pub limit: Position,
    /// There are so few that a thread for them would cost more than the read.
    pub is_short: bool,
}

/// The result of a read.
#[derive(Clone, Debug, Default)]
pub struct ReadFound {
    /// Frames of records, to be sent.
    pub frames: Vec<u8>,
    /// A description of each frame, in their order.
    pub sent: Vec<SentFrame>,
    /// Everything up to this position was looked at.
    pub scanned: Position,
    /// The last record that was left out because it came from the destination: the place that it
    /// has there.
    pub last_there: Option<Position>,
    /// The reason why reading cannot continue.
    pub error: Option<String>,
}

/// The parts of `hello` that the caller knows.
#[derive(Clone, Debug, Default)]
pub struct Introduction<'a> {
    /// The name of the instance.
    pub instance: &'a str,
    /// Its group.
    pub group: &'a str,
    /// The start of its process.
    pub started_ns: u64,
    /// The topics that it will send.
    pub topics: Vec<Offered<'a>>,
    /// Checks that are left out.
    pub excluded: Vec<&'a str>,
    /// The instances that it knows, itself first.
    pub members: Vec<Member<'a>>,
}

/// The introduction of a destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Greeted {
    /// The name of the instance.
    pub instance: String,
    /// The start of its process.
    pub started_ns: u64,
    /// It sends to this instance, too.
    pub sends_back: bool,
    /// The instances that it knows, itself first.
    pub members: Vec<MemberInfo>,
}
