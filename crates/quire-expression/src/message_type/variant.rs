//! JSON text as a variant of Spark: its value and the names of its members, in two binary forms.
//!
//! The bytes are those that `parse_json` of Spark makes (`docs/internals/spark-reader.md`,
//! "Variants"). So the order of members is that of UTF-16, and the text after the value is not
//! read.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use super::Malformed;
use super::json::{Escaped, RawString, Scanner};
use crate::unreadable::contained;

/// The largest value, and the largest list of names, in bytes.
pub const VARIANT_SIZE_MAX: usize = 128 << 20;

/// How deep objects and arrays may nest.
pub const VARIANT_DEPTH_MAX: usize = 1000;

/// UTF-16 units of a text.
const TEXT_UNITS_MAX: usize = 20_000_000;

/// UTF-16 units of a name.
const NAME_UNITS_MAX: usize = 50_000;

/// Digits of a number.
const DIGITS_MAX: usize = 1000;

/// Digits of a decimal, before and after its point together, and after its point alone.
const DECIMAL_DIGITS_MAX: usize = 38;

/// The most names, and bytes of names, that are kept for the next messages. One message may exceed
/// both.
const KEPT_NAMES_MAX: usize = 4096;
const KEPT_NAMES_SIZE_MAX: usize = 1 << 20;

/// The bytes of a name that is stored in one number, together with its size.
const SHORT_NAME_SIZE_MAX: usize = 15;

/// Members and elements for which memory is kept.
const KEPT_ENTRIES_MAX: usize = 1 << 16;

/// Converts JSON texts to variants. Keeps the names of earlier messages, because later ones mostly
/// have the same names.
#[derive(Default)]
pub struct VariantEncoder {
    names: Names,
    /// The names of this message in the order of their first occurrence.
    dictionary: Vec<u32>,
    /// The names of the message before, and their binary form.
    earlier: Vec<u32>,
    metadata: Vec<u8>,
    /// The members and elements of open objects and arrays.
    entries: Vec<Entry>,
    levels: Vec<Level>,
    room: Vec<u8>,
}

/// A member of an object, or an element of an array.
#[derive(Clone, Copy)]
struct Entry {
    /// The beginning of its name, in the order of names. 0 in an array.
    prefix: u64,
    /// Its name. 0 in an array.
    name: u32,
    /// Where its value begins among those of the object or array.
    offset: u32,
}

/// An open object or array.
#[derive(Clone, Copy)]
struct Level {
    is_object: bool,
    /// The place of its values in the output.
    start: usize,
    /// The place of its first entry.
    first: usize,
}

impl VariantEncoder {
    /// Appends the value of a JSON text to `value`, and its names to `metadata`. Leaves both
    /// unchanged after an error.
    ///
    /// # Errors
    /// The text does not begin with JSON, or Spark makes no variant of it: an object has a name
    /// twice, a string has a lone surrogate, or a limit is exceeded.
    pub fn encode(
        &mut self,
        json: &str,
        value: &mut Vec<u8>,
        metadata: &mut Vec<u8>,
    ) -> Result<(), Malformed> {
        let start = value.len();
        if self.names.begin() {
            self.metadata.clear();
        }
        self.dictionary.clear();
        self.levels.clear();
        self.entries.clear();
        self.entries.shrink_to(KEPT_ENTRIES_MAX);
        let mut room = std::mem::take(&mut self.room);
        let named = metadata.len();
        let written = contained(|| {
            #[cfg(test)]
            super::tests::panic_at_bug(json.as_bytes());
            let scanner = Scanner::new(json.as_bytes());
            let mut writer = Writer { encoder: self, scanner, out: value, start, room: &mut room };
            writer.document().and_then(|()| self.write_metadata(metadata))
        });
        if written.is_err() {
            // The kept names may be an incomplete list.
            *self = VariantEncoder::default();
        }
        self.room = room;
        let written = written.flatten();
        if written.is_err() {
            value.truncate(start);
            metadata.truncate(named);
        }
        written
    }

    fn write_metadata(&mut self, out: &mut Vec<u8>) -> Result<(), Malformed> {
        if self.dictionary != self.earlier || self.metadata.is_empty() {
            let size: usize = self.dictionary.iter().map(|name| self.names.bytes(*name).len()).sum();
            let count = self.dictionary.len();
            let width = width(size.max(count));
            if 1 + (count + 2) * width + size > VARIANT_SIZE_MAX {
                return Err(Malformed::TooLarge);
            }
            self.metadata.clear();
            self.metadata.push(0x01 | (width as u8 - 1) << 6);
            let mut put = |number: usize| self.metadata.extend_from_slice(&number.to_le_bytes()[..width]);
            put(count);
            put(0);
            let mut end = 0;
            for name in &self.dictionary {
                end += self.names.bytes(*name).len();
                put(end);
            }
            self.dictionary.iter().for_each(|name| self.metadata.extend_from_slice(self.names.bytes(*name)));
            std::mem::swap(&mut self.dictionary, &mut self.earlier);
        }
        out.extend_from_slice(&self.metadata);
        Ok(())
    }

    /// The place of a name in the dictionary of the message.
    fn note(&mut self, name: u32) {
        let symbol = &mut self.names.symbols[name as usize];
        if symbol.message != self.names.message {
            symbol.message = self.names.message;
            symbol.id = self.dictionary.len() as u32;
            self.dictionary.push(name);
        }
    }
}

/// The value of one message while it is written.
struct Writer<'e, 'a> {
    encoder: &'e mut VariantEncoder,
    scanner: Scanner<'a>,
    out: &'e mut Vec<u8>,
    /// Where the value of the message begins in the output.
    start: usize,
    /// For decoded strings.
    room: &'e mut Vec<u8>,
}

impl<'a> Writer<'_, 'a> {
    /// Without recursion: messages nest deeper than the stack of a thread may be.
    fn document(&mut self) -> Result<(), Malformed> {
        self.scanner.skip_blanks();
        loop {
            // The scanner is at a value.
            if let Some(close) = self.value()? {
                self.scanner.at += 1;
                self.scanner.skip_blanks();
                if self.scanner.peek() != close {
                    self.entry()?;
                    continue;
                }
                self.scanner.at += 1;
                self.close()?;
            }
            // After a value: ends the objects and arrays that end here.
            loop {
                let Some(level) = self.encoder.levels.last() else {
                    return self.end();
                };
                let is_object = level.is_object;
                self.scanner.skip_blanks();
                match (self.scanner.peek(), is_object) {
                    (b',', _) => {
                        self.scanner.at += 1;
                        self.scanner.skip_blanks();
                        self.entry()?;
                        break;
                    }
                    (b'}', true) | (b']', false) => {
                        self.scanner.at += 1;
                        self.close()?;
                    }
                    (_, true) => return self.scanner.malformed(", or }"),
                    (_, false) => return self.scanner.malformed(", or ]"),
                }
            }
        }
    }

    /// Writes a single value. For an object or array, returns the character that ends it, and the
    /// scanner stays at its beginning.
    #[inline]
    fn value(&mut self) -> Result<Option<u8>, Malformed> {
        if self.out.len() - self.start > VARIANT_SIZE_MAX {
            return Err(Malformed::TooLarge);
        }
        match self.scanner.peek() {
            b'"' => {
                let raw = self.scanner.string()?;
                self.text(raw)?;
            }
            b'-' | b'0'..=b'9' => {
                let start = self.scanner.at;
                self.scanner.number()?;
                write_number(&self.scanner.data[start..self.scanner.at], self.out)?;
            }
            open @ (b'{' | b'[') => {
                let Self { encoder, out, .. } = self;
                if encoder.levels.len() == VARIANT_DEPTH_MAX {
                    return Err(Malformed::TooDeep);
                }
                let (is_object, first) = (open == b'{', encoder.entries.len());
                encoder.levels.push(Level { is_object, start: out.len(), first });
                // In ASCII two after the opening one.
                return Ok(Some(open + 2));
            }
            b't' => self.literal("true", primitive(1))?,
            b'f' => self.literal("false", primitive(2))?,
            b'n' => self.literal("null", primitive(0))?,
            _ => return self.scanner.malformed("value"),
        }
        Ok(None)
    }

    fn literal(&mut self, text: &'static str, header: u8) -> Result<(), Malformed> {
        self.scanner.literal(text)?;
        self.out.push(header);
        Ok(())
    }

    /// The end of the value. The rest of the text is not read. After a number only a blank is
    /// allowed, and a literal must be a whole word.
    fn end(&self) -> Result<(), Malformed> {
        if self.out.len() - self.start > VARIANT_SIZE_MAX {
            return Err(Malformed::TooLarge);
        }
        let (read, rest) = self.scanner.data.split_at(self.scanner.at);
        let is_end = match (read.last(), rest.first()) {
            (_, None) | (Some(b'"' | b'}' | b']'), _) => true,
            (Some(b'0'..=b'9'), Some(next)) => matches!(next, b' ' | b'\t' | b'\n' | b'\r'),
            (_, Some(next)) => !next.is_ascii_alphanumeric() && *next != b'_' && *next < 0x7F,
        };
        if is_end { Ok(()) } else { self.scanner.malformed("blank") }
    }

    /// Begins the next member or element of the innermost object or array.
    #[inline]
    fn entry(&mut self) -> Result<(), Malformed> {
        let Some(level) = self.encoder.levels.last().copied() else { return Ok(()) };
        let mut entry = Entry { prefix: 0, name: 0, offset: (self.out.len() - level.start) as u32 };
        if level.is_object {
            let raw = self.scanner.member_name()?;
            entry.name = self.name(raw)?;
            entry.prefix = self.encoder.names.symbols[entry.name as usize].prefix;
        }
        self.encoder.entries.push(entry);
        Ok(())
    }

    fn name(&mut self, raw: RawString<'a>) -> Result<u32, Malformed> {
        let bytes = decoded(&self.scanner, raw, self.room, NAME_UNITS_MAX)?;
        let name = self.encoder.names.find(bytes);
        self.encoder.note(name);
        Ok(name)
    }

    fn text(&mut self, raw: RawString<'a>) -> Result<(), Malformed> {
        let bytes = decoded(&self.scanner, raw, self.room, TEXT_UNITS_MAX)?;
        if bytes.len() < 64 {
            self.out.push((bytes.len() as u8) << 2 | 0x01);
        } else {
            self.out.push(primitive(16));
            self.out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
        }
        self.out.extend_from_slice(bytes);
        Ok(())
    }

    /// Ends the innermost object or array. Moves its values, and writes its header before them.
    fn close(&mut self) -> Result<(), Malformed> {
        let VariantEncoder { names, entries, levels, .. } = &mut *self.encoder;
        let Some(Level { is_object, start, first }) = levels.pop() else { return Ok(()) };
        let members = &mut entries[first..];
        if is_object && !names.sort(members) {
            return self.scanner.malformed("each name once");
        }
        let (count, size) = (members.len(), self.out.len() - start);
        let ids = members.iter().map(|member| names.symbols[member.name as usize].id as usize);
        let (count_width, offset_width) = (if count > 255 { 4 } else { 1 }, width(size));
        let id_width = if is_object { width(ids.clone().max().unwrap_or(0)) } else { 0 };
        let header_size = 1 + count_width + count * id_width + (count + 1) * offset_width;
        self.out.resize(start + header_size + size, 0);
        self.out.copy_within(start..start + size, start + header_size);
        let header = &mut self.out[start..start + header_size];
        let (is_large, offset_bits) = (u8::from(count_width == 4), (offset_width as u8 - 1) << 2);
        header[0] = match is_object {
            true => 0x02 | offset_bits | (id_width as u8 - 1) << 4 | is_large << 6,
            false => 0x03 | offset_bits | is_large << 4,
        };
        let (counted, lists) = header[1..].split_at_mut(count_width);
        counted.copy_from_slice(&count.to_le_bytes()[..count_width]);
        let (id_list, offset_list) = lists.split_at_mut(count * id_width);
        if is_object {
            put(id_list, id_width, ids);
        }
        let offsets = members.iter().map(|member| member.offset as usize);
        put(offset_list, offset_width, offsets.chain([size]));
        entries.truncate(first);
        Ok(())
    }
}

/// Writes numbers of `width` bytes each.
#[inline]
fn put(room: &mut [u8], width: usize, numbers: impl Iterator<Item = usize>) {
    if width == 1 {
        room.iter_mut().zip(numbers).for_each(|(room, number)| *room = number as u8);
    } else {
        let rooms = room.chunks_exact_mut(width);
        rooms.zip(numbers).for_each(|(room, number)| room.copy_from_slice(&number.to_le_bytes()[..width]));
    }
}

/// Bytes of an unsigned number.
fn width(number: usize) -> usize {
    match number {
        0..=0xFF => 1,
        0x100..=0xFFFF => 2,
        0x1_0000..=0xFF_FFFF => 3,
        _ => 4,
    }
}

/// The first byte of a value without members.
const fn primitive(kind: u8) -> u8 {
    kind << 2
}

/// The bytes of a string, which may be in `room`.
#[inline]
fn decoded<'r>(
    scanner: &Scanner<'_>,
    raw: RawString<'r>,
    room: &'r mut Vec<u8>,
    units_max: usize,
) -> Result<&'r [u8], Malformed> {
    let mut bytes = raw.bytes;
    if raw.escaped == Escaped::Yes {
        room.clear();
        if !raw.decode(|part| room.extend_from_slice(part)) {
            return scanner.malformed("surrogates in pairs");
        }
        bytes = room;
    }
    if bytes.len() > units_max && units(bytes) > units_max { Err(Malformed::TooLarge) } else { Ok(bytes) }
}

/// UTF-16 units of UTF-8: one for each character, two for one of four bytes.
fn units(text: &[u8]) -> usize {
    text.iter().map(|byte| usize::from(byte & 0xC0 != 0x80) + usize::from(*byte >= 0xF0)).sum()
}

/// An integer of the smallest width, a decimal of the smallest width that keeps all digits, or a
/// double.
fn write_number(text: &[u8], out: &mut Vec<u8>) -> Result<(), Malformed> {
    let (is_negative, digits) = match text {
        [b'-', rest @ ..] => (true, rest),
        rest => (false, rest),
    };
    if text.len() > DIGITS_MAX && text.iter().filter(|byte| byte.is_ascii_digit()).count() > DIGITS_MAX {
        return Err(Malformed::TooLarge);
    }
    let (mut unscaled, mut significant_count, mut scale) = (0_u64, 0, None);
    for byte in digits {
        match byte {
            b'.' => scale = Some(0),
            b'e' | b'E' => {
                write_double(text, out);
                return Ok(());
            }
            digit => {
                scale = scale.map(|scale: usize| scale + 1);
                significant_count += usize::from(*digit != b'0' || significant_count > 0);
                // Used only if it has at most 19 digits, which fit.
                unscaled = unscaled.wrapping_mul(10).wrapping_add(u64::from(digit - b'0'));
            }
        }
    }
    let magnitude = match significant_count {
        0..=19 => u128::from(unscaled),
        20..=DECIMAL_DIGITS_MAX => {
            let digits = digits.iter().filter(|digit| **digit != b'.');
            digits.fold(0_u128, |sum, digit| sum * 10 + u128::from(digit - b'0'))
        }
        _ => {
            write_double(text, out);
            return Ok(());
        }
    };
    let number = if is_negative { -(magnitude as i128) } else { magnitude as i128 };
    match (scale, i64::try_from(number)) {
        (None, Ok(integer)) => write_integer(integer, out),
        (Some(scale), _) if scale > DECIMAL_DIGITS_MAX => write_double(text, out),
        _ => write_decimal(number, significant_count, scale.unwrap_or(0), out),
    }
    Ok(())
}

fn write_integer(number: i64, out: &mut Vec<u8>) {
    let (kind, width) = if i8::try_from(number).is_ok() {
        (3, 1)
    } else if i16::try_from(number).is_ok() {
        (4, 2)
    } else if i32::try_from(number).is_ok() {
        (5, 4)
    } else {
        (6, 8)
    };
    out.push(primitive(kind));
    out.extend_from_slice(&number.to_le_bytes()[..width]);
}

fn write_decimal(unscaled: i128, digit_count: usize, scale: usize, out: &mut Vec<u8>) {
    let (kind, width) = match digit_count.max(scale) {
        0..=9 => (8, 4),
        10..=18 => (9, 8),
        _ => (10, 16),
    };
    out.extend_from_slice(&[primitive(kind), scale as u8]);
    out.extend_from_slice(&unscaled.to_le_bytes()[..width]);
}

fn write_double(text: &[u8], out: &mut Vec<u8>) {
    // The scanner has checked that the text is a number.
    let number: Option<f64> = std::str::from_utf8(text).ok().and_then(|text| text.parse().ok());
    out.push(primitive(7));
    out.extend_from_slice(&number.unwrap_or(f64::NAN).to_le_bytes());
}

/// The names of members, each once, by numbers from 1.
struct Names {
    symbols: Vec<Symbol>,
    bytes: Vec<u8>,
    /// Search trees, because no choice of names makes a search in them slow. Short names are packed
    /// into one number.
    short: BTreeMap<u128, u32>,
    long: BTreeMap<Box<[u8]>, u32>,
    /// The name that was found last in this message; 0 = none yet.
    last: u32,
    /// The number of this message.
    message: u32,
}

struct Symbol {
    start: usize,
    end: usize,
    prefix: u64,
    /// The name that followed this one last time.
    next: u32,
    /// The message that has it, the last one, and its place in the dictionary of this message.
    message: u32,
    id: u32,
}

impl Default for Names {
    fn default() -> Self {
        let (short, long) = (BTreeMap::new(), BTreeMap::new());
        let mut names = Names { symbols: Vec::new(), bytes: Vec::new(), short, long, last: 0, message: 0 };
        names.clear();
        names
    }
}

impl Names {
    /// Keeps the entry 0, which is not a name.
    fn clear(&mut self) {
        self.symbols.clear();
        self.bytes.clear();
        self.short.clear();
        self.long.clear();
        self.symbols.push(Symbol { start: 0, end: 0, prefix: 0, next: 0, message: 0, id: 0 });
    }

    /// Begins a message. Returns whether the names of earlier ones were dropped.
    fn begin(&mut self) -> bool {
        let is_full = self.symbols.len() > KEPT_NAMES_MAX
            || self.bytes.len() > KEPT_NAMES_SIZE_MAX
            || self.message == u32::MAX;
        if is_full {
            self.clear();
            self.message = 0;
        }
        (self.last, self.message) = (0, self.message + 1);
        is_full
    }

    fn bytes(&self, name: u32) -> &[u8] {
        let symbol = &self.symbols[name as usize];
        &self.bytes[symbol.start..symbol.end]
    }

    #[inline]
    fn find(&mut self, bytes: &[u8]) -> u32 {
        let guess = self.symbols[self.last as usize].next;
        let found = match guess != 0 && self.bytes(guess) == bytes {
            true => guess,
            false => self.search(bytes),
        };
        self.last = found;
        found
    }

    #[inline(never)]
    fn search(&mut self, bytes: &[u8]) -> u32 {
        let new = self.symbols.len() as u32;
        let found = match packed(bytes) {
            Some(packed) => *self.short.entry(packed).or_insert(new),
            None => self.long.get(bytes).copied().unwrap_or(new),
        };
        if found == new {
            let start = self.bytes.len();
            self.bytes.extend_from_slice(bytes);
            let prefix = (0..8).fold(0, |prefix, at| prefix << 8 | u64::from(bytes.get(at).map_or(0, rank)));
            let end = self.bytes.len();
            self.symbols.push(Symbol { start, end, prefix, next: 0, message: 0, id: 0 });
            if bytes.len() > SHORT_NAME_SIZE_MAX {
                self.long.insert(bytes.into(), new);
            }
        }
        self.symbols[self.last as usize].next = found;
        found
    }

    /// Sorts members by their names. Returns whether each name occurs once.
    #[inline]
    fn sort(&self, members: &mut [Entry]) -> bool {
        let order = |one: &Entry, other: &Entry| {
            one.prefix.cmp(&other.prefix).then_with(|| self.compare(one.name, other.name))
        };
        if members.is_sorted_by(|one, other| order(one, other).is_lt()) {
            return true;
        }
        members.sort_unstable_by(order);
        members.windows(2).all(|pair| pair[0].name != pair[1].name)
    }

    fn compare(&self, one: u32, other: u32) -> Ordering {
        self.bytes(one).iter().map(rank).cmp(self.bytes(other).iter().map(rank))
    }
}

/// A name with its size, if it has up to `SHORT_NAME_SIZE_MAX` bytes.
fn packed(name: &[u8]) -> Option<u128> {
    let mut packed = [0; SHORT_NAME_SIZE_MAX + 1];
    packed[SHORT_NAME_SIZE_MAX] = name.len() as u8;
    packed[..SHORT_NAME_SIZE_MAX].get_mut(..name.len())?.copy_from_slice(name);
    Some(u128::from_le_bytes(packed))
}

/// Changes a byte of UTF-8 so that texts are ordered as in UTF-16. There, characters of four bytes
/// come before the last ones of three.
fn rank(byte: &u8) -> u8 {
    match byte {
        0xEE | 0xEF => byte + 0x10,
        other => *other,
    }
}
