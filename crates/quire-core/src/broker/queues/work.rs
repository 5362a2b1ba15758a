//! What queues need of the disk, as values that the reader threads run.

use std::sync::Arc;

use quire_journal::{
    Batch, Bookmark, JournalError, Position, QueuePoint, QueuePoints, QueueStates, Reader, Record, Timestamp,
    TopicFilter,
};

use super::Definition;
use super::keep::State;
use super::lookup::Lookup;
use super::query::{Order, Page, PageFound};
use crate::filter::Filter;
use crate::message_type::Arena;
use crate::queue::{Entry, Time};
use crate::replay::context_of;

/// Bytes of the log that a fetch brings for a message that may be wanted alone, as it is where priorities are scattered over a queue.
pub(super) const FETCH_SIZE_ALONE: usize = 128 * 1024;

/// The same for one that goes on where a fetch before it ended: some hundred messages of common size, and a few milliseconds of a slow
/// disk.
pub(super) const FETCH_SIZE_AHEAD: usize = 1024 * 1024;

/// Something to read for queues. See [`ReadRequest`](crate::replay::ReadRequest).
pub(crate) enum QueueWork {
    /// The stretches of the log from a position on, about `size` bytes of them.
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
    /// Keep how far the queues are done.
    Save { file: QueuePoints, points: Vec<QueuePoint> },
    /// Keep the state of a queue.
    Keep { files: QueueStates, state: State },
}

/// What to read for a queue with a target depth.
pub(crate) struct Refill {
    pub reader: Reader,
    pub after: Position,
    /// The most messages.
    pub count: u64,
    pub limit: Position,
    pub definition: Arc<Definition>,
    /// Both clocks: the ages of messages are told by the wall clock.
    pub now: Time,
    pub wall: Timestamp,
}

/// What came of it.
pub(crate) enum QueueFound {
    Fetched(Fetched),
    Found(Vec<Position>),
    Page(PageFound),
    Sorted(Result<Vec<Position>, JournalError>),
    Refilled(Result<Vec<(Position, Entry)>, JournalError>),
    Saved(Result<(), JournalError>),
}

/// What a fetch brings.
#[derive(Default)]
pub(crate) struct Fetched {
    pub batches: Vec<Batch>,
    /// There is more behind the last.
    pub is_full: bool,
    /// Why it ended early.
    pub error: Option<JournalError>,
}

impl QueueWork {
    pub(crate) fn run(self) -> QueueFound {
        match self {
            QueueWork::Fetch { reader, from, limit, size, definitions } => {
                QueueFound::Fetched(fetch(&reader, from, limit, size, &definitions))
            }
            QueueWork::Find { reader, bookmarks, definition } => {
                let find = |bookmark| find(&reader, bookmark, &definition);
                QueueFound::Found(bookmarks.into_iter().filter_map(find).collect())
            }
            QueueWork::Match { reader, positions, filter, now } => {
                QueueFound::Found(matching(reader, positions, &filter, now))
            }
            QueueWork::Page { reader, page } => QueueFound::Page(page.run(reader)),
            QueueWork::Sort { reader, page, order } => QueueFound::Sorted(page.sort(reader, &order)),
            QueueWork::Refill(refill) => QueueFound::Refilled(refill.run()),
            QueueWork::Save { file, points } => QueueFound::Saved(file.write(&points)),
            QueueWork::Keep { files, state } => QueueFound::Saved(state.write(&files)),
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
        // A stretch that is kept keeps all that was read with it.
        cursor.set_read_step(size_max - size);
        match cursor.next(limit, &Entering(definitions)) {
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

/// The position of a message, if it can be one of the queue's. What cannot be read is not found.
fn find(reader: &Reader, bookmark: Bookmark, definition: &Definition) -> Option<Position> {
    let position = reader.find(bookmark).ok()??;
    let mut cursor = reader.cursor(Position::new(position.get() - 1)).sparingly();
    let batch = cursor.next(position, &quire_journal::AllTopics).ok()??;
    let record = batch.records().last()?;
    definition.takes(&record).then_some(position)
}

/// Those of the messages that match. What cannot be read does not.
fn matching(reader: Reader, mut positions: Vec<Position>, filter: &Filter, now: Timestamp) -> Vec<Position> {
    let (mut lookup, mut arena) = (Lookup::new(reader), Arena::default());
    positions.retain(|position| {
        let record = lookup.get(*position).ok().flatten();
        let message = record.as_ref().and_then(|record| context_of(record, now));
        message.is_some_and(|message| filter.matches_with(&message, &mut arena))
    });
    positions
}

impl Refill {
    fn run(self) -> Result<Vec<(Position, Entry)>, JournalError> {
        let mut arena = Arena::default();
        let mut entries = Vec::new();
        let mut cursor = self.reader.cursor(self.after).sparingly();
        let wanted = [self.definition.clone()];
        while let Some(batch) = cursor.next(self.limit, &Entering(&wanted))? {
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

/// When a message was received, on the engine's clock: as long ago as the wall clock says.
pub(super) fn received_at(record: &Record<'_>, now: Time, wall: Timestamp) -> Time {
    let age = wall.as_ns().saturating_sub(record.timestamp.as_ns());
    Time::new(now.get().saturating_sub(age))
}

/// The topics whose messages enter any of these queues.
struct Entering<'a>(&'a [Arc<Definition>]);

impl TopicFilter for Entering<'_> {
    fn wants(&self, topic: &str) -> bool {
        self.0.iter().any(|definition| definition.selector.matches(topic))
    }
}
