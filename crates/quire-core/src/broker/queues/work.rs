//! What queues need of the disk, as values that the reader threads run.

use std::sync::Arc;

use quire_journal::{Batch, Bookmark, JournalError, Position, Reader, RecordKind, TopicFilter};

use super::Definition;

/// Bytes of the log that one fetch brings: some hundred messages of common size, and a few milliseconds of a slow disk.
const FETCH_SIZE_MAX: usize = 1024 * 1024;

/// Something to read for queues. See [`ReadRequest`](crate::replay::ReadRequest).
pub(crate) enum QueueWork {
    /// The stretches of the log from a position on.
    Fetch { reader: Reader, from: Position, limit: Position, definitions: Arc<[Arc<Definition>]> },
    /// The messages of one queue with these bookmarks.
    Find { reader: Reader, bookmarks: Vec<Bookmark>, definition: Arc<Definition> },
}

/// What came of it.
pub(crate) enum QueueFound {
    Fetched(Fetched),
    Found(Vec<Position>),
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
            QueueWork::Fetch { reader, from, limit, definitions } => {
                QueueFound::Fetched(fetch(&reader, from, limit, &definitions))
            }
            QueueWork::Find { reader, bookmarks, definition } => {
                let find = |bookmark| find(&reader, bookmark, &definition);
                QueueFound::Found(bookmarks.into_iter().filter_map(find).collect())
            }
        }
    }
}

fn fetch(reader: &Reader, from: Position, limit: Position, definitions: &[Arc<Definition>]) -> Fetched {
    let mut cursor = reader.cursor(Position::new(from.get().saturating_sub(1)));
    let mut fetched = Fetched::default();
    let mut size = 0;
    while size < FETCH_SIZE_MAX {
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
    let mut cursor = reader.cursor(Position::new(position.get() - 1));
    let batch = cursor.next(position, &quire_journal::AllTopics).ok()??;
    let record = batch.records().last()?;
    let enters = record.kind == RecordKind::Publish && definition.selector.matches(record.topic);
    enters.then_some(position)
}

/// The topics whose messages enter any of these queues.
struct Entering<'a>(&'a [Arc<Definition>]);

impl TopicFilter for Entering<'_> {
    fn wants(&self, topic: &str) -> bool {
        self.0.iter().any(|definition| definition.selector.matches(topic))
    }
}
