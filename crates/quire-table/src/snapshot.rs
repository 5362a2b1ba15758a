//! The rows of one instant as bytes, so that a restart need not read the log for them
//! (docs/journal-format.md, `table-*.state`).
//!
//! A snapshot is a scan of all rows, so it is written in portions while the table changes. This
//! crate has no files: the writer returns bytes, and the reader takes bytes, in pieces of any size.
//! All lengths are checked before they are used.

use std::ops::Range;

use crc32c::crc32c;
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

use crate::history::KnownHistory;
use crate::key::KeyRule;
use crate::query::{Polled, Query, ScanId};
use crate::restore::{Block, BlockKind, SnapshotBlocks};
use crate::row::Head;
use crate::rows::SLOTS_MAX;
use crate::stamp::KnownOrder;
use crate::table::Table;
use quire_expression::message_type::MessageType;
use quire_journal::{Position, Timestamp};

/// The version of the content of a snapshot, for the head of its sidecar file.
pub const SNAPSHOT_VERSION: u32 = 1;

/// The version of the content of a snapshot of a table that [keeps the order](Table::keep_order) of
/// changes.
pub const ORDERED_VERSION: u32 = 3;

/// The version of the content of a snapshot that belongs together with others: those of a topic,
/// of its views, and of the topics that they join. It has all that the other versions have.
pub const TOGETHER_VERSION: u32 = 5;

/// Bytes of rows after which a block ends. The cost of its checksum is negligible, and a reader
/// needs little memory.
const BLOCK_SIZE: usize = 64 * 1024;

/// Bytes before the blocks, with their checksum.
const SNAPSHOT_HEAD_SIZE: usize = 68;

/// Bytes of a block before its rows: their size, their number, their checksum, and the checksum of
/// these 12 bytes.
const BLOCK_HEAD_SIZE: usize = 16;

/// In the number of rows of a block: the block has versions.
const VERSIONS: u32 = 1 << 31;

/// In the number of rows of a block: the block has deletes.
const DELETES: u32 = 1 << 30;

/// In the number of rows of a block: the block has entries of the state of a view.
const STATE: u32 = 1 << 29;

/// Bytes of the last block before the order of changes: four numbers.
const COUNTS_SIZE: usize = 32;

/// Instead of the begin and the granularity of the history: the topic kept none.
const NO_HISTORY: (u64, u64) = (u64::MAX, 0);

/// The part of the log that a snapshot includes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SnapshotHead {
    /// The snapshot has the effect of all records up to here, and of none after it.
    pub position: Position,
    /// Bytes that identify the log, such as the bookmark of the record at the position. The caller
    /// defines them.
    pub stamp: [u8; 24],
    /// Snapshots with the same number, of 48 bits, are of one instant. 0: there are no others.
    pub together: u64,
}

impl SnapshotHead {
    /// Writes this head over that of a snapshot, at the beginning of its content: the stamp of a
    /// record is only known when the record is on the disk.
    ///
    /// # Panics
    /// When the content is shorter than a head.
    pub fn replace(&self, owner: &SnapshotOwner, content: &mut [u8]) {
        content[..SNAPSHOT_HEAD_SIZE].copy_from_slice(&encode_head(owner, self));
    }
}

/// The topic that a snapshot belongs to. A snapshot of another topic, or of one with another type
/// or key, is not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotOwner {
    name: u64,
    message_type: u8,
    is_view: bool,
    /// Of a view: the hash of its definition.
    key_rule: u128,
}

impl SnapshotOwner {
    /// The topic with these settings.
    pub fn new(name: &str, message_type: MessageType, key_rule: &KeyRule) -> Self {
        SnapshotOwner {
            name: xxh3_64(name.as_bytes()),
            message_type: message_type.code(),
            is_view: false,
            key_rule: fingerprint(key_rule),
        }
    }

    /// A view. `definition` has all that its records depend on, other than its sources.
    pub fn of_view(name: &str, message_type: MessageType, definition: &str) -> Self {
        SnapshotOwner {
            name: xxh3_64(name.as_bytes()),
            message_type: message_type.code(),
            is_view: true,
            key_rule: xxh3_128(definition.as_bytes()),
        }
    }
}

/// The name of the sidecar file of a topic.
pub fn snapshot_file(topic: &str) -> String {
    format!("table-{:016x}.state", xxh3_64(topic.as_bytes()))
}

/// 0 for supplied keys. Otherwise the hash of the domain and the fields as written, each with its
/// size.
fn fingerprint(key_rule: &KeyRule) -> u128 {
    let KeyRule::Fields(fields) = key_rule else { return 0 };
    let mut hashed = Vec::new();
    let parts = [fields.domain()].into_iter().chain(fields.fields().map(str::as_bytes));
    for part in parts {
        hashed.extend_from_slice(&(part.len() as u64).to_le_bytes());
        hashed.extend_from_slice(part);
    }
    xxh3_128(&hashed)
}

/// A snapshot that is being written. It must be [written](Self::write) to its end, or
/// [closed](Self::close).
#[derive(Debug)]
pub struct SnapshotWriter {
    scan: ScanId,
    /// Bytes that no call has returned yet: the head, or the rows of the current block.
    head: Option<[u8; SNAPSHOT_HEAD_SIZE]>,
    block: Vec<u8>,
    block_rows: u32,
    rows: u64,
    /// The numbers of the versions that were not written.
    versions: Range<u64>,
    version_count: u64,
    /// The number of the next delete.
    next_delete: u64,
    delete_count: u64,
    /// Of a view: the entries of its state.
    state_count: Option<u64>,
}

/// The state of a snapshot after a portion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SnapshotState {
    /// There is more to write.
    More,
    /// The bytes are complete, and the scan is closed.
    Done {
        /// Rows in the snapshot.
        rows: u64,
    },
    /// The snapshot ended without all rows, because changes were faster than it. The scan is
    /// closed. The bytes cannot be used.
    TooManyCopies,
}

impl SnapshotWriter {
    /// Begins a snapshot of the state of the table at this call. It may hold copies of rows of
    /// `copies_size_max` bytes.
    pub fn new(
        table: &mut Table,
        owner: &SnapshotOwner,
        head: &SnapshotHead,
        copies_size_max: usize,
    ) -> SnapshotWriter {
        // No row has a lifetime that ended at time 0, so that all rows are in it.
        let scan = table.open(Query { copies_size_max, ..Query::default() }, Timestamp(0));
        let (first, end) = table.version_numbers();
        SnapshotWriter {
            scan,
            head: Some(encode_head(owner, head)),
            block: Vec::new(),
            block_rows: 0,
            rows: 0,
            versions: first..end,
            version_count: 0,
            next_delete: 0,
            delete_count: 0,
            state_count: owner.is_view.then_some(0),
        }
    }

    /// Appends the next bytes to `out`. One unit of `effort` is about one row.
    pub fn write(&mut self, table: &mut Table, effort: usize, out: &mut Vec<u8>) -> SnapshotState {
        self.write_with(table, effort, out, &mut |_, _| None)
    }

    /// As [`write`](Self::write) for a view. `save` appends the next entries of its state, as
    /// [`Groups::save`](crate::Groups::save) does.
    pub fn write_with(
        &mut self,
        table: &mut Table,
        effort: usize,
        out: &mut Vec<u8>,
        save: &mut dyn FnMut(usize, &mut Vec<u8>) -> Option<u32>,
    ) -> SnapshotState {
        if let Some(head) = self.head.take() {
            out.extend_from_slice(&head);
        }
        let polled = table.poll(self.scan, effort, &mut |row| {
            let head = Head::new(row);
            head.parts(row).iter().for_each(|part| self.block.extend_from_slice(part));
            self.block_rows += 1;
            if self.block.len() >= BLOCK_SIZE {
                self.rows += u64::from(self.block_rows);
                end_block(&mut self.block, &mut self.block_rows, out);
            }
            true
        });
        match polled {
            Polled::More => return SnapshotState::More,
            Polled::Done { .. } => {
                self.rows += u64::from(self.block_rows);
                if self.block_rows > 0 {
                    end_block(&mut self.block, &mut self.block_rows, out);
                }
                table.close(self.scan);
                if self.write_versions(table, effort, out) == SnapshotState::More
                    || self.write_deletes(table, effort, out) == SnapshotState::More
                    || self.write_state(effort, out, save) == SnapshotState::More
                {
                    return SnapshotState::More;
                }
                // The last block has numbers instead of rows.
                let (begin, granularity_ns) = table
                    .known_history()
                    .map_or(NO_HISTORY, |known| (known.begin.as_ns(), known.granularity_ns));
                for number in [self.rows, self.version_count, begin, granularity_ns] {
                    self.block.extend_from_slice(&number.to_le_bytes());
                }
                if let Some(count) = self.state_count {
                    self.block.extend_from_slice(&count.to_le_bytes());
                } else if let Some(order) = table.known_order() {
                    self.block.extend_from_slice(&self.delete_count.to_le_bytes());
                    order.encode(&mut self.block);
                }
                end_block(&mut self.block, &mut self.block_rows, out);
            }
            Polled::TooManyCopies | Polled::TooMuchEffort | Polled::TooMuchHistory => {
                table.close(self.scan);
                return SnapshotState::TooManyCopies;
            }
        }
        SnapshotState::Done { rows: self.rows }
    }

    /// Appends blocks of versions. Those that were dropped since the snapshot began are not in it.
    fn write_versions(&mut self, table: &Table, effort: usize, out: &mut Vec<u8>) -> SnapshotState {
        let mut count = 0;
        for number in self.versions.by_ref().take(effort) {
            let Some((ended, row)) = table.version(number) else { continue };
            self.block.extend_from_slice(&ended.position.get().to_le_bytes());
            self.block.extend_from_slice(&ended.timestamp.as_ns().to_le_bytes());
            self.block.extend_from_slice(row);
            count += 1;
            if self.block.len() >= BLOCK_SIZE {
                self.version_count += u64::from(count);
                end_block(&mut self.block, &mut (count | VERSIONS), out);
                count = 0;
            }
        }
        self.version_count += u64::from(count);
        if count > 0 {
            end_block(&mut self.block, &mut (count | VERSIONS), out);
        }
        // The rows were written, so the next portion polls a closed scan, which has no rows.
        if self.versions.is_empty() { SnapshotState::Done { rows: self.rows } } else { SnapshotState::More }
    }

    /// Appends blocks of deletes: those of this call, and not those of the instant of the
    /// snapshot. The log after the position of the snapshot has the changes between the two, so a
    /// table that applies it is the same.
    fn write_deletes(&mut self, table: &Table, effort: usize, out: &mut Vec<u8>) -> SnapshotState {
        let mut count = 0;
        let mut state = SnapshotState::Done { rows: self.rows };
        for (number, key, stamp) in table.deletes_from(self.next_delete) {
            if count as usize >= effort.max(1) || self.block.len() >= BLOCK_SIZE {
                state = SnapshotState::More;
                break;
            }
            self.block.extend_from_slice(&stamp.time.as_ns().to_le_bytes());
            self.block.extend_from_slice(&stamp.instance.to_le_bytes());
            self.block.extend_from_slice(&stamp.publisher.to_le_bytes());
            self.block.push(key.len() as u8);
            self.block.extend_from_slice(key);
            self.next_delete = number + 1;
            count += 1;
        }
        self.delete_count += u64::from(count);
        if count > 0 {
            end_block(&mut self.block, &mut (count | DELETES), out);
        }
        state
    }

    /// Appends a block of the state of a view.
    fn write_state(
        &mut self,
        effort: usize,
        out: &mut Vec<u8>,
        save: &mut dyn FnMut(usize, &mut Vec<u8>) -> Option<u32>,
    ) -> SnapshotState {
        let Some(written) = &mut self.state_count else { return SnapshotState::Done { rows: self.rows } };
        let Some(count) = save(effort, &mut self.block) else {
            return SnapshotState::Done { rows: self.rows };
        };
        *written += u64::from(count);
        match count {
            0 => self.block.clear(),
            _ => end_block(&mut self.block, &mut (count | STATE), out),
        }
        SnapshotState::More
    }

    /// Ends the snapshot before it is complete.
    pub fn close(self, table: &mut Table) {
        table.close(self.scan);
    }
}

fn end_block(block: &mut Vec<u8>, rows: &mut u32, out: &mut Vec<u8>) {
    let begin = out.len();
    // Rows are smaller than 4 GiB together: a block ends after the row that fills it, and messages
    // have a limit far below.
    out.extend_from_slice(&(block.len() as u32).to_le_bytes());
    out.extend_from_slice(&rows.to_le_bytes());
    out.extend_from_slice(&crc32c(block).to_le_bytes());
    let checksum = crc32c(&out[begin..]);
    out.extend_from_slice(&checksum.to_le_bytes());
    out.append(block);
    *rows = 0;
}

fn encode_head(owner: &SnapshotOwner, head: &SnapshotHead) -> [u8; SNAPSHOT_HEAD_SIZE] {
    let mut bytes = [0; SNAPSHOT_HEAD_SIZE];
    bytes[..8].copy_from_slice(&owner.name.to_le_bytes());
    bytes[8] = owner.message_type;
    bytes[9] = owner.is_view.into();
    bytes[10..16].copy_from_slice(&head.together.to_le_bytes()[..6]);
    bytes[16..32].copy_from_slice(&owner.key_rule.to_le_bytes());
    bytes[32..40].copy_from_slice(&head.position.get().to_le_bytes());
    bytes[40..64].copy_from_slice(&head.stamp);
    let checksum = crc32c(&bytes[..64]);
    bytes[64..].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

/// Why bytes are not a snapshot of a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadSnapshot {
    /// A checksum, a length or a row is wrong.
    #[error("the snapshot is damaged at byte {offset} of its content")]
    Damaged {
        /// Where the damaged part begins.
        offset: u64,
    },
    /// It is of another topic, or the topic had another message type or another key.
    #[error("the snapshot is of a topic with another name, message type or key")]
    OtherTopic,
    /// It has two rows with the same key.
    #[error("the snapshot has two rows with the same key")]
    SameKey,
    /// It ends before its last block.
    #[error("the snapshot ends after {size} bytes, before its last block")]
    Incomplete {
        /// The number of bytes.
        size: u64,
    },
}

/// Divides a snapshot into blocks. It takes the bytes in pieces of any size.
#[derive(Debug)]
pub struct SnapshotReader {
    owner: SnapshotOwner,
    head: Option<SnapshotHead>,
    /// The first `len` bytes are not a whole part yet. The others are free.
    bytes: Vec<u8>,
    len: usize,
    /// Where they begin in the snapshot.
    offset: u64,
    rows: u64,
    versions: u64,
    deletes: u64,
    entries: u64,
    history: Option<KnownHistory>,
    order: Option<KnownOrder>,
    is_complete: bool,
}

/// A whole part at the front of the bytes.
enum Front {
    /// The head of the snapshot, or its last block.
    Known,
    Block(Block),
}

impl SnapshotReader {
    /// Reads a snapshot of this topic.
    pub fn new(owner: SnapshotOwner) -> Self {
        SnapshotReader {
            owner,
            head: None,
            bytes: Vec::new(),
            len: 0,
            offset: 0,
            rows: 0,
            versions: 0,
            deletes: 0,
            entries: 0,
            history: None,
            order: None,
            is_complete: false,
        }
    }

    /// When the snapshot was read to its end: the states of its history; `None` = it has no
    /// history.
    pub fn history(&self) -> Option<KnownHistory> {
        self.history
    }

    /// When the snapshot was read to its end: the order of changes, for
    /// [`Table::restore_order`]; `None`: its table kept no order.
    pub fn take_order(&mut self) -> Option<KnownOrder> {
        self.order.take()
    }

    /// The part of the log that the snapshot includes, when its head was read.
    pub fn head(&self) -> Option<SnapshotHead> {
        self.head
    }

    /// Reads the next bytes. Returns the blocks that are whole now.
    ///
    /// # Errors
    /// [`BadSnapshot`]. The reader cannot be used after an error, and the blocks before it are an
    /// incomplete state.
    pub fn read(&mut self, bytes: &[u8]) -> Result<SnapshotBlocks, BadSnapshot> {
        self.room(bytes.len()).copy_from_slice(bytes);
        self.take(0, Vec::new())
    }

    /// Room for the next `size` bytes. The caller writes them, and then calls [`take`](Self::take),
    /// which saves a copy.
    pub fn room(&mut self, size: usize) -> &mut [u8] {
        let (begin, end) = (self.len, self.len + size);
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
        self.len = end;
        &mut self.bytes[begin..end]
    }

    /// As [`read`](Self::read), for the bytes in the [`room`](Self::room) without the last `unused`
    /// ones. The next bytes overwrite `memory`.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn take(&mut self, unused: usize, mut memory: Vec<u8>) -> Result<SnapshotBlocks, BadSnapshot> {
        self.len -= unused;
        let mut blocks = Vec::new();
        let mut taken = 0;
        while let Some((size, front)) = self.front(taken)? {
            taken += size;
            match front {
                Front::Known => {}
                Front::Block(block) => blocks.push(block),
            }
        }
        if taken == 0 {
            return Ok(SnapshotBlocks { bytes: memory, ..SnapshotBlocks::default() });
        }
        let rest = &self.bytes[taken..self.len];
        if memory.len() < rest.len() {
            memory.resize(rest.len(), 0);
        }
        memory[..rest.len()].copy_from_slice(rest);
        self.len = rest.len();
        let bytes = std::mem::replace(&mut self.bytes, memory);
        let offset = self.offset;
        self.offset += taken as u64;
        Ok(SnapshotBlocks { bytes, offset, blocks })
    }

    /// Ends the reading. Returns the part of the log that the snapshot includes.
    ///
    /// # Errors
    /// [`BadSnapshot::Incomplete`].
    pub fn finish(self) -> Result<SnapshotHead, BadSnapshot> {
        let size = self.offset + self.len as u64;
        self.head.filter(|_| self.is_complete).ok_or(BadSnapshot::Incomplete { size })
    }

    /// The part of the snapshot at an offset of the bytes, and its size; `None` when it is not
    /// whole.
    fn front(&mut self, at: usize) -> Result<Option<(usize, Front)>, BadSnapshot> {
        let damaged = BadSnapshot::Damaged { offset: self.offset + at as u64 };
        let bytes = &self.bytes[at..self.len];
        if self.is_complete {
            return if bytes.is_empty() { Ok(None) } else { Err(damaged) };
        }
        if self.head.is_none() {
            let Some(head) = bytes.first_chunk() else { return Ok(None) };
            self.head = Some(decode_head(head, &self.owner).ok_or(damaged)??);
            return Ok(Some((SNAPSHOT_HEAD_SIZE, Front::Known)));
        }
        let Some(block_head) = bytes.first_chunk::<BLOCK_HEAD_SIZE>() else { return Ok(None) };
        let [size, count, checksum, head_checksum] =
            [0, 4, 8, 12].map(|at| u32::from_le_bytes([0, 1, 2, 3].map(|byte| block_head[at + byte])));
        if crc32c(&block_head[..12]) != head_checksum {
            return Err(damaged);
        }
        let Some(block) = bytes[BLOCK_HEAD_SIZE..].get(..size as usize) else { return Ok(None) };
        let whole_size = BLOCK_HEAD_SIZE + block.len();
        if count == 0 {
            let last = LastBlock::read(block, checksum, self.owner.is_view);
            self.end(last).ok_or(damaged)?;
            return Ok(Some((whole_size, Front::Known)));
        }
        let kind = count & (VERSIONS | DELETES | STATE);
        let count = count & !kind;
        let first_slot = self.rows as u32;
        let (known, kind) = match kind {
            0 => (&mut self.rows, BlockKind::Rows { first_slot }),
            VERSIONS => (&mut self.versions, BlockKind::Versions),
            DELETES => (&mut self.deletes, BlockKind::Deletes),
            STATE if self.owner.is_view => (&mut self.entries, BlockKind::State),
            _ => return Err(damaged),
        };
        *known += u64::from(count);
        if count == 0 || self.rows > SLOTS_MAX.into() {
            return Err(damaged);
        }
        let content = at + BLOCK_HEAD_SIZE..at + whole_size;
        Ok(Some((whole_size, Front::Block(Block { begin: at, content, checksum, count, kind }))))
    }

    /// Takes the last block; `None`: it is damaged.
    fn end(&mut self, last: Option<LastBlock>) -> Option<()> {
        let counts = [self.rows, self.versions, self.deletes, self.entries];
        let last = last.filter(|last| last.counts == counts)?;
        (self.history, self.order) = (last.history, last.order);
        self.is_complete = true;
        Some(())
    }
}

/// The content of the last block.
struct LastBlock {
    /// Rows, versions, deletes, and entries of the state of a view.
    counts: [u64; 4],
    history: Option<KnownHistory>,
    order: Option<KnownOrder>,
}

impl LastBlock {
    /// `None`: the bytes are not a last block.
    fn read(block: &[u8], checksum: u32, is_view: bool) -> Option<LastBlock> {
        let (counts, rest) = block.split_at_checked(COUNTS_SIZE).filter(|_| crc32c(block) == checksum)?;
        let numbers: Vec<u64> = counts.chunks_exact(8).map(number_of).collect();
        let [rows, versions, begin, granularity_ns] = numbers[..] else { return None };
        let (mut deletes, mut entries, mut order) = (0, 0, None);
        if is_view {
            entries = rest.try_into().map(u64::from_le_bytes).ok()?;
        } else if !rest.is_empty() {
            let (count, rest) = rest.split_at_checked(8)?;
            deletes = number_of(count);
            order = Some(KnownOrder::decode(rest)?);
        }
        let known = KnownHistory { begin: Timestamp(begin), granularity_ns };
        let history = ((begin, granularity_ns) != NO_HISTORY).then_some(known);
        Some(LastBlock { counts: [rows, versions, deletes, entries], history, order })
    }
}

/// The number in 8 bytes.
fn number_of(bytes: &[u8]) -> u64 {
    let mut number = [0; 8];
    number.copy_from_slice(bytes);
    u64::from_le_bytes(number)
}

/// The head in these bytes; `None` when its checksum is wrong.
fn decode_head(
    bytes: &[u8; SNAPSHOT_HEAD_SIZE],
    owner: &SnapshotOwner,
) -> Option<Result<SnapshotHead, BadSnapshot>> {
    let mut head = SnapshotHead::default();
    let mut position = [0; 8];
    position.copy_from_slice(&bytes[32..40]);
    head.position = Position(u64::from_le_bytes(position));
    head.stamp.copy_from_slice(&bytes[40..64]);
    let mut together = [0; 8];
    together[..6].copy_from_slice(&bytes[10..16]);
    head.together = u64::from_le_bytes(together);
    if crc32c(&bytes[..64]).to_le_bytes() != bytes[64..] {
        return None;
    }
    let is_own = *bytes == encode_head(owner, &head);
    Some(if is_own { Ok(head) } else { Err(BadSnapshot::OtherTopic) })
}
