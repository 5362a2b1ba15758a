//! Functions that take a whole array. A single value counts as an array of one; NULL as an empty
//! one.

use std::cmp::Ordering;

use crate::filter::evaluate::Evaluation;
use crate::filter::node::Node;
use crate::message_type::{Number, Value, compare};

pub fn count<'a>(evaluation: &Evaluation<'a>, arguments: &'a [Node]) -> Value<'a> {
    Value::integer(elements(&evaluation.value(&arguments[0])).len() as i64)
}

pub fn max<'a>(evaluation: &Evaluation<'a>, arguments: &'a [Node]) -> Value<'a> {
    best(elements(&evaluation.value(&arguments[0])).iter().copied(), Ordering::Greater)
}

pub fn min<'a>(evaluation: &Evaluation<'a>, arguments: &'a [Node]) -> Value<'a> {
    best(elements(&evaluation.value(&arguments[0])).iter().copied(), Ordering::Less)
}

/// NULL elements are ignored; integers are added exactly.
pub fn sum<'a>(evaluation: &Evaluation<'a>, arguments: &'a [Node]) -> Value<'a> {
    let value = evaluation.value(&arguments[0]);
    let (mut exact, mut float, mut count) = (0_i128, None::<f64>, 0);
    for number in elements(&value).iter().filter_map(|element| element.to_number()) {
        count += 1;
        match number.as_i128() {
            // Each fits 64 bits, and there are far fewer than 2^63 elements.
            Some(integer) => exact += integer,
            None => float = Some(float.unwrap_or(0.0) + number.as_f64()),
        }
    }
    match (count, float) {
        (0, _) => Value::Null,
        (_, None) => Value::number(Number::of_i128(exact)),
        (_, Some(float)) => Value::float(float + exact as f64),
    }
}

pub fn to_string<'a>(evaluation: &Evaluation<'a>, arguments: &'a [Node]) -> Value<'a> {
    let value = evaluation.value(&arguments[0]);
    let delimiter = evaluation.text(&arguments[1]).unwrap_or_default();
    let replacement = evaluation.text(&arguments[2]).unwrap_or_default();
    let mut text = evaluation.arena.builder();
    for (place, element) in elements(&value).iter().enumerate() {
        if place > 0 {
            text.push(delimiter);
        }
        text.push(evaluation.arena.text(*element).unwrap_or(replacement));
        if text.overflowed() {
            break;
        }
    }
    text.value()
}

/// The value that compares as `wanted` with all others. NULL and NaN are ignored.
pub(super) fn best<'a>(values: impl Iterator<Item = Value<'a>>, wanted: Ordering) -> Value<'a> {
    values
        .map(Value::scalar)
        .filter(|value| compare(*value, *value).is_some())
        .reduce(|best, value| if compare(value, best) == Some(wanted) { value } else { best })
        .unwrap_or(Value::Null)
}

fn elements<'v, 'a>(value: &'v Value<'a>) -> &'v [Value<'a>] {
    match value {
        Value::Null => &[],
        Value::Array(elements) => elements,
        single => std::slice::from_ref(single),
    }
}
