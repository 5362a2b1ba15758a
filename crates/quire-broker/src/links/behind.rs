//! The lag of a destination: the oldest record of the log that goes to it and that it has not
//! acknowledged.
//!
//! The engine knows the records that were routed since the start, and what was sent. It does not
//! know those of an earlier run of the process. So the log is searched while the link is not live,
//! and until the engine knows all records that wait.

use std::time::Duration;

use quire_journal::{Position, Timestamp};
use quire_types::time::Instant;

use super::read::LinkSearch;
use crate::context::Context;

/// The shortest time between two searches. Each continues where the last one ended.
const INTERVAL: Duration = Duration::from_millis(250);

/// See the documentation of the module.
#[derive(Debug, Default)]
pub(super) struct Behind {
    /// The destination has everything up to here.
    acknowledged: Position,
    /// The oldest record after it that goes to the destination.
    oldest: Option<(Position, Timestamp)>,
    /// Without such a record: there is none up to here.
    looked_through: Position,
    /// The search under way.
    looking: Option<u64>,
    /// When the next search may begin.
    due: Option<Instant>,
}

impl Behind {
    /// The destination has everything up to here. It can also be less than before, when the
    /// destination has lost its log.
    pub(super) fn reach(&mut self, acknowledged: Position, first: Position) {
        if acknowledged < self.acknowledged {
            (self.oldest, self.looked_through, self.looking) = (None, Position::ZERO, None);
        }
        self.acknowledged = acknowledged;
        // Records of removed files are not in the log any more.
        self.oldest = self.oldest.filter(|(position, _)| *position > acknowledged && *position >= first);
    }

    /// Where the next search begins; `None`: none is to begin now. `is_needed`: the engine may not
    /// know all records that wait.
    pub(super) fn next_search(
        &mut self,
        now: Instant,
        persisted: Position,
        is_needed: bool,
    ) -> Option<Position> {
        if self.looking.is_some() {
            return None;
        }
        let after = self.looked_through.max(self.acknowledged);
        if !is_needed || self.oldest.is_some() || after >= persisted {
            self.due = None;
            return None;
        }
        let due = *self.due.get_or_insert(now);
        (due <= now).then_some(after)
    }

    /// A search has begun.
    pub(super) fn begin(&mut self, number: u64, now: Instant) {
        (self.looking, self.due) = (Some(number), Some(now + INTERVAL));
    }

    /// A search is done. Returns whether the next one is to follow at once.
    pub(super) fn found(&mut self, number: u64, search: &LinkSearch) -> bool {
        if self.looking != Some(number) {
            return false;
        }
        self.looking = None;
        self.oldest = search.found.filter(|(position, _)| *position > self.acknowledged);
        self.looked_through = self.looked_through.max(search.after);
        let has_more = search.found.is_none() && search.after < search.limit;
        self.due = self.due.filter(|_| !has_more);
        has_more
    }

    /// When the next search may begin.
    pub(super) fn due(&self) -> Option<Instant> {
        self.due.filter(|_| self.looking.is_none() && self.oldest.is_none())
    }

    /// The age of the oldest record; zero without one.
    pub(super) fn age(&self, cx: &Context) -> Duration {
        let age = |(_, time): (Position, Timestamp)| cx.clock.now.wall.as_ns().saturating_sub(time.as_ns());
        self.oldest.map_or(Duration::ZERO, |oldest| Duration::from_nanos(age(oldest)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Instant = Instant(1_000_000_000);

    fn search(after: u64, limit: u64, found: Option<u64>) -> LinkSearch {
        let found = found.map(|position| (Position::new(position), Timestamp::from_ns(position)));
        LinkSearch { after: Position::new(after), limit: Position::new(limit), found }
    }

    fn next(behind: &mut Behind, now: Instant, persisted: u64) -> Option<u64> {
        behind.next_search(now, Position::new(persisted), true).map(Position::get)
    }

    #[test]
    fn a_search_continues_until_it_has_found_the_oldest_record() {
        let (mut behind, first) = (Behind::default(), Position::new(1));
        behind.reach(Position::new(5), first);
        assert_eq!(next(&mut behind, NOW, 5), None);
        assert_eq!(next(&mut behind, NOW, 90), Some(5));
        behind.begin(1, NOW);
        assert_eq!(next(&mut behind, NOW, 90), None, "it is under way");
        assert!(behind.found(1, &search(50, 90, None)), "it has read enough for once");
        assert_eq!(next(&mut behind, NOW, 90), Some(50));
        behind.begin(2, NOW);
        assert!(!behind.found(1, &search(99, 99, None)), "an earlier one");
        assert!(!behind.found(2, &search(90, 90, None)));
        assert_eq!(next(&mut behind, NOW, 90), None);
        behind.begin(3, NOW);
        behind.found(3, &search(91, 91, None));
        let later = NOW + INTERVAL;
        assert_eq!((next(&mut behind, NOW, 95), behind.due()), (None, Some(later)));
        assert_eq!(behind.next_search(later, Position::new(95), false), None);
        assert_eq!((behind.due(), next(&mut behind, later, 95)), (None, Some(91)));
        behind.begin(3, later);
        assert!(!behind.found(3, &search(93, 95, Some(94))));
        assert_eq!(behind.oldest, Some((Position::new(94), Timestamp::from_ns(94))));
        assert_eq!(next(&mut behind, later + INTERVAL, 99), None);
        behind.reach(Position::new(94), first);
        assert_eq!(behind.oldest, None);
        assert_eq!(next(&mut behind, later + INTERVAL, 99), Some(94));
    }

    #[test]
    fn a_destination_that_lost_its_log_is_searched_for_from_its_place() {
        let (mut behind, first) = (Behind::default(), Position::new(1));
        behind.reach(Position::new(50), first);
        behind.looked_through = Position::new(60);
        behind.reach(Position::ZERO, first);
        assert_eq!(next(&mut behind, NOW, 60), Some(0));
        behind.oldest = Some((Position::new(3), Timestamp::from_ns(3)));
        behind.reach(Position::ZERO, Position::new(4));
        assert_eq!(behind.oldest, None, "its file was removed");
    }
}
