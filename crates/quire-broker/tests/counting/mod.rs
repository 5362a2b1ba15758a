//! The allocator of a test that counts: bytes as they are asked for, not as the system's allocator
//! rounds them, and how often.
#![allow(unsafe_code)] // the counting allocator, here and nowhere else

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes that are allocated now.
#[allow(dead_code)] // each test counts one of the two
pub fn allocated() -> usize {
    SIZE.load(Ordering::Relaxed)
}

/// How often this thread has asked for memory.
#[allow(dead_code)] // each test counts one of the two
pub fn allocation_count() -> usize {
    COUNT.get()
}

struct Counting;

static SIZE: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static COUNT: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: every call is passed on unchanged to the allocator of the system. The counters have no
// effect on it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        SIZE.fetch_add(layout.size(), Ordering::Relaxed);
        COUNT.set(COUNT.get() + 1);
        // SAFETY: the caller's promises are the system allocator's conditions.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        SIZE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;
