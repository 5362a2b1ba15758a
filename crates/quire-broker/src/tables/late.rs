//! Late changes of records: later messages of their publisher arrived before them, from another
//! instance (docs/internals/copies.md, *Decisions*).
//!
//! A late change must not replace a later one of its publisher, also when the clocks of the
//! instances differ. A table has the positions of its rows and the sequences of deletes, so the log
//! is asked for the sequence of a row. That is a short read for a late message only.

use std::collections::VecDeque;

use quire_journal::{AllTopics, Position, PublisherId, Reader};
use quire_table::{KeyChange, KnownChange};

use super::Tables;
use crate::context::Context;
use crate::topic::TableId;

/// The sequences of the messages that became records and are not on the disk yet.
#[derive(Default)]
pub(super) struct NewSequences(VecDeque<(Position, u64)>);

impl NewSequences {
    /// A message became a record. The log is on the disk up to `persisted`.
    pub(super) fn add(&mut self, position: Position, sequence: u64, persisted: Position) {
        while self.0.pop_front_if(|(position, _)| *position <= persisted).is_some() {}
        self.0.push_back((position, sequence));
    }

    fn at(&self, position: Position) -> Option<u64> {
        let index = self.0.binary_search_by_key(&position, |(position, _)| *position).ok()?;
        self.0.get(index).map(|(_, sequence)| *sequence)
    }
}

impl Tables {
    /// A change among those of its publisher. `None`: the key has a later one. A change that stays
    /// late is ordered by its stamp: the key has a change of another publisher, or the sequence of
    /// the known change cannot be found.
    pub(super) fn place_late<'a>(
        &self,
        cx: &Context,
        id: TableId,
        key: &[u8],
        change: KeyChange<'a>,
    ) -> Option<KeyChange<'a>> {
        if !change.is_late || change.sequence == 0 {
            return Some(change);
        }
        let known = match self.all[id.0 as usize].table.known_of(key, &change) {
            None => None,
            Some(KnownChange::Delete { sequence }) => Some(sequence).filter(|sequence| *sequence != 0),
            Some(KnownChange::Row(position)) => self
                .new_sequences
                .at(position)
                .or_else(|| sequence_at(&cx.log.reader, position, change.publisher)),
        };
        match known {
            None => Some(change),
            Some(known) if known > change.sequence => None,
            Some(_) => Some(KeyChange { is_late: false, ..change }),
        }
    }
}

/// The sequence of the message at a position, if it is of this publisher and in the log.
#[cold]
fn sequence_at(reader: &Reader, position: Position, publisher: PublisherId) -> Option<u64> {
    let before = Position::new(position.get().checked_sub(1)?);
    if position > reader.persisted() || position < reader.first() {
        return None;
    }
    let batch = reader.cursor(before).sparingly().next(position, &AllTopics).ok()??;
    let record = batch.records().find(|record| record.position == position)?;
    (record.publisher == publisher).then_some(record.sequence)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequences_are_known_until_their_records_are_on_the_disk() {
        let mut new = NewSequences::default();
        let position = Position::new;
        new.add(position(3), 30, position(2));
        new.add(position(5), 50, position(2));
        assert_eq!([3, 4, 5].map(|at| new.at(position(at))), [Some(30), None, Some(50)]);
        new.add(position(9), 90, position(4));
        assert_eq!([3, 5, 9].map(|at| new.at(position(at))), [None, Some(50), Some(90)]);
    }
}
