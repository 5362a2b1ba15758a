//! One read of the log for a link, as a value that can be run anywhere: looks at records, applies
//! the routing tests, and makes frames.

use std::sync::Arc;

use crate::scan::{SCAN_SIZE_MAX, context_of};
use quire_journal::{Cursor, JournalError, Position, Record, RecordKind, Timestamp};

use crate::config::links::{Compression, Definition};
use crate::entitlement::Replicable;
use quire_expression::message_type::Arena;
use quire_link::{Algorithm, SentFrame, compress, for_frame};
use quire_wire::link::{Mark, RecordsWriter};

/// Bytes of records in one frame, unless one record has more. The destination works on a whole
/// frame before it looks at its other connections, and half a millisecond is enough for it.
const FRAME_SIZE: usize = 64 * 1024;

/// Bytes of frames after which one read stops.
const CHUNK_SIZE: usize = 256 * 1024;

/// Read records up to `limit` for a destination.
pub(crate) struct LinkReading {
    pub(super) cursor: Cursor,
    /// Everything up to here was looked at.
    pub(super) scanned: Position,
    pub(super) limit: Position,
    pub(super) definition: Arc<Definition>,
    /// The instance at the other end, and its group.
    pub(super) peer: String,
    pub(super) peer_group: String,
    /// The last position of the log when the link came up. The peer has the records that it sent
    /// itself after that.
    pub(super) greeted: Position,
    pub(super) now: Timestamp,
    /// The topics that the link may have.
    pub(super) replicable: Replicable,
    /// The name of this instance.
    pub(super) own_name: Arc<str>,
    /// The log of the peer may lack records: it gets all of them.
    pub(super) fills: bool,
}

/// The result of a read.
pub(crate) struct LinkFound {
    pub(super) frames: Vec<u8>,
    /// A description of each frame, in their order.
    pub(super) sent: Vec<SentFrame>,
    pub(super) scanned: Position,
    /// Where reading continues, or why that is impossible.
    pub(super) cursor: Result<Cursor, JournalError>,
    /// The last record that was left out because it came from the peer: the place that it has
    /// there.
    pub(super) last_there: Option<Position>,
    /// The topic of the next record, which the link may not have.
    pub(super) denied: Option<Box<str>>,
}

/// The result of a search for the oldest record that goes to a destination.
#[derive(Debug)]
pub(crate) struct LinkSearch {
    /// There is none up to here, unless one was found.
    pub(super) after: Position,
    pub(super) limit: Position,
    /// The record, and its time.
    pub(super) found: Option<(Position, Timestamp)>,
}

impl LinkReading {
    /// Searches for the first record that goes to the destination. An error of the log is left to
    /// the read for the link.
    pub(crate) fn search(mut self, mut arena: Arena) -> LinkSearch {
        let mut scanned_size = 0;
        while scanned_size < SCAN_SIZE_MAX {
            let batch = match self.cursor.next(self.limit, &self.definition.route) {
                Ok(Some(batch)) => batch,
                Ok(None) | Err(_) => {
                    self.scanned = self.limit;
                    break;
                }
            };
            scanned_size += batch.size();
            let after = self.scanned;
            for record in batch.records().filter(|record| record.position > after) {
                if matches!(self.decide(&record, &mut arena), Decided::Send) {
                    let found = Some((record.position, record.timestamp));
                    return LinkSearch { after: self.scanned, limit: self.limit, found };
                }
                self.scanned = record.position;
            }
        }
        LinkSearch { after: self.scanned, limit: self.limit, found: None }
    }

    pub(crate) fn run(mut self, mut arena: Arena) -> LinkFound {
        let mut chunk = Chunk::of(&self.definition);
        let (mut last_there, mut denied) = (None, None);
        let mut scanned_size = 0;
        let cursor = 'read: loop {
            self.cursor.set_read_step(CHUNK_SIZE.saturating_sub(chunk.frames.len()));
            let batch = match self.cursor.next(self.limit, &self.definition.route) {
                Ok(Some(batch)) => batch,
                Ok(None) => {
                    self.scanned = self.limit;
                    break Ok(self.cursor);
                }
                Err(error) => break Err(error),
            };
            scanned_size += batch.size();
            for record in batch.records() {
                if record.position <= self.scanned {
                    continue;
                }
                if record.position > self.limit {
                    break 'read Ok(self.cursor);
                }
                match self.decide(&record, &mut arena) {
                    Decided::Send if !self.replicable.allows(record.topic) => {
                        denied = Some(record.topic.into());
                        break 'read Ok(self.cursor);
                    }
                    Decided::Send => chunk.put(&record, self.scanned),
                    Decided::LeaveOut => (),
                    Decided::IsThere(there) => last_there = last_there.max(there),
                }
                self.scanned = record.position;
            }
            if chunk.frames.len() >= CHUNK_SIZE || scanned_size >= SCAN_SIZE_MAX {
                break Ok(self.cursor);
            }
        };
        chunk.end(self.scanned);
        let cursor = cursor.map(|mut cursor| {
            cursor.rest_at(self.scanned);
            cursor
        });
        let Chunk { frames, sent, .. } = chunk;
        LinkFound { frames, sent, scanned: self.scanned, cursor, last_there, denied }
    }

    fn decide(&self, record: &Record<'_>, arena: &mut Arena) -> Decided {
        if !matches!(record.kind, RecordKind::Publish | RecordKind::Delete) {
            return Decided::LeaveOut;
        }
        let route = &self.definition.route;
        let path = record.path();
        let has_passed = path.instances().any(|instance| instance.name == self.peer);
        // It was published here, or it returned after its log here was lost.
        let has_returned = path.instances().any(|instance| instance.name == &*self.own_name);
        if has_passed && record.position > self.greeted {
            let source = record.source().filter(|source| source.instance.name == self.peer);
            if let Some(source) = source {
                return Decided::IsThere(source.position);
            }
        }
        // A message that has passed the destination is sent again when the destination may have
        // lost it. Its group does not matter. The destination may also have had messages that came
        // here from another instance of its group. Without them, later messages of the same
        // publisher would stand above a gap that nothing fills.
        let is_of_group = record.position <= self.greeted
            && path.instances().any(|instance| instance.group == self.peer_group);
        let is_eligible = self.fills || has_passed || has_returned || is_of_group || route.passes_on(path);
        match is_eligible && self.takes(record, arena) {
            true => Decided::Send,
            false => Decided::LeaveOut,
        }
    }

    /// Whether the link has the topic of the record, and its filter matches.
    pub(super) fn takes(&self, record: &Record<'_>, arena: &mut Arena) -> bool {
        // A delete has no content that a filter could look at.
        let context = || match record.kind {
            RecordKind::Publish => context_of(record, self.now),
            _ => None,
        };
        self.definition.route.takes(record.topic, record.message_type, arena, context)
    }
}

/// The decision about a record.
enum Decided {
    Send,
    LeaveOut,
    /// It came from the destination, which has it there.
    IsThere(Option<Position>),
}

/// A frame that grows.
struct OpenFrame {
    writer: RecordsWriter,
    count: u64,
    last: Option<Mark>,
}

/// Frames that are made.
#[derive(Default)]
pub(super) struct Chunk {
    pub(super) frames: Vec<u8>,
    sent: Vec<SentFrame>,
    open: Option<OpenFrame>,
    compression: Compression,
    by_hops: Vec<(u8, Position, Position)>,
}

impl Chunk {
    /// For the records of a link.
    pub(super) fn of(definition: &Definition) -> Self {
        Chunk { compression: definition.settings.compression, ..Chunk::default() }
    }

    /// Bytes so far, without the compression of the open frame.
    pub(super) fn size(&self) -> usize {
        self.frames.len()
    }

    /// The records of the frames that have ended.
    pub(super) fn count(&self) -> u64 {
        self.sent.iter().map(|sent| sent.count).sum()
    }

    /// Everything up to `scanned` comes before the record.
    pub(super) fn put(&mut self, record: &Record<'_>, scanned: Position) {
        if self.open.as_ref().is_some_and(|open| open.writer.size() + record.data.len() > FRAME_SIZE) {
            self.end(scanned);
        }
        let frames = &mut self.frames;
        let begin = || OpenFrame { writer: RecordsWriter::begin(frames), count: 0, last: None };
        let open = self.open.get_or_insert_with(begin);
        open.writer.put(&for_frame(record), frames);
        open.count += 1;
        let (position, bookmark) = (record.position, record.bookmark());
        open.last = Some(Mark { position, bookmark, time: record.timestamp });
        let hops = u8::try_from(record.path().instances().count()).unwrap_or(u8::MAX);
        match self.by_hops.iter_mut().find(|(other, ..)| *other == hops) {
            Some((_, _, last)) => *last = record.position,
            None => self.by_hops.push((hops, record.position, record.position)),
        }
    }

    pub(super) fn end(&mut self, through: Position) {
        let Some(OpenFrame { writer, count, last }) = self.open.take() else { return };
        let size = writer.size();
        let algorithm = match self.compression {
            Compression::None => None,
            Compression::Lz4 => Some(Algorithm::Lz4),
            Compression::Zstd => Some(Algorithm::Zstd),
        };
        writer.end(through, last, |body| compress(algorithm?, body), &mut self.frames);
        let by_hops = std::mem::take(&mut self.by_hops);
        self.sent.push(SentFrame { through, size, count, by_hops });
    }
}
