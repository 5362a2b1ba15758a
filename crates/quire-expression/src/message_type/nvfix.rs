//! `nvfix` and `fix`: pairs of tag and value, each ended by SOH (the last SOH may be missing).
//!
//! Types are inferred from the text of a value. A tag that occurs more than once is an array in the order of the message. FIX data fields,
//! whose value may contain SOH, are not recognized: their length tag has no meaning here.

use memchr::memchr;

use super::{Format, Found, Level, Malformed, Value};

/// The end of a pair.
pub(super) const SEPARATOR: u8 = 1;

/// Any tag.
pub(super) const NVFIX: Pairs = Pairs { numeric_tags: false };

/// Numeric tags.
pub(super) const FIX: Pairs = Pairs { numeric_tags: true };

pub(super) struct Pairs {
    numeric_tags: bool,
}

impl Pairs {
    /// The size of the tag of a pair, which is checked. `offset` is the place of the pair in the message.
    #[inline(always)]
    pub(super) fn tag_size(&self, pair: &[u8], offset: usize) -> Result<usize, Malformed> {
        let tag_size = memchr(b'=', pair).ok_or(Malformed::Syntax { offset, expected: "tag and =" })?;
        let tag = &pair[..tag_size];
        if tag.is_empty() || (self.numeric_tags && !tag.iter().all(u8::is_ascii_digit)) {
            let expected = if self.numeric_tags { "number" } else { "tag" };
            return Err(Malformed::Syntax { offset, expected });
        }
        Ok(tag_size)
    }
}

impl Format for Pairs {
    const REPEATED_NAMES_ARE_ARRAYS: bool = true;

    fn members<'a>(
        &self,
        raw: &'a [u8],
        level: &Level<'_, 'a>,
        found: Found<'_, 'a>,
    ) -> Result<(), Malformed> {
        let mut rest = raw;
        while !rest.is_empty() {
            let offset = raw.len() - rest.len();
            let end = memchr(SEPARATOR, rest).unwrap_or(rest.len());
            let pair = &rest[..end];
            rest = rest.get(end + 1..).unwrap_or_default();
            let tag_size = self.tag_size(pair, offset)?;
            if let Some(field) = level.child(&pair[..tag_size]) {
                found(field, Value::inferred(&pair[tag_size + 1..]))?;
            }
        }
        Ok(())
    }
}
