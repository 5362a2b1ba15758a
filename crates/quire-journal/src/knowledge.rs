//! The knowledge of a log about its publishers: highest sequence, run, the sequences that it lacks,
//! and the sum of the records (`docs/internals/copies.md`, *The knowledge of an instance about a
//! publisher*).
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
    /// A sequence from here to the highest one that the log does not lack is of this run.
    pub run_begin: u64,
    /// The sequences that the log lacks; `None`: none is known.
    pub lacking: Option<Box<Lacking>>,
    /// The sum of [`record_hash`] of all its records that were counted.
    pub sum: u64,
}

/// The sequences below the highest one that the log of a publisher lacks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lacking {
    /// Sequences that a record follows.
    pub holes: Ranges<HOLES_MAX, 2>,
    /// Sequences that were passed over: a record says that its publisher has no record with them.
    /// The message was refused, was not recorded, or the publisher did not use the sequence.
    pub passed: Ranges<PASSED_MAX, PASSED_MERGED>,
}

impl Known {
    pub fn new(publisher: PublisherId) -> Self {
        Known { publisher, highest: 0, run: 0, run_begin: 1, lacking: None, sum: 0 }
    }

    /// Adds the next record of the publisher. `counts`: it is part of the sum.
    #[inline]
    pub fn take(&mut self, step: &Step, counts: bool) {
        let skips = step.bookmark.sequence > self.highest.saturating_add(1) && step.follows.is_some();
        if step.run != self.run || skips || step.is_late {
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
            if let Some(follows) = step.follows {
                self.skip(follows.clamp(self.highest, sequence - 1), sequence);
            }
            if step.run != self.run {
                (self.run, self.run_begin) = (step.run, sequence);
            }
        }
        self.lacking.take_if(|lacking| lacking.is_empty());
    }

    /// The next record of the publisher has a higher sequence, and follows another one that is not
    /// below the highest one. Between them, the publisher has no record.
    fn skip(&mut self, follows: u64, sequence: u64) {
        if self.highest + 1 == sequence {
            return;
        }
        let lacking = self.lacking.get_or_insert_default();
        if follows > self.highest {
            lacking.holes.add(self.highest + 1, follows);
        }
        if follows + 1 < sequence {
            lacking.passed.add(follows + 1, sequence - 1);
        }
    }

    fn fill(&mut self, step: &Step) {
        let sequence = step.bookmark.sequence;
        if let Some(lacking) = &mut self.lacking {
            lacking.passed.take(sequence, sequence);
            lacking.fill(sequence, step.follows);
        }
        if step.run != self.run && sequence >= self.run_begin {
            self.run_begin = sequence.saturating_add(1);
        }
    }

    /// Whether it is known that the log has the sequence in the current run.
    pub fn has_in_run(&self, sequence: u64) -> bool {
        self.run > 0 && (self.run_begin..=self.highest).contains(&sequence) && !self.may_lack(sequence)
    }

    /// Whether it is known that the log lacks the sequence, although it has higher ones.
    pub fn lacks(&self, sequence: u64) -> bool {
        self.lacking.as_ref().is_some_and(|lacking| {
            lacking.holes.has_exactly(sequence) || lacking.passed.has_exactly(sequence)
        })
    }

    /// The log has this sequence or a higher one. No more is known of the record.
    pub fn raise(&mut self, sequence: u64) {
        if let Some(lacking) = &mut self.lacking {
            let through = self.highest.max(sequence);
            lacking.holes.wide_through = lacking.holes.wide_through.max(through);
            lacking.passed.wide_through = lacking.passed.wide_through.max(through);
        }
        if sequence > self.highest {
            (self.highest, self.run, self.run_begin) = (sequence, 0, 1);
        }
    }

    /// Whether the log may lack the sequence, although it has higher ones.
    pub fn may_lack(&self, sequence: u64) -> bool {
        self.lacking_at(sequence).is_some()
    }

    /// The hole or the range of passed-over sequences with this sequence.
    pub fn lacking_at(&self, sequence: u64) -> Option<(u64, u64)> {
        let lacking = self.lacking.as_ref()?;
        lacking.holes.range_of(sequence).or_else(|| lacking.passed.range_of(sequence))
    }

    /// The first sequence after `after` that the log may lack, although it has higher ones.
    pub fn first_lacking_after(&self, after: u64) -> Option<u64> {
        let lacking = self.lacking.as_ref()?;
        let firsts = [lacking.holes.first_after(after), lacking.passed.first_after(after)];
        firsts.into_iter().flatten().min()
    }

    /// The holes in which the log has no sequence, ascending: first and last sequence of each.
    pub fn exact_holes(&self) -> impl Iterator<Item = (u64, u64)> {
        let wide_through = self.lacking.as_ref().map_or(0, |lacking| lacking.holes.wide_through);
        let begin = wide_through.saturating_add(1);
        let exact = self.holes().iter().filter(move |(_, last)| *last >= begin);
        exact.map(move |(first, last)| ((*first).max(begin), *last))
    }

    /// The holes, ascending: first and last sequence of each.
    pub fn holes(&self) -> &[(u64, u64)] {
        self.lacking.as_ref().map_or(&[], |lacking| &lacking.holes.ranges)
    }

    /// As [`Known::holes`], of the sequences that were passed over.
    #[cfg(test)]
    fn passed(&self) -> &[(u64, u64)] {
        self.lacking.as_ref().map_or(&[], |lacking| &lacking.passed.ranges)
    }
}

impl Lacking {
    pub fn is_empty(&self) -> bool {
        self.holes.ranges.is_empty() && self.passed.ranges.is_empty()
    }

    /// The log has the sequence now. When it is in a hole, its publisher used no sequence of the
    /// hole between `follows` and it: these were passed over.
    fn fill(&mut self, sequence: u64, follows: Option<u64>) {
        let Some((first, _)) = self.holes.range_of(sequence) else { return };
        let unused = first.max(follows.unwrap_or(sequence).min(sequence - 1) + 1);
        let is_exact = first > self.holes.wide_through;
        self.holes.take(unused, sequence);
        if unused < sequence {
            self.passed.insert(unused, sequence - 1, is_exact);
        }
    }
}

/// Ranges of sequences, ascending and apart from each other. A range can be too wide, and never too
/// narrow. There are at most `MAX` of them. Above it, the `MERGED` lowest ones become one.
///
/// A merged range costs searches in the log. It costs a record only when journal files were
/// removed: the log then cannot say whether it had a record that it lacks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ranges<const MAX: usize, const MERGED: usize> {
    ranges: Vec<(u64, u64)>,
    /// Up to here, the ranges may contain sequences that the log has. It has none of the others.
    wide_through: u64,
}

/// The most holes of one publisher.
pub(crate) const HOLES_MAX: usize = 64;

/// The most ranges of passed-over sequences of one publisher.
pub(crate) const PASSED_MAX: usize = 64;

/// A publisher that sends each second message to a topic that is not recorded adds a range with
/// each record. So half of the ranges become one at a time, and few of the records move ranges.
const PASSED_MERGED: usize = PASSED_MAX / 2;

impl<const MAX: usize, const MERGED: usize> Ranges<MAX, MERGED> {
    /// The ranges of a file, if they can be those of a publisher with this highest sequence. Those
    /// up to `wide_through` may contain sequences that the log has.
    pub fn new(ranges: Vec<(u64, u64)>, highest: u64, wide_through: u64) -> Option<Self> {
        let is_ascending = ranges.is_sorted_by(|a, b| a.1 < b.0) && ranges.iter().all(|(a, b)| a <= b);
        let is_within = ranges.first().is_none_or(|(first, _)| *first > 0)
            && ranges.last().is_none_or(|(_, last)| *last < highest);
        (is_ascending && is_within && ranges.len() <= MAX).then_some(Ranges { ranges, wide_through })
    }

    /// The ranges: first and last sequence of each.
    pub fn list(&self) -> &[(u64, u64)] {
        &self.ranges
    }

    /// Ranges up to this sequence may contain sequences that the log has.
    pub fn wide_through(&self) -> u64 {
        self.wide_through
    }

    /// The number of the first range that ends at the sequence or after it.
    fn place_of(&self, sequence: u64) -> usize {
        self.ranges.partition_point(|(_, last)| *last < sequence)
    }

    fn range_of(&self, sequence: u64) -> Option<(u64, u64)> {
        self.ranges.get(self.place_of(sequence)).copied().filter(|(first, _)| *first <= sequence)
    }

    /// The first sequence of the ranges after `after`.
    fn first_after(&self, after: u64) -> Option<u64> {
        let begin = after.checked_add(1)?;
        self.ranges.get(self.place_of(begin)).map(|(first, _)| (*first).max(begin))
    }

    /// Whether the log lacks the sequence for certain.
    fn has_exactly(&self, sequence: u64) -> bool {
        sequence > self.wide_through && self.range_of(sequence).is_some()
    }

    /// Adds a range above all others.
    fn add(&mut self, first: u64, last: u64) {
        debug_assert!(self.ranges.last().is_none_or(|(_, before)| *before < first), "above all others");
        self.keep_limit(1);
        self.ranges.push((first, last));
    }

    /// Adds a range at any place. It takes in the ranges that it touches.
    fn insert(&mut self, first: u64, last: u64, is_exact: bool) {
        if !is_exact {
            self.wide_through = self.wide_through.max(last);
        }
        self.keep_limit(1);
        let from = self.place_of(first);
        let to = self.ranges.partition_point(|(begin, _)| *begin <= last);
        let inside = &self.ranges[from..to];
        let first = inside.first().map_or(first, |(begin, _)| first.min(*begin));
        let last = inside.last().map_or(last, |(_, end)| last.max(*end));
        self.ranges.splice(from..to, [(first, last)]);
    }

    /// Takes sequences out of the range that has the last one of them.
    fn take(&mut self, from: u64, to: u64) {
        let Some((first, last)) = self.range_of(to) else { return };
        if first < from && to < last {
            self.keep_limit(1);
        }
        // The range can be part of a merged one now.
        let at = self.place_of(to);
        let (first, last) = self.ranges[at];
        let left = (first < from).then(|| (first, from - 1));
        let right = (to < last).then(|| (to + 1, last));
        self.ranges.splice(at..=at, left.into_iter().chain(right));
        if self.ranges.is_empty() {
            self.wide_through = 0;
        }
    }

    /// Makes room for `more` ranges.
    fn keep_limit(&mut self, more: usize) {
        while self.ranges.len() + more > MAX {
            let (first, _) = self.ranges[0];
            self.ranges.drain(..MERGED - 1);
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

    /// The records of one publisher, and every single sequence that is in a hole or was passed
    /// over.
    #[derive(Default)]
    struct Model {
        runs: BTreeMap<u64, u64>,
        missing: BTreeSet<u64>,
        passed: BTreeSet<u64>,
        sum: u64,
    }

    impl Model {
        fn highest(&self) -> u64 {
            self.runs.last_key_value().map_or(0, |(sequence, _)| *sequence)
        }

        fn take(&mut self, step: &Step) {
            let (sequence, highest) = (step.bookmark.sequence, self.highest());
            let follows = step.follows.map(|follows| follows.min(sequence - 1));
            self.passed.remove(&sequence);
            if sequence > highest {
                self.missing.extend(highest + 1..=follows.unwrap_or(0));
                self.passed.extend(follows.map_or(sequence, |follows| follows.max(highest) + 1)..sequence);
            } else if self.missing.remove(&sequence) {
                let unused = (follows.unwrap_or(sequence) + 1..sequence).rev();
                let unused: Vec<u64> = unused.take_while(|unused| self.missing.contains(unused)).collect();
                self.missing.retain(|sequence| !unused.contains(sequence));
                self.passed.extend(unused);
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
                            prop_assert!(!model.missing.contains(sequence) && !model.passed.contains(sequence));
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
                let single = |ranges: &[(u64, u64)]| -> BTreeSet<u64> {
                    ranges.iter().flat_map(|(first, last)| *first..=*last).collect()
                };
                prop_assert_eq!(single(known.holes()), model.missing.clone());
                let is_merged = known.lacking.as_ref().is_some_and(|lacking| lacking.passed.wide_through > 0);
                let passed = single(known.passed());
                prop_assert!(model.passed.is_subset(&passed), "{:?}", known);
                prop_assert!(is_merged || passed == model.passed, "{:?}", known);
                prop_assert_eq!(known.lacking.is_none(), model.missing.is_empty() && passed.is_empty());
                let wide_through = known.lacking.as_ref().map_or(0, |lacking| lacking.passed.wide_through);
                let lacked = (1..=known.highest + 1).filter(|sequence| known.lacks(*sequence));
                let passed = model.passed.range(wide_through + 1..).copied();
                let expected: BTreeSet<u64> = model.missing.iter().copied().chain(passed).collect();
                prop_assert_eq!(lacked.collect::<BTreeSet<_>>(), expected);
                let may_lack = |sequence: &u64| known.may_lack(*sequence);
                let first = (7..=known.highest).find(may_lack);
                prop_assert_eq!(known.first_lacking_after(6), first);
                for (sequence, run) in &model.runs {
                    prop_assert!(!known.has_in_run(*sequence) || *run == known.run, "{} {:?}", sequence, known);
                }
            }
        }

        #[test]
        fn merged_ranges_are_never_too_narrow(
            steps in prop::collection::btree_map(1u64..900, (any::<bool>(), any::<bool>()), 65..250),
            fills in prop::collection::vec((1u64..2700, 0u64..5), 0..50),
        ) {
            let (mut known, mut model) = (Known::new(PublisherId(7)), Model::default());
            for (place, (follows_hole, passes_over)) in steps {
                // The next record follows a hole of some sequences, was passed over some, or both.
                let sequence = place * 3;
                let follows = match (follows_hole, passes_over) {
                    (true, true) => sequence - 2,
                    (true, false) => sequence - 1,
                    (false, _) => known.highest,
                };
                let step = step(sequence, 1, Some(follows), false);
                known.take(&step, true);
                model.take(&step);
            }
            for (sequence, back) in [(0, 0)].into_iter().chain(fills) {
                let lacks = model.missing.contains(&sequence) || model.passed.contains(&sequence);
                if lacks {
                    let step = step(sequence, 1, Some(sequence.saturating_sub(back)), true);
                    known.take(&step, true);
                    model.take(&step);
                }
                let lacking = known.lacking.as_deref().cloned().unwrap_or_default();
                prop_assert!(known.holes().len() <= HOLES_MAX && known.passed().len() <= PASSED_MAX);
                prop_assert!(lacking.passed.ranges.capacity() <= PASSED_MAX);
                for sequence in 1..2703 {
                    let is_there = model.runs.contains_key(&sequence);
                    let lacks = model.missing.contains(&sequence) || model.passed.contains(&sequence);
                    prop_assert!(known.may_lack(sequence) || !lacks, "{sequence}");
                    prop_assert!(!known.lacks(sequence) || lacks, "{sequence}");
                    prop_assert!(!known.has_in_run(sequence) || is_there, "{sequence}");
                }
                let holes = Ranges::<HOLES_MAX, 2>::new(known.holes().to_vec(), known.highest, 0);
                let passed = Ranges::<PASSED_MAX, PASSED_MERGED>::new(known.passed().to_vec(), known.highest, 0);
                prop_assert!(holes.is_some() && passed.is_some());
            }
        }
    }

    #[test]
    fn what_a_publisher_passed_over_is_lacked_until_a_late_record_has_it() {
        let mut known = Known::new(PublisherId(7));
        for (sequence, follows) in [(3, 2), (5, 3), (9, 6)] {
            known.take(&step(sequence, 4, Some(follows), false), true);
        }
        assert_eq!((known.holes(), known.passed()), (&[(1, 2), (6, 6)][..], &[(4, 4), (7, 8)][..]));
        assert_eq!([3, 4, 5, 7, 9, 10].map(|at| known.lacks(at)), [false, true, false, true, false, false]);
        assert_eq!([4, 5, 8].map(|at| known.has_in_run(at)), [false, true, false]);
        assert_eq!([0, 2, 4, 6, 7, 8].map(|after| known.first_lacking_after(after)), {
            [Some(1), Some(4), Some(6), Some(7), Some(8), None]
        });
        assert_eq!([4, 6, 8].map(|at| known.lacking_at(at)), [Some((4, 4)), Some((6, 6)), Some((7, 8))]);
        assert_eq!(known.exact_holes().collect::<Vec<_>>(), [(1, 2), (6, 6)]);
        for sequence in [4, 7] {
            known.take(&step(sequence, 4, Some(sequence - 1), true), true);
            assert!(known.has_in_run(sequence));
        }
        assert_eq!((known.holes(), known.passed()), (&[(1, 2), (6, 6)][..], &[(8, 8)][..]));
        // Two of a hole were not used.
        known.take(&step(20, 4, Some(19), false), true);
        known.take(&step(15, 4, Some(12), true), true);
        assert_eq!(known.holes(), [(1, 2), (6, 6), (10, 12), (16, 19)]);
        assert_eq!(known.passed(), [(8, 8), (13, 14)]);
        // A record of an earlier version does not say what it follows.
        known.take(&step(30, 0, None, false), true);
        assert_eq!(known.passed(), [(8, 8), (13, 14)]);
    }

    #[test]
    fn a_program_that_skips_a_sequence_before_each_message_costs_a_kilobyte() {
        let mut known = Known::new(PublisherId(7));
        for number in 1..10_000 {
            known.take(&step(2 * number, 0, Some(2 * number - 2), false), true);
            let ranges = &known.lacking.as_ref().unwrap().passed.ranges;
            assert!(ranges.capacity() * size_of::<(u64, u64)>() <= 1024);
        }
        let passed = known.passed();
        assert!((PASSED_MAX / 2..=PASSED_MAX).contains(&passed.len()), "{}", passed.len());
        assert_eq!(known.first_lacking_after(0), Some(1));
        assert!(known.lacks(19_997) && !known.lacks(19_996) && !known.lacks(3) && known.may_lack(3));
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
        assert_eq!(known.passed(), [(18, 19), (21, 29)]);
        assert_eq!(
            [6, 7, 17, 18, 20, 30, 31].map(|at| known.has_in_run(at)),
            [true, false, false, false, true, true, false]
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
