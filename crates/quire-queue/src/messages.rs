//! The messages of one queue: the active ones, the waiting ones, and their times of expiry.
//!
//! Every message that enters gets an *ordinal*, counted from 0 without gaps. So sets of messages
//! are dense, even when other records are between them in the log. State is kept for chunks of 256
//! ordinals (`chunk.rs`). A chunk is removed with its last message.

use std::collections::BTreeSet;

use quire_journal::{Bookmark, Memory};

use super::chunk::{CHUNK, Chunk, WORDS, clear, has, is_empty, next, set};
use super::chunks::Chunks;

/// The time of expiry of a message that never expires.
pub(super) const NEVER: u64 = u64::MAX;

/// Delivery order: the rank (0 without priorities, else the smaller the higher the priority), then
/// the ordinal, which carries the top bit when the priority is not a number.
pub(super) type Key = (u64, u64);
pub(super) const NOT_A_NUMBER: u64 = 1 << 63;

/// The ordinal in a key.
pub(super) fn ordinal_of(key: Key) -> u64 {
    key.1 & !NOT_A_NUMBER
}

/// A message about to enter.
#[derive(Clone, Copy, Debug)]
pub(super) struct NewMessage {
    pub position: u64,
    pub bookmark: Option<Bookmark>,
    pub received: u64,
    pub priority: Option<u64>,
    /// When it expires; [`NEVER`] if it does not.
    pub expires: u64,
}

/// The state of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MessageState {
    Waiting,
    /// Or delayed.
    Leased,
    Gone,
}

/// The state of all messages of one queue.
#[derive(Debug)]
pub(super) struct Messages {
    chunks: Chunks<Chunk>,
    waiting: Waiting,
    /// For each chunk in which something can expire, a time no later than the first of these
    /// expiries.
    timers: BTreeSet<(u64, u64)>,
    ranked: bool,
    next: u64,
    present: u64,
}

/// The waiting messages of all chunks together. Each chunk records which of its messages wait.
#[derive(Debug)]
struct Waiting {
    count: u64,
    /// Chunks in which something waits.
    chunks: BTreeSet<u64>,
    /// The first of them, or `NEVER`: looked at for every delivery.
    first: u64,
}

impl Messages {
    /// No messages; `ranked`: priorities are kept. The state of each message will be in `memory`.
    pub fn new(ranked: bool, memory: &Memory) -> Self {
        Messages {
            chunks: Chunks::new(memory),
            waiting: Waiting::default(),
            timers: BTreeSet::new(),
            ranked,
            next: 0,
            present: 0,
        }
    }

    /// The memory that holds them.
    pub fn memory(&self) -> &Memory {
        self.chunks.memory()
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
        self.waiting.count
    }

    /// Takes a message in, waiting. Positions must ascend.
    pub fn push(&mut self, message: NewMessage) -> u64 {
        let ordinal = self.next;
        let (number, index) = place(ordinal);
        let chunk = self.chunks.get_or_push(number, message.position, Chunk::new);
        if is_empty(&chunk.waiting) {
            self.waiting.begin(number);
        }
        chunk.push(index, message, self.ranked);
        set_timer(&mut self.timers, number, chunk, message.expires.min(chunk.timer));
        self.next += 1;
        self.present += 1;
        self.waiting.count += 1;
        ordinal
    }

    /// Adds a chunk of a snapshot after all others. The chunks before it must be full. A leased
    /// message waits again. Messages at the places `delayed` are delayed.
    pub fn take_in(&mut self, mut chunk: Chunk, delayed: &[u64; WORDS]) {
        let count: u32 = chunk.present.iter().map(|word| word.count_ones()).sum();
        if count == 0 {
            return;
        }
        chunk.waiting = std::array::from_fn(|word| chunk.present[word] & !delayed[word]);
        let waiting_count: u32 = chunk.waiting.iter().map(|word| word.count_ones()).sum();
        let number = self.next / CHUNK as u64;
        let (entered, position) = (chunk.entered as u64, chunk.position(0));
        let waiting = std::iter::successors(next(&chunk.waiting, 0), |at| next(&chunk.waiting, at + 1));
        let timer = waiting.map(|index| chunk.expires.get(index)).min().unwrap_or(NEVER);
        let chunk = self.chunks.get_or_push(number, position, |_| chunk);
        set_timer(&mut self.timers, number, chunk, timer);
        if waiting_count > 0 {
            self.waiting.begin(number);
        }
        self.next += entered;
        self.present += u64::from(count);
        self.waiting.count += u64::from(waiting_count);
    }

    /// The first chunk from this number on that is left, and its number.
    pub fn chunk_from(&self, number: u64) -> Option<(u64, &Chunk)> {
        self.chunks.from(number).next()
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

    /// The first message of the queue after `position`.
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

    /// The state of the message.
    pub fn state(&self, ordinal: u64) -> MessageState {
        let (number, index) = place(ordinal);
        match self.chunks.get(number) {
            Some(chunk) if has(&chunk.waiting, index) => MessageState::Waiting,
            Some(chunk) if has(&chunk.present, index) => MessageState::Leased,
            _ => MessageState::Gone,
        }
    }

    /// The position of a message that is in the queue.
    pub fn position(&self, ordinal: u64) -> u64 {
        let (number, index) = place(ordinal);
        self.chunks.get(number).map_or(0, |chunk| chunk.position(index))
    }

    /// The bookmark of a message that is in the queue, if it has one.
    pub fn bookmark(&self, ordinal: u64) -> Option<Bookmark> {
        let (number, index) = place(ordinal);
        self.chunks.get(number).and_then(|chunk| chunk.bookmark(index))
    }

    /// When a message of the queue was received, to the millisecond.
    pub fn received(&self, ordinal: u64) -> u64 {
        let (number, index) = place(ordinal);
        self.chunks.get(number).map_or(0, |chunk| chunk.received(index))
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

    /// Marks a waiting message as leased. Gives its position, and how often it was delivered and
    /// cancelled before.
    pub fn lease(&mut self, ordinal: u64) -> (u64, u32, u32) {
        let (number, index) = place(ordinal);
        let Some(chunk) = self.chunks.get_mut(number) else { return (0, 0, 0) };
        self.waiting.leave(chunk, number, index);
        (chunk.position(index), chunk.deliveries.get(index) as u32, chunk.cancels.get(index) as u32)
    }

    /// A message waits no longer, if it did.
    pub fn set_aside(&mut self, ordinal: u64) {
        let (number, index) = place(ordinal);
        if let Some(chunk) = self.chunks.get_mut(number) {
            self.waiting.leave(chunk, number, index);
        }
    }

    /// Lets a leased message wait again, at its old place.
    pub fn give_back(&mut self, ordinal: u64) {
        let (number, index) = place(ordinal);
        let Some(chunk) = self.chunks.get_mut(number) else { return };
        if has(&chunk.present, index) && !has(&chunk.waiting, index) {
            if is_empty(&chunk.waiting) {
                self.waiting.begin(number);
            }
            set(&mut chunk.waiting, index);
            self.waiting.count += 1;
            let timer = chunk.timer.min(chunk.expires.get(index));
            set_timer(&mut self.timers, number, chunk, timer);
        }
    }

    /// Takes a message out of the queue, waiting or leased. Gives its bookmark, if it has one.
    #[inline]
    pub fn remove(&mut self, ordinal: u64) -> Option<Bookmark> {
        let (number, index) = place(ordinal);
        let chunk = self.chunks.get_mut(number)?;
        let bookmark = chunk.bookmark(index);
        self.waiting.leave(chunk, number, index);
        if !has(&chunk.present, index) {
            return bookmark;
        }
        clear(&mut chunk.present, index);
        self.present -= 1;
        if chunk.entered == CHUNK && is_empty(&chunk.present) {
            set_timer(&mut self.timers, number, chunk, NEVER);
            self.chunks.remove(number);
        }
        bookmark
    }

    /// The first waiting message at or after `from`.
    pub fn next_waiting(&self, from: u64) -> Option<u64> {
        let (number, index) = place(from);
        let here = self.chunks.get(number).and_then(|chunk| next(&chunk.waiting, index));
        if let Some(index) = here {
            return Some(number * CHUNK as u64 + index as u64);
        }
        let number = *self.waiting.chunks.range(number + 1..).next()?;
        let index = next(&self.chunks.get(number)?.waiting, 0)?;
        Some(number * CHUNK as u64 + index as u64)
    }

    /// The first waiting message.
    pub fn first_waiting(&self) -> Option<u64> {
        let number = self.waiting.first;
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

    /// The waiting messages of one chunk whose time has come; empty when there are none in any
    /// chunk. The caller removes them.
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

impl Default for Waiting {
    fn default() -> Self {
        Waiting { count: 0, chunks: BTreeSet::new(), first: NEVER }
    }
}

impl Waiting {
    /// Something waits in a chunk in which nothing did.
    fn begin(&mut self, number: u64) {
        self.chunks.insert(number);
        self.first = self.first.min(number);
    }

    /// A message waits no longer, if it did.
    fn leave(&mut self, chunk: &mut Chunk, number: u64, index: usize) {
        if !has(&chunk.waiting, index) {
            return;
        }
        clear(&mut chunk.waiting, index);
        self.count -= 1;
        if is_empty(&chunk.waiting) {
            self.chunks.remove(&number);
            self.first = self.chunks.first().copied().unwrap_or(NEVER);
        }
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
