//! `json`: a scanner that checks everything and keeps what is wanted.
//!
//! Written by hand because it skips unwanted values without looking at more than their structure, compares names without decoding them, and gives the raw text of numbers.
//! It accepts the grammar of RFC 8259; bytes inside strings are taken as they are, not checked to be UTF-8, because the language compares bytes. Of several members
//! with one name the last one stands. A property test holds it against serde_json.

use super::{
    Arena, DOCUMENT_DEPTH_MAX, FieldId, FieldPlan, Format, Found, Level, Malformed, Number, Reading, Value,
    push,
};

/// Reads a whole message, descending into wanted objects in the same pass.
pub(super) fn read_document<'a>(data: &'a [u8], reading: &mut Reading<'_, 'a>) -> Result<(), Malformed> {
    let mut scanner = Scanner { data, at: 0 };
    scanner.skip_blanks();
    if scanner.peek() == b'{' {
        read_object(&mut scanner, reading, FieldPlan::ROOT, 1)?;
    } else {
        scanner.skip_value(0)?;
    }
    scanner.end()
}

/// Recursion is bounded by the steps of the longest path.
fn read_object<'a>(
    scanner: &mut Scanner<'a>,
    reading: &mut Reading<'_, 'a>,
    at: FieldId,
    depth: usize,
) -> Result<(), Malformed> {
    let plan = reading.plan;
    scanner.for_each_member(|scanner, name| {
        let Some(field) = name.find(plan, at, reading.arena)? else {
            return scanner.skip_value(depth);
        };
        if scanner.peek() != b'{' || !plan.has_names(field) {
            let value = scanner.read_value(reading.arena, depth)?;
            return reading.set(&Json, field, value);
        }
        let start = scanner.at;
        reading.clear(field);
        read_object(scanner, reading, field, depth + 1)?;
        let value = Value::Compound(&scanner.data[start..scanner.at]);
        reading.values[field.index()] = value;
        reading.set_elements(&Json, field, value)
    })
}

/// Members of an object that was checked before, inside an array.
pub(super) struct Json;

impl Format for Json {
    const REPEATED_NAMES_ARE_ARRAYS: bool = false;

    fn members<'a>(
        &self,
        raw: &'a [u8],
        level: &Level<'_, 'a>,
        found: Found<'_, 'a>,
    ) -> Result<(), Malformed> {
        let mut scanner = Scanner { data: raw, at: 0 };
        scanner.for_each_member(|scanner, name| match name.find(level.plan, level.at, level.arena)? {
            Some(field) => {
                let value = scanner.read_value(level.arena, 1)?;
                found(field, value)
            }
            None => scanner.skip_value(1),
        })
    }
}

/// A string between its quotes.
#[derive(Clone, Copy)]
struct RawString<'a> {
    bytes: &'a [u8],
    escaped: bool,
}

impl<'a> RawString<'a> {
    #[inline]
    fn find(self, plan: &FieldPlan, at: FieldId, arena: &'a Arena) -> Result<Option<FieldId>, Malformed> {
        if self.escaped { Ok(plan.child(at, self.decoded(arena)?)) } else { Ok(plan.child(at, self.bytes)) }
    }

    fn decoded(self, arena: &'a Arena) -> Result<&'a [u8], Malformed> {
        if !self.escaped {
            return Ok(self.bytes);
        }
        let mut text = arena.builder();
        let mut rest = self.bytes;
        while let Some(plain_size) = memchr::memchr(b'\\', rest) {
            text.push(&rest[..plain_size]);
            rest = &rest[plain_size + 1..];
            // The scanner has checked that each backslash begins a whole escape.
            let (escape, after) = rest.split_first().unwrap_or((&b'\\', rest));
            rest = after;
            match escape {
                b'b' => text.push(b"\x08"),
                b'f' => text.push(b"\x0C"),
                b'n' => text.push(b"\n"),
                b'r' => text.push(b"\r"),
                b't' => text.push(b"\t"),
                b'u' => {
                    let character = decode_unicode(&mut rest);
                    text.push(character.encode_utf8(&mut [0; 4]).as_bytes());
                }
                other => text.push(&[*other]),
            }
        }
        text.push(rest);
        text.bytes().ok_or(Malformed::TooLarge)
    }
}

/// The character of `\u` and what follows, taking a low surrogate after a high one. A lone surrogate is U+FFFD.
fn decode_unicode(rest: &mut &[u8]) -> char {
    let Some(first) = hex_digits(rest) else { return char::REPLACEMENT_CHARACTER };
    *rest = &rest[4..];
    if (0xD800..0xDC00).contains(&first)
        && let Some(second) = rest.strip_prefix(b"\\u").and_then(hex_digits)
        && (0xDC00..0xE000).contains(&second)
    {
        *rest = &rest[6..];
        let code = 0x10000 + ((first - 0xD800) << 10) + (second - 0xDC00);
        return char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER);
    }
    char::from_u32(first).unwrap_or(char::REPLACEMENT_CHARACTER)
}

fn hex_digits(text: &[u8]) -> Option<u32> {
    let digits = std::str::from_utf8(text.get(..4)?).ok()?;
    if digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        u32::from_str_radix(digits, 16).ok()
    } else {
        None
    }
}

struct Scanner<'a> {
    data: &'a [u8],
    at: usize,
}

impl<'a> Scanner<'a> {
    fn malformed<T>(&self, expected: &'static str) -> Result<T, Malformed> {
        Err(Malformed::Syntax { offset: self.at, expected })
    }

    /// The next byte; 0 at the end, which no token begins with.
    #[inline]
    fn peek(&self) -> u8 {
        self.data.get(self.at).copied().unwrap_or(0)
    }

    #[inline]
    fn skip_blanks(&mut self) {
        while let b' ' | b'\t' | b'\n' | b'\r' = self.peek() {
            self.at += 1;
        }
    }

    /// Nothing but blanks may be left.
    fn end(&mut self) -> Result<(), Malformed> {
        self.skip_blanks();
        if self.at == self.data.len() { Ok(()) } else { self.malformed("end of the message") }
    }

    /// Takes an object, calling `member` with each name while the scanner stands at its value; `member` must take the value.
    #[inline]
    fn for_each_member(
        &mut self,
        mut member: impl FnMut(&mut Self, RawString<'a>) -> Result<(), Malformed>,
    ) -> Result<(), Malformed> {
        self.at += 1;
        self.skip_blanks();
        if self.peek() == b'}' {
            self.at += 1;
            return Ok(());
        }
        loop {
            let name = self.member_name()?;
            member(self, name)?;
            self.skip_blanks();
            match self.peek() {
                b',' => self.at += 1,
                b'}' => {
                    self.at += 1;
                    return Ok(());
                }
                _ => return self.malformed(", or }"),
            }
            self.skip_blanks();
        }
    }

    /// A name, its colon and the blanks around.
    #[inline]
    fn member_name(&mut self) -> Result<RawString<'a>, Malformed> {
        if self.peek() != b'"' {
            return self.malformed("name");
        }
        let name = self.string()?;
        self.skip_blanks();
        if self.peek() != b':' {
            return self.malformed(":");
        }
        self.at += 1;
        self.skip_blanks();
        Ok(name)
    }

    /// A string; the scanner stands at its opening quote.
    #[inline]
    fn string(&mut self) -> Result<RawString<'a>, Malformed> {
        let start = self.at + 1;
        let mut escaped = false;
        self.at = start;
        loop {
            self.at = special_byte(self.data, self.at);
            match self.data.get(self.at) {
                Some(b'"') => {
                    let bytes = &self.data[start..self.at];
                    self.at += 1;
                    return Ok(RawString { bytes, escaped });
                }
                Some(b'\\') => {
                    escaped = true;
                    self.escape()?;
                }
                Some(_) => return self.malformed("no control character in a string"),
                None => return self.malformed("\""),
            }
        }
    }

    fn escape(&mut self) -> Result<(), Malformed> {
        match self.data.get(self.at + 1) {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => self.at += 2,
            Some(b'u') if hex_digits(&self.data[self.at + 2..]).is_some() => self.at += 6,
            _ => return self.malformed("escape"),
        }
        Ok(())
    }

    /// A number as RFC 8259 spells it.
    #[inline]
    fn number(&mut self) -> Result<(Option<Number>, &'a [u8]), Malformed> {
        let start = self.at;
        let negative = self.peek() == b'-';
        self.at += usize::from(negative);
        let whole = self.at;
        let mut magnitude = 0_u64;
        while let digit @ b'0'..=b'9' = self.peek() {
            magnitude = magnitude.wrapping_mul(10).wrapping_add(u64::from(digit - b'0'));
            self.at += 1;
        }
        let count = self.at - whole;
        if count == 0 || (count > 1 && self.data[whole] == b'0') {
            return self.malformed("number");
        }
        let is_integer = !matches!(self.peek(), b'.' | b'e' | b'E');
        if self.peek() == b'.' {
            self.at += 1;
            self.digits()?;
        }
        if let b'e' | b'E' = self.peek() {
            self.at += 1;
            if let b'+' | b'-' = self.peek() {
                self.at += 1;
            }
            self.digits()?;
        }
        let raw = &self.data[start..self.at];
        // 18 digits are below 2^63, so that nothing wrapped above.
        if is_integer && count <= 18 {
            let magnitude = magnitude as i64;
            return Ok((Some(Number::Integer(if negative { -magnitude } else { magnitude })), raw));
        }
        Ok((None, raw))
    }

    fn digits(&mut self) -> Result<(), Malformed> {
        if !self.peek().is_ascii_digit() {
            return self.malformed("digit");
        }
        while self.peek().is_ascii_digit() {
            self.at += 1;
        }
        Ok(())
    }

    #[inline]
    fn literal(&mut self, text: &'static str) -> Result<(), Malformed> {
        if !self.data[self.at..].starts_with(text.as_bytes()) {
            return self.malformed("value");
        }
        self.at += text.len();
        Ok(())
    }

    /// Takes a value of any kind; `depth` is how many objects and arrays are around it.
    fn skip_value(&mut self, depth: usize) -> Result<(), Malformed> {
        match self.peek() {
            b'"' => self.string().map(drop),
            b'-' | b'0'..=b'9' => self.number().map(drop),
            b'{' | b'[' => self.skip_nested(depth),
            b't' => self.literal("true"),
            b'f' => self.literal("false"),
            b'n' => self.literal("null"),
            _ => self.malformed("value"),
        }
    }

    /// Takes an object or array, without recursion: one bit per level says which of the two it is.
    fn skip_nested(&mut self, depth: usize) -> Result<(), Malformed> {
        let mut is_object = [0_u64; DOCUMENT_DEPTH_MAX / 64];
        let mut level = depth;
        loop {
            // The scanner stands at a value.
            match self.peek() {
                open @ (b'{' | b'[') => {
                    if level == DOCUMENT_DEPTH_MAX {
                        return Err(Malformed::TooDeep);
                    }
                    let bit = 1 << (level % 64);
                    is_object[level / 64] &= !bit;
                    self.at += 1;
                    self.skip_blanks();
                    let close = if open == b'{' { b'}' } else { b']' };
                    if self.peek() == close {
                        self.at += 1;
                    } else {
                        level += 1;
                        if open == b'{' {
                            is_object[(level - 1) / 64] |= bit;
                            self.member_name()?;
                        }
                        continue;
                    }
                }
                _ => self.skip_value(level)?,
            }
            // A value is done: close what ends here, and go to the next value.
            loop {
                if level == depth {
                    return Ok(());
                }
                let in_object = is_object[(level - 1) / 64] & (1 << ((level - 1) % 64)) != 0;
                self.skip_blanks();
                match (self.peek(), in_object) {
                    (b',', true) => {
                        self.at += 1;
                        self.skip_blanks();
                        self.member_name()?;
                        break;
                    }
                    (b',', false) => {
                        self.at += 1;
                        self.skip_blanks();
                        break;
                    }
                    (b'}', true) | (b']', false) => {
                        self.at += 1;
                        level -= 1;
                    }
                    (_, true) => return self.malformed(", or }"),
                    (_, false) => return self.malformed(", or ]"),
                }
            }
        }
    }

    /// Takes a value and keeps it. Recursion, for arrays in arrays, is bounded by `DOCUMENT_DEPTH_MAX`.
    fn read_value(&mut self, arena: &'a Arena, depth: usize) -> Result<Value<'a>, Malformed> {
        match self.peek() {
            b'"' => Ok(Value::text(self.string()?.decoded(arena)?)),
            b'-' | b'0'..=b'9' => {
                let (number, raw) = self.number()?;
                // Only text that the scanner took as a number comes here.
                Ok(number
                    .or_else(|| Number::parse(raw))
                    .map_or(Value::NAN, |number| Value::Number(number, raw)))
            }
            b'{' => {
                let start = self.at;
                self.skip_nested(depth)?;
                Ok(Value::Compound(&self.data[start..self.at]))
            }
            b'[' => self.read_array(arena, depth),
            b't' => self.literal("true").map(|()| Value::Boolean(true)),
            b'f' => self.literal("false").map(|()| Value::Boolean(false)),
            b'n' => self.literal("null").map(|()| Value::Null),
            _ => self.malformed("value"),
        }
    }

    fn read_array(&mut self, arena: &'a Arena, depth: usize) -> Result<Value<'a>, Malformed> {
        if depth == DOCUMENT_DEPTH_MAX {
            return Err(Malformed::TooDeep);
        }
        let mut elements = arena.list();
        self.at += 1;
        self.skip_blanks();
        if self.peek() == b']' {
            self.at += 1;
            return Ok(Value::Array(&[]));
        }
        loop {
            let element = self.read_value(arena, depth + 1)?;
            push(&mut elements, element)?;
            self.skip_blanks();
            match self.peek() {
                b',' => self.at += 1,
                b']' => {
                    self.at += 1;
                    return Ok(Value::Array(elements.into_bump_slice()));
                }
                _ => return self.malformed(", or ]"),
            }
            self.skip_blanks();
        }
    }
}

/// The place at or after `at` of the first quote, backslash or control character; the end when there is none. Eight bytes at a time.
#[inline]
fn special_byte(data: &[u8], mut at: usize) -> usize {
    const ONES: u64 = u64::from_le_bytes([1; 8]);
    const HIGHS: u64 = ONES << 7;
    while let Some(chunk) = data.get(at..at + 8) {
        let word = u64::from_le_bytes(chunk.try_into().expect("a slice of eight bytes"));
        // The classic test for a zero byte: borrow only comes out of bytes below what is subtracted.
        let quote = word ^ (ONES * u64::from(b'"'));
        let backslash = word ^ (ONES * u64::from(b'\\'));
        let hit = (quote.wrapping_sub(ONES) & !quote)
            | (backslash.wrapping_sub(ONES) & !backslash)
            | (word.wrapping_sub(ONES * 0x20) & !word);
        let hit = hit & HIGHS;
        if hit != 0 {
            // A borrow can mark bytes above a true hit, never one below: the lowest is right.
            return at + hit.trailing_zeros() as usize / 8;
        }
        at += 8;
    }
    while let Some(byte) = data.get(at) {
        if matches!(byte, b'"' | b'\\' | 0..=0x1F) {
            return at;
        }
        at += 1;
    }
    at
}
