//! A set of small numbers as a tree of bits, with 64 children to a word. So ten thousand members
//! are three words deep. Insertion, removal and "the next member from here" cost the same for ten
//! members as for ten thousand.

/// Numbers from 0 upwards. Memory is one to two bits, and a little, for each number up to the
/// largest ever inserted.
#[derive(Debug, Default)]
pub(super) struct Bits {
    /// The members.
    words: Vec<u64>,
    /// Bit `n` of the first summary is set when word `n` of the members is not empty, and so on
    /// upwards.
    summaries: Vec<Vec<u64>>,
    len: usize,
}

impl Bits {
    /// How many members there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Adds `number`; adding a member again changes nothing.
    #[inline]
    pub fn insert(&mut self, number: usize) {
        if number >> 6 >= self.words.len() {
            self.grow(number);
        }
        let was = self.words[number >> 6];
        let now = was | 1 << (number & 63);
        self.words[number >> 6] = now;
        self.len += usize::from(was != now);
        if was == 0 {
            self.mark(number >> 6);
        }
    }

    /// Removes `number`. Has no effect when it is not a member.
    #[inline]
    pub fn remove(&mut self, number: usize) {
        let Some(word) = self.words.get_mut(number >> 6) else { return };
        let was = *word;
        *word = was & !(1 << (number & 63));
        self.len -= usize::from(was != *word);
        if was != 0 && *word == 0 {
            self.unmark(number >> 6);
        }
    }

    /// The smallest member that is not below `from`.
    #[inline]
    pub fn next(&self, from: usize) -> Option<usize> {
        let word = self.words.get(from >> 6)? & (!0 << (from & 63));
        match word {
            0 => self.next_word((from >> 6) + 1).map(|index| first_of(&self.words, index)),
            word => Some(from >> 6 << 6 | word.trailing_zeros() as usize),
        }
    }

    /// The first word, not before this one, that has members.
    fn next_word(&self, from: usize) -> Option<usize> {
        let mut at = from;
        for (height, summary) in self.summaries.iter().enumerate() {
            let index = at >> 6;
            let word = summary.get(index)? & (!0 << (at & 63));
            if word != 0 {
                let found = index << 6 | word.trailing_zeros() as usize;
                let below = self.summaries[..height].iter().rev();
                return Some(below.fold(found, |at, summary| first_of(summary, at)));
            }
            at = index + 1;
        }
        None
    }

    /// Notes that a word has its first member.
    fn mark(&mut self, word: usize) {
        let mut at = word;
        for summary in &mut self.summaries {
            let was = summary[at >> 6];
            summary[at >> 6] = was | 1 << (at & 63);
            if was != 0 {
                break;
            }
            at >>= 6;
        }
    }

    /// Notes that a word has lost its last member.
    fn unmark(&mut self, word: usize) {
        let mut at = word;
        for summary in &mut self.summaries {
            summary[at >> 6] &= !(1 << (at & 63));
            if summary[at >> 6] != 0 {
                break;
            }
            at >>= 6;
        }
    }

    /// Makes room for `number`, with a summary above every level of more than one word.
    #[cold]
    fn grow(&mut self, number: usize) {
        self.words.resize(((number >> 6) + 1).next_power_of_two(), 0);
        self.summaries.clear();
        while let below = self.summaries.last().unwrap_or(&self.words)
            && below.len() > 1
        {
            let summary = below.chunks(64).map(|words| {
                words.iter().enumerate().fold(0, |bits, (index, word)| bits | u64::from(*word != 0) << index)
            });
            let summary = summary.collect();
            self.summaries.push(summary);
        }
    }
}

/// The number of the first bit of `words[index]`, which must not be empty.
fn first_of(words: &[u64], index: usize) -> usize {
    index << 6 | words[index].trailing_zeros() as usize
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
