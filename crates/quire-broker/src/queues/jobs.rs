//! The jobs of queues on reader threads, and the handling of their results.

use std::sync::Arc;

use quire_journal::{
    AllTopics, Batch, Bookmark, JournalError, Position, Reader, Record, RecordKind, Timestamp, TopicFilter,
};

use super::define::WriteCreated;
use super::enter::received_at;
use super::fill::{FillJob, Portion};
use super::query::{Page, PageFound};
use super::sidecars::{QueuePoints, QueuePointsFile, QueueStates};
use super::snapshots::State;
use super::{Definition, QueueService};
use crate::context::Context;
use crate::session::SessionId;
use crate::work::{Job, JobOwner};
use quire_expression::filter::Filter;
use quire_expression::message_type::Arena;
use quire_queue::{Entry, QueueId, Time, WaitingMessage};
use quire_scan::context_of;
use quire_table::Order;

/// The purpose of a job for queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Messages from this position on. `is_ahead`: nothing waits for them yet.
    Fetch { from: Position, is_ahead: bool },
    /// A settle of this session.
    Settle(SessionId),
    /// A query of this session.
    Query(SessionId),
    /// Messages of this queue that become active.
    Refill(QueueId),
    /// Messages of this queue from before its creation.
    Fill(QueueId),
    /// The file `queues.ack`.
    Save,
    /// The file with the state of a queue.
    Snapshot,
    /// The file with the queues that were created at run time.
    Define,
}

/// Bytes of the log that a fetch reads for a message that may be wanted alone, as it is when priorities are scattered over a queue.
pub(super) const FETCH_SIZE_ALONE: usize = 128 * 1024;

/// The same for a job that continues where an earlier fetch ended: some hundred messages of common size, and a few milliseconds of a slow
/// disk.
pub(super) const FETCH_SIZE_AHEAD: usize = 1024 * 1024;

/// Something to read for queues. See [`ReadRequest`](crate::ReadRequest).
pub(crate) enum QueueJob {
    /// The batches of the log from a position on, about `size` bytes of them.
    Fetch {
        reader: Reader,
        from: Position,
        limit: Position,
        size: usize,
        definitions: Arc<[Arc<Definition>]>,
    },
    /// The messages of one queue with these bookmarks.
    Find { reader: Reader, bookmarks: Vec<Bookmark>, definition: Arc<Definition> },
    /// Those of these messages that match.
    Match { reader: Reader, positions: Vec<Position>, filter: Filter, now: Timestamp },
    /// A page of the answer to a query.
    Page { reader: Reader, page: Page },
    /// The positions of the answer to a query in its order.
    Sort { reader: Reader, page: Page, order: Order },
    /// Messages that become active, from a position on.
    Refill(Refill),
    /// A portion of the log for a queue that was created.
    Fill(FillJob),
    /// Keep how far the queues are done.
    WriteSettled { file: QueuePointsFile, points: QueuePoints },
    /// Keep the state of a queue.
    WriteSnapshot { files: QueueStates, state: State },
    /// Remove the state of a removed queue.
    RemoveSnapshot { files: QueueStates, queue: Arc<str> },
    /// Keep the queues that were created at run time.
    WriteCreated(WriteCreated),
}

/// What to read for a queue with a target depth.
pub(crate) struct Refill {
    pub reader: Reader,
    pub after: Position,
    /// The most messages.
    pub count: u64,
    pub limit: Position,
    pub definition: Arc<Definition>,
    /// Both clocks: the ages of messages are measured by the wall clock.
    pub now: Time,
    pub wall: Timestamp,
}

/// The result of a job.
pub(crate) enum QueueOutcome {
    Fetched(Fetched),
    Found(Vec<Position>),
    Page(PageFound),
    Sorted(Result<(Vec<WaitingMessage>, u64), JournalError>),
    Refilled(Result<Vec<(Position, Entry)>, JournalError>),
    Filled(Result<Portion, JournalError>),
    Saved(Result<(), JournalError>),
}

/// The result of a fetch.
#[derive(Default)]
pub(crate) struct Fetched {
    pub batches: Vec<Batch>,
    /// There is more after the last one.
    pub is_full: bool,
    /// Why it ended early.
    pub error: Option<JournalError>,
}

impl QueueJob {
    pub(crate) fn run(self, arena: Arena) -> QueueOutcome {
        match self {
            QueueJob::Fetch { reader, from, limit, size, definitions } => {
                QueueOutcome::Fetched(fetch(&reader, from, limit, size, &definitions))
            }
            QueueJob::Find { reader, bookmarks, definition } => {
                let find = |bookmark| find(&reader, bookmark, &definition);
                QueueOutcome::Found(bookmarks.into_iter().filter_map(find).collect())
            }
            QueueJob::Match { reader, positions, filter, now } => {
                QueueOutcome::Found(matching(reader, positions, &filter, now, arena))
            }
            QueueJob::Page { reader, page } => QueueOutcome::Page(page.run(reader, arena)),
            QueueJob::Sort { reader, page, order } => QueueOutcome::Sorted(page.sort(reader, &order, arena)),
            QueueJob::Refill(refill) => QueueOutcome::Refilled(refill.run(arena)),
            QueueJob::Fill(fill) => QueueOutcome::Filled(fill.run(arena)),
            QueueJob::WriteSettled { file, points } => QueueOutcome::Saved(file.write(&points)),
            QueueJob::WriteSnapshot { files, state } => QueueOutcome::Saved(state.write(&files)),
            QueueJob::RemoveSnapshot { files, queue } => QueueOutcome::Saved(files.remove(&queue)),
            QueueJob::WriteCreated(write) => QueueOutcome::Saved(write.run()),
        }
    }
}

fn fetch(
    reader: &Reader,
    from: Position,
    limit: Position,
    size_max: usize,
    definitions: &[Arc<Definition>],
) -> Fetched {
    let mut cursor = reader.cursor(Position::new(from.get().saturating_sub(1))).sparingly();
    let mut fetched = Fetched::default();
    let mut size = 0;
    while size < size_max {
        // A batch in memory holds all bytes that were read with it.
        cursor.set_read_step(size_max - size);
        match cursor.next(limit, &LoggingOn(definitions)) {
            Ok(Some(batch)) => {
                size += batch.size();
                fetched.batches.push(batch);
            }
            Ok(None) => return fetched,
            Err(error) => {
                fetched.error = Some(error);
                return fetched;
            }
        }
    }
    fetched.is_full = true;
    fetched
}

/// The position of a message, if it can be one of the queue's. A message that cannot be read is not found.
fn find(reader: &Reader, bookmark: Bookmark, definition: &Definition) -> Option<Position> {
    let position = reader.find(bookmark).ok()??;
    let mut cursor = reader.cursor(Position::new(position.get() - 1)).sparingly();
    let batch = cursor.next(position, &quire_journal::AllTopics).ok()??;
    let record = batch.records().last()?;
    definition.takes(&record).then_some(position)
}

/// Those of the messages that match. A message that cannot be read does not match.
fn matching(
    reader: Reader,
    mut positions: Vec<Position>,
    filter: &Filter,
    now: Timestamp,
    mut arena: Arena,
) -> Vec<Position> {
    let mut lookup = Lookup::new(reader);
    positions.retain(|position| {
        let record = lookup.get(*position).ok().flatten();
        let message = record.as_ref().and_then(|record| context_of(record, now));
        message.is_some_and(|message| filter.matches_with(&message, &mut arena))
    });
    positions
}

impl Refill {
    fn run(self, mut arena: Arena) -> Result<Vec<(Position, Entry)>, JournalError> {
        let mut entries = Vec::new();
        let mut cursor = self.reader.cursor(self.after).sparingly();
        let wanted = [self.definition.clone()];
        while let Some(batch) = cursor.next(self.limit, &LoggingOn(&wanted))? {
            for record in batch.records() {
                if entries.len() as u64 == self.count {
                    return Ok(entries);
                }
                let received = received_at(&record, self.now, self.wall);
                if self.definition.takes(&record)
                    && let Some(entry) = self.definition.entry_of(&record, received, self.wall, &mut arena)
                {
                    entries.push((record.position, entry));
                }
            }
        }
        Ok(entries)
    }
}

/// The topics whose messages enter any of these queues.
pub(super) struct LoggingOn<'a>(pub &'a [Arc<Definition>]);

impl TopicFilter for LoggingOn<'_> {
    fn wants(&self, topic: &str) -> bool {
        self.0.iter().any(|definition| definition.selector.matches(topic))
    }
}

/// Reads messages by their positions: one near the last one costs no search. May wait for the disk.
pub(super) struct Lookup {
    reader: Reader,
    batch: Option<(Batch, Vec<u32>)>,
}

impl Lookup {
    pub fn new(reader: Reader) -> Self {
        Lookup { reader, batch: None }
    }

    /// The message at a position; `None` when there is none.
    ///
    /// # Errors
    /// Damage where it should be.
    pub fn get(&mut self, position: Position) -> Result<Option<Record<'_>>, JournalError> {
        let is_here = |(batch, _): &(Batch, Vec<u32>)| batch.first() <= position && position <= batch.last();
        if !self.batch.as_ref().is_some_and(is_here) {
            let Some(before) = position.get().checked_sub(1) else { return Ok(None) };
            let mut cursor = self.reader.cursor(Position::new(before)).sparingly();
            let batch = cursor.next(self.reader.persisted(), &AllTopics)?;
            self.batch = batch.map(|batch| {
                let offsets = batch.offsets();
                (batch, offsets)
            });
        }
        let Some((batch, offsets)) = self.batch.as_ref().filter(|batch| is_here(batch)) else {
            return Ok(None);
        };
        let offset = offsets.get((position.get() - batch.first().get()) as usize);
        let record = offset.and_then(|offset| batch.record_at(*offset, position));
        Ok(record.filter(|record| record.kind == RecordKind::Publish))
    }
}

impl QueueService {
    /// A job for queues has been done; or not, by a bug of ours.
    pub(crate) fn work_done(
        &mut self,
        cx: &mut Context,
        number: u64,
        purpose: Purpose,
        found: Option<QueueOutcome>,
    ) {
        match purpose {
            Purpose::Fetch { from, is_ahead } => {
                let fetched = match found {
                    Some(QueueOutcome::Fetched(fetched)) => fetched,
                    _ => Fetched::default(),
                };
                self.fetching.retain(|begin| *begin != from);
                self.fetched(cx, from, is_ahead, fetched);
            }
            Purpose::Query(session) => match found {
                Some(QueueOutcome::Sorted(found)) => self.sorted(cx, session, number, found),
                Some(QueueOutcome::Page(found)) => self.page_found(cx, session, number, Some(found)),
                _ => self.page_found(cx, session, number, None),
            },
            Purpose::Refill(queue) => match found {
                Some(QueueOutcome::Refilled(found)) => self.refilled(cx, queue, Some(found)),
                _ => self.refilled(cx, queue, None),
            },
            Purpose::Fill(queue) => match found {
                Some(QueueOutcome::Filled(found)) => self.filled(cx, queue, Some(found)),
                _ => self.filled(cx, queue, None),
            },
            Purpose::Save => match found {
                Some(QueueOutcome::Saved(result)) => self.points_saved(cx, Some(result)),
                _ => self.points_saved(cx, None),
            },
            Purpose::Snapshot => match found {
                Some(QueueOutcome::Saved(result)) => self.snapshot_saved(cx, Some(result)),
                _ => self.snapshot_saved(cx, None),
            },
            Purpose::Define => match found {
                Some(QueueOutcome::Saved(result)) => self.definitions_written(cx, Some(result)),
                _ => self.definitions_written(cx, None),
            },
            Purpose::Settle(session) => {
                let positions = match found {
                    Some(QueueOutcome::Found(positions)) => Some(positions),
                    _ => None,
                };
                self.settle_found(cx, session, number, positions);
            }
        }
    }
}

impl Context {
    /// Has work for queues done; gives the number of the job.
    pub(super) fn begin_queue_job(&mut self, purpose: Purpose, work: QueueJob) -> u64 {
        self.begin_job(JobOwner::Queue(purpose), Job::Queue(work))
    }
}
