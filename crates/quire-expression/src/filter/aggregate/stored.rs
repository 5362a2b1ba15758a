//! Aggregates as bytes, for the snapshots of views (docs/journal-format.md, `table-*.state`).
//!
//! The bytes have no versions. A change of them, and a change of the result of any expression,
//! needs another [`ENGINE_VERSION`], so that a view is computed again.

use super::super::exact_sum::{ExactSum, Expansion};
use super::{Accumulator, AggregateKind, COUNTED_SIZE, Owned, OwnedValue, Spread, Sum, ValueKey, Values};
use crate::message_type::Number;

/// The version of expressions and aggregates. The state of a view that another version has saved is
/// not used.
pub const ENGINE_VERSION: u32 = 1;

const NULL: u8 = 0;
const FALSE: u8 = 1;
const TRUE: u8 = 2;
const INTEGER: u8 = 3;
const UNSIGNED: u8 = 4;
const FLOAT: u8 = 5;
const TEXT: u8 = 6;
const COMPOUND: u8 = 7;

/// Appends a number: 7 bits in each byte, the lowest first. The highest bit says that another byte
/// follows.
pub fn put_number(number: u64, out: &mut Vec<u8>) {
    let mut left = number;
    while left >= 0x80 {
        out.push(left as u8 | 0x80);
        left >>= 7;
    }
    out.push(left as u8);
}

/// Appends bytes after their number.
pub fn put_bytes(bytes: &[u8], out: &mut Vec<u8>) {
    put_number(bytes.len() as u64, out);
    out.extend_from_slice(bytes);
}

/// Reads stored parts, one after the other. `None`: the bytes are not such a part.
#[derive(Clone, Copy, Debug)]
pub struct Stored<'a>(pub &'a [u8]);

impl<'a> Stored<'a> {
    /// Whether all bytes were read.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The next `size` bytes.
    pub fn take(&mut self, size: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(size)?;
        self.0 = rest;
        Some(taken)
    }

    /// The next bytes.
    pub fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*taken)
    }

    /// A number of [`put_number`].
    pub fn number(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..u64::BITS).step_by(7) {
            let [byte] = self.array()?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(number);
            }
        }
        None
    }

    /// Bytes of [`put_bytes`].
    pub fn bytes(&mut self) -> Option<&'a [u8]> {
        let size = usize::try_from(self.number()?).ok()?;
        self.take(size)
    }
}

impl OwnedValue {
    /// Appends the value.
    pub fn store(&self, out: &mut Vec<u8>) {
        match &self.0 {
            Owned::Null => out.push(NULL),
            Owned::Boolean(value) => out.push(if *value { TRUE } else { FALSE }),
            Owned::Number(number, raw) => {
                let (kind, bits) = match number {
                    Number::Integer(number) => (INTEGER, *number as u64),
                    Number::Unsigned(number) => (UNSIGNED, *number),
                    Number::Float(number) => (FLOAT, number.to_bits()),
                };
                out.push(kind);
                out.extend_from_slice(&bits.to_le_bytes());
                put_bytes(raw, out);
            }
            Owned::Text(text) => {
                out.push(TEXT);
                put_bytes(text, out);
            }
            Owned::Compound(raw) => {
                out.push(COMPOUND);
                put_bytes(raw, out);
            }
        }
    }

    /// Reads a value; `None`: the bytes are not one.
    pub fn restore(stored: &mut Stored<'_>) -> Option<Self> {
        let [kind] = stored.array()?;
        let mut number = |number: fn(u64) -> Number| {
            let number = number(u64::from_le_bytes(stored.array()?));
            Some(Owned::Number(number, stored.bytes()?.into()))
        };
        Some(OwnedValue(match kind {
            NULL => Owned::Null,
            FALSE => Owned::Boolean(false),
            TRUE => Owned::Boolean(true),
            INTEGER => number(|bits| Number::Integer(bits as i64))?,
            UNSIGNED => number(Number::Unsigned)?,
            FLOAT => number(|bits| Number::Float(f64::from_bits(bits)))?,
            TEXT => Owned::Text(stored.bytes()?.into()),
            COMPOUND => Owned::Compound(stored.bytes()?.into()),
            _ => return None,
        }))
    }
}

impl Accumulator {
    /// Appends the state of an aggregate of a view.
    pub fn store(&self, out: &mut Vec<u8>) {
        match self {
            Accumulator::Count(count) => put_number(*count, out),
            Accumulator::Sum(Sum { count, float_count, integers, floats }) => {
                put_number(*count, out);
                put_number(*float_count, out);
                out.extend_from_slice(&integers.to_le_bytes());
                floats.store(out);
            }
            Accumulator::Spread(Spread { count, large_count, sum, squares }) => {
                put_number(*count, out);
                put_number(*large_count, out);
                sum.store(out);
                squares.store(out);
            }
            Accumulator::Values(values) => {
                put_number(values.counts.len() as u64, out);
                for ((key, value), count) in &values.counts {
                    put_bytes(key, out);
                    value.store(out);
                    put_number(*count, out);
                }
            }
            Accumulator::Chosen(_) | Accumulator::Distinct(_) => debug_assert!(false, "it is of a query"),
        }
    }

    /// Reads the state of an aggregate of a view; `None`: the bytes are not one.
    pub fn restore(kind: &AggregateKind, stored: &mut Stored<'_>) -> Option<Self> {
        Some(match Accumulator::retracting(kind) {
            Accumulator::Count(_) => Accumulator::Count(stored.number()?),
            Accumulator::Sum(_) => Accumulator::Sum(Sum {
                count: stored.number()?,
                float_count: stored.number()?,
                integers: i128::from_le_bytes(stored.array()?),
                floats: ExactSum::restore(stored)?,
            }),
            Accumulator::Spread(_) => Accumulator::Spread(Spread {
                count: stored.number()?,
                large_count: stored.number()?,
                sum: Expansion::restore(stored)?,
                squares: Expansion::restore(stored)?,
            }),
            _ => {
                let count = stored.number()?;
                let entry = |stored: &mut Stored<'_>| {
                    let key = ValueKey::from(stored.bytes()?);
                    Some(((key, OwnedValue::restore(stored)?), stored.number()?))
                };
                let entries: Vec<_> = (0..count).map(|_| entry(stored)).collect::<Option<_>>()?;
                let mut values = Values::default();
                let mut last: Option<&ValueKey> = None;
                for ((key, value), _) in &entries {
                    values.distinct_count += u64::from(last.replace(key) != Some(key));
                    values.size += COUNTED_SIZE + key.len() + value.size();
                }
                values.counts = entries.into_iter().collect();
                Accumulator::Values(values)
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message_type::{Arena, Value};
    use proptest::prelude::*;

    const KINDS: [AggregateKind; 6] = [
        AggregateKind::Count,
        AggregateKind::Sum,
        AggregateKind::VarPop,
        AggregateKind::Min,
        AggregateKind::Any,
        AggregateKind::CountDistinct,
    ];

    fn values() -> impl Strategy<Value = Vec<OwnedValue>> {
        let number = |number| Owned::Number(number, Box::from(*b"4.0"));
        let value = prop_oneof![
            any::<i64>().prop_map(move |it| number(Number::Integer(it))),
            any::<u64>().prop_map(|it| Owned::Number(Number::of_u64(it), Box::default())),
            any::<f64>().prop_map(move |it| number(Number::Float(it))),
            "[a-c]{1,3}".prop_map(|it| Owned::Text(it.into_bytes().into())),
            any::<bool>().prop_map(Owned::Boolean),
            Just(Owned::Null),
            Just(Owned::Compound(Box::from(*b"{}"))),
        ];
        proptest::collection::vec(value.prop_map(OwnedValue), 0..12)
    }

    /// Bytes that are equal for equal values.
    fn key_of(value: Value<'_>) -> Box<[u8]> {
        let mut key = Vec::new();
        OwnedValue::of(value).store(&mut key);
        key.into()
    }

    proptest! {
        #[test]
        fn a_restored_aggregate_continues_as_the_stored_one(before in values(), after in values()) {
            let arena = Arena::default();
            for kind in &KINDS {
                let mut aggregate = Accumulator::retracting(kind);
                before.iter().for_each(|it| {
                    aggregate.add(kind, it.value(), &arena, key_of);
                });
                let mut bytes = Vec::new();
                aggregate.store(&mut bytes);
                let mut stored = Stored(&bytes);
                let mut restored = Accumulator::restore(kind, &mut stored).unwrap();
                prop_assert!(stored.is_empty());
                prop_assert_eq!(restored.heap_size(), aggregate.heap_size());
                for size in 0..bytes.len() {
                    // A part is refused, or it is the state of fewer values.
                    let _ = Accumulator::restore(kind, &mut Stored(&bytes[..size]));
                }
                for each in [&mut aggregate, &mut restored] {
                    after.iter().for_each(|it| {
                        each.add(kind, it.value(), &arena, key_of);
                    });
                    before.iter().for_each(|it| each.remove(kind, it.value(), key_of));
                }
                let mut bytes = [Vec::new(), Vec::new()];
                aggregate.store(&mut bytes[0]);
                restored.store(&mut bytes[1]);
                prop_assert_eq!(&bytes[0], &bytes[1]);
                prop_assert_eq!(aggregate.result(kind), restored.result(kind));
            }
        }

        #[test]
        fn a_number_has_its_bytes_and_any_bytes_are_read_or_refused(
            number: u64,
            bytes in proptest::collection::vec(any::<u8>(), 0..80),
        ) {
            let mut stored = Vec::new();
            put_number(number, &mut stored);
            prop_assert_eq!(Stored(&stored).number(), Some(number));
            KINDS.iter().for_each(|kind| drop(Accumulator::restore(kind, &mut Stored(&bytes))));
        }
    }
}
