//! Background jobs: work that may wait for the disk, and the part of the broker that waits for each job.
//!
//! A part hands a [`Job`] to [`Context::begin_job`]. The driver runs it on another thread and hands in its result. The run loop finds the
//! owner by the number of the job and calls it. A number that is not in the table finds nothing.

use hashbrown::HashMap;
use quire_expression::message_type::Arena;
use quire_expression::unreadable::Unreadables;
use quire_journal::{Bookmark, JournalError, Position, Reader};
use rustc_hash::FxBuildHasher;

use super::Output;
use super::context::Context;
use super::io::ConnectionId;
use super::links::{Comparison, Conflict, LinkFound, LinkReading, PlacesFile};
use super::queues::{Purpose, QueueJob, QueueOutcome};
use crate::replay::{Answer, Found, Located, Question, Reading, ReplayId, decide_all};
use crate::session::SessionId;
use crate::subscription::Range;
use crate::tables::{FoundInstant, SnapshotFile, find_bookmark};

/// A job that reads from the journal, or writes a file next to it. It may block on the disk: run it off the loop, then hand the result back
/// as `Input::ReadDone`. Requests are independent of each other and may be run in any order, on any thread.
pub struct ReadRequest {
    number: u64,
    job: Job,
    /// For the messages that the job reads.
    unreadables: Unreadables,
}

/// The result of a [`ReadRequest`].
pub struct ReadDone {
    pub(super) number: u64,
    pub(super) outcome: Outcome,
}

/// A [`ReadRequest`] that is being run: what is left of it when running it panics.
#[derive(Clone, Copy, Debug)]
pub struct ReadTicket(u64);

/// What is to be done.
pub(crate) enum Job {
    /// Find where a range of the log begins and ends.
    Locate { reader: Reader, range: Range, now: Position },
    /// Read for a replay.
    Read(Box<Reading>),
    /// Evaluate filters.
    Decide(Vec<Question>),
    /// Read or write for queues.
    Queue(QueueJob),
    /// Write a snapshot of a last-value topic.
    Snapshot(Box<SnapshotFile>),
    /// Find the position and the time of a message.
    FindBookmark { reader: Reader, bookmark: Bookmark },
    /// Read records for another instance.
    Link(Box<LinkReading>),
    /// Compare the duplicates of another instance with the log.
    Compare(Comparison),
    /// Write where the destinations are.
    LinkPlaces(PlacesFile),
}

/// The result of a job.
pub(crate) enum Outcome {
    Located(Result<Located, JournalError>),
    Read(Box<Found>),
    Decided(Vec<Answer>),
    Queue(QueueOutcome),
    Snapshot(Result<(), JournalError>),
    BookmarkFound(Result<Option<FoundInstant>, JournalError>),
    Link(Box<LinkFound>),
    Compared(Vec<Conflict>),
    LinkPlaces(Result<(), JournalError>),
    /// A bug of ours: nothing was found, and nothing is known.
    Panicked,
}

/// The part that waits for a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JobOwner {
    /// The search for the start of a subscription of this session.
    Search(SessionId),
    Replay(ReplayId),
    /// Ordinary subscriptions whose filters take long.
    Decide,
    Queue(Purpose),
    /// A snapshot of a last-value topic.
    Snapshot,
    /// A query of this session, of a state after a message.
    FindBookmark(SessionId),
    /// The link to this destination.
    Link(usize),
    /// The connection of another instance, of the message that it says is here.
    LinkMark(ConnectionId),
    /// The connection of another instance, of the duplicates that it sent.
    LinkDuplicates(ConnectionId),
    /// Where the destinations are.
    LinkPlaces,
}

/// The jobs under way.
#[derive(Default)]
pub(crate) struct Work {
    /// That of the last job.
    number: u64,
    owners: HashMap<u64, JobOwner, FxBuildHasher>,
}

impl Work {
    fn begin(&mut self, owner: JobOwner) -> u64 {
        self.number += 1;
        self.owners.insert(self.number, owner);
        self.number
    }

    /// Takes a job that is done out of the table; gives its owner.
    pub(super) fn finish(&mut self, number: u64) -> Option<JobOwner> {
        self.owners.remove(&number)
    }
}

impl Context {
    /// Has a job run on another thread; gives its number.
    pub(crate) fn begin_job(&mut self, owner: JobOwner, job: Job) -> u64 {
        let number = self.work.begin(owner);
        let unreadables = self.unreadable.reports().clone();
        self.outputs.push_back(Output::Read(ReadRequest { number, job, unreadables }));
        number
    }
}

impl ReadRequest {
    /// What to keep while [`ReadRequest::run`] runs.
    pub fn ticket(&self) -> ReadTicket {
        ReadTicket(self.number)
    }

    /// Runs the job. Never panics on any content of a disk.
    pub fn run(self) -> ReadDone {
        let arena = Arena::reporting_to(&self.unreadables);
        let outcome = match self.job {
            Job::Locate { reader, range, now } => Outcome::Located(range.locate(&reader, now)),
            Job::Read(reading) => Outcome::Read(Box::new(reading.run(arena))),
            Job::Decide(questions) => Outcome::Decided(decide_all(questions, arena)),
            Job::Queue(work) => Outcome::Queue(work.run(arena)),
            Job::Link(reading) => Outcome::Link(Box::new(reading.run(arena))),
            Job::Compare(comparison) => Outcome::Compared(comparison.run()),
            Job::LinkPlaces(file) => Outcome::LinkPlaces(file.write()),
            Job::Snapshot(file) => Outcome::Snapshot(file.write()),
            Job::FindBookmark { reader, bookmark } => {
                Outcome::BookmarkFound(find_bookmark(&reader, bookmark))
            }
        };
        ReadDone { number: self.number, outcome }
    }
}

impl ReadTicket {
    /// The read panicked. Its owner gets this result instead of waiting forever.
    pub fn panicked(self) -> ReadDone {
        ReadDone { number: self.0, outcome: Outcome::Panicked }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finished_job_is_found_once() {
        let mut work = Work::default();
        let (first, second) = (work.begin(JobOwner::Decide), work.begin(JobOwner::Queue(Purpose::Save)));
        assert_eq!(work.finish(second), Some(JobOwner::Queue(Purpose::Save)));
        assert_eq!(work.finish(second), None);
        assert_eq!(work.finish(first), Some(JobOwner::Decide));
        assert_eq!(work.finish(second + 1), None);
    }
}
