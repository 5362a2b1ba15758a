//! `bson`: BSON documents.
//!
//! Types as encoded:
//!
//! - An ObjectId is its 24 hexadecimal digits.
//! - A date is a float in seconds since 1970, and a timestamp is an integer.
//! - A decimal128 is the nearest float.
//! - Binary, code, symbols and the pattern of a regular expression are text. The value of code with
//!   a scope is the code, and the value of a pointer is its ObjectId.
//!
//! Names and strings are UTF-8, as the format requires.

use super::selection::Selection;
use super::{
    Arena, DOCUMENT_DEPTH_MAX, FieldId, FieldPlan, Format, Found, Level, Malformed, Number, Value, Visit,
    push, repeated,
};

/// Bytes of the smallest document: its size and its end.
const DOCUMENT_SIZE_MIN: usize = 5;

const EMPTY_DOCUMENT: [u8; DOCUMENT_SIZE_MIN] = [5, 0, 0, 0, 0];

pub(super) struct Bson;

impl Format for Bson {
    const REPEATED_NAMES_ARE_ARRAYS: bool = false;

    fn members<'a>(
        &self,
        raw: &'a [u8],
        level: &Level<'_, 'a>,
        found: Found<'_, 'a>,
    ) -> Result<(), Malformed> {
        let mut reader = Bytes { data: raw, at: 0 };
        reader.document(0, |reader, kind, name| match level.child(name) {
            Some(field) => {
                let value = reader.read(kind, level.arena, 1)?;
                found(field, value)
            }
            None => reader.skip(kind, 1),
        })?;
        if level.at == FieldPlan::ROOT && reader.at != raw.len() {
            return reader.malformed("end of the message");
        }
        Ok(())
    }
}

/// The elements of a document that was checked before.
pub(super) fn all_members<'a>(
    raw: &'a [u8],
    arena: &'a Arena,
    visit: Visit<'_, 'a>,
) -> Result<(), Malformed> {
    Bytes { data: raw, at: 0 }.document(0, |reader, kind, name| visit(name, reader.read(kind, arena, 1)?))
}

/// Reads a whole message, and the names of its documents.
pub(super) fn check_names<'a>(data: &'a [u8], names: &mut repeated::Names<'a>) -> Result<(), Malformed> {
    let mut reader = Bytes { data, at: 0 };
    check_document(&mut reader, names, true, 0)?;
    if reader.at == data.len() { Ok(()) } else { reader.malformed("end of the message") }
}

/// Recursion is bounded by `DOCUMENT_DEPTH_MAX`. The names in an array are its indexes.
fn check_document<'a>(
    reader: &mut Bytes<'a>,
    names: &mut repeated::Names<'a>,
    has_names: bool,
    depth: usize,
) -> Result<(), Malformed> {
    let begin = names.begin();
    reader.document(depth, |reader, kind, name| {
        if has_names {
            names.add(begin, name)?;
        }
        match kind {
            0x03 | 0x04 => check_document(reader, names, kind == 0x03, depth + 1),
            _ => reader.skip(kind, depth + 1),
        }
    })?;
    names.end(begin);
    Ok(())
}

/// Writes the part of a whole message that a selection keeps.
pub(super) fn select_document(
    data: &[u8],
    selection: &Selection,
    out: &mut Vec<u8>,
) -> Result<(), Malformed> {
    let mut reader = Bytes { data, at: 0 };
    let mut selecting = Selecting { selection, out };
    let around = Around { field: Some(FieldPlan::ROOT), is_in: selection.is_root_in(), is_array: false };
    if !selecting.document(&mut reader, around, 0)? {
        selecting.out.extend_from_slice(&EMPTY_DOCUMENT);
    }
    if reader.at == data.len() { Ok(()) } else { reader.malformed("end of the message") }
}

struct Selecting<'s> {
    selection: &'s Selection,
    out: &'s mut Vec<u8>,
}

/// The document or array that has an element.
#[derive(Clone, Copy)]
struct Around {
    field: Option<FieldId>,
    is_in: bool,
    is_array: bool,
}

impl Selecting<'_> {
    /// Reads a document or an array, and writes its selected part. Returns whether there is any.
    /// Recursion is bounded by `DOCUMENT_DEPTH_MAX`.
    fn document(&mut self, reader: &mut Bytes<'_>, around: Around, depth: usize) -> Result<bool, Malformed> {
        let (begin, start) = (reader.at, self.out.len());
        let Some((plan, at)) = self.selection.within(around.field) else {
            reader.document(depth, |reader, kind, _| reader.skip(kind, depth + 1))?;
            if around.is_in {
                self.out.extend_from_slice(&reader.data[begin..reader.at]);
            }
            return Ok(around.is_in);
        };
        self.out.extend_from_slice(&[0; 4]);
        let (mut count, mut left_count) = (0, 0);
        reader.document(depth, |reader, kind, name| {
            count += 1;
            let before = self.out.len();
            self.out.push(kind);
            let inner = if around.is_array {
                // The names in an array are its indexes.
                self.out.extend_from_slice(left_count.to_string().as_bytes());
                around
            } else {
                self.out.extend_from_slice(name);
                let field = plan.names(at).find(name);
                Around { field, is_in: self.selection.is_in(field, around.is_in), is_array: false }
            };
            self.out.push(0);
            let is_left = if matches!(kind, 0x03 | 0x04) {
                self.document(reader, Around { is_array: kind == 0x04, ..inner }, depth + 1)?
            } else {
                let begin = reader.at;
                reader.skip(kind, depth + 1)?;
                if inner.is_in {
                    self.out.extend_from_slice(&reader.data[begin..reader.at]);
                }
                inner.is_in
            };
            match is_left {
                true => left_count += 1,
                false => self.out.truncate(before),
            }
            Ok(())
        })?;
        if left_count == 0 && !(around.is_in && count == 0) {
            self.out.truncate(start);
            return Ok(false);
        }
        self.out.push(0);
        // It is not longer than the document that was read.
        let size = i32::try_from(self.out.len() - start).unwrap_or(i32::MAX);
        self.out[start..start + 4].copy_from_slice(&size.to_le_bytes());
        Ok(true)
    }
}

pub(super) struct Bytes<'a> {
    pub(super) data: &'a [u8],
    pub(super) at: usize,
}

impl<'a> Bytes<'a> {
    pub(super) fn malformed<T>(&self, expected: &'static str) -> Result<T, Malformed> {
        Err(Malformed::Syntax { offset: self.at, expected })
    }

    fn take(&mut self, size: usize) -> Result<&'a [u8], Malformed> {
        match self.data[self.at..].get(..size) {
            Some(bytes) => {
                self.at += size;
                Ok(bytes)
            }
            None => self.malformed("more bytes"),
        }
    }

    pub(super) fn array<const SIZE: usize>(&mut self) -> Result<[u8; SIZE], Malformed> {
        let bytes = self.take(SIZE)?;
        Ok(bytes.try_into().expect("as many bytes as were taken"))
    }

    /// A size, which is signed in the format.
    pub(super) fn size(&mut self) -> Result<usize, Malformed> {
        let size = i32::from_le_bytes(self.array()?);
        usize::try_from(size).or_else(|_| self.malformed("size"))
    }

    /// Text up to and including a zero byte.
    pub(super) fn name(&mut self) -> Result<&'a [u8], Malformed> {
        match memchr::memchr(0, &self.data[self.at..]) {
            Some(size) => {
                let name = self.utf8(size)?;
                self.at += 1;
                Ok(name)
            }
            None => self.malformed("end of a name"),
        }
    }

    fn utf8(&mut self, size: usize) -> Result<&'a [u8], Malformed> {
        let text = self.take(size)?;
        if std::str::from_utf8(text).is_ok() {
            return Ok(text);
        }
        self.at -= size;
        self.malformed("UTF-8")
    }

    /// Text after its size, with a zero byte at its end.
    fn string(&mut self) -> Result<&'a [u8], Malformed> {
        let size = self.size()?;
        let Some(text_size) = size.checked_sub(1) else { return self.malformed("size of a string") };
        let text = self.utf8(text_size)?;
        match self.take(1)? {
            [0] => Ok(text),
            _ => self.malformed("end of a string"),
        }
    }

    /// Bytes after their size and their subtype. Bytes of the old subtype have their size twice.
    fn binary(&mut self) -> Result<&'a [u8], Malformed> {
        const OLD: u8 = 0x02;
        let size = self.size()?;
        let [subtype] = self.array()?;
        if subtype != OLD {
            return self.take(size);
        }
        let inner_size = self.size()?;
        match inner_size.checked_add(4) == Some(size) {
            true => self.take(inner_size),
            false => self.malformed("the same size again"),
        }
    }

    /// Reads a document. Calls `element` with the type and name of each element while the reader is
    /// at its value. `element` must read the value.
    pub(super) fn document(
        &mut self,
        depth: usize,
        mut element: impl FnMut(&mut Self, u8, &'a [u8]) -> Result<(), Malformed>,
    ) -> Result<(), Malformed> {
        if depth == DOCUMENT_DEPTH_MAX {
            return Err(Malformed::TooDeep);
        }
        let start = self.at;
        let size = self.size()?;
        if size < DOCUMENT_SIZE_MIN || size > self.data.len() - start {
            return self.malformed("size of a document");
        }
        let end = start + size;
        loop {
            match self.array()? {
                [0] if self.at == end => return Ok(()),
                [0] => return self.malformed("end of the document where its size says"),
                [kind] => {
                    let name = self.name()?;
                    element(self, kind, name)?;
                }
            }
        }
    }

    /// Takes a value and keeps it.
    fn read(&mut self, kind: u8, arena: &'a Arena, depth: usize) -> Result<Value<'a>, Malformed> {
        let start = self.at;
        Ok(match kind {
            0x01 => Value::float(f64::from_le_bytes(self.array()?)),
            0x02 | 0x0D | 0x0E => Value::text(self.string()?),
            0x03 => {
                self.skip(kind, depth)?;
                Value::Compound(&self.data[start..self.at])
            }
            0x04 => {
                let mut elements = arena.list();
                self.document(depth, |reader, kind, _| {
                    let element = reader.read(kind, arena, depth + 1)?;
                    push(&mut elements, element)
                })?;
                Value::Array(elements.into_bump_slice())
            }
            0x05 => Value::text(self.binary()?),
            0x06 | 0x0A => Value::Null,
            0x07 => self.object_id(arena)?,
            0x08 => Value::Boolean(self.boolean()?),
            0x09 => Value::float(i64::from_le_bytes(self.array()?) as f64 / 1000.0),
            0x0B => {
                let pattern = self.name()?;
                self.name()?;
                Value::text(pattern)
            }
            0x0C => {
                self.string()?;
                self.object_id(arena)?
            }
            0x0F => Value::text(self.code_with_scope(depth)?),
            0x10 => Value::integer(i32::from_le_bytes(self.array()?).into()),
            0x11 => Value::number(Number::of_u64(u64::from_le_bytes(self.array()?))),
            0x12 => Value::integer(i64::from_le_bytes(self.array()?)),
            0x13 => Value::float(decimal(u128::from_le_bytes(self.array()?))),
            // The smallest and the largest key: objects without members.
            0x7F | 0xFF => Value::Compound(&EMPTY_DOCUMENT),
            _ => return self.malformed("known type"),
        })
    }

    /// 24 hexadecimal digits.
    fn object_id(&mut self, arena: &'a Arena) -> Result<Value<'a>, Malformed> {
        let mut digits = arena.builder();
        for byte in self.array::<12>()? {
            let digit = |half: u8| b"0123456789abcdef"[usize::from(half)];
            digits.push(&[digit(byte >> 4), digit(byte & 0x0F)]);
        }
        Ok(digits.value())
    }

    /// Reads code and its scope, and returns the code. It is not a document, although a size
    /// precedes it.
    fn code_with_scope(&mut self, depth: usize) -> Result<&'a [u8], Malformed> {
        let start = self.at;
        let size = self.size()?;
        let code = self.string()?;
        self.document(depth, |reader, kind, _| reader.skip(kind, depth + 1))?;
        if self.at - start == size { Ok(code) } else { self.malformed("size of code with scope") }
    }

    /// Takes a value. Recursion is bounded by `DOCUMENT_DEPTH_MAX`.
    pub(super) fn skip(&mut self, kind: u8, depth: usize) -> Result<(), Malformed> {
        match kind {
            0x01 | 0x09 | 0x11 | 0x12 => self.take(8).map(drop),
            0x02 | 0x0D | 0x0E => self.string().map(drop),
            0x03 | 0x04 => self.document(depth, |reader, kind, _| reader.skip(kind, depth + 1)),
            0x05 => self.binary().map(drop),
            // Undefined, null, and the smallest and largest key.
            0x06 | 0x0A | 0xFF | 0x7F => Ok(()),
            0x07 => self.take(12).map(drop),
            0x08 => self.boolean().map(drop),
            0x0B => self.name().and_then(|_| self.name()).map(drop),
            0x0C => self.string().and_then(|_| self.take(12)).map(drop),
            0x0F => self.code_with_scope(depth).map(drop),
            0x10 => self.take(4).map(drop),
            0x13 => self.take(16).map(drop),
            _ => self.malformed("known type"),
        }
    }

    fn boolean(&mut self) -> Result<bool, Malformed> {
        match self.array()? {
            [0] => Ok(false),
            [1] => Ok(true),
            _ => self.malformed("0 or 1"),
        }
    }
}

/// The nearest float of an IEEE 754 decimal128 in the binary encoding that BSON uses.
fn decimal(bits: u128) -> f64 {
    /// The largest coefficient, 34 nines; larger ones count as zero.
    const COEFFICIENT_MAX: u128 = 10_u128.pow(34) - 1;
    const EXPONENT_BIAS: i32 = 6176;
    let sign = if bits >> 127 == 1 { -1.0 } else { 1.0 };
    let top = (bits >> 122) & 0x1F;
    if top == 0x1F {
        return f64::NAN;
    }
    if top == 0x1E {
        return sign * f64::INFINITY;
    }
    let (exponent, coefficient) = if top >> 3 == 3 {
        // This form begins its coefficient beyond the largest one: it is zero.
        ((bits >> 111) & 0x3FFF, 0)
    } else {
        ((bits >> 113) & 0x3FFF, bits & ((1 << 113) - 1))
    };
    let coefficient = if coefficient > COEFFICIENT_MAX { 0 } else { coefficient };
    let text = format!("{coefficient}e{}", exponent as i32 - EXPONENT_BIAS);
    sign * text.parse::<f64>().unwrap_or(f64::NAN)
}
