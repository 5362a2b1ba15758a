//! `msgpack`: MessagePack with a map at the root.
//!
//! `nil` is NULL. `str` and `bin` are text. A timestamp (`ext` of the type -1) is a number of
//! seconds since 1970. Any other `ext` is text, with its bytes unchanged. A key that is not a
//! string is addressed by its text, as in `/7` or `/true`. Arrays and maps as keys cannot be
//! addressed.

use super::plan::Names;
use super::selection::Selection;
use super::{
    Arena, DOCUMENT_DEPTH_MAX, FieldId, FieldPlan, Format, Found, Level, Malformed, Number, Value, Visit,
    push, repeated,
};

const EMPTY_MAP: u8 = 0x80;

pub(super) struct Msgpack;

impl Format for Msgpack {
    const REPEATED_NAMES_ARE_ARRAYS: bool = false;

    fn members<'a>(
        &self,
        raw: &'a [u8],
        level: &Level<'_, 'a>,
        found: Found<'_, 'a>,
    ) -> Result<(), Malformed> {
        let mut reader = Bytes { data: raw, at: 0 };
        match reader.head()? {
            Head::Map(count) => {
                for _ in 0..count {
                    let key = reader.read(level.arena, 1)?;
                    match name_of(key, level.arena).and_then(|key| level.child(key)) {
                        Some(field) => {
                            let value = reader.read(level.arena, 1)?;
                            found(field, value)?;
                        }
                        None => reader.skip(1)?,
                    }
                }
            }
            head => reader.skip_rest(head, 0)?,
        }
        if level.at == FieldPlan::ROOT && reader.at != raw.len() {
            return reader.malformed("end of the message");
        }
        Ok(())
    }
}

/// The members of a map that was checked before. Those with an array or a map as the key are left
/// out.
pub(super) fn all_members<'a>(
    raw: &'a [u8],
    arena: &'a Arena,
    visit: Visit<'_, 'a>,
) -> Result<(), Malformed> {
    let mut reader = Bytes { data: raw, at: 0 };
    let Head::Map(count) = reader.head()? else { return reader.malformed("map") };
    for _ in 0..count {
        let key = reader.read(arena, 1)?;
        let value = reader.read(arena, 1)?;
        if let Some(name) = name_of(key, arena) {
            visit(name, value)?;
        }
    }
    Ok(())
}

/// Reads a whole message, and the names of its maps.
pub(super) fn check_names<'a>(data: &'a [u8], names: &mut repeated::Names<'a>) -> Result<(), Malformed> {
    let mut reader = Bytes { data, at: 0 };
    check_value(&mut reader, names, 0)?;
    if reader.at == data.len() { Ok(()) } else { reader.malformed("end of the message") }
}

/// Recursion is bounded by `DOCUMENT_DEPTH_MAX`.
fn check_value<'a>(
    reader: &mut Bytes<'a>,
    names: &mut repeated::Names<'a>,
    depth: usize,
) -> Result<(), Malformed> {
    let head = reader.head()?;
    let (Head::Map(count) | Head::Array(count)) = head else { return reader.skip_rest(head, depth) };
    if depth == DOCUMENT_DEPTH_MAX {
        return Err(Malformed::TooDeep);
    }
    let begin = names.begin();
    for _ in 0..count {
        if let Head::Map(_) = head
            && let Some(name) = name_of(reader.read(names.arena, depth + 1)?, names.arena)
        {
            names.add(begin, name)?;
        }
        check_value(reader, names, depth + 1)?;
    }
    names.end(begin);
    Ok(())
}

/// Writes the part of a whole message that a selection keeps. A root that is not a map has no
/// parts.
pub(super) fn select_document(
    data: &[u8],
    selection: &Selection,
    arena: &Arena,
    out: &mut Vec<u8>,
) -> Result<(), Malformed> {
    let mut reader = Bytes { data, at: 0 };
    if !matches!(reader.head()?, Head::Map(_)) {
        return reader.malformed("map");
    }
    reader.at = 0;
    let mut selecting = Selecting { selection, arena, out };
    if !selecting.value(&mut reader, Some(FieldPlan::ROOT), selection.is_root_in(), 0)? {
        selecting.out.push(EMPTY_MAP);
    }
    if reader.at == data.len() { Ok(()) } else { reader.malformed("end of the message") }
}

struct Selecting<'s, 'a> {
    selection: &'s Selection,
    arena: &'a Arena,
    out: &'s mut Vec<u8>,
}

/// A map or an array that is written in part.
struct Container {
    /// Where its head begins in the output, and the size of the head.
    start: usize,
    head_size: usize,
    /// The number of members or elements in the message, and of those that are written.
    count: u32,
    left_count: u32,
}

impl<'a> Selecting<'_, 'a> {
    /// Reads a value, and writes its selected part. Returns whether there is any. Recursion is
    /// bounded by `DOCUMENT_DEPTH_MAX`.
    fn value(
        &mut self,
        reader: &mut Bytes<'a>,
        field: Option<FieldId>,
        is_in: bool,
        depth: usize,
    ) -> Result<bool, Malformed> {
        let start = reader.at;
        let head = reader.head()?;
        let parts = self.selection.within(field);
        let (Head::Map(count) | Head::Array(count), Some((plan, at))) = (head, parts) else {
            reader.skip_rest(head, depth)?;
            if is_in {
                self.out.extend_from_slice(&reader.data[start..reader.at]);
            }
            return Ok(is_in);
        };
        if depth == DOCUMENT_DEPTH_MAX {
            return Err(Malformed::TooDeep);
        }
        let head_size = reader.at - start;
        let mut container = Container { start: self.out.len(), head_size, count, left_count: 0 };
        self.out.extend_from_slice(&reader.data[start..reader.at]);
        let names = matches!(head, Head::Map(_)).then(|| plan.names(at));
        for _ in 0..count {
            let before = self.out.len();
            let (part, is_part_in) = match names {
                Some(names) => {
                    let child = self.key(reader, names, depth + 1)?;
                    (child, self.selection.is_in(child, is_in))
                }
                None => (field, is_in),
            };
            if self.value(reader, part, is_part_in, depth + 1)? {
                container.left_count += 1;
            } else {
                self.out.truncate(before);
            }
        }
        Ok(container.end(self.out, is_in))
    }

    /// Reads and writes a key. Returns the field that it names.
    fn key(
        &mut self,
        reader: &mut Bytes<'a>,
        names: &Names,
        depth: usize,
    ) -> Result<Option<FieldId>, Malformed> {
        let start = reader.at;
        let key = reader.read(self.arena, depth)?;
        self.out.extend_from_slice(&reader.data[start..reader.at]);
        Ok(name_of(key, self.arena).and_then(|name| names.find(name)))
    }
}

impl Container {
    /// Writes the number of written members into the head, or removes the container if there are
    /// none. Returns whether there are any.
    fn end(self, out: &mut Vec<u8>, is_in: bool) -> bool {
        let is_left = self.left_count > 0 || (is_in && self.count == 0);
        if !is_left {
            out.truncate(self.start);
            return false;
        }
        // A smaller count fits into the same head: the encoding allows heads that are longer than
        // needed.
        match &mut out[self.start..self.start + self.head_size] {
            [head] => *head = (*head & 0xF0) | self.left_count as u8,
            [_, count @ ..] => {
                let bytes = self.left_count.to_be_bytes();
                count.copy_from_slice(&bytes[bytes.len() - count.len()..]);
            }
            [] => {}
        }
        true
    }
}

/// The text of a key. An array and a map have none.
fn name_of<'a>(key: Value<'a>, arena: &'a Arena) -> Option<&'a [u8]> {
    if matches!(key, Value::Array(_)) { None } else { arena.text(key) }
}

/// The type of a value and its size, as its first bytes encode them.
#[derive(Clone, Copy)]
pub(super) enum Head {
    Nil,
    Boolean(bool),
    Number(Number),
    /// `str`, `bin` or `ext` with this number of bytes.
    Bytes(usize),
    Array(u32),
    Map(u32),
}

pub(super) struct Bytes<'a> {
    pub(super) data: &'a [u8],
    pub(super) at: usize,
}

impl<'a> Bytes<'a> {
    pub(super) fn malformed<T>(&self, expected: &'static str) -> Result<T, Malformed> {
        Err(Malformed::Syntax { offset: self.at, expected })
    }

    pub(super) fn take(&mut self, size: usize) -> Result<&'a [u8], Malformed> {
        match self.data[self.at..].get(..size) {
            Some(bytes) => {
                self.at += size;
                Ok(bytes)
            }
            None => self.malformed("more bytes"),
        }
    }

    fn array<const SIZE: usize>(&mut self) -> Result<[u8; SIZE], Malformed> {
        let bytes = self.take(SIZE)?;
        Ok(bytes.try_into().expect("as many bytes as were taken"))
    }

    fn u8(&mut self) -> Result<u8, Malformed> {
        self.array().map(u8::from_be_bytes)
    }

    fn u16(&mut self) -> Result<u16, Malformed> {
        self.array().map(u16::from_be_bytes)
    }

    fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_be_bytes)
    }

    pub(super) fn head(&mut self) -> Result<Head, Malformed> {
        let integer = |number: i64| Head::Number(Number::Integer(number));
        Ok(match self.u8()? {
            byte @ 0x00..=0x7F => integer(byte.into()),
            byte @ 0x80..=0x8F => Head::Map((byte & 0x0F).into()),
            byte @ 0x90..=0x9F => Head::Array((byte & 0x0F).into()),
            byte @ 0xA0..=0xBF => Head::Bytes((byte & 0x1F).into()),
            0xC0 => Head::Nil,
            0xC1 => {
                self.at -= 1;
                return self.malformed("value");
            }
            0xC2 => Head::Boolean(false),
            0xC3 => Head::Boolean(true),
            0xC4 | 0xD9 => Head::Bytes(self.u8()?.into()),
            0xC5 | 0xDA => Head::Bytes(self.u16()?.into()),
            0xC6 | 0xDB => Head::Bytes(self.u32()? as usize),
            // The type of an ext is not interpreted.
            0xC7 => self.u8().and_then(|size| self.extension(size.into()))?,
            0xC8 => self.u16().and_then(|size| self.extension(size.into()))?,
            0xC9 => self.u32().and_then(|size| self.extension(size as usize))?,
            0xCA => Head::Number(Number::Float(f32::from_be_bytes(self.array()?).into())),
            0xCB => Head::Number(Number::Float(f64::from_be_bytes(self.array()?))),
            0xCC => integer(self.u8()?.into()),
            0xCD => integer(self.u16()?.into()),
            0xCE => integer(self.u32()?.into()),
            0xCF => Head::Number(Number::of_u64(u64::from_be_bytes(self.array()?))),
            0xD0 => integer(i8::from_be_bytes(self.array()?).into()),
            0xD1 => integer(i16::from_be_bytes(self.array()?).into()),
            0xD2 => integer(i32::from_be_bytes(self.array()?).into()),
            0xD3 => integer(i64::from_be_bytes(self.array()?)),
            byte @ 0xD4..=0xD8 => self.extension(1 << (byte - 0xD4))?,
            0xDC => Head::Array(self.u16()?.into()),
            0xDD => Head::Array(self.u32()?),
            0xDE => Head::Map(self.u16()?.into()),
            0xDF => Head::Map(self.u32()?),
            byte @ 0xE0..=0xFF => integer(i64::from(byte) - 256),
        })
    }

    /// The type of an extension, and its bytes if it is a timestamp.
    fn extension(&mut self, size: usize) -> Result<Head, Malformed> {
        const TIMESTAMP: u8 = 0xFF;
        let is_timestamp = self.u8()? == TIMESTAMP;
        let number = self.data[self.at..].get(..size).filter(|_| is_timestamp).and_then(seconds_of);
        let Some(number) = number else { return Ok(Head::Bytes(size)) };
        self.at += size;
        Ok(Head::Number(number))
    }

    /// Takes a value and keeps it. `depth` is the number of maps and arrays around it.
    fn read(&mut self, arena: &'a Arena, depth: usize) -> Result<Value<'a>, Malformed> {
        let start = self.at;
        Ok(match self.head()? {
            Head::Nil => Value::Null,
            Head::Boolean(value) => Value::Boolean(value),
            Head::Number(number) => Value::number(number),
            Head::Bytes(size) => Value::text(self.take(size)?),
            Head::Array(count) => {
                if depth == DOCUMENT_DEPTH_MAX {
                    return Err(Malformed::TooDeep);
                }
                // The count may be wrong, but every element takes a byte of the message.
                let mut elements = arena.list();
                for _ in 0..count {
                    push(&mut elements, self.read(arena, depth + 1)?)?;
                }
                Value::Array(elements.into_bump_slice())
            }
            head @ Head::Map(_) => {
                self.skip_rest(head, depth)?;
                Value::Compound(&self.data[start..self.at])
            }
        })
    }

    pub(super) fn skip(&mut self, depth: usize) -> Result<(), Malformed> {
        let head = self.head()?;
        self.skip_rest(head, depth)
    }

    /// Takes the bytes after `head`. Recursion is bounded by `DOCUMENT_DEPTH_MAX`.
    pub(super) fn skip_rest(&mut self, head: Head, depth: usize) -> Result<(), Malformed> {
        let count = match head {
            Head::Nil | Head::Boolean(_) | Head::Number(_) => return Ok(()),
            Head::Bytes(size) => return self.take(size).map(drop),
            Head::Array(count) => u64::from(count),
            Head::Map(count) => 2 * u64::from(count),
        };
        if depth == DOCUMENT_DEPTH_MAX {
            return Err(Malformed::TooDeep);
        }
        (0..count).try_for_each(|_| self.skip(depth + 1))
    }
}

/// Seconds since 1970 of the bytes of a timestamp, which has three forms; `None` for any other
/// bytes.
fn seconds_of(bytes: &[u8]) -> Option<Number> {
    const NS_PER_S: u32 = 1_000_000_000;
    let (seconds, ns) = match bytes {
        [a, b, c, d] => (i64::from(u32::from_be_bytes([*a, *b, *c, *d])), 0),
        [_, _, _, _, _, _, _, _] => {
            let bits = u64::from_be_bytes(bytes.try_into().ok()?);
            ((bits & ((1 << 34) - 1)) as i64, (bits >> 34) as u32)
        }
        [a, b, c, d, seconds @ ..] if seconds.len() == 8 => {
            (i64::from_be_bytes(seconds.try_into().ok()?), u32::from_be_bytes([*a, *b, *c, *d]))
        }
        _ => return None,
    };
    match ns {
        0 => Some(Number::Integer(seconds)),
        1..NS_PER_S => Some(Number::Float(seconds as f64 + f64::from(ns) / f64::from(NS_PER_S))),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message_type::{MessageType, Step};

    #[test]
    fn a_timestamp_is_a_number_of_seconds_and_any_other_extension_is_text() {
        let value = |encoded: &[u8]| {
            let data = [b"\x82\xa1t", encoded, b"\xa1u\x07"].concat();
            let (mut plan, arena) = (FieldPlan::default(), Arena::default());
            let [t, u] = [b"t", b"u"].map(|name| plan.add(&[Step::Name((*name).into())]));
            let values = MessageType::Msgpack.read(&data, &plan, &arena).unwrap();
            assert!(matches!(values[u.index()], Value::Number(Number::Integer(7), _)), "{encoded:?}");
            match values[t.index()] {
                Value::Number(number, _) => format!("{number:?}"),
                Value::Text(text) => format!("{} bytes", text.len()),
                other => format!("{other:?}"),
            }
        };
        let small = 1_767_323_045_u32.to_be_bytes();
        assert_eq!(value(&[b"\xd6\xff", &small[..]].concat()), "Integer(1767323045)");
        let medium = ((500_000_000_u64 << 34) | 1_767_323_045).to_be_bytes();
        assert_eq!(value(&[b"\xd7\xff", &medium[..]].concat()), "Float(1767323045.5)");
        let large = [&250_000_000_u32.to_be_bytes()[..], &(-62_135_596_800_i64).to_be_bytes()].concat();
        assert_eq!(value(&[b"\xc7\x0c\xff", &large[..]].concat()), "Float(-62135596799.75)");
        let wrong = (u64::from(u32::MAX) << 34).to_be_bytes();
        assert_eq!(value(&[b"\xd7\xff", &wrong[..]].concat()), "8 bytes");
        assert_eq!(value(b"\xd6\x01abcd"), "4 bytes");
        assert_eq!(value(b"\xc7\x03\xffabc"), "3 bytes");
    }
}
