//! Blocks of one size in larger pieces, which come from the system directly.
//!
//! For many blocks of 16 KiB, the heap needs a system call for each few of them. These calls stop
//! the other threads that use new memory. The first use of each page of 4 KiB also interrupts the
//! program. So a piece has many blocks, and the system makes the pages of some blocks at a time,
//! before their first use.

use std::alloc::Layout;
use std::collections::{BTreeMap, BTreeSet};
use std::ptr::NonNull;
use std::sync::Arc;

use memmap2::{MmapOptions, MmapRaw};
use parking_lot::Mutex;

/// The size of a block.
pub(super) const BLOCK_SIZE: usize = 16 * 1024;
/// Blocks of a piece.
const PIECE_BLOCKS: usize = 128;
/// Blocks whose pages the system makes at a time: some ten microseconds.
const READY_BLOCKS: usize = 16;
/// This many blocks are on the heap before the first piece is made, so a server with few values
/// needs little memory.
const ON_HEAP_MAX: usize = 64;

/// Pieces, and the blocks of them that are in use.
#[derive(Default)]
pub(super) struct Pieces(Mutex<PieceTable>);

#[derive(Default)]
struct PieceTable {
    /// By their addresses.
    pieces: BTreeMap<usize, Piece>,
    /// The pieces that have free blocks.
    open: BTreeSet<usize>,
    /// Blocks on the heap.
    on_heap: usize,
}

struct Piece {
    map: Arc<MmapRaw>,
    /// A bit for each block, set when it is free.
    free: u128,
    /// The pages of the blocks before this one were made.
    ready: usize,
}

/// A block of a piece.
struct Taken {
    map: Arc<MmapRaw>,
    block: usize,
    /// The pages of this block and of the next ones have to be made.
    is_new: bool,
}

const _: () = assert!(u128::BITS as usize == PIECE_BLOCKS);

impl Pieces {
    /// Allocates a block. `None` when the heap has to be used.
    pub fn allocate(&self, layout: Layout) -> Option<NonNull<u8>> {
        if layout.size() != BLOCK_SIZE {
            return None;
        }
        let mut state = self.0.lock();
        if state.on_heap < ON_HEAP_MAX {
            state.on_heap += 1;
            return None;
        }
        let Some(Taken { map, block, is_new }) = state.take() else {
            // Without memory for a piece, the heap is used.
            state.on_heap += 1;
            return None;
        };
        // The piece stays, because this block of it is in use. Other threads need not wait for the
        // system.
        drop(state);
        let offset = block * BLOCK_SIZE;
        if is_new {
            #[cfg(target_os = "linux")]
            // A system without this call makes each page at its first use.
            let _ = map.advise_range(memmap2::Advice::PopulateWrite, offset, READY_BLOCKS * BLOCK_SIZE);
        }
        // SAFETY: the block is within the mapping.
        NonNull::new(unsafe { map.as_mut_ptr().add(offset) })
    }

    /// Frees an allocation with the layout. Returns whether it is a block. All others are of the
    /// heap.
    pub fn release(&self, place: NonNull<u8>, layout: Layout) -> bool {
        if layout.size() != BLOCK_SIZE {
            return false;
        }
        let state = &mut *self.0.lock();
        let is_block = state.give_back(place.addr().get());
        state.on_heap -= usize::from(!is_block);
        is_block
    }
}

impl PieceTable {
    fn take(&mut self) -> Option<Taken> {
        let address = match self.open.first() {
            Some(address) => *address,
            None => self.add_piece()?,
        };
        let piece = self.pieces.get_mut(&address)?;
        let block = piece.free.trailing_zeros() as usize;
        piece.free &= piece.free - 1;
        if piece.free == 0 {
            self.open.remove(&address);
        }
        let is_new = block == piece.ready;
        if is_new {
            piece.ready += READY_BLOCKS;
        }
        Some(Taken { map: Arc::clone(&piece.map), block, is_new })
    }

    fn give_back(&mut self, place: usize) -> bool {
        let Some((address, piece)) = self.pieces.range_mut(..=place).next_back() else { return false };
        let block = (place - address) / BLOCK_SIZE;
        if block >= PIECE_BLOCKS {
            return false;
        }
        let address = *address;
        piece.free |= 1 << block;
        // One piece stays, so that a user at the border does not make and free one each time.
        if piece.free == u128::MAX && self.open.iter().any(|open| *open != address) {
            self.pieces.remove(&address);
            self.open.remove(&address);
        } else {
            self.open.insert(address);
        }
        true
    }

    fn add_piece(&mut self) -> Option<usize> {
        let map = MmapOptions::new().len(PIECE_BLOCKS * BLOCK_SIZE).map_anon().ok()?;
        let map = Arc::new(MmapRaw::from(map));
        let address = map.as_ptr().addr();
        self.pieces.insert(address, Piece { map, free: u128::MAX, ready: 0 });
        self.open.insert(address);
        Some(address)
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::super::{Array, Memory};
    use super::*;

    fn block(memory: &Memory, byte: u8) -> Array<u8> {
        let mut block = Array::with_capacity(BLOCK_SIZE, memory);
        block.extend_from_slice(&vec![byte; BLOCK_SIZE]);
        block
    }

    fn pieces(memory: &Memory) -> usize {
        match memory.0.as_deref() {
            Some(super::super::Source::Pieces(pieces)) => pieces.0.lock().pieces.len(),
            _ => unreachable!("the memory has pieces"),
        }
    }

    #[test]
    fn pieces_are_made_for_many_blocks_and_given_back() {
        let memory = Memory::heap_in_pieces();
        let on_heap: Vec<_> = (0..ON_HEAP_MAX).map(|number| block(&memory, number as u8)).collect();
        assert_eq!(pieces(&memory), 0);
        let mut blocks: Vec<_> = (0..3 * PIECE_BLOCKS).map(|number| block(&memory, number as u8)).collect();
        assert_eq!(pieces(&memory), 3);
        for (number, block) in on_heap.iter().chain(&blocks).enumerate() {
            let number = if number < ON_HEAP_MAX { number } else { number - ON_HEAP_MAX };
            assert!(block.iter().all(|byte| *byte == number as u8), "{number}");
        }
        // Other sizes are on the heap.
        drop(Array::<u8>::with_capacity(BLOCK_SIZE - 1, &memory));
        blocks.truncate(PIECE_BLOCKS);
        assert_eq!(pieces(&memory), 2, "one piece stays");
        drop(blocks);
        assert_eq!(pieces(&memory), 1);
    }

    proptest! {
        #[test]
        fn blocks_keep_their_bytes(steps in vec((any::<u8>(), any::<bool>()), 1..600)) {
            let memory = Memory::heap_in_pieces();
            let _on_heap: Vec<_> = (0..ON_HEAP_MAX).map(|_| block(&memory, 0)).collect();
            let mut blocks: Vec<Array<u8>> = Vec::new();
            for (byte, is_added) in steps {
                if is_added {
                    let mut block = Array::with_capacity(BLOCK_SIZE, &memory);
                    block.extend_from_slice(&[byte; 100]);
                    blocks.push(block);
                } else if !blocks.is_empty() {
                    blocks.swap_remove(usize::from(byte) % blocks.len());
                }
                let addresses: BTreeSet<_> = blocks.iter().map(|block| block.as_ptr().addr()).collect();
                prop_assert_eq!(addresses.len(), blocks.len());
                prop_assert!(blocks.iter().all(|block| block.iter().all(|byte| *byte == block[0])));
            }
        }
    }
}
