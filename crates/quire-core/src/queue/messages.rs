//! The messages of one queue: what is in it, what waits, and when it expires.
//!
//! Every message that enters gets an *ordinal*, counted from 0 without gaps, so that sets of messages are dense whatever lies between
//! them in the log. State is kept for chunks of 256 ordinals: two bits for each message (in the queue; not leased), and columns that
//! take no memory where neighbours are alike. A chunk goes when its last message does.

use std::collections::BTreeSet;

use super::chunks::Chunks;
use super::column::Column;

const CHUNK: usize = 256;
const WORDS: usize = CHUNK / 64;
/// Receive times only serve a statistic, so milliseconds do; the time of expiry is exact.
const COARSE_NS: u64 = 1_000_000;
/// The time of expiry of a message that never expires.
pub(super) const NEVER: u64 = u64::MAX;

/// Delivery order: the rank (0 without priorities, else the smaller the higher the priority), then the ordinal, which carries the top
/// bit when the priority is not a number.
pub(super) type Key = (u64, u64);
const NOT_A_NUMBER: u64 = 1 << 63;

/// The ordinal in a key.
pub(super) fn ordinal_of(key: Key) -> u64 {
    key.1 & !NOT_A_NUMBER
}

/// A message about to enter.
#[derive(Clone, Copy, Debug)]
pub(super) struct NewMessage {
    pub position: u64,
    pub received: u64,
    pub priority: Option<u64>,
    /// When it expires; [`NEVER`] if it does not.
    pub expires: u64,
}

/// Where a message stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Waiting,
    Leased,
    Gone,
}

/// The state of all messages of one queue.
#[derive(Debug, Default)]
pub(super) struct Messages {
    chunks: Chunks<Chunk>,
    /// Chunks in which something waits.
    waiting_chunks: BTreeSet<u64>,
    /// The first of them, or `NEVER`: looked at for every delivery.
    waiting_from: u64,
    /// For each chunk in which something can expire, a time no later than the first of these expiries.
    timers: BTreeSet<(u64, u64)>,
    ranked: bool,
    next: u64,
    present: u64,
    waiting: u64,
}

#[derive(Debug, Default)]
struct Chunk {
    /// In the queue.
    present: [u64; WORDS],
    /// In the queue and not leased.
    waiting: [u64; WORDS],
    /// The priority is not a number.
    unranked: [u64; WORDS],
    /// How many messages have ever entered; the chunk goes when that is all of them and none is present.
    entered: usize,
    /// The time under which the chunk is in `timers`; `NEVER`: it is not.
    timer: u64,
    /// The position less the place in the chunk: equal for neighbours in the log.
    positions: Column,
    received_ms: Column,
    expires: Column,
    ranks: Column,
    deliveries: Column,
    cancels: Column,
}

impl Messages {
    /// No messages; `ranked`: priorities are kept.
    pub fn new(ranked: bool) -> Self {
        Messages { ranked, waiting_from: NEVER, ..Messages::default() }
    }

    /// The ordinal that the next message will get.
    pub fn next_ordinal(&self) -> u64 {
        self.next
    }

    /// Messages in the queue.
    pub fn present(&self) -> u64 {
        self.present
    }

    /// Messages in the queue that are not leased.
    pub fn waiting(&self) -> u64 {
        self.waiting
    }

    /// Takes a message in, waiting. Positions must ascend.
    pub fn push(&mut self, message: NewMessage) -> u64 {
        let ordinal = self.next;
        let (number, index) = place(ordinal);
        let chunk =
            self.chunks.get_or_push(number, message.position, || Chunk { timer: NEVER, ..Chunk::default() });
        let wakes = is_empty(&chunk.waiting);
        chunk.push(index, message, self.ranked);
        set_timer(&mut self.timers, number, chunk, message.expires.min(chunk.timer));
        if wakes {
            self.waiting_chunks.insert(number);
            self.waiting_from = self.waiting_from.min(number);
        }
        self.next += 1;
        self.present += 1;
        self.waiting += 1;
        ordinal
    }

    /// The ordinal of the message at `position`, if it is in the queue.
    pub fn find(&self, position: u64) -> Option<u64> {
        let number = self.chunks.find(position)?;
        let chunk = self.chunks.get(number)?;
        let (mut low, mut high) = (0, chunk.entered);
        while low < high {
            let middle = (low + high) / 2;
            if chunk.position(middle) < position {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        let found = low < chunk.entered && chunk.position(low) == position && has(&chunk.present, low);
        found.then_some(number * CHUNK as u64 + low as u64)
    }

    /// The first message of the queue behind `position`.
    pub fn first_after(&self, position: u64) -> Option<u64> {
        let Some(number) = self.chunks.find(position) else { return self.next_present(0) };
        let mut index = 0;
        if let Some(chunk) = self.chunks.get(number) {
            while index < chunk.entered && chunk.position(index) <= position {
                index += 1;
            }
        }
        self.next_present(number * CHUNK as u64 + index as u64)
    }

    /// Where the message stands.
    pub fn state(&self, ordinal: u64) -> State {
        let (number, index) = place(ordinal);
        match self.chunks.get(number) {
            Some(chunk) if has(&chunk.waiting, index) => State::Waiting,
            Some(chunk) if has(&chunk.present, index) => State::Leased,
            _ => State::Gone,
        }
    }

    /// The position of a message that is in the queue.
    pub fn position(&self, ordinal: u64) -> u64 {
        let (number, index) = place(ordinal);
        self.chunks.get(number).map_or(0, |chunk| chunk.position(index))
    }

    /// When a message of the queue was received, to the millisecond.
    pub fn received(&self, ordinal: u64) -> u64 {
        let (number, index) = place(ordinal);
        self.chunks.get(number).map_or(0, |chunk| chunk.received_ms.get(index) * COARSE_NS)
    }

    /// When a message of the queue expires.
    pub fn expires(&self, ordinal: u64) -> u64 {
        let (number, index) = place(ordinal);
        self.chunks.get(number).map_or(NEVER, |chunk| chunk.expires.get(index))
    }

    /// The place of a message of the queue in delivery order.
    pub fn key(&self, ordinal: u64) -> Key {
        let (number, index) = place(ordinal);
        match self.chunks.get(number) {
            Some(chunk) if self.ranked => chunk.key(index, ordinal),
            _ => (0, ordinal),
        }
    }

    /// How often a message of the queue was delivered and cancelled, current lease included.
    pub fn counts(&self, ordinal: u64) -> (u32, u32) {
        let (number, index) = place(ordinal);
        let Some(chunk) = self.chunks.get(number) else { return (0, 0) };
        (chunk.deliveries.get(index) as u32, chunk.cancels.get(index) as u32)
    }

    /// Records how often a message of the queue was delivered and cancelled.
    pub fn set_counts(&mut self, ordinal: u64, deliveries: u32, cancels: u32) {
        let (number, index) = place(ordinal);
        let Some(chunk) = self.chunks.get_mut(number) else { return };
        chunk.deliveries.set(chunk.entered, index, u64::from(deliveries));
        chunk.cancels.set(chunk.entered, index, u64::from(cancels));
    }

    /// Marks a waiting message as leased.
    pub fn lease(&mut self, ordinal: u64) {
        let (number, index) = place(ordinal);
        let Some(chunk) = self.chunks.get_mut(number) else { return };
        if has(&chunk.waiting, index) {
            clear(&mut chunk.waiting, index);
            self.waiting -= 1;
            if is_empty(&chunk.waiting) {
                self.waiting_chunks.remove(&number);
                self.waiting_from = self.waiting_chunks.first().copied().unwrap_or(NEVER);
            }
        }
    }

    /// Lets a leased message wait again, at its old place.
    pub fn give_back(&mut self, ordinal: u64) {
        let (number, index) = place(ordinal);
        let Some(chunk) = self.chunks.get_mut(number) else { return };
        if has(&chunk.present, index) && !has(&chunk.waiting, index) {
            if is_empty(&chunk.waiting) {
                self.waiting_chunks.insert(number);
                self.waiting_from = self.waiting_from.min(number);
            }
            set(&mut chunk.waiting, index);
            self.waiting += 1;
            let timer = chunk.timer.min(chunk.expires.get(index));
            set_timer(&mut self.timers, number, chunk, timer);
        }
    }

    /// Takes a message out of the queue, waiting or leased.
    pub fn remove(&mut self, ordinal: u64) {
        let (number, index) = place(ordinal);
        self.lease(ordinal);
        let Some(chunk) = self.chunks.get_mut(number) else { return };
        if !has(&chunk.present, index) {
            return;
        }
        clear(&mut chunk.present, index);
        self.present -= 1;
        if chunk.entered == CHUNK && is_empty(&chunk.present) {
            set_timer(&mut self.timers, number, chunk, NEVER);
            self.chunks.remove(number);
        }
    }

    /// The first waiting message at or after `from`.
    pub fn next_waiting(&self, from: u64) -> Option<u64> {
        let (number, index) = place(from);
        let here = self.chunks.get(number).and_then(|chunk| next(&chunk.waiting, index));
        if let Some(index) = here {
            return Some(number * CHUNK as u64 + index as u64);
        }
        let number = *self.waiting_chunks.range(number + 1..).next()?;
        let index = next(&self.chunks.get(number)?.waiting, 0)?;
        Some(number * CHUNK as u64 + index as u64)
    }

    /// The first waiting message.
    pub fn first_waiting(&self) -> Option<u64> {
        let number = self.waiting_from;
        let index = next(&self.chunks.get(number)?.waiting, 0)?;
        Some(number * CHUNK as u64 + index as u64)
    }

    /// The first message of the queue at or after `from`, waiting or leased.
    pub fn next_present(&self, from: u64) -> Option<u64> {
        let (number, index) = place(from);
        self.chunks.from(number).find_map(|(at, chunk)| {
            let index = next(&chunk.present, if at == number { index } else { 0 })?;
            Some(at * CHUNK as u64 + index as u64)
        })
    }

    /// A time no later than the first expiry of a waiting message.
    pub fn next_expiry(&self) -> Option<u64> {
        self.timers.first().map(|(time, _)| *time)
    }

    /// The waiting messages of one chunk whose time has come; empty when there are none in any. The caller removes what it gets.
    pub fn due(&mut self, now: u64) -> Vec<u64> {
        let mut due = Vec::new();
        while let Some((time, number)) = self.timers.first().copied() {
            if time > now || !due.is_empty() {
                break;
            }
            let Some(chunk) = self.chunks.get_mut(number) else { break };
            let mut timer = NEVER;
            let mut from = 0;
            while let Some(index) = next(&chunk.waiting, from) {
                match chunk.expires.get(index) {
                    expires if expires <= now => due.push(number * CHUNK as u64 + index as u64),
                    expires => timer = timer.min(expires),
                }
                from = index + 1;
            }
            set_timer(&mut self.timers, number, chunk, timer);
        }
        due
    }
}

impl Chunk {
    fn push(&mut self, index: usize, message: NewMessage, ranked: bool) {
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

    fn position(&self, index: usize) -> u64 {
        self.positions.get(index) + index as u64
    }

    fn key(&self, index: usize, ordinal: u64) -> Key {
        let mark = if has(&self.unranked, index) { NOT_A_NUMBER } else { 0 };
        (self.ranks.get(index), ordinal | mark)
    }
}

fn set_timer(timers: &mut BTreeSet<(u64, u64)>, number: u64, chunk: &mut Chunk, time: u64) {
    if chunk.timer != time {
        timers.remove(&(chunk.timer, number));
        chunk.timer = time;
        if time != NEVER {
            timers.insert((time, number));
        }
    }
}

fn place(ordinal: u64) -> (u64, usize) {
    (ordinal / CHUNK as u64, (ordinal % CHUNK as u64) as usize)
}

fn has(bits: &[u64; WORDS], index: usize) -> bool {
    bits[index / 64] >> (index % 64) & 1 == 1
}

fn set(bits: &mut [u64; WORDS], index: usize) {
    bits[index / 64] |= 1 << (index % 64);
}

fn clear(bits: &mut [u64; WORDS], index: usize) {
    bits[index / 64] &= !(1 << (index % 64));
}

fn is_empty(bits: &[u64; WORDS]) -> bool {
    bits.iter().all(|word| *word == 0)
}

fn next(bits: &[u64; WORDS], from: usize) -> Option<usize> {
    let mut mask = !0 << (from % 64);
    for (word, bits) in bits.iter().enumerate().skip(from / 64) {
        if bits & mask != 0 {
            return Some(word * 64 + (bits & mask).trailing_zeros() as usize);
        }
        mask = !0;
    }
    None
}
