//! `json`: a scanner that checks the text that it passes, keeps the wanted fields, and stops when
//! it has them.
//!
//! The parser is written by hand for these reasons: It checks only the structure of unwanted
//! values. It compares names without decoding them. It returns the raw text of numbers. It does not
//! read the text after the last wanted member.
//!
//! It accepts the grammar of RFC 8259. Bytes inside of strings are not checked to be UTF-8, because
//! the language compares bytes. When several members have one name, the last one counts. A property
//! test compares the parser with serde_json.

use super::occurrences::FIRST_VALUES;
use super::plan::Names;
use super::selection::Selection;
use super::special::{BLOCK_SIZE, specials};
use super::{
    Arena, DOCUMENT_DEPTH_MAX, FieldId, FieldPlan, Format, Found, Level, Malformed, Number, Reading, Value,
    Visit, push, repeated,
};

/// Reads a message until every wanted member was found, descending into wanted objects in the same
/// pass.
pub(super) fn read_document<'a>(data: &'a [u8], reading: &mut Reading<'_, 'a>) -> Result<(), Malformed> {
    let mut scanner = Scanner::new(data);
    scanner.skip_blanks();
    if scanner.peek() == b'{' {
        read_object(&mut scanner, reading, FieldPlan::ROOT, 1)?;
    } else {
        scanner.skip_value(0)?;
    }
    if scanner.is_done { Ok(()) } else { scanner.end() }
}

/// Recursion is bounded by the steps of the longest path.
fn read_object<'a>(
    scanner: &mut Scanner<'a>,
    reading: &mut Reading<'_, 'a>,
    at: FieldId,
    depth: usize,
) -> Result<(), Malformed> {
    let plan = reading.plan;
    let names = plan.names(at);
    scanner.for_each_member(|scanner, name| {
        let Some(field) = name.find(names, reading.arena)? else {
            return scanner.skip_value(depth);
        };
        if scanner.peek() != b'{' || !plan.has_names(field) {
            if plan.is_leaf(field) {
                let value = match scanner.peek() {
                    b'[' if plan.wants_first_of(field) => {
                        scanner.read_array(reading.arena, depth, FIRST_VALUES as usize)?
                    }
                    _ => scanner.read_value(reading.arena, depth)?,
                };
                reading.values[field.index()] = value;
            } else {
                let value = scanner.read_value(reading.arena, depth)?;
                reading.set(&Json, field, value)?;
            }
        } else {
            let start = scanner.at;
            reading.clear(field);
            read_object(scanner, reading, field, depth + 1)?;
            let value = Value::Compound(&scanner.data[start..scanner.at]);
            reading.values[field.index()] = value;
            reading.set_elements(&Json, field, value)?;
        }
        if depth == 1 && !reading.is_whole {
            scanner.found(names, field);
        }
        Ok(())
    })
}

/// Writes the part of a whole message that a selection keeps. A root that is not an object has no
/// parts.
pub(super) fn select_document(
    data: &[u8],
    selection: &Selection,
    arena: &Arena,
    out: &mut Vec<u8>,
) -> Result<(), Malformed> {
    #[cfg(test)]
    super::tests::panic_at_bug(data);
    let mut scanner = Scanner::new(data);
    scanner.skip_blanks();
    if scanner.peek() != b'{' {
        return scanner.malformed("{");
    }
    let mut selecting = Selecting { selection, arena, out };
    let is_in = selection.is_root_in();
    if !selecting.value(&mut scanner, Some(FieldPlan::ROOT), is_in, 0)? {
        selecting.out.extend_from_slice(b"{}");
    }
    scanner.end()
}

struct Selecting<'s, 'a> {
    selection: &'s Selection,
    arena: &'a Arena,
    out: &'s mut Vec<u8>,
}

impl<'a> Selecting<'_, 'a> {
    /// Reads a value, and writes its selected part. Returns whether there is any. Recursion is
    /// bounded by `DOCUMENT_DEPTH_MAX`.
    fn value(
        &mut self,
        scanner: &mut Scanner<'a>,
        field: Option<FieldId>,
        is_in: bool,
        depth: usize,
    ) -> Result<bool, Malformed> {
        if depth == DOCUMENT_DEPTH_MAX {
            return Err(Malformed::TooDeep);
        }
        match (scanner.peek(), self.selection.within(field)) {
            (b'{', Some((plan, field))) => self.object(scanner, plan.names(field), is_in, depth),
            (b'[', Some(_)) => self.array(scanner, field, is_in, depth),
            _ => {
                let start = scanner.at;
                scanner.skip_value(depth)?;
                if is_in {
                    self.out.extend_from_slice(&scanner.data[start..scanner.at]);
                }
                Ok(is_in)
            }
        }
    }

    fn object(
        &mut self,
        scanner: &mut Scanner<'a>,
        names: &Names,
        is_in: bool,
        depth: usize,
    ) -> Result<bool, Malformed> {
        let start = self.out.len();
        let (mut left_count, mut is_empty) = (0, true);
        self.out.push(b'{');
        scanner.for_each_member(|scanner, name| {
            is_empty = false;
            let before = self.out.len();
            if left_count > 0 {
                self.out.push(b',');
            }
            let field = name.find(names, self.arena)?;
            self.out.push(b'"');
            self.out.extend_from_slice(name.bytes);
            self.out.extend_from_slice(b"\":");
            if self.value(scanner, field, self.selection.is_in(field, is_in), depth + 1)? {
                left_count += 1;
            } else {
                self.out.truncate(before);
            }
            Ok(())
        })?;
        self.out.push(b'}');
        Ok(self.is_left(start, left_count > 0 || (is_in && is_empty)))
    }

    fn array(
        &mut self,
        scanner: &mut Scanner<'a>,
        field: Option<FieldId>,
        is_in: bool,
        depth: usize,
    ) -> Result<bool, Malformed> {
        let start = self.out.len();
        let (mut left_count, mut is_empty) = (0, true);
        self.out.push(b'[');
        scanner.for_each_element(|scanner| {
            is_empty = false;
            let before = self.out.len();
            if left_count > 0 {
                self.out.push(b',');
            }
            if self.value(scanner, field, is_in, depth + 1)? {
                left_count += 1;
            } else {
                self.out.truncate(before);
            }
            Ok(())
        })?;
        self.out.push(b']');
        Ok(self.is_left(start, left_count > 0 || (is_in && is_empty)))
    }

    /// Removes the output from `start` on if no part is kept.
    fn is_left(&mut self, start: usize, is_left: bool) -> bool {
        if !is_left {
            self.out.truncate(start);
        }
        is_left
    }
}

/// Reads a whole message, and the names of its objects.
pub(super) fn check_names<'a>(data: &'a [u8], names: &mut repeated::Names<'a>) -> Result<(), Malformed> {
    #[cfg(test)]
    super::tests::panic_at_bug(data);
    let mut scanner = Scanner::new(data);
    scanner.skip_blanks();
    check_value(&mut scanner, names, 0)?;
    scanner.end()
}

/// Recursion is bounded by `DOCUMENT_DEPTH_MAX`.
fn check_value<'a>(
    scanner: &mut Scanner<'a>,
    names: &mut repeated::Names<'a>,
    depth: usize,
) -> Result<(), Malformed> {
    let first = scanner.peek();
    if !matches!(first, b'{' | b'[') {
        return scanner.skip_value(depth);
    }
    if depth == DOCUMENT_DEPTH_MAX {
        return Err(Malformed::TooDeep);
    }
    if first == b'[' {
        return scanner.for_each_element(|scanner| check_value(scanner, names, depth + 1));
    }
    let begin = names.begin();
    scanner.for_each_member(|scanner, name| {
        names.add(begin, name.decoded(names.arena)?)?;
        check_value(scanner, names, depth + 1)
    })?;
    names.end(begin);
    Ok(())
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
        let mut scanner = Scanner::new(raw);
        let names = level.plan.names(level.at);
        scanner.for_each_member(|scanner, name| match name.find(names, level.arena)? {
            Some(field) => {
                let value = scanner.read_value(level.arena, 1)?;
                found(field, value)
            }
            None => scanner.skip_value(1),
        })
    }
}

/// The names of the members of a whole message, in their order. A root that is not an object has
/// none.
pub(super) fn member_names<'a>(data: &'a [u8], arena: &'a Arena) -> Result<&'a [&'a [u8]], Malformed> {
    let mut scanner = Scanner::new(data);
    let mut names = arena.list();
    scanner.skip_blanks();
    if scanner.peek() == b'{' {
        scanner.for_each_member(|scanner, name| {
            push(&mut names, name.decoded(arena)?)?;
            scanner.skip_value(1)
        })?;
    } else {
        scanner.skip_value(0)?;
    }
    scanner.end()?;
    Ok(names.into_bump_slice())
}

/// The members of an object that was checked before.
pub(super) fn all_members<'a>(
    raw: &'a [u8],
    arena: &'a Arena,
    visit: Visit<'_, 'a>,
) -> Result<(), Malformed> {
    let mut scanner = Scanner::new(raw);
    if scanner.peek() != b'{' {
        return scanner.malformed("{");
    }
    scanner.for_each_member(|scanner, name| {
        let name = name.decoded(arena)?;
        visit(name, scanner.read_value(arena, 1)?)
    })
}

/// A string between its quotes.
#[derive(Clone, Copy)]
pub(super) struct RawString<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) escaped: Escaped,
}

/// As large as a word. These strings are returned through memory, and the processor waits when it
/// reads a whole word of which one byte was just written.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub(super) enum Escaped {
    No,
    Yes,
}

impl<'a> RawString<'a> {
    #[inline(always)]
    fn find(self, names: &Names, arena: &'a Arena) -> Result<Option<FieldId>, Malformed> {
        if self.escaped == Escaped::Yes {
            Ok(names.find(self.decoded(arena)?))
        } else {
            Ok(names.find(self.bytes))
        }
    }

    pub(super) fn decoded(self, arena: &'a Arena) -> Result<&'a [u8], Malformed> {
        if self.escaped == Escaped::No {
            return Ok(self.bytes);
        }
        let mut text = arena.builder();
        self.decode(|part| text.push(part));
        text.bytes().ok_or(Malformed::TooLarge)
    }

    /// Calls `push` with the parts of the decoded text in order. A lone surrogate is U+FFFD.
    /// Returns whether there is none.
    #[inline]
    pub(super) fn decode(self, mut push: impl FnMut(&[u8])) -> bool {
        let (mut rest, mut is_whole) = (self.bytes, true);
        while let Some(plain_size) = memchr::memchr(b'\\', rest) {
            push(&rest[..plain_size]);
            rest = &rest[plain_size + 1..];
            // The scanner has checked that each backslash begins a whole escape.
            let (escape, after) = rest.split_first().unwrap_or((&b'\\', rest));
            rest = after;
            match escape {
                b'b' => push(b"\x08"),
                b'f' => push(b"\x0C"),
                b'n' => push(b"\n"),
                b'r' => push(b"\r"),
                b't' => push(b"\t"),
                b'u' => {
                    let character = decode_unicode(&mut rest);
                    is_whole &= character.is_some();
                    let character = character.unwrap_or(char::REPLACEMENT_CHARACTER);
                    push(character.encode_utf8(&mut [0; 4]).as_bytes());
                }
                other => push(&[*other]),
            }
        }
        push(rest);
        is_whole
    }
}

/// The character of `\u` and the digits after it, with a low surrogate after a high one. `None` for
/// a lone surrogate.
fn decode_unicode(rest: &mut &[u8]) -> Option<char> {
    let first = hex_digits(rest)?;
    *rest = &rest[4..];
    if (0xD800..0xDC00).contains(&first)
        && let Some(second) = rest.strip_prefix(b"\\u").and_then(hex_digits)
        && (0xDC00..0xE000).contains(&second)
    {
        *rest = &rest[6..];
        return char::from_u32(0x10000 + ((first - 0xD800) << 10) + (second - 0xDC00));
    }
    char::from_u32(first)
}

fn hex_digits(text: &[u8]) -> Option<u32> {
    let digits = std::str::from_utf8(text.get(..4)?).ok()?;
    if digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        u32::from_str_radix(digits, 16).ok()
    } else {
        None
    }
}

pub(super) struct Scanner<'a> {
    pub(super) data: &'a [u8],
    pub(super) at: usize,
    /// The block that `specials` are about, counted from the beginning of the data.
    block: usize,
    /// See [`specials`].
    specials: u64,
    /// A bit for each wanted member of the message itself that was found.
    seen: u64,
    /// The text after this place cannot change the result.
    is_done: bool,
}

impl<'a> Scanner<'a> {
    pub(super) fn new(data: &'a [u8]) -> Self {
        Scanner { data, at: 0, block: usize::MAX, specials: 0, seen: 0, is_done: false }
    }

    #[cold]
    pub(super) fn malformed<T>(&self, expected: &'static str) -> Result<T, Malformed> {
        Err(Malformed::Syntax { offset: self.at, expected })
    }

    /// The next byte; 0 at the end, which no token begins with.
    #[inline(always)]
    pub(super) fn peek(&self) -> u8 {
        self.data.get(self.at).copied().unwrap_or(0)
    }

    #[inline(always)]
    pub(super) fn skip_blanks(&mut self) {
        // Most messages have no blank here, and every token begins with a byte above the blank.
        while self.peek() <= b' ' && matches!(self.data.get(self.at), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    /// Moves to the next token. Returns its first byte, or 0 at the end.
    #[inline(always)]
    fn token(&mut self) -> u8 {
        let byte = self.peek();
        if byte > b' ' {
            return byte;
        }
        self.skip_blanks();
        self.peek()
    }

    /// Only blanks may be left.
    pub(super) fn end(&mut self) -> Result<(), Malformed> {
        self.skip_blanks();
        if self.at == self.data.len() { Ok(()) } else { self.malformed("end of the message") }
    }

    /// Notes that a wanted member of the message itself was found. After the last of them the rest
    /// is not read, unless it may contain one of the names again: then that one counts.
    #[inline]
    fn found(&mut self, names: &Names, field: FieldId) {
        let Some(index) = names.index_of(field) else { return };
        let all = u64::MAX >> (64 - names.count());
        // Searched once: otherwise a message that consists of repetitions would be searched again
        // for each of them.
        if self.seen != all {
            self.seen |= 1 << index;
            self.is_done = self.seen == all && !names.may_stand_in(&self.data[self.at..]);
        }
    }

    /// Takes an object. Calls `member` with each name while the scanner is at its value. `member`
    /// must take the value. Stops when that makes the scanner done.
    #[inline]
    fn for_each_member(
        &mut self,
        mut member: impl FnMut(&mut Self, RawString<'a>) -> Result<(), Malformed>,
    ) -> Result<(), Malformed> {
        self.at += 1;
        if self.token() == b'}' {
            self.at += 1;
            return Ok(());
        }
        loop {
            let name = self.member_name()?;
            member(self, name)?;
            if self.is_done {
                return Ok(());
            }
            match self.token() {
                b',' => self.at += 1,
                b'}' => {
                    self.at += 1;
                    return Ok(());
                }
                _ => return self.malformed(", or }"),
            }
        }
    }

    /// A name, its colon and the blanks around.
    #[inline(always)]
    pub(super) fn member_name(&mut self) -> Result<RawString<'a>, Malformed> {
        if self.token() != b'"' {
            return self.malformed("name");
        }
        let name = self.string()?;
        if self.token() != b':' {
            return self.malformed(":");
        }
        self.at += 1;
        self.token();
        Ok(name)
    }

    /// A string. The scanner is at its opening quote.
    #[inline(always)]
    pub(super) fn string(&mut self) -> Result<RawString<'a>, Malformed> {
        let start = self.at + 1;
        self.at = start;
        self.skip_plain();
        if self.peek() != b'"' {
            return self.string_with_escapes(start);
        }
        let bytes = &self.data[start..self.at];
        self.at += 1;
        Ok(RawString { bytes, escaped: Escaped::No })
    }

    /// The rest of a string that began at `start`. The scanner is at a character that is not its
    /// closing quote.
    #[cold]
    fn string_with_escapes(&mut self, start: usize) -> Result<RawString<'a>, Malformed> {
        loop {
            match self.data.get(self.at) {
                Some(b'"') => {
                    let bytes = &self.data[start..self.at];
                    self.at += 1;
                    return Ok(RawString { bytes, escaped: Escaped::Yes });
                }
                Some(b'\\') => self.escape()?,
                Some(_) => return self.malformed("no control character in a string"),
                None => return self.malformed("\""),
            }
            self.skip_plain();
        }
    }

    /// Moves to the next quote, backslash or control character, or to the end.
    #[inline(always)]
    fn skip_plain(&mut self) {
        loop {
            let block = self.at / BLOCK_SIZE;
            if block != self.block {
                self.load(block);
            }
            let rest = self.specials >> (self.at % BLOCK_SIZE);
            if rest != 0 {
                self.at += rest.trailing_zeros() as usize;
                return;
            }
            self.at = (block + 1) * BLOCK_SIZE;
            if self.at >= self.data.len() {
                self.at = self.data.len();
                return;
            }
        }
    }

    #[inline(never)]
    fn load(&mut self, block: usize) {
        self.block = block;
        let rest = &self.data[block * BLOCK_SIZE..];
        self.specials = match (rest.first_chunk(), self.data.last_chunk()) {
            (Some(whole), _) => specials(whole),
            // The end of a text of more than one block is processed together with the bytes before
            // it.
            (None, Some(last)) => specials(last).checked_shr((BLOCK_SIZE - rest.len()) as u32).unwrap_or(0),
            (None, None) => {
                let mut padded = [b' '; BLOCK_SIZE];
                padded[..rest.len()].copy_from_slice(rest);
                specials(&padded)
            }
        };
    }

    fn escape(&mut self) -> Result<(), Malformed> {
        match self.data.get(self.at + 1) {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => self.at += 2,
            Some(b'u') if hex_digits(&self.data[self.at + 2..]).is_some() => self.at += 6,
            _ => return self.malformed("escape"),
        }
        Ok(())
    }

    /// A number of RFC 8259.
    #[inline(always)]
    pub(super) fn number(&mut self) -> Result<(), Malformed> {
        if self.peek() == b'-' {
            self.at += 1;
        }
        let first = self.peek();
        let whole = self.at;
        self.digits()?;
        if first == b'0' && self.at - whole > 1 {
            return self.malformed("number without leading zeros");
        }
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
        Ok(())
    }

    #[inline(always)]
    fn digits(&mut self) -> Result<(), Malformed> {
        let start = self.at;
        let mut end = start;
        while self.data.get(end).is_some_and(u8::is_ascii_digit) {
            end += 1;
        }
        self.at = end;
        if end == start { self.malformed("digit") } else { Ok(()) }
    }

    #[inline(always)]
    pub(super) fn literal(&mut self, text: &'static str) -> Result<(), Malformed> {
        if !self.data[self.at..].starts_with(text.as_bytes()) {
            return self.malformed("value");
        }
        self.at += text.len();
        Ok(())
    }

    /// Takes a value of any kind. `depth` is the number of objects and arrays around it.
    #[inline(always)]
    pub(super) fn skip_value(&mut self, depth: usize) -> Result<(), Malformed> {
        match self.peek() {
            b'"' => self.string().map(drop),
            b'-' | b'0'..=b'9' => self.number(),
            b'{' | b'[' => self.skip_nested(depth),
            b't' => self.literal("true"),
            b'f' => self.literal("false"),
            b'n' => self.literal("null"),
            _ => self.malformed("value"),
        }
    }

    /// Takes an object or array, without recursion: one bit per level distinguishes the two.
    fn skip_nested(&mut self, depth: usize) -> Result<(), Malformed> {
        let mut is_object = [0_u64; DOCUMENT_DEPTH_MAX / 64];
        let mut level = depth;
        loop {
            // The scanner is at a value.
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
            // After a value: closes the levels that end here, and moves to the next value.
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

    /// Takes a value and keeps it. Recursion, for arrays in arrays, is bounded by
    /// `DOCUMENT_DEPTH_MAX`.
    fn read_value(&mut self, arena: &'a Arena, depth: usize) -> Result<Value<'a>, Malformed> {
        match self.peek() {
            b'"' => Ok(Value::text(self.string()?.decoded(arena)?)),
            b'-' | b'0'..=b'9' => {
                let start = self.at;
                self.number()?;
                let raw = &self.data[start..self.at];
                // The scanner has checked that the text is a number.
                Ok(Number::parse(raw).map_or(Value::NAN, |number| Value::Number(number, raw)))
            }
            b'{' => {
                let start = self.at;
                self.skip_nested(depth)?;
                Ok(Value::Compound(&self.data[start..self.at]))
            }
            b'[' => self.read_array(arena, depth, usize::MAX),
            b't' => self.literal("true").map(|()| Value::Boolean(true)),
            b'f' => self.literal("false").map(|()| Value::Boolean(false)),
            b'n' => self.literal("null").map(|()| Value::Null),
            _ => self.malformed("value"),
        }
    }

    /// Takes an array, and keeps at most this number of its elements.
    fn read_array(
        &mut self,
        arena: &'a Arena,
        depth: usize,
        count_max: usize,
    ) -> Result<Value<'a>, Malformed> {
        if depth == DOCUMENT_DEPTH_MAX {
            return Err(Malformed::TooDeep);
        }
        let mut elements = arena.list();
        self.for_each_element(|scanner| {
            if elements.len() == count_max {
                return scanner.skip_value(depth + 1);
            }
            let element = scanner.read_value(arena, depth + 1)?;
            push(&mut elements, element)
        })?;
        Ok(Value::Array(elements.into_bump_slice()))
    }

    /// Takes an array. Calls `element` while the scanner is at each value. `element` must take the
    /// value.
    #[inline]
    fn for_each_element(
        &mut self,
        mut element: impl FnMut(&mut Self) -> Result<(), Malformed>,
    ) -> Result<(), Malformed> {
        self.at += 1;
        self.skip_blanks();
        if self.peek() == b']' {
            self.at += 1;
            return Ok(());
        }
        loop {
            element(self)?;
            self.skip_blanks();
            match self.peek() {
                b',' => self.at += 1,
                b']' => {
                    self.at += 1;
                    return Ok(());
                }
                _ => return self.malformed(", or ]"),
            }
            self.skip_blanks();
        }
    }
}
