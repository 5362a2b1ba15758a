//! Reads the messages that a destination asks for, because it lacks them.

use quire_journal::{AllTopics, Bookmark, JournalError, Position, Reader, Record, RecordKind};
use quire_types::PublisherId;
use quire_wire::link::{Given, Wanted};

use super::read::{Chunk, LinkReading};
use crate::scan::SCAN_SIZE_MAX;
use quire_expression::message_type::Arena;

/// Bytes of records for one request, about. The destination then asks for the rest, so that no more
/// than this waits for it.
const GIVE_SIZE: usize = 1024 * 1024;

/// Searches of the log for one request.
const SEARCHES_MAX: usize = 1_024;

/// Messages that a destination asks for.
pub(super) struct Giving {
    /// The link: which records go to the destination. Later ones than it has looked at are sent by
    /// the link itself.
    pub(super) reading: LinkReading,
    pub(super) reader: Reader,
    /// The name of this instance.
    pub(super) instance: String,
    pub(super) ranges: Vec<Wanted>,
}

impl Giving {
    /// Reads the records of the ranges, up to a limit of work, and makes frames of them.
    ///
    /// # Errors
    /// A file is damaged or cannot be read.
    pub(super) fn run(mut self, mut arena: Arena) -> Result<(Vec<u8>, Given), JournalError> {
        let mut chunk = Chunk::of(&self.reading.definition);
        let (mut given, mut read_size) = (Given::default(), 0);
        let ranges = std::mem::take(&mut self.ranges);
        let mut searches = 0..SEARCHES_MAX;
        'ranges: for wanted in &ranges {
            let mut next = wanted.first;
            while let Some((sequence, position)) = self.find(wanted, next)? {
                next = sequence;
                let is_over =
                    searches.next().is_none() || read_size >= SCAN_SIZE_MAX || chunk.size() >= GIVE_SIZE;
                if is_over {
                    given.next = next;
                    break 'ranges;
                }
                let mut cursor = self.reader.cursor(Position::new(position.get() - 1)).sparingly();
                let Some(batch) = cursor.next(self.reader.persisted(), &AllTopics)? else { break };
                read_size += batch.size();
                let is_message =
                    |record: &Record<'_>| matches!(record.kind, RecordKind::Publish | RecordKind::Delete);
                for record in batch.records().filter(is_message) {
                    // The next one in its order: others of the batch may be late.
                    if record.bookmark() != Bookmark::new(wanted.publisher, next) || next > wanted.last {
                        continue;
                    }
                    if self.goes_there(&record, wanted.is_hole, &mut arena) {
                        chunk.put(&record, Position::ZERO);
                    } else {
                        leave_out(&mut given.left_out, wanted.publisher, next);
                    }
                    next = next.saturating_add(1);
                }
                // Without the record, its file was removed meanwhile.
                next = next.max(sequence.saturating_add(1));
            }
            given.done += 1;
        }
        chunk.end(Position::ZERO);
        given.sent = chunk.count();
        Ok((chunk.frames, given))
    }

    /// The first message of the range from a sequence on: its sequence and position.
    fn find(&self, wanted: &Wanted, from: u64) -> Result<Option<(u64, Position)>, JournalError> {
        if from > wanted.last {
            return Ok(None);
        }
        let found = self.reader.find_from(Bookmark::new(wanted.publisher, from))?;
        Ok(found.filter(|(sequence, _)| *sequence <= wanted.last))
    }

    /// Whether the link sends the record. Its path does not matter in a hole, or when the record
    /// was published here or there: it returned to an instance that had lost it.
    fn goes_there(&mut self, record: &Record<'_>, is_hole: bool, arena: &mut Arena) -> bool {
        let LinkReading { peer, peer_group, definition, scanned, replicable, .. } = &mut self.reading;
        let path = record.path();
        let has_returned = path.instances().any(|instance| {
            instance.name == self.instance || instance.name == *peer || instance.group == *peer_group
        });
        let may_pass = is_hole || has_returned || definition.route.passes_on(path);
        record.position <= *scanned
            && may_pass
            && replicable.allows(record.topic)
            && self.reading.takes(record, arena)
    }
}

fn leave_out(left_out: &mut Vec<(PublisherId, u64, u64)>, publisher: PublisherId, sequence: u64) {
    match left_out.last_mut() {
        Some((of, _, last)) if *of == publisher && last.saturating_add(1) == sequence => *last = sequence,
        _ => left_out.push((publisher, sequence, sequence)),
    }
}
