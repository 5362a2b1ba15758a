//! The rows of a snapshot before a table has them.
//!
//! A start reads a snapshot in three steps, so that several threads can share the work:
//!
//! 1. [`SnapshotReader`](crate::SnapshotReader) divides the bytes into blocks, in their order.
//! 2. [`RowReader`] checks the rows of some blocks, computes the facts about each that the table
//!    needs, and copies them into pages. It needs neither the table nor the earlier blocks.
//! 3. [`Table::restore`](crate::Table::restore) takes the pages, in their order.

use std::ops::Range;

use crc32c::crc32c;

use crate::history::Moment;
use crate::index::{EntryReader, IndexEntry, Spelling};
use crate::key_index::hash_of;
use crate::row::Row;
use crate::rows::NewRows;
use crate::snapshot::BadSnapshot;
use crate::stamp::RowStamp;
use quire_journal::{Memory, Position, Timestamp};

/// Bytes of a version before its row: the position and the time of its end.
const MOMENT_SIZE: usize = 16;

/// Computes the facts about each row of a snapshot that a table needs.
#[derive(Debug)]
pub struct RowReader {
    entries: EntryReader,
    memory: Memory,
}

/// Consecutive blocks of a snapshot. Their heads are right. Their content was not checked.
#[derive(Debug, Default)]
pub struct SnapshotBlocks {
    pub(crate) bytes: Vec<u8>,
    /// Where the bytes begin in the snapshot.
    pub(crate) offset: u64,
    pub(crate) blocks: Vec<Block>,
}

/// The content of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockKind {
    Rows {
        /// The slot of its first row.
        first_slot: u32,
    },
    /// Versions of the history.
    Versions,
    /// Keys that were deleted.
    Deletes,
    /// The state of a view.
    State,
}

/// A block of rows, of versions of the history, of deletes, or of the state of a view.
#[derive(Debug)]
pub(crate) struct Block {
    /// Where its head begins in the bytes.
    pub begin: usize,
    pub content: Range<usize>,
    pub checksum: u32,
    /// The rows, versions, deletes or entries in it.
    pub count: u32,
    pub kind: BlockKind,
}

/// Rows and versions of a snapshot, for [`Table::restore`](crate::Table::restore).
#[derive(Debug)]
pub struct SnapshotPiece {
    pub(crate) rows: NewRows,
    facts: Vec<RowFacts>,
    /// The entries of all rows, one after the other.
    entries: Vec<IndexEntry>,
    version_bytes: Vec<u8>,
    versions: Vec<(Range<usize>, Moment)>,
    deletes: Vec<(Box<[u8]>, RowStamp)>,
    state: Vec<Box<[u8]>>,
}

/// Facts about a row that a table needs in addition to its bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowFacts {
    /// The hash of the key.
    pub hash: u32,
    pub expires: Option<Timestamp>,
    pub spelling: Spelling,
    /// Bytes of its data.
    pub data_size: usize,
    /// The number of its entries in indexes.
    entry_count: usize,
}

impl SnapshotBlocks {
    /// Returns the memory of the bytes, to be reused.
    pub fn into_memory(self) -> Vec<u8> {
        self.bytes
    }
}

impl RowReader {
    pub(crate) fn new(entries: EntryReader, memory: &Memory) -> Self {
        RowReader { entries, memory: memory.clone() }
    }

    /// Another reader for the same table.
    pub fn another(&self) -> Self {
        RowReader { entries: self.entries.another(), memory: self.memory.clone() }
    }

    /// Reads the rows and versions of blocks.
    ///
    /// # Errors
    /// [`BadSnapshot::Damaged`].
    pub fn read(&mut self, blocks: &SnapshotBlocks) -> Result<SnapshotPiece, BadSnapshot> {
        let rows = blocks.blocks.iter().filter(|block| matches!(block.kind, BlockKind::Rows { .. }));
        // A row has more than one byte, so a damaged block cannot cause a larger allocation than
        // its bytes.
        let count = rows.map(|block| (block.count as usize).min(block.content.len())).sum();
        let mut piece = SnapshotPiece {
            rows: NewRows::new(count, &self.memory),
            facts: Vec::with_capacity(count),
            entries: Vec::with_capacity(count * self.entries.index_count()),
            version_bytes: Vec::new(),
            versions: Vec::new(),
            deletes: Vec::new(),
            state: Vec::new(),
        };
        for block in &blocks.blocks {
            let content = &blocks.bytes[block.content.clone()];
            let read = match block.kind {
                _ if crc32c(content) != block.checksum => None,
                BlockKind::Rows { first_slot } => {
                    self.read_rows(&mut piece, content, first_slot, block.count)
                }
                BlockKind::Versions => piece.read_versions(content, block.count),
                BlockKind::Deletes => piece.read_deletes(content, block.count),
                BlockKind::State => {
                    piece.state.push(content.into());
                    Some(())
                }
            };
            read.ok_or(BadSnapshot::Damaged { offset: blocks.offset + block.begin as u64 })?;
        }
        Ok(piece)
    }

    /// Adds the rows of a block to a piece. `None`: the block does not have this number of rows.
    fn read_rows(&mut self, piece: &mut SnapshotPiece, block: &[u8], first: u32, count: u32) -> Option<()> {
        let mut at = 0;
        for slot in first..first.checked_add(count)? {
            let (row, size) = Row::decode(&block[at..])?;
            let facts = self.facts_of(&row, &mut piece.entries);
            piece.facts.push(facts);
            piece.rows.push(slot, &block[at..at + size]);
            at += size;
        }
        (at == block.len()).then_some(())
    }

    fn facts_of(&mut self, row: &Row<'_>, entries: &mut Vec<IndexEntry>) -> RowFacts {
        let known = entries.len();
        let spelling = self.entries.read(row.key, row.data, entries);
        let entry_count = entries.len() - known;
        let data_size = row.data.len();
        RowFacts { hash: hash_of(row.key), expires: row.expires, spelling, data_size, entry_count }
    }
}

impl SnapshotPiece {
    /// Adds the versions of a block, as [`RowReader::read_rows`] does the rows.
    fn read_versions(&mut self, block: &[u8], count: u32) -> Option<()> {
        let mut at = 0;
        let begin = self.version_bytes.len();
        self.version_bytes.extend_from_slice(block);
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

    /// Adds the deletes of a block, as [`RowReader::read_rows`] does the rows.
    fn read_deletes(&mut self, block: &[u8], count: u32) -> Option<()> {
        let mut rest = block;
        for _ in 0..count {
            let (time, after) = rest.split_first_chunk()?;
            let (instance, after) = after.split_first_chunk()?;
            let (publisher, after) = after.split_first_chunk()?;
            let (size, after) = after.split_first().filter(|(size, _)| **size > 0)?;
            let (key, after) = after.split_at_checked(usize::from(*size))?;
            let (time, instance) = (Timestamp(u64::from_le_bytes(*time)), u16::from_le_bytes(*instance));
            let publisher = u32::from_le_bytes(*publisher);
            self.deletes.push((key.into(), RowStamp { time, instance, publisher }));
            rest = after;
        }
        rest.is_empty().then_some(())
    }

    /// Blocks with the state of a view, for [`Groups::restore`](crate::Groups::restore) and
    /// [`Joins::restore`](crate::Joins::restore).
    pub fn state(&self) -> impl Iterator<Item = &[u8]> {
        self.state.iter().map(|block| &**block)
    }

    pub(crate) fn deletes(&self) -> impl Iterator<Item = (&[u8], RowStamp)> {
        self.deletes.iter().map(|(key, stamp)| (&**key, *stamp))
    }

    /// The facts about each row, and its entries of indexes.
    pub(crate) fn facts(&self) -> impl Iterator<Item = (RowFacts, &[IndexEntry])> {
        let mut rest = &self.entries[..];
        self.facts.iter().map(move |facts| {
            let (own, others) = rest.split_at(facts.entry_count);
            rest = others;
            (*facts, own)
        })
    }

    pub(crate) fn versions(&self) -> impl Iterator<Item = (&[u8], Moment)> {
        self.versions.iter().map(|(range, ended)| (&self.version_bytes[range.clone()], *ended))
    }
}
