//! A position in the log: after the last message that a subscription has received, or that its user
//! has processed.
//!
//! On the instance where it was taken, a position is one bookmark. Another instance may have the
//! same messages in another order. For that instance the position is a *place* that instances have
//! told: a position of its log, up to which the subscription has everything. The messages after it
//! that the subscription has are dropped. Without places, the position there is the last bookmark
//! of every publisher.
//!
//! Messages of a publisher can arrive late, after higher sequences: they were on another instance,
//! and could not be sent at first. So the sequences that a subscription passed over are kept, too.
//! They may also belong to messages that it does not match.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use quire_command::LogPlace;
use quire_types::{Bookmark, PublisherId};
use rustc_hash::FxBuildHasher;

/// The most publishers whose last bookmark is kept. One list on the wire has room for them
/// (docs/protocol.md, limits). Above it, the least recently active publisher is forgotten. On
/// another instance, its messages after the place are then received again. Without a place, a new
/// message of it may be missed, if it is there before the new messages of all other publishers.
const PUBLISHERS_MAX: usize = 4096;

/// The most ranges of passed over sequences of a publisher. Above it, the lowest range is
/// forgotten: a message in it counts as received.
const PASSED_MAX: usize = 64;

/// A subscription that moves to another instance asks for the messages in ranges at most this far
/// below the last sequence of the publisher. The messages between are sent again, and dropped.
const ASKED_MAX: u64 = 10_000;

/// The most instances whose place is kept: more than replicate to each other.
const INSTANCES_MAX: usize = 256;

/// The beginning of the log, and its end.
const EPOCH: &str = "0";
const NOW: &str = "0|1|";

/// The position of a subscription.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResumePosition {
    /// Name of the instance on which `last` is exact.
    pub instance: Arc<str>,
    /// The last message.
    pub last: Option<Bookmark>,
    /// The last message of every publisher.
    pub publishers: LastBookmarks,
    /// The places in the logs of instances. `None`: no instance has told any. It does not
    /// replicate, or has an older version.
    pub places: Option<PositionsByInstance>,
    /// The bookmark with which the subscription began; `None`: not known.
    pub start: Option<Arc<str>>,
    /// Messages after the position that were processed before earlier ones.
    pub ahead: BTreeSet<Bookmark>,
}

/// Positions of logs, by the names of their instances. Everything up to them was received.
pub type PositionsByInstance = BTreeMap<Arc<str>, LogPlace>;

/// The beginning of a subscription that continues.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Continuation {
    /// The bookmark; `None`: the one that was requested.
    pub bookmark: Option<String>,
    /// The position in the log of the instance. When the log has another number, the bookmark
    /// counts.
    pub place: Option<LogPlace>,
}

/// Messages of a publisher that were received one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SequenceRange {
    /// The publisher.
    pub publisher: PublisherId,
    /// The first sequence.
    pub first: u64,
    /// The last one. The sequences between were received, too.
    pub last: u64,
}

impl SequenceRange {
    /// The last message.
    pub fn last_bookmark(&self) -> Bookmark {
        Bookmark { publisher: self.publisher, sequence: self.last }
    }
}

/// The last sequence of each of many publishers, and the sequences that were passed over.
#[derive(Clone, Debug, Default)]
pub struct LastBookmarks {
    by_publisher: HashMap<u64, Noted, FxBuildHasher>,
    /// By the time at which they were noted.
    order: BTreeMap<u64, u64>,
    clock: u64,
}

/// The messages that were noted of a publisher.
#[derive(Clone, Debug, Default)]
struct Noted {
    /// Nothing below it was received.
    first: u64,
    last: u64,
    /// When it was noted.
    at: u64,
    /// Sequences below the last one that were passed over, ascending: first and last of each range.
    passed: VecDeque<(u64, u64)>,
}

impl Noted {
    /// The messages with these sequences were received.
    fn receive(&mut self, first: u64, last: u64) {
        if self.last == 0 {
            (self.first, self.last) = (first, last);
            return;
        }
        if first < self.first {
            let next = last.saturating_add(1);
            if next < self.first {
                self.passed.push_front((next, self.first - 1));
            }
            self.first = first;
        }
        if last <= self.last {
            return self.fill(first, last);
        }
        let next = self.last.saturating_add(1);
        if first > next {
            self.passed.push_back((next, first - 1));
        } else if first < next {
            self.fill(first, self.last);
        }
        self.last = last;
        self.keep_limit();
    }

    /// Removes sequences from those that were passed over.
    fn fill(&mut self, first: u64, last: u64) {
        let is_apart = |range: &(u64, u64)| range.1 < first || range.0 > last;
        if self.passed.iter().all(is_apart) {
            return;
        }
        let rest = self.passed.iter().flat_map(|&(begin, end)| {
            let before = (begin < first).then(|| (begin, end.min(first - 1)));
            let after = (end > last).then(|| (begin.max(last + 1), end));
            before.into_iter().chain(after)
        });
        self.passed = rest.collect();
        self.keep_limit();
    }

    fn keep_limit(&mut self) {
        while self.passed.len() > PASSED_MAX {
            self.passed.pop_front();
        }
    }

    fn has(&self, sequence: u64) -> bool {
        let is_in = |range: &(u64, u64)| (range.0..=range.1).contains(&sequence);
        (self.first..=self.last).contains(&sequence) && !self.passed.iter().rev().any(is_in)
    }

    /// The last sequence before everything that may come.
    fn before_passed(&self) -> u64 {
        let is_near = |range: &&(u64, u64)| self.last - range.0 <= ASKED_MAX;
        self.passed.iter().find(is_near).map_or(self.last, |range| range.0 - 1)
    }
}

impl ResumePosition {
    /// Moves it to `last` on `instance`, past the given messages.
    pub fn reach(&mut self, last: Bookmark, instance: &Arc<str>, received: &[SequenceRange]) {
        if self.instance != *instance {
            self.instance = instance.clone();
        }
        self.last = Some(last);
        self.publishers.receive(received);
        for SequenceRange { publisher, first, last } in received.iter().copied() {
            if self.ahead.is_empty() {
                break;
            }
            let [first, last] = [first, last].map(|sequence| Bookmark { publisher, sequence });
            while let Some(passed) = self.ahead.range(first..=last).next().copied() {
                self.ahead.remove(&passed);
            }
        }
    }

    /// It has no progress to keep.
    pub fn is_empty(&self) -> bool {
        self.last.is_none() && self.ahead.is_empty()
    }

    /// An instance has told places: everything up to them was received. Those of a log with an
    /// earlier number are replaced.
    pub fn note_places<'a>(&mut self, told: impl IntoIterator<Item = (&'a str, LogPlace)>) {
        let places = self.places.get_or_insert_default();
        for (instance, place) in told {
            if let Some(known) = places.get_mut(instance) {
                *known = place.max(*known);
            } else if places.len() < INSTANCES_MAX {
                places.insert(instance.into(), place);
            }
        }
    }

    /// How a subscription at this position continues on `instance`.
    pub(super) fn continue_on(&self, instance: &str) -> Continuation {
        let Some(last) = self.last else {
            // It received nothing. From the beginning of the log it misses nothing.
            let place = self.places.as_ref().and_then(|places| places.get(instance)).copied();
            let is_at_epoch = self.start.as_deref().is_some_and(is_epoch);
            let unknown = (self.places.is_some() && !is_at_epoch).then(LogPlace::default);
            return Continuation { bookmark: None, place: place.or(unknown) };
        };
        if *self.instance == *instance {
            return Continuation { bookmark: Some(text_of(last)), place: None };
        }
        let Some(places) = &self.places else {
            return Continuation { bookmark: self.list(), place: None };
        };
        // Without a place there, the instance says that it has none.
        let place = places.get(instance).copied().unwrap_or_default();
        Continuation { bookmark: self.begin_again(), place: Some(place) }
    }

    /// The bookmark on an instance where it has no place. The beginning of the log is the same
    /// everywhere. Of another start it is not known which messages an instance has before it.
    fn begin_again(&self) -> Option<String> {
        match self.start.as_deref() {
            Some(start) if is_epoch(start) => Some(EPOCH.to_owned()),
            None | Some(NOW) => self.list(),
            Some(start) if start.contains(['[', '(']) => self.list(),
            Some(start) => {
                let room = PUBLISHERS_MAX.saturating_sub(start.split(',').count());
                let bookmarks: Vec<_> = self.publishers.before_passed().collect();
                let newest = &bookmarks[bookmarks.len().saturating_sub(room)..];
                let list = newest.iter().map(Bookmark::to_string);
                Some(std::iter::once(start.to_owned()).chain(list).collect::<Vec<_>>().join(","))
            }
        }
    }

    /// The last messages of all publishers; `None`: there are none.
    fn list(&self) -> Option<String> {
        let mut list: Vec<String> =
            self.publishers.before_passed().map(|bookmark| bookmark.to_string()).collect();
        // A single bookmark would be a position in the log there, and not the messages up to it.
        if let [only] = &list[..] {
            list.push(only.clone());
        }
        (!list.is_empty()).then(|| list.join(","))
    }
}

fn is_epoch(start: &str) -> bool {
    matches!(start.trim(), EPOCH | "0|0|")
}

impl LastBookmarks {
    /// Notes messages that were received.
    pub fn receive(&mut self, received: &[SequenceRange]) {
        for ranges in received.chunk_by(|one, next| one.publisher == next.publisher) {
            self.clock += 1;
            let publisher = ranges[0].publisher.get();
            let noted = self.by_publisher.entry(publisher).or_default();
            self.order.remove(&noted.at);
            noted.at = self.clock;
            ranges.iter().for_each(|range| noted.receive(range.first, range.last));
            self.order.insert(self.clock, publisher);
            if self.by_publisher.len() > PUBLISHERS_MAX
                && let Some((_, oldest)) = self.order.pop_first()
            {
                self.by_publisher.remove(&oldest);
            }
        }
    }

    /// The messages up to this one, when nothing was passed over: those after the last one of the
    /// publisher, or all of them.
    pub fn range_to(&self, bookmark: Bookmark) -> SequenceRange {
        let Bookmark { publisher, sequence } = bookmark;
        // Earlier versions did not keep the first message of a publisher.
        let Some(noted) = self.by_publisher.get(&publisher.get()) else {
            return SequenceRange { publisher, first: 1.min(sequence), last: sequence };
        };
        let next = Some(noted.last.saturating_add(1)).filter(|next| *next <= sequence);
        SequenceRange { publisher, first: next.unwrap_or(sequence), last: sequence }
    }

    /// Whether [`range_to`](Self::range_to) the last messages gives these ranges.
    pub fn is_next(&self, received: &[SequenceRange]) -> bool {
        received.iter().enumerate().all(|(index, range)| {
            // In a longer list, those of a publisher follow each other.
            let mut before = received[..index].iter().rev().take(LOOKED_THROUGH_MAX);
            let before = before.find(|other| other.publisher == range.publisher);
            let noted = || self.by_publisher.get(&range.publisher.get()).map(|noted| noted.last);
            let last = before.map(|before| before.last).or_else(noted);
            last.map_or(range.first == 1, |last| last.checked_add(1) == Some(range.first))
        })
    }

    /// Whether the publisher is known.
    pub fn knows(&self, publisher: PublisherId) -> bool {
        self.by_publisher.contains_key(&publisher.get())
    }

    /// Whether the message was received.
    pub fn has(&self, bookmark: Bookmark) -> bool {
        self.by_publisher.get(&bookmark.publisher.get()).is_some_and(|noted| noted.has(bookmark.sequence))
    }

    /// The messages as [`receive`](Self::receive) must get them to have all of this, the least
    /// recently noted publisher first.
    pub fn ranges(&self) -> Vec<SequenceRange> {
        let mut ranges = Vec::new();
        for publisher in self.order.values() {
            let Some(Noted { first, last, passed, .. }) = self.by_publisher.get(publisher) else { continue };
            let publisher = PublisherId(*publisher);
            let mut first = *first;
            for (begin, end) in passed {
                ranges.push(SequenceRange { publisher, first, last: begin - 1 });
                first = end + 1;
            }
            ranges.push(SequenceRange { publisher, first, last: *last });
        }
        ranges
    }

    /// Of each publisher, the last message before those that may still come.
    fn before_passed(&self) -> impl Iterator<Item = Bookmark> {
        self.order.values().filter_map(|publisher| {
            let sequence = self.by_publisher.get(publisher)?.before_passed();
            Some(Bookmark { publisher: PublisherId(*publisher), sequence })
        })
    }

    /// The last messages, the least recently noted first.
    pub fn iter(&self) -> impl Iterator<Item = Bookmark> {
        self.order.values().filter_map(|publisher| {
            let sequence = self.by_publisher.get(publisher)?.last;
            Some(Bookmark { publisher: PublisherId(*publisher), sequence })
        })
    }
}

impl PartialEq for LastBookmarks {
    /// Equal when they have the same publishers with the same sequences, noted at any time.
    fn eq(&self, other: &Self) -> bool {
        self.by_publisher.len() == other.by_publisher.len()
            && self.by_publisher.iter().all(|(publisher, noted)| {
                let other = other.by_publisher.get(publisher);
                let view = |noted: &Noted| (noted.first, noted.last, noted.passed.clone());
                other.is_some_and(|other| view(other) == view(noted))
            })
    }
}

impl Eq for LastBookmarks {}

/// The most ranges that are searched one by one. For more, sorting is cheaper.
const LOOKED_THROUGH_MAX: usize = 16;

/// The messages among many that are in the order of a log, those that follow each other together.
/// Of more than [`LOOKED_THROUGH_MAX`] ranges, those of a publisher follow each other.
pub(super) fn ranges_of(bookmarks: impl Iterator<Item = Bookmark>) -> Vec<SequenceRange> {
    let follows = |range: &SequenceRange, sequence: u64| range.last.checked_add(1) == Some(sequence);
    let mut ranges: Vec<SequenceRange> = Vec::new();
    for Bookmark { publisher, sequence } in bookmarks {
        let looked_through = ranges.len().saturating_sub(LOOKED_THROUGH_MAX);
        match ranges[looked_through..].iter_mut().rev().find(|range| range.publisher == publisher) {
            Some(range) if follows(range, sequence) => range.last = sequence,
            _ => ranges.push(SequenceRange { publisher, first: sequence, last: sequence }),
        }
    }
    if ranges.len() > LOOKED_THROUGH_MAX {
        // Those of a publisher keep their order.
        ranges.sort_by_key(|range| range.publisher);
        ranges.dedup_by(|range, before| {
            let is_next = before.publisher == range.publisher && follows(before, range.first);
            if is_next {
                before.last = range.last;
            }
            is_next
        });
    }
    ranges
}

/// A bookmark as subscriptions name it. The first position of the log is EPOCH.
pub(super) fn text_of(bookmark: Bookmark) -> String {
    if bookmark.publisher.get() == 0 && bookmark.sequence == 0 {
        EPOCH.to_owned()
    } else {
        bookmark.to_string()
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn range(publisher: u64, first: u64, last: u64) -> SequenceRange {
        SequenceRange { publisher: PublisherId(publisher), first, last }
    }

    fn bookmark(publisher: u64, sequence: u64) -> Bookmark {
        Bookmark { publisher: PublisherId(publisher), sequence }
    }

    fn bookmark_on(resume_position: &ResumePosition, instance: &str) -> Option<String> {
        resume_position.continue_on(instance).bookmark
    }

    #[test]
    fn without_places_a_position_is_exact_on_its_instance_and_a_list_elsewhere() {
        let mut resume_position = ResumePosition::default();
        assert_eq!(resume_position.continue_on(""), Continuation::default());
        let one: Arc<str> = "one".into();
        resume_position.reach(bookmark(7, 3), &one, &[range(7, 1, 3)]);
        assert_eq!(bookmark_on(&resume_position, "two").as_deref(), Some("7|3|,7|3|"), "a list");
        resume_position.reach(bookmark(5, 9), &one, &[range(5, 9, 9)]);
        assert_eq!(bookmark_on(&resume_position, "one").as_deref(), Some("5|9|"));
        assert_eq!(bookmark_on(&resume_position, "two").as_deref(), Some("7|3|,5|9|"));
    }

    #[test]
    fn a_list_begins_before_the_messages_that_were_passed_over_and_are_near() {
        let mut resume_position = ResumePosition::default();
        let one: Arc<str> = "one".into();
        resume_position.reach(bookmark(7, 9), &one, &[range(7, 2, 4), range(7, 7, 7), range(7, 9, 9)]);
        assert_eq!(bookmark_on(&resume_position, "two").as_deref(), Some("7|4|,7|4|"));
        assert_eq!(bookmark_on(&resume_position, "one").as_deref(), Some("7|9|"));
        resume_position.reach(bookmark(7, 6), &one, &[range(7, 5, 6)]);
        assert_eq!(bookmark_on(&resume_position, "two").as_deref(), Some("7|7|,7|7|"));
        let last = 8 + ASKED_MAX;
        resume_position.reach(bookmark(7, last), &one, &[range(7, 10, last)]);
        assert_eq!(bookmark_on(&resume_position, "two").as_deref(), Some("7|7|,7|7|"));
        resume_position.reach(bookmark(7, last + 1), &one, &[range(7, last + 1, last + 1)]);
        let list = format!("7|{0}|,7|{0}|", last + 1);
        assert_eq!(bookmark_on(&resume_position, "two"), Some(list));
        assert!(!resume_position.publishers.has(bookmark(7, 8)), "it may still come late");
    }

    #[test]
    fn what_was_processed_ahead_is_kept_until_the_place_has_passed_it() {
        let mut resume_position = ResumePosition::default();
        resume_position.ahead.extend([bookmark(5, 2), bookmark(5, 4), bookmark(6, 1)]);
        resume_position.reach(bookmark(5, 3), &"one".into(), &[range(5, 2, 3)]);
        assert_eq!(resume_position.ahead, BTreeSet::from([bookmark(5, 4), bookmark(6, 1)]));
        // The late message 4 follows 9 in the log, and was processed before it.
        resume_position.reach(bookmark(5, 9), &"one".into(), &[range(5, 9, 9)]);
        assert_eq!(resume_position.ahead, BTreeSet::from([bookmark(5, 4), bookmark(6, 1)]));
    }

    proptest! {
        #[test]
        fn a_message_was_received_or_may_still_come(
            batches in vec(vec((1_u64..3, 1_u64..40), 1..12), 1..20),
        ) {
            let mut last_bookmarks = LastBookmarks::default();
            let mut received: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
            for batch in batches {
                let messages = batch.iter().map(|(publisher, sequence)| bookmark(*publisher, *sequence));
                let ranges = ranges_of(messages);
                let mut alone = last_bookmarks.clone();
                for (publisher, sequence) in batch {
                    received.entry(publisher).or_default().push(sequence);
                    alone.receive(&[range(publisher, sequence, sequence)]);
                }
                last_bookmarks.receive(&ranges);
                prop_assert_eq!(&alone, &last_bookmarks, "in ranges or one by one");
                for (publisher, sequences) in &received {
                    for sequence in 1..42 {
                        let has = last_bookmarks.has(bookmark(*publisher, sequence));
                        prop_assert_eq!(has, sequences.contains(&sequence), "{}|{}", publisher, sequence);
                    }
                }
                let mut again = LastBookmarks::default();
                again.receive(&last_bookmarks.ranges());
                prop_assert_eq!(&again, &last_bookmarks, "from its ranges");
            }
        }
    }

    #[test]
    fn the_lowest_ranges_are_forgotten_first() {
        let mut last_bookmarks = LastBookmarks::default();
        let last = 2 * PASSED_MAX as u64 + 3;
        // Each second sequence is passed over.
        let messages = (1..=last).step_by(2).map(|sequence| bookmark(7, sequence));
        last_bookmarks.receive(&ranges_of(messages));
        let had = [2, 4, last - 1].map(|sequence| last_bookmarks.has(bookmark(7, sequence)));
        assert_eq!(had, [true, false, false]);
    }

    #[test]
    fn ranges_of_many_publishers_are_put_together() {
        let messages = (1..=3).flat_map(|sequence| (1..=20).map(move |id| bookmark(id, sequence)));
        let expected: Vec<_> = (1..=20).map(|id| range(id, 1, 3)).collect();
        assert_eq!(ranges_of(messages), expected);
    }

    #[test]
    fn messages_that_follow_each_other_are_next() {
        let mut last_bookmarks = LastBookmarks::default();
        assert!(last_bookmarks.is_next(&[range(7, 1, 4), range(8, 1, 1), range(7, 5, 6)]));
        assert!(!last_bookmarks.is_next(&[range(7, 1, 4), range(7, 6, 7)]));
        assert!(!last_bookmarks.is_next(&[range(7, 4, 5)]), "nothing is said of the first three");
        last_bookmarks.receive(&[range(7, 4, 5)]);
        assert!(last_bookmarks.is_next(&[range(7, 6, 9)]));
        assert!(!last_bookmarks.is_next(&[range(7, 7, 9)]) && !last_bookmarks.is_next(&[range(7, 3, 3)]));
        assert_eq!(last_bookmarks.range_to(bookmark(7, 8)), range(7, 6, 8));
        assert_eq!(last_bookmarks.range_to(bookmark(9, 8)), range(9, 1, 8));
        assert_eq!(last_bookmarks.range_to(bookmark(7, 5)), range(7, 5, 5));
    }

    #[test]
    fn the_publishers_heard_of_longest_ago_are_forgotten_first() {
        let mut last_bookmarks = LastBookmarks::default();
        for publisher in 1..=PUBLISHERS_MAX as u64 {
            last_bookmarks.receive(&[range(publisher, 1, 1)]);
        }
        last_bookmarks.receive(&[range(1, 2, 2), range(9999, 1, 1)]);
        assert!(
            last_bookmarks.has(bookmark(1, 2))
                && !last_bookmarks.has(bookmark(2, 1))
                && last_bookmarks.has(bookmark(3, 1))
        );
        assert_eq!(last_bookmarks.iter().count(), PUBLISHERS_MAX);
    }
}
