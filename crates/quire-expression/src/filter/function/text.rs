//! Functions on text. Text is bytes; case is folded for ASCII letters only, so that no character is
//! damaged.

use memchr::memmem;

use crate::filter::evaluate::Evaluation;
use crate::filter::like::Pattern;
use crate::filter::node::Node;
use crate::message_type::{Number, Value};

pub fn instr<'a>(evaluation: &Evaluation<'a>, arguments: &'a [Node]) -> Value<'a> {
    let [Some(text), Some(part)] = both(evaluation, arguments) else { return Value::Null };
    position(text, part)
}

pub fn instr_i<'a>(evaluation: &Evaluation<'a>, arguments: &'a [Node]) -> Value<'a> {
    let [Some(text), Some(part)] = both(evaluation, arguments) else { return Value::Null };
    // Folding copies, but keeps the search linear.
    let folded = |text: &[u8]| {
        let mut copy = evaluation.arena.builder();
        copy.push(text);
        copy.bytes_mut().make_ascii_lowercase();
        copy.bytes()
    };
    match (folded(text), folded(part)) {
        (Some(text), Some(part)) => position(text, part),
        _ => Value::Null,
    }
}

pub fn strequal_i<'a>(evaluation: &Evaluation<'a>, arguments: &'a [Node]) -> Value<'a> {
    let [Some(left), Some(right)] = both(evaluation, arguments) else { return Value::Null };
    Value::integer(left.eq_ignore_ascii_case(right).into())
}

/// A NULL is left out. If all are NULL, the result is NULL.
pub fn concat<'a>(evaluation: &Evaluation<'a>, arguments: &'a [Node]) -> Value<'a> {
    let mut text = evaluation.arena.builder();
    for argument in arguments {
        text.push(evaluation.text(argument).unwrap_or_default());
    }
    text.value()
}

pub fn upper<'a>(evaluation: &Evaluation<'a>, arguments: &'a [Node]) -> Value<'a> {
    changed(evaluation, arguments, <[u8]>::make_ascii_uppercase)
}

pub fn lower<'a>(evaluation: &Evaluation<'a>, arguments: &'a [Node]) -> Value<'a> {
    changed(evaluation, arguments, <[u8]>::make_ascii_lowercase)
}

pub fn reverse<'a>(evaluation: &Evaluation<'a>, arguments: &'a [Node]) -> Value<'a> {
    changed(evaluation, arguments, <[u8]>::reverse)
}

/// The first position is 1. A negative position counts from the end. The result of an empty range
/// is NULL.
pub fn substr<'a>(evaluation: &Evaluation<'a>, arguments: &'a [Node]) -> Value<'a> {
    let (Some(text), Some(start)) = (evaluation.text(&arguments[0]), whole(evaluation, &arguments[1])) else {
        return Value::Null;
    };
    let size = text.len() as i128;
    let start = if start < 0 { (size + start).max(0) } else { (start - 1).clamp(0, size) };
    let count = match arguments.get(2).map(|argument| whole(evaluation, argument)) {
        None => size,
        Some(Some(count)) => count.clamp(0, size),
        Some(None) => return Value::Null,
    };
    let end = (start + count).min(size);
    Value::text(&text[start as usize..end as usize])
}

pub fn length<'a>(evaluation: &Evaluation<'a>, arguments: &'a [Node]) -> Value<'a> {
    evaluation.text(&arguments[0]).map_or(Value::Null, |text| Value::integer(text.len() as i64))
}

pub fn trim<'a>(evaluation: &Evaluation<'a>, arguments: &'a [Node]) -> Value<'a> {
    let text = evaluation.text(&arguments[0]);
    text.map_or(Value::Null, |text| Value::text(without_leading_blanks(without_trailing_blanks(text))))
}

pub fn ltrim<'a>(evaluation: &Evaluation<'a>, arguments: &'a [Node]) -> Value<'a> {
    evaluation.text(&arguments[0]).map_or(Value::Null, |text| Value::text(without_leading_blanks(text)))
}

pub fn rtrim<'a>(evaluation: &Evaluation<'a>, arguments: &'a [Node]) -> Value<'a> {
    evaluation.text(&arguments[0]).map_or(Value::Null, |text| Value::text(without_trailing_blanks(text)))
}

/// A NULL replacement removes the text: an empty text is NULL, so there is no other form for it.
pub fn replace<'a>(evaluation: &Evaluation<'a>, arguments: &'a [Node]) -> Value<'a> {
    let [Some(text), Some(from)] = both(evaluation, arguments) else { return Value::Null };
    let to = evaluation.text(&arguments[2]).unwrap_or_default();
    let mut replaced = evaluation.arena.builder();
    let mut end = 0;
    for start in memmem::find_iter(text, from) {
        replaced.push(&text[end..start]);
        replaced.push(to);
        end = start + from.len();
        if replaced.overflowed() || !evaluation.may_replace() {
            return Value::Null;
        }
    }
    replaced.push(&text[end..]);
    replaced.value()
}

/// Every match of `pattern`; `\1` to `\9` in the replacement are the groups of the match, `\0` all
/// of it.
pub fn regexp_replace<'a>(
    evaluation: &Evaluation<'a>,
    arguments: &'a [Node; 2],
    pattern: &'a Pattern,
) -> Value<'a> {
    let Some(text) = evaluation.text(&arguments[0]) else { return Value::Null };
    if !evaluation.may_search(text) {
        return Value::Null;
    }
    let to = evaluation.text(&arguments[1]).unwrap_or_default();
    let mut replaced = evaluation.arena.builder();
    let rest = pattern.split_matches(text, |before, group| {
        replaced.push(before);
        let mut rest = to;
        while let Some(plain) = memchr::memchr(b'\\', rest) {
            replaced.push(&rest[..plain]);
            match rest.get(plain + 1) {
                Some(digit @ b'0'..=b'9') => replaced.push(group(usize::from(digit - b'0'))),
                Some(other) => replaced.push(&[b'\\', *other]),
                None => replaced.push(b"\\"),
            }
            rest = rest.get(plain + 2..).unwrap_or_default();
        }
        replaced.push(rest);
        evaluation.may_replace_match()
    });
    match rest {
        Some(rest) => {
            replaced.push(rest);
            replaced.value()
        }
        None => Value::Null,
    }
}

fn both<'a>(evaluation: &Evaluation<'a>, arguments: &'a [Node]) -> [Option<&'a [u8]>; 2] {
    [evaluation.text(&arguments[0]), evaluation.text(&arguments[1])]
}

/// A blank is a space. As in SQL, tabs and line ends stay.
fn without_leading_blanks(mut text: &[u8]) -> &[u8] {
    while let [b' ', rest @ ..] = text {
        text = rest;
    }
    text
}

fn without_trailing_blanks(mut text: &[u8]) -> &[u8] {
    while let [rest @ .., b' '] = text {
        text = rest;
    }
    text
}

fn position<'a>(text: &[u8], part: &[u8]) -> Value<'a> {
    Value::integer(memmem::find(text, part).map_or(0, |place| place as i64 + 1))
}

fn changed<'a>(evaluation: &Evaluation<'a>, arguments: &'a [Node], change: fn(&mut [u8])) -> Value<'a> {
    let Some(text) = evaluation.text(&arguments[0]) else { return Value::Null };
    let mut copy = evaluation.arena.builder();
    copy.push(text);
    change(copy.bytes_mut());
    copy.value()
}

/// The whole number of an argument, cut towards zero. `None` when it is NULL or not a number.
fn whole<'a>(evaluation: &Evaluation<'a>, argument: &'a Node) -> Option<i128> {
    let number = evaluation.number(argument)?;
    match number {
        Number::Float(float) if float.is_nan() => None,
        // The conversion saturates; the bounds keep sums of two in range.
        Number::Float(float) => Some(i128::from(float as i64)),
        exact => exact.as_i128(),
    }
}
