//! The keys of messages that were received and are not taken yet.
//!
//! The lookup of a record waits for memory several times. The processor waits for several lookups at once when there is no other work between
//! them. So when a connection sends messages one after the other, their keys are generated together, and their records are looked for together.
//! Whether a message is taken is decided later, so nothing here changes a record, and a message with a mistake is left out.

use std::collections::VecDeque;

use quire_table::{Key, KeyPlace, KeyRule};

use super::{TableDefinition, Tables};
use crate::topic::TableId;

/// Messages whose records are looked for together. More do not help, because the processor waits for about this many lookups at once.
const AHEAD_MAX: usize = 8;

/// What is known of the next messages of the connection that has the turn.
#[derive(Default)]
pub(super) struct Ahead {
    found: VecDeque<Found>,
    /// The last message was one whose key can be generated ahead, and nothing is known of the one after it.
    is_wanted: bool,
}

/// The key of a message, and where its record probably is.
struct Found {
    table: TableId,
    /// Address and size of the data. Both identify the message: the received bytes stay where they are until [`Tables::forget_ahead`].
    data: (usize, usize),
    key: Key,
    place: Option<KeyPlace>,
}

impl Ahead {
    /// The key of a message with this data, and where its record probably is.
    pub fn take(
        &mut self,
        definition: &TableDefinition,
        table: TableId,
        data: &[u8],
    ) -> Option<(Key, KeyPlace)> {
        let is_it = |found: &Found| found.table == table && found.data == place_of(data);
        // Those before it were not taken: duplicates, and messages that were refused.
        let mut found = None;
        while found.is_none() && !self.found.is_empty() {
            found = self.found.pop_front().filter(is_it);
        }
        self.is_wanted = self.found.is_empty() && definition.has_key_ahead();
        found.and_then(|found| Some((found.key, found.place?)))
    }
}

impl Tables {
    /// Whether [`look_ahead`](Self::look_ahead) makes the next messages faster.
    #[inline]
    pub(crate) fn wants_ahead(&self) -> bool {
        self.ahead.is_wanted
    }

    /// Looks for the records of the next messages: their topics and data.
    pub(crate) fn look_ahead<'a>(&mut self, messages: impl Iterator<Item = (TableId, &'a [u8])>) {
        let Tables { all, arena, ahead, .. } = self;
        let key_of = |(table, data): (TableId, &'a [u8])| {
            let definition = &all[table.0 as usize].definition;
            let KeyRule::Fields(fields) = &definition.key_rule else { return None };
            let key = definition.has_key_ahead().then(|| fields.key_of(data, arena))?.ok()?;
            Some(Found { table, data: place_of(data), key, place: None })
        };
        ahead.is_wanted = false;
        ahead.found.clear();
        ahead.found.extend(messages.take(AHEAD_MAX).map_while(key_of));
        for Found { table, data: (_, size), key, place } in &mut ahead.found {
            *place = Some(all[table.0 as usize].table.look_ahead(key, *size));
        }
    }

    /// The next messages are those of another connection.
    pub(crate) fn forget_ahead(&mut self) {
        self.ahead.is_wanted = false;
        self.ahead.found.clear();
    }
}

impl TableDefinition {
    /// Whether the key of a message depends on nothing but its data as it arrives.
    fn has_key_ahead(&self) -> bool {
        let is_preprocessed = self.fields.as_ref().is_some_and(|fields| fields.has_preprocessing());
        matches!(self.key_rule, KeyRule::Fields(_)) && !is_preprocessed
    }
}

fn place_of(data: &[u8]) -> (usize, usize) {
    (data.as_ptr().addr(), data.len())
}
