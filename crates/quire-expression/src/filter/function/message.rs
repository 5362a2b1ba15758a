//! Functions about the message around its data, about NULL, and about types.

use std::io::Write;

use super::time;
use crate::filter::evaluate::Evaluation;
use crate::filter::node::Node;
use crate::message_type::{Number, Truth, Value};

pub fn coalesce<'a>(evaluation: &Evaluation<'a>, arguments: &'a [Node]) -> Value<'a> {
    let values = arguments.iter().map(|argument| evaluation.value(argument));
    values.into_iter().find(|value| !value.scalar().is_null()).unwrap_or(Value::Null)
}

/// A float is cut towards zero. NaN, and a float that no 64-bit integer can hold, are NULL.
pub fn as_integer<'a>(evaluation: &Evaluation<'a>, arguments: &'a [Node]) -> Value<'a> {
    match evaluation.number(&arguments[0]) {
        Some(Number::Float(float)) if float.is_nan() => Value::Null,
        Some(Number::Float(float)) => match Number::of_i128(float as i128) {
            Number::Float(_) => Value::Null,
            exact => Value::number(exact),
        },
        Some(exact) => Value::number(exact),
        None => Value::Null,
    }
}

pub fn as_float<'a>(evaluation: &Evaluation<'a>, arguments: &'a [Node]) -> Value<'a> {
    evaluation.number(&arguments[0]).map_or(Value::Null, |number| Value::float(number.as_f64()))
}

pub fn as_string<'a>(evaluation: &Evaluation<'a>, arguments: &'a [Node]) -> Value<'a> {
    evaluation.text(&arguments[0]).map_or(Value::Null, Value::text)
}

pub fn as_boolean<'a>(evaluation: &Evaluation<'a>, arguments: &'a [Node]) -> Value<'a> {
    Truth::value(evaluation.truth(&arguments[0]))
}

pub fn message_size<'a>(evaluation: &Evaluation<'a>, _arguments: &'a [Node]) -> Value<'a> {
    Value::integer(evaluation.message.data.len() as i64)
}

pub fn correlation_id<'a>(evaluation: &Evaluation<'a>, _arguments: &'a [Node]) -> Value<'a> {
    Value::text(evaluation.message.correlation_id)
}

/// The value of the header with this name. NULL when the message has no such header.
pub fn header<'a>(evaluation: &Evaluation<'a>, arguments: &'a [Node]) -> Value<'a> {
    let Some(name) = evaluation.text(&arguments[0]) else { return Value::Null };
    evaluation.message.headers.get(name).map_or(Value::Null, |value| Value::text(value.as_bytes()))
}

/// A record of a last-value topic was updated when this instance received its message. Other
/// messages have no record, and get the current time.
pub fn last_updated<'a>(evaluation: &Evaluation<'a>, _arguments: &'a [Node]) -> Value<'a> {
    let message = evaluation.message;
    Value::float(time::seconds(if message.key.is_some() { message.timestamp } else { message.now }))
}

pub fn bookmark<'a>(evaluation: &Evaluation<'a>, _arguments: &'a [Node]) -> Value<'a> {
    let Some(bookmark) = evaluation.message.bookmark else { return Value::Null };
    let mut text = evaluation.arena.builder();
    // Writing to memory does not fail: what is too large is NULL.
    let _ = write!(text, "{bookmark}");
    text.value()
}

pub fn topic_name<'a>(evaluation: &Evaluation<'a>, _arguments: &'a [Node]) -> Value<'a> {
    Value::text(evaluation.message.topic.as_bytes())
}

/// Only messages of a last-value topic have a key.
pub fn sow_key<'a>(evaluation: &Evaluation<'a>, _arguments: &'a [Node]) -> Value<'a> {
    evaluation.message.key.map_or(Value::Null, Value::text)
}
