//! The conflicts of the links: messages of two runs of a publisher that have one bookmark, on this
//! instance and on another one (docs/internals/copies.md, *Decisions*).
//!
//! Both instances keep the bookmark. The source needs it, too: it must not confirm the message to
//! its publisher, also on a later connection, and it tells the instance that the message came from.
//! The file `copies.place` next to the log has the counts and the bookmarks, so that they survive
//! restarts (docs/journal-format.md).

use std::collections::{BTreeMap, VecDeque};

use hashbrown::{HashMap, HashSet};
use quire_journal::{Bookmark, PublisherId};
use rustc_hash::FxBuildHasher;

/// Conflicts of a link whose bookmarks are kept. At the limit the oldest one is forgotten: it is
/// counted again when it comes again.
const KEPT_MAX: usize = 10_000;

/// The side of a link on which the other instance is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Side {
    /// It has rejected messages of this instance.
    Destination,
    /// This instance has rejected its messages.
    Source,
}

/// A message of two runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Conflict {
    /// The run that was rejected; 0: the contents differ, and one of the two names no run.
    run: u64,
    /// The instance that has sent the message to this one, when it is to hear of the rejection.
    passed_to: Option<Box<str>>,
}

/// The conflicts of a link.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct OfLink {
    count: u64,
    /// Oldest first.
    order: VecDeque<Bookmark>,
    kept: HashMap<Bookmark, Conflict, FxBuildHasher>,
    /// Publishers of conflicts, at most [`KEPT_MAX`]. The log of the server names the first
    /// conflict of each.
    publishers: HashSet<PublisherId, FxBuildHasher>,
}

/// See the module's documentation.
#[derive(Default)]
pub(super) struct Conflicts {
    links: BTreeMap<(Side, Box<str>), OfLink>,
    /// The file does not have everything.
    is_changed: bool,
}

/// A conflict that was not known before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct New {
    /// The conflicts of the link.
    pub(super) count: u64,
    /// It is the first one of its publisher that the link keeps.
    pub(super) is_first_of_publisher: bool,
    /// The oldest one, which is no longer kept.
    pub(super) forgotten: Option<Bookmark>,
}

impl OfLink {
    /// Returns the oldest one when it is no longer kept.
    fn add(&mut self, bookmark: Bookmark, conflict: Conflict) -> Option<Bookmark> {
        let forgotten = if self.order.len() >= KEPT_MAX { self.order.pop_front() } else { None };
        if let Some(oldest) = forgotten {
            self.kept.remove(&oldest);
        }
        if self.publishers.len() < KEPT_MAX {
            self.publishers.insert(bookmark.publisher);
        }
        self.order.push_back(bookmark);
        self.kept.insert(bookmark, conflict);
        forgotten
    }
}

impl Conflicts {
    /// From the bytes that an earlier run saved. None when they cannot be used.
    pub(super) fn of_bytes(bytes: &[u8]) -> Self {
        Conflicts { links: decode(bytes).unwrap_or_default(), is_changed: false }
    }

    /// A message was rejected on the link of an instance. `None`: this was known.
    pub(super) fn note(&mut self, side: Side, instance: &str, bookmark: Bookmark, run: u64) -> Option<New> {
        let link = self.links.entry((side, instance.into())).or_default();
        if link.kept.get(&bookmark).is_some_and(|known| known.run == run) {
            return None;
        }
        let is_first_of_publisher =
            link.publishers.len() < KEPT_MAX && !link.publishers.contains(&bookmark.publisher);
        self.is_changed = true;
        let (conflict, mut forgotten) = (Conflict { run, passed_to: None }, None);
        match link.kept.get_mut(&bookmark) {
            Some(known) => *known = conflict,
            None => {
                link.count += 1;
                forgotten = link.add(bookmark, conflict);
            }
        }
        Some(New { count: link.count, is_first_of_publisher, forgotten })
    }

    /// The message that a destination has rejected came from this instance.
    pub(super) fn pass_to(&mut self, bookmark: Bookmark, run: u64, instance: &str) {
        for ((side, _), link) in &mut self.links {
            if let Some(conflict) = link.kept.get_mut(&bookmark)
                && *side == Side::Destination
                && conflict.run == run
                && conflict.passed_to.is_none()
            {
                conflict.passed_to = Some(instance.into());
                self.is_changed = true;
            }
        }
    }

    /// The rejections that an instance is to hear of.
    pub(super) fn passed_to(&self, instance: &str) -> Vec<(Bookmark, u64)> {
        let kept = self.rejections();
        let passed = kept.filter(|(_, conflict)| conflict.passed_to.as_deref() == Some(instance));
        passed.map(|(bookmark, conflict)| (bookmark, conflict.run)).collect()
    }

    /// The messages of this instance that other instances have rejected.
    fn rejections(&self) -> impl Iterator<Item = (Bookmark, &Conflict)> {
        let links = self.links.iter().filter(|((side, _), _)| *side == Side::Destination);
        links.flat_map(|(_, link)| link.kept.iter().map(|(bookmark, conflict)| (*bookmark, conflict)))
    }

    /// The messages of this instance that other instances have rejected, each with its run.
    pub(super) fn rejected(&self) -> impl Iterator<Item = (Bookmark, u64)> {
        let kept = self.rejections().filter(|(_, conflict)| conflict.run != 0);
        kept.map(|(bookmark, conflict)| (bookmark, conflict.run))
    }

    /// The conflicts of the link of an instance, over all restarts.
    pub(super) fn count(&self, side: Side, instance: &str) -> u64 {
        self.links.get(&(side, instance.into())).map_or(0, |link| link.count)
    }

    /// The instances on a side whose links have conflicts.
    pub(super) fn instances(&self, side: Side) -> impl Iterator<Item = (&str, u64)> {
        let links = self.links.iter().filter(move |((other, _), _)| *other == side);
        links.map(|((_, instance), link)| (&**instance, link.count))
    }

    /// The bytes for the file.
    pub(super) fn encoded(&self) -> Vec<u8> {
        encode(&self.links)
    }

    /// Whether the file does not have everything. It counts as written from now on.
    pub(super) fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.is_changed)
    }

    /// The file was not written.
    pub(super) fn not_written(&mut self) {
        self.is_changed = true;
    }

    /// Whether there is anything to save.
    pub(super) fn is_empty(&self) -> bool {
        self.links.is_empty()
    }
}

fn encode(links: &BTreeMap<(Side, Box<str>), OfLink>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for ((side, instance), OfLink { count, order, kept, .. }) in links {
        bytes.push(u8::from(*side == Side::Source));
        put_text(&mut bytes, instance);
        bytes.extend_from_slice(&count.to_le_bytes());
        bytes.extend_from_slice(&(order.len() as u32).to_le_bytes());
        for bookmark in order {
            let conflict = kept.get(bookmark).cloned().unwrap_or_default();
            for number in [bookmark.publisher.get(), bookmark.sequence, conflict.run] {
                bytes.extend_from_slice(&number.to_le_bytes());
            }
            put_text(&mut bytes, conflict.passed_to.as_deref().unwrap_or_default());
        }
    }
    bytes
}

/// `None`: the bytes are something else.
fn decode(mut bytes: &[u8]) -> Option<BTreeMap<(Side, Box<str>), OfLink>> {
    let mut links = BTreeMap::new();
    while let Some((side, rest)) = bytes.split_first() {
        bytes = rest;
        let side = match side {
            0 => Side::Destination,
            1 => Side::Source,
            _ => return None,
        };
        let instance = take_text(&mut bytes)?.into();
        let mut link = OfLink { count: take_u64(&mut bytes)?, ..OfLink::default() };
        let (kept, rest) = bytes.split_first_chunk()?;
        bytes = rest;
        for _ in 0..u32::from_le_bytes(*kept) {
            let publisher = PublisherId::new(take_u64(&mut bytes)?);
            let bookmark = Bookmark::new(publisher, take_u64(&mut bytes)?);
            let run = take_u64(&mut bytes)?;
            let passed_to = Some(take_text(&mut bytes)?).filter(|name| !name.is_empty());
            let _ = link.add(bookmark, Conflict { run, passed_to: passed_to.map(Into::into) });
        }
        links.insert((side, instance), link);
    }
    Some(links)
}

fn put_text(bytes: &mut Vec<u8>, text: &str) {
    bytes.extend_from_slice(&(text.len() as u16).to_le_bytes());
    bytes.extend_from_slice(text.as_bytes());
}

fn take_text<'a>(bytes: &mut &'a [u8]) -> Option<&'a str> {
    let (size, rest) = bytes.split_first_chunk()?;
    let (text, rest) = rest.split_at_checked(u16::from_le_bytes(*size).into())?;
    *bytes = rest;
    std::str::from_utf8(text).ok()
}

fn take_u64(bytes: &mut &[u8]) -> Option<u64> {
    let (number, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(u64::from_le_bytes(*number))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bookmark(publisher: u64, sequence: u64) -> Bookmark {
        Bookmark::new(PublisherId::new(publisher), sequence)
    }

    #[test]
    fn conflicts_survive_a_restart() {
        let mut conflicts = Conflicts::of_bytes(&[]);
        assert!(conflicts.is_empty() && !conflicts.take_changed());
        let first = conflicts.note(Side::Destination, "b", bookmark(1, 5), 7);
        assert_eq!(first, Some(New { count: 1, is_first_of_publisher: true, forgotten: None }));
        assert_eq!(conflicts.note(Side::Destination, "b", bookmark(1, 5), 7), None);
        let second = conflicts.note(Side::Destination, "b", bookmark(1, 6), 7);
        assert_eq!(second, Some(New { count: 2, is_first_of_publisher: false, forgotten: None }));
        conflicts.note(Side::Source, "b", bookmark(1, 5), 8);
        conflicts.pass_to(bookmark(1, 5), 7, "c");
        assert!(conflicts.take_changed() && !conflicts.take_changed());
        let again = Conflicts::of_bytes(&conflicts.encoded());
        assert_eq!(again.links, conflicts.links);
        assert_eq!((again.count(Side::Destination, "b"), again.count(Side::Source, "b")), (2, 1));
        assert_eq!(again.passed_to("c"), [(bookmark(1, 5), 7)]);
        let rejected: BTreeMap<_, _> = again.rejected().collect();
        assert_eq!(rejected, BTreeMap::from([(bookmark(1, 5), 7), (bookmark(1, 6), 7)]));
    }

    #[test]
    fn a_conflict_without_a_run_rejects_no_publish() {
        let mut conflicts = Conflicts::default();
        conflicts.note(Side::Destination, "b", bookmark(1, 5), 0);
        assert_eq!(conflicts.rejected().count(), 0);
        assert_eq!(conflicts.count(Side::Destination, "b"), 1);
    }

    #[test]
    fn the_oldest_conflicts_are_forgotten_and_stay_counted() {
        let mut conflicts = Conflicts::default();
        let mut last = None;
        for sequence in 1..=KEPT_MAX as u64 + 1 {
            last = conflicts.note(Side::Source, "b", bookmark(1, sequence), 7);
        }
        assert_eq!(last.and_then(|new| new.forgotten), Some(bookmark(1, 1)));
        assert_eq!(conflicts.count(Side::Source, "b"), KEPT_MAX as u64 + 1);
        let link = &conflicts.links[&(Side::Source, "b".into())];
        assert_eq!((link.order.len(), link.kept.len()), (KEPT_MAX, KEPT_MAX));
        assert!(!link.kept.contains_key(&bookmark(1, 1)));
    }

    proptest! {
        #[test]
        fn any_bytes_are_conflicts_or_refused(
            bytes in prop::collection::vec(prop_oneof![8 => Just(0u8), 2 => 0u8..4, 1 => any::<u8>()], 0..120),
        ) {
            if let Some(links) = decode(&bytes) {
                let again = decode(&encode(&links)).unwrap();
                prop_assert_eq!(again, links);
            }
        }
    }
}
