//! The keys of messages in the order of priority, in leaves of a page each, so that they can be in
//! a file like the rest of the state.

use std::collections::BTreeMap;

use quire_journal::{Array, Memory};

use super::messages::Key;

/// Keys of a full leaf: 4,096 bytes.
const LEAF: usize = 256;
/// Keys by which the room of a leaf grows once it is [`LEAF`] / 4.
const STEP: usize = 32;
/// Not above any key.
const LOWEST: Key = (0, 0);

/// A sorted set. A new key mostly comes after the keys of the same kind (one priority, in log
/// order), and mostly the first key is removed.
#[derive(Debug)]
pub(super) struct RankedSet {
    /// Each leaf by a key that is not above its keys, and above the keys of all leaves before. The
    /// first leaf is under the lowest key. No leaf is empty.
    leaves: BTreeMap<Key, Array<Key>>,
    len: u64,
    memory: Memory,
}

impl RankedSet {
    /// No keys. They will be in `memory`.
    pub fn new(memory: &Memory) -> Self {
        RankedSet { leaves: BTreeMap::new(), len: 0, memory: memory.clone() }
    }

    /// Keys in the set.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// The smallest.
    pub fn first(&self) -> Option<Key> {
        self.leaves.first_key_value()?.1.first().copied()
    }

    /// Puts a key in, if it is not there.
    pub fn insert(&mut self, key: Key) {
        let Some((_, leaf)) = self.leaves.range_mut(..=key).next_back() else {
            return self.begin(LOWEST, key);
        };
        let Err(at) = leaf.binary_search(&key) else { return };
        if leaf.len() < LEAF {
            if leaf.len() == leaf.capacity() && leaf.len() >= LEAF / 4 {
                leaf.reserve_exact(STEP.min(LEAF - leaf.len()));
            }
            leaf.insert(at, key);
            self.len += 1;
        } else if at == LEAF {
            // Keys that arrive in order fill their leaves.
            self.begin(key, key);
        } else {
            // Cuts the leaf where the key belongs. Keys that follow it in order, while keys of
            // another priority also arrive, fill the part before the cut.
            let mut upper = Array::with_capacity(LEAF - at, &self.memory);
            upper.extend_from_slice(&leaf[at..]);
            leaf.truncate(at);
            leaf.shrink_to_fit();
            self.leaves.insert(upper[0], upper);
            self.insert(key);
        }
    }

    /// Takes a key out, if it is there.
    pub fn remove(&mut self, key: Key) {
        let Some((low, leaf)) = self.leaves.range_mut(..=key).next_back() else { return };
        let Ok(at) = leaf.binary_search(&key) else { return };
        leaf.remove(at);
        self.len -= 1;
        if leaf.is_empty() {
            let low = *low;
            self.leaves.remove(&low);
            if low == LOWEST
                && let Some((_, next)) = self.leaves.pop_first()
            {
                self.leaves.insert(LOWEST, next);
            }
        }
    }

    /// Keeps the keys for which this is true.
    pub fn retain(&mut self, mut keep: impl FnMut(Key) -> bool) {
        let leaves = std::mem::take(&mut self.leaves);
        self.len = 0;
        for leaf in leaves.into_values() {
            leaf.iter().copied().filter(|key| keep(*key)).for_each(|key| self.insert(key));
        }
    }

    /// A new leaf.
    fn begin(&mut self, low: Key, key: Key) {
        let mut leaf = Array::new(&self.memory);
        leaf.extend_from_slice(&[key]);
        self.leaves.insert(low, leaf);
        self.len += 1;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    /// Keys in runs that ascend, that descend, and at random.
    fn steps() -> impl Strategy<Value = Vec<(u8, u64, u64)>> {
        prop::collection::vec((0u8..8, 0u64..3, 0u64..2000), 1..40)
    }

    proptest! {
        #[test]
        fn a_ranked_set_is_a_sorted_set(steps in steps()) {
            let (mut set, mut model) = (RankedSet::new(&Memory::heap()), BTreeSet::new());
            for (what, rank, begin) in steps {
                for number in 0..400 {
                    let key = match what {
                        0 | 1 => (rank, begin + number),
                        2 | 3 => (rank, begin + 400 - number),
                        _ => (rank, (begin + number * 7919) % 2003),
                    };
                    match what {
                        6 => {
                            set.remove(key);
                            model.remove(&key);
                        }
                        7 => {
                            if let Some(first) = model.pop_first() {
                                set.remove(first);
                            }
                        }
                        _ => {
                            set.insert(key);
                            model.insert(key);
                        }
                    }
                    prop_assert_eq!(set.first(), model.first().copied());
                    prop_assert_eq!(set.len(), model.len() as u64);
                }
                if begin % 5 == 0 {
                    set.retain(|key| key.1 % 3 != 0);
                    model.retain(|key| key.1 % 3 != 0);
                }
            }
            let all: Vec<Key> = set.leaves.values().flat_map(|leaf| leaf.iter().copied()).collect();
            prop_assert_eq!(all, model.into_iter().collect::<Vec<_>>());
            let lows: Vec<Key> = set.leaves.keys().copied().collect();
            prop_assert!(lows.first().is_none_or(|low| *low == LOWEST));
            prop_assert!(set.leaves.values().all(|leaf| !leaf.is_empty()));
        }
    }

    #[test]
    fn keys_that_come_in_order_fill_their_leaves() {
        let keys: [fn(u64) -> Key; 3] =
            [|number| (7, number), |number| (7, 100_000 - number), |number| (number % 2, number)];
        for key in keys {
            let mut set = RankedSet::new(&Memory::heap());
            (0..10 * LEAF as u64).for_each(|number| set.insert(key(number)));
            assert!(set.leaves.len() <= 11, "{} leaves for ten", set.leaves.len());
        }
    }
}
