//! One number for each message of a chunk, in as few bytes as the numbers of this chunk need.

use quire_journal::{Array, Memory};

/// Numbers kept as distances from the smallest of them, all in the same width of 0, 1, 2, 4 or 8
/// bytes. A column of equal numbers holds no bytes at all.
#[derive(Clone, Debug)]
pub(super) struct Column {
    base: u64,
    width: u8,
    bytes: Array<u8>,
}

impl Column {
    /// No numbers yet.
    pub fn new(memory: &Memory) -> Self {
        Column { base: 0, width: 0, bytes: Array::new(memory) }
    }

    /// The number at `index`, which must have been pushed.
    pub fn get(&self, index: usize) -> u64 {
        self.base + self.distance(index)
    }

    #[inline]
    fn distance(&self, index: usize) -> u64 {
        let at = index * usize::from(self.width);
        match self.width {
            0 => 0,
            1 => u64::from(self.bytes[at]),
            2 => u64::from(u16::from_le_bytes([self.bytes[at], self.bytes[at + 1]])),
            width => {
                let mut whole = [0; 8];
                whole[..usize::from(width)].copy_from_slice(&self.bytes[at..at + usize::from(width)]);
                u64::from_le_bytes(whole)
            }
        }
    }

    /// Appends the column to `out`: width, base, distances.
    pub fn pack(&self, out: &mut Vec<u8>) {
        out.push(self.width);
        out.extend_from_slice(&self.base.to_le_bytes());
        out.extend_from_slice(&self.bytes);
    }

    /// The next column of `rest`, of `len` numbers; `None` when [`pack`](Self::pack) could not have
    /// written it.
    pub fn unpack(rest: &mut &[u8], len: usize, memory: &Memory) -> Option<Column> {
        let (width, after) = rest.split_first().filter(|(width, _)| [0, 1, 2, 4, 8].contains(*width))?;
        let (base, after) = after.split_first_chunk::<8>()?;
        let (bytes, after) = after.split_at_checked(len * usize::from(*width))?;
        *rest = after;
        let mut column = Column { base: u64::from_le_bytes(*base), width: *width, bytes: Array::new(memory) };
        column.bytes.extend_from_slice(bytes);
        column.shrink();
        let largest = (0..len).map(|index| column.distance(index)).max().unwrap_or_default();
        column.base.checked_add(largest).map(|_| column)
    }

    /// Adds `value` as number `len`.
    pub fn push(&mut self, len: usize, value: u64) {
        if len == 0 {
            self.base = value;
        }
        // Neighbours are mostly alike.
        if self.width == 0 && value == self.base {
            return;
        }
        self.make_room(len, value);
        let distance = (value - self.base).to_le_bytes();
        self.bytes.extend_from_slice(&distance[..usize::from(self.width)]);
    }

    /// Changes number `index` of `len`.
    pub fn set(&mut self, len: usize, index: usize, value: u64) {
        self.make_room(len, value);
        let (width, distance) = (usize::from(self.width), (value - self.base).to_le_bytes());
        self.bytes[index * width..(index + 1) * width].copy_from_slice(&distance[..width]);
    }

    /// The first `len` numbers plus `difference`, apart from those that are `u64::MAX`. A sum below
    /// 0 becomes 0.
    pub fn shifted(&self, len: usize, difference: i64) -> Column {
        let mut shifted = Column::new(self.bytes.memory());
        for index in 0..len {
            shifted.push(index, shift(self.get(index), difference));
        }
        shifted
    }

    /// Frees the reserved memory. Called when the chunk is full.
    pub fn shrink(&mut self) {
        self.bytes.shrink_to_fit();
    }

    fn make_room(&mut self, len: usize, value: u64) {
        let base = self.base.min(value);
        let width = if base == self.base {
            self.width.max(width_of(value - base))
        } else {
            let largest = (0..len).map(|index| self.get(index)).max().unwrap_or(value);
            width_of(largest.max(value) - base)
        };
        if (base, width) != (self.base, self.width) {
            let mut bytes = Array::with_capacity((len + 1) * usize::from(width), self.bytes.memory());
            for index in 0..len {
                bytes.extend_from_slice(&(self.get(index) - base).to_le_bytes()[..usize::from(width)]);
            }
            *self = Column { base, width, bytes };
        }
    }
}

/// A time plus `difference`. `u64::MAX` is never, and stays never.
pub(super) fn shift(time: u64, difference: i64) -> u64 {
    if time == u64::MAX { time } else { time.saturating_add_signed(difference) }
}

fn width_of(distance: u64) -> u8 {
    match distance {
        0 => 0,
        1..=0xff => 1,
        0x100..=0xffff => 2,
        0x1_0000..=0xffff_ffff => 4,
        _ => 8,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_size() -> impl Strategy<Value = u64> {
        (any::<u64>(), 0u32..64).prop_map(|(value, shift)| value >> shift)
    }

    proptest! {
        #[test]
        fn a_column_returns_what_was_put_in(
            values in prop::collection::vec(any_size(), 1..100),
            changes in prop::collection::vec((any::<prop::sample::Index>(), any_size()), 0..20),
        ) {
            let mut model = values.clone();
            let mut column = Column::new(&Memory::heap());
            for (len, value) in values.into_iter().enumerate() {
                column.push(len, value);
            }
            for (index, value) in changes {
                let index = index.index(model.len());
                model[index] = value;
                column.set(model.len(), index, value);
            }
            let read: Vec<u64> = (0..model.len()).map(|index| column.get(index)).collect();
            prop_assert_eq!(&read, &model);
            let mut packed = Vec::new();
            column.pack(&mut packed);
            let mut rest = &packed[..];
            let unpacked = Column::unpack(&mut rest, model.len(), &Memory::heap()).unwrap();
            prop_assert!(rest.is_empty());
            prop_assert_eq!((0..model.len()).map(|index| unpacked.get(index)).collect::<Vec<_>>(), model);
        }
    }
}
