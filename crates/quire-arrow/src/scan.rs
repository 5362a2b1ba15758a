//! Reading a range of the log, batch by batch.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arrow_array::RecordBatch;
use arrow_schema::{ArrowError, SchemaRef};
use quire_expression::filter::MessageContext;
use quire_expression::message_type::{Arena, Malformed, MessageType, Value};
use quire_journal::{Cursor, JournalError, Position, Reader, Record, RecordKind, TopicFilter};
use quire_queue::BadChanges;

use crate::builder::{Row, Table, Texts, attribute_value};
use crate::counted_ranges::CountedRanges;
use crate::event::Event;
use crate::last_values::Positions;
use crate::plan::{Bounds, Compiled, Plan};

/// The batches of a range, in the order of the log. Ends after the first error.
pub struct Scan {
    plan: Plan,
    reader: Reader,
    cursor: Cursor,
    limit: Position,
    /// The messages that become rows, if not all do.
    positions: Option<Positions>,
    /// Messages that are counted without reading them.
    counted: CountedRanges,
    matcher: Matcher,
    table: Table,
    skipped: Vec<Skipped>,
    progress: Arc<ScanProgress>,
    is_done: bool,
}

/// The progress of a scan, for other threads. They can end the scan.
#[derive(Debug, Default)]
pub struct ScanProgress {
    /// Records that were read.
    pub records: AtomicU64,
    /// Batches of the log that were read.
    pub batches: AtomicU64,
    /// Bytes of these batches.
    pub bytes: AtomicU64,
    is_cancelled: AtomicBool,
}

impl ScanProgress {
    /// Ends the scan before it reads another batch of the log.
    pub fn cancel(&self) {
        self.is_cancelled.store(true, Ordering::Relaxed);
    }

    fn add(&self, batch: &quire_journal::Batch) {
        let records = batch.last().get() + 1 - batch.first().get();
        self.records.fetch_add(records, Ordering::Relaxed);
        self.batches.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(batch.size() as u64, Ordering::Relaxed);
    }
}

/// Records that were left out, because they cannot be read any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    /// The first position.
    pub first: Position,
    /// The last position.
    pub last: Position,
    /// Why.
    pub reason: String,
}

/// Why a range cannot be read.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ScanError {
    /// The journal.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The beginning of the range was removed from the log.
    #[error(
        "records {first} to {last} were asked for, but the log begins at {begins}: older files were removed"
    )]
    Removed {
        /// The first position of the range.
        first: Position,
        /// The last position of the range.
        last: Position,
        /// The first position of the log.
        begins: Position,
    },
    /// The range reaches beyond the end of the log, so the log is not the one for which it was
    /// planned.
    #[error(
        "records up to {last} were asked for, but the log ends at {ends}: it is not the log that this was planned on"
    )]
    Short {
        /// The last position of the range.
        last: Position,
        /// The last position of the log.
        ends: Position,
    },
    /// A column has no value, although the spec requires one.
    #[error(
        "column {column}: it is NOT NULL in the schema, but {null_count} of {row_count} messages have no value of its type; \
         leave out NOT NULL, or those messages by a filter"
    )]
    Null {
        /// Its name.
        column: String,
        /// Rows without a value, of one batch.
        null_count: usize,
        /// Rows of the batch.
        row_count: usize,
    },
    /// [`ScanProgress::cancel`].
    #[error("the scan was cancelled")]
    Cancelled,
    /// The columns do not form a batch.
    #[error("the batch cannot be built: {reason}")]
    Batch {
        /// The error of Arrow.
        reason: String,
    },
}

impl From<ArrowError> for ScanError {
    fn from(error: ArrowError) -> Self {
        ScanError::Batch { reason: error.to_string() }
    }
}

impl From<ScanError> for ArrowError {
    fn from(error: ScanError) -> Self {
        ArrowError::ExternalError(Box::new(error))
    }
}

impl Scan {
    pub(crate) fn new(
        plan: Plan,
        reader: &Reader,
        bounds: Bounds,
        positions: Option<Positions>,
    ) -> Result<Self, ScanError> {
        let Bounds { after, limit } = bounds;
        if reader.persisted() < limit {
            reader.refresh()?;
        }
        if reader.persisted() < limit {
            return Err(ScanError::Short { last: limit, ends: reader.persisted() });
        }
        let mut skipped = Vec::new();
        // Files of an open cursor are not removed. A call of the reader before that could return
        // files that are removed when they are read.
        let cursor = reader.cursor(after);
        let begins = cursor.after().next();
        if after.next() < begins && after < limit {
            let removed = ScanError::Removed { first: after.next(), last: limit, begins };
            if !plan.0.skips_damage {
                return Err(removed);
            }
            let last = limit.min(Position::new(begins.get() - 1));
            skipped.push(Skipped { first: after.next(), last, reason: removed.to_string() });
        }
        let counted = match positions {
            None => CountedRanges::find(&plan.0, reader, Bounds { after: after.max(cursor.after()), limit })?,
            Some(_) => CountedRanges::default(),
        };
        Ok(Scan {
            counted,
            matcher: Matcher::default(),
            table: Table::new(&plan.0),
            cursor,
            reader: reader.clone(),
            limit,
            positions,
            skipped,
            progress: Arc::default(),
            is_done: false,
            plan,
        })
    }

    /// The columns.
    pub fn schema(&self) -> SchemaRef {
        self.plan.schema()
    }

    /// The ranges that were left out so far because they cannot be read.
    pub fn skipped(&self) -> &[Skipped] {
        &self.skipped
    }

    /// Its progress, which can still be read after the scan.
    pub fn progress(&self) -> Arc<ScanProgress> {
        self.progress.clone()
    }

    /// Blocks that are not read because the index is sufficient, and their bytes.
    pub fn counted_blocks(&self) -> (u64, u64) {
        (self.counted.block_count, self.counted.size)
    }

    fn fill(&mut self) -> Result<(), ScanError> {
        let plan = self.plan.clone();
        let compiled = &*plan.0;
        while !self.table.is_full(compiled) && self.cursor.after() < self.limit {
            if self.progress.is_cancelled.load(Ordering::Relaxed) {
                return Err(ScanError::Cancelled);
            }
            if let Some(positions) = &self.positions {
                let Some(next) = positions.next() else { break };
                if next.get() > self.cursor.after().get() + JUMP_MIN {
                    self.jump(Position::new(next.get() - 1))?;
                }
            }
            let mut stop = self.limit;
            if let Some(counted) = self.counted.ranges.front() {
                stop = Position::new(counted.first.get() - 1);
                if stop == self.cursor.after() {
                    let last = counted.last;
                    self.table.append_counted(counted);
                    self.counted.ranges.pop_front();
                    self.jump(last)?;
                    continue;
                }
            }
            let batch = match self.cursor.next(stop, &compiled.topics) {
                Ok(Some(batch)) => batch,
                Ok(None) if stop < self.limit && self.cursor.after() == stop => continue,
                Ok(None) => break,
                Err(error) => {
                    self.skip(error)?;
                    continue;
                }
            };
            self.progress.add(&batch);
            let positions = &mut self.positions;
            let is_wanted = |record: &Record<'_>| {
                positions.as_mut().is_none_or(|positions| positions.take(record.position))
            };
            let records = batch.records().filter(is_wanted);
            if !compiled.includes_events && !compiled.includes_deletes {
                let messages = records.filter(|record| record.kind == RecordKind::Publish);
                self.matcher.rows(compiled, messages, &mut self.table);
                continue;
            }
            for record in records {
                let is_included = match record.kind {
                    RecordKind::Publish => {
                        self.matcher.row(compiled, &record, &mut self.table);
                        continue;
                    }
                    RecordKind::Acknowledge | RecordKind::Lease => compiled.includes_events,
                    RecordKind::Delete => compiled.includes_deletes,
                };
                if is_included {
                    for event in Event::of(&record) {
                        match event {
                            Ok(event) => self.matcher.event(compiled, &record, &event, &mut self.table),
                            Err(reason) => skip_record(&record, reason, compiled, &mut self.skipped)?,
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Continues after `after`.
    fn jump(&mut self, after: Position) -> Result<(), ScanError> {
        self.cursor = self.reader.cursor(after);
        let (first, begins) = (after.next(), self.cursor.after().next());
        if begins > first && first <= self.limit && !self.plan.0.skips_damage {
            return Err(ScanError::Removed { first, last: self.limit, begins });
        }
        Ok(())
    }

    /// If the spec allows it, continues after damage with the next block in the index, and after
    /// records that were removed in the meantime.
    fn skip(&mut self, error: JournalError) -> Result<(), ScanError> {
        if matches!(error, JournalError::Removed { .. }) {
            return self.skip_removed(error);
        }
        let is_damage = matches!(error, JournalError::Corrupt { .. } | JournalError::Unreadable { .. });
        if !self.plan.0.skips_damage || !is_damage {
            return Err(error.into());
        }
        let after = self.cursor.after();
        let mut next = None;
        self.reader.for_each_block_range(after, self.limit, &self.plan.0.topics, |range| {
            // The first range is the one with the damage.
            let is_behind = range.first > after.next();
            next = is_behind.then_some(range.first);
            if is_behind { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        let last = next.map_or(self.limit, |next| Position::new(next.get() - 1));
        self.skipped.push(Skipped { first: after.next(), last, reason: error.to_string() });
        self.cursor = self.reader.cursor(last);
        Ok(())
    }

    /// Continues with the first remaining record.
    fn skip_removed(&mut self, error: JournalError) -> Result<(), ScanError> {
        let after = self.cursor.after();
        self.reader.refresh()?;
        let cursor = self.reader.cursor(after);
        let begins = cursor.after().next();
        if begins == after.next() {
            return Err(error.into());
        }
        let removed = ScanError::Removed { first: after.next(), last: self.limit, begins };
        if !self.plan.0.skips_damage {
            return Err(removed);
        }
        let last = self.limit.min(cursor.after());
        self.skipped.push(Skipped { first: after.next(), last, reason: removed.to_string() });
        self.cursor = cursor;
        Ok(())
    }
}

impl Iterator for Scan {
    type Item = Result<RecordBatch, ScanError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.is_done {
            return None;
        }
        let filled = self.fill();
        self.is_done =
            filled.is_err() || self.cursor.after() >= self.limit || !self.table.is_full(&self.plan.0);
        if let Err(error) = filled {
            return Some(Err(error));
        }
        if self.table.row_count() == 0 {
            return None;
        }
        let batch = self.table.finish(&self.plan.0);
        self.is_done |= batch.is_err();
        Some(batch)
    }
}

/// Records between two wanted positions for which a search in the index is cheaper than reading
/// them.
const JUMP_MIN: u64 = 4096;

/// The rows whose columns are made together: few enough that the records stay in the cache until
/// the last column is made.
const ROWS_AT_ONCE: usize = 256;

/// Decides which records become rows, and reads the values of their columns from the data.
#[derive(Default)]
pub(crate) struct Matcher {
    topic: String,
    is_topic_wanted: bool,
    texts: Texts,
    /// The values that were read from the data.
    fields: Arena,
    /// Memory for the evaluation of the content filter.
    filtering: Arena,
    room: String,
}

impl Matcher {
    /// Makes rows of the records that are wanted.
    fn rows<'a>(
        &mut self,
        compiled: &Compiled,
        mut records: impl Iterator<Item = Record<'a>>,
        table: &mut Table,
    ) {
        let mut arena = std::mem::take(&mut self.fields);
        let mut waiting = None;
        loop {
            arena.reset();
            let room = records.size_hint().1.unwrap_or(ROWS_AT_ONCE).min(ROWS_AT_ONCE);
            let (mut rows, mut is_fresh) = (Vec::with_capacity(room), true);
            while rows.len() < ROWS_AT_ONCE && !arena.is_large() {
                let Some(record) = waiting.take().or_else(|| records.next()) else { break };
                if !self.wants(compiled, &record, None) {
                    continue;
                }
                let fields = read_fields(compiled, &record, &arena);
                if matches!(fields, Err(Malformed::TooLarge)) && !is_fresh {
                    // The values of other messages must not use its memory.
                    waiting = Some(record);
                    break;
                }
                is_fresh &= compiled.fields.is_empty();
                let fields = fields.unwrap_or_default();
                if self.holds(compiled, fields) {
                    rows.push(Row { record, fields, event: None });
                }
            }
            table.append(compiled, &rows);
            if rows.len() < ROWS_AT_ONCE && waiting.is_none() && !arena.is_large() {
                break;
            }
        }
        self.fields = arena;
    }

    /// Makes a row of the message, if it is wanted.
    pub fn row(&mut self, compiled: &Compiled, record: &Record<'_>, table: &mut Table) {
        self.rows(compiled, std::iter::once(*record), table);
    }

    /// Makes a row of one event in a record, if it is wanted.
    fn event(&mut self, compiled: &Compiled, record: &Record<'_>, event: &Event, table: &mut Table) {
        // An event has no fields.
        if self.wants(compiled, record, Some(event)) && self.holds(compiled, None) {
            table.append(compiled, &[Row { record: *record, fields: None, event: Some(event) }]);
        }
    }

    /// Whether the values from the data satisfy the conditions.
    fn holds(&mut self, compiled: &Compiled, fields: Option<&[Value<'_>]>) -> bool {
        compiled.field_predicates.iter().all(|(field, kind, predicate)| {
            let read = fields.and_then(|fields| fields.get(field.index()));
            predicate.holds(read.and_then(|read| kind.convert(*read, &mut self.room)))
        })
    }

    /// Whether topic, attributes and content satisfy the conditions.
    fn wants(&mut self, compiled: &Compiled, record: &Record<'_>, event: Option<&Event>) -> bool {
        if self.topic != record.topic || self.topic.is_empty() {
            self.topic.clear();
            self.topic.push_str(record.topic);
            self.is_topic_wanted = compiled.topics.wants(record.topic);
        }
        if !self.is_topic_wanted {
            return false;
        }
        for (attribute, predicate) in &compiled.attribute_predicates {
            if !predicate.holds(attribute_value(*attribute, record, &mut self.texts, event)) {
                return false;
            }
        }
        // A delete has no content, so it passes every filter, as in a replay.
        if let Some(filter) = &compiled.filter
            && record.kind != RecordKind::Delete
        {
            let (Some(message_type), None) = (MessageType::from_code(record.message_type), event) else {
                return false;
            };
            let context = MessageContext {
                message_type,
                data: record.data,
                topic: record.topic,
                key: record.key(),
                bookmark: Some(record.bookmark()),
                correlation_id: record.correlation_id,
                headers: record.headers(),
                timestamp: record.timestamp,
                now: compiled.now,
            };
            return filter.matches_with(&context, &mut self.filtering);
        }
        true
    }
}

/// If the spec allows it, leaves out the rest of a record of a queue that is damaged.
#[cold]
fn skip_record(
    record: &Record<'_>,
    reason: BadChanges,
    compiled: &Compiled,
    skipped: &mut Vec<Skipped>,
) -> Result<(), ScanError> {
    let position = record.position;
    let error = JournalError::LaterRecord { position, reason: reason.to_string() };
    if !compiled.skips_damage || reason != BadChanges::NotAList {
        return Err(error.into());
    }
    skipped.push(Skipped { first: position, last: position, reason: error.to_string() });
    Ok(())
}

/// The values that columns and predicates need from the data; `None` when the plan needs none, or
/// the message has no known type.
fn read_fields<'a>(
    compiled: &Compiled,
    record: &Record<'a>,
    arena: &'a Arena,
) -> Result<Option<&'a [Value<'a>]>, Malformed> {
    match MessageType::from_code(record.message_type) {
        Some(known) if !compiled.fields.is_empty() => {
            known.read(record.data, &compiled.fields, arena).map(Some)
        }
        _ => Ok(None),
    }
}
