//! A bookmark store as Python sees it.

use std::path::PathBuf;

use pyo3::prelude::*;
use quire_driver::store;

use crate::errors;
use crate::fork::Handle;
use crate::interpreter;

/// The store of the positions of subscriptions.
#[pyclass(frozen, module = "quire._quire")]
pub struct BookmarkStore(Handle<store::BookmarkStore>);

impl BookmarkStore {
    /// The store. Raises in a process other than the one that opened it.
    pub fn store(&self, py: Python<'_>) -> PyResult<&store::BookmarkStore> {
        self.0.check_fork(py)?;
        Ok(self.0.value())
    }
}

#[pymethods]
impl BookmarkStore {
    /// In the file `path`, or in memory.
    #[new]
    #[pyo3(signature = (path=None))]
    fn new(py: Python<'_>, path: Option<PathBuf>) -> PyResult<Self> {
        let opened = match path {
            Some(path) => interpreter::outside(py, || store::BookmarkStore::open(&path)),
            None => Ok(store::BookmarkStore::in_memory()),
        };
        opened
            .map(|store| BookmarkStore(Handle::new(store)))
            .map_err(|error| errors::new_error(py, error.code(), &error.to_string(), 0))
    }

    fn most_recent(&self, py: Python<'_>, sub_id: &str) -> PyResult<Option<String>> {
        Ok(self.store(py)?.most_recent(sub_id).map(|bookmark| bookmark.to_string()))
    }

    fn sub_ids(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        Ok(self.store(py)?.sub_ids())
    }

    /// Returns whether it had a position.
    fn forget(&self, py: Python<'_>, sub_id: &str) -> PyResult<bool> {
        self.store(py)?.forget(sub_id).map_err(|failure| errors::to_python(py, &failure))
    }

    fn close(&self, py: Python<'_>) {
        if !self.0.is_forked() {
            interpreter::outside(py, || self.0.value().close());
        }
    }
}
