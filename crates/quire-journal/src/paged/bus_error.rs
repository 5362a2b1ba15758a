//! Reports that the disk cannot read a page of a mapped file. The system then ends the process with
//! SIGBUS, without a message.
//!
//! The handler writes one line, restores the previous handler of SIGBUS, and returns. The same
//! access then ends the process, as without the handler. The handler writes nothing for addresses
//! outside of these mappings.

use std::sync::Once;
use std::sync::atomic::{AtomicUsize, Ordering};

const MESSAGE: &str = "quire: the disk cannot read memory that was paged out to a file in the journal directory \
(file_backed_metadata of queues, file_backed of last-value topics), and the process ends. Nothing is lost: the next start makes \
the queues and records again from the journal\n";

/// Mappings that are watched: one for each journal of the process that has such queues. Further
/// mappings are not reported.
const RANGES_MAX: usize = 16;

/// First address and size of each; size 0: free.
static RANGES: [(AtomicUsize, AtomicUsize); RANGES_MAX] =
    [const { (AtomicUsize::new(0), AtomicUsize::new(0)) }; RANGES_MAX];

/// A range of addresses that is watched until this is dropped.
pub(super) struct Watch(Option<usize>);

impl Watch {
    /// Watches `size` bytes from `base` on.
    pub fn new(base: usize, size: usize) -> Self {
        static INSTALLED: Once = Once::new();
        INSTALLED.call_once(install);
        let free = RANGES.iter().position(|(start, length)| {
            let is_free = start.compare_exchange(0, base, Ordering::AcqRel, Ordering::Relaxed).is_ok();
            if is_free {
                length.store(size, Ordering::Release);
            }
            is_free
        });
        Watch(free)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if let Some(index) = self.0 {
            let (start, length) = &RANGES[index];
            length.store(0, Ordering::Release);
            start.store(0, Ordering::Release);
        }
    }
}

/// The previous handler of SIGBUS. Written once, before the handler is installed.
static mut BEFORE: std::mem::MaybeUninit<libc::sigaction> = std::mem::MaybeUninit::uninit();

fn install() {
    // SAFETY: `BEFORE` is written here, once, before the handler that reads it can run; a zeroed
    // `sigaction` is a valid one.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_bus_error as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        let before = &raw mut BEFORE;
        if libc::sigaction(libc::SIGBUS, std::ptr::null(), before.cast()) == 0 {
            // If the system refuses, the handler is not installed, and there will be no report.
            libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut());
        }
    }
}

/// Does only what a handler of signals may do.
extern "C" fn on_bus_error(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the system gives a valid `info`. `BEFORE` was written before this handler was
    // installed. `write` and `sigaction` may be called in handlers of signals.
    unsafe {
        let address = (*info).si_addr() as usize;
        let is_ours = RANGES.iter().any(|(start, length)| {
            let start = start.load(Ordering::Acquire);
            start > 0 && (start..start.saturating_add(length.load(Ordering::Acquire))).contains(&address)
        });
        if is_ours {
            libc::write(libc::STDERR_FILENO, MESSAGE.as_ptr().cast(), MESSAGE.len());
        }
        let before = &raw const BEFORE;
        libc::sigaction(libc::SIGBUS, before.cast(), std::ptr::null_mut());
    }
}
