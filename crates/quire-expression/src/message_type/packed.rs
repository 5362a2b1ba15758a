//! Values as bytes that a view with joins keeps of each record, instead of the message.
//!
//! The text of a number is kept only when it is not the text that the number would be written with.

use bumpalo::collections::Vec as BumpVec;

use super::arena::push;
use super::{Arena, Malformed, Number, Value};

const NULL: u8 = 0;
const FALSE: u8 = 1;
const TRUE: u8 = 2;
const INTEGER: u8 = 3;
const UNSIGNED: u8 = 4;
const FLOAT: u8 = 5;
const TEXT: u8 = 6;
const COMPOUND: u8 = 7;
const ARRAY: u8 = 8;
/// A number whose text follows it.
const WITH_TEXT: u8 = 16;

/// The reason why reading does not fail.
const MADE: &str = "the bytes were made from values";

/// Appends a value.
pub(crate) fn pack(value: Value<'_>, out: &mut Vec<u8>) {
    match value {
        Value::Null => out.push(NULL),
        Value::Boolean(value) => out.push(if value { TRUE } else { FALSE }),
        Value::Number(number, raw) => pack_number(number, raw, out),
        Value::Text(text) => pack_bytes(TEXT, text, out),
        Value::Compound(raw) => pack_bytes(COMPOUND, raw, out),
        Value::Array(elements) => {
            out.push(ARRAY);
            pack_size(elements.len(), out);
            // The depth is that of the message, which has a limit.
            elements.iter().for_each(|element| pack(*element, out));
        }
    }
}

fn pack_number(number: Number, raw: &[u8], out: &mut Vec<u8>) {
    let begin = out.len();
    let text_flag = if raw.is_empty() || is_plain(number, raw) { 0 } else { WITH_TEXT };
    match number {
        Number::Integer(number) => {
            out.push(INTEGER | text_flag);
            // Small numbers of both signs are small without the sign.
            let unsigned = ((number << 1) ^ (number >> 63)) as u64;
            pack_size(unsigned as usize, out);
        }
        Number::Unsigned(number) => {
            out.push(UNSIGNED | text_flag);
            out.extend_from_slice(&number.to_le_bytes());
        }
        Number::Float(number) => {
            out.push(FLOAT | text_flag);
            out.extend_from_slice(&number.to_bits().to_le_bytes());
        }
    }
    if out[begin] & WITH_TEXT != 0 {
        pack_size(raw.len(), out);
        out.extend_from_slice(raw);
    }
}

/// Whether the text of an integer is the one that it is written with.
fn is_plain(number: Number, raw: &[u8]) -> bool {
    match (number, raw) {
        (Number::Float(_), _) => false,
        (_, b"0") => true,
        (Number::Integer(_), [b'-', b'1'..=b'9', ..]) => true,
        (_, [first, ..]) => (b'1'..=b'9').contains(first),
        (_, []) => true,
    }
}

fn pack_bytes(kind: u8, bytes: &[u8], out: &mut Vec<u8>) {
    out.push(kind);
    pack_size(bytes.len(), out);
    out.extend_from_slice(bytes);
}

/// 7 bits of a number in each byte. The highest bit says that another byte follows.
fn pack_size(size: usize, out: &mut Vec<u8>) {
    let mut left = size as u64;
    while left >= 0x80 {
        out.push(left as u8 | 0x80);
        left >>= 7;
    }
    out.push(left as u8);
}

/// Reads the values that [`pack`] has written.
pub(crate) struct Unpacking<'a>(pub &'a [u8]);

impl<'a> Unpacking<'a> {
    /// The next value.
    pub fn next(&mut self, arena: &'a Arena) -> Result<Value<'a>, Malformed> {
        let kind = self.take(1)[0];
        Ok(match kind & !WITH_TEXT {
            NULL => Value::Null,
            FALSE => Value::Boolean(false),
            TRUE => Value::Boolean(true),
            INTEGER => {
                let unsigned = self.size();
                self.number(kind, Number::Integer((unsigned >> 1) as i64 ^ -((unsigned & 1) as i64)))
            }
            UNSIGNED => {
                let bits = self.bits();
                self.number(kind, Number::Unsigned(bits))
            }
            FLOAT => {
                let bits = self.bits();
                self.number(kind, Number::Float(f64::from_bits(bits)))
            }
            TEXT => Value::Text(self.sized()),
            COMPOUND => Value::Compound(self.sized()),
            _ => {
                let count = self.size();
                let mut elements: BumpVec<'a, Value<'a>> = arena.list();
                for _ in 0..count {
                    let element = self.next(arena)?;
                    push(&mut elements, element)?;
                }
                Value::Array(elements.into_bump_slice())
            }
        })
    }

    fn number(&mut self, kind: u8, number: Number) -> Value<'a> {
        let raw = if kind & WITH_TEXT == 0 { &[] } else { self.sized() };
        Value::Number(number, raw)
    }

    fn sized(&mut self) -> &'a [u8] {
        let size = self.size();
        self.take(size as usize)
    }

    fn size(&mut self) -> u64 {
        let (mut size, mut shift) = (0, 0);
        loop {
            let byte = self.take(1)[0];
            size |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return size;
            }
            shift += 7;
        }
    }

    fn bits(&mut self) -> u64 {
        u64::from_le_bytes(self.take(8).try_into().expect(MADE))
    }

    fn take(&mut self, size: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(size);
        self.0 = rest;
        taken
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::message_type::{FieldPlan, MessageType};

    fn read_back(data: &[u8]) {
        let (arena, mut plan) = (Arena::default(), FieldPlan::default());
        let field = plan.add(&crate::filter::path_of("/a"));
        let Ok(values) = MessageType::Json.read_bare(data, &plan, &arena) else { return };
        let value = values[field.index()];
        let mut bytes = Vec::new();
        pack(value, &mut bytes);
        let mut unpacking = Unpacking(&bytes);
        let found = unpacking.next(&arena).unwrap();
        assert!(unpacking.0.is_empty());
        let shown = |value: Value<'_>| match value {
            // The text may be the one that the number is written with.
            Value::Number(..) => format!("{:?} {:?}", value.to_number(), arena.text(value)),
            value => format!("{value:?}"),
        };
        assert_eq!(shown(found), shown(value), "{}", String::from_utf8_lossy(data));
    }

    #[test]
    fn values_are_read_back() {
        for value in [
            "null",
            "true",
            "false",
            "0",
            "-0",
            "7",
            "-7",
            "12.50",
            "1e5",
            "18446744073709551615",
            "\"\"",
            "9223372036854775807",
            "-9223372036854775808",
            "99999999999999999999",
            "\"text\"",
            "{\"b\":1}",
            "[\"x\",[2.0,null]]",
            "[]",
        ] {
            read_back(format!("{{\"a\":{value}}}").as_bytes());
        }
    }

    proptest! {
        #[test]
        fn any_number_is_read_back(number in any::<i64>(), float in any::<f64>(), text in ".{0,300}") {
            read_back(format!("{{\"a\":{number}}}").as_bytes());
            read_back(format!("{{\"a\":{float}}}").as_bytes());
            read_back(serde_json::json!({ "a": text }).to_string().as_bytes());
        }
    }
}
