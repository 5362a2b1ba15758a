//! A sorted set of small values in blocks: less memory per value than a `BTreeSet`, and blocks that
//! can be paged out.

use std::ops::RangeInclusive;

use quire_journal::{Array, Memory};

/// The most values of a block.
const BLOCK_LEN: usize = 256;

/// The values of a block on average.
const BLOCK_LEN_USUAL: usize = BLOCK_LEN * 13 / 16;

/// With at least this many values, the neighbor of a full block takes none of it: the next
/// insertions would fill both.
const BLOCK_LEN_SHARED_MAX: usize = BLOCK_LEN * 7 / 8;

/// The values of a range in more blocks than this are not counted, which would take some
/// microseconds.
const COUNTED_BLOCKS_MAX: usize = 1_024;

/// A value of a set.
pub(super) trait Sorted: Copy + Ord {
    /// The upper part of the value, by which it is sorted first.
    fn upper(self) -> u64;
}

impl Sorted for u32 {
    fn upper(self) -> u64 {
        self.into()
    }
}

impl Sorted for [u32; 2] {
    fn upper(self) -> u64 {
        self[0].into()
    }
}

impl Sorted for [u32; 3] {
    fn upper(self) -> u64 {
        u64::from(self[0]) << u32::BITS | u64::from(self[1])
    }
}

/// Values in ascending order, each once. A full block shares its values with a neighbor. Two full
/// neighbors become three blocks. So blocks are about four fifths full; with halves of full blocks
/// they would be two thirds full.
#[derive(Debug)]
pub(super) struct SortedSet<T: Copy + Ord> {
    /// None is empty.
    blocks: Vec<Array<T>>,
    /// The first value of each block, so that a search reads one block only.
    firsts: Vec<T>,
    /// Values of [`gather`](Self::gather).
    gathered: Vec<T>,
    memory: Memory,
}

impl<T: Copy + Ord> SortedSet<T> {
    pub fn new(memory: &Memory) -> Self {
        SortedSet { blocks: Vec::new(), firsts: Vec::new(), gathered: Vec::new(), memory: memory.clone() }
    }

    /// Keeps a value for [`build`](Self::build). Until then it is not in the set. Values with an
    /// equal [upper](Sorted::upper) part must be added in ascending order.
    pub fn gather(&mut self, value: T) {
        self.gathered.push(value);
    }

    /// Adds a value that is not in it.
    pub fn insert(&mut self, value: T) {
        if self.blocks.is_empty() {
            self.blocks.push(Array::new(&self.memory));
            self.firsts.push(value);
        }
        let mut number = self.block_of(value);
        if self.blocks[number].len() == BLOCK_LEN {
            self.make_room(number);
            number = self.block_of(value);
        }
        let block = &mut self.blocks[number];
        block.insert(block.partition_point(|known| *known < value), value);
        self.firsts[number] = block[0];
    }

    /// Removes a value.
    pub fn remove(&mut self, value: T) {
        if self.blocks.is_empty() {
            return;
        }
        let number = self.block_of(value);
        let block = &mut self.blocks[number];
        let Ok(index) = block.binary_search(&value) else { return };
        block.remove(index);
        match block.first() {
            Some(first) => self.firsts[number] = *first,
            None => {
                self.blocks.remove(number);
                self.firsts.remove(number);
                return;
            }
        }
        self.join(number);
    }

    /// Adds a value, or removes it. Many sets stay empty.
    #[inline]
    pub fn set(&mut self, value: T, is_in: bool) {
        if is_in && !self.has(value) {
            self.insert(value);
        } else if !is_in && !self.blocks.is_empty() {
            self.remove(value);
        }
    }

    /// Whether a value is in it.
    fn has(&self, value: T) -> bool {
        !self.blocks.is_empty() && self.blocks[self.block_of(value)].binary_search(&value).is_ok()
    }

    /// Calls `found` with the values in a range, in ascending order, until it returns false.
    pub fn for_each_in(&self, range: RangeInclusive<T>, mut found: impl FnMut(T) -> bool) {
        if self.blocks.is_empty() {
            return;
        }
        for block in &self.blocks[self.block_of(*range.start())..] {
            let begin = block.partition_point(|value| value < range.start());
            for value in &block[begin..] {
                if value > range.end() || !found(*value) {
                    return;
                }
            }
        }
    }

    /// The number of values in a range: exact when they are in few blocks, else an estimate.
    pub fn count_in(&self, range: &RangeInclusive<T>) -> usize {
        if self.blocks.is_empty() || range.is_empty() {
            return 0;
        }
        let (first, last) = (self.block_of(*range.start()), self.block_of(*range.end()));
        let before = self.blocks[first].partition_point(|value| value < range.start());
        let through = self.blocks[last].partition_point(|value| value <= range.end());
        let between = match last - first {
            count if count > COUNTED_BLOCKS_MAX => count * BLOCK_LEN_USUAL,
            _ => self.blocks[first..last].iter().map(|block| block.len()).sum(),
        };
        (between + through).saturating_sub(before)
    }

    /// Bytes of memory.
    pub fn memory_size(&self) -> usize {
        let blocks: usize = self.blocks.iter().map(|block| block.capacity() * size_of::<T>()).sum();
        let lists = (self.firsts.capacity() + self.gathered.capacity()) * size_of::<T>();
        blocks + lists + self.blocks.capacity() * size_of::<Array<T>>()
    }

    /// The block that a value belongs to.
    fn block_of(&self, value: T) -> usize {
        self.firsts.partition_point(|first| *first <= value).saturating_sub(1)
    }

    /// Makes room in a full block.
    fn make_room(&mut self, number: usize) {
        // The last block has its neighbor before it.
        let first = if number + 1 < self.blocks.len() { number } else { number.saturating_sub(1) };
        let pair = &self.blocks[first..self.blocks.len().min(first + 2)];
        let count = pair.len() + usize::from(pair.iter().all(|block| block.len() >= BLOCK_LEN_SHARED_MAX));
        let values: Vec<T> = pair.iter().flat_map(|block| block.iter().copied()).collect();
        if count > pair.len() {
            self.blocks.insert(first + 1, Array::with_capacity(BLOCK_LEN, &self.memory));
            self.firsts.insert(first + 1, values[0]);
        }
        let mut rest = &values[..];
        for index in 0..count {
            let (own, others) = rest.split_at(rest.len() / (count - index));
            let block = &mut self.blocks[first + index];
            block.truncate(0);
            block.extend_from_slice(own);
            self.firsts[first + index] = own[0];
            rest = others;
        }
    }

    /// Appends the next block to this one, when both have few values.
    fn join(&mut self, number: usize) {
        let [block, next, ..] = &mut self.blocks[number..] else { return };
        if block.len() + next.len() <= BLOCK_LEN / 2 {
            block.extend_from_slice(next);
            self.blocks.remove(number + 1);
            self.firsts.remove(number + 1);
        }
    }
}

impl<T: Sorted> SortedSet<T> {
    /// Adds the kept values, each of which occurs once, to an empty set. The blocks are as full as
    /// in a set that grew: in full blocks, each of the next insertions would divide one. In
    /// addition to the set, this takes twice the memory of the kept values.
    pub fn build(&mut self) {
        debug_assert!(self.blocks.is_empty(), "the set is empty");
        let mut values = std::mem::take(&mut self.gathered);
        // The sort keeps the order of values with an equal upper part.
        radsort::sort_by_key(&mut values, |value| value.upper());
        debug_assert!(values.is_sorted(), "values with an equal upper part were gathered in order");
        let count = values.len().div_ceil(BLOCK_LEN_USUAL);
        self.blocks.reserve_exact(count);
        self.firsts.reserve_exact(count);
        for values in values.chunks(BLOCK_LEN_USUAL) {
            // A set with few values is small. Other blocks have room for all that they will have.
            let capacity = if count == 1 { values.len().next_power_of_two() } else { BLOCK_LEN };
            let mut block = Array::with_capacity(capacity, &self.memory);
            block.extend_from_slice(values);
            self.firsts.push(values[0]);
            self.blocks.push(block);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::collection::{btree_set, vec};
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_has_the_values_of_a_simple_set(
            first in btree_set(0u32..2_000, 0..1_000).prop_map(Vec::from_iter).prop_shuffle(),
            steps in vec((any::<bool>(), 0u32..2_000), 1..3_000),
            (low, high) in (0u32..2_000, 0u32..2_000),
        ) {
            let mut set = SortedSet::new(&Memory::heap());
            first.iter().for_each(|value| set.gather(*value));
            set.build();
            let mut model = BTreeSet::from_iter(first);
            for (is_put, value) in steps {
                // Ranges of values are filled and emptied, so that blocks are divided and joined.
                if is_put == (value / 500 % 2 == 0) || value % 5 == 0 {
                    if model.insert(value) {
                        set.insert(value);
                    }
                } else if model.remove(&value) {
                    set.remove(value);
                }
            }
            let mut found = Vec::new();
            set.for_each_in(low..=high, |value| {
                found.push(value);
                true
            });
            let expected: Vec<_> = model.iter().copied().filter(|value| (low..=high).contains(value)).collect();
            prop_assert_eq!(&found, &expected);
            prop_assert_eq!(set.count_in(&(low..=high)), expected.len());
            for value in model {
                set.remove(value);
            }
            prop_assert!(set.blocks.is_empty() && set.firsts.is_empty());
        }
    }

    #[test]
    fn blocks_are_divided_and_joined() {
        let mut set = SortedSet::new(&Memory::heap());
        (0..10_000u32).for_each(|value| set.insert(value.wrapping_mul(2_654_435_761)));
        // 40 full blocks have as many values.
        assert!((45..54).contains(&set.blocks.len()), "{} blocks", set.blocks.len());
        let mut ascending = SortedSet::new(&Memory::heap());
        (0..10_000u32).for_each(|value| ascending.insert(value));
        assert!((40..63).contains(&ascending.blocks.len()), "{} blocks", ascending.blocks.len());
        (0..9_900u32).for_each(|value| set.remove(value.wrapping_mul(2_654_435_761)));
        assert!(set.blocks.len() < 10, "{} blocks", set.blocks.len());
    }
}
