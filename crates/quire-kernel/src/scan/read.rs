//! Reads a range of a journal without a broker, for programs and tools that have only the files.
//!
//! A [`Scan`] is a cursor together with its conditions: the places between which to read, topics, a
//! content filter. It reads in steps of limited size, so that the caller can check other things
//! between them (a signal, a deadline). Places have the same meaning as for a subscription: a range
//! begins after the first place, and includes the second. So adjacent ranges neither overlap nor
//! omit records.

use bytes::Bytes;
use quire_journal::{
    AllTopics, Batch, Cursor, JournalError, Position, Reader, Record, RecordKind, Timestamp, TopicFilter,
};

use super::record::{context_of, message_of};
use super::start::{BookmarkError, Start};
use crate::codec::Encoder;
use crate::entitlement::Nameable;
use quire_expression::filter::{Filter, FilterError, FilterOptions};
use quire_expression::message_type::Arena;
use quire_expression::topic::{TopicError, TopicSelector};

/// Bytes of records that one step examines. A scan for a rare topic must not delay other scans of
/// the thread for long.
pub const SCAN_SIZE_MAX: usize = 8 * 1024 * 1024;

/// What to read, as given by a user.
#[derive(Clone, Copy, Debug, Default)]
pub struct LogRange<'a> {
    /// Read the records after this place: `0`, a bookmark, a list of them (the oldest counts) or a
    /// time.
    pub after: &'a str,
    /// Up to and including this place; `None` = the last record that is persistent now.
    pub until: Option<&'a str>,
    /// One topic or a pattern; `None` = all.
    pub topic: Option<&'a str>,
    /// Content filter. Deletes pass it. Other records that are not messages do not.
    pub filter: Option<&'a str>,
}

/// Why a range cannot be read.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ScanError {
    /// The name is not a valid topic: an error of the caller.
    #[error(transparent)]
    Topic(#[from] TopicError),
    /// The filter cannot be parsed: an error of the caller.
    #[error("{}", .0.reason)]
    Filter(#[from] FilterError),
    /// The text does not name a place in a log: an error of the caller.
    #[error(transparent)]
    Bookmark(#[from] BookmarkError),
    /// The journal does not contain the place.
    #[error("{text:?} is not in this journal")]
    NotFound {
        /// The bookmark, or the list of them.
        text: String,
    },
    /// The journal cannot be read.
    #[error(transparent)]
    Journal(#[from] JournalError),
}

/// The position after which a range begins, and the position with which it ends. May read from the
/// disk.
///
/// # Errors
/// [`ScanError`], of places.
pub fn bounds(reader: &Reader, after: &str, until: Option<&str>) -> Result<(Position, Position), ScanError> {
    let held = reader.persisted();
    let limit = until.map_or(Ok(held), |until| locate(reader, until, held))?;
    Ok((locate(reader, after, held)?, limit))
}

/// A range that is being read.
pub struct Scan {
    cursor: Cursor,
    limit: Position,
    selector: Option<TopicSelector>,
    filter: Option<Filter>,
    /// Memory for the evaluation of the filter.
    arena: Arena,
}

impl Scan {
    /// Finds both ends. May read from the disk.
    ///
    /// # Errors
    /// All of [`ScanError`].
    pub fn new(reader: &Reader, range: &LogRange<'_>) -> Result<Self, ScanError> {
        let selector = range.topic.map(TopicSelector::new).transpose()?;
        let filter = range.filter.map(|text| Filter::parse(text, &FilterOptions::default())).transpose()?;
        let (after, limit) = bounds(reader, range.after, range.until)?;
        Ok(Scan { cursor: reader.cursor(after), limit, selector, filter, arena: Arena::default() })
    }

    /// Passes on every wanted record of the next step, of every kind, with its batch. Returns false
    /// when the end was reached.
    ///
    /// A step ends at the end of a batch, after `size` bytes of wanted records or a fixed number of
    /// scanned bytes. So a step may find no record although it is not the last step. `now` is the
    /// current time for functions of the filter.
    ///
    /// # Errors
    /// Damage. The records before it were returned.
    pub fn step(
        &mut self,
        now: Timestamp,
        size: usize,
        mut take: impl FnMut(&Record<'_>, &Batch),
    ) -> Result<bool, JournalError> {
        let (mut looked_at, mut taken) = (0, 0);
        while looked_at < SCAN_SIZE_MAX && taken < size {
            let batch = match &self.selector {
                Some(selector) => self.cursor.next(self.limit, &Selected(selector))?,
                None => self.cursor.next(self.limit, &AllTopics)?,
            };
            let Some(batch) = batch else { return Ok(false) };
            looked_at += batch.size();
            for record in batch.records() {
                if self.wants(&record, now) {
                    taken += record.data.len() + record.topic.len();
                    take(&record, &batch);
                }
            }
        }
        Ok(true)
    }

    /// As [`Scan::step`], but only messages: the bodies of their `message` frames, as a client
    /// receives them.
    ///
    /// # Errors
    /// As [`Scan::step`].
    pub fn messages(&mut self, now: Timestamp, size: usize) -> (Vec<Bytes>, Result<bool, JournalError>) {
        let mut frames = Vec::new();
        let mut starts = Vec::new();
        let result = self.step(now, size, |record, _| {
            if record.kind == RecordKind::Publish {
                starts.push(frames.len());
                Encoder::Quire.put_message(&message_of(record, 0), &mut frames);
            }
        });
        let frames = Bytes::from(frames);
        let ends = starts.iter().skip(1).copied().chain([frames.len()]);
        let bodies =
            starts.iter().zip(ends).map(|(start, end)| frames.slice(start + Encoder::Quire.head_size()..end));
        (bodies.collect(), result)
    }

    fn wants(&mut self, record: &Record<'_>, now: Timestamp) -> bool {
        self.selector.as_ref().is_none_or(|selector| selector.matches(record.topic))
            && self.filter.as_ref().is_none_or(|filter| match record.kind {
                // It has no content. A reader that maintains a copy of the records needs it.
                RecordKind::Delete => true,
                RecordKind::Publish => context_of(record, now)
                    .is_some_and(|context| filter.matches_with(&context, &mut self.arena)),
                RecordKind::Acknowledge | RecordKind::Lease => false,
            })
    }
}

/// The place after the start that the text names.
fn locate(reader: &Reader, text: &str, held: Position) -> Result<Position, ScanError> {
    let start: Start = text.parse()?;
    let found = start.locate(reader, held, false, &Nameable::default())?;
    found.ok_or_else(|| ScanError::NotFound { text: text.chars().take(64).collect() })
}

struct Selected<'a>(&'a TopicSelector);

impl TopicFilter for Selected<'_> {
    fn wants(&self, topic: &str) -> bool {
        self.0.matches(topic)
    }
}
