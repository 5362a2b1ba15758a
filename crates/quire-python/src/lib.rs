//! The extension module `quire._quire`: registration only.

use pyo3::prelude::*;

#[pymodule]
fn _quire(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))
}
