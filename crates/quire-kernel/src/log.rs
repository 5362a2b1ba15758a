//! The log as the parts of the broker see it, and its positions.
//!
//! Four positions follow each other. An *appended* record has a position in the log. A *persisted*
//! record is on the disk. A *visible* record is persisted, and may be handed to consumers of the
//! log. A *served* record was handed to every consumer. A record is *safe*, and may be reported to
//! its publisher, when it is served here, and persisted on the sync destinations that it goes to
//! (`replicated.rs`). A publisher that waits for this report finds its message in the queues.

use std::num::NonZeroU64;
use std::time::Duration;

use quire_journal::{
    AllTopics, Appended, Bookmark, Held, Journal, JournalError, NewRecord, Position, PublisherId, Reader,
    Timestamp,
};

use super::entitlement::Nameable;
use super::failure::Failure;
use super::replicated::{Destinations, Replicated};
use quire_link::Places;
use quire_types::time::{Instant, Now};

/// The bytes that wait for the disk count as a single publish up to this size. More bytes are from
/// publishers that do not wait for each message. Subscribers must keep up with such publishers.
const LONE_SIZE_MAX: usize = 8 * 1024;

/// The longest pause of a replay, and of a link. With full chunks a replay still reads 256 MB/s,
/// which is more than single publishes can produce meanwhile.
pub const YIELD_MAX: Duration = Duration::from_millis(1);

/// Smaller steps of the clock are not reported, because time synchronization causes them.
const SETBACK_MIN: Duration = Duration::from_secs(1);

/// The shortest time between two reports.
const SETBACK_INTERVAL: Duration = Duration::from_secs(60);

/// See the module's documentation.
pub struct Log {
    pub journal: Journal,
    pub reader: Reader,
    /// The positions of the destinations.
    pub replicated: Replicated,
    /// Records may be received from other instances, or sent to them.
    pub has_links: bool,
    /// The number of the log; 0: it has no links.
    pub number: u64,
    /// The places of other instances at points of the log.
    pub places: Places,
    pub failure: Option<Failure>,
    /// Publishers were not notified of the failure yet.
    pub is_failure_news: bool,
    /// The last timestamp given to a record.
    pub stamped: Timestamp,
    /// The clock shows an earlier time than `stamped`, and this was reported.
    is_clock_behind: bool,
    /// No report before.
    setback_due: Instant,
    /// The position up to which every consumer has received all records. It is never above the
    /// persisted position, which can move in the middle of a turn.
    pub served: Position,
    /// Records that a service announced and will append.
    pub announced: Announced,
}

/// Records that will be appended, in the order of their announcements. A flush waits for the
/// records that were announced before it, because they belong to commands that were answered.
#[derive(Default)]
pub struct Announced {
    count: u64,
    /// The number of the first records that are in the log, or that will never be appended.
    done: u64,
}

impl Announced {
    /// Announces one more record, and returns its number. Numbers begin with 1.
    pub fn add(&mut self) -> u64 {
        self.count += 1;
        self.count
    }

    /// The records before this number are done; `None`: all records are done.
    pub fn set_next(&mut self, next: Option<u64>) {
        self.done = next.map_or(self.count, |next| next - 1);
    }

    /// The number of the last record, unless all are done.
    pub fn last(&self) -> Option<NonZeroU64> {
        NonZeroU64::new(self.count).filter(|_| self.done < self.count)
    }

    /// Whether all records up to this number are done.
    pub fn is_done(&self, number: NonZeroU64) -> bool {
        self.done >= number.get()
    }
}

/// An instant of the log: a time, and the message with this time when a message was named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    pub time: Timestamp,
    pub position: Option<Position>,
}

/// The position and the time of the message that a bookmark names; `None` when the log does not
/// have it. May read from the disk.
pub fn find_moment(
    reader: &Reader,
    bookmark: Bookmark,
    nameable: &Nameable,
) -> Result<Option<Moment>, JournalError> {
    let Some(position) = nameable.find(reader, bookmark)? else { return Ok(None) };
    let mut cursor = reader.cursor(Position::new(position.get() - 1)).sparingly();
    let Some(batch) = cursor.next(position, &AllTopics)? else { return Ok(None) };
    let record = batch.records().find(|record| record.position == position);
    Ok(record.map(|record| Moment { time: record.timestamp, position: Some(position) }))
}

impl Log {
    pub fn new(journal: Journal) -> Self {
        Log {
            reader: journal.reader(),
            served: journal.persisted(),
            // The journal never gives a record an earlier time. So subscribers and last-value
            // topics see the same time as the log.
            stamped: journal.last_timestamp(),
            is_clock_behind: false,
            setback_due: Instant::default(),
            journal,
            replicated: Replicated::default(),
            has_links: false,
            number: 0,
            places: Places::default(),
            failure: None,
            is_failure_news: false,
            announced: Announced::default(),
        }
    }

    /// The last position that was given to a record.
    #[inline]
    pub fn appended(&self) -> Position {
        self.journal.appended()
    }

    /// Whether a record that was published here, and is sent to these destinations, may be reported
    /// as safe to its publisher.
    #[inline]
    pub fn is_safe(&self, position: Position, destinations: Destinations) -> bool {
        position <= self.answerable() && self.replicated.has(position, 0, destinations)
    }

    /// The position up to which the records that publishers wait for may be reported to them. With
    /// a failed journal, this includes persisted records that are not served yet, because they
    /// would be reported as failed otherwise.
    #[inline]
    pub fn answerable(&self) -> Position {
        if self.failure.is_some() { self.journal.persisted() } else { self.served }
    }

    /// Whether a record that has passed `hops` instances, and is sent to these destinations, may be
    /// reported as persisted to the instance that sent it.
    #[inline]
    pub fn is_persisted_after(&self, position: Position, hops: u8, destinations: Destinations) -> bool {
        position <= self.journal.persisted() && self.replicated.has(position, hops, destinations)
    }

    /// The position up to which all records are persisted here and on their destinations.
    pub fn replicated(&self) -> Position {
        self.replicated.everywhere(self.journal.persisted())
    }

    /// The position up to which consumers and readers receive records.
    #[inline]
    pub fn visible(&self) -> Position {
        self.journal.persisted()
    }

    /// The position up to which a replay receives records. A durable replay waits for the sync
    /// destinations.
    pub fn replay_end(&self, is_durable: bool) -> Position {
        if is_durable { self.served.min(self.replicated()) } else { self.served }
    }

    /// Whether all appended records are persisted.
    #[inline]
    pub fn is_settled(&self) -> bool {
        self.journal.persisted() == self.appended()
    }

    /// Bytes of records that were appended and are not persisted yet.
    #[inline]
    pub fn unpersisted_size(&self) -> usize {
        self.journal.unpersisted_bytes()
    }

    /// Whether any bytes wait for the disk.
    #[inline]
    pub fn has_publishes(&self) -> bool {
        self.unpersisted_size() > 0 && self.failure.is_none()
    }

    /// Whether a small number of bytes waits for the disk. Readers with a lag pause for it, for
    /// [`YIELD_MAX`] at most.
    pub fn has_lone_publish(&self) -> bool {
        self.has_publishes() && self.unpersisted_size() <= LONE_SIZE_MAX
    }

    /// The highest sequence of a publisher in the log.
    pub fn highest_sequence(&self, publisher: PublisherId) -> Option<u64> {
        self.journal.highest_sequence(publisher)
    }

    /// Whether all sequences of a publisher after `persisted`, up to its highest one, are of one
    /// run. Without replication, the log knows no runs.
    pub fn has_all_after(&self, publisher: PublisherId, persisted: u64, run: u64) -> bool {
        let known = (self.has_links && run != 0).then(|| self.journal.current_run(publisher));
        let other = known.filter(|known| *known != 0);
        other.is_none_or(|known| {
            known == run && self.journal.run_begin(publisher) <= persisted.saturating_add(1)
        })
    }

    /// The first sequence of a publisher after `persisted` that the log may lack although it has
    /// later ones, when a message of this run could have it. Without replication, the log knows of
    /// none.
    pub fn first_lacking_after(&self, publisher: PublisherId, persisted: u64, run: u64) -> Option<u64> {
        if !self.has_links {
            return None;
        }
        let current = self.journal.current_run(publisher);
        let is_own = run == 0 || current == 0 || run == current;
        self.journal.first_lacking_after(publisher, persisted).filter(|_| is_own)
    }

    /// Whether the log may lack a message although it has later ones of its publisher.
    pub fn may_lack(&self, bookmark: Bookmark) -> bool {
        self.has_links && self.journal.hole_at(bookmark).is_some()
    }

    /// As [`Log::may_lack`], when this is certain.
    pub fn lacks(&self, bookmark: Bookmark) -> bool {
        self.has_links && self.journal.held(bookmark) == Held::Missing
    }

    /// The sequence of the next record when its publisher sends none.
    pub fn next_sequence(&self, publisher: PublisherId) -> u64 {
        let highest = self.journal.highest_sequence(publisher).unwrap_or_default();
        self.appended().next().get().max(highest.saturating_add(1))
    }

    /// The time for the next record: `now`, or the time of the previous record when the wall clock
    /// was set back. Lifetimes count from `now`
    /// ([`NewAttributes::received`](quire_journal::NewAttributes::received)).
    #[inline]
    pub fn stamp(&mut self, now: Timestamp) -> Timestamp {
        self.stamped = self.stamped.max(now);
        self.stamped
    }

    /// Returns the difference between the time of the last record and the clock, when it must be
    /// reported: once each time that the clock was set back, and at most once per
    /// [`SETBACK_INTERVAL`].
    #[inline]
    pub fn look_at_clock(&mut self, now: Now) -> Option<Duration> {
        if now.wall >= self.stamped {
            self.is_clock_behind = false;
            return None;
        }
        let behind = Duration::from_nanos(self.stamped.as_ns() - now.wall.as_ns());
        let is_news = behind >= SETBACK_MIN && !self.is_clock_behind && self.setback_due <= now.instant;
        if !is_news {
            return None;
        }
        self.is_clock_behind = true;
        self.setback_due = now.instant + SETBACK_INTERVAL;
        Some(behind)
    }

    /// As [`Log::append`], for a record of another instance that the log lacks. It may be below the
    /// highest sequence of its publisher.
    ///
    /// # Errors
    /// As [`Log::append`].
    pub fn append_late(&mut self, record: &NewRecord<'_>) -> Result<Appended, JournalError> {
        self.journal.append_late(record)
    }

    /// Appends a record to the open batch.
    ///
    /// # Errors
    /// The error of the journal. The caller reports it with
    /// [`Context::fail`](super::context::Context::fail).
    #[inline]
    pub fn append(&mut self, record: &NewRecord<'_>) -> Result<Appended, JournalError> {
        self.journal.append(record)
    }
}
