//! The chunks of a queue, by number and by the first position in each.

use std::collections::VecDeque;

use quire_journal::{Block, Memory};

/// Chunks in a ring that begins with the first one that is left. A chunk that is gone between
/// others costs 24 bytes until everything before it is gone too, a tenth of a byte for each of its
/// messages.
#[derive(Debug)]
pub(super) struct Chunks<T> {
    /// The number of the first chunk of the ring.
    first: u64,
    ring: VecDeque<RingPlace<T>>,
    /// The memory that holds the chunks.
    memory: Memory,
}

#[derive(Debug)]
struct RingPlace<T> {
    /// The position of the first message that entered; ascending.
    position: u64,
    chunk: Option<Block<T>>,
}

impl<T> Chunks<T> {
    /// No chunks yet.
    pub fn new(memory: &Memory) -> Self {
        Chunks { first: 0, ring: VecDeque::new(), memory: memory.clone() }
    }

    /// The memory that holds them.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// The chunk with this number, if it is left.
    #[inline]
    pub fn get(&self, number: u64) -> Option<&T> {
        self.ring.get(self.index(number)?)?.chunk.as_deref()
    }

    /// The chunk with this number, if it is left.
    #[inline]
    pub fn get_mut(&mut self, number: u64) -> Option<&mut T> {
        let index = self.index(number)?;
        self.ring.get_mut(index)?.chunk.as_deref_mut()
    }

    /// The chunk with this number: the last one, or a new one after it that begins at `position`.
    #[inline]
    pub fn get_or_push(&mut self, number: u64, position: u64, new: impl FnOnce(&Memory) -> T) -> &mut T {
        if self.ring.is_empty() {
            self.first = number;
        }
        let index = (number - self.first) as usize;
        if index == self.ring.len() {
            self.ring.push_back(RingPlace { position, chunk: None });
        }
        let memory = &self.memory;
        self.ring[index].chunk.get_or_insert_with(|| Block::new(new(memory), memory))
    }

    /// Lets a chunk go, and the places before the first that is left.
    pub fn remove(&mut self, number: u64) {
        if let Some(place) = self.index(number).and_then(|index| self.ring.get_mut(index)) {
            place.chunk = None;
        }
        while self.ring.front().is_some_and(|place| place.chunk.is_none()) {
            self.ring.pop_front();
            self.first += 1;
        }
        // A backlog of millions that was worked off does not keep its ring.
        if self.ring.capacity() > 1024 && self.ring.len() * 4 < self.ring.capacity() {
            self.ring.shrink_to(self.ring.len() * 2);
        }
    }

    /// The number of the last chunk that begins at or before `position`.
    pub fn find(&self, position: u64) -> Option<u64> {
        let after = self.ring.partition_point(|place| place.position <= position);
        Some(self.first + after.checked_sub(1)? as u64)
    }

    /// The chunks from this number on that are left, with their numbers.
    pub fn from(&self, number: u64) -> impl Iterator<Item = (u64, &T)> {
        let skipped = number.saturating_sub(self.first).min(self.ring.len() as u64);
        let numbers = self.first + skipped..;
        numbers
            .zip(self.ring.range(skipped as usize..))
            .filter_map(|(at, place)| Some((at, place.chunk.as_deref()?)))
    }

    #[inline]
    fn index(&self, number: u64) -> Option<usize> {
        number.checked_sub(self.first).map(|index| index as usize)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn chunks_are_a_sorted_map(steps in prop::collection::vec((any::<bool>(), any::<prop::sample::Index>()), 1..200)) {
            let (mut chunks, mut model, mut next) = (Chunks::new(&Memory::heap()), BTreeMap::new(), 0u64);
            for (push, which) in steps {
                if push {
                    chunks.get_or_push(next, next * 10 + 5, |_| next);
                    model.insert(next, next);
                    next += 1;
                } else if let Some(number) = model.keys().copied().nth(which.index(model.len().max(1))) {
                    model.remove(&number);
                    chunks.remove(number);
                }
                let number = which.index(next as usize + 2) as u64;
                prop_assert_eq!(chunks.get(number), model.get(&number));
                prop_assert_eq!(chunks.get_mut(number).copied(), model.get(&number).copied());
                let left: Vec<_> = chunks.from(number).map(|(at, chunk)| (at, *chunk)).collect();
                prop_assert_eq!(left, model.range(number..).map(|(at, chunk)| (*at, *chunk)).collect::<Vec<_>>());
                for position in [number * 10 + 4, number * 10 + 5, number * 10 + 14] {
                    let found = chunks.find(position).and_then(|number| chunks.get(number)).copied();
                    let begun = position.checked_sub(5).map(|position| (position / 10).min(next.saturating_sub(1)));
                    prop_assert_eq!(found, begun.and_then(|number| model.get(&number)).copied());
                }
            }
        }
    }
}
