//! Aggregates of the values of a group: `SUM`, `COUNT`, `MAX` and others (docs/last-values.md,
//! "Aggregation").
//!
//! An aggregate leaves out NULL and NaN. Sums of integers are exact. Sums of floats are
//! compensated, so that their error does not grow with the number of values.

use std::collections::BTreeSet;

use crate::message_type::{Arena, Number, Value};

/// The values of one kind as bytes, which compare as the values do. Equal values of different types
/// have the same bytes: `1` and `'1'`.
pub type ValueKey = Box<[u8]>;

/// The result of an aggregate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AggregateKind {
    /// The mean of the numbers.
    Avg,
    /// The first value.
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

    /// The bytes that it holds outside of itself.
    pub fn size(&self) -> usize {
        match &self.0 {
            Owned::Null | Owned::Boolean(_) => 0,
            Owned::Number(_, bytes) | Owned::Text(bytes) | Owned::Compound(bytes) => bytes.len(),
        }
    }
}

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

    /// Adds a value. `key_of` makes its bytes to compare. Returns the bytes of memory that it takes
    /// in addition.
    pub fn add(
        &mut self,
        kind: &AggregateKind,
        value: Value<'_>,
        arena: &Arena,
        key_of: impl FnOnce(Value<'_>) -> ValueKey,
    ) -> usize {
        let value = value.scalar();
        if value.is_null() || matches!(value, Value::Number(number, _) if number.is_nan()) {
            return 0;
        }
        match self {
            Accumulator::Count(count) => {
                *count += 1;
                0
            }
            Accumulator::Sum(sum) => {
                value.to_number().into_iter().for_each(|number| sum.add(number));
                0
            }
            Accumulator::Spread(spread) => {
                value.to_number().into_iter().for_each(|number| spread.add(number.as_f64()));
                0
            }
            Accumulator::Chosen(Some(_)) if *kind == AggregateKind::Any => 0,
            Accumulator::Chosen(chosen) => {
                if matches!(value, Value::Compound(_)) && *kind != AggregateKind::Any {
                    return 0;
                }
                let key = key_of(value);
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
            Accumulator::Distinct(distinct) => {
                if matches!(value, Value::Compound(_)) {
                    return 0;
                }
                let wants_text = matches!(kind, AggregateKind::DistinctList(_));
                let text = if wants_text { arena.text(value).unwrap_or_default() } else { &[] };
                distinct.add(key_of(value), text)
            }
        }
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
        })
    }
}

/// A sum: integers exactly, floats with compensation.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sum {
    count: u64,
    integers: i128,
    floats: f64,
    /// The sum of the errors of the additions of floats.
    compensation: f64,
    has_floats: bool,
    /// The integers are beyond 128 bits, so that they are among the floats.
    has_overflowed: bool,
}

impl Sum {
    fn add(&mut self, number: Number) {
        if number.is_nan() {
            return;
        }
        self.count += 1;
        match number.as_i128() {
            Some(integer) => match self.integers.checked_add(integer) {
                Some(sum) => self.integers = sum,
                None => {
                    self.has_overflowed = true;
                    self.add_float(integer as f64);
                }
            },
            None => {
                self.has_floats = true;
                self.add_float(number.as_f64());
            }
        }
    }

    /// Neumaier's addition: it also keeps what a small sum loses to a large value.
    fn add_float(&mut self, float: f64) {
        let sum = self.floats + float;
        if sum.is_finite() {
            self.compensation += if self.floats.abs() >= float.abs() {
                (self.floats - sum) + float
            } else {
                (float - sum) + self.floats
            };
        }
        self.floats = sum;
    }

    fn total(&self) -> Option<Number> {
        if self.count == 0 {
            return None;
        }
        if !self.has_floats && !self.has_overflowed {
            return Some(Number::of_i128(self.integers));
        }
        Some(Number::Float(self.float()))
    }

    fn float(&self) -> f64 {
        let mut all = *self;
        all.add_float(self.integers as f64);
        all.floats + all.compensation
    }

    fn mean(&self) -> Option<f64> {
        (self.count > 0).then(|| self.float() / self.count as f64)
    }
}

/// The variance, by Welford's method: without the difference of two large sums.
#[derive(Clone, Copy, Debug, Default)]
pub struct Spread {
    count: u64,
    mean: f64,
    /// The sum of the squares of the differences to the mean.
    squares: f64,
}

impl Spread {
    fn add(&mut self, value: f64) {
        if value.is_nan() {
            return;
        }
        self.count += 1;
        let difference = value - self.mean;
        self.mean += difference / self.count as f64;
        self.squares += difference * (value - self.mean);
    }

    fn result(&self, kind: &AggregateKind) -> Option<f64> {
        let (is_sample, is_root) = match kind {
            AggregateKind::StddevPop => (false, true),
            AggregateKind::StddevSamp => (true, true),
            AggregateKind::VarPop => (false, false),
            _ => (true, false),
        };
        let divisor = self.count.checked_sub(u64::from(is_sample)).filter(|divisor| *divisor > 0)?;
        let variance = self.squares / divisor as f64;
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
