//! Rows that a filter finds through their keys: equality of all key fields needs no separate index.
//!
//! The key of a row is the hash of the texts of its key fields. So a filter with the texts of all
//! key fields determines the keys. There are exceptions, and results must not depend on them:
//!
//! - Numbers are equal by value: `/id = 7` is true for 7, 7.0 and "007", which have different keys.
//!   A constant is looked up in the usual spelling of its number. Rows with another spelling are in
//!   one of the two sets here, and are returned as well. - Integers from 2^53 on are equal to a
//!   near float. Such floats are in a set, and no lookup is made for them as constants. - An array
//!   is equal when any of its elements is, but its key is made of the first one. A Boolean is equal
//!   to 0 or 1. - The fields of a row may differ from the fields of which its key was made: after
//!   enrichment, or with other key fields in the configuration.

use super::choose::{Found, for_each_combination, with_paths};
use super::sorted_set::SortedSet;
use crate::key::KeyFields;
use quire_expression::filter::Filter;
use quire_expression::message_type::{Arena, Number, Value};
use quire_journal::Memory;

/// The lookup of rows by the values of their key fields.
#[derive(Debug)]
pub(crate) struct ByKey {
    fields: KeyFields,
    /// Rows that any constant may find.
    irregular: SortedSet<u32>,
    /// Rows that any number may find: they have a number in an unusual spelling, such as 007.
    numerals: SortedSet<u32>,
}

/// How a filter finds a row by the values of its key fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Spelling {
    /// Through the key.
    #[default]
    Usual,
    /// Through the key, unless the filter compares with a number.
    Numeral,
    /// Not through the key.
    Irregular,
}

impl Spelling {
    /// The spelling of a row with this key and this data.
    pub(crate) fn of_row(fields: &KeyFields, key: &[u8], data: &[u8], arena: &mut Arena) -> Spelling {
        arena.reset();
        let values = fields.values_of(data, arena);
        values.map_or(Spelling::Irregular, |values| Spelling::of_values(fields, key, values, arena))
    }

    /// As [`of_row`](Self::of_row), for a row whose key fields have these values.
    pub(crate) fn of_values<'a>(
        fields: &KeyFields,
        key: &[u8],
        values: impl Iterator<Item = Value<'a>>,
        arena: &'a Arena,
    ) -> Spelling {
        let mut worst = Spelling::Usual;
        let is_made = fields.has_made(key, values, arena, |value| worst = worst.max(Spelling::of(value)));
        if is_made { worst } else { Spelling::Irregular }
    }

    /// The spelling of one key field.
    pub(crate) fn of(value: Value<'_>) -> Spelling {
        match value {
            // No value is equal to these.
            Value::Null | Value::Compound(_) => Spelling::Usual,
            Value::Array(_) | Value::Boolean(_) => Spelling::Irregular,
            Value::Number(number, text) if is_usual(number, text) => Spelling::Usual,
            Value::Number(..) => Spelling::Irregular,
            Value::Text(text) => match text[0] {
                b'0'..=b'9' | b'-' | b'+' => match Number::parse(text) {
                    Some(number) if !is_usual(number, text) => Spelling::Numeral,
                    _ => Spelling::Usual,
                },
                _ => Spelling::Usual,
            },
        }
    }
}

impl ByKey {
    /// The lookup of a table without rows.
    pub fn new(fields: KeyFields, memory: &Memory) -> Self {
        ByKey { fields, irregular: SortedSet::new(memory), numerals: SortedSet::new(memory) }
    }

    /// The slot has a row with this spelling, or no row ([`Spelling::Usual`]).
    pub fn change(&mut self, slot: u32, spelling: Spelling) {
        self.irregular.set(slot, spelling == Spelling::Irregular);
        self.numerals.set(slot, spelling == Spelling::Numeral);
    }

    /// As [`change`](Self::change), for a slot after all earlier ones.
    /// [`finish_restore`](Self::finish_restore) must follow.
    pub fn restore(&mut self, slot: u32, spelling: Spelling) {
        match spelling {
            Spelling::Usual => {}
            Spelling::Numeral => self.numerals.gather(slot),
            Spelling::Irregular => self.irregular.gather(slot),
        }
    }

    /// Makes the sets of all slots of [`restore`](Self::restore).
    pub fn finish_restore(&mut self) {
        self.irregular.build();
        self.numerals.build();
    }

    /// The key fields.
    pub fn fields(&self) -> &KeyFields {
        &self.fields
    }

    /// Slots that include all rows that match the filter. `None`: the filter does not contain
    /// values for all key fields, or there are more than `count_max` slots.
    pub fn candidates(
        &self,
        filter: &Filter,
        count_max: usize,
        slot_of: impl Fn(&[u8]) -> Option<u32>,
    ) -> Option<Vec<u32>> {
        let equalities = with_paths(filter.equalities(), |equality| equality.field);
        let mut asks_for_numbers = false;
        let mut texts = Vec::with_capacity(self.fields.paths().len());
        for path in self.fields.paths() {
            let mut own = equalities.iter().filter(|(known, _)| known == path);
            let found = own.find_map(|(_, equality)| key_texts(&equality.values))?;
            asks_for_numbers |= equalities.iter().any(|(known, equality)| {
                known == path && equality.values.iter().any(|value| matches!(value, Value::Number(..)))
            });
            texts.push(found);
        }
        let mut found = Found::new(count_max);
        self.irregular.for_each_in(0..=u32::MAX, |slot| found.push(slot));
        if asks_for_numbers {
            self.numerals.for_each_in(0..=u32::MAX, |slot| found.push(slot));
        }
        for_each_combination(&texts, |texts| {
            if let Some(slot) = slot_of(&self.fields.key_of_texts(texts)) {
                found.push(slot);
            }
        })?;
        found.slots()
    }

    /// Bytes of memory.
    pub fn memory_size(&self) -> usize {
        self.irregular.memory_size() + self.numerals.memory_size()
    }
}

/// The texts of a key field that is equal to one of the values, in rows with a usual spelling.
/// `None`: they are unknown.
fn key_texts(values: &[Value<'_>]) -> Option<Vec<Box<[u8]>>> {
    let mut texts: Vec<Box<[u8]>> = Vec::with_capacity(values.len());
    for value in values {
        match *value {
            Value::Number(number, _) if is_exact(number) => texts.push(usual_text(number)?),
            Value::Text(text)
                if !text.eq_ignore_ascii_case(b"true") && !text.eq_ignore_ascii_case(b"false") =>
            {
                // A text is equal to a text with the same bytes, and to its value if it is a
                // number.
                match Number::parse(text) {
                    Some(number) if is_exact(number) => texts.push(usual_text(number)?),
                    Some(_) => return None,
                    None => {}
                }
                texts.push(text.into());
            }
            _ => return None,
        }
    }
    texts.sort_unstable();
    texts.dedup();
    Some(texts)
}

/// Floats from here on are equal to more than one integer.
const INEXACT_BEGIN: f64 = (1_u64 << 53) as f64;

/// Whether all numbers that are equal to this one have the same usual text, except floats that are
/// in a set.
fn is_exact(number: Number) -> bool {
    match number {
        Number::Integer(_) | Number::Unsigned(_) => true,
        Number::Float(number) => number.abs() < INEXACT_BEGIN,
    }
}

/// Whether a number with this text is found through its key. A number of a binary format has no
/// text, and gets the usual one.
fn is_usual(number: Number, text: &[u8]) -> bool {
    match (number, text) {
        (
            Number::Integer(_) | Number::Unsigned(_),
            [] | [b'0'] | [b'1'..=b'9', ..] | [b'-', b'1'..=b'9', ..],
        ) => true,
        (Number::Integer(_) | Number::Unsigned(_), _) => false,
        (Number::Float(float), []) => float.is_nan() || is_exact(number),
        (Number::Float(_), text) => {
            is_exact(number) && usual_text(number).is_some_and(|usual| *usual == *text)
        }
    }
}

fn usual_text(number: Number) -> Option<Box<[u8]>> {
    let mut text = Vec::new();
    number.write_text(&mut text).ok()?;
    Some(text.into())
}
