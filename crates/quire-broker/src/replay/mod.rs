//! Replays: reading the log for bookmark subscriptions that have not caught up.
//!
//! A replay serves one subscription, or several that were resumed together: from the lowest of their places on, and each after its own. It never reads itself: the broker makes a
//! [`Reading`] a background job (`broker/work.rs`). A read matches and encodes. It returns frames that are ready to be sent, up to a stated
//! size, and the place after them.

mod decide;
mod rate;
mod read;

use quire_journal::{Cursor, JournalError, Position};

pub(crate) use decide::{Answer, OwnedMessage, Question, Verdict, decide_all};
pub use rate::{Pace, Rate, RateError};
pub(crate) use read::{Chunk, Found, Item, Located, Reading};

pub(crate) use crate::ids::ReplayId;

use crate::session::SessionId;
use crate::subscription::{Members, SubscriptionId};
use quire_types::time::Instant;

/// Bytes of frames after which a read ends. The size is large, so that the fixed cost of a read is small.
pub(crate) const CHUNK_SIZE_MAX: usize = 256 * 1024;

/// The same for a replay with a rate, which may have to wait for long with its data. It is larger when the rate needs more.
pub(crate) const PACED_CHUNK_SIZE_MIN: usize = 32 * 1024;

/// A place in the log, exact to one message for one member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ReplayPosition {
    /// Everything up to here was served to every member.
    pub(crate) after: Position,
    /// The record after `after` was served to this many members.
    pub(crate) served: u32,
}

/// One pass over the log.
pub(crate) struct Replay {
    pub(crate) session: SessionId,
    pub(crate) subscriptions: Vec<SubscriptionId>,
    pub(crate) members: Members,
    /// The place up to which messages were handed to the connection.
    pub(crate) place: ReplayPosition,
    /// The place up to which messages were read, or are being read: at or ahead of `place`.
    pub(crate) read_position: ReplayPosition,
    /// Where reading continues. Not here while a read is in progress, and gone after a change of plan.
    pub(crate) cursor: Option<Cursor>,
    /// The number of the read under way.
    pub(crate) reading: Option<u64>,
    /// Read, not yet handed on.
    pub(crate) ready: Option<Chunk>,
    /// It is in the line for a read.
    pub(crate) is_queued: bool,
    /// Why the log after the ready chunk cannot be read.
    pub(crate) error: Option<JournalError>,
    /// The member whose filter takes too much effort for the message after the ready chunk, and the size of that message.
    pub(crate) costly: Option<(usize, usize)>,
    /// How fast it may go; its subscriptions share it.
    pub(crate) pace: Option<Box<Pace>>,
    /// Its last read on the loop ended at a message whose filter takes too much effort for that: the next one is run elsewhere.
    pub(crate) is_heavy: bool,
    /// Bytes of frames after which its reads end.
    pub(crate) chunk_size_max: usize,
    /// Until then they do not become more.
    pub(crate) throttled_until: Instant,
    /// It gets what the sync destinations have persisted, too.
    pub(crate) is_durable: bool,
}

impl Replay {
    /// Forgets the data that was read ahead. The next read begins at `place`. The result of a read in progress is dropped when it arrives.
    pub(crate) fn rewind(&mut self) {
        self.read_position = self.place;
        self.cursor = None;
        self.reading = None;
        self.ready = None;
        self.error = None;
        self.costly = None;
    }

    /// How fast it may go.
    pub(crate) fn rate(&self) -> Option<Rate> {
        self.pace.as_ref().map(|pace| pace.rate)
    }

    /// How far the member at `index` has come.
    pub(crate) fn after(&self, index: usize) -> Position {
        let ahead = u64::from((index as u32) < self.place.served);
        Position::new(self.place.after.get() + ahead)
    }
}
