//! A message in another type.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;
use quire_expression::message_type;

use crate::interpreter;
use crate::journal::message_type_of;

/// The message in another type. Raises `ValueError` when it cannot be written so.
#[pyfunction]
pub fn translate<'py>(
    py: Python<'py>,
    data: PyBackedBytes,
    source: &str,
    target: &str,
) -> PyResult<Bound<'py, PyBytes>> {
    let (source, target) = (message_type_of(py, source)?, message_type_of(py, target)?);
    let mut out = Vec::new();
    interpreter::outside(py, || message_type::translate(source, &data, target, &mut out))
        .map_err(|error| PyValueError::new_err(error.to_string()))?;
    Ok(PyBytes::new(py, &out))
}
