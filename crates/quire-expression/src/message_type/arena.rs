//! The memory of one evaluation. It holds everything that is read from a message or computed from
//! it, until the next message.

use std::cell::Cell;

use bumpalo::Bump;
use bumpalo::collections::Vec as BumpVec;

use super::{Malformed, Number, Value};
use crate::unreadable::Unreadables;

/// The most bytes of the values of one message: enough for every element of a 10 MB array. It
/// limits messages that were made to do harm.
pub const ARENA_SIZE_MAX: usize = 512 * 1024 * 1024;

/// The largest text that a function may compute, in bytes: as large as the largest message. A
/// larger one is NULL.
pub const TEXT_SIZE_MAX: usize = 16 * 1024 * 1024;

/// Bytes of memory that are kept for the next message. So a rare large message does not hold memory
/// forever.
const ARENA_SIZE_KEPT: usize = 1024 * 1024;

/// The memory for the values of one message. It is reused for the next message, so that evaluation
/// does not allocate.
///
/// It also has the *effort* that evaluation may still take: a unit is about a nanosecond of work.
/// Effort counts the work and does not depend on a clock, so equal messages and filters always have
/// equal results. There is no limit unless [`Arena::allow`] sets one.
#[derive(Debug)]
pub struct Arena {
    bump: Bump,
    effort: Cell<u64>,
    unreadables: Option<Unreadables>,
    /// Whether a message is unambiguous, since the last reset: its address, its size, the answer.
    unambiguous: Cell<Option<(usize, usize, bool)>>,
}

impl Default for Arena {
    fn default() -> Self {
        let bump = Bump::new();
        bump.set_allocation_limit(Some(ARENA_SIZE_MAX));
        Arena { bump, effort: Cell::new(u64::MAX), unreadables: None, unambiguous: Cell::new(None) }
    }
}

impl Arena {
    /// An arena that reports unreadable messages to `unreadables`.
    pub fn reporting_to(unreadables: &Unreadables) -> Self {
        Arena { unreadables: Some(unreadables.clone()), ..Arena::default() }
    }

    /// Where to report messages that cannot be read.
    pub(crate) fn unreadables(&self) -> Option<&Unreadables> {
        self.unreadables.as_ref()
    }

    /// Removes everything, and keeps a limited part of the memory.
    pub fn reset(&mut self) {
        self.unambiguous.set(None);
        if self.bump.allocated_bytes() > ARENA_SIZE_KEPT {
            self.bump = Arena::default().bump;
        } else {
            self.bump.reset();
        }
    }

    /// Whether it holds more memory than it keeps from message to message.
    pub fn is_large(&self) -> bool {
        self.bump.allocated_bytes() > ARENA_SIZE_KEPT
    }

    /// Sets the effort that evaluation may take from now on. After it is used up, the values that
    /// evaluation returns are not results.
    pub fn allow(&mut self, effort: u64) {
        self.effort.set(effort);
    }

    /// Subtracts effort. Returns false when none is left.
    pub(crate) fn spend(&self, effort: u64) -> bool {
        let left = self.effort.get().saturating_sub(effort);
        self.effort.set(left);
        left > 0
    }

    /// The rest of the effort that was allowed.
    pub fn effort_left(&self) -> u64 {
        self.effort.get()
    }

    /// The answer that was noted about this message since the last reset.
    pub(crate) fn is_unambiguous(&self, data: &[u8]) -> Option<bool> {
        let (address, size, is_unambiguous) = self.unambiguous.get()?;
        (address == data.as_ptr().addr() && size == data.len()).then_some(is_unambiguous)
    }

    /// Notes whether a message is unambiguous. It must not change before the next reset.
    pub(crate) fn note_unambiguous(&self, data: &[u8], is_unambiguous: bool) {
        self.unambiguous.set(Some((data.as_ptr().addr(), data.len(), is_unambiguous)));
    }

    /// `count` values, all NULL.
    pub(crate) fn nulls<'a>(&'a self, count: usize) -> Result<&'a mut [Value<'a>], Malformed> {
        let mut values = self.list();
        values.try_reserve_exact(count).map_err(|_| Malformed::TooLarge)?;
        values.resize(count, Value::Null);
        Ok(values.into_bump_slice_mut())
    }

    /// An empty list; add to it with [`push`].
    pub(crate) fn list<T>(&self) -> BumpVec<'_, T> {
        BumpVec::new_in(&self.bump)
    }

    /// An empty text to compute.
    pub(crate) fn builder(&self) -> TextBuilder<'_> {
        TextBuilder { bytes: self.list(), overflowed: false }
    }

    /// The text of a single value as text functions see it: the raw text of a number, `true` or
    /// `false`. `None` for NULL and compound values.
    pub fn text<'a>(&'a self, value: Value<'a>) -> Option<&'a [u8]> {
        match value.scalar() {
            Value::Text(text) => Some(text),
            Value::Boolean(true) => Some(b"true"),
            Value::Boolean(false) => Some(b"false"),
            Value::Number(_, raw) if !raw.is_empty() => Some(raw),
            Value::Number(number, _) => self.number_text(number),
            Value::Null | Value::Array(_) | Value::Compound(_) => None,
        }
    }

    fn number_text(&self, number: Number) -> Option<&[u8]> {
        if number.is_nan() {
            return None;
        }
        let mut builder = self.builder();
        number.write_text(&mut builder).ok()?;
        builder.bytes()
    }
}

/// Adds `item`, unless the arena is full.
pub(crate) fn push<T>(list: &mut BumpVec<'_, T>, item: T) -> Result<(), Malformed> {
    list.try_reserve(1).map_err(|_| Malformed::TooLarge)?;
    list.push(item);
    Ok(())
}

/// A text under construction. A text that is too large becomes NULL at the end.
pub(crate) struct TextBuilder<'a> {
    bytes: BumpVec<'a, u8>,
    overflowed: bool,
}

impl<'a> TextBuilder<'a> {
    /// Adds `bytes` at the end.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.overflowed
            || self.bytes.len() + bytes.len() > TEXT_SIZE_MAX
            || self.bytes.try_reserve(bytes.len()).is_err()
        {
            self.overflowed = true;
        } else {
            self.bytes.extend_from_slice_copy(bytes);
        }
    }

    /// The bytes so far, to change in place.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// Whether the limit was exceeded, so that further work has no effect.
    pub fn overflowed(&self) -> bool {
        self.overflowed
    }

    /// The bytes; `None` when they were too many.
    pub fn bytes(self) -> Option<&'a [u8]> {
        if self.overflowed { None } else { Some(self.bytes.into_bump_slice()) }
    }

    /// The finished text; NULL when it is empty or was too large.
    pub fn value(self) -> Value<'a> {
        self.bytes().map_or(Value::Null, Value::text)
    }
}

impl std::io::Write for TextBuilder<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.push(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
