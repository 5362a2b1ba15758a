//! The index of keys: from the hash of a key to the slots of rows with this hash.
//!
//! It is a linear hash table. It has many small tables (shards). It adds a shard when there are
//! enough rows for it, and divides the entries of one existing shard between that shard and the new
//! one. So an insertion moves at most a few thousand entries, and a table of a hundred million rows
//! does not stop the server while it grows. One table for all rows would.
//!
//! A shard consists of lines of memory. An entry is in the home line of its hash, or in a later
//! line when all lines from the home line on are full. So the line depends only on the hash, and a
//! caller with several hashes can make the processor read their lines together. An entry has its
//! hash, so that neither a lookup nor growth reads the rows of other keys.

use xxhash_rust::xxh3::xxh3_64;

use crate::prefetch::{LINE_SIZE, prefetch_line};

/// Rows per shard when a shard is added. Shards then have between this number and twice this
/// number.
const SHARD_ROWS: usize = 1_680;

/// Shards whose slots are sorted together when an index is made of known slots: their slots fit
/// into the cache of a core.
const GROUP_SHARDS: usize = 64;

/// Entries of a line.
const LINE_ENTRIES: usize = 8;
/// A shard is full when five of six places are used. With more, many entries would be in lines
/// after their home line.
const FULL: (usize, usize) = (5, 6);
/// No slot. Slots have 30 bits.
const FREE: u32 = u32::MAX;

/// A linear hash table of slots.
#[derive(Debug)]
pub(crate) struct KeyIndex {
    shards: Vec<Shard>,
    len: usize,
    /// The hashes of the first slots, in their order, until [`KeyIndex::finish_restore`].
    restored: Vec<u32>,
}

/// A hash table of a few thousand slots.
#[derive(Debug, Default)]
struct Shard {
    lines: Box<[Line]>,
    len: usize,
}

/// A few entries, the free places last. The processor reads a line from memory at once.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
struct Line {
    hashes: [u32; LINE_ENTRIES],
    slots: [u32; LINE_ENTRIES],
}

const _: () = assert!(size_of::<Line>() == LINE_SIZE);

/// The hash of a key, as the index uses it.
pub(crate) fn hash_of(key: &[u8]) -> u32 {
    xxh3_64(key) as u32
}

/// The upper bits of the hash within a shard. They depend on all bits of the hash, because the
/// hashes of one shard have equal low bits.
fn spread(hash: u32) -> u64 {
    u64::from(hash).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> u32::BITS
}

impl KeyIndex {
    pub fn new() -> Self {
        KeyIndex { shards: vec![Shard::default()], len: 0, restored: Vec::new() }
    }

    /// The slot with this hash that `is_it` accepts.
    #[inline]
    pub fn find(&self, hash: u32, is_it: impl FnMut(u32) -> bool) -> Option<u32> {
        self.shards[self.shard_of(hash)].find(hash, is_it)
    }

    /// Makes the processor read the line in which a hash probably has its entry.
    #[inline]
    pub fn prefetch(&self, hash: u32) {
        let shard = &self.shards[self.shard_of(hash)];
        if let Some(line) = shard.lines.get(shard.home_of(hash)) {
            prefetch_line(line);
        }
    }

    /// Adds the next slot, from 0, of a table that is being restored. It is not found before
    /// [`finish_restore`](Self::finish_restore).
    pub fn restore(&mut self, hash: u32) {
        self.restored.push(hash);
    }

    /// Makes the index of all restored slots. Returns `None` when two slots have the same key by
    /// `are_equal`.
    ///
    /// The slots are sorted by shard first, so that all work on a shard is in the cache of the
    /// processor. They are sorted in two steps, because alternating writes to thousands of places
    /// wait for memory each time. This takes 8 bytes for each slot until it returns.
    pub fn finish_restore(&mut self, are_equal: impl Fn(u32, u32) -> bool) -> Option<()> {
        let hashes = std::mem::take(&mut self.restored);
        let len = hashes.len();
        let shards = len.div_ceil(SHARD_ROWS).max(1);
        *self = KeyIndex { shards: (0..shards).map(|_| Shard::default()).collect(), len, ..KeyIndex::new() };
        let group_of = |hash| self.shard_of(hash) / GROUP_SHARDS;
        let groups = shards.div_ceil(GROUP_SHARDS);
        // Where the slots of each group begin, and later where they end.
        let mut ends = vec![0; groups + 1];
        hashes.iter().for_each(|hash| ends[group_of(*hash) + 1] += 1);
        (0..groups).for_each(|group| ends[group + 1] += ends[group]);
        let mut sorted = vec![(0, 0); len];
        for (slot, hash) in (0..).zip(&hashes) {
            let at = &mut ends[group_of(*hash)];
            sorted[*at] = (*hash, slot);
            *at += 1;
        }
        drop(hashes);
        let mut begin = 0;
        let mut of_shards: Vec<_> = (0..GROUP_SHARDS).map(|_| Vec::with_capacity(2 * SHARD_ROWS)).collect();
        for (group, end) in ends.into_iter().take(groups).enumerate() {
            for (hash, slot) in &sorted[begin..end] {
                of_shards[self.shard_of(*hash) % GROUP_SHARDS].push((*hash, *slot));
            }
            for (shard, entries) in self.shards.iter_mut().skip(group * GROUP_SHARDS).zip(&mut of_shards) {
                *shard = Shard::of_different(entries, &are_equal)?;
                entries.clear();
            }
            begin = end;
        }
        Some(())
    }

    /// Adds a slot that is not in it.
    pub fn insert(&mut self, hash: u32, slot: u32) {
        let number = self.shard_of(hash);
        let shard = &mut self.shards[number];
        if shard.is_full() {
            *shard = Shard::of(shard.entries(), shard.len);
        }
        shard.insert(hash, slot);
        self.len += 1;
        if self.len > self.shards.len() * SHARD_ROWS {
            self.split();
        }
    }

    /// Removes a slot.
    pub fn remove(&mut self, hash: u32, slot: u32) {
        let shard = self.shard_of(hash);
        self.len -= usize::from(self.shards[shard].remove(hash, slot));
    }

    /// Bytes of memory.
    pub fn memory_size(&self) -> usize {
        let lines: usize = self.shards.iter().map(|shard| shard.lines.len()).sum();
        let restored = self.restored.capacity() * size_of::<u32>();
        lines * size_of::<Line>() + self.shards.capacity() * size_of::<Shard>() + restored
    }

    /// With 2^n shards, the low n bits of the hash are the number of the shard. The shards above
    /// are those that were divided by one more bit.
    #[inline]
    fn shard_of(&self, hash: u32) -> usize {
        let bits = usize::BITS - (self.shards.len() - 1).leading_zeros();
        let shard = hash as usize & ((1 << bits) - 1);
        if shard < self.shards.len() { shard } else { shard & ((1 << (bits - 1)) - 1) }
    }

    /// Adds a shard, and moves the entries that belong to it.
    fn split(&mut self) {
        let new = self.shards.len();
        let bit = 1 << (usize::BITS - 1 - new.leading_zeros());
        let old = std::mem::take(&mut self.shards[new - bit]);
        let is_moved = |(hash, _): &(u32, u32)| *hash as usize & bit != 0;
        let moved = old.entries().filter(is_moved).count();
        self.shards[new - bit] = Shard::of(old.entries().filter(|entry| !is_moved(entry)), old.len - moved);
        self.shards.push(Shard::of(old.entries().filter(is_moved), moved));
    }
}

impl Shard {
    /// A shard with room for `room` entries before it is full.
    fn with_room(room: usize) -> Self {
        let lines = (room * FULL.1).div_ceil(LINE_ENTRIES * FULL.0).max(1);
        let line = Line { hashes: [0; LINE_ENTRIES], slots: [FREE; LINE_ENTRIES] };
        Shard { lines: vec![line; lines].into(), len: 0 }
    }

    /// A shard with these entries, of which there are `len`, and with room for half as many more.
    fn of(entries: impl Iterator<Item = (u32, u32)>, len: usize) -> Self {
        let mut shard = Shard::with_room(len * 3 / 2);
        entries.for_each(|(hash, slot)| shard.insert(hash, slot));
        shard
    }

    /// A shard with these entries; `None` when two of them have the same key.
    fn of_different(entries: &[(u32, u32)], are_equal: impl Fn(u32, u32) -> bool) -> Option<Self> {
        let mut shard = Shard::with_room(entries.len());
        for (hash, slot) in entries {
            if shard.find(*hash, |known| are_equal(known, *slot)).is_some() {
                return None;
            }
            shard.insert(*hash, *slot);
        }
        Some(shard)
    }

    fn is_full(&self) -> bool {
        self.len * FULL.1 >= self.lines.len() * LINE_ENTRIES * FULL.0
    }

    fn entries(&self) -> impl Iterator<Item = (u32, u32)> {
        self.lines.iter().flat_map(|line| line.hashes.into_iter().zip(line.slots).take(line.len()))
    }

    #[inline]
    fn home_of(&self, hash: u32) -> usize {
        ((spread(hash) * self.lines.len() as u64) >> u32::BITS) as usize
    }

    /// The line after another one.
    #[inline]
    fn after(&self, line: usize) -> usize {
        if line + 1 == self.lines.len() { 0 } else { line + 1 }
    }

    /// The distance of two lines.
    fn distance(&self, from: usize, to: usize) -> usize {
        if from <= to { to - from } else { to + self.lines.len() - from }
    }

    #[inline]
    fn find(&self, hash: u32, mut is_it: impl FnMut(u32) -> bool) -> Option<u32> {
        let mut at = self.home_of(hash);
        for _ in 0..self.lines.len() {
            let line = &self.lines[at];
            let found = line.places_of(hash).map(|place| line.slots[place]).find(|slot| is_it(*slot));
            if found.is_some() || !line.is_full() {
                return found;
            }
            at = self.after(at);
        }
        None
    }

    /// Adds a slot. There is room for it.
    fn insert(&mut self, hash: u32, slot: u32) {
        let mut at = self.home_of(hash);
        while self.lines[at].is_full() {
            at = self.after(at);
        }
        self.lines[at].push(hash, slot);
        self.len += 1;
    }

    /// Removes a slot. Returns whether it was there.
    fn remove(&mut self, hash: u32, slot: u32) -> bool {
        let mut at = self.home_of(hash);
        for _ in 0..self.lines.len() {
            let line = &self.lines[at];
            let (place, is_full) =
                (line.places_of(hash).find(|place| line.slots[*place] == slot), line.is_full());
            if let Some(place) = place {
                self.free(at, place);
                self.len -= 1;
                return true;
            }
            if !is_full {
                return false;
            }
            at = self.after(at);
        }
        false
    }

    /// Frees a place. When its line was full, an entry of a later line may belong into it. That
    /// entry moves, and its former place is freed.
    fn free(&mut self, mut line: usize, mut place: usize) {
        loop {
            let was_full = self.lines[line].is_full();
            self.lines[line].free(place);
            let Some((later, found)) = was_full.then(|| self.find_passed(line)).flatten() else { return };
            let Line { hashes, slots } = &self.lines[later];
            let (hash, slot) = (hashes[found], slots[found]);
            self.lines[line].push(hash, slot);
            (line, place) = (later, found);
        }
    }

    /// The first entry after a line whose home line is this line or one before it.
    fn find_passed(&self, line: usize) -> Option<(usize, usize)> {
        let mut at = line;
        for distance in 1..self.lines.len() {
            at = self.after(at);
            let later = &self.lines[at];
            let has_passed = |hash: &u32| self.distance(self.home_of(*hash), at) >= distance;
            if let Some(place) = later.hashes[..later.len()].iter().position(has_passed) {
                return Some((at, place));
            }
            if !later.is_full() {
                return None;
            }
        }
        None
    }
}

impl Line {
    /// The number of entries.
    fn len(&self) -> usize {
        self.slots.iter().position(|slot| *slot == FREE).unwrap_or(LINE_ENTRIES)
    }

    #[inline]
    fn is_full(&self) -> bool {
        self.slots[LINE_ENTRIES - 1] != FREE
    }

    /// The places of the entries with this hash.
    #[inline]
    fn places_of(&self, hash: u32) -> impl Iterator<Item = usize> {
        let bit = |(place, known): (usize, &u32)| u32::from(*known == hash) << place;
        let mut found = self.hashes.iter().enumerate().map(bit).fold(0, |all, bit| all | bit);
        let places = std::iter::from_fn(move || {
            let place = found.trailing_zeros();
            found &= found.wrapping_sub(1);
            (place < u32::BITS).then_some(place as usize)
        });
        places.filter(|place| self.slots[*place] != FREE)
    }

    /// Adds an entry. The line is not full.
    fn push(&mut self, hash: u32, slot: u32) {
        let place = self.len();
        self.hashes[place] = hash;
        self.slots[place] = slot;
    }

    /// Frees a place. The last entry moves to it.
    fn free(&mut self, place: usize) {
        let last = self.len() - 1;
        self.hashes[place] = self.hashes[last];
        self.slots[place] = self.slots[last];
        self.slots[last] = FREE;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_slot_is_found_while_the_index_grows_and_shrinks() {
        let hash = |slot: u32| xxh3_64(&slot.to_le_bytes()) as u32;
        let mut index = KeyIndex::new();
        for slot in 0..60_000 {
            index.insert(hash(slot), slot);
            if slot.is_power_of_two() {
                (0..=slot).for_each(|slot| assert_eq!(index.find(hash(slot), |s| s == slot), Some(slot)));
            }
        }
        assert!(index.shards.len() > 32, "{} shards", index.shards.len());
        let entries: Vec<_> = index.shards.iter().map(|shard| shard.len).collect();
        assert!(entries.iter().all(|len| (SHARD_ROWS / 3..SHARD_ROWS * 5 / 2).contains(len)), "{entries:?}");
        for slot in (0..60_000).filter(|slot| slot % 3 > 0) {
            index.remove(hash(slot), slot);
        }
        for slot in 0..60_000 {
            assert_eq!(index.find(hash(slot), |s| s == slot).is_some(), slot % 3 == 0, "{slot}");
        }
        assert_eq!(index.len, 20_000);
    }

    #[test]
    fn an_index_of_known_slots_is_as_one_that_grew() {
        let hash = |slot: u32| xxh3_64(&slot.to_le_bytes()) as u32;
        for len in [0, 1, 1_680, 1_681, 3_361, 60_000] {
            let mut index = KeyIndex::new();
            (0..len).for_each(|slot| index.restore(hash(slot)));
            index.finish_restore(|_, _| false).unwrap();
            let mut grown = KeyIndex::new();
            (0..len).for_each(|slot| grown.insert(hash(slot), slot));
            let sizes = |index: &KeyIndex| index.shards.iter().map(|shard| shard.len).collect::<Vec<_>>();
            assert_eq!((sizes(&index), index.len), (sizes(&grown), grown.len), "{len}");
            (len..len + 2_000).for_each(|slot| index.insert(hash(slot), slot));
            for slot in 0..len + 2_000 {
                assert_eq!(index.find(hash(slot), |known| known == slot), Some(slot));
            }
        }
    }

    #[test]
    fn two_slots_with_one_key_are_no_index() {
        let index_with = |are_equal: fn(u32, u32) -> bool| {
            let mut index = KeyIndex::new();
            (0..5_000).for_each(|slot| index.restore(slot % 4_999));
            index.finish_restore(are_equal)
        };
        assert!(index_with(|_, _| false).is_some());
        assert!(index_with(|one, other| one % 4_999 == other % 4_999).is_none());
    }

    proptest! {
        /// Many slots have equal hashes, so that lines are full, and entries are in later lines.
        #[test]
        fn the_index_has_the_slots_that_were_added_and_not_removed(steps in vec((0u32..400, any::<bool>()), 1..2_000), hashes in 1u32..200) {
            let hash = |slot: u32| (slot % hashes).wrapping_mul(0x9e37_79b9);
            let mut index = KeyIndex::new();
            let mut slots = BTreeSet::new();
            for (slot, is_added) in steps {
                if is_added && slots.insert(slot) {
                    index.insert(hash(slot), slot);
                } else if !is_added {
                    slots.remove(&slot);
                    index.remove(hash(slot), slot);
                }
            }
            prop_assert_eq!(index.len, slots.len());
            for slot in 0..400 {
                let found = index.find(hash(slot), |known| known == slot);
                prop_assert_eq!(found, slots.get(&slot).copied());
            }
        }
    }

    #[test]
    fn slots_with_equal_hashes_are_told_apart() {
        let mut index = KeyIndex::new();
        (0..100).for_each(|slot| index.insert(7, slot));
        assert_eq!(index.find(7, |slot| slot == 42), Some(42));
        index.remove(7, 42);
        assert_eq!(index.find(7, |slot| slot == 42), None);
        assert_eq!(index.find(7, |slot| slot == 43), Some(43));
    }
}
