//! A journal to which several threads append, without a broker. It has a clock, and makes callers
//! wait when the disk is slower.

use std::path::Path;
use std::time::Duration;

use parking_lot::Mutex;
use quire_journal::{
    Appended, AttributesBuffer, Bookmark, FileMaintenance, Headers, Journal, JournalError, NewAttributes,
    NewRecord, Options, Position, PublisherId, Reader, RecordKind, Recovery, RecoveryProgress,
};
use quire_types::check_topic_name;

use crate::clock::Clock;

/// A journal that is open for appending.
pub struct SharedJournal {
    /// `None` once it is closed.
    inner: Mutex<Option<Inner>>,
    reader: Reader,
    clock: Clock,
}

struct Inner {
    journal: Journal,
    /// As [`Options::unpersisted_size_max`].
    unpersisted_size_max: usize,
    /// The last position at which less than half of the limit waited for the disk. When it is
    /// persistent, appending continues.
    half: Position,
}

/// The parts that the records of one call to [`SharedJournal::append`] have in common.
#[derive(Clone, Copy, Debug)]
pub struct Head<'a> {
    /// Where they are published.
    pub topic: &'a str,
    /// Code of the message type of their data.
    pub message_type: u8,
    /// The publisher of the records.
    pub publisher: PublisherId,
    /// Recorded as it is; at most 255 bytes.
    pub correlation_id: &'a [u8],
    /// Their headers.
    pub headers: Headers<'a>,
    /// Lifetime in seconds, 0 = never expires; `None` = not given.
    pub expiration_s: Option<u32>,
}

impl SharedJournal {
    /// Opens, or begins, the journal in a directory, and recovers it.
    ///
    /// # Errors
    /// As [`Journal::open`].
    pub fn open(
        directory: &Path,
        options: &Options,
        on_progress: &mut dyn FnMut(RecoveryProgress),
    ) -> Result<(Self, Recovery), JournalError> {
        let (journal, recovery) = Journal::open(directory, options, on_progress)?;
        let (reader, half) = (journal.reader(), journal.appended());
        let unpersisted_size_max = options.unpersisted_size_max;
        let inner = Mutex::new(Some(Inner { journal, unpersisted_size_max, half }));
        Ok((SharedJournal { inner, reader, clock: Clock::start() }, recovery))
    }

    /// Appends as many of `data` as there is room for, in order, and starts to write them. Call it
    /// again with the rest after [`SharedJournal::wait_for_room`].
    ///
    /// The first record gets the number `sequence`, and the others the numbers after it. `None` =
    /// the numbers after the highest of the publisher. For each record that was processed,
    /// `bookmarks` gets its bookmark, or `None` for a duplicate, which is dropped.
    ///
    /// # Errors
    /// Why a record, or any record, is not taken. The records before it were taken.
    /// [`JournalError::Topic`] for a topic that a server would refuse, too.
    /// [`JournalError::SequencesEnd`] when no number is left for a record.
    pub fn append<'a>(
        &self,
        head: &Head<'_>,
        sequence: Option<u64>,
        data: impl IntoIterator<Item = &'a [u8]>,
        bookmarks: &mut Vec<Option<Bookmark>>,
    ) -> Result<(), JournalError> {
        check_topic_name(head.topic)?;
        let mut attributes = AttributesBuffer::default();
        let mut inner = self.inner.lock();
        let Inner { journal, unpersisted_size_max, half } = inner.as_mut().ok_or(JournalError::Closed)?;
        // The journal would hold the error back until there is room. The caller must get it at
        // once.
        if let Some(stall) = journal.stall() {
            return Err(stall);
        }
        let timestamp = self.clock.now().wall;
        let received = (timestamp < journal.last_timestamp()).then_some(timestamp);
        attributes.encode(&NewAttributes { headers: head.headers, received, ..NewAttributes::default() })?;
        let mut next = match sequence {
            Some(sequence) => Some(sequence),
            None => journal.highest_sequence(head.publisher).unwrap_or(0).checked_add(1),
        };
        let mut result = Ok(());
        for data in data {
            let Some(sequence) = next else {
                result = Err(JournalError::SequencesEnd { publisher: head.publisher });
                break;
            };
            if journal.unpersisted_bytes() < *unpersisted_size_max / 2 {
                *half = journal.appended();
            }
            let record = NewRecord {
                kind: RecordKind::Publish,
                message_type: head.message_type,
                publisher: head.publisher,
                sequence,
                timestamp,
                topic: head.topic,
                correlation_id: head.correlation_id,
                expiration_s: head.expiration_s,
                attributes: attributes.attributes(),
                data,
            };
            bookmarks.push(match journal.append(&record) {
                Ok(Appended::Recorded(_)) => Some(Bookmark { publisher: head.publisher, sequence }),
                Ok(Appended::Duplicate { .. }) => None,
                Err(JournalError::Behind { .. }) => {
                    if *half <= journal.persisted() {
                        *half = journal.appended();
                    }
                    break;
                }
                Err(error) => {
                    result = Err(error);
                    break;
                }
            });
            next = sequence.checked_add(1);
        }
        journal.submit();
        result
    }

    /// Waits up to `timeout` for room after an append that did not take everything. Returns false
    /// when there is still no room.
    ///
    /// # Errors
    /// Why the journal takes no more writes.
    pub fn wait_for_room(&self, timeout: Duration) -> Result<bool, JournalError> {
        let half = self.inner.lock().as_ref().ok_or(JournalError::Closed)?.half;
        self.wait_persisted(half, timeout)
    }

    /// The position of the last record appended.
    ///
    /// # Errors
    /// [`JournalError::Closed`].
    pub fn appended(&self) -> Result<Position, JournalError> {
        self.inner.lock().as_ref().map(|inner| inner.journal.appended()).ok_or(JournalError::Closed)
    }

    /// Waits up to `timeout` until `position` is persistent, and returns whether it is. Other
    /// threads can append during the wait.
    ///
    /// # Errors
    /// Why it will never be persistent.
    pub fn wait_persisted(&self, position: Position, timeout: Duration) -> Result<bool, JournalError> {
        match self.reader.wait_persisted(position, timeout) {
            Ok(()) => Ok(true),
            Err(JournalError::TimedOut) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The highest sequence of the publisher; 0 = none.
    ///
    /// # Errors
    /// [`JournalError::Closed`].
    pub fn highest_sequence(&self, publisher: PublisherId) -> Result<u64, JournalError> {
        let inner = self.inner.lock();
        let journal = &inner.as_ref().ok_or(JournalError::Closed)?.journal;
        Ok(journal.highest_sequence(publisher).unwrap_or(0))
    }

    /// Archives, compresses and removes full files, on any thread.
    ///
    /// # Errors
    /// [`JournalError::Closed`].
    pub fn maintenance(&self) -> Result<FileMaintenance, JournalError> {
        self.inner.lock().as_ref().map(|inner| inner.journal.maintenance()).ok_or(JournalError::Closed)
    }

    /// Read access.
    pub fn reader(&self) -> Reader {
        self.reader.clone()
    }

    /// Makes everything appended persistent and marks a clean stop. A second call has no effect.
    ///
    /// # Errors
    /// Why not all of it could be made persistent.
    pub fn close(&self) -> Result<(), JournalError> {
        let inner = self.inner.lock().take();
        inner.map_or(Ok(()), |inner| inner.journal.close())
    }
}
