//! Replays: reading the log for bookmark subscriptions that have not caught up.
//!
//! A replay serves one subscription, or several that were resumed together: from the lowest of
//! their places on, and each after its own. It never reads itself: the broker makes a [`Reading`] a
//! background job (`broker/work.rs`). A read matches and encodes. It returns frames that are ready
//! to be sent, up to a stated size, and the place after them.

mod decide;
mod rate;
mod read;

use quire_journal::{Cursor, JournalError, Position};

pub use decide::{Answer, OwnedMessage, Question, Verdict, decide_all};
pub use rate::{Pace, Rate, RateError};
pub use read::{Chunk, Found, Item, Located, Reading};

pub use crate::ids::ReplayId;

use crate::session::SessionId;
use crate::subscription::{Members, SubscriptionId};
use quire_types::time::Instant;

/// Bytes of frames after which a read ends. The size is large, so that the fixed cost of a read is
/// small.
pub const CHUNK_SIZE_MAX: usize = 256 * 1024;

/// The same for a replay with a rate, which may have to wait for long with its data. It is larger
/// when the rate needs more.
pub const PACED_CHUNK_SIZE_MIN: usize = 32 * 1024;

/// A place in the log, exact to one message for one member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ReplayPosition {
    /// Everything up to here was served to every member.
    pub after: Position,
    /// The record after `after` was served to this many members.
    pub served: u32,
}

/// One pass over the log.
pub struct Replay {
    pub session: SessionId,
    pub subscriptions: Vec<SubscriptionId>,
    pub members: Members,
    /// The place up to which messages were handed to the connection.
    pub place: ReplayPosition,
    /// The place up to which messages were read, or are being read: at or ahead of `place`.
    pub read_position: ReplayPosition,
    /// Where reading continues. Not here while a read is in progress, and gone after a change of
    /// plan.
    pub cursor: Option<Cursor>,
    /// The number of the read under way.
    pub reading: Option<u64>,
    /// Read, not yet handed on.
    pub ready: Option<Chunk>,
    /// It is in the line for a read.
    pub is_queued: bool,
    /// Why the log after the ready chunk cannot be read.
    pub error: Option<JournalError>,
    /// The member whose filter takes too much effort for the message after the ready chunk, and the
    /// size of that message.
    pub costly: Option<(usize, usize)>,
    /// How fast it may go; its subscriptions share it.
    pub pace: Option<Box<Pace>>,
    /// Its last read on the loop ended at a message whose filter takes too much effort for that:
    /// the next one is run elsewhere.
    pub is_heavy: bool,
    /// Bytes of frames after which its reads end.
    pub chunk_size_max: usize,
    /// Until then they do not become more.
    pub throttled_until: Instant,
    /// It gets what the sync destinations have persisted, too.
    pub is_durable: bool,
}

impl Replay {
    /// Forgets the data that was read ahead. The next read begins at `place`. The result of a read
    /// in progress is dropped when it arrives.
    pub fn rewind(&mut self) {
        self.read_position = self.place;
        self.cursor = None;
        self.reading = None;
        self.ready = None;
        self.error = None;
        self.costly = None;
    }

    /// How fast it may go.
    pub fn rate(&self) -> Option<Rate> {
        self.pace.as_ref().map(|pace| pace.rate)
    }

    /// How far the member at `index` has come.
    pub fn after(&self, index: usize) -> Position {
        let ahead = u64::from((index as u32) < self.place.served);
        Position::new(self.place.after.get() + ahead)
    }
}
