//! Reading single records of the log, one after the other: what stands beside the last one costs no search.

use quire_journal::{AllTopics, Batch, JournalError, Position, Reader, Record, RecordKind};

/// Reads messages by their positions. May wait for the disk.
pub(super) struct Lookup {
    reader: Reader,
    stretch: Option<(Batch, Vec<u32>)>,
}

impl Lookup {
    pub fn new(reader: Reader) -> Self {
        Lookup { reader, stretch: None }
    }

    /// The message at a position; `None` when there is none.
    ///
    /// # Errors
    /// Damage where it should be.
    pub fn get(&mut self, position: Position) -> Result<Option<Record<'_>>, JournalError> {
        let is_here = |(batch, _): &(Batch, Vec<u32>)| batch.first() <= position && position <= batch.last();
        if !self.stretch.as_ref().is_some_and(is_here) {
            let Some(before) = position.get().checked_sub(1) else { return Ok(None) };
            let mut cursor = self.reader.cursor(Position::new(before)).sparingly();
            let batch = cursor.next(self.reader.persisted(), &AllTopics)?;
            self.stretch = batch.map(|batch| {
                let offsets = batch.offsets();
                (batch, offsets)
            });
        }
        let Some((batch, offsets)) = self.stretch.as_ref().filter(|stretch| is_here(stretch)) else {
            return Ok(None);
        };
        let offset = offsets.get((position.get() - batch.first().get()) as usize);
        let record = offset.and_then(|offset| batch.record_at(*offset, position));
        Ok(record.filter(|record| record.kind == RecordKind::Publish))
    }
}
