//! A position in the log: after the last message that a subscription has received, or that its user
//! has processed.
//!
//! On the instance where it was taken, a position is one bookmark. Another instance may have the
//! same messages in another order. For that instance the position is the last bookmark of every
//! publisher: the messages of one publisher have the same order everywhere.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use quire_types::{Bookmark, PublisherId};
use rustc_hash::FxBuildHasher;

/// The most publishers whose last bookmark is kept. One list on the wire has room for them
/// (docs/protocol.md, limits). Above it, the least recently active publisher is forgotten. On
/// another instance, a new message of this publisher may then be missed, if it is there before the
/// new messages of all other publishers.
const PUBLISHERS_MAX: usize = 4096;

/// The position of a subscription.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResumePosition {
    /// Name of the instance on which `last` is exact.
    pub instance: Arc<str>,
    /// The last message.
    pub last: Option<Bookmark>,
    /// The last message of every publisher.
    pub publishers: LastBookmarks,
    /// Messages after the position that were processed before earlier ones.
    pub ahead: BTreeSet<Bookmark>,
}

/// The last sequence of each of many publishers.
#[derive(Clone, Debug, Default)]
pub struct LastBookmarks {
    /// Sequence, and when it was noted.
    by_publisher: HashMap<u64, (u64, u64), FxBuildHasher>,
    /// By the time at which they were noted.
    order: BTreeMap<u64, u64>,
    clock: u64,
}

impl ResumePosition {
    /// Moves it to `last` on `instance`, past the given last messages of publishers.
    pub fn reach(&mut self, last: Bookmark, instance: &Arc<str>, publishers: &[Bookmark]) {
        if self.instance != *instance {
            self.instance = instance.clone();
        }
        self.last = Some(last);
        for bookmark in publishers {
            self.publishers.note(*bookmark);
            let from = Bookmark { publisher: bookmark.publisher, sequence: 0 };
            while let Some(passed) = self.ahead.range(from..=*bookmark).next().copied() {
                self.ahead.remove(&passed);
            }
        }
    }

    /// The bookmark that a subscription at this position sends to `instance`; `None` = it has not
    /// begun.
    pub fn resume_on(&self, instance: &str) -> Option<String> {
        let last = self.last?;
        if *self.instance == *instance {
            return Some(text_of(last));
        }
        let list: Vec<String> = self.publishers.iter().map(|bookmark| bookmark.to_string()).collect();
        (!list.is_empty()).then(|| list.join(","))
    }
}

impl LastBookmarks {
    /// Notes a message. A message that is not the last of its publisher has no effect.
    pub fn note(&mut self, bookmark: Bookmark) {
        self.clock += 1;
        let publisher = bookmark.publisher.get();
        let noted = self.by_publisher.entry(publisher).or_insert((0, 0));
        self.order.remove(&noted.1);
        *noted = (noted.0.max(bookmark.sequence), self.clock);
        self.order.insert(self.clock, publisher);
        if self.by_publisher.len() > PUBLISHERS_MAX
            && let Some((_, oldest)) = self.order.pop_first()
        {
            self.by_publisher.remove(&oldest);
        }
    }

    /// Whether the message, or a later one of its publisher, was noted.
    pub fn has(&self, bookmark: Bookmark) -> bool {
        self.by_publisher.get(&bookmark.publisher.get()).is_some_and(|noted| noted.0 >= bookmark.sequence)
    }

    /// The last messages, the least recently noted first.
    pub fn iter(&self) -> impl Iterator<Item = Bookmark> {
        self.order.values().filter_map(|publisher| {
            let (sequence, _) = self.by_publisher.get(publisher)?;
            Some(Bookmark { publisher: PublisherId(*publisher), sequence: *sequence })
        })
    }
}

impl PartialEq for LastBookmarks {
    /// Equal when they have the same publishers with the same sequences, noted at any time.
    fn eq(&self, other: &Self) -> bool {
        self.by_publisher.len() == other.by_publisher.len()
            && self.iter().all(|bookmark| {
                other
                    .by_publisher
                    .get(&bookmark.publisher.get())
                    .is_some_and(|noted| noted.0 == bookmark.sequence)
            })
    }
}

impl Eq for LastBookmarks {}

/// The last bookmark of each publisher among many that are in the order of a log.
pub(super) fn last_of_each(bookmarks: impl Iterator<Item = Bookmark>) -> Vec<Bookmark> {
    /// The most publishers that are searched one by one. For more, sorting at the end is cheaper.
    const LOOKED_THROUGH_MAX: usize = 16;
    let mut last: Vec<Bookmark> = Vec::new();
    for bookmark in bookmarks {
        let looked_through = last.len().saturating_sub(LOOKED_THROUGH_MAX);
        match last[looked_through..].iter_mut().rev().find(|other| other.publisher == bookmark.publisher) {
            Some(before) => *before = bookmark,
            None => last.push(bookmark),
        }
    }
    if last.len() > LOOKED_THROUGH_MAX {
        last.sort_unstable_by(|a, b| b.cmp(a));
        last.dedup_by_key(|bookmark| bookmark.publisher);
    }
    last
}

/// A bookmark as subscriptions name it. The first position of the log is EPOCH.
pub(super) fn text_of(bookmark: Bookmark) -> String {
    if bookmark.publisher.get() == 0 && bookmark.sequence == 0 {
        "0".to_owned()
    } else {
        bookmark.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bookmark(publisher: u64, sequence: u64) -> Bookmark {
        Bookmark { publisher: PublisherId(publisher), sequence }
    }

    #[test]
    fn a_place_is_exact_on_its_instance_and_a_list_elsewhere() {
        let mut resume_position = ResumePosition::default();
        assert_eq!(resume_position.resume_on(""), None);
        let one: Arc<str> = "one".into();
        resume_position.reach(bookmark(7, 3), &one, &[bookmark(5, 9), bookmark(7, 3)]);
        assert_eq!(resume_position.resume_on("one").as_deref(), Some("7|3|"));
        assert_eq!(resume_position.resume_on("two").as_deref(), Some("5|9|,7|3|"));
    }

    #[test]
    fn what_was_processed_ahead_is_kept_until_the_place_has_passed_it() {
        let mut resume_position = ResumePosition::default();
        resume_position.ahead.extend([bookmark(5, 2), bookmark(5, 4), bookmark(6, 1)]);
        resume_position.reach(bookmark(5, 3), &"one".into(), &[bookmark(5, 3)]);
        assert_eq!(resume_position.ahead, BTreeSet::from([bookmark(5, 4), bookmark(6, 1)]));
    }

    #[test]
    fn the_publishers_heard_of_longest_ago_are_forgotten_first() {
        let mut last_bookmarks = LastBookmarks::default();
        for publisher in 1..=PUBLISHERS_MAX as u64 {
            last_bookmarks.note(bookmark(publisher, 1));
        }
        last_bookmarks.note(bookmark(1, 2));
        last_bookmarks.note(bookmark(9999, 1));
        assert!(
            last_bookmarks.has(bookmark(1, 2))
                && !last_bookmarks.has(bookmark(2, 1))
                && last_bookmarks.has(bookmark(3, 1))
        );
        assert_eq!(last_bookmarks.iter().count(), PUBLISHERS_MAX);
    }
}
