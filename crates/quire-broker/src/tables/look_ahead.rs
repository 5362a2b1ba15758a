//! The keys of messages that were received and not taken yet.
//!
//! The lookup of a record waits for memory several times. The processor waits for several lookups
//! at once when there is no other work between them. So when a connection sends successive
//! messages, their keys are generated together, and their records are looked up together. A message
//! is accepted or refused later. So this module changes no record, and skips a message with a
//! mistake.

use std::collections::VecDeque;

use quire_table::{Key, KeyPlace, KeyRule};

use super::{TableDefinition, TableState, Tables};
use crate::topic::TableId;

/// The most messages whose records are looked up together. The processor waits for about ten lines
/// of memory at once.
const AHEAD_MAX: usize = 8;

/// The keys and places of the next messages of the current connection.
#[derive(Default)]
pub(super) struct LookAhead {
    /// The topic of the messages.
    table: Option<TableId>,
    keys: VecDeque<(Data, Key)>,
    /// The probable places of the records of the keys.
    places: VecDeque<KeyPlace>,
    /// The key of the last message could have been generated ahead, and no key of a later message
    /// is known.
    is_wanted: bool,
}

/// Address and size of the data of a message. Both identify it, because the received bytes are not
/// moved until [`Tables::forget_ahead`].
type Data = (usize, usize);

impl LookAhead {
    /// The key of a message with this data, and the probable place of its record.
    pub fn take(
        &mut self,
        definition: &TableDefinition,
        table: TableId,
        data: &[u8],
    ) -> Option<(Key, KeyPlace)> {
        let is_it = |known: &Data| self.table == Some(table) && *known == place_of(data);
        let mut found = None;
        // The messages before it were not accepted: they were duplicates, or were refused.
        while found.is_none()
            && let Some(((known, key), place)) = self.keys.pop_front().zip(self.places.pop_front())
        {
            found = is_it(&known).then_some((key, place));
        }
        self.is_wanted = self.keys.is_empty() && has_key_ahead(definition);
        found
    }
}

impl Tables {
    /// Whether [`look_ahead`](Self::look_ahead) makes the next messages faster.
    #[inline]
    pub(crate) fn wants_ahead(&self) -> bool {
        self.ahead.is_wanted
    }

    /// Looks up the records of the next messages on a topic. The argument is their data, in order,
    /// until a message has more than `size_max` bytes.
    pub(crate) fn look_ahead<'a>(
        &mut self,
        id: TableId,
        size_max: usize,
        messages: impl Iterator<Item = &'a [u8]>,
    ) {
        self.forget_ahead();
        let Tables { all, arena, ahead, .. } = self;
        let TableState { definition, table, .. } = &all[id.0 as usize];
        let KeyRule::Fields(fields) = &definition.key_rule else { return };
        if !has_key_ahead(definition) {
            return;
        }
        let key_of = |data: &'a [u8]| Some((place_of(data), fields.key_of(data, arena).ok()?));
        ahead.table = Some(id);
        // A reader thread reads a large one.
        let small = messages.take_while(|data| data.len() <= size_max);
        ahead.keys.extend(small.take(AHEAD_MAX).map_while(key_of));
        let keys = ahead.keys.iter().map(|((_, size), key)| (&**key, *size));
        table.look_all_ahead(keys, |place| ahead.places.push_back(place));
    }

    /// The next messages are those of another connection.
    pub(crate) fn forget_ahead(&mut self) {
        let LookAhead { keys, places, is_wanted, .. } = &mut self.ahead;
        *is_wanted = false;
        keys.clear();
        places.clear();
    }
}

/// Whether the key of a message depends only on its data as received.
fn has_key_ahead(definition: &TableDefinition) -> bool {
    let is_preprocessed = definition.fields.as_ref().is_some_and(|fields| fields.has_preprocessing());
    matches!(definition.key_rule, KeyRule::Fields(_)) && !is_preprocessed
}

fn place_of(data: &[u8]) -> (usize, usize) {
    (data.as_ptr().addr(), data.len())
}
