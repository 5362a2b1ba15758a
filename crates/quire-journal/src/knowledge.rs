//! The knowledge of a log about its publishers: highest sequence, run, holes, and the sum of the
//! records (`docs/internals/copies.md`, *The knowledge of an instance about a publisher*).
//!
//! The journal updates it with each record that is appended. A start, and the write of
//! `clients.ack`, make it again from an earlier state and the records after it. So both ways use
//! [`Knowledge::take`].
//!
//! A log can have millions of publishers, so an entry is small: a publisher takes 48 bytes, and at
//! most 64 with the free places of the table. Runs before the current one are not known: the log
//! itself is asked for them.

use hashbrown::HashTable;

use crate::record::attributes::Attributes;
use crate::record::{Bookmark, PublisherId};

/// The part of a record that the knowledge is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    pub bookmark: Bookmark,
    /// The run of the publisher; 0 = unknown.
    pub run: u64,
    /// The sequence that the publisher used before. `None` for a record that names neither a run
    /// nor what it follows: it follows the records before it.
    pub follows: Option<u64>,
    /// It was appended below the highest sequence of its publisher.
    pub is_late: bool,
}

impl Step {
    /// Of a record with these attributes.
    #[inline]
    pub fn new(bookmark: Bookmark, attributes: Attributes<'_>, is_late: bool) -> Self {
        let (run, follows) = match attributes.as_bytes() {
            [] => (0, None),
            _ => Step::named(bookmark, attributes),
        };
        Step { bookmark, run, follows, is_late }
    }

    #[inline(never)]
    fn named(bookmark: Bookmark, attributes: Attributes<'_>) -> (u64, Option<u64>) {
        let run = attributes.run();
        let before = (run > 0).then(|| bookmark.sequence.saturating_sub(1));
        (run, attributes.follows().or(before))
    }

    /// The hash of the record in sums of records.
    pub fn hash(&self) -> u64 {
        record_hash(self.bookmark, self.run)
    }
}

/// The hash of a record in sums: the same on each instance. The three numbers are combined with odd
/// factors, and mixed by the finalizer of SplitMix64.
#[inline]
pub(crate) fn record_hash(bookmark: Bookmark, run: u64) -> u64 {
    let Bookmark { publisher, sequence } = bookmark;
    let mut hash = publisher.0.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    hash = hash.wrapping_add(run.wrapping_mul(0xd134_2543_de82_ef95)).wrapping_add(sequence);
    hash = (hash ^ hash >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ hash >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ hash >> 31
}

/// The knowledge about one publisher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Known {
    pub publisher: PublisherId,
    /// The highest sequence.
    pub highest: u64,
    /// The run of the record with the highest sequence; 0 = unknown.
    pub run: u64,
    /// A sequence from here to the highest one that is in no hole is of this run.
    pub run_begin: u64,
    pub holes: Option<Box<Holes>>,
    /// The sum of [`record_hash`] of all its records that were counted.
    pub sum: u64,
}

impl Known {
    pub fn new(publisher: PublisherId) -> Self {
        Known { publisher, highest: 0, run: 0, run_begin: 1, holes: None, sum: 0 }
    }

    /// Adds the next record of the publisher. `counts`: it is part of the sum.
    #[inline]
    pub fn take(&mut self, step: &Step, counts: bool) {
        let is_plain = step.run == self.run && step.follows.is_none_or(|follows| follows <= self.highest);
        if !is_plain || step.is_late {
            self.take_special(step);
        }
        self.highest = self.highest.max(step.bookmark.sequence);
        if counts {
            self.sum = self.sum.wrapping_add(step.hash());
        }
    }

    #[inline(never)]
    fn take_special(&mut self, step: &Step) {
        let sequence = step.bookmark.sequence;
        if sequence <= self.highest {
            self.fill(step);
        } else {
            // Between `follows` and the record, the publisher used no sequence.
            let follows = step.follows.map(|follows| follows.min(sequence - 1));
            if let Some(follows) = follows.filter(|follows| *follows > self.highest) {
                self.holes.get_or_insert_default().add(self.highest + 1, follows);
            }
            if step.run != self.run {
                (self.run, self.run_begin) = (step.run, sequence);
            }
        }
        self.holes.take_if(|holes| holes.ranges.is_empty());
    }

    fn fill(&mut self, step: &Step) {
        let sequence = step.bookmark.sequence;
        if let Some(holes) = &mut self.holes {
            holes.fill(sequence, step.follows);
        }
        if step.run != self.run && sequence >= self.run_begin {
            self.run_begin = sequence.saturating_add(1);
        }
    }

    /// Whether it is known that the log has the sequence in the current run.
    pub fn has_in_run(&self, sequence: u64) -> bool {
        self.run > 0 && (self.run_begin..=self.highest).contains(&sequence) && !self.is_in_hole(sequence)
    }

    /// Whether it is known that the log lacks the sequence, although it has higher ones.
    pub fn lacks(&self, sequence: u64) -> bool {
        self.holes.as_ref().is_some_and(|holes| sequence > holes.wide_through && holes.contains(sequence))
    }

    /// The log has this sequence or a higher one. No more is known of the record.
    pub fn raise(&mut self, sequence: u64) {
        if let Some(holes) = &mut self.holes {
            holes.wide_through = u64::MAX;
        }
        if sequence > self.highest {
            (self.highest, self.run, self.run_begin) = (sequence, 0, 1);
        }
    }

    /// Whether the log may lack the sequence.
    pub fn is_in_hole(&self, sequence: u64) -> bool {
        self.holes.as_ref().is_some_and(|holes| holes.contains(sequence))
    }

    /// Holes up to this sequence may contain sequences that the log has.
    pub fn wide_through(&self) -> u64 {
        self.holes.as_ref().map_or(0, |holes| holes.wide_through)
    }

    /// The holes in which the log has no sequence, ascending: first and last sequence of each.
    pub fn exact_holes(&self) -> impl Iterator<Item = (u64, u64)> {
        let begin = self.wide_through().saturating_add(1);
        let exact = self.holes().iter().filter(move |(_, last)| *last >= begin);
        exact.map(move |(first, last)| ((*first).max(begin), *last))
    }

    /// The holes, ascending: first and last sequence of each.
    pub fn holes(&self) -> &[(u64, u64)] {
        self.holes.as_ref().map_or(&[], |holes| &holes.ranges)
    }
}

/// Ranges of sequences, ascending and apart from each other. A range can be too wide, and never too
/// narrow.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Holes {
    ranges: Vec<(u64, u64)>,
    /// Up to here, the ranges may contain sequences that the log has. It has none of the others.
    wide_through: u64,
}

/// The most ranges of one publisher. Above it, the two lowest ranges become one. A merged range
/// costs searches in the log. It costs a record only when journal files were removed: the log then
/// cannot say whether it had a record that it lacks.
pub(crate) const HOLES_MAX: usize = 64;

impl Holes {
    /// The ranges of a file, if they can be those of a publisher with this highest sequence. Those
    /// up to `wide_through` may contain sequences that the log has.
    pub fn new(ranges: Vec<(u64, u64)>, highest: u64, wide_through: u64) -> Option<Self> {
        let is_ascending = ranges.is_sorted_by(|a, b| a.1 < b.0) && ranges.iter().all(|(a, b)| a <= b);
        let is_within = ranges.first()?.0 > 0 && ranges.last()?.1 < highest && ranges.len() <= HOLES_MAX;
        (is_ascending && is_within).then_some(Holes { ranges, wide_through })
    }

    fn contains(&self, sequence: u64) -> bool {
        let at = self.ranges.partition_point(|(_, last)| *last < sequence);
        self.ranges.get(at).is_some_and(|(first, _)| *first <= sequence)
    }

    /// Adds a range above all others.
    fn add(&mut self, first: u64, last: u64) {
        debug_assert!(self.ranges.last().is_none_or(|(_, before)| *before < first), "above all others");
        self.ranges.push((first, last));
        self.keep_limit();
    }

    /// The log has the sequence now. Its publisher used none between `follows` and it.
    fn fill(&mut self, sequence: u64, follows: Option<u64>) {
        let at = self.ranges.partition_point(|(_, last)| *last < sequence);
        let Some((first, last)) = self.ranges.get(at).copied().filter(|(first, _)| *first <= sequence) else {
            return;
        };
        let follows = follows.unwrap_or(sequence).min(sequence - 1);
        let left = (first <= follows).then_some((first, follows));
        let right = (sequence < last).then_some((sequence + 1, last));
        self.ranges.splice(at..=at, left.into_iter().chain(right));
        self.keep_limit();
    }

    fn keep_limit(&mut self) {
        while self.ranges.len() > HOLES_MAX {
            let (first, _) = self.ranges.remove(0);
            self.ranges[0].0 = first;
            self.wide_through = self.wide_through.max(self.ranges[0].1);
        }
    }
}

/// Entries that are allocated together. A table of entries would leave half of its places free
/// after it has grown.
const CHUNK_COUNT: usize = 128;

/// The knowledge about all publishers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Knowledge {
    /// The places of the publishers, by the hash of their ids.
    places: HashTable<u32>,
    /// In the order in which they came.
    chunks: Vec<Vec<Known>>,
    /// The place of the publisher that was searched for, or added, last. Many records follow others
    /// of their publisher.
    last: usize,
    /// This publisher. It has no meaning while no publisher is known.
    last_publisher: PublisherId,
}

#[inline]
fn hash_of(publisher: PublisherId) -> u64 {
    // Ids are hashes themselves. Clients can choose some of their bits, so the places depend on all
    // of them.
    publisher.0.wrapping_mul(0xf135_7aea_2e62_a9c5).rotate_left(26)
}

impl Knowledge {
    pub fn find(&self, publisher: PublisherId) -> Option<&Known> {
        self.place_of(publisher).map(|place| &self.chunks[place / CHUNK_COUNT][place % CHUNK_COUNT])
    }

    #[inline]
    pub fn find_mut(&mut self, publisher: PublisherId) -> Option<&mut Known> {
        if publisher != self.last_publisher {
            self.last = self.place_of(publisher)?;
            self.last_publisher = publisher;
        }
        self.chunks.get_mut(self.last / CHUNK_COUNT)?.get_mut(self.last % CHUNK_COUNT)
    }

    fn place_of(&self, publisher: PublisherId) -> Option<usize> {
        let found = self.places.find(hash_of(publisher), |place| {
            let place = *place as usize;
            self.chunks[place / CHUNK_COUNT][place % CHUNK_COUNT].publisher == publisher
        });
        found.map(|place| *place as usize)
    }

    /// The entry of a publisher, which begins without a record.
    pub fn entry(&mut self, publisher: PublisherId) -> &mut Known {
        // A borrow that is returned in one case only would last in the other one, too.
        match self.find_mut(publisher) {
            Some(_) => &mut self.chunks[self.last / CHUNK_COUNT][self.last % CHUNK_COUNT],
            None => self.insert(Known::new(publisher)),
        }
    }

    /// Adds a publisher that is not known yet.
    pub fn insert(&mut self, known: Known) -> &mut Known {
        let chunks = &mut self.chunks;
        let place = chunks.last().map_or(0, |last| (chunks.len() - 1) * CHUNK_COUNT + last.len());
        let hash = hash_of(known.publisher);
        (self.last, self.last_publisher) = (place, known.publisher);
        let of = |place: &u32| {
            hash_of(chunks[*place as usize / CHUNK_COUNT][*place as usize % CHUNK_COUNT].publisher)
        };
        // Their number is limited by the memory: 2^32 publishers take 200 GB.
        self.places.insert_unique(hash, place as u32, of);
        if place.is_multiple_of(CHUNK_COUNT) {
            chunks.push(Vec::with_capacity(CHUNK_COUNT));
        }
        let chunk = chunks.last_mut().expect("just added");
        chunk.push(known);
        chunk.last_mut().expect("just added")
    }

    /// Adds the next record of the log. `counts`: it is part of the sums.
    pub fn take(&mut self, step: &Step, counts: bool) {
        self.entry(step.bookmark.publisher).take(step, counts);
    }

    pub fn len(&self) -> usize {
        self.chunks.last().map_or(0, |last| (self.chunks.len() - 1) * CHUNK_COUNT + last.len())
    }

    /// The publishers after the first `after` ones, in the order in which they came.
    pub fn after(&self, after: usize) -> impl Iterator<Item = &Known> {
        let chunks = self.chunks.get(after / CHUNK_COUNT..).unwrap_or_default();
        chunks.iter().flatten().skip(after % CHUNK_COUNT)
    }

    /// In no order.
    pub fn iter(&self) -> impl Iterator<Item = &Known> {
        self.chunks.iter().flatten()
    }

    /// Bytes of memory, without the holes.
    #[cfg(test)]
    fn size(&self) -> usize {
        let chunks: usize = self.chunks.iter().map(|chunk| chunk.capacity() * size_of::<Known>()).sum();
        self.places.allocation_size() + chunks + self.chunks.capacity() * size_of::<Vec<Known>>()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::*;

    fn step(sequence: u64, run: u64, follows: Option<u64>, is_late: bool) -> Step {
        let bookmark = Bookmark { publisher: PublisherId(7), sequence };
        Step { bookmark, run, follows, is_late }
    }

    /// The records of one publisher, and every single sequence that is missing.
    #[derive(Default)]
    struct Model {
        runs: BTreeMap<u64, u64>,
        missing: BTreeSet<u64>,
        sum: u64,
    }

    impl Model {
        fn highest(&self) -> u64 {
            self.runs.last_key_value().map_or(0, |(sequence, _)| *sequence)
        }

        fn take(&mut self, step: &Step) {
            let (sequence, highest) = (step.bookmark.sequence, self.highest());
            let follows = step.follows.map(|follows| follows.min(sequence - 1));
            if sequence > highest {
                self.missing.extend(highest + 1..=follows.unwrap_or(0));
            } else if self.missing.remove(&sequence) {
                let unused = (follows.unwrap_or(sequence) + 1..sequence).rev();
                unused
                    .take_while(|sequence| self.missing.contains(sequence))
                    .collect::<Vec<_>>()
                    .iter()
                    .for_each(|sequence| {
                        self.missing.remove(sequence);
                    });
            }
            self.runs.insert(sequence, step.run);
            self.sum = self.sum.wrapping_add(step.hash());
        }
    }

    #[derive(Clone, Debug)]
    enum Record {
        /// How far above the highest one, its run, and how far before it the one is that it
        /// follows.
        Next(u64, u64, Option<u64>),
        /// Which of the sequences that no record has.
        Late(prop::sample::Index, u64, Option<u64>),
    }

    fn record() -> impl Strategy<Value = Record> {
        let follows = || prop_oneof![2 => Just(None), 3 => Just(Some(1)), 1 => (1u64..9).prop_map(Some)];
        prop_oneof![
            3 => (prop_oneof![3 => Just(1), 1 => 1u64..9], 0u64..3, follows())
                .prop_map(|(above, run, follows)| Record::Next(above, run, follows)),
            2 => (any::<prop::sample::Index>(), 0u64..3, follows())
                .prop_map(|(at, run, follows)| Record::Late(at, run, follows)),
        ]
    }

    proptest! {
        #[test]
        fn the_knowledge_of_a_publisher_is_that_of_the_list_of_its_records(
            records in prop::collection::vec(record(), 1..120)
        ) {
            let (mut known, mut model) = (Known::new(PublisherId(7)), Model::default());
            for record in records {
                let highest = model.highest();
                let (sequence, run, back) = match record {
                    Record::Next(above, run, back) => (highest + above, run, back),
                    Record::Late(at, run, back) => {
                        let unused: Vec<u64> =
                            (1..highest).filter(|sequence| !model.runs.contains_key(sequence)).collect();
                        let Some(sequence) = unused.get(at.index(unused.len().max(1))) else { continue };
                        if known.has_in_run(*sequence) {
                            // No record of the current run has it, so no such record can come.
                            prop_assert!(!model.missing.contains(sequence));
                            continue;
                        }
                        (*sequence, run, back)
                    }
                };
                let follows = back.map(|back| sequence.saturating_sub(back));
                let step = step(sequence, run, follows, sequence <= highest);
                known.take(&step, true);
                model.take(&step);
                prop_assert_eq!(known.highest, model.highest());
                prop_assert_eq!(Some(&known.run), model.runs.get(&known.highest));
                prop_assert_eq!(known.sum, model.sum);
                let holes = known.holes().iter().flat_map(|(first, last)| *first..=*last);
                prop_assert_eq!(holes.collect::<BTreeSet<_>>(), model.missing.clone());
                prop_assert_eq!(known.holes.is_none(), model.missing.is_empty());
                let lacked = (1..=known.highest + 1).filter(|sequence| known.lacks(*sequence));
                let wide_through = known.holes.as_ref().map_or(0, |holes| holes.wide_through);
                let missing = model.missing.range(wide_through + 1..).copied();
                prop_assert!(lacked.eq(missing), "{:?}", known);
                for (sequence, run) in &model.runs {
                    prop_assert!(!known.has_in_run(*sequence) || *run == known.run, "{} {:?}", sequence, known);
                }
            }
        }

        #[test]
        fn merged_holes_are_never_too_narrow(
            firsts in prop::collection::btree_set(1u64..4000, 65..200),
            fills in prop::collection::vec(1u64..4000, 0..100),
        ) {
            let (mut known, mut missing) = (Known::new(PublisherId(7)), BTreeSet::new());
            for first in firsts {
                // The next record follows a hole of one sequence.
                let sequence = first * 3;
                missing.extend(known.highest + 1..sequence);
                known.take(&step(sequence, 1, Some(sequence - 1), false), true);
                prop_assert!(known.holes().len() <= HOLES_MAX);
            }
            for sequence in fills {
                if missing.remove(&sequence) {
                    known.take(&step(sequence, 1, Some(sequence - 1), true), true);
                }
                prop_assert!(known.holes().len() <= HOLES_MAX);
                prop_assert!(missing.iter().all(|sequence| known.is_in_hole(*sequence)));
                let mut lacked = (1..12_000).filter(|sequence| known.lacks(*sequence));
                prop_assert!(lacked.all(|sequence| missing.contains(&sequence)));
                let ranges = Holes::new(known.holes().to_vec(), known.highest, 0);
                prop_assert!(ranges.is_some() || known.holes().is_empty());
            }
        }
    }

    #[test]
    fn a_record_that_follows_a_sequence_which_the_log_lacks_makes_a_hole() {
        let mut known = Known::new(PublisherId(7));
        for (sequence, run, follows) in
            [(5, 3, Some(4)), (6, 3, Some(5)), (20, 3, Some(17)), (30, 3, Some(20))]
        {
            known.take(&step(sequence, run, follows, false), true);
        }
        assert_eq!((known.highest, known.run, known.run_begin), (30, 3, 5));
        assert_eq!(known.holes(), [(1, 4), (7, 17)]);
        assert_eq!(
            [6, 7, 17, 18, 30, 31].map(|at| known.has_in_run(at)),
            [true, false, false, true, true, false]
        );
        known.take(&step(12, 3, Some(9), true), true);
        assert_eq!(known.holes(), [(1, 4), (7, 9), (13, 17)]);
        // A record of another run in the middle: what is below it is not known of the current run.
        known.take(&step(14, 8, Some(13), true), true);
        assert_eq!((known.run, known.run_begin), (3, 15));
        assert_eq!([6, 14, 20].map(|at| known.has_in_run(at)), [false, false, true]);
        known.take(&step(31, 9, Some(30), false), true);
        assert_eq!((known.run, known.run_begin, known.holes().len()), (9, 31, 4));
    }

    #[test]
    fn the_sum_does_not_depend_on_the_order_and_every_part_of_a_record_changes_it() {
        let hash = |publisher, run, sequence| {
            record_hash(Bookmark { publisher: PublisherId(publisher), sequence }, run)
        };
        let mut hashes: Vec<u64> = [0, 1, 1 << 32, u64::MAX]
            .into_iter()
            .flat_map(|a| [0, 1, 1 << 40, u64::MAX].map(|b| (a, b)))
            .flat_map(|(a, b)| (0..40).map(move |sequence| hash(a, b, sequence)))
            .collect();
        let count = hashes.len();
        hashes.sort_unstable();
        hashes.dedup();
        assert_eq!(hashes.len(), count);
        // Other instances compare it: it must not change.
        assert_eq!(hash(0x1234_5678_9abc_def0, 42, 7), 10_496_786_255_870_458_562);
        let forward = (1..=50).fold(0u64, |sum, sequence| sum.wrapping_add(hash(1, 2, sequence)));
        let backward = (1..=50).rev().fold(0u64, |sum, sequence| sum.wrapping_add(hash(1, 2, sequence)));
        assert_eq!(forward, backward);
    }

    #[test]
    fn a_publisher_takes_at_most_64_bytes() {
        // The second number is the worst one: the table has just grown.
        for count in [1_000_000, (1 << 20) / 8 * 7 + 1] {
            let mut knowledge = Knowledge::default();
            for number in 0..count {
                // Ids are hashes.
                let publisher =
                    PublisherId(record_hash(Bookmark { publisher: PublisherId(0), sequence: number }, 0));
                let bookmark = Bookmark { publisher, sequence: 1 };
                knowledge.take(&Step { bookmark, run: 5, follows: Some(0), is_late: false }, true);
            }
            assert_eq!(knowledge.iter().count() as u64, count);
            let bytes = knowledge.size() as f64 / count as f64;
            assert!((48.0..=64.0).contains(&bytes), "{bytes} bytes for each of {count} publishers");
        }
    }

    #[test]
    fn many_publishers_are_found_each_with_its_own_entry() {
        let mut knowledge = Knowledge::default();
        let id = |number: u64| PublisherId(number << (number % 50));
        let mut model = BTreeMap::new();
        for number in 0..2000 {
            let bookmark = Bookmark { publisher: id(number), sequence: number + 1 };
            knowledge.take(&Step { bookmark, run: 0, follows: None, is_late: false }, true);
            model.insert(bookmark.publisher, number + 1);
        }
        for (publisher, highest) in &model {
            assert_eq!(knowledge.find(*publisher).map(|known| known.highest), Some(*highest));
        }
        assert_eq!(knowledge.iter().count(), model.len());
        assert!(knowledge.find(PublisherId(u64::MAX)).is_none());
    }
}
