//! [`Array`]: plain values in consecutive memory of a [`Memory`].

use std::alloc::Layout;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use super::Memory;

/// Values that can be copied, one after the other in a [`Memory`]. It is used like a `Vec`, which
/// cannot use a [`Memory`]. 24 bytes.
pub struct Array<T: Copy> {
    /// Room for `capacity` values. The first `len` are written. Dangling when there is no room.
    values: NonNull<T>,
    len: u32,
    capacity: u32,
    memory: Memory,
}

/// The smallest allocation, in bytes.
const ROOM_MIN: usize = 8;

// SAFETY: an array owns its values and does not share them. The memory to which it returns its
// space has a lock.
unsafe impl<T: Copy + Send> Send for Array<T> {}
// SAFETY: as above; a shared array only gives out shared values.
unsafe impl<T: Copy + Sync> Sync for Array<T> {}

impl<T: Copy> Array<T> {
    /// No values yet, and no room for any.
    pub fn new(memory: &Memory) -> Self {
        const { assert!(size_of::<T>() > 0) };
        Array { values: NonNull::dangling(), len: 0, capacity: 0, memory: memory.clone() }
    }

    /// Room for `capacity` values.
    pub fn with_capacity(capacity: usize, memory: &Memory) -> Self {
        let mut array = Array::new(memory);
        if capacity > 0 {
            array.set_capacity(capacity);
        }
        array
    }

    /// The memory that holds them.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// The number of values that there is room for.
    pub fn capacity(&self) -> usize {
        self.capacity as usize
    }

    /// Appends values.
    #[inline]
    pub fn extend_from_slice(&mut self, values: &[T]) {
        let len = self.len as usize;
        if values.len() > self.capacity as usize - len {
            self.make_room(values.len());
        }
        // SAFETY: there is room for the values after the last one, and this call has the only
        // reference to the array.
        unsafe { self.values.as_ptr().add(len).copy_from_nonoverlapping(values.as_ptr(), values.len()) };
        self.len += values.len() as u32;
    }

    /// Inserts a value before the value at `index`, or after the last one.
    pub fn insert(&mut self, index: usize, value: T) {
        let len = self.len as usize;
        assert!(index <= len, "no place {index} among {len}");
        if self.len == self.capacity {
            self.make_room(1);
        }
        // SAFETY: there is room for one more, so the values from `index` on may move by one, and
        // the place is free then.
        unsafe {
            let place = self.values.as_ptr().add(index);
            place.copy_to(place.add(1), len - index);
            place.write(value);
        }
        self.len += 1;
    }

    /// Removes the value at `index`. The later values move up.
    pub fn remove(&mut self, index: usize) {
        let len = self.len as usize;
        self.copy_within(index + 1..len, index);
        self.len -= 1;
    }

    /// Keeps the first `len` values.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(u32::try_from(len).unwrap_or(u32::MAX));
    }

    /// Makes room for exactly `more` more values, if there is none.
    pub fn reserve_exact(&mut self, more: usize) {
        let needed = self.len as usize + more;
        if needed > self.capacity as usize {
            self.set_capacity(needed);
        }
    }

    /// Frees the room that is not needed.
    pub fn shrink_to_fit(&mut self) {
        if self.len == 0 {
            *self = Array::new(&self.memory);
        } else if self.len < self.capacity {
            self.set_capacity(self.len as usize);
        }
    }

    #[cold]
    fn make_room(&mut self, more: usize) {
        let needed = self.len as usize + more;
        self.set_capacity(needed.max(2 * self.capacity as usize).max(ROOM_MIN / size_of::<T>()));
    }

    /// Moves the values to new room for `capacity` values. It is not 0, and not below the number of
    /// values.
    fn set_capacity(&mut self, capacity: usize) {
        assert!(capacity >= self.len as usize && capacity > 0);
        let count = u32::try_from(capacity).expect("arrays hold fewer than 2^32 values");
        let layout = Layout::array::<T>(capacity).expect("arrays are smaller than the address space");
        let place = match self.layout() {
            // SAFETY: the values are at a place of this memory with this layout. The new size is
            // that of a layout, and not 0.
            Some(old) => unsafe { self.memory.resize(self.values.cast(), old, layout.size()) },
            None => self.memory.allocate(layout),
        };
        self.values = place.cast();
        self.capacity = count;
    }

    /// The layout of the allocation. `None` without one.
    fn layout(&self) -> Option<Layout> {
        let layout = Layout::array::<T>(self.capacity as usize);
        (self.capacity > 0).then(|| layout.expect("it was a layout when the place was made"))
    }
}

impl<T: Copy> Drop for Array<T> {
    fn drop(&mut self) {
        if let Some(layout) = self.layout() {
            // SAFETY: the place is from this memory, with this layout, and the array is gone.
            unsafe { self.memory.release(self.values.cast(), layout) };
        }
    }
}

impl<T: Copy> Clone for Array<T> {
    fn clone(&self) -> Self {
        let mut array = Array::with_capacity(self.len(), &self.memory);
        array.extend_from_slice(self);
        array
    }
}

impl<T: Copy> Deref for Array<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: the first `len` values are written, and a borrow of them borrows the array.
        unsafe { std::slice::from_raw_parts(self.values.as_ptr(), self.len as usize) }
    }
}

impl<T: Copy> DerefMut for Array<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above, and alone.
        unsafe { std::slice::from_raw_parts_mut(self.values.as_ptr(), self.len as usize) }
    }
}

impl<T: Copy + fmt::Debug> fmt::Debug for Array<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}
