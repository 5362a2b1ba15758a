//! The rows of a snapshot before a table has them.
//!
//! A start reads a snapshot in two steps. The first one needs no table: it checks the rows, and computes what the table has to know of each.
//! The second one copies the bytes of the rows into the table ([`Table::restore`](crate::Table::restore)). So two threads can share the work.

use std::ops::Range;

use crate::history::Moment;
use crate::index::{Entry, EntryReader, Spelling};
use crate::key_index::hash_of;
use crate::row::Row;
use quire_journal::{Position, Timestamp};

/// Bytes of a version before its row: the position and the time of its end.
const MOMENT_SIZE: usize = 16;

/// Computes what a table has to know of each row of a snapshot.
#[derive(Debug)]
pub struct RowReader {
    entries: EntryReader,
}

/// Rows and versions of a snapshot, for [`Table::restore`](crate::Table::restore).
#[derive(Debug, Default)]
pub struct SnapshotPiece {
    pub(crate) bytes: Vec<u8>,
    rows: Vec<(Range<usize>, RowFacts)>,
    /// Of all rows, one after the other.
    entries: Vec<Entry>,
    versions: Vec<(Range<usize>, Moment)>,
}

/// Facts about a row that a table needs in addition to its bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowFacts {
    /// Of the key.
    pub hash: u32,
    pub expires: Option<Timestamp>,
    pub spelling: Spelling,
    /// How many entries of indexes it has.
    entry_count: usize,
}

impl RowReader {
    pub(crate) fn new(entries: EntryReader) -> Self {
        RowReader { entries }
    }

    fn facts_of(&mut self, row: &Row<'_>, entries: &mut Vec<Entry>) -> RowFacts {
        let known = entries.len();
        let spelling = self.entries.read(row, entries);
        let entry_count = entries.len() - known;
        RowFacts { hash: hash_of(row.key), expires: row.expires, spelling, entry_count }
    }

    /// Adds the rows of a block to a piece. `begin` is the place of the block in the bytes of the piece. `None`: the block is not as many
    /// rows.
    pub(crate) fn read_rows(
        &mut self,
        piece: &mut SnapshotPiece,
        block: &[u8],
        begin: usize,
        count: u32,
    ) -> Option<()> {
        let mut at = 0;
        for _ in 0..count {
            let (row, size) = Row::decode(&block[at..])?;
            let facts = self.facts_of(&row, &mut piece.entries);
            piece.rows.push((begin + at..begin + at + size, facts));
            at += size;
        }
        (at == block.len()).then_some(())
    }
}

impl SnapshotPiece {
    /// Adds the versions of a block, as [`RowReader::read_rows`] does the rows.
    pub(crate) fn read_versions(&mut self, block: &[u8], begin: usize, count: u32) -> Option<()> {
        let mut at = 0;
        for _ in 0..count {
            let (position, rest) = block[at..].split_first_chunk()?;
            let (timestamp, rest) = rest.split_first_chunk()?;
            let position = Position(u64::from_le_bytes(*position));
            let timestamp = Timestamp(u64::from_le_bytes(*timestamp));
            let (_, size) = Row::decode(rest)?;
            at += MOMENT_SIZE;
            self.versions.push((begin + at..begin + at + size, Moment { position, timestamp }));
            at += size;
        }
        (at == block.len()).then_some(())
    }

    /// The bytes of each row, the facts about it, and its entries of indexes.
    pub(crate) fn rows(&self) -> impl Iterator<Item = (&[u8], RowFacts, &[Entry])> {
        let mut rest = &self.entries[..];
        self.rows.iter().map(move |(range, facts)| {
            let (own, others) = rest.split_at(facts.entry_count);
            rest = others;
            (&self.bytes[range.clone()], *facts, own)
        })
    }

    pub(crate) fn versions(&self) -> impl Iterator<Item = (&[u8], Moment)> {
        self.versions.iter().map(|(range, ended)| (&self.bytes[range.clone()], *ended))
    }
}
