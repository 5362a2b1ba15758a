//! The bookmarks of a queue's messages that were handed out: clients settle by bookmark, the engine knows positions.

use hashbrown::HashMap;
use quire_journal::{Bookmark, Position};
use rustc_hash::FxBuildHasher;

/// Bookmarks are swept when there are more than twice as many as messages outstanding, and this many.
const SLACK: usize = 1024;

/// What was handed out and not settled, and some more: a bookmark leads to the same position for ever, so one that is kept too long does
/// no harm.
#[derive(Default)]
pub(super) struct Outstanding {
    positions: HashMap<Bookmark, Position, FxBuildHasher>,
    bookmarks: HashMap<Position, Bookmark, FxBuildHasher>,
}

impl Outstanding {
    /// A message goes out.
    pub fn insert(&mut self, bookmark: Bookmark, position: Position) {
        self.positions.insert(bookmark, position);
        self.bookmarks.insert(position, bookmark);
    }

    /// Where the message lies.
    pub fn position(&self, bookmark: Bookmark) -> Option<Position> {
        self.positions.get(&bookmark).copied()
    }

    /// The name of the message.
    pub fn bookmark(&self, position: Position) -> Option<Bookmark> {
        self.bookmarks.get(&position).copied()
    }

    /// A message was settled.
    pub fn remove(&mut self, position: Position) {
        if let Some(bookmark) = self.bookmarks.remove(&position) {
            self.positions.remove(&bookmark);
        }
    }

    /// Forgets those that are in nobody's hands any more, when they have become many.
    pub fn sweep(&mut self, outstanding_count: usize, is_out: impl Fn(Position) -> bool) {
        if self.bookmarks.len() > 2 * outstanding_count + SLACK {
            self.bookmarks.retain(|position, bookmark| {
                let keep = is_out(*position);
                if !keep {
                    self.positions.remove(bookmark);
                }
                keep
            });
        }
    }
}
