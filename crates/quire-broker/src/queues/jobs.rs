//! The jobs of queues on reader threads.

use std::sync::Arc;

use quire_journal::{
    AllTopics, Batch, Bookmark, JournalError, Position, Reader, Record, RecordKind, Timestamp, TopicFilter,
};

use super::Definition;
use super::enter::received_at;
use crate::scan::context_of;
use quire_expression::filter::Filter;
use quire_expression::message_type::Arena;
use quire_queue::{QueueEntry, Time};

/// Bytes of the log that a fetch reads for a message that may be wanted alone, as it is when
/// priorities are scattered over a queue.
pub(super) const FETCH_SIZE_ALONE: usize = 128 * 1024;

/// The same for a job that continues where an earlier fetch ended: some hundred messages of common
/// size, and a few milliseconds of a slow disk.
pub(super) const FETCH_SIZE_AHEAD: usize = 1024 * 1024;

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

/// The result of a fetch.
#[derive(Default)]
pub(crate) struct Fetched {
    pub batches: Vec<Batch>,
    /// There is more after the last one.
    pub is_full: bool,
    /// Why it ended early.
    pub error: Option<JournalError>,
}

/// Reads the batches of the log from a position on, about `size_max` bytes of them.
pub(super) fn fetch(
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

/// The positions of those of the messages that can be in the queue. A message that cannot be read
/// is not found.
pub(super) fn find_all(
    reader: &Reader,
    bookmarks: Vec<Bookmark>,
    definition: &Definition,
) -> Vec<(Bookmark, Position)> {
    let found = |bookmark| Some((bookmark, find(reader, bookmark, definition)?));
    bookmarks.into_iter().filter_map(found).collect()
}

fn find(reader: &Reader, bookmark: Bookmark, definition: &Definition) -> Option<Position> {
    let position = reader.find(bookmark).ok()??;
    let mut cursor = reader.cursor(Position::new(position.get() - 1)).sparingly();
    let batch = cursor.next(position, &quire_journal::AllTopics).ok()??;
    let record = batch.records().last()?;
    definition.takes(&record).then_some(position)
}

/// Those of the messages that match. A message that cannot be read does not match.
pub(super) fn matching(
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
    pub fn run(self, mut arena: Arena) -> Result<Vec<(Position, QueueEntry)>, JournalError> {
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
