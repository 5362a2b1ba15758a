//! The tests of one field: equality by hash, ranges by interval trees.

use std::hash::Hash;

use hashbrown::HashMap;
use hashbrown::hash_map::Entry as HashEntry;
use rustc_hash::FxBuildHasher;

use super::cover::Wanted;
use super::ranges::{RangeTree, ValueRank};
use crate::filter::node::Literal;
use crate::message_type::{Number, Value, boolean_text};

/// The entries that test one field.
///
/// A text and a number that are equal have the same number as key. So a text constant that is a
/// number or a Boolean is entered there, too. The map only has to return every entry that can
/// match, so keys may be rounded: equal integers are also equal as floats.
#[derive(Debug, Default)]
pub(super) struct FieldIndex {
    numbers: HashMap<u64, Entries, FxBuildHasher>,
    texts: HashMap<Box<[u8]>, Entries, FxBuildHasher>,
    ranges: RangeTree,
}

/// The entries that want one constant. Mostly there is one, which is stored without a list.
#[derive(Debug)]
enum Entries {
    One(u32),
    Many(Vec<u32>),
}

/// The fact about an entry that was found by the value of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Finding {
    /// One of its tests may hold.
    Possible,
    /// The value is equal to a wanted constant, unless that is a Boolean or the name of a Boolean.
    Equal,
    /// The value is a number within one of its ranges, unless the range has texts as bounds.
    Within,
}

impl FieldIndex {
    pub fn is_empty(&self) -> bool {
        self.numbers.is_empty() && self.texts.is_empty() && self.ranges.is_empty()
    }

    pub fn insert(&mut self, entry: u32, wanted: &Wanted) {
        match wanted {
            Wanted::Equal(literal) => {
                if let Literal::Text(text) = literal {
                    Entries::add(self.texts.entry(text.clone()), entry);
                }
                for key in number_keys(literal.value()).into_iter().flatten() {
                    Entries::add(self.numbers.entry(key), entry);
                }
            }
            Wanted::Within(low, high) => self.ranges.insert(*low, *high, entry),
        }
    }

    /// Undoes [`FieldIndex::insert`] with the same arguments.
    pub fn remove(&mut self, entry: u32, wanted: &Wanted) {
        match wanted {
            Wanted::Equal(literal) => {
                if let Literal::Text(text) = literal
                    && let Some(entries) = self.texts.get_mut(text)
                    && entries.remove(entry)
                {
                    self.texts.remove(text);
                }
                for key in number_keys(literal.value()).into_iter().flatten() {
                    if self.numbers.get_mut(&key).is_some_and(|entries| entries.remove(entry)) {
                        self.numbers.remove(&key);
                    }
                }
            }
            Wanted::Within(low, _) => self.ranges.remove(*low, entry),
        }
    }

    /// The number of other entries that a message with the wanted value would have to be checked
    /// against. For ranges, an estimate.
    pub fn cost(&self, wanted: &Wanted) -> usize {
        match wanted {
            Wanted::Equal(Literal::Text(text)) => {
                1 + self.texts.get(text).map_or(0, |entries| entries.as_slice().len())
            }
            Wanted::Equal(literal) => {
                let keys = number_keys(literal.value()).into_iter().flatten();
                1 + keys
                    .filter_map(|key| self.numbers.get(&key))
                    .map(|entries| entries.as_slice().len())
                    .sum::<usize>()
            }
            Wanted::Within(ValueRank::BOTTOM, _) | Wanted::Within(_, ValueRank::TOP) => {
                16 + self.ranges.len() / 2
            }
            Wanted::Within(..) => 8 + self.ranges.len() / 16,
        }
    }

    /// Calls `candidate` with every entry that has a test that holds for `value`. It may call it
    /// with other entries, and several times with the same one.
    pub fn for_each_candidate(&self, value: Value<'_>, mut candidate: impl FnMut(u32, Finding)) {
        match value {
            Value::Null | Value::Compound(_) => {}
            Value::Array(elements) => {
                let mut extent: Option<(ValueRank, ValueRank)> = None;
                for element in elements {
                    self.equal(element.scalar(), &mut candidate);
                    for place in places(element.scalar()).into_iter().flatten() {
                        extent = Some(match extent {
                            None => (place, place),
                            Some((low, high)) => (low.min(place), high.max(place)),
                        });
                    }
                }
                if let Some((low, high)) = extent {
                    self.ranges.for_each_overlap(low, high, &mut |entry| candidate(entry, Finding::Possible));
                }
            }
            single => {
                self.equal(single, &mut candidate);
                if !self.ranges.is_empty() {
                    let finding = if is_exact_number(single) { Finding::Within } else { Finding::Possible };
                    for place in places(single).into_iter().flatten() {
                        self.ranges.for_each_overlap(place, place, &mut |entry| candidate(entry, finding));
                    }
                }
            }
        }
    }

    fn equal(&self, value: Value<'_>, candidate: &mut impl FnMut(u32, Finding)) {
        if !self.texts.is_empty()
            && let Value::Text(text) = value
        {
            let entries = self.texts.get(text).map_or(&[][..], Entries::as_slice);
            entries.iter().for_each(|entry| candidate(*entry, Finding::Equal));
        }
        if !self.numbers.is_empty() {
            let finding = if is_exact_number(value) { Finding::Equal } else { Finding::Possible };
            let mut find = |key: u64| {
                let entries = self.numbers.get(&key).map_or(&[][..], Entries::as_slice);
                entries.iter().for_each(|entry| candidate(*entry, finding));
            };
            // A loop over the two keys takes more instructions than the search of one.
            let [number, boolean] = number_keys(value);
            number.into_iter().for_each(&mut find);
            boolean.into_iter().for_each(find);
        }
    }
}

impl Entries {
    fn add<K: Hash>(place: HashEntry<'_, K, Entries, FxBuildHasher>, entry: u32) {
        match place {
            HashEntry::Vacant(place) => {
                place.insert(Entries::One(entry));
            }
            HashEntry::Occupied(mut place) => match place.get_mut() {
                Entries::One(known) => *place.get_mut() = Entries::Many(vec![*known, entry]),
                Entries::Many(entries) => entries.push(entry),
            },
        }
    }

    /// Removes `entry`. Returns whether no entry is left.
    fn remove(&mut self, entry: u32) -> bool {
        match self {
            Entries::One(known) => *known == entry,
            Entries::Many(entries) => {
                entries.retain(|known| *known != entry);
                entries.is_empty()
            }
        }
    }

    fn as_slice(&self) -> &[u32] {
        match self {
            Entries::One(entry) => std::slice::from_ref(entry),
            Entries::Many(entries) => entries,
        }
    }
}

/// 2^53. Below it, every integer has a separate float.
pub(super) const FLOAT_EXACT_MAX: f64 = 9_007_199_254_740_992.0;

fn is_exact_number(value: Value<'_>) -> bool {
    matches!(value, Value::Number(number, _) if number.as_f64().abs() < FLOAT_EXACT_MAX)
}

/// The numbers that a value may be equal to: as a number, and as a Boolean.
fn number_keys(value: Value<'_>) -> [Option<u64>; 2] {
    // Adding zero makes the negative zero the positive one. Integers differ in the upper bits. The
    // hash needs these as the lower bits, or all integers would have the same bucket of the map.
    let key = |number: Number| (!number.is_nan()).then(|| (number.as_f64() + 0.0).to_bits().rotate_right(32));
    let boolean_key = |value: bool| key(Number::Integer(value.into()));
    match value {
        Value::Number(number, _) => [key(number), None],
        Value::Boolean(value) => [boolean_key(value), None],
        Value::Text(text) => [Number::parse(text).and_then(key), boolean_text(text).and_then(boolean_key)],
        Value::Null | Value::Array(_) | Value::Compound(_) => [None, None],
    }
}

/// The rank of a value among bounds. A text that is a number has two ranks.
fn places(value: Value<'_>) -> [Option<ValueRank>; 2] {
    let place = |number: Number| (!number.is_nan()).then(|| ValueRank::number(number.as_f64()));
    match value {
        Value::Number(number, _) => [place(number), None],
        Value::Boolean(value) => [place(Number::Integer(value.into())), None],
        Value::Text(text) => [Number::parse(text).and_then(place), Some(ValueRank::text(text))],
        Value::Null | Value::Array(_) | Value::Compound(_) => [None, None],
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::hash::BuildHasher;

    use super::*;

    #[test]
    fn the_hashes_of_integers_differ_where_a_map_looks() {
        let hash = |integer| {
            let number = Number::Integer(integer);
            let [key, _] = number_keys(Literal::Number(number).value());
            FxBuildHasher.hash_one(key.unwrap())
        };
        for step in [1, 1_000, 1 << 20] {
            // A map takes the bucket from the lower bits, and compares the upper seven bits before
            // the key.
            let places: BTreeSet<_> = (0..1024).map(|number| hash(number * step) % 1024).collect();
            let tags: BTreeSet<_> = (0..1024).map(|number| hash(number * step) >> 57).collect();
            assert!(places.len() > 400 && tags.len() > 60, "{step}: {} and {}", places.len(), tags.len());
        }
    }
}
