//! [`Block`]: one value in a [`Memory`].

use std::alloc::Layout;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use super::Memory;

/// A value in a [`Memory`], owned like one in a `Box`.
pub struct Block<T> {
    value: NonNull<T>,
    memory: Memory,
}

// SAFETY: a block owns its value and does not share it. The memory to which it returns its space
// has a lock.
unsafe impl<T: Send> Send for Block<T> {}
// SAFETY: as above; a shared block only gives out shared values.
unsafe impl<T: Sync> Sync for Block<T> {}

impl<T> Block<T> {
    /// Puts a value there.
    pub fn new(value: T, memory: &Memory) -> Self {
        const { assert!(size_of::<T>() > 0) };
        let place = memory.allocate(Layout::new::<T>()).cast::<T>();
        // SAFETY: the place is new, and of the size and alignment of a `T`.
        unsafe { place.write(value) };
        Block { value: place, memory: memory.clone() }
    }
}

impl<T> Drop for Block<T> {
    fn drop(&mut self) {
        // SAFETY: the value was written by `new` and is dropped here only.
        unsafe { self.value.drop_in_place() };
        // SAFETY: the place is from this memory, with this layout, and the block is gone.
        unsafe { self.memory.release(self.value.cast(), Layout::new::<T>()) };
    }
}

impl<T> Deref for Block<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the block owns a value that was written. A borrow of the value borrows the block.
        unsafe { self.value.as_ref() }
    }
}

impl<T> DerefMut for Block<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above, and alone.
        unsafe { self.value.as_mut() }
    }
}

impl<T: fmt::Debug> fmt::Debug for Block<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}
