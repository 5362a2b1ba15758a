//! The patterns that can match a topic, by the prefixes of their topics. A topic is not matched
//! against patterns with other prefixes.

use std::collections::BTreeMap;

use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

/// Patterns by number. A pattern without a prefix is a candidate for every topic.
#[derive(Debug, Default)]
pub struct PatternIndex {
    by_prefix: HashMap<String, Vec<u32>, FxBuildHasher>,
    /// The number of prefixes of each size, in bytes.
    sizes: BTreeMap<usize, usize>,
}

impl PatternIndex {
    pub fn insert(&mut self, prefix: &str, pattern: u32) {
        let patterns = self.by_prefix.entry_ref(prefix).or_default();
        if patterns.is_empty() {
            *self.sizes.entry(prefix.len()).or_default() += 1;
        }
        patterns.push(pattern);
    }

    /// Undoes [`PatternIndex::insert`] with the same arguments.
    pub fn remove(&mut self, prefix: &str, pattern: u32) {
        let Some(patterns) = self.by_prefix.get_mut(prefix) else { return };
        patterns.retain(|known| *known != pattern);
        if patterns.is_empty() {
            self.by_prefix.remove(prefix);
            if let Some(count) = self.sizes.get_mut(&prefix.len()) {
                *count -= 1;
                if *count == 0 {
                    self.sizes.remove(&prefix.len());
                }
            }
        }
    }

    /// Every pattern that can match `topic`.
    pub fn candidates(&self, topic: &str) -> impl Iterator<Item = u32> {
        let prefixes = self.sizes.range(..=topic.len()).filter_map(|(size, _)| topic.get(..*size));
        prefixes.filter_map(|prefix| self.by_prefix.get(prefix)).flatten().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topic_gets_the_patterns_of_its_beginnings() {
        let mut index = PatternIndex::default();
        for (number, prefix) in ["", "orders.", "orders.eu", "trades", "é", "orders."].into_iter().enumerate()
        {
            index.insert(prefix, number as u32);
        }
        let found = |index: &PatternIndex, topic: &str| index.candidates(topic).collect::<Vec<_>>();
        assert_eq!(found(&index, "orders.us"), [0, 1, 5]);
        assert_eq!(found(&index, "orders.eu.x"), [0, 1, 5, 2]);
        assert_eq!(found(&index, "è"), [0]);
        index.remove("orders.", 1);
        index.remove("", 0);
        assert_eq!(found(&index, "orders.eu"), [5, 2]);
        index.remove("orders.", 5);
        assert_eq!(found(&index, "orders.eu"), [2]);
    }
}
