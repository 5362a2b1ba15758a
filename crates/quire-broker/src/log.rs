//! The log as the parts of the broker see it, and how far it has come.
//!
//! Four positions follow each other. An *appended* record has its place in the log. A *persisted* record is on the disk. An *acknowledged*
//! record may be reported to publishers and commands as safe. A *visible* record may be handed to consumers of the log. Only this module
//! decides the latter two: today both are the persisted position. A *served* record has been handed to every consumer.

use quire_journal::{Appended, Journal, JournalError, NewRecord, Position, PublisherId, Reader, Timestamp};

use super::failure::Failure;

/// See the module's documentation.
pub(crate) struct Log {
    pub(crate) journal: Journal,
    pub(crate) reader: Reader,
    pub(crate) failure: Option<Failure>,
    /// Publishers were not notified of the failure yet.
    pub(crate) is_failure_news: bool,
    /// The last timestamp given to a record.
    pub(crate) stamped: Timestamp,
    /// Every consumer was handed everything up to here.
    pub(crate) served: Position,
}

impl Log {
    pub(crate) fn new(journal: Journal) -> Self {
        Log {
            reader: journal.reader(),
            served: journal.persisted(),
            // The journal gives no record an earlier time. Subscribers and last-value topics have the same time as the log.
            stamped: journal.last_timestamp(),
            journal,
            failure: None,
            is_failure_news: false,
        }
    }

    /// The last position that was given to a record.
    #[inline]
    pub(crate) fn appended(&self) -> Position {
        self.journal.appended()
    }

    /// The position up to which messages may be reported as safe to publishers and commands.
    #[inline]
    pub(crate) fn acknowledged(&self) -> Position {
        self.journal.persisted()
    }

    /// The position up to which consumers and readers get records.
    #[inline]
    pub(crate) fn visible(&self) -> Position {
        self.journal.persisted()
    }

    /// Whether everything appended is acknowledged.
    pub(crate) fn is_settled(&self) -> bool {
        self.acknowledged() == self.appended()
    }

    /// Bytes of records that were appended and are not persisted yet.
    pub(crate) fn unpersisted_size(&self) -> usize {
        self.journal.unpersisted_bytes()
    }

    /// The highest sequence of a publisher that the log knows.
    pub(crate) fn highest_sequence(&self, publisher: PublisherId) -> Option<u64> {
        self.journal.highest_sequence(publisher)
    }

    /// The sequence that the next record gets when its publisher gives it none.
    pub(crate) fn next_sequence(&self, publisher: PublisherId) -> u64 {
        let highest = self.journal.highest_sequence(publisher).unwrap_or_default();
        self.appended().next().get().max(highest.saturating_add(1))
    }

    /// The time for the next record: `now`, or that of the record before when the wall clock was set back.
    #[inline]
    pub(crate) fn stamp(&mut self, now: Timestamp) -> Timestamp {
        self.stamped = self.stamped.max(now);
        self.stamped
    }

    /// Appends a record to the open batch.
    ///
    /// # Errors
    /// The error of the journal. The caller reports it with [`Context::fail`](super::context::Context::fail).
    pub(crate) fn append(&mut self, record: &NewRecord<'_>) -> Result<Appended, JournalError> {
        self.journal.append(record)
    }
}
