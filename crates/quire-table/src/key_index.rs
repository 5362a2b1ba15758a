//! The index of keys: from the hash of a key to the slots of rows with this hash.
//!
//! It is a linear hash table. It has many small tables (shards), and one more shard whenever there are enough rows for it. The entries of one
//! existing shard are then divided between it and the new one. So no insertion pays for more than a few thousand entries, and a table of a
//! hundred million rows does not stop the server while it grows. One table for all rows would.

use hashbrown::HashTable;
use xxhash_rust::xxh3::xxh3_64;

/// Rows per shard when a shard is added. Shards then have this many to twice as many, which a table of 4,096 places holds.
const SHARD_ROWS: usize = 1_680;

/// Shards whose slots are sorted together when an index is made of known slots: their slots fit into the cache of a core.
const GROUP_SHARDS: usize = 64;

/// A linear hash table of slots.
#[derive(Debug)]
pub(crate) struct KeyIndex {
    shards: Vec<HashTable<u32>>,
    len: usize,
}

/// The hash of a key that the index takes.
pub(crate) fn hash_of(key: &[u8]) -> u32 {
    xxh3_64(key) as u32
}

/// The hash within a shard. All bits of it depend on all bits of the hash, because the hashes of one shard have equal low bits.
fn spread(hash: u32) -> u64 {
    u64::from(hash).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(32)
}

impl KeyIndex {
    pub fn new() -> Self {
        KeyIndex { shards: vec![HashTable::new()], len: 0 }
    }

    /// The slot among those with this hash that `is_it` accepts.
    #[inline]
    pub fn find(&self, hash: u32, mut is_it: impl FnMut(u32) -> bool) -> Option<u32> {
        self.shards[self.shard_of(hash)].find(spread(hash), |slot| is_it(*slot)).copied()
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
        let mut index = KeyIndex { shards: (0..shards).map(|_| HashTable::new()).collect(), len };
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
                *shard = shard_of_slots(slots, &are_equal)?;
                slots.clear();
            }
            begin = end;
        }
        Some(index)
    }

    /// Adds a slot that is not in it. `hash_of_slot` returns the hash of any slot that is.
    pub fn insert(&mut self, hash: u32, slot: u32, hash_of_slot: impl Fn(u32) -> u32) {
        let shard = self.shard_of(hash);
        self.shards[shard].insert_unique(spread(hash), slot, |slot| spread(hash_of_slot(*slot)));
        self.len += 1;
        if self.len > self.shards.len() * SHARD_ROWS {
            self.split(hash_of_slot);
        }
    }

    /// Removes a slot.
    pub fn remove(&mut self, hash: u32, slot: u32) {
        let shard = self.shard_of(hash);
        if let Ok(entry) = self.shards[shard].find_entry(spread(hash), |known| *known == slot) {
            entry.remove();
            self.len -= 1;
        }
    }

    /// Bytes of memory.
    pub fn memory_size(&self) -> usize {
        let tables: usize = self.shards.iter().map(HashTable::allocation_size).sum();
        tables + self.shards.capacity() * size_of::<HashTable<u32>>()
    }

    /// With 2^n shards, the low n bits of the hash are the number of the shard. The shards above are those that were divided by one more bit.
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
        self.shards.push(HashTable::new());
        let hash = |slot: &u32| spread(hash_of_slot(*slot));
        let moved = old.iter().filter(|slot| hash_of_slot(**slot) as usize & bit != 0).count();
        let mut halves = [HashTable::with_capacity(old.len() - moved), HashTable::with_capacity(moved)];
        for slot in old {
            let half = usize::from(hash_of_slot(slot) as usize & bit != 0);
            halves[half].insert_unique(hash(&slot), slot, hash);
        }
        let [low, high] = halves;
        self.shards[new - bit] = low;
        self.shards[new] = high;
    }
}

/// A shard with these slots, which have these hashes; `None` when two of them have the same key.
fn shard_of_slots(slots: &[(u32, u32)], are_equal: impl Fn(u32, u32) -> bool) -> Option<HashTable<u32>> {
    let mut shard = HashTable::with_capacity(slots.len());
    for (hash, slot) in slots {
        if shard.find(spread(*hash), |known| are_equal(*known, *slot)).is_some() {
            return None;
        }
        // There is room for all slots of the shard, so no hash is asked for.
        shard.insert_unique(spread(*hash), *slot, |_| spread(*hash));
    }
    Some(shard)
}

#[cfg(test)]
mod tests {
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
        let entries: Vec<_> = index.shards.iter().map(HashTable::len).collect();
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
            let sizes = |index: &KeyIndex| index.shards.iter().map(HashTable::len).collect::<Vec<_>>();
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
