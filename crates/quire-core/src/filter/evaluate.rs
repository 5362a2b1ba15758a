//! Whether a message is what a filter asks for: three-valued logic over its fields (reference: topics-filters-sow 1.6 to 1.11).

use std::cmp::Ordering;

use super::parse::{Comparison, Node, Operand};
use crate::message_type::{Fields, Scalar};

pub(super) fn is_true(node: &Node, fields: &Fields) -> bool {
    evaluate(node, fields) == Some(true)
}

/// `None` is NULL.
fn evaluate(node: &Node, fields: &Fields) -> Option<bool> {
    match node {
        Node::Any(nodes) => {
            let mut result = Some(false);
            for node in nodes {
                match evaluate(node, fields) {
                    Some(true) => return Some(true),
                    None => result = None,
                    Some(false) => (),
                }
            }
            result
        }
        Node::All(nodes) => {
            let mut result = Some(true);
            for node in nodes {
                match evaluate(node, fields) {
                    Some(false) => return Some(false),
                    None => result = None,
                    Some(true) => (),
                }
            }
            result
        }
        Node::Not(node) => evaluate(node, fields).map(|truth| !truth),
        Node::Compare { left, comparison, right } => any_pair(left, right, fields, *comparison),
        Node::In { left, members } => {
            let mut result = Some(false);
            for member in members {
                match any_pair(left, member, fields, Comparison::Equal) {
                    Some(true) => return Some(true),
                    None => result = None,
                    Some(false) => (),
                }
            }
            result
        }
        Node::Between { left, low, high } => any(left, fields, |value| {
            let low = first(low, fields).and_then(|low| compare(value, low));
            let high = first(high, fields).and_then(|high| compare(value, high));
            match (low.map(Ordering::is_ge), high.map(Ordering::is_le)) {
                (Some(false), _) | (_, Some(false)) => Some(false),
                (Some(true), Some(true)) => Some(true),
                _ => None,
            }
        }),
        Node::Like { left, pattern } => any(left, fields, |value| match value {
            Scalar::Null | Scalar::Compound => None,
            Scalar::Text(text) => Some(pattern.is_match(text)),
            Scalar::Bool(truth) => Some(pattern.is_match(if truth { b"true" } else { b"false" })),
            Scalar::Int(number) => Some(pattern.is_match(number.to_string().as_bytes())),
            Scalar::Float(number) => Some(pattern.is_match(number.to_string().as_bytes())),
        }),
        Node::IsNull { left } => Some(!values(left, fields).any(|value| value != Scalar::Null)),
        Node::Truth { value } => match first(value, fields)? {
            Scalar::Bool(truth) => Some(truth),
            Scalar::Int(number) => Some(number != 0),
            Scalar::Float(number) => (!number.is_nan()).then_some(number != 0.0),
            Scalar::Text(text) if text.eq_ignore_ascii_case(b"true") => Some(true),
            Scalar::Text(text) if text.eq_ignore_ascii_case(b"false") => Some(false),
            Scalar::Text(text) => number(text).map(|number| number != 0.0),
            Scalar::Null | Scalar::Compound => None,
        },
    }
}

/// Whether any element of one side compares so with any element of the other (arrays are any-element; reference 1.11).
fn any_pair(left: &Operand, right: &Operand, fields: &Fields, comparison: Comparison) -> Option<bool> {
    any(left, fields, |left| {
        any(right, fields, |right| compare(left, right).map(|order| holds(comparison, order)))
    })
}

/// TRUE if it holds for any value, else NULL if it was NULL for any or there is none, else FALSE.
fn any(
    operand: &Operand,
    fields: &Fields,
    mut holds: impl FnMut(Scalar<'_>) -> Option<bool>,
) -> Option<bool> {
    let mut result = None;
    let mut is_first = true;
    for value in values(operand, fields) {
        match holds(value) {
            Some(true) => return Some(true),
            Some(false) if is_first => result = Some(false),
            Some(false) => (),
            None => result = None,
        }
        is_first = false;
    }
    result
}

fn values<'a>(operand: &'a Operand, fields: &'a Fields) -> impl Iterator<Item = Scalar<'a>> {
    let (field, constant) = match operand {
        Operand::Field(path) => (Some(fields.values(*path)), None),
        Operand::Null => (None, None),
        Operand::Bool(truth) => (None, Some(Scalar::Bool(*truth))),
        Operand::Int(number) => (None, Some(Scalar::Int(*number))),
        Operand::Float(number) => (None, Some(Scalar::Float(*number))),
        Operand::Text(text) => (None, Some(Scalar::Text(text))),
    };
    field.into_iter().flatten().chain(constant)
}

fn first<'a>(operand: &'a Operand, fields: &'a Fields) -> Option<Scalar<'a>> {
    values(operand, fields).next()
}

/// How two values stand to each other; `None` when either is NULL, or a NaN. Two texts compare as bytes; a text against a number as
/// numbers when it is one, and above every number when it is not (reference 1.9).
fn compare(left: Scalar<'_>, right: Scalar<'_>) -> Option<Ordering> {
    match (left, right) {
        (Scalar::Null | Scalar::Compound, _) | (_, Scalar::Null | Scalar::Compound) => None,
        (Scalar::Text(left), Scalar::Text(right)) => Some(left.cmp(right)),
        (Scalar::Int(left), Scalar::Int(right)) => Some(left.cmp(&right)),
        (Scalar::Bool(truth), Scalar::Text(text)) if is_boolean(text) => {
            Some(truth.cmp(&text.eq_ignore_ascii_case(b"true")))
        }
        (Scalar::Text(text), Scalar::Bool(truth)) if is_boolean(text) => {
            Some(text.eq_ignore_ascii_case(b"true").cmp(&truth))
        }
        (Scalar::Text(text), other) => match number(text) {
            Some(number) => number.partial_cmp(&as_number(other)?),
            None => Some(Ordering::Greater),
        },
        (other, Scalar::Text(text)) => match number(text) {
            Some(number) => as_number(other)?.partial_cmp(&number),
            None => Some(Ordering::Less),
        },
        (left, right) => as_number(left)?.partial_cmp(&as_number(right)?),
    }
}

fn is_boolean(text: &[u8]) -> bool {
    text.eq_ignore_ascii_case(b"true") || text.eq_ignore_ascii_case(b"false")
}

fn as_number(value: Scalar<'_>) -> Option<f64> {
    match value {
        Scalar::Bool(truth) => Some(f64::from(u8::from(truth))),
        Scalar::Int(number) => Some(number as f64),
        Scalar::Float(number) => Some(number),
        Scalar::Null | Scalar::Compound | Scalar::Text(_) => None,
    }
}

/// The whole text as a decimal number; `nan`, `inf`, hex and blanks are none (reference 1.6).
fn number(text: &[u8]) -> Option<f64> {
    if !text.iter().all(|byte| byte.is_ascii_digit() || b"+-.eE".contains(byte)) {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

fn holds(comparison: Comparison, order: Ordering) -> bool {
    match comparison {
        Comparison::Equal => order.is_eq(),
        Comparison::NotEqual => order.is_ne(),
        Comparison::Less => order.is_lt(),
        Comparison::LessOrEqual => order.is_le(),
        Comparison::Greater => order.is_gt(),
        Comparison::GreaterOrEqual => order.is_ge(),
    }
}
