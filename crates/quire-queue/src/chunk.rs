//! The state of 256 messages: two bits for each (in the queue; not leased), and columns that take no memory where neighbors are equal. The
//! state of a queue in a file also consists of chunks.

use quire_journal::Memory;

use super::column::Column;
use super::messages::{Key, NEVER, NOT_A_NUMBER, NewMessage};

/// Messages of a chunk.
pub(super) const CHUNK: usize = 256;
/// Words of 64 bits for one bit of each.
pub(super) const WORDS: usize = CHUNK / 64;
/// Receive times only serve a statistic, so milliseconds do; the time of expiry is exact.
pub(super) const COARSE_NS: u64 = 1_000_000;
/// Flags of a packed chunk: it has priorities; some of its messages are barriers; some are delayed.
const RANKED: u8 = 1;
const BARRIERS: u8 = 2;
const DELAYS: u8 = 4;

/// The state of some neighbours.
#[derive(Clone, Debug)]
pub(super) struct Chunk {
    /// In the queue.
    pub present: [u64; WORDS],
    /// In the queue and not leased.
    pub waiting: [u64; WORDS],
    /// The priority is not a number.
    pub unranked: [u64; WORDS],
    /// Number of messages that have ever entered. The chunk is removed when all have entered and none is present.
    pub entered: usize,
    /// The time under which the chunk is in `timers`; `NEVER`: it is not.
    pub timer: u64,
    /// The position less the place in the chunk: equal for neighbours in the log.
    pub positions: Column,
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
        }
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
    /// Appends the chunk to `out` (docs/journal-format.md). `deliveries` is written in place of the column of that name.
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
    }

    /// The next chunk of `rest`, and its marks; `None` when [`pack`](Self::pack) could not have written it.
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
