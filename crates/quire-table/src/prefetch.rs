//! Prefetch: the processor reads memory that is needed soon while the program continues.
#![allow(unsafe_code)] // an instruction of the processor: see the SAFETY note

/// Bytes that the processor reads from memory at once.
pub(crate) const LINE_SIZE: usize = 64;

/// Tells the processor that these bytes are needed soon, and does not wait for them. It has no
/// other effect. It has no effect on processors for which Rust has no such instruction.
#[inline]
pub(crate) fn prefetch(bytes: &[u8]) {
    bytes.chunks(LINE_SIZE).for_each(|line| prefetch_line(&line[0]));
}

/// The same for the line of memory in which a value begins.
#[inline]
pub(crate) fn prefetch_line<T>(value: &T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: the instruction gives no bytes to the program. Any address is allowed, and this
        // one is of a value.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(value).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = value;
}
