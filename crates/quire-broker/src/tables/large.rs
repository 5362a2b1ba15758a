//! Large messages. A reader thread prepares them, so that no other connection waits for them.
//!
//! Reading a message of a million fields takes a tenth of a second, and writing fields into it
//! takes several. So a message of more than [`TURN_SIZE_MAX`] bytes, and a delta onto a record of
//! more bytes, is prepared in two jobs, and the commands of its connection wait:
//!
//! 1. its key, which depends on the message alone;
//! 2. its constructed fields, its merge with a copy of the record of that key, and its entries in
//!    the indexes.
//!
//! After each job, the intake takes the message again from the beginning, with the [`Preparation`].
//! If the record has changed meanwhile, the second job runs again. After [`ATTEMPTS_MAX`] jobs, the
//! turn does this work.

use std::sync::Arc;

use quire_expression::message_type::Arena;
use quire_journal::{Position, Timestamp};
use quire_table::{EntryReader, Key, Row, RowEntries};

use super::prepare::{Arriving, Message, Prepared, note_missing};
use super::{TableState, Tables};
use crate::config::tables::TableDefinition;
use crate::context::Context;
use crate::topic::TableId;

/// The most bytes of a message, and of a record, that a turn reads field by field. It takes up to
/// some milliseconds.
pub(crate) const TURN_SIZE_MAX: usize = 128 * 1024;

/// The most second jobs for one message. More changes, each in the time of a job, mean that other
/// clients change the record constantly.
const ATTEMPTS_MAX: u32 = 16;

/// The results for a large message so far.
pub(crate) struct Preparation {
    /// The definition of the topic at the time of the first job.
    definition: Arc<TableDefinition>,
    /// The time of its arrival, for its constructed fields.
    now: Timestamp,
    /// The effort that is left for its constructed fields.
    effort: u64,
    /// The data after preprocessing; `None`: as it arrived.
    preprocessed: Option<Vec<u8>>,
    key: Option<Key>,
    /// The record of the key, for the next second job.
    record: Option<PreviousRecord>,
    reader: Option<EntryReader>,
    /// The result of the last second job.
    finished: Option<Finished>,
    attempts: u32,
    /// The record that the last second job read.
    read: RecordVersion,
    /// Why the message is refused.
    refused: Option<String>,
}

/// The part of a record that the second job reads.
#[derive(Default)]
struct PreviousRecord {
    version: RecordVersion,
    data: Box<[u8]>,
}

/// Which record it is.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum RecordVersion {
    /// The record with this position. Each change has another position.
    At(Position),
    /// There is no record, its lifetime is over, or the job does not need it.
    #[default]
    Missing,
    /// The message arrived before, and is only checked.
    Ignored,
}

struct Finished {
    version: RecordVersion,
    data: Option<Vec<u8>>,
    entries: Option<RowEntries>,
}

/// Whether a message is ready for the log.
pub(crate) enum Outcome<T> {
    Ready(T),
    /// After [`Preparation::run`] on another thread, the message must be prepared again.
    Later(Box<Preparation>),
}

impl<T> Outcome<T> {
    pub(crate) fn map<U>(self, ready: impl FnOnce(T) -> U) -> Outcome<U> {
        match self {
            Outcome::Ready(value) => Outcome::Ready(ready(value)),
            Outcome::Later(preparation) => Outcome::Later(preparation),
        }
    }
}

impl Preparation {
    fn new(definition: &Arc<TableDefinition>, now: Timestamp) -> Box<Self> {
        Box::new(Preparation {
            definition: definition.clone(),
            now,
            effort: 0,
            preprocessed: None,
            key: None,
            record: None,
            reader: None,
            finished: None,
            attempts: 0,
            read: RecordVersion::Missing,
            refused: None,
        })
    }

    /// A small message, whose record is large.
    pub(super) fn with_key(
        definition: Arc<TableDefinition>,
        now: Timestamp,
        effort: u64,
        preprocessed: Option<Vec<u8>>,
        key: Key,
    ) -> Box<Self> {
        let preparation = Preparation::new(&definition, now);
        Box::new(Preparation { effort, preprocessed, key: Some(key), ..*preparation })
    }

    /// Drops the copy of the record, because the next job begins later.
    pub(crate) fn postpone(&mut self) {
        if self.record.take().is_some() {
            self.attempts -= 1;
        }
    }

    /// Bytes that it holds.
    pub(crate) fn size(&self) -> usize {
        let record = self.record.as_ref().map_or(0, |record| record.data.len());
        record + self.preprocessed.as_ref().map_or(0, Vec::len)
    }

    /// The next job for the message.
    pub(crate) fn run(&mut self, arriving: &Arriving<'_>, arena: &mut Arena) {
        let result = match self.key.clone() {
            None => self.find_key(arriving, arena),
            Some(key) => self.finish(&key, arriving, arena),
        };
        self.refused = result.err();
    }

    fn find_key(&mut self, arriving: &Arriving<'_>, arena: &mut Arena) -> Result<(), String> {
        let definition = self.definition.clone();
        let mut message = Message::new(&definition, arena, arriving, self.now);
        message.preprocess()?;
        self.key = Some(message.key()?);
        (self.preprocessed, self.effort) = (message.changed.take(), arena.effort_left());
        Ok(())
    }

    fn finish(&mut self, key: &Key, arriving: &Arriving<'_>, arena: &mut Arena) -> Result<(), String> {
        let definition = self.definition.clone();
        let record = self.record.take().unwrap_or_default();
        let version = record.version;
        self.read = version;
        let previous = matches!(version, RecordVersion::At(_)).then_some(&*record.data);
        arena.allow(self.effort);
        let mut message = Message::new(&definition, arena, arriving, self.now);
        message.changed = self.preprocessed.clone();
        message.enrich(key, previous)?;
        if let Some(previous) = previous.filter(|_| arriving.is_delta) {
            message.merge(previous)?;
        }
        let entries = self.reader.take().map(|mut reader| reader.read_row(key, message.data()));
        self.finished = Some(Finished { version, data: message.changed.take(), entries });
        Ok(())
    }
}

impl Tables {
    /// As [`Tables::prepare`], for a message that is large or replaces a large record.
    #[cold]
    pub(super) fn prepare_large(
        &mut self,
        cx: &mut Context,
        id: TableId,
        arriving: &Arriving<'_>,
        preparation: Option<Box<Preparation>>,
    ) -> Result<Outcome<Prepared>, String> {
        let TableState { definition, table, has_logged_missing, .. } = &mut self.all[id.0 as usize];
        let mut preparation = current(preparation, definition, cx)?;
        if preparation.key.is_none() && !definition.key_reads_data() {
            preparation.find_key(arriving, &mut self.arena)?;
        }
        let Some(key) = preparation.key.clone() else { return Ok(Outcome::Later(preparation)) };
        note_missing(cx, definition, &key, has_logged_missing);
        let now = cx.clock.now.wall;
        let is_alive = |row: &Row<'_>| row.expires.is_none_or(|expires| expires > now);
        let reads_previous = arriving.is_delta || definition.reads_previous();
        let row = table.get(&key).filter(|row| reads_previous && is_alive(row));
        let version = row.as_ref().map_or(RecordVersion::Missing, |row| RecordVersion::At(row.position));
        let is_changed_later = arriving.is_delta || definition.enrichment().is_some();
        let spelling = key.spelling().filter(|_| !is_changed_later);
        let place = Some(table.look_ahead(&key, arriving.data.len()));
        let finished = preparation.finished.take().filter(|finished| finished.version == version);
        if let Some(Finished { data, entries, .. }) = finished {
            let entries = entries.map(Box::new);
            return Ok(Outcome::Ready(Prepared { key, spelling, place, entries, data }));
        }
        let reader = table.entry_reader(spelling.is_some());
        if reader.is_none() && !is_changed_later {
            let data = preparation.preprocessed;
            return Ok(Outcome::Ready(Prepared { key, spelling, place, entries: None, data }));
        }
        preparation.reader = reader;
        preparation.record =
            Some(PreviousRecord { version, data: row.map(|row| row.data.into()).unwrap_or_default() });
        cx.clock.slices.weigh_bytes(preparation.size());
        preparation.attempts += 1;
        if preparation.attempts > ATTEMPTS_MAX {
            preparation.run(arriving, &mut self.arena);
            return self.prepare_large(cx, id, arriving, Some(preparation));
        }
        Ok(Outcome::Later(preparation))
    }

    /// As [`Tables::check_again`], for a large message.
    #[cold]
    pub(super) fn check_large_again(
        &mut self,
        cx: &mut Context,
        id: TableId,
        preparation: Option<Box<Preparation>>,
    ) -> Result<Outcome<()>, String> {
        let TableState { definition, has_logged_missing, .. } = &mut self.all[id.0 as usize];
        let mut preparation = preparation;
        if let Some(preparation) = &mut preparation
            && matches!(preparation.read, RecordVersion::At(_))
        {
            // Another record could be the reason.
            preparation.refused = None;
        }
        let mut preparation = current(preparation, definition, cx)?;
        let Some(key) = &preparation.key else { return Ok(Outcome::Later(preparation)) };
        note_missing(cx, definition, key, has_logged_missing);
        if preparation.finished.is_some() || definition.enrichment().is_none() {
            return Ok(Outcome::Ready(()));
        }
        preparation.record = Some(PreviousRecord { version: RecordVersion::Ignored, data: Box::default() });
        preparation.attempts += 1;
        Ok(Outcome::Later(preparation))
    }
}

/// The preparation of a message so far, unless the topic has another definition than before.
///
/// # Errors
/// Why the message is refused.
fn current(
    preparation: Option<Box<Preparation>>,
    definition: &Arc<TableDefinition>,
    cx: &Context,
) -> Result<Box<Preparation>, String> {
    let known = preparation.filter(|preparation| Arc::ptr_eq(&preparation.definition, definition));
    let mut preparation = known.unwrap_or_else(|| Preparation::new(definition, cx.clock.now.wall));
    match preparation.refused.take() {
        Some(reason) => Err(reason),
        None => Ok(preparation),
    }
}
