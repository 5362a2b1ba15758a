//! The messages that match one filter: a compressed, sorted set of ordinals.

use std::collections::BTreeMap;

/// Up to this many members a block is a sorted list of two bytes each; above, a bitmap of 8 KiB.
const LIST_SIZE_MAX: usize = 4096;
const WORDS: usize = 1024;

/// A set of ordinals in blocks of 65,536: about two bytes for a member where few match, one bit
/// where many do.
#[derive(Debug, Default)]
pub(super) struct OrdinalSet {
    blocks: BTreeMap<u64, Block>,
    len: u64,
}

#[derive(Debug)]
enum Block {
    /// Ascending; the members before `start` are removed ones, so that taking the first costs
    /// nothing.
    List { values: Vec<u16>, start: usize },
    /// `first` is a word below which all words are empty.
    Map { words: Box<[u64; WORDS]>, first: usize, len: usize },
}

impl OrdinalSet {
    /// How many members there are.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether `ordinal` is a member.
    pub fn contains(&self, ordinal: u64) -> bool {
        self.blocks.get(&(ordinal >> 16)).is_some_and(|block| block.contains(ordinal as u16))
    }

    /// Adds `ordinal`; adding a member again changes nothing.
    pub fn insert(&mut self, ordinal: u64) {
        let block = self.blocks.entry(ordinal >> 16).or_insert(Block::List { values: Vec::new(), start: 0 });
        self.len += u64::from(block.insert(ordinal as u16));
    }

    /// Removes `ordinal`. Has no effect when it is not a member.
    pub fn remove(&mut self, ordinal: u64) {
        let Some(block) = self.blocks.get_mut(&(ordinal >> 16)) else { return };
        self.len -= u64::from(block.remove(ordinal as u16));
        if block.len() == 0 {
            self.blocks.remove(&(ordinal >> 16));
        }
    }

    /// The smallest member.
    pub fn first(&self) -> Option<u64> {
        let (high, block) = self.blocks.first_key_value()?;
        Some(high << 16 | u64::from(block.first()?))
    }

    /// Keeps the members of which `keep` is true.
    pub fn retain(&mut self, mut keep: impl FnMut(u64) -> bool) {
        let mut kept = OrdinalSet::default();
        for (high, block) in &self.blocks {
            block.for_each(|low| {
                let ordinal = high << 16 | u64::from(low);
                if keep(ordinal) {
                    kept.insert(ordinal);
                }
            });
        }
        *self = kept;
    }
}

impl Block {
    fn len(&self) -> usize {
        match self {
            Block::List { values, start } => values.len() - start,
            Block::Map { len, .. } => *len,
        }
    }

    fn first(&self) -> Option<u16> {
        match self {
            Block::List { values, start } => values.get(*start).copied(),
            Block::Map { words, first, .. } => {
                let index = (*first..WORDS).find(|index| words[*index] != 0)?;
                Some((index << 6) as u16 | words[index].trailing_zeros() as u16)
            }
        }
    }

    fn contains(&self, value: u16) -> bool {
        match self {
            Block::List { values, start } => values[*start..].binary_search(&value).is_ok(),
            Block::Map { words, .. } => words[usize::from(value >> 6)] >> (value & 63) & 1 == 1,
        }
    }

    fn insert(&mut self, value: u16) -> bool {
        match self {
            Block::List { values, start } => {
                if values.last().is_none_or(|last| *last < value) {
                    values.push(value);
                } else {
                    let Err(at) = values[*start..].binary_search(&value) else { return false };
                    if at == 0 && *start > 0 {
                        *start -= 1;
                        values[*start] = value;
                    } else {
                        values.insert(*start + at, value);
                    }
                }
                if values.len() - *start > LIST_SIZE_MAX {
                    self.become_map();
                }
                true
            }
            Block::Map { words, first, len } => {
                let (index, bit) = (usize::from(value >> 6), 1 << (value & 63));
                let new = words[index] & bit == 0;
                words[index] |= bit;
                *first = index.min(*first);
                *len += usize::from(new);
                new
            }
        }
    }

    fn remove(&mut self, value: u16) -> bool {
        match self {
            Block::List { values, start } => {
                let Ok(at) = values[*start..].binary_search(&value) else { return false };
                if at == 0 {
                    *start += 1;
                } else {
                    values.remove(*start + at);
                }
                if *start > 64 && *start * 2 > values.len() {
                    values.drain(..*start);
                    *start = 0;
                }
                true
            }
            Block::Map { words, first, len } => {
                let (index, bit) = (usize::from(value >> 6), 1 << (value & 63));
                let was = words[index] & bit != 0;
                words[index] &= !bit;
                *len -= usize::from(was);
                while *first < WORDS && words[*first] == 0 {
                    *first += 1;
                }
                was
            }
        }
    }

    fn become_map(&mut self) {
        let mut words = Box::new([0u64; WORDS]);
        let mut len = 0;
        self.for_each(|value| {
            words[usize::from(value >> 6)] |= 1 << (value & 63);
            len += 1;
        });
        *self = Block::Map { words, first: 0, len };
    }

    fn for_each(&self, mut visit: impl FnMut(u16)) {
        match self {
            Block::List { values, start } => values[*start..].iter().copied().for_each(visit),
            Block::Map { words, .. } => {
                for (index, word) in words.iter().enumerate() {
                    let mut word = *word;
                    while word != 0 {
                        visit((index << 6) as u16 | word.trailing_zeros() as u16);
                        word &= word - 1;
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_dense_block_turns_into_a_bitmap_and_keeps_its_members() {
        let mut set = OrdinalSet::default();
        (0..20_000).for_each(|ordinal| set.insert(ordinal * 3));
        for ordinal in 0..20_000 {
            assert_eq!(set.first(), Some(ordinal * 3));
            set.remove(ordinal * 3);
        }
        assert_eq!((set.first(), set.len()), (None, 0));
    }

    proptest! {
        #[test]
        fn it_is_a_sorted_set(steps in prop::collection::vec((0u8..4, 0u64..200_000), 1..400)) {
            let (mut set, mut model) = (OrdinalSet::default(), BTreeSet::new());
            for (step, ordinal) in steps {
                let ordinal = if step == 3 { ordinal } else { ordinal % 100 };
                match step {
                    0 => { set.remove(ordinal); model.remove(&ordinal); }
                    1 => if let Some(first) = model.pop_first() { set.remove(first); },
                    _ => { set.insert(ordinal); model.insert(ordinal); }
                }
                prop_assert_eq!(set.first(), model.first().copied());
                prop_assert_eq!(set.len(), model.len() as u64);
            }
            set.retain(|ordinal| ordinal % 2 == 0);
            model.retain(|ordinal| ordinal % 2 == 0);
            prop_assert_eq!(set.len(), model.len() as u64);
            prop_assert_eq!(set.first(), model.first().copied());
        }
    }
}
