//! The state of 256 messages: two bits for each (in the queue; not leased), and columns that take
//! no memory where neighbors are equal. The state of a queue in a file also consists of chunks.
//!
//! The bookmark of a message takes no memory where neighbors are consecutive messages of one
//! publisher. Where a chunk has messages of several publishers, it takes two bytes: the number of
//! the publisher in the chunk, and the distance from the first message of this publisher. Each
//! publisher of a chunk takes 16 bytes.

use quire_journal::{Array, Bookmark, Memory, PublisherId};

use super::column::Column;
use super::messages::{Key, NEVER, NOT_A_NUMBER, NewMessage};

/// Messages of a chunk.
pub(super) const CHUNK: usize = 256;
/// Words of 64 bits for one bit of each.
pub(super) const WORDS: usize = CHUNK / 64;
/// Receive times only serve a statistic, so milliseconds do; the time of expiry is exact.
pub(super) const COARSE_NS: u64 = 1_000_000;
/// Added to the steps of sequences, so that no step is negative and consecutive messages of one
/// publisher have equal ones.
const STEP_BASE: u64 = CHUNK as u64 - 1;
/// Bytes of a publisher in a packed chunk.
const PUBLISHER_SIZE: usize = 16;
/// Flags of a packed chunk: it has priorities; some of its messages are barriers; some are delayed.
const RANKED: u8 = 1;
const BARRIERS: u8 = 2;
const DELAYS: u8 = 4;

/// A publisher of messages of a chunk.
#[derive(Clone, Copy, Debug)]
struct ChunkPublisher {
    /// 0: its messages have no bookmarks.
    id: u64,
    /// The sequence of its first message in the chunk.
    first: u64,
}

/// The state of some neighbors.
#[derive(Clone, Debug)]
pub(super) struct Chunk {
    /// In the queue.
    pub present: [u64; WORDS],
    /// In the queue and not leased.
    pub waiting: [u64; WORDS],
    /// The priority is not a number.
    pub unranked: [u64; WORDS],
    /// Number of messages that have ever entered. The chunk is removed when all have entered and
    /// none is present.
    pub entered: usize,
    /// The time under which the chunk is in `timers`; `NEVER`: it is not.
    pub timer: u64,
    /// The position less the place in the chunk: equal for neighbours in the log.
    pub positions: Column,
    publishers: Array<ChunkPublisher>,
    /// The number of the publisher of each message in this list.
    publisher_numbers: Column,
    /// The sequence less that of the first message of the publisher, less the place in the chunk.
    sequence_steps: Column,
    pub received_ms: Column,
    pub expires: Column,
    pub ranks: Column,
    pub deliveries: Column,
    pub cancels: Column,
}

/// Facts about messages of a chunk that the chunk does not hold.
#[derive(Debug, Default)]
pub(super) struct Marks {
    /// The messages that are barriers.
    pub barriers: [u64; WORDS],
    /// The places of delayed messages, ascending, and until when each is delayed.
    pub delays: Vec<(usize, u64)>,
}

impl Marks {
    /// The messages that are delayed.
    pub fn delayed(&self) -> [u64; WORDS] {
        let mut bits = [0; WORDS];
        self.delays.iter().for_each(|(index, _)| set(&mut bits, *index));
        bits
    }
}

impl Chunk {
    /// No message has entered yet. Its columns will be in `memory`.
    pub fn new(memory: &Memory) -> Self {
        let column = || Column::new(memory);
        Chunk {
            present: [0; WORDS],
            waiting: [0; WORDS],
            unranked: [0; WORDS],
            entered: 0,
            timer: NEVER,
            positions: column(),
            publishers: Array::new(memory),
            publisher_numbers: column(),
            sequence_steps: column(),
            received_ms: column(),
            expires: column(),
            ranks: column(),
            deliveries: column(),
            cancels: column(),
        }
    }

    /// A message enters, waiting.
    pub fn push(&mut self, index: usize, message: NewMessage, ranked: bool) {
        set(&mut self.present, index);
        set(&mut self.waiting, index);
        self.positions.push(index, message.position - index as u64);
        self.push_bookmark(index, message.bookmark);
        self.received_ms.push(index, message.received / COARSE_NS);
        self.expires.push(index, message.expires);
        self.deliveries.push(index, 0);
        self.cancels.push(index, 0);
        if ranked {
            self.ranks.push(index, message.priority.map_or(u64::MAX, |priority| !priority));
            if message.priority.is_none() {
                set(&mut self.unranked, index);
            }
        }
        self.entered = index + 1;
        if self.entered == CHUNK {
            for column in [&mut self.positions, &mut self.received_ms, &mut self.expires, &mut self.ranks] {
                column.shrink();
            }
            self.publishers.shrink_to_fit();
            self.publisher_numbers.shrink();
            self.sequence_steps.shrink();
        }
    }

    fn push_bookmark(&mut self, index: usize, bookmark: Option<Bookmark>) {
        let (id, sequence) = bookmark.map_or((0, 0), |name| (name.publisher.get(), name.sequence));
        let before = index.checked_sub(1).map(|before| self.publisher_numbers.get(before) as usize);
        let number = before.filter(|before| self.publishers[*before].id == id);
        let number = number.or_else(|| self.publishers.iter().position(|publisher| publisher.id == id));
        let number = number.unwrap_or_else(|| {
            self.publishers.extend_from_slice(&[ChunkPublisher { id, first: sequence }]);
            self.publishers.len() - 1
        });
        let step = match bookmark {
            Some(_) => {
                let distance = sequence.wrapping_sub(self.publishers[number].first);
                distance.wrapping_add(STEP_BASE - index as u64)
            }
            None => STEP_BASE,
        };
        self.publisher_numbers.push(index, number as u64);
        self.sequence_steps.push(index, step);
    }

    /// The bookmark of the message at `index`, if it has one.
    pub fn bookmark(&self, index: usize) -> Option<Bookmark> {
        let ChunkPublisher { id, first } = self.publishers[self.publisher_numbers.get(index) as usize];
        let distance = self.sequence_steps.get(index).wrapping_sub(STEP_BASE - index as u64);
        (id != 0).then(|| Bookmark::new(PublisherId::new(id), first.wrapping_add(distance)))
    }

    /// The position of the message at `index`.
    pub fn position(&self, index: usize) -> u64 {
        self.positions.get(index) + index as u64
    }

    /// When the message at `index` was received, to the millisecond.
    pub fn received(&self, index: usize) -> u64 {
        self.received_ms.get(index) * COARSE_NS
    }

    /// Its place in delivery order.
    pub fn key(&self, index: usize, ordinal: u64) -> Key {
        let mark = if has(&self.unranked, index) { NOT_A_NUMBER } else { 0 };
        (self.ranks.get(index), ordinal | mark)
    }
}

impl Chunk {
    /// Appends the chunk to `out` (docs/journal-format.md). `deliveries` is written in place of the
    /// column of that name.
    pub fn pack(&self, ranked: bool, deliveries: &Column, marks: &Marks, out: &mut Vec<u8>) {
        let Marks { barriers, delays } = marks;
        let ranked_flag = if ranked { RANKED } else { 0 };
        let delays_flag = if delays.is_empty() { 0 } else { DELAYS };
        let flags = ranked_flag | delays_flag | if is_empty(barriers) { 0 } else { BARRIERS };
        out.extend_from_slice(&(self.entered as u16).to_le_bytes());
        out.push(flags);
        put_bits(&self.present, out);
        if flags & BARRIERS != 0 {
            put_bits(barriers, out);
        }
        if flags & DELAYS != 0 {
            put_bits(&marks.delayed(), out);
            delays.iter().for_each(|(_, until)| out.extend_from_slice(&until.to_le_bytes()));
        }
        if ranked {
            put_bits(&self.unranked, out);
            self.ranks.pack(out);
        }
        for column in [&self.positions, &self.received_ms, &self.expires, deliveries, &self.cancels] {
            column.pack(out);
        }
        out.extend_from_slice(&(self.publishers.len() as u16).to_le_bytes());
        for ChunkPublisher { id, first } in self.publishers.iter() {
            out.extend_from_slice(&id.to_le_bytes());
            out.extend_from_slice(&first.to_le_bytes());
        }
        self.publisher_numbers.pack(out);
        self.sequence_steps.pack(out);
    }

    /// The next chunk of `rest`, and its marks; `None` when [`pack`](Self::pack) could not have
    /// written it.
    pub fn unpack(rest: &mut &[u8], ranked: bool, memory: &Memory) -> Option<(Chunk, Marks)> {
        let (head, after) = rest.split_first_chunk::<3>()?;
        *rest = after;
        let entered = usize::from(u16::from_le_bytes([head[0], head[1]]));
        let flags = head[2];
        let is_known = flags & !(RANKED | BARRIERS | DELAYS) == 0 && (flags & RANKED != 0) == ranked;
        if !is_known || !(1..=CHUNK).contains(&entered) {
            return None;
        }
        let mut chunk = Chunk { entered, present: take_bits(rest, entered)?, ..Chunk::new(memory) };
        let barriers = if flags & BARRIERS != 0 { take_bits(rest, entered)? } else { [0; WORDS] };
        let delayed = if flags & DELAYS != 0 { take_bits(rest, entered)? } else { [0; WORDS] };
        let places = std::iter::successors(next(&delayed, 0), |index| next(&delayed, index + 1));
        let delays = places.map(|index| Some((index, take_time(rest)?))).collect::<Option<_>>()?;
        if ranked {
            chunk.unranked = take_bits(rest, entered)?;
            chunk.ranks = Column::unpack(rest, entered, memory)?;
        }
        let Chunk { positions, received_ms, expires, deliveries, cancels, .. } = &mut chunk;
        for column in [positions, received_ms, expires, deliveries, cancels] {
            *column = Column::unpack(rest, entered, memory)?;
        }
        chunk.unpack_bookmarks(rest, memory)?;
        let mut before = 0;
        for index in 0..entered {
            let position = chunk.positions.get(index).checked_add(index as u64)?;
            chunk.received_ms.get(index).checked_mul(COARSE_NS)?;
            if position <= before {
                return None;
            }
            before = position;
        }
        Some((chunk, Marks { barriers, delays }))
    }

    fn unpack_bookmarks(&mut self, rest: &mut &[u8], memory: &Memory) -> Option<()> {
        let (count, after) = rest.split_first_chunk::<2>()?;
        let count = usize::from(u16::from_le_bytes(*count));
        let (publishers, after) = after.split_at_checked(count * PUBLISHER_SIZE)?;
        *rest = after;
        for [id, first] in publishers.as_chunks::<8>().0.as_chunks::<2>().0 {
            let publisher = ChunkPublisher { id: u64::from_le_bytes(*id), first: u64::from_le_bytes(*first) };
            self.publishers.extend_from_slice(&[publisher]);
        }
        self.publisher_numbers = Column::unpack(rest, self.entered, memory)?;
        self.sequence_steps = Column::unpack(rest, self.entered, memory)?;
        let is_known = |index| self.publisher_numbers.get(index) < count as u64;
        (count <= CHUNK && (0..self.entered).all(is_known)).then_some(())
    }
}

fn put_bits(bits: &[u64; WORDS], out: &mut Vec<u8>) {
    bits.iter().for_each(|word| out.extend_from_slice(&word.to_le_bytes()));
}

/// The next bits; `None` when a bit from `count` on is set.
fn take_bits(rest: &mut &[u8], count: usize) -> Option<[u64; WORDS]> {
    let mut bits = [0; WORDS];
    for word in &mut bits {
        let (bytes, after) = rest.split_first_chunk::<8>()?;
        *word = u64::from_le_bytes(*bytes);
        *rest = after;
    }
    (count == CHUNK || next(&bits, count).is_none()).then_some(bits)
}

fn take_time(rest: &mut &[u8]) -> Option<u64> {
    let (bytes, after) = rest.split_first_chunk::<8>()?;
    *rest = after;
    Some(u64::from_le_bytes(*bytes))
}

pub(super) fn has(bits: &[u64; WORDS], index: usize) -> bool {
    bits[index / 64] >> (index % 64) & 1 == 1
}

pub(super) fn set(bits: &mut [u64; WORDS], index: usize) {
    bits[index / 64] |= 1 << (index % 64);
}

pub(super) fn clear(bits: &mut [u64; WORDS], index: usize) {
    bits[index / 64] &= !(1 << (index % 64));
}

pub(super) fn is_empty(bits: &[u64; WORDS]) -> bool {
    bits.iter().all(|word| *word == 0)
}

pub(super) fn next(bits: &[u64; WORDS], from: usize) -> Option<usize> {
    let mut mask = !0 << (from % 64);
    for (word, bits) in bits.iter().enumerate().skip(from / 64) {
        if bits & mask != 0 {
            return Some(word * 64 + (bits & mask).trailing_zeros() as usize);
        }
        mask = !0;
    }
    None
}
