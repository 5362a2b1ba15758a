//! The messages that wait or are leased, for a reader that follows them: each time one of them
//! comes to be so, or is so no longer. A delayed message is not among them.
//!
//! A reader first gets the messages that the queue has, in portions, and the moves of the messages
//! that it has got so far. A message after them needs no move: its portion has its state. So the
//! moves that a reader has applied are a state of the queue for the messages up to one position.

use super::event::{Move, MoveKind};
use super::id::QueueId;
use super::queues::Queues;
use super::state::QueueState;
use quire_journal::{Bookmark, Position};

impl Queues {
    /// Begins to follow the messages of a queue. Then call [`follow_next`](Self::follow_next) until
    /// it returns true.
    pub fn follow(&mut self, queue: QueueId) {
        if let Some(state) = self.live_mut(queue) {
            state.followed_to = Some(0);
        }
    }

    /// Makes moves of the next messages of a queue, at most `limit`. Returns true when there are no
    /// more; the last move of the queue is then [`MoveKind::Complete`].
    pub fn follow_next(&mut self, queue: QueueId, limit: usize) -> bool {
        let Queues { queues, moves, .. } = self;
        let Some(state) = queues.get_mut(queue.get() as usize).filter(|state| !state.is_removed) else {
            return true;
        };
        let Some(followed_to) = state.followed_to else { return true };
        let mut next = state.messages.first_after(followed_to);
        for _ in 0..limit {
            let Some(ordinal) = next else {
                state.followed_to = Some(u64::MAX);
                moves.push_back(Move {
                    queue,
                    position: Position::ZERO,
                    bookmark: None,
                    kind: MoveKind::Complete,
                });
                return true;
            };
            let position = state.messages.position(ordinal);
            state.followed_to = Some(position);
            if state.delays.until(ordinal).is_none() {
                let bookmark = state.messages.bookmark(ordinal);
                let position = Position::new(position);
                moves.push_back(Move { queue, position, bookmark, kind: MoveKind::Entered });
            }
            next = state.messages.next_present(ordinal + 1);
        }
        false
    }

    /// Ends [`follow`](Self::follow), and drops the moves of the queue.
    pub fn unfollow(&mut self, queue: QueueId) {
        if let Some(state) = self.live_mut(queue) {
            state.followed_to = None;
        }
        self.moves.retain(|moved| moved.queue != queue);
    }

    /// The next move of a queue that is followed, in order.
    pub fn next_move(&self) -> Option<Move> {
        self.moves.front().copied()
    }

    /// The next move was applied.
    pub fn pop_move(&mut self) {
        self.moves.pop_front();
    }

    /// The number of moves that were not applied.
    pub fn move_count(&self) -> usize {
        self.moves.len()
    }

    /// Notes the move of a message, when a reader needs it.
    #[inline]
    pub(super) fn note_move(
        &mut self,
        queue: u32,
        position: u64,
        bookmark: Option<Bookmark>,
        kind: MoveKind,
    ) {
        if self.queues[queue as usize].has_followed(position) {
            let (queue, position) = (QueueId::new(queue), Position::new(position));
            self.moves.push_back(Move { queue, position, bookmark, kind });
        }
    }
}

impl QueueState {
    /// Whether a reader needs the moves of the message at a position.
    #[inline]
    fn has_followed(&self, position: u64) -> bool {
        self.followed_to.is_some_and(|followed_to| position <= followed_to)
    }
}
