//! `nvfix` and `fix`: pairs of tag and value, each ended by SOH (the last SOH may be missing).
//!
//! Types are inferred from the text of a value. A tag that occurs more than once is an array in the
//! order of the message.
//!
//! A FIX data field may contain SOH. The field directly before it gives its size in bytes: `95=3`,
//! `96=…`. If the size does not lead to the end of a pair, the data ends at the next SOH, as every
//! other value does.

use memchr::memchr;

use super::selection::Selection;
use super::{FieldPlan, Format, Found, Level, Malformed, Value};

/// The end of a pair.
pub(super) const SEPARATOR: u8 = 1;

/// Any tag.
pub(super) const NVFIX: Pairs = Pairs { numeric_tags: false };

/// Numeric tags.
pub(super) const FIX: Pairs = Pairs { numeric_tags: true };

#[derive(Clone, Copy)]
pub(super) struct Pairs {
    numeric_tags: bool,
}

/// The pairs of a message, in order.
pub(super) struct PairReader<'a> {
    pairs: Pairs,
    data: &'a [u8],
    at: usize,
    /// Where the value of the next pair ends, when the last pair was its size.
    data_end: Option<usize>,
}

/// The offsets of a pair in its message.
pub(super) struct Pair {
    pub start: usize,
    /// Where its value begins, after the tag and `=`.
    pub value: usize,
    /// Where its value ends.
    pub end: usize,
    /// Its value is the size of the next pair, a data field.
    pub is_size: bool,
}

impl Pairs {
    /// Reads the pairs of a message.
    pub(super) fn read(self, data: &[u8]) -> PairReader<'_> {
        PairReader { pairs: self, data, at: 0, data_end: None }
    }

    /// Writes the pairs of a whole message that a selection keeps. A FIX data field and its size
    /// are one field, with the tag of the data.
    pub(super) fn select(
        self,
        data: &[u8],
        selection: &Selection,
        out: &mut Vec<u8>,
    ) -> Result<(), Malformed> {
        let names = selection.within(Some(FieldPlan::ROOT)).map(|(plan, root)| plan.names(root));
        let is_root_in = selection.is_root_in();
        let (mut size_start, mut last_tag) = (None, &data[..0]);
        let mut pairs = self.read(data);
        while let Some(Pair { start, value, end, is_size }) = pairs.next()? {
            if is_size {
                size_start = Some(start);
                continue;
            }
            let tag = &data[start..value - 1];
            let field_start = size_start.take().unwrap_or(start);
            if !selection.is_in(names.and_then(|names| names.find(tag)), is_root_in) {
                continue;
            }
            // A wrong size has no effect in the message. In the selected part, other bytes follow
            // it, so it could have an effect.
            if self.numeric_tags && field_start == start && is_size_of(last_tag, tag) {
                return Err(Malformed::Syntax { offset: start, expected: "right size of the data" });
            }
            last_tag = tag;
            out.extend_from_slice(&data[field_start..data.len().min(end + 1)]);
        }
        Ok(())
    }
}

impl PairReader<'_> {
    /// The next pair; `None` at the end.
    #[inline(always)]
    pub(super) fn next(&mut self) -> Result<Option<Pair>, Malformed> {
        let start = self.at;
        if start >= self.data.len() {
            return Ok(None);
        }
        let value = start + self.tag_size(start)? + 1;
        let end = match self.data_end.take() {
            Some(end) => end,
            None => value + size_of_value(&self.data[value..]),
        };
        self.at = end + 1;
        if self.pairs.numeric_tags {
            self.data_end = self.end_of_data(start..value - 1, value..end);
        }
        Ok(Some(Pair { start, value, end, is_size: self.data_end.is_some() }))
    }

    /// The size of the tag of the pair that begins at `start`. The tag is checked.
    #[inline(always)]
    fn tag_size(&self, start: usize) -> Result<usize, Malformed> {
        let malformed = |expected| Err(Malformed::Syntax { offset: start, expected });
        let (mut size, mut is_number) = (0, true);
        // Tags are short.
        loop {
            match self.data.get(start + size) {
                Some(b'=') => break,
                Some(&SEPARATOR) | None => return malformed("tag and ="),
                Some(byte) => is_number &= byte.is_ascii_digit(),
            }
            size += 1;
        }
        match self.pairs.numeric_tags {
            true if size == 0 || !is_number => malformed("number"),
            false if size == 0 => malformed("tag"),
            _ => Ok(size),
        }
    }

    /// Where the next data field ends, when this pair is its size and leads to the end of a pair.
    #[inline]
    fn end_of_data(&self, tag: std::ops::Range<usize>, value: std::ops::Range<usize>) -> Option<usize> {
        let data_tag = data_tag_of(number_of(&self.data[tag])?)?;
        let size = number_of(&self.data[value])?;
        let rest = self.data.get(self.at..)?;
        let tag_size = memchr(b'=', rest)?;
        if number_of(&rest[..tag_size]) != Some(data_tag) {
            return None;
        }
        let end = self.at + tag_size + 1 + size as usize;
        // The last SOH of a message ends a pair and belongs to no value.
        let is_last = end == self.data.len() && !self.data.ends_with(&[SEPARATOR]);
        (is_last || self.data.get(end) == Some(&SEPARATOR)).then_some(end)
    }
}

/// The size of a value that begins here.
#[inline]
fn size_of_value(rest: &[u8]) -> usize {
    /// A call takes longer than a loop over this number of bytes.
    const SHORT_SIZE: usize = 16;
    let short = &rest[..rest.len().min(SHORT_SIZE)];
    match short.iter().position(|byte| *byte == SEPARATOR) {
        Some(size) => size,
        None => memchr(SEPARATOR, &rest[short.len()..]).map_or(rest.len(), |size| short.len() + size),
    }
}

/// A short number of digits.
#[inline]
fn number_of(digits: &[u8]) -> Option<u32> {
    if !(1..=9).contains(&digits.len()) {
        return None;
    }
    digits
        .iter()
        .try_fold(0, |number, digit| digit.is_ascii_digit().then(|| 10 * number + u32::from(digit - b'0')))
}

/// Whether a field with the first tag is the size of a field with the second tag, directly after
/// it.
fn is_size_of(size_tag: &[u8], tag: &[u8]) -> bool {
    number_of(size_tag).and_then(data_tag_of).is_some_and(|data_tag| number_of(tag) == Some(data_tag))
}

/// The data field whose size has this tag. These are the pairs of the field types Length and data,
/// in FIX 4.0 to 5.0 SP2.
fn data_tag_of(size_tag: u32) -> Option<u32> {
    Some(match size_tag {
        93 => 89,
        1525 => 1527,
        1678 => 1697,
        2372 => 2371,
        2494 => 2493,
        2522 => 2521,
        2802 => 2801,
        2809 => 2808,
        2815 => 2814,
        43109 => 42684,
        43110 => 42486,
        43111 => 42982,
        90 | 95 | 212 | 348 | 350 | 352 | 354 | 356 | 358 | 360 | 362 | 364 | 445 | 618 | 621 | 1184
        | 1277 | 1280 | 1282 | 1397 | 1401 | 1403 | 1468 | 1578 | 1620 | 1664 | 1733 | 1871 | 1874 | 2072
        | 2074 | 2111 | 2179 | 2287 | 2351 | 2481 | 2637 | 2651 | 2665 | 2715 | 2718 | 2721 | 2797
        | 40004 | 40008 | 40978 | 40980 | 40982 | 40984 | 40986 | 40988 | 41083 | 41101 | 41107 | 41256
        | 41320 | 41324 | 41458 | 41476 | 41482 | 41653 | 41710 | 41806 | 41811 | 41873 | 41969 | 42025
        | 42171 | 42451 | 42652 | 42947 => size_tag + 1,
        _ => return None,
    })
}

impl Format for Pairs {
    const REPEATED_NAMES_ARE_ARRAYS: bool = true;

    fn members<'a>(
        &self,
        raw: &'a [u8],
        level: &Level<'_, 'a>,
        found: Found<'_, 'a>,
    ) -> Result<(), Malformed> {
        let mut pairs = self.read(raw);
        while let Some(Pair { start, value, end, .. }) = pairs.next()? {
            if let Some(field) = level.child(&raw[start..value - 1]) {
                found(field, Value::inferred(&raw[value..end]))?;
            }
        }
        Ok(())
    }
}
