//! The preparation of a message for its record: its constructed fields, its key, and the merge of a
//! delta (docs/last-values.md sections 1, 10, 11).
//!
//! [`Tables::prepare`] runs these steps in order, and changes no record: preprocessing, key,
//! enrichment, merge. The intake records, stores and delivers the resulting message. For a large
//! message, reader threads run the steps (`large.rs`).

use quire_command::Publish;
use quire_expression::filter::{Assignments, MessageContext};
use quire_expression::message_type::{self, Arena};
use quire_journal::{Headers, Record, Timestamp};
use quire_table::{Key, KeyPlace, KeyRule, RowEntries, Spelling, Table, check_supplied_key};

use super::large::{Outcome, Preparation};
use super::{Keyed, TableState, Tables};
use crate::Event;
use crate::config::tables::TableDefinition;
use crate::context::Context;
use crate::topic::TableId;

/// Effort that the two lists may take together for one message, in addition to
/// [`FIELDS_EFFORT_PER_BYTE`]: some milliseconds. Other connections wait meanwhile, as for the
/// filter of a scan, unless the message is large.
const FIELDS_EFFORT_MAX: u64 = 4_000_000;
const FIELDS_EFFORT_PER_BYTE: u64 = 4;

/// A message for a last-value topic, as it arrived.
#[derive(Clone, Copy)]
pub(crate) struct Arriving<'a> {
    /// The key that the publisher supplied; empty = none.
    pub supplied_key: &'a [u8],
    pub correlation_id: &'a [u8],
    pub headers: Headers<'a>,
    pub data: &'a [u8],
    /// The message is merged into the record of its key.
    pub is_delta: bool,
    /// The most bytes that the prepared message may have.
    pub size_max: usize,
}

/// A message that is ready for the log.
pub(crate) struct Prepared {
    pub key: Key,
    /// The spelling of the key, when no later step changed the data.
    pub spelling: Option<Spelling>,
    /// The probable place of the record of the key.
    pub place: Option<KeyPlace>,
    /// Its entries in the indexes, when they are known.
    pub entries: Option<Box<RowEntries>>,
    /// The data with its constructed fields, merged; `None`: the data as it arrived.
    pub data: Option<Vec<u8>>,
}

impl Prepared {
    /// As the message with a key of its last-value topic.
    pub(crate) fn keyed(&self, table: TableId) -> Keyed<'_> {
        let Prepared { spelling, place, ref entries, .. } = *self;
        Keyed { table, spelling, place, entries: entries.as_deref() }
    }
}

impl Tables {
    /// The key of a message, and the message with its constructed fields. A delta is merged into
    /// the record of its key. Without a record, the delta is the whole message. `preparation` is of
    /// the same message from an earlier call, when it is large.
    ///
    /// # Errors
    /// The publisher supplied no key or a wrong one, the message cannot be parsed, or the result is
    /// too large.
    pub(crate) fn prepare(
        &mut self,
        cx: &mut Context,
        id: TableId,
        arriving: &Arriving<'_>,
        preparation: Option<Box<Preparation>>,
    ) -> Result<Outcome<Prepared>, String> {
        if arriving.data.len() > cx.clock.turn_size || preparation.is_some() {
            return self.prepare_large(cx, id, arriving, preparation);
        }
        let now = cx.clock.now.wall;
        let found = self.ahead.take(&self.all[id.0 as usize].definition, id, arriving.data);
        let (mut message, table, has_logged) = self.message(id, arriving, now);
        message.preprocess()?;
        let (key, place) = match found {
            Some(found) => found,
            None => {
                let key = message.key()?;
                // The message is written into the log first. Meanwhile the processor reads the
                // record that it replaces.
                let place = table.look_ahead(&key, arriving.data.len());
                (key, place)
            }
        };
        note_missing(cx, message.definition, &key, has_logged);
        let previous = match message.reads_previous() {
            // A record whose lifetime is over may still be in the table.
            true => table.get(&key).filter(|row| row.expires.is_none_or(|expires| expires > now)),
            false => None,
        };
        if previous.is_some_and(|row| row.data.len() > cx.clock.turn_size) {
            let (effort, preprocessed) = (message.arena.effort_left(), message.changed);
            let definition = self.all[id.0 as usize].definition.clone();
            let preparation = Preparation::with_key(definition, now, effort, preprocessed, key);
            return self.prepare_large(cx, id, arriving, Some(preparation));
        }
        message.enrich(&key, previous.map(|row| row.data))?;
        if arriving.is_delta
            && let Some(previous) = previous
        {
            message.merge(previous.data)?;
        }
        // A command of a few bytes may have read and written more bytes. They count in the slice of
        // its connection.
        cx.clock.slices.weigh_bytes(previous.map_or(0, |row| row.data.len()));
        cx.clock.slices.weigh_bytes(message.changed.as_ref().map_or(0, Vec::len));
        let is_changed_later = arriving.is_delta || message.enrichment().is_some();
        let spelling = key.spelling().filter(|_| !is_changed_later);
        Ok(Outcome::Ready(Prepared {
            key,
            spelling,
            place: Some(place),
            entries: None,
            data: message.changed,
        }))
    }

    /// Checks a message that arrived before, without the record of its key. A message that was
    /// refused is refused again. A message that changed its record is not refused because of that
    /// change.
    ///
    /// # Errors
    /// As [`Tables::prepare`].
    pub(crate) fn check_again(
        &mut self,
        cx: &mut Context,
        id: TableId,
        arriving: &Arriving<'_>,
        preparation: Option<Box<Preparation>>,
    ) -> Result<Outcome<()>, String> {
        if arriving.data.len() > cx.clock.turn_size || preparation.is_some() {
            return self.check_large_again(cx, id, preparation);
        }
        let (mut message, _, has_logged) = self.message(id, arriving, cx.clock.now.wall);
        message.preprocess()?;
        let key = message.key()?;
        note_missing(cx, message.definition, &key, has_logged);
        message.enrich(&key, None)?;
        Ok(Outcome::Ready(()))
    }

    /// As [`Tables::prepare`], for a message of a service. When its fields cannot be constructed,
    /// it keeps its data. A start decides in the same way.
    ///
    /// # Errors
    /// The message has no key.
    pub(crate) fn prepare_or_keep(
        &mut self,
        cx: &mut Context,
        id: TableId,
        arriving: &Arriving<'_>,
        preparation: Option<Box<Preparation>>,
    ) -> Result<Outcome<Prepared>, String> {
        if let Ok(outcome) = self.prepare(cx, id, arriving, preparation) {
            return Ok(outcome);
        }
        let (arriving, now) = (Arriving { size_max: usize::MAX, ..*arriving }, cx.clock.now.wall);
        let key = self.key_of(cx, id, &arriving, now)?;
        Ok(Outcome::Ready(Prepared { key, spelling: None, place: None, entries: None, data: None }))
    }

    /// The key of a message that keeps its bytes: a message of the log without a key, a dead letter
    /// whose fields cannot be constructed, or the data of a delete. Preprocessing can construct
    /// fields of the key. Enrichment does not run.
    ///
    /// # Errors
    /// As [`Tables::prepare`].
    pub(crate) fn key_of(
        &mut self,
        cx: &mut Context,
        id: TableId,
        arriving: &Arriving<'_>,
        now: Timestamp,
    ) -> Result<Key, String> {
        let (mut message, _, has_logged) = self.message(id, arriving, now);
        message.preprocess()?;
        let key = message.key()?;
        note_missing(cx, message.definition, &key, has_logged);
        Ok(key)
    }

    /// Whether a message with a key from another source can be a record. Keys that are generated
    /// from fields require data with fields.
    ///
    /// # Errors
    /// The data is not of the type of the topic.
    pub(crate) fn check_data(&mut self, id: TableId, data: &[u8]) -> Result<(), String> {
        let definition = &self.all[id.0 as usize].definition;
        let KeyRule::Fields(fields) = &definition.key_rule else { return Ok(()) };
        fields.key_of(data, &mut self.arena).map(drop).map_err(|_| no_key(definition))
    }

    fn message<'a>(
        &'a mut self,
        id: TableId,
        arriving: &'a Arriving<'a>,
        now: Timestamp,
    ) -> (Message<'a>, &'a Table, &'a mut bool) {
        let Tables { all, arena, .. } = self;
        let TableState { definition, table, has_logged_missing, .. } = &mut all[id.0 as usize];
        (Message::new(definition, arena, arriving, now), table, has_logged_missing)
    }
}

/// Logs the first key of a topic that was generated without one of its fields.
pub(super) fn note_missing(cx: &mut Context, definition: &TableDefinition, key: &Key, has_logged: &mut bool) {
    if key.has_missing() && !*has_logged {
        *has_logged = true;
        let topic = definition.name.to_string();
        cx.note(Event::KeyFieldMissing { topic });
    }
}

/// A message between the steps.
pub(super) struct Message<'a> {
    definition: &'a TableDefinition,
    arena: &'a mut Arena,
    arriving: &'a Arriving<'a>,
    now: Timestamp,
    /// The data after the first step that changed it.
    pub changed: Option<Vec<u8>>,
}

impl<'a> Message<'a> {
    pub fn new(
        definition: &'a TableDefinition,
        arena: &'a mut Arena,
        arriving: &'a Arriving<'a>,
        now: Timestamp,
    ) -> Self {
        Message { definition, arena, arriving, now, changed: None }
    }

    pub fn data(&self) -> &[u8] {
        self.changed.as_deref().unwrap_or(self.arriving.data)
    }

    fn enrichment(&self) -> Option<&Assignments> {
        self.definition.enrichment()
    }

    fn reads_previous(&self) -> bool {
        self.arriving.is_delta || self.definition.reads_previous()
    }

    pub fn preprocess(&mut self) -> Result<(), String> {
        let Some(fields) = self.definition.fields.as_deref() else { return Ok(()) };
        let per_byte = FIELDS_EFFORT_PER_BYTE.saturating_mul(self.arriving.data.len() as u64);
        self.arena.allow(FIELDS_EFFORT_MAX.saturating_add(per_byte));
        match &fields.preprocessing {
            Some(list) => self.assign("preprocessing", list, None, None),
            None => Ok(()),
        }
    }

    pub fn enrich(&mut self, key: &Key, previous: Option<&[u8]>) -> Result<(), String> {
        let definition = self.definition;
        match definition.enrichment() {
            Some(list) => self.assign("enrichment", list, Some(key), previous),
            None => Ok(()),
        }
    }

    fn assign(
        &mut self,
        name: &str,
        list: &Assignments,
        key: Option<&[u8]>,
        previous: Option<&[u8]>,
    ) -> Result<(), String> {
        let Message { definition, arriving, now, .. } = *self;
        let context = MessageContext {
            message_type: definition.message_type,
            data: self.changed.as_deref().unwrap_or(arriving.data),
            topic: &definition.name,
            key,
            bookmark: None,
            correlation_id: arriving.correlation_id,
            headers: arriving.headers,
            timestamp: now,
            now,
        };
        let mut changed = Vec::with_capacity(context.data.len() + FIELDS_SIZE_USUAL);
        let result = list.apply(&context, previous, self.arena, &mut changed);
        let topic = &definition.name;
        result.map_err(|error| {
            format!("the message on the topic {topic:?} cannot get the fields of {name}: {error}")
        })?;
        if self.arena.effort_left() == 0 {
            return Err(format!(
                "the message on the topic {topic:?} cannot get the fields of {name}: they take more than the limit of effort for one \
                 message"
            ));
        }
        self.changed = Some(changed);
        self.check_size("constructed fields")
    }

    pub fn merge(&mut self, previous: &[u8]) -> Result<(), String> {
        let mut merged = Vec::new();
        let definition = self.definition;
        message_type::merge(definition.message_type, previous, self.data(), &mut merged).map_err(
            |error| format!("the delta on the topic {:?} cannot be merged: {error}", definition.name),
        )?;
        self.changed = Some(merged);
        self.check_size("delta")
    }

    fn check_size(&self, cause: &str) -> Result<(), String> {
        let (size, size_max) = (self.data().len(), self.arriving.size_max);
        if size <= size_max {
            return Ok(());
        }
        let topic = &self.definition.name;
        Err(format!(
            "the record of the topic {topic:?} would have {size} bytes with the {cause}, max_message_size is {size_max} bytes"
        ))
    }

    pub fn key(&mut self) -> Result<Key, String> {
        let definition = self.definition;
        let name = &definition.name;
        let fields = match &definition.key_rule {
            KeyRule::Supplied if self.arriving.supplied_key.is_empty() => {
                return Err(format!(
                    "the message on the topic {name:?} has no key: publish it with a sow_key"
                ));
            }
            KeyRule::Supplied => {
                return match check_supplied_key(self.arriving.supplied_key) {
                    Ok(key) => {
                        Key::from_bytes(key.as_bytes()).ok_or_else(|| format!("the key {key:?} is too long"))
                    }
                    Err(error) => Err(format!("the message on the topic {name:?}: {error}")),
                };
            }
            KeyRule::Fields(fields) => fields,
        };
        let data = self.changed.as_deref().unwrap_or(self.arriving.data);
        fields.key_of(data, self.arena).map_err(|_| no_key(definition))
    }
}

/// The reason why data that is not of the type of the topic has no key.
fn no_key(definition: &TableDefinition) -> String {
    let (name, type_name) = (&definition.name, definition.message_type.name());
    format!("the message on the topic {name:?} has no key: it is not a valid {type_name} message")
}

impl<'a> Arriving<'a> {
    /// The data of a message, without the rest.
    pub(crate) fn of_data(data: &'a [u8]) -> Self {
        Arriving {
            supplied_key: b"",
            correlation_id: b"",
            headers: Headers::NONE,
            data,
            is_delta: false,
            size_max: usize::MAX,
        }
    }

    /// A message of a client. The prepared message may have `size_max` bytes.
    pub(crate) fn of_publish(publish: &Publish<'a>, size_max: usize) -> Self {
        Arriving {
            supplied_key: publish.key,
            correlation_id: publish.correlation_id,
            headers: publish.headers,
            data: publish.data,
            is_delta: publish.is_delta,
            size_max,
        }
    }

    /// A record of the log.
    pub(super) fn of_record(record: &'a Record<'a>) -> Self {
        let (correlation_id, headers) = (record.correlation_id, record.headers());
        Arriving { correlation_id, headers, ..Arriving::of_data(record.data) }
    }
}

/// Bytes of the constructed fields of most messages.
const FIELDS_SIZE_USUAL: usize = 64;
