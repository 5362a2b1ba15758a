//! The index of keys: from the hash of a key to the slots of rows with this hash.
//!
//! It is a linear hash table. It has many small tables (shards), and one more shard whenever there are enough rows for it. The entries of one
//! existing shard are then divided between it and the new one. So no insertion pays for more than a few thousand entries, and a table of a
//! hundred million rows does not stop the server while it grows. One table for all rows would.
//!
//! A shard consists of lines of memory. A hash has its entry in its home line, or in one of the lines after it when that line was full. So
//! the hash alone tells which line is needed, and a caller that knows several hashes has the processor read their lines together.

use xxhash_rust::xxh3::xxh3_64;

use crate::prefetch::{LINE_SIZE, prefetch_line};

/// Rows per shard when a shard is added. Shards then have this many to twice as many.
const SHARD_ROWS: usize = 1_680;

/// Shards whose slots are sorted together when an index is made of known slots: their slots fit into the cache of a core.
const GROUP_SHARDS: usize = 64;

/// Entries of a line.
const LINE_SLOTS: usize = 12;
/// A shard is full when five of six places are used. With more, many entries would be in lines after their home line.
const FULL: (usize, usize) = (5, 6);
/// The tag of a place without an entry.
const FREE: u8 = 0;

/// A linear hash table of slots.
#[derive(Debug)]
pub(crate) struct KeyIndex {
    shards: Vec<Shard>,
    len: usize,
}

/// A hash table of a few thousand slots.
#[derive(Debug, Default)]
struct Shard {
    lines: Box<[Line]>,
    len: usize,
}

/// Some entries. The processor gets a line from memory at once.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
struct Line {
    /// A byte of the hash of each entry, or [`FREE`].
    tags: [u8; LINE_SLOTS],
    /// How many entries are in later lines, because this line and those before it, from their home line on, were full.
    passed: u32,
    slots: [u32; LINE_SLOTS],
}

const _: () = assert!(size_of::<Line>() == LINE_SIZE);

/// The hash of a key that the index takes.
pub(crate) fn hash_of(key: &[u8]) -> u32 {
    xxh3_64(key) as u32
}

/// The hash within a shard. All bits of it depend on all bits of the hash, because the hashes of one shard have equal low bits.
fn spread(hash: u32) -> u64 {
    u64::from(hash).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

impl KeyIndex {
    pub fn new() -> Self {
        KeyIndex { shards: vec![Shard::default()], len: 0 }
    }

    /// The slot among those with this hash that `is_it` accepts.
    #[inline]
    pub fn find(&self, hash: u32, is_it: impl FnMut(u32) -> bool) -> Option<u32> {
        self.shards[self.shard_of(hash)].find(hash, is_it)
    }

    /// Has the processor read the line in which a hash probably has its entry.
    #[inline]
    pub fn prefetch(&self, hash: u32) {
        let shard = &self.shards[self.shard_of(hash)];
        if let Some(line) = shard.lines.get(shard.home_of(hash)) {
            prefetch_line(line);
        }
    }

    /// A slot that probably has this hash, from the home line alone.
    #[inline]
    pub fn probable_slot(&self, hash: u32) -> Option<u32> {
        let shard = &self.shards[self.shard_of(hash)];
        let line = shard.lines.get(shard.home_of(hash))?;
        line.places_of(tag_of(hash)).next().map(|place| line.slots[place])
    }

    /// The index of these slots, which have these hashes. Returns `None` when `are_equal` says of two slots that they have the same key.
    ///
    /// The slots are sorted by shard first, so that all work on a shard is in the cache of the processor. They are sorted in two steps, because
    /// writing to thousands of places in turn waits for memory each time. This takes 8 bytes for each slot until it returns.
    pub fn of(
        slots: impl Iterator<Item = (u32, u32)> + Clone,
        are_equal: impl Fn(u32, u32) -> bool,
    ) -> Option<Self> {
        let len = slots.clone().count();
        let shards = len.div_ceil(SHARD_ROWS).max(1);
        let mut index = KeyIndex { shards: (0..shards).map(|_| Shard::default()).collect(), len };
        let group_of = |hash| index.shard_of(hash) / GROUP_SHARDS;
        let groups = shards.div_ceil(GROUP_SHARDS);
        // Where the slots of each group begin, and later where they end.
        let mut ends = vec![0; groups + 1];
        slots.clone().for_each(|(hash, _)| ends[group_of(hash) + 1] += 1);
        (0..groups).for_each(|group| ends[group + 1] += ends[group]);
        let mut sorted = vec![(0, 0); len];
        for (hash, slot) in slots {
            let at = &mut ends[group_of(hash)];
            sorted[*at] = (hash, slot);
            *at += 1;
        }
        let mut begin = 0;
        let mut of_shards: Vec<_> = (0..GROUP_SHARDS).map(|_| Vec::with_capacity(2 * SHARD_ROWS)).collect();
        for (group, end) in ends.into_iter().take(groups).enumerate() {
            for (hash, slot) in &sorted[begin..end] {
                of_shards[index.shard_of(*hash) % GROUP_SHARDS].push((*hash, *slot));
            }
            for (shard, slots) in index.shards.iter_mut().skip(group * GROUP_SHARDS).zip(&mut of_shards) {
                *shard = Shard::of(slots, &are_equal)?;
                slots.clear();
            }
            begin = end;
        }
        Some(index)
    }

    /// Adds a slot that is not in it. `hash_of_slot` returns the hash of any slot that is.
    pub fn insert(&mut self, hash: u32, slot: u32, hash_of_slot: impl Fn(u32) -> u32) {
        let number = self.shard_of(hash);
        let shard = &mut self.shards[number];
        if shard.is_full() {
            *shard =
                Shard::of_entries(shard.slots().map(|slot| (hash_of_slot(slot), slot)), shard.len * 3 / 2);
        }
        shard.insert(hash, slot);
        self.len += 1;
        if self.len > self.shards.len() * SHARD_ROWS {
            self.split(hash_of_slot);
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
        lines * size_of::<Line>() + self.shards.capacity() * size_of::<Shard>()
    }

    /// With 2^n shards, the low n bits of the hash are the number of the shard. The shards above are those that were divided by one more bit.
    #[inline]
    fn shard_of(&self, hash: u32) -> usize {
        let bits = usize::BITS - (self.shards.len() - 1).leading_zeros();
        let shard = hash as usize & ((1 << bits) - 1);
        if shard < self.shards.len() { shard } else { shard & ((1 << (bits - 1)) - 1) }
    }

    /// Adds a shard, and moves the entries that belong to it.
    fn split(&mut self, hash_of_slot: impl Fn(u32) -> u32) {
        let new = self.shards.len();
        let bit = 1 << (usize::BITS - 1 - new.leading_zeros());
        let old = std::mem::take(&mut self.shards[new - bit]);
        let entries = old.slots().map(|slot| (hash_of_slot(slot), slot));
        let (high, low): (Vec<_>, Vec<_>) = entries.partition(|(hash, _)| *hash as usize & bit != 0);
        let half = |entries: Vec<(u32, u32)>| {
            let room = entries.len() * 3 / 2;
            Shard::of_entries(entries.into_iter(), room)
        };
        self.shards[new - bit] = half(low);
        self.shards.push(half(high));
    }
}

impl Shard {
    /// A shard with room for `room` entries.
    fn with_room(room: usize) -> Self {
        let lines = (room * FULL.1).div_ceil(LINE_SLOTS * FULL.0);
        let line = Line { tags: [FREE; LINE_SLOTS], passed: 0, slots: [0; LINE_SLOTS] };
        Shard { lines: vec![line; lines].into(), len: 0 }
    }

    /// A shard with these entries, and with room for `room`.
    fn of_entries(entries: impl Iterator<Item = (u32, u32)>, room: usize) -> Self {
        let mut shard = Shard::with_room(room.max(LINE_SLOTS * FULL.0 / FULL.1));
        entries.for_each(|(hash, slot)| shard.insert(hash, slot));
        shard
    }

    /// A shard with these slots, which have these hashes; `None` when two of them have the same key.
    fn of(slots: &[(u32, u32)], are_equal: impl Fn(u32, u32) -> bool) -> Option<Self> {
        let mut shard = Shard::with_room(slots.len() + 1);
        for (hash, slot) in slots {
            if shard.find(*hash, |known| are_equal(known, *slot)).is_some() {
                return None;
            }
            shard.insert(*hash, *slot);
        }
        Some(shard)
    }

    fn is_full(&self) -> bool {
        self.len * FULL.1 >= self.lines.len() * LINE_SLOTS * FULL.0
    }

    fn slots(&self) -> impl Iterator<Item = u32> {
        let entries = self.lines.iter().flat_map(|line| line.tags.iter().zip(&line.slots));
        entries.filter(|(tag, _)| **tag != FREE).map(|(_, slot)| *slot)
    }

    #[inline]
    fn home_of(&self, hash: u32) -> usize {
        ((spread(hash) >> u32::BITS) as usize * self.lines.len()) >> u32::BITS
    }

    /// The line after another one.
    #[inline]
    fn after(&self, line: usize) -> usize {
        if line + 1 == self.lines.len() { 0 } else { line + 1 }
    }

    #[inline]
    fn find(&self, hash: u32, mut is_it: impl FnMut(u32) -> bool) -> Option<u32> {
        let (mut at, tag) = (self.home_of(hash), tag_of(hash));
        for _ in 0..self.lines.len() {
            let line = &self.lines[at];
            let found = line.places_of(tag).map(|place| line.slots[place]).find(|slot| is_it(*slot));
            if found.is_some() || line.passed == 0 {
                return found;
            }
            at = self.after(at);
        }
        None
    }

    /// Adds a slot. There is room for it.
    fn insert(&mut self, hash: u32, slot: u32) {
        let mut at = self.home_of(hash);
        let place = loop {
            match self.lines[at].places_of(FREE).next() {
                Some(place) => break place,
                None => self.lines[at].passed += 1,
            }
            at = self.after(at);
        };
        self.lines[at].tags[place] = tag_of(hash);
        self.lines[at].slots[place] = slot;
        self.len += 1;
    }

    /// Removes a slot. Returns whether it was there.
    fn remove(&mut self, hash: u32, slot: u32) -> bool {
        let (home, tag) = (self.home_of(hash), tag_of(hash));
        let mut at = home;
        for _ in 0..self.lines.len() {
            let line = &mut self.lines[at];
            if let Some(place) = line.places_of(tag).find(|place| line.slots[*place] == slot) {
                line.tags[place] = FREE;
                self.len -= 1;
                let mut passed = home;
                while passed != at {
                    self.lines[passed].passed -= 1;
                    passed = self.after(passed);
                }
                return true;
            }
            if line.passed == 0 {
                return false;
            }
            at = self.after(at);
        }
        false
    }
}

impl Line {
    /// The places with this tag.
    #[inline]
    fn places_of(&self, tag: u8) -> impl Iterator<Item = usize> + use<> {
        let bit = |(place, known): (usize, &u8)| u32::from(*known == tag) << place;
        let mut found = self.tags.iter().enumerate().map(bit).fold(0, |all, bit| all | bit);
        std::iter::from_fn(move || {
            let place = found.trailing_zeros();
            found &= found.wrapping_sub(1);
            (place < u32::BITS).then_some(place as usize)
        })
    }
}

/// A byte of the hash. Its bits decide about the home line only in a shard of more than 2^24 lines.
#[inline]
fn tag_of(hash: u32) -> u8 {
    ((spread(hash) >> u32::BITS) as u8).max(FREE + 1)
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
            index.insert(hash(slot), slot, hash);
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
            let slots = (0..len).map(|slot| (hash(slot), slot));
            let mut index = KeyIndex::of(slots, |_, _| false).unwrap();
            let mut grown = KeyIndex::new();
            (0..len).for_each(|slot| grown.insert(hash(slot), slot, hash));
            let sizes = |index: &KeyIndex| index.shards.iter().map(|shard| shard.len).collect::<Vec<_>>();
            assert_eq!((sizes(&index), index.len), (sizes(&grown), grown.len), "{len}");
            (len..len + 2_000).for_each(|slot| index.insert(hash(slot), slot, hash));
            for slot in 0..len + 2_000 {
                assert_eq!(index.find(hash(slot), |known| known == slot), Some(slot));
            }
        }
    }

    #[test]
    fn two_slots_with_one_key_are_no_index() {
        let slots = (0..5_000).map(|slot| (slot % 4_999, slot));
        assert!(KeyIndex::of(slots.clone(), |_, _| false).is_some());
        assert!(KeyIndex::of(slots, |one, other| one % 4_999 == other % 4_999).is_none());
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
                    index.insert(hash(slot), slot, hash);
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
        (0..100).for_each(|slot| index.insert(7, slot, |_| 7));
        assert_eq!(index.find(7, |slot| slot == 42), Some(42));
        index.remove(7, 42);
        assert_eq!(index.find(7, |slot| slot == 42), None);
        assert_eq!(index.find(7, |slot| slot == 43), Some(43));
    }
}
