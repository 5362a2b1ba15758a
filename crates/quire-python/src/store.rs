//! A bookmark store as Python sees it.

use std::path::PathBuf;

use pyo3::prelude::*;
use quire_driver::store;

use crate::errors;
use crate::interpreter;

/// Where the places of subscriptions are kept.
#[pyclass(frozen, module = "quire._quire")]
pub struct BookmarkStore(pub store::BookmarkStore);

#[pymethods]
impl BookmarkStore {
    /// In the file `path`, or in memory.
    #[new]
    #[pyo3(signature = (path=None))]
    fn new(py: Python<'_>, path: Option<PathBuf>) -> PyResult<Self> {
        let Some(path) = path else { return Ok(BookmarkStore(store::BookmarkStore::in_memory())) };
        let opened = interpreter::outside(py, || store::BookmarkStore::open(&path));
        opened.map(BookmarkStore).map_err(|error| errors::new_error(py, error.code(), &error.to_string(), 0))
    }

    fn most_recent(&self, sub_id: &str) -> Option<String> {
        self.0.most_recent(sub_id).map(|bookmark| bookmark.to_string())
    }

    fn sub_ids(&self) -> Vec<String> {
        self.0.sub_ids()
    }

    /// Whether it was kept.
    fn forget(&self, py: Python<'_>, sub_id: &str) -> PyResult<bool> {
        self.0.forget(sub_id).map_err(|failure| errors::to_python(py, &failure))
    }

    fn close(&self, py: Python<'_>) {
        interpreter::outside(py, || self.0.close());
    }
}
