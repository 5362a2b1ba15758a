//! Replays read the log for bookmark subscriptions that have not caught up.
//!
//! A replay serves one subscription, or several that were resumed together. It begins at the lowest
//! of their places, and each subscription receives the messages after its own place. A replay never
//! reads itself: the broker runs a [`Reading`] as a background job (`broker/work.rs`). A read
//! matches and encodes. It returns frames that are ready to be sent, up to a given size, and the
//! place after them.

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

/// The same for a replay with a rate, which may hold its data for a long time. It is larger when
/// the rate requires more.
pub const PACED_CHUNK_SIZE_MIN: usize = 32 * 1024;

/// A place in the log, with the precision of one message for one member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ReplayPosition {
    /// All records up to this position were served to every member.
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
    /// Where reading continues; `None` while a read is in progress, and after
    /// [`rewind`](Self::rewind).
    pub cursor: Option<Cursor>,
    /// The number of the read in progress.
    pub reading: Option<u64>,
    /// The chunk that was read and not yet delivered.
    pub ready: Option<Chunk>,
    /// The replay waits in the queue for a read.
    pub is_queued: bool,
    /// Why the log after the ready chunk cannot be read.
    pub error: Option<JournalError>,
    /// The member whose filter takes too much effort for the message after the ready chunk, and the
    /// size of that message.
    pub costly: Option<(usize, usize)>,
    /// The limit of its rate, which its subscriptions share.
    pub pace: Option<Box<Pace>>,
    /// Its last read on the loop ended at a message whose filter takes too much effort for the
    /// loop. The next read runs on another thread.
    pub is_heavy: bool,
    /// Bytes of frames after which its reads end.
    pub chunk_size_max: usize,
    /// Until this instant, the size does not increase.
    pub throttled_until: Instant,
    /// The replay receives only records that the sync destinations have also persisted.
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

    /// The limit of its rate.
    pub fn rate(&self) -> Option<Rate> {
        self.pace.as_ref().map(|pace| pace.rate)
    }

    /// The place of the member at `index`.
    pub fn after(&self, index: usize) -> Position {
        let ahead = u64::from((index as u32) < self.place.served);
        Position::new(self.place.after.get() + ahead)
    }
}
