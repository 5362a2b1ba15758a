//! Aggregates of the values of a group: `SUM`, `COUNT`, `MAX` and others (docs/last-values.md,
//! "Aggregation").
//!
//! An aggregate leaves out NULL and NaN. Sums are exact, and rounded once (`exact_sum.rs`). So they
//! do not depend on the order of the values.
//!
//! The aggregates of a query only get values. Those of a view also lose values, so they keep every
//! different value where a query keeps the best one ([`Accumulator::retracting`]).

mod stored;

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use super::exact_sum::{ExactSum, Expansion};
use crate::message_type::{Arena, Number, Value};

pub use stored::{ENGINE_VERSION, Stored, put_bytes, put_number};

/// The values of one kind as bytes, which compare as the values do. Equal values of different types
/// have the same bytes: `1` and `'1'`.
pub type ValueKey = Box<[u8]>;

/// The result of an aggregate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AggregateKind {
    /// The mean of the numbers.
    Avg,
    /// One of the values: the first of a query, and the least of a view.
    Any,
    /// The number of values.
    Count,
    /// The number of different values.
    CountDistinct,
    /// The different values as one text, with this text between them.
    DistinctList(Box<[u8]>),
    /// The least value: numbers before texts.
    Min,
    /// The greatest value.
    Max,
    /// The sum of the numbers.
    Sum,
    /// The standard deviation of all values.
    StddevPop,
    /// The standard deviation, when the values are a sample.
    StddevSamp,
    /// The variance of all values.
    VarPop,
    /// The variance, when the values are a sample.
    VarSamp,
}

impl AggregateKind {
    /// The name, as expressions have it.
    pub fn name(&self) -> &'static str {
        match self {
            AggregateKind::Avg => "AVG",
            AggregateKind::Any => "ANY",
            AggregateKind::Count => "COUNT",
            AggregateKind::CountDistinct => "COUNT_DISTINCT",
            AggregateKind::DistinctList(_) => "DISTINCT_LIST",
            AggregateKind::Min => "MIN",
            AggregateKind::Max => "MAX",
            AggregateKind::Sum => "SUM",
            AggregateKind::StddevPop => "STDDEV_POP",
            AggregateKind::StddevSamp => "STDDEV_SAMP",
            AggregateKind::VarPop => "VAR_POP",
            AggregateKind::VarSamp => "VAR_SAMP",
        }
    }

    /// The aggregate with this name in capitals.
    pub(super) fn of(name: &str) -> Option<AggregateKind> {
        Some(match name {
            "AVG" => AggregateKind::Avg,
            "ANY" => AggregateKind::Any,
            "COUNT" => AggregateKind::Count,
            "COUNT_DISTINCT" => AggregateKind::CountDistinct,
            "DISTINCT_LIST" => AggregateKind::DistinctList(Box::from(*b",")),
            "MIN" => AggregateKind::Min,
            "MAX" => AggregateKind::Max,
            "SUM" => AggregateKind::Sum,
            "STDDEV_POP" => AggregateKind::StddevPop,
            "STDDEV_SAMP" => AggregateKind::StddevSamp,
            "VARIANCE" | "VAR_SAMP" => AggregateKind::VarSamp,
            "VAR_POP" => AggregateKind::VarPop,
            _ => return None,
        })
    }
}

/// A single value that owns its bytes.
#[derive(Clone, Debug, Default)]
pub struct OwnedValue(Owned);

#[derive(Clone, Debug, Default)]
enum Owned {
    #[default]
    Null,
    Boolean(bool),
    Number(Number, Box<[u8]>),
    Text(Box<[u8]>),
    Compound(Box<[u8]>),
}

impl OwnedValue {
    /// A copy of a value. An array becomes its first element.
    pub fn of(value: Value<'_>) -> Self {
        OwnedValue(match value.scalar() {
            Value::Boolean(value) => Owned::Boolean(value),
            Value::Number(number, raw) => Owned::Number(number, raw.into()),
            Value::Text(text) => Owned::Text(text.into()),
            Value::Compound(raw) => Owned::Compound(raw.into()),
            Value::Null | Value::Array(_) => Owned::Null,
        })
    }

    /// The value, as expressions have it.
    pub fn value(&self) -> Value<'_> {
        match &self.0 {
            Owned::Null => Value::Null,
            Owned::Boolean(value) => Value::Boolean(*value),
            Owned::Number(number, raw) => Value::Number(*number, raw),
            Owned::Text(text) => Value::Text(text),
            Owned::Compound(raw) => Value::Compound(raw),
        }
    }

    /// Its text, as functions see it.
    fn text(&self) -> Vec<u8> {
        match &self.0 {
            Owned::Null => Vec::new(),
            Owned::Boolean(value) => value.to_string().into_bytes(),
            Owned::Number(number, raw) if raw.is_empty() => {
                let mut text = Vec::new();
                // Memory takes every byte.
                let _ = number.write_text(&mut text);
                text
            }
            Owned::Number(_, bytes) | Owned::Text(bytes) | Owned::Compound(bytes) => bytes.to_vec(),
        }
    }

    /// The bytes that it holds outside of itself.
    pub fn size(&self) -> usize {
        self.bytes().len()
    }

    fn bytes(&self) -> &[u8] {
        match &self.0 {
            Owned::Null | Owned::Boolean(_) => &[],
            Owned::Number(_, bytes) | Owned::Text(bytes) | Owned::Compound(bytes) => bytes,
        }
    }
}

/// The order of values that are equal and written in different ways: by kind, and then by their
/// bytes.
impl Ord for OwnedValue {
    fn cmp(&self, other: &Self) -> Ordering {
        let parts = |value: &OwnedValue| match value.0 {
            Owned::Null => (0, 0),
            Owned::Boolean(value) => (1, u64::from(value)),
            Owned::Number(Number::Integer(number), _) => (2, number as u64),
            Owned::Number(Number::Unsigned(number), _) => (3, number),
            Owned::Number(Number::Float(number), _) => (4, number.to_bits()),
            Owned::Text(_) => (5, 0),
            Owned::Compound(_) => (6, 0),
        };
        parts(self).cmp(&parts(other)).then_with(|| self.bytes().cmp(other.bytes()))
    }
}

impl PartialOrd for OwnedValue {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for OwnedValue {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for OwnedValue {}

/// The values of one aggregate in one group.
#[derive(Clone, Debug)]
pub enum Accumulator {
    /// `COUNT`.
    Count(u64),
    /// `SUM` and `AVG`.
    Sum(Sum),
    /// The variance and the standard deviation.
    Spread(Spread),
    /// `MIN`, `MAX` and `ANY`: the value that was chosen, and its bytes to compare.
    Chosen(Option<(ValueKey, OwnedValue)>),
    /// `COUNT_DISTINCT` and `DISTINCT_LIST`.
    Distinct(Distinct),
    /// The aggregates of a view that are chosen from the values: `MIN`, `MAX`, `ANY`,
    /// `COUNT_DISTINCT` and `DISTINCT_LIST`.
    Values(Values),
}

impl Accumulator {
    /// An aggregate without a value.
    pub fn new(kind: &AggregateKind) -> Self {
        match kind {
            AggregateKind::Count => Accumulator::Count(0),
            AggregateKind::Sum | AggregateKind::Avg => Accumulator::Sum(Sum::default()),
            AggregateKind::Min | AggregateKind::Max | AggregateKind::Any => Accumulator::Chosen(None),
            AggregateKind::CountDistinct | AggregateKind::DistinctList(_) => {
                Accumulator::Distinct(Distinct::default())
            }
            AggregateKind::StddevPop
            | AggregateKind::StddevSamp
            | AggregateKind::VarPop
            | AggregateKind::VarSamp => Accumulator::Spread(Spread::default()),
        }
    }

    /// As [`new`](Self::new), and values can be [removed](Self::remove).
    pub fn retracting(kind: &AggregateKind) -> Self {
        match Accumulator::new(kind) {
            Accumulator::Chosen(_) | Accumulator::Distinct(_) => Accumulator::Values(Values::default()),
            other => other,
        }
    }

    /// Adds a value. `key_of` makes its bytes to compare. Returns the bytes of memory that it takes
    /// in addition.
    pub fn add(
        &mut self,
        kind: &AggregateKind,
        value: Value<'_>,
        arena: &Arena,
        key_of: impl FnOnce(Value<'_>) -> ValueKey,
    ) -> usize {
        let Some(value) = counted(kind, value) else { return 0 };
        match self {
            Accumulator::Count(count) => *count += 1,
            Accumulator::Sum(sum) => value.to_number().into_iter().for_each(|number| sum.add(number)),
            Accumulator::Spread(spread) => {
                value.to_number().into_iter().for_each(|number| spread.add(number.as_f64()));
            }
            Accumulator::Chosen(Some(_)) if *kind == AggregateKind::Any => (),
            Accumulator::Chosen(chosen) => return choose(chosen, kind, value, key_of(value)),
            Accumulator::Distinct(distinct) => {
                let wants_text = matches!(kind, AggregateKind::DistinctList(_));
                let text = if wants_text { arena.text(value).unwrap_or_default() } else { &[] };
                return distinct.add(key_of(value), text);
            }
            Accumulator::Values(values) => values.add(key_of(value), OwnedValue::of(value)),
        }
        0
    }

    /// Removes a value that was added. The accumulator is [`retracting`](Self::retracting).
    pub fn remove(
        &mut self,
        kind: &AggregateKind,
        value: Value<'_>,
        key_of: impl FnOnce(Value<'_>) -> ValueKey,
    ) {
        let Some(value) = counted(kind, value) else { return };
        match self {
            Accumulator::Count(count) => *count = count.saturating_sub(1),
            Accumulator::Sum(sum) => value.to_number().into_iter().for_each(|number| sum.remove(number)),
            Accumulator::Spread(spread) => {
                value.to_number().into_iter().for_each(|number| spread.remove(number.as_f64()));
            }
            Accumulator::Values(values) => values.remove(key_of(value), OwnedValue::of(value)),
            Accumulator::Chosen(_) | Accumulator::Distinct(_) => debug_assert!(false, "it forgets values"),
        }
    }

    /// For the aggregates of a view: the bytes that it holds outside of itself.
    pub fn heap_size(&self) -> usize {
        if let Accumulator::Values(values) = self { values.size } else { 0 }
    }

    /// The result.
    pub fn result(&self, kind: &AggregateKind) -> OwnedValue {
        let number = |number: Option<Number>| match number {
            Some(number) if !number.is_nan() => Owned::Number(number, Box::default()),
            _ => Owned::Null,
        };
        OwnedValue(match self {
            Accumulator::Count(count) => number(Some(Number::of_u64(*count))),
            Accumulator::Sum(sum) if *kind == AggregateKind::Avg => number(sum.mean().map(Number::Float)),
            Accumulator::Sum(sum) => number(sum.total()),
            Accumulator::Spread(spread) => number(spread.result(kind).map(Number::Float)),
            Accumulator::Chosen(chosen) => return chosen.clone().map(|(_, value)| value).unwrap_or_default(),
            Accumulator::Distinct(distinct) => match kind {
                AggregateKind::DistinctList(delimiter) => distinct.list(delimiter),
                _ => number(Some(Number::of_u64(distinct.values.len() as u64))),
            },
            Accumulator::Values(values) => return values.result(kind),
        })
    }
}

/// The value that an aggregate counts; `None` for NULL and NaN, and for an object where values are
/// compared.
fn counted<'a>(kind: &AggregateKind, value: Value<'a>) -> Option<Value<'a>> {
    use AggregateKind::{CountDistinct, DistinctList, Max, Min};
    match value.scalar() {
        Value::Null => None,
        Value::Number(number, _) if number.is_nan() => None,
        Value::Compound(_) if matches!(kind, Min | Max | CountDistinct | DistinctList(_)) => None,
        value => Some(value),
    }
}

/// Replaces the value that was chosen by a better one. Returns the bytes of memory that it takes in
/// addition.
fn choose(
    chosen: &mut Option<(ValueKey, OwnedValue)>,
    kind: &AggregateKind,
    value: Value<'_>,
    key: ValueKey,
) -> usize {
    let is_better = match chosen {
        None => true,
        Some((best, _)) if *kind == AggregateKind::Min => key < *best,
        Some((best, _)) => key > *best,
    };
    if !is_better {
        return 0;
    }
    let size = |(key, value): &(ValueKey, OwnedValue)| key.len() + value.size();
    let before = chosen.as_ref().map_or(0, size);
    let after = (key, OwnedValue::of(value));
    let added = size(&after).saturating_sub(before);
    *chosen = Some(after);
    added
}

/// A sum. The values have at most 64 bits, so the sum of the integers has at most 128: there are
/// fewer than 2^64 values.
#[derive(Clone, Debug, Default)]
pub struct Sum {
    count: u64,
    float_count: u64,
    integers: i128,
    floats: ExactSum,
}

impl Sum {
    fn add(&mut self, number: Number) {
        match number.as_i128() {
            Some(integer) => self.integers = self.integers.wrapping_add(integer),
            None if number.is_nan() => return,
            None => {
                self.float_count += 1;
                self.floats.add(number.as_f64());
            }
        }
        self.count += 1;
    }

    fn remove(&mut self, number: Number) {
        match number.as_i128() {
            Some(integer) => self.integers = self.integers.wrapping_sub(integer),
            None if number.is_nan() => return,
            None => {
                self.float_count = self.float_count.saturating_sub(1);
                self.floats.remove(number.as_f64());
            }
        }
        self.count = self.count.saturating_sub(1);
    }

    fn total(&self) -> Option<Number> {
        match (self.count, self.float_count) {
            (0, _) => None,
            (_, 0) => Some(Number::of_i128(self.integers)),
            _ => Some(Number::Float(self.float())),
        }
    }

    fn float(&self) -> f64 {
        if self.float_count == 0 {
            return self.integers as f64;
        }
        let mut all = self.floats.clone();
        all.add_integer(self.integers);
        all.rounded()
    }

    fn mean(&self) -> Option<f64> {
        (self.count > 0).then(|| self.float() / self.count as f64)
    }
}

/// The variance: from the exact sums of the values and of their squares. So their difference loses
/// nothing.
#[derive(Clone, Debug, Default)]
pub struct Spread {
    count: u64,
    /// Values whose squares are not in the range of floats.
    large_count: u64,
    sum: Expansion,
    squares: Expansion,
}

/// The square of a smaller float is in the range of floats, with room for a sum of many.
const SQUARED_MAX: f64 = f64::from_bits((1023 + 450) << 52);

impl Spread {
    fn add(&mut self, value: f64) {
        if value.is_nan() {
            return;
        }
        self.count += 1;
        if value.abs() >= SQUARED_MAX {
            self.large_count += 1;
            return;
        }
        self.sum.add(value);
        self.squares.add_product(value, value, 1.0);
    }

    fn remove(&mut self, value: f64) {
        if value.is_nan() {
            return;
        }
        self.count = self.count.saturating_sub(1);
        if value.abs() >= SQUARED_MAX {
            self.large_count = self.large_count.saturating_sub(1);
            return;
        }
        self.sum.add(-value);
        self.squares.add_product(value, value, -1.0);
    }

    fn result(&self, kind: &AggregateKind) -> Option<f64> {
        let (is_sample, is_root) = match kind {
            AggregateKind::StddevPop => (false, true),
            AggregateKind::StddevSamp => (true, true),
            AggregateKind::VarPop => (false, false),
            _ => (true, false),
        };
        let divisor = self.count.checked_sub(u64::from(is_sample)).filter(|divisor| *divisor > 0)?;
        if self.large_count > 0 {
            return None;
        }
        let count = self.count as f64;
        // The number of values times the sum of the squares, minus the square of the sum.
        let mut difference = Expansion::default();
        self.squares.parts().iter().for_each(|part| difference.add_product(*part, count, 1.0));
        for part in self.sum.parts() {
            self.sum.parts().iter().for_each(|other| difference.add_product(*part, *other, -1.0));
        }
        let variance = difference.rounded().max(0.0) / count / divisor as f64;
        Some(if is_root { variance.sqrt() } else { variance })
    }
}

/// Different values, in their order.
#[derive(Clone, Debug, Default)]
pub struct Distinct {
    /// The bytes to compare, and the text of the first of the equal values.
    values: BTreeSet<(ValueKey, Box<[u8]>)>,
}

/// Bytes of a set for each value.
const DISTINCT_SIZE: usize = 48;

impl Distinct {
    fn add(&mut self, key: ValueKey, text: &[u8]) -> usize {
        // An empty text is before every other.
        let first = self.values.range((key.clone(), Box::default())..).next();
        if first.is_some_and(|(found, _)| *found == key) {
            return 0;
        }
        let size = DISTINCT_SIZE + key.len() + text.len();
        self.values.insert((key, text.into()));
        size
    }

    fn list(&self, delimiter: &[u8]) -> Owned {
        let mut list = Vec::new();
        for (place, (_, text)) in self.values.iter().enumerate() {
            if place > 0 {
                list.extend_from_slice(delimiter);
            }
            list.extend_from_slice(text);
        }
        if list.is_empty() { Owned::Null } else { Owned::Text(list.into()) }
    }
}

/// All values of a group, each different one with its number, in their order.
#[derive(Clone, Debug, Default)]
pub struct Values {
    /// Equal values that are written in different ways are next to each other.
    counts: BTreeMap<(ValueKey, OwnedValue), u64>,
    /// The number of values that are not equal.
    distinct_count: u64,
    /// The bytes that they take.
    size: usize,
}

/// Bytes of a map for each value.
const COUNTED_SIZE: usize = 80;

impl Values {
    fn add(&mut self, key: ValueKey, value: OwnedValue) {
        let value = (key, value);
        if let Some(count) = self.counts.get_mut(&value) {
            *count += 1;
            return;
        }
        self.distinct_count += u64::from(!self.has(&value.0));
        self.size += COUNTED_SIZE + value.0.len() + value.1.size();
        self.counts.insert(value, 1);
    }

    fn remove(&mut self, key: ValueKey, value: OwnedValue) {
        let value = (key, value);
        let Some(count) = self.counts.get_mut(&value) else {
            return debug_assert!(false, "only a value that was added is removed");
        };
        *count -= 1;
        if *count == 0 {
            self.counts.remove(&value);
            self.size -= COUNTED_SIZE + value.0.len() + value.1.size();
            self.distinct_count -= u64::from(!self.has(&value.0));
        }
    }

    /// Whether there is a value with these bytes.
    fn has(&self, key: &ValueKey) -> bool {
        // NULL is before every other value.
        let first = self.counts.range((key.clone(), OwnedValue::default())..).next();
        first.is_some_and(|((found, _), _)| found == key)
    }

    fn result(&self, kind: &AggregateKind) -> OwnedValue {
        let shown = |entry: Option<(&(ValueKey, OwnedValue), &u64)>| {
            entry.map(|((_, value), _)| value.clone()).unwrap_or_default()
        };
        match kind {
            AggregateKind::Max => {
                shown(self.counts.last_key_value().and_then(|((key, _), _)| {
                    self.counts.range((key.clone(), OwnedValue::default())..).next()
                }))
            }
            AggregateKind::CountDistinct => {
                OwnedValue(Owned::Number(Number::of_u64(self.distinct_count), Box::default()))
            }
            AggregateKind::DistinctList(delimiter) => OwnedValue(self.list(delimiter)),
            _ => shown(self.counts.first_key_value()),
        }
    }

    fn list(&self, delimiter: &[u8]) -> Owned {
        let (mut list, mut last) = (Vec::new(), None);
        for (key, value) in self.counts.keys() {
            if last == Some(key) {
                continue;
            }
            if last.replace(key).is_some() {
                list.extend_from_slice(delimiter);
            }
            list.extend_from_slice(&value.text());
        }
        if list.is_empty() { Owned::Null } else { Owned::Text(list.into()) }
    }
}
