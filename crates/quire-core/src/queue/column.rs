//! One number for each message of a chunk, in as few bytes as the numbers of this chunk need.

/// Numbers kept as distances from the smallest of them, all in the same width of 0, 1, 2, 4 or 8 bytes. A column of equal numbers
/// holds no bytes at all.
#[derive(Debug, Default)]
pub(super) struct Column {
    base: u64,
    width: u8,
    bytes: Vec<u8>,
}

impl Column {
    /// The number at `index`, which must have been pushed.
    pub fn get(&self, index: usize) -> u64 {
        let at = index * usize::from(self.width);
        let distance = match self.width {
            0 => 0,
            1 => u64::from(self.bytes[at]),
            2 => u64::from(u16::from_le_bytes([self.bytes[at], self.bytes[at + 1]])),
            width => {
                let mut whole = [0; 8];
                whole[..usize::from(width)].copy_from_slice(&self.bytes[at..at + usize::from(width)]);
                u64::from_le_bytes(whole)
            }
        };
        self.base + distance
    }

    /// Adds `value` as number `len`.
    pub fn push(&mut self, len: usize, value: u64) {
        if len == 0 {
            self.base = value;
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

    /// Gives back what growth reserved; called when the chunk is full.
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
            let mut bytes = Vec::with_capacity((len + 1) * usize::from(width));
            for index in 0..len {
                bytes.extend_from_slice(&(self.get(index) - base).to_le_bytes()[..usize::from(width)]);
            }
            *self = Column { base, width, bytes };
        }
    }
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
            let mut column = Column::default();
            for (len, value) in values.into_iter().enumerate() {
                column.push(len, value);
            }
            for (index, value) in changes {
                let index = index.index(model.len());
                model[index] = value;
                column.set(model.len(), index, value);
            }
            let read: Vec<u64> = (0..model.len()).map(|index| column.get(index)).collect();
            prop_assert_eq!(read, model);
        }
    }
}
