//! Frames of records for the caller, and the result of recording them.

use std::collections::BTreeMap;
use std::sync::Arc;

use quire_journal::Instance;
use quire_types::{Bookmark, Position};
use quire_wire::link::{Frame, Mark, Records, next_frame, take_records};

use super::InLog;
use super::look_up::Answers;
use crate::replicated::Destinations;
use crate::{Connection, Run, SentRecord};

/// The differences of the two configurations that the source permits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkRules {
    /// Only one of the two keeps last values of a topic.
    pub any_sow: bool,
    /// The keys of a topic have different rules.
    pub any_key: bool,
}

/// The instance at the other end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceInstance {
    /// Its name.
    pub name: Arc<str>,
    /// Its group.
    pub group: Arc<str>,
    /// The start of its process.
    pub started_ns: u64,
}

impl SourceInstance {
    /// Its name and its group, as in the path of a record.
    pub fn as_instance(&self) -> Instance<'_> {
        Instance { name: &self.name, group: &self.group }
    }
}

/// A frame of records of which a part was recorded.
#[derive(Debug)]
pub(super) struct Begun {
    /// The body of the frame when it was compressed.
    pub(super) body: Option<Vec<u8>>,
    /// Bytes of its records that were worked on.
    pub(super) done: usize,
    pub(super) taken: Taken,
    pub(super) answers: Answers,
}

impl Begun {
    pub(super) fn new(appended: Position, body: Option<Vec<u8>>) -> Self {
        let taken = Taken { after: appended, ..Taken::default() };
        Begun { body, done: 0, taken, answers: Answers::default() }
    }
}

/// A frame of records, to be recorded. The caller gives it back with
/// [`handle_taken`](super::Destination::handle_taken),
/// [`handle_not_taken`](super::Destination::handle_not_taken),
/// [`suspend`](super::Destination::suspend) or [`look_up`](super::Destination::look_up).
#[derive(Debug)]
pub struct Arrived {
    pub(super) connection: Connection,
    pub(super) source: SourceInstance,
    pub(super) input: Vec<u8>,
    pub(super) begin: usize,
    pub(super) size: usize,
    pub(super) begun: Begun,
    pub(super) rules: LinkRules,
}

impl Arrived {
    /// The connection on which it came.
    pub fn connection(&self) -> Connection {
        self.connection
    }

    /// The instance that sent it.
    pub fn source(&self) -> Instance<'_> {
        self.source.as_instance()
    }

    /// The start of the process of this instance.
    pub fn source_started_ns(&self) -> u64 {
        self.source.started_ns
    }

    /// The last record of the frame, at its place in the log of the source.
    pub fn last(&self) -> Option<Mark> {
        self.frame().and_then(|records| records.last)
    }

    /// The differences of the two configurations that the source permits.
    pub fn rules(&self) -> LinkRules {
        self.rules
    }

    /// Takes the result so far out. The caller continues it, and gives it back.
    pub fn take_result(&mut self) -> Taken {
        std::mem::take(&mut self.begun.taken)
    }

    /// The records that were not worked on yet, in their order, each with the number of bytes up to
    /// its end.
    ///
    /// # Errors
    /// The bytes after the last one are not a record.
    pub fn records(&self) -> impl Iterator<Item = Result<(SentRecord<'_>, usize), String>> {
        let records = self.frame().map(|records| records.each_after(self.begun.done));
        records.into_iter().flatten().map(|record| {
            let record = record.and_then(|(record, end)| Ok((SentRecord::new(record)?, end)));
            record.map_err(|error| error.to_string())
        })
    }

    /// The bytes of its records that were worked on before.
    pub fn done(&self) -> usize {
        self.begun.done
    }

    /// The answer of the log here about a bookmark. `None`: it was not asked for the bookmark.
    pub fn answer(&self, bookmark: Bookmark) -> Option<InLog> {
        self.begun.answers.get(&bookmark).copied()
    }

    pub(super) fn frame(&self) -> Option<Records<'_>> {
        if let Some(body) = &self.begun.body {
            return take_records(body).ok();
        }
        match next_frame(&self.input[self.begin..self.begin + self.size], usize::MAX) {
            Ok(Some((Frame::Records(records), _))) => Some(records),
            _ => None,
        }
    }
}

/// The result of recording the records of a frame.
#[derive(Clone, Debug, Default)]
pub struct Taken {
    /// Records that were worked on.
    pub record_count: u64,
    /// Those of them that the log had.
    pub duplicate_count: u64,
    /// By hops at the source.
    pub(super) by_hops: BTreeMap<u8, Waiting>,
    /// Records that are not as those of the log here, each with the run to say.
    pub(super) rejected: Vec<(Bookmark, u64)>,
    /// The last position of the log before the frame, and how many of its records the log took.
    after: Position,
    recorded_count: u64,
    /// The last of these, at its place in the log of the source.
    last_there: Option<Position>,
}

/// The condition under which the records with the same hops in a frame are acknowledged.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Waiting {
    pub(super) through: Position,
    pub(super) position: Position,
    pub(super) destinations: Destinations,
}

impl Taken {
    /// The log took a record.
    pub fn note_recorded(&mut self, record: &SentRecord<'_>) {
        self.recorded_count += 1;
        self.last_there = Some(record.position);
    }

    /// The piece of the log that has the records of the frame, when it has nothing else. `appended`
    /// is the last position of the log.
    pub fn run(&self, appended: Position) -> Option<Run> {
        let is_whole = appended.get() - self.after.get() == self.recorded_count;
        let last_there = self.last_there.filter(|_| is_whole)?;
        Some(Run { after: self.after, through: appended, last_there })
    }

    /// A record was at `through` in the log of the source, and is at `position` or earlier here.
    /// Its acknowledgement waits for the destinations.
    pub fn note(&mut self, hops: u8, through: Position, position: Position, destinations: Destinations) {
        let waiting = self.by_hops.entry(hops).or_default();
        waiting.through = waiting.through.max(through);
        waiting.position = waiting.position.max(position);
        waiting.destinations = waiting.destinations.union(destinations);
    }

    /// The log has another record with this bookmark. `run` is that of the record that came, or 0
    /// when it counts as a duplicate nevertheless.
    pub fn note_rejected(&mut self, bookmark: Bookmark, run: u64) {
        self.rejected.push((bookmark, run));
    }
}
