//! Descriptors that belong to one process: a forked child closes them.
//!
//! A child gets a copy of each descriptor of its parent. When the parent has ended, the copy still
//! keeps a connection open, a port in use and a directory locked. So every file, socket and poller
//! of quire is an [`Owned`] value, which a table of this process lists. A child closes the
//! descriptors in the table. It only closes them: unlocking a file, or removing a socket from a
//! poller, would affect the parent.
//!
//! The functions of a fork are called around it, by the thread that forks: [`before_fork`], and
//! then [`after_fork_in_parent`] or [`after_fork_in_child`]. They use atomic values only, because
//! any lock may be held by a thread that does not exist in the child.

use std::io;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use smallvec::{SmallVec, smallvec};

/// Numbers that the table has room for, one bit each. Systems number descriptors from 0, and allow
/// half as many by default. A child keeps those with higher numbers.
const NUMBERS_MAX: usize = 1 << 20;

/// The longest time that a fork waits for threads that open or close a descriptor, and that such a
/// thread waits for a fork. Both waits are short, unless the disk hangs, or one thread has the
/// interpreter that the other one needs. After this time, a child may keep a descriptor that is
/// being opened.
const WAIT_MAX: Duration = Duration::from_millis(100);

/// The descriptors of this process.
static TABLE: [AtomicU64; NUMBERS_MAX / 64] = [const { AtomicU64::new(0) }; NUMBERS_MAX / 64];
/// Threads that are opening or closing a descriptor.
static CHANGING: AtomicUsize = AtomicUsize::new(0);
/// Threads that are about to fork.
static FORKING: AtomicUsize = AtomicUsize::new(0);
/// The number of forks that led to this process.
static FORKS: AtomicU64 = AtomicU64::new(0);

/// Descriptors of a value, by their numbers.
type Numbers = SmallVec<[RawFd; 1]>;

/// A value with descriptors that a forked child closes. In the child, the value must not be used
/// any more, and its drop does nothing.
pub struct Owned<T> {
    value: ManuallyDrop<T>,
    numbers: Numbers,
    forks: u64,
}

/// The number of forks that led to this process: the number differs between a parent and its
/// children.
pub fn fork_count() -> u64 {
    FORKS.load(Ordering::Relaxed)
}

/// The process is about to fork. Waits until no thread is opening or closing a descriptor, so that
/// the table is exact.
pub fn before_fork() {
    FORKING.fetch_add(1, Ordering::SeqCst);
    wait_until(|| CHANGING.load(Ordering::SeqCst) == 0);
}

/// The fork has ended, with or without success.
pub fn after_fork_in_parent() {
    FORKING.fetch_sub(1, Ordering::SeqCst);
}

/// This process was forked. Closes the descriptors of the parent.
#[allow(unsafe_code)] // the descriptors have owners, which do not use them any more
pub fn after_fork_in_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
    for (index, word) in TABLE.iter().enumerate() {
        // Most pages of the table were never written. A load does not make a copy of them.
        let mut bits = if word.load(Ordering::Relaxed) == 0 { 0 } else { word.swap(0, Ordering::Relaxed) };
        while bits != 0 {
            let number = index * 64 + bits.trailing_zeros() as usize;
            bits &= bits - 1;
            // SAFETY: the table had the number, so the descriptor is that of an `Owned` value of
            // the parent. The value is not used here, and its drop leaves the descriptor alone.
            drop(unsafe { OwnedFd::from_raw_fd(number as RawFd) });
        }
    }
    // The threads that were opening or closing a descriptor do not exist here.
    CHANGING.store(0, Ordering::SeqCst);
    FORKING.store(0, Ordering::SeqCst);
}

/// Waits for `is_so`, for a limited time.
fn wait_until(is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() && begun.elapsed() < WAIT_MAX {
        std::thread::sleep(Duration::from_micros(50));
    }
}

/// Held while the table differs from the descriptors that are open.
struct Change;

impl Change {
    fn begin() -> Self {
        CHANGING.fetch_add(1, Ordering::SeqCst);
        if FORKING.load(Ordering::SeqCst) > 0 {
            CHANGING.fetch_sub(1, Ordering::SeqCst);
            wait_until(|| FORKING.load(Ordering::SeqCst) == 0);
            CHANGING.fetch_add(1, Ordering::SeqCst);
        }
        Change
    }
}

impl Drop for Change {
    fn drop(&mut self) {
        CHANGING.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The word of a number in the table, and its bit.
fn place(number: RawFd) -> Option<(&'static AtomicU64, u64)> {
    let number = usize::try_from(number).ok()?;
    Some((TABLE.get(number / 64)?, 1 << (number % 64)))
}

impl<T: AsRawFd> Owned<T> {
    /// The value that `open` makes.
    ///
    /// # Errors
    /// The errors of `open`.
    pub fn open<E>(open: impl FnOnce() -> Result<T, E>) -> Result<Self, E> {
        Owned::open_all(open, |value| smallvec![value.as_raw_fd()])
    }

    /// The two values that `open` makes.
    ///
    /// # Errors
    /// The errors of `open`.
    pub fn open_pair<E>(open: impl FnOnce() -> Result<(T, T), E>) -> Result<(Self, Self), E> {
        let _change = Change::begin();
        let (one, other) = open()?;
        let numbers = [one.as_raw_fd(), other.as_raw_fd()];
        Ok((Owned::new(one, smallvec![numbers[0]]), Owned::new(other, smallvec![numbers[1]])))
    }
}

impl<T> Owned<T> {
    /// The value that `open` makes, and that has more than one descriptor.
    ///
    /// # Errors
    /// The errors of `open`.
    pub fn open_all<E>(
        open: impl FnOnce() -> Result<T, E>,
        numbers: impl FnOnce(&T) -> Numbers,
    ) -> Result<Self, E> {
        let _change = Change::begin();
        let value = open()?;
        let numbers = numbers(&value);
        Ok(Owned::new(value, numbers))
    }

    fn new(value: T, numbers: Numbers) -> Self {
        for (word, bit) in numbers.iter().filter_map(|number| place(*number)) {
            word.fetch_or(bit, Ordering::Relaxed);
        }
        Owned { value: ManuallyDrop::new(value), numbers, forks: fork_count() }
    }

    /// Whether a parent of this process made the value.
    pub fn is_of_parent(&self) -> bool {
        self.forks != fork_count()
    }

    /// The value, for code that may run in a child.
    ///
    /// # Errors
    /// A parent of this process made it.
    pub fn get(&self) -> io::Result<&T> {
        if self.is_of_parent() {
            return Err(io::Error::other("it was opened before a fork, and belongs to the parent process"));
        }
        Ok(&self.value)
    }
}

impl<T> Deref for Owned<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for Owned<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

impl<T: AsFd> AsFd for Owned<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.value.as_fd()
    }
}

impl<T: AsRawFd> AsRawFd for Owned<T> {
    fn as_raw_fd(&self) -> RawFd {
        self.value.as_raw_fd()
    }
}

impl<T> Drop for Owned<T> {
    #[allow(unsafe_code)] // the value is closed here, or not at all
    fn drop(&mut self) {
        if self.is_of_parent() {
            return;
        }
        let _change = Change::begin();
        for (word, bit) in self.numbers.iter().filter_map(|number| place(*number)) {
            word.fetch_and(!bit, Ordering::Relaxed);
        }
        // SAFETY: the field is not used again: this is the drop of its owner.
        unsafe { ManuallyDrop::drop(&mut self.value) };
    }
}
