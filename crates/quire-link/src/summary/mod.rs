//! The comparison of two logs: which messages one of them lacks, or has of another run
//! (docs/internals/copies.md, *Holes*).
//!
//! A [`Comparison`] asks both sides the same [`Question`], and compares the two [`Answer`]s. The
//! first question is about all publishers, and each further one only about the parts in which the
//! answers differed: ranges of publisher ids, publishers, ranges of sequences, and messages. So the
//! answers are short when the logs differ little. Each side answers from its journal with
//! [`MemoryAnswer`] and [`answer_from_log`].
//!
//! Ask for [`Comparison::question`], give both answers to [`Comparison::handle_answer`], and repeat
//! this until there is no question. [`Comparison::differences`] then has the result. Each answer is
//! from another moment. So messages that were on their way during the comparison can be among the
//! differences: a second comparison has only lasting ones.

mod bytes;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::BuildHasher;
use std::sync::Arc;

use quire_journal::{
    Bookmark, Journal, JournalError, PublisherDigest, PublisherId, RangeSum, Reader, SequenceRange,
};
use rustc_hash::{FxBuildHasher, FxHashMap};

use crate::ranges::SequenceRanges;

/// The most parts in one question, so that an answer has at most about 1 MB. The answer to one part
/// has at most 256 sums, or the messages of 1,024 sequences.
const PARTS_MAX: usize = 64;

/// The most ranges of publisher ids in one question. Of a million publishers, a range has 4,000.
const PUBLISHER_RANGES_MAX: usize = 8;

/// How many ranges of sequences a part has at each level, as powers of two. A range has 1,024
/// sequences.
const LEVELS: [u32; 4] = [64, 16, 8, 0];

/// The level of single ranges.
const RANGES: usize = LEVELS.len() - 1;

/// A part of the sequences of a publisher.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Part {
    /// The publisher.
    pub publisher: PublisherId,
    /// 0: all sequences. 1 to 3: parts of it, each of them smaller.
    pub level: u8,
    /// The number of the part among those of its level.
    pub number: u64,
}

/// A question about a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Question {
    /// The digests by ranges of publisher ids.
    Digests,
    /// The publishers in these ranges, by the highest 8 bits of their ids.
    Publishers(Vec<u8>),
    /// The sums of the parts of the next level in these parts.
    Sums(Vec<Part>),
    /// The messages of these ranges of sequences.
    Messages(Vec<(PublisherId, u64)>),
}

/// An answer to a [`Question`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The sums of the hashes of the digests of the publishers.
    Digests(Box<[u64; 256]>),
    /// The digests of the publishers.
    Publishers(Vec<PublisherDigest>),
    /// For each part of the question.
    Sums(Vec<PartSums>),
    /// Bookmarks and runs, ascending.
    Messages(Vec<(Bookmark, u64)>),
}

/// The sums within a part.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PartSums {
    /// See [`Reader::kept_from`].
    pub kept_from: u64,
    /// The parts of the next level that have messages, ascending.
    pub sums: Vec<RangeSum>,
}

/// A side of the comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The first log.
    Here,
    /// The second log.
    There,
}

/// A message that the two logs do not both have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Difference {
    /// Its bookmark.
    pub bookmark: Bookmark,
    /// The run of the first log's message; `None`: it has none.
    pub here: Option<u64>,
    /// The same of the second log.
    pub there: Option<u64>,
}

/// Messages of a publisher that follow each other, and that differ in the same way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DifferentRange {
    /// The publisher.
    pub publisher: PublisherId,
    /// The first sequence.
    pub first: u64,
    /// The last sequence.
    pub last: u64,
    /// The side that lacks them. `None`: the two have messages of different runs.
    pub missing: Option<Side>,
}

impl Difference {
    /// The side that lacks the message.
    fn missing(&self) -> Option<Side> {
        match (self.here, self.there) {
            (None, _) => Some(Side::Here),
            (_, None) => Some(Side::There),
            _ => None,
        }
    }
}

/// An answer that is not one to the question. The other side is at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an answer about publishers and messages does not fit its question")]
pub struct BadAnswer;

/// The answer to a question for which the journal reads no file, made in pieces: a log can have
/// millions of publishers.
#[derive(Debug)]
pub struct MemoryAnswer {
    answer: Answer,
    /// The ranges of publishers that are asked for.
    ranges: Vec<u8>,
    visited_count: usize,
}

impl MemoryAnswer {
    /// Begins the answer. `None`: the question is about the log.
    pub fn begin(question: &Question) -> Option<Self> {
        let (answer, ranges) = match question {
            Question::Digests => (Answer::Digests(Box::new([0; 256])), Vec::new()),
            Question::Publishers(ranges) => (Answer::Publishers(Vec::new()), ranges.clone()),
            Question::Sums(_) | Question::Messages(_) => return None,
        };
        Some(MemoryAnswer { answer, ranges, visited_count: 0 })
    }

    /// Visits the next `count` publishers. Returns whether the answer is complete.
    pub fn advance(&mut self, journal: &Journal, count: usize) -> bool {
        for digest in journal.publisher_digests(self.visited_count).take(count) {
            let range = (digest.publisher.get() >> 56) as u8;
            match &mut self.answer {
                Answer::Digests(digests) => {
                    let sum = &mut digests[usize::from(range)];
                    *sum = sum.wrapping_add(digest.hash());
                }
                Answer::Publishers(digests) if self.ranges.contains(&range) => digests.push(digest),
                Answer::Publishers(_) | Answer::Sums(_) | Answer::Messages(_) => (),
            }
        }
        self.visited_count += count;
        self.visited_count >= journal.publisher_count()
    }

    /// The answer, once it is complete.
    pub fn into_answer(mut self) -> Answer {
        if let Answer::Publishers(digests) = &mut self.answer {
            digests.sort_unstable_by_key(|digest| digest.publisher);
        }
        self.answer
    }
}

/// Answers the other questions.
///
/// # Errors
/// The log cannot be read.
pub fn answer_from_log(question: &Question, reader: &Reader) -> Result<Option<Answer>, JournalError> {
    match question {
        Question::Digests | Question::Publishers(_) => Ok(None),
        Question::Sums(parts) => {
            let publishers = parts.iter().map(|part| part.publisher).collect();
            let ranges = reader.range_sums(&publishers)?;
            let of = |part: &Part| {
                let ranges = ranges.get(&part.publisher).map_or(&[][..], |ranges| ranges);
                Ok(PartSums { kept_from: reader.kept_from(part.publisher)?, sums: sums_in(*part, ranges) })
            };
            parts.iter().map(of).collect::<Result<_, _>>().map(|sums| Some(Answer::Sums(sums)))
        }
        Question::Messages(ranges) => {
            let messages = reader.messages_in(&ranges.iter().copied().collect())?;
            Ok(Some(Answer::Messages(messages)))
        }
    }
}

/// The number of a range at a level.
fn at_level(range: u64, level: usize) -> u64 {
    range.checked_shr(LEVELS[level]).unwrap_or(0)
}

/// The sums of the parts of the next level within a part. The ranges are ascending.
fn sums_in(part: Part, ranges: &[RangeSum]) -> Vec<RangeSum> {
    let level = usize::from(part.level).min(RANGES - 1);
    let mut sums: Vec<RangeSum> = Vec::new();
    for range in ranges.iter().filter(|range| at_level(range.number, level) == part.number) {
        let number = at_level(range.number, level + 1);
        match sums.last_mut().filter(|last| last.number == number) {
            Some(last) => {
                last.count = last.count.saturating_add(range.count);
                last.sum = last.sum.wrapping_add(range.sum);
            }
            None => sums.push(RangeSum { number, ..*range }),
        }
    }
    sums
}

/// Ranges of sequences in which two logs differ, and whose messages were compared before.
///
/// It has the sums of both logs. So a range is compared again when one of the logs has changed in
/// it.
#[derive(Clone, Debug, Default)]
pub struct Settled {
    sums: FxHashMap<SequenceRange, u64>,
}

impl Settled {
    /// Ranges, at most. Further ones are compared each time. They take 4 MB.
    pub const COUNT_MAX: usize = 100_000;

    fn has(&self, range: SequenceRange, sums: u64) -> bool {
        self.sums.get(&range) == Some(&sums)
    }

    fn insert(&mut self, range: SequenceRange, sums: u64) {
        if self.sums.len() < Self::COUNT_MAX || self.sums.contains_key(&range) {
            self.sums.insert(range, sums);
        }
    }
}

/// See the documentation of the module.
#[derive(Debug)]
pub struct Comparison {
    question: Option<Question>,
    here: Option<Answer>,
    there: Option<Answer>,
    publisher_ranges: VecDeque<u8>,
    parts: VecDeque<Part>,
    ranges: VecDeque<(PublisherId, u64)>,
    /// The publishers with different digests: the first sequence that both logs can have.
    publishers: BTreeMap<PublisherId, u64>,
    differences: Vec<Difference>,
    differences_max: usize,
    /// `None`: all ranges that differ are compared.
    settled: Option<Settled>,
    /// The holes of the first log. Their ranges are compared, also when they are settled.
    holes: Arc<SequenceRanges>,
    /// The sums of both logs in the ranges whose messages are to be settled.
    sums: BTreeMap<SequenceRange, u64>,
    /// Those of them that were compared.
    compared: Vec<SequenceRange>,
    /// Publishers of which files were removed: the first sequence that both logs can have.
    kept: Vec<(PublisherId, u64)>,
}

impl Comparison {
    /// Begins a comparison, which ends when it has found `differences_max` differences.
    pub fn new(differences_max: usize) -> Self {
        Comparison {
            question: Some(Question::Digests),
            here: None,
            there: None,
            publisher_ranges: VecDeque::new(),
            parts: VecDeque::new(),
            ranges: VecDeque::new(),
            publishers: BTreeMap::new(),
            differences: Vec::new(),
            differences_max,
            settled: None,
            holes: Arc::default(),
            sums: BTreeMap::new(),
            compared: Vec::new(),
            kept: Vec::new(),
        }
    }

    /// A comparison without a limit that passes over settled ranges, except where the first log has
    /// holes. Take its differences with [`take_ranges`](Comparison::take_ranges) after each answer.
    pub(crate) fn with_settled(settled: Settled, holes: Arc<SequenceRanges>) -> Self {
        Comparison { settled: Some(settled), holes, ..Comparison::new(usize::MAX) }
    }

    /// The differences that were found since the last call.
    pub(crate) fn take_ranges(&mut self) -> Vec<DifferentRange> {
        let ranges = self.ranges();
        self.differences.clear();
        if self.ranges.is_empty() && self.parts.is_empty() {
            self.publishers.clear();
        }
        ranges
    }

    /// The publishers of which files were removed, since the last call: the first sequence that
    /// both logs can have.
    pub(crate) fn take_kept(&mut self) -> Vec<(PublisherId, u64)> {
        std::mem::take(&mut self.kept)
    }

    /// Nothing more is to be done about the ranges whose messages were compared.
    pub(crate) fn settle_compared(&mut self) {
        for range in self.compared.drain(..) {
            if let (Some(settled), Some(sums)) = (&mut self.settled, self.sums.remove(&range)) {
                settled.insert(range, sums);
            }
        }
    }

    /// Ends the comparison.
    pub(crate) fn into_settled(self) -> Settled {
        self.settled.unwrap_or_default()
    }

    /// The question for both sides. `None`: the comparison is complete.
    pub fn question(&self) -> Option<&Question> {
        self.question.as_ref()
    }

    /// Takes the answer of one side to the question.
    ///
    /// # Errors
    /// It is not an answer to the question.
    pub fn handle_answer(&mut self, side: Side, answer: Answer) -> Result<(), BadAnswer> {
        let fits = match (&self.question, &answer) {
            (Some(Question::Digests), Answer::Digests(_)) => true,
            (Some(Question::Publishers(ranges)), Answer::Publishers(digests)) => {
                let mut highest_bits = digests.iter().map(|digest| (digest.publisher.get() >> 56) as u8);
                highest_bits.all(|bits| ranges.contains(&bits))
            }
            (Some(Question::Sums(parts)), Answer::Sums(sums)) => parts.len() == sums.len(),
            (Some(Question::Messages(_)), Answer::Messages(_)) => true,
            _ => false,
        };
        if !fits {
            return Err(BadAnswer);
        }
        match side {
            Side::Here => self.here = Some(answer),
            Side::There => self.there = Some(answer),
        }
        if self.here.is_some() && self.there.is_some() {
            self.compare();
        }
        Ok(())
    }

    fn compare(&mut self) {
        let question = self.question.take();
        match (question, self.here.take(), self.there.take()) {
            (_, Some(Answer::Digests(here)), Some(Answer::Digests(there))) => {
                let differ = |range: &u8| here[usize::from(*range)] != there[usize::from(*range)];
                self.publisher_ranges.extend((0..=u8::MAX).filter(differ));
            }
            (_, Some(Answer::Publishers(here)), Some(Answer::Publishers(there))) => {
                let parts = differing(&here, &there, |digest| digest.publisher).into_iter();
                self.parts.extend(parts.map(|publisher| Part { publisher, level: 0, number: 0 }));
            }
            (Some(Question::Sums(parts)), Some(Answer::Sums(here)), Some(Answer::Sums(there))) => {
                for (part, (here, there)) in parts.into_iter().zip(here.iter().zip(&there)) {
                    self.compare_sums(part, here, there);
                }
            }
            (
                Some(Question::Messages(ranges)),
                Some(Answer::Messages(here)),
                Some(Answer::Messages(there)),
            ) => {
                self.compare_messages(&ranges, here, there);
            }
            // The answers fit the question.
            _ => (),
        }
        self.question = self.next_question();
    }

    fn compare_sums(&mut self, part: Part, here: &PartSums, there: &PartSums) {
        let kept_from = here.kept_from.max(there.kept_from);
        self.publishers.insert(part.publisher, kept_from);
        if part.level == 0 && kept_from > 0 && self.settled.is_some() {
            self.kept.push((part.publisher, kept_from));
        }
        let level = usize::from(part.level) + 1;
        for number in differing(&here.sums, &there.sums, |sum| sum.number) {
            // A log from which files were removed lacks everything below.
            if number < at_level(kept_from / 1024, level) {
                continue;
            }
            if level == RANGES {
                self.compare_range((part.publisher, number), here, there);
            } else {
                self.parts.push_back(Part { level: level as u8, number, ..part });
            }
        }
    }

    fn compare_range(&mut self, range: SequenceRange, here: &PartSums, there: &PartSums) {
        let (publisher, number) = range;
        if let Some(settled) = &self.settled {
            let sums = FxBuildHasher.hash_one((sum_of(here, number), sum_of(there, number)));
            let first = number.saturating_mul(1024);
            let has_hole = self.holes.overlaps(publisher, first, first.saturating_add(1023));
            if settled.has(range, sums) && !has_hole {
                return;
            }
            self.sums.insert(range, sums);
        }
        self.ranges.push_back(range);
    }

    fn compare_messages(
        &mut self,
        ranges: &[(PublisherId, u64)],
        here: Vec<(Bookmark, u64)>,
        there: Vec<(Bookmark, u64)>,
    ) {
        let asked: BTreeSet<_> = ranges.iter().copied().collect();
        if self.settled.is_some() {
            self.compared.extend_from_slice(ranges);
        }
        let here: BTreeSet<_> = here.into_iter().collect();
        let there: BTreeSet<_> = there.into_iter().collect();
        let mut found: BTreeMap<Bookmark, Difference> = BTreeMap::new();
        for (bookmark, run) in here.symmetric_difference(&there) {
            let kept_from = self.publishers.get(&bookmark.publisher).copied().unwrap_or_default();
            let is_asked = asked.contains(&(bookmark.publisher, bookmark.sequence / 1024));
            if !is_asked || bookmark.sequence < kept_from {
                continue;
            }
            let unknown = Difference { bookmark: *bookmark, here: None, there: None };
            let difference = found.entry(*bookmark).or_insert(unknown);
            match here.contains(&(*bookmark, *run)) {
                true => difference.here = Some(*run),
                false => difference.there = Some(*run),
            }
        }
        self.differences.extend(found.into_values());
    }

    fn next_question(&mut self) -> Option<Question> {
        if self.differences.len() >= self.differences_max {
            return None;
        }
        // First what is known best, so that the lists stay short.
        if !self.ranges.is_empty() {
            return Some(Question::Messages(first_of(&mut self.ranges, PARTS_MAX)));
        }
        if !self.parts.is_empty() {
            return Some(Question::Sums(first_of(&mut self.parts, PARTS_MAX)));
        }
        let ranges = first_of(&mut self.publisher_ranges, PUBLISHER_RANGES_MAX);
        (!ranges.is_empty()).then_some(Question::Publishers(ranges))
    }

    /// The messages that differ, as far as the comparison has come, ascending within a publisher.
    pub fn differences(&self) -> &[Difference] {
        &self.differences
    }

    /// The messages that differ, as ranges of sequences.
    pub fn ranges(&self) -> Vec<DifferentRange> {
        let mut ranges: Vec<DifferentRange> = Vec::new();
        for difference in &self.differences {
            let Bookmark { publisher, sequence } = difference.bookmark;
            let missing = difference.missing();
            let continues = |last: &&mut DifferentRange| {
                (last.publisher, last.missing, last.last.wrapping_add(1)) == (publisher, missing, sequence)
            };
            match ranges.last_mut().filter(continues) {
                Some(last) => last.last = sequence,
                None => ranges.push(DifferentRange { publisher, first: sequence, last: sequence, missing }),
            }
        }
        ranges
    }

    /// Whether everything was compared. False when the comparison ended at the limit of
    /// differences, and while there are questions.
    pub fn is_complete(&self) -> bool {
        self.question.is_none()
            && self.ranges.is_empty()
            && self.parts.is_empty()
            && self.publisher_ranges.is_empty()
    }

    /// The publishers whose digests differ. A publisher without a difference among the messages had
    /// other messages in files that were removed, or in files of an older version.
    pub fn publishers(&self) -> impl Iterator<Item = PublisherId> {
        self.publishers.keys().copied()
    }
}

/// The sum of a range; 0 without messages.
fn sum_of(sums: &PartSums, number: u64) -> u64 {
    let at = sums.sums.binary_search_by_key(&number, |sum| sum.number);
    at.map_or(0, |at| sums.sums[at].sum)
}

fn first_of<T>(queue: &mut VecDeque<T>, count_max: usize) -> Vec<T> {
    queue.drain(..queue.len().min(count_max)).collect()
}

/// The keys of the entries that only one list has, or that are not equal in both.
fn differing<T: PartialEq, K: Ord>(here: &[T], there: &[T], key: impl Fn(&T) -> K) -> BTreeSet<K> {
    let there_by_key: BTreeMap<K, &T> = there.iter().map(|entry| (key(entry), entry)).collect();
    let here_by_key: BTreeMap<K, &T> = here.iter().map(|entry| (key(entry), entry)).collect();
    let only_there = there.iter().filter(|entry| !here_by_key.contains_key(&key(entry)));
    let here = here.iter().filter(|entry| there_by_key.get(&key(entry)) != Some(entry));
    here.chain(only_there).map(&key).collect()
}
