//! Memory for the states of queues: the heap, or a mapped file. The system writes the file out when
//! memory is short, and otherwise keeps it in memory (`file_backed_metadata`, docs/queues.md
//! section 6).
//!
//! **What it promises.** A [`Block`] or an [`Array`] has the same behavior in both places. When the
//! file can grow no further, new values are on the heap, and [`Memory::take_failure`] reports the
//! reason once.
//!
//! **How it works.** The file (`page_file.rs`) is one mapping. Only the part that is allocated on
//! the disk is used: a page in a hole of the file would end the process when the disk has no room
//! for it. `pool.rs` divides it into blocks. Its bookkeeping is on the heap, so freeing a block
//! that is paged out reads nothing. `pieces.rs` has no file: it takes large pieces of memory from
//! the system.

#![allow(unsafe_code)] // memory by hand: see the SAFETY notes at each use

mod array;
mod block;
mod bus_error;
mod page_file;
mod pieces;
mod pool;

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error, realloc};
use std::fmt;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

pub use array::Array;
pub use block::Block;
pub use page_file::PageFile;
use pieces::Pieces;
use pool::Pool;

/// The memory in which [`Block`]s and [`Array`]s are allocated. Clones share it.
#[derive(Clone, Default)]
pub struct Memory(Option<Arc<Source>>);

/// The source of the allocations of a [`Memory`] before the heap.
enum Source {
    File(Box<Pool>),
    Pieces(Pieces),
}

impl Memory {
    /// The heap.
    pub fn heap() -> Self {
        Memory(None)
    }

    /// A file, and the heap for values that do not fit.
    pub fn paged(file: PageFile) -> Self {
        Memory(Some(Arc::new(Source::File(Box::new(Pool::new(file))))))
    }

    /// The heap, for many arrays of 16 KiB that have room for all their values from the beginning.
    pub fn heap_in_pieces() -> Self {
        Memory(Some(Arc::new(Source::Pieces(Pieces::default()))))
    }

    fn pool(&self) -> Option<&Pool> {
        match self.0.as_deref()? {
            Source::File(pool) => Some(pool),
            Source::Pieces(_) => None,
        }
    }

    /// Whether it is a file.
    pub fn is_paged(&self) -> bool {
        self.pool().is_some()
    }

    /// Bytes of the file; 0 for the heap.
    pub fn file_size(&self) -> u64 {
        self.pool().map_or(0, |pool| pool.size())
    }

    /// Why the file grows no further. Only the first call after the failure returns it.
    pub fn take_failure(&self) -> Option<io::Error> {
        self.pool()?.take_failure()
    }

    /// Asks the system to write out the pages of the file and to drop them, as it does when memory
    /// is short: for tests.
    ///
    /// # Errors
    /// The error of the system.
    pub fn page_out(&self) -> io::Result<()> {
        self.pool().map_or(Ok(()), |pool| pool.page_out())
    }

    /// Allocates room of a size that is not 0.
    fn allocate(&self, layout: Layout) -> NonNull<u8> {
        assert!(layout.size() > 0, "places have a size");
        let place = match self.0.as_deref() {
            Some(Source::File(pool)) => pool.allocate(layout),
            Some(Source::Pieces(pieces)) => pieces.allocate(layout),
            None => None,
        };
        if let Some(place) = place {
            return place;
        }
        // SAFETY: the size is not 0.
        NonNull::new(unsafe { alloc(layout) }).unwrap_or_else(|| handle_alloc_error(layout))
    }

    /// Changes the size of an allocation. The bytes that fit are kept.
    ///
    /// # Safety
    /// The place is from [`allocate`](Self::allocate) or this, of this memory, with the size and
    /// alignment `old`; `size` is not 0 and, rounded up to the alignment, not above `isize::MAX`.
    /// The old pointer is not used any more.
    unsafe fn resize(&self, place: NonNull<u8>, old: Layout, size: usize) -> NonNull<u8> {
        // SAFETY: the caller promises that it is a size of a place, and `old` was a layout.
        let new = unsafe { Layout::from_size_align_unchecked(size, old.align()) };
        if self.0.is_none() {
            // SAFETY: all places of this memory come from the heap, with their layout; the rest is
            // the caller's promise.
            let place = unsafe { realloc(place.as_ptr(), old, size) };
            return NonNull::new(place).unwrap_or_else(|| handle_alloc_error(new));
        }
        if self.pool().is_some_and(|pool| pool.owns(place) && pool::is_same_size(old, new)) {
            return place;
        }
        let grown = self.allocate(new);
        // SAFETY: both places are as large as the smaller of both, and a new one overlaps no other.
        unsafe { grown.copy_from_nonoverlapping(place, old.size().min(size)) };
        // SAFETY: the caller's promise.
        unsafe { self.release(place, old) };
        grown
    }

    /// Frees an allocation.
    ///
    /// # Safety
    /// The place is from [`allocate`](Self::allocate) or [`resize`](Self::resize) of this memory,
    /// with this layout, and is not used any more.
    unsafe fn release(&self, place: NonNull<u8>, layout: Layout) {
        match self.0.as_deref() {
            Some(Source::File(pool)) if pool.owns(place) => return pool.release(place),
            Some(Source::Pieces(pieces)) if pieces.release(place, layout) => return,
            Some(_) | None => {}
        }
        // SAFETY: all other places came from the heap, with their layout.
        unsafe { dealloc(place.as_ptr(), layout) };
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_deref() {
            Some(Source::File(pool)) => write!(f, "Memory::paged({} bytes)", pool.size()),
            Some(Source::Pieces(_)) => f.write_str("Memory::heap_in_pieces()"),
            None => f.write_str("Memory::heap()"),
        }
    }
}
