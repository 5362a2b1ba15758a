//! Objects with threads, and their state in a child after `fork`, where the threads do not exist.

use std::mem::ManuallyDrop;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use quire_journal::descriptor::{self, fork_count};

/// Called by the thread that is about to fork.
#[pyfunction]
pub fn before_fork() {
    descriptor::before_fork();
}

/// Called by the same thread after the fork.
#[pyfunction]
pub fn after_fork_in_parent() {
    descriptor::after_fork_in_parent();
}

/// Called in the child. The threads of its parent do not exist in it, and it closes the descriptors
/// of the parent's clients, engines, journals and stores.
#[pyfunction]
pub fn after_fork_in_child() {
    descriptor::after_fork_in_child();
    quire_driver::after_fork_in_child();
}

/// A value with threads. It detects that the process was forked.
pub struct Handle<T> {
    value: ManuallyDrop<T>,
    forks: u64,
}

impl<T> Handle<T> {
    pub fn new(value: T) -> Self {
        Handle { value: ManuallyDrop::new(value), forks: fork_count() }
    }

    /// The value, whether it can be used or not: see [`Handle::check_fork`].
    pub fn value(&self) -> &T {
        &self.value
    }

    /// The value itself. `None` in a process other than the one that made it.
    #[allow(unsafe_code)] // moving a field out of a value that has a drop
    pub fn into_value(mut self) -> Option<T> {
        if self.is_forked() {
            return None;
        }
        // SAFETY: the field is not used again: its owner is forgotten.
        let value = unsafe { ManuallyDrop::take(&mut self.value) };
        std::mem::forget(self);
        Some(value)
    }

    pub fn is_forked(&self) -> bool {
        self.forks != fork_count()
    }

    /// Raises in a process other than the one that made the value.
    pub fn check_fork(&self, _py: Python<'_>) -> PyResult<()> {
        if self.is_forked() {
            return Err(PyRuntimeError::new_err(
                "it was made before a fork, and its threads do not exist in this process: make a new one here",
            ));
        }
        Ok(())
    }
}

impl<T> Drop for Handle<T> {
    #[allow(unsafe_code)] // dropping a field early
    fn drop(&mut self) {
        // After a fork, its locks may be held by threads that do not exist here, so it is not
        // dropped.
        if !self.is_forked() {
            // SAFETY: the field is not used again: this is the drop of its owner.
            unsafe { ManuallyDrop::drop(&mut self.value) };
        }
    }
}
