//! A set of small numbers as a tree of bits: 64 children to a word, so ten thousand members are three words deep and
//! insertion, removal and "the next member from here" cost the same for ten members as for ten thousand.

/// Numbers from 0 upwards; memory is one bit, and a little, for each number up to the largest ever inserted.
#[derive(Debug, Default)]
pub(super) struct Bits {
    /// `levels[0]` holds the members; bit `n` of a higher level says that word `n` below it is not empty.
    levels: Vec<Vec<u64>>,
    len: usize,
}

impl Bits {
    /// How many members there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether `number` is a member.
    pub fn contains(&self, number: usize) -> bool {
        let word = self.levels.first().and_then(|words| words.get(number >> 6));
        word.is_some_and(|word| word >> (number & 63) & 1 == 1)
    }

    /// Adds `number`; adding a member again changes nothing.
    pub fn insert(&mut self, number: usize) {
        if self.contains(number) {
            return;
        }
        self.grow(number);
        self.len += 1;
        let mut at = number;
        for level in &mut self.levels {
            let word = &mut level[at >> 6];
            let was = *word;
            *word |= 1 << (at & 63);
            if was != 0 {
                break;
            }
            at >>= 6;
        }
    }

    /// Removes `number`; removing what is not a member changes nothing.
    pub fn remove(&mut self, number: usize) {
        if !self.contains(number) {
            return;
        }
        self.len -= 1;
        let mut at = number;
        for level in &mut self.levels {
            let word = &mut level[at >> 6];
            *word &= !(1 << (at & 63));
            if *word != 0 {
                break;
            }
            at >>= 6;
        }
    }

    /// The smallest member that is not below `from`.
    pub fn next(&self, from: usize) -> Option<usize> {
        let mut at = from;
        for (height, level) in self.levels.iter().enumerate() {
            let index = at >> 6;
            let word = level.get(index)? & (!0 << (at & 63));
            if word != 0 {
                at = index << 6 | word.trailing_zeros() as usize;
                for below in self.levels[..height].iter().rev() {
                    at = at << 6 | below[at].trailing_zeros() as usize;
                }
                return Some(at);
            }
            at = index + 1;
        }
        None
    }

    /// Makes room for `number`, with a summary above every level of more than one word.
    fn grow(&mut self, number: usize) {
        let mut words = (number >> 6) + 1;
        for height in 0.. {
            if height == self.levels.len() {
                let mut summary = vec![0; words];
                if let Some(below) = self.levels.last() {
                    for (index, _) in below.iter().enumerate().filter(|(_, word)| **word != 0) {
                        summary[index >> 6] |= 1 << (index & 63);
                    }
                }
                self.levels.push(summary);
            }
            let level = &mut self.levels[height];
            if level.len() < words {
                level.resize(words, 0);
            }
            if level.len() == 1 {
                return;
            }
            words = level.len().div_ceil(64);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn bits_are_a_sorted_set(steps in prop::collection::vec((any::<bool>(), 0usize..300_000), 1..300)) {
            let (mut bits, mut model) = (Bits::default(), BTreeSet::new());
            for (insert, number) in steps {
                let number = if number % 3 == 0 { number } else { number % 200 };
                if insert { bits.insert(number); model.insert(number); } else { bits.remove(number); model.remove(&number); }
                prop_assert_eq!(bits.len(), model.len());
                prop_assert_eq!(bits.next(number), model.range(number..).next().copied());
                prop_assert_eq!(bits.next(0), model.first().copied());
            }
        }
    }
}
