//! The last records of the log here of which the journal does not know, without a look into the
//! log, whether it has them: those that name no run, and those below the highest sequence of their
//! publisher.
//!
//! A message often comes over several links within a short time. With these records, the log is not
//! asked for the second copy. And an answer of the log ([`quire_link::LookedUp`]) is about an
//! earlier moment: the records that came since are here.

use std::collections::VecDeque;

use hashbrown::HashMap;
use quire_journal::{Bookmark, Position};
use quire_link::RecordHere;
use rustc_hash::FxBuildHasher;

/// Records that are kept when no answer is about an earlier moment.
const KEPT_MAX: usize = 4096;

/// See the documentation of the module.
#[derive(Default)]
pub(super) struct Recent {
    /// In the order of the log.
    order: VecDeque<(Position, Bookmark)>,
    by_bookmark: HashMap<Bookmark, RecordHere, FxBuildHasher>,
}

impl Recent {
    /// The log has this record.
    pub(super) fn get(&self, bookmark: Bookmark) -> Option<RecordHere> {
        self.by_bookmark.get(&bookmark).copied()
    }

    /// A record was appended. `needed_after` is the first position that an answer of the log is
    /// about; `None`: there is no such answer.
    pub(super) fn add(
        &mut self,
        position: Position,
        bookmark: Bookmark,
        record: RecordHere,
        needed_after: Option<Position>,
    ) {
        let is_needed = |position: Position| needed_after.is_some_and(|after| position > after);
        while self.order.len() >= KEPT_MAX
            && let Some((_, oldest)) = self.order.pop_front_if(|(position, _)| !is_needed(*position))
        {
            self.by_bookmark.remove(&oldest);
        }
        self.order.push_back((position, bookmark));
        self.by_bookmark.insert(bookmark, record);
    }
}

#[cfg(test)]
mod tests {
    use quire_journal::PublisherId;

    use super::*;

    #[test]
    fn records_that_came_after_an_answer_are_kept() {
        let bookmark = |sequence| Bookmark::new(PublisherId::new(1), sequence);
        let mut recent = Recent::default();
        let add = |recent: &mut Recent, number: u64, needed: Option<u64>| {
            let record = RecordHere { run: 0, hash: number };
            recent.add(Position::new(number), bookmark(number), record, needed.map(Position::new));
        };
        let kept = KEPT_MAX as u64;
        for number in 1..=3 * kept {
            add(&mut recent, number, Some(10));
        }
        let hash = |recent: &Recent, number| recent.get(bookmark(number)).map(|record| record.hash);
        assert_eq!((hash(&recent, 10), hash(&recent, 11)), (None, Some(11)));
        add(&mut recent, 3 * kept + 1, None);
        assert_eq!((hash(&recent, 2 * kept), hash(&recent, 2 * kept + 2)), (None, Some(2 * kept + 2)));
        assert_eq!(recent.by_bookmark.len(), KEPT_MAX);
    }
}
