//! Asks the log for records by their bookmarks, for a frame of another instance that may have them
//! a second time. A job on another thread reads the log.

use hashbrown::HashSet;
use quire_journal::{AllTopics, Bookmark, JournalError, Position, Reader, Record, RecordKind};
use quire_link::{InLog, LookedUp, RecordHere, hash_of};
use rustc_hash::FxBuildHasher;

/// The bookmarks of a frame.
pub(super) struct LookUp {
    pub(super) reader: Reader,
    pub(super) bookmarks: Vec<Bookmark>,
}

impl LookUp {
    /// Reads the log. The records of a frame mostly follow each other here, too. So each batch that
    /// is read answers all bookmarks that it has.
    pub(super) fn run(self) -> Result<LookedUp, JournalError> {
        let mut wanted: HashSet<Bookmark, FxBuildHasher> = self.bookmarks.iter().copied().collect();
        let mut found = Vec::with_capacity(wanted.len());
        for bookmark in &self.bookmarks {
            if !wanted.contains(bookmark) {
                continue;
            }
            let Some(position) = self.reader.find(*bookmark)? else {
                wanted.remove(bookmark);
                let is_removed = self.was_removed(*bookmark)?;
                found.push((*bookmark, if is_removed { InLog::Removed } else { InLog::Nothing }));
                continue;
            };
            let mut cursor = self.reader.cursor(Position::new(position.get() - 1)).sparingly();
            let Some(batch) = cursor.next(self.reader.persisted(), &AllTopics)? else { continue };
            for record in batch.records() {
                if matches!(record.kind, RecordKind::Publish | RecordKind::Delete)
                    && wanted.remove(&record.bookmark())
                {
                    found.push((record.bookmark(), here(&record)));
                }
            }
        }
        // Their files were removed meanwhile.
        found.extend(wanted.into_iter().map(|bookmark| (bookmark, InLog::Removed)));
        Ok(found)
    }

    /// Whether maintenance can have removed the record: nothing older of its publisher is in a log
    /// whose beginning was removed.
    fn was_removed(&self, bookmark: Bookmark) -> Result<bool, JournalError> {
        if self.reader.first() == Position::new(1) {
            return Ok(false);
        }
        let first = self.reader.find_from(Bookmark::new(bookmark.publisher, 1))?;
        Ok(first.is_none_or(|(sequence, _)| sequence > bookmark.sequence))
    }
}

/// As [`LookUp::run`], for one bookmark. Only a client that publishes with sequences of earlier
/// runs, or in merged holes, causes this short read. A record that cannot be read counts as
/// removed.
#[cold]
pub(crate) fn look_up(reader: &Reader, bookmark: Bookmark) -> InLog {
    let look_up = LookUp { reader: reader.clone(), bookmarks: vec![bookmark] };
    look_up.run().ok().and_then(|found| found.first().map(|(_, found)| *found)).unwrap_or(InLog::Removed)
}

fn here(record: &Record<'_>) -> InLog {
    let hash = hash_of(record.kind, record.topic, record.data);
    InLog::Record(RecordHere { run: record.run(), hash })
}
