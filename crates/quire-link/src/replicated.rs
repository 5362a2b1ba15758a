//! How far the destinations of replication are. Together with the persisted position it decides
//! which records are safe.
//!
//! A destination acknowledges records separately by their *hops*, the number of instances that they
//! passed before this one. Its acknowledgement of a record waits for instances that have the record
//! with more hops, and never for others. So instances that send to each other in a circle cannot
//! wait for each other.

use std::collections::BTreeMap;

use quire_types::{Bookmark, Position, PublisherId};

/// Some of the destinations, and the records that they must have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Destinations {
    /// One bit each.
    bits: u64,
    /// They must have everything up to a position, and not only records with the same hops.
    of_all_hops: bool,
}

impl Destinations {
    /// No destination.
    pub const NONE: Destinations = Destinations { bits: 0, of_all_hops: false };

    /// Adds a destination.
    #[inline]
    pub fn insert(&mut self, number: usize) {
        self.bits |= 1 << number;
    }

    /// Whether it is one of them.
    #[inline]
    pub fn contains(self, number: usize) -> bool {
        self.bits & (1 << number) != 0
    }

    /// The destinations of both.
    #[inline]
    #[must_use]
    pub fn union(self, other: Destinations) -> Destinations {
        Destinations { bits: self.bits | other.bits, of_all_hops: self.of_all_hops || other.of_all_hops }
    }

    /// Whether there are none.
    #[inline]
    pub fn is_empty(self) -> bool {
        self.bits == 0
    }
}

/// The progress of a destination. Each position is one up to which it has everything that is routed
/// to it, and that the name says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DestinationProgress {
    /// Records with any hops.
    pub all: Position,
    /// Records with as many hops as the place in the list.
    pub by_hops: Vec<Position>,
    /// Records with more hops than the list has places.
    pub beyond: Position,
}

impl DestinationProgress {
    fn of(&self, hops: u8) -> Position {
        self.by_hops.get(usize::from(hops)).copied().unwrap_or(self.beyond)
    }
}

/// The destinations of this instance.
#[derive(Debug, Default)]
pub struct Replicated {
    destinations: Vec<Acknowledged>,
    /// Of the sync destinations of a message, this many must have it; `None`: all.
    required: Option<u32>,
    /// Clients are not let in yet: the instance is being filled with what it lost.
    pub holds_logons: bool,
    /// Why clients are not let in, while the log may lack records: their logons are refused with
    /// this, and do not wait.
    pub not_ready: Option<Box<str>>,
    /// Messages of the log here that another instance has rejected, each with its run: it has a
    /// message of another run with the bookmark.
    rejected: BTreeMap<Bookmark, u64>,
}

#[derive(Clone, Debug)]
struct Acknowledged {
    progress: DestinationProgress,
    is_waited_for: bool,
}

impl Replicated {
    /// Destinations, and whether publishers wait for each. With `required`, this many of those that
    /// a message goes to must have it.
    pub fn new(waited_for: impl Iterator<Item = bool>, required: Option<u32>) -> Self {
        let destinations = waited_for
            .map(|is_waited_for| Acknowledged { progress: DestinationProgress::default(), is_waited_for })
            .collect();
        Replicated { destinations, required, ..Replicated::default() }
    }

    /// Whether there are destinations.
    #[inline]
    pub fn any(&self) -> bool {
        !self.destinations.is_empty()
    }

    /// The progress of a destination.
    pub fn set(&mut self, number: usize, progress: DestinationProgress) {
        self.destinations[number].progress = progress;
    }

    /// Publishers wait for the destination from now on, or do not.
    pub fn wait_for(&mut self, number: usize, is_waited_for: bool) {
        self.destinations[number].is_waited_for = is_waited_for;
    }

    /// Whether publishers wait for the destination now.
    pub fn is_waited_for(&self, number: usize) -> bool {
        self.destinations[number].is_waited_for
    }

    /// Another instance has rejected the message of this run. It is not confirmed to its publisher.
    pub fn reject(&mut self, bookmark: Bookmark, run: u64) {
        self.rejected.insert(bookmark, run);
    }

    /// The rejection is not kept any more.
    pub fn forget_rejected(&mut self, bookmark: Bookmark) {
        self.rejected.remove(&bookmark);
    }

    /// Whether another instance has rejected the message of this run.
    pub fn is_rejected(&self, bookmark: Bookmark, run: u64) -> bool {
        run != 0 && self.rejected.get(&bookmark) == Some(&run)
    }

    /// Whether another instance has rejected a message of the publisher and of this run above a
    /// sequence.
    pub fn has_rejected_after(&self, publisher: PublisherId, sequence: u64, run: u64) -> bool {
        let Some(next) = sequence.checked_add(1) else { return false };
        let later = Bookmark::new(publisher, next)..=Bookmark::new(publisher, u64::MAX);
        run != 0 && self.rejected.range(later).any(|(_, rejected)| *rejected == run)
    }

    /// Every destination, and everything that it gets: for messages of which it is not known where
    /// they go.
    pub fn all(&self) -> Destinations {
        let mut all = Destinations { bits: 0, of_all_hops: true };
        (0..self.destinations.len()).for_each(|number| all.insert(number));
        all
    }

    /// Whether enough of these destinations have the records with these hops up to `position`.
    #[inline]
    pub fn has(&self, position: Position, hops: u8, of: Destinations) -> bool {
        of.is_empty() || self.is_enough(position, hops, of)
    }

    fn is_enough(&self, position: Position, hops: u8, of: Destinations) -> bool {
        let waited_for = self.destinations.iter().enumerate();
        let waited_for =
            waited_for.filter(|(number, destination)| of.contains(*number) && destination.is_waited_for);
        let (mut count, mut having) = (0, 0);
        for (_, destination) in waited_for {
            count += 1;
            let progress = &destination.progress;
            let reached = if of.of_all_hops { progress.all } else { progress.of(hops) };
            having += u32::from(reached >= position);
        }
        having >= self.required.map_or(count, |required| required.min(count))
    }

    /// The position up to which enough of all destinations have everything that is routed to them.
    pub fn everywhere(&self, persisted: Position) -> Position {
        let waited_for = self.destinations.iter().filter(|destination| destination.is_waited_for);
        let mut positions: Vec<_> = waited_for.map(|destination| destination.progress.all).collect();
        positions.sort_unstable_by(|a, b| b.cmp(a));
        let required =
            self.required.map_or(positions.len(), |required| positions.len().min(required as usize));
        required.checked_sub(1).map_or(persisted, |last| positions[last].min(persisted))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn both() -> Destinations {
        let mut both = Destinations::NONE;
        both.insert(0);
        both.insert(1);
        both
    }

    fn at(position: u64) -> DestinationProgress {
        let position = Position::new(position);
        DestinationProgress { all: position, by_hops: Vec::new(), beyond: position }
    }

    #[test]
    fn a_message_is_safe_when_every_sync_destination_that_it_is_routed_to_has_it() {
        let mut replicated = Replicated::new([true, true].into_iter(), None);
        let (five, mut first) = (Position::new(5), Destinations::NONE);
        first.insert(0);
        assert!(replicated.has(five, 0, Destinations::NONE));
        assert!(!replicated.has(five, 0, first));
        replicated.set(0, at(5));
        assert!(replicated.has(five, 0, first));
        assert!(!replicated.has(five, 0, both()));
        assert_eq!(replicated.everywhere(five), Position::ZERO);
        replicated.set(1, at(4));
        assert_eq!(replicated.everywhere(five), Position::new(4));
        replicated.wait_for(1, false);
        assert!(replicated.has(five, 0, both()));
        assert_eq!(replicated.everywhere(five), five);
    }

    #[test]
    fn required_acks_counts_the_destinations_that_are_waited_for() {
        let mut replicated = Replicated::new([true, true].into_iter(), Some(1));
        let five = Position::new(5);
        assert!(!replicated.has(five, 0, both()));
        replicated.set(1, at(5));
        assert!(replicated.has(five, 0, both()));
        assert_eq!(replicated.everywhere(five), five);
    }

    #[test]
    fn rejections_are_of_a_bookmark_and_a_run() {
        let (publisher, other) = (PublisherId::new(7), PublisherId::new(8));
        let mut replicated = Replicated::default();
        replicated.reject(Bookmark::new(publisher, 5), 3);
        let is_rejected = |sequence, run| replicated.is_rejected(Bookmark::new(publisher, sequence), run);
        assert_eq!([is_rejected(5, 3), is_rejected(5, 4), is_rejected(6, 3)], [true, false, false]);
        let after = |publisher, sequence, run| replicated.has_rejected_after(publisher, sequence, run);
        assert_eq!([after(publisher, 4, 3), after(publisher, 5, 3)], [true, false]);
        assert_eq!([after(publisher, 4, 4), after(other, 0, 3)], [false, false]);
        assert!(!after(publisher, u64::MAX, 3));
        replicated.forget_rejected(Bookmark::new(publisher, 5));
        assert!(!replicated.is_rejected(Bookmark::new(publisher, 5), 3));
    }

    #[test]
    fn a_message_does_not_wait_for_messages_with_other_hops() {
        let mut replicated = Replicated::new([true].into_iter(), None);
        let (five, mut first) = (Position::new(5), Destinations::NONE);
        first.insert(0);
        let by_hops = vec![Position::new(2), five];
        replicated.set(0, DestinationProgress { all: Position::new(2), by_hops, beyond: Position::new(7) });
        let reached: Vec<_> = (0..3).map(|hops| replicated.has(five, hops, first)).collect();
        assert_eq!(reached, [false, true, true]);
        assert!(!replicated.has(five, 1, replicated.all()));
    }
}
