//! Ranges of sequences of publishers.

use std::collections::BTreeMap;

use quire_types::PublisherId;

/// Sequences of publishers, as ranges. The ranges of a publisher are ascending and do not touch
/// each other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SequenceRanges {
    by_publisher: BTreeMap<PublisherId, Vec<(u64, u64)>>,
    range_count: usize,
}

impl SequenceRanges {
    /// Adds the sequences from `first` to `last`.
    pub fn insert(&mut self, publisher: PublisherId, mut first: u64, mut last: u64) {
        let ranges = self.by_publisher.entry(publisher).or_default();
        let before = ranges.len();
        // Those that overlap the new range, or touch it.
        let begin = ranges.partition_point(|(_, end)| end.saturating_add(1) < first);
        let end = ranges.partition_point(|(begin, _)| *begin <= last.saturating_add(1));
        if begin < end {
            first = first.min(ranges[begin].0);
            last = last.max(ranges[end - 1].1);
        }
        ranges.splice(begin..end, [(first, last)]);
        self.range_count = self.range_count + ranges.len() - before;
    }

    /// Removes the sequences from `first` to `last`.
    pub fn remove(&mut self, publisher: PublisherId, first: u64, last: u64) {
        let Some(ranges) = self.by_publisher.get_mut(&publisher) else { return };
        let before = ranges.len();
        let begin = ranges.partition_point(|(_, end)| *end < first);
        let end = ranges.partition_point(|(begin, _)| *begin <= last);
        if begin < end {
            let (head, tail) = (ranges[begin].0, ranges[end - 1].1);
            let head = (head < first).then(|| (head, first - 1));
            let tail = (last < tail).then(|| (last + 1, tail));
            ranges.splice(begin..end, head.into_iter().chain(tail));
        }
        self.range_count = self.range_count + ranges.len() - before;
        if ranges.is_empty() {
            self.by_publisher.remove(&publisher);
        }
    }

    /// Whether one of the sequences from `first` to `last` is among them.
    pub fn overlaps(&self, publisher: PublisherId, first: u64, last: u64) -> bool {
        self.overlapping(publisher, first, last).next().is_some()
    }

    /// The sequences from `first` to `last` that are among them, as ranges.
    pub fn overlapping(
        &self,
        publisher: PublisherId,
        first: u64,
        last: u64,
    ) -> impl Iterator<Item = (u64, u64)> {
        let ranges = self.by_publisher.get(&publisher).map_or(&[][..], |ranges| ranges);
        let begin = ranges.partition_point(|(_, end)| *end < first);
        let overlapping = ranges[begin..].iter().take_while(move |(begin, _)| *begin <= last);
        overlapping.map(move |(begin, end)| ((*begin).max(first), (*end).min(last)))
    }

    /// The sequences from `first` to `last` that are not among them, as ranges.
    pub fn missing(&self, publisher: PublisherId, first: u64, last: u64) -> Vec<(u64, u64)> {
        let mut missing = Vec::new();
        let mut next = Some(first);
        for (begin, end) in self.overlapping(publisher, first, last) {
            missing.extend(next.filter(|next| *next < begin).map(|next| (next, begin - 1)));
            next = end.checked_add(1).filter(|next| *next <= last);
        }
        missing.extend(next.map(|next| (next, last)));
        missing
    }

    /// Publisher, first and last sequence of each range.
    pub fn iter(&self) -> impl Iterator<Item = (PublisherId, u64, u64)> {
        let each = self.by_publisher.iter();
        each.flat_map(|(publisher, ranges)| ranges.iter().map(|(first, last)| (*publisher, *first, *last)))
    }

    /// How many sequences of the publisher there are.
    pub fn sequence_count_of(&self, publisher: PublisherId) -> u64 {
        let ranges = self.by_publisher.get(&publisher).into_iter().flatten();
        ranges.fold(0, |count, (first, last)| count.saturating_add((last - first).saturating_add(1)))
    }

    /// The publishers that have some.
    pub fn publishers(&self) -> impl Iterator<Item = PublisherId> {
        self.by_publisher.keys().copied()
    }

    /// How many ranges there are.
    pub fn range_count(&self) -> usize {
        self.range_count
    }

    /// How many publishers have some.
    pub fn publisher_count(&self) -> usize {
        self.by_publisher.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.by_publisher.is_empty()
    }

    /// How many sequences there are.
    pub fn sequence_count(&self) -> u64 {
        self.iter().fold(0, |count, (_, first, last)| count.saturating_add((last - first).saturating_add(1)))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn ranges_are_as_a_set_of_sequences(
            inserted in prop::collection::vec((0u64..3, 0u64..60, 0u64..9), 0..20),
            (publisher, first, size) in (0u64..3, 0u64..60, 0u64..40),
        ) {
            let (mut ranges, mut model) = (SequenceRanges::default(), BTreeSet::new());
            for (publisher, first, size) in inserted {
                ranges.insert(PublisherId::new(publisher), first, first + size);
                model.extend((first..=first + size).map(|sequence| (publisher, sequence)));
            }
            let of = |(publisher, first, last): (PublisherId, u64, u64)| {
                (first..=last).map(move |sequence| (publisher.get(), sequence))
            };
            prop_assert_eq!(ranges.iter().flat_map(of).collect::<BTreeSet<_>>(), model.clone());
            prop_assert_eq!(ranges.iter().count(), ranges.range_count());
            prop_assert_eq!(ranges.sequence_count(), model.len() as u64);
            let apart = ranges.iter().zip(ranges.iter().skip(1));
            prop_assert!(apart.into_iter().all(|(a, b)| a.0 < b.0 || a.2 + 1 < b.1));
            let (id, last) = (PublisherId::new(publisher), first + size);
            let all: BTreeSet<_> = (first..=last).map(|sequence| (publisher, sequence)).collect();
            let inside = ranges.overlapping(id, first, last).flat_map(|(first, last)| of((id, first, last)));
            prop_assert_eq!(inside.collect::<BTreeSet<_>>(), &all & &model);
            prop_assert_eq!(ranges.overlaps(id, first, last), !all.is_disjoint(&model));
            let missing = ranges.missing(id, first, last).into_iter();
            let missing = missing.flat_map(|(first, last)| of((id, first, last)));
            prop_assert_eq!(missing.collect::<BTreeSet<_>>(), &all - &model);
            ranges.remove(id, first, last);
            let rest: Vec<_> = ranges.iter().collect();
            prop_assert_eq!(rest.iter().copied().flat_map(of).collect::<BTreeSet<_>>(), &model - &all);
            prop_assert_eq!(rest.len(), ranges.range_count());
            prop_assert_eq!(ranges.is_empty(), rest.is_empty());
        }
    }

    #[test]
    fn the_highest_sequence_ends_a_range() {
        let (mut ranges, publisher) = (SequenceRanges::default(), PublisherId::new(1));
        ranges.insert(publisher, u64::MAX - 1, u64::MAX);
        ranges.insert(publisher, 3, u64::MAX);
        assert_eq!(ranges.iter().collect::<Vec<_>>(), [(publisher, 3, u64::MAX)]);
        assert_eq!(ranges.missing(publisher, 0, u64::MAX), [(0, 2)]);
        assert_eq!(ranges.missing(publisher, 4, u64::MAX), []);
    }
}
