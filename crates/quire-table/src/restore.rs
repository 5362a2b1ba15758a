//! The rows of a snapshot before a table has them.
//!
//! A start reads a snapshot in two steps. The first one needs no table: it checks the rows, and computes what the table has to know of each.
//! The second one copies the bytes of the rows into the table ([`Table::restore`](crate::Table::restore)). So two threads can share the work.

use std::ops::Range;

use crate::history::Moment;
use crate::index::Spelling;
use crate::key::KeyFields;
use crate::key_index::hash_of;
use crate::row::Row;
use quire_expression::message_type::Arena;
use quire_journal::{Position, Timestamp};

/// Bytes of a version before its row: the position and the time of its end.
const MOMENT_SIZE: usize = 16;

/// Computes what a table has to know of each row of a snapshot.
#[derive(Debug)]
pub struct RowReader {
    key: Option<KeyFields>,
    arena: Arena,
}

/// Rows and versions of a snapshot, for [`Table::restore`](crate::Table::restore).
#[derive(Debug, Default)]
pub struct SnapshotPiece {
    pub(crate) bytes: Vec<u8>,
    rows: Vec<(Range<usize>, RowFacts)>,
    versions: Vec<(Range<usize>, Moment)>,
}

/// Facts about a row that a table needs in addition to its bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowFacts {
    /// Of the key.
    pub hash: u32,
    pub expires: Option<Timestamp>,
    pub spelling: Spelling,
}

impl RowReader {
    pub(crate) fn new(key: Option<KeyFields>) -> Self {
        RowReader { key, arena: Arena::default() }
    }

    fn facts_of(&mut self, row: &Row<'_>) -> RowFacts {
        let spelling = match &self.key {
            Some(fields) => Spelling::of_row(fields, row.key, row.data, &mut self.arena),
            None => Spelling::Usual,
        };
        RowFacts { hash: hash_of(row.key), expires: row.expires, spelling }
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
            piece.rows.push((begin + at..begin + at + size, self.facts_of(&row)));
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

    pub(crate) fn rows(&self) -> impl Iterator<Item = (&[u8], RowFacts)> {
        self.rows.iter().map(|(range, facts)| (&self.bytes[range.clone()], *facts))
    }

    pub(crate) fn versions(&self) -> impl Iterator<Item = (&[u8], Moment)> {
        self.versions.iter().map(|(range, ended)| (&self.bytes[range.clone()], *ended))
    }
}
